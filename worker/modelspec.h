// The model as the job describes it, as the models understand it.
#ifndef EBB_WORKER_MODELSPEC_H
#define EBB_WORKER_MODELSPEC_H

#include "core/wire.h"
#include "worker/models/model.h"

// Fills the configuration and has the family check it. INVAL with a sentence in why (>= 256 bytes).
ebb_status ebb_modelspec_config(const Ebb__ModelSpec *spec, ebb_model_config *out, char *why);

#endif
