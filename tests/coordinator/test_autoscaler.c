// The scaling rule: each rule by hand, then thousands of seeded fleets on a virtual clock with launches that take time, fail or are preempted.
#include "tests/support/check.h"

#include <string.h>

#include "coordinator/autoscaler.h"
#include "core/rng.h"

static ebb_scale_input s_input(uint64_t now_ms, uint32_t live, double utilization)
{
    return (ebb_scale_input){.now_ms = now_ms,
                             .live = live,
                             .measured = live,
                             .utilization = utilization,
                             .shards_known = true,
                             .shard_busy = 0.2,
                             .samples_per_s = 100.0 * live,
                             .work = true,
                             .budget = true};
}

static void s_expect(ebb_autoscaler *a, const ebb_scale_input *in, ebb_scale_rule rule, uint32_t wanted)
{
    ebb_scale_decision d = ebb_autoscaler_step(a, in);
    if (d.rule != rule || d.wanted != wanted) {
        fail_msg("%s with %u wanted; expected %s with %u", ebb_scale_rule_name(d.rule), d.wanted, ebb_scale_rule_name(rule), wanted);
    }
    assert_int_equal(a->wanted, wanted);
}

static ebb_autoscaler s_make(uint32_t min, uint32_t max, uint32_t wanted)
{
    ebb_scale_policy p;
    ebb_autoscaler a;
    ebb_scale_policy_init(&p, min, max);
    ebb_autoscaler_init(&a, &p, 0);
    a.wanted = wanted; // as if it had been reached
    return a;
}

static void test_autoscaler_grows_and_shrinks(void **state)
{
    (void)state;
    ebb_autoscaler a = s_make(2, 9, 0);
    ebb_scale_input in = s_input(0, 0, 0);
    s_expect(&a, &in, EBB_SCALE_MIN, 2); // from nothing
    s_expect(&a, &in, EBB_SCALE_HOLD_IN_FLIGHT, 2);
    in = s_input(1000, 2, 0.9);
    in.measured = 1;
    s_expect(&a, &in, EBB_SCALE_HOLD_METRICS, 2);
    in.measured = 2;
    s_expect(&a, &in, EBB_SCALE_UP, 6);
    in = s_input(2000, 4, 0.9); // two have come
    s_expect(&a, &in, EBB_SCALE_HOLD_IN_FLIGHT, 6);
    in = s_input(3000, 6, 0.9);
    s_expect(&a, &in, EBB_SCALE_UP, 9); // not beyond the maximum
    in = s_input(4000, 9, 0.9);
    s_expect(&a, &in, EBB_SCALE_HOLD_AT_MAX, 9);
    in = s_input(5000, 9, 0.6);
    s_expect(&a, &in, EBB_SCALE_HOLD_BAND, 9);
    in = s_input(6000, 9, 0.3);
    s_expect(&a, &in, EBB_SCALE_HOLD_WINDOW, 9);
    in.now_ms = 305999;
    s_expect(&a, &in, EBB_SCALE_HOLD_WINDOW, 9);
    in.now_ms = 306000;
    s_expect(&a, &in, EBB_SCALE_DOWN, 7);
    in = s_input(307000, 7, 0.35);
    s_expect(&a, &in, EBB_SCALE_HOLD_WINDOW, 7); // anew
    in.now_ms = 500000;
    in.utilization = 0.5; // once in between: the window begins again
    s_expect(&a, &in, EBB_SCALE_HOLD_BAND, 7);
    in.now_ms = 500001;
    in.utilization = 0.35;
    s_expect(&a, &in, EBB_SCALE_HOLD_WINDOW, 7);
    in.now_ms = 800001;
    s_expect(&a, &in, EBB_SCALE_DOWN, 5);
}

