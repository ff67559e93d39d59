// The shared vector math of kernels/simd.h against libm in double.
#include "tests/support/check.h"

#include <math.h>

#include "kernels/simd.h"

// The whole clamped range at random, and all of one octave's fractions, where the polynomial works.
static void test_simd_expf_is_accurate(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    double worst = 0;
    for (uint64_t i = 0; i < 400000; i++) {
        double u = ebb_rng_uniform_at(seed, 1, i);
        float x = (float)(i % 2 == 0 ? -87.0 + 175.0 * u : u - 0.5);
        double want = exp((double)x), error = fabs(ebb_expf(x) - want) / want;
        worst = error > worst ? error : worst;
    }
    printf("worst relative error %.3g\n", worst);
    assert_true(worst < 1.3e-7); // the header: "about 1e-7"
}

static void test_simd_expf_at_the_ends(void **state)
{
    (void)state;
    assert_true(ebb_expf(0.0f) == 1.0f);
    assert_true(ebb_expf(-0.0f) == 1.0f);
    assert_true(ebb_expf(-87.5f) == 0.0f);
    assert_true(ebb_expf(-1e30f) == 0.0f);
    assert_true(ebb_expf(-INFINITY) == 0.0f);
    assert_true(isfinite(ebb_expf(1e30f)) && ebb_expf(1e30f) > 1e38f);
    assert_true(isfinite(ebb_expf(INFINITY)));
}

static void test_simd_expf_keeps_nan(void **state)
{
    (void)state;
    assert_true(isnan(ebb_expf(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simd_expf_is_accurate),
        cmocka_unit_test(test_simd_expf_at_the_ends),
        cmocka_unit_test(test_simd_expf_keeps_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
