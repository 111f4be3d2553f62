/*
 * func.c - global functions of templates: range, dict, namespace, cycler, joiner,
 * raise_exception, strftime_now.
 *
 * Called by the tree walker. Must not: read a clock; the time is the caller's.
 */
#define _GNU_SOURCE /* gmtime_r */

#include "jinja/run.h"

#include <time.h>

enum { RANGE, DICT, NAMESPACE, CYCLER, JOINER, RAISE, STRFTIME };

static const char *const names[] = {
    "range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now",
};

#define MAX_RANGE 100000 /* the sandbox's */

int sv_j_func_find(const char *p, size_t n)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == n && memcmp(names[i], p, n) == 0)
            return (int)i;
    return -1;
}

static struct sv_jval make_range(struct sv_jx *x, const struct sv_jcall *c)
{
    int64_t arg[3] = {0, 0, 1};
    struct sv_jval v = {.kind = SV_J_RANGE};
    uint64_t n;

    if (c->n_kw || c->n_pos < 1 || c->n_pos > 3)
        sv_j_throw(x, SV_EINVAL, "range expected 1 to 3 arguments");
    for (size_t i = 0; i < c->n_pos; i++) {
        if (sv_j_is(&c->pos[i], SV_J_UNDEF))
            sv_j_throw_undef(x, &c->pos[i]);
        if (!sv_j_to_int(&c->pos[i], &arg[c->n_pos == 1 ? 1 : i]))
            sv_j_throw(x, SV_EINVAL, "'%s' object cannot be interpreted as an integer",
                       sv_j_type_name(&c->pos[i]));
    }
    if (!arg[2])
        sv_j_throw(x, SV_EINVAL, "range() arg 3 must not be zero");
    n = arg[2] > 0 ? (uint64_t)arg[1] - (uint64_t)arg[0] : (uint64_t)arg[0] - (uint64_t)arg[1];
    if (arg[2] > 0 ? arg[0] >= arg[1] : arg[0] <= arg[1])
        n = 0;
    else
        n = (n - 1) / (arg[2] > 0 ? (uint64_t)arg[2] : 0 - (uint64_t)arg[2]) + 1;
    if (n > MAX_RANGE)
        sv_j_throw(x, SV_EINVAL, "Range too big. The sandbox blocks ranges larger than %d.",
                   MAX_RANGE);
    v.u.range = sv_j_alloc(x, sizeof *v.u.range);
    *v.u.range = (struct sv_jrange){arg[0], arg[1], arg[2], (int64_t)n};
    return v;
}

/* dict(mapping or pairs, **more), for dict and namespace. */
static struct sv_jdict *make_dict(struct sv_jx *x, const struct sv_jcall *c)
{
    struct sv_jdict *d = sv_j_dict_new(x, c->n_kw);

    if (c->n_pos > 1)
        sv_j_throw(x, SV_EINVAL, "dict expected at most 1 argument, got %zu", c->n_pos);
    if (c->n_pos && sv_j_is(&c->pos[0], SV_J_DICT)) {
        for (size_t i = 0; i < c->pos[0].u.dict->n; i++)
            sv_j_dict_add(x, d, c->pos[0].u.dict->pair[i].key, c->pos[0].u.dict->pair[i].value);
    } else if (c->n_pos) {
        struct sv_jlist *l = sv_j_iter(x, &c->pos[0]);
        for (size_t i = 0; i < l->n; i++) {
            struct sv_jlist *pair = sv_j_iter(x, &l->item[i]);
            if (pair->n != 2)
                sv_j_throw(x, SV_EINVAL,
                           "dictionary update sequence element #%zu has length %zu; "
                           "2 is required",
                           i, pair->n);
            sv_j_dict_set(x, d, pair->item[0], pair->item[1]);
        }
    }
    for (size_t i = 0; i < c->n_kw; i++)
        sv_j_dict_set(x, d, sv_j_str(c->kw[i].name, c->kw[i].n_name), c->kw[i].value);
    return d;
}

static struct sv_jval make_cycler(struct sv_jx *x, const struct sv_jcall *c)
{
    struct sv_jval v = {.kind = SV_J_CYCLER};

    if (!c->n_pos || c->n_kw)
        sv_j_throw(x, SV_EINVAL, "at least one item has to be provided");
    v.u.cycler = sv_j_alloc(x, sizeof *v.u.cycler);
    *v.u.cycler = (struct sv_jcycler){c->pos, c->n_pos, 0};
    return v;
}

