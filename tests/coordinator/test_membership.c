// Seats, incarnations and rates.
#include "coordinator/membership.h"
#include "tests/support/check.h"

static Ebb__HeartbeatRequest s_beat(uint64_t n)
{
    Ebb__HeartbeatRequest b = EBB__HEARTBEAT_REQUEST__INIT;
    b.beat = n;
    b.alive_ns = n * 1000000000;
    b.compute_ns = n * 600000000;
    b.wait_ns = n * 300000000;
    b.data_ns = n * 100000000;
    b.steps = n * 10;
    b.samples = n * 160;
    b.tokens = n * 10240;
    b.staleness_sum = (double)n * 20;
    b.staleness_count = n * 10;
    b.loss_sum = 6;
    b.loss_count = 3;
    return b;
}

static void test_membership_seats_incarnations(void **state)
{
    (void)state;
    ebb_membership m;
    bool fresh;
    CHECK_OK(ebb_membership_init(&m, 2));
    assert_null(ebb_membership_find(&m, "w"));
    assert_non_null(ebb_membership_join(&m, "w", 5, 100, &fresh));
    assert_true(fresh);
    assert_non_null(ebb_membership_join(&m, "w", 5, 200, &fresh)); // a repeated join
    assert_false(fresh);
    assert_int_equal(ebb_membership_find(&m, "w")->incarnations, 1);
    assert_int_equal(ebb_membership_find(&m, "w")->seen_ms, 200);
    assert_non_null(ebb_membership_join(&m, "w", 6, 300, &fresh));
    assert_true(fresh);
    assert_int_equal(ebb_membership_find(&m, "w")->incarnations, 2);
    assert_int_equal(m.n, 1);
    for (uint64_t i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof(name), "x%d", (int)i);
        assert_non_null(ebb_membership_join(&m, name, i + 1, 0, &fresh));
    }
    assert_int_equal(ebb_membership_live(&m), 101);
    ebb_membership_find(&m, "x7")->state = EBB_WORKER_LEFT;
    ebb_membership_find(&m, "x8")->state = EBB_WORKER_LOST;
    ebb_membership_find(&m, "x9")->state = EBB_WORKER_DRAINING;
    assert_int_equal(ebb_membership_live(&m), 99);
    ebb_membership_fini(&m);
}

static void test_membership_rates_over_a_window(void **state)
{
    (void)state;
    ebb_membership m;
    bool fresh;
    double busy, wait, data, samples, tokens;
    CHECK_OK(ebb_membership_init(&m, 1));
    ebb_member *w = ebb_membership_join(&m, "w", 1, 0, &fresh);
    Ebb__HeartbeatRequest b = s_beat(1);
    assert_true(ebb_membership_beat(w, &b, 1000));
    assert_false(ebb_membership_beat(w, &b, 1500)); // the same heartbeat again
    assert_int_equal(w->n_ring, 1);
    ebb_membership_rates(w, &busy, &wait, &data, &samples, &tokens);
    assert_true(busy == 0 && samples == 0); // one look is no rate
    for (uint64_t i = 2; i < 100; i++) {
        b = s_beat(i);
        assert_true(ebb_membership_beat(w, &b, i * 1000));
    }
    ebb_membership_rates(w, &busy, &wait, &data, &samples, &tokens);
    assert_float_equal(busy, 0.6, 1e-9);
    assert_float_equal(wait, 0.3, 1e-9);
    assert_float_equal(data, 0.1, 1e-9);
    assert_float_equal(samples, 160, 1e-6);
    assert_float_equal(tokens, 10240, 1e-6);
    assert_float_equal(w->staleness, 2, 1e-9);
    assert_float_equal(w->loss, 2, 1e-9);
    assert_int_equal(w->n_ring, EBB_SAMPLES);
    ebb_membership_join(&m, "w", 2, 200000, &fresh); // a successor begins at nothing
    ebb_membership_rates(w, &busy, &wait, &data, &samples, &tokens);
    assert_true(fresh && busy == 0 && samples == 0);
    ebb_membership_fini(&m);
}

// Spot workers have a new name each. When all seats were used, the longest gone gives up his; the living never do.
static void test_membership_gives_seats_away(void **state)
{
    (void)state;
    ebb_membership m;
    bool fresh;
    char name[32];
    CHECK_OK(ebb_membership_init(&m, 1));
    assert_non_null(ebb_membership_join(&m, "stays", 1, 1, &fresh));
    for (uint64_t i = 0; i < EBB_WORKERS_MAX + 500; i++) {
        snprintf(name, sizeof(name), "spot-%d", (int)i);
        ebb_member *w = ebb_membership_join(&m, name, 100 + i, 10 + i, &fresh);
        assert_non_null(w);
        assert_true(fresh && w->incarnations == 1);
        if (i % 100 != 7) {
            ebb_membership_end(w, EBB_WORKER_LOST);
        }
    }
    assert_int_equal(m.n, EBB_WORKERS_MAX);
    assert_int_equal(ebb_membership_find(&m, "stays")->incarnation, 1);
    assert_non_null(ebb_membership_find(&m, "spot-7"));
    assert_null(ebb_membership_find(&m, "spot-0"));
    for (size_t i = 0; i < m.n; i++) {
        m.members[i].state = EBB_WORKER_RUNNING;
    }
    assert_null(ebb_membership_join(&m, "one-more", 5, 99999, &fresh)); // all live
    ebb_membership_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_membership_gives_seats_away),
        cmocka_unit_test(test_membership_seats_incarnations),
        cmocka_unit_test(test_membership_rates_over_a_window),
    };
    return cmocka_run_group_tests_name("coordinator.membership", tests, NULL, NULL);
}
