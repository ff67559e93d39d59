#include "worker/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/clock.h"
#include "core/log.h"
#include "worker/evaluate.h"

#define SLICE_MS 50         // how often a wait looks at orders
#define STOP_ACKS_MS 2000   // after an order to stop: acknowledgements may take until then,
#define STOP_RETURN_MS 3000 // returning the lease until then
#define LOST_ACKS_MS 500    // a lost lease's last pushes
#define BAD_TRIES 3
#define RETRY_MS_FIRST 50
#define RETRY_MS_MAX 2000
#define STALENESS_GAIN 0.1 // of the moving mean

typedef struct pending {
    ebb_request *request;
    uint64_t seq;
    uint32_t samples;
    double loss;
} pending;

// One unit under way.
typedef struct unit {
    const ebb_lease *lease;
    pending *window; // ring of (inflight_max), oldest first
    uint32_t first, n;
    uint64_t next;    // step to compute
    uint64_t done;    // last step acknowledged by every shard
    uint64_t bad_seq; // the step that could not be computed, and how often in a row
    uint32_t bad_tries;
    uint64_t skipped; // last step skipped by decision of the coordinator; 0: none
    bool behind;      // the prefetcher must be told where we are
    bool pull;        // the next step wants the newest parameters first
} unit;

static bool s_stopping(const ebb_trainer *t)
{
    return atomic_load(ebb_agent_stopping(t->agent)) != 0;
}

static bool s_ends(const ebb_trainer *t, const unit *u)
{
    return s_stopping(t) || ebb_agent_lost(t->agent, u->lease->id);
}

uint32_t ebb_trainer_time_left(const ebb_trainer *t, uint32_t until_ms, uint32_t most)
{
    uint64_t stop = ebb_agent_stop_ms(t->agent);
    if (stop == 0) {
        return most;
    }
    uint64_t now = ebb_clock_ms(), end = stop + until_ms;
    uint64_t left = end > now ? end - now : 1;
    return left < most ? (uint32_t)left : most;
}

// Sleeps unless the worker should stop.
static void s_pause(ebb_trainer *t, uint64_t ms)
{
    uint64_t start = ebb_clock_ns(), end = ebb_clock_ms() + ms;
    for (uint64_t now = ebb_clock_ms(); now < end && !s_stopping(t); now = ebb_clock_ms()) {
        ebb_clock_sleep_ms(end - now < SLICE_MS ? end - now : SLICE_MS);
    }
    t->stats->wait_ns += ebb_clock_ns() - start;
}

// Versions by which the parameters will have moved when the next gradient arrives. 0 with one worker: then nothing is guessed.
static double s_look_ahead(const ebb_trainer *t)
{
    return t->spec->consistency->look_ahead * t->staleness;
}

static pending *s_at(const ebb_trainer *t, const unit *u, uint32_t i)
{
    return &u->window[(u->first + i) % t->inflight_max];
}

static void s_window_drop(ebb_trainer *t, unit *u)
{
    while (u->n > 0) {
        ebb_request_free(&s_at(t, u, 0)->request);
        u->first++;
        u->n--;
    }
}

// ---- answers ----

static void s_acknowledged(ebb_trainer *t, const pending *p, const ebb_result *r)
{
    ebb_stats *s = t->stats;
    ebb_stats_first_gradient(s);
    s->steps++;
    s->samples += p->samples;
    s->tokens += p->samples * t->model->tokens_per_sample(t->config);
    if (r->staleness_count > 0) {
        t->staleness += STALENESS_GAIN * ((double)r->staleness_sum / r->staleness_count - t->staleness);
    }
    s->staleness_sum += r->staleness_sum;
    s->staleness_count += r->staleness_count;
    if (r->staleness_max > s->staleness_max) {
        s->staleness_max = r->staleness_max;
    }
    if (r->duplicates == r->shards) {
        s->duplicates++; // somebody else's loss was counted for it
    } else {
        ebb_stats_loss(s, p->loss);
    }
}

