// A coordinator through sequences of requests, silences and crashes of its own. After each: the ledger holds together, the answer fits a message and can be
// read, and nothing that was promised is taken back, whatever failed in between.
//
// Two kinds of input. In the honest kind, shards tell the truth about a model of what they hold (they crash, roll back to what is durable, repeat themselves
// and come late), while workers do and say what they like: then a retired unit is durable on every shard, and a job that has succeeded has all its steps.
// In the other kind anybody says anything.
//
// Input: config u8 (bit 0: honest; 1-2: shards - 1; 3: durability snapshot; 4: evaluations; 5: long lease; 6: two workers at most), steps u8, unit_steps u8,
// samples u8, then operations: kind u8 and what each takes (below).
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fleet.h"

#define OPS_MAX 300
#define SHARDS 4
#define WORKERS 6
#define UNITS 64
#define TOLD 32

typedef struct shard {
    uint64_t incarnation, applied[UNITS], durable[UNITS];
    uint64_t hash, epoch;
    bool full;
    uint64_t late_incarnation, late_applied[UNITS], late_durable[UNITS]; // an earlier report, to be delivered again
} shard;

typedef struct worker {
    uint64_t incarnation, lease, stream, next, last;
    uint64_t eval_lease, eval_id;
} worker;

typedef struct world {
    fuzz_in in;
    fleet f;
    fleet_options o;
    ebb_plan plan;
    bool honest, crowded;
    shard shard[SHARDS];
    worker worker[WORKERS];
    uint64_t incarnations;
    // what was promised in answers
    uint64_t told_retired_below;
    uint64_t told_skip[TOLD][2];
    size_t n_told;
    bool told_succeeded;
} world;

#define BODY(kind, field, value)                \
    Ebb__Envelope env = EBB__ENVELOPE__INIT;    \
    env.body_case = EBB__ENVELOPE__BODY_##kind; \
    env.field = (value)

// ---- names, ids: mostly what is plausible ----

static char *s_name(world *w, uint8_t pick, char out[EBB_NAME_MAX + 64])
{
    static const char *const odd[] = {"", "shard-0", "coordinator", "w 1", "w\"", "caf\xc3\xa9", "%s%n", "w0\n"};
    if (pick < 224) {
        snprintf(out, EBB_NAME_MAX, "w%u", pick % WORKERS);
    } else if (pick < 240) {
        snprintf(out, EBB_NAME_MAX, "%s", odd[pick % 8]);
    } else if (pick < 248) {
        memset(out, 'x', EBB_NAME_MAX + 8);
        out[EBB_NAME_MAX - 4 + pick % 8] = '\0'; // around the longest
    } else {
        fuzz_text(&w->in, out, EBB_NAME_MAX + 64);
    }
    return out;
}

static uint64_t s_incarnation(world *w, uint8_t pick)
{
    uint8_t how = fuzz_u8(&w->in);
    worker *x = &w->worker[pick % WORKERS];
    if (how < 160) {
        return x->incarnation;
    }
    if (how < 224) {
        return x->incarnation = ++w->incarnations;
    }
    return how < 250 ? how % (w->incarnations + 1) : fuzz_number(&w->in);
}

static uint64_t s_job(world *w)
{
    uint8_t how = fuzz_u8(&w->in);
    return how < 240 ? w->f.c->job : how < 250 ? 0 : fuzz_number(&w->in);
}

static uint64_t s_lease(world *w, uint8_t pick)
{
    uint8_t how = fuzz_u8(&w->in);
    const worker *x = &w->worker[pick % WORKERS];
    return how < 160 ? x->lease : how < 200 ? x->eval_lease : how < 240 ? how % 16 : fuzz_number(&w->in);
}

// A unit's steps as the plan says.
static uint64_t s_steps(const world *w, uint64_t stream)
{
    ebb_unit unit;
    FUZZ_OK(ebb_plan_unit(&w->plan, stream, &unit));
    return unit.steps;
}

