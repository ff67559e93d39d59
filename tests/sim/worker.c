// A worker process: a model of what client/ and worker/ do, as one state machine. Trainer: join, register, map, lease, then step by step: pull when the
// view is not complete, compute, push to every shard under (unit, step), go back where a shard refuses, return. Each message is repeated under its name until
// it is answered, whatever the answer's way. Agent: heartbeats, and obeying their answers.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/rng.h"
#include "tests/sim/sim.h"

#define CTL_RESEND_MS 500
#define SUBS_TICK_MS 20
#define SILENCE_MS 400
#define SILENCE_MS_MAX 3000
#define LATER_MS 10
#define LATER_MS_MAX 500
#define GAP_MS 20
#define DAMAGED_MS 100
#define LOST_ACKS_MS 500
#define BAD_TRIES 3
#define WINDOW_MAX 4
#define COMPUTE_MS_MAX 60

enum { TIMER_CTL = 1, TIMER_BEAT, TIMER_SUBS, TIMER_COMPUTED, TIMER_PAUSED, TIMER_LOST };

typedef enum state { STATE_JOIN, STATE_MANIFEST, STATE_MAP, STATE_LEASE, STATE_TRAIN, STATE_SKIP, STATE_RETURN, STATE_LEAVE } state;
typedef enum sub_state { SUB_WAITING, SUB_SENT, SUB_DONE } sub_state;

typedef struct base {
    bool known;
    uint64_t incarnation, version;
} base;

// One message of a request, for one shard.
typedef struct sub {
    sub_state state;
    ebb_status status;
    uint64_t id, due, sent, applied, version, incarnation;
    uint32_t silence_ms, later_ms, sends;
} sub;

typedef struct request {
    bool active, pull;
    uint64_t seq;
    bool not_finite;
    base base[SIM_SHARDS];
    sub sub[SIM_SHARDS];
} request;

typedef struct worker {
    proc *p;
    char name[32];
    state state;
    uint64_t job;
    uint32_t heartbeat_ms;
    base view[SIM_SHARDS];
    uint64_t incarnation[SIM_SHARDS]; // of each shard, as last heard
    // control
    uint64_t ctl_id, ctl_resend;
    // agent
    uint64_t beat, beat_id;
    bool beat_answered, stop, lost, lost_over;
    // unit
    uint64_t lease, stream, last, next, done, skipped, skip_wanted;
    uint32_t attempt, bad_tries[SIM_UNIT_STEPS + 1];
    bool computing, paused, going_back, need_pull;
    uint64_t back_to, paused_id, computed_id;
    base at_compute[SIM_SHARDS];
    request window[WINDOW_MAX];
    uint32_t first, n;
    request pull;
    bool subs_ticking;
} worker;

static void s_advance(worker *w);

int sim_step_is_bad(const sim *s, uint64_t stream, uint64_t seq)
{
    uint64_t r = ebb_rng_at(s->seed ^ 0x626164u, stream, seq);
    return r % 1000000 >= s->config.bad_ppm ? 0 : 1 + (int)(r >> 40) % 2;
}

static request *s_at(worker *w, uint32_t i)
{
    return &w->window[(w->first + i) % WINDOW_MAX];
}

// ---- control ----

static void s_manifest_part(const sim *s, ebb_part *part)
{
    uint8_t *bytes = NULL;
    size_t len = 0;
    ebb_status st = ebb_manifest_pack(s->manifest, &bytes, &len);
    EBB_ASSERT(st == EBB_OK);
    *part = (ebb_part){.kind = EBB_PART_MANIFEST, .dtype = EBB_DTYPE_BYTES, .numel = len};
    st = ebb_buf_dup(bytes, len, &part->buf);
    EBB_ASSERT(st == EBB_OK);
    free(bytes);
    ebb_part_seal(part);
}

