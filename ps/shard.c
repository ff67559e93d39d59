#include "ps/shard.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/assert.h"
#include "core/clock.h"
#include "core/inbox.h"
#include "core/log.h"
#include "core/process.h"
#include "ps/recover.h"

#define BATCH_MAX 64
#define BATCH_BYTES_JOURNAL (8u << 20) // larger batches make unsynced writes slower, synced ones faster (measured)
#define BATCH_BYTES_FSYNC (64u << 20)
#define INTERNAL_EVENTS_MAX 64
#define SYNC_MS_DEFAULT 250
#define SNAPSHOT_MS_DEFAULT 60000
#define SNAPSHOT_BYTES_DEFAULT (256u << 20)
#define SNAPSHOT_WINDOW 4     // chunks handed to the snapshot thread at a time: so many may need a second buffer
#define IDLE_SNAPSHOT_MS 1000 // durability snapshot: a pause this long makes what is done durable
#define DISK_CHECK_MS 500
#define REPORT_WATERMARKS_MAX 1800 // they must fit a control message; the rest follows in the next report
#define CREDIT 8

// A snapshot under way.
typedef struct snapshot {
    bool active, finishing;
    uint32_t next, inflight;
    uint32_t generation;
    ebb_chunk_state *images; // durability snapshot: all chunks at one instant
    ebb_kvbatch *flip;
    uint64_t bytes_at_start, lsn_at_start;
    uint64_t started_ms;
} snapshot;

struct ebb_shard {
    ebb_shard_options o;
    char *dir, *endpoint;
    ebb_kvstore *kv;
    ebb_journal journal;
    ebb_job *job; // NULL until installed
    ebb_inbox *inbox;
    ebb_syncer *syncer;
    ebb_snapshotter *snapshotter;
    pthread_t thread;
    bool started;
    _Atomic size_t waiting_requests, waiting_bytes;
    // the thread's own
    bool stop, dead, closing, disk_low;
    uint64_t disk_free_bytes; // at the last look; 0: not looked yet
    bool syncing;
    uint64_t sync_due_ms; // 0: nothing to sync
    uint64_t disk_check_ms, last_push_ms;
    snapshot snap;
    bool snapshot_ordered;
    uint64_t snapshot_lsn, snapshot_done_ms;
    uint64_t unsaved_bytes; // durability snapshot: gradient bytes since the last one
    bool news;
    uint64_t report, report_answered; // the last one made, and answered; 0: the next one begins a chain
    uint64_t pushes, busy_ns, start_ns;
    uint64_t refused_install;
    struct group *group; // pushes of the turn under way
    // close handshake
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed;
};

static void s_fatal(ebb_shard *s, int exit_code, const char *what, ebb_status st)
{
    if (s->dead) {
        return;
    }
    s->dead = true;
    EBB_LOG(ERROR, "shard", "fatal", "exit=%d status=%s why=\"%s\"", exit_code, ebb_status_name(st), what);
    s->o.fatal(s->o.arg, exit_code, what);
}

// ---- answers ----

static void s_send(ebb_shard *s, const ebb_event *e, Ebb__Envelope *env, const ebb_part *parts, size_t n_parts)
{
    ebb_frames frames;
    ebb_frames_init(&frames);
    env->request_id = e->msg.env->request_id;
    if (ebb_msg_pack(env, parts, n_parts, &frames) != EBB_OK) {
        return; // out of memory: the peer asks again
    }
    s->o.reply(s->o.arg, &e->peer, &frames);
    ebb_frames_fini(&frames);
}

static void s_refuse(ebb_shard *s, const ebb_event *e, ebb_status st, const char *detail)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__Ok ok = EBB__OK__INIT;
    Ebb__PushReply push = EBB__PUSH_REPLY__INIT;
    env.status = st;
    env.detail = (char *)(detail != NULL ? detail : ebb_status_str(st));
    if (e->msg.env->body_case == EBB__ENVELOPE__BODY_PUSH_REQUEST) {
        push.incarnation = s->o.incarnation;
        env.body_case = EBB__ENVELOPE__BODY_PUSH_REPLY;
        env.push_reply = &push;
    } else {
        env.body_case = EBB__ENVELOPE__BODY_OK;
        env.ok = &ok;
    }
    s_send(s, e, &env, NULL, 0);
}

// What a reader wants of the chunks.
typedef struct wish {
    bool everything;       // else: chunks newer than have_version
    uint64_t have_version; // of the reader
    uint32_t slot;
    double look_ahead; // versions
} wish;

static void s_free_parts(ebb_part **parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ebb_buf_unref(&(*parts)[i].buf);
    }
    free(*parts);
    *parts = NULL;
}

// *out NULL and n 0 if no chunk is wanted; else the caller frees the parts. NOMEM.
static ebb_status s_wanted_chunks(const ebb_job *job, ebb_chunk_state *chunks, uint32_t count, const wish *w, ebb_part **out, size_t *n)
{
    bool ahead = w->slot == 0 && isfinite(w->look_ahead) && w->look_ahead > 0;
    float weight = ahead ? ebb_consistency_weight(&job->consistency, w->look_ahead) : 1;
    *out = NULL;
    *n = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!w->everything && chunks[i].version <= w->have_version) {
            continue;
        }
        if (*out == NULL && (*out = malloc(count * sizeof(**out))) == NULL) {
            return EBB_NOMEM;
        }
        ebb_part *part = &(*out)[*n];
        if (!ahead) {
            ebb_chunk_state_part(&chunks[i], w->slot, part);
            ebb_buf_ref(part->buf);
        } else if (ebb_chunk_state_part_ahead(&chunks[i], &job->optimizer, w->look_ahead, weight, part) != EBB_OK) {
            s_free_parts(out, *n);
            return EBB_NOMEM;
        }
        (*n)++;
    }
    return EBB_OK;
}

