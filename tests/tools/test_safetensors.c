// Round trip, and headers that mean harm: each must be refused with a reason, none may be read beyond.
#define _GNU_SOURCE // nftw
#include <math.h>

#include "tests/support/scratch.h"
#include "tools/ebb/safetensors.h"

static ebb_st_tensor tensor(const char *name, const float *data, uint32_t ndim, uint64_t a, uint64_t b)
{
    ebb_st_tensor t = {.ndim = ndim, .ne = {a, b}, .data = data, .numel = ndim == 0 ? 1 : ndim == 1 ? a : a * b};
    snprintf(t.name, sizeof(t.name), "%s", name);
    return t;
}

static void test_safetensors_round_trip(void **state)
{
    (void)state;
    scratch s;
    scratch_init(&s);
    float w[6] = {1, -2, 3.5f, -0.0f, INFINITY, 1e-40f}, b[3] = {7, 8, 9}, scalar = NAN;
    ebb_st_tensor out[4] = {tensor("z.weight", w, 2, 2, 3), tensor("a.bias", b, 1, 3, 0), tensor("scalar", &scalar, 0, 0, 0),
                            tensor("optimizer.m.z.weight", w, 2, 3, 2)};
    ebb_st_meta meta[2] = {{.key = "format", .value = "pt"}, {.key = "job", .value = "a \"quoted\" name\n"}};
    char why[512] = "", path[256];
    snprintf(path, sizeof(path), "%s", scratch_path(&s, "m.safetensors"));
    CHECK_OK(ebb_safetensors_write(path, out, 4, meta, 2, why));

    ebb_st_file f;
    CHECK_OK(ebb_safetensors_open(path, &f, why));
    assert_int_equal(f.n, 4);
    uint64_t header = 0;
    memcpy(&header, f.map, 8);
    assert_int_equal(header % 8, 0); // padded, so that the data is aligned
    for (int i = 0; i < 4; i++) {
        const ebb_st_tensor *t = ebb_safetensors_find(&f, out[i].name);
        assert_non_null(t);
        assert_string_equal(f.tensors[i].name, out[i].name); // order of the data = order written
        assert_int_equal(t->ndim, out[i].ndim);
        assert_memory_equal(t->ne, out[i].ne, t->ndim * sizeof(t->ne[0]));
        assert_int_equal(t->numel, out[i].numel);
        assert_memory_equal(t->data, out[i].data, t->numel * 4); // bits, NaN included
    }
    assert_null(ebb_safetensors_find(&f, "a.bia"));
    ebb_safetensors_close(&f);
    ebb_safetensors_close(&f); // idempotent
    char part[300];
    snprintf(part, sizeof(part), "%s.part", path);
    assert_int_not_equal(access(part, F_OK), 0);
    scratch_fini(&s);
}

