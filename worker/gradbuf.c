#include "worker/gradbuf.h"

#include <stdlib.h>

#include "core/assert.h"

typedef struct slot {
    ebb_buf *flat;
    ebb_buf **chunks;
} slot;

struct ebb_gradbuf {
    const ebb_manifest *manifest;
    slot *slot;
    uint32_t made, max, next;
};

static void s_slot_fini(const ebb_manifest *m, slot *s)
{
    for (size_t c = 0; s->chunks != NULL && c < m->n_chunks; c++) {
        ebb_buf_unref(&s->chunks[c]);
    }
    free(s->chunks);
    ebb_buf_unref(&s->flat);
    *s = (slot){0};
}

static ebb_status s_slot_init(const ebb_manifest *m, slot *s)
{
    *s = (slot){0};
    s->chunks = calloc(m->n_chunks, sizeof(*s->chunks));
    ebb_status st = s->chunks != NULL ? ebb_buf_new((size_t)m->numel * sizeof(float), &s->flat) : EBB_NOMEM;
    for (size_t c = 0; st == EBB_OK && c < m->n_chunks; c++) {
        st = ebb_buf_slice(s->flat, (size_t)m->chunks[c].offset * sizeof(float), (size_t)m->chunks[c].numel * sizeof(float), &s->chunks[c]);
    }
    if (st != EBB_OK) {
        s_slot_fini(m, s);
    }
    return st;
}

static bool s_slot_idle(const ebb_manifest *m, const slot *s)
{
    for (size_t c = 0; c < m->n_chunks; c++) {
        if (!ebb_buf_is_sole(s->chunks[c])) {
            return false;
        }
    }
    return true;
}

ebb_status ebb_gradbuf_new(const ebb_manifest *manifest, uint32_t count, ebb_gradbuf **out)
{
    EBB_ASSERT(count > 0 && manifest->sealed);
    ebb_gradbuf *g = calloc(1, sizeof(*g));
    if (g == NULL) {
        return EBB_NOMEM;
    }
    g->manifest = manifest;
    g->max = 2 * count;
    g->slot = calloc(g->max, sizeof(*g->slot));
    if (g->slot == NULL) {
        free(g);
        return EBB_NOMEM;
    }
    *out = g;
    return EBB_OK;
}

void ebb_gradbuf_free(ebb_gradbuf **gp)
{
    ebb_gradbuf *g = *gp;
    if (g == NULL) {
        return;
    }
    *gp = NULL;
    for (uint32_t i = 0; i < g->made; i++) {
        s_slot_fini(g->manifest, &g->slot[i]);
    }
    free(g->slot);
    free(g);
}

ebb_status ebb_gradbuf_take(ebb_gradbuf *g, ebb_grad *out)
{
    for (uint32_t i = 0; i < g->made; i++) {
        uint32_t at = (g->next + i) % g->made;
        if (s_slot_idle(g->manifest, &g->slot[at])) {
            g->next = at + 1;
            *out = (ebb_grad){.flat = (float *)g->slot[at].flat->data, .chunks = g->slot[at].chunks};
            return EBB_OK;
        }
    }
    if (g->made == g->max) {
        return EBB_AGAIN;
    }
    slot *s = &g->slot[g->made];
    EBB_TRY(s_slot_init(g->manifest, s));
    g->made++;
    g->next = g->made;
    *out = (ebb_grad){.flat = (float *)s->flat->data, .chunks = s->chunks};
    return EBB_OK;
}

uint32_t ebb_gradbuf_count(const ebb_gradbuf *g)
{
    return g->made;
}
