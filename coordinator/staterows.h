// Every row of a coordinator's store, decoded, one after the other, whether it is whole or damaged: what --check and --dump stand on. Only reads.
//
// The rows have no checksums of their own: RocksDB's, on each block and each record of the log, are all there is (core/kvstore.h).
#ifndef EBB_COORDINATOR_STATEROWS_H
#define EBB_COORDINATOR_STATEROWS_H

#include "coordinator/statestore.h"

#define EBB_STATEROWS_ALL "FJMPWSRUKVLE?"

typedef struct ebb_staterow {
    char letter;     // of its key (statestore.h); '?': of none of these
    char name[96];   // for people: "unit 7", "event 12"
    const char *bad; // what is wrong with it, or NULL; the rest is valid only if NULL (a, b: always)
    size_t bytes;    // of the value
    uint64_t a, b;   // numbers of the key: stream of U; stream and seq of K; id of V and E
    // By letter: J JobSpec, U LeaseRow, V EvalPoint, E Event, L ProgressRow.
    const ProtobufCMessage *message;
    const ebb_manifest *manifest; // M
    char text[512];               // S, K: cut to this
    uint64_t job, created_ms;     // J
    uint32_t number;              // F: version; W: workers; P: shards
    uint64_t epoch;               // P
    const uint8_t *ranges;        // P: per shard u32 first chunk, u32 chunk count
    struct {
        uint64_t below, steps, next_lease, repeated, n;
        const uint8_t *list; // n x u64
    } retired;               // R
} ebb_staterow;

// The row and what it points to are valid until fn returns.
typedef void ebb_staterow_fn(void *arg, const ebb_staterow *row);

// Visits the rows whose keys begin with the letters, in the letters' order, and by key for each. CORRUPT or IO with a sentence in why (>= 256 bytes): the store could
// not give them all.
ebb_status ebb_staterows(ebb_kvstore *kv, const char *letters, ebb_staterow_fn *fn, void *arg, char *why);

#endif
