// The blocking calls: one line to the coordinator per thread.
//
// core/rpc repeats a request on a fresh connection while the server is silent; here come the rules of a job on top: a coordinator that is away or busy is
// asked again with back-off for as long as the caller will wait, and what it refuses is handed up with its sentence.
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/session.h"
#include "core/assert.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/process.h"
#include "core/rpc.h"

#define SLICE_MS 2000 // one core/rpc call at most, so that the log line comes in time
#define BACKOFF_MS_FIRST 20
#define BACKOFF_MS_MAX 1000
#define LOG_EVERY_MS 10000

struct ebb_control {
    ebb_session *session;
    ebb_rpc *rpc;
    const _Atomic int *cancel;
    uint64_t logged_ms; // last "coordinator silent" line; 0: it answers
    char why[512];
};

ebb_status ebb_control_new(ebb_session *session, ebb_control **out)
{
    ebb_control *c = calloc(1, sizeof(*c));
    if (c == NULL) {
        return EBB_NOMEM;
    }
    c->session = session;
    c->cancel = session->cancel;
    ebb_status st = ebb_rpc_new(session->net, session->coordinator, &c->rpc);
    if (st != EBB_OK) {
        free(c);
        return st;
    }
    *out = c;
    return EBB_OK;
}

void ebb_control_free(ebb_control **cp)
{
    ebb_control *c = *cp;
    if (c == NULL) {
        return;
    }
    *cp = NULL;
    ebb_rpc_free(&c->rpc);
    free(c);
}

const char *ebb_control_why(const ebb_control *c)
{
    return c->why;
}

void ebb_control_set_cancel(ebb_control *c, const _Atomic int *cancel)
{
    c->cancel = cancel;
}

static ebb_status __attribute__((format(printf, 3, 4))) s_refuse(ebb_control *c, ebb_status st, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->why, sizeof(c->why), fmt, args);
    va_end(args);
    return st;
}

static bool s_cancelled(const ebb_control *c)
{
    return c->cancel != NULL && atomic_load(c->cancel) != 0;
}

static void s_log_waiting(ebb_control *c, const char *event, const char *text)
{
    uint64_t now = ebb_clock_ms();
    if (c->logged_ms == 0 || now - c->logged_ms >= LOG_EVERY_MS) {
        c->logged_ms = now;
        EBB_LOG(WARN, "client", event, "endpoint=%s reason=\"%s\" action=\"asking again\"", c->session->coordinator, text);
    }
}

// Sleeps, but not past the deadline, and wakes for a cancel.
static void s_back_off(const ebb_control *c, uint32_t ms, uint64_t deadline)
{
    uint64_t until = ebb_clock_ms() + ms;
    until = until < deadline ? until : deadline;
    for (uint64_t now = ebb_clock_ms(); now < until && !s_cancelled(c); now = ebb_clock_ms()) {
        uint64_t left = until - now;
        ebb_clock_sleep_ms(left < 50 ? left : 50);
    }
}

