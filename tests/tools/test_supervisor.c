// ebb_restart_decide as a table, and the supervisor with real children: small shell scripts in the place of the programs. Time is handed in, so that
// back-off costs the test nothing.
#define _GNU_SOURCE // nftw
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "core/clock.h"
#include "core/process.h"
#include "tests/support/scratch.h"
#include "tools/ebb/supervisor.h"

typedef struct fixture {
    scratch s;
    ebb_rundir dir;
    ebb_supervisor *sup;
} fixture;

static void script(fixture *f, const char *name, const char *body)
{
    char text[512];
    snprintf(text, sizeof(text), "#!/bin/sh\n%s\n", body);
    scratch_text(&f->s, name, text);
    assert_int_equal(chmod(scratch_path(&f->s, name), 0755), 0);
}

static void begin(fixture *f, const char *coordinator, const char *shard, const char *worker)
{
    char why[512] = "", run[128];
    scratch_init(&f->s);
    script(f, "ebb-coordinator", coordinator);
    script(f, "ebb-shard", shard);
    script(f, "ebb-worker", worker);
    setenv("EBB_BIN_DIR", f->s.dir, 1);
    snprintf(run, sizeof(run), "%s/run", f->s.dir);
    ebb_rundir_name(&f->dir, run);
    CHECK_OK(ebb_rundir_create(&f->dir, why));
    f->sup = malloc(sizeof(*f->sup));
    assert_non_null(f->sup);
    CHECK_OK(ebb_supervisor_init(f->sup, &f->dir, NULL, why));
}

static void end(fixture *f)
{
    ebb_supervisor_end(f->sup, 0);
    free(f->sup);
    unsetenv("EBB_BIN_DIR");
    scratch_fini(&f->s);
}

// Waits for one death; now_ms is what the supervisor is told.
static ebb_death reap(fixture *f, uint64_t now_ms, bool ending)
{
    ebb_death d;
    uint64_t until = ebb_clock_ms() + 20000;
    while (!ebb_supervisor_reap(f->sup, now_ms, ending, &d)) {
        assert_true(ebb_clock_ms() < until);
        ebb_clock_sleep_ms(2);
    }
    return d;
}

static void wait_for(fixture *f, const char *leaf, const char *word)
{
    uint64_t until = ebb_clock_ms() + 20000;
    for (;;) {
        char *text = ebb_rundir_read(&f->dir, leaf, NULL);
        bool found = text != NULL && strstr(text, word) != NULL;
        free(text);
        if (found) {
            return;
        }
        if (ebb_clock_ms() >= until) {
            fail_msg("%s never said \"%s\"", leaf, word);
        }
        ebb_clock_sleep_ms(5);
    }
}

// ---- the decision ----

static void test_supervisor_decide_final_codes(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        uint32_t quick = 0;
        uint64_t delay = 1;
        bool final = code == 64 || code == 65 || code == 66 || code == 73 || code == 77;
        assert_int_equal(ebb_restart_decide(code, 5000, false, &quick, &delay), final ? EBB_RESTART_GIVE_UP : EBB_RESTART_AGAIN);
        assert_int_equal(delay, 0); // the first restart is at once
    }
}

static void test_supervisor_decide_ending_restarts_nothing(void **state)
{
    (void)state;
    static const int codes[] = {0, 1, 65, 75, -SIGKILL, -SIGSEGV};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        uint32_t quick = 19;
        uint64_t delay = 1;
        assert_int_equal(ebb_restart_decide(codes[i], 1, true, &quick, &delay), EBB_RESTART_DONE);
        assert_int_equal(delay, 0);
    }
}

static void test_supervisor_decide_backs_off_then_gives_up(void **state)
{
    (void)state;
    uint32_t quick = 0;
    uint64_t delay = 0, before = 0;
    for (int n = 1; n < EBB_QUICK_DEATHS; n++) {
        assert_int_equal(ebb_restart_decide(1, 999, false, &quick, &delay), EBB_RESTART_AGAIN);
        assert_true(delay >= before && delay <= 1000 && (n > 1 || delay == 0));
        before = delay;
    }
    assert_int_equal(delay, 1000);
    assert_int_equal(ebb_restart_decide(1, 999, false, &quick, &delay), EBB_RESTART_GIVE_UP);
}

static void test_supervisor_decide_long_life_forgives(void **state)
{
    (void)state;
    uint32_t quick = 0;
    uint64_t delay = 0;
    for (int round = 0; round < 100; round++) {
        for (int n = 1; n < EBB_QUICK_DEATHS; n++) {
            assert_int_equal(ebb_restart_decide(-SIGSEGV, 10, false, &quick, &delay), EBB_RESTART_AGAIN);
        }
        assert_int_equal(ebb_restart_decide(-SIGSEGV, EBB_QUICK_MS, false, &quick, &delay), EBB_RESTART_AGAIN);
        assert_int_equal(quick, 0);
        assert_int_equal(delay, 0);
    }
}

