// Takes the model (and its optimizer state) out of running shards, pinned at one version, into a safetensors file.
#ifndef EBB_TOOLS_EBB_FETCH_H
#define EBB_TOOLS_EBB_FETCH_H

#include "core/status.h"
#include "core/wire.h"

// endpoint: the coordinator's. Writes PATH; with optimizer also the slots as "optimizer.<slot>.<tensor>". *version: least version over the shards.
// TIMEDOUT, or what failed, in why (>= 512).
ebb_status ebb_fetch_model(const char *endpoint, const char *path, int optimizer, uint32_t timeout_ms, uint64_t *version, char *why);

#endif
