// ebb-shard: one parameter shard. Arguments, signals, exit codes; everything else is in the library.
#include <argp.h>
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/log.h"
#include "core/process.h"
#include "ps/server.h"

#define DISK_RESERVE_MIB_DEFAULT 512 // memtables and log must find room: RocksDB aborts on a full disk

typedef struct arguments {
    const char *coordinator, *bind, *dir, *log;
    long shard;
    long disk_reserve_mib;
} arguments;

enum { OPT_COORDINATOR = 'c', OPT_BIND = 'b', OPT_DIR = 'd', OPT_SHARD = 's', OPT_LOG = 'l', OPT_RESERVE = 0x100 };

static const struct argp_option s_options[] = {
    {"coordinator", OPT_COORDINATOR, "ENDPOINT", 0, "where the coordinator listens: ipc://PATH or tcp://HOST:PORT", 0},
    {"bind", OPT_BIND, "ENDPOINT", 0, "where this shard listens: ipc://PATH or tcp://127.0.0.1:PORT (port 0: any)", 0},
    {"dir", OPT_DIR, "DIR", 0, "folder of this shard (created; holds the parameters)", 0},
    {"shard", OPT_SHARD, "N", 0, "number of this shard, from 0", 0},
    {"log", OPT_LOG, "FILE", 0, "append log lines to FILE instead of stderr", 0},
    {"disk-reserve", OPT_RESERVE, "MIB", 0, "refuse pushes when the disk has less free space (default 512; 0: never)", 0},
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
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument \"%s\"", arg);
        return 0;
    case ARGP_KEY_END:
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

int main(int argc, char **argv)
{
    // Gradients of a MiB and more come and go all the time: keep their memory instead of mapping and faulting it in anew for each message.
    mallopt(M_MMAP_THRESHOLD, 256 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    mallopt(M_TOP_PAD, 16 << 20);

    argp_program_version_hook = s_version;
    argp_err_exit_status = 64;
    const struct argp argp = {s_options, s_parse, NULL, "Serves one shard of a model's parameters.", NULL, NULL, NULL};
    arguments a = {.shard = -1, .disk_reserve_mib = DISK_RESERVE_MIB_DEFAULT};
    argp_parse(&argp, argc, argv, 0, NULL, &a);

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
