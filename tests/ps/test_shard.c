// The whole shard in this process, over ipc: verdicts, pulls, pins, skips, retirement, restart, clean end.
#include "tests/ps/fixture.h"

#include <math.h>

#include "core/rpc.h"
#include "ps/recover.h"
#include "ps/server.h"
#include "tests/ps/fake_coordinator.h"

typedef struct live {
    fixture f;
    ebb_net *net;
    char dir[64], store[96], bind[96];
    fake_coordinator c;
    ebb_server *server;
    ebb_rpc *rpc;
    uint64_t seed;
    double look_ahead; // of pulls
    _Atomic int shutdowns, fatals, fatal_code;
} live;

static void s_on_shutdown(void *arg)
{
    ((live *)arg)->shutdowns++;
}

static void s_on_fatal(void *arg, int exit_code, const char *why)
{
    live *l = arg;
    (void)why;
    l->fatal_code = exit_code;
    l->fatals++;
}

static void s_start(live *l, const ebb_server_options *o)
{
    char why[512];
    ebb_status st = EBB_EXISTS;
    for (int i = 0; st == EBB_EXISTS && i < 200; i++) { // libzmq closes the last one's socket in the background
        st = ebb_server_start(l->net, o, &l->server, why);
        ebb_clock_sleep_ms(st == EBB_EXISTS ? 20 : 0);
    }
    if (st != EBB_OK) {
        fail_msg("%s", why);
    }
}

static void s_up(live *l)
{
    const ebb_server_options o = {
        .coordinator = l->c.endpoint, .bind = l->bind, .dir = l->store, .shutdown = s_on_shutdown, .fatal = s_on_fatal, .arg = l};
    s_start(l, &o);
    uint64_t incarnation = ebb_server_incarnation(l->server);
    FAKE_WAIT(&l->c, l->c.installed && l->c.incarnation == incarnation);
}

static void s_live(live *l, const char *optimizer, const char *durability)
{
    memset(l, 0, sizeof(*l));
    l->seed = ebb_test_seed();
    fixture_init(&l->f, optimizer, durability);
    strcpy(l->dir, "/tmp/ebb-ps-XXXXXX");
    assert_non_null(mkdtemp(l->dir));
    snprintf(l->store, sizeof(l->store), "%s/shard-0", l->dir);
    snprintf(l->bind, sizeof(l->bind), "ipc://%s/shard.sock", l->dir);
    CHECK_OK(ebb_net_new(&l->net));
    fake_coordinator_start(&l->c, l->net, &l->f, l->dir);
    s_up(l);
    CHECK_OK(ebb_rpc_new(l->net, l->bind, &l->rpc));
}

static void s_down(live *l)
{
    ebb_server_stop(&l->server);
    ebb_rpc_free(&l->rpc);
    fake_coordinator_stop(&l->c);
    ebb_net_free(&l->net);
    assert_int_equal(l->fatals, 0);
    fixture_remove(l->dir);
    fixture_fini(&l->f);
}

static void s_call(live *l, Ebb__Envelope *env, const ebb_part *parts, size_t n, ebb_msg *reply)
{
    ebb_status st = EBB_OK;
    for (int i = 0; i < 200; i++) { // TRYLATER: the shard is starting or its queue is full
        st = ebb_rpc_call(l->rpc, env, parts, n, 10000, 200, NULL, reply);
        if (st != EBB_OK || reply->env->status != EBB_TRYLATER) {
            break;
        }
        ebb_msg_fini(reply);
        ebb_clock_sleep_ms(10);
    }
    CHECK_OK(st);
}

typedef struct push_options {
    bool want_pull;
    uint64_t have;
    float *poison; // written into the first gradient
    uint64_t epoch;
    double look_ahead;
} push_options;

