#define _GNU_SOURCE // nftw
#include "tools/ebb/rundir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "core/clock.h"
#include "core/limits.h"
#include "core/process.h"

#define SOCKET_PATH_MAX 100 // the system allows 107
#define LOCK_TRIES 20

void ebb_rundir_name(ebb_rundir *r, const char *path)
{
    memset(r, 0, sizeof(*r));
    r->lock_fd = -1;
    if (path[0] == '/') {
        snprintf(r->path, sizeof(r->path), "%s", path);
    } else {
        char cwd[PATH_MAX / 2];
        if (getcwd(cwd, sizeof(cwd)) == NULL) {
            strcpy(cwd, ".");
        }
        snprintf(r->path, sizeof(r->path), "%s/%.*s", cwd, PATH_MAX / 2 - 2, strncmp(path, "./", 2) == 0 ? path + 2 : path);
    }
    size_t n = strlen(r->path);
    while (n > 1 && r->path[n - 1] == '/') {
        r->path[--n] = '\0';
    }
}

void ebb_rundir_file(const ebb_rundir *r, const char *leaf, char *out)
{
    if (snprintf(out, PATH_MAX, "%s/%s", r->path, leaf) >= PATH_MAX) {
        out[0] = '\0'; // opens nothing
    }
}

bool ebb_rundir_has(const ebb_rundir *r, const char *leaf)
{
    char path[PATH_MAX];
    ebb_rundir_file(r, leaf, path);
    return access(path, F_OK) == 0;
}

bool ebb_rundir_is_run(const ebb_rundir *r)
{
    char *text = ebb_rundir_read(r, "job.yaml", NULL);
    bool is = text != NULL && strncmp(text, EBB_RUNDIR_MARK, strlen(EBB_RUNDIR_MARK)) == 0;
    free(text);
    return is;
}

// job.yaml is the last to go, so that a removal that was cut short can be gone on with.
static const char *const s_leaves[] = {"coordinator",      "logs",       "pids",        "sock",          "sock.path",  "model.safetensors",
                                       "live.safetensors", "model.json", "result.json", "metrics.jsonl", "events.log", "job.yaml"};

const char *ebb_rundir_foreign(const ebb_rundir *r)
{
    for (size_t i = 0; i < sizeof(s_leaves) / sizeof(s_leaves[0]) && !ebb_rundir_is_run(r); i++) {
        if (ebb_rundir_has(r, s_leaves[i])) {
            return s_leaves[i];
        }
    }
    return NULL;
}

void ebb_rundir_find_sock(ebb_rundir *r)
{
    char *other = ebb_rundir_read(r, "sock.path", NULL);
    if (other != NULL) {
        snprintf(r->sock, sizeof(r->sock), "%.*s", (int)strcspn(other, "\n"), other);
        free(other);
    } else {
        ebb_rundir_file(r, "sock", r->sock);
    }
}

static ebb_status s_create_sock(ebb_rundir *r, char *why)
{
    ebb_rundir_find_sock(r);
    if (strlen(r->sock) + strlen("/coordinator") <= SOCKET_PATH_MAX && ebb_mkdirs(r->sock) == EBB_OK) {
        return EBB_OK;
    }
    const char *base = getenv("XDG_RUNTIME_DIR");
    char made[PATH_MAX];
    snprintf(made, sizeof(made), "%.60s/ebb-XXXXXX", base != NULL && strlen(base) < 60 && access(base, W_OK) == 0 ? base : "/tmp");
    if (mkdtemp(made) == NULL) {
        snprintf(why, 512, "cannot create a folder for sockets (%.60s): %s", made, strerror(errno));
        return EBB_IO;
    }
    strcpy(r->sock, made);
    return ebb_rundir_write(r, "sock.path", made, strlen(made));
}

ebb_status ebb_rundir_create(ebb_rundir *r, char *why)
{
    static const char *const folders[] = {"logs", "pids"};
    for (size_t i = 0; i < 2; i++) {
        char path[PATH_MAX];
        ebb_rundir_file(r, folders[i], path);
        if (ebb_mkdirs(path) != EBB_OK) {
            snprintf(why, 512, "cannot create %.400s: %s", path, strerror(errno));
            return errno == EACCES || errno == EPERM || errno == EROFS ? EBB_NOTAUTH : EBB_IO;
        }
    }
    return s_create_sock(r, why);
}

ebb_status ebb_rundir_lock(ebb_rundir *r, char *why)
{
    char path[PATH_MAX];
    ebb_rundir_file(r, "lock", path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
        snprintf(why, 512, "cannot write in %.400s: %s", r->path, strerror(errno));
        return errno == EACCES || errno == EPERM || errno == EROFS ? EBB_NOTAUTH : EBB_IO;
    }
    // ebb_rundir_is_live of another command holds it for a moment: that isn't a run.
    int held = flock(fd, LOCK_EX | LOCK_NB);
    for (int i = 0; held != 0 && i < LOCK_TRIES; i++) {
        ebb_clock_sleep_ms(5);
        held = flock(fd, LOCK_EX | LOCK_NB);
    }
    if (held != 0) {
        close(fd);
        snprintf(why, 512, "%.400s is in use by another ebb run", r->path);
        return EBB_TRYLATER;
    }
    r->lock_fd = fd;
    return EBB_OK;
}

