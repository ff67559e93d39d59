#include "ps/snapshot.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/crc32c.h"
#include "core/inbox.h"
#include "ps/row.h"

#define CHUNK_MAGIC 0x31434245u // "EBC1"
#define CHUNK_HEADER_BYTES 48
#define CHUNK_KEY_BYTES 10
#define STATE_BYTES 32

static void s_chunk_key(uint8_t key[CHUNK_KEY_BYTES], uint32_t generation, uint32_t chunk, uint32_t slot)
{
    key[0] = 'C';
    ebb_put_be32(key + 1, generation);
    ebb_put_be32(key + 5, chunk);
    key[9] = (uint8_t)slot;
}

ebb_status ebb_snapshot_write_chunk(ebb_kvstore *kv, uint32_t generation, const ebb_chunk_state *c)
{
    ebb_kvbatch *b = NULL;
    EBB_TRY(ebb_kvbatch_new(&b));
    for (uint32_t slot = 0; slot < c->n_bufs; slot++) {
        uint8_t key[CHUNK_KEY_BYTES], h[CHUNK_HEADER_BYTES] = {0};
        const ebb_buf *buf = c->buf[slot];
        bool known = (c->crc_known & (1u << slot)) != 0;
        ebb_put_le32(h, CHUNK_MAGIC);
        ebb_put_le32(h + 4, c->id);
        ebb_put_le32(h + 8, c->numel);
        h[12] = (uint8_t)slot;
        h[13] = (uint8_t)c->n_bufs;
        ebb_put_le64(h + 16, c->version);
        ebb_put_le64(h + 24, c->lsn);
        ebb_put_le64(h + 32, c->steps);
        ebb_put_le32(h + 40, known ? c->crc[slot] : ebb_crc32c(0, buf->data, buf->len));
        ebb_put_le32(h + 44, ebb_crc32c(0, h, 44));
        const void *pieces[2] = {h, buf->data};
        size_t lens[2] = {sizeof(h), buf->len};
        s_chunk_key(key, generation, c->id, slot);
        ebb_kvbatch_putv(b, key, sizeof(key), pieces, lens, 2);
    }
    ebb_status st = ebb_kvstore_write(kv, b, false);
    ebb_kvbatch_free(&b);
    return st;
}

void ebb_snapshot_put_state(ebb_kvbatch *b, uint32_t generation, uint64_t lsn, uint64_t version, uint64_t skipped)
{
    uint8_t v[STATE_BYTES] = {0};
    ebb_put_le32(v, generation);
    ebb_put_le64(v + 8, lsn);
    ebb_put_le64(v + 16, version);
    ebb_put_le64(v + 24, skipped);
    ebb_row_put(b, "G", 1, v, sizeof(v));
}

ebb_status ebb_snapshot_get_state(ebb_kvstore *kv, uint32_t *generation, uint64_t *lsn, uint64_t *version, uint64_t *skipped)
{
    uint8_t *v = NULL;
    size_t len = 0;
    EBB_TRY(ebb_row_get(kv, "G", 1, &v, &len));
    ebb_status st = len == STATE_BYTES ? EBB_OK : EBB_CORRUPT;
    if (st == EBB_OK) {
        *generation = ebb_get_le32(v);
        *lsn = ebb_get_le64(v + 8);
        *version = ebb_get_le64(v + 16);
        *skipped = ebb_get_le64(v + 24);
    }
    free(v);
    return st;
}

const char *ebb_snapshot_row_read(const uint8_t *v, size_t len, ebb_chunk_row *out)
{
    *out = (ebb_chunk_row){0};
    if (len < CHUNK_HEADER_BYTES || ebb_get_le32(v) != CHUNK_MAGIC || ebb_get_le32(v + 44) != ebb_crc32c(0, v, 44)) {
        return "its header is damaged";
    }
    *out = (ebb_chunk_row){.chunk = ebb_get_le32(v + 4),
                           .numel = ebb_get_le32(v + 8),
                           .slot = v[12],
                           .n_bufs = v[13],
                           .version = ebb_get_le64(v + 16),
                           .lsn = ebb_get_le64(v + 24),
                           .steps = ebb_get_le64(v + 32),
                           .crc32c = ebb_get_le32(v + 40),
                           .data = v + CHUNK_HEADER_BYTES};
    size_t bytes = len - CHUNK_HEADER_BYTES;
    if (bytes != (size_t)out->numel * sizeof(float)) {
        return "its shape is not the manifest's";
    }
    return ebb_crc32c(0, out->data, bytes) == out->crc32c ? NULL : "the checksum of its values is wrong";
}

