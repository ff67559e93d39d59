// Blocking request/reply to one server over a DEALER, with a deadline, resend and reconnect: for control traffic, where one call at a time is enough.
//
// One thread owns an ebb_rpc. A call that gets no answer within its resend period is sent again with the same request_id on a fresh connection: a
// server may see a request twice, so every request kind is idempotent by content.
#ifndef EBB_CORE_RPC_H
#define EBB_CORE_RPC_H

#include "core/net.h"

typedef struct ebb_rpc ebb_rpc;

ebb_status ebb_rpc_new(ebb_net *net, const char *endpoint, ebb_rpc **out);
void ebb_rpc_free(ebb_rpc **rpc);

// Sends env (borrowed; request_id is filled in) and parts, waits for the answer until timeout_ms has passed: TIMEDOUT then (outcome unknown).
// resend_ms: 0 = default (500). cancel (may be NULL): when it becomes nonzero the call returns CLOSED within ~50 ms.
// OK: *reply holds the answer, whose env->status may still be an error of the peer; the caller frees it with ebb_msg_fini.
ebb_status ebb_rpc_call(ebb_rpc *rpc, Ebb__Envelope *env, const ebb_part *parts, size_t n_parts, uint32_t timeout_ms, uint32_t resend_ms,
                        const _Atomic int *cancel, ebb_msg *reply);

#endif
