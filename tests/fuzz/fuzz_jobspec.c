// A job file. What is accepted prints to a job file that is accepted and means the same; and the parts of the system that read the job later (optimizer,
// staleness rule, model, data) accept what is in it, since by then nobody can be asked any more.
//
// Input: the file.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/jobspec.h"
#include "core/rng.h"
#include "ps/consistency.h"
#include "ps/optimizer.h"
#include "tests/fuzz/fuzz.h"
#include "worker/dataset.h"
#include "worker/modelspec.h"

// Both a csv of two features and a label, and enough bytes for a small gpt.
static const char s_data[] = "0.5,1,0\n1,2,1\n2,3,0\n3,4,1\n4,5,0\n5,6,1\n6,7,0\n7,8,1\n8,9,0\n9,1,1\n1,1,0\n2,2,1\n3,3,0\n4,4,1\n5,5,0\n6,6,1\n"
                             "0.5,1,0\n1,2,1\n2,3,0\n3,4,1\n4,5,0\n5,6,1\n6,7,0\n7,8,1\n8,9,0\n9,1,1\n1,1,0\n2,2,1\n3,3,0\n4,4,1\n5,5,0\n6,6,1\n";

static ebb_status s_load(const char *text, size_t len, const char *data_override, bool open_data, Ebb__JobSpec **spec)
{
    char *errors = NULL;
    size_t errors_len = 0;
    FILE *f = open_memstream(&errors, &errors_len);
    FUZZ_CHECK(f != NULL);
    const char *path = fuzz_file("job.yaml", text, len);
    ebb_status st = open_data ? ebb_jobspec_load(path, data_override, spec, f) : ebb_jobspec_read(path, spec, f);
    FUZZ_CHECK(fclose(f) == 0);
    FUZZ_CHECK((st == EBB_OK) == (errors_len == 0)); // refused: says why
    if (st != EBB_OK) {
        FUZZ_CHECK(st == EBB_CONFIG && *spec == NULL && errors[errors_len - 1] == '\n');
    }
    free(errors);
    return st;
}

static void s_same(const Ebb__JobSpec *a, const Ebb__JobSpec *b)
{
    uint8_t *x = NULL, *y = NULL;
    size_t nx = 0, ny = 0;
    FUZZ_OK(ebb_pb_pack(&a->base, &x, &nx));
    FUZZ_OK(ebb_pb_pack(&b->base, &y, &ny));
    FUZZ_CHECK(nx == ny && memcmp(x, y, nx) == 0);
    free(x);
    free(y);
}

static void s_takes(ebb_status st, const char *reader, const char *why)
{
    if (st != EBB_OK) {
        fuzz_fail(__FILE__, __LINE__, reader, why);
    }
}

static void s_check_readers(const Ebb__JobSpec *spec)
{
    char why[512] = "";
    ebb_optimizer optimizer;
    ebb_consistency consistency;
    ebb_model_config config;
    s_takes(ebb_optimizer_init(&optimizer, spec->optimizer, spec->steps, why), "the optimizer takes the job", why);
    s_takes(ebb_consistency_init(&consistency, spec->consistency, why), "the staleness rule takes the job", why);
    s_takes(ebb_modelspec_config(spec->model, &config, why), "the model takes the job", why);
    FUZZ_CHECK(isfinite(spec->data->scale) && isfinite(spec->data->val_fraction) && isfinite(spec->consistency->look_ahead));
    ebb_dataset *d = NULL;
    s_takes(ebb_dataset_open(spec, &config, &d, why), "the data set takes the job", why);
    ebb_dataset_free(&d);
}

// ---- changes that keep it a job file ----

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max) __attribute__((weak)); // the fuzzer's; not there in a replay
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

// Replaces one value: what is behind a colon, a bracket or a comma, up to the next of these.
static size_t s_replace_value(uint8_t *data, size_t size, size_t max, uint64_t random)
{
    static const char *const values[] = {"0",
                                         "1",
                                         "2",
                                         "3",
                                         "16",
                                         "255",
                                         "256",
                                         "257",
                                         "1024",
                                         "65536",
                                         "1048576",
                                         "1048577",
                                         "-1",
                                         "-0",
                                         "+1",
                                         "0.5",
                                         "1.5",
                                         "0.999999",
                                         "1.",
                                         ".5",
                                         "1e3",
                                         "1e15",
                                         "1e16",
                                         "1e-300",
                                         "1e308",
                                         "nan",
                                         "-nan",
                                         "inf",
                                         "0x10",
                                         "1_000",
                                         "08",
                                         "true",
                                         "false",
                                         "null",
                                         "~",
                                         "\"1\"",
                                         "200ms",
                                         "0s",
                                         "24h",
                                         "0.1ms",
                                         "0.5ms",
                                         "1.0005s",
                                         "65536B",
                                         "64KiB",
                                         "1e3MiB",
                                         "0.1GiB",
                                         "off",
                                         "inverse",
                                         "sgd",
                                         "adam",
                                         "momentum",
                                         "adagrad",
                                         "cosine",
                                         "fsync",
                                         "snapshot",
                                         "[2, 2]",
                                         "[]",
                                         "[1]",
                                         "{}",
                                         "",
                                         "9223372036854775807",
                                         "9200000000000000000",
                                         "18446744073709551615",
                                         "4294967296",
                                         "4294967295",
                                         "16384"};
    size_t from, to, n = 0;
    for (from = random % size; from > 0 && strchr(":[,", data[from - 1]) == NULL; from--) {
    }
    while (from < size && data[from] == ' ') {
        from++;
    }
    for (to = from; to < size && strchr(",]}\n#", data[to]) == NULL; to++) {
    }
    const char *value = values[(random >> 32) % (sizeof(values) / sizeof(values[0]))];
    n = strlen(value);
    if (size - (to - from) + n > max) {
        return size;
    }
    memmove(data + from + n, data + to, size - to);
    memcpy(data + from, value, n);
    return size - (to - from) + n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    uint64_t random = ebb_rng_at(seed, 1, 0);
    return seed % 3 == 0 || size == 0 ? LLVMFuzzerMutate(data, size, max) : s_replace_value(data, size, max, random);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char data_path[512];
    if (data_path[0] == '\0') {
        snprintf(data_path, sizeof(data_path), "%s", fuzz_file("data", s_data, sizeof(s_data) - 1));
    }
    Ebb__JobSpec *spec = NULL, *again = NULL, *glance = NULL;
    ebb_status st = s_load((const char *)data, size, data_path, true, &spec);
    if (st == EBB_OK) {
        FUZZ_OK(s_load((const char *)data, size, NULL, false, &glance)); // a job that runs can be looked at
        ebb_jobspec_free(&glance);
        char *text = NULL;
        size_t len = 0;
        FILE *f = open_memstream(&text, &len);
        FUZZ_CHECK(f != NULL);
        ebb_jobspec_print(spec, f);
        FUZZ_CHECK(fclose(f) == 0);
        FUZZ_OK(s_load(text, len, NULL, true, &again)); // it names its data itself
        s_same(spec, again);
        s_check_readers(spec);
        free(text);
        ebb_jobspec_free(&again);
        ebb_jobspec_free(&spec);
    }
    return 0;
}
