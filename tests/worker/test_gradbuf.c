// Gradient buffers: reused only when nobody else holds any slice.
#include "tests/support/check.h"

#include <string.h>

#include "worker/gradbuf.h"

static ebb_manifest *s_manifest(void)
{
    ebb_manifest *m = NULL;
    CHECK_OK(ebb_manifest_new(&m, 8));
    CHECK_OK(ebb_manifest_add(m, "a", 1, (uint64_t[]){21}, EBB_INIT_ZEROS, 0, 0));
    CHECK_OK(ebb_manifest_add(m, "b", 2, (uint64_t[]){3, 5}, EBB_INIT_ZEROS, 0, 0));
    CHECK_OK(ebb_manifest_seal(m));
    return m;
}

static void test_gradbuf_slices_are_the_flat_vector(void **state)
{
    (void)state;
    ebb_manifest *m = s_manifest();
    ebb_gradbuf *g = NULL;
    ebb_grad a;
    CHECK_OK(ebb_gradbuf_new(m, 2, &g));
    CHECK_OK(ebb_gradbuf_take(g, &a));
    assert_int_equal((uintptr_t)a.flat % 64, 0);
    for (size_t c = 0; c < m->n_chunks; c++) {
        assert_ptr_equal(a.chunks[c]->data, a.flat + m->chunks[c].offset);
        assert_int_equal(a.chunks[c]->len, m->chunks[c].numel * sizeof(float));
    }
    ebb_gradbuf_free(&g);
    ebb_manifest_free(&m);
}

static void test_gradbuf_reuses_what_came_back(void **state)
{
    (void)state;
    ebb_manifest *m = s_manifest();
    ebb_gradbuf *g = NULL;
    CHECK_OK(ebb_gradbuf_new(m, 2, &g));
    ebb_grad a, b, c, d, e;
    CHECK_OK(ebb_gradbuf_take(g, &a));
    ebb_buf *held_a = ebb_buf_ref(a.chunks[m->n_chunks - 1]); // one slice is enough
    CHECK_OK(ebb_gradbuf_take(g, &b));
    assert_ptr_not_equal(a.flat, b.flat);
    ebb_buf *held_b = ebb_buf_ref(b.chunks[0]);
    CHECK_OK(ebb_gradbuf_take(g, &c)); // grows
    ebb_buf *held_c = ebb_buf_ref(c.chunks[1]);
    ebb_buf_unref(&held_a);
    CHECK_OK(ebb_gradbuf_take(g, &d));
    assert_ptr_equal(d.flat, a.flat);
    assert_int_equal(ebb_gradbuf_count(g), 3);
    ebb_buf *held_d = ebb_buf_ref(d.chunks[0]);
    CHECK_OK(ebb_gradbuf_take(g, &e));
    ebb_buf *held_e = ebb_buf_ref(e.chunks[0]);
    assert_int_equal(ebb_gradbuf_count(g), 4);
    ebb_grad none;
    CHECK_ERR(ebb_gradbuf_take(g, &none), EBB_AGAIN); // at most 2 * count
    ebb_buf_unref(&held_c);
    CHECK_OK(ebb_gradbuf_take(g, &none));
    assert_ptr_equal(none.flat, c.flat);
    ebb_buf_unref(&held_b);
    ebb_buf_unref(&held_d);
    // A buffer that is still being sent outlives the ring.
    memset(e.flat, 7, m->numel * sizeof(float));
    ebb_gradbuf_free(&g);
    assert_int_equal(held_e->data[0], 7);
    ebb_buf_unref(&held_e);
    ebb_manifest_free(&m);
}

static void test_gradbuf_one_buffer_is_enough_when_synchronous(void **state)
{
    (void)state;
    ebb_manifest *m = s_manifest();
    ebb_gradbuf *g = NULL;
    CHECK_OK(ebb_gradbuf_new(m, 2, &g));
    for (int step = 0; step < 100; step++) {
        ebb_grad a;
        CHECK_OK(ebb_gradbuf_take(g, &a));
        ebb_buf *sent = ebb_buf_ref(a.chunks[0]);
        ebb_buf_unref(&sent);
    }
    assert_int_equal(ebb_gradbuf_count(g), 1);
    ebb_gradbuf_free(&g);
    ebb_manifest_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradbuf_slices_are_the_flat_vector),
        cmocka_unit_test(test_gradbuf_reuses_what_came_back),
        cmocka_unit_test(test_gradbuf_one_buffer_is_enough_when_synchronous),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
