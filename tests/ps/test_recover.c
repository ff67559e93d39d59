// Recovery is bit-exact, for all three durability levels, wherever the crash falls; and damage is named, never applied.
#include "tests/ps/fixture.h"

#include "ps/recover.h"
#include "ps/snapshot.h"

typedef struct step {
    uint64_t stream, seq, base;
} step;

// A shard without its threads: the same calls in the same order.
typedef struct bench {
    fixture f;
    char dir[64];
    ebb_kvstore *kv;
    ebb_journal journal;
    ebb_job *job;
    uint64_t seed;
} bench;

static void s_open(bench *b)
{
    char why[512];
    CHECK_OK(ebb_recover_open(b->dir, 0, &b->kv, why));
    CHECK_OK(ebb_journal_init(&b->journal, b->kv));
    ebb_status st = ebb_recover_job(b->dir, b->kv, &b->journal, &b->job, why);
    if (st != EBB_OK) {
        fail_msg("recovery: %s", why);
    }
}

static void s_close(bench *b) // as a crash: nothing is written
{
    ebb_job_free(&b->job);
    ebb_journal_fini(&b->journal);
    ebb_kvstore_close(&b->kv);
}

static void s_start(bench *b, const char *optimizer, const char *durability, uint64_t seed)
{
    char why[512];
    memset(b, 0, sizeof(*b));
    fixture_init(&b->f, optimizer, durability);
    strcpy(b->dir, "/tmp/ebb-ps-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    b->seed = seed;
    s_open(b);
    assert_null(b->job);
    CHECK_OK(ebb_job_new(&b->f.install, b->f.packed, b->f.packed_len, &b->job, why));
    CHECK_OK(ebb_recover_install(b->kv, b->job));
}

static void s_end(bench *b)
{
    s_close(b);
    fixture_remove(b->dir);
    fixture_fini(&b->f);
}

static bool s_has_journal(const bench *b)
{
    return strcmp(b->f.spec.durability, "snapshot") != 0;
}

static void s_push(const fixture *f, ebb_job *job, ebb_journal *journal, uint64_t seed, const step *s, bool sync)
{
    Ebb__PushRequest req = EBB__PUSH_REQUEST__INIT;
    ebb_push p;
    ebb_part *parts = fixture_parts(f, seed, s->stream, s->seq);
    req.job = f->install.job;
    req.epoch = f->install.epoch;
    req.stream = s->stream;
    req.seq = s->seq;
    req.base_version = s->base;
    CHECK_OK(ebb_job_judge(job, &req, parts, f->install.chunk_count, &p));
    assert_int_equal(p.verdict, EBB__VERDICT__VERDICT_APPLIED);
    if (journal != NULL) {
        ebb_journal_add(journal, &p.record, parts);
        CHECK_OK(ebb_journal_commit(journal, sync));
    }
    const ebb_push *list[1] = {&p};
    CHECK_OK(ebb_job_apply(job, list, 1));
    ebb_push_fini(&p);
    fixture_parts_free(f, parts);
}

// Compares everything that pushes can change.
static void s_same(const ebb_job *a, const ebb_job *b)
{
    assert_int_equal(a->version, b->version);
    assert_int_equal(a->lsn, b->lsn);
    for (uint32_t i = 0; i < a->chunk_count; i++) {
        const ebb_chunk_state *x = &a->chunks[i], *y = &b->chunks[i];
        assert_int_equal(x->n_bufs, y->n_bufs);
        assert_int_equal(x->version, y->version);
        assert_int_equal(x->lsn, y->lsn);
        assert_int_equal(x->steps, y->steps);
        for (uint32_t k = 0; k < x->n_bufs; k++) {
            assert_memory_equal(x->buf[k]->data, y->buf[k]->data, x->buf[k]->len);
        }
    }
    assert_int_equal(a->streams.n, b->streams.n);
    for (size_t i = 0; i < a->streams.n; i++) {
        assert_int_equal(a->streams.at[i].id, b->streams.at[i].id);
        assert_int_equal(a->streams.at[i].applied, b->streams.at[i].applied);
    }
}

static void s_work(bench *b, ebb_snapshot_work *w)
{
    CHECK_OK(ebb_snapshot_work_run(b->kv, w));
    ebb_snapshot_work_free(&w);
}

static void s_write_chunk(bench *b, uint32_t generation, uint32_t i)
{
    ebb_snapshot_work *w = calloc(1, sizeof(*w));
    w->step = EBB_SNAPSHOT_CHUNK;
    w->generation = generation;
    ebb_chunk_state_share(&b->job->chunks[i], &w->image);
    s_work(b, w);
    b->job->chunks[i].saved_lsn = b->job->chunks[i].lsn;
}

// A snapshot that may be cut at any chunk or before its end.
static void s_snapshot(bench *b, uint64_t cut)
{
    ebb_job *job = b->job;
    uint32_t generation = job->generation + (s_has_journal(b) ? 0 : 1);
    for (uint32_t i = 0; i < job->chunk_count; i++) {
        if (cut == i) {
            return;
        }
        s_write_chunk(b, generation, i);
    }
    if (cut == job->chunk_count) {
        return;
    }
    ebb_snapshot_work *w = calloc(1, sizeof(*w));
    if (s_has_journal(b)) {
        w->step = EBB_SNAPSHOT_FINISH;
        w->drop_upto = job->lsn;
        for (uint32_t i = 0; i < job->chunk_count; i++) {
            w->drop_upto = job->chunks[i].saved_lsn < w->drop_upto ? job->chunks[i].saved_lsn : w->drop_upto;
        }
        ebb_snapshot_put_state(ebb_journal_batch(&b->journal), job->generation, job->lsn, job->version, job->skipped);
        CHECK_OK(ebb_journal_commit(&b->journal, false));
    } else {
        w->step = EBB_SNAPSHOT_FLIP;
        w->generation = generation;
        CHECK_OK(ebb_kvbatch_new(&w->flip));
        ebb_snapshot_put_flip(w->flip, job, generation);
        job->generation = generation;
    }
    s_work(b, w);
}

static void s_twin(const bench *b, const step *steps, size_t n, ebb_job **out)
{
    char why[256];
    CHECK_OK(ebb_job_new(&b->f.install, b->f.packed, b->f.packed_len, out, why));
    for (size_t i = 0; i < n; i++) {
        if (steps[i].base == UINT64_MAX) {
            ebb_record r;
            CHECK_OK(ebb_job_skip(*out, steps[i].stream, steps[i].seq, &r));
        } else {
            s_push(&b->f, *out, NULL, b->seed, &steps[i], false);
        }
    }
}

static void s_crash_rounds(const char *optimizer, const char *durability, uint64_t seed)
{
    enum { ROUNDS = 12, STEPS = 400, STREAMS = 4 };
    static step steps[STEPS];
    size_t n = 0;
    bench b;
    s_start(&b, optimizer, durability, seed);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t ops = 1 + ebb_rng_at(seed, round, 1) % 30;
        for (uint64_t op = 0; op < ops; op++) {
            uint64_t r = ebb_rng_at(seed, round, 100 + op);
            step *s = &steps[n];
            s->stream = (r >> 8) % STREAMS;
            const ebb_stream *e = ebb_streams_find(&b.job->streams, s->stream);
            s->seq = (e != NULL ? e->applied : 0) + 1;
            uint64_t tau = (r >> 16) % 4;
            s->base = b.job->version > tau ? b.job->version - tau : 0;
            if (r % 17 == 0) {
                ebb_record record;
                s->base = UINT64_MAX; // skipped
                CHECK_OK(ebb_job_skip(b.job, s->stream, s->seq, &record));
                if (s_has_journal(&b)) {
                    ebb_journal_add(&b.journal, &record, NULL);
                    CHECK_OK(ebb_journal_commit(&b.journal, false));
                }
            } else {
                s_push(&b.f, b.job, s_has_journal(&b) ? &b.journal : NULL, seed, s, strcmp(durability, "fsync") == 0);
            }
            n++;
            if (s_has_journal(&b) && (r >> 32) % 5 == 0) {
                s_write_chunk(&b, b.job->generation, (uint32_t)((r >> 40) % b.job->chunk_count)); // one chunk of a snapshot, between two pushes
            }
            if ((r >> 32) % 11 == 1) {
                s_snapshot(&b, (r >> 48) % (b.job->chunk_count + 6));
            }
        }
        uint64_t before = b.job->lsn;
        s_close(&b);
        s_open(&b);
        assert_non_null(b.job);
        assert_true(s_has_journal(&b) ? b.job->lsn == before : b.job->lsn <= before);
        n = b.job->lsn; // every step is one lsn: what was lost is pushed again by the coming rounds
        ebb_job *twin = NULL;
        s_twin(&b, steps, n, &twin);
        s_same(b.job, twin);
        ebb_job_free(&twin);
    }
    s_end(&b);
}

