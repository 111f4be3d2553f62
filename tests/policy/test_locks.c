/*
 * test_locks.c - states that the width policy must recover from: conditions that change, and
 * conditions with little exploration. In test_policy.c conditions are constant.
 *
 * timeout: 240
 */
#include "testing.h"

#include "tests/policy/steps.h"

#include <math.h>
#include <string.h>

enum { NEVER, ALWAYS, KINDS };

/* Requests of n_tokens each, one after the other in every slot. */
struct world {
    const struct machine *m;
    int32_t n, n_tokens;
    int32_t n_prompt_rows; /* beside every step */
    int32_t cap;           /* 0: the block; else answers end after so many tokens */
    bool ahead;
    double deferred_us;
    /* acceptance of the request in slot i, at this token, in this step */
    int (*kind)(int32_t i, int64_t token, int32_t step);
};

struct life {
    struct sv_record record;
    int64_t token;
};

/* One sequence gets to its next tokens. */
static int32_t go_on(const struct world *w, struct sv_policy *p, struct life *r, int32_t i,
                     int32_t step, bool backoff)
{
    const struct sv_policy_seq *s = &p->seq[i];
    const int32_t width = backoff ? 1 : s->width;
    const int32_t len = w->kind(i, r->token, step) == NEVER ? 1 : width;
    if (width > 1)
        verified(p, &r->record, s, len);
    r->token += len;
    if (r->token >= w->n_tokens)
        *r = (struct life){.token = 0};
    return len;
}

/* Tokens per us of the steps from `from` on, over plain decoding's. */
static double live(const struct world *w, int32_t from, int32_t to)
{
    struct sv_policy *p;
    struct sv_err err;
    struct life life[MAX_SEQS] = {{.token = 0}};
    struct clock clock = {.rng = {3}};
    double tokens = 0, us = 0;
    const int32_t n = w->n;
    assert_int_equal(sv_policy_open(&p, n, BLOCK, true, &err), 0);
    measure_table(&p->cost, w->m, n, 1, (struct wrong){.n_rows = 0});
    p->ahead = w->ahead;
    for (int32_t step = 0; step < to; step++) {
        p->deferred_us = w->deferred_us;
        const bool backoff = sv_policy_backs_off(p, n, w->n_prompt_rows > 0);
        if (!backoff) {
            sv_policy_begin(p, w->n_prompt_rows, false);
            for (int32_t i = 0; i < n; i++)
                sv_policy_add(p, (struct sv_policy_seq){.block = BLOCK,
                                                        .cap = w->cap ? w->cap : BLOCK,
                                                        .context = 100,
                                                        .record = &life[i].record});
            sv_policy_choose(p);
        }
        const struct sv_load *l = &p->load;
        const double t = step_us(w->m, n, backoff ? n : l->n_rows, l->n_draft_segs, l->n_draft_rows,
                                 l->n_draft_out) *
                         (l->n_draft_segs ? w->m->spec_factor : 1);
        for (int32_t i = 0; i < n; i++) {
            const int32_t len = go_on(w, p, &life[i], i, step, backoff);
            tokens += step >= from ? len : 0;
        }
        us += step >= from ? t : 0;
        sv_cost_learn(&p->cost, l, seen(&clock, w->m, t));
    }
    sv_policy_close(p);
    return tokens / us / (n / step_us(w->m, n, n, 0, 0, 0));
}

/* The most that k of n sequences could gain whose drafts are always kept, over plain decoding. */
static double could_be(const struct machine *m, int32_t n, int32_t k, int32_t cap)
{
    const double plain = n / step_us(m, n, n, 0, 0, 0);
    double best = plain;
    for (int32_t w = 2; w <= cap; w++)
        best =
            fmax(best, (n + k * (w - 1)) / step_us(m, n, n + k * (w - 1), k, k * w, k * (w - 1)));
    return best / plain;
}

static const struct machine *machine_of(const char *name)
{
    for (size_t k = 0; k < sizeof machines / sizeof machines[0]; k++)
        if (!strcmp(machines[k].name, name))
            return &machines[k];
    fail_msg("no machine is called %s", name);
    return NULL;
}

