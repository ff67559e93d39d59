// A byte- or token-level GPT with learned positions, pre-norm blocks, tanh-GELU and a head tied to the token table (GPT-2's architecture; Radford et al.,
// 2019). Weights are stored (out, in). Initial values as GPT-2's: normal(0.02), residual projections normal(0.02 / sqrt(2 * layers)).
//
// Notation: B samples, T steps of context, N = B*T rows, C width, H heads, V vocabulary.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "worker/models/model.h"

enum { GROUP_DECAY = 0, GROUP_PLAIN = 1 };

typedef struct layer_acts {
    float *ln1, *ln1_mean, *ln1_rstd; // (N,C) (N) (N)
    float *qkv, *probs, *att;         // (N,3C) (B,H,T,T) (N,C)
    float *mid;                       // (N,C): residual stream after attention
    float *ln2, *ln2_mean, *ln2_rstd; // (N,C) (N) (N)
    float *fc, *act;                  // (N,4C) before and after GELU
    float *out;                       // (N,C): residual stream after the block
} layer_acts;

struct ebb_model_state {
    ebb_model_config c;
    const ebb_backend *k;
    uint32_t batch_max;
    float *arena;
    float *embedded; // (N,C)
    layer_acts *layers;
    float *lnf, *lnf_mean, *lnf_rstd;          // (N,C) (N) (N)
    float *logits;                             // (N,V)
    float *dx, *dtmp, *dwide, *dqkv, *scratch; // backward: (N,C) (N,C) (N,4C) (N,3C) (T,T)
};

static ebb_status s_check(const ebb_model_config *c, char *why)
{
    if (c->layers < 1 || c->layers > 512 || c->width < 1 || c->width > 65536 || c->heads < 1 || c->context < 1 || c->context > 65536 ||
        c->vocab < 2 || c->vocab > 1000000) {
        snprintf(why, 256, "gpt: layers, width, heads, context or vocab is out of range");
        return EBB_INVAL;
    }
    if (c->width % c->heads != 0) {
        snprintf(why, 256, "gpt: width %u is not a multiple of heads %u", c->width, c->heads);
        return EBB_INVAL;
    }
    return EBB_OK;
}

static ebb_status s_tensor(ebb_manifest *m, int layer, const char *name, uint64_t rows, uint64_t cols, ebb_init_kind init, float a, uint32_t group)
{
    char full[EBB_NAME_MAX];
    if (layer >= 0) {
        snprintf(full, sizeof(full), "h.%d.%s", layer, name);
    } else {
        snprintf(full, sizeof(full), "%s", name);
    }
    uint64_t ne[2] = {rows, cols};
    return ebb_manifest_add(m, full, cols == 0 ? 1 : 2, ne, init, a, group);
}

static ebb_status s_tensors(const ebb_model_config *c, ebb_manifest *m)
{
    uint64_t w = c->width;
    float residual = 0.02f / sqrtf(2.0f * (float)c->layers);
    EBB_TRY(s_tensor(m, -1, "wte.weight", c->vocab, w, EBB_INIT_NORMAL, 0.02f, GROUP_DECAY));
    EBB_TRY(s_tensor(m, -1, "wpe.weight", c->context, w, EBB_INIT_NORMAL, 0.02f, GROUP_DECAY));
    for (int l = 0; l < (int)c->layers; l++) {
        EBB_TRY(s_tensor(m, l, "ln_1.weight", w, 0, EBB_INIT_CONSTANT, 1.0f, GROUP_PLAIN));
        EBB_TRY(s_tensor(m, l, "ln_1.bias", w, 0, EBB_INIT_ZEROS, 0, GROUP_PLAIN));
        EBB_TRY(s_tensor(m, l, "attn.qkv.weight", 3 * w, w, EBB_INIT_NORMAL, 0.02f, GROUP_DECAY));
        EBB_TRY(s_tensor(m, l, "attn.qkv.bias", 3 * w, 0, EBB_INIT_ZEROS, 0, GROUP_PLAIN));
        EBB_TRY(s_tensor(m, l, "attn.proj.weight", w, w, EBB_INIT_NORMAL, residual, GROUP_DECAY));
        EBB_TRY(s_tensor(m, l, "attn.proj.bias", w, 0, EBB_INIT_ZEROS, 0, GROUP_PLAIN));
        EBB_TRY(s_tensor(m, l, "ln_2.weight", w, 0, EBB_INIT_CONSTANT, 1.0f, GROUP_PLAIN));
        EBB_TRY(s_tensor(m, l, "ln_2.bias", w, 0, EBB_INIT_ZEROS, 0, GROUP_PLAIN));
        EBB_TRY(s_tensor(m, l, "mlp.fc.weight", 4 * w, w, EBB_INIT_NORMAL, 0.02f, GROUP_DECAY));
        EBB_TRY(s_tensor(m, l, "mlp.fc.bias", 4 * w, 0, EBB_INIT_ZEROS, 0, GROUP_PLAIN));
        EBB_TRY(s_tensor(m, l, "mlp.proj.weight", w, 4 * w, EBB_INIT_NORMAL, residual, GROUP_DECAY));
        EBB_TRY(s_tensor(m, l, "mlp.proj.bias", w, 0, EBB_INIT_ZEROS, 0, GROUP_PLAIN));
    }
    EBB_TRY(s_tensor(m, -1, "ln_f.weight", w, 0, EBB_INIT_CONSTANT, 1.0f, GROUP_PLAIN));
    return s_tensor(m, -1, "ln_f.bias", w, 0, EBB_INIT_ZEROS, 0, GROUP_PLAIN);
}