bool ebb_rundir_is_live(const ebb_rundir *r)
{
    char path[PATH_MAX];
    ebb_rundir_file(r, "lock", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool live = flock(fd, LOCK_SH | LOCK_NB) != 0;
    close(fd);
    return live;
}

void ebb_rundir_unlock(ebb_rundir *r)
{
    if (r->lock_fd >= 0) {
        close(r->lock_fd);
        r->lock_fd = -1;
    }
}

static int s_remove(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void ebb_rundir_remove_sockets(ebb_rundir *r)
{
    DIR *dir = r->lock_fd >= 0 ? opendir(r->sock) : NULL;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        if (strcmp(e->d_name, "coordinator") == 0 || strncmp(e->d_name, "shard-", 6) == 0) {
            unlinkat(dirfd(dir), e->d_name, 0);
        }
    }
    if (dir != NULL) {
        closedir(dir);
        rmdir(r->sock);
    }
    char path[PATH_MAX];
    ebb_rundir_file(r, "sock.path", path);
    unlink(path);
}

ebb_status ebb_rundir_clear(const ebb_rundir *r, char *why)
{
    char path[PATH_MAX];
    const char *foreign = ebb_rundir_foreign(r);
    if (foreign != NULL) {
        snprintf(why, 512, "%.300s is not the folder of a run, but holds %s: nothing was removed; --dir takes another folder", r->path, foreign);
        return EBB_EXISTS;
    }
    if (!ebb_rundir_is_run(r)) {
        return EBB_OK;
    }
    for (size_t i = 0; i < EBB_SHARDS_MAX + sizeof(s_leaves) / sizeof(s_leaves[0]); i++) {
        char shard[32];
        const char *leaf = shard;
        if (i < EBB_SHARDS_MAX) {
            snprintf(shard, sizeof(shard), "shard-%zu", i);
        } else {
            leaf = s_leaves[i - EBB_SHARDS_MAX];
        }
        if (ebb_rundir_has(r, leaf)) {
            ebb_rundir_file(r, leaf, path);
            if (nftw(path, s_remove, 16, FTW_DEPTH | FTW_PHYS) != 0) {
                snprintf(why, 512, "cannot remove %.400s: %s", path, strerror(errno));
                return EBB_IO;
            }
        }
    }
    return EBB_OK;
}

ebb_status ebb_rundir_write(const ebb_rundir *r, const char *leaf, const void *data, size_t len)
{
    char path[PATH_MAX], part[PATH_MAX];
    char temporary[128];
    snprintf(temporary, sizeof(temporary), "%.100s.part", leaf);
    ebb_rundir_file(r, leaf, path);
    ebb_rundir_file(r, temporary, part);
    FILE *f = fopen(part, "wbe");
    if (f == NULL) {
        return EBB_IO;
    }
    bool ok = fwrite(data, 1, len, f) == len && fflush(f) == 0 && fsync(fileno(f)) == 0;
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(part, path) != 0) {
        unlink(part);
        return EBB_IO;
    }
    return EBB_OK;
}

char *ebb_rundir_read(const ebb_rundir *r, const char *leaf, size_t *len)
{
    char path[PATH_MAX];
    ebb_rundir_file(r, leaf, path);
    FILE *f = fopen(path, "rbe");
    if (f == NULL) {
        return NULL;
    }
    char *text = NULL;
    size_t n = 0, cap = 0, got = 1;
    while (got > 0) {
        if (n + 1 >= cap) {
            cap = cap ? cap * 2 : 4096;
            char *grown = realloc(text, cap);
            if (grown == NULL) {
                free(text);
                fclose(f);
                return NULL;
            }
            text = grown;
        }
        got = fread(text + n, 1, cap - n - 1, f);
        n += got;
    }
    fclose(f);
    text[n] = '\0';
    if (len != NULL) {
        *len = n;
    }
    return text;
}

bool ebb_rundir_finished(const ebb_rundir *r)
{
    char *text = ebb_rundir_read(r, "result.json", NULL);
    json_t *o = text != NULL ? json_loads(text, 0, NULL) : NULL;
    const char *state = json_string_value(json_object_get(o, "state"));
    bool finished = state != NULL && strcmp(state, "SUCCEEDED") == 0;
    json_decref(o);
    free(text);
    return finished;
}

ebb_status ebb_rundir_pick(ebb_rundir *r, const char *argument, char *why)
{
    char best[PATH_MAX] = "";
    if (argument != NULL) {
        snprintf(best, sizeof(best), "%s", argument);
    } else {
        DIR *dir = opendir("runs");
        time_t newest = 0;
        for (struct dirent *e = dir ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
            char path[PATH_MAX];
            struct stat st;
            snprintf(path, sizeof(path), "runs/%s/job.yaml", e->d_name);
            if (e->d_name[0] != '.' && stat(path, &st) == 0 && st.st_mtime >= newest) {
                newest = st.st_mtime;
                snprintf(best, sizeof(best), "runs/%s", e->d_name);
            }
        }
        if (dir != NULL) {
            closedir(dir);
        }
        if (best[0] == '\0') {
            snprintf(why, 512, "no run named, and there is none in ./runs (start one with: ebb run JOB.yaml)");
            return EBB_NOENT;
        }
    }
    ebb_rundir_name(r, best);
    if (!ebb_rundir_has(r, "job.yaml")) {
        snprintf(why, 512, "%.400s is not the folder of a run (no job.yaml in it)", r->path);
        return EBB_NOENT;
    }
    ebb_rundir_find_sock(r);
    return EBB_OK;
}

void ebb_rundir_endpoint(const ebb_rundir *r, const char *name, char *out, size_t size)
{
    snprintf(out, size, "ipc://%.200s/%s", r->sock, name);
}
