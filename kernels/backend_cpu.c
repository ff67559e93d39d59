#include "kernels/backend.h"

#include <cblas.h>

#include "kernels/cpu.h"

static const ebb_backend s_cpu = {
    .name = "cpu",
    .gemm = ebb_cpu_gemm,
    .bias_add = ebb_cpu_bias_add,
    .bias_grad = ebb_cpu_bias_grad,
    .layernorm = ebb_cpu_layernorm,
    .layernorm_grad = ebb_cpu_layernorm_grad,
    .gelu = ebb_cpu_gelu,
    .gelu_grad = ebb_cpu_gelu_grad,
    .relu = ebb_cpu_relu,
    .relu_grad = ebb_cpu_relu_grad,
    .add = ebb_cpu_add,
    .attention = ebb_cpu_attention,
    .attention_grad = ebb_cpu_attention_grad,
    .softmax_xent = ebb_cpu_softmax_xent,
    .embed = ebb_cpu_embed,
    .embed_grad = ebb_cpu_embed_grad,
    .sum_squares = ebb_cpu_sum_squares,
    .scale = ebb_cpu_scale,
};

const ebb_backend *ebb_backend_cpu(void)
{
    return &s_cpu;
}

ebb_status ebb_backend_cpu_threads(int n)
{
    if (n < 1) {
        return EBB_INVAL;
    }
    openblas_set_num_threads(n);
    return EBB_OK;
}
