/*
 * test_sched.c - the scheduler alone, without a model: random arrivals, accepts, ends and cancels.
 *
 * After every plan: no slot twice, decode segments first, every decoding sequence runs, pages for
 * every row, prompt rows within the budget and fairly shared, rows and logits laid out without
 * gaps; sequences keep their order, even when they are preempted; every sequence ends; the cache
 * ends empty. The same with slots in parts of their own pages, with a prefix cache, and with plans
 * made while the previous step is in flight, whose results come late. Then single cases: which
 * sequence is admitted when pages are short, and which recomputes the draft's K/V while others
 * wait.
 */
#include "testing.h"

#include "engine/engine.h"
#include "engine/run.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 5, POSITIONS = 210, BLOCK = 8, CHUNK = 24, TOTAL = 300 };

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
    bool calm;           /* no sequence ends before its cap */
    bool ahead;          /* plans are made before the step in flight is read */
    struct sv_plan flight;
    struct sv_plan_seg flight_seg[SLOTS];
    int n_dropped, n_waited;
};

/* Rows of a decoding sequence: all it may use. */
static void check_decode(const struct sv_plan_seg *g, const struct sv_seq *q)
{
    assert_int_equal(g->n_rows, g->n_logits);
    int32_t room = q->cap_tokens - q->n_tokens - (q->n_tokens_ahead - 1); /* as it was planned */
    assert_true(room >= 1 && g->n_rows == (q->width < room ? q->width : room));
}

/* Every row the step writes has a page in every group. */
static void check_backed(const struct world *w, const struct sv_plan_seg *g)
{
    int32_t rows = g->n_rows > g->n_draft_rows ? g->n_rows : g->n_draft_rows;
    assert_true(g->first + rows <= w->cache.n_backed[g->slot]);
}

