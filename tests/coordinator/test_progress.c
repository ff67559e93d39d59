// The loss curve stays within its bound, in order, and keeps the curve's shape.
#include "coordinator/progress.h"
#include "tests/support/check.h"

#include <math.h>

static void test_progress_thins_the_curve(void **state)
{
    (void)state;
    static ebb_progress p;
    ebb_progress_init(&p);
    for (uint64_t step = 1; step <= 100000; step++) {
        double loss = 5 * exp(-(double)step / 20000);
        ebb_progress_loss(&p, step, loss, 1, (double)step / 100);
        assert_true(p.n_points <= EBB_PROGRESS_POINTS);
    }
    assert_true(p.n_points >= EBB_PROGRESS_POINTS / 4);
    assert_true(p.points[p.n_points - 1].step > 98000);
    for (size_t i = 0; i < p.n_points; i++) {
        assert_true(i == 0 || p.points[i].step > p.points[i - 1].step);
        assert_float_equal(p.points[i].loss, 5 * exp(-(double)p.points[i].step / 20000), 0.2);
    }
    assert_float_equal(p.smoothed, 5 * exp(-5), 0.01);
}

static void test_progress_ignores_what_is_no_loss(void **state)
{
    (void)state;
    static ebb_progress p;
    ebb_progress_init(&p);
    ebb_progress_loss(&p, 1, NAN, 1, 0);
    ebb_progress_loss(&p, 1, 3, 0, 0);
    assert_int_equal(p.n_points, 0);
    assert_false(p.has_loss);
    ebb_progress_loss(&p, 10, 6, 2, 1);
    assert_int_equal(p.n_points, 1);
    assert_float_equal(p.points[0].loss, 3, 1e-12);
    ebb_progress_loss(&p, 4, 8, 2, 2); // a shard rolled back: steps done fell
    assert_int_equal(p.n_points, 1);
}

static void test_progress_bounds_evaluations(void **state)
{
    (void)state;
    static ebb_progress p;
    ebb_progress_init(&p);
    for (uint64_t i = 1; i <= 1000; i++) {
        ebb_eval_point e = {.id = i, .step = i, .loss = 1};
        ebb_progress_eval(&p, &e);
        assert_true(p.n_evals <= EBB_PROGRESS_EVALS && p.evals[p.n_evals - 1].id == i);
    }
    for (size_t i = 1; i < p.n_evals; i++) {
        assert_true(p.evals[i].id > p.evals[i - 1].id);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress_thins_the_curve),
        cmocka_unit_test(test_progress_ignores_what_is_no_loss),
        cmocka_unit_test(test_progress_bounds_evaluations),
    };
    return cmocka_run_group_tests_name("coordinator.progress", tests, NULL, NULL);
}
