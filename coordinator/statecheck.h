// ebb-coordinator --check and --dump: is everything in a coordinator's folder what it should be, and what is it? Both change no byte, and refuse a folder in use.
#ifndef EBB_COORDINATOR_STATECHECK_H
#define EBB_COORDINATOR_STATECHECK_H

#include <stdio.h>

#include "core/rowline.h"
#include "core/status.h"

// Verifies the folder, and that a coordinator would resume from it; prints a report to out, and each problem as one line to err: "ebb-coordinator: DIR: FILE or row:
// what". OK; CORRUPT, NEWER, CONFIG: damaged, or not a folder this version reads; NOENT: no such folder; TRYLATER: in use; IO.
ebb_status ebb_statecheck(const char *dir, ebb_rowline_style style, FILE *out, FILE *err);

// Prints all rows, one per line, in a stable order. A damaged row is printed with what is wrong with it (damaged=). Returns the same.
ebb_status ebb_statedump(const char *dir, ebb_rowline_style style, FILE *out, FILE *err);

#endif
