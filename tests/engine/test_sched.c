/*
 * test_sched.c - the scheduler alone, without a model: random arrivals, accepts, ends and cancels.
 *
 * After every plan: no slot twice, decode segments first, every decoding sequence runs, prompt rows within the
 * budget and in order of arrival, rows and logits laid out without gaps; nobody overtakes in admission; every
 * sequence ends; the cache ends empty.
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
};

static void check_plan(const struct world *w)
{
    const struct sv_plan *p = &w->plan;
    bool seen[SLOTS] = {false};
    int32_t row = 0, logit = 0, draft_row = 0, draft_out = 0, draft_segs = 0, prefill = 0;
    bool in_prefill = false;
    uint64_t last_id = 0;
    for (int32_t i = 0; i < p->n_segs; i++) {
        const struct sv_plan_seg *g = &p->seg[i];
        const struct sv_seq *q = w->slot[g->slot];
        assert_non_null(q);
        assert_false(seen[g->slot]);
        seen[g->slot] = true;
        assert_int_equal(g->row0, row);
        assert_int_equal(g->logit0, logit);
        assert_int_equal(g->first, q->n_committed);
        assert_true(g->n_rows >= 1);
        if (g->kind == SV_SEG_PREFILL) {
            in_prefill = true;
            prefill += g->n_rows;
            assert_true(q->id > last_id); /* arrival order */
            last_id = q->id;
            bool last = g->first + g->n_rows == q->n_prompt;
            assert_int_equal(g->n_logits, last);
            assert_int_equal(g->n_draft_rows, 0);
        } else {
            assert_false(in_prefill);
            assert_int_equal(g->n_rows, g->n_logits);
            assert_true(g->n_rows <= q->width && g->n_rows <= q->cap_tokens - q->n_tokens);
            assert_true(q->n_tokens + g->n_rows == q->cap_tokens || g->n_rows == q->width);
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
    assert_true(prefill <= CHUNK);
    assert_int_equal(p->n_rows, row);
    assert_int_equal(p->n_logits, logit);
    assert_int_equal(p->n_draft_rows, draft_row);
    assert_int_equal(p->n_draft_out, draft_out);
    assert_int_equal(p->n_draft_segs, draft_segs);
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
    if (q->slot >= 0) {
        sv_cache_release(&w->cache, q->slot);
        w->slot[q->slot] = NULL;
    }
}

/* What a step would do with the plan, with random accept counts. */
static void run(struct world *w)
{
    for (int32_t i = 0; i < w->plan.n_segs; i++) {
        const struct sv_plan_seg *g = &w->plan.seg[i];
        struct sv_seq *q = w->slot[g->slot];
        int32_t emit = 0;
        if (g->kind == SV_SEG_PREFILL) {
            q->n_committed += g->n_rows;
            emit = g->n_logits;
        } else {
            emit = 1 + (int32_t)sv_rng_below(&w->rng, (uint32_t)g->n_rows);
            q->n_committed += emit;
        }
        if (emit)
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

/* A waiting sequence may only be waiting because the one before it (or it) found no room. */
static void check_admission(const struct world *w)
{
    bool waiting = false;
    for (const struct sv_seq *q = w->s.head; q; q = q->next) {
        if (q->state == SV_SEQ_FINISHED)
            continue;
        if (waiting)
            assert_int_equal(q->state, SV_SEQ_WAITING);
        if (q->state == SV_SEQ_WAITING && !waiting) {
            waiting = true;
            bool slot = false;
            for (int32_t s = 0; s < SLOTS; s++)
                slot |= !w->slot[s];
            assert_false(slot && sv_cache_can_reserve(&w->cache, q->cap_tokens + w->s.block));
        }
    }
}

static void random_days(int32_t block, int32_t pages, uint64_t seed)
{
    struct world w = {.rng = {seed}, .next_id = 1};
    struct sv_err err = {0};
    const struct sv_dev_opts o = {.n_threads = 1, .isa = SV_ISA_PLAIN};
    const struct sv_cache_group_desc desc[] = {{"full", 1, 1, 8, SV_F32, 16, pages, 0},
                                               {"sliding", 1, 1, 8, SV_F32, 16, pages, 40}};
    assert_int_equal(sv_dev_open(&w.dev, &o, &err), 0);
    assert_int_equal(sv_cache_open(&w.cache, w.dev, desc, 2, SLOTS, POSITIONS, &err), 0);
    w.s = (struct sv_sched){
        .n_slots = SLOTS, .prefill_rows = CHUNK, .block = block, .slot = w.slot};
    w.plan.seg = w.seg;
    while (w.n_done < TOTAL) {
        if (w.next_id <= TOTAL && sv_rng_below(&w.rng, 3))
            arrive(&w);
        if (w.s.head && !sv_rng_below(&w.rng, 40)) /* cancel somebody */
            leave(&w, w.s.head);
        sweep(&w);
        sv_sched_admit(&w.s, &w.cache, w.new_slot);
        check_admission(&w);
        sv_sched_plan(&w.s, &w.plan);
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
}

static void plenty_of_pages(void **state)
{
    (void)state;
    random_days(BLOCK, SLOTS * 13, 1);
}

static void short_of_pages(void **state)
{
    (void)state;
    random_days(BLOCK, 20, 2);
}

static void no_drafter(void **state)
{
    (void)state;
    random_days(1, 30, 3);
}

SV_TEST_MAIN(cmocka_unit_test(plenty_of_pages), cmocka_unit_test(short_of_pages),
             cmocka_unit_test(no_drafter))
