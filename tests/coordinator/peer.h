// Requests to a coordinator, as workers, shards and people make them; either into ebb_coordinator_handle or over a socket: `ask` decides.
#ifndef EBB_TESTS_COORDINATOR_PEER_H
#define EBB_TESTS_COORDINATOR_PEER_H

#include <string.h>

#include "core/manifest.h"
#include "core/wire.h"
#include "tests/support/check.h"

// Sends env (and part, or NULL) and waits for the answer; the caller frees it with ebb_msg_fini.
typedef void peer_ask_fn(void *arg, Ebb__Envelope *env, const ebb_part *part, ebb_msg *reply);

typedef struct peer {
    peer_ask_fn *ask;
    void *arg;
    uint64_t job;
} peer;

#define PEER_BODY(kind, field, value)           \
    Ebb__Envelope env = EBB__ENVELOPE__INIT;    \
    env.body_case = EBB__ENVELOPE__BODY_##kind; \
    env.field = (value)

// Status of the answer. job is remembered.
static inline ebb_status peer_join(peer *p, const char *worker, uint64_t incarnation, uint32_t pid)
{
    Ebb__JoinRequest q = EBB__JOIN_REQUEST__INIT;
    q.worker = (char *)worker;
    q.incarnation = incarnation;
    q.pid = pid;
    q.host = "here";
    PEER_BODY(JOIN_REQUEST, join_request, &q);
    ebb_msg r;
    p->ask(p->arg, &env, NULL, &r);
    ebb_status st = (ebb_status)r.env->status;
    if (st == EBB_OK) {
        assert_int_equal(r.env->body_case, EBB__ENVELOPE__BODY_JOIN_REPLY);
        assert_non_null(r.env->join_reply->spec);
        assert_true(r.env->join_reply->heartbeat_ms > 0);
        p->job = r.env->join_reply->job;
    }
    ebb_msg_fini(&r);
    return st;
}

static inline ebb_status peer_manifest(peer *p, const ebb_manifest *m)
{
    uint8_t *bytes = NULL;
    size_t len = 0;
    CHECK_OK(ebb_manifest_pack(m, &bytes, &len));
    ebb_part part = {.kind = EBB_PART_MANIFEST, .dtype = EBB_DTYPE_BYTES, .numel = len};
    CHECK_OK(ebb_buf_dup(bytes, len, &part.buf));
    free(bytes);
    ebb_part_seal(&part);
    Ebb__ManifestRequest q = EBB__MANIFEST_REQUEST__INIT;
    q.job = p->job;
    PEER_BODY(MANIFEST_REQUEST, manifest_request, &q);
    ebb_msg r;
    p->ask(p->arg, &env, &part, &r);
    ebb_status st = (ebb_status)r.env->status;
    ebb_msg_fini(&r);
    ebb_buf_unref(&part.buf);
    return st;
}

// A manifest with one tensor of that many elements, in chunks of chunk_elems.
static inline ebb_manifest *peer_model(uint64_t numel, uint32_t chunk_elems)
{
    ebb_manifest *m = NULL;
    CHECK_OK(ebb_manifest_new(&m, chunk_elems));
    CHECK_OK(ebb_manifest_add(m, "count", 1, &numel, EBB_INIT_ZEROS, 0, 1));
    CHECK_OK(ebb_manifest_seal(m));
    return m;
}

static inline Ebb__LeaseReply peer_lease(peer *p, const char *worker, uint64_t incarnation)
{
    Ebb__LeaseRequest q = EBB__LEASE_REQUEST__INIT;
    q.job = p->job;
    q.worker = (char *)worker;
    q.incarnation = incarnation;
    PEER_BODY(LEASE_REQUEST, lease_request, &q);
    ebb_msg r;
    p->ask(p->arg, &env, NULL, &r);
    assert_int_equal(r.env->status, EBB_OK);
    assert_int_equal(r.env->body_case, EBB__ENVELOPE__BODY_LEASE_REPLY);
    Ebb__LeaseReply lease = *r.env->lease_reply;
    ebb_msg_fini(&r);
    return lease;
}

// Number of leases lost; *drain.
// compute_ns: of beat seconds that the worker has lived.
static inline size_t peer_beat_busy(peer *p, const char *worker, uint64_t incarnation, uint64_t beat, uint64_t lease, uint64_t compute_ns,
                                    bool *drain)
{
    Ebb__HeartbeatRequest q = EBB__HEARTBEAT_REQUEST__INIT;
    q.job = p->job;
    q.worker = (char *)worker;
    q.incarnation = incarnation;
    q.beat = beat;
    q.n_leases = lease != 0;
    q.leases = &lease;
    q.alive_ns = beat * 1000000000;
    q.compute_ns = compute_ns;
    q.steps = beat * 10;
    q.samples = beat * 10;
    q.loss_sum = 20;
    q.loss_count = 10;
    PEER_BODY(HEARTBEAT_REQUEST, heartbeat_request, &q);
    ebb_msg r;
    p->ask(p->arg, &env, NULL, &r);
    assert_int_equal(r.env->status, EBB_OK);
    size_t lost = r.env->heartbeat_reply->n_leases_lost;
    *drain = r.env->heartbeat_reply->drain;
    ebb_msg_fini(&r);
    return lost;
}

static inline size_t peer_beat(peer *p, const char *worker, uint64_t incarnation, uint64_t beat, uint64_t lease, bool *drain)
{
    return peer_beat_busy(p, worker, incarnation, beat, lease, beat * 700000000, drain);
}

