/*
 * late.c - see late.h.
 */
#include "engine/late.h"

#include "backend/backends.h"
#include "testing.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 4096, STEPS_MARKS = 2 };

/* A copy on its way: down, the bytes as they were in the queue; up, what the source must still
 * be. */
struct copy {
    bool up;
    void *host;
    unsigned char *bytes;
    size_t n;
};

struct late {
    struct sv_backend be; /* first member: the device's table meanwhile */
    const struct sv_backend *real;
    struct sv_engine *e;
    struct copy copy[MOST];
    int32_t n, marked[SV_MARKS];
    int64_t n_waits;
};

static struct late *late_of(struct sv_dev *dev)
{
    return (struct late *)(uintptr_t)dev->be;
}

static void add(struct late *l, bool up, void *host, const void *bytes, size_t n)
{
    assert_true(l->n < MOST);
    struct copy *c = &l->copy[l->n++];
    *c = (struct copy){.up = up, .host = host, .bytes = malloc(n), .n = n};
    memcpy(c->bytes, bytes, n);
}

/* The first n copies have happened. */
static void arrive(struct late *l, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        struct copy *c = &l->copy[i];
        if (c->up)
            assert_memory_equal(c->host, c->bytes,
                                c->n); /* changed while the upload could still read it */
        else
            memcpy(c->host, c->bytes, c->n);
        free(c->bytes);
    }
    l->n -= n;
    memmove(l->copy, l->copy + n, (size_t)l->n * sizeof l->copy[0]);
    for (int i = 0; i < SV_MARKS; i++)
        l->marked[i] = l->marked[i] > n ? l->marked[i] - n : 0;
}

/* What lies in ordinary memory is copied at once, as a GPU's driver does; the batch's arrays are
 * pinned. */
static void late_upload(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    struct late *l = late_of(dev);
    const struct sv_batch *b = &l->e->batch;
    const int32_t *at = src, *end = b->host_block + 2 * b->block_words;
    l->real->upload(dev, dst, src, n_bytes);
    if (at >= b->host_block && at < end)
        add(l, true, (void *)(uintptr_t)src, src, n_bytes);
}

static void late_download(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    add(late_of(dev), false, dst, src, n_bytes);
    memset(dst, 0x5a, n_bytes);
}

static void late_mark(struct sv_dev *dev, int32_t i)
{
    struct late *l = late_of(dev);
    l->real->mark(dev, i);
    l->marked[i] = l->n;
}

static int late_wait(struct sv_dev *dev, int32_t i, struct sv_err *err)
{
    struct late *l = late_of(dev);
    l->n_waits += i >= STEPS_MARKS;
    arrive(l, l->marked[i]);
    return l->real->wait(dev, i, err);
}

static int late_sync(struct sv_dev *dev, struct sv_err *err)
{
    struct late *l = late_of(dev);
    arrive(l, l->n);
    return l->real->sync(dev, err);
}

struct late *late_begin(struct sv_engine *e)
{
    struct late *l = calloc(1, sizeof *l);
    assert_int_equal(e->n_flight, 0);
    l->real = e->dev->be;
    l->e = e;
    l->be = *l->real;
    l->be.upload = late_upload;
    l->be.download = late_download;
    l->be.mark = late_mark;
    l->be.wait = late_wait;
    l->be.sync = late_sync;
    e->dev->be = &l->be;
    return l;
}

int64_t late_end(struct late *l)
{
    int64_t n = l->n_waits;
    arrive(l, l->n);
    l->e->dev->be = l->real;
    free(l);
    return n;
}
