// Driver for tests/oracle/gradients.py: reads a configuration, parameters and a batch, writes loss, accuracy and gradient. Binary, native byte order:
// in:  char family[16]; u32 layers width heads context vocab; u32 n_sizes; u32 sizes[16]; u64 numel; u32 samples batch_max;
//      f32 params[n]; then tokens i32, targets i32 (gpt) or x f32, y i32 (mlp)
// out: u64 n tensors, per tensor: u32 name length, name, u64 numel; f64 loss; f64 evaluation loss; f64 accuracy; f32 grads[n];
//      gpt: f32 logits[samples * context * vocab]
// With --manifest only the tensor table is written and no parameters are read.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/models/model.h"

static void *s_read(FILE *f, size_t size, size_t n)
{
    void *p = malloc(size * n + 1);
    if (p == NULL || fread(p, size, n, f) != n) {
        fprintf(stderr, "model_grad: input ended early\n");
        exit(65);
    }
    return p;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: model_grad IN OUT [--manifest]\n");
        return 64;
    }
    FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
    if (in == NULL || out == NULL) {
        perror("model_grad");
        return 66;
    }
    ebb_model_config c;
    memset(&c, 0, sizeof(c));
    char *family = s_read(in, 16, 1);
    memcpy(c.family, family, 16);
    uint32_t *head = s_read(in, 4, 6);
    c.layers = head[0], c.width = head[1], c.heads = head[2], c.context = head[3], c.vocab = head[4], c.n_sizes = head[5];
    uint32_t *sizes = s_read(in, 4, 16);
    memcpy(c.sizes, sizes, sizeof(c.sizes));
    uint64_t *numel = s_read(in, 8, 1);
    c.numel = *numel;
    uint32_t *counts = s_read(in, 4, 2);
    char why[256];
    ebb_manifest *m = NULL;
    if (ebb_model_manifest(&c, 1024, &m, why) != EBB_OK) {
        fprintf(stderr, "model_grad: %s\n", why);
        return 65;
    }
    uint64_t n_tensors = m->n_tensors;
    fwrite(&n_tensors, 8, 1, out);
    for (size_t i = 0; i < n_tensors; i++) {
        uint32_t len = (uint32_t)strlen(m->tensors[i].name);
        fwrite(&len, 4, 1, out);
        fwrite(m->tensors[i].name, 1, len, out);
        fwrite(&m->tensors[i].numel, 8, 1, out);
    }
    int rc = 0;
    if (argc == 3) {
        const ebb_model *model = ebb_model_family_find(c.family);
        ebb_model_state *state = NULL;
        ebb_batch batch = {.samples = counts[0]};
        float *params = s_read(in, 4, m->numel), *grads = malloc(m->numel * 4);
        void *x = NULL, *y = NULL;
        if (strcmp(c.family, "gpt") == 0) {
            batch.tokens = x = s_read(in, 4, (size_t)counts[0] * c.context);
            batch.targets = y = s_read(in, 4, (size_t)counts[0] * c.context);
        } else {
            batch.x = x = s_read(in, 4, (size_t)counts[0] * c.sizes[0]);
            batch.y = y = s_read(in, 4, counts[0]);
        }
        for (uint64_t i = 0; i < m->numel; i++) {
            grads[i] = 1e30f; // must be overwritten everywhere
        }
        if (model->state_new(&c, ebb_backend_cpu(), counts[1], &state) != EBB_OK) {
            return 71;
        }
        double loss, eval_loss, accuracy;
        model->forward_backward(state, params, &batch, grads, &loss);
        model->forward(state, params, &batch, &eval_loss, &accuracy);
        fwrite(&loss, 8, 1, out);
        fwrite(&eval_loss, 8, 1, out);
        fwrite(&accuracy, 8, 1, out);
        fwrite(grads, 4, m->numel, out);
        if (model->logits != NULL) {
            size_t row = (size_t)c.context * c.vocab;
            float *logits = malloc(row * 4);
            for (uint32_t b = 0; b < counts[0]; b++) {
                model->logits(state, params, batch.tokens + (size_t)b * c.context, c.context, logits);
                fwrite(logits, 4, row, out);
            }
            free(logits);
        }
        model->state_free(&state);
        free(params);
        free(grads);
        free(x);
        free(y);
    }
    rc = fclose(out) != 0 ? 74 : rc;
    fclose(in);
    free(family);
    free(head);
    free(sizes);
    free(numel);
    free(counts);
    ebb_manifest_free(&m);
    return rc;
}
