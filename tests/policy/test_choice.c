/*
 * test_choice.c - single choices of the width policy, where what must come out is known: what
 * limits a width, and which reason is counted for it. Whole runs against every fixed width are
 * test_policy.c's.
 */
#include "testing.h"

#include "engine/run.h"
#include "policy/choice.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 16, SLOTS = 8 };

struct table {
    struct sv_policy *p;
    struct sv_record r[SLOTS];
    int64_t reason[SV_REASONS]; /* before the last step */
};

/* A machine on which drafting pays when drafts are kept; long believed to be kept with this
 * chance. */
static void set(struct table *t, float kept)
{
    struct sv_err err = {0};
    *t = (struct table){.p = NULL};
    assert_int_equal(sv_policy_open(&t->p, SLOTS, BLOCK, true, &err), SV_OK);
    run_set_costs(t->p);
    for (int32_t j = 1; j < BLOCK; j++) {
        t->p->tried[j] = 1000;
        t->p->kept[j] = 1000 * kept;
    }
    t->p->trial.n_steps = 1 << 20; /* not young: nothing is saved up for trials */
    for (int i = 0; i < SLOTS; i++)
        t->r[i].n_verified = 100;
}

/* One step of n sequences alike. */
static const struct sv_policy_seq *step(struct table *t, int32_t n, int32_t fixed, int32_t cap,
                                        int32_t n_prompt_rows)
{
    struct sv_policy *p = t->p;
    for (int i = 0; i < SV_REASONS; i++)
        t->reason[i] = p->n_reason[i];
    p->trial.probe_us = p->trial.other_us = -1e9;
    sv_policy_begin(p, n_prompt_rows, false);
    for (int i = 0; i < n; i++)
        sv_policy_add(
            p, (struct sv_policy_seq){
                   .fixed = fixed, .block = BLOCK, .cap = cap, .context = 50, .record = &t->r[i]});
    sv_policy_choose(p);
    return p->seq;
}

/* All n of the last step were counted under this reason, and none under another. */
static void counted(const struct table *t, enum sv_reason reason, int32_t n)
{
    for (int i = 0; i < SV_REASONS; i++)
        if (t->p->n_reason[i] - t->reason[i] != (i == (int)reason ? n : 0))
            fail_msg("%d of %s, wanted %d of %s", (int)(t->p->n_reason[i] - t->reason[i]),
                     sv_reason_name((enum sv_reason)i), n, sv_reason_name(reason));
}

