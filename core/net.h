// ZeroMQ's one home: context, ROUTER and DEALER sockets, frames in and out, polling.
//
// A socket belongs to the thread that opened it. Nothing here blocks except ebb_net_poll. Every socket has: LINGER 0, bounded HWM, MAXMSGSIZE, no
// ZMTP heartbeats (they abort clients, libzmq #3937), ROUTER_MANDATORY, IMMEDIATE on DEALERs, HANDSHAKE_IVL 3 s.
#ifndef EBB_CORE_NET_H
#define EBB_CORE_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "core/wire.h"

typedef struct ebb_net ebb_net;
typedef struct ebb_socket ebb_socket;

// Routing id of a ROUTER's peer (given by libzmq, valid while the peer is connected).
typedef struct ebb_peer {
    uint8_t id[255]; // libzmq makes 5 bytes; a peer may set its own, of up to 255
    uint8_t len;
} ebb_peer;

ebb_status ebb_net_new(ebb_net **out); // one per process
void ebb_net_free(ebb_net **net);      // sockets must be closed before

// Binds a ROUTER. endpoint "ipc://PATH", "tcp://127.0.0.1:0" (0: any port). Off loopback only with plaintext_ok (INVAL else: says so).
// Errors: EXISTS (address in use), INVAL, IO. why (may be NULL, >= 256 bytes) gets a sentence. A stale ipc path of a dead process is taken over.
ebb_status ebb_router_open(ebb_net *net, const char *endpoint, bool plaintext_ok, ebb_socket **out, char *why);
// Connects a DEALER (in the background; reconnects by itself every 50..1000 ms).
ebb_status ebb_dealer_open(ebb_net *net, const char *endpoint, ebb_socket **out);
void ebb_socket_close(ebb_socket **s);
// The endpoint really bound (port filled in).
const char *ebb_socket_endpoint(const ebb_socket *s);

// Receives one whole message without blocking: AGAIN if none; PROTO if it broke a bound (it was read to its end and dropped; peer is set).
// peer: NULL on a DEALER. Frame buffers are zero-copy.
ebb_status ebb_socket_recv(ebb_socket *s, ebb_peer *peer, ebb_frames *out);
// Sends all frames without copying their bytes; never blocks. AGAIN: queue full, nothing sent, frames still the caller's.
// CLOSED: that peer is gone (frames still the caller's). On success the frames' references move to libzmq and *frames is emptied.
ebb_status ebb_socket_send(ebb_socket *s, const ebb_peer *peer, ebb_frames *frames);

typedef struct ebb_poll {
    ebb_socket *socket; // or NULL and
    int fd;
    bool want_write;         // sockets: also wait for room to send
    bool readable, writable; // out
} ebb_poll;
// Waits for any item, at most timeout_ms (-1: for ever). OK also when the time is up or a signal came.
ebb_status ebb_net_poll(ebb_poll *items, size_t n, int timeout_ms);

#endif
