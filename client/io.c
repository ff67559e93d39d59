// How a request reaches its shards and its answers come back, whatever fails between.
//
// Per shard the thread keeps a list of unanswered subs in order of submission. One pass of the loop: wait -> take submissions -> read answers (at most
// RECV_BATCH per shard) -> timers -> send what is due, oldest first. Rules:
//
//   order      a push is not sent while an earlier push to that shard waits to be sent (it was told TRYLATER, or the shard is being reconnected).
//   silence    unanswered for 250 ms and nothing else heard: ping. Nothing within 1 s of the ping: the shard is dead to us; new socket, and everything
//              goes out again. A shard that answers pings but not the request gets the request again after 1 s, 2 s, ... 8 s (it was lost with a
//              connection that libzmq replaced unseen). So nothing is ever given up; the caller's patience is the caller's.
//   replaced   an answer with a new incarnation: everything unanswered goes out again at once, and without asking for differences to a version
//              that the new process may not have.
//   GAP        while an earlier push of that stream is unanswered only says that one was lost or put off: both are sent again, in order. Else it is news.
//   WRONGSHARD asks the coordinator for the map. Same ranges: send again with its epoch. Other ranges: every outstanding request ends as WRONGSHARD, since
//              its parts are cut wrongly and only the caller can compute from the right place.
//   damaged    an answer that fails a checksum is dropped and asked for again.
//
// Every sending of a sub has the same request_id, so whichever answer comes first counts and the rest find nobody.
#include "client/io.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/session.h"
#include "core/assert.h"
#include "core/clock.h"
#include "core/inbox.h"
#include "core/log.h"
#include "core/rng.h"

#define MS 1000000ull
#define RECV_BATCH 64
#define PING_AFTER_NS (250 * MS)
#define DEAD_AFTER_NS (1000 * MS)
#define TICK_MS 50
#define LATER_MS_FIRST 10
#define LATER_MS_MAX 500
#define DISKLOW_MS 1000
#define SILENCE_MS_FIRST 1000
#define SILENCE_MS_MAX 8000
#define DAMAGED_MS 100
#define GAP_MS 20
#define MAP_ASK_NS (1000 * MS)
#define LOG_EVERY_NS (10000 * MS)

typedef struct io_shard {
    ebb_socket *socket; // NULL only after a new map named an endpoint that cannot be opened
    ebb_sub *head, *tail;
    uint64_t incarnation; // 0: not heard from yet
    uint64_t heard_ns;
    uint64_t ping_ns;    // of the unanswered ping; 0: none
    uint64_t blocked_ns; // since when sending has been refused; 0: it is not
    uint64_t logged_ns;
    uint32_t credit; // pushes the shard wants in flight at most; 0: it did not say
    bool lost;       // logged as lost
} io_shard;

struct ebb_io {
    ebb_session *session;
    ebb_inbox *inbox;
    pthread_t thread;
    _Atomic bool stop;
    ebb_routes routes;
    io_shard *shard; // (routes.n)
    ebb_poll *poll;  // (routes.n + 2)
    uint64_t next_id;
    ebb_socket *map; // to the coordinator while a new shard map is wanted
    bool map_wanted;
    uint64_t map_asked_ns, map_id;
    uint64_t damaged_logged_ns;
};

// COUNT(io, sends, 1)
#define COUNT(io, field, n) atomic_fetch_add_explicit(&(io)->session->traffic.field, (n), memory_order_relaxed)

// ---- lists ----

static void s_append(io_shard *sh, ebb_sub *sub)
{
    sub->prev = sh->tail;
    sub->next = NULL;
    *(sh->tail != NULL ? &sh->tail->next : &sh->head) = sub;
    sh->tail = sub;
}

static void s_unlink(io_shard *sh, ebb_sub *sub)
{
    *(sub->prev != NULL ? &sub->prev->next : &sh->head) = sub->next;
    *(sub->next != NULL ? &sub->next->prev : &sh->tail) = sub->prev;
    sub->prev = sub->next = NULL;
}

// ---- finishing ----

static void s_request_done(ebb_io *io, ebb_request *r)
{
    // A failed request may still hold gradients of shards that never answered.
    for (size_t i = 0; i < r->n_parts; i++) {
        ebb_buf_unref(&r->parts[i].buf);
    }
    r->n_parts = 0;
    ebb_request_summarize(r);
    ebb_requests_finish(&io->session->requests, r);
}

static void s_sub_done(ebb_io *io, ebb_sub *sub, ebb_status status)
{
    ebb_request *r = sub->request;
    EBB_ASSERT(sub->state != EBB_SUB_DONE && r->pending > 0);
    s_unlink(&io->shard[sub->route], sub);
    sub->state = EBB_SUB_DONE;
    sub->status = status;
    if (r->kind == EBB_REQUEST_PUSH) {
        for (uint32_t c = 0; c < sub->chunk_count; c++) {
            ebb_buf_unref(&r->parts[sub->first_chunk + c].buf); // this shard will not need it again
        }
    }
    if (--r->pending == 0) {
        s_request_done(io, r);
    }
}

