// Snapshots: chunk rows on disk, written by a thread of its own while pushes go on.
//
//   key 'C' generation(u32 BE) chunk(u32 BE) slot(u8)   one buffer of a chunk: header 48 bytes, then the float32 values
//   key 'G'                                             state: generation u32, zero u32, lsn u64, version u64, skipped u64, crc32c u32
//
// With a journal (durability journal, fsync) there is one generation, and each chunk's rows are replaced in one batch; a row says which lsn it holds, so
// the chunks of a snapshot need not be of one instant. When all are written and synced, the journal up to the smallest of those lsn is dropped.
// Without a journal (durability snapshot) all chunks are referenced at one instant and written under a new generation; then one synced batch replaces
// the state row and all watermarks: the flip. The old generation is deleted afterwards.
#ifndef EBB_PS_SNAPSHOT_H
#define EBB_PS_SNAPSHOT_H

#include "ps/job.h"

// ---- rows (any thread) ----

// All rows of one chunk in one batch, not synced.
ebb_status ebb_snapshot_write_chunk(ebb_kvstore *kv, uint32_t generation, const ebb_chunk_state *image);
void ebb_snapshot_put_state(ebb_kvbatch *b, uint32_t generation, uint64_t lsn, uint64_t version, uint64_t skipped);
// NOENT: there is none. CORRUPT.
ebb_status ebb_snapshot_get_state(ebb_kvstore *kv, uint32_t *generation, uint64_t *lsn, uint64_t *version, uint64_t *skipped);
// Loads all chunk rows of the generation into chunks (which hold initial values). *loaded: chunks found. CORRUPT names the chunk in why.
ebb_status ebb_snapshot_load(ebb_kvstore *kv, uint32_t generation, ebb_chunk_state *chunks, uint32_t first_chunk, uint32_t count, uint32_t *loaded,
                             char *why);
// One row by itself. NULL, or what is wrong with it (static text). out borrows value.
typedef struct ebb_chunk_row {
    uint32_t chunk, numel, slot, n_bufs;
    uint64_t version, lsn, steps;
    uint32_t crc32c; // of data, verified
    const uint8_t *data;
} ebb_chunk_row;
const char *ebb_snapshot_row_read(const uint8_t *value, size_t len, ebb_chunk_row *out);
// Deletes all chunk rows below the generation and gives the space back.
ebb_status ebb_snapshot_drop_below(ebb_kvstore *kv, uint32_t generation);
// Fills the flip batch for the job as it is now: state row under `generation`, all watermarks, watermark rows of forgotten streams removed.
void ebb_snapshot_put_flip(ebb_kvbatch *b, const ebb_job *job, uint32_t generation);

// ---- the thread ----

typedef enum ebb_snapshot_step { EBB_SNAPSHOT_CHUNK, EBB_SNAPSHOT_FINISH, EBB_SNAPSHOT_FLIP } ebb_snapshot_step;

typedef struct ebb_snapshot_work {
    ebb_snapshot_step step;
    uint32_t generation;
    ebb_chunk_state image; // CHUNK: owned references
    uint64_t drop_upto;    // FINISH: sync, then drop the journal up to this lsn
    ebb_kvbatch *flip;     // FLIP: owned
    ebb_status status;     // result
} ebb_snapshot_work;

typedef struct ebb_snapshotter ebb_snapshotter;

// done(arg, work) is called on the snapshot thread for each piece of work, with its status; the callee owns the work then (ebb_snapshot_work_free).
ebb_status ebb_snapshotter_start(ebb_kvstore *kv, size_t capacity, void (*done)(void *arg, ebb_snapshot_work *w), void *arg, ebb_snapshotter **out);
ebb_status ebb_snapshotter_post(ebb_snapshotter *s, ebb_snapshot_work *w); // AGAIN, CLOSED: the work stays the caller's
void ebb_snapshotter_stop(ebb_snapshotter **s);                            // finishes what it is at, drops the rest, joins
void ebb_snapshot_work_free(ebb_snapshot_work **w);
// Does one piece of work here and now (what the thread calls).
ebb_status ebb_snapshot_work_run(ebb_kvstore *kv, ebb_snapshot_work *w);

#endif