static void test_recover_bit_exact(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    static const char *const durability[] = {"journal", "fsync", "snapshot"};
    static const char *const optimizer[] = {"sgd", "momentum", "adagrad", "adam", "adamw"};
    for (uint64_t i = 0; i < 10; i++) {
        s_crash_rounds(optimizer[i % 5], durability[i % 3], seed + i);
    }
    s_crash_rounds("adamw", "snapshot", seed + 20);
    s_crash_rounds("adam", "journal", seed + 21);
}

// ---- damage ----

static void s_flip(bench *b, const void *key, size_t key_len, size_t at)
{
    uint8_t *v = NULL;
    size_t len = 0;
    CHECK_OK(ebb_kvstore_get(b->kv, key, key_len, &v, &len));
    v[at % len] ^= 0x04;
    CHECK_OK(ebb_kvstore_put(b->kv, key, key_len, v, len, true));
    free(v);
}

static void s_expect_corrupt(bench *b, const char *named)
{
    char why[512] = "";
    ebb_job *job = NULL;
    ebb_status st = ebb_recover_job(b->dir, b->kv, &b->journal, &job, why);
    if (st != EBB_CORRUPT || strstr(why, named) == NULL || strstr(why, b->dir) == NULL) {
        fail_msg("wanted CORRUPT naming \"%s\", got %s: %s", named, ebb_status_name(st), why);
    }
}

