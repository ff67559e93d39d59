// tools/sim: plays seeds. See README.md.
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/log.h"
#include "tests/sim/mutate.h"
#include "tests/sim/sim.h"

#define JOBS_MAX 64

typedef struct arguments {
    uint64_t seeds, first, seed;
    bool one, trace, replay, mutants;
    uint32_t jobs;
    mutation mutation;
} arguments;

// What one process of several has played.
typedef struct totals {
    uint64_t seeds, events, virtual_ms, messages, deaths, recoveries, steps;
    uint64_t violated_seed; // UINT64_MAX: none
} totals;

enum { OPT_SEEDS = 's', OPT_FIRST = 'f', OPT_JOBS = 'j', OPT_SEED = 0x100, OPT_TRACE, OPT_MUTATE, OPT_REPLAY, OPT_MUTANTS };

static const struct argp_option s_options[] = {
    {"seeds", OPT_SEEDS, "N", 0, "how many seeds to play (default 1000)", 0},
    {"first", OPT_FIRST, "S", 0, "the first of them (default 1)", 0},
    {"jobs", OPT_JOBS, "N", 0, "processes that share the seeds (default 1)", 0},
    {"seed", OPT_SEED, "S", 0, "play this one seed and print its hash", 0},
    {"trace", OPT_TRACE, NULL, 0, "with --seed: print every event", 0},
    {"mutate", OPT_MUTATE, "NAME", 0, "plant a bug (\"list\" names them) and play until a seed catches it", 0},
    {"mutants", OPT_MUTANTS, NULL, 0, "plant each bug; each must be caught within its number of seeds", 0},
    {"replay", OPT_REPLAY, NULL, 0, "play each seed twice: both must be the same, bit for bit", 0},
    {0}};

static uint64_t s_number(const char *text, uint64_t most, const char *what, struct argp_state *state)
{
    char *end = NULL;
    errno = 0;
    uint64_t v = strtoull(text, &end, 0);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || v > most) {
        argp_error(state, "--%s must be a number from 0 to %" PRIu64 ", not \"%s\"", what, most, text);
    }
    return v;
}

static void s_list(FILE *out)
{
    for (int m = MUTATE_NOTHING + 1; m < MUTATIONS; m++) {
        fprintf(out, "%-24s %s\n", mutation_get((mutation)m)->word, mutation_get((mutation)m)->what);
    }
}

