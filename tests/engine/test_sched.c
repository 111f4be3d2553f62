/*
 * test_sched.c - the scheduler alone, without a model: random arrivals, accepts, ends and cancels.
 *
 * After every plan: no slot twice, decode segments first, every decoding sequence runs, pages for every row,
 * prompt rows within the budget and fairly shared, rows and logits laid out without gaps; nobody overtakes, not
 * even when sequences lose their pages; every sequence ends; the cache ends empty.
 */
#include "testing.h"

#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 5, POSITIONS = 200, BLOCK = 8, CHUNK = 24, TOTAL = 300 };

struct world {
    struct sv_dev *dev;
    struct sv_cache cache;
    struct sv_sched s;
    struct sv_plan plan;
    struct sv_seq *slot[SLOTS];
    struct sv_plan_seg seg[SLOTS];
    bool new_slot[SLOTS];
    struct sv_rng rng;
    uint64_t next_id;
    int n_done, n_steps;
    int64_t n_preempted; /* before the last plan */
};

/* Rows of a decoding sequence: all it may use. */
static void check_decode(const struct sv_plan_seg *g, const struct sv_seq *q)
{
    assert_int_equal(g->n_rows, g->n_logits);
    assert_true(g->n_rows <= q->width && g->n_rows <= q->cap_tokens - q->n_tokens);
    assert_true(q->n_tokens + g->n_rows == q->cap_tokens || g->n_rows == q->width);
}

/* Every row the step writes has a page in every group. */
static void check_backed(const struct world *w, const struct sv_plan_seg *g)
{
    int32_t rows = g->n_rows > g->n_draft_rows ? g->n_rows : g->n_draft_rows;
    assert_true(g->first + rows <= w->cache.n_backed[g->slot]);
}

/* The prompt that came first has half of the rows, or all it wants. */
static void check_shares(const struct world *w)
{
    const struct sv_plan *p = &w->plan;
    int32_t n = 0, first = -1;
    uint64_t first_id = 0;
    for (int32_t i = 0; i < p->n_segs; i++) {
        const struct sv_plan_seg *g = &p->seg[i];
        if (g->kind != SV_SEG_PREFILL)
            continue;
        n += g->n_rows;
        if (first < 0 || g->request < first_id) {
            first = i;
            first_id = g->request;
        }
    }
    assert_true(n <= CHUNK);
    bool short_of_rows = false;
    for (const struct sv_seq *q = w->s.head; q; q = q->next) {
        bool prompt = q->state == SV_SEQ_PREFILL && q->slot >= 0;
        if (!prompt)
            continue;
        if (first < 0 || q->id < first_id)
            fail_msg("request %d came first and got no rows", (int)q->id);
        short_of_rows |= q->n_committed + q->n_rows_ahead < q->n_prefill;
    }
    if (short_of_rows && w->s.n_preemptions == w->n_preempted)
        assert_int_equal(n, CHUNK); /* none left unused, but those of a prompt that lost its pages */
    if (first >= 0) {
        const struct sv_plan_seg *g = &p->seg[first];
        assert_true(g->n_rows >= CHUNK / 2 || g->first + g->n_rows == w->slot[g->slot]->n_prefill);
    }
}

static void check_plan(const struct world *w)
{
    const struct sv_plan *p = &w->plan;
    bool seen[SLOTS] = {false};
    int32_t row = 0, logit = 0, draft_row = 0, draft_out = 0, draft_segs = 0;
    bool in_prefill = false;
    uint64_t last_id = 0;
    for (int32_t i = 0; i < p->n_segs; i++) {
        const struct sv_plan_seg *g = &p->seg[i];
        const struct sv_seq *q = w->slot[g->slot];
        assert_non_null(q);
        assert_false(seen[g->slot]);
        seen[g->slot] = true;
        assert_true(g->request == q->id);
        assert_int_equal(g->row0, row);
        assert_int_equal(g->logit0, logit);
        assert_int_equal(g->first, q->n_committed);
        assert_int_equal(g->n_rows, q->n_rows_ahead);
        assert_true(g->n_rows >= 1);
        check_backed(w, g);
        if (g->kind == SV_SEG_PREFILL) {
            in_prefill = true;
            assert_true(q->id > last_id); /* arrival order */
            last_id = q->id;
            bool last = g->first + g->n_rows == q->n_prompt && q->n_tokens == q->n_prompt;
            assert_int_equal(g->n_logits, last);
            assert_int_equal(g->n_draft_rows, 0);
        } else {
            assert_false(in_prefill);
            check_decode(g, q);
            if (g->n_draft_rows) {
                assert_int_equal(g->draft_row0, draft_row);
                assert_int_equal(g->draft_out0, draft_out);
                draft_row += g->n_draft_rows;
                draft_out += g->n_rows - 1;
                draft_segs++;
            }
        }
        row += g->n_rows;
        logit += g->n_logits;
    }
    assert_int_equal(p->n_rows, row);
    assert_int_equal(p->n_logits, logit);
    assert_int_equal(p->n_draft_rows, draft_row);
    assert_int_equal(p->n_draft_out, draft_out);
    assert_int_equal(p->n_draft_segs, draft_segs);
    check_shares(w);
    for (int32_t s = 0; s < SLOTS; s++)
        if (w->slot[s] && w->slot[s]->state == SV_SEQ_DECODE)
            assert_true(seen[s]);
}

