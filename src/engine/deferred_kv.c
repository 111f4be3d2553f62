/*
 * deferred_kv.c - the deferred context-KV update: taps of plain steps and of prompts are kept, and
 * the drafter's context K/V is made of many rows at once when a sequence drafts.
 *
 * While no sequence drafts the context K/V is not read, and making it costs several percent of a
 * plain step. So under the width policy these taps are collected, and the update runs before a step
 * drafts with them, when there are too many, or before pages change hands. Where drafting is
 * unprofitable, the oldest taps are dropped when there are too many, and all where even a single
 * sequence would not draft: such a sequence drafts no more until its context K/V is recomputed
 * (sched.c). Taps of a sequence that ends while none drafts are dropped too: its pages are marked
 * as lacking the draft's part. Called by step.c. Only on devices that compute at once in host
 * memory: elsewhere a pass is a graph with fixed pointers. Must not: let a step that could read the
 * context K/V run before the update.
 */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

/* In place of a request's number: all requests, or those that draft in the current plan. */
#define ALL 0
#define DRAFTING UINT64_MAX
/* Rows of an update; bytes of taps at most. */
enum { CHUNK_ROWS = 256, MOST_BYTES = 32 << 20 };
/* Taps of fewer sequences are kept even where drafting is unprofitable: they cost little. */
enum { MANY = 8 };
/* Steps between two checks whether a single sequence would draft. */
enum { LOOK = 64 };

static int open_chunk(struct sv_deferred *h, struct sv_dev *dev, struct sv_err *err)
{
    const size_t n = (size_t)h->chunk_rows;
    int rc = sv_dev_alloc(dev, &h->chunk, n * h->row_bytes, err);
    for (int i = 0; i < SV_DEFERRED_PAIRS && !rc; i++)
        rc = sv_i32_pair_open(&h->pair[i], dev, n + 1, err);
    for (int32_t i = 0; i <= h->chunk_rows && !rc; i++) {
        h->pair[SV_DEFERRED_INDEX].host[i] = i;
        h->pair[SV_DEFERRED_ONE].host[i] = 1;
    }
    return rc;
}

int sv_deferred_open(struct sv_deferred *h, struct sv_dev *dev, int32_t n_slots, int32_t max_rows,
                     int64_t n_positions, size_t row_bytes, struct sv_err *err)
{
    int64_t n = MOST_BYTES / (int64_t)row_bytes;
    *h = (struct sv_deferred){.row_bytes = row_bytes};
    h->chunk_rows = max_rows < CHUNK_ROWS ? max_rows : CHUNK_ROWS;
    n = n < n_positions ? n : n_positions;
    n = n < h->chunk_rows ? h->chunk_rows : n;
    if (n_slots * 2 > n)
        return SV_OK; /* with so many rows a step deferring gains nothing */
    h->cap_rows = (int32_t)n;
    int rc = sv_dev_alloc(dev, &h->taps, (size_t)n * row_bytes, err);
    if (!rc)
        rc = open_chunk(h, dev, err);
    if (!rc)
        rc = sv_i32_pair_open(&h->tap_row, dev, (size_t)max_rows, err);
    if (!rc)
        rc = sv_dev_host_alloc(dev, (void **)&h->row, (size_t)n * sizeof *h->row, err);
    for (int32_t i = 0; i < h->cap_rows && !rc; i++)
        h->row[i].at = i;
    return rc;
}

void sv_deferred_close(struct sv_deferred *h, struct sv_dev *dev)
{
    for (int i = 0; i < SV_DEFERRED_PAIRS; i++) {
        sv_dev_host_free(dev, h->pair[i].host);
        sv_dev_free(dev, h->pair[i].dev);
    }
    sv_dev_host_free(dev, h->tap_row.host);
    sv_dev_free(dev, h->tap_row.dev);
    sv_dev_host_free(dev, h->row);
    sv_dev_free(dev, h->chunk);
    sv_dev_free(dev, h->taps);
    *h = (struct sv_deferred){0};
}

/* ---------------------------------------------------------------- updates */

