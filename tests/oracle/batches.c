// Prints which bytes of a data set each training step reads, for the PyTorch oracle: one line per step,
//   STREAM SEQ OFFSET OFFSET ...
// where a sample is the context + 1 bytes at OFFSET. Last line: "val TRAIN_BYTES VAL_SAMPLES".
//
//   oracle_batches DATA CONTEXT VAL_FRACTION BATCH UNIT_STEPS STEPS SEED
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/units.h"

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: %s DATA CONTEXT VAL_FRACTION BATCH UNIT_STEPS STEPS SEED\n", argv[0]);
        return 64;
    }
    uint32_t context = (uint32_t)strtoul(argv[2], NULL, 10);
    ebb_data_counts counts;
    char why[512];
    if (ebb_data_probe(argv[1], "bytes", context, strtod(argv[3], NULL), &counts, why) != EBB_OK) {
        fprintf(stderr, "%s\n", why);
        return 66;
    }
    ebb_plan plan;
    if (ebb_plan_init(&plan, counts.train_samples, (uint32_t)strtoul(argv[4], NULL, 10), (uint32_t)strtoul(argv[5], NULL, 10),
                      strtoull(argv[6], NULL, 10), strtoull(argv[7], NULL, 10)) != EBB_OK) {
        fprintf(stderr, "a number is 0\n");
        return 64;
    }
    ebb_unit unit;
    for (uint64_t stream = 0; ebb_plan_unit(&plan, stream, &unit) == EBB_OK; stream++) {
        uint64_t shift = ebb_plan_shift(&plan, unit.pass, context);
        ebb_step step;
        for (uint64_t seq = 1; ebb_plan_step(&plan, stream, seq, &step) == EBB_OK; seq++) {
            printf("%" PRIu64 " %" PRIu64, stream, seq);
            for (uint32_t i = 0; i < step.samples; i++) {
                printf(" %" PRIu64, ebb_plan_sample(&plan, step.pass, step.first + i) * context + shift);
            }
            printf("\n");
        }
    }
    printf("val %" PRIu64 " %" PRIu64 "\n", counts.train_bytes, counts.val_samples);
    return 0;
}
