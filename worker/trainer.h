// The trainer: leases units and computes their steps. Everything a worker is for happens on this thread.
//
// Invariant: a step's gradient is a function of (its batch, the parameters of one view), and steps of a unit are pushed in order; so with inflight_max 1 and
// one worker the run is bit for bit the loop "pull, gradient, apply". With k, up to k pushes are unanswered while the next gradient is computed.
//
// A step boundary, in order: take in the answers that have come (parameters move here and nowhere else) -> pull if a shard is unknown -> batch -> loss and
// gradient -> clip -> push -> wait until at most inflight_max - 1 pushes are unanswered.
#ifndef EBB_WORKER_TRAINER_H
#define EBB_WORKER_TRAINER_H

#include "client/ebb.h"
#include "worker/agent.h"
#include "worker/dataset.h"
#include "worker/gradbuf.h"
#include "worker/models/model.h"
#include "worker/prefetch.h"
#include "worker/stats.h"

// What the training loop and the evaluation work with. Owned by worker.c; used by one thread.
typedef struct ebb_trainer {
    ebb_session *session; // connected
    ebb_control *control; // its cancel: ebb_agent_stopping
    ebb_agent *agent;
    ebb_stats *stats;
    const Ebb__JobSpec *spec;
    const ebb_manifest *manifest;
    const ebb_model_config *config;
    const ebb_model *model;
    const ebb_backend *backend;
    ebb_model_state *state; // for spec->batch samples
    const ebb_dataset *dataset;
    ebb_prefetch *prefetch;
    ebb_gradbuf *gradbuf;
    ebb_view *view;
    float *params;      // (numel) at `view`
    float *eval_params; // (numel) or NULL until the first evaluation
    uint32_t inflight_max;
    double staleness; // expected of the next gradient: moving mean of what the shards said of ours
    char why[640];    // of a failure
} ebb_trainer;

// Leases until there is no more work or the worker should stop. OK: finished, drained or stopped (leases are returned). Otherwise this worker cannot go
// on: NOENT, IO (data), CONFIG, NOTAUTH, with a sentence in t->why.
ebb_status ebb_trainer_run(ebb_trainer *t);

// Milliseconds left of the time between the order to stop and the process's end, at most `most`; `most` when nobody ordered a stop.
uint32_t ebb_trainer_time_left(const ebb_trainer *t, uint32_t until_ms, uint32_t most);

#endif
