// How many workers there should be: a pure rule of measured utilization, shard headroom and what the last growth brought. No clock, no I/O.
//
// Utilization of a worker = compute time / alive time over its window (membership.h); of the job = mean over the workers that have one. High: workers
// compute all the time, so more of them do more. Low: they wait for shards or data, so fewer would do the same.
//
// Invariants: min <= wanted <= max while there is work and budget, else 0. At most one action is in flight: after wanted changed, nothing changes it again
// until the fleet is that large or the action's deadline has passed. Nothing is decided on missing metrics, except what needs none: the bounds, the end
// of the work, the budget.
#ifndef EBB_COORDINATOR_AUTOSCALER_H
#define EBB_COORDINATOR_AUTOSCALER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ebb_scale_policy {
    uint32_t min, max;
    double up_at, down_at;                 // utilization, 0..1; down_at < up_at
    uint32_t up_step, down_step;           // workers added or removed at once
    uint64_t up_window_ms, down_window_ms; // the condition must have held this long
    uint64_t action_ms;                    // an action that takes longer has failed
    double shard_busy_max;                 // no growth beyond this busy fraction of the busiest shard
    double gain_min; // no growth unless the last one raised samples/s per added worker by at least this share of what a worker did before
} ebb_scale_policy;

// Defaults: 0.80 / +4 at once, 0.40 / -2 after 300 s.
void ebb_scale_policy_init(ebb_scale_policy *p, uint32_t min, uint32_t max);

typedef struct ebb_scale_input {
    uint64_t now_ms;
    uint32_t live;      // workers that work, drained ones not among them
    uint32_t measured;  // of these, how many have a utilization over a full window
    double utilization; // mean over the measured
    bool shards_known;
    double shard_busy;    // of the busiest
    double samples_per_s; // of the job
    bool work;            // units are left that no worker holds or will finish with what it holds
    bool budget;          // another worker may be paid for
    bool broke;           // not even those that run may
} ebb_scale_input;

// What was decided, and by which rule. Holds name the guard that stopped an action.
#define EBB_SCALE_RULES(X)                                                      \
    X(NONE, "nothing decided yet")                                              \
    X(MIN, "fewer workers wanted than the minimum")                             \
    X(MAX, "more workers wanted than the maximum")                              \
    X(UP, "utilization above the upper threshold")                              \
    X(DOWN, "utilization below the lower threshold")                            \
    X(NO_WORK, "no work is left for them")                                      \
    X(BUDGET, "the budget is spent")                                            \
    X(FAILED, "the last action did not come about in time")                     \
    X(HOLD_IN_FLIGHT, "the last action is still under way")                     \
    X(HOLD_METRICS, "not every worker has been measured over a full window")    \
    X(HOLD_BAND, "utilization between the thresholds")                          \
    X(HOLD_WINDOW, "the condition has not held for long enough")                \
    X(HOLD_AT_MAX, "utilization is high, but the maximum is reached")           \
    X(HOLD_AT_MIN, "utilization is low, but the minimum is reached")            \
    X(HOLD_SHARDS, "utilization is high, but the shards have no room")          \
    X(HOLD_GAIN, "utilization is high, but the last growth brought too little") \
    X(HOLD_BUDGET, "utilization is high, but the budget allows no more")        \
    X(HOLD_PROJECTED, "utilization is low, but fewer workers would be above the upper threshold")

typedef enum ebb_scale_rule {
#define X(name, text) EBB_SCALE_##name,
    EBB_SCALE_RULES(X)
#undef X
} ebb_scale_rule;

const char *ebb_scale_rule_name(ebb_scale_rule rule); // "HOLD_GAIN"
const char *ebb_scale_rule_text(ebb_scale_rule rule);

typedef struct ebb_scale_decision {
    ebb_scale_rule rule;
    uint32_t before, wanted; // equal: nothing changes
} ebb_scale_decision;

typedef struct ebb_autoscaler {
    ebb_scale_policy policy;
    uint32_t wanted;
    bool in_flight, restored;
    uint64_t acted_ms;
    bool high, low; // of the last measurement, and since when
    uint64_t since_ms;
    // growth under judgement: what one worker did before it, and how many there were
    bool judging;
    uint32_t grown_from;
    double per_worker_before;
    bool no_gain; // the last growth was judged and found useless, at no_gain_at workers
    uint32_t no_gain_at;
} ebb_autoscaler;

// wanted: as persisted before a restart; 0 at the beginning.
void ebb_autoscaler_init(ebb_autoscaler *a, const ebb_scale_policy *policy, uint32_t wanted);
// One look at the job. The same inputs in the same order give the same decisions. A decision that changes `wanted` must be persisted before it is acted on.
ebb_scale_decision ebb_autoscaler_step(ebb_autoscaler *a, const ebb_scale_input *in);

#endif
