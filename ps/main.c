// ebb-shard: one parameter shard. Arguments, signals, exit codes; everything else is in the library.
#include <argp.h>
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/log.h"
#include "core/process.h"
#include "ps/check.h"
#include "ps/dump.h"
#include "ps/server.h"

#define DISK_RESERVE_MIB_DEFAULT 512 // memtables and log must find room: RocksDB aborts on a full disk

typedef struct arguments {
    const char *coordinator, *bind, *dir, *log;
    long shard;
    long disk_reserve_mib;
    const char *check, *dump; // look at a folder instead of serving
    bool json;
    unsigned what;
    long values;
} arguments;

enum { OPT_COORDINATOR = 'c', OPT_BIND = 'b', OPT_DIR = 'd', OPT_SHARD = 's', OPT_LOG = 'l', OPT_RESERVE = 0x100 };
enum { OPT_CHECK = 0x200, OPT_DUMP, OPT_JOURNAL, OPT_CHUNKS, OPT_STREAMS, OPT_ALL, OPT_VALUES, OPT_JSON };

static const struct argp_option s_options[] = {
    {"coordinator", OPT_COORDINATOR, "ENDPOINT", 0, "where the coordinator listens: ipc://PATH or tcp://HOST:PORT", 0},
    {"bind", OPT_BIND, "ENDPOINT", 0, "where this shard listens: ipc://PATH or tcp://127.0.0.1:PORT (port 0: any)", 0},
    {"dir", OPT_DIR, "DIR", 0, "folder of this shard (created; holds the parameters)", 0},
    {"shard", OPT_SHARD, "N", 0, "number of this shard, from 0", 0},
    {"log", OPT_LOG, "FILE", 0, "append log lines to FILE instead of stderr", 0},
    {"disk-reserve", OPT_RESERVE, "MIB", 0, "refuse pushes when the disk has less free space (default 512; 0: never)", 0},
    {0, 0, 0, 0, "Looking at a folder that no shard is using (nothing in it is changed):", 1},
    {"check", OPT_CHECK, "DIR", 0, "verify everything in DIR and replay its journal; exit code 65 if anything is damaged", 1},
    {"dump", OPT_DUMP, "DIR", 0, "print the rows in DIR, one line each", 1},
    {"journal", OPT_JOURNAL, 0, 0, "with --dump: only the journal", 1},
    {"chunks", OPT_CHUNKS, 0, 0, "with --dump: only the chunks", 1},
    {"streams", OPT_STREAMS, 0, 0, "with --dump: only watermarks and retired streams", 1},
    {"all", OPT_ALL, 0, 0, "with --dump: everything (the default)", 1},
    {"values", OPT_VALUES, "N", 0, "with --dump: the first N values of each chunk and gradient too", 1},
    {"json", OPT_JSON, 0, 0, "one JSON object per line", 1},
    {0}};

static long s_number(const char *text, long max, const char *what, struct argp_state *state)
{
    char *end = NULL;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || v < 0 || v > max) {
        argp_error(state, "--%s must be a number from 0 to %ld, not \"%s\"", what, max, text);
    }
    return v;
}

static error_t s_parse(int key, char *arg, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case OPT_COORDINATOR:
        a->coordinator = arg;
        return 0;
    case OPT_BIND:
        a->bind = arg;
        return 0;
    case OPT_DIR:
        a->dir = arg;
        return 0;
    case OPT_SHARD:
        a->shard = s_number(arg, EBB_SHARDS_MAX - 1, "shard", state);
        return 0;
    case OPT_LOG:
        a->log = arg;
        return 0;
    case OPT_RESERVE:
        a->disk_reserve_mib = s_number(arg, 1 << 20, "disk-reserve", state);
        return 0;
    case OPT_CHECK:
        a->check = arg;
        return 0;
    case OPT_DUMP:
        a->dump = arg;
        return 0;
    case OPT_JOURNAL:
        a->what |= EBB_DUMP_JOURNAL;
        return 0;
    case OPT_CHUNKS:
        a->what |= EBB_DUMP_CHUNKS;
        return 0;
    case OPT_STREAMS:
        a->what |= EBB_DUMP_STREAMS;
        return 0;
    case OPT_ALL:
        a->what |= EBB_DUMP_ALL;
        return 0;
    case OPT_VALUES:
        a->values = s_number(arg, 1 << 30, "values", state);
        return 0;
    case OPT_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument \"%s\"", arg);
        return 0;
    case ARGP_KEY_END:
        if (a->check != NULL || a->dump != NULL) {
            if ((a->check != NULL && a->dump != NULL) || a->coordinator != NULL || a->bind != NULL || a->dir != NULL || a->shard >= 0) {
                argp_error(state, "--check DIR and --dump DIR go alone: nothing is served with them");
            }
            if (a->check != NULL && (a->what != 0 || a->values >= 0)) {
                argp_error(state, "--journal, --chunks, --streams, --all and --values go with --dump");
            }
            return 0;
        }
        if (a->what != 0 || a->values >= 0 || a->json) {
            argp_error(state, "--journal, --chunks, --streams, --all, --values and --json go with --dump or --check");
        }
        if (a->coordinator == NULL || a->bind == NULL || a->dir == NULL || a->shard < 0) {
            argp_error(state, "--coordinator, --bind, --dir and --shard are all needed");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int s_shutdown_fd = -1;

static void s_on_shutdown(void *arg)
{
    (void)arg;
    uint64_t one = 1;
    ssize_t n = write(s_shutdown_fd, &one, sizeof(one));
    (void)n;
}

// On the shard's thread, after the last answer. Nothing is flushed or closed: the store's state is unknown and the next start recovers.
static void s_on_fatal(void *arg, int exit_code, const char *why)
{
    (void)arg;
    fprintf(stderr, "ebb-shard: %s\n", why);
    _exit(exit_code);
}

static void s_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "ebb-shard %s\n", ebb_build_info());
}

