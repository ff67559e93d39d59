// A counter job of one shard with two chunks.
//
// Each push brings the gradient -1 for every parameter, the learning rate is 1, the momentum a half: all values are exact, and a few lines compute them
// (counterjob_expect), whatever the shard's code does.
#ifndef EBB_TESTS_SUPPORT_COUNTERJOB_H
#define EBB_TESTS_SUPPORT_COUNTERJOB_H

#include <string.h>

#include "core/manifest.h"
#include "core/wire.h"
#include "tests/support/check.h"

#define COUNTERJOB_ID 0xc0ffee
#define COUNTERJOB_ELEMENTS 100 // two chunks: 64 and 36

typedef struct counterjob {
    ebb_manifest *manifest;
    uint8_t *packed;
    size_t packed_len;
    Ebb__JobSpec spec;
    Ebb__ModelSpec model;
    Ebb__DataSpec data;
    Ebb__OptimizerSpec optimizer;
    Ebb__OptimizerGroup group[2], *groups[2];
    Ebb__ConsistencySpec consistency;
    Ebb__ShardInstall install;
} counterjob;

static inline void counterjob_init(counterjob *f, const char *durability)
{
    const uint64_t ne[1] = {COUNTERJOB_ELEMENTS};
    memset(f, 0, sizeof(*f));
    CHECK_OK(ebb_manifest_new(&f->manifest, 64));
    CHECK_OK(ebb_manifest_add(f->manifest, "count", 1, ne, EBB_INIT_ZEROS, 0.0f, 1));
    CHECK_OK(ebb_manifest_seal(f->manifest));
    CHECK_OK(ebb_manifest_pack(f->manifest, &f->packed, &f->packed_len));
    ebb__job_spec__init(&f->spec);
    ebb__model_spec__init(&f->model);
    ebb__data_spec__init(&f->data);
    ebb__optimizer_spec__init(&f->optimizer);
    ebb__consistency_spec__init(&f->consistency);
    ebb__shard_install__init(&f->install);
    for (int i = 0; i < 2; i++) {
        ebb__optimizer_group__init(&f->group[i]);
        f->group[i].lr_scale = 1.0;
        f->groups[i] = &f->group[i];
    }
    f->model.family = "counter";
    f->model.numel = COUNTERJOB_ELEMENTS;
    f->data.format = "none";
    f->data.train_samples = 1000;
    f->optimizer.name = "momentum";
    f->optimizer.lr = 1.0;
    f->optimizer.momentum = 0.5;
    f->optimizer.n_groups = 2;
    f->optimizer.groups = f->groups;
    f->optimizer.schedule = "constant";
    f->consistency.mode = "async";
    f->consistency.staleness_weight = "off";
    f->consistency.staleness_max = 8;
    f->consistency.inflight_max = 1;
    f->spec.name = "golden";
    f->spec.model = &f->model;
    f->spec.data = &f->data;
    f->spec.optimizer = &f->optimizer;
    f->spec.consistency = &f->consistency;
    f->spec.durability = (char *)durability;
    f->spec.shards = 1;
    f->spec.workers_min = f->spec.workers_max = 1;
    f->spec.batch = 1;
    f->spec.unit_steps = 4;
    f->spec.lease_ms = 2000;
    f->spec.steps = 40;
    f->spec.seed = 1;
    f->spec.chunk_elems = 64;
    f->spec.snapshot_bytes = 1u << 30;
    f->spec.snapshot_ms = 3600u * 1000u;
    f->install.job = COUNTERJOB_ID;
    f->install.spec = &f->spec;
    f->install.epoch = 1;
    f->install.chunk_count = 2;
    f->install.manifest_hash = ebb_manifest_hash(f->manifest);
}

static inline void counterjob_fini(counterjob *f)
{
    ebb_manifest_free(&f->manifest);
    free(f->packed);
}

// Parameter and momentum of every element after that many pushes.
static inline void counterjob_expect(uint64_t pushes, float *param, float *momentum)
{
    *param = *momentum = 0;
    for (uint64_t i = 0; i < pushes; i++) {
        *momentum = *momentum / 2 - 1;
        *param -= *momentum;
    }
}

#endif
