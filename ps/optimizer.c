#include "ps/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/assert.h"

// One binary for any x86-64: the loader picks the widest clone. Sanitizer runtimes are not up yet when the loader asks, so not there.
#if defined(__x86_64__) && !defined(EBB_SANITIZED)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
// In and out may be the same array; element i of out depends on element i of the inputs only.
#define ELEMENTWISE _Pragma("GCC ivdep")

static ebb_status s_bad(char *why, const char *name, double v, const char *must)
{
    snprintf(why, 256, "optimizer.%s is %g, but must be %s", name, v, must);
    return EBB_CONFIG;
}

static ebb_status s_init_words(ebb_optimizer *o, const Ebb__OptimizerSpec *spec, char *why)
{
    static const struct {
        const char *name;
        ebb_optimizer_kind kind;
        uint32_t slots;
    } kinds[] = {{"sgd", EBB_OPTIMIZER_SGD, 0},
                 {"momentum", EBB_OPTIMIZER_MOMENTUM, 1},
                 {"adagrad", EBB_OPTIMIZER_ADAGRAD, 1},
                 {"adam", EBB_OPTIMIZER_ADAM, 2},
                 {"adamw", EBB_OPTIMIZER_ADAMW, 2}};
    static const char *const schedules[] = {"constant", "cosine", "linear"};
    size_t i;
    for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && strcmp(spec->name, kinds[i].name) != 0; i++) {
    }
    if (i == sizeof(kinds) / sizeof(kinds[0])) {
        snprintf(why, 256, "optimizer.name \"%.60s\" is not known (known: sgd, momentum, adagrad, adam, adamw)", spec->name);
        return EBB_CONFIG;
    }
    o->kind = kinds[i].kind;
    o->slots = kinds[i].slots;
    if (spec->schedule[0] == '\0') {
        o->schedule = EBB_SCHEDULE_CONSTANT;
        return EBB_OK;
    }
    for (i = 0; i < 3 && strcmp(spec->schedule, schedules[i]) != 0; i++) {
    }
    if (i == 3) {
        snprintf(why, 256, "optimizer.schedule \"%.60s\" is not known (known: constant, cosine, linear)", spec->schedule);
        return EBB_CONFIG;
    }
    o->schedule = (ebb_schedule)i;
    return EBB_OK;
}

ebb_status ebb_optimizer_init(ebb_optimizer *o, const Ebb__OptimizerSpec *spec, uint64_t steps_total, char *why)
{
    memset(o, 0, sizeof(*o));
    if (spec == NULL) {
        snprintf(why, 256, "the job has no optimizer");
        return EBB_CONFIG;
    }
    EBB_TRY(s_init_words(o, spec, why));
    o->lr = spec->lr;
    o->beta1 = spec->beta1;
    o->beta2 = spec->beta2;
    o->eps = spec->eps;
    o->momentum = spec->momentum;
    o->nesterov = spec->nesterov;
    o->warmup_steps = spec->warmup_steps;
    o->steps_total = steps_total;
    o->min_lr_ratio = spec->min_lr_ratio;
    bool adam = o->kind == EBB_OPTIMIZER_ADAM || o->kind == EBB_OPTIMIZER_ADAMW;
    if (!(isfinite(o->lr) && o->lr >= 0)) {
        return s_bad(why, "lr", o->lr, "a finite number, 0 or more");
    }
    if (adam && !(o->beta1 >= 0 && o->beta1 < 1)) {
        return s_bad(why, "beta1", o->beta1, "in [0, 1)");
    }
    if (adam && !(o->beta2 >= 0 && o->beta2 < 1)) {
        return s_bad(why, "beta2", o->beta2, "in [0, 1)");
    }
    if ((adam || o->kind == EBB_OPTIMIZER_ADAGRAD) && !(isfinite(o->eps) && o->eps > 0)) {
        return s_bad(why, "eps", o->eps, "above 0");
    }
    if (o->kind == EBB_OPTIMIZER_MOMENTUM && !(o->momentum >= 0 && o->momentum < 1)) {
        return s_bad(why, "momentum", o->momentum, "in [0, 1)");
    }
    if (!(o->min_lr_ratio >= 0 && o->min_lr_ratio <= 1)) {
        return s_bad(why, "min_lr_ratio", o->min_lr_ratio, "in [0, 1]");
    }
    if (spec->n_groups < 1 || spec->n_groups > EBB_OPTIMIZER_GROUPS_MAX) {
        return s_bad(why, "groups (their number)", (double)spec->n_groups, "1 to 64");
    }
    o->n_groups = (uint32_t)spec->n_groups;
    for (size_t i = 0; i < spec->n_groups; i++) {
        o->lr_scale[i] = spec->groups[i]->lr_scale;
        o->weight_decay[i] = spec->groups[i]->weight_decay;
        if (!(isfinite(o->lr_scale[i]) && o->lr_scale[i] >= 0)) {
            return s_bad(why, "groups.lr_scale", o->lr_scale[i], "a finite number, 0 or more");
        }
        if (!(isfinite(o->weight_decay[i]) && o->weight_decay[i] >= 0)) {
            return s_bad(why, "groups.weight_decay", o->weight_decay[i], "a finite number, 0 or more");
        }
    }
    return EBB_OK;
}

