#define _GNU_SOURCE // nftw
// What was written is there after closing and opening again; what isn't ours is refused by name.
#include "coordinator/statestore.h"
#include "tests/support/scratch.h"

static scratch s_scratch;

static Ebb__JobSpec *s_spec(void)
{
    static Ebb__JobSpec spec;
    static Ebb__ModelSpec model;
    ebb__job_spec__init(&spec);
    ebb__model_spec__init(&model);
    spec.name = "kept";
    spec.steps = 1234;
    spec.model = &model;
    model.family = "counter";
    model.numel = 99;
    return &spec;
}

static void s_skip(void *arg, uint64_t stream, uint64_t seq)
{
    uint64_t *sum = arg;
    sum[0]++;
    sum[1] += stream * 1000 + seq;
}

typedef struct events {
    size_t n;
    uint64_t first, last;
} events;

static void s_event(void *arg, Ebb__Event *e)
{
    events *all = arg;
    all->first = all->n++ == 0 ? e->id : all->first;
    all->last = e->id;
    assert_string_equal(e->kind, "kind");
    assert_string_equal(e->text, "text \"quoted\"");
    ebb_pb_free(&e->base);
}

static void test_statestore_reloads_everything(void **state)
{
    (void)state;
    char why[512], dir[128], text[64];
    ebb_statestore *s = NULL;
    uint64_t job, created, epoch, last, below[2] = {0, 0};
    Ebb__JobSpec *spec = NULL;
    uint8_t *manifest = NULL;
    size_t len = 0;
    bool final_done = false;
    snprintf(dir, sizeof(dir), "%s", scratch_path(&s_scratch, "store"));
    ebb_plan plan;
    ebb_ledger l, back;
    CHECK_OK(ebb_plan_init(&plan, 1000, 1, 10, 1000, 1));
    CHECK_OK(ebb_ledger_init(&l, &plan, 2, 5000));

    CHECK_OK(ebb_statestore_open(dir, &s, why));
    CHECK_ERR(ebb_statestore_get_job(s, &job, &created, &spec), EBB_NOENT);
    CHECK_ERR(ebb_statestore_get_state(s, text, sizeof(text)), EBB_NOENT);
    ebb_chunk_range ranges[2] = {{0, 3}, {3, 4}}, got[2];
    CHECK_ERR(ebb_statestore_get_placement(s, &manifest, &len, &epoch, got, 2), EBB_NOENT);
    CHECK_OK(ebb_statestore_put_job(s, 77, 1700000000000, s_spec()));
    CHECK_OK(ebb_statestore_put_placement(s, (const uint8_t *)"manifest", 8, 3, ranges, 2));

    // Six units out; 0, 1 and 4 are retired, 5 is given back.
    uint64_t streams[8], stream;
    for (int i = 0; i < 6; i++) {
        char name[8];
        const ebb_unit_row *u;
        snprintf(name, sizeof(name), "w%d", i);
        CHECK_OK(ebb_ledger_lease(&l, name, (uint64_t)i + 1, 0, &u));
        CHECK_OK(ebb_statestore_put_unit(s, &u->lease));
    }
    for (uint32_t shard = 0; shard < 2; shard++) {
        ebb_ledger_watermark(&l, shard, 0, 10, 10);
        ebb_ledger_watermark(&l, shard, 1, 10, 10);
        ebb_ledger_watermark(&l, shard, 4, 10, 10);
    }
    size_t n = ebb_ledger_retire(&l, streams, 8);
    assert_int_equal(n, 3);
    CHECK_OK(ebb_statestore_retire(s, &l, streams, n));
    assert_true(ebb_ledger_return(&l, "w5", ebb_ledger_unit(&l, 5)->lease.lease, 2, 0, &stream));
    CHECK_OK(ebb_statestore_put_unit(s, &ebb_ledger_unit(&l, 5)->lease));

    CHECK_OK(ebb_statestore_put_skip(s, 3, 4, "not finite"));
    CHECK_OK(ebb_statestore_put_skip(s, 3, 4, "not finite"));
    CHECK_OK(ebb_statestore_put_skip(s, 2, 9, "not finite"));
    for (uint64_t id = 1; id <= 3; id++) {
        ebb_eval_point e = {.id = id < 3 ? id * 500 : UINT64_MAX, .step = id * 500, .version = id, .loss = 3.5, .accuracy = 0.5, .time_s = 9};
        CHECK_OK(ebb_statestore_put_eval(s, &e));
    }
    Ebb__Event event = EBB__EVENT__INIT;
    event.kind = "kind";
    event.subject = "subject";
    event.text = "text \"quoted\"";
    for (event.id = 1; event.id <= 700; event.id++) {
        CHECK_OK(ebb_statestore_put_event(s, &event));
    }
    CHECK_OK(ebb_statestore_put_state(s, "SUCCEEDED"));

    ebb_statestore *second = NULL;
    CHECK_ERR(ebb_statestore_open(dir, &second, why), EBB_TRYLATER);
    ebb_statestore_close(&s);
    CHECK_OK(ebb_statestore_open(dir, &s, why));

    CHECK_OK(ebb_statestore_get_job(s, &job, &created, &spec));
    assert_true(job == 77 && created == 1700000000000 && spec->steps == 1234 && spec->model->numel == 99);
    assert_string_equal(spec->name, "kept");
    ebb_pb_free(&spec->base);
    CHECK_OK(ebb_statestore_get_placement(s, &manifest, &len, &epoch, got, 2));
    assert_true(len == 8 && memcmp(manifest, "manifest", 8) == 0 && epoch == 3 && memcmp(got, ranges, sizeof(got)) == 0);
    free(manifest);
    manifest = NULL;
    CHECK_ERR(ebb_statestore_get_placement(s, &manifest, &len, &epoch, got, 1), EBB_CORRUPT); // not that many shards

    CHECK_OK(ebb_ledger_init(&back, &plan, 2, 5000));
    CHECK_OK(ebb_statestore_load_ledger(s, &back, 100));
    assert_true(back.cursor == 6 && back.retired_below == 2 && back.n_retired == 1 && back.retired[0] == 4 && back.steps_retired == 30);
    assert_true(back.n_units == 3 && back.next_lease > 4); // above every lease that is out
    const ebb_unit_row *u = ebb_ledger_unit(&back, 2);
    assert_true(u != NULL && u->lease.lease == 3 && u->lease.incarnation == 3 && u->lease.attempt == 1 && u->lease.deadline_ms == 5100);
    assert_string_equal(u->lease.worker, "w2");
    u = ebb_ledger_unit(&back, 5);
    assert_true(u != NULL && u->lease.lease == 0 && u->lease.attempt == 1); // leased next
    ebb_ledger_fini(&back);

    CHECK_OK(ebb_statestore_load_skips(s, s_skip, below));
    assert_true(below[0] == 2 && below[1] == 3004 + 2009);
    static ebb_progress p;
    ebb_progress_init(&p);
    CHECK_OK(ebb_statestore_load_evals(s, &p, &final_done));
    assert_true(final_done && p.n_evals == 3 && p.evals[0].id == 500 && p.evals[1].step == 1000 && p.evals[2].id == UINT64_MAX);
    events all = {0};
    CHECK_OK(ebb_statestore_load_events(s, 0, 1000, s_event, &all));
    assert_true(all.n == 700 && all.first == 1 && all.last == 700);
    all.n = 0;
    CHECK_OK(ebb_statestore_load_events(s, 300, 10, s_event, &all));
    assert_true(all.n == 10 && all.first == 301 && all.last == 310);
    CHECK_OK(ebb_statestore_last_event(s, &last));
    assert_int_equal(last, 700);
    CHECK_OK(ebb_statestore_get_state(s, text, sizeof(text)));
    assert_string_equal(text, "SUCCEEDED");
    ebb_statestore_close(&s);
    ebb_ledger_fini(&l);
}

