/*
 * stream.c - messages that rank 0 writes and every other rank reads, in order: a ring in memory
 * that all ranks see.
 *
 * Called by engine through dist.h. Messages lie in whole lines of 64 bytes, each in one piece, so
 * that readers use them where they are. What is written is told to the readers by flush, or when
 * there is no room. Must not: allocate, or wait without end.
 */
#include "dist/dist.h"

#include <string.h>

enum { LINE = 64, SKIP = 0 };

struct head {
    uint32_t kind, n_bytes;
};

static uint32_t lines_of(uint32_t n_bytes)
{
    return (uint32_t)((sizeof(struct head) + n_bytes + LINE - 1) / LINE);
}

static struct head *head_at(struct sv_stream *s, uint32_t at)
{
    return (struct head *)(void *)(s->ring + (size_t)(at % SV_STREAM_LINES) * LINE);
}

static int stopped(enum sv_wait got, const struct sv_failure *f, int32_t rank, struct sv_err *err)
{
    if (got == SV_WAIT_STOPPED)
        return sv_fail(err, SV_EDEVICE, -1, "rank %d failed: %s", f->rank, f->text);
    return sv_fail(err, SV_EDEVICE, -1, "rank %d does not read its messages", rank);
}

void sv_stream_flush(struct sv_world *w)
{
    sv_count_set(&w->shared->stream.written, w->at);
    sv_world_changed(w);
}

/* Waits until no reader has anything in the n lines to come. */
static int make_room(struct sv_world *w, uint32_t n, struct sv_err *err)
{
    struct sv_stream *s = &w->shared->stream;
    const uint32_t least = w->at + n - SV_STREAM_LINES;
    for (int32_t r = 1; r < w->ranks.n; r++) {
        if ((int32_t)(sv_count_read(&s->read[r]) - least) >= 0)
            continue;
        sv_stream_flush(w);
        const enum sv_wait got =
            sv_count_wait(&s->read[r], least, &w->shared->failure.stop, w->spin_us, w->timeout_us);
        if (got)
            return stopped(got, &w->shared->failure, r, err);
    }
    return SV_OK;
}

int sv_stream_write(struct sv_world *w, uint32_t kind, const void *first, uint32_t n_first,
                    const void *rest, uint32_t n_rest, struct sv_err *err)
{
    struct sv_stream *s = &w->shared->stream;
    const uint32_t n_bytes = n_first + n_rest, n = lines_of(n_bytes),
                   to_end = SV_STREAM_LINES - w->at % SV_STREAM_LINES,
                   skip = n > to_end ? to_end : 0;
    SV_REQUIRE(w->ranks.rank == 0 && kind != SKIP && n_bytes <= SV_STREAM_MOST);
    int rc = make_room(w, skip + n, err);
    if (rc)
        return rc;
    if (skip) {
        *head_at(s, w->at) = (struct head){SKIP, (uint32_t)(skip * LINE - sizeof(struct head))};
        w->at += skip;
    }
    struct head *h = head_at(s, w->at);
    *h = (struct head){kind, n_bytes};
    if (n_first)
        memcpy(h + 1, first, n_first);
    if (n_rest)
        memcpy((char *)(h + 1) + n_first, rest, n_rest);
    w->at += n;
    return SV_OK;
}

int sv_stream_read(struct sv_world *w, uint32_t *kind, const void **data, uint32_t *n_bytes,
                   struct sv_err *err)
{
    struct sv_stream *s = &w->shared->stream;
    for (;;) {
        /* A rank that has nothing to do waits for as long as it takes. */
        const enum sv_wait got =
            sv_count_wait(&s->written, w->at + 1, &w->shared->failure.stop, w->spin_us, -1);
        if (got)
            return stopped(got, &w->shared->failure, 0, err);
        const struct head *h = head_at(s, w->at);
        w->at += lines_of(h->n_bytes);
        *kind = h->kind;
        *data = h + 1;
        *n_bytes = h->n_bytes;
        if (h->kind != SKIP)
            return SV_OK;
    }
}

void sv_stream_done(struct sv_world *w)
{
    sv_count_set(&w->shared->stream.read[w->ranks.rank], w->at);
}