static struct sv_jval make_joiner(struct sv_jx *x, const struct sv_jcall *c)
{
    struct sv_jval v = {.kind = SV_J_JOINER}, *sep = sv_j_alloc(x, sizeof *sep);

    sv_j_bind(x, "joiner", "sep", c, sep);
    if (sv_j_is(sep, SV_J_MISSING))
        *sep = sv_j_cstr(", ");
    v.u.cycler = sv_j_alloc(x, sizeof *v.u.cycler);
    *v.u.cycler = (struct sv_jcycler){sep, 1, 0};
    return v;
}

/* One directive "%...c" of n bytes. Python's own: %f, and %z and %Z, which are empty without a
 * zone. */
static void put_directive(struct sv_jx *x, struct sv_jbuild *b, const char *p, size_t n,
                          const struct tm *tm)
{
    char fmt[16], text[256];

    if (p[n - 1] == 'f') {
        sv_j_puts(x, b, "000000");
        return;
    }
    if (p[n - 1] == 'z' || p[n - 1] == 'Z')
        return;
    if (n >= sizeof fmt - 1)
        sv_j_throw(x, SV_EINVAL, "strftime_now: a directive is too long");
    memcpy(fmt, p, n);
    fmt[n] = '|'; /* distinguishes an empty result from failure */
    fmt[n + 1] = 0;
    n = strftime(text, sizeof text, fmt, tm);
    sv_j_put(x, b, text, n ? n - 1 : 0);
}

static struct sv_jval strftime_now(struct sv_jx *x, const struct sv_jcall *c)
{
    struct sv_jval arg[1];
    struct sv_jbuild b = {0};
    struct tm tm;
    time_t now = (time_t)x->now;

    sv_j_bind(x, "strftime_now", "format", c, arg);
    if (!sv_j_is(&arg[0], SV_J_STR))
        sv_j_throw(x, SV_EINVAL, "strftime() argument 1 must be str, not %s",
                   sv_j_type_name(&arg[0]));
    if (!gmtime_r(&now, &tm))
        sv_j_throw(x, SV_EINVAL, "strftime_now: the time is out of range");
    for (size_t i = 0, n = arg[0].u.s.n; i < n;) {
        const char *p = arg[0].u.s.p + i;
        size_t len = 1;
        sv_j_step(x, *p == '%' ? 8 : 1);
        if (*p == '%' && i + 1 < n) {
            while (i + len < n && len < 16 && p[len] && strchr("_-0^#EO123456789", p[len]))
                len++;
            len += i + len < n;
            put_directive(x, &b, p, len, &tm);
        } else {
            sv_j_putc(x, &b, *p);
        }
        i += len;
    }
    return sv_j_built(&b);
}

static struct sv_jval call_global(struct sv_jx *x, int id, const struct sv_jcall *c)
{
    struct sv_jval arg[1], v = {.kind = SV_J_DICT};

    sv_j_step(x, 1);
    switch (id) {
    case RANGE:
        return make_range(x, c);
    case DICT:
    case NAMESPACE:
        v.kind = id == DICT ? SV_J_DICT : SV_J_NS;
        v.u.dict = make_dict(x, c);
        return v;
    case CYCLER:
        return make_cycler(x, c);
    case JOINER:
        return make_joiner(x, c);
    case STRFTIME:
        return strftime_now(x, c);
    default:
        sv_j_bind(x, "raise_exception", "message", c, arg);
        if (sv_j_is(&arg[0], SV_J_MISSING))
            sv_j_throw(x, SV_EINVAL, "raise_exception needs a message");
        v = sv_j_to_str(x, &arg[0]);
        sv_j_throw_text(x, v.u.s.p, v.u.s.n);
    }
}

/* ---------------------------------------------------------------- calls of any kind */

enum { CYCLER_NEXT = 1000, CYCLER_RESET, LOOP_CYCLE, LOOP_CHANGED };

static struct sv_jval bound(struct sv_jx *x, struct sv_jval self, int id)
{
    struct sv_jval v = {.kind = SV_J_METHOD};

    v.u.method = sv_j_alloc(x, sizeof *v.u.method);
    *v.u.method = (struct sv_jmethod){self, id};
    return v;
}

