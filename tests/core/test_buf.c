#include "tests/support/check.h"

#include <string.h>

#include "core/buf.h"

static int s_freed;

static void s_count_free(void *data, void *hint)
{
    assert_ptr_equal(data, hint);
    s_freed++;
}

static void test_buf_refs_free_once(void **state)
{
    (void)state;
    static uint8_t bytes[4] = {1, 2, 3, 4};
    ebb_buf *buf = NULL;
    s_freed = 0;
    CHECK_OK(ebb_buf_wrap(bytes, 4, s_count_free, bytes, &buf));
    assert_true(ebb_buf_is_sole(buf));
    ebb_buf *second = ebb_buf_ref(buf);
    assert_false(ebb_buf_is_sole(buf));
    ebb_buf_unref(&buf);
    assert_null(buf);
    assert_int_equal(s_freed, 0);
    ebb_buf_unref(&second);
    assert_int_equal(s_freed, 1);
    ebb_buf_unref(&second); // NULL is fine
}

static void test_buf_slice_keeps_parent(void **state)
{
    (void)state;
    ebb_buf *buf = NULL, *slice = NULL;
    CHECK_OK(ebb_buf_dup("hello world", 11, &buf));
    CHECK_OK(ebb_buf_slice(buf, 6, 5, &slice));
    ebb_buf_unref(&buf);
    assert_memory_equal(slice->data, "world", 5);
    assert_int_equal(slice->len, 5);
    ebb_buf_unref(&slice);
}

static void test_buf_is_aligned(void **state)
{
    (void)state;
    for (size_t len = 0; len < 300; len += 37) {
        ebb_buf *buf = NULL;
        CHECK_OK(ebb_buf_new(len, &buf));
        assert_int_equal((uintptr_t)buf->data % 64, 0);
        memset(buf->data, 0xff, len);
        ebb_buf_unref(&buf);
    }
    ebb_buf *huge = NULL;
    CHECK_ERR(ebb_buf_new(SIZE_MAX - 10, &huge), EBB_NOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buf_refs_free_once),
        cmocka_unit_test(test_buf_slice_keeps_parent),
        cmocka_unit_test(test_buf_is_aligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
