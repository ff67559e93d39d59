#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/bytes.h"
#include "tests/sim/disk.h"
#include "tests/sim/mutate.h"

#define KEY_MAX 24

typedef struct blob {
    uint32_t refs;
    uint32_t len;
    uint8_t data[];
} blob;

typedef struct name {
    uint8_t len;
    uint8_t at[KEY_MAX - 1];
} name;

typedef struct row {
    name key;
    blob *value;
} row;

// Rows in key order.
typedef struct image {
    row *at;
    size_t n, cap;
} image;

typedef enum change_kind { CHANGE_PUT, CHANGE_DEL, CHANGE_DEL_RANGE } change_kind;

typedef struct change {
    change_kind kind;
    name key, to;
    blob *value;
} change;

struct ebb_kvbatch {
    change *at;
    size_t n, cap;
};

struct sim_disk {
    bool of_shard;
    image now, durable;
    ebb_kvbatch **log; // batches between durable and now
    size_t n_log, cap_log;
    uint64_t base;     // batches ever made durable
    ebb_kvbatch *held; // a mutation keeps this one back
};

struct ebb_kvstore {
    sim_disk *disk;
    disk_hook *hook;
    void *arg;
    bool failed;
};

struct ebb_kviter {
    ebb_kvstore *kv;
    row *at; // a picture of the rows with the prefix
    size_t n, next;
    ebb_status status;
};

static struct mount {
    char dir[64];
    sim_disk *disk;
    disk_hook *hook;
    void *arg;
} s_mounts[SIM_MOUNTS];
static size_t s_n_mounts;

// ---- values and keys ----

static blob *s_blob(size_t len)
{
    blob *b = malloc(sizeof(*b) + len);
    EBB_ASSERT(b != NULL);
    b->refs = 1;
    b->len = (uint32_t)len;
    return b;
}

static blob *s_ref(blob *b)
{
    if (b != NULL) {
        b->refs++;
    }
    return b;
}

static void s_unref(blob *b)
{
    if (b != NULL && --b->refs == 0) {
        free(b);
    }
}

static name s_name(const void *key, size_t len)
{
    name n = {.len = (uint8_t)len};
    EBB_ASSERT(len < KEY_MAX);
    if (len > 0) {
        memcpy(n.at, key, len);
    }
    return n;
}

static int s_compare(const name *a, const name *b)
{
    size_t least = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->at, b->at, least);
    return c != 0 ? c : (int)a->len - (int)b->len;
}

// ---- images ----

static size_t s_lower(const image *im, const name *key)
{
    size_t lo = 0, hi = im->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s_compare(&im->at[mid].key, key) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static const row *s_find(const image *im, const name *key)
{
    size_t i = s_lower(im, key);
    return i < im->n && s_compare(&im->at[i].key, key) == 0 ? &im->at[i] : NULL;
}

static void s_put(image *im, const name *key, blob *value)
{
    size_t i = s_lower(im, key);
    if (i < im->n && s_compare(&im->at[i].key, key) == 0) {
        s_unref(im->at[i].value);
        im->at[i].value = s_ref(value);
        return;
    }
    if (im->n == im->cap) {
        im->cap = im->cap == 0 ? 64 : 2 * im->cap;
        im->at = realloc(im->at, im->cap * sizeof(*im->at));
        EBB_ASSERT(im->at != NULL);
    }
    memmove(&im->at[i + 1], &im->at[i], (im->n - i) * sizeof(*im->at));
    im->at[i] = (row){.key = *key, .value = s_ref(value)};
    im->n++;
}

static void s_erase(image *im, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        s_unref(im->at[i].value);
    }
    if (to > from) {
        memmove(&im->at[from], &im->at[to], (im->n - to) * sizeof(*im->at));
        im->n -= to - from;
    }
}

static void s_apply(image *im, const change *c)
{
    size_t from = s_lower(im, &c->key);
    switch (c->kind) {
    case CHANGE_PUT:
        s_put(im, &c->key, c->value);
        break;
    case CHANGE_DEL:
        s_erase(im, from, from + (from < im->n && s_compare(&im->at[from].key, &c->key) == 0));
        break;
    case CHANGE_DEL_RANGE:
        s_erase(im, from, s_lower(im, &c->to));
        break;
    }
}

static void s_apply_batch(image *im, const ebb_kvbatch *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        s_apply(im, &b->at[i]);
    }
}

static void s_image_fini(image *im)
{
    s_erase(im, 0, im->n);
    free(im->at);
    memset(im, 0, sizeof(*im));
}