static void octaves(void **state)
{
    (void)state;
    static const int32_t of[][2] = {{1, 0}, {2, 1},  {3, 1},   {4, 2},   {7, 2},
                                    {8, 3}, {64, 6}, {127, 6}, {128, 7}, {1000, 7}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        assert_int_equal(sv_policy_octave(of[i][0]), of[i][1]);
}

/* What was asked for, but never past the last token; and no wider than the block by choice
 * either. */
static void limits(void **state)
{
    (void)state;
    struct table t;
    set(&t, 0);
    assert_int_equal(step(&t, 2, 9, BLOCK, 0)->width, 9);
    counted(&t, SV_REASON_REQUESTED, 2);
    assert_int_equal(t.p->seq[1].draft_rows,
                     BLOCK); /* a width that was asked for drafts with all masks */
    assert_int_equal(t.p->seq[1].n_drafts, 8);
    assert_int_equal(t.p->load.n_rows, 18);
    assert_int_equal(t.p->load.n_draft_rows, 2 * BLOCK);
    assert_int_equal(t.p->load.n_draft_out, 16);
    /* nor is anything tried with it, however much has been saved up */
    for (int drafting = 0; drafting < 2; drafting++) {
        t.p->trial.probe_us = 1e9;
        sv_trial_probe(t.p, &(struct sv_candidate){.k = drafting, .tokens = 1, .us = 100}, false);
        assert_true(t.p->seq[0].width == 9 && t.p->seq[1].width == 9 && !t.p->n_probes);
    }
    assert_int_equal(step(&t, 2, 9, 3, 0)->width, 3);
    assert_int_equal(t.p->seq[0].n_drafts, 2);
    assert_int_equal(step(&t, 2, 9, 1, 0)->width, 1);
    assert_int_equal(t.p->seq[0].draft_rows, 0);
    assert_int_equal(step(&t, 2, 1, BLOCK, 0)->width, 1);
    counted(&t, SV_REASON_REQUESTED, 2);
    sv_policy_close(t.p);
    set(&t, 1);
    assert_int_equal(step(&t, 1, 0, BLOCK, 0)->width, BLOCK);
    assert_int_equal(step(&t, 1, 0, 5, 0)->width, 5);
    sv_policy_close(t.p);
}

static void reasons(void **state)
{
    (void)state;
    struct table t;
    set(&t, 1);
    assert_true(step(&t, 3, 0, BLOCK, 0)[2].width > 1);
    counted(&t, SV_REASON_DRAFT, 3);
    assert_int_equal(t.p->n_plain, 0);
    step(&t, 3, 0, 1, 0);
    counted(&t, SV_REASON_NO_ROOM, 3);
    for (int how = 0; how < 2; how++) {
        for (int i = 0; i < 3; i++)
            t.r[i].disabled = !(t.r[i].draft_kv_missing = how);
        assert_int_equal(step(&t, 3, 0, BLOCK, 0)[1].width, 1);
        counted(&t, SV_REASON_DISABLED, 3);
        assert_true(step(&t, 3, 4, BLOCK, 0)[1].width == 4); /* except a request's own width */
        counted(&t, SV_REASON_REQUESTED, 3);
    }
    sv_policy_close(t.p);
    set(&t, 0);
    assert_int_equal(step(&t, 3, 0, BLOCK, 0)->width, 1);
    counted(&t, SV_REASON_PLAIN, 3);
    assert_int_equal(t.p->n_plain, 1);
    assert_int_equal(t.p->n_beside_prompt, 0);
    step(&t, 3, 0, BLOCK, 40);
    counted(&t, SV_REASON_PLAIN, 3);
    assert_int_equal(t.p->n_beside_prompt, 3);
    assert_int_equal(t.p->load.n_prompt_rows, 40);
    sv_policy_close(t.p);
}

/* What a request gains by drafting: one without history gains what all do, one whose drafts are
 * never kept nothing. */
static void gains(void **state)
{
    (void)state;
    for (float kept = 0; kept < 1.01f; kept += 0.25f) {
        struct table t;
        struct sv_record fresh = {0}, never = {0};
        set(&t, kept);
        sv_policy_begin(t.p, 0, false);
        sv_policy_choose(t.p);
        for (int32_t j = 1; j < BLOCK; j++)
            never.expected[j] = 64;
        for (int32_t n = 1; n <= SLOTS; n++) {
            const double all = sv_policy_gain_us(t.p, n, NULL),
                         one = sv_policy_gain_us(t.p, n, &fresh);
            if (!(one >= 0.98 * all && one <= 1.02 * all + 0.01))
                fail_msg("%d sequences, kept %g: %g, and all gain %g", n, (double)kept, one, all);
            assert_true(sv_policy_gain_us(t.p, n, &never) <= 0.7 * all);
            assert_int_equal(sv_policy_would_draft(t.p, n), all > 0);
        }
        assert_int_equal(sv_policy_would_draft(t.p, 1), kept >= 0.5f);
        sv_policy_close(t.p);
    }
}

/* To compute rows again costs what a prompt's rows do, and the way back over the context: the mean
 * of it, at the pace of the moment. */
static void restoring_has_a_price(void **state)
{
    (void)state;
    struct table t;
    set(&t, 1);
    struct sv_cost *c = &t.p->cost;
    const double here = sv_policy_restore_us(t.p, 100, 1000);
    assert_true(here > 110 && here > sv_policy_restore_us(t.p, 50, 1000));
    /* context costs nothing on this machine */
    assert_true(here - sv_policy_restore_us(t.p, 100, 100) == 0);
    c->n_ctx = 2;
    c->ctx[0] = 0, c->ctx[1] = 1000;
    c->row_us[0] = 0, c->row_us[1] = 2;
    assert_float_equal(sv_policy_restore_us(t.p, 100, 1000), here + 100 * 1.9, 0.01);
    assert_float_equal(sv_policy_restore_us(t.p, 100, 100), here + 100 * 0.1, 0.01);
    struct sv_record r = {.disabled = true,
                          .draft_kv_missing = true,
                          .missed_us = 9,
                          .n_choices = 7,
                          .n_restored = 2};
    sv_policy_restored(t.p, &r);
    assert_true(!r.disabled && !r.draft_kv_missing && r.missed_us <= 0 && r.n_choices == 0 &&
                r.n_restored == 3);
    assert_int_equal(t.p->n_restored, 1);
    c->speed[0] = 3;
    assert_float_equal(sv_policy_restore_us(t.p, 100, 1000), 3 * (here + 100 * 1.9), 0.1);
    sv_policy_close(t.p);
}

static int32_t by_eight(int32_t n)
{
    return (n + 7) / 8 * 8;
}

/* Where counts are padded up, rows that the padding has paid for are used, though all sequences are
 * alike and fewer than all of them can have one row more. */
static void padding_is_used(void **state)
{
    (void)state;
    int n_uneven = 0;
    for (int32_t n = 2; n <= SLOTS; n++) {
        struct table t;
        set(&t, 0.8f);
        t.p->cost.padded = by_eight;
        const struct sv_policy_seq *s = step(&t, n, 0, BLOCK, 0);
        int32_t rows = 0;
        bool uneven = false;
        for (int32_t i = 0; i < n; i++) {
            rows += s[i].width;
            uneven |= s[i].width != s[0].width;
        }
        n_uneven += uneven;
        assert_int_equal(rows, t.p->load.n_rows);
        assert_true(rows > n);
        assert_int_equal(rows % 8, 0);
        sv_policy_close(t.p);
    }
    assert_true(n_uneven > 0);
}

/* What cuts promised and what they brought, of the last few thousand tokens. */
static void promises_are_compared(void **state)
{
    (void)state;
    struct table t;
    set(&t, 1);
    struct sv_confidence *k = &t.p->confidence;
    for (int i = 0; i < 10000; i++)
        sv_policy_brought(t.p, 10, 4);
    assert_float_equal(k->brought / k->promised, 0.4, 1e-3);
    assert_float_equal(k->promised, 4000, 20);
    for (int i = 0; i < 1000; i++)
        sv_policy_brought(t.p, 10, 10);
    assert_true(k->brought / k->promised > 0.9f);
    sv_policy_close(t.p);
}

/* A look at a whole block, to learn what cuts would bring, is taken when its time has been saved
 * up, and paid. */
static void looks_are_paid(void **state)
{
    (void)state;
    for (int rich = 0; rich < 2; rich++) {
        struct table t;
        set(&t, 0.6f);
        t.p->prunes = true;
        t.p->trial.look_us = rich ? 40 : 0.01;
        const struct sv_policy_seq *s = step(&t, 2, 0, BLOCK, 0);
        assert_false(t.p->prunes_now);
        assert_true(s[0].width > 1 && s[0].width < BLOCK);
        const bool looked = s[0].n_drafts == BLOCK - 1 || s[1].n_drafts == BLOCK - 1;
        assert_int_equal(looked, rich);
        assert_int_equal(t.p->confidence_now, rich);
        assert_int_equal(t.p->load.n_draft_out, s[0].n_drafts + s[1].n_drafts);
        assert_int_equal(t.p->load.n_draft_rows, s[0].draft_rows + s[1].draft_rows);
        assert_true(rich ? t.p->trial.look_us < 40 : t.p->trial.look_us > 0.01);
        sv_policy_close(t.p);
    }
}

static float confidence_of_bin(int bin) /* the middle: half steps of log odds from -4 on */
{
    return (float)(1 / (1 + exp(-(-4 + 0.5 * (bin + 0.5)))));
}

/* Between drafting and verifying: a row is kept while its chance, of what every us could bring
 * elsewhere, pays its time. */
static void cuts_keep_what_pays(void **state)
{
    (void)state;
    enum { BIN = 20 };
    const double chance = (double)BIN / SV_CONFIDENCE_BINS;
    float confidence[BLOCK];
    struct table t;
    set(&t, 1);
    for (int b = 0; b < SV_CONFIDENCE_BINS; b++) {
        t.p->confidence.tried[b] = 1e6f;
        t.p->confidence.kept[b] = 1e6f * (float)b / SV_CONFIDENCE_BINS;
    }
    for (int32_t j = 0; j < BLOCK; j++)
        confidence[j] = confidence_of_bin(BIN);
    for (double rate = 0.05; rate < 0.3; rate += 0.05) {
        struct sv_policy_seq *s = t.p->seq;
        step(&t, 1, 0, BLOCK, 0);
        sv_choice_set_width(t.p, s, BLOCK, SV_DRAFT_FULL);
        t.p->rate = rate;
        struct sv_load l = t.p->load;
        double best = -1e9, tokens = 0, alive = 1;
        int32_t width = 0;
        for (int32_t w = 1; w <= BLOCK; w++, tokens += alive *= chance) {
            l.n_rows = w;
            double worth = tokens - rate * sv_cost_us(&t.p->cost, &l);
            if (worth > best) {
                best = worth;
                width = w;
            }
        }
        sv_policy_prune(t.p, confidence);
        if (s->width != width)
            fail_msg("at %g tokens a us: width %d, not %d", rate, s->width, width);
        assert_int_equal(t.p->load.n_rows, width);
    }
    sv_policy_close(t.p);
}

/* Rows dropped before the cut: each sequence goes by its own drafts all the same. */
static void narrowed_before_the_cut(void **state)
{
    (void)state;
    float confidence[2 * (BLOCK - 1)];
    struct table t;
    set(&t, 1);
    for (int b = 0; b < SV_CONFIDENCE_BINS; b++) {
        t.p->confidence.tried[b] = 1e6f;
        t.p->confidence.kept[b] = 1e6f * (float)b / SV_CONFIDENCE_BINS;
    }
    for (int32_t j = 0; j < 2 * (BLOCK - 1); j++)
        confidence[j] = confidence_of_bin(j < BLOCK - 1 ? 22 : 2);
    step(&t, 2, 0, BLOCK, 0);
    for (int i = 0; i < 2; i++)
        sv_choice_set_width(t.p, &t.p->seq[i], BLOCK, SV_DRAFT_FULL);
    t.p->rate = 0.05;
    sv_policy_narrow(t.p, 0, 4);
    assert_int_equal(t.p->load.n_rows, 4 + BLOCK);
    sv_policy_prune(t.p, confidence);
    assert_int_equal(t.p->seq[0].width, 4); /* all that is left is worth it */
    assert_in_range(t.p->seq[1].width, 1, 3);
    assert_int_equal(t.p->load.n_rows, 4 + t.p->seq[1].width);
    sv_policy_close(t.p);
}

/* Drafts that a grammar forbids say something of the request, and nothing of the others. */
static void refused_drafts(void **state)
{
    (void)state;
    const struct sv_verified v = {.width = 1, .draft_rows = BLOCK, .n_emitted = 1, .refused = true};
    float kept[BLOCK], tried[BLOCK], alive[BLOCK];
    struct table t;
    set(&t, 0.9f);
    step(&t, 2, 0, BLOCK, 0);
    memcpy(kept, t.p->kept, sizeof kept);
    memcpy(tried, t.p->tried, sizeof tried);
    for (int i = 0; i < 100; i++)
        sv_policy_verified(t.p, &t.r[0], &v);
    assert_memory_equal(kept, t.p->kept, sizeof kept);
    assert_memory_equal(tried, t.p->tried, sizeof tried);
    sv_chance_fill(t.p, t.p->seq[0].record, alive);
    assert_true(alive[1] < 0.3f);
    sv_chance_fill(t.p, t.p->seq[1].record, alive);
    assert_true(alive[1] > 0.8f);
    sv_policy_close(t.p);
}

/* Unprofitable verify steps, and of how many new requests, until drafting has paid: then others
 * stop without a try of their own, but for one in sixteen. */
static void unprofitable_by_request(void **state)
{
    (void)state;
    enum { TRIED = 3, STEPS = 5 };
    const struct sv_verified v = {.width = 3, .draft_rows = BLOCK, .n_emitted = 1};
    for (int tried = TRIED - 1; tried <= TRIED; tried++) {
        struct table t;
        set(&t, 0);
        sv_policy_begin(t.p, 0, false);
        sv_policy_choose(t.p); /* nobody: brings chances up to date */
        for (int i = 0; i < SLOTS; i++) {
            t.r[i] = (struct sv_record){.n_verified = 0};
            sv_policy_add(t.p, (struct sv_policy_seq){
                                   .block = BLOCK, .cap = BLOCK, .context = 50, .record = &t.r[i]});
        }
        for (int i = 0; i < tried * STEPS + 2; i++)
            sv_policy_verified(t.p, &t.r[1 + i % tried], &v);
        assert_int_equal(t.p->trial.n_unprofitable_requests, tried);
        sv_trial_disable(t.p);
        for (int i = 0; i < SLOTS; i++) /* the first is the sample */
            assert_int_equal(t.r[i].disabled, i > 0 && tried == TRIED);
        sv_trial_profitable(t.p);
        assert_true(t.p->trial.n_unprofitable == 0 && t.p->trial.n_unprofitable_requests == 0);
        sv_policy_close(t.p);
    }
}

/* Drafting is disabled by the own record after long enough, but never while drafts are kept now and
 * then, since with fewer sequences at work they may pay. */
static void disabled_by_record(void **state)
{
    (void)state;
    static const struct {
        float kept;
        int32_t n_verified, n_choices, fixed;
        bool disabled;
    } of[] = {{0, 6, 48, 0, true},     {0, 5, 48, 0, false},   {0, 6, 46, 0, false},
              {0.5f, 6, 48, 0, false}, {0.2f, 6, 48, 0, true}, {0, 6, 48, 1, false}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        struct table t;
        set(&t, of[i].kept);
        t.r[0] = (struct sv_record){
            .n_verified = of[i].n_verified, .n_choices = of[i].n_choices, .sampled = true};
        sv_policy_begin(t.p, 0, false);
        sv_policy_choose(t.p); /* nobody: brings chances up to date */
        sv_policy_add(t.p, (struct sv_policy_seq){.fixed = of[i].fixed,
                                                  .block = BLOCK,
                                                  .cap = BLOCK,
                                                  .context = 50,
                                                  .record = &t.r[0]});
        sv_trial_disable(t.p);
        if (t.r[0].disabled != of[i].disabled)
            fail_msg("case %d: %s", (int)i, of[i].disabled ? "goes on" : "disabled");
        assert_int_equal(t.p->n_disabled, of[i].disabled);
        assert_int_equal(t.p->seq[0].cap, of[i].disabled ? 1 : BLOCK);
        sv_policy_close(t.p);
    }
}

/* A search result for many ranked sequences is used when fewer of them are left: slots beyond are
 * empty, or another sequence's, and are not changed. */
static void rivals_need_their_ranks(void **state)
{
    (void)state;
    struct table t;
    set(&t, 0.5f);
    step(&t, 4, 0, BLOCK, 0);
    struct sv_searched *s = t.p->searched;
    const struct sv_candidate plain = {.tokens = 4, .us = 100, .score = 0.04};
    assert_true(s->n_ranked == 4);
    s->other_size = (struct sv_candidate){.mode = SV_DRAFT_SHORT,
                                          .k = 4,
                                          .n_rows = 8,
                                          .tokens = 8,
                                          .base = 4,
                                          .load = {.n_segs = 4, .n_rows = 12}};
    assert_non_null(sv_choice_other_size(t.p, &plain, &plain));
    for (int i = 0; i < 4; i++)
        sv_choice_set_width(t.p, &t.p->seq[i], 1, SV_DRAFT_SHORT);
    s->n_ranked = 3;
    sv_choice_apply(t.p, &s->other_size);
    assert_int_equal(t.p->seq[t.p->rank[3].i].width, 1);
    assert_true(t.p->load.n_rows > 4);
    t.p->n = 5; /* another step's */
    assert_null(sv_choice_other_size(t.p, &plain, &plain));
    sv_policy_close(t.p);
}

/* Weeks of steps. */
static void nothing_wraps(void **state)
{
    (void)state;
    struct table t;
    set(&t, 0);
    struct sv_trial *trial = &t.p->trial;
    const struct sv_verified v = {.width = 3, .draft_rows = BLOCK, .n_emitted = 1};
    trial->n_since = INT32_MAX;
    trial->n_requests = INT32_MAX;
    t.p->searched->n_searches = INT32_MAX;
    t.p->cost.pace[0] = (struct sv_pace){.plain = true, .n_since = INT32_MAX, .noise = 0.01};
    t.p->cost.pace[0].cov[0][0] = 1;
    for (int i = 0; i < 3; i++) {
        step(&t, 2, 0, BLOCK, 0);
        sv_cost_learn(&t.p->cost, &t.p->load, 2 * sv_cost_us(&t.p->cost, &t.p->load));
        sv_policy_verified(t.p, &t.r[i], &v);
        assert_true(t.p->trial.n_since > 1000);
    }
    assert_true(t.p->cost.speed[0] > 1.5f); /* and it still learns */
    sv_policy_close(t.p);
}

SV_TEST_MAIN(cmocka_unit_test(rivals_need_their_ranks), cmocka_unit_test(nothing_wraps),
             cmocka_unit_test(octaves), cmocka_unit_test(limits), cmocka_unit_test(reasons),
             cmocka_unit_test(gains), cmocka_unit_test(restoring_has_a_price),
             cmocka_unit_test(padding_is_used), cmocka_unit_test(promises_are_compared),
             cmocka_unit_test(looks_are_paid), cmocka_unit_test(cuts_keep_what_pays),
             cmocka_unit_test(narrowed_before_the_cut), cmocka_unit_test(refused_drafts),
             cmocka_unit_test(unprofitable_by_request), cmocka_unit_test(disabled_by_record))
