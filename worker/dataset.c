#include "worker/dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/assert.h"

#define SCAN_BYTES (1u << 20)

typedef enum format { FORMAT_BYTES, FORMAT_CSV, FORMAT_NONE } format;

typedef struct row {
    uint64_t offset : 40;
    uint64_t bytes : 24;
} row;

struct ebb_dataset {
    char *path;
    format format;
    int fd;
    ebb_plan plan;
    uint64_t train_samples, val_samples, eval_samples;
    uint64_t train_bytes; // bytes
    uint32_t context, vocab;
    uint32_t columns, classes; // csv
    double scale;
    row *row; // csv: (rows), where each row lies
    uint64_t rows;
    uint32_t row_bytes_max;
};

// ---- opening ----

static ebb_status s_row_add(ebb_dataset *d, uint64_t *cap, uint64_t offset, uint64_t bytes, char *why)
{
    if (offset >= 1ull << 40 || bytes >= 1ull << 24) {
        snprintf(why, 512, "%.300s: a csv file may have 1 TiB and 16 MiB per row", d->path);
        return EBB_CONFIG;
    }
    if (d->rows == *cap) {
        *cap = *cap == 0 ? 1024 : *cap * 2;
        row *grown = realloc(d->row, *cap * sizeof(*grown));
        if (grown == NULL) {
            snprintf(why, 512, "%.300s: out of memory for the index of %" PRIu64 " rows", d->path, *cap);
            return EBB_NOMEM;
        }
        d->row = grown;
    }
    d->row[d->rows++] = (row){.offset = offset, .bytes = bytes};
    if (bytes > d->row_bytes_max) {
        d->row_bytes_max = (uint32_t)bytes;
    }
    return EBB_OK;
}

// Finds where the rows are. Contents are read when a batch needs them: the coordinator has parsed them all once.
static ebb_status s_index(ebb_dataset *d, char *why)
{
    char *piece = malloc(SCAN_BYTES);
    uint64_t at = 0, line = 0, cap = 0;
    char last = '\n'; // the byte before the newline, for \r\n
    ebb_status st = piece != NULL ? EBB_OK : EBB_NOMEM;
    while (st == EBB_OK) {
        ssize_t n = pread(d->fd, piece, SCAN_BYTES, (off_t)at);
        if (n < 0) {
            snprintf(why, 512, "%.300s: %s", d->path, strerror(errno));
            st = EBB_IO;
            break;
        }
        if (n == 0) {
            break;
        }
        for (char *p = piece, *end = piece + n; p < end && st == EBB_OK;) {
            char *nl = memchr(p, '\n', (size_t)(end - p));
            if (nl == NULL) {
                last = end[-1];
                break;
            }
            uint64_t stop = at + (uint64_t)(nl - piece);
            char before = nl > piece ? nl[-1] : last;
            uint64_t bytes = stop - line;
            bytes -= bytes > 0 && before == '\r';
            if (bytes > 0) {
                st = s_row_add(d, &cap, line, bytes, why);
            }
            line = stop + 1;
            last = '\n';
            p = nl + 1;
        }
        at += (uint64_t)n;
    }
    if (st == EBB_OK && at > line) { // no newline at the end
        uint64_t bytes = at - line;
        bytes -= last == '\r';
        if (bytes > 0) {
            st = s_row_add(d, &cap, line, bytes, why);
        }
    }
    free(piece);
    return st;
}

static ebb_status s_open_file(ebb_dataset *d, uint64_t bytes, char *why)
{
    struct stat info;
    d->fd = open(d->path, O_RDONLY | O_CLOEXEC);
    if (d->fd < 0 || fstat(d->fd, &info) != 0) {
        int err = errno;
        snprintf(why, 512, "data file %.300s cannot be opened on this machine: %s", d->path, strerror(err));
        return err == ENOENT || err == ENOTDIR || err == EACCES ? EBB_NOENT : EBB_IO;
    }
    if ((uint64_t)info.st_size != bytes) {
        snprintf(why, 512, "data file %.300s has %lld bytes on this machine, the job was made with %" PRIu64 ": every worker needs the same file",
                 d->path, (long long)info.st_size, bytes);
        return EBB_NOENT;
    }
    return EBB_OK;
}

