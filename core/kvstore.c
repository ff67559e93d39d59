#define _GNU_SOURCE // F_OFD_GETLK
#include "core/kvstore.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <rocksdb/c.h>

#include "core/assert.h"
#include "core/log.h"
#include "core/process.h"

#define MEMTABLE_BYTES_DEFAULT (64u << 20)
#define WAL_BYTES_DEFAULT (256u << 20)
#define SYNC_SLICE_BYTES (4u << 20) // dirty pages are handed to the disk in slices, so that a sync finds little left to do
// Damage in the log's middle refuses to open; what a crash cut short at its end is dropped. The other modes will not do: 1 refuses after every kill -9 that hits a
// write, 2 (the default) and 3 drop what follows the damage in silence. RocksDB takes some damage (a flipped length, a log or MANIFEST that lost its end) for
// such a cut; core/kvmark refuses that before RocksDB looks at the folder.
#define WAL_RECOVERY_TOLERATE_CORRUPTED_TAIL 0
#define INFO_LOG_ERROR 3
#define OLDEST_LOG "rocksdb.min-log-number-to-keep" // of those whose rows are not all in tables; MANIFEST has it

struct ebb_kvstore {
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_block_based_table_options_t *table;
    rocksdb_readoptions_t *read, *scan; // scan: checksums verified, block cache left alone
    rocksdb_writeoptions_t *write;
    _Atomic bool failed; // latched by the first failed write
    char *dir;
    int lock; // read-only: holds a shared lock on the store's own lock file, so that nobody begins to write meanwhile; else -1
    // Writes are counted, so that one sync serves all that wait for it, and the marker learns how long the log was when it began.
    ebb_kvmarker *marker;     // NULL: read-only
    pthread_rwlock_t writing; // shared: a write is under way
    pthread_mutex_t syncing;
    _Atomic uint64_t written;
    uint64_t synced;    // of written; under syncing
    bool marker_failed; // said so already; under syncing
};

struct ebb_kvbatch {
    rocksdb_writebatch_t *wb;
};

struct ebb_kviter {
    rocksdb_iterator_t *it;
    ebb_kvstore *kv;
    uint8_t *prefix;
    size_t prefix_len;
    bool fresh; // positioned, but the entry it stands on was not handed out yet
};

// The one place where a RocksDB error becomes a status. Takes the text. The folder holds a store, so a file that is missing or of an unknown form is damage.
static ebb_status s_status(char *err)
{
    if (err == NULL) {
        return EBB_OK;
    }
    ebb_status st = EBB_IO;
    if (strncmp(err, "Corruption", 10) == 0 || strncmp(err, "Not implemented", 15) == 0) {
        st = EBB_CORRUPT;
    } else if (strstr(err, "lock file") != NULL || strstr(err, "lock hold by") != NULL || strstr(err, "LOCK: ") != NULL) {
        st = EBB_TRYLATER;
    } else if (strstr(err, "does not exist (create_if_missing is false)") != NULL) {
        st = EBB_NOENT;
    } else if (strncmp(err, "Invalid argument", 16) == 0 || strstr(err, "No such file or directory") != NULL) {
        st = EBB_CORRUPT;
    }
    rocksdb_free(err);
    return st;
}

// A failed write has an unknown outcome, and RocksDB may fail one and take the next: after the first there must be no next.
static ebb_status s_written(ebb_kvstore *kv, const char *what, char *err)
{
    if (err == NULL) {
        return EBB_OK;
    }
    if (!atomic_exchange(&kv->failed, true)) {
        EBB_LOG(ERROR, "kvstore", "write-failed", "dir=%s op=%s error=\"%s\"", kv->dir, what, err);
    }
    rocksdb_free(err);
    return EBB_IO;
}

