// The folder of a run: names, sockets, the lock, whole writes, what --force removes, which run is meant.
#define _GNU_SOURCE // nftw
#include <fcntl.h>
#include <sys/wait.h>
#include <utime.h>

#include "tests/support/scratch.h"
#include "tools/ebb/rundir.h"

static void fresh(scratch *s, ebb_rundir *r)
{
    char why[512] = "", path[128];
    scratch_init(s);
    snprintf(path, sizeof(path), "%s/run", s->dir);
    ebb_rundir_name(r, path);
    CHECK_OK(ebb_rundir_create(r, why));
}

static void test_rundir_names(void **state)
{
    (void)state;
    scratch s;
    scratch_init(&s);
    char cwd[PATH_MAX], want[PATH_MAX * 2];
    assert_non_null(getcwd(cwd, sizeof(cwd)));
    ebb_rundir r;
    ebb_rundir_name(&r, "/a/b///");
    assert_string_equal(r.path, "/a/b");
    ebb_rundir_name(&r, "/");
    assert_string_equal(r.path, "/");
    ebb_rundir_name(&r, "./runs/x/");
    snprintf(want, sizeof(want), "%s/runs/x", cwd);
    assert_string_equal(r.path, want);
    assert_int_equal(r.lock_fd, -1);
    ebb_rundir_name(&r, s.dir);
    assert_false(ebb_rundir_has(&r, "job.yaml")); // naming makes nothing
    assert_false(ebb_rundir_has(&r, "logs"));
    scratch_fini(&s);
}

static void test_rundir_creates(void **state)
{
    (void)state;
    scratch s;
    ebb_rundir r;
    char endpoint[PATH_MAX], want[PATH_MAX * 2], why[512] = "";
    fresh(&s, &r);
    assert_true(ebb_rundir_has(&r, "logs") && ebb_rundir_has(&r, "pids") && ebb_rundir_has(&r, "sock"));
    assert_false(ebb_rundir_has(&r, "sock.path"));
    ebb_rundir_endpoint(&r, "shard-0", endpoint, sizeof(endpoint));
    snprintf(want, sizeof(want), "ipc://%s/sock/shard-0", r.path);
    assert_string_equal(endpoint, want);
    CHECK_OK(ebb_rundir_create(&r, why)); // again: no change
    scratch_text(&s, "file", "x");
    ebb_rundir_name(&r, s.path);
    assert_int_not_equal(ebb_rundir_create(&r, why), EBB_OK);
    assert_non_null(strstr(why, "/file"));
    scratch_fini(&s);
}

