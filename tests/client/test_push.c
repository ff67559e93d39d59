// The data path against shards that lose, delay, refuse, corrupt, die and come back.
#include "tests/support/check.h"

#include <string.h>
#include <unistd.h>

#include "client/ebb.h"
#include "core/clock.h"
#include "core/log.h"
#include "tests/client/fake.h"

#define SHARDS 3

typedef struct fixture {
    ebb_net *net;
    ebb_manifest *manifest;
    fake_shard shard[SHARDS], *list[SHARDS];
    fake_coordinator co;
    fake_spec spec;
    ebb_session *session;
    ebb_control *control;
    ebb_view *view;
    float *params, *expect; // expect: what the shards must hold
    ebb_buf *grad;
    uint64_t rng;
} fixture;

static void s_place(fixture *f, uint32_t first_share)
{
    uint32_t chunks = (uint32_t)f->manifest->n_chunks, first = 0;
    for (uint32_t i = 0; i < SHARDS; i++) {
        uint32_t count = i == SHARDS - 1 ? chunks - first : i == 0 ? first_share : chunks / SHARDS;
        f->shard[i].first_chunk = first;
        f->shard[i].chunk_count = count;
        first += count;
    }
}

static int s_setup(void **state)
{
    static int serial;
    fixture *f = calloc(1, sizeof(*f));
    char endpoint[128];
    f->rng = ebb_test_seed();
    CHECK_OK(ebb_net_new(&f->net));
    f->manifest = fake_manifest(32);
    fake_spec_init(&f->spec);
    serial++;
    for (uint32_t i = 0; i < SHARDS; i++) {
        snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/ebb-test-%d-%d-p%u", (int)getpid(), serial, i);
        fake_shard_init(&f->shard[i], f->net, endpoint, f->manifest, i, 0, 0, 1);
        f->list[i] = &f->shard[i];
    }
    s_place(f, (uint32_t)f->manifest->n_chunks / SHARDS);
    for (uint32_t i = 0; i < SHARDS; i++) {
        fake_shard_start(&f->shard[i]);
    }
    snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/ebb-test-%d-%d-pc", (int)getpid(), serial);
    fake_coordinator_init(&f->co, f->net, endpoint, &f->spec.job, f->manifest, f->list, SHARDS);
    fake_coordinator_start(&f->co);
    ebb_session_options o = {.coordinator = endpoint, .worker = "w", .net = f->net, .requests_max = 8};
    CHECK_OK(ebb_session_new(&o, &f->session));
    CHECK_OK(ebb_control_new(f->session, &f->control));
    CHECK_OK(ebb_join(f->control, 5000));
    CHECK_OK(ebb_connect(f->control, f->manifest, 5000));
    CHECK_OK(ebb_view_new(f->session, &f->view));
    f->params = calloc(f->manifest->numel, sizeof(float));
    f->expect = calloc(f->manifest->numel, sizeof(float));
    for (uint32_t c = 0; c < f->manifest->n_chunks; c++) {
        ebb_manifest_init_chunk(f->manifest, 1, c, f->expect + f->manifest->chunks[c].offset);
    }
    *state = f;
    return 0;
}

static int s_teardown(void **state)
{
    fixture *f = *state;
    ebb_buf_unref(&f->grad);
    ebb_view_free(&f->view);
    ebb_control_free(&f->control);
    ebb_session_free(&f->session);
    fake_coordinator_stop(&f->co);
    for (int i = 0; i < SHARDS; i++) {
        fake_shard_fini(&f->shard[i]);
    }
    free(f->params);
    free(f->expect);
    ebb_manifest_free(&f->manifest);
    ebb_net_free(&f->net);
    free(f);
    return 0;
}

static void s_pull(fixture *f)
{
    ebb_request *r = NULL;
    ebb_pull_options o = {.view = f->view};
    CHECK_OK(ebb_pull(f->session, &o, &r));
    CHECK_OK(ebb_request_wait(r, 20000));
    ebb_view_apply(f->view, r, f->params);
    ebb_request_free(&r);
    assert_true(ebb_view_complete(f->view));
}

// A gradient that is a function of (stream, seq), as a real one is of the work.
static void s_gradient(fixture *f, uint64_t stream, uint64_t seq, float *out)
{
    for (uint64_t i = 0; i < f->manifest->numel; i++) {
        out[i] = (float)(ebb_rng_uniform_at(f->rng, stream * 1000 + seq, i) - 0.5);
    }
}

