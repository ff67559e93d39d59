#include "coordinator/handlers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

#define STATUS_BYTES_MAX (EBB_CONTROL_BYTES_MAX - 1024) // numbers that are filled in afterwards, and the envelope
#define WORKERS_SHOWN 64                                // at least, before shards are left out

static void s_status_worker(ebb_coordinator *c, ebb_member *w, uint64_t now_ms, Ebb__WorkerStatus *row, double *tokens_per_s)
{
    row->name = w->name;
    row->state = (char *)ebb_worker_state_name(w->state);
    row->pid = w->pid;
    ebb_membership_rates(w, &row->utilization, &row->wait_fraction, &row->data_fraction, &row->samples_per_s, tokens_per_s);
    row->steps = w->n_ring ? w->ring[w->n_ring - 1].steps : 0;
    row->staleness = w->staleness;
    row->last_seen_ms = now_ms - w->seen_ms;
    row->incarnations = w->incarnations;
    row->first_gradient_ms = w->first_gradient_ms;
    row->loss = w->loss;
    for (size_t u = 0; u < c->ledger.n_units; u++) {
        if (c->ledger.units[u].lease.lease != 0 && strcmp(c->ledger.units[u].lease.worker, w->name) == 0) {
            row->stream = c->ledger.units[u].lease.stream;
        }
    }
    if (w->state > EBB_WORKER_DRAINING) {
        row->utilization = row->samples_per_s = row->wait_fraction = row->data_fraction = *tokens_per_s = 0;
    }
}

// Workers that live come first: if not all fit into a message, those that are gone are left out.
static void s_status_workers(ebb_coordinator *c, uint64_t now_ms, Ebb__StatusReply *r, ebb_trash *trash)
{
    double staleness = 0;
    r->workers = ebb_trash_own(trash, calloc(c->members.n + 1, sizeof(*r->workers)));
    for (int gone = 0; gone <= 1; gone++) {
        for (size_t i = 0; i < c->members.n; i++) {
            ebb_member *w = &c->members.members[i];
            if ((w->state > EBB_WORKER_DRAINING) != gone) {
                continue;
            }
            Ebb__WorkerStatus *row = EBB_TRASH_NEW(trash, Ebb__WorkerStatus, ebb__worker_status__init);
            double tokens;
            s_status_worker(c, w, now_ms, row, &tokens);
            r->samples_per_s += row->samples_per_s;
            r->tokens_per_s += tokens;
            staleness += gone ? 0 : w->staleness;
            r->workers_live += !gone;
            r->workers[r->n_workers++] = row;
        }
    }
    r->workers_known = (uint32_t)r->n_workers;
    r->staleness = r->workers_live > 0 ? staleness / (double)r->workers_live : 0;
}

static void s_status_shards(ebb_coordinator *c, uint64_t now_ms, Ebb__StatusReply *r, ebb_trash *trash)
{
    r->shards = ebb_trash_own(trash, calloc(c->members.n_shards + 1, sizeof(*r->shards)));
    for (uint32_t i = 0; i < c->members.n_shards; i++) {
        const ebb_shard_member *s = &c->members.shards[i];
        Ebb__ShardStatus *row = EBB_TRASH_NEW(trash, Ebb__ShardStatus, ebb__shard_status__init);
        uint64_t silent = s->known ? now_ms - s->seen_ms : 0;
        row->shard = i;
        row->state = !s->known ? "starting" : silent > 2000 ? "silent" : s->disk_low ? "disk low" : s->ready ? "ready" : "recovering";
        row->pid = s->pid;
        row->version = s->version;
        row->endpoint = (char *)s->endpoint;
        row->rss_bytes = s->rss_bytes;
        row->journal_bytes = s->journal_bytes;
        row->busy = s->busy;
        row->last_seen_ms = silent;
        row->incarnations = s->incarnations;
        for (uint32_t k = 0; c->manifest != NULL && k < c->ranges[i].count; k++) {
            row->bytes += 4ULL * c->manifest->chunks[c->ranges[i].first + k].numel;
        }
        r->shards[r->n_shards++] = row;
    }
    r->shards_total = (uint32_t)r->n_shards;
}

// Rows at the end are left out until the message fits: workers first, as there may be thousands, then shards.
static void s_status_fit(Ebb__StatusReply *r)
{
    size_t size = ebb__status_reply__get_packed_size(r);
    while (size > STATUS_BYTES_MAX && (r->n_workers > WORKERS_SHOWN || r->n_shards > 0)) {
        const ProtobufCMessage *row = r->n_workers > WORKERS_SHOWN ? &r->workers[--r->n_workers]->base : &r->shards[--r->n_shards]->base;
        size -= protobuf_c_message_get_packed_size(row); // and its tag and length, which the margin forgives
    }
}

