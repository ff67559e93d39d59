#include <argp.h>
#include <unistd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "coordinator/jobspec.h"
#include "core/process.h"
#include "core/rng.h"
#include "tools/ebb/fetch.h"
#include "tools/ebb/safetensors.h"
#include "tools/ebb/verbs.h"
#include "worker/models/sampler.h"
#include "worker/modelspec.h"

typedef struct arguments {
    const char *run, *prompt;
    size_t bytes;
    double temperature;
    uint32_t top_k;
    uint64_t seed;
    bool live;
} arguments;

static const struct argp_option s_options[] = {
    {"prompt", 'p', "TEXT", 0, "go on from this text", 0},
    {"bytes", 'n', "N", 0, "how many bytes to write (400)", 0},
    {"temperature", 't', "T", 0, "0: always the likeliest byte; 1: as the model has it (0.8)", 0},
    {"top-k", 'k', "K", 0, "choose among the K likeliest only (40; 0: all)", 0},
    {"seed", 's', "N", 0, "same seed, same text (default: random)", 0},
    {"live", 'l', 0, 0, "take the model as it is now out of a running run", 0},
    {0},
};

static double s_number(const char *arg, double min, double max, struct argp_state *state, const char *what)
{
    char *end;
    double v = strtod(arg, &end);
    if (end == arg || *end != '\0' || !(v >= min && v <= max)) {
        argp_error(state, "%s: expected a number from %g to %g, not \"%s\"", what, min, max, arg);
    }
    return v;
}

static error_t s_parse(int key, char *arg, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case 'p':
        a->prompt = arg;
        return 0;
    case 'n':
        a->bytes = (size_t)s_number(arg, 1, 1e7, state, "--bytes");
        return 0;
    case 't':
        a->temperature = s_number(arg, 0, 100, state, "--temperature");
        return 0;
    case 'k':
        a->top_k = (uint32_t)s_number(arg, 0, 1e6, state, "--top-k");
        return 0;
    case 's':
        a->seed = (uint64_t)s_number(arg, 0, 9e15, state, "--seed");
        return 0;
    case 'l':
        a->live = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->run != NULL) {
            argp_error(state, "one run at a time");
        }
        a->run = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int s_emit(void *arg, int32_t token)
{
    (void)arg;
    static int tty = -1;
    tty = tty < 0 ? isatty(1) : tty;
    // What a model says must not command the terminal.
    bool odd = token >= 256 || (tty && ((token < ' ' && token != '\n' && token != '\t') || (token >= 0x7f && token < 0xa0)));
    putchar(odd ? '?' : token);
    return fflush(stdout) != 0 || ebb_stop_requested > 0;
}

// The flat parameters of the configuration out of a model file: every tensor by name and shape.
static ebb_status s_load(const char *path, const ebb_model_config *config, float **params, char *why)
{
    ebb_manifest *m = NULL;
    ebb_st_file f;
    EBB_TRY(ebb_model_manifest(config, EBB_CHUNK_ELEMS_DEFAULT, &m, why));
    ebb_status st = ebb_safetensors_open(path, &f, why);
    if (st == EBB_OK) {
        *params = malloc(m->numel * sizeof(float));
        st = *params != NULL ? EBB_OK : EBB_NOMEM;
        for (size_t i = 0; st == EBB_OK && i < m->n_tensors; i++) {
            const ebb_tensor *want = &m->tensors[i];
            const ebb_st_tensor *t = ebb_safetensors_find(&f, want->name);
            if (t == NULL || t->ndim != want->ndim || memcmp(t->ne, want->ne, want->ndim * sizeof(*want->ne)) != 0) {
                snprintf(why, 512, "%.300s: tensor %.100s is missing or has another shape", path, want->name);
                st = EBB_CONFIG;
                break;
            }
            memcpy(*params + want->offset, t->data, t->numel * sizeof(float));
        }
        ebb_safetensors_close(&f);
    }
    ebb_manifest_free(&m);
    return st;
}

