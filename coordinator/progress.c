#include "coordinator/progress.h"

#include <math.h>
#include <string.h>

void ebb_progress_init(ebb_progress *p)
{
    memset(p, 0, sizeof(*p));
    p->spacing = 1;
}

void ebb_progress_loss(ebb_progress *p, uint64_t step, double sum, uint64_t count, double time_s)
{
    if (count == 0 || !isfinite(sum)) {
        return;
    }
    double mean = sum / (double)count, keep = pow(0.98, (double)count);
    p->smoothed = p->has_loss ? keep * p->smoothed + (1 - keep) * mean : mean;
    p->has_loss = 1;
    if (p->first_count < EBB_PROGRESS_FIRST) {
        p->first = (p->first * (double)p->first_count + sum) / (double)(p->first_count + count);
        p->first_count += count;
    }
    p->sum += sum;
    p->count += count;
    if (p->n_points > 0 && step < p->points[p->n_points - 1].step + p->spacing) {
        return;
    }
    if (p->n_points == EBB_PROGRESS_POINTS) { // halve the curve: pairs become their mean
        for (size_t i = 0; i < EBB_PROGRESS_POINTS / 2; i++) {
            p->points[i] = p->points[2 * i + 1];
            p->points[i].loss = (p->points[2 * i].loss + p->points[2 * i + 1].loss) / 2;
        }
        p->n_points /= 2;
        p->spacing = p->points[p->n_points - 1].step / p->n_points + 1;
    }
    p->points[p->n_points++] = (ebb_loss_point){step, p->sum / (double)p->count, time_s};
    p->sum = 0;
    p->count = 0;
}

bool ebb_progress_diverges(const ebb_progress *p)
{
    return p->first_count >= EBB_PROGRESS_FIRST && p->smoothed > 2 * p->first;
}

void ebb_progress_eval(ebb_progress *p, const ebb_eval_point *point)
{
    if (p->n_evals == EBB_PROGRESS_EVALS) { // keep every second one
        for (size_t i = 0; i < EBB_PROGRESS_EVALS / 2; i++) {
            p->evals[i] = p->evals[2 * i + 1];
        }
        p->n_evals /= 2;
    }
    p->evals[p->n_evals++] = *point;
}
