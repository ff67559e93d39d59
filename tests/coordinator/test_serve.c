#define _GNU_SOURCE // nftw
// The real program over ipc: a job from join to the end with the coordinator killed again and again, and its exit codes.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "core/clock.h"
#include "core/rpc.h"
#include "tests/coordinator/peer.h"
#include "tests/support/scratch.h"

#define UNITS 12
#define KILLS 5

static const char s_job[] =
    "name: live\nmodel: {family: counter, numel: 100}\nshards: 2\nbatch: 1\nsteps: 60\nunit_steps: 5\nlease: 1s\nchunk_elems: 50\n";

typedef struct world {
    scratch scratch;
    char endpoint[96], dir[96], job[96];
    ebb_net *net;
    ebb_rpc *rpc;
    peer peer;
    pid_t pid;
} world;

// Starts the program; its stderr goes to DIR/err.
static pid_t s_start(world *w, const char *bind, const char *dir, const char *job)
{
    char err[128];
    snprintf(err, sizeof(err), "%s/err", w->scratch.dir);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const char *argv[8] = {EBB_COORDINATOR_PROGRAM, "--bind", bind, "--dir", dir, job ? "--job" : NULL, job, NULL};
        int fd = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(fd, 2);
        dup2(fd, 1);
        execv(argv[0], (char **)argv);
        _exit(127);
    }
    return pid;
}

