/*
 * test_chance.c - the counts of accepted drafts after a verify step (chance.c), number by number:
 * observed, pruned and fading ones, and how a successful probe is followed by more.
 */
#include "testing.h"

#include "engine/run.h"
#include "policy/choice.h"

#include <math.h>

enum { BLOCK = 16, KEPT = 100, TRIED = 200, FOLLOW_UPS = 8 };
static const float ALL = 256, PROBE = 24, OWN = 64;

static void near(double is, double should)
{
    if (!(fabs(is - should) <= 1e-5 * fabs(should) + 1e-6))
        fail_msg("%.9g is not %.9g", is, should);
}

/* Every draft was tried 200 times and kept 100 times. */
static struct sv_policy *open_even(void)
{
    struct sv_policy *p;
    struct sv_err err = {0};
    assert_int_equal(sv_policy_open(&p, 1, BLOCK, true, &err), SV_OK);
    run_set_costs(p);
    for (int32_t j = 1; j < BLOCK; j++) {
        p->kept[j] = KEPT;
        p->tried[j] = TRIED;
    }
    sv_policy_begin(p, 0, false);
    sv_policy_choose(p); /* brings hazards up to date */
    /* a trace of what is believed before anything was seen stays */
    for (int32_t j = 1; j < BLOCK; j++) {
        assert_true(p->hazard[j] > 0.49f && p->hazard[j] < 0.51f);
        near(p->hazard[j], (KEPT + 2 * (j > 1 ? p->hazard[j - 1] : 0.75)) / (TRIED + 2));
    }
    return p;
}

static void seen(const struct sv_policy *p, int32_t j, double kept, double weight, double window)
{
    near(p->kept[j], KEPT + weight * (kept - KEPT / window));
    near(p->tried[j], TRIED + weight * (1 - TRIED / window));
}

static void untouched(const struct sv_policy *p, int32_t j)
{
    seen(p, j, 0, 0, 1);
}

static void stale(const struct sv_policy *p, int32_t j)
{
    near(p->kept[j], KEPT - KEPT / (2 * ALL));
    near(p->tried[j], TRIED - TRIED / (2 * ALL));
}

/* Kept drafts, the one that was not, and nothing of those behind it; what the width could not show
 * goes stale. */
static void plain_counts(void **state)
{
    (void)state;
    enum { WIDTH = 6 };
    for (int32_t n_emitted = 1; n_emitted <= WIDTH; n_emitted++) {
        struct sv_policy *p = open_even();
        struct sv_record r = {.n_verified = 3};
        const float hazard = p->hazard[1], factor = p->mode_factor[SV_DRAFT_FULL];
        sv_policy_verified(
            p, &r,
            &(struct sv_verified){.width = WIDTH, .draft_rows = BLOCK, .n_emitted = n_emitted});
        for (int32_t j = 1; j < BLOCK; j++)
            if (j < WIDTH && j <= n_emitted)
                seen(p, j, j < n_emitted, 1, ALL);
            else if (j < WIDTH)
                untouched(p, j);
            else
                stale(p, j);
        assert_int_equal(r.n_verified, 4);
        assert_int_equal(r.follow_ups, 0);
        near(r.kept[1], n_emitted > 1);
        near(r.expected[1], hazard * factor);
        near(r.expected[WIDTH], 0);
        near(p->mode_expected[SV_DRAFT_SHORT], 0);
        assert_true(p->mode_expected[SV_DRAFT_FULL] > 0);
        sv_policy_verified(
            p, &r,
            &(struct sv_verified){.width = WIDTH, .draft_rows = WIDTH, .n_emitted = n_emitted});
        assert_true(p->mode_expected[SV_DRAFT_SHORT] >
                    0); /* fewer masks than the block: the other mode's */
        near(r.kept[1], n_emitted > 1 ? 2 - 1 / OWN : 0);
        /* Drafts that no pass on the device made have no masks: as good as they ever are. */
        const float full = p->mode_expected[SV_DRAFT_FULL],
                    short_ones = p->mode_expected[SV_DRAFT_SHORT];
        sv_policy_verified(p, &r, &(struct sv_verified){.width = WIDTH, .n_emitted = n_emitted});
        assert_true(p->mode_expected[SV_DRAFT_FULL] > full &&
                    p->mode_expected[SV_DRAFT_SHORT] == short_ones);
        sv_policy_close(p);
    }
}

/* A probe counts for more, and says nothing of what lies beyond it. */
static void probe_counts(void **state)
{
    (void)state;
    struct sv_policy *p = open_even();
    struct sv_record r = {0};
    sv_policy_verified(
        p, &r, &(struct sv_verified){.width = 4, .draft_rows = 4, .n_emitted = 2, .probe = true});
    seen(p, 1, 1, 1, PROBE);
    seen(p, 2, 0, 1, PROBE);
    for (int32_t j = 3; j < BLOCK; j++)
        untouched(p, j);
    sv_policy_close(p);
}

