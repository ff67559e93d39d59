// The optimizers' numbers are checked by the oracle (oracle.optimizer); here: in place and out of place agree to the bit, at any alignment; schedules;
// refusals; finiteness.
#include "tests/ps/fixture.h"

#include <math.h>

#include "ps/optimizer.h"

enum { N = 1003 };

static void test_optimizer_in_place_equals_out_of_place(void **state)
{
    (void)state;
    static const char *const names[] = {"sgd", "momentum", "adagrad", "adam", "adamw"};
    uint64_t seed = ebb_test_seed();
    char why[256];
    for (int k = 0; k < 6; k++) {
        fixture f;
        fixture_init(&f, names[k % 5], "journal");
        f.optimizer.nesterov = k == 5;
        if (k == 5) {
            f.optimizer.name = (char *)"momentum";
        }
        ebb_optimizer o;
        CHECK_OK(ebb_optimizer_init(&o, &f.optimizer, 100, why));
        float a[3][N], b[3][N], c[3][N];
        uint8_t raw[N * 4 + 4];
        memset(a, 0, sizeof(a));
        for (int i = 0; i < N; i++) {
            a[0][i] = (float)ebb_rng_normal_at(seed, 1, (uint64_t)i);
        }
        memcpy(b, a, sizeof(a));
        for (uint64_t v = 1; v <= 20; v++) {
            float g[N];
            for (int i = 0; i < N; i++) {
                g[i] = (float)ebb_rng_normal_at(seed, 1 + v, (uint64_t)i);
            }
            memcpy(raw + v % 4, g, sizeof(g));
            const float *in[3] = {a[0], a[1], a[2]}, *in_b[3] = {b[0], b[1], b[2]};
            float *out[3] = {a[0], a[1], a[2]}, *out_b[3] = {c[0], c[1], c[2]};
            ebb_optimizer_apply(&o, 0, v, 0.5f, N, g, in, out);
            ebb_optimizer_apply(&o, 0, v, 0.5f, N, (const ebb_unaligned_f32 *)(raw + v % 4), in_b, out_b);
            for (uint32_t s = 0; s <= o.slots; s++) {
                memcpy(b[s], c[s], sizeof(c[s]));
                assert_memory_equal(a[s], b[s], sizeof(a[s]));
            }
        }
        fixture_fini(&f);
    }
}

// Gradient descent with momentum on p^2/2, every gradient three versions old (four equal workers), as in docs/consistency.md. Returns |p| after 400 updates.
static double s_delayed(double lr, bool look_ahead)
{
    enum { DELAY = 3, UPDATES = 400 };
    fixture f;
    char why[256];
    fixture_init(&f, "momentum", "journal");
    f.optimizer.lr = lr;
    f.optimizer.schedule = (char *)"constant";
    f.optimizer.warmup_steps = 0;
    for (size_t i = 0; i < f.optimizer.n_groups; i++) {
        f.optimizer.groups[i]->weight_decay = 0;
        f.optimizer.groups[i]->lr_scale = 1;
    }
    ebb_optimizer o;
    CHECK_OK(ebb_optimizer_init(&o, &f.optimizer, UPDATES, why));
    float p = 1, b = 0, served[UPDATES + 1] = {1}; // served[v]: what a worker was sent at version v
    const float *in[2] = {&p, &b};
    float *out[2] = {&p, &b};
    for (uint64_t v = 1; v <= UPDATES; v++) {
        float g = served[v > DELAY ? v - 1 - DELAY : 0];
        ebb_optimizer_apply(&o, 0, v, 1, 1, &g, in, out);
        if (!look_ahead || !ebb_optimizer_look_ahead(&o, 0, v, DELAY, 1, 1, in, &served[v])) {
            served[v] = p;
        }
    }
    fixture_fini(&f);
    return fabs((double)p);
}

static void test_optimizer_look_ahead_steadies_stale_gradients(void **state)
{
    (void)state;
    assert_true(s_delayed(0.02, false) < 0.05);
    assert_true(s_delayed(0.05, false) > 20); // grows by 1.8 % per update
    assert_true(s_delayed(0.05, true) < 0.05);
    assert_true(s_delayed(0.02, true) < 0.05);
}

static void test_optimizer_schedules(void **state)
{
    (void)state;
    char why[256];
    fixture f;
    fixture_init(&f, "sgd", "journal");
    ebb_optimizer o;
    CHECK_OK(ebb_optimizer_init(&o, &f.optimizer, 105, why)); // cosine, 5 warm-up steps, floor 0.1
    assert_true(fabs(ebb_optimizer_schedule(&o, 0) - 0.2) < 1e-12);
    assert_true(fabs(ebb_optimizer_schedule(&o, 4) - 1.0) < 1e-12);
    assert_true(fabs(ebb_optimizer_schedule(&o, 5) - 1.0) < 1e-12);
    assert_true(fabs(ebb_optimizer_schedule(&o, 55) - 0.55) < 1e-12);
    assert_true(fabs(ebb_optimizer_schedule(&o, 105) - 0.1) < 1e-12);
    assert_true(fabs(ebb_optimizer_schedule(&o, 1000000) - 0.1) < 1e-12);
    f.optimizer.schedule = (char *)"linear";
    CHECK_OK(ebb_optimizer_init(&o, &f.optimizer, 105, why));
    assert_true(fabs(ebb_optimizer_schedule(&o, 55) - 0.55) < 1e-12);
    f.optimizer.schedule = (char *)"constant";
    CHECK_OK(ebb_optimizer_init(&o, &f.optimizer, 0, why));
    assert_true(ebb_optimizer_schedule(&o, 99) == 1.0);
    f.optimizer.schedule = (char *)"step";
    CHECK_ERR(ebb_optimizer_init(&o, &f.optimizer, 10, why), EBB_CONFIG);
    assert_non_null(strstr(why, "step"));
    f.optimizer.schedule = (char *)"";
    f.optimizer.lr = NAN;
    CHECK_ERR(ebb_optimizer_init(&o, &f.optimizer, 10, why), EBB_CONFIG);
    assert_non_null(strstr(why, "optimizer.lr"));
    f.optimizer.name = (char *)"lion";
    CHECK_ERR(ebb_optimizer_init(&o, &f.optimizer, 10, why), EBB_CONFIG);
    fixture_fini(&f);
}

static void test_optimizer_finds_what_is_not_finite(void **state)
{
    (void)state;
    float x[N];
    for (int i = 0; i < N; i++) {
        x[i] = i % 2 ? 3.4e38f : -1e-45f;
    }
    assert_true(ebb_optimizer_all_finite(x, N));
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int i = 0; i < N; i++) {
        float kept = x[i];
        x[i] = bad[i % 4];
        assert_false(ebb_optimizer_all_finite(x, N));
        x[i] = kept;
    }
    assert_true(ebb_optimizer_all_finite(x, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer_in_place_equals_out_of_place),
        cmocka_unit_test(test_optimizer_look_ahead_steadies_stale_gradients),
        cmocka_unit_test(test_optimizer_schedules),
        cmocka_unit_test(test_optimizer_finds_what_is_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
