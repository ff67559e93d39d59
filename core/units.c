#include "core/units.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/assert.h"
#include "core/rng.h"

// Purposes of the generator, so that one seed serves independent streams.
#define KEY_ORDER 0x4F524445u
#define KEY_SHIFT 0x53484946u
#define KEY_CSV_SPLIT 0x43535653u

ebb_status ebb_plan_init(ebb_plan *plan, uint64_t train_samples, uint32_t batch, uint32_t unit_steps, uint64_t steps_total, uint64_t seed)
{
    if (train_samples == 0 || batch == 0 || unit_steps == 0 || steps_total == 0) {
        return EBB_INVAL;
    }
    *plan = (ebb_plan){.train_samples = train_samples, .steps_total = steps_total, .seed = seed, .batch = batch, .unit_steps = unit_steps};
    plan->steps_per_pass = (train_samples - 1) / batch + 1;
    plan->units_per_pass = (plan->steps_per_pass - 1) / unit_steps + 1;
    uint64_t whole = steps_total / plan->steps_per_pass;
    uint64_t rest = steps_total % plan->steps_per_pass;
    plan->units_total = whole * plan->units_per_pass + (rest + unit_steps - 1) / unit_steps;
    return EBB_OK;
}

ebb_status ebb_plan_unit(const ebb_plan *plan, uint64_t stream, ebb_unit *out)
{
    if (stream >= plan->units_total) {
        return EBB_NOENT;
    }
    uint64_t pass = stream / plan->units_per_pass, unit = stream % plan->units_per_pass;
    uint64_t first = unit * plan->unit_steps;
    uint64_t steps = plan->steps_per_pass - first;
    uint64_t global = pass * plan->steps_per_pass + first;
    if (steps > plan->unit_steps) {
        steps = plan->unit_steps;
    }
    EBB_ASSERT(global < plan->steps_total);
    if (steps > plan->steps_total - global) {
        steps = plan->steps_total - global;
    }
    *out = (ebb_unit){.stream = stream, .pass = pass, .unit = unit, .steps = steps, .first_step = global};
    return EBB_OK;
}

ebb_status ebb_plan_step(const ebb_plan *plan, uint64_t stream, uint64_t seq, ebb_step *out)
{
    ebb_unit unit;
    EBB_TRY(ebb_plan_unit(plan, stream, &unit));
    if (seq == 0 || seq > unit.steps) {
        return EBB_NOENT;
    }
    uint64_t step = unit.unit * plan->unit_steps + seq - 1; // within the pass
    uint64_t first = step * plan->batch;
    uint64_t left = plan->train_samples - first;
    *out = (ebb_step){.pass = unit.pass, .first = first, .samples = left < plan->batch ? (uint32_t)left : plan->batch};
    return EBB_OK;
}

uint64_t ebb_plan_sample(const ebb_plan *plan, uint64_t pass, uint64_t position)
{
    return ebb_rng_permute(ebb_rng_at(plan->seed, KEY_ORDER, pass), plan->train_samples, position);
}

uint64_t ebb_plan_shift(const ebb_plan *plan, uint64_t pass, uint32_t context)
{
    return ebb_rng_at(plan->seed, KEY_SHIFT, pass) % context;
}

uint64_t ebb_data_csv_row(uint64_t rows, uint64_t i)
{
    return ebb_rng_permute(KEY_CSV_SPLIT, rows, i);
}

static ebb_status s_probe_bytes(const char *path, uint32_t context, double val_fraction, ebb_data_counts *out, char *why)
{
    out->train_bytes = out->bytes - (uint64_t)floor((double)out->bytes * val_fraction);
    uint64_t held = out->bytes - out->train_bytes;
    // Windows of context + 1 bytes every `context` bytes, shifted by up to context - 1.
    out->train_samples = out->train_bytes >= 2ULL * context ? (out->train_bytes - context) / context : 0;
    out->val_samples = held > context ? (held - 1) / context : 0;
    if (out->train_samples == 0) {
        snprintf(why, 512, "%.300s: %llu bytes are too few to train on: a context of %u needs at least %llu", path, (unsigned long long)out->bytes,
                 context, (unsigned long long)ceil(2.0 * context / (1.0 - val_fraction)));
        return EBB_CONFIG;
    }
    return EBB_OK;
}

