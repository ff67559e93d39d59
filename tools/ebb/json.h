// Messages as JSON, field by field from their descriptors, with the names of proto/ebb.proto.
#ifndef EBB_TOOLS_EBB_JSON_H
#define EBB_TOOLS_EBB_JSON_H

#include <jansson.h>

#include "core/wire.h"

// New reference. Unset submessages are left out.
json_t *ebb_json_message(const ProtobufCMessage *msg);
// One line on stdout with "kind" first; takes the object. A "kind" of the object's own becomes "event".
void ebb_json_line(const char *kind, json_t *object);

#endif
