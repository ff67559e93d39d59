#include "core/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

#define LINE_MAX_BYTES 4096

static struct {
    pthread_mutex_t lock;
    char prog[64];
    _Atomic int level;
    ebb_log_sink *sink;
    void *arg;
    int fd;
} s_log = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = EBB_LOG_INFO, .fd = STDERR_FILENO};

static const char *const s_names[] = {"debug", "info", "warn", "error"};

void ebb_log_open(const char *prog)
{
    snprintf(s_log.prog, sizeof(s_log.prog), "%s", prog);
    const char *env = getenv("EBB_LOG");
    for (int i = 0; env != NULL && i < 4; i++) {
        if (strcmp(env, s_names[i]) == 0) {
            s_log.level = i;
        }
    }
}

void ebb_log_set_sink(ebb_log_sink *sink, void *arg)
{
    pthread_mutex_lock(&s_log.lock);
    s_log.sink = sink;
    s_log.arg = arg;
    pthread_mutex_unlock(&s_log.lock);
}

void ebb_log_set_level(ebb_log_level level)
{
    s_log.level = (int)level;
}

ebb_status ebb_log_to_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) {
        return EBB_IO;
    }
    pthread_mutex_lock(&s_log.lock);
    if (s_log.fd != STDERR_FILENO) {
        close(s_log.fd);
    }
    s_log.fd = fd;
    pthread_mutex_unlock(&s_log.lock);
    return EBB_OK;
}

void ebb_log_write(ebb_log_level level, const char *sys, const char *event, const char *fmt, ...)
{
    if ((int)level < s_log.level) {
        return;
    }
    char line[LINE_MAX_BYTES];
    uint64_t ms = ebb_clock_unix_ms();
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    char stamp[32];
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
    int n = snprintf(line, sizeof(line), "ts=%s.%03uZ level=%s prog=%s sys=%s event=%s ", stamp, (unsigned)(ms % 1000), s_names[level], s_log.prog,
                     sys, event);
    va_list ap;
    va_start(ap, fmt);
    if (n > 0 && (size_t)n < sizeof(line)) {
        vsnprintf(line + n, sizeof(line) - (size_t)n, fmt, ap);
    }
    va_end(ap);
    // A line is one line, whatever a peer's text holds.
    for (char *c = line; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = ' ';
        }
    }
    size_t len = strlen(line);
    while (len > 0 && line[len - 1] == ' ') {
        line[--len] = '\0';
    }
    pthread_mutex_lock(&s_log.lock);
    if (s_log.sink != NULL) {
        s_log.sink(s_log.arg, level, line);
    } else {
        if (len > sizeof(line) - 2) {
            len = sizeof(line) - 2;
        }
        line[len] = '\n';
        ssize_t written = write(s_log.fd, line, len + 1);
        (void)written; // a log that cannot be written must not stop the program
    }
    pthread_mutex_unlock(&s_log.lock);
}
