#include "ps/chunk.h"

#include <string.h>

#include "core/assert.h"
#include "core/crc32c.h"

ebb_status ebb_chunk_state_init(ebb_chunk_state *c, const ebb_manifest *m, uint64_t seed, uint32_t id, uint32_t slots)
{
    EBB_ASSERT(id < m->n_chunks && slots <= EBB_OPTIMIZER_SLOTS_MAX);
    memset(c, 0, sizeof(*c));
    c->id = id;
    c->numel = m->chunks[id].numel;
    c->group = m->tensors[m->chunks[id].tensor].group;
    c->n_bufs = 1 + slots;
    for (uint32_t i = 0; i < c->n_bufs; i++) {
        ebb_status st = ebb_buf_new((size_t)c->numel * sizeof(float), &c->buf[i]);
        if (st != EBB_OK) {
            ebb_chunk_state_fini(c);
            return st;
        }
    }
    ebb_manifest_init_chunk(m, seed, id, (float *)c->buf[0]->data);
    for (uint32_t i = 1; i < c->n_bufs; i++) {
        memset(c->buf[i]->data, 0, c->buf[i]->len);
    }
    return EBB_OK;
}

void ebb_chunk_state_fini(ebb_chunk_state *c)
{
    for (uint32_t i = 0; i < EBB_CHUNK_BUFS_MAX; i++) {
        ebb_buf_unref(&c->buf[i]);
    }
    c->n_bufs = 0;
}

void ebb_chunk_state_share(const ebb_chunk_state *from, ebb_chunk_state *to)
{
    *to = *from;
    for (uint32_t i = 0; i < from->n_bufs; i++) {
        to->buf[i] = ebb_buf_ref(from->buf[i]);
    }
}

void ebb_chunk_state_part(ebb_chunk_state *c, uint32_t slot, ebb_part *out)
{
    EBB_ASSERT(slot < c->n_bufs);
    if ((c->crc_known & (1u << slot)) == 0) {
        c->crc[slot] = ebb_crc32c(0, c->buf[slot]->data, c->buf[slot]->len);
        c->crc_known |= 1u << slot;
    }
    *out = (ebb_part){.codec = EBB_CODEC_RAW,
                      .dtype = EBB_DTYPE_F32,
                      .kind = slot == 0 ? EBB_PART_PARAM : EBB_PART_SLOT,
                      .chunk = c->id,
                      .crc32c = c->crc[slot],
                      .version = c->version,
                      .numel = c->numel,
                      .buf = c->buf[slot]};
}

ebb_status ebb_chunk_state_part_ahead(ebb_chunk_state *c, const ebb_optimizer *o, double versions, float weight, ebb_part *out)
{
    const float *in[EBB_CHUNK_BUFS_MAX] = {0};
    ebb_buf *ahead = NULL;
    for (uint32_t i = 0; i < c->n_bufs; i++) {
        in[i] = (const float *)c->buf[i]->data;
    }
    EBB_TRY(ebb_buf_new(c->buf[0]->len, &ahead));
    if (!ebb_optimizer_look_ahead(o, c->group, c->version, versions, weight, c->numel, in, (float *)ahead->data)) {
        ebb_buf_unref(&ahead);
        ebb_chunk_state_part(c, 0, out);
        ebb_buf_ref(out->buf);
        return EBB_OK;
    }
    *out = (ebb_part){.codec = EBB_CODEC_RAW,
                      .dtype = EBB_DTYPE_F32,
                      .kind = EBB_PART_PARAM,
                      .chunk = c->id,
                      .version = c->version,
                      .numel = c->numel,
                      .buf = ahead};
    ebb_part_seal(out);
    return EBB_OK;
}

ebb_status ebb_chunk_state_apply(ebb_chunk_state *c, const ebb_optimizer *o, const void *grad, uint64_t version, float weight, uint64_t lsn)
{
    EBB_ASSERT(lsn > c->lsn && version > c->version && c->n_bufs == 1 + o->slots);
    const float *in[EBB_CHUNK_BUFS_MAX] = {0};
    float *out[EBB_CHUNK_BUFS_MAX] = {0};
    ebb_buf *fresh[EBB_CHUNK_BUFS_MAX] = {0};
    for (uint32_t i = 0; i < c->n_bufs; i++) {
        in[i] = (const float *)c->buf[i]->data;
        if (!ebb_buf_is_sole(c->buf[i])) {
            ebb_status st = ebb_buf_new(c->buf[i]->len, &fresh[i]);
            if (st != EBB_OK) {
                for (uint32_t j = 0; j < i; j++) {
                    ebb_buf_unref(&fresh[j]);
                }
                return st;
            }
        }
        out[i] = (float *)(fresh[i] != NULL ? fresh[i] : c->buf[i])->data;
    }
    ebb_optimizer_apply(o, c->group, version, weight, c->numel, grad, in, out);
    for (uint32_t i = 0; i < c->n_bufs; i++) {
        if (fresh[i] != NULL) {
            ebb_buf_unref(&c->buf[i]);
            c->buf[i] = fresh[i];
        }
    }
    c->crc_known = 0;
    c->version = version;
    c->lsn = lsn;
    c->steps++;
    return EBB_OK;
}
