/*
 * exec.c - the tree walker's half for statements: output, loops, assignments, macros and
 * scopes.
 *
 * Called by template.c. Scopes are jinja2's: for, macro, call, filter, with, generation and the
 * block form of set open one, if does not. Must not: let an assignment leave the scope it was made
 * in.
 */
#include "jinja/run.h"

enum flow { NEXT, BREAK, CONTINUE };

static enum flow run(struct sv_jx *x, const struct sv_jnode *body);

/* ---------------------------------------------------------------- scopes */

static struct sv_jvar *find_var(struct sv_jx *x, const struct sv_jscope *scope, int name)
{
    struct sv_jvar *var = scope->vars;
    size_t looked = 0;

    for (; var && var->id != name; var = var->next)
        looked++;
    sv_j_walked(x, looked);
    return var;
}

static void set_var(struct sv_jx *x, struct sv_jscope *scope, int name, struct sv_jval v)
{
    struct sv_jvar *var = find_var(x, scope, name);

    if (!var) {
        var = sv_j_alloc(x, sizeof *var);
        var->id = name;
        var->next = scope->vars;
        scope->vars = var;
    }
    var->value = v;
}

static struct sv_jscope *new_scope(struct sv_jx *x, struct sv_jscope *parent)
{
    struct sv_jscope *s = sv_j_alloc(x, sizeof *s);
    s->parent = parent;
    return s;
}

static void assign_target(struct sv_jx *x, struct sv_jscope *scope, const struct sv_jnode *target,
                          struct sv_jval v)
{
    const struct sv_jnode *k = target->kids;
    struct sv_jlist *l;
    size_t i = 0;

    if (target->type == SV_JN_NAME) {
        set_var(x, scope, target->id, v);
        return;
    }
    x->pos = target->pos;
    if (target->type == SV_JN_NSREF) {
        struct sv_jnode name = {.type = SV_JN_NAME, .id = target->id, .pos = target->pos};
        struct sv_jval ns;
        name.value = sv_j_str(x->t->name[target->id].p, x->t->name[target->id].n);
        ns = sv_j_eval(x, &name);
        if (!sv_j_is(&ns, SV_J_NS))
            sv_j_throw(x, SV_EINVAL, "cannot assign attribute on non-namespace object");
        sv_j_dict_set(x, ns.u.dict, target->value, v);
        return;
    }
    l = sv_j_iter(x, &v);
    for (; k && i < l->n; k = k->next)
        assign_target(x, scope, k, l->item[i++]);
    if (k)
        sv_j_throw(x, SV_EINVAL, "not enough values to unpack (got %zu)", l->n);
    if (i < l->n)
        sv_j_throw(x, SV_EINVAL, "too many values to unpack (expected %zu)", i);
}

/* Runs a body in its own scope and captures its output. */
static enum flow capture(struct sv_jx *x, const struct sv_jnode *body, struct sv_jscope *scope,
                         struct sv_jval *text)
{
    struct sv_jbuild b = {0}, *out = x->out;
    struct sv_jscope *outer = x->scope;
    enum flow f;

    x->out = &b;
    x->scope = scope;
    f = run(x, body);
    x->scope = outer;
    x->out = out;
    *text = sv_j_built(&b);
    return f;
}

/* ---------------------------------------------------------------- loops */

static struct sv_jlist *filter_items(struct sv_jx *x, const struct sv_jnode *n,
                                     struct sv_jscope *outer, struct sv_jlist *in)
{
    struct sv_jlist *out;
    struct sv_jscope *scope, *before = x->scope;

    if (!n->c)
        return in;
    out = sv_j_list_new(x, 0);
    scope = new_scope(x, outer);
    x->scope = scope;
    for (size_t i = 0; i < in->n; i++) {
        struct sv_jval keep;
        assign_target(x, scope, n->a, in->item[i]);
        keep = sv_j_eval(x, n->c);
        if (sv_j_truth(&keep))
            sv_j_list_push(x, out, in->item[i]);
    }
    x->scope = before;
    return out;
}

/* Each round starts with an empty scope, reused unless a macro may have kept it. */
static struct sv_jscope *fresh_round(struct sv_jx *x, struct sv_jscope *scope)
{
    size_t n = 0;

    if (scope->captured)
        return new_scope(x, scope->parent);
    for (struct sv_jvar *v = scope->vars; v; v = v->next, n++)
        v->value = sv_j_missing();
    sv_j_walked(x, n);
    return scope;
}

static enum flow run_for(struct sv_jx *x, const struct sv_jnode *n, struct sv_jscope *outer,
                         struct sv_jval over, int depth0)
{
    struct sv_jscope *scope = new_scope(x, outer), *before = x->scope;
    struct sv_jval loop = {.kind = SV_J_LOOP};
    struct sv_jloop *l;
    enum flow f = NEXT, else_flow = NEXT;
    bool completed = false; /* jinja2 runs else when no round came to its end, even after a break */

