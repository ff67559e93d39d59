#include "ps/ingress.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/clock.h"
#include "core/inbox.h"
#include "core/log.h"

#define REPLIES_MAX 4096       // queued between shard and network
#define OUTBOX_PER_PEER_MAX 32 // beyond libzmq's own queue of a peer that does not read
#define OUTBOX_MAX 1024
#define OUTBOX_AGE_MS 30000
#define OUTBOX_RETRY_MS 5
#define RECEIVE_BATCH 64
#define FLUSH_MS 200

typedef struct reply {
    ebb_peer peer;
    ebb_frames frames;
    uint64_t queued_ms;
    struct reply *next;
} reply;

struct ebb_ingress {
    ebb_net *net;
    ebb_shard *shard;
    uint64_t incarnation;
    const char *bind; // during start
    char endpoint[EBB_ENDPOINT_MAX];
    ebb_socket *router;
    ebb_inbox *replies;
    reply *outbox; // oldest first
    size_t outbox_n;
    _Atomic uint64_t dropped;
    pthread_t thread;
    _Atomic bool closing, stop;
    // start handshake
    pthread_mutex_t lock;
    pthread_cond_t ready;
    bool started;
    ebb_status status;
    char why[256];
};

static bool s_same(const ebb_peer *a, const ebb_peer *b)
{
    return a->len == b->len && memcmp(a->id, b->id, a->len) == 0;
}

static void s_reply_free(reply *r)
{
    ebb_frames_fini(&r->frames);
    free(r);
}

static void s_drop(ebb_ingress *in, const char *why)
{
    uint64_t n = atomic_fetch_add(&in->dropped, 1) + 1;
    if ((n & (n - 1)) == 0) { // 1, 2, 4, 8, ...
        EBB_LOG(WARN, "ingress", "reply-dropped", "why=\"%s\" total=%llu", why, (unsigned long long)n);
    }
}

// ---- out ----

static void s_outbox_add(ebb_ingress *in, reply *r)
{
    size_t of_peer = 0;
    reply **end = &in->outbox;
    for (; *end != NULL; end = &(*end)->next) {
        of_peer += s_same(&(*end)->peer, &r->peer);
    }
    if (of_peer >= OUTBOX_PER_PEER_MAX || in->outbox_n >= OUTBOX_MAX) {
        s_drop(in, "the peer does not read");
        s_reply_free(r);
        return;
    }
    r->queued_ms = ebb_clock_ms();
    r->next = NULL;
    *end = r;
    in->outbox_n++;
}

// False: this peer cannot take it now.
static bool s_try_send(ebb_ingress *in, reply *r)
{
    ebb_status st = ebb_socket_send(in->router, &r->peer, &r->frames);
    if (st == EBB_AGAIN) {
        return false;
    }
    if (st != EBB_OK && st != EBB_CLOSED) {
        s_drop(in, ebb_status_str(st));
    }
    s_reply_free(r); // CLOSED: the peer is gone
    return true;
}

static bool s_is_waiting(const ebb_ingress *in, const ebb_peer *peer)
{
    for (const reply *r = in->outbox; r != NULL; r = r->next) {
        if (s_same(&r->peer, peer)) {
            return true;
        }
    }
    return false;
}

// A peer whose oldest reply is refused keeps its order: its later ones are refused by the same full queue.
static void s_outbox_flush(ebb_ingress *in)
{
    uint64_t now = ebb_clock_ms();
    reply **at = &in->outbox;
    while (*at != NULL) {
        reply *r = *at, *next = r->next;
        if (now - r->queued_ms > OUTBOX_AGE_MS) {
            s_drop(in, "too old");
            s_reply_free(r);
        } else if (!s_try_send(in, r)) {
            at = &r->next;
            continue;
        }
        *at = next;
        in->outbox_n--;
    }
}

static void s_send_replies(ebb_ingress *in)
{
    reply *r;
    while ((r = ebb_inbox_pop(in->replies)) != NULL) {
        if ((in->outbox_n > 0 && s_is_waiting(in, &r->peer)) || !s_try_send(in, r)) {
            s_outbox_add(in, r);
        }
    }
}

// ---- in ----

static void s_answer(ebb_ingress *in, const ebb_peer *peer, uint64_t request_id, Ebb__Envelope *env)
{
    reply *r = calloc(1, sizeof(*r));
    if (r == NULL) {
        return;
    }
    ebb_frames_init(&r->frames);
    r->peer = *peer;
    env->request_id = request_id;
    if (ebb_msg_pack(env, NULL, 0, &r->frames) != EBB_OK) {
        s_reply_free(r);
    } else if (!s_try_send(in, r)) {
        s_outbox_add(in, r);
    }
}

