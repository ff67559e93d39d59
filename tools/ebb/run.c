// ebb run: checks the job, starts its programs, keeps them running, shows progress, and at the end takes the model out.
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "coordinator/jobspec.h"
#include "core/clock.h"
#include "core/process.h"
#include "tools/ebb/fetch.h"
#include "tools/ebb/json.h"
#include "tools/ebb/link.h"
#include "tools/ebb/supervisor.h"
#include "tools/ebb/verbs.h"
#include "tools/ebb/view.h"
#include "worker/modelspec.h"

#define NOTES 3
#define GONE_MAX 64
#define STATUS_EVERY_MS 250
#define LINE_EVERY_MS 5000
#define DRAIN_MS 8000 // longest orderly end, from its beginning; then SIGTERM, then SIGKILL
#define GRACE_MS 2000 // between those two
#define FAILED_GRACE_MS 6000

typedef struct arguments {
    const char *job, *dir, *data;
    bool resume, dry_run, json, force;
    uint32_t workers;
    uint64_t steps;
    char http[32]; // address, or ""
} arguments;

enum { OPT_DRY = 256, OPT_DATA, OPT_WORKERS, OPT_STEPS, OPT_FORCE, OPT_HTTP };

static const struct argp_option s_options[] = {
    {"dir", 'd', "RUN", 0, "folder of the run (default: runs/NAME)", 0},
    {"resume", 'r', 0, 0, "go on with the run in the folder (without --dir and job file: the newest in ./runs)", 0},
    {"force", OPT_FORCE, 0, 0, "start over: what the folder holds of an earlier run is removed", 0},
    {"dry-run", OPT_DRY, 0, 0, "print the effective job and what would be started, then stop", 0},
    {"data", OPT_DATA, "FILE", 0, "train on this file instead of data.path", 0},
    {"workers", OPT_WORKERS, "N", 0, "this many workers instead of workers.min", 0},
    {"steps", OPT_STEPS, "N", 0, "this many steps instead of steps or passes", 0},
    {"http", OPT_HTTP, "PORT", 0, "dashboard, JSON API and Prometheus metrics on 127.0.0.1 (0: any free port)", 0},
    {"json", 'j', 0, 0, "progress as JSON objects, one per line", 0},
    {0},
};

static uint64_t s_whole(const char *arg, uint64_t max, struct argp_state *state, const char *what)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(arg, &end, 10);
    if (end == arg || *end != '\0' || errno != 0 || v < 1 || v > max || arg[0] == '-') {
        argp_error(state, "%s: expected a whole number from 1 to %llu, not \"%s\"", what, (unsigned long long)max, arg);
    }
    return v;
}

