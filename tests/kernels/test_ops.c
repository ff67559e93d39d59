// Every slot of a backend against naive double references (reference.h) on fresh random shapes: odd, one, and around vector lengths.
//
// Arrays that a slot must overwrite are NaN before the call, and each array is followed by guard values; so an element not written, or one written too
// many, fails. Errors are measured in units of FLT_EPSILON * (sum of the absolute terms of that element). A later backend is one more row in s_backends.
#include "tests/support/check.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/assert.h"
#include "kernels/backend.h"
#include "kernels/blas_core.h"
#include "tests/kernels/reference.h"

enum { ROUNDS = 25, GUARD = 16, ARRAYS_MAX = 32 };
static const float GUARD_VALUE = 12345.678f;

typedef struct guarded {
    float *p;
    size_t n;
} guarded;

static uint64_t s_seed, s_counter;
static const ebb_backend *k;
static guarded s_floats[ARRAYS_MAX];
static double *s_doubles[ARRAYS_MAX];
static size_t s_n_floats, s_n_doubles;

static size_t s_int(size_t least, size_t most)
{
    return least + ebb_rng_at(s_seed, 1, s_counter++) % (most - least + 1);
}

// Sizes that vector code gets wrong: 1, and just below, at and above multiples of 16, or anything.
static size_t s_size(size_t most)
{
    size_t n = s_int(0, 2) == 0 ? s_int(1, most) : 16 * s_int(0, most / 16) + s_int(0, 2);
    return n < 1 ? 1 : n > most + 1 ? most + 1 : n > 1 && s_int(0, 7) == 0 ? n - 1 : n;
}

static float *s_array(size_t n, float fill)
{
    EBB_ASSERT(s_n_floats < ARRAYS_MAX);
    float *p = malloc((n + GUARD) * sizeof(*p));
    EBB_ASSERT(p != NULL);
    for (size_t i = 0; i < n + GUARD; i++) {
        p[i] = i < n ? fill : GUARD_VALUE;
    }
    s_floats[s_n_floats++] = (guarded){p, n};
    return p;
}

static float *s_unset(size_t n)
{
    return s_array(n, NAN);
}

static float *s_normal(size_t n, float std)
{
    float *p = s_array(n, 0);
    uint64_t stream = s_counter++;
    for (size_t i = 0; i < n; i++) {
        p[i] = std * (float)ebb_rng_normal_at(s_seed, stream, i);
    }
    return p;
}

static float *s_dup(const float *from, size_t n)
{
    return memcpy(s_array(n, 0), from, n * sizeof(*from));
}

static double *s_reference(size_t n)
{
    EBB_ASSERT(s_n_doubles < ARRAYS_MAX);
    double *p = calloc(n, sizeof(*p));
    EBB_ASSERT(p != NULL);
    return s_doubles[s_n_doubles++] = p;
}

// Ends a round: guards are whole, memory goes back.
static void s_done(const char *what)
{
    for (size_t a = 0; a < s_n_floats; a++) {
        for (size_t i = 0; i < GUARD; i++) {
            if (s_floats[a].p[s_floats[a].n + i] != GUARD_VALUE) {
                fail_msg("%s wrote behind array %zu (%zu elements)", what, a, s_floats[a].n);
            }
        }
        free(s_floats[a].p);
    }
    while (s_n_doubles > 0) {
        free(s_doubles[--s_n_doubles]);
    }
    s_n_floats = 0;
}

// |got - want| <= units * FLT_EPSILON * (mag or |want|), everywhere; `floor` is added to the magnitude. NaN fails.
static void s_close(const char *what, const float *got, const double *want, const double *mag, size_t n, double units, double floor)
{
    for (size_t i = 0; i < n; i++) {
        double most = units * (double)FLT_EPSILON * ((mag != NULL ? mag[i] : fabs(want[i])) + floor);
        if (!(fabs(got[i] - want[i]) <= most)) {
            fail_msg("%s[%zu of %zu]: got %.9g, want %.9g, allowed error %.3g (EBB_SEED=%llu)", what, i, n, (double)got[i], want[i], most,
                     (unsigned long long)s_seed);
        }
    }
}

