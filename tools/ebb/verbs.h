// The verbs of the ebb command: each parses its own arguments and returns the exit code.
#ifndef EBB_TOOLS_EBB_VERBS_H
#define EBB_TOOLS_EBB_VERBS_H

#include "core/status.h"
#include "core/wire.h"
#include "tools/ebb/rundir.h"
#include "worker/models/model.h"

int ebb_verb_run(int argc, char **argv);
int ebb_verb_status(int argc, char **argv);
int ebb_verb_events(int argc, char **argv);
int ebb_verb_explain(int argc, char **argv);
int ebb_verb_export(int argc, char **argv);
int ebb_verb_sample(int argc, char **argv);

// Prints "ebb: TEXT" to stderr and returns the exit code of st.
int ebb_complain(ebb_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// How the run in a folder that is not live ended, by its result.json: what `ebb status` says of it. Returns the exit code.
int ebb_verb_status_ended(const ebb_rundir *dir, bool json);

// Prints RUN/events.log (one JSON object per line, written by `ebb run`), only kinds that begin with `kinds` unless it is NULL. Returns the last event's id.
uint64_t ebb_events_print_log(const ebb_rundir *dir, const char *kinds, bool json);

uint64_t ebb_events_last_id(const ebb_rundir *dir); // in RUN/events.log; 0: none

// Samples count bytes from a model file to stdout. Error text in why (>= 512).
ebb_status ebb_sample_file(const ebb_rundir *dir, const char *file, const char *prompt, size_t count, double temperature, uint32_t top_k,
                           uint64_t seed, char *why);

#endif