static ebb_request *s_push(fixture *f, uint64_t stream, uint64_t seq)
{
    ebb_request *r = NULL;
    ebb_buf_unref(&f->grad);
    CHECK_OK(ebb_buf_new(f->manifest->numel * sizeof(float), &f->grad));
    s_gradient(f, stream, seq, (float *)f->grad->data);
    ebb_push p = {.stream = stream, .seq = seq, .attempt = 1, .grad = f->grad};
    CHECK_OK(ebb_push_pull(f->session, &p, f->view, &r));
    return r;
}

static void s_expect(fixture *f, uint64_t stream, uint64_t seq)
{
    float *g = malloc(f->manifest->numel * sizeof(float));
    s_gradient(f, stream, seq, g);
    for (uint64_t i = 0; i < f->manifest->numel; i++) {
        f->expect[i] -= f->shard[0].lr * g[i];
    }
    free(g);
}

static void s_finish(fixture *f, ebb_request *r, ebb_status want)
{
    CHECK_ERR(ebb_request_wait(r, 20000), want);
    ebb_view_apply(f->view, r, f->params);
    ebb_request_free(&r);
}

static void s_check(fixture *f)
{
    assert_memory_equal(f->params, f->expect, f->manifest->numel * sizeof(float));
    for (int i = 0; i < SHARDS; i++) { // every step once at every shard
        uint64_t last[FAKE_STREAMS] = {0};
        for (uint32_t k = 0; k < f->shard[i].n_log; k++) {
            fake_push *p = &f->shard[i].log[k];
            if (p->verdict == EBB__VERDICT__VERDICT_APPLIED) {
                assert_int_equal(p->seq, last[p->stream] + 1);
                last[p->stream] = p->seq;
            }
        }
    }
}

static void s_steps(fixture *f, uint64_t stream, uint64_t first, uint64_t last)
{
    for (uint64_t seq = first; seq <= last; seq++) {
        s_expect(f, stream, seq);
        s_finish(f, s_push(f, stream, seq), EBB_OK);
    }
}

// ---- scripts ----

typedef struct script {
    fake_action action;
    int every;   // of the pushes, every n'th; 0: only `at`
    uint64_t at; // seq
    _Atomic int times;
    int pushes;
} script;

static fake_action s_decide(void *arg, const Ebb__Envelope *env)
{
    script *s = arg;
    if (env->body_case != EBB__ENVELOPE__BODY_PUSH_REQUEST || s->times == 0) {
        return FAKE_OBEY;
    }
    s->pushes++;
    if (s->every > 0 ? s->pushes % s->every == 0 : env->push_request->seq == s->at) {
        s->times--;
        return s->action;
    }
    return FAKE_OBEY;
}

static void test_push_all_well(void **state)
{
    fixture *f = *state;
    s_pull(f);
    s_check(f);
    s_steps(f, 1, 1, 20);
    s_check(f);
    for (int i = 0; i < SHARDS; i++) {
        assert_int_equal(f->shard[i].log[19].base_version, 19);
        assert_int_equal(f->shard[i].whole_pulls, 1);
    }
    ebb_traffic t;
    ebb_session_traffic(f->session, &t);
    assert_int_equal(t.sends, SHARDS * 21);
    assert_int_equal(t.resends, 0);
    assert_int_equal(t.reopens, 0);
}

static void test_push_by_chunk_buffers(void **state)
{
    fixture *f = *state;
    const ebb_manifest *m = f->manifest;
    ebb_buf **chunks = calloc(m->n_chunks, sizeof(*chunks));
    float *g = malloc(m->numel * sizeof(float));
    s_pull(f);
    s_gradient(f, 1, 1, g);
    for (size_t c = 0; c < m->n_chunks; c++) {
        CHECK_OK(ebb_buf_dup(g + m->chunks[c].offset, m->chunks[c].numel * sizeof(float), &chunks[c]));
    }
    ebb_push p = {.stream = 1, .seq = 1, .chunks = chunks};
    ebb_request *r = NULL;
    CHECK_OK(ebb_push_pull(f->session, &p, f->view, &r));
    s_finish(f, r, EBB_OK);
    s_expect(f, 1, 1);
    s_check(f);
    for (size_t c = 0; c < m->n_chunks; c++) {
        for (int i = 0; i < 200 && !ebb_buf_is_sole(chunks[c]); i++) {
            ebb_clock_sleep_ms(5);
        }
        assert_true(ebb_buf_is_sole(chunks[c])); // ours again
    }
    ebb_buf *first = chunks[0]; // sizes are checked
    chunks[0] = chunks[1];
    if (chunks[1]->len != first->len) {
        CHECK_ERR(ebb_push_pull(f->session, &p, f->view, &r), EBB_INVAL);
    }
    chunks[0] = first;
    for (size_t c = 0; c < m->n_chunks; c++) {
        ebb_buf_unref(&chunks[c]);
    }
    free(chunks);
    free(g);
}

