#include "coordinator/handlers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/rng.h"

#define EVAL_LEASE (UINT64_C(1) << 63) // training leases count up from 1
#define FAIL_SKIPS 16                  // so many steps skipped, and
#define FAIL_SHARE 10                  // more than one in so many: the job has failed

static bool s_name_ok(const char *name)
{
    size_t n = strnlen(name, EBB_NAME_MAX);
    for (size_t i = 0; i < n; i++) {
        if (name[i] <= ' ' || name[i] > '~' || name[i] == '"') {
            return false;
        }
    }
    return n > 0 && n < EBB_NAME_MAX;
}

// Did this process leave, die, or lose its seat to another one? Only a join takes the seat of a live process, and never one that comes late, from the dead.
static bool s_is_over(ebb_coordinator *c, const char *name, uint64_t incarnation, bool join)
{
    const ebb_member *w = ebb_membership_find(&c->members, name);
    return w != NULL && w->incarnation != incarnation && (ebb_past_has(&w->past, incarnation) || (!join && w->state <= EBB_WORKER_DRAINING));
}

// The worker's seat; takes it if the process isn't in it (a coordinator that was restarted has forgotten who is there).
static ebb_member *s_seat(ebb_coordinator *c, const char *name, uint64_t incarnation, uint64_t now_ms, bool *fresh)
{
    bool ignored;
    fresh = fresh != NULL ? fresh : &ignored;
    *fresh = false;
    if (!s_name_ok(name) || incarnation == 0) {
        return NULL;
    }
    ebb_member *w = ebb_membership_join(&c->members, name, incarnation, now_ms, fresh);
    if (w != NULL && *fresh) {
        uint64_t stream;
        if (ebb_ledger_release(&c->ledger, name, incarnation, &stream) > 0) {
            ebb_coordinator_kept(c, ebb_statestore_put_unit(c->store, &ebb_ledger_unit(&c->ledger, stream)->lease));
        }
        if (c->eval.lease != 0 && strcmp(c->eval.worker, name) == 0) {
            c->eval.lease = 0;
        }
    }
    if (w != NULL && (w->state == EBB_WORKER_LOST || w->state == EBB_WORKER_LEFT)) {
        if (!*fresh && w->state == EBB_WORKER_LOST) {
            ebb_coordinator_event(c, "worker-back", name, "heard again");
        }
        w->state = EBB_WORKER_JOINED;
    }
    return w;
}

void ebb_handle_join(ebb_coordinator *c, const Ebb__JoinRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    bool fresh;
    if (s_is_over(c, q->worker, q->incarnation, true)) {
        ebb_reply_refuse(reply, trash, EBB_CLOSED, "this worker process has left, or another one sits in its place");
        return;
    }
    ebb_member *w = s_seat(c, q->worker, q->incarnation, now_ms, &fresh);
    if (w == NULL) {
        ebb_reply_refuse(reply, trash, EBB_INVAL, "worker name or incarnation is not usable");
        return;
    }
    w->pid = q->pid;
    snprintf(w->host, sizeof(w->host), "%.100s", q->host);
    if (fresh) {
        ebb_coordinator_event(c, "worker-joined", w->name, "pid=%u host=%s incarnation %" PRIu64 " of this seat", w->pid, w->host, w->incarnations);
    }
    Ebb__JoinReply *r = EBB_TRASH_NEW(trash, Ebb__JoinReply, ebb__join_reply__init);
    r->job = c->job;
    r->spec = c->spec;
    r->manifest_hash = c->manifest_hash;
    uint32_t beat = c->spec->lease_ms / 4;
    r->heartbeat_ms = beat < 50 ? 50 : beat > 1000 ? 1000 : beat;
    reply->body_case = EBB__ENVELOPE__BODY_JOIN_REPLY;
    reply->join_reply = r;
}

