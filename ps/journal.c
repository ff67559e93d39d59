#include "ps/journal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/crc32c.h"
#include "core/manifest.h"
#include "ps/row.h"

#define HEAD_MAGIC 0x314a4245u // "EBJ1"
#define PART_MAGIC 0x504a4245u // "EBJP"
#define HEAD_BYTES 72
#define PART_HEADER_BYTES 32
#define KEY_BYTES 13

static void s_key(uint8_t key[KEY_BYTES], uint64_t lsn, uint32_t part)
{
    key[0] = 'J';
    ebb_put_be64(key + 1, lsn);
    ebb_put_be32(key + 9, part);
}

ebb_status ebb_journal_init(ebb_journal *j, ebb_kvstore *kv)
{
    memset(j, 0, sizeof(*j));
    j->kv = kv;
    return ebb_kvbatch_new(&j->batch);
}

void ebb_journal_fini(ebb_journal *j)
{
    ebb_kvbatch_free(&j->batch);
}

static void s_head_write(const ebb_record *r, uint8_t h[HEAD_BYTES])
{
    uint32_t weight;
    memcpy(&weight, &r->weight, sizeof(weight));
    memset(h, 0, HEAD_BYTES);
    ebb_put_le32(h, HEAD_MAGIC);
    h[4] = (uint8_t)r->kind;
    ebb_put_le64(h + 8, r->job);
    ebb_put_le64(h + 16, r->lsn);
    ebb_put_le64(h + 24, r->version);
    ebb_put_le64(h + 32, r->stream);
    ebb_put_le64(h + 40, r->seq);
    ebb_put_le32(h + 48, r->attempt);
    ebb_put_le32(h + 52, r->n_parts);
    ebb_put_le64(h + 56, r->staleness);
    ebb_put_le32(h + 64, weight);
    ebb_put_le32(h + 68, ebb_crc32c(0, h, 68));
}

ebb_status ebb_journal_head_read(const uint8_t *h, size_t len, uint64_t lsn, ebb_record *r)
{
    if (len != HEAD_BYTES || ebb_get_le32(h) != HEAD_MAGIC || ebb_get_le32(h + 68) != ebb_crc32c(0, h, 68)) {
        return EBB_CORRUPT;
    }
    uint32_t weight = ebb_get_le32(h + 64);
    *r = (ebb_record){.kind = (ebb_record_kind)h[4],
                      .job = ebb_get_le64(h + 8),
                      .lsn = ebb_get_le64(h + 16),
                      .version = ebb_get_le64(h + 24),
                      .stream = ebb_get_le64(h + 32),
                      .seq = ebb_get_le64(h + 40),
                      .attempt = ebb_get_le32(h + 48),
                      .n_parts = ebb_get_le32(h + 52),
                      .staleness = ebb_get_le64(h + 56)};
    memcpy(&r->weight, &weight, sizeof(weight));
    bool known = r->kind == EBB_RECORD_PUSH || (r->kind == EBB_RECORD_SKIP && r->n_parts == 0);
    return known && r->lsn == lsn && r->n_parts <= EBB_PARTS_MAX ? EBB_OK : EBB_CORRUPT;
}

void ebb_journal_add(ebb_journal *j, const ebb_record *r, const ebb_part *parts)
{
    uint8_t key[KEY_BYTES], head[HEAD_BYTES], ph[PART_HEADER_BYTES];
    EBB_ASSERT(r->lsn > 0 && (r->n_parts == 0 || parts != NULL));
    s_head_write(r, head);
    s_key(key, r->lsn, 0);
    ebb_kvbatch_put(j->batch, key, sizeof(key), head, sizeof(head));
    j->batch_bytes += HEAD_BYTES;
    for (uint32_t i = 0; i < r->n_parts; i++) {
        const ebb_part *p = &parts[i];
        memset(ph, 0, sizeof(ph));
        ebb_put_le32(ph, PART_MAGIC);
        ebb_put_le32(ph + 4, p->chunk);
        ebb_put_le32(ph + 8, (uint32_t)p->numel);
        ebb_put_le32(ph + 12, p->crc32c); // verified on receipt, so it needs no second look
        ebb_put_le64(ph + 16, r->lsn);
        ph[24] = p->codec;
        ph[25] = p->dtype;
        ebb_put_le32(ph + 28, ebb_crc32c(0, ph, 28));
        const void *pieces[2] = {ph, p->buf->data};
        size_t lens[2] = {sizeof(ph), p->buf->len};
        s_key(key, r->lsn, i + 1);
        ebb_kvbatch_putv(j->batch, key, sizeof(key), pieces, lens, 2);
        j->batch_bytes += sizeof(ph) + p->buf->len;
    }
    ebb_journal_put_watermark(j->batch, r->stream, r->seq, r->lsn);
}