// Ends an active request as a whole.
static void s_request_fail(ebb_io *io, ebb_request *r, ebb_status status, const char *why)
{
    for (uint32_t i = 0; i < r->n_subs; i++) {
        ebb_sub *sub = &r->subs[i];
        if (sub->state != EBB_SUB_DONE) {
            s_unlink(&io->shard[sub->route], sub);
            sub->state = EBB_SUB_DONE;
            sub->status = status;
        }
    }
    r->pending = 0;
    r->result.status = status;
    snprintf(r->why, sizeof(r->why), "%s", why);
    s_request_done(io, r);
}

static void s_fail_all(ebb_io *io, ebb_status status, const char *why)
{
    for (uint32_t i = 0; i < io->routes.n; i++) {
        while (io->shard[i].head != NULL) {
            s_request_fail(io, io->shard[i].head->request, status, why);
        }
    }
}

// ---- submissions ----

static uint32_t s_count_subs(const ebb_io *io, const ebb_request *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < io->routes.n; i++) {
        const ebb_route *route = &io->routes.route[i];
        if (r->kind != EBB_REQUEST_PULL || route->chunk_count == 0) {
            n++;
            continue;
        }
        uint32_t from = route->first_chunk, count;
        while (ebb_routes_piece(route, io->session->manifest, from, &count)) {
            from += count;
            n++;
        }
    }
    return n;
}

static void s_add_sub(ebb_io *io, ebb_request *r, uint32_t route, uint32_t first, uint32_t count)
{
    ebb_sub *sub = &r->subs[r->n_subs++];
    memset(sub, 0, sizeof(*sub));
    sub->request = r;
    sub->route = route;
    sub->first_chunk = first;
    sub->chunk_count = count;
    if (r->kind != EBB_REQUEST_PUSH && count == 0) {
        sub->state = EBB_SUB_DONE; // nothing there to pull or pin; a push goes to every shard, for the watermark
        sub->answered = true;
        return;
    }
    sub->state = EBB_SUB_WAITING;
    sub->id = io->next_id++;
    sub->later_ms = LATER_MS_FIRST;
    sub->silence_ms = SILENCE_MS_FIRST;
    r->pending++;
    s_append(&io->shard[route], sub);
}

