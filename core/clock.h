// Time. Everything that waits or measures uses the monotonic clock; wall time is only shown to people.
#ifndef EBB_CORE_CLOCK_H
#define EBB_CORE_CLOCK_H

#include <stdint.h>

uint64_t ebb_clock_ns(void);      // monotonic nanoseconds
uint64_t ebb_clock_ms(void);      // monotonic milliseconds
uint64_t ebb_clock_unix_ms(void); // wall clock, for people and for rows that outlive the process
void ebb_clock_sleep_ms(uint64_t ms);

#endif
