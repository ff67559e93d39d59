#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/crc32c.h"
#include "core/rng.h"
#include "tests/sim/mutate.h"

#define PATIENCE_US (180 * 1000 * MS) // after the last fault
#define EVENTS_MAX 3000000
#define SEAT_AGAIN_MS 300
#define BAD_STEPS_MAX 10 // with more a job may rightly fail

sim *sim_now;

// ---- the trace ----

static void s_hash(sim *s, const void *data, size_t len)
{
    s->hash = (s->hash ^ ebb_crc32c((uint32_t)s->hash, data, len)) * 0x100000001B3u + 0x9E3779B97F4A7C15u;
}

static void s_line(sim *s, const char *fmt, va_list ap)
{
    char *line = s->trace[s->n_trace++ % SIM_TRACE];
    int n = snprintf(line, SIM_TEXT, "%7" PRIu64 " %10.3f ms  ", s->event_no, (double)s->now / MS);
    vsnprintf(line + n, SIM_TEXT - (size_t)n, fmt, ap);
    if (s->tracing) {
        puts(line);
    }
}

void sim_note(sim *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    s_line(s, fmt, ap);
    va_end(ap);
}

void sim_violate(sim *s, const char *fmt, ...)
{
    if (s->violated) {
        return;
    }
    s->violated = true;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->violation, sizeof(s->violation), fmt, ap);
    va_end(ap);
    sim_note(s, "VIOLATION: %s", s->violation);
}

const char *sim_name(const proc *p, char out[32])
{
    static const char *const roles[] = {"coordinator", "shard", "worker"};
    if (p->role == ROLE_COORDINATOR) {
        snprintf(out, 32, "coordinator#%u", p->uid);
    } else {
        snprintf(out, 32, "%s-%u#%u", roles[p->role], p->index, p->uid);
    }
    return out;
}

static void s_print(const sim *s)
{
    const sim_config *c = &s->config;
    printf("\nseed %" PRIu64 ": %s\n", s->seed, s->violation);
    printf("at event %" PRIu64 ", %.3f ms of virtual time; planted bug: %s\n", s->event_no, (double)s->now / MS, mutation_get(mutate_now)->word);
    printf("%u shard%s, %u worker%s, durability %s, %" PRIu64 " steps in %" PRIu64 " units, lease %u ms, staleness_max %" PRIu64 ", inflight %u, "
           "snapshot every %u bytes or %u ms, faults until %.0f ms\n",
           c->shards, c->shards == 1 ? "" : "s", c->workers, c->workers == 1 ? "" : "s", c->durability, c->steps, s->plan.units_total, c->lease_ms,
           c->staleness_max, c->inflight_max, c->snapshot_bytes, c->snapshot_ms, (double)c->faults_until / MS);
    printf("the last events (number, time, what):\n");
    for (uint64_t i = s->n_trace > SIM_TRACE ? s->n_trace - SIM_TRACE : 0; i < s->n_trace; i++) {
        printf("%s\n", s->trace[i % SIM_TRACE]);
    }
    printf("replay: tools/sim --seed %" PRIu64 " --trace%s%s\n", s->seed, mutate_now != MUTATE_NOTHING ? " --mutate " : "",
           mutate_now != MUTATE_NOTHING ? mutation_get(mutate_now)->word : "");
    fflush(stdout);
}

// ---- the queue ----

static bool s_before(const event *a, const event *b)
{
    return a->at != b->at ? a->at < b->at : a->no < b->no;
}

void sim_push_event(sim *s, event *e)
{
    e->no = s->next_no++;
    if (s->n_queue == s->cap_queue) {
        s->cap_queue = s->cap_queue == 0 ? 256 : 2 * s->cap_queue;
        s->queue = realloc(s->queue, s->cap_queue * sizeof(*s->queue));
        EBB_ASSERT(s->queue != NULL);
    }
    size_t i = s->n_queue++;
    while (i > 0 && s_before(e, &s->queue[(i - 1) / 2])) {
        s->queue[i] = s->queue[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->queue[i] = *e;
}

static event s_pop_event(sim *s)
{
    event first = s->queue[0], last = s->queue[--s->n_queue];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_queue) {
            break;
        }
        child += child + 1 < s->n_queue && s_before(&s->queue[child + 1], &s->queue[child]);
        if (!s_before(&s->queue[child], &last)) {
            break;
        }
        s->queue[i] = s->queue[child];
        i = child;
    }
    s->queue[i] = last;
    return first;
}

