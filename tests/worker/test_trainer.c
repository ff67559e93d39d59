// A whole worker (as a thread) against fake shards and a fake coordinator: the arithmetic of the loop, and what it does when refused.
#include "tests/support/check.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "client/ebb.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/process.h"
#include "tests/client/fake.h"
#include "worker/dataset.h"
#include "worker/modelspec.h"
#include "worker/worker.h"

#define SHARDS 2

typedef struct fixture {
    ebb_net *net;
    fake_spec spec;
    ebb_model_config config;
    ebb_manifest *manifest;
    fake_shard shard[SHARDS], *list[SHARDS];
    fake_coordinator co;
    char path[64];
    uint32_t sizes[3];
    ebb_worker_options options;
    pthread_t thread;
    int code;
} fixture;

// A small classifier on random rows: sums are in one order, so the same steps give the same bits.
static int s_setup(void **state)
{
    static int serial;
    fixture *f = calloc(1, sizeof(*f));
    char endpoint[128], why[256];
    serial++;
    ebb_stop_requested = 0;
    snprintf(f->path, sizeof(f->path), "/tmp/ebb-test-rows-%d-%d", (int)getpid(), serial);
    FILE *csv = fopen(f->path, "w");
    for (uint64_t r = 0; r < 40; r++) {
        fprintf(csv, "%d,%d,%d,%d\n", (int)(ebb_rng_at(5, 1, r) % 100), (int)(ebb_rng_at(5, 2, r) % 100), (int)(ebb_rng_at(5, 3, r) % 100),
                (int)(ebb_rng_at(5, 4, r) % 4));
    }
    long bytes = ftell(csv);
    fclose(csv);
    fake_spec_init(&f->spec);
    f->sizes[0] = 3;
    f->sizes[1] = 5;
    f->sizes[2] = 4;
    f->spec.model.family = "mlp";
    f->spec.model.n_sizes = 3;
    f->spec.model.sizes = f->sizes;
    f->spec.data.path = f->path;
    f->spec.data.format = "csv";
    f->spec.data.bytes = (uint64_t)bytes;
    f->spec.data.columns = 3;
    f->spec.data.scale = 0.01;
    f->spec.data.train_samples = 32;
    f->spec.data.val_samples = 8;
    f->spec.job.batch = 4;
    f->spec.job.unit_steps = 8;
    f->spec.job.steps = 16;
    f->spec.job.seed = 3;
    f->spec.job.chunk_elems = 16;
    f->spec.optimizer.clip_norm = 0.5;
    CHECK_OK(ebb_net_new(&f->net));
    CHECK_OK(ebb_modelspec_config(&f->spec.model, &f->config, why));
    CHECK_OK(ebb_model_manifest(&f->config, 16, &f->manifest, why));
    uint32_t half = (uint32_t)f->manifest->n_chunks / 2;
    for (uint32_t i = 0; i < SHARDS; i++) {
        snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/ebb-test-%d-%d-t%u", (int)getpid(), serial, i);
        fake_shard_init(&f->shard[i], f->net, endpoint, f->manifest, i, i * half, i == 0 ? half : (uint32_t)f->manifest->n_chunks - half, 1);
        f->list[i] = &f->shard[i];
    }
    snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/ebb-test-%d-%d-tc", (int)getpid(), serial);
    fake_coordinator_init(&f->co, f->net, endpoint, &f->spec.job, NULL, f->list, SHARDS);
    f->options = (ebb_worker_options){.coordinator = f->co.endpoint, .name = "w0", .threads = 1, .stop_fd = -1};
    *state = f;
    return 0;
}

static int s_teardown(void **state)
{
    fixture *f = *state;
    fake_coordinator_stop(&f->co);
    for (int i = 0; i < SHARDS; i++) {
        fake_shard_fini(&f->shard[i]);
    }
    ebb_manifest_free(&f->manifest);
    ebb_net_free(&f->net);
    unlink(f->path);
    free(f);
    ebb_stop_requested = 0;
    return 0;
}

static void s_lease(fixture *f, int kind, uint64_t stream, uint64_t first, uint64_t last)
{
    uint32_t at = f->co.n_leases;
    f->co.lease[at].kind = kind;
    f->co.lease[at].stream = stream;
    f->co.lease[at].seq_first = first;
    f->co.lease[at].seq_last = last;
    f->co.lease[at].eval_id = at + 1;
    f->co.n_leases = at + 1;
}

