// The coordinator over HTTP, to look at: JSON, Prometheus, and a page for a browser. Read-only.
//
//   GET /                        the dashboard (coordinator/web/dashboard.html, part of the program)
//   GET /api/v1/status           the StatusReply of proto/ebb.proto as JSON
//   GET /api/v1/events?after=N   {"events": [...], "last": N}: events with a greater id, of the newest EBB_HTTP_EVENTS
//   GET /metrics                 Prometheus text
//   GET /healthz                 "ok" while the coordinator publishes; 503 when it has not for 10 s
//
// A thread of libmicrohttpd's answers from what the coordinator's thread last published: it never touches the coordinator's state, and a slow client
// delays nobody but itself. Binds to loopback addresses only: there is no authentication yet.
#ifndef EBB_COORDINATOR_HTTP_H
#define EBB_COORDINATOR_HTTP_H

#include <stdint.h>

#include "coordinator/coordinator.h"

#define EBB_HTTP_EVENTS 512
#define EBB_HTTP_PUBLISH_MS 500

typedef struct ebb_http ebb_http;

// address: "HOST:PORT", HOST an IPv4 loopback address or "localhost", PORT 0: any. CONFIG: not an address, or not loopback; EXISTS: in use; why >= 512.
ebb_status ebb_http_open(const char *address, ebb_http **out, char *why);
void ebb_http_close(ebb_http **h);
uint16_t ebb_http_port(const ebb_http *h);
// By the coordinator's thread: what is answered from now on.
void ebb_http_publish(ebb_http *h, ebb_coordinator *c, uint64_t now_ms);

#endif