/* Drafts that were cut off count by their chance, each by the chance that those before it were
 * kept; counts of positions that were not drafted fade. */
static void cut_counts(void **state)
{
    (void)state;
    enum { WIDTH = 4, DRAFTS = 7 };
    const float confidence[DRAFTS] = {0.9f, 0.8f, 0.7f, 0.6f, 0.5f, 0.4f, 0.3f};
    for (int32_t n_emitted = 1; n_emitted <= WIDTH; n_emitted++) {
        struct sv_policy *p = open_even();
        struct sv_record r = {0};
        const struct sv_verified v = {.width = WIDTH,
                                      .draft_rows = BLOCK,
                                      .n_emitted = n_emitted,
                                      .confidence = confidence,
                                      .n_drafts = DRAFTS};
        sv_policy_verified(p, &r, &v);
        double weight = n_emitted == WIDTH;
        for (int32_t j = WIDTH; j <= DRAFTS; j++) {
            near(p->tried[j], TRIED + weight * (1 - TRIED / ALL));
            if (!(weight > 0)) {
                untouched(p, j);
                continue;
            }
            double chance = (p->kept[j] - KEPT) / weight + KEPT / ALL;
            assert_true(chance > 0.1 && chance < 0.9);
            weight *= chance;
        }
        for (int32_t j = DRAFTS + 1; j < BLOCK; j++)
            stale(p, j);
        sv_policy_close(p);
    }
}

/* Half of the drafts kept: a probe of width 4 is thought to bring 1.9 tokens, so 4 are better than
 * expected and 2 are not. */
static void follow_ups(void **state)
{
    (void)state;
    struct sv_policy *p = open_even();
    struct sv_record r = {0};
    struct sv_verified good = {.width = 4, .draft_rows = 4, .n_emitted = 4, .probe = true},
                       bad = good;
    bad.n_emitted = 2;
    sv_policy_verified(p, &r, &good);
    assert_int_equal(r.follow_ups, FOLLOW_UPS);
    const struct sv_verified no_probe = {.width = 4, .draft_rows = 4, .n_emitted = 1};
    sv_policy_verified(p, &r, &no_probe);
    assert_int_equal(r.follow_ups, FOLLOW_UPS); /* only probes count */
    for (int32_t left = FOLLOW_UPS - 1; left >= 0; left--) {
        sv_policy_verified(p, &r, &good);
        assert_int_equal(r.follow_ups, left);
    }
    sv_policy_verified(p, &r, &good);
    assert_int_equal(r.follow_ups, FOLLOW_UPS);
    sv_policy_verified(p, &r, &bad);
    assert_int_equal(r.follow_ups, 0);
    /* The edge: 1.5 + 1.5 * expected tokens are not enough. */
    for (int32_t j = 1; j < BLOCK; j++)
        p->hazard[j] = j == 1; /* one draft, for sure: 3 tokens are as good as thought */
    good.n_emitted = 3;
    sv_policy_verified(p, &r, &good);
    assert_int_equal(r.follow_ups, 0);
    p->hazard[1] = 0.99f;
    sv_policy_verified(p, &r, &good);
    assert_int_equal(r.follow_ups, FOLLOW_UPS);
    sv_policy_close(p);
}

/* Where plain decoding is best, a request with follow-ups is probed step after step, also on
 * credit; others wait. */
static void bursts_probe_at_once(void **state)
{
    (void)state;
    for (int follow_ups = 0; follow_ups < 2; follow_ups++) {
        struct sv_policy *p = open_even();
        struct sv_record r = {.n_verified = 10, .follow_ups = follow_ups ? FOLLOW_UPS : 0};
        int n_probes = 0;
        for (int32_t j = 1; j < BLOCK; j++)
            p->kept[j] = 0;
        p->trial.n_steps = 1 << 20; /* nothing is saved up, and nothing is new */
        p->trial.probe_us = p->trial.other_us = 0;
        for (int k = 0; k < FOLLOW_UPS; k++) {
            sv_policy_begin(p, 0, false);
            sv_policy_add(p, (struct sv_policy_seq){
                                 .block = BLOCK, .cap = BLOCK, .context = 100, .record = &r});
            sv_policy_choose(p);
            n_probes += p->seq[0].probe;
            assert_int_equal(p->seq[0].probe, p->seq[0].width > 1);
        }
        if (follow_ups) /* until its credit is used up */
            assert_in_range(n_probes, 4, FOLLOW_UPS);
        else
            assert_int_equal(n_probes, 0);
        sv_policy_close(p);
    }
}