// ---- properties ----

static void s_check(world *w)
{
    const ebb_coordinator *c = w->f.c;
    if (c == NULL || c->failure != EBB_OK) {
        return; // a coordinator whose store failed says nothing, and is restarted next
    }
    const char *broken = ebb_ledger_check(&c->ledger);
    if (broken != NULL) {
        fuzz_fail(__FILE__, __LINE__, "ebb_ledger_check", broken);
    }
    FUZZ_CHECK(c->n_skips <= EBB_SKIPS_MAX && c->n_refusals <= EBB_REFUSALS_MAX && c->n_steps <= 32);
    FUZZ_CHECK(c->members.n <= EBB_WORKERS_MAX && c->progress.n_points <= EBB_PROGRESS_POINTS && c->progress.n_evals <= EBB_PROGRESS_EVALS);
    FUZZ_CHECK(ebb_ledger_steps_done(&c->ledger) <= w->plan.steps_total);
    FUZZ_CHECK(c->ledger.retired_below >= w->told_retired_below && (!w->told_succeeded || c->state == EBB_JOB_SUCCEEDED));
    FUZZ_CHECK(c->state != EBB_JOB_SUCCEEDED || (ebb_ledger_all_retired(&c->ledger) && c->final_done));
    for (uint64_t u = 0; w->honest && u < w->plan.units_total; u++) {
        for (uint32_t s = 0; s < w->o.shards && ebb_ledger_is_retired(&c->ledger, u); s++) {
            FUZZ_CHECK(w->shard[s].durable[u] >= s_steps(w, u));
        }
    }
}

// After a restart: what was told is still so.
static void s_check_promises(world *w)
{
    const ebb_coordinator *c = w->f.c;
    for (int i = 0; i < WORKERS; i++) { // a lease that was told keeps its unit from being taken for one never leased
        const worker *x = &w->worker[i];
        FUZZ_CHECK(x->lease == 0 || x->stream < c->ledger.cursor);
    }
    for (size_t i = 0; i < w->n_told; i++) {
        bool kept = ebb_ledger_is_retired(&c->ledger, w->told_skip[i][0]);
        for (size_t k = 0; k < c->n_skips; k++) {
            kept = kept || (c->skips[k].stream == w->told_skip[i][0] && c->skips[k].seq == w->told_skip[i][1]);
        }
        FUZZ_CHECK(kept);
    }
}

static void s_restart(world *w)
{
    char why[512] = "";
    fleet_close(&w->f);
    FUZZ_OK(fleet_open(&w->f, NULL, why));
    for (uint32_t s = 0; s < SHARDS; s++) {
        w->shard[s].full = false;
    }
    s_check(w);
    s_check_promises(w);
}

static bool s_ask(world *w, Ebb__Envelope *env, const ebb_part *part, ebb_msg *reply)
{
    w->f.request_id++;
    bool said = fleet_ask(&w->f, env, part, reply);
    if (w->f.c->failure != EBB_OK) {
        FUZZ_CHECK(!said);
        s_restart(w);
    }
    return said;
}

// For requests whose answer says nothing.
static void s_tell(world *w, Ebb__Envelope *env)
{
    ebb_msg reply;
    if (s_ask(w, env, NULL, &reply)) {
        ebb_msg_fini(&reply);
    }
}

// ---- workers ----

// worker u8, incarnation, host text
static void s_op_join(world *w)
{
    char name[EBB_NAME_MAX + 64], host[300];
    uint8_t pick = fuzz_u8(&w->in);
    Ebb__JoinRequest q = EBB__JOIN_REQUEST__INIT;
    ebb_msg r;
    q.worker = s_name(w, pick, name);
    q.incarnation = s_incarnation(w, pick);
    q.pid = pick % WORKERS + 100;
    fuzz_text(&w->in, host, sizeof(host));
    q.host = host;
    BODY(JOIN_REQUEST, join_request, &q);
    if (s_ask(w, &env, NULL, &r)) {
        FUZZ_CHECK(r.env->status != EBB_OK || (r.env->join_reply->spec != NULL && r.env->join_reply->job == w->f.c->job));
        ebb_msg_fini(&r);
    }
}

