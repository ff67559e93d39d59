// ebb-worker: computes gradients for one job. It keeps no state of its own: it can be started anywhere and killed at any time.
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "core/limits.h"
#include "core/log.h"
#include "core/process.h"
#include "kernels/blas_core.h"
#include "worker/worker.h"

static const struct argp_option s_options[] = {
    {"coordinator", 'c', "ENDPOINT", 0, "Where the coordinator listens: ipc://PATH or tcp://HOST:PORT (required)", 0},
    {"name", 'n', "NAME", 0, "Name of this worker, unique in the job (required)", 0},
    {"threads", 't', "N", 0, "Threads of the math (default: as the job says)", 0},
    {"log", 'l', "FILE", 0, "Append log lines to FILE instead of stderr", 0},
    {0},
};

typedef struct arguments {
    ebb_worker_options worker;
    const char *log;
} arguments;

static error_t s_parse(int key, char *arg, struct argp_state *state)
{
    arguments *a = state->input;
    char *end;
    switch (key) {
    case 'c':
        a->worker.coordinator = arg;
        return 0;
    case 'n':
        if (arg[0] == '\0' || strlen(arg) >= EBB_NAME_MAX || strpbrk(arg, " \t\n\"/=") != NULL) {
            argp_error(state, "a name has 1 to %d characters, without spaces, quotes, '/' and '='", EBB_NAME_MAX - 1);
        }
        a->worker.name = arg;
        return 0;
    case 't': {
        long n = strtol(arg, &end, 10);
        if (end == arg || *end != '\0' || n < 1 || n > 1024) {
            argp_error(state, "threads must be a number from 1 to 1024, not \"%s\"", arg);
        }
        a->worker.threads = (int)n;
        return 0;
    }
    case 'l':
        a->log = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument \"%s\"", arg);
        return 0;
    case ARGP_KEY_END:
        if (a->worker.coordinator == NULL || a->worker.name == NULL) {
            argp_error(state, "--coordinator and --name are required");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void s_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "ebb-worker %s\n", ebb_build_info());
}

int main(int argc, char **argv)
{
    ebb_blas_core_tune(argv);
    static const struct argp argp = {.options = s_options, .parser = s_parse, .doc = "Computes gradients for an Ebbtide job."};
    arguments a = {0};
    argp_err_exit_status = EX_USAGE;
    argp_program_version_hook = s_version;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    ebb_log_open(a.worker.name);
    if (a.log != NULL && ebb_log_to_file(a.log) != EBB_OK) {
        fprintf(stderr, "ebb-worker %s: cannot write the log file %s\n", a.worker.name, a.log);
        return EX_CANTCREAT;
    }
    a.worker.stop_fd = ebb_process_signals();
    a.worker.logs_to_file = a.log != NULL;
    a.worker.overdue_exit = true;
    return ebb_worker_run(&a.worker);
}
