// A shard's job through sequences of what can happen to it, against a model that is a table of numbers: every verdict, every watermark and every parameter
// is compared, also after crashes at every point between two commits. Each step counts once, whatever comes twice, late or damaged.
//
// The optimizer is SGD with lr 1 and gradients are small whole numbers, so that without staleness weights a parameter is a sum that float32 holds exactly.
// Other optimizers (config) are compared with themselves: a crash must give back the very bits.
//
// Input: config u8 (bits 0-1: durability; 2: staleness weight; 3-4: optimizer; 5: this shard has the chunks from the second on), staleness_max u8, then
// operations: kind u8 and what each takes (below).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/crc32c.h"
#include "core/shardmap.h"
#include "ps/job.h"
#include "ps/recover.h"
#include "ps/snapshot.h"
#include "tests/fuzz/fuzz.h"

#define DIR "shard"
#define CHUNK_ELEMS 3
#define CHUNKS 3 // of 3, 3 and 2 elements
#define NUMEL 8
#define STREAMS 8
#define OPS_MAX 400
#define GROUP 4
#define HELD 6

static const uint64_t s_streams[STREAMS] = {0, 1, 2, 3, 17, 1ull << 32, UINT64_MAX - 2, UINT64_MAX - 1};

typedef struct state {
    uint64_t version, lsn, skipped;
    uint64_t applied[STREAMS], applied_lsn[STREAMS];
    bool retired[STREAMS];
    uint64_t retired_below; // as told; what is listed may join it
    float param[NUMEL];     // sgd only
} state;

typedef struct waiting {
    ebb_push push;
    ebb_part parts[CHUNKS + 1];
    size_t n;
} waiting;

typedef struct held {
    ebb_buf *buf;
    uint32_t crc;
} held;

typedef struct world {
    fuzz_in in;
    uint8_t config;
    uint64_t staleness_max;
    ebb_manifest *manifest;
    uint8_t *packed;
    size_t packed_len;
    ebb_kvstore *kv;
    ebb_journal journal;
    ebb_job *job;
    state now, disk;    // the model: in memory, and what a crash leaves
    uint32_t disk_bits; // checksum of all buffers at disk's instant
    waiting group[GROUP];
    size_t n_group;
    held held[HELD]; // replies under way: nobody may write what they hold
    size_t next_held;
    uint64_t clock;
} world;

static bool s_inverse(const world *w)
{
    return (w->config & 4) != 0;
}

static const char *s_optimizer(const world *w)
{
    static const char *const names[] = {"sgd", "sgd", "momentum", "adamw"};
    return names[w->config >> 3 & 3];
}

static bool s_is_sgd(const world *w)
{
    return strcmp(s_optimizer(w), "sgd") == 0;
}

static bool s_journaled(const world *w)
{
    return w->job->durability != EBB_DURABILITY_SNAPSHOT;
}

// ---- the world ----

static void s_install(world *w)
{
    static const char *const durabilities[] = {"journal", "fsync", "snapshot", "journal"};
    Ebb__ShardInstall in = EBB__SHARD_INSTALL__INIT;
    Ebb__JobSpec spec = EBB__JOB_SPEC__INIT;
    Ebb__OptimizerSpec optimizer = EBB__OPTIMIZER_SPEC__INIT;
    Ebb__OptimizerGroup group = EBB__OPTIMIZER_GROUP__INIT, *groups[1] = {&group};
    Ebb__ConsistencySpec consistency = EBB__CONSISTENCY_SPEC__INIT;
    char why[256] = "";
    group.lr_scale = 1;
    optimizer.name = (char *)s_optimizer(w);
    optimizer.lr = 1;
    optimizer.beta1 = 0.5;
    optimizer.beta2 = 0.75;
    optimizer.eps = 1e-3;
    optimizer.momentum = 0.5;
    optimizer.groups = groups;
    optimizer.n_groups = 1;
    optimizer.schedule = "constant";
    consistency.mode = "async";
    consistency.staleness_weight = s_inverse(w) ? "inverse" : "off";
    consistency.staleness_max = w->staleness_max;
    spec.optimizer = &optimizer;
    spec.consistency = &consistency;
    spec.durability = (char *)durabilities[w->config & 3];
    spec.steps = 1000;
    spec.seed = 5;
    in.job = 77;
    in.spec = &spec;
    in.epoch = 3;
    in.first_chunk = w->config >> 5 & 1;
    in.chunk_count = CHUNKS - in.first_chunk;
    in.manifest_hash = ebb_manifest_hash(w->manifest);
    FUZZ_OK(ebb_job_new(&in, w->packed, w->packed_len, &w->job, why));
    FUZZ_OK(ebb_recover_install(w->kv, w->job));
}

