// What every program does the same way at start and end: version, signals, folders, numbers.
#ifndef EBB_CORE_PROCESS_H
#define EBB_CORE_PROCESS_H

#include <stdint.h>
#include <stddef.h>

#include "core/status.h"

const char *ebb_version(void);    // "0.1.0"
const char *ebb_build_info(void); // "0.1.0 (commit abc1234, release, gcc 12.2, zmq 4.3.4, rocksdb 7.8.3, protobuf-c 1.4.1)"

// The exit code (sysexits.h) for the status a program ends with: 0 OK; 64 INVAL; 65 CONFIG, CORRUPT, NEWER; 66 NOENT; 69 EXISTS, TRYLATER, TIMEDOUT,
// CLOSED, REMOTE; 71 NOMEM; 74 IO; 75 DISKLOW; 77 NOTAUTH; 70 anything else. A supervisor does not start a program again after 64, 65, 66, 73 or 77.
int ebb_process_exit_code(ebb_status st);

// SIGTERM and SIGINT set the flag (and are readable on the returned fd, for poll loops); SIGPIPE ignored. Call once, before threads start.
extern _Atomic int ebb_stop_requested; // number of such signals so far
extern _Atomic int ebb_stop_signal;    // the first of them, or 0: a program that it stopped ends with 128 + its number
int ebb_process_signals(void);

// Asks the kernel to kill this process when its parent dies (Linux), with the given signal.
void ebb_process_die_with_parent(int sig);

ebb_status ebb_mkdirs(const char *path); // mkdir -p; IO (errno kept)
uint64_t ebb_process_rss_bytes(void);
void ebb_process_host(char *out, size_t size);

#endif
