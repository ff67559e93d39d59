#include "core/kvmark.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/crc32c.h"
#include "core/kvlog.h"

#define SLOT_BYTES 512
#define SLOTS 2
#define MAGIC 0x31534245u // "EBS1"
#define LOGS_AT 32
#define CRC_AT (SLOT_BYTES - 4)

_Static_assert(LOGS_AT + 16 * EBB_KVMARK_LOGS_MAX <= CRC_AT, "the logs must fit a slot");

typedef struct s_log {
    uint64_t number, bytes;
} s_log;

typedef struct s_mark {
    uint64_t count;
    uint64_t manifest, manifest_bytes;
    uint32_t n_logs;
    s_log logs[EBB_KVMARK_LOGS_MAX]; // ascending
} s_mark;

struct ebb_kvmarker {
    int dir, file;
    s_mark mark;
};

// ---- the slot ----

static void s_pack(const s_mark *m, uint8_t slot[SLOT_BYTES])
{
    memset(slot, 0, SLOT_BYTES);
    ebb_put_le32(slot, MAGIC);
    ebb_put_le32(slot + 4, m->n_logs);
    ebb_put_le64(slot + 8, m->count);
    ebb_put_le64(slot + 16, m->manifest);
    ebb_put_le64(slot + 24, m->manifest_bytes);
    for (uint32_t i = 0; i < m->n_logs; i++) {
        ebb_put_le64(slot + LOGS_AT + 16 * i, m->logs[i].number);
        ebb_put_le64(slot + LOGS_AT + 16 * i + 8, m->logs[i].bytes);
    }
    ebb_put_le32(slot + CRC_AT, ebb_crc32c(0, slot, CRC_AT));
}

static bool s_unpack(const uint8_t slot[SLOT_BYTES], s_mark *m)
{
    uint32_t n = ebb_get_le32(slot + 4);
    if (ebb_get_le32(slot) != MAGIC || n > EBB_KVMARK_LOGS_MAX || ebb_get_le32(slot + CRC_AT) != ebb_crc32c(0, slot, CRC_AT)) {
        return false;
    }
    *m = (s_mark){.n_logs = n, .count = ebb_get_le64(slot + 8), .manifest = ebb_get_le64(slot + 16), .manifest_bytes = ebb_get_le64(slot + 24)};
    for (uint32_t i = 0; i < n; i++) {
        m->logs[i] = (s_log){ebb_get_le64(slot + LOGS_AT + 16 * i), ebb_get_le64(slot + LOGS_AT + 16 * i + 8)};
    }
    return true;
}

// ---- the folder's files ----

static void s_manifest_name(char name[64], uint64_t number)
{
    snprintf(name, 64, "MANIFEST-%06" PRIu64, number);
}

static bool s_has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

// The log's number; 0: not a log.
static uint64_t s_log_number(const char *name)
{
    char *end = NULL;
    if (name[0] < '0' || name[0] > '9') {
        return 0;
    }
    uint64_t number = strtoull(name, &end, 10);
    return strcmp(end, ".log") == 0 ? number : 0;
}

// Number of the MANIFEST that CURRENT names. NOENT: there is no CURRENT; CORRUPT: it names none; IO.
static ebb_status s_current(int dir, uint64_t *number)
{
    char text[64], want[66];
    int fd = openat(dir, "CURRENT", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? EBB_NOENT : EBB_IO;
    }
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n < 0) {
        return EBB_IO;
    }
    text[n] = '\0';
    *number = strncmp(text, "MANIFEST-", 9) == 0 ? strtoull(text + 9, NULL, 10) : 0;
    s_manifest_name(want, *number);
    strcat(want, "\n");
    return (size_t)n == strlen(want) && memcmp(text, want, (size_t)n) == 0 ? EBB_OK : EBB_CORRUPT;
}