static void s_start(world *w)
{
    char why[256] = "";
    uint64_t numel = NUMEL;
    ebb_kvstore_options options = {.create = true};
    FUZZ_OK(ebb_kvstore_open(DIR, &options, &w->kv, why));
    FUZZ_OK(ebb_journal_init(&w->journal, w->kv));
    FUZZ_OK(ebb_manifest_new(&w->manifest, CHUNK_ELEMS));
    FUZZ_OK(ebb_manifest_add(w->manifest, "count", 1, &numel, EBB_INIT_ZEROS, 0, 0));
    FUZZ_OK(ebb_manifest_seal(w->manifest));
    FUZZ_OK(ebb_manifest_pack(w->manifest, &w->packed, &w->packed_len));
    s_install(w);
}

static void s_waiting_fini(waiting *p)
{
    ebb_push_fini(&p->push);
    for (size_t k = 0; k < p->n; k++) {
        ebb_buf_unref(&p->parts[k].buf);
    }
    p->n = 0;
}

static void s_drop_group(world *w)
{
    for (size_t i = 0; i < w->n_group; i++) {
        s_waiting_fini(&w->group[i]);
    }
    w->n_group = 0;
}

static void s_end(world *w)
{
    s_drop_group(w);
    for (size_t i = 0; i < HELD; i++) {
        ebb_buf_unref(&w->held[i].buf);
    }
    ebb_job_free(&w->job);
    ebb_journal_fini(&w->journal);
    ebb_kvstore_close(&w->kv);
    ebb_manifest_free(&w->manifest);
    free(w->packed);
    memstore_reset();
}

// ---- comparing ----

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

static void s_check_held(const world *w)
{
    for (size_t i = 0; i < HELD; i++) {
        const held *h = &w->held[i];
        FUZZ_CHECK(h->buf == NULL || ebb_crc32c(0, h->buf->data, h->buf->len) == h->crc);
    }
}

static bool s_is_retired(const state *s, size_t i)
{
    return s->retired[i] || s_streams[i] < s->retired_below;
}

// Everything, when no judged push waits.
static void s_compare(world *w)
{
    const ebb_job *job = w->job;
    FUZZ_CHECK(job->version == w->now.version && job->lsn == w->now.lsn && job->skipped == w->now.skipped);
    for (size_t i = 0; i < STREAMS; i++) {
        const ebb_stream *s = ebb_streams_find(&w->job->streams, s_streams[i]);
        bool retired = s_is_retired(&w->now, i);
        FUZZ_CHECK(ebb_streams_is_retired(&job->streams, s_streams[i]) == retired);
        FUZZ_CHECK(retired ? s == NULL : (s != NULL ? s->applied : 0) == w->now.applied[i]);
        FUZZ_CHECK(s == NULL || (s->durable <= s->applied && s->applied_lsn <= job->lsn));
    }
    for (size_t i = 1; i < job->streams.n; i++) {
        FUZZ_CHECK(job->streams.at[i - 1].id < job->streams.at[i].id);
    }
    for (size_t i = 0; i < job->streams.n_retired; i++) {
        FUZZ_CHECK(job->streams.retired[i] > (i > 0 ? job->streams.retired[i - 1] : job->streams.retired_below));
    }
    for (uint32_t c = 0; c < job->chunk_count; c++) {
        const ebb_chunk_state *chunk = &job->chunks[c];
        FUZZ_CHECK(chunk->version == job->version && chunk->steps == job->version && chunk->lsn <= job->lsn);
        if (s_is_sgd(w)) {
            FUZZ_CHECK(memcmp(chunk->buf[0]->data, w->now.param + chunk->id * CHUNK_ELEMS, chunk->buf[0]->len) == 0);
        }
    }
    s_check_held(w);
}

