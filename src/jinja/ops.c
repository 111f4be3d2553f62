/*
 * ops.c - operators of template expressions: arithmetic, comparison, attributes, items,
 * slices.
 *
 * Called by the tree walker and by filters that read attributes. Integers have 64 bits: overflow is
 * an error. Must not: let a template change what the immutable sandbox protects.
 */
#include "jinja/run.h"
#include "jinja/text.h"

#include <math.h>

/* ---------------------------------------------------------------- arithmetic */

static const char *const op_text[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

_Noreturn static void overflow(struct sv_jx *x)
{
    sv_j_throw(x, SV_EINVAL, "integer beyond 64 bits");
}

_Noreturn static void no_division(struct sv_jx *x)
{
    sv_j_throw(x, SV_EINVAL, "division by zero");
}

static double pymod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0))
        m += b;
    return m != 0 ? m : copysign(0.0, b);
}

static double floordiv(double a, double b)
{
    double mod = fmod(a, b), div = (a - mod) / b, floored;

    if (mod != 0 && (mod < 0) != (b < 0))
        div -= 1.0;
    if (div == 0)
        return copysign(0.0, a / b);
    floored = floor(div);
    return div - floored > 0.5 ? floored + 1.0 : floored;
}

static struct sv_jval int_pow(struct sv_jx *x, int64_t a, int64_t b)
{
    int64_t result = 1;

    if (b < 0) {
        if (!a)
            no_division(x);
        return sv_j_float(pow((double)a, (double)b));
    }
    for (; b; b >>= 1) {
        if ((b & 1) && __builtin_mul_overflow(result, a, &result))
            overflow(x);
        if (b > 1 && __builtin_mul_overflow(a, a, &a))
            overflow(x);
    }
    return sv_j_int(result);
}

static struct sv_jval int_op(struct sv_jx *x, enum sv_jop op, int64_t a, int64_t b)
{
    int64_t r = 0;

    if ((op == SV_JO_DIV || op == SV_JO_FLOORDIV || op == SV_JO_MOD) && b == 0)
        no_division(x);
    switch (op) {
    case SV_JO_ADD:
        if (__builtin_add_overflow(a, b, &r))
            overflow(x);
        return sv_j_int(r);
    case SV_JO_SUB:
        if (__builtin_sub_overflow(a, b, &r))
            overflow(x);
        return sv_j_int(r);
    case SV_JO_MUL:
        if (__builtin_mul_overflow(a, b, &r))
            overflow(x);
        return sv_j_int(r);
    case SV_JO_DIV:
        return sv_j_float((double)((long double)a / (long double)b));
    case SV_JO_FLOORDIV:
        if (b == -1) {
            if (__builtin_sub_overflow((int64_t)0, a, &r))
                overflow(x);
            return sv_j_int(r);
        }
        return sv_j_int(a / b - (a % b != 0 && (a < 0) != (b < 0)));
    case SV_JO_MOD:
        if (b == -1)
            return sv_j_int(0);
        r = a % b;
        return sv_j_int(r != 0 && (r < 0) != (b < 0) ? r + b : r);
    default:
        return int_pow(x, a, b);
    }
}

static struct sv_jval float_op(struct sv_jx *x, enum sv_jop op, double a, double b)
{
    double r;

    if ((op == SV_JO_DIV || op == SV_JO_FLOORDIV || op == SV_JO_MOD) && b == 0)
        no_division(x);
    switch (op) {
    case SV_JO_ADD:
        return sv_j_float(a + b);
    case SV_JO_SUB:
        return sv_j_float(a - b);
    case SV_JO_MUL:
        return sv_j_float(a * b);
    case SV_JO_DIV:
        return sv_j_float(a / b);
    case SV_JO_FLOORDIV:
        return sv_j_float(floordiv(a, b));
    case SV_JO_MOD:
        return sv_j_float(pymod(a, b));
    default:
        if (a == 0 && b < 0)
            no_division(x);
        r = pow(a, b);
        if (isnan(r) && !isnan(a) && !isnan(b))
            sv_j_throw(x, SV_EUNSUPPORTED, "complex numbers are not supported");
        if (isinf(r) && !isinf(a) && !isinf(b))
            sv_j_throw(x, SV_EINVAL, "number too large");
        return sv_j_float(r);
    }
}

static struct sv_jval markup(struct sv_jx *x, struct sv_jval s)
{
    struct sv_jbuild b = {0};

    if (s.sub)
        return s;
    sv_j_escape(x, &b, s.u.s.p, s.u.s.n);
    s = sv_j_built(&b);
    s.sub = 1;
    return s;
}

