/*
 * calibrate.c - measures the costs of steps on this machine by running steps on scratch sequences.
 *
 * Called by engine.c when an engine opens with the width policy; fills struct sv_cost. Every shape
 * runs as a real plan with lengths written directly into the slots. Its cache contents are never
 * read, because a sequence overwrites positions before it reads them; where the cache also has
 * states or sliding windows, the scratch slots are prepared again for each run. All shapes are
 * timed in rounds (policy/turns.c). Must not: advance a sequence, keep a page, or take longer than
 * its budget.
 */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

enum { MAX_POINTS = 2 * SV_CURVE_POINTS, BASE_CONTEXT = 64, MOST_TILES = 8, SEED = 1 };
/* Upper bound of the time between the two passes. */
static const double MOST_HALT_US = 100;
/* Upper bound of the cost of a draft's tokens after the first, relative to a drafting pass. */
static const double MOST_OUT = 0.5;
enum { PLAIN, WIDE, DRAFT_ROWS, THIN, PRUNED };

/* Cost of pruning: the host's part, which calibration does not run, and the total where nothing was
 * measured. */
enum { HOST_TRIP_US = 20, USUAL_TRIP_US = 60, MOST_TRIP_US = 300, FAR_OUT = 1000 };

/* n segments of n_rows rows (the last one has `last` rows), each with n_masks rows in the drafting
 * pass if n_masks is not 0. */
struct shape {
    int kind;
    int32_t n, n_rows, last, n_masks, context;
};

struct calibration {
    struct sv_engine *e;
    struct sv_policy *p;
    struct sv_seq scratch;
    int32_t *lens, *anchors; /* (n_slots) */
    int32_t *slots;          /* (n_slots) in the order of assignment: the parts in turn */
    int32_t n_runs;          /* of shapes */
    int32_t base;            /* context of all shapes but the far ones */
    int32_t n_backed;        /* slots with pages */
    int least_runs;    /* runs of a shape: where passes are replayed, the first ones are not */
    int32_t most_rows; /* of one shape */
    bool at_once;      /* calls return when the device is done */
    bool per_context;  /* layers slide or have states: a slot is valid at one context only */
    struct shape shape[MAX_POINTS];
    struct sv_timed timed[MAX_POINTS]; /* the same of each run */
    int32_t n_shapes;
    struct sv_err *err;
    int64_t start_us, whole_us; /* progress, for the caller */
};

/* Orders the slots as the scheduler assigns them to sequences without a cached prefix: the parts in
 * turn, because the part with most free pages comes first. */
static void deal_slots(struct calibration *c)
{
    const struct sv_cache *cache = &c->e->cache;
    const int32_t n_slots = c->e->sched.n_slots;
    for (int32_t turn = 0, n = 0; n < n_slots; turn++)
        for (int32_t slot = 0, nth = 0; slot < n_slots; slot++) {
            nth =
                slot && sv_cache_part(cache, slot) == sv_cache_part(cache, slot - 1) ? nth + 1 : 0;
            if (nth == turn)
                c->slots[n++] = slot;
        }
}

static void plan_shape(struct calibration *c, const struct shape *s)
{
    struct sv_engine *e = c->e;
    struct sv_plan *p = &e->plan;
    memset(c->lens, 0, (size_t)e->sched.n_slots * sizeof *c->lens);
    for (int32_t i = 0; i < s->n; i++)
        c->lens[c->slots[i]] = s->context;
    /* Plain steps defer their updates (deferred_kv.c), which costs next to nothing. */
    *p = (struct sv_plan){.seg = p->seg,
                          .given = true,
                          .no_taps = s->kind == PLAIN && c->at_once && !e->pads,
                          .timed = s->n_masks && !c->at_once && s->kind != PRUNED};
    for (int32_t slot = 0; slot < e->sched.n_slots; slot++) {
        const int32_t i = p->n_segs;
        if (!c->lens[slot])
            continue;
        int32_t w = i == s->n - 1 ? s->last : s->n_rows;
        struct sv_plan_seg *g = &p->seg[p->n_segs++];
        *g = (struct sv_plan_seg){.slot = slot,
                                  .kind = SV_SEG_VERIFY,
                                  .row0 = p->n_rows,
                                  .n_rows = w,
                                  .logit0 = p->n_rows,
                                  .n_logits = w,
                                  .decode = i,
                                  .first = s->context,
                                  .draft_row0 = p->n_draft_rows,
                                  .draft_out0 = p->n_draft_out};
        p->n_rows += w;
        p->n_logits += w;
        if (!s->n_masks)
            continue;
        g->n_draft_rows = s->n_masks;
        g->n_drafts = w - 1;
        p->prunes = c->p->prunes && s->kind == PRUNED;
        p->confidence = c->p->prunes && (p->prunes || c->p->confidence_free);
        p->n_draft_segs++;
        p->n_draft_rows += s->n_masks;
        p->n_draft_out += w - 1;
    }
}

