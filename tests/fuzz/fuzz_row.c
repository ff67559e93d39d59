// A shard's rows on disk, damaged or made up, into ebb_recover_job: journal heads and parts, chunks, watermarks, the state, the retired set, the install
// order and the manifest. Recovery says what is wrong and where, or gives a job that goes on: takes pushes, and comes back from its disk with the same bits.
//
// A store is written by the real encoders and then changed. Checksums are made right again after most changes, since a decoder must not trust them: what
// wrote the row may have been wrong, too.
//
// Input: config u8 (bits 0-1: durability; 2: empty store; 3: momentum), then changes (rows.h).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "core/crc32c.h"
#include "ps/job.h"
#include "ps/recover.h"
#include "ps/snapshot.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/rows.h"

#define DIR "shard"
#define CHUNK_ELEMS 3
#define NUMEL 5
#define CHUNKS 2
#define CHANGES_MAX 64

typedef struct shard {
    uint8_t config;
    ebb_kvstore *kv;
    ebb_journal journal;
    ebb_job *job;
} shard;

static bool s_journaled(const shard *s)
{
    return s->job->durability != EBB_DURABILITY_SNAPSHOT;
}

static void s_open(shard *s)
{
    char why[256] = "";
    ebb_kvstore_options options = {.create = true};
    FUZZ_OK(ebb_kvstore_open(DIR, &options, &s->kv, why));
    FUZZ_OK(ebb_journal_init(&s->journal, s->kv));
}

static void s_close(shard *s)
{
    ebb_job_free(&s->job);
    ebb_journal_fini(&s->journal);
    ebb_kvstore_close(&s->kv);
}

static void s_install(shard *s)
{
    static const char *const durabilities[] = {"journal", "fsync", "snapshot", "journal"};
    Ebb__ShardInstall in = EBB__SHARD_INSTALL__INIT;
    Ebb__JobSpec spec = EBB__JOB_SPEC__INIT;
    Ebb__OptimizerSpec optimizer = EBB__OPTIMIZER_SPEC__INIT;
    Ebb__OptimizerGroup group = EBB__OPTIMIZER_GROUP__INIT, *groups[1] = {&group};
    ebb_manifest *m = NULL;
    uint8_t *packed = NULL;
    size_t packed_len = 0;
    uint64_t numel = NUMEL;
    char why[256] = "";
    FUZZ_OK(ebb_manifest_new(&m, CHUNK_ELEMS));
    FUZZ_OK(ebb_manifest_add(m, "w", 1, &numel, EBB_INIT_NORMAL, 1, 0));
    FUZZ_OK(ebb_manifest_seal(m));
    FUZZ_OK(ebb_manifest_pack(m, &packed, &packed_len));
    group.lr_scale = 1;
    optimizer.name = (s->config & 8) != 0 ? "momentum" : "sgd";
    optimizer.lr = 0.5;
    optimizer.momentum = 0.5;
    optimizer.groups = groups;
    optimizer.n_groups = 1;
    spec.optimizer = &optimizer;
    spec.durability = (char *)durabilities[s->config & 3];
    spec.steps = 100;
    in.job = 77;
    in.spec = &spec;
    in.epoch = 3;
    in.chunk_count = CHUNKS;
    in.manifest_hash = ebb_manifest_hash(m);
    FUZZ_OK(ebb_job_new(&in, packed, packed_len, &s->job, why));
    FUZZ_OK(ebb_recover_install(s->kv, s->job));
    free(packed);
    ebb_manifest_free(&m);
}

// One push of the stream's next step, all the way. False: no step can be next.
static bool s_push(shard *s, uint64_t stream)
{
    ebb_job *job = s->job;
    Ebb__PushRequest q = EBB__PUSH_REQUEST__INIT;
    ebb_part *parts = calloc(job->chunk_count + 1, sizeof(*parts));
    ebb_push push;
    uint64_t applied = 0;
    FUZZ_CHECK(parts != NULL);
    ebb_streams_verdict(&job->streams, stream, 1, &applied);
    q.job = job->id;
    q.epoch = job->epoch;
    q.stream = stream;
    q.seq = applied + 1;
    q.base_version = job->version;
    for (uint32_t c = 0; c < job->chunk_count; c++) {
        ebb_part *p = &parts[c];
        *p = (ebb_part){.kind = EBB_PART_GRAD, .chunk = job->chunks[c].id, .numel = job->chunks[c].numel};
        FUZZ_OK(ebb_buf_new(p->numel * sizeof(float), &p->buf));
        memset(p->buf->data, 0x3f, p->buf->len);
        ebb_part_seal(p);
    }
    FUZZ_OK(ebb_job_judge(job, &q, parts, job->chunk_count, &push));
    bool taken = push.verdict == EBB__VERDICT__VERDICT_APPLIED;
    if (taken) {
        const ebb_push *apply[1] = {&push};
        if (s_journaled(s)) {
            ebb_journal_add(&s->journal, &push.record, parts);
        }
        FUZZ_OK(ebb_journal_commit(&s->journal, true));
        FUZZ_OK(ebb_job_apply(job, apply, 1));
    } else {
        FUZZ_CHECK(ebb_streams_is_retired(&job->streams, stream) || q.seq == 0);
    }
    ebb_push_fini(&push);
    for (uint32_t c = 0; c < job->chunk_count; c++) {
        ebb_buf_unref(&parts[c].buf);
    }
    free(parts);
    return taken;
}

