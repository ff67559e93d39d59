// A shard process: the product's shard (ps/shard.c and what it stands on), turned by hand. The threads around it are modelled here, each as events with
// pauses of their own: the network thread (as ps/ingress.c), the link to the coordinator (as ps/link.c), the sync thread and the snapshot thread, whose
// functions the linker replaces by those below.
#include "ps/shard.h"

#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/bytes.h"
#include "core/clock.h"
#include "tests/sim/mutate.h"
#include "tests/sim/sim.h"

#define REPORT_MS 100
#define REPORT_MIN_MS 5
#define CALL_MS 2000
#define RESEND_MS 500
#define WORKS_MAX 16

enum { TIMER_TURN = 1, TIMER_LINK, TIMER_RESEND, TIMER_SYNC_BEGINS, TIMER_SYNC_ENDS, TIMER_SYNC_SAID, TIMER_WORK, TIMER_WORK_SAID };

typedef struct shard {
    proc *p;
    ebb_shard *core;
    uint64_t turn_at; // of the TURN timer that counts; 0: none
    bool fatal;       // it said that nothing is acknowledged any more
    bool closing, asked_last_report, inside;
    // link
    bool news, calling, building;
    uint64_t link_at, last_ms, call_id, call_until_ms, report;
    Ebb__Envelope *call;
    // sync thread
    ebb_kvstore *kv;
    void (*sync_done)(void *arg, ebb_status st);
    void *sync_arg;
    uint64_t sync_position;
    ebb_status sync_status;
    // snapshot thread
    void (*work_done)(void *arg, ebb_snapshot_work *w);
    void *work_arg;
    ebb_snapshot_work *works[WORKS_MAX];
    size_t n_works;
    bool working;
} shard;

static shard *s_starting; // while ebb_shard_new runs

struct ebb_job *sim_shard_job(proc *p)
{
    return ebb_shard_job(((shard *)p->self)->core);
}

static uint64_t s_some_us(shard *sh, uint64_t most_us)
{
    return dice_below(&sh->p->world->dice, most_us + 1);
}

static void s_turn_in(shard *sh, uint64_t us)
{
    sim *s = sh->p->world;
    uint64_t at = s->now + us;
    if (sh->turn_at == 0 || at < sh->turn_at) {
        sh->turn_at = at;
        sim_timer(s, sh->p->uid, us, TIMER_TURN, at);
    }
}

// ---- the sync thread ----

ebb_status __wrap_ebb_syncer_start(ebb_kvstore *kv, void (*done)(void *arg, ebb_status st), void *arg, ebb_syncer **out);
ebb_status __wrap_ebb_syncer_start(ebb_kvstore *kv, void (*done)(void *arg, ebb_status st), void *arg, ebb_syncer **out)
{
    s_starting->kv = kv;
    s_starting->sync_done = done;
    s_starting->sync_arg = arg;
    *out = (ebb_syncer *)s_starting;
    return EBB_OK;
}

void __wrap_ebb_syncer_request(ebb_syncer *syncer);
void __wrap_ebb_syncer_request(ebb_syncer *syncer)
{
    shard *sh = (shard *)syncer;
    sim_timer(sh->p->world, sh->p->uid, s_some_us(sh, 2 * MS), TIMER_SYNC_BEGINS, 0);
}

void __wrap_ebb_syncer_stop(ebb_syncer **syncer);
void __wrap_ebb_syncer_stop(ebb_syncer **syncer)
{
    *syncer = NULL;
}

// A sync promises what was written before it began, and no more.
static void s_sync(shard *sh, uint32_t timer)
{
    sim *s = sh->p->world;
    if (timer == TIMER_SYNC_BEGINS) {
        sh->sync_position = sim_disk_position(sim_kvstore_disk(sh->kv));
        sim_timer(s, sh->p->uid, s_some_us(sh, 30 * MS), TIMER_SYNC_ENDS, 0);
    } else if (timer == TIMER_SYNC_ENDS) {
        sh->sync_status = sim_kvstore_sync_upto(sh->kv, sh->sync_position);
        sim_timer(s, sh->p->uid, s_some_us(sh, 3 * MS), TIMER_SYNC_SAID, 0);
    } else {
        sh->sync_done(sh->sync_arg, sh->sync_status);
        s_turn_in(sh, s_some_us(sh, MS));
    }
}