static void s_answer_push(ebb_shard *s, const ebb_event *e, const ebb_push *p)
{
    const Ebb__PushRequest *req = e->msg.env->push_request;
    ebb_job *job = s->job;
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__PushReply r = EBB__PUSH_REPLY__INIT;
    env.body_case = EBB__ENVELOPE__BODY_PUSH_REPLY;
    env.push_reply = &r;
    if (p->why != NULL) {
        env.detail = (char *)p->why;
    }
    r.verdict = p->verdict;
    r.applied = p->applied;
    r.staleness = p->staleness;
    r.incarnation = s->o.incarnation;
    r.credit = ebb_inbox_count(s->inbox) > EBB_SHARD_REQUESTS_MAX / 2 ? 1 : CREDIT;
    const ebb_stream *stream = ebb_streams_find(&job->streams, req->stream);
    r.durable = stream != NULL ? stream->durable : ebb_streams_is_retired(&job->streams, req->stream) ? p->applied : 0;
    ebb_part *parts = NULL;
    size_t n = 0;
    r.version = p->verdict == EBB__VERDICT__VERDICT_APPLIED && !req->want_pull ? p->record.version : job->version;
    if (req->want_pull) {
        // A copy of a version that a crash took back is no base for "newer than": send everything.
        wish w = {.everything = req->have_version > job->version, .have_version = req->have_version, .look_ahead = req->look_ahead};
        if (s_wanted_chunks(job, job->chunks, job->chunk_count, &w, &parts, &n) != EBB_OK) {
            return;
        }
    }
    s_send(s, e, &env, parts, n);
    s_free_parts(&parts, n);
}

static void s_on_pull(ebb_shard *s, const ebb_event *e)
{
    const Ebb__PullRequest *req = e->msg.env->pull_request;
    ebb_job *job = s->job;
    if (job == NULL || req->job != job->id || req->epoch != job->epoch) {
        s_refuse(s, e, EBB_WRONGSHARD, job == NULL ? "no job is installed on this shard yet" : "another job, or an old shard map");
        return;
    }
    if (req->slot > job->optimizer.slots) {
        s_refuse(s, e, EBB_INVAL, "the optimizer has no such slot");
        return;
    }
    ebb_chunk_state *chunks = job->chunks;
    uint64_t version = job->version;
    if (req->pin != 0) {
        ebb_pin *pin = ebb_pins_find(&job->pins, req->pin);
        if (pin == NULL) {
            s_refuse(s, e, EBB_NOENT, "no such pin: it expired, or the shard was restarted");
            return;
        }
        chunks = pin->chunks;
        version = pin->version;
    }
    uint32_t first = 0, count = job->chunk_count;
    if (req->chunk_count != 0) {
        if (req->first_chunk < job->first_chunk || req->first_chunk - job->first_chunk > job->chunk_count ||
            req->chunk_count > job->chunk_count - (req->first_chunk - job->first_chunk)) {
            s_refuse(s, e, EBB_WRONGSHARD, "the chunks are not all on this shard");
            return;
        }
        first = req->first_chunk - job->first_chunk;
        count = req->chunk_count;
    }
    ebb_part *parts = NULL;
    size_t n = 0;
    wish w = {.everything = req->have_nothing || req->have_version > version,
              .have_version = req->have_version,
              .slot = req->slot,
              .look_ahead = req->pin == 0 ? req->look_ahead : 0};
    if (s_wanted_chunks(job, chunks + first, count, &w, &parts, &n) != EBB_OK) {
        s_refuse(s, e, EBB_NOMEM, NULL);
        return;
    }
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__PullReply r = EBB__PULL_REPLY__INIT;
    env.body_case = EBB__ENVELOPE__BODY_PULL_REPLY;
    env.pull_reply = &r;
    r.version = version;
    r.slots = job->optimizer.slots;
    r.incarnation = s->o.incarnation;
    r.step_count = version;
    s_send(s, e, &env, parts, n);
    s_free_parts(&parts, n);
}

static void s_on_pin(ebb_shard *s, const ebb_event *e)
{
    const Ebb__PinRequest *req = e->msg.env->pin_request;
    ebb_job *job = s->job;
    if (job == NULL || req->job != job->id) {
        s_refuse(s, e, EBB_WRONGSHARD, "this job is not installed on this shard");
        return;
    }
    Ebb__PinReply r = EBB__PIN_REPLY__INIT;
    ebb_status st = ebb_pins_add(&job->pins, req->pin, job->version, job->chunks, job->chunk_count, ebb_clock_ms(), req->ttl_ms, &r.version);
    if (st != EBB_OK) {
        s_refuse(s, e, st, st == EBB_INVAL ? "a pin's id must not be 0" : st == EBB_TRYLATER ? "too many pins" : NULL);
        return;
    }
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    env.body_case = EBB__ENVELOPE__BODY_PIN_REPLY;
    env.pin_reply = &r;
    s_send(s, e, &env, NULL, 0);
}

static void s_on_unpin(ebb_shard *s, const ebb_event *e)
{
    const Ebb__UnpinRequest *req = e->msg.env->unpin_request;
    if (s->job != NULL && req->job == s->job->id) {
        ebb_pins_drop(&s->job->pins, req->pin); // unknown: dropped already, the same to the asker
    }
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__Ok ok = EBB__OK__INIT;
    env.body_case = EBB__ENVELOPE__BODY_OK;
    env.ok = &ok;
    s_send(s, e, &env, NULL, 0);
}

// ---- durability ----

static void s_write_failed(ebb_shard *s, ebb_status st)
{
    s_fatal(s, EBB_EXIT_RESTART, "a write to the store failed: its outcome is unknown, so nothing is acknowledged any more; the restart recovers",
            st);
}