static error_t s_parse(int key, char *arg, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case 'd':
        a->dir = arg;
        return 0;
    case 'r':
        a->resume = true;
        return 0;
    case 'j':
        a->json = true;
        return 0;
    case OPT_FORCE:
        a->force = true;
        return 0;
    case OPT_DRY:
        a->dry_run = true;
        return 0;
    case OPT_DATA:
        a->data = arg;
        return 0;
    case OPT_HTTP:
        snprintf(a->http, sizeof(a->http), "127.0.0.1:%u", strcmp(arg, "0") == 0 ? 0 : (unsigned)s_whole(arg, 65535, state, "--http"));
        return 0;
    case OPT_WORKERS:
        a->workers = (uint32_t)s_whole(arg, 1024, state, "--workers");
        return 0;
    case OPT_STEPS:
        a->steps = s_whole(arg, 1000000000000000u, state, "--steps");
        return 0;
    case ARGP_KEY_ARG:
        if (a->job != NULL) {
            argp_error(state, "one job file at a time");
        }
        a->job = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->job == NULL && !a->resume) {
            argp_error(state, "a job file is needed (or --resume: goes on with the newest run in ./runs)");
        }
        if (a->resume && a->force) {
            argp_error(state, "--resume and --force exclude each other");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// ---- one run ----

typedef struct run {
    arguments a;
    ebb_rundir dir;
    Ebb__JobSpec *spec;
    uint32_t workers; // to start
    uint64_t numel;   // of the model
    size_t chunks;
    ebb_supervisor sup;
    ebb_link link;
    char endpoint[PATH_MAX], job_file[PATH_MAX], http[64];
    ebb_msg status; // latest, env NULL: none yet
    uint64_t status_ms, line_ms, event_id;
    size_t evals_shown;
    FILE *events, *metrics, *log;
    uint64_t metrics_step, metrics_ms;
    size_t n_gone; // deaths that the coordinator must hear of
    struct {
        char name[32], how[64];
        pid_t pid;
    } gone[GONE_MAX];
    char notes[NOTES][256];
    size_t n_notes;
    bool tty, color;
    int drawn; // lines of the live view on the screen
    bool ending, finished, failed;
    int stop_signal, exit_code;
    uint64_t end_ms;
} run;

__attribute__((format(printf, 2, 3))) static void s_note(run *r, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (r->n_notes == NOTES) {
        memmove(r->notes[0], r->notes[1], sizeof(r->notes[0]) * (NOTES - 1));
        r->n_notes--;
    }
    snprintf(r->notes[r->n_notes++], sizeof(r->notes[0]), "%s", text);
    if (r->a.json) {
        json_t *o = json_object();
        json_object_set_new(o, "text", json_string(text));
        ebb_json_line("note", o);
    } else if (!r->tty) {
        printf("%s\n", text);
        fflush(stdout);
    }
}

// A line in logs/ebb.log, in the form of the other programs' logs.
__attribute__((format(printf, 3, 4))) static void s_log(run *r, const char *event, const char *fmt, ...)
{
    if (r->log == NULL) {
        return;
    }
    uint64_t ms = ebb_clock_unix_ms();
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    char stamp[32];
    gmtime_r(&seconds, &tm);
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
    fprintf(r->log, "ts=%s.%03dZ level=info prog=ebb sys=supervisor event=%s ", stamp, (int)(ms % 1000), event);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(r->log, fmt, ap);
    va_end(ap);
    fputc('\n', r->log);
    fflush(r->log);
}

static void s_erase(run *r)
{
    if (r->drawn > 0) {
        printf("\033[%dA\033[J", r->drawn);
        r->drawn = 0;
    }
}

static void s_draw(run *r)
{
    struct winsize size = {0};
    const char *notes[NOTES];
    if (ioctl(1, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
        size.ws_col = 80;
        size.ws_row = 0;
    }
    ebb_view_options options = {.width = size.ws_col, .height = size.ws_row, .color = r->color};
    for (size_t i = 0; i < r->n_notes; i++) {
        notes[i] = r->notes[i];
    }
    if (r->drawn > 0) {
        printf("\033[%dA", r->drawn);
    }
    int lines = ebb_view_render(stdout, r->status.env->status_reply, &options, notes, r->n_notes);
    printf("\033[J");
    r->drawn = lines;
    fflush(stdout);
}

static void s_show_evals(run *r, const Ebb__StatusReply *s)
{
    for (; r->evals_shown < s->n_evals; r->evals_shown++) {
        const Ebb__EvalPoint *e = s->evals[r->evals_shown];
        if (r->a.json) {
            ebb_json_line("eval", ebb_json_message(&e->base));
        } else if (!r->tty) {
            printf("evaluation at step %llu: validation loss %.4f, accuracy %.4f\n", (unsigned long long)e->step, e->loss, e->accuracy);
        }
    }
}

static void s_poll_events(run *r)
{
    ebb_msg reply;
    if (ebb_link_events(&r->link, r->event_id, 200, &reply) != EBB_OK) {
        return;
    }
    const Ebb__EventsReply *events = reply.env->events_reply;
    for (size_t i = 0; i < events->n_events; i++) {
        const Ebb__Event *e = events->events[i];
        json_t *o = ebb_json_message(&e->base);
        if (r->events != NULL) {
            json_dumpf(o, r->events, JSON_COMPACT);
            fputc('\n', r->events);
        }
        if (r->a.json) {
            ebb_json_line("event", o);
        } else {
            json_decref(o);
        }
        r->event_id = e->id;
        if (strcmp(e->kind, "eval") != 0 && strcmp(e->kind, "unit-returned") != 0 && !r->a.json) {
            time_t seconds = (time_t)(e->unix_ms / 1000);
            struct tm tm;
            char stamp[16];
            localtime_r(&seconds, &tm);
            strftime(stamp, sizeof(stamp), "%H:%M:%S", &tm);
            s_note(r, "%s %s %s: %.180s", stamp, e->kind, e->subject, e->text);
        }
    }
    if (r->events != NULL) {
        fflush(r->events);
    }
    ebb_msg_fini(&reply);
}

// Deaths that happened while the coordinator was away are told when it is back.
static void s_tell_gone(run *r)
{
    size_t told = 0;
    while (told < r->n_gone && ebb_link_worker_gone(&r->link, r->gone[told].name, (uint32_t)r->gone[told].pid, r->gone[told].how, 300) == EBB_OK) {
        told++;
    }
    memmove(r->gone, r->gone + told, (r->n_gone - told) * sizeof(r->gone[0]));
    r->n_gone -= told;
}

// One line a second at most, and only when something was done: what people plot.
static void s_write_metrics(run *r, const Ebb__StatusReply *s)
{
    if (r->metrics == NULL || s->steps_done == r->metrics_step || (s->steps_done < s->steps_total && ebb_clock_ms() - r->metrics_ms < 1000)) {
        return;
    }
    r->metrics_ms = ebb_clock_ms();
    r->metrics_step = s->steps_done;
    json_t *o = json_object();
    json_object_set_new(o, "unix_ms", json_integer((json_int_t)ebb_clock_unix_ms()));
    json_object_set_new(o, "elapsed_s", json_real(s->elapsed_s));
    json_object_set_new(o, "step", json_integer((json_int_t)s->steps_done));
    json_object_set_new(o, "loss", json_real(s->loss));
    json_object_set_new(o, "samples_per_s", json_real(s->samples_per_s));
    json_object_set_new(o, "tokens_per_s", json_real(s->tokens_per_s));
    json_object_set_new(o, "staleness", json_real(s->staleness));
    json_object_set_new(o, "workers", json_integer(s->workers_live));
    if (s->n_evals > 0) {
        json_object_set_new(o, "validation_loss", json_real(s->evals[s->n_evals - 1]->loss));
        json_object_set_new(o, "validation_step", json_integer((json_int_t)s->evals[s->n_evals - 1]->step));
    }
    json_dumpf(o, r->metrics, JSON_COMPACT);
    fputc('\n', r->metrics);
    fflush(r->metrics);
    json_decref(o);
}

// As many workers as the coordinator wants: more are started here; those that are not wanted any more are drained by it, and end by themselves.
static void s_follow(run *r, uint32_t wanted)
{
    uint64_t others = 1 + (uint64_t)r->spec->shards;
    r->workers = others + wanted > EBB_CHILDREN_MAX ? (uint32_t)(EBB_CHILDREN_MAX - others) : wanted;
    while (ebb_supervisor_wanted(&r->sup, EBB_CHILD_WORKER) < r->workers) {
        ebb_supervisor_grow(&r->sup, EBB_CHILD_WORKER);
    }
}

static void s_poll_status(run *r, uint64_t now_ms)
{
    ebb_msg reply;
    r->status_ms = now_ms;
    if (ebb_link_status(&r->link, 200, &reply) != EBB_OK) {
        return; // being started again; asked again soon
    }
    ebb_msg_fini(&r->status);
    r->status = reply;
    const Ebb__StatusReply *s = reply.env->status_reply;
    if (r->n_gone > 0) {
        s_tell_gone(r);
    }
    if (s->events > r->event_id) {
        s_poll_events(r);
    }
    if (strcmp(s->http, r->http) != 0) {
        snprintf(r->http, sizeof(r->http), "%s", s->http);
        s_note(r, "dashboard: %s", r->http);
    }
    s_write_metrics(r, s);
    s_show_evals(r, s);
    if (r->tty && !r->a.json) {
        s_draw(r);
    } else if (now_ms - r->line_ms >= (r->a.json ? 1000 : LINE_EVERY_MS)) {
        r->line_ms = now_ms;
        if (r->a.json) {
            ebb_json_line("progress", ebb_json_message(&s->base));
        } else {
            ebb_view_line(stdout, s);
            putchar('\n');
            fflush(stdout);
        }
    }
    if (!r->ending && r->a.workers == 0 && s->scale != NULL && (strcmp(s->state, "RUNNING") == 0 || strcmp(s->state, "STARTING") == 0)) {
        s_follow(r, s->scale->wanted);
    }
    if (strcmp(s->state, "SUCCEEDED") == 0) {
        r->finished = true;
    } else if (strcmp(s->state, "FAILED") == 0 && !r->failed) {
        r->failed = true;
        r->exit_code = EX_DATAERR;
        s_note(r, "the job failed: %.200s", s->reason);
    }
}

static void s_bury(run *r, const ebb_death *d)
{
    ebb_child *c = d->child;
    if (c == NULL) {
        return;
    }
    char how[64];
    if (d->exit_code < 0) {
        snprintf(how, sizeof(how), "killed by signal %d (%s)", -d->exit_code, strsignal(-d->exit_code));
    } else {
        snprintf(how, sizeof(how), "ended with exit code %d", d->exit_code);
    }
    if (c->kind == EBB_CHILD_WORKER && d->exit_code == 0 && !r->finished && !r->ending) {
        s_poll_status(r, ebb_clock_ms()); // a worker leaves when the job is over: see whether it is, before we start another
    }
    bool surplus = ebb_supervisor_wanted(&r->sup, EBB_CHILD_WORKER) > r->workers;
    if (c->kind == EBB_CHILD_WORKER && d->exit_code == 0 && (r->finished || r->ending || surplus)) {
        c->done = true;
        return;
    }
    s_log(r, "child-ended", "name=%s pid=%d how=\"%s\" lived_ms=%llu", c->name, (int)d->pid, how, (unsigned long long)d->lived_ms);
    if (d->exit_code != 0 && r->n_gone < GONE_MAX) {
        snprintf(r->gone[r->n_gone].name, sizeof(r->gone[0].name), "%s", c->name);
        snprintf(r->gone[r->n_gone].how, sizeof(r->gone[0].how), "%s", how);
        r->gone[r->n_gone++].pid = d->pid;
        s_tell_gone(r);
    }
    if (d->verdict == EBB_RESTART_AGAIN) {
        if (d->exit_code != 0) {
            s_note(r, "%s (pid %d) %s: started again", c->name, (int)d->pid, how);
        }
    } else if (d->verdict == EBB_RESTART_GIVE_UP && !r->failed) {
        s_erase(r);
        r->failed = true;
        r->exit_code = d->exit_code > 0 ? d->exit_code : EX_SOFTWARE;
        fprintf(stderr, "ebb: %s %s and cannot go on\n", c->name, how);
        ebb_supervisor_show_log(&r->sup, c);
    }
}

// Begins the orderly end: workers leave, shards snapshot, everything stops.
static void s_begin_end(run *r, const char *reason)
{
    if (!r->ending) {
        r->ending = true;
        r->end_ms = ebb_clock_ms();
    }
    ebb_link_drain(&r->link, reason, true, 500);
}

static void s_supervise(run *r)
{
    while (!r->failed && !r->finished) {
        uint64_t now_ms = ebb_clock_ms();
        ebb_death death;
        while (ebb_supervisor_reap(&r->sup, now_ms, r->ending, &death)) {
            s_bury(r, &death);
        }
        if (ebb_stop_requested > 0 && !r->ending) {
            s_note(r, "draining: workers leave, shards write a snapshot (again to stop at once)");
            s_begin_end(r, "stopped by the user");
        }
        if (r->ending) {
            if (ebb_stop_requested > 1 || ebb_supervisor_alive(&r->sup, -1) == 0 || now_ms - r->end_ms > DRAIN_MS) {
                return;
            }
        } else if (ebb_supervisor_start_due(&r->sup, now_ms) != EBB_OK) {
            fprintf(stderr, "ebb: cannot start a program: %s\n", strerror(errno));
            r->failed = true;
            r->exit_code = EX_OSERR;
        }
        if (now_ms - r->status_ms >= STATUS_EVERY_MS) {
            s_poll_status(r, now_ms);
        }
        ebb_clock_sleep_ms(10);
    }
}

// After success: model out, then everything down.
static int s_finish(run *r)
{
    char path[PATH_MAX], why[512] = "";
    uint64_t version = 0;
    ebb_rundir_file(&r->dir, "model.safetensors", path);
    // Shards may die even now; a few tries see them come back.
    ebb_status st = EBB_TIMEDOUT;
    uint64_t until = ebb_clock_ms() + 60000;
    while (st != EBB_OK && ebb_clock_ms() < until && ebb_stop_requested == 0) {
        ebb_death death;
        while (ebb_supervisor_reap(&r->sup, ebb_clock_ms(), false, &death)) {
            s_bury(r, &death);
        }
        ebb_supervisor_start_due(&r->sup, ebb_clock_ms());
        st = ebb_fetch_model(r->endpoint, path, 0, 5000, &version, why);
    }
    return st == EBB_OK ? 0 : ebb_complain(st, "training has finished, but the model could not be taken out: %s (try: ebb export)", why);
}

static void s_write_results(run *r)
{
    const Ebb__StatusReply *s = r->status.env->status_reply;
    json_t *model = ebb_json_message(&r->spec->base);
    char *text;
    if (s->n_evals > 0) {
        json_object_set_new(model, "validation_loss", json_real(s->evals[s->n_evals - 1]->loss));
    }
    text = json_dumps(model, JSON_INDENT(1));
    if (text != NULL) {
        ebb_rundir_write(&r->dir, "model.json", text, strlen(text));
    }
    free(text);
    json_decref(model);
}

// How it stands at the end, good or not. state: SUCCEEDED, FAILED, STOPPED.
static void s_write_end(run *r, const char *state)
{
    if (r->status.env == NULL) {
        return;
    }
    json_t *o = ebb_json_message(&r->status.env->status_reply->base);
    json_object_set_new(o, "state", json_string(state));
    char *text = json_dumps(o, JSON_INDENT(1));
    if (text != NULL) {
        ebb_rundir_write(&r->dir, "result.json", text, strlen(text));
    }
    free(text);
    json_decref(o);
}

static void s_wait_down(run *r)
{
    ebb_supervisor_wait(&r->sup, r->end_ms + DRAIN_MS);
    ebb_supervisor_end(&r->sup, ebb_stop_requested > 1 ? 0 : GRACE_MS);
}

static void s_report(run *r, bool ok)
{
    const Ebb__StatusReply *s = r->status.env->status_reply;
    char path[PATH_MAX], took[32], why[512] = "";
    ebb_rundir_file(&r->dir, "model.safetensors", path);
    ebb_view_duration(s->elapsed_s, took, sizeof(took));
    if (r->a.json) {
        json_t *o = ebb_json_message(&s->base);
        json_object_set_new(o, "model", json_string(path));
        ebb_json_line("result", o);
        return;
    }
    printf("\n%s: %llu steps in %s, each counted once", s->name, (unsigned long long)s->steps_retired, took);
    if (s->steps_skipped > 0) {
        printf(" (%llu skipped, see ebb events)", (unsigned long long)s->steps_skipped);
    }
    putchar('\n');
    if (s->n_evals > 0) {
        const Ebb__EvalPoint *e = s->evals[s->n_evals - 1];
        printf("validation loss %.4f, accuracy %.2f %%\n", e->loss, e->accuracy * 100);
    }
    if (ok && strcmp(r->spec->model->family, "gpt") == 0) {
        printf("\nsampled from the model:\n\n");
        if (ebb_sample_file(&r->dir, path, "", 400, 0.8, 40, 1, why) != EBB_OK) {
            printf("(%s)\n", why);
        }
        putchar('\n');
    }
    if (ok) {
        printf("model: %s\n", path);
    }
    fflush(stdout);
}

// ---- before the start ----

static char *s_job_text(const Ebb__JobSpec *spec, size_t *len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, len);
    fputs(EBB_RUNDIR_MARK, f);
    ebb_jobspec_print(spec, f);
    fclose(f);
    return text;
}

static ebb_status s_load_job(run *r)
{
    char stored[PATH_MAX];
    const char *file = r->a.job;
    if (file == NULL) {
        ebb_rundir_file(&r->dir, "job.yaml", stored);
        file = stored;
    }
    EBB_TRY(ebb_jobspec_load(file, r->a.data, &r->spec, stderr));
    if (r->a.workers > 0 && !r->a.resume) { // a run that goes on keeps its settings; who computes it is free
        r->spec->workers_min = r->a.workers;
        r->spec->workers_max = r->a.workers > r->spec->workers_max ? r->a.workers : r->spec->workers_max;
    }
    ebb_model_config config;
    ebb_manifest *m = NULL;
    char why[512];
    ebb_status st = ebb_modelspec_config(r->spec->model, &config, why);
    if (st == EBB_OK) {
        st = ebb_model_manifest(&config, r->spec->chunk_elems, &m, why);
    }
    if (st != EBB_OK) {
        ebb_complain(st, "%s: %s", file, why);
        return st;
    }
    r->numel = m->numel;
    r->chunks = m->n_chunks;
    ebb_manifest_free(&m);
    r->workers = r->a.workers > 0 ? r->a.workers : r->spec->workers_min > 0 ? r->spec->workers_min : 1;
    if (r->a.steps > 0) {
        r->spec->steps = r->a.steps;
        r->spec->passes = 0;
    }
    return EBB_OK;
}

// The stored job as this version prints it: a key that the version which stored it did not have stands at its default.
static ebb_status s_stored_text(run *r, char **text, char *why)
{
    Ebb__JobSpec *spec = NULL;
    char path[PATH_MAX], *errors = NULL;
    size_t len = 0;
    ebb_rundir_file(&r->dir, "job.yaml", path);
    FILE *f = open_memstream(&errors, &len);
    ebb_status st = ebb_jobspec_load(path, NULL, &spec, f);
    fclose(f);
    if (st == EBB_OK) {
        *text = s_job_text(spec, &len);
        ebb_jobspec_free(&spec);
    } else {
        snprintf(why, 512, "%.*s", (int)strcspn(errors, "\n"), errors);
    }
    free(errors);
    return st;
}

// The first line in which two job texts differ, of each.
static void s_first_difference(const char *a, const char *b, char *line_a, char *line_b, size_t size)
{
    for (;;) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || strncmp(a, b, n) != 0 || a[n] == '\0' || b[m] == '\0') {
            size_t skip_a = strspn(a, " "), skip_b = strspn(b, " ");
            snprintf(line_a, size, "%.*s", (int)(n > skip_a ? n - skip_a : 0), a + skip_a);
            snprintf(line_b, size, "%.*s", (int)(m > skip_b ? m - skip_b : 0), b + skip_b);
            return;
        }
        a += n + 1;
        b += m + 1;
    }
}