// ---- the snapshot thread ----

ebb_status __wrap_ebb_snapshotter_start(ebb_kvstore *kv, size_t capacity, void (*done)(void *arg, ebb_snapshot_work *w), void *arg,
                                        ebb_snapshotter **out);
ebb_status __wrap_ebb_snapshotter_start(ebb_kvstore *kv, size_t capacity, void (*done)(void *arg, ebb_snapshot_work *w), void *arg,
                                        ebb_snapshotter **out)
{
    (void)kv;
    EBB_ASSERT(capacity <= WORKS_MAX);
    s_starting->work_done = done;
    s_starting->work_arg = arg;
    *out = (ebb_snapshotter *)s_starting;
    return EBB_OK;
}

static void s_work_next(shard *sh)
{
    if (sh->n_works > 0 && !sh->working) {
        sh->working = true;
        sim_timer(sh->p->world, sh->p->uid, s_some_us(sh, 20 * MS), TIMER_WORK, 0);
    }
}

ebb_status __wrap_ebb_snapshotter_post(ebb_snapshotter *snapshotter, ebb_snapshot_work *w);
ebb_status __wrap_ebb_snapshotter_post(ebb_snapshotter *snapshotter, ebb_snapshot_work *w)
{
    shard *sh = (shard *)snapshotter;
    EBB_ASSERT(sh->n_works < WORKS_MAX);
    sh->works[sh->n_works++] = w;
    s_work_next(sh);
    return EBB_OK;
}

void __wrap_ebb_snapshotter_stop(ebb_snapshotter **snapshotter);
void __wrap_ebb_snapshotter_stop(ebb_snapshotter **snapshotter)
{
    shard *sh = (shard *)*snapshotter;
    if (sh != NULL) {
        *snapshotter = NULL;
        for (size_t i = 0; i < sh->n_works; i++) {
            ebb_snapshot_work_free(&sh->works[i]);
        }
        sh->n_works = 0;
    }
}

static void s_work(shard *sh, uint32_t timer)
{
    ebb_snapshot_work *w = sh->works[0];
    if (timer == TIMER_WORK) {
        w->status = ebb_snapshot_work_run(sh->kv, w);
        for (uint32_t i = 0; i < EBB_CHUNK_BUFS_MAX; i++) {
            ebb_buf_unref(&w->image.buf[i]);
        }
        sim_timer(sh->p->world, sh->p->uid, s_some_us(sh, 3 * MS), TIMER_WORK_SAID, 0);
        return;
    }
    memmove(sh->works, sh->works + 1, --sh->n_works * sizeof(sh->works[0]));
    sh->working = false;
    sh->work_done(sh->work_arg, w);
    s_work_next(sh);
    s_turn_in(sh, s_some_us(sh, MS));
}

// ---- the link ----

static void s_link_at(shard *sh, uint64_t at_ms)
{
    uint64_t now = ebb_clock_ms(), in = at_ms > now ? at_ms - now : 0;
    sh->link_at = now + in;
    sim_timer(sh->p->world, sh->p->uid, in * MS, TIMER_LINK, sh->link_at);
}

static void s_submit(shard *sh, ebb_event **e)
{
    if (ebb_shard_submit_take(sh->core, e) != EBB_OK) {
        ebb_event_free(e);
    }
    s_turn_in(sh, s_some_us(sh, 2 * MS));
}

static void s_link_build(shard *sh)
{
    ebb_event *e = NULL;
    if (ebb_event_new(EBB_EVENT_REPORT, &e) == EBB_OK) {
        sh->building = true;
        sh->news = false;
        s_submit(sh, &e);
    }
}

static void s_call_over(shard *sh)
{
    if (sh->call != NULL) {
        ebb_pb_free(&sh->call->base);
        sh->call = NULL;
    }
    sh->calling = false;
    s_link_at(sh, sh->last_ms + (sh->news ? REPORT_MIN_MS : REPORT_MS));
}