static void test_autoscaler_guards(void **state)
{
    (void)state;
    ebb_autoscaler a = s_make(1, 20, 4);
    ebb_scale_input in = s_input(1000, 4, 0.95);
    in.shards_known = false;
    s_expect(&a, &in, EBB_SCALE_HOLD_METRICS, 4);
    in.shards_known = true;
    in.shard_busy = 0.85;
    s_expect(&a, &in, EBB_SCALE_HOLD_SHARDS, 4);
    in.shard_busy = 0.5;
    in.budget = false;
    s_expect(&a, &in, EBB_SCALE_HOLD_BUDGET, 4);
    in.budget = true;
    s_expect(&a, &in, EBB_SCALE_UP, 8);
    in = s_input(2000, 8, 0.95);
    in.samples_per_s = 450; // four more brought 50 instead of 400
    s_expect(&a, &in, EBB_SCALE_HOLD_GAIN, 8);
    in = s_input(2100, 7, 0.95); // one is gone: up to there it paid
    in.samples_per_s = 440;
    s_expect(&a, &in, EBB_SCALE_UP, 12);
    // What does not come in time isn't waited for.
    in = s_input(2200, 8, 0.95);
    s_expect(&a, &in, EBB_SCALE_HOLD_IN_FLIGHT, 12);
    in.now_ms = 2100 + 60001;
    s_expect(&a, &in, EBB_SCALE_FAILED, 8);
    // Two at 0.38: one alone would be at 0.76, which is allowed; three at 0.39 of which two would go: only one may.
    a = s_make(1, 20, 2);
    in = s_input(0, 2, 0.38);
    s_expect(&a, &in, EBB_SCALE_HOLD_WINDOW, 2);
    in.now_ms = 300000;
    s_expect(&a, &in, EBB_SCALE_DOWN, 1);
    in = s_input(300001, 1, 0.1);
    s_expect(&a, &in, EBB_SCALE_HOLD_WINDOW, 1);
    in.now_ms = 900000;
    s_expect(&a, &in, EBB_SCALE_HOLD_AT_MIN, 1);
    a = s_make(1, 20, 3);
    in = s_input(0, 3, 0.39);
    s_expect(&a, &in, EBB_SCALE_HOLD_WINDOW, 3);
    in.now_ms = 300000;
    s_expect(&a, &in, EBB_SCALE_DOWN, 2);
}

static void test_autoscaler_to_zero_and_back(void **state)
{
    (void)state;
    ebb_autoscaler a = s_make(0, 8, 3);
    ebb_scale_input in = s_input(1000, 3, 0.5);
    in.work = false;
    s_expect(&a, &in, EBB_SCALE_NO_WORK, 3); // they finish what they hold
    in.live = in.measured = 0;
    s_expect(&a, &in, EBB_SCALE_NO_WORK, 0);
    in.work = true;
    s_expect(&a, &in, EBB_SCALE_MIN, 1); // somebody must do it
    in = s_input(2000, 1, 0.5);
    in.broke = true;
    in.budget = false;
    s_expect(&a, &in, EBB_SCALE_BUDGET, 0);
    s_expect(&a, &in, EBB_SCALE_BUDGET, 0);
    in.broke = false;
    in.live = in.measured = 0;
    s_expect(&a, &in, EBB_SCALE_HOLD_BUDGET, 0);
    in.budget = true;
    s_expect(&a, &in, EBB_SCALE_MIN, 1);
}

// After a restart the old number stands, and those who are there get time to show.
static void test_autoscaler_restored(void **state)
{
    (void)state;
    ebb_scale_policy p;
    ebb_autoscaler a;
    ebb_scale_policy_init(&p, 1, 8);
    ebb_autoscaler_init(&a, &p, 5);
    ebb_scale_input in = s_input(1000000, 0, 0);
    s_expect(&a, &in, EBB_SCALE_HOLD_IN_FLIGHT, 5);
    in = s_input(1001000, 3, 0.9);
    s_expect(&a, &in, EBB_SCALE_HOLD_IN_FLIGHT, 5);
    in = s_input(1002000, 5, 0.9);
    s_expect(&a, &in, EBB_SCALE_UP, 8);
}

// A fleet: each worker gives 1 sample per tick unless the shards, which bear `capacity`, are full; then all wait alike.
typedef struct fleet {
    uint32_t live, leaving;
    uint32_t coming;
    uint64_t come_ms, measured_ms;
} fleet;

