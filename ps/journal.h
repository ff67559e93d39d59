// The journal: every applied push as it was received, plus the watermark it moved, in one atomic batch for all pushes that wait (group commit).
//
// Invariant: nothing is acknowledged before its batch was written at the job's durability level; a record and its watermark are in the same batch.
// lsn = position of a record, 1, 2, ... without holes. Row formats, byte by byte: docs/journal.md.
//
//   key 'J' lsn(u64 BE) part(u32 BE)   part 0: head of the record; part i >= 1: the i-th gradient of the push
//   key 'W' stream(u64 BE)             watermark: applied u64, lsn u64, crc32c u32
//
// Owned by the shard's thread. The sync timer runs on a thread of its own (ebb_syncer), since fdatasync takes as long as the disk likes.
#ifndef EBB_PS_JOURNAL_H
#define EBB_PS_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/kvstore.h"
#include "core/wire.h"

typedef enum ebb_record_kind { EBB_RECORD_PUSH = 1, EBB_RECORD_SKIP = 2 } ebb_record_kind;

typedef struct ebb_record {
    ebb_record_kind kind;
    uint64_t job, lsn;
    uint64_t version; // of the shard after this record (a skip leaves it as it is)
    uint64_t stream, seq;
    uint32_t attempt;
    uint32_t n_parts;
    uint64_t staleness;
    float weight; // as it was applied: replay decides nothing again
} ebb_record;

typedef struct ebb_journal {
    ebb_kvstore *kv; // borrowed
    ebb_kvbatch *batch;
    uint64_t batch_bytes; // waiting in the batch
    uint64_t bytes;       // payload bytes in the journal (written, not yet dropped)
} ebb_journal;

ebb_status ebb_journal_init(ebb_journal *j, ebb_kvstore *kv);
void ebb_journal_fini(ebb_journal *j);

// Adds a record with its parts (n_parts of the record; none for a skip) and the watermark row to the waiting batch.
void ebb_journal_add(ebb_journal *j, const ebb_record *r, const ebb_part *parts);
// The batch, to add rows that must be atomic with it.
ebb_kvbatch *ebb_journal_batch(ebb_journal *j);
// Writes everything added since the last commit. Any error: the outcome is unknown, end the process.
ebb_status ebb_journal_commit(ebb_journal *j, bool sync);

typedef struct ebb_replay_part {
    uint32_t chunk, numel;
    const uint8_t *data; // numel float32, at any address
    uint8_t codec, dtype;
    uint32_t crc32c; // of data, verified
} ebb_replay_part;

// Called in lsn order: for each record first with part NULL, then once per part. Pointers are borrowed until it returns.
typedef ebb_status ebb_replay_fn(void *arg, const ebb_record *r, const ebb_replay_part *part);

// Reads all records with lsn > after. CORRUPT with a sentence in why (>= 256 bytes): a checksum is wrong, a record or part is missing, or lsn after+1 is
// not there although later ones are. *last: highest lsn seen (0: none). Sets j->bytes to what the journal holds.
ebb_status ebb_journal_replay(ebb_journal *j, uint64_t after, ebb_replay_fn *fn, void *arg, uint64_t *last, char *why);

// The rows by themselves, for replay and inspection. CORRUPT: checksum or format, or it is not of that lsn. part borrows value.
ebb_status ebb_journal_head_read(const uint8_t *value, size_t len, uint64_t lsn, ebb_record *r);
ebb_status ebb_journal_part_read(const uint8_t *value, size_t len, uint64_t lsn, ebb_replay_part *part);
ebb_status ebb_journal_watermark_read(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, uint64_t *stream, uint64_t *applied,
                                      uint64_t *lsn);

// Drops all records with lsn <= upto and gives their space back. Any thread (it uses a batch of its own). Slow: compacts.
ebb_status ebb_journal_drop(ebb_kvstore *kv, uint64_t upto);

void ebb_journal_put_watermark(ebb_kvbatch *b, uint64_t stream, uint64_t applied, uint64_t lsn);
void ebb_journal_del_watermark(ebb_kvbatch *b, uint64_t stream);
// Calls fn for each stored watermark. CORRUPT names the stream.
ebb_status ebb_journal_watermarks(ebb_kvstore *kv, ebb_status (*fn)(void *arg, uint64_t stream, uint64_t applied, uint64_t lsn), void *arg,
                                  char *why);

// Thread that syncs the store when asked and reports each result by done(arg, status), on its own thread.
typedef struct ebb_syncer ebb_syncer;
ebb_status ebb_syncer_start(ebb_kvstore *kv, void (*done)(void *arg, ebb_status st), void *arg, ebb_syncer **out);
void ebb_syncer_request(ebb_syncer *s); // at most one under way: ask again only after done
void ebb_syncer_stop(ebb_syncer **s);   // joins

#endif
