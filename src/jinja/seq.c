/*
 * seq.c - filters over sequences: selecting, mapping, sorting, joining.
 *
 * Called through the table in filter.c. Generators of jinja2 can be iterated once here too, but are
 * computed eagerly. Must not: sort unstably, or change its input.
 */
#include "jinja/run.h"
#include "jinja/text.h"

/* ---------------------------------------------------------------- attribute getters */

struct getter {
    struct sv_jval part[8];
    int n;
    bool lower;               /* strings compare without case */
    struct sv_jval otherwise; /* map's default, or MISSING */
};

static bool is_digits(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] < '0' || p[i] > '9')
            return false;
    return n > 0 && n < 18;
}

/* "a.0.b" becomes three parts; an integer is one; nothing is none. */
static struct getter make_getter(struct sv_jx *x, const struct sv_jval *attr, bool lower)
{
    struct getter g = {.lower = lower};
    struct sv_jval dot = sv_j_cstr(".");
    struct sv_jlist *l;

    if (sv_j_is(attr, SV_J_MISSING) || sv_j_is(attr, SV_J_NONE))
        return g;
    if (!sv_j_is(attr, SV_J_STR)) {
        g.part[g.n++] = *attr;
        return g;
    }
    l = sv_j_split(x, *attr, &dot, -1, false);
    if (l->n > sizeof g.part / sizeof g.part[0])
        sv_j_throw(x, SV_EUNSUPPORTED, "an attribute path of more than 8 parts is not supported");
    for (size_t i = 0; i < l->n; i++) {
        const struct sv_jval *s = &l->item[i];
        int64_t v = 0;
        if (is_digits(s->u.s.p, s->u.s.n) && sv_j_parse_int(x, s->u.s.p, s->u.s.n, 10, &v))
            g.part[g.n++] = sv_j_int(v);
        else
            g.part[g.n++] = *s;
    }
    return g;
}

static struct sv_jval get(struct sv_jx *x, const struct getter *g, struct sv_jval v)
{
    sv_j_step(x, 1);
    for (int i = 0; i < g->n; i++) {
        v = sv_j_getitem(x, v, g->part[i]);
        if (sv_j_is(&v, SV_J_UNDEF) && !sv_j_is(&g->otherwise, SV_J_MISSING))
            v = g->otherwise;
    }
    return g->lower && sv_j_is(&v, SV_J_STR) ? sv_j_lower(x, v) : v;
}

static struct sv_jval generator(struct sv_jlist *l)
{
    return sv_j_list(SV_J_GEN, l);
}

/* ---------------------------------------------------------------- select, reject, map */

struct choice {
    struct getter by;
    int test; /* -1: truth */
    struct sv_jcall rest;
};

static struct sv_jval choose(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c, bool attr,
                             bool keep)
{
    struct sv_jlist *out = sv_j_list_new(x, 0), *in;
    struct choice ch = {.test = -1, .rest = *c};
    size_t off = attr;

    if (!sv_j_truth(&v))
        return generator(out);
    in = sv_j_iter(x, &v);
    if (attr && !c->n_pos)
        sv_j_throw(x, SV_EINVAL, "missing parameter for attribute name");
    if (attr)
        ch.by = make_getter(x, &c->pos[0], false);
    if (c->n_pos > off) {
        const struct sv_jval *name = &c->pos[off];
        ch.test = sv_j_is(name, SV_J_STR) ? sv_j_test_find(name->u.s.p, name->u.s.n) : -1;
        if (ch.test < 0 && in->n)
            sv_j_throw(x, SV_EINVAL, "no test of this name");
        ch.rest.pos += off + 1;
        ch.rest.n_pos -= off + 1;
    }
    for (size_t i = 0; i < in->n; i++) {
        struct sv_jval item = in->item[i], of = get(x, &ch.by, item);
        bool yes = ch.test < 0 ? sv_j_truth(&of) : sv_j_test_call(x, ch.test, &of, &ch.rest);
        if (yes == keep)
            sv_j_list_push(x, out, item);
    }
    return generator(out);
}

