// A shard's folder for the counter job (counterjob.h) after nine known records: rows of every kind, in tables and in the log.
#ifndef EBB_TESTS_SUPPORT_COUNTERSHARD_H
#define EBB_TESTS_SUPPORT_COUNTERSHARD_H

#include "ps/recover.h"
#include "ps/snapshot.h"
#include "tests/support/counterjob.h"

typedef struct counterjob_shard {
    counterjob *f;
    ebb_kvstore *kv;
    ebb_journal journal;
    ebb_job *job;
    bool journaled, sync;
} counterjob_shard;

static inline void counterjob_commit(counterjob_shard *s)
{
    CHECK_OK(ebb_journal_commit(&s->journal, s->sync));
}

static inline void counterjob_push(counterjob_shard *s, uint64_t stream, uint64_t seq)
{
    Ebb__PushRequest req = EBB__PUSH_REQUEST__INIT;
    ebb_push p;
    ebb_part parts[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t numel = s->f->manifest->chunks[i].numel;
        parts[i] = (ebb_part){.dtype = EBB_DTYPE_F32, .kind = EBB_PART_GRAD, .chunk = i, .numel = numel};
        CHECK_OK(ebb_buf_new(numel * sizeof(float), &parts[i].buf));
        for (uint32_t k = 0; k < numel; k++) {
            ((float *)parts[i].buf->data)[k] = -1.0f;
        }
        ebb_part_seal(&parts[i]);
    }
    req.job = COUNTERJOB_ID;
    req.epoch = 1;
    req.stream = stream;
    req.seq = seq;
    req.attempt = 1;
    req.base_version = s->job->version;
    CHECK_OK(ebb_job_judge(s->job, &req, parts, 2, &p));
    assert_int_equal(p.verdict, EBB__VERDICT__VERDICT_APPLIED);
    if (s->journaled) {
        ebb_journal_add(&s->journal, &p.record, parts);
        counterjob_commit(s);
    }
    const ebb_push *list[1] = {&p};
    CHECK_OK(ebb_job_apply(s->job, list, 1));
    ebb_push_fini(&p);
    ebb_buf_unref(&parts[0].buf);
    ebb_buf_unref(&parts[1].buf);
}

static inline void counterjob_skip(counterjob_shard *s, uint64_t stream, uint64_t seq)
{
    ebb_record r;
    CHECK_OK(ebb_job_skip(s->job, stream, seq, &r));
    if (s->journaled) {
        ebb_journal_add(&s->journal, &r, NULL);
        ebb_snapshot_put_state(ebb_journal_batch(&s->journal), s->job->generation, s->job->lsn, s->job->version, s->job->skipped);
        counterjob_commit(s);
    }
}

static inline void counterjob_chunk(counterjob_shard *s, uint32_t generation, uint32_t i)
{
    CHECK_OK(ebb_snapshot_write_chunk(s->kv, generation, &s->job->chunks[i]));
    s->job->chunks[i].saved_lsn = s->job->chunks[i].lsn;
}

static inline void counterjob_snapshot(counterjob_shard *s)
{
    ebb_snapshot_work w = {.step = s->journaled ? EBB_SNAPSHOT_FINISH : EBB_SNAPSHOT_FLIP, .drop_upto = s->job->lsn};
    w.generation = s->job->generation + (s->journaled ? 0 : 1);
    counterjob_chunk(s, w.generation, 0);
    counterjob_chunk(s, w.generation, 1);
    if (s->journaled) {
        w.drop_upto = s->job->chunks[0].saved_lsn;
        ebb_snapshot_put_state(ebb_journal_batch(&s->journal), s->job->generation, s->job->lsn, s->job->version, s->job->skipped);
        counterjob_commit(s);
    } else {
        CHECK_OK(ebb_kvbatch_new(&w.flip));
        ebb_snapshot_put_flip(w.flip, s->job, w.generation);
        s->job->generation = w.generation;
    }
    CHECK_OK(ebb_snapshot_work_run(s->kv, &w));
    ebb_kvbatch_free(&w.flip);
}