static void s_put_raw(const char *dir, const char *key, const void *value, size_t len)
{
    char why[512];
    ebb_kvstore *kv = NULL;
    ebb_kvstore_options options = {.create = true};
    CHECK_OK(ebb_kvstore_open(dir, &options, &kv, why));
    CHECK_OK(ebb_kvstore_put(kv, key, strlen(key), value, len, true));
    ebb_kvstore_close(&kv);
}

static void test_statestore_refuses_what_is_not_its_own(void **state)
{
    (void)state;
    char why[512], dir[128];
    ebb_statestore *s = NULL;
    snprintf(dir, sizeof(dir), "%s", scratch_path(&s_scratch, "newer"));
    s_put_raw(dir, "F", "EBBC\xff\0\0\0", 8);
    CHECK_ERR(ebb_statestore_open(dir, &s, why), EBB_NEWER);
    assert_non_null(strstr(why, "format 255, written by a newer version"));
    assert_null(s);
    snprintf(dir, sizeof(dir), "%s", scratch_path(&s_scratch, "older"));
    s_put_raw(dir, "F", "EBBC\1\0\0\0", 8);
    CHECK_ERR(ebb_statestore_open(dir, &s, why), EBB_CONFIG);
    assert_non_null(strstr(why, "format 1 of an older version"));
    snprintf(dir, sizeof(dir), "%s", scratch_path(&s_scratch, "shard"));
    s_put_raw(dir, "F", "EBBS\1\0\0\0", 8);
    CHECK_ERR(ebb_statestore_open(dir, &s, why), EBB_CONFIG);
    assert_non_null(strstr(why, dir));
    snprintf(dir, sizeof(dir), "%s", scratch_path(&s_scratch, "other"));
    s_put_raw(dir, "rows", "x", 1);
    CHECK_ERR(ebb_statestore_open(dir, &s, why), EBB_CONFIG);
    assert_non_null(strstr(why, "another program"));
}

static void test_statestore_refuses_damaged_rows(void **state)
{
    (void)state;
    char why[512], dir[128];
    uint64_t job, created;
    Ebb__JobSpec *spec = NULL;
    ebb_statestore *s = NULL;
    ebb_plan plan;
    ebb_ledger l;
    CHECK_OK(ebb_plan_init(&plan, 1000, 1, 10, 1000, 1));
    snprintf(dir, sizeof(dir), "%s", scratch_path(&s_scratch, "damaged"));
    CHECK_OK(ebb_statestore_open(dir, &s, why));
    ebb_statestore_close(&s);
    s_put_raw(dir, "J", "short", 5);
    s_put_raw(dir, "R", "\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 24); // says it holds 2^64-1 streams
    CHECK_OK(ebb_statestore_open(dir, &s, why));
    CHECK_ERR(ebb_statestore_get_job(s, &job, &created, &spec), EBB_CORRUPT);
    CHECK_OK(ebb_ledger_init(&l, &plan, 1, 1000));
    CHECK_ERR(ebb_statestore_load_ledger(s, &l, 0), EBB_CORRUPT);
    ebb_ledger_fini(&l);
    ebb_statestore_close(&s);
}

static int s_setup(void **state)
{
    (void)state;
    scratch_init(&s_scratch);
    return 0;
}

static int s_teardown(void **state)
{
    (void)state;
    scratch_fini(&s_scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_statestore_reloads_everything, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_statestore_refuses_what_is_not_its_own, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_statestore_refuses_damaged_rows, s_setup, s_teardown),
    };
    return cmocka_run_group_tests_name("coordinator.statestore", tests, NULL, NULL);
}
