#include "coordinator/jobspec.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "core/assert.h"
#include "core/limits.h"
#include "core/units.h"

typedef enum key_type { KEY_STRING, KEY_ENUM, KEY_INT, KEY_REAL, KEY_BOOL, KEY_LIST, KEY_BYTES, KEY_DURATION } key_type;

typedef struct key_row {
    const char *path;
    key_type type;
    double min, max;
    const char *fallback; // NULL: required, or meaningless without a value ("" = empty)
    const char *choices;  // enums: separated by |
    const char *help;
} key_row;

// The schema. Order is the order of printing.
static const key_row s_keys[] = {
    {"name", KEY_STRING, 0, 0, NULL, NULL, "name of the job: letters, digits, -, _ and ."},
    {"seed", KEY_INT, 0, 9.2e18, "1", NULL, "of initial values and order of the samples"},
    {"model.family", KEY_ENUM, 0, 0, NULL, "gpt|mlp|counter",
     "gpt: byte-level transformer; mlp: ReLU classifier; counter: counts applied steps, to check a fleet"},
    {"model.layers", KEY_INT, 1, 512, "4", NULL, "gpt: blocks"},
    {"model.width", KEY_INT, 1, 65536, "128", NULL, "gpt: embedding width"},
    {"model.heads", KEY_INT, 1, 1024, "4", NULL, "gpt: attention heads, divides width"},
    {"model.context", KEY_INT, 1, 65536, "64", NULL, "gpt: tokens a sample has"},
    {"model.vocab", KEY_INT, 2, 1000000, "256", NULL, "gpt: tokens there are; 256 for bytes"},
    {"model.sizes", KEY_LIST, 1, 16777216, "[]", NULL, "mlp: [input, hidden..., classes]"},
    {"model.numel", KEY_INT, 1, 1e12, "1000", NULL, "counter: parameters"},
    {"data.path", KEY_STRING, 0, 0, "", NULL, "file, relative to the job file"},
    {"data.format", KEY_ENUM, 0, 0, "", "bytes|csv|none", "default by family: gpt bytes, mlp csv, counter none"},
    {"data.val_fraction", KEY_REAL, 0, 0.9, "0.05", NULL, "part of the data held out for evaluation"},
    {"data.scale", KEY_REAL, -1e30, 1e30, "1", NULL, "csv: features are multiplied by this"},
    {"data.samples", KEY_INT, 1, 1e15, "1000000", NULL, "format none: samples in a pass"},
    {"optimizer.name", KEY_ENUM, 0, 0, "adamw", "sgd|momentum|adagrad|adam|adamw", "runs on the shards"},
    {"optimizer.lr", KEY_REAL, 0, 1e6, "0.001", NULL, "peak learning rate"},
    {"optimizer.betas", KEY_LIST, 0, 1, "[0.9, 0.999]", NULL, "adam, adamw"},
    {"optimizer.eps", KEY_REAL, 0, 1, "1e-08", NULL, "adagrad, adam, adamw"},
    {"optimizer.momentum", KEY_REAL, 0, 1, "0.9", NULL, "momentum"},
    {"optimizer.nesterov", KEY_BOOL, 0, 0, "false", NULL, "momentum"},
    {"optimizer.weight_decay", KEY_REAL, 0, 10, "0", NULL, "of matrices; adamw: decoupled, others: added to the gradient"},
    {"optimizer.clip_norm", KEY_REAL, 0, 1e9, "0", NULL, "global norm a gradient is clipped to by the worker; 0: off"},
    {"optimizer.groups.matrices.lr_scale", KEY_REAL, 0, 1e6, "1", NULL, "multiplies lr for matrices"},
    {"optimizer.groups.vectors.lr_scale", KEY_REAL, 0, 1e6, "1", NULL, "multiplies lr for biases and norms"},
    {"optimizer.groups.vectors.weight_decay", KEY_REAL, 0, 10, "0", NULL, "weight decay of biases and norms"},
    {"optimizer.schedule.kind", KEY_ENUM, 0, 0, "constant", "constant|cosine|linear", "of lr over the job's steps, after warm-up"},
    {"optimizer.schedule.warmup_steps", KEY_INT, 0, 1e15, "0", NULL, "steps in which lr rises from 0"},
    {"optimizer.schedule.min_lr_ratio", KEY_REAL, 0, 1, "0", NULL, "the schedule's floor, as a part of lr"},
    {"consistency.mode", KEY_ENUM, 0, 0, "async", "async", "pushes are applied as they come"},
    {"consistency.staleness_weight", KEY_ENUM, 0, 0, "off", "off|inverse", "inverse: lr / (1 + staleness) for each push"},
    {"consistency.staleness_max", KEY_INT, 0, 1e15, "64", NULL, "staler gradients are refused and computed again; 0: no bound"},
    {"consistency.look_ahead", KEY_REAL, 0, 4, "1", NULL,
     "workers compute at the parameters that momentum will have reached when their gradient arrives, this share of the way; 0: off"},
    {"consistency.inflight_max", KEY_INT, 1, 64, "1", NULL, "unacknowledged steps of a worker; 1: wait for each answer"},
    {"durability", KEY_ENUM, 0, 0, "journal", "fsync|journal|snapshot", "what an acknowledged push survives (docs/journal.md)"},
    {"shards", KEY_INT, 1, 1024, "1", NULL, "parameter-server processes"},
    {"workers.min", KEY_INT, 0, 16384, "1", NULL, "fewest workers"},
    {"workers.max", KEY_INT, 1, 16384, "", NULL, "most workers; default: min"},
    {"workers.threads", KEY_INT, 1, 1024, "1", NULL, "compute threads of a worker"},
    {"autoscale.up_at", KEY_REAL, 0.01, 1, "0.8", NULL, "utilization (compute time / alive time) above which workers are added, up to workers.max"},
    {"autoscale.down_at", KEY_REAL, 0, 0.99, "0.4", NULL, "utilization below which workers are removed, down to workers.min"},
    {"autoscale.up_step", KEY_INT, 1, 1024, "4", NULL, "workers added at once"},
    {"autoscale.down_step", KEY_INT, 1, 1024, "2", NULL, "workers removed at once"},
    {"autoscale.up_window", KEY_DURATION, 0, 86400e3, "0s", NULL, "how long utilization must have been high"},
    {"autoscale.down_window", KEY_DURATION, 0, 86400e3, "300s", NULL, "how long utilization must have been low"},
    {"batch", KEY_INT, 1, 16777216, "16", NULL, "samples of a step"},
    {"steps", KEY_INT, 1, 1e15, "", NULL, "training steps of the whole job; or"},
    {"passes", KEY_INT, 1, 1e9, "", NULL, "passes over the data (one of the two)"},
    {"unit_steps", KEY_INT, 1, 1000000, "16", NULL, "steps leased to a worker at a time"},
    {"eval.every", KEY_INT, 0, 1e15, "0", NULL, "steps between evaluations; 0: only at the end"},
    {"eval.samples_max", KEY_INT, 0, 1e9, "0", NULL, "held-out samples used; 0: all"},
    {"checkpoint.journal_bytes", KEY_BYTES, 65536, 1e15, "256MiB", NULL, "journal bytes between snapshots"},
    {"checkpoint.interval", KEY_DURATION, 100, 86400e3, "30s", NULL, "longest time between snapshots"},
    {"lease", KEY_DURATION, 200, 86400e3, "10s", NULL, "a silent worker's unit is given to another after this"},
    {"chunk_elems", KEY_INT, 16, EBB_CHUNK_ELEMS_MAX, "262144", NULL, "parameters in a chunk"},
};
#define N_KEYS (sizeof(s_keys) / sizeof(s_keys[0]))