static ebb_status s_push(live *l, uint64_t stream, uint64_t seq, uint64_t base, const push_options *o, ebb_msg *reply)
{
    static const push_options plain;
    o = o != NULL ? o : &plain;
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__PushRequest req = EBB__PUSH_REQUEST__INIT;
    env.body_case = EBB__ENVELOPE__BODY_PUSH_REQUEST;
    env.push_request = &req;
    req.job = l->f.install.job;
    req.epoch = o->epoch != 0 ? o->epoch : l->f.install.epoch;
    req.stream = stream;
    req.seq = seq;
    req.base_version = base;
    req.attempt = 1;
    req.worker = (char *)"w0";
    req.want_pull = o->want_pull;
    req.have_version = o->have;
    req.look_ahead = o->look_ahead;
    ebb_part *parts = fixture_parts(&l->f, l->seed, stream, seq);
    if (o->poison != NULL) {
        ((float *)parts[0].buf->data)[1] = *o->poison;
        ebb_part_seal(&parts[0]);
    }
    s_call(l, &env, parts, l->f.install.chunk_count, reply);
    fixture_parts_free(&l->f, parts);
    assert_int_equal(reply->env->body_case, EBB__ENVELOPE__BODY_PUSH_REPLY);
    return (ebb_status)reply->env->status;
}

static void s_expect(live *l, uint64_t stream, uint64_t seq, uint64_t base, Ebb__Verdict verdict, uint64_t applied, uint64_t version)
{
    ebb_msg reply;
    CHECK_OK(s_push(l, stream, seq, base, NULL, &reply));
    const Ebb__PushReply *r = reply.env->push_reply;
    assert_int_equal(r->verdict, verdict);
    assert_int_equal(r->applied, applied);
    assert_int_equal(r->version, version);
    assert_int_equal(r->incarnation, ebb_server_incarnation(l->server));
    assert_true(r->credit >= 1);
    ebb_msg_fini(&reply);
}

static ebb_status s_pull(live *l, uint64_t pin, uint32_t slot, bool nothing, uint64_t have, ebb_msg *reply)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__PullRequest req = EBB__PULL_REQUEST__INIT;
    env.body_case = EBB__ENVELOPE__BODY_PULL_REQUEST;
    env.pull_request = &req;
    req.job = l->f.install.job;
    req.epoch = l->f.install.epoch;
    req.have_nothing = nothing;
    req.have_version = have;
    req.pin = pin;
    req.slot = slot;
    req.look_ahead = l->look_ahead;
    s_call(l, &env, NULL, 0, reply);
    return (ebb_status)reply->env->status;
}

static ebb_status s_pin(live *l, uint64_t pin, uint32_t ttl_ms, uint64_t *version)
{
    ebb_msg reply;
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__PinRequest req = EBB__PIN_REQUEST__INIT;
    env.body_case = EBB__ENVELOPE__BODY_PIN_REQUEST;
    env.pin_request = &req;
    req.job = l->f.install.job;
    req.pin = pin;
    req.ttl_ms = ttl_ms;
    s_call(l, &env, NULL, 0, &reply);
    ebb_status st = (ebb_status)reply.env->status;
    if (st == EBB_OK) {
        *version = reply.env->pin_reply->version;
    }
    ebb_msg_fini(&reply);
    return st;
}

// The state that pushes 1..n of stream 1 (each computed at the version before it) must lead to.
static ebb_job *s_twin(live *l, uint64_t n)
{
    char why[256];
    ebb_job *job = NULL;
    CHECK_OK(ebb_job_new(&l->f.install, l->f.packed, l->f.packed_len, &job, why));
    for (uint64_t i = 1; i <= n; i++) {
        Ebb__PushRequest req = EBB__PUSH_REQUEST__INIT;
        ebb_push p;
        req.job = l->f.install.job;
        req.epoch = l->f.install.epoch;
        req.stream = 1;
        req.seq = i;
        req.base_version = i - 1;
        ebb_part *parts = fixture_parts(&l->f, l->seed, 1, i);
        CHECK_OK(ebb_job_judge(job, &req, parts, l->f.install.chunk_count, &p));
        const ebb_push *list[1] = {&p};
        CHECK_OK(ebb_job_apply(job, list, 1));
        ebb_push_fini(&p);
        fixture_parts_free(&l->f, parts);
    }
    return job;
}