void sim_timer(sim *s, uint32_t uid, uint64_t in_us, uint32_t timer, uint64_t arg)
{
    event e = {.at = s->now + in_us, .kind = EVENT_TIMER, .to = uid, .timer = timer, .arg = arg};
    sim_push_event(s, &e);
}

// ---- processes ----

static const role_ops *s_ops(const proc *p)
{
    return p->role == ROLE_COORDINATOR ? &sim_coordinator_ops : p->role == ROLE_SHARD ? &sim_shard_ops : &sim_worker_ops;
}

proc *sim_who(const sim *s, uint32_t to)
{
    proc *p = NULL;
    if (to == SERVICE_COORDINATOR) {
        p = s->coordinator;
    } else if (to >= SERVICE_SHARD) {
        p = s->shard[to - SERVICE_SHARD];
    } else if (to < s->n_procs) {
        p = s->procs[to];
    }
    return p != NULL && p->up && p->dying == DEATH_NONE ? p : NULL;
}

void sim_die(proc *p, death how)
{
    if (p->dying == DEATH_NONE) {
        p->dying = how;
        p->world->someone_dies = true;
    }
}

static proc **s_place(sim *s, role r, uint32_t index)
{
    return r == ROLE_COORDINATOR ? &s->coordinator : r == ROLE_SHARD ? &s->shard[index] : &s->seat[index];
}

static void s_reap(proc *p)
{
    static const char *const how[] = {"", "ends by itself", "is killed", "loses power"};
    sim *s = p->world;
    char name[32];
    sim_note(s, "%s %s", sim_name(p, name), how[p->dying]);
    s->deaths += p->dying != DEATH_EXIT;
    s_ops(p)->end(p);
    p->up = false;
    p->self = NULL;
    sim_disk *disk = p->role == ROLE_COORDINATOR ? s->coordinator_disk : p->role == ROLE_SHARD ? s->shard_disk[p->index] : NULL;
    if (disk != NULL && p->dying == DEATH_POWER) {
        size_t logged = sim_disk_logged(disk), keep = dice_below(&s->dice, 3) == 0 ? 0 : dice_below(&s->dice, logged + 1);
        sim_note(s, "  its disk keeps %zu of %zu unsynced batches", keep, logged);
        sim_disk_power_loss(disk, keep);
    } else if (disk != NULL) {
        sim_disk_killed(disk);
    }
    if (p->role == ROLE_SHARD) {
        s->truth[p->index].power |= p->dying == DEATH_POWER;
    }
    proc **place = s_place(s, p->role, p->index);
    if (*place != p) {
        return; // a zombie: its successor sits there already
    }
    *place = NULL;
    uint64_t again = s->healed ? 50 * MS : dice_from(&s->dice, 5, 1500) * MS;
    if (p->role == ROLE_COORDINATOR) {
        sim_timer(s, WORLD, again, WORLD_START_COORDINATOR, 0);
    } else if (p->role == ROLE_SHARD) {
        sim_timer(s, WORLD, again, WORLD_START_SHARD, p->index);
    } else if (!p->succeeded) {
        sim_timer(s, WORLD, again + SEAT_AGAIN_MS * MS, WORLD_START_SEAT, p->index);
    }
}

static void s_start(sim *s, role r, uint32_t index)
{
    proc **place = s_place(s, r, index);
    if (*place != NULL) {
        return;
    }
    proc *p = calloc(1, sizeof(*p));
    s->procs = realloc(s->procs, (s->n_procs + 1) * sizeof(*s->procs));
    EBB_ASSERT(p != NULL && s->procs != NULL);
    *p = (proc){.world = s, .role = r, .uid = s->n_procs, .index = index, .incarnation = dice_next(&s->dice) | 1, .up = true};
    s->procs[s->n_procs++] = p;
    *place = p;
    char name[32];
    sim_note(s, "%s starts", sim_name(p, name));
    sim_faults_arm(s, p);
    bool ok = r == ROLE_COORDINATOR ? sim_coordinator_start(p) : r == ROLE_SHARD ? sim_shard_start(p) : sim_worker_start(p);
    if (!ok || p->dying != DEATH_NONE) {
        sim_die(p, DEATH_EXIT);
        s_reap(p);
    }
}

