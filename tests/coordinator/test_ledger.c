// The ledger against a model of shards and workers that crash, roll back, repeat themselves and come late: thousands of seeded runs.
//
// Checked after every event: a unit is leased to one worker at a time, a worker holds one unit, a retired unit is durable on every shard. Checked at the end
// of each run: every unit is retired, once, and the steps add up: none is lost.
#include "coordinator/ledger.h"
#include "tests/support/check.h"

#include <string.h>

#define SHARDS_MAX 3
#define UNITS_MAX 32
#define WORKERS 4
#define LEASE_MS 1000
#define RUNS 3000

typedef struct model_shard {
    uint64_t applied[UNITS_MAX], durable[UNITS_MAX];
    uint64_t late_applied[UNITS_MAX], late_durable[UNITS_MAX]; // an earlier report of this life, to be delivered again
    bool fresh;                                                // a new process that has not reported yet
} model_shard;

typedef struct model_worker {
    char name[16];
    uint64_t incarnation;
    uint64_t lease, stream, next; // what it believes to hold; lease 0: nothing
} model_worker;

typedef struct model {
    uint64_t seed, draws, now;
    ebb_plan plan;
    uint32_t n_shards;
    ebb_ledger ledger;
    model_shard shard[SHARDS_MAX];
    model_worker worker[WORKERS];
    // persisted, as the statestore would
    bool has_row[UNITS_MAX];
    ebb_lease_row row[UNITS_MAX];
    uint64_t below, sparse[UNITS_MAX], steps_retired, next_lease;
    size_t n_sparse;
    // what leases are out, by our own book-keeping
    int holder[UNITS_MAX];        // worker, -1: none
    uint64_t deadline[UNITS_MAX]; // of the holder
    uint64_t settle[UNITS_MAX];   // not to be leased before
    bool retired[UNITS_MAX];
} model;

static uint64_t s_draw(model *m, uint64_t n)
{
    return ebb_rng_at(m->seed, 1, m->draws++) % n;
}

static uint64_t s_steps(const model *m, uint64_t stream)
{
    ebb_unit unit;
    CHECK_OK(ebb_plan_unit(&m->plan, stream, &unit));
    return unit.steps;
}

static void s_persist(model *m, uint64_t stream)
{
    const ebb_unit_row *u = ebb_ledger_unit(&m->ledger, stream);
    assert_non_null(u);
    m->has_row[stream] = true;
    m->row[stream] = u->lease;
}

static void s_retire(model *m)
{
    uint64_t streams[UNITS_MAX];
    size_t n = ebb_ledger_retire(&m->ledger, streams, 1 + s_draw(m, UNITS_MAX));
    for (size_t i = 0; i < n; i++) {
        uint64_t u = streams[i];
        assert_false(m->retired[u]);
        for (uint32_t s = 0; s < m->n_shards; s++) {
            if (m->shard[s].durable[u] < s_steps(m, u)) {
                fail_msg("seed %llu: unit %llu was retired, but shard %u has %llu durable", (unsigned long long)m->seed, (unsigned long long)u, s,
                         (unsigned long long)m->shard[s].durable[u]);
            }
        }
        m->retired[u] = true;
        m->has_row[u] = false;
        m->holder[u] = -1;
    }
    m->below = m->ledger.retired_below;
    m->steps_retired = m->ledger.steps_retired;
    m->next_lease = m->ledger.next_lease;
    m->n_sparse = m->ledger.n_retired;
    for (size_t i = 0; i < m->n_sparse; i++) {
        m->sparse[i] = m->ledger.retired[i];
    }
}

// The first report of a new process; reports of the life before are known by their incarnation and never get here.
static void s_hear_fresh(model *m, uint32_t shard)
{
    model_shard *s = &m->shard[shard];
    if (s->fresh) {
        ebb_ledger_shard_reset(&m->ledger, shard);
        memset(s->late_applied, 0, sizeof(s->late_applied));
        memset(s->late_durable, 0, sizeof(s->late_durable));
        s->fresh = false;
    }
}

static void s_report(model *m, uint32_t shard, bool late)
{
    model_shard *s = &m->shard[shard];
    s_hear_fresh(m, shard);
    bool all = late || s_draw(m, 2) == 0;
    for (uint64_t u = 0; u < m->plan.units_total; u++) {
        if (all || s_draw(m, 2) == 0) {
            ebb_ledger_watermark(&m->ledger, shard, u, late ? s->late_applied[u] : s->applied[u], late ? s->late_durable[u] : s->durable[u]);
        }
    }
    if (!late && s_draw(m, 3) == 0) {
        memcpy(s->late_applied, s->applied, sizeof(s->late_applied));
        memcpy(s->late_durable, s->durable, sizeof(s->late_durable));
    }
}

