// JSON as `--json` prints it.
#ifndef EBB_TOOLS_EBB_JSON_H
#define EBB_TOOLS_EBB_JSON_H

#include "core/json.h"

// One line on stdout with "kind" first; takes the object. A "kind" of the object's own becomes "event".
void ebb_json_line(const char *kind, json_t *object);

#endif
