#include "client/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/io.h"
#include "core/assert.h"
#include "core/rng.h"

#define REQUESTS_MAX_DEFAULT 64

ebb_status ebb_session_new(const ebb_session_options *o, ebb_session **out)
{
    if (o->coordinator == NULL || o->coordinator[0] == '\0' || strlen(o->coordinator) >= EBB_ENDPOINT_MAX ||
        (o->worker != NULL && (o->worker[0] == '\0' || strlen(o->worker) >= EBB_NAME_MAX))) {
        return EBB_INVAL;
    }
    ebb_session *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return EBB_NOMEM;
    }
    ebb_status st = ebb_requests_init(&s->requests, s, o->requests_max > 0 ? o->requests_max : REQUESTS_MAX_DEFAULT);
    if (st != EBB_OK) {
        free(s);
        return st;
    }
    pthread_mutex_init(&s->lock, NULL);
    s->net = o->net;
    if (s->net == NULL) {
        st = ebb_net_new(&s->net);
        s->net_owned = st == EBB_OK;
    }
    s->is_worker = o->worker != NULL;
    s->cancel = o->cancel;
    s->incarnation = ebb_rng_system();
    memcpy(s->coordinator, o->coordinator, strlen(o->coordinator) + 1);
    if (s->is_worker) {
        memcpy(s->worker, o->worker, strlen(o->worker) + 1);
    }
    if (st != EBB_OK) {
        ebb_session_free(&s);
        return st;
    }
    *out = s;
    return EBB_OK;
}

