/*
 * eval.c - the tree walker's half for expressions.
 *
 * Called by exec.c and recursively; every node counts a step, every level depth. Must not: write
 * output.
 */
#include "jinja/run.h"

static struct sv_jval lookup(struct sv_jx *x, const struct sv_jnode *n)
{
    size_t looked = 0;

    for (const struct sv_jscope *s = x->scope; s; s = s->parent)
        for (const struct sv_jvar *v = s->vars; v; v = v->next, looked++)
            if (v->id == n->id && !sv_j_is(&v->value, SV_J_MISSING)) {
                sv_j_walked(x, looked);
                return v->value;
            }
    sv_j_walked(x, looked);
    if (!sv_j_is(&x->context[n->id], SV_J_MISSING))
        return x->context[n->id];
    return sv_j_undef_name(x, n->value);
}

static size_t count_args(const struct sv_jarg *a)
{
    size_t n = 0;
    for (; a; a = a->next)
        n++;
    return n;
}

static void add_kw(struct sv_jx *x, struct sv_jcall *c, size_t *cap, struct sv_jkw kw)
{
    struct sv_jval other;

    if (sv_j_has_kw(x, c, kw.name, kw.n_name, &other))
        sv_j_throw(x, SV_EINVAL, "got multiple values for keyword argument '%.*s'",
                   sv_j_cut(kw.n_name), kw.name);
    if (c->n_kw == *cap) {
        size_t more = *cap ? 2 * *cap : 8;
        struct sv_jkw *list = sv_j_alloc(x, more * sizeof *list);
        if (c->n_kw)
            memcpy(list, c->kw, c->n_kw * sizeof *list);
        c->kw = list;
        *cap = more;
    }
    c->kw[c->n_kw++] = kw;
}

static void spread_kw(struct sv_jx *x, struct sv_jcall *c, size_t *cap, const struct sv_jval *v)
{
    if (!sv_j_is(v, SV_J_DICT))
        sv_j_throw(x, SV_EINVAL, "argument after ** must be a mapping, not %s", sv_j_type_name(v));
    for (size_t i = 0; i < v->u.dict->n; i++) {
        const struct sv_jpair *p = &v->u.dict->pair[i];
        sv_j_step(x, 1);
        if (!sv_j_is(&p->key, SV_J_STR))
            sv_j_throw(x, SV_EINVAL, "keywords must be strings");
        add_kw(x, c, cap, (struct sv_jkw){p->key.u.s.p, p->key.u.s.n, p->value});
    }
}

static void eval_args(struct sv_jx *x, const struct sv_jarg *a, struct sv_jcall *c)
{
    size_t cap_kw = 0;
    struct sv_jlist *pos;

    *c = (struct sv_jcall){0};
    if (!a)
        return;
    pos = sv_j_list_new(x, count_args(a));
    for (; a; a = a->next) {
        struct sv_jval v = sv_j_eval(x, a->value);
        if (a->spread == 1) {
            struct sv_jlist *l = sv_j_iter(x, &v);
            for (size_t i = 0; i < l->n; i++)
                sv_j_list_push(x, pos, l->item[i]);
        } else if (a->spread == 2) {
            spread_kw(x, c, &cap_kw, &v);
        } else if (a->name) {
            add_kw(x, c, &cap_kw, (struct sv_jkw){a->name, a->n_name, v});
        } else {
            sv_j_list_push(x, pos, v);
        }
    }
    c->pos = pos->item;
    c->n_pos = pos->n;
}

struct sv_jval sv_j_eval_call(struct sv_jx *x, const struct sv_jnode *n,
                              const struct sv_jval *caller)
{
    struct sv_jval fn = sv_j_eval(x, n->a);
    struct sv_jcall c;

    eval_args(x, n->args, &c);
    if (caller) {
        size_t cap = c.n_kw;
        add_kw(x, &c, &cap, (struct sv_jkw){"caller", 6, *caller});
    }
    x->pos = n->pos;
    return sv_j_call(x, fn, &c);
}

struct sv_jval sv_j_eval_filters(struct sv_jx *x, const struct sv_jnode *n,
                                 const struct sv_jval *input)
{
    struct sv_jval v;
    struct sv_jcall c;

    sv_j_enter(x);
    if (!n->a)
        v = *input;
    else if (n->a->type == SV_JN_FILTER)
        v = sv_j_eval_filters(x, n->a, input);
    else
        v = sv_j_eval(x, n->a);
    eval_args(x, n->args, &c);
    x->pos = n->pos;
    if (n->id < 0)
        sv_j_throw(x, SV_EINVAL, "no filter named '%.*s' found", sv_j_cut(n->value.u.s.n),
                   n->value.u.s.p);
    v = sv_j_filter_call(x, n->id, v, &c);
    sv_j_leave(x);
    return v;
}

static struct sv_jval eval_test(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval v = sv_j_eval(x, n->a);
    struct sv_jcall c;

    eval_args(x, n->args, &c);
    x->pos = n->pos;
    if (n->id < 0)
        sv_j_throw(x, SV_EINVAL, "no test named '%.*s' found", sv_j_cut(n->value.u.s.n),
                   n->value.u.s.p);
    return sv_j_bool(sv_j_test_call(x, n->id, &v, &c));
}