// which u8, job, [bytes]
static void s_op_manifest(world *w)
{
    uint8_t which = fuzz_u8(&w->in) % 8;
    Ebb__ManifestRequest q = EBB__MANIFEST_REQUEST__INIT;
    ebb_part part = {.kind = EBB_PART_MANIFEST, .dtype = EBB_DTYPE_BYTES};
    ebb_msg r;
    q.job = s_job(w);
    if (which < 6) {
        fleet_manifest(which < 4 ? FLEET_NUMEL / FLEET_CHUNK_ELEMS : which == 4 ? 1 : 9, &part);
    } else {
        size_t len;
        const uint8_t *bytes = fuzz_bytes(&w->in, &len);
        FUZZ_OK(ebb_buf_dup(bytes, len, &part.buf));
        part.numel = len;
        ebb_part_seal(&part);
    }
    BODY(MANIFEST_REQUEST, manifest_request, &q);
    if (s_ask(w, &env, which == 7 ? NULL : &part, &r)) {
        FUZZ_CHECK(r.env->status != EBB_OK || r.env->manifest_reply->hash == w->f.c->manifest_hash);
        ebb_msg_fini(&r);
    }
    ebb_buf_unref(&part.buf);
}

// worker u8, incarnation, job
static void s_op_lease(world *w)
{
    char name[EBB_NAME_MAX + 64];
    uint8_t pick = fuzz_u8(&w->in);
    worker *x = &w->worker[pick % WORKERS];
    Ebb__LeaseRequest q = EBB__LEASE_REQUEST__INIT;
    ebb_msg r;
    q.worker = s_name(w, pick, name);
    q.incarnation = s_incarnation(w, pick);
    q.job = s_job(w);
    BODY(LEASE_REQUEST, lease_request, &q);
    if (!s_ask(w, &env, NULL, &r)) {
        return;
    }
    const Ebb__LeaseReply *l = r.env->lease_reply;
    if (r.env->status == EBB_OK && l->kind == EBB__LEASE_KIND__LEASE_TRAIN) {
        const ebb_unit_row *u = ebb_ledger_unit(&w->f.c->ledger, l->stream);
        FUZZ_CHECK(u != NULL && u->lease.lease == l->lease && l->lease != 0 && strcmp(u->lease.worker, q.worker) == 0);
        FUZZ_CHECK(l->seq_first >= 1 && l->seq_first <= l->seq_last && l->seq_last == s_steps(w, l->stream) && l->attempt >= 1);
        FUZZ_CHECK(l->seq_first <= ebb_ledger_unit_applied(&w->f.c->ledger, u) + 1); // no hole before it, by what the shards said
        if (pick < 224) {
            x->lease = l->lease;
            x->stream = l->stream;
            x->next = l->seq_first;
            x->last = l->seq_last;
        }
    } else if (r.env->status == EBB_OK && l->kind == EBB__LEASE_KIND__LEASE_EVAL) {
        FUZZ_CHECK(w->f.c->eval.active && l->lease == w->f.c->eval.lease && l->eval_id == w->f.c->eval.id);
        x->eval_lease = l->lease;
        x->eval_id = l->eval_id;
    }
    ebb_msg_fini(&r);
}