static void s_ctl_send(worker *w)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__JoinRequest join = EBB__JOIN_REQUEST__INIT;
    Ebb__ManifestRequest manifest = EBB__MANIFEST_REQUEST__INIT;
    Ebb__ShardMapRequest map = EBB__SHARD_MAP_REQUEST__INIT;
    Ebb__LeaseRequest lease = EBB__LEASE_REQUEST__INIT;
    Ebb__SkipRequest skip = EBB__SKIP_REQUEST__INIT;
    Ebb__LeaseReturn back = EBB__LEASE_RETURN__INIT;
    Ebb__LeaveRequest leave = EBB__LEAVE_REQUEST__INIT;
    ebb_part part;
    bool has_part = false;
    env.request_id = w->ctl_id;
    switch (w->state) {
    case STATE_JOIN:
        join.worker = w->name;
        join.incarnation = w->p->incarnation;
        join.pid = w->p->uid;
        join.host = "here";
        env.body_case = EBB__ENVELOPE__BODY_JOIN_REQUEST;
        env.join_request = &join;
        break;
    case STATE_MANIFEST:
        manifest.job = w->job;
        env.body_case = EBB__ENVELOPE__BODY_MANIFEST_REQUEST;
        env.manifest_request = &manifest;
        s_manifest_part(w->p->world, &part);
        has_part = true;
        break;
    case STATE_MAP:
        map.job = w->job;
        env.body_case = EBB__ENVELOPE__BODY_SHARD_MAP_REQUEST;
        env.shard_map_request = &map;
        break;
    case STATE_LEASE:
        lease.job = w->job;
        lease.worker = w->name;
        lease.incarnation = w->p->incarnation;
        env.body_case = EBB__ENVELOPE__BODY_LEASE_REQUEST;
        env.lease_request = &lease;
        break;
    case STATE_SKIP:
        skip.job = w->job;
        skip.worker = w->name;
        skip.lease = w->lease;
        skip.stream = w->stream;
        skip.seq = w->skip_wanted;
        skip.reason = "not finite";
        env.body_case = EBB__ENVELOPE__BODY_SKIP_REQUEST;
        env.skip_request = &skip;
        break;
    case STATE_RETURN:
        back.job = w->job;
        back.worker = w->name;
        back.incarnation = w->p->incarnation;
        back.lease = w->lease;
        back.seq_done = w->done;
        back.reason = "simulated";
        env.body_case = EBB__ENVELOPE__BODY_LEASE_RETURN;
        env.lease_return = &back;
        break;
    default:
        leave.job = w->job;
        leave.worker = w->name;
        leave.incarnation = w->p->incarnation;
        leave.reason = "simulated";
        env.body_case = EBB__ENVELOPE__BODY_LEAVE_REQUEST;
        env.leave_request = &leave;
        break;
    }
    sim_send_env(w->p, SERVICE_COORDINATOR, &env, has_part ? &part : NULL, has_part ? 1 : 0);
    if (has_part) {
        ebb_buf_unref(&part.buf);
    }
    sim_timer(w->p->world, w->p->uid, CTL_RESEND_MS * MS, TIMER_CTL, w->ctl_id);
}

// A new call in that state.
static void s_call(worker *w, state st)
{
    w->state = st;
    w->ctl_id = dice_next(&w->p->world->dice) | 1;
    s_ctl_send(w);
}

static void s_call_in(worker *w, state st, uint64_t ms)
{
    w->state = st;
    w->ctl_id = dice_next(&w->p->world->dice) | 1;
    sim_timer(w->p->world, w->p->uid, ms * MS, TIMER_CTL, w->ctl_id);
}

static void s_unit_begin(worker *w, const Ebb__LeaseReply *r)
{
    w->state = STATE_TRAIN;
    w->lease = r->lease;
    w->stream = r->stream;
    w->next = r->seq_first;
    w->done = r->seq_first - 1;
    w->last = r->seq_last;
    w->attempt = r->attempt;
    w->lost = w->lost_over = w->going_back = w->need_pull = false;
    w->skipped = w->skip_wanted = 0;
    memset(w->bad_tries, 0, sizeof(w->bad_tries));
    w->first = w->n = 0;
    s_advance(w);
}