static void s_ten_pushes(bench *b, bool snapshot)
{
    for (uint64_t i = 1; i <= 10; i++) {
        const step s = {.stream = 1, .seq = i, .base = i - 1};
        s_push(&b->f, b->job, s_has_journal(b) ? &b->journal : NULL, b->seed, &s, false);
        if (snapshot && i == 5) {
            s_snapshot(b, UINT64_MAX);
        }
    }
}

static void test_recover_names_damaged_rows(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    const uint8_t head7[13] = {'J', 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0}, part7[13] = {'J', 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 2};
    const uint8_t chunk3[10] = {'C', 0, 0, 0, 1, 0, 0, 0, 3, 1}, water1[9] = {'W', 0, 0, 0, 0, 0, 0, 0, 1};
    const struct {
        const uint8_t *key;
        size_t len;
        const char *named;
    } cases[] = {{head7, 13, "journal record 7"},       {part7, 13, "journal record 7"},       {chunk3, 10, "chunk 3"},
                 {water1, 9, "watermark of stream 1"},  {(const uint8_t *)"M", 1, "manifest"}, {(const uint8_t *)"I", 1, "install"},
                 {(const uint8_t *)"G", 1, "state row"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint64_t round = 0; round < 6; round++) { // any bit of the row, header or body
            bench b;
            s_start(&b, "adam", "journal", seed);
            s_ten_pushes(&b, true);
            s_flip(&b, cases[i].key, cases[i].len, ebb_rng_at(seed, i, round));
            s_expect_corrupt(&b, cases[i].named);
            s_end(&b);
        }
    }
}

