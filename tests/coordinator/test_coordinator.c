#define _GNU_SOURCE // nftw
// The coordinator without its socket: requests and a time in, answers out; and again after it was closed and opened.
#include "coordinator/coordinator.h"
#include "coordinator/jobspec.h"
#include "tests/coordinator/peer.h"
#include "tests/support/scratch.h"

#define LEASE_MS 2000

static const char s_counter[] =
    "name: c\nmodel: {family: counter, numel: 100}\nshards: 2\nbatch: 1\nsteps: 30\nunit_steps: 10\nlease: 2s\nchunk_elems: 50\n";
static const char s_snapshot[] = "name: c\nmodel: {family: counter, numel: 100}\nshards: 2\nbatch: 1\nsteps: 30\nunit_steps: 10\nlease: "
                                 "2s\nchunk_elems: 50\ndurability: snapshot\n";
static const char s_mlp[] =
    "name: m\nmodel: {family: mlp, sizes: [2, 2]}\ndata: {path: rows.csv, val_fraction: 0.5}\nshards: 2\nbatch: 1\nsteps: 30\n"
    "unit_steps: 10\nlease: 2s\nchunk_elems: 50\neval: {every: 10}\n";

typedef struct world {
    scratch scratch;
    ebb_coordinator *c;
    uint64_t now;
    peer peer;
    peer_shard shard[2];
    bool frozen; // the shards keep what they were told of retired units
} world;

static void s_ask(void *arg, Ebb__Envelope *env, const ebb_part *part, ebb_msg *reply)
{
    world *w = arg;
    static uint64_t id = 1;
    env->request_id = id++;
    ebb_frames frames;
    ebb_msg request;
    const char *why = NULL;
    const ebb_part *out_part = NULL;
    ebb_frames_init(&frames);
    CHECK_OK(ebb_msg_pack(env, part, part != NULL, &frames)); // through the wire form, as in life
    CHECK_OK(ebb_msg_unpack(&frames, true, &request, &why));
    ebb_frames_fini(&frames);
    Ebb__Envelope answer = EBB__ENVELOPE__INIT;
    answer.request_id = env->request_id;
    ebb_trash trash = {0};
    ebb_coordinator_handle(w->c, &request, w->now, &answer, &out_part, &trash);
    CHECK_OK(w->c->failure);
    CHECK_OK(ebb_msg_pack(&answer, out_part, out_part != NULL, &frames));
    CHECK_OK(ebb_msg_unpack(&frames, true, reply, &why));
    ebb_frames_fini(&frames);
    ebb_msg_fini(&request);
    ebb_trash_fini(&trash);
}

static ebb_status s_open(world *w, const char *job, char *why)
{
    char dir[128];
    Ebb__JobSpec *spec = NULL;
    snprintf(dir, sizeof(dir), "%s", scratch_path(&w->scratch, "store"));
    if (job != NULL) {
        scratch_text(&w->scratch, "rows.csv", "1,2,0\n3,4,1\n5,6,0\n7,8,1\n");
        CHECK_OK(ebb_jobspec_load(scratch_text(&w->scratch, "job.yaml", job), NULL, &spec, stderr));
    }
    w->c = malloc(sizeof(*w->c));
    assert_non_null(w->c);
    ebb_status st = ebb_coordinator_open(w->c, dir, &spec, w->now, why);
    ebb_jobspec_free(&spec);
    if (st != EBB_OK) {
        free(w->c);
        w->c = NULL;
    }
    return st;
}

static void s_close(world *w)
{
    if (w->c != NULL) {
        ebb_coordinator_close(w->c);
        free(w->c);
        w->c = NULL;
    }
}

static const Ebb__WorkerStatus *s_worker(const ebb_msg *status, const char *name)
{
    const Ebb__StatusReply *s = status->env->status_reply;
    for (size_t i = 0; i < s->n_workers; i++) {
        if (strcmp(s->workers[i]->name, name) == 0) {
            return s->workers[i];
        }
    }
    fail_msg("no worker %s", name);
    return NULL;
}

static void s_init(world *w, const char *job)
{
    char why[512];
    memset(w, 0, sizeof(*w));
    scratch_init(&w->scratch);
    w->now = 1000000;
    w->peer = (peer){s_ask, w, 0};
    for (uint32_t i = 0; i < 2; i++) {
        w->shard[i] = (peer_shard){.number = i, .incarnation = 100 + i};
    }
    CHECK_OK(s_open(w, job, why));
}

static void s_fini(world *w)
{
    s_close(w);
    scratch_fini(&w->scratch);
}

// Time passes in ticks, and shards report.
static void s_pass(world *w, uint64_t ms)
{
    for (uint64_t end = w->now + ms; w->now < end;) {
        w->now += end - w->now < 50 ? end - w->now : 50;
        for (int i = 0; i < 2; i++) {
            CHECK_OK(peer_report(&w->peer, &w->shard[i]));
        }
        ebb_coordinator_tick(w->c, w->now);
        CHECK_OK(w->c->failure);
    }
}

static void s_fail_soon(world *w)
{
    for (int i = 0; i < 60; i++) {
        w->now += 50;
        for (int k = 0; k < 2; k++) {
            uint64_t told = w->shard[k].retired_below;
            peer_report(&w->peer, &w->shard[k]);
            w->shard[k].retired_below = w->frozen ? told : w->shard[k].retired_below;
        }
        ebb_coordinator_tick(w->c, w->now);
    }
}

