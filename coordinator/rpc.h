// The coordinator's socket: decodes requests, hands them to the coordinator, sends its answers. One thread.
#ifndef EBB_COORDINATOR_RPC_H
#define EBB_COORDINATOR_RPC_H

#include "coordinator/coordinator.h"
#include "coordinator/http.h"
#include "core/net.h"

// Serves until the coordinator has ended, a write has failed (its status is returned), or ebb_stop_requested. stop_fd wakes it. http (may be
// NULL) is kept informed.
ebb_status ebb_coordinator_serve(ebb_coordinator *c, ebb_socket *router, ebb_http *http, int stop_fd);

#endif