static void *s_run(void *arg)
{
    fixture *f = arg;
    f->code = ebb_worker_run(&f->options);
    return NULL;
}

// Starts everything: from here to s_join only atomic fields of the fakes may be touched.
static void s_start(fixture *f)
{
    for (int i = 0; i < SHARDS; i++) {
        fake_shard_start(&f->shard[i]);
    }
    fake_coordinator_start(&f->co);
    assert_int_equal(pthread_create(&f->thread, NULL, s_run, f), 0);
}

static int s_join(fixture *f)
{
    pthread_join(f->thread, NULL);
    fake_coordinator_stop(&f->co);
    for (int i = 0; i < SHARDS; i++) {
        fake_shard_stop(&f->shard[i]);
    }
    return f->code;
}

// The loop pull -> gradient -> clip -> apply, without any of the machinery: steps of units 0 and 1.
static float *s_reference(fixture *f, double *loss_sum)
{
    float *params = calloc(f->manifest->numel, sizeof(float)), *grad = calloc(f->manifest->numel, sizeof(float));
    char why[512];
    for (uint32_t c = 0; c < f->manifest->n_chunks; c++) {
        ebb_manifest_init_chunk(f->manifest, 1, c, params + f->manifest->chunks[c].offset);
    }
    const ebb_model *model = ebb_model_family_find("mlp");
    const ebb_backend *k = ebb_backend_cpu();
    ebb_model_state *state = NULL;
    ebb_dataset *d = NULL;
    ebb_batch_buf buf;
    CHECK_OK(model->state_new(&f->config, k, 4, &state));
    CHECK_OK(ebb_dataset_open(&f->spec.job, &f->config, &d, why));
    CHECK_OK(ebb_batch_buf_init(d, 4, &buf));
    *loss_sum = 0;
    for (uint64_t stream = 0; stream < 2; stream++) {
        for (uint64_t seq = 1; seq <= 8; seq++) {
            ebb_step step;
            double loss;
            CHECK_OK(ebb_plan_step(ebb_dataset_plan(d), stream, seq, &step));
            CHECK_OK(ebb_dataset_train(d, &step, &buf, why));
            model->forward_backward(state, params, &buf.batch, grad, &loss);
            double norm = sqrt(k->sum_squares(grad, f->manifest->numel));
            if (norm > 0.5) {
                k->scale(grad, (float)(0.5 / norm), f->manifest->numel);
            }
            for (uint64_t i = 0; i < f->manifest->numel; i++) {
                params[i] -= f->shard[0].lr * grad[i];
            }
            *loss_sum += loss;
        }
    }
    ebb_batch_buf_fini(&buf);
    ebb_dataset_free(&d);
    model->state_free(&state);
    free(grad);
    return params;
}

static void s_check_range(fixture *f, const float *want)
{
    for (int i = 0; i < SHARDS; i++) {
        const ebb_chunk *a = &f->manifest->chunks[f->shard[i].first_chunk];
        const ebb_chunk *z = &f->manifest->chunks[f->shard[i].first_chunk + f->shard[i].chunk_count - 1];
        assert_memory_equal(f->shard[i].params + a->offset, want + a->offset, (z->offset + z->numel - a->offset) * sizeof(float));
    }
}

static void s_check_once(fixture *f, uint64_t stream, uint64_t steps)
{
    for (int i = 0; i < SHARDS; i++) {
        assert_int_equal(f->shard[i].applied[stream], steps);
        uint64_t applied = 0;
        for (uint32_t k = 0; k < f->shard[i].n_log; k++) {
            applied += f->shard[i].log[k].stream == stream && f->shard[i].log[k].verdict == EBB__VERDICT__VERDICT_APPLIED;
        }
        assert_int_equal(applied, steps);
    }
}