// Counts rows and checks that each has the same number of fields, all of them numbers.
static ebb_status s_probe_csv(FILE *f, const char *path, double val_fraction, ebb_data_counts *out, char *why)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    uint64_t number = 0;
    uint32_t columns = 0;
    ebb_status st = EBB_OK;
    while (st == EBB_OK && (len = getline(&line, &cap, f)) >= 0) {
        number++;
        // One line end, as the workers see it: what is before it must be a row to them and to us.
        len -= len > 0 && line[len - 1] == '\n';
        len -= len > 0 && line[len - 1] == '\r';
        line[len] = '\0';
        if (len == 0) {
            continue;
        }
        uint32_t fields = 0;
        char *p = line;
        for (;;) {
            char *end;
            strtod(p, &end);
            if (end == p || (*end != ',' && *end != '\0')) {
                snprintf(why, 512, "%.300s:%llu: field %u is not a number", path, (unsigned long long)number, fields + 1);
                st = EBB_CONFIG;
                break;
            }
            fields++;
            if (*end == '\0') {
                break;
            }
            p = end + 1;
        }
        if (st != EBB_OK) {
            break;
        }
        if (fields < 2 || (columns != 0 && fields != columns)) {
            snprintf(why, 512, "%.300s:%llu: %u fields, expected %s%u", path, (unsigned long long)number, fields, columns ? "" : "at least ",
                     columns ? columns : 2);
            st = EBB_CONFIG;
            break;
        }
        columns = fields;
        out->rows++;
    }
    if (st == EBB_OK && ferror(f)) {
        snprintf(why, 512, "%.300s: %s", path, strerror(errno));
        st = EBB_IO;
    }
    free(line);
    if (st != EBB_OK) {
        return st;
    }
    out->columns = columns > 0 ? columns - 1 : 0;
    out->val_samples = (uint64_t)floor((double)out->rows * val_fraction);
    out->train_samples = out->rows - out->val_samples;
    if (out->train_samples == 0) {
        snprintf(why, 512, "%.300s: no rows to train on", path);
        return EBB_CONFIG;
    }
    return EBB_OK;
}

ebb_status ebb_data_probe(const char *path, const char *format, uint32_t context, double val_fraction, ebb_data_counts *out, char *why)
{
    memset(out, 0, sizeof(*out));
    if (strcmp(format, "none") == 0) {
        return EBB_OK;
    }
    struct stat info;
    bool there = stat(path, &info) == 0;
    if (there && !S_ISREG(info.st_mode)) { // before it is opened: opening a pipe would wait
        snprintf(why, 512, "%.300s: not a regular file", path);
        return EBB_CONFIG;
    }
    FILE *f = there ? fopen(path, "rbe") : NULL;
    if (f == NULL) {
        int err = errno;
        snprintf(why, 512, "%.300s: %s", path, strerror(err));
        return err == ENOENT || err == ENOTDIR ? EBB_NOENT : EBB_IO;
    }
    ebb_status st;
    if (info.st_size == 0) {
        snprintf(why, 512, "%.300s: the file is empty", path);
        st = EBB_CONFIG;
    } else {
        out->bytes = (uint64_t)info.st_size;
        if (strcmp(format, "bytes") == 0) {
            st = s_probe_bytes(path, context, val_fraction, out, why);
        } else if (strcmp(format, "csv") == 0) {
            st = s_probe_csv(f, path, val_fraction, out, why);
        } else {
            snprintf(why, 512, "unknown data format \"%.40s\"", format);
            st = EBB_CONFIG;
        }
    }
    fclose(f);
    return st;
}