// Makes what waits in the journal's batch as durable as the job asks. False: the shard is dead.
static bool s_commit(ebb_shard *s)
{
    bool sync = s->job->durability == EBB_DURABILITY_FSYNC;
    bool any = ebb_kvbatch_count(ebb_journal_batch(&s->journal)) > 0;
    ebb_status st = ebb_journal_commit(&s->journal, sync);
    if (st != EBB_OK) {
        s_write_failed(s, st);
        return false;
    }
    if (sync) {
        ebb_streams_all_durable(&s->job->streams);
    } else if (any && s->sync_due_ms == 0 && s->job->durability == EBB_DURABILITY_JOURNAL) {
        s->sync_due_ms = ebb_clock_ms() + (s->o.sync_ms != 0 ? s->o.sync_ms : SYNC_MS_DEFAULT);
    }
    return true;
}

static void s_sync_timer(ebb_shard *s, uint64_t now)
{
    if (s->sync_due_ms != 0 && now >= s->sync_due_ms && !s->syncing) {
        s->syncing = true;
        s->sync_due_ms = 0;
        ebb_streams_mark(&s->job->streams);
        ebb_syncer_request(s->syncer);
    }
}

static void s_on_synced(ebb_shard *s, const ebb_event *e)
{
    s->syncing = false;
    if (e->status != EBB_OK) {
        s_write_failed(s, e->status);
        return;
    }
    ebb_streams_commit_mark(&s->job->streams);
    s->news = true;
}

// ---- snapshots ----

static bool s_has_journal(const ebb_shard *s)
{
    return s->job->durability != EBB_DURABILITY_SNAPSHOT;
}

static void s_snapshot_abandon(ebb_shard *s)
{
    snapshot *sn = &s->snap;
    if (sn->images != NULL) {
        for (uint32_t i = 0; i < s->job->chunk_count; i++) {
            ebb_chunk_state_fini(&sn->images[i]);
        }
        free(sn->images);
    }
    ebb_kvbatch_free(&sn->flip);
    memset(sn, 0, sizeof(*sn));
}

static ebb_status s_post(ebb_shard *s, ebb_snapshot_work **w)
{
    ebb_status st = ebb_snapshotter_post(s->snapshotter, *w);
    if (st == EBB_OK) {
        s->snap.inflight++;
        *w = NULL;
    }
    ebb_snapshot_work_free(w);
    return st;
}

static ebb_status s_snapshot_finish(ebb_shard *s)
{
    snapshot *sn = &s->snap;
    ebb_job *job = s->job;
    ebb_snapshot_work *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        return EBB_NOMEM;
    }
    sn->finishing = true;
    w->generation = sn->generation;
    if (!s_has_journal(s)) {
        w->step = EBB_SNAPSHOT_FLIP;
        w->flip = sn->flip;
        sn->flip = NULL;
        return s_post(s, &w);
    }
    w->step = EBB_SNAPSHOT_FINISH;
    w->drop_upto = job->lsn;
    for (uint32_t i = 0; i < job->chunk_count; i++) {
        w->drop_upto = job->chunks[i].saved_lsn < w->drop_upto ? job->chunks[i].saved_lsn : w->drop_upto;
    }
    // In the log before the journal's records are dropped: a shard without chunks finds its lsn and version nowhere else.
    ebb_snapshot_put_state(ebb_journal_batch(&s->journal), job->generation, job->lsn, job->version, job->skipped);
    if (!s_commit(s)) {
        ebb_snapshot_work_free(&w);
        return EBB_OK;
    }
    return s_post(s, &w);
}

// Keeps the snapshot thread supplied; ends the snapshot when all is written.
static void s_snapshot_feed(ebb_shard *s)
{
    snapshot *sn = &s->snap;
    ebb_job *job = s->job;
    ebb_status st = EBB_OK;
    while (sn->inflight < SNAPSHOT_WINDOW && sn->next < job->chunk_count && st == EBB_OK) {
        uint32_t i = sn->next++;
        if (sn->images == NULL && job->chunks[i].lsn <= job->chunks[i].saved_lsn) {
            continue; // not dirty
        }
        ebb_snapshot_work *w = calloc(1, sizeof(*w));
        if (w == NULL) {
            st = EBB_NOMEM;
            break;
        }
        w->step = EBB_SNAPSHOT_CHUNK;
        w->generation = sn->generation;
        if (sn->images != NULL) {
            w->image = sn->images[i]; // its references move
            memset(&sn->images[i], 0, sizeof(sn->images[i]));
        } else {
            ebb_chunk_state_share(&job->chunks[i], &w->image);
        }
        st = s_post(s, &w);
    }
    if (st == EBB_OK && sn->next == job->chunk_count && sn->inflight == 0 && !sn->finishing) {
        st = s_snapshot_finish(s);
    }
    if (st != EBB_OK) {
        s_fatal(s, EBB_EXIT_RESTART, "the snapshot cannot go on", st);
    }
}

static void s_snapshot_start(ebb_shard *s, uint64_t now)
{
    snapshot *sn = &s->snap;
    ebb_job *job = s->job;
    *sn = (snapshot){.active = true, .generation = job->generation, .bytes_at_start = s->journal.bytes, .lsn_at_start = job->lsn, .started_ms = now};
    if (!s_has_journal(s)) {
        sn->generation = job->generation + 1;
        sn->bytes_at_start = s->unsaved_bytes;
        sn->images = calloc(job->chunk_count > 0 ? job->chunk_count : 1, sizeof(*sn->images));
        if (sn->images == NULL || ebb_kvbatch_new(&sn->flip) != EBB_OK) {
            s_fatal(s, EBB_EXIT_RESTART, "no memory for a snapshot", EBB_NOMEM);
            return;
        }
        for (uint32_t i = 0; i < job->chunk_count; i++) {
            ebb_chunk_state_share(&job->chunks[i], &sn->images[i]);
        }
        ebb_snapshot_put_flip(sn->flip, job, sn->generation);
        ebb_streams_mark(&job->streams);
    }
    s->snapshot_ordered = false;
    s_snapshot_feed(s);
}