static void s_full_report(model *m, uint32_t shard)
{
    model_shard *s = &m->shard[shard];
    s_hear_fresh(m, shard);
    for (uint64_t u = 0; u < m->plan.units_total; u++) {
        ebb_ledger_watermark(&m->ledger, shard, u, s->applied[u], s->durable[u]);
    }
}

static void s_lease(model *m, int w)
{
    model_worker *x = &m->worker[w];
    const ebb_unit_row *u = NULL;
    ebb_status st = ebb_ledger_lease(&m->ledger, x->name, x->incarnation, m->now, &u);
    if (st == EBB_NOENT) {
        return;
    }
    CHECK_OK(st);
    uint64_t stream = u->lease.stream;
    assert_false(m->retired[stream]);
    if (m->holder[stream] >= 0 && m->holder[stream] != w) {
        fail_msg("seed %llu: unit %llu was leased to %s while %s holds it", (unsigned long long)m->seed, (unsigned long long)stream, x->name,
                 m->worker[m->holder[stream]].name);
    }
    assert_true(m->holder[stream] == w || m->now >= m->settle[stream]);
    for (uint64_t other = 0; other < m->plan.units_total; other++) {
        assert_true(other == stream || m->holder[other] != w); // one unit each
    }
    assert_true(u->lease.seq_first >= 1 && u->lease.seq_first <= u->steps && u->steps == s_steps(m, stream));
    assert_true(u->lease.lease != 0 && u->lease.incarnation == x->incarnation && strcmp(u->lease.worker, x->name) == 0 && u->lease.attempt >= 1);
    m->holder[stream] = w;
    m->deadline[stream] = m->now + LEASE_MS;
    x->lease = u->lease.lease;
    x->stream = stream;
    x->next = u->lease.seq_first;
    s_persist(m, stream);
    const ebb_unit_row *again = NULL; // asked again: the same
    CHECK_OK(ebb_ledger_lease(&m->ledger, x->name, x->incarnation, m->now, &again));
    assert_true(again->lease.lease == x->lease && again->lease.stream == stream);
}

// Pushes its next step to every shard, or, when it dies halfway, to some.
static void s_work(model *m, int w, bool whole)
{
    model_worker *x = &m->worker[w];
    if (x->lease == 0 || x->next > s_steps(m, x->stream)) {
        return;
    }
    bool everywhere = true;
    for (uint32_t s = 0; s < m->n_shards; s++) {
        uint64_t *applied = &m->shard[s].applied[x->stream];
        if (m->retired[x->stream]) {
            continue;
        }
        if ((whole || s_draw(m, 8) != 0) && *applied + 1 == x->next) {
            ++*applied;
        }
        everywhere = everywhere && *applied >= x->next;
    }
    if (everywhere) {
        x->next++;
    }
}

static void s_return(model *m, int w)
{
    model_worker *x = &m->worker[w];
    uint64_t stream = UINT64_MAX, lease = x->lease;
    if (lease == 0) {
        return;
    }
    bool held = ebb_ledger_return(&m->ledger, x->name, lease, x->next - 1, m->now, &stream);
    if (held) {
        assert_int_equal(stream, x->stream);
        assert_int_equal(m->holder[stream], w);
        const ebb_unit_row *u = ebb_ledger_unit(&m->ledger, stream);
        if (x->next > u->steps && ebb_ledger_unit_applied(&m->ledger, u) < u->steps) {
            m->settle[stream] = m->now + EBB_SETTLE_MS;
        }
        m->holder[stream] = -1;
        s_persist(m, stream);
        assert_false(ebb_ledger_return(&m->ledger, x->name, lease, x->next - 1, m->now, &stream)); // said twice: nothing more
    }
    x->lease = 0;
}

static void s_release(model *m, int w, uint64_t keep)
{
    uint64_t stream;
    if (ebb_ledger_release(&m->ledger, m->worker[w].name, keep, &stream) > 0) {
        assert_int_equal(m->holder[stream], w);
        m->holder[stream] = -1;
        s_persist(m, stream);
    }
    for (uint64_t u = 0; keep == 0 && u < m->plan.units_total; u++) {
        assert_true(m->holder[u] != w);
    }
}

