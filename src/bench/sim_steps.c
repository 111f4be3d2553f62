/*
 * sim_steps.c - one line for every step of a simulated measurement: its time, its rows, and what
 * the width policy did in it besides its best choice.
 *
 * Called by sim.c behind every step. Where steps run ahead of the host, a line's time is that
 * of the step before: what the host waited for. Must not: take time that is counted, or decide
 * anything.
 */
#include "bench/sim.h"

static void columns(struct sv_buf *b)
{
    sv_buf_lit(b, "mode,sequences,profile,turn,step,us,tokens,rows,draft_rows,drafting,other_way,"
                  "other_size,probe,cut,expected_us\n");
}

static void note(struct sv_sim_steps *l, const struct sv_engine *e, int64_t now_us)
{
    const struct sv_policy *p = e->policy;
    l->last_us = now_us;
    l->n_tokens = e->stats.n_tokens;
    l->n_other = p ? p->n_other : 0;
    l->n_probes = p ? p->n_probes : 0;
}

void sv_sim_steps_begin(struct sv_sim_steps *l, const struct sv_engine *e)
{
    l->step = 0;
    note(l, e, sv_clock_us());
}

void sv_sim_steps_add(struct sv_sim_steps *l, const struct sv_engine *e, const char *mode,
                      const char *profile, int32_t turn)
{
    const struct sv_policy *p = e->sched.policy;
    const struct sv_plan *plan = &e->plan;
    const int64_t now = sv_clock_us();
    int32_t rows = 0, draft_rows = 0, drafting = 0;
    for (int32_t i = 0; i < plan->n_segs; i++) {
        rows += plan->seg[i].n_rows;
        draft_rows += plan->seg[i].n_draft_rows;
        drafting += plan->seg[i].n_draft_rows > 0;
    }
    const bool other = p && p->n_other > l->n_other;
    if (!l->text.len)
        columns(&l->text);
    sv_buf_printf(&l->text, "%s,%d,%s,%d,%d,%lld,%lld,%d,%d,%d,%d,%d,%d,%d,%.0f\n", mode,
                  plan->n_segs, profile, turn, l->step++, (long long)(now - l->last_us),
                  (long long)(e->stats.n_tokens - l->n_tokens), rows, draft_rows, drafting,
                  other && !p->trial.of_size, other && p->trial.of_size,
                  p && p->n_probes > l->n_probes, p && p->prunes_now,
                  p ? sv_cost_us(&p->cost, &p->load) : 0);
    note(l, e, now);
}
