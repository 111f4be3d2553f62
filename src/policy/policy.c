/*
 * policy.c - the verify width of every decoding sequence in the next step.
 *
 * Called by the scheduler once a step. All sequences share one forward pass, so there is one choice
 * for the whole batch: rows are allocated in the order of their chance to be accepted, and the
 * numbers of rows, drafting sequences and masks are those with the most expected tokens per
 * expected time (docs/width-policy.md). Plain decoding is one of the candidates. Must not: allocate
 * after open, look at tokens, or change what is emitted: any widths give the same text.
 */
#include "policy/choice.h"

#include <math.h>
#include <string.h>

/* Ratios by which drafting must be better than plain decoding to begin and to continue: a change
 * between the two finds cold caches, above all where the host computes as well. */
static const double TAKE_UP = 1.01, TAKE_UP_AT_ONCE = 1.02, GO_ON = 1.0;
/* Assumed gain of pruning before it is known, and its upper bound. */
static const float FIRST_GAIN = 1.1f;
static const double MOST_GAIN = 1.3;
/* Drafting that looks worse by so many standard deviations of the estimate is unprofitable: the
 * loss expected from not drafting, should it be better after all, is less than what keeping the
 * context K/V costs. */
static const double DISTINCT = 0.7;
/* Cost of keeping the context K/V up to date, and the acceptable loss from a wrong choice, as
 * shares of the time. */
static const double KEEPING = 0.015;
/* Drafts that gain less than this share of their cost count towards disabling. */
static const double HOPELESS = 0.5;
/* Where drafting is unprofitable, one choice serves so many steps, and the cost table learns from
 * one of them: with a small model either takes one percent of a step. Not within COMPARED steps of
 * a trial, which is compared with the plain steps around it. */
enum { CHOICES_EVERY = 8, COMPARED = 16 };

int sv_policy_open(struct sv_policy **out, int32_t n_slots, int32_t block, bool drafts_on_device,
                   struct sv_err *err)
{
    *out = NULL;
    SV_REQUIRE(block >= 2 && block <= SV_MAX_BLOCK && n_slots >= 1);
    struct sv_policy *p = sv_calloc(1, sizeof *p);
    if (!p)
        return sv_fail(err, SV_ENOMEM, -1, "width policy");
    sv_arena_init(&p->arena);
    p->block = p->cost.block = block;
    p->n_slots = n_slots;
    p->drafts_on_device = drafts_on_device;
    sv_policy_forget(p);
    sv_cost_unlearn(&p->cost);
    p->seq = sv_arena_alloc(&p->arena, (size_t)n_slots * sizeof *p->seq);
    p->rank = sv_arena_alloc(&p->arena, (size_t)n_slots * sizeof *p->rank);
    p->searched = sv_arena_alloc(&p->arena, sizeof *p->searched);
    p->alive = sv_arena_alloc(&p->arena, (size_t)n_slots * (size_t)block * sizeof *p->alive);
    if (!p->seq || !p->rank || !p->alive || !p->searched) {
        sv_policy_close(p);
        return sv_fail(err, SV_ENOMEM, -1, "width policy of %d sequences", n_slots);
    }
    *p->searched = (struct sv_searched){.n = 0};
    *out = p;
    return SV_OK;
}

void sv_policy_close(struct sv_policy *p)
{
    if (!p)
        return;
    sv_arena_fini(&p->arena);
    sv_free(p);
}

void sv_policy_forget(struct sv_policy *p)
{
    memset(p->kept, 0, sizeof p->kept);
    memset(p->tried, 0, sizeof p->tried);
    memset(p->mode_kept, 0, sizeof p->mode_kept);
    memset(p->mode_expected, 0, sizeof p->mode_expected);
    p->apart_xy = p->apart_xx = 0;
    memset(&p->trial, 0, sizeof p->trial);
    memset(&p->confidence, 0, sizeof p->confidence);
    p->confidence.gain = FIRST_GAIN;
    for (int32_t i = 0; i < SV_OCTAVES; i++)
        p->trial.budget_scale[i] = 1;
    if (p->searched)
        p->searched->n = 0;
    sv_chance_update(p);
}

