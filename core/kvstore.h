// RocksDB's one home: an ordered map of bytes with atomic batches, on one folder, one column family, key prefixes by the caller.
//
// A damaged store is refused (CORRUPT): the log is opened in the mode that refuses damage in its middle, and before that its end and MANIFEST's are compared with
// what is known to be on disk (core/kvmark), since RocksDB takes a missing end for a crash. Table blocks are verified whenever they are read.
// The first failed write latches the store: every later write fails with IO, and the process should end with EBB_EXIT_RESTART.
#ifndef EBB_CORE_KVSTORE_H
#define EBB_CORE_KVSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/kvmark.h"
#include "core/status.h"

#define EBB_EXIT_RESTART 75 // "restart me": exit code after a failed write

typedef struct ebb_kvstore ebb_kvstore;
typedef struct ebb_kvbatch ebb_kvbatch;
typedef struct ebb_kviter ebb_kviter;

typedef struct ebb_kvstore_options {
    bool create;
    bool read_only;        // changes no byte of the folder; writing is a programming error. Others may read too, nobody may write meanwhile
    size_t memtable_bytes; // 0: 64 MiB
    size_t wal_bytes_max;  // 0: 256 MiB
    bool big_values;       // large values are written once: few compactions (journal, chunks)
} ebb_kvstore_options;

// Errors: NOENT (no such folder and !create), CORRUPT, TRYLATER (locked by another process), IO. why (>= 256 bytes, may be NULL) names path and cause.
ebb_status ebb_kvstore_open(const char *dir, const ebb_kvstore_options *options, ebb_kvstore **out, char *why);
void ebb_kvstore_close(ebb_kvstore **kv); // syncs first, unless a write has failed

// Value: malloc'ed copy; free() it. NOENT.
ebb_status ebb_kvstore_get(ebb_kvstore *kv, const void *key, size_t key_len, uint8_t **value, size_t *len);
ebb_status ebb_kvstore_put(ebb_kvstore *kv, const void *key, size_t key_len, const void *value, size_t len, bool sync);

ebb_status ebb_kvbatch_new(ebb_kvbatch **out);
void ebb_kvbatch_free(ebb_kvbatch **b);
void ebb_kvbatch_clear(ebb_kvbatch *b);
void ebb_kvbatch_put(ebb_kvbatch *b, const void *key, size_t key_len, const void *value, size_t len);
// Value given in pieces (gathered without an intermediate copy by the caller).
void ebb_kvbatch_putv(ebb_kvbatch *b, const void *key, size_t key_len, const void *const *pieces, const size_t *lens, size_t n);
void ebb_kvbatch_del(ebb_kvbatch *b, const void *key, size_t key_len);
void ebb_kvbatch_del_range(ebb_kvbatch *b, const void *from, size_t from_len, const void *to, size_t to_len); // [from, to)
size_t ebb_kvbatch_count(const ebb_kvbatch *b);
// Atomic. sync: on disk when this returns; else it survives the process but not power loss until ebb_kvstore_sync.
ebb_status ebb_kvstore_write(ebb_kvstore *kv, ebb_kvbatch *b, bool sync);
ebb_status ebb_kvstore_sync(ebb_kvstore *kv); // everything written so far is on disk when this returns
ebb_status ebb_kvstore_flush(ebb_kvstore *kv);
ebb_status ebb_kvstore_compact_range(ebb_kvstore *kv, const void *from, size_t from_len, const void *to,
                                     size_t to_len); // gives space of deleted keys back
bool ebb_kvstore_is_read_only(const ebb_kvstore *kv);
uint64_t ebb_kvstore_disk_bytes(ebb_kvstore *kv); // size of all files in the folder

typedef struct ebb_kvstore_facts {
    uint64_t tables, table_bytes;
    uint64_t sequence; // writes since the store was made
} ebb_kvstore_facts;

// Reads all tables and verifies their blocks, those that are not in use any more too; each problem is told with its file (text by RocksDB, with the offset). The
// log and MANIFEST were verified when the store was opened (ebb_kvmark_verify tells about each of them). NOMEM.
ebb_status ebb_kvstore_verify(ebb_kvstore *kv, ebb_kvproblem_fn *fn, void *arg, ebb_kvstore_facts *facts);
// TRYLATER: somebody has the store open, as why (>= 256 bytes) says. Changes nothing.
ebb_status ebb_kvstore_is_free(const char *dir, char *why);

// Iterates keys with the prefix, in order. Borrowed key/value pointers hold until next/close.
ebb_status ebb_kviter_open(ebb_kvstore *kv, const void *prefix, size_t prefix_len, ebb_kviter **out);
bool ebb_kviter_next(ebb_kviter *it, const uint8_t **key, size_t *key_len, const uint8_t **value, size_t *len);
ebb_status ebb_kviter_seek(ebb_kviter *it, const void *key, size_t key_len); // next returns the first key >= this
ebb_status ebb_kviter_status(ebb_kviter *it);                                // CORRUPT or IO if the iteration ended early
void ebb_kviter_close(ebb_kviter **it);

#endif
