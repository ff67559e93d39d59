#include "worker/stats.h"

#include <string.h>

#include "core/clock.h"

void ebb_stats_init(ebb_stats *s)
{
    memset(s, 0, sizeof(*s));
    s->start_ns = ebb_clock_ns();
    pthread_mutex_init(&s->lock, NULL);
}

void ebb_stats_fini(ebb_stats *s)
{
    pthread_mutex_destroy(&s->lock);
}

void ebb_stats_loss(ebb_stats *s, double loss)
{
    pthread_mutex_lock(&s->lock);
    s->loss_sum += loss;
    s->loss_count++;
    pthread_mutex_unlock(&s->lock);
}

void ebb_stats_first_gradient(ebb_stats *s)
{
    if (s->first_gradient_ms == 0) {
        uint64_t ms = (ebb_clock_ns() - s->start_ns) / 1000000u;
        s->first_gradient_ms = ms > 0 ? ms : 1;
    }
}

void ebb_stats_take_loss(ebb_stats *s, double *sum, uint32_t *count)
{
    pthread_mutex_lock(&s->lock);
    *sum = s->loss_sum;
    *count = s->loss_count;
    s->loss_sum = 0;
    s->loss_count = 0;
    pthread_mutex_unlock(&s->lock);
}

void ebb_stats_fill(const ebb_stats *s, Ebb__HeartbeatRequest *beat)
{
    beat->alive_ns = ebb_clock_ns() - s->start_ns;
    beat->compute_ns = s->compute_ns;
    beat->wait_ns = s->wait_ns;
    beat->data_ns = s->data_ns;
    beat->steps = s->steps;
    beat->samples = s->samples;
    beat->tokens = s->tokens;
    beat->staleness_sum = (double)s->staleness_sum;
    beat->staleness_count = s->staleness_count;
    beat->staleness_max = s->staleness_max;
    beat->first_gradient_ms = s->first_gradient_ms;
    beat->refused_stale = s->refused_stale;
    beat->duplicates = s->duplicates;
}