// One fault of each kind at one shard; the result must be as if nothing had happened.
static void s_survives(fixture *f, fake_action action, int times)
{
    script s = {.action = action, .at = 3, .times = times};
    f->shard[1].decide_arg = &s;
    f->shard[1].decide = s_decide;
    s_pull(f);
    s_steps(f, 1, 1, 6);
    s_check(f);
    assert_int_equal(s.times, 0);
    f->shard[1].decide = NULL;
}

static void test_push_lost_request(void **state)
{
    s_survives(*state, FAKE_DROP, 1);
}

static void test_push_lost_answer(void **state)
{
    fixture *f = *state;
    s_survives(f, FAKE_DROP_REPLY, 1);
    bool duplicate = false;
    for (uint32_t k = 0; k < f->shard[1].n_log; k++) {
        duplicate |= f->shard[1].log[k].verdict == EBB__VERDICT__VERDICT_DUPLICATE && f->shard[1].log[k].seq == 3;
    }
    assert_true(duplicate);
}

static void test_push_slow_answer(void **state)
{
    fixture *f = *state;
    s_survives(f, FAKE_SLOW, 1);
    ebb_traffic t;
    ebb_session_traffic(f->session, &t);
    assert_true(t.pings > 0);
    assert_int_equal(t.reopens, 0); // slow is not dead
}

static void test_push_try_later(void **state)
{
    s_survives(*state, FAKE_TRYLATER, 4);
}

static void test_push_damaged_answer(void **state)
{
    fixture *f = *state;
    s_survives(f, FAKE_CORRUPT, 2);
    ebb_traffic t;
    ebb_session_traffic(f->session, &t);
    assert_true(t.damaged >= 2);
}

static void test_push_garbage_answer(void **state)
{
    s_survives(*state, FAKE_GARBAGE, 2);
}

static void test_push_wrong_shard_same_placement(void **state)
{
    fixture *f = *state;
    s_pull(f);
    s_steps(f, 1, 1, 2);
    f->co.epoch = 2; // the shards moved on to epoch 2 and the client does not know
    for (int i = 0; i < SHARDS; i++) {
        f->shard[i].epoch = 2;
    }
    s_steps(f, 1, 3, 5);
    s_check(f);
    assert_true(f->co.maps >= 2);
}

static void test_push_wrong_shard_other_placement(void **state)
{
    fixture *f = *state;
    s_pull(f);
    s_steps(f, 1, 1, 2);
    float *whole = malloc(f->manifest->numel * sizeof(float)); // every shard gets everything, then other ranges
    memcpy(whole, f->expect, f->manifest->numel * sizeof(float));
    for (int i = 0; i < SHARDS; i++) {
        fake_shard_stop(&f->shard[i]);
        memcpy(f->shard[i].params, whole, f->manifest->numel * sizeof(float));
        f->shard[i].epoch = 2;
    }
    fake_coordinator_stop(&f->co);
    f->co.epoch = 2;
    s_place(f, 1);
    free(whole);
    fake_coordinator_start(&f->co);
    for (int i = 0; i < SHARDS; i++) {
        fake_shard_start(&f->shard[i]);
    }
    s_finish(f, s_push(f, 1, 3), EBB_WRONGSHARD);
    ebb_view_forget(f->view);
    assert_false(ebb_view_complete(f->view));
    s_pull(f);
    s_steps(f, 1, 3, 5);
    s_check(f);
}