// A socket's path may have 107 bytes. A deep folder gets its sockets elsewhere, and every program finds them.
static void test_rundir_long_path_has_sockets_elsewhere(void **state)
{
    (void)state;
    scratch s;
    ebb_rundir r, other;
    char why[512] = "", path[PATH_MAX], endpoint[PATH_MAX], first[PATH_MAX], sock[PATH_MAX];
    scratch_init(&s);
    setenv("XDG_RUNTIME_DIR", s.dir, 1);
    snprintf(path, sizeof(path), "%s/%0120d/run", s.dir, 0);
    ebb_rundir_name(&r, path);
    CHECK_OK(ebb_rundir_create(&r, why));
    assert_true(ebb_rundir_has(&r, "sock.path"));
    ebb_rundir_endpoint(&r, "coordinator", endpoint, sizeof(endpoint));
    assert_true(strlen(endpoint) - strlen("ipc://") <= 107);
    struct stat st;
    assert_int_equal(stat(r.sock, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700); // nobody else gets in
    strcpy(first, r.sock);
    ebb_rundir_name(&other, path);
    ebb_rundir_find_sock(&other);
    assert_string_equal(other.sock, first);
    CHECK_OK(ebb_rundir_create(&r, why)); // a resumed run uses the same ones
    assert_string_equal(r.sock, first);

    snprintf(sock, sizeof(sock), "%.200s/shard-0", first);
    close(open(sock, O_CREAT | O_WRONLY, 0600));
    ebb_rundir_remove_sockets(&r); // not ours to remove without the lock
    assert_int_equal(access(sock, F_OK), 0);
    unsetenv("XDG_RUNTIME_DIR");
    scratch_fini(&s);
}

static void test_rundir_removes_only_sockets(void **state)
{
    (void)state;
    scratch s;
    ebb_rundir r;
    char why[512] = "";
    fresh(&s, &r);
    scratch_text(&s, "run/sock/coordinator", "");
    scratch_text(&s, "run/sock/shard-12", "");
    scratch_text(&s, "run/sock/mine", "");
    CHECK_OK(ebb_rundir_lock(&r, why));
    ebb_rundir_remove_sockets(&r);
    assert_false(ebb_rundir_has(&r, "sock/coordinator") || ebb_rundir_has(&r, "sock/shard-12"));
    assert_true(ebb_rundir_has(&r, "sock/mine"));
    ebb_rundir_unlock(&r);
    scratch_fini(&s);
}

static void test_rundir_lock_has_one_holder(void **state)
{
    (void)state;
    scratch s;
    ebb_rundir r, other;
    char why[512] = "";
    fresh(&s, &r);
    other = r;
    assert_false(ebb_rundir_is_live(&r));
    CHECK_OK(ebb_rundir_lock(&r, why));
    assert_true(ebb_rundir_is_live(&other));
    CHECK_ERR(ebb_rundir_lock(&other, why), EBB_TRYLATER);
    assert_non_null(strstr(why, r.path));
    assert_int_equal(other.lock_fd, -1);
    ebb_rundir_unlock(&r);
    ebb_rundir_unlock(&r); // idempotent
    assert_false(ebb_rundir_is_live(&r));
    CHECK_OK(ebb_rundir_lock(&other, why));
    ebb_rundir_unlock(&other);
    scratch_fini(&s);
}

// The lock of a process that was killed is free at once.
static void test_rundir_lock_dies_with_its_holder(void **state)
{
    (void)state;
    scratch s;
    ebb_rundir r;
    char why[512] = "", byte;
    int pipe_fd[2];
    fresh(&s, &r);
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (ebb_rundir_lock(&r, why) != EBB_OK || write(pipe_fd[1], "l", 1) != 1) {
            _exit(1);
        }
        pause();
        _exit(0);
    }
    assert_int_equal(read(pipe_fd[0], &byte, 1), 1);
    assert_true(ebb_rundir_is_live(&r));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_false(ebb_rundir_is_live(&r));
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    scratch_fini(&s);
}

static void test_rundir_writes_whole(void **state)
{
    (void)state;
    scratch s;
    ebb_rundir r;
    size_t len = 0;
    char *text, *big = malloc(100000);
    assert_non_null(big);
    memset(big, 'x', 100000);
    fresh(&s, &r);
    assert_null(ebb_rundir_read(&r, "model.json", &len));
    CHECK_OK(ebb_rundir_write(&r, "model.json", big, 100000));
    CHECK_OK(ebb_rundir_write(&r, "model.json", "a\0b", 3)); // a shorter one replaces it
    text = ebb_rundir_read(&r, "model.json", &len);
    assert_non_null(text);
    assert_int_equal(len, 3);
    assert_memory_equal(text, "a\0b\0", 4);
    free(text);
    CHECK_OK(ebb_rundir_write(&r, "empty", "", 0));
    text = ebb_rundir_read(&r, "empty", &len);
    assert_non_null(text);
    assert_int_equal(len, 0);
    free(text);
    assert_int_equal(mkdir(scratch_path(&s, "run/taken"), 0755), 0);
    CHECK_ERR(ebb_rundir_write(&r, "taken", "x", 1), EBB_IO);
    assert_false(ebb_rundir_has(&r, "taken.part") || ebb_rundir_has(&r, "model.json.part"));
    free(big);
    scratch_fini(&s);
}

