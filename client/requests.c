#include "client/requests.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/io.h"
#include "client/session.h"
#include "core/assert.h"

ebb_status ebb_requests_init(ebb_requests *table, ebb_session *session, uint32_t max)
{
    table->slot = calloc(max, sizeof(*table->slot));
    if (table->slot == NULL) {
        return EBB_NOMEM;
    }
    table->max = max;
    table->used = 0;
    for (uint32_t i = 0; i < max; i++) {
        table->slot[i].session = session;
    }
    pthread_mutex_init(&table->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&table->done, &attr);
    pthread_condattr_destroy(&attr);
    return EBB_OK;
}

static void s_drop(ebb_request *r)
{
    for (size_t i = 0; i < r->n_parts; i++) {
        ebb_buf_unref(&r->parts[i].buf);
    }
    r->n_parts = 0;
    for (uint32_t i = 0; i < r->n_subs; i++) {
        ebb_msg_fini(&r->subs[i].reply);
    }
    r->n_subs = 0;
}

void ebb_requests_fini(ebb_requests *table)
{
    for (uint32_t i = 0; i < table->max; i++) {
        ebb_request *r = &table->slot[i];
        s_drop(r);
        free(r->base);
        free(r->parts);
        free(r->subs);
    }
    free(table->slot);
    pthread_cond_destroy(&table->done);
    pthread_mutex_destroy(&table->lock);
    memset(table, 0, sizeof(*table));
}

ebb_status ebb_requests_take(ebb_requests *table, ebb_request **out)
{
    ebb_request *r = NULL;
    pthread_mutex_lock(&table->lock);
    for (uint32_t i = 0; i < table->max && r == NULL; i++) {
        if (table->slot[i].state == EBB_REQUEST_FREE) {
            r = &table->slot[i];
            r->state = EBB_REQUEST_SUBMITTED;
            r->cancelled = false;
            table->used++;
        }
    }
    pthread_mutex_unlock(&table->lock);
    if (r == NULL) {
        return EBB_AGAIN;
    }
    r->active = false;
    r->stream = r->seq = r->pin = r->layout = 0;
    r->attempt = r->slot = r->ttl_ms = 0;
    r->look_ahead = 0;
    r->whole = false;
    r->n_routes = r->n_subs = r->pending = 0;
    r->n_parts = 0;
    memset(&r->result, 0, sizeof(r->result));
    r->why[0] = '\0';
    *out = r;
    return EBB_OK;
}

void ebb_requests_give(ebb_requests *table, ebb_request *r)
{
    s_drop(r);
    pthread_mutex_lock(&table->lock);
    EBB_ASSERT(r->state != EBB_REQUEST_FREE && table->used > 0);
    r->state = EBB_REQUEST_FREE;
    table->used--;
    pthread_mutex_unlock(&table->lock);
}

void ebb_requests_finish(ebb_requests *table, ebb_request *r)
{
    pthread_mutex_lock(&table->lock);
    EBB_ASSERT(r->state == EBB_REQUEST_SUBMITTED);
    r->state = EBB_REQUEST_DONE;
    pthread_cond_broadcast(&table->done);
    pthread_mutex_unlock(&table->lock);
}

ebb_status ebb_request_reserve(ebb_request *r, uint32_t n_routes, size_t n_parts)
{
    if (n_routes > r->base_cap) {
        ebb_base *grown = realloc(r->base, n_routes * sizeof(*grown));
        if (grown == NULL) {
            return EBB_NOMEM;
        }
        r->base = grown;
        r->base_cap = n_routes;
    }
    if (n_parts > r->part_cap) {
        ebb_part *grown = realloc(r->parts, n_parts * sizeof(*grown));
        if (grown == NULL) {
            return EBB_NOMEM;
        }
        r->parts = grown;
        r->part_cap = n_parts;
    }
    return EBB_OK;
}

ebb_status ebb_request_reserve_subs(ebb_request *r, uint32_t n_subs)
{
    EBB_ASSERT(r->n_subs == 0);
    if (n_subs > r->sub_cap) {
        ebb_sub *grown = realloc(r->subs, n_subs * sizeof(*grown));
        if (grown == NULL) {
            return EBB_NOMEM;
        }
        r->subs = grown;
        r->sub_cap = n_subs;
    }
    return EBB_OK;
}

