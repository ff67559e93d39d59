#include "core/inbox.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/assert.h"

// Ring under one mutex; the eventfd is nonzero exactly while the ring is not empty (or the inbox is closed), both changed under the lock.
struct ebb_inbox {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    void **ring;
    size_t capacity, head, count;
    int fd;
    bool closed;
};

ebb_status ebb_inbox_new(size_t capacity, ebb_inbox **out)
{
    EBB_ASSERT(capacity > 0);
    ebb_inbox *in = calloc(1, sizeof(*in));
    if (in == NULL) {
        return EBB_NOMEM;
    }
    in->ring = calloc(capacity, sizeof(void *));
    in->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (in->ring == NULL || in->fd < 0) {
        free(in->ring);
        if (in->fd >= 0) {
            close(in->fd);
        }
        free(in);
        return EBB_NOMEM;
    }
    in->capacity = capacity;
    pthread_mutex_init(&in->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&in->ready, &attr);
    pthread_condattr_destroy(&attr);
    *out = in;
    return EBB_OK;
}

void ebb_inbox_free(ebb_inbox **inbox)
{
    ebb_inbox *in = *inbox;
    if (in == NULL) {
        return;
    }
    *inbox = NULL;
    EBB_ASSERT(in->count == 0);
    close(in->fd);
    pthread_cond_destroy(&in->ready);
    pthread_mutex_destroy(&in->lock);
    free(in->ring);
    free(in);
}

static void s_signal(ebb_inbox *in)
{
    uint64_t one = 1;
    ssize_t n = write(in->fd, &one, sizeof(one));
    EBB_ASSERT(n == (ssize_t)sizeof(one) || errno == EAGAIN);
}

static void s_unsignal(ebb_inbox *in)
{
    uint64_t value;
    ssize_t n = read(in->fd, &value, sizeof(value));
    EBB_ASSERT(n == (ssize_t)sizeof(value) || errno == EAGAIN);
}

ebb_status ebb_inbox_push(ebb_inbox *in, void *item)
{
    EBB_ASSERT(item != NULL);
    ebb_status st = EBB_OK;
    pthread_mutex_lock(&in->lock);
    if (in->closed) {
        st = EBB_CLOSED;
    } else if (in->count == in->capacity) {
        st = EBB_AGAIN;
    } else {
        in->ring[(in->head + in->count) % in->capacity] = item;
        if (in->count++ == 0) {
            s_signal(in);
        }
        pthread_cond_signal(&in->ready);
    }
    pthread_mutex_unlock(&in->lock);
    return st;
}

static void *s_take(ebb_inbox *in)
{
    if (in->count == 0) {
        return NULL;
    }
    void *item = in->ring[in->head];
    in->head = (in->head + 1) % in->capacity;
    if (--in->count == 0 && !in->closed) {
        s_unsignal(in);
    }
    return item;
}

void *ebb_inbox_pop(ebb_inbox *in)
{
    pthread_mutex_lock(&in->lock);
    void *item = s_take(in);
    pthread_mutex_unlock(&in->lock);
    return item;
}

void *ebb_inbox_wait(ebb_inbox *in, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int ms = timeout_ms < 0 ? 0 : timeout_ms;
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&in->lock);
    while (in->count == 0 && !in->closed) {
        int rc = timeout_ms < 0 ? pthread_cond_wait(&in->ready, &in->lock) : pthread_cond_timedwait(&in->ready, &in->lock, &until);
        if (rc == ETIMEDOUT) {
            break;
        }
    }
    void *item = s_take(in);
    pthread_mutex_unlock(&in->lock);
    return item;
}

void ebb_inbox_close(ebb_inbox *in)
{
    pthread_mutex_lock(&in->lock);
    if (!in->closed) {
        in->closed = true;
        s_signal(in);
        pthread_cond_broadcast(&in->ready);
    }
    pthread_mutex_unlock(&in->lock);
}

int ebb_inbox_fd(const ebb_inbox *in)
{
    return in->fd;
}

size_t ebb_inbox_count(ebb_inbox *in)
{
    pthread_mutex_lock(&in->lock);
    size_t n = in->count;
    pthread_mutex_unlock(&in->lock);
    return n;
}
