// What a worker measures about itself: totals since the process began, for its heartbeats.
//
// One thread (the trainer) adds, any thread reads. Utilization of a window is the growth of compute_ns over the growth of alive_ns; the coordinator
// computes it, so that all workers are measured by one rule.
#ifndef EBB_WORKER_STATS_H
#define EBB_WORKER_STATS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "core/wire.h"

typedef struct ebb_stats {
    uint64_t start_ns;                             // of the process, monotonic
    _Atomic uint64_t compute_ns, wait_ns, data_ns; // wait: for shards or coordinator
    _Atomic uint64_t steps, samples, tokens;       // acknowledged by every shard
    _Atomic uint64_t staleness_sum, staleness_count, staleness_max;
    _Atomic uint64_t first_gradient_ms; // 0: none yet
    _Atomic uint64_t refused_stale, duplicates;
    pthread_mutex_t lock;
    double loss_sum;     // under lock: not yet in any heartbeat
    uint32_t loss_count; // under lock
} ebb_stats;

void ebb_stats_init(ebb_stats *stats);
void ebb_stats_fini(ebb_stats *stats);
void ebb_stats_loss(ebb_stats *stats, double loss);
// Notes the first acknowledged push.
void ebb_stats_first_gradient(ebb_stats *stats);
// Moves the losses gathered so far out.
void ebb_stats_take_loss(ebb_stats *stats, double *sum, uint32_t *count);
// Fills in the totals (all but leases, beat and losses).
void ebb_stats_fill(const ebb_stats *stats, Ebb__HeartbeatRequest *beat);

#endif
