// Batches against what the file says directly; every sample once per pass; the prefetcher; files that are not what they should be.
#include "tests/support/check.h"

#include <string.h>
#include <unistd.h>

#include "tests/client/fake.h"
#include "worker/dataset.h"
#include "worker/prefetch.h"

#define CONTEXT 7u
#define COLUMNS 3u

static char s_path[64];

static void s_write(const void *data, size_t len)
{
    snprintf(s_path, sizeof(s_path), "/tmp/ebb-test-data-%d", (int)getpid());
    FILE *f = fopen(s_path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    fclose(f);
}

// A job over the file in s_path as a coordinator would make it.
static void s_job(fake_spec *s, ebb_model_config *config, const char *format, double val_fraction, uint64_t passes)
{
    ebb_data_counts counts;
    char why[512] = "";
    memset(config, 0, sizeof(*config));
    ebb__job_spec__init(&s->job);
    ebb__data_spec__init(&s->data);
    s->job.data = &s->data;
    s->data.path = s_path;
    s->data.format = (char *)format;
    s->data.val_fraction = val_fraction;
    strcpy(config->family, strcmp(format, "bytes") == 0 ? "gpt" : "mlp");
    config->context = CONTEXT;
    config->vocab = 256;
    config->n_sizes = 2;
    config->sizes[0] = COLUMNS;
    config->sizes[1] = 10;
    ebb_status st = ebb_data_probe(s_path, format, CONTEXT, val_fraction, &counts, why);
    if (st != EBB_OK) {
        fail_msg("%s", why);
    }
    s->data.bytes = counts.bytes;
    s->data.train_samples = counts.train_samples;
    s->data.val_samples = counts.val_samples;
    s->data.columns = counts.columns;
    s->data.scale = 0.25;
    s->job.batch = 4;
    s->job.unit_steps = 3;
    s->job.seed = 11;
    s->job.steps = passes * ((counts.train_samples - 1) / s->job.batch + 1);
}

static uint8_t *s_random_bytes(size_t n, uint64_t seed)
{
    uint8_t *b = malloc(n);
    for (size_t i = 0; i < n; i++) {
        b[i] = (uint8_t)ebb_rng_at(seed, 1, i);
    }
    return b;
}

static void test_dataset_bytes_batches_are_the_file(void **state)
{
    (void)state;
    size_t n = 1000;
    uint8_t *bytes = s_random_bytes(n, ebb_test_seed());
    s_write(bytes, n);
    fake_spec s;
    ebb_model_config config;
    s_job(&s, &config, "bytes", 0.2, 2);
    ebb_dataset *d = NULL;
    char why[512] = "";
    CHECK_OK(ebb_dataset_open(&s.job, &config, &d, why));
    const ebb_plan *plan = ebb_dataset_plan(d);
    ebb_batch_buf buf;
    CHECK_OK(ebb_batch_buf_init(d, s.job.batch, &buf));
    uint8_t *seen = calloc(2 * plan->train_samples, 1);
    for (uint64_t stream = 0; stream < plan->units_total; stream++) {
        ebb_unit unit;
        CHECK_OK(ebb_plan_unit(plan, stream, &unit));
        for (uint64_t seq = 1; seq <= unit.steps; seq++) {
            ebb_step step;
            CHECK_OK(ebb_plan_step(plan, stream, seq, &step));
            CHECK_OK(ebb_dataset_train(d, &step, &buf, why));
            assert_int_equal(buf.batch.samples, step.samples);
            for (uint32_t k = 0; k < step.samples; k++) {
                uint64_t sample = ebb_plan_sample(plan, step.pass, step.first + k);
                uint64_t at = sample * CONTEXT + ebb_plan_shift(plan, step.pass, CONTEXT);
                assert_true(at + CONTEXT + 1 <= n - n / 5); // never from the held-out part
                for (uint32_t i = 0; i < CONTEXT; i++) {
                    assert_int_equal(buf.batch.tokens[k * CONTEXT + i], bytes[at + i]);
                    assert_int_equal(buf.batch.targets[k * CONTEXT + i], bytes[at + i + 1]);
                }
                seen[step.pass * plan->train_samples + sample]++;
            }
        }
    }
    for (uint64_t i = 0; i < 2 * plan->train_samples; i++) {
        assert_int_equal(seen[i], 1); // every sample once per pass
    }
    uint64_t held = ebb_dataset_held_out(d);
    assert_int_equal(held, s.data.val_samples);
    for (uint64_t i = 0; i < held; i += 4) {
        uint32_t count = held - i < 4 ? (uint32_t)(held - i) : 4;
        CHECK_OK(ebb_dataset_eval(d, i, count, &buf, why));
        for (uint32_t k = 0; k < count; k++) {
            uint64_t at = n - n / 5 + (i + k) * CONTEXT;
            assert_int_equal(buf.batch.tokens[k * CONTEXT], bytes[at]);
            assert_int_equal(buf.batch.targets[k * CONTEXT + CONTEXT - 1], bytes[at + CONTEXT]);
        }
    }
    free(seen);
    free(bytes);
    ebb_batch_buf_fini(&buf);
    ebb_dataset_free(&d);
}

static void test_dataset_csv_batches_are_the_file(void **state)
{
    (void)state;
    char text[8192] = "";
    float x[50][COLUMNS];
    int y[50];
    uint64_t seed = ebb_test_seed();
    for (int r = 0; r < 50; r++) {
        char line[128];
        double v[COLUMNS];
        for (uint32_t f = 0; f < COLUMNS; f++) {
            v[f] = f == 0 ? (double)(ebb_rng_at(seed, 2, (uint64_t)r) % 256) : (ebb_rng_uniform_at(seed, f + 3, (uint64_t)r) - 0.5) * 100;
        }
        y[r] = (int)(ebb_rng_at(seed, 9, (uint64_t)r) % 10);
        snprintf(line, sizeof(line), "%g,%.3f,%e,%d%s%s", v[0], v[1], v[2], y[r], r % 7 == 0 ? "\r" : "", r == 49 ? "" : r % 5 == 0 ? "\n\n" : "\n");
        strcat(text, line);
        char *p = line;
        for (uint32_t f = 0; f < COLUMNS; f++) {
            x[r][f] = (float)(strtod(p, &p) * 0.25);
            p++;
        }
    }
    s_write(text, strlen(text));
    fake_spec s;
    ebb_model_config config;
    s_job(&s, &config, "csv", 0.3, 1);
    assert_int_equal(s.data.columns, COLUMNS);
    s.job.eval_samples_max = 5;
    ebb_dataset *d = NULL;
    char why[512] = "";
    CHECK_OK(ebb_dataset_open(&s.job, &config, &d, why));
    const ebb_plan *plan = ebb_dataset_plan(d);
    ebb_batch_buf buf;
    CHECK_OK(ebb_batch_buf_init(d, 5, &buf));
    int seen[50] = {0};
    for (uint64_t stream = 0; stream < plan->units_total; stream++) {
        ebb_unit unit;
        CHECK_OK(ebb_plan_unit(plan, stream, &unit));
        for (uint64_t seq = 1; seq <= unit.steps; seq++) {
            ebb_step step;
            CHECK_OK(ebb_plan_step(plan, stream, seq, &step));
            CHECK_OK(ebb_dataset_train(d, &step, &buf, why));
            for (uint32_t k = 0; k < step.samples; k++) {
                uint64_t row = ebb_data_csv_row(50, ebb_plan_sample(plan, step.pass, step.first + k));
                assert_memory_equal(buf.batch.x + k * COLUMNS, x[row], sizeof(x[row]));
                assert_int_equal(buf.batch.y[k], y[row]);
                seen[row]++;
            }
        }
    }
    assert_int_equal(ebb_dataset_held_out(d), 5);
    CHECK_OK(ebb_dataset_eval(d, 0, 5, &buf, why));
    for (uint64_t k = 0; k < 5; k++) { // spread over the 15 held-out rows
        uint64_t row = ebb_data_csv_row(50, 35 + k * 15 / 5);
        assert_memory_equal(buf.batch.x + k * COLUMNS, x[row], sizeof(x[row]));
        assert_int_equal(seen[row], 0);
        seen[row] = -1;
    }
    int trained = 0;
    for (int r = 0; r < 50; r++) {
        assert_true(seen[r] <= 1);
        trained += seen[r] == 1;
    }
    assert_int_equal(trained, 35);
    ebb_batch_buf_fini(&buf);
    ebb_dataset_free(&d);
}

static void test_dataset_refuses_other_files(void **state)
{
    (void)state;
    uint8_t *bytes = s_random_bytes(500, 1);
    s_write(bytes, 500);
    fake_spec s;
    ebb_model_config config;
    s_job(&s, &config, "bytes", 0.1, 1);
    ebb_dataset *d = NULL;
    char why[512] = "";
    s_write(bytes, 499);
    CHECK_ERR(ebb_dataset_open(&s.job, &config, &d, why), EBB_NOENT);
    assert_non_null(strstr(why, "499 bytes"));
    unlink(s_path);
    CHECK_ERR(ebb_dataset_open(&s.job, &config, &d, why), EBB_NOENT);
    assert_non_null(strstr(why, s_path));
    s_write(bytes, 500);
    config.vocab = 10; // bytes beyond the vocabulary
    CHECK_OK(ebb_dataset_open(&s.job, &config, &d, why));
    ebb_batch_buf buf;
    ebb_step step;
    CHECK_OK(ebb_batch_buf_init(d, 4, &buf));
    CHECK_OK(ebb_plan_step(ebb_dataset_plan(d), 0, 1, &step));
    CHECK_ERR(ebb_dataset_train(d, &step, &buf, why), EBB_BADVALUE);
    assert_non_null(strstr(why, "vocabulary is 10"));
    assert_int_equal(truncate(s_path, 10), 0); // shrinks under us
    CHECK_ERR(ebb_dataset_train(d, &step, &buf, why), EBB_NOENT);
    ebb_batch_buf_fini(&buf);
    ebb_dataset_free(&d);
    free(bytes);

    const char *csv = "1,2,3,4\n5,6,7,8\n";
    s_write(csv, strlen(csv));
    s_job(&s, &config, "csv", 0.0, 1);
    config.sizes[0] = 4;
    CHECK_ERR(ebb_dataset_open(&s.job, &config, &d, why), EBB_CONFIG); // the model takes other rows
    config.sizes[0] = COLUMNS;
    const char *fewer = "1,2,3,4\n\n\n\n\n6,8\n";
    s_write(fewer, strlen(csv));
    s.data.train_samples = 3;
    CHECK_ERR(ebb_dataset_open(&s.job, &config, &d, why), EBB_NOENT);
    s.data.train_samples = 2;
    CHECK_OK(ebb_dataset_open(&s.job, &config, &d, why));
    CHECK_OK(ebb_batch_buf_init(d, 4, &buf));
    CHECK_OK(ebb_plan_step(ebb_dataset_plan(d), 0, 1, &step));
    CHECK_ERR(ebb_dataset_train(d, &step, &buf, why), EBB_BADVALUE);
    ebb_batch_buf_fini(&buf);
    ebb_dataset_free(&d);
}

static void test_dataset_prefetch_is_the_same_in_order(void **state)
{
    (void)state;
    uint8_t *bytes = s_random_bytes(3000, 2);
    s_write(bytes, 3000);
    fake_spec s;
    ebb_model_config config;
    s_job(&s, &config, "bytes", 0.1, 1);
    s.job.unit_steps = 20;
    ebb_dataset *d = NULL;
    char why[512] = "";
    CHECK_OK(ebb_dataset_open(&s.job, &config, &d, why));
    ebb_batch_buf buf;
    CHECK_OK(ebb_batch_buf_init(d, 4, &buf));
    ebb_prefetch *p = NULL;
    CHECK_OK(ebb_prefetch_start(d, &p));
    const ebb_batch *b = NULL;
    CHECK_ERR(ebb_prefetch_next(p, &b), EBB_AGAIN);
    for (int round = 0; round < 200; round++) {
        uint64_t stream = (uint64_t)round % 4, first = 1 + (uint64_t)round % 13, take = (uint64_t)round % 9;
        ebb_prefetch_begin(p, stream, first, 20);
        for (uint64_t seq = first; seq < first + take; seq++) { // stops in the middle, goes somewhere else
            ebb_step step;
            CHECK_OK(ebb_plan_step(ebb_dataset_plan(d), stream, seq, &step));
            CHECK_OK(ebb_dataset_train(d, &step, &buf, why));
            CHECK_OK(ebb_prefetch_next(p, &b));
            assert_int_equal(b->samples, step.samples);
            assert_memory_equal(b->tokens, buf.batch.tokens, step.samples * CONTEXT * sizeof(int32_t));
            assert_memory_equal(b->targets, buf.batch.targets, step.samples * CONTEXT * sizeof(int32_t));
        }
    }
    ebb_prefetch_begin(p, 0, 20, 21); // beyond the unit
    CHECK_OK(ebb_prefetch_next(p, &b));
    CHECK_ERR(ebb_prefetch_next(p, &b), EBB_INVAL);
    assert_non_null(strstr(ebb_prefetch_why(p), "no step 21"));
    CHECK_ERR(ebb_prefetch_next(p, &b), EBB_AGAIN);
    ebb_prefetch_stop(&p);
    ebb_batch_buf_fini(&buf);
    ebb_dataset_free(&d);
    free(bytes);
}

static int s_cleanup(void **state)
{
    (void)state;
    unlink(s_path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dataset_bytes_batches_are_the_file),
        cmocka_unit_test(test_dataset_csv_batches_are_the_file),
        cmocka_unit_test(test_dataset_refuses_other_files),
        cmocka_unit_test(test_dataset_prefetch_is_the_same_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, s_cleanup);
}
