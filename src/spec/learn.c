/*
 * learn.c - what real steps teach the cost table: how fast the machine is just now, and how
 * drafting steps compare with plain ones.
 *
 * Called for every step that was measured. The table's points were measured in the same minute, so
 * what steps may correct is kept to what a table can get wrong as a whole; a factor for every point
 * was tried: noise made single points look cheap, and the policy went there. Three numbers (struct
 * sv_pace) are followed by a Kalman filter: one changes all the time - whatever else the machine
 * does slows all steps alike - and two hardly ever. A step tells of the sum of its kind's, and the
 * covariances say whose share a surprise is: while one kind goes on it is the machine's, where
 * kinds take turns it is the comparison's, and later steps set right what a busy moment was
 * mistaken for. Pure arithmetic; must not allocate.
 */
#include "spec/spec.h"

#include <math.h>

enum { N = 1 + SV_LEVELS, SETTLING = 4, STEADY = 16 };

/* Before any step: how wrong a table may be, all of it and drafting against plain; how alike narrow
 * and wide steps are wrong. */
static const double SPEED_DOUBT = 0.2, KIND_DOUBT = 0.15, ALIKE = 0.95;
/* A step's own noise: at first, and bounds. */
static const double NOISE = 0.15, LEAST_NOISE = 0.01, MOST_NOISE = 0.3, NOISE_RATE = 0.02;
/* How the machine's pace wanders a step, as a share of the noise; and the comparison: a step, and
 * where the number of sequences doubles or halves, since the table is another part of itself there.
 */
static const double WANDERS = 0.1, KIND_WANDERS = 0.001, KIND_BY_COUNT = 0.01;
/* Of a step's noise, as of Student's distribution with so many degrees: far more is far off than a
 * normal one would have it. */
static const double TAILS = 6;
/* Nothing is this many times what the table says. */
static const double FARTHEST = 4;

void sv_cost_unlearn(struct sv_cost *c)
{
    for (int s = 0; s < 2; s++) {
        struct sv_pace *p = &c->pace[s];
        *p = (struct sv_pace){.noise = NOISE * NOISE};
        p->cov[0][0] = SPEED_DOUBT * SPEED_DOUBT;
        for (int i = 1; i < N; i++)
            for (int j = 1; j < N; j++)
                p->cov[i][j] = KIND_DOUBT * KIND_DOUBT * (i == j ? 1 : ALIKE);
        c->speed[s] = 1;
        for (int k = 0; k < SV_LEVELS; k++)
            c->level[s][k] = 1;
    }
}

double sv_cost_doubt(const struct sv_cost *c, const struct sv_load *l)
{
    const struct sv_pace *p = &c->pace[l->sampled];
    double wideness = sv_cost_wideness(c, l), weight = sv_cost_weight(c, l);
    const double h[N] = {0, 1 - wideness, wideness};
    double v = 0;
    for (int i = 1; i < N; i++)
        for (int j = 1; j < N; j++)
            v += p->cov[i][j] * h[i] * h[j];
    return weight * sqrt(fmax(v, 0));
}

/* Time passes: what was known is a little less so. Never less than before any step. */
static void forget(struct sv_pace *p, int32_t n_segs)
{
    double by = p->n_segs ? log2((double)n_segs / p->n_segs) * KIND_BY_COUNT : 0;
    double more = KIND_WANDERS * KIND_WANDERS + by * by;
    p->n_segs = n_segs;
    p->cov[0][0] += WANDERS * WANDERS * p->noise;
    if (p->cov[1][1] + more > KIND_DOUBT * KIND_DOUBT)
        return;
    for (int i = 1; i < N; i++)
        for (int j = 1; j < N; j++)
            p->cov[i][j] += more * (i == j ? 1 : ALIKE);
}

/* h: how much of each number a step of this kind shows. */
static void correct(struct sv_pace *p, const double h[N], double surprise)
{
    /* Something else disturbs a step now and then, and the first one after a change of kind would
     * be believed most: what is far off is noise for a part, until others say the same. */
    double ph[N], s = p->noise + surprise * surprise / TAILS;
    for (int i = 0; i < N; i++) {
        ph[i] = 0;
        for (int j = 0; j < N; j++)
            ph[i] += p->cov[i][j] * h[j];
    }
    for (int i = 0; i < N; i++)
        s += h[i] * ph[i];
    /* A step disturbed by something else is little evidence: beyond this all surprises are the
     * same. */
    double most = fmax(0.1, 2.5 * sqrt(s));
    surprise = fmin(fmax(surprise, -most), most);
    for (int i = 0; i < N; i++) {
        p->x[i] += ph[i] / s * surprise;
        p->x[i] = fmin(fmax(p->x[i], -log(FARTHEST)), log(FARTHEST));
        for (int j = 0; j < N; j++)
            p->cov[i][j] -= ph[i] * ph[j] / s;
    }
    if (p->n_since >= STEADY) {
        p->noise += fmax(NOISE_RATE, 1.0 / (5 + p->n_steady)) * (surprise * surprise - p->noise);
        p->noise = fmin(fmax(p->noise, LEAST_NOISE * LEAST_NOISE), MOST_NOISE * MOST_NOISE);
        p->n_steady += p->n_steady < 100;
    }
}

void sv_cost_learn(struct sv_cost *c, const struct sv_load *l, double us)
{
    if (l->n_prompt_rows || !l->n_segs || us <= 0)
        return;
    double expected = sv_cost_us(c, l);
    if (expected <= 0)
        return;
    struct sv_pace *p = &c->pace[l->sampled];
    bool plain = sv_load_is_plain(l);
    p->n_since = plain == p->plain ? p->n_since + 1 : 0;
    p->plain = plain;
    forget(p, l->n_segs);
    if (p->n_since < SETTLING)
        return; /* the first ones find the caches as the other kind left them */
    double t = sv_cost_wideness(c, l), weight = sv_cost_weight(c, l);
    const double h[N] = {1, weight * (1 - t), weight * t};
    correct(p, h, log(us / expected));
    c->speed[l->sampled] = (float)exp(p->x[0]);
    for (int k = 0; k < SV_LEVELS; k++)
        c->level[l->sampled][k] = (float)exp(p->x[1 + k]);
}
