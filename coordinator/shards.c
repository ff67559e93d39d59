#include "coordinator/handlers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHORT_REPORTS 3
#define SHORT_MS 1000

void ebb_handle_shard_map(ebb_coordinator *c, Ebb__Envelope *reply, ebb_trash *trash)
{
    if (!ebb_coordinator_shards_ready(c)) {
        ebb_reply_refuse(reply, trash, EBB_TRYLATER, c->manifest == NULL ? "no worker has registered the model yet" : "not all shards are ready yet");
        return;
    }
    Ebb__ShardMapReply *r = EBB_TRASH_NEW(trash, Ebb__ShardMapReply, ebb__shard_map_reply__init);
    r->epoch = c->epoch;
    r->n_shards = c->spec->shards;
    r->shards = ebb_trash_own(trash, calloc(r->n_shards, sizeof(*r->shards)));
    for (uint32_t i = 0; i < r->n_shards; i++) {
        Ebb__ShardInfo *info = EBB_TRASH_NEW(trash, Ebb__ShardInfo, ebb__shard_info__init);
        info->shard = i;
        info->endpoint = c->members.shards[i].endpoint;
        info->incarnation = c->members.shards[i].incarnation;
        info->first_chunk = c->ranges[i].first;
        info->chunk_count = c->ranges[i].count;
        info->ready = true;
        r->shards[i] = info;
    }
    reply->body_case = EBB__ENVELOPE__BODY_SHARD_MAP_REPLY;
    reply->shard_map_reply = r;
}

static bool s_shard_seen(ebb_coordinator *c, const Ebb__ShardReport *q, uint64_t now_ms)
{
    ebb_shard_member *s = &c->members.shards[q->shard];
    bool fresh = !s->known || s->incarnation != q->incarnation;
    if (fresh && ebb_past_has(&s->past, q->incarnation)) {
        return false; // what a dead process said comes late: its successor speaks for the shard
    }
    if (fresh) {
        ebb_past_add(&s->past, s->incarnation);
        ebb_ledger_shard_reset(&c->ledger, q->shard);
        s->incarnation = q->incarnation;
        s->incarnations++;
        s->full = s->chained = s->ready = false;
        s->upto = s->short_reports = 0;
        s->busy_ns = s->alive_ns = 0;
        char name[32];
        snprintf(name, sizeof(name), "shard-%u", q->shard);
        ebb_coordinator_event(c, s->known ? "shard-restarted" : "shard-up", name, "pid=%u incarnation %" PRIu64 " seen by this coordinator", q->pid,
                              s->incarnations);
    }
    s->known = true;
    s->seen_ms = now_ms;
    s->pid = q->pid;
    s->rss_bytes = q->rss_bytes;
    if (s->disk_low != q->disk_low) {
        char name[32];
        snprintf(name, sizeof(name), "shard-%u", q->shard);
        s->disk_low = q->disk_low;
        ebb_coordinator_event(c, q->disk_low ? "disk-low" : "disk-ok", name, "%" PRIu64 " MiB free: %s", (uint64_t)q->disk_free_bytes >> 20,
                              q->disk_low ? "pushes wait until there is room again" : "pushes are taken again");
    }
    snprintf(s->endpoint, sizeof(s->endpoint), "%.250s", q->endpoint);
    // Over at least a second: a shard counts a batch as busy when it is done, so shorter spans say nothing.
    if (q->alive_ns >= s->alive_ns + 1000000000u && q->busy_ns >= s->busy_ns) {
        s->busy = (double)(q->busy_ns - s->busy_ns) / (double)(q->alive_ns - s->alive_ns);
        s->busy_ns = q->busy_ns;
        s->alive_ns = q->alive_ns;
    }
    return true;
}

// A unit is retired once all its steps are durable on every shard, each as an applied push or a skip. A shard that has fewer than that was given another
// folder, an empty or an older one: going on would train a model of which a part stands still. And a shard that was told of more retired units than we know
// of tells us that it is our own store which is an older one. A late report may look like that once or twice; a shard that goes on saying so means it.
static bool s_is_short(ebb_coordinator *c, const Ebb__ShardReport *q, const Ebb__ShardJobReport *job, uint64_t now_ms)
{
    ebb_shard_member *s = &c->members.shards[q->shard];
    uint64_t has = job != NULL ? job->version + job->skipped : 0;
    bool ours = job != NULL && job->retired_below > c->ledger.retired_below;
    if (has >= c->ledger.steps_retired && !ours) {
        s->short_reports = 0;
        return false;
    }
    s->short_ms = s->short_reports++ == 0 ? now_ms : s->short_ms;
    if (s->short_reports >= SHORT_REPORTS && now_ms - s->short_ms >= SHORT_MS && c->state != EBB_JOB_FAILED) {
        if (ours) {
            snprintf(c->reason, sizeof(c->reason), "the coordinator's folder is older than that of shard %u: restore the newer one, or start over",
                     q->shard);
        } else {
            snprintf(c->reason, sizeof(c->reason),
                     "shard %u has %" PRIu64 " steps, but %" PRIu64
                     " were durable there: its folder was lost or replaced by an older one; restore it, or start over",
                     q->shard, has, c->ledger.steps_retired);
        }
        c->state = EBB_JOB_FAILED;
        ebb_coordinator_event(c, "job-failed", c->spec->name, "%s", c->reason);
    }
    return true;
}

