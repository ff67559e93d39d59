// A data file as the coordinator counts it (core/units) and as a worker then reads it (worker/dataset). What the one accepts the other opens with the same
// counts, and every step's batch is there or is refused as a bad record: never a missing file, a step that cannot be had, or a value that is no class.
//
// Input: format u8 (even: csv), context u8, held-out share u8, batch u8, then the file.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "tests/fuzz/fuzz.h"
#include "worker/dataset.h"

#define STEPS_MAX 64

typedef struct job {
    Ebb__JobSpec spec;
    Ebb__ModelSpec model;
    Ebb__DataSpec data;
    ebb_model_config config;
} job;

static void s_job(job *j, const char *path, bool csv, uint32_t context, uint32_t batch, double held_out, const ebb_data_counts *n)
{
    ebb__job_spec__init(&j->spec);
    ebb__data_spec__init(&j->data);
    j->config = (ebb_model_config){.context = csv ? 0 : context, .vocab = 200}; // less than a byte has: some records are bad
    strcpy(j->config.family, csv ? "mlp" : "gpt");
    if (csv) {
        j->config.n_sizes = 2;
        j->config.sizes[0] = n->columns;
        j->config.sizes[1] = 3;
    }
    j->data.path = (char *)path;
    j->data.format = csv ? "csv" : "bytes";
    j->data.val_fraction = held_out;
    j->data.train_samples = n->train_samples;
    j->data.val_samples = n->val_samples;
    j->data.bytes = n->bytes;
    j->data.columns = n->columns;
    j->data.scale = 0.5;
    j->spec.data = &j->data;
    j->spec.batch = batch;
    j->spec.unit_steps = 3;
    j->spec.steps = 2 * ((n->train_samples - 1) / batch + 1);
    j->spec.seed = 7;
}

static void s_check_batch(const job *j, const ebb_batch *b, uint32_t samples)
{
    FUZZ_CHECK(b->samples == samples);
    for (uint32_t i = 0; j->config.n_sizes > 0 && i < samples; i++) {
        FUZZ_CHECK(b->y[i] >= 0 && b->y[i] < 3);
    }
    for (size_t i = 0; j->config.n_sizes == 0 && i < (size_t)samples * j->config.context; i++) {
        FUZZ_CHECK(b->tokens[i] >= 0 && b->tokens[i] < 200 && b->targets[i] >= 0 && b->targets[i] < 200);
    }
}

static void s_read_all(const job *j, const ebb_dataset *d)
{
    const ebb_plan *plan = ebb_dataset_plan(d);
    ebb_batch_buf buf;
    char why[512];
    uint32_t max = plan->batch > 8 ? plan->batch : 8, done = 0;
    FUZZ_OK(ebb_batch_buf_init(d, max, &buf));
    for (uint64_t stream = 0; stream < plan->units_total && done < STEPS_MAX; stream++) {
        ebb_unit unit;
        FUZZ_OK(ebb_plan_unit(plan, stream, &unit));
        FUZZ_CHECK(unit.steps >= 1 && unit.steps <= plan->unit_steps);
        for (uint64_t seq = 1; seq <= unit.steps; seq++, done++) {
            ebb_step step;
            FUZZ_OK(ebb_plan_step(plan, stream, seq, &step));
            FUZZ_CHECK(step.samples >= 1 && step.samples <= plan->batch && step.first + step.samples <= plan->train_samples);
            ebb_status st = ebb_dataset_train(d, &step, &buf, why);
            FUZZ_CHECK(st == EBB_OK || st == EBB_BADVALUE);
            if (st == EBB_OK) {
                s_check_batch(j, &buf.batch, step.samples);
            }
        }
    }
    uint64_t held_out = ebb_dataset_held_out(d);
    for (uint64_t first = 0; first < held_out && first < STEPS_MAX; first += 8) {
        uint32_t n = held_out - first < 8 ? (uint32_t)(held_out - first) : 8;
        ebb_status st = ebb_dataset_eval(d, first, n, &buf, why);
        FUZZ_CHECK(st == EBB_OK || st == EBB_BADVALUE);
        if (st == EBB_OK) {
            s_check_batch(j, &buf.batch, n);
        }
    }
    ebb_batch_buf_fini(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_in in = {data, size};
    bool csv = fuzz_u8(&in) % 2 == 0;
    uint32_t context = fuzz_u8(&in) % 32 + 1u;
    double held_out = fuzz_u8(&in) % 91 / 100.0;
    uint32_t batch = fuzz_u8(&in) % 16 + 1u;
    const char *path = fuzz_file("data", in.at, in.left);
    ebb_data_counts n;
    char why[512] = "";
    ebb_status st = ebb_data_probe(path, csv ? "csv" : "bytes", context, held_out, &n, why);
    if (st != EBB_OK) {
        FUZZ_CHECK(st == EBB_CONFIG && strstr(why, path) != NULL);
        return 0;
    }
    FUZZ_CHECK(n.bytes == in.left && n.train_samples > 0);
    job j;
    ebb_dataset *d = NULL;
    s_job(&j, path, csv, context, batch, held_out, &n);
    FUZZ_OK(ebb_dataset_open(&j.spec, &j.config, &d, why));
    s_read_all(&j, d);
    ebb_dataset_free(&d);
    return 0;
}
