#include "tools/ebb/json.h"

#include <stdio.h>

void ebb_json_line(const char *kind, json_t *object)
{
    json_t *line = json_object();
    json_object_set_new(line, "kind", json_string(kind));
    if (json_object_get(object, "kind") != NULL) {
        json_object_set(line, "event", json_object_get(object, "kind"));
    }
    json_object_update_missing(line, object);
    json_decref(object);
    json_dumpf(line, stdout, JSON_COMPACT);
    json_decref(line);
    fputc('\n', stdout);
    fflush(stdout);
}