ebb_kvbatch *ebb_journal_batch(ebb_journal *j)
{
    return j->batch;
}

ebb_status ebb_journal_commit(ebb_journal *j, bool sync)
{
    if (ebb_kvbatch_count(j->batch) == 0) {
        return EBB_OK;
    }
    ebb_status st = ebb_kvstore_write(j->kv, j->batch, sync);
    ebb_kvbatch_clear(j->batch);
    j->bytes += j->batch_bytes;
    j->batch_bytes = 0;
    return st;
}

ebb_status ebb_journal_part_read(const uint8_t *v, size_t len, uint64_t lsn, ebb_replay_part *out)
{
    if (len < PART_HEADER_BYTES || ebb_get_le32(v) != PART_MAGIC || ebb_get_le32(v + 28) != ebb_crc32c(0, v, 28) || ebb_get_le64(v + 16) != lsn) {
        return EBB_CORRUPT;
    }
    *out = (ebb_replay_part){.chunk = ebb_get_le32(v + 4),
                             .numel = ebb_get_le32(v + 8),
                             .data = v + PART_HEADER_BYTES,
                             .codec = v[24],
                             .dtype = v[25],
                             .crc32c = ebb_get_le32(v + 12)};
    size_t bytes = len - PART_HEADER_BYTES;
    if (v[24] != EBB_CODEC_RAW || v[25] != EBB_DTYPE_F32 || bytes != (size_t)out->numel * sizeof(float) ||
        ebb_crc32c(0, out->data, bytes) != out->crc32c) {
        return EBB_CORRUPT;
    }
    return EBB_OK;
}

static ebb_status s_corrupt(char *why, uint64_t lsn, const char *what)
{
    snprintf(why, 256, "journal record %llu: %s", (unsigned long long)lsn, what);
    return EBB_CORRUPT;
}

ebb_status ebb_journal_replay(ebb_journal *j, uint64_t after, ebb_replay_fn *fn, void *arg, uint64_t *last, char *why)
{
    ebb_kviter *it = NULL;
    ebb_status st = EBB_OK;
    const uint8_t *key, *value;
    size_t key_len, len;
    ebb_record r = {0};
    uint32_t part = 0; // next part expected; r.n_parts + 1: the record is complete
    bool any = false;
    uint64_t bytes = 0;
    *last = 0;
    EBB_TRY(ebb_kviter_open(j->kv, "J", 1, &it));
    while (st == EBB_OK && ebb_kviter_next(it, &key, &key_len, &value, &len)) {
        if (key_len != KEY_BYTES) {
            st = s_corrupt(why, *last, "followed by a key of the wrong length");
            break;
        }
        uint64_t lsn = ebb_get_be64(key + 1);
        uint32_t i = ebb_get_be32(key + 9);
        bytes += len;
        if (lsn <= after) {
            continue; // in every chunk's row already; not dropped yet
        }
        uint64_t want = any ? (part > r.n_parts ? r.lsn + 1 : r.lsn) : after + 1;
        if (lsn != want || i != (any && part <= r.n_parts ? part : 0)) {
            st = s_corrupt(why, want, "missing or incomplete");
            break;
        }
        if (i == 0) {
            if (ebb_journal_head_read(value, len, lsn, &r) != EBB_OK) {
                st = s_corrupt(why, lsn, "its head's checksum or format is damaged");
                break;
            }
            any = true;
            part = 1;
            *last = lsn;
            st = fn(arg, &r, NULL);
        } else {
            ebb_replay_part view;
            if (ebb_journal_part_read(value, len, lsn, &view) != EBB_OK) {
                char text[96];
                snprintf(text, sizeof(text), "the checksum or format of part %u is damaged", i);
                st = s_corrupt(why, lsn, text);
                break;
            }
            part = i + 1;
            st = fn(arg, &r, &view);
        }
    }
    if (st == EBB_OK) {
        st = ebb_kviter_status(it);
        if (st != EBB_OK) {
            snprintf(why, 256, "reading the journal after record %llu: the store reports damage", (unsigned long long)*last);
        } else if (any && part <= r.n_parts) {
            st = s_corrupt(why, r.lsn, "its end is missing");
        }
    }
    ebb_kviter_close(&it);
    j->bytes = bytes;
    return st;
}