static void test_push_duplicate_is_done(void **state)
{
    fixture *f = *state;
    s_pull(f);
    s_steps(f, 1, 1, 3);
    ebb_request *r = s_push(f, 1, 2); // a zombie's repetition
    CHECK_OK(ebb_request_wait(r, 20000));
    assert_int_equal(ebb_request_result(r)->duplicates, SHARDS);
    assert_int_equal(ebb_request_result(r)->applied, 3);
    ebb_request_free(&r);
    s_check(f);
}

static void test_push_gap_is_told(void **state)
{
    fixture *f = *state;
    s_pull(f);
    s_steps(f, 1, 1, 3);
    ebb_request *r = s_push(f, 1, 6);
    CHECK_ERR(ebb_request_wait(r, 20000), EBB_GAP);
    assert_int_equal(ebb_request_result(r)->applied, 3);
    ebb_request_free(&r);
    s_steps(f, 1, 4, 6);
    s_check(f);
}

static void test_push_stale_at_one_shard(void **state)
{
    fixture *f = *state;
    script s = {.action = FAKE_STALE, .at = 2, .times = 1};
    f->shard[2].decide_arg = &s;
    f->shard[2].decide = s_decide;
    s_pull(f);
    s_steps(f, 1, 1, 1);
    ebb_request *r = s_push(f, 1, 2);
    CHECK_ERR(ebb_request_wait(r, 20000), EBB_STALE);
    assert_int_equal(ebb_request_result(r)->applied, 1);
    ebb_view_apply(f->view, r, f->params);
    ebb_request_free(&r);
    s_pull(f);
    s_expect(f, 1, 2);
    r = s_push(f, 1, 2);
    CHECK_OK(ebb_request_wait(r, 20000));
    assert_int_equal(ebb_request_result(r)->duplicates, SHARDS - 1);
    ebb_view_apply(f->view, r, f->params);
    ebb_request_free(&r);
    s_check(f);
}

static void test_push_bad_value_is_told(void **state)
{
    fixture *f = *state;
    script s = {.action = FAKE_BAD_VALUE, .at = 1, .times = 1};
    f->shard[0].decide_arg = &s;
    f->shard[0].decide = s_decide;
    s_pull(f);
    s_finish(f, s_push(f, 1, 1), EBB_BADVALUE);
}

// A window of pushes where an early one is put off or lost: the later ones arrive before it, and still everything ends in order.
static void s_window(fixture *f, fake_action action, int times)
{
    script s = {.action = action, .at = 2, .times = times};
    f->shard[0].decide_arg = &s;
    f->shard[0].decide = s_decide;
    s_pull(f);
    ebb_request *r[5];
    for (uint64_t seq = 1; seq <= 5; seq++) {
        s_expect(f, 1, seq);
        r[seq - 1] = s_push(f, 1, seq);
    }
    for (int i = 4; i >= 0; i--) { // any order of applying is fine
        s_finish(f, r[i], EBB_OK);
    }
    s_check(f);
    assert_int_equal(s.times, 0);
}

static void test_push_window_keeps_order_when_put_off(void **state)
{
    s_window(*state, FAKE_TRYLATER, 3);
}

static void test_push_window_keeps_order_when_lost(void **state)
{
    s_window(*state, FAKE_DROP, 2);
}

static void test_push_window_after_stale_is_gap(void **state)
{
    fixture *f = *state;
    script s = {.action = FAKE_STALE, .at = 2, .times = 1};
    f->shard[1].decide_arg = &s;
    f->shard[1].decide = s_decide;
    s_pull(f);
    ebb_request *r[4];
    uint64_t applied = UINT64_MAX;
    for (uint64_t seq = 1; seq <= 4; seq++) {
        r[seq - 1] = s_push(f, 1, seq);
    }
    ebb_status want[4] = {EBB_OK, EBB_STALE, EBB_GAP, EBB_GAP};
    for (int i = 0; i < 4; i++) {
        CHECK_ERR(ebb_request_wait(r[i], 20000), want[i]);
        uint64_t a = ebb_request_result(r[i])->applied;
        applied = i == 0 || a < applied ? a : applied;
        ebb_request_free(&r[i]);
    }
    assert_int_equal(applied, 1);
    s_pull(f);
    for (uint64_t seq = 1; seq <= 4; seq++) {
        s_expect(f, 1, seq);
    }
    for (uint64_t seq = applied + 1; seq <= 4; seq++) {
        s_finish(f, s_push(f, 1, seq), EBB_OK);
    }
    s_check(f);
}

