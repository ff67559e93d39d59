// ebb-shard --dump: a shard's rows in words, one line per row, in a stable order.
#ifndef EBB_PS_DUMP_H
#define EBB_PS_DUMP_H

#include <stddef.h>
#include <stdio.h>

#include "core/rowline.h"
#include "core/status.h"

typedef enum ebb_dump_what { EBB_DUMP_STREAMS = 1, EBB_DUMP_CHUNKS = 2, EBB_DUMP_JOURNAL = 4, EBB_DUMP_ALL = 7 } ebb_dump_what;

// Prints format and job, and the rows asked for, to out. values: how many values of each gradient and chunk. A damaged row is printed with what is wrong with it
// (damaged=), and the rest goes on. OK; CORRUPT: something was damaged; else as ebb_check, with one line on err.
ebb_status ebb_dump(const char *dir, unsigned what, size_t values, ebb_rowline_style style, FILE *out, FILE *err);

#endif
