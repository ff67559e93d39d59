#include "core/manifest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/assert.h"
#include "core/rng.h"
#include "core/wire.h"

#define INIT_MAX 1e30f // of init_a: every initial value is finite

size_t ebb_dtype_bytes(ebb_dtype dtype)
{
    switch (dtype) {
    case EBB_DTYPE_F32:
        return 4;
    case EBB_DTYPE_BF16:
    case EBB_DTYPE_F16:
        return 2;
    case EBB_DTYPE_I8:
    case EBB_DTYPE_BYTES:
        return 1;
    }
    EBB_PANIC("unknown dtype");
}

ebb_status ebb_manifest_new(ebb_manifest **out, uint32_t chunk_elems)
{
    if (chunk_elems == 0 || chunk_elems > EBB_CHUNK_ELEMS_MAX) {
        return EBB_INVAL;
    }
    ebb_manifest *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        return EBB_NOMEM;
    }
    m->chunk_elems = chunk_elems;
    *out = m;
    return EBB_OK;
}

void ebb_manifest_free(ebb_manifest **mp)
{
    ebb_manifest *m = *mp;
    if (m == NULL) {
        return;
    }
    *mp = NULL;
    free(m->tensors);
    free(m->chunks);
    free(m);
}

// Names go into files, logs and JSON: printable ASCII without quotes, spaces or backslashes.
static int s_name_ok(const char *name)
{
    size_t len = strnlen(name, EBB_NAME_MAX);
    if (len == 0 || len >= EBB_NAME_MAX) {
        return 0;
    }
    for (size_t i = 0; i < len; i++) {
        if (name[i] <= ' ' || name[i] > '~' || name[i] == '"' || name[i] == '\\') {
            return 0;
        }
    }
    return 1;
}