static void s_activate(ebb_io *io, ebb_request *r)
{
    r->active = true;
    if (r->layout != io->routes.layout || r->n_routes != io->routes.n) {
        s_request_fail(io, r, EBB_WRONGSHARD, "the placement of chunks changed");
        return;
    }
    if (ebb_request_reserve_subs(r, s_count_subs(io, r)) != EBB_OK) {
        s_request_fail(io, r, EBB_NOMEM, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < io->routes.n; i++) {
        const ebb_route *route = &io->routes.route[i];
        uint32_t from = route->first_chunk, count;
        if (r->kind != EBB_REQUEST_PULL || route->chunk_count == 0) {
            s_add_sub(io, r, i, from, route->chunk_count);
            continue;
        }
        while (ebb_routes_piece(route, io->session->manifest, from, &count)) {
            s_add_sub(io, r, i, from, count);
            from += count;
        }
    }
    if (r->pending == 0) {
        s_request_done(io, r);
    }
}

static void s_take_submissions(ebb_io *io)
{
    ebb_request *r;
    while ((r = ebb_inbox_pop(io->inbox)) != NULL) {
        if (!r->active) {
            s_activate(io, r);
            continue;
        }
        // Second arrival: cancelled. It may have finished in the meantime.
        for (uint32_t i = 0; i < r->n_subs; i++) {
            if (r->subs[i].state != EBB_SUB_DONE) {
                s_unlink(&io->shard[r->subs[i].route], &r->subs[i]);
                r->subs[i].state = EBB_SUB_DONE;
            }
        }
        ebb_requests_give(&io->session->requests, r);
    }
}

// ---- sending ----

static bool s_wants_difference(const ebb_io *io, const ebb_sub *sub)
{
    const ebb_base *base = &sub->request->base[sub->route];
    uint64_t now = io->shard[sub->route].incarnation;
    return base->known && (now == 0 || now == base->incarnation);
}

static ebb_status s_pack(ebb_io *io, ebb_sub *sub, ebb_frames *frames)
{
    ebb_request *r = sub->request;
    const ebb_base *base = &r->base[sub->route];
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    env.request_id = sub->id;
    switch (r->kind) {
    case EBB_REQUEST_PUSH: {
        Ebb__PushRequest push = EBB__PUSH_REQUEST__INIT;
        push.job = io->session->job;
        push.epoch = io->routes.epoch;
        push.stream = r->stream;
        push.seq = r->seq;
        push.attempt = r->attempt;
        push.base_version = base->version;
        push.worker = io->session->worker;
        push.want_pull = s_wants_difference(io, sub) && sub->chunk_count > 0;
        push.have_version = base->version;
        push.look_ahead = r->look_ahead;
        env.body_case = EBB__ENVELOPE__BODY_PUSH_REQUEST;
        env.push_request = &push;
        return ebb_msg_pack(&env, r->parts + sub->first_chunk, sub->chunk_count, frames);
    }
    case EBB_REQUEST_PULL: {
        Ebb__PullRequest pull = EBB__PULL_REQUEST__INIT;
        pull.job = io->session->job;
        pull.epoch = io->routes.epoch;
        pull.have_nothing = !base->known;
        pull.have_version = base->known ? base->version : 0;
        pull.pin = r->pin;
        pull.first_chunk = sub->first_chunk;
        pull.chunk_count = sub->chunk_count;
        pull.slot = r->slot;
        pull.look_ahead = r->look_ahead;
        env.body_case = EBB__ENVELOPE__BODY_PULL_REQUEST;
        env.pull_request = &pull;
        return ebb_msg_pack(&env, NULL, 0, frames);
    }
    case EBB_REQUEST_PIN: {
        Ebb__PinRequest pin = EBB__PIN_REQUEST__INIT;
        pin.job = io->session->job;
        pin.pin = r->pin;
        pin.ttl_ms = r->ttl_ms;
        env.body_case = EBB__ENVELOPE__BODY_PIN_REQUEST;
        env.pin_request = &pin;
        return ebb_msg_pack(&env, NULL, 0, frames);
    }
    case EBB_REQUEST_UNPIN: {
        Ebb__UnpinRequest unpin = EBB__UNPIN_REQUEST__INIT;
        unpin.job = io->session->job;
        unpin.pin = r->pin;
        env.body_case = EBB__ENVELOPE__BODY_UNPIN_REQUEST;
        env.unpin_request = &unpin;
        return ebb_msg_pack(&env, NULL, 0, frames);
    }
    }
    EBB_PANIC("unknown request kind");
}

// Sends what is due, oldest first. Sets blocked_ns when the socket takes no more.
static void s_send_due(ebb_io *io, uint32_t index, uint64_t now)
{
    io_shard *sh = &io->shard[index];
    bool push_waits = false;
    uint32_t pushes = 0;
    if (sh->socket == NULL) { // its endpoint could not even be named: the timers try again
        sh->blocked_ns = sh->blocked_ns == 0 && sh->head != NULL ? now : sh->blocked_ns;
        return;
    }
    for (ebb_sub *sub = sh->head, *next; sub != NULL; sub = next) {
        next = sub->next;
        bool push = sub->request->kind == EBB_REQUEST_PUSH;
        if (sub->state == EBB_SUB_SENT) {
            pushes += push;
            continue;
        }
        if (sub->due_ns > now || (push && (push_waits || (sh->credit > 0 && pushes >= sh->credit)))) {
            push_waits |= push;
            continue;
        }
        ebb_frames frames;
        ebb_frames_init(&frames);
        ebb_status st = s_pack(io, sub, &frames);
        size_t bytes = frames.bytes;
        if (st == EBB_OK) {
            st = ebb_socket_send(sh->socket, NULL, &frames);
        }
        ebb_frames_fini(&frames);
        if (st == EBB_AGAIN) {
            if (sh->blocked_ns == 0) {
                sh->blocked_ns = now;
            }
            return;
        }
        if (st != EBB_OK) { // no memory, or a socket gone bad: the timers try again
            sub->due_ns = now + LATER_MS_MAX * MS;
            push_waits |= push;
            continue;
        }
        sh->blocked_ns = 0;
        sub->state = EBB_SUB_SENT;
        sub->sent_ns = now;
        COUNT(io, sends, 1);
        COUNT(io, bytes_out, bytes);
        if (sub->sends++ > 0) {
            COUNT(io, resends, 1);
        }
        pushes += push;
    }
}

static void s_resend(ebb_sub *sub, uint64_t due_ns)
{
    sub->state = EBB_SUB_WAITING;
    sub->due_ns = due_ns;
}

static void s_resend_all(io_shard *sh, uint64_t now)
{
    for (ebb_sub *sub = sh->head; sub != NULL; sub = sub->next) {
        s_resend(sub, now);
    }
}

// Something the shard does not take now: wait, longer each time.
static void s_put_off(ebb_sub *sub, uint32_t ms, uint64_t now)
{
    s_resend(sub, now + ms * MS);
}

static void s_try_later(ebb_sub *sub, uint64_t now)
{
    s_put_off(sub, sub->later_ms, now);
    sub->later_ms = sub->later_ms * 2 > LATER_MS_MAX ? LATER_MS_MAX : sub->later_ms * 2;
}

static void s_reopen(ebb_io *io, uint32_t index, uint64_t now)
{
    io_shard *sh = &io->shard[index];
    ebb_socket *fresh = NULL;
    if (ebb_dealer_open(io->session->net, io->routes.route[index].endpoint, &fresh) != EBB_OK) {
        return; // keep the old one; the timers come back here
    }
    ebb_socket_close(&sh->socket);
    sh->socket = fresh;
    sh->ping_ns = 0;
    sh->blocked_ns = 0;
    COUNT(io, reopens, 1);
    s_resend_all(sh, now);
    if (!sh->lost || now - sh->logged_ns >= LOG_EVERY_NS) {
        sh->lost = true;
        sh->logged_ns = now;
        EBB_LOG(WARN, "client", "shard-silent", "shard=%u endpoint=%s", io->routes.route[index].shard, io->routes.route[index].endpoint);
    }
    io->map_wanted = true; // it may listen elsewhere now
}

// ---- answers ----

static void s_heard(ebb_io *io, uint32_t index, uint64_t now)
{
    io_shard *sh = &io->shard[index];
    sh->heard_ns = now;
    sh->ping_ns = 0;
    if (sh->lost) {
        sh->lost = false;
        EBB_LOG(INFO, "client", "shard-back", "shard=%u", io->routes.route[index].shard);
    }
}

static void s_incarnation(ebb_io *io, uint32_t index, uint64_t incarnation, uint64_t now)
{
    io_shard *sh = &io->shard[index];
    if (incarnation == 0 || incarnation == sh->incarnation) {
        return;
    }
    bool replaced = sh->incarnation != 0;
    sh->incarnation = incarnation;
    sh->credit = 0;
    if (replaced) {
        COUNT(io, restarts, 1);
        EBB_LOG(INFO, "client", "shard-replaced", "shard=%u incarnation=%016" PRIx64, io->routes.route[index].shard, incarnation);
        s_resend_all(sh, now);
    }
}

// Are these the parts we asked for? Everything is checked here, so that applying them cannot fail.
static const char *s_check_parts(const ebb_io *io, const ebb_sub *sub, const ebb_msg *msg)
{
    const ebb_manifest *m = io->session->manifest;
    const ebb_request *r = sub->request;
    uint64_t seen[EBB_PARTS_MAX / 64] = {0};
    if (msg->n_parts > sub->chunk_count) {
        return "more chunks than were asked for";
    }
    uint16_t kind = r->slot > 0 ? EBB_PART_SLOT : EBB_PART_PARAM;
    for (size_t i = 0; i < msg->n_parts; i++) {
        const ebb_part *p = &msg->parts[i];
        if (p->chunk < sub->first_chunk || p->chunk - sub->first_chunk >= sub->chunk_count) {
            return "a chunk that was not asked for";
        }
        uint32_t at = p->chunk - sub->first_chunk;
        if (at < EBB_PARTS_MAX) {
            if (seen[at / 64] >> (at % 64) & 1) {
                return "a chunk twice";
            }
            seen[at / 64] |= 1ull << (at % 64);
        }
        if (p->kind != kind || p->codec != EBB_CODEC_RAW || p->dtype != EBB_DTYPE_F32 || p->numel != m->chunks[p->chunk].numel ||
            p->buf->len != p->numel * sizeof(float)) {
            return "a chunk of the wrong kind or shape";
        }
    }
    bool whole = r->kind == EBB_REQUEST_PULL && !r->base[sub->route].known;
    return whole && msg->n_parts != sub->chunk_count ? "fewer chunks than were asked for" : NULL;
}

// An earlier push of the same stream that this shard has not answered.
static ebb_sub *s_earlier(const ebb_sub *sub)
{
    for (ebb_sub *e = sub->prev; e != NULL; e = e->prev) {
        const ebb_request *r = e->request;
        if (r->kind == EBB_REQUEST_PUSH && r->stream == sub->request->stream && r->seq < sub->request->seq) {
            return e;
        }
    }
    return NULL;
}

static void s_on_gap(ebb_io *io, ebb_sub *sub, uint64_t now)
{
    ebb_sub *earlier = s_earlier(sub);
    if (earlier == NULL) {
        s_sub_done(io, sub, EBB_GAP);
        return;
    }
    s_put_off(sub, GAP_MS, now);
    for (; earlier != NULL; earlier = s_earlier(earlier)) {
        if (earlier->state == EBB_SUB_SENT && now - earlier->sent_ns > GAP_MS * MS) {
            s_resend(earlier, now);
        }
    }
}

static ebb_status s_verdict(const Ebb__Envelope *env)
{
    if (env->status != EBB_OK) {
        return (ebb_status)env->status;
    }
    switch (env->push_reply->verdict) {
    case EBB__VERDICT__VERDICT_APPLIED:
        return EBB_OK;
    case EBB__VERDICT__VERDICT_DUPLICATE:
        return EBB_DUPLICATE;
    case EBB__VERDICT__VERDICT_GAP:
        return EBB_GAP;
    case EBB__VERDICT__VERDICT_STALE:
        return EBB_STALE;
    case EBB__VERDICT__VERDICT_BAD_VALUE:
        return EBB_BADVALUE;
    default:
        return EBB_PROTO;
    }
}

static Ebb__Envelope__BodyCase s_expected(ebb_request_kind kind)
{
    switch (kind) {
    case EBB_REQUEST_PUSH:
        return EBB__ENVELOPE__BODY_PUSH_REPLY;
    case EBB_REQUEST_PULL:
        return EBB__ENVELOPE__BODY_PULL_REPLY;
    case EBB_REQUEST_PIN:
        return EBB__ENVELOPE__BODY_PIN_REPLY;
    default:
        return EBB__ENVELOPE__BODY_OK;
    }
}

// Fills in what the body says and takes the parts. Returns the status the shard gave.
static ebb_status s_take_answer(ebb_io *io, ebb_sub *sub, ebb_msg *msg)
{
    const Ebb__Envelope *env = msg->env;
    ebb_request *r = sub->request;
    if (env->body_case != s_expected(r->kind)) {
        return env->status != EBB_OK ? (ebb_status)env->status : EBB_PROTO;
    }
    ebb_status st = (ebb_status)env->status;
    const char *bad = s_check_parts(io, sub, msg);
    if (bad != NULL && st == EBB_OK) {
        snprintf(r->why, sizeof(r->why), "shard %u sent %s", io->routes.route[sub->route].shard, bad);
        return EBB_PROTO;
    }
    if (r->kind == EBB_REQUEST_PUSH) {
        const Ebb__PushReply *p = env->push_reply;
        st = s_verdict(env);
        sub->version = p->version;
        sub->applied = p->applied;
        sub->staleness = p->staleness;
        sub->incarnation = p->incarnation;
        io->shard[sub->route].credit = p->credit;
    } else if (r->kind == EBB_REQUEST_PULL) {
        sub->version = env->pull_reply->version;
        sub->slots = env->pull_reply->slots;
        sub->incarnation = env->pull_reply->incarnation;
        sub->step_count = env->pull_reply->step_count;
    } else if (r->kind == EBB_REQUEST_PIN) {
        sub->version = env->pin_reply->version;
    }
    sub->answered = st != EBB_TRYLATER && st != EBB_WRONGSHARD && st != EBB_DISKLOW;
    if (sub->answered && bad == NULL) {
        ebb_msg_fini(&sub->reply);
        sub->reply = *msg;
        // Keep the parts only: the envelope has been read.
        ebb_pb_free(&sub->reply.env->base);
        sub->reply.env = NULL;
        ebb_msg_init(msg);
    }
    return st;
}

static void s_log_put_off(ebb_io *io, const ebb_sub *sub, ebb_status st, const char *detail, uint64_t now)
{
    io_shard *sh = &io->shard[sub->route];
    if (now - sh->logged_ns >= LOG_EVERY_NS) {
        sh->logged_ns = now;
        EBB_LOG(WARN, "client", "shard-refuses", "shard=%u status=%s detail=\"%s\" action=\"sent again until it is taken\"",
                io->routes.route[sub->route].shard, ebb_status_name(st), detail);
    }
}

static void s_on_answer(ebb_io *io, uint32_t index, ebb_msg *msg, uint64_t now)
{
    io_shard *sh = &io->shard[index];
    ebb_sub *sub = sh->head;
    while (sub != NULL && sub->id != msg->env->request_id) {
        sub = sub->next;
    }
    if (sub == NULL || sub->sends == 0) {
        return; // an answer to an earlier sending, or of a request that was cancelled
    }
    char detail[200];
    snprintf(detail, sizeof(detail), "%s", msg->env->detail != NULL ? msg->env->detail : "");
    ebb_status st = s_take_answer(io, sub, msg);
    ebb_request *r = sub->request;
    uint64_t incarnation = sub->incarnation;
    switch (st) {
    case EBB_TRYLATER:
        if (sub->later_ms >= LATER_MS_MAX) {
            s_log_put_off(io, sub, st, detail, now);
        }
        s_try_later(sub, now);
        break;
    case EBB_DISKLOW:
        s_log_put_off(io, sub, st, detail, now);
        s_put_off(sub, DISKLOW_MS, now);
        break;
    case EBB_WRONGSHARD:
        io->map_wanted = true;
        s_log_put_off(io, sub, st, detail, now);
        s_try_later(sub, now);
        break;
    case EBB_GAP:
        s_on_gap(io, sub, now);
        break;
    case EBB_OK:
    case EBB_DUPLICATE:
    case EBB_STALE:
        s_sub_done(io, sub, st);
        break;
    default:
        if (r->why[0] == '\0') {
            snprintf(r->why, sizeof(r->why), "shard %u: %s%s%s", io->routes.route[index].shard, ebb_status_str(st), detail[0] ? ": " : "", detail);
        }
        s_sub_done(io, sub, st);
    }
    s_incarnation(io, index, incarnation, now);
}

static void s_damaged(ebb_io *io, uint32_t index, const ebb_frames *frames, const char *why, uint64_t now)
{
    COUNT(io, damaged, 1);
    if (now - io->damaged_logged_ns >= LOG_EVERY_NS || io->damaged_logged_ns == 0) {
        io->damaged_logged_ns = now;
        EBB_LOG(WARN, "client", "answer-damaged", "shard=%u reason=\"%s\" bytes=%zu action=\"asked again\"", io->routes.route[index].shard, why,
                frames->bytes);
    }
    // Which answer it was cannot be trusted; ask again for everything unanswered, soon. Names make that harmless.
    for (ebb_sub *sub = io->shard[index].head; sub != NULL; sub = sub->next) {
        if (sub->state == EBB_SUB_SENT) {
            s_put_off(sub, DAMAGED_MS, now);
        }
    }
}

static void s_receive(ebb_io *io, uint32_t index)
{
    for (int i = 0; i < RECV_BATCH; i++) {
        ebb_frames frames;
        ebb_status st = ebb_socket_recv(io->shard[index].socket, NULL, &frames);
        uint64_t now = ebb_clock_ns();
        if (st == EBB_PROTO) {
            ebb_frames_init(&frames);
            s_damaged(io, index, &frames, "beyond the bounds of a message", now);
            continue;
        }
        if (st != EBB_OK) {
            return;
        }
        COUNT(io, bytes_in, frames.bytes);
        ebb_msg msg;
        const char *why = "";
        st = ebb_msg_unpack(&frames, true, &msg, &why);
        s_heard(io, index, now);
        if (st != EBB_OK) {
            s_damaged(io, index, &frames, why, now);
        } else if (msg.env->body_case == EBB__ENVELOPE__BODY_PONG) {
            s_incarnation(io, index, msg.env->pong->incarnation, now);
        } else {
            s_on_answer(io, index, &msg, now);
        }
        if (st == EBB_OK) {
            ebb_msg_fini(&msg);
        }
        ebb_frames_fini(&frames);
    }
}

// ---- the shard map ----

static void s_adopt_map(ebb_io *io, const Ebb__ShardMapReply *reply, uint64_t now)
{
    ebb_routes fresh;
    char why[256];
    if (ebb_routes_parse(reply, (uint32_t)io->session->manifest->n_chunks, &fresh, why) != EBB_OK) {
        EBB_LOG(WARN, "client", "map-refused", "reason=\"%s\"", why);
        return;
    }
    fresh.layout = io->routes.layout;
    if (!ebb_routes_same_layout(&fresh, &io->routes)) {
        io_shard *shards = calloc(fresh.n, sizeof(*shards));
        ebb_poll *poll = calloc(fresh.n + 2, sizeof(*poll));
        if (shards == NULL || poll == NULL) {
            free(shards);
            free(poll);
            ebb_routes_fini(&fresh);
            return;
        }
        // The new layout is published first, so that whoever sees WRONGSHARD can adopt it.
        fresh.layout++;
        pthread_mutex_lock(&io->session->lock);
        io->session->n_routes = fresh.n;
        io->session->layout = fresh.layout;
        pthread_mutex_unlock(&io->session->lock);
        s_fail_all(io, EBB_WRONGSHARD, "the placement of chunks changed");
        for (uint32_t i = 0; i < io->routes.n; i++) {
            ebb_socket_close(&io->shard[i].socket);
        }
        free(io->shard);
        free(io->poll);
        io->shard = shards;
        io->poll = poll;
        for (uint32_t i = 0; i < fresh.n; i++) {
            if (ebb_dealer_open(io->session->net, fresh.route[i].endpoint, &io->shard[i].socket) != EBB_OK) {
                EBB_LOG(ERROR, "client", "endpoint-refused", "shard=%u endpoint=%s", fresh.route[i].shard, fresh.route[i].endpoint);
            }
        }
        ebb_routes_fini(&io->routes);
        io->routes = fresh;
        EBB_LOG(INFO, "client", "placement-changed", "epoch=%" PRIu64 " shards=%u", fresh.epoch, fresh.n);
        return;
    }
    io->routes.epoch = fresh.epoch;
    for (uint32_t i = 0; i < fresh.n; i++) {
        if (strcmp(fresh.route[i].endpoint, io->routes.route[i].endpoint) != 0) {
            memcpy(io->routes.route[i].endpoint, fresh.route[i].endpoint, EBB_ENDPOINT_MAX);
            s_reopen(io, i, now);
            io->map_wanted = false;
        }
    }
    ebb_routes_fini(&fresh);
}

static void s_ask_map(ebb_io *io, uint64_t now)
{
    if (!io->map_wanted) {
        if (io->map != NULL) {
            ebb_socket_close(&io->map);
        }
        return;
    }
    if (io->map_asked_ns != 0 && now - io->map_asked_ns < MAP_ASK_NS) {
        return;
    }
    ebb_socket_close(&io->map); // unanswered: a fresh connection
    if (ebb_dealer_open(io->session->net, io->session->coordinator, &io->map) != EBB_OK) {
        return;
    }
    io->map_asked_ns = now;
    io->map_id = 0; // sent when the socket is connected
}

static void s_send_map_request(ebb_io *io)
{
    if (io->map == NULL || io->map_id != 0) {
        return;
    }
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__ShardMapRequest ask = EBB__SHARD_MAP_REQUEST__INIT;
    ask.job = io->session->job;
    env.request_id = io->next_id++;
    env.body_case = EBB__ENVELOPE__BODY_SHARD_MAP_REQUEST;
    env.shard_map_request = &ask;
    ebb_frames frames;
    ebb_frames_init(&frames);
    if (ebb_msg_pack(&env, NULL, 0, &frames) == EBB_OK && ebb_socket_send(io->map, NULL, &frames) == EBB_OK) {
        io->map_id = env.request_id;
    }
    ebb_frames_fini(&frames);
}

static void s_receive_map(ebb_io *io)
{
    ebb_frames frames;
    while (io->map != NULL && ebb_socket_recv(io->map, NULL, &frames) == EBB_OK) {
        ebb_msg msg;
        if (ebb_msg_unpack(&frames, true, &msg, NULL) == EBB_OK) {
            if (msg.env->status == EBB_OK && msg.env->body_case == EBB__ENVELOPE__BODY_SHARD_MAP_REPLY) {
                io->map_wanted = false;
                s_adopt_map(io, msg.env->shard_map_reply, ebb_clock_ns());
            }
            ebb_msg_fini(&msg);
        }
        ebb_frames_fini(&frames);
    }
}

// ---- timers ----

static void s_ping(ebb_io *io, uint32_t index, uint64_t now)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__Ping ping = EBB__PING__INIT;
    ping.nonce = env.request_id = io->next_id++;
    env.body_case = EBB__ENVELOPE__BODY_PING;
    env.ping = &ping;
    ebb_frames frames;
    ebb_frames_init(&frames);
    if (ebb_msg_pack(&env, NULL, 0, &frames) == EBB_OK) {
        ebb_socket_send(io->shard[index].socket, NULL, &frames); // refused: not connected; the deadline runs all the same
    }
    ebb_frames_fini(&frames);
    io->shard[index].ping_ns = now;
    COUNT(io, pings, 1);
}