// Exit code, or -signal. A program that does not end within 20 s fails the test.
static int s_wait(pid_t pid)
{
    for (uint64_t until = ebb_clock_ms() + 20000; ebb_clock_ms() < until; ebb_clock_sleep_ms(10)) {
        int status;
        if (waitpid(pid, &status, WNOHANG) == pid) {
            return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        }
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    fail_msg("the coordinator did not end");
    return 0;
}

static void s_ask(void *arg, Ebb__Envelope *env, const ebb_part *part, ebb_msg *reply)
{
    world *w = arg;
    CHECK_OK(ebb_rpc_call(w->rpc, env, part, part != NULL, 15000, 100, NULL, reply));
}

static void s_init(world *w)
{
    memset(w, 0, sizeof(*w));
    scratch_init(&w->scratch);
    snprintf(w->endpoint, sizeof(w->endpoint), "ipc://%s/c", w->scratch.dir);
    snprintf(w->dir, sizeof(w->dir), "%s/store", w->scratch.dir);
    snprintf(w->job, sizeof(w->job), "%s", scratch_text(&w->scratch, "job.yaml", s_job));
    CHECK_OK(ebb_net_new(&w->net));
    CHECK_OK(ebb_rpc_new(w->net, w->endpoint, &w->rpc));
    w->peer = (peer){s_ask, w, 0};
}

static void s_fini(world *w)
{
    ebb_rpc_free(&w->rpc);
    ebb_net_free(&w->net);
    scratch_fini(&w->scratch);
}

static void s_kill(world *w)
{
    kill(w->pid, SIGKILL);
    assert_int_equal(s_wait(w->pid), -SIGKILL);
    w->pid = s_start(w, w->endpoint, w->dir, NULL);
}

static void test_serve_survives_kills(void **state)
{
    (void)state;
    world w;
    s_init(&w);
    peer *p = &w.peer;
    uint64_t seed = ebb_test_seed(), draws = 0;
    w.pid = s_start(&w, w.endpoint, w.dir, w.job);
    CHECK_OK(peer_join(p, "w0", 1, 11));
    ebb_manifest *m = peer_model(100, 50);
    CHECK_OK(peer_manifest(p, m));
    peer_shard shard[2] = {{.number = 0, .incarnation = 100}, {.number = 1, .incarnation = 101}};
    Ebb__LeaseReply a = {0};
    uint64_t counted = 0, beat = 0;
    int kills = 0;
    bool drain;
    for (uint64_t until = ebb_clock_ms() + 60000; ebb_clock_ms() < until && a.kind != EBB__LEASE_KIND__LEASE_FINISHED;) {
        if (kills < KILLS && ebb_rng_at(seed, 1, draws++) % 3 != 0) {
            s_kill(&w);
            kills++;
        }
        for (int i = 0; i < 2; i++) {
            CHECK_OK(peer_report(p, &shard[i]));
        }
        peer_beat(p, "w0", 1, ++beat, a.kind == EBB__LEASE_KIND__LEASE_TRAIN ? a.lease : 0, &drain);
        assert_false(drain);
        a = peer_lease(p, "w0", 1);
        if (a.kind != EBB__LEASE_KIND__LEASE_TRAIN) {
            ebb_clock_sleep_ms(10);
            continue;
        }
        assert_true(a.stream < UNITS && a.seq_last == 5);
        for (uint64_t seq = a.seq_first; seq <= a.seq_last; seq++) {
            for (int i = 0; i < 2; i++) {
                if (shard[i].applied[a.stream] + 1 == seq) {
                    shard[i].applied[a.stream] = shard[i].durable[a.stream] = seq;
                    counted++;
                }
            }
        }
        peer_return(p, "w0", 1, a.lease, a.seq_last);
    }
    assert_int_equal(a.kind, EBB__LEASE_KIND__LEASE_FINISHED);
    assert_int_equal(counted, 2 * 60);
    printf("%d kills\n", kills);
    ebb_msg r;
    peer_status(p, &r);
    assert_string_equal(r.env->status_reply->state, "SUCCEEDED");
    assert_true(r.env->status_reply->steps_retired == 60 && r.env->status_reply->units_retired == UNITS);
    ebb_msg_fini(&r);
    Ebb__JobRequest q = EBB__JOB_REQUEST__INIT;
    PEER_BODY(JOB_REQUEST, job_request, &q);
    s_ask(&w, &env, NULL, &r);
    assert_true(r.env->job_reply->manifest_hash == ebb_manifest_hash(m) && r.n_parts == 1 && r.env->job_reply->job == p->job);
    ebb_msg_fini(&r);
    // The end: the worker leaves, the shards get their order and go, then the coordinator goes.
    peer_drain(p, true);
    peer_leave(p, "w0", 1);
    for (uint64_t until = ebb_clock_ms() + 8000; ebb_clock_ms() < until && !shard[0].shutdown;) {
        CHECK_OK(peer_report(p, &shard[0]));
        ebb_clock_sleep_ms(20);
    }
    assert_true(shard[0].shutdown);
    assert_int_equal(s_wait(w.pid), 0);
    ebb_manifest_free(&m);
    s_fini(&w);
}

// SIGTERM: ends at once with 0, and everything is there afterwards.
static void test_serve_stops_on_sigterm(void **state)
{
    (void)state;
    world w;
    s_init(&w);
    w.pid = s_start(&w, w.endpoint, w.dir, w.job);
    CHECK_OK(peer_join(&w.peer, "w0", 1, 11));
    uint64_t job = w.peer.job, began = ebb_clock_ms();
    kill(w.pid, SIGTERM);
    assert_int_equal(s_wait(w.pid), 0);
    assert_true(ebb_clock_ms() - began < 5000);
    w.pid = s_start(&w, w.endpoint, w.dir, w.job); // the same job file: resumes
    CHECK_OK(peer_join(&w.peer, "w0", 2, 12));
    assert_true(w.peer.job == job);
    kill(w.pid, SIGTERM);
    assert_int_equal(s_wait(w.pid), 0);
    s_fini(&w);
}

// Garbage on the socket is dropped; the program goes on.
static void test_serve_drops_garbage(void **state)
{
    (void)state;
    world w;
    s_init(&w);
    uint64_t seed = ebb_test_seed();
    w.pid = s_start(&w, w.endpoint, w.dir, w.job);
    CHECK_OK(peer_join(&w.peer, "w0", 1, 11));
    ebb_socket *dealer = NULL;
    CHECK_OK(ebb_dealer_open(w.net, w.endpoint, &dealer));
    for (uint64_t i = 0; i < 500; i++) {
        ebb_frames frames;
        ebb_frames_init(&frames);
        for (uint64_t f = 0; f <= ebb_rng_at(seed, i, 0) % 4; f++) {
            uint8_t bytes[300];
            for (size_t k = 0; k < sizeof(bytes); k++) {
                bytes[k] = (uint8_t)ebb_rng_at(seed, i, 10 + f * 1000 + k);
            }
            ebb_buf *buf = NULL;
            CHECK_OK(ebb_buf_dup(bytes, ebb_rng_at(seed, i, 1 + f) % sizeof(bytes), &buf));
            CHECK_OK(ebb_frames_add_take(&frames, &buf));
        }
        for (int tries = 0; ebb_socket_send(dealer, NULL, &frames) == EBB_AGAIN && tries < 1000; tries++) {
            ebb_clock_sleep_ms(2);
        }
        ebb_frames_fini(&frames);
    }
    CHECK_OK(peer_join(&w.peer, "w1", 2, 12));
    ebb_socket_close(&dealer);
    kill(w.pid, SIGTERM);
    assert_int_equal(s_wait(w.pid), 0);
    s_fini(&w);
}

static void s_ends_with(world *w, int code, const char *bind, const char *dir, const char *job, const char *says)
{
    assert_int_equal(s_wait(s_start(w, bind, dir, job)), code);
    char text[4096];
    FILE *f = fopen(scratch_path(&w->scratch, "err"), "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    if (strstr(text, says) == NULL) {
        fail_msg("stderr does not say \"%s\": %s", says, text);
    }
}

static void test_serve_exit_codes(void **state)
{
    (void)state;
    world w;
    s_init(&w);
    char other[128], bad[128];
    snprintf(bad, sizeof(bad), "%s", scratch_text(&w.scratch, "bad.yaml", "name: x\nmodle: {family: counter}\nsteps: 1\n"));
    s_ends_with(&w, 65, w.endpoint, w.dir, bad, "bad.yaml:2: unknown key \"modle\" (did you mean \"model\"?)");
    s_ends_with(&w, 66, w.endpoint, w.dir, "/nowhere/job.yaml", "/nowhere/job.yaml");
    s_ends_with(&w, 66, w.endpoint, w.dir, NULL, "no job to resume");
    s_ends_with(&w, 73, w.endpoint, "/proc/ebbtide", w.job, "/proc/ebbtide");
    w.pid = s_start(&w, w.endpoint, w.dir, w.job);
    CHECK_OK(peer_join(&w.peer, "w0", 1, 11));
    s_ends_with(&w, 69, w.endpoint, w.dir, w.job, w.dir); // the folder is in use
    snprintf(other, sizeof(other), "%s/other", w.scratch.dir);
    kill(w.pid, SIGTERM);
    assert_int_equal(s_wait(w.pid), 0);
    snprintf(bad, sizeof(bad), "%s", scratch_text(&w.scratch, "second.yaml", "name: second\nmodel: {family: counter}\nsteps: 1\n"));
    s_ends_with(&w, 65, w.endpoint, w.dir, bad, "another job");
    s_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serve_survives_kills),
        cmocka_unit_test(test_serve_stops_on_sigterm),
        cmocka_unit_test(test_serve_drops_garbage),
        cmocka_unit_test(test_serve_exit_codes),
    };
    return cmocka_run_group_tests_name("coordinator.serve", tests, NULL, NULL);
}