static void s_same(const char *what, const float *a, const float *b, size_t n)
{
    if (memcmp(a, b, n * sizeof(*a)) != 0) {
        fail_msg("%s was changed", what);
    }
}

// m, n, k, transposes and strides of every kind; c between its rows stays as it was.
static void s_gemm_round(int ta, int tb, int m, int n, int depth)
{
    int lda = (ta ? m : depth) + (int)s_int(0, 3), ldb = (tb ? depth : n) + (int)s_int(0, 3), ldc = n + (int)s_int(0, 3);
    float alpha = s_int(0, 1) ? 1.0f : -0.7f, beta = s_int(0, 1) ? 0.0f : 0.3f;
    float *a = s_normal((size_t)lda * (size_t)(ta ? depth : m), 1), *b = s_normal((size_t)ldb * (size_t)(tb ? n : depth), 1);
    float *c = s_normal((size_t)ldc * (size_t)m, 1), *row = s_unset((size_t)n);
    if (beta == 0.0f) { // what c held must not matter, not even NaN
        for (int i = 0; i < m; i++) {
            memcpy(c + i * ldc, row, (size_t)n * sizeof(*c));
        }
    }
    float *before = s_dup(c, (size_t)ldc * (size_t)m);
    double *want = s_reference((size_t)m * (size_t)n), *mag = s_reference((size_t)m * (size_t)n);
    ref_gemm(want, mag, ta, tb, m, n, depth, alpha, a, lda, b, ldb, beta, before, ldc);
    k->gemm(ta, tb, m, n, depth, alpha, a, lda, b, ldb, beta, c, ldc);
    for (int i = 0; i < m; i++) {
        s_close("gemm", c + i * ldc, want + i * n, mag + i * n, (size_t)n, 4 + 0.5 * sqrt(depth), 0);
        s_same("gemm: between rows", c + i * ldc + n, before + i * ldc + n, (size_t)(ldc - n));
    }
    s_done("gemm");
}

static void test_ops_gemm(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * ROUNDS; i++) {
        s_gemm_round(i & 1, i >> 1 & 1, (int)s_size(90), (int)s_size(90), (int)s_size(120));
    }
    // The products of the example gpt: N = 1024 rows, width 128.
    s_gemm_round(0, 1, 1024, 384, 128);
    s_gemm_round(0, 0, 1024, 128, 512);
    s_gemm_round(1, 0, 512, 128, 1024);
}

// The same with two BLAS threads.
static void test_ops_gemm_threads_agree(void **state)
{
    (void)state;
    CHECK_ERR(ebb_backend_cpu_threads(0), EBB_INVAL);
    CHECK_ERR(ebb_backend_cpu_threads(-1), EBB_INVAL);
    CHECK_OK(ebb_backend_cpu_threads(2));
    for (int i = 0; i < 4; i++) {
        s_gemm_round(i & 1, i >> 1 & 1, 257, 193, 301);
    }
    CHECK_OK(ebb_backend_cpu_threads(1));
}

static void test_ops_bias(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        size_t rows = s_size(70), cols = s_size(150), n = rows * cols;
        float *y = s_normal(n, 1), *bias = s_normal(cols, 1), *dbias = s_unset(cols), *dy = s_dup(y, n);
        double *want = s_reference(n), *sum = s_reference(cols), *mag = s_reference(cols);
        for (size_t e = 0; e < n; e++) {
            want[e] = (double)y[e] + bias[e % cols];
            sum[e % cols] += dy[e];
            mag[e % cols] += fabs(dy[e]);
        }
        k->bias_add(y, bias, rows, cols);
        k->bias_grad(dbias, dy, rows, cols);
        s_close("bias_add", y, want, NULL, n, 1, 0);
        s_close("bias_grad", dbias, sum, mag, cols, 8, 0);
        s_done("bias");
    }
}