void ebb_session_free(ebb_session **sp)
{
    ebb_session *s = *sp;
    if (s == NULL) {
        return;
    }
    *sp = NULL;
    ebb_io_stop(&s->io);
    ebb_requests_fini(&s->requests);
    if (s->spec != NULL) {
        ebb_pb_free(&s->spec->base);
    }
    ebb_manifest_free(&s->attached);
    if (s->net_owned) {
        ebb_net_free(&s->net);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

uint64_t ebb_session_job(const ebb_session *s)
{
    return s->job;
}

uint64_t ebb_session_incarnation(const ebb_session *s)
{
    return s->incarnation;
}

const char *ebb_session_worker(const ebb_session *s)
{
    return s->worker;
}

const Ebb__JobSpec *ebb_session_spec(const ebb_session *s)
{
    return s->spec;
}

uint64_t ebb_session_manifest_hash(const ebb_session *s)
{
    return s->manifest_hash;
}

uint32_t ebb_session_heartbeat_ms(const ebb_session *s)
{
    return s->heartbeat_ms;
}

const ebb_manifest *ebb_session_manifest(const ebb_session *s)
{
    return s->manifest;
}

const char *ebb_session_why(const ebb_session *s)
{
    return s->why;
}

void ebb_session_layout(ebb_session *s, uint32_t *n_routes, uint64_t *layout)
{
    pthread_mutex_lock(&s->lock);
    *n_routes = s->n_routes;
    *layout = s->layout;
    pthread_mutex_unlock(&s->lock);
}

uint32_t ebb_session_shards(ebb_session *s)
{
    uint32_t n;
    uint64_t layout;
    ebb_session_layout(s, &n, &layout);
    return n;
}

void ebb_session_traffic(ebb_session *s, ebb_traffic *out)
{
    ebb_traffic_counters *t = &s->traffic;
    *out = (ebb_traffic){.sends = t->sends,
                         .resends = t->resends,
                         .pings = t->pings,
                         .reopens = t->reopens,
                         .restarts = t->restarts,
                         .bytes_out = t->bytes_out,
                         .bytes_in = t->bytes_in,
                         .damaged = t->damaged};
}

ebb_status ebb_session_start(ebb_session *s, ebb_routes *routes)
{
    EBB_ASSERT(s->io == NULL && s->manifest != NULL);
    s->n_routes = routes->n;
    s->layout = routes->layout;
    return ebb_io_start(s, routes, &s->io);
}

// ---- making requests ----

// A slot that carries what the view knows (NULL: nothing known, the present layout).
static ebb_status s_take(ebb_session *s, const ebb_view *view, size_t n_parts, ebb_request **out)
{
    if (s->io == NULL) {
        return EBB_INVAL;
    }
    uint32_t n;
    uint64_t layout;
    const ebb_base *base = NULL;
    if (view != NULL) {
        ebb_view_base(view, &n, &layout, &base);
    } else {
        ebb_session_layout(s, &n, &layout);
    }
    ebb_request *r = NULL;
    EBB_TRY(ebb_requests_take(&s->requests, &r));
    ebb_status st = ebb_request_reserve(r, n, n_parts);
    if (st != EBB_OK) {
        ebb_requests_give(&s->requests, r);
        return st;
    }
    r->n_routes = n;
    r->layout = layout;
    if (base != NULL) {
        memcpy(r->base, base, n * sizeof(*base));
    } else {
        memset(r->base, 0, n * sizeof(*r->base));
    }
    *out = r;
    return EBB_OK;
}

static ebb_status s_add_parts(const ebb_manifest *m, const ebb_push *push, ebb_request *r)
{
    for (size_t c = 0; c < m->n_chunks; c++) {
        size_t bytes = (size_t)m->chunks[c].numel * sizeof(float);
        ebb_part *part = &r->parts[c];
        memset(part, 0, sizeof(*part));
        part->codec = EBB_CODEC_RAW;
        part->dtype = EBB_DTYPE_F32;
        part->kind = EBB_PART_GRAD;
        part->chunk = (uint32_t)c;
        part->numel = m->chunks[c].numel;
        if (push->chunks != NULL) {
            if (push->chunks[c]->len != bytes) {
                return EBB_INVAL;
            }
            part->buf = ebb_buf_ref(push->chunks[c]);
        } else {
            EBB_TRY(ebb_buf_slice(push->grad, (size_t)m->chunks[c].offset * sizeof(float), bytes, &part->buf));
        }
        r->n_parts = c + 1;
        ebb_part_seal(part);
    }
    return EBB_OK;
}

ebb_status ebb_push_pull(ebb_session *s, const ebb_push *push, const ebb_view *view, ebb_request **out)
{
    if (s->io == NULL || push->seq == 0 || (push->grad == NULL) == (push->chunks == NULL) ||
        (push->grad != NULL && push->grad->len != s->manifest->numel * sizeof(float))) {
        return EBB_INVAL;
    }
    ebb_request *r = NULL;
    EBB_TRY(s_take(s, view, s->manifest->n_chunks, &r));
    r->kind = EBB_REQUEST_PUSH;
    r->stream = push->stream;
    r->seq = push->seq;
    r->attempt = push->attempt;
    r->look_ahead = push->look_ahead;
    ebb_status st = s_add_parts(s->manifest, push, r);
    if (st != EBB_OK) {
        ebb_requests_give(&s->requests, r);
        return st;
    }
    *out = r;
    ebb_io_submit(s->io, r);
    return EBB_OK;
}

ebb_status ebb_pull(ebb_session *s, const ebb_pull_options *o, ebb_request **out)
{
    if ((o->slot != 0 || o->pin != 0) && (o->view != NULL || o->look_ahead != 0)) {
        return EBB_INVAL;
    }
    ebb_request *r = NULL;
    EBB_TRY(s_take(s, o->view, 0, &r));
    r->kind = EBB_REQUEST_PULL;
    r->pin = o->pin;
    r->slot = o->slot;
    r->look_ahead = o->look_ahead;
    *out = r;
    ebb_io_submit(s->io, r);
    return EBB_OK;
}

static ebb_status s_pin_request(ebb_session *s, ebb_request_kind kind, uint64_t pin, uint32_t ttl_ms, ebb_request **out)
{
    if (pin == 0) {
        return EBB_INVAL;
    }
    ebb_request *r = NULL;
    EBB_TRY(s_take(s, NULL, 0, &r));
    r->kind = kind;
    r->pin = pin;
    r->ttl_ms = ttl_ms;
    *out = r;
    ebb_io_submit(s->io, r);
    return EBB_OK;
}

ebb_status ebb_pin(ebb_session *s, uint64_t pin, uint32_t ttl_ms, ebb_request **out)
{
    return s_pin_request(s, EBB_REQUEST_PIN, pin, ttl_ms, out);
}

ebb_status ebb_unpin(ebb_session *s, uint64_t pin, ebb_request **out)
{
    return s_pin_request(s, EBB_REQUEST_UNPIN, pin, 0, out);
}