static struct sv_jval add_strings(struct sv_jx *x, struct sv_jval a, struct sv_jval b)
{
    struct sv_jbuild out = {0};
    struct sv_jval v;

    if (a.sub || b.sub) {
        a = markup(x, a);
        b = markup(x, b);
    }
    if (a.u.s.n + b.u.s.n <= x->max_output &&
        a.u.s.n + b.u.s.n) { /* one allocation of the right size */
        out.p = sv_j_alloc(x, a.u.s.n + b.u.s.n);
        out.cap = a.u.s.n + b.u.s.n;
    }
    sv_j_put(x, &out, a.u.s.p, a.u.s.n);
    sv_j_put(x, &out, b.u.s.p, b.u.s.n);
    v = sv_j_built(&out);
    v.sub = a.sub;
    return v;
}

static struct sv_jval add_lists(struct sv_jx *x, struct sv_jval a, struct sv_jval b)
{
    struct sv_jlist *l = sv_j_list_new(x, a.u.list->n + b.u.list->n);

    sv_j_step(x, (a.u.list->n + b.u.list->n) / 8);
    for (size_t i = 0; i < a.u.list->n; i++)
        sv_j_list_push(x, l, a.u.list->item[i]);
    for (size_t i = 0; i < b.u.list->n; i++)
        sv_j_list_push(x, l, b.u.list->item[i]);
    return sv_j_list((enum sv_jkind)a.kind, l);
}

static struct sv_jval repeat(struct sv_jx *x, struct sv_jval v, int64_t times)
{
    struct sv_jbuild b = {0};
    struct sv_jlist *l;
    struct sv_jval out;

    if (sv_j_is(&v, SV_J_STR)) {
        for (int64_t i = 0; v.u.s.n && i < times; i++) {
            sv_j_step(x, 1);
            sv_j_put(x, &b, v.u.s.p, v.u.s.n);
        }
        out = sv_j_built(&b);
        out.sub = v.sub;
        return out;
    }
    l = sv_j_list_new(x, 0);
    for (int64_t i = 0; v.u.list->n && i < times; i++) {
        sv_j_step(x, 1);
        for (size_t k = 0, n = v.u.list->n; k < n; k++)
            sv_j_list_push(x, l, v.u.list->item[k]);
    }
    return sv_j_list((enum sv_jkind)v.kind, l);
}

static bool repeatable(const struct sv_jval *v)
{
    return sv_j_is(v, SV_J_STR) || sv_j_is(v, SV_J_LIST) || sv_j_is(v, SV_J_TUPLE);
}

struct sv_jval sv_j_binary(struct sv_jx *x, enum sv_jop op, struct sv_jval a, struct sv_jval b)
{
    int64_t i, k;

    if (op == SV_JO_MOD && sv_j_is(&a, SV_J_STR)) {
        if (a.sub)
            sv_j_throw(x, SV_EUNSUPPORTED, "formatting with a safe string is not supported");
        return sv_j_percent(x, a, b);
    }
    if (sv_j_is(&a, SV_J_UNDEF))
        sv_j_throw_undef(x, &a);
    if (sv_j_is(&b, SV_J_UNDEF))
        sv_j_throw_undef(x, &b);
    if (sv_j_to_int(&a, &i) && sv_j_to_int(&b, &k))
        return int_op(x, op, i, k);
    if (sv_j_number(&a) && sv_j_number(&b))
        return float_op(x, op, sv_j_to_double(&a), sv_j_to_double(&b));
    if (op == SV_JO_ADD && a.kind == b.kind) {
        if (sv_j_is(&a, SV_J_STR))
            return add_strings(x, a, b);
        if (sv_j_is(&a, SV_J_LIST) || sv_j_is(&a, SV_J_TUPLE))
            return add_lists(x, a, b);
    }
    if (op == SV_JO_MUL && repeatable(&a) && sv_j_to_int(&b, &k))
        return repeat(x, a, k);
    if (op == SV_JO_MUL && repeatable(&b) && sv_j_to_int(&a, &i))
        return repeat(x, b, i);
    sv_j_throw(x, SV_EINVAL, "unsupported operand type(s) for %s: '%s' and '%s'", op_text[op],
               sv_j_type_name(&a), sv_j_type_name(&b));
}

struct sv_jval sv_j_negate(struct sv_jx *x, struct sv_jval v, bool minus)
{
    int64_t i, r;

