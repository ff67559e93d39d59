#include "coordinator/statestore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/bytes.h"

#define FORMAT_VERSION 2u
#define RETIRED_HEAD 40u

struct ebb_statestore {
    ebb_kvstore *kv;
};

// Key: letter and up to two big-endian numbers, so that iteration goes in their order.
static size_t s_key(uint8_t *key, char letter, int numbers, uint64_t a, uint64_t b)
{
    key[0] = (uint8_t)letter;
    ebb_put_be64(key + 1, a);
    ebb_put_be64(key + 9, b);
    return 1 + 8 * (size_t)numbers;
}

// There is no format row: a new store gets one, anything else is not ours.
static ebb_status s_begin_format(ebb_statestore *s, const char *dir, char *why)
{
    uint8_t row[8];
    const uint8_t *key = NULL, *any = NULL;
    size_t key_len = 0, any_len = 0;
    ebb_kviter *it = NULL;
    EBB_TRY(ebb_kviter_open(s->kv, "", 0, &it));
    bool empty = !ebb_kviter_next(it, &key, &key_len, &any, &any_len);
    ebb_status st = ebb_kviter_status(it);
    ebb_kviter_close(&it);
    EBB_TRY(st);
    if (!empty) {
        snprintf(why, 512, "%.300s holds the data of another program", dir);
        return EBB_CONFIG;
    }
    if (ebb_kvstore_is_read_only(s->kv)) {
        return EBB_OK;
    }
    memcpy(row, "EBBC", 4);
    ebb_put_le32(row + 4, FORMAT_VERSION);
    return ebb_kvstore_put(s->kv, "F", 1, row, sizeof(row), true);
}

static ebb_status s_check_format(ebb_statestore *s, const char *dir, uint32_t *format, char *why)
{
    uint8_t *value = NULL;
    size_t len = 0;
    *format = 0;
    ebb_status st = ebb_kvstore_get(s->kv, "F", 1, &value, &len);
    if (st == EBB_NOENT) {
        st = s_begin_format(s, dir, why);
        if (st != EBB_OK && why[0] == '\0') {
            snprintf(why, 512, "%.300s cannot be read or written: %s", dir, ebb_status_str(st));
        }
        return st;
    }
    if (st != EBB_OK) {
        snprintf(why, 512, "%.300s: the format row cannot be read: %s", dir, ebb_status_str(st));
        return st;
    }
    bool ours = len == 8 && memcmp(value, "EBBC", 4) == 0;
    *format = ours ? ebb_get_le32(value + 4) : 0;
    free(value);
    if (!ours) {
        snprintf(why, 512, "%.300s is not a coordinator's folder", dir);
        return EBB_CONFIG;
    }
    if (*format > FORMAT_VERSION) {
        snprintf(why, 512, "%.300s has format %u, written by a newer version; this one reads up to %u", dir, (unsigned)*format, FORMAT_VERSION);
        return EBB_NEWER;
    }
    if (*format < FORMAT_VERSION) {
        snprintf(why, 512,
                 "%.300s has format %u of an older version; this one reads %u: finish the run with the version that began it, or start a new run",
                 dir, (unsigned)*format, FORMAT_VERSION);
        return EBB_CONFIG;
    }
    return EBB_OK;
}

static ebb_status s_open(const char *dir, const ebb_kvstore_options *options, uint32_t *format, ebb_statestore **out, char *why)
{
    ebb_statestore *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return EBB_NOMEM;
    }
    ebb_status st = ebb_kvstore_open(dir, options, &s->kv, why);
    if (st != EBB_OK) {
        free(s);
        return st;
    }
    st = s_check_format(s, dir, format, why);
    if (st == EBB_OK && !options->read_only) {
        st = ebb_kvstore_sync(s->kv); // what a killed process wrote may be in the page cache only, and we are about to act on it
    }
    if (st != EBB_OK) {
        ebb_statestore_close(&s);
        return st;
    }
    *out = s;
    return EBB_OK;
}

ebb_status ebb_statestore_open(const char *dir, ebb_statestore **out, char *why)
{
    uint32_t format;
    const ebb_kvstore_options options = {.create = true, .memtable_bytes = 8u << 20, .wal_bytes_max = 32u << 20};
    return s_open(dir, &options, &format, out, why);
}

ebb_status ebb_statestore_open_read(const char *dir, uint32_t *format, ebb_statestore **out, char *why)
{
    const ebb_kvstore_options options = {.read_only = true};
    return s_open(dir, &options, format, out, why);
}

