#include "tests/support/check.h"

#include <dirent.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/kvstore.h"
#include "core/log.h"

static void s_quiet(void *arg, ebb_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

static void s_remove(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[600];
    while (d != NULL && (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
            unlink(path);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    rmdir(dir);
}

static ebb_kvstore *s_open(const char *dir)
{
    char why[256];
    ebb_kvstore_options o = {.create = true, .big_values = true, .memtable_bytes = 1 << 20};
    ebb_kvstore *kv = NULL;
    CHECK_OK(ebb_kvstore_open(dir, &o, &kv, why));
    return kv;
}

static void test_kvstore_put_get_and_iterate(void **state)
{
    (void)state;
    char dir[] = "/tmp/ebb-kv-XXXXXX";
    assert_non_null(mkdtemp(dir));
    ebb_kvstore *kv = s_open(dir);
    ebb_kvbatch *b = NULL;
    CHECK_OK(ebb_kvbatch_new(&b));
    const void *pieces[] = {"one", "", "two"};
    size_t lens[] = {3, 0, 3};
    ebb_kvbatch_putv(b, "a1", 2, pieces, lens, 3);
    ebb_kvbatch_put(b, "a2", 2, "x", 1);
    ebb_kvbatch_put(b, "a3", 2, "", 0);
    ebb_kvbatch_put(b, "b1", 2, "y", 1);
    assert_int_equal(ebb_kvbatch_count(b), 4);
    CHECK_OK(ebb_kvstore_write(kv, b, true));
    uint8_t *value = NULL;
    size_t len = 0;
    CHECK_OK(ebb_kvstore_get(kv, "a1", 2, &value, &len));
    assert_int_equal(len, 6);
    assert_memory_equal(value, "onetwo", 6);
    free(value);
    CHECK_OK(ebb_kvstore_get(kv, "a3", 2, &value, &len));
    assert_int_equal(len, 0);
    free(value);
    CHECK_ERR(ebb_kvstore_get(kv, "zz", 2, &value, &len), EBB_NOENT);

    for (int reopened = 0; reopened < 2; reopened++) {
        ebb_kviter *it = NULL;
        CHECK_OK(ebb_kviter_open(kv, "a", 1, &it));
        const uint8_t *k, *v;
        size_t kl, vl;
        int n = 0;
        while (ebb_kviter_next(it, &k, &kl, &v, &vl)) {
            assert_int_equal(k[1], '1' + n++);
        }
        assert_false(ebb_kviter_next(it, &k, &kl, &v, &vl));
        assert_int_equal(n, 3);
        CHECK_OK(ebb_kviter_status(it));
        CHECK_OK(ebb_kviter_seek(it, "a2", 2));
        assert_true(ebb_kviter_next(it, &k, &kl, &v, &vl));
        assert_memory_equal(k, "a2", 2);
        ebb_kviter_close(&it);
        ebb_kvstore_close(&kv);
        kv = s_open(dir);
    }
    ebb_kvbatch_clear(b);
    ebb_kvbatch_del(b, "b1", 2);
    ebb_kvbatch_del_range(b, "a1", 2, "a3", 2);
    CHECK_OK(ebb_kvstore_write(kv, b, false));
    CHECK_OK(ebb_kvstore_sync(kv));
    CHECK_ERR(ebb_kvstore_get(kv, "a2", 2, &value, &len), EBB_NOENT);
    CHECK_ERR(ebb_kvstore_get(kv, "b1", 2, &value, &len), EBB_NOENT);
    CHECK_OK(ebb_kvstore_get(kv, "a3", 2, &value, &len));
    free(value);
    ebb_kvbatch_free(&b);
    ebb_kvstore_close(&kv);
    s_remove(dir);
}

static void test_kvstore_gives_deleted_space_back(void **state)
{
    (void)state;
    char dir[] = "/tmp/ebb-kv-XXXXXX";
    assert_non_null(mkdtemp(dir));
    ebb_kvstore *kv = s_open(dir);
    enum { VALUE = 256 << 10, N = 80 };
    char *value = malloc(VALUE);
    memset(value, 7, VALUE);
    for (int i = 0; i < N; i++) {
        char key[16];
        int n = snprintf(key, sizeof(key), "j%06d", i);
        CHECK_OK(ebb_kvstore_put(kv, key, (size_t)n, value, VALUE, false));
    }
    CHECK_OK(ebb_kvstore_flush(kv));
    assert_true(ebb_kvstore_disk_bytes(kv) > (uint64_t)VALUE * N * 3 / 4);
    ebb_kvbatch *b = NULL;
    CHECK_OK(ebb_kvbatch_new(&b));
    ebb_kvbatch_del_range(b, "j", 1, "k", 1);
    CHECK_OK(ebb_kvstore_write(kv, b, true));
    CHECK_OK(ebb_kvstore_compact_range(kv, "j", 1, "k", 1));
    CHECK_OK(ebb_kvstore_flush(kv));
    uint64_t left = 0;
    for (int i = 0; i < 100; i++) { // old logs are removed in the background
        left = ebb_kvstore_disk_bytes(kv);
        if (left < (uint64_t)VALUE * N / 4) {
            break;
        }
        usleep(50000);
    }
    assert_true(left < (uint64_t)VALUE * N / 4);
    ebb_kvbatch_free(&b);
    ebb_kvstore_close(&kv);
    free(value);
    s_remove(dir);
}

static void test_kvstore_open_errors_name_the_folder(void **state)
{
    (void)state;
    char dir[] = "/tmp/ebb-kv-XXXXXX", why[256], missing[64];
    assert_non_null(mkdtemp(dir));
    snprintf(missing, sizeof(missing), "%s/none", dir);
    ebb_kvstore_options o = {.create = false};
    ebb_kvstore *kv = NULL, *second = NULL;
    CHECK_ERR(ebb_kvstore_open(missing, &o, &kv, why), EBB_NOENT);
    assert_non_null(strstr(why, missing));
    kv = s_open(dir);
    CHECK_ERR(ebb_kvstore_open(dir, &o, &second, why), EBB_TRYLATER);
    assert_non_null(strstr(why, dir));
    ebb_kvstore_close(&kv);
    rmdir(missing);
    s_remove(dir);
}

// What a killed process had written (not synced) is there again; and a byte flipped in the log's middle is refused, never silently dropped.
static void test_kvstore_refuses_a_damaged_log(void **state)
{
    (void)state;
    char dir[] = "/tmp/ebb-kv-XXXXXX", why[256];
    assert_non_null(mkdtemp(dir));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        ebb_kvstore_options o = {.create = true};
        ebb_kvstore *kv = NULL;
        if (ebb_kvstore_open(dir, &o, &kv, why) != EBB_OK) {
            _exit(2);
        }
        for (int i = 0; i < 1000; i++) {
            char key[16], value[500];
            memset(value, i & 0xff, sizeof(value));
            int n = snprintf(key, sizeof(key), "%06d", i);
            if (ebb_kvstore_put(kv, key, (size_t)n, value, sizeof(value), false) != EBB_OK) {
                _exit(3);
            }
        }
        kill(getpid(), 9);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status));
    DIR *d = opendir(dir);
    struct dirent *e;
    char log[600] = "";
    while ((e = readdir(d)) != NULL) {
        size_t n = strlen(e->d_name);
        if (n > 4 && strcmp(e->d_name + n - 4, ".log") == 0) {
            snprintf(log, sizeof(log), "%s/%s", dir, e->d_name);
        }
    }
    closedir(d);
    assert_true(log[0] != '\0');
    FILE *f = fopen(log, "r+b");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long at = ftell(f) * 3 / 10;
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 0x10, f);
    fclose(f);
    ebb_kvstore_options o = {.create = false};
    ebb_kvstore *kv = NULL;
    CHECK_ERR(ebb_kvstore_open(dir, &o, &kv, why), EBB_CORRUPT);
    assert_non_null(strstr(why, dir));
    f = fopen(log, "r+b"); // heal it: everything is back
    fseek(f, at, SEEK_SET);
    fputc(c, f);
    fclose(f);
    CHECK_OK(ebb_kvstore_open(dir, &o, &kv, why));
    ebb_kviter *it = NULL;
    CHECK_OK(ebb_kviter_open(kv, NULL, 0, &it));
    const uint8_t *k, *v;
    size_t kl, vl;
    int n = 0;
    while (ebb_kviter_next(it, &k, &kl, &v, &vl)) {
        n++;
    }
    assert_int_equal(n, 1000);
    ebb_kviter_close(&it);
    ebb_kvstore_close(&kv);
    s_remove(dir);
}

int main(void)
{
    ebb_log_set_sink(s_quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kvstore_put_get_and_iterate),
        cmocka_unit_test(test_kvstore_gives_deleted_space_back),
        cmocka_unit_test(test_kvstore_open_errors_name_the_folder),
        cmocka_unit_test(test_kvstore_refuses_a_damaged_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
