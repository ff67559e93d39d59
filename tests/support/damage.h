// A folder's files in memory, written out again with one thing wrong, and a trial of each in a process of its own: a crash or a hang is a result too.
//
// The process that starts trials must never have opened a store itself: RocksDB's threads do not come along with fork.
#ifndef EBB_TESTS_SUPPORT_DAMAGE_H
#define EBB_TESTS_SUPPORT_DAMAGE_H

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/log.h"
#include "tests/support/check.h"

#define DAMAGE_FILES_MAX 32
#define DAMAGE_TRIAL_S 60

typedef struct damage_file {
    char name[64];
    uint8_t *bytes;
    size_t len;
} damage_file;

typedef struct damage_image {
    damage_file files[DAMAGE_FILES_MAX];
    size_t n;
} damage_image;

typedef enum damage_kind { DAMAGE_NONE, DAMAGE_FLIP, DAMAGE_CUT, DAMAGE_REMOVE } damage_kind;

typedef struct damage_case {
    damage_kind kind;
    size_t file;
    uint64_t at; // FLIP: bit; CUT: bytes that are left
} damage_case;

// What a trial found. Statuses of looking and of coming back, a hash of all that came back, and what was said.
typedef struct damage_result {
    ebb_status check, recover;
    uint64_t state;
    bool changed_by_check;
    char why[512];
} damage_result;

typedef void damage_trial_fn(const char *dir, damage_result *out);

static inline void damage_load(damage_image *image, const char *dir)
{
    memset(image, 0, sizeof(*image));
    DIR *d = opendir(dir);
    assert_non_null(d);
    struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        struct stat st;
        if (fstatat(dirfd(d), e->d_name, &st, 0) != 0 || !S_ISREG(st.st_mode)) {
            continue;
        }
        assert_true(image->n < DAMAGE_FILES_MAX && strlen(e->d_name) < sizeof(image->files[0].name));
        damage_file *f = &image->files[image->n++];
        strcpy(f->name, e->d_name);
        f->len = (size_t)st.st_size;
        f->bytes = malloc(f->len + 1);
        int fd = openat(dirfd(d), e->d_name, O_RDONLY);
        assert_true(fd >= 0 && read(fd, f->bytes, f->len) == (ssize_t)f->len);
        close(fd);
    }
    closedir(d);
    for (size_t i = 1; i < image->n; i++) { // by name: a seed means the same again
        for (size_t k = i; k > 0 && strcmp(image->files[k - 1].name, image->files[k].name) > 0; k--) {
            damage_file swap = image->files[k];
            image->files[k] = image->files[k - 1];
            image->files[k - 1] = swap;
        }
    }
}

static inline void damage_free(damage_image *image)
{
    for (size_t i = 0; i < image->n; i++) {
        free(image->files[i].bytes);
    }
    image->n = 0;
}

static inline void damage_clear(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d != NULL && (e = readdir(d)) != NULL) {
        unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d != NULL) {
        closedir(d);
    }
}

// Empties dir and writes the image into it.
static inline void damage_write(const damage_image *image, const char *dir, const damage_case *c)
{
    mkdir(dir, 0755);
    damage_clear(dir);
    for (size_t i = 0; i < image->n; i++) {
        const damage_file *f = &image->files[i];
        char path[512];
        bool hit = c->kind != DAMAGE_NONE && c->file == i;
        size_t len = hit && c->kind == DAMAGE_CUT ? (size_t)c->at : f->len;
        if (hit && c->kind == DAMAGE_REMOVE) {
            continue;
        }
        if (hit && c->kind == DAMAGE_FLIP) {
            f->bytes[c->at / 8] ^= (uint8_t)(1u << (c->at % 8));
        }
        snprintf(path, sizeof(path), "%.400s/%s", dir, f->name);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        assert_true(fd >= 0 && write(fd, f->bytes, len) == (ssize_t)len);
        close(fd);
        if (hit && c->kind == DAMAGE_FLIP) {
            f->bytes[c->at / 8] ^= (uint8_t)(1u << (c->at % 8));
        }
    }
}