// A shard refused: later steps of the unit are refused or done by their own names, so all answers are awaited, and the unit goes on after what every
// shard has.
static void s_go_back(ebb_trainer *t, unit *u, ebb_status why)
{
    uint64_t from = u->done + 1;
    while (u->n > 0 && !s_ends(t, u)) {
        pending *p = s_at(t, u, 0);
        if (ebb_request_wait(p->request, SLICE_MS) == EBB_TIMEDOUT) {
            continue;
        }
        // Answers come in the order of the pushes, so the last one knows most.
        const ebb_result *r = ebb_request_result(p->request);
        if (r->shards > 0 && r->status != EBB_WRONGSHARD) {
            from = r->applied + 1;
        }
        ebb_view_apply(t->view, p->request, t->params);
        t->stats->refused_stale += r->status == EBB_STALE;
        ebb_request_free(&p->request);
        u->first++;
        u->n--;
    }
    if (s_ends(t, u)) {
        s_window_drop(t, u);
        return;
    }
    if (why == EBB_WRONGSHARD) {
        ebb_view_forget(t->view);
    }
    EBB_LOG(DEBUG, "worker", "going-back", "stream=%" PRIu64 " to=%" PRIu64 " from=%" PRIu64 " reason=%s", u->lease->stream, from, u->next,
            ebb_status_name(why));
    if (from == u->skipped) {
        from = u->skipped + 1; // the shards have not heard of the decision yet
        s_pause(t, SLICE_MS);
    }
    u->next = from;
    u->done = from - 1;
    u->behind = true;
    u->pull = true;
}

static void s_bad(ebb_trainer *t, unit *u, uint64_t seq, const char *what);
static void s_settle(ebb_trainer *t, unit *u, uint32_t most);

// Takes in the oldest answer. It is there.
static void s_take_answer(ebb_trainer *t, unit *u)
{
    pending *p = s_at(t, u, 0);
    const ebb_result *r = ebb_request_result(p->request);
    if (r->status == EBB_OK) {
        ebb_view_apply(t->view, p->request, t->params);
        s_acknowledged(t, p, r);
        u->done = p->seq;
        uint64_t applied = r->applied;
        ebb_request_free(&p->request);
        u->first++;
        u->n--;
        if (u->n == 0 && applied >= u->next) { // another worker is ahead of us in this unit
            u->next = applied + 1;
            u->done = applied;
            u->behind = true;
        }
        return;
    }
    if (r->status == EBB_BADVALUE) {
        uint64_t seq = p->seq;
        char what[300];
        snprintf(what, sizeof(what), "refused by a shard: %.250s", r->why);
        s_go_back(t, u, r->status);
        if (!s_ends(t, u) && u->next == seq) { // else an earlier step is missing somewhere and comes first
            s_bad(t, u, seq, what);
        }
        return;
    }
    ebb_status st = r->status;
    if (st != EBB_GAP && st != EBB_STALE && st != EBB_WRONGSHARD) {
        EBB_LOG(WARN, "worker", "push-refused", "stream=%" PRIu64 " seq=%" PRIu64 " status=%s reason=\"%s\" action=\"computed again\"",
                u->lease->stream, p->seq, ebb_status_name(st), r->why);
        s_pause(t, 500);
    }
    s_go_back(t, u, st);
}

// Takes in what has come; then waits until at most `most` are unanswered.
static void s_settle(ebb_trainer *t, unit *u, uint32_t most)
{
    while (u->n > 0) {
        pending *p = s_at(t, u, 0);
        ebb_status st = ebb_request_poll(p->request);
        if (st == EBB_AGAIN && u->n <= most) {
            return;
        }
        if (st == EBB_AGAIN) {
            uint64_t start = ebb_clock_ns();
            st = ebb_request_wait(p->request, SLICE_MS);
            t->stats->wait_ns += ebb_clock_ns() - start;
            if (st == EBB_TIMEDOUT) {
                if (s_ends(t, u)) {
                    return;
                }
                continue;
            }
        }
        s_take_answer(t, u);
    }
}

// ---- parameters ----