static void arrive(struct world *w)
{
    struct sv_seq *q = calloc(1, sizeof *q);
    q->id = w->next_id++;
    q->slot = -1;
    q->n_prompt = q->n_tokens = 1 + (int32_t)sv_rng_below(&w->rng, 90);
    q->cap_tokens = q->n_prompt + 1 + (int32_t)sv_rng_below(&w->rng, 90);
    q->width = 1 + (int32_t)sv_rng_below(&w->rng, BLOCK);
    sv_sched_push(&w->s, q);
}

static void leave(struct world *w, struct sv_seq *q)
{
    q->state = SV_SEQ_FINISHED;
    sv_sched_unseat(&w->s, &w->cache, q);
}

/* What a step would do with the plan, with random accept counts. */
static void run(struct world *w)
{
    for (int32_t i = 0; i < w->plan.n_segs; i++) {
        const struct sv_plan_seg *g = &w->plan.seg[i];
        struct sv_seq *q = w->slot[g->slot];
        int32_t emit = g->n_logits, rows = g->n_rows;
        if (g->kind == SV_SEG_VERIFY)
            emit = rows = 1 + (int32_t)sv_rng_below(&w->rng, (uint32_t)g->n_rows);
        q->n_committed += rows;
        q->n_rows_ahead -= g->n_rows;
        q->n_tokens_ahead -= g->n_logits > 0;
        assert_int_equal(q->n_rows_ahead, 0);
        assert_int_equal(q->n_tokens_ahead, 0);
        if (q->n_committed >= q->n_prefill)
            q->state = SV_SEQ_DECODE;
        q->n_tokens += emit;
        assert_true(q->n_tokens <= q->cap_tokens);
        assert_true(q->n_committed <= q->n_tokens);
        if (q->state == SV_SEQ_DECODE)
            assert_int_equal(q->n_committed, q->n_tokens - 1); /* the anchor */
        if (q->n_tokens == q->cap_tokens || (q->state == SV_SEQ_DECODE && !sv_rng_below(&w->rng, 60)))
            leave(w, q);
        else
            sv_cache_slide(&w->cache, g->slot, q->n_committed);
    }
}

static void sweep(struct world *w)
{
    struct sv_seq **link = &w->s.head;
    w->s.tail = NULL;
    while (*link) {
        struct sv_seq *q = *link;
        if (q->state == SV_SEQ_FINISHED) {
            *link = q->next;
            w->s.n_unfinished--;
            w->n_done++;
            free(q);
            continue;
        }
        w->s.tail = q;
        link = &q->next;
    }
}

/* Nobody overtakes: whoever runs came before everybody who has never run, and nobody waits in an empty
 * house. */
static void check_admission(const struct world *w)
{
    bool waiting = false, running = false;
    for (const struct sv_seq *q = w->s.head; q; q = q->next) {
        if (q->state == SV_SEQ_FINISHED)
            continue;
        if (waiting)
            assert_int_equal(q->state, SV_SEQ_WAITING);
        waiting |= q->state == SV_SEQ_WAITING;
        running |= q->state != SV_SEQ_WAITING;
        assert_int_equal(q->state != SV_SEQ_WAITING, q->slot >= 0);
    }
    assert_true(running || !waiting);
}

/* Returns how often a sequence lost its pages. */
static int64_t random_days(int32_t block, int32_t pages, uint64_t seed)
{
    struct world w = {.rng = {seed}, .next_id = 1};
    struct sv_err err = {0};
    const struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1, .isa = SV_ISA_PLAIN};
    const struct sv_cache_group_desc desc[] = {{"full", 1, 1, 8, SV_F32, 16, pages, 0},
                                               {"sliding", 1, 1, 8, SV_F32, 16, pages, 40}};
    assert_int_equal(sv_dev_open(&w.dev, &o, &err), 0);
    assert_int_equal(sv_cache_open(&w.cache, w.dev, desc, 2, SLOTS, POSITIONS, &err), 0);
    w.s = (struct sv_sched){
        .n_slots = SLOTS, .prefill_rows = CHUNK, .block = block, .slot = w.slot, .new_slot = w.new_slot};
    w.plan.seg = w.seg;
    while (w.n_done < TOTAL) {
        if (w.next_id <= TOTAL && sv_rng_below(&w.rng, 3))
            arrive(&w);
        if (w.s.head && !sv_rng_below(&w.rng, 40)) /* cancel somebody */
            leave(&w, w.s.head);
        sweep(&w);
        w.n_preempted = w.s.n_preemptions;
        assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
        check_admission(&w);
        check_plan(&w);
        run(&w);
        sweep(&w);
        sv_cache_check(&w.cache);
        assert_true(++w.n_steps < 100000); /* everybody gets through */
    }
    assert_null(w.s.head);
    for (int32_t g = 0; g < 2; g++)
        assert_int_equal(sv_cache_n_free(&w.cache, g), pages);
    sv_cache_close(&w.cache);
    sv_dev_close(w.dev);
    return w.s.n_preemptions;
}

static void plenty_of_pages(void **state)
{
    (void)state;
    assert_int_equal(random_days(BLOCK, SLOTS * 13, 1), 0);
}

static void short_of_pages(void **state)
{
    (void)state;
    assert_true(random_days(BLOCK, 14, 2) > 50);
}

static void no_drafter(void **state)
{
    (void)state;
    assert_true(random_days(1, 16, 3) > 20);
}

SV_TEST_MAIN(cmocka_unit_test(plenty_of_pages), cmocka_unit_test(short_of_pages),
             cmocka_unit_test(no_drafter))
