#include "coordinator/statecheck.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "coordinator/staterows.h"
#include "core/bytes.h"

#define PROBLEMS_SHOWN 200 // the rest is counted

typedef struct checker {
    const char *dir;
    FILE *err;
    uint64_t problems;
    uint32_t format;
    ebb_kvmark_facts files;
    ebb_kvstore_facts store;
    // what rows say
    bool has_job, has_manifest, has_placement;
    char name[64], state[512];
    uint64_t job, steps;
    uint32_t shards;
    size_t chunks;
    uint64_t epoch;
    uint64_t units, skips, evals, events, event_first, event_last;
    uint64_t event_gap; // the last one that is missing between two others; 0: none
    uint64_t retired_below, retired_listed, steps_retired;
    uint32_t wanted;
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
        fprintf(c->err, "ebb-coordinator: %s: %s: %s\n", c->dir, where, text);
    }
}

static void s_on_file(void *arg, bool harmless, const char *file, const char *what)
{
    s_problem(arg, file, "%s%s", what, harmless ? " (nothing is lost by it)" : "");
}

// ---- rows ----

static void s_job(checker *c, const ebb_staterow *r)
{
    const Ebb__JobSpec *spec = (const Ebb__JobSpec *)r->message;
    c->has_job = true;
    c->job = r->job;
    c->steps = spec->steps;
    c->shards = spec->shards;
    snprintf(c->name, sizeof(c->name), "%s", spec->name);
    if (r->job == 0 || spec->shards == 0 || spec->shards > EBB_SHARDS_MAX || spec->data == NULL || spec->model == NULL || spec->lease_ms == 0) {
        s_problem(c, r->name, "it lacks its number, shards, data, model or lease");
        c->has_job = false;
    }
}

// One contiguous range per shard, in order, all chunks of the manifest.
static void s_placement(checker *c, const ebb_staterow *r)
{
    uint64_t next = 0;
    c->has_placement = true;
    c->epoch = r->epoch;
    if (c->has_job && r->number != c->shards) {
        s_problem(c, r->name, "it has %u ranges for %u shards", r->number, c->shards);
    }
    for (uint32_t i = 0; i < r->number; i++) {
        uint32_t first = ebb_get_le32(r->ranges + 8 * (size_t)i), count = ebb_get_le32(r->ranges + 8 * (size_t)i + 4);
        if (count > 0 && first != next) {
            s_problem(c, r->name, "shard %u holds chunks from %u on, but %" PRIu64 " come before it", i, first, next);
            return;
        }
        next += count;
    }
    if (c->has_manifest && next != c->chunks) {
        s_problem(c, r->name, "the shards hold %" PRIu64 " chunks of %zu", next, c->chunks);
    }
}

static void s_retired(checker *c, const ebb_staterow *r)
{
    uint64_t before = r->retired.below;
    c->retired_below = r->retired.below;
    c->retired_listed = r->retired.n;
    c->steps_retired = r->retired.steps;
    for (uint64_t i = 0; i < r->retired.n; i++) {
        uint64_t stream = ebb_get_le64(r->retired.list + 8 * i);
        if (stream <= before) { // one equal to `below` would have joined the range
            s_problem(c, r->name, "its list is not ascending at unit %" PRIu64, stream);
            return;
        }
        before = stream;
    }
    if (c->has_job && r->retired.steps > c->steps) {
        s_problem(c, r->name, "%" PRIu64 " steps are retired of %" PRIu64, r->retired.steps, c->steps);
    }
}

static void s_unit(checker *c, const ebb_staterow *r)
{
    const Ebb__LeaseRow *u = (const Ebb__LeaseRow *)r->message;
    c->units++;
    if (u->stream != r->a) {
        s_problem(c, r->name, "it stands under another unit's key: it is unit %" PRIu64, u->stream);
    }
    if (u->stream < c->retired_below) {
        s_problem(c, r->name, "it is retired (all below %" PRIu64 " are), so there must be no such row", c->retired_below);
    }
}

static void s_event(checker *c, const ebb_staterow *r)
{
    const Ebb__Event *e = (const Ebb__Event *)r->message;
    if (e->id != r->a) {
        s_problem(c, r->name, "it stands under another event's key: it is event %" PRIu64, e->id);
    }
    if (c->events > 0 && r->a != c->event_last + 1) {
        c->event_gap = c->event_last + 1;
    }
    c->event_first = c->events++ == 0 ? r->a : c->event_first;
    c->event_last = r->a;
}

