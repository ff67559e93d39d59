#include "ps/server.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/log.h"
#include "core/rng.h"
#include "ps/ingress.h"
#include "ps/link.h"

struct ebb_server {
    ebb_server_options o;
    uint64_t incarnation;
    ebb_shard *shard;
    ebb_ingress *ingress;
    ebb_link *link;
};

static void s_reply(void *arg, const ebb_peer *peer, ebb_frames *frames)
{
    ebb_ingress_reply(((ebb_server *)arg)->ingress, peer, frames);
}

static void s_report(void *arg, Ebb__Envelope *env, uint64_t report)
{
    ebb_link_report(((ebb_server *)arg)->link, env, report);
}

static void s_news(void *arg)
{
    ebb_link_news(((ebb_server *)arg)->link);
}

static void s_shutdown(void *arg)
{
    ebb_server *s = arg;
    s->o.shutdown(s->o.arg);
}

static void s_fatal(void *arg, int exit_code, const char *why)
{
    ebb_server *s = arg;
    s->o.fatal(s->o.arg, exit_code, why);
}

ebb_status ebb_server_start(ebb_net *net, const ebb_server_options *options, ebb_server **out, char *why)
{
    ebb_status st;
    why[0] = '\0';
    ebb_server *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return EBB_NOMEM;
    }
    s->o = *options;
    s->incarnation = ebb_rng_system();
    const ebb_shard_options shard = {.dir = options->dir,
                                     .shard = options->shard,
                                     .incarnation = s->incarnation,
                                     .disk_reserve_bytes = options->disk_reserve_bytes,
                                     .sync_ms = options->sync_ms,
                                     .reply = s_reply,
                                     .report = s_report,
                                     .news = s_news,
                                     .shutdown = s_shutdown,
                                     .fatal = s_fatal,
                                     .arg = s};
    EBB_TRY_GOTO(ebb_shard_new(&shard, &s->shard, why), st, fail);
    st = ebb_link_new(net, options->coordinator, s->shard, &s->link);
    if (st != EBB_OK) {
        snprintf(why, 512, "cannot use the coordinator's endpoint %.200s: %s", options->coordinator, ebb_status_str(st));
        goto fail;
    }
    EBB_TRY_GOTO(ebb_ingress_start(net, options->bind, s->shard, s->incarnation, &s->ingress, why), st, fail);
    ebb_shard_set_endpoint(s->shard, ebb_ingress_endpoint(s->ingress));
    EBB_TRY_GOTO(ebb_shard_start(s->shard), st, fail);
    EBB_TRY_GOTO(ebb_link_start(s->link), st, fail);
    EBB_LOG(INFO, "server", "started", "shard=%u endpoint=%s coordinator=%s dir=%s incarnation=%016llx", options->shard,
            ebb_ingress_endpoint(s->ingress), options->coordinator, options->dir, (unsigned long long)s->incarnation);
    *out = s;
    return EBB_OK;
fail:
    if (why[0] == '\0') {
        snprintf(why, 512, "cannot start the shard: %s", ebb_status_str(st));
    }
    ebb_server_abandon(&s);
    return st;
}

const char *ebb_server_endpoint(const ebb_server *s)
{
    return ebb_ingress_endpoint(s->ingress);
}

uint64_t ebb_server_incarnation(const ebb_server *s)
{
    return s->incarnation;
}

static void s_end(ebb_server **sp, bool clean)
{
    ebb_server *s = *sp;
    if (s == NULL) {
        return;
    }
    *sp = NULL;
    if (clean) {
        ebb_ingress_close(s->ingress);
        ebb_shard_close(s->shard);
    }
    if (s->link != NULL) {
        ebb_link_stop(s->link, clean);
    }
    if (s->shard != NULL) {
        ebb_shard_stop(s->shard); // from here on nobody calls reply, report or news
    }
    ebb_ingress_stop(&s->ingress);
    ebb_link_free(&s->link);
    ebb_shard_free(&s->shard);
    free(s);
}

void ebb_server_stop(ebb_server **s)
{
    s_end(s, true);
}

void ebb_server_abandon(ebb_server **s)
{
    s_end(s, false);
}