ebb_status ebb_sample_file(const ebb_rundir *dir, const char *file, const char *prompt, size_t count, double temperature, uint32_t top_k,
                           uint64_t seed, char *why)
{
    char job[PATH_MAX], *errors = NULL;
    size_t errors_len = 0;
    Ebb__JobSpec *spec = NULL;
    ebb_model_config config;
    float *params = NULL;
    ebb_rundir_file(dir, "job.yaml", job);
    FILE *text = open_memstream(&errors, &errors_len);
    ebb_status st = ebb_jobspec_read(job, &spec, text);
    fclose(text);
    if (st != EBB_OK) {
        snprintf(why, 512, "%.*s", (int)strcspn(errors, "\n"), errors);
    }
    free(errors);
    EBB_TRY(st);
    EBB_TRY_GOTO(ebb_modelspec_config(spec->model, &config, why), st, out);
    if (strcmp(config.family, "gpt") != 0) {
        snprintf(why, 512, "only a gpt can write; this job's model is a %s", config.family);
        st = EBB_CONFIG;
        goto out;
    }
    EBB_TRY_GOTO(s_load(file, &config, &params, why), st, out);
    size_t n = strlen(prompt);
    int32_t *tokens = malloc((n + 1) * sizeof(*tokens));
    for (size_t i = 0; i < n && tokens != NULL; i++) {
        tokens[i] = (unsigned char)prompt[i];
    }
    ebb_sampler_options options = {.temperature = temperature, .top_k = top_k, .seed = seed};
    fputs(prompt, stdout);
    st = tokens == NULL ? EBB_NOMEM : ebb_sampler_run(&config, params, tokens, n, count, &options, s_emit, NULL);
    putchar('\n');
    free(tokens);
out:
    free(params);
    ebb_jobspec_free(&spec);
    return st;
}

int ebb_verb_sample(int argc, char **argv)
{
    arguments a = {.prompt = "", .bytes = 400, .temperature = 0.8, .top_k = 40, .seed = ebb_rng_system()};
    const struct argp argp = {
        s_options,
        s_parse,
        "[RUN]",
        "Lets the gpt of a run write.\vRUN is the run's folder; by default the newest in ./runs.\n\n  ebb sample --prompt 'And God said' --bytes 200",
        NULL,
        NULL,
        NULL};
    argp_err_exit_status = EX_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    ebb_rundir dir;
    char why[512] = "", file[PATH_MAX], endpoint[PATH_MAX];
    ebb_status st = ebb_rundir_pick(&dir, a.run, why);
    if (st != EBB_OK) {
        return ebb_complain(st, "%s", why);
    }
    ebb_process_signals();
    ebb_rundir_file(&dir, a.live ? "live.safetensors" : "model.safetensors", file);
    if (a.live) {
        uint64_t version;
        ebb_rundir_endpoint(&dir, "coordinator", endpoint, sizeof(endpoint));
        st = ebb_rundir_is_live(&dir) ? ebb_fetch_model(endpoint, file, 0, 10000, &version, why) : EBB_NOENT;
        if (st != EBB_OK) {
            return ebb_complain(st, "cannot take the model out of %s: %s", dir.path, why[0] ? why : "it is not running");
        }
    } else if (!ebb_rundir_has(&dir, "model.safetensors")) {
        return ebb_complain(EBB_NOENT,
                            "%s has no finished model yet: --live samples a running one; a stopped one writes its model with: ebb export %s --out "
                            "%s/model.safetensors",
                            dir.path, dir.path, dir.path);
    }
    if (ebb_stop_requested > 0) {
        return 128 + ebb_stop_signal;
    }
    st = ebb_sample_file(&dir, file, a.prompt, a.bytes, a.temperature, a.top_k, a.seed, why);
    if (ebb_stop_requested > 0) {
        return 128 + ebb_stop_signal;
    }
    return st == EBB_OK ? 0 : ebb_complain(st, "%s", why[0] ? why : ebb_status_str(st));
}
