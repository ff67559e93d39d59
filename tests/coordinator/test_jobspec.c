#define _GNU_SOURCE // open_memstream, nftw
// The job file: every kind of mistake is one line that names file, line and what was expected; the effective job is the golden one.
#include "coordinator/jobspec.h"
#include "tests/support/scratch.h"

#include <limits.h>

#define COUNTER "name: c\nmodel: {family: counter}\nsteps: 10\n" // 3 lines, complete

static scratch s_scratch;

// Loads a job file with that text. errors: malloc'ed text.
static ebb_status s_load(const char *text, const char *data, Ebb__JobSpec **spec, char **errors)
{
    size_t len = 0;
    FILE *f = open_memstream(errors, &len);
    *spec = NULL;
    ebb_status st = ebb_jobspec_load(scratch_text(&s_scratch, "job.yaml", text), data, spec, f);
    fclose(f);
    return st;
}

// The job is refused with exactly these lines ("JOB" stands for the file's path).
static void s_refused(const char *text, const char *want)
{
    Ebb__JobSpec *spec;
    char *errors, full[4096] = "", path[128];
    ebb_status st = s_load(text, NULL, &spec, &errors);
    snprintf(path, sizeof(path), "%s", s_scratch.path);
    for (const char *c = want; *c != '\0';) {
        if (strncmp(c, "JOB", 3) == 0) {
            strcat(full, path);
            c += 3;
        } else {
            strncat(full, c++, 1);
        }
    }
    if (strcmp(errors, full) != 0) {
        fail_msg("job:\n%s\ngot:\n%s\nwant:\n%s", text, errors, full);
    }
    CHECK_ERR(st, EBB_CONFIG);
    assert_null(spec);
    free(errors);
}

static char *s_print(const Ebb__JobSpec *spec)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    ebb_jobspec_print(spec, f);
    fclose(f);
    return text;
}

static void test_jobspec_names_unknown_keys(void **state)
{
    (void)state;
    s_refused(COUNTER "optimzer: {name: sgd}\n", "JOB:4: unknown key \"optimzer\" (did you mean \"optimizer\"?)\n");
    s_refused(COUNTER "optimizer:\n  name: sgd\n  learning_speed: 1\n",
              "JOB:6: unknown key \"optimizer.learning_speed\" (known here: name, lr, betas, eps, momentum, nesterov, weight_decay, clip_norm, "
              "groups, schedule)\n");
    s_refused(COUNTER "optimizer: {schedule: {kindd: cosine}}\n",
              "JOB:4: unknown key \"optimizer.schedule.kindd\" (did you mean \"optimizer.schedule.kind\"?)\n");
}

static void test_jobspec_names_wrong_types(void **state)
{
    (void)state;
    s_refused(COUNTER "batch: eight\n", "JOB:4: batch: expected a whole number, not \"eight\"\n");
    s_refused(COUNTER "batch: 1.5\n", "JOB:4: batch: expected a whole number, not \"1.5\"\n");
    s_refused(COUNTER "batch: [1]\n", "JOB:4: batch: expected a single value, not a list\n");
    s_refused(COUNTER "batch: {a: 1}\n", "JOB:4: batch: expected a single value, not a mapping\n");
    s_refused(COUNTER "\noptimizer:\n  lr: fast\n", "JOB:6: optimizer.lr: expected a number, not \"fast\"\n");
    s_refused(COUNTER "optimizer: {betas: 0.9}\n", "JOB:4: optimizer.betas: expected a list, like [1, 2]\n");
    s_refused(COUNTER "optimizer: {betas: [0.9, x]}\n", "JOB:4: optimizer.betas: expected a list of numbers, not [0.9, x]\n");
    s_refused(COUNTER "optimizer: {nesterov: maybe}\n", "JOB:4: optimizer.nesterov: expected true or false, not \"maybe\"\n");
    s_refused(COUNTER "optimizer: adam\n", "JOB:4: optimizer: expected a mapping of keys, like optimizer: {...}\n");
    s_refused(COUNTER "lease: 10\n", "JOB:4: lease: expected a time like 10s or 500ms, not \"10\"\n");
    s_refused(COUNTER "checkpoint: {journal_bytes: 1TiBs}\n", "JOB:4: checkpoint.journal_bytes: expected a size like 256MiB, not \"1TiBs\"\n");
}