ebb_kvstore *ebb_statestore_kv(ebb_statestore *s)
{
    return s->kv;
}

void ebb_statestore_close(ebb_statestore **sp)
{
    if (*sp != NULL) {
        ebb_kvstore_close(&(*sp)->kv);
        free(*sp);
        *sp = NULL;
    }
}

// value = head bytes + packed message
static ebb_status s_put_message(ebb_statestore *s, const uint8_t *key, size_t key_len, const uint8_t *head, size_t head_len,
                                const ProtobufCMessage *msg, bool sync)
{
    uint8_t *bytes = NULL;
    size_t len = 0;
    EBB_TRY(ebb_pb_pack(msg, &bytes, &len));
    const void *pieces[2] = {head, bytes};
    size_t lens[2] = {head_len, len};
    ebb_kvbatch *batch = NULL;
    ebb_status st = ebb_kvbatch_new(&batch);
    if (st == EBB_OK) {
        ebb_kvbatch_putv(batch, key, key_len, head_len ? pieces : pieces + 1, head_len ? lens : lens + 1, head_len ? 2 : 1);
        st = ebb_kvstore_write(s->kv, batch, sync);
        ebb_kvbatch_free(&batch);
    }
    free(bytes);
    return st;
}

ebb_status ebb_statestore_put_job(ebb_statestore *s, uint64_t job, uint64_t created_ms, const Ebb__JobSpec *spec)
{
    uint8_t head[16];
    ebb_put_le64(head, job);
    ebb_put_le64(head + 8, created_ms);
    return s_put_message(s, (const uint8_t *)"J", 1, head, sizeof(head), &spec->base, true);
}

ebb_status ebb_statestore_get_job(ebb_statestore *s, uint64_t *job, uint64_t *created_ms, Ebb__JobSpec **spec)
{
    uint8_t *value = NULL;
    size_t len = 0;
    EBB_TRY(ebb_kvstore_get(s->kv, "J", 1, &value, &len));
    ProtobufCMessage *msg = NULL;
    ebb_status st = len < 16 ? EBB_CORRUPT : ebb_pb_unpack(&ebb__job_spec__descriptor, value + 16, len - 16, &msg);
    if (st == EBB_OK) {
        *job = ebb_get_le64(value);
        *created_ms = ebb_get_le64(value + 8);
        *spec = (Ebb__JobSpec *)msg;
    }
    free(value);
    return st == EBB_PROTO ? EBB_CORRUPT : st;
}

ebb_status ebb_statestore_put_placement(ebb_statestore *s, const uint8_t *manifest, size_t len, uint64_t epoch, const ebb_chunk_range *ranges,
                                        uint32_t n)
{
    size_t row_len = 8 + 8 * (size_t)n;
    uint8_t *row = malloc(row_len);
    ebb_kvbatch *batch = NULL;
    if (row == NULL || ebb_kvbatch_new(&batch) != EBB_OK) {
        free(row);
        return EBB_NOMEM;
    }
    ebb_put_le64(row, epoch);
    for (uint32_t i = 0; i < n; i++) {
        ebb_put_le32(row + 8 + 8 * i, ranges[i].first);
        ebb_put_le32(row + 12 + 8 * i, ranges[i].count);
    }
    ebb_kvbatch_put(batch, "M", 1, manifest, len);
    ebb_kvbatch_put(batch, "P", 1, row, row_len);
    ebb_status st = ebb_kvstore_write(s->kv, batch, true);
    ebb_kvbatch_free(&batch);
    free(row);
    return st;
}

ebb_status ebb_statestore_get_placement(ebb_statestore *s, uint8_t **manifest, size_t *len, uint64_t *epoch, ebb_chunk_range *ranges, uint32_t n)
{
    uint8_t *row = NULL;
    size_t row_len = 0;
    EBB_TRY(ebb_kvstore_get(s->kv, "P", 1, &row, &row_len));
    ebb_status st = row_len == 8 + 8 * (size_t)n ? ebb_kvstore_get(s->kv, "M", 1, manifest, len) : EBB_CORRUPT;
    if (st == EBB_OK) {
        *epoch = ebb_get_le64(row);
        for (uint32_t i = 0; i < n; i++) {
            ranges[i].first = ebb_get_le32(row + 8 + 8 * i);
            ranges[i].count = ebb_get_le32(row + 12 + 8 * i);
        }
    }
    free(row);
    return st == EBB_NOENT ? EBB_CORRUPT : st;
}

