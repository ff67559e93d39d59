// The safetensors format (u64 little-endian header length, JSON header, data), float32 tensors.
#ifndef EBB_TOOLS_EBB_SAFETENSORS_H
#define EBB_TOOLS_EBB_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "core/limits.h"
#include "core/status.h"

typedef struct ebb_st_tensor {
    char name[EBB_NAME_MAX + 32];
    uint32_t ndim;
    uint64_t ne[EBB_TENSOR_NDIM_MAX];
    const float *data; // reading: into the file's memory
    uint64_t numel;
} ebb_st_tensor;

typedef struct ebb_st_meta {
    const char *key;
    char value[512];
} ebb_st_meta;

// Writes PATH as a whole (temporary file beside it, fsync, rename). IO with why (>= 512).
ebb_status ebb_safetensors_write(const char *path, const ebb_st_tensor *tensors, size_t n, const ebb_st_meta *meta, size_t n_meta, char *why);

typedef struct ebb_st_file {
    void *map;
    size_t len;
    ebb_st_tensor *tensors; // in the order of their data
    size_t n;
} ebb_st_file;

// Opens and checks everything before anything is believed: sizes, offsets contiguous from 0, shapes, no duplicate names, nothing behind the last tensor.
// Tensors that are not F32 are refused by name. CORRUPT, NOENT, IO with why (>= 512).
ebb_status ebb_safetensors_open(const char *path, ebb_st_file *out, char *why);
void ebb_safetensors_close(ebb_st_file *f);
const ebb_st_tensor *ebb_safetensors_find(const ebb_st_file *f, const char *name);

#endif
