// Seeded generators. Counter-based Philox4x32-10 (Salmon et al., SC'11): value = f(key, counter), no state to share.
#ifndef EBB_CORE_RNG_H
#define EBB_CORE_RNG_H

#include <stddef.h>
#include <stdint.h>

// Four random words for (key, hi, lo).
void ebb_rng_block(uint64_t key, uint64_t hi, uint64_t lo, uint32_t out[4]);
// One 64-bit word for (key, hi, lo): seeds, hashes of positions.
uint64_t ebb_rng_at(uint64_t key, uint64_t hi, uint64_t lo);
// Element i of the stream (key, hi): uniform in [0,1), or standard normal (Box-Muller in double).
double ebb_rng_uniform_at(uint64_t key, uint64_t hi, uint64_t i);
double ebb_rng_normal_at(uint64_t key, uint64_t hi, uint64_t i);
// Position of index i in a seeded permutation of [0, n), n >= 1 (Feistel network with cycle walking: no memory).
uint64_t ebb_rng_permute(uint64_t key, uint64_t n, uint64_t i);
// Random bits from the system (incarnations, pins). Never 0.
uint64_t ebb_rng_system(void);

#endif
