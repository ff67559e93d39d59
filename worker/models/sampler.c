#include "worker/models/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

static int s_descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

// Picks from logits (vocab) with one uniform number; sorted (vocab) is scratch.
static int32_t s_pick(const float *logits, float *sorted, uint32_t vocab, const ebb_sampler_options *o, double uniform)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    if (o->temperature <= 0.0) {
        return (int32_t)best;
    }
    float least = -INFINITY;
    if (o->top_k > 0 && o->top_k < vocab) {
        memcpy(sorted, logits, vocab * sizeof(float));
        qsort(sorted, vocab, sizeof(float), s_descending);
        least = sorted[o->top_k - 1];
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < vocab; i++) {
        sum += logits[i] >= least ? exp(((double)logits[i] - logits[best]) / o->temperature) : 0.0;
    }
    double left = uniform * sum;
    for (uint32_t i = 0; i < vocab; i++) {
        if (logits[i] >= least) {
            left -= exp(((double)logits[i] - logits[best]) / o->temperature);
            if (left < 0.0) {
                return (int32_t)i;
            }
        }
    }
    return (int32_t)best;
}

ebb_status ebb_sampler_run(const ebb_model_config *config, const float *params, const int32_t *prompt, size_t n_prompt, size_t count,
                           const ebb_sampler_options *options, ebb_sampler_emit *emit, void *arg)
{
    const ebb_model *family = ebb_model_family_find(config->family);
    if (family == NULL || family->logits == NULL) {
        return EBB_INVAL;
    }
    for (size_t i = 0; i < n_prompt; i++) {
        if (prompt[i] < 0 || (uint32_t)prompt[i] >= config->vocab) {
            return EBB_INVAL;
        }
    }
    ebb_status st = EBB_NOMEM;
    ebb_model_state *state = NULL;
    size_t context = config->context, held = 0;
    int32_t *window = malloc(context * sizeof(*window));
    float *logits = malloc(context * config->vocab * sizeof(*logits)), *sorted = malloc(config->vocab * sizeof(*sorted));
    if (window == NULL || logits == NULL || sorted == NULL) {
        goto out;
    }
    ebb_backend_cpu_threads(1); // one sample at a time: threads would wait for one another more than they compute
    EBB_TRY_GOTO(family->state_new(config, ebb_backend_cpu(), 1, &state), st, out);
    if (n_prompt == 0) {
        window[held++] = config->vocab > '\n' ? '\n' : 0;
    } else {
        held = n_prompt < context ? n_prompt : context;
        memcpy(window, prompt + n_prompt - held, held * sizeof(*window));
    }
    for (size_t i = 0; i < count; i++) {
        family->logits(state, params, window, (uint32_t)held, logits);
        int32_t token =
            s_pick(logits + (held - 1) * config->vocab, sorted, config->vocab, options, ebb_rng_uniform_at(options->seed, 0x53414D50u, i));
        if (emit(arg, token) != 0) {
            break;
        }
        if (held == context) {
            memmove(window, window + 1, (context - 1) * sizeof(*window));
            held--;
        }
        window[held++] = token;
    }
    st = EBB_OK;
out:
    if (family->state_free != NULL) {
        family->state_free(&state);
    }
    free(window);
    free(logits);
    free(sorted);
    return st;
}
