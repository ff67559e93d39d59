// The simulation's only source of chance: splitmix64, one state per run, so that a seed is a run.
#ifndef EBB_TESTS_SIM_DICE_H
#define EBB_TESTS_SIM_DICE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct dice {
    uint64_t state;
} dice;

static inline uint64_t dice_next(dice *d)
{
    uint64_t z = d->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Uniform in [0, n); n >= 1.
static inline uint64_t dice_below(dice *d, uint64_t n)
{
    return dice_next(d) % n;
}

// Uniform in [from, to].
static inline uint64_t dice_from(dice *d, uint64_t from, uint64_t to)
{
    return from + dice_below(d, to - from + 1);
}

// True with this many chances in a million.
static inline bool dice_ppm(dice *d, uint32_t ppm)
{
    return dice_below(d, 1000000) < ppm;
}

#endif