static struct sv_jval eval_list(struct sv_jx *x, const struct sv_jnode *n, enum sv_jkind kind)
{
    struct sv_jlist *l = sv_j_list_new(x, 0);

    for (const struct sv_jnode *k = n->kids; k; k = k->next)
        sv_j_list_push(x, l, sv_j_eval(x, k));
    return sv_j_list(kind, l);
}

static struct sv_jval eval_dict(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval v = {.kind = SV_J_DICT};

    v.u.dict = sv_j_dict_new(x, 0);
    for (const struct sv_jnode *k = n->kids; k; k = k->next->next) {
        struct sv_jval key = sv_j_eval(x, k), value = sv_j_eval(x, k->next);
        x->pos = n->pos;
        sv_j_dict_set(x, v.u.dict, key, value);
    }
    return v;
}

static struct sv_jval eval_item(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval obj = sv_j_eval(x, n->a), key, bound[3];
    const struct sv_jnode *s = n->b;

    if (s->type == SV_JN_SLICE) {
        bound[0] = s->a ? sv_j_eval(x, s->a) : sv_j_missing();
        bound[1] = s->b ? sv_j_eval(x, s->b) : sv_j_missing();
        bound[2] = s->c ? sv_j_eval(x, s->c) : sv_j_missing();
        x->pos = n->pos;
        return sv_j_slice(x, obj, bound);
    }
    key = sv_j_eval(x, s);
    x->pos = n->pos;
    return sv_j_getitem(x, obj, key);
}

static struct sv_jval eval_compare(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval left = sv_j_eval(x, n->a);

    for (const struct sv_jnode *k = n->kids; k; k = k->next) {
        struct sv_jval right = sv_j_eval(x, k->a);
        x->pos = k->pos;
        if (!sv_j_compare(x, (enum sv_jop)k->op, &left, &right))
            return sv_j_bool(false);
        left = right;
    }
    return sv_j_bool(true);
}

static struct sv_jval eval_concat(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jbuild b = {0};

    for (const struct sv_jnode *k = n->kids; k; k = k->next) {
        struct sv_jval v = sv_j_eval(x, k);
        sv_j_put_str(x, &b, &v);
    }
    return sv_j_built(&b);
}

static struct sv_jval eval_logic(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval v = sv_j_eval(x, n->a);
    return sv_j_truth(&v) == (n->type == SV_JN_OR) ? v : sv_j_eval(x, n->b);
}

static struct sv_jval eval_cond(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval v = sv_j_eval(x, n->a);

    if (sv_j_truth(&v))
        return sv_j_eval(x, n->b);
    if (n->c)
        return sv_j_eval(x, n->c);
    return sv_j_undef(
        x, "the inline if-expression evaluated to false and no else section was defined.");
}

static struct sv_jval eval_unary(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval v = sv_j_eval(x, n->a);

    x->pos = n->pos;
    if (n->type == SV_JN_NOT)
        return sv_j_bool(!sv_j_truth(&v));
    if (n->type == SV_JN_ATTR)
        return sv_j_getattr(x, v, n->value);
    return sv_j_negate(x, v, n->type == SV_JN_NEG);
}

static struct sv_jval eval_binary(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval a = sv_j_eval(x, n->a), b = sv_j_eval(x, n->b);

    x->pos = n->pos;
    return sv_j_binary(x, (enum sv_jop)n->op, a, b);
}

static struct sv_jval eval_compound(struct sv_jx *x, const struct sv_jnode *n)
{
    switch (n->type) {
    case SV_JN_LIST:
        return eval_list(x, n, SV_J_LIST);
    case SV_JN_TUPLE:
        return eval_list(x, n, SV_J_TUPLE);
    case SV_JN_DICT:
        return eval_dict(x, n);
    case SV_JN_ITEM:
        return eval_item(x, n);
    case SV_JN_CALL:
        return sv_j_eval_call(x, n, NULL);
    case SV_JN_FILTER:
        return sv_j_eval_filters(x, n, NULL);
    case SV_JN_TEST:
        return eval_test(x, n);
    case SV_JN_BIN:
        return eval_binary(x, n);
    case SV_JN_AND:
    case SV_JN_OR:
        return eval_logic(x, n);
    case SV_JN_COMPARE:
        return eval_compare(x, n);
    case SV_JN_CONCAT:
        return eval_concat(x, n);
    case SV_JN_COND:
        return eval_cond(x, n);
    default:
        return eval_unary(x, n);
    }
}

struct sv_jval sv_j_eval(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval v;

    sv_j_step(x, 1);
    x->pos = n->pos;
    if (n->type == SV_JN_CONST)
        return n->value;
    if (n->type == SV_JN_NAME)
        return lookup(x, n);
    sv_j_enter(x);
    v = eval_compound(x, n);
    sv_j_leave(x);
    return v;
}