static error_t s_parse(int key, char *arg, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case OPT_SEEDS:
        a->seeds = s_number(arg, UINT64_MAX - 1, "seeds", state);
        return 0;
    case OPT_FIRST:
        a->first = s_number(arg, UINT64_MAX - 1, "first", state);
        return 0;
    case OPT_JOBS:
        a->jobs = (uint32_t)s_number(arg, JOBS_MAX, "jobs", state);
        a->jobs = a->jobs > 0 ? a->jobs : 1;
        return 0;
    case OPT_SEED:
        a->seed = s_number(arg, UINT64_MAX - 1, "seed", state);
        a->one = true;
        return 0;
    case OPT_TRACE:
        a->trace = true;
        return 0;
    case OPT_MUTATE:
        if (strcmp(arg, "list") == 0) {
            s_list(stdout);
            exit(0);
        }
        a->mutation = mutation_find(arg);
        if (a->mutation == MUTATE_NOTHING) {
            fprintf(stderr, "sim: no planted bug is called \"%s\"; there are:\n", arg);
            s_list(stderr);
            exit(64);
        }
        return 0;
    case OPT_REPLAY:
        a->replay = true;
        return 0;
    case OPT_MUTANTS:
        a->mutants = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument \"%s\"", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void s_quiet(void *arg, ebb_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

// An assertion of the product: say which seed it was.
static void s_on_abort(int sig)
{
    (void)sig;
    if (sim_now != NULL) {
        printf("\nseed %" PRIu64 ": the product aborted at event %" PRIu64 "; replay: tools/sim --seed %" PRIu64 " --trace\n", sim_now->seed,
               sim_now->event_no, sim_now->seed);
        fflush(stdout);
    }
    _exit(134);
}

static void s_count(totals *t, const sim_result *r)
{
    t->seeds++;
    t->events += r->events;
    t->virtual_ms += r->virtual_ms;
    t->messages += r->messages;
    t->deaths += r->deaths;
    t->recoveries += r->recoveries;
    t->steps += r->steps;
}

static void s_play(const arguments *a, uint64_t offset, totals *t)
{
    t->violated_seed = UINT64_MAX;
    for (uint64_t i = offset; i < a->seeds; i += a->jobs) {
        uint64_t seed = a->first + i;
        sim_result r = sim_run(seed, false, false, NULL);
        s_count(t, &r);
        if (!r.violated && a->replay) {
            sim_result again = sim_run(seed, false, false, NULL);
            if (again.hash != r.hash || again.events != r.events) {
                printf("\nseed %" PRIu64 ": two runs differ: hash %016" PRIx64 " after %" PRIu64 " events, and %016" PRIx64 " after %" PRIu64 "\n",
                       seed, r.hash, r.events, again.hash, again.events);
                r.violated = true;
            }
        }
        if (r.violated) {
            t->violated_seed = seed;
            return;
        }
    }
}

static int s_play_all(const arguments *a)
{
    int fds[JOBS_MAX];
    pid_t pids[JOBS_MAX];
    totals sum = {.violated_seed = UINT64_MAX};
    int code = 0;
    fflush(stdout);
    for (uint32_t j = 0; j < a->jobs; j++) {
        int ends[2];
        if (pipe(ends) != 0 || (pids[j] = fork()) < 0) {
            perror("sim: cannot start a process");
            return 71;
        }
        if (pids[j] == 0) {
            totals t = {0};
            s_play(a, j, &t);
            fflush(stdout);
            _exit(write(ends[1], &t, sizeof(t)) == (ssize_t)sizeof(t) && t.violated_seed == UINT64_MAX ? 0 : 1);
        }
        close(ends[1]);
        fds[j] = ends[0];
    }
    for (uint32_t j = 0; j < a->jobs; j++) {
        totals t = {0};
        int status = 0;
        if (read(fds[j], &t, sizeof(t)) == (ssize_t)sizeof(t)) {
            sum.seeds += t.seeds;
            sum.events += t.events;
            sum.virtual_ms += t.virtual_ms;
            sum.messages += t.messages;
            sum.deaths += t.deaths;
            sum.recoveries += t.recoveries;
            sum.steps += t.steps;
        }
        close(fds[j]);
        waitpid(pids[j], &status, 0);
        code = status != 0 ? 1 : code;
    }
    printf("%" PRIu64 " seeds: %" PRIu64 " steps, %" PRIu64 " messages, %" PRIu64 " crashes, %" PRIu64 " recoveries in %" PRIu64
           " events, %.1f hours of "
           "virtual time; %s\n",
           sum.seeds, sum.steps, sum.messages, sum.deaths, sum.recoveries, sum.events, (double)sum.virtual_ms / 3.6e6,
           code == 0 ? "no violation" : "VIOLATED");
    return code;
}

// True: caught. Seeds from a->first on, at most `most`.
static bool s_catch(const arguments *a, mutation m, uint64_t most, bool quiet)
{
    char why[512];
    mutate_now = m;
    for (uint64_t i = 0; i < most; i++) {
        sim_result r = sim_run(a->first + i, false, quiet, why);
        if (r.violated) {
            printf("%-24s caught by seed %" PRIu64 ", the %" PRIu64 ". one: %s\n", mutation_get(m)->word, a->first + i, i + 1, why);
            return true;
        }
    }
    printf("%-24s NOT caught within %" PRIu64 " seeds\n", mutation_get(m)->word, most);
    return false;
}

static int s_catch_all(const arguments *a)
{
    int code = 0;
    for (int m = MUTATE_NOTHING + 1; m < MUTATIONS; m++) {
        code |= !s_catch(a, (mutation)m, mutation_get((mutation)m)->within, true);
        fflush(stdout);
    }
    return code;
}

static int s_play_one(const arguments *a)
{
    mutate_now = a->mutation;
    sim_result r = sim_run(a->seed, a->trace, false, NULL);
    printf("seed %" PRIu64 ": hash %016" PRIx64 ", %" PRIu64 " events, %" PRIu64 " messages, %" PRIu64 " crashes, %.1f s of virtual time%s\n",
           a->seed, r.hash, r.events, r.messages, r.deaths, (double)r.virtual_ms / 1000, r.violated ? "; VIOLATED" : "");
    return r.violated;
}

int main(int argc, char **argv)
{
    argp_err_exit_status = 64;
    const struct argp argp = {
        s_options,
        s_parse,
        NULL,
        "Plays whole jobs (coordinator, shards, workers, network, disks) on a virtual clock, each from one seed, with crashes everywhere, and "
        "checks after every event that each step counts exactly once.",
        NULL,
        NULL,
        NULL};
    arguments a = {.seeds = 1000, .first = 1, .jobs = 1};
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    ebb_log_open("sim");
    if (!a.one || !a.trace) {
        ebb_log_set_sink(s_quiet, NULL);
        ebb_log_set_level(EBB_LOG_ERROR);
    }
    signal(SIGABRT, s_on_abort);
    if (a.one) {
        return s_play_one(&a);
    }
    if (a.mutants) {
        return s_catch_all(&a);
    }
    if (a.mutation != MUTATE_NOTHING) {
        return !s_catch(&a, a.mutation, a.seeds, false);
    }
    return s_play_all(&a);
}
