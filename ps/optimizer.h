// Server optimizers: one fused pass over parameters, slots and gradient. The equations are torch.optim's, to float32 rounding.
//
//   sgd        p -= lr g'
//   momentum   b = mu b + g';  p -= lr b                      (nesterov: p -= lr (g' + mu b))
//   adagrad    s += g'^2;  p -= lr g' / (sqrt(s) + eps)
//   adam       m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2;  p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps)
//   adamw      p *= 1 - lr wd, then adam with g' = g           (decoupled weight decay)
// with g' = g + wd p elsewhere, t = the version this push makes (1, 2, ...), and lr = spec.lr x schedule(t-1) x group lr_scale x push weight.
//
// Bits: only elementwise additions, multiplications, divisions and square roots, compiled without contraction into fused multiply-adds, so every
// vector width gives the same bits: a shard may be recovered on another machine. Coefficients are computed in double and rounded once.
#ifndef EBB_PS_OPTIMIZER_H
#define EBB_PS_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "core/wire.h"

#define EBB_OPTIMIZER_SLOTS_MAX 2
#define EBB_OPTIMIZER_GROUPS_MAX 64

// Gradients come straight from network frames, at any address.
typedef float ebb_unaligned_f32 __attribute__((aligned(1), may_alias));

typedef enum ebb_optimizer_kind {
    EBB_OPTIMIZER_SGD,
    EBB_OPTIMIZER_MOMENTUM,
    EBB_OPTIMIZER_ADAGRAD,
    EBB_OPTIMIZER_ADAM,
    EBB_OPTIMIZER_ADAMW
} ebb_optimizer_kind;

typedef enum ebb_schedule { EBB_SCHEDULE_CONSTANT, EBB_SCHEDULE_COSINE, EBB_SCHEDULE_LINEAR } ebb_schedule;

typedef struct ebb_optimizer {
    ebb_optimizer_kind kind;
    uint32_t slots; // 0, 1 (momentum, adagrad) or 2 (adam, adamw: m, v); every slot starts at zero
    double lr, beta1, beta2, eps, momentum;
    bool nesterov;
    ebb_schedule schedule;
    uint64_t warmup_steps, steps_total;
    double min_lr_ratio;
    uint32_t n_groups;
    double lr_scale[EBB_OPTIMIZER_GROUPS_MAX], weight_decay[EBB_OPTIMIZER_GROUPS_MAX];
} ebb_optimizer;

// CONFIG with a sentence in why (>= 256 bytes) for an unknown word or a number out of range. steps_total: of the whole job (schedules end there).
ebb_status ebb_optimizer_init(ebb_optimizer *o, const Ebb__OptimizerSpec *spec, uint64_t steps_total, char *why);

// Factor on lr for the step that turns `version` into version + 1: (version+1)/warmup while warming up, then the schedule down to min_lr_ratio.
double ebb_optimizer_schedule(const ebb_optimizer *o, uint64_t version);

// Where the momentum alone will have carried the parameters after `versions` more updates (>= 0, may be fractional), as if no gradient came:
//   p - lr K m,  K = b1 + b1^2 + ... + b1^versions = b1 (1 - b1^versions) / (1 - b1),  m the normalized first moment (adam) or b (momentum;
// with nesterov each of its steps is one power of mu further: K is multiplied by mu).
// A gradient computed there fits the parameters it will be applied to better than one computed at p (weight prediction, arXiv 1809.02839 and 1911.04610);
// docs/consistency.md has what it does to stability. version: the parameters'. out: numel floats that don't overlap in. False, and out untouched, where
// nothing moves: no momentum, version 0, versions 0.
bool ebb_optimizer_look_ahead(const ebb_optimizer *o, uint32_t group, uint64_t version, double versions, float weight, size_t numel,
                              const float *const in[], float *out);

// One update of numel elements. version: the one this push makes (>= 1). in/out: [0] parameters, [1..slots] slots; in[i] == out[i] updates in place,
// otherwise they must not overlap. group < n_groups.
void ebb_optimizer_apply(const ebb_optimizer *o, uint32_t group, uint64_t version, float weight, size_t numel, const ebb_unaligned_f32 *grad,
                         const float *const in[], float *const out[]);

// No NaN and no infinity among n values.
bool ebb_optimizer_all_finite(const ebb_unaligned_f32 *x, size_t n);

#endif