static void s_image_copy(const image *from, image *to)
{
    to->at = malloc((from->n + 1) * sizeof(*to->at));
    EBB_ASSERT(to->at != NULL);
    to->n = from->n;
    to->cap = from->n + 1;
    for (size_t i = 0; i < from->n; i++) {
        to->at[i] = (row){.key = from->at[i].key, .value = s_ref(from->at[i].value)};
    }
}

// ---- batches ----

static change *s_add(ebb_kvbatch *b)
{
    if (b->n == b->cap) {
        b->cap = b->cap == 0 ? 8 : 2 * b->cap;
        b->at = realloc(b->at, b->cap * sizeof(*b->at));
        EBB_ASSERT(b->at != NULL);
    }
    change *c = &b->at[b->n++];
    memset(c, 0, sizeof(*c));
    return c;
}

ebb_status ebb_kvbatch_new(ebb_kvbatch **out)
{
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? EBB_OK : EBB_NOMEM;
}

void ebb_kvbatch_clear(ebb_kvbatch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        s_unref(b->at[i].value);
    }
    b->n = 0;
}

void ebb_kvbatch_free(ebb_kvbatch **bp)
{
    if (*bp != NULL) {
        ebb_kvbatch_clear(*bp);
        free((*bp)->at);
        free(*bp);
        *bp = NULL;
    }
}

void ebb_kvbatch_put(ebb_kvbatch *b, const void *key, size_t key_len, const void *value, size_t len)
{
    ebb_kvbatch_putv(b, key, key_len, &value, &len, 1);
}

void ebb_kvbatch_putv(ebb_kvbatch *b, const void *key, size_t key_len, const void *const *pieces, const size_t *lens, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        len += lens[i];
    }
    change *c = s_add(b);
    c->kind = CHANGE_PUT;
    c->key = s_name(key, key_len);
    c->value = s_blob(len);
    len = 0;
    for (size_t i = 0; i < n; i++) {
        if (lens[i] > 0) {
            memcpy(c->value->data + len, pieces[i], lens[i]);
        }
        len += lens[i];
    }
}

void ebb_kvbatch_del(ebb_kvbatch *b, const void *key, size_t key_len)
{
    change *c = s_add(b);
    c->kind = CHANGE_DEL;
    c->key = s_name(key, key_len);
}

void ebb_kvbatch_del_range(ebb_kvbatch *b, const void *from, size_t from_len, const void *to, size_t to_len)
{
    change *c = s_add(b);
    c->kind = CHANGE_DEL_RANGE;
    c->key = s_name(from, from_len);
    c->to = s_name(to, to_len);
}

size_t ebb_kvbatch_count(const ebb_kvbatch *b)
{
    return b->n;
}

static ebb_kvbatch *s_batch_copy(const ebb_kvbatch *from, bool (*wanted)(const change *c))
{
    ebb_kvbatch *b = NULL;
    ebb_status st = ebb_kvbatch_new(&b);
    EBB_ASSERT(st == EBB_OK);
    for (size_t i = 0; i < from->n; i++) {
        if (wanted == NULL || wanted(&from->at[i])) {
            change *c = s_add(b);
            *c = from->at[i];
            s_ref(c->value);
        }
    }
    return b;
}

// ---- the disk ----

sim_disk *sim_disk_new(bool of_shard)
{
    sim_disk *d = calloc(1, sizeof(*d));
    EBB_ASSERT(d != NULL);
    d->of_shard = of_shard;
    return d;
}

static void s_log_drop(sim_disk *d, size_t from)
{
    for (size_t i = from; i < d->n_log; i++) {
        ebb_kvbatch_free(&d->log[i]);
    }
    d->n_log = from;
}

void sim_disk_free(sim_disk **dp)
{
    sim_disk *d = *dp;
    if (d != NULL) {
        *dp = NULL;
        ebb_kvbatch_free(&d->held);
        s_log_drop(d, 0);
        free(d->log);
        s_image_fini(&d->now);
        s_image_fini(&d->durable);
        free(d);
    }
}

static void s_log_add(sim_disk *d, ebb_kvbatch *owned)
{
    if (d->n_log == d->cap_log) {
        d->cap_log = d->cap_log == 0 ? 64 : 2 * d->cap_log;
        d->log = realloc(d->log, d->cap_log * sizeof(*d->log));
        EBB_ASSERT(d->log != NULL);
    }
    s_apply_batch(&d->now, owned, owned->n);
    d->log[d->n_log++] = owned;
}

