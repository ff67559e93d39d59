// A job's status in the text format of Prometheus (version 0.0.4). Names follow its conventions: base units, `_total` for counters, bounded label sets.
#ifndef EBB_COORDINATOR_METRICS_H
#define EBB_COORDINATOR_METRICS_H

#include <stdio.h>

#include "core/wire.h"

#define EBB_METRICS_WORKERS_MAX 64 // live workers with lines of their own; sums are over all
void ebb_metrics_print(FILE *out, const Ebb__StatusReply *s);

#endif
