// Pins: named references to all chunks at one version, for readers that need a consistent whole (evaluation, export) while training goes on.
//
// A pin costs no copy when it is made; chunks that change afterwards cost one more buffer each. A pin lives for its ttl and dies with the process.
#ifndef EBB_PS_PINS_H
#define EBB_PS_PINS_H

#include "ps/chunk.h"

#define EBB_PINS_MAX 16
#define EBB_PIN_TTL_MS_MAX (10u * 60u * 1000u)

typedef struct ebb_pin {
    uint64_t id; // 0: free
    uint64_t version;
    uint64_t deadline_ms;
    ebb_chunk_state *chunks;
    uint32_t count;
} ebb_pin;

typedef struct ebb_pins {
    ebb_pin at[EBB_PINS_MAX];
} ebb_pins;

void ebb_pins_init(ebb_pins *p);
void ebb_pins_fini(ebb_pins *p);
// Pins the chunks, or renews the pin of that id (its version stays). INVAL: id 0. TRYLATER: too many pins. NOMEM.
ebb_status ebb_pins_add(ebb_pins *p, uint64_t id, uint64_t version, const ebb_chunk_state *chunks, uint32_t count, uint64_t now_ms, uint32_t ttl_ms,
                        uint64_t *pinned_version);
ebb_pin *ebb_pins_find(ebb_pins *p, uint64_t id); // NULL: no such pin (or expired)
void ebb_pins_drop(ebb_pins *p, uint64_t id);
void ebb_pins_expire(ebb_pins *p, uint64_t now_ms);
uint64_t ebb_pins_next_deadline(const ebb_pins *p); // UINT64_MAX: none

#endif
