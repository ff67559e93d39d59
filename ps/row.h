// Small rows that carry their own checksum.
//
// A small row's value ends in the CRC32C (u32) of everything before it; big rows (journal parts, chunks) have a checked header and a checked body
// instead (docs/journal.md).
#ifndef EBB_PS_ROW_H
#define EBB_PS_ROW_H

#include <stddef.h>
#include <stdint.h>

#include "core/bytes.h"
#include "core/kvstore.h"
#include "core/status.h"

// Puts value + checksum.
void ebb_row_put(ebb_kvbatch *b, const void *key, size_t key_len, const void *value, size_t len);
// Length without the checksum of a stored value. CORRUPT: too short or the checksum is wrong.
ebb_status ebb_row_check(const uint8_t *stored, size_t stored_len, size_t *len);
// Reads a checked row: *value is malloc'ed, *len without the checksum. NOENT, CORRUPT, IO.
ebb_status ebb_row_get(ebb_kvstore *kv, const void *key, size_t key_len, uint8_t **value, size_t *len);

#endif
