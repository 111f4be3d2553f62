/*
 * channel.c - communication between threads: a bounded queue of items, batches of bytes with a
 * descriptor for an event loop (mail), a cell with the latest value of something, and a lock.
 *
 * Called by the server's two threads. A queue and a cell never allocate after open; mail grows to
 * the largest batch seen and swaps buffers from then on. Must not: interpret the contents.
 */
#define _POSIX_C_SOURCE 200809L

#include "base/internal.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- queue */

struct sv_queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    int32_t capacity, head, n;
    size_t item_bytes;
    char *items; /* (capacity, item_bytes), a ring */
};

int sv_queue_open(struct sv_queue **queue, int32_t capacity, size_t item_bytes, struct sv_err *err)
{
    pthread_condattr_t attr;

    SV_REQUIRE(capacity > 0 && item_bytes > 0);
    *queue = NULL;
    struct sv_queue *q = sv_calloc(1, sizeof *q);
    if (!q)
        return sv_fail(err, SV_ENOMEM, -1, "queue");
    q->items = sv_calloc((size_t)capacity, item_bytes);
    if (!q->items) {
        sv_free(q);
        return sv_fail(err, SV_ENOMEM, -1, "queue of %d items", capacity);
    }
    q->capacity = capacity;
    q->item_bytes = item_bytes;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->filled, &attr);
    pthread_condattr_destroy(&attr);
    *queue = q;
    return SV_OK;
}

void sv_queue_close(struct sv_queue *q)
{
    if (!q)
        return;
    pthread_cond_destroy(&q->filled);
    pthread_mutex_destroy(&q->lock);
    sv_free(q->items);
    sv_free(q);
}

bool sv_queue_push(struct sv_queue *q, const void *item)
{
    pthread_mutex_lock(&q->lock);
    bool room = q->n < q->capacity;
    if (room) {
        size_t at = (size_t)((q->head + q->n) % q->capacity);
        memcpy(q->items + at * q->item_bytes, item, q->item_bytes);
        q->n++;
        pthread_cond_signal(&q->filled);
    }
    pthread_mutex_unlock(&q->lock);
    return room;
}

/* Waits, with the lock held, until there is an item or the time is over. */
static void await(struct sv_queue *q, int64_t wait_us)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(wait_us / 1000000);
    until.tv_nsec += (long)(wait_us % 1000000) * 1000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (!q->n)
        if (pthread_cond_timedwait(&q->filled, &q->lock, &until) == ETIMEDOUT)
            return;
}

bool sv_queue_pop(struct sv_queue *q, void *item, int64_t wait_us)
{
    pthread_mutex_lock(&q->lock);
    if (!q->n && wait_us > 0)
        await(q, wait_us);
    bool got = q->n > 0;
    if (got) {
        memcpy(item, q->items + (size_t)q->head * q->item_bytes, q->item_bytes);
        q->head = (q->head + 1) % q->capacity;
        q->n--;
    }
    pthread_mutex_unlock(&q->lock);
    return got;
}

/* ---------------------------------------------------------------- mail */

struct sv_mail {
    pthread_mutex_t lock;
    struct sv_buf box; /* posted and not yet taken */
    int fd;            /* timerfd; readable when the reader should take */
    int64_t armed_us;  /* when it becomes readable; INT64_MAX = never */
    int64_t quiet_us;  /* posts before then wait for a later post, ... */
    int64_t hold_us;   /* ... but no longer than this */
};

int sv_mail_open(struct sv_mail **mail, struct sv_err *err)
{
    *mail = NULL;
    struct sv_mail *m = sv_calloc(1, sizeof *m);
    if (!m)
        return sv_fail(err, SV_ENOMEM, -1, "mail");
    m->fd = sv_fault_hit() ? -1 : timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (m->fd < 0) {
        int code = errno;
        sv_free(m);
        return sv_fail_errno(err, "timerfd", "open", code);
    }
    pthread_mutex_init(&m->lock, NULL);
    sv_buf_init(&m->box);
    m->armed_us = INT64_MAX;
    *mail = m;
    return SV_OK;
}

void sv_mail_close(struct sv_mail *m)
{
    if (!m)
        return;
    close(m->fd);
    pthread_mutex_destroy(&m->lock);
    sv_buf_fini(&m->box);
    sv_free(m);
}

int sv_mail_fd(const struct sv_mail *m)
{
    return m->fd;
}

