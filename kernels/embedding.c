#include "kernels/cpu.h"
#include "kernels/simd.h"

EBB_CLONES void ebb_cpu_embed(float *restrict out, const float *restrict table, const float *restrict positions, const int32_t *restrict tokens,
                              size_t rows, size_t steps, size_t width)
{
    for (size_t r = 0; r < rows; r++) {
        const float *a = table + (size_t)tokens[r] * width, *b = positions + (r % steps) * width;
        for (size_t c = 0; c < width; c++) {
            out[r * width + c] = a[c] + b[c];
        }
    }
}

EBB_CLONES void ebb_cpu_embed_grad(float *restrict dtable, float *restrict dpositions, const float *restrict dout, const int32_t *restrict tokens,
                                   size_t rows, size_t steps, size_t width)
{
    memset(dpositions, 0, steps * width * sizeof(*dpositions));
    for (size_t r = 0; r < rows; r++) {
        float *a = dtable + (size_t)tokens[r] * width, *b = dpositions + (r % steps) * width;
        for (size_t c = 0; c < width; c++) {
            a[c] += dout[r * width + c];
            b[c] += dout[r * width + c];
        }
    }
}