static void s_run(world *w)
{
    CHECK_OK(peer_join(&w->peer, "w0", 1, 11));
    ebb_manifest *m = peer_model(100, 50);
    CHECK_OK(peer_manifest(&w->peer, m));
    ebb_manifest_free(&m);
    s_pass(w, 200);
    assert_int_equal(w->c->state, EBB_JOB_RUNNING);
}

static void s_apply(world *w, uint64_t stream, uint64_t applied, uint64_t durable)
{
    for (int i = 0; i < 2; i++) {
        w->shard[i].applied[stream] = applied;
        w->shard[i].durable[stream] = durable;
    }
}

static void s_restart(world *w)
{
    char why[512] = "";
    s_close(w);
    w->now += 100;
    CHECK_OK(s_open(w, NULL, why));
}

static void test_coordinator_installs_before_it_leases(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    CHECK_OK(peer_join(p, "w0", 1, 11));
    assert_int_equal(peer_lease(p, "w0", 1).kind, EBB__LEASE_KIND__LEASE_NONE);
    CHECK_OK(peer_report(p, &w.shard[0]));
    assert_false(w.shard[0].installed_now); // no manifest yet
    ebb_manifest *m = peer_model(100, 50), *other = peer_model(150, 50), *small = peer_model(10, 50);
    CHECK_ERR(peer_manifest(p, small), EBB_CONFIG); // one chunk for two shards
    s_close(&w);
    char why[512];
    CHECK_OK(s_open(&w, s_counter, why));
    CHECK_OK(peer_join(p, "w0", 1, 11));
    CHECK_OK(peer_manifest(p, m));
    CHECK_OK(peer_manifest(p, m)); // again: the same
    CHECK_ERR(peer_manifest(p, other), EBB_EXISTS);
    s_pass(&w, 200);
    assert_true(w.shard[0].chunk_count == 1 && w.shard[1].first_chunk == 1 && w.shard[1].chunk_count == 1);
    Ebb__LeaseReply a = peer_lease(p, "w0", 1);
    assert_true(a.kind == EBB__LEASE_KIND__LEASE_TRAIN && a.stream == 0 && a.seq_first == 1 && a.seq_last == 10 && a.attempt == 1 &&
                a.ttl_ms == LEASE_MS);
    ebb_manifest_free(&m);
    ebb_manifest_free(&other);
    ebb_manifest_free(&small);
    s_fini(&w);
}

static void test_coordinator_gives_one_lease_each(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    Ebb__LeaseReply a = peer_lease(p, "w0", 1), again = peer_lease(p, "w0", 1);
    assert_true(a.lease == again.lease && a.stream == again.stream && again.attempt == 1);
    CHECK_OK(peer_join(p, "w1", 2, 12));
    Ebb__LeaseReply b = peer_lease(p, "w1", 2);
    assert_true(b.kind == EBB__LEASE_KIND__LEASE_TRAIN && b.stream == 1 && b.lease != a.lease);
    // A new process in the seat of w0: what the old one held is free at once, and the old one is sent away.
    CHECK_OK(peer_join(p, "w0", 3, 13));
    Ebb__LeaseReply c = peer_lease(p, "w0", 3);
    assert_true(c.stream == 0 && c.lease != a.lease && c.attempt == 2);
    bool drain;
    peer_beat(p, "w0", 1, 1, a.lease, &drain);
    assert_true(drain);
    assert_int_equal(peer_beat(p, "w0", 3, 1, c.lease, &drain), 0);
    assert_false(drain);
    assert_int_equal(peer_beat(p, "w0", 3, 2, a.lease, &drain), 1); // the old lease is lost
    s_fini(&w);
}

static void test_coordinator_frees_the_units_of_the_dead(void **state)
{
    (void)state;
    world w;
    bool drain;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    CHECK_OK(peer_join(p, "w1", 2, 12));
    CHECK_OK(peer_join(p, "w2", 3, 13));
    Ebb__LeaseReply a = peer_lease(p, "w0", 1), b = peer_lease(p, "w1", 2), c = peer_lease(p, "w2", 3);
    assert_true(a.stream == 0 && b.stream == 1 && c.stream == 2);
    w.shard[0].applied[0] = 6; // w0 died between two shards
    w.shard[1].applied[0] = 5;
    s_pass(&w, 50);
    peer_gone(p, "w0", 999); // somebody else's death
    assert_int_equal(peer_lease(p, "w1", 2).stream, 1);
    peer_gone(p, "w0", 11);
    peer_leave(p, "w2", 3);
    CHECK_OK(peer_join(p, "w3", 4, 14));
    Ebb__LeaseReply d = peer_lease(p, "w3", 4);
    assert_true(d.stream == 0 && d.seq_first == 6 && d.attempt == 2);
    peer_return(p, "w3", 4, d.lease, 7); // it is drained; the remainder goes on from what the shards have
    peer_return(p, "w3", 4, d.lease, 7);
    d = peer_lease(p, "w3", 4);
    assert_true(d.stream == 0 && d.seq_first == 6 && d.attempt == 3);
    // Silence: w1 beats, w3 doesn't.
    for (uint64_t beat = 1; beat <= 6; beat++) {
        s_pass(&w, 500);
        assert_int_equal(peer_beat(p, "w1", 2, beat, b.lease, &drain), 0);
    }
    CHECK_OK(peer_join(p, "w4", 5, 15));
    Ebb__LeaseReply e = peer_lease(p, "w4", 5);
    assert_true(e.kind == EBB__LEASE_KIND__LEASE_TRAIN && e.stream == 0 && e.attempt == 4);
    assert_int_equal(peer_beat(p, "w3", 4, 1, d.lease, &drain), 1);
    ebb_msg r;
    peer_status(p, &r);
    assert_int_equal(r.env->status_reply->n_workers, 5);
    assert_string_equal(s_worker(&r, "w1")->state, "running");
    assert_string_equal(s_worker(&r, "w2")->state, "left");
    assert_string_equal(r.env->status_reply->workers[4]->state, "left"); // those that are gone come last
    assert_int_equal(r.env->status_reply->workers_live, 3);              // w3 is heard again
    assert_float_equal(s_worker(&r, "w1")->utilization, 0.7, 1e-6);
    ebb_msg_fini(&r);
    s_fini(&w);
}

