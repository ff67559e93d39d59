#include "core/wire.h"

#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/bytes.h"
#include "core/crc32c.h"

#define PART_MAGIC 0x31504245u // "EBP1" read as a little-endian u32

_Static_assert(EBB_CHUNK_ELEMS_MAX * 4u <= EBB_FRAME_BYTES_MAX, "a float32 chunk fits one frame");

// ---- frames ----

void ebb_frames_init(ebb_frames *f)
{
    memset(f, 0, sizeof(*f));
}

ebb_status ebb_frames_add_take(ebb_frames *f, ebb_buf **buf)
{
    if (f->n == f->cap) {
        size_t cap = f->cap == 0 ? 8 : f->cap * 2;
        ebb_buf **grown = realloc(f->frame, cap * sizeof(*grown));
        if (grown == NULL) {
            return EBB_NOMEM;
        }
        f->frame = grown;
        f->cap = cap;
    }
    f->bytes += (*buf)->len;
    f->frame[f->n++] = *buf;
    *buf = NULL;
    return EBB_OK;
}

void ebb_frames_fini(ebb_frames *f)
{
    for (size_t i = 0; i < f->n; i++) {
        ebb_buf_unref(&f->frame[i]);
    }
    free(f->frame);
    memset(f, 0, sizeof(*f));
}

// ---- protobuf with a budget ----
// protobuf-c has no limit on what an unpacked message may allocate (64x amplification was measured), so every unpack runs on an allocator that
// counts. The budget travels with the message in front of it, since the free needs the same allocator.

typedef struct budget {
    size_t left;
} budget;

static void *s_budget_alloc(void *data, size_t size)
{
    budget *b = data;
    size_t cost = size + 16; // malloc's own
    if (size > SIZE_MAX - 16 || cost > b->left) {
        return NULL;
    }
    b->left -= cost;
    return malloc(size);
}

static void s_budget_free(void *data, void *p)
{
    (void)data;
    free(p);
}

static ProtobufCMessage *s_unpack(const ProtobufCMessageDescriptor *desc, const uint8_t *data, size_t len, size_t heap_max)
{
    budget b = {.left = heap_max};
    ProtobufCAllocator allocator = {.alloc = s_budget_alloc, .free = s_budget_free, .allocator_data = &b};
    return protobuf_c_message_unpack(desc, &allocator, len, data);
}

ebb_status ebb_pb_pack(const ProtobufCMessage *msg, uint8_t **out, size_t *len)
{
    size_t size = protobuf_c_message_get_packed_size(msg);
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL) {
        return EBB_NOMEM;
    }
    *len = protobuf_c_message_pack(msg, bytes);
    EBB_ASSERT(*len == size);
    *out = bytes;
    return EBB_OK;
}

ebb_status ebb_pb_unpack(const ProtobufCMessageDescriptor *desc, const uint8_t *data, size_t len, ProtobufCMessage **out)
{
    ProtobufCMessage *msg = s_unpack(desc, data, len, EBB_CONTROL_HEAP_MAX + len * 16);
    if (msg == NULL) {
        return EBB_PROTO;
    }
    *out = msg;
    return EBB_OK;
}

void ebb_pb_free(ProtobufCMessage *msg)
{
    if (msg != NULL) {
        ProtobufCAllocator allocator = {.alloc = s_budget_alloc, .free = s_budget_free, .allocator_data = NULL};
        protobuf_c_message_free_unpacked(msg, &allocator);
    }
}

ebb_status ebb_pb_dup(const ProtobufCMessage *msg, ProtobufCMessage **out)
{
    uint8_t *bytes = NULL;
    size_t len = 0;
    EBB_TRY(ebb_pb_pack(msg, &bytes, &len));
    ebb_status st = ebb_pb_unpack(msg->descriptor, bytes, len, out);
    free(bytes);
    return st;
}

// ---- part headers ----

static void s_header_write(const ebb_part *p, uint8_t *h)
{
    ebb_put_le32(h, PART_MAGIC);
    h[4] = p->codec;
    h[5] = p->dtype;
    ebb_put_le16(h + 6, p->kind);
    ebb_put_le32(h + 8, p->chunk);
    ebb_put_le32(h + 12, p->crc32c);
    ebb_put_le64(h + 16, p->version);
    ebb_put_le64(h + 24, p->numel);
    ebb_put_le64(h + 32, p->buf->len);
    ebb_put_le32(h + 40, 0);
    ebb_put_le32(h + 44, ebb_crc32c(0, h, 44));
}

static const char *s_header_read(const uint8_t *h, ebb_part *p, uint64_t *nbytes)
{
    if (ebb_get_le32(h) != PART_MAGIC) {
        return "part header has the wrong magic";
    }
    if (ebb_get_le32(h + 44) != ebb_crc32c(0, h, 44)) {
        return "part header checksum is wrong";
    }
    p->codec = h[4];
    p->dtype = h[5];
    p->kind = ebb_get_le16(h + 6);
    p->chunk = ebb_get_le32(h + 8);
    p->crc32c = ebb_get_le32(h + 12);
    p->version = ebb_get_le64(h + 16);
    p->numel = ebb_get_le64(h + 24);
    *nbytes = ebb_get_le64(h + 32);
    return NULL;
}