const char *sv_reason_name(enum sv_reason reason)
{
    static const char *const names[SV_REASONS] = {"plain", "draft",     "pruned",  "sat_out",
                                                  "trial", "requested", "no_room", "disabled"};
    return names[reason];
}

/* ---------------------------------------------------------------- the choice */

void sv_policy_begin(struct sv_policy *p, int32_t n_prompt_rows, bool sampled)
{
    p->n = 0;
    p->prunes_now = p->confidence_now = false;
    p->load = (struct sv_load){.n_prompt_rows = n_prompt_rows, .sampled = sampled};
}

void sv_policy_add(struct sv_policy *p, struct sv_policy_seq seq)
{
    SV_REQUIRE(p->n < p->n_slots && seq.block <= p->block);
    seq.seg_us = (float)sv_cost_context(&p->cost, p->cost.seg_us, seq.context);
    seq.row_us = (float)sv_cost_context(&p->cost, p->cost.row_us, seq.context);
    seq.draft_us = (float)sv_cost_context(&p->cost, p->cost.draft_us, seq.context);
    seq.draft_row_us = (float)sv_cost_context(&p->cost, p->cost.draft_row_us, seq.context);
    seq.width = 1;
    seq.draft_rows = seq.n_drafts = 0;
    seq.probe = false;
    if ((seq.record->disabled || seq.record->draft_kv_missing) && !seq.fixed)
        seq.cap = 1;
    p->seq[p->n++] = seq;
}

/* ---------------------------------------------------------------- one step */

/* For tests: the text must not depend on widths. */
static void choose_randomly(struct sv_policy *p)
{
    static const double RICH = 1e9; /* us: pays for any look */
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        uint32_t most = (uint32_t)(s->cap > 1 ? s->cap : 1);
        int mode = (int)sv_rng_below(p->random, SV_DRAFT_MODES);
        sv_choice_set_width(p, s, 1 + (int32_t)sv_rng_below(p->random, most), mode);
        s->record->disabled |= s->width == 1 && !sv_rng_below(p->random, 4);
    }
    p->prunes_now = p->prunes && sv_rng_below(p->random, p->ahead ? 2 : 8);
    if (sv_rng_below(p->random, 2)) {
        p->trial.look_us = RICH;
        sv_trial_other_masks(p, RICH);
    }
    p->confidence_now |= p->prunes && (p->prunes_now || p->confidence_free);
}

/* Starts with one row a sequence and the fixed widths. Returns the expected tokens of these. */
static double start(struct sv_policy *p)
{
    double tokens = 0;
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        p->load.n_segs++;
        p->load.n_rows++;
        p->load.seg_us += s->seg_us;
        p->load.row_us += s->row_us;
        tokens += 1;
        if (s->fixed < 2 || s->cap < 2)
            continue;
        float alive[SV_MAX_BLOCK], chance[SV_MAX_BLOCK];
        sv_choice_set_width(p, s, s->fixed < s->cap ? s->fixed : s->cap, SV_DRAFT_FULL);
        sv_chance_fill(p, s->record, alive);
        tokens += sv_chance_in_mode(p, s->fixed < p->block, alive, s->width - 1, chance);
    }
    return tokens;
}

static bool hopeless(const struct sv_candidate *plain, const struct sv_candidate *best)
{
    double gain_us = (best->tokens - plain->tokens) / plain->score;
    return !best->k || gain_us < HOPELESS * (best->us - plain->us);
}

/* A sequence that drafts also needs the context K/V of its prompt, which plain steps do not make:
 * it is charged per token. */
static struct sv_candidate with_prompts(const struct sv_policy *p, const struct sv_candidate *best)
{
    struct sv_candidate c = *best;
    if (!c.k)
        return c;
    c.us += p->prompt_us * c.tokens * c.k / p->n;
    c.score = c.tokens / c.us;
    return c;
}

