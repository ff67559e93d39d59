// Who is there: workers by name (a name is a seat; a process in it is an incarnation) and shards by number. Pure: times come in.
#ifndef EBB_COORDINATOR_MEMBERSHIP_H
#define EBB_COORDINATOR_MEMBERSHIP_H

#include "core/wire.h"

typedef enum ebb_worker_state { EBB_WORKER_JOINED, EBB_WORKER_RUNNING, EBB_WORKER_DRAINING, EBB_WORKER_LOST, EBB_WORKER_LEFT } ebb_worker_state;

#define EBB_SAMPLES 16 // heartbeats kept to form rates over about 10 s
#define EBB_PAST 8     // incarnations remembered as over

// Incarnations that are over: replaced, left, or dead. A message of theirs that comes late (or from a process that only slept) takes nothing from their
// successor and gets no lease.
typedef struct ebb_past {
    uint64_t incarnation[EBB_PAST];
    uint32_t n;
} ebb_past;

// A worker's counters at one time (totals since its process start).
typedef struct ebb_sample {
    uint64_t at_ms, alive_ns, compute_ns, wait_ns, data_ns, steps, samples, tokens;
} ebb_sample;

typedef struct ebb_member {
    char name[EBB_NAME_MAX], host[EBB_NAME_MAX];
    uint64_t incarnation, incarnations; // incarnation 0: the last one is over
    ebb_past past;
    uint32_t pid;
    ebb_worker_state state;
    uint64_t seen_ms, beat;
    ebb_sample ring[EBB_SAMPLES];
    uint32_t n_ring;
    uint64_t first_gradient_ms;
    double staleness, loss;
    // totals of the current incarnation, to form differences
    double staleness_sum;
    uint64_t staleness_count;
} ebb_member;

typedef struct ebb_shard_member {
    uint64_t incarnation, incarnations;
    ebb_past past;
    char endpoint[EBB_ENDPOINT_MAX];
    uint32_t pid;
    uint64_t seen_ms, version, rss_bytes, journal_bytes, busy_ns, alive_ns;
    double busy;
    bool known, ready;
    bool chained, full; // we have its reports from since = 0 on without a gap, up to `upto`; and nothing was left out for want of room
    uint64_t upto;
    uint64_t short_ms, short_reports; // of reports that lack steps which were durable there; 0: the last one does not
    bool disk_low;
    uint64_t manifest_hash, epoch;
} ebb_shard_member;

typedef struct ebb_membership {
    ebb_member *members;
    size_t n, cap;
    ebb_shard_member *shards;
    uint32_t n_shards;
} ebb_membership;

ebb_status ebb_membership_init(ebb_membership *m, uint32_t n_shards);
void ebb_membership_fini(ebb_membership *m);

void ebb_past_add(ebb_past *past, uint64_t incarnation);
bool ebb_past_has(const ebb_past *past, uint64_t incarnation);

ebb_member *ebb_membership_find(ebb_membership *m, const char *name); // NULL
// A process takes its seat; the incarnation before it is over. *fresh: it is a new one. NULL: out of memory, too many, or the incarnation is over.
ebb_member *ebb_membership_join(ebb_membership *m, const char *name, uint64_t incarnation, uint64_t now_ms, bool *fresh);
// The process in the seat has left (LEFT) or died (LOST).
void ebb_membership_end(ebb_member *w, ebb_worker_state state);
// Time in which nobody listened is nobody's silence.
void ebb_membership_postpone(ebb_membership *m, uint64_t ms, uint64_t now_ms);
// Adds a heartbeat's counters. False: a repeat of one that was counted already.
bool ebb_membership_beat(ebb_member *w, const Ebb__HeartbeatRequest *beat, uint64_t now_ms);
// Time its window of heartbeats spans (alive time between the first and the last); 0 with fewer than two.
uint64_t ebb_membership_window_ms(const ebb_member *w);
// Rates over the window; zeros with fewer than two samples. Utilization = busy compute time / alive time.
void ebb_membership_rates(const ebb_member *w, double *utilization, double *wait, double *data, double *samples_per_s, double *tokens_per_s);
size_t ebb_membership_live(const ebb_membership *m); // joined, running or draining
const char *ebb_worker_state_name(ebb_worker_state state);

#endif