void ebb_handle_status(ebb_coordinator *c, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    Ebb__StatusReply *r = EBB_TRASH_NEW(trash, Ebb__StatusReply, ebb__status_reply__init);
    const ebb_ledger *l = &c->ledger;
    r->job = c->job;
    r->name = c->spec->name;
    bool leaving = c->draining && c->state <= EBB_JOB_DRAINING;
    r->state = (char *)ebb_job_state_name(leaving ? EBB_JOB_DRAINING : c->state);
    r->reason = c->reason;
    r->http = c->http;
    r->steps_total = c->spec->steps;
    r->steps_done = ebb_ledger_steps_done(l);
    r->steps_retired = l->steps_retired;
    r->steps_skipped = c->skipped;
    r->units_total = c->plan.units_total;
    r->units_leased = ebb_ledger_leased(l);
    r->units_done = ebb_ledger_done(l) + l->retired_below + l->n_retired;
    r->units_retired = l->retired_below + l->n_retired;
    r->repeated_steps = l->repeated;
    r->elapsed_s = ebb_coordinator_elapsed_s(c);
    if (c->n_steps >= 2) {
        double steps = (double)(c->steps_at[c->n_steps - 1] - c->steps_at[0]), ms = (double)(c->steps_ms[c->n_steps - 1] - c->steps_ms[0]);
        r->remaining_s =
            steps > 0 && c->steps_at[c->n_steps - 1] >= c->steps_at[0] ? (double)(r->steps_total - r->steps_done) * ms / steps / 1000 : 0;
    }
    r->loss = c->progress.smoothed;
    r->losses = ebb_trash_own(trash, calloc(c->progress.n_points + 1, sizeof(*r->losses)));
    for (size_t i = 0; i < c->progress.n_points; i++) {
        Ebb__LossPoint *p = EBB_TRASH_NEW(trash, Ebb__LossPoint, ebb__loss_point__init);
        p->step = c->progress.points[i].step;
        p->loss = c->progress.points[i].loss;
        p->time_s = c->progress.points[i].time_s;
        r->losses[r->n_losses++] = p;
    }
    r->evals = ebb_trash_own(trash, calloc(c->progress.n_evals + 1, sizeof(*r->evals)));
    for (size_t i = 0; i < c->progress.n_evals; i++) {
        Ebb__EvalPoint *p = EBB_TRASH_NEW(trash, Ebb__EvalPoint, ebb__eval_point__init);
        const ebb_eval_point *e = &c->progress.evals[i];
        p->step = e->step;
        p->loss = e->loss;
        p->accuracy = e->accuracy;
        p->version = e->version;
        p->time_s = e->time_s;
        r->evals[r->n_evals++] = p;
    }
    r->scale = EBB_TRASH_NEW(trash, Ebb__ScaleStatus, ebb__scale_status__init);
    ebb_coordinator_scale_status(c, r->scale);
    s_status_workers(c, now_ms, r, trash);
    s_status_shards(c, now_ms, r, trash);
    s_status_fit(r);
    r->numel = c->manifest != NULL ? c->manifest->numel : 0;
    r->events = c->event_id;
    r->final_eval_done = c->final_done;
    reply->body_case = EBB__ENVELOPE__BODY_STATUS_REPLY;
    reply->status_reply = r;
}

typedef struct event_list {
    Ebb__Event *event[512];
    size_t n, bytes;
} event_list;

static void s_collect(void *arg, Ebb__Event *event)
{
    event_list *list = arg;
    size_t size = ebb__event__get_packed_size(event) + 8;
    if (list->n < 512 && list->bytes + size < EBB_CONTROL_BYTES_MAX - 4096) {
        list->event[list->n++] = event;
        list->bytes += size;
    } else {
        list->bytes = EBB_CONTROL_BYTES_MAX; // full: none after the first that did not fit
        ebb_pb_free(&event->base);
    }
}

void ebb_handle_events(ebb_coordinator *c, const Ebb__EventsRequest *q, Ebb__Envelope *reply, ebb_trash *trash)
{
    Ebb__EventsReply *r = EBB_TRASH_NEW(trash, Ebb__EventsReply, ebb__events_reply__init);
    event_list list = {.n = 0};
    ebb_coordinator_kept(c, ebb_statestore_load_events(c->store, q->after, q->limit == 0 || q->limit > 512 ? 512 : q->limit, s_collect, &list));
    r->events = ebb_trash_own(trash, calloc(list.n + 1, sizeof(*r->events)));
    for (size_t i = 0; i < list.n; i++) { // copied into the trash's kind of memory
        Ebb__Event *e = EBB_TRASH_NEW(trash, Ebb__Event, ebb__event__init);
        e->id = list.event[i]->id;
        e->unix_ms = list.event[i]->unix_ms;
        e->kind = ebb_trash_text(trash, "%s", list.event[i]->kind);
        e->subject = ebb_trash_text(trash, "%s", list.event[i]->subject);
        e->text = ebb_trash_text(trash, "%s", list.event[i]->text);
        ebb_pb_free(&list.event[i]->base);
        r->events[r->n_events++] = e;
    }
    r->last = c->event_id;
    reply->body_case = EBB__ENVELOPE__BODY_EVENTS_REPLY;
    reply->events_reply = r;
}

void ebb_handle_drain(ebb_coordinator *c, const Ebb__DrainRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    if (!c->draining) {
        c->draining = true;
        c->drain_ms = now_ms;
        ebb_coordinator_event(c, "drain", c->spec->name, "%.200s", q->reason);
    }
    c->shutdown = c->shutdown || q->shutdown;
    ebb_reply_ok(reply, trash);
}

void ebb_handle_job(ebb_coordinator *c, Ebb__Envelope *reply, const ebb_part **part, ebb_trash *trash)
{
    Ebb__JobReply *r = EBB_TRASH_NEW(trash, Ebb__JobReply, ebb__job_reply__init);
    r->job = c->job;
    r->spec = c->spec;
    r->manifest_hash = c->manifest_hash;
    *part = c->manifest != NULL ? &c->manifest_part : NULL;
    reply->body_case = EBB__ENVELOPE__BODY_JOB_REPLY;
    reply->job_reply = r;
}
