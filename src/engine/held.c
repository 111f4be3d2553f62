/*
 * held.c - taps of plain steps and of prompts kept back: context K/V of the drafter is made when
 * somebody drafts, and of many rows at once.
 *
 * Where nobody drafts, the context K/V is needed by nobody yet, and making it costs several percent
 * of a plain step. So under the width policy these taps are collected and worked off before a step
 * drafts with them, when there are too many, or before pages change hands. Where drafting is far
 * from worth while, the oldest are dropped when there are too many, and all where it would not even
 * pay one sequence alone: whose they are drafts no more, until it is computed again (sched.c). So
 * is what a sequence still holds when it ends while nobody drafts: its pages are marked as lacking
 * the draft's part. Called by step.c. Only on devices that compute at once, whose memory is the
 * host's: elsewhere a pass is a graph whose pointers are fixed. Must not: let a step that could
 * read the context K/V come first.
 */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

#define NOBODY UINT64_MAX
/* Rows worked off at a time; bytes of taps held at most. */
enum { CHUNK_ROWS = 256, MOST_BYTES = 32 << 20 };
/* So many sequences' taps are a cost; fewer are held also where drafting is far from worth
 * while. */
enum { MANY = 8 };
/* Plans between two looks at what drafting would bring one sequence alone. */
enum { LOOK = 64 };

static int open_chunk(struct sv_held *h, struct sv_dev *dev, struct sv_err *err)
{
    struct sv_i32_pair *const pair[] = {&h->row_seg, &h->seg_row0, &h->seg_slot, &h->row_pos,
                                        &h->n_commit};
    size_t n = (size_t)h->chunk_rows;
    int rc = sv_dev_alloc(dev, &h->chunk, n * h->row_bytes, err);
    for (size_t i = 0; i < sizeof pair / sizeof pair[0] && !rc; i++)
        rc = sv_i32_pair_open(pair[i], dev, n + 1, err);
    return rc;
}

int sv_held_open(struct sv_held *h, struct sv_dev *dev, int32_t n_slots, int32_t max_rows,
                 int64_t n_positions, size_t row_bytes, struct sv_err *err)
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
        rc = sv_i32_pair_open(&h->tap_row, dev, (size_t)max_rows, err);
    if (!rc)
        rc = sv_dev_host_alloc(dev, (void **)&h->row, (size_t)n * sizeof *h->row, err);
    for (int32_t i = 0; i < h->cap_rows && !rc; i++)
        h->row[i].at = i;
    return rc;
}

void sv_held_close(struct sv_held *h, struct sv_dev *dev)
{
    struct sv_i32_pair *const pair[] = {&h->row_seg, &h->seg_row0, &h->seg_slot,
                                        &h->row_pos, &h->n_commit, &h->tap_row};
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

static void update_chunk(struct sv_engine *e, int32_t n)
{
    struct sv_held *h = &e->held;
    int64_t start = sv_clock_ns();
    struct sv_i32_pair *const pair[] = {&h->row_seg, &h->seg_row0, &h->seg_slot, &h->row_pos,
                                        &h->n_commit};
    if (!n)
        return;
    h->seg_row0.host[n] = n;
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++)
        sv_dev_upload(e->dev, pair[i]->dev, pair[i]->host, ((size_t)n + 1) * sizeof(int32_t));
    sv_drafter_update_context(e->drafter,
                              &(struct sv_context_pass){.rows = {.n_rows = n,
                                                                 .n_segs = n,
                                                                 .row_seg = h->row_seg.dev,
                                                                 .seg_row0 = h->seg_row0.dev,
                                                                 .seg_slot = h->seg_slot.dev,
                                                                 .row_pos = h->row_pos.dev},
                                                        .n_commit = h->n_commit.dev,
                                                        .taps = h->chunk,
                                                        .cache = &e->cache});
    const int64_t spent = sv_clock_ns() - start;
    double us = (double)spent / 1e3 / n;
    h->work_ns += spent;
    if (n >= h->chunk_rows / 2 || h->row_us <= 0) /* a few rows take longer each */
        h->row_us += h->row_us > 0 ? (us - h->row_us) / 8 : us;
}

static void swap(struct sv_held_row *a, struct sv_held_row *b)
{
    struct sv_held_row t = *a;
    *a = *b;
    *b = t;
}