// Logs of the folder, ascending; beyond max the oldest are left out. Each with its size. tables: there are tables. IO.
static ebb_status s_list_logs(int dir, s_log *logs, uint32_t max, uint32_t *n, bool *tables)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return EBB_IO;
    }
    struct dirent *e;
    *n = 0;
    *tables = false;
    while ((e = readdir(d)) != NULL) {
        struct stat st;
        uint64_t number = s_log_number(e->d_name);
        *tables |= s_has_suffix(e->d_name, ".sst");
        if (number == 0 || fstatat(dir, e->d_name, &st, 0) != 0) { // gone since: not needed any more
            continue;
        }
        uint32_t at = *n;
        while (at > 0 && logs[at - 1].number > number) {
            at--;
        }
        if (*n == max) {
            if (at == 0) {
                continue; // older than all that are kept
            }
            memmove(logs, logs + 1, (at - 1) * sizeof(*logs));
            at--;
        } else {
            memmove(logs + at + 1, logs + at, (*n - at) * sizeof(*logs));
            (*n)++;
        }
        logs[at] = (s_log){number, (uint64_t)st.st_size};
    }
    closedir(d);
    return EBB_OK;
}

typedef struct s_view {
    void *data; // NULL: empty
    size_t len;
} s_view;

// NOENT, IO.
static ebb_status s_map(int dir, const char *name, s_view *v)
{
    struct stat st;
    *v = (s_view){0};
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? EBB_NOENT : EBB_IO;
    }
    ebb_status result = fstat(fd, &st) == 0 ? EBB_OK : EBB_IO;
    if (result == EBB_OK && st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            result = EBB_IO;
        } else {
            *v = (s_view){p, (size_t)st.st_size};
        }
    }
    close(fd);
    return result;
}

static void s_unmap(s_view *v)
{
    if (v->data != NULL) {
        munmap(v->data, v->len);
    }
}

// ---- writing ----

static ebb_status s_put(ebb_kvmarker *m)
{
    uint8_t slot[SLOT_BYTES];
    m->mark.count++;
    s_pack(&m->mark, slot);
    ssize_t n = pwrite(m->file, slot, sizeof(slot), (off_t)(m->mark.count % SLOTS) * SLOT_BYTES);
    return n == (ssize_t)sizeof(slot) ? EBB_OK : EBB_IO;
}

// Whole or not at all: a crash must not leave a file that looks damaged.
static ebb_status s_make(ebb_kvmarker *m)
{
    m->file = openat(m->dir, EBB_KVMARK_FILE ".tmp", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (m->file < 0) {
        return EBB_IO;
    }
    for (int i = 0; i < SLOTS; i++) {
        EBB_TRY(s_put(m));
    }
    bool ok = fsync(m->file) == 0 && renameat(m->dir, EBB_KVMARK_FILE ".tmp", m->dir, EBB_KVMARK_FILE) == 0 && fsync(m->dir) == 0;
    return ok ? EBB_OK : EBB_IO;
}

// The newest valid slot, or a mark that promises nothing. good: how many are valid; bad: the number of an invalid one.
static ebb_status s_read(int file, s_mark *out, int *good, int *bad)
{
    uint8_t slot[SLOT_BYTES];
    s_mark m;
    *good = 0;
    *bad = -1;
    *out = (s_mark){0};
    for (int i = 0; i < SLOTS; i++) {
        ssize_t n = pread(file, slot, sizeof(slot), (off_t)i * SLOT_BYTES);
        if (n < 0) {
            return EBB_IO;
        }
        if (n == (ssize_t)sizeof(slot) && s_unpack(slot, &m)) {
            (*good)++;
            *out = m.count > out->count ? m : *out;
        } else {
            *bad = i;
        }
    }
    return EBB_OK;
}

ebb_status ebb_kvmarker_open(const char *dir, ebb_kvmarker **out)
{
    int good = 0, bad = 0;
    ebb_kvmarker *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        return EBB_NOMEM;
    }
    m->file = -1;
    m->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ebb_status st = m->dir < 0 ? EBB_IO : EBB_OK;
    if (st == EBB_OK) {
        m->file = openat(m->dir, EBB_KVMARK_FILE, O_RDWR | O_CLOEXEC);
        if (m->file >= 0) {
            st = s_read(m->file, &m->mark, &good, &bad);
        } else {
            st = errno == ENOENT ? s_make(m) : EBB_IO;
        }
    }
    if (st != EBB_OK) {
        ebb_kvmarker_close(&m);
        return st;
    }
    *out = m;
    return EBB_OK;
}

