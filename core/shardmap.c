#include "core/shardmap.h"

#include "core/assert.h"

// Boundary k is the chunk boundary nearest to k/n of all elements (the elements are all float32, so elements stand for bytes). Each boundary is off
// by at most half a chunk, so a range exceeds the mean by at most one chunk.
void ebb_shardmap_place(const ebb_manifest *m, uint32_t n, ebb_chunk_range *out)
{
    EBB_ASSERT(m->sealed && n >= 1);
    uint64_t done = 0;
    uint32_t chunk = 0;
    for (uint32_t k = 0; k < n; k++) {
        out[k].first = chunk;
        // 128-bit: elements times shards
        uint64_t target = (uint64_t)((unsigned __int128)m->numel * (k + 1) / n);
        while (chunk < m->n_chunks) {
            uint64_t next = done + m->chunks[chunk].numel;
            uint64_t over = next > target ? next - target : 0;
            uint64_t under = target > done ? target - done : 0;
            if (k + 1 < n && over > under) {
                break;
            }
            done = next;
            chunk++;
        }
        out[k].count = chunk - out[k].first;
    }
    EBB_ASSERT(chunk == m->n_chunks);
}

int ebb_shardmap_find(const ebb_chunk_range *ranges, uint32_t n, uint32_t chunk)
{
    uint32_t lo = 0, hi = n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (chunk >= ranges[mid].first + ranges[mid].count) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo < n && chunk >= ranges[lo].first && chunk - ranges[lo].first < ranges[lo].count) {
        return (int)lo;
    }
    return -1;
}