typedef struct parsed {
    const char *file;
    FILE *errors;
    int n_errors;
    char *text[N_KEYS]; // scalar text; lists as "[a, b]"
    size_t line[N_KEYS];
} parsed;

__attribute__((format(printf, 3, 4))) static void s_error(parsed *p, size_t line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (line > 0) {
        fprintf(p->errors, "%s:%zu: ", p->file, line);
    } else {
        fprintf(p->errors, "%s: ", p->file);
    }
    vfprintf(p->errors, fmt, ap);
    fputc('\n', p->errors);
    va_end(ap);
    p->n_errors++;
}

static int s_key(const char *path)
{
    for (size_t i = 0; i < N_KEYS; i++) {
        if (strcmp(s_keys[i].path, path) == 0) {
            return (int)i;
        }
    }
    return -1;
}

// Levenshtein distance, for the nearest known key.
static size_t s_distance(const char *a, const char *b)
{
    size_t n = strlen(b), row[128];
    if (n >= 128) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            row[j] = best;
        }
    }
    return row[n];
}

// Is `path` the beginning of a known key ("model" of "model.family")?
static bool s_is_section(const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 0; i < N_KEYS; i++) {
        if (strncmp(s_keys[i].path, path, n) == 0 && s_keys[i].path[n] == '.') {
            return true;
        }
    }
    return false;
}

static void s_unknown_key(parsed *p, size_t line, const char *prefix, const char *name)
{
    // Candidates are the names one level below the prefix.
    size_t depth = strlen(prefix), best = SIZE_MAX;
    char near[128] = "", known[1024] = "";
    for (size_t i = 0; i < N_KEYS; i++) {
        const char *path = s_keys[i].path;
        if (strncmp(path, prefix, depth) != 0) {
            continue;
        }
        char part[128];
        size_t len = strcspn(path + depth, ".");
        snprintf(part, sizeof(part), "%.*s", (int)len, path + depth);
        if (strstr(known, part) == NULL || known[0] == '\0') {
            size_t used = strlen(known);
            snprintf(known + used, sizeof(known) - used, "%s%s", used ? ", " : "", part);
        }
        size_t d = s_distance(name, part);
        if (d < best) {
            best = d;
            strcpy(near, part);
        }
    }
    if (best <= 1 + strlen(name) / 3) {
        s_error(p, line, "unknown key \"%s%s\" (did you mean \"%s%s\"?)", prefix, name, prefix, near);
    } else {
        s_error(p, line, "unknown key \"%s%s\" (known here: %s)", prefix, name, known);
    }
}

static char *s_list_text(yaml_document_t *doc, const yaml_node_t *node, parsed *p)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    EBB_ASSERT(f != NULL);
    fputc('[', f);
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top; i++) {
        const yaml_node_t *item = yaml_document_get_node(doc, *i);
        if (item->type != YAML_SCALAR_NODE) {
            s_error(p, item->start_mark.line + 1, "expected a number in this list");
            break;
        }
        fprintf(f, "%s%s", i > node->data.sequence.items.start ? ", " : "", (const char *)item->data.scalar.value);
    }
    fputc(']', f);
    fclose(f);
    return text;
}