static void test_ops_layernorm(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        size_t rows = s_size(20), cols = s_size(200), n = rows * cols;
        float *x = s_normal(n, s_int(0, 1) ? 1.0f : 30.0f), *w = s_normal(cols, 1), *b = s_normal(cols, 1), *dy = s_normal(n, 1);
        float *y = s_unset(n), *mean = s_unset(rows), *rstd = s_unset(rows), *dx = s_normal(n, 1), *dw = s_unset(cols), *db = s_unset(cols);
        double *want = s_reference(n), *mag = s_reference(n), *wmean = s_reference(rows), *wrstd = s_reference(rows);
        double *wdx = s_reference(n), *mdx = s_reference(n), *wdw = s_reference(cols), *mdw = s_reference(cols), *wdb = s_reference(cols),
               *mdb = s_reference(cols);
        ref_layernorm(want, mag, wmean, wrstd, x, w, b, rows, cols);
        ref_layernorm_grad(wdx, mdx, wdw, mdw, wdb, mdb, dy, x, w, rows, cols);
        for (size_t e = 0; e < n; e++) { // dx is added to
            wdx[e] += dx[e];
            mdx[e] += fabs(dx[e]);
        }
        k->layernorm(y, mean, rstd, x, w, b, rows, cols);
        k->layernorm_grad(dx, dw, db, dy, x, mean, rstd, w, rows, cols);
        s_close("layernorm", y, want, mag, n, 16, 0);
        s_close("layernorm mean", mean, wmean, NULL, rows, 16, 30);
        if (cols > 1) { // one column: variance 0, all of rstd is epsilon
            s_close("layernorm rstd", rstd, wrstd, NULL, rows, 64, 0);
        }
        s_close("layernorm_grad dx", dx, wdx, mdx, n, 64, 0);
        s_close("layernorm_grad dw", dw, wdw, mdw, cols, 32, 0);
        s_close("layernorm_grad db", db, wdb, mdb, cols, 8, 0);
        s_done("layernorm");
    }
}

static void test_ops_activations(void **state)
{
    (void)state;
    static const float extremes[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 5.0f, -5.0f, 12.0f, -12.0f, 1e4f, -1e4f, 1e9f, -1e9f};
    for (int i = 0; i < ROUNDS; i++) {
        size_t n = s_size(600);
        float *x = s_normal(n, 3), *dy = s_normal(n, 1), *y = s_unset(n), *r = s_dup(x, n), *dr = s_dup(dy, n), *sum = s_unset(n);
        for (size_t e = 0; e < n && e < sizeof(extremes) / sizeof(extremes[0]); e++) {
            x[e] = r[e] = extremes[e];
        }
        double *gelu = s_reference(n), *slope = s_reference(n), *mag = s_reference(n), *gmag = s_reference(n), *add = s_reference(n);
        double *relu = s_reference(n), *relu_grad = s_reference(n);
        for (size_t e = 0; e < n; e++) {
            gelu[e] = ref_gelu(x[e]);
            mag[e] = fabs(x[e]);
            slope[e] = dy[e] * ref_gelu_slope(x[e]);
            gmag[e] = fabs(dy[e]) * (1 + fabs(x[e]) + fabs(pow(fmin(fabs(x[e]), 6), 3)));
            add[e] = (double)x[e] + dy[e];
            relu[e] = x[e] > 0 ? x[e] : 0;
            relu_grad[e] = x[e] > 0 ? dy[e] : 0;
        }
        k->add(sum, x, dy, n);
        k->gelu(y, x, n);
        k->relu(r, n);
        k->relu_grad(dr, r, n);
        k->gelu_grad(dy, x, n);
        s_close("add", sum, add, NULL, n, 1, 0);
        s_close("gelu", y, gelu, mag, n, 8, 0);
        s_close("gelu_grad", dy, slope, gmag, n, 16, 0);
        s_close("relu", r, relu, NULL, n, 0, 0);
        s_close("relu_grad", dr, relu_grad, NULL, n, 0, 0);
        s_done("activations");
    }
}