static void test_coordinator_finishes(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    for (uint64_t u = 0; u < 3; u++) {
        Ebb__LeaseReply a = peer_lease(p, "w0", 1);
        assert_true(a.kind == EBB__LEASE_KIND__LEASE_TRAIN && a.stream == u);
        s_apply(&w, u, 10, u == 1 ? 9 : 10); // one unit is not durable yet
        peer_return(p, "w0", 1, a.lease, 10);
        s_pass(&w, 100);
    }
    assert_true(w.shard[0].retired_below == 1 && w.shard[1].n_retired == 1);
    assert_int_equal(peer_lease(p, "w0", 1).kind, EBB__LEASE_KIND__LEASE_NONE); // done, not retired
    ebb_msg r;
    peer_status(p, &r);
    const Ebb__StatusReply *st = r.env->status_reply;
    assert_string_equal(st->state, "RUNNING");
    assert_true(st->steps_total == 30 && st->steps_done == 30 && st->steps_retired == 20 && st->units_total == 3 && st->units_done == 3 &&
                st->units_retired == 2);
    assert_true(st->n_shards == 2 && st->numel == 100 && st->shards[0]->bytes == 200);
    assert_string_equal(st->shards[0]->state, "ready");
    ebb_msg_fini(&r);
    s_apply(&w, 1, 10, 10);
    s_pass(&w, 100);
    assert_int_equal(w.c->state, EBB_JOB_SUCCEEDED);
    assert_int_equal(peer_lease(p, "w0", 1).kind, EBB__LEASE_KIND__LEASE_FINISHED);
    s_restart(&w); // and it is not forgotten
    assert_int_equal(w.c->state, EBB_JOB_SUCCEEDED);
    assert_int_equal(peer_lease(p, "w0", 1).kind, EBB__LEASE_KIND__LEASE_FINISHED);
    s_fini(&w);
}

static void test_coordinator_restart_keeps_leases(void **state)
{
    (void)state;
    world w;
    bool drain;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    CHECK_OK(peer_join(p, "w1", 2, 12));
    Ebb__LeaseReply a = peer_lease(p, "w0", 1), b = peer_lease(p, "w1", 2);
    s_apply(&w, 0, 10, 10);
    peer_return(p, "w0", 1, a.lease, 10);
    s_pass(&w, 100);
    s_restart(&w);
    assert_int_equal(peer_lease(p, "w0", 1).kind, EBB__LEASE_KIND__LEASE_NONE); // shards have not told yet
    s_pass(&w, LEASE_MS - 500);
    assert_int_equal(peer_beat(p, "w1", 2, 7, b.lease, &drain), 0); // still its own, without a new join
    assert_int_equal(peer_lease(p, "w1", 2).lease, b.lease);
    Ebb__LeaseReply c = peer_lease(p, "w0", 1);
    assert_true(c.kind == EBB__LEASE_KIND__LEASE_TRAIN && c.stream == 2 && c.lease != b.lease);
    assert_int_equal(w.shard[0].retired_below, 1);
    s_pass(&w, LEASE_MS + 100); // w1 is silent now
    CHECK_OK(peer_join(p, "w2", 3, 13));
    assert_int_equal(peer_lease(p, "w2", 3).stream, 1);
    s_fini(&w);
}

