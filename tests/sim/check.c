// What must hold after every event. Each check looks at the product's state or at the durable rows of its disk, and at what was promised to others.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator.h"
#include "core/assert.h"
#include "core/bytes.h"
#include "ps/job.h"
#include "tests/sim/sim.h"

static uint64_t s_steps_of(const sim *s, uint64_t stream)
{
    ebb_unit unit;
    return ebb_plan_unit(&s->plan, stream, &unit) == EBB_OK ? unit.steps : 0;
}

// ---- shards ----

static uint64_t s_applied(const sim *s, ebb_job *job, uint64_t stream, uint64_t *durable)
{
    if (ebb_streams_is_retired(&job->streams, stream)) {
        return *durable = s_steps_of(s, stream);
    }
    const ebb_stream *st = ebb_streams_find(&job->streams, stream);
    *durable = st != NULL ? st->durable : 0;
    return st != NULL ? st->applied : 0;
}

// What the disk would give back of a stream if the power failed now.
static uint64_t s_on_disk(const sim *s, uint32_t shard, uint64_t stream)
{
    uint8_t key[9] = {'W'};
    const uint8_t *value = NULL;
    size_t len = 0;
    uint64_t n = 0;
    if (sim_disk_durable(s->shard_disk[shard], "R", 1, &value, &len) && len >= 16) {
        uint64_t below = ebb_get_le64(value), count = ebb_get_le64(value + 8);
        bool retired = stream < below;
        for (uint64_t i = 0; i < count && len >= 16 + 8 * (i + 1); i++) {
            retired |= ebb_get_le64(value + 16 + 8 * i) == stream;
        }
        n = retired ? s_steps_of(s, stream) : 0;
    }
    ebb_put_be64(key + 1, stream);
    if (sim_disk_durable(s->shard_disk[shard], key, sizeof(key), &value, &len) && len >= 8 && ebb_get_le64(value) > n) {
        n = ebb_get_le64(value);
    }
    return n;
}

// Every element counts the pushes, and pushes and skips together are what the watermarks say: a step that counted twice, or not at all although its
// watermark has moved, breaks one of the two.
static void s_check_counts(proc *p, ebb_job *job)
{
    sim *s = p->world;
    uint64_t sum = 0;
    for (uint64_t u = 0; u < s->plan.units_total; u++) {
        uint64_t durable, applied = s_applied(s, job, u, &durable), steps = s_steps_of(s, u);
        shard_truth *t = &s->truth[p->index];
        sum += applied;
        if (applied > steps || durable > applied) {
            sim_violate(s, "shard %u: unit %" PRIu64 " of %" PRIu64 " steps has applied %" PRIu64 ", durable %" PRIu64, p->index, u, steps, applied,
                        durable);
        }
        if (applied < t->seen_applied[u] || durable < t->seen_durable[u]) {
            sim_violate(s, "shard %u: the watermark of unit %" PRIu64 " went back from %" PRIu64 "/%" PRIu64 " to %" PRIu64 "/%" PRIu64, p->index, u,
                        t->seen_applied[u], t->seen_durable[u], applied, durable);
        }
        if (durable > t->seen_durable[u] && s_on_disk(s, p->index, u) < durable) {
            sim_violate(s, "shard %u calls step %" PRIu64 " of unit %" PRIu64 " durable, but the disk has %" PRIu64, p->index, durable, u,
                        s_on_disk(s, p->index, u));
        }
        t->seen_applied[u] = applied;
        t->seen_durable[u] = durable;
    }
    if (sum != job->version + job->skipped || sum != job->lsn) {
        sim_violate(s, "shard %u: the watermarks count %" PRIu64 " steps, but %" PRIu64 " were applied and %" PRIu64 " skipped (lsn %" PRIu64 ")",
                    p->index, sum, job->version, job->skipped, job->lsn);
    }
    for (uint32_t i = 0; i < job->chunk_count; i++) {
        const ebb_chunk_state *c = &job->chunks[i];
        const float *values = (const float *)c->buf[0]->data;
        for (uint32_t k = 0; k < c->numel; k++) {
            if (values[k] != (float)job->version || c->version != job->version) {
                sim_violate(s, "shard %u: element %u of chunk %u is %g after %" PRIu64 " pushes (chunk at version %" PRIu64 ")", p->index, k, c->id,
                            (double)values[k], job->version, c->version);
            }
        }
    }
}

