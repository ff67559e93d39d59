#include "tests/support/check.h"

#include <string.h>

#include "ps/consistency.h"

static void test_consistency_judges_staleness(void **state)
{
    (void)state;
    char why[256] = "";
    ebb_consistency c;
    Ebb__ConsistencySpec spec = EBB__CONSISTENCY_SPEC__INIT;
    uint64_t tau = 0;
    float w = 0;
    spec.mode = (char *)"async";
    spec.staleness_weight = (char *)"inverse";
    spec.staleness_max = 3;
    CHECK_OK(ebb_consistency_init(&c, &spec, why));
    CHECK_OK(ebb_consistency_judge(&c, 10, 10, &tau, &w));
    assert_true(tau == 0 && w == 1.0f);
    CHECK_OK(ebb_consistency_judge(&c, 10, 7, &tau, &w));
    assert_true(tau == 3 && w == 0.25f);
    CHECK_ERR(ebb_consistency_judge(&c, 10, 6, &tau, &w), EBB_STALE);
    assert_int_equal(tau, 4);
    CHECK_ERR(ebb_consistency_judge(&c, 10, 11, &tau, &w), EBB_STALE); // a version that was rolled back
    spec.staleness_weight = (char *)"off";
    spec.staleness_max = 0;
    CHECK_OK(ebb_consistency_init(&c, &spec, why));
    CHECK_OK(ebb_consistency_judge(&c, 1000000, 0, &tau, &w));
    assert_true(w == 1.0f);
    spec.staleness_weight = (char *)"sometimes";
    CHECK_ERR(ebb_consistency_init(&c, &spec, why), EBB_CONFIG);
    assert_non_null(strstr(why, "sometimes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_consistency_judges_staleness)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
