// A peer's frames into ebb_msg_unpack. What is accepted packs again, and unpacks to the same.
//
// Input: flags u8 (1: verify part checksums; 2: make checksums and lengths of the part table right, so that what is behind them is reached), then frames:
// length u16 and bytes each.
#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "core/crc32c.h"
#include "core/wire.h"
#include "tests/fuzz/fuzz.h"

#define FRAMES_MAX 64

static void s_repair(const ebb_frames *f)
{
    for (size_t i = 0; f->n > 2 && i < f->n - 2 && (i + 1) * EBB_PART_HEADER_BYTES <= f->frame[1]->len; i++) {
        uint8_t *h = f->frame[1]->data + i * EBB_PART_HEADER_BYTES;
        const ebb_buf *part = f->frame[i + 2];
        memcpy(h, "EBP1", 4);
        ebb_put_le32(h + 12, ebb_crc32c(0, part->data, part->len));
        ebb_put_le64(h + 32, part->len);
        ebb_put_le32(h + 44, ebb_crc32c(0, h, 44));
    }
}

static void s_same_parts(const ebb_msg *a, const ebb_msg *b)
{
    FUZZ_CHECK(a->n_parts == b->n_parts);
    for (size_t i = 0; i < a->n_parts; i++) {
        const ebb_part *x = &a->parts[i], *y = &b->parts[i];
        FUZZ_CHECK(x->codec == y->codec && x->dtype == y->dtype && x->kind == y->kind && x->chunk == y->chunk && x->crc32c == y->crc32c);
        FUZZ_CHECK(x->version == y->version && x->numel == y->numel && x->buf->len == y->buf->len);
        FUZZ_CHECK(x->buf->len == 0 || memcmp(x->buf->data, y->buf->data, x->buf->len) == 0);
    }
}

// protobuf-c 1.4 keeps an unknown field of number 0 if its tag is spelled in two bytes, writes it in one, and then refuses that: such a message does not
// come back. Nobody packs one.
static bool s_has_field_zero(const ProtobufCMessage *m)
{
    for (unsigned i = 0; i < m->n_unknown_fields; i++) {
        if (m->unknown_fields[i].tag == 0) {
            return true;
        }
    }
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
        const char *at = (const char *)m + f->offset;
        bool many = f->label == PROTOBUF_C_LABEL_REPEATED;
        bool set = (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) == 0 || *(const uint32_t *)((const char *)m + f->quantifier_offset) == f->id;
        if (f->type != PROTOBUF_C_TYPE_MESSAGE || !set) {
            continue;
        }
        size_t n = many ? *(const size_t *)((const char *)m + f->quantifier_offset) : 1;
        for (size_t k = 0; k < n; k++) {
            const ProtobufCMessage *sub = many ? (*(ProtobufCMessage *const *const *)at)[k] : *(ProtobufCMessage *const *)at;
            if (sub != NULL && s_has_field_zero(sub)) {
                return true;
            }
        }
    }
    return false;
}

static void s_round_trip(const ebb_msg *m, bool verify)
{
    ebb_frames frames, again;
    ebb_msg back;
    const char *why = NULL;
    ebb_frames_init(&frames);
    ebb_status st = ebb_msg_pack(m->env, m->parts, m->n_parts, &frames);
    if (st == EBB_INVAL) { // what came in the shorter of two forms may be longer in ours
        FUZZ_CHECK(ebb__envelope__get_packed_size(m->env) > EBB_CONTROL_BYTES_MAX);
        return;
    }
    FUZZ_OK(st);
    st = ebb_msg_unpack(&frames, verify, &back, &why);
    FUZZ_OK(st);
    s_same_parts(m, &back);
    ebb_frames_init(&again);
    FUZZ_OK(ebb_msg_pack(back.env, back.parts, back.n_parts, &again));
    FUZZ_CHECK(frames.n == again.n && frames.bytes == again.bytes);
    for (size_t i = 0; i < frames.n; i++) {
        const ebb_buf *x = frames.frame[i], *y = again.frame[i];
        FUZZ_CHECK(x->len == y->len && (x->len == 0 || memcmp(x->data, y->data, x->len) == 0));
    }
    // A copy for keeping, as the shard makes of its install order, is the same too.
    ProtobufCMessage *copy = NULL;
    FUZZ_OK(ebb_pb_dup(&m->env->base, &copy));
    FUZZ_CHECK(protobuf_c_message_get_packed_size(copy) == frames.frame[0]->len);
    ebb_pb_free(copy);
    ebb_frames_fini(&again);
    ebb_msg_fini(&back);
    ebb_frames_fini(&frames);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_in in = {data, size};
    uint8_t flags = fuzz_u8(&in);
    bool verify = (flags & 1) != 0;
    ebb_frames frames;
    ebb_msg m;
    const char *why = NULL;
    ebb_frames_init(&frames);
    while (in.left > 0 && frames.n < FRAMES_MAX) {
        size_t len;
        const uint8_t *bytes = fuzz_bytes(&in, &len);
        ebb_buf *buf = NULL;
        FUZZ_OK(ebb_buf_dup(bytes, len, &buf));
        FUZZ_OK(ebb_frames_add_take(&frames, &buf));
    }
    if ((flags & 2) != 0) {
        s_repair(&frames);
    }
    ebb_status st = ebb_msg_unpack(&frames, verify, &m, &why);
    if (st == EBB_OK) {
        FUZZ_CHECK(m.env != NULL && m.env->protocol == EBB_PROTOCOL && m.n_parts == (frames.n > 2 ? frames.n - 2 : 0));
        if (!s_has_field_zero(&m.env->base)) {
            s_round_trip(&m, verify);
        }
        ebb_msg_fini(&m);
    } else {
        FUZZ_CHECK(st == EBB_PROTO || (st == EBB_CORRUPT && verify));
        FUZZ_CHECK(why != NULL && m.env == NULL && m.parts == NULL);
    }
    ebb_frames_fini(&frames);
    return 0;
}