static void test_jobspec_names_ranges_and_choices(void **state)
{
    (void)state;
    s_refused(COUNTER "shards: 0\n", "JOB:4: shards: 0 is out of range (1 to 1024)\n");
    s_refused(COUNTER "lease: 1ms\n", "JOB:4: lease: 1ms is out of range (200 to 86400000 ms)\n");
    s_refused(COUNTER "optimizer: {betas: [0.9, 2]}\n", "JOB:4: optimizer.betas: 2 is out of range (0 to 1)\n");
    s_refused(COUNTER "optimizer: {betas: [nan, 0.9]}\n", "JOB:4: optimizer.betas: nan is out of range (0 to 1)\n");
    s_refused(COUNTER "optimizer: {name: momentum, momentum: 1}\n", "JOB:4: optimizer.momentum must be below 1\n");
    s_refused(COUNTER "optimizer: {name: adam, eps: 0}\n", "JOB:4: optimizer.eps must be above 0\n");
    s_refused("name: m\nmodel: {family: mlp, sizes: [2, 2.5, 2]}\ndata: {path: x}\nsteps: 1\n",
              "JOB:2: model.sizes: expected whole numbers, not 2.5\n");
    s_refused("name: m\nmodel: {family: mlp, sizes: [2, 1]}\ndata: {path: x}\nsteps: 1\n",
              "JOB:2: model.sizes: the last one is the number of classes, at least 2\n");
    s_refused(COUNTER "durability: maybe\n", "JOB:4: durability: \"maybe\" is not one of fsync|journal|snapshot\n");
    s_refused("name: c\nmodel: {family: cnn}\nsteps: 10\n", "JOB:2: model.family: \"cnn\" is not one of gpt|mlp|counter\n");
}

static void test_jobspec_lists_all_errors(void **state)
{
    (void)state;
    s_refused(COUNTER "batch: x\nshards: 0\nstep: 3\nlease: soon\n", "JOB:6: unknown key \"step\" (did you mean \"steps\"?)\n"
                                                                     "JOB:5: shards: 0 is out of range (1 to 1024)\n"
                                                                     "JOB:4: batch: expected a whole number, not \"x\"\n"
                                                                     "JOB:7: lease: expected a time like 10s or 500ms, not \"soon\"\n");
    s_refused(COUNTER "batch: 1\nbatch: 2\n", "JOB:5: batch is given twice (first in line 4)\n");
}

static void test_jobspec_checks_across_keys(void **state)
{
    (void)state;
    s_refused("name: c\nmodel: {family: counter}\n", "JOB: give exactly one of steps and passes\n");
    s_refused(COUNTER "passes: 1\n", "JOB:4: give exactly one of steps and passes\n");
    s_refused(COUNTER "workers: {min: 3, max: 2}\n", "JOB:4: workers.max is smaller than workers.min\n");
    s_refused("name: g\nmodel:\n  family: gpt\n  width: 128\n  heads: 3\ndata: {path: x}\nsteps: 1\n",
              "JOB:4: model.width: 128 is not a multiple of model.heads (3)\n");
    s_refused("name: m\nmodel: {family: mlp}\ndata: {path: x}\nsteps: 1\n",
              "JOB: model.sizes: an mlp needs 2 to 16 numbers: [input, hidden..., classes]\n");
    s_refused("name: g\nmodel: {family: gpt}\nsteps: 1\n", "JOB: data.path is missing: the file to train on\n");
    s_refused("name: g\nmodel: {family: gpt}\ndata: {path: x, format: csv}\nsteps: 1\n", "JOB:3: data.format: a gpt reads bytes\n");
    s_refused("name: a/b\nmodel: {family: counter}\nsteps: 1\n",
              "JOB:1: name: \"a/b\" has a character other than letters, digits, '-', '_' and '.'\n");
    s_refused(COUNTER "optimizer: {betas: [0.9]}\n", "JOB:4: optimizer.betas: expected two numbers, like [0.9, 0.999]\n");
}

static void test_jobspec_takes_no_number_for_another(void **state)
{
    (void)state;
    s_refused(COUNTER "batch: 0x10\n", "JOB:4: batch: expected a whole number, not \"0x10\"\n");
    s_refused(COUNTER "batch: 50\ndata: {samples: 49}\n", "JOB:4: batch: 50 samples, but the data has only 49 to train on\n");
    s_refused("steps: 10\n",
              "JOB: name is missing: name of the job: letters, digits, -, _ and .\n"
              "JOB: model.family is missing: gpt: byte-level transformer; mlp: ReLU classifier; counter: counts applied steps, to check a fleet "
              "(one of gpt|mlp|counter)\n");
}

