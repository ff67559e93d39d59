// Planted bugs: each one makes a layer below the product (store, network) lie the way a bug in the product would, and the invariants must notice.
#ifndef EBB_TESTS_SIM_MUTATE_H
#define EBB_TESTS_SIM_MUTATE_H

#include <stdint.h>

// X(NAME, word, within, what it does). within: seeds, from 1 on, in which it must be caught (about four times what was measured).
#define MUTATION_LIST(X)                                                                                                             \
    X(ACK_BEFORE_COMMIT, "ack-before-commit", 20, "a journal batch reaches the store only after its pushes were answered")           \
    X(WATERMARK_OUTSIDE_BATCH, "watermark-outside-batch", 20, "watermark rows are written after the batch that holds their records") \
    X(DEDUP_OFF, "dedup-off", 20, "a push that was applied already is applied again as the next step")                               \
    X(RETIRE_ON_APPLIED, "retire-on-applied", 20, "shards report what is applied as durable")                                        \
    X(RECOVERY_SKIPS_NEWEST, "recovery-skips-newest", 20, "a restarted shard does not see the newest journal record")                \
    X(FORGETS_LAST_BATCH, "forgets-last-batch", 60, "kill -9 takes the newest batch back, watermark and all")                        \
    X(SYNC_LIES, "sync-lies", 20, "a sync returns before anything is on disk")                                                       \
    X(TORN_BATCH, "torn-batch", 20, "power loss can leave half a batch")                                                             \
    X(RETIRED_SET_LOST, "retired-set-lost", 20, "the retired set is never written")                                                  \
    X(REPORTS_OUTLIVE_SHARD, "reports-outlive-shard", 120, "the coordinator takes a restarted shard for the same process")           \
    X(LEASE_NOT_STORED, "lease-not-stored", 20, "the coordinator's lease rows are never written")

typedef enum mutation {
    MUTATE_NOTHING,
#define X(name, word, within, what) MUTATE_##name,
    MUTATION_LIST(X)
#undef X
        MUTATIONS
} mutation;

typedef struct mutation_row {
    const char *word, *what;
    uint64_t within;
} mutation_row;

extern mutation mutate_now; // of the run under way
const mutation_row *mutation_get(mutation m);
mutation mutation_find(const char *word); // MUTATE_NOTHING: no such word

#endif