// worker u8, incarnation, job, counters, leases
static void s_op_beat(world *w)
{
    char name[EBB_NAME_MAX + 64];
    uint64_t leases[512];
    uint8_t pick = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    Ebb__HeartbeatRequest q = EBB__HEARTBEAT_REQUEST__INIT;
    ebb_msg r;
    q.worker = s_name(w, pick, name);
    q.incarnation = s_incarnation(w, pick);
    q.job = s_job(w);
    q.beat = w->f.request_id;
    q.leases = leases;
    q.n_leases = how < 128 ? 1 : how < 192 ? how % 4 : 512;
    for (size_t i = 0; i < q.n_leases; i++) {
        leases[i] = q.n_leases < 512 ? s_lease(w, pick) : UINT64_MAX - i;
    }
    q.alive_ns = how % 2 == 0 ? w->f.now * 1000000 : fuzz_number(&w->in);
    q.compute_ns = how % 2 == 0 ? q.alive_ns / 2 : fuzz_number(&w->in);
    q.steps = fuzz_number(&w->in);
    q.samples = q.steps;
    q.loss_count = fuzz_u8(&w->in);
    uint64_t bits = fuzz_u64(&w->in);
    memcpy(&q.loss_sum, &bits, sizeof(bits));
    memcpy(&q.staleness_sum, &bits, sizeof(bits));
    q.staleness_count = fuzz_number(&w->in);
    BODY(HEARTBEAT_REQUEST, heartbeat_request, &q);
    if (s_ask(w, &env, NULL, &r)) {
        FUZZ_CHECK(r.env->status != EBB_OK || r.env->heartbeat_reply->n_leases_lost <= q.n_leases);
        ebb_msg_fini(&r);
    }
}

// worker u8, incarnation, lease, steps done u8, reason
static void s_op_return(world *w)
{
    char name[EBB_NAME_MAX + 64], reason[600];
    uint8_t pick = fuzz_u8(&w->in), done = fuzz_u8(&w->in);
    const worker *x = &w->worker[pick % WORKERS];
    Ebb__LeaseReturn q = EBB__LEASE_RETURN__INIT;
    q.worker = s_name(w, pick, name);
    q.incarnation = s_incarnation(w, pick);
    q.lease = s_lease(w, pick);
    q.job = s_job(w);
    q.seq_done = done < 128 ? x->next - 1 : done < 200 ? x->last : fuzz_number(&w->in);
    fuzz_text(&w->in, reason, sizeof(reason));
    q.reason = reason;
    BODY(LEASE_RETURN, lease_return, &q);
    s_tell(w, &env);
}

// worker u8, incarnation
static void s_op_leave(world *w)
{
    char name[EBB_NAME_MAX + 64];
    uint8_t pick = fuzz_u8(&w->in);
    Ebb__LeaveRequest q = EBB__LEAVE_REQUEST__INIT;
    q.worker = s_name(w, pick, name);
    q.incarnation = s_incarnation(w, pick);
    q.job = s_job(w);
    q.reason = "fuzz";
    BODY(LEAVE_REQUEST, leave_request, &q);
    s_tell(w, &env);
}

// worker u8, pid u8
static void s_op_gone(world *w)
{
    char name[EBB_NAME_MAX + 64];
    uint8_t pick = fuzz_u8(&w->in);
    Ebb__WorkerGone q = EBB__WORKER_GONE__INIT;
    q.worker = s_name(w, pick, name);
    q.pid = fuzz_u8(&w->in) % 4 == 0 ? 0 : pick % WORKERS + 100;
    q.reason = "signal 9";
    BODY(WORKER_GONE, worker_gone, &q);
    s_tell(w, &env);
}

// worker u8, how u8, reason
static void s_op_skip(world *w)
{
    char name[EBB_NAME_MAX + 64], reason[600];
    uint8_t pick = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    const worker *x = &w->worker[pick % WORKERS];
    Ebb__SkipRequest q = EBB__SKIP_REQUEST__INIT;
    ebb_msg r;
    q.worker = s_name(w, pick, name);
    q.lease = x->lease;
    q.stream = how < 200 ? x->stream : fuzz_number(&w->in);
    q.seq = how < 200 ? x->next : fuzz_number(&w->in);
    q.job = s_job(w);
    fuzz_text(&w->in, reason, sizeof(reason));
    q.reason = reason;
    BODY(SKIP_REQUEST, skip_request, &q);
    for (int i = 0; i <= how % 4; i++) { // a step is skipped when it was refused some times
        size_t before = w->f.c->n_skips;
        if (!s_ask(w, &env, NULL, &r)) {
            return;
        }
        if (r.env->status == EBB_OK && r.env->skip_reply->skip && w->f.c->n_skips == before + 1 && w->n_told < TOLD) {
            w->told_skip[w->n_told][0] = q.stream;
            w->told_skip[w->n_told++][1] = q.seq;
        }
        ebb_msg_fini(&r);
    }
}