// A path that YAML would read otherwise, numbers with all their digits.
static void test_jobspec_prints_what_it_reads(void **state)
{
    (void)state;
    Ebb__JobSpec *spec, *again;
    char *errors, *more, data[128];
    snprintf(data, sizeof(data), "%s", scratch_text(&s_scratch, "a: \"b\" #c\\.csv", "1,2,0\n3,4,1\n"));
    CHECK_OK(s_load("name: m\nmodel: {family: mlp, sizes: [2, 2]}\ndata: {path: x, val_fraction: 0}\nsteps: 1\nbatch: 1\n"
                    "optimizer: {lr: 0.12345678901234567, eps: 1e-300}\n",
                    data, &spec, &errors));
    char *text = s_print(spec);
    CHECK_OK(s_load(text, NULL, &again, &more));
    assert_string_equal(more, "");
    assert_string_equal(again->data->path, spec->data->path);
    assert_true(again->optimizer->lr == spec->optimizer->lr && again->optimizer->eps == 1e-300);
    free(text);
    free(errors);
    free(more);
    ebb_jobspec_free(&spec);
    ebb_jobspec_free(&again);
}

static void test_jobspec_refuses_what_is_not_yaml(void **state)
{
    (void)state;
    Ebb__JobSpec *spec;
    char *errors;
    CHECK_ERR(s_load("name: [unclosed\nsteps: 3\n", NULL, &spec, &errors), EBB_CONFIG);
    assert_non_null(strstr(errors, "job.yaml:2: not valid YAML"));
    free(errors);
    s_refused("", "JOB:1: expected a mapping of keys (name: ..., model: ...)\n");
    s_refused("- a\n- b\n", "JOB:1: expected a mapping of keys (name: ..., model: ...)\n");
    size_t len = 0;
    FILE *f = open_memstream(&errors, &len);
    CHECK_ERR(ebb_jobspec_load("/nowhere/job.yaml", NULL, &spec, f), EBB_NOENT);
    fclose(f);
    assert_string_equal(errors, "/nowhere/job.yaml: No such file or directory\n");
    free(errors);
}

static void test_jobspec_checks_the_data(void **state)
{
    (void)state;
    Ebb__JobSpec *spec;
    char *errors, data[128];
    const char *job = "name: m\nmodel:\n  family: mlp\n  sizes: [3, 4, 2]\ndata: {path: rows.csv, val_fraction: 0.5}\nsteps: 1\nbatch: 1\n";
    CHECK_ERR(s_load(job, NULL, &spec, &errors), EBB_NOENT);
    assert_non_null(strstr(errors, "rows.csv"));
    free(errors);
    scratch_text(&s_scratch, "rows.csv", "1,2,0\n3,4,1\n");
    CHECK_ERR(s_load(job, NULL, &spec, &errors), EBB_CONFIG);
    assert_non_null(strstr(errors, "job.yaml:4: model.sizes: the input is 3 wide, but the rows of "));
    assert_non_null(strstr(errors, " have 2 features and a label\n"));
    free(errors);
    // --data replaces the path and is no longer relative to the job file.
    snprintf(data, sizeof(data), "%s", scratch_text(&s_scratch, "wide.csv", "1,2,3,0\n3,4,5,1\n"));
    CHECK_OK(s_load(job, data, &spec, &errors));
    assert_string_equal(spec->data->path, data);
    assert_int_equal(spec->data->train_samples, 1);
    assert_int_equal(spec->data->val_samples, 1);
    assert_int_equal(spec->data->columns, 3);
    assert_int_equal(spec->data->bytes, 16);
    ebb_jobspec_free(&spec);
    assert_null(spec);
    free(errors);
}

static void test_jobspec_reads_units_and_off(void **state)
{
    (void)state;
    Ebb__JobSpec *spec;
    char *errors;
    CHECK_OK(s_load(COUNTER
                    "consistency: {staleness_weight: off}\nlease: 1.5s\ncheckpoint: {journal_bytes: 2MiB, interval: 1m}\nseed: 9007199254740993\n",
                    NULL, &spec, &errors));
    assert_string_equal(errors, "");
    assert_string_equal(spec->consistency->staleness_weight, "off");
    assert_int_equal(spec->lease_ms, 1500);
    assert_int_equal(spec->snapshot_bytes, 2 << 20);
    assert_int_equal(spec->snapshot_ms, 60000);
    assert_true(spec->seed == 9007199254740993ULL);
    ebb_jobspec_free(&spec);
    free(errors);
    // Passes become steps: 1000000 samples by default, 16 in a step, the last step of a pass may be shorter.
    CHECK_OK(s_load("name: c\nmodel: {family: counter}\npasses: 2\nbatch: 7\n", NULL, &spec, &errors));
    assert_int_equal(spec->steps, 2 * 142858);
    ebb_jobspec_free(&spec);
    free(errors);
}

