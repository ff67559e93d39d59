#include "coordinator/handlers.h"

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
#define STORE_PROGRESS_MS 5000
#define DEAF_MS 1000 // between two ticks: we were stopped or stuck, and heard nobody

const char *ebb_job_state_name(ebb_job_state state)
{
    static const char *const names[] = {"STARTING", "RUNNING", "DRAINING", "SUCCEEDED", "FAILED", "STOPPED"};
    return names[state];
}

bool ebb_coordinator_kept(ebb_coordinator *c, ebb_status st)
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
    ebb_coordinator_kept(c, ebb_statestore_put_event(c->store, &event));
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

// What the rest of the coordinator takes for granted of a job: the job file's parser sees to it, a damaged row may not.
static bool s_is_whole(const Ebb__JobSpec *s)
{
    const Ebb__AutoscaleSpec *a = s->autoscale;
    bool scales = s->workers_min <= s->workers_max && (a == NULL || (a->down_at < a->up_at && a->up_step > 0 && a->down_step > 0));
    return s->model != NULL && s->data != NULL && s->optimizer != NULL && s->consistency != NULL && s->shards >= 1 && s->shards <= EBB_SHARDS_MAX &&
           s->lease_ms >= 1 && scales;
}

// Every chunk of the model on one shard, in order.
static bool s_covers(const ebb_chunk_range *ranges, uint32_t n, const ebb_manifest *m)
{
    uint64_t next = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (ranges[i].first != next) {
            return false;
        }
        next += ranges[i].count;
    }
    return next == m->n_chunks;
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
    if (st == EBB_OK && !s_covers(c->ranges, c->spec->shards, c->manifest)) {
        st = EBB_CORRUPT;
    }
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
    if (st == EBB_OK && !s_is_whole(stored)) {
        ebb_pb_free(&stored->base);
        st = EBB_CORRUPT;
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
    const char *broken = ebb_ledger_check(&c->ledger);
    if (broken != NULL) {
        snprintf(why, 512, "the stored state in %.300s is damaged: %s", dir, broken);
        st = EBB_CORRUPT;
        goto fail;
    }
    EBB_TRY_GOTO(ebb_statestore_load_skips(c->store, s_restore_skip, c), st, fail);
    EBB_TRY_GOTO(ebb_statestore_load_evals(c->store, &c->progress, &c->final_done), st, fail);
    EBB_TRY_GOTO(ebb_statestore_load_progress(c->store, &c->progress, &c->elapsed_s), st, fail);
    c->opened_ms = ebb_clock_unix_ms();
    EBB_TRY_GOTO(ebb_statestore_last_event(c->store, &c->event_id), st, fail);
    EBB_TRY_GOTO(s_load_manifest(c), st, fail);
    ebb_scale_policy policy;
    uint32_t wanted;
    EBB_TRY_GOTO(ebb_statestore_get_wanted(c->store, &wanted), st, fail);
    ebb_scale_policy_from(&policy, c->spec);
    ebb_autoscaler_init(&c->scaler, &policy, wanted);
    char state[512];
    if (ebb_statestore_get_state(c->store, state, sizeof(state)) == EBB_OK && strcmp(state, "SUCCEEDED") == 0) {
        c->state = EBB_JOB_SUCCEEDED;
        c->settled = true;
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

// The curve is for people: a few seconds of it may be lost, and a failed write of it ends nothing.
static void s_store_progress(ebb_coordinator *c)
{
    ebb_status st = ebb_statestore_put_progress(c->store, &c->progress, ebb_coordinator_elapsed_s(c));
    if (st != EBB_OK) {
        EBB_LOG(WARN, "state", "curve-not-stored", "status=%s", ebb_status_name(st));
    }
}

void ebb_coordinator_close(ebb_coordinator *c)
{
    if (c->store != NULL && c->spec != NULL && c->failure == EBB_OK) {
        s_store_progress(c);
    }
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

bool ebb_coordinator_shards_ready(const ebb_coordinator *c)
{
    for (uint32_t i = 0; i < c->members.n_shards; i++) {
        if (!c->members.shards[i].ready) {
            return false;
        }
    }
    return c->manifest != NULL;
}

static void s_tick_leases(ebb_coordinator *c, uint64_t now_ms)
{
    uint64_t streams[64];
    char workers[64][EBB_NAME_MAX];
    size_t n = ebb_ledger_expire(&c->ledger, now_ms, streams, workers, 64);
    for (size_t i = 0; i < n; i++) {
        const ebb_unit_row *u = ebb_ledger_unit(&c->ledger, streams[i]);
        if (!ebb_coordinator_kept(c, ebb_statestore_put_unit(c->store, &u->lease))) {
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

double ebb_coordinator_elapsed_s(const ebb_coordinator *c)
{
    return c->elapsed_s + (c->settled ? 0 : (double)(ebb_clock_unix_ms() - c->opened_ms) / 1000.0);
}

void ebb_coordinator_retire(ebb_coordinator *c)
{
    uint64_t streams[256];
    size_t n = ebb_ledger_retire(&c->ledger, streams, 256);
    if (n > 0) {
        ebb_coordinator_kept(c, ebb_statestore_retire(c->store, &c->ledger, streams, n));
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
    ebb_coordinator_retire(c);
    if (c->state == EBB_JOB_STARTING && ebb_coordinator_shards_ready(c)) {
        c->state = EBB_JOB_RUNNING;
        size_t live = ebb_membership_live(&c->members);
        ebb_coordinator_event(c, "job-running", c->spec->name, "%u shard%s ready, %zu worker%s", c->members.n_shards,
                              c->members.n_shards == 1 ? "" : "s", live, live == 1 ? "" : "s");
    }
    ebb_coordinator_scale(c, now_ms);
    s_tick_eval(c);
    s_tick_rate(c, now_ms);
    if ((c->state == EBB_JOB_RUNNING || c->state == EBB_JOB_DRAINING) && ebb_ledger_all_retired(&c->ledger) && c->final_done) {
        c->state = EBB_JOB_SUCCEEDED;
        c->elapsed_s = ebb_coordinator_elapsed_s(c);
        c->settled = true;
        s_store_progress(c);
        if (ebb_coordinator_kept(c, ebb_statestore_put_state(c->store, "SUCCEEDED"))) {
            uint64_t applied = c->spec->steps - c->skipped;
            ebb_coordinator_event(c, "job-succeeded", c->spec->name,
                                  "%" PRIu64 " of %" PRIu64 " steps applied once on every shard, %" PRIu64 " skipped", applied,
                                  (uint64_t)c->spec->steps, c->skipped);
        }
    }
    if (!c->settled && now_ms - c->progress_ms >= STORE_PROGRESS_MS) {
        c->progress_ms = now_ms;
        s_store_progress(c);
    }
    s_tick_shutdown(c, now_ms);
}
