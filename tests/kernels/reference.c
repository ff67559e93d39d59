#include "tests/kernels/reference.h"

#include <math.h>
#include <stdlib.h>

#include "core/assert.h"

void ref_gemm(double *c, double *mag, int ta, int tb, int m, int n, int k, double alpha, const float *a, int lda, const float *b, int ldb,
              double beta, const float *c0, int ldc0)
{
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            double sum = 0, abs = 0;
            for (int l = 0; l < k; l++) {
                double term = (double)(ta ? a[l * lda + i] : a[i * lda + l]) * (tb ? b[j * ldb + l] : b[l * ldb + j]);
                sum += term;
                abs += fabs(term);
            }
            double old = beta == 0 ? 0 : beta * c0[i * ldc0 + j];
            c[i * n + j] = alpha * sum + old;
            mag[i * n + j] = fabs(alpha) * abs + fabs(old);
        }
    }
}

// spread = mean of |x|: what the rounding of the mean is measured by (the mean itself may cancel to nothing).
static void s_moments(const float *x, size_t cols, double *mean, double *rstd, double *spread)
{
    double sum = 0, abs = 0, square = 0;
    for (size_t c = 0; c < cols; c++) {
        sum += x[c];
        abs += fabs(x[c]);
    }
    *mean = sum / (double)cols;
    *spread = abs / (double)cols;
    for (size_t c = 0; c < cols; c++) {
        square += (x[c] - *mean) * (x[c] - *mean);
    }
    *rstd = 1.0 / sqrt(square / (double)cols + 1e-5);
}

void ref_layernorm(double *y, double *mag, double *mean, double *rstd, const float *x, const float *w, const float *b, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        double spread;
        s_moments(x + r * cols, cols, &mean[r], &rstd[r], &spread);
        for (size_t c = 0; c < cols; c++) {
            double v = x[r * cols + c];
            y[r * cols + c] = (v - mean[r]) * rstd[r] * w[c] + b[c];
            mag[r * cols + c] = (fabs(v) + spread) * rstd[r] * fabs(w[c]) + fabs(b[c]);
        }
    }
}

void ref_layernorm_grad(double *dx, double *dx_mag, double *dw, double *dw_mag, double *db, double *db_mag, const float *dy, const float *x,
                        const float *w, size_t rows, size_t cols)
{
    double n = (double)cols;
    for (size_t c = 0; c < cols; c++) {
        dw[c] = dw_mag[c] = db[c] = db_mag[c] = 0;
    }
    for (size_t r = 0; r < rows; r++) {
        const float *in = x + r * cols, *g = dy + r * cols;
        double mean, rstd, spread;
        s_moments(in, cols, &mean, &rstd, &spread);
        for (size_t j = 0; j < cols; j++) {
            double nj = (in[j] - mean) * rstd, sum = 0, abs = 0;
            for (size_t i = 0; i < cols; i++) {
                double ni = (in[i] - mean) * rstd, up = (double)g[i] * w[i];
                sum += up * rstd * ((i == j) - 1.0 / n - ni * nj / n);
                abs += fabs(up) * rstd * ((i == j) + 1.0 / n + fabs(ni * nj) / n);
            }
            dx[r * cols + j] = sum;
            dx_mag[r * cols + j] = abs;
            dw[j] += g[j] * nj;
            dw_mag[j] += fabs(g[j]) * (fabs(in[j]) + spread) * rstd;
            db[j] += g[j];
            db_mag[j] += fabs(g[j]);
        }
    }
}

static const double GELU_A = 0.79788456080286535588; // sqrt(2/pi)

double ref_gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(GELU_A * (x + 0.044715 * x * x * x)));
}

double ref_gelu_slope(double x)
{
    double u = GELU_A * (x + 0.044715 * x * x * x), c = cosh(u);
    double sech2 = fabs(u) > 300 ? 0 : 1.0 / (c * c);
    return 0.5 * (1.0 + tanh(u)) + 0.5 * x * sech2 * GELU_A * (1.0 + 3.0 * 0.044715 * x * x);
}

// Row i of the causal probabilities of one head: p (i+1).
static void s_probs_row(double *p, const float *q, const float *k, size_t i, size_t ld, size_t hs)
{
    double top = -INFINITY, sum = 0;
    for (size_t j = 0; j <= i; j++) {
        double dot = 0;
        for (size_t e = 0; e < hs; e++) {
            dot += (double)q[i * ld + e] * k[j * ld + e];
        }
        p[j] = dot / sqrt((double)hs);
        top = fmax(top, p[j]);
    }
    for (size_t j = 0; j <= i; j++) {
        p[j] = exp(p[j] - top);
        sum += p[j];
    }
    for (size_t j = 0; j <= i; j++) {
        p[j] /= sum;
    }
}