static void s_on_lease(worker *w, const Ebb__LeaseReply *r)
{
    switch (r->kind) {
    case EBB__LEASE_KIND__LEASE_TRAIN:
        s_unit_begin(w, r); // even if told to end meanwhile: then it goes back as it came
        break;
    case EBB__LEASE_KIND__LEASE_NONE:
        s_call_in(w, w->stop ? STATE_LEAVE : STATE_LEASE, r->retry_ms);
        break;
    default:
        w->p->succeeded = r->kind == EBB__LEASE_KIND__LEASE_FINISHED;
        if (w->p->succeeded && !w->p->world->succeeded) {
            sim_violate(w->p->world, "%s is told that the job is over, but it is not", w->name);
        }
        s_call(w, STATE_LEAVE);
        break;
    }
}

static void s_on_skip(worker *w, bool skip)
{
    w->state = STATE_TRAIN;
    w->bad_tries[w->skip_wanted] = 0;
    if (skip) {
        w->skipped = w->skip_wanted;
        w->next = w->skip_wanted + 1;
        w->done = w->skip_wanted;
    }
    w->skip_wanted = 0;
    s_advance(w);
}

static void s_on_ctl(worker *w, const Ebb__Envelope *env)
{
    sim *s = w->p->world;
    if (w->state == STATE_LEAVE) { // any answer will do
        sim_die(w->p, DEATH_EXIT);
        return;
    }
    if (env->status == EBB_TRYLATER) {
        s_call_in(w, w->state, 50);
        return;
    }
    if (env->status == EBB_CLOSED) { // another process sits here now
        sim_die(w->p, DEATH_EXIT);
        return;
    }
    if (env->status != EBB_OK) {
        sim_violate(s, "%s is refused by the coordinator: %s: %s", w->name, ebb_status_name((int)env->status), env->detail);
        return;
    }
    switch (w->state) {
    case STATE_JOIN:
        w->job = env->join_reply->job;
        w->heartbeat_ms = env->join_reply->heartbeat_ms;
        s_call(w, env->join_reply->manifest_hash == 0 ? STATE_MANIFEST : STATE_MAP);
        sim_timer(s, w->p->uid, 0, TIMER_BEAT, 0);
        break;
    case STATE_MANIFEST:
        s_call(w, STATE_MAP);
        break;
    case STATE_MAP:
    case STATE_RETURN:
        s_call(w, w->stop ? STATE_LEAVE : STATE_LEASE);
        break;
    case STATE_LEASE:
        s_on_lease(w, env->lease_reply);
        break;
    case STATE_SKIP:
        s_on_skip(w, env->skip_reply->skip);
        break;
    default:
        break;
    }
}

// ---- the agent ----

static void s_beat(worker *w)
{
    sim *s = w->p->world;
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__HeartbeatRequest beat = EBB__HEARTBEAT_REQUEST__INIT;
    bool holds = w->state == STATE_TRAIN || w->state == STATE_SKIP || w->state == STATE_RETURN;
    if (w->beat_answered || w->beat == 0) {
        w->beat++;
        w->beat_answered = false;
    }
    env.request_id = w->beat_id = dice_next(&s->dice) | 1;
    beat.job = w->job;
    beat.worker = w->name;
    beat.incarnation = w->p->incarnation;
    beat.leases = &w->lease;
    beat.n_leases = holds;
    beat.beat = w->beat;
    env.body_case = EBB__ENVELOPE__BODY_HEARTBEAT_REQUEST;
    env.heartbeat_request = &beat;
    sim_send_env(w->p, SERVICE_COORDINATOR, &env, NULL, 0);
    sim_timer(s, w->p->uid, w->heartbeat_ms * MS, TIMER_BEAT, 0);
}