// ---- pushes ----

typedef enum defect {
    GOOD,
    UNALIGNED, // good: frames come at any address
    REVERSED,  // good: in any order
    FEWER,
    MORE,
    TWICE,
    FOREIGN,
    DTYPE,
    CODEC,
    KIND,
    NUMEL_WRONG,
    SHORT,
    NOT_A_NUMBER,
    INFINITE,
    DEFECTS
} defect;

static bool s_is_bad(defect d)
{
    return d >= FEWER;
}

static ebb_buf *s_values(const float *values, uint32_t n, bool unaligned)
{
    ebb_buf *whole = NULL, *view = NULL;
    FUZZ_OK(ebb_buf_new(n * sizeof(float) + 1, &whole));
    memcpy(whole->data + unaligned, values, n * sizeof(float));
    FUZZ_OK(ebb_buf_slice(whole, unaligned, n * sizeof(float), &view));
    ebb_buf_unref(&whole);
    return view;
}

static void s_gradient(world *w, defect d, int8_t base, waiting *out)
{
    const ebb_job *job = w->job;
    out->n = 0;
    for (uint32_t c = 0; c < job->chunk_count; c++) {
        const ebb_chunk_state *chunk = &job->chunks[c];
        float values[CHUNK_ELEMS];
        for (uint32_t i = 0; i < chunk->numel; i++) {
            values[i] = (float)(base + (int)(chunk->id * CHUNK_ELEMS + i));
        }
        bool last = c + 1 == job->chunk_count;
        if (last && (d == NOT_A_NUMBER || d == INFINITE)) {
            values[chunk->numel - 1] = d == NOT_A_NUMBER ? NAN : -INFINITY;
        }
        uint32_t n = last && d == SHORT ? chunk->numel - 1 : chunk->numel;
        ebb_part *p = &out->parts[out->n++];
        *p = (ebb_part){.kind = EBB_PART_GRAD, .chunk = chunk->id, .numel = chunk->numel, .buf = s_values(values, n, d == UNALIGNED)};
        ebb_part_seal(p);
        if (last) {
            p->dtype = d == DTYPE ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
            p->codec = d == CODEC ? 1 : EBB_CODEC_RAW;
            p->kind = d == KIND ? EBB_PART_PARAM : EBB_PART_GRAD;
            p->numel = d == NUMEL_WRONG ? (1ull << 62) + chunk->numel : p->numel; // times 4 it is the right length again
            p->chunk = d == FOREIGN ? (job->first_chunk > 0 ? 0 : CHUNKS) : d == TWICE ? job->first_chunk : p->chunk;
        }
    }
    if (d == FEWER) {
        ebb_buf_unref(&out->parts[--out->n].buf);
    } else if (d == MORE) {
        out->parts[out->n] = out->parts[0];
        ebb_buf_ref(out->parts[out->n++].buf);
    } else if (d == REVERSED) {
        ebb_part first = out->parts[0];
        out->parts[0] = out->parts[out->n - 1];
        out->parts[out->n - 1] = first;
    }
}