static inline void peer_tell(peer *p, Ebb__Envelope *env)
{
    ebb_msg r;
    p->ask(p->arg, env, NULL, &r);
    assert_int_equal(r.env->status, EBB_OK);
    assert_int_equal(r.env->body_case, EBB__ENVELOPE__BODY_OK);
    ebb_msg_fini(&r);
}

static inline void peer_return(peer *p, const char *worker, uint64_t incarnation, uint64_t lease, uint64_t done)
{
    Ebb__LeaseReturn q = EBB__LEASE_RETURN__INIT;
    q.job = p->job;
    q.worker = (char *)worker;
    q.incarnation = incarnation;
    q.lease = lease;
    q.seq_done = done;
    q.reason = "test";
    PEER_BODY(LEASE_RETURN, lease_return, &q);
    peer_tell(p, &env);
}

static inline void peer_leave(peer *p, const char *worker, uint64_t incarnation)
{
    Ebb__LeaveRequest q = EBB__LEAVE_REQUEST__INIT;
    q.job = p->job;
    q.worker = (char *)worker;
    q.incarnation = incarnation;
    q.reason = "test";
    PEER_BODY(LEAVE_REQUEST, leave_request, &q);
    peer_tell(p, &env);
}

static inline void peer_gone(peer *p, const char *worker, uint32_t pid)
{
    Ebb__WorkerGone q = EBB__WORKER_GONE__INIT;
    q.worker = (char *)worker;
    q.pid = pid;
    q.reason = "signal 9";
    PEER_BODY(WORKER_GONE, worker_gone, &q);
    peer_tell(p, &env);
}

static inline void peer_drain(peer *p, bool shutdown)
{
    Ebb__DrainRequest q = EBB__DRAIN_REQUEST__INIT;
    q.reason = "test";
    q.shutdown = shutdown;
    PEER_BODY(DRAIN_REQUEST, drain_request, &q);
    peer_tell(p, &env);
}

static inline void peer_status(peer *p, ebb_msg *reply)
{
    Ebb__StatusRequest q = EBB__STATUS_REQUEST__INIT;
    PEER_BODY(STATUS_REQUEST, status_request, &q);
    p->ask(p->arg, &env, NULL, reply);
    assert_int_equal(reply->env->status, EBB_OK);
    assert_int_equal(reply->env->body_case, EBB__ENVELOPE__BODY_STATUS_REPLY);
}

// A shard that applies what it is told to, and remembers its orders.
#define PEER_UNITS 64
typedef struct peer_shard {
    uint32_t number;
    uint64_t incarnation, report, epoch, hash;
    uint32_t first_chunk, chunk_count;
    uint64_t applied[PEER_UNITS], durable[PEER_UNITS];
    bool full; // the next report is complete
    uint64_t retired_below, n_retired;
    size_t n_skips;
    uint64_t skip_stream, skip_seq; // the first one ordered
    bool snapshot, shutdown, installed_now;
} peer_shard;

static inline ebb_status peer_report(peer *p, peer_shard *s)
{
    Ebb__ShardReport q = EBB__SHARD_REPORT__INIT;
    Ebb__ShardJobReport job = EBB__SHARD_JOB_REPORT__INIT, *jobs[1] = {&job};
    Ebb__Watermark marks[PEER_UNITS], *refs[PEER_UNITS];
    q.shard = s->number;
    q.incarnation = s->incarnation;
    q.endpoint = "ipc://nowhere";
    q.pid = 4242;
    q.report = ++s->report;
    q.jobs = jobs;
    q.n_jobs = s->hash != 0;
    job.job = p->job;
    job.manifest_hash = s->hash;
    job.epoch = s->epoch;
    job.first_chunk = s->first_chunk;
    job.chunk_count = s->chunk_count;
    job.full = true;
    job.since = s->full ? 0 : s->report - 1;
    job.retired_below = s->retired_below;
    job.watermarks = refs;
    for (uint64_t u = 0; u < PEER_UNITS; u++) {
        if (s->applied[u] > 0) {
            Ebb__Watermark *w = &marks[job.n_watermarks];
            ebb__watermark__init(w);
            w->stream = u;
            w->applied = s->applied[u];
            w->durable = s->durable[u];
            job.version += s->applied[u];
            refs[job.n_watermarks++] = w;
        }
    }
    PEER_BODY(SHARD_REPORT, shard_report, &q);
    ebb_msg r;
    p->ask(p->arg, &env, NULL, &r);
    ebb_status st = (ebb_status)r.env->status;
    if (st == EBB_OK) {
        const Ebb__ShardReportReply *o = r.env->shard_report_reply;
        s->installed_now = o->install != NULL;
        if (o->install != NULL) {
            assert_int_equal(r.n_parts, 1);
            assert_int_equal(r.parts[0].kind, EBB_PART_MANIFEST);
            s->hash = o->install->manifest_hash;
            s->epoch = o->install->epoch;
            s->first_chunk = o->install->first_chunk;
            s->chunk_count = o->install->chunk_count;
        }
        s->full = o->want_full || o->install != NULL;
        s->retired_below = o->retired_below;
        s->n_retired = o->n_retired;
        s->n_skips = o->n_skips;
        if (o->n_skips > 0) {
            s->skip_stream = o->skips[0]->stream;
            s->skip_seq = o->skips[0]->seq;
        }
        s->snapshot = o->snapshot;
        s->shutdown = o->shutdown;
    }
    ebb_msg_fini(&r);
    return st;
}

// A new process of the shard, with `durable` as what it recovered.
static inline void peer_shard_restart(peer_shard *s, uint64_t incarnation)
{
    memcpy(s->applied, s->durable, sizeof(s->applied));
    s->incarnation = incarnation;
    s->full = true;
}

#endif