static void s_walk(parsed *p, yaml_document_t *doc, const yaml_node_t *node, const char *prefix, int depth)
{
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++) {
        const yaml_node_t *k = yaml_document_get_node(doc, pair->key), *v = yaml_document_get_node(doc, pair->value);
        size_t line = k->start_mark.line + 1;
        if (k->type != YAML_SCALAR_NODE) {
            s_error(p, line, "expected a name before the colon");
            continue;
        }
        const char *name = (const char *)k->data.scalar.value;
        char path[256];
        if (snprintf(path, sizeof(path), "%s%s", prefix, name) >= (int)sizeof(path)) {
            s_error(p, line, "name is too long");
            continue;
        }
        int key = s_key(path);
        if (key < 0 && s_is_section(path)) {
            if (v->type != YAML_MAPPING_NODE) {
                s_error(p, line, "%s: expected a mapping of keys, like %s: {...}", path, name);
            } else if (depth < 4) {
                strcat(path, ".");
                s_walk(p, doc, v, path, depth + 1);
            }
            continue;
        }
        if (key < 0) {
            s_unknown_key(p, line, prefix, name);
            continue;
        }
        if (p->text[key] != NULL) {
            s_error(p, line, "%s is given twice (first in line %zu)", path, p->line[key]);
            continue;
        }
        p->line[key] = line;
        if (s_keys[key].type == KEY_LIST) {
            if (v->type != YAML_SEQUENCE_NODE) {
                s_error(p, line, "%s: expected a list, like [1, 2]", path);
                continue;
            }
            p->text[key] = s_list_text(doc, v, p);
        } else if (v->type != YAML_SCALAR_NODE) {
            s_error(p, line, "%s: expected a single value, not a %s", path, v->type == YAML_SEQUENCE_NODE ? "list" : "mapping");
        } else {
            p->text[key] = strdup((const char *)v->data.scalar.value);
        }
    }
}

// ---- typed values ----

typedef struct unit_row {
    const char *name;
    double factor;
} unit_row;

static const unit_row s_bytes_units[] = {{"", 1},     {"B", 1},    {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824.0},
                                         {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
static const unit_row s_time_units[] = {{"ms", 1}, {"s", 1e3}, {"m", 6e4}, {"h", 3.6e6}}; // milliseconds

static bool s_number(const char *text, const unit_row *units, size_t n_units, double *out)
{
    char *end;
    if ((!isdigit((unsigned char)text[0]) && strchr("+-.", text[0]) == NULL) || strpbrk(text, "xX") != NULL) {
        return false; // no hexadecimal
    }
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || !isfinite(v)) {
        return false;
    }
    if (units == NULL) {
        *out = v;
        return *end == '\0';
    }
    for (size_t i = 0; i < n_units; i++) {
        if (strcmp(end, units[i].name) == 0) {
            *out = v * units[i].factor;
            return true;
        }
    }
    return false;
}

static bool s_is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *c = choices; c != NULL && n > 0; c = strchr(c, '|'), c = c ? c + 1 : NULL) {
        if (strncmp(c, text, n) == 0 && (c[n] == '|' || c[n] == '\0')) {
            return true;
        }
    }
    return false;
}

static const char *s_text(const parsed *p, const char *path)
{
    int key = s_key(path);
    EBB_ASSERT(key >= 0);
    return p->text[key] != NULL ? p->text[key] : s_keys[key].fallback;
}

static bool s_given(const parsed *p, const char *path)
{
    return p->text[s_key(path)] != NULL;
}

static size_t s_line(const parsed *p, const char *path)
{
    return p->line[s_key(path)];
}

static double s_value(const parsed *p, const char *path)
{
    int key = s_key(path);
    const char *text = s_text(p, path);
    double v = 0;
    if (text == NULL || *text == '\0') {
        return 0;
    }
    if (s_keys[key].type == KEY_BYTES) {
        s_number(text, s_bytes_units, sizeof(s_bytes_units) / sizeof(*s_bytes_units), &v);
    } else if (s_keys[key].type == KEY_DURATION) {
        s_number(text, s_time_units, sizeof(s_time_units) / sizeof(*s_time_units), &v);
    } else {
        s_number(text, NULL, 0, &v);
    }
    return v;
}

static uint64_t s_int(const parsed *p, const char *path)
{
    const char *text = s_text(p, path);
    int key = s_key(path);
    if (s_keys[key].type == KEY_INT && text != NULL && strpbrk(text, ".eE") == NULL) {
        return strtoull(text, NULL, 10); // exact beyond 2^53
    }
    return (uint64_t)llround(s_value(p, path));
}

// Numbers of a "[a, b]" text; returns how many, at most max; -1: not numbers.
static int s_list(const char *text, double *out, int max)
{
    int n = 0;
    for (const char *c = text + 1; *c != ']' && *c != '\0';) {
        char *end;
        double v = strtod(c, &end);
        if (end == c || (*end != ',' && *end != ']')) {
            return -1;
        }
        if (n < max) {
            out[n] = v;
        }
        n++;
        c = *end == ',' ? end + 1 : end;
    }
    return n;
}