// A file that cannot be written leaves nothing behind, and an older file as it was.
// Through a link the file behind it is replaced, as a whole; the link stays.
static void test_safetensors_write_follows_links(void **state)
{
    (void)state;
    scratch s;
    char why[512], real[256];
    float one = 1;
    ebb_st_tensor t = {.name = "a", .ndim = 1, .ne = {1}, .numel = 1, .data = &one};
    scratch_init(&s);
    snprintf(real, sizeof(real), "%s", scratch_text(&s, "real", "old"));
    assert_int_equal(symlink(real, scratch_path(&s, "link")), 0);
    CHECK_OK(ebb_safetensors_write(scratch_path(&s, "link"), &t, 1, NULL, 0, why));
    struct stat info;
    assert_int_equal(lstat(scratch_path(&s, "link"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    ebb_st_file f;
    CHECK_OK(ebb_safetensors_open(real, &f, why));
    ebb_safetensors_close(&f);
    scratch_fini(&s);
}

static void test_safetensors_write_fails_whole(void **state)
{
    (void)state;
    scratch s;
    scratch_init(&s);
    float v = 1;
    ebb_st_tensor t = tensor("t", &v, 1, 1, 0);
    char why[512] = "";
    CHECK_ERR(ebb_safetensors_write(scratch_path(&s, "none/m.safetensors"), &t, 1, NULL, 0, why), EBB_IO);
    assert_non_null(strstr(why, "none/m.safetensors"));
    assert_int_equal(mkdir(scratch_path(&s, "folder"), 0755), 0);
    CHECK_ERR(ebb_safetensors_write(scratch_path(&s, "folder"), &t, 1, NULL, 0, why), EBB_CONFIG);
    CHECK_ERR(ebb_safetensors_write("/dev/null", &t, 1, NULL, 0, why), EBB_CONFIG); // a device is not replaced by a file
    assert_non_null(strstr(why, "/dev/null"));
    assert_int_not_equal(access(scratch_path(&s, "folder.part"), F_OK), 0);
    scratch_fini(&s);
}

// Writes length, header and zeros; opens it.
static ebb_status open_made(scratch *s, uint64_t length, const char *header, size_t data_len, char *why)
{
    uint8_t bytes[4096] = {0};
    size_t n = strlen(header);
    assert_true(8 + n + data_len <= sizeof(bytes));
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(length >> (8 * i));
    }
    memcpy(bytes + 8, header, n);
    scratch_bytes(s, "hostile", bytes, 8 + n + data_len);
    ebb_st_file f;
    ebb_status st = ebb_safetensors_open(s->path, &f, why);
    if (st == EBB_OK) {
        ebb_safetensors_close(&f);
    } else {
        assert_null(f.map);
        assert_null(f.tensors);
        assert_non_null(strstr(why, "hostile"));
    }
    return st;
}

#define T(name, shape, from, to) "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"

static void test_safetensors_refuses_hostile_headers(void **state)
{
    (void)state;
    static const struct {
        const char *what, *header;
        size_t data_len;
    } rows[] = {
        {"no JSON", "{not json at all}       ", 0},
        {"an array", "[1,2,3] ", 0},
        {"a string", "\"header\"", 0},
        {"JSON cut short", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_of", 4},
        {"two values", "{}{}    ", 0},
        {"duplicate name", "{" T("a", "[1]", "0", "4") "," T("a", "[1]", "4", "8") "}", 8},
        {"duplicate key in an entry", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}   ", 4},
        {"other dtype", "{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}  ", 4},
        {"no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}} ", 4},
        {"entry is a number", "{\"a\":5} ", 0},
        {"empty name", "{" T("", "[1]", "0", "4") "} ", 4},
        {"gap before the first", "{" T("a", "[1]", "4", "8") "} ", 8},
        {"gap between two", "{" T("a", "[1]", "0", "4") "," T("b", "[1]", "8", "12") "}", 12},
        {"overlap", "{" T("a", "[2]", "0", "8") "," T("b", "[2]", "4", "12") "}", 12},
        {"same place twice", "{" T("a", "[1]", "0", "4") "," T("b", "[1]", "0", "4") "}", 4},
        {"bytes behind the last", "{" T("a", "[1]", "0", "4") "} ", 5},
        {"beyond the file", "{" T("a", "[2]", "0", "8") "} ", 4},
        {"end before begin", "{" T("a", "[1]", "4", "0") "} ", 4},
        {"negative begin", "{" T("a", "[2]", "-4", "4") "} ", 4},
        {"not on an element", "{" T("a", "[1]", "2", "6") "} ", 6},
        {"shape and size differ", "{" T("a", "[3]", "0", "4") "} ", 4},
        {"negative dimension", "{" T("a", "[-1]", "0", "4") "} ", 4},
        {"fraction", "{" T("a", "[1.0]", "0", "4") "} ", 4},
        {"offset is a string", "{" T("a", "[1]", "\"0\"", "4") "} ", 4},
        {"three offsets", "{" T("a", "[1]", "0", "4,4") "} ", 4},
        {"five dimensions", "{" T("a", "[1,1,1,1,1]", "0", "4") "} ", 4},
        {"product wraps to 0", "{" T("a", "[4294967296,4294967296]", "0", "0") "} ", 0},
        {"product wraps to 1", "{" T("a", "[9223372036854775807,3]", "0", "4") "} ", 4},
        {"bytes wrap to 0", "{" T("a", "[4611686018427387904]", "0", "0") "} ", 0},
        {"number beyond 64 bits", "{" T("a", "[99999999999999999999]", "0", "4") "} ", 4},
        {"metadata is a number", "{\"__metadata__\":5} ", 0},
        {"metadata of numbers", "{\"__metadata__\":{\"a\":5}} ", 0},
        {"not UTF-8", "{" T("\xff", "[1]", "0", "4") "} ", 4},
        {"NUL in a name", "{" T("a\\u0000b", "[1]", "0", "4") "} ", 4},
    };
    scratch s;
    scratch_init(&s);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char header[1024], why[512] = "";
        snprintf(header, sizeof(header), "%s%*s", rows[i].header, (int)((8 - strlen(rows[i].header) % 8) % 8),
                 ""); // aligned, so that only the row's fault is there
        ebb_status st = open_made(&s, strlen(header), header, rows[i].data_len, why);
        if (st != EBB_CORRUPT) {
            fail_msg("%s: got %s", rows[i].what, ebb_status_name(st));
        }
    }
    scratch_fini(&s);
}

static void test_safetensors_refuses_wrong_lengths(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0, 1, 25, 1000, 64u << 20, 100000001, 1ull << 32, INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
    const char *good = "{" T("a", "[1]", "0", "4") "}  ";
    char why[512] = "";
    scratch s;
    scratch_init(&s);
    assert_int_equal(strlen(good) % 8, 0);
    CHECK_OK(open_made(&s, strlen(good), good, 4, why));
    CHECK_OK(open_made(&s, 8, "{}      ", 0, why));
    const char *empty = "{" T("a", "[1]", "0", "4") "," T("none", "[0]", "0", "0") "}  ";
    assert_int_equal(strlen(empty) % 8, 0);
    CHECK_OK(open_made(&s, strlen(empty), empty, 4, why)); // an empty tensor, named after the one at its place
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        CHECK_ERR(open_made(&s, lengths[i], good, 4, why), EBB_CORRUPT);
    }
    CHECK_ERR(open_made(&s, strlen(good), " {\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}} ", 4, why),
              EBB_CORRUPT); // { must come first
    scratch_bytes(&s, "hostile", "1234567", 7);
    ebb_st_file f;
    CHECK_ERR(ebb_safetensors_open(s.path, &f, why), EBB_CORRUPT);
    scratch_bytes(&s, "hostile", "", 0);
    CHECK_ERR(ebb_safetensors_open(s.path, &f, why), EBB_CORRUPT);
    CHECK_ERR(ebb_safetensors_open(scratch_path(&s, "absent"), &f, why), EBB_NOENT);
    assert_non_null(strstr(why, "absent"));
    scratch_fini(&s);
}

static void test_safetensors_refuses_deep_nesting(void **state)
{
    (void)state;
    scratch s;
    scratch_init(&s);
    size_t depth = 100000;
    uint8_t *bytes = malloc(8 + depth * 5);
    assert_non_null(bytes);
    for (size_t i = 0; i < depth; i++) {
        memcpy(bytes + 8 + i * 5, "{\"a\":", 5);
    }
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)((uint64_t)(depth * 5) >> (8 * i));
    }
    scratch_bytes(&s, "deep", bytes, 8 + depth * 5);
    free(bytes);
    char why[512] = "";
    ebb_st_file f;
    CHECK_ERR(ebb_safetensors_open(s.path, &f, why), EBB_CORRUPT);
    scratch_fini(&s);
}

