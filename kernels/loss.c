#include <math.h>

#include "kernels/cpu.h"
#include "kernels/simd.h"

EBB_CLONES double ebb_cpu_softmax_xent(float *logits, const int32_t *labels, size_t rows, size_t classes, int grad, float scale, size_t *correct)
{
    double total = 0.0;
    size_t right = 0;
    for (size_t r = 0; r < rows; r++) {
        float *row = logits + r * classes;
        size_t label = (size_t)labels[r];
        float top = row[0], sum = 0.0f, at_label = row[label];
#pragma omp simd reduction(max : top)
        for (size_t c = 0; c < classes; c++) {
            top = row[c] > top ? row[c] : top;
        }
        right += at_label >= top;
        if (grad) {
#pragma omp simd reduction(+ : sum)
            for (size_t c = 0; c < classes; c++) {
                float e = ebb_expf(row[c] - top);
                row[c] = e;
                sum += e;
            }
            float factor = scale / sum;
            for (size_t c = 0; c < classes; c++) {
                row[c] *= factor;
            }
            row[label] -= scale;
        } else {
#pragma omp simd reduction(+ : sum)
            for (size_t c = 0; c < classes; c++) {
                sum += ebb_expf(row[c] - top);
            }
        }
        total += log((double)sum) + (double)top - (double)at_label;
    }
    if (correct != NULL) {
        *correct = right;
    }
    return total;
}
