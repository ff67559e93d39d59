// The control calls against a coordinator that is there, away, or coming back.
#include "tests/support/check.h"

#include <string.h>
#include <unistd.h>

#include "client/ebb.h"
#include "core/clock.h"
#include "tests/client/fake.h"

typedef struct fixture {
    ebb_net *net;
    ebb_manifest *manifest;
    fake_shard shard[3], *list[3];
    fake_coordinator co;
    fake_spec spec;
    ebb_session *session;
    ebb_control *control;
    _Atomic int cancel;
} fixture;

static fixture *s_setup(const ebb_manifest *registered_already, const char *worker)
{
    static int serial;
    fixture *f = calloc(1, sizeof(*f));
    char endpoint[128];
    CHECK_OK(ebb_net_new(&f->net));
    f->manifest = fake_manifest(32);
    fake_spec_init(&f->spec);
    uint32_t chunks = (uint32_t)f->manifest->n_chunks, first = 0;
    serial++;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t count = i == 2 ? chunks - first : chunks / 3;
        snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/ebb-test-%d-%d-s%u", (int)getpid(), serial, i);
        fake_shard_init(&f->shard[i], f->net, endpoint, f->manifest, i, first, count, 1);
        f->list[i] = &f->shard[i];
        fake_shard_start(&f->shard[i]);
        first += count;
    }
    snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/ebb-test-%d-%d-c", (int)getpid(), serial);
    fake_coordinator_init(&f->co, f->net, endpoint, &f->spec.job, registered_already != NULL ? f->manifest : NULL, f->list, 3);
    fake_coordinator_start(&f->co);
    ebb_session_options o = {.coordinator = endpoint, .worker = worker, .net = f->net, .cancel = &f->cancel};
    CHECK_OK(ebb_session_new(&o, &f->session));
    CHECK_OK(ebb_control_new(f->session, &f->control));
    return f;
}

static void s_teardown(fixture *f)
{
    ebb_control_free(&f->control);
    ebb_session_free(&f->session);
    fake_coordinator_stop(&f->co);
    for (int i = 0; i < 3; i++) {
        fake_shard_fini(&f->shard[i]);
    }
    ebb_manifest_free(&f->manifest);
    ebb_net_free(&f->net);
    free(f);
}

static void test_session_joins_and_leaves(void **state)
{
    (void)state;
    fixture *f = s_setup(NULL, "w");
    f->co.lease[0].kind = EBB_LEASE_TRAIN;
    f->co.lease[0].stream = 9;
    f->co.lease[0].seq_first = 3;
    f->co.lease[0].seq_last = 8;
    f->co.n_leases = 1;
    uint64_t hash = 0;
    CHECK_OK(ebb_join(f->control, 5000));
    assert_int_equal(ebb_session_job(f->session), 77);
    assert_string_equal(ebb_session_spec(f->session)->name, "fake");
    assert_int_equal(ebb_session_manifest_hash(f->session), 0);
    CHECK_OK(ebb_manifest_register(f->control, f->manifest, &hash, 5000));
    assert_true(hash == ebb_manifest_hash(f->manifest));
    ebb_manifest *other = fake_manifest(64);
    CHECK_ERR(ebb_manifest_register(f->control, other, &hash, 5000), EBB_EXISTS);
    assert_true(hash == ebb_manifest_hash(f->manifest));
    ebb_manifest_free(&other);
    CHECK_OK(ebb_connect(f->control, f->manifest, 5000));
    assert_int_equal(ebb_session_shards(f->session), 3);
    CHECK_ERR(ebb_connect(f->control, f->manifest, 5000), EBB_INVAL);

    ebb_lease lease;
    CHECK_OK(ebb_lease_request(f->control, &lease, 5000));
    assert_int_equal(lease.kind, EBB_LEASE_TRAIN);
    assert_int_equal(lease.stream, 9);
    assert_int_equal(lease.seq_last, 8);
    Ebb__HeartbeatRequest beat = EBB__HEARTBEAT_REQUEST__INIT;
    ebb_orders orders;
    uint64_t held = lease.id;
    beat.n_leases = 1;
    beat.leases = &held;
    CHECK_OK(ebb_heartbeat(f->control, &beat, &orders, 5000));
    assert_false(orders.drain);
    assert_int_equal(orders.n_lost, 0);
    f->co.lose_lease = lease.id;
    f->co.drain = true;
    CHECK_OK(ebb_heartbeat(f->control, &beat, &orders, 5000));
    assert_true(orders.drain);
    assert_int_equal(orders.n_lost, 1);
    assert_int_equal(orders.lost[0], lease.id);
    CHECK_OK(ebb_lease_return(f->control, lease.id, 4, "test", 5000));
    assert_int_equal(f->co.returns, 1);
    assert_int_equal(f->co.returned_seq[0], 4);
    bool skip = true;
    CHECK_OK(ebb_skip(f->control, lease.id, 9, 5, "nan", &skip, 5000));
    assert_false(skip);
    CHECK_OK(ebb_eval_report(f->control, lease.id, 1, 0.5, 0.25, 10, 3, 5000));
    CHECK_OK(ebb_leave(f->control, "done", 5000));
    CHECK_OK(ebb_join(f->control, 5000)); // again: the same seat, on a running session
    assert_int_equal(f->co.joins, 2);
    s_teardown(f);
}

