// The job file: YAML in, a complete, checked JobSpec out. One table (in jobspec.c) holds every key with its type, bounds, default and help; docs/config.md
// is printed from it.
#ifndef EBB_COORDINATOR_JOBSPEC_H
#define EBB_COORDINATOR_JOBSPEC_H

#include <stdio.h>

#include "core/wire.h"

// Parses FILE, checks it and opens its data, filling in train_samples, val_samples, steps and bytes; data paths become absolute (relative ones are
// relative to the job file). data_override (may be NULL) replaces data.path and is relative to the working folder. Every error is one line
// "FILE:LINE: what was wrong, what was expected" to errors. CONFIG: the job file; NOENT: file or data missing; IO.
ebb_status ebb_jobspec_load(const char *file, const char *data_override, Ebb__JobSpec **out, FILE *errors);
// The same without opening the data: for looking at a job, not for running it. data's counts, and steps if the job counts in passes, are 0.
ebb_status ebb_jobspec_read(const char *file, Ebb__JobSpec **out, FILE *errors);
// The effective job as YAML, with every default.
void ebb_jobspec_print(const Ebb__JobSpec *spec, FILE *out);
void ebb_jobspec_free(Ebb__JobSpec **spec);
// The reference of all keys as Markdown.
void ebb_jobspec_print_doc(FILE *out);

#endif