static const char s_golden[] =
    "name: kjv-gpt\nseed: 1\nmodel:\n  family: gpt\n  layers: 4\n  width: 128\n  heads: 4\n  context: 64\n  vocab: 256\n"
    "data:\n  path: %s\n  format: bytes\n  val_fraction: 0.05\n  scale: 1\n"
    "optimizer:\n  name: adamw\n  lr: 0.001\n  betas: [0.9, 0.95]\n  eps: 1e-08\n  momentum: 0.9\n  nesterov: false\n"
    "  weight_decay: 0.1\n  clip_norm: 1\n  groups:\n    matrices: {lr_scale: 1}\n    vectors: {lr_scale: 1, weight_decay: 0}\n"
    "  schedule: {kind: cosine, warmup_steps: 100, min_lr_ratio: 0.1}\n"
    "consistency:\n  mode: async\n  staleness_weight: off\n  staleness_max: 64\n  look_ahead: 1\n  inflight_max: 1\n"
    "durability: journal\nshards: 2\nworkers: {min: 2, max: 2, threads: 1}\n"
    "autoscale: {up_at: 0.8, down_at: 0.4, up_step: 4, down_step: 2, up_window: 0ms, down_window: 300000ms}\nbatch: 16\nsteps: 3000\nunit_steps: 16\n"
    "eval: {every: 500, samples_max: 2048}\ncheckpoint: {journal_bytes: 268435456, interval: 30000ms}\nlease: 10000ms\n"
    "chunk_elems: 262144\n";

static void test_jobspec_prints_the_golden_job(void **state)
{
    (void)state;
    char bytes[4097], data[PATH_MAX], want[4096];
    memset(bytes, 'a', 4096);
    bytes[4096] = '\0';
    assert_non_null(realpath(scratch_text(&s_scratch, "text.txt", bytes), data));
    Ebb__JobSpec *spec;
    char *errors;
    CHECK_OK(s_load("name: kjv-gpt\nmodel: {family: gpt}\ndata: {path: text.txt}\n"
                    "optimizer: {lr: 1.0e-3, betas: [0.9, 0.95], weight_decay: 0.1, clip_norm: 1.0, schedule: {kind: cosine, warmup_steps: 100, "
                    "min_lr_ratio: 0.1}}\n"
                    "shards: 2\nworkers: {min: 2}\nsteps: 3000\neval: {every: 500, samples_max: 2048}\n",
                    NULL, &spec, &errors));
    assert_string_equal(errors, "");
    // Matrices decay, biases and norms do not.
    assert_int_equal(spec->optimizer->n_groups, 2);
    assert_true(spec->optimizer->groups[0]->weight_decay == 0.1 && spec->optimizer->groups[1]->weight_decay == 0);
    char *text = s_print(spec);
    snprintf(want, sizeof(want), s_golden, data);
    assert_string_equal(text, want);
    // What is printed is a job file again, of the same job.
    Ebb__JobSpec *again;
    char *more;
    CHECK_OK(s_load(text, NULL, &again, &more));
    char *text2 = s_print(again);
    assert_string_equal(text2, text);
    free(text);
    free(text2);
    free(errors);
    free(more);
    ebb_jobspec_free(&spec);
    ebb_jobspec_free(&again);
}

static void test_jobspec_examples_and_doc_are_current(void **state)
{
    (void)state;
    const char *const names[] = {"counter.yaml", "digits-mlp.yaml"};
    for (size_t i = 0; i < 2; i++) {
        char path[PATH_MAX];
        Ebb__JobSpec *spec = NULL;
        snprintf(path, sizeof(path), "%s/%s", EBB_EXAMPLES, names[i]);
        CHECK_OK(ebb_jobspec_load(path, NULL, &spec, stderr));
        ebb_jobspec_free(&spec);
    }
    char *now = NULL, kept[65536];
    size_t len = 0;
    FILE *f = open_memstream(&now, &len);
    ebb_jobspec_print_doc(f);
    fclose(f);
    f = fopen(EBB_CONFIG_DOC, "r");
    assert_non_null(f);
    kept[fread(kept, 1, sizeof(kept) - 1, f)] = '\0';
    fclose(f);
    if (strcmp(now, kept) != 0) {
        fail_msg("docs/config.md is not what the schema says: ebb-coordinator --print-config-doc > docs/config.md");
    }
    free(now);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_jobspec_names_unknown_keys, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_names_wrong_types, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_names_ranges_and_choices, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_lists_all_errors, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_checks_across_keys, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_takes_no_number_for_another, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_prints_what_it_reads, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_refuses_what_is_not_yaml, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_checks_the_data, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_reads_units_and_off, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_prints_the_golden_job, s_setup, s_teardown),
        cmocka_unit_test_setup_teardown(test_jobspec_examples_and_doc_are_current, s_setup, s_teardown),
    };
    return cmocka_run_group_tests_name("coordinator.jobspec", tests, NULL, NULL);
}
