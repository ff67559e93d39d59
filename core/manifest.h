// Model manifest: the ordered tensors of a model, and how they are cut into chunks.
//
// The manifest is a pure function of the model configuration; all workers build it for themselves and compare hashes.
// Chunks are numbered 0..n-1 through the tensors in order; a chunk never spans two tensors. All parameters are float32
// on the shard; the flat parameter vector is the concatenation of the tensors in manifest order.
#ifndef EBB_CORE_MANIFEST_H
#define EBB_CORE_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include "core/limits.h"
#include "core/status.h"

typedef enum ebb_dtype { EBB_DTYPE_F32 = 0, EBB_DTYPE_BF16 = 1, EBB_DTYPE_F16 = 2, EBB_DTYPE_I8 = 3, EBB_DTYPE_BYTES = 4 } ebb_dtype;

// Bytes of one element.
size_t ebb_dtype_bytes(ebb_dtype dtype);

typedef enum ebb_init_kind {
    EBB_INIT_ZEROS = 0,
    EBB_INIT_CONSTANT = 1, // every element = init_a
    EBB_INIT_NORMAL = 2,   // mean 0, standard deviation init_a
    EBB_INIT_UNIFORM = 3,  // in [-init_a, init_a)
} ebb_init_kind;

typedef struct ebb_tensor {
    char name[EBB_NAME_MAX];
    ebb_dtype dtype;                  // dtype on the shard: EBB_DTYPE_F32 today
    uint32_t ndim;                    // 1..EBB_TENSOR_NDIM_MAX
    uint64_t ne[EBB_TENSOR_NDIM_MAX]; // elements per dimension, row-major, outermost first (as PyTorch's shape)
    ebb_init_kind init;
    float init_a;
    uint32_t group; // optimizer group (index into the job's groups): 0 = decayed matrices, 1 = not decayed (bias, norm, embedding by choice)
    uint64_t numel;
    uint64_t offset; // first element in the flat vector
    uint32_t first_chunk;
    uint32_t chunk_count;
} ebb_tensor;

typedef struct ebb_chunk {
    uint32_t tensor;        // index
    uint64_t tensor_offset; // first element within the tensor
    uint64_t offset;        // first element within the flat vector
    uint32_t numel;
} ebb_chunk;

typedef struct ebb_manifest {
    uint32_t chunk_elems; // most elements per chunk
    size_t n_tensors, n_chunks;
    ebb_tensor *tensors;
    ebb_chunk *chunks; // filled by ebb_manifest_seal
    uint64_t numel;
    int sealed;
} ebb_manifest;

ebb_status ebb_manifest_new(ebb_manifest **out, uint32_t chunk_elems);
void ebb_manifest_free(ebb_manifest **m);

// Adds a tensor before sealing. INVAL: bad name, shape or init_a (not finite, or above 1e30), or a name used twice; NOMEM.
ebb_status ebb_manifest_add(ebb_manifest *m, const char *name, uint32_t ndim, const uint64_t *ne, ebb_init_kind init, float init_a, uint32_t group);

// Cuts the tensors into chunks; after this the manifest is constant. INVAL: no tensors, or more than EBB_CHUNKS_MAX chunks.
ebb_status ebb_manifest_seal(ebb_manifest *m);

// 64-bit hash over everything above (never 0). Sealed manifests only.
uint64_t ebb_manifest_hash(const ebb_manifest *m);

// Index of the named tensor, or -1.
int ebb_manifest_find(const ebb_manifest *m, const char *name);

// Writes the initial values of one chunk, out (numel) floats: a pure function of (seed, tensor index, element index), whatever the sharding.
void ebb_manifest_init_chunk(const ebb_manifest *m, uint64_t seed, uint32_t chunk, float *out);

// Serialized form (protobuf message ebb.Manifest). pack: *out is malloc'ed, the caller frees it.
// unpack: *out is a new sealed manifest; PROTO or INVAL for anything that cannot be one.
ebb_status ebb_manifest_pack(const ebb_manifest *m, uint8_t **out, size_t *len);
ebb_status ebb_manifest_unpack(const uint8_t *data, size_t len, ebb_manifest **out);

#endif