// ---- events ----

static void s_world_timer(sim *s, const event *e)
{
    switch (e->timer) {
    case WORLD_START_COORDINATOR:
        s_start(s, ROLE_COORDINATOR, 0);
        break;
    case WORLD_START_SHARD:
        s_start(s, ROLE_SHARD, (uint32_t)e->arg);
        break;
    case WORLD_START_SEAT:
        s_start(s, ROLE_WORKER, (uint32_t)e->arg);
        break;
    case WORLD_GIVE_UP:
        sim_violate(s, "the job has not ended %.0f s after the last fault", (double)PATIENCE_US / 1e6);
        break;
    default:
        sim_faults_timer(s, e->timer, e->arg);
        break;
    }
}

static void s_message(sim *s, proc *p, event *e)
{
    ebb_msg msg;
    const char *why = "";
    ebb_status st = ebb_msg_unpack(&e->frames, true, &msg, &why);
    for (size_t i = 0; i < e->frames.n; i++) {
        s_hash(s, e->frames.frame[i]->data, e->frames.frame[i]->len);
    }
    char name[32], text[SIM_TEXT];
    if (st == EBB_OK) {
        sim_describe(&msg, text);
        sim_note(s, "%s <- #%u %s", sim_name(p, name), e->from, text);
    } else {
        sim_note(s, "%s <- #%u damaged: %s", sim_name(p, name), e->from, why);
    }
    s->messages++;
    s_ops(p)->message(p, e->from, st == EBB_OK ? &msg : NULL, st, &e->frames);
    if (st == EBB_OK) {
        ebb_msg_fini(&msg);
    }
}

static void s_event(sim *s, event *e)
{
    s->event_no++;
    s->now = e->at;
    s_hash(s, &(uint64_t[4]){e->at, e->kind, e->to, e->timer}, 4 * sizeof(uint64_t));
    proc *p = NULL;
    if (e->kind == EVENT_TIMER && e->to == WORLD) {
        s_world_timer(s, e);
    } else if ((p = sim_who(s, e->to)) == NULL) {
        return; // nobody there
    } else if (p->paused_until > s->now) {
        e->at = p->paused_until; // stopped: it will find all that in its queues
        sim_push_event(s, e);
        ebb_frames_init(&e->frames);
        return;
    } else if (e->kind == EVENT_MESSAGE) {
        s_message(s, p, e);
    } else {
        s_ops(p)->timer(p, e->timer, e->arg);
    }
    if (p != NULL && p->dying == DEATH_NONE) {
        if (p->role == ROLE_SHARD) {
            check_shard(p);
        } else if (p->role == ROLE_COORDINATOR) {
            check_coordinator(p);
        }
    }
    for (uint32_t i = 1; s->someone_dies && i < s->n_procs && !s->violated; i++) { // a fault may have hit somebody else
        if (s->procs[i]->up && s->procs[i]->dying != DEATH_NONE) {
            s_reap(s->procs[i]);
        }
    }
    s->someone_dies = false;
}

// ---- a run ----

static void s_configure_network(sim *s)
{
    sim_config *c = &s->config;
    dice *d = &s->dice;
    uint64_t mood = dice_below(d, 10); // 0: nothing is ever lost; 9: hardly anything arrives
    c->drop_ppm = mood == 0 ? 0 : (uint32_t)dice_below(d, mood == 9 ? 200000 : 30000);
    c->dup_ppm = mood == 0 ? 0 : (uint32_t)dice_below(d, mood == 9 ? 200000 : 60000);
    c->damage_ppm = (uint32_t)dice_below(d, 3) == 0 ? (uint32_t)dice_below(d, 20000) : 0;
    c->late_ppm = (uint32_t)dice_below(d, 30000);
    c->late_ms = (uint32_t)dice_from(d, 50, 4000);
    c->delay_us = (uint32_t)dice_from(d, 100, 4000);
    c->faults_until = dice_from(d, 1000, 15000) * MS;
    c->fault_every_us = dice_from(d, 40, 1500) * MS;
    c->recovery_ppm = (uint32_t)dice_below(d, 300000);
}

