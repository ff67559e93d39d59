// The command's line to a coordinator: short blocking questions.
#ifndef EBB_TOOLS_EBB_LINK_H
#define EBB_TOOLS_EBB_LINK_H

#include "core/rpc.h"

typedef struct ebb_link {
    ebb_net *net;
    ebb_rpc *rpc;
} ebb_link;

ebb_status ebb_link_open(ebb_link *l, const char *endpoint);
void ebb_link_close(ebb_link *l);
// Each answers TIMEDOUT if nobody did. *reply is owned by the caller (ebb_msg_fini) when OK.
ebb_status ebb_link_status(ebb_link *l, uint32_t timeout_ms, ebb_msg *reply);
ebb_status ebb_link_events(ebb_link *l, uint64_t after, uint32_t timeout_ms, ebb_msg *reply);
ebb_status ebb_link_drain(ebb_link *l, const char *reason, bool shutdown, uint32_t timeout_ms);
ebb_status ebb_link_worker_gone(ebb_link *l, const char *worker, uint32_t pid, const char *reason, uint32_t timeout_ms);

#endif
