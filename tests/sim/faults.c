// What goes wrong. Until config.faults_until something happens every config.fault_every_us or so; then everything heals and the job must end by itself.
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator.h"
#include "tests/sim/sim.h"

// ---- disks ----

// Runs a waiting fault when its operation comes.
disk_fault sim_disk_hook(void *arg, disk_op op)
{
    proc *p = arg;
    armed *a = &p->armed;
    if (p->dying != DEATH_NONE) {
        return DISK_FAILS_BEFORE;
    }
    if (a->in == 0 || a->reads != (op == DISK_READ) || --a->in > 0) {
        return DISK_FINE;
    }
    char name[32];
    static const char *const ops[] = {"read", "write", "sync"};
    sim_note(p->world, "  %s %s %s a %s", sim_name(p, name), a->death != DEATH_NONE ? "dies" : "has an error of its disk",
             a->after ? "after" : "before", ops[op]);
    if (a->death != DEATH_NONE) {
        sim_die(p, a->death);
    } else {
        p->excused = true;
    }
    return a->after ? DISK_FAILS_AFTER : DISK_FAILS_BEFORE;
}

static void s_arm(sim *s, proc *p, bool start)
{
    dice *d = &s->dice;
    p->armed = (armed){.in = (uint32_t)dice_from(d, 1, start ? 60 : 12), .after = dice_below(d, 2) == 0, .reads = start && dice_below(d, 3) > 0};
    if (dice_below(d, 4) > 0) {
        p->armed.death = dice_below(d, 2) == 0 ? DEATH_KILL : DEATH_POWER;
    }
}

void sim_faults_arm(sim *s, proc *p)
{
    if (p->role != ROLE_WORKER && !s->healed && dice_ppm(&s->dice, s->config.recovery_ppm)) {
        s_arm(s, p, true);
    }
}

// ---- processes ----

static proc *s_any_server(sim *s)
{
    uint64_t i = dice_below(&s->dice, s->config.shards + 1);
    return i == s->config.shards ? s->coordinator : s->shard[i];
}

static proc *s_any_shard(sim *s)
{
    return s->shard[dice_below(&s->dice, s->config.shards)];
}

static proc *s_any_worker(sim *s)
{
    return s->seat[dice_below(&s->dice, s->config.workers)];
}

static void s_pause(sim *s, proc *p, uint64_t most_ms)
{
    uint64_t ms = dice_from(&s->dice, 20, most_ms);
    char name[32];
    sim_note(s, "%s is stopped for %llu ms", sim_name(p, name), (unsigned long long)ms);
    p->paused_until = s->now + ms * MS;
}

// The supervisor tells the coordinator which process died.
static void s_tell_gone(sim *s, const proc *p)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__WorkerGone gone = EBB__WORKER_GONE__INIT;
    char name[32];
    snprintf(name, sizeof(name), "worker-%u", p->index);
    env.request_id = dice_next(&s->dice);
    gone.worker = name;
    gone.pid = p->uid;
    gone.reason = "signal 9";
    env.body_case = EBB__ENVELOPE__BODY_WORKER_GONE;
    env.worker_gone = &gone;
    sim_send_env((proc *)p, SERVICE_COORDINATOR, &env, NULL, 0);
}

static void s_worker_fault(sim *s, proc *p)
{
    switch (dice_below(&s->dice, 5)) {
    case 0: // dies, and its supervisor says so
        s_tell_gone(s, p);
        sim_die(p, DEATH_KILL);
        break;
    case 1: // its machine is gone
        sim_die(p, DEATH_KILL);
        break;
    case 2: // only slept
        s_pause(s, p, 4000);
        break;
    case 3: // is told to end: it gives the rest of its unit back
        sim_worker_stop(p);
        break;
    default: // is taken for dead, replaced, and wakes up again
        s_pause(s, p, 6000);
        s->seat[p->index] = NULL;
        sim_timer(s, WORLD, dice_below(&s->dice, 500) * MS, WORLD_START_SEAT, p->index);
        break;
    }
}

// ---- the network ----

static void s_partition(sim *s)
{
    dice *d = &s->dice;
    uint32_t n = 1 + SIM_SHARDS + s->config.workers;
    uint32_t a = (uint32_t)dice_below(d, n), b = (uint32_t)dice_below(d, n);
    uint64_t until = s->now + dice_from(d, 50, 4000) * MS, shape = dice_below(d, 3);
    sim_note(s, "network: node %u %s until %.0f ms", a, shape == 0 ? "hears and reaches nobody" : "is cut off from another", (double)until / MS);
    for (uint32_t i = 0; i < SIM_NODES; i++) {
        if (shape == 0 || i == b) {
            s->blocked_until[a][i] = until;
            if (shape != 1) {
                s->blocked_until[i][a] = until;
            }
        }
    }
}

static void s_everything_loses_power(sim *s)
{
    for (uint32_t i = 1; i < s->n_procs; i++) {
        if (s->procs[i]->up && s->procs[i]->role != ROLE_WORKER) {
            sim_die(s->procs[i], DEATH_POWER);
        }
    }
}

static void s_fault(sim *s)
{
    dice *d = &s->dice;
    proc *p = NULL;
    char name[32];
    switch (dice_below(d, 14)) {
    case 0:
    case 1:
        if ((p = s_any_server(s)) != NULL) {
            sim_die(p, dice_below(d, 2) == 0 ? DEATH_KILL : DEATH_POWER);
        }
        break;
    case 2:
    case 3:
    case 4:
        if ((p = s_any_server(s)) != NULL) {
            s_arm(s, p, false);
        }
        break;
    case 5:
    case 6:
    case 7:
        if ((p = s_any_worker(s)) != NULL) {
            s_worker_fault(s, p);
        }
        break;
    case 8:
        if ((p = s_any_server(s)) != NULL) {
            s_pause(s, p, 3000);
        }
        break;
    case 9:
    case 10:
        s_partition(s);
        break;
    case 11:
        s->storm_until = s->now + dice_from(d, 50, 1500) * MS;
        sim_note(s, "network: storm until %.0f ms", (double)s->storm_until / MS);
        break;
    case 12:
        if ((p = s_any_shard(s)) != NULL && p->paused_until <= s->now) {
            sim_note(s, "%s is told to end", sim_name(p, name));
            sim_shard_close(p);
        }
        break;
    default:
        if (dice_below(d, 3) == 0) {
            sim_note(s, "power loss everywhere");
            s_everything_loses_power(s);
        }
        break;
    }
}

static void s_heal(sim *s)
{
    sim_note(s, "everything heals");
    s->healed = true;
    memset(s->blocked_until, 0, sizeof(s->blocked_until));
    s->storm_until = 0;
    for (uint32_t i = 1; i < s->n_procs; i++) {
        s->procs[i]->armed.in = 0;
    }
}

void sim_faults_begin(sim *s)
{
    sim_timer(s, WORLD, dice_below(&s->dice, 2 * s->config.fault_every_us), WORLD_FAULT, 0);
    sim_timer(s, WORLD, s->config.faults_until, WORLD_HEAL, 0);
}

void sim_faults_timer(sim *s, uint32_t timer, uint64_t arg)
{
    (void)arg;
    if (timer == WORLD_HEAL) {
        s_heal(s);
    } else if (!s->healed) {
        s_fault(s);
        sim_timer(s, WORLD, dice_below(&s->dice, 2 * s->config.fault_every_us), WORLD_FAULT, 0);
    }
}
