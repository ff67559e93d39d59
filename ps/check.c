#include "ps/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include "ps/inspect.h"
#include "ps/recover.h"

#define PROBLEMS_SHOWN 200 // the rest is counted

typedef struct checker {
    const char *dir;
    FILE *err;
    uint64_t problems;
    uint32_t format, shard;
    ebb_kvmark_facts files;
    ebb_kvstore_facts store;
    // what rows say
    const char *durability;
    char job_name[64];
    bool has_install, has_manifest, has_state, journaled;
    uint64_t job;
    uint32_t first_chunk, chunk_count;
    uint32_t generation;
    uint64_t state_lsn;
    uint64_t records, skips, journal_bytes, oldest, newest;
    ebb_record record; // the last head
    uint32_t parts;    // of it, seen
    bool record_open;  // its head was whole, so its parts can be counted
    uint64_t chunk_rows, chunk_bytes, left_over;
    uint64_t streams, highest_watermark_lsn;
    uint64_t retired_below, retired_listed;
} checker;

static void s_problem(checker *c, const char *where, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void s_problem(checker *c, const char *where, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    for (char *p = text; *p != '\0'; p++) {
        *p = *p == '\n' ? ' ' : *p;
    }
    if (c->problems++ < PROBLEMS_SHOWN) {
        fprintf(c->err, "ebb-shard: %s: %s: %s\n", c->dir, where, text);
    }
}

static void s_on_file(void *arg, bool harmless, const char *file, const char *what)
{
    s_problem(arg, file, "%s%s", what, harmless ? " (nothing is lost by it)" : "");
}

// ---- rows ----

static void s_install(checker *c, const ebb_inspect_row *r)
{
    const Ebb__ShardInstall *in = r->install;
    const char *d = in->spec->durability;
    c->has_install = true;
    c->job = in->job;
    c->first_chunk = in->first_chunk;
    c->chunk_count = in->chunk_count;
    c->durability = strcmp(d, "fsync") == 0 ? "fsync" : strcmp(d, "snapshot") == 0 ? "snapshot" : "journal";
    c->journaled = strcmp(c->durability, "snapshot") != 0;
    snprintf(c->job_name, sizeof(c->job_name), "%s", in->spec->name);
}

static void s_manifest(checker *c, const ebb_inspect_row *r)
{
    c->has_manifest = true;
    if (c->has_install && (c->first_chunk > r->manifest->n_chunks || c->chunk_count > r->manifest->n_chunks - c->first_chunk)) {
        s_problem(c, r->name, "it has %zu chunks, but the install row names %u from %u on", r->manifest->n_chunks, c->chunk_count, c->first_chunk);
    }
}

static void s_watermark(checker *c, const ebb_inspect_row *r)
{
    c->streams++;
    c->highest_watermark_lsn = r->watermark.lsn > c->highest_watermark_lsn ? r->watermark.lsn : c->highest_watermark_lsn;
    if (r->watermark.applied == 0 || r->watermark.lsn == 0) {
        s_problem(c, r->name, "it stands at step %" PRIu64 ", record %" PRIu64 ": both count from 1", r->watermark.applied, r->watermark.lsn);
    }
    if (r->watermark.stream < c->retired_below) {
        s_problem(c, r->name, "the stream is retired (all below %" PRIu64 " are), so there must be no such row", c->retired_below);
    }
}

static void s_chunk(checker *c, const ebb_inspect_row *r)
{
    if (!c->has_state || r->generation != c->generation) {
        if (c->journaled) {
            s_problem(c, r->name, "the state row names generation %u", c->generation);
        } else {
            c->left_over++; // of a snapshot that a crash cut short, or that is being deleted: the next start removes it
        }
        return;
    }
    c->chunk_rows++;
    c->chunk_bytes += r->bytes;
    if (r->chunk.chunk < c->first_chunk || r->chunk.chunk - c->first_chunk >= c->chunk_count) {
        s_problem(c, r->name, "this shard holds %u chunks from %u on", c->chunk_count, c->first_chunk);
    }
}

static void s_end_record(checker *c)
{
    if (c->record_open && c->parts != c->record.n_parts) {
        char name[48];
        snprintf(name, sizeof(name), "journal record %" PRIu64, c->record.lsn);
        s_problem(c, name, "it has %u gradients of %u", c->parts, c->record.n_parts);
    }
    c->record_open = false;
}

static void s_record(checker *c, const ebb_inspect_row *r)
{
    s_end_record(c);
    if (c->newest != 0 && r->lsn != c->newest + 1) {
        s_problem(c, r->name, "records %" PRIu64 " to %" PRIu64 " are missing before it", c->newest + 1, r->lsn - 1);
    }
    c->oldest = c->oldest == 0 ? r->lsn : c->oldest;
    c->newest = r->lsn;
    c->records++;
    c->journal_bytes += r->bytes;
    c->parts = 0;
    if (r->bad != NULL) {
        return;
    }
    if (r->record.job != c->job) {
        s_problem(c, r->name, "it is of job %016" PRIx64, r->record.job);
    }
    if (r->record.seq == 0 || (r->record.kind == EBB_RECORD_PUSH && r->record.n_parts != c->chunk_count)) {
        s_problem(c, r->name, "step %" PRIu64 " with %u gradients: steps count from 1, and a push has one for each of %u chunks", r->record.seq,
                  r->record.n_parts, c->chunk_count);
    }
    c->skips += r->record.kind == EBB_RECORD_SKIP;
    c->record = r->record;
    c->record_open = true;
}

static void s_part(checker *c, const ebb_inspect_row *r)
{
    c->journal_bytes += r->bytes;
    c->parts++;
    if (r->lsn != c->newest) {
        s_problem(c, r->name, "its record has no head");
    } else if (r->part != c->parts && c->record_open) {
        s_problem(c, r->name, "part %u is missing before it", c->parts);
        c->record_open = false;
    }
}

static ebb_status s_on_row(void *arg, const ebb_inspect_row *r)
{
    checker *c = arg;
    if (r->bad != NULL) {
        s_problem(c, r->name, "%s", r->bad);
        if (r->kind != EBB_INSPECT_RECORD && r->kind != EBB_INSPECT_PART) {
            return EBB_OK;
        }
    }
    switch (r->kind) {
    case EBB_INSPECT_INSTALL:
        s_install(c, r);
        break;
    case EBB_INSPECT_MANIFEST:
        s_manifest(c, r);
        break;
    case EBB_INSPECT_STATE:
        c->has_state = true;
        c->generation = r->generation;
        c->state_lsn = r->state.lsn;
        break;
    case EBB_INSPECT_RETIRED:
        c->retired_below = r->retired->retired_below;
        c->retired_listed = r->retired->n_retired;
        break;
    case EBB_INSPECT_WATERMARK:
        s_watermark(c, r);
        break;
    case EBB_INSPECT_CHUNK:
        s_chunk(c, r);
        break;
    case EBB_INSPECT_RECORD:
        s_record(c, r);
        break;
    case EBB_INSPECT_PART:
        s_part(c, r);
        break;
    case EBB_INSPECT_UNKNOWN:
        break;
    }
    return EBB_OK;
}

// ---- the whole ----

// What the shard would come back with. The report's last word: it is the code that a shard starts with.
static void s_recover(checker *c, ebb_kvstore *kv, ebb_job **job)
{
    char why[512] = "";
    ebb_journal journal;
    ebb_status st = ebb_journal_init(&journal, kv);
    if (st == EBB_OK) {
        st = ebb_recover_job(c->dir, kv, &journal, job, why);
        ebb_journal_fini(&journal);
    }
    if (st != EBB_OK) {
        size_t n = strlen(c->dir); // it names the folder itself
        bool named = strncmp(why, c->dir, n) == 0 && why[n] == ':';
        s_problem(c, "recovery", "%s", why[0] == '\0' ? ebb_status_str(st) : named ? why + n + 2 : why);
    }
}

static void s_report(const checker *c, const ebb_job *job, ebb_rowline_style style, FILE *out)
{
    ebb_rowline l;
    ebb_rowline_init(&l, out, style);
    ebb_rowline_begin(&l, "check");
    ebb_rowline_text(&l, "folder", c->dir);
    ebb_rowline_u64(&l, "format", c->format);
    ebb_rowline_u64(&l, "shard", c->shard);
    if (c->has_install) {
        ebb_rowline_hex(&l, "job", c->job, 16);
        ebb_rowline_text(&l, "name", c->job_name);
        ebb_rowline_text(&l, "durability", c->durability);
        ebb_rowline_u64(&l, "first_chunk", c->first_chunk);
        ebb_rowline_u64(&l, "chunks", c->chunk_count);
    } else {
        ebb_rowline_text(&l, "job", "none");
    }
    if (job != NULL) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < job->chunk_count; i++) {
            bytes += (uint64_t)job->chunks[i].numel * sizeof(float) * job->chunks[i].n_bufs;
        }
        ebb_rowline_u64(&l, "version", job->version);
        ebb_rowline_u64(&l, "lsn", job->lsn);
        ebb_rowline_u64(&l, "bytes", bytes);
        ebb_rowline_u64(&l, "streams", job->streams.n);
        ebb_rowline_u64(&l, "retired_below", job->streams.retired_below);
        ebb_rowline_u64(&l, "retired", job->streams.n_retired);
    }
    ebb_rowline_u64(&l, "generation", c->generation);
    ebb_rowline_u64(&l, "chunk_rows", c->chunk_rows);
    ebb_rowline_u64(&l, "chunk_bytes", c->chunk_bytes);
    ebb_rowline_u64(&l, "left_over_rows", c->left_over);
    ebb_rowline_u64(&l, "journal_records", c->records);
    ebb_rowline_u64(&l, "journal_skips", c->skips);
    ebb_rowline_u64(&l, "journal_bytes", c->journal_bytes);
    ebb_rowline_u64(&l, "oldest_lsn", c->oldest);
    ebb_rowline_u64(&l, "newest_lsn", c->newest);
    ebb_rowline_u64(&l, "tables", c->store.tables);
    ebb_rowline_u64(&l, "table_bytes", c->store.table_bytes);
    ebb_rowline_u64(&l, "log_bytes", c->files.log_bytes);
    ebb_rowline_u64(&l, "torn_bytes", c->files.torn_bytes);
    ebb_rowline_text(&l, "synced_mark", c->files.has_mark ? "yes" : "no");
    ebb_rowline_u64(&l, "problems", c->problems);
    ebb_rowline_text(&l, "result", c->problems == 0 ? "fine" : "damaged");
    ebb_rowline_end(&l);
    if (c->problems > PROBLEMS_SHOWN) {
        fprintf(c->err, "ebb-shard: %s: and %" PRIu64 " more problems\n", c->dir, c->problems - PROBLEMS_SHOWN);
    }
}

