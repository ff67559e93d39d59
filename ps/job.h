// The job as one shard holds it: a state machine with no thread, no socket and no clock. A push goes through judge -> (journal) -> apply, and
// everything a push can change is in here, so recovery is "load the rows, then feed the journal through the same apply".
//
// Invariant: version = count of applied pushes = the optimizer's step; lsn = count of journal records (pushes and skips). Every push carries all chunks
// of the shard, so between two pushes every chunk stands at the job's version.
#ifndef EBB_PS_JOB_H
#define EBB_PS_JOB_H

#include "core/manifest.h"
#include "core/wire.h"
#include "ps/chunk.h"
#include "ps/consistency.h"
#include "ps/journal.h"
#include "ps/optimizer.h"
#include "ps/pins.h"
#include "ps/streams.h"

typedef enum ebb_durability { EBB_DURABILITY_JOURNAL, EBB_DURABILITY_FSYNC, EBB_DURABILITY_SNAPSHOT } ebb_durability;

typedef struct ebb_job {
    Ebb__ShardInstall *install; // owned
    ebb_manifest *manifest;
    uint64_t id, epoch;
    uint32_t first_chunk, chunk_count;
    ebb_durability durability;
    ebb_optimizer optimizer;
    ebb_consistency consistency;
    ebb_chunk_state *chunks; // chunk_count of them, from first_chunk
    ebb_streams streams;
    ebb_pins pins;
    uint64_t version, lsn, skipped;
    uint32_t generation; // of the chunk rows on disk (docs/journal.md)
} ebb_job;

// A judged push. parts are borrowed from the request.
typedef struct ebb_push {
    Ebb__Verdict verdict;
    ebb_record record;         // if APPLIED
    const ebb_part *parts;     // in the request's order
    const ebb_part **by_chunk; // owned: [chunk - first_chunk]
    uint64_t applied;          // watermark after this push
    uint64_t staleness;
    const char *why; // refusals: what was wrong (static text)
} ebb_push;

// Builds the job from an install order and its manifest (packed): chunks at their initial values. The hash must match. CONFIG or INVAL with a sentence in
// why (>= 256 bytes), NOMEM.
ebb_status ebb_job_new(const Ebb__ShardInstall *install, const uint8_t *manifest, size_t manifest_len, ebb_job **out, char *why);
void ebb_job_free(ebb_job **job);

// Gives the verdict. APPLIED: the stream's watermark, version and lsn have moved already; the caller must now journal out->record and then apply, or
// end the process. Everything else changes nothing. WRONGSHARD: other job or epoch. NOMEM.
ebb_status ebb_job_judge(ebb_job *job, const Ebb__PushRequest *req, const ebb_part *parts, size_t n_parts, ebb_push *out);
void ebb_push_fini(ebb_push *p);
// Applies judged pushes in their order, chunk by chunk. NOMEM: end the process (the journal has them).
ebb_status ebb_job_apply(ebb_job *job, const ebb_push *const *pushes, size_t n);

// Skips one step by order of the coordinator: EBB_OK and *record to journal if seq is the stream's next; DUPLICATE or GAP otherwise.
ebb_status ebb_job_skip(ebb_job *job, uint64_t stream, uint64_t seq, ebb_record *record);

#endif