static uint32_t s_bad_steps(const sim *s)
{
    uint32_t n = 0;
    ebb_unit unit;
    for (uint64_t u = 0; u < s->plan.units_total && ebb_plan_unit(&s->plan, u, &unit) == EBB_OK; u++) {
        for (uint64_t seq = 1; seq <= unit.steps; seq++) {
            n += sim_step_is_bad(s, u, seq) != 0;
        }
    }
    return n;
}

static void s_configure_job(sim *s)
{
    static const char *const levels[] = {"journal", "fsync", "snapshot"};
    sim_config *c = &s->config;
    dice *d = &s->dice;
    uint64_t level = dice_below(d, 3);
    c->shards = (uint32_t)dice_from(d, 1, SIM_SHARDS);
    c->workers = (uint32_t)dice_from(d, 1, SIM_SEATS);
    c->durability = levels[level];
    c->survives_kill = level != 2;
    c->survives_power = level == 1;
    c->unit_steps = (uint32_t)dice_from(d, 1, SIM_UNIT_STEPS);
    c->steps = dice_from(d, 8, 36) * c->unit_steps - dice_below(d, c->unit_steps);
    c->train_samples = (uint32_t)dice_from(d, 1 + c->steps / 4, c->steps);
    c->chunk_elems = (uint32_t)dice_from(d, 1, 6);
    uint64_t chunks = dice_from(d, c->shards, 3 * c->shards);
    c->numel = chunks * c->chunk_elems;
    c->lease_ms = (uint32_t)dice_from(d, 200, 2500);
    c->staleness_max = dice_below(d, 3) == 0 ? dice_from(d, 1, 6) : 0;
    c->inflight_max = (uint32_t)dice_from(d, 1, 4);
    c->snapshot_bytes = (uint32_t)dice_from(d, 500, 20000);
    c->snapshot_ms = (uint32_t)dice_from(d, 100, 4000);
    c->sync_ms = (uint32_t)dice_from(d, 5, 300);
    c->bad_ppm = dice_below(d, 4) == 0 ? (uint32_t)dice_below(d, 60000) : 0;
    ebb_status st = ebb_plan_init(&s->plan, c->train_samples, 1, c->unit_steps, c->steps, s->seed);
    EBB_ASSERT(st == EBB_OK);
    if (s->plan.units_total > SIM_UNITS) {
        c->train_samples = (uint32_t)c->steps;
        st = ebb_plan_init(&s->plan, c->train_samples, 1, c->unit_steps, c->steps, s->seed);
        EBB_ASSERT(st == EBB_OK && s->plan.units_total <= SIM_UNITS);
    }
    while (s_bad_steps(s) > BAD_STEPS_MAX) {
        c->bad_ppm /= 2;
    }
}

static void s_make_spec(sim *s)
{
    const sim_config *c = &s->config;
    Ebb__JobSpec spec = EBB__JOB_SPEC__INIT;
    Ebb__ModelSpec model = EBB__MODEL_SPEC__INIT;
    Ebb__DataSpec data = EBB__DATA_SPEC__INIT;
    Ebb__OptimizerSpec optimizer = EBB__OPTIMIZER_SPEC__INIT;
    Ebb__OptimizerGroup group[2] = {EBB__OPTIMIZER_GROUP__INIT, EBB__OPTIMIZER_GROUP__INIT}, *groups[2] = {&group[0], &group[1]};
    Ebb__ConsistencySpec consistency = EBB__CONSISTENCY_SPEC__INIT;
    group[0].lr_scale = group[1].lr_scale = 1;
    model.family = "counter";
    model.numel = c->numel;
    data.format = "none";
    data.train_samples = c->train_samples;
    optimizer.name = "sgd";
    optimizer.lr = 1; // gradients are -1: each step adds 1
    optimizer.schedule = "constant";
    optimizer.groups = groups;
    optimizer.n_groups = 2;
    consistency.mode = "async";
    consistency.staleness_weight = "off";
    consistency.staleness_max = c->staleness_max;
    consistency.inflight_max = c->inflight_max;
    spec.name = "counter";
    spec.model = &model;
    spec.data = &data;
    spec.optimizer = &optimizer;
    spec.consistency = &consistency;
    spec.durability = (char *)c->durability;
    spec.shards = c->shards;
    spec.workers_min = spec.workers_max = c->workers;
    spec.batch = 1;
    spec.steps = c->steps;
    spec.unit_steps = c->unit_steps;
    spec.seed = s->seed;
    spec.lease_ms = c->lease_ms;
    spec.chunk_elems = c->chunk_elems;
    spec.snapshot_bytes = c->snapshot_bytes;
    spec.snapshot_ms = c->snapshot_ms;
    ProtobufCMessage *copy = NULL;
    ebb_status st = ebb_pb_dup(&spec.base, &copy);
    EBB_ASSERT(st == EBB_OK);
    s->spec = (Ebb__JobSpec *)copy;
}

