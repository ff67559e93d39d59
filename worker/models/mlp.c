// Fully connected network with ReLU and a softmax cross-entropy at its end. Weights are stored (out, in); initial values uniform in +-1/sqrt(fan_in), as
// PyTorch's Linear has them.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "worker/models/model.h"

struct ebb_model_state {
    ebb_model_config c;
    const ebb_backend *k;
    uint32_t batch_max;
    float *act[EBB_MODEL_SIZES_MAX]; // act[i] (B, sizes[i + 1])
    float *d[2];                     // backward, (B, widest)
};

static ebb_status s_check(const ebb_model_config *c, char *why)
{
    if (c->n_sizes < 2 || c->n_sizes > EBB_MODEL_SIZES_MAX) {
        snprintf(why, 256, "mlp: sizes needs 2 to %d numbers: input, hidden..., classes", EBB_MODEL_SIZES_MAX);
        return EBB_INVAL;
    }
    for (uint32_t i = 0; i < c->n_sizes; i++) {
        if (c->sizes[i] < 1 || c->sizes[i] > (1u << 24)) {
            snprintf(why, 256, "mlp: size %u is out of range", c->sizes[i]);
            return EBB_INVAL;
        }
    }
    if (c->sizes[c->n_sizes - 1] < 2) {
        snprintf(why, 256, "mlp: the last size is the number of classes and must be at least 2");
        return EBB_INVAL;
    }
    return EBB_OK;
}

static ebb_status s_tensors(const ebb_model_config *c, ebb_manifest *m)
{
    for (uint32_t i = 0; i + 1 < c->n_sizes; i++) {
        char name[EBB_NAME_MAX];
        uint64_t ne[2] = {c->sizes[i + 1], c->sizes[i]};
        float bound = 1.0f / sqrtf((float)c->sizes[i]);
        snprintf(name, sizeof(name), "fc.%u.weight", i);
        EBB_TRY(ebb_manifest_add(m, name, 2, ne, EBB_INIT_UNIFORM, bound, 0));
        snprintf(name, sizeof(name), "fc.%u.bias", i);
        EBB_TRY(ebb_manifest_add(m, name, 1, ne, EBB_INIT_UNIFORM, bound, 1));
    }
    return EBB_OK;
}

static void s_state_free(ebb_model_state **sp)
{
    ebb_model_state *s = *sp;
    if (s == NULL) {
        return;
    }
    *sp = NULL;
    for (uint32_t i = 0; i + 1 < s->c.n_sizes; i++) {
        free(s->act[i]);
    }
    free(s->d[0]);
    free(s->d[1]);
    free(s);
}

static ebb_status s_state_new(const ebb_model_config *config, const ebb_backend *backend, uint32_t batch_max, ebb_model_state **out)
{
    EBB_ASSERT(batch_max >= 1);
    ebb_model_state *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return EBB_NOMEM;
    }
    s->c = *config;
    s->k = backend;
    s->batch_max = batch_max;
    size_t widest = 0;
    int ok = 1;
    for (uint32_t i = 0; i + 1 < config->n_sizes; i++) {
        size_t size = config->sizes[i + 1];
        widest = size > widest ? size : widest;
        s->act[i] = malloc(batch_max * size * sizeof(float));
        ok = ok && s->act[i] != NULL;
    }
    for (int i = 0; i < 2; i++) {
        s->d[i] = malloc(batch_max * widest * sizeof(float));
        ok = ok && s->d[i] != NULL;
    }
    if (!ok) {
        s_state_free(&s);
        return EBB_NOMEM;
    }
    *out = s;
    return EBB_OK;
}

static void s_run(ebb_model_state *s, const float *p, const ebb_batch *batch)
{
    const float *x = batch->x;
    uint32_t last = s->c.n_sizes - 2;
    for (uint32_t i = 0; i <= last; i++) {
        int in = (int)s->c.sizes[i], out = (int)s->c.sizes[i + 1], n = (int)batch->samples;
        s->k->gemm(0, 1, n, out, in, 1.0f, x, in, p, in, 0.0f, s->act[i], out);
        p += (size_t)in * out;
        s->k->bias_add(s->act[i], p, (size_t)n, (size_t)out);
        p += out;
        if (i < last) {
            s->k->relu(s->act[i], (size_t)n * out);
        }
        x = s->act[i];
    }
}

static void s_forward_backward(ebb_model_state *s, const float *params, const ebb_batch *batch, float *grads, double *loss)
{
    EBB_ASSERT(batch->samples >= 1 && batch->samples <= s->batch_max);
    uint32_t last = s->c.n_sizes - 2;
    int n = (int)batch->samples;
    size_t offset[EBB_MODEL_SIZES_MAX], at = 0;
    s_run(s, params, batch);
    for (uint32_t i = 0; i <= last; i++) {
        offset[i] = at;
        at += (size_t)s->c.sizes[i + 1] * (s->c.sizes[i] + 1);
    }
    *loss = s->k->softmax_xent(s->act[last], batch->y, (size_t)n, s->c.sizes[last + 1], 1, 1.0f / (float)n, NULL) / n;
    float *dy = s->act[last];
    for (uint32_t i = last + 1; i-- > 0;) {
        int in = (int)s->c.sizes[i], out = (int)s->c.sizes[i + 1];
        const float *x = i == 0 ? batch->x : s->act[i - 1], *w = params + offset[i];
        float *dw = grads + offset[i];
        s->k->gemm(1, 0, out, in, n, 1.0f, dy, out, x, in, 0.0f, dw, in);
        s->k->bias_grad(dw + (size_t)in * out, dy, (size_t)n, (size_t)out);
        if (i > 0) {
            float *dx = s->d[i % 2];
            s->k->gemm(0, 0, n, in, out, 1.0f, dy, out, w, in, 0.0f, dx, in);
            s->k->relu_grad(dx, x, (size_t)n * in);
            dy = dx;
        }
    }
}

static void s_forward(ebb_model_state *s, const float *params, const ebb_batch *batch, double *loss, double *accuracy)
{
    EBB_ASSERT(batch->samples >= 1 && batch->samples <= s->batch_max);
    uint32_t last = s->c.n_sizes - 2;
    size_t correct = 0;
    s_run(s, params, batch);
    *loss = s->k->softmax_xent(s->act[last], batch->y, batch->samples, s->c.sizes[last + 1], 0, 0.0f, &correct) / batch->samples;
    *accuracy = (double)correct / batch->samples;
}

static uint64_t s_tokens_per_sample(const ebb_model_config *c)
{
    (void)c;
    return 1;
}

const ebb_model ebb_model_mlp = {
    .name = "mlp",
    .check = s_check,
    .tensors = s_tensors,
    .state_new = s_state_new,
    .state_free = s_state_free,
    .forward_backward = s_forward_backward,
    .forward = s_forward,
    .tokens_per_sample = s_tokens_per_sample,
};
