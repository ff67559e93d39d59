// What a person sees, rendered to memory: golden text at two widths, and what must hold at every width.
#define _GNU_SOURCE // nftw
#include <math.h>

#include "tests/support/scratch.h"
#include "tools/ebb/view.h"

typedef struct world {
    Ebb__StatusReply s;
    Ebb__WorkerStatus worker[20], *workers[20];
    Ebb__ShardStatus shard[2], *shards[2];
    Ebb__LossPoint loss[40], *losses[40];
    Ebb__EvalPoint eval[2], *evals[2];
    char names[20][16];
} world;

static void fill(world *w, size_t n_workers)
{
    memset(w, 0, sizeof(*w));
    ebb__status_reply__init(&w->s);
    for (size_t i = 0; i < n_workers; i++) {
        Ebb__WorkerStatus *p = w->workers[i] = &w->worker[i];
        ebb__worker_status__init(p);
        snprintf(w->names[i], sizeof(w->names[i]), "worker-%zu", i);
        p->name = w->names[i];
        p->state = i == 1 ? "lost" : "running";
        p->utilization = i == 1 ? 0.25 : 0.875;
        p->steps = 1000 + i;
        p->samples_per_s = 812.4;
    }
    for (uint32_t i = 0; i < 2; i++) {
        Ebb__ShardStatus *p = w->shards[i] = &w->shard[i];
        ebb__shard_status__init(p);
        p->shard = i;
        p->state = i == 0 ? "ready" : "lost";
        p->version = 2001;
        p->rss_bytes = 48u << 20;
        p->journal_bytes = 1536;
        p->busy = 0.31;
    }
    for (size_t i = 0; i < 40; i++) {
        Ebb__LossPoint *p = w->losses[i] = &w->loss[i];
        ebb__loss_point__init(p);
        p->step = i * 50;
        p->loss = 5.0 - 0.08 * (double)i;
    }
    for (size_t i = 0; i < 2; i++) {
        Ebb__EvalPoint *p = w->evals[i] = &w->eval[i];
        ebb__eval_point__init(p);
        p->step = 1000 * (i + 1);
        p->loss = i == 0 ? 2.5 : 1.9876;
    }
    w->s.name = "kjv-gpt";
    w->s.state = "RUNNING";
    w->s.steps_total = 4000;
    w->s.steps_done = 2001;
    w->s.samples_per_s = 1624.8;
    w->s.tokens_per_s = 103987;
    w->s.elapsed_s = 75;
    w->s.remaining_s = 3725;
    w->s.loss = 1.8765;
    w->s.staleness = 0.5;
    w->s.numel = 836864;
    w->s.workers = w->workers, w->s.n_workers = w->s.workers_known = (uint32_t)n_workers;
    w->s.workers_live = n_workers > 1 ? (uint32_t)n_workers - 1 : (uint32_t)n_workers;
    w->s.shards = w->shards, w->s.n_shards = w->s.shards_total = 2;
    w->s.losses = w->losses, w->s.n_losses = 40;
    w->s.evals = w->evals, w->s.n_evals = 2;
}

static char *render(const world *w, int width, bool color, const char *const *notes, size_t n, int *lines)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    ebb_view_options o = {.width = width, .color = color};
    *lines = ebb_view_render(f, &w->s, &o, notes, n);
    fclose(f);
    return text;
}

// Without \033[K.
static void strip(char *text)
{
    char *to = text;
    for (const char *p = text; *p != '\0';) {
        if (strncmp(p, "\033[K", 3) == 0) {
            p += 3;
        } else {
            *to++ = *p++;
        }
    }
    *to = '\0';
}

static void expect(char *got, const char *want)
{
    strip(got);
    if (strcmp(got, want) != 0) {
        print_error("got:\n%s\nwant:\n%s\n", got, want);
        fail();
    }
    free(got);
}

static const char *const s_notes[] = {"worker-died worker-1: killed by signal 9 (Killed)",
                                      "worker-1 (pid 123) killed by signal 9 (Killed): started again"};