/* Before this plan, some of its prompt was in no step yet. */
static bool wanted_rows(const struct world *w, const struct sv_seq *q)
{
    int32_t rows = 0;
    for (int32_t i = 0; i < w->plan.n_segs; i++)
        if (w->plan.seg[i].request == q->id && w->plan.seg[i].kind == SV_SEG_PREFILL)
            rows = w->plan.seg[i].n_rows;
    return rows || q->n_committed + q->n_rows_ahead < q->n_prefill;
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
        if (q->state != SV_SEQ_PREFILL || q->slot < 0 || !wanted_rows(w, q))
            continue;
        if (first < 0 || q->id < first_id)
            fail_msg("request %d came first and got no rows", (int)q->id);
        short_of_rows |= q->n_committed + q->n_rows_ahead < q->n_prefill;
    }
    if (short_of_rows && w->s.n_preemptions == w->n_preempted)
        assert_int_equal(n,
                         CHUNK); /* none left unused, but those of a prompt that lost its pages */
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
    int32_t part = 0, decode = 0;
    for (int32_t i = 0; i < p->n_segs; i++) {
        const struct sv_plan_seg *g = &p->seg[i];
        const struct sv_seq *q = w->slot[g->slot];
        assert_non_null(q);
        assert_false(seen[g->slot]);
        seen[g->slot] = true;
        assert_true(g->request == q->id);
        if (sv_cache_part(&w->cache, g->slot) != part) { /* one part's after the other's */
            assert_true(sv_cache_part(&w->cache, g->slot) > part);
            part = sv_cache_part(&w->cache, g->slot);
            in_prefill = false;
            last_id = 0;
        }
        assert_int_equal(g->row0, row);
        assert_int_equal(g->logit0, logit);
        assert_int_equal(g->first, q->n_committed + q->n_rows_ahead - g->n_rows);
        assert_true(w->ahead || g->first == q->n_committed);
        assert_true(g->n_rows >= 1);
        check_backed(w, g);
        if (g->kind == SV_SEG_PREFILL) {
            assert_int_equal(g->decode, -1);
            in_prefill = true;
            assert_true(q->id > last_id); /* arrival order */
            last_id = q->id;
            bool last = g->first + g->n_rows == q->n_prompt && q->n_tokens == q->n_prompt;
            assert_int_equal(g->n_logits, last);
            assert_int_equal(g->n_draft_rows, 0);
        } else {
            assert_false(in_prefill);
            assert_int_equal(g->decode, decode++);
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
        if (w->slot[s] && w->slot[s]->state == SV_SEQ_DECODE &&
            w->slot[s]->n_tokens + w->slot[s]->n_tokens_ahead < w->slot[s]->cap_tokens)
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
    /* Three texts, so that beginnings agree. */
    int32_t text = (int32_t)sv_rng_below(&w->rng, 3);
    q->tokens = calloc((size_t)q->cap_tokens, sizeof *q->tokens);
    for (int32_t i = 0; i < q->cap_tokens; i++)
        q->tokens[i] = text * 1000 + i;
    sv_sched_push(&w->s, q);
}

static void leave(struct world *w, struct sv_seq *q)
{
    q->state = SV_SEQ_FINISHED;
    sv_sched_release(&w->s, &w->cache, q);
}

/* What a step would do with the plan, with random accept counts; whoever has left meanwhile gets
 * nothing. */
static void run(struct world *w, const struct sv_plan *p)
{
    for (int32_t i = 0; i < p->n_segs; i++) {
        const struct sv_plan_seg *g = &p->seg[i];
        struct sv_seq *q = w->slot[g->slot];
        if (!q || q->id != g->request) {
            assert_true(w->ahead);
            w->n_dropped++;
            continue;
        }
        int32_t emit = g->n_logits, rows = g->n_rows;
        if (g->kind == SV_SEG_VERIFY)
            emit = rows = 1 + (int32_t)sv_rng_below(&w->rng, (uint32_t)g->n_rows);
        q->n_committed += rows;
        q->n_rows_ahead -= g->n_rows;
        q->n_tokens_ahead -= g->n_logits > 0;
        assert_true(q->n_rows_ahead >= 0 && q->n_tokens_ahead >= 0);
        assert_true(w->ahead || (q->n_rows_ahead == 0 && q->n_tokens_ahead == 0));
        if (q->n_committed >= q->n_prefill)
            q->state = SV_SEQ_DECODE;
        if (emit > q->cap_tokens - q->n_tokens) {
            assert_true(w->ahead); /* else it was cut when it was planned */
            emit = q->cap_tokens - q->n_tokens;
        }
        q->n_tokens += emit;
        if (q->state == SV_SEQ_DECODE && q->n_tokens < q->cap_tokens)
            assert_int_equal(q->n_committed, q->n_tokens - 1); /* the anchor */
        sv_cache_publish(&w->cache, g->slot, q->tokens,
                         q->n_committed < q->n_tokens ? q->n_committed : q->n_tokens);
        if (q->n_tokens == q->cap_tokens ||
            (q->state == SV_SEQ_DECODE && !w->calm && !sv_rng_below(&w->rng, 60)))
            leave(w, q);
        else
            sv_cache_slide(&w->cache, g->slot, q->n_committed);
    }
}

static void read_flight(struct world *w)
{
    run(w, &w->flight);
    w->flight.n_segs = 0;
}

/* The plan joins what is in flight, and what was there before is read. */
static void step_ahead(struct world *w)
{
    read_flight(w);
    memcpy(w->flight_seg, w->seg, sizeof w->seg);
    w->flight = w->plan;
    w->flight.seg = w->flight_seg;
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
            free(q->tokens);
            free(q);
            continue;
        }
        w->s.tail = q;
        link = &q->next;
    }
}

/* First come, first served: running sequences arrived before all waiting ones that could have the
 * same pages, and none waits while none runs. */
static void check_admission(const struct world *w)
{
    bool waiting = false, running = false;
    for (const struct sv_seq *q = w->s.head; q; q = q->next) {
        if (q->state == SV_SEQ_FINISHED)
            continue;
        if (waiting && w->cache.n_parts == 1)
            assert_int_equal(q->state, SV_SEQ_WAITING);
        waiting |= q->state == SV_SEQ_WAITING;
        running |= q->state != SV_SEQ_WAITING;
        assert_int_equal(q->state != SV_SEQ_WAITING, q->slot >= 0);
    }
    assert_true(running || !waiting);
}

/* Returns how often a sequence lost its pages. windows: pages of the sliding group; both, of each
 * part. */
