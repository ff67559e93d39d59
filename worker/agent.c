#include "worker/agent.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/net.h"
#include "core/process.h"

#define STOPPING_TICK_MS 100

struct ebb_agent {
    ebb_session *session;
    ebb_stats *stats;
    ebb_control *control;
    pthread_t thread;
    int stop_fd, wake_fd;
    _Atomic int quit; // the trainer is done with us
    _Atomic int stopping;
    _Atomic(const char *) reason;
    _Atomic uint64_t stop_ms;
    bool overdue_exit;
    _Atomic uint64_t held, lost;
    uint32_t grace_ms; // written before quit
    uint64_t beat;     // the heartbeat under way
    double loss_sum;   // in it
    uint32_t loss_count;
    bool answered; // the last one was
    uint64_t rejoined_ms;
};

static void s_stop(ebb_agent *a, const char *reason)
{
    if (a->stopping == 0) {
        a->reason = reason;
        a->stop_ms = ebb_clock_ms();
        a->stopping = 1;
        EBB_LOG(INFO, "worker", "stopping", "reason=%s", reason);
    }
}

// A heartbeat that got no answer may have been counted; it is repeated under its number with the same losses until one is answered.
static void s_beat(ebb_agent *a, uint32_t timeout_ms)
{
    Ebb__HeartbeatRequest beat = EBB__HEARTBEAT_REQUEST__INIT;
    ebb_orders orders;
    if (a->answered) {
        a->answered = false;
        a->beat++;
        ebb_stats_take_loss(a->stats, &a->loss_sum, &a->loss_count);
    }
    uint64_t held = a->held;
    ebb_stats_fill(a->stats, &beat);
    beat.beat = a->beat;
    beat.loss_sum = a->loss_sum;
    beat.loss_count = a->loss_count;
    beat.leases = &held;
    beat.n_leases = held != 0;
    ebb_control_set_cancel(a->control, a->stopping == 0 ? &ebb_stop_requested : a->quit == 0 ? &a->quit : NULL);
    ebb_status st = ebb_heartbeat(a->control, &beat, &orders, timeout_ms);
    if (st == EBB_OK) {
        a->answered = true;
        if (orders.drain) {
            s_stop(a, "drained");
        }
        for (size_t i = 0; i < orders.n_lost; i++) {
            if (orders.lost[i] == held && held != 0) {
                a->lost = held;
            }
        }
        return;
    }
    // A coordinator that lost our seat (or says so by refusing) gets the same name again.
    if (st != EBB_TIMEDOUT && st != EBB_CLOSED && ebb_clock_ms() - a->rejoined_ms > 1000) {
        EBB_LOG(WARN, "worker", "heartbeat-refused", "status=%s reason=\"%s\" action=\"joining again\"", ebb_status_name(st),
                ebb_control_why(a->control));
        a->rejoined_ms = ebb_clock_ms();
        ebb_join(a->control, timeout_ms);
    }
}

static void *s_run(void *arg)
{
    ebb_agent *a = arg;
    uint64_t period = ebb_session_heartbeat_ms(a->session), next = ebb_clock_ms();
    while (a->quit == 0) {
        uint64_t now = ebb_clock_ms();
        if (ebb_stop_requested != 0) {
            s_stop(a, "SIGTERM");
        }
        if (now >= next) {
            next = now + period; // before the call: the rhythm does not depend on the answer
            s_beat(a, period < 500 ? 500 : (uint32_t)period);
            continue;
        }
        if (a->stopping != 0 && a->overdue_exit && now - a->stop_ms > EBB_AGENT_OVERDUE_MS) {
            EBB_LOG(WARN, "worker", "left-in-a-step", "reason=%s lease=%" PRIu64 " action=\"the lease runs out by itself\"", a->reason, a->held);
            _exit(0);
        }
        uint64_t wait = next - now;
        wait = a->stopping != 0 && wait > STOPPING_TICK_MS ? STOPPING_TICK_MS : wait;
        // Once the stop was seen its fd stays readable, so it is left out.
        ebb_poll items[2] = {{.fd = a->wake_fd}, {.fd = a->stop_fd}};
        ebb_net_poll(items, a->stop_fd >= 0 && a->stopping == 0 ? 2 : 1, (int)wait);
    }
    if (a->grace_ms > 0) {
        bool repeated = !a->answered;
        s_beat(a, a->grace_ms);
        if (repeated && a->answered) { // what came since then is still to be told
            s_beat(a, a->grace_ms);
        }
    }
    return NULL;
}

ebb_status ebb_agent_start(ebb_session *session, ebb_stats *stats, int stop_fd, bool overdue_exit, ebb_agent **out)
{
    ebb_agent *a = calloc(1, sizeof(*a));
    if (a == NULL) {
        return EBB_NOMEM;
    }
    a->session = session;
    a->stats = stats;
    a->stop_fd = stop_fd;
    a->overdue_exit = overdue_exit;
    a->answered = true;
    a->reason = "";
    a->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    ebb_status st = a->wake_fd >= 0 ? ebb_control_new(session, &a->control) : EBB_NOMEM;
    // The control is made here and used by the thread alone from then on.
    if (st == EBB_OK && pthread_create(&a->thread, NULL, s_run, a) != 0) {
        ebb_control_free(&a->control);
        st = EBB_NOMEM;
    }
    if (st != EBB_OK) {
        if (a->wake_fd >= 0) {
            close(a->wake_fd);
        }
        free(a);
        return st;
    }
    *out = a;
    return EBB_OK;
}

void ebb_agent_stop(ebb_agent **ap, uint32_t grace_ms)
{
    ebb_agent *a = *ap;
    if (a == NULL) {
        return;
    }
    *ap = NULL;
    a->grace_ms = grace_ms;
    a->quit = 1;
    uint64_t one = 1;
    ssize_t n = write(a->wake_fd, &one, sizeof(one));
    (void)n; // a full counter is readable all the same
    pthread_join(a->thread, NULL);
    ebb_control_free(&a->control);
    close(a->wake_fd);
    free(a);
}

void ebb_agent_hold(ebb_agent *a, uint64_t lease)
{
    a->lost = 0;
    a->held = lease;
}

bool ebb_agent_lost(const ebb_agent *a, uint64_t lease)
{
    return lease != 0 && a->lost == lease;
}

const _Atomic int *ebb_agent_stopping(const ebb_agent *a)
{
    return &a->stopping;
}

uint64_t ebb_agent_stop_ms(const ebb_agent *a)
{
    return a->stop_ms;
}

const char *ebb_agent_reason(const ebb_agent *a)
{
    return a->reason;
}
