// What the files of libebb share about a session. Private to client/.
//
// Written by ebb_session_new, ebb_join, ebb_attach and ebb_connect before the io thread starts, constant from then on, except: the layout (under
// lock, changed by the io thread only) and the traffic counters (atomic).
#ifndef EBB_CLIENT_SESSION_H
#define EBB_CLIENT_SESSION_H

#include <pthread.h>
#include <stdatomic.h>

#include "client/ebb.h"
#include "client/requests.h"
#include "client/router.h"

struct ebb_io;

typedef struct ebb_traffic_counters {
    _Atomic uint64_t sends, resends, pings, reopens, restarts, bytes_out, bytes_in, damaged;
} ebb_traffic_counters;

struct ebb_session {
    ebb_net *net;
    bool net_owned, is_worker;
    char coordinator[EBB_ENDPOINT_MAX];
    char worker[EBB_NAME_MAX];
    char why[256];
    const _Atomic int *cancel;
    uint64_t incarnation, job, manifest_hash;
    uint32_t heartbeat_ms;
    Ebb__JobSpec *spec;
    ebb_manifest *attached; // owned
    const ebb_manifest *manifest;
    ebb_requests requests;
    struct ebb_io *io; // NULL before connect
    pthread_mutex_t lock;
    uint32_t n_routes; // under lock
    uint64_t layout;   // under lock
    ebb_traffic_counters traffic;
};

// Starts the data path with a parsed map (taken on success).
ebb_status ebb_session_start(ebb_session *session, ebb_routes *routes);

// The layout that requests made now are split by.
void ebb_session_layout(ebb_session *session, uint32_t *n_routes, uint64_t *layout);

#endif
