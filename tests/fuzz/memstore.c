// core/kvstore.h in memory: what the state machines above it do can be run a hundred thousand times a second, crashed and reopened.
//
// Linked before ebb_core, its symbols take the place of RocksDB's. Same contract: atomic batches in order, byte-wise key order, an iterator that sees the
// store as it was when it was opened, a first failed write that latches. Copies handed out have exactly their size, so that AddressSanitizer sees a byte
// read too far.
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"

typedef struct blob {
    uint8_t *data;
    size_t len;
} blob;

typedef struct row {
    blob key, value;
} row;

typedef struct disk {
    char *dir;
    row *rows; // by key
    size_t n, cap;
    bool open;
    struct disk *next;
} disk;

typedef enum op_kind { OP_PUT, OP_DEL, OP_DEL_RANGE } op_kind;

typedef struct op {
    op_kind kind;
    blob key, value; // DEL_RANGE: value is the end
} op;

struct ebb_kvstore {
    disk *disk;
    bool failed, read_only;
};

struct ebb_kvbatch {
    op *ops;
    size_t n, cap;
};

struct ebb_kviter {
    row *rows; // a copy of what has the prefix, in order
    size_t n, at;
    blob prefix;
};

static disk *s_disks;
static enum { FAIL_NO, FAIL_LOST, FAIL_KEPT } s_fail;

// ---- pieces ----

static void *s_grow(void *p, size_t size)
{
    void *grown = realloc(p, size > 0 ? size : 1);
    EBB_ASSERT(grown != NULL);
    return grown;
}

static blob s_copy(const void *data, size_t len)
{
    blob b = {s_grow(NULL, len), len};
    if (len > 0) {
        memcpy(b.data, data, len);
    }
    return b;
}

static int s_compare(const blob *a, const void *b, size_t len)
{
    size_t n = a->len < len ? a->len : len;
    int order = n > 0 ? memcmp(a->data, b, n) : 0;
    return order != 0 ? order : a->len < len ? -1 : a->len > len;
}

// First row whose key is >= the given one.
static size_t s_lower(const disk *d, const void *key, size_t len)
{
    size_t lo = 0, hi = d->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s_compare(&d->rows[mid].key, key, len) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static bool s_is(const disk *d, size_t at, const void *key, size_t len)
{
    return at < d->n && s_compare(&d->rows[at].key, key, len) == 0;
}

static void s_row_fini(row *r)
{
    free(r->key.data);
    free(r->value.data);
}

static void s_remove(disk *d, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        s_row_fini(&d->rows[i]);
    }
    if (to > from) {
        memmove(&d->rows[from], &d->rows[to], (d->n - to) * sizeof(*d->rows));
        d->n -= to - from;
    }
}

static void s_put(disk *d, const void *key, size_t key_len, const void *value, size_t len)
{
    size_t at = s_lower(d, key, key_len);
    if (s_is(d, at, key, key_len)) {
        free(d->rows[at].value.data);
        d->rows[at].value = s_copy(value, len);
        return;
    }
    if (d->n == d->cap) {
        d->cap = d->cap > 0 ? 2 * d->cap : 16;
        d->rows = s_grow(d->rows, d->cap * sizeof(*d->rows));
    }
    memmove(&d->rows[at + 1], &d->rows[at], (d->n - at) * sizeof(*d->rows));
    d->rows[at] = (row){s_copy(key, key_len), s_copy(value, len)};
    d->n++;
}

// ---- faults ----

void memstore_fail_next(bool effect)
{
    s_fail = effect ? FAIL_KEPT : FAIL_LOST;
}

// EBB_OK: go on. *effect: the change takes place whatever the status.
static ebb_status s_write_begins(ebb_kvstore *kv, bool *effect)
{
    *effect = false;
    if (kv->failed) {
        return EBB_IO;
    }
    *effect = s_fail != FAIL_LOST;
    kv->failed = s_fail != FAIL_NO;
    s_fail = FAIL_NO;
    return kv->failed ? EBB_IO : EBB_OK;
}

void memstore_reset(void)
{
    s_fail = FAIL_NO;
    while (s_disks != NULL) {
        disk *d = s_disks;
        EBB_ASSERT(!d->open);
        s_disks = d->next;
        s_remove(d, 0, d->n);
        free(d->rows);
        free(d->dir);
        free(d);
    }
}

// ---- the store ----

