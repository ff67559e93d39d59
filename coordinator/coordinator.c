#define _GNU_SOURCE // vasprintf
#include "coordinator/coordinator.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/rng.h"

#define DRAIN_WORKERS_MS 5000
#define SHUTDOWN_SHARDS_MS 10000
#define SHARD_SILENT_MS 600
#define DEAF_MS 1000 // between two ticks: we were stopped or stuck, and heard nobody

const char *ebb_job_state_name(ebb_job_state state)
{
    static const char *const names[] = {"STARTING", "RUNNING", "DRAINING", "SUCCEEDED", "FAILED", "STOPPED"};
    return names[state];
}

// A failed write means that what we would say next might be forgotten: remember it, the loop ends the process.
static bool s_kept(ebb_coordinator *c, ebb_status st)
{
    if (st != EBB_OK && c->failure == EBB_OK) {
        EBB_LOG(ERROR, "state", "write-failed", "status=%s", ebb_status_name(st));
        c->failure = st;
    }
    return c->failure == EBB_OK;
}

void ebb_coordinator_event(ebb_coordinator *c, const char *kind, const char *subject, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    Ebb__Event event = EBB__EVENT__INIT;
    event.id = ++c->event_id;
    event.unix_ms = ebb_clock_unix_ms();
    event.kind = (char *)kind;
    event.subject = (char *)subject;
    event.text = text;
    EBB_LOG(INFO, "event", kind, "subject=%s text=\"%s\"", subject, text);
    s_kept(c, ebb_statestore_put_event(c->store, &event));
}

// ---- opening ----

static void s_restore_skip(void *arg, uint64_t stream, uint64_t seq)
{
    ebb_coordinator *c = arg;
    c->skipped++;
    if (!ebb_ledger_is_retired(&c->ledger, stream) && c->n_skips < EBB_SKIPS_MAX) {
        c->skips[c->n_skips++] = (ebb_step_name){.stream = stream, .seq = seq};
    }
}

// Same job? Settings and data are all equal.
static bool s_same_job(const Ebb__JobSpec *a, const Ebb__JobSpec *b)
{
    uint8_t *x = NULL, *y = NULL;
    size_t nx = 0, ny = 0;
    bool same = ebb_pb_pack(&a->base, &x, &nx) == EBB_OK && ebb_pb_pack(&b->base, &y, &ny) == EBB_OK && nx == ny && memcmp(x, y, nx) == 0;
    free(x);
    free(y);
    return same;
}

static ebb_status s_load_manifest(ebb_coordinator *c)
{
    uint8_t *bytes = NULL;
    size_t len = 0;
    ebb_status st = ebb_statestore_get_placement(c->store, &bytes, &len, &c->epoch, c->ranges, c->spec->shards);
    if (st == EBB_NOENT) {
        return EBB_OK;
    }
    EBB_TRY(st);
    st = ebb_manifest_unpack(bytes, len, &c->manifest);
    if (st == EBB_OK) {
        c->manifest_part = (ebb_part){.kind = EBB_PART_MANIFEST, .dtype = EBB_DTYPE_BYTES, .numel = len};
        st = ebb_buf_dup(bytes, len, &c->manifest_part.buf);
    }
    if (st == EBB_OK) {
        ebb_part_seal(&c->manifest_part);
        c->manifest_hash = ebb_manifest_hash(c->manifest);
    }
    free(bytes);
    return st;
}

static ebb_status s_open_job(ebb_coordinator *c, Ebb__JobSpec **spec, bool *created, char *why)
{
    Ebb__JobSpec *stored = NULL;
    ebb_status st = ebb_statestore_get_job(c->store, &c->job, &c->created_ms, &stored);
    *created = st == EBB_NOENT;
    if (st == EBB_NOENT && *spec == NULL) {
        snprintf(why, 512, "this folder holds no job to resume");
        return EBB_NOENT;
    }
    if (st == EBB_NOENT) {
        c->job = ebb_rng_system();
        c->created_ms = ebb_clock_unix_ms();
        EBB_TRY(ebb_statestore_put_job(c->store, c->job, c->created_ms, *spec));
        c->spec = *spec;
        *spec = NULL;
        return EBB_OK;
    }
    if (st != EBB_OK) {
        snprintf(why, 512, "the stored job cannot be read: %s", ebb_status_str(st));
        return st;
    }
    c->spec = stored;
    if (*spec != NULL && !s_same_job(*spec, stored)) {
        snprintf(why, 512, "this folder holds another job (\"%.64s\", or the same name with other settings or data): use a fresh folder",
                 stored->name);
        return EBB_CONFIG;
    }
    return EBB_OK;
}

