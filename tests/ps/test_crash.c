// The real program, killed with SIGKILL at random moments while a client pushes: no acknowledged push is lost, none is applied twice, and the bits are
// those of a run without a crash.
#include "tests/ps/fixture.h"

#include <signal.h>
#include <sys/wait.h>

#include "core/process.h"
#include "core/rpc.h"
#include "ps/job.h"
#include "tests/ps/fake_coordinator.h"

typedef struct crash {
    fixture f;
    ebb_net *net;
    char dir[64];
    char bind[96];
    fake_coordinator c;
    ebb_rpc *rpc;
    pid_t pid;
    pthread_t killer;
    pthread_mutex_t lock;
    _Atomic int stop, kills;
    uint64_t seed;
} crash;

static void s_spawn(crash *x)
{
    char store[96];
    snprintf(store, sizeof(store), "%s/shard-0", x->dir);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        ebb_process_die_with_parent(SIGKILL);
        execl(EBB_SHARD_PROGRAM, "ebb-shard", "--coordinator", x->c.endpoint, "--bind", x->bind, "--dir", store, "--shard", "0", "--log",
              getenv("EBB_TEST_LOG") != NULL ? getenv("EBB_TEST_LOG") : "/dev/null", (char *)NULL);
        _exit(127);
    }
    x->pid = pid;
}

static void *s_kill(void *arg)
{
    crash *x = arg;
    for (uint64_t i = 0; !x->stop; i++) {
        uint64_t until = ebb_clock_ms() + 100 + ebb_rng_at(x->seed, 1000, i) % 500;
        while (!x->stop && ebb_clock_ms() < until) {
            ebb_clock_sleep_ms(5);
        }
        if (x->stop) {
            break;
        }
        pthread_mutex_lock(&x->lock);
        kill(x->pid, SIGKILL);
        waitpid(x->pid, NULL, 0);
        x->kills++;
        s_spawn(x);
        pthread_mutex_unlock(&x->lock);
    }
    return NULL;
}

static void s_request(const crash *x, Ebb__PushRequest *req, uint64_t seq)
{
    ebb__push_request__init(req);
    req->job = x->f.install.job;
    req->epoch = x->f.install.epoch;
    req->stream = 1;
    req->seq = seq;
    req->base_version = seq - 1;
    req->worker = (char *)"w0";
}

// Sends until it is answered. Returns the watermark that the answer shows.
static uint64_t s_push(crash *x, uint64_t seq)
{
    Ebb__PushRequest req;
    s_request(x, &req, seq);
    ebb_part *parts = fixture_parts(&x->f, x->seed, 1, seq);
    uint64_t give_up = ebb_clock_ms() + 60000, applied = UINT64_MAX;
    while (applied == UINT64_MAX) {
        assert_true(ebb_clock_ms() < give_up);
        Ebb__Envelope env = EBB__ENVELOPE__INIT;
        ebb_msg reply;
        env.body_case = EBB__ENVELOPE__BODY_PUSH_REQUEST;
        env.push_request = &req;
        if (ebb_rpc_call(x->rpc, &env, parts, x->f.install.chunk_count, 300, 100, NULL, &reply) != EBB_OK) {
            ebb_rpc_free(&x->rpc); // a new connection does not wait out the old one's reconnect pause
            CHECK_OK(ebb_rpc_new(x->net, x->bind, &x->rpc));
            continue;
        }
        if (reply.env->status == EBB_OK) {
            Ebb__Verdict v = reply.env->push_reply->verdict;
            // STALE: at durability snapshot the shard went back behind the base of this gradient; so did its watermark.
            assert_true(v == EBB__VERDICT__VERDICT_APPLIED || v == EBB__VERDICT__VERDICT_DUPLICATE || v == EBB__VERDICT__VERDICT_GAP);
            applied = reply.env->push_reply->applied;
        } else {
            assert_true(reply.env->status == EBB_WRONGSHARD || reply.env->status == EBB_TRYLATER); // not installed yet
            ebb_clock_sleep_ms(5);
        }
        ebb_msg_fini(&reply);
    }
    fixture_parts_free(&x->f, parts);
    return applied;
}

