#include "client/router.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_CHUNKS_MAX 1024u
#define PIECE_BYTES_MAX (64u * 1024u * 1024u)

ebb_status ebb_routes_parse(const Ebb__ShardMapReply *reply, uint32_t n_chunks, ebb_routes *out, char *why)
{
    memset(out, 0, sizeof(*out));
    if (reply->n_shards == 0 || reply->n_shards > EBB_SHARDS_MAX) {
        snprintf(why, 256, "shard map has %zu shards, expected 1..%d", reply->n_shards, EBB_SHARDS_MAX);
        return EBB_PROTO;
    }
    uint32_t n = (uint32_t)reply->n_shards, next = 0;
    ebb_route *route = calloc(n, sizeof(*route));
    if (route == NULL) {
        snprintf(why, 256, "out of memory for a map of %u shards", n);
        return EBB_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        const Ebb__ShardInfo *info = reply->shards[i];
        size_t len = strlen(info->endpoint);
        if (len == 0 || len >= EBB_ENDPOINT_MAX) {
            snprintf(why, 256, "shard map: shard %u has no usable endpoint", info->shard);
            free(route);
            return EBB_PROTO;
        }
        if (info->first_chunk != next && info->chunk_count != 0) {
            snprintf(why, 256, "shard map: shard %u starts at chunk %u, expected %u", info->shard, info->first_chunk, next);
            free(route);
            return EBB_PROTO;
        }
        if (info->chunk_count > n_chunks - next) {
            snprintf(why, 256, "shard map: shard %u ends after chunk %u of %u", info->shard, next + info->chunk_count, n_chunks);
            free(route);
            return EBB_PROTO;
        }
        route[i].shard = info->shard;
        route[i].first_chunk = next;
        route[i].chunk_count = info->chunk_count;
        memcpy(route[i].endpoint, info->endpoint, len + 1);
        next += info->chunk_count;
    }
    if (next != n_chunks) {
        snprintf(why, 256, "shard map covers %u of %u chunks", next, n_chunks);
        free(route);
        return EBB_PROTO;
    }
    *out = (ebb_routes){.epoch = reply->epoch, .layout = 1, .n = n, .route = route};
    return EBB_OK;
}

void ebb_routes_fini(ebb_routes *routes)
{
    free(routes->route);
    memset(routes, 0, sizeof(*routes));
}

bool ebb_routes_same_layout(const ebb_routes *a, const ebb_routes *b)
{
    if (a->n != b->n) {
        return false;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        const ebb_route *x = &a->route[i], *y = &b->route[i];
        if (x->shard != y->shard || x->first_chunk != y->first_chunk || x->chunk_count != y->chunk_count) {
            return false;
        }
    }
    return true;
}

bool ebb_routes_piece(const ebb_route *route, const ebb_manifest *manifest, uint32_t from, uint32_t *count)
{
    uint32_t end = route->first_chunk + route->chunk_count, n = 0;
    uint64_t bytes = 0;
    while (from + n < end && n < PIECE_CHUNKS_MAX) {
        uint64_t more = (uint64_t)manifest->chunks[from + n].numel * sizeof(float);
        if (n > 0 && bytes + more > PIECE_BYTES_MAX) {
            break;
        }
        bytes += more;
        n++;
    }
    *count = n;
    return n > 0;
}

ebb_status ebb_routes_check_push(const ebb_routes *routes, const ebb_manifest *manifest, char *why)
{
    for (uint32_t i = 0; i < routes->n; i++) {
        const ebb_route *r = &routes->route[i];
        uint64_t bytes = 0;
        for (uint32_t c = 0; c < r->chunk_count; c++) {
            bytes += (uint64_t)manifest->chunks[r->first_chunk + c].numel * sizeof(float);
        }
        if (r->chunk_count > EBB_PARTS_MAX || bytes > EBB_MESSAGE_BYTES_MAX) {
            snprintf(why, 256,
                     "shard %u holds %u chunks, %llu MiB: one push carries at most %d chunks and %llu MiB; use more shards or larger chunks",
                     r->shard, r->chunk_count, (unsigned long long)(bytes >> 20), EBB_PARTS_MAX, EBB_MESSAGE_BYTES_MAX >> 20);
            return EBB_INVAL;
        }
    }
    return EBB_OK;
}