static void test_push_respects_credit(void **state)
{
    fixture *f = *state;
    f->shard[1].credit = 1;
    s_pull(f);
    s_steps(f, 1, 1, 1);
    ebb_request *r[6];
    for (uint64_t seq = 2; seq <= 7; seq++) {
        s_expect(f, 1, seq);
        r[seq - 2] = s_push(f, 1, seq);
    }
    for (int i = 0; i < 6; i++) {
        s_finish(f, r[i], EBB_OK);
    }
    s_check(f);
}

// ---- death ----

static void *s_restart_later(void *arg)
{
    ebb_clock_sleep_ms(400);
    fake_shard_start(arg);
    return NULL;
}

static void test_push_shard_dies_and_comes_back(void **state)
{
    fixture *f = *state;
    s_pull(f);
    s_steps(f, 1, 1, 3);
    fake_shard_stop(&f->shard[1]);
    ebb_request *r = s_push(f, 1, 4);
    s_expect(f, 1, 4);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, s_restart_later, &f->shard[1]), 0);
    CHECK_ERR(ebb_request_wait(r, 100), EBB_TIMEDOUT); // still trying, nothing given up
    CHECK_ERR(ebb_request_poll(r), EBB_AGAIN);
    CHECK_OK(ebb_request_wait(r, 20000));
    pthread_join(t, NULL);
    assert_true(ebb_request_result(r)->replaced);
    ebb_view_apply(f->view, r, f->params);
    ebb_request_free(&r);
    assert_false(ebb_view_complete(f->view)); // the new process may know other versions
    uint64_t whole = f->shard[1].whole_pulls, other = f->shard[0].whole_pulls;
    s_pull(f);
    assert_int_equal(f->shard[1].whole_pulls, whole + 1);
    assert_int_equal(f->shard[0].whole_pulls, other);
    s_steps(f, 1, 5, 6);
    s_check(f);
    for (uint32_t k = 0; k < f->shard[1].n_log; k++) { // no differences were asked of the new process
        assert_true(f->shard[1].log[k].seq != 4 || k < 3 || !f->shard[1].log[k].want_pull || f->shard[1].log[k].verdict != 2);
    }
    ebb_traffic tr;
    ebb_session_traffic(f->session, &tr);
    assert_true(tr.restarts >= 1);
}

// The shard rolls back to an older state (durability snapshot): the push of seq 4 is a gap there, and the caller goes back.
static void test_push_shard_rolls_back(void **state)
{
    fixture *f = *state;
    s_pull(f);
    s_steps(f, 1, 1, 1);
    float *old = malloc(f->manifest->numel * sizeof(float));
    memcpy(old, f->params, f->manifest->numel * sizeof(float)); // the shard's own, as we see it
    s_steps(f, 1, 2, 3);
    fake_shard_stop(&f->shard[1]);
    memcpy(f->shard[1].params, old, f->manifest->numel * sizeof(float));
    f->shard[1].applied[1] = 1;
    f->shard[1].version = 1;
    for (uint32_t c = 0; c < f->manifest->n_chunks; c++) {
        f->shard[1].chunk_version[c] = 1;
    }
    f->shard[1].n_log = 1;
    free(old);
    fake_shard_start(&f->shard[1]);
    ebb_request *r = s_push(f, 1, 4);
    CHECK_ERR(ebb_request_wait(r, 20000), EBB_GAP);
    assert_int_equal(ebb_request_result(r)->applied, 1);
    ebb_view_apply(f->view, r, f->params);
    ebb_request_free(&r);
    s_pull(f);
    s_expect(f, 1, 4);
    for (uint64_t seq = 2; seq <= 4; seq++) {
        s_finish(f, s_push(f, 1, seq), EBB_OK);
    }
    if (!ebb_view_complete(f->view)) {
        s_pull(f);
    }
    s_check(f);
}

static void test_push_shard_moves_to_another_endpoint(void **state)
{
    fixture *f = *state;
    s_pull(f);
    s_steps(f, 1, 1, 2);
    fake_shard_stop(&f->shard[2]);
    unlink(f->shard[2].endpoint + strlen("ipc://"));
    strcat(f->shard[2].endpoint, "-new");
    fake_shard_start(&f->shard[2]);
    s_expect(f, 1, 3);
    s_finish(f, s_push(f, 1, 3), EBB_OK);
    s_pull(f);
    s_check(f);
}