// worker u8, how u8, loss u64
static void s_op_eval(world *w)
{
    char name[EBB_NAME_MAX + 64];
    uint8_t pick = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    const worker *x = &w->worker[pick % WORKERS];
    Ebb__EvalReport q = EBB__EVAL_REPORT__INIT;
    uint64_t bits = fuzz_u64(&w->in);
    q.worker = s_name(w, pick, name);
    q.lease = x->eval_lease;
    q.eval_id = how < 200 ? x->eval_id : fuzz_number(&w->in);
    q.job = s_job(w);
    memcpy(&q.loss, &bits, sizeof(bits));
    BODY(EVAL_REPORT, eval_report, &q);
    s_tell(w, &env);
}

// A worker's next step to some of the shards: worker u8, shards u8 (a bit each: it does not get there)
static void s_op_work(world *w)
{
    worker *x = &w->worker[fuzz_u8(&w->in) % WORKERS];
    uint8_t lost = fuzz_u8(&w->in);
    bool everywhere = true;
    if (x->lease == 0 || x->next > x->last) {
        return;
    }
    for (uint32_t s = 0; s < w->o.shards; s++) {
        uint64_t *applied = &w->shard[s].applied[x->stream];
        *applied += (lost >> s & 1) == 0 && *applied + 1 == x->next;
        everywhere = everywhere && *applied >= x->next;
    }
    x->next += everywhere;
}

// ---- shards ----

static void s_report(world *w, uint32_t number, bool late)
{
    shard *s = &w->shard[number];
    Ebb__ShardReport q = EBB__SHARD_REPORT__INIT;
    Ebb__ShardJobReport job = EBB__SHARD_JOB_REPORT__INIT, *jobs[1] = {&job};
    Ebb__Watermark marks[UNITS], *refs[UNITS];
    ebb_msg r;
    q.shard = number;
    q.incarnation = late ? s->late_incarnation : s->incarnation;
    q.endpoint = "ipc://nowhere";
    q.pid = 4242;
    q.jobs = jobs;
    q.n_jobs = s->hash != 0;
    q.alive_ns = w->f.now * 1000000;
    q.busy_ns = q.alive_ns / 3;
    job.job = w->f.c->job;
    job.manifest_hash = s->hash;
    job.epoch = s->epoch;
    job.full = s->full && !late;
    job.watermarks = refs;
    for (uint64_t u = 0; u < w->plan.units_total; u++) {
        uint64_t applied = late ? s->late_applied[u] : s->applied[u];
        if (applied > 0) {
            Ebb__Watermark *m = &marks[job.n_watermarks];
            ebb__watermark__init(m);
            m->stream = u;
            m->applied = applied;
            m->durable = late ? s->late_durable[u] : s->durable[u];
            refs[job.n_watermarks++] = m;
        }
    }
    BODY(SHARD_REPORT, shard_report, &q);
    if (!s_ask(w, &env, NULL, &r)) {
        return;
    }
    const Ebb__ShardReportReply *o = r.env->shard_report_reply;
    if (r.env->status == EBB_OK && !late) {
        if (o->install != NULL) {
            FUZZ_CHECK(r.n_parts == 1 && o->install->spec != NULL && o->install->chunk_count > 0);
            s->hash = o->install->manifest_hash;
            s->epoch = o->install->epoch;
        }
        s->full = o->want_full || o->install != NULL;
        FUZZ_CHECK(o->retired_below >= w->told_retired_below);
        w->told_retired_below = o->retired_below;
        for (size_t i = 0; i < o->n_skips; i++) {
            FUZZ_CHECK(o->skips[i]->stream < w->plan.units_total && o->skips[i]->seq >= 1);
            uint64_t *applied = &s->applied[o->skips[i]->stream];
            *applied += *applied + 1 == o->skips[i]->seq;
        }
    }
    ebb_msg_fini(&r);
}