static void s_expire(model *m)
{
    uint64_t streams[UNITS_MAX];
    char workers[UNITS_MAX][EBB_NAME_MAX];
    size_t n = ebb_ledger_expire(&m->ledger, m->now, streams, workers, UNITS_MAX);
    for (size_t i = 0; i < n; i++) {
        uint64_t u = streams[i];
        if (workers[i][0] != '\0') {
            assert_true(m->holder[u] >= 0 && m->deadline[u] <= m->now);
            assert_string_equal(workers[i], m->worker[m->holder[u]].name);
            m->holder[u] = -1;
        }
        s_persist(m, u);
    }
    for (uint64_t u = 0; u < m->plan.units_total; u++) {
        assert_true(m->holder[u] < 0 || m->deadline[u] > m->now);
    }
}

// The coordinator dies: only rows are left. Leases stay valid for one term; shards tell everything again.
static void s_restart(model *m)
{
    ebb_ledger_fini(&m->ledger);
    CHECK_OK(ebb_ledger_init(&m->ledger, &m->plan, m->n_shards, LEASE_MS));
    ebb_ledger_totals totals = {m->below, m->steps_retired, m->next_lease, 0};
    CHECK_OK(ebb_ledger_restore_retired(&m->ledger, &totals, m->sparse, m->n_sparse));
    for (uint64_t u = 0; u < m->plan.units_total; u++) {
        if (m->has_row[u]) {
            CHECK_OK(ebb_ledger_restore_unit(&m->ledger, &m->row[u], m->now));
            m->deadline[u] = m->now + LEASE_MS;
        }
        assert_int_equal(ebb_ledger_is_retired(&m->ledger, u), m->retired[u]);
    }
    for (uint32_t s = 0; s < m->n_shards; s++) {
        s_full_report(m, s);
    }
}

static void s_crash_shard(model *m, uint32_t shard)
{
    model_shard *s = &m->shard[shard];
    memcpy(s->applied, s->durable, sizeof(s->applied));
    s->fresh = true;
}

static void s_event(model *m)
{
    int w = (int)s_draw(m, WORKERS);
    uint32_t shard = (uint32_t)s_draw(m, m->n_shards);
    uint64_t unit = s_draw(m, m->plan.units_total);
    switch (s_draw(m, 16)) {
    case 0:
    case 1:
        if (m->worker[w].lease == 0) {
            s_lease(m, w);
        }
        break;
    case 2:
    case 3:
    case 4:
    case 5:
        s_work(m, w, false);
        break;
    case 6:
        m->shard[shard].durable[unit] += s_draw(m, m->shard[shard].applied[unit] - m->shard[shard].durable[unit] + 1);
        break;
    case 7:
        memcpy(m->shard[shard].durable, m->shard[shard].applied, sizeof(m->shard[shard].durable)); // a snapshot
        break;
    case 8:
    case 9:
        s_report(m, shard, s_draw(m, 4) == 0);
        break;
    case 10:
        s_return(m, w);
        break;
    case 11: // a heartbeat
        if (m->worker[w].lease != 0 && ebb_ledger_renew(&m->ledger, m->worker[w].name, m->worker[w].lease, m->now)) {
            assert_int_equal(m->holder[m->worker[w].stream], w);
            m->deadline[m->worker[w].stream] = m->now + LEASE_MS;
        } else {
            m->worker[w].lease = 0;
        }
        break;
    case 12:
        m->now += s_draw(m, LEASE_MS);
        s_expire(m);
        break;
    case 13:
        s_retire(m);
        break;
    case 14: // a worker dies; its successor, or its supervisor, is heard
        if (s_draw(m, 3) == 0) {
            m->worker[w].lease = 0;
            m->worker[w].incarnation = 1 + m->draws;
            s_release(m, w, s_draw(m, 2) == 0 ? m->worker[w].incarnation : 0);
        }
        break;
    default:
        if (s_draw(m, 6) == 0) {
            s_restart(m);
        } else if (s_draw(m, 3) == 0) {
            s_crash_shard(m, shard);
        }
        break;
    }
}

