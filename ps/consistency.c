#include "ps/consistency.h"

#include <stdio.h>
#include <string.h>

ebb_status ebb_consistency_init(ebb_consistency *c, const Ebb__ConsistencySpec *spec, char *why)
{
    memset(c, 0, sizeof(*c));
    if (spec == NULL) {
        return EBB_OK;
    }
    if (spec->mode[0] != '\0' && strcmp(spec->mode, "async") != 0) {
        snprintf(why, 256, "consistency.mode \"%.60s\" is not known (known: async)", spec->mode);
        return EBB_CONFIG;
    }
    if (strcmp(spec->staleness_weight, "inverse") == 0) {
        c->weight_inverse = true;
    } else if (spec->staleness_weight[0] != '\0' && strcmp(spec->staleness_weight, "off") != 0) {
        snprintf(why, 256, "consistency.staleness_weight \"%.60s\" is not known (known: off, inverse)", spec->staleness_weight);
        return EBB_CONFIG;
    }
    c->staleness_max = spec->staleness_max;
    return EBB_OK;
}

float ebb_consistency_weight(const ebb_consistency *c, double tau)
{
    return c->weight_inverse ? (float)(1.0 / (1.0 + tau)) : 1.0f;
}

ebb_status ebb_consistency_judge(const ebb_consistency *c, uint64_t version, uint64_t base_version, uint64_t *staleness, float *weight)
{
    *staleness = 0;
    *weight = 1.0f;
    if (base_version > version) {
        return EBB_STALE;
    }
    uint64_t tau = version - base_version;
    *staleness = tau;
    if (c->staleness_max > 0 && tau > c->staleness_max) {
        return EBB_STALE;
    }
    *weight = ebb_consistency_weight(c, (double)tau);
    return EBB_OK;
}
