#include "worker/evaluate.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/rng.h"

#define PIN_TTL_MS 60000
#define SLICE_MS 50
#define UNPIN_WAIT_MS 500

static bool s_give_up(const ebb_trainer *t, const ebb_lease *lease)
{
    return atomic_load(ebb_agent_stopping(t->agent)) != 0 || ebb_agent_lost(t->agent, lease->id);
}

// Waits for a request, with an eye on orders. CLOSED: given up (request freed).
static ebb_status s_wait(ebb_trainer *t, const ebb_lease *lease, ebb_request **r)
{
    uint64_t start = ebb_clock_ns();
    ebb_status st;
    while ((st = ebb_request_wait(*r, SLICE_MS)) == EBB_TIMEDOUT) {
        if (s_give_up(t, lease)) {
            ebb_request_free(r);
            st = EBB_CLOSED;
            break;
        }
    }
    t->stats->wait_ns += ebb_clock_ns() - start;
    return st;
}

// One attempt to get a consistent copy. NOENT: a pin was lost on the way (a shard was replaced).
static ebb_status s_fetch(ebb_trainer *t, const ebb_lease *lease, uint64_t *version)
{
    ebb_request *r = NULL;
    uint64_t pin = ebb_rng_system();
    EBB_TRY(ebb_pin(t->session, pin, PIN_TTL_MS, &r));
    ebb_status st = s_wait(t, lease, &r);
    if (r != NULL) {
        *version = st == EBB_OK ? ebb_request_result(r)->version : 0;
        ebb_request_free(&r);
    }
    if (st == EBB_OK) {
        ebb_pull_options o = {.pin = pin};
        st = ebb_pull(t->session, &o, &r);
        st = st == EBB_OK ? s_wait(t, lease, &r) : st;
        if (st == EBB_OK) {
            ebb_request_copy(r, t->eval_params);
        }
        ebb_request_free(&r);
    }
    if (ebb_unpin(t->session, pin, &r) == EBB_OK) {                         // also when it failed: some shards may hold it
        ebb_request_wait(r, ebb_trainer_time_left(t, 1000, UNPIN_WAIT_MS)); // else its time runs out
        ebb_request_free(&r);
    }
    return st;
}

static ebb_status s_compute(ebb_trainer *t, const ebb_lease *lease, double *loss, double *accuracy, uint64_t *samples)
{
    ebb_batch_buf buf;
    char why[512] = "";
    uint64_t total = ebb_dataset_held_out(t->dataset), done = 0;
    double loss_sum = 0, right_sum = 0;
    EBB_TRY(ebb_batch_buf_init(t->dataset, t->spec->batch, &buf));
    ebb_status st = EBB_OK;
    while (done < total && st == EBB_OK) {
        if (s_give_up(t, lease)) {
            st = EBB_CLOSED;
            break;
        }
        uint32_t n = total - done < t->spec->batch ? (uint32_t)(total - done) : t->spec->batch;
        uint64_t start = ebb_clock_ns();
        st = ebb_dataset_eval(t->dataset, done, n, &buf, why);
        uint64_t read = ebb_clock_ns();
        t->stats->data_ns += read - start;
        if (st != EBB_OK) {
            snprintf(t->why, sizeof(t->why), "evaluation: %s", why);
            break;
        }
        double l = 0, a = 0;
        t->model->forward(t->state, t->eval_params, &buf.batch, &l, &a);
        t->stats->compute_ns += ebb_clock_ns() - read;
        loss_sum += l * n;
        right_sum += a * n;
        done += n;
    }
    ebb_batch_buf_fini(&buf);
    *samples = done;
    *loss = done > 0 ? loss_sum / (double)done : 0;
    *accuracy = done > 0 ? right_sum / (double)done : 0;
    return st;
}

ebb_status ebb_evaluate(ebb_trainer *t, const ebb_lease *lease)
{
    if (t->eval_params == NULL) {
        t->eval_params = malloc((size_t)t->manifest->numel * sizeof(float));
        if (t->eval_params == NULL) {
            snprintf(t->why, sizeof(t->why), "out of memory for a second copy of %" PRIu64 " parameters", t->manifest->numel);
            return EBB_NOMEM;
        }
    }
    double loss = 0, accuracy = 0;
    uint64_t samples = 0, version = 0, start = ebb_clock_ms();
    ebb_status st = EBB_NOENT;
    while (st == EBB_NOENT || st == EBB_WRONGSHARD) { // a shard was replaced between pin and pull: again, while the lease is ours
        if (s_give_up(t, lease)) {
            return EBB_OK;
        }
        st = s_fetch(t, lease, &version);
        if (st == EBB_NOENT || st == EBB_WRONGSHARD) {
            ebb_clock_sleep_ms(SLICE_MS);
        }
    }
    if (st == EBB_CLOSED) {
        return EBB_OK;
    }
    if (st != EBB_OK) {
        EBB_LOG(WARN, "worker", "evaluation-failed", "eval=%" PRIu64 " status=%s action=\"left to another worker\"", lease->eval_id,
                ebb_status_name(st));
        return EBB_OK;
    }
    st = s_compute(t, lease, &loss, &accuracy, &samples);
    if (st != EBB_OK) {
        // A bad held-out record would be bad for everybody: better a clear end than an evaluation that is never finished.
        return st == EBB_CLOSED ? EBB_OK : st == EBB_BADVALUE ? EBB_CONFIG : st;
    }
    st = ebb_eval_report(t->control, lease->id, lease->eval_id, loss, accuracy, samples, version, 0);
    EBB_LOG(INFO, "worker", "evaluated",
            "eval=%" PRIu64 " version=%" PRIu64 " samples=%" PRIu64 " loss=%.6f accuracy=%.4f ms=%" PRIu64 " reported=%s", lease->eval_id, version,
            samples, loss, accuracy, ebb_clock_ms() - start, ebb_status_name(st));
    return EBB_OK;
}