static void s_on_row(void *arg, const ebb_staterow *r)
{
    checker *c = arg;
    if (r->bad != NULL) {
        s_problem(c, r->name, "%s", r->bad);
        return;
    }
    switch (r->letter) {
    case 'J':
        s_job(c, r);
        break;
    case 'M':
        c->has_manifest = true;
        c->chunks = r->manifest->n_chunks;
        break;
    case 'P':
        s_placement(c, r);
        break;
    case 'W':
        c->wanted = r->number;
        break;
    case 'S':
        snprintf(c->state, sizeof(c->state), "%s", r->text);
        break;
    case 'R':
        s_retired(c, r);
        break;
    case 'U':
        s_unit(c, r);
        break;
    case 'K':
        c->skips++;
        break;
    case 'V':
        c->evals++;
        break;
    case 'E':
        s_event(c, r);
        break;
    default:
        break;
    }
}

// ---- the whole ----

static void s_no_skip(void *arg, uint64_t stream, uint64_t seq)
{
    (void)arg, (void)stream, (void)seq;
}

// What a coordinator does when it resumes (coordinator.c), by the same readers.
static ebb_status s_resume(ebb_statestore *s, const char **what)
{
    uint64_t job, created, epoch = 0;
    Ebb__JobSpec *spec = NULL;
    ebb_plan plan;
    ebb_ledger ledger = {0};
    ebb_chunk_range *ranges = NULL;
    uint8_t *manifest = NULL;
    size_t len = 0;
    uint32_t wanted;
    double elapsed_s = 0;
    bool final_done = false;
    ebb_progress *progress = calloc(1, sizeof(*progress));
    *what = "the job";
    ebb_status st = progress != NULL ? ebb_statestore_get_job(s, &job, &created, &spec) : EBB_NOMEM;
    if (st != EBB_OK) {
        free(progress);
        return st == EBB_NOENT ? EBB_OK : st; // made, but no job was given yet
    }
    ebb_progress_init(progress);
    EBB_TRY_GOTO(ebb_plan_init(&plan, spec->data->train_samples, spec->batch, spec->unit_steps, spec->steps, spec->seed), st, out);
    EBB_TRY_GOTO(ebb_ledger_init(&ledger, &plan, spec->shards, spec->lease_ms), st, out);
    *what = "units and the retired set";
    EBB_TRY_GOTO(ebb_statestore_load_ledger(s, &ledger, 0), st, out);
    *what = "skips";
    EBB_TRY_GOTO(ebb_statestore_load_skips(s, s_no_skip, NULL), st, out);
    *what = "evaluations";
    EBB_TRY_GOTO(ebb_statestore_load_evals(s, progress, &final_done), st, out);
    *what = "the loss curve";
    EBB_TRY_GOTO(ebb_statestore_load_progress(s, progress, &elapsed_s), st, out);
    *what = "workers wanted";
    EBB_TRY_GOTO(ebb_statestore_get_wanted(s, &wanted), st, out);
    *what = "the placement";
    ranges = calloc(spec->shards, sizeof(*ranges));
    st = ranges != NULL ? ebb_statestore_get_placement(s, &manifest, &len, &epoch, ranges, spec->shards) : EBB_NOMEM;
    st = st == EBB_NOENT ? EBB_OK : st; // no worker has come yet
out:
    ebb_ledger_fini(&ledger);
    ebb_pb_free(&spec->base);
    free(manifest);
    free(ranges);
    free(progress);
    return st;
}

