#include "worker/worker.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/process.h"
#include "worker/modelspec.h"
#include "worker/trainer.h"

#define LAST_BEAT_UNTIL_MS 3200 // after an order to stop
#define LAST_BEAT_MS 500
#define LEAVE_UNTIL_MS 3700
#define LEAVE_MS 1000
#define INFLIGHT_MAX 64

typedef struct worker {
    const ebb_worker_options *options;
    ebb_stats stats;
    ebb_session *session;
    ebb_control *control;
    ebb_agent *agent;
    ebb_dataset *dataset;
    ebb_manifest *manifest;
    ebb_model_config config;
    ebb_trainer trainer;
} worker;

static int s_exit_code(ebb_status st)
{
    switch (st) {
    case EBB_CLOSED: // ordered to stop before there was anything to do
        return EX_OK;
    case EBB_EXISTS: // another model is registered
    case EBB_INVAL:
        return EX_DATAERR;
    default:
        return ebb_process_exit_code(st);
    }
}

static int __attribute__((format(printf, 3, 4))) s_fail(const worker *w, ebb_status st, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    int code = s_exit_code(st);
    if (code != EX_OK) {
        fprintf(stderr, "ebb-worker %s: %s\n", w->options->name, text);
        if (w->options->logs_to_file) { // else the line above already is where the log goes
            EBB_LOG(ERROR, "worker", "failed", "status=%s exit=%d reason=\"%s\"", ebb_status_name(st), code, text);
        }
    }
    return code;
}

// Milliseconds, at most `most`, that may still be used when the order to stop came at stop_ms (0: it did not) and `until` after it must be kept.
static uint32_t s_left(uint64_t stop_ms, uint32_t until, uint32_t most)
{
    uint64_t now = ebb_clock_ms(), end = stop_ms + until;
    uint64_t left = stop_ms == 0 ? most : end > now ? end - now : 1;
    return left < most ? (uint32_t)left : most;
}

// Model, data and registration: everything that can be wrong for good.
static int s_prepare(worker *w)
{
    const Ebb__JobSpec *spec = ebb_session_spec(w->session);
    char why[640] = "";
    ebb_status st = ebb_modelspec_config(spec->model, &w->config, why);
    if (st != EBB_OK) {
        return s_fail(w, st, "job \"%s\": %s", spec->name, why);
    }
    st = ebb_dataset_open(spec, &w->config, &w->dataset, why);
    if (st != EBB_OK) {
        return s_fail(w, st, "%s", why);
    }
    st = ebb_model_manifest(&w->config, spec->chunk_elems > 0 ? spec->chunk_elems : EBB_CHUNK_ELEMS_DEFAULT, &w->manifest, why);
    if (st != EBB_OK) {
        return s_fail(w, st, "job \"%s\": %s", spec->name, why);
    }
    uint64_t mine = ebb_manifest_hash(w->manifest), theirs = ebb_session_manifest_hash(w->session);
    if (theirs == 0 || theirs != mine) {
        st = ebb_manifest_register(w->control, w->manifest, &theirs, 0);
    }
    if (st == EBB_EXISTS) {
        return s_fail(w, EBB_CONFIG,
                      "this program makes another model of the job's description (manifest %016" PRIx64 ") than the one the job was "
                      "started with (%016" PRIx64 "): run the same version of ebb-worker everywhere",
                      mine, theirs);
    }
    if (st != EBB_OK) {
        return s_fail(w, st, "registering the model: %s", ebb_control_why(w->control));
    }
    return EX_OK;
}

static int s_trainer_init(worker *w)
{
    const Ebb__JobSpec *spec = ebb_session_spec(w->session);
    ebb_trainer *t = &w->trainer;
    uint32_t inflight = spec->consistency->inflight_max;
    int threads = w->options->threads > 0 ? w->options->threads : spec->worker_threads > 0 ? (int)spec->worker_threads : 1;
    *t = (ebb_trainer){.session = w->session,
                       .control = w->control,
                       .agent = w->agent,
                       .stats = &w->stats,
                       .spec = spec,
                       .manifest = w->manifest,
                       .config = &w->config,
                       .model = ebb_model_family_find(w->config.family),
                       .backend = ebb_backend_cpu(),
                       .dataset = w->dataset,
                       .inflight_max = inflight < 1              ? 1
                                       : inflight > INFLIGHT_MAX ? INFLIGHT_MAX
                                                                 : inflight};
    ebb_status st = ebb_backend_cpu_threads(threads);
    if (st == EBB_OK) {
        st = t->model->state_new(&w->config, t->backend, spec->batch, &t->state);
    }
    if (st == EBB_OK) {
        st = ebb_gradbuf_new(w->manifest, t->inflight_max + 1, &t->gradbuf);
    }
    if (st == EBB_OK) {
        st = ebb_prefetch_start(w->dataset, &t->prefetch);
    }
    if (st == EBB_OK) {
        t->params = calloc(w->manifest->numel, sizeof(float));
        st = t->params != NULL ? ebb_view_new(w->session, &t->view) : EBB_NOMEM;
    }
    if (st != EBB_OK) {
        return s_fail(w, st, "a model of %" PRIu64 " parameters with batch %u: %s", w->manifest->numel, spec->batch, ebb_status_str(st));
    }
    EBB_LOG(INFO, "worker", "ready", "job=%s family=%s parameters=%" PRIu64 " shards=%u batch=%u inflight=%u threads=%d ms=%" PRIu64, spec->name,
            w->config.family, w->manifest->numel, ebb_session_shards(w->session), spec->batch, t->inflight_max, threads,
            (ebb_clock_ns() - w->stats.start_ns) / 1000000u);
    return EX_OK;
}

