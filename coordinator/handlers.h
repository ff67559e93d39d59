// One handler per kind of request, called by handle.c only. Each fills in *reply (see ebb_coordinator_handle); what it promises is in the store before.
#ifndef EBB_COORDINATOR_HANDLERS_H
#define EBB_COORDINATOR_HANDLERS_H

#include "coordinator/coordinator.h"

// coordinator.c: what handlers share with the passing of time
bool ebb_coordinator_shards_ready(const ebb_coordinator *c);
double ebb_coordinator_elapsed_s(const ebb_coordinator *c); // since the job was made
void ebb_coordinator_retire(ebb_coordinator *c);            // retires units that every shard has durable, forgets skips that no shard needs any more

// scale.c
void ebb_scale_policy_from(ebb_scale_policy *p, const Ebb__JobSpec *spec);
void ebb_coordinator_scale(ebb_coordinator *c, uint64_t now_ms); // once a second: how many workers, and who leaves
void ebb_coordinator_scale_status(const ebb_coordinator *c, Ebb__ScaleStatus *s);

// workers.c
void ebb_handle_join(ebb_coordinator *c, const Ebb__JoinRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_register_manifest(ebb_coordinator *c, const ebb_msg *request, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_lease(ebb_coordinator *c, const Ebb__LeaseRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_heartbeat(ebb_coordinator *c, const Ebb__HeartbeatRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_lease_return(ebb_coordinator *c, const Ebb__LeaseReturn *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_leave(ebb_coordinator *c, const Ebb__LeaveRequest *q, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_worker_gone(ebb_coordinator *c, const Ebb__WorkerGone *q, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_skip(ebb_coordinator *c, const Ebb__SkipRequest *q, uint64_t request_id, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_eval_report(ebb_coordinator *c, const Ebb__EvalReport *q, Ebb__Envelope *reply, ebb_trash *trash);

// shards.c
void ebb_handle_shard_map(ebb_coordinator *c, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_shard_report(ebb_coordinator *c, const Ebb__ShardReport *q, uint64_t now_ms, Ebb__Envelope *reply, const ebb_part **part,
                             ebb_trash *trash);

// operator.c
void ebb_handle_status(ebb_coordinator *c, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_events(ebb_coordinator *c, const Ebb__EventsRequest *q, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_drain(ebb_coordinator *c, const Ebb__DrainRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash);
void ebb_handle_job(ebb_coordinator *c, Ebb__Envelope *reply, const ebb_part **part, ebb_trash *trash);

#endif
