#include "core/rpc.h"

#include <stdlib.h>
#include <string.h>
#include <stdio.h>

#include "core/assert.h"
#include "core/clock.h"
#include "core/rng.h"

#define RESEND_MS_DEFAULT 500
#define CANCEL_CHECK_MS 50

struct ebb_rpc {
    ebb_net *net;
    ebb_socket *dealer;
    uint64_t next_id;
    char endpoint[EBB_ENDPOINT_MAX];
};

ebb_status ebb_rpc_new(ebb_net *net, const char *endpoint, ebb_rpc **out)
{
    if (strlen(endpoint) >= EBB_ENDPOINT_MAX) {
        return EBB_INVAL;
    }
    ebb_rpc *rpc = calloc(1, sizeof(*rpc));
    if (rpc == NULL) {
        return EBB_NOMEM;
    }
    rpc->net = net;
    rpc->next_id = ebb_rng_system();
    snprintf(rpc->endpoint, sizeof(rpc->endpoint), "%s", endpoint);
    ebb_status st = ebb_dealer_open(net, endpoint, &rpc->dealer);
    if (st != EBB_OK) {
        free(rpc);
        return st;
    }
    *out = rpc;
    return EBB_OK;
}

void ebb_rpc_free(ebb_rpc **rp)
{
    ebb_rpc *rpc = *rp;
    if (rpc == NULL) {
        return;
    }
    *rp = NULL;
    ebb_socket_close(&rpc->dealer);
    free(rpc);
}

// Reads until the answer to `id` is found (OK), or nothing is left (AGAIN). Answers to earlier calls are dropped.
static ebb_status s_receive(ebb_rpc *rpc, uint64_t id, ebb_msg *reply)
{
    for (;;) {
        ebb_frames frames;
        ebb_status st = ebb_socket_recv(rpc->dealer, NULL, &frames);
        if (st == EBB_PROTO) {
            continue;
        }
        if (st != EBB_OK) {
            return st;
        }
        st = ebb_msg_unpack(&frames, true, reply, NULL);
        ebb_frames_fini(&frames);
        if (st != EBB_OK) {
            continue;
        }
        if (reply->env->request_id == id) {
            return EBB_OK;
        }
        ebb_msg_fini(reply);
    }
}

ebb_status ebb_rpc_call(ebb_rpc *rpc, Ebb__Envelope *env, const ebb_part *parts, size_t n_parts, uint32_t timeout_ms, uint32_t resend_ms,
                        const _Atomic int *cancel, ebb_msg *reply)
{
    if (resend_ms == 0) {
        resend_ms = RESEND_MS_DEFAULT;
    }
    if (rpc->next_id == 0) {
        rpc->next_id = 1;
    }
    uint64_t id = env->request_id = rpc->next_id++;
    uint64_t start = ebb_clock_ms(), deadline = start + timeout_ms, resend_at = 0;
    bool sent = false;
    ebb_msg_init(reply);
    for (;;) {
        uint64_t now = ebb_clock_ms();
        if (cancel != NULL && *cancel != 0) {
            return EBB_CLOSED;
        }
        if (now >= deadline) {
            return EBB_TIMEDOUT;
        }
        if (sent && now >= resend_at) {
            // Silence: the server may have died with our connection half open. A fresh connection is cheap.
            ebb_socket *fresh = NULL;
            EBB_TRY(ebb_dealer_open(rpc->net, rpc->endpoint, &fresh));
            ebb_socket_close(&rpc->dealer);
            rpc->dealer = fresh;
            sent = false;
        }
        if (!sent) {
            ebb_frames frames;
            ebb_frames_init(&frames);
            EBB_TRY(ebb_msg_pack(env, parts, n_parts, &frames));
            ebb_status st = ebb_socket_send(rpc->dealer, NULL, &frames);
            ebb_frames_fini(&frames);
            if (st == EBB_OK) {
                sent = true;
                resend_at = now + resend_ms;
            } else if (st != EBB_AGAIN) {
                return st;
            }
        }
        uint64_t until = sent && resend_at < deadline ? resend_at : deadline;
        uint64_t wait = until > now ? until - now : 1;
        if (wait > CANCEL_CHECK_MS) {
            wait = CANCEL_CHECK_MS;
        }
        ebb_poll item = {.socket = rpc->dealer, .want_write = !sent};
        EBB_TRY(ebb_net_poll(&item, 1, (int)wait));
        if (item.readable) {
            ebb_status st = s_receive(rpc, id, reply);
            if (st != EBB_AGAIN) {
                return st;
            }
        }
    }
}
