#include "core/kvlog.h"

#include "core/bytes.h"
#include "core/crc32c.h"

#define BLOCK_BYTES 32768u
#define HEADER_BYTES 7u
#define HEADER_REUSED_BYTES 11u

enum { FULL = 1, FIRST = 2, MIDDLE = 3, LAST = 4, REUSED_FULL = 5, REUSED_LAST = 8 };

// As RocksDB stores it: a checksum of bytes that hold checksums would be weak.
static uint32_t s_mask(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// The fragment at data (len bytes to the end of its block or file). *size: its bytes with the header. NULL: good.
static const char *s_fragment(const uint8_t *data, size_t len, unsigned *type, size_t *size)
{
    if (len < HEADER_BYTES) {
        return "a record's header is cut";
    }
    *type = data[6];
    size_t header = *type >= REUSED_FULL && *type <= REUSED_LAST ? HEADER_REUSED_BYTES : HEADER_BYTES;
    *size = header + ebb_get_le16(data + 4);
    if (*size > len) {
        return "a record is cut, or its length is damaged";
    }
    if (s_mask(ebb_crc32c(0, data + 6, *size - 6)) != ebb_get_le32(data)) {
        return "a record's checksum is wrong";
    }
    *type = header == HEADER_REUSED_BYTES ? *type - REUSED_LAST + LAST : *type;
    return NULL;
}

void ebb_kvlog_walk_bytes(const uint8_t *data, size_t len, ebb_kvlog_walk *out)
{
    size_t at = 0;
    bool inside = false; // between a first fragment and its last
    *out = (ebb_kvlog_walk){0};
    while (at < len && out->bad == NULL) {
        size_t left = BLOCK_BYTES - at % BLOCK_BYTES;
        unsigned type = 0;
        size_t size = 0;
        if (left < HEADER_BYTES) { // the rest of a block
            for (size_t i = 0; i < left && at + i < len; i++) {
                out->bad = data[at + i] != 0 ? "the filling at a block's end is not zero" : out->bad;
            }
            at += out->bad == NULL ? (left < len - at ? left : len - at) : 0;
            continue;
        }
        out->bad = s_fragment(data + at, left < len - at ? left : len - at, &type, &size);
        if (out->bad != NULL) {
            break;
        }
        if (inside ? type == FULL || type == FIRST : type == MIDDLE || type == LAST) {
            out->bad = "a part of a record is missing";
            break;
        }
        at += size;
        inside = type == FIRST || type == MIDDLE;
        if (!inside) { // types this version does not know are whole by themselves
            out->whole = at;
            out->records++;
        }
    }
    out->at = at;
    if (out->bad == NULL && inside) {
        out->bad = "a record's end is missing";
    } else if (out->bad == NULL) {
        out->whole = len;
    }
}
