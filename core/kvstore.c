#include "core/kvstore.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <rocksdb/c.h>

#include "core/assert.h"
#include "core/log.h"
#include "core/process.h"

#define MEMTABLE_BYTES_DEFAULT (64u << 20)
#define WAL_BYTES_DEFAULT (256u << 20)
#define SYNC_SLICE_BYTES (4u << 20) // dirty pages are handed to the disk in slices, so that a sync finds little left to do
#define WAL_RECOVERY_TOLERATE_CORRUPTED_TAIL 0
#define INFO_LOG_ERROR 3

struct ebb_kvstore {
    rocksdb_t *db;
    rocksdb_options_t *options;
    rocksdb_block_based_table_options_t *table;
    rocksdb_readoptions_t *read, *scan; // scan: checksums verified, block cache left alone
    rocksdb_writeoptions_t *write, *write_sync;
    _Atomic bool failed; // latched by the first failed write
    char *dir;
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

// The one place where a RocksDB error becomes a status. Takes the text.
static ebb_status s_status(char *err)
{
    if (err == NULL) {
        return EBB_OK;
    }
    ebb_status st = EBB_IO;
    if (strncmp(err, "Corruption", 10) == 0) {
        st = EBB_CORRUPT;
    } else if (strstr(err, "lock file") != NULL || strstr(err, "lock hold by") != NULL || strstr(err, "LOCK: ") != NULL) {
        st = EBB_TRYLATER;
    } else if (strstr(err, "does not exist (create_if_missing is false)") != NULL || strstr(err, "No such file or directory") != NULL) {
        st = EBB_NOENT;
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
    if (kv->write_sync != NULL) {
        rocksdb_writeoptions_destroy(kv->write_sync);
    }
    if (kv->options != NULL) {
        rocksdb_options_destroy(kv->options);
    }
    if (kv->table != NULL) {
        rocksdb_block_based_options_destroy(kv->table);
    }
    free(kv->dir);
    free(kv);
}

static rocksdb_options_t *s_options(const ebb_kvstore_options *o, rocksdb_block_based_table_options_t *table)
{
    rocksdb_options_t *r = rocksdb_options_create();
    size_t memtable = o->memtable_bytes != 0 ? o->memtable_bytes : MEMTABLE_BYTES_DEFAULT;
    rocksdb_options_set_create_if_missing(r, o->create);
    rocksdb_options_set_paranoid_checks(r, 1);
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
    ebb_kvstore *kv = calloc(1, sizeof(*kv));
    if (kv == NULL) {
        return EBB_NOMEM;
    }
    kv->dir = strdup(dir);
    if (kv->dir == NULL) {
        free(kv);
        return EBB_NOMEM;
    }
    kv->table = rocksdb_block_based_options_create();
    kv->options = s_options(options, kv->table);
    kv->read = rocksdb_readoptions_create();
    kv->scan = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(kv->scan, 1);
    rocksdb_readoptions_set_fill_cache(kv->scan, 0);
    rocksdb_readoptions_set_readahead_size(kv->scan, 2u << 20);
    kv->write = rocksdb_writeoptions_create();
    kv->write_sync = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(kv->write_sync, 1);
    char *err = NULL;
    kv->db = options->read_only ? rocksdb_open_for_read_only(kv->options, dir, 0, &err) : rocksdb_open(kv->options, dir, &err);
    if (err != NULL) {
        kv->db = NULL;
        snprintf(why, 256, "cannot open the store %.100s: %.130s", dir, err);
        ebb_status st = s_status(err);
        s_free(kv);
        return st;
    }
    *out = kv;
    return EBB_OK;
}

void ebb_kvstore_close(ebb_kvstore **kvp)
{
    ebb_kvstore *kv = *kvp;
    if (kv != NULL) {
        *kvp = NULL;
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

ebb_status ebb_kvstore_put(ebb_kvstore *kv, const void *key, size_t key_len, const void *value, size_t len, bool sync)
{
    if (kv->failed) {
        return EBB_IO;
    }
    char *err = NULL;
    rocksdb_put(kv->db, sync ? kv->write_sync : kv->write, key, key_len, value, len, &err);
    return s_written(kv, "put", err);
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
    if (kv->failed) {
        return EBB_IO;
    }
    char *err = NULL;
    rocksdb_write(kv->db, sync ? kv->write_sync : kv->write, b->wb, &err);
    return s_written(kv, "write", err);
}

ebb_status ebb_kvstore_sync(ebb_kvstore *kv)
{
    if (kv->failed) {
        return EBB_IO;
    }
    char *err = NULL;
    rocksdb_flush_wal(kv->db, 1, &err);
    return s_written(kv, "sync", err);
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
