#include "ps/streams.h"

#include <stdlib.h>
#include <string.h>

#include "core/assert.h"

void ebb_streams_init(ebb_streams *s)
{
    memset(s, 0, sizeof(*s));
}

void ebb_streams_fini(ebb_streams *s)
{
    free(s->at);
    free(s->retired);
    memset(s, 0, sizeof(*s));
}

// First index whose id is >= id. New streams have the highest numbers nearly always, so the end is tried first.
static size_t s_lower(const ebb_streams *s, uint64_t id)
{
    if (s->n == 0 || s->at[s->n - 1].id < id) {
        return s->n;
    }
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->at[mid].id < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

ebb_stream *ebb_streams_find(ebb_streams *s, uint64_t id)
{
    size_t i = s_lower(s, id);
    return i < s->n && s->at[i].id == id ? &s->at[i] : NULL;
}

bool ebb_streams_is_retired(const ebb_streams *s, uint64_t id)
{
    if (id < s->retired_below) {
        return true;
    }
    size_t lo = 0, hi = s->n_retired;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->retired[mid] < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < s->n_retired && s->retired[lo] == id;
}

ebb_stream_verdict ebb_streams_verdict(ebb_streams *s, uint64_t id, uint64_t seq, uint64_t *applied)
{
    uint64_t done = 0;
    if (ebb_streams_is_retired(s, id)) {
        done = seq;
    } else {
        const ebb_stream *e = ebb_streams_find(s, id);
        done = e != NULL ? e->applied : 0;
    }
    if (applied != NULL) {
        *applied = done;
    }
    if (seq <= done) {
        return EBB_STREAM_DUPLICATE;
    }
    return seq - done == 1 ? EBB_STREAM_NEXT : EBB_STREAM_GAP;
}

static ebb_stream *s_insert(ebb_streams *s, uint64_t id)
{
    if (s->n == s->cap) {
        size_t cap = s->cap == 0 ? 16 : s->cap * 2;
        ebb_stream *grown = realloc(s->at, cap * sizeof(*grown));
        if (grown == NULL) {
            return NULL;
        }
        s->at = grown;
        s->cap = cap;
    }
    size_t i = s_lower(s, id);
    memmove(&s->at[i + 1], &s->at[i], (s->n - i) * sizeof(*s->at));
    s->n++;
    memset(&s->at[i], 0, sizeof(s->at[i]));
    s->at[i].id = id;
    return &s->at[i];
}

ebb_status ebb_streams_advance(ebb_streams *s, uint64_t id, uint64_t seq, uint64_t lsn)
{
    EBB_ASSERT(ebb_streams_verdict(s, id, seq, NULL) == EBB_STREAM_NEXT);
    ebb_stream *e = ebb_streams_find(s, id);
    if (e == NULL && (e = s_insert(s, id)) == NULL) {
        return EBB_NOMEM;
    }
    EBB_ASSERT(lsn > e->applied_lsn);
    e->applied = seq;
    e->applied_lsn = lsn;
    return EBB_OK;
}

ebb_status ebb_streams_restore(ebb_streams *s, uint64_t id, uint64_t applied, uint64_t lsn)
{
    if (ebb_streams_is_retired(s, id)) {
        return EBB_OK;
    }
    ebb_stream *e = ebb_streams_find(s, id);
    if (e == NULL && (e = s_insert(s, id)) == NULL) {
        return EBB_NOMEM;
    }
    e->applied = e->durable = e->marked = applied;
    e->applied_lsn = lsn;
    return EBB_OK;
}

void ebb_streams_mark(ebb_streams *s)
{
    for (size_t i = 0; i < s->n; i++) {
        s->at[i].marked = s->at[i].applied;
    }
}

void ebb_streams_commit_mark(ebb_streams *s)
{
    for (size_t i = 0; i < s->n; i++) {
        ebb_stream *e = &s->at[i];
        if (e->durable < e->marked) {
            e->durable = e->marked;
        }
    }
}

void ebb_streams_all_durable(ebb_streams *s)
{
    for (size_t i = 0; i < s->n; i++) {
        s->at[i].durable = s->at[i].applied;
    }
}

bool ebb_streams_has_undurable(const ebb_streams *s)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->at[i].durable < s->at[i].applied) {
            return true;
        }
    }
    return false;
}

static int s_by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

ebb_status ebb_streams_retire(ebb_streams *s, uint64_t below, const uint64_t *list, size_t n, bool *changed,
                              void (*forgotten)(void *arg, uint64_t id), void *arg)
{
    *changed = false;
    bool grows = below > s->retired_below;
    for (size_t i = 0; i < n && !grows; i++) {
        grows = !ebb_streams_is_retired(s, list[i]);
    }
    if (!grows) {
        return EBB_OK;
    }
    uint64_t *merged = malloc((s->n_retired + n + 1) * sizeof(*merged));
    if (merged == NULL) {
        return EBB_NOMEM;
    }
    if (below < s->retired_below) {
        below = s->retired_below;
    }
    size_t m = 0;
    if (s->n_retired > 0) {
        memcpy(merged, s->retired, s->n_retired * sizeof(*merged));
        m = s->n_retired;
    }
    for (size_t i = 0; i < n; i++) {
        merged[m++] = list[i];
    }
    qsort(merged, m, sizeof(*merged), s_by_value);
    size_t kept = 0;
    for (size_t i = 0; i < m; i++) {
        uint64_t v = merged[i];
        if (v == below) {
            below++; // the sparse list's head joins the range
        } else if (v > below && (kept == 0 || merged[kept - 1] != v)) {
            merged[kept++] = v;
        }
    }
    free(s->retired);
    s->retired = merged;
    s->n_retired = kept;
    s->retired_below = below;
    *changed = true;
    size_t out = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (ebb_streams_is_retired(s, s->at[i].id)) {
            if (forgotten != NULL) {
                forgotten(arg, s->at[i].id);
            }
        } else {
            s->at[out++] = s->at[i];
        }
    }
    s->n = out;
    return EBB_OK;
}