static int32_t divisor(int32_t a, int32_t b)
{
    return b ? divisor(b, a % b) : a;
}

/* Chooses different tokens for all rows and runs, so that a mixture of experts routes them to as
 * many experts as in real use. */
static void choose_ids(struct calibration *c)
{
    struct sv_plan *p = &c->e->plan;
    const int32_t vocab = c->e->model.cfg.vocab_size;
    uint32_t word[4];
    sv_philox(SEED, (uint64_t)c->n_runs++, 0, word);
    p->id0 = (int32_t)(word[0] % (uint32_t)vocab);
    p->id_step = (int32_t)(word[1] % (uint32_t)vocab);
    while (divisor(vocab, p->id_step) != 1)
        p->id_step++;
    for (int32_t i = 0; i < p->n_segs; i++)
        c->anchors[p->seg[i].slot] = sv_plan_given_id(p, vocab, p->seg[i].row0);
}

/* Reserves a slot's pages for this context, chunk by chunk, and for one block more. */
static bool prepare_slot(struct calibration *c, int32_t slot, int32_t context)
{
    struct sv_cache *cache = &c->e->cache;
    const int32_t chunk = c->e->sched.prefill_rows;
    sv_cache_release(cache, slot);
    for (int32_t n = 0; n < context;) {
        n = context - n < chunk ? context : n + chunk;
        if (!sv_cache_reserve(cache, slot, n))
            return false;
        sv_cache_slide(cache, slot, n);
    }
    return sv_cache_reserve(cache, slot, context + c->p->block);
}

/* Prepares all scratch slots again and uploads them, outside of the measured time. */
static int prepare_slots(struct calibration *c, const struct shape *s)
{
    for (int32_t i = 0; i < c->n_backed; i++)
        sv_cache_release(&c->e->cache, c->slots[i]);
    for (int32_t i = 0; i < c->n_backed; i++)
        SV_REQUIRE(prepare_slot(c, c->slots[i], s->context)); /* reserve() checked the pages */
    sv_cache_upload(&c->e->cache);
    return sv_dev_sync(c->e->dev, c->err);
}

static int run_shape(struct calibration *c, const struct shape *s, double us[SV_TIMES])
{
    struct sv_engine *e = c->e;
    const size_t n_slots = (size_t)e->sched.n_slots;
    int rc = c->per_context ? prepare_slots(c, s) : SV_OK;
    if (rc)
        return rc;
    plan_shape(c, s);
    choose_ids(c);
    sv_engine_progress(e, SV_OPEN_COSTS,
                       (double)(sv_clock_us() - c->start_us) / (double)c->whole_us);
    sv_dev_upload(e->dev, e->slot_len, c->lens, n_slots * sizeof *c->lens);
    sv_dev_upload(e->dev, e->slot_anchor, c->anchors, n_slots * sizeof *c->anchors);
    int64_t draft = e->stats.draft_us, start = sv_clock_ns();
    rc = sv_engine_step(e, c->err);
    if (rc)
        return rc;
    us[SV_TIME_ALL] = (double)(sv_clock_ns() - start) / 1e3;
    us[SV_TIME_DRAFT] = (double)(e->stats.draft_us - draft);
    us[SV_TIME_TARGET] = us[SV_TIME_ALL] - us[SV_TIME_DRAFT];
    return SV_OK;
}

