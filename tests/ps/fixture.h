// A small model, install orders for it, random gradients, and folders that are removed: what the shard's tests share.
#ifndef EBB_TESTS_PS_FIXTURE_H
#define EBB_TESTS_PS_FIXTURE_H

#include "tests/support/check.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/manifest.h"
#include "core/wire.h"

typedef struct fixture {
    ebb_manifest *manifest;
    uint8_t *packed;
    size_t packed_len;
    Ebb__JobSpec spec;
    Ebb__OptimizerSpec optimizer;
    Ebb__OptimizerGroup group[2], *groups[2];
    Ebb__ConsistencySpec consistency;
    Ebb__ShardInstall install;
} fixture;

static inline void fixture_init(fixture *f, const char *optimizer, const char *durability)
{
    memset(f, 0, sizeof(*f));
    const uint64_t a[2] = {10, 7}, b[1] = {130}, c[1] = {1};
    CHECK_OK(ebb_manifest_new(&f->manifest, 64));
    CHECK_OK(ebb_manifest_add(f->manifest, "a.weight", 2, a, EBB_INIT_NORMAL, 0.5f, 0));
    CHECK_OK(ebb_manifest_add(f->manifest, "b.weight", 1, b, EBB_INIT_UNIFORM, 1.0f, 0));
    CHECK_OK(ebb_manifest_add(f->manifest, "c.bias", 1, c, EBB_INIT_CONSTANT, 0.25f, 1));
    CHECK_OK(ebb_manifest_seal(f->manifest));
    CHECK_OK(ebb_manifest_pack(f->manifest, &f->packed, &f->packed_len));
    ebb__job_spec__init(&f->spec);
    ebb__optimizer_spec__init(&f->optimizer);
    ebb__consistency_spec__init(&f->consistency);
    ebb__shard_install__init(&f->install);
    for (int i = 0; i < 2; i++) {
        ebb__optimizer_group__init(&f->group[i]);
        f->group[i].lr_scale = 1.0;
        f->group[i].weight_decay = i == 0 ? 0.1 : 0.0;
        f->groups[i] = &f->group[i];
    }
    f->optimizer.name = (char *)optimizer;
    f->optimizer.lr = 0.05;
    f->optimizer.beta1 = 0.9;
    f->optimizer.beta2 = 0.99;
    f->optimizer.eps = 1e-8;
    f->optimizer.momentum = 0.9;
    f->optimizer.n_groups = 2;
    f->optimizer.groups = f->groups;
    f->optimizer.schedule = (char *)"cosine";
    f->optimizer.warmup_steps = 5;
    f->optimizer.min_lr_ratio = 0.1;
    f->consistency.mode = (char *)"async";
    f->consistency.staleness_weight = (char *)"inverse";
    f->consistency.staleness_max = 8;
    f->consistency.inflight_max = 2;
    f->spec.name = (char *)"test";
    f->spec.optimizer = &f->optimizer;
    f->spec.consistency = &f->consistency;
    f->spec.durability = (char *)durability;
    f->spec.steps = 400;
    f->spec.seed = 7;
    f->spec.snapshot_bytes = 1u << 30;
    f->spec.snapshot_ms = 3600u * 1000u;
    f->install.job = 0x1234;
    f->install.spec = &f->spec;
    f->install.epoch = 3;
    f->install.first_chunk = 1; // not all: chunk 0 belongs to another shard
    f->install.chunk_count = (uint32_t)f->manifest->n_chunks - 1;
    f->install.manifest_hash = ebb_manifest_hash(f->manifest);
}

static inline void fixture_fini(fixture *f)
{
    ebb_manifest_free(&f->manifest);
    free(f->packed);
}

// Parts of one push for all chunks of the shard: a pure function of (seed, stream, seq). Free with fixture_parts_free.
static inline ebb_part *fixture_parts(const fixture *f, uint64_t seed, uint64_t stream, uint64_t seq)
{
    uint32_t n = f->install.chunk_count;
    ebb_part *parts = calloc(n, sizeof(*parts));
    assert_non_null(parts);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t chunk = f->install.first_chunk + (i + (uint32_t)seq) % n; // in any order
        uint32_t numel = f->manifest->chunks[chunk].numel;
        parts[i] = (ebb_part){.dtype = EBB_DTYPE_F32, .kind = EBB_PART_GRAD, .chunk = chunk, .numel = numel};
        CHECK_OK(ebb_buf_new(numel * sizeof(float), &parts[i].buf));
        for (uint32_t k = 0; k < numel; k++) {
            ((float *)parts[i].buf->data)[k] = (float)ebb_rng_normal_at(seed, stream * 1000 + seq, (uint64_t)chunk << 20 | k);
        }
        ebb_part_seal(&parts[i]);
    }
    return parts;
}

static inline void fixture_parts_free(const fixture *f, ebb_part *parts)
{
    for (uint32_t i = 0; i < f->install.chunk_count; i++) {
        ebb_buf_unref(&parts[i].buf);
    }
    free(parts);
}

static inline void fixture_remove(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[1024];
    while (d != NULL && (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            snprintf(path, sizeof(path), "%.700s/%s", dir, e->d_name);
            if (unlink(path) != 0) {
                fixture_remove(path);
            }
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    rmdir(dir);
}

static inline void fixture_no_log(void *arg, ebb_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

#endif
