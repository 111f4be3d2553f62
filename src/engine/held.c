/*
 * held.c - taps of plain steps and of prompts kept back: context K/V of the drafter is made when somebody drafts, and of many rows
 * at once.
 *
 * Where nobody drafts, the context K/V is needed by nobody yet, and making it costs several percent of a plain step.
 * So under the width policy these taps are collected and worked off before a step drafts with them, when
 * there are too many, or before pages change hands. What a sequence still holds when it ends while nobody drafts is
 * dropped: its pages are marked as lacking the draft's part. Called by step.c. Only on devices that compute at once,
 * whose memory is the host's: elsewhere a pass is a graph whose pointers are fixed. Must not: let a step that could
 * read the context K/V come first.
 */
#include "engine/engine.h"

#include <string.h>

#define NOBODY UINT64_MAX
/* Rows worked off at a time; bytes of taps held at most. */
enum { CHUNK_ROWS = 256, MOST_BYTES = 16 << 20 };

static int open_chunk(struct sv_held *h, struct sv_dev *dev, struct sv_err *err)
{
    struct sv_i32_pair *const pair[] = {&h->row_seg, &h->seg_row0, &h->seg_slot, &h->seg_base,
                                        &h->n_commit};
    size_t n = (size_t)h->chunk_rows;
    int rc = sv_dev_alloc(dev, &h->chunk, n * h->row_bytes, err);
    for (size_t i = 0; i < sizeof pair / sizeof pair[0] && !rc; i++) {
        rc = sv_dev_host_alloc(dev, (void **)&pair[i]->host, (n + 1) * sizeof(int32_t), err);
        if (!rc)
            rc = sv_dev_alloc(dev, (void **)&pair[i]->dev, (n + 1) * sizeof(int32_t), err);
    }
    return rc;
}

int sv_held_open(struct sv_held *h, struct sv_dev *dev, int32_t n_slots, int32_t max_rows, int64_t n_positions,
                 size_t row_bytes, struct sv_err *err)
{
    int64_t n = MOST_BYTES / (int64_t)row_bytes;
    *h = (struct sv_held){.row_bytes = row_bytes};
    h->chunk_rows = max_rows < CHUNK_ROWS ? max_rows : CHUNK_ROWS;
    n = n < n_positions ? n : n_positions;
    n = n < h->chunk_rows ? h->chunk_rows : n;
    if (n_slots * 2 > n)
        return SV_OK; /* so many rows a step have nothing to gain */
    h->cap_rows = (int32_t)n;
    int rc = sv_dev_alloc(dev, &h->taps, (size_t)n * row_bytes, err);
    if (!rc)
        rc = open_chunk(h, dev, err);
    if (!rc)
        rc = sv_dev_host_alloc(dev, (void **)&h->row, (size_t)n * sizeof *h->row, err);
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
    sv_dev_host_free(dev, h->row);
    sv_dev_free(dev, h->chunk);
    sv_dev_free(dev, h->taps);
    *h = (struct sv_held){0};
}

/* ---------------------------------------------------------------- working off */

/* The sequence whose row it is, while it has its pages. */
static const struct sv_seq *owner(const struct sv_engine *e, const struct sv_held_row *r)
{
    const struct sv_seq *q = e->sched.slot[r->slot];
    return q && q->id == r->request && r->base < q->n_committed + q->n_rows_ahead ? q : NULL;
}

static void observe_chunk(struct sv_engine *e, int32_t n)
{
    struct sv_held *h = &e->held;
    struct sv_i32_pair *const pair[] = {&h->row_seg, &h->seg_row0, &h->seg_slot, &h->seg_base,
                                        &h->n_commit};
    if (!n)
        return;
    h->seg_row0.host[n] = n;
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++)
        sv_dev_upload(e->dev, pair[i]->dev, pair[i]->host, ((size_t)n + 1) * sizeof(int32_t));
    e->drafter->ops->observe(e->drafter, &(struct sv_observe_pass){.rows = {.n_rows = n,
                                                                            .n_segs = n,
                                                                            .row_seg = h->row_seg.dev,
                                                                            .seg_row0 = h->seg_row0.dev,
                                                                            .seg_slot = h->seg_slot.dev,
                                                                            .seg_base = h->seg_base.dev},
                                                                   .n_commit = h->n_commit.dev,
                                                                   .taps = h->chunk,
                                                                   .cache = &e->cache});
}

static void *taps_at(const struct sv_held *h, int32_t i)
{
    return (char *)h->taps + (size_t)i * h->row_bytes;
}

/* Makes context K/V of rows held: of the request, 0 for all, NOBODY for none; only of sequences that draft in the plan
 * at work. The rows left move up. */