ebb_status ebb_journal_drop(ebb_kvstore *kv, uint64_t upto)
{
    uint8_t from[KEY_BYTES], to[KEY_BYTES];
    ebb_kvbatch *b = NULL;
    s_key(from, 0, 0);
    s_key(to, upto + 1, 0);
    EBB_TRY(ebb_kvbatch_new(&b));
    ebb_kvbatch_del_range(b, from, sizeof(from), to, sizeof(to));
    ebb_status st = ebb_kvstore_write(kv, b, false);
    ebb_kvbatch_free(&b);
    EBB_TRY(st);
    return ebb_kvstore_compact_range(kv, from, sizeof(from), to, sizeof(to));
}

void ebb_journal_put_watermark(ebb_kvbatch *b, uint64_t stream, uint64_t applied, uint64_t lsn)
{
    uint8_t key[9] = {'W'}, value[16];
    ebb_put_be64(key + 1, stream);
    ebb_put_le64(value, applied);
    ebb_put_le64(value + 8, lsn);
    ebb_row_put(b, key, sizeof(key), value, sizeof(value));
}

void ebb_journal_del_watermark(ebb_kvbatch *b, uint64_t stream)
{
    uint8_t key[9] = {'W'};
    ebb_put_be64(key + 1, stream);
    ebb_kvbatch_del(b, key, sizeof(key));
}

ebb_status ebb_journal_watermark_read(const uint8_t *key, size_t key_len, const uint8_t *value, size_t len, uint64_t *stream, uint64_t *applied,
                                      uint64_t *lsn)
{
    size_t n = 0;
    *stream = key_len == 9 ? ebb_get_be64(key + 1) : 0;
    if (key_len != 9 || ebb_row_check(value, len, &n) != EBB_OK || n != 16) {
        return EBB_CORRUPT;
    }
    *applied = ebb_get_le64(value);
    *lsn = ebb_get_le64(value + 8);
    return EBB_OK;
}

ebb_status ebb_journal_watermarks(ebb_kvstore *kv, ebb_status (*fn)(void *arg, uint64_t stream, uint64_t applied, uint64_t lsn), void *arg, char *why)
{
    ebb_kviter *it = NULL;
    ebb_status st = EBB_OK;
    const uint8_t *key, *value;
    size_t key_len, len;
    uint64_t stream, applied, lsn;
    EBB_TRY(ebb_kviter_open(kv, "W", 1, &it));
    while (st == EBB_OK && ebb_kviter_next(it, &key, &key_len, &value, &len)) {
        st = ebb_journal_watermark_read(key, key_len, value, len, &stream, &applied, &lsn);
        if (st != EBB_OK) {
            snprintf(why, 256, "watermark of stream %llu: its checksum or format is damaged", (unsigned long long)stream);
            break;
        }
        st = fn(arg, stream, applied, lsn);
    }
    if (st == EBB_OK && (st = ebb_kviter_status(it)) != EBB_OK) {
        snprintf(why, 256, "reading the watermarks: the store reports damage");
    }
    ebb_kviter_close(&it);
    return st;
}

// ---- syncer ----

struct ebb_syncer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool wanted, stop;
    ebb_kvstore *kv;
    void (*done)(void *arg, ebb_status st);
    void *arg;
};

static void *s_syncer_main(void *arg)
{
    ebb_syncer *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!s->wanted && !s->stop) {
            pthread_cond_wait(&s->wake, &s->lock);
        }
        bool stop = s->stop;
        s->wanted = false;
        pthread_mutex_unlock(&s->lock);
        if (stop) {
            return NULL;
        }
        s->done(s->arg, ebb_kvstore_sync(s->kv));
    }
}

ebb_status ebb_syncer_start(ebb_kvstore *kv, void (*done)(void *arg, ebb_status st), void *arg, ebb_syncer **out)
{
    ebb_syncer *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return EBB_NOMEM;
    }
    s->kv = kv;
    s->done = done;
    s->arg = arg;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    if (pthread_create(&s->thread, NULL, s_syncer_main, s) != 0) {
        pthread_cond_destroy(&s->wake);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return EBB_NOMEM;
    }
    *out = s;
    return EBB_OK;
}

void ebb_syncer_request(ebb_syncer *s)
{
    pthread_mutex_lock(&s->lock);
    s->wanted = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void ebb_syncer_stop(ebb_syncer **sp)
{
    ebb_syncer *s = *sp;
    if (s == NULL) {
        return;
    }
    *sp = NULL;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
