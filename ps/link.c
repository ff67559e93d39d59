#include "ps/link.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/rpc.h"

#define REPORT_MS 100
#define REPORT_MIN_MS 5 // between two reports, however much is new
#define CALL_MS 2000
#define LAST_CALL_MS 500
#define BUILD_MS 60000 // the shard's thread may be at an install (initial values of a large model)

struct ebb_link {
    ebb_net *net;
    ebb_shard *shard;
    ebb_rpc *rpc;
    pthread_t thread;
    bool started;
    _Atomic int stop;
    bool last_report;
    bool silent; // the coordinator did not answer the last call
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool news;
    bool built;
    Ebb__Envelope *env;
    uint64_t report;
};

static void s_wait_until(ebb_link *l, uint64_t until_ms)
{
    struct timespec ts = {.tv_sec = (time_t)(until_ms / 1000), .tv_nsec = (long)(until_ms % 1000) * 1000000};
    pthread_cond_timedwait(&l->wake, &l->lock, &ts);
}

// Waits for the next report's time. last_ms: when the last was sent.
static void s_pause(ebb_link *l, uint64_t last_ms)
{
    pthread_mutex_lock(&l->lock);
    for (;;) {
        uint64_t now = ebb_clock_ms(), until = last_ms + (l->news ? REPORT_MIN_MS : REPORT_MS);
        if (l->stop || now >= until) {
            break;
        }
        s_wait_until(l, until);
    }
    l->news = false;
    pthread_mutex_unlock(&l->lock);
}

// Asks the shard's thread for a report and waits for it.
static Ebb__Envelope *s_build(ebb_link *l, bool last, uint64_t *report)
{
    ebb_event *e = NULL;
    if (ebb_event_new(EBB_EVENT_REPORT, &e) != EBB_OK) {
        return NULL;
    }
    pthread_mutex_lock(&l->lock);
    if (l->env != NULL) { // of a wait that was given up
        ebb_pb_free(&l->env->base);
        l->env = NULL;
    }
    l->built = false;
    pthread_mutex_unlock(&l->lock);
    if (ebb_shard_submit_take(l->shard, &e) != EBB_OK) {
        ebb_event_free(&e);
        return NULL;
    }
    uint64_t until = ebb_clock_ms() + (last ? LAST_CALL_MS : BUILD_MS);
    pthread_mutex_lock(&l->lock);
    while (!l->built && (last || !l->stop) && ebb_clock_ms() < until) {
        s_wait_until(l, until);
    }
    Ebb__Envelope *env = l->env;
    *report = l->report;
    l->env = NULL;
    pthread_mutex_unlock(&l->lock);
    return env;
}

static void s_hand_over(ebb_link *l, ebb_msg *reply, uint64_t report)
{
    ebb_event *e = NULL;
    if (ebb_event_new(EBB_EVENT_ORDERS, &e) != EBB_OK) {
        return;
    }
    e->msg = *reply;
    ebb_msg_init(reply);
    e->report = report;
    if (ebb_shard_submit_take(l->shard, &e) != EBB_OK) {
        ebb_event_free(&e); // the coordinator repeats its orders
    }
}

static void s_exchange(ebb_link *l, bool last)
{
    uint64_t report = 0;
    Ebb__Envelope *env = s_build(l, last, &report);
    if (env == NULL) {
        return;
    }
    ebb_msg reply;
    ebb_status st = ebb_rpc_call(l->rpc, env, NULL, 0, last ? LAST_CALL_MS : CALL_MS, 0, last ? NULL : &l->stop, &reply);
    ebb_pb_free(&env->base);
    if (st != EBB_OK) {
        if (!l->silent && !l->stop) {
            EBB_LOG(WARN, "link", "coordinator-silent", "status=%s", ebb_status_name(st));
            l->silent = true;
        }
        return;
    }
    if (l->silent) {
        EBB_LOG(INFO, "link", "coordinator-back", "report=%llu", (unsigned long long)report);
        l->silent = false;
    }
    if (reply.env->status == EBB_CLOSED) {
        s_hand_over(l, &reply, report); // another process has our place: for the shard's thread to act on
    } else if (reply.env->status != EBB_OK || reply.env->body_case != EBB__ENVELOPE__BODY_SHARD_REPORT_REPLY) {
        EBB_LOG(WARN, "link", "report-refused", "status=%s detail=\"%s\"", ebb_status_name((int)reply.env->status), reply.env->detail);
    } else {
        s_hand_over(l, &reply, report);
    }
    ebb_msg_fini(&reply);
}

static void *s_main(void *arg)
{
    ebb_link *l = arg;
    while (!l->stop) {
        uint64_t begin = ebb_clock_ms();
        s_exchange(l, false);
        s_pause(l, begin);
    }
    if (l->last_report) {
        s_exchange(l, true);
    }
    return NULL;
}

ebb_status ebb_link_new(ebb_net *net, const char *coordinator, ebb_shard *shard, ebb_link **out)
{
    ebb_link *l = calloc(1, sizeof(*l));
    if (l == NULL) {
        return EBB_NOMEM;
    }
    l->net = net;
    l->shard = shard;
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->wake, &attr);
    pthread_condattr_destroy(&attr);
    ebb_status st = ebb_rpc_new(net, coordinator, &l->rpc);
    if (st != EBB_OK) {
        ebb_link_free(&l);
        return st;
    }
    *out = l;
    return EBB_OK;
}

ebb_status ebb_link_start(ebb_link *l)
{
    if (pthread_create(&l->thread, NULL, s_main, l) != 0) {
        return EBB_NOMEM;
    }
    l->started = true;
    return EBB_OK;
}

void ebb_link_report(ebb_link *l, Ebb__Envelope *env, uint64_t report)
{
    pthread_mutex_lock(&l->lock);
    if (l->env != NULL) {
        ebb_pb_free(&l->env->base);
    }
    l->env = env;
    l->report = report;
    l->built = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

void ebb_link_news(ebb_link *l)
{
    pthread_mutex_lock(&l->lock);
    l->news = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

void ebb_link_stop(ebb_link *l, bool last_report)
{
    if (!l->started) {
        return;
    }
    pthread_mutex_lock(&l->lock);
    l->last_report = last_report;
    l->stop = 1;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    l->started = false;
}

void ebb_link_free(ebb_link **lp)
{
    ebb_link *l = *lp;
    if (l == NULL) {
        return;
    }
    *lp = NULL;
    ebb_link_stop(l, false);
    ebb_rpc_free(&l->rpc);
    if (l->env != NULL) {
        ebb_pb_free(&l->env->base);
    }
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
