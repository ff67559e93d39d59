#include "ps/event.h"

#include <stdlib.h>

ebb_status ebb_event_new(ebb_event_kind kind, ebb_event **out)
{
    ebb_event *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return EBB_NOMEM;
    }
    e->kind = kind;
    ebb_msg_init(&e->msg);
    *out = e;
    return EBB_OK;
}

void ebb_event_free(ebb_event **ep)
{
    ebb_event *e = *ep;
    if (e != NULL) {
        *ep = NULL;
        ebb_msg_fini(&e->msg);
        ebb_snapshot_work_free(&e->work);
        free(e);
    }
}