    x->pos = n->pos;
    loop.u.loop = l = sv_j_alloc(x, sizeof *l);
    *l = (struct sv_jloop){.node = n, .scope = outer, .depth0 = depth0};
    l->items = filter_items(x, n, outer, sv_j_iter(x, &over));
    sv_j_enter(x);
    /* n is read anew each time: a template may pop from the list it walks over */
    for (size_t i = 0; i < l->items->n && f != BREAK; i++) {
        sv_j_step(x, 1);
        scope = fresh_round(x, scope);
        x->scope = scope;
        l->index0 = i;
        assign_target(x, scope, n->a, l->items->item[i]);
        if (x->t->loop_name >= 0)
            set_var(x, scope, x->t->loop_name, loop);
        f = run(x, n->body);
        completed = completed || f == NEXT;
    }
    if (n->other && !completed) {
        x->scope = new_scope(x, outer);
        else_flow = run(x, n->other);
    }
    sv_j_leave(x);
    x->scope = before;
    return else_flow;
}

struct sv_jval sv_j_loop_call(struct sv_jx *x, struct sv_jloop *l, const struct sv_jcall *c)
{
    struct sv_jval arg[1];
    struct sv_jbuild b = {0}, *out = x->out;

    if (!l->node->flag)
        sv_j_throw(x, SV_EINVAL,
                   "The loop must have the 'recursive' marker to be called recursively.");
    sv_j_bind(x, "loop", "iterable", c, arg);
    x->out = &b;
    run_for(x, l->node, l->scope, arg[0], l->depth0 + 1);
    x->out = out;
    return sv_j_built(&b);
}

/* ---------------------------------------------------------------- macros */

static struct sv_jval make_macro(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval v = {.kind = SV_J_MACRO};

    v.u.macro = sv_j_alloc(x, sizeof *v.u.macro);
    *v.u.macro = (struct sv_jmacro){n, x->scope};
    for (struct sv_jscope *s = x->scope; s && !s->captured; s = s->parent)
        s->captured = true;
    return v;
}

static void assign_special(struct sv_jx *x, struct sv_jscope *scope, int id, struct sv_jval v)
{
    if (id >= 0)
        set_var(x, scope, id, v);
}

/* Keyword arguments without a parameter: caller, kwargs, or an error. */
static void bind_rest(struct sv_jx *x, const struct sv_jnode *n, struct sv_jscope *scope,
                      const struct sv_jcall *c, const bool *used)
{
    struct sv_jval caller = sv_j_missing(), kwargs = {.kind = SV_J_DICT};

    kwargs.u.dict = sv_j_dict_new(x, 0);
    for (size_t i = 0; i < c->n_kw; i++) {
        struct sv_jval name = sv_j_str(c->kw[i].name, c->kw[i].n_name);
        if (used[i])
            continue;
        if (n->caller && sv_j_str_eq(&name, "caller"))
            caller = c->kw[i].value;
        else if (n->kwargs)
            sv_j_dict_add(x, kwargs.u.dict, name, c->kw[i].value);
        else
            sv_j_throw(x, SV_EINVAL, "macro '%.*s' takes no keyword argument '%.*s'",
                       n->type == SV_JN_MACRO ? sv_j_cut(n->value.u.s.n) : 0,
                       n->type == SV_JN_MACRO ? n->value.u.s.p : "", sv_j_cut(name.u.s.n),
                       name.u.s.p);
    }
    if (n->caller)
        assign_special(x, scope, x->t->caller_name,
                       sv_j_is(&caller, SV_J_MISSING) || sv_j_is(&caller, SV_J_NONE)
                           ? sv_j_undef(x, "No caller defined")
                           : caller);
    if (n->kwargs)
        assign_special(x, scope, x->t->kwargs_name, kwargs);
}

static void bind_params(struct sv_jx *x, const struct sv_jnode *n, struct sv_jscope *scope,
                        const struct sv_jcall *c)
{
    bool *used = sv_j_alloc(x, c->n_kw);
    struct sv_jval rest = sv_j_list(SV_J_TUPLE, sv_j_list_new(x, 0));
    size_t at = 0;

    for (const struct sv_jarg *a = n->args; a; a = a->next) {
        struct sv_jval v = at < c->n_pos ? c->pos[at] : sv_j_missing();
        sv_j_step(x, c->n_kw / 32);
        for (size_t i = 0; at >= c->n_pos && i < c->n_kw; i++) {
            if (c->kw[i].n_name != a->n_name)
                continue;
            sv_j_copied(x, a->n_name);
            if (memcmp(c->kw[i].name, a->name, a->n_name) == 0) {
                v = c->kw[i].value;
                used[i] = true;
            }
        }
        at++;
        set_var(x, scope, a->name_id, v);
    }
    bind_rest(x, n, scope, c, used);
    for (; at < c->n_pos; at++)
        sv_j_list_push(x, rest.u.list, c->pos[at]);
    if (n->flag)
        assign_special(x, scope, x->t->varargs_name, rest);
    else if (rest.u.list->n)
        sv_j_throw(x, SV_EINVAL, "macro takes not more than %zu argument(s)",
                   c->n_pos - rest.u.list->n);
}