// The screen at the widths in the names.
static const char s_golden_60[] = "kjv-gpt  RUNNING  836864 parameters\n"
                                  "████████████              50.0%  1m15s, 1h02m left\n"
                                  "step 2001 of 4000   1625 samples/s   103987 tokens/s   stale\n"
                                  "loss 1.8765 ████▇▇▇▆▆▆▅▅▅▄▄▄▃▃▃▃▂▂▂▁▁▁ val 1.9876\n"
                                  "worker         state     utilization          steps  samples\n"
                                  "worker-0       running   ████████▊   88%       1000        8\n"
                                  "worker-1       lost      ██▌         25%       1001        8\n"
                                  "shard          state         version     memory    journal  \n"
                                  "shard-0        ready            2001     48 MiB    1.5 KiB  \n"
                                  "shard-1        lost             2001     48 MiB    1.5 KiB  \n"
                                  "worker-died worker-1: killed by signal 9 (Killed)\n"
                                  "worker-1 (pid 123) killed by signal 9 (Killed): started aga\n";

static const char s_golden_80[] = "kjv-gpt  RUNNING  836864 parameters\n"
                                  "██████████████████████                        50.0%  1m15s, 1h02m left\n"
                                  "step 2001 of 4000   1625 samples/s   103987 tokens/s   staleness 0.50\n"
                                  "loss 1.8765 █████▇▇▇▇▇▆▆▆▆▆▅▅▅▅▅▄▄▄▄▄▃▃▃▃▃▂▂▂▂▂▁▁▁▁▁ val 1.9876\n"
                                  "worker         state     utilization          steps  samples/s\n"
                                  "worker-0       running   ████████▊   88%       1000        812\n"
                                  "worker-1       lost      ██▌         25%       1001        812\n"
                                  "shard          state         version     memory    journal   busy\n"
                                  "shard-0        ready            2001     48 MiB    1.5 KiB    31%\n"
                                  "shard-1        lost             2001     48 MiB    1.5 KiB    31%\n"
                                  "worker-died worker-1: killed by signal 9 (Killed)\n"
                                  "worker-1 (pid 123) killed by signal 9 (Killed): started again\n";

static const char s_golden_100[] = "kjv-gpt  RUNNING  836864 parameters\n"
                                   "████████████████████████████████                                  50.0%  1m15s, 1h02m left\n"
                                   "step 2001 of 4000   1625 samples/s   103987 tokens/s   staleness 0.50\n"
                                   "loss 1.8765 █████▇▇▇▇▇▆▆▆▆▆▅▅▅▅▅▄▄▄▄▄▃▃▃▃▃▂▂▂▂▂▁▁▁▁▁ val 1.9876\n"
                                   "worker         state     utilization          steps  samples/s\n"
                                   "worker-0       running   ████████▊   88%       1000        812\n"
                                   "worker-1       lost      ██▌         25%       1001        812\n"
                                   "shard          state         version     memory    journal   busy\n"
                                   "shard-0        ready            2001     48 MiB    1.5 KiB    31%\n"
                                   "shard-1        lost             2001     48 MiB    1.5 KiB    31%\n"
                                   "worker-died worker-1: killed by signal 9 (Killed)\n"
                                   "worker-1 (pid 123) killed by signal 9 (Killed): started again\n";

static void test_view_golden(void **state)
{
    (void)state;
    static world w;
    int lines;
    fill(&w, 2);
    expect(render(&w, 60, false, s_notes, 2, &lines), s_golden_60);
    expect(render(&w, 80, false, s_notes, 2, &lines), s_golden_80);
    expect(render(&w, 100, false, s_notes, 2, &lines), s_golden_100);
}

static int columns(const char *line, size_t len)
{
    int n = 0;
    for (size_t i = 0; i < len; i++) {
        if (line[i] == '\033') {
            while (i < len && !(line[i] >= 'A' && line[i] <= 'Z') && line[i] != 'm') {
                i++;
            }
        } else {
            n += ((unsigned char)line[i] & 0xc0) != 0x80;
        }
    }
    return n;
}

