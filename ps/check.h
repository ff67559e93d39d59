// ebb-shard --check: is every byte of a shard's folder what it should be, and does the shard come back from it?
//
// Invariant: changes no byte, and does not disturb a running shard (its folder is refused).
#ifndef EBB_PS_CHECK_H
#define EBB_PS_CHECK_H

#include <stdio.h>

#include "core/rowline.h"
#include "core/status.h"

// Verifies the folder and prints a report to out; each problem is one line on err: "ebb-shard: DIR: FILE or row: what". OK; CORRUPT, NEWER, CONFIG: damaged, or
// not a shard's folder this version reads; NOENT: no such folder; TRYLATER: in use; IO.
ebb_status ebb_check(const char *dir, ebb_rowline_style style, FILE *out, FILE *err);

#endif
