#include "coordinator/staterows.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/bytes.h"

#define JOB_HEAD 16u
#define RETIRED_HEAD 40u

typedef struct raw {
    const uint8_t *key, *value;
    size_t key_len, len;
} raw;

typedef struct shape {
    char letter;
    int numbers; // in the key
    const char *name;
    const ProtobufCMessageDescriptor *message; // NULL: not a message
} shape;

static const shape s_shapes[] = {
    {'F', 0, "format row", NULL},
    {'J', 0, "job row", &ebb__job_spec__descriptor},
    {'M', 0, "manifest row", NULL},
    {'P', 0, "placement row", NULL},
    {'W', 0, "wanted row", NULL},
    {'S', 0, "state row", NULL},
    {'R', 0, "retired row", NULL},
    {'U', 1, "unit", &ebb__lease_row__descriptor},
    {'K', 2, "skip", NULL},
    {'V', 1, "evaluation", &ebb__eval_point__descriptor},
    {'L', 0, "progress row", &ebb__progress_row__descriptor},
    {'E', 1, "event", &ebb__event__descriptor},
};

static const shape *s_shape_of(const raw *r)
{
    for (size_t i = 0; i < sizeof(s_shapes) / sizeof(s_shapes[0]); i++) {
        if (r->key_len == 1 + 8 * (size_t)s_shapes[i].numbers && r->key[0] == (uint8_t)s_shapes[i].letter) {
            return &s_shapes[i];
        }
    }
    return NULL;
}

static void s_name(const raw *r, const shape *s, ebb_staterow *row)
{
    if (s == NULL) {
        int n = snprintf(row->name, sizeof(row->name), "key ");
        for (size_t i = 0; i < r->key_len && i < 24; i++) {
            n += snprintf(row->name + n, sizeof(row->name) - (size_t)n, "%02x", r->key[i]);
        }
        row->bad = "no row of a coordinator has such a key";
        return;
    }
    row->a = s->numbers > 0 ? ebb_get_be64(r->key + 1) : 0;
    row->b = s->numbers > 1 ? ebb_get_be64(r->key + 9) : 0;
    if (s->numbers == 0) {
        snprintf(row->name, sizeof(row->name), "%s", s->name);
    } else if (s->numbers == 1) {
        snprintf(row->name, sizeof(row->name), "%s %" PRIu64, s->name, row->a);
    } else {
        snprintf(row->name, sizeof(row->name), "%s of step %" PRIu64 " of unit %" PRIu64, s->name, row->b, row->a);
    }
}

static void s_text(const raw *r, ebb_staterow *row)
{
    size_t n = r->len < sizeof(row->text) - 1 ? r->len : sizeof(row->text) - 1;
    memcpy(row->text, r->value, n);
    row->text[n] = '\0';
}

static void s_retired(const raw *r, ebb_staterow *row)
{
    if (r->len < RETIRED_HEAD || r->len % 8 != 0 || ebb_get_le64(r->value + 32) != (r->len - RETIRED_HEAD) / 8) {
        row->bad = "its length is not that of the list it holds";
        return;
    }
    row->retired.below = ebb_get_le64(r->value);
    row->retired.steps = ebb_get_le64(r->value + 8);
    row->retired.next_lease = ebb_get_le64(r->value + 16);
    row->retired.repeated = ebb_get_le64(r->value + 24);
    row->retired.n = ebb_get_le64(r->value + 32);
    row->retired.list = r->value + RETIRED_HEAD;
}

static void s_fixed(const raw *r, ebb_staterow *row)
{
    switch (row->letter) {
    case 'F':
        if (r->len != 8 || memcmp(r->value, "EBBC", 4) != 0) {
            row->bad = "it is not a coordinator's";
        } else {
            row->number = ebb_get_le32(r->value + 4);
        }
        break;
    case 'W':
        if (r->len != 4) {
            row->bad = "it is not 4 bytes long";
        } else {
            row->number = ebb_get_le32(r->value);
        }
        break;
    case 'P':
        if (r->len < 8 || r->len % 8 != 0) {
            row->bad = "its length is not that of an epoch and ranges";
        } else {
            row->epoch = ebb_get_le64(r->value);
            row->number = (uint32_t)(r->len / 8 - 1);
            row->ranges = r->value + 8;
        }
        break;
    case 'R':
        s_retired(r, row);
        break;
    case 'S':
    case 'K':
        s_text(r, row);
        break;
    default:
        break;
    }
}

static void s_visit(const raw *r, ebb_staterow_fn *fn, void *arg)
{
    const shape *s = s_shape_of(r);
    ebb_staterow row = {.letter = s != NULL ? s->letter : '?', .bytes = r->len};
    ProtobufCMessage *msg = NULL;
    ebb_manifest *manifest = NULL;
    s_name(r, s, &row);
    size_t head = row.letter == 'J' ? JOB_HEAD : 0;
    if (s != NULL && s->message != NULL) {
        if (r->len < head || ebb_pb_unpack(s->message, r->value + head, r->len - head, &msg) != EBB_OK) {
            row.bad = "it is no such message";
        } else if (head > 0) {
            row.job = ebb_get_le64(r->value);
            row.created_ms = ebb_get_le64(r->value + 8);
        }
    } else if (row.letter == 'M') {
        row.bad = ebb_manifest_unpack(r->value, r->len, &manifest) != EBB_OK ? "it is no manifest" : NULL;
    } else if (s != NULL) {
        s_fixed(r, &row);
    }
    row.message = msg;
    row.manifest = manifest;
    fn(arg, &row);
    ebb_manifest_free(&manifest);
    ebb_pb_free(msg);
}

ebb_status ebb_staterows(ebb_kvstore *kv, const char *letters, ebb_staterow_fn *fn, void *arg, char *why)
{
    for (const char *c = letters; *c != '\0'; c++) {
        ebb_kviter *it = NULL;
        raw r;
        EBB_TRY(ebb_kviter_open(kv, c, *c == '?' ? 0 : 1, &it));
        while (ebb_kviter_next(it, &r.key, &r.key_len, &r.value, &r.len)) {
            if ((*c == '?') == (s_shape_of(&r) == NULL)) {
                s_visit(&r, fn, arg);
            }
        }
        ebb_status st = ebb_kviter_status(it);
        ebb_kviter_close(&it);
        if (st != EBB_OK) {
            snprintf(why, 256, "the store cannot give all rows whose keys begin with %c: %s", *c, ebb_status_str(st));
            return st;
        }
    }
    return EBB_OK;
}