// A series of kill -9, however long and quick, never ends a run.
static void test_supervisor_decide_survives_any_kills(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    uint32_t quick = 0;
    uint64_t delay = 0;
    for (uint64_t n = 0; n < 100000; n++) {
        assert_int_equal(ebb_restart_decide(-SIGKILL, ebb_rng_at(seed, 0, n) % 1500, false, &quick, &delay), EBB_RESTART_AGAIN);
        assert_true(delay <= 200);
    }
    assert_int_equal(ebb_restart_decide(1, 10, false, &quick, &delay), EBB_RESTART_AGAIN); // nor does the one death after it
}

// ---- real children ----

static void test_supervisor_restarts_under_the_same_name(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "exec sleep 60", "exec sleep 60", "echo \"$@\"; exec sleep 60");
    ebb_supervisor_add(f.sup, EBB_CHILD_COORDINATOR, 0);
    ebb_supervisor_add(f.sup, EBB_CHILD_SHARD, 7);
    ebb_supervisor_add(f.sup, EBB_CHILD_WORKER, 3);
    CHECK_OK(ebb_supervisor_start_due(f.sup, 1000));
    assert_int_equal(ebb_supervisor_alive(f.sup, -1), 3);
    assert_int_equal(ebb_supervisor_alive(f.sup, EBB_CHILD_SHARD), 1);
    wait_for(&f, "logs/worker-3.log", "--name worker-3"); // its arguments, and its output is in its log

    pid_t first = f.sup->child[2].pid;
    assert_int_equal(getpgid(first), first); // the terminal's Ctrl-C doesn't reach it
    assert_int_equal(kill(first, SIGKILL), 0);
    ebb_death d = reap(&f, 9000, false);
    assert_ptr_equal(d.child, &f.sup->child[2]);
    assert_int_equal(d.pid, first);
    assert_int_equal(d.exit_code, -SIGKILL);
    assert_int_equal(d.verdict, EBB_RESTART_AGAIN);
    assert_int_equal(d.lived_ms, 8000);
    CHECK_OK(ebb_supervisor_start_due(f.sup, 9000));
    assert_int_equal(ebb_supervisor_alive(f.sup, -1), 3);
    assert_string_equal(f.sup->child[2].name, "worker-3");
    assert_int_equal(f.sup->child[2].restarts, 1);
    assert_int_not_equal(f.sup->child[2].pid, first);

    char *text = ebb_rundir_read(&f.dir, "pids/worker-3.pid", NULL);
    assert_non_null(text);
    assert_int_equal(atoi(text), f.sup->child[2].pid);
    free(text);
    end(&f);
}

static void test_supervisor_gives_up_on_bad_config(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "exit 0", "exit 65", "exit 0");
    ebb_supervisor_add(f.sup, EBB_CHILD_SHARD, 0);
    CHECK_OK(ebb_supervisor_start_due(f.sup, 0));
    ebb_death d = reap(&f, 100000, false);
    assert_int_equal(d.exit_code, 65);
    assert_int_equal(d.verdict, EBB_RESTART_GIVE_UP);
    CHECK_OK(ebb_supervisor_start_due(f.sup, 200000));
    assert_int_equal(ebb_supervisor_alive(f.sup, -1), 0);
    end(&f);
}

static void test_supervisor_gives_up_on_a_crash_loop(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "exit 0", "exit 0", "exit 1");
    ebb_supervisor_add(f.sup, EBB_CHILD_WORKER, 0);
    uint64_t now = 0;
    int starts = 0;
    ebb_death d = {.verdict = EBB_RESTART_AGAIN};
    while (d.verdict == EBB_RESTART_AGAIN && starts < 100) {
        now = f.sup->child[0].restart_at_ms;
        if (now > 0) {
            CHECK_OK(ebb_supervisor_start_due(f.sup, now - 1)); // not before its time
            assert_int_equal(ebb_supervisor_alive(f.sup, -1), now - 1 >= f.sup->child[0].restart_at_ms ? 1 : 0);
        }
        CHECK_OK(ebb_supervisor_start_due(f.sup, now));
        assert_int_equal(ebb_supervisor_alive(f.sup, -1), 1);
        starts++;
        d = reap(&f, now + 1, false);
    }
    assert_int_equal(d.verdict, EBB_RESTART_GIVE_UP);
    assert_int_equal(starts, EBB_QUICK_DEATHS);
    end(&f);
}