static int64_t random_parts(int32_t n_parts, int32_t block, int32_t pages, int32_t windows,
                            bool prefixes, bool ahead, uint64_t seed)
{
    struct world w = {.rng = {seed}, .next_id = 1, .ahead = ahead};
    struct sv_err err = {0};
    const struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1, .tuning.isa = SV_ISA_PLAIN};
    const struct sv_cache_group_desc desc[] = {{.n_layers = 1,
                                                .n_kv_heads = 1,
                                                .head_dim = 8,
                                                .page_size = 16,
                                                .n_pages = pages,
                                                .n_parts = n_parts,
                                                .own_part = true},
                                               {.n_layers = 1,
                                                .n_kv_heads = 1,
                                                .head_dim = 8,
                                                .window = 40,
                                                .page_size = 16,
                                                .n_pages = windows * n_parts,
                                                .n_parts = n_parts}};
    assert_int_equal(sv_dev_open(&w.dev, &o, &err), 0);
    assert_int_equal(sv_cache_open(&w.cache, w.dev, desc, 2, SLOTS, POSITIONS, &err), 0);
    if (prefixes)
        assert_int_equal(sv_cache_keep_prefixes(&w.cache, &err), 0);
    w.s = (struct sv_sched){.n_slots = SLOTS,
                            .prefill_rows = CHUNK,
                            .block = block,
                            .slot = w.slot,
                            .new_slot = w.new_slot};
    w.plan.seg = w.seg;
    while (w.n_done < TOTAL) {
        if (w.next_id <= TOTAL && sv_rng_below(&w.rng, 3))
            arrive(&w);
        if (w.s.head && !sv_rng_below(&w.rng, 40)) /* cancel one */
            leave(&w, w.s.head);
        sweep(&w);
        w.n_preempted = w.s.n_preemptions;
        if (!sv_sched_plan(&w.s, &w.cache, &w.plan, w.flight.n_segs > 0)) {
            assert_true(w.flight.n_segs > 0 && w.s.n_preemptions == w.n_preempted);
            w.n_waited++;
            read_flight(&w);
            sweep(&w);
            assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
        }
        check_admission(&w);
        check_plan(&w);
        if (ahead)
            step_ahead(&w);
        else
            run(&w, &w.plan);
        sweep(&w);
        sv_cache_check(&w.cache);
        assert_true(++w.n_steps < 100000); /* all sequences end */
    }
    assert_null(w.s.head);
    for (int32_t g = 0; g < 2; g++)
        assert_true(sv_cache_n_free(&w.cache, g) + sv_cache_n_kept(&w.cache, g) ==
                    (g ? windows : pages) * n_parts);
    assert_true(!prefixes || w.s.n_cache_hits > 1000);
    assert_true(!ahead || w.n_dropped > 20);
    assert_true(!ahead || w.s.n_preemptions == 0 || w.n_waited > 10);
    sv_cache_close(&w.cache);
    sv_dev_close(w.dev);
    return w.s.n_preemptions;
}

static int64_t random_days(int32_t block, int32_t pages, int32_t windows, bool prefixes, bool ahead,
                           uint64_t seed)
{
    return random_parts(1, block, pages, windows, prefixes, ahead, seed);
}

static void plenty_of_pages(void **state)
{
    (void)state;
    assert_int_equal(random_days(BLOCK, SLOTS * 14, SLOTS * 14, false, false, 1), 0);
    assert_int_equal(random_days(BLOCK, SLOTS * 14, SLOTS * 14, false, true, 1), 0);
}

static void short_of_pages(void **state)
{
    (void)state;
    assert_true(random_days(BLOCK, 14, 14, false, false, 2) > 50);
    assert_true(random_days(BLOCK, 14, 14, false, true, 2) > 50);
}

static void no_drafter(void **state)
{
    (void)state;
    assert_true(random_days(1, 16, 16, false, false, 3) > 20);
    assert_true(random_days(1, 16, 16, false, true, 3) > 20);
}

static void prefixes(void **state)
{
    (void)state;
    assert_int_equal(random_days(BLOCK, SLOTS * 14, SLOTS * 14, true, false, 4), 0);
    assert_true(random_days(BLOCK, 14, 14, true, false, 5) > 20);
    assert_true(random_days(BLOCK, 14, 14, true, true, 6) > 20);
}

/* The sliding group's pool holds windows and what two steps add, and then so few pages that hardly
 * two sequences run. */
