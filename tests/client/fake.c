#include "tests/client/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/assert.h"
#include "core/clock.h"
#include "core/rng.h"

#define MUST(expr)                                                               \
    do {                                                                         \
        ebb_status must_st_ = (expr);                                            \
        if (must_st_ != EBB_OK) {                                                \
            fprintf(stderr, "fake: %s: %s\n", #expr, ebb_status_name(must_st_)); \
            abort();                                                             \
        }                                                                        \
    } while (0)

static void s_reply(ebb_socket *router, const ebb_peer *peer, Ebb__Envelope *env, const ebb_part *parts, size_t n)
{
    ebb_frames frames;
    ebb_frames_init(&frames);
    MUST(ebb_msg_pack(env, parts, n, &frames));
    (void)ebb_socket_send(router, peer, &frames); // the peer may be gone
    ebb_frames_fini(&frames);
}

// ---- shard ----

void fake_shard_init(fake_shard *s, ebb_net *net, const char *endpoint, const ebb_manifest *m, uint32_t shard, uint32_t first, uint32_t count,
                     uint64_t seed)
{
    memset(s, 0, sizeof(*s));
    s->net = net;
    snprintf(s->endpoint, sizeof(s->endpoint), "%s", endpoint);
    s->manifest = m;
    s->shard = shard;
    s->first_chunk = first;
    s->chunk_count = count;
    s->lr = 0.5f;
    s->epoch = 1;
    s->params = calloc(m->numel, sizeof(float));
    s->pinned = calloc(m->numel, sizeof(float));
    EBB_ASSERT(s->params != NULL && s->pinned != NULL);
    for (uint32_t c = 0; c < m->n_chunks; c++) {
        ebb_manifest_init_chunk(m, seed, c, s->params + m->chunks[c].offset);
    }
}

// Chunks newer than `have` (all if whole) as parts.
static size_t s_gather(fake_shard *s, const float *from, uint32_t first, uint32_t count, bool whole, uint64_t have, uint16_t kind, ebb_part *parts)
{
    size_t n = 0;
    for (uint32_t c = first; c < first + count; c++) {
        if (!whole && s->chunk_version[c] <= have) {
            continue;
        }
        const ebb_chunk *chunk = &s->manifest->chunks[c];
        parts[n] = (ebb_part){.kind = kind, .dtype = EBB_DTYPE_F32, .chunk = c, .version = s->chunk_version[c], .numel = chunk->numel};
        MUST(ebb_buf_dup(from + chunk->offset, chunk->numel * sizeof(float), &parts[n].buf));
        ebb_part_seal(&parts[n]);
        n++;
    }
    return n;
}

static int s_push(fake_shard *s, const Ebb__PushRequest *p, const ebb_msg *msg, fake_action action)
{
    EBB_ASSERT(p->stream < FAKE_STREAMS);
    if (p->seq <= s->applied[p->stream]) {
        return EBB__VERDICT__VERDICT_DUPLICATE;
    }
    if (p->seq > s->applied[p->stream] + 1) {
        return EBB__VERDICT__VERDICT_GAP;
    }
    if (action == FAKE_STALE) {
        return EBB__VERDICT__VERDICT_STALE;
    }
    if (action == FAKE_BAD_VALUE || msg->n_parts != s->chunk_count) {
        return EBB__VERDICT__VERDICT_BAD_VALUE;
    }
    s->version++;
    for (size_t i = 0; i < msg->n_parts; i++) {
        const ebb_part *part = &msg->parts[i];
        const ebb_chunk *chunk = &s->manifest->chunks[part->chunk];
        EBB_ASSERT(part->kind == EBB_PART_GRAD && part->numel == chunk->numel && part->chunk == s->first_chunk + i);
        for (uint32_t k = 0; k < chunk->numel; k++) {
            float g;
            memcpy(&g, part->buf->data + k * sizeof(float), sizeof(g));
            s->params[chunk->offset + k] -= s->lr * g;
        }
        s->chunk_version[part->chunk] = s->version;
    }
    s->applied[p->stream] = p->seq;
    return EBB__VERDICT__VERDICT_APPLIED;
}

static void s_answer(fake_shard *s, ebb_socket *router, const ebb_peer *peer, const ebb_msg *msg)
{
    const Ebb__Envelope *in = msg->env;
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    env.request_id = in->request_id;
    if (in->body_case == EBB__ENVELOPE__BODY_PING) {
        Ebb__Pong pong = EBB__PONG__INIT;
        pong.nonce = in->ping->nonce;
        pong.incarnation = s->incarnation;
        env.body_case = EBB__ENVELOPE__BODY_PONG;
        env.pong = &pong;
        s_reply(router, peer, &env, NULL, 0);
        return;
    }
    fake_action action = s->decide != NULL ? s->decide(s->decide_arg, in) : FAKE_OBEY;
    if (action == FAKE_DROP) {
        return;
    }
    if (action == FAKE_SLOW) {
        ebb_clock_sleep_ms(300);
    }
    if (action == FAKE_GARBAGE) {
        ebb_frames frames;
        ebb_frames_init(&frames);
        ebb_buf *buf = NULL;
        MUST(ebb_buf_dup("\xff\xff\xff garbage", 11, &buf));
        MUST(ebb_frames_add_take(&frames, &buf));
        (void)ebb_socket_send(router, peer, &frames);
        ebb_frames_fini(&frames);
        return;
    }
    ebb_part *parts = calloc(EBB_PARTS_MAX, sizeof(*parts));
    EBB_ASSERT(parts != NULL);
    size_t n = 0;
    Ebb__PushReply push = EBB__PUSH_REPLY__INIT;
    Ebb__PullReply pull = EBB__PULL_REPLY__INIT;
    Ebb__PinReply pin = EBB__PIN_REPLY__INIT;
    Ebb__Ok ok = EBB__OK__INIT;
    if (action == FAKE_TRYLATER || action == FAKE_WRONGSHARD) {
        env.status = action == FAKE_TRYLATER ? EBB_TRYLATER : EBB_WRONGSHARD;
        env.body_case = EBB__ENVELOPE__BODY_OK;
        env.ok = &ok;
    } else if (in->body_case == EBB__ENVELOPE__BODY_PUSH_REQUEST) {
        const Ebb__PushRequest *p = in->push_request;
        if (p->epoch != s->epoch) {
            env.status = EBB_WRONGSHARD;
            env.body_case = EBB__ENVELOPE__BODY_OK;
            env.ok = &ok;
        } else {
            uint64_t tau = s->version > p->base_version ? s->version - p->base_version : 0;
            push.verdict = (Ebb__Verdict)s_push(s, p, msg, action);
            push.version = s->version;
            push.applied = s->applied[p->stream];
            push.durable = push.applied;
            push.staleness = tau;
            push.incarnation = s->incarnation;
            push.credit = s->credit;
            uint32_t at = s->n_log;
            if (at < FAKE_LOG) {
                s->log[at] = (fake_push){.stream = p->stream,
                                         .seq = p->seq,
                                         .base_version = p->base_version,
                                         .verdict = (int)push.verdict,
                                         .attempt = p->attempt,
                                         .want_pull = p->want_pull != 0,
                                         .look_ahead = p->look_ahead};
                s->n_log = at + 1;
            }
            if (p->want_pull) {
                n = s_gather(s, s->params, s->first_chunk, s->chunk_count, false, p->have_version, EBB_PART_PARAM, parts);
            }
            env.body_case = EBB__ENVELOPE__BODY_PUSH_REPLY;
            env.push_reply = &push;
        }
    } else if (in->body_case == EBB__ENVELOPE__BODY_PULL_REQUEST) {
        const Ebb__PullRequest *p = in->pull_request;
        s->pulls++;
        s->whole_pulls += p->have_nothing != 0;
        pull.version = s->version;
        pull.slots = 1;
        pull.incarnation = s->incarnation;
        pull.step_count = s->version;
        env.body_case = EBB__ENVELOPE__BODY_PULL_REPLY;
        env.pull_reply = &pull;
        if (p->pin != 0 && p->pin != s->pin) {
            env.status = EBB_NOENT;
            env.detail = "no such pin";
        } else {
            uint32_t count = p->chunk_count > 0 ? p->chunk_count : s->chunk_count;
            uint32_t first = p->chunk_count > 0 ? p->first_chunk : s->first_chunk;
            pull.version = p->pin != 0 ? s->pinned_version : s->version;
            n = s_gather(s, p->pin != 0 ? s->pinned : s->params, first, count, p->have_nothing, p->have_version,
                         p->slot > 0 ? EBB_PART_SLOT : EBB_PART_PARAM, parts);
        }
    } else if (in->body_case == EBB__ENVELOPE__BODY_PIN_REQUEST) {
        memcpy(s->pinned, s->params, s->manifest->numel * sizeof(float));
        s->pin = in->pin_request->pin;
        s->pinned_version = pin.version = s->version;
        env.body_case = EBB__ENVELOPE__BODY_PIN_REPLY;
        env.pin_reply = &pin;
    } else {
        s->pin = in->body_case == EBB__ENVELOPE__BODY_UNPIN_REQUEST ? 0 : s->pin;
        env.body_case = EBB__ENVELOPE__BODY_OK;
        env.ok = &ok;
    }
    if (action == FAKE_CORRUPT && n > 0) {
        parts[0].buf->data[0] ^= 1; // after the checksum was made
    }
    if (action != FAKE_DROP_REPLY) {
        s_reply(router, peer, &env, parts, n);
    }
    for (size_t i = 0; i < n; i++) {
        ebb_buf_unref(&parts[i].buf);
    }
    free(parts);
}

static void *s_shard_run(void *arg)
{
    fake_shard *s = arg;
    ebb_socket *router = NULL;
    char why[256];
    ebb_status st = ebb_router_open(s->net, s->endpoint, false, &router, why);
    for (int i = 0; st == EBB_EXISTS && i < 200; i++) { // the predecessor's socket closes in the background
        ebb_clock_sleep_ms(10);
        st = ebb_router_open(s->net, s->endpoint, false, &router, why);
    }
    if (st != EBB_OK) {
        fprintf(stderr, "fake shard: %s\n", why);
        abort();
    }
    while (!s->stop) {
        ebb_poll item = {.socket = router};
        ebb_net_poll(&item, 1, 10);
        ebb_peer peer;
        ebb_frames frames;
        while (!s->stop && ebb_socket_recv(router, &peer, &frames) == EBB_OK) {
            ebb_msg msg;
            if (!s->mute && ebb_msg_unpack(&frames, true, &msg, NULL) == EBB_OK) {
                s_answer(s, router, &peer, &msg);
                ebb_msg_fini(&msg);
            }
            ebb_frames_fini(&frames);
        }
    }
    ebb_socket_close(&router);
    return NULL;
}

void fake_shard_start(fake_shard *s)
{
    EBB_ASSERT(!s->running);
    s->incarnation = ebb_rng_system();
    s->stop = false;
    s->pin = 0;
    s->running = true;
    int rc = pthread_create(&s->thread, NULL, s_shard_run, s);
    EBB_ASSERT(rc == 0);
}

void fake_shard_stop(fake_shard *s)
{
    if (s->running) {
        s->stop = true;
        pthread_join(s->thread, NULL);
        s->running = false;
    }
}

// The path of an ipc endpoint outlives its socket.
static void s_unlink(const char *endpoint)
{
    if (strncmp(endpoint, "ipc://", 6) == 0) {
        unlink(endpoint + 6);
    }
}

void fake_shard_fini(fake_shard *s)
{
    fake_shard_stop(s);
    s_unlink(s->endpoint);
    free(s->params);
    free(s->pinned);
}

// ---- coordinator ----

void fake_coordinator_init(fake_coordinator *c, ebb_net *net, const char *endpoint, Ebb__JobSpec *spec, const ebb_manifest *m, fake_shard **shards,
                           uint32_t n_shards)
{
    memset(c, 0, sizeof(*c));
    c->net = net;
    snprintf(c->endpoint, sizeof(c->endpoint), "%s", endpoint);
    c->spec = spec;
    c->manifest = m;
    c->manifest_hash = m != NULL ? ebb_manifest_hash(m) : 0;
    c->shards = shards;
    c->n_shards = n_shards;
    c->epoch = 1;
}

static void s_map(fake_coordinator *c, ebb_socket *router, const ebb_peer *peer, Ebb__Envelope *env)
{
    Ebb__ShardMapReply map = EBB__SHARD_MAP_REPLY__INIT;
    Ebb__ShardInfo info[16], *list[16];
    EBB_ASSERT(c->n_shards <= 16);
    for (uint32_t i = 0; i < c->n_shards; i++) {
        ebb__shard_info__init(&info[i]);
        info[i].shard = c->shards[i]->shard;
        info[i].endpoint = c->shards[i]->endpoint;
        info[i].incarnation = c->shards[i]->incarnation;
        info[i].first_chunk = c->shards[i]->first_chunk;
        info[i].chunk_count = c->shards[i]->chunk_count;
        info[i].ready = true;
        list[i] = &info[i];
    }
    c->maps++;
    map.epoch = c->epoch;
    map.shards = list;
    map.n_shards = c->n_shards;
    env->body_case = EBB__ENVELOPE__BODY_SHARD_MAP_REPLY;
    env->shard_map_reply = &map;
    if (c->manifest_hash == 0 || c->n_shards == 0) {
        env->status = EBB_TRYLATER;
    }
    s_reply(router, peer, env, NULL, 0);
}

static void s_lease(fake_coordinator *c, ebb_socket *router, const ebb_peer *peer, Ebb__Envelope *env)
{
    Ebb__LeaseReply lease = EBB__LEASE_REPLY__INIT;
    uint32_t at = c->next_lease;
    if (c->drain) {
        lease.kind = EBB__LEASE_KIND__LEASE_DRAIN;
    } else if (at < c->n_leases) {
        lease.kind = (Ebb__LeaseKind)c->lease[at].kind;
        lease.lease = 1000 + at;
        lease.stream = c->lease[at].stream;
        lease.unit = lease.stream;
        lease.seq_first = c->lease[at].seq_first;
        lease.seq_last = c->lease[at].seq_last;
        lease.eval_id = c->lease[at].eval_id;
        lease.attempt = 1;
        lease.ttl_ms = 5000;
        c->next_lease = at + 1;
    } else {
        lease.kind = c->hold ? EBB__LEASE_KIND__LEASE_NONE : EBB__LEASE_KIND__LEASE_FINISHED;
        lease.retry_ms = 50;
    }
    env->body_case = EBB__ENVELOPE__BODY_LEASE_REPLY;
    env->lease_reply = &lease;
    s_reply(router, peer, env, NULL, 0);
}

static void s_beat(fake_coordinator *c, ebb_socket *router, const ebb_peer *peer, const Ebb__HeartbeatRequest *b, Ebb__Envelope *env)
{
    Ebb__HeartbeatReply reply = EBB__HEARTBEAT_REPLY__INIT;
    uint64_t lost = c->lose_lease;
    c->beats++;
    c->loss_sum += b->loss_sum;
    c->loss_count += b->loss_count;
    c->steps = b->steps;
    c->samples = b->samples;
    c->tokens = b->tokens;
    c->first_gradient_ms = b->first_gradient_ms;
    reply.drain = c->drain;
    for (size_t i = 0; i < b->n_leases; i++) {
        if (b->leases[i] == lost) {
            reply.leases_lost = &lost;
            reply.n_leases_lost = 1;
        }
    }
    env->body_case = EBB__ENVELOPE__BODY_HEARTBEAT_REPLY;
    env->heartbeat_reply = &reply;
    s_reply(router, peer, env, NULL, 0);
}

static void s_manifest(fake_coordinator *c, ebb_socket *router, const ebb_peer *peer, const ebb_msg *msg, Ebb__Envelope *env)
{
    Ebb__ManifestReply reply = EBB__MANIFEST_REPLY__INIT;
    ebb_manifest *m = NULL;
    EBB_ASSERT(msg->n_parts == 1);
    MUST(ebb_manifest_unpack(msg->parts[0].buf->data, msg->parts[0].buf->len, &m));
    uint64_t hash = ebb_manifest_hash(m);
    ebb_manifest_free(&m);
    c->manifests++;
    if (c->manifest_hash == 0) {
        c->manifest_hash = hash;
    }
    reply.hash = c->manifest_hash;
    env->status = hash == c->manifest_hash ? EBB_OK : EBB_EXISTS;
    env->body_case = EBB__ENVELOPE__BODY_MANIFEST_REPLY;
    env->manifest_reply = &reply;
    s_reply(router, peer, env, NULL, 0);
}

static void s_job(fake_coordinator *c, ebb_socket *router, const ebb_peer *peer, Ebb__Envelope *env)
{
    Ebb__JobReply reply = EBB__JOB_REPLY__INIT;
    reply.job = 77;
    reply.spec = c->spec;
    reply.manifest_hash = c->manifest != NULL ? c->manifest_hash : 0;
    env->body_case = EBB__ENVELOPE__BODY_JOB_REPLY;
    env->job_reply = &reply;
    if (c->manifest == NULL) {
        s_reply(router, peer, env, NULL, 0);
        return;
    }
    uint8_t *bytes = NULL;
    size_t len = 0;
    MUST(ebb_manifest_pack(c->manifest, &bytes, &len));
    ebb_part part = {.kind = EBB_PART_MANIFEST, .dtype = EBB_DTYPE_BYTES, .numel = len};
    MUST(ebb_buf_dup(bytes, len, &part.buf));
    free(bytes);
    ebb_part_seal(&part);
    s_reply(router, peer, env, &part, 1);
    ebb_buf_unref(&part.buf);
}

static void s_coordinate(fake_coordinator *c, ebb_socket *router, const ebb_peer *peer, const ebb_msg *msg)
{
    const Ebb__Envelope *in = msg->env;
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__Ok ok = EBB__OK__INIT;
    env.request_id = in->request_id;
    switch (in->body_case) {
    case EBB__ENVELOPE__BODY_JOIN_REQUEST: {
        Ebb__JoinReply join = EBB__JOIN_REPLY__INIT;
        join.job = 77;
        join.spec = c->spec;
        join.manifest_hash = c->manifest_hash;
        join.heartbeat_ms = 50;
        c->joins++;
        env.body_case = EBB__ENVELOPE__BODY_JOIN_REPLY;
        env.join_reply = &join;
        s_reply(router, peer, &env, NULL, 0);
        return;
    }
    case EBB__ENVELOPE__BODY_JOB_REQUEST:
        s_job(c, router, peer, &env);
        return;
    case EBB__ENVELOPE__BODY_MANIFEST_REQUEST:
        s_manifest(c, router, peer, msg, &env);
        return;
    case EBB__ENVELOPE__BODY_SHARD_MAP_REQUEST:
        s_map(c, router, peer, &env);
        return;
    case EBB__ENVELOPE__BODY_LEASE_REQUEST:
        s_lease(c, router, peer, &env);
        return;
    case EBB__ENVELOPE__BODY_HEARTBEAT_REQUEST:
        s_beat(c, router, peer, in->heartbeat_request, &env);
        return;
    case EBB__ENVELOPE__BODY_SKIP_REQUEST: {
        Ebb__SkipReply skip = EBB__SKIP_REPLY__INIT;
        skip.skip = c->skip_answer;
        c->skips++;
        for (uint32_t i = 0; i < c->n_shards && c->skip_answer; i++) {
            if (c->shards[i]->applied[in->skip_request->stream] + 1 == in->skip_request->seq) {
                c->shards[i]->applied[in->skip_request->stream]++; // as the real one does through the shard's report
            }
        }
        env.body_case = EBB__ENVELOPE__BODY_SKIP_REPLY;
        env.skip_reply = &skip;
        s_reply(router, peer, &env, NULL, 0);
        return;
    }
    case EBB__ENVELOPE__BODY_LEASE_RETURN:
        if (c->returns < FAKE_LEASES) {
            c->returned_lease[c->returns] = in->lease_return->lease;
            c->returned_seq[c->returns] = in->lease_return->seq_done;
            snprintf(c->returned_reason[c->returns], 64, "%s", in->lease_return->reason);
            c->returns++;
        }
        break;
    case EBB__ENVELOPE__BODY_EVAL_REPORT:
        c->eval_loss = in->eval_report->loss;
        c->eval_accuracy = in->eval_report->accuracy;
        c->eval_samples = in->eval_report->samples;
        c->evals++;
        break;
    case EBB__ENVELOPE__BODY_LEAVE_REQUEST:
        c->leaves++;
        break;
    default:
        break;
    }
    env.body_case = EBB__ENVELOPE__BODY_OK;
    env.ok = &ok;
    s_reply(router, peer, &env, NULL, 0);
}

static void *s_coordinator_run(void *arg)
{
    fake_coordinator *c = arg;
    ebb_socket *router = NULL;
    char why[256];
    ebb_status st = ebb_router_open(c->net, c->endpoint, false, &router, why);
    for (int i = 0; st == EBB_EXISTS && i < 200; i++) {
        ebb_clock_sleep_ms(10);
        st = ebb_router_open(c->net, c->endpoint, false, &router, why);
    }
    if (st != EBB_OK) {
        fprintf(stderr, "fake coordinator: %s\n", why);
        abort();
    }
    while (!c->stop) {
        ebb_poll item = {.socket = router};
        ebb_net_poll(&item, 1, 10);
        ebb_peer peer;
        ebb_frames frames;
        while (!c->stop && ebb_socket_recv(router, &peer, &frames) == EBB_OK) {
            ebb_msg msg;
            if (ebb_msg_unpack(&frames, true, &msg, NULL) == EBB_OK) {
                s_coordinate(c, router, &peer, &msg);
                ebb_msg_fini(&msg);
            }
            ebb_frames_fini(&frames);
        }
    }
    ebb_socket_close(&router);
    return NULL;
}

void fake_coordinator_start(fake_coordinator *c)
{
    EBB_ASSERT(!c->running);
    c->stop = false;
    c->running = true;
    int rc = pthread_create(&c->thread, NULL, s_coordinator_run, c);
    EBB_ASSERT(rc == 0);
}

void fake_coordinator_stop(fake_coordinator *c)
{
    if (c->running) {
        c->stop = true;
        pthread_join(c->thread, NULL);
        c->running = false;
        s_unlink(c->endpoint);
    }
}

// ---- helpers ----

ebb_manifest *fake_manifest(uint32_t chunk_elems)
{
    ebb_manifest *m = NULL;
    MUST(ebb_manifest_new(&m, chunk_elems));
    MUST(ebb_manifest_add(m, "a", 2, (uint64_t[]){13, 7}, EBB_INIT_NORMAL, 0.5f, 0));
    MUST(ebb_manifest_add(m, "b", 1, (uint64_t[]){5}, EBB_INIT_ZEROS, 0, 1));
    MUST(ebb_manifest_add(m, "c", 2, (uint64_t[]){30, 11}, EBB_INIT_UNIFORM, 1.0f, 0));
    MUST(ebb_manifest_add(m, "d", 1, (uint64_t[]){1}, EBB_INIT_CONSTANT, 2.0f, 1));
    MUST(ebb_manifest_seal(m));
    return m;
}

void fake_spec_init(fake_spec *s)
{
    ebb__job_spec__init(&s->job);
    ebb__model_spec__init(&s->model);
    ebb__data_spec__init(&s->data);
    ebb__optimizer_spec__init(&s->optimizer);
    ebb__consistency_spec__init(&s->consistency);
    s->job.name = "fake";
    s->job.model = &s->model;
    s->job.data = &s->data;
    s->job.optimizer = &s->optimizer;
    s->job.consistency = &s->consistency;
    s->job.worker_threads = 1;
    s->job.batch = 4;
    s->job.unit_steps = 8;
    s->job.steps = 16;
    s->job.seed = 1;
    s->job.chunk_elems = 32;
    s->consistency.inflight_max = 1;
}
