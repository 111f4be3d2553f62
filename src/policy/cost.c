/*
 * cost.c - the cost of a step by rows on this machine: the measured table.
 *
 * Filled by engine/calibrate.c when an engine opens, corrected by learn.c, read by policy.c for
 * every step. Two arrangements are measured, because they bound all others: n segments of one row
 * (a plain step, so that "never slower than plain" rests on a measurement of plain), and rows in
 * whole blocks. In between, the cost of segments beyond their rows is interpolated by their number.
 * Pure arithmetic; must not allocate.
 */
#include "policy/cost.h"

#include <math.h>

void sv_curve_add(struct sv_curve *c, int32_t x, double us)
{
    int32_t at = 0;
    while (at < c->n && c->x[at] < x)
        at++;
    if (x <= 0 || us < 0 || c->n == SV_CURVE_POINTS || (at < c->n && c->x[at] == x))
        return;
    for (int32_t i = c->n++; i > at; i--) {
        c->x[i] = c->x[i - 1];
        c->seen_us[i] = c->seen_us[i - 1];
    }
    c->x[at] = x;
    c->seen_us[at] = (float)us;
    /* More work never takes less time: points that contradict this are averaged. */
    for (int32_t i = 0; i < c->n; i++) {
        double sum = (double)c->seen_us[i];
        int32_t from = i;
        while (from && (double)c->us[from - 1] > sum / (i - from + 1))
            sum += (double)c->us[--from];
        for (int32_t k = from; k <= i; k++)
            c->us[k] = (float)(sum / (i - from + 1));
    }
}