static void small_windows(void **state)
{
    (void)state;
    const int32_t enough = SLOTS * (3 + 2) + (2 * (CHUNK + SLOTS * BLOCK) + 15) / 16;
    for (int prefix = 0; prefix < 2; prefix++)
        for (int ahead = 0; ahead < 2; ahead++) {
            assert_int_equal(random_days(BLOCK, SLOTS * 14, enough, prefix, ahead, 7), 0);
            random_days(BLOCK, SLOTS * 14, 8, prefix, ahead, 8);
            random_days(BLOCK, 14, 8, prefix, ahead, 9);
        }
}

/* Slots 0 and 1, and 2 to 4; or one for each. */
static void parts(void **state)
{
    (void)state;
    assert_int_equal(random_parts(2, BLOCK, 3 * 14, 3 * 14, false, false, 10), 0);
    for (int ahead = 0; ahead < 2; ahead++) {
        assert_true(random_parts(2, BLOCK, 14, 14, true, ahead, 11) > 10);
        assert_true(random_parts(2, BLOCK, 14, 8, true, ahead, 12) > 10);
        random_parts(SLOTS, BLOCK, 14, 14, true, ahead, 13);
    }
    random_parts(8, 1, 14, 14, false, false, 14); /* some have no slot */
}

/* ---------------------------------------------------------------- single cases */

static void open_parts(struct world *w, int32_t n_parts, int32_t n_pages, int32_t n_positions,
                       int32_t block)
{
    struct sv_err err = {0};
    const struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1, .tuning.isa = SV_ISA_PLAIN};
    struct sv_cache_group_desc desc[2] = {{.n_layers = 1,
                                           .n_kv_heads = 1,
                                           .head_dim = 8,
                                           .page_size = 16,
                                           .n_pages = n_pages,
                                           .n_parts = n_parts,
                                           .own_part = true}};
    desc[1] = desc[0];
    desc[1].owner = SV_CACHE_DRAFT;
    *w = (struct world){.rng = {1}, .next_id = 1, .calm = true};
    assert_int_equal(sv_dev_open(&w->dev, &o, &err), 0);
    assert_int_equal(sv_cache_open(&w->cache, w->dev, desc, 2, SLOTS, n_positions, &err), 0);
    w->s = (struct sv_sched){.n_slots = SLOTS,
                             .prefill_rows = CHUNK,
                             .block = block,
                             .slot = w->slot,
                             .new_slot = w->new_slot};
    w->plan.seg = w->seg;
}

static void open_small(struct world *w, int32_t n_pages, int32_t n_positions, int32_t block)
{
    open_parts(w, 1, n_pages, n_positions, block);
}

static void close_small(struct world *w)
{
    while (w->s.head) {
        leave(w, w->s.head);
        sweep(w);
    }
    sv_cache_close(&w->cache);
    sv_dev_close(w->dev);
}

/* A request like no other. */
static struct sv_seq *ask(struct world *w, int32_t n_prompt, int32_t n_answer, int32_t width)
{
    arrive(w);
    struct sv_seq *q = w->s.tail;
    q->n_prompt = q->n_tokens = n_prompt;
    q->cap_tokens = n_prompt + n_answer;
    q->width = width;
    q->tokens = realloc(q->tokens, (size_t)q->cap_tokens * sizeof *q->tokens);
    for (int32_t i = 0; i < q->cap_tokens; i++)
        q->tokens[i] = (int32_t)q->id * 1000 + i;
    return q;
}

static int32_t part_of(const struct world *w, const struct sv_seq *q)
{
    assert_true(q->slot >= 0);
    return sv_cache_part(&w->cache, q->slot);
}

static void step(struct world *w)
{
    assert_true(sv_sched_plan(&w->s, &w->cache, &w->plan, false));
    run(w, &w->plan);
    sv_cache_check(&w->cache);
}

/* A sequence is admitted where its prefix is cached, else where most pages are free, else where
 * there is room; and loses its pages to sequences of its part alone. */