static void s_check_memory(proc *p, const ebb_job *job)
{
    sim *s = p->world;
    size_t known = job->streams.n + job->streams.n_retired;
    if (known > s->plan.units_total || (job->streams.n > 0 && job->streams.at[job->streams.n - 1].id >= s->plan.units_total)) {
        sim_violate(s, "shard %u holds %zu streams and a retired list of %zu in a job of %" PRIu64 " units", p->index, job->streams.n,
                    job->streams.n_retired, s->plan.units_total);
    }
}

void check_shard(proc *p)
{
    ebb_job *job = sim_shard_job(p);
    if (job != NULL) {
        s_check_counts(p, job);
        s_check_memory(p, job);
    }
}

// The shard came back. What it promised before is there, as far as its level goes.
void check_shard_recovered(proc *p)
{
    sim *s = p->world;
    shard_truth *t = &s->truth[p->index];
    ebb_job *job = sim_shard_job(p);
    memset(t->seen_applied, 0, sizeof(t->seen_applied));
    memset(t->seen_durable, 0, sizeof(t->seen_durable));
    bool all = t->clean || (t->power ? s->config.survives_power : s->config.survives_kill);
    for (uint64_t u = 0; u < s->plan.units_total; u++) {
        uint64_t durable, applied = job != NULL ? s_applied(s, job, u, &durable) : 0;
        uint64_t promised = all ? t->told_applied[u] : t->told_durable[u];
        if (applied < promised) {
            sim_violate(s, "shard %u lost step %" PRIu64 " of unit %" PRIu64 " in %s at durability %s: it was %s, now the watermark is %" PRIu64,
                        p->index, promised, u,
                        t->clean   ? "a clean end"
                        : t->power ? "a power loss"
                                   : "a kill",
                        s->config.durability, all ? "acknowledged" : "reported as durable", applied);
        }
        t->told_applied[u] = applied;
    }
    t->power = t->clean = false;
    if (job != NULL) {
        sim_note(s, "  shard %u recovered version %" PRIu64 " lsn %" PRIu64 " skipped %" PRIu64, p->index, job->version, job->lsn, job->skipped);
    }
    check_shard(p);
}

void check_told(proc *p, uint64_t stream, uint64_t applied)
{
    shard_truth *t = &p->world->truth[p->index];
    ebb_job *job = sim_shard_job(p);
    uint64_t durable, has = s_applied(p->world, job, stream, &durable);
    if (has < applied) {
        sim_violate(p->world, "shard %u acknowledges step %" PRIu64 " of unit %" PRIu64 ", but has %" PRIu64, p->index, applied, stream, has);
    }
    t->told_applied[stream] = applied > t->told_applied[stream] ? applied : t->told_applied[stream];
}

void check_reported(proc *p, const Ebb__ShardReport *r)
{
    shard_truth *t = &p->world->truth[p->index];
    for (size_t j = 0; j < r->n_jobs; j++) {
        for (size_t i = 0; i < r->jobs[j]->n_watermarks; i++) {
            const Ebb__Watermark *w = r->jobs[j]->watermarks[i];
            if (w->stream < SIM_UNITS && w->durable > t->told_durable[w->stream]) {
                t->told_durable[w->stream] = w->durable;
            }
        }
    }
}

// ---- the coordinator ----

