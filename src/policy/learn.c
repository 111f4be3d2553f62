/*
 * learn.c - correction of the cost table by real steps: the machine's pace at the moment, and the
 * cost of drafting steps relative to plain ones.
 *
 * Called for every measured step. A Kalman filter follows a few numbers (struct sv_pace): the pace
 * of all steps, which changes with whatever else the machine does, and the relative cost of
 * drafting steps by rows, which hardly changes. A step shows the sum of those of its kind, and the
 * covariances divide a surprise among them. Pure arithmetic; must not allocate.
 */
#include "policy/cost.h"

#include <math.h>
#include <stdlib.h>

enum { N = 1 + SV_LEVELS, SETTLING = 4, STEADY = 16 };

/* Standard deviations before any step: of the whole table, and of drafting relative to plain. */
static const double SPEED_DOUBT = 0.2, KIND_DOUBT = 0.13;
/* Of one size relative to the others; correlation of neighbouring sizes. */
static const double SIZE_DOUBT = 0.05, NEXT = 0.6;
/* Noise of a single step: at first, its bounds, and its learning rate. */
static const double NOISE = 0.15, LEAST_NOISE = 0.01, MOST_NOISE = 0.3, NOISE_RATE = 0.02;
/* Drift of the pace per step, as a share of the noise; of the relative cost per step, and where the
 * number of sequences doubles or halves, which is another part of the table. */
static const double WANDERS = 0.1, KIND_WANDERS = 0.001, KIND_BY_COUNT = 0.01;
/* Degrees of freedom of Student's distribution for the noise: outliers are more frequent than in a
 * normal one. */
static const double TAILS = 6;
/* Bound of each factor. */
static const double FARTHEST = 4;

/* Moves the relative costs and their covariances towards the prior by this share. */
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

/* How much of each number a step shows: all of the pace, and parts of two sizes. */
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

/* Covariance of the relative costs of two steps. */
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

/* Drift: uncertainty grows with each step. */
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
    /* Other programs disturb single steps, and the first one after a change of kind would have the
     * most weight: outliers count as noise in part. */
    float ph[N], s = (float)(p->noise + surprise * surprise / TAILS);
    const float farthest = (float)log(FARTHEST);
    for (int i = 0; i < N; i++) {
        ph[i] = 0;
        for (int j = 0; j < 3; j++)
            ph[i] += p->cov[i][by->at[j]] * by->h[j];
    }
    for (int j = 0; j < 3; j++)
        s += by->h[j] * ph[by->at[j]];
    /* A disturbed step is little evidence: surprises are clipped here. */
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
        return; /* the first steps of a kind find the caches of the other */
    const struct shows by = shows(c, l);
    correct(p, &by, log(us / expected));
    c->speed[l->sampled] = expf(p->x[0]);
    for (int k = 0; k < SV_LEVELS; k++)
        c->level[l->sampled][k] = expf(p->x[1 + k]);
}
