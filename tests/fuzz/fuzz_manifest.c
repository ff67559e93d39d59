// A worker's packed manifest into ebb_manifest_unpack. What is accepted packs again to the same hash, its chunks cover its tensors without gap or overlap, and
// placing them on shards loses none.
//
// Input: shards u8, then the manifest's bytes.
#include <math.h>
#include <stdlib.h>

#include "core/manifest.h"
#include "core/shardmap.h"
#include "core/wire.h"
#include "tests/fuzz/fuzz.h"

#define INIT_ELEMS_MAX 4096 // values computed; a chunk may have a million

static void s_check_chunks(const ebb_manifest *m)
{
    uint64_t offset = 0, chunk = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        const ebb_tensor *t = &m->tensors[i];
        uint64_t done = 0;
        FUZZ_CHECK(t->offset == offset && t->first_chunk == chunk && t->numel > 0 && t->chunk_count > 0);
        FUZZ_CHECK(ebb_manifest_find(m, t->name) == (int)i);
        for (uint32_t k = 0; k < t->chunk_count; k++, chunk++) {
            const ebb_chunk *c = &m->chunks[chunk];
            FUZZ_CHECK(c->tensor == i && c->tensor_offset == done && c->offset == offset + done);
            FUZZ_CHECK(c->numel > 0 && c->numel <= m->chunk_elems);
            done += c->numel;
        }
        FUZZ_CHECK(done == t->numel);
        offset += t->numel;
    }
    FUZZ_CHECK(offset == m->numel && chunk == m->n_chunks);
}

static void s_check_placement(const ebb_manifest *m, uint32_t shards)
{
    ebb_chunk_range ranges[256];
    uint64_t next = 0;
    ebb_shardmap_place(m, shards, ranges);
    for (uint32_t s = 0; s < shards; s++) {
        FUZZ_CHECK(ranges[s].first == next);
        next += ranges[s].count;
        if (ranges[s].count > 0) {
            FUZZ_CHECK(ebb_shardmap_find(ranges, shards, ranges[s].first) == (int)s);
            FUZZ_CHECK(ebb_shardmap_find(ranges, shards, ranges[s].first + ranges[s].count - 1) == (int)s);
        }
    }
    FUZZ_CHECK(next == m->n_chunks);
    FUZZ_CHECK(ebb_shardmap_find(ranges, shards, (uint32_t)m->n_chunks) == -1);
}

static void s_check_values(const ebb_manifest *m)
{
    for (uint32_t c = 0; c < m->n_chunks && c < 4; c++) {
        uint32_t n = m->chunks[c].numel;
        if (n > INIT_ELEMS_MAX) {
            continue;
        }
        float *values = malloc(n * sizeof(*values));
        FUZZ_CHECK(values != NULL);
        ebb_manifest_init_chunk(m, 1, c, values);
        for (uint32_t i = 0; i < n; i++) {
            FUZZ_CHECK(isfinite(values[i]));
        }
        free(values);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_in in = {data, size};
    uint32_t shards = fuzz_u8(&in) + 1u;
    ebb_manifest *m = NULL, *again = NULL;
    ebb_status st = ebb_manifest_unpack(in.at, in.left, &m);
    if (st != EBB_OK) {
        FUZZ_CHECK((st == EBB_PROTO || st == EBB_INVAL) && m == NULL);
        return 0;
    }
    s_check_chunks(m);
    s_check_placement(m, shards);
    s_check_values(m);
    uint8_t *bytes = NULL;
    size_t len = 0;
    FUZZ_OK(ebb_manifest_pack(m, &bytes, &len));
    FUZZ_OK(ebb_manifest_unpack(bytes, len, &again));
    FUZZ_CHECK(ebb_manifest_hash(m) == ebb_manifest_hash(again) && m->numel == again->numel && m->n_chunks == again->n_chunks);
    free(bytes);
    ebb_manifest_free(&again);
    ebb_manifest_free(&m);
    return 0;
}