// How bad a shard's answer is for the request as a whole. The order decides what the caller has to do when shards differ: a refusal nobody can
// repair outranks a step to be computed again, which outranks steps missing before it.
static int s_rank(ebb_status st)
{
    switch (st) {
    case EBB_OK:
    case EBB_DUPLICATE:
        return 0;
    case EBB_GAP:
        return 1;
    case EBB_STALE:
        return 2;
    case EBB_BADVALUE:
        return 3;
    default:
        return 4;
    }
}

void ebb_request_summarize(ebb_request *r)
{
    ebb_result *res = &r->result;
    ebb_status worst = res->status; // set when the request failed as a whole
    res->applied = UINT64_MAX;
    res->version = UINT64_MAX;
    for (uint32_t i = 0; i < r->n_subs; i++) {
        const ebb_sub *sub = &r->subs[i];
        if (s_rank(sub->status) > s_rank(worst)) {
            worst = sub->status;
        }
        if (!sub->answered) {
            continue;
        }
        res->shards++;
        res->duplicates += sub->status == EBB_DUPLICATE;
        if (sub->applied < res->applied) {
            res->applied = sub->applied;
        }
        if (sub->chunk_count > 0 && sub->version < res->version) {
            res->version = sub->version;
        }
        if (sub->step_count > res->step_count) {
            res->step_count = sub->step_count;
        }
        if (sub->slots > res->slots) {
            res->slots = sub->slots;
        }
        if (r->kind == EBB_REQUEST_PUSH && sub->status == EBB_OK) {
            res->staleness_sum += sub->staleness;
            res->staleness_count++;
            if (sub->staleness > res->staleness_max) {
                res->staleness_max = sub->staleness;
            }
        }
        const ebb_base *base = &r->base[sub->route];
        if (base->known && base->incarnation != 0 && sub->incarnation != base->incarnation) {
            res->replaced = true;
        }
    }
    res->applied = res->applied == UINT64_MAX ? 0 : res->applied;
    res->version = res->version == UINT64_MAX ? 0 : res->version;
    res->status = worst == EBB_DUPLICATE ? EBB_OK : worst;
    res->why = r->why;
}

// ---- public ----

ebb_status ebb_request_poll(ebb_request *r)
{
    ebb_requests *table = &r->session->requests;
    pthread_mutex_lock(&table->lock);
    EBB_ASSERT(r->state != EBB_REQUEST_FREE);
    bool done = r->state == EBB_REQUEST_DONE;
    pthread_mutex_unlock(&table->lock);
    return done ? r->result.status : EBB_AGAIN;
}

ebb_status ebb_request_wait(ebb_request *r, uint32_t timeout_ms)
{
    ebb_requests *table = &r->session->requests;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&table->lock);
    EBB_ASSERT(r->state != EBB_REQUEST_FREE);
    while (r->state != EBB_REQUEST_DONE) {
        if (pthread_cond_timedwait(&table->done, &table->lock, &until) == ETIMEDOUT) {
            break;
        }
    }
    bool done = r->state == EBB_REQUEST_DONE;
    pthread_mutex_unlock(&table->lock);
    return done ? r->result.status : EBB_TIMEDOUT;
}

void ebb_request_free(ebb_request **request)
{
    ebb_request *r = *request;
    if (r == NULL) {
        return;
    }
    *request = NULL;
    ebb_requests *table = &r->session->requests;
    pthread_mutex_lock(&table->lock);
    EBB_ASSERT(r->state != EBB_REQUEST_FREE && !r->cancelled);
    bool done = r->state == EBB_REQUEST_DONE;
    r->cancelled = !done;
    pthread_mutex_unlock(&table->lock);
    if (done) {
        ebb_requests_give(table, r);
    } else {
        ebb_io_submit(r->session->io, r); // second arrival: the io thread frees it
    }
}

const ebb_result *ebb_request_result(const ebb_request *r)
{
    EBB_ASSERT(r->state == EBB_REQUEST_DONE);
    return &r->result;
}

uint64_t ebb_request_copy(const ebb_request *r, float *out)
{
    EBB_ASSERT(r->state == EBB_REQUEST_DONE && r->kind == EBB_REQUEST_PULL);
    const ebb_manifest *m = r->session->manifest;
    uint64_t copied = 0;
    for (uint32_t i = 0; i < r->n_subs; i++) {
        const ebb_msg *reply = &r->subs[i].reply;
        for (size_t p = 0; p < reply->n_parts; p++) {
            const ebb_part *part = &reply->parts[p];
            memcpy(out + m->chunks[part->chunk].offset, part->buf->data, part->buf->len);
            copied += part->numel;
        }
    }
    return copied;
}
