// Which of its kernels OpenBLAS uses. An OpenBLAS older than the processor does not know it and falls back to kernels of 2004 (measured: 4x slower
// training steps on a 2023 server processor under Debian 12's 0.3.21), although the instructions of a known kernel are there. The choice is made while
// the library loads, from the environment, so the only cure is to start the program again with the variable set.
#ifndef EBB_KERNELS_BLAS_CORE_H
#define EBB_KERNELS_BLAS_CORE_H

// First thing in main of a program that computes: if OpenBLAS chose a kernel far below what the CPU has and OPENBLAS_CORETYPE isn't set by the user,
// sets it and executes this program anew with the same arguments. Returns if nothing is to be done, or if that failed.
void ebb_blas_core_tune(char **argv);

// Name of the kernels in use ("SkylakeX"). Static storage.
const char *ebb_blas_core_name(void);

#endif