static void s_check_retired(sim *s, const ebb_ledger *l)
{
    for (uint64_t u = 0; u < s->plan.units_total; u++) {
        if (ebb_ledger_is_retired(l, u) == s->retired[u]) {
            continue;
        }
        if (s->retired[u]) {
            sim_violate(s, "the coordinator forgot that unit %" PRIu64 " is retired", u);
            return;
        }
        s->retired[u] = true;
        for (uint32_t i = 0; i < s->config.shards; i++) {
            uint64_t have = s_on_disk(s, i, u), steps = s_steps_of(s, u);
            if (have < steps) {
                sim_violate(s,
                            "the coordinator retires unit %" PRIu64 ", but of its %" PRIu64 " steps shard %u would have %" PRIu64
                            " left after a power loss",
                            u, steps, i, have);
            }
        }
    }
}

static void s_check_leases(sim *s, const ebb_ledger *l)
{
    for (size_t i = 0; i < l->n_units; i++) {
        const ebb_lease_row *a = &l->units[i].lease;
        if (i > 0 && l->units[i - 1].lease.stream >= a->stream) {
            sim_violate(s, "the ledger holds unit %" PRIu64 " twice", a->stream);
        }
        for (size_t j = 0; a->lease != 0 && j < i; j++) {
            const ebb_lease_row *b = &l->units[j].lease;
            if (b->lease == a->lease || (b->lease != 0 && a->worker[0] != '\0' && strcmp(a->worker, b->worker) == 0)) {
                sim_violate(s, "units %" PRIu64 " and %" PRIu64 " are leased by one lease or to one worker (%s)", a->stream, b->stream, a->worker);
            }
        }
    }
}

void check_coordinator(proc *p)
{
    sim *s = p->world;
    const ebb_coordinator *c = sim_coordinator_core(p);
    const ebb_ledger *l = &c->ledger;
    s_check_retired(s, l);
    s_check_leases(s, l);
    if (l->retired_below + l->n_retired + l->n_units != l->cursor) {
        sim_violate(s, "below the ledger's cursor %" PRIu64 " are %" PRIu64 " + %zu retired units and %zu in flight", l->cursor, l->retired_below,
                    l->n_retired, l->n_units);
    }
    if (s->succeeded && c->state != EBB_JOB_SUCCEEDED) {
        sim_violate(s, "the job had succeeded and is %s again", ebb_job_state_name(c->state));
    }
    if (c->state == EBB_JOB_FAILED) {
        sim_violate(s, "the job failed: %s", c->reason);
    }
    s->succeeded |= c->state == EBB_JOB_SUCCEEDED;
}

// One lease number is one worker's right to one unit, for ever.
void check_lease(proc *p, const Ebb__LeaseReply *r, uint64_t incarnation)
{
    sim *s = p->world;
    if (r->kind != EBB__LEASE_KIND__LEASE_TRAIN) {
        return;
    }
    if (r->lease >= s->n_leases) {
        uint64_t n = r->lease + 64;
        s->leases = realloc(s->leases, n * sizeof(*s->leases));
        EBB_ASSERT(s->leases != NULL);
        memset(s->leases + s->n_leases, 0, (n - s->n_leases) * sizeof(*s->leases));
        s->n_leases = n;
    }
    lease_truth *t = &s->leases[r->lease];
    if (t->incarnation != 0 && (t->incarnation != incarnation || t->stream != r->stream)) {
        sim_violate(s, "lease %" PRIu64 " was given for unit %" PRIu64 " to one worker and for unit %" PRIu64 " to another", (uint64_t)r->lease,
                    t->stream, (uint64_t)r->stream);
    }
    *t = (lease_truth){.stream = r->stream, .incarnation = incarnation};
    if (r->seq_first == 0 || r->seq_first > r->seq_last || r->seq_last != s_steps_of(s, r->stream)) {
        sim_violate(s, "lease %" PRIu64 " is for steps %" PRIu64 "..%" PRIu64 " of a unit of %" PRIu64, (uint64_t)r->lease, (uint64_t)r->seq_first,
                    (uint64_t)r->seq_last, s_steps_of(s, r->stream));
    }
}

