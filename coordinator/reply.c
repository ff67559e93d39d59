#define _GNU_SOURCE // vasprintf
#include "coordinator/reply.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/assert.h"

void *ebb_trash_own(ebb_trash *t, void *p)
{
    EBB_ASSERT(p != NULL);
    if (t->n == t->cap) {
        t->cap = t->cap > 0 ? 2 * t->cap : 64;
        t->item = realloc(t->item, t->cap * sizeof(*t->item));
        EBB_ASSERT(t->item != NULL);
    }
    t->item[t->n++] = p;
    return p;
}

char *ebb_trash_text(ebb_trash *trash, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    EBB_ASSERT(n >= 0);
    return ebb_trash_own(trash, text);
}

void ebb_trash_fini(ebb_trash *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->item[i]);
    }
    free(t->item);
    *t = (ebb_trash){0};
}

void ebb_reply_refuse(Ebb__Envelope *reply, ebb_trash *trash, ebb_status st, const char *why)
{
    reply->status = st;
    reply->detail = ebb_trash_text(trash, "%s", why);
    reply->body_case = EBB__ENVELOPE__BODY__NOT_SET;
}

void ebb_reply_ok(Ebb__Envelope *reply, ebb_trash *trash)
{
    reply->body_case = EBB__ENVELOPE__BODY_OK;
    reply->ok = EBB_TRASH_NEW(trash, Ebb__Ok, ebb__ok__init);
}