static void test_session_reads_without_joining(void **state)
{
    (void)state;
    fixture *f = s_setup((const ebb_manifest *)1, NULL);
    CHECK_ERR(ebb_join(f->control, 1000), EBB_INVAL);
    CHECK_OK(ebb_attach(f->control, 5000));
    const ebb_manifest *m = ebb_session_manifest(f->session);
    assert_non_null(m);
    assert_true(ebb_manifest_hash(m) == ebb_manifest_hash(f->manifest));
    CHECK_OK(ebb_connect(f->control, NULL, 5000));
    ebb_request *r = NULL;
    CHECK_OK(ebb_pin(f->session, 42, 1000, &r));
    CHECK_OK(ebb_request_wait(r, 5000));
    ebb_request_free(&r);
    float *params = malloc(m->numel * sizeof(float));
    ebb_pull_options o = {.pin = 42};
    CHECK_OK(ebb_pull(f->session, &o, &r));
    CHECK_OK(ebb_request_wait(r, 5000));
    assert_int_equal(ebb_request_copy(r, params), m->numel);
    for (uint32_t c = 0; c < m->n_chunks; c++) {
        float want[32];
        ebb_manifest_init_chunk(m, 1, c, want);
        assert_memory_equal(params + m->chunks[c].offset, want, m->chunks[c].numel * sizeof(float));
    }
    ebb_request_free(&r);
    o = (ebb_pull_options){.pin = 42, .slot = 1};
    CHECK_OK(ebb_pull(f->session, &o, &r));
    CHECK_OK(ebb_request_wait(r, 5000));
    ebb_request_free(&r);
    CHECK_OK(ebb_unpin(f->session, 42, &r));
    CHECK_OK(ebb_request_wait(r, 5000));
    ebb_request_free(&r);
    o = (ebb_pull_options){.pin = 42};
    CHECK_OK(ebb_pull(f->session, &o, &r));
    CHECK_ERR(ebb_request_wait(r, 5000), EBB_NOENT);
    assert_non_null(strstr(ebb_request_result(r)->why, "no such pin"));
    ebb_request_free(&r);
    assert_int_equal(f->co.joins, 0);
    free(params);
    s_teardown(f);
}

static void test_session_attach_before_any_worker(void **state)
{
    (void)state;
    fixture *f = s_setup(NULL, NULL);
    CHECK_OK(ebb_attach(f->control, 5000));
    assert_null(ebb_session_manifest(f->session));
    CHECK_ERR(ebb_connect(f->control, NULL, 1000), EBB_INVAL);
    assert_non_null(strstr(ebb_control_why(f->control), "no manifest"));
    s_teardown(f);
}

static void *s_cancel_soon(void *arg)
{
    ebb_clock_sleep_ms(200);
    *(_Atomic int *)arg = 1;
    return NULL;
}

static void test_session_waits_for_a_coordinator_that_is_away(void **state)
{
    (void)state;
    fixture *f = s_setup(NULL, "w");
    fake_coordinator_stop(&f->co);
    uint64_t start = ebb_clock_ms();
    CHECK_ERR(ebb_join(f->control, 300), EBB_TIMEDOUT);
    assert_in_range(ebb_clock_ms() - start, 250, 1500);

    pthread_t t; // "for ever" ends soon after the cancel flag
    start = ebb_clock_ms();
    assert_int_equal(pthread_create(&t, NULL, s_cancel_soon, &f->cancel), 0);
    CHECK_ERR(ebb_join(f->control, 0), EBB_CLOSED);
    assert_in_range(ebb_clock_ms() - start, 150, 1000);
    pthread_join(t, NULL);
    f->cancel = 0;

    fake_coordinator_start(&f->co);
    CHECK_OK(ebb_join(f->control, 20000));
    // No manifest: the shard map is not ready, which is not an answer to stop at.
    start = ebb_clock_ms();
    CHECK_ERR(ebb_connect(f->control, f->manifest, 300), EBB_TRYLATER);
    assert_in_range(ebb_clock_ms() - start, 250, 1500);
    s_teardown(f);
}

static void test_session_bad_arguments(void **state)
{
    (void)state;
    ebb_session *s = NULL;
    ebb_session_options o = {.coordinator = ""};
    CHECK_ERR(ebb_session_new(&o, &s), EBB_INVAL);
    o = (ebb_session_options){.coordinator = "ipc:///tmp/ebb-none", .worker = ""};
    CHECK_ERR(ebb_session_new(&o, &s), EBB_INVAL);
    o.worker = "w";
    CHECK_OK(ebb_session_new(&o, &s));
    ebb_request *r = NULL;
    ebb_pull_options pull = {0};
    CHECK_ERR(ebb_pull(s, &pull, &r), EBB_INVAL); // not connected
    ebb_view *v = NULL;
    CHECK_ERR(ebb_view_new(s, &v), EBB_INVAL);
    ebb_session_free(&s);
    ebb_session_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session_joins_and_leaves),
        cmocka_unit_test(test_session_reads_without_joining),
        cmocka_unit_test(test_session_attach_before_any_worker),
        cmocka_unit_test(test_session_waits_for_a_coordinator_that_is_away),
        cmocka_unit_test(test_session_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
