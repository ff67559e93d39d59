// Models: one row of functions per family. A model is a manifest plus forward and backward over one flat parameter vector in manifest order.
//
// The state of a model holds its activations for at most batch_max samples, planned once: no allocation in a step. A state belongs to one thread.
#ifndef EBB_WORKER_MODELS_MODEL_H
#define EBB_WORKER_MODELS_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "core/manifest.h"
#include "core/status.h"
#include "kernels/backend.h"

#define EBB_MODEL_SIZES_MAX 16

typedef struct ebb_model_config {
    char family[16];                               // "gpt" | "mlp" | "counter"
    uint32_t layers, width, heads, context, vocab; // gpt
    uint32_t sizes[EBB_MODEL_SIZES_MAX], n_sizes;  // mlp: input, hidden..., classes
    uint64_t numel;                                // counter
} ebb_model_config;

typedef struct ebb_batch {
    uint32_t samples;       // 1..batch_max
    const int32_t *tokens;  // gpt: (samples, context)
    const int32_t *targets; // gpt: (samples, context)
    const float *x;         // mlp: (samples, features)
    const int32_t *y;       // mlp: (samples)
} ebb_batch;

typedef struct ebb_model_state ebb_model_state; // each family's own

typedef struct ebb_model {
    const char *name;
    // INVAL with a sentence in why (>= 256 bytes) if the configuration makes no sense.
    ebb_status (*check)(const ebb_model_config *config, char *why);
    // Adds the family's tensors to an unsealed manifest.
    ebb_status (*tensors)(const ebb_model_config *config, ebb_manifest *m);
    ebb_status (*state_new)(const ebb_model_config *config, const ebb_backend *backend, uint32_t batch_max, ebb_model_state **out);
    void (*state_free)(ebb_model_state **state);
    // Mean loss (nats) over the batch (gpt: over its tokens) and its gradient: grads is overwritten from end to end.
    void (*forward_backward)(ebb_model_state *state, const float *params, const ebb_batch *batch, float *grads, double *loss);
    // Evaluation: mean loss, and the fraction of right predictions.
    void (*forward)(ebb_model_state *state, const float *params, const ebb_batch *batch, double *loss, double *accuracy);
    // gpt only, else NULL: logits (steps, vocab) of one sequence of 1..context tokens.
    void (*logits)(ebb_model_state *state, const float *params, const int32_t *tokens, uint32_t steps, float *out);
    // Tokens a sample counts for (gpt: context; others 1).
    uint64_t (*tokens_per_sample)(const ebb_model_config *config);
} ebb_model;

// NULL: no such family.
const ebb_model *ebb_model_family_find(const char *name);

// Sealed manifest of a configuration. INVAL with why.
ebb_status ebb_model_manifest(const ebb_model_config *config, uint32_t chunk_elems, ebb_manifest **out, char *why);

extern const ebb_model ebb_model_gpt, ebb_model_mlp, ebb_model_counter;

#endif
