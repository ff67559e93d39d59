// Bounded queue of pointers into one consumer thread, with a file descriptor to poll. Any thread may push; one thread pops.
#ifndef EBB_CORE_INBOX_H
#define EBB_CORE_INBOX_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

typedef struct ebb_inbox ebb_inbox;

ebb_status ebb_inbox_new(size_t capacity, ebb_inbox **out);
void ebb_inbox_free(ebb_inbox **inbox);                  // must be empty: what is inside belongs to somebody
ebb_status ebb_inbox_push(ebb_inbox *inbox, void *item); // AGAIN: full; CLOSED. The item is the consumer's on success only
void *ebb_inbox_pop(ebb_inbox *inbox);                   // NULL: empty (does not block)
void *ebb_inbox_wait(ebb_inbox *inbox, int timeout_ms);  // pops, waiting at most timeout_ms; NULL: nothing came, or closed
void ebb_inbox_close(ebb_inbox *inbox);                  // pushes fail from now on, waiters wake
int ebb_inbox_fd(const ebb_inbox *inbox);                // readable while something is inside
size_t ebb_inbox_count(ebb_inbox *inbox);

#endif