static void s_check(crash *x, uint64_t n)
{
    char why[256];
    ebb_job *twin = NULL;
    CHECK_OK(ebb_job_new(&x->f.install, x->f.packed, x->f.packed_len, &twin, why));
    for (uint64_t i = 1; i <= n; i++) {
        Ebb__PushRequest req;
        ebb_push p;
        s_request(x, &req, i);
        ebb_part *parts = fixture_parts(&x->f, x->seed, 1, i);
        CHECK_OK(ebb_job_judge(twin, &req, parts, x->f.install.chunk_count, &p));
        const ebb_push *list[1] = {&p};
        CHECK_OK(ebb_job_apply(twin, list, 1));
        ebb_push_fini(&p);
        fixture_parts_free(&x->f, parts);
    }
    for (uint32_t slot = 0; slot <= 2; slot++) {
        Ebb__Envelope env = EBB__ENVELOPE__INIT;
        Ebb__PullRequest req = EBB__PULL_REQUEST__INIT;
        ebb_msg reply;
        env.body_case = EBB__ENVELOPE__BODY_PULL_REQUEST;
        env.pull_request = &req;
        req.job = x->f.install.job;
        req.epoch = x->f.install.epoch;
        req.have_nothing = true;
        req.slot = slot;
        CHECK_OK(ebb_rpc_call(x->rpc, &env, NULL, 0, 20000, 200, NULL, &reply));
        assert_int_equal(reply.env->status, EBB_OK);
        assert_int_equal(reply.env->pull_reply->version, n);
        assert_int_equal(reply.n_parts, twin->chunk_count);
        for (size_t i = 0; i < reply.n_parts; i++) {
            const ebb_buf *want = twin->chunks[reply.parts[i].chunk - twin->first_chunk].buf[slot];
            assert_memory_equal(reply.parts[i].buf->data, want->data, want->len);
        }
        ebb_msg_fini(&reply);
    }
    ebb_job_free(&twin);
}

static void s_run(const char *durability, uint64_t pushes, int kills)
{
    crash x;
    memset(&x, 0, sizeof(x));
    x.seed = ebb_test_seed();
    fixture_init(&x.f, "adamw", durability);
    x.f.spec.snapshot_ms = 30;
    strcpy(x.dir, "/tmp/ebb-ps-XXXXXX");
    assert_non_null(mkdtemp(x.dir));
    snprintf(x.bind, sizeof(x.bind), "ipc://%s/shard.sock", x.dir);
    CHECK_OK(ebb_net_new(&x.net));
    pthread_mutex_init(&x.lock, NULL);
    fake_coordinator_start(&x.c, x.net, &x.f, x.dir);
    s_spawn(&x);
    CHECK_OK(ebb_rpc_new(x.net, x.bind, &x.rpc));
    assert_int_equal(pthread_create(&x.killer, NULL, s_kill, &x), 0);
    bool may_lose = strcmp(durability, "snapshot") == 0;
    uint64_t acked = 0;
    while (acked < pushes || x.kills < kills) {
        uint64_t applied = s_push(&x, acked + 1);
        // Without loss the answer shows this push; with it, the watermark may have gone back, and the lost steps are pushed again.
        assert_true(may_lose ? applied <= acked + 1 : applied == acked + 1);
        acked = applied;
        ebb_clock_sleep_ms(2); // some thousand pushes, not some ten thousand: the twin has to do them all
    }
    x.stop = 1;
    pthread_join(x.killer, NULL);
    // The kernel takes "die with the parent" for the parent's thread: what the killer's thread started ends with it. Start the last one here.
    kill(x.pid, SIGKILL);
    waitpid(x.pid, NULL, 0);
    s_spawn(&x);
    uint64_t applied;
    while ((applied = s_push(&x, acked + 1)) != acked + 1) { // the last kill may have taken steps back
        acked = applied;
    }
    s_check(&x, acked + 1);
    printf("durability=%s pushes=%llu kills=%d\n", durability, (unsigned long long)acked + 1, (int)x.kills);
    kill(x.pid, SIGTERM);
    int status = 0;
    waitpid(x.pid, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    ebb_rpc_free(&x.rpc);
    fake_coordinator_stop(&x.c);
    ebb_net_free(&x.net);
    pthread_mutex_destroy(&x.lock);
    fixture_remove(x.dir);
    fixture_fini(&x.f);
}

static void test_crash_kill9_loses_nothing(void **state)
{
    (void)state;
    s_run("journal", 300, 12);
    s_run("fsync", 200, 8);
}

static void test_crash_kill9_at_durability_snapshot(void **state)
{
    (void)state;
    s_run("snapshot", 200, 8);
}

int main(void)
{
    ebb_log_set_sink(fixture_no_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crash_kill9_loses_nothing),
        cmocka_unit_test(test_crash_kill9_at_durability_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