static void s_check_key(parsed *p, size_t key)
{
    const key_row *row = &s_keys[key];
    const char *text = p->text[key];
    size_t line = p->line[key];
    double v = 0;
    if (text == NULL) {
        if (row->fallback == NULL) {
            s_error(p, 0, "%s is missing: %s%s%s%s", row->path, row->help, row->choices ? " (one of " : "", row->choices ? row->choices : "",
                    row->choices ? ")" : "");
        }
        return;
    }
    switch (row->type) {
    case KEY_STRING:
        if (text[0] == '\0') {
            s_error(p, line, "%s: expected a text, it is empty", row->path);
        }
        return;
    case KEY_ENUM:
        if (!s_is_choice(row->choices, text)) {
            s_error(p, line, "%s: \"%s\" is not one of %s", row->path, text, row->choices);
        }
        return;
    case KEY_BOOL:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
            s_error(p, line, "%s: expected true or false, not \"%s\"", row->path, text);
        }
        return;
    case KEY_LIST: {
        double values[64];
        int n = s_list(text, values, 64);
        if (n < 0 || n > 64) {
            s_error(p, line, "%s: expected a list of numbers, not %s", row->path, text);
        }
        for (int i = 0; i < n && i < 64; i++) {
            if (!(values[i] >= row->min && values[i] <= row->max)) { // not a number is in no range
                s_error(p, line, "%s: %g is out of range (%g to %g)", row->path, values[i], row->min, row->max);
            }
        }
        return;
    }
    case KEY_INT:
        if (!s_number(text, NULL, 0, &v) || v != floor(v)) {
            s_error(p, line, "%s: expected a whole number, not \"%s\"", row->path, text);
            return;
        }
        break;
    case KEY_REAL:
        if (!s_number(text, NULL, 0, &v)) {
            s_error(p, line, "%s: expected a number, not \"%s\"", row->path, text);
            return;
        }
        break;
    case KEY_BYTES:
        if (!s_number(text, s_bytes_units, sizeof(s_bytes_units) / sizeof(*s_bytes_units), &v)) {
            s_error(p, line, "%s: expected a size like 256MiB, not \"%s\"", row->path, text);
            return;
        }
        break;
    case KEY_DURATION:
        if (!s_number(text, s_time_units, sizeof(s_time_units) / sizeof(*s_time_units), &v)) {
            s_error(p, line, "%s: expected a time like 10s or 500ms, not \"%s\"", row->path, text);
            return;
        }
        break;
    }
    if (v < row->min || v > row->max) {
        s_error(p, line, "%s: %s is out of range (%.15g to %.15g%s)", row->path, text, row->min, row->max, row->type == KEY_DURATION ? " ms" : "");
    }
}

// ---- checks across keys ----

static void s_check_job(parsed *p)
{
    const char *name = s_text(p, "name"), *family = s_text(p, "model.family");
    for (const char *c = name; c != NULL && *c != '\0'; c++) {
        if (!isalnum((unsigned char)*c) && *c != '-' && *c != '_' && *c != '.') {
            s_error(p, s_line(p, "name"), "name: \"%s\" has a character other than letters, digits, '-', '_' and '.'", name);
            break;
        }
    }
    if (name != NULL && (name[0] == '.' || strlen(name) >= 64)) {
        s_error(p, s_line(p, "name"), "name: at most 63 characters, the first not a dot");
    }
    if (s_given(p, "steps") == s_given(p, "passes")) {
        s_error(p, s_line(p, "passes"), "give exactly one of steps and passes");
    }
    if (s_given(p, "workers.max") && s_value(p, "workers.max") < s_value(p, "workers.min")) {
        s_error(p, s_line(p, "workers.max"), "workers.max is smaller than workers.min");
    }
    if (s_value(p, "autoscale.down_at") >= s_value(p, "autoscale.up_at")) {
        s_error(p, s_line(p, s_given(p, "autoscale.down_at") ? "autoscale.down_at" : "autoscale.up_at"),
                "autoscale.down_at must be smaller than autoscale.up_at (%s)", s_text(p, "autoscale.up_at"));
    }
    double betas[2];
    if (s_list(s_text(p, "optimizer.betas"), betas, 2) != 2) {
        s_error(p, s_line(p, "optimizer.betas"), "optimizer.betas: expected two numbers, like [0.9, 0.999]");
    } else if (betas[0] >= 1 || betas[1] >= 1) {
        s_error(p, s_line(p, "optimizer.betas"), "optimizer.betas: both must be below 1");
    }
    const char *optimizer = s_text(p, "optimizer.name");
    if (strcmp(optimizer, "momentum") == 0 && s_value(p, "optimizer.momentum") >= 1) {
        s_error(p, s_line(p, "optimizer.momentum"), "optimizer.momentum must be below 1");
    }
    if (strncmp(optimizer, "ada", 3) == 0 && s_value(p, "optimizer.eps") <= 0) { // adagrad, adam, adamw divide by it
        s_error(p, s_line(p, "optimizer.eps"), "optimizer.eps must be above 0");
    }
    if (family == NULL) {
        return;
    }
    const char *format = s_text(p, "data.format");
    if (strcmp(family, "gpt") == 0) {
        uint64_t heads = s_int(p, "model.heads");
        if (heads > 0 && s_int(p, "model.width") % heads != 0) {
            s_error(p, s_line(p, s_given(p, "model.width") ? "model.width" : "model.heads"), "model.width: %s is not a multiple of model.heads (%s)",
                    s_text(p, "model.width"), s_text(p, "model.heads"));
        }
        if (*format != '\0' && strcmp(format, "bytes") != 0) {
            s_error(p, s_line(p, "data.format"), "data.format: a gpt reads bytes");
        }
        if (s_int(p, "model.vocab") < 256) {
            s_error(p, s_line(p, "model.vocab"), "model.vocab: data of bytes needs a vocabulary of at least 256");
        }
    } else if (strcmp(family, "mlp") == 0) {
        double sizes[64];
        int n = s_list(s_text(p, "model.sizes"), sizes, 64);
        if (n < 2 || n > 16) {
            s_error(p, s_line(p, "model.sizes"), "model.sizes: an mlp needs 2 to 16 numbers: [input, hidden..., classes]");
        } else if (sizes[n - 1] < 2) {
            s_error(p, s_line(p, "model.sizes"), "model.sizes: the last one is the number of classes, at least 2");
        }
        for (int i = 0; i < n && i < 16; i++) {
            if (sizes[i] != floor(sizes[i])) {
                s_error(p, s_line(p, "model.sizes"), "model.sizes: expected whole numbers, not %g", sizes[i]);
            }
        }
        if (*format != '\0' && strcmp(format, "csv") != 0) {
            s_error(p, s_line(p, "data.format"), "data.format: an mlp reads csv");
        }
    } else if (*format != '\0' && strcmp(format, "none") != 0) {
        s_error(p, s_line(p, "data.format"), "data.format: a counter reads none");
    }
    if (strcmp(family, "counter") != 0 && !s_given(p, "data.path")) {
        s_error(p, 0, "data.path is missing: the file to train on");
    }
}