ebb_status ebb_statestore_put_unit(ebb_statestore *s, const ebb_lease_row *row)
{
    uint8_t key[17];
    Ebb__LeaseRow msg = EBB__LEASE_ROW__INIT;
    msg.lease = row->lease;
    msg.worker = (char *)row->worker;
    msg.incarnation = row->incarnation;
    msg.stream = row->stream;
    msg.seq_first = row->seq_first;
    msg.attempt = row->attempt;
    msg.last_lease = row->last_lease;
    return s_put_message(s, key, s_key(key, 'U', 1, row->stream, 0), NULL, 0, &msg.base, true);
}

ebb_status ebb_statestore_retire(ebb_statestore *s, const ebb_ledger *l, const uint64_t *streams, size_t n)
{
    size_t row_len = RETIRED_HEAD + 8 * l->n_retired;
    uint8_t *row = malloc(row_len);
    ebb_kvbatch *batch = NULL;
    if (row == NULL || ebb_kvbatch_new(&batch) != EBB_OK) {
        free(row);
        return EBB_NOMEM;
    }
    ebb_put_le64(row, l->retired_below);
    ebb_put_le64(row + 8, l->steps_retired);
    ebb_put_le64(row + 16, l->next_lease);
    ebb_put_le64(row + 24, l->repeated);
    ebb_put_le64(row + 32, l->n_retired);
    for (size_t i = 0; i < l->n_retired; i++) {
        ebb_put_le64(row + RETIRED_HEAD + 8 * i, l->retired[i]);
    }
    ebb_kvbatch_put(batch, "R", 1, row, row_len);
    for (size_t i = 0; i < n; i++) {
        uint8_t key[17];
        ebb_kvbatch_del(batch, key, s_key(key, 'U', 1, streams[i], 0));
    }
    ebb_status st = ebb_kvstore_write(s->kv, batch, true);
    ebb_kvbatch_free(&batch);
    free(row);
    return st;
}

static ebb_status s_load_retired(ebb_statestore *s, ebb_ledger *l)
{
    uint8_t *value = NULL;
    size_t len = 0;
    ebb_status st = ebb_kvstore_get(s->kv, "R", 1, &value, &len);
    if (st != EBB_OK) {
        return st == EBB_NOENT ? EBB_OK : st;
    }
    uint64_t n = len >= RETIRED_HEAD ? ebb_get_le64(value + 32) : 0;
    if (len < RETIRED_HEAD || n != (len - RETIRED_HEAD) / 8 || len % 8 != 0) {
        free(value);
        return EBB_CORRUPT;
    }
    uint64_t *sparse = malloc(n * sizeof(*sparse) + 1);
    for (uint64_t i = 0; sparse != NULL && i < n; i++) {
        sparse[i] = ebb_get_le64(value + RETIRED_HEAD + 8 * i);
    }
    ebb_ledger_totals totals = {ebb_get_le64(value), ebb_get_le64(value + 8), ebb_get_le64(value + 16), ebb_get_le64(value + 24)};
    st = sparse == NULL ? EBB_NOMEM : ebb_ledger_restore_retired(l, &totals, sparse, n);
    free(sparse);
    free(value);
    return st;
}

ebb_status ebb_statestore_load_ledger(ebb_statestore *s, ebb_ledger *l, uint64_t now_ms)
{
    EBB_TRY(s_load_retired(s, l));
    ebb_kviter *it = NULL;
    EBB_TRY(ebb_kviter_open(s->kv, "U", 1, &it));
    const uint8_t *key, *value;
    size_t key_len, len;
    ebb_status st = EBB_OK;
    while (st == EBB_OK && ebb_kviter_next(it, &key, &key_len, &value, &len)) {
        ProtobufCMessage *msg = NULL;
        st = ebb_pb_unpack(&ebb__lease_row__descriptor, value, len, &msg);
        if (st == EBB_OK) {
            const Ebb__LeaseRow *m = (const Ebb__LeaseRow *)msg;
            ebb_lease_row row = {.stream = m->stream,
                                 .lease = m->lease,
                                 .last_lease = m->last_lease,
                                 .incarnation = m->incarnation,
                                 .seq_first = m->seq_first,
                                 .attempt = m->attempt};
            snprintf(row.worker, sizeof(row.worker), "%s", m->worker);
            st = key_len == 9 && ebb_get_be64(key + 1) == m->stream ? ebb_ledger_restore_unit(l, &row, now_ms) : EBB_CORRUPT;
        }
        ebb_pb_free(msg);
    }
    st = st == EBB_OK ? ebb_kviter_status(it) : st;
    ebb_kviter_close(&it);
    return st;
}