static void s_call_send(shard *sh)
{
    sim_send_env(sh->p, SERVICE_COORDINATOR, sh->call, NULL, 0);
    sim_timer(sh->p->world, sh->p->uid, RESEND_MS * MS, TIMER_RESEND, sh->call_id);
}

static void s_on_report(void *arg, Ebb__Envelope *env, uint64_t report)
{
    shard *sh = arg;
    sim *s = sh->p->world;
    EBB_ASSERT(env != NULL);
    if (sh->fatal) {
        sim_violate(s, "shard %u reports after it said that nothing is acknowledged any more", sh->p->index);
    }
    sh->building = false;
    if (sh->calling) {
        s_call_over(sh);
    }
    if (mutate_now == MUTATE_RETIRE_ON_APPLIED && env->shard_report->n_jobs > 0) {
        Ebb__ShardJobReport *job = env->shard_report->jobs[0];
        for (size_t i = 0; i < job->n_watermarks; i++) {
            job->watermarks[i]->durable = job->watermarks[i]->applied;
        }
    } else if (mutate_now == MUTATE_REPORTS_OUTLIVE_SHARD) {
        env->shard_report->incarnation = 1 + sh->p->index;
    }
    if (sh->p->dying == DEATH_NONE && mutate_now == MUTATE_NOTHING) {
        check_reported(sh->p, env->shard_report);
    }
    sh->report = report;
    sh->call = env;
    sh->call_id = env->request_id = dice_next(&s->dice) | 1;
    sh->calling = true;
    sh->last_ms = ebb_clock_ms();
    sh->call_until_ms = sh->last_ms + CALL_MS;
    s_call_send(sh);
}

static void s_on_news(void *arg)
{
    shard *sh = arg;
    sh->news = true;
    if (!sh->calling && !sh->building) {
        s_link_at(sh, sh->last_ms + REPORT_MIN_MS);
    }
}

static void s_on_orders(shard *sh, ebb_msg *msg)
{
    bool closed = msg->env->status == EBB_CLOSED; // late words of a dead predecessor made the coordinator believe that this one is over: it ends
    sh->p->excused |= closed;
    if (closed || (msg->env->status == EBB_OK && msg->env->body_case == EBB__ENVELOPE__BODY_SHARD_REPORT_REPLY)) {
        ebb_event *e = NULL;
        if (ebb_event_new(EBB_EVENT_ORDERS, &e) == EBB_OK) {
            e->msg = *msg;
            ebb_msg_init(msg);
            e->report = sh->report;
            s_submit(sh, &e);
        }
    }
    s_call_over(sh);
}

// ---- the network thread ----

// What a reply's addressee is: the process, and the step if it was a push.
static ebb_peer s_peer(uint32_t uid, const Ebb__PushRequest *push)
{
    ebb_peer peer = {.len = 16};
    ebb_put_le32(peer.id, uid);
    ebb_put_le32(peer.id + 4, push != NULL && push->stream < SIM_UNITS ? (uint32_t)push->stream : UINT32_MAX);
    ebb_put_le64(peer.id + 8, push != NULL ? push->seq : 0);
    return peer;
}

static void s_on_reply(void *arg, const ebb_peer *peer, ebb_frames *frames)
{
    shard *sh = arg;
    sim *s = sh->p->world;
    ebb_msg msg;
    if (sh->fatal) {
        sim_violate(s, "shard %u answers after it said that nothing is acknowledged any more", sh->p->index);
    }
    uint32_t stream = ebb_get_le32(peer->id + 4);
    if (sh->p->dying == DEATH_NONE && stream != UINT32_MAX && ebb_msg_unpack(frames, false, &msg, NULL) == EBB_OK) {
        const Ebb__PushReply *r = msg.env->body_case == EBB__ENVELOPE__BODY_PUSH_REPLY && msg.env->status == EBB_OK ? msg.env->push_reply : NULL;
        if (r != NULL && (r->verdict == EBB__VERDICT__VERDICT_APPLIED || r->verdict == EBB__VERDICT__VERDICT_DUPLICATE)) {
            check_told(sh->p, stream, ebb_get_le64(peer->id + 8));
        }
        ebb_msg_fini(&msg);
    }
    sim_send(sh->p, ebb_get_le32(peer->id), frames);
}

