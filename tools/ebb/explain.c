#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <sysexits.h>

#include "tools/ebb/json.h"
#include "tools/ebb/link.h"
#include "tools/ebb/verbs.h"

typedef struct arguments {
    const char *run;
    bool json;
} arguments;

static const struct argp_option s_options[] = {
    {"json", 'j', 0, 0, "one JSON object per line: first the present state, then the decisions", 0},
    {0},
};

static error_t s_parse(int key, char *arg, struct argp_state *state)
{
    arguments *a = state->input;
    switch (key) {
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

static ebb_status s_now(const ebb_rundir *dir, bool json)
{
    char endpoint[PATH_MAX];
    ebb_link link;
    ebb_msg reply;
    ebb_rundir_endpoint(dir, "coordinator", endpoint, sizeof(endpoint));
    ebb_status st = ebb_link_open(&link, endpoint);
    if (st == EBB_OK) {
        st = ebb_link_status(&link, 3000, &reply);
    }
    if (st == EBB_OK) {
        const Ebb__ScaleStatus *s = reply.env->status_reply->scale;
        if (s != NULL && json) {
            ebb_json_line("scale", ebb_json_message(&s->base));
        } else if (s != NULL) {
            printf("%u workers wanted, %u live (from %u to %u)\n", s->wanted, s->live, s->min, s->max);
            printf("utilization %.2f, measured on %u; busiest shard %.2f\n", s->utilization, s->measured, s->shard_busy);
            printf("rule %s: %s\n\n", s->rule, s->text);
        }
        ebb_msg_fini(&reply);
    }
    ebb_link_close(&link);
    return st;
}

int ebb_verb_explain(int argc, char **argv)
{
    arguments a = {0};
    const struct argp argp = {
        s_options,
        s_parse,
        "[RUN]",
        "Why a run has as many workers as it has: what the coordinator looks at, the rule that holds, and each decision so far.\vRUN is the "
        "run's folder; by default the newest in ./runs. docs/autoscaling.md describes the rules.",
        NULL,
        NULL,
        NULL};
    argp_err_exit_status = EX_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    ebb_rundir dir;
    char why[512];
    ebb_status st = ebb_rundir_pick(&dir, a.run, why);
    if (st != EBB_OK) {
        return ebb_complain(st, "%s", why);
    }
    if (ebb_rundir_is_live(&dir)) {
        st = s_now(&dir, a.json);
        if (st != EBB_OK) {
            return ebb_complain(st, "the coordinator of %s does not answer", dir.path);
        }
    }
    ebb_events_print_log(&dir, "scaled-", a.json);
    return 0;
}