static void s_make_durable(sim_disk *d, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        s_apply_batch(&d->durable, d->log[i], d->log[i]->n);
        ebb_kvbatch_free(&d->log[i]);
    }
    if (n > 0) {
        memmove(d->log, d->log + n, (d->n_log - n) * sizeof(*d->log));
    }
    d->n_log -= n;
    d->base += n;
}

// Durable rows and n batches of the log are what is left.
static void s_fall_back(sim_disk *d, size_t n)
{
    image fresh;
    s_image_copy(&d->durable, &fresh);
    s_log_drop(d, n);
    for (size_t i = 0; i < n; i++) {
        s_apply_batch(&fresh, d->log[i], d->log[i]->n);
    }
    s_image_fini(&d->now);
    d->now = fresh;
}

void sim_disk_killed(sim_disk *d)
{
    ebb_kvbatch_free(&d->held);
    if (mutate_now == MUTATE_FORGETS_LAST_BATCH && d->of_shard && d->n_log > 0) {
        s_fall_back(d, d->n_log - 1);
    }
}

void sim_disk_power_loss(sim_disk *d, size_t keep)
{
    EBB_ASSERT(keep <= d->n_log);
    ebb_kvbatch_free(&d->held);
    const ebb_kvbatch *torn = mutate_now == MUTATE_TORN_BATCH && d->of_shard && keep < d->n_log ? d->log[keep] : NULL;
    ebb_kvbatch *half = NULL;
    if (torn != NULL) {
        half = s_batch_copy(torn, NULL);
        for (size_t i = half->n / 2; i < half->n; i++) {
            s_unref(half->at[i].value);
        }
        half->n /= 2;
    }
    s_make_durable(d, keep);
    s_fall_back(d, 0);
    if (half != NULL) {
        s_log_add(d, half);
    }
}

size_t sim_disk_logged(const sim_disk *d)
{
    return d->n_log;
}

uint64_t sim_disk_position(const sim_disk *d)
{
    return d->base + d->n_log;
}

bool sim_disk_durable(const sim_disk *d, const void *key, size_t key_len, const uint8_t **value, size_t *len)
{
    name n = s_name(key, key_len);
    const row *r = s_find(&d->durable, &n);
    if (r != NULL) {
        *value = r->value->data;
        *len = r->value->len;
    }
    return r != NULL;
}

size_t sim_disk_count(const sim_disk *d, char letter)
{
    name from = s_name(&letter, 1);
    size_t i = s_lower(&d->now, &from), n = 0;
    while (i + n < d->now.n && d->now.at[i + n].key.len > 0 && d->now.at[i + n].key.at[0] == (uint8_t)letter) {
        n++;
    }
    return n;
}

void sim_disk_mount(const char *dir, sim_disk *disk, disk_hook *hook, void *arg)
{
    size_t i = 0;
    while (i < s_n_mounts && strcmp(s_mounts[i].dir, dir) != 0) {
        i++;
    }
    EBB_ASSERT(i < SIM_MOUNTS);
    s_n_mounts = i == s_n_mounts ? i + 1 : s_n_mounts;
    snprintf(s_mounts[i].dir, sizeof(s_mounts[i].dir), "%s", dir);
    s_mounts[i].disk = disk;
    s_mounts[i].hook = hook;
    s_mounts[i].arg = arg;
}

void sim_disk_unmount_all(void)
{
    s_n_mounts = 0;
}

// ---- core/kvstore.h ----

static void s_release_held(sim_disk *d)
{
    if (d->held != NULL) {
        ebb_kvbatch *b = d->held;
        d->held = NULL;
        s_log_add(d, b);
    }
}

static disk_fault s_ask(ebb_kvstore *kv, disk_op op)
{
    disk_fault f = kv->hook != NULL ? kv->hook(kv->arg, op) : DISK_FINE;
    if (f == DISK_FINE) {
        s_release_held(kv->disk);
    }
    return f;
}

ebb_status ebb_kvstore_open(const char *dir, const ebb_kvstore_options *options, ebb_kvstore **out, char *why)
{
    (void)options;
    for (size_t i = 0; i < s_n_mounts; i++) {
        if (strcmp(s_mounts[i].dir, dir) == 0) {
            ebb_kvstore *kv = calloc(1, sizeof(*kv));
            EBB_ASSERT(kv != NULL);
            *kv = (ebb_kvstore){.disk = s_mounts[i].disk, .hook = s_mounts[i].hook, .arg = s_mounts[i].arg};
            if (s_ask(kv, DISK_READ) != DISK_FINE) {
                free(kv);
                if (why != NULL) {
                    snprintf(why, 256, "cannot open the store %.100s: simulated", dir);
                }
                return EBB_IO;
            }
            *out = kv;
            return EBB_OK;
        }
    }
    EBB_PANIC("no simulated disk is mounted there");
}

