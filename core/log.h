// Log lines in logfmt: ts=... level=info prog=shard-0 sys=journal event=opened k=v ...
//
// Any thread may log. Lines go to stderr until a sink is set. Nothing per push at info level.
#ifndef EBB_CORE_LOG_H
#define EBB_CORE_LOG_H

#include "core/status.h"

typedef enum ebb_log_level { EBB_LOG_DEBUG, EBB_LOG_INFO, EBB_LOG_WARN, EBB_LOG_ERROR } ebb_log_level;

typedef void ebb_log_sink(void *arg, ebb_log_level level, const char *line); // line without newline

void ebb_log_open(const char *prog); // name shown as prog=; call once at start (level from env EBB_LOG=debug|info|warn|error)
void ebb_log_set_sink(ebb_log_sink *sink, void *arg);
void ebb_log_set_level(ebb_log_level level);
// Appends lines to the file (created) instead of stderr.
ebb_status ebb_log_to_file(const char *path);
void ebb_log_write(ebb_log_level level, const char *sys, const char *event, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

// EBB_LOG(INFO, "journal", "opened", "dir=%s records=%zu", dir, n): the text is `key=value` pairs; quote values with spaces yourself (%s in "\"%s\"").
#define EBB_LOG(level, sys, event, ...) ebb_log_write(EBB_LOG_##level, (sys), (event), __VA_ARGS__)

#endif
