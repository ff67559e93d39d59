#include "tests/support/check.h"

#include <string.h>

#include "core/crc32c.h"

// Bit by bit, straight from the polynomial: the independent form.
static uint32_t s_naive(const uint8_t *p, size_t len)
{
    uint32_t crc = 0xffffffffu;
    while (len-- > 0) {
        crc ^= *p++;
        for (int k = 0; k < 8; k++) {
            crc = (crc & 1) ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
        }
    }
    return ~crc;
}

static void test_crc32c_check_value(void **state)
{
    (void)state;
    // RFC 3720, appendix B.4, and the usual check value of "123456789".
    uint8_t zeros[32] = {0}, ones[32];
    memset(ones, 0xff, sizeof(ones));
    assert_int_equal(ebb_crc32c(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(ebb_crc32c(0, zeros, 32), 0x8A9136AAu);
    assert_int_equal(ebb_crc32c(0, ones, 32), 0x62A8AB43u);
}

static void test_crc32c_equals_naive_and_continues(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    enum { SIZE = 60000 };
    uint8_t *data = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++) {
        data[i] = (uint8_t)ebb_rng_at(seed, 1, i);
    }
    for (uint64_t k = 0; k < 60; k++) {
        size_t len = k < 20 ? k : ebb_rng_at(seed, 2, k) % SIZE;
        size_t from = ebb_rng_at(seed, 3, k) % (SIZE - len + 1);
        size_t cut = len ? ebb_rng_at(seed, 4, k) % len : 0;
        uint32_t want = s_naive(data + from, len);
        assert_int_equal(ebb_crc32c(0, data + from, len), want);
        assert_int_equal(ebb_crc32c(ebb_crc32c(0, data + from, cut), data + from + cut, len - cut), want);
    }
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c_check_value),
        cmocka_unit_test(test_crc32c_equals_naive_and_continues),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