// Brings the view up to date. Returns false if the worker or the unit ends first.
static bool s_pull(ebb_trainer *t, unit *u)
{
    uint64_t start = ebb_clock_ns();
    bool again = true;
    while (again && !s_ends(t, u)) {
        ebb_request *r = NULL;
        ebb_pull_options o = {.view = t->view, .look_ahead = s_look_ahead(t)};
        ebb_status st = ebb_pull(t->session, &o, &r);
        while (st == EBB_OK && (st = ebb_request_wait(r, SLICE_MS)) == EBB_TIMEDOUT && !s_ends(t, u)) {
            st = EBB_OK;
        }
        if (st == EBB_OK) {
            ebb_view_apply(t->view, r, t->params);
        } else if (st == EBB_WRONGSHARD) {
            ebb_view_forget(t->view);
        } else if (st != EBB_TIMEDOUT) {
            EBB_LOG(WARN, "worker", "pull-refused", "status=%s reason=\"%s\" action=\"pulled again\"", ebb_status_name(st),
                    r != NULL ? ebb_request_result(r)->why : "");
            ebb_clock_sleep_ms(SLICE_MS);
        }
        ebb_request_free(&r);
        again = st != EBB_OK || !ebb_view_complete(t->view);
    }
    u->pull = again;
    t->stats->wait_ns += ebb_clock_ns() - start;
    return !again;
}

// ---- a step ----

// This step cannot be computed now: once more with fresh parameters, and after the third time the coordinator decides.
static void s_bad(ebb_trainer *t, unit *u, uint64_t seq, const char *what)
{
    s_settle(t, u, 0); // the steps before it first: if one of them is bad itself, this one's turn has not come
    if (u->next != seq || u->n > 0) {
        return;
    }
    u->bad_tries = u->bad_seq == seq ? u->bad_tries + 1 : 1;
    u->bad_seq = seq;
    u->next = seq;
    u->behind = true;
    u->pull = true;
    EBB_LOG(WARN, "worker", "step-failed", "stream=%" PRIu64 " seq=%" PRIu64 " try=%u reason=\"%s\"", u->lease->stream, seq, u->bad_tries, what);
    if (u->bad_tries < BAD_TRIES) {
        return;
    }
    bool skip = false;
    ebb_status st = ebb_skip(t->control, u->lease->id, u->lease->stream, seq, what, &skip, 0);
    if (st == EBB_OK && skip) {
        EBB_LOG(WARN, "worker", "step-skipped", "stream=%" PRIu64 " seq=%" PRIu64 " reason=\"%s\"", u->lease->stream, seq, what);
        u->skipped = seq;
        u->next = seq + 1;
        u->done = seq;
    } else if (st != EBB_CLOSED) {
        s_pause(t, 1000); // not to ask as fast as we can compute
    }
    u->bad_tries = 0;
}

// Scales the gradient to at most clip_norm. Returns its norm before.
static double s_clip(const ebb_trainer *t, float *grad)
{
    double norm = sqrt(t->backend->sum_squares(grad, (size_t)t->manifest->numel)), most = t->spec->optimizer->clip_norm;
    if (isfinite(norm) && most > 0 && norm > most) {
        t->backend->scale(grad, (float)(most / norm), (size_t)t->manifest->numel);
    }
    return norm;
}

static bool s_take_grad(ebb_trainer *t, unit *u, ebb_grad *grad)
{
    uint64_t start = ebb_clock_ns();
    ebb_status st;
    while ((st = ebb_gradbuf_take(t->gradbuf, grad)) != EBB_OK && !s_ends(t, u)) {
        ebb_clock_sleep_ms(1); // sockets that were closed let go of their buffers in the background
    }
    t->stats->wait_ns += ebb_clock_ns() - start;
    return st == EBB_OK;
}