static void s_on_beat(worker *w, const Ebb__HeartbeatReply *r)
{
    w->beat_answered = true;
    w->stop |= r->drain != 0;
    for (size_t i = 0; i < r->n_leases_lost; i++) {
        if (r->leases_lost[i] == w->lease && w->state == STATE_TRAIN && !w->lost) {
            w->lost = true; // the last pushes get a moment; until then they are repeated: a zombie
            sim_timer(w->p->world, w->p->uid, LOST_ACKS_MS * MS, TIMER_LOST, w->lease);
        }
    }
    if (w->state == STATE_TRAIN) {
        s_advance(w);
    }
}

// ---- requests to shards ----

static void s_parts(worker *w, const request *r, uint32_t shard, uint32_t *first, ebb_part **out, size_t *n)
{
    sim *s = w->p->world;
    static ebb_chunk_range ranges[SIM_SHARDS];
    ebb_shardmap_place(s->manifest, s->config.shards, ranges);
    *first = ranges[shard].first;
    *n = ranges[shard].count;
    *out = calloc(*n + 1, sizeof(**out));
    EBB_ASSERT(*out != NULL);
    for (size_t i = 0; i < *n; i++) {
        ebb_part *part = &(*out)[i];
        uint32_t chunk = *first + (uint32_t)i, numel = s->manifest->chunks[chunk].numel;
        *part = (ebb_part){.kind = EBB_PART_GRAD, .dtype = EBB_DTYPE_F32, .chunk = chunk, .numel = numel};
        ebb_status st = ebb_buf_new(numel * sizeof(float), &part->buf);
        EBB_ASSERT(st == EBB_OK);
        for (uint32_t k = 0; k < numel; k++) {
            ((float *)part->buf->data)[k] = r->not_finite ? __builtin_nanf("") : -1.0f;
        }
        ebb_part_seal(part);
    }
}

static void s_sub_send(worker *w, request *r, uint32_t shard)
{
    sim *s = w->p->world;
    sub *b = &r->sub[shard];
    const base *base = &r->base[shard];
    bool difference = base->known && (w->incarnation[shard] == 0 || w->incarnation[shard] == base->incarnation);
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__PushRequest push = EBB__PUSH_REQUEST__INIT;
    Ebb__PullRequest pull = EBB__PULL_REQUEST__INIT;
    ebb_part *parts = NULL;
    size_t n = 0;
    uint32_t first;
    env.request_id = b->id;
    if (r->pull) {
        pull.job = w->job;
        pull.epoch = 1;
        pull.have_nothing = !base->known;
        pull.have_version = base->version;
        env.body_case = EBB__ENVELOPE__BODY_PULL_REQUEST;
        env.pull_request = &pull;
    } else {
        push.job = w->job;
        push.epoch = 1;
        push.stream = w->stream;
        push.seq = r->seq;
        push.attempt = w->attempt;
        push.base_version = base->version;
        push.worker = w->name;
        push.want_pull = difference;
        push.have_version = base->version;
        env.body_case = EBB__ENVELOPE__BODY_PUSH_REQUEST;
        env.push_request = &push;
        s_parts(w, r, shard, &first, &parts, &n);
        s->pushes++;
    }
    sim_send_env(w->p, SERVICE_SHARD + shard, &env, parts, n);
    for (size_t i = 0; i < n; i++) {
        ebb_buf_unref(&parts[i].buf);
    }
    free(parts);
    b->state = SUB_SENT;
    b->sent = s->now;
    b->sends++;
}

static void s_request_begin(worker *w, request *r, bool pull, uint64_t seq, const base *view)
{
    sim *s = w->p->world;
    memset(r, 0, sizeof(*r));
    r->active = true;
    r->pull = pull;
    r->seq = seq;
    memcpy(r->base, view, sizeof(r->base));
    for (uint32_t i = 0; i < s->config.shards; i++) {
        r->sub[i] = (sub){.id = dice_next(&s->dice) | 1, .silence_ms = SILENCE_MS, .later_ms = LATER_MS};
    }
    if (!w->subs_ticking) {
        w->subs_ticking = true;
        sim_timer(s, w->p->uid, SUBS_TICK_MS * MS, TIMER_SUBS, 0);
    }
}

