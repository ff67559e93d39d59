// Logits of our GPT for one sequence, for comparison with PyTorch's on the same parameters.
//
//   oracle_logits LAYERS WIDTH HEADS CONTEXT VOCAB PARAMS TOKENS OUT
//     PARAMS  raw float32 in manifest order;  TOKENS  1..CONTEXT bytes;  OUT  raw float32 (tokens, VOCAB)
#include <stdio.h>
#include <stdlib.h>

#include "kernels/backend.h"
#include "worker/models/model.h"

static void *s_read(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0) {
        perror(path);
        exit(66);
    }
    *len = (size_t)ftell(f);
    rewind(f);
    void *bytes = malloc(*len + 1);
    if (bytes == NULL || fread(bytes, 1, *len, f) != *len) {
        perror(path);
        exit(74);
    }
    fclose(f);
    return bytes;
}

int main(int argc, char **argv)
{
    if (argc != 9) {
        fprintf(stderr, "usage: %s LAYERS WIDTH HEADS CONTEXT VOCAB PARAMS TOKENS OUT\n", argv[0]);
        return 64;
    }
    uint32_t n[5];
    for (int i = 0; i < 5; i++) {
        n[i] = (uint32_t)strtoul(argv[i + 1], NULL, 10);
    }
    ebb_model_config config = {.family = "gpt", .layers = n[0], .width = n[1], .heads = n[2], .context = n[3], .vocab = n[4]};
    ebb_manifest *manifest = NULL;
    char why[256];
    if (ebb_model_manifest(&config, EBB_CHUNK_ELEMS_DEFAULT, &manifest, why) != EBB_OK) {
        fprintf(stderr, "%s\n", why);
        return 64;
    }
    size_t params_len, steps;
    float *params = s_read(argv[6], &params_len);
    uint8_t *bytes = s_read(argv[7], &steps);
    if (params_len != manifest->numel * sizeof(float) || steps < 1 || steps > config.context) {
        fprintf(stderr, "%zu bytes of parameters, %zu tokens do not fit the model\n", params_len, steps);
        return 65;
    }
    int32_t *tokens = malloc(steps * sizeof(*tokens));
    float *out = malloc(steps * config.vocab * sizeof(*out));
    ebb_model_state *state = NULL;
    if (tokens == NULL || out == NULL || ebb_model_gpt.state_new(&config, ebb_backend_cpu(), 1, &state) != EBB_OK) {
        fprintf(stderr, "out of memory\n");
        return 70;
    }
    for (size_t i = 0; i < steps; i++) {
        tokens[i] = bytes[i];
    }
    ebb_model_gpt.logits(state, params, tokens, (uint32_t)steps, out);
    FILE *f = fopen(argv[8], "wb");
    int bad = f == NULL || fwrite(out, sizeof(*out) * config.vocab, steps, f) != steps;
    bad |= f == NULL || fclose(f) != 0;
    if (bad) {
        perror(argv[8]);
    }
    ebb_model_gpt.state_free(&state);
    ebb_manifest_free(&manifest);
    free(tokens);
    free(out);
    free(params);
    free(bytes);
    return bad ? 74 : 0;
}