// The folder must be fresh, or resumed, or given up by --force.
static ebb_status s_prepare_dir(run *r, char *why)
{
    const char *foreign = ebb_rundir_foreign(&r->dir);
    if (foreign != NULL) {
        snprintf(why, 512, "%.300s is not the folder of a run, but holds %s: --dir takes another folder", r->dir.path, foreign);
        return EBB_EXISTS;
    }
    bool has_job = ebb_rundir_has(&r->dir, "job.yaml");
    EBB_TRY(ebb_mkdirs(r->dir.path) == EBB_OK ? EBB_OK
                                              : (snprintf(why, 512, "cannot create %.400s: %s", r->dir.path, strerror(errno)),
                                                 errno == EACCES || errno == EPERM || errno == EROFS ? EBB_NOTAUTH : EBB_IO));
    EBB_TRY(ebb_rundir_lock(&r->dir, why));
    if (r->a.resume && !has_job) {
        snprintf(why, 512, "%.400s holds no run to resume", r->dir.path);
        return EBB_NOENT;
    }
    if (has_job && !r->a.resume && !r->a.force) {
        snprintf(why, 512, "%.300s holds %s run: --resume goes on with it, --force starts over, --dir takes another folder", r->dir.path,
                 ebb_rundir_finished(&r->dir) ? "a finished" : "an unfinished");
        return EBB_EXISTS;
    }
    if (r->a.force && has_job) { // a folder without job.yaml is not a run: what stands in it is somebody else's
        EBB_TRY(ebb_rundir_clear(&r->dir, why));
        has_job = false;
    }
    size_t len = 0;
    char *text = s_job_text(r->spec, &len), *old = NULL;
    ebb_status st = has_job ? s_stored_text(r, &old, why) : EBB_OK;
    if (st != EBB_OK) {
        free(text);
        return st;
    }
    // job.yaml first: it is what makes the folder a run's, whatever happens next.
    if (old != NULL && strcmp(old, text) != 0) {
        char theirs[100], ours[100];
        s_first_difference(old, text, theirs, ours, sizeof(ours));
        snprintf(why, 512,
                 "the run in %.200s has \"%s\", this job \"%s\": resume it as it is (ebb run --resume --dir ...), or start over with --force",
                 r->dir.path, theirs, ours);
        st = EBB_CONFIG;
    } else if (old == NULL) {
        st = ebb_rundir_write(&r->dir, "job.yaml", text, len);
        if (st != EBB_OK) {
            snprintf(why, 512, "cannot write %.400s/job.yaml: %s", r->dir.path, strerror(errno));
        }
    }
    free(old);
    free(text);
    return st == EBB_OK ? ebb_rundir_create(&r->dir, why) : st;
}