// shard u8, how u8: report | report late | what is applied becomes durable | crash | remember this report
static void s_op_shard(world *w)
{
    uint32_t number = fuzz_u8(&w->in) % w->o.shards;
    uint8_t how = fuzz_u8(&w->in);
    shard *s = &w->shard[number];
    switch (how % 8) {
    case 0:
        memcpy(s->durable, s->applied, sizeof(s->durable));
        break;
    case 1:
        memcpy(s->applied, s->durable, sizeof(s->applied));
        s->incarnation = ++w->incarnations + 1000;
        s->full = false;
        break;
    case 2:
        s->late_incarnation = s->incarnation;
        memcpy(s->late_applied, s->applied, sizeof(s->late_applied));
        memcpy(s->late_durable, s->durable, sizeof(s->late_durable));
        break;
    case 3:
        // Of this life only. What a dead process said is known by its incarnation, but only the last eight are remembered, and none after a restart.
        if (s->late_incarnation == s->incarnation) {
            s_report(w, number, true);
        }
        break;
    default:
        s_report(w, number, false);
        break;
    }
}

// All shards report until they are ready: how a job comes to run at all.
static void s_op_settle(world *w)
{
    for (int round = 0; round < 3; round++) {
        for (uint32_t s = 0; s < w->o.shards; s++) {
            s_report(w, s, false);
        }
    }
    ebb_coordinator_tick(w->f.c, ++w->f.now);
    if (w->f.c->failure != EBB_OK) {
        s_restart(w);
    }
}

// A shard that lies: shard u8, incarnation, watermarks
static void s_op_lie(world *w)
{
    Ebb__ShardReport q = EBB__SHARD_REPORT__INIT;
    Ebb__ShardJobReport job = EBB__SHARD_JOB_REPORT__INIT, *jobs[2] = {&job, &job};
    Ebb__Watermark marks[8], *refs[8];
    char endpoint[400];
    uint8_t how = fuzz_u8(&w->in);
    q.shard = how < 250 ? how % w->o.shards : (uint32_t)fuzz_number(&w->in);
    q.incarnation = fuzz_u8(&w->in) < 200 ? w->shard[q.shard % SHARDS].incarnation : fuzz_number(&w->in);
    fuzz_text(&w->in, endpoint, sizeof(endpoint));
    q.endpoint = endpoint;
    q.alive_ns = fuzz_number(&w->in);
    q.busy_ns = fuzz_number(&w->in);
    q.jobs = jobs;
    q.n_jobs = how % 3;
    job.job = s_job(w);
    job.manifest_hash = fuzz_u8(&w->in) % 4 != 0 ? w->f.c->manifest_hash : fuzz_number(&w->in);
    job.epoch = fuzz_u8(&w->in) % 4 != 0 ? w->f.c->epoch : fuzz_number(&w->in);
    job.version = fuzz_number(&w->in);
    job.full = how % 2;
    job.watermarks = refs;
    job.n_watermarks = fuzz_u8(&w->in) % 9;
    for (size_t i = 0; i < job.n_watermarks; i++) {
        ebb__watermark__init(&marks[i]);
        marks[i].stream = fuzz_number(&w->in);
        marks[i].applied = fuzz_number(&w->in);
        marks[i].durable = fuzz_number(&w->in);
        refs[i] = &marks[i];
    }
    BODY(SHARD_REPORT, shard_report, &q);
    s_tell(w, &env);
}

// ---- people, anybody ----