ebb_status ebb_statestore_put_skip(ebb_statestore *s, uint64_t stream, uint64_t seq, const char *reason)
{
    uint8_t key[17];
    return ebb_kvstore_put(s->kv, key, s_key(key, 'K', 2, stream, seq), reason, strlen(reason), true);
}

ebb_status ebb_statestore_load_skips(ebb_statestore *s, ebb_statestore_skip_fn *fn, void *arg)
{
    ebb_kviter *it = NULL;
    EBB_TRY(ebb_kviter_open(s->kv, "K", 1, &it));
    const uint8_t *key, *value;
    size_t key_len, len;
    while (ebb_kviter_next(it, &key, &key_len, &value, &len)) {
        if (key_len == 17) {
            fn(arg, ebb_get_be64(key + 1), ebb_get_be64(key + 9));
        }
    }
    ebb_status st = ebb_kviter_status(it);
    ebb_kviter_close(&it);
    return st;
}

ebb_status ebb_statestore_put_eval(ebb_statestore *s, const ebb_eval_point *point)
{
    uint8_t key[17];
    Ebb__EvalPoint msg = EBB__EVAL_POINT__INIT;
    msg.step = point->step;
    msg.loss = point->loss;
    msg.accuracy = point->accuracy;
    msg.version = point->version;
    msg.time_s = point->time_s;
    return s_put_message(s, key, s_key(key, 'V', 1, point->id, 0), NULL, 0, &msg.base, true);
}

ebb_status ebb_statestore_load_evals(ebb_statestore *s, ebb_progress *p, bool *final_done)
{
    ebb_kviter *it = NULL;
    EBB_TRY(ebb_kviter_open(s->kv, "V", 1, &it));
    const uint8_t *key, *value;
    size_t key_len, len;
    ebb_status st = EBB_OK;
    while (st == EBB_OK && ebb_kviter_next(it, &key, &key_len, &value, &len)) {
        ProtobufCMessage *msg = NULL;
        st = ebb_pb_unpack(&ebb__eval_point__descriptor, value, len, &msg);
        if (st == EBB_OK && key_len == 9) {
            const Ebb__EvalPoint *m = (const Ebb__EvalPoint *)msg;
            ebb_eval_point point = {ebb_get_be64(key + 1), m->step, m->version, m->loss, m->accuracy, m->time_s};
            ebb_progress_eval(p, &point);
            *final_done = *final_done || point.id == UINT64_MAX;
        }
        ebb_pb_free(msg);
    }
    st = st == EBB_OK ? ebb_kviter_status(it) : st;
    ebb_kviter_close(&it);
    return st;
}

ebb_status ebb_statestore_put_progress(ebb_statestore *s, const ebb_progress *p, double elapsed_s)
{
    Ebb__LossPoint points[EBB_PROGRESS_POINTS], *list[EBB_PROGRESS_POINTS];
    Ebb__ProgressRow row = EBB__PROGRESS_ROW__INIT;
    uint8_t key[17];
    for (size_t i = 0; i < p->n_points; i++) {
        list[i] = &points[i];
        ebb__loss_point__init(list[i]);
        list[i]->step = p->points[i].step;
        list[i]->loss = p->points[i].loss;
        list[i]->time_s = p->points[i].time_s;
    }
    row.elapsed_s = elapsed_s;
    row.spacing = p->spacing;
    row.smoothed = p->smoothed;
    row.first = p->first;
    row.first_count = p->first_count;
    row.n_losses = p->n_points;
    row.losses = list;
    return s_put_message(s, key, s_key(key, 'L', 0, 0, 0), NULL, 0, &row.base, false);
}