// What the push must be answered with.
static Ebb__Verdict s_expected(const world *w, size_t stream, const Ebb__PushRequest *q, defect d)
{
    const state *m = &w->now;
    if (q->seq == 0) {
        return EBB__VERDICT__VERDICT_BAD_VALUE;
    }
    if (s_is_retired(m, stream) || q->seq <= m->applied[stream]) {
        return EBB__VERDICT__VERDICT_DUPLICATE;
    }
    if (q->seq > m->applied[stream] + 1) {
        return EBB__VERDICT__VERDICT_GAP;
    }
    if (q->base_version > m->version || (w->staleness_max > 0 && m->version - q->base_version > w->staleness_max)) {
        return EBB__VERDICT__VERDICT_STALE;
    }
    return s_is_bad(d) ? EBB__VERDICT__VERDICT_BAD_VALUE : EBB__VERDICT__VERDICT_APPLIED;
}

static void s_model_apply(world *w, size_t stream, int8_t base, uint64_t staleness)
{
    state *m = &w->now;
    float lr = s_inverse(w) ? (float)(1.0 / (1.0 + (double)staleness)) : 1.0f;
    m->version++;
    m->lsn++;
    m->applied[stream]++;
    m->applied_lsn[stream] = m->lsn;
    for (int i = 0; i < NUMEL; i++) {
        m->param[i] -= lr * (float)(base + i);
    }
}

// Commits and applies what was judged, as the shard does for a group.
static void s_flush(world *w)
{
    const ebb_push *apply[GROUP];
    FUZZ_OK(ebb_journal_commit(&w->journal, w->job->durability == EBB_DURABILITY_FSYNC));
    if (w->job->durability == EBB_DURABILITY_FSYNC) {
        ebb_streams_all_durable(&w->job->streams);
    }
    for (size_t i = 0; i < w->n_group; i++) {
        apply[i] = &w->group[i].push;
    }
    FUZZ_OK(ebb_job_apply(w->job, apply, w->n_group));
    s_drop_group(w);
    if (s_journaled(w)) {
        w->disk = w->now;
        w->disk_bits = s_bits(w->job);
    }
    s_compare(w);
}

// push: stream u8, seq u8 (signed, from the next one; 100: any), base version u8 (back from now; 200: any), defect u8, gradient i8, job and epoch u8
static void s_op_push(world *w)
{
    size_t stream = fuzz_u8(&w->in) % STREAMS;
    int8_t step = (int8_t)fuzz_u8(&w->in);
    uint8_t back = fuzz_u8(&w->in);
    defect d = (defect)(fuzz_u8(&w->in) % DEFECTS);
    int8_t base = (int8_t)fuzz_u8(&w->in);
    uint8_t names = fuzz_u8(&w->in);
    Ebb__PushRequest q = EBB__PUSH_REQUEST__INIT;
    q.job = names == 255 ? 78 : 77;
    q.epoch = names == 254 ? fuzz_number(&w->in) : 3;
    q.stream = s_streams[stream];
    q.seq = step == 100 ? fuzz_number(&w->in) : w->now.applied[stream] + 1 + (uint64_t)(int64_t)(step % 4);
    q.base_version = back >= 200 ? fuzz_number(&w->in) : w->now.version - back % (1 + (w->now.version < 16 ? w->now.version : 16));
    q.attempt = base;
    q.worker = "w";
    waiting *at = &w->group[w->n_group];
    s_gradient(w, d, base, at);
    uint64_t version = w->job->version, lsn = w->job->lsn;
    ebb_status st = ebb_job_judge(w->job, &q, at->parts, at->n, &at->push);
    if (q.job != 77 || q.epoch != 3) {
        FUZZ_CHECK(st == EBB_WRONGSHARD);
    } else {
        FUZZ_OK(st);
        Ebb__Verdict want = s_expected(w, stream, &q, d);
        FUZZ_CHECK(at->push.verdict == want);
        FUZZ_CHECK((at->push.why != NULL) == (want == EBB__VERDICT__VERDICT_STALE || want == EBB__VERDICT__VERDICT_BAD_VALUE));
        if (want == EBB__VERDICT__VERDICT_APPLIED) {
            const ebb_record *r = &at->push.record;
            uint64_t staleness = version - q.base_version;
            s_model_apply(w, stream, base, staleness);
            FUZZ_CHECK(r->lsn == lsn + 1 && r->version == version + 1 && r->seq == q.seq && r->stream == q.stream && r->staleness == staleness);
            FUZZ_CHECK(at->push.applied == q.seq && r->n_parts == w->job->chunk_count && r->weight > 0 && r->weight <= 1);
            if (s_journaled(w)) {
                ebb_journal_add(&w->journal, r, at->parts);
            }
            if (++w->n_group == GROUP) {
                s_flush(w);
            }
            return;
        }
        if (want == EBB__VERDICT__VERDICT_DUPLICATE || want == EBB__VERDICT__VERDICT_GAP) {
            FUZZ_CHECK(at->push.applied == (s_is_retired(&w->now, stream) ? q.seq : w->now.applied[stream]));
        }
    }
    FUZZ_CHECK(w->job->version == version && w->job->lsn == lsn); // a refusal changes nothing
    s_waiting_fini(at);
}