void ebb_handle_register_manifest(ebb_coordinator *c, const ebb_msg *request, Ebb__Envelope *reply, ebb_trash *trash)
{
    ebb_manifest *m = NULL;
    if (request->n_parts != 1 || request->parts[0].kind != EBB_PART_MANIFEST ||
        ebb_manifest_unpack(request->parts[0].buf->data, request->parts[0].buf->len, &m) != EBB_OK) {
        ebb_reply_refuse(reply, trash, EBB_PROTO, "expected one part with a packed manifest");
        return;
    }
    uint64_t hash = ebb_manifest_hash(m);
    if (c->manifest == NULL) {
        ebb_shardmap_place(m, c->spec->shards, c->ranges);
        uint32_t empty = 0;
        for (uint32_t i = 0; i < c->spec->shards; i++) {
            empty += c->ranges[i].count == 0;
        }
        if (empty > 0) {
            snprintf(c->reason, sizeof(c->reason), "the model has %zu chunks, too few for %u shards: lower shards or chunk_elems", m->n_chunks,
                     c->spec->shards);
            if (c->state != EBB_JOB_FAILED) {
                c->state = EBB_JOB_FAILED;
                ebb_coordinator_event(c, "job-failed", c->spec->name, "%s", c->reason);
            }
            ebb_reply_refuse(reply, trash, EBB_CONFIG, c->reason);
            ebb_manifest_free(&m);
            return;
        }
        c->epoch = 1;
        if (!ebb_coordinator_kept(c, ebb_statestore_put_placement(c->store, request->parts[0].buf->data, request->parts[0].buf->len, c->epoch,
                                                                  c->ranges, c->spec->shards))) {
            ebb_manifest_free(&m);
            return;
        }
        c->manifest_part = request->parts[0];
        c->manifest_part.buf = ebb_buf_ref(request->parts[0].buf);
        c->manifest_hash = hash;
        c->manifest = m;
        ebb_coordinator_event(c, "manifest-registered", c->spec->name, "%zu tensors, %" PRIu64 " parameters, %zu chunks on %u shards", m->n_tensors,
                              m->numel, m->n_chunks, c->spec->shards);
        m = NULL;
    } else if (hash != c->manifest_hash) {
        reply->status = EBB_EXISTS;
        reply->detail = ebb_trash_text(
            trash, "this worker's model is another one than the job's (manifest %016" PRIx64 ", registered %016" PRIx64 ")", hash, c->manifest_hash);
    }
    ebb_manifest_free(&m);
    Ebb__ManifestReply *r = EBB_TRASH_NEW(trash, Ebb__ManifestReply, ebb__manifest_reply__init);
    r->hash = c->manifest_hash;
    reply->body_case = EBB__ENVELOPE__BODY_MANIFEST_REPLY;
    reply->manifest_reply = r;
}

void ebb_handle_lease(ebb_coordinator *c, const Ebb__LeaseRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    bool over = s_is_over(c, q->worker, q->incarnation, false);
    ebb_member *w = over ? NULL : s_seat(c, q->worker, q->incarnation, now_ms, NULL);
    if (w == NULL && !over) {
        ebb_reply_refuse(reply, trash, EBB_INVAL, "worker name or incarnation is not usable");
        return;
    }
    Ebb__LeaseReply *r = EBB_TRASH_NEW(trash, Ebb__LeaseReply, ebb__lease_reply__init);
    reply->body_case = EBB__ENVELOPE__BODY_LEASE_REPLY;
    reply->lease_reply = r;
    r->ttl_ms = c->spec->lease_ms;
    r->retry_ms = 50;
    if (c->state == EBB_JOB_SUCCEEDED || c->state == EBB_JOB_FAILED) {
        r->kind = EBB__LEASE_KIND__LEASE_FINISHED;
    } else if (over) {
        r->kind = EBB__LEASE_KIND__LEASE_DRAIN;
    } else if (c->draining || w->state == EBB_WORKER_DRAINING) {
        w->state = EBB_WORKER_DRAINING;
        r->kind = EBB__LEASE_KIND__LEASE_DRAIN;
    } else if (c->state != EBB_JOB_RUNNING) {
        r->kind = EBB__LEASE_KIND__LEASE_NONE;
    } else if (c->eval.active && !ebb_ledger_holds(&c->ledger, w->name, q->incarnation) &&
               (c->eval.lease == 0 || strcmp(c->eval.worker, w->name) == 0)) {
        if (c->eval.lease == 0) {
            c->eval.lease = EVAL_LEASE | ebb_rng_system() >> 1; // not persisted, so never a number that was given before
            snprintf(c->eval.worker, sizeof(c->eval.worker), "%s", w->name);
        }
        c->eval.deadline_ms = now_ms + c->spec->lease_ms;
        r->kind = EBB__LEASE_KIND__LEASE_EVAL;
        r->lease = c->eval.lease;
        r->eval_id = c->eval.id;
        w->state = EBB_WORKER_RUNNING;
    } else {
        const ebb_unit_row *u = NULL;
        ebb_status st = ebb_ledger_lease(&c->ledger, w->name, q->incarnation, now_ms, &u);
        if (st == EBB_OK && ebb_coordinator_kept(c, ebb_statestore_put_unit(c->store, &u->lease))) {
            r->kind = EBB__LEASE_KIND__LEASE_TRAIN;
            r->lease = u->lease.lease;
            r->stream = u->lease.stream;
            r->pass = u->lease.stream / c->plan.units_per_pass;
            r->unit = u->lease.stream % c->plan.units_per_pass;
            r->seq_first = u->lease.seq_first;
            r->seq_last = u->steps;
            r->attempt = u->lease.attempt;
            w->state = EBB_WORKER_RUNNING;
        } else {
            r->kind = EBB__LEASE_KIND__LEASE_NONE;
        }
    }
}

