// ebb-coordinator: hands out work, keeps the ledger, answers status.
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "coordinator/jobspec.h"
#include "coordinator/rpc.h"
#include "coordinator/statecheck.h"
#include "core/clock.h"
#include "core/kvstore.h"
#include "core/log.h"
#include "core/process.h"

typedef struct arguments {
    const char *bind, *dir, *job, *data, *log, *http;
    bool print_doc;
    const char *check, *dump; // look at a folder instead of serving
    bool json;
} arguments;

enum { KEY_BIND = 256, KEY_DIR, KEY_JOB, KEY_DATA, KEY_LOG, KEY_DOC, KEY_HTTP, KEY_CHECK, KEY_DUMP, KEY_JSON };

static const struct argp_option s_options[] = {
    {"bind", KEY_BIND, "ENDPOINT", 0, "listen here: ipc://PATH or tcp://127.0.0.1:PORT", 0},
    {"dir", KEY_DIR, "DIR", 0, "folder of the coordinator's state (created)", 0},
    {"job", KEY_JOB, "FILE", 0, "job file; without it, the job in DIR is resumed", 0},
    {"data", KEY_DATA, "FILE", 0, "replaces data.path of the job file", 0},
    {"http", KEY_HTTP, "HOST:PORT", 0, "dashboard, JSON and Prometheus metrics on this loopback address (port 0: any)", 0},
    {"log", KEY_LOG, "FILE", 0, "append log lines here instead of stderr", 0},
    {"print-config-doc", KEY_DOC, 0, 0, "print the reference of the job file (docs/config.md) and exit", 0},
    {0, 0, 0, 0, "Looking at a folder that no coordinator is using (nothing in it is changed):", 1},
    {"check", KEY_CHECK, "DIR", 0, "verify everything in DIR; exit code 65 if anything is damaged", 1},
    {"dump", KEY_DUMP, "DIR", 0, "print the rows in DIR, one line each", 1},
    {"json", KEY_JSON, 0, 0, "one JSON object per line", 1},
    {0},
};

static error_t s_parse(int key, char *arg, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case KEY_BIND:
        a->bind = arg;
        return 0;
    case KEY_DIR:
        a->dir = arg;
        return 0;
    case KEY_JOB:
        a->job = arg;
        return 0;
    case KEY_DATA:
        a->data = arg;
        return 0;
    case KEY_LOG:
        a->log = arg;
        return 0;
    case KEY_HTTP:
        a->http = arg;
        return 0;
    case KEY_DOC:
        a->print_doc = true;
        return 0;
    case KEY_CHECK:
        a->check = arg;
        return 0;
    case KEY_DUMP:
        a->dump = arg;
        return 0;
    case KEY_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_END:
        if (a->check != NULL || a->dump != NULL) {
            if ((a->check != NULL && a->dump != NULL) || a->bind != NULL || a->dir != NULL || a->job != NULL) {
                argp_error(state, "--check DIR and --dump DIR go alone: nothing is served with them");
            }
            return 0;
        }
        if (a->json) {
            argp_error(state, "--json goes with --dump or --check");
        }
        if (!a->print_doc && (a->bind == NULL || a->dir == NULL)) {
            argp_error(state, "--bind and --dir are needed");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void s_version(FILE *out, struct argp_state *state)
{
    (void)state;
    fprintf(out, "ebb-coordinator %s\n", ebb_build_info());
}

static int s_fail(ebb_status st, const char *why)
{
    fprintf(stderr, "ebb-coordinator: %s\n", why);
    EBB_LOG(ERROR, "main", "start-failed", "status=%s why=\"%s\"", ebb_status_name(st), why);
    return ebb_process_exit_code(st);
}

// Log lines of the libraries are not for the person who looks.
static void s_no_log(void *arg, ebb_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

static int s_look(const arguments *a)
{
    ebb_log_set_sink(s_no_log, NULL);
    ebb_status st = a->check != NULL ? ebb_statecheck(a->check, a->json ? EBB_ROWLINE_JSON : EBB_ROWLINE_LIST, stdout, stderr)
                                     : ebb_statedump(a->dump, a->json ? EBB_ROWLINE_JSON : EBB_ROWLINE_LOGFMT, stdout, stderr);
    if (fflush(stdout) != 0) {
        fprintf(stderr, "ebb-coordinator: cannot write the output: %s\n", strerror(errno));
        return EX_IOERR;
    }
    return ebb_process_exit_code(st);
}

int main(int argc, char **argv)
{
    arguments a = {0};
    argp_program_version_hook = s_version;
    argp_err_exit_status = EX_USAGE;
    const struct argp argp = {s_options, s_parse, NULL, "Coordinates one Ebbtide job: units of work, leases, shards and workers.", NULL, NULL, NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (a.print_doc) {
        ebb_jobspec_print_doc(stdout);
        return 0;
    }
    if (a.check != NULL || a.dump != NULL) {
        return s_look(&a);
    }
    char why[512] = "";
    ebb_log_open("coordinator");
    if (a.log != NULL && ebb_log_to_file(a.log) != EBB_OK) {
        fprintf(stderr, "ebb-coordinator: cannot write the log %s: %s\n", a.log, strerror(errno));
        return EX_CANTCREAT;
    }
    int stop_fd = ebb_process_signals();
    Ebb__JobSpec *spec = NULL;
    if (a.job != NULL) {
        ebb_status st = ebb_jobspec_load(a.job, a.data, &spec, stderr);
        if (st != EBB_OK) {
            return ebb_process_exit_code(st);
        }
    }
    if (ebb_mkdirs(a.dir) != EBB_OK) {
        int err = errno;
        fprintf(stderr, "ebb-coordinator: cannot create %s: %s\n", a.dir, strerror(err));
        ebb_jobspec_free(&spec);
        return err == EACCES || err == EPERM ? EX_NOPERM : EX_CANTCREAT;
    }
    ebb_coordinator *c = malloc(sizeof(*c));
    ebb_net *net = NULL;
    ebb_socket *router = NULL;
    ebb_status st = c == NULL ? EBB_NOMEM : ebb_coordinator_open(c, a.dir, &spec, ebb_clock_ms(), why);
    ebb_jobspec_free(&spec);
    if (st != EBB_OK) {
        free(c);
        return s_fail(st, why[0] ? why : ebb_status_str(st));
    }
    int rc = 0;
    st = ebb_net_new(&net);
    if (st == EBB_OK) {
        st = ebb_router_open(net, a.bind, false, &router, why);
    }
    ebb_http *http = NULL;
    if (st == EBB_OK && a.http != NULL) {
        st = ebb_http_open(a.http, &http, why);
    }
    if (st != EBB_OK) {
        rc = s_fail(st, why[0] ? why : ebb_status_str(st));
    } else {
        EBB_LOG(INFO, "main", "serving", "endpoint=%s dir=%s job=%s version=\"%s\"", ebb_socket_endpoint(router), a.dir, c->spec->name,
                ebb_build_info());
        if (http != NULL) {
            snprintf(c->http, sizeof(c->http), "http://127.0.0.1:%u/", ebb_http_port(http));
            EBB_LOG(INFO, "http", "serving", "url=%s", c->http);
        }
        st = ebb_coordinator_serve(c, router, http, stop_fd);
        rc = st == EBB_OK ? 0 : EBB_EXIT_RESTART;
        EBB_LOG(INFO, "main", "ended", "status=%s state=%s", ebb_status_name(st), ebb_job_state_name(c->state));
    }
    ebb_http_close(&http);
    ebb_socket_close(&router);
    ebb_net_free(&net);
    ebb_coordinator_close(c);
    free(c);
    return rc;
}
