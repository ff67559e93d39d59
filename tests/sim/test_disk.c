// What the simulated disk does at a crash: if it were kinder than a real one, the seeds would prove nothing.
#include "tests/support/check.h"

#include <string.h>

#include "tests/sim/disk.h"

typedef struct plan {
    int in;
    disk_fault fault;
} plan;

static disk_fault s_hook(void *arg, disk_op op)
{
    plan *p = arg;
    return op != DISK_READ && p->in > 0 && --p->in == 0 ? p->fault : DISK_FINE;
}

static ebb_kvstore *s_open(sim_disk *d, plan *p)
{
    const ebb_kvstore_options o = {.create = true};
    ebb_kvstore *kv = NULL;
    char why[256];
    sim_disk_mount("disk", d, s_hook, p);
    CHECK_OK(ebb_kvstore_open("disk", &o, &kv, why));
    return kv;
}

static void s_write(ebb_kvstore *kv, const char *a, const char *b, bool sync)
{
    ebb_kvbatch *batch = NULL;
    CHECK_OK(ebb_kvbatch_new(&batch));
    ebb_kvbatch_put(batch, a, strlen(a), a, strlen(a));
    ebb_kvbatch_put(batch, b, strlen(b), b, strlen(b));
    CHECK_OK(ebb_kvstore_write(kv, batch, sync));
    ebb_kvbatch_free(&batch);
}

static bool s_has(ebb_kvstore *kv, const char *key)
{
    uint8_t *value = NULL;
    size_t len = 0;
    ebb_status st = ebb_kvstore_get(kv, key, strlen(key), &value, &len);
    if (st == EBB_OK) {
        assert_int_equal(len, strlen(key));
        assert_memory_equal(value, key, len);
        free(value);
    }
    return st == EBB_OK;
}

static void test_disk_power_loss_keeps_a_prefix_of_whole_batches(void **state)
{
    (void)state;
    for (size_t keep = 0; keep <= 3; keep++) {
        plan p = {0};
        sim_disk *d = sim_disk_new(true);
        ebb_kvstore *kv = s_open(d, &p);
        s_write(kv, "a1", "a2", true);
        s_write(kv, "b1", "b2", false);
        s_write(kv, "c1", "c2", false);
        s_write(kv, "d1", "d2", false);
        assert_int_equal(sim_disk_logged(d), 3);
        ebb_kvstore_close(&kv);
        sim_disk_power_loss(d, keep);
        kv = s_open(d, &p);
        assert_true(s_has(kv, "a1") && s_has(kv, "a2"));
        const char *const keys[3][2] = {{"b1", "b2"}, {"c1", "c2"}, {"d1", "d2"}};
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(s_has(kv, keys[i][0]), i < keep);
            assert_int_equal(s_has(kv, keys[i][1]), i < keep);
        }
        ebb_kvstore_close(&kv);
        sim_disk_free(&d);
        sim_disk_unmount_all();
    }
}

static void test_disk_kill_loses_nothing_and_makes_nothing_durable(void **state)
{
    (void)state;
    plan p = {0};
    sim_disk *d = sim_disk_new(true);
    ebb_kvstore *kv = s_open(d, &p);
    s_write(kv, "a1", "a2", false);
    ebb_kvstore_close(&kv);
    sim_disk_killed(d);
    kv = s_open(d, &p);
    assert_true(s_has(kv, "a1"));
    const uint8_t *value = NULL;
    size_t len = 0;
    assert_false(sim_disk_durable(d, "a1", 2, &value, &len));
    ebb_kvstore_close(&kv);
    sim_disk_power_loss(d, 0);
    kv = s_open(d, &p);
    assert_false(s_has(kv, "a1"));
    ebb_kvstore_close(&kv);
    sim_disk_free(&d);
    sim_disk_unmount_all();
}

