#include "worker/models/model.h"

#include <stdio.h>
#include <string.h>

const ebb_model *ebb_model_family_find(const char *name)
{
    static const ebb_model *const families[] = {&ebb_model_gpt, &ebb_model_mlp, &ebb_model_counter};
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strcmp(families[i]->name, name) == 0) {
            return families[i];
        }
    }
    return NULL;
}

ebb_status ebb_model_manifest(const ebb_model_config *config, uint32_t chunk_elems, ebb_manifest **out, char *why)
{
    const ebb_model *family = ebb_model_family_find(config->family);
    if (family == NULL) {
        snprintf(why, 256, "unknown model family \"%.16s\" (known: gpt, mlp, counter)", config->family);
        return EBB_INVAL;
    }
    EBB_TRY(family->check(config, why));
    ebb_manifest *m = NULL;
    EBB_TRY(ebb_manifest_new(&m, chunk_elems));
    ebb_status st = family->tensors(config, m);
    if (st == EBB_OK) {
        st = ebb_manifest_seal(m);
    }
    if (st != EBB_OK) {
        snprintf(why, 256, "the model does not fit a manifest: %s", ebb_status_str(st));
        ebb_manifest_free(&m);
        return st;
    }
    *out = m;
    return EBB_OK;
}
