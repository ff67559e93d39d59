#include "coordinator/membership.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ebb_status ebb_membership_init(ebb_membership *m, uint32_t n_shards)
{
    memset(m, 0, sizeof(*m));
    m->shards = calloc(n_shards, sizeof(*m->shards));
    m->n_shards = n_shards;
    return m->shards == NULL ? EBB_NOMEM : EBB_OK;
}

void ebb_membership_fini(ebb_membership *m)
{
    free(m->members);
    free(m->shards);
    memset(m, 0, sizeof(*m));
}

void ebb_past_add(ebb_past *past, uint64_t incarnation)
{
    if (incarnation != 0 && !ebb_past_has(past, incarnation)) {
        past->incarnation[past->n++ % EBB_PAST] = incarnation;
    }
}

bool ebb_past_has(const ebb_past *past, uint64_t incarnation)
{
    for (uint32_t i = 0; i < EBB_PAST && i < past->n; i++) {
        if (past->incarnation[i] == incarnation) {
            return true;
        }
    }
    return false;
}

ebb_member *ebb_membership_find(ebb_membership *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++) {
        if (strcmp(m->members[i].name, name) == 0) {
            return &m->members[i];
        }
    }
    return NULL;
}

// Names are used once by machines that come and go: the seat of whoever has been gone for longest is given away.
static ebb_member *s_free_seat(ebb_membership *m)
{
    ebb_member *free = NULL;
    for (size_t i = 0; i < m->n; i++) {
        ebb_member *w = &m->members[i];
        if (w->state > EBB_WORKER_DRAINING && (free == NULL || w->seen_ms < free->seen_ms)) {
            free = w;
        }
    }
    return free;
}

ebb_member *ebb_membership_join(ebb_membership *m, const char *name, uint64_t incarnation, uint64_t now_ms, bool *fresh)
{
    ebb_member *w = ebb_membership_find(m, name);
    *fresh = w == NULL || w->incarnation != incarnation;
    if (w != NULL && ebb_past_has(&w->past, incarnation)) {
        *fresh = false;
        return NULL;
    }
    if (w == NULL && m->n >= EBB_WORKERS_MAX) {
        w = s_free_seat(m);
        if (w == NULL) {
            return NULL;
        }
        memset(w, 0, sizeof(*w));
        snprintf(w->name, sizeof(w->name), "%s", name);
    } else if (w == NULL) {
        if (m->n == m->cap) {
            size_t cap = m->cap ? m->cap * 2 : 16;
            ebb_member *grown = realloc(m->members, cap * sizeof(*grown));
            if (grown == NULL) {
                return NULL;
            }
            m->members = grown;
            m->cap = cap;
        }
        w = &m->members[m->n++];
        memset(w, 0, sizeof(*w));
        snprintf(w->name, sizeof(w->name), "%s", name);
    }
    if (*fresh) {
        ebb_past_add(&w->past, w->incarnation);
        w->incarnation = incarnation;
        w->incarnations++;
        w->pid = 0; // told by a join
        w->n_ring = 0;
        w->beat = 0;
        w->first_gradient_ms = 0;
        w->staleness_sum = 0;
        w->staleness_count = 0;
        w->state = EBB_WORKER_JOINED;
    }
    w->seen_ms = now_ms;
    return w;
}

void ebb_membership_end(ebb_member *w, ebb_worker_state state)
{
    ebb_past_add(&w->past, w->incarnation);
    w->incarnation = 0;
    w->state = state;
}

static uint64_t s_later(uint64_t seen_ms, uint64_t ms, uint64_t now_ms)
{
    return seen_ms + ms < now_ms ? seen_ms + ms : now_ms;
}

void ebb_membership_postpone(ebb_membership *m, uint64_t ms, uint64_t now_ms)
{
    for (size_t i = 0; i < m->n; i++) {
        m->members[i].seen_ms = s_later(m->members[i].seen_ms, ms, now_ms);
    }
    for (uint32_t i = 0; i < m->n_shards; i++) {
        m->shards[i].seen_ms = s_later(m->shards[i].seen_ms, ms, now_ms);
    }
}

bool ebb_membership_beat(ebb_member *w, const Ebb__HeartbeatRequest *b, uint64_t now_ms)
{
    w->seen_ms = now_ms;
    if (b->beat <= w->beat) {
        return false;
    }
    w->beat = b->beat;
    if (w->n_ring == EBB_SAMPLES) {
        memmove(w->ring, w->ring + 1, (EBB_SAMPLES - 1) * sizeof(*w->ring));
        w->n_ring--;
    }
    w->ring[w->n_ring++] = (ebb_sample){now_ms, b->alive_ns, b->compute_ns, b->wait_ns, b->data_ns, b->steps, b->samples, b->tokens};
    w->first_gradient_ms = b->first_gradient_ms;
    if (b->staleness_count > w->staleness_count) {
        w->staleness = (b->staleness_sum - w->staleness_sum) / (double)(b->staleness_count - w->staleness_count);
        w->staleness_sum = b->staleness_sum;
        w->staleness_count = b->staleness_count;
    }
    if (b->loss_count > 0) {
        w->loss = b->loss_sum / b->loss_count;
    }
    return true;
}

// Counters are a peer's word: one that fell counts as unchanged, a part is at most the whole.
static double s_growth(uint64_t now, uint64_t then)
{
    return now > then ? (double)(now - then) : 0;
}

static double s_part(uint64_t now, uint64_t then, double whole)
{
    double part = s_growth(now, then) / whole;
    return part < 1 ? part : 1;
}

uint64_t ebb_membership_window_ms(const ebb_member *w)
{
    return w->n_ring < 2 ? 0 : (uint64_t)(s_growth(w->ring[w->n_ring - 1].alive_ns, w->ring[0].alive_ns) / 1e6);
}

void ebb_membership_rates(const ebb_member *w, double *utilization, double *wait, double *data, double *samples_per_s, double *tokens_per_s)
{
    *utilization = *wait = *data = *samples_per_s = *tokens_per_s = 0;
    if (w->n_ring < 2) {
        return;
    }
    const ebb_sample *a = &w->ring[0], *b = &w->ring[w->n_ring - 1];
    double alive = s_growth(b->alive_ns, a->alive_ns), seconds = alive * 1e-9;
    if (alive <= 0) {
        return;
    }
    *utilization = s_part(b->compute_ns, a->compute_ns, alive);
    *wait = s_part(b->wait_ns, a->wait_ns, alive);
    *data = s_part(b->data_ns, a->data_ns, alive);
    *samples_per_s = s_growth(b->samples, a->samples) / seconds;
    *tokens_per_s = s_growth(b->tokens, a->tokens) / seconds;
}

size_t ebb_membership_live(const ebb_membership *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n; i++) {
        n += m->members[i].state <= EBB_WORKER_DRAINING;
    }
    return n;
}

const char *ebb_worker_state_name(ebb_worker_state state)
{
    static const char *const names[] = {"joined", "running", "draining", "lost", "left"};
    return names[state];
}