static void s_attention_round(size_t batch, size_t steps, size_t width, size_t heads, float std)
{
    size_t n = batch * steps * width, np = batch * heads * steps * steps;
    float *qkv = s_normal(3 * n, std), *dout = s_normal(n, 1), *out = s_unset(n), *probs = s_unset(np), *dqkv = s_unset(3 * n);
    float *scratch = s_unset(steps * steps), *kept = s_dup(qkv, 3 * n);
    double *want = s_reference(n), *mag = s_reference(n), *wprobs = s_reference(np), *wd = s_reference(3 * n), *md = s_reference(3 * n);
    ref_attention(want, mag, wprobs, qkv, batch, steps, width, heads);
    ref_attention_grad(wd, md, dout, qkv, batch, steps, width, heads);
    k->attention(out, probs, qkv, batch, steps, width, heads);
    k->attention_grad(dqkv, scratch, dout, probs, qkv, batch, steps, width, heads);
    // A score's own error, about eps * |score|, is a relative error of its probability.
    double units = 64 + 16 * (double)(std * std) * sqrt((double)width / (double)heads);
    s_same("attention: qkv", qkv, kept, 3 * n);
    s_close("attention probs", probs, wprobs, NULL, np, units, 1e-6);
    s_close("attention", out, want, mag, n, units, 1e-6);
    s_close("attention_grad", dqkv, wd, md, 3 * n, units, 1e-6);
    for (size_t i = 0; i < np; i++) { // the future is exactly 0, not nearly
        if (i % steps > i / steps % steps && probs[i] != 0.0f) {
            fail_msg("attention looks ahead");
        }
    }
    s_done("attention");
}

static void test_ops_attention(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        size_t heads = s_int(1, 5);
        s_attention_round(s_int(1, 3), s_size(34), heads * s_int(1, 33), heads, i % 3 == 0 ? 2.0f : 1.0f);
    }
    s_attention_round(1, 1, 1, 1, 1);
    s_attention_round(2, 64, 128, 4, 1);
}

static void test_ops_softmax_xent(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        size_t rows = s_size(40), classes = 1 + s_size(300), n = rows * classes, right = 0, got_right = 999, seen_right = 999;
        float std = i % 4 == 0 ? 3000.0f : 4.0f, scale = 1.0f / (float)rows; // 3000: e^x alone would overflow
        float *logits = s_normal(n, std), *kept = s_dup(logits, n), *grads = s_dup(logits, n), *again = s_dup(logits, n);
        int32_t *labels = calloc(rows, sizeof(*labels));
        double *want = s_reference(n), *mag = s_reference(n);
        assert_non_null(labels);
        for (size_t r = 0; r < rows; r++) {
            labels[r] = (int32_t)s_int(0, classes - 1);
            size_t best = 0;
            for (size_t c = 1; c < classes; c++) {
                best = logits[r * classes + c] > logits[r * classes + best] ? c : best;
            }
            right += best == (size_t)labels[r];
        }
        double loss = ref_softmax_xent(want, logits, labels, rows, classes);
        for (size_t e = 0; e < n; e++) {
            int hit = (size_t)labels[e / classes] == e % classes;
            mag[e] = (want[e] + hit) * scale;
            want[e] = (want[e] - hit) * scale;
        }
        double evaluated = k->softmax_xent(logits, labels, rows, classes, 0, 0.0f, &seen_right);
        double trained = k->softmax_xent(grads, labels, rows, classes, 1, scale, &got_right);
        double unasked = k->softmax_xent(again, labels, rows, classes, 1, scale, NULL);
        double most = 64 * (double)FLT_EPSILON * ((double)rows + loss);
        s_same("softmax_xent: logits without grad", logits, kept, n);
        s_close("softmax_xent", grads, want, mag, n, 64, 1e-7);
        if (!(fabs(evaluated - loss) <= most && fabs(trained - loss) <= most) || trained != unasked) {
            fail_msg("softmax_xent: loss %.12g, %.12g and %.12g, want %.12g", evaluated, trained, unasked, loss);
        }
        assert_int_equal(seen_right, right);
        assert_int_equal(got_right, right);
        free(labels);
        s_done("softmax_xent");
    }
}

// A diverged model must not look healthy: a NaN anywhere in a row, at the front, in a vector or in its tail, ends in the loss.
static void test_ops_softmax_xent_shows_nan(void **state)
{
    (void)state;
    for (size_t at = 0; at < 37; at++) {
        float *logits = s_normal(37, 1);
        int32_t label = (int32_t)s_int(0, 36);
        logits[at] = NAN;
        assert_true(isnan(k->softmax_xent(logits, &label, 1, 37, 0, 0.0f, NULL)));
        assert_true(isnan(k->softmax_xent(logits, &label, 1, 37, 1, 1.0f, NULL)));
        s_done("softmax_xent");
    }
}