static void s_on_snapshot(ebb_shard *s, ebb_event *e)
{
    snapshot *sn = &s->snap;
    ebb_job *job = s->job;
    const ebb_snapshot_work *w = e->work;
    sn->inflight--;
    if (w->status != EBB_OK) {
        s_write_failed(s, w->status);
        return;
    }
    if (w->step == EBB_SNAPSHOT_CHUNK) {
        job->chunks[w->image.id - job->first_chunk].saved_lsn = w->image.lsn;
        s_snapshot_feed(s);
        return;
    }
    if (w->step == EBB_SNAPSHOT_FLIP) {
        job->generation = sn->generation;
        ebb_streams_commit_mark(&job->streams);
        s->unsaved_bytes -= sn->bytes_at_start;
    } else {
        s->journal.bytes -= sn->bytes_at_start;
    }
    uint64_t now = ebb_clock_ms();
    EBB_LOG(INFO, "snapshot", "written", "version=%llu lsn=%llu ms=%llu", (unsigned long long)job->version, (unsigned long long)sn->lsn_at_start,
            (unsigned long long)(now - sn->started_ms));
    s->snapshot_lsn = sn->lsn_at_start;
    s->snapshot_done_ms = now;
    s->news = true;
    s_snapshot_abandon(s);
}

// Parameters and optimizer slots.
static uint64_t s_state_bytes(const ebb_shard *s)
{
    uint64_t numel = 0;
    for (uint32_t i = 0; s->job != NULL && i < s->job->chunk_count; i++) {
        numel += s->job->chunks[i].numel;
    }
    return s->job != NULL ? numel * (1 + s->job->optimizer.slots) * sizeof(float) : 0;
}

// RocksDB may abort on a full disk, so a snapshot isn't begun that might fill it.
static bool s_has_room(const ebb_shard *s)
{
    return s->o.disk_reserve_bytes == 0 || s->disk_free_bytes == 0 || s->disk_free_bytes >= s->o.disk_reserve_bytes / 4 + 2 * s_state_bytes(s);
}

static bool s_snapshot_due(const ebb_shard *s, uint64_t now)
{
    const Ebb__JobSpec *spec = s->job->install->spec;
    if (s->job->lsn == s->snapshot_lsn) {
        return false;
    }
    uint64_t bytes_max = spec->snapshot_bytes != 0 ? spec->snapshot_bytes : SNAPSHOT_BYTES_DEFAULT;
    uint64_t ms_max = spec->snapshot_ms != 0 ? spec->snapshot_ms : SNAPSHOT_MS_DEFAULT;
    uint64_t bytes = s_has_journal(s) ? s->journal.bytes : s->unsaved_bytes;
    bool idle = !s_has_journal(s) && now - s->last_push_ms >= IDLE_SNAPSHOT_MS;
    return s->closing || s->snapshot_ordered || bytes >= bytes_max || now - s->snapshot_done_ms >= ms_max || idle;
}