/* ---------------------------------------------------------------- which shapes */

static bool add(struct calibration *c, int kind, int32_t n, int32_t n_rows, int32_t last,
                int32_t n_masks, int32_t context)
{
    if (n > c->n_backed || c->n_shapes == MAX_POINTS)
        return false;
    c->timed[c->n_shapes] =
        (struct sv_timed){.us = {-1, -1, -1}, .needed = n == 1 || kind == PLAIN};
    c->shape[c->n_shapes++] = (struct shape){.kind = kind,
                                             .n = n,
                                             .n_rows = n_rows,
                                             .last = last,
                                             .n_masks = n_masks,
                                             .context = context};
    return true;
}

/* 1, 2, 3, 4, 6, 8, 12, 16, ...; where counts are padded each kind of step is expensive to run for
 * the first time, and few sequences cost what one does: 1, 2, 4, 8, 16, ... */
static int32_t next_count(const struct calibration *c, int32_t n)
{
    int32_t step = 1;
    if (c->e->pads || n == 1)
        return 2 * n;
    while (step * 4 <= n)
        step *= 2;
    return n + step;
}

static int32_t padded(int32_t n)
{
    return sv_batch_bucket(n, INT32_MAX);
}

/* A drafting step yields two times, since its passes are timed separately: drafting, verifying. */
static void list_count(struct calibration *c, int32_t n)
{
    const int32_t block = c->p->block;
    const bool drafts = c->p->drafts_on_device;
    const bool power = (n & (n - 1)) == 0;
    add(c, PLAIN, n, 1, 1, 0, c->base);
    /* Short drafts of many sequences take longer than as many rows in blocks; where counts are
     * padded each kind has its own cost. */
    if (drafts && !c->e->pads && block > 2 && n > 1 && 2 * n <= c->most_rows &&
        (power || n == c->n_backed))
        add(c, THIN, n, 2, 2, 2, c->base);
    if (n * block > c->most_rows || (2 * n * block > c->most_rows && !power && n < c->n_backed))
        return;
    if (n > 1)
        add(c, WIDE, n, block, block, drafts ? block : 0, c->base);
    /* Where products work by tiles of rows, the first row of the next tile costs as much as the
     * whole tile. */
    if (!c->e->pads && n <= MOST_TILES && add(c, WIDE, n + 1, block, 1, 0, c->base) && drafts)
        add(c, DRAFT_ROWS, n + 1, 2, 2, n * block / (n + 1) + 1, c->base);
    /* Costs jump where a second pass over the weights begins. */
    for (int32_t m = n + n / 4; c->e->pads && n >= 8 && m < 2 * n && m * block <= 512; m += n / 4)
        if (m % 4 == 0)
            add(c, WIDE, m, block, block, 0, c->base);
    if (drafts && n > 1 && (n == 8 || n * block == c->most_rows / 2 || n == c->n_backed))
        add(c, DRAFT_ROWS, n, 2, 2, block, c->base);
    /* Where steps run ahead, the wait is the same for all steps; elsewhere it depends on the number
     * of tokens. */
    if (drafts && c->p->prunes && (n == 1 || (!c->p->ahead && (n == 4 || n == 16))))
        add(c, PRUNED, n, block, block, block, c->base);
}

/* Lists shapes by increasing work, so that large ones are left out when the budget ends. */
static void list_shapes(struct calibration *c)
{
    const int32_t block = c->p->block;
    const bool drafts = c->p->drafts_on_device;
    for (int32_t r = 2; r < block; r = r < 6 ? r + 1 : r + 2)
        if (!c->e->pads || padded(r) == r)
            add(c, WIDE, 1, r, r, 0, c->base);
    add(c, WIDE, 1, block, block, 0, c->base);
    if (drafts)
        add(c, WIDE, 1, block, block, block, c->base);
    for (int32_t m = 2; drafts && m <= block; m = m < block && 2 * m > block ? block : 2 * m)
        add(c, DRAFT_ROWS, 1, 2, 2, m, c->base);
    for (int32_t n = 1; n < c->n_backed; n = next_count(c, n))
        list_count(c, n);
    list_count(c, c->n_backed);
}