ebb_status ebb_statestore_load_progress(ebb_statestore *s, ebb_progress *p, double *elapsed_s)
{
    uint8_t *value = NULL;
    size_t len = 0;
    ProtobufCMessage *msg = NULL;
    ebb_status st = ebb_kvstore_get(s->kv, "L", 1, &value, &len);
    if (st != EBB_OK) {
        return st == EBB_NOENT ? EBB_OK : st;
    }
    st = ebb_pb_unpack(&ebb__progress_row__descriptor, value, len, &msg);
    free(value);
    EBB_TRY(st);
    const Ebb__ProgressRow *row = (const Ebb__ProgressRow *)msg;
    *elapsed_s = row->elapsed_s;
    p->spacing = row->spacing > 0 ? row->spacing : 1;
    p->smoothed = row->smoothed;
    p->first = row->first;
    p->first_count = row->first_count;
    p->has_loss = row->n_losses > 0;
    p->n_points = row->n_losses < EBB_PROGRESS_POINTS ? row->n_losses : EBB_PROGRESS_POINTS;
    for (size_t i = 0; i < p->n_points; i++) {
        p->points[i] = (ebb_loss_point){row->losses[i]->step, row->losses[i]->loss, row->losses[i]->time_s};
    }
    ebb_pb_free(msg);
    return EBB_OK;
}

ebb_status ebb_statestore_put_state(ebb_statestore *s, const char *state)
{
    return ebb_kvstore_put(s->kv, "S", 1, state, strlen(state), true);
}

ebb_status ebb_statestore_get_state(ebb_statestore *s, char *out, size_t size)
{
    uint8_t *value = NULL;
    size_t len = 0;
    EBB_TRY(ebb_kvstore_get(s->kv, "S", 1, &value, &len));
    snprintf(out, size, "%.*s", (int)len, (const char *)value);
    free(value);
    return EBB_OK;
}

ebb_status ebb_statestore_put_wanted(ebb_statestore *s, uint32_t wanted)
{
    uint8_t row[4];
    ebb_put_le32(row, wanted);
    return ebb_kvstore_put(s->kv, "W", 1, row, sizeof(row), true);
}

ebb_status ebb_statestore_get_wanted(ebb_statestore *s, uint32_t *wanted)
{
    uint8_t *value = NULL;
    size_t len = 0;
    *wanted = 0;
    ebb_status st = ebb_kvstore_get(s->kv, "W", 1, &value, &len);
    if (st != EBB_OK) {
        return st == EBB_NOENT ? EBB_OK : st;
    }
    if (len == 4) {
        *wanted = ebb_get_le32(value);
    }
    free(value);
    return len == 4 ? EBB_OK : EBB_CORRUPT;
}

ebb_status ebb_statestore_put_event(ebb_statestore *s, const Ebb__Event *event)
{
    uint8_t key[17], old[17];
    EBB_TRY(s_put_message(s, key, s_key(key, 'E', 1, event->id, 0), NULL, 0, &event->base, false));
    if (event->id > EBB_EVENTS_KEPT) {
        ebb_kvbatch *batch = NULL;
        EBB_TRY(ebb_kvbatch_new(&batch));
        ebb_kvbatch_del(batch, old, s_key(old, 'E', 1, event->id - EBB_EVENTS_KEPT, 0));
        ebb_status st = ebb_kvstore_write(s->kv, batch, false);
        ebb_kvbatch_free(&batch);
        return st;
    }
    return EBB_OK;
}

ebb_status ebb_statestore_load_events(ebb_statestore *s, uint64_t after, size_t limit, ebb_statestore_event_fn *fn, void *arg)
{
    ebb_kviter *it = NULL;
    EBB_TRY(ebb_kviter_open(s->kv, "E", 1, &it));
    uint8_t from[17];
    ebb_status st = ebb_kviter_seek(it, from, s_key(from, 'E', 1, after + 1, 0));
    const uint8_t *key, *value;
    size_t key_len, len;
    while (st == EBB_OK && limit > 0 && ebb_kviter_next(it, &key, &key_len, &value, &len)) {
        ProtobufCMessage *msg = NULL;
        st = ebb_pb_unpack(&ebb__event__descriptor, value, len, &msg);
        if (st == EBB_OK) {
            fn(arg, (Ebb__Event *)msg);
            limit--;
        }
    }
    st = st == EBB_OK ? ebb_kviter_status(it) : st;
    ebb_kviter_close(&it);
    return st;
}

static void s_last(void *arg, Ebb__Event *event)
{
    *(uint64_t *)arg = event->id;
    ebb_pb_free(&event->base);
}

ebb_status ebb_statestore_last_event(ebb_statestore *s, uint64_t *id)
{
    *id = 0;
    return ebb_statestore_load_events(s, 0, SIZE_MAX, s_last, id);
}