struct sv_jval sv_j_cycler_attr(struct sv_jx *x, struct sv_jval v, const struct sv_jval *name)
{
    if (sv_j_str_eq(name, "current"))
        return v.u.cycler->item[v.u.cycler->at];
    if (sv_j_str_eq(name, "next"))
        return bound(x, v, CYCLER_NEXT);
    return sv_j_str_eq(name, "reset") ? bound(x, v, CYCLER_RESET) : sv_j_missing();
}

struct sv_jval sv_j_loop_attr(struct sv_jx *x, struct sv_jval v, const struct sv_jval *name)
{
    const struct sv_jloop *l = v.u.loop;
    int64_t i = (int64_t)l->index0, n = (int64_t)l->items->n;

    if (sv_j_str_eq(name, "index"))
        return sv_j_int(i + 1);
    if (sv_j_str_eq(name, "index0"))
        return sv_j_int(i);
    if (sv_j_str_eq(name, "revindex"))
        return sv_j_int(n - i);
    if (sv_j_str_eq(name, "revindex0"))
        return sv_j_int(n - i - 1);
    if (sv_j_str_eq(name, "first"))
        return sv_j_bool(i == 0);
    if (sv_j_str_eq(name, "last"))
        return sv_j_bool(i + 1 >= n);
    if (sv_j_str_eq(name, "length"))
        return sv_j_int(n);
    if (sv_j_str_eq(name, "depth"))
        return sv_j_int(l->depth0 + 1);
    if (sv_j_str_eq(name, "depth0"))
        return sv_j_int(l->depth0);
    if (sv_j_str_eq(name, "previtem"))
        return i ? l->items->item[i - 1] : sv_j_undef(x, "there is no previous item");
    if (sv_j_str_eq(name, "nextitem"))
        return i + 1 < n ? l->items->item[i + 1] : sv_j_undef(x, "there is no next item");
    if (sv_j_str_eq(name, "cycle"))
        return bound(x, v, LOOP_CYCLE);
    return sv_j_str_eq(name, "changed") ? bound(x, v, LOOP_CHANGED) : sv_j_missing();
}

static struct sv_jval helper_call(struct sv_jx *x, const struct sv_jmethod *m,
                                  const struct sv_jcall *c)
{
    struct sv_jcycler *cy = m->self.u.cycler;
    struct sv_jloop *l = m->self.u.loop;
    struct sv_jval v;

    if (c->n_kw)
        sv_j_throw(x, SV_EINVAL, "no keyword arguments are taken here");
    switch (m->id) {
    case CYCLER_NEXT:
        v = cy->item[cy->at];
        cy->at = (cy->at + 1) % cy->n;
        return v;
    case CYCLER_RESET:
        cy->at = 0;
        return sv_j_none();
    case LOOP_CYCLE:
        if (!c->n_pos)
            sv_j_throw(x, SV_EINVAL, "no items for cycling given");
        return c->pos[l->index0 % c->n_pos];
    default:
        v = sv_j_list(SV_J_TUPLE, sv_j_list_new(x, c->n_pos));
        for (size_t i = 0; i < c->n_pos; i++)
            sv_j_list_push(x, v.u.list, c->pos[i]);
        if (!sv_j_is(&l->last, SV_J_MISSING) && sv_j_eq(x, &v, &l->last))
            return sv_j_bool(false);
        l->last = v;
        return sv_j_bool(true);
    }
}

struct sv_jval sv_j_call(struct sv_jx *x, struct sv_jval fn, const struct sv_jcall *c)
{
    struct sv_jcycler *j;

    switch (fn.kind) {
    case SV_J_FUNC:
        return call_global(x, (int)fn.u.i, c);
    case SV_J_METHOD:
        return fn.u.method->id >= CYCLER_NEXT ? helper_call(x, fn.u.method, c)
                                              : sv_j_method_call(x, fn.u.method, c);
    case SV_J_MACRO:
        return sv_j_macro_call(x, fn.u.macro, c);
    case SV_J_LOOP:
        return sv_j_loop_call(x, fn.u.loop, c);
    case SV_J_JOINER:
        j = fn.u.cycler;
        return j->at++ ? j->item[0] : sv_j_cstr("");
    case SV_J_UNDEF:
        sv_j_throw_undef(x, &fn);
    default:
        sv_j_throw(x, SV_EINVAL, "'%s' object is not callable", sv_j_type_name(&fn));
    }
}
