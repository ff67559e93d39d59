#include "kernels/blas_core.h"

#include <cblas.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

const char *ebb_blas_core_name(void)
{
    return openblas_get_corename();
}

void ebb_blas_core_tune(char **argv)
{
#if defined(__x86_64__)
    // What OpenBLAS falls back to, by what the CPU has, when it does not know the model.
    static const char *const fallbacks[] = {"Prescott", "Core2", "Nehalem", "Sandybridge", "Generic"};
    const char *core = openblas_get_corename(), *better = NULL;
    if (getenv("OPENBLAS_CORETYPE") != NULL || argv == NULL || argv[0] == NULL) {
        return;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd")) {
        better = "SkylakeX";
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        better = "Haswell";
    }
    for (size_t i = 0; better != NULL && i < sizeof(fallbacks) / sizeof(fallbacks[0]); i++) {
        if (strcasecmp(core, fallbacks[i]) == 0 && setenv("OPENBLAS_CORETYPE", better, 1) == 0) {
            execv("/proc/self/exe", argv);
            return;
        }
    }
#else
    (void)argv;
#endif
}