static ebb_status s_open_bytes(ebb_dataset *d, const Ebb__DataSpec *data, const ebb_model_config *model, char *why)
{
    ebb_data_counts counts;
    if (model->context == 0) {
        snprintf(why, 512, "data format \"bytes\" needs a model with a context (family gpt), not \"%.16s\"", model->family);
        return EBB_CONFIG;
    }
    d->context = model->context;
    d->vocab = model->vocab;
    EBB_TRY(ebb_data_probe(d->path, "bytes", d->context, data->val_fraction, &counts, why));
    d->train_bytes = counts.train_bytes;
    if (counts.train_samples != d->train_samples || counts.val_samples != d->val_samples) {
        snprintf(why, 512, "data file %.300s makes %" PRIu64 " + %" PRIu64 " samples here, the job has %" PRIu64 " + %" PRIu64, d->path,
                 counts.train_samples, counts.val_samples, d->train_samples, d->val_samples);
        return EBB_CONFIG;
    }
    return EBB_OK;
}

static ebb_status s_open_csv(ebb_dataset *d, const Ebb__DataSpec *data, const ebb_model_config *model, char *why)
{
    if (model->n_sizes < 2 || model->sizes[0] != data->columns) {
        snprintf(why, 512, "data file %.300s has %u features per row, the model takes %u", d->path, data->columns,
                 model->n_sizes > 0 ? model->sizes[0] : 0);
        return EBB_CONFIG;
    }
    d->columns = data->columns;
    d->classes = model->sizes[model->n_sizes - 1];
    d->scale = data->scale != 0.0 ? data->scale : 1.0;
    EBB_TRY(s_index(d, why));
    if (d->rows != d->train_samples + d->val_samples) {
        snprintf(why, 512, "data file %.300s has %" PRIu64 " rows on this machine, the job was made with %" PRIu64, d->path, d->rows,
                 d->train_samples + d->val_samples);
        return EBB_NOENT;
    }
    return EBB_OK;
}

ebb_status ebb_dataset_open(const Ebb__JobSpec *spec, const ebb_model_config *model, ebb_dataset **out, char *why)
{
    const Ebb__DataSpec *data = spec->data;
    ebb_dataset *d = calloc(1, sizeof(*d));
    if (d == NULL || (d->path = strdup(data->path)) == NULL) {
        free(d);
        snprintf(why, 512, "out of memory");
        return EBB_NOMEM;
    }
    d->fd = -1;
    d->train_samples = data->train_samples;
    d->val_samples = data->val_samples;
    d->eval_samples = d->val_samples;
    if (spec->eval_samples_max > 0 && d->eval_samples > spec->eval_samples_max) {
        d->eval_samples = spec->eval_samples_max;
    }
    ebb_status st = ebb_plan_init(&d->plan, data->train_samples, spec->batch, spec->unit_steps, spec->steps, spec->seed);
    if (st != EBB_OK) {
        snprintf(why, 512, "the job has no steps: %" PRIu64 " samples, batch %u, %u steps per unit, %" PRIu64 " steps", data->train_samples,
                 spec->batch, spec->unit_steps, spec->steps);
        st = EBB_CONFIG;
    } else if (strcmp(data->format, "none") == 0) {
        d->format = FORMAT_NONE;
    } else if (strcmp(data->format, "bytes") == 0) {
        d->format = FORMAT_BYTES;
        st = s_open_file(d, data->bytes, why);
        st = st == EBB_OK ? s_open_bytes(d, data, model, why) : st;
    } else if (strcmp(data->format, "csv") == 0) {
        d->format = FORMAT_CSV;
        st = s_open_file(d, data->bytes, why);
        st = st == EBB_OK ? s_open_csv(d, data, model, why) : st;
    } else {
        snprintf(why, 512, "unknown data format \"%.40s\" (known: bytes, csv, none)", data->format);
        st = EBB_CONFIG;
    }
    if (st != EBB_OK) {
        ebb_dataset_free(&d);
        return st;
    }
    *out = d;
    return EBB_OK;
}