/* Reserves pages for n slots at a context, or for as many slots as there are pages. */
static int reserve(struct calibration *c, int32_t n, int32_t context)
{
    struct sv_engine *e = c->e;
    int32_t i = 0;
    while (i < n && prepare_slot(c, c->slots[i], context))
        i++;
    if (i < n)
        sv_cache_release(&e->cache, c->slots[i]);
    for (int32_t k = 0; k < i; k++)
        e->sched.slot[c->slots[k]] = &c->scratch;
    return i;
}

static void give_back(struct calibration *c)
{
    struct sv_engine *e = c->e;
    for (int32_t i = 0; i < e->sched.n_slots; i++) {
        sv_cache_release(&e->cache, i);
        e->sched.slot[i] = NULL;
    }
}

/* ---------------------------------------------------------------- measuring */

/* Runs shapes by increasing work. When the time is over, large shapes are left out, except plain
 * steps, and extrapolated. */
static int run_rounds(struct calibration *c, int64_t budget_us, int64_t more_us)
{
    struct sv_turns turns = {.of = c->timed, .n = c->n_shapes};
    sv_turns_begin(&turns, c->least_runs, sv_clock_us(), budget_us, more_us);
    for (int32_t i = sv_turns_next(&turns, sv_clock_us()); i >= 0;
         i = sv_turns_next(&turns, sv_clock_us())) {
        double us[SV_TIMES];
        int rc = run_shape(c, &c->shape[i], us);
        if (rc)
            return rc;
        sv_turns_add(&turns, i, us);
    }
    sv_turns_end(&turns);
    return SV_OK;
}

/* The times of a shape of whole segments; NULL: not run. */
static const double *find(const struct calibration *c, int32_t n, int32_t n_rows, int32_t n_masks)
{
    for (int32_t i = 0; i < c->n_shapes; i++) {
        const struct shape *s = &c->shape[i];
        if (s->kind != PRUNED && s->kind != THIN && s->n == n && s->n_rows == n_rows &&
            s->last == n_rows && s->n_masks == n_masks && c->timed[i].n_runs)
            return c->timed[i].us;
    }
    return NULL;
}

/* Overhead of timing the passes of a drafting step separately. */
static double halt_us(const struct calibration *c)
{
    const int32_t block = c->p->block;
    const double *with = find(c, 1, block, block), *without = find(c, 1, block, 0);
    const double us = with && without ? with[SV_TIME_TARGET] - without[SV_TIME_ALL] : 0;
    return us < 0 ? 0 : us < MOST_HALT_US ? us : MOST_HALT_US;
}

/* Additional cost of a step in two parts. Where steps run ahead it is the host's round trip between
 * drafting and verifying; elsewhere the drafts' confidence, per draft: a small difference of two
 * passes, hence the median over all counts. */
static void build_trip(const struct calibration *c)
{
    struct sv_curve *trip = &c->p->cost.trip;
    double each[MAX_POINTS];
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_shapes; i++) {
        const struct shape *s = &c->shape[i];
        const double *us = c->timed[i].us, *whole = find(c, s->n, s->n_rows, s->n_masks);
        if (s->kind != PRUNED || !c->timed[i].n_runs || !whole)
            continue;
        double more = c->at_once ? us[SV_TIME_DRAFT] - whole[SV_TIME_DRAFT]
                                 : us[SV_TIME_ALL] - whole[SV_TIME_ALL] + halt_us(c);
        const int32_t n_drafts = s->n * (s->n_rows - 1);
        more = fmin(fmax(more, 0), MOST_TRIP_US * s->n);
        if (!c->at_once) {
            sv_curve_add(trip, n_drafts, HOST_TRIP_US + more);
            continue;
        }
        int32_t k = n++;
        for (; k > 0 && each[k - 1] > more / n_drafts; k--)
            each[k] = each[k - 1];
        each[k] = more / n_drafts;
    }
    if (n) {
        sv_curve_add(trip, 1, each[n / 2]);
        sv_curve_add(trip, FAR_OUT, FAR_OUT * each[n / 2]);
    }
    if (!trip->n)
        sv_curve_add(trip, 1, USUAL_TRIP_US);
}

