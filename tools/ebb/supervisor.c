#include "tools/ebb/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/assert.h"
#include "core/clock.h"
#include "core/process.h"

ebb_restart ebb_restart_decide(int exit_code, uint64_t lived_ms, bool ending, uint32_t *quick_deaths, uint64_t *delay_ms)
{
    *delay_ms = 0;
    if (ending) {
        return EBB_RESTART_DONE;
    }
    if ((exit_code >= 64 && exit_code <= 66) || exit_code == 73 || exit_code == 77) {
        return EBB_RESTART_GIVE_UP; // trying again cannot mend usage, data, permissions
    }
    if (lived_ms >= EBB_QUICK_MS) {
        *quick_deaths = 0;
        return EBB_RESTART_AGAIN;
    }
    if (exit_code == -SIGKILL) { // from outside: says nothing about the program, so it is not counted
        *delay_ms = lived_ms < 100 ? 100 : 0;
        return EBB_RESTART_AGAIN;
    }
    uint32_t n = ++*quick_deaths;
    *delay_ms = n <= 3 ? 0 : n >= 10 ? 1000 : 10u << (n - 3);
    return n >= EBB_QUICK_DEATHS ? EBB_RESTART_GIVE_UP : EBB_RESTART_AGAIN;
}

static bool s_find_program(const char *name, const char *folder, char *out)
{
    char self[PATH_MAX / 2];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    const char *bin = getenv("EBB_BIN_DIR");
    if (bin != NULL) {
        snprintf(out, PATH_MAX, "%s/%s", bin, name);
        return access(out, X_OK) == 0;
    }
    if (n <= 0) {
        return false;
    }
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(out, PATH_MAX, "%s/%s", self, name); // installed
    if (access(out, X_OK) == 0) {
        return true;
    }
    snprintf(out, PATH_MAX, "%s/../%s/%s", self, folder, name); // build tree
    return access(out, X_OK) == 0;
}

ebb_status ebb_supervisor_init(ebb_supervisor *s, const ebb_rundir *dir, const char *job_file, char *why)
{
    static const char *const names[3] = {"ebb-coordinator", "ebb-shard", "ebb-worker"}, *const folders[3] = {"coordinator", "ps", "worker"};
    memset(s, 0, sizeof(*s));
    s->dir = dir;
    s->job_file = job_file;
    for (int i = 0; i < 3; i++) {
        if (!s_find_program(names[i], folders[i], s->bin[i])) {
            snprintf(why, 512, "the program %s is missing beside ebb (set EBB_BIN_DIR to its folder)", names[i]);
            return EBB_NOENT;
        }
    }
    return EBB_OK;
}

void ebb_supervisor_add(ebb_supervisor *s, ebb_child_kind kind, uint32_t number)
{
    EBB_ASSERT(s->n < EBB_CHILDREN_MAX);
    ebb_child *c = &s->child[s->n++];
    c->kind = kind;
    c->number = number;
    if (kind == EBB_CHILD_COORDINATOR) {
        strcpy(c->name, "coordinator");
    } else {
        snprintf(c->name, sizeof(c->name), "%s-%u", kind == EBB_CHILD_SHARD ? "shard" : "worker", number);
    }
}

static void s_arguments(const ebb_supervisor *s, const ebb_child *c, char store[6][PATH_MAX], char **argv)
{
    int n = 0;
    char leaf[64];
    argv[n++] = (char *)s->bin[c->kind];
    ebb_rundir_endpoint(s->dir, "coordinator", store[0], PATH_MAX);
    ebb_rundir_endpoint(s->dir, c->name, store[1], PATH_MAX);
    ebb_rundir_file(s->dir, c->name, store[2]);
    snprintf(leaf, sizeof(leaf), "logs/%s.log", c->name);
    ebb_rundir_file(s->dir, leaf, store[3]);
    snprintf(store[4], PATH_MAX, "%u", c->number);
    if (c->kind == EBB_CHILD_COORDINATOR) {
        argv[n++] = "--bind", argv[n++] = store[0], argv[n++] = "--dir", argv[n++] = store[2];
        if (s->job_file != NULL) {
            argv[n++] = "--job", argv[n++] = (char *)s->job_file;
        }
        if (s->http != NULL) {
            argv[n++] = "--http", argv[n++] = (char *)s->http;
        }
    } else if (c->kind == EBB_CHILD_SHARD) {
        argv[n++] = "--coordinator", argv[n++] = store[0], argv[n++] = "--bind", argv[n++] = store[1];
        argv[n++] = "--dir", argv[n++] = store[2], argv[n++] = "--shard", argv[n++] = store[4];
    } else {
        argv[n++] = "--coordinator", argv[n++] = store[0], argv[n++] = "--name", argv[n++] = (char *)c->name;
    }
    argv[n++] = "--log", argv[n++] = store[3];
    argv[n] = NULL;
}

// In the child: own process group (the terminal's Ctrl-C goes to ebb alone, which drains), ended by the kernel when ebb dies, output to the log.
static _Noreturn void s_become(const ebb_supervisor *s, const ebb_child *c, pid_t parent)
{
    static char store[6][PATH_MAX];
    char *argv[16];
    setpgid(0, 0);
    ebb_process_die_with_parent(SIGKILL);
    if (getppid() != parent) {
        _exit(1); // ebb died in between
    }
    s_arguments(s, c, store, argv);
    int log = open(store[3], O_WRONLY | O_CREAT | O_APPEND, 0644), null = open("/dev/null", O_RDONLY);
    if (log < 0 || null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) {
        _exit(73);
    }
    close(log);
    close(null);
    execv(argv[0], argv);
    dprintf(2, "%s: cannot execute: %s\n", argv[0], strerror(errno));
    _exit(70);
}