static void s_free(ebb_kvstore *kv)
{
    if (kv->db != NULL) {
        rocksdb_close(kv->db);
    }
    if (kv->read != NULL) {
        rocksdb_readoptions_destroy(kv->read);
    }
    if (kv->scan != NULL) {
        rocksdb_readoptions_destroy(kv->scan);
    }
    if (kv->write != NULL) {
        rocksdb_writeoptions_destroy(kv->write);
    }
    if (kv->options != NULL) {
        rocksdb_options_destroy(kv->options);
    }
    if (kv->table != NULL) {
        rocksdb_block_based_options_destroy(kv->table);
    }
    ebb_kvmarker_close(&kv->marker);
    if (kv->lock >= 0) {
        close(kv->lock);
    }
    pthread_rwlock_destroy(&kv->writing);
    pthread_mutex_destroy(&kv->syncing);
    free(kv->dir);
    free(kv);
}

static rocksdb_options_t *s_options(const ebb_kvstore_options *o, rocksdb_block_based_table_options_t *table)
{
    rocksdb_options_t *r = rocksdb_options_create();
    size_t memtable = o->memtable_bytes != 0 ? o->memtable_bytes : MEMTABLE_BYTES_DEFAULT;
    rocksdb_options_set_create_if_missing(r, o->create);
    rocksdb_options_set_paranoid_checks(r, 1); // damage found by a compaction stops writing; sizes of tables are compared with MANIFEST when opening
    rocksdb_options_set_wal_recovery_mode(r, WAL_RECOVERY_TOLERATE_CORRUPTED_TAIL);
    rocksdb_options_set_max_total_wal_size(r, o->wal_bytes_max != 0 ? o->wal_bytes_max : WAL_BYTES_DEFAULT);
    rocksdb_options_set_write_buffer_size(r, memtable);
    rocksdb_options_set_max_write_buffer_number(r, 3);
    rocksdb_options_set_max_background_jobs(r, 2);
    rocksdb_options_set_compression(r, rocksdb_no_compression); // float noise does not compress
    rocksdb_options_set_bytes_per_sync(r, SYNC_SLICE_BYTES);
    rocksdb_options_set_wal_bytes_per_sync(r, SYNC_SLICE_BYTES);
    rocksdb_options_set_info_log_level(r, INFO_LOG_ERROR);
    rocksdb_options_set_keep_log_file_num(r, 2);
    rocksdb_options_set_max_log_file_size(r, 1u << 20);
    rocksdb_options_set_stats_dump_period_sec(r, 0);
    rocksdb_options_set_stats_persist_period_sec(r, 0);
    rocksdb_options_set_max_open_files(r, 256);
    rocksdb_options_set_max_manifest_file_size(r, 4u << 20);
    if (o->big_values) {
        // Values live shortly (journal) or are replaced whole (chunks); rewriting them between levels buys nothing. So: few, large files, and level 0
        // may grow until the caller compacts the range it deleted.
        rocksdb_options_set_level0_file_num_compaction_trigger(r, 16);
        rocksdb_options_set_level0_slowdown_writes_trigger(r, 48);
        rocksdb_options_set_level0_stop_writes_trigger(r, 64);
        rocksdb_options_set_max_bytes_for_level_base(r, 16 * (uint64_t)memtable);
        rocksdb_options_set_target_file_size_base(r, 2 * (uint64_t)memtable);
        rocksdb_block_based_options_set_block_size(table, 64u << 10);
        rocksdb_block_based_options_set_no_block_cache(table, 1);
    }
    rocksdb_options_set_block_based_table_factory(r, table);
    return r;
}

// Does somebody write to the store (TRYLATER)? Looks, and for reading takes a shared lock that *lock keeps. RocksDB locks by fcntl.
static ebb_status s_lock(const char *dir, bool shared, int *lock, char *why)
{
    char path[4096];
    struct flock probe = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    snprintf(path, sizeof(path), "%s/LOCK", dir);
    *lock = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return EBB_OK; // nobody has opened it since it was copied here
    }
    if (shared) {
        probe.l_type = F_RDLCK;
    }
    if (fcntl(fd, F_OFD_GETLK, &probe) == 0 && probe.l_type != F_UNLCK) {
        if (probe.l_pid > 0) {
            snprintf(why, 256, "cannot open the store %.150s: it is in use by process %d", dir, (int)probe.l_pid);
        } else {
            snprintf(why, 256, "cannot open the store %.150s: it is being read by --check or --dump", dir);
        }
        if (probe.l_pid != getpid()) { // closing it would drop our own lock
            close(fd);
        }
        return EBB_TRYLATER;
    }
    struct flock take = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    if (shared && fcntl(fd, F_OFD_SETLK, &take) != 0 && (errno == EAGAIN || errno == EACCES)) {
        snprintf(why, 256, "cannot open the store %.150s: it is in use", dir);
        close(fd);
        return EBB_TRYLATER;
    }
    if (shared) {
        *lock = fd;
    } else {
        close(fd);
    }
    return EBB_OK;
}