static void slots_of_parts(void **state)
{
    (void)state;
    struct world w;
    struct sv_err err = {0};
    open_parts(&w, 2, 8, 120, 1); /* slots 0 and 1, 2 to 4; 8 pages each */
    assert_int_equal(sv_cache_keep_prefixes(&w.cache, &err), 0);
    struct sv_seq *a = ask(&w, 20, 80, 1), *b = ask(&w, 40, 80, 1), *c = ask(&w, 20, 60, 1);
    step(&w);
    assert_int_equal(part_of(&w, a), 0);
    assert_int_equal(part_of(&w, b), 1);
    assert_int_equal(part_of(&w, c), 0); /* 6 pages to spare there, and 5 */
    step(&w);
    step(&w);
    assert_true(b->n_committed >= 16);
    struct sv_seq *d = ask(&w, 40, 80, 1); /* begins as b, where fewer pages are left */
    memcpy(d->tokens, b->tokens, 20 * sizeof *d->tokens);
    leave(&w, c);
    sweep(&w);
    step(&w);
    assert_int_equal(part_of(&w, d), 1);
    assert_int_equal(d->n_cached, 16);
    struct sv_seq *e = ask(&w, 100, 4, 1); /* fits into neither beside them */
    step(&w);
    assert_int_equal(e->state, SV_SEQ_WAITING);
    /* b and d grow into 8 pages: d is the younger one there, though f is younger still. */
    leave(&w, e);
    sweep(&w);
    struct sv_seq *f = ask(&w, 1, 80, 1);
    step(&w);
    assert_int_equal(part_of(&w, f), 0);
    for (int i = 0; i < 70 && !w.s.n_preemptions; i++)
        step(&w);
    assert_int_equal(w.s.n_preemptions, 1);
    assert_int_equal(d->n_preemptions, 1);
    close_small(&w);
}

/* One long prompt and a new short one every step: the short ones are answered at once, and the long
 * one takes at most twice the steps it would take alone. */
static void long_and_short(void **state)
{
    (void)state;
    enum { LONG = 204, SHORT = CHUNK / 2 - 1 };
    struct world w;
    open_small(&w, 200, LONG + 10, 1);
    int n_steps = 0, n_short = 0;
    for (bool done = false; !done; n_steps++) {
        struct sv_seq *q = ask(&w, w.next_id == 1 ? LONG : SHORT, 1, 1);
        assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
        run(&w, &w.plan);
        done = w.s.head->id == 1 && w.s.head->state == SV_SEQ_FINISHED;
        for (q = w.s.head; q; q = q->next)
            if (q->id > 1) {
                if (q->state != SV_SEQ_FINISHED) /* in the step it came */
                    fail_msg("step %d: request %d has %d of %d rows", n_steps, (int)q->id,
                             q->n_committed, q->n_prefill);
                n_short++;
            }
        sweep(&w);
    }
    assert_true(n_steps <= 2 * (LONG + CHUNK - 1) / CHUNK);
    assert_int_equal(n_short, n_steps - 1);
    close_small(&w);
}

/* A prompt of one page that will decode with blocks of 16: as many pages as it takes, from the
 * moment it is admitted. */
static void slots_leave_room_for_blocks(void **state)
{
    (void)state;
    enum { PAGE = 16 };
    for (int32_t pages = 3; pages <= 4; pages++)
        for (int later = 0; later < 2; later++) {
            struct world w;
            open_small(&w, pages, 4 * PAGE, PAGE);
            struct sv_seq *a = ask(&w, PAGE, PAGE, PAGE);
            if (later) { /* a page of the two is there by now */
                assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
                assert_int_equal(w.cache.n_backed[a->slot], PAGE);
            }
            struct sv_seq *b = ask(&w, PAGE, PAGE, PAGE);
            if (later)
                run(&w, &w.plan);
            assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
            assert_int_equal(b->slot >= 0, pages == 4);
            assert_int_equal(w.s.n_preemptions, 0);
            leave(&w, a);
            if (!later) /* its prompt alone is one page */
                assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false) && b->slot >= 0);
            leave(&w, b);
            close_small(&w);
        }
}

/* Drafting pays and all drafts are kept. */
static struct sv_policy *open_policy(struct world *w)
{
    struct sv_err err = {0};
    assert_int_equal(sv_policy_open(&w->s.policy, SLOTS, BLOCK, true, &err), SV_OK);
    struct sv_policy *p = w->s.policy;
    run_set_costs(p);
    for (int32_t j = 1; j < BLOCK; j++)
        p->tried[j] = p->kept[j] = 1000;
    sv_policy_begin(p, 0, false);
    sv_policy_choose(p);
    w->s.usual_answer = 100;
    return p;
}

/* Steps until its prompt is in. */
static void until_decoding(struct world *w, const struct sv_seq *q)
{
    for (int n = 0; q->state != SV_SEQ_DECODE; n++) {
        assert_true(n < 10 && sv_sched_plan(&w->s, &w->cache, &w->plan, false));
        run(w, &w->plan);
    }
}