// Computes step u->next and pushes it. Errors end the worker; t->why says why.
static ebb_status s_step(ebb_trainer *t, unit *u)
{
    uint64_t seq = u->next, start = ebb_clock_ns();
    const ebb_batch *batch = NULL;
    ebb_grad grad;
    if (u->behind) {
        ebb_prefetch_begin(t->prefetch, u->lease->stream, seq, u->lease->seq_last);
        u->behind = false;
    }
    ebb_status st = ebb_prefetch_next(t->prefetch, &batch);
    t->stats->data_ns += ebb_clock_ns() - start;
    if (st == EBB_BADVALUE) {
        char what[512];
        snprintf(what, sizeof(what), "%s", ebb_prefetch_why(t->prefetch));
        u->bad_tries = u->bad_seq == seq ? u->bad_tries : BAD_TRIES - 1; // reading it again would not help
        u->bad_seq = seq;
        s_bad(t, u, seq, what);
        return EBB_OK;
    }
    if (st != EBB_OK) {
        snprintf(t->why, sizeof(t->why), "%s", ebb_prefetch_why(t->prefetch));
        return st == EBB_INVAL ? EBB_CONFIG : st;
    }
    if (!s_take_grad(t, u, &grad)) {
        u->behind = true;
        return EBB_OK;
    }
    start = ebb_clock_ns();
    double loss = 0;
    t->model->forward_backward(t->state, t->params, batch, grad.flat, &loss);
    double norm = s_clip(t, grad.flat);
    t->stats->compute_ns += ebb_clock_ns() - start;
    if (!isfinite(loss) || !isfinite(norm)) {
        char what[128];
        snprintf(what, sizeof(what), "loss %g, gradient norm %g", loss, norm);
        s_bad(t, u, seq, what);
        return EBB_OK;
    }
    pending *p = s_at(t, u, u->n);
    ebb_push push = {.stream = u->lease->stream, .seq = seq, .attempt = u->lease->attempt, .chunks = grad.chunks, .look_ahead = s_look_ahead(t)};
    st = ebb_push_pull(t->session, &push, t->view, &p->request);
    if (st != EBB_OK) {
        snprintf(t->why, sizeof(t->why), "cannot push: %s", ebb_status_str(st));
        return st;
    }
    EBB_LOG(DEBUG, "worker", "step", "stream=%" PRIu64 " seq=%" PRIu64 " loss=%.9g norm=%.6g", u->lease->stream, seq, loss, norm);
    p->seq = seq;
    p->samples = batch->samples;
    p->loss = loss;
    u->n++;
    u->next++;
    return EBB_OK;
}

// ---- a unit ----

static void s_return(ebb_trainer *t, const unit *u, const char *reason)
{
    bool stopping = s_stopping(t);
    ebb_control_set_cancel(t->control, stopping ? NULL : ebb_agent_stopping(t->agent));
    ebb_status st = ebb_lease_return(t->control, u->lease->id, u->done, reason, stopping ? ebb_trainer_time_left(t, STOP_RETURN_MS, 1000) : 0);
    if (st == EBB_CLOSED) { // the order to stop came while we waited: once more, briefly
        ebb_control_set_cancel(t->control, NULL);
        st = ebb_lease_return(t->control, u->lease->id, u->done, reason, ebb_trainer_time_left(t, STOP_RETURN_MS, 1000));
    }
    ebb_control_set_cancel(t->control, ebb_agent_stopping(t->agent));
    // A unit that is complete is the normal case: one line each would be most of the log.
    ebb_log_write(u->done >= u->lease->seq_last ? EBB_LOG_DEBUG : EBB_LOG_INFO, "worker", "unit-returned",
                  "stream=%" PRIu64 " lease=%" PRIu64 " done=%" PRIu64 " of=%" PRIu64 " reason=\"%s\" status=%s", u->lease->stream, u->lease->id,
                  u->done, u->lease->seq_last, reason, ebb_status_name(st));
}

// Acknowledgements that are still on their way get a moment.
static void s_last_answers(ebb_trainer *t, unit *u, uint32_t ms)
{
    uint64_t end = ebb_clock_ms() + ms;
    while (u->n > 0) {
        pending *p = s_at(t, u, 0);
        uint64_t now = ebb_clock_ms();
        ebb_status st = ebb_request_wait(p->request, end > now ? (uint32_t)(end - now) : 0);
        if (st != EBB_OK) {
            break; // silence or a refusal: whoever gets the unit next finds out
        }
        s_take_answer(t, u);
    }
    s_window_drop(t, u);
}