typedef struct s_verdict {
    const char *dir;
    char *why;
    bool bad;
} s_verdict;

static void s_on_problem(void *arg, bool harmless, const char *file, const char *what)
{
    s_verdict *v = arg;
    if (harmless) {
        EBB_LOG(WARN, "kvstore", "damaged", "dir=%s file=%s what=\"%s\"", v->dir, file, what);
    } else if (!v->bad) {
        v->bad = true;
        snprintf(v->why, 256, "the store %.90s is damaged: %.24s: %.120s", v->dir, file, what);
    }
}

static ebb_status s_verify_files(const char *dir, bool create, uint64_t *missing, char *why)
{
    ebb_kvmark_facts facts = {0};
    s_verdict v = {.dir = dir, .why = why};
    ebb_status st = ebb_kvmark_verify(dir, s_on_problem, &v, &facts);
    *missing = facts.missing;
    if (st == EBB_NOENT && create) {
        return EBB_OK;
    }
    if (st == EBB_NOENT) {
        snprintf(why, 256, "there is no store in %.200s", dir);
    }
    return st == EBB_OK && v.bad ? EBB_CORRUPT : st;
}

static ebb_status s_open_one(ebb_kvstore *kv, bool read_only, char *why)
{
    char *err = NULL;
    kv->db = read_only ? rocksdb_open_for_read_only(kv->options, kv->dir, 0, &err) : rocksdb_open(kv->options, kv->dir, &err);
    if (err == NULL) {
        return EBB_OK;
    }
    kv->db = NULL;
    snprintf(why, 256, "cannot open the store %.100s: %.130s", kv->dir, err);
    return s_status(err);
}

// missing: a log that was synced and is gone (0: none), as it should be if its rows went to tables meanwhile. Only MANIFEST knows, and opening for writing adds to it:
// so the store is opened for reading first.
static ebb_status s_open_db(ebb_kvstore *kv, bool read_only, uint64_t missing, char *why)
{
    if (missing != 0) {
        uint64_t oldest = 0;
        EBB_TRY(s_open_one(kv, true, why));
        bool needed = rocksdb_property_int(kv->db, OLDEST_LOG, &oldest) == 0 && missing >= oldest;
        if (read_only && !needed) {
            return EBB_OK;
        }
        rocksdb_close(kv->db);
        kv->db = NULL;
        if (needed) {
            snprintf(why, 256, "the store %.120s is damaged: %06llu.log is missing, though it was synced and is still needed", kv->dir,
                     (unsigned long long)missing);
            return EBB_CORRUPT;
        }
    }
    return s_open_one(kv, read_only, why);
}

static ebb_status s_sync(ebb_kvstore *kv, uint64_t ticket);