// skip: stream u8, seq u8 (as above)
static void s_op_skip(world *w)
{
    size_t stream = fuzz_u8(&w->in) % STREAMS;
    int8_t step = (int8_t)fuzz_u8(&w->in);
    uint64_t seq = step == 100 ? fuzz_number(&w->in) : w->now.applied[stream] + 1 + (uint64_t)(int64_t)(step % 4);
    bool done = seq == 0 || s_is_retired(&w->now, stream) || seq <= w->now.applied[stream];
    ebb_record r;
    s_flush(w); // orders come between groups
    ebb_status st = ebb_job_skip(w->job, s_streams[stream], seq, &r);
    FUZZ_CHECK(st == (done ? EBB_DUPLICATE : seq == w->now.applied[stream] + 1 ? EBB_OK : EBB_GAP));
    if (st == EBB_OK) {
        w->now.lsn++;
        w->now.skipped++;
        w->now.applied[stream]++;
        w->now.applied_lsn[stream] = w->now.lsn;
        FUZZ_CHECK(r.kind == EBB_RECORD_SKIP && r.lsn == w->now.lsn && r.version == w->now.version && r.seq == seq && r.n_parts == 0);
        if (s_journaled(w)) {
            ebb_journal_add(&w->journal, &r, NULL);
            ebb_snapshot_put_state(ebb_journal_batch(&w->journal), w->job->generation, w->job->lsn, w->job->version, w->job->skipped);
        }
    }
    s_flush(w);
}

// ---- retiring ----

static void s_forget(void *arg, uint64_t stream)
{
    world *w = arg;
    ebb_journal_del_watermark(ebb_journal_batch(&w->journal), stream);
}

// retire: which u8 (a bit per stream), below u8 (index of a stream, or none)
static void s_op_retire(world *w)
{
    uint8_t which = fuzz_u8(&w->in), below = fuzz_u8(&w->in);
    uint64_t list[STREAMS];
    size_t n = 0;
    bool changed = false, grows = false;
    s_flush(w);
    uint64_t upto = below % 4 == 0 ? s_streams[below / 4 % STREAMS] : 0;
    for (size_t i = 0; i < STREAMS; i++) {
        bool named = (which >> i & 1) != 0;
        if (named) {
            list[n++] = s_streams[STREAMS - 1 - i]; // in any order
            grows = grows || !s_is_retired(&w->now, STREAMS - 1 - i);
            w->now.retired[STREAMS - 1 - i] = true;
        }
    }
    grows = grows || upto > w->job->streams.retired_below;
    FUZZ_OK(ebb_streams_retire(&w->job->streams, upto, list, n, &changed, s_forget, w));
    FUZZ_CHECK(changed == grows);
    w->now.retired_below = upto > w->now.retired_below ? upto : w->now.retired_below;
    if (changed) {
        ebb_recover_put_retired(ebb_journal_batch(&w->journal), &w->job->streams);
    }
    FUZZ_OK(ebb_journal_commit(&w->journal, false));
    if (!s_journaled(w)) { // the set is on disk at once, other than what was pushed
        memcpy(w->disk.retired, w->now.retired, sizeof(w->disk.retired));
        w->disk.retired_below = w->now.retired_below;
    }
    s_flush(w);
}

