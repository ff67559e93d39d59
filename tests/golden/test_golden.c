#define _GNU_SOURCE // nftw, open_memstream
// Folders that the formats' first versions wrote must open, be found whole, recover, and give the same values; newer formats are refused by name. Then what
// --check and --dump promise to the person who calls them: exit codes, one clear line, nothing changed.
//
// Everything that opens a store does so in a process of its own (damage.h says why).
#include <fcntl.h>
#include <sys/wait.h>

#include "tests/support/countershard.h"
#include "tests/support/counterstore.h"
#include "tests/support/damage.h"
#include "tests/support/scratch.h"

#include "coordinator/statecheck.h"
#include "ps/check.h"
#include "ps/dump.h"

static scratch s_scratch;

// ---- helpers ----

// Runs a program with up to six arguments; returns its exit code, and what it said.
static int s_run(char *out, size_t out_size, char *err, size_t err_size, const char *program, const char *const *args)
{
    char path[2][300];
    const char *argv[8] = {program};
    for (int i = 0; i < 6 && args[i] != NULL; i++) {
        argv[i + 1] = args[i];
    }
    snprintf(path[0], sizeof(path[0]), "%s/out", s_scratch.dir);
    snprintf(path[1], sizeof(path[1]), "%s/err", s_scratch.dir);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        for (int i = 0; i < 2; i++) {
            int fd = open(path[i], O_WRONLY | O_CREAT | O_TRUNC, 0644);
            dup2(fd, i + 1);
        }
        alarm(60);
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(path[i], "r");
        size_t n = f != NULL ? fread(i == 0 ? out : err, 1, (i == 0 ? out_size : err_size) - 1, f) : 0;
        (i == 0 ? out : err)[n] = '\0';
        if (f != NULL) {
            fclose(f);
        }
    }
    return WEXITSTATUS(status);
}

static char s_out[1 << 16], s_err[1 << 16];

static int s_shard(const char *a, const char *b, const char *c)
{
    return s_run(s_out, sizeof(s_out), s_err, sizeof(s_err), EBB_SHARD_PROGRAM, (const char *const[7]){a, b, c});
}

static int s_coordinator(const char *a, const char *b, const char *c)
{
    return s_run(s_out, sizeof(s_out), s_err, sizeof(s_err), EBB_COORDINATOR_PROGRAM, (const char *const[7]){a, b, c});
}

// One line, that names what is asked for.
static void s_said(const char *first, const char *second)
{
    size_t lines = 0;
    for (const char *c = s_err; *c != '\0'; c++) {
        lines += *c == '\n';
    }
    if (lines != 1 || strstr(s_err, first) == NULL || strstr(s_err, second) == NULL) {
        fail_msg("wanted one line that names \"%s\" and \"%s\", got: %s", first, second, s_err);
    }
}

// Unpacks an archive of tests/golden into the scratch folder; returns the path of the folder in it.
static const char *s_unpack(const char *archive, const char *folder)
{
    char command[1024];
    snprintf(command, sizeof(command), "cd '%s' && '%s' -E tar xf '%s/%s'", s_scratch.dir, EBB_CMAKE, EBB_GOLDEN, archive);
    if (system(command) != 0) {
        fail_msg("cannot unpack %s", archive);
    }
    return scratch_path(&s_scratch, folder);
}

static char *s_read(const char *path)
{
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        fail_msg("cannot open %s", path);
    }
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

static void s_same_dump(const char *got, const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", EBB_GOLDEN, name);
    char *want = s_read(path);
    size_t line = 1;
    for (size_t i = 0; want[i] != '\0' || got[i] != '\0'; i++) {
        if (want[i] != got[i]) {
            fail_msg("the dump differs from %s in line %zu", name, line);
        }
        line += want[i] == '\n';
    }
    free(want);
}

// ---- in processes of their own ----

static void s_recover(const char *dir, damage_result *out)
{
    ebb_kvstore *kv = NULL;
    ebb_journal journal;
    ebb_job *job = NULL;
    out->recover = ebb_recover_open(dir, 0, &kv, out->why);
    if (out->recover != EBB_OK) {
        return;
    }
    CHECK_OK(ebb_journal_init(&journal, kv));
    out->recover = ebb_recover_job(dir, kv, &journal, &job, out->why);
    if (out->recover == EBB_OK) {
        counterjob_check_shard(job);
        out->state = 1;
    }
    ebb_job_free(&job);
    ebb_journal_fini(&journal);
    ebb_kvstore_close(&kv);
}

