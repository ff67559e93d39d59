// How a data set becomes samples, steps and units. Pure (but for ebb_data_probe), and the same in coordinator and worker: a step's samples are
// a function of (seed, pass, step) alone, whoever computes it.
//
// A pass goes through all training samples in a seeded order. Step k of a pass takes `batch` consecutive positions of that order (the last step of a
// pass may be shorter). A unit is `unit_steps` consecutive steps of one pass (the last unit of a pass, and of the job, may be shorter).
// stream id = number of the unit counted through all passes. seq = step within the unit, from 1.
#ifndef EBB_CORE_UNITS_H
#define EBB_CORE_UNITS_H

#include "core/status.h"
#include <stddef.h>
#include <stdint.h>

typedef struct ebb_plan {
    uint64_t train_samples, steps_total, seed;
    uint32_t batch, unit_steps;
    uint64_t steps_per_pass, units_per_pass, units_total; // derived
} ebb_plan;

typedef struct ebb_unit {
    uint64_t stream, pass, unit; // unit: within its pass
    uint64_t steps;              // seq runs 1..steps
    uint64_t first_step;         // global number of its first step, from 0
} ebb_unit;

typedef struct ebb_step {
    uint64_t pass;
    uint64_t first;   // first position in the pass's order
    uint32_t samples; // 1..batch
} ebb_step;

// INVAL if a number is 0. steps_total: of the whole job.
ebb_status ebb_plan_init(ebb_plan *plan, uint64_t train_samples, uint32_t batch, uint32_t unit_steps, uint64_t steps_total, uint64_t seed);
// The stream's unit; NOENT if stream >= units_total.
ebb_status ebb_plan_unit(const ebb_plan *plan, uint64_t stream, ebb_unit *out);
// The seq'th step (1-based) of a unit; NOENT out of range.
ebb_status ebb_plan_step(const ebb_plan *plan, uint64_t stream, uint64_t seq, ebb_step *out);
// Sample number (0..train_samples-1) at a position of a pass's order.
uint64_t ebb_plan_sample(const ebb_plan *plan, uint64_t pass, uint64_t position);
// For byte streams: shift of the windows in this pass, 0..context-1.
uint64_t ebb_plan_shift(const ebb_plan *plan, uint64_t pass, uint32_t context);

// Split of a data set. bytes: the file's first (1 - val_fraction) part trains, the rest is held out; sample i of a pass is the window of context+1 bytes
// at i * context + shift. csv: rows in a fixed pseudo-random order, the last val_fraction of them held out.
typedef struct ebb_data_counts {
    uint64_t bytes, train_samples, val_samples;
    uint64_t train_bytes; // bytes format: length of the training part
    uint64_t rows;        // csv
    uint32_t columns;     // csv: features per row (fields - 1)
} ebb_data_counts;

// Opens and counts; format "bytes", "csv" or "none" (counter model: train_samples stays 0, the caller sets it). Errors with a full sentence in why
// (>= 512 bytes): NOENT missing, CONFIG empty or too small or malformed (csv: with line number), IO.
ebb_status ebb_data_probe(const char *path, const char *format, uint32_t context, double val_fraction, ebb_data_counts *out, char *why);
// Row (0..rows-1) of the csv sample i: training samples 0..train_samples-1, then held-out ones.
uint64_t ebb_data_csv_row(uint64_t rows, uint64_t i);

#endif
