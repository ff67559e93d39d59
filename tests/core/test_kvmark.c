#define _GNU_SOURCE // nftw
// What was synced and is gone is missed; what a crash leaves behind is not. Both on real stores, whose writers are killed at random moments.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/crc32c.h"
#include "core/kvlog.h"
#include "core/kvstore.h"
#include "core/log.h"
#include "tests/support/scratch.h"

static void s_quiet(void *arg, ebb_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

// ---- the walk ----

static size_t s_add(uint8_t *log, size_t at, unsigned type, const uint8_t *data, size_t len)
{
    uint8_t *h = log + at;
    ebb_put_le16(h + 4, (uint16_t)len);
    h[6] = (uint8_t)type;
    memcpy(h + 7, data, len);
    uint32_t crc = ebb_crc32c(0, h + 6, len + 1);
    ebb_put_le32(h, ((crc >> 15) | (crc << 17)) + 0xa282ead8u);
    return at + 7 + len;
}

// Writes records as RocksDB does; ends[i]: where record i ends.
static size_t s_log(uint8_t *log, uint64_t seed, size_t records, size_t *ends)
{
    enum { BLOCK = 32768 };
    static uint8_t data[100000];
    size_t at = 0;
    for (size_t i = 0; i < records; i++) {
        size_t len = ebb_rng_at(seed, i, 0) % (i % 5 == 0 ? sizeof(data) : 400), done = 0;
        for (size_t k = 0; k < len; k++) {
            data[k] = (uint8_t)ebb_rng_at(seed, i, 10 + k / 64);
        }
        do {
            size_t left = BLOCK - at % BLOCK;
            if (left < 7) {
                memset(log + at, 0, left);
                at += left;
                left = BLOCK;
            }
            size_t part = len - done < left - 7 ? len - done : left - 7;
            bool first = done == 0, last = done + part == len;
            at = s_add(log, at, first && last ? 1 : first ? 2 : last ? 4 : 3, data + done, part);
            done += part;
        } while (done < len);
        ends[i] = at;
    }
    return at;
}

static void test_kvlog_walk_finds_the_first_damage(void **state)
{
    (void)state;
    enum { RECORDS = 60 };
    uint64_t seed = ebb_test_seed();
    uint8_t *log = malloc(4 << 20);
    size_t ends[RECORDS];
    ebb_kvlog_walk w;
    size_t len = s_log(log, seed, RECORDS, ends);
    ebb_kvlog_walk_bytes(log, len, &w);
    assert_true(w.bad == NULL && w.whole == len && w.records == RECORDS && w.at == len);
    ebb_kvlog_walk_bytes(NULL, 0, &w);
    assert_true(w.bad == NULL && w.whole == 0 && w.records == 0);
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t bit = ebb_rng_at(seed, 1000 + i, 0) % (8 * len), cut = ebb_rng_at(seed, 1000 + i, 1) % len;
        size_t record = 0, kept = 0;
        while (ends[record] <= bit / 8) {
            record++;
        }
        log[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        ebb_kvlog_walk_bytes(log, len, &w);
        log[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        size_t before = record > 0 ? ends[record - 1] : 0;
        assert_true(w.bad != NULL && w.records == record && w.whole == before && w.at >= before && w.at <= bit / 8);
        while (kept < RECORDS && ends[kept] <= cut) {
            kept++;
        }
        uint8_t *copy = malloc(cut + 1); // of its own, so that the sanitizer sees a read beyond the end
        memcpy(copy, log, cut);
        ebb_kvlog_walk_bytes(copy, cut, &w);
        free(copy);
        assert_true(w.records == kept && w.whole <= cut && w.whole >= (kept > 0 ? ends[kept - 1] : 0));
    }
    free(log);
}

static void test_kvlog_walk_takes_any_bytes(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    for (uint64_t i = 0; i < 2000; i++) {
        size_t len = ebb_rng_at(seed, i, 0) % 70000;
        uint8_t *bytes = malloc(len + 1);
        for (size_t k = 0; k < len; k++) {
            bytes[k] = i % 3 == 0 ? 0 : (uint8_t)ebb_rng_at(seed, i, 1 + k / 8);
        }
        ebb_kvlog_walk w;
        ebb_kvlog_walk_bytes(bytes, len, &w);
        assert_true(w.whole <= len && w.at <= len && (w.bad != NULL || w.whole == len));
        free(bytes);
    }
}

// ---- real stores ----

static const ebb_kvstore_options s_options = {.create = true, .big_values = true, .memtable_bytes = 64 << 10, .wal_bytes_max = 128 << 10};

typedef struct writer {
    ebb_kvstore *kv;
    uint64_t seed, id;
    int tell; // of each synced write
} writer;

// Batches of two rows that count up: the first thread in sync, the other not, and both with ranges that are deleted and compacted meanwhile.
static void *s_write(void *arg)
{
    writer *w = arg;
    static __thread uint8_t value[6000];
    ebb_kvbatch *b = NULL;
    CHECK_OK(ebb_kvbatch_new(&b));
    for (uint64_t i = 1;; i++) {
        uint8_t key[9] = {(uint8_t)('a' + w->id)}, number[8];
        ebb_put_be64(key + 1, i);
        ebb_put_le64(number, i);
        ebb_kvbatch_clear(b);
        ebb_kvbatch_put(b, key, sizeof(key), value, ebb_rng_at(w->seed, w->id, i) % sizeof(value));
        ebb_kvbatch_put(b, w->id == 0 ? "0" : "1", 1, number, sizeof(number));
        if (ebb_kvstore_write(w->kv, b, w->id == 0) != EBB_OK) {
            _exit(3);
        }
        if (w->id == 0 && write(w->tell, &i, sizeof(i)) != sizeof(i)) {
            _exit(4);
        }
        if (w->id == 1 && i % 40 == 0) {
            ebb_kvbatch_clear(b);
            ebb_kvbatch_del_range(b, "b", 1, key, sizeof(key));
            if (ebb_kvstore_write(w->kv, b, false) != EBB_OK || ebb_kvstore_compact_range(w->kv, "b", 1, "c", 1) != EBB_OK) {
                _exit(5);
            }
        }
    }
    return NULL;
}

// Ends by SIGKILL.
static void s_writers(const char *dir, uint64_t seed, int tell)
{
    char why[256];
    ebb_kvstore *kv = NULL;
    pthread_t thread;
    ebb_log_set_sink(s_quiet, NULL);
    if (ebb_kvstore_open(dir, &s_options, &kv, why) != EBB_OK) {
        fprintf(stderr, "%s\n", why);
        _exit(2);
    }
    writer a = {kv, seed, 0, tell}, b = {kv, seed, 1, tell};
    if (pthread_create(&thread, NULL, s_write, &b) != 0) {
        _exit(6);
    }
    s_write(&a);
}

static void s_on_problem(void *arg, bool harmless, const char *file, const char *what)
{
    (void)harmless;
    snprintf(arg, 256, "%.30s: %.200s", file, what);
}

// The newest value of the synced writer, read in a process of its own; also that a reader finds the tables whole.
static uint64_t s_newest(const char *dir, bool read_only)
{
    int fds[2];
    uint64_t newest = UINT64_MAX;
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char why[256] = "";
        ebb_kvstore *kv = NULL;
        ebb_kvstore_options o = s_options;
        ebb_kvstore_facts facts;
        uint8_t *v = NULL;
        size_t len = 0;
        ebb_log_set_sink(s_quiet, NULL);
        o.create = !read_only;
        o.read_only = read_only;
        ebb_status st = ebb_kvstore_open(dir, &o, &kv, why);
        if (st == EBB_OK && ebb_kvstore_verify(kv, s_on_problem, why, &facts) == EBB_OK && why[0] == '\0') {
            st = ebb_kvstore_get(kv, "0", 1, &v, &len);
            newest = st == EBB_OK ? ebb_get_le64(v) : st == EBB_NOENT ? 0 : UINT64_MAX;
        }
        if (newest == UINT64_MAX) {
            fprintf(stderr, "%s: %s\n", ebb_status_name(st), why);
        }
        _exit(write(fds[1], &newest, sizeof(newest)) == sizeof(newest) ? 0 : 1);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &newest, sizeof(newest)), sizeof(newest));
    close(fds[0]);
    waitpid(pid, NULL, 0);
    return newest;
}

