// Little-endian fields, big-endian keys, and small rows that carry their own checksum.
//
// Numbers in values are little-endian. Numbers in keys are big-endian, so that the store's order is numeric order. A small row's value ends in the
// CRC32C (u32) of everything before it; big rows (journal parts, chunks) have a checked header and a checked body instead (docs/journal.md).
#ifndef EBB_PS_ROW_H
#define EBB_PS_ROW_H

#include <stddef.h>
#include <stdint.h>

#include "core/kvstore.h"
#include "core/status.h"

static inline void ebb_row_put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static inline void ebb_row_put_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static inline uint32_t ebb_row_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t ebb_row_u64(const uint8_t *p)
{
    return (uint64_t)ebb_row_u32(p) | (uint64_t)ebb_row_u32(p + 4) << 32;
}

static inline void ebb_row_key_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (24 - 8 * i));
    }
}

static inline void ebb_row_key_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++) {
        p[i] = (uint8_t)(v >> (56 - 8 * i));
    }
}

static inline uint32_t ebb_row_from_key_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static inline uint64_t ebb_row_from_key_u64(const uint8_t *p)
{
    return (uint64_t)ebb_row_from_key_u32(p) << 32 | ebb_row_from_key_u32(p + 4);
}

// Puts value + checksum.
void ebb_row_put(ebb_kvbatch *b, const void *key, size_t key_len, const void *value, size_t len);
// Length without the checksum of a stored value. CORRUPT: too short or the checksum is wrong.
ebb_status ebb_row_check(const uint8_t *stored, size_t stored_len, size_t *len);
// Reads a checked row: *value is malloc'ed, *len without the checksum. NOENT, CORRUPT, IO.
ebb_status ebb_row_get(ebb_kvstore *kv, const void *key, size_t key_len, uint8_t **value, size_t *len);

#endif