/* The segment [i, i + 1] of the curve that contains x (the last one also beyond the end). */
static int32_t piece_of(const struct sv_curve *c, double x)
{
    int32_t lo = 0, hi = c->n - 1;
    while (hi - lo > 1) {
        int32_t mid = (lo + hi) / 2;
        if ((double)c->x[mid] <= x)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

double sv_curve_at(const struct sv_curve *c, double x)
{
    if (!c->n || x <= 0)
        return 0;
    if (c->n == 1 || x <= (double)c->x[0])
        return (double)c->us[0];
    int32_t i = piece_of(c, x);
    double t = (x - (double)c->x[i]) / (double)(c->x[i + 1] - c->x[i]);
    double a = (double)c->us[i], b = (double)c->us[i + 1];
    /* beyond the measured points the slope of the upper half continues, at most the average slope
     */
    if (t > 1) {
        while (i && 2 * c->x[i] > c->x[c->n - 1])
            i--;
        double slope = fmin((b - (double)c->us[i]) / (double)(c->x[c->n - 1] - c->x[i]),
                            b / (double)c->x[c->n - 1]);
        return b + slope * (x - (double)c->x[c->n - 1]);
    }
    return a + (b - a) * t;
}

double sv_cost_context(const struct sv_cost *c, const float *us, int32_t context)
{
    if (c->n_ctx < 2 || context <= c->ctx[0])
        return 0;
    int32_t i = 0;
    while (i < c->n_ctx - 2 && context > c->ctx[i + 1])
        i++;
    double t = (double)(context - c->ctx[i]) / (double)(c->ctx[i + 1] - c->ctx[i]);
    double v = (double)us[i] + ((double)us[i + 1] - (double)us[i]) * t;
    return v > 0 ? v : 0;
}

/* The launched count: padded, except in steps with prompt rows. */
static double launched(const struct sv_cost *c, const struct sv_load *l, int32_t n)
{
    return c->padded && n && !l->n_prompt_rows ? c->padded(n) : n;
}

/* Interpolates between rows r in whole blocks (the curve, at x) and n segments of `few` rows each
 * (few_us) by the number of segments. */
static double between(const struct sv_cost *c, const struct sv_curve *curve, double x, double r,
                      double n, double few, double few_us)
{
    const double us = sv_curve_at(curve, x), blocks = r / (double)c->block,
                 least = few * n / (double)c->block;
    /* The tail of a single segment needs no correction: the curve measures it. */
    if (n < 2 || n <= least || blocks >= n)
        return us;
    return us + (few_us - sv_curve_at(curve, few * n)) * (n - blocks) / (n - least);
}

/* plain: the cost of one row each. */
static double target_us(const struct sv_cost *c, const struct sv_load *l, double plain)
{
    const double n = launched(c, l, l->n_segs), r = launched(c, l, l->n_rows);
    if (l->n_rows == l->n_segs && !l->n_prompt_rows)
        return plain;
    return between(c, &c->wide, r + l->n_prompt_rows, r, l->n_segs < 2 ? 1 : n, 1, plain);
}

static double draft_us(const struct sv_cost *c, const struct sv_load *l)
{
    const double n = c->thin.n && l->n_draft_segs > 1 ? launched(c, l, l->n_draft_segs) : 1,
                 r = launched(c, l, l->n_draft_rows);
    return between(c, &c->draft_rows, r, r, n, 2, sv_curve_at(&c->thin, n)) +
           sv_curve_at(&c->draft_out, l->n_draft_out - l->n_draft_segs);
}

int32_t sv_cost_level_rows(int32_t i)
{
    return (i % 2 ? 3 : 2) << i / 2;
}

struct sv_size sv_cost_size(int32_t n_rows)
{
    struct sv_size s = {.i = 0};
    while (s.i < SV_LEVELS - 2 && n_rows >= sv_cost_level_rows(s.i + 1))
        s.i++;
    const double from = sv_cost_level_rows(s.i), to = sv_cost_level_rows(s.i + 1);
    s.t = fmin(fmax((n_rows - from) / (to - from), 0), 1);
    return s;
}

bool sv_load_is_plain(const struct sv_load *l)
{
    return l->n_rows == l->n_segs && !l->n_draft_segs;
}

/* By the table alone: the step, and the same sequences without drafts. */
struct table_us {
    double all, plain;
};

static struct table_us table_us(const struct sv_cost *c, const struct sv_load *l)
{
    double plain = sv_curve_at(&c->plain, launched(c, l, l->n_segs)), us = target_us(c, l, plain);
    if (l->n_draft_segs)
        us += draft_us(c, l);
    return (struct table_us){.all = us + (double)(l->seg_us + l->row_us + l->draft_us),
                             .plain = plain + (double)l->seg_us +
                                      (double)l->row_us * l->n_segs / l->n_rows};
}

static double weight_of(struct table_us us)
{
    /* the share beyond a plain step from which a step counts fully as a drafting step */
    static const double WHOLE = 0.1;
    double share = 1 - us.plain / us.all;
    return share < 0 ? 0 : share < WHOLE ? share / WHOLE : 1;
}

/* Steps with prompt rows have no kind: their cost must not depend on it. */
static bool has_kind(const struct sv_load *l)
{
    return !l->n_prompt_rows && l->n_segs && !sv_load_is_plain(l);
}

double sv_cost_weight(const struct sv_cost *c, const struct sv_load *l)
{
    return has_kind(l) ? weight_of(table_us(c, l)) : 0;
}

/* Where a step takes hardly more than a plain one, its time is known well. If the level of drafting
 * steps applied to all of it, one draft among many sequences could look cheaper than none, and no
 * plain steps would be left to learn from. So drafts never cost less than a quarter of the table's
 * figure. */
static double level_of(const struct sv_cost *c, const struct sv_load *l, struct table_us us)
{
    static const double LEAST = 0.25;
    const float *level = c->level[l->sampled];
    const struct sv_size at = sv_cost_size(l->n_rows);
    double weight = weight_of(us);
    if (weight <= 0)
        return 1;
    double kind =
        1 + weight * ((double)level[at.i] * (1 - at.t) + (double)level[at.i + 1] * at.t - 1);
    double least = kind < 1 ? LEAST + (1 - LEAST) * us.plain / us.all : 0;
    return kind > least ? kind : least;
}

double sv_cost_us(const struct sv_cost *c, const struct sv_load *l)
{
    if (!l->n_segs)
        return sv_curve_at(&c->wide, l->n_prompt_rows);
    struct table_us us = table_us(c, l);
    return us.all * (double)c->speed[l->sampled] * (has_kind(l) ? level_of(c, l, us) : 1);
}