void ebb_kvmarker_close(ebb_kvmarker **mp)
{
    ebb_kvmarker *m = *mp;
    if (m == NULL) {
        return;
    }
    *mp = NULL;
    if (m->file >= 0) {
        close(m->file);
    }
    if (m->dir >= 0) {
        close(m->dir);
    }
    free(m);
}

ebb_status ebb_kvmarker_look_manifest(ebb_kvmarker *m)
{
    uint64_t number = 0;
    char name[64];
    struct stat st;
    EBB_TRY(s_current(m->dir, &number));
    s_manifest_name(name, number);
    if (fstatat(m->dir, name, &st, 0) != 0) {
        return EBB_IO;
    }
    if (number == m->mark.manifest && (uint64_t)st.st_size == m->mark.manifest_bytes) {
        return EBB_OK;
    }
    // Somebody may be writing at it: whole records count. It is synced here, since it may not be yet.
    s_view v;
    ebb_kvlog_walk walk;
    EBB_TRY(s_map(m->dir, name, &v));
    ebb_kvlog_walk_bytes(v.data, v.len, &walk);
    s_unmap(&v);
    int fd = openat(m->dir, name, O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0 && fdatasync(fd) == 0 && (number == m->mark.manifest || fsync(m->dir) == 0);
    if (fd >= 0) {
        close(fd);
    }
    if (ok) {
        m->mark.manifest = number;
        m->mark.manifest_bytes = walk.whole;
    }
    return ok ? EBB_OK : EBB_IO;
}

ebb_status ebb_kvmarker_look_logs(ebb_kvmarker *m)
{
    bool tables;
    return s_list_logs(m->dir, m->mark.logs, EBB_KVMARK_LOGS_MAX, &m->mark.n_logs, &tables);
}

ebb_status ebb_kvmarker_keep(ebb_kvmarker *m, uint64_t needed_from)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->mark.n_logs; i++) {
        if (m->mark.logs[i].number >= needed_from) {
            m->mark.logs[n++] = m->mark.logs[i];
        }
    }
    m->mark.n_logs = n;
    return s_put(m);
}

// ---- verifying ----

typedef struct s_verifier {
    int dir;
    ebb_kvproblem_fn *fn;
    void *arg;
    ebb_kvmark_facts facts;
    s_mark mark;
} s_verifier;