static bool s_request_done(const worker *w, const request *r)
{
    for (uint32_t i = 0; i < w->p->world->config.shards; i++) {
        if (r->sub[i].state != SUB_DONE) {
            return false;
        }
    }
    return true;
}

// Sends what is due; a push not before the pushes before it.
static void s_send_due(worker *w)
{
    sim *s = w->p->world;
    for (uint32_t shard = 0; shard < s->config.shards; shard++) {
        bool waits = false;
        for (uint32_t i = 0; i <= w->n; i++) {
            request *r = i < w->n ? s_at(w, i) : &w->pull;
            sub *b = &r->sub[shard];
            if (!r->active || b->state == SUB_DONE) {
                continue;
            }
            if (b->state == SUB_SENT && s->now - b->sent >= b->silence_ms * MS) {
                b->silence_ms = b->silence_ms * 2 < SILENCE_MS_MAX ? b->silence_ms * 2 : SILENCE_MS_MAX;
                b->state = SUB_WAITING;
                b->due = s->now;
            }
            if (b->state == SUB_WAITING && (b->due > s->now || (!r->pull && waits))) {
                waits |= !r->pull;
            } else if (b->state == SUB_WAITING) {
                s_sub_send(w, r, shard);
            }
        }
    }
}

static void s_put_off(worker *w, sub *b, uint64_t ms)
{
    b->state = SUB_WAITING;
    b->due = w->p->world->now + ms * MS;
}

static void s_gap(worker *w, request *r, uint32_t shard)
{
    bool earlier = false;
    for (uint32_t i = 0; i < w->n; i++) {
        request *e = s_at(w, i);
        if (e->seq < r->seq && e->sub[shard].state != SUB_DONE) {
            earlier = true;
            if (e->sub[shard].state == SUB_SENT && w->p->world->now - e->sub[shard].sent > GAP_MS * MS) {
                s_put_off(w, &e->sub[shard], 0);
            }
        }
    }
    if (earlier) { // it was only overtaken
        s_put_off(w, &r->sub[shard], GAP_MS);
    } else {
        r->sub[shard].state = SUB_DONE;
        r->sub[shard].status = EBB_GAP;
    }
}

// What comes back are whole versions: every element of a chunk counts the pushes that the chunk's version says.
static void s_check_parts(worker *w, uint32_t shard, const ebb_msg *msg, uint64_t version)
{
    for (size_t i = 0; i < msg->n_parts; i++) {
        const ebb_part *part = &msg->parts[i];
        for (uint64_t k = 0; k < part->numel && part->kind == EBB_PART_PARAM; k++) {
            float value = ((const float *)part->buf->data)[k];
            if (value != (float)part->version || part->version > version) {
                sim_violate(w->p->world, "%s gets chunk %u of shard %u at version %" PRIu64 " (of %" PRIu64 ") with an element %g", w->name,
                            part->chunk, shard, part->version, version, (double)value);
            }
        }
    }
}

static void s_apply_view(worker *w, const request *r, uint32_t shard)
{
    const sub *b = &r->sub[shard];
    const base *base = &r->base[shard];
    struct base *mine = &w->view[shard];
    bool whole = r->pull && !base->known;
    if (whole) {
        if (!mine->known || mine->incarnation != b->incarnation || b->version > mine->version) {
            *mine = (struct base){true, b->incarnation, b->version};
        }
    } else if (base->known && b->incarnation != base->incarnation) {
        mine->known &= mine->incarnation != base->incarnation;
    } else if (base->known && mine->known && mine->incarnation == b->incarnation && mine->version >= base->version && b->version > mine->version) {
        mine->version = b->version;
    }
}

