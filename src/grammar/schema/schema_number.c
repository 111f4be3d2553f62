/*
 * schema_number.c - JSON numbers within bounds and of multiples, as automata over their text.
 *
 * Called by schema_leaf.c and schema_emit.c. Bounds are decimals, not doubles: digits are compared
 * one by one as the text is read, so integers of any length are exact. A number with bounds or a
 * step has no exponent and at most SV_NUMBER_DIGITS digits before and after the point together,
 * which double precision represents. Must not: do arithmetic in doubles.
 */
#include "grammar/schema/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- decimals */

/* value = 0.d1 d2 d3 ... x 10^point */
void sv_decimal_text(struct sv_decimal *d, const char *at)
{
    const char *e = strchr(at, 'e');
    bool behind = false; /* the point */

    memset(d, 0, sizeof *d);
    d->negative = *at == '-';
    d->point = e ? atoi(e + 1) : 0;
    for (at += d->negative; *at && *at != 'e'; at++) {
        if (*at == '.') {
            behind = true;
            continue;
        }
        if (d->n_digits || *at != '0')
            d->digits[d->n_digits++] = *at;
        d->point += !behind && d->n_digits;
        d->point -= behind && !d->n_digits;
    }
    while (d->n_digits && d->digits[d->n_digits - 1] == '0')
        d->n_digits--;
    if (!d->n_digits)
        d->point = 0, d->negative = false;
}

bool sv_number_cut(const json_t *v)
{
    return json_is_real(v) && fabs(json_real_value(v)) >= 0x1p63;
}