// Looks at a folder and ends. Log lines of the libraries are not for the person who looks.
static void s_no_log(void *arg, ebb_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

static int s_look(const arguments *a)
{
    ebb_status st;
    ebb_log_set_sink(s_no_log, NULL);
    if (a->check != NULL) {
        st = ebb_check(a->check, a->json ? EBB_ROWLINE_JSON : EBB_ROWLINE_LIST, stdout, stderr);
    } else {
        unsigned what = a->what != 0 ? a->what : EBB_DUMP_ALL;
        st = ebb_dump(a->dump, what, a->values > 0 ? (size_t)a->values : 0, a->json ? EBB_ROWLINE_JSON : EBB_ROWLINE_LOGFMT, stdout, stderr);
    }
    if (fflush(stdout) != 0) {
        fprintf(stderr, "ebb-shard: cannot write the output: %s\n", strerror(errno));
        return 74;
    }
    return ebb_process_exit_code(st);
}

int main(int argc, char **argv)
{
    // Gradients of a MiB and more come and go all the time: keep their memory instead of mapping and faulting it in anew for each message.
    mallopt(M_MMAP_THRESHOLD, 256 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    mallopt(M_TOP_PAD, 16 << 20);

    argp_program_version_hook = s_version;
    argp_err_exit_status = 64;
    const struct argp argp = {s_options, s_parse, NULL, "Serves one shard of a model's parameters.", NULL, NULL, NULL};
    arguments a = {.shard = -1, .disk_reserve_mib = DISK_RESERVE_MIB_DEFAULT, .values = -1};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (a.check != NULL || a.dump != NULL) {
        return s_look(&a);
    }

    char prog[32], why[512] = "";
    snprintf(prog, sizeof(prog), "shard-%ld", a.shard);
    ebb_log_open(prog);
    if (a.log != NULL && ebb_log_to_file(a.log) != EBB_OK) {
        fprintf(stderr, "ebb-shard: cannot write the log file %s: %s\n", a.log, strerror(errno));
        return 73;
    }
    int stop_fd = ebb_process_signals();
    s_shutdown_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ebb_net *net = NULL;
    ebb_server *server = NULL;
    ebb_status st = stop_fd >= 0 && s_shutdown_fd >= 0 ? ebb_net_new(&net) : EBB_INTERNAL;
    if (st != EBB_OK) {
        fprintf(stderr, "ebb-shard: cannot start: %s\n", ebb_status_str(st));
        return 70;
    }
    const ebb_server_options options = {.coordinator = a.coordinator,
                                        .bind = a.bind,
                                        .dir = a.dir,
                                        .shard = (uint32_t)a.shard,
                                        .disk_reserve_bytes = (uint64_t)a.disk_reserve_mib << 20,
                                        .shutdown = s_on_shutdown,
                                        .fatal = s_on_fatal};
    st = ebb_server_start(net, &options, &server, why);
    if (st != EBB_OK) {
        fprintf(stderr, "ebb-shard: %s\n", why);
        EBB_LOG(ERROR, "server", "start-failed", "status=%s why=\"%s\"", ebb_status_name(st), why);
        ebb_net_free(&net);
        return ebb_process_exit_code(st);
    }
    struct pollfd fds[2] = {{.fd = stop_fd, .events = POLLIN}, {.fd = s_shutdown_fd, .events = POLLIN}};
    while (!ebb_stop_requested && (fds[1].revents & POLLIN) == 0) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR) {
            break;
        }
    }
    EBB_LOG(INFO, "server", "stopping", "why=%s", ebb_stop_requested ? "signal" : "coordinator");
    ebb_server_stop(&server);
    ebb_net_free(&net);
    EBB_LOG(INFO, "server", "stopped", "clean=true");
    return 0;
}
