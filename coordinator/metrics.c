#include "coordinator/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void s_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void s_value(FILE *out, double v)
{
    if (isnan(v)) {
        fputs(" NaN\n", out);
    } else if (isinf(v)) {
        fputs(v > 0 ? " +Inf\n" : " -Inf\n", out);
    } else {
        fprintf(out, " %.17g\n", v);
    }
}

static void s_one(FILE *out, const char *name, const char *type, const char *help, double v)
{
    s_head(out, name, type, help);
    fputs(name, out);
    s_value(out, v);
}

// A label's value; backslash, quote and newline are escaped as the format asks.
static void s_label(FILE *out, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '\n') {
            fputs("\\n", out);
        } else {
            fprintf(out, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c);
        }
    }
}

static void s_labelled(FILE *out, const char *name, const char *label, const char *value, double v)
{
    fprintf(out, "%s{%s=\"", name, label);
    s_label(out, value);
    fputs("\"}", out);
    s_value(out, v);
}

static void s_workers(FILE *out, const Ebb__StatusReply *s)
{
    static const char *const states[] = {"joined", "running", "draining", "lost", "left"};
    s_head(out, "ebbtide_workers", "gauge", "Workers by state.");
    for (size_t k = 0; k < sizeof(states) / sizeof(states[0]); k++) {
        size_t n = 0;
        for (size_t i = 0; i < s->n_workers; i++) {
            n += strcmp(s->workers[i]->state, states[k]) == 0;
        }
        s_labelled(out, "ebbtide_workers", "state", states[k], (double)n);
    }
    size_t shown = 0;
    s_head(out, "ebbtide_worker_utilization_ratio", "gauge", "Compute time / alive time over the worker's last heartbeats.");
    for (size_t i = 0; i < s->n_workers && shown < s->workers_live && shown < EBB_METRICS_WORKERS_MAX; i++, shown++) {
        s_labelled(out, "ebbtide_worker_utilization_ratio", "worker", s->workers[i]->name, s->workers[i]->utilization);
    }
    s_head(out, "ebbtide_worker_staleness_versions", "gauge", "Mean staleness of the worker's gradients.");
    for (size_t i = 0; i < shown; i++) {
        s_labelled(out, "ebbtide_worker_staleness_versions", "worker", s->workers[i]->name, s->workers[i]->staleness);
    }
}

static void s_shards(FILE *out, const Ebb__StatusReply *s)
{
    static const struct {
        const char *name, *help;
    } rows[] = {
        {"ebbtide_shard_version", "Updates the shard has applied."},
        {"ebbtide_shard_up", "1 if the shard is ready and heard of."},
        {"ebbtide_shard_busy_ratio", "Busy time of the shard's thread / time."},
        {"ebbtide_shard_resident_memory_bytes", "Resident memory of the shard's process."},
        {"ebbtide_shard_journal_bytes", "Journal since the last snapshot."},
        {"ebbtide_shard_parameter_bytes", "Parameters on the shard."},
    };
    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
        s_head(out, rows[k].name, "gauge", rows[k].help);
        for (size_t i = 0; i < s->n_shards; i++) {
            const Ebb__ShardStatus *p = s->shards[i];
            char number[16];
            double v[] = {(double)p->version,   strcmp(p->state, "ready") == 0, p->busy,
                          (double)p->rss_bytes, (double)p->journal_bytes,       (double)p->bytes};
            snprintf(number, sizeof(number), "%u", p->shard);
            s_labelled(out, rows[k].name, "shard", number, v[k]);
        }
    }
}

void ebb_metrics_print(FILE *out, const Ebb__StatusReply *s)
{
    static const char *const states[] = {"STARTING", "RUNNING", "DRAINING", "SUCCEEDED", "FAILED", "STOPPED"};
    s_head(out, "ebbtide_job_info", "gauge", "Names of the job; always 1.");
    fprintf(out, "ebbtide_job_info{job=\"%016" PRIx64 "\",name=\"", (uint64_t)s->job);
    s_label(out, s->name);
    fputs("\"} 1\n", out);
    s_head(out, "ebbtide_job_state", "gauge", "1 for the state the job is in.");
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        s_labelled(out, "ebbtide_job_state", "state", states[i], strcmp(s->state, states[i]) == 0);
    }
    s_one(out, "ebbtide_job_parameters", "gauge", "Parameters of the model.", (double)s->numel);
    s_one(out, "ebbtide_job_steps", "gauge", "Steps of the whole job.", (double)s->steps_total);
    // Not counters: a shard that loses its last seconds at durability `snapshot` takes them back.
    s_one(out, "ebbtide_steps_applied", "gauge", "Steps that every shard has applied.", (double)s->steps_done);
    s_one(out, "ebbtide_steps_retired_total", "counter", "Steps that every shard has durable.", (double)s->steps_retired);
    s_one(out, "ebbtide_steps_skipped_total", "counter", "Steps skipped because they could not be computed.", (double)s->steps_skipped);
    s_one(out, "ebbtide_steps_repeated_total", "counter", "Steps leased again that some shard had already.", (double)s->repeated_steps);
    s_one(out, "ebbtide_units_leased", "gauge", "Units under a valid lease.", (double)s->units_leased);
    s_one(out, "ebbtide_job_run_seconds", "gauge", "Time the job has been run.", s->elapsed_s);
    s_one(out, "ebbtide_loss", "gauge", "Moving mean of the training loss.", s->n_losses > 0 ? s->loss : NAN);
    s_one(out, "ebbtide_validation_loss", "gauge", "Loss of the last evaluation.", s->n_evals > 0 ? s->evals[s->n_evals - 1]->loss : NAN);
    s_one(out, "ebbtide_samples_per_second", "gauge", "Samples all workers compute per second.", s->samples_per_s);
    s_one(out, "ebbtide_tokens_per_second", "gauge", "Tokens all workers compute per second.", s->tokens_per_s);
    s_one(out, "ebbtide_staleness_versions", "gauge", "Mean staleness of the live workers' gradients.", s->staleness);
    if (s->scale != NULL) {
        s_one(out, "ebbtide_workers_wanted", "gauge", "Workers the autoscaler wants.", s->scale->wanted);
        s_one(out, "ebbtide_utilization_ratio", "gauge", "Mean utilization of the measured workers.", s->scale->utilization);
    }
    s_workers(out, s);
    s_shards(out, s);
}
