#include "ps/inspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/recover.h"
#include "ps/row.h"

#define JOURNAL_KEY_BYTES 13
#define CHUNK_KEY_BYTES 10

typedef struct raw {
    const uint8_t *key, *value;
    size_t key_len, len;
} raw;

static const char *const s_damaged = "its checksum or format is damaged";

// Rows that are messages: checked bytes, then the message.
static void s_message(const raw *r, const ProtobufCMessageDescriptor *desc, ProtobufCMessage **msg, ebb_inspect_row *row)
{
    size_t n = 0;
    if (ebb_row_check(r->value, r->len, &n) != EBB_OK) {
        row->bad = "its checksum is wrong";
    } else if (ebb_pb_unpack(desc, r->value, n, msg) != EBB_OK) {
        row->bad = "its checksum is right, but it is no such message";
    }
}

static ebb_status s_install(const raw *r, ebb_inspect_row *row, ebb_inspect_fn *fn, void *arg)
{
    ProtobufCMessage *msg = NULL;
    snprintf(row->name, sizeof(row->name), "install row");
    s_message(r, &ebb__shard_install__descriptor, &msg, row);
    row->install = (const Ebb__ShardInstall *)msg;
    if (row->bad == NULL && row->install->spec == NULL) {
        row->bad = "it has no job spec";
    }
    ebb_status st = fn(arg, row);
    ebb_pb_free(msg);
    return st;
}

static ebb_status s_manifest(const raw *r, ebb_inspect_row *row, ebb_inspect_fn *fn, void *arg)
{
    ebb_manifest *manifest = NULL;
    size_t n = 0;
    snprintf(row->name, sizeof(row->name), "manifest row");
    if (ebb_row_check(r->value, r->len, &n) != EBB_OK) {
        row->bad = "its checksum is wrong";
    } else if (ebb_manifest_unpack(r->value, n, &manifest) != EBB_OK) {
        row->bad = "its checksum is right, but it is no manifest";
    }
    row->manifest = manifest;
    ebb_status st = fn(arg, row);
    ebb_manifest_free(&manifest);
    return st;
}

static ebb_status s_retired(ebb_kvstore *kv, ebb_inspect_row *row, ebb_inspect_fn *fn, void *arg)
{
    ebb_streams streams;
    char why[256];
    ebb_streams_init(&streams);
    snprintf(row->name, sizeof(row->name), "retired row");
    row->bad = ebb_recover_load_retired(kv, &streams, why) != EBB_OK ? s_damaged : NULL;
    row->retired = &streams;
    ebb_status st = fn(arg, row);
    ebb_streams_fini(&streams);
    return st;
}

static void s_state(ebb_kvstore *kv, ebb_inspect_row *row)
{
    snprintf(row->name, sizeof(row->name), "state row");
    if (ebb_snapshot_get_state(kv, &row->generation, &row->state.lsn, &row->state.version, &row->state.skipped) != EBB_OK) {
        row->bad = s_damaged;
    }
}

static void s_watermark(const raw *r, ebb_inspect_row *row)
{
    uint64_t stream = 0, applied = 0, lsn = 0;
    if (ebb_journal_watermark_read(r->key, r->key_len, r->value, r->len, &stream, &applied, &lsn) != EBB_OK) {
        row->bad = s_damaged;
    }
    row->watermark.stream = stream;
    row->watermark.applied = applied;
    row->watermark.lsn = lsn;
    snprintf(row->name, sizeof(row->name), "watermark of stream %llu", (unsigned long long)stream);
}

static void s_chunk(const raw *r, ebb_inspect_row *row)
{
    row->generation = ebb_get_be32(r->key + 1);
    uint32_t id = ebb_get_be32(r->key + 5), slot = r->key[9];
    snprintf(row->name, sizeof(row->name), "chunk %u slot %u generation %u", id, slot, row->generation);
    row->bad = ebb_snapshot_row_read(r->value, r->len, &row->chunk);
    if (row->bad == NULL && (row->chunk.chunk != id || row->chunk.slot != slot)) {
        row->bad = "it stands under another chunk's key";
    }
}

