#include "coordinator/autoscaler.h"

#include <string.h>

#include "core/assert.h"

const char *ebb_scale_rule_name(ebb_scale_rule rule)
{
    static const char *const names[] = {
#define X(name, text) #name,
        EBB_SCALE_RULES(X)
#undef X
    };
    return names[rule];
}

const char *ebb_scale_rule_text(ebb_scale_rule rule)
{
    static const char *const texts[] = {
#define X(name, text) text,
        EBB_SCALE_RULES(X)
#undef X
    };
    return texts[rule];
}

void ebb_scale_policy_init(ebb_scale_policy *p, uint32_t min, uint32_t max)
{
    *p = (ebb_scale_policy){.min = min,
                            .max = max,
                            .up_at = 0.80,
                            .down_at = 0.40,
                            .up_step = 4,
                            .down_step = 2,
                            .up_window_ms = 0,
                            .down_window_ms = 300000,
                            .action_ms = 60000,
                            .shard_busy_max = 0.80,
                            .gain_min = 0.30};
}

void ebb_autoscaler_init(ebb_autoscaler *a, const ebb_scale_policy *policy, uint32_t wanted)
{
    EBB_ASSERT(policy->min <= policy->max && policy->down_at < policy->up_at && policy->up_step > 0 && policy->down_step > 0);
    memset(a, 0, sizeof(*a));
    a->policy = *policy;
    a->wanted = wanted;
    a->restored = a->in_flight = wanted > 0; // who is there will show within an action's time
}

static ebb_scale_decision s_hold(const ebb_autoscaler *a, ebb_scale_rule rule)
{
    return (ebb_scale_decision){.rule = rule, .before = a->wanted, .wanted = a->wanted};
}

static ebb_scale_decision s_change(ebb_autoscaler *a, const ebb_scale_input *in, ebb_scale_rule rule, uint32_t wanted)
{
    ebb_scale_decision d = {.rule = rule, .before = a->wanted, .wanted = wanted};
    a->wanted = wanted;
    a->in_flight = wanted != in->live;
    a->acted_ms = in->now_ms;
    a->high = a->low = a->judging = false;
    return d;
}

// Has the growth under judgement brought what it should? Asked once everybody is measured.
static void s_judge(ebb_autoscaler *a, const ebb_scale_input *in)
{
    if (!a->judging) {
        return;
    }
    a->judging = false;
    if (in->live <= a->grown_from) {
        return; // the new ones are gone again: nothing to learn
    }
    double before = a->per_worker_before * a->grown_from, added = in->live - a->grown_from;
    a->no_gain = (in->samples_per_s - before) / added < a->policy.gain_min * a->per_worker_before;
    a->no_gain_at = in->live;
}

// While there is work, somebody does it, also where the minimum is 0.
static uint32_t s_least(const ebb_scale_policy *p)
{
    return p->min > 0 ? p->min : 1;
}

static ebb_scale_decision s_up(ebb_autoscaler *a, const ebb_scale_input *in)
{
    const ebb_scale_policy *p = &a->policy;
    if (a->wanted >= p->max) {
        return s_hold(a, EBB_SCALE_HOLD_AT_MAX);
    }
    if (!in->budget) {
        return s_hold(a, EBB_SCALE_HOLD_BUDGET);
    }
    if (!in->shards_known) {
        return s_hold(a, EBB_SCALE_HOLD_METRICS);
    }
    if (in->shard_busy > p->shard_busy_max) {
        return s_hold(a, EBB_SCALE_HOLD_SHARDS);
    }
    if (a->no_gain && in->live >= a->no_gain_at) {
        return s_hold(a, EBB_SCALE_HOLD_GAIN);
    }
    uint32_t room = p->max - a->wanted, step = p->up_step < room ? p->up_step : room;
    ebb_scale_decision d = s_change(a, in, EBB_SCALE_UP, a->wanted + step);
    if (in->live > 0) {
        a->judging = true;
        a->grown_from = in->live;
        a->per_worker_before = in->samples_per_s / in->live;
    }
    return d;
}

static ebb_scale_decision s_down(ebb_autoscaler *a, const ebb_scale_input *in)
{
    const ebb_scale_policy *p = &a->policy;
    uint32_t least = s_least(p);
    if (a->wanted <= least) {
        return s_hold(a, EBB_SCALE_HOLD_AT_MIN);
    }
    uint32_t room = a->wanted - least, step = p->down_step < room ? p->down_step : room;
    // The same work by those that stay. Fewer may go if all of `step` would be too many.
    while (step > 0 && (step >= in->live || in->utilization * in->live / (in->live - step) > p->up_at)) {
        step--;
    }
    if (step == 0) {
        return s_hold(a, EBB_SCALE_HOLD_PROJECTED);
    }
    a->no_gain = false; // another fleet: growth may pay again
    return s_change(a, in, EBB_SCALE_DOWN, a->wanted - step);
}

ebb_scale_decision ebb_autoscaler_step(ebb_autoscaler *a, const ebb_scale_input *in)
{
    const ebb_scale_policy *p = &a->policy;
    if (a->restored) {
        a->restored = false;
        a->acted_ms = in->now_ms;
    }
    // What needs no metrics and waits for nothing.
    if (in->broke && a->wanted > 0) {
        return s_change(a, in, EBB_SCALE_BUDGET, 0);
    }
    if (!in->work && a->wanted > 0 && in->live == 0) {
        return s_change(a, in, EBB_SCALE_NO_WORK, 0);
    }
    if (!in->work || in->broke) {
        return s_hold(a, in->broke ? EBB_SCALE_BUDGET : EBB_SCALE_NO_WORK); // those that live finish what they hold, and leave
    }
    uint32_t least = s_least(p);
    if (a->wanted < least) {
        return in->budget ? s_change(a, in, EBB_SCALE_MIN, least) : s_hold(a, EBB_SCALE_HOLD_BUDGET);
    }
    if (a->wanted > p->max) {
        return s_change(a, in, EBB_SCALE_MAX, p->max);
    }
    if (a->in_flight) {
        if (in->live == a->wanted) {
            a->in_flight = false;
        } else if (in->now_ms - a->acted_ms <= p->action_ms) {
            return s_hold(a, EBB_SCALE_HOLD_IN_FLIGHT);
        } else { // what did not come is not wanted any more; what did not go, neither
            uint32_t wanted = in->live < least ? least : in->live > p->max ? p->max : in->live;
            return s_change(a, in, EBB_SCALE_FAILED, wanted);
        }
    }
    if (in->live == 0 || in->measured < in->live) {
        a->high = a->low = false;
        return s_hold(a, EBB_SCALE_HOLD_METRICS);
    }
    s_judge(a, in);
    bool high = in->utilization > p->up_at, low = in->utilization < p->down_at;
    if (high != a->high || low != a->low) {
        a->high = high;
        a->low = low;
        a->since_ms = in->now_ms;
    }
    if (!high && !low) {
        return s_hold(a, EBB_SCALE_HOLD_BAND);
    }
    if (in->now_ms - a->since_ms < (high ? p->up_window_ms : p->down_window_ms)) {
        return s_hold(a, EBB_SCALE_HOLD_WINDOW);
    }
    return high ? s_up(a, in) : s_down(a, in);
}