static ebb_status s_check_store(checker *c, ebb_kvstore *kv, ebb_job **job)
{
    char why[256] = "";
    EBB_TRY(ebb_kvstore_verify(kv, s_on_file, c, &c->store));
    ebb_status st = ebb_inspect(kv, EBB_INSPECT_ALL, s_on_row, c, why);
    s_end_record(c);
    if (st == EBB_NOMEM) {
        return st;
    }
    if (st != EBB_OK) {
        s_problem(c, "store", "%s", why);
    }
    s_recover(c, kv, job);
    if (*job != NULL) {
        // Recovery may begin above the journal's oldest record; it must not end below its newest, nor skip rows that were found.
        if ((*job)->lsn < c->newest || (*job)->lsn < c->highest_watermark_lsn || (*job)->lsn < c->state_lsn) {
            s_problem(c, "recovery", "it ends at record %" PRIu64 ", but there are rows of record %" PRIu64, (*job)->lsn,
                      c->newest > c->highest_watermark_lsn ? c->newest : c->highest_watermark_lsn);
        }
        if ((*job)->streams.n != c->streams) {
            s_problem(c, "watermarks", "%" PRIu64 " rows, but %zu streams that are not retired", c->streams, (*job)->streams.n);
        }
        if (!c->journaled && c->records > 0) {
            s_problem(c, "journal", "there are %" PRIu64 " records, but durability snapshot has no journal", c->records);
        }
    }
    return EBB_OK;
}