static struct sv_jval f_select(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return choose(x, v, c, false, true);
}

static struct sv_jval f_reject(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return choose(x, v, c, false, false);
}

static struct sv_jval f_selectattr(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return choose(x, v, c, true, true);
}

static struct sv_jval f_rejectattr(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return choose(x, v, c, true, false);
}

static struct sv_jval f_map(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jlist *out = sv_j_list_new(x, 0), *in;
    struct sv_jcall rest = *c;
    struct sv_jval arg[2];
    struct getter g = {.n = 0};
    int id = -1;

    if (!sv_j_truth(&v))
        return generator(out);
    in = sv_j_iter(x, &v);
    if (!c->n_pos && sv_j_has_kw(x, c, "attribute", 9, &arg[0])) {
        sv_j_bind(x, "map", "* attribute default", c, arg);
        g = make_getter(x, &arg[0], false);
        if (!sv_j_is(&arg[1], SV_J_NONE))
            g.otherwise = arg[1];
    } else {
        if (!c->n_pos)
            sv_j_throw(x, SV_EINVAL, "map requires a filter argument");
        id =
            sv_j_is(&c->pos[0], SV_J_STR) ? sv_j_filter_find(c->pos[0].u.s.p, c->pos[0].u.s.n) : -1;
        if (id < 0 && in->n)
            sv_j_throw(x, SV_EINVAL, "no filter of this name");
        rest.pos++;
        rest.n_pos--;
    }
    for (size_t i = 0; i < in->n; i++) {
        struct sv_jval item = in->item[i];
        sv_j_enter(x); /* the filter may be map itself */
        sv_j_list_push(x, out, id < 0 ? get(x, &g, item) : sv_j_filter_call(x, id, item, &rest));
        sv_j_leave(x);
    }
    return generator(out);
}

/* ---------------------------------------------------------------- sorting */

struct keyed {
    struct sv_jval key, value;
};

static void sort(struct sv_jx *x, struct keyed *p, struct keyed *scratch, size_t n, bool reverse)
{
    size_t half = n / 2, i = 0, k = half, at = 0;

    if (n < 2)
        return;
    sort(x, p, scratch, half, reverse);
    sort(x, p + half, scratch, n - half, reverse);
    while (i < half && k < n) { /* stable both ways, as Python's sort */
        bool right = reverse ? sv_j_order(x, SV_JO_LT, &p[i].key, &p[k].key)
                             : sv_j_order(x, SV_JO_LT, &p[k].key, &p[i].key);
        scratch[at++] = right ? p[k++] : p[i++];
    }
    while (i < half)
        scratch[at++] = p[i++];
    while (k < n)
        scratch[at++] = p[k++];
    memcpy(p, scratch, n * sizeof *p);
}

static struct sv_jval sorted(struct sv_jx *x, struct keyed *p, size_t n, bool reverse)
{
    struct sv_jlist *l = sv_j_list_new(x, n);

    sort(x, p, p + n, n, reverse);
    for (size_t i = 0; i < n; i++)
        sv_j_list_push(x, l, p[i].value);
    return sv_j_list(SV_J_LIST, l);
}

static struct keyed *keyed_room(struct sv_jx *x, size_t n)
{
    return sv_j_alloc(x, 2 * n * sizeof(struct keyed));
}

static struct sv_jval f_sort(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[3], comma = sv_j_cstr(",");
    struct sv_jlist *in = sv_j_iter(x, &v), *names = sv_j_list_new(x, 1);
    struct keyed *p = keyed_room(x, in->n);

    sv_j_bind(x, "sort", "reverse case_sensitive attribute", c, arg);
    if (sv_j_is(&arg[2], SV_J_STR))
        names = sv_j_split(x, arg[2], &comma, -1, false);
    else
        sv_j_list_push(x, names, arg[2]);
    /* the key is a list, as jinja2's: one entry per attribute */
    for (size_t i = 0; i < in->n; i++) {
        struct sv_jlist *key = sv_j_list_new(x, names->n);
        for (size_t k = 0; k < names->n; k++) {
            struct getter g = make_getter(x, &names->item[k], !sv_j_truth(&arg[1]));
            sv_j_list_push(x, key, get(x, &g, in->item[i]));
        }
        p[i] = (struct keyed){sv_j_list(SV_J_LIST, key), in->item[i]};
    }
    return sorted(x, p, in->n, sv_j_truth(&arg[0]));
}

