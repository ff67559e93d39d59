// The network thread: one ROUTER. Requests in: received without copying, unpacked, checksums verified, handed to the shard. Answers out: sent as they
// come from the shard; what a slow peer cannot take waits in a bounded outbox.
//
// Invariant: this thread never blocks on a peer and never touches the job. A reply that cannot be delivered (peer gone, outbox full) is dropped: the
// peer asks again by name. Pings are answered here, so a shard that is busy is not taken for a dead one.
#ifndef EBB_PS_INGRESS_H
#define EBB_PS_INGRESS_H

#include "core/net.h"
#include "ps/shard.h"

typedef struct ebb_ingress ebb_ingress;

// Binds and starts the thread; returns after the bind. why (>= 256 bytes). Errors: as ebb_router_open. The shard must outlive it.
ebb_status ebb_ingress_start(ebb_net *net, const char *endpoint, ebb_shard *shard, uint64_t incarnation, ebb_ingress **out, char *why);
// The endpoint really bound.
const char *ebb_ingress_endpoint(const ebb_ingress *in);
// Any thread. Takes the frames (emptied in every case).
void ebb_ingress_reply(ebb_ingress *in, const ebb_peer *peer, ebb_frames *frames);
// Requests are answered TRYLATER from now on.
void ebb_ingress_close(ebb_ingress *in);
// Sends what is queued (at most 200 ms), joins, closes the socket.
void ebb_ingress_stop(ebb_ingress **in);

#endif