/* Cost of a draft's tokens after the first: blocks with all tokens compared to blocks with one. */
static double out_us(const struct calibration *c, const struct shape *one, const double *us)
{
    const double *all = find(c, one->n, c->p->block, one->n_masks);
    return all ? fmax(all[SV_TIME_DRAFT] - us[SV_TIME_DRAFT], 0) : -1;
}

static void build_curves(struct calibration *c)
{
    struct sv_cost *cost = &c->p->cost;
    const int32_t block = c->p->block;
    for (int32_t i = 0; i < c->n_shapes; i++) {
        const struct shape *s = &c->shape[i];
        const double *us = c->timed[i].us;
        const int32_t n_rows = (s->n - 1) * s->n_rows + s->last;
        if (!c->timed[i].n_runs)
            continue;
        if (s->kind == PLAIN)
            sv_curve_add(&cost->plain, s->n, us[SV_TIME_ALL]);
        if (s->kind == WIDE && !(s->n == 1 && s->n_masks))
            sv_curve_add(&cost->wide, n_rows,
                         s->n_masks ? us[SV_TIME_TARGET] - halt_us(c) : us[SV_TIME_ALL]);
        if (s->kind == DRAFT_ROWS && s->n_masks == block)
            sv_curve_add(&cost->draft_out, s->n * (block - 2), out_us(c, s, us));
    }
    build_trip(c);
    if (c->at_once && cost->draft_out.n) /* fewer in proportion */
        sv_curve_add(&cost->draft_out, 1, (double)cost->draft_out.us[0] / cost->draft_out.x[0]);
    for (int32_t i = 0; i < c->n_shapes; i++) {
        const struct shape *s = &c->shape[i];
        const double us = c->timed[i].us[SV_TIME_DRAFT],
                     out = sv_curve_at(&cost->draft_out, s->n * (s->n_rows - 2));
        if (c->timed[i].n_runs &&
            (s->kind == DRAFT_ROWS || (s->kind == WIDE && s->n_masks && s->n > 1)))
            sv_curve_add(&cost->draft_rows, s->n * s->n_masks, us - fmin(out, MOST_OUT * us));
    }
    for (int32_t i = 0; i < c->n_shapes; i++)
        if (c->shape[i].kind == THIN && c->timed[i].n_runs)
            sv_curve_add(&cost->thin, c->shape[i].n,
                         fmax(c->timed[i].us[SV_TIME_DRAFT],
                              sv_curve_at(&cost->draft_rows, 2 * c->shape[i].n)));
}

/* Three shapes that separate the costs of segments, rows and drafting, at the base context and at a
 * longer one. */
enum { ONE, ALL, FEW, N_FAR };

static void list_far(struct calibration *c, int32_t context)
{
    const int32_t n = c->n_backed, block = c->p->block, few = (block + 3) / 4;
    const bool drafts = c->p->drafts_on_device;
    add(c, PLAIN, n, 1, 1, 0, context);
    add(c, WIDE, n, block, block, drafts ? block : 0, context);
    add(c, WIDE, n, few, few, drafts ? few : 0, context);
}

static bool read_contexts(struct calibration *c, int32_t context)
{
    struct sv_cost *cost = &c->p->cost;
    const int32_t block = c->p->block, few = (block + 3) / 4;
    double more[N_FAR], draft[N_FAR], n = c->n_backed;
    for (int k = 0; k < N_FAR; k++) {
        const struct sv_timed *near = &c->timed[k], *far = &c->timed[N_FAR + k];
        if (!near->n_runs || !far->n_runs)
            return false;
        draft[k] = (far->us[SV_TIME_DRAFT] - near->us[SV_TIME_DRAFT]) / n;
        more[k] = (far->us[SV_TIME_ALL] - near->us[SV_TIME_ALL]) / n - draft[k];
    }
    int32_t i = cost->n_ctx++;
    double row = (more[ALL] - more[ONE]) / (block - 1);
    double draft_row = block > few ? (draft[ALL] - draft[FEW]) / (block - few) : 0;
    row = row > 0 ? row : 0;
    draft_row = draft_row > 0 ? draft_row : 0;
    double seg = more[ONE] - row, draft_seg = draft[ALL] - block * draft_row;
    cost->ctx[i] = context;
    cost->row_us[i] = (float)row;
    cost->seg_us[i] = (float)(seg > 0 ? seg : 0);
    cost->draft_row_us[i] = (float)draft_row;
    cost->draft_us[i] = (float)(draft_seg > 0 ? draft_seg : 0);
    return true;
}

