// The staleness rule: may this gradient be applied, and with which weight. Pure.
//
// staleness tau = version of the shard now - version the gradient was computed at (docs/consistency.md). Weight `inverse` is 1/(1+tau)
// (staleness-aware learning rate, arXiv 1511.05950, smooth at 0); a tau beyond staleness_max is refused (Ringmaster's cut-off, arXiv 2501.16168).
#ifndef EBB_PS_CONSISTENCY_H
#define EBB_PS_CONSISTENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "core/wire.h"

typedef struct ebb_consistency {
    bool weight_inverse;
    uint64_t staleness_max; // 0: no bound
} ebb_consistency;

// CONFIG with a sentence in why (>= 256 bytes) if a word is not known. spec NULL: weight off, no bound.
ebb_status ebb_consistency_init(ebb_consistency *c, const Ebb__ConsistencySpec *spec, char *why);
// The weight of a gradient that is tau versions old; tau may be an expectation.
float ebb_consistency_weight(const ebb_consistency *c, double tau);
// OK: *staleness and *weight (multiplies the learning rate of this push) are set. STALE: too old, or base is a version this shard never had (it was
// rolled back by a crash): the sender must pull and compute again; *staleness is set (0 for the latter).
ebb_status ebb_consistency_judge(const ebb_consistency *c, uint64_t version, uint64_t base_version, uint64_t *staleness, float *weight);

#endif