// Nothing fails any more: everything must get done, in bounded time.
static void s_finish(model *m)
{
    for (int round = 0; round < 40 * UNITS_MAX && !ebb_ledger_all_retired(&m->ledger); round++) {
        for (int w = 0; w < WORKERS; w++) {
            model_worker *x = &m->worker[w];
            if (x->lease != 0 && !ebb_ledger_renew(&m->ledger, x->name, x->lease, m->now)) {
                x->lease = 0;
            } else if (x->lease != 0) {
                m->deadline[x->stream] = m->now + LEASE_MS;
            }
            if (x->lease == 0) {
                s_lease(m, w);
            }
            for (int k = 0; k < 64; k++) {
                s_work(m, w, true);
            }
            s_return(m, w);
        }
        for (uint32_t s = 0; s < m->n_shards; s++) {
            memcpy(m->shard[s].durable, m->shard[s].applied, sizeof(m->shard[s].durable));
            s_full_report(m, s);
        }
        s_retire(m);
        m->now += EBB_SETTLE_MS / 2;
        s_expire(m);
    }
    if (!ebb_ledger_all_retired(&m->ledger)) {
        fail_msg("seed %llu: %llu of %llu units were never retired", (unsigned long long)m->seed,
                 (unsigned long long)(m->plan.units_total - m->ledger.retired_below - m->ledger.n_retired), (unsigned long long)m->plan.units_total);
    }
    assert_int_equal(m->ledger.steps_retired, m->plan.steps_total);
    assert_int_equal(ebb_ledger_steps_done(&m->ledger), m->plan.steps_total);
    assert_int_equal(m->ledger.n_units, 0);
    assert_int_equal(m->ledger.n_retired, 0);
    assert_true(ebb_ledger_all_applied(&m->ledger));
}

static void s_run(uint64_t seed)
{
    model *m = calloc(1, sizeof(*m));
    assert_non_null(m);
    m->seed = seed;
    m->now = 1;
    m->n_shards = 1 + (uint32_t)s_draw(m, SHARDS_MAX);
    do {
        CHECK_OK(ebb_plan_init(&m->plan, 1 + s_draw(m, 60), 1 + (uint32_t)s_draw(m, 5), 1 + (uint32_t)s_draw(m, 5), 1 + s_draw(m, 80), seed));
    } while (m->plan.units_total > UNITS_MAX);
    CHECK_OK(ebb_ledger_init(&m->ledger, &m->plan, m->n_shards, LEASE_MS));
    for (int w = 0; w < WORKERS; w++) {
        snprintf(m->worker[w].name, sizeof(m->worker[w].name), "w%d", w);
        m->worker[w].incarnation = (uint64_t)w + 1;
    }
    for (int u = 0; u < UNITS_MAX; u++) {
        m->holder[u] = -1;
    }
    uint64_t events = s_draw(m, 600);
    for (uint64_t i = 0; i < events; i++) {
        s_event(m);
        const char *broken = ebb_ledger_check(&m->ledger);
        if (broken != NULL) {
            fail_msg("seed %llu, event %llu: %s", (unsigned long long)seed, (unsigned long long)i, broken);
        }
    }
    s_finish(m);
    assert_null(ebb_ledger_check(&m->ledger));
    ebb_ledger_fini(&m->ledger);
    free(m);
}

static void test_ledger_loses_no_step(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    for (uint64_t i = 0; i < RUNS; i++) {
        s_run(seed + i);
    }
}

// ---- by hand, the cases worth naming ----

static void s_new(ebb_ledger *l, uint64_t steps, uint32_t unit_steps, uint32_t shards)
{
    ebb_plan plan;
    CHECK_OK(ebb_plan_init(&plan, 1000, 1, unit_steps, steps, 7));
    CHECK_OK(ebb_ledger_init(l, &plan, shards, LEASE_MS));
}

static void test_ledger_leases_again_from_the_first_hole(void **state)
{
    (void)state;
    ebb_ledger l;
    const ebb_unit_row *u;
    uint64_t stream;
    s_new(&l, 20, 10, 2);
    CHECK_OK(ebb_ledger_lease(&l, "a", 1, 0, &u));
    assert_int_equal(u->lease.stream, 0);
    ebb_ledger_watermark(&l, 0, 0, 7, 7);
    ebb_ledger_watermark(&l, 1, 0, 4, 4);
    assert_true(ebb_ledger_return(&l, "a", u->lease.lease, 4, 0, &stream));
    CHECK_OK(ebb_ledger_lease(&l, "b", 2, 0, &u)); // remainders before new units
    assert_int_equal(u->lease.stream, 0);
    assert_int_equal(u->lease.seq_first, 5);
    assert_int_equal(u->lease.attempt, 2);
    CHECK_OK(ebb_ledger_lease(&l, "a", 1, 0, &u));
    assert_int_equal(u->lease.stream, 1);
    CHECK_ERR(ebb_ledger_lease(&l, "c", 3, 0, &u), EBB_NOENT);
    ebb_ledger_fini(&l);
}

