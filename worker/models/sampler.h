// Writes text with a trained gpt: token by token, from the softmax of the last position's logits.
#ifndef EBB_WORKER_MODELS_SAMPLER_H
#define EBB_WORKER_MODELS_SAMPLER_H

#include "worker/models/model.h"

typedef struct ebb_sampler_options {
    double temperature; // 0: always the most likely token
    uint32_t top_k;     // only among the k most likely; 0: all
    uint64_t seed;
} ebb_sampler_options;

// Called for each new token; nonzero ends the sampling.
typedef int ebb_sampler_emit(void *arg, int32_t token);

// Continues the prompt (n_prompt tokens, may be 0: starts from token '\n' or 0) by count tokens. params: flat vector of the manifest.
// INVAL: not a gpt, or a prompt token outside the vocabulary; NOMEM.
ebb_status ebb_sampler_run(const ebb_model_config *config, const float *params, const int32_t *prompt, size_t n_prompt, size_t count,
                           const ebb_sampler_options *options, ebb_sampler_emit *emit, void *arg);

#endif