// The number returned is the number of lines written (the caller goes back up by it), and none is wider than asked: a line that wraps would break that.
static void test_view_lines_and_columns(void **state)
{
    (void)state;
    static world w;
    static const size_t counts[] = {0, 1, 2, 16, 17, 20};
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        fill(&w, counts[k]);
        for (int width = 20; width <= 140; width++) {
            for (int color = 0; color < 2; color++) {
                int lines, found = 0;
                char *text = render(&w, width, color, s_notes, 2, &lines);
                for (char *p = text, *end; (end = strchr(p, '\n')) != NULL; p = end + 1) {
                    found++;
                    if (columns(p, (size_t)(end - p)) > width) {
                        fail_msg("width %d: a line has %d columns: %.*s", width, columns(p, (size_t)(end - p)), (int)(end - p), p);
                    }
                }
                assert_int_equal(lines, found);
                free(text);
            }
        }
    }
}

// Never as many lines as the screen has.
static void test_view_height(void **state)
{
    (void)state;
    static world w;
    fill(&w, 20);
    for (int height = 2; height < 60; height++) {
        char *text = NULL;
        size_t len = 0;
        FILE *f = open_memstream(&text, &len);
        int lines = ebb_view_render(f, &w.s, &(ebb_view_options){.width = 80, .height = height}, s_notes, 2);
        fclose(f);
        assert_true(lines < height && lines > 0);
        free(text);
    }
}

// NO_COLOR: no attribute is sent, only "erase to the end of the line".
static void test_view_plain_has_no_color(void **state)
{
    (void)state;
    static world w;
    int lines;
    fill(&w, 2);
    char *text = render(&w, 100, false, s_notes, 2, &lines);
    strip(text);
    assert_null(strchr(text, '\033'));
    free(text);
    text = render(&w, 100, true, s_notes, 2, &lines);
    assert_non_null(strstr(text, "\033[1m"));
    free(text);
}

// Nothing a coordinator may answer upsets it: before the start, numbers that are none, everything at once.
static void test_view_survives_odd_numbers(void **state)
{
    (void)state;
    static world w;
    static const double odd[] = {0, -1, 1e300, INFINITY, -INFINITY, NAN};
    int lines;
    Ebb__StatusReply empty = EBB__STATUS_REPLY__INIT;
    fill(&w, 0);
    w.s = empty;
    free(render(&w, 80, false, NULL, 0, &lines));
    assert_int_equal(lines, 6);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        fill(&w, 2);
        w.s.remaining_s = odd[i];
        w.s.samples_per_s = w.s.tokens_per_s = isfinite(odd[i]) && odd[i] < 1e9 ? odd[i] : 0;
        w.s.loss = w.eval[1].loss = isfinite(odd[i]) && odd[i] < 1e9 ? odd[i] : NAN;
        w.loss[7].loss = isfinite(odd[i]) ? odd[i] : 0;
        w.worker[0].utilization = isfinite(odd[i]) && odd[i] < 1e9 ? odd[i] : 1;
        w.s.steps_done = 9000; // more than in all
        free(render(&w, 80, true, NULL, 0, &lines));
        assert_int_equal(lines, 10);
    }
}

static void test_view_line(void **state)
{
    (void)state;
    static world w;
    char *text = NULL;
    size_t len = 0;
    fill(&w, 3);
    FILE *f = open_memstream(&text, &len);
    ebb_view_line(f, &w.s);
    fclose(f);
    assert_string_equal(text, "RUNNING step 2001/4000 loss 1.8765 val 1.9876 1625 samples/s 103987 tokens/s workers 2 staleness 0.50 left 1h02m");
    free(text);
}

static void test_view_duration(void **state)
{
    (void)state;
    static const struct {
        double s;
        const char *want;
    } rows[] = {{0, "0s"},       {0.4, "0s"},         {59.4, "59s"}, {59.6, "1m00s"},  {185, "3m05s"}, {3599.6, "1h00m"},
                {3725, "1h02m"}, {360000, "100h00m"}, {-5, "0s"},    {INFINITY, "0s"}, {NAN, "0s"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char out[32];
        ebb_view_duration(rows[i].s, out, sizeof(out));
        assert_string_equal(out, rows[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_view_golden),
        cmocka_unit_test(test_view_lines_and_columns),
        cmocka_unit_test(test_view_height),
        cmocka_unit_test(test_view_plain_has_no_color),
        cmocka_unit_test(test_view_survives_odd_numbers),
        cmocka_unit_test(test_view_line),
        cmocka_unit_test(test_view_duration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
