// A coordinator small enough to see through: answers each ShardReport, installs the fixture's job, and keeps what was reported.
#ifndef EBB_TESTS_PS_FAKE_COORDINATOR_H
#define EBB_TESTS_PS_FAKE_COORDINATOR_H

#include "tests/ps/fixture.h"

#include <pthread.h>

#include "core/clock.h"
#include "core/net.h"

#define FAKE_STREAMS 64

typedef struct fake_coordinator {
    ebb_net *net;
    const fixture *f;
    char endpoint[128];
    pthread_t thread;
    pthread_mutex_t lock;
    _Atomic int stop;
    // orders, under the lock
    uint64_t retired_below;
    uint64_t skip_stream, skip_seq;
    bool snapshot, shutdown;
    // what was reported, under the lock
    uint64_t reports, version, incarnation, skipped, journal_bytes;
    bool installed;
    char shard_endpoint[EBB_ENDPOINT_MAX];
    uint64_t applied[FAKE_STREAMS], durable[FAKE_STREAMS];
} fake_coordinator;

static inline void fake_coordinator_note(fake_coordinator *c, const Ebb__ShardReport *r)
{
    c->reports++;
    bool restarted = c->incarnation != r->incarnation;
    c->incarnation = r->incarnation;
    snprintf(c->shard_endpoint, sizeof(c->shard_endpoint), "%s", r->endpoint);
    c->installed = r->n_jobs == 1 && r->jobs[0]->job == c->f->install.job;
    if (r->n_jobs == 1) {
        const Ebb__ShardJobReport *j = r->jobs[0];
        c->version = j->version;
        c->skipped = j->skipped;
        c->journal_bytes = j->journal_bytes;
        assert_true(!restarted || j->since == 0); // the first report of a process begins at the beginning
        if (j->since == 0) {
            memset(c->applied, 0, sizeof(c->applied));
            memset(c->durable, 0, sizeof(c->durable));
        }
        for (size_t i = 0; i < j->n_watermarks; i++) {
            const Ebb__Watermark *w = j->watermarks[i];
            assert_true(w->stream < FAKE_STREAMS && w->durable <= w->applied);
            c->applied[w->stream] = w->applied;
            c->durable[w->stream] = w->durable;
        }
    }
}

static inline void fake_coordinator_answer(fake_coordinator *c, ebb_socket *router, const ebb_peer *peer, const ebb_msg *msg)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__ShardReportReply reply = EBB__SHARD_REPORT_REPLY__INIT;
    Ebb__ShardInstall install = c->f->install;
    Ebb__StreamSkip skip = EBB__STREAM_SKIP__INIT, *skips[1] = {&skip};
    ebb_part part = {.dtype = EBB_DTYPE_BYTES, .kind = EBB_PART_MANIFEST};
    size_t n_parts = 0;
    ebb_frames out;
    ebb_frames_init(&out);
    pthread_mutex_lock(&c->lock);
    fake_coordinator_note(c, msg->env->shard_report);
    env.request_id = msg->env->request_id;
    env.body_case = EBB__ENVELOPE__BODY_SHARD_REPORT_REPLY;
    env.shard_report_reply = &reply;
    reply.job = c->f->install.job;
    reply.retired_below = c->retired_below;
    reply.snapshot = c->snapshot;
    reply.shutdown = c->shutdown;
    c->snapshot = false;
    if (c->skip_seq != 0) {
        skip.job = c->f->install.job;
        skip.stream = c->skip_stream;
        skip.seq = c->skip_seq;
        reply.n_skips = 1;
        reply.skips = skips;
    }
    if (!c->installed) {
        reply.install = &install;
        CHECK_OK(ebb_buf_dup(c->f->packed, c->f->packed_len, &part.buf));
        part.numel = c->f->packed_len;
        ebb_part_seal(&part);
        n_parts = 1;
    }
    CHECK_OK(ebb_msg_pack(&env, &part, n_parts, &out));
    pthread_mutex_unlock(&c->lock);
    ebb_socket_send(router, peer, &out);
    ebb_frames_fini(&out);
    ebb_buf_unref(&part.buf);
}

static inline void *fake_coordinator_main(void *arg)
{
    fake_coordinator *c = arg;
    ebb_socket *router = NULL;
    ebb_status st = EBB_EXISTS;
    for (int i = 0; st == EBB_EXISTS && i < 200; i++) { // libzmq closes the last one's socket in the background
        st = ebb_router_open(c->net, c->endpoint, false, &router, NULL);
        ebb_clock_sleep_ms(st == EBB_EXISTS ? 20 : 0);
    }
    CHECK_OK(st);
    while (!c->stop) {
        ebb_poll item = {.socket = router};
        ebb_net_poll(&item, 1, 20);
        ebb_peer peer;
        ebb_frames frames;
        while (ebb_socket_recv(router, &peer, &frames) == EBB_OK) {
            ebb_msg msg;
            CHECK_OK(ebb_msg_unpack(&frames, true, &msg, NULL));
            ebb_frames_fini(&frames);
            assert_int_equal(msg.env->body_case, EBB__ENVELOPE__BODY_SHARD_REPORT);
            fake_coordinator_answer(c, router, &peer, &msg);
            ebb_msg_fini(&msg);
        }
    }
    ebb_socket_close(&router);
    return NULL;
}

static inline void fake_coordinator_start(fake_coordinator *c, ebb_net *net, const fixture *f, const char *dir)
{
    memset(c, 0, sizeof(*c));
    c->net = net;
    c->f = f;
    snprintf(c->endpoint, sizeof(c->endpoint), "ipc://%s/coordinator.sock", dir);
    pthread_mutex_init(&c->lock, NULL);
    assert_int_equal(pthread_create(&c->thread, NULL, fake_coordinator_main, c), 0);
}

static inline void fake_coordinator_stop(fake_coordinator *c)
{
    c->stop = 1;
    pthread_join(c->thread, NULL);
    pthread_mutex_destroy(&c->lock);
}

// Waits (at most 20 s) until the condition on c holds, under the lock.
#define FAKE_WAIT(c, cond)                                  \
    do {                                                    \
        uint64_t fake_until_ = ebb_clock_ms() + 20000;      \
        bool fake_ok_ = false;                              \
        while (!fake_ok_ && ebb_clock_ms() < fake_until_) { \
            pthread_mutex_lock(&(c)->lock);                 \
            fake_ok_ = (cond);                              \
            pthread_mutex_unlock(&(c)->lock);               \
            if (!fake_ok_) {                                \
                ebb_clock_sleep_ms(5);                      \
            }                                               \
        }                                                   \
        if (!fake_ok_) {                                    \
            fail_msg("waited 20 s for %s", #cond);          \
        }                                                   \
    } while (0)

#endif
