// Starts the programs of a run and starts them again when they die. Which death is answered how is a pure function (ebb_restart_decide).
#ifndef EBB_TOOLS_EBB_SUPERVISOR_H
#define EBB_TOOLS_EBB_SUPERVISOR_H

#include <sys/types.h>

#include "tools/ebb/rundir.h"

#define EBB_CHILDREN_MAX 1280
#define EBB_QUICK_MS 1000 // a death sooner than this after the start counts towards giving up
#define EBB_QUICK_DEATHS 20

typedef enum ebb_child_kind { EBB_CHILD_COORDINATOR, EBB_CHILD_SHARD, EBB_CHILD_WORKER } ebb_child_kind;

typedef struct ebb_child {
    char name[32]; // "shard-0"
    ebb_child_kind kind;
    uint32_t number;
    pid_t pid; // 0: not running
    uint64_t started_ms, restart_at_ms;
    uint32_t quick_deaths, restarts;
    bool done; // ended well, or not wanted any more
} ebb_child;

typedef enum ebb_restart { EBB_RESTART_AGAIN, EBB_RESTART_DONE, EBB_RESTART_GIVE_UP } ebb_restart;

// What to do about a child that ended: exit_code (or -signal), how long it had lived, quick deaths in a row so far (updated), whether the run is ending.
// *delay_ms: wait before the next start.
ebb_restart ebb_restart_decide(int exit_code, uint64_t lived_ms, bool ending, uint32_t *quick_deaths, uint64_t *delay_ms);

typedef struct ebb_supervisor {
    const ebb_rundir *dir;
    char bin[3][PATH_MAX]; // programs by kind
    const char *job_file;  // for the coordinator; NULL: resume what the folder holds
    const char *http;      // address of the coordinator's dashboard; NULL: none
    ebb_child child[EBB_CHILDREN_MAX];
    size_t n;
} ebb_supervisor;

typedef struct ebb_death {
    ebb_child *child;
    pid_t pid;
    int exit_code; // or -signal
    ebb_restart verdict;
    uint64_t lived_ms;
} ebb_death;

// Finds the programs beside this one. NOENT: which one is missing, in why (>= 512).
ebb_status ebb_supervisor_init(ebb_supervisor *s, const ebb_rundir *dir, const char *job_file, char *why);
void ebb_supervisor_add(ebb_supervisor *s, ebb_child_kind kind, uint32_t number);
// Children of that kind that run or shall run again.
size_t ebb_supervisor_wanted(const ebb_supervisor *s, ebb_child_kind kind);
// One more of that kind: takes the place of one that ended well, else a new one. It starts with the next start_due.
void ebb_supervisor_grow(ebb_supervisor *s, ebb_child_kind kind);
// Starts every child that is due. IO: fork or exec failed.
ebb_status ebb_supervisor_start_due(ebb_supervisor *s, uint64_t now_ms);
// Collects one death, if there is one.
bool ebb_supervisor_reap(ebb_supervisor *s, uint64_t now_ms, bool ending, ebb_death *out);
void ebb_supervisor_signal(ebb_supervisor *s, ebb_child_kind kind, int sig); // children of that kind
size_t ebb_supervisor_alive(const ebb_supervisor *s, int kind);              // -1: all
// Collects children that end by themselves until none lives, the time comes, or the user wants to stop at once.
void ebb_supervisor_wait(ebb_supervisor *s, uint64_t until_ms);
// Ends what still lives: SIGTERM, SIGKILL after grace_ms. Collects everything.
void ebb_supervisor_end(ebb_supervisor *s, uint64_t grace_ms);
// Last lines of a child's log, on stderr.
void ebb_supervisor_show_log(const ebb_supervisor *s, const ebb_child *child);

#endif