static void s_init(sim *s, uint64_t seed, bool tracing)
{
    memset(s, 0, sizeof(*s));
    s->seed = seed;
    s->dice.state = ebb_rng_at(seed, 0x53494Du, 0);
    s->hash = seed;
    s->tracing = tracing;
    s->now = MS;
    s->trace = calloc(SIM_TRACE, SIM_TEXT);
    s->procs = calloc(1, sizeof(*s->procs));
    EBB_ASSERT(s->trace != NULL && s->procs != NULL);
    s->n_procs = 1;
    s_configure_network(s);
    s_configure_job(s);
    s_make_spec(s);
    ebb_status st = ebb_manifest_new(&s->manifest, s->config.chunk_elems);
    EBB_ASSERT(st == EBB_OK);
    st = ebb_manifest_add(s->manifest, "count", 1, &s->config.numel, EBB_INIT_ZEROS, 0, 1);
    EBB_ASSERT(st == EBB_OK);
    st = ebb_manifest_seal(s->manifest);
    EBB_ASSERT(st == EBB_OK);
    s->coordinator_disk = sim_disk_new(false);
    for (uint32_t i = 0; i < s->config.shards; i++) {
        s->shard_disk[i] = sim_disk_new(true);
    }
}

static void s_fini(sim *s)
{
    for (uint32_t i = 1; i < s->n_procs; i++) {
        if (s->procs[i]->up) {
            s->procs[i]->dying = DEATH_KILL;
            s_ops(s->procs[i])->end(s->procs[i]);
        }
        free(s->procs[i]);
    }
    free(s->procs);
    for (size_t i = 0; i < s->n_queue; i++) {
        ebb_frames_fini(&s->queue[i].frames);
    }
    free(s->queue);
    sim_disk_unmount_all();
    sim_disk_free(&s->coordinator_disk);
    for (uint32_t i = 0; i < SIM_SHARDS; i++) {
        sim_disk_free(&s->shard_disk[i]);
    }
    ebb_manifest_free(&s->manifest);
    ebb_pb_free(&s->spec->base);
    free(s->leases);
    free(s->trace);
}

sim_result sim_run(uint64_t seed, bool tracing, bool quiet, char *why)
{
    static sim world;
    sim *s = &world;
    s_init(s, seed, tracing);
    sim_now = s;
    sim_timer(s, WORLD, dice_below(&s->dice, 200) * MS, WORLD_START_COORDINATOR, 0);
    for (uint32_t i = 0; i < s->config.shards; i++) {
        sim_timer(s, WORLD, dice_below(&s->dice, 200) * MS, WORLD_START_SHARD, i);
    }
    for (uint32_t i = 0; i < s->config.workers; i++) {
        sim_timer(s, WORLD, dice_below(&s->dice, 300) * MS, WORLD_START_SEAT, i);
    }
    sim_faults_begin(s);
    sim_timer(s, WORLD, s->config.faults_until + PATIENCE_US, WORLD_GIVE_UP, 0);
    while (!s->violated && !s->finished) {
        event e = s_pop_event(s);
        s_event(s, &e);
        ebb_frames_fini(&e.frames);
        if (s->event_no >= EVENTS_MAX) {
            sim_violate(s, "the job has not ended after %d events", EVENTS_MAX);
        }
        s->finished = !s->violated && s->succeeded && check_finished(s);
    }
    if (!s->violated) {
        check_after_power_loss(s);
    }
    if (s->violated && !quiet) {
        s_print(s);
    }
    if (why != NULL) {
        snprintf(why, sizeof(s->violation), "%s", s->violation);
    }
    sim_result r = {s->violated, s->hash, s->event_no, s->now / MS, s->messages, s->deaths, s->recoveries, s->config.steps};
    s_fini(s);
    return r;
}