/* Makes context K/V of rows held: of the request, 0 for all, NOBODY for none; only of sequences
 * that draft in the plan at work. The rows left move up in the list; taps stay where they are. */
static void work_off(struct sv_engine *e, uint64_t request, bool drafting)
{
    struct sv_held *h = &e->held;
    int32_t n = 0, n_left = 0;
    if (!e->drafter->n_taps) /* benchmarks take it away */
        h->n_rows = 0;
    h->n_dead = 0;
    for (int32_t i = 0; i < h->n_rows; i++) {
        const struct sv_held_row r = h->row[i];
        const struct sv_seq *q = owner(e, &r);
        if (!q)
            continue; /* it has lost its pages since */
        if ((request && r.request != request) || (drafting && !q->drafts_now)) {
            swap(&h->row[n_left++], &h->row[i]);
            continue;
        }
        memcpy((char *)h->chunk + (size_t)n * h->row_bytes,
               (const char *)h->taps + (size_t)r.at * h->row_bytes, h->row_bytes);
        h->row_seg.host[n] = h->seg_row0.host[n] = n;
        h->seg_slot.host[n] = r.slot;
        h->row_pos.host[n] = r.base;
        h->n_commit.host[n++] = 1;
        if (n == h->chunk_rows) {
            update_chunk(e, n);
            n = 0;
        }
    }
    update_chunk(e, n);
    h->n_rows = n_left;
}

void sv_held_flush(struct sv_engine *e)
{
    if (e->held.n_rows)
        work_off(e, 0, false);
}

void sv_held_measure(struct sv_engine *e, int32_t n_seqs, int32_t n_positions)
{
    enum { RUNS = 3 };
    struct sv_held *h = &e->held;
    /* No two threads write the same place. */
    const int64_t n_places = (int64_t)n_seqs * n_positions;
    const int32_t n = n_places < h->chunk_rows ? (int32_t)n_places : h->chunk_rows;
    double best = 0;
    if (!h->cap_rows)
        return;
    memset(h->chunk, 0, (size_t)h->chunk_rows * h->row_bytes);
    memset(h->taps, 0,
           (size_t)h->cap_rows *
               h->row_bytes); /* else steps would meet each page for the first time */
    for (int32_t i = 0; i < n; i++) {
        h->row_seg.host[i] = h->seg_row0.host[i] = i;
        h->seg_slot.host[i] = i / n_positions;
        h->row_pos.host[i] = i % n_positions;
        h->n_commit.host[i] = 1;
    }
    for (int k = 0; k < RUNS; k++) {
        h->row_us = 0;
        update_chunk(e, n);
        best = k && best < h->row_us ? best : h->row_us;
    }
    h->row_us = best;
}

/* Taps of one in so many are held on though drafting is far from worth while: what drafts are worth
 * has to be seen to change. Two to four of all that run. */
static uint64_t sample_of(int32_t n_running)
{
    uint64_t one_in = MANY;
    while (4 * one_in <= (uint64_t)n_running)
        one_in *= 2;
    return one_in;
}

static bool is_sample(const struct sv_engine *e, const struct sv_seq *q)
{
    return q->id % e->held.one_in == 0;
}

/* Context K/V of a sequence's rows will never be made: it drafts no more, unless they are computed
 * again. Returns from which position on. */
static int32_t disown(struct sv_engine *e, uint64_t request)
{
    struct sv_held *h = &e->held;
    int32_t from = INT32_MAX;
    for (int32_t i = 0; i < h->n_rows; i++) {
        if (h->row[i].request != request)
            continue;
        from = h->row[i].base < from ? h->row[i].base : from;
        h->row[i].request = 0; /* nobody's */
        h->n_dead++;
    }
    return from;
}

static bool drop(struct sv_engine *e, struct sv_seq *q)
{
    const int32_t from = disown(e, q->id);
    if (from == INT32_MAX)
        return false;
    e->sched.policy->n_dropped += !sv_sched_lacks_draft(&e->cache, q);
    sv_sched_lacks(&e->cache, q, from);
    return true;
}

/* That of all, but for samples. */
static void drop_all(struct sv_engine *e)
{
    bool dropped = false;
    for (int32_t i = 0; i < e->sched.n_slots && e->held.n_rows > e->held.n_dead; i++) {
        struct sv_seq *q = e->sched.slot[i];
        if (q && !is_sample(e, q))
            dropped |= drop(e, q);
    }
    if (dropped)
        work_off(e, NOBODY, false);
}