static void s_timers(ebb_io *io, uint32_t index, uint64_t now)
{
    io_shard *sh = &io->shard[index];
    if (sh->head == NULL) {
        sh->ping_ns = sh->blocked_ns = 0;
        return;
    }
    uint64_t oldest = UINT64_MAX;
    for (ebb_sub *sub = sh->head; sub != NULL; sub = sub->next) {
        if (sub->state != EBB_SUB_SENT) {
            continue;
        }
        if (now - sub->sent_ns >= sub->silence_ms * MS) {
            sub->silence_ms = sub->silence_ms * 2 > SILENCE_MS_MAX ? SILENCE_MS_MAX : sub->silence_ms * 2;
            s_resend(sub, now);
        } else if (sub->sent_ns < oldest) {
            oldest = sub->sent_ns;
        }
    }
    if (sh->ping_ns != 0) {
        if (now - sh->ping_ns >= DEAD_AFTER_NS) {
            s_reopen(io, index, now);
        }
    } else if (oldest != UINT64_MAX) {
        uint64_t quiet_since = sh->heard_ns > oldest ? sh->heard_ns : oldest;
        if (now - quiet_since >= PING_AFTER_NS) {
            s_ping(io, index, now);
        }
    }
    if (sh->blocked_ns != 0 && now - sh->blocked_ns >= DEAD_AFTER_NS) {
        s_reopen(io, index, now);
    }
}