// Once when it begins, once when it has ended.
static void s_watch_loss(ebb_coordinator *c)
{
    const ebb_progress *p = &c->progress;
    if (!c->diverging && ebb_progress_diverges(p)) {
        c->diverging = true;
        ebb_coordinator_event(c, "diverging", c->spec->name,
                              "loss %.4g at step %" PRIu64 ", began at %.4g: lower optimizer.lr or use fewer workers (docs/consistency.md)",
                              p->smoothed, ebb_ledger_steps_done(&c->ledger), p->first);
    } else if (c->diverging && p->smoothed < p->first) {
        c->diverging = false;
        ebb_coordinator_event(c, "converging", c->spec->name, "loss %.4g at step %" PRIu64 " is below the first again", p->smoothed,
                              ebb_ledger_steps_done(&c->ledger));
    }
}

void ebb_handle_heartbeat(ebb_coordinator *c, const Ebb__HeartbeatRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    if (s_is_over(c, q->worker, q->incarnation, false)) {
        // Another process sits here now: this one is a zombie. It may finish what it does (its pushes are duplicates) and then leave.
        Ebb__HeartbeatReply *r = EBB_TRASH_NEW(trash, Ebb__HeartbeatReply, ebb__heartbeat_reply__init);
        r->drain = true;
        reply->body_case = EBB__ENVELOPE__BODY_HEARTBEAT_REPLY;
        reply->heartbeat_reply = r;
        return;
    }
    ebb_member *w = s_seat(c, q->worker, q->incarnation, now_ms, NULL);
    if (w == NULL) {
        ebb_reply_refuse(reply, trash, EBB_INVAL, "worker name or incarnation is not usable");
        return;
    }
    if (ebb_membership_beat(w, q, now_ms) && q->loss_count > 0) {
        ebb_progress_loss(&c->progress, ebb_ledger_steps_done(&c->ledger), q->loss_sum, q->loss_count, ebb_coordinator_elapsed_s(c));
        s_watch_loss(c);
    }
    Ebb__HeartbeatReply *r = EBB_TRASH_NEW(trash, Ebb__HeartbeatReply, ebb__heartbeat_reply__init);
    r->leases_lost = ebb_trash_own(trash, calloc(q->n_leases + 1, sizeof(*r->leases_lost)));
    for (size_t i = 0; i < q->n_leases; i++) {
        if (c->eval.active && c->eval.lease == q->leases[i] && strcmp(c->eval.worker, w->name) == 0) {
            c->eval.deadline_ms = now_ms + c->spec->lease_ms;
        } else if (!ebb_ledger_renew(&c->ledger, w->name, q->leases[i], now_ms)) {
            r->leases_lost[r->n_leases_lost++] = q->leases[i];
        }
    }
    r->drain = c->draining || w->state == EBB_WORKER_DRAINING;
    if (r->drain) {
        w->state = EBB_WORKER_DRAINING;
    } else if (q->n_leases > 0) {
        w->state = EBB_WORKER_RUNNING;
    }
    reply->body_case = EBB__ENVELOPE__BODY_HEARTBEAT_REPLY;
    reply->heartbeat_reply = r;
}

