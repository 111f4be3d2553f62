/*
 * test_locks.c - states that the width policy must come out of: worlds that change, and worlds in
 * which little can be tried. Elsewhere (test_policy.c) a world is the same from its first step on.
 *
 * timeout: 120
 */
#include "testing.h"

#include "tests/spec/steps.h"

#include <math.h>
#include <string.h>

enum { NEVER, ALWAYS, KINDS };

/* Requests of n_tokens each, one after the other in every seat. */
struct world {
    const struct machine *m;
    int32_t n, n_tokens;
    int32_t n_prompt_rows; /* beside every step */
    int32_t cap;           /* 0: the block; else answers end after so many tokens */
    bool ahead;
    double held_us;
    /* what its drafts are worth: of the request in seat i, at its token, in this step */
    int (*kind)(int32_t i, int64_t token, int32_t step);
};

struct life {
    struct sv_record record;
    int64_t token;
};

/* One sequence gets to its next tokens. */
static int32_t go_on(const struct world *w, struct sv_policy *p, struct life *r, int32_t i,
                     int32_t step, bool rests)
{
    const struct sv_policy_seq *s = &p->seq[i];
    const int32_t width = rests ? 1 : s->width;
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
        p->held_us = w->held_us;
        const bool rests = sv_policy_rests(p, n, w->n_prompt_rows > 0);
        if (!rests) {
            sv_policy_begin(p, w->n_prompt_rows, false);
            for (int32_t i = 0; i < n; i++)
                sv_policy_add(p, (struct sv_policy_seq){.block = BLOCK,
                                                        .cap = w->cap ? w->cap : BLOCK,
                                                        .context = 100,
                                                        .record = &life[i].record});
            sv_policy_choose(p);
        }
        const struct sv_load *l = &p->load;
        const double t = step_us(w->m, n, rests ? n : l->n_rows, l->n_draft_segs, l->n_draft_rows,
                                 l->n_draft_out);
        for (int32_t i = 0; i < n; i++) {
            const int32_t len = go_on(w, p, &life[i], i, step, rests);
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

/* To work off what is held back takes as long as many steps: that is saved up for, too. */
static void much_is_held(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++)
        for (int32_t n = 1; n <= 4; n *= 4) {
            struct world w = {.m = machine_of(kinds[k]), .n = n, .n_tokens = 200};
            w.held_us = 60 * step_us(w.m, n, n, 0, 0, 0);
            w.kind = right_later;
            fares(&w, live(&w, 100000, 101000), could_be(w.m, n, n, BLOCK), 0.95);
        }
}

SV_TEST_MAIN(cmocka_unit_test(right_for_one), cmocka_unit_test(prompts_for_ever),
             cmocka_unit_test(short_answers), cmocka_unit_test(much_is_held))