void ebb_handle_shard_report(ebb_coordinator *c, const Ebb__ShardReport *q, uint64_t now_ms, Ebb__Envelope *reply, const ebb_part **part,
                             ebb_trash *trash)
{
    if (q->shard >= c->spec->shards || q->incarnation == 0) {
        ebb_reply_refuse(reply, trash, EBB_INVAL, "the job has no shard of this number");
        return;
    }
    if (!s_shard_seen(c, q, now_ms)) {
        ebb_reply_refuse(reply, trash, EBB_CLOSED, "another process is this shard now");
        return;
    }
    ebb_shard_member *s = &c->members.shards[q->shard];
    Ebb__ShardReportReply *r = EBB_TRASH_NEW(trash, Ebb__ShardReportReply, ebb__shard_report_reply__init);
    const Ebb__ShardJobReport *job = NULL;
    for (size_t i = 0; i < q->n_jobs; i++) {
        job = q->jobs[i]->job == c->job ? q->jobs[i] : job;
    }
    if (s_is_short(c, q, job, now_ms)) {
        ebb_reply_refuse(reply, trash, c->state == EBB_JOB_FAILED ? EBB_CORRUPT : EBB_TRYLATER, "this shard lacks steps that were durable on it");
        return;
    }
    if (job != NULL) {
        s->version = job->version;
        s->journal_bytes = job->journal_bytes;
        // What a report leaves out was told in one before, to us or to the coordinator before us: only an unbroken chain from the beginning tells all.
        s->chained = job->since == 0 || (s->chained && job->since <= s->upto);
        s->upto = s->chained && q->report > s->upto ? q->report : s->upto;
        s->full = s->chained && (s->full || job->full);
        r->want_full = !s->chained;
        for (size_t i = 0; i < job->n_watermarks; i++) {
            const Ebb__Watermark *w = job->watermarks[i];
            ebb_ledger_watermark(&c->ledger, q->shard, w->stream, w->applied, w->durable);
        }
        ebb_coordinator_retire(c); // persisted before the reply below says so
        s->ready = c->manifest != NULL && s->full && job->manifest_hash == c->manifest_hash && job->epoch == c->epoch;
    }
    bool installed = job != NULL && job->manifest_hash == c->manifest_hash && job->epoch == c->epoch;
    if (c->manifest != NULL && !installed) {
        Ebb__ShardInstall *install = EBB_TRASH_NEW(trash, Ebb__ShardInstall, ebb__shard_install__init);
        install->job = c->job;
        install->spec = c->spec;
        install->epoch = c->epoch;
        install->first_chunk = c->ranges[q->shard].first;
        install->chunk_count = c->ranges[q->shard].count;
        install->manifest_hash = c->manifest_hash;
        r->install = install;
        *part = &c->manifest_part;
    }
    r->job = c->job;
    r->retired_below = c->ledger.retired_below;
    r->n_retired = c->ledger.n_retired < 4096 ? c->ledger.n_retired : 4096;
    r->retired = ebb_trash_own(trash, malloc(r->n_retired * sizeof(*r->retired) + 1));
    if (r->n_retired > 0) {
        for (size_t i = 0; i < r->n_retired; i++) {
            r->retired[i] = c->ledger.retired[i];
        }
    }
    r->skips = ebb_trash_own(trash, calloc(c->n_skips + 1, sizeof(*r->skips)));
    for (size_t i = 0; i < c->n_skips && r->n_skips < 256; i++) {
        const ebb_unit_row *u = ebb_ledger_unit(&c->ledger, c->skips[i].stream);
        if (u == NULL || u->applied[q->shard] >= c->skips[i].seq) {
            continue; // this shard has it
        }
        Ebb__StreamSkip *skip = EBB_TRASH_NEW(trash, Ebb__StreamSkip, ebb__stream_skip__init);
        skip->job = c->job;
        skip->stream = c->skips[i].stream;
        skip->seq = c->skips[i].seq;
        r->skips[r->n_skips++] = skip;
    }
    // At the end nobody pushes any more: ask for the snapshot that makes the last units durable.
    r->snapshot = strcmp(c->spec->durability, "snapshot") == 0 && ebb_ledger_all_applied(&c->ledger) && !ebb_ledger_all_retired(&c->ledger);
    r->shutdown = c->shutting_shards;
    reply->body_case = EBB__ENVELOPE__BODY_SHARD_REPORT_REPLY;
    reply->shard_report_reply = r;
}

// ---- operator ----
