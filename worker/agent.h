// The worker's second thread: it keeps the seat and the lease alive while the trainer computes, and hears what the coordinator orders.
//
// It never touches the trainer's data. Orders are flags that the trainer reads between steps: stop (SIGTERM, or drained by the coordinator) and the
// lease that was lost.
#ifndef EBB_WORKER_AGENT_H
#define EBB_WORKER_AGENT_H

#include <stdbool.h>

#include "client/ebb.h"
#include "worker/stats.h"

typedef struct ebb_agent ebb_agent;

// Joined session. stop_fd: from ebb_process_signals, readable once a stop was asked for; -1: none. Heartbeats begin at once.
// overdue_exit: end the process with status 0 when EBB_AGENT_OVERDUE_MS after an order to stop the trainer still is in the middle of something (a
// step that takes long): what it does not return, its lease's end returns.
#define EBB_AGENT_OVERDUE_MS 4700
ebb_status ebb_agent_start(ebb_session *session, ebb_stats *stats, int stop_fd, bool overdue_exit, ebb_agent **out);
// Sends a last heartbeat (so that the last losses and steps are counted) if the coordinator answers within grace_ms, ends and joins the thread.
void ebb_agent_stop(ebb_agent **agent, uint32_t grace_ms);

// The lease to renew from now on; 0: none.
void ebb_agent_hold(ebb_agent *agent, uint64_t lease);
bool ebb_agent_lost(const ebb_agent *agent, uint64_t lease);
// Nonzero once the worker should leave; fit for the `cancel` of blocking calls.
const _Atomic int *ebb_agent_stopping(const ebb_agent *agent);
uint64_t ebb_agent_stop_ms(const ebb_agent *agent); // when (ebb_clock_ms) it was ordered; 0: it was not
// Why: "SIGTERM" or "drained". Static text.
const char *ebb_agent_reason(const ebb_agent *agent);

#endif