// One call with the contract of ebb.h ("control"). OK: *reply has a body of kind `want`, to be freed by ebb_msg_fini. On an error of the coordinator
// *reply is kept if keep_refusal and it has that body (freed by the caller as well, even though the status is not OK), else freed.
static ebb_status s_call_keep(ebb_control *c, Ebb__Envelope *env, const ebb_part *parts, size_t n_parts, Ebb__Envelope__BodyCase want,
                              uint32_t timeout_ms, bool keep_refusal, ebb_msg *reply)
{
    uint64_t start = ebb_clock_ms(), deadline = timeout_ms == 0 ? UINT64_MAX : start + timeout_ms;
    uint32_t backoff = BACKOFF_MS_FIRST;
    ebb_status last = EBB_TIMEDOUT;
    c->why[0] = '\0';
    for (;;) {
        ebb_msg_init(reply);
        if (s_cancelled(c)) {
            return s_refuse(c, EBB_CLOSED, "cancelled");
        }
        uint64_t now = ebb_clock_ms();
        if (now >= deadline) {
            if (c->why[0] == '\0') {
                s_refuse(c, last, "coordinator %s: no answer", c->session->coordinator);
            }
            return last;
        }
        uint32_t slice = deadline - now < SLICE_MS ? (uint32_t)(deadline - now) : SLICE_MS;
        ebb_status st = ebb_rpc_call(c->rpc, env, parts, n_parts, slice, 0, c->cancel, reply);
        if (st == EBB_CLOSED && s_cancelled(c)) {
            continue;
        }
        if (st != EBB_OK) { // TIMEDOUT, or this machine is out of something
            last = EBB_TIMEDOUT;
            s_log_waiting(c, "coordinator-silent", ebb_status_str(st));
            s_back_off(c, backoff, deadline);
            backoff = backoff * 2 > BACKOFF_MS_MAX ? BACKOFF_MS_MAX : backoff * 2;
            continue;
        }
        st = (ebb_status)reply->env->status;
        if (st == EBB_TRYLATER) {
            last = EBB_TRYLATER;
            s_refuse(c, st, "coordinator: %s", reply->env->detail);
            ebb_msg_fini(reply);
            if (ebb_clock_ms() - start >= LOG_EVERY_MS) { // shards that start together with us need no line
                s_log_waiting(c, "coordinator-not-ready", c->why);
            }
            s_back_off(c, backoff, deadline);
            backoff = backoff * 2 > BACKOFF_MS_MAX / 4 ? BACKOFF_MS_MAX / 4 : backoff * 2;
            continue;
        }
        c->logged_ms = 0;
        if (st == EBB_OK && reply->env->body_case == want) {
            return EBB_OK;
        }
        if (st == EBB_OK) {
            s_refuse(c, EBB_PROTO, "coordinator answered with message %d, expected %d", (int)reply->env->body_case, (int)want);
            st = EBB_PROTO;
        } else {
            s_refuse(c, st, "coordinator: %s%s%s", ebb_status_str(st), reply->env->detail[0] ? ": " : "", reply->env->detail);
        }
        if (!keep_refusal || reply->env->body_case != want) {
            ebb_msg_fini(reply);
        }
        return st;
    }
}

static ebb_status s_call(ebb_control *c, Ebb__Envelope *env, Ebb__Envelope__BodyCase want, uint32_t timeout_ms, ebb_msg *reply)
{
    return s_call_keep(c, env, NULL, 0, want, timeout_ms, false, reply);
}

// For calls whose answer is only "ok".
static ebb_status s_tell(ebb_control *c, Ebb__Envelope *env, uint32_t timeout_ms)
{
    ebb_msg reply;
    EBB_TRY(s_call(c, env, EBB__ENVELOPE__BODY_OK, timeout_ms, &reply));
    ebb_msg_fini(&reply);
    return EBB_OK;
}

static ebb_status s_set_spec(ebb_control *c, const Ebb__JobSpec *spec)
{
    if (spec == NULL || spec->model == NULL || spec->data == NULL || spec->optimizer == NULL || spec->consistency == NULL) {
        return s_refuse(c, EBB_PROTO, "coordinator sent an incomplete job");
    }
    ProtobufCMessage *copy = NULL;
    ebb_status st = ebb_pb_dup(&spec->base, &copy);
    if (st != EBB_OK) {
        return s_refuse(c, st, "job: %s", ebb_status_str(st));
    }
    if (c->session->spec != NULL) { // attached again
        ebb_pb_free(&c->session->spec->base);
    }
    c->session->spec = (Ebb__JobSpec *)copy;
    return EBB_OK;
}