/* With the lock held. A time in the past fires at once; zero would disarm the timer. */
static void arm(struct sv_mail *m, int64_t at_us)
{
    struct itimerspec t = {.it_value = {(time_t)(at_us / 1000000), (long)(at_us % 1000000) * 1000}};

    if (at_us >= m->armed_us)
        return;
    m->armed_us = at_us;
    t.it_value.tv_nsec += at_us == 0;
    int rc = timerfd_settime(m->fd, TFD_TIMER_ABSTIME, &t, NULL);
    SV_REQUIRE(rc == 0);
}

int sv_mail_post(struct sv_mail *m, struct sv_buf *batch, bool urgent)
{
    int64_t now = sv_clock_us();
    int rc = SV_OK;

    if (!batch->len)
        return SV_OK;
    pthread_mutex_lock(&m->lock);
    if (!m->box.len) {
        struct sv_buf empty = m->box;
        m->box = *batch;
        *batch = empty;
    } else {
        rc = sv_buf_reserve(&m->box, batch->len); /* a failed append would set box.failed */
        if (!rc)
            sv_buf_append(&m->box, batch->data, batch->len);
    }
    if (!rc)
        arm(m, urgent || now >= m->quiet_us ? 0 : now + m->hold_us);
    pthread_mutex_unlock(&m->lock);
    if (!rc)
        sv_buf_clear(batch);
    return rc;
}

void sv_mail_take(struct sv_mail *m, struct sv_buf *out)
{
    uint64_t count;

    sv_buf_clear(out);
    ssize_t n = read(m->fd, &count, sizeof count); /* before the swap: a later post arms it anew */
    (void)n;
    pthread_mutex_lock(&m->lock);
    struct sv_buf full = m->box;
    m->box = *out;
    *out = full;
    m->armed_us = INT64_MAX;
    pthread_mutex_unlock(&m->lock);
}

void sv_mail_quiet(struct sv_mail *m, int64_t until_us, int64_t hold_us, int64_t wake_us)
{
    SV_REQUIRE(hold_us >= 0 && wake_us >= 0);
    pthread_mutex_lock(&m->lock);
    m->quiet_us = until_us;
    m->hold_us = hold_us;
    arm(m, wake_us);
    pthread_mutex_unlock(&m->lock);
}

/* ---------------------------------------------------------------- lock */

struct sv_lock {
    pthread_mutex_t mutex;
};

int sv_lock_open(struct sv_lock **lock, struct sv_err *err)
{
    struct sv_lock *l = sv_calloc(1, sizeof *l);

    *lock = l;
    if (!l)
        return sv_fail(err, SV_ENOMEM, -1, "lock");
    pthread_mutex_init(&l->mutex, NULL);
    return SV_OK;
}

void sv_lock_close(struct sv_lock *l)
{
    if (!l)
        return;
    pthread_mutex_destroy(&l->mutex);
    sv_free(l);
}

void sv_lock_take(struct sv_lock *l)
{
    SV_REQUIRE(!pthread_mutex_lock(&l->mutex));
}

void sv_lock_leave(struct sv_lock *l)
{
    SV_REQUIRE(!pthread_mutex_unlock(&l->mutex));
}

/* ---------------------------------------------------------------- cell */

struct sv_cell {
    pthread_mutex_t lock;
    size_t n_bytes;
    char value[];
};

int sv_cell_open(struct sv_cell **cell, size_t n_bytes, struct sv_err *err)
{
    struct sv_cell *c = sv_calloc(1, sizeof *c + n_bytes);
    *cell = c;
    if (!c)
        return sv_fail(err, SV_ENOMEM, -1, "cell");
    c->n_bytes = n_bytes;
    pthread_mutex_init(&c->lock, NULL);
    return SV_OK;
}

void sv_cell_close(struct sv_cell *c)
{
    if (!c)
        return;
    pthread_mutex_destroy(&c->lock);
    sv_free(c);
}

void sv_cell_set(struct sv_cell *c, const void *value)
{
    pthread_mutex_lock(&c->lock);
    memcpy(c->value, value, c->n_bytes);
    pthread_mutex_unlock(&c->lock);
}

void sv_cell_get(struct sv_cell *c, void *value)
{
    pthread_mutex_lock(&c->lock);
    memcpy(value, c->value, c->n_bytes);
    pthread_mutex_unlock(&c->lock);
}