// ---- snapshots and crashes ----

// snapshot: chunks u8 (a bit each: with a journal, a snapshot may be cut short), finish u8
static void s_op_snapshot(world *w)
{
    uint8_t which = fuzz_u8(&w->in), finish = fuzz_u8(&w->in);
    ebb_job *job = w->job;
    s_flush(w);
    if (s_journaled(w)) {
        uint64_t upto = job->lsn;
        for (uint32_t c = 0; c < job->chunk_count; c++) {
            ebb_chunk_state *chunk = &job->chunks[c];
            if ((which >> c & 1) != 0 && chunk->lsn > chunk->saved_lsn) {
                FUZZ_OK(ebb_snapshot_write_chunk(w->kv, job->generation, chunk));
                chunk->saved_lsn = chunk->lsn;
            }
            upto = chunk->saved_lsn < upto ? chunk->saved_lsn : upto;
        }
        if (finish % 2 == 0) {
            ebb_snapshot_put_state(ebb_journal_batch(&w->journal), job->generation, job->lsn, job->version, job->skipped);
            FUZZ_OK(ebb_journal_commit(&w->journal, true));
            FUZZ_OK(ebb_journal_drop(w->kv, upto));
            ebb_streams_mark(&job->streams);
            ebb_streams_commit_mark(&job->streams);
        }
    } else {
        ebb_kvbatch *flip = NULL;
        for (uint32_t c = 0; c < job->chunk_count; c++) {
            FUZZ_OK(ebb_snapshot_write_chunk(w->kv, job->generation + 1, &job->chunks[c]));
        }
        if (finish % 4 == 3) {
            return; // cut short before the flip: the old one stands
        }
        FUZZ_OK(ebb_kvbatch_new(&flip));
        ebb_snapshot_put_flip(flip, job, job->generation + 1);
        FUZZ_OK(ebb_kvstore_write(w->kv, flip, true));
        ebb_kvbatch_free(&flip);
        job->generation++;
        if (finish % 2 == 0) {
            FUZZ_OK(ebb_snapshot_drop_below(w->kv, job->generation));
        }
        w->disk = w->now;
        w->disk_bits = s_bits(job);
    }
}

// crash: the process is gone, with what it had judged but not written
static void s_op_crash(world *w)
{
    char why[512] = "";
    uint32_t bits = s_bits(w->job);
    bool clean = w->n_group == 0 && memcmp(&w->now, &w->disk, sizeof(w->now)) == 0;
    s_drop_group(w);
    ebb_journal_fini(&w->journal);
    ebb_job_free(&w->job);
    ebb_kvstore_close(&w->kv);
    ebb_kvstore_options options = {.create = false};
    FUZZ_OK(ebb_kvstore_open(DIR, &options, &w->kv, why));
    FUZZ_OK(ebb_journal_init(&w->journal, w->kv));
    FUZZ_OK(ebb_recover_job(DIR, w->kv, &w->journal, &w->job, why));
    FUZZ_CHECK(w->job != NULL);
    w->now = w->disk;
    for (size_t i = 0; i < w->job->streams.n; i++) {
        FUZZ_CHECK(w->job->streams.at[i].durable == w->job->streams.at[i].applied); // what was recovered is on disk
    }
    s_compare(w);
    FUZZ_CHECK(s_bits(w->job) == w->disk_bits);
    FUZZ_CHECK(!clean || s_bits(w->job) == bits);
}

// ---- readers ----