// A child that ignores SIGTERM, and one that is stopped, still end after the grace.
static void test_supervisor_end_is_certain(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "trap '' TERM; echo up; while :; do sleep 1; done", "echo up; exec sleep 60", "echo up; exec sleep 60");
    ebb_supervisor_add(f.sup, EBB_CHILD_COORDINATOR, 0);
    ebb_supervisor_add(f.sup, EBB_CHILD_SHARD, 0);
    ebb_supervisor_add(f.sup, EBB_CHILD_WORKER, 0);
    CHECK_OK(ebb_supervisor_start_due(f.sup, 0));
    wait_for(&f, "logs/coordinator.log", "up");
    wait_for(&f, "logs/shard-0.log", "up");
    assert_int_equal(kill(f.sup->child[1].pid, SIGSTOP), 0);
    uint64_t began = ebb_clock_ms();
    ebb_supervisor_end(f.sup, 200);
    assert_true(ebb_clock_ms() - began < 10000);
    assert_int_equal(ebb_supervisor_alive(f.sup, -1), 0);
    end(&f);
}

// kill -9 of the supervisor takes its children along. They hold the writing end of a pipe; its end of file says they are gone.
static void test_supervisor_children_die_with_it(void **state)
{
    (void)state;
    fixture f;
    int pipe_fd[2];
    begin(&f, "exec sleep 60", "exec sleep 60", "exec sleep 60");
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t middle = fork();
    if (middle == 0) {
        close(pipe_fd[0]);
        ebb_supervisor_add(f.sup, EBB_CHILD_COORDINATOR, 0);
        ebb_supervisor_add(f.sup, EBB_CHILD_WORKER, 0);
        if (ebb_supervisor_start_due(f.sup, 0) != EBB_OK || write(pipe_fd[1], "s", 1) != 1) {
            _exit(1);
        }
        pause();
        _exit(0);
    }
    close(pipe_fd[1]);
    char byte;
    assert_int_equal(read(pipe_fd[0], &byte, 1), 1);
    ebb_clock_sleep_ms(100);
    assert_int_equal(kill(middle, SIGKILL), 0);
    assert_int_equal(waitpid(middle, NULL, 0), middle);
    struct pollfd p = {.fd = pipe_fd[0], .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_int_equal(read(pipe_fd[0], &byte, 1), 0);
    close(pipe_fd[0]);
    end(&f);
}

static void test_supervisor_names_the_missing_program(void **state)
{
    (void)state;
    fixture f;
    char why[512] = "";
    begin(&f, "exit 0", "exit 0", "exit 0");
    unlink(scratch_path(&f.s, "ebb-shard"));
    CHECK_ERR(ebb_supervisor_init(f.sup, &f.dir, NULL, why), EBB_NOENT);
    assert_non_null(strstr(why, "ebb-shard"));
    assert_non_null(strstr(why, "EBB_BIN_DIR"));
    end(&f);
}

static void test_supervisor_shows_the_end_of_a_log(void **state)
{
    (void)state;
    fixture f;
    char got[1024];
    begin(&f, "exit 0", "exit 0", "exit 0");
    ebb_supervisor_add(f.sup, EBB_CHILD_WORKER, 0);
    CHECK_OK(ebb_rundir_write(&f.dir, "logs/worker-0.log", "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n",
                              strlen("one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n")));
    fflush(stderr);
    int saved = dup(2);
    FILE *to = tmpfile();
    assert_non_null(to);
    dup2(fileno(to), 2);
    ebb_supervisor_show_log(f.sup, &f.sup->child[0]);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(to);
    size_t n = fread(got, 1, sizeof(got) - 1, to);
    got[n] = '\0';
    fclose(to);
    assert_non_null(strstr(got, "logs/worker-0.log"));
    assert_non_null(strstr(got, "\nthree\nfour\nfive\nsix\nseven\neight\n"));
    assert_null(strstr(got, "two"));
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_supervisor_decide_final_codes),
        cmocka_unit_test(test_supervisor_decide_ending_restarts_nothing),
        cmocka_unit_test(test_supervisor_decide_backs_off_then_gives_up),
        cmocka_unit_test(test_supervisor_decide_long_life_forgives),
        cmocka_unit_test(test_supervisor_decide_survives_any_kills),
        cmocka_unit_test(test_supervisor_restarts_under_the_same_name),
        cmocka_unit_test(test_supervisor_gives_up_on_bad_config),
        cmocka_unit_test(test_supervisor_gives_up_on_a_crash_loop),
        cmocka_unit_test(test_supervisor_end_is_certain),
        cmocka_unit_test(test_supervisor_children_die_with_it),
        cmocka_unit_test(test_supervisor_names_the_missing_program),
        cmocka_unit_test(test_supervisor_shows_the_end_of_a_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
