// Naive double-precision forms of the backend's operations, written from the formulas and not from the kernels: full Jacobians where those have closed
// forms, one loop per index. Each `mag` output (may be NULL) is the sum of the absolute values of the terms of an element: what its rounding error is
// measured by. Outputs are overwritten unless said otherwise.
#ifndef EBB_TESTS_KERNELS_REFERENCE_H
#define EBB_TESTS_KERNELS_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

// c (m,n), dense = alpha * op(a) op(b) + beta * c0 (m,n) with row stride ldc0; beta 0 ignores c0.
void ref_gemm(double *c, double *mag, int ta, int tb, int m, int n, int k, double alpha, const float *a, int lda, const float *b, int ldb,
              double beta, const float *c0, int ldc0);
// y, mean, rstd as the backend's slot.
void ref_layernorm(double *y, double *mag, double *mean, double *rstd, const float *x, const float *w, const float *b, size_t rows, size_t cols);
// dx alone (nothing added), dw, db, through the Jacobian d n_i / d x_j = rstd * (delta_ij - 1/cols - n_i n_j / cols).
void ref_layernorm_grad(double *dx, double *dx_mag, double *dw, double *dw_mag, double *db, double *db_mag, const float *dy, const float *x,
                        const float *w, size_t rows, size_t cols);
double ref_gelu(double x);
double ref_gelu_slope(double x);
// out (batch,steps,width), probs (batch,heads,steps,steps).
void ref_attention(double *out, double *mag, double *probs, const float *qkv, size_t batch, size_t steps, size_t width, size_t heads);
// dqkv (batch,steps,3*width), through the softmax Jacobian d p_i / d s_j = p_i (delta_ij - p_j).
void ref_attention_grad(double *dqkv, double *mag, const float *dout, const float *qkv, size_t batch, size_t steps, size_t width, size_t heads);
// Sum of the cross-entropies; probs (rows,classes) = softmax.
double ref_softmax_xent(double *probs, const float *logits, const int32_t *labels, size_t rows, size_t classes);

#endif