static void test_trainer_is_bit_for_bit_the_plain_loop(void **state)
{
    fixture *f = *state;
    double loss_sum;
    float *want = s_reference(f, &loss_sum);
    s_lease(f, EBB_LEASE_TRAIN, 0, 1, 8);
    s_lease(f, EBB_LEASE_TRAIN, 1, 1, 8);
    s_lease(f, EBB_LEASE_EVAL, 0, 0, 0);
    f->spec.consistency.look_ahead = 1; // alone, nobody moves the parameters meanwhile: nothing to look ahead to
    s_start(f);
    assert_int_equal(s_join(f), 0);
    s_check_range(f, want);
    for (uint32_t i = 0; i < f->shard[0].n_log; i++) {
        assert_true(f->shard[0].log[i].look_ahead == 0);
    }
    s_check_once(f, 0, 8);
    s_check_once(f, 1, 8);
    assert_int_equal(f->co.manifests, 1);
    assert_int_equal(f->co.returns, 2);
    assert_int_equal(f->co.returned_seq[0], 8);
    assert_string_equal(f->co.returned_reason[1], "complete");
    assert_int_equal(f->co.evals, 1);
    assert_int_equal(f->co.eval_samples, 8);
    assert_true(f->co.eval_loss > 0 && f->co.eval_loss < 10);
    assert_int_equal(f->co.leaves, 1);
    assert_int_equal(f->shard[0].whole_pulls, 2); // at the start, and for the evaluation
    assert_int_equal(f->co.loss_count, 16);
    assert_true(fabs(f->co.loss_sum - loss_sum) < 1e-9);
    assert_int_equal(f->co.steps, 16);
    assert_int_equal(f->co.samples, 64);
    assert_true(f->co.first_gradient_ms > 0);
    free(want);
}

static void test_trainer_window_applies_every_step_once(void **state)
{
    fixture *f = *state;
    f->spec.consistency.inflight_max = 3;
    s_lease(f, EBB_LEASE_TRAIN, 0, 1, 8);
    s_lease(f, EBB_LEASE_TRAIN, 1, 3, 8); // the first two were done by somebody
    f->shard[0].applied[1] = f->shard[1].applied[1] = 2;
    s_start(f);
    assert_int_equal(s_join(f), 0);
    s_check_once(f, 0, 8);
    assert_int_equal(f->shard[0].applied[1], 8);
    assert_int_equal(f->shard[1].applied[1], 8);
    for (uint32_t i = 0; i < f->shard[0].n_log; i++) {
        assert_true(f->shard[0].log[i].look_ahead == 0); // off
    }
}

// Steps in flight make gradients stale; the worker asks ahead by the share of the mean staleness that the job names.
static void test_trainer_looks_ahead_by_its_staleness(void **state)
{
    fixture *f = *state;
    f->spec.consistency.inflight_max = 3;
    f->spec.consistency.look_ahead = 0.5;
    s_lease(f, EBB_LEASE_TRAIN, 0, 1, 8);
    s_lease(f, EBB_LEASE_TRAIN, 1, 1, 8);
    s_start(f);
    assert_int_equal(s_join(f), 0);
    const fake_shard *s = &f->shard[0];
    assert_true(s->log[0].look_ahead == 0);
    double last = s->log[s->n_log - 1].look_ahead;
    assert_true(last > 0 && last <= 0.5 * 2); // at most two others of its own in flight
}

typedef struct script {
    fake_action action;
    uint64_t at;
    int times;
    fixture *f;
} script;

static fake_action s_decide(void *arg, const Ebb__Envelope *env)
{
    script *s = arg;
    if (env->body_case == EBB__ENVELOPE__BODY_PUSH_REQUEST && env->push_request->seq == s->at && s->times > 0) {
        s->times--;
        return s->action;
    }
    return FAKE_OBEY;
}

static void s_refused(fixture *f, fake_action action, int times, uint32_t inflight)
{
    script s = {.action = action, .at = 4, .times = times};
    f->spec.consistency.inflight_max = inflight;
    f->shard[1].decide_arg = &s;
    f->shard[1].decide = s_decide;
    s_lease(f, EBB_LEASE_TRAIN, 0, 1, 8);
    s_start(f);
    assert_int_equal(s_join(f), 0);
    s_check_once(f, 0, 8);
    assert_int_equal(f->co.returned_seq[0], 8);
    assert_int_equal(s.times, 0);
}

static void test_trainer_recomputes_after_stale(void **state)
{
    s_refused(*state, FAKE_STALE, 2, 1);
}

static void test_trainer_drops_the_window_after_stale(void **state)
{
    s_refused(*state, FAKE_STALE, 1, 4);
}