/* Defaults see the parameters before them; the rest is undefined. */
static void fill_defaults(struct sv_jx *x, const struct sv_jnode *n, struct sv_jscope *scope)
{
    for (const struct sv_jarg *a = n->args; a; a = a->next) {
        if (!sv_j_is(&find_var(x, scope, a->name_id)->value, SV_J_MISSING))
            continue;
        set_var(x, scope, a->name_id,
                a->value ? sv_j_eval(x, a->value)
                         : sv_j_undef(x, "a parameter of the macro was not provided"));
    }
}

struct sv_jval sv_j_macro_call(struct sv_jx *x, struct sv_jmacro *m, const struct sv_jcall *c)
{
    struct sv_jscope *scope = new_scope(x, m->scope), *outer = x->scope;
    struct sv_jval text;

    sv_j_enter(x);
    bind_params(x, m->node, scope, c);
    x->scope = scope;
    fill_defaults(x, m->node, scope);
    x->scope = outer;
    capture(x, m->node->body, scope, &text);
    sv_j_leave(x);
    return text;
}

/* ---------------------------------------------------------------- statements */

static void run_output(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval v = sv_j_eval(x, n->a);
    sv_j_put_str(x, x->out, &v);
}

static enum flow run_if(struct sv_jx *x, const struct sv_jnode *n)
{
    for (;; n = n->other) { /* through the elifs */
        struct sv_jval v = sv_j_eval(x, n->a);
        if (sv_j_truth(&v))
            return run(x, n->body);
        if (!n->flag)
            return run(x, n->other);
    }
}

static enum flow run_set_block(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval text;
    enum flow f = capture(x, n->body, new_scope(x, x->scope), &text);

    if (f != NEXT)
        return f;
    if (n->b)
        text = sv_j_eval_filters(x, n->b, &text);
    assign_target(x, x->scope, n->a, text);
    return NEXT;
}

/* Output of blocks is joined without str(), so it must be text already. */
static void put_joined(struct sv_jx *x, const struct sv_jval *v)
{
    if (!sv_j_is(v, SV_J_STR))
        sv_j_throw(x, SV_EINVAL, "expected a string, got %s", sv_j_type_name(v));
    sv_j_put(x, x->out, v->u.s.p, v->u.s.n);
}

static enum flow run_filter_block(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jscope *scope = new_scope(x, x->scope);
    struct sv_jval text;
    enum flow f = capture(x, n->body, scope, &text);

    if (f != NEXT)
        return f;
    x->scope = scope; /* its arguments see what the body set */
    text = sv_j_eval_filters(x, n->a, &text);
    x->scope = scope->parent;
    put_joined(x, &text);
    return NEXT;
}

static enum flow run_with(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jscope *scope = new_scope(x, x->scope), *outer = x->scope;
    enum flow f;

    for (const struct sv_jnode *k = n->kids; k; k = k->next->next)
        assign_target(x, scope, k, sv_j_eval(x, k->next));
    x->scope = scope;
    f = run(x, n->body);
    x->scope = outer;
    return f;
}

static void run_call_block(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval caller = make_macro(x, n), text;

    text = sv_j_eval_call(x, n->a, &caller);
    put_joined(x, &text);
}

static void run_generation(struct sv_jx *x, const struct sv_jnode *n)
{
    struct sv_jval text;

    capture(x, n->body, new_scope(x, x->scope), &text);
    sv_j_put(x, x->out, text.u.s.p, text.u.s.n);
}

static enum flow run_one(struct sv_jx *x, const struct sv_jnode *n)
{
    switch (n->type) {
    case SV_JN_DATA:
        sv_j_put(x, x->out, n->value.u.s.p, n->value.u.s.n);
        return NEXT;
    case SV_JN_OUTPUT:
        run_output(x, n);
        return NEXT;
    case SV_JN_FOR:
        return run_for(x, n, x->scope, sv_j_eval(x, n->b), 0);
    case SV_JN_IF:
        return run_if(x, n);
    case SV_JN_SET:
        assign_target(x, x->scope, n->a, sv_j_eval(x, n->b));
        return NEXT;
    case SV_JN_SETBLOCK:
        return run_set_block(x, n);
    case SV_JN_MACRO:
        set_var(x, x->scope, n->id, make_macro(x, n));
        return NEXT;
    case SV_JN_CALLBLOCK:
        run_call_block(x, n);
        return NEXT;
    case SV_JN_FILTERBLOCK:
        return run_filter_block(x, n);
    case SV_JN_WITH:
        return run_with(x, n);
    case SV_JN_SCOPE:
        run_generation(x, n);
        return NEXT;
    case SV_JN_BREAK:
        return BREAK;
    default:
        return CONTINUE;
    }
}

static enum flow run(struct sv_jx *x, const struct sv_jnode *body)
{
    enum flow f = NEXT;

    sv_j_enter(x);
    for (const struct sv_jnode *n = body; n && f == NEXT; n = n->next) {
        sv_j_step(x, 1);
        x->pos = n->pos;
        f = run_one(x, n);
    }
    sv_j_leave(x);
    return f;
}

void sv_j_run(struct sv_jx *x, const struct sv_jnode *body)
{
    run(x, body);
}