/* Who came first ends first, and others will be few before: until so many rows have room. */
static void drop_oldest(struct sv_engine *e, int32_t n)
{
    struct sv_held *h = &e->held;
    for (struct sv_seq *q = e->sched.head; q && h->n_rows - h->n_dead + n > h->cap_rows / 4 * 3;
         q = q->next)
        if (q->slot >= 0 && !is_sample(e, q))
            drop(e, q);
    work_off(e, NOBODY, false);
}

/* Nobody drafts just now: what goes on from these pages can be computed again when somebody
 * does. */
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
    if (q->slot < 0)
        return;
    const int32_t from = disown(e, q->id);
    if (from < INT32_MAX)
        sv_sched_lacks(&e->cache, q, from);
}

/* ---------------------------------------------------------------- before a step */

/* Pages of somebody else that it begins with lack what is held, from this position on; INT32_MAX:
 * none does. */
static int32_t shares_from(const struct sv_engine *e, const struct sv_plan_seg *g)
{
    int32_t from = INT32_MAX;
    for (int32_t i = 0; i < e->held.n_rows && g->kind == SV_SEG_PREFILL && g->first; i++) {
        const struct sv_held_row *r = &e->held.row[i];
        if (r->request == g->request || r->base >= g->first || r->base >= from || !owner(e, r))
            continue;
        if (sv_cache_same_page(&e->cache, g->slot, r->slot, r->base))
            from = r->base;
    }
    return from;
}

/* True: most of those who run draft in the plan at work, or a prompt that comes in needs what
 * others hold. *some: anybody drafts. */
static bool wants_all(struct sv_engine *e, bool far, bool *some)
{
    const struct sv_plan *p = &e->plan;
    bool shared = false;
    for (int32_t i = 0; i < p->n_segs; i++) {
        struct sv_plan_seg *g = &p->seg[i];
        struct sv_seq *q = e->sched.slot[g->slot];
        int32_t from = g->gave_up ? INT32_MAX : shares_from(e, g);
        q->drafts_now = g->n_draft_rows > 0;
        if (from == INT32_MAX)
            continue;
        shared |= !far;
        g->gave_up = far;
        if (far)
            sv_sched_lacks(&e->cache, q, from);
    }
    *some = p->n_draft_segs > 0;
    return shared || 2 * p->n_draft_segs > p->n_segs;
}

/* Rows of those who may yet draft: one of each that decodes; prompts too while nobody drafts. -1:
 * cannot be held. */
static int32_t rows_to_hold(const struct sv_engine *e, bool far)
{
    const struct sv_plan *p = &e->plan;
    const struct sv_policy *policy = e->sched.policy;
    /* that leaves room for others */
    const int32_t most = far ? e->held.cap_rows : e->held.cap_rows / 4;
    const bool prompts = far || (!policy->trial.drafted && !policy->random && p->n_rows <= most);
    int32_t n = 0;
    if (p->n_draft_segs)
        return -1;
    for (int32_t i = 0; i < p->n_segs; i++) {
        const struct sv_plan_seg *g = &p->seg[i];
        if (g->kind == SV_SEG_VERIFY ? g->n_rows > 1 : !prompts && !g->gave_up)
            return -1;
        n += g->gave_up ? 0 : g->n_rows;
    }
    return n <= most ? n : -1;
}

enum left_out { INCOMPLETE, PROMPTS_TOO, ALL_BUT_SAMPLES };

/* Who has lost something by now has its rows left out; so have, where nobody is going to draft,
 * prompts that find no room, or all. */
static void leave_out(struct sv_engine *e, enum left_out which)
{
    struct sv_plan *p = &e->plan;
    bool taps = false;
    for (int32_t i = 0; i < p->n_segs; i++) {
        struct sv_plan_seg *g = &p->seg[i];
        struct sv_seq *q = e->sched.slot[g->slot];
        bool out = (which == ALL_BUT_SAMPLES && !is_sample(e, q)) ||
                   (which == PROMPTS_TOO && g->kind == SV_SEG_PREFILL);
        if (out && !g->gave_up && !q->fixed_width) {
            e->sched.policy->n_dropped += !sv_sched_lacks_draft(&e->cache, q);
            sv_sched_lacks(&e->cache, q, g->first);
        }
        g->gave_up |= sv_sched_lacks_draft(&e->cache, q) && !q->fixed_width;
        taps |= !g->gave_up;
    }
    p->no_taps = !taps;
}

