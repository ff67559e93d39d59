// A coordinator's folder for the counter job (counterjob.h): rows of every kind, in a table and in the log.
#ifndef EBB_TESTS_SUPPORT_COUNTERSTORE_H
#define EBB_TESTS_SUPPORT_COUNTERSTORE_H

#include "coordinator/statestore.h"
#include "tests/support/counterjob.h"

static inline void counterstore_events(ebb_statestore *s, uint64_t from, uint64_t to)
{
    for (uint64_t id = from; id <= to; id++) {
        char text[64];
        Ebb__Event e = EBB__EVENT__INIT;
        snprintf(text, sizeof(text), "number %llu of \"six\"", (unsigned long long)id);
        e.id = id;
        e.unix_ms = 1700000000000u + id;
        e.kind = "counted";
        e.subject = "golden";
        e.text = text;
        CHECK_OK(ebb_statestore_put_event(s, &e));
    }
}

// Ten units of four steps: 0 and 2 are retired, 1 and 3 in flight, 4 given back.
static inline void counterstore_units(ebb_statestore *s, ebb_ledger *l)
{
    uint64_t streams[4], stream;
    const ebb_unit_row *u;
    for (uint64_t i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof(name), "worker-%d", (int)i);
        CHECK_OK(ebb_ledger_lease(l, name, i + 1, 0, &u));
        assert_int_equal(u->lease.stream, i);
        CHECK_OK(ebb_statestore_put_unit(s, &u->lease));
    }
    ebb_ledger_watermark(l, 0, 0, 4, 4);
    ebb_ledger_watermark(l, 0, 2, 4, 4);
    size_t n = ebb_ledger_retire(l, streams, 4);
    assert_int_equal(n, 2);
    CHECK_OK(ebb_statestore_retire(s, l, streams, n));
    assert_true(ebb_ledger_return(l, "worker-4", ebb_ledger_unit(l, 4)->lease.lease, 1, 0, &stream));
    CHECK_OK(ebb_statestore_put_unit(s, &ebb_ledger_unit(l, 4)->lease));
}

static inline void counterstore_write(const char *dir)
{
    char why[512] = "";
    counterjob f;
    ebb_statestore *s = NULL;
    ebb_plan plan;
    ebb_ledger l;
    const ebb_chunk_range range = {0, 2};
    counterjob_init(&f, "journal");
    if (ebb_statestore_open(dir, &s, why) != EBB_OK) {
        fail_msg("%s", why);
    }
    CHECK_OK(ebb_plan_init(&plan, 1000, 1, 4, 40, 1));
    CHECK_OK(ebb_ledger_init(&l, &plan, 1, 2000));
    CHECK_OK(ebb_statestore_put_job(s, COUNTERJOB_ID, 1700000000000u, &f.spec));
    CHECK_OK(ebb_statestore_put_placement(s, f.packed, f.packed_len, 1, &range, 1));
    counterstore_events(s, 1, 3);
    CHECK_OK(ebb_kvstore_flush(ebb_statestore_kv(s)));
    counterstore_units(s, &l);
    CHECK_OK(ebb_statestore_put_skip(s, 1, 2, "not finite"));
    const ebb_eval_point first = {.id = 8, .step = 8, .version = 8, .loss = 1.5, .accuracy = 0.25, .time_s = 2};
    const ebb_eval_point final = {.id = UINT64_MAX, .step = 40, .version = 40, .loss = 0.5, .accuracy = 0.75, .time_s = 4};
    CHECK_OK(ebb_statestore_put_eval(s, &first));
    CHECK_OK(ebb_statestore_put_eval(s, &final));
    ebb_progress *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    ebb_progress_init(p);
    ebb_progress_loss(p, 1, 2.0, 1, 0.5);
    CHECK_OK(ebb_statestore_put_progress(s, p, 3.5));
    free(p);
    CHECK_OK(ebb_statestore_put_wanted(s, 2));
    counterstore_events(s, 4, 6);
    CHECK_OK(ebb_statestore_put_state(s, "SUCCEEDED"));
    ebb_ledger_fini(&l);
    ebb_statestore_close(&s);
    counterjob_fini(&f);
}

#endif
