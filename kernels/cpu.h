// The CPU backend's functions, one file per operation; the contracts are those of the table in backend.h.
#ifndef EBB_KERNELS_CPU_H
#define EBB_KERNELS_CPU_H

#include <stddef.h>
#include <stdint.h>

void ebb_cpu_gemm(int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
void ebb_cpu_bias_add(float *y, const float *bias, size_t rows, size_t cols);
void ebb_cpu_bias_grad(float *dbias, const float *dy, size_t rows, size_t cols);
void ebb_cpu_layernorm(float *y, float *mean, float *rstd, const float *x, const float *w, const float *b, size_t rows, size_t cols);
void ebb_cpu_layernorm_grad(float *dx, float *dw, float *db, const float *dy, const float *x, const float *mean, const float *rstd, const float *w,
                            size_t rows, size_t cols);
void ebb_cpu_gelu(float *y, const float *x, size_t n);
void ebb_cpu_gelu_grad(float *dy, const float *x, size_t n);
void ebb_cpu_relu(float *x, size_t n);
void ebb_cpu_relu_grad(float *dy, const float *y, size_t n);
void ebb_cpu_add(float *y, const float *a, const float *b, size_t n);
void ebb_cpu_attention(float *out, float *probs, const float *qkv, size_t batch, size_t steps, size_t width, size_t heads);
void ebb_cpu_attention_grad(float *dqkv, float *scratch, const float *dout, const float *probs, const float *qkv, size_t batch, size_t steps,
                            size_t width, size_t heads);
double ebb_cpu_softmax_xent(float *logits, const int32_t *labels, size_t rows, size_t classes, int grad, float scale, size_t *correct);
void ebb_cpu_embed(float *out, const float *table, const float *positions, const int32_t *tokens, size_t rows, size_t steps, size_t width);
void ebb_cpu_embed_grad(float *dtable, float *dpositions, const float *dout, const int32_t *tokens, size_t rows, size_t steps, size_t width);
double ebb_cpu_sum_squares(const float *x, size_t n);
void ebb_cpu_scale(float *x, float a, size_t n);

#endif