ebb_status ebb_kvstore_open(const char *dir, const ebb_kvstore_options *options, ebb_kvstore **out, char *why)
{
    char ignored[256];
    if (why == NULL) {
        why = ignored;
    }
    why[0] = '\0';
    if (options->create && ebb_mkdirs(dir) != EBB_OK) {
        snprintf(why, 256, "cannot create the folder %.150s: %s", dir, strerror(errno));
        return EBB_IO;
    }
    int lock = -1;
    EBB_TRY(s_lock(dir, options->read_only, &lock, why));
    uint64_t missing = 0;
    ebb_status st = s_verify_files(dir, options->create, &missing, why);
    ebb_kvstore *kv = st == EBB_OK ? calloc(1, sizeof(*kv)) : NULL;
    char *copy = kv != NULL ? strdup(dir) : NULL;
    if (copy == NULL) {
        free(kv);
        if (lock >= 0) {
            close(lock);
        }
        int now;
        if (st == EBB_CORRUPT && s_lock(dir, false, &now, why) == EBB_TRYLATER) {
            return EBB_TRYLATER; // somebody began to write while we looked
        }
        return st == EBB_OK ? EBB_NOMEM : st;
    }
    kv->dir = copy;
    kv->lock = lock;
    kv->written = 1; // whatever was written before us
    pthread_rwlockattr_t prefer_sync;
    pthread_rwlockattr_init(&prefer_sync);
    pthread_rwlockattr_setkind_np(&prefer_sync, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&kv->writing, &prefer_sync);
    pthread_rwlockattr_destroy(&prefer_sync);
    pthread_mutex_init(&kv->syncing, NULL);
    kv->table = rocksdb_block_based_options_create();
    kv->options = s_options(options, kv->table);
    kv->read = rocksdb_readoptions_create();
    kv->scan = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(kv->scan, 1);
    rocksdb_readoptions_set_fill_cache(kv->scan, 0);
    rocksdb_readoptions_set_readahead_size(kv->scan, 2u << 20);
    kv->write = rocksdb_writeoptions_create();
    st = s_open_db(kv, options->read_only, missing, why);
    if (st != EBB_OK) {
        s_free(kv);
        return st;
    }
    if (!options->read_only) {
        st = ebb_kvmarker_open(dir, &kv->marker);
        if (st == EBB_OK) {
            st = s_sync(kv, kv->written);
        }
        if (st != EBB_OK) {
            snprintf(why, 256, "cannot write to the store %.150s: %s", dir, strerror(errno));
            s_free(kv);
            return st;
        }
    }
    *out = kv;
    return EBB_OK;
}

void ebb_kvstore_close(ebb_kvstore **kvp)
{
    ebb_kvstore *kv = *kvp;
    if (kv != NULL) {
        *kvp = NULL;
        if (kv->marker != NULL && !kv->failed) {
            s_sync(kv, kv->written); // what fails is logged: there is nobody left to act on it
        }
        s_free(kv);
    }
}

ebb_status ebb_kvstore_get(ebb_kvstore *kv, const void *key, size_t key_len, uint8_t **value, size_t *len)
{
    char *err = NULL;
    size_t n = 0;
    char *got = rocksdb_get(kv->db, kv->read, key, key_len, &n, &err);
    if (err != NULL) {
        EBB_LOG(ERROR, "kvstore", "read-failed", "dir=%s error=\"%s\"", kv->dir, err);
        return s_status(err);
    }
    if (got == NULL) {
        return EBB_NOENT;
    }
    uint8_t *copy = malloc(n > 0 ? n : 1); // RocksDB's memory is its own: free() need not be its allocator
    if (copy == NULL) {
        rocksdb_free(got);
        return EBB_NOMEM;
    }
    memcpy(copy, got, n);
    rocksdb_free(got);
    *value = copy;
    *len = n;
    return EBB_OK;
}

// Makes everything up to that write durable, and tells the marker. One sync serves all that wait for one.
static ebb_status s_sync(ebb_kvstore *kv, uint64_t ticket)
{
    EBB_ASSERT(kv->marker != NULL); // not read-only
    ebb_status st = EBB_OK;
    pthread_mutex_lock(&kv->syncing);
    if (kv->failed) {
        st = EBB_IO;
    } else if (kv->synced < ticket) {
        char *err = NULL;
        ebb_status marked = ebb_kvmarker_look_manifest(kv->marker);
        uint64_t needed_from = 0;
        pthread_rwlock_wrlock(&kv->writing);
        uint64_t upto = kv->written;
        marked = marked == EBB_OK ? ebb_kvmarker_look_logs(kv->marker) : marked;
        pthread_rwlock_unlock(&kv->writing);
        rocksdb_flush_wal(kv->db, 1, &err);
        st = s_written(kv, "sync", err);
        if (st == EBB_OK) {
            kv->synced = upto;
            if (marked == EBB_OK && rocksdb_property_int(kv->db, OLDEST_LOG, &needed_from) == 0) {
                marked = ebb_kvmarker_keep(kv->marker, needed_from);
            }
            if (marked != EBB_OK && !kv->marker_failed) { // the data is safe; only damage will be harder to see
                kv->marker_failed = true;
                EBB_LOG(WARN, "kvstore", "mark-failed", "dir=%s file=" EBB_KVMARK_FILE " error=\"%s\"", kv->dir, strerror(errno));
            }
        }
    }
    pthread_mutex_unlock(&kv->syncing);
    return st;
}