// ---- the end ----

// Everybody is up, nothing is in flight any more, and every shard holds exactly the steps of the job.
bool check_finished(sim *s)
{
    if (s->coordinator == NULL) {
        return false;
    }
    const ebb_coordinator *c = sim_coordinator_core(s->coordinator);
    for (uint32_t i = 0; i < s->config.shards; i++) {
        ebb_job *job = s->shard[i] != NULL ? sim_shard_job(s->shard[i]) : NULL;
        if (job == NULL || job->streams.n > 0 || c->ledger.n_units > 0) {
            return false;
        }
    }
    for (uint32_t i = 0; i < s->config.shards; i++) {
        const ebb_job *job = sim_shard_job(s->shard[i]);
        if (job->version + job->skipped != s->config.steps || job->skipped != c->skipped) {
            sim_violate(s,
                        "the job has ended, but shard %u applied %" PRIu64 " and skipped %" PRIu64 " of %" PRIu64
                        " steps; the coordinator skipped %" PRIu64,
                        i, job->version, job->skipped, s->config.steps, c->skipped);
        }
        if (job->streams.n_retired > 0 || job->streams.retired_below != s->plan.units_total) {
            sim_violate(s, "the job has ended, but shard %u has a retired set of %" PRIu64 " + %zu", i, job->streams.retired_below,
                        job->streams.n_retired);
        }
    }
    if (sim_disk_count(s->coordinator_disk, 'U') > 0) {
        sim_violate(s, "the job has ended, but the coordinator's store holds %zu leases", sim_disk_count(s->coordinator_disk, 'U'));
    }
    s->skips = c->skipped;
    return true;
}

// Whoever reads the model afterwards reads it from the disks: the power fails everywhere, and everything must still be there.
void check_after_power_loss(sim *s)
{
    for (uint32_t i = 0; i < s->config.shards && !s->violated; i++) {
        proc *p = s->shard[i];
        sim_shard_ops.end(p);
        p->self = NULL;
        p->up = false;
        sim_disk_power_loss(s->shard_disk[i], dice_below(&s->dice, sim_disk_logged(s->shard_disk[i]) + 1));
        s->truth[i].power = true;
        proc again = {.world = s, .role = ROLE_SHARD, .uid = p->uid, .index = i, .incarnation = 1, .up = true};
        if (!sim_shard_start(&again)) {
            sim_violate(s, "shard %u does not come back after the end of the job", i);
            return;
        }
        const ebb_job *job = sim_shard_job(&again);
        if (job == NULL || job->version != s->config.steps - s->skips || job->skipped != s->skips) {
            sim_violate(s, "after the job's end a power loss left shard %u with %" PRIu64 " of %" PRIu64 " steps", i, job != NULL ? job->version : 0,
                        s->config.steps - s->skips);
        }
        sim_shard_ops.end(&again);
    }
    if (s->violated) {
        return;
    }
    proc *p = s->coordinator;
    sim_coordinator_ops.end(p);
    p->self = NULL;
    p->up = false;
    sim_disk_power_loss(s->coordinator_disk, 0);
    proc again = {.world = s, .role = ROLE_COORDINATOR, .uid = p->uid, .incarnation = 1, .up = true};
    if (!sim_coordinator_start(&again)) {
        sim_violate(s, "the coordinator does not come back after the end of the job");
        return;
    }
    const ebb_coordinator *c = sim_coordinator_core(&again);
    if (c->state != EBB_JOB_SUCCEEDED || !ebb_ledger_all_retired(&c->ledger) || c->skipped != s->skips) {
        sim_violate(s, "after the job's end a power loss left the coordinator with %" PRIu64 " retired units of %" PRIu64 ", state %s",
                    c->ledger.retired_below, s->plan.units_total, ebb_job_state_name(c->state));
    }
    sim_coordinator_ops.end(&again);
}