static void s_closed(ebb_shard *s)
{
    pthread_mutex_lock(&s->lock);
    s->closed = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void s_snapshot_timer(ebb_shard *s, uint64_t now)
{
    bool room = s_has_room(s);
    if (s->job != NULL && !s->snap.active && room && s_snapshot_due(s, now)) {
        s_snapshot_start(s, now);
    }
    bool saved = s->job == NULL || (!s->snap.active && s->job->lsn == s->snapshot_lsn);
    if (s->closing && (saved || (!s->snap.active && !room))) { // without room for a last snapshot: the journal has it, or it is computed again
        if (!saved) {
            EBB_LOG(WARN, "shard", "no-last-snapshot", "free_bytes=%llu why=\"the disk is nearly full\"", (unsigned long long)s->disk_free_bytes);
        } else if (s->job != NULL) {
            ebb_streams_all_durable(&s->job->streams); // pushes are refused, and all before the snapshot's end was synced with it
        }
        s_closed(s);
    }
}

// ---- pushes ----

typedef struct group {
    ebb_event *event[BATCH_MAX];
    ebb_push push[BATCH_MAX];
    size_t n;
} group;

static void s_judge(ebb_shard *s, ebb_event *e, group *g)
{
    const Ebb__PushRequest *req = e->msg.env->push_request;
    if (s->closing) {
        s_refuse(s, e, EBB_TRYLATER, "the shard is ending");
        return;
    }
    if (s->job == NULL) {
        s_refuse(s, e, EBB_WRONGSHARD, "no job is installed on this shard yet");
        return;
    }
    if (s->disk_low) {
        s_refuse(s, e, EBB_DISKLOW, "the shard's disk is nearly full");
        return;
    }
    ebb_push *p = &g->push[g->n];
    ebb_status st = ebb_job_judge(s->job, req, e->msg.parts, e->msg.n_parts, p);
    if (st != EBB_OK) {
        s_refuse(s, e, st, st == EBB_WRONGSHARD ? "another job, or an old shard map" : NULL);
        ebb_push_fini(p);
        return;
    }
    if (p->verdict == EBB__VERDICT__VERDICT_BAD_VALUE) {
        EBB_LOG(WARN, "shard", "bad-value", "worker=\"%s\" stream=%llu seq=%llu attempt=%u why=\"%s\"", req->worker, (unsigned long long)req->stream,
                (unsigned long long)req->seq, req->attempt, p->why);
    }
    if (p->verdict == EBB__VERDICT__VERDICT_APPLIED) {
        s->pushes++;
        s->news = true;
        if (s_has_journal(s)) {
            ebb_journal_add(&s->journal, &p->record, p->parts);
        } else {
            s->unsaved_bytes += e->bytes;
        }
    }
    g->event[g->n++] = e;
}

static void s_push_group(ebb_shard *s, group *g)
{
    const ebb_push *apply[BATCH_MAX];
    size_t n = 0;
    if (g->n > 0 && s_commit(s)) {
        for (size_t i = 0; i < g->n; i++) {
            if (g->push[i].verdict == EBB__VERDICT__VERDICT_APPLIED) {
                apply[n++] = &g->push[i];
            }
        }
        ebb_status st = ebb_job_apply(s->job, apply, n);
        if (st != EBB_OK) {
            s_fatal(s, EBB_EXIT_RESTART, "no memory to apply a journaled push; the restart recovers it", st);
        }
        if (n > 0) {
            s->last_push_ms = ebb_clock_ms();
        }
        for (size_t i = 0; i < g->n && !s->dead; i++) {
            s_answer_push(s, g->event[i], &g->push[i]);
        }
    }
    for (size_t i = 0; i < g->n; i++) {
        ebb_push_fini(&g->push[i]);
    }
    g->n = 0;
}

// ---- reports and orders ----

static void s_on_report(ebb_shard *s)
{
    ebb_job *job = s->job;
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__ShardReport r = EBB__SHARD_REPORT__INIT;
    Ebb__ShardJobReport jr = EBB__SHARD_JOB_REPORT__INIT, *jobs[1] = {&jr};
    Ebb__Watermark *rows = NULL, **refs = NULL;
    env.body_case = EBB__ENVELOPE__BODY_SHARD_REPORT;
    env.shard_report = &r;
    r.shard = s->o.shard;
    r.incarnation = s->o.incarnation;
    r.endpoint = s->endpoint;
    r.pid = (uint32_t)getpid();
    r.report = ++s->report;
    r.rss_bytes = ebb_process_rss_bytes();
    r.pushes = s->pushes;
    r.busy_ns = s->busy_ns;
    r.alive_ns = ebb_clock_ns() - s->start_ns;
    r.disk_low = s->disk_low;
    r.disk_free_bytes = s->disk_free_bytes;
    if (job != NULL) {
        r.n_jobs = 1;
        r.jobs = jobs;
        jr.job = job->id;
        jr.manifest_hash = job->install->manifest_hash;
        jr.epoch = job->epoch;
        jr.first_chunk = job->first_chunk;
        jr.chunk_count = job->chunk_count;
        jr.version = job->version;
        jr.full = true;
        jr.retired_below = job->streams.retired_below;
        jr.journal_bytes = s_has_journal(s) ? s->journal.bytes : s->unsaved_bytes;
        jr.skipped = job->skipped;
        jr.since = s->report_answered;
        size_t most = job->streams.n < REPORT_WATERMARKS_MAX ? job->streams.n : REPORT_WATERMARKS_MAX;
        rows = calloc(most + 1, sizeof(*rows));
        refs = calloc(most + 1, sizeof(*refs));
        for (size_t i = 0; rows != NULL && refs != NULL && i < job->streams.n; i++) {
            ebb_stream *st = &job->streams.at[i];
            st->sent_applied = st->reported_applied;
            st->sent_durable = st->reported_durable;
            bool changed = st->applied != st->reported_applied || st->durable != st->reported_durable;
            if (!changed) {
                continue;
            }
            if (jr.n_watermarks == most) {
                jr.full = false; // the rest follows in the next one
                s->news = true;
                continue;
            }
            Ebb__Watermark *w = &rows[jr.n_watermarks];
            ebb__watermark__init(w);
            w->stream = st->id;
            w->applied = st->sent_applied = st->applied;
            w->durable = st->sent_durable = st->durable;
            refs[jr.n_watermarks++] = w;
        }
        jr.watermarks = refs;
    }
    ProtobufCMessage *copy = NULL;
    if (ebb_pb_dup(&env.base, &copy) == EBB_OK) {
        s->o.report(s->o.arg, (Ebb__Envelope *)copy, s->report);
    } else {
        s->o.report(s->o.arg, NULL, s->report);
    }
    free(rows);
    free(refs);
}

// The next report begins a new chain, with every stream that has anything.
static void s_report_all(ebb_shard *s)
{
    s->report_answered = 0;
    s->news = true;
    for (size_t i = 0; s->job != NULL && i < s->job->streams.n; i++) {
        s->job->streams.at[i].reported_applied = s->job->streams.at[i].reported_durable = 0;
    }
}

static void s_on_install(ebb_shard *s, const Ebb__ShardInstall *in, const ebb_msg *msg)
{
    char why[256] = "";
    if (s->job != NULL) {
        const Ebb__ShardInstall *have = s->job->install;
        if (in->job != have->job) {
            char text[512];
            snprintf(text, sizeof(text), "%s holds job %016llx, but the coordinator runs job %016llx: give the shard a folder of its own", s->dir,
                     (unsigned long long)have->job, (unsigned long long)in->job);
            s_fatal(s, 65, text, EBB_CONFIG);
            return;
        }
        uint8_t *a = NULL, *b = NULL;
        size_t na = 0, nb = 0;
        bool same = ebb_pb_pack(&have->base, &a, &na) == EBB_OK && ebb_pb_pack(&in->base, &b, &nb) == EBB_OK && na == nb && memcmp(a, b, na) == 0;
        free(a);
        free(b);
        if (!same && s->refused_install++ == 0) {
            EBB_LOG(ERROR, "shard", "install-refused", "job=%016llx epoch=%llu why=\"the job is installed already with other content (epoch %llu)\"",
                    (unsigned long long)in->job, (unsigned long long)in->epoch, (unsigned long long)have->epoch);
        }
        return;
    }
    ebb_job *job = NULL;
    if (msg->n_parts != 1 || msg->parts[0].kind != EBB_PART_MANIFEST) {
        snprintf(why, sizeof(why), "the install order comes without a manifest");
    } else if (ebb_job_new(in, msg->parts[0].buf->data, msg->parts[0].buf->len, &job, why) == EBB_OK) {
        ebb_status st = ebb_recover_install(s->kv, job);
        if (st != EBB_OK) {
            ebb_job_free(&job);
            s_write_failed(s, st);
            return;
        }
        s->job = job;
        s_report_all(s);
        s->snapshot_done_ms = s->last_push_ms = ebb_clock_ms();
        EBB_LOG(INFO, "shard", "installed", "job=%016llx epoch=%llu first_chunk=%u chunks=%u optimizer=%s durability=%s", (unsigned long long)job->id,
                (unsigned long long)job->epoch, job->first_chunk, job->chunk_count, in->spec->optimizer->name, in->spec->durability);
        return;
    }
    if (s->refused_install++ == 0) {
        EBB_LOG(ERROR, "shard", "install-refused", "job=%016llx why=\"%s\"", (unsigned long long)in->job, why);
    }
}

static void s_forget(void *arg, uint64_t stream)
{
    ebb_journal_del_watermark(ebb_journal_batch(&((ebb_shard *)arg)->journal), stream);
}

static void s_on_retired(ebb_shard *s, const Ebb__ShardReportReply *r)
{
    bool changed = false;
    if (ebb_streams_retire(&s->job->streams, r->retired_below, r->retired, r->n_retired, &changed, s_forget, s) != EBB_OK) {
        return; // no memory: the coordinator repeats it
    }
    if (changed) {
        // In one batch with the forgotten rows: else a restart would take a late push of such a stream for its first.
        ebb_recover_put_retired(ebb_journal_batch(&s->journal), &s->job->streams);
        s_commit(s);
    }
}

static void s_on_skip(ebb_shard *s, const Ebb__StreamSkip *skip)
{
    ebb_record r;
    if (skip->job != s->job->id || ebb_job_skip(s->job, skip->stream, skip->seq, &r) != EBB_OK) {
        return; // applied or skipped already, or its turn has not come; the coordinator repeats it
    }
    EBB_LOG(WARN, "shard", "skipped", "stream=%llu seq=%llu skipped=%llu", (unsigned long long)skip->stream, (unsigned long long)skip->seq,
            (unsigned long long)s->job->skipped);
    s->news = true;
    if (s_has_journal(s)) {
        ebb_journal_add(&s->journal, &r, NULL);
        ebb_snapshot_put_state(ebb_journal_batch(&s->journal), s->job->generation, s->job->lsn, s->job->version, s->job->skipped);
        s_commit(s);
    }
}

static void s_on_orders(ebb_shard *s, const ebb_event *e)
{
    if (e->msg.env->status == EBB_CLOSED) {
        // Late words of a dead predecessor can make the coordinator believe that it is the one who lives. As a new process we have the place again.
        s_fatal(s, EBB_EXIT_RESTART, "the coordinator takes another process for this shard", EBB_CLOSED);
        return;
    }
    const Ebb__ShardReportReply *r = e->msg.env->shard_report_reply;
    if (s->job != NULL && e->report == s->report) {
        for (size_t i = 0; i < s->job->streams.n; i++) {
            s->job->streams.at[i].reported_applied = s->job->streams.at[i].sent_applied;
            s->job->streams.at[i].reported_durable = s->job->streams.at[i].sent_durable;
        }
        s->report_answered = s->report;
    }
    if (r->install != NULL) {
        s_on_install(s, r->install, &e->msg);
    }
    if (s->job != NULL && !s->dead && r->job == s->job->id) {
        s_on_retired(s, r);
    }
    for (size_t i = 0; s->job != NULL && !s->dead && i < r->n_skips; i++) {
        s_on_skip(s, r->skips[i]);
    }
    if (r->want_full) {
        s_report_all(s);
    }
    s->snapshot_ordered |= r->snapshot;
    if (r->shutdown) {
        s->o.shutdown(s->o.arg);
    }
}

// ---- the loop ----

static void s_check_disk(ebb_shard *s, uint64_t now)
{
    struct statvfs v;
    if (s->o.disk_reserve_bytes == 0 || now < s->disk_check_ms || statvfs(s->dir, &v) != 0) {
        return;
    }
    s->disk_check_ms = now + DISK_CHECK_MS;
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
    s->disk_free_bytes = room;
    // A snapshot writes the whole state, into the log and then into tables, and only after it the journal's space comes back: room for one is kept as well.
    bool low = room < s->o.disk_reserve_bytes + 2 * s_state_bytes(s);
    if (low != s->disk_low) {
        s->disk_low = low;
        s->news = true;
        if (low) {
            EBB_LOG(ERROR, "shard", "disk-low", "dir=%s free_bytes=%llu reserve_bytes=%llu", s->dir, (unsigned long long)room,
                    (unsigned long long)s->o.disk_reserve_bytes);
        } else {
            EBB_LOG(INFO, "shard", "disk-recovered", "dir=%s free_bytes=%llu", s->dir, (unsigned long long)room);
        }
    }
}

static int s_timeout(const ebb_shard *s, uint64_t now)
{
    uint64_t until = now + 1000;
    if (s->sync_due_ms != 0 && !s->syncing && s->sync_due_ms < until) {
        until = s->sync_due_ms;
    }
    if (s->job != NULL) {
        uint64_t pin = ebb_pins_next_deadline(&s->job->pins);
        until = pin < until ? pin : until;
        const Ebb__JobSpec *spec = s->job->install->spec;
        if (!s->snap.active && s->job->lsn != s->snapshot_lsn) {
            uint64_t due = s->snapshot_done_ms + (spec->snapshot_ms != 0 ? spec->snapshot_ms : SNAPSHOT_MS_DEFAULT);
            until = due < until ? due : until;
        }
    }
    return until > now ? (int)(until - now) : 0;
}

static void s_dispatch(ebb_shard *s, ebb_event *e)
{
    switch (e->kind) {
    case EBB_EVENT_REQUEST:
        switch (e->msg.env->body_case) {
        case EBB__ENVELOPE__BODY_PULL_REQUEST:
            s_on_pull(s, e);
            break;
        case EBB__ENVELOPE__BODY_PIN_REQUEST:
            s_on_pin(s, e);
            break;
        case EBB__ENVELOPE__BODY_UNPIN_REQUEST:
            s_on_unpin(s, e);
            break;
        default:
            s_refuse(s, e, EBB_INVAL, "this request is not for a shard");
            break;
        }
        break;
    case EBB_EVENT_REPORT:
        s_on_report(s);
        break;
    case EBB_EVENT_ORDERS:
        s_on_orders(s, e);
        break;
    case EBB_EVENT_SYNCED:
        s_on_synced(s, e);
        break;
    case EBB_EVENT_SNAPSHOT:
        s_on_snapshot(s, e);
        break;
    case EBB_EVENT_CLOSE:
        s->closing = true;
        break;
    case EBB_EVENT_STOP:
        s->stop = true;
        break;
    }
}

static bool s_is_push(const ebb_event *e)
{
    return e->kind == EBB_EVENT_REQUEST && e->msg.env->body_case == EBB__ENVELOPE__BODY_PUSH_REQUEST;
}

static void s_release(ebb_shard *s, ebb_event **e)
{
    if ((*e)->kind == EBB_EVENT_REQUEST) {
        atomic_fetch_sub(&s->waiting_requests, 1);
        atomic_fetch_sub(&s->waiting_bytes, (*e)->bytes);
    }
    ebb_event_free(e);
}

// Pushes first, as one group; then the rest in its order. So a pull sees every push that was received before it.
static void s_batch(ebb_shard *s, ebb_event **events, size_t n, group *g)
{
    for (size_t i = 0; i < n; i++) {
        if (s_is_push(events[i])) {
            s_judge(s, events[i], g);
        }
    }
    s_push_group(s, g);
    for (size_t i = 0; i < n; i++) {
        if (!s_is_push(events[i]) && (!s->dead || events[i]->kind == EBB_EVENT_STOP)) {
            s_dispatch(s, events[i]);
        }
    }
}

static size_t s_collect(ebb_shard *s, int timeout_ms, ebb_event **events)
{
    size_t n = 0, bytes = 0;
    size_t bytes_max = s->job != NULL && s->job->durability == EBB_DURABILITY_FSYNC ? BATCH_BYTES_FSYNC : BATCH_BYTES_JOURNAL;
    ebb_event *e = ebb_inbox_wait(s->inbox, timeout_ms);
    while (e != NULL) {
        bytes += e->bytes;
        events[n++] = e;
        e = n < BATCH_MAX && bytes < bytes_max ? ebb_inbox_pop(s->inbox) : NULL;
    }
    return n;
}

int ebb_shard_wait_ms(const ebb_shard *s)
{
    return s_timeout(s, ebb_clock_ms());
}

bool ebb_shard_turn(ebb_shard *s, int wait_ms)
{
    ebb_event *events[BATCH_MAX];
    size_t n = s_collect(s, wait_ms, events);
    uint64_t begin = ebb_clock_ns();
    s_batch(s, events, n, s->group);
    for (size_t i = 0; i < n; i++) {
        s_release(s, &events[i]);
    }
    uint64_t now = ebb_clock_ms();
    if (s->dead) {
        s_closed(s);
        return !s->stop;
    }
    s_check_disk(s, now);
    s_sync_timer(s, now);
    s_snapshot_timer(s, now);
    if (s->job != NULL) {
        ebb_pins_expire(&s->job->pins, now);
    }
    if (s->news && ebb_inbox_count(s->inbox) == 0) {
        s->news = false;
        s->o.news(s->o.arg);
    }
    s->busy_ns += ebb_clock_ns() - begin;
    return !s->stop;
}

static void *s_main(void *arg)
{
    ebb_shard *s = arg;
    while (ebb_shard_turn(s, ebb_shard_wait_ms(s))) {
    }
    s_closed(s);
    return NULL;
}

// ---- life ----

static void s_internal(ebb_shard *s, ebb_event *e)
{
    ebb_status st = ebb_inbox_push(s->inbox, e); // room is kept; fails only when the inbox is closed
    if (st != EBB_OK) {
        ebb_event_free(&e);
    }
}

static void s_sync_done(void *arg, ebb_status st)
{
    ebb_event *e = NULL;
    if (ebb_event_new(EBB_EVENT_SYNCED, &e) == EBB_OK) {
        e->status = st;
        s_internal(arg, e);
    } else { // unsaid, nothing would become durable any more
        ebb_shard *s = arg;
        s->o.fatal(s->o.arg, EBB_EXIT_RESTART, "out of memory");
    }
}

static void s_snapshot_done(void *arg, ebb_snapshot_work *w)
{
    ebb_event *e = NULL;
    if (ebb_event_new(EBB_EVENT_SNAPSHOT, &e) == EBB_OK) {
        e->work = w;
        s_internal(arg, e);
    } else {
        ebb_shard *s = arg;
        ebb_snapshot_work_free(&w);
        s->o.fatal(s->o.arg, EBB_EXIT_RESTART, "out of memory");
    }
}

ebb_status ebb_shard_new(const ebb_shard_options *options, ebb_shard **out, char *why)
{
    ebb_status st;
    ebb_shard *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return EBB_NOMEM;
    }
    why[0] = '\0';
    s->o = *options;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->dir = strdup(options->dir);
    s->endpoint = strdup(options->endpoint != NULL ? options->endpoint : "");
    s->start_ns = ebb_clock_ns();
    s->group = calloc(1, sizeof(*s->group));
    if (s->dir == NULL || s->endpoint == NULL || s->group == NULL) {
        st = EBB_NOMEM;
        goto fail;
    }
    EBB_TRY_GOTO(ebb_inbox_new(EBB_SHARD_REQUESTS_MAX + INTERNAL_EVENTS_MAX, &s->inbox), st, fail);
    EBB_TRY_GOTO(ebb_recover_open(s->dir, s->o.shard, &s->kv, why), st, fail);
    EBB_TRY_GOTO(ebb_journal_init(&s->journal, s->kv), st, fail);
    EBB_TRY_GOTO(ebb_recover_job(s->dir, s->kv, &s->journal, &s->job, why), st, fail);
    if (s->job != NULL) {
        s->snapshot_lsn = s->job->lsn; // the smallest saved lsn is what is in a snapshot for all chunks
        for (uint32_t i = 0; i < s->job->chunk_count; i++) {
            s->snapshot_lsn = s->job->chunks[i].saved_lsn < s->snapshot_lsn ? s->job->chunks[i].saved_lsn : s->snapshot_lsn;
        }
    }
    s->snapshot_done_ms = s->last_push_ms = ebb_clock_ms();
    EBB_TRY_GOTO(ebb_syncer_start(s->kv, s_sync_done, s, &s->syncer), st, fail);
    EBB_TRY_GOTO(ebb_snapshotter_start(s->kv, SNAPSHOT_WINDOW + 4, s_snapshot_done, s, &s->snapshotter), st, fail);
    *out = s;
    return EBB_OK;
fail:
    if (why[0] == '\0') {
        snprintf(why, 512, "%.300s: %s", options->dir, ebb_status_str(st));
    }
    ebb_shard_free(&s);
    return st;
}

