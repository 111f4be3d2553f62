/*
 * learn.c - what real steps teach the cost table: how fast the machine is just now, and how
 * drafting steps compare with plain ones.
 *
 * Called for every step that was measured. A Kalman filter follows a few numbers (struct sv_pace):
 * the pace of all steps, which whatever else the machine does changes all the time, and how
 * drafting steps of so many rows compare with plain ones, which hardly changes. A step tells of the
 * sum of its kind's, and the covariances say whose share a surprise is. Pure arithmetic; must not
 * allocate.
 */
#include "policy/cost.h"

#include <math.h>
#include <stdlib.h>

enum { N = 1 + SV_LEVELS, SETTLING = 4, STEADY = 16 };

/* Before any step: how wrong a table may be, all of it and drafting against plain. */
static const double SPEED_DOUBT = 0.2, KIND_DOUBT = 0.13;
/* And how wrong one size, against the others; what of that two sizes share, one of which has half
 * as many rows again as the other. */
static const double SIZE_DOUBT = 0.05, NEXT = 0.6;
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

/* Moves what is known of the comparison towards what was known before any step: a share of the way.
 */
static void unlearn_kinds(struct sv_pace *p, double share)
{
    const float keep = (float)sqrt(1 - share), by = (float)share;
    float first[SV_LEVELS];
    double size = SIZE_DOUBT * SIZE_DOUBT;
    for (int d = 0; d < SV_LEVELS; d++, size *= NEXT)
        first[d] = (float)(KIND_DOUBT * KIND_DOUBT + size);
    for (int i = 1; i < N; i++) {
        p->x[i] *= keep;
        p->cov[0][i] = p->cov[i][0] = p->cov[0][i] * keep;
        for (int j = 1; j < N; j++)
            p->cov[i][j] += by * (first[abs(i - j)] - p->cov[i][j]);
    }
}

void sv_cost_unlearn(struct sv_cost *c)
{
    for (int s = 0; s < 2; s++) {
        struct sv_pace *p = &c->pace[s];
        *p = (struct sv_pace){.noise = NOISE * NOISE};
        p->cov[0][0] = (float)(SPEED_DOUBT * SPEED_DOUBT);
        unlearn_kinds(p, 1);
        c->speed[s] = 1;
        for (int k = 0; k < SV_LEVELS; k++)
            c->level[s][k] = 1;
    }
}

/* How much of each number a step of this kind shows: of the speed all, and of two sizes. */
struct shows {
    int at[3];
    float h[3];
};

static struct shows shows(const struct sv_cost *c, const struct sv_load *l)
{
    const struct sv_size size = sv_cost_size(l->n_rows);
    const double weight = sv_cost_weight(c, l);
    return (struct shows){.at = {0, 1 + size.i, 2 + size.i},
                          .h = {1, (float)(weight * (1 - size.t)), (float)(weight * size.t)}};
}

/* Of the comparison with plain steps. */
static float shared(const struct sv_pace *p, const struct shows *a, const struct shows *b)
{
    float v = 0;
    for (int i = 1; i < 3; i++)
        for (int j = 1; j < 3; j++)
            v += p->cov[a->at[i]][b->at[j]] * a->h[i] * b->h[j];
    return v;
}

double sv_cost_doubt(const struct sv_cost *c, const struct sv_load *l, const struct sv_load *other)
{
    const struct sv_pace *p = &c->pace[l->sampled];
    const struct shows a = shows(c, l), b = other ? shows(c, other) : (struct shows){.h = {0}};
    return sqrt(fmax((double)(shared(p, &a, &a) + shared(p, &b, &b) - 2 * shared(p, &a, &b)), 0));
}

/* Time passes: what was known is a little less so. */
static void forget(struct sv_pace *p, int32_t n_segs)
{
    double by = p->n_segs ? log2((double)n_segs / p->n_segs) * KIND_BY_COUNT : 0;
    double more = KIND_WANDERS * KIND_WANDERS + by * by;
    p->n_segs = n_segs;
    p->cov[0][0] += (float)(WANDERS * WANDERS * p->noise);
    unlearn_kinds(p, fmin(more / (KIND_DOUBT * KIND_DOUBT), 1));
}

static void correct(struct sv_pace *p, const struct shows *by, double surprise)
{
    /* Something else disturbs a step now and then, and the first one after a change of kind would
     * be believed most: what is far off is noise for a part, until others say the same. */
    float ph[N], s = (float)(p->noise + surprise * surprise / TAILS);
    const float farthest = (float)log(FARTHEST);
    for (int i = 0; i < N; i++) {
        ph[i] = 0;
        for (int j = 0; j < 3; j++)
            ph[i] += p->cov[i][by->at[j]] * by->h[j];
    }
    for (int j = 0; j < 3; j++)
        s += by->h[j] * ph[by->at[j]];
    /* A step disturbed by something else is little evidence: beyond this all surprises are the
     * same. */
    double most = fmax(0.1, 2.5 * sqrt((double)s));
    surprise = fmin(fmax(surprise, -most), most);
    for (int i = 0; i < N; i++) {
        const float share = ph[i] / s;
        p->x[i] += share * (float)surprise;
        p->x[i] = fminf(fmaxf(p->x[i], -farthest), farthest);
        for (int j = 0; j < N; j++)
            p->cov[i][j] -= share * ph[j];
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
    p->n_since = plain == p->plain ? p->n_since + (p->n_since < STEADY) : 0;
    p->plain = plain;
    forget(p, l->n_segs);
    if (p->n_since < SETTLING)
        return; /* the first ones find the caches as the other kind left them */
    const struct shows by = shows(c, l);
    correct(p, &by, log(us / expected));
    c->speed[l->sampled] = expf(p->x[0]);
    for (int k = 0; k < SV_LEVELS; k++)
        c->level[l->sampled][k] = expf(p->x[1 + k]);
}
