/*
 * bench_losses.c - where drafting under the width policy gains and loses against plain decoding,
 * step by step.
 *
 * Called by bench_pair.c, with both ways in one engine. Plain decoding's steps say what a step of
 * so many sequences takes, and a prompt's row beside them; every step of the other way is held
 * against what its tokens and rows would have taken there. Must not: look at tokens, or take time
 * that only one way spends.
 */
#include "cli/cli.h"
#include "engine/engine.h"

#include <string.h>

/* What a step was. Plain ones by what becomes of the taps; the same with prompt rows. */
enum {
    NO_TAPS,
    HELD,
    OBSERVED,
    PROMPT_NO_TAPS,
    PROMPT_HELD,
    PROMPT_OBSERVED,
    PROBE,
    TRIAL,
    DRAFTS,
    KINDS
};
static const char *const kind_name[KINDS] = {
    "plain without taps",
    "plain with taps held",
    "plain with context K/V",
    "prompts without taps",
    "prompts with taps held",
    "prompts with context K/V",
    "probe",
    "trial",
    "drafts",
};
enum { OCTAVES = 13, MOST_SEQS = 4096, MOST_STEPS = 1 << 18 };

struct note {
    float us, plan_us,
        work_us; /* all of it; of that choosing and planning, and working off what was held */
    int32_t n_seqs, n_tokens, n_prompt_rows, n_held; /* rows whose taps were held back */
    uint8_t arm, kind;
};
struct sv_cli_losses {
    struct sv_engine *engine;
    int arm;
    int64_t last_us, plan_ns, work_ns, n_tokens, n_other;
    int32_t n;
    struct note note[MOST_STEPS];
    double plain_us[MOST_SEQS + 1]; /* a step of plain decoding, by sequences */
    double prompt_us[OCTAVES];      /* a prompt's row, by how many there are in a step */
};

/* ---------------------------------------------------------------- every step */

static int octave(int64_t n)
{
    int i = 0;
    for (; n > 1 && i < OCTAVES - 1; n /= 2)
        i++;
    return i;
}

static uint8_t step_kind(const struct sv_cli_losses *l, int32_t n_prompt_rows)
{
    const struct sv_engine *e = l->engine;
    const struct sv_plan *p = &e->plan;
    int taps = p->no_taps ? NO_TAPS : e->held.now ? HELD : OBSERVED;
    bool probe = false;
    for (int32_t i = 0; i < p->n_segs; i++)
        probe |= p->seg[i].probe;
    if (n_prompt_rows || !p->n_draft_segs)
        return (uint8_t)(taps + (n_prompt_rows ? PROMPT_NO_TAPS : 0));
    return probe ? PROBE : e->policy && e->policy->n_other > l->n_other ? TRIAL : DRAFTS;
}

/* What the clocks say since the step before. */
static struct note since(struct sv_cli_losses *l)
{
    const struct sv_engine *e = l->engine;
    const int64_t us = sv_clock_us(), plan_ns = e->phase_ns[SV_PHASE_PLAN];
    struct note t = {
        .us = (float)(us - l->last_us),
        .plan_us = (float)(plan_ns - l->plan_ns) / 1e3f,
        .work_us = (float)(e->held.work_ns - l->work_ns) / 1e3f,
        .n_tokens = (int32_t)(e->stats.n_tokens - l->n_tokens),
        .arm = (uint8_t)l->arm,
    };
    l->last_us = us;
    l->plan_ns = plan_ns;
    l->work_ns = e->held.work_ns;
    l->n_tokens = e->stats.n_tokens;
    return t;
}

static void on_step(void *user)
{
    struct sv_cli_losses *l = user;
    const struct sv_plan *p = &l->engine->plan;
    struct note t = since(l);
    for (int32_t i = 0; i < p->n_segs; i++) {
        const bool prompt = p->seg[i].kind == SV_SEG_PREFILL;
        t.n_prompt_rows += prompt ? p->seg[i].n_rows : 0;
        /* a prompt's first token is no drafter's work */
        t.n_tokens -= prompt && p->seg[i].n_logits;
        t.n_seqs += !prompt;
    }
    t.kind = step_kind(l, t.n_prompt_rows);
    t.n_held = l->engine->held.now ? l->engine->held.n_more : 0;
    l->n_other = l->engine->policy ? l->engine->policy->n_other : 0;
    if (l->n < MOST_STEPS && t.n_seqs <= MOST_SEQS)
        l->note[l->n++] = t;
}

int sv_cli_losses_open(struct sv_cli_losses **l, struct sv_engine *e, struct sv_err *err)
{
    *l = sv_calloc(1, sizeof **l);
    if (!*l)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    (*l)->engine = e;
    return SV_OK;
}

void sv_cli_losses_close(struct sv_cli_losses *l)
{
    if (l)
        sv_cli_losses_turn(l, -1);
    sv_free(l);
}

void sv_cli_losses_turn(struct sv_cli_losses *l, int arm)
{
    l->arm = arm;
    l->n_other = l->engine->policy ? l->engine->policy->n_other : 0;
    since(l);
    l->engine->on_step = arm < 0 ? NULL : on_step;
    l->engine->step_user = l;
}

/* ---------------------------------------------------------------- afterwards */