static void s_no_skip(void *arg, uint64_t stream, uint64_t seq)
{
    assert_true(stream == 1 && seq == 2);
    (*(int *)arg)++;
}

static void s_resume(const char *dir, damage_result *out)
{
    ebb_statestore *s = NULL;
    ebb_plan plan;
    ebb_ledger l;
    uint64_t job, created, epoch, last;
    Ebb__JobSpec *spec = NULL;
    uint8_t *manifest = NULL;
    size_t len = 0;
    char state[64];
    int skips = 0;
    ebb_chunk_range range;
    out->recover = ebb_statestore_open(dir, &s, out->why);
    if (out->recover != EBB_OK) {
        return;
    }
    CHECK_OK(ebb_statestore_get_job(s, &job, &created, &spec));
    assert_true(job == COUNTERJOB_ID && created == 1700000000000u && spec->steps == 40 && strcmp(spec->name, "golden") == 0);
    CHECK_OK(ebb_plan_init(&plan, 1000, 1, 4, 40, 1));
    CHECK_OK(ebb_ledger_init(&l, &plan, 1, 2000));
    CHECK_OK(ebb_statestore_load_ledger(s, &l, 0));
    assert_true(l.retired_below == 1 && l.n_retired == 1 && l.retired[0] == 2 && l.steps_retired == 8 && l.n_units == 3 && l.next_lease == 6);
    assert_string_equal(ebb_ledger_unit(&l, 3)->lease.worker, "worker-3");
    assert_int_equal(ebb_ledger_unit(&l, 4)->lease.lease, 0);
    CHECK_OK(ebb_statestore_load_skips(s, s_no_skip, &skips));
    assert_int_equal(skips, 1);
    CHECK_OK(ebb_statestore_get_placement(s, &manifest, &len, &epoch, &range, 1));
    assert_true(epoch == 1 && range.first == 0 && range.count == 2);
    CHECK_OK(ebb_statestore_last_event(s, &last));
    assert_int_equal(last, 6);
    CHECK_OK(ebb_statestore_get_state(s, state, sizeof(state)));
    assert_string_equal(state, "SUCCEEDED");
    out->state = 1;
    free(manifest);
    ebb_pb_free(&spec->base);
    ebb_ledger_fini(&l);
    ebb_statestore_close(&s);
}

// Changes one row behind the program's back.
static void s_put_row(const char *dir, const char *key, const void *value, size_t len)
{
    char why[512];
    ebb_kvstore *kv = NULL;
    const ebb_kvstore_options options = {.create = false};
    CHECK_OK(ebb_kvstore_open(dir, &options, &kv, why));
    CHECK_OK(ebb_kvstore_put(kv, key, strlen(key), value, len, true));
    ebb_kvstore_close(&kv);
}

static void s_raise_format(const char *dir, damage_result *out)
{
    s_put_row(dir, "F", "EBBC\3\0\0\0", 8);
    out->recover = EBB_OK;
}

static void s_damage_row(const char *dir, damage_result *out)
{
    s_put_row(dir, "R", "retired", 7);
    out->recover = EBB_OK;
}

static void s_good(damage_trial_fn *trial, const char *dir)
{
    damage_result r;
    damage_run(trial, dir, dir, &r);
    if (r.recover != EBB_OK || r.state != 1) {
        fail_msg("%s: %s: %s", dir, ebb_status_name(r.recover), r.why);
    }
}

// ---- tests ----

static void s_golden_shard(const char *archive, const char *folder, const char *dump)
{
    const char *dir = s_unpack(archive, folder);
    uint64_t before = damage_hash_folder(dir);
    if (s_shard("--check", dir, NULL) != 0 || strstr(s_out, "fine\n") == NULL || s_err[0] != '\0') {
        fail_msg("--check: %s%s", s_out, s_err);
    }
    assert_int_equal(
        s_run(s_out, sizeof(s_out), s_err, sizeof(s_err), EBB_SHARD_PROGRAM, (const char *const[7]){"--dump", dir, "--all", "--values", "100"}), 0);
    s_same_dump(s_out, dump);
    assert_true(damage_hash_folder(dir) == before); // looking changes nothing
    s_good(s_recover, dir);
    s_good(s_recover, dir); // and again, from what recovery left behind
    assert_int_equal(s_shard("--check", dir, NULL), 0);
}

