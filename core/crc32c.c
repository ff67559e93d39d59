#include "core/crc32c.h"

#include <pthread.h>
#include <string.h>

#define POLY 0x82F63B78u

static uint32_t s_table[8][256];
static pthread_once_t s_once = PTHREAD_ONCE_INIT;

static void s_table_init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) {
            c = (c & 1) ? (c >> 1) ^ POLY : c >> 1;
        }
        s_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (int t = 1; t < 8; t++) {
            s_table[t][i] = (s_table[t - 1][i] >> 8) ^ s_table[0][s_table[t - 1][i] & 0xff];
        }
    }
}

// Eight bytes per step through eight tables (slicing-by-8).
static uint32_t s_crc_tables(uint32_t crc, const uint8_t *p, size_t len)
{
    pthread_once(&s_once, s_table_init);
    while (len >= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
#endif
        word ^= crc;
        crc = 0;
        for (int t = 0; t < 8; t++) {
            crc ^= s_table[7 - t][(word >> (8 * t)) & 0xff];
        }
        p += 8;
        len -= 8;
    }
    while (len-- > 0) {
        crc = (crc >> 8) ^ s_table[0][(crc ^ *p++) & 0xff];
    }
    return crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

// The crc32 instruction takes 3 cycles but one can start each cycle, so three independent blocks run interleaved and are joined by
// shifting a CRC over LANE zero bytes (multiplication by x^(8*LANE) mod P), tabulated once per byte of the CRC.
#define LANE 4096u
static uint32_t s_shift[4][256];
static pthread_once_t s_shift_once = PTHREAD_ONCE_INIT;

static void s_shift_init(void)
{
    pthread_once(&s_once, s_table_init);
    uint32_t basis[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t c = 1u << bit;
        for (size_t i = 0; i < LANE; i++) {
            c = (c >> 8) ^ s_table[0][c & 0xff];
        }
        basis[bit] = c;
    }
    for (int byte = 0; byte < 4; byte++) {
        for (uint32_t v = 0; v < 256; v++) {
            uint32_t c = 0;
            for (int bit = 0; bit < 8; bit++) {
                if (v & (1u << bit)) {
                    c ^= basis[byte * 8 + bit];
                }
            }
            s_shift[byte][v] = c;
        }
    }
}

static uint32_t s_shift_lane(uint32_t c)
{
    return s_shift[0][c & 0xff] ^ s_shift[1][(c >> 8) & 0xff] ^ s_shift[2][(c >> 16) & 0xff] ^ s_shift[3][c >> 24];
}

static inline uint64_t s_load(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

__attribute__((target("sse4.2"))) static uint32_t s_crc_sse42(uint32_t crc, const uint8_t *p, size_t len)
{
    pthread_once(&s_shift_once, s_shift_init);
    while (len >= 3 * LANE) {
        uint64_t a = crc, b = 0, c = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            a = _mm_crc32_u64(a, s_load(p + i));
            b = _mm_crc32_u64(b, s_load(p + LANE + i));
            c = _mm_crc32_u64(c, s_load(p + 2 * LANE + i));
        }
        crc = s_shift_lane(s_shift_lane((uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
        p += 3 * LANE;
        len -= 3 * LANE;
    }
    uint64_t a = crc;
    while (len >= 8) {
        a = _mm_crc32_u64(a, s_load(p));
        p += 8;
        len -= 8;
    }
    crc = (uint32_t)a;
    while (len-- > 0) {
        crc = _mm_crc32_u8(crc, *p++);
    }
    return crc;
}
#endif

uint32_t ebb_crc32c(uint32_t crc, const void *data, size_t len)
{
    crc = ~crc;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) {
        return ~s_crc_sse42(crc, data, len);
    }
#endif
    return ~s_crc_tables(crc, data, len);
}
