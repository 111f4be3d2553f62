/*
 * held.c - taps of plain steps kept back, so that the drafter's context K/V is made of many rows at
 * once.
 *
 * Where nobody drafts, the context K/V is needed by nobody yet, and making it row by row costs
 * several percent of a plain step. So while the same sequences decode plainly under the width
 * policy, their taps are collected, and worked off when there are enough of them, when a sequence
 * ends, or before any other kind of step. Called by step.c. Only on devices that compute at once:
 * elsewhere a pass is a graph whose pointers are fixed. Must not: let a step that could read the
 * context K/V come first.
 */
#include "engine/engine.h"

enum { LEAST_ROWS = 256 };

int sv_held_open(struct sv_held *h, struct sv_dev *dev, int32_t n_slots, int32_t max_rows,
                 size_t row_bytes, struct sv_err *err)
{
    size_t n = (size_t)(max_rows < LEAST_ROWS ? max_rows : LEAST_ROWS);
    struct sv_i32_pair *const pair[] = {&h->row_seg, &h->seg_row0, &h->seg_slot, &h->seg_base,
                                        &h->n_commit};
    *h = (struct sv_held){.cap_rows = (int32_t)n, .row_bytes = row_bytes};
    if (n_slots * 2 > h->cap_rows) {
        h->cap_rows = 0; /* so many rows a step have nothing to gain */
        return SV_OK;
    }
    int rc = sv_dev_alloc(dev, &h->taps, n * row_bytes, err);
    for (size_t i = 0; i < sizeof pair / sizeof pair[0] && !rc; i++) {
        rc = sv_dev_host_alloc(dev, (void **)&pair[i]->host, (n + 1) * sizeof(int32_t), err);
        if (!rc)
            rc = sv_dev_alloc(dev, (void **)&pair[i]->dev, (n + 1) * sizeof(int32_t), err);
    }
    if (!rc)
        rc = sv_dev_host_alloc(dev, (void **)&h->request, n * sizeof *h->request, err);
    return rc;
}

void sv_held_close(struct sv_held *h, struct sv_dev *dev)
{
    struct sv_i32_pair *const pair[] = {&h->row_seg, &h->seg_row0, &h->seg_slot, &h->seg_base,
                                        &h->n_commit};
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        sv_dev_host_free(dev, pair[i]->host);
        sv_dev_free(dev, pair[i]->dev);
    }
    sv_dev_host_free(dev, h->request);
    sv_dev_free(dev, h->taps);
    *h = (struct sv_held){0};
}

/* Makes context K/V of all taps held. Sequences that lost their pages meanwhile are left out. */
void sv_held_flush(struct sv_engine *e)
{
    struct sv_held *h = &e->held;
    int32_t n = 0;
    if (!h->n_rows)
        return;
    for (int32_t i = 0; i < h->n_rows; i++) {
        const struct sv_seq *q = e->sched.slot[h->seg_slot.host[i]];
        bool there =
            q && q->id == h->request[i] && h->seg_base.host[i] < q->n_committed + q->n_rows_ahead;
        h->row_seg.host[i] = h->seg_row0.host[i] = i;
        h->n_commit.host[i] = there;
        n += there;
    }
    h->seg_row0.host[h->n_rows] = h->n_rows;
    struct sv_i32_pair *const pair[] = {&h->row_seg, &h->seg_row0, &h->seg_slot, &h->seg_base,
                                        &h->n_commit};
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++)
        sv_dev_upload(e->dev, pair[i]->dev, pair[i]->host,
                      ((size_t)h->n_rows + 1) * sizeof(int32_t));
    if (n)
        e->drafter->ops->observe(e->drafter,
                                 &(struct sv_observe_pass){.rows = {.n_rows = h->n_rows,
                                                                    .n_segs = h->n_rows,
                                                                    .row_seg = h->row_seg.dev,
                                                                    .seg_row0 = h->seg_row0.dev,
                                                                    .seg_slot = h->seg_slot.dev,
                                                                    .seg_base = h->seg_base.dev},
                                                           .n_commit = h->n_commit.dev,
                                                           .taps = h->taps,
                                                           .cache = &e->cache});
    h->n_rows = 0;
}

/* The step about to run: its taps can be held, or what is held has to be worked off first. */
void sv_held_plan(struct sv_engine *e)
{
    struct sv_held *h = &e->held;
    const struct sv_plan *p = &e->plan;
    bool plain =
        h->cap_rows && e->sched.policy && p->n_segs && p->n_rows == p->n_segs && !p->n_draft_segs;
    for (int32_t i = 0; i < p->n_segs && plain; i++)
        plain = p->seg[i].kind == SV_SEG_VERIFY;
    if (plain && p->no_taps) {
        h->now = false;
        return;
    }
    if (!plain || h->n_rows + p->n_rows > h->cap_rows)
        sv_held_flush(e);
    h->now = plain && p->n_rows <= h->cap_rows;
    if (!h->now)
        return;
    for (int32_t i = 0; i < p->n_segs; i++) {
        int32_t at = h->n_rows + i;
        h->seg_slot.host[at] = p->seg[i].slot;
        h->seg_base.host[at] = p->seg[i].first;
        h->request[at] = p->seg[i].gave_up ? 0 : p->seg[i].request; /* 0 is nobody */
    }
}

/* Where the step's taps go when they are held. */
void *sv_held_taps(const struct sv_held *h)
{
    return (char *)h->taps + (size_t)h->n_rows * h->row_bytes;
}