/* Two requests' first drafts are kept with these chances. Returns how much of what their records
 * say is believed in the end. */
static double believed(float chance, float other)
{
    struct sv_policy *p = open_even();
    struct sv_record r[2] = {{.n_verified = 0}, {.n_verified = 0}};
    struct sv_rng rng = {3};
    for (int k = 0; k < 4000; k++) {
        const bool kept = sv_rng_float(&rng) < (k % 2 ? other : chance);
        const struct sv_verified v = {
            .width = 2, .draft_rows = 2, .n_emitted = 1 + kept, .n_together = 2};
        sv_policy_verified(p, &r[k % 2], &v);
        sv_chance_update(p);
    }
    const double differ = (double)sv_chance_differ(p);
    sv_policy_close(p);
    return differ;
}

/* A record is believed as far as it is found again in the next drafts. */
static void records_foretell(void **state)
{
    (void)state;
    assert_true(believed(0.8f, 0.2f) > 0.8);
    assert_true(believed(0.5f, 0.5f) < 0.3);
}

static void sane(const struct sv_policy *p, struct sv_record *r)
{
    float alive[BLOCK];
    assert_true(isfinite(p->apart_xy) && isfinite(p->apart_xx));
    sv_chance_fill(p, r, alive);
    for (int mode = 0; mode < SV_DRAFT_MODES; mode++) {
        float chance[BLOCK] = {1};
        sv_chance_in_mode(p, mode, alive, BLOCK - 1, chance);
        for (int32_t j = 1; j < BLOCK; j++)
            assert_true(chance[j] >= 0 && chance[j] <= chance[j - 1]);
    }
    for (int32_t j = 1; j < BLOCK; j++) {
        const float x[] = {p->kept[j], p->tried[j], p->hazard[j], r->kept[j], r->expected[j]};
        for (size_t k = 0; k < sizeof x / sizeof x[0]; k++)
            assert_true(isfinite(x[k]) && x[k] >= 0);
        assert_true(p->hazard[j] > 1e-7f && p->hazard[j] <= 1);
    }
}

/* For very long, many requests fail at one draft, then at the one before it, and so on down to the
 * first; then all are kept. */
static void every_draft_fails_once(void **state)
{
    (void)state;
    struct sv_policy *p = open_even();
    struct sv_record r = {0};
    for (int32_t fails = BLOCK - 1; fails >= 0; fails--)
        for (int k = 0; k < 100000; k++) {
            const struct sv_verified v = {.width = BLOCK,
                                          .draft_rows = BLOCK,
                                          .n_emitted = fails ? fails : BLOCK,
                                          .n_together = 64};
            struct sv_record fresh = {0};
            sv_policy_verified(p, k % 2 ? &r : &fresh, &v);
            if (k % 4096 == 0) {
                sv_chance_update(p);
                sane(p, &fresh);
                sane(p, &r);
            }
        }
    assert_true(p->hazard[1] > 0.5f);
    sv_policy_close(p);
}

/* What is never seen again fades away, and does not stay as a number too small for fast
 * arithmetic. */
static void what_fades_is_gone(void **state)
{
    (void)state;
    struct sv_policy *p = open_even();
    struct sv_record r = {0};
    float confidence[BLOCK - 1];
    const struct sv_verified narrow = {.width = 2, .draft_rows = 2, .n_emitted = 2};
    for (int32_t j = 0; j < BLOCK - 1; j++)
        confidence[j] = 0.05f;
    sv_policy_drafted(p, confidence, BLOCK - 1);
    for (int32_t j = 0; j < BLOCK - 1; j++)
        confidence[j] = 0.95f;
    for (int k = 0; k < 100000; k++) {
        sv_policy_verified(p, &r, &narrow);
        if (k % 8 == 0)
            sv_policy_drafted(p, confidence, BLOCK - 1);
    }
    for (int32_t j = 2; j < BLOCK; j++) {
        assert_true(fpclassify(p->kept[j]) == FP_ZERO && fpclassify(p->tried[j]) == FP_ZERO);
        for (int b = 0; b < SV_CONFIDENCE_EDGES; b++) {
            assert_int_not_equal(fpclassify(p->confidence.spread[j][b]), FP_SUBNORMAL);
            assert_int_not_equal(fpclassify(p->confidence.spread_sum[j][b]), FP_SUBNORMAL);
        }
    }
    sv_policy_close(p);
}

SV_TEST_MAIN(cmocka_unit_test(every_draft_fails_once), cmocka_unit_test(what_fades_is_gone),
             cmocka_unit_test(records_foretell), cmocka_unit_test(plain_counts),
             cmocka_unit_test(probe_counts), cmocka_unit_test(cut_counts),
             cmocka_unit_test(follow_ups), cmocka_unit_test(bursts_probe_at_once))