static void s_refuse(ebb_ingress *in, const ebb_peer *peer, const Ebb__Envelope *request, ebb_status st, const char *detail)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__Ok ok = EBB__OK__INIT;
    Ebb__PushReply push = EBB__PUSH_REPLY__INIT;
    env.status = st;
    env.detail = (char *)detail;
    env.body_case = EBB__ENVELOPE__BODY_OK;
    env.ok = &ok;
    if (request->body_case == EBB__ENVELOPE__BODY_PUSH_REQUEST) {
        push.incarnation = in->incarnation;
        push.credit = 1;
        env.body_case = EBB__ENVELOPE__BODY_PUSH_REPLY;
        env.push_reply = &push;
    }
    s_answer(in, peer, request->request_id, &env);
}

// A message whose payload is damaged still has an envelope to answer to, so that the peer sends it again at once.
static void s_refuse_broken(ebb_ingress *in, const ebb_peer *peer, const ebb_frames *frames, ebb_status st, const char *why)
{
    EBB_LOG(WARN, "ingress", "bad-message", "status=%s why=\"%s\"", ebb_status_name(st), why);
    if (frames->n > 1) {
        ebb_frames head = *frames;
        ebb_msg msg;
        head.n = 1;
        if (ebb_msg_unpack(&head, false, &msg, NULL) == EBB_OK) {
            s_refuse(in, peer, msg.env, st, why);
            ebb_msg_fini(&msg);
        }
    }
}

static bool s_is_for_shard(const Ebb__Envelope *env)
{
    return env->body_case == EBB__ENVELOPE__BODY_PUSH_REQUEST || env->body_case == EBB__ENVELOPE__BODY_PULL_REQUEST ||
           env->body_case == EBB__ENVELOPE__BODY_PIN_REQUEST || env->body_case == EBB__ENVELOPE__BODY_UNPIN_REQUEST;
}

static void s_handle(ebb_ingress *in, const ebb_peer *peer, const ebb_frames *frames)
{
    ebb_event *e = NULL;
    const char *why = "out of memory";
    ebb_status st = ebb_event_new(EBB_EVENT_REQUEST, &e);
    if (st == EBB_OK) {
        st = ebb_msg_unpack(frames, true, &e->msg, &why);
    }
    if (st != EBB_OK) {
        s_refuse_broken(in, peer, frames, st, why);
        ebb_event_free(&e);
        return;
    }
    const Ebb__Envelope *env = e->msg.env;
    if (env->body_case == EBB__ENVELOPE__BODY_PING) {
        Ebb__Envelope out = EBB__ENVELOPE__INIT;
        Ebb__Pong pong = EBB__PONG__INIT;
        pong.nonce = env->ping->nonce;
        pong.incarnation = in->incarnation;
        out.body_case = EBB__ENVELOPE__BODY_PONG;
        out.pong = &pong;
        s_answer(in, peer, env->request_id, &out);
    } else if (!s_is_for_shard(env)) {
        s_refuse(in, peer, env, EBB_INVAL, "this request is not for a shard");
    } else if (in->closing) {
        s_refuse(in, peer, env, EBB_TRYLATER, "the shard is ending");
    } else {
        e->peer = *peer;
        e->bytes = frames->bytes;
        if (ebb_shard_submit_take(in->shard, &e) != EBB_OK) {
            s_refuse(in, peer, e->msg.env, EBB_TRYLATER, "the shard's queue is full");
        }
    }
    ebb_event_free(&e);
}

static void s_receive(ebb_ingress *in)
{
    for (int i = 0; i < RECEIVE_BATCH; i++) {
        ebb_peer peer;
        ebb_frames frames;
        ebb_status st = ebb_socket_recv(in->router, &peer, &frames);
        if (st == EBB_AGAIN) {
            return;
        }
        if (st != EBB_OK) {
            EBB_LOG(WARN, "ingress", "bad-message", "status=%s", ebb_status_name(st));
            continue;
        }
        if (frames.n > 0) {
            s_handle(in, &peer, &frames);
        }
        ebb_frames_fini(&frames);
    }
}

// ---- the thread ----

