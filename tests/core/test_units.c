#include "tests/support/check.h"

#include <string.h>
#include <unistd.h>

#include "core/units.h"

// Every sample exactly once per pass, every global step exactly once, whatever the numbers.
static void test_units_cover_each_sample_once(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    for (uint64_t k = 0; k < 60; k++) {
        uint64_t samples = 1 + ebb_rng_at(seed, 1, k) % 400;
        uint32_t batch = 1 + (uint32_t)(ebb_rng_at(seed, 2, k) % 17), unit_steps = 1 + (uint32_t)(ebb_rng_at(seed, 3, k) % 9);
        uint64_t per_pass = (samples + batch - 1) / batch;
        uint64_t steps = 1 + ebb_rng_at(seed, 4, k) % (3 * per_pass);
        ebb_plan plan;
        CHECK_OK(ebb_plan_init(&plan, samples, batch, unit_steps, steps, seed));
        uint64_t global = 0;
        uint8_t *seen = calloc(samples, 1);
        for (uint64_t stream = 0; stream < plan.units_total; stream++) {
            ebb_unit unit;
            CHECK_OK(ebb_plan_unit(&plan, stream, &unit));
            assert_int_equal(unit.first_step, global);
            assert_true(unit.steps >= 1 && unit.steps <= unit_steps);
            for (uint64_t seq = 1; seq <= unit.steps; seq++) {
                ebb_step step;
                CHECK_OK(ebb_plan_step(&plan, stream, seq, &step));
                assert_int_equal(step.pass, global / per_pass);
                if (global % per_pass == 0) {
                    memset(seen, 0, samples);
                }
                for (uint32_t i = 0; i < step.samples; i++) {
                    uint64_t s = ebb_plan_sample(&plan, step.pass, step.first + i);
                    assert_true(s < samples);
                    assert_int_equal(seen[s], 0);
                    seen[s] = 1;
                }
                global++;
                if (global % per_pass == 0) {
                    assert_null(memchr(seen, 0, samples));
                }
            }
            ebb_step step;
            CHECK_ERR(ebb_plan_step(&plan, stream, unit.steps + 1, &step), EBB_NOENT);
            CHECK_ERR(ebb_plan_step(&plan, stream, 0, &step), EBB_NOENT);
        }
        assert_int_equal(global, steps);
        ebb_unit unit;
        CHECK_ERR(ebb_plan_unit(&plan, plan.units_total, &unit), EBB_NOENT);
        free(seen);
    }
}

static void s_write(const char *path, const char *text, size_t len)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(text, 1, len, f);
    fclose(f);
}

static void test_units_probe_names_what_is_wrong(void **state)
{
    (void)state;
    char path[] = "/tmp/ebb-units-XXXXXX", why[512];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    ebb_data_counts counts;
    CHECK_ERR(ebb_data_probe("/nonexistent/file", "bytes", 8, 0.1, &counts, why), EBB_NOENT);
    assert_non_null(strstr(why, "/nonexistent/file"));
    CHECK_ERR(ebb_data_probe(path, "bytes", 8, 0.1, &counts, why), EBB_CONFIG);
    assert_non_null(strstr(why, "empty"));
    s_write(path, "short text", 10);
    CHECK_ERR(ebb_data_probe(path, "bytes", 8, 0.1, &counts, why), EBB_CONFIG);
    assert_non_null(strstr(why, "too few"));
    s_write(path, "1,2,0\n3,4,1\n5,x,1\n", 18);
    CHECK_ERR(ebb_data_probe(path, "csv", 0, 0.1, &counts, why), EBB_CONFIG);
    assert_non_null(strstr(why, ":3: field 2"));
    s_write(path, "1,2,0\n3,4\n", 10);
    CHECK_ERR(ebb_data_probe(path, "csv", 0, 0.1, &counts, why), EBB_CONFIG);
    assert_non_null(strstr(why, ":2: 2 fields, expected 3"));
    s_write(path, "1,2,0\r\n3,4,1\n\n5,6,1\n7,8,0\n", 26);
    CHECK_OK(ebb_data_probe(path, "csv", 0, 0.25, &counts, why));
    assert_int_equal(counts.rows, 4);
    assert_int_equal(counts.columns, 2);
    assert_int_equal(counts.train_samples, 3);
    assert_int_equal(counts.val_samples, 1);
    CHECK_ERR(ebb_data_probe("/tmp", "bytes", 8, 0.1, &counts, why), EBB_CONFIG);
    unlink(path);
}

// The windows of the byte format stay inside the training part for every shift.
static void test_units_windows_stay_inside(void **state)
{
    (void)state;
    char path[] = "/tmp/ebb-units-XXXXXX", why[512], text[5000];
    int fd = mkstemp(path);
    close(fd);
    uint64_t seed = ebb_test_seed();
    memset(text, 'a', sizeof(text));
    for (uint64_t k = 0; k < 50; k++) {
        uint32_t context = 1 + (uint32_t)(ebb_rng_at(seed, 1, k) % 64);
        size_t len = 200 + ebb_rng_at(seed, 2, k) % 4800;
        s_write(path, text, len);
        ebb_data_counts counts;
        CHECK_OK(ebb_data_probe(path, "bytes", context, 0.1, &counts, why));
        assert_true((counts.train_samples - 1) * context + (context - 1) + context + 1 <= counts.train_bytes);
        assert_true(counts.val_samples == 0 || (counts.val_samples - 1) * context + context + 1 <= len - counts.train_bytes);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_cover_each_sample_once),
        cmocka_unit_test(test_units_probe_names_what_is_wrong),
        cmocka_unit_test(test_units_windows_stay_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
