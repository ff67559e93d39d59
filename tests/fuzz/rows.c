#include "tests/fuzz/rows.h"

#include <string.h>

// The n-th row, counted round; false: there is none, or it is too long for us.
static bool s_row(ebb_kvstore *kv, size_t n, fuzz_row *out)
{
    for (int round = 0; round < 2; round++) {
        ebb_kviter *it = NULL;
        const uint8_t *key, *value;
        size_t key_len, len, count = 0;
        bool found = false;
        FUZZ_OK(ebb_kviter_open(kv, "", 0, &it));
        while (!found && ebb_kviter_next(it, &key, &key_len, &value, &len)) {
            found = count++ == n && key_len <= sizeof(out->key) && len <= sizeof(out->value);
            if (found) {
                memcpy(out->key, key, key_len);
                memcpy(out->value, value, len);
                out->key_len = key_len;
                out->len = len;
            }
        }
        ebb_kviter_close(&it);
        if (found || count == 0) {
            return found;
        }
        n %= count;
    }
    return false;
}

static void s_delete(ebb_kvstore *kv, const fuzz_row *r)
{
    ebb_kvbatch *b = NULL;
    FUZZ_OK(ebb_kvbatch_new(&b));
    ebb_kvbatch_del(b, r->key, r->key_len);
    FUZZ_OK(ebb_kvstore_write(kv, b, true));
    ebb_kvbatch_free(&b);
}

// A number of `width` bytes at a place: little-endian as values are, or big-endian as keys are.
static void s_field(fuzz_in *in, uint8_t *bytes, size_t len, bool big)
{
    size_t at = fuzz_u8(in), width = fuzz_u8(in) % 8 + 1;
    uint64_t v = fuzz_number(in);
    for (size_t i = 0; i < width && at + i < len; i++) {
        bytes[at + i] = (uint8_t)(v >> (8 * (big ? width - 1 - i : i)));
    }
}

static void s_flip(fuzz_in *in, fuzz_row *r)
{
    size_t at = fuzz_u8(in);
    at |= (size_t)fuzz_u8(in) << 8;
    uint8_t bits = fuzz_u8(in);
    if (r->len > 0) {
        r->value[at % r->len] ^= bits;
    }
}

static void s_resize(fuzz_in *in, fuzz_row *r)
{
    uint8_t n = fuzz_u8(in);
    if (n < 128) {
        r->len -= n < r->len ? n : r->len;
    }
    for (; n > 128 && r->len < sizeof(r->value); n--) {
        r->value[r->len++] = n;
    }
}

static void s_own(fuzz_in *in, fuzz_row *r)
{
    size_t n;
    const uint8_t *bytes = fuzz_bytes(in, &n);
    r->key_len = n < sizeof(r->key) ? n : sizeof(r->key);
    memcpy(r->key, bytes, r->key_len);
    bytes = fuzz_bytes(in, &n);
    r->len = n < sizeof(r->value) ? n : sizeof(r->value);
    memcpy(r->value, bytes, r->len);
}

void fuzz_change_row(ebb_kvstore *kv, fuzz_in *in, void (*repair)(fuzz_row *row))
{
    uint8_t kind = fuzz_u8(in) % 7;
    fuzz_row r;
    if (kind != 6 && !s_row(kv, fuzz_u8(in), &r)) {
        return;
    }
    switch (kind) {
    case 0:
        s_flip(in, &r);
        break;
    case 1:
        s_field(in, r.value, r.len, false);
        break;
    case 2:
    case 5:
        if (kind == 2) {
            s_delete(kv, &r);
        }
        s_field(in, r.key, r.key_len, true);
        break;
    case 3:
        s_resize(in, &r);
        break;
    case 4:
        s_delete(kv, &r);
        return;
    default:
        s_own(in, &r);
        break;
    }
    if (fuzz_u8(in) % 4 != 3 && repair != NULL) {
        repair(&r);
    }
    FUZZ_OK(ebb_kvstore_put(kv, r.key, r.key_len, r.value, r.len, true));
}
