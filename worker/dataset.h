// The job's data on this machine: step -> batch.
//
// Invariant: which samples a step holds, and their order, is a function of (seed, pass, step) alone (core/units.h), so whoever computes a step computes the
// same one. The file is checked once against what the coordinator saw (size, and for csv the number of rows) and then read with pread, batch by
// batch: no copy of the data set is held (csv: 8 bytes per row), and a file that shrinks under us is an error, not a SIGBUS.
//
// Formats: "bytes"  sample i of a pass = the window of context + 1 bytes at i * context + shift(pass); tokens are its first `context` bytes, targets the
//                   last. Held-out sample i = the window at train_bytes + i * context.
//          "csv"    sample i = row ebb_data_csv_row(rows, i): features times `scale`, then the label (an integer) in the last column. Empty lines
//                   do not count as rows.
//          "none"   (counter) a batch is only a number of samples.
// Reading functions may be called from several threads at once, each with its own batch buffer.
#ifndef EBB_WORKER_DATASET_H
#define EBB_WORKER_DATASET_H

#include "core/units.h"
#include "core/wire.h"
#include "worker/models/model.h"

typedef struct ebb_dataset ebb_dataset;

// A batch with the memory it points into.
typedef struct ebb_batch_buf {
    ebb_batch batch;
    uint32_t samples_max;
    // private
    int32_t *tokens, *targets, *y;
    float *x;
    char *raw;
} ebb_batch_buf;

// Errors with a full sentence in why (>= 512 bytes): NOENT missing, or not the file the coordinator saw; CONFIG spec and model do not fit; IO.
ebb_status ebb_dataset_open(const Ebb__JobSpec *spec, const ebb_model_config *model, ebb_dataset **out, char *why);
void ebb_dataset_free(ebb_dataset **d);
const ebb_plan *ebb_dataset_plan(const ebb_dataset *d);
uint64_t ebb_dataset_held_out(const ebb_dataset *d); // samples used for evaluation: the held-out ones, at most eval_samples_max of them

ebb_status ebb_batch_buf_init(const ebb_dataset *d, uint32_t samples_max, ebb_batch_buf *out);
void ebb_batch_buf_fini(ebb_batch_buf *b);

// The samples of a training step; its samples must not exceed samples_max. BADVALUE with a sentence in why (>= 512 bytes): a record that is not what
// it should be (the step cannot be computed); NOENT: the file changed; IO.
ebb_status ebb_dataset_train(const ebb_dataset *d, const ebb_step *step, ebb_batch_buf *out, char *why);
// `samples` evaluation samples from number `first` on. If fewer than all held-out samples are used they are spread evenly over the split.
ebb_status ebb_dataset_eval(const ebb_dataset *d, uint64_t first, uint32_t samples, ebb_batch_buf *out, char *why);

#endif