/* Who lacks the draft's K/V and has lost more than it takes computes it again, but not while
 * a sequence waits for a slot or for pages, and not while a step is in flight. */
static void nobody_restores_while_others_wait(void **state)
{
    (void)state;
    struct world w;
    struct sv_seq *q[SLOTS + 1];
    struct sv_err err = {0};
    open_small(&w, 100, 200, BLOCK);
    assert_int_equal(sv_cache_keep_prefixes(&w.cache, &err), SV_OK);
    struct sv_policy *p = open_policy(&w);
    for (int i = 0; i < SLOTS; i++)
        q[i] = ask(&w, 40, 150, BLOCK);
    until_decoding(&w, q[SLOTS - 1]);
    for (int i = 0; i < SLOTS; i++)
        assert_true(q[i]->state == SV_SEQ_DECODE && q[i]->n_tokens < q[i]->cap_tokens - 60);
    sv_sched_invalidate_draft(&w.cache, q[1], 20);
    q[SLOTS] = ask(&w, 10, 5, BLOCK); /* finds no slot */
    for (int n = 0; n < 3; n++) {
        q[1]->record.missed_us = 1e9;
        assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
        assert_true(p->n_restored == 0 && q[1]->state == SV_SEQ_DECODE &&
                    sv_sched_draft_end(&w.cache, q[1]) == 20);
        assert_true(w.plan.seg[q[1]->slot].disabled);
        run(&w, &w.plan);
    }
    leave(&w, q[0]); /* the slot it waited for */
    sweep(&w);
    assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
    assert_true(q[SLOTS]->slot >= 0 && p->n_restored == 0);
    run(&w, &w.plan);
    sweep(&w);
    assert_false(sv_sched_plan(&w.s, &w.cache, &w.plan, true));
    assert_true(p->n_restored == 0 && sv_sched_draft_end(&w.cache, q[1]) == 20);
    const int32_t n_tokens = q[1]->n_tokens;
    w.s.usual_answer = 0; /* what it has lost decides, not what others would gain */
    assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
    assert_int_equal(p->n_restored, 1);
    assert_int_equal(w.s.n_preemptions, 0); /* its own wish */
    assert_true(q[1]->state == SV_SEQ_PREFILL && q[1]->n_preemptions == 0);
    assert_int_equal(q[1]->n_prefill, n_tokens - 1);
    assert_int_equal(q[1]->n_committed, 16); /* whole pages before what it lacks */
    assert_int_equal(sv_sched_draft_end(&w.cache, q[1]), INT32_MAX);
    assert_true(q[1]->record.missed_us <= 0 && q[1]->record.n_restored == 1 && !q[1]->restores);
    run(&w, &w.plan);
    /* Once more it has to have lost twice as much. */
    until_decoding(&w, q[1]);
    sv_sched_invalidate_draft(&w.cache, q[1], 20);
    const double us = sv_policy_restore_us(p, q[1]->n_tokens - 20, q[1]->n_tokens);
    q[1]->record.missed_us = 1.9 * us;
    assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false) && p->n_restored == 1);
    run(&w, &w.plan);
    q[1]->record.missed_us = 2.1 * sv_policy_restore_us(p, q[1]->n_tokens - 20, q[1]->n_tokens);
    assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false) && p->n_restored == 2);
    sv_policy_close(p);
    close_small(&w);
}

/* A sequence whose drafting was disabled lacks the draft's part from its answer on; all rows of its
 * prompt are planned, also where the step that brings them is in flight. */
static void disabled_while_its_prompt_is_in_flight(void **state)
{
    (void)state;
    for (int in_flight = 0; in_flight < 2; in_flight++) {
        struct world w;
        open_small(&w, 16, 200, BLOCK);
        struct sv_policy *p = open_policy(&w);
        struct sv_seq *q = ask(&w, CHUNK, 50, BLOCK);
        assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
        if (!in_flight)
            run(&w, &w.plan);
        q->record.disabled = true;
        assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, in_flight));
        assert_int_equal(w.plan.n_segs, 1);
        assert_true(w.plan.seg[0].kind == SV_SEG_VERIFY && w.plan.seg[0].disabled &&
                    w.plan.no_taps);
        assert_int_equal(sv_sched_draft_end(&w.cache, q), CHUNK);
        assert_int_equal(p->seq[0].context, CHUNK);
        sv_policy_close(p);
        close_small(&w);
    }
}