static void test_coordinator_repeats_what_a_shard_lost(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_snapshot);
    peer *p = &w.peer;
    s_run(&w);
    for (uint64_t u = 0; u < 3; u++) {
        Ebb__LeaseReply a = peer_lease(p, "w0", 1);
        s_apply(&w, u, 10, u == 0 ? 10 : 0);
        peer_return(p, "w0", 1, a.lease, 10);
        assert_false(w.shard[0].snapshot);
        s_pass(&w, 100);
    }
    assert_true(w.shard[0].snapshot && w.shard[1].snapshot); // the last unit is done: make it durable
    w.shard[0].durable[1] = 4;
    peer_shard_restart(&w.shard[0], 555);
    s_pass(&w, EBB_SETTLE_MS);
    Ebb__LeaseReply a = peer_lease(p, "w0", 1);
    assert_true(a.kind == EBB__LEASE_KIND__LEASE_TRAIN && a.stream == 1 && a.seq_first == 5 && a.seq_last == 10);
    s_apply(&w, 1, 10, 10);
    peer_return(p, "w0", 1, a.lease, 10);
    s_pass(&w, 100);
    a = peer_lease(p, "w0", 1);
    assert_true(a.kind == EBB__LEASE_KIND__LEASE_TRAIN && a.stream == 2 && a.seq_first == 1);
    s_apply(&w, 2, 10, 10);
    peer_return(p, "w0", 1, a.lease, 10);
    s_pass(&w, 100);
    assert_int_equal(w.c->state, EBB_JOB_SUCCEEDED);
    ebb_msg r;
    peer_status(p, &r);
    assert_true(r.env->status_reply->steps_retired == 30 && r.env->status_reply->repeated_steps > 0 &&
                r.env->status_reply->shards[0]->incarnations == 2);
    ebb_msg_fini(&r);
    s_fini(&w);
}

// A busy worker gets two more; when they idle for the window, those that joined last are drained, one unit each handed back.
static void test_coordinator_scales(void **state)
{
    (void)state;
    static const char job[] = "name: c\nmodel: {family: counter, numel: 100}\nchunk_elems: 50\nshards: 2\nbatch: 1\nsteps: 3000\nunit_steps: 10\n"
                              "workers: {min: 1, max: 3}\nautoscale: {up_step: 2, down_window: 20s}\n";
    world w;
    s_init(&w, job);
    peer *p = &w.peer;
    s_run(&w);
    ebb_msg r;
    static const char *const names[] = {"w0", "w1", "w2"};
    uint64_t compute = 0;
    bool drain;
    for (uint64_t second = 1; second < 90 && (second <= 15 || w.c->scaler.wanted == 3); second++) {
        if (second == 15) {
            peer_status(p, &r);
            assert_int_equal(r.env->status_reply->scale->wanted, 3);
            ebb_msg_fini(&r);
            CHECK_OK(peer_join(p, "w1", 2, 12));
            CHECK_OK(peer_join(p, "w2", 3, 13));
        }
        compute += second < 25 ? 950000000 : 200000000;
        for (uint32_t i = 0; i < (second < 15 ? 1 : 3); i++) {
            peer_beat_busy(p, names[i], i + 1, second, 0, compute, &drain);
            assert_false(drain);
        }
        s_pass(&w, 1000);
        if (second == 35) {
            s_restart(&w); // forgets the windows, but not how many are wanted
            assert_int_equal(w.c->scaler.wanted, 3);
        }
    }
    peer_status(p, &r);
    assert_int_equal(r.env->status_reply->scale->wanted, 1);
    assert_string_equal(s_worker(&r, "w1")->state, "draining");
    assert_string_equal(s_worker(&r, "w2")->state, "draining");
    ebb_msg_fini(&r);
    assert_int_equal(peer_lease(p, "w1", 2).kind, EBB__LEASE_KIND__LEASE_DRAIN);
    peer_beat(p, "w2", 3, 1000, 0, &drain);
    assert_true(drain);
    peer_beat(p, "w0", 1, 1000, 0, &drain);
    assert_false(drain);
    peer_leave(p, "w1", 2);
    peer_leave(p, "w2", 3);
    assert_int_equal(peer_lease(p, "w0", 1).kind, EBB__LEASE_KIND__LEASE_TRAIN);
    s_fini(&w);
}

static bool s_skip(peer *p, const char *worker, uint64_t stream, uint64_t seq)
{
    Ebb__SkipRequest q = EBB__SKIP_REQUEST__INIT;
    q.job = p->job;
    q.worker = (char *)worker;
    q.stream = stream;
    q.seq = seq;
    q.reason = "gradient is not finite";
    PEER_BODY(SKIP_REQUEST, skip_request, &q);
    ebb_msg r;
    p->ask(p->arg, &env, NULL, &r);
    assert_int_equal(r.env->status, EBB_OK);
    bool skip = r.env->skip_reply->skip;
    ebb_msg_fini(&r);
    return skip;
}

// A fleet whose rows do not all fit into a message: the living and the sums are told.
static void test_coordinator_tells_of_a_large_fleet(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    char name[96];
    for (uint64_t i = 0; i < 2000; i++) {
        snprintf(name, sizeof(name), "worker-with-a-name-as-long-as-that-of-a-machine-in-some-cloud-%04d", (int)i);
        CHECK_OK(peer_join(p, name, 1000 + i, 1000 + (uint32_t)i));
        if (i < 1500) {
            peer_leave(p, name, 1000 + i);
        }
    }
    ebb_msg r;
    peer_status(p, &r); // packs, or fails here
    const Ebb__StatusReply *s = r.env->status_reply;
    assert_int_equal(s->workers_known, 2001);
    assert_int_equal(s->workers_live, 501);
    assert_true(s->n_workers >= 64 && s->n_workers < 2001);
    assert_string_equal(s->workers[0]->state, "joined");
    assert_string_equal(s->workers[63]->state, "joined");
    assert_int_equal(s->n_shards, 2);
    ebb_msg_fini(&r);
    s_fini(&w);
}

