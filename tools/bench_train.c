// tokens/s of whole training steps (forward, backward, AdamW) of a gpt in one process: our half of tools/bench-train.
// --core prints the OpenBLAS kernels in use.
// usage: bench_train THREADS SECONDS [layers width heads context batch]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/rng.h"
#include "kernels/blas_core.h"
#include "worker/models/model.h"

static void s_adamw(float *restrict p, const float *restrict g, float *restrict m, float *restrict v, size_t n, int step)
{
    float c1 = 1.0f / (1.0f - powf(0.9f, (float)step)), c2 = 1.0f / (1.0f - powf(0.95f, (float)step));
    for (size_t i = 0; i < n; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.95f * v[i] + 0.05f * g[i] * g[i];
        p[i] = p[i] * (1.0f - 1e-4f) - 1e-3f * m[i] * c1 / (sqrtf(v[i] * c2) + 1e-8f);
    }
}

int main(int argc, char **argv)
{
    ebb_blas_core_tune(argv);
    if (argc == 2 && strcmp(argv[1], "--core") == 0) {
        puts(ebb_blas_core_name());
        return 0;
    }
    if (argc != 3 && argc != 8) {
        fprintf(stderr, "usage: bench_train THREADS SECONDS [layers width heads context batch]\n");
        return 64;
    }
    ebb_model_config c = {.family = "gpt", .layers = 4, .width = 128, .heads = 4, .context = 64, .vocab = 256};
    uint32_t batch_size = 16;
    if (argc == 8) {
        c.layers = (uint32_t)atoi(argv[3]), c.width = (uint32_t)atoi(argv[4]), c.heads = (uint32_t)atoi(argv[5]), c.context = (uint32_t)atoi(argv[6]);
        batch_size = (uint32_t)atoi(argv[7]);
    }
    char why[256];
    ebb_manifest *manifest = NULL;
    ebb_model_state *state = NULL;
    if (ebb_backend_cpu_threads(atoi(argv[1])) != EBB_OK || ebb_model_manifest(&c, EBB_CHUNK_ELEMS_DEFAULT, &manifest, why) != EBB_OK ||
        ebb_model_gpt.state_new(&c, ebb_backend_cpu(), batch_size, &state) != EBB_OK) {
        fprintf(stderr, "bench_train: bad arguments\n");
        return 64;
    }
    size_t n = manifest->numel, tokens = (size_t)batch_size * c.context;
    float *p = malloc(n * 4), *g = malloc(n * 4), *m = calloc(n, 4), *v = calloc(n, 4);
    int32_t *ids = malloc((tokens + 1) * 4);
    for (uint32_t i = 0; i < manifest->n_chunks; i++) {
        ebb_manifest_init_chunk(manifest, 1, i, p + manifest->chunks[i].offset);
    }
    uint64_t start = 0, end = ebb_clock_ns() + (uint64_t)(atof(argv[2]) * 1e9), now;
    int step = 0, warm = 3;
    double loss = 0;
    while ((now = ebb_clock_ns()) < end || step < warm + 1) {
        if (step == warm) {
            start = now;
        }
        for (size_t i = 0; i <= tokens; i++) {
            ids[i] = (int32_t)(ebb_rng_at(2, (uint64_t)step, i) % c.vocab);
        }
        ebb_batch batch = {.samples = batch_size, .tokens = ids, .targets = ids + 1};
        ebb_model_gpt.forward_backward(state, p, &batch, g, &loss);
        s_adamw(p, g, m, v, n, ++step);
    }
    printf("%.1f\n", (double)(step - warm) * (double)tokens / ((double)(now - start) * 1e-9));
    ebb_model_gpt.state_free(&state);
    ebb_manifest_free(&manifest);
    free(p), free(g), free(m), free(v), free(ids);
    return 0;
}