static void fares(const struct world *w, double got, double best, double least)
{
    if (got < least * best)
        fail_msg("%s, %d sequences: %.3f of plain decoding, could be %.3f", w->m->name, w->n, got,
                 best);
}

static int first_is_right(int32_t i, int64_t token, int32_t step)
{
    (void)token, (void)step;
    return i == 0 ? ALWAYS : NEVER;
}

/* Drafts of one request are always kept, those of the others never. */
static void right_for_one(void **state)
{
    (void)state;
    static const char *const names[] = {"two cores", "matrix unit", "large GPU", "tiles of rows"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
        for (int32_t n = 1; n <= 16; n *= 4) {
            const struct world w = {
                .m = machine_of(names[k]), .n = n, .n_tokens = 500, .kind = first_is_right};
            fares(&w, live(&w, 500, 3000), could_be(w.m, n, 1, BLOCK), 0.94);
        }
}

/* Drafts are never kept at first. */
static int right_later(int32_t i, int64_t token, int32_t step)
{
    (void)i, (void)token;
    return step < 1500 ? NEVER : ALWAYS;
}

static int never_right(int32_t i, int64_t token, int32_t step)
{
    (void)i, (void)token, (void)step;
    return NEVER;
}

static const char *const kinds[] = {"matrix unit", "large GPU", "two cores, others at work"};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* Prompt rows stand beside every step: what drafts are worth is found out all the same, and costs
 * next to nothing where they are worth nothing. */
static void prompts_for_ever(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int32_t n = 1; n <= 16; n *= 4) {
            struct world w = {.m = machine_of(kinds[k]),
                              .n = n,
                              .n_tokens = 200,
                              .n_prompt_rows = 64,
                              .kind = right_later};
            fares(&w, live(&w, 4500, 5500), could_be(w.m, n, n, BLOCK), 0.95);
            w.kind = never_right;
            fares(&w, live(&w, 500, 2000), 1, 0.98);
        }
}

/* All answers end before a block would. */
static void short_answers(void **state)
{
    (void)state;
    enum { SHORT = 8 };
    for (int k = 0; k < N_KINDS; k++)
        for (int32_t n = 1; n <= 16; n *= 4) {
            struct world w = {.m = machine_of(kinds[k]),
                              .n = n,
                              .n_tokens = 200,
                              .cap = SHORT,
                              .kind = right_later};
            fares(&w, live(&w, 4500, 5500), could_be(w.m, n, n, SHORT), 0.95);
            w.kind = never_right;
            fares(&w, live(&w, 500, 2000), 1, 0.98);
        }
}

/* To work off what is deferred takes as long as many steps: that is saved up for, too. */
static void much_is_deferred(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        struct world w = {.m = machine_of(kinds[k]), .n = 1, .n_tokens = 200, .kind = right_later};
        w.deferred_us = 60 * step_us(w.m, 1, 1, 0, 0, 0);
        fares(&w, live(&w, 50000, 51000), could_be(w.m, 1, 1, BLOCK), 0.95);
    }
}

static int every_other(int32_t i, int64_t token, int32_t step)
{
    (void)token;
    return (step + i) % 2 ? ALWAYS : NEVER;
}

static int every_other_request(int32_t i, int64_t token, int32_t step)
{
    (void)token, (void)step;
    return i % 2 ? NEVER : ALWAYS;
}

static int by_forty_steps(int32_t i, int64_t token, int32_t step)
{
    (void)i, (void)token;
    return step / 40 % 2 ? ALWAYS : NEVER;
}

static int by_four_tokens(int32_t i, int64_t token, int32_t step)
{
    (void)i, (void)step;
    return token / 4 % 2 ? NEVER : ALWAYS;
}

/* What drafts are worth changes all the time, or from request to request: never far below plain
 * decoding. */