static ebb_status s_write(ebb_kvstore *kv, rocksdb_writebatch_t *wb, bool sync)
{
    EBB_ASSERT(kv->marker != NULL); // not read-only
    if (kv->failed) {
        return EBB_IO;
    }
    char *err = NULL;
    pthread_rwlock_rdlock(&kv->writing);
    rocksdb_write(kv->db, kv->write, wb, &err);
    uint64_t ticket = ++kv->written;
    pthread_rwlock_unlock(&kv->writing);
    EBB_TRY(s_written(kv, "write", err));
    return sync ? s_sync(kv, ticket) : EBB_OK;
}

ebb_status ebb_kvstore_put(ebb_kvstore *kv, const void *key, size_t key_len, const void *value, size_t len, bool sync)
{
    rocksdb_writebatch_t *wb = rocksdb_writebatch_create();
    rocksdb_writebatch_put(wb, key, key_len, value, len);
    ebb_status st = s_write(kv, wb, sync);
    rocksdb_writebatch_destroy(wb);
    return st;
}

ebb_status ebb_kvbatch_new(ebb_kvbatch **out)
{
    ebb_kvbatch *b = calloc(1, sizeof(*b));
    if (b == NULL) {
        return EBB_NOMEM;
    }
    b->wb = rocksdb_writebatch_create();
    *out = b;
    return EBB_OK;
}

void ebb_kvbatch_free(ebb_kvbatch **bp)
{
    ebb_kvbatch *b = *bp;
    if (b != NULL) {
        *bp = NULL;
        rocksdb_writebatch_destroy(b->wb);
        free(b);
    }
}

void ebb_kvbatch_clear(ebb_kvbatch *b)
{
    rocksdb_writebatch_clear(b->wb);
}

void ebb_kvbatch_put(ebb_kvbatch *b, const void *key, size_t key_len, const void *value, size_t len)
{
    rocksdb_writebatch_put(b->wb, key, key_len, value, len);
}

void ebb_kvbatch_putv(ebb_kvbatch *b, const void *key, size_t key_len, const void *const *pieces, const size_t *lens, size_t n)
{
    const char *keys[1] = {key};
    rocksdb_writebatch_putv(b->wb, 1, keys, &key_len, (int)n, (const char *const *)pieces, lens);
}

void ebb_kvbatch_del(ebb_kvbatch *b, const void *key, size_t key_len)
{
    rocksdb_writebatch_delete(b->wb, key, key_len);
}

void ebb_kvbatch_del_range(ebb_kvbatch *b, const void *from, size_t from_len, const void *to, size_t to_len)
{
    rocksdb_writebatch_delete_range(b->wb, from, from_len, to, to_len);
}

size_t ebb_kvbatch_count(const ebb_kvbatch *b)
{
    return (size_t)rocksdb_writebatch_count(b->wb);
}

ebb_status ebb_kvstore_write(ebb_kvstore *kv, ebb_kvbatch *b, bool sync)
{
    return s_write(kv, b->wb, sync);
}

ebb_status ebb_kvstore_sync(ebb_kvstore *kv)
{
    return kv->failed ? EBB_IO : s_sync(kv, kv->written);
}

bool ebb_kvstore_is_read_only(const ebb_kvstore *kv)
{
    return kv->marker == NULL;
}

ebb_status ebb_kvstore_flush(ebb_kvstore *kv)
{
    if (kv->failed) {
        return EBB_IO;
    }
    char *err = NULL;
    rocksdb_flushoptions_t *o = rocksdb_flushoptions_create();
    rocksdb_flushoptions_set_wait(o, 1);
    rocksdb_flush(kv->db, o, &err);
    rocksdb_flushoptions_destroy(o);
    return s_written(kv, "flush", err);
}