void ebb_kvstore_close(ebb_kvstore **kv)
{
    free(*kv);
    *kv = NULL;
}

ebb_status ebb_kvstore_get(ebb_kvstore *kv, const void *key, size_t key_len, uint8_t **value, size_t *len)
{
    if (s_ask(kv, DISK_READ) != DISK_FINE) {
        return EBB_IO;
    }
    name n = s_name(key, key_len);
    const row *r = s_find(&kv->disk->now, &n);
    if (r == NULL) {
        return EBB_NOENT;
    }
    *value = malloc(r->value->len + 1);
    EBB_ASSERT(*value != NULL);
    memcpy(*value, r->value->data, r->value->len);
    *len = r->value->len;
    return EBB_OK;
}

static bool s_is_record(const change *c)
{
    return c->kind == CHANGE_PUT && c->key.at[0] == 'J' && c->key.len > 1;
}

static bool s_is_watermark(const change *c)
{
    return c->kind == CHANGE_PUT && c->key.at[0] == 'W';
}

static bool s_is_no_watermark(const change *c)
{
    return !s_is_watermark(c);
}

static bool s_is_no_retired(const change *c)
{
    return !(c->kind == CHANGE_PUT && c->key.at[0] == 'R');
}

static bool s_is_no_lease(const change *c)
{
    return !(c->kind == CHANGE_PUT && c->key.at[0] == 'U');
}

// True: a planted bug wrote the batch in its own way.
static bool s_write_mutated(sim_disk *d, const ebb_kvbatch *b)
{
    bool journal = false;
    for (size_t i = 0; i < b->n; i++) {
        journal |= s_is_record(&b->at[i]);
    }
    if (mutate_now == MUTATE_ACK_BEFORE_COMMIT && d->of_shard && journal) {
        d->held = s_batch_copy(b, NULL);
    } else if (mutate_now == MUTATE_WATERMARK_OUTSIDE_BATCH && d->of_shard && journal) {
        s_log_add(d, s_batch_copy(b, s_is_no_watermark));
        d->held = s_batch_copy(b, s_is_watermark);
    } else if (mutate_now == MUTATE_RETIRED_SET_LOST && d->of_shard) {
        s_log_add(d, s_batch_copy(b, s_is_no_retired));
    } else if (mutate_now == MUTATE_LEASE_NOT_STORED && !d->of_shard) {
        s_log_add(d, s_batch_copy(b, s_is_no_lease));
    } else {
        return false;
    }
    return true;
}

static void s_sync_all(sim_disk *d)
{
    if (mutate_now != MUTATE_SYNC_LIES || !d->of_shard) {
        s_make_durable(d, d->n_log);
    }
}

static ebb_status s_failed(ebb_kvstore *kv)
{
    kv->failed = true;
    return EBB_IO;
}

ebb_status ebb_kvstore_write(ebb_kvstore *kv, ebb_kvbatch *b, bool sync)
{
    disk_fault f = kv->failed ? DISK_FAILS_BEFORE : s_ask(kv, DISK_WRITE);
    if (f == DISK_FAILS_BEFORE) {
        return s_failed(kv);
    }
    if (!s_write_mutated(kv->disk, b)) {
        s_log_add(kv->disk, s_batch_copy(b, NULL));
    }
    if (f == DISK_FAILS_AFTER) {
        return s_failed(kv); // in the log; whether it is on disk as well is for the next power loss to say
    }
    if (sync) {
        f = kv->hook != NULL ? kv->hook(kv->arg, DISK_SYNC) : DISK_FINE; // what a planted bug holds back stays held
        if (f == DISK_FAILS_BEFORE) {
            return s_failed(kv);
        }
        s_sync_all(kv->disk);
    }
    return f == DISK_FINE ? EBB_OK : s_failed(kv);
}

ebb_status ebb_kvstore_put(ebb_kvstore *kv, const void *key, size_t key_len, const void *value, size_t len, bool sync)
{
    ebb_kvbatch *b = NULL;
    EBB_TRY(ebb_kvbatch_new(&b));
    ebb_kvbatch_put(b, key, key_len, value, len);
    ebb_status st = ebb_kvstore_write(kv, b, sync);
    ebb_kvbatch_free(&b);
    return st;
}

