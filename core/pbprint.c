#include "core/pbprint.h"

#include <stdio.h>

#include "core/json.h"

#define NAME_BYTES 256

// One value; at its default it is left out, except in a list.
static void s_value(ebb_rowline *l, const char *name, const json_t *v, bool in_list)
{
    char inner[NAME_BYTES];
    const char *key;
    json_t *item;
    size_t i;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        json_object_foreach((json_t *)v, key, item)
        {
            snprintf(inner, sizeof(inner), "%s%s%s", name, name[0] != '\0' ? "." : "", key);
            s_value(l, inner, item, false);
        }
        break;
    case JSON_ARRAY:
        json_array_foreach(v, i, item)
        {
            snprintf(inner, sizeof(inner), "%s.%zu", name, i);
            s_value(l, inner, item, true);
        }
        break;
    case JSON_INTEGER:
        if (in_list || json_integer_value(v) != 0) {
            ebb_rowline_u64(l, name, (uint64_t)json_integer_value(v)); // our messages have no negative numbers
        }
        break;
    case JSON_REAL:
        if (in_list || json_real_value(v) != 0) {
            ebb_rowline_real(l, name, json_real_value(v));
        }
        break;
    case JSON_STRING:
        if (in_list || json_string_length(v) > 0) {
            ebb_rowline_text(l, name, json_string_value(v));
        }
        break;
    case JSON_TRUE:
        ebb_rowline_flag(l, name, true);
        break;
    case JSON_FALSE:
        if (in_list) {
            ebb_rowline_flag(l, name, false);
        }
        break;
    case JSON_NULL:
        ebb_rowline_text(l, name, "nan"); // a number that is not finite
        break;
    }
}

void ebb_pbprint(ebb_rowline *l, const ProtobufCMessage *msg)
{
    json_t *object = ebb_json_message(msg);
    s_value(l, "", object, false);
    json_decref(object);
}