static void test_push_mute_shard_is_reconnected(void **state)
{
    fixture *f = *state;
    s_pull(f);
    f->shard[0].mute = true; // a connection that swallows everything
    ebb_request *r = s_push(f, 1, 1);
    s_expect(f, 1, 1);
    CHECK_ERR(ebb_request_wait(r, 1600), EBB_TIMEDOUT);
    f->shard[0].mute = false;
    s_finish(f, r, EBB_OK);
    s_check(f);
    ebb_traffic t;
    ebb_session_traffic(f->session, &t);
    assert_true(t.reopens >= 1);
}

// ---- life of handles ----

static void test_push_table_is_bounded_and_cancel_frees(void **state)
{
    fixture *f = *state;
    s_pull(f);
    for (int i = 0; i < SHARDS; i++) {
        f->shard[i].mute = true;
    }
    ebb_request *r[8], *more = NULL;
    for (int i = 0; i < 8; i++) {
        r[i] = s_push(f, 1, (uint64_t)i + 1);
    }
    ebb_push p = {.stream = 1, .seq = 9, .grad = f->grad};
    CHECK_ERR(ebb_push_pull(f->session, &p, f->view, &more), EBB_AGAIN);
    for (int i = 0; i < 8; i++) {
        ebb_request_free(&r[i]);
        assert_null(r[i]);
    }
    ebb_status st = EBB_AGAIN; // slots come back when the io thread has let go
    for (int i = 0; i < 200 && st == EBB_AGAIN; i++) {
        ebb_clock_sleep_ms(5);
        st = ebb_push_pull(f->session, &p, f->view, &more);
    }
    CHECK_OK(st);
    // left outstanding: the session ends anyway, at once
    uint64_t start = ebb_clock_ms();
    ebb_view_free(&f->view);
    ebb_control_free(&f->control);
    ebb_session_free(&f->session);
    assert_true(ebb_clock_ms() - start < 1000);
}

// All faults at random, a window of 4, three shards: the sum must come out.
static void test_push_random_faults(void **state)
{
    fixture *f = *state;
    script s[SHARDS] = {{.action = FAKE_TRYLATER, .every = 5, .times = 1000},
                        {.action = FAKE_DROP, .every = 11, .times = 3},
                        {.action = FAKE_DROP_REPLY, .every = 7, .times = 3}};
    for (int i = 0; i < SHARDS; i++) {
        f->shard[i].decide_arg = &s[i];
        f->shard[i].decide = s_decide;
    }
    s_pull(f);
    ebb_request *r[4] = {0};
    for (uint64_t seq = 1; seq <= 60; seq++) {
        ebb_request **slot = &r[seq % 4];
        if (*slot != NULL) {
            s_finish(f, *slot, EBB_OK);
        }
        s_expect(f, 2, seq);
        *slot = s_push(f, 2, seq);
    }
    for (uint64_t seq = 61; seq <= 64; seq++) {
        s_finish(f, r[seq % 4], EBB_OK);
    }
    s_check(f);
}

int main(void)
{
    ebb_log_open("test");
#define CASE(name) cmocka_unit_test_setup_teardown(name, s_setup, s_teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_push_all_well),
        CASE(test_push_by_chunk_buffers),
        CASE(test_push_lost_request),
        CASE(test_push_lost_answer),
        CASE(test_push_slow_answer),
        CASE(test_push_try_later),
        CASE(test_push_damaged_answer),
        CASE(test_push_garbage_answer),
        CASE(test_push_wrong_shard_same_placement),
        CASE(test_push_wrong_shard_other_placement),
        CASE(test_push_duplicate_is_done),
        CASE(test_push_gap_is_told),
        CASE(test_push_stale_at_one_shard),
        CASE(test_push_bad_value_is_told),
        CASE(test_push_window_keeps_order_when_put_off),
        CASE(test_push_window_keeps_order_when_lost),
        CASE(test_push_window_after_stale_is_gap),
        CASE(test_push_respects_credit),
        CASE(test_push_shard_dies_and_comes_back),
        CASE(test_push_shard_rolls_back),
        CASE(test_push_shard_moves_to_another_endpoint),
        CASE(test_push_mute_shard_is_reconnected),
        CASE(test_push_table_is_bounded_and_cancel_frees),
        CASE(test_push_random_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
