// Evaluation: held-out loss of one consistent version, while training goes on.
#ifndef EBB_WORKER_EVALUATE_H
#define EBB_WORKER_EVALUATE_H

#include "worker/trainer.h"

// Pins every shard, pulls what is pinned into parameters of its own, computes loss and accuracy over the held-out samples, lets go and reports. Given up
// without a report (OK all the same: the lease runs out and somebody else gets it) when the worker should stop or the lease is lost.
// Errors as ebb_trainer_run.
ebb_status ebb_evaluate(ebb_trainer *t, const ebb_lease *lease);

#endif