/* Every sequence of the step has a reason for its width. */
static void count_reasons(struct sv_policy *p, bool drafts, bool other, bool beside_prompt)
{
    memset(p->reason_now, 0, sizeof p->reason_now);
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        enum sv_reason reason = drafts ? SV_REASON_DRAFT : SV_REASON_PLAIN;
        if (s->fixed)
            reason = SV_REASON_REQUESTED;
        else if (s->record->disabled || s->record->draft_kv_missing)
            reason = SV_REASON_DISABLED;
        else if (s->cap < 2)
            reason = SV_REASON_NO_ROOM;
        else if (other || s->probe)
            reason = SV_REASON_TRIAL;
        else if (reason == SV_REASON_DRAFT && s->width < 2)
            reason = SV_REASON_SAT_OUT;
        else if (reason == SV_REASON_DRAFT && p->prunes_now)
            reason = SV_REASON_PRUNED;
        p->reason_now[reason]++;
        p->n_beside_prompt += beside_prompt;
    }
    for (int32_t i = 0; i < SV_REASONS; i++)
        p->n_reason[i] += p->reason_now[i];
}

/* n equal requests, of which k have w rows. */
static struct sv_load load_of(const struct sv_policy *p, int32_t n, int32_t k, int32_t w)
{
    struct sv_load l = {.n_segs = n, .n_rows = n + k * (w - 1), .sampled = p->load.sampled};
    if (p->drafts_on_device && w > 1) {
        l.n_draft_segs = k;
        l.n_draft_rows = k * w;
        l.n_draft_out = k * (w - 1);
    }
    return l;
}

bool sv_policy_about(int32_t n, int32_t m)
{
    const int32_t apart = n > m ? n - m : m - n;
    return 8 * apart <= n;
}

int32_t sv_policy_octave(int32_t n)
{
    int32_t i = 0;
    while (n > 1 && i < SV_OCTAVES - 1) {
        n /= 2;
        i++;
    }
    return i;
}

bool sv_policy_unprofitable(const struct sv_policy *p, int32_t n)
{
    enum { LONG = 64 };
    return p->n_unprofitable[sv_policy_octave(n)] >= LONG;
}

/* Adds what requests that cannot draft now lose by that. */
static void count_missed(struct sv_policy *p)
{
    enum { EVERY = 16 };
    if (p->n_steps % EVERY || !sv_policy_would_draft(p, p->n))
        return;
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        if (!s->fixed && (s->record->disabled || s->record->draft_kv_missing))
            s->record->missed_us += EVERY * sv_policy_gain_us(p, p->n, s->record) / p->n;
    }
}

void sv_policy_restored(struct sv_policy *p, struct sv_record *r)
{
    r->disabled = r->draft_kv_missing = false;
    r->missed_us = 0;
    r->n_choices = 0;
    r->n_restored++;
    p->n_restored++;
}

static void settle(struct sv_policy *p, const struct sv_candidate *plain,
                   const struct sv_candidate *best, bool beside_prompt)
{
    enum { LOOK = 16 };
    double margin = p->trial.drafted ? GO_ON : p->ahead ? TAKE_UP : TAKE_UP_AT_ONCE;
    const struct sv_candidate whole = with_prompts(p, best);
    const bool drafting = best->k && whole.score > margin * plain->score;
    const struct sv_candidate *used = drafting ? best : plain;
    const struct sv_alternative opposite =
        sv_trial_assess(p, drafting ? &whole : plain, drafting ? plain : &whole);
    p->trial.n_left = drafting == p->trial.drafted ? p->trial.n_left : 0;
    p->trial.drafted = drafting;
    int32_t *n_unprofitable = &p->n_unprofitable[sv_policy_octave(p->n)];
    /* Few sequences may be able to draft by now; what counts is the gain if all could. */
    if (*n_unprofitable && p->n_steps % LOOK == 0 &&
        sv_policy_gain_us(p, p->n, NULL) > KEEPING * plain->us)
        *n_unprofitable = 0;
    bool unprofitable = !drafting && (opposite.distance >= DISTINCT || opposite.regret < KEEPING);
    *n_unprofitable = unprofitable ? *n_unprofitable + (*n_unprofitable < INT32_MAX) : 0;
    const struct sv_candidate *trial = sv_trial_choose(
        p, used, &opposite, drafting ? sv_choice_other_size(p, plain, used) : NULL, beside_prompt);
    const struct sv_candidate *run = trial ? trial : used;
    sv_choice_apply(p, run);
    p->prunes_now = run->k && run->width > 1;
    p->promised = p->prunes_now ? run->tokens - plain->tokens : 0;
    p->load.draft_us += p->prunes_now ? (float)sv_curve_at(&p->cost.trip, p->load.n_draft_out) : 0;
    p->rate = used->score;
    p->n_plain += !run->k;
    if (drafting && !beside_prompt)
        sv_trial_profitable(p);
    else if (hopeless(plain, best))
        sv_trial_disable(p);
    if (!trial)
        sv_trial_probe(p, used, beside_prompt);
    sv_trial_other_masks(p, used->us);
    p->confidence_now |= p->prunes && (p->prunes_now || p->confidence_free);
    p->expected_us += used->us;
    p->expected_plain_us += used->tokens / plain->score;
    count_reasons(p, run->k > 0, trial != NULL, beside_prompt);
    p->backoff = sv_policy_unprofitable(p, p->n) && !p->ahead && !p->load.n_draft_segs &&
                 !p->trial.n_left && p->trial.n_since >= COMPARED;
    p->backoff_n = p->n;
    p->n_backed_off = 0;
}

