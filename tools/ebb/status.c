#include <argp.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sysexits.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/process.h"
#include "tools/ebb/json.h"
#include "tools/ebb/link.h"
#include "tools/ebb/verbs.h"
#include "tools/ebb/view.h"

typedef struct arguments {
    const char *run;
    bool watch, json;
} arguments;

static const struct argp_option s_options[] = {
    {"watch", 'w', 0, 0, "go on showing until the run ends", 0},
    {"json", 'j', 0, 0, "machine-readable: one JSON object per line", 0},
    {0},
};

static error_t s_parse(int key, char *arg, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
    case 'w':
        a->watch = true;
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

int ebb_verb_status_ended(const ebb_rundir *dir, bool json)
{
    char *text = ebb_rundir_read(dir, "result.json", NULL);
    if (text == NULL) {
        return ebb_complain(EBB_TRYLATER, "%s is not running and has not finished; go on with: ebb run --resume --dir %s", dir->path, dir->path);
    }
    json_t *result = json_loads(text, 0, NULL);
    free(text);
    if (result == NULL || json_string_value(json_object_get(result, "state")) == NULL) {
        json_decref(result);
        return ebb_complain(EBB_CORRUPT, "%s/result.json is damaged", dir->path);
    }
    if (json) {
        json_dumpf(result, stdout, JSON_COMPACT);
        putchar('\n');
    } else {
        json_t *evals = json_object_get(result, "evals"), *last = json_array_get(evals, json_array_size(evals) - 1);
        const char *state = json_string_value(json_object_get(result, "state")), *reason = json_string_value(json_object_get(result, "reason"));
        printf("%s is not running; it ended as %s after %lld of %lld steps", dir->path, state != NULL ? state : "?",
               (long long)json_integer_value(json_object_get(result, "steps_done")),
               (long long)json_integer_value(json_object_get(result, "steps_total")));
        if (last != NULL) {
            printf(", validation loss %.4f", json_number_value(json_object_get(last, "loss")));
        }
        if (reason != NULL && reason[0] != '\0') {
            printf(": %s", reason);
        }
        putchar('\n');
        if (state != NULL && strcmp(state, "STOPPED") == 0) {
            printf("go on with: ebb run --resume --dir %s\n", dir->path);
        }
    }
    json_decref(result);
    return 0;
}

static void s_show(const Ebb__StatusReply *s, bool json, bool in_place)
{
    if (json) {
        json_t *object = ebb_json_message(&s->base);
        json_dumpf(object, stdout, JSON_COMPACT);
        json_decref(object);
        putchar('\n');
    } else {
        struct winsize size = {.ws_col = 80};
        bool tty = isatty(1);
        if (!tty || ioctl(1, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
            size.ws_col = 80;
        }
        ebb_view_options options = {.width = size.ws_col, .height = size.ws_row, .color = tty && getenv("NO_COLOR") == NULL};
        if (!tty) {
            ebb_view_line(stdout, s);
            putchar('\n');
        } else {
            if (in_place) {
                printf("\033[H"); // drawn over, then the rest erased: no flicker
            }
            ebb_view_render(stdout, s, &options, NULL, 0);
            if (in_place) {
                printf("\033[J");
            }
        }
    }
    fflush(stdout);
}

int ebb_verb_status(int argc, char **argv)
{
    arguments a = {0};
    const struct argp argp = {
        s_options, s_parse, "[RUN]", "How a run is doing, or how it ended.\vRUN is the run's folder; by default the newest in ./runs.",
        NULL,      NULL,    NULL};
    argp_err_exit_status = EX_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    ebb_rundir dir;
    char why[512], endpoint[PATH_MAX];
    ebb_status st = ebb_rundir_pick(&dir, a.run, why);
    if (st != EBB_OK) {
        return ebb_complain(st, "%s", why);
    }
    ebb_process_signals();
    ebb_rundir_endpoint(&dir, "coordinator", endpoint, sizeof(endpoint));
    ebb_link link;
    if (!ebb_rundir_is_live(&dir)) {
        return ebb_verb_status_ended(&dir, a.json);
    }
    st = ebb_link_open(&link, endpoint);
    bool shown = false;
    while (st == EBB_OK && ebb_stop_requested == 0) {
        ebb_msg reply;
        st = ebb_link_status(&link, a.watch ? 1000 : 5000, &reply);
        if (st == EBB_OK) {
            s_show(reply.env->status_reply, a.json, shown && !a.json);
            shown = true;
            ebb_msg_fini(&reply);
        } else if (a.watch && ebb_rundir_is_live(&dir)) {
            st = EBB_OK; // the coordinator is being started again
        }
        if (!a.watch) {
            break;
        }
        ebb_clock_sleep_ms(500);
    }
    ebb_link_close(&link);
    if (st != EBB_OK && !shown) {
        return ebb_complain(st, "the coordinator of %s does not answer: %s", dir.path, ebb_status_str(st));
    }
    return 0;
}