static void test_golden_shard_folders_give_the_same_values(void **state)
{
    (void)state;
    s_golden_shard("shard-1.tar.xz", "shard", "shard-1.dump");
    s_golden_shard("snapshot-1.tar.xz", "snapshot", "snapshot-1.dump");
}

static void test_golden_coordinator_folder_gives_the_same_values(void **state)
{
    (void)state;
    const char *dir = s_unpack("coordinator-2.tar.xz", "coordinator");
    uint64_t before = damage_hash_folder(dir);
    if (s_coordinator("--check", dir, NULL) != 0 || strstr(s_out, "fine\n") == NULL || s_err[0] != '\0') {
        fail_msg("--check: %s%s", s_out, s_err);
    }
    assert_int_equal(s_coordinator("--dump", dir, NULL), 0);
    s_same_dump(s_out, "coordinator-2.dump");
    assert_true(damage_hash_folder(dir) == before);
    s_good(s_resume, dir);
    s_good(s_resume, dir);
    assert_int_equal(s_coordinator("--check", dir, NULL), 0);
}

// Before there were SYNCED and a checksum in SHARD: format 1 without them is format 1.
static void test_golden_shard_folder_of_the_first_versions(void **state)
{
    (void)state;
    const char *dir = s_unpack("shard-1.tar.xz", "shard");
    char path[300];
    snprintf(path, sizeof(path), "%s/SYNCED", dir);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/SHARD", dir);
    FILE *f = fopen(path, "w");
    assert_true(f != NULL && fputs("ebbtide shard folder format 1 shard 0\n", f) >= 0 && fclose(f) == 0);
    assert_int_equal(s_shard("--check", dir, NULL), 0);
    assert_non_null(strstr(s_out, "synced_mark      no\n"));
    s_good(s_recover, dir);
    assert_int_equal(s_shard("--check", dir, NULL), 0);
    assert_non_null(strstr(s_out, "synced_mark      yes\n"));
}

static void test_golden_newer_formats_are_refused_by_name(void **state)
{
    (void)state;
    char path[300];
    damage_result r;
    const char *dir = s_unpack("shard-1.tar.xz", "shard");
    snprintf(path, sizeof(path), "%s/SHARD", dir);
    FILE *f = fopen(path, "w");
    assert_true(f != NULL && fputs("ebbtide shard folder format 2 shard 0 and more\n", f) >= 0 && fclose(f) == 0);
    damage_run(s_recover, dir, "newer", &r);
    assert_int_equal(r.recover, EBB_NEWER);
    assert_non_null(strstr(r.why, "newer Ebbtide (folder format 2"));
    assert_int_equal(s_shard("--check", dir, NULL), 65);
    s_said("newer Ebbtide (folder format 2", dir);
    assert_int_equal(s_shard("--dump", dir, NULL), 65);
    s_said("newer Ebbtide (folder format 2", dir);

    dir = s_unpack("coordinator-2.tar.xz", "coordinator");
    damage_run(s_raise_format, dir, "raising the format", &r);
    damage_run(s_resume, dir, "newer", &r);
    assert_int_equal(r.recover, EBB_NEWER);
    assert_non_null(strstr(r.why, "format 3, written by a newer version"));
    assert_int_equal(s_coordinator("--check", dir, NULL), 65);
    s_said("format 3, written by a newer version", dir);
    assert_int_equal(s_coordinator("--dump", dir, NULL), 65);
    s_said("format 3, written by a newer version", dir);
}