static void s_same_as_twin(live *l, const ebb_msg *reply, uint64_t n, uint32_t slot)
{
    ebb_job *twin = s_twin(l, n);
    assert_int_equal(reply->n_parts, twin->chunk_count);
    for (size_t i = 0; i < reply->n_parts; i++) {
        const ebb_part *p = &reply->parts[i];
        const ebb_chunk_state *c = &twin->chunks[p->chunk - twin->first_chunk];
        assert_int_equal(p->version, n);
        assert_int_equal(p->kind, slot == 0 ? EBB_PART_PARAM : EBB_PART_SLOT);
        assert_int_equal(p->buf->len, c->buf[slot]->len);
        assert_memory_equal(p->buf->data, c->buf[slot]->data, p->buf->len);
    }
    ebb_job_free(&twin);
}

// The parameters in the reply are the twin's after n pushes, `versions` updates ahead.
static void s_ahead_of_twin(live *l, const ebb_msg *reply, uint64_t n, double versions)
{
    ebb_job *twin = s_twin(l, n);
    assert_int_equal(reply->n_parts, twin->chunk_count);
    for (size_t i = 0; i < reply->n_parts; i++) {
        const ebb_part *p = &reply->parts[i];
        const ebb_chunk_state *c = &twin->chunks[p->chunk - twin->first_chunk];
        const float *in[EBB_CHUNK_BUFS_MAX] = {0};
        for (uint32_t b = 0; b < c->n_bufs; b++) {
            in[b] = (const float *)c->buf[b]->data;
        }
        float *want = malloc(c->numel * sizeof(float));
        float weight = ebb_consistency_weight(&twin->consistency, versions);
        assert_true(ebb_optimizer_look_ahead(&twin->optimizer, c->group, n, versions, weight, c->numel, in, want));
        assert_memory_not_equal(want, in[0], c->numel * sizeof(float));
        assert_int_equal(p->version, n);
        assert_memory_equal(p->buf->data, want, c->numel * sizeof(float));
        free(want);
    }
    ebb_job_free(&twin);
}

// A reader may ask for parameters ahead; that changes what it is sent and nothing else.
static void test_shard_looks_ahead(void **state)
{
    (void)state;
    static const char *const names[] = {"momentum", "adamw", "sgd"};
    for (int k = 0; k < 3; k++) {
        live l;
        ebb_msg reply;
        uint64_t version;
        s_live(&l, names[k], "journal");
        push_options o = {.want_pull = true, .look_ahead = 2.5};
        for (uint64_t i = 1; i <= 5; i++) {
            o.have = i - 1;
            CHECK_OK(s_push(&l, 1, i, i - 1, &o, &reply));
            if (k < 2) {
                s_ahead_of_twin(&l, &reply, i, 2.5);
            } else {
                s_same_as_twin(&l, &reply, i, 0); // no momentum, nothing to foresee
            }
            ebb_msg_fini(&reply);
        }
        static const double odd[] = {0, -1, NAN, INFINITY};
        for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
            l.look_ahead = odd[i];
            CHECK_OK(s_pull(&l, 0, 0, true, 0, &reply));
            s_same_as_twin(&l, &reply, 5, 0);
            ebb_msg_fini(&reply);
        }
        l.look_ahead = 4;
        CHECK_OK(s_pin(&l, 9, 60000, &version));
        CHECK_OK(s_pull(&l, 9, 0, true, 0, &reply)); // pinned: what is evaluated and exported is never a guess
        s_same_as_twin(&l, &reply, 5, 0);
        ebb_msg_fini(&reply);
        if (k < 2) {
            CHECK_OK(s_pull(&l, 0, 1, true, 0, &reply));
            s_same_as_twin(&l, &reply, 5, 1);
            ebb_msg_fini(&reply);
            CHECK_OK(s_pull(&l, 0, 0, true, 0, &reply));
            s_ahead_of_twin(&l, &reply, 5, 4);
            ebb_msg_fini(&reply);
        }
        s_down(&l);
    }
}