/* The sequence of a row, if it still has its pages; else NULL. */
static const struct sv_seq *owner(const struct sv_engine *e, const struct sv_deferred_row *r)
{
    const struct sv_seq *q = e->sched.slot[r->slot];
    return q && q->id == r->request && r->base < q->n_committed + q->n_rows_ahead ? q : NULL;
}

/* Updates n rows, one segment each. */
static void update_chunk(struct sv_engine *e, int32_t n)
{
    struct sv_deferred *h = &e->deferred;
    const int64_t start = sv_clock_ns();
    if (!n)
        return;
    for (int i = 0; i < SV_DEFERRED_PAIRS; i++)
        sv_dev_upload(e->dev, h->pair[i].dev, h->pair[i].host, ((size_t)n + 1) * sizeof(int32_t));
    sv_drafter_update_context(
        e->drafter, &(struct sv_context_pass){.rows = {.n_rows = n,
                                                       .n_segs = n,
                                                       .row_seg = h->pair[SV_DEFERRED_INDEX].dev,
                                                       .seg_row0 = h->pair[SV_DEFERRED_INDEX].dev,
                                                       .seg_slot = h->pair[SV_DEFERRED_SLOT].dev,
                                                       .row_pos = h->pair[SV_DEFERRED_POS].dev},
                                              .n_commit = h->pair[SV_DEFERRED_ONE].dev,
                                              .taps = h->chunk});
    double us = (double)(sv_clock_ns() - start) / 1e3 / n;
    if (n >= h->chunk_rows / 2 || h->row_us <= 0) /* small chunks cost more per row */
        h->row_us += h->row_us > 0 ? (us - h->row_us) / 8 : us;
}

/* Removes the rows of a request (or ALL, or DRAFTING) from the list, with or without making their
 * context K/V. The remaining rows move up; their taps stay in place. Returns the first position
 * removed, INT32_MAX for none. */
static int32_t take(struct sv_engine *e, uint64_t request, bool make)
{
    struct sv_deferred *h = &e->deferred;
    int32_t n = 0, n_left = 0, from = INT32_MAX;
    if (!e->drafter->n_taps) /* benchmarks remove the drafter */
        h->n_rows = 0;
    for (int32_t i = 0; i < h->n_rows; i++) {
        const struct sv_deferred_row r = h->row[i];
        const struct sv_seq *q = owner(e, &r);
        if (!q)
            continue; /* the sequence has lost its pages since */
        if (request == DRAFTING ? !q->drafts_now : request != ALL && r.request != request) {
            h->row[i] = h->row[n_left];
            h->row[n_left++] = r;
            continue;
        }
        from = r.base < from ? r.base : from;
        if (!make)
            continue;
        memcpy((char *)h->chunk + (size_t)n * h->row_bytes,
               (const char *)h->taps + (size_t)r.at * h->row_bytes, h->row_bytes);
        h->pair[SV_DEFERRED_SLOT].host[n] = r.slot;
        h->pair[SV_DEFERRED_POS].host[n++] = r.base;
        if (n == h->chunk_rows) {
            update_chunk(e, n);
            n = 0;
        }
    }
    update_chunk(e, n);
    h->n_rows = n_left;
    return from;
}

void sv_deferred_flush(struct sv_engine *e)
{
    if (e->deferred.n_rows)
        take(e, ALL, true);
}

void sv_deferred_measure(struct sv_engine *e, int32_t n_seqs, int32_t n_positions)
{
    enum { RUNS = 3 };
    struct sv_deferred *h = &e->deferred;
    /* No two threads write to the same place. */
    const int64_t n_places = (int64_t)n_seqs * n_positions;
    const int32_t n = n_places < h->chunk_rows ? (int32_t)n_places : h->chunk_rows;
    double best = 0;
    if (!h->cap_rows)
        return;
    memset(h->chunk, 0, (size_t)h->chunk_rows * h->row_bytes);
    memset(h->taps, 0,
           (size_t)h->cap_rows * h->row_bytes); /* page faults belong here and not into steps */
    for (int32_t i = 0; i < n; i++) {
        h->pair[SV_DEFERRED_SLOT].host[i] = i / n_positions;
        h->pair[SV_DEFERRED_POS].host[i] = i % n_positions;
    }
    for (int k = 0; k < RUNS; k++) {
        h->row_us = 0;
        update_chunk(e, n);
        best = k && best < h->row_us ? best : h->row_us;
    }
    h->row_us = best;
}