double ebb_optimizer_schedule(const ebb_optimizer *o, uint64_t version)
{
    if (version < o->warmup_steps) {
        return ((double)version + 1.0) / (double)o->warmup_steps;
    }
    if (o->schedule == EBB_SCHEDULE_CONSTANT) {
        return 1.0;
    }
    uint64_t span = o->steps_total > o->warmup_steps ? o->steps_total - o->warmup_steps : 1;
    double progress = (double)(version - o->warmup_steps) / (double)span;
    if (progress > 1.0) {
        progress = 1.0;
    }
    double shape = o->schedule == EBB_SCHEDULE_COSINE ? 0.5 * (1.0 + cos(M_PI * progress)) : 1.0 - progress;
    return o->min_lr_ratio + (1.0 - o->min_lr_ratio) * shape;
}

CLONES static void s_sgd(size_t n, const ebb_unaligned_f32 *g, const float *p, float *po, float lr, float wd)
{
    ELEMENTWISE
    for (size_t i = 0; i < n; i++) {
        float gi = g[i] + wd * p[i];
        po[i] = p[i] - lr * gi;
    }
}

CLONES static void s_momentum(size_t n, const ebb_unaligned_f32 *g, const float *p, float *po, const float *b, float *bo, float lr, float wd,
                              float mu)
{
    ELEMENTWISE
    for (size_t i = 0; i < n; i++) {
        float gi = g[i] + wd * p[i];
        float bi = mu * b[i] + gi;
        bo[i] = bi;
        po[i] = p[i] - lr * bi;
    }
}

CLONES static void s_nesterov(size_t n, const ebb_unaligned_f32 *g, const float *p, float *po, const float *b, float *bo, float lr, float wd,
                              float mu)
{
    ELEMENTWISE
    for (size_t i = 0; i < n; i++) {
        float gi = g[i] + wd * p[i];
        float bi = mu * b[i] + gi;
        bo[i] = bi;
        po[i] = p[i] - lr * (gi + mu * bi);
    }
}

CLONES static void s_adagrad(size_t n, const ebb_unaligned_f32 *g, const float *p, float *po, const float *s, float *so, float lr, float wd,
                             float eps)
{
    ELEMENTWISE
    for (size_t i = 0; i < n; i++) {
        float gi = g[i] + wd * p[i];
        float si = s[i] + gi * gi;
        so[i] = si;
        po[i] = p[i] - lr * (gi / (sqrtf(si) + eps));
    }
}

// keep: 1 - lr wd for adamw, 1 for adam (exact); wd: 0 for adamw.
CLONES static void s_adam(size_t n, const ebb_unaligned_f32 *g, const float *p, float *po, const float *m, float *mo, const float *v, float *vo,
                          float step, float keep, float wd, const float c[4], float root_bias2, float eps)
{
    float b1 = c[0], one_b1 = c[1], b2 = c[2], one_b2 = c[3];
    ELEMENTWISE
    for (size_t i = 0; i < n; i++) {
        float gi = g[i] + wd * p[i];
        float mi = b1 * m[i] + one_b1 * gi;
        float vi = b2 * v[i] + one_b2 * (gi * gi);
        mo[i] = mi;
        vo[i] = vi;
        po[i] = p[i] * keep - step * (mi / (sqrtf(vi) / root_bias2 + eps));
    }
}