static struct sv_jval f_dictsort(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[3];
    struct keyed *p;
    bool by_value;

    sv_j_bind(x, "dictsort", "case_sensitive by reverse", c, arg);
    by_value = sv_j_str_eq(&arg[1], "value");
    if (!by_value && !sv_j_is(&arg[1], SV_J_MISSING) && !sv_j_str_eq(&arg[1], "key"))
        sv_j_throw(x, SV_EINVAL, "You can only sort by either \"key\" or \"value\"");
    if (sv_j_is(&v, SV_J_UNDEF))
        sv_j_throw_undef(x, &v);
    if (!sv_j_is(&v, SV_J_DICT))
        sv_j_throw(x, SV_EINVAL, "'%s' object has no attribute 'items'", sv_j_type_name(&v));
    p = keyed_room(x, v.u.dict->n);
    for (size_t i = 0; i < v.u.dict->n; i++) {
        struct sv_jpair *pair = &v.u.dict->pair[i];
        p[i].key = by_value ? pair->value : pair->key;
        if (!sv_j_truth(&arg[0]) && sv_j_is(&p[i].key, SV_J_STR))
            p[i].key = sv_j_lower(x, p[i].key);
        p[i].value = sv_j_pair(x, pair->key, pair->value);
    }
    return sorted(x, p, v.u.dict->n, sv_j_truth(&arg[2]));
}

static struct sv_jval f_groupby(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[3], all;
    struct sv_jlist *in = sv_j_iter(x, &v), *out = sv_j_list_new(x, 0), *group = NULL;
    struct keyed *p = keyed_room(x, in->n);
    struct getter g, plain;
    struct sv_jval last = sv_j_missing();

    sv_j_bind(x, "groupby", "attribute default case_sensitive", c, arg);
    g = make_getter(x, &arg[0], !sv_j_truth(&arg[2]));
    plain = make_getter(x, &arg[0], false);
    if (!sv_j_is(&arg[1], SV_J_NONE))
        g.otherwise = plain.otherwise = arg[1];
    for (size_t i = 0; i < in->n; i++)
        p[i] = (struct keyed){get(x, &g, in->item[i]), in->item[i]};
    all = sorted(x, p, in->n, false);
    for (size_t i = 0; i < all.u.list->n; i++) {
        struct sv_jval item = all.u.list->item[i], key = get(x, &g, item);
        if (!group || !sv_j_eq(x, &key, &last)) {
            group = sv_j_list_new(x, 0);
            sv_j_list_push(x, out, sv_j_pair(x, get(x, &plain, item), sv_j_list(SV_J_LIST, group)));
            last = key;
        }
        sv_j_list_push(x, group, item);
    }
    return sv_j_list(SV_J_LIST, out);
}

static struct sv_jval extreme(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c,
                              enum sv_jop op)
{
    struct sv_jval arg[2], best, key;
    struct sv_jlist *in = sv_j_iter(x, &v);
    struct getter g;

    sv_j_bind(x, "min or max", "case_sensitive attribute", c, arg);
    if (!in->n)
        return sv_j_undef(x, "No aggregated item, sequence was empty.");
    g = make_getter(x, &arg[1], !sv_j_truth(&arg[0]));
    best = in->item[0];
    key = get(x, &g, best);
    for (size_t i = 1; i < in->n; i++) {
        struct sv_jval k = get(x, &g, in->item[i]);
        if (sv_j_order(x, op, &k, &key)) {
            best = in->item[i];
            key = k;
        }
    }
    return best;
}

static struct sv_jval f_min(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return extreme(x, v, c, SV_JO_LT);
}

