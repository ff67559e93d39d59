// libebb: how a program takes part in a job. The worker, the `ebb` command and every SDK stand on this file.
//
// Invariant: a push is named (job, stream, seq). Whatever happens on the way (silence, refusal for now, a shard or this process dying), the
// client repeats the same name with the same bytes until the shard has answered for it, so a step is applied once however often it was sent.
//
// Two paths:
//   control  one thread's line to the coordinator: blocking calls (join, lease, heartbeat, ...), each with a timeout and a cancel flag.
//   data     one io thread per session owns a DEALER per shard. push_pull, pull, pin and unpin return a request handle at once; the io thread
//            splits by the shard map, sends without copying, pings silent shards, reconnects, and sends again under the same name.
//
// Threads: an ebb_control and an ebb_view belong to one thread each. ebb_push_pull, ebb_pull, ebb_pin, ebb_unpin and the ebb_request functions may
// be called from any thread; one handle from one thread at a time. Errors are ebb_status; nothing here exits or prints (log lines apart).
#ifndef EBB_CLIENT_EBB_H
#define EBB_CLIENT_EBB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/manifest.h"
#include "core/net.h"
#include "core/status.h"
#include "core/wire.h"

typedef struct ebb_session ebb_session;
typedef struct ebb_control ebb_control;
typedef struct ebb_request ebb_request;
typedef struct ebb_view ebb_view;

// ---- session: one job as this process sees it ----

typedef struct ebb_session_options {
    const char *coordinator;   // endpoint, copied
    const char *worker;        // name, unique in the job, copied; NULL: a session that only reads (tools): it never joins
    const _Atomic int *cancel; // blocking calls return CLOSED soon after it becomes nonzero; NULL: never. Borrowed for the session's life
    ebb_net *net;              // borrowed; NULL: the session makes its own
    uint32_t requests_max;     // outstanding requests at once; 0 = 64
} ebb_session_options;

// INVAL: endpoint or name missing or too long; NOMEM. Nothing is sent yet.
ebb_status ebb_session_new(const ebb_session_options *options, ebb_session **out);
// Stops the io thread and drops what is outstanding; request handles and views of the session are invalid afterwards, controls must be freed before.
// Returns within ~50 ms even when every peer is dead.
void ebb_session_free(ebb_session **session);

// All of these are constant after join or attach (shards: after connect).
uint64_t ebb_session_job(const ebb_session *session);
uint64_t ebb_session_incarnation(const ebb_session *session); // random per session
const char *ebb_session_worker(const ebb_session *session);   // "" for a reading session
const Ebb__JobSpec *ebb_session_spec(const ebb_session *session);
uint64_t ebb_session_manifest_hash(const ebb_session *session); // as registered when joining; 0: not yet
uint32_t ebb_session_heartbeat_ms(const ebb_session *session);
const ebb_manifest *ebb_session_manifest(const ebb_session *session); // NULL before attach/connect
uint32_t ebb_session_shards(ebb_session *session);                    // in the current shard map
const char *ebb_session_why(const ebb_session *session);              // why the session's connect failed; "" if it did not

// Totals since the session began, for measurements.
typedef struct ebb_traffic {
    uint64_t sends, resends, pings, reopens, restarts; // restarts: shards seen with a new incarnation
    uint64_t bytes_out, bytes_in, damaged;             // damaged: replies that failed a bound or checksum (asked for again)
} ebb_traffic;
void ebb_session_traffic(ebb_session *session, ebb_traffic *out);

// ---- control: blocking calls to the coordinator ----
// timeout_ms 0 waits for ever (until cancel). While the coordinator is silent or says TRYLATER the call is repeated with back-off up to 1 s, and
// one line is logged every 10 s. TIMEDOUT: unknown outcome (every call is idempotent by content: just call again). CLOSED: cancelled. Any other error
// is the coordinator's answer, its sentence in ebb_control_why.

ebb_status ebb_control_new(ebb_session *session, ebb_control **out);
void ebb_control_free(ebb_control **control);
const char *ebb_control_why(const ebb_control *control);                      // text of the last error; valid until the next call
void ebb_control_set_cancel(ebb_control *control, const _Atomic int *cancel); // instead of the session's; NULL: none

