// What the coordinator must not forget, in RocksDB: each transition is written here before anybody hears of it.
//
// Rows (keys begin with one letter; numbers in keys are big-endian, in values little-endian):
//   F            format: "EBBC" u32 version
//   J            u64 job id, u64 unix ms of creation, then the packed JobSpec
//   M            packed Manifest
//   P            u64 epoch, then per shard u32 first chunk, u32 chunk count
//   U stream     packed LeaseRow of a unit in flight; gone once retired
//   R            u64 retired below, u64 steps retired, u64 next lease id, u64 repeated steps, u64 n, then n streams retired above it
//   K stream seq a step that was skipped; value: the reason
//   V id         packed EvalPoint; id 2^64-1 = the final evaluation
//   E id         packed Event
//   W            u32 workers wanted (autoscaler)
//   L            packed ProgressRow: the loss curve and the time the job has run, as of a few seconds ago
//   S            final state ("SUCCEEDED", "FAILED reason")
// Everything but events and the curve is written with sync: a unit is leased far less often than a step is pushed, so a sync each costs nothing that counts.
#ifndef EBB_COORDINATOR_STATESTORE_H
#define EBB_COORDINATOR_STATESTORE_H

#include "coordinator/ledger.h"
#include "coordinator/progress.h"
#include "core/kvstore.h"
#include "core/manifest.h"
#include "core/shardmap.h"
#include "core/wire.h"

#define EBB_EVENTS_KEPT 100000u // the newest

typedef struct ebb_statestore ebb_statestore;

// Opens or creates. NEWER: written by a newer version; CONFIG: not a coordinator's folder. why >= 512 bytes.
ebb_status ebb_statestore_open(const char *dir, ebb_statestore **out, char *why);
// The same for looking only: no byte of the folder is changed, and no coordinator can begin to work on it until the store is closed. *format: of the folder, for
// NEWER and CONFIG too; 0: it has none. NOENT: no folder, or no store in it. TRYLATER: in use.
ebb_status ebb_statestore_open_read(const char *dir, uint32_t *format, ebb_statestore **out, char *why);
ebb_kvstore *ebb_statestore_kv(ebb_statestore *s); // borrowed
void ebb_statestore_close(ebb_statestore **s);

ebb_status ebb_statestore_put_job(ebb_statestore *s, uint64_t job, uint64_t created_ms, const Ebb__JobSpec *spec);
ebb_status ebb_statestore_get_job(ebb_statestore *s, uint64_t *job, uint64_t *created_ms, Ebb__JobSpec **spec); // NOENT
ebb_status ebb_statestore_put_placement(ebb_statestore *s, const uint8_t *manifest, size_t len, uint64_t epoch, const ebb_chunk_range *ranges,
                                        uint32_t n);
ebb_status ebb_statestore_get_placement(ebb_statestore *s, uint8_t **manifest, size_t *len, uint64_t *epoch, ebb_chunk_range *ranges,
                                        uint32_t n); // NOENT
ebb_status ebb_statestore_put_unit(ebb_statestore *s, const ebb_lease_row *row);
// Unit rows out, retired set in, at once.
ebb_status ebb_statestore_retire(ebb_statestore *s, const ebb_ledger *l, const uint64_t *streams, size_t n);
ebb_status ebb_statestore_load_ledger(ebb_statestore *s, ebb_ledger *l, uint64_t now_ms);
ebb_status ebb_statestore_put_skip(ebb_statestore *s, uint64_t stream, uint64_t seq, const char *reason);
typedef void ebb_statestore_skip_fn(void *arg, uint64_t stream, uint64_t seq);
ebb_status ebb_statestore_load_skips(ebb_statestore *s, ebb_statestore_skip_fn *fn, void *arg);
ebb_status ebb_statestore_put_eval(ebb_statestore *s, const ebb_eval_point *point);
ebb_status ebb_statestore_load_evals(ebb_statestore *s, ebb_progress *p, bool *final_done);
// elapsed_s: how long the job has been run, all processes together.
ebb_status ebb_statestore_put_progress(ebb_statestore *s, const ebb_progress *p, double elapsed_s);
ebb_status ebb_statestore_load_progress(ebb_statestore *s, ebb_progress *p, double *elapsed_s); // nothing stored: unchanged
ebb_status ebb_statestore_put_state(ebb_statestore *s, const char *state);
ebb_status ebb_statestore_get_state(ebb_statestore *s, char *out, size_t size); // NOENT
ebb_status ebb_statestore_put_wanted(ebb_statestore *s, uint32_t wanted);
ebb_status ebb_statestore_get_wanted(ebb_statestore *s, uint32_t *wanted); // 0 if never written; CORRUPT
ebb_status ebb_statestore_put_event(ebb_statestore *s, const Ebb__Event *event);
// Calls fn for events with id > after, at most limit; *last = the newest id there is.
typedef void ebb_statestore_event_fn(void *arg, Ebb__Event *event); // takes the event (ebb_pb_free)
ebb_status ebb_statestore_load_events(ebb_statestore *s, uint64_t after, size_t limit, ebb_statestore_event_fn *fn, void *arg);
ebb_status ebb_statestore_last_event(ebb_statestore *s, uint64_t *id);

#endif
