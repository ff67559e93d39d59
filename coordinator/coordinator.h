// The coordinator's state around the pure parts, and what it does with each event: decide (ledger, membership), persist (statestore), then answer.
//
// One thread owns it. rpc.c feeds it requests and the passing of time.
#ifndef EBB_COORDINATOR_COORDINATOR_H
#define EBB_COORDINATOR_COORDINATOR_H

#include "coordinator/autoscaler.h"
#include "coordinator/ledger.h"
#include "coordinator/membership.h"
#include "coordinator/progress.h"
#include "coordinator/reply.h"
#include "coordinator/statestore.h"
#include "core/manifest.h"
#include "core/shardmap.h"
#include "core/wire.h"

#define EBB_SKIPS_MAX 1024
#define EBB_REFUSALS_MAX 256
#define EBB_SKIP_AFTER 3       // refusals of one step before it is skipped
#define EBB_SKIP_HALF_AFTER 12 // where some shard has applied it
#define EBB_EVAL_FINAL UINT64_MAX

typedef enum ebb_job_state { EBB_JOB_STARTING, EBB_JOB_RUNNING, EBB_JOB_DRAINING, EBB_JOB_SUCCEEDED, EBB_JOB_FAILED, EBB_JOB_STOPPED } ebb_job_state;

typedef struct ebb_eval_task {
    bool active;
    uint64_t id, step;
    uint64_t lease, deadline_ms; // lease 0: waiting for a worker
    char worker[EBB_NAME_MAX];
} ebb_eval_task;

typedef struct ebb_step_name {
    uint64_t stream, seq;
    uint64_t request_id; // of the last refusal counted
    uint32_t count;
} ebb_step_name;

typedef struct ebb_coordinator {
    ebb_statestore *store;
    uint64_t job, created_ms; // created: wall clock
    double elapsed_s;         // the job had been run for before this process, or in all if `settled`
    uint64_t opened_ms;       // this process, wall clock
    bool settled;             // no longer runs
    uint64_t progress_ms;     // when the curve was stored
    bool diverging;
    Ebb__JobSpec *spec;
    ebb_plan plan;
    ebb_ledger ledger;
    ebb_membership members;
    ebb_progress progress;

    ebb_manifest *manifest; // NULL until registered
    ebb_part manifest_part; // packed, sealed
    uint64_t manifest_hash, epoch;
    ebb_chunk_range ranges[EBB_SHARDS_MAX];

    ebb_job_state state;
    char reason[512];
    uint64_t steps_at[32], steps_ms[32]; // progress over the last seconds, for the rate
    uint32_t n_steps;

    ebb_eval_task eval;
    uint64_t eval_next; // steps done at which the next evaluation is due; 0: none
    bool final_done;

    ebb_step_name skips[EBB_SKIPS_MAX]; // decided, not yet seen in every shard's watermark
    size_t n_skips;
    uint64_t skipped;
    ebb_step_name refusals[EBB_REFUSALS_MAX];
    size_t n_refusals;

    ebb_autoscaler scaler;
    ebb_scale_input scale_input; // of the last look
    ebb_scale_rule scale_rule;
    uint64_t scaled_ms;

    char http[64]; // address of the dashboard, or ""
    uint64_t event_id;
    uint64_t ticked_ms;
    bool draining, shutdown;
    uint64_t drain_ms, shutdown_ms;
    bool shutting_shards, ended;
    ebb_status failure; // first failed write: the process must end
} ebb_coordinator;

// Opens DIR. With spec: creates the job, or resumes the same one (CONFIG if DIR holds another). Without: resumes (NOENT if there is none). Takes *spec.
ebb_status ebb_coordinator_open(ebb_coordinator *c, const char *dir, Ebb__JobSpec **spec, uint64_t now_ms, char *why);
void ebb_coordinator_close(ebb_coordinator *c);

// Expiry, retirement, evaluations, states. Call every ~50 ms.
void ebb_coordinator_tick(ebb_coordinator *c, uint64_t now_ms);

// Handles one request; reply is initialised with request_id set and is filled in together with at most one part. What the reply points to
// is in `trash`: the caller frees it after packing.
void ebb_coordinator_handle(ebb_coordinator *c, const ebb_msg *request, uint64_t now_ms, Ebb__Envelope *reply, const ebb_part **part,
                            ebb_trash *trash);

// After every write: false if it or an earlier one failed. Then what we would say might be forgotten: nothing is answered, and the process ends.
bool ebb_coordinator_kept(ebb_coordinator *c, ebb_status st);
void ebb_coordinator_event(ebb_coordinator *c, const char *kind, const char *subject, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
const char *ebb_job_state_name(ebb_job_state state);

#endif