// The flat vector cut into tensors, in the order of s_tensors. T is `float` or `const float`.
typedef struct block_params {
    size_t ln1_w, ln1_b, qkv_w, qkv_b, att_w, att_b, ln2_w, ln2_b, fc_w, fc_b, proj_w, proj_b; // offsets
} block_params;

static size_t s_head_size(const ebb_model_config *c)
{
    return ((size_t)c->vocab + c->context) * c->width;
}

static size_t s_block_size(const ebb_model_config *c)
{
    size_t w = c->width;
    return 12 * w * w + 13 * w;
}

static block_params s_block(const ebb_model_config *c, uint32_t layer)
{
    size_t w = c->width, at = s_head_size(c) + layer * s_block_size(c);
    block_params p;
    p.ln1_w = at;
    p.ln1_b = p.ln1_w + w;
    p.qkv_w = p.ln1_b + w;
    p.qkv_b = p.qkv_w + 3 * w * w;
    p.att_w = p.qkv_b + 3 * w;
    p.att_b = p.att_w + w * w;
    p.ln2_w = p.att_b + w;
    p.ln2_b = p.ln2_w + w;
    p.fc_w = p.ln2_b + w;
    p.fc_b = p.fc_w + 4 * w * w;
    p.proj_w = p.fc_b + 4 * w;
    p.proj_b = p.proj_w + 4 * w * w;
    return p;
}

// Hands out pieces of one allocation; with arena NULL it only counts.
static float *s_piece(float *arena, size_t *at, size_t n)
{
    float *p = arena == NULL ? NULL : arena + *at;
    *at += (n + 15) / 16 * 16;
    return p;
}

static size_t s_plan(ebb_model_state *s)
{
    const ebb_model_config *c = &s->c;
    size_t n = (size_t)s->batch_max * c->context, w = c->width, at = 0;
    size_t probs = (size_t)s->batch_max * c->heads * c->context * c->context;
    float *a = s->arena;
    s->embedded = s_piece(a, &at, n * w);
    for (uint32_t l = 0; l < c->layers; l++) {
        layer_acts *x = &s->layers[l];
        x->ln1 = s_piece(a, &at, n * w);
        x->ln1_mean = s_piece(a, &at, n);
        x->ln1_rstd = s_piece(a, &at, n);
        x->qkv = s_piece(a, &at, n * 3 * w);
        x->probs = s_piece(a, &at, probs);
        x->att = s_piece(a, &at, n * w);
        x->mid = s_piece(a, &at, n * w);
        x->ln2 = s_piece(a, &at, n * w);
        x->ln2_mean = s_piece(a, &at, n);
        x->ln2_rstd = s_piece(a, &at, n);
        x->fc = s_piece(a, &at, n * 4 * w);
        x->act = s_piece(a, &at, n * 4 * w);
        x->out = s_piece(a, &at, n * w);
    }
    s->lnf = s_piece(a, &at, n * w);
    s->lnf_mean = s_piece(a, &at, n);
    s->lnf_rstd = s_piece(a, &at, n);
    s->logits = s_piece(a, &at, n * c->vocab);
    s->dx = s_piece(a, &at, n * w);
    s->dtmp = s_piece(a, &at, n * w);
    s->dwide = s_piece(a, &at, n * 4 * w);
    s->dqkv = s_piece(a, &at, n * 3 * w);
    s->scratch = s_piece(a, &at, (size_t)c->context * c->context);
    return at;
}