static void s_op_status(world *w)
{
    Ebb__StatusRequest q = EBB__STATUS_REQUEST__INIT;
    ebb_msg r;
    BODY(STATUS_REQUEST, status_request, &q);
    if (s_ask(w, &env, NULL, &r)) {
        const Ebb__StatusReply *s = r.env->status_reply;
        FUZZ_CHECK(s->steps_done <= s->steps_total && s->steps_retired <= s->steps_done && s->units_retired <= s->units_done);
        FUZZ_CHECK(s->units_done <= s->units_total && s->n_workers <= s->workers_known && s->workers_live <= s->workers_known);
        w->told_succeeded = w->told_succeeded || strcmp(s->state, "SUCCEEDED") == 0;
        ebb_msg_fini(&r);
    }
}

// which u8
static void s_op_operator(world *w)
{
    uint8_t which = fuzz_u8(&w->in);
    Ebb__EventsRequest events = EBB__EVENTS_REQUEST__INIT;
    Ebb__DrainRequest drain = EBB__DRAIN_REQUEST__INIT;
    Ebb__JobRequest job = EBB__JOB_REQUEST__INIT;
    Ebb__ShardMapRequest map = EBB__SHARD_MAP_REQUEST__INIT;
    Ebb__Ping ping = EBB__PING__INIT;
    ebb_msg r;
    if (which < 64) {
        events.after = fuzz_number(&w->in);
        events.limit = (uint32_t)fuzz_number(&w->in);
        BODY(EVENTS_REQUEST, events_request, &events);
        if (s_ask(w, &env, NULL, &r)) {
            uint64_t last = 0;
            for (size_t i = 0; i < r.env->events_reply->n_events; i++) {
                FUZZ_CHECK(r.env->events_reply->events[i]->id > last);
                last = r.env->events_reply->events[i]->id;
            }
            FUZZ_CHECK(last <= r.env->events_reply->last);
            ebb_msg_fini(&r);
        }
    } else if (which < 128) {
        map.job = s_job(w);
        BODY(SHARD_MAP_REQUEST, shard_map_request, &map);
        if (s_ask(w, &env, NULL, &r)) {
            FUZZ_CHECK(r.env->status != EBB_OK || r.env->shard_map_reply->n_shards == w->o.shards);
            ebb_msg_fini(&r);
        }
    } else if (which < 192) {
        BODY(JOB_REQUEST, job_request, &job);
        s_tell(w, &env);
    } else if (which < 224) {
        BODY(PING, ping, &ping);
        s_tell(w, &env);
    } else {
        drain.reason = "fuzz";
        drain.shutdown = which % 2;
        BODY(DRAIN_REQUEST, drain_request, &drain);
        s_tell(w, &env);
    }
}

// An envelope as anybody may send it: bytes
static void s_op_raw(world *w)
{
    ebb_frames frames;
    ebb_msg request, r;
    ebb_buf *buf = NULL;
    size_t len;
    const char *why = NULL;
    const uint8_t *bytes = fuzz_bytes(&w->in, &len);
    FUZZ_OK(ebb_buf_dup(bytes, len, &buf));
    ebb_frames_init(&frames);
    FUZZ_OK(ebb_frames_add_take(&frames, &buf));
    if (ebb_msg_unpack(&frames, true, &request, &why) == EBB_OK) {
        if (!w->honest || request.env->body_case != EBB__ENVELOPE__BODY_SHARD_REPORT) {
            if (fleet_ask_message(&w->f, &request, &r)) {
                ebb_msg_fini(&r);
            }
        }
        ebb_msg_fini(&request);
        if (w->f.c->failure != EBB_OK) {
            s_restart(w);
        }
    }
    ebb_frames_fini(&frames);
}