/* Sampling rate: one sequence in so many, two to four of the running ones, keeps its taps although
 * drafting is unprofitable, so that a change is noticed. */
static uint64_t sample_of(int32_t n_running)
{
    uint64_t one_in = MANY;
    while (4 * one_in <= (uint64_t)n_running)
        one_in *= 2;
    return one_in;
}

/* Whether a sequence is neither sampled nor of a fixed width. */
static bool may_drop(const struct sv_engine *e, const struct sv_seq *q)
{
    return q->id % e->deferred.one_in && !q->fixed_width;
}

/* Drops a sequence's deferred taps and invalidates its context K/V from position `from` on: it
 * cannot draft until that is recomputed. */
static void drop(struct sv_engine *e, struct sv_seq *q, int32_t from)
{
    const int32_t taken = take(e, q->id, false), first = taken < from ? taken : from;
    if (first == INT32_MAX)
        return;
    e->sched.policy->n_dropped += !sv_sched_draft_kv_missing(&e->cache, q);
    sv_sched_invalidate_draft(&e->cache, q, first);
}

/* Drops the taps of the plan's sequences, except sampled ones. */
static void drop_most(struct sv_engine *e)
{
    for (int32_t i = 0; i < e->plan.n_segs; i++) {
        struct sv_plan_seg *g = &e->plan.seg[i];
        struct sv_seq *q = e->sched.slot[g->slot];
        if (may_drop(e, q) && !g->disabled)
            drop(e, q, g->first);
        g->disabled |= may_drop(e, q);
    }
}

/* While no sequence drafts the taps are dropped: a sequence that continues these pages can
 * recompute them. */
void sv_deferred_end(struct sv_engine *e, struct sv_seq *q)
{
    const struct sv_policy *p = e->sched.policy;
    const bool make = !p || p->trial.drafted || p->random;
    const int32_t from = e->deferred.n_rows ? take(e, q->id, make) : INT32_MAX;
    if (!make && from < INT32_MAX)
        sv_sched_invalidate_draft(&e->cache, q, from);
}

/* ---------------------------------------------------------------- before a step */

/* Whether a sequence begins with pages of another one whose update is deferred. */
static bool shares(const struct sv_engine *e, const struct sv_plan_seg *g)
{
    for (int32_t i = 0; i < e->deferred.n_rows && g->kind == SV_SEG_PREFILL && g->first; i++) {
        const struct sv_deferred_row *r = &e->deferred.row[i];
        if (r->request != g->request && r->base < g->first && owner(e, r) &&
            sv_cache_same_page(&e->cache, g->slot, r->slot, r->base))
            return true;
    }
    return false;
}

/* Runs the updates that the current plan reads: all of them if most of its sequences draft, or if a
 * prompt begins with another sequence's pages. */
static void make_what_is_read(struct sv_engine *e)
{
    const struct sv_plan *p = &e->plan;
    bool all = 2 * p->n_draft_segs > p->n_segs;
    for (int32_t i = 0; i < p->n_segs; i++) {
        const struct sv_plan_seg *g = &p->seg[i];
        e->sched.slot[g->slot]->drafts_now = g->n_draft_rows > 0;
        all |= !g->disabled && shares(e, g);
    }
    if (e->deferred.n_rows && (all || p->n_draft_segs))
        take(e, all ? ALL : DRAFTING, true);
}

/* The number of rows whose taps can be deferred: one of each decoding sequence, and in plain steps
 * those of prompts. 0: none, or an update must run now. Marks sequences that lack context K/V. */