static ebb_status s_start(ebb_supervisor *s, ebb_child *c, uint64_t now_ms)
{
    char leaf[64], text[32];
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        return EBB_IO;
    }
    if (pid == 0) {
        s_become(s, c, parent);
    }
    c->pid = pid;
    c->started_ms = now_ms;
    snprintf(leaf, sizeof(leaf), "pids/%s.pid", c->name);
    int n = snprintf(text, sizeof(text), "%d\n", (int)pid);
    return ebb_rundir_write(s->dir, leaf, text, (size_t)n);
}

size_t ebb_supervisor_wanted(const ebb_supervisor *s, ebb_child_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        n += s->child[i].kind == kind && !s->child[i].done;
    }
    return n;
}

void ebb_supervisor_grow(ebb_supervisor *s, ebb_child_kind kind)
{
    uint32_t next = 0;
    for (size_t i = 0; i < s->n; i++) {
        ebb_child *c = &s->child[i];
        if (c->kind != kind) {
            continue;
        }
        if (c->done && c->pid == 0) {
            c->done = false;
            c->restart_at_ms = 0;
            c->quick_deaths = 0;
            return;
        }
        next = c->number >= next ? c->number + 1 : next;
    }
    ebb_supervisor_add(s, kind, next);
}

ebb_status ebb_supervisor_start_due(ebb_supervisor *s, uint64_t now_ms)
{
    for (size_t i = 0; i < s->n; i++) {
        ebb_child *c = &s->child[i];
        if (c->pid == 0 && !c->done && now_ms >= c->restart_at_ms) {
            EBB_TRY(s_start(s, c, now_ms));
        }
    }
    return EBB_OK;
}

bool ebb_supervisor_reap(ebb_supervisor *s, uint64_t now_ms, bool ending, ebb_death *out)
{
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) {
        return false;
    }
    memset(out, 0, sizeof(*out));
    out->pid = pid;
    out->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    for (size_t i = 0; i < s->n; i++) {
        ebb_child *c = &s->child[i];
        if (c->pid == pid) {
            uint64_t delay = 0;
            char leaf[64], path[PATH_MAX];
            snprintf(leaf, sizeof(leaf), "pids/%s.pid", c->name);
            ebb_rundir_file(s->dir, leaf, path);
            unlink(path); // the number may be anybody's from now on
            c->pid = 0;
            out->child = c;
            out->lived_ms = now_ms - c->started_ms;
            out->verdict = ebb_restart_decide(out->exit_code, out->lived_ms, ending, &c->quick_deaths, &delay);
            c->restart_at_ms = now_ms + delay;
            c->done = out->verdict != EBB_RESTART_AGAIN;
            c->restarts += out->verdict == EBB_RESTART_AGAIN;
        }
    }
    return true;
}

void ebb_supervisor_signal(ebb_supervisor *s, ebb_child_kind kind, int sig)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->child[i].kind == kind && s->child[i].pid > 0) {
            kill(s->child[i].pid, sig);
        }
    }
}

size_t ebb_supervisor_alive(const ebb_supervisor *s, int kind)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        n += s->child[i].pid > 0 && (kind < 0 || (int)s->child[i].kind == kind);
    }
    return n;
}

void ebb_supervisor_wait(ebb_supervisor *s, uint64_t until_ms)
{
    while (ebb_supervisor_alive(s, -1) > 0 && ebb_clock_ms() < until_ms && ebb_stop_requested < 2) {
        ebb_death death;
        while (ebb_supervisor_reap(s, ebb_clock_ms(), true, &death)) {
        }
        ebb_clock_sleep_ms(10);
    }
}

void ebb_supervisor_end(ebb_supervisor *s, uint64_t grace_ms)
{
    uint64_t deadline = ebb_clock_ms() + grace_ms;
    bool killed = false;
    for (int kind = 0; kind < 3; kind++) {
        ebb_supervisor_signal(s, (ebb_child_kind)kind, SIGTERM);
    }
    while (ebb_supervisor_alive(s, -1) > 0) {
        ebb_death death;
        while (ebb_supervisor_reap(s, ebb_clock_ms(), true, &death)) {
        }
        if (!killed && ebb_clock_ms() >= deadline) {
            for (int kind = 0; kind < 3; kind++) {
                ebb_supervisor_signal(s, (ebb_child_kind)kind, SIGCONT);
                ebb_supervisor_signal(s, (ebb_child_kind)kind, SIGKILL);
            }
            killed = true;
        }
        ebb_clock_sleep_ms(10);
    }
}

void ebb_supervisor_show_log(const ebb_supervisor *s, const ebb_child *child)
{
    char leaf[64], path[PATH_MAX];
    size_t len = 0;
    snprintf(leaf, sizeof(leaf), "logs/%s.log", child->name);
    ebb_rundir_file(s->dir, leaf, path);
    char *text = ebb_rundir_read(s->dir, leaf, &len);
    if (text == NULL) {
        return;
    }
    const char *from = text + len;
    for (int lines = 0; from > text && lines <= 6; from--) {
        lines += from[-1] == '\n';
        if (lines > 6) {
            break;
        }
    }
    fprintf(stderr, "the end of %s:\n%s", path, from);
    free(text);
}