static void worlds_that_change(void **state)
{
    (void)state;
    static int (*const kind[])(int32_t, int64_t, int32_t) = {every_other, every_other_request,
                                                             by_forty_steps, by_four_tokens};
    for (size_t m = 0; m < sizeof machines / sizeof machines[0]; m++)
        for (int32_t n = 1; n <= 16; n *= 4)
            for (size_t k = 0; k < sizeof kind / sizeof kind[0] && !machines[m].slow_phases; k++) {
                struct world w = {.m = &machines[m], .n = n, .n_tokens = 300, .kind = kind[k]};
                for (int ahead = 0; ahead < 2; ahead++) {
                    w.ahead = ahead;
                    fares(&w, live(&w, 500, 2500), 1, 0.94);
                }
            }
}

/* ---------------------------------------------------------------- anything at all */

/* A request that comes and goes: its record is gone with it. */
struct guest {
    struct sv_record *record;
    int32_t fixed, left, kind;
};

static void come_and_go(struct guest *g, int32_t n, struct sv_rng *rng)
{
    for (int32_t i = 0; i < n; i++) {
        if (g[i].record && g[i].left > 0)
            continue;
        free(g[i].record);
        g[i] = (struct guest){.record = NULL};
        if (sv_rng_below(rng, 4))
            continue;
        g[i].record = calloc(1, sizeof *g[i].record);
        g[i].fixed = sv_rng_below(rng, 8) ? 0 : 1 + (int32_t)sv_rng_below(rng, BLOCK);
        g[i].left = 1 + (int32_t)sv_rng_below(rng, 1 + sv_rng_below(rng, 300));
        g[i].kind = (int)sv_rng_below(rng, 3);
    }
}

/* What was chosen adds up. */
static void adds_up(const struct sv_policy *p)
{
    int32_t n_rows = 0, n_segs = 0, draft_rows = 0, outs = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const struct sv_policy_seq *s = &p->seq[i];
        assert_true(s->width >= 1 && s->width <= (s->cap > 1 ? s->cap : 1));
        assert_true(s->draft_rows >= (s->width > 1 ? s->width : 0) && s->draft_rows <= s->block);
        assert_true(s->n_drafts >= s->width - 1 && s->n_drafts < BLOCK);
        assert_true(!s->fixed || s->width == (s->fixed < s->cap ? s->fixed : s->cap) || s->cap < 2);
        n_rows += s->width;
        n_segs += s->draft_rows > 0;
        draft_rows += s->draft_rows;
        outs += s->n_drafts;
    }
    const struct sv_load *l = &p->load;
    assert_true(l->n_segs == p->n && l->n_rows == n_rows && l->n_draft_segs == n_segs);
    assert_true(l->n_draft_rows == draft_rows && l->n_draft_out == outs);
    assert_true(isfinite(l->seg_us) && isfinite(l->row_us) && isfinite(l->draft_us));
    assert_true(isfinite(p->apart_xy) && isfinite(p->trial.probe_us) &&
                isfinite(p->trial.other_us) && isfinite(p->trial.look_us));
}

static void verify_any(struct sv_policy *p, struct guest *of[], struct sv_rng *rng)
{
    float confidence[MAX_SEQS * BLOCK];
    for (int32_t i = 0; i < MAX_SEQS * BLOCK; i++)
        confidence[i] = sv_rng_float(rng);
    const bool told = p->confidence_now && p->load.n_draft_segs;
    for (int32_t i = 0; i < p->n; i++)
        if (!sv_rng_below(rng, 8))
            sv_policy_narrow(p, i, 1 + (int32_t)sv_rng_below(rng, (uint32_t)p->seq[i].width));
    if (told && p->prunes_now)
        sv_policy_prune(p, confidence);
    for (int32_t i = 0, at = 0; i < p->n; i++) {
        const struct sv_policy_seq *s = &p->seq[i];
        const int32_t most = of[i]->kind == 0   ? 1
                             : of[i]->kind == 1 ? s->width
                                                : 1 + (int32_t)sv_rng_below(rng, BLOCK),
                      n_emitted = most < s->width ? most : s->width;
        const struct sv_verified v = {.width = s->width,
                                      .draft_rows = s->draft_rows,
                                      .n_emitted = n_emitted,
                                      .probe = s->probe,
                                      .refused = !sv_rng_below(rng, 16),
                                      .confidence = told && s->n_drafts ? confidence + at : NULL,
                                      .n_drafts = s->n_drafts,
                                      .n_together = p->load.n_draft_segs};
        if (s->width > 1 || v.refused)
            sv_policy_verified(p, s->record, &v);
        if (v.confidence)
            sv_policy_drafted(p, v.confidence, v.n_drafts);
        at += s->n_drafts;
        of[i]->left -= n_emitted;
    }
}

