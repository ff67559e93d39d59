// A thread that reads the batches of the leased unit ahead of the trainer, so that computing and reading overlap.
//
// Bounded: it is at most EBB_PREFETCH_DEPTH batches ahead. Batches come strictly in step order from where `begin` said; what was read ahead for an
// earlier `begin` is dropped. One consumer thread.
#ifndef EBB_WORKER_PREFETCH_H
#define EBB_WORKER_PREFETCH_H

#include "worker/dataset.h"

#define EBB_PREFETCH_DEPTH 3

typedef struct ebb_prefetch ebb_prefetch;

// dataset is borrowed.
ebb_status ebb_prefetch_start(const ebb_dataset *dataset, ebb_prefetch **out);
// Returns within one batch's reading.
void ebb_prefetch_stop(ebb_prefetch **p);
// From now on: the steps seq_first..seq_last of this stream. The batch last handed out becomes invalid.
void ebb_prefetch_begin(ebb_prefetch *p, uint64_t stream, uint64_t seq_first, uint64_t seq_last);
// The next step's batch, valid until the next call of next or begin; waits for it. AGAIN: past seq_last. NOENT, INVAL, IO: as ebb_dataset_train
// (INVAL: a step that the plan does not have), BADVALUE: this step cannot be computed; the sentence is in ebb_prefetch_why.
ebb_status ebb_prefetch_next(ebb_prefetch *p, const ebb_batch **batch);
const char *ebb_prefetch_why(const ebb_prefetch *p);

#endif