ebb_status ebb_kvstore_open(const char *dir, const ebb_kvstore_options *options, ebb_kvstore **out, char *why)
{
    disk *d = s_disks;
    while (d != NULL && strcmp(d->dir, dir) != 0) {
        d = d->next;
    }
    if ((d == NULL && !options->create) || (d != NULL && d->open)) {
        if (why != NULL) {
            snprintf(why, 256, "cannot open the store %.100s: %s", dir, d == NULL ? "there is none" : "it is in use");
        }
        return d == NULL ? EBB_NOENT : EBB_TRYLATER;
    }
    if (d == NULL) {
        d = s_grow(NULL, sizeof(*d));
        *d = (disk){.dir = strdup(dir), .next = s_disks};
        EBB_ASSERT(d->dir != NULL);
        s_disks = d;
    }
    ebb_kvstore *kv = s_grow(NULL, sizeof(*kv));
    *kv = (ebb_kvstore){.disk = d, .read_only = options->read_only};
    d->open = true;
    *out = kv;
    return EBB_OK;
}

void ebb_kvstore_close(ebb_kvstore **kvp)
{
    if (*kvp != NULL) {
        (*kvp)->disk->open = false;
        free(*kvp);
        *kvp = NULL;
    }
}

ebb_status ebb_kvstore_get(ebb_kvstore *kv, const void *key, size_t key_len, uint8_t **value, size_t *len)
{
    size_t at = s_lower(kv->disk, key, key_len);
    if (!s_is(kv->disk, at, key, key_len)) {
        return EBB_NOENT;
    }
    blob copy = s_copy(kv->disk->rows[at].value.data, kv->disk->rows[at].value.len);
    *value = copy.data;
    *len = copy.len;
    return EBB_OK;
}

ebb_status ebb_kvstore_put(ebb_kvstore *kv, const void *key, size_t key_len, const void *value, size_t len, bool sync)
{
    (void)sync;
    EBB_ASSERT(!kv->read_only);
    bool effect;
    ebb_status st = s_write_begins(kv, &effect);
    if (effect) {
        s_put(kv->disk, key, key_len, value, len);
    }
    return st;
}

ebb_status ebb_kvstore_write(ebb_kvstore *kv, ebb_kvbatch *b, bool sync)
{
    (void)sync;
    EBB_ASSERT(!kv->read_only);
    bool effect;
    ebb_status st = s_write_begins(kv, &effect);
    for (size_t i = 0; effect && i < b->n; i++) {
        const op *o = &b->ops[i];
        size_t at = s_lower(kv->disk, o->key.data, o->key.len);
        if (o->kind == OP_PUT) {
            s_put(kv->disk, o->key.data, o->key.len, o->value.data, o->value.len);
        } else if (o->kind == OP_DEL_RANGE) {
            size_t end = s_lower(kv->disk, o->value.data, o->value.len);
            s_remove(kv->disk, at, end > at ? end : at);
        } else if (s_is(kv->disk, at, o->key.data, o->key.len)) {
            s_remove(kv->disk, at, at + 1);
        }
    }
    return st;
}

ebb_status ebb_kvstore_sync(ebb_kvstore *kv)
{
    return kv->failed ? EBB_IO : EBB_OK;
}

ebb_status ebb_kvstore_flush(ebb_kvstore *kv)
{
    return kv->failed ? EBB_IO : EBB_OK;
}

ebb_status ebb_kvstore_compact_range(ebb_kvstore *kv, const void *from, size_t from_len, const void *to, size_t to_len)
{
    (void)from, (void)from_len, (void)to, (void)to_len;
    return kv->failed ? EBB_IO : EBB_OK;
}

uint64_t ebb_kvstore_disk_bytes(ebb_kvstore *kv)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < kv->disk->n; i++) {
        sum += kv->disk->rows[i].key.len + kv->disk->rows[i].value.len;
    }
    return sum;
}

// ---- batches ----

ebb_status ebb_kvbatch_new(ebb_kvbatch **out)
{
    *out = s_grow(NULL, sizeof(**out));
    **out = (ebb_kvbatch){0};
    return EBB_OK;
}

void ebb_kvbatch_clear(ebb_kvbatch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        free(b->ops[i].key.data);
        free(b->ops[i].value.data);
    }
    b->n = 0;
}

