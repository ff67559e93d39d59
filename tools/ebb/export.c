#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "core/clock.h"
#include "core/process.h"
#include "tools/ebb/fetch.h"
#include "tools/ebb/link.h"
#include "tools/ebb/supervisor.h"
#include "tools/ebb/verbs.h"

typedef struct arguments {
    const char *run, *out;
    int optimizer;
} arguments;

static const struct argp_option s_options[] = {
    {"out", 'o', "FILE", 0, "write here (needed)", 0},
    {"optimizer", 'O', 0, 0, "with the optimizer's state, as optimizer.SLOT.TENSOR", 0},
    {0},
};

static error_t s_parse(int key, char *arg, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case 'o':
        a->out = arg;
        return 0;
    case 'O':
        a->optimizer = 1;
        return 0;
    case ARGP_KEY_ARG:
        if (a->run != NULL) {
            argp_error(state, "one run at a time");
        }
        a->run = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->out == NULL) {
            argp_error(state, "--out FILE is needed");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// Number of shard folders.
static uint32_t s_shards(const ebb_rundir *dir)
{
    uint32_t n = 0;
    char leaf[32];
    for (;; n++) {
        snprintf(leaf, sizeof(leaf), "shard-%u", n);
        if (!ebb_rundir_has(dir, leaf)) {
            return n;
        }
    }
}

// A run that isn't live: its coordinator and shards are started for the while, without workers.
static ebb_status s_export_stopped(ebb_rundir *dir, const arguments *a, uint64_t *version, char *why)
{
    EBB_TRY(ebb_rundir_lock(dir, why));
    ebb_supervisor *s = malloc(sizeof(*s));
    if (s == NULL) {
        return EBB_NOMEM;
    }
    ebb_status st = ebb_rundir_create(dir, why);
    char endpoint[PATH_MAX]; // create may have put the sockets elsewhere
    ebb_rundir_endpoint(dir, "coordinator", endpoint, sizeof(endpoint));
    if (st == EBB_OK) {
        st = ebb_supervisor_init(s, dir, NULL, why);
    }
    if (st == EBB_OK) {
        uint32_t shards = s_shards(dir);
        ebb_supervisor_add(s, EBB_CHILD_COORDINATOR, 0);
        for (uint32_t i = 0; i < shards; i++) {
            ebb_supervisor_add(s, EBB_CHILD_SHARD, i);
        }
        st = ebb_supervisor_start_due(s, ebb_clock_ms());
        if (st == EBB_OK) {
            st = ebb_fetch_model(endpoint, a->out, a->optimizer, 30000, version, why);
        }
        ebb_link link;
        if (ebb_link_open(&link, endpoint) == EBB_OK && ebb_link_drain(&link, "exported", true, 2000) == EBB_OK) {
            ebb_supervisor_wait(s, ebb_clock_ms() + 10000);
        }
        ebb_link_close(&link);
        ebb_supervisor_end(s, ebb_stop_requested > 0 ? 2000 : 5000);
        ebb_rundir_remove_sockets(dir);
    }
    free(s);
    ebb_rundir_unlock(dir);
    return st;
}

int ebb_verb_export(int argc, char **argv)
{
    arguments a = {0};
    const struct argp argp = {
        s_options,
        s_parse,
        "[RUN]",
        "Writes the model as safetensors, taken from all shards at a pinned version.\vRUN is the run's folder; by default the newest in "
        "./runs. It may be running, stopped or finished.\n\n  ebb export runs/kjv-gpt --out model.safetensors",
        NULL,
        NULL,
        NULL};
    argp_err_exit_status = EX_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    ebb_rundir dir;
    char why[512] = "", endpoint[PATH_MAX];
    uint64_t version = 0;
    ebb_status st = ebb_rundir_pick(&dir, a.run, why);
    if (st != EBB_OK) {
        return ebb_complain(st, "%s", why);
    }
    ebb_process_signals();
    ebb_rundir_endpoint(&dir, "coordinator", endpoint, sizeof(endpoint));
    st = ebb_rundir_is_live(&dir) ? ebb_fetch_model(endpoint, a.out, a.optimizer, 30000, &version, why) : s_export_stopped(&dir, &a, &version, why);
    if (st != EBB_OK && ebb_stop_requested > 0) {
        fprintf(stderr, "stopped; %s was not written\n", a.out);
        return 128 + ebb_stop_signal;
    }
    if (st != EBB_OK) {
        return ebb_complain(st, "export failed: %s", why[0] ? why : ebb_status_str(st));
    }
    fprintf(stderr, "wrote %s (version %" PRIu64 ")\n", a.out, version);
    return 0;
}