static void s_state_free(ebb_model_state **sp)
{
    ebb_model_state *s = *sp;
    if (s == NULL) {
        return;
    }
    *sp = NULL;
    free(s->arena);
    free(s->layers);
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
    s->layers = calloc(config->layers, sizeof(*s->layers));
    if (s->layers != NULL) {
        s->arena = aligned_alloc(64, s_plan(s) * sizeof(float));
    }
    if (s->arena == NULL) {
        s_state_free(&s);
        return EBB_NOMEM;
    }
    s_plan(s);
    *out = s;
    return EBB_OK;
}

// y (n,o) = x (n,i) @ w (o,i)^T + bias (o)
static void s_linear(const ebb_backend *k, float *y, const float *x, const float *w, const float *bias, size_t n, size_t i, size_t o)
{
    k->gemm(0, 1, (int)n, (int)o, (int)i, 1.0f, x, (int)i, w, (int)i, 0.0f, y, (int)o);
    k->bias_add(y, bias, n, o);
}

// dx (n,i) = dy (n,o) @ w (o,i); dw (o,i) = dy^T @ x; dbias (o)
static void s_linear_grad(const ebb_backend *k, float *dx, float *dw, float *dbias, const float *dy, const float *x, const float *w, size_t n,
                          size_t i, size_t o)
{
    k->gemm(0, 0, (int)n, (int)i, (int)o, 1.0f, dy, (int)o, w, (int)i, 0.0f, dx, (int)i);
    k->gemm(1, 0, (int)o, (int)i, (int)n, 1.0f, dy, (int)o, x, (int)i, 0.0f, dw, (int)i);
    k->bias_grad(dbias, dy, n, o);
}

// Runs all layers on `batch` sequences of `steps` tokens; leaves the logits (batch*steps, V).
static void s_run(ebb_model_state *s, const float *p, const int32_t *tokens, size_t batch, size_t steps)
{
    const ebb_model_config *c = &s->c;
    const ebb_backend *k = s->k;
    size_t n = batch * steps, w = c->width;
    k->embed(s->embedded, p, p + (size_t)c->vocab * w, tokens, n, steps, w);
    const float *x = s->embedded;
    for (uint32_t l = 0; l < c->layers; l++) {
        layer_acts *a = &s->layers[l];
        block_params b = s_block(c, l);
        k->layernorm(a->ln1, a->ln1_mean, a->ln1_rstd, x, p + b.ln1_w, p + b.ln1_b, n, w);
        s_linear(k, a->qkv, a->ln1, p + b.qkv_w, p + b.qkv_b, n, w, 3 * w);
        k->attention(a->att, a->probs, a->qkv, batch, steps, w, c->heads);
        s_linear(k, a->mid, a->att, p + b.att_w, p + b.att_b, n, w, w);
        k->add(a->mid, a->mid, x, n * w);
        k->layernorm(a->ln2, a->ln2_mean, a->ln2_rstd, a->mid, p + b.ln2_w, p + b.ln2_b, n, w);
        s_linear(k, a->fc, a->ln2, p + b.fc_w, p + b.fc_b, n, w, 4 * w);
        k->gelu(a->act, a->fc, n * 4 * w);
        s_linear(k, a->out, a->act, p + b.proj_w, p + b.proj_b, n, 4 * w, w);
        k->add(a->out, a->out, a->mid, n * w);
        x = a->out;
    }
    size_t lnf = s_head_size(c) + c->layers * s_block_size(c);
    k->layernorm(s->lnf, s->lnf_mean, s->lnf_rstd, x, p + lnf, p + lnf + w, n, w);
    k->gemm(0, 1, (int)n, (int)c->vocab, (int)w, 1.0f, s->lnf, (int)w, p, (int)w, 0.0f, s->logits, (int)c->vocab);
}

