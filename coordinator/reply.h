// What a reply points to until it is packed, and the two commonest replies.
#ifndef EBB_COORDINATOR_REPLY_H
#define EBB_COORDINATOR_REPLY_H

#include <stddef.h>
#include <stdlib.h>

#include "core/status.h"
#include "core/wire.h"

// Things a reply refers to, from malloc; freed together after packing. Start with {0}.
typedef struct ebb_trash {
    void **item;
    size_t n, cap;
} ebb_trash;

void *ebb_trash_own(ebb_trash *t, void *p); // p, which must not be NULL
char *ebb_trash_text(ebb_trash *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ebb_trash_fini(ebb_trash *t);

// A message of that type, initialised, owned by `trash`.
#define EBB_TRASH_NEW(trash, type, init_fn)                      \
    ({                                                           \
        type *p_ = ebb_trash_own((trash), malloc(sizeof(type))); \
        init_fn(p_);                                             \
        p_;                                                      \
    })

void ebb_reply_refuse(Ebb__Envelope *reply, ebb_trash *trash, ebb_status st, const char *why);
void ebb_reply_ok(Ebb__Envelope *reply, ebb_trash *trash);

#endif