void ebb_shard_set_endpoint(ebb_shard *s, const char *endpoint)
{
    char *copy = strdup(endpoint);
    EBB_ASSERT(!s->started && copy != NULL);
    free(s->endpoint);
    s->endpoint = copy;
}

ebb_status ebb_shard_start(ebb_shard *s)
{
    EBB_ASSERT(!s->started);
    if (pthread_create(&s->thread, NULL, s_main, s) != 0) {
        return EBB_NOMEM;
    }
    s->started = true;
    return EBB_OK;
}

ebb_status ebb_shard_submit_take(ebb_shard *s, ebb_event **e)
{
    bool request = (*e)->kind == EBB_EVENT_REQUEST;
    size_t bytes = (*e)->bytes;
    if (request) {
        size_t before = atomic_fetch_add(&s->waiting_requests, 1), before_bytes = atomic_fetch_add(&s->waiting_bytes, bytes);
        if (before >= EBB_SHARD_REQUESTS_MAX || (before > 0 && before_bytes + bytes > EBB_SHARD_REQUEST_BYTES_MAX)) {
            atomic_fetch_sub(&s->waiting_requests, 1);
            atomic_fetch_sub(&s->waiting_bytes, bytes);
            return EBB_AGAIN;
        }
    }
    ebb_status st = ebb_inbox_push(s->inbox, *e);
    if (st == EBB_OK) {
        *e = NULL;
    } else if (request) {
        atomic_fetch_sub(&s->waiting_requests, 1);
        atomic_fetch_sub(&s->waiting_bytes, bytes);
    }
    return st;
}