// Returns the newest write that was acknowledged as synced.
static uint64_t s_kill_a_writer(const char *dir, uint64_t seed, uint64_t ms)
{
    int fds[2];
    uint64_t acked = 0, i;
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        s_writers(dir, seed, fds[1]);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &acked, sizeof(acked)), sizeof(acked)); // it is open and at work
    uint64_t until = ebb_clock_ms() + ms;
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    while (ebb_clock_ms() < until) {
        while (read(fds[0], &i, sizeof(i)) == sizeof(i)) {
            acked = i;
        }
        ebb_clock_sleep_ms(1);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    while (read(fds[0], &i, sizeof(i)) == sizeof(i)) {
        acked = i;
    }
    close(fds[0]);
    return acked;
}

// No kill is ever taken for damage: memtables, logs and MANIFEST change all the time, writers and syncs run side by side.
static void test_kvmark_takes_no_kill_for_damage(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed(), rounds = getenv("EBB_ROUNDS") != NULL ? strtoull(getenv("EBB_ROUNDS"), NULL, 10) : 25;
    scratch s;
    scratch_init(&s);
    const char *dir = scratch_path(&s, "store");
    for (uint64_t round = 0; round < rounds; round++) {
        char problem[256] = "";
        ebb_kvmark_facts facts;
        uint64_t acked = s_kill_a_writer(dir, seed + round, ebb_rng_at(seed, round, 7) % 150);
        CHECK_OK(ebb_kvmark_verify(dir, s_on_problem, problem, &facts));
        assert_string_equal(problem, "");
        assert_true(facts.has_mark);
        uint64_t looked = s_newest(dir, true), newest = s_newest(dir, false);
        assert_true(looked != UINT64_MAX && newest == looked && newest >= acked && newest <= acked + 1);
    }
    scratch_fini(&s);
}

