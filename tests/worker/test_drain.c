// The program ebb-worker ends within 5 s of SIGTERM with status 0, whoever is dead.
#include "tests/support/check.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/client/fake.h"
#include "worker/modelspec.h"

typedef struct fixture {
    ebb_net *net;
    fake_spec spec;
    ebb_manifest *manifest;
    fake_shard shard, *list[1];
    fake_coordinator co;
    char endpoint[128];
    pid_t pid;
} fixture;

static fake_action s_slowly(void *arg, const Ebb__Envelope *env)
{
    (void)arg;
    (void)env;
    ebb_clock_sleep_ms(20);
    return FAKE_OBEY;
}

static int s_setup(void **state)
{
    static int serial;
    fixture *f = calloc(1, sizeof(*f));
    char endpoint[128], why[256];
    ebb_model_config config;
    serial++;
    fake_spec_init(&f->spec);
    f->spec.model.family = "counter";
    f->spec.model.numel = 1000;
    f->spec.data.format = "none";
    f->spec.data.train_samples = 100000;
    f->spec.job.steps = 25000;
    f->spec.job.unit_steps = 25000;
    f->spec.job.chunk_elems = 100;
    CHECK_OK(ebb_net_new(&f->net));
    CHECK_OK(ebb_modelspec_config(&f->spec.model, &config, why));
    CHECK_OK(ebb_model_manifest(&config, 100, &f->manifest, why));
    snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/ebb-test-%d-%d-d", (int)getpid(), serial);
    fake_shard_init(&f->shard, f->net, endpoint, f->manifest, 0, 0, (uint32_t)f->manifest->n_chunks, 1);
    f->shard.decide = s_slowly;
    f->list[0] = &f->shard;
    snprintf(f->endpoint, sizeof(f->endpoint), "ipc:///tmp/ebb-test-%d-%d-dc", (int)getpid(), serial);
    fake_coordinator_init(&f->co, f->net, f->endpoint, &f->spec.job, NULL, f->list, 1);
    f->co.lease[0].kind = 1;
    f->co.lease[0].seq_first = 1;
    f->co.lease[0].seq_last = 25000;
    f->co.n_leases = 1;
    f->co.hold = true;
    *state = f;
    return 0;
}

static int s_teardown(void **state)
{
    fixture *f = *state;
    if (f->pid > 0) {
        kill(f->pid, SIGKILL);
        waitpid(f->pid, NULL, 0);
    }
    fake_coordinator_stop(&f->co);
    fake_shard_fini(&f->shard);
    ebb_manifest_free(&f->manifest);
    ebb_net_free(&f->net);
    free(f);
    return 0;
}

static void s_start(fixture *f)
{
    f->pid = fork();
    assert_true(f->pid >= 0);
    if (f->pid == 0) {
        execl(EBB_WORKER_PROGRAM, "ebb-worker", "--coordinator", f->endpoint, "--name", "w", (char *)NULL);
        _exit(127);
    }
}

static void s_terminate(fixture *f)
{
    int status = 0;
    uint64_t start = ebb_clock_ms();
    assert_int_equal(kill(f->pid, SIGTERM), 0);
    pid_t got = 0;
    while (got == 0 && ebb_clock_ms() - start < 10000) {
        got = waitpid(f->pid, &status, WNOHANG);
        ebb_clock_sleep_ms(10);
    }
    uint64_t took = ebb_clock_ms() - start;
    printf("ended after %llu ms\n", (unsigned long long)took);
    assert_int_equal(got, f->pid);
    f->pid = 0;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(took < 5000);
}

static void s_wait_for_steps(fixture *f, uint64_t steps)
{
    for (int i = 0; i < 2000 && f->shard.applied[0] < steps; i++) {
        ebb_clock_sleep_ms(10);
    }
    assert_true(f->shard.applied[0] >= steps);
}

static void test_drain_before_a_coordinator_is_there(void **state)
{
    fixture *f = *state;
    s_start(f);
    ebb_clock_sleep_ms(500);
    s_terminate(f);
}

static void test_drain_with_everybody_alive(void **state)
{
    fixture *f = *state;
    fake_shard_start(&f->shard);
    fake_coordinator_start(&f->co);
    s_start(f);
    s_wait_for_steps(f, 5);
    s_terminate(f);
    assert_int_equal(f->co.returns, 1);
    assert_int_equal(f->co.returned_seq[0], f->shard.applied[0]);
    assert_string_equal(f->co.returned_reason[0], "SIGTERM");
    assert_int_equal(f->co.leaves, 1);
}

static void test_drain_with_everybody_dead(void **state)
{
    fixture *f = *state;
    f->spec.consistency.inflight_max = 3;
    fake_shard_start(&f->shard);
    fake_coordinator_start(&f->co);
    s_start(f);
    s_wait_for_steps(f, 5);
    fake_shard_stop(&f->shard);
    fake_coordinator_stop(&f->co);
    ebb_clock_sleep_ms(500);
    s_terminate(f);
}

static void test_drain_with_silent_peers(void **state)
{
    fixture *f = *state;
    fake_shard_start(&f->shard);
    fake_coordinator_start(&f->co);
    s_start(f);
    s_wait_for_steps(f, 5);
    f->shard.mute = true; // connected, and never answering again
    fake_coordinator_stop(&f->co);
    s_terminate(f);
}

static void test_drain_while_waiting_for_shards(void **state)
{
    fixture *f = *state;
    f->co.n_shards = 0; // the map is never ready
    fake_coordinator_start(&f->co);
    s_start(f);
    for (int i = 0; i < 1000 && f->co.maps == 0; i++) {
        ebb_clock_sleep_ms(10);
    }
    s_terminate(f);
    assert_int_equal(f->co.leaves, 1);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, s_setup, s_teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_drain_before_a_coordinator_is_there), CASE(test_drain_with_everybody_alive),
        CASE(test_drain_with_everybody_dead),           CASE(test_drain_with_silent_peers),
        CASE(test_drain_while_waiting_for_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