ebb_status ebb_coordinator_open(ebb_coordinator *c, const char *dir, Ebb__JobSpec **spec, uint64_t now_ms, char *why)
{
    memset(c, 0, sizeof(*c));
    bool created = false;
    ebb_status st;
    EBB_TRY(ebb_statestore_open(dir, &c->store, why));
    EBB_TRY_GOTO(s_open_job(c, spec, &created, why), st, fail);
    snprintf(why, 512, "the stored state in %.300s is damaged", dir);
    EBB_TRY_GOTO(ebb_plan_init(&c->plan, c->spec->data->train_samples, c->spec->batch, c->spec->unit_steps, c->spec->steps, c->spec->seed), st, fail);
    EBB_TRY_GOTO(ebb_ledger_init(&c->ledger, &c->plan, c->spec->shards, c->spec->lease_ms), st, fail);
    EBB_TRY_GOTO(ebb_membership_init(&c->members, c->spec->shards), st, fail);
    ebb_progress_init(&c->progress);
    EBB_TRY_GOTO(ebb_statestore_load_ledger(c->store, &c->ledger, now_ms), st, fail);
    EBB_TRY_GOTO(ebb_statestore_load_skips(c->store, s_restore_skip, c), st, fail);
    EBB_TRY_GOTO(ebb_statestore_load_evals(c->store, &c->progress, &c->final_done), st, fail);
    EBB_TRY_GOTO(ebb_statestore_last_event(c->store, &c->event_id), st, fail);
    EBB_TRY_GOTO(s_load_manifest(c), st, fail);
    char state[512];
    if (ebb_statestore_get_state(c->store, state, sizeof(state)) == EBB_OK && strcmp(state, "SUCCEEDED") == 0) {
        c->state = EBB_JOB_SUCCEEDED;
    }
    if (c->spec->eval_every > 0) {
        c->eval_next = c->spec->eval_every; // after the last one that is in; what a crash cut off is due again
        for (size_t i = 0; i < c->progress.n_evals; i++) {
            const ebb_eval_point *e = &c->progress.evals[i];
            if (e->id != EBB_EVAL_FINAL && e->step >= c->eval_next) {
                c->eval_next = (e->step / c->spec->eval_every + 1) * c->spec->eval_every;
            }
        }
    }
    if (c->spec->data->val_samples == 0) {
        c->final_done = true;
        c->eval_next = 0;
    }
    ebb_coordinator_event(c, created ? "job-created" : "job-resumed", c->spec->name, "steps=%" PRIu64 " retired=%" PRIu64 " units-in-flight=%zu",
                          (uint64_t)c->spec->steps, c->ledger.steps_retired, c->ledger.n_units);
    return EBB_OK;
fail:
    ebb_coordinator_close(c);
    return st;
}

void ebb_coordinator_close(ebb_coordinator *c)
{
    ebb_ledger_fini(&c->ledger);
    ebb_membership_fini(&c->members);
    ebb_manifest_free(&c->manifest);
    ebb_buf_unref(&c->manifest_part.buf);
    if (c->spec != NULL) {
        ebb_pb_free(&c->spec->base);
        c->spec = NULL;
    }
    ebb_statestore_close(&c->store);
}

// ---- time ----

static bool s_shards_ready(const ebb_coordinator *c)
{
    for (uint32_t i = 0; i < c->members.n_shards; i++) {
        if (!c->members.shards[i].ready) {
            return false;
        }
    }
    return c->manifest != NULL;
}

static double s_elapsed_s(const ebb_coordinator *c)
{
    return (double)(ebb_clock_unix_ms() - c->created_ms) / 1000.0;
}

static void s_tick_leases(ebb_coordinator *c, uint64_t now_ms)
{
    uint64_t streams[64];
    char workers[64][EBB_NAME_MAX];
    size_t n = ebb_ledger_expire(&c->ledger, now_ms, streams, workers, 64);
    for (size_t i = 0; i < n; i++) {
        const ebb_unit_row *u = ebb_ledger_unit(&c->ledger, streams[i]);
        if (!s_kept(c, ebb_statestore_put_unit(c->store, &u->lease))) {
            return;
        }
        if (workers[i][0] != '\0') {
            ebb_coordinator_event(c, "lease-expired", workers[i], "unit=%" PRIu64 " applied=%" PRIu64 " of %" PRIu64, streams[i],
                                  ebb_ledger_unit_applied(&c->ledger, u), u->steps);
        }
    }
    for (size_t i = 0; i < c->members.n; i++) {
        ebb_member *w = &c->members.members[i];
        if (w->state <= EBB_WORKER_DRAINING && now_ms - w->seen_ms > c->spec->lease_ms) {
            w->state = EBB_WORKER_LOST;
            ebb_coordinator_event(c, "worker-lost", w->name, "silent for %" PRIu64 " ms", now_ms - w->seen_ms);
        }
    }
    if (c->eval.active && c->eval.lease != 0 && c->eval.deadline_ms <= now_ms) {
        ebb_coordinator_event(c, "lease-expired", c->eval.worker, "evaluation at step %" PRIu64, c->eval.step);
        c->eval.lease = 0;
    }
}

static void s_tick_retire(ebb_coordinator *c)
{
    uint64_t streams[256];
    size_t n = ebb_ledger_retire(&c->ledger, streams, 256);
    if (n > 0) {
        s_kept(c, ebb_statestore_retire(c->store, &c->ledger, streams, n));
    }
    size_t kept = 0;
    for (size_t i = 0; i < c->n_skips; i++) {
        if (!ebb_ledger_is_retired(&c->ledger, c->skips[i].stream)) { // until then a shard may roll back and need it again
            c->skips[kept++] = c->skips[i];
        }
    }
    c->n_skips = kept;
}

static void s_tick_eval(ebb_coordinator *c)
{
    uint64_t done = ebb_ledger_steps_done(&c->ledger);
    if (c->eval.active || c->state != EBB_JOB_RUNNING) {
        return;
    }
    if (ebb_ledger_all_applied(&c->ledger)) {
        // What a crash may still take back is not final: at durability snapshot, the last snapshot comes first.
        bool settled = strcmp(c->spec->durability, "snapshot") != 0 || ebb_ledger_all_retired(&c->ledger);
        if (!c->final_done && settled) {
            c->eval = (ebb_eval_task){.active = true, .id = EBB_EVAL_FINAL, .step = c->spec->steps};
        }
    } else if (c->eval_next != 0 && done >= c->eval_next) {
        c->eval = (ebb_eval_task){.active = true, .id = c->eval_next, .step = done};
        c->eval_next = (done / c->spec->eval_every + 1) * c->spec->eval_every;
    }
}

