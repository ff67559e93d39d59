// One chunk as the shard holds it: parameters and optimizer slots in immutable shared buffers, and what is known about them.
//
// Invariant: a buffer that anybody else holds (a reply under way, a pin, a snapshot being written) is never written: an update then writes into fresh
// buffers (copy on write, but fused: the old values are read and the new ones written in one pass). Owned by the shard's thread.
#ifndef EBB_PS_CHUNK_H
#define EBB_PS_CHUNK_H

#include "core/buf.h"
#include "core/manifest.h"
#include "core/wire.h"
#include "ps/optimizer.h"

#define EBB_CHUNK_BUFS_MAX (1 + EBB_OPTIMIZER_SLOTS_MAX)

typedef struct ebb_chunk_state {
    uint32_t id, numel, group;
    uint32_t n_bufs;                  // 1 + optimizer slots
    ebb_buf *buf[EBB_CHUNK_BUFS_MAX]; // [0] parameters, [1..] slots; float32 x numel each
    uint32_t crc[EBB_CHUNK_BUFS_MAX]; // CRC32C of buf[i], if its bit in crc_known is set
    uint32_t crc_known;
    uint64_t version;   // of the shard, when this chunk last changed
    uint64_t lsn;       // of the last journal record applied to it
    uint64_t steps;     // updates of this chunk
    uint64_t saved_lsn; // lsn of its newest row on disk (0: the initial values need no row)
} ebb_chunk_state;

// Initial values: parameters from the manifest and seed, slots zero. NOMEM.
ebb_status ebb_chunk_state_init(ebb_chunk_state *c, const ebb_manifest *m, uint64_t seed, uint32_t id, uint32_t slots);
void ebb_chunk_state_fini(ebb_chunk_state *c);
// References all buffers of `from` (a pin, or an image for the snapshot): costs no copy.
void ebb_chunk_state_share(const ebb_chunk_state *from, ebb_chunk_state *to);
// Fills a part with a borrowed buffer (slot 0 = parameters) and its checksum, computed once per version.
void ebb_chunk_state_part(ebb_chunk_state *c, uint32_t slot, ebb_part *out);
// The parameters `versions` updates ahead (ebb_optimizer_look_ahead); the part owns its buffer (ebb_buf_unref it), which for optimizers without momentum is
// the chunk's own. NOMEM.
ebb_status ebb_chunk_state_part_ahead(ebb_chunk_state *c, const ebb_optimizer *o, double versions, float weight, ebb_part *out);
// Applies one gradient (numel floats). NOMEM changes nothing.
ebb_status ebb_chunk_state_apply(ebb_chunk_state *c, const ebb_optimizer *o, const void *grad, uint64_t version, float weight, uint64_t lsn);

#endif