static void test_look_refuses_what_is_not_a_folder(void **state)
{
    (void)state;
    const char *none = "/nonexistent/ebb";
    for (int i = 0; i < 2; i++) {
        const char *look = i == 0 ? "--check" : "--dump";
        assert_int_equal(s_shard(look, none, NULL), 66);
        s_said("ebb-shard: ", none);
        assert_int_equal(s_coordinator(look, none, NULL), 66);
        s_said("ebb-coordinator: ", none);
        assert_int_equal(s_shard(look, s_scratch.dir, NULL), 65);
        s_said("ebb-shard: ", s_scratch.dir);
        assert_int_equal(s_coordinator(look, s_scratch.dir, NULL), 65);
        s_said("ebb-coordinator: ", s_scratch.dir);
    }
    assert_int_equal(s_shard("--check", "x", "--journal"), 64);
    assert_int_equal(s_shard("--check", "x", "--dump=x"), 64);
    assert_int_equal(s_shard("--dump", "x", "--shard=0"), 64);
    assert_int_equal(s_shard("--json", NULL, NULL), 64);
    assert_int_equal(s_coordinator("--check", "x", "--dump=x"), 64);
    assert_int_equal(s_coordinator("--json", NULL, NULL), 64);
}

// A process that has the store open until told to end.
static pid_t s_holder(const char *dir, bool shard, int *tell)
{
    int ready[2], end[2];
    char byte = 0;
    assert_true(pipe(ready) == 0 && pipe(end) == 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char why[512];
        ebb_kvstore *kv = NULL;
        ebb_statestore *s = NULL;
        close(end[1]);
        bool ok = shard ? ebb_recover_open(dir, 0, &kv, why) == EBB_OK : ebb_statestore_open(dir, &s, why) == EBB_OK;
        ok = ok && write(ready[1], "x", 1) == 1 && read(end[0], &byte, 1) == 0;
        kv = shard ? kv : ebb_statestore_kv(s);
        ok = ok && ebb_kvstore_put(kv, "R", 1, "still writes", 12, true) == EBB_OK; // it was not disturbed
        _exit(ok ? 0 : 1);
    }
    close(ready[1]);
    close(end[0]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    *tell = end[1];
    return pid;
}

static void test_look_leaves_a_running_program_alone(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        int tell = -1, status = 0;
        char pid_text[32];
        const char *dir = i == 0 ? s_unpack("shard-1.tar.xz", "shard") : s_unpack("coordinator-2.tar.xz", "coordinator");
        pid_t pid = s_holder(dir, i == 0, &tell);
        uint64_t before = damage_hash_folder(dir);
        snprintf(pid_text, sizeof(pid_text), "in use by process %d", (int)pid);
        for (int k = 0; k < 2; k++) {
            const char *look = k == 0 ? "--check" : "--dump";
            assert_int_equal(i == 0 ? s_shard(look, dir, NULL) : s_coordinator(look, dir, NULL), 69);
            s_said(pid_text, dir);
        }
        assert_true(damage_hash_folder(dir) == before);
        close(tell);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

// While somebody looks, nobody may begin to write: what he reads would change under him.
static void s_start_beside_reader(const char *dir, damage_result *out)
{
    uint32_t shard = 0;
    ebb_kvstore *reader = NULL, *second = NULL, *writer = NULL;
    CHECK_OK(ebb_recover_open_read(dir, NULL, &shard, &reader, out->why));
    CHECK_OK(ebb_recover_open_read(dir, NULL, &shard, &second, out->why)); // readers do not mind each other
    out->check = ebb_recover_open(dir, 0, &writer, out->why);
    ebb_kvstore_close(&second);
    ebb_kvstore_close(&reader);
    char why[512];
    out->recover = ebb_recover_open(dir, 0, &writer, why);
    ebb_kvstore_close(&writer);
}

static void test_look_keeps_writers_out(void **state)
{
    (void)state;
    damage_result r;
    const char *dir = s_unpack("shard-1.tar.xz", "shard");
    s_good(s_recover, dir); // the archive has no lock file; the first start makes one
    damage_run(s_start_beside_reader, dir, "beside a reader", &r);
    assert_int_equal(r.check, EBB_TRYLATER);
    assert_non_null(strstr(r.why, "being read"));
    assert_int_equal(r.recover, EBB_OK);
}

static void s_flip_byte(const char *dir, const char *file, long at)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_true(fputc(c ^ 0x10, f) != EOF && fclose(f) == 0);
}

static void test_look_names_file_and_row(void **state)
{
    (void)state;
    damage_result r;
    const char *dir = s_unpack("shard-1.tar.xz", "shard");
    s_flip_byte(dir, "000011.sst", 40);
    assert_int_equal(s_shard("--check", dir, NULL), 65);
    assert_non_null(strstr(s_err, "000011.sst: Corruption: block checksum mismatch"));
    assert_non_null(strstr(s_err, "offset 0"));
    assert_non_null(strstr(s_out, "damaged\n"));
    assert_int_not_equal(s_shard("--dump", dir, NULL), 0);

    dir = s_unpack("shard-1.tar.xz", "shard");
    s_flip_byte(dir, "000010.log", 100); // the first record's bytes
    assert_int_equal(s_shard("--check", dir, NULL), 65);
    assert_non_null(strstr(s_err, "000010.log: offset 0: a record's checksum is wrong"));

    dir = s_unpack("shard-1.tar.xz", "shard");
    damage_run(s_damage_row, dir, "damaging a row", &r);
    assert_int_equal(s_shard("--check", dir, NULL), 65);
    assert_non_null(strstr(s_err, "retired row: its checksum or format is damaged"));
    assert_non_null(strstr(s_err, "recovery: the retired set"));
    assert_int_equal(s_shard("--dump", dir, NULL), 65);
    assert_non_null(strstr(s_out, "retired name=\"retired row\" damaged=\"its checksum or format is damaged\""));
    assert_non_null(strstr(s_out, "record lsn=9")); // the rest goes on
    assert_int_equal(s_shard("--dump", dir, "--json"), 65);
    assert_non_null(strstr(s_out, "{\"row\":\"retired\",\"name\":\"retired row\",\"damaged\":\""));

    dir = s_unpack("coordinator-2.tar.xz", "coordinator");
    damage_run(s_damage_row, dir, "damaging a row", &r);
    assert_int_equal(s_coordinator("--check", dir, NULL), 65);
    assert_non_null(strstr(s_err, "retired row: its length"));
    assert_non_null(strstr(s_err, "resuming: units and the retired set"));
    assert_int_equal(s_coordinator("--dump", dir, NULL), 65);
    assert_non_null(strstr(s_out, "unit unit=3")); // the rest goes on
}

static void test_look_prints_what_is_asked_for(void **state)
{
    (void)state;
    const char *dir = s_unpack("shard-1.tar.xz", "shard");
    assert_int_equal(s_shard("--dump", dir, "--journal"), 0);
    assert_true(strstr(s_out, "\nrecord ") != NULL && strstr(s_out, "\nchunk ") == NULL && strstr(s_out, "\nstream ") == NULL);
    assert_null(strstr(s_out, "values="));
    assert_int_equal(s_shard("--dump", dir, "--chunks"), 0);
    assert_true(strstr(s_out, "\nrecord ") == NULL && strstr(s_out, "\nchunk ") != NULL && strstr(s_out, "\nstream ") == NULL);
    assert_int_equal(s_shard("--dump", dir, "--streams"), 0);
    assert_true(strstr(s_out, "\nrecord ") == NULL && strstr(s_out, "\nchunk ") == NULL && strstr(s_out, "\nstream ") != NULL);
    assert_non_null(strstr(s_out, "\nretired-stream stream=7"));
    assert_int_equal(s_shard("--check", dir, "--json"), 0);
    assert_non_null(strstr(s_out, "\"version\":8,\"lsn\":9,"));
    assert_non_null(strstr(s_out, "\"journal_records\":4,"));
    assert_non_null(strstr(s_out, "\"result\":\"fine\"}\n"));
}

static int s_setup(void **state)
{
    (void)state;
    scratch_init(&s_scratch);
    return 0;
}

static int s_teardown(void **state)
{
    (void)state;
    scratch_fini(&s_scratch);
    return 0;
}

int main(void)
{
    ebb_log_set_sink(damage_no_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_golden_shard_folders_give_the_same_values, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_golden_coordinator_folder_gives_the_same_values, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_golden_shard_folder_of_the_first_versions, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_golden_newer_formats_are_refused_by_name, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_look_refuses_what_is_not_a_folder, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_look_leaves_a_running_program_alone, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_look_keeps_writers_out, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_look_names_file_and_row, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_look_prints_what_is_asked_for, s_setup, s_teardown),
    };
    return cmocka_run_group_tests_name("golden.folders", tests, NULL, NULL);
}