static void s_dry_run(const run *r)
{
    ebb_jobspec_print(r->spec, stdout);
    printf("# would start in %s: 1 coordinator, %u shard%s, %u worker%s\n", r->dir.path, r->spec->shards, r->spec->shards == 1 ? "" : "s", r->workers,
           r->workers == 1 ? "" : "s");
    printf("# %llu parameters in %zu chunks, %llu training samples, %llu held out, %llu steps\n", (unsigned long long)r->numel, r->chunks,
           (unsigned long long)r->spec->data->train_samples, (unsigned long long)r->spec->data->val_samples, (unsigned long long)r->spec->steps);
}

static int s_run(run *r)
{
    char why[512] = "", path[PATH_MAX];
    ebb_status st = s_load_job(r);
    if (st != EBB_OK) {
        return ebb_process_exit_code(st);
    }
    if (r->a.dir == NULL) {
        snprintf(path, sizeof(path), "runs/%.200s", r->spec->name);
        ebb_rundir_name(&r->dir, path);
    }
    if (r->a.dry_run) {
        s_dry_run(r);
        return 0;
    }
    uint64_t programs = 1 + (uint64_t)r->spec->shards + r->workers;
    if (programs > EBB_CHILDREN_MAX) {
        return ebb_complain(EBB_CONFIG, "%llu programs (1 coordinator, %u shards, %u workers) are more than ebb run starts on one machine (%d)",
                            (unsigned long long)programs, r->spec->shards, r->workers, EBB_CHILDREN_MAX);
    }
    if (r->chunks < r->spec->shards) {
        return ebb_complain(EBB_CONFIG, "the model has %zu chunks, too few for %u shards: lower shards or chunk_elems", r->chunks, r->spec->shards);
    }
    ebb_rundir_file(&r->dir, "job.yaml", r->job_file);
    st = ebb_supervisor_init(&r->sup, &r->dir, r->job_file, why);
    r->sup.http = r->a.http[0] != '\0' ? r->a.http : NULL;
    if (st == EBB_OK) {
        st = s_prepare_dir(r, why);
    }
    if (st != EBB_OK) {
        return ebb_complain(st, "%s", why[0] ? why : ebb_status_str(st));
    }
    ebb_process_signals();
    ebb_rundir_endpoint(&r->dir, "coordinator", r->endpoint, sizeof(r->endpoint));
    if (!ebb_rundir_finished(&r->dir)) {
        ebb_rundir_file(&r->dir, "result.json", path);
        unlink(path); // of a stop
    }
    r->event_id = ebb_events_last_id(&r->dir); // what was told before a resume isn't told again
    ebb_rundir_file(&r->dir, "metrics.jsonl", path);
    r->metrics = fopen(path, "ae");
    ebb_rundir_file(&r->dir, "logs/ebb.log", path);
    r->log = fopen(path, "ae");
    ebb_rundir_file(&r->dir, "events.log", path);
    r->events = fopen(path, "ae");
    st = ebb_link_open(&r->link, r->endpoint);
    if (st != EBB_OK) {
        return ebb_complain(st, "cannot use %s: %s", r->endpoint, ebb_status_str(st));
    }
    ebb_supervisor_add(&r->sup, EBB_CHILD_COORDINATOR, 0);
    for (uint32_t i = 0; i < r->spec->shards; i++) {
        ebb_supervisor_add(&r->sup, EBB_CHILD_SHARD, i);
    }
    for (uint32_t i = 0; i < r->workers; i++) {
        ebb_supervisor_add(&r->sup, EBB_CHILD_WORKER, i);
    }
    if (!r->a.json) {
        printf("%s: 1 coordinator, %u shard%s, %u worker%s in %s\n", r->spec->name, r->spec->shards, r->spec->shards == 1 ? "" : "s", r->workers,
               r->workers == 1 ? "" : "s", r->dir.path);
        fflush(stdout);
    }
    s_supervise(r);
    int rc = r->exit_code;
    bool succeeded = r->finished && !r->failed;
    if (succeeded) {
        s_poll_status(r, ebb_clock_ms());
        s_poll_events(r);
        rc = s_finish(r);
        s_write_results(r);
        s_write_end(r, "SUCCEEDED");
    }
    if (r->failed) { // nobody may be there to give or to take the order to drain
        ebb_supervisor_end(&r->sup, FAILED_GRACE_MS);
    } else {
        if (!r->ending) {
            s_begin_end(r, "finished");
        }
        s_wait_down(r);
    }
    s_erase(r);
    ebb_rundir_remove_sockets(&r->dir);
    if (succeeded) {
        s_report(r, rc == 0);
        return rc;
    }
    s_write_end(r, r->failed ? "FAILED" : "STOPPED");
    if (r->failed && r->status.env != NULL && r->status.env->status_reply->reason[0] != '\0') {
        fprintf(stderr, "ebb: the job failed: %s\n", r->status.env->status_reply->reason);
    }
    if (!r->failed) {
        fprintf(stderr, "stopped; go on with: ebb run --resume --dir %s\n", r->dir.path);
        rc = 128 + ebb_stop_signal;
    }
    if (r->a.json) { // the last thing known of it; a state other than SUCCEEDED, and no model
        ebb_json_line("result", r->status.env != NULL ? ebb_json_message(&r->status.env->status_reply->base) : json_object());
    }
    return rc;
}