// Takes the seat `worker` in the job and fetches the job spec. Any later call takes the same seat again (for a coordinator that does not know us any
// more) and changes nothing here; EXISTS then: another job.
ebb_status ebb_join(ebb_control *control, uint32_t timeout_ms);
// Fetches the job spec and, if registered, the manifest (ebb_session_manifest) without becoming a worker. NOENT never means "no manifest yet": then the
// manifest is NULL and the hash 0.
ebb_status ebb_attach(ebb_control *control, uint32_t timeout_ms);
// Registers this worker's manifest. EXISTS: another one is registered (*registered_hash tells which; may be NULL): this model is not the job's.
ebb_status ebb_manifest_register(ebb_control *control, const ebb_manifest *manifest, uint64_t *registered_hash, uint32_t timeout_ms);
// Waits for the shard map (all shards ready) and starts the data path. manifest is borrowed for the session's life; NULL: the attached one.
// INVAL: no manifest, called twice, or a shard would hold more than one message may carry (use more shards); PROTO: the map makes no sense.
ebb_status ebb_connect(ebb_control *control, const ebb_manifest *manifest, uint32_t timeout_ms);

typedef enum ebb_lease_kind {
    EBB_LEASE_NONE = 0, // nothing now: ask again after retry_ms
    EBB_LEASE_TRAIN = 1,
    EBB_LEASE_EVAL = 2,
    EBB_LEASE_FINISHED = 3, // the job is over: leave
    EBB_LEASE_DRAIN = 4,    // leave
} ebb_lease_kind;

typedef struct ebb_lease {
    ebb_lease_kind kind;
    uint64_t id, stream, pass, unit, seq_first, seq_last, eval_id; // as in LeaseReply
    uint32_t attempt, ttl_ms, retry_ms;
} ebb_lease;

ebb_status ebb_lease_request(ebb_control *control, ebb_lease *out, uint32_t timeout_ms);
// Unit complete (seq_done = seq_last) or its remainder given back. seq_done: last step that every shard acknowledged.
ebb_status ebb_lease_return(ebb_control *control, uint64_t lease, uint64_t seq_done, const char *reason, uint32_t timeout_ms);

#define EBB_ORDERS_LOST_MAX 16
typedef struct ebb_orders {
    bool drain;
    size_t n_lost;
    uint64_t lost[EBB_ORDERS_LOST_MAX]; // leases that are no longer ours
} ebb_orders;
// beat: counters and held leases (borrowed); job, worker and incarnation are filled in here.
ebb_status ebb_heartbeat(ebb_control *control, Ebb__HeartbeatRequest *beat, ebb_orders *out, uint32_t timeout_ms);

// Asks that a step which cannot be computed be skipped at every shard. *skip: the coordinator's decision (false: try again).
ebb_status ebb_skip(ebb_control *control, uint64_t lease, uint64_t stream, uint64_t seq, const char *reason, bool *skip, uint32_t timeout_ms);
ebb_status ebb_eval_report(ebb_control *control, uint64_t lease, uint64_t eval_id, double loss, double accuracy, uint64_t samples, uint64_t version,
                           uint32_t timeout_ms);
ebb_status ebb_leave(ebb_control *control, const char *reason, uint32_t timeout_ms);

// ---- view: which version of each shard a copy of the parameters reflects ----
// A shard is `unknown` until pulled whole, and again when its process was replaced (it may have rolled back), since a difference to what it no longer
// has means nothing.

ebb_status ebb_view_new(ebb_session *session, ebb_view **out); // after connect; all shards unknown
void ebb_view_free(ebb_view **view);
void ebb_view_forget(ebb_view *view);            // all unknown; also adopts a changed shard map
bool ebb_view_complete(const ebb_view *view);    // no shard unknown
uint64_t ebb_view_version(const ebb_view *view); // least version over the shards that hold chunks
// Applies a finished push_pull or pull (of parameters, not pinned) to params (numel floats): copies the chunks that are newer and advances the
// view. Answers older than the view change nothing, so requests may be applied in any order. Never fails: parts were checked on arrival.
void ebb_view_apply(ebb_view *view, const ebb_request *request, float *params);

