#define _GNU_SOURCE // strsep
#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

#include "core/clock.h"
#include "core/process.h"
#include "tools/ebb/json.h"
#include "tools/ebb/link.h"
#include "tools/ebb/verbs.h"

typedef struct arguments {
    const char *run;
    bool follow, json;
} arguments;

static const struct argp_option s_options[] = {
    {"follow", 'f', 0, 0, "go on as events come", 0},
    {"json", 'j', 0, 0, "one JSON object per line", 0},
    {0},
};

static error_t s_parse(int key, char *arg, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case 'f':
        a->follow = true;
        return 0;
    case 'j':
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->run != NULL) {
            argp_error(state, "one run at a time");
        }
        a->run = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void s_print(json_t *e, bool json)
{
    if (json) {
        json_dumpf(e, stdout, JSON_COMPACT);
        putchar('\n');
        return;
    }
    json_int_t ms = json_integer_value(json_object_get(e, "unix_ms"));
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm = {0}; // also for a time that is no date
    char stamp[32];
    localtime_r(&seconds, &tm);
    strftime(stamp, sizeof(stamp), "%H:%M:%S", &tm);
    printf("%s.%03d  %-20s %-14s %s\n", stamp, (int)(ms % 1000), json_string_value(json_object_get(e, "kind")),
           json_string_value(json_object_get(e, "subject")), json_string_value(json_object_get(e, "text")));
}

uint64_t ebb_events_print_log(const ebb_rundir *dir, const char *kinds, bool json)
{
    uint64_t last = 0;
    char *text = ebb_rundir_read(dir, "events.log", NULL), *rest = text;
    for (char *line = text ? strsep(&rest, "\n") : NULL; line != NULL; line = strsep(&rest, "\n")) {
        json_t *e = json_loads(line, 0, NULL);
        if (json_is_object(e)) {
            uint64_t id = (uint64_t)json_integer_value(json_object_get(e, "id"));
            const char *kind = json_string_value(json_object_get(e, "kind"));
            if (id > last) {
                if (kinds == NULL || (kind != NULL && strncmp(kind, kinds, strlen(kinds)) == 0)) {
                    s_print(e, json);
                }
                last = id;
            }
        }
        json_decref(e);
    }
    free(text);
    return last;
}

uint64_t ebb_events_last_id(const ebb_rundir *dir)
{
    uint64_t last = 0;
    char *text = ebb_rundir_read(dir, "events.log", NULL), *rest = text;
    for (char *line = text ? strsep(&rest, "\n") : NULL; line != NULL; line = strsep(&rest, "\n")) {
        json_t *e = json_loads(line, 0, NULL);
        uint64_t id = json_is_object(e) ? (uint64_t)json_integer_value(json_object_get(e, "id")) : 0;
        last = id > last ? id : last;
        json_decref(e);
    }
    free(text);
    return last;
}

int ebb_verb_events(int argc, char **argv)
{
    arguments a = {0};
    const struct argp argp = {
        s_options, s_parse,
        "[RUN]",   "What happened in a run: joins, deaths, restarts, evaluations.\vRUN is the run's folder; by default the newest in ./runs.",
        NULL,      NULL,
        NULL};
    argp_err_exit_status = EX_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    ebb_rundir dir;
    char why[512], endpoint[PATH_MAX];
    ebb_status st = ebb_rundir_pick(&dir, a.run, why);
    if (st != EBB_OK) {
        return ebb_complain(st, "%s", why);
    }
    ebb_process_signals();
    uint64_t last = ebb_events_print_log(&dir, NULL, a.json);
    if (!ebb_rundir_is_live(&dir)) {
        return 0;
    }
    ebb_link link;
    ebb_rundir_endpoint(&dir, "coordinator", endpoint, sizeof(endpoint));
    st = ebb_link_open(&link, endpoint);
    while (st == EBB_OK && ebb_stop_requested == 0) {
        ebb_msg reply;
        size_t n = 0;
        if (ebb_link_events(&link, last, 1000, &reply) == EBB_OK) {
            const Ebb__EventsReply *r = reply.env->events_reply;
            n = r->n_events;
            for (size_t i = 0; i < n; i++) {
                json_t *e = ebb_json_message(&r->events[i]->base);
                s_print(e, a.json);
                json_decref(e);
                last = r->events[i]->id;
            }
            ebb_msg_fini(&reply);
        }
        fflush(stdout);
        if (n == 0 && (!a.follow || !ebb_rundir_is_live(&dir))) {
            break;
        }
        if (n == 0) {
            ebb_clock_sleep_ms(300);
        }
    }
    ebb_link_close(&link);
    return ebb_process_exit_code(st);
}