static void test_coordinator_skips_after_three_refusals(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    peer_lease(p, "w0", 1);
    s_apply(&w, 0, 3, 3);
    s_pass(&w, 50);
    assert_false(s_skip(p, "w0", 0, 4));
    assert_false(s_skip(p, "w1", 0, 4));
    assert_false(s_skip(p, "w0", 0, 5)); // another step
    assert_false(s_skip(p, "w0", 9, 1)); // no such unit
    assert_false(s_skip(p, "w0", 0, 99));
    assert_int_equal(w.shard[0].n_skips, 0);
    assert_true(s_skip(p, "w2", 0, 4));
    assert_true(s_skip(p, "w2", 0, 4));
    s_restart(&w); // the decision stands
    s_pass(&w, 100);
    assert_true(w.shard[0].n_skips == 1 && w.shard[0].skip_stream == 0 && w.shard[0].skip_seq == 4);
    assert_true(s_skip(p, "w0", 0, 4));
    w.shard[0].applied[0] = 4;
    s_pass(&w, 100);
    assert_int_equal(w.shard[1].n_skips, 1); // shard 1 has not done it yet
    w.shard[1].applied[0] = 4;
    s_pass(&w, 100);
    assert_int_equal(w.shard[0].n_skips, 0);
    ebb_msg r;
    peer_status(p, &r);
    assert_int_equal(r.env->status_reply->steps_skipped, 1);
    ebb_msg_fini(&r);
    s_fini(&w);
}

// A shard that comes back with less than was durable on it was given another folder. The job must not go on, let alone succeed.
static void test_coordinator_notices_a_lost_folder(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        world w;
        s_init(&w, s_counter);
        peer *p = &w.peer;
        s_run(&w);
        for (uint64_t u = 0; u < 2; u++) {
            Ebb__LeaseReply a = peer_lease(p, "w0", 1);
            s_apply(&w, u, 10, 10);
            peer_return(p, "w0", 1, a.lease, 10);
            s_pass(&w, 100);
        }
        assert_int_equal(w.c->ledger.steps_retired, 20);
        if (kind == 0) { // an empty one
            memset(w.shard[1].durable, 0, sizeof(w.shard[1].durable));
            w.shard[1].hash = 0;
            peer_shard_restart(&w.shard[1], 555);
        } else if (kind == 1) { // an older one
            w.shard[1].durable[1] = 3;
            peer_shard_restart(&w.shard[1], 555);
        } else { // the coordinator's own is the older one
            w.shard[0].retired_below = w.shard[1].retired_below = 9;
            w.frozen = true;
        }
        uint64_t before = w.shard[1].hash;
        s_fail_soon(&w);
        assert_int_equal(w.c->state, EBB_JOB_FAILED);
        assert_non_null(strstr(w.c->reason, kind == 2 ? "coordinator's folder is older" : "shard 1"));
        assert_true(w.shard[1].hash == before); // no install order: it is not made anew over what may be restored
        assert_int_equal(peer_lease(p, "w0", 1).kind, EBB__LEASE_KIND__LEASE_FINISHED);
        s_fini(&w);
    }
}

// Reports reach a coordinator with a hole in them (an earlier one got those before): it asks for the whole chain again, and only then calls the shard ready.
static void test_coordinator_wants_an_unbroken_chain(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    s_run(&w);
    assert_true(w.c->members.shards[0].full && w.c->members.shards[0].chained);
    uint64_t upto = w.c->members.shards[0].upto;
    w.shard[0].report += 5; // five reports were answered by somebody else
    w.shard[0].full = false;
    CHECK_OK(peer_report(&w.peer, &w.shard[0]));
    assert_false(w.c->members.shards[0].chained);
    assert_true(w.shard[0].full); // asked to begin again
    CHECK_OK(peer_report(&w.peer, &w.shard[0]));
    assert_true(w.c->members.shards[0].chained && w.c->members.shards[0].full && w.c->members.shards[0].upto > upto + 5);
    assert_false(w.shard[0].full);
    CHECK_OK(peer_report(&w.peer, &w.shard[0])); // since the last one
    assert_true(w.c->members.shards[0].chained);
    s_fini(&w);
}

// A job of which many steps cannot be computed has failed, and says why.
static void test_coordinator_fails_when_many_steps_are_bad(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    for (uint64_t unit = 0; unit < 2; unit++) {
        assert_int_equal(peer_lease(p, "w0", 1).stream, unit);
        for (uint64_t seq = 1; seq <= 10 && w.c->state == EBB_JOB_RUNNING; seq++) {
            for (int i = 0; i < EBB_SKIP_AFTER; i++) {
                s_skip(p, "w0", unit, seq);
            }
            w.shard[0].applied[unit] = w.shard[1].applied[unit] = seq;
            w.shard[0].durable[unit] = w.shard[1].durable[unit] = seq;
            s_pass(&w, 50);
        }
    }
    assert_int_equal(w.c->state, EBB_JOB_FAILED);
    assert_int_equal(w.c->skipped, 16);
    assert_non_null(strstr(w.c->reason, "gradient is not finite"));
    assert_int_equal(peer_lease(p, "w0", 1).kind, EBB__LEASE_KIND__LEASE_FINISHED);
    s_fini(&w);
}