static void s_tick_rate(ebb_coordinator *c, uint64_t now_ms)
{
    uint32_t n = c->n_steps;
    if (n > 0 && now_ms - c->steps_ms[n - 1] < 500) {
        return;
    }
    if (n == 32) {
        memmove(c->steps_at, c->steps_at + 1, 31 * sizeof(*c->steps_at));
        memmove(c->steps_ms, c->steps_ms + 1, 31 * sizeof(*c->steps_ms));
        n = --c->n_steps;
    }
    c->steps_at[n] = ebb_ledger_steps_done(&c->ledger);
    c->steps_ms[n] = now_ms;
    c->n_steps++;
}

static void s_tick_shutdown(ebb_coordinator *c, uint64_t now_ms)
{
    if (!c->shutdown) {
        return;
    }
    if (!c->shutting_shards && (ebb_membership_live(&c->members) == 0 || now_ms - c->drain_ms > DRAIN_WORKERS_MS)) {
        c->shutting_shards = true;
        c->shutdown_ms = now_ms;
    }
    if (!c->shutting_shards) {
        return;
    }
    bool silent = now_ms - c->shutdown_ms > SHARD_SILENT_MS;
    for (uint32_t i = 0; i < c->members.n_shards; i++) {
        const ebb_shard_member *s = &c->members.shards[i];
        silent = silent && (!s->known || now_ms - s->seen_ms > SHARD_SILENT_MS);
    }
    if (silent || now_ms - c->shutdown_ms > SHUTDOWN_SHARDS_MS) {
        if (c->state != EBB_JOB_SUCCEEDED && c->state != EBB_JOB_FAILED) {
            c->state = EBB_JOB_STOPPED;
        }
        c->ended = true;
    }
}

void ebb_coordinator_tick(ebb_coordinator *c, uint64_t now_ms)
{
    uint64_t gap = c->ticked_ms != 0 ? now_ms - c->ticked_ms : 0;
    c->ticked_ms = now_ms;
    if (gap > DEAF_MS) { // that was our silence, not theirs
        ebb_ledger_postpone(&c->ledger, gap);
        ebb_membership_postpone(&c->members, gap, now_ms);
        c->eval.deadline_ms += gap;
    }
    s_tick_leases(c, now_ms);
    s_tick_retire(c);
    if (c->state == EBB_JOB_STARTING && s_shards_ready(c)) {
        c->state = EBB_JOB_RUNNING;
        size_t live = ebb_membership_live(&c->members);
        ebb_coordinator_event(c, "job-running", c->spec->name, "%u shard%s ready, %zu worker%s", c->members.n_shards,
                              c->members.n_shards == 1 ? "" : "s", live, live == 1 ? "" : "s");
    }
    s_tick_eval(c);
    s_tick_rate(c, now_ms);
    if ((c->state == EBB_JOB_RUNNING || c->state == EBB_JOB_DRAINING) && ebb_ledger_all_retired(&c->ledger) && c->final_done) {
        c->state = EBB_JOB_SUCCEEDED;
        if (s_kept(c, ebb_statestore_put_state(c->store, "SUCCEEDED"))) {
            ebb_coordinator_event(c, "job-succeeded", c->spec->name,
                                  "every one of %" PRIu64 " steps applied once on every shard, %" PRIu64 " skipped", (uint64_t)c->spec->steps,
                                  c->skipped);
        }
    }
    s_tick_shutdown(c, now_ms);
}

// ---- requests ----

static void *s_own(ebb_trash *t, void *p)
{
    EBB_ASSERT(p != NULL && t->n < sizeof(t->item) / sizeof(t->item[0]));
    t->item[t->n++] = p;
    return p;
}

#define NEW(type, init_fn)                             \
    ({                                                 \
        type *p_ = s_own(trash, malloc(sizeof(type))); \
        init_fn(p_);                                   \
        p_;                                            \
    })

