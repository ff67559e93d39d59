#include "coordinator/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"

ebb_status ebb_ledger_init(ebb_ledger *l, const ebb_plan *plan, uint32_t n_shards, uint64_t lease_ms)
{
    EBB_ASSERT(n_shards >= 1 && lease_ms >= 1);
    memset(l, 0, sizeof(*l));
    l->plan = *plan;
    l->n_shards = n_shards;
    l->lease_ms = lease_ms;
    l->next_lease = 1;
    return EBB_OK;
}

static void s_row_fini(ebb_unit_row *u)
{
    free(u->applied); // durable is its second half
}

void ebb_ledger_fini(ebb_ledger *l)
{
    for (size_t i = 0; i < l->n_units; i++) {
        s_row_fini(&l->units[i]);
    }
    free(l->units);
    free(l->retired);
    memset(l, 0, sizeof(*l));
}

// First index whose stream is >= the given one.
static size_t s_lower(const ebb_ledger *l, uint64_t stream)
{
    size_t lo = 0, hi = l->n_units;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (l->units[mid].lease.stream < stream) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

// Given back as complete; the shards' own word is on its way.
static bool s_settling(const ebb_lease_row *row)
{
    return row->lease != 0 && row->worker[0] == '\0';
}

static ebb_unit_row *s_find(const ebb_ledger *l, uint64_t stream)
{
    size_t i = s_lower(l, stream);
    return i < l->n_units && l->units[i].lease.stream == stream ? &l->units[i] : NULL;
}

static ebb_status s_insert(ebb_ledger *l, uint64_t stream, ebb_unit_row **out)
{
    ebb_unit unit;
    EBB_TRY(ebb_plan_unit(&l->plan, stream, &unit));
    if (l->n_units == l->cap_units) {
        size_t cap = l->cap_units ? l->cap_units * 2 : 64;
        ebb_unit_row *grown = realloc(l->units, cap * sizeof(*grown));
        if (grown == NULL) {
            return EBB_NOMEM;
        }
        l->units = grown;
        l->cap_units = cap;
    }
    uint64_t *marks = calloc(2 * (size_t)l->n_shards, sizeof(*marks));
    if (marks == NULL) {
        return EBB_NOMEM;
    }
    size_t at = s_lower(l, stream);
    memmove(&l->units[at + 1], &l->units[at], (l->n_units - at) * sizeof(*l->units));
    l->n_units++;
    l->units[at] = (ebb_unit_row){.steps = unit.steps, .applied = marks, .durable = marks + l->n_shards};
    l->units[at].lease.stream = stream;
    *out = &l->units[at];
    return EBB_OK;
}

// ---- retired set ----

static size_t s_retired_lower(const ebb_ledger *l, uint64_t stream)
{
    size_t lo = 0, hi = l->n_retired;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (l->retired[mid] < stream) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

bool ebb_ledger_is_retired(const ebb_ledger *l, uint64_t stream)
{
    if (stream < l->retired_below) {
        return true;
    }
    size_t i = s_retired_lower(l, stream);
    return i < l->n_retired && l->retired[i] == stream;
}

static ebb_status s_retired_add(ebb_ledger *l, uint64_t stream)
{
    EBB_ASSERT(!ebb_ledger_is_retired(l, stream));
    if (l->n_retired == l->cap_retired) {
        size_t cap = l->cap_retired ? l->cap_retired * 2 : 64;
        uint64_t *grown = realloc(l->retired, cap * sizeof(*grown));
        if (grown == NULL) {
            return EBB_NOMEM;
        }
        l->retired = grown;
        l->cap_retired = cap;
    }
    size_t at = s_retired_lower(l, stream);
    memmove(&l->retired[at + 1], &l->retired[at], (l->n_retired - at) * sizeof(*l->retired));
    l->retired[at] = stream;
    l->n_retired++;
    size_t joined = 0;
    while (joined < l->n_retired && l->retired[joined] == l->retired_below) {
        l->retired_below++;
        joined++;
    }
    l->n_retired -= joined;
    memmove(l->retired, l->retired + joined, l->n_retired * sizeof(*l->retired));
    return EBB_OK;
}

ebb_status ebb_ledger_restore_retired(ebb_ledger *l, const ebb_ledger_totals *totals, const uint64_t *sparse, size_t n)
{
    uint64_t below = totals->retired_below;
    if (below > l->plan.units_total) {
        return EBB_CORRUPT;
    }
    l->retired_below = below;
    l->cursor = below > l->cursor ? below : l->cursor;
    for (size_t i = 0; i < n; i++) {
        if (sparse[i] >= l->plan.units_total || ebb_ledger_is_retired(l, sparse[i])) {
            return EBB_CORRUPT;
        }
        EBB_TRY(s_retired_add(l, sparse[i]));
        l->cursor = sparse[i] >= l->cursor ? sparse[i] + 1 : l->cursor;
    }
    l->steps_retired = totals->steps_retired;
    l->repeated = totals->repeated;
    l->next_lease = totals->next_lease > l->next_lease ? totals->next_lease : l->next_lease;
    return EBB_OK;
}

// A lease that was valid when the coordinator died stays valid for one more term: its holder couldn't renew meanwhile.
ebb_status ebb_ledger_restore_unit(ebb_ledger *l, const ebb_lease_row *row, uint64_t now_ms)
{
    ebb_unit_row *u = NULL;
    if (ebb_ledger_is_retired(l, row->stream) || s_find(l, row->stream) != NULL) {
        return EBB_CORRUPT;
    }
    EBB_TRY(s_insert(l, row->stream, &u));
    u->lease = *row;
    // A worker that asked for its next lease ended the one before, whose row doesn't say so: of several, the newest is valid.
    for (size_t i = 0; row->lease != 0 && row->worker[0] != '\0' && i < l->n_units; i++) {
        ebb_lease_row *other = &l->units[i].lease;
        if (other != &u->lease && other->lease != 0 && strcmp(other->worker, row->worker) == 0) {
            (other->lease < row->lease ? other : &u->lease)->lease = 0;
        }
    }
    if (u->lease.lease != 0) {
        u->lease.deadline_ms = now_ms + (s_settling(row) ? EBB_SETTLE_MS : l->lease_ms);
    }
    l->cursor = row->stream >= l->cursor ? row->stream + 1 : l->cursor;
    uint64_t last = row->lease > row->last_lease ? row->lease : row->last_lease;
    l->next_lease = last >= l->next_lease ? last + 1 : l->next_lease;
    return EBB_OK;
}

// ---- leases ----

uint64_t ebb_ledger_unit_applied(const ebb_ledger *l, const ebb_unit_row *u)
{
    uint64_t least = u->applied[0];
    for (uint32_t s = 1; s < l->n_shards; s++) {
        least = u->applied[s] < least ? u->applied[s] : least;
    }
    return least;
}

ebb_status ebb_ledger_lease(ebb_ledger *l, const char *worker, uint64_t incarnation, uint64_t now_ms, const ebb_unit_row **row)
{
    ebb_unit_row *pick = NULL;
    for (size_t i = 0; i < l->n_units; i++) {
        ebb_unit_row *u = &l->units[i];
        if (u->lease.lease != 0 && strcmp(u->lease.worker, worker) == 0) {
            uint64_t applied = ebb_ledger_unit_applied(l, u);
            if (u->lease.incarnation == incarnation && applied < u->steps) {
                u->lease.deadline_ms = now_ms + l->lease_ms;
                u->lease.seq_first = applied + 1 > u->lease.seq_first ? applied + 1 : u->lease.seq_first;
                *row = u;
                return EBB_OK; // asked again: the same lease, less what is done of it
            }
            u->lease.lease = 0; // an older incarnation's, or complete
        }
        if (pick == NULL && u->lease.lease == 0 && ebb_ledger_unit_applied(l, u) < u->steps) {
            pick = u;
        }
    }
    // A remainder found before an older incarnation's own lease was freed is as good.
    if (pick == NULL && l->cursor < l->plan.units_total) {
        EBB_TRY(s_insert(l, l->cursor, &pick));
        l->cursor++;
    }
    if (pick == NULL) {
        return EBB_NOENT;
    }
    uint64_t applied = ebb_ledger_unit_applied(l, pick);
    uint64_t most = applied; // on some shard: these steps are computed again
    for (uint32_t s = 0; s < l->n_shards; s++) {
        most = pick->applied[s] > most ? pick->applied[s] : most;
    }
    l->repeated += most - applied;
    pick->lease.lease = pick->lease.last_lease = l->next_lease++;
    pick->lease.incarnation = incarnation;
    pick->lease.seq_first = applied + 1;
    pick->lease.attempt++;
    pick->lease.deadline_ms = now_ms + l->lease_ms;
    snprintf(pick->lease.worker, sizeof(pick->lease.worker), "%s", worker);
    *row = pick;
    return EBB_OK;
}

static ebb_unit_row *s_by_lease(ebb_ledger *l, const char *worker, uint64_t lease)
{
    for (size_t i = 0; lease != 0 && i < l->n_units; i++) {
        if (l->units[i].lease.lease == lease && strcmp(l->units[i].lease.worker, worker) == 0) {
            return &l->units[i];
        }
    }
    return NULL;
}

bool ebb_ledger_holds(const ebb_ledger *l, const char *worker, uint64_t incarnation)
{
    for (size_t i = 0; i < l->n_units; i++) {
        const ebb_lease_row *row = &l->units[i].lease;
        if (row->lease != 0 && row->incarnation == incarnation && strcmp(row->worker, worker) == 0) {
            return true;
        }
    }
    return false;
}

bool ebb_ledger_renew(ebb_ledger *l, const char *worker, uint64_t lease, uint64_t now_ms)
{
    ebb_unit_row *u = s_by_lease(l, worker, lease);
    if (u == NULL) {
        return false;
    }
    u->lease.deadline_ms = now_ms + l->lease_ms;
    return true;
}

bool ebb_ledger_return(ebb_ledger *l, const char *worker, uint64_t lease, uint64_t seq_done, uint64_t now_ms, uint64_t *stream)
{
    ebb_unit_row *u = *worker == '\0' ? NULL : s_by_lease(l, worker, lease);
    if (u == NULL) {
        return false;
    }
    if (seq_done >= u->steps && ebb_ledger_unit_applied(l, u) < u->steps) {
        u->lease.worker[0] = '\0';
        u->lease.deadline_ms = now_ms + EBB_SETTLE_MS;
    } else {
        u->lease.lease = 0;
    }
    *stream = u->lease.stream;
    return true;
}

size_t ebb_ledger_release(ebb_ledger *l, const char *worker, uint64_t keep, uint64_t *stream)
{
    for (size_t i = 0; i < l->n_units; i++) {
        ebb_lease_row *row = &l->units[i].lease;
        if (row->lease != 0 && strcmp(row->worker, worker) == 0 && (keep == 0 || row->incarnation != keep)) {
            row->lease = 0;
            *stream = row->stream;
            return 1;
        }
    }
    return 0;
}

void ebb_ledger_postpone(ebb_ledger *l, uint64_t ms)
{
    for (size_t i = 0; i < l->n_units; i++) {
        l->units[i].lease.deadline_ms += l->units[i].lease.lease != 0 ? ms : 0;
    }
}

size_t ebb_ledger_expire(ebb_ledger *l, uint64_t now_ms, uint64_t *streams, char (*workers)[EBB_NAME_MAX], size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n_units && n < max; i++) {
        ebb_lease_row *row = &l->units[i].lease;
        if (row->lease != 0 && row->deadline_ms <= now_ms) {
            row->lease = 0;
            memcpy(workers[n], row->worker, EBB_NAME_MAX);
            streams[n++] = row->stream;
        }
    }
    return n;
}

// ---- watermarks ----

void ebb_ledger_shard_reset(ebb_ledger *l, uint32_t shard)
{
    EBB_ASSERT(shard < l->n_shards);
    for (size_t i = 0; i < l->n_units; i++) {
        l->units[i].applied[shard] = l->units[i].durable[shard] = 0;
    }
}

void ebb_ledger_watermark(ebb_ledger *l, uint32_t shard, uint64_t stream, uint64_t applied, uint64_t durable)
{
    EBB_ASSERT(shard < l->n_shards);
    ebb_unit_row *u = s_find(l, stream);
    if (u != NULL) {
        // Within one life of a shard marks only grow, so a report that comes late changes nothing.
        applied = applied < u->steps ? applied : u->steps;
        durable = durable < applied ? durable : applied;
        u->applied[shard] = applied > u->applied[shard] ? applied : u->applied[shard];
        u->durable[shard] = durable > u->durable[shard] ? durable : u->durable[shard];
    }
}

size_t ebb_ledger_retire(ebb_ledger *l, uint64_t *streams, size_t max)
{
    size_t kept = 0, n = 0;
    for (size_t i = 0; i < l->n_units; i++) {
        ebb_unit_row *u = &l->units[i];
        bool durable = n < max;
        for (uint32_t s = 0; durable && s < l->n_shards; s++) {
            durable = u->durable[s] >= u->steps;
        }
        if (durable && s_retired_add(l, u->lease.stream) == EBB_OK) {
            streams[n++] = u->lease.stream;
            l->steps_retired += u->steps;
            s_row_fini(u);
        } else {
            l->units[kept++] = *u;
        }
    }
    l->n_units = kept;
    return n;
}

// ---- questions ----

const ebb_unit_row *ebb_ledger_unit(const ebb_ledger *l, uint64_t stream)
{
    return s_find(l, stream);
}

bool ebb_ledger_has_free(const ebb_ledger *l)
{
    if (l->cursor < l->plan.units_total) {
        return true;
    }
    for (size_t i = 0; i < l->n_units; i++) {
        if (l->units[i].lease.lease == 0 && ebb_ledger_unit_applied(l, &l->units[i]) < l->units[i].steps) {
            return true;
        }
    }
    return false;
}

bool ebb_ledger_all_applied(const ebb_ledger *l)
{
    for (size_t i = 0; i < l->n_units; i++) {
        if (ebb_ledger_unit_applied(l, &l->units[i]) < l->units[i].steps) {
            return false;
        }
    }
    return l->cursor == l->plan.units_total;
}

bool ebb_ledger_all_retired(const ebb_ledger *l)
{
    return l->retired_below == l->plan.units_total;
}

uint64_t ebb_ledger_steps_done(const ebb_ledger *l)
{
    uint64_t steps = l->steps_retired;
    for (size_t i = 0; i < l->n_units; i++) {
        steps += ebb_ledger_unit_applied(l, &l->units[i]);
    }
    return steps;
}

size_t ebb_ledger_leased(const ebb_ledger *l)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n_units; i++) {
        n += l->units[i].lease.lease != 0 && !s_settling(&l->units[i].lease);
    }
    return n;
}