static size_t s_told(world *w, const char *kind)
{
    Ebb__EventsRequest q = EBB__EVENTS_REQUEST__INIT;
    PEER_BODY(EVENTS_REQUEST, events_request, &q);
    ebb_msg r;
    size_t n = 0;
    w->peer.ask(w->peer.arg, &env, NULL, &r);
    for (size_t i = 0; i < r.env->events_reply->n_events; i++) {
        n += strcmp(r.env->events_reply->events[i]->kind, kind) == 0;
    }
    ebb_msg_fini(&r);
    return n;
}

static void test_coordinator_watches_the_loss(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    peer_lease(p, "w0", 1);
    static const double losses[] = {5, 4, 30, 300, 3000, 2000, 1, 1, 1, 1, 1, 1};
    for (uint64_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        Ebb__HeartbeatRequest q = EBB__HEARTBEAT_REQUEST__INIT;
        q.job = p->job;
        q.worker = "w0";
        q.incarnation = 1;
        q.beat = i + 1;
        q.loss_sum = 100 * losses[i];
        q.loss_count = 100;
        PEER_BODY(HEARTBEAT_REQUEST, heartbeat_request, &q);
        ebb_msg r;
        p->ask(p->arg, &env, NULL, &r);
        ebb_msg_fini(&r);
        s_apply(&w, 0, i < 10 ? i + 1 : 10, 0);
        s_pass(&w, 6000);
        assert_int_equal(s_told(&w, "diverging"), i >= 2); // once
    }
    assert_int_equal(s_told(&w, "converging"), 1);
    size_t points = w.c->progress.n_points;
    double smoothed = w.c->progress.smoothed;
    assert_true(points > 5);
    s_restart(&w); // the curve is still there
    assert_int_equal(w.c->progress.n_points, points);
    assert_true(w.c->progress.smoothed == smoothed && w.c->progress.points[1].loss > 0);
    s_fini(&w);
}

static void s_eval(peer *p, const char *worker, const Ebb__LeaseReply *a, double loss)
{
    Ebb__EvalReport q = EBB__EVAL_REPORT__INIT;
    q.job = p->job;
    q.worker = (char *)worker;
    q.lease = a->lease;
    q.eval_id = a->eval_id;
    q.loss = loss;
    q.samples = 2;
    PEER_BODY(EVAL_REPORT, eval_report, &q);
    peer_tell(p, &env);
}

static void test_coordinator_evaluates(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_mlp);
    peer *p = &w.peer;
    s_run(&w);
    CHECK_OK(peer_join(p, "w1", 2, 12));
    uint64_t w0 = 1;                    // incarnation
    for (uint64_t u = 0; u < 15; u++) { // passes of two samples: a unit has two steps
        Ebb__LeaseReply a = peer_lease(p, "w0", w0);
        if (a.kind == EBB__LEASE_KIND__LEASE_EVAL) {
            assert_int_equal(peer_lease(p, "w0", w0).lease, a.lease); // asked again: the same
            Ebb__LeaseReply b = peer_lease(p, "w1", 2);
            assert_int_equal(b.kind, EBB__LEASE_KIND__LEASE_TRAIN); // training goes on meanwhile
            peer_return(p, "w1", 2, b.lease, b.seq_first - 1);
            if (u == 5) { // the evaluator dies: another one gets it
                peer_gone(p, "w0", 11);
                b = peer_lease(p, "w1", 2);
                assert_true(b.kind == EBB__LEASE_KIND__LEASE_EVAL && b.eval_id == a.eval_id);
                s_eval(p, "w1", &b, 3.5);
                w0 = 77;
                CHECK_OK(peer_join(p, "w0", w0, 21));
            } else {
                s_eval(p, "w0", &a, 3.0);
                s_eval(p, "w0", &a, 9.0); // a repeat changes nothing
            }
            a = peer_lease(p, "w0", w0);
        }
        assert_true(a.kind == EBB__LEASE_KIND__LEASE_TRAIN && a.stream == u && a.seq_last == 2);
        s_apply(&w, u, 2, 2);
        peer_return(p, "w0", w0, a.lease, 2);
        s_pass(&w, 100);
    }
    assert_int_equal(w.c->state, EBB_JOB_RUNNING); // the last evaluation is missing
    Ebb__LeaseReply a = peer_lease(p, "w0", w0);
    assert_true(a.kind == EBB__LEASE_KIND__LEASE_EVAL && a.eval_id == EBB_EVAL_FINAL);
    s_pass(&w, LEASE_MS + 100); // it expires
    a = peer_lease(p, "w1", 2);
    assert_true(a.kind == EBB__LEASE_KIND__LEASE_EVAL && a.eval_id == EBB_EVAL_FINAL);
    s_eval(p, "w1", &a, 1.25);
    s_pass(&w, 100);
    assert_int_equal(w.c->state, EBB_JOB_SUCCEEDED);
    ebb_msg r;
    peer_status(p, &r);
    const Ebb__StatusReply *st = r.env->status_reply;
    assert_true(st->n_evals == 3 && st->final_eval_done);
    assert_float_equal(st->evals[0]->loss, 3.5, 1e-12);
    assert_float_equal(st->evals[1]->loss, 3.0, 1e-12);
    assert_float_equal(st->evals[2]->loss, 1.25, 1e-12);
    ebb_msg_fini(&r);
    s_fini(&w);
}

