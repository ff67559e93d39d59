#include "ps/pins.h"

#include <stdlib.h>
#include <string.h>

void ebb_pins_init(ebb_pins *p)
{
    memset(p, 0, sizeof(*p));
}

static void s_free(ebb_pin *pin)
{
    for (uint32_t i = 0; i < pin->count; i++) {
        ebb_chunk_state_fini(&pin->chunks[i]);
    }
    free(pin->chunks);
    memset(pin, 0, sizeof(*pin));
}

void ebb_pins_fini(ebb_pins *p)
{
    for (int i = 0; i < EBB_PINS_MAX; i++) {
        s_free(&p->at[i]);
    }
}

ebb_pin *ebb_pins_find(ebb_pins *p, uint64_t id)
{
    for (int i = 0; i < EBB_PINS_MAX; i++) {
        if (id != 0 && p->at[i].id == id) {
            return &p->at[i];
        }
    }
    return NULL;
}

ebb_status ebb_pins_add(ebb_pins *p, uint64_t id, uint64_t version, const ebb_chunk_state *chunks, uint32_t count, uint64_t now_ms, uint32_t ttl_ms,
                        uint64_t *pinned_version)
{
    if (id == 0) {
        return EBB_INVAL;
    }
    if (ttl_ms > EBB_PIN_TTL_MS_MAX) {
        ttl_ms = EBB_PIN_TTL_MS_MAX;
    }
    ebb_pin *pin = ebb_pins_find(p, id);
    if (pin == NULL) {
        for (int i = 0; i < EBB_PINS_MAX && pin == NULL; i++) {
            pin = p->at[i].id == 0 ? &p->at[i] : NULL;
        }
        if (pin == NULL) {
            return EBB_TRYLATER;
        }
        pin->chunks = calloc(count > 0 ? count : 1, sizeof(*pin->chunks));
        if (pin->chunks == NULL) {
            return EBB_NOMEM;
        }
        for (uint32_t i = 0; i < count; i++) {
            ebb_chunk_state_share(&chunks[i], &pin->chunks[i]);
        }
        pin->id = id;
        pin->version = version;
        pin->count = count;
    }
    pin->deadline_ms = now_ms + ttl_ms;
    *pinned_version = pin->version;
    return EBB_OK;
}

void ebb_pins_drop(ebb_pins *p, uint64_t id)
{
    ebb_pin *pin = ebb_pins_find(p, id);
    if (pin != NULL) {
        s_free(pin);
    }
}

void ebb_pins_expire(ebb_pins *p, uint64_t now_ms)
{
    for (int i = 0; i < EBB_PINS_MAX; i++) {
        if (p->at[i].id != 0 && p->at[i].deadline_ms <= now_ms) {
            s_free(&p->at[i]);
        }
    }
}

uint64_t ebb_pins_next_deadline(const ebb_pins *p)
{
    uint64_t next = UINT64_MAX;
    for (int i = 0; i < EBB_PINS_MAX; i++) {
        if (p->at[i].id != 0 && p->at[i].deadline_ms < next) {
            next = p->at[i].deadline_ms;
        }
    }
    return next;
}
