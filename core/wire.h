// Messages: an envelope (protobuf) plus payload parts, to and from frames. The one home of protobuf-c: whoever needs the
// generated message structs (Ebb__PushRequest ...) includes this file, and packs and unpacks only through it.
//
// Frames of a message:  [envelope] or [envelope][part table][part 0]...[part n-1].  Byte by byte: docs/wire.md.
// Part table: n headers of EBB_PART_HEADER_BYTES, little-endian:
//   0 u32 magic "EBP1" | 4 u8 codec | 5 u8 dtype | 6 u16 kind | 8 u32 chunk | 12 u32 crc32c of the part's bytes
//   16 u64 version | 24 u64 numel | 32 u64 nbytes | 40 u32 reserved 0 | 44 u32 crc32c of header bytes 0..43
#ifndef EBB_CORE_WIRE_H
#define EBB_CORE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/limits.h"
#include "core/status.h"
#include "ebb.pb-c.h"

#define EBB_PART_HEADER_BYTES 48

typedef enum ebb_part_kind {
    EBB_PART_GRAD = 1,
    EBB_PART_PARAM = 2,
    EBB_PART_SLOT = 3,     // optimizer slot (m, v, ...)
    EBB_PART_MANIFEST = 4, // packed ebb.Manifest, dtype BYTES
} ebb_part_kind;

typedef enum ebb_codec { EBB_CODEC_RAW = 0 } ebb_codec; // raw little-endian elements of dtype; others will follow (core/codec)

typedef struct ebb_part {
    uint8_t codec;
    uint8_t dtype; // ebb_dtype
    uint16_t kind; // ebb_part_kind
    uint32_t chunk;
    uint32_t crc32c;
    uint64_t version;
    uint64_t numel;
    ebb_buf *buf; // the bytes; the message owns one reference
} ebb_part;

// Ordered frames of one message, each an owned reference.
typedef struct ebb_frames {
    ebb_buf **frame;
    size_t n, cap;
    size_t bytes;
} ebb_frames;

void ebb_frames_init(ebb_frames *f);
ebb_status ebb_frames_add_take(ebb_frames *f, ebb_buf **buf); // takes the reference on success
void ebb_frames_fini(ebb_frames *f);                          // drops all references; the struct can be used again

// A received, unpacked message.
typedef struct ebb_msg {
    Ebb__Envelope *env; // owned
    ebb_part *parts;    // owned array; buffers owned
    size_t n_parts;
} ebb_msg;

void ebb_msg_init(ebb_msg *m);
void ebb_msg_fini(ebb_msg *m);

// Builds frames from an envelope (borrowed; protocol is filled in) and parts (borrowed; each buffer gets a further reference).
// Part crc32c must be filled in by the caller (ebb_part_seal) since buffers are shared between replies.
ebb_status ebb_msg_pack(Ebb__Envelope *env, const ebb_part *parts, size_t n_parts, ebb_frames *out);

// Takes apart what a peer sent. PROTO with a reason in *why (static text) for anything malformed: bounds, depth, unknown protocol, sizes
// that disagree. Part checksums are verified here when verify is true (CORRUPT). On success the message holds references to the frames' buffers.
ebb_status ebb_msg_unpack(const ebb_frames *frames, bool verify, ebb_msg *out, const char **why);

// Fills crc32c from the buffer.
void ebb_part_seal(ebb_part *p);

// Packs / unpacks any protobuf-c message for storage (same budgeted allocator as the wire). pack: *out malloc'ed.
ebb_status ebb_pb_pack(const ProtobufCMessage *msg, uint8_t **out, size_t *len);
ebb_status ebb_pb_unpack(const ProtobufCMessageDescriptor *desc, const uint8_t *data, size_t len, ProtobufCMessage **out); // free by ebb_pb_free
void ebb_pb_free(ProtobufCMessage *msg);
// Deep copy by pack + unpack.
ebb_status ebb_pb_dup(const ProtobufCMessage *msg, ProtobufCMessage **out);

#endif