void sv_number_text(const json_t *v, char text[SV_NUMBER_TEXT])
{
    double x = json_number_value(v);

    if (json_is_integer(v)) {
        snprintf(text, SV_NUMBER_TEXT, "%lld", (long long)json_integer_value(v));
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, SV_NUMBER_TEXT, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
}

int sv_decimal_read(struct sv_decimal *d, const json_t *v)
{
    char text[SV_NUMBER_TEXT];

    sv_number_text(v, text);
    sv_decimal_text(d, text);
    return d->point > SV_NUMBER_LONGEST || d->n_digits - d->point > SV_NUMBER_LONGEST
               ? SV_EUNSUPPORTED
               : SV_OK;
}

int sv_decimal_digit(const struct sv_decimal *d, int place)
{
    int i = d->point - 1 - place;

    return i >= 0 && i < d->n_digits ? d->digits[i] - '0' : 0;
}

/* Compares without the signs. */
static int compare_sizes(const struct sv_decimal *a, const struct sv_decimal *b)
{
    int n = a->n_digits < b->n_digits ? a->n_digits : b->n_digits;
    int order;

    if (!a->n_digits || !b->n_digits)
        return (a->n_digits > 0) - (b->n_digits > 0);
    if (a->point != b->point)
        return a->point < b->point ? -1 : 1;
    order = memcmp(a->digits, b->digits, (size_t)n);
    return order ? (order < 0 ? -1 : 1) : (a->n_digits > n) - (b->n_digits > n);
}

int sv_decimal_compare(const struct sv_decimal *a, const struct sv_decimal *b)
{
    if (a->negative != b->negative)
        return a->negative ? -1 : 1;
    return a->negative ? compare_sizes(b, a) : compare_sizes(a, b);
}

/* ---------------------------------------------------------------- the automaton */

enum phase { AT_START, AT_SIGN, AT_ZERO, AT_WHOLE, AT_POINT, AT_FRACTION };

/* Where a number's text is. Signs of comparisons are of the digits so far with as many of the
 * bound's, which only count once the lengths are known to be equal. */
struct place {
    int16_t phase;
    int16_t negative;
    int16_t n_whole, n_fraction;
    int8_t vs_lo, vs_hi; /* digits so far against the bounds of this sign's sizes: -1, 0, 1 */
    int8_t nonzero, pad;
    int32_t rest; /* of the digits so far, divided by the step */
};

/* The bounds on sizes (without sign) of one sign. */
struct side {
    bool none; /* no number of this sign */
    bool has_lo, has_hi, over_lo, under_hi;
    struct sv_decimal lo, hi;
};

struct number {
    struct side side[2]; /* [negative] */
    int n_counted;  /* digits of a whole part are counted so far: it is longer than all bounds */
    int n_digits;   /* of whole part and fraction together, where there is no step */
    int n_fraction; /* most */
    int32_t step;   /* 0: any; in units of 10^-step_fraction */
    int step_fraction;
};

/* The bound's digits before the point; 1 for bounds below 1. */
static int whole_digits(const struct sv_decimal *d)
{
    return d->point > 0 ? d->point : 1;
}

/* The comparison at the end of the whole part: by length first. */
static int settled(int so_far, int n_whole, const struct sv_decimal *bound)
{
    int n = whole_digits(bound);

    return n_whole != n ? (n_whole < n ? -1 : 1) : so_far;
}

/* The comparison at the end of the text: further digits make the bound larger. */
static int final_order(const struct place *p, int so_far, const struct sv_decimal *bound)
{
    int order = p->phase == AT_FRACTION ? so_far : settled(so_far, p->n_whole, bound);

    return order ? order : bound->n_digits - bound->point > p->n_fraction ? -1 : 0;
}

static bool number_final(void *arg, const void *state)
{
    const struct number *n = arg;
    const struct place *p = state;
    const struct side *s = &n->side[p->negative];
    int64_t rest = p->rest;

    if (p->phase != AT_ZERO && p->phase != AT_WHOLE && p->phase != AT_FRACTION)
        return false;
    if (s->none || (p->negative && !p->nonzero))
        return false;
    if (s->has_lo) {
        int order = final_order(p, p->vs_lo, &s->lo);
        if (order < 0 || (order == 0 && s->over_lo))
            return false;
    }
    if (s->has_hi) {
        int order = final_order(p, p->vs_hi, &s->hi);
        if (order > 0 || (order == 0 && s->under_hi))
            return false;
    }
    for (int i = p->n_fraction; n->step && i < n->step_fraction; i++)
        rest = rest * 10 % n->step;
    return rest == 0;
}

/* The comparison after one more digit; `at` counts whole digits, or is a fraction digit's place. An
 * earlier difference decides, except when the whole part is longer than the bound's. */
static int8_t compared(int8_t so_far, int d, const struct sv_decimal *bound, bool whole, int at)
{
    int other;

    if (whole && at >= whole_digits(bound))
        return 0;
    other = sv_decimal_digit(bound, whole ? whole_digits(bound) - 1 - at : at);
    return so_far ? so_far : (int8_t)((d > other) - (d < other));
}

/* One more digit. Before the point it is compared with the bound's digit of the same index. */
static bool take_digit(const struct number *n, struct place *p, int d)
{
    const struct side *s = &n->side[p->negative];
    bool whole = p->phase != AT_POINT && p->phase != AT_FRACTION;
    int at = whole ? p->n_whole : -1 - p->n_fraction;

    if ((!n->step && p->n_whole + p->n_fraction >= n->n_digits) ||
        (!whole && p->n_fraction >= n->n_fraction))
        return false;
    if (s->has_lo)
        p->vs_lo = compared(p->vs_lo, d, &s->lo, whole, at);
    if (s->has_hi)
        p->vs_hi = compared(p->vs_hi, d, &s->hi, whole, at);
    p->nonzero |= d != 0;
    if (n->step)
        p->rest = (int32_t)(((int64_t)p->rest * 10 + d) % n->step);
    p->n_whole += whole && (!n->step || p->n_whole < n->n_counted);
    p->n_fraction += !whole;
    p->phase = !whole ? AT_FRACTION : p->phase != AT_WHOLE && d == 0 ? AT_ZERO : AT_WHOLE;
    return true;
}

static void number_steps(void *arg, const void *state, struct sv_dfa_walk *w)
{
    const struct number *n = arg;
    const struct place *p = state;
    bool started = p->phase != AT_START && p->phase != AT_SIGN;

    if (p->phase == AT_START) {
        struct place to = *p;
        to.phase = AT_SIGN;
        to.negative = 1;
        if (!n->side[1].none)
            sv_dfa_step(w, '-', '-', &to);
    }
    if ((p->phase == AT_ZERO || p->phase == AT_WHOLE) && n->n_fraction > 0) {
        struct place to = *p;
        const struct side *s = &n->side[p->negative];
        to.phase = AT_POINT;
        to.vs_lo = s->has_lo ? (int8_t)settled(p->vs_lo, p->n_whole, &s->lo) : 0;
        to.vs_hi = s->has_hi ? (int8_t)settled(p->vs_hi, p->n_whole, &s->hi) : 0;
        sv_dfa_step(w, '.', '.', &to);
    }
    if (p->phase == AT_ZERO)
        return;
    for (int d = 0; d <= 9; d++) {
        struct place to = *p;
        if ((started || !n->side[p->negative].none) && take_digit(n, &to, d))
            sv_dfa_step(w, (uint32_t)('0' + d), (uint32_t)('0' + d), &to);
    }
}

/* Sizes of one sign: for negative numbers the bounds change places. */
static struct side side_of(const struct sv_numbers *spec, bool negative)
{
    const struct sv_decimal *near = negative ? &spec->hi : &spec->lo;
    const struct sv_decimal *far = negative ? &spec->lo : &spec->hi;
    bool has_near = negative ? spec->has_hi : spec->has_lo;
    bool has_far = negative ? spec->has_lo : spec->has_hi;
    struct side s = {0};

    /* 0 counts as not negative here; numbers with a minus sign are not 0. */
    if (has_far && far->negative != negative && (far->n_digits || negative)) {
        s.none = true;
        return s;
    }
    s.has_hi = has_far;
    s.hi = *far;
    s.under_hi = negative ? spec->over_lo : spec->under_hi;
    s.has_lo = has_near && near->negative == negative;
    s.lo = *near;
    s.over_lo = negative ? spec->under_hi : spec->over_lo;
    return s;
}

/* The step as a whole number of 10^-fraction; false when it is too large. */
static bool set_step(struct number *n, const struct sv_decimal *step)
{
    int64_t units = 0;
    int fraction = step->n_digits - step->point;

    n->step_fraction = fraction > 0 ? fraction : 0;
    for (int i = 0; i < step->n_digits; i++)
        units = units * 10 + (step->digits[i] - '0');
    for (; fraction < 0 && units <= SV_NUMBER_STEP; fraction++)
        units *= 10;
    n->step = (int32_t)units;
    return units <= SV_NUMBER_STEP;
}

/* Digits before and after the point. */
static int digits_of(const struct sv_decimal *d)
{
    int behind = d->n_digits - d->point;

    return whole_digits(d) + (behind > 0 ? behind : 0);
}

/* With a step the places in a number are many already, so digits are not counted there: the
 * smallest automaton, which has few, is held against a length afterwards. */
static int limit_length(struct sv_dfa_room *room, int64_t most, const struct sv_dfa **d,
                        struct sv_err *err)
{
    const struct sv_dfa *lengths;
    int status = sv_dfa_slim(room, d, err);

    if (status == SV_OK)
        status = sv_dfa_length(room, 1, most, &lengths, err);
    return status == SV_OK ? sv_dfa_both(room, *d, lengths, d, err) : status;
}

int sv_numbers_dfa(struct sv_dfa_room *room, const struct sv_numbers *spec, bool whole,
                   const struct sv_dfa **out, struct sv_err *err)
{
    static const struct sv_dfa_kind kind = {sizeof(struct place), number_steps, number_final};
    struct number n = {.side = {side_of(spec, false), side_of(spec, true)}};
    const struct sv_decimal *bounds[] = {spec->has_lo ? &spec->lo : NULL,
                                         spec->has_hi ? &spec->hi : NULL};
    struct place start = {0};
    int status;

    n.n_digits = whole ? SV_NUMBER_LONGEST : SV_NUMBER_DIGITS;
    n.n_counted = 1;
    for (int i = 0; i < 2; i++) {
        if (bounds[i] && digits_of(bounds[i]) > n.n_digits)
            n.n_digits = digits_of(bounds[i]);
        if (bounds[i] && whole_digits(bounds[i]) >= n.n_counted)
            n.n_counted = whole_digits(bounds[i]) + 1;
    }
    n.n_fraction = whole ? 0 : n.n_digits;
    if (spec->has_step) {
        if (!set_step(&n, &spec->step))
            return sv_fail(err, SV_EUNSUPPORTED, -1,
                           "multipleOf is too fine or too large (at most %d units of its last "
                           "decimal place)",
                           SV_NUMBER_STEP);
        /* A whole number is a multiple of 2.5 when it is one of 25 tenths. */
        if (!whole && n.n_fraction > n.step_fraction)
            n.n_fraction = n.step_fraction;
    }
    status = sv_dfa_walk(room, &kind, &n, &start, out, err);
    if (status == SV_OK && n.step)
        status = limit_length(room, n.n_digits + 2, out, err);
    return status;
}
