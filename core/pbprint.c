#include "core/pbprint.h"

#include <stdio.h>
#include <string.h>

#include <protobuf-c/protobuf-c.h>

#define NAME_BYTES 160
#define DEPTH_MAX 8

static size_t s_size(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_ENUM:
        return 4;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    default:
        return 0;
    }
}

static void s_message(ebb_rowline *l, const char *prefix, const ProtobufCMessage *msg, int depth);

// One value; at its default it is left out, except in a list.
static void s_value(ebb_rowline *l, const char *name, ProtobufCType type, const void *at, bool in_list, int depth)
{
    switch (type) {
    case PROTOBUF_C_TYPE_UINT64:
        if (in_list || *(const uint64_t *)at != 0) {
            ebb_rowline_u64(l, name, *(const uint64_t *)at);
        }
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_ENUM:
        if (in_list || *(const uint32_t *)at != 0) {
            ebb_rowline_u64(l, name, *(const uint32_t *)at);
        }
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        if (in_list || *(const double *)at != 0) {
            ebb_rowline_real(l, name, *(const double *)at);
        }
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        if (in_list || *(const float *)at != 0) {
            ebb_rowline_real(l, name, *(const float *)at);
        }
        break;
    case PROTOBUF_C_TYPE_BOOL:
        if (in_list || *(const protobuf_c_boolean *)at) {
            ebb_rowline_flag(l, name, *(const protobuf_c_boolean *)at);
        }
        break;
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(const char *const *)at;
        if (text != NULL && (in_list || text[0] != '\0')) {
            ebb_rowline_text(l, name, text);
        }
        break;
    }
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *sub = *(const ProtobufCMessage *const *)at;
        if (sub != NULL) {
            s_message(l, name, sub, depth + 1);
        }
        break;
    }
    default:
        ebb_rowline_text(l, name, "(not printed)");
        break;
    }
}

static void s_field(ebb_rowline *l, const char *prefix, const ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f, int depth)
{
    const char *base = (const char *)msg;
    char name[NAME_BYTES], item[NAME_BYTES + 16];
    snprintf(name, sizeof(name), "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", f->name);
    if (f->label != PROTOBUF_C_LABEL_REPEATED) {
        bool of_another_case = (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0 && *(const uint32_t *)(base + f->quantifier_offset) != f->id;
        if (!of_another_case) {
            s_value(l, name, f->type, base + f->offset, false, depth);
        }
        return;
    }
    size_t n = *(const size_t *)(base + f->quantifier_offset);
    const char *list = *(const char *const *)(base + f->offset);
    for (size_t i = 0; i < n && s_size(f->type) > 0; i++) {
        snprintf(item, sizeof(item), "%s.%zu", name, i);
        s_value(l, item, f->type, list + i * s_size(f->type), true, depth);
    }
}

static void s_message(ebb_rowline *l, const char *prefix, const ProtobufCMessage *msg, int depth)
{
    if (depth > DEPTH_MAX) {
        return; // deeper than any of ours
    }
    for (unsigned i = 0; i < msg->descriptor->n_fields; i++) {
        s_field(l, prefix, msg, &msg->descriptor->fields[i], depth);
    }
}

void ebb_pbprint(ebb_rowline *l, const ProtobufCMessage *msg)
{
    s_message(l, "", msg, 0);
}