/* Cost of longer contexts, at eightfold steps, over as many sequences as there are pages for (at
 * most 8). */
static int measure_contexts(struct calibration *c, int64_t budget_us)
{
    struct sv_engine *e = c->e;
    struct sv_cost *cost = &c->p->cost;
    const int32_t block = c->p->block;
    int64_t end_us = sv_clock_us() + budget_us;
    cost->n_ctx = 1;
    cost->ctx[0] = c->base;
    for (int32_t ctx = c->base * 8; cost->n_ctx < SV_COST_CONTEXTS; ctx *= 8) {
        bool last = ctx >= e->context - block;
        ctx = last ? e->context - block : ctx;
        if (ctx <= cost->ctx[cost->n_ctx - 1] || sv_clock_us() > end_us)
            break;
        c->n_backed = reserve(c, e->sched.n_slots < 8 ? e->sched.n_slots : 8, ctx);
        c->n_shapes = 0;
        list_far(c, c->base);
        list_far(c, ctx);
        int rc = c->n_backed ? run_rounds(c, budget_us / 2, 0) : SV_OK;
        give_back(c);
        if (rc)
            return rc;
        if (!c->n_backed || !read_contexts(c, ctx))
            break;
        if (last)
            break;
    }
    return SV_OK;
}

int sv_engine_calibrate(struct sv_engine *e, struct sv_policy *p, struct sv_err *err)
{
    struct calibration *c = sv_calloc(1, sizeof *c);
    int64_t start = sv_clock_us(), n_free, n_total;
    if (!c)
        return sv_fail(err, SV_ENOMEM, -1, "cost table");
    c->e = e;
    c->p = p;
    c->err = err;
    c->lens = sv_calloc((size_t)e->sched.n_slots, sizeof *c->lens);
    c->anchors = sv_calloc((size_t)e->sched.n_slots, sizeof *c->anchors);
    c->slots = sv_calloc((size_t)e->sched.n_slots, sizeof *c->slots);
    sv_dev_memory(e->dev, &n_free, &n_total);
    c->at_once = n_total == 0;
    c->per_context = e->cache.has_state;
    for (int32_t i = 0; i < e->cache.n_groups; i++)
        c->per_context |= e->cache.group[i].d.window > 0;
    c->least_runs = e->pads ? 3 : 2;
    p->cost.padded = e->pads ? padded : NULL;
    c->most_rows = c->at_once ? 512 : 1024; /* beyond, the last slope continues */
    int64_t budget = c->at_once ? 700000 : 800000;
    c->start_us = start;
    c->whole_us = budget + budget / 3;
    int rc = c->lens && c->anchors && c->slots ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "cost table");
    if (!rc) {
        deal_slots(c);
        c->base = e->context - p->block;
        c->base = c->base < BASE_CONTEXT ? c->base : BASE_CONTEXT;
        c->n_backed = reserve(c, e->sched.n_slots, c->base);
        list_shapes(c);
        rc = run_rounds(c, budget, c->at_once ? budget * 2 / 5 : 0);
        if (c->n_backed)
            sv_deferred_measure(e, c->n_backed, c->base);
        give_back(c);
    }
    if (!rc) {
        build_curves(c);
        rc = measure_contexts(c, budget / 3);
    }
    e->plan = (struct sv_plan){.seg = e->plan.seg};
    memset(&e->stats, 0, sizeof e->stats);
    p->measured_us = sv_clock_us() - start;
    sv_log(SV_LOG_DEBUG, "width policy: measured the cost of steps in %.2f s",
           (double)p->measured_us / 1e6);
    sv_free(c->lens);
    sv_free(c->anchors);
    sv_free(c->slots);
    sv_free(c);
    return rc;
}