// pull: chunk u8, look ahead u64 (a double), kept u8
static void s_op_pull(world *w)
{
    ebb_job *job = w->job;
    uint32_t c = fuzz_u8(&w->in) % job->chunk_count;
    uint64_t bits = fuzz_u64(&w->in);
    double ahead;
    memcpy(&ahead, &bits, sizeof(ahead));
    s_flush(w);
    uint32_t before = s_bits(job);
    ebb_part part;
    if (isfinite(ahead) && ahead > 0) { // what ps/shard.c lets through
        FUZZ_OK(ebb_chunk_state_part_ahead(&job->chunks[c], &job->optimizer, ahead, ebb_consistency_weight(&job->consistency, ahead), &part));
    } else {
        ebb_chunk_state_part(&job->chunks[c], (uint32_t)(bits % job->chunks[c].n_bufs), &part);
        ebb_buf_ref(part.buf);
    }
    FUZZ_CHECK(part.chunk == job->chunks[c].id && part.numel == job->chunks[c].numel && part.version == job->chunks[c].version);
    FUZZ_CHECK(part.buf->len == part.numel * sizeof(float) && part.crc32c == ebb_crc32c(0, part.buf->data, part.buf->len));
    FUZZ_CHECK(s_bits(job) == before); // looking changes nothing
    held *h = &w->held[w->next_held++ % HELD];
    ebb_buf_unref(&h->buf);
    *h = (held){part.buf, part.crc32c};
}

// pin: id u8, what u8
static void s_op_pin(world *w)
{
    uint64_t id = fuzz_u8(&w->in) % 32, version = 0;
    uint8_t what = fuzz_u8(&w->in);
    s_flush(w);
    const ebb_pin *old = ebb_pins_find(&w->job->pins, id);
    if (what % 4 == 3) {
        ebb_pins_drop(&w->job->pins, id);
        FUZZ_CHECK(id == 0 || ebb_pins_find(&w->job->pins, id) == NULL);
    } else if (what % 4 == 2) {
        w->clock += what * 100;
        ebb_pins_expire(&w->job->pins, w->clock);
        FUZZ_CHECK(ebb_pins_next_deadline(&w->job->pins) > w->clock);
    } else {
        uint64_t was = old != NULL && id != 0 ? old->version : w->job->version;
        ebb_status st = ebb_pins_add(&w->job->pins, id, w->job->version, w->job->chunks, w->job->chunk_count, w->clock, what * 50, &version);
        FUZZ_CHECK(st == EBB_OK || (st == EBB_INVAL && id == 0) || st == EBB_TRYLATER);
        if (st == EBB_OK) {
            const ebb_pin *pin = ebb_pins_find(&w->job->pins, id);
            FUZZ_CHECK(version == was && pin != NULL && pin->version == was && pin->count == w->job->chunk_count);
            for (uint32_t c = 0; c < pin->count; c++) { // a pin stays what it was, all of one version
                FUZZ_CHECK(pin->chunks[c].version == was);
            }
        }
    }
}

static void s_op_sync(world *w)
{
    s_flush(w);
    ebb_streams_mark(&w->job->streams);
    if (fuzz_u8(&w->in) % 2 == 0) {
        ebb_streams_commit_mark(&w->job->streams);
        FUZZ_CHECK(!ebb_streams_has_undurable(&w->job->streams));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_quiet();
    world w = {.in = {data, size}};
    w.config = fuzz_u8(&w.in);
    w.staleness_max = fuzz_u8(&w.in) % 16;
    s_start(&w);
    w.disk_bits = s_bits(w.job);
    for (int i = 0; i < OPS_MAX && w.in.left > 0; i++) {
        switch (fuzz_u8(&w.in) % 16) {
        case 8:
            s_op_skip(&w);
            break;
        case 9:
            s_op_retire(&w);
            break;
        case 10:
            s_op_snapshot(&w);
            break;
        case 11:
            s_op_crash(&w);
            break;
        case 12:
            s_op_pull(&w);
            break;
        case 13:
            s_op_pin(&w);
            break;
        case 14:
            s_op_sync(&w);
            break;
        case 15:
            s_flush(&w);
            break;
        default:
            s_op_push(&w);
            break;
        }
    }
    s_flush(&w);
    s_end(&w);
    return 0;
}
