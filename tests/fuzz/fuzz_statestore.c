// A coordinator's rows on disk, damaged or made up, into ebb_coordinator_open. It says that the state is damaged, or goes on: answers, leases, retires, and
// opens its own store again.
//
// A store is written by a coordinator that has worked, and then changed. Rows carry no checksum of their own: the store below has one, and what remains is
// what another version, or an encoder with a bug, may have written.
//
// Input: config u8 (bit 0: empty store; 1: durability snapshot), then changes (rows.h).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fleet.h"
#include "tests/fuzz/rows.h"

#define CHANGES_MAX 64
#define SHARDS 2

#define BODY(kind, field, value)                \
    Ebb__Envelope env = EBB__ENVELOPE__INIT;    \
    env.body_case = EBB__ENVELOPE__BODY_##kind; \
    env.field = (value)

static void s_tell(fleet *f, Ebb__Envelope *env, const ebb_part *part)
{
    ebb_msg r;
    f->request_id++;
    FUZZ_CHECK(fleet_ask(f, env, part, &r)); // the store works, and every answer fits
    ebb_msg_fini(&r);
}

static void s_join(fleet *f, const char *name)
{
    Ebb__JoinRequest q = EBB__JOIN_REQUEST__INIT;
    q.worker = (char *)name;
    q.incarnation = f->request_id + 1;
    q.pid = 9;
    q.host = "here";
    BODY(JOIN_REQUEST, join_request, &q);
    s_tell(f, &env, NULL);
}

// Returns the stream, or UINT64_MAX: no unit now.
static uint64_t s_lease(fleet *f, const char *name)
{
    Ebb__LeaseRequest q = EBB__LEASE_REQUEST__INIT;
    const ebb_member *w = ebb_membership_find(&f->c->members, name);
    uint64_t stream = UINT64_MAX;
    ebb_msg r;
    q.job = f->c->job;
    q.worker = (char *)name;
    q.incarnation = w != NULL ? w->incarnation : 1;
    BODY(LEASE_REQUEST, lease_request, &q);
    f->request_id++;
    FUZZ_CHECK(fleet_ask(f, &env, NULL, &r));
    if (r.env->status == EBB_OK && r.env->lease_reply->kind == EBB__LEASE_KIND__LEASE_TRAIN) {
        const Ebb__LeaseReply *l = r.env->lease_reply;
        stream = l->stream;
        FUZZ_CHECK(l->seq_first >= 1 && l->seq_first <= l->seq_last && l->lease != 0);
    }
    ebb_msg_fini(&r);
    return stream;
}

// Both shards have so many steps of the stream, durable.
static void s_report(fleet *f, uint64_t stream, uint64_t steps)
{
    for (uint32_t s = 0; s < f->c->members.n_shards && s < 4; s++) {
        Ebb__ShardReport q = EBB__SHARD_REPORT__INIT;
        Ebb__ShardJobReport job = EBB__SHARD_JOB_REPORT__INIT, *jobs[1] = {&job};
        Ebb__Watermark mark = EBB__WATERMARK__INIT, *marks[1] = {&mark};
        q.shard = s;
        q.incarnation = 70 + s;
        q.endpoint = "ipc://nowhere";
        q.jobs = jobs;
        q.n_jobs = 1;
        job.job = f->c->job;
        job.manifest_hash = f->c->manifest_hash;
        job.epoch = f->c->epoch;
        job.full = true;
        job.watermarks = marks;
        job.n_watermarks = steps > 0;
        mark.stream = stream;
        mark.applied = mark.durable = steps;
        BODY(SHARD_REPORT, shard_report, &q);
        s_tell(f, &env, NULL);
    }
}

static void s_skip(fleet *f, uint64_t stream, uint64_t seq)
{
    for (int i = 0; i < EBB_SKIP_AFTER; i++) {
        Ebb__SkipRequest q = EBB__SKIP_REQUEST__INIT;
        q.job = f->c->job;
        q.worker = "w0";
        q.stream = stream;
        q.seq = seq;
        q.reason = "not finite";
        BODY(SKIP_REQUEST, skip_request, &q);
        s_tell(f, &env, NULL);
    }
}

static void s_eval(fleet *f)
{
    Ebb__EvalReport q = EBB__EVAL_REPORT__INIT;
    q.job = f->c->job;
    q.worker = "w0";
    q.eval_id = f->c->eval.id;
    q.loss = 1.5;
    BODY(EVAL_REPORT, eval_report, &q);
    s_tell(f, &env, NULL);
}

static void s_beat(fleet *f)
{
    Ebb__HeartbeatRequest q = EBB__HEARTBEAT_REQUEST__INIT;
    const ebb_member *w = ebb_membership_find(&f->c->members, "w0");
    q.job = f->c->job;
    q.worker = "w0";
    q.incarnation = w != NULL ? w->incarnation : 1;
    q.beat = f->request_id + 1;
    q.loss_sum = 3;
    q.loss_count = 2;
    BODY(HEARTBEAT_REQUEST, heartbeat_request, &q);
    s_tell(f, &env, NULL);
}

