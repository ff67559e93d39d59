// Test helpers on top of cmocka.
#ifndef EBB_TESTS_SUPPORT_CHECK_H
#define EBB_TESTS_SUPPORT_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/rng.h"
#include "core/status.h"

#define CHECK_OK(e)                                                                             \
    do {                                                                                        \
        ebb_status check_st_ = (e);                                                             \
        if (check_st_ != EBB_OK) {                                                              \
            fail_msg("%s: %s (%s)", #e, ebb_status_name(check_st_), ebb_status_str(check_st_)); \
        }                                                                                       \
    } while (0)

#define CHECK_ERR(e, want)                                                                          \
    do {                                                                                            \
        ebb_status check_st_ = (e);                                                                 \
        if (check_st_ != (want)) {                                                                  \
            fail_msg("%s: got %s, want %s", #e, ebb_status_name(check_st_), ebb_status_name(want)); \
        }                                                                                           \
    } while (0)

// Fresh seed per run, printed so that a failure can be replayed with EBB_SEED=n.
static inline uint64_t ebb_test_seed(void)
{
    const char *env = getenv("EBB_SEED");
    uint64_t seed = env ? strtoull(env, NULL, 0) : ebb_rng_system();
    printf("seed: EBB_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

#endif