static void test_shard_verdicts(void **state)
{
    (void)state;
    live l;
    ebb_msg reply;
    s_live(&l, "adam", "journal");
    s_expect(&l, 1, 2, 0, EBB__VERDICT__VERDICT_GAP, 0, 0);
    s_expect(&l, 1, 1, 0, EBB__VERDICT__VERDICT_APPLIED, 1, 1);
    s_expect(&l, 1, 1, 0, EBB__VERDICT__VERDICT_DUPLICATE, 1, 1);
    s_expect(&l, 1, 3, 1, EBB__VERDICT__VERDICT_GAP, 1, 1);
    s_expect(&l, 1, 2, 7, EBB__VERDICT__VERDICT_STALE, 1, 1); // from a future that a crash took back
    for (uint64_t i = 2; i <= 12; i++) {
        s_expect(&l, 1, i, i - 1, EBB__VERDICT__VERDICT_APPLIED, i, i);
    }
    s_expect(&l, 2, 1, 3, EBB__VERDICT__VERDICT_STALE, 0, 12); // tau 9 > 8
    float bad = __builtin_nanf("");
    push_options o = {.poison = &bad};
    CHECK_OK(s_push(&l, 1, 13, 12, &o, &reply));
    assert_int_equal(reply.env->push_reply->verdict, EBB__VERDICT__VERDICT_BAD_VALUE);
    assert_non_null(strstr(reply.env->detail, "finite"));
    ebb_msg_fini(&reply);
    o = (push_options){.epoch = 99};
    CHECK_ERR(s_push(&l, 1, 13, 12, &o, &reply), EBB_WRONGSHARD);
    ebb_msg_fini(&reply);
    s_expect(&l, 1, 13, 12, EBB__VERDICT__VERDICT_APPLIED, 13, 13); // a refusal did not move the watermark
    CHECK_OK(s_pull(&l, 0, 0, true, 0, &reply));
    assert_int_equal(reply.env->pull_reply->version, 13);
    assert_int_equal(reply.env->pull_reply->slots, 2);
    s_same_as_twin(&l, &reply, 13, 0);
    ebb_msg_fini(&reply);
    CHECK_OK(s_pull(&l, 0, 2, true, 0, &reply));
    s_same_as_twin(&l, &reply, 13, 2);
    ebb_msg_fini(&reply);
    CHECK_ERR(s_pull(&l, 0, 3, true, 0, &reply), EBB_INVAL);
    ebb_msg_fini(&reply);
    CHECK_OK(s_pull(&l, 0, 0, false, 13, &reply)); // nothing newer
    assert_int_equal(reply.n_parts, 0);
    ebb_msg_fini(&reply);
    FAKE_WAIT(&l.c, l.c.applied[1] == 13 && l.c.durable[1] == 13 && l.c.version == 13);
    s_down(&l);
}

