#include "coordinator/rpc.h"

#include <stdlib.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/process.h"

#define BATCH 64 // requests between two looks at the clock
#define TICK_MS 50

static void s_answer(ebb_coordinator *c, ebb_socket *router, const ebb_peer *peer, const ebb_frames *frames)
{
    ebb_msg request;
    const char *why = NULL;
    ebb_status st = ebb_msg_unpack(frames, true, &request, &why);
    if (st != EBB_OK) { // nobody to answer: the request id is unknown
        EBB_LOG(WARN, "rpc", "bad-message", "status=%s why=\"%s\"", ebb_status_name(st), why);
        return;
    }
    Ebb__Envelope reply = EBB__ENVELOPE__INIT;
    ebb_trash trash = {0};
    const ebb_part *part = NULL;
    reply.request_id = request.env->request_id;
    ebb_coordinator_handle(c, &request, ebb_clock_ms(), &reply, &part, &trash);
    if (c->failure == EBB_OK) { // after a failed write nothing more is said
        ebb_frames out;
        ebb_frames_init(&out);
        st = ebb_msg_pack(&reply, part, part != NULL ? 1 : 0, &out);
        if (st == EBB_OK) {
            st = ebb_socket_send(router, peer, &out);
        }
        if (st != EBB_OK) { // the peer is gone or does not read: it will ask again
            EBB_LOG(DEBUG, "rpc", "reply-dropped", "status=%s", ebb_status_name(st));
        }
        ebb_frames_fini(&out);
    }
    ebb_trash_fini(&trash);
    ebb_msg_fini(&request);
}

ebb_status ebb_coordinator_serve(ebb_coordinator *c, ebb_socket *router, ebb_http *http, int stop_fd)
{
    uint64_t next_tick = 0, next_publish = 0;
    while (c->failure == EBB_OK && !c->ended && ebb_stop_requested == 0) {
        ebb_poll items[2] = {{.socket = router}, {.fd = stop_fd}};
        ebb_status st = ebb_net_poll(items, 2, TICK_MS);
        if (st != EBB_OK) {
            return st;
        }
        for (int i = 0; i < BATCH && c->failure == EBB_OK; i++) {
            ebb_peer peer;
            ebb_frames frames;
            st = ebb_socket_recv(router, &peer, &frames);
            if (st == EBB_AGAIN) {
                break;
            }
            if (st == EBB_OK) {
                s_answer(c, router, &peer, &frames);
                ebb_frames_fini(&frames);
            }
        }
        uint64_t now_ms = ebb_clock_ms();
        if (now_ms >= next_tick) {
            ebb_coordinator_tick(c, now_ms);
            next_tick = now_ms + TICK_MS;
            if (http != NULL && now_ms >= next_publish) {
                ebb_http_publish(http, c, now_ms);
                next_publish = now_ms + EBB_HTTP_PUBLISH_MS;
            }
        }
    }
    return c->failure;
}
