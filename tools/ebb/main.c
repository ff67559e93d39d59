// ebb: the command a person uses.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

#include "core/log.h"
#include "core/process.h"
#include "kernels/blas_core.h"
#include "tools/ebb/verbs.h"

typedef struct verb {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} verb;

static int s_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    printf("ebb %s\n", ebb_build_info());
    return 0;
}

static const verb s_verbs[] = {
    {"run", ebb_verb_run, "train a job on this machine: coordinator, shards and workers are started and supervised"},
    {"status", ebb_verb_status, "how a run is doing, or how it ended"},
    {"events", ebb_verb_events, "what happened in a run"},
    {"explain", ebb_verb_explain, "why there are as many workers as there are"},
    {"export", ebb_verb_export, "write the model (and optimizer state) as safetensors"},
    {"sample", ebb_verb_sample, "let a trained gpt write"},
    {"version", s_version, "version and build"},
};
#define N_VERBS (sizeof(s_verbs) / sizeof(s_verbs[0]))

int ebb_complain(ebb_status st, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("ebb: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return ebb_process_exit_code(st);
}

static void s_usage(FILE *out)
{
    fprintf(out, "Usage: ebb VERB [ARGUMENT...]\n\nTrains one model on machines that come and go.\n\n");
    for (size_t i = 0; i < N_VERBS; i++) {
        fprintf(out, "  %-8s  %s\n", s_verbs[i].name, s_verbs[i].help);
    }
    fprintf(out, "\nebb VERB --help tells more. For example:\n\n  ebb run examples/digits-mlp.yaml\n  ebb status --watch\n  ebb sample --prompt 'In "
                 "the beginning'\n");
}

// Edit distance, two letters that changed places counting as one; names are short.
static size_t s_distance(const char *a, const char *b)
{
    size_t d[16][16], n = strlen(a), m = strlen(b);
    if (n >= 16 || m >= 16) {
        return 16;
    }
    for (size_t i = 0; i <= n; i++) {
        for (size_t j = 0; j <= m; j++) {
            size_t best = i == 0 ? j : j == 0 ? i : d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (i > 0 && j > 0) {
                best = d[i - 1][j] + 1 < best ? d[i - 1][j] + 1 : best;
                best = d[i][j - 1] + 1 < best ? d[i][j - 1] + 1 : best;
            }
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best) {
                best = d[i - 2][j - 2] + 1;
            }
            d[i][j] = best;
        }
    }
    return d[n][m];
}

static const char *s_nearest(const char *name)
{
    size_t best = 3;
    const char *found = NULL;
    for (size_t i = 0; i < N_VERBS; i++) {
        size_t distance = s_distance(name, s_verbs[i].name);
        if (distance < best) {
            best = distance;
            found = s_verbs[i].name;
        }
    }
    return found;
}

int main(int argc, char **argv)
{
    ebb_blas_core_tune(argv);
    ebb_log_open("ebb");
    ebb_log_set_level(EBB_LOG_ERROR);
    if (argc < 2) {
        s_usage(stderr);
        return EX_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        s_usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        return s_version(argc, argv);
    }
    for (size_t i = 0; i < N_VERBS; i++) {
        if (strcmp(argv[1], s_verbs[i].name) == 0) {
            static char title[64];
            snprintf(title, sizeof(title), "ebb %s", argv[1]);
            argv[1] = title; // argp shows this as the program's name
            return s_verbs[i].run(argc - 1, argv + 1);
        }
    }
    const char *near = s_nearest(argv[1]);
    return ebb_complain(EBB_INVAL, "unknown verb \"%s\"%s%s%s; ebb --help lists them", argv[1], near ? " (did you mean \"" : "", near ? near : "",
                        near ? "\"?)" : "");
}