ebb_status ebb_join(ebb_control *c, uint32_t timeout_ms)
{
    ebb_session *s = c->session;
    if (!s->is_worker) {
        return s_refuse(c, EBB_INVAL, "a session without a worker name cannot join");
    }
    char host[128];
    ebb_process_host(host, sizeof(host));
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__JoinRequest join = EBB__JOIN_REQUEST__INIT;
    join.worker = s->worker;
    join.incarnation = s->incarnation;
    join.pid = (uint32_t)getpid();
    join.host = host;
    join.build = (char *)ebb_build_info();
    env.body_case = EBB__ENVELOPE__BODY_JOIN_REQUEST;
    env.join_request = &join;
    ebb_msg reply;
    EBB_TRY(s_call(c, &env, EBB__ENVELOPE__BODY_JOIN_REPLY, timeout_ms, &reply));
    const Ebb__JoinReply *r = reply.env->join_reply;
    if (s->spec != NULL) { // the seat again, for a coordinator that forgot it; other threads read the session, so it stays as it is
        bool same = r->job == s->job && (r->manifest_hash == s->manifest_hash || s->manifest_hash == 0);
        ebb_msg_fini(&reply);
        return same ? EBB_OK : s_refuse(c, EBB_EXISTS, "the coordinator serves another job now");
    }
    ebb_status st = s_set_spec(c, r->spec);
    s->job = r->job;
    s->manifest_hash = r->manifest_hash;
    s->heartbeat_ms = r->heartbeat_ms > 0 ? r->heartbeat_ms : 1000;
    ebb_msg_fini(&reply);
    return st;
}

ebb_status ebb_attach(ebb_control *c, uint32_t timeout_ms)
{
    ebb_session *s = c->session;
    if (s->io != NULL) {
        return s_refuse(c, EBB_INVAL, "already connected");
    }
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__JobRequest ask = EBB__JOB_REQUEST__INIT;
    env.body_case = EBB__ENVELOPE__BODY_JOB_REQUEST;
    env.job_request = &ask;
    ebb_msg reply;
    EBB_TRY(s_call(c, &env, EBB__ENVELOPE__BODY_JOB_REPLY, timeout_ms, &reply));
    const Ebb__JobReply *r = reply.env->job_reply;
    ebb_status st = s_set_spec(c, r->spec);
    if (st == EBB_OK) {
        s->job = r->job;
        s->manifest_hash = r->manifest_hash;
        ebb_manifest_free(&s->attached);
        s->manifest = NULL;
        if (r->manifest_hash != 0) {
            if (reply.n_parts != 1 || reply.parts[0].kind != EBB_PART_MANIFEST) {
                st = s_refuse(c, EBB_PROTO, "coordinator sent no manifest with the job");
            } else {
                st = ebb_manifest_unpack(reply.parts[0].buf->data, reply.parts[0].buf->len, &s->attached);
                if (st == EBB_OK && ebb_manifest_hash(s->attached) != r->manifest_hash) {
                    ebb_manifest_free(&s->attached);
                    st = EBB_CORRUPT;
                }
                if (st != EBB_OK) {
                    s_refuse(c, st, "manifest from the coordinator: %s", ebb_status_str(st));
                }
                s->manifest = s->attached;
            }
        }
    }
    ebb_msg_fini(&reply);
    return st;
}

ebb_status ebb_manifest_register(ebb_control *c, const ebb_manifest *manifest, uint64_t *registered_hash, uint32_t timeout_ms)
{
    ebb_session *s = c->session;
    uint64_t mine = ebb_manifest_hash(manifest), ignored;
    registered_hash = registered_hash != NULL ? registered_hash : &ignored;
    *registered_hash = 0;
    uint8_t *bytes = NULL;
    size_t len = 0;
    EBB_TRY(ebb_manifest_pack(manifest, &bytes, &len));
    if (len > EBB_MANIFEST_BYTES_MAX) {
        free(bytes);
        return s_refuse(c, EBB_INVAL, "manifest takes %zu bytes, at most %d can be registered", len, EBB_MANIFEST_BYTES_MAX);
    }
    ebb_part part = {.codec = EBB_CODEC_RAW, .dtype = EBB_DTYPE_BYTES, .kind = EBB_PART_MANIFEST, .numel = len};
    ebb_status st = ebb_buf_dup(bytes, len, &part.buf);
    free(bytes);
    EBB_TRY(st);
    ebb_part_seal(&part);
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__ManifestRequest request = EBB__MANIFEST_REQUEST__INIT;
    request.job = s->job;
    env.body_case = EBB__ENVELOPE__BODY_MANIFEST_REQUEST;
    env.manifest_request = &request;
    ebb_msg reply;
    st = s_call_keep(c, &env, &part, 1, EBB__ENVELOPE__BODY_MANIFEST_REPLY, timeout_ms, true, &reply);
    ebb_buf_unref(&part.buf);
    if (reply.env != NULL) {
        *registered_hash = reply.env->manifest_reply->hash;
        ebb_msg_fini(&reply);
    }
    if (st == EBB_OK && *registered_hash != mine) {
        st = s_refuse(c, EBB_EXISTS, "another manifest is registered");
    }
    if (st == EBB_OK) {
        s->manifest_hash = mine;
    }
    return st;
}