static void test_disk_sync_covers_what_was_written_before_its_position(void **state)
{
    (void)state;
    plan p = {0};
    sim_disk *d = sim_disk_new(true);
    ebb_kvstore *kv = s_open(d, &p);
    s_write(kv, "a1", "a2", false);
    uint64_t position = sim_disk_position(d);
    s_write(kv, "b1", "b2", false);
    CHECK_OK(sim_kvstore_sync_upto(kv, position));
    const uint8_t *value = NULL;
    size_t len = 0;
    assert_true(sim_disk_durable(d, "a2", 2, &value, &len));
    assert_false(sim_disk_durable(d, "b1", 2, &value, &len));
    CHECK_OK(ebb_kvstore_sync(kv));
    assert_true(sim_disk_durable(d, "b1", 2, &value, &len));
    assert_int_equal(sim_disk_logged(d), 0);
    ebb_kvstore_close(&kv);
    sim_disk_free(&d);
    sim_disk_unmount_all();
}

static void test_disk_first_error_latches_and_its_outcome_is_either(void **state)
{
    (void)state;
    for (int after = 0; after <= 1; after++) {
        plan p = {.in = 2, .fault = after ? DISK_FAILS_AFTER : DISK_FAILS_BEFORE};
        sim_disk *d = sim_disk_new(true);
        ebb_kvstore *kv = s_open(d, &p);
        CHECK_OK(ebb_kvstore_put(kv, "a", 1, "a", 1, false));
        CHECK_ERR(ebb_kvstore_put(kv, "b", 1, "b", 1, false), EBB_IO);
        CHECK_ERR(ebb_kvstore_put(kv, "c", 1, "c", 1, false), EBB_IO); // although the disk is well again
        CHECK_ERR(ebb_kvstore_sync(kv), EBB_IO);
        ebb_kvstore_close(&kv);
        sim_disk_killed(d);
        kv = s_open(d, &p);
        assert_true(s_has(kv, "a"));
        assert_int_equal(s_has(kv, "b"), after);
        assert_false(s_has(kv, "c"));
        ebb_kvstore_close(&kv);
        sim_disk_free(&d);
        sim_disk_unmount_all();
    }
}

static void test_disk_keeps_key_order_ranges_and_pictures(void **state)
{
    (void)state;
    plan p = {0};
    sim_disk *d = sim_disk_new(true);
    ebb_kvstore *kv = s_open(d, &p);
    s_write(kv, "k3", "k1", false);
    s_write(kv, "k2", "j9", false);
    s_write(kv, "k", "l", false);
    ebb_kviter *it = NULL;
    const uint8_t *key, *value;
    size_t key_len, len, n = 0;
    CHECK_OK(ebb_kviter_open(kv, "k", 1, &it));
    ebb_kvbatch *b = NULL;
    CHECK_OK(ebb_kvbatch_new(&b));
    ebb_kvbatch_del_range(b, "k1", 2, "k3", 2); // [from, to)
    CHECK_OK(ebb_kvstore_write(kv, b, false));
    ebb_kvbatch_free(&b);
    const char *const order[] = {"k", "k1", "k2", "k3"};
    while (ebb_kviter_next(it, &key, &key_len, &value, &len)) { // an iterator sees what was there when it was opened
        assert_true(n < 4 && key_len == strlen(order[n]) && memcmp(key, order[n], key_len) == 0);
        n++;
    }
    assert_int_equal(n, 4);
    CHECK_OK(ebb_kviter_status(it));
    CHECK_OK(ebb_kviter_seek(it, "k2", 2));
    assert_true(ebb_kviter_next(it, &key, &key_len, &value, &len));
    assert_memory_equal(key, "k2", 2);
    ebb_kviter_close(&it);
    assert_true(s_has(kv, "k") && s_has(kv, "k3") && s_has(kv, "j9") && s_has(kv, "l"));
    assert_false(s_has(kv, "k1") || s_has(kv, "k2"));
    ebb_kvstore_close(&kv);
    sim_disk_free(&d);
    sim_disk_unmount_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disk_power_loss_keeps_a_prefix_of_whole_batches),
        cmocka_unit_test(test_disk_kill_loses_nothing_and_makes_nothing_durable),
        cmocka_unit_test(test_disk_sync_covers_what_was_written_before_its_position),
        cmocka_unit_test(test_disk_first_error_latches_and_its_outcome_is_either),
        cmocka_unit_test(test_disk_keeps_key_order_ranges_and_pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
