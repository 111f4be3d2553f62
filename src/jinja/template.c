/*
 * template.c - parsing and rendering of a template from outside: set-up, limits, errors, clean-up.
 *
 * Called by chat.c, engine, serve and cli through text.h. The only target of the folder's longjmp;
 * everything to free afterwards is in the run's arena or its list of held JSON.
 */
#include "jinja/run.h"
#include "jinja/parse.h"

#define MAX_SOURCE_BYTES ((size_t)16 << 20)
#define DEFAULT_OUTPUT_BYTES ((size_t)16 << 20)
#define DEFAULT_MEMORY_BYTES ((size_t)256 << 20)
#define DEFAULT_STEPS 20000000
#define DEFAULT_DEPTH 1000

struct job { /* the function run between setjmp and longjmp */
    struct sv_jx x;
    struct sv_template *t;
    const json_t *context;
    struct sv_jbuild out;
};

/* Runs fn; false when it threw. */
static bool guarded(struct job *j, void (*fn)(struct job *j))
{
    if (setjmp(j->x.fail))
        return false;
    fn(j);
    return true;
}

static void set_limits(struct sv_jx *x, const struct sv_template_opts *o)
{
    static const struct sv_template_opts none;

    o = o ? o : &none;
    x->now = o->now;
    x->max_output = o->max_output_bytes ? o->max_output_bytes : DEFAULT_OUTPUT_BYTES;
    x->max_bytes = o->max_memory_bytes ? o->max_memory_bytes : DEFAULT_MEMORY_BYTES;
    x->max_steps = o->max_steps > 0 ? o->max_steps : DEFAULT_STEPS;
    x->max_depth = o->max_depth > 0 ? o->max_depth : DEFAULT_DEPTH;
}

/* ---------------------------------------------------------------- parsing */

/* Line ends become \n; a final one is removed, as jinja2's keep_trailing_newline is off. */
static void take_source(struct job *j, const char *text, size_t n)
{
    char *s = j->t->source;
    size_t m = 0;

    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        s[m++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (m && s[m - 1] == '\n')
        m--;
    j->t->n_source = m;
    j->x.source = s;
    j->x.n_source = m;
}

static int find_name(const struct sv_template *t, const char *name)
{
    for (int i = 0; i < t->n_names; i++)
        if (t->name[i].n == strlen(name) && memcmp(t->name[i].p, name, t->name[i].n) == 0)
            return i;
    return -1;
}

static void parse(struct job *j)
{
    struct sv_jparse p = {.x = &j->x, .t = j->t};

    p.tok = sv_j_lex(&j->x, &p.n_tok);
    sv_j_parse(&p);
    j->t->loop_name = find_name(j->t, "loop");
    j->t->caller_name = find_name(j->t, "caller");
    j->t->kwargs_name = find_name(j->t, "kwargs");
    j->t->varargs_name = find_name(j->t, "varargs");
}

int sv_template_parse(struct sv_template **t, const char *text, size_t n, struct sv_err *err)
{
    struct sv_err own;
    struct job j = {.x.err = err ? err : &own};
    size_t good;

    *t = NULL;
    if (n > MAX_SOURCE_BYTES)
        return sv_fail(err, SV_EINVAL, -1, "a template of %zu bytes is too long", n);
    good = sv_utf8_valid(n ? text : "", n);
    if (good < n)
        return sv_fail(err, SV_EINVAL, (int64_t)good, "template, byte %zu: not UTF-8", good);
    j.t = sv_calloc(1, sizeof *j.t);
    if (!j.t)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    sv_arena_init(&j.t->arena);
    j.t->source = sv_arena_alloc(&j.t->arena, n + 1);
    if (!j.t->source) {
        sv_template_free(j.t);
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    j.x.arena = &j.t->arena;
    set_limits(&j.x, NULL);
    take_source(&j, text, n);
    if (!guarded(&j, parse)) {
        sv_template_free(j.t);
        return j.x.err->code;
    }
    *t = j.t;
    return SV_OK;
}

void sv_template_free(struct sv_template *t)
{
    if (!t)
        return;
    sv_arena_fini(&t->arena);
    sv_free(t);
}

/* ---------------------------------------------------------------- rendering */

/* Each name in the template gets its value from the context, else a global function, else none. */
static void bind_context(struct job *j)
{
    const struct sv_template *t = j->t;
    struct sv_jx *x = &j->x;

    x->context = sv_j_alloc(x, (size_t)t->n_names * sizeof *x->context);
    for (int i = 0; i < t->n_names; i++) {
        struct sv_jbuild name = {0};
        const json_t *v;
        sv_j_step(x, 1);
        int func = sv_j_func_find(t->name[i].p, t->name[i].n);
        sv_j_put(x, &name, t->name[i].p, t->name[i].n);
        sv_j_putc(x, &name, 0);
        v = json_object_get(j->context, name.p);
        if (v)
            x->context[i] = sv_j_from_json(x, v);
        else if (func >= 0)
            x->context[i] = (struct sv_jval){.kind = SV_J_FUNC, .u.i = func};
    }
}

static void render(struct job *j)
{
    bind_context(j);
    j->x.scope = sv_j_alloc(&j->x, sizeof *j->x.scope);
    j->x.out = &j->out;
    sv_j_run(&j->x, j->t->root);
}

int sv_template_render(const struct sv_template *t, const json_t *context,
                       const struct sv_template_opts *opts, struct sv_buf *out, struct sv_err *err)
{
    struct sv_arena arena;
    struct sv_err own;
    struct job j = {.x = {.err = err ? err : &own, .arena = &arena, .t = t}, .context = context};
    int rc = SV_OK;

    sv_arena_init(&arena);
    j.t = (struct sv_template *)(uintptr_t)t; /* only read */
    j.x.source = t->source;
    j.x.n_source = t->n_source;
    set_limits(&j.x, opts);
    if (!guarded(&j, render)) {
        rc = j.x.err->code;
    } else if (sv_buf_reserve(out, j.out.n) < 0) {
        rc = sv_fail(err, SV_ENOMEM, -1, "out of memory");
    } else {
        sv_buf_append(out, j.out.p, j.out.n);
    }
    for (struct sv_jheld *h = j.x.held; h; h = h->next)
        json_decref(h->json);
    sv_arena_fini(&arena);
    return rc;
}