ebb_status ebb_connect(ebb_control *c, const ebb_manifest *manifest, uint32_t timeout_ms)
{
    ebb_session *s = c->session;
    manifest = manifest != NULL ? manifest : s->attached;
    if (s->io != NULL || manifest == NULL) {
        return s_refuse(c, EBB_INVAL, s->io != NULL ? "already connected" : "no manifest is registered yet: no worker has joined the job");
    }
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__ShardMapRequest ask = EBB__SHARD_MAP_REQUEST__INIT;
    ask.job = s->job;
    env.body_case = EBB__ENVELOPE__BODY_SHARD_MAP_REQUEST;
    env.shard_map_request = &ask;
    ebb_msg reply;
    EBB_TRY(s_call(c, &env, EBB__ENVELOPE__BODY_SHARD_MAP_REPLY, timeout_ms, &reply));
    ebb_routes routes;
    char why[256] = "";
    ebb_status st = ebb_routes_parse(reply.env->shard_map_reply, (uint32_t)manifest->n_chunks, &routes, why);
    ebb_msg_fini(&reply);
    if (st == EBB_OK) {
        st = ebb_routes_check_push(&routes, manifest, why);
    }
    if (st == EBB_OK) {
        s->manifest = manifest;
        st = ebb_session_start(s, &routes);
        snprintf(why, sizeof(why), "cannot start the data path: %s", ebb_status_str(st));
    }
    if (st != EBB_OK) {
        ebb_routes_fini(&routes);
        snprintf(s->why, sizeof(s->why), "%s", why);
        return s_refuse(c, st, "%s", why);
    }
    return EBB_OK;
}

ebb_status ebb_lease_request(ebb_control *c, ebb_lease *out, uint32_t timeout_ms)
{
    ebb_session *s = c->session;
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__LeaseRequest ask = EBB__LEASE_REQUEST__INIT;
    ask.job = s->job;
    ask.worker = s->worker;
    ask.incarnation = s->incarnation;
    env.body_case = EBB__ENVELOPE__BODY_LEASE_REQUEST;
    env.lease_request = &ask;
    ebb_msg reply;
    EBB_TRY(s_call(c, &env, EBB__ENVELOPE__BODY_LEASE_REPLY, timeout_ms, &reply));
    const Ebb__LeaseReply *r = reply.env->lease_reply;
    *out = (ebb_lease){.kind = (ebb_lease_kind)r->kind,
                       .id = r->lease,
                       .stream = r->stream,
                       .pass = r->pass,
                       .unit = r->unit,
                       .seq_first = r->seq_first,
                       .seq_last = r->seq_last,
                       .eval_id = r->eval_id,
                       .attempt = r->attempt,
                       .ttl_ms = r->ttl_ms,
                       .retry_ms = r->retry_ms};
    ebb_msg_fini(&reply);
    if ((int)out->kind < EBB_LEASE_NONE || out->kind > EBB_LEASE_DRAIN) {
        return s_refuse(c, EBB_PROTO, "coordinator answered with lease kind %d", (int)out->kind);
    }
    if (out->kind == EBB_LEASE_TRAIN && (out->seq_first == 0 || out->seq_last < out->seq_first)) {
        return s_refuse(c, EBB_PROTO, "lease of steps %llu..%llu", (unsigned long long)out->seq_first, (unsigned long long)out->seq_last);
    }
    return EBB_OK;
}