// ---- filling the message ----

static char *s_dup(const char *text)
{
    char *copy = strdup(text);
    EBB_ASSERT(copy != NULL);
    return copy;
}

static char *s_absolute(const char *file, const char *path, bool from_cwd)
{
    char full[PATH_MAX * 2], resolved[PATH_MAX];
    if (path[0] == '/' || from_cwd) {
        snprintf(full, sizeof(full), "%s", path);
    } else {
        const char *slash = strrchr(file, '/');
        snprintf(full, sizeof(full), "%.*s%s", slash ? (int)(slash - file + 1) : 0, file, path);
    }
    if (realpath(full, resolved) != NULL) {
        return s_dup(resolved);
    }
    if (full[0] != '/' && getcwd(resolved, sizeof(resolved)) != NULL) { // missing: an absolute name all the same, for the message
        char joined[PATH_MAX * 3];
        snprintf(joined, sizeof(joined), "%s/%s", resolved, full);
        return s_dup(joined);
    }
    return s_dup(full);
}

// Fills a template whose strings and submessages are freed by hand (s_fill_free): the result handed out is a copy made by pack and unpack.
typedef struct filled {
    Ebb__JobSpec spec;
    Ebb__ModelSpec model;
    Ebb__DataSpec data;
    Ebb__OptimizerSpec optimizer;
    Ebb__OptimizerGroup groups[2], *group_refs[2];
    Ebb__ConsistencySpec consistency;
    Ebb__AutoscaleSpec autoscale;
    uint32_t sizes[16];
    char *path;
} filled;