void ref_attention(double *out, double *mag, double *probs, const float *qkv, size_t batch, size_t steps, size_t width, size_t heads)
{
    size_t hs = width / heads, ld = 3 * width;
    for (size_t b = 0; b < batch; b++) {
        for (size_t h = 0; h < heads; h++) {
            const float *q = qkv + b * steps * ld + h * hs, *k = q + width, *v = k + width;
            for (size_t i = 0; i < steps; i++) {
                double *p = probs + ((b * heads + h) * steps + i) * steps;
                s_probs_row(p, q, k, i, ld, hs);
                for (size_t j = i + 1; j < steps; j++) {
                    p[j] = 0;
                }
                for (size_t e = 0; e < hs; e++) {
                    double sum = 0, abs = 0;
                    for (size_t j = 0; j <= i; j++) {
                        sum += p[j] * v[j * ld + e];
                        abs += p[j] * fabs(v[j * ld + e]);
                    }
                    out[(b * steps + i) * width + h * hs + e] = sum;
                    mag[(b * steps + i) * width + h * hs + e] = abs;
                }
            }
        }
    }
}

// One head, one row i: adds its part of the gradient.
static void s_attention_grad_row(double *dq, double *mq, const double *p, const float *d, const float *q, size_t i, size_t ld, size_t width,
                                 size_t hs)
{
    const float *k = q + width, *v = k + width;
    double *dk = dq + width, *dv = dk + width, *mk = mq + width, *mv = mk + width, root = sqrt((double)hs);
    for (size_t j = 0; j <= i; j++) {
        double ds = 0, ds_abs = 0;
        for (size_t m = 0; m <= i; m++) {
            double dp = 0, dp_abs = 0;
            for (size_t e = 0; e < hs; e++) {
                dp += (double)d[e] * v[m * ld + e];
                dp_abs += fabs((double)d[e] * v[m * ld + e]);
            }
            ds += dp * p[m] * ((m == j) - p[j]);
            ds_abs += dp_abs * p[m] * ((m == j) + p[j]);
        }
        for (size_t e = 0; e < hs; e++) {
            dv[j * ld + e] += p[j] * d[e];
            mv[j * ld + e] += p[j] * fabs(d[e]);
            dq[i * ld + e] += ds * k[j * ld + e] / root;
            mq[i * ld + e] += ds_abs * fabs(k[j * ld + e]) / root;
            dk[j * ld + e] += ds * q[i * ld + e] / root;
            mk[j * ld + e] += ds_abs * fabs(q[i * ld + e]) / root;
        }
    }
}

void ref_attention_grad(double *dqkv, double *mag, const float *dout, const float *qkv, size_t batch, size_t steps, size_t width, size_t heads)
{
    size_t hs = width / heads, ld = 3 * width;
    double *p = malloc(steps * sizeof(*p));
    EBB_ASSERT(p != NULL);
    for (size_t i = 0; i < batch * steps * ld; i++) {
        dqkv[i] = mag[i] = 0;
    }
    for (size_t b = 0; b < batch; b++) {
        for (size_t h = 0; h < heads; h++) {
            size_t at = b * steps * ld + h * hs;
            for (size_t i = 0; i < steps; i++) {
                s_probs_row(p, qkv + at, qkv + at + width, i, ld, hs);
                s_attention_grad_row(dqkv + at, mag + at, p, dout + (b * steps + i) * width + h * hs, qkv + at, i, ld, width, hs);
            }
        }
    }
    free(p);
}

double ref_softmax_xent(double *probs, const float *logits, const int32_t *labels, size_t rows, size_t classes)
{
    double total = 0;
    for (size_t r = 0; r < rows; r++) {
        double top = -INFINITY, sum = 0;
        for (size_t c = 0; c < classes; c++) {
            top = fmax(top, logits[r * classes + c]);
        }
        for (size_t c = 0; c < classes; c++) {
            sum += exp(logits[r * classes + c] - top);
        }
        for (size_t c = 0; c < classes; c++) {
            probs[r * classes + c] = exp(logits[r * classes + c] - top) / sum;
        }
        total += log(sum) + top - logits[r * classes + (size_t)labels[r]];
    }
    return total;
}