static void s_journal(const raw *r, ebb_inspect_row *row)
{
    row->lsn = ebb_get_be64(r->key + 1);
    row->part = ebb_get_be32(r->key + 9);
    if (row->part == 0) {
        snprintf(row->name, sizeof(row->name), "journal record %llu", (unsigned long long)row->lsn);
        row->bad = ebb_journal_head_read(r->value, r->len, row->lsn, &row->record) != EBB_OK ? "its head's checksum or format is damaged" : NULL;
        return;
    }
    row->kind = EBB_INSPECT_PART;
    snprintf(row->name, sizeof(row->name), "journal record %llu part %u", (unsigned long long)row->lsn, row->part);
    row->bad = ebb_journal_part_read(r->value, r->len, row->lsn, &row->gradient) != EBB_OK ? s_damaged : NULL;
}

static void s_unknown(const raw *r, ebb_inspect_row *row)
{
    row->kind = EBB_INSPECT_UNKNOWN;
    int n = snprintf(row->name, sizeof(row->name), "key ");
    for (size_t i = 0; i < r->key_len && i < 24; i++) {
        n += snprintf(row->name + n, sizeof(row->name) - (size_t)n, "%02x", r->key[i]);
    }
    row->bad = "no row of a shard has such a key";
}

static ebb_inspect_kind s_kind(const raw *r)
{
    switch (r->key_len > 0 ? r->key[0] : 0) {
    case 'I':
    case 'M':
    case 'G':
    case 'R':
        return r->key_len == 1 ? (ebb_inspect_kind)r->key[0] : EBB_INSPECT_UNKNOWN;
    case 'W':
        return r->key_len == 9 ? EBB_INSPECT_WATERMARK : EBB_INSPECT_UNKNOWN;
    case 'C':
        return r->key_len == CHUNK_KEY_BYTES ? EBB_INSPECT_CHUNK : EBB_INSPECT_UNKNOWN;
    case 'J':
        return r->key_len == JOURNAL_KEY_BYTES ? EBB_INSPECT_RECORD : EBB_INSPECT_UNKNOWN;
    default:
        return EBB_INSPECT_UNKNOWN;
    }
}

static ebb_status s_visit(ebb_kvstore *kv, const raw *r, ebb_inspect_kind kind, ebb_inspect_fn *fn, void *arg)
{
    ebb_inspect_row row = {.kind = kind, .bytes = r->len};
    switch (kind) {
    case EBB_INSPECT_INSTALL:
        return s_install(r, &row, fn, arg);
    case EBB_INSPECT_MANIFEST:
        return s_manifest(r, &row, fn, arg);
    case EBB_INSPECT_RETIRED:
        return s_retired(kv, &row, fn, arg);
    case EBB_INSPECT_STATE:
        s_state(kv, &row);
        break;
    case EBB_INSPECT_WATERMARK:
        s_watermark(r, &row);
        break;
    case EBB_INSPECT_CHUNK:
        s_chunk(r, &row);
        break;
    case EBB_INSPECT_RECORD:
    case EBB_INSPECT_PART:
        s_journal(r, &row);
        break;
    case EBB_INSPECT_UNKNOWN:
        s_unknown(r, &row);
        break;
    }
    return fn(arg, &row);
}

static ebb_status s_visit_letter(ebb_kvstore *kv, char letter, ebb_inspect_fn *fn, void *arg, char *why)
{
    ebb_kviter *it = NULL;
    raw r;
    ebb_status st = EBB_OK;
    bool ended = false; // by fn
    EBB_TRY(ebb_kviter_open(kv, &letter, letter == EBB_INSPECT_UNKNOWN ? 0 : 1, &it));
    while (st == EBB_OK && ebb_kviter_next(it, &r.key, &r.key_len, &r.value, &r.len)) {
        ebb_inspect_kind kind = s_kind(&r);
        if ((letter == EBB_INSPECT_UNKNOWN) == (kind == EBB_INSPECT_UNKNOWN)) {
            st = s_visit(kv, &r, kind, fn, arg);
            ended = st != EBB_OK;
        }
    }
    if (!ended && (st = ebb_kviter_status(it)) != EBB_OK) {
        snprintf(why, 256, "the store cannot give all rows whose keys begin with %c: %s", letter, ebb_status_str(st));
    }
    ebb_kviter_close(&it);
    return st;
}

ebb_status ebb_inspect(ebb_kvstore *kv, const char *letters, ebb_inspect_fn *fn, void *arg, char *why)
{
    for (const char *c = letters; *c != '\0'; c++) {
        EBB_TRY(s_visit_letter(kv, *c, fn, arg, why));
    }
    return EBB_OK;
}