ebb_status ebb_kvstore_sync(ebb_kvstore *kv)
{
    return sim_kvstore_sync_upto(kv, UINT64_MAX);
}

ebb_status sim_kvstore_sync_upto(ebb_kvstore *kv, uint64_t position)
{
    disk_fault f = kv->failed ? DISK_FAILS_BEFORE : s_ask(kv, DISK_SYNC);
    if (f == DISK_FAILS_BEFORE) {
        return s_failed(kv);
    }
    sim_disk *d = kv->disk;
    if (position >= d->base + d->n_log) {
        s_sync_all(d);
    } else if (position > d->base && mutate_now != MUTATE_SYNC_LIES) {
        s_make_durable(d, position - d->base);
    }
    return f == DISK_FINE ? EBB_OK : s_failed(kv);
}

sim_disk *sim_kvstore_disk(ebb_kvstore *kv)
{
    return kv->disk;
}

ebb_status ebb_kvstore_flush(ebb_kvstore *kv)
{
    return ebb_kvstore_sync(kv);
}

ebb_status ebb_kvstore_compact_range(ebb_kvstore *kv, const void *from, size_t from_len, const void *to, size_t to_len)
{
    (void)from;
    (void)from_len;
    (void)to;
    (void)to_len;
    return kv->failed ? EBB_IO : EBB_OK;
}

uint64_t ebb_kvstore_disk_bytes(ebb_kvstore *kv)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < kv->disk->now.n; i++) {
        sum += kv->disk->now.at[i].key.len + kv->disk->now.at[i].value->len;
    }
    return sum;
}

ebb_status ebb_kviter_open(ebb_kvstore *kv, const void *prefix, size_t prefix_len, ebb_kviter **out)
{
    ebb_kviter *it = calloc(1, sizeof(*it));
    EBB_ASSERT(it != NULL);
    it->kv = kv;
    if (s_ask(kv, DISK_READ) != DISK_FINE) {
        it->status = EBB_IO; // as RocksDB: the iterator is there, and empty
        *out = it;
        return EBB_OK;
    }
    name from = s_name(prefix, prefix_len);
    const image *im = &kv->disk->now;
    size_t first = s_lower(im, &from), n = 0;
    while (first + n < im->n && im->at[first + n].key.len >= prefix_len && memcmp(im->at[first + n].key.at, from.at, prefix_len) == 0) {
        n++;
    }
    if (mutate_now == MUTATE_RECOVERY_SKIPS_NEWEST && kv->disk->of_shard && prefix_len == 1 && from.at[0] == 'J' && n > 0) {
        uint64_t newest = ebb_get_be64(im->at[first + n - 1].key.at + 1);
        while (n > 0 && ebb_get_be64(im->at[first + n - 1].key.at + 1) == newest) {
            n--;
        }
    }
    it->at = malloc((n + 1) * sizeof(*it->at));
    EBB_ASSERT(it->at != NULL);
    for (size_t i = 0; i < n; i++) {
        it->at[i] = (row){.key = im->at[first + i].key, .value = s_ref(im->at[first + i].value)};
    }
    it->n = n;
    *out = it;
    return EBB_OK;
}

bool ebb_kviter_next(ebb_kviter *it, const uint8_t **key, size_t *key_len, const uint8_t **value, size_t *len)
{
    if (it->status != EBB_OK || it->next >= it->n) {
        return false;
    }
    if (s_ask(it->kv, DISK_READ) != DISK_FINE) {
        it->status = EBB_IO;
        return false;
    }
    const row *r = &it->at[it->next++];
    *key = r->key.at;
    *key_len = r->key.len;
    *value = r->value->data;
    *len = r->value->len;
    return true;
}

ebb_status ebb_kviter_seek(ebb_kviter *it, const void *key, size_t key_len)
{
    name n = s_name(key, key_len);
    image im = {.at = it->at, .n = it->n};
    it->next = s_lower(&im, &n);
    return it->status;
}

ebb_status ebb_kviter_status(ebb_kviter *it)
{
    return it->status;
}

void ebb_kviter_close(ebb_kviter **itp)
{
    ebb_kviter *it = *itp;
    if (it != NULL) {
        *itp = NULL;
        for (size_t i = 0; i < it->n; i++) {
            s_unref(it->at[i].value);
        }
        free(it->at);
        free(it);
    }
}

// ---- looking at a folder: the simulated programs serve only ----

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