static void s_fill(const parsed *p, const char *data_override, filled *f)
{
    ebb__job_spec__init(&f->spec);
    ebb__model_spec__init(&f->model);
    ebb__data_spec__init(&f->data);
    ebb__optimizer_spec__init(&f->optimizer);
    ebb__consistency_spec__init(&f->consistency);
    ebb__autoscale_spec__init(&f->autoscale);
    f->spec.model = &f->model;
    f->spec.data = &f->data;
    f->spec.optimizer = &f->optimizer;
    f->spec.consistency = &f->consistency;
    f->spec.autoscale = &f->autoscale;
    f->spec.name = (char *)s_text(p, "name");
    f->spec.seed = s_int(p, "seed");
    f->model.family = (char *)s_text(p, "model.family");
    bool gpt = strcmp(f->model.family, "gpt") == 0, mlp = strcmp(f->model.family, "mlp") == 0;
    if (gpt) {
        f->model.layers = (uint32_t)s_int(p, "model.layers");
        f->model.width = (uint32_t)s_int(p, "model.width");
        f->model.heads = (uint32_t)s_int(p, "model.heads");
        f->model.context = (uint32_t)s_int(p, "model.context");
        f->model.vocab = (uint32_t)s_int(p, "model.vocab");
    } else if (mlp) {
        double sizes[16];
        int n = s_list(s_text(p, "model.sizes"), sizes, 16);
        for (int i = 0; i < n; i++) {
            f->sizes[i] = (uint32_t)sizes[i];
        }
        f->model.n_sizes = (size_t)n;
        f->model.sizes = f->sizes;
    } else {
        f->model.numel = s_int(p, "model.numel");
    }
    f->data.format = gpt ? "bytes" : mlp ? "csv" : "none";
    f->data.val_fraction = gpt || mlp ? s_value(p, "data.val_fraction") : 0;
    f->data.scale = s_value(p, "data.scale");
    const char *path = data_override != NULL ? data_override : s_text(p, "data.path");
    f->path = gpt || mlp ? s_absolute(p->file, path, data_override != NULL) : s_dup("");
    f->data.path = f->path;
    Ebb__OptimizerSpec *o = &f->optimizer;
    double betas[2] = {0, 0};
    s_list(s_text(p, "optimizer.betas"), betas, 2);
    o->name = (char *)s_text(p, "optimizer.name");
    o->lr = s_value(p, "optimizer.lr");
    o->beta1 = betas[0];
    o->beta2 = betas[1];
    o->eps = s_value(p, "optimizer.eps");
    o->momentum = s_value(p, "optimizer.momentum");
    o->nesterov = strcmp(s_text(p, "optimizer.nesterov"), "true") == 0;
    o->clip_norm = s_value(p, "optimizer.clip_norm");
    o->schedule = (char *)s_text(p, "optimizer.schedule.kind");
    o->warmup_steps = s_int(p, "optimizer.schedule.warmup_steps");
    o->min_lr_ratio = s_value(p, "optimizer.schedule.min_lr_ratio");
    for (int i = 0; i < 2; i++) {
        ebb__optimizer_group__init(&f->groups[i]);
        f->group_refs[i] = &f->groups[i];
    }
    f->groups[0].lr_scale = s_value(p, "optimizer.groups.matrices.lr_scale");
    f->groups[0].weight_decay = s_value(p, "optimizer.weight_decay");
    f->groups[1].lr_scale = s_value(p, "optimizer.groups.vectors.lr_scale");
    f->groups[1].weight_decay = s_value(p, "optimizer.groups.vectors.weight_decay");
    o->n_groups = 2;
    o->groups = f->group_refs;
    f->consistency.mode = (char *)s_text(p, "consistency.mode");
    f->consistency.staleness_weight = (char *)s_text(p, "consistency.staleness_weight");
    f->consistency.staleness_max = s_int(p, "consistency.staleness_max");
    f->consistency.look_ahead = s_value(p, "consistency.look_ahead");
    f->consistency.inflight_max = (uint32_t)s_int(p, "consistency.inflight_max");
    f->autoscale.up_at = s_value(p, "autoscale.up_at");
    f->autoscale.down_at = s_value(p, "autoscale.down_at");
    f->autoscale.up_step = (uint32_t)s_int(p, "autoscale.up_step");
    f->autoscale.down_step = (uint32_t)s_int(p, "autoscale.down_step");
    f->autoscale.up_window_ms = (uint32_t)s_int(p, "autoscale.up_window");
    f->autoscale.down_window_ms = (uint32_t)s_int(p, "autoscale.down_window");
    Ebb__JobSpec *s = &f->spec;
    s->durability = (char *)s_text(p, "durability");
    s->shards = (uint32_t)s_int(p, "shards");
    s->workers_min = (uint32_t)s_int(p, "workers.min");
    s->workers_max = s_given(p, "workers.max") ? (uint32_t)s_int(p, "workers.max") : s->workers_min > 0 ? s->workers_min : 1;
    s->worker_threads = (uint32_t)s_int(p, "workers.threads");
    s->batch = (uint32_t)s_int(p, "batch");
    s->steps = s_int(p, "steps");
    s->passes = s_int(p, "passes");
    s->unit_steps = (uint32_t)s_int(p, "unit_steps");
    s->eval_every = s_int(p, "eval.every");
    s->eval_samples_max = (uint32_t)s_int(p, "eval.samples_max");
    s->snapshot_bytes = s_int(p, "checkpoint.journal_bytes");
    s->snapshot_ms = (uint32_t)s_int(p, "checkpoint.interval");
    s->lease_ms = (uint32_t)s_int(p, "lease");
    s->chunk_elems = (uint32_t)s_int(p, "chunk_elems");
}

static ebb_status s_open_data(parsed *p, filled *f)
{
    if (strcmp(f->data.format, "none") == 0) {
        f->data.train_samples = s_int(p, "data.samples");
    } else {
        char why[512];
        ebb_data_counts counts;
        ebb_status st = ebb_data_probe(f->path, f->data.format, f->model.context, f->data.val_fraction, &counts, why);
        if (st != EBB_OK) {
            fprintf(p->errors, "%s\n", why);
            return st;
        }
        f->data.train_samples = counts.train_samples;
        f->data.val_samples = counts.val_samples;
        f->data.bytes = counts.bytes;
        f->data.columns = counts.columns;
        if (strcmp(f->data.format, "csv") == 0 && counts.columns != f->sizes[0]) {
            s_error(p, s_line(p, "model.sizes"), "model.sizes: the input is %u wide, but the rows of %s have %u features and a label", f->sizes[0],
                    f->path, counts.columns);
            return EBB_CONFIG;
        }
    }
    if (f->spec.batch > f->data.train_samples) {
        s_error(p, s_line(p, "batch"), "batch: %u samples, but the data has only %llu to train on", f->spec.batch,
                (unsigned long long)f->data.train_samples);
        return EBB_CONFIG;
    }
    if (f->spec.passes > 0) {
        uint64_t per_pass = (f->data.train_samples - 1) / f->spec.batch + 1;
        if (__builtin_mul_overflow(per_pass, f->spec.passes, &f->spec.steps)) {
            s_error(p, s_line(p, "passes"), "passes: that is more steps than can be counted");
            return EBB_CONFIG;
        }
    }
    return EBB_OK;
}

