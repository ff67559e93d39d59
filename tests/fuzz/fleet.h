// A coordinator without a socket, on a store in memory, and the requests that workers, shards and people make of it. For fuzz_coordinator and fuzz_statestore.
//
// Invariant: every request goes through its wire form and so does every answer, as in life: an answer that does not fit a message, or that its receiver could
// not unpack, is a finding.
#ifndef EBB_TESTS_FUZZ_FLEET_H
#define EBB_TESTS_FUZZ_FLEET_H

#include "coordinator/coordinator.h"
#include "tests/fuzz/fuzz.h"

#define FLEET_DIR "coordinator"
#define FLEET_NUMEL 20
#define FLEET_CHUNK_ELEMS 4

typedef struct fleet_options {
    uint32_t shards, unit_steps, batch, workers_min, workers_max, lease_ms;
    uint64_t train_samples, steps, val_samples, eval_every;
    bool snapshot; // durability
} fleet_options;

typedef struct fleet {
    ebb_coordinator *c;
    uint64_t now;
    uint64_t request_id;
} fleet;

// Opens the store: with options creates the job, or resumes the same one; NULL: resumes.
ebb_status fleet_open(fleet *f, const fleet_options *options, char *why);
void fleet_close(fleet *f);

// False: not answered, since the request does not fit a message or the coordinator's store has failed. Else the caller frees the reply (ebb_msg_fini).
bool fleet_ask(fleet *f, Ebb__Envelope *env, const ebb_part *part, ebb_msg *reply);
// The same for a request in its wire form.
bool fleet_ask_message(fleet *f, const ebb_msg *request, ebb_msg *reply);

// A packed manifest as a part, of one tensor in so many chunks; the caller drops part->buf.
void fleet_manifest(uint32_t chunks, ebb_part *part);

#endif
