// What the job has achieved so far: loss curve (thinned to a bounded number of points), evaluations. Pure.
#ifndef EBB_COORDINATOR_PROGRESS_H
#define EBB_COORDINATOR_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EBB_PROGRESS_POINTS 240
#define EBB_PROGRESS_EVALS 256
#define EBB_PROGRESS_FIRST 10

typedef struct ebb_loss_point {
    uint64_t step;
    double loss, time_s;
} ebb_loss_point;

typedef struct ebb_eval_point {
    uint64_t id, step, version;
    double loss, accuracy, time_s;
} ebb_eval_point;

typedef struct ebb_progress {
    ebb_loss_point points[EBB_PROGRESS_POINTS];
    size_t n_points;
    uint64_t spacing; // steps between points; doubles when the curve is full
    double sum;       // of the point being formed
    uint64_t count;
    ebb_eval_point evals[EBB_PROGRESS_EVALS];
    size_t n_evals;
    double smoothed; // exponential mean of the loss
    int has_loss;
    double first; // mean of the first EBB_PROGRESS_FIRST losses
    uint64_t first_count;
} ebb_progress;

void ebb_progress_init(ebb_progress *p);
// count step losses with that sum arrived when `step` steps were done.
void ebb_progress_loss(ebb_progress *p, uint64_t step, double sum, uint64_t count, double time_s);
// Is the loss more than twice what it was at the beginning?
bool ebb_progress_diverges(const ebb_progress *p);
void ebb_progress_eval(ebb_progress *p, const ebb_eval_point *point);

#endif
