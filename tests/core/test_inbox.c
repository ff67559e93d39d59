#include "tests/support/check.h"

#include <poll.h>
#include <pthread.h>

#include "core/clock.h"
#include "core/inbox.h"

enum { PRODUCERS = 4, EACH = 20000 };

typedef struct producer {
    ebb_inbox *inbox;
    uintptr_t base;
} producer;

static void *s_produce(void *arg)
{
    producer *p = arg;
    for (uintptr_t i = 1; i <= EACH;) {
        if (ebb_inbox_push(p->inbox, (void *)(p->base + i)) == EBB_OK) {
            i++;
        } else {
            ebb_clock_sleep_ms(1);
        }
    }
    return NULL;
}

// Many producers, one consumer: nothing lost, nothing doubled, order kept per producer.
static void test_inbox_many_producers(void **state)
{
    (void)state;
    ebb_inbox *inbox = NULL;
    CHECK_OK(ebb_inbox_new(64, &inbox));
    pthread_t threads[PRODUCERS];
    producer producers[PRODUCERS];
    for (uintptr_t i = 0; i < PRODUCERS; i++) {
        producers[i] = (producer){inbox, (i + 1) << 24};
        pthread_create(&threads[i], NULL, s_produce, &producers[i]);
    }
    uintptr_t last[PRODUCERS] = {0};
    for (size_t n = 0; n < (size_t)PRODUCERS * EACH;) {
        uintptr_t item = (uintptr_t)ebb_inbox_wait(inbox, 1000);
        if (item == 0) {
            continue;
        }
        uintptr_t who = (item >> 24) - 1, i = item & 0xffffff;
        assert_true(who < PRODUCERS);
        assert_int_equal(i, last[who] + 1);
        last[who] = i;
        n++;
    }
    for (int i = 0; i < PRODUCERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_null(ebb_inbox_pop(inbox));
    ebb_inbox_free(&inbox);
}

static void test_inbox_fd_follows_content(void **state)
{
    (void)state;
    ebb_inbox *inbox = NULL;
    int item;
    CHECK_OK(ebb_inbox_new(2, &inbox));
    struct pollfd p = {.fd = ebb_inbox_fd(inbox), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    CHECK_OK(ebb_inbox_push(inbox, &item));
    CHECK_OK(ebb_inbox_push(inbox, &item));
    CHECK_ERR(ebb_inbox_push(inbox, &item), EBB_AGAIN);
    assert_int_equal(poll(&p, 1, 0), 1);
    assert_ptr_equal(ebb_inbox_pop(inbox), &item);
    assert_int_equal(poll(&p, 1, 0), 1);
    assert_ptr_equal(ebb_inbox_wait(inbox, 0), &item);
    assert_int_equal(poll(&p, 1, 0), 0);
    ebb_inbox_close(inbox);
    assert_int_equal(poll(&p, 1, 0), 1);
    CHECK_ERR(ebb_inbox_push(inbox, &item), EBB_CLOSED);
    assert_null(ebb_inbox_wait(inbox, -1));
    ebb_inbox_free(&inbox);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inbox_many_producers),
        cmocka_unit_test(test_inbox_fd_follows_content),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