static inline void counterjob_forget(void *arg, uint64_t stream)
{
    ebb_journal_del_watermark(ebb_journal_batch(&((counterjob_shard *)arg)->journal), stream);
}

static inline void counterjob_retire(counterjob_shard *s, uint64_t below, uint64_t also)
{
    bool changed = false;
    CHECK_OK(ebb_streams_retire(&s->job->streams, below, &also, 1, &changed, counterjob_forget, s));
    assert_true(changed);
    ebb_recover_put_retired(ebb_journal_batch(&s->journal), &s->job->streams);
    counterjob_commit(s);
}

// Fills dir with the folder of shard 0: version 8, lsn 9, one step skipped, streams 1 and 5 open, 0 and 7 retired. before_end (may be NULL) is called while the
// store is still open: what the folder holds then is what kill -9 would leave.
static inline void counterjob_write_shard(const char *dir, const char *durability, void (*before_end)(void *arg), void *arg)
{
    char why[512] = "";
    counterjob f;
    counterjob_init(&f, durability);
    counterjob_shard s = {.f = &f, .journaled = strcmp(durability, "snapshot") != 0, .sync = strcmp(durability, "fsync") == 0};
    if (ebb_recover_open(dir, 0, &s.kv, why) != EBB_OK || ebb_job_new(&f.install, f.packed, f.packed_len, &s.job, why) != EBB_OK) {
        fail_msg("%s", why);
    }
    CHECK_OK(ebb_journal_init(&s.journal, s.kv));
    CHECK_OK(ebb_recover_install(s.kv, s.job));
    for (uint64_t i = 1; i <= 4; i++) {
        counterjob_push(&s, 0, i);
    }
    counterjob_push(&s, 1, 1);
    counterjob_skip(&s, 1, 2);
    counterjob_snapshot(&s); // of lsn 6, and the journal up to it is gone
    counterjob_retire(&s, 1, 7);
    counterjob_push(&s, 1, 3);
    if (s.journaled) {
        counterjob_chunk(&s, s.job->generation, 1); // a snapshot that is half done: lsn 7
    }
    counterjob_push(&s, 5, 1);
    CHECK_OK(ebb_kvstore_flush(s.kv)); // a second table
    counterjob_push(&s, 5, 2);
    if (!s.journaled) {
        counterjob_snapshot(&s);
        counterjob_chunk(&s, s.job->generation + 1, 0); // a crash cut the next one short
        CHECK_OK(ebb_kvstore_sync(s.kv));
    }
    if (before_end != NULL) {
        before_end(arg);
    }
    ebb_job_free(&s.job);
    ebb_journal_fini(&s.journal);
    ebb_kvstore_close(&s.kv);
    counterjob_fini(&f);
}

// The job is what counterjob_write_shard has written.
static inline void counterjob_check_shard(const ebb_job *job)
{
    float param, momentum;
    counterjob_expect(8, &param, &momentum);
    assert_int_equal(job->id, COUNTERJOB_ID);
    assert_int_equal(job->version, 8);
    assert_int_equal(job->lsn, 9);
    assert_int_equal(job->skipped, 1);
    assert_int_equal(job->chunk_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const ebb_chunk_state *c = &job->chunks[i];
        assert_int_equal(c->numel, i == 0 ? 64 : 36);
        assert_int_equal(c->n_bufs, 2);
        assert_int_equal(c->version, 8);
        assert_int_equal(c->lsn, 9);
        assert_int_equal(c->steps, 8);
        for (uint32_t k = 0; k < c->numel; k++) {
            assert_true(((const float *)c->buf[0]->data)[k] == param && ((const float *)c->buf[1]->data)[k] == momentum);
        }
    }
    const ebb_streams *s = &job->streams;
    assert_int_equal(s->n, 2);
    assert_true(s->at[0].id == 1 && s->at[0].applied == 3 && s->at[1].id == 5 && s->at[1].applied == 2);
    assert_true(s->retired_below == 1 && s->n_retired == 1 && s->retired[0] == 7);
}

#endif