static void s_loop(ebb_ingress *in)
{
    uint64_t flush_until = 0;
    for (;;) {
        if (in->stop) {
            uint64_t now = ebb_clock_ms();
            flush_until = flush_until != 0 ? flush_until : now + FLUSH_MS;
            s_send_replies(in);
            s_outbox_flush(in);
            if (in->outbox_n == 0 || now >= flush_until) {
                return;
            }
            ebb_clock_sleep_ms(OUTBOX_RETRY_MS);
            continue;
        }
        ebb_poll items[2] = {{.socket = in->router}, {.fd = ebb_inbox_fd(in->replies)}};
        if (ebb_net_poll(items, 2, in->outbox_n > 0 ? OUTBOX_RETRY_MS : -1) != EBB_OK) {
            return;
        }
        s_send_replies(in);
        if (in->outbox_n > 0) {
            s_outbox_flush(in);
        }
        if (items[0].readable) {
            s_receive(in);
        }
    }
}

static void *s_main(void *arg)
{
    ebb_ingress *in = arg;
    ebb_status st = ebb_router_open(in->net, in->bind, false, &in->router, in->why);
    pthread_mutex_lock(&in->lock);
    if (st == EBB_OK) {
        snprintf(in->endpoint, sizeof(in->endpoint), "%s", ebb_socket_endpoint(in->router));
    }
    in->status = st;
    in->started = true;
    pthread_cond_signal(&in->ready);
    pthread_mutex_unlock(&in->lock);
    if (st == EBB_OK) {
        s_loop(in);
        // What was sent last is in libzmq's queues, and LINGER is 0: give its I/O thread a moment.
        ebb_clock_sleep_ms(20);
        ebb_socket_close(&in->router);
    }
    return NULL;
}

ebb_status ebb_ingress_start(ebb_net *net, const char *endpoint, ebb_shard *shard, uint64_t incarnation, ebb_ingress **out, char *why)
{
    ebb_ingress *in = calloc(1, sizeof(*in));
    if (in == NULL) {
        return EBB_NOMEM;
    }
    in->net = net;
    in->shard = shard;
    in->incarnation = incarnation;
    in->bind = endpoint;
    pthread_mutex_init(&in->lock, NULL);
    pthread_cond_init(&in->ready, NULL);
    ebb_status st = ebb_inbox_new(REPLIES_MAX, &in->replies);
    if (st == EBB_OK && pthread_create(&in->thread, NULL, s_main, in) != 0) {
        st = EBB_NOMEM;
    } else if (st == EBB_OK) {
        pthread_mutex_lock(&in->lock);
        while (!in->started) {
            pthread_cond_wait(&in->ready, &in->lock);
        }
        st = in->status;
        pthread_mutex_unlock(&in->lock);
        if (st != EBB_OK) {
            pthread_join(in->thread, NULL);
        }
    }
    if (st != EBB_OK) {
        snprintf(why, 256, "%s", in->why[0] != '\0' ? in->why : ebb_status_str(st));
        ebb_inbox_free(&in->replies);
        pthread_cond_destroy(&in->ready);
        pthread_mutex_destroy(&in->lock);
        free(in);
        return st;
    }
    *out = in;
    return EBB_OK;
}

const char *ebb_ingress_endpoint(const ebb_ingress *in)
{
    return in->endpoint;
}

void ebb_ingress_reply(ebb_ingress *in, const ebb_peer *peer, ebb_frames *frames)
{
    reply *r = calloc(1, sizeof(*r));
    if (r == NULL) {
        ebb_frames_fini(frames);
        return;
    }
    r->peer = *peer;
    r->frames = *frames;
    ebb_frames_init(frames);
    if (ebb_inbox_push(in->replies, r) != EBB_OK) {
        s_drop(in, "the queue of replies is full");
        s_reply_free(r);
    }
}

void ebb_ingress_close(ebb_ingress *in)
{
    in->closing = true;
}

void ebb_ingress_stop(ebb_ingress **inp)
{
    ebb_ingress *in = *inp;
    if (in == NULL) {
        return;
    }
    *inp = NULL;
    in->closing = true;
    in->stop = true;
    ebb_inbox_close(in->replies); // wakes the poll
    pthread_join(in->thread, NULL);
    reply *r;
    while ((r = ebb_inbox_pop(in->replies)) != NULL) {
        s_reply_free(r);
    }
    while ((r = in->outbox) != NULL) {
        in->outbox = r->next;
        s_reply_free(r);
    }
    ebb_inbox_free(&in->replies);
    pthread_cond_destroy(&in->ready);
    pthread_mutex_destroy(&in->lock);
    free(in);
}
