// Watermarks: what was applied and what is durable, per stream of pushes. Pure: no clock, no disk, no lock; the shard's thread owns it.
//
// Invariant: a (stream, seq) gets the verdict NEXT at most once in the life of the shard. applied only grows, by one; durable <= applied.
// A retired stream is one whose every step is durable on every shard (the coordinator decides that). Its row is forgotten, its number stays in the
// retired set for ever (all numbers below retired_below, plus a sparse list), so a late push of it is a DUPLICATE and never starts again at 1.
#ifndef EBB_PS_STREAMS_H
#define EBB_PS_STREAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef enum ebb_stream_verdict { EBB_STREAM_NEXT, EBB_STREAM_DUPLICATE, EBB_STREAM_GAP } ebb_stream_verdict;

typedef struct ebb_stream {
    uint64_t id;
    uint64_t applied, applied_lsn;
    uint64_t durable;
    uint64_t marked;                             // applied when the sync or snapshot under way began
    uint64_t sent_applied, sent_durable;         // in the report under way
    uint64_t reported_applied, reported_durable; // in the last answered report
} ebb_stream;

typedef struct ebb_streams {
    ebb_stream *at; // by id
    size_t n, cap;
    uint64_t retired_below;
    uint64_t *retired; // sorted, all >= retired_below
    size_t n_retired;
} ebb_streams;

void ebb_streams_init(ebb_streams *s);
void ebb_streams_fini(ebb_streams *s);

// The stream's entry, or NULL. Valid until the next advance, restore or retire.
ebb_stream *ebb_streams_find(ebb_streams *s, uint64_t id);
bool ebb_streams_is_retired(const ebb_streams *s, uint64_t id);
// applied (may be NULL) gets the watermark; of a retired stream, seq itself.
ebb_stream_verdict ebb_streams_verdict(ebb_streams *s, uint64_t id, uint64_t seq, uint64_t *applied);
// Takes seq as applied; the verdict must be NEXT. NOMEM changes nothing.
ebb_status ebb_streams_advance(ebb_streams *s, uint64_t id, uint64_t seq, uint64_t lsn);
// Recovery: a stored watermark, durable. Ignored for a retired stream. NOMEM.
ebb_status ebb_streams_restore(ebb_streams *s, uint64_t id, uint64_t applied, uint64_t lsn);

// A sync: mark before it begins, commit after it succeeded (what was applied at the mark is durable now).
void ebb_streams_mark(ebb_streams *s);
void ebb_streams_commit_mark(ebb_streams *s);
void ebb_streams_all_durable(ebb_streams *s);
bool ebb_streams_has_undurable(const ebb_streams *s);

// Adds to the retired set: all below `below`, and the n listed. The set never shrinks. *changed: it grew (so persist it). forgotten(arg, id) is called
// for each entry dropped. NOMEM changes nothing.
ebb_status ebb_streams_retire(ebb_streams *s, uint64_t below, const uint64_t *list, size_t n, bool *changed,
                              void (*forgotten)(void *arg, uint64_t id), void *arg);

#endif