static struct sv_jval f_max(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return extreme(x, v, c, SV_JO_GT);
}

/* ---------------------------------------------------------------- the rest */

static struct sv_jval f_list(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jlist *in = sv_j_iter(x, &v), *out = sv_j_list_new(x, in->n);

    sv_j_bind(x, "list", "", c, NULL);
    for (size_t i = 0; i < in->n; i++)
        sv_j_list_push(x, out, in->item[i]);
    return sv_j_list(SV_J_LIST, out);
}

static struct sv_jval f_items(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    sv_j_bind(x, "items", "", c, NULL);
    if (sv_j_is(&v, SV_J_UNDEF))
        return generator(sv_j_list_new(x, 0));
    if (!sv_j_is(&v, SV_J_DICT))
        sv_j_throw(x, SV_EINVAL, "Can only get item pairs from a mapping.");
    v.kind = SV_J_VIEW;
    v.sub = SV_J_ITEMS;
    return generator(sv_j_iter(x, &v));
}

static struct sv_jval f_join(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[2], sep;
    struct sv_jlist *in;
    struct sv_jbuild b = {0};
    struct getter g;

    sv_j_bind(x, "join", "d attribute", c, arg);
    sep = sv_j_is(&arg[0], SV_J_MISSING) ? sv_j_cstr("") : sv_j_to_str(x, &arg[0]);
    g = make_getter(x, &arg[1], false);
    in = sv_j_iter(x, &v);
    for (size_t i = 0; i < in->n; i++) {
        struct sv_jval item = get(x, &g, in->item[i]);
        sv_j_put(x, &b, sep.u.s.p, i ? sep.u.s.n : 0);
        sv_j_put_str(x, &b, &item);
    }
    return sv_j_built(&b);
}

static struct sv_jval f_first(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    sv_j_bind(x, "first", "", c, NULL);
    if (sv_j_is(&v, SV_J_GEN) && v.u.list->next < v.u.list->n)
        return v.u.list->item[v.u.list->next++];
    struct sv_jlist *in = sv_j_iter(x, &v);
    return in->n ? in->item[0] : sv_j_undef(x, "No first item, sequence was empty.");
}

static void need_reversible(struct sv_jx *x, const struct sv_jval *v)
{
    if (sv_j_is(v, SV_J_UNDEF))
        return;
    if (sv_j_is(v, SV_J_GEN) || !sv_j_iterable(v) || sv_j_is(v, SV_J_LOOP))
        sv_j_throw(x, SV_EINVAL, "'%s' object is not reversible", sv_j_type_name(v));
}

static struct sv_jval f_last(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jlist *in;

    sv_j_bind(x, "last", "", c, NULL);
    need_reversible(x, &v);
    in = sv_j_iter(x, &v);
    return in->n ? in->item[in->n - 1] : sv_j_undef(x, "No last item, sequence was empty.");
}

static struct sv_jval f_reverse(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    static const struct sv_jval all[2];
    struct sv_jlist *in, *out;

    sv_j_bind(x, "reverse", "", c, NULL);
    if (sv_j_is(&v, SV_J_STR)) {
        struct sv_jval back[3] = {all[0], all[1], sv_j_int(-1)};
        return sv_j_slice(x, v, back);
    }
    in = sv_j_iter(x, &v);
    out = sv_j_list_new(x, in->n);
    for (size_t i = in->n; i-- > 0;)
        sv_j_list_push(x, out, in->item[i]);
    /* a generator has no reverse iterator, so jinja2 makes a list of it */
    return sv_j_list(sv_j_is(&v, SV_J_GEN) ? SV_J_LIST : SV_J_GEN, out);
}

static struct sv_jval f_unique(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[2];
    struct sv_jlist *in = sv_j_iter(x, &v), *out = sv_j_list_new(x, 0);
    struct sv_jdict *seen = sv_j_dict_new(x, 0);
    struct getter g;

    sv_j_bind(x, "unique", "case_sensitive attribute", c, arg);
    g = make_getter(x, &arg[1], !sv_j_truth(&arg[0]));
    for (size_t i = 0; i < in->n; i++) {
        struct sv_jval key = get(x, &g, in->item[i]);
        if (sv_j_dict_get(x, seen, key))
            continue;
        sv_j_dict_add(x, seen, key, sv_j_none());
        sv_j_list_push(x, out, in->item[i]);
    }
    return generator(out);
}

