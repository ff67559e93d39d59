// The autoscaler's place in the coordinator: gathers what it looks at, keeps and tells what it decides, and picks who leaves.
#include "coordinator/handlers.h"

#include <stdio.h>
#include <string.h>

#define LOOK_MS 1000
#define MEASURED_MS 4000 // a worker's window counts from here on

void ebb_scale_policy_from(ebb_scale_policy *p, const Ebb__JobSpec *spec)
{
    ebb_scale_policy_init(p, spec->workers_min, spec->workers_max);
    const Ebb__AutoscaleSpec *a = spec->autoscale;
    if (a != NULL) {
        p->up_at = a->up_at;
        p->down_at = a->down_at;
        p->up_step = a->up_step;
        p->down_step = a->down_step;
        p->up_window_ms = a->up_window_ms;
        p->down_window_ms = a->down_window_ms;
    }
}

static bool s_works(const ebb_member *w)
{
    return w->state == EBB_WORKER_JOINED || w->state == EBB_WORKER_RUNNING;
}

static void s_look(ebb_coordinator *c, uint64_t now_ms, ebb_scale_input *in)
{
    *in = (ebb_scale_input){.now_ms = now_ms, .budget = true, .shards_known = c->members.n_shards > 0};
    for (size_t i = 0; i < c->members.n; i++) {
        const ebb_member *w = &c->members.members[i];
        if (!s_works(w)) {
            continue;
        }
        double utilization, wait, data, samples, tokens;
        ebb_membership_rates(w, &utilization, &wait, &data, &samples, &tokens);
        in->live++;
        in->samples_per_s += samples;
        if (ebb_membership_window_ms(w) >= MEASURED_MS) {
            in->measured++;
            in->utilization += utilization;
        }
    }
    in->utilization = in->measured > 0 ? in->utilization / in->measured : 0;
    for (uint32_t i = 0; i < c->members.n_shards; i++) {
        const ebb_shard_member *s = &c->members.shards[i];
        in->shards_known = in->shards_known && s->known;
        in->shard_busy = s->busy > in->shard_busy ? s->busy : in->shard_busy;
    }
    // The final evaluation is work too: somebody must be there for it.
    in->work = ebb_ledger_has_free(&c->ledger) || (ebb_ledger_all_applied(&c->ledger) && !c->final_done) || c->eval.active;
}

// Those that joined last leave first: they have done least, and their machines are the youngest.
static void s_drain(ebb_coordinator *c, uint32_t n)
{
    for (size_t i = c->members.n; i-- > 0 && n > 0;) {
        ebb_member *w = &c->members.members[i];
        if (s_works(w)) {
            w->state = EBB_WORKER_DRAINING;
            n--;
            ebb_coordinator_event(c, "worker-draining", w->name, "not wanted any more: it finishes its step, returns its unit and leaves");
        }
    }
}

void ebb_coordinator_scale(ebb_coordinator *c, uint64_t now_ms)
{
    if ((c->state != EBB_JOB_STARTING && c->state != EBB_JOB_RUNNING) || c->draining || (c->scaled_ms != 0 && now_ms - c->scaled_ms < LOOK_MS)) {
        return;
    }
    c->scaled_ms = now_ms;
    s_look(c, now_ms, &c->scale_input);
    ebb_scale_decision d = ebb_autoscaler_step(&c->scaler, &c->scale_input);
    c->scale_rule = d.rule;
    if (d.wanted != d.before) {
        if (!ebb_coordinator_kept(c, ebb_statestore_put_wanted(c->store, d.wanted))) {
            return;
        }
        const ebb_scale_input *in = &c->scale_input;
        ebb_coordinator_event(c, d.wanted > d.before ? "scaled-up" : "scaled-down", c->spec->name,
                              "%u to %u workers: %s (live %u, utilization %.2f over %u, busiest shard %.2f, %.0f samples/s; min %u, max %u)",
                              d.before, d.wanted, ebb_scale_rule_text(d.rule), in->live, in->utilization, in->measured, in->shard_busy,
                              in->samples_per_s, c->scaler.policy.min, c->scaler.policy.max);
    }
    // Also what an earlier decision, before a restart of ours, has not brought about yet.
    bool down = d.rule == EBB_SCALE_DOWN || d.rule == EBB_SCALE_MAX || d.rule == EBB_SCALE_BUDGET ||
                (c->scaler.in_flight && d.rule == EBB_SCALE_HOLD_IN_FLIGHT);
    if (down && c->scale_input.live > c->scaler.wanted) {
        s_drain(c, c->scale_input.live - c->scaler.wanted);
    }
}

void ebb_coordinator_scale_status(const ebb_coordinator *c, Ebb__ScaleStatus *s)
{
    s->wanted = c->scaler.wanted;
    s->live = c->scale_input.live;
    s->min = c->scaler.policy.min;
    s->max = c->scaler.policy.max;
    s->utilization = c->scale_input.utilization;
    s->measured = c->scale_input.measured;
    s->shard_busy = c->scale_input.shard_busy;
    s->rule = (char *)ebb_scale_rule_name(c->scale_rule);
    s->text = (char *)ebb_scale_rule_text(c->scale_rule);
}
