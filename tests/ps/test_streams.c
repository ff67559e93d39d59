#include "tests/support/check.h"

#include <string.h>

#include "ps/streams.h"

static void test_streams_verdicts(void **state)
{
    (void)state;
    ebb_streams s;
    uint64_t applied = 99;
    bool changed = false;
    ebb_streams_init(&s);
    assert_int_equal(ebb_streams_verdict(&s, 5, 1, &applied), EBB_STREAM_NEXT);
    assert_int_equal(applied, 0);
    assert_int_equal(ebb_streams_verdict(&s, 5, 2, &applied), EBB_STREAM_GAP);
    CHECK_OK(ebb_streams_advance(&s, 5, 1, 10));
    assert_int_equal(ebb_streams_verdict(&s, 5, 1, &applied), EBB_STREAM_DUPLICATE);
    assert_int_equal(applied, 1);
    assert_int_equal(ebb_streams_verdict(&s, 5, UINT64_MAX, NULL), EBB_STREAM_GAP);
    assert_true(ebb_streams_has_undurable(&s));
    ebb_streams_mark(&s);
    CHECK_OK(ebb_streams_advance(&s, 5, 2, 11));
    ebb_streams_commit_mark(&s);
    assert_int_equal(ebb_streams_find(&s, 5)->durable, 1); // not what came after the mark
    ebb_streams_all_durable(&s);
    assert_false(ebb_streams_has_undurable(&s));
    const uint64_t list[] = {5, 9};
    CHECK_OK(ebb_streams_retire(&s, 2, list, 2, &changed, NULL, NULL));
    assert_true(changed);
    assert_null(ebb_streams_find(&s, 5));
    assert_int_equal(ebb_streams_verdict(&s, 5, 3, &applied), EBB_STREAM_DUPLICATE);
    assert_int_equal(ebb_streams_verdict(&s, 1, 1, NULL), EBB_STREAM_DUPLICATE);
    assert_int_equal(ebb_streams_verdict(&s, 9, 1, NULL), EBB_STREAM_DUPLICATE);
    assert_int_equal(ebb_streams_verdict(&s, 6, 1, NULL), EBB_STREAM_NEXT);
    CHECK_OK(ebb_streams_retire(&s, 2, list, 2, &changed, NULL, NULL));
    assert_false(changed);
    CHECK_OK(ebb_streams_restore(&s, 5, 1, 1)); // a stale row of a retired stream
    assert_int_equal(ebb_streams_verdict(&s, 5, 2, NULL), EBB_STREAM_DUPLICATE);
    ebb_streams_fini(&s);
}

static void s_count(void *arg, uint64_t id)
{
    (void)id;
    (*(size_t *)arg)++;
}

// Random pushes, repeats, gaps and retirements against the obvious model: an array of counters and a set.
static void test_streams_random_against_model(void **state)
{
    (void)state;
    enum { STREAMS = 60, OPS = 60000 };
    uint64_t seed = ebb_test_seed();
    for (uint64_t round = 0; round < 5; round++) {
        uint64_t applied[STREAMS] = {0}, lsn = 0;
        bool retired[STREAMS] = {false};
        ebb_streams s;
        ebb_streams_init(&s);
        for (uint64_t op = 0; op < OPS; op++) {
            uint64_t r = ebb_rng_at(seed, round, op);
            uint64_t id = (r >> 8) % STREAMS;
            if (r % 1000 == 0) {
                uint64_t below = 0, list[STREAMS], n = 0;
                bool changed;
                size_t forgotten = 0, live = s.n;
                retired[id] = applied[id] > 3 || retired[id];
                for (uint64_t i = 0; i < STREAMS; i++) {
                    if (retired[i] && below == i) {
                        below++;
                    } else if (retired[i] && (r >> 40) % 3 != 0) { // the coordinator's list may be older than ours: nothing is un-retired
                        list[n++] = i;
                    }
                }
                if (retired[id] && id >= below) {
                    list[n++] = id;
                }
                CHECK_OK(ebb_streams_retire(&s, below, list, n, &changed, s_count, &forgotten));
                assert_int_equal(live - s.n, forgotten);
                continue;
            }
            uint64_t seq = applied[id] + 2 - (r >> 20) % 4; // two behind to two ahead
            if (seq == 0 || seq > applied[id] + 2) {
                seq = 1;
            }
            uint64_t got = 0;
            ebb_stream_verdict v = ebb_streams_verdict(&s, id, seq, &got);
            assert_int_equal(ebb_streams_is_retired(&s, id), retired[id]);
            if (retired[id]) {
                assert_int_equal(v, EBB_STREAM_DUPLICATE);
            } else {
                assert_int_equal(got, applied[id]);
                assert_int_equal(v, seq <= applied[id] ? EBB_STREAM_DUPLICATE : seq == applied[id] + 1 ? EBB_STREAM_NEXT : EBB_STREAM_GAP);
                if (v == EBB_STREAM_NEXT) {
                    CHECK_OK(ebb_streams_advance(&s, id, seq, ++lsn));
                    applied[id]++;
                }
            }
            for (size_t i = 1; i < s.n; i++) {
                assert_true(s.at[i - 1].id < s.at[i].id);
            }
        }
        ebb_streams_fini(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams_verdicts),
        cmocka_unit_test(test_streams_random_against_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
