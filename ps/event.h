// What the shard's thread is told: requests from the network, and results of the threads that work for it. One queue, so one order.
#ifndef EBB_PS_EVENT_H
#define EBB_PS_EVENT_H

#include "core/net.h"
#include "core/wire.h"
#include "ps/snapshot.h"

typedef enum ebb_event_kind {
    EBB_EVENT_REQUEST,  // peer, msg: push, pull, pin, unpin
    EBB_EVENT_REPORT,   // the link wants a report
    EBB_EVENT_ORDERS,   // msg: the coordinator's answer to report number `report`
    EBB_EVENT_SYNCED,   // status
    EBB_EVENT_SNAPSHOT, // work
    EBB_EVENT_CLOSE,    // refuse pushes, write a last snapshot, say so
    EBB_EVENT_STOP,     // end the thread
} ebb_event_kind;

typedef struct ebb_event {
    ebb_event_kind kind;
    ebb_peer peer;
    ebb_msg msg;
    size_t bytes; // payload of msg, counted against the queue's bound
    uint64_t report;
    ebb_status status;
    ebb_snapshot_work *work;
} ebb_event;

ebb_status ebb_event_new(ebb_event_kind kind, ebb_event **out); // NOMEM
void ebb_event_free(ebb_event **e);                             // with all it owns

#endif
