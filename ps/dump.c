#include "ps/dump.h"

#include <inttypes.h>
#include <string.h>

#include "core/pbprint.h"
#include "ps/inspect.h"
#include "ps/recover.h"

typedef struct dumper {
    ebb_rowline line;
    size_t values;
    uint64_t damaged;
} dumper;

static const char *s_dtype_name(uint32_t dtype)
{
    static const char *const names[] = {"f32", "bf16", "f16", "i8", "bytes"};
    return dtype < sizeof(names) / sizeof(names[0]) ? names[dtype] : "unknown";
}

static void s_install(ebb_rowline *l, const Ebb__ShardInstall *in)
{
    ebb_rowline_hex(l, "job", in->job, 16);
    ebb_rowline_u64(l, "epoch", in->epoch);
    ebb_rowline_u64(l, "first_chunk", in->first_chunk);
    ebb_rowline_u64(l, "chunks", in->chunk_count);
    ebb_rowline_hex(l, "manifest", in->manifest_hash, 16);
    ebb_pbprint(l, &in->spec->base);
}

static void s_tensor(ebb_rowline *l, const ebb_tensor *t)
{
    static const char *const init[] = {"zeros", "constant", "normal", "uniform"};
    char shape[EBB_TENSOR_NDIM_MAX * 21 + 1] = "";
    int n = 0;
    for (uint32_t i = 0; i < t->ndim; i++) {
        n += snprintf(shape + n, sizeof(shape) - (size_t)n, "%s%" PRIu64, i > 0 ? "x" : "", t->ne[i]);
    }
    ebb_rowline_begin(l, "tensor");
    ebb_rowline_text(l, "name", t->name);
    ebb_rowline_text(l, "shape", shape);
    ebb_rowline_text(l, "dtype", s_dtype_name(t->dtype));
    ebb_rowline_text(l, "init", (unsigned)t->init < 4 ? init[t->init] : "unknown");
    ebb_rowline_real(l, "init_a", t->init_a);
    ebb_rowline_u64(l, "group", t->group);
    ebb_rowline_u64(l, "offset", t->offset);
    ebb_rowline_u64(l, "first_chunk", t->first_chunk);
    ebb_rowline_u64(l, "chunks", t->chunk_count);
}

static void s_manifest(ebb_rowline *l, const ebb_manifest *m)
{
    ebb_rowline_hex(l, "hash", ebb_manifest_hash(m), 16);
    ebb_rowline_u64(l, "tensors", m->n_tensors);
    ebb_rowline_u64(l, "chunks", m->n_chunks);
    ebb_rowline_u64(l, "chunk_elems", m->chunk_elems);
    ebb_rowline_u64(l, "elements", m->numel);
}

static void s_vector(const dumper *d, ebb_rowline *l, const uint8_t *data, size_t n)
{
    ebb_vector_facts f = ebb_vector_look(data, n);
    ebb_rowline_real(l, "norm", f.norm);
    ebb_rowline_real(l, "max", f.max);
    if (f.not_finite > 0) {
        ebb_rowline_u64(l, "not_finite", f.not_finite);
    }
    if (d->values > 0) {
        ebb_rowline_floats(l, "values", data, n < d->values ? n : d->values);
    }
}

static void s_chunk(const dumper *d, ebb_rowline *l, const ebb_inspect_row *r)
{
    const ebb_chunk_row *c = &r->chunk;
    ebb_rowline_u64(l, "chunk", c->chunk);
    ebb_rowline_u64(l, "slot", c->slot);
    ebb_rowline_u64(l, "slots", c->n_bufs);
    ebb_rowline_u64(l, "generation", r->generation);
    ebb_rowline_u64(l, "version", c->version);
    ebb_rowline_u64(l, "lsn", c->lsn);
    ebb_rowline_u64(l, "updates", c->steps);
    ebb_rowline_u64(l, "elements", c->numel);
    ebb_rowline_text(l, "dtype", "f32");
    ebb_rowline_hex(l, "crc", c->crc32c, 8);
    s_vector(d, l, c->data, c->numel);
}

static void s_record(ebb_rowline *l, const ebb_record *r)
{
    ebb_rowline_u64(l, "lsn", r->lsn);
    ebb_rowline_text(l, "kind", r->kind == EBB_RECORD_PUSH ? "push" : "skip");
    ebb_rowline_u64(l, "stream", r->stream);
    ebb_rowline_u64(l, "seq", r->seq);
    ebb_rowline_u64(l, "version", r->version);
    ebb_rowline_u64(l, "attempt", r->attempt);
    ebb_rowline_u64(l, "staleness", r->staleness);
    ebb_rowline_real(l, "weight", r->weight);
    ebb_rowline_u64(l, "parts", r->n_parts);
}

static void s_gradient(const dumper *d, ebb_rowline *l, const ebb_inspect_row *r)
{
    const ebb_replay_part *p = &r->gradient;
    ebb_rowline_u64(l, "lsn", r->lsn);
    ebb_rowline_u64(l, "part", r->part);
    ebb_rowline_u64(l, "chunk", p->chunk);
    ebb_rowline_u64(l, "elements", p->numel);
    ebb_rowline_u64(l, "payload", (uint64_t)p->numel * ebb_dtype_bytes((ebb_dtype)p->dtype));
    ebb_rowline_text(l, "codec", p->codec == EBB_CODEC_RAW ? "raw" : "unknown");
    ebb_rowline_text(l, "dtype", s_dtype_name(p->dtype));
    ebb_rowline_hex(l, "crc", p->crc32c, 8);
    s_vector(d, l, p->data, p->numel);
}