// The last by name of the files that begin (front) or end so.
static void s_newest_file(const char *dir, const char *part, bool front, char newest[64])
{
    DIR *d = opendir(dir);
    struct dirent *e;
    size_t n = strlen(part);
    assert_non_null(d);
    newest[0] = '\0';
    while ((e = readdir(d)) != NULL) {
        size_t len = strlen(e->d_name);
        bool fits = len >= n && strncmp(front ? e->d_name : e->d_name + len - n, part, n) == 0;
        if (fits && strcmp(e->d_name, newest) > 0) {
            snprintf(newest, 64, "%.60s", e->d_name);
        }
    }
    closedir(d);
    assert_true(newest[0] != '\0');
}

static void s_shorten(const char *dir, const char *part, bool front, off_t by)
{
    char path[400], newest[64];
    struct stat st;
    s_newest_file(dir, part, front, newest);
    snprintf(path, sizeof(path), "%s/%s", dir, newest);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > by);
    assert_int_equal(truncate(path, st.st_size - by), 0);
}

static void s_fill(const char *dir, ebb_kvstore **out)
{
    char why[256];
    CHECK_OK(ebb_kvstore_open(dir, &s_options, out, why));
    CHECK_OK(ebb_kvstore_put(*out, "1", 1, "flushed", 7, true));
    CHECK_OK(ebb_kvstore_flush(*out));
    CHECK_OK(ebb_kvstore_put(*out, "2", 1, "synced", 6, true));
}