static ebb_status s_parse(parsed *p)
{
    FILE *f = fopen(p->file, "rbe");
    if (f == NULL) {
        ebb_status st = errno == ENOENT || errno == ENOTDIR ? EBB_NOENT : EBB_IO;
        fprintf(p->errors, "%s: %s\n", p->file, strerror(errno));
        return st;
    }
    yaml_parser_t parser;
    yaml_document_t doc;
    EBB_ASSERT(yaml_parser_initialize(&parser));
    yaml_parser_set_input_file(&parser, f);
    if (!yaml_parser_load(&parser, &doc)) {
        s_error(p, parser.problem_mark.line + 1, "not valid YAML: %s%s%s", parser.problem ? parser.problem : "cannot be read",
                parser.context ? " " : "", parser.context ? parser.context : "");
    } else {
        const yaml_node_t *root = yaml_document_get_root_node(&doc);
        if (root == NULL || root->type != YAML_MAPPING_NODE) {
            s_error(p, root ? root->start_mark.line + 1 : 1, "expected a mapping of keys (name: ..., model: ...)");
        } else {
            s_walk(p, &doc, root, "", 0);
        }
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
    fclose(f);
    return EBB_OK;
}

static ebb_status s_load(const char *file, const char *data_override, bool open_data, Ebb__JobSpec **out, FILE *errors)
{
    parsed p = {.file = file, .errors = errors};
    filled f;
    f.path = NULL;
    ebb_status st = s_parse(&p);
    if (st == EBB_OK) {
        int in_keys = p.n_errors; // after an unknown key, a missing one is likely the same mistake
        for (size_t i = 0; i < N_KEYS; i++) {
            if (in_keys == 0 || p.text[i] != NULL) {
                s_check_key(&p, i);
            }
        }
        if (p.n_errors == 0) {
            s_check_job(&p);
        }
        st = p.n_errors > 0 ? EBB_CONFIG : EBB_OK;
    }
    if (st == EBB_OK) {
        s_fill(&p, data_override, &f);
        st = open_data ? s_open_data(&p, &f) : EBB_OK;
    }
    if (st == EBB_OK) {
        ProtobufCMessage *copy = NULL;
        st = ebb_pb_dup(&f.spec.base, &copy);
        *out = (Ebb__JobSpec *)copy;
    }
    for (size_t i = 0; i < N_KEYS; i++) {
        free(p.text[i]);
    }
    free(f.path);
    return st;
}

ebb_status ebb_jobspec_load(const char *file, const char *data_override, Ebb__JobSpec **out, FILE *errors)
{
    return s_load(file, data_override, true, out, errors);
}

ebb_status ebb_jobspec_read(const char *file, Ebb__JobSpec **out, FILE *errors)
{
    return s_load(file, NULL, false, out, errors);
}

void ebb_jobspec_free(Ebb__JobSpec **spec)
{
    if (*spec != NULL) {
        ebb_pb_free(&(*spec)->base);
        *spec = NULL;
    }
}

// ---- printing ----

// The shortest form that reads back as the same number.
static void s_put_real(FILE *out, const char *before, double v, const char *after)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v) {
            break;
        }
    }
    fprintf(out, "%s%s%s", before, text, after);
}

// As it is if YAML reads it as that text, else in double quotes.
static void s_put_text(FILE *out, const char *text)
{
    bool plain = isalnum((unsigned char)text[0]) || text[0] == '/' || text[0] == '.' || text[0] == '_';
    for (const char *c = text; *c != '\0'; c++) {
        plain = plain && (isalnum((unsigned char)*c) || strchr("/._-+@=~", *c) != NULL);
    }
    if (plain) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ') {
            fprintf(out, "\\x%02x", (unsigned)*c);
        } else {
            fprintf(out, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c);
        }
    }
    fputc('"', out);
}