static void s_tell(ebb_shard *s, ebb_event_kind kind)
{
    ebb_event *e = NULL;
    ebb_status st = ebb_event_new(kind, &e);
    EBB_ASSERT(st == EBB_OK);
    while (ebb_shard_submit_take(s, &e) == EBB_AGAIN) {
        ebb_clock_sleep_ms(1); // reports in the queue; the thread drains it
    }
    ebb_event_free(&e);
}

void ebb_shard_close(ebb_shard *s)
{
    if (!s->started) {
        return;
    }
    s_tell(s, EBB_EVENT_CLOSE);
    pthread_mutex_lock(&s->lock);
    while (!s->closed) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

bool ebb_shard_is_closed(ebb_shard *s)
{
    pthread_mutex_lock(&s->lock);
    bool closed = s->closed;
    pthread_mutex_unlock(&s->lock);
    return closed;
}

void ebb_shard_stop(ebb_shard *s)
{
    if (s->started) {
        s_tell(s, EBB_EVENT_STOP);
        pthread_join(s->thread, NULL);
        s->started = false;
    }
}

void ebb_shard_free(ebb_shard **sp)
{
    ebb_shard *s = *sp;
    if (s == NULL) {
        return;
    }
    *sp = NULL;
    ebb_shard_stop(s);
    ebb_snapshotter_stop(&s->snapshotter);
    ebb_syncer_stop(&s->syncer);
    if (s->inbox != NULL) {
        ebb_inbox_close(s->inbox);
        ebb_event *e;
        while ((e = ebb_inbox_pop(s->inbox)) != NULL) {
            ebb_event_free(&e);
        }
        ebb_inbox_free(&s->inbox);
    }
    if (s->job != NULL) {
        s_snapshot_abandon(s);
        ebb_job_free(&s->job);
    }
    ebb_journal_fini(&s->journal);
    ebb_kvstore_close(&s->kv);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->group);
    free(s->dir);
    free(s->endpoint);
    free(s);
}

ebb_job *ebb_shard_job(ebb_shard *s)
{
    return s->job;
}
