/*
 * machine.h - simulated machines for the tests of the width policy.
 *
 * A machine is a function from rows to time. measure_table makes the table that calibration would
 * measure on it. Must not: use the policy.
 */
#ifndef SV_TESTS_MACHINE_H
#define SV_TESTS_MACHINE_H

#include "testing.h"

#include "policy/policy.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 16, MAX_SEQS = 128, TILE = 16, MOST_POINTS = 128 };

/* Of so many, each row chooses so many; us: reading one of them in all layers. */
struct machine_experts {
    double n, n_chosen, us;
};

struct machine {
    const char *name;
    double step_us, row_us; /* a step's fixed part; a row when rows decide */
    double knee_rows;       /* rows that cost nothing more */
    double seg_us;          /* a segment beyond its rows */
    double draft_us, draft_row_us, draft_knee, out_us;
    double spec_factor; /* what the table does not know of: steps with drafts cost so much more */
    double noise;       /* share of steps that something disturbs */
    double drift; /* standard deviation of a pace of all kinds that changes every hundred steps */
    double tile_us, draft_tile_us; /* every begun 16 rows beyond the first */
    double draft_seg_us;           /* a segment that drafts, beyond its rows */
    bool slow_phases; /* goes slowly for some hundred milliseconds at a time while it is measured */
    const struct machine_experts *experts; /* read beside the fixed part; or NULL */
};

/* One shape alone met another moment of the machine: so many rows, in blocks, look so many times as
 * expensive as they are. */
struct wrong {
    int32_t n_rows;
    double by;
};

static const struct machine machines[] = {
    {"two cores", 350, 90, 3, 40, 120, 25, 2, 8, 1, 0, 0, 0, 0, 0, false, NULL},
    {"two cores, busy", 350, 90, 3, 40, 120, 25, 2, 8, 1, 0.2, 0, 0, 0, 0, false, NULL},
    {"matrix unit", 420, 9, 1, 6, 100, 3, 1, 2, 1, 0, 0, 0, 0, 0, false, NULL},
    {"large GPU", 3500, 4.2, 200, 1, 480, 0.7, 250, 0.2, 1, 0, 0, 0, 0, 0, false, NULL},
    {"large GPU, wrong table", 3500, 4.2, 200, 1, 480, 0.7, 250, 0.2, 1.25, 0.05, 0, 0, 0, 0, false,
     NULL},
    {"two cores, others at work", 350, 60, 3, 40, 100, 20, 2, 3, 1, 0.1, 0.2, 0, 0, 0, false, NULL},
    {"the same, drafting costlier", 350, 60, 3, 40, 100, 20, 2, 3, 1.2, 0.1, 0.2, 0, 0, 0, false,
     NULL},
    {"the same, drafting cheaper", 350, 60, 3, 40, 100, 20, 2, 3, 0.8, 0.1, 0.2, 0, 0, 0, false,
     NULL},
    {"tiles of rows", 400, 12, 1, 6, 170, 4, 1, 4, 1, 0.05, 0, 550, 150, 0, false, NULL},
    {"the same, plain steps costlier", 400, 12, 1, 6, 170, 4, 1, 4, 0.72, 0.05, 0, 550, 150, 0,
     false, NULL},
    {"MI300X", 2860, 19.3, 148, 42.7, 630, 4.04, 156, 0.2, 1, 0.05, 0, 0, 0, 0, false, NULL},
    {"MI355X", 1890, 10.1, 187, 28.3, 417, 2.11, 198, 0.2, 1, 0.05, 0, 0, 0, 0, false, NULL},
    {"MI355X, as published", 5050, 37, 346, 73, 4840, 10, 346, 0.2, 1, 0.05, 0, 0, 0, 0, false,
     NULL},
    {"matrix unit, slow phases", 330, 8, 1, 15, 150, 4, 1, 0.5, 1, 0.05, 0, 200, 45, 0, true, NULL},
};
/* AMD's have Qwen3-8B's sizes and contexts of 1,536 tokens. Of two cards, the floors that
 * docs/hip.md derives from their bandwidth and 60 % of their matrix rate; nobody has measured
 * them. The third goes through what SGLang's PR 23388 reports of one, with blocks of 16 and without
 * a draft, at 4, 64 and 256 sequences. */
enum { MI300X = 10, MI355X, MI355X_PUBLISHED };

static double step_us(const struct machine *m, double segs, double rows, double draft_segs,
                      double draft_rows, double outs)
{
    double us = m->step_us + m->seg_us * segs;
    us += rows > m->knee_rows ? m->row_us * (rows - m->knee_rows) : 0;
    if (m->experts) /* distinct ones, where rows choose independently of each other */
        us += m->experts->us * m->experts->n *
              (1 - pow(1 - m->experts->n_chosen / m->experts->n, rows));
    us += rows > TILE ? m->tile_us * ceil(rows / TILE - 1) : 0;
    if (draft_rows > 0) {
        us += m->draft_us + m->out_us * outs + m->draft_seg_us * draft_segs;
        us += draft_rows > m->draft_knee ? m->draft_row_us * (draft_rows - m->draft_knee) : 0;
        us += draft_rows > TILE ? m->draft_tile_us * ceil(draft_rows / TILE - 1) : 0;
    }
    return us;
}

