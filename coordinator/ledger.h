// The unit ledger. Pure: events and a time in, new state and rows to persist out; no clock, no disk.
//
// Invariants:
//   - at most one valid lease per unit, at most one train lease per worker;
//   - a unit is done when every shard has applied its last step, retired when every shard has it durable; only then it is forgotten;
//   - units below the cursor are in flight or retired; nothing else is held, so memory is O(units in flight).
// Watermarks come from the shards alone; a worker's word frees its lease and nothing more.
#ifndef EBB_COORDINATOR_LEDGER_H
#define EBB_COORDINATOR_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/limits.h"
#include "core/status.h"
#include "core/units.h"

#define EBB_SETTLE_MS 1000

typedef struct ebb_lease_row {
    uint64_t stream;
    uint64_t lease;            // 0: not leased
    uint64_t last_lease;       // the last number it was leased under: none is ever given twice, also after a restart
    char worker[EBB_NAME_MAX]; // "": returned complete, settling
    uint64_t incarnation;
    uint64_t seq_first;
    uint32_t attempt; // how often the unit was leased
    uint64_t deadline_ms;
} ebb_lease_row;

typedef struct ebb_unit_row {
    ebb_lease_row lease;
    uint64_t steps;
    uint64_t *applied, *durable; // (shards)
} ebb_unit_row;

typedef struct ebb_ledger {
    ebb_plan plan;
    uint32_t n_shards;
    uint64_t lease_ms;
    uint64_t cursor;     // first stream never leased
    uint64_t next_lease; // lease ids count up
    ebb_unit_row *units; // in flight, by stream
    size_t n_units, cap_units;
    uint64_t retired_below; // every stream below is retired
    uint64_t *retired;      // retired ones at or above it, ascending
    size_t n_retired, cap_retired;
    uint64_t steps_retired; // steps of retired units
    uint64_t repeated;      // steps leased again that some shard had already
} ebb_ledger;

ebb_status ebb_ledger_init(ebb_ledger *l, const ebb_plan *plan, uint32_t n_shards, uint64_t lease_ms);
void ebb_ledger_fini(ebb_ledger *l);

// ---- restoring persisted rows (before anything else) ----
// A lease that was valid stays valid for one more term from now: its holder could not renew while nobody listened. CORRUPT: twice, or of a retired unit.
ebb_status ebb_ledger_restore_unit(ebb_ledger *l, const ebb_lease_row *row, uint64_t now_ms);
typedef struct ebb_ledger_totals {
    uint64_t retired_below, steps_retired, next_lease, repeated; // as in ebb_ledger
} ebb_ledger_totals;
// Before the units, as they may refer to it. sparse: retired streams at or above retired_below. CORRUPT if the numbers cannot be.
ebb_status ebb_ledger_restore_retired(ebb_ledger *l, const ebb_ledger_totals *totals, const uint64_t *sparse, size_t n);

// ---- events ----
// Gives the worker a unit: the one it holds already (same incarnation, not complete), else a returned or expired one, else the next. NOENT: nothing to lease now. *row is
// valid until the next call; it must be persisted before the worker hears of it.
ebb_status ebb_ledger_lease(ebb_ledger *l, const char *worker, uint64_t incarnation, uint64_t now_ms, const ebb_unit_row **row);
// Has it a lease?
bool ebb_ledger_holds(const ebb_ledger *l, const char *worker, uint64_t incarnation);
// Moves all deadlines by that much: time in which nobody listened is not a holder's silence.
void ebb_ledger_postpone(ebb_ledger *l, uint64_t ms);
// Prolongs the lease; false: not this worker's (any more).
bool ebb_ledger_renew(ebb_ledger *l, const char *worker, uint64_t lease, uint64_t now_ms);
// The worker gives the lease back after step seq_done; false if it isn't its lease. *stream names the unit, whose row has changed. A complete unit is not
// leased again before EBB_SETTLE_MS have passed: the shards' own word that it is done is on its way.
bool ebb_ledger_return(ebb_ledger *l, const char *worker, uint64_t lease, uint64_t seq_done, uint64_t now_ms, uint64_t *stream);
// Frees the lease of a worker that is gone, or of an older incarnation (incarnation != keep; keep 0: any). Returns the streams freed (0 or 1).
size_t ebb_ledger_release(ebb_ledger *l, const char *worker, uint64_t keep, uint64_t *stream);
// Frees leases whose deadline has passed; writes up to max streams and the workers' names; returns how many.
size_t ebb_ledger_expire(ebb_ledger *l, uint64_t now_ms, uint64_t *streams, char (*workers)[EBB_NAME_MAX], size_t max);

// A shard starts telling from scratch (new incarnation): forget what it said before.
void ebb_ledger_shard_reset(ebb_ledger *l, uint32_t shard);
// A shard's watermark of a stream. Streams not in flight are ignored.
void ebb_ledger_watermark(ebb_ledger *l, uint32_t shard, uint64_t stream, uint64_t applied, uint64_t durable);
// Takes up to max units that every shard has durable out of the ledger and into the retired set; returns how many. The caller persists, then tells the shards.
size_t ebb_ledger_retire(ebb_ledger *l, uint64_t *streams, size_t max);

// ---- questions ----
const ebb_unit_row *ebb_ledger_unit(const ebb_ledger *l, uint64_t stream);    // NULL: not in flight
uint64_t ebb_ledger_unit_applied(const ebb_ledger *l, const ebb_unit_row *u); // least over the shards
bool ebb_ledger_is_retired(const ebb_ledger *l, uint64_t stream);
bool ebb_ledger_has_free(const ebb_ledger *l); // is there a unit that could be leased now?
bool ebb_ledger_all_applied(const ebb_ledger *l);
bool ebb_ledger_all_retired(const ebb_ledger *l);
uint64_t ebb_ledger_steps_done(const ebb_ledger *l); // applied on every shard
size_t ebb_ledger_leased(const ebb_ledger *l);
size_t ebb_ledger_done(const ebb_ledger *l); // in flight, applied everywhere
// NULL, or which invariant does not hold (static text): rows in order, within the plan, each unit below the cursor in flight or retired, watermarks and
// totals that fit, leases unique. O(units in flight squared): for tests, and once when a ledger was loaded.
const char *ebb_ledger_check(const ebb_ledger *l);

#endif