int ebb_manifest_find(const ebb_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (strcmp(m->tensors[i].name, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

ebb_status ebb_manifest_add(ebb_manifest *m, const char *name, uint32_t ndim, const uint64_t *ne, ebb_init_kind init, float init_a, uint32_t group)
{
    EBB_ASSERT(!m->sealed);
    if (!s_name_ok(name) || ndim == 0 || ndim > EBB_TENSOR_NDIM_MAX || m->n_tensors >= EBB_TENSORS_MAX || (uint32_t)init > EBB_INIT_UNIFORM ||
        !(fabsf(init_a) <= INIT_MAX) || ebb_manifest_find(m, name) >= 0) {
        return EBB_INVAL;
    }
    uint64_t numel = 1;
    for (uint32_t d = 0; d < ndim; d++) {
        if (ne[d] == 0 || __builtin_mul_overflow(numel, ne[d], &numel) || numel > (1ULL << 48)) {
            return EBB_INVAL;
        }
    }
    if ((m->n_tensors & (m->n_tensors + 1)) == 0 || m->n_tensors == 0) {
        ebb_tensor *grown = realloc(m->tensors, (m->n_tensors + 1) * 2 * sizeof(*grown));
        if (grown == NULL) {
            return EBB_NOMEM;
        }
        m->tensors = grown;
    }
    ebb_tensor *t = &m->tensors[m->n_tensors];
    memset(t, 0, sizeof(*t));
    strcpy(t->name, name);
    t->dtype = EBB_DTYPE_F32;
    t->ndim = ndim;
    memcpy(t->ne, ne, ndim * sizeof(*ne));
    t->init = init;
    t->init_a = init_a;
    t->group = group;
    t->numel = numel;
    t->offset = m->numel;
    m->numel += numel;
    m->n_tensors++;
    return EBB_OK;
}

ebb_status ebb_manifest_seal(ebb_manifest *m)
{
    EBB_ASSERT(!m->sealed);
    if (m->n_tensors == 0) {
        return EBB_INVAL;
    }
    uint64_t chunks = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        ebb_tensor *t = &m->tensors[i];
        uint64_t count = (t->numel + m->chunk_elems - 1) / m->chunk_elems;
        if (chunks + count > EBB_CHUNKS_MAX) {
            return EBB_INVAL;
        }
        t->first_chunk = (uint32_t)chunks;
        t->chunk_count = (uint32_t)count;
        chunks += count;
    }
    m->chunks = calloc(chunks, sizeof(*m->chunks));
    if (m->chunks == NULL) {
        return EBB_NOMEM;
    }
    for (size_t i = 0; i < m->n_tensors; i++) {
        const ebb_tensor *t = &m->tensors[i];
        for (uint32_t c = 0; c < t->chunk_count; c++) {
            uint64_t from = (uint64_t)c * m->chunk_elems;
            uint64_t left = t->numel - from;
            m->chunks[t->first_chunk + c] = (ebb_chunk){
                .tensor = (uint32_t)i,
                .tensor_offset = from,
                .offset = t->offset + from,
                .numel = left < m->chunk_elems ? (uint32_t)left : m->chunk_elems,
            };
        }
    }
    m->n_chunks = chunks;
    m->sealed = 1;
    return EBB_OK;
}

// Hash input, little-endian: chunk_elems u32, tensor count u32, then per tensor: name with NUL, dtype, ndim, init, group as u32, init_a bits u32, ne u64 each.
static void s_hash_u64(XXH3_state_t *h, uint64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++) {
        b[i] = (uint8_t)(v >> (8 * i));
    }
    XXH3_64bits_update(h, b, sizeof(b));
}

uint64_t ebb_manifest_hash(const ebb_manifest *m)
{
    EBB_ASSERT(m->sealed);
    XXH3_state_t h;
    XXH3_64bits_reset(&h);
    s_hash_u64(&h, m->chunk_elems);
    s_hash_u64(&h, m->n_tensors);
    for (size_t i = 0; i < m->n_tensors; i++) {
        const ebb_tensor *t = &m->tensors[i];
        uint32_t bits;
        memcpy(&bits, &t->init_a, sizeof(bits));
        XXH3_64bits_update(&h, t->name, strlen(t->name) + 1);
        s_hash_u64(&h, t->dtype);
        s_hash_u64(&h, t->ndim);
        s_hash_u64(&h, t->init);
        s_hash_u64(&h, t->group);
        s_hash_u64(&h, bits);
        for (uint32_t d = 0; d < t->ndim; d++) {
            s_hash_u64(&h, t->ne[d]);
        }
    }
    uint64_t v = XXH3_64bits_digest(&h);
    return v == 0 ? 1 : v;
}

void ebb_manifest_init_chunk(const ebb_manifest *m, uint64_t seed, uint32_t chunk, float *out)
{
    EBB_ASSERT(m->sealed && chunk < m->n_chunks);
    const ebb_chunk *c = &m->chunks[chunk];
    const ebb_tensor *t = &m->tensors[c->tensor];
    for (uint32_t i = 0; i < c->numel; i++) {
        uint64_t at = c->tensor_offset + i;
        switch (t->init) {
        case EBB_INIT_ZEROS:
            out[i] = 0.0f;
            break;
        case EBB_INIT_CONSTANT:
            out[i] = t->init_a;
            break;
        case EBB_INIT_NORMAL:
            out[i] = (float)(ebb_rng_normal_at(seed, c->tensor, at) * (double)t->init_a);
            break;
        case EBB_INIT_UNIFORM:
            out[i] = (float)((2.0 * ebb_rng_uniform_at(seed, c->tensor, at) - 1.0) * (double)t->init_a);
            break;
        }
    }
}

ebb_status ebb_manifest_pack(const ebb_manifest *m, uint8_t **out, size_t *len)
{
    EBB_ASSERT(m->sealed);
    ebb_status st = EBB_NOMEM;
    Ebb__Manifest msg = EBB__MANIFEST__INIT;
    Ebb__Tensor *rows = calloc(m->n_tensors, sizeof(*rows));
    Ebb__Tensor **refs = calloc(m->n_tensors, sizeof(*refs));
    if (rows == NULL || refs == NULL) {
        goto out;
    }
    for (size_t i = 0; i < m->n_tensors; i++) {
        ebb_tensor *t = &m->tensors[i];
        ebb__tensor__init(&rows[i]);
        rows[i].name = t->name;
        rows[i].dtype = t->dtype;
        rows[i].n_ne = t->ndim;
        rows[i].ne = t->ne;
        rows[i].init = t->init;
        rows[i].init_a = t->init_a;
        rows[i].group = t->group;
        refs[i] = &rows[i];
    }
    msg.chunk_elems = m->chunk_elems;
    msg.n_tensors = m->n_tensors;
    msg.tensors = refs;
    st = ebb_pb_pack(&msg.base, out, len);
out:
    free(rows);
    free(refs);
    return st;
}

ebb_status ebb_manifest_unpack(const uint8_t *data, size_t len, ebb_manifest **out)
{
    if (len > EBB_MANIFEST_BYTES_MAX) {
        return EBB_PROTO;
    }
    ProtobufCMessage *base = NULL;
    EBB_TRY(ebb_pb_unpack(&ebb__manifest__descriptor, data, len, &base));
    Ebb__Manifest *msg = (Ebb__Manifest *)base;
    ebb_manifest *m = NULL;
    ebb_status st;
    EBB_TRY_GOTO(ebb_manifest_new(&m, msg->chunk_elems), st, out);
    for (size_t i = 0; i < msg->n_tensors; i++) {
        const Ebb__Tensor *t = msg->tensors[i];
        if (t->n_ne > EBB_TENSOR_NDIM_MAX || t->dtype != EBB_DTYPE_F32 || t->init > EBB_INIT_UNIFORM || t->group > 255) {
            st = EBB_INVAL;
            goto out;
        }
        EBB_TRY_GOTO(ebb_manifest_add(m, t->name, (uint32_t)t->n_ne, t->ne, (ebb_init_kind)t->init, t->init_a, t->group), st, out);
    }
    EBB_TRY_GOTO(ebb_manifest_seal(m), st, out);
    *out = m;
    m = NULL;
out:
    ebb_manifest_free(&m);
    ebb_pb_free(base);
    return st;
}