size_t ebb_ledger_done(const ebb_ledger *l)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n_units; i++) {
        n += ebb_ledger_unit_applied(l, &l->units[i]) >= l->units[i].steps;
    }
    return n;
}

// ---- consistency ----

static const char *s_check_unit(const ebb_ledger *l, size_t i)
{
    const ebb_unit_row *u = &l->units[i];
    ebb_unit unit;
    if (i > 0 && l->units[i - 1].lease.stream >= u->lease.stream) {
        return "units are not in the order of their streams";
    }
    if (u->lease.stream >= l->cursor || ebb_ledger_is_retired(l, u->lease.stream)) {
        return "a unit in flight is retired, or was never leased";
    }
    if (ebb_plan_unit(&l->plan, u->lease.stream, &unit) != EBB_OK || unit.steps != u->steps) {
        return "a unit is not the plan's";
    }
    for (uint32_t s = 0; s < l->n_shards; s++) {
        if (u->durable[s] > u->applied[s] || u->applied[s] > u->steps) {
            return "a watermark is beyond the unit's steps, or durable before it was applied";
        }
    }
    if (u->lease.lease >= l->next_lease) {
        return "a lease has a number that is still to be given";
    }
    for (size_t k = 0; u->lease.lease != 0 && k < i; k++) {
        const ebb_lease_row *other = &l->units[k].lease;
        if (other->lease == u->lease.lease) {
            return "two units have the same lease";
        }
        if (other->lease != 0 && u->lease.worker[0] != '\0' && strcmp(other->worker, u->lease.worker) == 0) {
            return "a worker holds two units";
        }
    }
    return NULL;
}

const char *ebb_ledger_check(const ebb_ledger *l)
{
    ebb_unit unit;
    uint64_t steps = l->plan.steps_total;
    if (l->retired_below > l->cursor || l->cursor > l->plan.units_total) {
        return "the cursor is before what is retired, or beyond the plan";
    }
    if (ebb_plan_unit(&l->plan, l->retired_below, &unit) == EBB_OK) {
        steps = unit.first_step;
    }
    for (size_t i = 0; i < l->n_retired; i++) {
        if (l->retired[i] <= (i > 0 ? l->retired[i - 1] : l->retired_below) || l->retired[i] >= l->cursor) {
            return "the list of retired units is out of order or bounds";
        }
        if (ebb_plan_unit(&l->plan, l->retired[i], &unit) == EBB_OK) {
            steps += unit.steps;
        }
    }
    if (steps != l->steps_retired) {
        return "the steps of retired units do not add up";
    }
    if (l->retired_below + l->n_retired + l->n_units != l->cursor) {
        return "a unit is neither in flight nor retired nor to be leased";
    }
    for (size_t i = 0; i < l->n_units; i++) {
        const char *why = s_check_unit(l, i);
        if (why != NULL) {
            return why;
        }
    }
    return NULL;
}