static void test_recover_names_missing_rows(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    uint8_t key[13] = {'J', 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0};
    for (uint8_t part = 0; part <= 4; part++) { // a head or any part of a record in the middle
        bench b;
        ebb_kvbatch *batch = NULL;
        s_start(&b, "momentum", "journal", seed);
        s_ten_pushes(&b, true);
        key[12] = part;
        CHECK_OK(ebb_kvbatch_new(&batch));
        ebb_kvbatch_del(batch, key, sizeof(key));
        CHECK_OK(ebb_kvstore_write(b.kv, batch, false));
        ebb_kvbatch_free(&batch);
        s_expect_corrupt(&b, part <= b.f.install.chunk_count ? "journal record" : "");
        s_end(&b);
    }
    for (int what = 0; what < 4; what++) {
        bench b;
        ebb_kvbatch *batch = NULL;
        s_start(&b, "momentum", what == 3 ? "snapshot" : "journal", seed);
        s_ten_pushes(&b, true);
        CHECK_OK(ebb_kvbatch_new(&batch));
        const uint8_t cut[9] = {'J', 0, 0, 0, 0, 0, 0, 0, 9}, chunk[10] = {'C', 0, 0, 0, 1, 0, 0, 0, 2, 0},
                      slot[10] = {'C', 0, 0, 0, 1, 0, 0, 0, 2, 1};
        const uint8_t chunk_g2[9] = {'C', 0, 0, 0, 2, 0, 0, 0, 2}, chunk_g2_end[9] = {'C', 0, 0, 0, 2, 0, 0, 0, 3};
        if (what == 0) {
            ebb_kvbatch_del_range(batch, cut, sizeof(cut), "K", 1); // the journal's end
        } else if (what == 1) {
            ebb_kvbatch_del(batch, chunk, sizeof(chunk));
        } else if (what == 2) {
            ebb_kvbatch_del(batch, slot, sizeof(slot));
        } else {
            ebb_kvbatch_del_range(batch, chunk_g2, sizeof(chunk_g2), chunk_g2_end, sizeof(chunk_g2_end));
        }
        CHECK_OK(ebb_kvstore_write(b.kv, batch, false));
        ebb_kvbatch_free(&batch);
        static const char *const named[] = {"watermark names journal record 10", "chunk 2", "chunk 2", "snapshot of version 5"};
        s_expect_corrupt(&b, named[what]);
        s_end(&b);
    }
}

static void test_recover_refuses_foreign_folders(void **state)
{
    (void)state;
    char why[512], path[128];
    bench b;
    ebb_kvstore *kv = NULL;
    s_start(&b, "sgd", "journal", 1);
    s_close(&b);
    CHECK_ERR(ebb_recover_open(b.dir, 1, &kv, why), EBB_CONFIG);
    assert_non_null(strstr(why, "shard 0, not of shard 1"));
    snprintf(path, sizeof(path), "%s/SHARD", b.dir);
    FILE *f = fopen(path, "w");
    fprintf(f, "ebbtide shard folder format 2 shard 0\n");
    fclose(f);
    CHECK_ERR(ebb_recover_open(b.dir, 0, &kv, why), EBB_NEWER);
    assert_non_null(strstr(why, "newer"));
    assert_non_null(strstr(why, b.dir));
    unlink(path);
    CHECK_ERR(ebb_recover_open(b.dir, 0, &kv, why), EBB_CONFIG);
    assert_non_null(strstr(why, b.dir));
    fixture_remove(b.dir);
    fixture_fini(&b.f);
}

static void test_recover_remembers_retired_streams(void **state)
{
    (void)state;
    bench b;
    bool changed = false;
    s_start(&b, "sgd", "journal", 1);
    s_ten_pushes(&b, false);
    const uint64_t list[] = {1, 7};
    CHECK_OK(ebb_streams_retire(&b.job->streams, 0, list, 2, &changed, NULL, NULL));
    ebb_recover_put_retired(ebb_journal_batch(&b.journal), &b.job->streams);
    ebb_journal_del_watermark(ebb_journal_batch(&b.journal), 1);
    CHECK_OK(ebb_journal_commit(&b.journal, false));
    s_close(&b);
    s_open(&b);
    assert_int_equal(b.job->version, 10);
    assert_int_equal(b.job->streams.n, 0);
    assert_int_equal(ebb_streams_verdict(&b.job->streams, 1, 1, NULL), EBB_STREAM_DUPLICATE);
    assert_int_equal(ebb_streams_verdict(&b.job->streams, 7, 1, NULL), EBB_STREAM_DUPLICATE);
    assert_int_equal(ebb_streams_verdict(&b.job->streams, 2, 1, NULL), EBB_STREAM_NEXT);
    s_end(&b);
}

int main(void)
{
    ebb_log_set_sink(fixture_no_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recover_bit_exact),
        cmocka_unit_test(test_recover_names_damaged_rows),
        cmocka_unit_test(test_recover_names_missing_rows),
        cmocka_unit_test(test_recover_refuses_foreign_folders),
        cmocka_unit_test(test_recover_remembers_retired_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
