#include <math.h>

#include "kernels/cpu.h"
#include "kernels/simd.h"

#define LAYERNORM_EPS 1e-5f

EBB_CLONES void ebb_cpu_layernorm(float *restrict y, float *restrict mean, float *restrict rstd, const float *restrict x, const float *restrict w,
                                  const float *restrict b, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols;
        float sum = 0.0f, square = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c < cols; c++) {
            sum += in[c];
        }
        float m = sum / (float)cols;
#pragma omp simd reduction(+ : square)
        for (size_t c = 0; c < cols; c++) {
            square += (in[c] - m) * (in[c] - m);
        }
        float rs = 1.0f / sqrtf(square / (float)cols + LAYERNORM_EPS);
        for (size_t c = 0; c < cols; c++) {
            out[c] = (in[c] - m) * rs * w[c] + b[c];
        }
        mean[r] = m;
        rstd[r] = rs;
    }
}

// With n = (x - mean) * rstd and g = dy * w: dx = rstd * (g - mean(g) - n * mean(g * n)).
EBB_CLONES void ebb_cpu_layernorm_grad(float *restrict dx, float *restrict dw, float *restrict db, const float *restrict dy, const float *restrict x,
                                       const float *restrict mean, const float *restrict rstd, const float *restrict w, size_t rows, size_t cols)
{
    memset(dw, 0, cols * sizeof(*dw));
    memset(db, 0, cols * sizeof(*db));
    for (size_t r = 0; r < rows; r++) {
        const float *in = x + r * cols, *g = dy + r * cols;
        float *out = dx + r * cols;
        float m = mean[r], rs = rstd[r], sum_g = 0.0f, sum_gn = 0.0f;
#pragma omp simd reduction(+ : sum_g, sum_gn)
        for (size_t c = 0; c < cols; c++) {
            float n = (in[c] - m) * rs, gw = g[c] * w[c];
            sum_g += gw;
            sum_gn += gw * n;
        }
        float mean_g = sum_g / (float)cols, mean_gn = sum_gn / (float)cols;
        for (size_t c = 0; c < cols; c++) {
            float n = (in[c] - m) * rs;
            dw[c] += g[c] * n;
            db[c] += g[c];
            out[c] += rs * (g[c] * w[c] - mean_g - n * mean_gn);
        }
    }
}