void ebb_handle_lease_return(ebb_coordinator *c, const Ebb__LeaseReturn *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    uint64_t stream;
    if (c->eval.active && c->eval.lease != 0 && c->eval.lease == q->lease && strcmp(c->eval.worker, q->worker) == 0) {
        c->eval.lease = 0;
    } else if (ebb_ledger_return(&c->ledger, q->worker, q->lease, q->seq_done, now_ms, &stream)) {
        const ebb_unit_row *u = ebb_ledger_unit(&c->ledger, stream);
        ebb_coordinator_kept(c, ebb_statestore_put_unit(c->store, &u->lease));
        if (q->seq_done < u->steps) {
            ebb_coordinator_event(c, "unit-returned", q->worker, "unit=%" PRIu64 " after step %" PRIu64 " of %" PRIu64 ": %.200s", stream,
                                  (uint64_t)q->seq_done, u->steps, q->reason);
        }
    }
    ebb_reply_ok(reply, trash); // a lease that isn't held any more: nothing to give back
}

static void s_free_worker(ebb_coordinator *c, const char *worker)
{
    uint64_t stream;
    while (ebb_ledger_release(&c->ledger, worker, 0, &stream) > 0) {
        ebb_coordinator_kept(c, ebb_statestore_put_unit(c->store, &ebb_ledger_unit(&c->ledger, stream)->lease));
    }
    if (c->eval.lease != 0 && strcmp(c->eval.worker, worker) == 0) {
        c->eval.lease = 0;
    }
}

void ebb_handle_leave(ebb_coordinator *c, const Ebb__LeaveRequest *q, Ebb__Envelope *reply, ebb_trash *trash)
{
    ebb_member *w = ebb_membership_find(&c->members, q->worker);
    if (w != NULL && w->incarnation == q->incarnation) {
        s_free_worker(c, w->name);
        ebb_membership_end(w, EBB_WORKER_LEFT);
        ebb_coordinator_event(c, "worker-left", w->name, "%.200s", q->reason);
    }
    ebb_reply_ok(reply, trash);
}

void ebb_handle_worker_gone(ebb_coordinator *c, const Ebb__WorkerGone *q, Ebb__Envelope *reply, ebb_trash *trash)
{
    if (!s_name_ok(q->worker)) {
        ebb_reply_refuse(reply, trash, EBB_INVAL, "worker name is not usable");
        return;
    }
    bool shard = strncmp(q->worker, "shard-", 6) == 0;
    if (shard || strcmp(q->worker, "coordinator") == 0) { // it holds no lease, and tells of itself when it is back
        ebb_coordinator_event(c, shard ? "shard-died" : "coordinator-died", q->worker, "pid=%u: %.200s", q->pid, q->reason);
        ebb_reply_ok(reply, trash);
        return;
    }
    ebb_member *w = ebb_membership_find(&c->members, q->worker);
    // A successor may already sit there: only the named process's leases are freed. Without a pid (not joined since we started) it is anybody's.
    if (w == NULL || w->pid == 0 || (w->pid == q->pid && w->incarnation != 0)) {
        s_free_worker(c, q->worker);
        if (w != NULL && w->pid != 0) {
            ebb_membership_end(w, EBB_WORKER_LOST);
        }
        ebb_coordinator_event(c, "worker-died", q->worker, "pid=%u: %.200s", q->pid, q->reason);
    }
    ebb_reply_ok(reply, trash);
}

