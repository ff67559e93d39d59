#include "coordinator/statecheck.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "coordinator/staterows.h"
#include "core/bytes.h"
#include "core/pbprint.h"

typedef struct dumper {
    ebb_rowline line;
    uint64_t damaged;
} dumper;

static const char *s_kind(char letter)
{
    static const char *const names[] = {"Fformat",  "Jjob",  "Mmanifest", "Pplacement", "Wwanted",   "Sstate",
                                        "Rretired", "Uunit", "Kskip",     "Veval",      "Lprogress", "Eevent"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i][0] == letter) {
            return names[i] + 1;
        }
    }
    return "unknown";
}

static void s_unit(ebb_rowline *l, const Ebb__LeaseRow *u)
{
    ebb_rowline_u64(l, "unit", u->stream);
    ebb_rowline_u64(l, "lease", u->lease);
    ebb_rowline_text(l, "worker", u->worker);
    ebb_rowline_hex(l, "incarnation", u->incarnation, 16);
    ebb_rowline_u64(l, "seq_first", u->seq_first);
    ebb_rowline_u64(l, "attempt", u->attempt);
}

static void s_eval(ebb_rowline *l, uint64_t id, const Ebb__EvalPoint *e)
{
    if (id == UINT64_MAX) {
        ebb_rowline_text(l, "id", "final");
    } else {
        ebb_rowline_u64(l, "id", id);
    }
    ebb_rowline_u64(l, "step", e->step);
    ebb_rowline_u64(l, "version", e->version);
    ebb_rowline_real(l, "loss", e->loss);
    ebb_rowline_real(l, "accuracy", e->accuracy);
    ebb_rowline_real(l, "time_s", e->time_s);
}

static void s_event(ebb_rowline *l, const Ebb__Event *e)
{
    ebb_rowline_u64(l, "id", e->id);
    ebb_rowline_u64(l, "unix_ms", e->unix_ms);
    ebb_rowline_text(l, "kind", e->kind);
    ebb_rowline_text(l, "subject", e->subject);
    ebb_rowline_text(l, "text", e->text);
}

static void s_fields(ebb_rowline *l, const ebb_staterow *r)
{
    switch (r->letter) {
    case 'F':
        ebb_rowline_u64(l, "format", r->number);
        break;
    case 'J':
        ebb_rowline_hex(l, "job", r->job, 16);
        ebb_rowline_u64(l, "created_unix_ms", r->created_ms);
        ebb_pbprint(l, r->message);
        break;
    case 'M':
        ebb_rowline_hex(l, "hash", ebb_manifest_hash(r->manifest), 16);
        ebb_rowline_u64(l, "tensors", r->manifest->n_tensors);
        ebb_rowline_u64(l, "chunks", r->manifest->n_chunks);
        ebb_rowline_u64(l, "elements", r->manifest->numel);
        break;
    case 'P':
        ebb_rowline_u64(l, "epoch", r->epoch);
        ebb_rowline_u64(l, "shards", r->number);
        break;
    case 'W':
        ebb_rowline_u64(l, "workers", r->number);
        break;
    case 'S':
        ebb_rowline_text(l, "state", r->text);
        break;
    case 'R':
        ebb_rowline_u64(l, "below", r->retired.below);
        ebb_rowline_u64(l, "listed", r->retired.n);
        ebb_rowline_u64(l, "steps", r->retired.steps);
        ebb_rowline_u64(l, "next_lease", r->retired.next_lease);
        ebb_rowline_u64(l, "repeated", r->retired.repeated);
        break;
    case 'U':
        s_unit(l, (const Ebb__LeaseRow *)r->message);
        break;
    case 'K':
        ebb_rowline_u64(l, "unit", r->a);
        ebb_rowline_u64(l, "seq", r->b);
        ebb_rowline_text(l, "reason", r->text);
        break;
    case 'V':
        s_eval(l, r->a, (const Ebb__EvalPoint *)r->message);
        break;
    case 'L':
        ebb_pbprint(l, r->message);
        break;
    case 'E':
        s_event(l, (const Ebb__Event *)r->message);
        break;
    default:
        break;
    }
}

// Rows that hold a list: one more line for each.
static void s_items(ebb_rowline *l, const ebb_staterow *r)
{
    for (uint32_t i = 0; r->letter == 'P' && i < r->number; i++) {
        ebb_rowline_begin(l, "shard");
        ebb_rowline_u64(l, "shard", i);
        ebb_rowline_u64(l, "first_chunk", ebb_get_le32(r->ranges + 8 * (size_t)i));
        ebb_rowline_u64(l, "chunks", ebb_get_le32(r->ranges + 8 * (size_t)i + 4));
        ebb_rowline_end(l);
    }
    for (uint64_t i = 0; r->letter == 'R' && i < r->retired.n; i++) {
        ebb_rowline_begin(l, "retired-unit");
        ebb_rowline_u64(l, "unit", ebb_get_le64(r->retired.list + 8 * i));
        ebb_rowline_end(l);
    }
}

static void s_on_row(void *arg, const ebb_staterow *r)
{
    dumper *d = arg;
    ebb_rowline_begin(&d->line, s_kind(r->letter));
    if (r->bad != NULL) {
        d->damaged++;
        ebb_rowline_text(&d->line, "name", r->name);
        ebb_rowline_text(&d->line, "damaged", r->bad);
    } else {
        s_fields(&d->line, r);
    }
    ebb_rowline_u64(&d->line, "bytes", r->bytes);
    ebb_rowline_end(&d->line);
    if (r->bad == NULL) {
        s_items(&d->line, r);
    }
}

ebb_status ebb_statedump(const char *dir, ebb_rowline_style style, FILE *out, FILE *err)
{
    char why[512] = "";
    uint32_t format;
    dumper d = {0};
    ebb_statestore *s = NULL;
    struct stat info;
    ebb_rowline_init(&d.line, out, style);
    bool there = stat(dir, &info) == 0;
    ebb_status st = ebb_statestore_open_read(dir, &format, &s, why);
    if (st == EBB_OK) {
        st = ebb_staterows(ebb_statestore_kv(s), EBB_STATEROWS_ALL, s_on_row, &d, why);
        ebb_statestore_close(&s);
    } else if (st == EBB_NOENT && there) {
        snprintf(why, sizeof(why), "%.300s is not a coordinator's folder: there is no store in it", dir);
        st = EBB_CONFIG;
    }
    if (st != EBB_OK) {
        fprintf(err, "ebb-coordinator: %s\n", why[0] != '\0' ? why : ebb_status_str(st));
        return st;
    }
    if (d.damaged > 0) {
        fprintf(err, "ebb-coordinator: %s: %" PRIu64 " rows are damaged: --check says more\n", dir, d.damaged);
    }
    return d.damaged > 0 ? EBB_CORRUPT : EBB_OK;
}