static ebb_status s_train(ebb_trainer *t, const ebb_lease *lease)
{
    pending *window = calloc(t->inflight_max, sizeof(*window));
    if (window == NULL) {
        snprintf(t->why, sizeof(t->why), "out of memory");
        return EBB_NOMEM;
    }
    unit u = {.lease = lease, .window = window, .next = lease->seq_first, .done = lease->seq_first - 1, .behind = true};
    ebb_status st = EBB_OK;
    EBB_LOG(DEBUG, "worker", "unit-leased", "stream=%" PRIu64 " lease=%" PRIu64 " first=%" PRIu64 " last=%" PRIu64 " attempt=%u", lease->stream,
            lease->id, lease->seq_first, lease->seq_last, lease->attempt);
    while (st == EBB_OK && u.done < lease->seq_last && !s_ends(t, &u)) {
        s_settle(t, &u, u.next <= lease->seq_last ? t->inflight_max - 1 : 0);
        if (u.next > lease->seq_last || u.n >= t->inflight_max || s_ends(t, &u)) {
            continue;
        }
        if ((u.pull || !ebb_view_complete(t->view)) && !s_pull(t, &u)) {
            continue;
        }
        st = s_step(t, &u);
    }
    if (ebb_agent_lost(t->agent, lease->id) && !s_stopping(t)) {
        s_last_answers(t, &u, LOST_ACKS_MS);
        EBB_LOG(INFO, "worker", "lease-lost", "stream=%" PRIu64 " lease=%" PRIu64 " done=%" PRIu64 " of=%" PRIu64, lease->stream, lease->id, u.done,
                lease->seq_last);
    } else {
        s_last_answers(t, &u, st == EBB_OK ? ebb_trainer_time_left(t, STOP_ACKS_MS, STOP_ACKS_MS) : LOST_ACKS_MS);
        s_return(t, &u, st != EBB_OK ? t->why : u.done >= lease->seq_last ? "complete" : ebb_agent_reason(t->agent));
    }
    free(window);
    return st;
}

// ---- the lease loop ----

ebb_status ebb_trainer_run(ebb_trainer *t)
{
    uint32_t retry_ms = RETRY_MS_FIRST;
    EBB_ASSERT(t->inflight_max >= 1);
    while (!s_stopping(t)) {
        ebb_lease lease;
        uint64_t start = ebb_clock_ns();
        ebb_status st = ebb_lease_request(t->control, &lease, 0);
        t->stats->wait_ns += ebb_clock_ns() - start;
        if (st == EBB_CLOSED) {
            break;
        }
        if (st == EBB_NOTAUTH || st == EBB_CONFIG) {
            snprintf(t->why, sizeof(t->why), "%s", ebb_control_why(t->control));
            return st;
        }
        if (st != EBB_OK) { // not our seat any more, or nonsense: take it again and ask again
            EBB_LOG(WARN, "worker", "lease-refused", "status=%s reason=\"%s\" action=\"joining and asking again\"", ebb_status_name(st),
                    ebb_control_why(t->control));
            s_pause(t, retry_ms);
            retry_ms = retry_ms * 2 > RETRY_MS_MAX ? RETRY_MS_MAX : retry_ms * 2;
            st = ebb_join(t->control, 0);
            if (st == EBB_EXISTS || st == EBB_NOTAUTH) {
                snprintf(t->why, sizeof(t->why), "%s", ebb_control_why(t->control));
                return st == EBB_EXISTS ? EBB_CONFIG : st;
            }
            continue;
        }
        retry_ms = RETRY_MS_FIRST;
        switch (lease.kind) {
        case EBB_LEASE_TRAIN:
            ebb_agent_hold(t->agent, lease.id);
            st = s_train(t, &lease);
            ebb_agent_hold(t->agent, 0);
            break;
        case EBB_LEASE_EVAL:
            ebb_agent_hold(t->agent, lease.id);
            st = ebb_evaluate(t, &lease);
            ebb_agent_hold(t->agent, 0);
            break;
        case EBB_LEASE_NONE:
            s_pause(t, lease.retry_ms > 0 ? lease.retry_ms : 100);
            break;
        case EBB_LEASE_FINISHED:
        case EBB_LEASE_DRAIN:
            return EBB_OK;
        }
        if (st != EBB_OK) {
            return st;
        }
    }
    return EBB_OK;
}