static char *s_text(ebb_trash *trash, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static char *s_text(ebb_trash *trash, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    EBB_ASSERT(n >= 0);
    return s_own(trash, text);
}

static void s_refuse(Ebb__Envelope *reply, ebb_trash *trash, ebb_status st, const char *why)
{
    reply->status = st;
    reply->detail = s_text(trash, "%s", why);
    reply->body_case = EBB__ENVELOPE__BODY__NOT_SET;
}

static void s_ok(Ebb__Envelope *reply, ebb_trash *trash)
{
    reply->body_case = EBB__ENVELOPE__BODY_OK;
    reply->ok = NEW(Ebb__Ok, ebb__ok__init);
}

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
            s_kept(c, ebb_statestore_put_unit(c->store, &ebb_ledger_unit(&c->ledger, stream)->lease));
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

static void s_join(ebb_coordinator *c, const Ebb__JoinRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    bool fresh;
    if (s_is_over(c, q->worker, q->incarnation, true)) {
        s_refuse(reply, trash, EBB_CLOSED, "this worker process has left, or another one sits in its place");
        return;
    }
    ebb_member *w = s_seat(c, q->worker, q->incarnation, now_ms, &fresh);
    if (w == NULL) {
        s_refuse(reply, trash, EBB_INVAL, "worker name or incarnation is not usable");
        return;
    }
    w->pid = q->pid;
    snprintf(w->host, sizeof(w->host), "%.100s", q->host);
    if (fresh) {
        ebb_coordinator_event(c, "worker-joined", w->name, "pid=%u host=%s incarnation %" PRIu64 " of this seat", w->pid, w->host, w->incarnations);
    }
    Ebb__JoinReply *r = NEW(Ebb__JoinReply, ebb__join_reply__init);
    r->job = c->job;
    r->spec = c->spec;
    r->manifest_hash = c->manifest_hash;
    uint32_t beat = c->spec->lease_ms / 4;
    r->heartbeat_ms = beat < 50 ? 50 : beat > 1000 ? 1000 : beat;
    reply->body_case = EBB__ENVELOPE__BODY_JOIN_REPLY;
    reply->join_reply = r;
}

static void s_register_manifest(ebb_coordinator *c, const ebb_msg *request, Ebb__Envelope *reply, ebb_trash *trash)
{
    ebb_manifest *m = NULL;
    if (request->n_parts != 1 || request->parts[0].kind != EBB_PART_MANIFEST ||
        ebb_manifest_unpack(request->parts[0].buf->data, request->parts[0].buf->len, &m) != EBB_OK) {
        s_refuse(reply, trash, EBB_PROTO, "expected one part with a packed manifest");
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
            s_refuse(reply, trash, EBB_CONFIG, c->reason);
            ebb_manifest_free(&m);
            return;
        }
        c->epoch = 1;
        if (!s_kept(c, ebb_statestore_put_placement(c->store, request->parts[0].buf->data, request->parts[0].buf->len, c->epoch, c->ranges,
                                                    c->spec->shards))) {
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
        reply->detail = s_text(trash, "this worker's model is another one than the job's (manifest %016" PRIx64 ", registered %016" PRIx64 ")", hash,
                               c->manifest_hash);
    }
    ebb_manifest_free(&m);
    Ebb__ManifestReply *r = NEW(Ebb__ManifestReply, ebb__manifest_reply__init);
    r->hash = c->manifest_hash;
    reply->body_case = EBB__ENVELOPE__BODY_MANIFEST_REPLY;
    reply->manifest_reply = r;
}

static void s_shard_map(ebb_coordinator *c, Ebb__Envelope *reply, ebb_trash *trash)
{
    if (!s_shards_ready(c)) {
        s_refuse(reply, trash, EBB_TRYLATER, c->manifest == NULL ? "no worker has registered the model yet" : "not all shards are ready yet");
        return;
    }
    Ebb__ShardMapReply *r = NEW(Ebb__ShardMapReply, ebb__shard_map_reply__init);
    r->epoch = c->epoch;
    r->n_shards = c->spec->shards;
    r->shards = s_own(trash, calloc(r->n_shards, sizeof(*r->shards)));
    for (uint32_t i = 0; i < r->n_shards; i++) {
        Ebb__ShardInfo *info = NEW(Ebb__ShardInfo, ebb__shard_info__init);
        info->shard = i;
        info->endpoint = c->members.shards[i].endpoint;
        info->incarnation = c->members.shards[i].incarnation;
        info->first_chunk = c->ranges[i].first;
        info->chunk_count = c->ranges[i].count;
        info->ready = true;
        r->shards[i] = info;
    }
    reply->body_case = EBB__ENVELOPE__BODY_SHARD_MAP_REPLY;
    reply->shard_map_reply = r;
}

static void s_lease(ebb_coordinator *c, const Ebb__LeaseRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    bool over = s_is_over(c, q->worker, q->incarnation, false);
    ebb_member *w = over ? NULL : s_seat(c, q->worker, q->incarnation, now_ms, NULL);
    if (w == NULL && !over) {
        s_refuse(reply, trash, EBB_INVAL, "worker name or incarnation is not usable");
        return;
    }
    Ebb__LeaseReply *r = NEW(Ebb__LeaseReply, ebb__lease_reply__init);
    reply->body_case = EBB__ENVELOPE__BODY_LEASE_REPLY;
    reply->lease_reply = r;
    r->ttl_ms = c->spec->lease_ms;
    r->retry_ms = 50;
    if (c->state == EBB_JOB_SUCCEEDED || c->state == EBB_JOB_FAILED) {
        r->kind = EBB__LEASE_KIND__LEASE_FINISHED;
    } else if (over) {
        r->kind = EBB__LEASE_KIND__LEASE_DRAIN;
    } else if (c->draining) {
        w->state = EBB_WORKER_DRAINING;
        r->kind = EBB__LEASE_KIND__LEASE_DRAIN;
    } else if (c->state != EBB_JOB_RUNNING) {
        r->kind = EBB__LEASE_KIND__LEASE_NONE;
    } else if (c->eval.active && !ebb_ledger_holds(&c->ledger, w->name, q->incarnation) &&
               (c->eval.lease == 0 || strcmp(c->eval.worker, w->name) == 0)) {
        if (c->eval.lease == 0) {
            c->eval.lease = c->ledger.next_lease++;
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
        if (st == EBB_OK && s_kept(c, ebb_statestore_put_unit(c->store, &u->lease))) {
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

static void s_heartbeat(ebb_coordinator *c, const Ebb__HeartbeatRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    if (s_is_over(c, q->worker, q->incarnation, false)) {
        // Another process sits here now: this one is a zombie. It may finish what it does (its pushes are duplicates) and then leave.
        Ebb__HeartbeatReply *r = NEW(Ebb__HeartbeatReply, ebb__heartbeat_reply__init);
        r->drain = true;
        reply->body_case = EBB__ENVELOPE__BODY_HEARTBEAT_REPLY;
        reply->heartbeat_reply = r;
        return;
    }
    ebb_member *w = s_seat(c, q->worker, q->incarnation, now_ms, NULL);
    if (w == NULL) {
        s_refuse(reply, trash, EBB_INVAL, "worker name or incarnation is not usable");
        return;
    }
    if (ebb_membership_beat(w, q, now_ms) && q->loss_count > 0) {
        ebb_progress_loss(&c->progress, ebb_ledger_steps_done(&c->ledger), q->loss_sum, q->loss_count, s_elapsed_s(c));
    }
    Ebb__HeartbeatReply *r = NEW(Ebb__HeartbeatReply, ebb__heartbeat_reply__init);
    r->leases_lost = s_own(trash, calloc(q->n_leases + 1, sizeof(*r->leases_lost)));
    for (size_t i = 0; i < q->n_leases; i++) {
        if (c->eval.active && c->eval.lease == q->leases[i] && strcmp(c->eval.worker, w->name) == 0) {
            c->eval.deadline_ms = now_ms + c->spec->lease_ms;
        } else if (!ebb_ledger_renew(&c->ledger, w->name, q->leases[i], now_ms)) {
            r->leases_lost[r->n_leases_lost++] = q->leases[i];
        }
    }
    r->drain = c->draining;
    if (c->draining) {
        w->state = EBB_WORKER_DRAINING;
    } else if (q->n_leases > 0) {
        w->state = EBB_WORKER_RUNNING;
    }
    reply->body_case = EBB__ENVELOPE__BODY_HEARTBEAT_REPLY;
    reply->heartbeat_reply = r;
}

static void s_lease_return(ebb_coordinator *c, const Ebb__LeaseReturn *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    uint64_t stream;
    if (c->eval.active && c->eval.lease != 0 && c->eval.lease == q->lease && strcmp(c->eval.worker, q->worker) == 0) {
        c->eval.lease = 0;
    } else if (ebb_ledger_return(&c->ledger, q->worker, q->lease, q->seq_done, now_ms, &stream)) {
        const ebb_unit_row *u = ebb_ledger_unit(&c->ledger, stream);
        s_kept(c, ebb_statestore_put_unit(c->store, &u->lease));
        if (q->seq_done < u->steps) {
            ebb_coordinator_event(c, "unit-returned", q->worker, "unit=%" PRIu64 " after step %" PRIu64 " of %" PRIu64 ": %.200s", stream,
                                  (uint64_t)q->seq_done, u->steps, q->reason);
        }
    }
    s_ok(reply, trash); // a lease that isn't held any more: nothing to give back
}

static void s_free_worker(ebb_coordinator *c, const char *worker)
{
    uint64_t stream;
    while (ebb_ledger_release(&c->ledger, worker, 0, &stream) > 0) {
        s_kept(c, ebb_statestore_put_unit(c->store, &ebb_ledger_unit(&c->ledger, stream)->lease));
    }
    if (c->eval.lease != 0 && strcmp(c->eval.worker, worker) == 0) {
        c->eval.lease = 0;
    }
}

static void s_leave(ebb_coordinator *c, const Ebb__LeaveRequest *q, Ebb__Envelope *reply, ebb_trash *trash)
{
    ebb_member *w = ebb_membership_find(&c->members, q->worker);
    if (w != NULL && w->incarnation == q->incarnation) {
        s_free_worker(c, w->name);
        ebb_membership_end(w, EBB_WORKER_LEFT);
        ebb_coordinator_event(c, "worker-left", w->name, "%.200s", q->reason);
    }
    s_ok(reply, trash);
}

static void s_worker_gone(ebb_coordinator *c, const Ebb__WorkerGone *q, Ebb__Envelope *reply, ebb_trash *trash)
{
    ebb_member *w = ebb_membership_find(&c->members, q->worker);
    // A successor may already sit there: only the named process's leases are freed. Without a pid (not joined since we started) it is anybody's.
    if (w == NULL || w->pid == 0 || (w->pid == q->pid && w->incarnation != 0)) {
        s_free_worker(c, q->worker);
        if (w != NULL && w->pid != 0) {
            ebb_membership_end(w, EBB_WORKER_LOST);
        }
        ebb_coordinator_event(c, "worker-died", q->worker, "pid=%u: %.200s", q->pid, q->reason);
    }
    s_ok(reply, trash);
}

static void s_skip(ebb_coordinator *c, const Ebb__SkipRequest *q, uint64_t request_id, Ebb__Envelope *reply, ebb_trash *trash)
{
    Ebb__SkipReply *r = NEW(Ebb__SkipReply, ebb__skip_reply__init);
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
    if (++row->count < EBB_SKIP_AFTER || c->n_skips == EBB_SKIPS_MAX) {
        return;
    }
    if (!s_kept(c, ebb_statestore_put_skip(c->store, q->stream, q->seq, q->reason))) {
        return;
    }
    c->skips[c->n_skips++] = (ebb_step_name){.stream = q->stream, .seq = q->seq};
    c->skipped++;
    r->skip = true;
    ebb_coordinator_event(c, "step-skipped", q->worker, "unit=%" PRIu64 " step=%" PRIu64 ": %.200s", (uint64_t)q->stream, (uint64_t)q->seq,
                          q->reason);
}

static void s_eval_report(ebb_coordinator *c, const Ebb__EvalReport *q, Ebb__Envelope *reply, ebb_trash *trash)
{
    if (c->eval.active && c->eval.id == q->eval_id) {
        ebb_eval_point point = {q->eval_id, c->eval.step, q->version, q->loss, q->accuracy, s_elapsed_s(c)};
        if (!s_kept(c, ebb_statestore_put_eval(c->store, &point))) {
            return;
        }
        ebb_progress_eval(&c->progress, &point);
        c->final_done = c->final_done || q->eval_id == EBB_EVAL_FINAL;
        c->eval.active = false;
        ebb_coordinator_event(c, "eval", q->worker, "step=%" PRIu64 " loss=%.4f accuracy=%.4f samples=%" PRIu64, c->eval.step, q->loss, q->accuracy,
                              (uint64_t)q->samples);
    }
    s_ok(reply, trash);
}

// ---- shards ----

static bool s_shard_seen(ebb_coordinator *c, const Ebb__ShardReport *q, uint64_t now_ms)
{
    ebb_shard_member *s = &c->members.shards[q->shard];
    bool fresh = !s->known || s->incarnation != q->incarnation;
    if (fresh && ebb_past_has(&s->past, q->incarnation)) {
        return false; // what a dead process said comes late: its successor speaks for the shard
    }
    if (fresh) {
        ebb_past_add(&s->past, s->incarnation);
        ebb_ledger_shard_reset(&c->ledger, q->shard);
        s->incarnation = q->incarnation;
        s->incarnations++;
        s->full = s->ready = false;
        s->busy_ns = s->alive_ns = 0;
        char name[32];
        snprintf(name, sizeof(name), "shard-%u", q->shard);
        ebb_coordinator_event(c, s->known ? "shard-restarted" : "shard-up", name, "pid=%u incarnation %" PRIu64 " seen by this coordinator", q->pid,
                              s->incarnations);
    }
    s->known = true;
    s->seen_ms = now_ms;
    s->pid = q->pid;
    s->rss_bytes = q->rss_bytes;
    snprintf(s->endpoint, sizeof(s->endpoint), "%.250s", q->endpoint);
    // Over at least a second: a shard counts a batch as busy when it is done, so shorter spans say nothing.
    if (q->alive_ns >= s->alive_ns + 1000000000u && q->busy_ns >= s->busy_ns) {
        s->busy = (double)(q->busy_ns - s->busy_ns) / (double)(q->alive_ns - s->alive_ns);
        s->busy_ns = q->busy_ns;
        s->alive_ns = q->alive_ns;
    }
    return true;
}

static void s_shard_report(ebb_coordinator *c, const Ebb__ShardReport *q, uint64_t now_ms, Ebb__Envelope *reply, const ebb_part **part,
                           ebb_trash *trash)
{
    if (q->shard >= c->spec->shards || q->incarnation == 0) {
        s_refuse(reply, trash, EBB_INVAL, "the job has no shard of this number");
        return;
    }
    if (!s_shard_seen(c, q, now_ms)) {
        s_refuse(reply, trash, EBB_CLOSED, "another process is this shard now");
        return;
    }
    ebb_shard_member *s = &c->members.shards[q->shard];
    Ebb__ShardReportReply *r = NEW(Ebb__ShardReportReply, ebb__shard_report_reply__init);
    const Ebb__ShardJobReport *job = NULL;
    for (size_t i = 0; i < q->n_jobs; i++) {
        job = q->jobs[i]->job == c->job ? q->jobs[i] : job;
    }
    if (job != NULL) {
        s->version = job->version;
        s->journal_bytes = job->journal_bytes;
        s->full = s->full || job->full;
        r->want_full = !s->full;
        for (size_t i = 0; i < job->n_watermarks; i++) {
            const Ebb__Watermark *w = job->watermarks[i];
            ebb_ledger_watermark(&c->ledger, q->shard, w->stream, w->applied, w->durable);
        }
        s_tick_retire(c); // persisted before the reply below says so
        s->ready = c->manifest != NULL && s->full && job->manifest_hash == c->manifest_hash && job->epoch == c->epoch;
    }
    bool installed = job != NULL && job->manifest_hash == c->manifest_hash && job->epoch == c->epoch;
    if (c->manifest != NULL && !installed) {
        Ebb__ShardInstall *install = NEW(Ebb__ShardInstall, ebb__shard_install__init);
        install->job = c->job;
        install->spec = c->spec;
        install->epoch = c->epoch;
        install->first_chunk = c->ranges[q->shard].first;
        install->chunk_count = c->ranges[q->shard].count;
        install->manifest_hash = c->manifest_hash;
        r->install = install;
        *part = &c->manifest_part;
    }
    r->job = c->job;
    r->retired_below = c->ledger.retired_below;
    r->n_retired = c->ledger.n_retired < 4096 ? c->ledger.n_retired : 4096;
    r->retired = s_own(trash, malloc(r->n_retired * sizeof(*r->retired) + 1));
    if (r->n_retired > 0) {
        for (size_t i = 0; i < r->n_retired; i++) {
            r->retired[i] = c->ledger.retired[i];
        }
    }
    r->skips = s_own(trash, calloc(c->n_skips + 1, sizeof(*r->skips)));
    for (size_t i = 0; i < c->n_skips && r->n_skips < 256; i++) {
        const ebb_unit_row *u = ebb_ledger_unit(&c->ledger, c->skips[i].stream);
        if (u == NULL || u->applied[q->shard] >= c->skips[i].seq) {
            continue; // this shard has it
        }
        Ebb__StreamSkip *skip = NEW(Ebb__StreamSkip, ebb__stream_skip__init);
        skip->job = c->job;
        skip->stream = c->skips[i].stream;
        skip->seq = c->skips[i].seq;
        r->skips[r->n_skips++] = skip;
    }
    // At the end nobody pushes any more: ask for the snapshot that makes the last units durable.
    r->snapshot = strcmp(c->spec->durability, "snapshot") == 0 && ebb_ledger_all_applied(&c->ledger) && !ebb_ledger_all_retired(&c->ledger);
    r->shutdown = c->shutting_shards;
    reply->body_case = EBB__ENVELOPE__BODY_SHARD_REPORT_REPLY;
    reply->shard_report_reply = r;
}

// ---- operator ----

static void s_status_workers(ebb_coordinator *c, uint64_t now_ms, Ebb__StatusReply *r, ebb_trash *trash)
{
    double staleness = 0;
    size_t counted = 0;
    r->workers = s_own(trash, calloc(c->members.n + 1, sizeof(*r->workers)));
    for (size_t i = 0; i < c->members.n && i < 256; i++) { // a reply has 64 KiB
        ebb_member *w = &c->members.members[i];
        Ebb__WorkerStatus *row = NEW(Ebb__WorkerStatus, ebb__worker_status__init);
        double tokens;
        row->name = w->name;
        row->state = (char *)ebb_worker_state_name(w->state);
        row->pid = w->pid;
        ebb_membership_rates(w, &row->utilization, &row->wait_fraction, &row->data_fraction, &row->samples_per_s, &tokens);
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
        if (w->state <= EBB_WORKER_DRAINING) {
            r->samples_per_s += row->samples_per_s;
            r->tokens_per_s += tokens;
            staleness += w->staleness;
            counted++;
        } else {
            row->utilization = row->samples_per_s = row->wait_fraction = row->data_fraction = 0;
        }
        r->workers[r->n_workers++] = row;
    }
    r->staleness = counted ? staleness / (double)counted : 0;
}

static void s_status_shards(ebb_coordinator *c, uint64_t now_ms, Ebb__StatusReply *r, ebb_trash *trash)
{
    r->shards = s_own(trash, calloc(c->members.n_shards + 1, sizeof(*r->shards)));
    for (uint32_t i = 0; i < c->members.n_shards && i < 128; i++) {
        const ebb_shard_member *s = &c->members.shards[i];
        Ebb__ShardStatus *row = NEW(Ebb__ShardStatus, ebb__shard_status__init);
        uint64_t silent = s->known ? now_ms - s->seen_ms : 0;
        row->shard = i;
        row->state = !s->known ? "starting" : silent > 2000 ? "silent" : s->ready ? "ready" : "recovering";
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
}

static void s_status(ebb_coordinator *c, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    Ebb__StatusReply *r = NEW(Ebb__StatusReply, ebb__status_reply__init);
    const ebb_ledger *l = &c->ledger;
    r->job = c->job;
    r->name = c->spec->name;
    bool leaving = c->draining && c->state <= EBB_JOB_DRAINING;
    r->state = (char *)ebb_job_state_name(leaving ? EBB_JOB_DRAINING : c->state);
    r->reason = c->reason;
    r->steps_total = c->spec->steps;
    r->steps_done = ebb_ledger_steps_done(l);
    r->steps_retired = l->steps_retired;
    r->steps_skipped = c->skipped;
    r->units_total = c->plan.units_total;
    r->units_leased = ebb_ledger_leased(l);
    r->units_done = ebb_ledger_done(l) + l->retired_below + l->n_retired;
    r->units_retired = l->retired_below + l->n_retired;
    r->repeated_steps = l->repeated;
    r->elapsed_s = s_elapsed_s(c);
    if (c->n_steps >= 2) {
        double steps = (double)(c->steps_at[c->n_steps - 1] - c->steps_at[0]), ms = (double)(c->steps_ms[c->n_steps - 1] - c->steps_ms[0]);
        r->remaining_s =
            steps > 0 && c->steps_at[c->n_steps - 1] >= c->steps_at[0] ? (double)(r->steps_total - r->steps_done) * ms / steps / 1000 : 0;
    }
    r->loss = c->progress.smoothed;
    r->losses = s_own(trash, calloc(c->progress.n_points + 1, sizeof(*r->losses)));
    for (size_t i = 0; i < c->progress.n_points; i++) {
        Ebb__LossPoint *p = NEW(Ebb__LossPoint, ebb__loss_point__init);
        p->step = c->progress.points[i].step;
        p->loss = c->progress.points[i].loss;
        p->time_s = c->progress.points[i].time_s;
        r->losses[r->n_losses++] = p;
    }
    r->evals = s_own(trash, calloc(c->progress.n_evals + 1, sizeof(*r->evals)));
    for (size_t i = 0; i < c->progress.n_evals; i++) {
        Ebb__EvalPoint *p = NEW(Ebb__EvalPoint, ebb__eval_point__init);
        const ebb_eval_point *e = &c->progress.evals[i];
        p->step = e->step;
        p->loss = e->loss;
        p->accuracy = e->accuracy;
        p->version = e->version;
        p->time_s = e->time_s;
        r->evals[r->n_evals++] = p;
    }
    s_status_workers(c, now_ms, r, trash);
    s_status_shards(c, now_ms, r, trash);
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

static void s_events(ebb_coordinator *c, const Ebb__EventsRequest *q, Ebb__Envelope *reply, ebb_trash *trash)
{
    Ebb__EventsReply *r = NEW(Ebb__EventsReply, ebb__events_reply__init);
    event_list list = {.n = 0};
    s_kept(c, ebb_statestore_load_events(c->store, q->after, q->limit == 0 || q->limit > 512 ? 512 : q->limit, s_collect, &list));
    r->events = s_own(trash, calloc(list.n + 1, sizeof(*r->events)));
    for (size_t i = 0; i < list.n; i++) { // copied into the trash's kind of memory
        Ebb__Event *e = NEW(Ebb__Event, ebb__event__init);
        e->id = list.event[i]->id;
        e->unix_ms = list.event[i]->unix_ms;
        e->kind = s_text(trash, "%s", list.event[i]->kind);
        e->subject = s_text(trash, "%s", list.event[i]->subject);
        e->text = s_text(trash, "%s", list.event[i]->text);
        ebb_pb_free(&list.event[i]->base);
        r->events[r->n_events++] = e;
    }
    r->last = c->event_id;
    reply->body_case = EBB__ENVELOPE__BODY_EVENTS_REPLY;
    reply->events_reply = r;
}

static void s_drain(ebb_coordinator *c, const Ebb__DrainRequest *q, uint64_t now_ms, Ebb__Envelope *reply, ebb_trash *trash)
{
    if (!c->draining) {
        c->draining = true;
        c->drain_ms = now_ms;
        ebb_coordinator_event(c, "drain", c->spec->name, "%.200s", q->reason);
    }
    c->shutdown = c->shutdown || q->shutdown;
    s_ok(reply, trash);
}

static void s_job(ebb_coordinator *c, Ebb__Envelope *reply, const ebb_part **part, ebb_trash *trash)
{
    Ebb__JobReply *r = NEW(Ebb__JobReply, ebb__job_reply__init);
    r->job = c->job;
    r->spec = c->spec;
    r->manifest_hash = c->manifest_hash;
    *part = c->manifest != NULL ? &c->manifest_part : NULL;
    reply->body_case = EBB__ENVELOPE__BODY_JOB_REPLY;
    reply->job_reply = r;
}

// The job a request names; 0: it names none.
static uint64_t s_job_named(const Ebb__Envelope *q)
{
    switch (q->body_case) {
    case EBB__ENVELOPE__BODY_MANIFEST_REQUEST:
        return q->manifest_request->job;
    case EBB__ENVELOPE__BODY_SHARD_MAP_REQUEST:
        return q->shard_map_request->job;
    case EBB__ENVELOPE__BODY_LEASE_REQUEST:
        return q->lease_request->job;
    case EBB__ENVELOPE__BODY_HEARTBEAT_REQUEST:
        return q->heartbeat_request->job;
    case EBB__ENVELOPE__BODY_LEASE_RETURN:
        return q->lease_return->job;
    case EBB__ENVELOPE__BODY_SKIP_REQUEST:
        return q->skip_request->job;
    case EBB__ENVELOPE__BODY_EVAL_REPORT:
        return q->eval_report->job;
    case EBB__ENVELOPE__BODY_LEAVE_REQUEST:
        return q->leave_request->job;
    default:
        return 0;
    }
}

void ebb_coordinator_handle(ebb_coordinator *c, const ebb_msg *request, uint64_t now_ms, Ebb__Envelope *reply, const ebb_part **part,
                            ebb_trash *trash)
{
    const Ebb__Envelope *q = request->env;
    *part = NULL;
    uint64_t job = s_job_named(q);
    if (job != 0 && job != c->job) { // a worker of an earlier run must not work on this one
        reply->status = EBB_NOENT;
        reply->detail = s_text(trash, "this coordinator runs job %016" PRIx64 ", not %016" PRIx64, c->job, job);
        return;
    }
    switch (q->body_case) {
    case EBB__ENVELOPE__BODY_JOIN_REQUEST:
        s_join(c, q->join_request, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_MANIFEST_REQUEST:
        s_register_manifest(c, request, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_SHARD_MAP_REQUEST:
        s_shard_map(c, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_LEASE_REQUEST:
        s_lease(c, q->lease_request, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_HEARTBEAT_REQUEST:
        s_heartbeat(c, q->heartbeat_request, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_LEASE_RETURN:
        s_lease_return(c, q->lease_return, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_SKIP_REQUEST:
        s_skip(c, q->skip_request, q->request_id, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_EVAL_REPORT:
        s_eval_report(c, q->eval_report, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_LEAVE_REQUEST:
        s_leave(c, q->leave_request, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_WORKER_GONE:
        s_worker_gone(c, q->worker_gone, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_SHARD_REPORT:
        s_shard_report(c, q->shard_report, now_ms, reply, part, trash);
        break;
    case EBB__ENVELOPE__BODY_STATUS_REQUEST:
        s_status(c, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_EVENTS_REQUEST:
        s_events(c, q->events_request, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_DRAIN_REQUEST:
        s_drain(c, q->drain_request, now_ms, reply, trash);
        break;
    case EBB__ENVELOPE__BODY_JOB_REQUEST:
        s_job(c, reply, part, trash);
        break;
    default:
        s_refuse(reply, trash, EBB_PROTO, "the coordinator does not answer this kind of message");
        break;
    }
}
