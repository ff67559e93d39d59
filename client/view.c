// The caller's side of versions: see "view" in ebb.h.
//
// A push_pull or pull that was asked relative to version h of incarnation I, and answered by incarnation I at version v, brings every chunk
// that changed in (h, v]. So onto a view at w with h <= w < v it may be copied; at w >= v it is old news; with another incarnation it means nothing.
#include <stdlib.h>
#include <string.h>

#include "client/session.h"
#include "core/assert.h"

struct ebb_view {
    ebb_session *session;
    uint32_t n;
    uint64_t layout;
    ebb_base *shard; // (n)
};

static void s_adopt(ebb_view *v)
{
    uint32_t n;
    uint64_t layout;
    ebb_session_layout(v->session, &n, &layout);
    if (n > v->n) {
        ebb_base *grown = realloc(v->shard, n * sizeof(*grown));
        if (grown == NULL) {
            return; // stays on the old layout: pushes answer WRONGSHARD and the caller forgets again
        }
        v->shard = grown;
    }
    v->n = n;
    v->layout = layout;
}

ebb_status ebb_view_new(ebb_session *session, ebb_view **out)
{
    if (session->io == NULL) {
        return EBB_INVAL;
    }
    ebb_view *v = calloc(1, sizeof(*v));
    if (v == NULL) {
        return EBB_NOMEM;
    }
    v->session = session;
    ebb_view_forget(v);
    if (v->n == 0) {
        ebb_view_free(&v);
        return EBB_NOMEM;
    }
    *out = v;
    return EBB_OK;
}

void ebb_view_free(ebb_view **view)
{
    ebb_view *v = *view;
    if (v == NULL) {
        return;
    }
    *view = NULL;
    free(v->shard);
    free(v);
}

void ebb_view_forget(ebb_view *v)
{
    s_adopt(v);
    if (v->n > 0) {
        memset(v->shard, 0, v->n * sizeof(*v->shard));
    }
}

bool ebb_view_complete(const ebb_view *v)
{
    for (uint32_t i = 0; i < v->n; i++) {
        if (!v->shard[i].known) {
            return false;
        }
    }
    return true;
}

uint64_t ebb_view_version(const ebb_view *v)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->shard[i].known && v->shard[i].incarnation != 0 && v->shard[i].version < least) {
            least = v->shard[i].version;
        }
    }
    return least == UINT64_MAX ? 0 : least;
}

void ebb_view_base(const ebb_view *v, uint32_t *n, uint64_t *layout, const ebb_base **base)
{
    *n = v->n;
    *layout = v->layout;
    *base = v->shard;
}

static void s_copy(const ebb_manifest *m, const ebb_sub *sub, float *params)
{
    for (size_t p = 0; p < sub->reply.n_parts; p++) {
        const ebb_part *part = &sub->reply.parts[p];
        memcpy(params + m->chunks[part->chunk].offset, part->buf->data, part->buf->len);
    }
}

// The pieces [first, end) of one shard's answer. A shard is only as new as its oldest piece.
static void s_apply_shard(ebb_view *v, const ebb_request *r, uint32_t first, uint32_t end, float *params)
{
    const ebb_sub *subs = r->subs;
    uint32_t route = subs[first].route;
    ebb_base *mine = &v->shard[route];
    const ebb_base *base = &r->base[route];
    uint64_t incarnation = subs[first].incarnation, version = UINT64_MAX;
    for (uint32_t i = first; i < end; i++) {
        const ebb_sub *sub = &subs[i];
        // Every verdict on a push may carry chunks; other refusals carry nothing.
        bool useful = sub->answered && (sub->status == EBB_OK || sub->status == EBB_DUPLICATE || sub->status == EBB_GAP || sub->status == EBB_STALE ||
                                        sub->status == EBB_BADVALUE);
        if (!useful) {
            return;
        }
        if (sub->incarnation != incarnation) {
            mine->known = false; // replaced between two pieces: a mixture
            return;
        }
        if (sub->version < version) {
            version = sub->version;
        }
    }
    if (subs[first].chunk_count == 0) {
        *mine = (ebb_base){.known = true}; // a shard without chunks has nothing to know
        return;
    }
    bool whole = r->kind == EBB_REQUEST_PULL && !base->known;
    if (!whole) {
        if (!base->known) {
            return;
        }
        if (incarnation != base->incarnation) {
            if (mine->known && mine->incarnation == base->incarnation) {
                mine->known = false; // replaced since we pulled
            }
            return;
        }
        if (!mine->known || mine->incarnation != incarnation || mine->version < base->version || version <= mine->version) {
            return;
        }
    } else if (mine->known && mine->incarnation == incarnation && version <= mine->version) {
        return;
    }
    for (uint32_t i = first; i < end; i++) {
        s_copy(v->session->manifest, &subs[i], params);
    }
    *mine = (ebb_base){.incarnation = incarnation, .version = version, .known = true};
}

void ebb_view_apply(ebb_view *v, const ebb_request *r, float *params)
{
    EBB_ASSERT(r->state == EBB_REQUEST_DONE && (r->kind == EBB_REQUEST_PUSH || r->kind == EBB_REQUEST_PULL));
    EBB_ASSERT(r->pin == 0 && r->slot == 0);
    if (r->layout != v->layout) {
        return;
    }
    for (uint32_t i = 0; i < r->n_subs;) {
        uint32_t end = i + 1;
        while (end < r->n_subs && r->subs[end].route == r->subs[i].route) {
            end++;
        }
        s_apply_shard(v, r, i, end, params);
        i = end;
    }
}