static void s_heard_incarnation(worker *w, uint32_t shard, uint64_t incarnation)
{
    if (incarnation == 0 || incarnation == w->incarnation[shard]) {
        return;
    }
    bool replaced = w->incarnation[shard] != 0;
    w->incarnation[shard] = incarnation;
    for (uint32_t i = 0; replaced && i <= w->n; i++) { // everything unanswered goes out again
        request *r = i < w->n ? s_at(w, i) : &w->pull;
        if (r->active && r->sub[shard].state == SUB_SENT) {
            s_put_off(w, &r->sub[shard], 0);
        }
    }
}

static ebb_status s_status_of(const Ebb__Envelope *env)
{
    static const ebb_status of[] = {EBB_PROTO, EBB_OK, EBB_DUPLICATE, EBB_GAP, EBB_STALE, EBB_BADVALUE};
    if (env->status != EBB_OK || env->body_case != EBB__ENVELOPE__BODY_PUSH_REPLY) {
        return (ebb_status)env->status;
    }
    return env->push_reply->verdict <= EBB__VERDICT__VERDICT_BAD_VALUE ? of[env->push_reply->verdict] : EBB_PROTO;
}

static void s_answer(worker *w, request *r, uint32_t shard, const ebb_msg *msg)
{
    const Ebb__Envelope *env = msg->env;
    sub *b = &r->sub[shard];
    ebb_status st = s_status_of(env);
    if (b->state == SUB_DONE || b->sends == 0) {
        return;
    }
    if (st == EBB_TRYLATER || st == EBB_WRONGSHARD || st == EBB_CORRUPT || st == EBB_PROTO) {
        s_put_off(w, b, st == EBB_CORRUPT || st == EBB_PROTO ? 0 : b->later_ms);
        b->later_ms = 2 * b->later_ms < LATER_MS_MAX ? 2 * b->later_ms : LATER_MS_MAX;
        return;
    }
    if (env->body_case == EBB__ENVELOPE__BODY_PUSH_REPLY && !r->pull) {
        b->applied = env->push_reply->applied;
        b->version = env->push_reply->version;
        b->incarnation = env->push_reply->incarnation;
    } else if (env->body_case == EBB__ENVELOPE__BODY_PULL_REPLY && r->pull) {
        b->version = env->pull_reply->version;
        b->incarnation = env->pull_reply->incarnation;
    } else {
        sim_violate(w->p->world, "shard %u answers %s with another kind of message, status %s: %s", shard, w->name, ebb_status_name((int)env->status),
                    env->detail);
        return;
    }
    s_check_parts(w, shard, msg, b->version);
    if (st == EBB_GAP) {
        s_gap(w, r, shard);
    } else {
        b->state = SUB_DONE;
        b->status = st;
    }
    s_heard_incarnation(w, shard, b->incarnation);
}

static void s_on_shard(worker *w, const ebb_msg *msg)
{
    for (uint32_t i = 0; i <= w->n; i++) {
        request *r = i < w->n ? s_at(w, i) : &w->pull;
        for (uint32_t shard = 0; r->active && shard < w->p->world->config.shards; shard++) {
            if (r->sub[shard].id == msg->env->request_id) {
                s_answer(w, r, shard, msg);
                s_send_due(w);
                s_advance(w);
                return;
            }
        }
    }
}

// ---- the trainer ----

static void s_drop_window(worker *w)
{
    for (uint32_t i = 0; i < WINDOW_MAX; i++) {
        w->window[i].active = false;
    }
    w->n = 0;
    w->pull.active = false;
}

static void s_end_unit(worker *w, bool give_back)
{
    s_drop_window(w);
    if (give_back) {
        s_call(w, STATE_RETURN);
    } else {
        s_call(w, w->stop ? STATE_LEAVE : STATE_LEASE);
    }
}

static void s_pause(worker *w, uint64_t ms)
{
    w->paused = true;
    w->paused_id++;
    sim_timer(w->p->world, w->p->uid, ms * MS, TIMER_PAUSED, w->paused_id);
}