void ebb_handle_skip(ebb_coordinator *c, const Ebb__SkipRequest *q, uint64_t request_id, Ebb__Envelope *reply, ebb_trash *trash)
{
    if (!s_name_ok(q->worker)) {
        ebb_reply_refuse(reply, trash, EBB_INVAL, "worker name is not usable");
        return;
    }
    Ebb__SkipReply *r = EBB_TRASH_NEW(trash, Ebb__SkipReply, ebb__skip_reply__init);
    reply->body_case = EBB__ENVELOPE__BODY_SKIP_REPLY;
    reply->skip_reply = r;
    for (size_t i = 0; i < c->n_skips; i++) {
        if (c->skips[i].stream == q->stream && c->skips[i].seq == q->seq) {
            r->skip = true;
            return;
        }
    }
    const ebb_unit_row *u = ebb_ledger_unit(&c->ledger, q->stream);
    if (u == NULL || q->seq == 0 || q->seq > u->steps) {
        r->skip = ebb_ledger_is_retired(&c->ledger, q->stream);
        return;
    }
    if (ebb_ledger_unit_applied(&c->ledger, u) >= q->seq) {
        r->skip = true; // somebody else could: go on
        return;
    }
    ebb_step_name *row = NULL;
    for (size_t i = 0; i < c->n_refusals; i++) {
        if (c->refusals[i].stream == q->stream && c->refusals[i].seq == q->seq) {
            row = &c->refusals[i];
        }
    }
    if (row == NULL) {
        if (c->n_refusals == EBB_REFUSALS_MAX) { // forget the oldest
            memmove(c->refusals, c->refusals + 1, (EBB_REFUSALS_MAX - 1) * sizeof(*c->refusals));
            c->n_refusals--;
        }
        row = &c->refusals[c->n_refusals++];
        *row = (ebb_step_name){.stream = q->stream, .seq = q->seq};
    }
    if (row->request_id == request_id) {
        return; // the same request, sent again
    }
    row->request_id = request_id;
    // Where a shard has the step already, skipping would leave it half applied: others get more chances to compute it.
    uint32_t have = 0;
    for (uint32_t i = 0; i < c->spec->shards; i++) {
        have += u->applied[i] >= q->seq;
    }
    uint32_t after = have > 0 ? EBB_SKIP_HALF_AFTER : EBB_SKIP_AFTER;
    if (++row->count < after || c->n_skips == EBB_SKIPS_MAX) {
        return;
    }
    if (!ebb_coordinator_kept(c, ebb_statestore_put_skip(c->store, q->stream, q->seq, q->reason))) {
        return;
    }
    c->skips[c->n_skips++] = (ebb_step_name){.stream = q->stream, .seq = q->seq};
    c->skipped++;
    r->skip = true;
    char half[64] = "";
    if (have > 0) {
        snprintf(half, sizeof(half), " (but applied on %u of %u shards)", have, c->spec->shards);
    }
    ebb_coordinator_event(c, "step-skipped", q->worker, "unit=%" PRIu64 " step=%" PRIu64 "%s: %.200s", (uint64_t)q->stream, (uint64_t)q->seq, half,
                          q->reason);
    // A few bad steps happen. When they are many, what is left is not the training that was asked for.
    if (c->skipped >= FAIL_SKIPS && c->skipped * FAIL_SHARE > ebb_ledger_steps_done(&c->ledger) && c->state == EBB_JOB_RUNNING) {
        c->state = EBB_JOB_FAILED;
        snprintf(c->reason, sizeof(c->reason),
                 "%" PRIu64 " of the first %" PRIu64
                 " steps could not be computed, the last because of %.200s: lower optimizer.lr, or look at the data",
                 c->skipped, ebb_ledger_steps_done(&c->ledger) + 1, q->reason);
        ebb_coordinator_event(c, "job-failed", c->spec->name, "%.400s", c->reason);
    }
}

void ebb_handle_eval_report(ebb_coordinator *c, const Ebb__EvalReport *q, Ebb__Envelope *reply, ebb_trash *trash)
{
    if (!s_name_ok(q->worker)) {
        ebb_reply_refuse(reply, trash, EBB_INVAL, "worker name is not usable");
        return;
    }
    if (c->eval.active && c->eval.id == q->eval_id) {
        ebb_eval_point point = {q->eval_id, c->eval.step, q->version, q->loss, q->accuracy, ebb_coordinator_elapsed_s(c)};
        if (!ebb_coordinator_kept(c, ebb_statestore_put_eval(c->store, &point))) {
            return;
        }
        ebb_progress_eval(&c->progress, &point);
        c->final_done = c->final_done || q->eval_id == EBB_EVAL_FINAL;
        c->eval.active = false;
        ebb_coordinator_event(c, "eval", q->worker, "step=%" PRIu64 " loss=%.4f accuracy=%.4f samples=%" PRIu64, c->eval.step, q->loss, q->accuracy,
                              (uint64_t)q->samples);
    }
    ebb_reply_ok(reply, trash);
}

// ---- shards ----
