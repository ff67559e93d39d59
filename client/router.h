// Which shard gets what: the shard map as the client uses it. Pure.
//
// Every shard holds one contiguous range of chunks, in order, so a request's parts (one per chunk, in chunk order) split into consecutive slices.
// `layout` counts changes of those ranges; a new endpoint or incarnation alone leaves it.
#ifndef EBB_CLIENT_ROUTER_H
#define EBB_CLIENT_ROUTER_H

#include "core/limits.h"
#include "core/manifest.h"
#include "core/wire.h"

typedef struct ebb_route {
    uint32_t shard;
    uint32_t first_chunk, chunk_count; // count may be 0: more shards than chunks
    char endpoint[EBB_ENDPOINT_MAX];
} ebb_route;

typedef struct ebb_routes {
    uint64_t epoch;
    uint64_t layout;
    uint32_t n;
    ebb_route *route;
} ebb_routes;

// Checks what the coordinator sent: at least one shard, ranges contiguous from 0 and covering n_chunks, endpoints given. PROTO with a sentence in why
// (256 bytes) if not. The layout is 1.
ebb_status ebb_routes_parse(const Ebb__ShardMapReply *reply, uint32_t n_chunks, ebb_routes *out, char *why);
void ebb_routes_fini(ebb_routes *routes);
bool ebb_routes_same_layout(const ebb_routes *a, const ebb_routes *b);

// A pull is cut so that no answer grows beyond what one message should carry: the piece of `route` that starts at chunk `from` (first_chunk at first)
// has *count chunks, at most 1024 of them and 64 MiB (or one chunk). Returns false when from is past the route's end.
bool ebb_routes_piece(const ebb_route *route, const ebb_manifest *manifest, uint32_t from, uint32_t *count);

// INVAL with a sentence in why when a push to some shard cannot be one message.
ebb_status ebb_routes_check_push(const ebb_routes *routes, const ebb_manifest *manifest, char *why);

#endif