static const char *s_load_row(ebb_chunk_state *c, uint32_t slot, const uint8_t *v, size_t len)
{
    ebb_chunk_row r;
    const char *bad = ebb_snapshot_row_read(v, len, &r);
    if (bad != NULL) {
        return bad;
    }
    if (r.chunk != c->id || r.slot != slot || r.n_bufs != c->n_bufs || r.numel != c->numel) {
        return "its shape is not the manifest's";
    }
    if (slot > 0 && (r.version != c->version || r.lsn != c->lsn || r.steps != c->steps)) {
        return "its slots are of different versions";
    }
    c->version = r.version;
    c->lsn = c->saved_lsn = r.lsn;
    c->steps = r.steps;
    memcpy(c->buf[slot]->data, r.data, c->buf[slot]->len);
    c->crc[slot] = r.crc32c;
    c->crc_known |= 1u << slot;
    return NULL;
}

ebb_status ebb_snapshot_load(ebb_kvstore *kv, uint32_t generation, ebb_chunk_state *chunks, uint32_t first_chunk, uint32_t count, uint32_t *loaded,
                             char *why)
{
    uint8_t prefix[5] = {'C'};
    const uint8_t *key, *value;
    size_t key_len, len;
    ebb_kviter *it = NULL;
    ebb_status st = EBB_OK;
    uint32_t n = 0, want_slot = 0, chunk = 0;
    ebb_put_be32(prefix + 1, generation);
    EBB_TRY(ebb_kviter_open(kv, prefix, sizeof(prefix), &it));
    while (ebb_kviter_next(it, &key, &key_len, &value, &len)) {
        uint32_t id = key_len == CHUNK_KEY_BYTES ? ebb_get_be32(key + 5) : UINT32_MAX;
        const char *bad = NULL;
        if (id < first_chunk || id - first_chunk >= count) {
            bad = "it is not on this shard";
        } else if (want_slot == 0 ? key[9] != 0 : id != chunk || key[9] != want_slot) {
            bad = "a slot is missing";
        } else {
            ebb_chunk_state *c = &chunks[id - first_chunk];
            chunk = id;
            bad = s_load_row(c, want_slot, value, len);
            want_slot = (want_slot + 1) % c->n_bufs;
            n += want_slot == 0;
        }
        if (bad != NULL) {
            snprintf(why, 256, "chunk %u: %s", want_slot != 0 && id != chunk ? chunk : id, bad);
            st = EBB_CORRUPT;
            break;
        }
    }
    if (st == EBB_OK && (st = ebb_kviter_status(it)) != EBB_OK) {
        snprintf(why, 256, "reading the chunks after chunk %u: the store reports damage", chunk);
    }
    if (st == EBB_OK && want_slot != 0) {
        snprintf(why, 256, "chunk %u: a slot is missing", chunk);
        st = EBB_CORRUPT;
    }
    ebb_kviter_close(&it);
    *loaded = n;
    return st;
}

ebb_status ebb_snapshot_drop_below(ebb_kvstore *kv, uint32_t generation)
{
    uint8_t from[CHUNK_KEY_BYTES], to[CHUNK_KEY_BYTES];
    ebb_kvbatch *b = NULL;
    s_chunk_key(from, 0, 0, 0);
    s_chunk_key(to, generation, 0, 0);
    EBB_TRY(ebb_kvbatch_new(&b));
    ebb_kvbatch_del_range(b, from, sizeof(from), to, sizeof(to));
    ebb_status st = ebb_kvstore_write(kv, b, false);
    ebb_kvbatch_free(&b);
    EBB_TRY(st);
    return ebb_kvstore_compact_range(kv, from, sizeof(from), to, sizeof(to));
}