static void s_manifest(fleet *f)
{
    Ebb__ManifestRequest q = EBB__MANIFEST_REQUEST__INIT;
    ebb_part part;
    q.job = f->c->job;
    fleet_manifest(FLEET_NUMEL / FLEET_CHUNK_ELEMS, &part);
    BODY(MANIFEST_REQUEST, manifest_request, &q);
    s_tell(f, &env, &part);
    ebb_buf_unref(&part.buf);
}

// What operators ask.
static void s_look(fleet *f)
{
    Ebb__StatusRequest status = EBB__STATUS_REQUEST__INIT;
    Ebb__EventsRequest events = EBB__EVENTS_REQUEST__INIT;
    Ebb__JobRequest job = EBB__JOB_REQUEST__INIT;
    Ebb__ShardMapRequest map = EBB__SHARD_MAP_REQUEST__INIT;
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    env.body_case = EBB__ENVELOPE__BODY_STATUS_REQUEST;
    env.status_request = &status;
    s_tell(f, &env, NULL);
    env.body_case = EBB__ENVELOPE__BODY_EVENTS_REQUEST;
    env.events_request = &events;
    s_tell(f, &env, NULL);
    env.body_case = EBB__ENVELOPE__BODY_JOB_REQUEST;
    env.job_request = &job;
    s_tell(f, &env, NULL);
    env.body_case = EBB__ENVELOPE__BODY_SHARD_MAP_REQUEST;
    env.shard_map_request = &map;
    s_tell(f, &env, NULL);
}

static void s_tick(fleet *f, uint64_t ms)
{
    f->now += ms;
    ebb_coordinator_tick(f->c, f->now);
    FUZZ_OK(f->c->failure);
}

// Units 0 and 2 are done and retired, 1 and 3 are out, a step was skipped, the job was evaluated.
static void s_work(fleet *f)
{
    s_join(f, "w0");
    s_join(f, "w1");
    s_manifest(f);
    s_report(f, 0, 0);
    s_report(f, 0, 0);
    s_tick(f, 50);
    uint64_t first = s_lease(f, "w0"), second = s_lease(f, "w1");
    s_beat(f);
    s_report(f, first, 4);
    s_tick(f, 50);
    uint64_t third = s_lease(f, "w0");
    s_report(f, third, 4);
    s_tick(f, 50);
    s_eval(f);
    s_lease(f, "w0");
    s_skip(f, second, 2);
    s_tick(f, 6000);
}

static void s_check(const fleet *f)
{
    const char *broken = ebb_ledger_check(&f->c->ledger);
    if (broken != NULL) {
        fuzz_fail(__FILE__, __LINE__, "ebb_ledger_check", broken);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_quiet();
    fuzz_in in = {data, size};
    uint8_t config = fuzz_u8(&in);
    char why[512] = "";
    fleet f = {.now = 1000000};
    fleet_options o = {.shards = SHARDS,
                       .unit_steps = 4,
                       .batch = 2,
                       .workers_min = 1,
                       .workers_max = 3,
                       .lease_ms = 2000,
                       .train_samples = 40,
                       .steps = 40,
                       .val_samples = 10,
                       .eval_every = 8,
                       .snapshot = (config & 2) != 0};
    if ((config & 1) == 0) {
        FUZZ_OK(fleet_open(&f, &o, why));
        s_work(&f);
        s_check(&f);
        fleet_close(&f);
    }
    ebb_kvstore *kv = NULL;
    ebb_kvstore_options options = {.create = true};
    FUZZ_OK(ebb_kvstore_open(FLEET_DIR, &options, &kv, why));
    for (int i = 0; i < CHANGES_MAX && in.left > 0; i++) {
        fuzz_change_row(kv, &in, NULL);
    }
    ebb_kvstore_close(&kv);
    why[0] = '\0';
    ebb_status st = fleet_open(&f, NULL, why);
    if (st != EBB_OK) {
        FUZZ_CHECK(st == EBB_CORRUPT || st == EBB_CONFIG || st == EBB_NEWER || st == EBB_NOENT || st == EBB_PROTO || st == EBB_INVAL);
        FUZZ_CHECK(why[0] != '\0');
        memstore_reset();
        return 0;
    }
    s_check(&f);
    s_look(&f);
    s_work(&f);
    s_check(&f);
    s_look(&f);
    fleet_close(&f);
    FUZZ_OK(fleet_open(&f, NULL, why)); // its own rows
    s_check(&f);
    fleet_close(&f);
    memstore_reset();
    return 0;
}