static void s_refuse(shard *sh, uint32_t to, const Ebb__Envelope *request, ebb_status st, const char *detail)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__Ok ok = EBB__OK__INIT;
    Ebb__PushReply push = EBB__PUSH_REPLY__INIT;
    env.request_id = request->request_id;
    env.status = st;
    env.detail = (char *)detail;
    env.body_case = EBB__ENVELOPE__BODY_OK;
    env.ok = &ok;
    if (request->body_case == EBB__ENVELOPE__BODY_PUSH_REQUEST) {
        push.incarnation = sh->p->incarnation;
        push.credit = 1;
        env.body_case = EBB__ENVELOPE__BODY_PUSH_REPLY;
        env.push_reply = &push;
    }
    sim_send_env(sh->p, to, &env, NULL, 0);
}

static void s_refuse_broken(shard *sh, uint32_t from, ebb_status st, const ebb_frames *frames)
{
    ebb_frames head = *frames;
    ebb_msg msg;
    head.n = frames->n > 1 ? 1 : 0;
    if (head.n == 1 && ebb_msg_unpack(&head, false, &msg, NULL) == EBB_OK) {
        s_refuse(sh, from, msg.env, st, "damaged");
        ebb_msg_fini(&msg);
    }
}

static void s_request(shard *sh, uint32_t from, ebb_msg *msg, const ebb_frames *frames)
{
    Ebb__Envelope *env = msg->env;
    if (env->body_case == EBB__ENVELOPE__BODY_PING) {
        Ebb__Envelope out = EBB__ENVELOPE__INIT;
        Ebb__Pong pong = EBB__PONG__INIT;
        out.request_id = env->request_id;
        pong.nonce = env->ping->nonce;
        pong.incarnation = sh->p->incarnation;
        out.body_case = EBB__ENVELOPE__BODY_PONG;
        out.pong = &pong;
        sim_send_env(sh->p, from, &out, NULL, 0);
        return;
    }
    if (sh->closing) {
        s_refuse(sh, from, env, EBB_TRYLATER, "the shard is ending");
        return;
    }
    if (mutate_now == MUTATE_DEDUP_OFF && env->body_case == EBB__ENVELOPE__BODY_PUSH_REQUEST && ebb_shard_job(sh->core) != NULL) {
        const ebb_stream *st = ebb_streams_find(&ebb_shard_job(sh->core)->streams, env->push_request->stream);
        if (st != NULL && env->push_request->seq <= st->applied) {
            env->push_request->seq = st->applied + 1;
        }
    }
    ebb_event *e = NULL;
    if (ebb_event_new(EBB_EVENT_REQUEST, &e) != EBB_OK) {
        return;
    }
    e->peer = s_peer(from, env->body_case == EBB__ENVELOPE__BODY_PUSH_REQUEST ? env->push_request : NULL);
    e->bytes = frames->bytes;
    e->msg = *msg;
    ebb_msg_init(msg);
    if (ebb_shard_submit_take(sh->core, &e) != EBB_OK) {
        s_refuse(sh, from, e->msg.env, EBB_TRYLATER, "the shard's queue is full");
        ebb_event_free(&e);
    }
    s_turn_in(sh, s_some_us(sh, 2 * MS));
}

static void s_message(proc *p, uint32_t from, ebb_msg *msg, ebb_status st, const ebb_frames *frames)
{
    shard *sh = p->self;
    if (msg == NULL) {
        s_refuse_broken(sh, from, st, frames);
    } else if (msg->env->body_case == EBB__ENVELOPE__BODY_SHARD_REPORT_REPLY || msg->env->body_case == EBB__ENVELOPE__BODY__NOT_SET) {
        if (sh->calling && msg->env->request_id == sh->call_id) {
            s_on_orders(sh, msg);
        }
    } else if (msg->env->body_case != EBB__ENVELOPE__BODY_PUSH_REQUEST && msg->env->body_case != EBB__ENVELOPE__BODY_PULL_REQUEST &&
               msg->env->body_case != EBB__ENVELOPE__BODY_PING) {
        s_refuse(sh, from, msg->env, EBB_INVAL, "this request is not for a shard");
    } else {
        s_request(sh, from, msg, frames);
    }
}

