#include "tools/ebb/fetch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ebb.h"
#include "core/clock.h"
#include "core/process.h"
#include "core/rng.h"
#include "tools/ebb/safetensors.h"

#define PIN_TTL_MS 60000

#define SLICE_MS 100

// Waits for a request and keeps its result's numbers. CLOSED: the user stops us.
static ebb_status s_finish(ebb_request **request, uint32_t timeout_ms, float *out, ebb_result *result, char *why)
{
    uint64_t until = ebb_clock_ms() + timeout_ms;
    ebb_status st = ebb_request_wait(*request, timeout_ms < SLICE_MS ? timeout_ms : SLICE_MS);
    while (st == EBB_TIMEDOUT && ebb_clock_ms() < until && ebb_stop_requested == 0) {
        st = ebb_request_wait(*request, SLICE_MS);
    }
    const ebb_result *r = st == EBB_TIMEDOUT ? NULL : ebb_request_result(*request);
    if (st == EBB_OK && out != NULL) {
        ebb_request_copy(*request, out);
    }
    if (r != NULL && result != NULL) {
        *result = *r;
    }
    if (st == EBB_TIMEDOUT && ebb_stop_requested > 0) {
        st = EBB_CLOSED;
        snprintf(why, 512, "stopped");
    } else if (st != EBB_OK) {
        snprintf(why, 512, "the shards did not answer well: %s%s%.300s", ebb_status_str(st), r && r->why[0] ? ": " : "", r ? r->why : "");
    }
    ebb_request_free(request);
    return st;
}

static void s_name_tensors(const ebb_manifest *m, const float *values, const char *prefix, ebb_st_tensor *out)
{
    for (size_t i = 0; i < m->n_tensors; i++) {
        const ebb_tensor *t = &m->tensors[i];
        snprintf(out[i].name, sizeof(out[i].name), "%s%s", prefix, t->name);
        out[i].ndim = t->ndim;
        memcpy(out[i].ne, t->ne, sizeof(t->ne));
        out[i].numel = t->numel;
        out[i].data = values + t->offset;
    }
}

// What the slots hold, in the optimizers' order.
static const char *s_slot_name(const char *optimizer, uint32_t slot)
{
    if (strcmp(optimizer, "adam") == 0 || strcmp(optimizer, "adamw") == 0) {
        return slot == 1 ? "m" : "v";
    }
    return strcmp(optimizer, "adagrad") == 0 ? "sum" : "momentum";
}

static ebb_status s_pull_all(ebb_session *session, uint64_t pin, int optimizer, const char *path, uint32_t timeout_ms, uint64_t *version, char *why)
{
    const ebb_manifest *m = ebb_session_manifest(session);
    const Ebb__JobSpec *spec = ebb_session_spec(session);
    ebb_result result = {0};
    ebb_request *request = NULL;
    float *values[8] = {NULL};
    uint32_t slots = 0, n = 0;
    ebb_st_tensor *tensors = calloc(m->n_tensors * 8, sizeof(*tensors));
    ebb_status st = EBB_NOMEM;
    for (uint32_t slot = 0; slot <= slots && slot < 8; slot++, n++) {
        values[slot] = malloc(m->numel * sizeof(float) + 64);
        if (values[slot] == NULL || tensors == NULL) {
            st = EBB_NOMEM;
            snprintf(why, 512, "out of memory for %" PRIu64 " parameters", m->numel);
            goto out;
        }
        ebb_pull_options options = {.pin = pin, .slot = slot};
        EBB_TRY_GOTO(ebb_pull(session, &options, &request), st, out);
        EBB_TRY_GOTO(s_finish(&request, timeout_ms, values[slot], &result, why), st, out);
        char prefix[64] = "";
        if (slot == 0) {
            *version = result.version;
            slots = optimizer ? result.slots : 0;
        } else {
            snprintf(prefix, sizeof(prefix), "optimizer.%s.", s_slot_name(spec->optimizer->name, slot));
        }
        s_name_tensors(m, values[slot], prefix, tensors + slot * m->n_tensors);
    }
    ebb_st_meta meta[5] = {{.key = "format"}, {.key = "job"}, {.key = "version"}, {.key = "family"}, {.key = "optimizer_steps"}};
    snprintf(meta[0].value, sizeof(meta[0].value), "pt");
    snprintf(meta[1].value, sizeof(meta[1].value), "%s", spec->name);
    snprintf(meta[2].value, sizeof(meta[2].value), "%" PRIu64, *version);
    snprintf(meta[3].value, sizeof(meta[3].value), "%s", spec->model->family);
    snprintf(meta[4].value, sizeof(meta[4].value), "%" PRIu64, result.step_count);
    st = ebb_safetensors_write(path, tensors, n * m->n_tensors, meta, optimizer ? 5 : 4, why);
out:
    for (int i = 0; i < 8; i++) {
        free(values[i]);
    }
    free(tensors);
    return st;
}

ebb_status ebb_fetch_model(const char *endpoint, const char *path, int optimizer, uint32_t timeout_ms, uint64_t *version, char *why)
{
    ebb_session *session = NULL;
    ebb_control *control = NULL;
    ebb_request *request = NULL;
    ebb_session_options options = {.coordinator = endpoint, .cancel = &ebb_stop_requested};
    ebb_status st;
    snprintf(why, 512, "the coordinator does not answer");
    EBB_TRY_GOTO(ebb_session_new(&options, &session), st, out);
    EBB_TRY_GOTO(ebb_control_new(session, &control), st, out);
    EBB_TRY_GOTO(ebb_attach(control, timeout_ms), st, out);
    if (ebb_session_manifest(session) == NULL) {
        snprintf(why, 512, "the job has no model yet: no worker has joined");
        st = EBB_NOENT;
        goto out;
    }
    snprintf(why, 512, "the shards are not ready");
    EBB_TRY_GOTO(ebb_connect(control, NULL, timeout_ms), st, out);
    uint64_t pin = ebb_rng_system();
    EBB_TRY_GOTO(ebb_pin(session, pin, PIN_TTL_MS, &request), st, out);
    EBB_TRY_GOTO(s_finish(&request, timeout_ms, NULL, NULL, why), st, out);
    st = s_pull_all(session, pin, optimizer, path, timeout_ms, version, why);
    char ignored[512];
    if (ebb_unpin(session, pin, &request) == EBB_OK) {
        s_finish(&request, 2000, NULL, NULL, ignored);
    }
out:
    ebb_control_free(&control);
    ebb_session_free(&session);
    return st;
}
