// Gradient buffers that are reused. The step computes into a flat vector; the client sends slices of it without copying, and for as long as a shard has not
// acknowledged or ZeroMQ still reads, the bytes must stay. So: a ring of flat buffers, each cut into its chunks once, taken again when all
// slices are solely ours. One thread owns a gradbuf.
#ifndef EBB_WORKER_GRADBUF_H
#define EBB_WORKER_GRADBUF_H

#include "core/buf.h"
#include "core/manifest.h"

typedef struct ebb_gradbuf ebb_gradbuf;

typedef struct ebb_grad {
    float *flat;      // (numel)
    ebb_buf **chunks; // (n_chunks) slices of flat, in order
} ebb_grad;

// `count` buffers at first (in-flight steps + 1), made when first needed.
ebb_status ebb_gradbuf_new(const ebb_manifest *manifest, uint32_t count, ebb_gradbuf **out);
// Buffers that are still referenced elsewhere live on until those references go.
void ebb_gradbuf_free(ebb_gradbuf **g);
// A buffer nobody else holds, contents undefined; it counts as taken only while somebody references its chunks. If all are held (a shard is away and
// its sockets still drain) the ring grows, to at most 2 * count. AGAIN: that many are held; NOMEM.
ebb_status ebb_gradbuf_take(ebb_gradbuf *g, ebb_grad *out);
uint32_t ebb_gradbuf_count(const ebb_gradbuf *g); // buffers made so far

#endif