static void s_bad(worker *w, uint64_t seq)
{
    w->next = seq;
    w->need_pull = true;
    w->skip_wanted = ++w->bad_tries[seq] >= BAD_TRIES ? seq : 0;
}

static ebb_status s_worst(const worker *w, const request *r, uint64_t *applied)
{
    static const ebb_status order[] = {EBB_OK, EBB_GAP, EBB_STALE, EBB_BADVALUE};
    size_t worst = 0;
    *applied = UINT64_MAX;
    for (uint32_t i = 0; i < w->p->world->config.shards; i++) {
        ebb_status st = r->sub[i].status == EBB_DUPLICATE ? EBB_OK : r->sub[i].status;
        for (size_t k = 0; k < 4; k++) {
            worst = order[k] == st && k > worst ? k : worst;
        }
        *applied = r->sub[i].applied < *applied ? r->sub[i].applied : *applied;
    }
    return order[worst];
}

static request s_take_first(worker *w)
{
    request r = *s_at(w, 0);
    s_at(w, 0)->active = false;
    w->first++;
    w->n--;
    for (uint32_t i = 0; i < w->p->world->config.shards; i++) {
        s_apply_view(w, &r, i);
    }
    return r;
}

static void s_take_answer(worker *w)
{
    uint64_t applied;
    request r = s_take_first(w);
    ebb_status st = s_worst(w, &r, &applied);
    if (w->going_back) {
        w->back_to = applied + 1; // the last answer knows most
        return;
    }
    if (st == EBB_OK) {
        w->done = r.seq;
        if (w->n == 0 && applied >= w->next) { // another worker is ahead of us in this unit
            w->done = applied;
            w->next = applied + 1;
        }
        return;
    }
    w->going_back = true;
    w->back_to = applied + 1;
    if (st == EBB_BADVALUE && applied + 1 == r.seq && r.not_finite) {
        w->skip_wanted = ++w->bad_tries[r.seq] >= BAD_TRIES ? r.seq : 0;
    }
}

static void s_gone_back(worker *w)
{
    w->going_back = false;
    if (w->back_to == w->skipped) {
        w->back_to++; // the shards have not heard of the decision yet
        s_pause(w, 50);
    }
    w->next = w->back_to;
    w->done = w->back_to - 1;
    w->need_pull = true;
}

static bool s_view_complete(const worker *w)
{
    for (uint32_t i = 0; i < w->p->world->config.shards; i++) {
        if (!w->view[i].known) {
            return false;
        }
    }
    return true;
}

// Does whatever can be done now; every answer and every timer leads here.
static void s_advance(worker *w)
{
    sim *s = w->p->world;
    while (w->state == STATE_TRAIN && !w->computing && !w->paused && !s->violated) {
        if (w->lost_over || (w->lost && w->n == 0)) {
            s_end_unit(w, false);
        } else if (w->n > 0 && s_request_done(w, s_at(w, 0))) {
            s_take_answer(w);
        } else if (w->going_back && w->n > 0) {
            return;
        } else if (w->going_back) {
            s_gone_back(w);
        } else if (w->stop && w->n == 0) {
            s_end_unit(w, true);
        } else if (w->lost || w->stop) {
            return;
        } else if (w->done >= w->last) {
            s_end_unit(w, true);
        } else if (w->skip_wanted != 0) {
            if (w->n > 0) {
                return;
            }
            if (w->skip_wanted == w->next) {
                s_call(w, STATE_SKIP);
            } else {
                w->skip_wanted = 0; // an earlier step is missing somewhere and comes first
            }
        } else if (w->n >= s->config.inflight_max || w->next > w->last) {
            return;
        } else if (w->pull.active) {
            if (!s_request_done(w, &w->pull)) {
                return;
            }
            for (uint32_t i = 0; i < s->config.shards; i++) {
                s_apply_view(w, &w->pull, i);
            }
            w->pull.active = false;
            w->need_pull = false;
        } else if (w->need_pull || !s_view_complete(w)) {
            s_request_begin(w, &w->pull, true, 0, w->view);
            s_send_due(w);
        } else {
            w->computing = true;
            w->computed_id++;
            memcpy(w->at_compute, w->view, sizeof(w->view));
            sim_timer(s, w->p->uid, dice_below(&s->dice, COMPUTE_MS_MAX * MS), TIMER_COMPUTED, w->computed_id);
        }
    }
}