static void test_trainer_survives_lost_and_late_answers(void **state)
{
    s_refused(*state, FAKE_DROP_REPLY, 1, 2);
}

// One shard is a step behind the other (its process died before it had it): the unit is leased from the smaller watermark.
static void test_trainer_fills_a_hole(void **state)
{
    fixture *f = *state;
    f->shard[0].applied[0] = 5;
    f->shard[1].applied[0] = 3;
    s_lease(f, EBB_LEASE_TRAIN, 0, 4, 8);
    s_start(f);
    assert_int_equal(s_join(f), 0);
    assert_int_equal(f->shard[0].applied[0], 8);
    assert_int_equal(f->shard[1].applied[0], 8);
}

// The lease says 6, but a shard rolled back to 2 since: the worker goes back by itself.
static void test_trainer_goes_back_to_what_shards_lack(void **state)
{
    fixture *f = *state;
    f->shard[0].applied[0] = 5;
    f->shard[1].applied[0] = 2;
    s_lease(f, EBB_LEASE_TRAIN, 0, 6, 8);
    s_start(f);
    assert_int_equal(s_join(f), 0);
    assert_int_equal(f->shard[0].applied[0], 8);
    assert_int_equal(f->shard[1].applied[0], 8);
}

// Refused as bad three times: the coordinator decides to skip, and the unit goes on behind the hole.
static void test_trainer_asks_to_skip_what_cannot_be_computed(void **state)
{
    fixture *f = *state;
    script s = {.action = FAKE_BAD_VALUE, .at = 4, .times = 3};
    f->shard[0].decide = f->shard[1].decide = s_decide;
    f->shard[0].decide_arg = &s;
    script s1 = s;
    f->shard[1].decide_arg = &s1;
    f->co.skip_answer = true;
    s_lease(f, EBB_LEASE_TRAIN, 0, 1, 8);
    s_start(f);
    assert_int_equal(s_join(f), 0);
    assert_int_equal(f->co.skips, 1);
    assert_int_equal(f->shard[0].applied[0], 8);
    assert_int_equal(f->shard[1].applied[0], 8);
    for (uint32_t k = 0; k < f->shard[0].n_log; k++) {
        assert_false(f->shard[0].log[k].seq == 4 && f->shard[0].log[k].verdict == EBB__VERDICT__VERDICT_APPLIED);
    }
}

static void *s_kill_and_restart(void *arg)
{
    fixture *f = arg;
    while (f->shard[1].applied[0] < 3) {
        ebb_clock_sleep_ms(1);
    }
    fake_shard_stop(&f->shard[1]);
    ebb_clock_sleep_ms(300);
    fake_shard_start(&f->shard[1]);
    fake_coordinator_stop(&f->co); // and the coordinator is away while the unit is computed
    ebb_clock_sleep_ms(500);
    fake_coordinator_start(&f->co);
    return NULL;
}

static fake_action s_slowly(void *arg, const Ebb__Envelope *env)
{
    (void)arg;
    if (env->body_case == EBB__ENVELOPE__BODY_PUSH_REQUEST) {
        ebb_clock_sleep_ms(30);
    }
    return FAKE_OBEY;
}

static void test_trainer_survives_shard_and_coordinator(void **state)
{
    fixture *f = *state;
    double loss_sum;
    float *want = s_reference(f, &loss_sum);
    f->shard[0].decide = s_slowly;
    s_lease(f, EBB_LEASE_TRAIN, 0, 1, 8);
    s_lease(f, EBB_LEASE_TRAIN, 1, 1, 8);
    pthread_t t;
    s_start(f);
    assert_int_equal(pthread_create(&t, NULL, s_kill_and_restart, f), 0);
    pthread_join(t, NULL);
    assert_int_equal(s_join(f), 0);
    s_check_range(f, want); // bit for bit, all the same
    s_check_once(f, 0, 8);
    s_check_once(f, 1, 8);
    free(want);
}

static void test_trainer_abandons_a_lost_lease(void **state)
{
    fixture *f = *state;
    f->shard[0].decide = s_slowly;
    s_lease(f, EBB_LEASE_TRAIN, 0, 1, 8);
    s_lease(f, EBB_LEASE_TRAIN, 1, 1, 8);
    f->co.lose_lease = 1000; // the first one, as soon as it is heard of
    s_start(f);
    assert_int_equal(s_join(f), 0);
    assert_true(f->shard[0].applied[0] < 8);
    s_check_once(f, 1, 8);
    assert_int_equal(f->co.returns, 1);
    assert_int_equal(f->co.returned_lease[0], 1001);
}

