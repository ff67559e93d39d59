// One worker from join to leave: builds the parts, runs the trainer, takes everything down again.
#ifndef EBB_WORKER_WORKER_H
#define EBB_WORKER_WORKER_H

#include <stdbool.h>

typedef struct ebb_worker_options {
    const char *coordinator; // endpoint
    const char *name;
    int threads;       // of the math; 0: as the job says
    int stop_fd;       // from ebb_process_signals; -1: none
    bool logs_to_file; // log lines do not go to stderr
    bool overdue_exit; // see agent.h; off in tests that run a worker as a thread
} ebb_worker_options;

// Blocks until the job is over, the worker is drained or ebb_stop_requested is set. Returns the exit code of the program: 0 done or drained; 64 usage;
// 65 job and model do not fit; 66 data missing or not the job's; 69 coordinator refused; 70 internal; 74 I/O; 77 not allowed. Anything but 0 has put one
// line on stderr.
int ebb_worker_run(const ebb_worker_options *options);

#endif