static void s_tell(const s_verifier *v, bool harmless, const char *file, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void s_tell(const s_verifier *v, bool harmless, const char *file, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    v->fn(v->arg, harmless, file, text);
}

// The first `synced` bytes of the file must be whole records.
static ebb_status s_verify_file(s_verifier *v, const char *name, uint64_t synced, uint64_t *bytes)
{
    s_view view;
    ebb_kvlog_walk walk;
    ebb_status st = s_map(v->dir, name, &view);
    if (st == EBB_NOENT) {
        s_tell(v, false, name, "is missing");
        return EBB_OK;
    }
    if (st != EBB_OK) {
        s_tell(v, false, name, "cannot be read: %s", strerror(errno));
        return st;
    }
    ebb_kvlog_walk_bytes(view.data, view.len, &walk);
    *bytes += view.len;
    if (view.len < synced) {
        s_tell(v, false, name, "ends at byte %zu, but %" PRIu64 " bytes were synced: its end is cut off", view.len, synced);
    } else if (walk.whole < synced) {
        s_tell(v, false, name, "offset %" PRIu64 ": %s, in what was synced (%" PRIu64 " bytes)", walk.at, walk.bad, synced);
    } else {
        v->facts.torn_bytes += view.len - walk.whole;
    }
    s_unmap(&view);
    return EBB_OK;
}

static ebb_status s_verify_mark(s_verifier *v)
{
    int good = 0, bad = -1;
    int file = openat(v->dir, EBB_KVMARK_FILE, O_RDONLY | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) {
        return EBB_OK;
    }
    ebb_status st = file >= 0 ? s_read(file, &v->mark, &good, &bad) : EBB_IO;
    if (st != EBB_OK) {
        s_tell(v, false, EBB_KVMARK_FILE, "cannot be read: %s", strerror(errno));
    } else if (bad >= 0) {
        s_tell(v, good > 0, EBB_KVMARK_FILE, "offset %d: the checksum or format of %s is damaged", good > 0 ? bad * SLOT_BYTES : 0,
               good > 0 ? "a slot" : "both slots");
    }
    v->facts.has_mark = true;
    if (file >= 0) {
        close(file);
    }
    return st;
}

static ebb_status s_verify_manifest(s_verifier *v, bool store)
{
    uint64_t number = 0;
    char name[64];
    ebb_status st = s_current(v->dir, &number);
    if (st == EBB_NOENT && !store && !v->facts.has_mark) {
        return EBB_NOENT;
    }
    if (st == EBB_NOENT) {
        s_tell(v, false, "CURRENT", "is missing, though the folder holds a store");
        return EBB_OK;
    }
    if (st != EBB_OK) {
        s_tell(v, false, "CURRENT", st == EBB_IO ? "cannot be read" : "does not name a MANIFEST");
        return st == EBB_IO ? st : EBB_OK;
    }
    s_manifest_name(name, number);
    if (number < v->mark.manifest) {
        s_tell(v, false, "CURRENT", "names %s, but MANIFEST-%06" PRIu64 " was synced", name, v->mark.manifest);
        return EBB_OK;
    }
    return s_verify_file(v, name, number == v->mark.manifest ? v->mark.manifest_bytes : 0, &v->facts.manifest_bytes);
}

static uint64_t s_synced_bytes(const s_mark *m, uint64_t log)
{
    for (uint32_t i = 0; i < m->n_logs; i++) {
        if (m->logs[i].number == log) {
            return m->logs[i].bytes;
        }
    }
    return 0;
}

static ebb_status s_verify_logs(s_verifier *v, const s_log *logs, uint32_t n)
{
    char name[64];
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%06" PRIu64 ".log", logs[i].number);
        EBB_TRY(s_verify_file(v, name, s_synced_bytes(&v->mark, logs[i].number), &v->facts.log_bytes));
    }
    for (uint32_t k = 0; k < v->mark.n_logs; k++) {
        bool there = false;
        for (uint32_t i = 0; i < n; i++) {
            there |= logs[i].number == v->mark.logs[k].number;
        }
        v->facts.missing = there ? v->facts.missing : v->mark.logs[k].number;
    }
    return EBB_OK;
}

ebb_status ebb_kvmark_verify(const char *dir, ebb_kvproblem_fn *fn, void *arg, ebb_kvmark_facts *facts)
{
    enum { LOGS_MAX = 1024 };
    s_verifier v = {.fn = fn, .arg = arg};
    uint32_t n = 0;
    bool tables = false;
    v.dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (v.dir < 0) {
        if (errno == ENOENT) {
            return EBB_NOENT;
        }
        s_tell(&v, false, ".", "cannot be read: %s", strerror(errno));
        return EBB_IO;
    }
    s_log *logs = malloc(LOGS_MAX * sizeof(*logs));
    ebb_status st = logs == NULL ? EBB_NOMEM : s_list_logs(v.dir, logs, LOGS_MAX, &n, &tables);
    if (st == EBB_OK) {
        st = s_verify_mark(&v);
    }
    if (st == EBB_OK) {
        st = s_verify_manifest(&v, tables || n > 0);
    }
    if (st == EBB_OK) {
        st = s_verify_logs(&v, logs, n);
    }
    free(logs);
    close(v.dir);
    if (facts != NULL) {
        *facts = v.facts;
    }
    return st;
}