/* All that run, with those whose prompts are coming in. */
static int32_t n_running(const struct sv_engine *e)
{
    int32_t n = 0;
    for (int32_t i = 0; i < e->sched.n_slots; i++)
        n += e->sched.slot[i] != NULL;
    return n;
}

/* What the step at work brings fits in, after what is there was made use of or given up. */
static bool make_room(struct sv_engine *e, bool far, int32_t n_seqs, int32_t *n)
{
    struct sv_held *h = &e->held;
    if (h->n_rows + *n > h->cap_rows)
        work_off(e, NOBODY, false);
    if (h->n_rows - h->n_dead <= h->cap_rows / 4 * 3 && h->n_rows + *n <= h->cap_rows)
        return true;
    if (!far && (n_seqs < MANY || e->sched.policy->trial.drafted || e->sched.policy->random)) {
        sv_held_flush(e);
        return true;
    }
    drop_oldest(e, *n);
    leave_out(e, INCOMPLETE);
    *n = rows_to_hold(e, far);
    if (h->n_rows + *n > h->cap_rows) /* of samples alone */
        sv_held_flush(e);
    return *n >= 0;
}

/* Where each row's taps go: side by side behind what is held, whose list grows by them. */
static void place(struct sv_engine *e)
{
    struct sv_held *h = &e->held;
    const struct sv_plan *p = &e->plan;
    int32_t n = h->n_rows;
    SV_REQUIRE(n + h->n_more <= h->cap_rows);
    for (int32_t i = 0; i < p->n_segs; i++) {
        const struct sv_plan_seg *g = &p->seg[i];
        for (int32_t k = 0; k < g->n_rows; k++) {
            h->tap_row.host[g->row0 + k] = g->gave_up ? -1 : h->row[n].at;
            if (g->gave_up)
                continue;
            h->row[n].request = g->request;
            h->row[n].slot = g->slot;
            h->row[n++].base = g->first + k;
        }
    }
    SV_REQUIRE(n == h->n_rows + h->n_more);
    sv_dev_upload(e->dev, h->tap_row.dev, h->tap_row.host, (size_t)p->n_rows * sizeof(int32_t));
}

/* The step about to run: its taps can be held, or what is held has to be worked off first. */
void sv_held_plan(struct sv_engine *e)
{
    struct sv_held *h = &e->held;
    struct sv_policy *policy = e->sched.policy;
    bool some = false;
    h->now = false;
    if (!policy)
        sv_held_flush(e);
    if (!h->cap_rows || !policy || !e->plan.n_segs)
        return;
    const int32_t n_seqs = n_running(e);
    h->one_in = sample_of(n_seqs);
    const bool far = sv_policy_is_far(policy, n_seqs);
    bool all = wants_all(e, far, &some);
    if (h->n_plans++ % LOOK == 0)
        h->pays_alone = sv_policy_would_draft(policy, 1);
    /* Where it would not even pay once all others have ended, they are not worth their place. */
    if (!some && !h->pays_alone && far && n_seqs >= MANY) {
        drop_all(e);
        leave_out(e, ALL_BUT_SAMPLES);
    }
    if (h->n_rows && (all || some))
        work_off(e, 0, !all);
    int32_t n = rows_to_hold(e, far);
    if (n < 0 && far && !some) {
        leave_out(e, PROMPTS_TOO);
        n = rows_to_hold(e, far);
    }
    h->now = n >= 0 && make_room(e, far, n_seqs, &n) && n > 0;
    h->n_more = h->now ? n : 0;
    leave_out(e, INCOMPLETE);
    if (h->now)
        place(e);
    policy->held_us = h->row_us * (h->n_rows - h->n_dead);
    policy->prompt_us = h->row_us * e->sched.usual_prompt / fmax(e->sched.usual_answer, 1);
}

/* The step's taps have been written where they belong. */
void sv_held_keep(struct sv_engine *e)
{
    e->held.n_rows += e->held.n_more;
}