static void test_coordinator_drains_and_ends(void **state)
{
    (void)state;
    world w;
    bool drain;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    Ebb__LeaseReply a = peer_lease(p, "w0", 1);
    peer_drain(p, true);
    peer_drain(p, true);
    peer_beat(p, "w0", 1, 1, a.lease, &drain);
    assert_true(drain);
    assert_int_equal(peer_lease(p, "w0", 1).kind, EBB__LEASE_KIND__LEASE_DRAIN);
    s_pass(&w, 500);
    assert_false(w.shard[0].shutdown); // a worker is still there
    peer_return(p, "w0", 1, a.lease, 3);
    peer_leave(p, "w0", 1);
    s_pass(&w, 100);
    assert_true(w.shard[0].shutdown && w.shard[1].shutdown);
    assert_false(w.c->ended);
    for (int i = 0; i < 200 && !w.c->ended; i++) { // the shards are gone
        w.now += 50;
        ebb_coordinator_tick(w.c, w.now);
    }
    assert_true(w.c->ended);
    assert_int_equal(w.c->state, EBB_JOB_STOPPED);
    s_restart(&w); // a resume goes on
    w.shard[0].full = w.shard[1].full = true;
    s_pass(&w, 200);
    CHECK_OK(peer_join(p, "w0", 9, 19));
    assert_int_equal(peer_lease(p, "w0", 9).kind, EBB__LEASE_KIND__LEASE_TRAIN);
    s_fini(&w);
}

static void test_coordinator_does_not_wait_for_the_dead_when_draining(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    peer_lease(p, "w0", 1);
    peer_drain(p, true);
    uint64_t began = w.now;
    while (!w.c->ended && w.now < began + 30000) {
        s_pass(&w, 100); // the worker is silent, the shards never go
    }
    assert_true(w.c->ended && w.now - began <= 17000);
    s_fini(&w);
}

static void test_coordinator_tells_its_story(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    Ebb__EventsRequest q = EBB__EVENTS_REQUEST__INIT;
    PEER_BODY(EVENTS_REQUEST, events_request, &q);
    ebb_msg r;
    p->ask(p->arg, &env, NULL, &r);
    const Ebb__EventsReply *e = r.env->events_reply;
    const char *const want[] = {"job-created", "worker-joined", "manifest-registered", "shard-up", "shard-up", "scaled-up", "job-running"};
    assert_int_equal(e->n_events, 7);
    for (size_t i = 0; i < 7; i++) {
        assert_string_equal(e->events[i]->kind, want[i]);
        assert_int_equal(e->events[i]->id, i + 1);
    }
    ebb_msg_fini(&r);
    for (int i = 0; i < 2000; i++) { // more than one answer holds
        ebb_coordinator_event(w.c, "test", "c", "%0200d", i);
    }
    uint64_t seen = 0;
    for (int i = 0; i < 100 && seen < 2007; i++) {
        q.after = seen;
        p->ask(p->arg, &env, NULL, &r);
        assert_int_equal(r.env->events_reply->last, 2007);
        for (size_t k = 0; k < r.env->events_reply->n_events; k++) {
            assert_int_equal(r.env->events_reply->events[k]->id, ++seen);
        }
        ebb_msg_fini(&r);
    }
    assert_int_equal(seen, 2007);
    s_fini(&w);
}

static void test_coordinator_refuses(void **state)
{
    (void)state;
    world w;
    char why[512];
    s_init(&w, s_counter);
    peer *p = &w.peer;
    CHECK_ERR(peer_join(p, "", 1, 1), EBB_INVAL);
    CHECK_ERR(peer_join(p, "a b", 1, 1), EBB_INVAL);
    CHECK_ERR(peer_join(p, "a", 0, 1), EBB_INVAL);
    char name[200];
    memset(name, 'x', 199);
    name[199] = '\0';
    CHECK_ERR(peer_join(p, name, 1, 1), EBB_INVAL);
    peer_shard nobody = {.number = 2, .incarnation = 5};
    CHECK_ERR(peer_report(p, &nobody), EBB_INVAL);
    Ebb__Ping ping = EBB__PING__INIT;
    PEER_BODY(PING, ping, &ping);
    ebb_msg r;
    p->ask(p->arg, &env, NULL, &r);
    assert_int_equal(r.env->status, EBB_PROTO);
    ebb_msg_fini(&r);
    s_close(&w);
    CHECK_ERR(s_open(&w, s_mlp, why), EBB_CONFIG);
    assert_non_null(strstr(why, "holds another job"));
    CHECK_OK(s_open(&w, s_counter, why)); // the same one
    s_close(&w);
    scratch empty;
    scratch_init(&empty);
    ebb_coordinator *c = malloc(sizeof(*c));
    Ebb__JobSpec *none = NULL;
    CHECK_ERR(ebb_coordinator_open(c, scratch_path(&empty, "store"), &none, 0, why), EBB_NOENT);
    free(c);
    scratch_fini(&empty);
    s_fini(&w);
}