// Many seats: how many u8
static void s_op_crowd(world *w)
{
    uint32_t n = w->crowded ? 0 : fuzz_u8(&w->in) % 80u;
    w->crowded = true; // once: each message looks through all seats
    for (uint32_t i = 0; i < n; i++) {
        char name[EBB_NAME_MAX];
        Ebb__JoinRequest q = EBB__JOIN_REQUEST__INIT;
        snprintf(name, sizeof(name), "%0*u", EBB_NAME_MAX - 1, i);
        q.worker = name;
        q.incarnation = 1;
        BODY(JOIN_REQUEST, join_request, &q);
        s_tell(w, &env);
    }
}

// how u8
static void s_op_time(world *w)
{
    static const uint64_t jumps[] = {0, 1, 50, 50, 500, 999, 1000, 1001, 2000, 5000, 10000, 60000, 3600000, 1ull << 33};
    w->f.now += jumps[fuzz_u8(&w->in) % (sizeof(jumps) / sizeof(jumps[0]))];
    ebb_coordinator_tick(w->f.c, w->f.now);
    if (w->f.c->failure != EBB_OK) {
        s_restart(w);
    }
}

static void s_op(world *w)
{
    static void (*const ops[])(world *) = {s_op_join,   s_op_manifest, s_op_lease,  s_op_lease, s_op_beat, s_op_return,  s_op_leave, s_op_gone,
                                           s_op_skip,   s_op_eval,     s_op_work,   s_op_work,  s_op_work, s_op_shard,   s_op_shard, s_op_shard,
                                           s_op_settle, s_op_status,   s_op_status, s_op_time,  s_op_time, s_op_operator};
    uint8_t kind = fuzz_u8(&w->in) % 28;
    if (kind < sizeof(ops) / sizeof(ops[0])) {
        ops[kind](w);
    } else if (kind == 22) {
        s_restart(w);
    } else if (kind == 23) {
        memstore_fail_next(fuzz_u8(&w->in) % 2 == 0);
    } else if (kind == 24) {
        s_op_raw(w);
    } else if (kind == 25 && !w->honest) {
        s_op_lie(w);
    } else if (kind == 26) {
        s_op_crowd(w);
    } else {
        s_op_settle(w);
    }
    s_check(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_quiet();
    world *w = calloc(1, sizeof(*w));
    FUZZ_CHECK(w != NULL);
    char why[512] = "";
    w->in = (fuzz_in){data, size};
    uint8_t config = fuzz_u8(&w->in);
    w->honest = (config & 1) != 0;
    w->f.now = 1000000;
    w->o = (fleet_options){.shards = (config >> 1 & 3) + 1u,
                           .unit_steps = 1,
                           .batch = 2,
                           .workers_min = 1,
                           .workers_max = (config & 64) != 0 ? 2 : WORKERS,
                           .lease_ms = (config & 32) != 0 ? 10000 : 400,
                           .steps = fuzz_u8(&w->in) % 60 + 1u,
                           .val_samples = (config & 16) != 0 ? 10 : 0,
                           .eval_every = (config & 16) != 0 ? 5 : 0,
                           .snapshot = (config & 8) != 0};
    w->o.unit_steps = fuzz_u8(&w->in) % 8 + 1u;
    w->o.train_samples = fuzz_u8(&w->in) % 40 + 1u;
    FUZZ_OK(ebb_plan_init(&w->plan, w->o.train_samples, w->o.batch, w->o.unit_steps, w->o.steps, 1));
    FUZZ_CHECK(w->plan.units_total <= UNITS);
    for (uint32_t s = 0; s < SHARDS; s++) {
        w->shard[s].incarnation = 500 + s;
    }
    for (int i = 0; i < WORKERS; i++) {
        w->worker[i].incarnation = ++w->incarnations;
    }
    FUZZ_OK(fleet_open(&w->f, &w->o, why));
    for (int i = 0; i < OPS_MAX && w->in.left > 0; i++) {
        s_op(w);
    }
    memstore_fail_next(true);
    s_restart(w);
    fleet_close(&w->f);
    memstore_reset();
    free(w);
    return 0;
}