// RocksDB by itself opens all of these, and comes up without what is gone.
static void test_kvmark_misses_what_was_synced(void **state)
{
    (void)state;
    static const struct {
        const char *file, *named;
        bool front, mark_too;
    } cases[] = {{".log", ".log: ends at byte", false, false}, {"MANIFEST-", "MANIFEST-", true, false}, {".log", "", false, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        scratch s;
        char why[256] = "";
        ebb_kvstore *kv = NULL;
        scratch_init(&s);
        char dir[128];
        snprintf(dir, sizeof(dir), "%s", scratch_path(&s, "store"));
        s_fill(dir, &kv);
        ebb_kvstore_close(&kv);
        s_shorten(dir, cases[i].file, cases[i].front, 3);
        if (cases[i].mark_too) { // without the mark it cannot be told from a crash
            char path[200];
            snprintf(path, sizeof(path), "%s/" EBB_KVMARK_FILE, dir);
            assert_int_equal(unlink(path), 0);
            CHECK_OK(ebb_kvstore_open(dir, &s_options, &kv, why));
            uint8_t *v = NULL;
            size_t len;
            CHECK_ERR(ebb_kvstore_get(kv, "2", 1, &v, &len), EBB_NOENT);
            ebb_kvstore_close(&kv);
        } else {
            CHECK_ERR(ebb_kvstore_open(dir, &s_options, &kv, why), EBB_CORRUPT);
            assert_non_null(strstr(why, cases[i].named));
            assert_non_null(strstr(why, dir));
        }
        scratch_fini(&s);
    }
}

// A table was written after the last mark, and its log is gone as it should be. If MANIFEST then loses the line about the table, the rows are nowhere; if not, all
// is well.
static void test_kvmark_misses_a_log_that_is_needed_again(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        scratch s;
        char why[256] = "", dir[128], log[64] = "", path[200];
        ebb_kvstore *kv = NULL;
        scratch_init(&s);
        snprintf(dir, sizeof(dir), "%s", scratch_path(&s, "store"));
        s_fill(dir, &kv);
        s_newest_file(dir, ".log", false, log);
        snprintf(path, sizeof(path), "%s/%s", dir, log);
        CHECK_OK(ebb_kvstore_flush(kv));
        for (int i = 0; i < 1000 && access(path, F_OK) == 0; i++) { // RocksDB removes it in its own time
            ebb_clock_sleep_ms(5);
        }
        assert_int_not_equal(access(path, F_OK), 0);
        ebb_kvstore_close(&kv);
        if (cut) {
            s_shorten(dir, "MANIFEST-", true, 3);
            CHECK_ERR(ebb_kvstore_open(dir, &s_options, &kv, why), EBB_CORRUPT);
            assert_non_null(strstr(why, log));
            assert_non_null(strstr(why, "still needed"));
        } else {
            for (int read_only = 1; read_only >= 0; read_only--) {
                uint8_t *v = NULL;
                size_t len;
                ebb_kvstore_options o = s_options;
                o.create = !read_only;
                o.read_only = read_only;
                CHECK_OK(ebb_kvstore_open(dir, &o, &kv, why));
                CHECK_OK(ebb_kvstore_get(kv, "2", 1, &v, &len));
                free(v);
                ebb_kvstore_close(&kv);
            }
        }
        scratch_fini(&s);
    }
}

// What was written but never synced may be gone after a power loss; that is no damage.
static void test_kvmark_claims_only_what_was_synced(void **state)
{
    (void)state;
    scratch s;
    char why[256] = "", command[400], dir[128], copy[160];
    ebb_kvstore *kv = NULL;
    scratch_init(&s);
    snprintf(dir, sizeof(dir), "%s", scratch_path(&s, "store"));
    snprintf(copy, sizeof(copy), "%s.copy", dir);
    s_fill(dir, &kv);
    CHECK_OK(ebb_kvstore_put(kv, "3", 1, "not synced", 10, false));
    snprintf(command, sizeof(command), "cp -r '%s' '%s'", dir, copy);
    assert_int_equal(system(command), 0);
    ebb_kvstore_close(&kv);
    s_shorten(copy, ".log", false, 3);
    ebb_kvmark_facts facts;
    CHECK_OK(ebb_kvmark_verify(copy, s_on_problem, why, &facts));
    assert_string_equal(why, "");
    assert_true(facts.torn_bytes > 0);
    CHECK_OK(ebb_kvstore_open(copy, &s_options, &kv, why));
    uint8_t *v = NULL;
    size_t len;
    CHECK_OK(ebb_kvstore_get(kv, "2", 1, &v, &len));
    free(v);
    CHECK_ERR(ebb_kvstore_get(kv, "3", 1, &v, &len), EBB_NOENT);
    ebb_kvstore_close(&kv);
    scratch_fini(&s);
}

int main(void)
{
    ebb_log_set_sink(s_quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kvlog_walk_finds_the_first_damage),  cmocka_unit_test(test_kvlog_walk_takes_any_bytes),
        cmocka_unit_test(test_kvmark_takes_no_kill_for_damage), // before any that opens a store in this process: RocksDB's threads do not survive fork
        cmocka_unit_test(test_kvmark_misses_what_was_synced),      cmocka_unit_test(test_kvmark_misses_a_log_that_is_needed_again),
        cmocka_unit_test(test_kvmark_claims_only_what_was_synced),
    };
    return cmocka_run_group_tests_name("core.kvmark", tests, NULL, NULL);
}