void ebb_part_seal(ebb_part *p)
{
    p->crc32c = ebb_crc32c(0, p->buf->data, p->buf->len);
}

// ---- messages ----

void ebb_msg_init(ebb_msg *m)
{
    memset(m, 0, sizeof(*m));
}

void ebb_msg_fini(ebb_msg *m)
{
    for (size_t i = 0; i < m->n_parts; i++) {
        ebb_buf_unref(&m->parts[i].buf);
    }
    free(m->parts);
    if (m->env != NULL) {
        ebb_pb_free(&m->env->base);
    }
    memset(m, 0, sizeof(*m));
}

ebb_status ebb_msg_pack(Ebb__Envelope *env, const ebb_part *parts, size_t n_parts, ebb_frames *out)
{
    EBB_ASSERT(n_parts <= EBB_PARTS_MAX);
    ebb_status st = EBB_OK;
    ebb_buf *buf = NULL;
    env->protocol = EBB_PROTOCOL;
    size_t size = ebb__envelope__get_packed_size(env);
    if (size > EBB_CONTROL_BYTES_MAX) {
        return EBB_INVAL;
    }
    EBB_TRY(ebb_buf_new(size, &buf));
    ebb__envelope__pack(env, buf->data);
    EBB_TRY_GOTO(ebb_frames_add_take(out, &buf), st, fail);
    if (n_parts > 0) {
        EBB_TRY_GOTO(ebb_buf_new(n_parts * EBB_PART_HEADER_BYTES, &buf), st, fail);
        for (size_t i = 0; i < n_parts; i++) {
            EBB_ASSERT(parts[i].buf->len <= EBB_FRAME_BYTES_MAX);
            s_header_write(&parts[i], buf->data + i * EBB_PART_HEADER_BYTES);
        }
        EBB_TRY_GOTO(ebb_frames_add_take(out, &buf), st, fail);
        for (size_t i = 0; i < n_parts; i++) {
            buf = ebb_buf_ref(parts[i].buf);
            EBB_TRY_GOTO(ebb_frames_add_take(out, &buf), st, fail);
        }
    }
    return EBB_OK;
fail:
    ebb_buf_unref(&buf);
    ebb_frames_fini(out);
    return st;
}

static const char *s_parts_read(const ebb_frames *frames, bool verify, ebb_msg *m, ebb_status *st)
{
    const ebb_buf *table = frames->frame[1];
    size_t n = frames->n - 2;
    *st = EBB_PROTO;
    if (n > EBB_PARTS_MAX) {
        return "too many payload parts";
    }
    if (n == 0 || table->len != n * EBB_PART_HEADER_BYTES) {
        return "part table does not match the number of parts";
    }
    m->parts = calloc(n, sizeof(*m->parts));
    if (m->parts == NULL) {
        *st = EBB_NOMEM;
        return "out of memory";
    }
    for (size_t i = 0; i < n; i++) {
        ebb_part *p = &m->parts[i];
        ebb_buf *frame = frames->frame[i + 2];
        uint64_t nbytes = 0;
        const char *why = s_header_read(table->data + i * EBB_PART_HEADER_BYTES, p, &nbytes);
        if (why != NULL) {
            return why;
        }
        if (nbytes != frame->len || nbytes > EBB_FRAME_BYTES_MAX) {
            return "part length does not match its header";
        }
        if (verify && ebb_crc32c(0, frame->data, frame->len) != p->crc32c) {
            *st = EBB_CORRUPT;
            return "part checksum is wrong";
        }
        p->buf = ebb_buf_ref(frame);
        m->n_parts = i + 1;
    }
    *st = EBB_OK;
    return NULL;
}

ebb_status ebb_msg_unpack(const ebb_frames *frames, bool verify, ebb_msg *out, const char **why)
{
    static const char *ignored;
    if (why == NULL) {
        why = &ignored;
    }
    ebb_msg_init(out);
    if (frames->n == 0 || frames->frame[0]->len > EBB_CONTROL_BYTES_MAX) {
        *why = frames->n == 0 ? "empty message" : "control message is longer than 64 KiB";
        return EBB_PROTO;
    }
    const ebb_buf *head = frames->frame[0];
    out->env = (Ebb__Envelope *)s_unpack(&ebb__envelope__descriptor, head->data, head->len, EBB_CONTROL_HEAP_MAX);
    if (out->env == NULL) {
        *why = "control message cannot be decoded";
        return EBB_PROTO;
    }
    if (out->env->protocol != EBB_PROTOCOL) {
        *why = "protocol version differs";
        ebb_msg_fini(out);
        return EBB_PROTO;
    }
    if (frames->n == 1) {
        return EBB_OK;
    }
    ebb_status st;
    const char *text = s_parts_read(frames, verify, out, &st);
    if (text != NULL) {
        *why = text;
        ebb_msg_fini(out);
    }
    return st;
}