static void test_shard_push_pull_and_pins(void **state)
{
    (void)state;
    live l;
    ebb_msg reply, before;
    uint64_t version = 99;
    s_live(&l, "momentum", "journal");
    push_options o = {.want_pull = true};
    for (uint64_t i = 1; i <= 3; i++) {
        o.have = i - 1;
        CHECK_OK(s_push(&l, 1, i, i - 1, &o, &reply));
        assert_int_equal(reply.env->push_reply->version, i);
        s_same_as_twin(&l, &reply, i, 0);
        ebb_msg_fini(&reply);
    }
    CHECK_ERR(s_pull(&l, 77, 0, true, 0, &reply), EBB_NOENT);
    ebb_msg_fini(&reply);
    CHECK_ERR(s_pin(&l, 0, 1000, &version), EBB_INVAL);
    CHECK_OK(s_pin(&l, 77, 60000, &version));
    assert_int_equal(version, 3);
    CHECK_OK(s_pull(&l, 0, 0, true, 0, &before)); // holds the buffers while pushes go on
    for (uint64_t i = 4; i <= 8; i++) {
        s_expect(&l, 1, i, i - 1, EBB__VERDICT__VERDICT_APPLIED, i, i);
    }
    CHECK_OK(s_pin(&l, 77, 60000, &version)); // again: renewed, not moved
    assert_int_equal(version, 3);
    CHECK_OK(s_pull(&l, 77, 0, true, 0, &reply));
    assert_int_equal(reply.env->pull_reply->version, 3);
    s_same_as_twin(&l, &reply, 3, 0);
    ebb_msg_fini(&reply);
    CHECK_OK(s_pull(&l, 77, 1, true, 0, &reply));
    s_same_as_twin(&l, &reply, 3, 1);
    ebb_msg_fini(&reply);
    s_same_as_twin(&l, &before, 3, 0);
    ebb_msg_fini(&before);
    CHECK_OK(s_pull(&l, 0, 0, false, 3, &reply));
    s_same_as_twin(&l, &reply, 8, 0);
    ebb_msg_fini(&reply);
    CHECK_OK(s_pin(&l, 78, 1, &version));
    ebb_clock_sleep_ms(50);
    CHECK_ERR(s_pull(&l, 78, 0, true, 0, &reply), EBB_NOENT); // expired
    ebb_msg_fini(&reply);
    for (uint64_t i = 0; i < 15; i++) {
        CHECK_OK(s_pin(&l, 100 + i, 60000, &version));
    }
    ebb_msg again;
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__UnpinRequest unpin = EBB__UNPIN_REQUEST__INIT;
    env.body_case = EBB__ENVELOPE__BODY_UNPIN_REQUEST;
    env.unpin_request = &unpin;
    unpin.job = l.f.install.job;
    unpin.pin = 77;
    s_call(&l, &env, NULL, 0, &again);
    assert_int_equal(again.env->status, EBB_OK);
    ebb_msg_fini(&again);
    CHECK_ERR(s_pull(&l, 77, 0, true, 0, &reply), EBB_NOENT);
    ebb_msg_fini(&reply);
    s_down(&l);
}

static void s_restart(const char *durability)
{
    live l;
    ebb_msg reply;
    s_live(&l, "adamw", durability);
    for (uint64_t i = 1; i <= 20; i++) {
        s_expect(&l, 1, i, i - 1, EBB__VERDICT__VERDICT_APPLIED, i, i);
        if (i == 10) {
            pthread_mutex_lock(&l.c.lock);
            l.c.snapshot = true;
            pthread_mutex_unlock(&l.c.lock);
            if (strcmp(durability, "snapshot") == 0) {
                FAKE_WAIT(&l.c, l.c.durable[1] >= 10);
            }
        }
    }
    uint64_t incarnation = ebb_server_incarnation(l.server);
    ebb_server_abandon(&l.server);
    s_up(&l);
    assert_true(ebb_server_incarnation(l.server) != incarnation);
    CHECK_OK(s_pull(&l, 0, 0, true, 0, &reply));
    uint64_t version = reply.env->pull_reply->version;
    if (strcmp(durability, "snapshot") == 0) {
        assert_true(version >= 10 && version <= 20);
    } else {
        assert_int_equal(version, 20);
    }
    s_same_as_twin(&l, &reply, version, 0);
    ebb_msg_fini(&reply);
    FAKE_WAIT(&l.c, l.c.applied[1] == version && l.c.durable[1] == version); // the coordinator learns what was lost
    for (uint64_t i = version + 1; i <= 25; i++) {
        s_expect(&l, 1, i, i - 1, EBB__VERDICT__VERDICT_APPLIED, i, i);
    }
    ebb_server_stop(&l.server);                                    // clean: nothing is lost at any level
    FAKE_WAIT(&l.c, l.c.applied[1] == 25 && l.c.durable[1] == 25); // by the last report
    s_up(&l);
    s_expect(&l, 1, 25, 24, EBB__VERDICT__VERDICT_DUPLICATE, 25, 25);
    CHECK_OK(s_pull(&l, 0, 2, true, 0, &reply));
    s_same_as_twin(&l, &reply, 25, 2);
    ebb_msg_fini(&reply);
    s_down(&l);
}