static void s_report(const checker *c, ebb_rowline_style style, FILE *out)
{
    ebb_rowline l;
    ebb_rowline_init(&l, out, style);
    ebb_rowline_begin(&l, "check");
    ebb_rowline_text(&l, "folder", c->dir);
    ebb_rowline_u64(&l, "format", c->format);
    if (c->job != 0) {
        ebb_rowline_hex(&l, "job", c->job, 16);
        ebb_rowline_text(&l, "name", c->name);
        ebb_rowline_u64(&l, "steps", c->steps);
        ebb_rowline_u64(&l, "shards", c->shards);
    } else {
        ebb_rowline_text(&l, "job", "none");
    }
    ebb_rowline_text(&l, "state", c->state[0] != '\0' ? c->state : "open");
    ebb_rowline_u64(&l, "epoch", c->epoch);
    ebb_rowline_u64(&l, "chunks", c->chunks);
    ebb_rowline_u64(&l, "units_in_flight", c->units);
    ebb_rowline_u64(&l, "retired_below", c->retired_below);
    ebb_rowline_u64(&l, "retired_listed", c->retired_listed);
    ebb_rowline_u64(&l, "steps_retired", c->steps_retired);
    ebb_rowline_u64(&l, "skips", c->skips);
    ebb_rowline_u64(&l, "evaluations", c->evals);
    ebb_rowline_u64(&l, "events", c->events);
    ebb_rowline_u64(&l, "oldest_event", c->event_first);
    ebb_rowline_u64(&l, "newest_event", c->event_last);
    ebb_rowline_u64(&l, "workers_wanted", c->wanted);
    ebb_rowline_u64(&l, "tables", c->store.tables);
    ebb_rowline_u64(&l, "table_bytes", c->store.table_bytes);
    ebb_rowline_u64(&l, "log_bytes", c->files.log_bytes);
    ebb_rowline_u64(&l, "torn_bytes", c->files.torn_bytes);
    ebb_rowline_text(&l, "synced_mark", c->files.has_mark ? "yes" : "no");
    ebb_rowline_u64(&l, "problems", c->problems);
    ebb_rowline_text(&l, "result", c->problems == 0 ? "fine" : "damaged");
    ebb_rowline_end(&l);
    if (c->problems > PROBLEMS_SHOWN) {
        fprintf(c->err, "ebb-coordinator: %s: and %" PRIu64 " more problems\n", c->dir, c->problems - PROBLEMS_SHOWN);
    }
}

static ebb_status s_check_store(checker *c, ebb_statestore *s)
{
    char why[256] = "";
    const char *what = NULL;
    EBB_TRY(ebb_kvstore_verify(ebb_statestore_kv(s), s_on_file, c, &c->store));
    if (ebb_staterows(ebb_statestore_kv(s), EBB_STATEROWS_ALL, s_on_row, c, why) != EBB_OK) {
        s_problem(c, "store", "%s", why);
    }
    if (c->event_gap != 0 && c->event_gap + EBB_EVENTS_KEPT > c->event_last) { // an older one may be left over from when it was to be deleted
        s_problem(c, "events", "event %" PRIu64 " is missing, though there are older ones", c->event_gap);
    }
    if (!c->has_job && (c->units > 0 || c->has_placement || c->has_manifest || c->events > 0)) {
        s_problem(c, "job row", "it is missing, though there are rows of a job");
        return EBB_OK;
    }
    if (c->has_placement != c->has_manifest) {
        s_problem(c, c->has_manifest ? "placement row" : "manifest row", "it is missing: manifest and placement are written together");
    }
    if (c->has_job) {
        ebb_status st = s_resume(s, &what);
        if (st == EBB_NOMEM) {
            return st;
        }
        if (st != EBB_OK) {
            s_problem(c, "resuming", "%s: %s", what, ebb_status_str(st));
        }
    }
    return EBB_OK;
}

// Is there a folder, and does nobody use it?
static ebb_status s_check_folder(const char *dir, FILE *err)
{
    char why[256] = "";
    struct stat info;
    if (stat(dir, &info) != 0) {
        fprintf(err, "ebb-coordinator: there is no folder %s\n", dir);
        return EBB_NOENT;
    }
    ebb_status st = ebb_kvstore_is_free(dir, why);
    if (st != EBB_OK) {
        fprintf(err, "ebb-coordinator: %s\n", why);
    }
    return st;
}

ebb_status ebb_statecheck(const char *dir, ebb_rowline_style style, FILE *out, FILE *err)
{
    checker c = {.dir = dir, .err = err};
    char why[512] = "";
    ebb_statestore *s = NULL;
    EBB_TRY(s_check_folder(dir, err));
    ebb_status st = ebb_kvmark_verify(dir, s_on_file, &c, &c.files);
    if (st == EBB_NOENT) {
        fprintf(err, "ebb-coordinator: %s is not a coordinator's folder: there is no store in it\n", dir);
        return EBB_CONFIG;
    }
    st = st == EBB_OK ? ebb_statestore_open_read(dir, &c.format, &s, why) : st;
    if (st == EBB_CORRUPT && c.problems == 0) { // else it says the same again
        s_problem(&c, "store", "%s", why[0] != '\0' ? why : "the format row cannot be read");
    } else if (st == EBB_OK) {
        st = s_check_store(&c, s);
        ebb_statestore_close(&s);
    }
    if (st != EBB_OK && st != EBB_CORRUPT) {
        fprintf(err, "ebb-coordinator: %s\n", why[0] != '\0' ? why : ebb_status_str(st));
        return st;
    }
    s_report(&c, style, out);
    return c.problems == 0 ? EBB_OK : EBB_CORRUPT;
}
