// A protobuf message as fields of a row (core/rowline), whatever the message: new fields of proto/ebb.proto show up by themselves.
#ifndef EBB_CORE_PBPRINT_H
#define EBB_CORE_PBPRINT_H

#include "core/rowline.h"
#include "core/wire.h"

// Adds all fields that are not at their default, in the descriptor's order. Of messages within: "model.family"; of lists: "groups.0.lr_scale", "sizes.2".
void ebb_pbprint(ebb_rowline *l, const ProtobufCMessage *msg);

#endif
