/*
 * turns.c - timing shapes in rounds while the machine's pace changes: what is timed next, and which
 * of the times count.
 *
 * Called by engine/calibrate.c. Other programs and clocks slow a machine down for some hundred
 * milliseconds at a time, by a factor of 1.4 to 2.5; a shape that was timed only then would look
 * that much too expensive. So each shape has a turn in each round, and the times of the same quick
 * rounds count for all. Pure arithmetic; must not read a clock.
 */
#include "policy/cost.h"

#include <math.h>
#include <stdlib.h>

enum {
    QUICK = 3, /* quick rounds; with fewer of any shape the time is extended */
    NEAR = 10, /* shapes before and behind that count as timed at the same moment */
    PLENTY =
        15 /* rounds after which half the time is enough; fewer may all lie in one slow phase */
};
/* Shapes that take this long need two rounds only. */
static const double LONG_US = 10000;
/* A round is quick up to this multiple of the quickest one. */
static const double AS_QUICK = 1.2;

/* The lower third of n times: disturbances add time, but the minimum would favour shapes that met a
 * lucky moment. */
static double usual(const float *us, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t below = 0;
        for (int32_t k = 0; k < n; k++)
            below += us[k] < us[i] || (k < i && us[k] == us[i]);
        if (below == (n - 1) / 3)
            return (double)us[i];
    }
    return -1;
}

/* Typical times over some rounds; quick: NULL = all. */
static void settle(struct sv_timed *s, const bool *quick)
{
    for (int what = 0; what < SV_TIMES; what++) {
        float us[SV_MOST_RUNS];
        int32_t n = 0;
        for (int32_t k = 0; k < s->n_runs; k++)
            if (!quick || quick[s->round[k]])
                us[n++] = s->run[k][what];
        s->us[what] = n ? usual(us, n) : s->us[what];
    }
}

void sv_turns_add(struct sv_turns *t, int32_t i, const double us[SV_TIMES])
{
    struct sv_timed *s = &t->of[i];
    SV_REQUIRE(s->n_runs < SV_MOST_RUNS && t->round < SV_MOST_RUNS);
    for (int what = 0; what < SV_TIMES; what++)
        s->run[s->n_runs][what] = (float)us[what];
    s->round[s->n_runs++] = t->round;
    settle(s, NULL);
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Pace of the shapes around i in a round, relative to their typical times: the median. */
static double pace_of(const struct sv_turns *t, int32_t i, int32_t round)
{
    double pace[SV_MOST_TIMED];
    int32_t n = 0, end = i + NEAR < t->n ? i + NEAR + 1 : t->n;
    for (int32_t j = i > NEAR ? i - NEAR : 0; j < end; j++)
        for (int32_t k = 0; k < t->of[j].n_runs; k++)
            if (t->of[j].round[k] == round)
                pace[n++] = (double)t->of[j].run[k][SV_TIME_ALL] / t->of[j].us[SV_TIME_ALL];
    qsort(pace, (size_t)n, sizeof *pace, by_size);
    return n ? pace[n / 2] : HUGE_VAL;
}

/* Finds the rounds that were quick around i; returns their number. */
static int32_t find_quick(const struct sv_turns *t, int32_t i, bool quick[SV_MOST_RUNS])
{
    double pace[SV_MOST_RUNS], least = HUGE_VAL;
    int32_t n = 0;
    for (int32_t r = 0; r < SV_MOST_RUNS; r++) {
        pace[r] = pace_of(t, i, r);
        least = fmin(least, pace[r]);
    }
    for (int32_t r = 0; r < SV_MOST_RUNS; r++)
        n += quick[r] = pace[r] <= AS_QUICK * least;
    return n;
}

/* Each by the shapes timed around it, since the pace also changes within rounds. */
void sv_turns_end(struct sv_turns *t)
{
    bool quick[SV_MOST_TIMED][SV_MOST_RUNS];
    for (int32_t i = 0; i < t->n; i++)
        find_quick(t, i, quick[i]);
    for (int32_t i = 0; i < t->n; i++)
        settle(&t->of[i], quick[i]);
}

static int32_t fewest_quick(const struct sv_turns *t)
{
    int32_t fewest = SV_MOST_RUNS;
    bool quick[SV_MOST_RUNS];
    for (int32_t i = 0; i < t->n; i += NEAR) {
        int32_t n = find_quick(t, i, quick);
        fewest = n < fewest ? n : fewest;
    }
    return fewest;
}

void sv_turns_begin(struct sv_turns *t, int32_t least, int64_t now_us, int64_t budget_us,
                    int64_t more_us)
{
    SV_REQUIRE(t->n <= SV_MOST_TIMED && least < SV_MOST_RUNS);
    t->round = t->at = -1;
    t->least = least;
    t->half_us = now_us + budget_us / 2;
    t->end_us = now_us + budget_us;
    t->last_us = t->end_us + more_us;
}

/* Whether it is timed in rounds after the first. */
static bool goes_on(const struct sv_timed *s)
{
    return s->n_runs && s->n_runs < SV_MOST_RUNS;
}

/* Begins another round while there is time for a whole one, or more time where most rounds were
 * slow. */
static bool begin_round(struct sv_turns *t, int64_t now_us)
{
    double whole_us = 0;
    for (int32_t i = 0; i < t->n; i++)
        whole_us += goes_on(&t->of[i]) ? t->of[i].us[SV_TIME_ALL] : 0;
    t->at = 0;
    if (++t->round < t->least)
        return true;
    return t->round < SV_MOST_RUNS && (t->round < PLENTY || now_us < t->half_us) &&
           (whole_us <= (double)(t->end_us - now_us) ||
            (whole_us <= (double)(t->last_us - now_us) && fewest_quick(t) < QUICK));
}

static bool has_turn(const struct sv_turns *t, const struct sv_timed *s, int64_t now_us)
{
    if (!t->round)
        return s->needed || now_us <= t->end_us;
    return goes_on(s) && (t->round < 2 || t->round >= t->least || s->us[SV_TIME_ALL] <= LONG_US);
}

int32_t sv_turns_next(struct sv_turns *t, int64_t now_us)
{
    for (int32_t looked = 0; looked < 2 * t->n; looked++) {
        if ((t->at < 0 || t->at == t->n) && !begin_round(t, now_us))
            return -1;
        int32_t i = t->at++;
        if (has_turn(t, &t->of[i], now_us))
            return i;
    }
    return -1;
}