static void s_snapshot(shard *s, uint32_t chunks)
{
    ebb_job *job = s->job;
    ebb_kvbatch *b = NULL;
    uint32_t generation = job->generation + !s_journaled(s);
    for (uint32_t c = 0; c < chunks; c++) {
        FUZZ_OK(ebb_snapshot_write_chunk(s->kv, generation, &job->chunks[c]));
    }
    FUZZ_OK(ebb_kvbatch_new(&b));
    if (s_journaled(s)) {
        ebb_snapshot_put_state(b, generation, job->lsn, job->version, job->skipped);
    } else {
        ebb_snapshot_put_flip(b, job, generation);
        job->generation = generation;
    }
    FUZZ_OK(ebb_kvstore_write(s->kv, b, true));
    ebb_kvbatch_free(&b);
}

static void s_write_store(shard *s)
{
    ebb_record skip;
    bool changed;
    uint64_t retired[2] = {0, 9};
    s_install(s);
    s_push(s, 0);
    s_push(s, 4);
    s_push(s, 4);
    s_snapshot(s, s_journaled(s) ? 1 : CHUNKS);
    FUZZ_OK(ebb_job_skip(s->job, 5, 1, &skip));
    if (s_journaled(s)) {
        ebb_journal_add(&s->journal, &skip, NULL);
    }
    s_push(s, 5);
    FUZZ_OK(ebb_streams_retire(&s->job->streams, 0, retired, 2, &changed, NULL, NULL));
    ebb_journal_del_watermark(ebb_journal_batch(&s->journal), 0);
    ebb_recover_put_retired(ebb_journal_batch(&s->journal), &s->job->streams);
    FUZZ_OK(ebb_journal_commit(&s->journal, true));
}

// Checksums made right for what the row now is.
static void s_repair(fuzz_row *r)
{
    uint8_t *v = r->value, kind = r->key_len > 0 ? r->key[0] : 0;
    bool part = kind == 'J' && r->key_len == 13 && ebb_get_be32(r->key + 9) > 0;
    if (kind == 'C' && r->len >= 48) {
        ebb_put_le32(v + 40, ebb_crc32c(0, v + 48, r->len - 48));
        ebb_put_le32(v + 44, ebb_crc32c(0, v, 44));
    } else if (part && r->len >= 32) {
        ebb_put_le32(v + 12, ebb_crc32c(0, v + 32, r->len - 32));
        ebb_put_le32(v + 28, ebb_crc32c(0, v, 28));
    } else if (kind == 'J' && !part && r->len >= 72) {
        ebb_put_le32(v + 68, ebb_crc32c(0, v, 68));
    } else if (kind != 'C' && kind != 'J' && r->len >= 4) {
        ebb_put_le32(v + r->len - 4, ebb_crc32c(0, v, r->len - 4));
    }
}

// ---- what was recovered ----

static void s_check(const ebb_job *job)
{
    FUZZ_CHECK(job->chunk_count == job->install->chunk_count && job->manifest != NULL);
    for (uint32_t c = 0; c < job->chunk_count; c++) {
        FUZZ_CHECK(job->chunks[c].version == job->version && job->chunks[c].lsn <= job->lsn);
    }
    const ebb_streams *s = &job->streams;
    for (size_t i = 0; i < s->n; i++) {
        FUZZ_CHECK(i == 0 || s->at[i - 1].id < s->at[i].id);
        FUZZ_CHECK(s->at[i].durable == s->at[i].applied && s->at[i].applied_lsn <= job->lsn && !ebb_streams_is_retired(s, s->at[i].id));
    }
    for (size_t i = 0; i < s->n_retired; i++) {
        FUZZ_CHECK(s->retired[i] > (i > 0 ? s->retired[i - 1] : s->retired_below));
    }
}

static uint32_t s_bits(const ebb_job *job)
{
    uint32_t crc = 0;
    for (uint32_t c = 0; c < job->chunk_count; c++) {
        for (uint32_t b = 0; b < job->chunks[c].n_bufs; b++) {
            crc = ebb_crc32c(crc, job->chunks[c].buf[b]->data, job->chunks[c].buf[b]->len);
        }
    }
    return crc;
}

// It goes on, and comes back as it was.
static void s_live(shard *s)
{
    static const uint64_t streams[] = {0, 4, 5, 9, 77};
    char why[512] = "";
    if (s->job->version >= UINT64_MAX - 8 || s->job->lsn >= UINT64_MAX - 8 || s->job->generation == UINT32_MAX) {
        return; // the end of the numbers
    }
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        s_push(s, streams[i]);
    }
    s_snapshot(s, s->job->chunk_count);
    uint64_t version = s->job->version, lsn = s->job->lsn;
    uint32_t bits = s_bits(s->job);
    s_close(s);
    s_open(s);
    FUZZ_OK(ebb_recover_job(DIR, s->kv, &s->journal, &s->job, why));
    FUZZ_CHECK(s->job != NULL && s->job->version == version && s->job->lsn == lsn && s_bits(s->job) == bits);
    s_check(s->job);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_quiet();
    fuzz_in in = {data, size};
    shard s = {.config = fuzz_u8(&in)};
    char why[512] = "";
    s_open(&s);
    if ((s.config & 4) == 0) {
        s_write_store(&s);
    }
    for (int i = 0; i < CHANGES_MAX && in.left > 0; i++) {
        fuzz_change_row(s.kv, &in, s_repair);
    }
    s_close(&s);
    s_open(&s);
    ebb_status st = ebb_recover_job(DIR, s.kv, &s.journal, &s.job, why);
    if (st != EBB_OK) {
        FUZZ_CHECK(st == EBB_CORRUPT || st == EBB_CONFIG || st == EBB_INVAL || st == EBB_PROTO);
        FUZZ_CHECK(s.job == NULL && strstr(why, DIR) == why && strlen(why) > strlen(DIR ": "));
    } else if (s.job != NULL) {
        s_check(s.job);
        s_live(&s);
    }
    s_close(&s);
    memstore_reset();
    return 0;
}