/* Points of a table, in the order in which they are measured. */
struct points {
    struct sv_curve *curve[MOST_POINTS];
    int32_t x[MOST_POINTS], n;
    double us[MOST_POINTS];
    struct sv_timed timed[MOST_POINTS];
};

static void put(struct points *p, struct sv_curve *c, int32_t x, double us)
{
    assert_true(p->n < MOST_POINTS);
    p->curve[p->n] = c;
    p->x[p->n] = x;
    p->us[p->n++] = us;
}

/* As seen on two AMX cores of a shared host: a third of the time all goes slowly, large steps most
 * of all. */
struct slowness {
    struct sv_rng rng;
    double now_us, until_us;
    bool slow;
};

static double time_slowly(struct slowness *m, double us)
{
    while (m->now_us >= m->until_us) {
        m->slow = !m->slow;
        m->until_us += (m->slow ? 150e3 : 300e3) * -log(1 - (double)sv_rng_float(&m->rng));
    }
    us *= (m->slow ? 1.5 + 0.7 * fmin(us / 5000, 1) : 1) *
          (0.97 + 0.06 * (double)sv_rng_float(&m->rng));
    m->now_us += us;
    return us;
}

static void measure(struct points *p, uint64_t seed)
{
    enum { BUDGET_US = 700000 };
    struct slowness slowness = {.rng = {seed}, .slow = seed % 2};
    struct sv_turns turns = {.of = p->timed, .n = p->n};
    for (int32_t i = 0; i < p->n; i++)
        p->timed[i] = (struct sv_timed){.needed = true};
    sv_turns_begin(&turns, 2, 0, BUDGET_US, BUDGET_US * 2 / 5);
    for (int32_t i = sv_turns_next(&turns, 0); i >= 0;
         i = sv_turns_next(&turns, (int64_t)slowness.now_us)) {
        double us = time_slowly(&slowness, p->us[i]);
        sv_turns_add(&turns, i, (const double[SV_TIMES]){us, 0, us});
    }
    sv_turns_end(&turns);
    assert_true(slowness.now_us < 1.5 * BUDGET_US);
    for (int32_t i = 0; i < p->n; i++)
        p->us[i] = p->timed[i].us[SV_TIME_ALL];
}

/* The points that calibrate.c measures: 1, 2, 3, 4, 6, 8, 12, ... and, where tiles end, one row
 * more. */
static void measure_table(struct sv_cost *c, const struct machine *m, int32_t n_seqs, uint64_t seed,
                          struct wrong wrong)
{
    enum { MOST_TILES = 8, MOST_ROWS = 512 };
    struct points *p = calloc(1, sizeof *p);
    for (int32_t r = 2; r < BLOCK; r += r < 6 ? 1 : 2)
        put(p, &c->wide, r, step_us(m, 1, r, 0, 0, 0));
    for (int32_t r = 2; r < BLOCK; r *= 2)
        put(p, &c->draft_rows, r, step_us(m, 0, 0, (r + BLOCK - 1) / BLOCK, r, 0) - m->step_us);
    for (int32_t n = 1, step = 1; n <= n_seqs; n += n == 1 ? 1 : step) {
        step *= n >= 4 * step ? 2 : 1;
        int32_t r = n * BLOCK, beyond = (n + 1) * (r / (n + 1) + 1);
        put(p, &c->plain, n, step_us(m, n, n, 0, 0, 0));
        if (n > 1 && m->draft_seg_us > 0)
            put(p, &c->thin, n, step_us(m, 0, 0, n, 2 * n, 0) - m->step_us);
        if (m->slow_phases && r > MOST_ROWS)
            continue;
        put(p, &c->wide, r, step_us(m, n, r, 0, 0, 0));
        put(p, &c->draft_rows, r, step_us(m, 0, 0, (r + BLOCK - 1) / BLOCK, r, 0) - m->step_us);
        if (n > MOST_TILES)
            continue;
        put(p, &c->wide, r + 1, step_us(m, n + 1, r + 1, 0, 0, 0));
        put(p, &c->draft_rows, beyond, step_us(m, 0, 0, n + 1, beyond, 0) - m->step_us);
    }
    if (m->slow_phases)
        measure(p, seed);
    for (int32_t i = 0; i < p->n; i++) {
        bool blocks = p->curve[i] == &c->wide || p->curve[i] == &c->draft_rows;
        double by = blocks && p->x[i] == wrong.n_rows ? wrong.by : 1;
        sv_curve_add(p->curve[i], p->x[i], by * p->us[i]);
    }
    free(p);
    sv_curve_add(&c->draft_out, 1, m->out_us);
    sv_curve_add(&c->draft_out, 2, 2 * m->out_us);
}

#endif