void ebb_jobspec_print(const Ebb__JobSpec *s, FILE *out)
{
    const Ebb__ModelSpec *m = s->model;
    const Ebb__OptimizerSpec *o = s->optimizer;
    fprintf(out, "name: %s\nseed: %llu\nmodel:\n  family: %s\n", s->name, (unsigned long long)s->seed, m->family);
    if (strcmp(m->family, "gpt") == 0) {
        fprintf(out, "  layers: %u\n  width: %u\n  heads: %u\n  context: %u\n  vocab: %u\n", m->layers, m->width, m->heads, m->context, m->vocab);
    } else if (strcmp(m->family, "mlp") == 0) {
        fprintf(out, "  sizes: [");
        for (size_t i = 0; i < m->n_sizes; i++) {
            fprintf(out, "%s%u", i ? ", " : "", m->sizes[i]);
        }
        fprintf(out, "]\n");
    } else {
        fprintf(out, "  numel: %llu\n", (unsigned long long)m->numel);
    }
    fprintf(out, "data:\n");
    if (s->data->path[0] != '\0') {
        fprintf(out, "  path: ");
        s_put_text(out, s->data->path);
        fputc('\n', out);
    }
    fprintf(out, "  format: %s\n", s->data->format);
    s_put_real(out, "  val_fraction: ", s->data->val_fraction, "\n");
    s_put_real(out, "  scale: ", s->data->scale, "\n");
    if (strcmp(s->data->format, "none") == 0) {
        fprintf(out, "  samples: %llu\n", (unsigned long long)s->data->train_samples);
    }
    fprintf(out, "optimizer:\n  name: %s\n", o->name);
    s_put_real(out, "  lr: ", o->lr, "\n");
    s_put_real(out, "  betas: [", o->beta1, ", ");
    s_put_real(out, "", o->beta2, "]\n");
    s_put_real(out, "  eps: ", o->eps, "\n");
    s_put_real(out, "  momentum: ", o->momentum, "\n");
    fprintf(out, "  nesterov: %s\n", o->nesterov ? "true" : "false");
    s_put_real(out, "  weight_decay: ", o->groups[0]->weight_decay, "\n");
    s_put_real(out, "  clip_norm: ", o->clip_norm, "\n  groups:\n");
    s_put_real(out, "    matrices: {lr_scale: ", o->groups[0]->lr_scale, "}\n");
    s_put_real(out, "    vectors: {lr_scale: ", o->groups[1]->lr_scale, "");
    s_put_real(out, ", weight_decay: ", o->groups[1]->weight_decay, "}\n");
    fprintf(out, "  schedule: {kind: %s, warmup_steps: %llu", o->schedule, (unsigned long long)o->warmup_steps);
    s_put_real(out, ", min_lr_ratio: ", o->min_lr_ratio, "}\n");
    fprintf(out, "consistency:\n  mode: %s\n  staleness_weight: %s\n  staleness_max: %llu\n", s->consistency->mode, s->consistency->staleness_weight,
            (unsigned long long)s->consistency->staleness_max);
    s_put_real(out, "  look_ahead: ", s->consistency->look_ahead, "\n");
    fprintf(out, "  inflight_max: %u\n", s->consistency->inflight_max);
    fprintf(out, "durability: %s\nshards: %u\nworkers: {min: %u, max: %u, threads: %u}\n", s->durability, s->shards, s->workers_min, s->workers_max,
            s->worker_threads);
    const Ebb__AutoscaleSpec *a = s->autoscale;
    s_put_real(out, "autoscale: {up_at: ", a->up_at, ", ");
    s_put_real(out, "down_at: ", a->down_at, ", ");
    fprintf(out, "up_step: %u, down_step: %u, up_window: %ums, down_window: %ums}\nbatch: %u\n", a->up_step, a->down_step, a->up_window_ms,
            a->down_window_ms, s->batch);
    if (s->passes > 0) {
        fprintf(out, "passes: %llu # %llu steps\n", (unsigned long long)s->passes, (unsigned long long)s->steps);
    } else {
        fprintf(out, "steps: %llu\n", (unsigned long long)s->steps);
    }
    fprintf(out,
            "unit_steps: %u\neval: {every: %llu, samples_max: %u}\ncheckpoint: {journal_bytes: %llu, interval: %ums}\nlease: %ums\nchunk_elems: %u\n",
            s->unit_steps, (unsigned long long)s->eval_every, s->eval_samples_max, (unsigned long long)s->snapshot_bytes, s->snapshot_ms, s->lease_ms,
            s->chunk_elems);
}

void ebb_jobspec_print_doc(FILE *out)
{
    static const char *const types[] = {
        "text", "one of", "whole number", "number", "true/false", "list of numbers", "size (KB, KiB, MB, MiB, ...)", "time (ms, s, m, h)"};
    fprintf(out,
            "# The job file\n\nYAML. Printed from the schema table in `coordinator/jobspec.c` by `ebb-coordinator --print-config-doc`; "
            "`ebb run JOB.yaml --dry-run` prints a job with all defaults filled in.\nAn unknown key, a wrong type or a value out of range is an "
            "error that names file, line and what was expected.\n\n"
            "Data. `bytes`: any file; a sample is a window of model.context bytes and the byte after each. The last val_fraction of the file is held "
            "out: its samples begin at bytes - floor(bytes x val_fraction) + i x context. `csv`: no header, numbers, the last column is the class "
            "0, 1, ...; rows are taken in one fixed random order (`core/units.h`), whose last part is held out. `none`: only counted.\n\n| key | "
            "type | range | default | meaning |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < N_KEYS; i++) {
        const key_row *row = &s_keys[i];
        fprintf(out, "| `%s` | %s%s", row->path, types[row->type], row->choices ? " " : "");
        for (const char *c = row->choices; c != NULL && *c != '\0'; c++) {
            if (*c == '|') {
                fprintf(out, ", ");
            } else {
                fputc(*c, out);
            }
        }
        if (row->type == KEY_INT || row->type == KEY_REAL || row->type == KEY_LIST) {
            fprintf(out, " | %.15g to %.15g", row->min, row->max);
        } else if (row->type == KEY_DURATION) {
            fprintf(out, " | %gms to %gs", row->min, row->max / 1000);
        } else {
            fprintf(out, " | ");
        }
        fprintf(out, " | %s%s%s | %s |\n", row->fallback && *row->fallback ? "`" : "", row->fallback == NULL ? "required" : row->fallback,
                row->fallback && *row->fallback ? "`" : "", row->help);
    }
}