void ebb_dataset_free(ebb_dataset **dp)
{
    ebb_dataset *d = *dp;
    if (d == NULL) {
        return;
    }
    *dp = NULL;
    if (d->fd >= 0) {
        close(d->fd);
    }
    free(d->row);
    free(d->path);
    free(d);
}

const ebb_plan *ebb_dataset_plan(const ebb_dataset *d)
{
    return &d->plan;
}

uint64_t ebb_dataset_held_out(const ebb_dataset *d)
{
    return d->eval_samples;
}

// ---- batch buffers ----

ebb_status ebb_batch_buf_init(const ebb_dataset *d, uint32_t samples_max, ebb_batch_buf *b)
{
    memset(b, 0, sizeof(*b));
    b->samples_max = samples_max;
    bool ok = true;
    if (d->format == FORMAT_BYTES) {
        b->tokens = calloc((size_t)samples_max * d->context, sizeof(*b->tokens));
        b->targets = calloc((size_t)samples_max * d->context, sizeof(*b->targets));
        b->raw = malloc((size_t)d->context + 1);
        ok = b->tokens != NULL && b->targets != NULL && b->raw != NULL;
    } else if (d->format == FORMAT_CSV) {
        b->x = calloc((size_t)samples_max * d->columns, sizeof(*b->x));
        b->y = calloc(samples_max, sizeof(*b->y));
        b->raw = malloc((size_t)d->row_bytes_max + 1);
        ok = b->x != NULL && b->y != NULL && b->raw != NULL;
    }
    if (!ok) {
        ebb_batch_buf_fini(b);
        return EBB_NOMEM;
    }
    b->batch = (ebb_batch){.tokens = b->tokens, .targets = b->targets, .x = b->x, .y = b->y};
    return EBB_OK;
}

void ebb_batch_buf_fini(ebb_batch_buf *b)
{
    free(b->tokens);
    free(b->targets);
    free(b->x);
    free(b->y);
    free(b->raw);
    memset(b, 0, sizeof(*b));
}

// ---- reading ----

static ebb_status s_read(const ebb_dataset *d, uint64_t offset, size_t len, char *out, char *why)
{
    size_t got = 0;
    while (got < len) {
        ssize_t n = pread(d->fd, out + got, len - got, (off_t)(offset + got));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            snprintf(why, 512, "data file %.300s at byte %" PRIu64 ": %s", d->path, offset, strerror(errno));
            return EBB_IO;
        }
        if (n == 0) {
            snprintf(why, 512, "data file %.300s became shorter while it was used: it ends before byte %" PRIu64, d->path, offset + len);
            return EBB_NOENT;
        }
        got += (size_t)n;
    }
    return EBB_OK;
}

static ebb_status s_window(const ebb_dataset *d, uint64_t offset, uint32_t at, ebb_batch_buf *b, char *why)
{
    EBB_TRY(s_read(d, offset, (size_t)d->context + 1, b->raw, why));
    const uint8_t *raw = (const uint8_t *)b->raw;
    int32_t *tokens = b->tokens + (size_t)at * d->context, *targets = b->targets + (size_t)at * d->context;
    uint32_t biggest = 0;
    for (uint32_t i = 0; i <= d->context; i++) {
        biggest = raw[i] > biggest ? raw[i] : biggest;
    }
    if (biggest >= d->vocab) {
        snprintf(why, 512, "data file %.300s, bytes %" PRIu64 "..%" PRIu64 ": a byte of value %u, but the model's vocabulary is %u", d->path, offset,
                 offset + d->context, biggest, d->vocab);
        return EBB_BADVALUE;
    }
    for (uint32_t i = 0; i < d->context; i++) {
        tokens[i] = raw[i];
        targets[i] = raw[i + 1];
    }
    return EBB_OK;
}