/* Plain decoding's step of n sequences; where none was seen, of about as many. */
static double plain_step(const struct sv_cli_losses *l, int32_t n)
{
    for (int32_t d = 0; n && d <= MOST_SEQS; d++) {
        if (n - d > 0 && l->plain_us[n - d] > 0)
            return l->plain_us[n - d];
        if (n + d <= MOST_SEQS && l->plain_us[n + d] > 0)
            return l->plain_us[n + d];
    }
    return 0;
}

static void learn_plain(struct sv_cli_losses *l)
{
    double rows[OCTAVES] = {0}, us[OCTAVES] = {0}, sum[MOST_SEQS + 1] = {0};
    int32_t n[MOST_SEQS + 1] = {0};
    for (int32_t i = 0; i < l->n; i++) {
        const struct note *t = &l->note[i];
        if (t->arm || t->n_prompt_rows)
            continue;
        sum[t->n_seqs] += (double)t->us;
        n[t->n_seqs]++;
    }
    for (int32_t k = 0; k <= MOST_SEQS; k++)
        l->plain_us[k] = n[k] ? sum[k] / n[k] : 0;
    for (int32_t i = 0; i < l->n; i++) {
        const struct note *t = &l->note[i];
        if (t->arm || !t->n_prompt_rows)
            continue;
        rows[octave(t->n_prompt_rows)] += t->n_prompt_rows;
        us[octave(t->n_prompt_rows)] += (double)t->us - plain_step(l, t->n_seqs);
    }
    for (int k = 0; k < OCTAVES; k++)
        l->prompt_us[k] = rows[k] > 0 ? us[k] / rows[k] : 0;
}

struct sum {
    double n, seqs, tokens, held, us, plan_us, work_us, plain_us;
};

static void add(struct sum *s, const struct sv_cli_losses *l, const struct note *t)
{
    s->n += 1;
    s->seqs += t->n_seqs;
    s->tokens += t->n_tokens;
    s->held += t->n_held;
    s->us += (double)t->us;
    s->plan_us += (double)t->plan_us;
    s->work_us += (double)t->work_us;
    s->plain_us += t->n_seqs ? t->n_tokens * plain_step(l, t->n_seqs) / t->n_seqs : 0;
    s->plain_us += t->n_prompt_rows * l->prompt_us[octave(t->n_prompt_rows)];
}

static void columns(struct sv_cli_table *t)
{
    static const char *const numbers[] = {"steps",     "% of time",  "tokens a sequence",
                                          "rows held", "us",         "as plain",
                                          "choose",    "worked off", "lost % of plain"};
    if (t->n_columns)
        return;
    sv_cli_table_column(t, "prompts", false);
    sv_cli_table_column(t, "concurrency", true);
    sv_cli_table_column(t, "sequences", false);
    sv_cli_table_column(t, "steps are", false);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sv_cli_table_column(t, numbers[i], true);
}

static void add_line(struct sv_cli_table *t, const char *const name[4], const struct sum *s,
                     const struct sum all[2])
{
    for (int i = 0; i < 4; i++)
        sv_cli_table_add(t, "%s", name[i]);
    sv_cli_table_add(t, "%.0f", s->n);
    sv_cli_table_add(t, "%.2f", 100 * s->us / (s == &all[0] ? all[0].us : all[1].us));
    sv_cli_table_add(t, "%.3f", s->seqs > 0 ? s->tokens / s->seqs : 0);
    sv_cli_table_add(t, "%.1f", s->held / s->n);
    sv_cli_table_add(t, "%.1f", s->us / s->n);
    sv_cli_table_add(t, "%.1f", s->plain_us / s->n);
    sv_cli_table_add(t, "%.2f", s->plan_us / s->n);
    sv_cli_table_add(t, "%.2f", s->work_us / s->n);
    sv_cli_table_add(t, "%.2f", 100 * (s->us - s->plain_us) / all[0].us);
}

void sv_cli_losses_report(struct sv_cli_losses *l, const char *prompts, int32_t concurrency,
                          struct sv_cli_table *table)
{
    struct sum sum[OCTAVES][KINDS] = {{{0}}}, all[2] = {{0}};
    char level[16], from_to[32];
    learn_plain(l);
    for (int32_t i = 0; i < l->n; i++) {
        const struct note *t = &l->note[i];
        add(&all[t->arm], l, t);
        if (t->arm)
            add(&sum[octave(t->n_seqs)][t->kind], l, t);
    }
    columns(table);
    snprintf(level, sizeof level, "%d", concurrency);
    for (int arm = 0; arm < 2 && all[arm].n > 0; arm++)
        add_line(
            table,
            (const char *const[4]){prompts, level, "all", arm ? "all of DFlash" : "all of plain"},
            &all[arm], all);
    for (int o = OCTAVES - 1; o >= 0; o--)
        for (int k = 0; k < KINDS && all[0].n > 0; k++) {
            snprintf(from_to, sizeof from_to, "%d to %d", o ? 1 << o : 0, (2 << o) - 1);
            if (sum[o][k].n > 0)
                add_line(table, (const char *const[4]){prompts, level, from_to, kind_name[k]},
                         &sum[o][k], all);
        }
    l->n = 0;
}
