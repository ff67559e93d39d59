#include "tests/support/check.h"

#include <math.h>

// Known answers of Philox4x32-10 from the Random123 distribution's kat_vectors.
static void test_rng_philox_known_answers(void **state)
{
    (void)state;
    uint32_t out[4];
    ebb_rng_block(0, 0, 0, out);
    assert_int_equal(out[0], 0x6627e8d5u);
    assert_int_equal(out[1], 0xe169c58du);
    assert_int_equal(out[2], 0xbc57ac4cu);
    assert_int_equal(out[3], 0x9b00dbd8u);
    ebb_rng_block(UINT64_MAX, UINT64_MAX, UINT64_MAX, out);
    assert_int_equal(out[0], 0x408f276du);
    assert_int_equal(out[1], 0x41c83b0eu);
    assert_int_equal(out[2], 0xa20bc7c6u);
    assert_int_equal(out[3], 0x6d5451fdu);
}

static void test_rng_permutation_is_one(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    for (uint64_t k = 0; k < 40; k++) {
        uint64_t n = k < 20 ? k + 1 : 1 + ebb_rng_at(seed, 9, k) % 5000;
        uint8_t *seen = calloc(n, 1);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = ebb_rng_permute(seed + k, n, i);
            assert_true(p < n);
            assert_int_equal(seen[p], 0);
            seen[p] = 1;
        }
        free(seen);
    }
}

static void test_rng_normal_has_moments(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    double sum = 0, square = 0, fourth = 0;
    enum { N = 200000 };
    for (uint64_t i = 0; i < N; i++) {
        double v = ebb_rng_normal_at(seed, 7, i);
        sum += v;
        square += v * v;
        fourth += v * v * v * v;
    }
    assert_true(fabs(sum / N) < 0.015); // 6 sigma of the mean is 0.0134
    assert_true(fabs(square / N - 1) < 0.02);
    assert_true(fabs(fourth / N - 3) < 0.15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rng_philox_known_answers),
        cmocka_unit_test(test_rng_permutation_is_one),
        cmocka_unit_test(test_rng_normal_has_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
