#include "worker/prefetch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"

// The ring holds the steps [taken, made) of the current order, step k in entry k % DEPTH; the consumer still uses step taken - 1, whose entry is
// therefore not filled before the next call.
typedef struct entry {
    ebb_batch_buf buf;
    ebb_status status;
    char why[512];
} entry;

struct ebb_prefetch {
    const ebb_dataset *dataset;
    const ebb_plan *plan;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    entry entry[EBB_PREFETCH_DEPTH];
    // under lock
    bool quit, reading;
    uint64_t order;                // counts calls of begin
    uint64_t stream, first, count; // steps first .. first + count - 1
    uint64_t taken, made;          // of these
};

static void *s_run(void *arg)
{
    ebb_prefetch *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        uint64_t in_use = p->taken > 0 ? p->taken - 1 : 0;
        if (p->made == p->count || p->made - in_use >= EBB_PREFETCH_DEPTH) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        entry *e = &p->entry[p->made % EBB_PREFETCH_DEPTH];
        uint64_t order = p->order, stream = p->stream, seq = p->first + p->made;
        p->reading = true;
        pthread_mutex_unlock(&p->lock);
        ebb_step step;
        char why[512] = "";
        ebb_status st = ebb_plan_step(p->plan, stream, seq, &step);
        if (st == EBB_OK) {
            st = ebb_dataset_train(p->dataset, &step, &e->buf, why);
        } else {
            st = EBB_INVAL;
            snprintf(why, sizeof(why), "stream %llu has no step %llu", (unsigned long long)stream, (unsigned long long)seq);
        }
        pthread_mutex_lock(&p->lock);
        p->reading = false;
        e->status = st;
        memcpy(e->why, why, sizeof(why));
        if (order == p->order) {
            p->made++;
        }
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

ebb_status ebb_prefetch_start(const ebb_dataset *dataset, ebb_prefetch **out)
{
    ebb_prefetch *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return EBB_NOMEM;
    }
    ebb_status st = EBB_OK;
    p->dataset = dataset;
    p->plan = ebb_dataset_plan(dataset);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    for (int i = 0; i < EBB_PREFETCH_DEPTH && st == EBB_OK; i++) {
        st = ebb_batch_buf_init(dataset, p->plan->batch, &p->entry[i].buf);
    }
    if (st == EBB_OK && pthread_create(&p->thread, NULL, s_run, p) != 0) {
        st = EBB_NOMEM;
    }
    if (st != EBB_OK) {
        for (int i = 0; i < EBB_PREFETCH_DEPTH; i++) {
            ebb_batch_buf_fini(&p->entry[i].buf);
        }
        pthread_cond_destroy(&p->changed);
        pthread_mutex_destroy(&p->lock);
        free(p);
        return st;
    }
    *out = p;
    return EBB_OK;
}

void ebb_prefetch_stop(ebb_prefetch **pp)
{
    ebb_prefetch *p = *pp;
    if (p == NULL) {
        return;
    }
    *pp = NULL;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    for (int i = 0; i < EBB_PREFETCH_DEPTH; i++) {
        ebb_batch_buf_fini(&p->entry[i].buf);
    }
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void ebb_prefetch_begin(ebb_prefetch *p, uint64_t stream, uint64_t seq_first, uint64_t seq_last)
{
    pthread_mutex_lock(&p->lock);
    p->order++;
    p->count = p->taken = p->made = 0; // so that the reader rests after what it is at
    while (p->reading) {               // the entry under the reader's hands belongs to the old order
        pthread_cond_wait(&p->changed, &p->lock);
    }
    p->stream = stream;
    p->first = seq_first;
    p->count = seq_last >= seq_first ? seq_last - seq_first + 1 : 0;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

ebb_status ebb_prefetch_next(ebb_prefetch *p, const ebb_batch **batch)
{
    ebb_status st = EBB_AGAIN;
    pthread_mutex_lock(&p->lock);
    if (p->taken < p->count) {
        p->taken++; // lets go of the batch before, whose entry may now be filled
        pthread_cond_broadcast(&p->changed);
        while (p->made < p->taken) {
            pthread_cond_wait(&p->changed, &p->lock);
        }
        entry *e = &p->entry[(p->taken - 1) % EBB_PREFETCH_DEPTH];
        st = e->status;
        *batch = &e->buf.batch;
    }
    pthread_mutex_unlock(&p->lock);
    return st;
}

const char *ebb_prefetch_why(const ebb_prefetch *p)
{
    return p->entry[(p->taken > 0 ? p->taken - 1 : 0) % EBB_PREFETCH_DEPTH].why; // the consumer's own entry
}
