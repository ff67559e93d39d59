#include "core/clock.h"

#include <errno.h>
#include <time.h>

static uint64_t s_read_ns(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t ebb_clock_ns(void)
{
    return s_read_ns(CLOCK_MONOTONIC);
}

uint64_t ebb_clock_ms(void)
{
    return ebb_clock_ns() / 1000000u;
}

uint64_t ebb_clock_unix_ms(void)
{
    return s_read_ns(CLOCK_REALTIME) / 1000000u;
}

void ebb_clock_sleep_ms(uint64_t ms)
{
    struct timespec ts = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&ts, &ts) != 0 && errno == EINTR) {
    }
}