static void work_off(struct sv_engine *e, uint64_t request, bool drafting)
{
    struct sv_held *h = &e->held;
    int32_t n = 0, n_left = 0;
    if (!e->drafter) /* benchmarks take it away */
        h->n_rows = 0;
    for (int32_t i = 0; i < h->n_rows; i++) {
        const struct sv_held_row r = h->row[i];
        const struct sv_seq *q = owner(e, &r);
        if (!q)
            continue; /* it has lost its pages since */
        if ((request && r.request != request) || (drafting && !q->drafts_now)) {
            if (n_left != i)
                memcpy(taps_at(h, n_left), taps_at(h, i), h->row_bytes);
            h->row[n_left++] = r;
            continue;
        }
        memcpy((char *)h->chunk + (size_t)n * h->row_bytes, taps_at(h, i), h->row_bytes);
        h->row_seg.host[n] = h->seg_row0.host[n] = n;
        h->seg_slot.host[n] = r.slot;
        h->seg_base.host[n] = r.base;
        h->n_commit.host[n++] = 1;
        if (n == h->chunk_rows) {
            observe_chunk(e, n);
            n = 0;
        }
    }
    observe_chunk(e, n);
    h->n_rows = n_left;
}

void sv_held_flush(struct sv_engine *e)
{
    if (e->held.n_rows)
        work_off(e, 0, false);
}

/* Nobody drafts just now: what goes on from these pages can be computed again when somebody does. */
void sv_held_end(struct sv_engine *e, struct sv_seq *q)
{
    struct sv_held *h = &e->held;
    const struct sv_policy *p = e->sched.policy;
    if (!h->n_rows)
        return;
    if (!p || p->trial.drafted || p->random) {
        work_off(e, q->id, false);
        return;
    }
    int32_t from = INT32_MAX;
    for (int32_t i = 0; i < h->n_rows; i++) {
        if (h->row[i].request != q->id)
            continue;
        from = h->row[i].base < from ? h->row[i].base : from;
        h->row[i].request = 0; /* nobody */
    }
    if (from < INT32_MAX)
        sv_cache_mark_bare(&e->cache, q->slot, from);
}

/* ---------------------------------------------------------------- before a step */

/* Somebody else's pages that it begins with may lack what is held. */
static bool shares(const struct sv_engine *e, const struct sv_plan_seg *g)
{
    if (g->kind != SV_SEG_PREFILL || !g->first)
        return false;
    for (int32_t i = 0; i < e->held.n_rows; i++)
        if (e->held.row[i].request == g->request)
            return false; /* it has begun already */
    return true;
}

/* True: most of those who run draft in the plan at work, or a prompt that comes in shares pages. *some: anybody. */
static bool wants_all(struct sv_engine *e, bool *some)
{
    const struct sv_plan *p = &e->plan;
    bool shared = false;
    for (int32_t i = 0; i < p->n_segs; i++) {
        const struct sv_plan_seg *g = &p->seg[i];
        e->sched.slot[g->slot]->drafts_now = g->n_draft_rows > 0;
        shared |= shares(e, g);
    }
    *some = p->n_draft_segs > 0;
    return shared || 2 * p->n_draft_segs > p->n_segs;
}

/* One row of each that decodes; prompts too while nobody drafts, if that leaves room for others. */
static bool can_hold(const struct sv_engine *e)
{
    const struct sv_plan *p = &e->plan;
    const struct sv_policy *policy = e->sched.policy;
    const bool prompts = !policy->trial.drafted && !policy->random && p->n_rows <= e->held.cap_rows / 4;
    bool can = !p->n_draft_segs && !p->no_taps;
    for (int32_t i = 0; i < p->n_segs && can; i++)
        can = p->seg[i].kind == SV_SEG_VERIFY ? p->seg[i].n_rows == 1 : prompts;
    return can;
}

static void hold(struct sv_held *h, const struct sv_plan *p)
{
    struct sv_held_row *r = h->row + h->n_rows;
    for (int32_t i = 0; i < p->n_segs; i++)
        for (int32_t k = 0; k < p->seg[i].n_rows; k++)
            *r++ = (struct sv_held_row){.request = p->seg[i].gave_up ? 0 : p->seg[i].request,
                                        .slot = p->seg[i].slot,
                                        .base = p->seg[i].first + k};
}

/* The step about to run: its taps can be held, or what is held has to be worked off first. */
void sv_held_plan(struct sv_engine *e)
{
    struct sv_held *h = &e->held;
    const struct sv_plan *p = &e->plan;
    bool some = false;
    h->now = false;
    if (!e->sched.policy)
        sv_held_flush(e);
    if (!h->cap_rows || !e->sched.policy || !p->n_segs)
        return;
    bool all = wants_all(e, &some);
    if (h->n_rows && (all || some))
        work_off(e, 0, !all);
    if (!can_hold(e))
        return;
    if (h->n_rows + p->n_rows > h->cap_rows)
        work_off(e, NOBODY, false);
    if (h->n_rows > h->cap_rows / 4 * 3 || h->n_rows + p->n_rows > h->cap_rows)
        sv_held_flush(e);
    h->now = p->n_rows <= h->cap_rows;
    if (h->now)
        hold(h, p);
}

/* Where the step's taps go when they are held. */
void *sv_held_taps(const struct sv_held *h)
{
    return taps_at(h, h->n_rows);
}