struct warned {
    struct world w;
    const struct sv_seq *who;
    int n;
    int32_t n_backed;
};

static void note_warning(void *user)
{
    struct warned *t = user;
    assert_true(t->who->slot >= 0 && t->who->n_committed > 0);
    t->n_backed = t->w.cache.n_backed[t->who->slot];
    t->n++;
}

/* Whoever loses pages, taken or given, has them still when that is told: what is held back for them
 * must go first. */
static void told_before_pages_go(void **state)
{
    (void)state;
    struct warned t = {.n = 0};
    struct sv_err err = {0};
    open_small(&t.w, 14, 200, BLOCK);
    assert_int_equal(sv_cache_keep_prefixes(&t.w.cache, &err), SV_OK);
    struct sv_policy *p = open_policy(&t.w);
    t.w.s.before_preempt = note_warning;
    t.w.s.user = &t;
    struct sv_seq *old = ask(&t.w, 150, 40, BLOCK), *q = ask(&t.w, 40, 100, BLOCK);
    t.who = q;
    until_decoding(&t.w, old);
    until_decoding(&t.w, q);
    assert_int_equal(t.n, 0);
    while (!q->n_preemptions) {
        assert_int_equal(t.n, 0);
        assert_true(sv_sched_plan(&t.w.s, &t.w.cache, &t.w.plan, false));
        run(&t.w, &t.w.plan);
    }
    assert_int_equal(t.n, 1);
    assert_true(t.n_backed >= 40);
    leave(&t.w, old);
    sweep(&t.w);
    until_decoding(&t.w, q);
    sv_sched_invalidate_draft(&t.w.cache, q, 20);
    q->record.missed_us = 1e9;
    assert_true(sv_sched_plan(&t.w.s, &t.w.cache, &t.w.plan, false));
    assert_int_equal(p->n_restored, 1);
    assert_int_equal(t.n, 2);
    sv_policy_close(p);
    close_small(&t.w);
}

/* Pages that were published without the draft's K/V: whoever comes back to them, preempted
 * meanwhile, takes them as they are where there is too little left to gain, and leaves them out
 * where there is enough, or where it asked for a width and will draft in any case. */
static void preempted_and_bare(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        const bool worth = k > 0;
        struct world w;
        struct sv_err err = {0};
        open_small(&w, 16, 200, BLOCK);
        assert_int_equal(sv_cache_keep_prefixes(&w.cache, &err), SV_OK);
        struct sv_policy *p = open_policy(&w);
        struct sv_seq *old = ask(&w, 150, 40, BLOCK), *q = ask(&w, 40, 150, BLOCK);
        until_decoding(&w, old);
        until_decoding(&w, q);
        sv_sched_invalidate_draft(&w.cache, q, 20);
        while (!q->n_preemptions) {
            assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
            run(&w, &w.plan);
        }
        assert_true(q->state == SV_SEQ_WAITING && q->slot < 0);
        w.s.usual_answer = k == 1 ? 100 : 0;
        q->fixed_width = k == 2;
        leave(&w, old);
        assert_true(sv_sched_plan(&w.s, &w.cache, &w.plan, false));
        assert_true(q->slot >= 0);
        assert_int_equal(sv_sched_draft_end(&w.cache, q), worth ? INT32_MAX : 16); /* by pages */
        assert_true(worth ? q->n_committed == 16 : q->n_committed > 20);
        assert_int_equal(p->n_restored, 0);
        sv_policy_close(p);
        close_small(&w);
    }
}

SV_TEST_MAIN(cmocka_unit_test(plenty_of_pages), cmocka_unit_test(short_of_pages),
             cmocka_unit_test(no_drafter), cmocka_unit_test(prefixes),
             cmocka_unit_test(small_windows), cmocka_unit_test(parts),
             cmocka_unit_test(slots_of_parts), cmocka_unit_test(long_and_short),
             cmocka_unit_test(slots_leave_room_for_blocks),
             cmocka_unit_test(nobody_restores_while_others_wait),
             cmocka_unit_test(disabled_while_its_prompt_is_in_flight),
             cmocka_unit_test(told_before_pages_go), cmocka_unit_test(preempted_and_bare))