static void test_shard_restart(void **state)
{
    (void)state;
    s_restart("journal");
    s_restart("fsync");
    s_restart("snapshot");
}

static void test_shard_skips_and_retires(void **state)
{
    (void)state;
    live l;
    s_live(&l, "sgd", "journal");
    s_expect(&l, 1, 1, 0, EBB__VERDICT__VERDICT_APPLIED, 1, 1);
    pthread_mutex_lock(&l.c.lock);
    l.c.skip_stream = 1;
    l.c.skip_seq = 2;
    pthread_mutex_unlock(&l.c.lock);
    FAKE_WAIT(&l.c, l.c.applied[1] == 2 && l.c.skipped == 1);
    ebb_clock_sleep_ms(300); // the order is repeated: it counts once
    s_expect(&l, 1, 2, 1, EBB__VERDICT__VERDICT_DUPLICATE, 2, 1);
    s_expect(&l, 1, 3, 1, EBB__VERDICT__VERDICT_APPLIED, 3, 2);
    FAKE_WAIT(&l.c, l.c.durable[1] == 3);
    pthread_mutex_lock(&l.c.lock);
    assert_int_equal(l.c.skipped, 1);
    l.c.skip_seq = 0;
    l.c.retired_below = 2;
    uint64_t reports = l.c.reports;
    pthread_mutex_unlock(&l.c.lock);
    FAKE_WAIT(&l.c, l.c.reports >= reports + 3);
    s_expect(&l, 1, 4, 2, EBB__VERDICT__VERDICT_DUPLICATE, 4, 2);
    ebb_server_abandon(&l.server);
    s_up(&l);
    s_expect(&l, 0, 1, 2, EBB__VERDICT__VERDICT_DUPLICATE, 1, 2); // the retired set survives
    s_expect(&l, 1, 1, 2, EBB__VERDICT__VERDICT_DUPLICATE, 1, 2);
    s_expect(&l, 2, 1, 2, EBB__VERDICT__VERDICT_APPLIED, 1, 3);
    pthread_mutex_lock(&l.c.lock);
    assert_int_equal(l.c.skipped, 1);
    l.c.shutdown = true;
    pthread_mutex_unlock(&l.c.lock);
    FAKE_WAIT(&l.c, l.shutdowns > 0);
    s_down(&l);
}

static void test_shard_journal_is_dropped_after_snapshots(void **state)
{
    (void)state;
    live l;
    s_live(&l, "adam", "journal");
    for (uint64_t i = 1; i <= 30; i++) {
        s_expect(&l, 1, i, i - 1, EBB__VERDICT__VERDICT_APPLIED, i, i);
    }
    FAKE_WAIT(&l.c, l.c.version == 30);
    pthread_mutex_lock(&l.c.lock);
    assert_true(l.c.journal_bytes > 0);
    l.c.snapshot = true;
    pthread_mutex_unlock(&l.c.lock);
    FAKE_WAIT(&l.c, l.c.journal_bytes == 0);
    ebb_server_abandon(&l.server);
    s_up(&l);
    ebb_msg reply;
    CHECK_OK(s_pull(&l, 0, 1, true, 0, &reply));
    s_same_as_twin(&l, &reply, 30, 1);
    ebb_msg_fini(&reply);
    s_down(&l);
}

static void test_shard_refuses_another_job(void **state)
{
    (void)state;
    live l;
    s_live(&l, "sgd", "journal");
    ebb_server_abandon(&l.server);
    fake_coordinator_stop(&l.c);
    l.f.install.job++;
    fake_coordinator_start(&l.c, l.net, &l.f, l.dir);
    // This coordinator does not know the job the shard reports, and installs its own.
    const ebb_server_options o = {
        .coordinator = l.c.endpoint, .bind = l.bind, .dir = l.store, .shutdown = s_on_shutdown, .fatal = s_on_fatal, .arg = &l};
    s_start(&l, &o);
    FAKE_WAIT(&l.c, l.fatals == 1);
    assert_int_equal(l.fatal_code, 65);
    ebb_server_abandon(&l.server);
    ebb_rpc_free(&l.rpc);
    fake_coordinator_stop(&l.c);
    ebb_net_free(&l.net);
    fixture_remove(l.dir);
    fixture_fini(&l.f);
}

