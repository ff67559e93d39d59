// One row of a store, printed for a person (logfmt, or a list of "name value" lines) or for a program (one JSON object per line).
//
// Numbers that JSON readers would round (above 2^53 - 1) and values that are not finite are printed as strings; identifiers are printed by _hex, always as strings.
#ifndef EBB_CORE_ROWLINE_H
#define EBB_CORE_ROWLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum ebb_rowline_style { EBB_ROWLINE_LOGFMT, EBB_ROWLINE_JSON, EBB_ROWLINE_LIST } ebb_rowline_style;

typedef struct ebb_rowline {
    FILE *out;
    ebb_rowline_style style;
    void *json; // of the row under way
} ebb_rowline;

void ebb_rowline_init(ebb_rowline *l, FILE *out, ebb_rowline_style style);
// begin, then fields in the order they shall have, then end. kind: the row's kind, as the first field ("row" in JSON).
void ebb_rowline_begin(ebb_rowline *l, const char *kind);
void ebb_rowline_u64(ebb_rowline *l, const char *name, uint64_t v);
void ebb_rowline_hex(ebb_rowline *l, const char *name, uint64_t v, int digits);
void ebb_rowline_real(ebb_rowline *l, const char *name, double v);
void ebb_rowline_text(ebb_rowline *l, const char *name, const char *text); // any bytes: what is not printable ASCII is escaped
void ebb_rowline_flag(ebb_rowline *l, const char *name, bool v);
// The first n of float32 values at any address.
void ebb_rowline_floats(ebb_rowline *l, const char *name, const uint8_t *data, size_t n);
void ebb_rowline_end(ebb_rowline *l);

// What a person wants to know of a vector: sum of squares' root, largest magnitude, values that are not finite (not counted in the others).
typedef struct ebb_vector_facts {
    double norm, max;
    uint64_t not_finite;
} ebb_vector_facts;
ebb_vector_facts ebb_vector_look(const uint8_t *data, size_t n); // n float32 at any address

#endif