static void s_computed(worker *w)
{
    w->computing = false;
    int bad = sim_step_is_bad(w->p->world, w->stream, w->next);
    if (bad == 1) {
        s_bad(w, w->next);
    } else {
        request *r = s_at(w, w->n);
        s_request_begin(w, r, false, w->next, w->at_compute);
        r->not_finite = bad == 2;
        w->n++;
        w->next++;
        s_send_due(w);
    }
    s_advance(w);
}

// ---- the process ----

static void s_message(proc *p, uint32_t from, ebb_msg *msg, ebb_status st, const ebb_frames *frames)
{
    (void)from;
    (void)st;
    (void)frames;
    worker *w = p->self;
    if (msg == NULL) { // whatever it was: what is unanswered is asked again, soon
        for (uint32_t i = 0; i <= w->n; i++) {
            request *r = i < w->n ? s_at(w, i) : &w->pull;
            for (uint32_t k = 0; r->active && k < SIM_SHARDS; k++) {
                if (r->sub[k].state == SUB_SENT) {
                    s_put_off(w, &r->sub[k], DAMAGED_MS);
                }
            }
        }
    } else if (msg->env->request_id == w->ctl_id) {
        w->ctl_id = 0;
        s_on_ctl(w, msg->env);
    } else if (msg->env->request_id == w->beat_id && msg->env->body_case == EBB__ENVELOPE__BODY_HEARTBEAT_REPLY) {
        s_on_beat(w, msg->env->heartbeat_reply);
    } else {
        s_on_shard(w, msg);
    }
}

static void s_timer(proc *p, uint32_t timer, uint64_t arg)
{
    worker *w = p->self;
    switch (timer) {
    case TIMER_CTL:
        if (arg == w->ctl_id) {
            s_ctl_send(w);
        }
        break;
    case TIMER_BEAT:
        s_beat(w);
        break;
    case TIMER_SUBS:
        w->subs_ticking = w->n > 0 || w->pull.active;
        if (w->subs_ticking) {
            s_send_due(w);
            sim_timer(p->world, p->uid, SUBS_TICK_MS * MS, TIMER_SUBS, 0);
        }
        break;
    case TIMER_COMPUTED:
        if (w->computing && arg == w->computed_id) {
            s_computed(w);
        }
        break;
    case TIMER_PAUSED:
        if (w->paused && arg == w->paused_id) {
            w->paused = false;
            s_advance(w);
        }
        break;
    case TIMER_LOST:
        if (arg == w->lease && w->lost) {
            w->lost_over = true;
            s_advance(w);
        }
        break;
    }
}

// What is on its way may still arrive; then the lease goes back with what is done, and the process leaves.
void sim_worker_stop(proc *p)
{
    worker *w = p->self;
    char name[32];
    sim_note(p->world, "%s is told to end", sim_name(p, name));
    w->stop = true;
    if (w->state == STATE_TRAIN) {
        s_advance(w);
    }
}

static void s_end(proc *p)
{
    free(p->self);
}

bool sim_worker_start(proc *p)
{
    worker *w = calloc(1, sizeof(*w));
    EBB_ASSERT(w != NULL);
    w->p = p;
    snprintf(w->name, sizeof(w->name), "worker-%u", p->index);
    p->self = w;
    s_call(w, STATE_JOIN);
    return true;
}

const role_ops sim_worker_ops = {s_message, s_timer, s_end};