static inline uint64_t damage_hash(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;
    h = h == 0 ? 0xcbf29ce484222325u : h;
    for (size_t i = 0; i < len; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    return h;
}

// Hash of all files and their names.
static inline uint64_t damage_hash_folder(const char *dir)
{
    damage_image image;
    uint64_t h = 0;
    damage_load(&image, dir);
    for (size_t i = 0; i < image.n; i++) {
        h = damage_hash(h, image.files[i].name, strlen(image.files[i].name));
        h = damage_hash(h, image.files[i].bytes, image.files[i].len);
    }
    damage_free(&image);
    return h;
}

static inline void damage_no_log(void *arg, ebb_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

// Runs the trial on dir in a process of its own. Fails the test if it crashes or does not end.
static inline void damage_run(damage_trial_fn *trial, const char *dir, const char *what, damage_result *out)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        static damage_result r;
        alarm(DAMAGE_TRIAL_S);
        ebb_log_set_sink(damage_no_log, NULL);
        trial(dir, &r);
        _exit(write(fds[1], &r, sizeof(r)) == (ssize_t)sizeof(r) ? 0 : 1);
    }
    close(fds[1]);
    memset(out, 0, sizeof(*out));
    size_t got = 0;
    ssize_t n;
    while (got < sizeof(*out) && (n = read(fds[0], (uint8_t *)out + got, sizeof(*out) - got)) > 0) {
        got += (size_t)n;
    }
    close(fds[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || got != sizeof(*out)) {
        fail_msg("%s: %s %d", what, WIFSIGNALED(status) ? "ended by signal" : "exit code",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

static inline bool damage_is_named(ebb_status st)
{
    return st == EBB_CORRUPT || st == EBB_CONFIG || st == EBB_NEWER;
}

typedef struct damage_tally {
    unsigned found, harmless, check_only;
} damage_tally;

// One trial: found and named, or harmless; never a crash, a hang, or another state.
static inline void damage_try(const damage_image *image, const char *dir, const damage_case *c, damage_trial_fn *trial, uint64_t good,
                              damage_tally *tally)
{
    static const char *const kinds[] = {"as it was", "bit flipped", "cut to", "removed"};
    char what[128];
    damage_result r;
    snprintf(what, sizeof(what), "%s %s %llu", image->files[c->file].name, kinds[c->kind], (unsigned long long)c->at);
    damage_write(image, dir, c);
    damage_run(trial, dir, what, &r);
    if (r.recover == EBB_OK && r.state != good) {
        fail_msg("%s: recovered without a word, but to another state (--check: %s)", what, ebb_status_name(r.check));
    }
    if (r.recover != EBB_OK && (!damage_is_named(r.recover) || r.why[0] == '\0')) {
        fail_msg("%s: recovery says %s \"%s\"", what, ebb_status_name(r.recover), r.why);
    }
    if (r.check != EBB_OK && !damage_is_named(r.check)) {
        fail_msg("%s: --check says %s", what, ebb_status_name(r.check));
    }
    if (r.check == EBB_OK && r.recover != EBB_OK) {
        fail_msg("%s: --check finds nothing, but recovery says %s", what, r.why);
    }
    if (r.changed_by_check) {
        fail_msg("%s: --check changed the folder", what);
    }
    tally->found += r.recover != EBB_OK;
    tally->check_only += r.recover == EBB_OK && r.check != EBB_OK;
    tally->harmless += r.recover == EBB_OK && r.check == EBB_OK;
}

// Flips, cuts, and each file removed once. Files are drawn evenly, not by size: the small ones matter most.
static inline void damage_rounds(const char *name, const damage_image *image, const char *dir, damage_trial_fn *trial, uint64_t seed, uint64_t flips,
                                 uint64_t cuts)
{
    damage_result r;
    damage_tally tally = {0};
    damage_case none = {.kind = DAMAGE_NONE};
    damage_write(image, dir, &none);
    damage_run(trial, dir, name, &r);
    if (r.check != EBB_OK || r.recover != EBB_OK || r.changed_by_check) {
        fail_msg("%s: the undamaged folder: check %s, recovery %s: %s", name, ebb_status_name(r.check), ebb_status_name(r.recover), r.why);
    }
    const uint64_t good = r.state;
    for (uint64_t i = 0; i < flips + cuts; i++) {
        damage_case c = {.kind = i < flips ? DAMAGE_FLIP : DAMAGE_CUT, .file = i % image->n};
        size_t len = image->files[c.file].len;
        if (len > 0) {
            c.at = ebb_rng_at(seed, i, 1) % (c.kind == DAMAGE_FLIP ? 8 * len : len);
            damage_try(image, dir, &c, trial, good, &tally);
        }
    }
    for (size_t i = 0; i < image->n; i++) {
        damage_case c = {.kind = DAMAGE_REMOVE, .file = i};
        damage_try(image, dir, &c, trial, good, &tally);
    }
    printf("%s: found by recovery %u, by --check alone %u, harmless %u\n", name, tally.found, tally.check_only, tally.harmless);
    fflush(stdout);
    assert_true(tally.found > 0);
}

// From the environment, for longer runs by hand.
static inline uint64_t damage_count(const char *variable, uint64_t fallback)
{
    const char *text = getenv(variable);
    return text != NULL ? strtoull(text, NULL, 10) : fallback;
}

#endif