void ebb_optimizer_apply(const ebb_optimizer *o, uint32_t group, uint64_t version, float weight, size_t numel, const ebb_unaligned_f32 *grad,
                         const float *const in[], float *const out[])
{
    EBB_ASSERT(group < o->n_groups && version >= 1);
    double lr = o->lr * ebb_optimizer_schedule(o, version - 1) * o->lr_scale[group] * (double)weight;
    double wd = o->weight_decay[group];
    switch (o->kind) {
    case EBB_OPTIMIZER_SGD:
        s_sgd(numel, grad, in[0], out[0], (float)lr, (float)wd);
        break;
    case EBB_OPTIMIZER_MOMENTUM:
        (o->nesterov ? s_nesterov : s_momentum)(numel, grad, in[0], out[0], in[1], out[1], (float)lr, (float)wd, (float)o->momentum);
        break;
    case EBB_OPTIMIZER_ADAGRAD:
        s_adagrad(numel, grad, in[0], out[0], in[1], out[1], (float)lr, (float)wd, (float)o->eps);
        break;
    case EBB_OPTIMIZER_ADAM:
    case EBB_OPTIMIZER_ADAMW: {
        bool decoupled = o->kind == EBB_OPTIMIZER_ADAMW;
        double bias1 = 1.0 - pow(o->beta1, (double)version), bias2 = 1.0 - pow(o->beta2, (double)version);
        const float c[4] = {(float)o->beta1, (float)(1.0 - o->beta1), (float)o->beta2, (float)(1.0 - o->beta2)};
        s_adam(numel, grad, in[0], out[0], in[1], out[1], in[2], out[2], (float)(lr / bias1), decoupled ? (float)(1.0 - lr * wd) : 1.0f,
               decoupled ? 0.0f : (float)wd, c, (float)sqrt(bias2), (float)o->eps);
        break;
    }
    }
}

CLONES static void s_ahead_adam(size_t n, const float *p, const float *m, const float *v, float *out, float step, float root_bias2, float eps)
{
    ELEMENTWISE
    for (size_t i = 0; i < n; i++) {
        out[i] = p[i] - step * (m[i] / (sqrtf(v[i]) / root_bias2 + eps));
    }
}

CLONES static void s_ahead_momentum(size_t n, const float *p, const float *b, float *out, float step)
{
    ELEMENTWISE
    for (size_t i = 0; i < n; i++) {
        out[i] = p[i] - step * b[i];
    }
}

bool ebb_optimizer_look_ahead(const ebb_optimizer *o, uint32_t group, uint64_t version, double versions, float weight, size_t numel,
                              const float *const in[], float *out)
{
    EBB_ASSERT(group < o->n_groups);
    bool adam = o->kind == EBB_OPTIMIZER_ADAM || o->kind == EBB_OPTIMIZER_ADAMW;
    double beta = adam ? o->beta1 : o->kind == EBB_OPTIMIZER_MOMENTUM ? o->momentum : 0.0;
    if (!(beta > 0.0) || !(versions > 0.0) || version == 0) {
        return false;
    }
    double sum = beta < 1.0 ? beta * (1.0 - pow(beta, versions)) / (1.0 - beta) : versions;
    sum *= o->kind == EBB_OPTIMIZER_MOMENTUM && o->nesterov ? beta : 1.0;
    double step = o->lr * ebb_optimizer_schedule(o, version) * o->lr_scale[group] * (double)weight * sum;
    if (adam) {
        double bias1 = 1.0 - pow(o->beta1, (double)version), bias2 = 1.0 - pow(o->beta2, (double)version);
        s_ahead_adam(numel, in[0], in[1], in[2], out, (float)(step / bias1), (float)sqrt(bias2), (float)o->eps);
    } else {
        s_ahead_momentum(numel, in[0], in[1], out, (float)step);
    }
    return true;
}

typedef uint32_t unaligned_u32 __attribute__((aligned(1), may_alias));

CLONES bool ebb_optimizer_all_finite(const ebb_unaligned_f32 *x, size_t n)
{
    const unaligned_u32 *bits = (const unaligned_u32 *)x;
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        bad |= (uint32_t)((bits[i] & 0x7fffffffu) >= 0x7f800000u);
    }
    return bad == 0;
}
