// Learns nothing: every gradient is -1, so under SGD with learning rate 1 each parameter counts the steps that were applied to it. For checking that a
// fleet applies every step exactly once, whatever dies.
#include <stdio.h>
#include <stdlib.h>

#include "worker/models/model.h"

struct ebb_model_state {
    uint64_t numel;
};

static ebb_status s_check(const ebb_model_config *c, char *why)
{
    if (c->numel < 1 || c->numel > (1ULL << 40)) {
        snprintf(why, 256, "counter: numel is out of range");
        return EBB_INVAL;
    }
    return EBB_OK;
}

static ebb_status s_tensors(const ebb_model_config *c, ebb_manifest *m)
{
    return ebb_manifest_add(m, "count", 1, &c->numel, EBB_INIT_ZEROS, 0.0f, 1);
}

static ebb_status s_state_new(const ebb_model_config *config, const ebb_backend *backend, uint32_t batch_max, ebb_model_state **out)
{
    (void)backend;
    (void)batch_max;
    ebb_model_state *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return EBB_NOMEM;
    }
    s->numel = config->numel;
    *out = s;
    return EBB_OK;
}

static void s_state_free(ebb_model_state **sp)
{
    free(*sp);
    *sp = NULL;
}

static void s_forward_backward(ebb_model_state *s, const float *params, const ebb_batch *batch, float *grads, double *loss)
{
    (void)params;
    (void)batch;
    for (uint64_t i = 0; i < s->numel; i++) {
        grads[i] = -1.0f;
    }
    *loss = 0.0;
}

static void s_forward(ebb_model_state *s, const float *params, const ebb_batch *batch, double *loss, double *accuracy)
{
    (void)s;
    (void)params;
    (void)batch;
    *loss = 0.0;
    *accuracy = 0.0;
}

static uint64_t s_tokens_per_sample(const ebb_model_config *c)
{
    (void)c;
    return 1;
}

const ebb_model ebb_model_counter = {
    .name = "counter",
    .check = s_check,
    .tensors = s_tensors,
    .state_new = s_state_new,
    .state_free = s_state_free,
    .forward_backward = s_forward_backward,
    .forward = s_forward,
    .tokens_per_sample = s_tokens_per_sample,
};
