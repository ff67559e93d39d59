// Protobuf messages as JSON, for people and other programs: field by field, names as in proto/ebb.proto.
#ifndef EBB_CORE_JSON_H
#define EBB_CORE_JSON_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>

// New reference. Unset submessages are left out; numbers that are not finite are null; 64-bit names (job, incarnation) are 16 hexadecimal digits.
json_t *ebb_json_message(const ProtobufCMessage *msg);

#endif
