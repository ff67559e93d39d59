#include "core/rowline.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <jansson.h>

#include "core/assert.h"

#define EXACT_MAX ((1ull << 53) - 1)
#define LIST_WIDTH 16

void ebb_rowline_init(ebb_rowline *l, FILE *out, ebb_rowline_style style)
{
    *l = (ebb_rowline){.out = out, .style = style};
}

void ebb_rowline_begin(ebb_rowline *l, const char *kind)
{
    if (l->style == EBB_ROWLINE_JSON) {
        l->json = json_object();
        EBB_ASSERT(l->json != NULL);
        ebb_rowline_text(l, "row", kind);
    } else if (l->style == EBB_ROWLINE_LOGFMT) {
        fputs(kind, l->out);
    }
}

static void s_json(ebb_rowline *l, const char *name, json_t *v)
{
    EBB_ASSERT(v != NULL && json_object_set_new(l->json, name, v) == 0);
}

// Writes "name=" or "name     ".
static void s_name(ebb_rowline *l, const char *name)
{
    if (l->style == EBB_ROWLINE_LIST) {
        fprintf(l->out, "%-*s ", LIST_WIDTH, name);
    } else {
        fprintf(l->out, " %s=", name);
    }
}

static void s_after(ebb_rowline *l)
{
    if (l->style == EBB_ROWLINE_LIST) {
        fputc('\n', l->out);
    }
}

void ebb_rowline_u64(ebb_rowline *l, const char *name, uint64_t v)
{
    if (l->style == EBB_ROWLINE_JSON) {
        s_json(l, name, v <= EXACT_MAX ? json_integer((json_int_t)v) : json_sprintf("%" PRIu64, v));
        return;
    }
    s_name(l, name);
    fprintf(l->out, "%" PRIu64, v);
    s_after(l);
}

void ebb_rowline_hex(ebb_rowline *l, const char *name, uint64_t v, int digits)
{
    char text[20];
    snprintf(text, sizeof(text), "%0*" PRIx64, digits, v);
    ebb_rowline_text(l, name, text);
}

static json_t *s_real(double v)
{
    return isfinite(v) ? json_real(v) : json_string(isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
}

void ebb_rowline_real(ebb_rowline *l, const char *name, double v)
{
    if (l->style == EBB_ROWLINE_JSON) {
        s_json(l, name, s_real(v));
        return;
    }
    s_name(l, name);
    fprintf(l->out, "%.9g", v);
    s_after(l);
}

static bool s_is_bare(const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if (*c <= ' ' || *c > '~' || *c == '"' || *c == '=' || *c == '\\') {
            return false;
        }
    }
    return text[0] != '\0';
}

// What is not printable ASCII becomes \xNN, in JSON too: the bytes need not be UTF-8.
static void s_escape(const char *text, char *out, size_t size, bool quotes)
{
    size_t n = 0;
    for (const char *c = text; *c != '\0' && n + 5 < size; c++) {
        unsigned char u = (unsigned char)*c;
        if (u < ' ' || u > '~') {
            n += (size_t)snprintf(out + n, size - n, "\\x%02x", u);
        } else {
            if (quotes && (u == '"' || u == '\\')) {
                out[n++] = '\\';
            }
            out[n++] = (char)u;
        }
    }
    out[n] = '\0';
}

void ebb_rowline_text(ebb_rowline *l, const char *name, const char *text)
{
    char escaped[4096];
    if (l->style == EBB_ROWLINE_JSON) {
        s_escape(text, escaped, sizeof(escaped), false);
        s_json(l, name, json_string(escaped));
        return;
    }
    s_escape(text, escaped, sizeof(escaped), l->style == EBB_ROWLINE_LOGFMT);
    s_name(l, name);
    fprintf(l->out, l->style == EBB_ROWLINE_LIST || s_is_bare(text) ? "%s" : "\"%s\"", escaped);
    s_after(l);
}

void ebb_rowline_flag(ebb_rowline *l, const char *name, bool v)
{
    if (l->style == EBB_ROWLINE_JSON) {
        s_json(l, name, json_boolean(v));
    } else {
        ebb_rowline_text(l, name, v ? "true" : "false");
    }
}

static float s_float(const uint8_t *data, size_t i)
{
    float v;
    memcpy(&v, data + 4 * i, sizeof(v));
    return v;
}

void ebb_rowline_floats(ebb_rowline *l, const char *name, const uint8_t *data, size_t n)
{
    if (l->style == EBB_ROWLINE_JSON) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++) {
            EBB_ASSERT(json_array_append_new(list, s_real(s_float(data, i))) == 0);
        }
        s_json(l, name, list);
        return;
    }
    s_name(l, name);
    for (size_t i = 0; i < n; i++) {
        fprintf(l->out, "%s%.9g", i > 0 ? "," : "", s_float(data, i)); // nine digits give the same float32 back
    }
    s_after(l);
}

void ebb_rowline_end(ebb_rowline *l)
{
    if (l->style == EBB_ROWLINE_JSON) {
        json_dumpf(l->json, l->out, JSON_COMPACT | JSON_ENSURE_ASCII);
        json_decref(l->json);
        l->json = NULL;
    }
    if (l->style != EBB_ROWLINE_LIST) {
        fputc('\n', l->out);
    }
}

ebb_vector_facts ebb_vector_look(const uint8_t *data, size_t n)
{
    ebb_vector_facts f = {0};
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double v = s_float(data, i);
        if (isfinite(v)) {
            sum += v * v;
            f.max = fabs(v) > f.max ? fabs(v) : f.max;
        } else {
            f.not_finite++;
        }
    }
    f.norm = sqrt(sum);
    return f;
}