// ---- data path ----

typedef struct ebb_push {
    uint64_t stream, seq; // seq is 1-based; steps of a stream are submitted in order and reach each shard in that order
    uint32_t attempt;
    // Exactly one of:
    ebb_buf *grad;    // the flat gradient: numel float32 in manifest order
    ebb_buf **chunks; // n_chunks buffers, chunk by chunk (numel of the chunk float32 each)
    // The parameters that come back are as the optimizer's momentum alone would carry them after so many more versions (fractional; 0: as they are):
    // where the gradient that is computed from them will be applied if it is that stale. Not for evaluating or saving.
    double look_ahead;
} ebb_push;

// Pushes one step to every shard and asks for the chunks that changed since `view`. Buffers are borrowed and further referenced: their bytes must not
// change until the request is finished *and* nobody else holds them (ebb_buf_is_sole), for ZeroMQ may still be reading. base_version of each shard is
// the view's: call it before applying anything newer than what the gradient was computed at.
// AGAIN: too many outstanding requests. INVAL: wrong sizes, or not connected. The call does not block; it costs one checksum pass over the gradient.
ebb_status ebb_push_pull(ebb_session *session, const ebb_push *push, const ebb_view *view, ebb_request **out);

typedef struct ebb_pull_options {
    const ebb_view *view; // bring this up to date; NULL: everything
    uint64_t pin;         // 0 = the latest
    uint32_t slot;        // 0 = parameters, 1.. = optimizer slots (view must be NULL)
    double look_ahead;    // as in ebb_push (pin and slot must be 0)
} ebb_pull_options;
ebb_status ebb_pull(ebb_session *session, const ebb_pull_options *options, ebb_request **out);
// Holds one version at every shard under a number chosen by the caller (random, not 0) for ttl_ms. unpin lets go.
ebb_status ebb_pin(ebb_session *session, uint64_t pin, uint32_t ttl_ms, ebb_request **out);
ebb_status ebb_unpin(ebb_session *session, uint64_t pin, ebb_request **out);

// Waits at most timeout_ms. TIMEDOUT: still outstanding (wait again, or free it: outcome unknown). Otherwise the request is finished, and the
// status is the worst of the shards':
//   OK         every shard is done with it (pushes: applied, or applied earlier by whomever)
//   GAP        a shard lacks an earlier step: drop the later steps, pull, go on at result->applied + 1
//   STALE      a shard refused the gradient as too old: pull and compute the step again
//   BADVALUE   a shard refused NaN, infinity or a wrong shape
//   NOENT      (pinned pulls) the pin is gone: its time ran out or the shard was replaced
//   WRONGSHARD the placement changed: ebb_view_forget, pull, compute again
//   CLOSED     the session is ending. Others: the shard's refusal.
ebb_status ebb_request_wait(ebb_request *request, uint32_t timeout_ms);
ebb_status ebb_request_poll(ebb_request *request); // as wait, without waiting: AGAIN while outstanding
// Finished requests: gives the answer's buffers back. Outstanding ones: forgets the request (a push may or may not be applied). NULL inside is fine.
void ebb_request_free(ebb_request **request);

// What the shards said, over all of them. Valid while the finished request lives.
typedef struct ebb_result {
    ebb_status status;
    uint64_t applied;                      // pushes: least watermark of the stream over the shards that told one
    uint64_t version;                      // least version
    uint64_t step_count;                   // pulls: greatest step count of the optimizer
    uint32_t slots;                        // pulls: optimizer slots the shards hold
    uint32_t shards;                       // that answered
    uint32_t duplicates;                   // of these: had the step already
    uint64_t staleness_max, staleness_sum; // over shards that applied
    uint32_t staleness_count;
    bool replaced;   // a shard answered as another process than the view knows: pull before the next step
    const char *why; // sentence of the shard that refused; "" otherwise
} ebb_result;
const ebb_result *ebb_request_result(const ebb_request *request);
// Copies all chunks of a finished pull to their places in out (numel floats). Chunks that were not sent are left alone; returns the elements copied.
uint64_t ebb_request_copy(const ebb_request *request, float *out);

#endif