static void s_play(uint64_t seed)
{
    uint32_t min = (uint32_t)(ebb_rng_at(seed, 1, 0) % 4), max = min + 1 + (uint32_t)(ebb_rng_at(seed, 1, 1) % 60);
    double capacity = 1 + (double)(ebb_rng_at(seed, 1, 2) % 60), noise = (double)(ebb_rng_at(seed, 1, 3) % 100) / 1000;
    uint64_t fail = ebb_rng_at(seed, 1, 4) % 30, preempt = ebb_rng_at(seed, 1, 5) % 3;
    ebb_autoscaler a = s_make(min, max, 0);
    fleet f = {0};
    uint64_t down_ms = 0, changes = 0, late_changes = 0;
    bool was_low = false;
    uint64_t low_since = 0;
    for (uint64_t t = 0; t < 3000; t++) {
        uint64_t now = 5000 * t;
        if (f.coming > 0 && now >= f.come_ms) {
            if (ebb_rng_at(seed, 2, t) % 100 >= fail) {
                f.live += f.coming;
                f.measured_ms = now + 10000;
            }
            f.coming = 0;
        }
        bool quiet = t > 2000; // at the end nothing happens from outside any more
        if (!quiet && f.live > 0 && ebb_rng_at(seed, 3, t) % 1000 < preempt) {
            f.live--;
        }
        double u = f.live == 0 ? 0 : f.live <= capacity ? 0.95 : 0.95 * capacity / f.live;
        u += quiet ? 0 : noise * ((double)(ebb_rng_at(seed, 4, t) % 2001) / 1000 - 1);
        ebb_scale_input in = s_input(now, f.live, u);
        in.measured = now >= f.measured_ms ? f.live : f.live - 1;
        in.samples_per_s = 100 * (f.live < capacity ? f.live : capacity);
        in.shard_busy = f.live / capacity < 1 ? 0.7 * f.live / capacity : 0.75;
        bool low = in.measured == f.live && f.live > 0 && u < a.policy.down_at;
        if (!low) {
            was_low = false;
        } else if (!was_low) {
            was_low = true;
            low_since = now;
        }
        bool was_flying = a.in_flight;
        uint64_t acted = a.acted_ms;
        ebb_scale_decision d = ebb_autoscaler_step(&a, &in);
        assert_true(a.wanted >= (min > 0 ? min : 1) && a.wanted <= max);
        assert_int_equal(d.wanted, a.wanted);
        if (d.wanted == d.before) {
            assert_true(d.rule >= EBB_SCALE_HOLD_IN_FLIGHT || d.rule == EBB_SCALE_FAILED);
            if (d.rule == EBB_SCALE_FAILED) {
                f.coming = 0;
            }
        } else {
            changes++;
            late_changes += quiet && t > 2200;
            bool by_metrics = d.rule == EBB_SCALE_UP || d.rule == EBB_SCALE_DOWN;
            assert_true(!by_metrics || (in.measured == in.live && in.live > 0));
            assert_true(!was_flying || in.live == d.before || now - acted > a.policy.action_ms || d.rule == EBB_SCALE_MIN);
            if (d.rule == EBB_SCALE_UP) {
                assert_true(d.wanted > d.before && d.wanted - d.before <= a.policy.up_step && u > a.policy.up_at &&
                            in.shard_busy <= a.policy.shard_busy_max);
            }
            if (d.rule == EBB_SCALE_DOWN) { // no flapping: low for a whole window, and not soon after another removal
                assert_true(d.wanted < d.before && d.before - d.wanted <= a.policy.down_step);
                assert_true(was_low && now - low_since >= a.policy.down_window_ms);
                assert_true(down_ms == 0 || now - down_ms >= a.policy.down_window_ms);
                down_ms = now;
            }
            f.coming = 0;
        }
        // The world follows: launches and replacements take 10 to 90 s, removals are quick.
        if (f.live > a.wanted) {
            f.live = a.wanted;
        } else if (f.live < a.wanted && f.coming == 0) {
            f.coming = a.wanted - f.live;
            f.come_ms = now + 10000 + (quiet ? 0 : ebb_rng_at(seed, 5, t) % 80000);
            fail = quiet ? 0 : fail;
        }
    }
    assert_true(late_changes <= 12); // it settles: growth to the bound or to what pays, shrinking by two per window
    assert_true(changes < 600);
}

static void test_autoscaler_plays_fleets(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    for (uint64_t i = 0; i < 10000; i++) {
        s_play(ebb_rng_at(seed, 0, i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_autoscaler_grows_and_shrinks), cmocka_unit_test(test_autoscaler_guards),
        cmocka_unit_test(test_autoscaler_to_zero_and_back),  cmocka_unit_test(test_autoscaler_restored),
        cmocka_unit_test(test_autoscaler_plays_fleets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