    if (sv_j_is(&v, SV_J_UNDEF))
        sv_j_throw_undef(x, &v);
    if (sv_j_is(&v, SV_J_FLOAT))
        return sv_j_float(minus ? -v.u.f : v.u.f);
    if (!sv_j_to_int(&v, &i))
        sv_j_throw(x, SV_EINVAL, "bad operand type for unary %c: '%s'", minus ? '-' : '+',
                   sv_j_type_name(&v));
    if (!minus)
        return sv_j_int(i);
    if (__builtin_sub_overflow((int64_t)0, i, &r))
        overflow(x);
    return sv_j_int(r);
}

bool sv_j_compare(struct sv_jx *x, enum sv_jop op, const struct sv_jval *a, const struct sv_jval *b)
{
    switch (op) {
    case SV_JO_EQ:
        return sv_j_eq(x, a, b);
    case SV_JO_NE:
        return !sv_j_eq(x, a, b);
    case SV_JO_IN:
        return sv_j_contains(x, b, a);
    case SV_JO_NOTIN:
        return !sv_j_contains(x, b, a);
    default:
        return sv_j_order(x, op, a, b);
    }
}

/* ---------------------------------------------------------------- attributes and items */

/* As Python's getattr; MISSING when there is no such attribute. */
static struct sv_jval attribute(struct sv_jx *x, struct sv_jval obj, struct sv_jval name)
{
    struct sv_jval v, *found;
    bool unsafe = false;
    int id;

    switch (obj.kind) {
    case SV_J_NS:
        found = sv_j_dict_get(x, obj.u.dict, name);
        return !found                             ? sv_j_missing()
               : name.u.s.n && *name.u.s.p == '_' ? sv_j_undef_attr(x, obj, name)
                                                  : *found;
    case SV_J_LOOP:
        return sv_j_loop_attr(x, obj, &name);
    case SV_J_CYCLER:
        return sv_j_cycler_attr(x, obj, &name);
    case SV_J_MACRO:
        if (sv_j_str_eq(&name, "name") && obj.u.macro->node->type == SV_JN_MACRO)
            return obj.u.macro->node->value;
        return sv_j_missing();
    default:
        id = sv_j_method_find(&obj, &name, &unsafe);
        if (id < 0)
            return sv_j_missing();
        if (unsafe) {
            struct sv_jbuild b = {0};
            sv_j_put(x, &b, name.u.s.p, name.u.s.n);
            sv_j_putc(x, &b, 0);
            struct sv_jbuild hint = {0};
            sv_j_putf(x, &hint, "access to attribute '%.40s' of '%s' object is unsafe.", b.p,
                      sv_j_type_name(&obj));
            sv_j_putc(x, &hint, 0);
            return sv_j_undef(x, hint.p);
        }
        v = (struct sv_jval){.kind = SV_J_METHOD};
        v.u.method = sv_j_alloc(x, sizeof *v.u.method);
        *v.u.method = (struct sv_jmethod){obj, id};
        return v;
    }
}

/* obj[key], MISSING where Python raises TypeError or LookupError. */
static struct sv_jval item(struct sv_jx *x, struct sv_jval obj, struct sv_jval key)
{
    struct sv_jval *found;
    int64_t i, n;

    if (sv_j_is(&obj, SV_J_DICT)) {
        found = sv_j_hashable(x, &key) ? sv_j_dict_get(x, obj.u.dict, key) : NULL;
        return found ? *found : sv_j_missing();
    }
    if (!sv_j_to_int(&key, &i))
        return sv_j_missing();
    switch (obj.kind) {
    case SV_J_STR:
    case SV_J_LIST:
    case SV_J_TUPLE:
    case SV_J_RANGE:
        n = sv_j_len(x, &obj);
        i = i < 0 ? i + n : i;
        if (i < 0 || i >= n)
            return sv_j_missing();
        break;
    default:
        return sv_j_missing();
    }
    if (sv_j_is(&obj, SV_J_RANGE))
        return sv_j_int(sv_j_range_at(obj.u.range, i));
    if (!sv_j_is(&obj, SV_J_STR))
        return obj.u.list->item[i];
    size_t from = sv_j_cp_to_byte(x, obj.u.s.p, obj.u.s.n, (size_t)i);
    int len;
    (void)sv_utf8_get(obj.u.s.p + from, &len);
    key = sv_j_str(obj.u.s.p + from, (size_t)len);
    key.sub = obj.sub;
    return key;
}

struct sv_jval sv_j_getattr(struct sv_jx *x, struct sv_jval obj, struct sv_jval name)
{
    struct sv_jval v;