// ---- the shard's thread ----

static void s_on_shutdown(void *arg)
{
    (void)arg;
}

static void s_on_fatal(void *arg, int exit_code, const char *why)
{
    shard *sh = arg;
    sh->fatal = true;
    if (!sh->p->excused && sh->p->dying == DEATH_NONE) {
        sim_violate(sh->p->world, "shard %u ends with %d although its disk is fine: %s", sh->p->index, exit_code, why);
    }
    sim_die(sh->p, DEATH_EXIT);
}

static void s_turn(shard *sh)
{
    sh->turn_at = 0;
    ebb_shard_turn(sh->core, 0);
    if (sh->p->dying != DEATH_NONE) {
        return;
    }
    s_turn_in(sh, (uint64_t)ebb_shard_wait_ms(sh->core) * MS + s_some_us(sh, MS));
    if (sh->closing && ebb_shard_is_closed(sh->core)) {
        if (!sh->asked_last_report) {
            sh->asked_last_report = true;
            s_link_build(sh);
        } else if (!sh->building) {
            sh->p->world->truth[sh->p->index].clean = true;
            sim_die(sh->p, DEATH_EXIT);
        }
    }
}

void sim_shard_close(proc *p)
{
    shard *sh = p->self;
    ebb_event *e = NULL;
    if (!sh->closing && ebb_event_new(EBB_EVENT_CLOSE, &e) == EBB_OK) {
        sh->closing = true;
        s_submit(sh, &e);
    }
}

static void s_timer(proc *p, uint32_t timer, uint64_t arg)
{
    shard *sh = p->self;
    switch (timer) {
    case TIMER_TURN:
        if (arg == sh->turn_at) {
            s_turn(sh);
        }
        break;
    case TIMER_LINK:
        if (arg == sh->link_at && !sh->calling && !sh->building) {
            s_link_build(sh);
        }
        break;
    case TIMER_RESEND:
        if (sh->calling && arg == sh->call_id) {
            if (ebb_clock_ms() >= sh->call_until_ms) {
                s_call_over(sh);
            } else {
                s_call_send(sh);
            }
        }
        break;
    case TIMER_WORK:
    case TIMER_WORK_SAID:
        s_work(sh, timer);
        break;
    default:
        s_sync(sh, timer);
        break;
    }
}

static void s_end(proc *p)
{
    shard *sh = p->self;
    if (sh != NULL) {
        ebb_shard_free(&sh->core);
        if (sh->call != NULL) {
            ebb_pb_free(&sh->call->base);
        }
        free(sh);
    }
}

bool sim_shard_start(proc *p)
{
    sim *s = p->world;
    char dir[32], endpoint[32], why[512] = "";
    shard *sh = calloc(1, sizeof(*sh));
    EBB_ASSERT(sh != NULL);
    sh->p = p;
    snprintf(dir, sizeof(dir), "shard-%u", p->index);
    snprintf(endpoint, sizeof(endpoint), "sim://shard-%u", p->index);
    sim_disk_mount(dir, s->shard_disk[p->index], sim_disk_hook, p);
    const ebb_shard_options options = {.dir = dir,
                                       .endpoint = endpoint,
                                       .shard = p->index,
                                       .incarnation = p->incarnation,
                                       .sync_ms = s->config.sync_ms,
                                       .reply = s_on_reply,
                                       .report = s_on_report,
                                       .news = s_on_news,
                                       .shutdown = s_on_shutdown,
                                       .fatal = s_on_fatal,
                                       .arg = sh};
    s_starting = sh;
    ebb_status st = ebb_shard_new(&options, &sh->core, why);
    s_starting = NULL;
    if (st != EBB_OK) {
        free(sh);
        if (!p->excused && p->dying == DEATH_NONE) {
            sim_violate(s, "shard %u does not come back (%s): %s", p->index, ebb_status_name(st), why);
        }
        return false;
    }
    p->self = sh;
    if (p->dying != DEATH_NONE) {
        return false;
    }
    s->recoveries++;
    check_shard_recovered(p);
    s_turn_in(sh, 0);
    s_link_at(sh, 0);
    return true;
}

const role_ops sim_shard_ops = {s_message, s_timer, s_end};
