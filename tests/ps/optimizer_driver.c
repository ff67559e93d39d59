// Runs one optimizer over given numbers and prints its state after each step: the program under test of tests/oracle/optimizer.py.
// Input (text, numbers as C hexadecimal floats): one line
//   name lr beta1 beta2 eps momentum nesterov weight_decay lr_scale schedule warmup steps_total min_lr_ratio ahead numel updates
// then numel initial values, then per update: weight and numel gradients. Output: per update one line per array (parameters, then slots),
// and one of the parameters `ahead` updates ahead.
#include <stdio.h>
#include <stdlib.h>

#include "ps/optimizer.h"

static void s_read(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (scanf("%f", &x[i]) != 1) {
            fprintf(stderr, "optimizer_driver: input ends early\n");
            exit(65);
        }
    }
}

int main(void)
{
    char name[32], schedule[32], why[256] = "";
    Ebb__OptimizerSpec spec = EBB__OPTIMIZER_SPEC__INIT;
    Ebb__OptimizerGroup group = EBB__OPTIMIZER_GROUP__INIT, *groups[1] = {&group};
    unsigned long warmup, total, numel, updates;
    double ahead;
    int nesterov;
    if (scanf("%31s %la %la %la %la %la %d %la %la %31s %lu %lu %la %la %lu %lu", name, &spec.lr, &spec.beta1, &spec.beta2, &spec.eps, &spec.momentum,
              &nesterov, &group.weight_decay, &group.lr_scale, schedule, &warmup, &total, &spec.min_lr_ratio, &ahead, &numel, &updates) != 16 ||
        numel == 0 || numel > 100000) {
        fprintf(stderr, "optimizer_driver: bad first line\n");
        return 65;
    }
    spec.name = name;
    spec.schedule = schedule;
    spec.nesterov = nesterov;
    spec.warmup_steps = warmup;
    spec.n_groups = 1;
    spec.groups = groups;
    ebb_optimizer o;
    if (ebb_optimizer_init(&o, &spec, total, why) != EBB_OK) {
        fprintf(stderr, "optimizer_driver: %s\n", why);
        return 65;
    }
    float *x[3], *g = calloc(numel, sizeof(float)), *y = calloc(numel, sizeof(float)), weight;
    for (int i = 0; i < 3; i++) {
        x[i] = calloc(numel, sizeof(float));
    }
    s_read(x[0], numel);
    for (unsigned long u = 1; u <= updates; u++) {
        s_read(&weight, 1);
        s_read(g, numel);
        const float *in[3] = {x[0], x[1], x[2]};
        ebb_optimizer_apply(&o, 0, u, weight, numel, g, in, x);
        for (uint32_t s = 0; s <= o.slots; s++) {
            for (unsigned long i = 0; i < numel; i++) {
                printf("%a ", (double)x[s][i]);
            }
            printf("\n");
        }
        const float *now[3] = {x[0], x[1], x[2]}, *at = ebb_optimizer_look_ahead(&o, 0, u, ahead, weight, numel, now, y) ? y : x[0];
        for (unsigned long i = 0; i < numel; i++) {
            printf("%a ", (double)at[i]);
        }
        printf("\n");
    }
    free(g);
    free(y);
    for (int i = 0; i < 3; i++) {
        free(x[i]);
    }
    return 0;
}