static struct sv_jval f_sum(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[2], total;
    struct sv_jlist *in = sv_j_iter(x, &v);
    struct getter g;

    sv_j_bind(x, "sum", "attribute start", c, arg);
    g = make_getter(x, &arg[0], false);
    total = sv_j_is(&arg[1], SV_J_MISSING) ? sv_j_int(0) : arg[1];
    if (sv_j_is(&total, SV_J_STR))
        sv_j_throw(x, SV_EINVAL, "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < in->n; i++)
        total = sv_j_binary(x, SV_JO_ADD, total, get(x, &g, in->item[i]));
    return total;
}

static struct sv_jval f_batch(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[2];
    struct sv_jlist *in = sv_j_iter(x, &v), *out = sv_j_list_new(x, 0), *row = NULL;
    int64_t size;

    sv_j_bind(x, "batch", "linecount fill_with", c, arg);
    if (!sv_j_to_int(&arg[0], &size))
        sv_j_throw(x, SV_EINVAL, "batch: linecount must be an integer");
    for (size_t i = 0; i < in->n; i++) {
        if (!row || (int64_t)row->n == size) {
            if (!row && size == 0) /* jinja2 yields an empty first row */
                sv_j_list_push(x, out, sv_j_list(SV_J_LIST, sv_j_list_new(x, 0)));
            row = sv_j_list_new(x, 0);
            sv_j_list_push(x, out, sv_j_list(SV_J_LIST, row));
        }
        sv_j_list_push(x, row, in->item[i]);
    }
    while (row && (int64_t)row->n < size && !sv_j_is(&arg[1], SV_J_MISSING) &&
           !sv_j_is(&arg[1], SV_J_NONE)) {
        sv_j_step(x, 1);
        sv_j_list_push(x, row, arg[1]);
    }
    return generator(out);
}

static struct sv_jval f_slice(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[2];
    struct sv_jlist *in = sv_j_iter(x, &v), *out = sv_j_list_new(x, 0);
    int64_t slices, at = 0;
    bool fill;

    sv_j_bind(x, "slice", "slices fill_with", c, arg);
    if (!sv_j_to_int(&arg[0], &slices) || slices == 0)
        sv_j_throw(x, SV_EINVAL, "slice: the number of slices must be a positive integer");
    fill = !sv_j_is(&arg[1], SV_J_MISSING) && !sv_j_is(&arg[1], SV_J_NONE);
    for (int64_t i = 0; i < slices; i++) {
        int64_t extra = (int64_t)in->n % slices, n = (int64_t)in->n / slices + (i < extra);
        struct sv_jlist *row = sv_j_list_new(x, (size_t)n + 1);
        sv_j_step(x, 1);
        for (int64_t k = 0; k < n; k++)
            sv_j_list_push(x, row, in->item[at++]);
        if (fill && i >= extra)
            sv_j_list_push(x, row, arg[1]);
        sv_j_list_push(x, out, sv_j_list(SV_J_LIST, row));
    }
    return generator(out);
}

const struct sv_jfilter sv_j_seq_filters[] = {
    {"batch", f_batch},
    {"dictsort", f_dictsort},
    {"first", f_first},
    {"groupby", f_groupby},
    {"items", f_items},
    {"join", f_join},
    {"last", f_last},
    {"list", f_list},
    {"map", f_map},
    {"max", f_max},
    {"min", f_min},
    {"reject", f_reject},
    {"rejectattr", f_rejectattr},
    {"reverse", f_reverse},
    {"select", f_select},
    {"selectattr", f_selectattr},
    {"slice", f_slice},
    {"sort", f_sort},
    {"sum", f_sum},
    {"unique", f_unique},
    {NULL, NULL},
};