static void test_shard_answers_pings_and_survives_garbage(void **state)
{
    (void)state;
    live l;
    ebb_msg reply;
    s_live(&l, "sgd", "journal");
    ebb_socket *dealer = NULL;
    CHECK_OK(ebb_dealer_open(l.net, l.bind, &dealer));
    for (uint64_t i = 0; i < 300; i++) { // random frames, random counts
        ebb_frames f;
        ebb_frames_init(&f);
        for (uint64_t k = 0; k <= ebb_rng_at(l.seed, 50, i) % 4; k++) {
            uint64_t r = ebb_rng_at(l.seed, 51 + k, i);
            ebb_buf *b = NULL;
            CHECK_OK(ebb_buf_new(r % 200, &b));
            for (size_t x = 0; x < b->len; x++) {
                b->data[x] = (uint8_t)ebb_rng_at(l.seed, 60 + k, i << 8 | x);
            }
            CHECK_OK(ebb_frames_add_take(&f, &b));
        }
        ebb_poll item = {.socket = dealer, .want_write = true};
        ebb_net_poll(&item, 1, 1000);
        ebb_socket_send(dealer, NULL, &f);
        ebb_frames_fini(&f);
    }
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__Ping ping = EBB__PING__INIT;
    env.body_case = EBB__ENVELOPE__BODY_PING;
    env.ping = &ping;
    ping.nonce = 42;
    s_call(&l, &env, NULL, 0, &reply);
    assert_int_equal(reply.env->pong->nonce, 42);
    assert_int_equal(reply.env->pong->incarnation, ebb_server_incarnation(l.server));
    ebb_msg_fini(&reply);
    // A part whose bytes were damaged on the way is refused with its request_id, and nothing moves.
    Ebb__Envelope push = EBB__ENVELOPE__INIT;
    Ebb__PushRequest req = EBB__PUSH_REQUEST__INIT;
    push.body_case = EBB__ENVELOPE__BODY_PUSH_REQUEST;
    push.push_request = &req;
    req.job = l.f.install.job;
    req.epoch = l.f.install.epoch;
    req.seq = 1;
    ebb_part *parts = fixture_parts(&l.f, l.seed, 0, 1);
    parts[1].crc32c ^= 1;
    s_call(&l, &push, parts, l.f.install.chunk_count, &reply);
    assert_int_equal(reply.env->status, EBB_CORRUPT);
    ebb_msg_fini(&reply);
    fixture_parts_free(&l.f, parts);
    parts = fixture_parts(&l.f, l.seed, 0, 1);
    s_call(&l, &push, parts, l.f.install.chunk_count - 1, &reply); // a chunk is missing
    assert_int_equal(reply.env->push_reply->verdict, EBB__VERDICT__VERDICT_BAD_VALUE);
    ebb_msg_fini(&reply);
    fixture_parts_free(&l.f, parts);
    s_expect(&l, 0, 1, 0, EBB__VERDICT__VERDICT_APPLIED, 1, 1);
    ebb_socket_close(&dealer);
    s_down(&l);
}

int main(void)
{
    ebb_log_set_sink(fixture_no_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shard_verdicts),
        cmocka_unit_test(test_shard_push_pull_and_pins),
        cmocka_unit_test(test_shard_looks_ahead),
        cmocka_unit_test(test_shard_restart),
        cmocka_unit_test(test_shard_skips_and_retires),
        cmocka_unit_test(test_shard_journal_is_dropped_after_snapshots),
        cmocka_unit_test(test_shard_refuses_another_job),
        cmocka_unit_test(test_shard_answers_pings_and_survives_garbage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