// ---- the loop ----

// Milliseconds until something is due; -1: nothing is outstanding.
static int s_timeout(const ebb_io *io, uint64_t now)
{
    int timeout = io->map_wanted ? TICK_MS : -1;
    for (uint32_t i = 0; i < io->routes.n; i++) {
        for (const ebb_sub *sub = io->shard[i].head; sub != NULL; sub = sub->next) {
            int ms = TICK_MS;
            if (sub->state == EBB_SUB_WAITING && io->shard[i].blocked_ns == 0 && sub->due_ns < now + TICK_MS * MS && sub->due_ns > now) {
                ms = (int)((sub->due_ns - now + MS - 1) / MS);
            }
            if (timeout < 0 || ms < timeout) {
                timeout = ms;
            }
        }
    }
    return timeout;
}

static void *s_run(void *arg)
{
    ebb_io *io = arg;
    while (!atomic_load(&io->stop)) {
        uint32_t n = io->routes.n;
        ebb_poll *poll = io->poll;
        poll[0] = (ebb_poll){.fd = ebb_inbox_fd(io->inbox)};
        for (uint32_t i = 0; i < n; i++) {
            poll[i + 1] = (ebb_poll){.socket = io->shard[i].socket, .want_write = io->shard[i].blocked_ns != 0, .fd = -1};
        }
        size_t items = n + 1;
        if (io->map != NULL) {
            poll[items++] = (ebb_poll){.socket = io->map, .want_write = io->map_id == 0, .fd = -1};
        }
        if (ebb_net_poll(poll, items, s_timeout(io, ebb_clock_ns())) != EBB_OK) {
            ebb_clock_sleep_ms(TICK_MS); // out of memory or the context is ending
        }
        if (poll[0].readable) {
            s_take_submissions(io);
        }
        for (uint32_t i = 0; i < n; i++) {
            if (poll[i + 1].readable) {
                s_receive(io, i);
            }
        }
        if (items > n + 1) {
            s_send_map_request(io);
            if (poll[n + 1].readable) {
                s_receive_map(io); // may replace the shards and the poll set
            }
        }
        uint64_t now = ebb_clock_ns();
        for (uint32_t i = 0; i < io->routes.n; i++) {
            s_timers(io, i, now);
            s_send_due(io, i, now);
        }
        s_ask_map(io, now);
        s_send_map_request(io);
    }
    s_take_submissions(io);
    s_fail_all(io, EBB_CLOSED, "the session is ending");
    return NULL;
}

