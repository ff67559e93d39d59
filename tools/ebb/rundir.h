// The folder of a run: job.yaml (effective), coordinator/, shard-N/ (RocksDB), logs/, pids/, sock/ (or sock.path), lock, model.safetensors, model.json,
// result.json, events.log.
#ifndef EBB_TOOLS_EBB_RUNDIR_H
#define EBB_TOOLS_EBB_RUNDIR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct ebb_rundir {
    char path[PATH_MAX]; // absolute
    char sock[PATH_MAX]; // folder of the sockets
    int lock_fd;         // -1: not held
} ebb_rundir;

// Names the folder without touching it; it may not exist yet.
void ebb_rundir_name(ebb_rundir *r, const char *path);
// PATH/leaf. Static-free: out has PATH_MAX bytes.
void ebb_rundir_file(const ebb_rundir *r, const char *leaf, char *out);
#define EBB_RUNDIR_MARK "# The effective job of this run, written by ebb run.\n" // first line of RUN/job.yaml
// Is this the folder of a run? A job.yaml that a person wrote doesn't make it one.
bool ebb_rundir_is_run(const ebb_rundir *r);
// Name of something in the folder that a run would use but that no run left there, or NULL.
const char *ebb_rundir_foreign(const ebb_rundir *r);
// Has the run in it succeeded (by its result.json)?
bool ebb_rundir_finished(const ebb_rundir *r);
bool ebb_rundir_has(const ebb_rundir *r, const char *leaf);
// Creates the subfolders and the socket folder (a short one elsewhere if the path is too long for a socket). Error text in why (>= 512).
ebb_status ebb_rundir_create(ebb_rundir *r, char *why);
// Finds the socket folder of an existing run.
void ebb_rundir_find_sock(ebb_rundir *r);
// Takes the run for this process. TRYLATER: somebody else has it.
ebb_status ebb_rundir_lock(ebb_rundir *r, char *why);
bool ebb_rundir_is_live(const ebb_rundir *r); // is the lock held by somebody?
void ebb_rundir_unlock(ebb_rundir *r);
// Removes the sockets once every program has ended. Only for the holder of the lock.
void ebb_rundir_remove_sockets(ebb_rundir *r);
// Removes what a run leaves in the folder, and nothing else. EXISTS: the folder isn't a run's, and holds something of one of those names.
ebb_status ebb_rundir_clear(const ebb_rundir *r, char *why);
// Writes a file as a whole: temporary file, fsync, rename.
ebb_status ebb_rundir_write(const ebb_rundir *r, const char *leaf, const void *data, size_t len);
// Whole file, NUL-terminated, malloc'ed; NULL if it isn't there.
char *ebb_rundir_read(const ebb_rundir *r, const char *leaf, size_t *len);
// The run the user means: the argument, or the newest folder in ./runs. NOENT with why.
ebb_status ebb_rundir_pick(ebb_rundir *r, const char *argument, char *why);
void ebb_rundir_endpoint(const ebb_rundir *r, const char *name, char *out, size_t size);

#endif