ebb_status ebb_kvstore_compact_range(ebb_kvstore *kv, const void *from, size_t from_len, const void *to, size_t to_len)
{
    if (kv->failed) {
        return EBB_IO;
    }
    rocksdb_compactoptions_t *o = rocksdb_compactoptions_create();
    rocksdb_compactoptions_set_exclusive_manual_compaction(o, 0); // flushes and other compactions go on
    rocksdb_compact_range_opt(kv->db, o, from, from_len, to, to_len);
    rocksdb_compactoptions_destroy(o);
    return EBB_OK; // the C API reports nothing here: a background error shows at the next write
}

uint64_t ebb_kvstore_disk_bytes(ebb_kvstore *kv)
{
    uint64_t sum = 0;
    DIR *d = opendir(kv->dir);
    if (d == NULL) {
        return 0;
    }
    struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        struct stat st;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) {
            sum += (uint64_t)st.st_size;
        }
    }
    closedir(d);
    return sum;
}

// ---- verifying ----

// RocksDB names the table in its text: "... in /a/b/000012.sst offset 0 size 4096".
static void s_file_of(const char *text, char file[32])
{
    const char *end = strstr(text, ".sst"), *at = end;
    while (at != NULL && at > text && at[-1] != '/' && at[-1] != ' ') {
        at--;
    }
    snprintf(file, 32, "%.*s", at != NULL ? (int)(end + 4 - at) : 1, at != NULL ? at : ".");
}

typedef struct s_key {
    char *at;
    size_t len;
} s_key;

static int s_key_compare(const void *a, const void *b)
{
    const s_key *x = a, *y = b;
    int c = memcmp(x->at, y->at, x->len < y->len ? x->len : y->len);
    return c != 0 ? c : (x->len > y->len) - (x->len < y->len);
}

// First and last keys of all tables, ascending: where reading can go on after damage.
static ebb_status s_borders(ebb_kvstore *kv, s_key **out, size_t *n, ebb_kvstore_facts *facts)
{
    const rocksdb_livefiles_t *files = rocksdb_livefiles(kv->db);
    int count = rocksdb_livefiles_count(files);
    s_key *keys = calloc(2 * (size_t)count + 1, sizeof(*keys));
    ebb_status st = keys != NULL ? EBB_OK : EBB_NOMEM;
    *n = 0;
    for (int i = 0; i < count && st == EBB_OK; i++) {
        facts->tables++;
        facts->table_bytes += rocksdb_livefiles_size(files, i);
        for (int last = 0; last < 2; last++) {
            size_t len = 0;
            const char *at = last ? rocksdb_livefiles_largestkey(files, i, &len) : rocksdb_livefiles_smallestkey(files, i, &len);
            keys[*n] = (s_key){malloc(len + 1), len};
            if (keys[*n].at == NULL) {
                st = EBB_NOMEM;
                break;
            }
            memcpy(keys[*n].at, at, len);
            (*n)++;
        }
    }
    rocksdb_livefiles_destroy(files);
    if (st == EBB_OK) {
        qsort(keys, *n, sizeof(*keys), s_key_compare);
    }
    *out = keys;
    return st;
}