    if (sv_j_is(&obj, SV_J_UNDEF))
        sv_j_throw_undef(x, &obj);
    v = attribute(x, obj, name);
    if (sv_j_is(&v, SV_J_MISSING))
        v = item(x, obj, name);
    return sv_j_is(&v, SV_J_MISSING) ? sv_j_undef_attr(x, obj, name) : v;
}

struct sv_jval sv_j_getitem(struct sv_jx *x, struct sv_jval obj, struct sv_jval key)
{
    struct sv_jval v;

    if (sv_j_is(&obj, SV_J_UNDEF))
        sv_j_throw_undef(x, &obj);
    v = item(x, obj, key);
    if (sv_j_is(&v, SV_J_MISSING) && sv_j_is(&key, SV_J_STR))
        v = attribute(x, obj, key);
    return sv_j_is(&v, SV_J_MISSING) ? sv_j_undef_attr(x, obj, key) : v;
}

/* ---------------------------------------------------------------- slices */

static int64_t bound(struct sv_jx *x, const struct sv_jval *v, int64_t n, int64_t step,
                     int64_t absent)
{
    int64_t i;

    if (sv_j_is(v, SV_J_MISSING) || sv_j_is(v, SV_J_NONE))
        return absent;
    if (!sv_j_to_int(v, &i))
        sv_j_throw(x, SV_EINVAL, "slice indices must be integers or None");
    if (i < 0) {
        i += n;
        return i < 0 ? (step < 0 ? -1 : 0) : i;
    }
    return i >= n ? (step < 0 ? n - 1 : n) : i;
}

static struct sv_jval slice_str(struct sv_jx *x, struct sv_jval s, int64_t from, int64_t step,
                                int64_t n)
{
    struct sv_jbuild b = {0};
    struct sv_jval v;

    if (step == 1) { /* the common case shares the text */
        size_t first = sv_j_cp_to_byte(x, s.u.s.p, s.u.s.n, (size_t)from);
        size_t len = sv_j_cp_to_byte(x, s.u.s.p + first, s.u.s.n - first, (size_t)n);
        v = sv_j_str(s.u.s.p + first, len);
    } else {
        struct sv_jlist *l = sv_j_iter(x, &s);
        for (int64_t i = 0; i < n; i++)
            sv_j_put_str(x, &b, &l->item[from + i * step]);
        v = sv_j_built(&b);
    }
    v.sub = s.sub;
    return v;
}

struct sv_jval sv_j_slice(struct sv_jx *x, struct sv_jval obj, const struct sv_jval b[3])
{
    int64_t n, step = 1, from, to, count;
    struct sv_jlist *l, *all;

    if (sv_j_is(&obj, SV_J_UNDEF))
        sv_j_throw_undef(x, &obj);
    if (!repeatable(&obj) && !sv_j_is(&obj, SV_J_RANGE))
        sv_j_throw(x, SV_EINVAL, "'%s' object cannot be sliced", sv_j_type_name(&obj));
    n = sv_j_len(x, &obj);
    if (!sv_j_is(&b[2], SV_J_MISSING) && !sv_j_is(&b[2], SV_J_NONE) && !sv_j_to_int(&b[2], &step))
        sv_j_throw(x, SV_EINVAL, "slice indices must be integers or None");
    if (!step)
        sv_j_throw(x, SV_EINVAL, "slice step cannot be zero");
    step = step < -INT64_MAX / 4 ? -INT64_MAX / 4 : step > INT64_MAX / 4 ? INT64_MAX / 4 : step;
    from = bound(x, &b[0], n, step, step < 0 ? n - 1 : 0);
    to = bound(x, &b[1], n, step, step < 0 ? -1 : n);
    count = step > 0 ? (to > from ? (to - from - 1) / step + 1 : 0)
                     : (from > to ? (from - to - 1) / -step + 1 : 0);
    sv_j_step(x, (size_t)count / 8);
    if (sv_j_is(&obj, SV_J_STR))
        return slice_str(x, obj, count ? from : 0, step, count);
    if (sv_j_is(&obj, SV_J_RANGE)) {
        struct sv_jval v = {.kind = SV_J_RANGE};
        const struct sv_jrange *r = obj.u.range;
        v.u.range = sv_j_alloc(x, sizeof *v.u.range);
        *v.u.range = (struct sv_jrange){sv_j_range_at(r, from), sv_j_range_at(r, to),
                                        (int64_t)((uint64_t)r->step * (uint64_t)step), count};
        return v;
    }
    all = obj.u.list;
    l = sv_j_list_new(x, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        sv_j_list_push(x, l, all->item[from + i * step]);
    return sv_j_list((enum sv_jkind)obj.kind, l);
}
