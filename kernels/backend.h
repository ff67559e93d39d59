// Tensor math behind one table, so that models are written once for every device.
//
// All arrays are float32, row-major and dense unless a leading dimension is given; shapes stand beside each slot. No slot allocates; no slot keeps a
// pointer after it returns. The CPU backend is always there and is the oracle for every other one. Slots may block until the result is there.
#ifndef EBB_KERNELS_BACKEND_H
#define EBB_KERNELS_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct ebb_backend {
    const char *name;

    // c (m,n) = alpha * op(a) (m,k) * op(b) (k,n) + beta * c; op transposes if ta/tb; lda.. = row strides of the arrays as stored.
    void (*gemm)(int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    // y (rows,cols) += bias (cols)
    void (*bias_add)(float *y, const float *bias, size_t rows, size_t cols);
    // dbias (cols) = sum over rows of dy (rows,cols)
    void (*bias_grad)(float *dbias, const float *dy, size_t rows, size_t cols);

    // y (rows,cols) = (x - mean) * rstd * w + b per row; mean and rstd (rows) are kept for backward; eps 1e-5.
    void (*layernorm)(float *y, float *mean, float *rstd, const float *x, const float *w, const float *b, size_t rows, size_t cols);
    // dx (rows,cols) += gradient; dw, db (cols) are overwritten.
    void (*layernorm_grad)(float *dx, float *dw, float *db, const float *dy, const float *x, const float *mean, const float *rstd, const float *w,
                           size_t rows, size_t cols);

    // y = gelu(x), tanh form (Hendrycks & Gimpel, arXiv 1606.08415, eq. 2). x (n).
    void (*gelu)(float *y, const float *x, size_t n);
    // dy (n) becomes dx.
    void (*gelu_grad)(float *dy, const float *x, size_t n);
    void (*relu)(float *x, size_t n);
    // dy becomes dx, y = relu(x).
    void (*relu_grad)(float *dy, const float *y, size_t n);
    // y = a + b (n)
    void (*add)(float *y, const float *a, const float *b, size_t n);

    // Causal self-attention. qkv (batch, steps, 3*width): q, k, v one after another, each split in heads of width/heads; out (batch, steps, width);
    // probs (batch, heads, steps, steps) is kept for backward.
    void (*attention)(float *out, float *probs, const float *qkv, size_t batch, size_t steps, size_t width, size_t heads);
    // dqkv is overwritten; scratch (steps, steps).
    void (*attention_grad)(float *dqkv, float *scratch, const float *dout, const float *probs, const float *qkv, size_t batch, size_t steps,
                           size_t width, size_t heads);

    // Sum over rows of the cross-entropy of logits (rows,classes) against labels (rows); *correct counts rows whose largest logit is the label (may be
    // NULL). With grad: logits become scale * (softmax - onehot).
    double (*softmax_xent)(float *logits, const int32_t *labels, size_t rows, size_t classes, int grad, float scale, size_t *correct);

    // out (rows,width) = table (vocab,width)[tokens (rows)] + positions (steps,width)[row % steps]
    void (*embed)(float *out, const float *table, const float *positions, const int32_t *tokens, size_t rows, size_t steps, size_t width);
    // dtable += (the caller has set it), dpositions overwritten
    void (*embed_grad)(float *dtable, float *dpositions, const float *dout, const int32_t *tokens, size_t rows, size_t steps, size_t width);

    double (*sum_squares)(const float *x, size_t n);
    void (*scale)(float *x, float a, size_t n);
} ebb_backend;

const ebb_backend *ebb_backend_cpu(void);
// Threads of the CPU backend (BLAS) in this process. INVAL: n < 1.
ebb_status ebb_backend_cpu_threads(int n);

#endif