bool sv_policy_backs_off(struct sv_policy *p, int32_t n, bool beside_prompt)
{
    if (!p->backoff || p->random || (p->n_steps + 1) % CHOICES_EVERY == 0 || !n ||
        !sv_policy_about(n, p->backoff_n))
        return false;
    p->n_steps++;
    p->n_backed_off++;
    p->n_plain++;
    p->promised = 0;
    p->n = 0;
    p->prunes_now = p->confidence_now = false;
    p->load = (struct sv_load){.n_segs = 0}; /* the cost table learns nothing from it */
    p->n_beside_prompt += beside_prompt ? n : 0;
    for (int32_t i = SV_REASONS - 1; i >= 0; i--) { /* as before; new sequences count as plain */
        const int32_t k = i && p->reason_now[i] < n ? p->reason_now[i] : n;
        p->n_reason[i] += k;
        n -= k;
    }
    return true;
}

void sv_policy_choose(struct sv_policy *p)
{
    p->n_steps++;
    if (p->random) {
        start(p);
        choose_randomly(p);
        return;
    }
    sv_chance_update(p);
    double tokens = start(p);
    if (!p->n)
        return;
    /* Beside the rows of a prompt a further row looks cheap, but it delays the prompt too: the
     * choice is that of the step without the prompt. */
    int32_t n_prompt_rows = p->load.n_prompt_rows;
    p->load.n_prompt_rows = 0;
    struct sv_candidate plain = {.tokens = tokens, .us = sv_cost_us(&p->cost, &p->load)};
    if (plain.us > 0) { /* else nothing was measured */
        plain.score = plain.tokens / plain.us;
        const struct sv_candidate best = sv_choice_search(p, &plain);
        settle(p, &plain, &best, n_prompt_rows > 0);
    }
    p->load.n_prompt_rows = n_prompt_rows;
    count_missed(p);
}

double sv_policy_gain_us(const struct sv_policy *p, int32_t n, struct sv_record *record)
{
    struct sv_load l = load_of(p, n, n, 1);
    double plain = sv_cost_us(&p->cost, &l), tokens = 1, gain = 0;
    double margin =
        TAKE_UP / (p->prunes ? fmin(fmax((double)p->confidence.gain, 1), MOST_GAIN) : 1);
    float alive[SV_MAX_BLOCK], chance[SV_MAX_BLOCK];
    sv_chance_fill(p, record, alive);
    sv_chance_in_mode(p, SV_DRAFT_SHORT, alive, p->block - 1, chance);
    for (int32_t w = 2; w <= p->block && plain > 0; w++) {
        l = load_of(p, n, n, w);
        tokens += (double)chance[w - 1];
        gain = fmax(gain, plain - margin * sv_cost_us(&p->cost, &l) / tokens);
    }
    return gain;
}

bool sv_policy_would_draft(const struct sv_policy *p, int32_t n)
{
    return sv_policy_gain_us(p, n, NULL) > 0;
}

double sv_policy_restore_us(const struct sv_policy *p, int32_t n_rows, int32_t context)
{
    struct sv_load l = {.n_prompt_rows = n_rows};
    double far = sv_cost_context(&p->cost, p->cost.row_us, context - n_rows / 2);
    return (double)p->cost.speed[0] * (sv_cost_us(&p->cost, &l) + n_rows * far);
}