// --dir, or for a resume: the folder in the job file's place, or the newest run. Otherwise the job's name decides, once it is read.
static int s_choose_dir(run *r)
{
    char why[512];
    struct stat st;
    if (r->a.resume && r->a.dir == NULL && r->a.job != NULL && stat(r->a.job, &st) == 0 && S_ISDIR(st.st_mode)) {
        r->a.dir = r->a.job;
        r->a.job = NULL;
    }
    if (r->a.dir != NULL) {
        ebb_rundir_name(&r->dir, r->a.dir);
    } else if (r->a.job == NULL) {
        ebb_status picked = ebb_rundir_pick(&r->dir, NULL, why);
        if (picked != EBB_OK) {
            return ebb_complain(picked, "%s", why);
        }
        r->a.dir = r->dir.path;
    }
    return 0;
}

int ebb_verb_run(int argc, char **argv)
{
    run *r = calloc(1, sizeof(*r));
    if (r == NULL) {
        return EX_OSERR;
    }
    const struct argp argp = {
        s_options,
        s_parse,
        "[JOB.yaml]",
        "Trains a job on this machine.\vStarts a coordinator, the shards and the workers as processes, starts them again when they die, shows "
        "progress, and ends with the model in RUN/model.safetensors. Ctrl-C stops in order; --resume goes on.\n\n"
        "  ebb run examples/digits-mlp.yaml\n  ebb run examples/kjv-gpt.yaml --data my.txt --steps 1000\n  ebb run --resume --dir runs/kjv-gpt\n\n"
        "docs/config.md describes the job file.",
        NULL,
        NULL,
        NULL};
    argp_err_exit_status = EX_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &r->a);
    r->tty = isatty(1);
    r->color = r->tty && getenv("NO_COLOR") == NULL;
    r->dir.lock_fd = -1;
    int rc = s_choose_dir(r);
    rc = rc == 0 ? s_run(r) : rc;
    ebb_link_close(&r->link);
    ebb_msg_fini(&r->status);
    FILE *files[] = {r->events, r->metrics, r->log};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (files[i] != NULL) {
            fclose(files[i]);
        }
    }
    ebb_rundir_unlock(&r->dir);
    ebb_jobspec_free(&r->spec);
    free(r);
    return rc;
}
