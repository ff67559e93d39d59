#include "tools/ebb/view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void ebb_view_duration(double seconds, char *out, size_t size)
{
    long s = lround(seconds < 0 || !isfinite(seconds) ? 0 : seconds);
    if (s >= 3600) {
        snprintf(out, size, "%ldh%02ldm", s / 3600, s / 60 % 60);
    } else if (s >= 60) {
        snprintf(out, size, "%ldm%02lds", s / 60, s % 60);
    } else {
        snprintf(out, size, "%lds", s);
    }
}

static void s_bytes(double bytes, char *out, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    while (bytes >= 1024 && u < 4) {
        bytes /= 1024;
        u++;
    }
    snprintf(out, size, bytes < 10 && u > 0 ? "%.1f %s" : "%.0f %s", bytes, units[u]);
}

static void s_bar(FILE *out, double fraction, int width)
{
    static const char *const parts[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
    fraction = fraction < 0 || !isfinite(fraction) ? 0 : fraction > 1 ? 1 : fraction;
    int eighths = (int)(fraction * width * 8 + 0.5);
    for (int i = 0; i < width; i++) {
        int part = eighths - i * 8;
        fputs(parts[part < 0 ? 0 : part > 8 ? 8 : part], out);
    }
}

// The loss as a row of blocks, oldest first, scaled to what is shown.
static void s_curve(FILE *out, const Ebb__StatusReply *s, int width)
{
    static const char *const levels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    size_t n = s->n_losses;
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        low = s->losses[i]->loss < low ? s->losses[i]->loss : low;
        high = s->losses[i]->loss > high ? s->losses[i]->loss : high;
    }
    int columns = n < (size_t)width ? (int)n : width;
    for (int c = 0; c < columns; c++) {
        size_t from = (size_t)c * n / (size_t)columns, to = ((size_t)c + 1) * n / (size_t)columns;
        double sum = 0;
        for (size_t i = from; i < to; i++) {
            sum += s->losses[i]->loss;
        }
        double mean = sum / (double)(to - from);
        int level = high > low ? (int)((mean - low) / (high - low) * 7.999) : 0;
        fputs(levels[level < 0 ? 0 : level > 7 ? 7 : level], out);
    }
}

void ebb_view_line(FILE *out, const Ebb__StatusReply *s)
{
    char left[32];
    ebb_view_duration(s->remaining_s, left, sizeof(left));
    fprintf(out, "%s step %llu/%llu", s->state, (unsigned long long)s->steps_done, (unsigned long long)s->steps_total);
    if (s->n_losses > 0) {
        fprintf(out, " loss %.4f", s->loss);
    }
    if (s->n_evals > 0) {
        fprintf(out, " val %.4f", s->evals[s->n_evals - 1]->loss);
    }
    fprintf(out, " %.0f samples/s", s->samples_per_s);
    if (s->tokens_per_s > s->samples_per_s * 1.5) {
        fprintf(out, " %.0f tokens/s", s->tokens_per_s);
    }
    fprintf(out, " workers %u", s->workers_live);
    if (strcmp(s->state, "RUNNING") == 0 && s->remaining_s > 0) {
        fprintf(out, " staleness %.2f left %s", s->staleness, left);
    }
}

