// What every program does the same way at start and end: version, signals, folders, numbers.
#ifndef EBB_CORE_PROCESS_H
#define EBB_CORE_PROCESS_H

#include <stdint.h>
#include <stddef.h>

#include "core/status.h"

const char *ebb_version(void);    // "0.1.0"
const char *ebb_build_info(void); // "0.1.0 (commit abc1234, release, gcc 12.2, zmq 4.3.4, rocksdb 7.8.3, protobuf-c 1.4.1)"

// SIGTERM and SIGINT set the flag (and are readable on the returned fd, for poll loops); SIGPIPE ignored. Call once, before threads start.
extern _Atomic int ebb_stop_requested;
int ebb_process_signals(void);

// Asks the kernel to kill this process when its parent dies (Linux), with the given signal.
void ebb_process_die_with_parent(int sig);

ebb_status ebb_mkdirs(const char *path); // mkdir -p; IO (errno kept)
uint64_t ebb_process_rss_bytes(void);
void ebb_process_host(char *out, size_t size);

#endif
