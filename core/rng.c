#include "core/rng.h"

#include <math.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/assert.h"
#include "core/clock.h"

// Philox4x32-10: constants from Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11.
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

void ebb_rng_block(uint64_t key, uint64_t hi, uint64_t lo, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t ebb_rng_at(uint64_t key, uint64_t hi, uint64_t lo)
{
    uint32_t r[4];
    ebb_rng_block(key, hi, lo, r);
    return ((uint64_t)r[1] << 32) | r[0];
}

double ebb_rng_uniform_at(uint64_t key, uint64_t hi, uint64_t i)
{
    return (double)(ebb_rng_at(key, hi, i) >> 11) * 0x1.0p-53;
}

double ebb_rng_normal_at(uint64_t key, uint64_t hi, uint64_t i)
{
    uint32_t r[4];
    ebb_rng_block(key, hi, i, r);
    double u = ((double)(((uint64_t)r[1] << 32 | r[0]) >> 11) + 0.5) * 0x1.0p-53; // (0, 1): the logarithm is finite
    double v = (double)(((uint64_t)r[3] << 32 | r[2]) >> 11) * 0x1.0p-53;
    return sqrt(-2.0 * log(u)) * cos(2.0 * M_PI * v);
}

// Balanced Feistel network on 2*half bits, 2^(2*half) >= n; positions outside [0, n) are walked on (at most 4x the domain, so ~4 rounds at worst on average).
uint64_t ebb_rng_permute(uint64_t key, uint64_t n, uint64_t i)
{
    EBB_ASSERT(n >= 1 && i < n);
    unsigned half = 1;
    while (half < 32 && (1ULL << (2 * half)) < n) {
        half++;
    }
    uint64_t mask = (1ULL << half) - 1;
    uint64_t x = i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (ebb_rng_at(key, round + 0x5045524Du, right) & mask);
            left = right;
            right = next;
        }
        x = (left << half) | right;
    } while (x >= n);
    return x;
}

uint64_t ebb_rng_system(void)
{
    uint64_t v = 0;
    if (getrandom(&v, sizeof(v), 0) != (ssize_t)sizeof(v) || v == 0) {
        v = ebb_rng_at(ebb_clock_ns(), (uint64_t)getpid(), 1) | 1;
    }
    return v;
}