// Messages that come late, from processes that are over, take nothing from their successors.
static void test_coordinator_ignores_late_messages_of_the_dead(void **state)
{
    (void)state;
    world w;
    bool drain;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    Ebb__LeaseReply a = peer_lease(p, "w0", 1);
    CHECK_OK(peer_join(p, "w0", 2, 12));
    Ebb__LeaseReply b = peer_lease(p, "w0", 2);
    assert_int_equal(b.stream, a.stream);
    assert_int_equal(peer_lease(p, "w0", 1).kind, EBB__LEASE_KIND__LEASE_DRAIN);
    CHECK_ERR(peer_join(p, "w0", 1, 11), EBB_CLOSED);
    assert_int_equal(peer_beat(p, "w0", 2, 1, b.lease, &drain), 0);
    assert_false(drain);
    CHECK_OK(peer_join(p, "w1", 3, 13));
    peer_leave(p, "w1", 3);
    assert_int_equal(peer_lease(p, "w1", 3).kind, EBB__LEASE_KIND__LEASE_DRAIN);
    peer_gone(p, "w0", 12);
    assert_int_equal(peer_lease(p, "w0", 2).kind, EBB__LEASE_KIND__LEASE_DRAIN);
    // A shard process that is over does not raise watermarks again.
    peer_shard old = w.shard[0];
    peer_shard_restart(&w.shard[0], 555);
    s_pass(&w, 100);
    old.applied[0] = 10;
    CHECK_ERR(peer_report(p, &old), EBB_CLOSED);
    assert_true(w.c->members.shards[0].ready);
    s_fini(&w);
}

static void test_coordinator_refuses_workers_of_another_job(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_counter);
    s_run(&w);
    Ebb__LeaseRequest q = EBB__LEASE_REQUEST__INIT;
    q.job = w.peer.job + 1;
    q.worker = "w0";
    q.incarnation = 1;
    PEER_BODY(LEASE_REQUEST, lease_request, &q);
    ebb_msg r;
    s_ask(&w, &env, NULL, &r);
    assert_int_equal(r.env->status, EBB_NOENT);
    ebb_msg_fini(&r);
    s_fini(&w);
}

// A skip that a shard forgot in a crash is ordered again, and counted once.
static void test_coordinator_repeats_skips_after_rollback(void **state)
{
    (void)state;
    world w;
    s_init(&w, s_snapshot);
    peer *p = &w.peer;
    s_run(&w);
    peer_lease(p, "w0", 1);
    for (int i = 0; i < 3; i++) {
        s_skip(p, "w0", 0, 1);
    }
    s_apply(&w, 0, 1, 0);
    s_pass(&w, 100);
    assert_int_equal(w.shard[0].n_skips, 0);
    peer_shard_restart(&w.shard[0], 555);
    s_pass(&w, 100);
    assert_true(w.shard[0].n_skips == 1 && w.shard[1].n_skips == 0);
    assert_true(s_skip(p, "w0", 0, 1));
    assert_int_equal(w.c->skipped, 1);
    s_fini(&w);
}

// A coordinator that was stopped for a while does not take its own deafness for the workers' silence.
static void test_coordinator_does_not_blame_others_for_its_pause(void **state)
{
    (void)state;
    world w;
    bool drain;
    s_init(&w, s_counter);
    peer *p = &w.peer;
    s_run(&w);
    Ebb__LeaseReply a = peer_lease(p, "w0", 1);
    w.now += 10 * LEASE_MS;
    s_pass(&w, 100);
    assert_int_equal(peer_beat(p, "w0", 1, 1, a.lease, &drain), 0);
    s_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_installs_before_it_leases),
        cmocka_unit_test(test_coordinator_gives_one_lease_each),
        cmocka_unit_test(test_coordinator_frees_the_units_of_the_dead),
        cmocka_unit_test(test_coordinator_finishes),
        cmocka_unit_test(test_coordinator_restart_keeps_leases),
        cmocka_unit_test(test_coordinator_repeats_what_a_shard_lost),
        cmocka_unit_test(test_coordinator_notices_a_lost_folder),
        cmocka_unit_test(test_coordinator_wants_an_unbroken_chain),
        cmocka_unit_test(test_coordinator_fails_when_many_steps_are_bad),
        cmocka_unit_test(test_coordinator_watches_the_loss),
        cmocka_unit_test(test_coordinator_scales),
        cmocka_unit_test(test_coordinator_tells_of_a_large_fleet),
        cmocka_unit_test(test_coordinator_skips_after_three_refusals),
        cmocka_unit_test(test_coordinator_evaluates),
        cmocka_unit_test(test_coordinator_drains_and_ends),
        cmocka_unit_test(test_coordinator_does_not_wait_for_the_dead_when_draining),
        cmocka_unit_test(test_coordinator_tells_its_story),
        cmocka_unit_test(test_coordinator_refuses),
        cmocka_unit_test(test_coordinator_ignores_late_messages_of_the_dead),
        cmocka_unit_test(test_coordinator_refuses_workers_of_another_job),
        cmocka_unit_test(test_coordinator_repeats_skips_after_rollback),
        cmocka_unit_test(test_coordinator_does_not_blame_others_for_its_pause),
    };
    setenv("EBB_LOG", "error", 0);
    return cmocka_run_group_tests_name("coordinator.coordinator", tests, NULL, NULL);
}