static int s_render(FILE *out, const Ebb__StatusReply *s, const ebb_view_options *o, const char *const *notes, size_t n_notes)
{
    const char *bold = o->color ? "\033[1m" : "", *dim = o->color ? "\033[2m" : "", *off = o->color ? "\033[0m" : "";
    int lines = 0, width = o->width < 60 ? 60 : o->width > 120 ? 120 : o->width;
    char a[32], b[32];
    double part = s->steps_total ? (double)s->steps_done / (double)s->steps_total : 0;
    ebb_view_duration(s->elapsed_s, a, sizeof(a));
    ebb_view_duration(s->remaining_s, b, sizeof(b));
    fprintf(out, "%s%.40s%s  %s  %llu parameters\033[K\n", bold, s->name, off, s->state, (unsigned long long)s->numel);
    s_bar(out, part, width - 36);
    bool running = strcmp(s->state, "RUNNING") == 0 && s->remaining_s > 0;
    fprintf(out, " %5.1f%%  %s, %s left\033[K\n", part * 100, a, running ? b : "-");
    fprintf(out, "step %llu of %llu   %.0f samples/s", (unsigned long long)s->steps_done, (unsigned long long)s->steps_total, s->samples_per_s);
    if (s->tokens_per_s > s->samples_per_s * 1.5) {
        fprintf(out, "   %.0f tokens/s", s->tokens_per_s);
    }
    fprintf(out, "   staleness %.2f\033[K\n", s->staleness);
    if (s->n_losses > 0) {
        fprintf(out, "loss %s%.4f%s ", bold, s->loss, off);
    } else {
        fputs("loss - ", out);
    }
    s_curve(out, s, width - 34);
    if (s->n_evals > 0) {
        fprintf(out, " val %s%.4f%s", bold, s->evals[s->n_evals - 1]->loss, off);
    }
    fprintf(out, "\033[K\n%s%-14s %-9s %-16s %9s %10s%s\033[K\n", dim, "worker", "state", "utilization", "steps", "samples/s", off);
    lines += 5;
    for (size_t i = 0; i < s->n_workers && i < 16; i++, lines++) {
        const Ebb__WorkerStatus *w = s->workers[i];
        fprintf(out, "%-14.14s %-9s ", w->name, w->state);
        s_bar(out, w->utilization, 10);
        fprintf(out, " %3.0f%%  %9llu %10.0f\033[K\n", w->utilization * 100, (unsigned long long)w->steps, w->samples_per_s);
    }
    if (s->workers_known > 16) {
        fprintf(out, "%sand %u more%s\033[K\n", dim, s->workers_known - 16, off);
        lines++;
    }
    fprintf(out, "%s%-14s %-10s %10s %10s %10s %6s%s\033[K\n", dim, "shard", "state", "version", "memory", "journal", "busy", off);
    lines++;
    for (size_t i = 0; i < s->n_shards && i < 16; i++, lines++) {
        const Ebb__ShardStatus *p = s->shards[i];
        s_bytes((double)p->rss_bytes, a, sizeof(a));
        s_bytes((double)p->journal_bytes, b, sizeof(b));
        fprintf(out, "shard-%-8u %-10s %10llu %10s %10s %5.0f%%\033[K\n", p->shard, p->state, (unsigned long long)p->version, a, b, p->busy * 100);
    }
    if (s->shards_total > 16) {
        fprintf(out, "%sand %u more%s\033[K\n", dim, s->shards_total - 16, off);
        lines++;
    }
    for (size_t i = 0; i < n_notes; i++, lines++) {
        fprintf(out, "%s%.*s%s\033[K\n", dim, width - 1, notes[i], off);
    }
    return lines;
}

// One line, cut to the columns; escape sequences take none and are never cut. Every character used here is one column wide.
static void s_clip(FILE *out, const char *line, size_t len, int width)
{
    int column = 0;
    for (size_t i = 0; i < len;) {
        size_t n = 1;
        if (line[i] == '\033') {
            while (i + n < len && (line[i + n] == '[' || line[i + n] < '@')) {
                n++;
            }
            n += i + n < len;
        } else {
            while (i + n < len && ((unsigned char)line[i + n] & 0xc0) == 0x80) {
                n++;
            }
            if (++column > width) {
                i += n;
                continue;
            }
        }
        fwrite(line + i, 1, n, out);
        i += n;
    }
    fputc('\n', out);
}

int ebb_view_render(FILE *out, const Ebb__StatusReply *s, const ebb_view_options *o, const char *const *notes, size_t n_notes)
{
    char *text = NULL;
    size_t len = 0;
    FILE *whole = open_memstream(&text, &len);
    if (whole == NULL) {
        return 0;
    }
    s_render(whole, s, o, notes, n_notes);
    fclose(whole);
    int lines = 0, max = o->height > 1 ? o->height - 1 : 0;
    for (char *p = text, *end; p != NULL && (end = strchr(p, '\n')) != NULL && (max == 0 || lines < max); p = end + 1, lines++) {
        s_clip(out, p, (size_t)(end - p), o->width);
    }
    free(text);
    return lines;
}
