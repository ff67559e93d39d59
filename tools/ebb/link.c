#include "tools/ebb/link.h"

#include <string.h>

ebb_status ebb_link_open(ebb_link *l, const char *endpoint)
{
    memset(l, 0, sizeof(*l));
    EBB_TRY(ebb_net_new(&l->net));
    return ebb_rpc_new(l->net, endpoint, &l->rpc);
}

void ebb_link_close(ebb_link *l)
{
    ebb_rpc_free(&l->rpc);
    ebb_net_free(&l->net);
}

// Asks; OK only if the answer is of the wanted kind.
static ebb_status s_ask(ebb_link *l, Ebb__Envelope *env, uint32_t timeout_ms, Ebb__Envelope__BodyCase want, ebb_msg *reply)
{
    EBB_TRY(ebb_rpc_call(l->rpc, env, NULL, 0, timeout_ms, timeout_ms / 2 + 1, NULL, reply));
    ebb_status st = (ebb_status)reply->env->status;
    if (st == EBB_OK && reply->env->body_case != want) {
        st = EBB_PROTO;
    }
    if (st != EBB_OK) {
        ebb_msg_fini(reply);
    }
    return st;
}

ebb_status ebb_link_status(ebb_link *l, uint32_t timeout_ms, ebb_msg *reply)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__StatusRequest body = EBB__STATUS_REQUEST__INIT;
    env.body_case = EBB__ENVELOPE__BODY_STATUS_REQUEST;
    env.status_request = &body;
    return s_ask(l, &env, timeout_ms, EBB__ENVELOPE__BODY_STATUS_REPLY, reply);
}

ebb_status ebb_link_events(ebb_link *l, uint64_t after, uint32_t timeout_ms, ebb_msg *reply)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__EventsRequest body = EBB__EVENTS_REQUEST__INIT;
    body.after = after;
    env.body_case = EBB__ENVELOPE__BODY_EVENTS_REQUEST;
    env.events_request = &body;
    return s_ask(l, &env, timeout_ms, EBB__ENVELOPE__BODY_EVENTS_REPLY, reply);
}

ebb_status ebb_link_drain(ebb_link *l, const char *reason, bool shutdown, uint32_t timeout_ms)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__DrainRequest body = EBB__DRAIN_REQUEST__INIT;
    ebb_msg reply;
    body.reason = (char *)reason;
    body.shutdown = shutdown;
    env.body_case = EBB__ENVELOPE__BODY_DRAIN_REQUEST;
    env.drain_request = &body;
    EBB_TRY(s_ask(l, &env, timeout_ms, EBB__ENVELOPE__BODY_OK, &reply));
    ebb_msg_fini(&reply);
    return EBB_OK;
}

ebb_status ebb_link_worker_gone(ebb_link *l, const char *worker, uint32_t pid, const char *reason, uint32_t timeout_ms)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__WorkerGone body = EBB__WORKER_GONE__INIT;
    ebb_msg reply;
    body.worker = (char *)worker;
    body.pid = pid;
    body.reason = (char *)reason;
    env.body_case = EBB__ENVELOPE__BODY_WORKER_GONE;
    env.worker_gone = &body;
    EBB_TRY(s_ask(l, &env, timeout_ms, EBB__ENVELOPE__BODY_OK, &reply));
    ebb_msg_fini(&reply);
    return EBB_OK;
}