ebb_status ebb_io_start(ebb_session *session, ebb_routes *routes, ebb_io **out)
{
    ebb_io *io = calloc(1, sizeof(*io));
    if (io == NULL) {
        return EBB_NOMEM;
    }
    ebb_status st = EBB_NOMEM;
    uint32_t opened = 0;
    io->session = session;
    io->next_id = ebb_rng_system() >> 1; // ids of one process differ from those of its predecessor
    io->shard = calloc(routes->n, sizeof(*io->shard));
    io->poll = calloc(routes->n + 2, sizeof(*io->poll));
    if (io->shard == NULL || io->poll == NULL) {
        goto fail;
    }
    EBB_TRY_GOTO(ebb_inbox_new((size_t)session->requests.max * 2 + 1, &io->inbox), st, fail);
    for (; opened < routes->n; opened++) {
        EBB_TRY_GOTO(ebb_dealer_open(session->net, routes->route[opened].endpoint, &io->shard[opened].socket), st, fail);
    }
    io->routes = *routes;
    // The sockets change hands here; pthread_create is the barrier that libzmq asks for.
    if (pthread_create(&io->thread, NULL, s_run, io) != 0) {
        st = EBB_NOMEM;
        goto fail;
    }
    memset(routes, 0, sizeof(*routes));
    *out = io;
    return EBB_OK;
fail:
    while (opened > 0) {
        ebb_socket_close(&io->shard[--opened].socket);
    }
    ebb_inbox_free(&io->inbox);
    free(io->shard);
    free(io->poll);
    free(io);
    return st;
}

void ebb_io_submit(ebb_io *io, ebb_request *request)
{
    ebb_status st = ebb_inbox_push(io->inbox, request);
    EBB_ASSERT(st == EBB_OK);
}

void ebb_io_stop(ebb_io **iop)
{
    ebb_io *io = *iop;
    if (io == NULL) {
        return;
    }
    *iop = NULL;
    atomic_store(&io->stop, true);
    ebb_inbox_close(io->inbox); // wakes the loop
    pthread_join(io->thread, NULL);
    for (uint32_t i = 0; i < io->routes.n; i++) {
        ebb_socket_close(&io->shard[i].socket);
    }
    ebb_socket_close(&io->map);
    ebb_inbox_free(&io->inbox);
    ebb_routes_fini(&io->routes);
    free(io->shard);
    free(io->poll);
    free(io);
}
