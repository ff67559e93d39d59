#include "kernels/cpu.h"
#include "kernels/simd.h"

// Float sums of short blocks, added up in double: exact enough for a norm and still vector code.
#define BLOCK 1024

EBB_CLONES double ebb_cpu_sum_squares(const float *x, size_t n)
{
    double total = 0.0;
    for (size_t from = 0; from < n; from += BLOCK) {
        size_t to = n - from < BLOCK ? n : from + BLOCK;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t i = from; i < to; i++) {
            sum += x[i] * x[i];
        }
        total += (double)sum;
    }
    return total;
}

EBB_CLONES void ebb_cpu_scale(float *x, float a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] *= a;
    }
}
