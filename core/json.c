#include "core/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/assert.h"

static json_t *s_value(const ProtobufCFieldDescriptor *f, const void *at)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_integer(*(const uint32_t *)at);
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM:
        return json_integer(*(const int32_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        if (strcmp(f->name, "job") == 0 || strcmp(f->name, "incarnation") == 0) { // random 64 bits: a name, written as in the logs
            char hex[20];
            snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)*(const uint64_t *)at);
            return json_string(hex);
        }
        return json_integer((json_int_t) * (const uint64_t *)at);
    case PROTOBUF_C_TYPE_INT64:
        return json_integer(*(const int64_t *)at);
    case PROTOBUF_C_TYPE_FLOAT:
        return isfinite(*(const float *)at) ? json_real(*(const float *)at) : json_null();
    case PROTOBUF_C_TYPE_DOUBLE:
        return isfinite(*(const double *)at) ? json_real(*(const double *)at) : json_null();
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)at);
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(char *const *)at;
        json_t *value = json_string(text ? text : "");
        return value ? value : json_string("(not valid UTF-8)");
    }
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *m = *(ProtobufCMessage *const *)at;
        return m ? ebb_json_message(m) : NULL;
    }
    default:
        return json_null();
    }
}

static size_t s_size(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    default:
        return 4;
    }
}

json_t *ebb_json_message(const ProtobufCMessage *msg)
{
    json_t *object = json_object();
    EBB_ASSERT(object != NULL);
    for (unsigned i = 0; i < msg->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &msg->descriptor->fields[i];
        const char *at = (const char *)msg + f->offset;
        json_t *value;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(const size_t *)((const char *)msg + f->quantifier_offset);
            const char *items = *(const char *const *)at;
            value = json_array();
            for (size_t k = 0; k < n; k++) {
                json_array_append_new(value, s_value(f, items + k * s_size(f)));
            }
        } else {
            value = s_value(f, at);
        }
        if (value != NULL) {
            json_object_set_new(object, f->name, value);
        }
    }
    return object;
}