/* Requests of all kinds come and go in any number, their widths asked for or chosen, with and
 * without pruning, prompts and steps ahead: no state of ended requests is read, and all adds up. */
static void anything(void **state)
{
    (void)state;
    enum { SEATS = 24, STEPS = 3000, ROUNDS = 12 };
    for (uint64_t round = 0; round < ROUNDS; round++) {
        const struct machine *m = &machines[round % (sizeof machines / sizeof machines[0] - 1)];
        struct sv_rng rng = {round};
        struct guest guest[SEATS] = {{.record = NULL}}, *of[SEATS];
        struct sv_policy *p;
        struct sv_err err;
        assert_int_equal(sv_policy_open(&p, SEATS, BLOCK, true, &err), 0);
        measure_table(&p->cost, m, SEATS, 1, (struct wrong){.n_rows = 0});
        p->ahead = round % 2;
        p->prunes = round % 3 > 0;
        p->confidence_free = p->prunes && round % 3 == 1;
        sv_curve_add(&p->cost.trip, 1, 5);
        sv_curve_add(&p->cost.trip, 1000, 50);
        for (int32_t step = 0; step < STEPS; step++) {
            const bool prompts = !sv_rng_below(&rng, 4);
            int32_t n = 0;
            bool asked = false;
            come_and_go(guest, 1 + (int32_t)(step / 100 * 7 % SEATS), &rng);
            for (int32_t i = 0; i < SEATS; i++)
                if (guest[i].record) {
                    asked |= guest[i].fixed > 0;
                    of[n++] = &guest[i];
                }
            if (!asked && sv_policy_backs_off(p, n, prompts)) {
                for (int32_t i = 0; i < n; i++)
                    of[i]->left--;
                continue;
            }
            sv_policy_begin(p, prompts ? 40 : 0, !sv_rng_below(&rng, 8));
            for (int32_t i = 0; i < n; i++)
                sv_policy_add(p, (struct sv_policy_seq){
                                     .fixed = of[i]->fixed,
                                     .block = of[i]->fixed ? of[i]->fixed : BLOCK,
                                     .cap = of[i]->left < (of[i]->fixed ? of[i]->fixed : BLOCK)
                                                ? of[i]->left
                                            : of[i]->fixed ? of[i]->fixed
                                                           : BLOCK,
                                     .context = 100,
                                     .record = of[i]->record});
            sv_policy_choose(p);
            adds_up(p);
            verify_any(p, of, &rng);
            sv_cost_learn(&p->cost, &p->load,
                          100 + 10000 * (double)sv_rng_float(&rng) * sv_rng_below(&rng, 3));
            if (p->promised > 0)
                sv_policy_brought(p, p->promised, n);
            for (int32_t k = 0; k < SV_LEVELS; k++)
                assert_true(isfinite(p->cost.level[0][k]) && p->cost.level[0][k] > 0);
        }
        for (int32_t i = 0; i < SEATS; i++)
            free(guest[i].record);
        sv_policy_close(p);
    }
}

SV_TEST_MAIN(cmocka_unit_test(anything), cmocka_unit_test(right_for_one),
             cmocka_unit_test(prompts_for_ever), cmocka_unit_test(short_answers),
             cmocka_unit_test(worlds_that_change), cmocka_unit_test(much_is_deferred))