// Reads every key of every table, those that are deleted by range too. After damage it goes on at the next table's border.
static void s_scan(ebb_kvstore *kv, const s_key *borders, size_t n, ebb_kvproblem_fn *fn, void *arg)
{
    rocksdb_readoptions_t *o = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(o, 1);
    rocksdb_readoptions_set_fill_cache(o, 0);
    rocksdb_readoptions_set_readahead_size(o, 2u << 20);
    rocksdb_readoptions_set_ignore_range_deletions(o, 1);
    rocksdb_iterator_t *it = rocksdb_create_iterator(kv->db, o);
    char told[512] = "", file[32];
    size_t border = 0;
    rocksdb_iter_seek_to_first(it);
    for (;;) {
        while (rocksdb_iter_valid(it)) {
            s_key key = {0};
            key.at = (char *)(uintptr_t)rocksdb_iter_key(it, &key.len);
            while (border < n && s_key_compare(&borders[border], &key) <= 0) {
                border++; // passed
            }
            rocksdb_iter_next(it);
        }
        char *err = NULL;
        rocksdb_iter_get_error(it, &err);
        if (err == NULL) {
            break;
        }
        if (strncmp(told, err, sizeof(told) - 1) != 0) {
            snprintf(told, sizeof(told), "%s", err);
            s_file_of(err, file);
            fn(arg, false, file, err);
        }
        rocksdb_free(err);
        if (border == n) {
            break;
        }
        rocksdb_iter_seek(it, borders[border].at, borders[border].len);
        border++; // each border is tried once, so this ends
    }
    rocksdb_iter_destroy(it);
    rocksdb_readoptions_destroy(o);
}

ebb_status ebb_kvstore_verify(ebb_kvstore *kv, ebb_kvproblem_fn *fn, void *arg, ebb_kvstore_facts *facts)
{
    s_key *borders = NULL;
    size_t n = 0;
    *facts = (ebb_kvstore_facts){.sequence = rocksdb_get_latest_sequence_number(kv->db)};
    ebb_status st = s_borders(kv, &borders, &n, facts);
    if (st == EBB_OK) {
        s_scan(kv, borders, n, fn, arg);
    }
    for (size_t i = 0; i < n; i++) {
        free(borders[i].at);
    }
    free(borders);
    return st;
}

ebb_status ebb_kvstore_is_free(const char *dir, char *why)
{
    int lock;
    return s_lock(dir, false, &lock, why);
}

ebb_status ebb_kviter_open(ebb_kvstore *kv, const void *prefix, size_t prefix_len, ebb_kviter **out)
{
    ebb_kviter *it = calloc(1, sizeof(*it));
    uint8_t *copy = malloc(prefix_len > 0 ? prefix_len : 1);
    if (it == NULL || copy == NULL) {
        free(it);
        free(copy);
        return EBB_NOMEM;
    }
    if (prefix_len > 0) {
        memcpy(copy, prefix, prefix_len);
    }
    it->prefix = copy;
    it->prefix_len = prefix_len;
    it->kv = kv;
    it->it = rocksdb_create_iterator(kv->db, kv->scan);
    rocksdb_iter_seek(it->it, (const char *)copy, prefix_len);
    it->fresh = true;
    *out = it;
    return EBB_OK;
}

bool ebb_kviter_next(ebb_kviter *it, const uint8_t **key, size_t *key_len, const uint8_t **value, size_t *len)
{
    if (!it->fresh && rocksdb_iter_valid(it->it)) {
        rocksdb_iter_next(it->it);
    }
    it->fresh = false;
    if (!rocksdb_iter_valid(it->it)) {
        return false;
    }
    *key = (const uint8_t *)rocksdb_iter_key(it->it, key_len);
    if (*key_len < it->prefix_len || memcmp(*key, it->prefix, it->prefix_len) != 0) {
        it->fresh = true; // stay: asked again, the answer is the same
        return false;
    }
    *value = (const uint8_t *)rocksdb_iter_value(it->it, len);
    return true;
}

ebb_status ebb_kviter_seek(ebb_kviter *it, const void *key, size_t key_len)
{
    rocksdb_iter_seek(it->it, key, key_len);
    it->fresh = true;
    return ebb_kviter_status(it);
}

ebb_status ebb_kviter_status(ebb_kviter *it)
{
    char *err = NULL;
    rocksdb_iter_get_error(it->it, &err);
    if (err != NULL) {
        EBB_LOG(ERROR, "kvstore", "read-failed", "dir=%s error=\"%s\"", it->kv->dir, err);
    }
    return s_status(err);
}

void ebb_kviter_close(ebb_kviter **itp)
{
    ebb_kviter *it = *itp;
    if (it != NULL) {
        *itp = NULL;
        rocksdb_iter_destroy(it->it);
        free(it->prefix);
        free(it);
    }
}