static void test_trainer_drains_on_order(void **state)
{
    fixture *f = *state;
    f->shard[0].decide = s_slowly;
    f->co.hold = true;
    s_lease(f, EBB_LEASE_TRAIN, 0, 1, 8);
    s_start(f);
    while (f->shard[0].applied[0] < 2) {
        ebb_clock_sleep_ms(1);
    }
    f->co.drain = true;
    uint64_t start = ebb_clock_ms();
    assert_int_equal(s_join(f), 0);
    assert_true(ebb_clock_ms() - start < 5000);
    assert_int_equal(f->co.returns, 1);
    assert_int_equal(f->co.returned_seq[0], f->shard[0].applied[0]); // nothing that was acknowledged is computed again
    assert_string_equal(f->co.returned_reason[0], "drained");
    assert_int_equal(f->co.leaves, 1);
}

static void test_trainer_other_model_is_refused(void **state)
{
    fixture *f = *state;
    f->co.manifest_hash = 12345;
    s_start(f);
    assert_int_equal(s_join(f), 65);
    assert_int_equal(f->co.leaves, 1);
}

static void test_trainer_missing_data_is_refused(void **state)
{
    fixture *f = *state;
    f->spec.data.bytes++;
    s_start(f);
    assert_int_equal(s_join(f), 66);
    f->spec.data.path = "/nonexistent/rows.csv";
    s_start(f);
    assert_int_equal(s_join(f), 66);
    f->spec.model.family = "rnn";
    s_start(f);
    assert_int_equal(s_join(f), 65);
}

static void test_trainer_counter_counts(void **state)
{
    fixture *f = *state;
    ebb_manifest *m = NULL;
    char why[256];
    f->spec.model.family = "counter";
    f->spec.model.numel = 100;
    f->spec.data.format = "none";
    f->spec.optimizer.clip_norm = 0;
    CHECK_OK(ebb_modelspec_config(&f->spec.model, &f->config, why));
    CHECK_OK(ebb_model_manifest(&f->config, 16, &m, why));
    for (uint32_t i = 0; i < SHARDS; i++) {
        fake_shard_fini(&f->shard[i]);
        char endpoint[EBB_ENDPOINT_MAX];
        strcpy(endpoint, f->shard[i].endpoint);
        fake_shard_init(&f->shard[i], f->net, endpoint, m, i, i * 3, i == 0 ? 3 : 4, 1);
        f->shard[i].lr = 1.0f;
    }
    f->spec.consistency.inflight_max = 4;
    s_lease(f, EBB_LEASE_TRAIN, 0, 1, 8);
    s_lease(f, EBB_LEASE_TRAIN, 1, 1, 8);
    s_start(f);
    assert_int_equal(s_join(f), 0);
    for (uint32_t i = 0; i < 100; i++) {
        assert_true(f->shard[i < 48 ? 0 : 1].params[i] == 16.0f);
    }
    ebb_manifest_free(&m);
}

int main(void)
{
    ebb_log_open("test");
#define CASE(name) cmocka_unit_test_setup_teardown(name, s_setup, s_teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_trainer_is_bit_for_bit_the_plain_loop),
        CASE(test_trainer_looks_ahead_by_its_staleness),
        CASE(test_trainer_window_applies_every_step_once),
        CASE(test_trainer_recomputes_after_stale),
        CASE(test_trainer_drops_the_window_after_stale),
        CASE(test_trainer_survives_lost_and_late_answers),
        CASE(test_trainer_fills_a_hole),
        CASE(test_trainer_goes_back_to_what_shards_lack),
        CASE(test_trainer_asks_to_skip_what_cannot_be_computed),
        CASE(test_trainer_survives_shard_and_coordinator),
        CASE(test_trainer_abandons_a_lost_lease),
        CASE(test_trainer_drains_on_order),
        CASE(test_trainer_other_model_is_refused),
        CASE(test_trainer_missing_data_is_refused),
        CASE(test_trainer_counter_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