// Folder and format file, who uses it, the files by themselves. OK: the store can be opened. *empty: there is none yet.
static ebb_status s_check_folder(checker *c, bool *empty)
{
    char why[512] = "";
    struct stat info;
    *empty = false;
    if (stat(c->dir, &info) != 0) {
        fprintf(c->err, "ebb-shard: there is no folder %s\n", c->dir);
        return EBB_NOENT;
    }
    ebb_status st = ebb_recover_read_format(c->dir, &c->format, &c->shard, why);
    if (st == EBB_NEWER) {
        fprintf(c->err, "ebb-shard: %s\n", why);
        return st;
    }
    if (st == EBB_NOENT) {
        fprintf(c->err, "ebb-shard: %s is not a shard's folder (it has no file SHARD)\n", c->dir);
        return EBB_CONFIG;
    }
    ebb_status free = ebb_kvstore_is_free(c->dir, why);
    if (free != EBB_OK) {
        fprintf(c->err, "ebb-shard: %s\n", why);
        return free;
    }
    if (st != EBB_OK) {
        s_problem(c, "SHARD", st == EBB_IO ? "it cannot be read" : "its line or its checksum is damaged");
    }
    st = ebb_kvmark_verify(c->dir, s_on_file, c, &c->files);
    *empty = st == EBB_NOENT;
    return *empty ? EBB_OK : st;
}

ebb_status ebb_check(const char *dir, ebb_rowline_style style, FILE *out, FILE *err)
{
    checker c = {.dir = dir, .err = err};
    char why[256] = "";
    ebb_kvstore *kv = NULL;
    ebb_job *job = NULL;
    bool empty = false;
    EBB_TRY(s_check_folder(&c, &empty));
    if (!empty) {
        const ebb_kvstore_options options = {.read_only = true, .big_values = true};
        ebb_status st = ebb_kvstore_open(dir, &options, &kv, why);
        if (st == EBB_CORRUPT) {
            if (c.problems == 0) { // else it says the same again
                s_problem(&c, "store", "%s", why);
            }
        } else if (st == EBB_OK) {
            st = s_check_store(&c, kv, &job);
            ebb_kvstore_close(&kv);
        }
        if (st != EBB_OK && st != EBB_CORRUPT) {
            fprintf(err, "ebb-shard: %s: %s\n", dir, why[0] != '\0' ? why : ebb_status_str(st));
            return st;
        }
    }
    s_report(&c, job, style, out);
    ebb_job_free(&job);
    return c.problems == 0 ? EBB_OK : EBB_CORRUPT;
}