void ebb_kvbatch_free(ebb_kvbatch **bp)
{
    if (*bp != NULL) {
        ebb_kvbatch_clear(*bp);
        free((*bp)->ops);
        free(*bp);
        *bp = NULL;
    }
}

static void s_add(ebb_kvbatch *b, op o)
{
    if (b->n == b->cap) {
        b->cap = b->cap > 0 ? 2 * b->cap : 16;
        b->ops = s_grow(b->ops, b->cap * sizeof(*b->ops));
    }
    b->ops[b->n++] = o;
}

void ebb_kvbatch_put(ebb_kvbatch *b, const void *key, size_t key_len, const void *value, size_t len)
{
    s_add(b, (op){OP_PUT, s_copy(key, key_len), s_copy(value, len)});
}

void ebb_kvbatch_putv(ebb_kvbatch *b, const void *key, size_t key_len, const void *const *pieces, const size_t *lens, size_t n)
{
    blob value = {0};
    for (size_t i = 0; i < n; i++) {
        value.data = s_grow(value.data, value.len + lens[i]);
        if (lens[i] > 0) {
            memcpy(value.data + value.len, pieces[i], lens[i]);
        }
        value.len += lens[i];
    }
    s_add(b, (op){OP_PUT, s_copy(key, key_len), value});
}

void ebb_kvbatch_del(ebb_kvbatch *b, const void *key, size_t key_len)
{
    s_add(b, (op){.kind = OP_DEL, .key = s_copy(key, key_len)});
}

void ebb_kvbatch_del_range(ebb_kvbatch *b, const void *from, size_t from_len, const void *to, size_t to_len)
{
    s_add(b, (op){OP_DEL_RANGE, s_copy(from, from_len), s_copy(to, to_len)});
}

size_t ebb_kvbatch_count(const ebb_kvbatch *b)
{
    return b->n;
}

// ---- iterators ----

ebb_status ebb_kviter_open(ebb_kvstore *kv, const void *prefix, size_t prefix_len, ebb_kviter **out)
{
    const disk *d = kv->disk;
    ebb_kviter *it = s_grow(NULL, sizeof(*it));
    *it = (ebb_kviter){.rows = s_grow(NULL, d->n * sizeof(row)), .prefix = s_copy(prefix, prefix_len)};
    for (size_t i = s_lower(d, prefix, prefix_len); i < d->n; i++) {
        const row *r = &d->rows[i];
        if (r->key.len < prefix_len || (prefix_len > 0 && memcmp(r->key.data, prefix, prefix_len) != 0)) {
            break;
        }
        it->rows[it->n++] = (row){s_copy(r->key.data, r->key.len), s_copy(r->value.data, r->value.len)};
    }
    *out = it;
    return EBB_OK;
}

bool ebb_kviter_next(ebb_kviter *it, const uint8_t **key, size_t *key_len, const uint8_t **value, size_t *len)
{
    if (it->at == it->n) {
        return false;
    }
    const row *r = &it->rows[it->at++];
    *key = r->key.data;
    *key_len = r->key.len;
    *value = r->value.data;
    *len = r->value.len;
    return true;
}

ebb_status ebb_kviter_seek(ebb_kviter *it, const void *key, size_t key_len)
{
    it->at = 0;
    while (it->at < it->n && s_compare(&it->rows[it->at].key, key, key_len) < 0) {
        it->at++;
    }
    return EBB_OK;
}

ebb_status ebb_kviter_status(ebb_kviter *it)
{
    (void)it;
    return EBB_OK;
}

void ebb_kviter_close(ebb_kviter **itp)
{
    ebb_kviter *it = *itp;
    if (it != NULL) {
        *itp = NULL;
        for (size_t i = 0; i < it->n; i++) {
            s_row_fini(&it->rows[i]);
        }
        free(it->rows);
        free(it->prefix.data);
        free(it);
    }
}

// ---- looking at a folder: nothing here does ----

bool ebb_kvstore_is_read_only(const ebb_kvstore *kv)
{
    (void)kv;
    return false;
}

ebb_status ebb_kvstore_verify(ebb_kvstore *kv, ebb_kvproblem_fn *fn, void *arg, ebb_kvstore_facts *facts)
{
    (void)kv, (void)fn, (void)arg;
    *facts = (ebb_kvstore_facts){0};
    return EBB_OK;
}

ebb_status ebb_kvstore_is_free(const char *dir, char *why)
{
    (void)dir, (void)why;
    return EBB_OK;
}