// Whatever is flipped or cut in a good file: it opens or is refused, and what opens lies within the file.
static void test_safetensors_mutations(void **state)
{
    (void)state;
    scratch s;
    scratch_init(&s);
    uint64_t seed = ebb_test_seed(), drawn = 0;
    float w[6] = {1, 2, 3, 4, 5, 6};
    ebb_st_tensor out[2] = {tensor("layer.weight", w, 2, 2, 3), tensor("layer.bias", w, 1, 2, 0)};
    char why[512] = "", path[256];
    uint8_t good[1024], bad[1024];
    snprintf(path, sizeof(path), "%s", scratch_path(&s, "good"));
    CHECK_OK(ebb_safetensors_write(path, out, 2, NULL, 0, why));
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    size_t len = fread(good, 1, sizeof(good), in);
    fclose(in);
    int opened = 0, refused = 0;
    for (int round = 0; round < 4000; round++) {
        memcpy(bad, good, len);
        size_t n = ebb_rng_at(seed, 0, drawn++) % 8 == 0 ? ebb_rng_at(seed, 0, drawn++) % len : len;
        for (uint64_t flips = 1 + ebb_rng_at(seed, 0, drawn++) % 3; n > 0 && flips > 0; flips--) {
            uint64_t r = ebb_rng_at(seed, 0, drawn++);
            bad[(r >> 8) % n] = (uint8_t)r;
        }
        scratch_bytes(&s, "bad", bad, n);
        ebb_st_file f;
        if (ebb_safetensors_open(s.path, &f, why) != EBB_OK) {
            refused++;
            continue;
        }
        opened++;
        for (size_t i = 0; i < f.n; i++) {
            const char *from = (const char *)f.tensors[i].data;
            assert_true(from >= (const char *)f.map + 8 && from + f.tensors[i].numel * 4 <= (const char *)f.map + f.len);
        }
        ebb_safetensors_close(&f);
    }
    printf("%d opened, %d refused\n", opened, refused);
    assert_true(opened > 0 && refused > 0);
    scratch_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors_round_trip),
        cmocka_unit_test(test_safetensors_write_follows_links),
        cmocka_unit_test(test_safetensors_write_fails_whole),
        cmocka_unit_test(test_safetensors_refuses_hostile_headers),
        cmocka_unit_test(test_safetensors_refuses_wrong_lengths),
        cmocka_unit_test(test_safetensors_refuses_deep_nesting),
        cmocka_unit_test(test_safetensors_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
