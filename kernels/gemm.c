#include <cblas.h>

#include "kernels/cpu.h"
#include "kernels/simd.h"

void ebb_cpu_gemm(int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

EBB_CLONES void ebb_cpu_bias_add(float *restrict y, const float *restrict bias, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            y[r * cols + c] += bias[c];
        }
    }
}

EBB_CLONES void ebb_cpu_bias_grad(float *restrict dbias, const float *restrict dy, size_t rows, size_t cols)
{
    memset(dbias, 0, cols * sizeof(*dbias));
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            dbias[c] += dy[r * cols + c];
        }
    }
}
