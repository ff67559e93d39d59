// Causal multi-head attention. Per (sequence, head) the products run as small GEMMs straight on the strided q, k, v inside qkv; the softmax over each
// causal row is vector code.
#include <math.h>

#include "kernels/cpu.h"
#include "kernels/simd.h"

// probs (steps, steps): scaled scores in, softmax over columns 0..row out, zeros above the diagonal.
EBB_CLONES static void s_softmax_causal(float *probs, size_t steps, float scale)
{
    for (size_t r = 0; r < steps; r++) {
        float *row = probs + r * steps;
        float top = row[0];
#pragma omp simd reduction(max : top)
        for (size_t c = 0; c <= r; c++) {
            top = row[c] > top ? row[c] : top;
        }
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c <= r; c++) {
            float e = ebb_expf((row[c] - top) * scale);
            row[c] = e;
            sum += e;
        }
        float inverse = 1.0f / sum;
        for (size_t c = 0; c <= r; c++) {
            row[c] *= inverse;
        }
        for (size_t c = r + 1; c < steps; c++) {
            row[c] = 0.0f;
        }
    }
}

// d (steps, steps): gradient of probs in, gradient of the unscaled scores out.
EBB_CLONES static void s_softmax_causal_grad(float *restrict d, const float *restrict probs, size_t steps, float scale)
{
    for (size_t r = 0; r < steps; r++) {
        float *row = d + r * steps;
        const float *p = probs + r * steps;
        float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
        for (size_t c = 0; c <= r; c++) {
            dot += row[c] * p[c];
        }
        for (size_t c = 0; c <= r; c++) {
            row[c] = p[c] * (row[c] - dot) * scale;
        }
        for (size_t c = r + 1; c < steps; c++) {
            row[c] = 0.0f;
        }
    }
}

void ebb_cpu_attention(float *out, float *probs, const float *qkv, size_t batch, size_t steps, size_t width, size_t heads)
{
    size_t hs = width / heads;
    int t = (int)steps, h = (int)hs, ld = (int)(3 * width);
    float scale = 1.0f / sqrtf((float)hs);
    for (size_t b = 0; b < batch; b++) {
        for (size_t head = 0; head < heads; head++) {
            const float *q = qkv + b * steps * 3 * width + head * hs, *k = q + width, *v = k + width;
            float *p = probs + (b * heads + head) * steps * steps;
            ebb_cpu_gemm(0, 1, t, t, h, 1.0f, q, ld, k, ld, 0.0f, p, t);
            s_softmax_causal(p, steps, scale);
            ebb_cpu_gemm(0, 0, t, h, t, 1.0f, p, t, v, ld, 0.0f, out + b * steps * width + head * hs, (int)width);
        }
    }
}

void ebb_cpu_attention_grad(float *dqkv, float *scratch, const float *dout, const float *probs, const float *qkv, size_t batch, size_t steps,
                            size_t width, size_t heads)
{
    size_t hs = width / heads;
    int t = (int)steps, h = (int)hs, ld = (int)(3 * width);
    float scale = 1.0f / sqrtf((float)hs);
    for (size_t b = 0; b < batch; b++) {
        for (size_t head = 0; head < heads; head++) {
            size_t at = b * steps * 3 * width + head * hs;
            const float *q = qkv + at, *k = q + width, *v = k + width;
            float *dq = dqkv + at, *dk = dq + width, *dv = dk + width;
            const float *p = probs + (b * heads + head) * steps * steps;
            const float *d = dout + b * steps * width + head * hs;
            ebb_cpu_gemm(1, 0, t, h, t, 1.0f, p, t, d, (int)width, 0.0f, dv, ld);
            ebb_cpu_gemm(0, 1, t, t, h, 1.0f, d, (int)width, v, ld, 0.0f, scratch, t);
            s_softmax_causal_grad(scratch, p, steps, scale);
            ebb_cpu_gemm(0, 0, t, h, t, 1.0f, scratch, t, k, ld, 0.0f, dq, ld);
            ebb_cpu_gemm(1, 0, t, h, t, 1.0f, scratch, t, q, ld, 0.0f, dk, ld);
        }
    }
}