static void test_ledger_reopens_done_units_after_rollback(void **state)
{
    (void)state;
    ebb_ledger l;
    const ebb_unit_row *u;
    uint64_t stream, streams[4];
    s_new(&l, 10, 10, 2);
    CHECK_OK(ebb_ledger_lease(&l, "a", 1, 0, &u));
    uint64_t lease = u->lease.lease;
    ebb_ledger_watermark(&l, 0, 0, 10, 10);
    ebb_ledger_watermark(&l, 1, 0, 10, 3);
    assert_true(ebb_ledger_return(&l, "a", lease, 10, 0, &stream));
    assert_true(ebb_ledger_all_applied(&l));
    assert_int_equal(ebb_ledger_retire(&l, streams, 4), 0); // durable on one shard only
    CHECK_ERR(ebb_ledger_lease(&l, "a", 1, 0, &u), EBB_NOENT);
    ebb_ledger_shard_reset(&l, 1); // shard 1 comes back with what it had on disk
    ebb_ledger_watermark(&l, 1, 0, 3, 3);
    assert_false(ebb_ledger_all_applied(&l));
    CHECK_OK(ebb_ledger_lease(&l, "a", 1, 0, &u));
    assert_int_equal(u->lease.seq_first, 4);
    ebb_ledger_watermark(&l, 1, 0, 10, 10);
    assert_int_equal(ebb_ledger_retire(&l, streams, 4), 1);
    assert_true(ebb_ledger_all_retired(&l));
    assert_true(ebb_ledger_is_retired(&l, 0));
    assert_false(ebb_ledger_renew(&l, "a", lease, 0));
    ebb_ledger_fini(&l);
}

static void test_ledger_holds_only_what_is_in_flight(void **state)
{
    (void)state;
    ebb_ledger l;
    const ebb_unit_row *u;
    uint64_t stream, streams[4];
    ebb_plan plan;
    CHECK_OK(ebb_plan_init(&plan, 1000000000000ull, 1, 1, 1000000000000ull, 7)); // 10^12 units
    CHECK_OK(ebb_ledger_init(&l, &plan, 1, LEASE_MS));
    for (uint64_t i = 0; i < 20000; i++) {
        CHECK_OK(ebb_ledger_lease(&l, "a", 1, 0, &u));
        assert_int_equal(u->lease.stream, i);
        ebb_ledger_watermark(&l, 0, i, 1, 1);
        assert_true(ebb_ledger_return(&l, "a", u->lease.lease, 1, 0, &stream));
        assert_int_equal(ebb_ledger_retire(&l, streams, 4), 1);
        assert_true(l.n_units == 0 && l.n_retired == 0 && l.cap_units <= 64);
    }
    ebb_ledger_fini(&l);
}

static void test_ledger_refuses_damaged_rows(void **state)
{
    (void)state;
    ebb_ledger l;
    s_new(&l, 100, 10, 1);
    const uint64_t beyond[] = {10}, twice[] = {4, 4};
    ebb_ledger_totals far = {.retired_below = 11}, two = {.retired_below = 2};
    CHECK_ERR(ebb_ledger_restore_retired(&l, &far, NULL, 0), EBB_CORRUPT);
    CHECK_ERR(ebb_ledger_restore_retired(&l, &two, beyond, 1), EBB_CORRUPT);
    CHECK_ERR(ebb_ledger_restore_retired(&l, &two, twice, 2), EBB_CORRUPT);
    ebb_lease_row row = {.stream = 1, .lease = 5, .worker = "a", .incarnation = 1, .seq_first = 1, .attempt = 1};
    CHECK_ERR(ebb_ledger_restore_unit(&l, &row, 0), EBB_CORRUPT); // retired
    row.stream = 7;
    CHECK_OK(ebb_ledger_restore_unit(&l, &row, 0));
    CHECK_ERR(ebb_ledger_restore_unit(&l, &row, 0), EBB_CORRUPT);
    row.stream = 10;
    assert_int_not_equal(ebb_ledger_restore_unit(&l, &row, 0), EBB_OK);
    ebb_ledger_fini(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_loses_no_step),
        cmocka_unit_test(test_ledger_leases_again_from_the_first_hole),
        cmocka_unit_test(test_ledger_reopens_done_units_after_rollback),
        cmocka_unit_test(test_ledger_holds_only_what_is_in_flight),
        cmocka_unit_test(test_ledger_refuses_damaged_rows),
    };
    return cmocka_run_group_tests_name("coordinator.ledger", tests, NULL, NULL);
}