// One number and the separator after it. Whole numbers of up to 9 digits, the usual case, without strtod.
static bool s_number(char **p, double *value)
{
    char *c = *p;
    uint32_t n = 0;
    while (*c >= '0' && *c <= '9' && c - *p < 9) {
        n = n * 10 + (uint32_t)(*c++ - '0');
    }
    if (c > *p && (*c == ',' || *c == '\0')) {
        *value = n;
    } else {
        *value = strtod(*p, &c);
        if (c == *p || (*c != ',' && *c != '\0')) {
            return false;
        }
    }
    *p = c;
    return true;
}

static ebb_status s_row(const ebb_dataset *d, uint64_t index, uint32_t at, ebb_batch_buf *b, char *why)
{
    row r = d->row[index];
    EBB_TRY(s_read(d, r.offset, r.bytes, b->raw, why));
    b->raw[r.bytes] = '\0';
    char *p = b->raw;
    float *x = b->x + (size_t)at * d->columns;
    for (uint32_t f = 0; f <= d->columns; f++) {
        double value;
        bool last = f == d->columns;
        if (!s_number(&p, &value) || (*p == '\0') != last) {
            snprintf(why, 512, "data file %.300s, row %" PRIu64 " (byte %" PRIu64 "): field %u of %u is not a number or is missing", d->path,
                     index + 1, (uint64_t)r.offset, f + 1, d->columns + 1);
            return EBB_BADVALUE;
        }
        if (!last) {
            x[f] = (float)(value * d->scale);
            p++;
            continue;
        }
        if (!(value >= 0 && value < d->classes) || value != (double)(int32_t)value) {
            snprintf(why, 512, "data file %.300s, row %" PRIu64 " (byte %" PRIu64 "): label %g is not a class of the model (0..%u)", d->path,
                     index + 1, (uint64_t)r.offset, value, d->classes - 1);
            return EBB_BADVALUE;
        }
        b->y[at] = (int32_t)value;
    }
    return EBB_OK;
}

// Sample `i`: training ones from 0, then the held-out ones.
static ebb_status s_sample(const ebb_dataset *d, uint64_t i, uint64_t shift, uint32_t at, ebb_batch_buf *b, char *why)
{
    switch (d->format) {
    case FORMAT_BYTES:
        if (i < d->train_samples) {
            return s_window(d, i * d->context + shift, at, b, why);
        }
        return s_window(d, d->train_bytes + (i - d->train_samples) * d->context, at, b, why);
    case FORMAT_CSV:
        return s_row(d, ebb_data_csv_row(d->rows, i), at, b, why);
    default:
        return EBB_OK;
    }
}

ebb_status ebb_dataset_train(const ebb_dataset *d, const ebb_step *step, ebb_batch_buf *out, char *why)
{
    EBB_ASSERT(step->samples <= out->samples_max);
    uint64_t shift = d->format == FORMAT_BYTES ? ebb_plan_shift(&d->plan, step->pass, d->context) : 0;
    for (uint32_t k = 0; k < step->samples; k++) {
        EBB_TRY(s_sample(d, ebb_plan_sample(&d->plan, step->pass, step->first + k), shift, k, out, why));
    }
    out->batch.samples = step->samples;
    return EBB_OK;
}

ebb_status ebb_dataset_eval(const ebb_dataset *d, uint64_t first, uint32_t samples, ebb_batch_buf *out, char *why)
{
    EBB_ASSERT(samples <= out->samples_max && first + samples <= d->eval_samples);
    for (uint32_t k = 0; k < samples; k++) {
        // 128-bit: a sample number times a sample count
        uint64_t i = (uint64_t)((unsigned __int128)(first + k) * d->val_samples / d->eval_samples);
        EBB_TRY(s_sample(d, d->train_samples + i, 0, k, out, why));
    }
    out->batch.samples = samples;
    return EBB_OK;
}
