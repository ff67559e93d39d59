// Which shard holds which chunk. Pure. Every shard has one contiguous range of chunks, so the map is as long as the shard count.
#ifndef EBB_CORE_SHARDMAP_H
#define EBB_CORE_SHARDMAP_H

#include "core/manifest.h"

typedef struct ebb_chunk_range {
    uint32_t first, count;
} ebb_chunk_range;

// Cuts the chunks into n ranges balanced by bytes: no range exceeds the mean by more than one chunk. Shards beyond the number of chunks get none.
void ebb_shardmap_place(const ebb_manifest *m, uint32_t n, ebb_chunk_range *out);

// Index of the range that holds the chunk, or -1. Ranges in chunk order.
int ebb_shardmap_find(const ebb_chunk_range *ranges, uint32_t n, uint32_t chunk);

#endif
