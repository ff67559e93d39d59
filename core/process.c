#include "core/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

#include <protobuf-c/protobuf-c.h>
#include <zmq.h>

_Atomic int ebb_stop_requested, ebb_stop_signal;
static int s_stop_fd = -1;

const char *ebb_version(void)
{
    return EBB_VERSION;
}

const char *ebb_build_info(void)
{
    static char text[256];
    int zmq[3];
    zmq_version(&zmq[0], &zmq[1], &zmq[2]);
    snprintf(text, sizeof(text), "%s (commit %s, %s, gcc %d.%d, zmq %d.%d.%d, rocksdb %s, protobuf-c %s)", EBB_VERSION, EBB_COMMIT, EBB_BUILD_TYPE,
             __GNUC__, __GNUC_MINOR__, zmq[0], zmq[1], zmq[2], EBB_ROCKSDB_VERSION, protobuf_c_version());
    return text;
}

int ebb_process_exit_code(ebb_status st)
{
    switch (st) {
    case EBB_OK:
        return EX_OK;
    case EBB_INVAL:
        return EX_USAGE;
    case EBB_CONFIG:
    case EBB_CORRUPT: // starting again cannot mend it
    case EBB_NEWER:
        return EX_DATAERR;
    case EBB_NOENT:
        return EX_NOINPUT;
    case EBB_EXISTS:
    case EBB_TRYLATER:
    case EBB_TIMEDOUT:
    case EBB_CLOSED:
    case EBB_REMOTE:
        return EX_UNAVAILABLE;
    case EBB_NOMEM:
        return EX_OSERR;
    case EBB_IO:
        return EX_IOERR;
    case EBB_DISKLOW:
        return EX_TEMPFAIL;
    case EBB_NOTAUTH:
        return EX_NOPERM;
    default:
        return EX_SOFTWARE;
    }
}

static void s_on_stop(int sig)
{
    int saved = errno, none = 0;
    atomic_compare_exchange_strong(&ebb_stop_signal, &none, sig);
    atomic_fetch_add(&ebb_stop_requested, 1);
    uint64_t one = 1;
    ssize_t n = write(s_stop_fd, &one, sizeof(one));
    (void)n;
    errno = saved;
}

int ebb_process_signals(void)
{
    s_stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct sigaction sa;
    memset(&sa, 0, sizeof(sa));
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = s_on_stop;
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGINT, &sa, NULL);
    sa.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &sa, NULL);
    return s_stop_fd;
}

void ebb_process_die_with_parent(int sig)
{
    prctl(PR_SET_PDEATHSIG, sig);
}

ebb_status ebb_mkdirs(const char *path)
{
    char part[PATH_MAX];
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(part)) {
        errno = ENAMETOOLONG;
        return EBB_IO;
    }
    memcpy(part, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (part[i] != '/' && part[i] != '\0') {
            continue;
        }
        char saved = part[i];
        part[i] = '\0';
        if (mkdir(part, 0755) != 0 && errno != EEXIST) {
            return EBB_IO;
        }
        part[i] = saved;
    }
    struct stat st;
    if (stat(path, &st) != 0) {
        return EBB_IO;
    }
    if (!S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
        return EBB_IO;
    }
    return EBB_OK;
}

uint64_t ebb_process_rss_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long long size = 0, resident = 0;
    if (f == NULL) {
        return 0;
    }
    if (fscanf(f, "%llu %llu", &size, &resident) != 2) {
        resident = 0;
    }
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

void ebb_process_host(char *out, size_t size)
{
    if (gethostname(out, size) != 0) {
        snprintf(out, size, "unknown");
    }
    out[size - 1] = '\0';
}