ebb_status ebb_lease_return(ebb_control *c, uint64_t lease, uint64_t seq_done, const char *reason, uint32_t timeout_ms)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__LeaseReturn back = EBB__LEASE_RETURN__INIT;
    back.job = c->session->job;
    back.worker = c->session->worker;
    back.incarnation = c->session->incarnation;
    back.lease = lease;
    back.seq_done = seq_done;
    back.reason = (char *)reason;
    env.body_case = EBB__ENVELOPE__BODY_LEASE_RETURN;
    env.lease_return = &back;
    return s_tell(c, &env, timeout_ms);
}

ebb_status ebb_heartbeat(ebb_control *c, Ebb__HeartbeatRequest *beat, ebb_orders *out, uint32_t timeout_ms)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    beat->job = c->session->job;
    beat->worker = c->session->worker;
    beat->incarnation = c->session->incarnation;
    env.body_case = EBB__ENVELOPE__BODY_HEARTBEAT_REQUEST;
    env.heartbeat_request = beat;
    ebb_msg reply;
    EBB_TRY(s_call(c, &env, EBB__ENVELOPE__BODY_HEARTBEAT_REPLY, timeout_ms, &reply));
    const Ebb__HeartbeatReply *r = reply.env->heartbeat_reply;
    memset(out, 0, sizeof(*out));
    out->drain = r->drain != 0;
    for (size_t i = 0; i < r->n_leases_lost && i < EBB_ORDERS_LOST_MAX; i++) {
        out->lost[out->n_lost++] = r->leases_lost[i];
    }
    ebb_msg_fini(&reply);
    return EBB_OK;
}

ebb_status ebb_skip(ebb_control *c, uint64_t lease, uint64_t stream, uint64_t seq, const char *reason, bool *skip, uint32_t timeout_ms)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__SkipRequest ask = EBB__SKIP_REQUEST__INIT;
    ask.job = c->session->job;
    ask.worker = c->session->worker;
    ask.lease = lease;
    ask.stream = stream;
    ask.seq = seq;
    ask.reason = (char *)reason;
    env.body_case = EBB__ENVELOPE__BODY_SKIP_REQUEST;
    env.skip_request = &ask;
    ebb_msg reply;
    EBB_TRY(s_call(c, &env, EBB__ENVELOPE__BODY_SKIP_REPLY, timeout_ms, &reply));
    *skip = reply.env->skip_reply->skip != 0;
    ebb_msg_fini(&reply);
    return EBB_OK;
}

ebb_status ebb_eval_report(ebb_control *c, uint64_t lease, uint64_t eval_id, double loss, double accuracy, uint64_t samples, uint64_t version,
                           uint32_t timeout_ms)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__EvalReport report = EBB__EVAL_REPORT__INIT;
    report.job = c->session->job;
    report.worker = c->session->worker;
    report.lease = lease;
    report.eval_id = eval_id;
    report.loss = loss;
    report.accuracy = accuracy;
    report.samples = samples;
    report.version = version;
    env.body_case = EBB__ENVELOPE__BODY_EVAL_REPORT;
    env.eval_report = &report;
    return s_tell(c, &env, timeout_ms);
}

ebb_status ebb_leave(ebb_control *c, const char *reason, uint32_t timeout_ms)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__LeaveRequest leave = EBB__LEAVE_REQUEST__INIT;
    leave.job = c->session->job;
    leave.worker = c->session->worker;
    leave.incarnation = c->session->incarnation;
    leave.reason = (char *)reason;
    env.body_case = EBB__ENVELOPE__BODY_LEAVE_REQUEST;
    env.leave_request = &leave;
    return s_tell(c, &env, timeout_ms);
}
