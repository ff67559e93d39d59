// What the product asks the machine for, answered by the run under way. clock.h is linked in core/clock.c's place; the rest is wrapped by the linker
// (-Wl,--wrap, see CMakeLists.txt), so the product's files are linked as they are.
#include <sys/types.h>

#include "core/clock.h"
#include "ps/recover.h"
#include "tests/sim/sim.h"

#define BOOT_MS 1000000ull
#define EPOCH_MS 1700000000000ull

uint64_t ebb_clock_ns(void)
{
    return ebb_clock_ms() * 1000000u + (sim_now != NULL ? sim_now->now % MS : 0) * 1000u;
}

uint64_t ebb_clock_ms(void)
{
    return BOOT_MS + (sim_now != NULL ? sim_now->now / MS : 0);
}

uint64_t ebb_clock_unix_ms(void)
{
    return EPOCH_MS + ebb_clock_ms();
}

void ebb_clock_sleep_ms(uint64_t ms)
{
    (void)ms; // nothing that runs here may wait
}

uint64_t __wrap_ebb_rng_system(void);
uint64_t __wrap_ebb_rng_system(void)
{
    return dice_next(&sim_now->dice) | 1;
}

uint64_t __wrap_ebb_process_rss_bytes(void);
uint64_t __wrap_ebb_process_rss_bytes(void)
{
    return 1 << 20;
}

pid_t __wrap_getpid(void);
pid_t __wrap_getpid(void)
{
    return 4242;
}

// The format file is a plain file on a real disk, written before the store is made; here the store is all there is.
ebb_status __wrap_ebb_recover_open(const char *dir, uint32_t shard, ebb_kvstore **out, char *why);
ebb_status __wrap_ebb_recover_open(const char *dir, uint32_t shard, ebb_kvstore **out, char *why)
{
    (void)shard;
    const ebb_kvstore_options options = {.create = true};
    return ebb_kvstore_open(dir, &options, out, why);
}