static void s_trainer_fini(ebb_trainer *t)
{
    ebb_prefetch_stop(&t->prefetch);
    ebb_view_free(&t->view);
    ebb_gradbuf_free(&t->gradbuf);
    if (t->state != NULL) {
        t->model->state_free(&t->state);
    }
    free(t->params);
    free(t->eval_params);
}

static int s_work(worker *w)
{
    ebb_status st = ebb_session_new(
        &(ebb_session_options){.coordinator = w->options->coordinator, .worker = w->options->name, .cancel = &ebb_stop_requested}, &w->session);
    if (st != EBB_OK) {
        return s_fail(w, st, "coordinator \"%s\" or name \"%s\" cannot be used: %s", w->options->coordinator, w->options->name, ebb_status_str(st));
    }
    st = ebb_control_new(w->session, &w->control);
    if (st != EBB_OK) {
        return s_fail(w, st, "coordinator \"%s\": not an endpoint (ipc://PATH or tcp://HOST:PORT)", w->options->coordinator);
    }
    st = ebb_join(w->control, 0);
    if (st != EBB_OK) {
        return s_fail(w, st == EBB_NOENT ? EBB_REMOTE : st, "joining: %s", ebb_control_why(w->control));
    }
    int code = s_prepare(w);
    if (code != EX_OK) {
        ebb_leave(w->control, "cannot take part", LEAVE_MS);
        return code;
    }
    st = ebb_agent_start(w->session, &w->stats, w->options->stop_fd, w->options->overdue_exit, &w->agent);
    if (st != EBB_OK) {
        return s_fail(w, st, "cannot start a thread: %s", ebb_status_str(st));
    }
    ebb_control_set_cancel(w->control, ebb_agent_stopping(w->agent));
    st = ebb_connect(w->control, w->manifest, 0);
    code = st == EBB_OK ? s_trainer_init(w) : s_fail(w, st, "connecting to the shards: %s", ebb_control_why(w->control));
    if (code == EX_OK && st == EBB_OK) {
        st = ebb_trainer_run(&w->trainer);
        code = s_fail(w, st, "%s", w->trainer.why);
    }
    const char *reason = code != EX_OK ? "failed" : ebb_agent_reason(w->agent)[0] != '\0' ? ebb_agent_reason(w->agent) : "finished";
    uint64_t stop_ms = ebb_agent_stop_ms(w->agent);
    ebb_agent_stop(&w->agent, s_left(stop_ms, LAST_BEAT_UNTIL_MS, LAST_BEAT_MS)); // with a last heartbeat: all losses are counted
    ebb_control_set_cancel(w->control, NULL);
    ebb_leave(w->control, reason, s_left(stop_ms, LEAVE_UNTIL_MS, LEAVE_MS));
    EBB_LOG(INFO, "worker", "left", "reason=%s steps=%" PRIu64 " samples=%" PRIu64 " compute_s=%.3f wait_s=%.3f data_s=%.3f", reason,
            (uint64_t)w->stats.steps, (uint64_t)w->stats.samples, (double)w->stats.compute_ns / 1e9, (double)w->stats.wait_ns / 1e9,
            (double)w->stats.data_ns / 1e9);
    return code;
}

int ebb_worker_run(const ebb_worker_options *options)
{
    worker *w = calloc(1, sizeof(*w));
    if (w == NULL) {
        fprintf(stderr, "ebb-worker: out of memory\n");
        return EX_SOFTWARE;
    }
    w->options = options;
    ebb_stats_init(&w->stats);
    int code = s_work(w);
    s_trainer_fini(&w->trainer);
    if (w->agent != NULL) {
        ebb_agent_stop(&w->agent, 0);
    }
    ebb_control_free(&w->control);
    ebb_session_free(&w->session);
    ebb_manifest_free(&w->manifest);
    ebb_dataset_free(&w->dataset);
    ebb_stats_fini(&w->stats);
    free(w);
    return code;
}
