#include "worker/modelspec.h"

#include <stdio.h>
#include <string.h>

ebb_status ebb_modelspec_config(const Ebb__ModelSpec *spec, ebb_model_config *out, char *why)
{
    memset(out, 0, sizeof(*out));
    const ebb_model *family = ebb_model_family_find(spec->family);
    if (family == NULL) {
        snprintf(why, 256, "this worker knows no model family \"%.40s\" (known: gpt, mlp, counter)", spec->family);
        return EBB_INVAL;
    }
    if (spec->n_sizes > EBB_MODEL_SIZES_MAX) {
        snprintf(why, 256, "model has %zu layer sizes, at most %d are possible", spec->n_sizes, EBB_MODEL_SIZES_MAX);
        return EBB_INVAL;
    }
    snprintf(out->family, sizeof(out->family), "%s", family->name);
    out->layers = spec->layers;
    out->width = spec->width;
    out->heads = spec->heads;
    out->context = spec->context;
    out->vocab = spec->vocab;
    out->n_sizes = (uint32_t)spec->n_sizes;
    for (uint32_t i = 0; i < out->n_sizes; i++) {
        out->sizes[i] = spec->sizes[i];
    }
    out->numel = spec->numel;
    return family->check(out, why);
}
