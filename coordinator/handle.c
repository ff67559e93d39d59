#include "coordinator/handlers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The job a request names; 0: it names none.
static uint64_t s_job_named(const Ebb__Envelope *q)
{
    switch (q->body_case) {
    case EBB__ENVELOPE__BODY_MANIFEST_REQUEST:
        return q->manifest_request->job;
    case EBB__ENVELOPE__BODY_SHARD_MAP_REQUEST:
        return q->shard_map_request->job;
    case EBB__ENVELOPE__BODY_LEASE_REQUEST:
        return q->lease_request->job;
    case EBB__ENVELOPE__BODY_HEARTBEAT_REQUEST:
        return q->heartbeat_request->job;
    case EBB__ENVELOPE__BODY_LEASE_RETURN:
        return q->lease_return->job;
    case EBB__ENVELOPE__BODY_SKIP_REQUEST:
        return q->skip_request->job;
    case EBB__ENVELOPE__BODY_EVAL_REPORT:
        return q->eval_report->job;
    case EBB__ENVELOPE__BODY_LEAVE_REQUEST:
        return q->leave_request->job;
    default:
        return 0;
    }
}

void ebb_coordinator_handle(ebb_coordinator *c, const ebb_msg *request, uint64_t now_ms, Ebb__Envelope *reply, const ebb_part **part,
                            ebb_trash *trash)
{
    const Ebb__Envelope *q = request->env;
    *part = NULL;
    uint64_t job = s_job_named(q);
    if (job != 0 && job != c->job) { // a worker of an earlier run must not work on this one
        reply->status = EBB_NOENT;
        reply->detail = ebb_trash_text(trash, "this coordinator runs job %016" PRIx64 ", not %016" PRIx64, c->job, job);
        return;
    }
    switch (q->body_case) {
    case EBB__ENVELOPE__BODY_JOIN_REQUEST:
        ebb_handle_join(c, q->join_request, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_MANIFEST_REQUEST:
        ebb_handle_register_manifest(c, request, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_SHARD_MAP_REQUEST:
        ebb_handle_shard_map(c, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_LEASE_REQUEST:
        ebb_handle_lease(c, q->lease_request, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_HEARTBEAT_REQUEST:
        ebb_handle_heartbeat(c, q->heartbeat_request, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_LEASE_RETURN:
        ebb_handle_lease_return(c, q->lease_return, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_SKIP_REQUEST:
        ebb_handle_skip(c, q->skip_request, q->request_id, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_EVAL_REPORT:
        ebb_handle_eval_report(c, q->eval_report, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_LEAVE_REQUEST:
        ebb_handle_leave(c, q->leave_request, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_WORKER_GONE:
        ebb_handle_worker_gone(c, q->worker_gone, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_SHARD_REPORT:
        ebb_handle_shard_report(c, q->shard_report, now_ms, reply, part, trash);
        break;
    case EBB__ENVELOPE__BODY_STATUS_REQUEST:
        ebb_handle_status(c, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_EVENTS_REQUEST:
        ebb_handle_events(c, q->events_request, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_DRAIN_REQUEST:
        ebb_handle_drain(c, q->drain_request, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_JOB_REQUEST:
        ebb_handle_job(c, reply, part, trash);
        break;
    default:
        ebb_reply_refuse(reply, trash, EBB_PROTO, "the coordinator does not answer this kind of message");
        break;
    }
}