static const char *s_kind_name(ebb_inspect_kind kind)
{
    switch (kind) {
    case EBB_INSPECT_INSTALL:
        return "job";
    case EBB_INSPECT_MANIFEST:
        return "manifest";
    case EBB_INSPECT_STATE:
        return "state";
    case EBB_INSPECT_RETIRED:
        return "retired";
    case EBB_INSPECT_WATERMARK:
        return "stream";
    case EBB_INSPECT_CHUNK:
        return "chunk";
    case EBB_INSPECT_RECORD:
        return "record";
    case EBB_INSPECT_PART:
        return "gradient";
    case EBB_INSPECT_UNKNOWN:
        break;
    }
    return "unknown";
}

static void s_fields(const dumper *d, ebb_rowline *l, const ebb_inspect_row *r)
{
    switch (r->kind) {
    case EBB_INSPECT_INSTALL:
        s_install(l, r->install);
        break;
    case EBB_INSPECT_MANIFEST:
        s_manifest(l, r->manifest);
        break;
    case EBB_INSPECT_STATE:
        ebb_rowline_u64(l, "generation", r->generation);
        ebb_rowline_u64(l, "lsn", r->state.lsn);
        ebb_rowline_u64(l, "version", r->state.version);
        ebb_rowline_u64(l, "skipped", r->state.skipped);
        break;
    case EBB_INSPECT_RETIRED:
        ebb_rowline_u64(l, "below", r->retired->retired_below);
        ebb_rowline_u64(l, "listed", r->retired->n_retired);
        break;
    case EBB_INSPECT_WATERMARK:
        ebb_rowline_u64(l, "stream", r->watermark.stream);
        ebb_rowline_u64(l, "applied", r->watermark.applied);
        ebb_rowline_u64(l, "lsn", r->watermark.lsn);
        break;
    case EBB_INSPECT_CHUNK:
        s_chunk(d, l, r);
        break;
    case EBB_INSPECT_RECORD:
        s_record(l, &r->record);
        break;
    case EBB_INSPECT_PART:
        s_gradient(d, l, r);
        break;
    case EBB_INSPECT_UNKNOWN:
        break;
    }
}

static ebb_status s_on_row(void *arg, const ebb_inspect_row *r)
{
    dumper *d = arg;
    ebb_rowline *l = &d->line;
    ebb_rowline_begin(l, s_kind_name(r->kind));
    if (r->bad != NULL) {
        d->damaged++;
        ebb_rowline_text(l, "name", r->name);
        ebb_rowline_text(l, "damaged", r->bad);
    } else {
        s_fields(d, l, r);
    }
    ebb_rowline_u64(l, "bytes", r->bytes);
    ebb_rowline_end(l);
    for (size_t i = 0; r->bad == NULL && r->kind == EBB_INSPECT_MANIFEST && i < r->manifest->n_tensors; i++) {
        s_tensor(l, &r->manifest->tensors[i]);
        ebb_rowline_end(l);
    }
    for (size_t i = 0; r->bad == NULL && r->kind == EBB_INSPECT_RETIRED && i < r->retired->n_retired; i++) {
        ebb_rowline_begin(l, "retired-stream");
        ebb_rowline_u64(l, "stream", r->retired->retired[i]);
        ebb_rowline_end(l);
    }
    return EBB_OK;
}

ebb_status ebb_dump(const char *dir, unsigned what, size_t values, ebb_rowline_style style, FILE *out, FILE *err)
{
    char why[512] = "", letters[16];
    uint32_t format = 0, shard = 0;
    ebb_kvstore *kv = NULL;
    dumper d = {.values = values};
    ebb_rowline_init(&d.line, out, style);
    ebb_status st = ebb_recover_open_read(dir, &format, &shard, &kv, why);
    if (st == EBB_OK || (st == EBB_NOENT && format != 0)) { // else there is no such folder, or it is not to be read
        ebb_rowline_begin(&d.line, "format");
        ebb_rowline_u64(&d.line, "format", format);
        ebb_rowline_u64(&d.line, "shard", shard);
        ebb_rowline_end(&d.line);
        if (st == EBB_NOENT) {
            return EBB_OK;
        }
        snprintf(letters, sizeof(letters), "IMG%s%s%s%s", what & EBB_DUMP_STREAMS ? "RW" : "", what & EBB_DUMP_CHUNKS ? "C" : "",
                 what & EBB_DUMP_JOURNAL ? "J" : "", what == EBB_DUMP_ALL ? "?" : "");
        st = ebb_inspect(kv, letters, s_on_row, &d, why);
        ebb_kvstore_close(&kv);
    }
    if (st != EBB_OK) {
        fprintf(err, "ebb-shard: %s\n", why[0] != '\0' ? why : ebb_status_str(st));
        return st;
    }
    if (d.damaged > 0) {
        fprintf(err, "ebb-shard: %s: %" PRIu64 " rows are damaged: --check says more\n", dir, d.damaged);
    }
    return d.damaged > 0 ? EBB_CORRUPT : EBB_OK;
}
