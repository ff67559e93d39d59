#include "tests/support/check.h"

#include <string.h>

#include "core/manifest.h"
#include "core/shardmap.h"

static ebb_manifest *s_random(uint64_t seed, uint64_t k)
{
    ebb_manifest *m = NULL;
    CHECK_OK(ebb_manifest_new(&m, 1 + (uint32_t)(ebb_rng_at(seed, 1, k) % 1000)));
    uint64_t tensors = 1 + ebb_rng_at(seed, 2, k) % 20;
    for (uint64_t t = 0; t < tensors; t++) {
        char name[32];
        snprintf(name, sizeof(name), "t.%llu", (unsigned long long)t);
        uint64_t ne[2] = {1 + ebb_rng_at(seed, 3 + t, k) % 40, 1 + ebb_rng_at(seed, 50 + t, k) % 60};
        CHECK_OK(ebb_manifest_add(m, name, 2, ne, (ebb_init_kind)(t % 4), 0.5f, (uint32_t)(t % 2)));
    }
    CHECK_OK(ebb_manifest_seal(m));
    return m;
}

static void test_manifest_chunks_cover_all(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    for (uint64_t k = 0; k < 50; k++) {
        ebb_manifest *m = s_random(seed, k);
        uint64_t at = 0;
        for (size_t c = 0; c < m->n_chunks; c++) {
            assert_int_equal(m->chunks[c].offset, at);
            assert_true(m->chunks[c].numel >= 1 && m->chunks[c].numel <= m->chunk_elems);
            at += m->chunks[c].numel;
        }
        assert_int_equal(at, m->numel);
        for (uint32_t n = 1; n < 9; n++) {
            ebb_chunk_range ranges[9];
            ebb_shardmap_place(m, n, ranges);
            uint32_t next = 0;
            uint64_t largest = 0;
            for (size_t c = 0; c < m->n_chunks; c++) {
                largest = m->chunks[c].numel > largest ? m->chunks[c].numel : largest;
            }
            for (uint32_t s = 0; s < n; s++) {
                assert_int_equal(ranges[s].first, next);
                uint64_t size = 0;
                for (uint32_t c = ranges[s].first; c < ranges[s].first + ranges[s].count; c++) {
                    size += m->chunks[c].numel;
                    assert_int_equal(ebb_shardmap_find(ranges, n, c), (int)s);
                }
                assert_true(size <= m->numel / n + largest + 1);
                next += ranges[s].count;
            }
            assert_int_equal(next, m->n_chunks);
            assert_int_equal(ebb_shardmap_find(ranges, n, (uint32_t)m->n_chunks), -1);
        }
        ebb_manifest_free(&m);
    }
}

static void test_manifest_packs_and_hashes(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    for (uint64_t k = 0; k < 20; k++) {
        ebb_manifest *m = s_random(seed, k), *back = NULL;
        uint8_t *bytes = NULL;
        size_t len = 0;
        CHECK_OK(ebb_manifest_pack(m, &bytes, &len));
        CHECK_OK(ebb_manifest_unpack(bytes, len, &back));
        assert_int_equal(ebb_manifest_hash(m), ebb_manifest_hash(back));
        assert_int_equal(back->numel, m->numel);
        back->tensors[0].init_a += 1;
        assert_int_not_equal(ebb_manifest_hash(m), ebb_manifest_hash(back));
        ebb_manifest_free(&back);
        for (size_t cut = 0; cut < len; cut += 1 + len / 50) { // cut anywhere: an error or a smaller manifest, never a crash
            if (ebb_manifest_unpack(bytes, cut, &back) == EBB_OK) {
                assert_true(back->n_tensors < m->n_tensors || cut == len);
                ebb_manifest_free(&back);
            }
        }
        free(bytes);
        ebb_manifest_free(&m);
    }
}

// Initial values depend on (seed, tensor, element) only: other chunk sizes give the same tensor.
static void test_manifest_init_ignores_chunking(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    float *whole[2] = {NULL, NULL};
    for (int v = 0; v < 2; v++) {
        ebb_manifest *m = NULL;
        uint64_t ne[2] = {37, 29};
        CHECK_OK(ebb_manifest_new(&m, v == 0 ? 100 : 731));
        CHECK_OK(ebb_manifest_add(m, "a", 2, ne, EBB_INIT_NORMAL, 0.02f, 0));
        CHECK_OK(ebb_manifest_add(m, "b", 2, ne, EBB_INIT_UNIFORM, 0.3f, 0));
        CHECK_OK(ebb_manifest_seal(m));
        whole[v] = malloc(m->numel * sizeof(float));
        for (uint32_t c = 0; c < m->n_chunks; c++) {
            ebb_manifest_init_chunk(m, seed, c, whole[v] + m->chunks[c].offset);
        }
        for (uint64_t i = m->tensors[1].offset; i < m->numel; i++) {
            assert_true(whole[v][i] >= -0.3f && whole[v][i] < 0.3f);
        }
        ebb_manifest_free(&m);
    }
    assert_memory_equal(whole[0], whole[1], 2 * 37 * 29 * sizeof(float));
    free(whole[0]);
    free(whole[1]);
}

static void test_manifest_refuses_nonsense(void **state)
{
    (void)state;
    ebb_manifest *m = NULL;
    uint64_t ne[5] = {4, 4, 4, 4, 4}, none[1] = {0}, huge[2] = {1ULL << 40, 1ULL << 40};
    CHECK_ERR(ebb_manifest_new(&m, 0), EBB_INVAL);
    CHECK_OK(ebb_manifest_new(&m, 16));
    CHECK_ERR(ebb_manifest_add(m, "", 1, ne, EBB_INIT_ZEROS, 0, 0), EBB_INVAL);
    CHECK_ERR(ebb_manifest_add(m, "a b", 1, ne, EBB_INIT_ZEROS, 0, 0), EBB_INVAL);
    CHECK_ERR(ebb_manifest_add(m, "a", 5, ne, EBB_INIT_ZEROS, 0, 0), EBB_INVAL);
    CHECK_ERR(ebb_manifest_add(m, "a", 1, none, EBB_INIT_ZEROS, 0, 0), EBB_INVAL);
    CHECK_ERR(ebb_manifest_add(m, "a", 2, huge, EBB_INIT_ZEROS, 0, 0), EBB_INVAL);
    CHECK_ERR(ebb_manifest_seal(m), EBB_INVAL);
    CHECK_OK(ebb_manifest_add(m, "a", 1, ne, EBB_INIT_ZEROS, 0, 0));
    CHECK_ERR(ebb_manifest_add(m, "a", 1, ne, EBB_INIT_ZEROS, 0, 0), EBB_INVAL);
    ebb_manifest_free(&m);
}

// A few bytes must not stand for gigabytes: the number of chunks is bounded.
static void test_manifest_bounds_the_chunks(void **state)
{
    (void)state;
    static const uint8_t packed[] = {0x08, 0x01, 0x12, 0x09, 0x0a, 0x01, 'a',
                                     0x1a, 0x04, 0x80, 0x80, 0x80, 0x40}; // chunk_elems 1, one tensor of 2^27
    ebb_manifest *m = NULL;
    assert_int_not_equal(ebb_manifest_unpack(packed, sizeof(packed), &m), EBB_OK);
    assert_null(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manifest_bounds_the_chunks), cmocka_unit_test(test_manifest_chunks_cover_all),
        cmocka_unit_test(test_manifest_packs_and_hashes),  cmocka_unit_test(test_manifest_init_ignores_chunking),
        cmocka_unit_test(test_manifest_refuses_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