static void test_ops_embed(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        size_t steps = s_size(20), rows = steps * s_int(1, 4), width = s_size(100), vocab = s_int(1, 12), n = rows * width; // few tokens: repeats
        float *table = s_normal(vocab * width, 1), *positions = s_normal(steps * width, 1), *out = s_unset(n), *dout = s_normal(n, 1);
        float *dtable = s_normal(vocab * width, 1), *dpositions = s_unset(steps * width);
        int32_t *tokens = calloc(rows, sizeof(*tokens));
        double *want = s_reference(n), *wt = s_reference(vocab * width), *mt = s_reference(vocab * width), *wp = s_reference(steps * width),
               *mp = s_reference(steps * width);
        assert_non_null(tokens);
        for (size_t e = 0; e < vocab * width; e++) {
            wt[e] = dtable[e];
            mt[e] = fabs(dtable[e]);
        }
        for (size_t r = 0; r < rows; r++) {
            tokens[r] = (int32_t)s_int(0, vocab - 1);
            for (size_t c = 0; c < width; c++) {
                size_t t = (size_t)tokens[r] * width + c, p = r % steps * width + c;
                want[r * width + c] = (double)table[t] + positions[p];
                wt[t] += dout[r * width + c];
                mt[t] += fabs(dout[r * width + c]);
                wp[p] += dout[r * width + c];
                mp[p] += fabs(dout[r * width + c]);
            }
        }
        k->embed(out, table, positions, tokens, rows, steps, width);
        k->embed_grad(dtable, dpositions, dout, tokens, rows, steps, width);
        s_close("embed", out, want, NULL, n, 1, 0);
        s_close("embed_grad table", dtable, wt, mt, vocab * width, 16, 0);
        s_close("embed_grad positions", dpositions, wp, mp, steps * width, 8, 0);
        free(tokens);
        s_done("embed");
    }
}

static void test_ops_reduce(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        size_t n = i == 0 ? 1000003 : s_size(5000);
        float *x = s_normal(n, 2);
        double *want = s_reference(n), sum = 0;
        for (size_t e = 0; e < n; e++) {
            sum += (double)x[e] * x[e];
            want[e] = (double)x[e] * 0.37f;
        }
        double got = k->sum_squares(x, n);
        if (!(fabs(got - sum) <= 16 * (double)FLT_EPSILON * sum)) {
            fail_msg("sum_squares of %zu: got %.12g, want %.12g", n, got, sum);
        }
        k->scale(x, 0.37f, n);
        s_close("scale", x, want, NULL, n, 1, 0);
        x[s_int(0, n - 1)] = NAN;
        assert_true(isnan(k->sum_squares(x, n))); // gradient clipping rests on this
        s_done("reduce");
    }
    assert_true(k->sum_squares(NULL, 0) == 0.0);
}

int main(int argc, char **argv)
{
    (void)argc;
    ebb_blas_core_tune(argv); // tests the BLAS kernels the programs use
    const ebb_backend *const s_backends[] = {ebb_backend_cpu()};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops_gemm),         cmocka_unit_test(test_ops_gemm_threads_agree),
        cmocka_unit_test(test_ops_bias),         cmocka_unit_test(test_ops_layernorm),
        cmocka_unit_test(test_ops_activations),  cmocka_unit_test(test_ops_attention),
        cmocka_unit_test(test_ops_softmax_xent), cmocka_unit_test(test_ops_softmax_xent_shows_nan),
        cmocka_unit_test(test_ops_embed),        cmocka_unit_test(test_ops_reduce),
    };
    int failed = 0;
    s_seed = ebb_test_seed();
    if (ebb_backend_cpu_threads(1) != EBB_OK) {
        return 1;
    }
    for (size_t i = 0; i < sizeof(s_backends) / sizeof(s_backends[0]); i++) {
        k = s_backends[i];
        printf("backend %s, OpenBLAS kernels %s\n", k->name, ebb_blas_core_name());
        fflush(stdout);
        failed += cmocka_run_group_tests_name(k->name, tests, NULL, NULL);
    }
    return failed;
}