void ebb_snapshot_put_flip(ebb_kvbatch *b, const ebb_job *job, uint32_t generation)
{
    ebb_kvbatch_del_range(b, "W", 1, "X", 1); // a batch is applied in order: first forget all, then put what is true now
    for (size_t i = 0; i < job->streams.n; i++) {
        const ebb_stream *s = &job->streams.at[i];
        ebb_journal_put_watermark(b, s->id, s->applied, s->applied_lsn);
    }
    ebb_snapshot_put_state(b, generation, job->lsn, job->version, job->skipped);
}

// ---- the thread ----

struct ebb_snapshotter {
    pthread_t thread;
    ebb_kvstore *kv;
    ebb_inbox *inbox;
    _Atomic bool stop;
    void (*done)(void *arg, ebb_snapshot_work *w);
    void *arg;
};

void ebb_snapshot_work_free(ebb_snapshot_work **wp)
{
    ebb_snapshot_work *w = *wp;
    if (w != NULL) {
        *wp = NULL;
        ebb_chunk_state_fini(&w->image);
        ebb_kvbatch_free(&w->flip);
        free(w);
    }
}

ebb_status ebb_snapshot_work_run(ebb_kvstore *kv, ebb_snapshot_work *w)
{
    switch (w->step) {
    case EBB_SNAPSHOT_CHUNK:
        return ebb_snapshot_write_chunk(kv, w->generation, &w->image);
    case EBB_SNAPSHOT_FINISH:
        EBB_TRY(ebb_kvstore_sync(kv));
        return ebb_journal_drop(kv, w->drop_upto);
    case EBB_SNAPSHOT_FLIP:
        EBB_TRY(ebb_kvstore_write(kv, w->flip, true)); // one log: syncing the flip syncs the chunk rows before it
        return ebb_snapshot_drop_below(kv, w->generation);
    }
    return EBB_INTERNAL;
}

static void *s_main(void *arg)
{
    ebb_snapshotter *s = arg;
    while (!s->stop) {
        ebb_snapshot_work *w = ebb_inbox_wait(s->inbox, -1);
        if (w == NULL) {
            break;
        }
        w->status = ebb_snapshot_work_run(s->kv, w);
        for (uint32_t i = 0; i < EBB_CHUNK_BUFS_MAX; i++) {
            ebb_buf_unref(&w->image.buf[i]); // before the shard hears of it: the next update may be in place again
        }
        s->done(s->arg, w);
    }
    return NULL;
}

ebb_status ebb_snapshotter_start(ebb_kvstore *kv, size_t capacity, void (*done)(void *arg, ebb_snapshot_work *w), void *arg, ebb_snapshotter **out)
{
    ebb_snapshotter *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return EBB_NOMEM;
    }
    s->kv = kv;
    s->done = done;
    s->arg = arg;
    ebb_status st = ebb_inbox_new(capacity, &s->inbox);
    if (st == EBB_OK && pthread_create(&s->thread, NULL, s_main, s) != 0) {
        ebb_inbox_free(&s->inbox);
        st = EBB_NOMEM;
    }
    if (st != EBB_OK) {
        free(s);
        return st;
    }
    *out = s;
    return EBB_OK;
}

ebb_status ebb_snapshotter_post(ebb_snapshotter *s, ebb_snapshot_work *w)
{
    return ebb_inbox_push(s->inbox, w);
}

void ebb_snapshotter_stop(ebb_snapshotter **sp)
{
    ebb_snapshotter *s = *sp;
    if (s == NULL) {
        return;
    }
    *sp = NULL;
    s->stop = true;
    ebb_inbox_close(s->inbox);
    pthread_join(s->thread, NULL);
    ebb_snapshot_work *w;
    while ((w = ebb_inbox_pop(s->inbox)) != NULL) {
        ebb_snapshot_work_free(&w);
    }
    ebb_inbox_free(&s->inbox);
    free(s);
}
