#include "kernels/cpu.h"
#include "kernels/simd.h"

#define GELU_A 0.7978845608028654f // sqrt(2/pi)
#define GELU_B 0.044715f

// tanh(u) = 1 - 2 / (e^2u + 1)
EBB_INLINE float s_tanh(float u)
{
    return 1.0f - 2.0f / (ebb_expf(2.0f * u) + 1.0f);
}

EBB_CLONES void ebb_cpu_gelu(float *restrict y, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v = x[i];
        y[i] = 0.5f * v * (1.0f + s_tanh(GELU_A * (v + GELU_B * v * v * v)));
    }
}

EBB_CLONES void ebb_cpu_gelu_grad(float *restrict dy, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v = x[i];
        float t = s_tanh(GELU_A * (v + GELU_B * v * v * v));
        float du = GELU_A * (1.0f + 3.0f * GELU_B * v * v);
        dy[i] *= 0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * du;
    }
}

EBB_CLONES void ebb_cpu_relu(float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = x[i] < 0.0f ? 0.0f : x[i]; // NaN stays NaN: divergence must show
    }
}

EBB_CLONES void ebb_cpu_relu_grad(float *restrict dy, const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dy[i] = y[i] <= 0.0f ? 0.0f : dy[i];
    }
}

EBB_CLONES void ebb_cpu_add(float *restrict y, const float *restrict a, const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = a[i] + b[i];
    }
}
