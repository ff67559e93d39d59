// The shard map: what is accepted, and that slices and pieces cover every chunk once.
#include "tests/support/check.h"

#include <string.h>

#include "client/router.h"
#include "core/shardmap.h"
#include "tests/client/fake.h"

#define SHARDS_MAX 40

typedef struct map {
    Ebb__ShardMapReply reply;
    Ebb__ShardInfo info[SHARDS_MAX], *list[SHARDS_MAX];
} map;

static void s_place(map *m, const ebb_manifest *manifest, uint32_t n)
{
    ebb_chunk_range range[SHARDS_MAX];
    ebb_shardmap_place(manifest, n, range);
    ebb__shard_map_reply__init(&m->reply);
    m->reply.epoch = 5;
    m->reply.n_shards = n;
    m->reply.shards = m->list;
    for (uint32_t i = 0; i < n; i++) {
        ebb__shard_info__init(&m->info[i]);
        m->info[i].shard = i;
        m->info[i].endpoint = "ipc:///nowhere";
        m->info[i].first_chunk = range[i].first;
        m->info[i].chunk_count = range[i].count;
        m->list[i] = &m->info[i];
    }
}

static void test_router_covers_every_chunk_once(void **state)
{
    (void)state;
    for (uint32_t elems = 1; elems <= 400; elems = elems * 3 + 1) {
        ebb_manifest *manifest = fake_manifest(elems);
        for (uint32_t n = 1; n <= SHARDS_MAX; n++) {
            map m;
            ebb_routes routes;
            char why[256];
            s_place(&m, manifest, n);
            CHECK_OK(ebb_routes_parse(&m.reply, (uint32_t)manifest->n_chunks, &routes, why));
            CHECK_OK(ebb_routes_check_push(&routes, manifest, why));
            assert_int_equal(routes.epoch, 5);
            uint32_t next = 0;
            for (uint32_t i = 0; i < n; i++) {
                uint32_t from = routes.route[i].first_chunk, count;
                assert_int_equal(from, next);
                while (ebb_routes_piece(&routes.route[i], manifest, from, &count)) {
                    assert_true(count > 0 && count <= 1024);
                    from += count;
                }
                assert_int_equal(from, routes.route[i].first_chunk + routes.route[i].chunk_count);
                next = from;
            }
            assert_int_equal(next, manifest->n_chunks);
            ebb_routes_fini(&routes);
        }
        ebb_manifest_free(&manifest);
    }
}

static void test_router_refuses_holes(void **state)
{
    (void)state;
    ebb_manifest *manifest = fake_manifest(32);
    uint32_t chunks = (uint32_t)manifest->n_chunks;
    ebb_routes routes;
    char why[256];
    map m;

    s_place(&m, manifest, 3);
    m.info[1].first_chunk++;
    CHECK_ERR(ebb_routes_parse(&m.reply, chunks, &routes, why), EBB_PROTO);
    s_place(&m, manifest, 3);
    m.info[2].chunk_count++;
    CHECK_ERR(ebb_routes_parse(&m.reply, chunks, &routes, why), EBB_PROTO);
    s_place(&m, manifest, 3);
    m.info[2].chunk_count = UINT32_MAX;
    CHECK_ERR(ebb_routes_parse(&m.reply, chunks, &routes, why), EBB_PROTO);
    s_place(&m, manifest, 3);
    m.info[2].chunk_count--;
    CHECK_ERR(ebb_routes_parse(&m.reply, chunks, &routes, why), EBB_PROTO);
    s_place(&m, manifest, 3);
    m.info[0].endpoint = "";
    CHECK_ERR(ebb_routes_parse(&m.reply, chunks, &routes, why), EBB_PROTO);
    s_place(&m, manifest, 3);
    m.reply.n_shards = 0;
    CHECK_ERR(ebb_routes_parse(&m.reply, chunks, &routes, why), EBB_PROTO);
    ebb_manifest_free(&manifest);
}

static void test_router_tells_layouts_apart(void **state)
{
    (void)state;
    ebb_manifest *manifest = fake_manifest(32);
    uint32_t chunks = (uint32_t)manifest->n_chunks;
    char why[256];
    map a, b;
    ebb_routes ra, rb;
    s_place(&a, manifest, 3);
    s_place(&b, manifest, 3);
    b.info[1].endpoint = "ipc:///elsewhere";
    CHECK_OK(ebb_routes_parse(&a.reply, chunks, &ra, why));
    CHECK_OK(ebb_routes_parse(&b.reply, chunks, &rb, why));
    assert_true(ebb_routes_same_layout(&ra, &rb));
    ebb_routes_fini(&rb);
    b.info[0].chunk_count++;
    b.info[1].first_chunk++;
    b.info[1].chunk_count--;
    CHECK_OK(ebb_routes_parse(&b.reply, chunks, &rb, why));
    assert_false(ebb_routes_same_layout(&ra, &rb));
    ebb_routes_fini(&ra);
    ebb_routes_fini(&rb);
    ebb_manifest_free(&manifest);
}

static void test_router_cuts_large_pulls(void **state)
{
    (void)state;
    ebb_manifest *m = NULL;
    CHECK_OK(ebb_manifest_new(&m, 1024 * 1024));
    CHECK_OK(ebb_manifest_add(m, "big", 2, (uint64_t[]){100, 1024 * 1024}, EBB_INIT_ZEROS, 0, 0));
    CHECK_OK(ebb_manifest_seal(m));
    ebb_route route = {.first_chunk = 10, .chunk_count = 90};
    uint32_t count;
    assert_true(ebb_routes_piece(&route, m, 10, &count));
    assert_int_equal(count, 16); // 64 MiB
    assert_true(ebb_routes_piece(&route, m, 90, &count));
    assert_int_equal(count, 10);
    assert_false(ebb_routes_piece(&route, m, 100, &count));
    ebb_manifest_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router_covers_every_chunk_once),
        cmocka_unit_test(test_router_refuses_holes),
        cmocka_unit_test(test_router_tells_layouts_apart),
        cmocka_unit_test(test_router_cuts_large_pulls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