static void test_rundir_clear_keeps_what_is_not_its_own(void **state)
{
    (void)state;
    static const char *const own[] = {"job.yaml", "result.json", "model.json", "model.safetensors", "events.log"};
    scratch s;
    ebb_rundir r;
    char why[512] = "", leaf[64];
    fresh(&s, &r);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        snprintf(leaf, sizeof(leaf), "run/%s", own[i]);
        scratch_text(&s, leaf, "old");
    }
    assert_int_equal(mkdir(scratch_path(&s, "run/shard-3"), 0755), 0);
    scratch_text(&s, "run/shard-3/CURRENT", "old");
    scratch_text(&s, "run/notes.txt", "mine");
    scratch_text(&s, "outside", "mine");
    char target[256];
    snprintf(target, sizeof(target), "%s", scratch_path(&s, "outside"));
    assert_int_equal(symlink(target, scratch_path(&s, "run/shard-3/link")), 0);
    CHECK_ERR(ebb_rundir_clear(&r, why), EBB_EXISTS); // that job.yaml is somebody's own
    assert_true(ebb_rundir_has(&r, "shard-3/CURRENT"));
    scratch_text(&s, "run/job.yaml", EBB_RUNDIR_MARK "name: x\n");
    CHECK_OK(ebb_rundir_clear(&r, why));
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        assert_false(ebb_rundir_has(&r, own[i]));
    }
    assert_false(ebb_rundir_has(&r, "shard-3") || ebb_rundir_has(&r, "logs"));
    assert_true(ebb_rundir_has(&r, "notes.txt"));
    assert_int_equal(access(target, F_OK), 0); // links are removed, not followed
    CHECK_OK(ebb_rundir_clear(&r, why));       // nothing left: fine
    scratch_fini(&s);
}

static void made(scratch *s, const char *name, time_t when)
{
    char leaf[64];
    snprintf(leaf, sizeof(leaf), "runs/%s", name);
    assert_int_equal(mkdir(scratch_path(s, leaf), 0755), 0);
    if (when != 0) {
        snprintf(leaf, sizeof(leaf), "runs/%s/job.yaml", name);
        scratch_text(s, leaf, "name: x\n");
        struct utimbuf t = {.actime = when, .modtime = when};
        assert_int_equal(utime(s->path, &t), 0);
    }
}

static void test_rundir_picks(void **state)
{
    (void)state;
    scratch s;
    ebb_rundir r;
    char cwd[PATH_MAX], why[512] = "";
    scratch_init(&s);
    assert_non_null(getcwd(cwd, sizeof(cwd)));
    assert_int_equal(chdir(s.dir), 0);
    CHECK_ERR(ebb_rundir_pick(&r, NULL, why), EBB_NOENT);
    assert_non_null(strstr(why, "ebb run"));
    assert_int_equal(mkdir("runs", 0755), 0);
    made(&s, "older", 1000000);
    made(&s, "newest", 2000000);
    made(&s, "middle", 1500000);
    made(&s, "not-a-run", 0);
    made(&s, ".hidden", 3000000);
    CHECK_OK(ebb_rundir_pick(&r, NULL, why));
    assert_string_equal(strrchr(r.path, '/'), "/newest");
    CHECK_OK(ebb_rundir_pick(&r, "runs/older", why));
    assert_string_equal(strrchr(r.path, '/'), "/older");
    CHECK_ERR(ebb_rundir_pick(&r, "runs/not-a-run", why), EBB_NOENT);
    assert_non_null(strstr(why, "not-a-run"));
    CHECK_ERR(ebb_rundir_pick(&r, "runs/absent", why), EBB_NOENT);
    assert_int_equal(chdir(cwd), 0);
    scratch_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rundir_names),
        cmocka_unit_test(test_rundir_creates),
        cmocka_unit_test(test_rundir_long_path_has_sockets_elsewhere),
        cmocka_unit_test(test_rundir_removes_only_sockets),
        cmocka_unit_test(test_rundir_lock_has_one_holder),
        cmocka_unit_test(test_rundir_lock_dies_with_its_holder),
        cmocka_unit_test(test_rundir_writes_whole),
        cmocka_unit_test(test_rundir_clear_keeps_what_is_not_its_own),
        cmocka_unit_test(test_rundir_picks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