static void s_layer_backward(ebb_model_state *s, const float *p, float *g, uint32_t l, const float *x, size_t batch)
{
    const ebb_model_config *c = &s->c;
    const ebb_backend *k = s->k;
    size_t n = batch * c->context, w = c->width;
    layer_acts *a = &s->layers[l];
    block_params b = s_block(c, l);
    s_linear_grad(k, s->dwide, g + b.proj_w, g + b.proj_b, s->dx, a->act, p + b.proj_w, n, 4 * w, w);
    k->gelu_grad(s->dwide, a->fc, n * 4 * w);
    s_linear_grad(k, s->dtmp, g + b.fc_w, g + b.fc_b, s->dwide, a->ln2, p + b.fc_w, n, w, 4 * w);
    k->layernorm_grad(s->dx, g + b.ln2_w, g + b.ln2_b, s->dtmp, a->mid, a->ln2_mean, a->ln2_rstd, p + b.ln2_w, n, w);
    s_linear_grad(k, s->dtmp, g + b.att_w, g + b.att_b, s->dx, a->att, p + b.att_w, n, w, w);
    k->attention_grad(s->dqkv, s->scratch, s->dtmp, a->probs, a->qkv, batch, c->context, w, c->heads);
    s_linear_grad(k, s->dtmp, g + b.qkv_w, g + b.qkv_b, s->dqkv, a->ln1, p + b.qkv_w, n, w, 3 * w);
    k->layernorm_grad(s->dx, g + b.ln1_w, g + b.ln1_b, s->dtmp, x, a->ln1_mean, a->ln1_rstd, p + b.ln1_w, n, w);
}

static void s_forward_backward(ebb_model_state *s, const float *p, const ebb_batch *batch, float *g, double *loss)
{
    const ebb_model_config *c = &s->c;
    const ebb_backend *k = s->k;
    EBB_ASSERT(batch->samples >= 1 && batch->samples <= s->batch_max);
    size_t n = (size_t)batch->samples * c->context, w = c->width;
    s_run(s, p, batch->tokens, batch->samples, c->context);
    *loss = k->softmax_xent(s->logits, batch->targets, n, c->vocab, 1, 1.0f / (float)n, NULL) / (double)n;
    // Head, tied to the token table: its gradient starts the table's, the embedding adds to it at the end.
    k->gemm(0, 0, (int)n, (int)w, (int)c->vocab, 1.0f, s->logits, (int)c->vocab, p, (int)w, 0.0f, s->dtmp, (int)w);
    k->gemm(1, 0, (int)c->vocab, (int)w, (int)n, 1.0f, s->logits, (int)c->vocab, s->lnf, (int)w, 0.0f, g, (int)w);
    size_t lnf = s_head_size(c) + c->layers * s_block_size(c);
    memset(s->dx, 0, n * w * sizeof(float));
    k->layernorm_grad(s->dx, g + lnf, g + lnf + w, s->dtmp, s->layers[c->layers - 1].out, s->lnf_mean, s->lnf_rstd, p + lnf, n, w);
    for (uint32_t l = c->layers; l-- > 0;) {
        s_layer_backward(s, p, g, l, l == 0 ? s->embedded : s->layers[l - 1].out, batch->samples);
    }
    k->embed_grad(g, g + (size_t)c->vocab * w, s->dx, batch->tokens, n, c->context, w);
}

static void s_forward(ebb_model_state *s, const float *p, const ebb_batch *batch, double *loss, double *accuracy)
{
    EBB_ASSERT(batch->samples >= 1 && batch->samples <= s->batch_max);
    size_t n = (size_t)batch->samples * s->c.context, correct = 0;
    s_run(s, p, batch->tokens, batch->samples, s->c.context);
    *loss = s->k->softmax_xent(s->logits, batch->targets, n, s->c.vocab, 0, 0.0f, &correct) / (double)n;
    *accuracy = (double)correct / (double)n;
}

static void s_logits(ebb_model_state *s, const float *p, const int32_t *tokens, uint32_t steps, float *out)
{
    EBB_ASSERT(steps >= 1 && steps <= s->c.context);
    s_run(s, p, tokens, 1, steps);
    memcpy(out, s->logits, (size_t)steps * s->c.vocab * sizeof(float));
}

static uint64_t s_tokens_per_sample(const ebb_model_config *c)
{
    return c->context;
}

const ebb_model ebb_model_gpt = {
    .name = "gpt",
    .check = s_check,
    .tensors = s_tensors,
    .state_new = s_state_new,
    .state_free = s_state_free,
    .forward_backward = s_forward_backward,
    .forward = s_forward,
    .logits = s_logits,
    .tokens_per_sample = s_tokens_per_sample,
};
