// Vector code by plain loops: EBB_CLONES compiles a function for the baseline, AVX2 and AVX-512 and picks at load time, so that one binary runs on any
// x86-64 machine (elsewhere, and under sanitizers, whose runtime is not ready when the pick is made, it is one plain function).
// Reductions need `#pragma omp simd reduction` (the folder is compiled with -fopenmp-simd), since float addition may not be reordered silently.
#ifndef EBB_KERNELS_SIMD_H
#define EBB_KERNELS_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(EBB_SANITIZED)
#define EBB_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define EBB_CLONES
#endif
#define EBB_INLINE static inline __attribute__((always_inline))

// e^x in float, relative error about 1e-7 (range reduction by ln 2 in two parts, degree-6 polynomial); clamped to finite results, 0 below -87.
EBB_INLINE float ebb_expf(float x)
{
    x = x > 88.0f ? 88.0f : x;
    float keep = x < -87.0f ? 0.0f : 1.0f;
    x = x < -87.0f ? -87.0f : x;
    float n = __builtin_rintf((x == x ? x : 0.0f) * 1.44269504088896341f); // NaN has no exponent, but goes through r into the result
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return p * scale * keep;
}

#endif
