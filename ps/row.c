#include "ps/row.h"

#include <stdlib.h>

#include "core/crc32c.h"

void ebb_row_put(ebb_kvbatch *b, const void *key, size_t key_len, const void *value, size_t len)
{
    uint8_t crc[4];
    ebb_put_le32(crc, ebb_crc32c(0, value, len));
    const void *pieces[2] = {value, crc};
    size_t lens[2] = {len, sizeof(crc)};
    ebb_kvbatch_putv(b, key, key_len, pieces, lens, 2);
}

ebb_status ebb_row_check(const uint8_t *stored, size_t stored_len, size_t *len)
{
    if (stored_len < 4 || ebb_crc32c(0, stored, stored_len - 4) != ebb_get_le32(stored + stored_len - 4)) {
        return EBB_CORRUPT;
    }
    *len = stored_len - 4;
    return EBB_OK;
}

ebb_status ebb_row_get(ebb_kvstore *kv, const void *key, size_t key_len, uint8_t **value, size_t *len)
{
    uint8_t *stored = NULL;
    size_t n = 0;
    EBB_TRY(ebb_kvstore_get(kv, key, key_len, &stored, &n));
    ebb_status st = ebb_row_check(stored, n, len);
    if (st != EBB_OK) {
        free(stored);
        return st;
    }
    *value = stored;
    return EBB_OK;
}