static int32_t rows_to_defer(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    const struct sv_policy *policy = e->sched.policy;
    /* keep capacity for other steps */
    const int32_t most = e->deferred.cap_rows / 4;
    const bool prompts = !policy->trial.drafted && !policy->random;
    bool can = !p->n_draft_segs;
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_segs; i++) {
        struct sv_plan_seg *g = &p->seg[i];
        const struct sv_seq *q = e->sched.slot[g->slot];
        g->disabled |= sv_sched_draft_kv_missing(&e->cache, q) && !q->fixed_width;
        can &= g->disabled || (g->kind == SV_SEG_VERIFY ? g->n_rows == 1 : prompts);
        n += g->disabled ? 0 : g->n_rows;
    }
    p->no_taps = !n;
    return can && n <= most ? n : 0;
}

/* All sequences in slots, including those that compute prompts. */
static int32_t n_running(const struct sv_engine *e)
{
    int32_t n = 0;
    for (int32_t i = 0; i < e->sched.n_slots; i++)
        n += e->sched.slot[i] != NULL;
    return n;
}

/* Frees capacity for the rows of this step by an update, or by dropping taps: first those of the
 * oldest sequence, which will end first. */
static void make_room(struct sv_engine *e, bool unprofitable, int32_t n_seqs)
{
    const struct sv_policy *p = e->sched.policy;
    const struct sv_deferred *h = &e->deferred;
    const int32_t most = h->cap_rows / 4 * 3, n = e->plan.n_rows;
    const bool idle = unprofitable || (n_seqs >= MANY && !p->trial.drafted && !p->random);
    for (struct sv_seq *q = e->sched.head; q && idle && h->n_rows + n > most; q = q->next)
        if (q->slot >= 0 && may_drop(e, q))
            drop(e, q, INT32_MAX);
    if (h->n_rows + n > most)
        sv_deferred_flush(e);
}

/* Assigns a place to each row's taps and appends the rows to the list. */
static void place(struct sv_engine *e)
{
    struct sv_deferred *h = &e->deferred;
    const struct sv_plan *p = &e->plan;
    for (int32_t i = 0; i < p->n_segs; i++) {
        const struct sv_plan_seg *g = &p->seg[i];
        for (int32_t k = 0; k < g->n_rows; k++) {
            h->tap_row.host[g->row0 + k] = g->disabled ? -1 : h->row[h->n_rows].at;
            if (g->disabled)
                continue;
            SV_REQUIRE(h->n_rows < h->cap_rows);
            h->row[h->n_rows].request = g->request;
            h->row[h->n_rows].slot = g->slot;
            h->row[h->n_rows++].base = g->first + k;
        }
    }
    sv_dev_upload(e->dev, h->tap_row.dev, h->tap_row.host, (size_t)p->n_rows * sizeof(int32_t));
}

/* Before a step: decides whether its taps are deferred, and runs the updates that are due. */
void sv_deferred_plan(struct sv_engine *e)
{
    struct sv_deferred *h = &e->deferred;
    struct sv_policy *policy = e->sched.policy;
    h->now = false;
    if (!policy)
        sv_deferred_flush(e);
    if (!h->cap_rows || !policy || !e->plan.n_segs)
        return;
    const int32_t n_seqs = n_running(e);
    const bool unprofitable = sv_policy_unprofitable(policy, n_seqs);
    h->one_in = sample_of(n_seqs);
    if (h->n_plans++ % LOOK == 0)
        h->pays_alone = sv_policy_would_draft(policy, 1);
    /* If not even a single sequence would draft, the taps are not worth their memory. */
    if (!e->plan.n_draft_segs && !h->pays_alone && unprofitable && n_seqs >= MANY)
        drop_most(e);
    make_what_is_read(e);
    make_room(e, unprofitable, n_seqs);
    h->now = rows_to_defer(e) > 0;
    if (h->now)
        place(e);
    policy->deferred_us = h->row_us * h->n_rows;
    policy->prompt_us = h->row_us * e->sched.usual_prompt / fmax(e->sched.usual_answer, 1);
}
