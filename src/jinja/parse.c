/*
 * parse.c - statements of a template to the tree, and functions shared by the parsers.
 *
 * Called by template.c after the lexer; expressions are in expr.c. Statements that chat templates
 * never use (extends, include, import, block, ...) are refused. Must not: evaluate anything.
 */
#include "jinja/run.h"
#include "jinja/parse.h"

static struct sv_jnode *parse_body(struct sv_jparse *p, const char *const *ends);

/* ---------------------------------------------------------------- tokens and nodes */

const struct sv_jtoken *sv_j_cur(const struct sv_jparse *p)
{
    return &p->tok[p->at < p->n_tok ? p->at : p->n_tok - 1];
}

const struct sv_jtoken *sv_j_peek(const struct sv_jparse *p)
{
    return &p->tok[p->at + 1 < p->n_tok ? p->at + 1 : p->n_tok - 1];
}

bool sv_j_at_name(const struct sv_jparse *p, const char *name)
{
    return sv_j_cur(p)->type == SV_JT_NAME && sv_j_str_eq(&sv_j_cur(p)->value, name);
}

bool sv_j_skip_name(struct sv_jparse *p, const char *name)
{
    if (!sv_j_at_name(p, name))
        return false;
    p->at++;
    return true;
}

static const char *token_text(int type)
{
    static const char *const text[] = {
        "the end of the template",
        "text",
        "{{",
        "}}",
        "{%",
        "%}",
        "a name",
        "a string",
        "a number",
        "a number",
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
        "~",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        "==",
        "!=",
        ">",
        ">=",
        "<",
        "<=",
        "=",
        ".",
        ":",
        "|",
        ",",
        ";",
    };
    return text[type];
}

_Noreturn void sv_j_unexpected(struct sv_jparse *p, const char *wanted)
{
    const struct sv_jtoken *t = sv_j_cur(p);

    p->x->pos = t->pos;
    if (t->type == SV_JT_NAME)
        sv_j_throw(p->x, SV_EINVAL, "expected %s, got '%.*s'", wanted, sv_j_cut(t->value.u.s.n),
                   t->value.u.s.p);
    sv_j_throw(p->x, SV_EINVAL, "expected %s, got %s", wanted, token_text(t->type));
}

const struct sv_jtoken *sv_j_expect(struct sv_jparse *p, enum sv_jtok type)
{
    if (sv_j_cur(p)->type != type)
        sv_j_unexpected(p, token_text((int)type));
    return &p->tok[p->at++];
}

static void expect_name(struct sv_jparse *p, const char *name)
{
    if (!sv_j_skip_name(p, name))
        sv_j_unexpected(p, name);
}

struct sv_jnode *sv_j_node(struct sv_jparse *p, enum sv_jtype type, uint32_t pos)
{
    struct sv_jnode *n = sv_j_alloc(p->x, sizeof *n);
    n->type = (uint8_t)type;
    n->pos = pos;
    n->id = -1;
    return n;
}

int sv_j_name_id(struct sv_jparse *p, const struct sv_jval *name)
{
    struct sv_jname *list = p->t->name;

    sv_j_step(p->x, (size_t)p->n_names / 32 + 1);
    for (int i = 0; i < p->n_names; i++) {
        if (list[i].n != name->u.s.n)
            continue;
        sv_j_copied(p->x, list[i].n);
        if (memcmp(list[i].p, name->u.s.p, list[i].n) == 0)
            return i;
    }
    if (p->n_names == p->cap_names) {
        p->cap_names = p->cap_names ? 2 * p->cap_names : 32;
        list = sv_j_alloc(p->x, (size_t)p->cap_names * sizeof *list);
        if (p->n_names)
            memcpy(list, p->t->name, (size_t)p->n_names * sizeof *list);
        p->t->name = list;
    }
    list[p->n_names] = (struct sv_jname){name->u.s.p, name->u.s.n};
    return p->n_names++;
}

/* ---------------------------------------------------------------- statements */

/* As parse_body, for bodies with a scope: unknown filters fail the parse again. */
static struct sv_jnode *parse_scope_body(struct sv_jparse *p, const char *const *ends)
{
    int soft = p->soft;
    struct sv_jnode *n;

    p->soft = 0;
    n = parse_body(p, ends);
    p->soft = soft;
    return n;
}

static void check_target(struct sv_jparse *p, const struct sv_jnode *n)
{
    p->x->pos = n->pos;
    if (n->type == SV_JN_TUPLE) {
        for (const struct sv_jnode *k = n->kids; k; k = k->next)
            check_target(p, k);
        return;
    }
    if (n->type != SV_JN_NAME)
        sv_j_throw(p->x, SV_EINVAL, "cannot assign to this");
    if (p->loops && sv_j_str_eq(&n->value, "loop"))
        sv_j_throw(p->x, SV_EINVAL, "cannot assign to the special variable loop inside a loop");
}

static struct sv_jnode *parse_target(struct sv_jparse *p, const char *end, bool with_namespace)
{
    struct sv_jnode *n;

    if (with_namespace && sv_j_peek(p)->type == SV_JT_DOT) {
        const struct sv_jtoken *name = sv_j_expect(p, SV_JT_NAME);
        n = sv_j_node(p, SV_JN_NSREF, name->pos);
        n->id = sv_j_name_id(p, &name->value);
        p->at++;
        n->value = sv_j_expect(p, SV_JT_NAME)->value;
        return n;
    }
    n = sv_j_parse_tuple(p, true, true, end, false);
    check_target(p, n);
    return n;
}

static struct sv_jnode *parse_for(struct sv_jparse *p)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    struct sv_jnode *n = sv_j_node(p, SV_JN_FOR, sv_j_cur(p)->pos);

    p->at++;
    p->loops++; /* its target may not be called loop */
    n->a = parse_target(p, "in", false);
    p->loops--;
    expect_name(p, "in");
    n->b = sv_j_parse_tuple(p, false, false, "recursive", false);
    if (sv_j_skip_name(p, "if"))
        n->c = sv_j_parse_expr(p, true);
    n->flag = sv_j_skip_name(p, "recursive");
    p->loops++;
    n->body = parse_scope_body(p, ends);
    p->loops--;
    if (sv_j_skip_name(p, "else"))
        n->other = parse_scope_body(p, last);
    expect_name(p, "endfor");
    return n;
}

static struct sv_jnode *parse_if(struct sv_jparse *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif",
                                                                                        NULL};
    struct sv_jnode *first = NULL, **end = &first;

    p->soft++;
    do { /* at "if" or "elif"; a chain of any length nests in the tree but not on the stack */
        struct sv_jnode *n = sv_j_node(p, SV_JN_IF, sv_j_cur(p)->pos);
        p->at++;
        n->a = sv_j_parse_tuple(p, false, false, NULL, false);
        n->body = parse_body(p, ends);
        *end = n;
        end = &n->other;
        n->flag = sv_j_at_name(p, "elif");
    } while (sv_j_at_name(p, "elif"));
    if (sv_j_skip_name(p, "else"))
        *end = parse_body(p, last);
    expect_name(p, "endif");
    p->soft--;
    return first;
}

static struct sv_jnode *parse_set(struct sv_jparse *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct sv_jnode *n = sv_j_node(p, SV_JN_SET, sv_j_cur(p)->pos);

    p->at++;
    n->a = parse_target(p, NULL, true);
    if (sv_j_cur(p)->type == SV_JT_ASSIGN) {
        p->at++;
        n->b = sv_j_parse_tuple(p, false, true, NULL, false);
        return n;
    }
    n->type = SV_JN_SETBLOCK;
    n->b = sv_j_parse_filters(p, NULL, false);
    n->body = parse_scope_body(p, ends);
    expect_name(p, "endset");
    return n;
}

static void parse_signature(struct sv_jparse *p, struct sv_jnode *n)
{
    struct sv_jarg **end = &n->args;
    bool optional = false;

    sv_j_expect(p, SV_JT_LPAREN);
    while (sv_j_cur(p)->type != SV_JT_RPAREN) {
        struct sv_jarg *a = sv_j_alloc(p->x, sizeof *a);
        const struct sv_jtoken *name;
        if (n->args)
            sv_j_expect(p, SV_JT_COMMA);
        name = sv_j_expect(p, SV_JT_NAME);
        a->name = name->value.u.s.p;
        a->n_name = name->value.u.s.n;
        a->name_id = sv_j_name_id(p, &name->value);
        if (sv_j_cur(p)->type == SV_JT_ASSIGN) {
            p->at++;
            a->value = sv_j_parse_expr(p, true);
            optional = true;
        } else if (optional) {
            sv_j_unexpected(p, "a default, as the parameters before have one");
        }
        *end = a;
        end = &a->next;
    }
    p->at++;
}

/* Body of a macro or call block, and which special names its tokens mention. */
static void parse_macro_body(struct sv_jparse *p, struct sv_jnode *n, const char *end)
{
    const char *const ends[] = {end, NULL};
    int loops = p->loops, soft = p->soft;
    size_t begin = p->at;

    p->loops = p->soft = 0; /* break cannot leave a macro */
    n->body = parse_body(p, ends);
    p->loops = loops;
    p->soft = soft;
    for (size_t i = begin; i < p->at; i++) {
        const struct sv_jval *v = &p->tok[i].value;
        if (p->tok[i].type != SV_JT_NAME || (i && p->tok[i - 1].type == SV_JT_DOT))
            continue;
        n->flag = n->flag || sv_j_str_eq(v, "varargs");
        n->kwargs = n->kwargs || sv_j_str_eq(v, "kwargs");
        n->caller = n->caller || sv_j_str_eq(v, "caller");
    }
    for (const struct sv_jarg *a = n->args; a; a = a->next) {
        struct sv_jval name = sv_j_str(a->name, a->n_name);
        n->flag = n->flag && !sv_j_str_eq(&name, "varargs");
        n->kwargs = n->kwargs && !sv_j_str_eq(&name, "kwargs");
        if (n->caller && sv_j_str_eq(&name, "caller")) {
            p->x->pos = n->pos;
            sv_j_throw(p->x, SV_EUNSUPPORTED, "a parameter called caller is not supported");
        }
    }
    sv_j_step(p->x, p->at - begin);
    expect_name(p, end);
}

static struct sv_jnode *parse_macro(struct sv_jparse *p)
{
    struct sv_jnode *n = sv_j_node(p, SV_JN_MACRO, sv_j_cur(p)->pos);
    const struct sv_jtoken *name;

    p->at++;
    name = sv_j_expect(p, SV_JT_NAME);
    n->id = sv_j_name_id(p, &name->value);
    n->value = name->value;
    parse_signature(p, n);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static struct sv_jnode *parse_call_block(struct sv_jparse *p)
{
    struct sv_jnode *n = sv_j_node(p, SV_JN_CALLBLOCK, sv_j_cur(p)->pos);

    p->at++;
    if (sv_j_cur(p)->type == SV_JT_LPAREN)
        parse_signature(p, n);
    n->a = sv_j_parse_expr(p, true);
    if (n->a->type != SV_JN_CALL)
        sv_j_unexpected(p, "a call");
    parse_macro_body(p, n, "endcall");
    return n;
}

static struct sv_jnode *parse_filter_block(struct sv_jparse *p)
{
    static const char *const ends[] = {"endfilter", NULL};
    struct sv_jnode *n = sv_j_node(p, SV_JN_FILTERBLOCK, sv_j_cur(p)->pos);

    p->at++;
    n->a = sv_j_parse_filters(p, NULL, true);
    n->body = parse_scope_body(p, ends);
    expect_name(p, "endfilter");
    return n;
}

static struct sv_jnode *parse_with(struct sv_jparse *p)
{
    static const char *const ends[] = {"endwith", NULL};
    struct sv_jnode *n = sv_j_node(p, SV_JN_WITH, sv_j_cur(p)->pos), **end = &n->kids;

    p->at++;
    while (sv_j_cur(p)->type != SV_JT_BLOCK_END && sv_j_cur(p)->type != SV_JT_COLON) {
        if (n->kids)
            sv_j_expect(p, SV_JT_COMMA);
        *end = parse_target(p, NULL, false);
        end = &(*end)->next;
        sv_j_expect(p, SV_JT_ASSIGN);
        *end = sv_j_parse_expr(p, true);
        end = &(*end)->next;
    }
    n->body = parse_scope_body(p, ends);
    expect_name(p, "endwith");
    return n;
}

static struct sv_jnode *parse_generation(struct sv_jparse *p)
{
    static const char *const ends[] = {"endgeneration", NULL};
    struct sv_jnode *n = sv_j_node(p, SV_JN_SCOPE, sv_j_cur(p)->pos);
    int loops = p->loops;

    p->at++;
    p->loops = 0; /* implemented as a call block */
    n->body = parse_scope_body(p, ends);
    p->loops = loops;
    expect_name(p, "endgeneration");
    return n;
}

static struct sv_jnode *parse_print(struct sv_jparse *p)
{
    struct sv_jnode *first = NULL, **end = &first;

    p->at++;
    while (sv_j_cur(p)->type != SV_JT_BLOCK_END) {
        struct sv_jnode *n = sv_j_node(p, SV_JN_OUTPUT, sv_j_cur(p)->pos);
        if (first)
            sv_j_expect(p, SV_JT_COMMA);
        n->a = sv_j_parse_expr(p, true);
        *end = n;
        end = &n->next;
    }
    return first;
}

static struct sv_jnode *parse_jump(struct sv_jparse *p, enum sv_jtype type)
{
    struct sv_jnode *n = sv_j_node(p, type, sv_j_cur(p)->pos);

    if (!p->loops) {
        p->x->pos = n->pos;
        sv_j_throw(p->x, SV_EINVAL, "break and continue need a loop around them");
    }
    p->at++;
    return n;
}

_Noreturn static void unknown_tag(struct sv_jparse *p)
{
    static const char *const refused[] = {"extends", "include", "import",
                                          "from",    "block",   "autoescape"};
    const struct sv_jtoken *t = sv_j_cur(p);

    p->x->pos = t->pos;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (sv_j_at_name(p, refused[i]))
            sv_j_throw(p->x, SV_EUNSUPPORTED, "the tag '%s' is not supported", refused[i]);
    sv_j_throw(p->x, SV_EINVAL, "unknown or misplaced tag '%.*s'", sv_j_cut(t->value.u.s.n),
               t->value.u.s.p);
}

static struct sv_jnode *parse_statement(struct sv_jparse *p)
{
    static const struct {
        const char *name;
        struct sv_jnode *(*parse)(struct sv_jparse *p);
    } tags[] = {
        {"for", parse_for},         {"if", parse_if},
        {"set", parse_set},         {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"generation", parse_generation},
        {"print", parse_print},
    };

    if (sv_j_cur(p)->type != SV_JT_NAME)
        sv_j_unexpected(p, "the name of a tag");
    if (sv_j_at_name(p, "break"))
        return parse_jump(p, SV_JN_BREAK);
    if (sv_j_at_name(p, "continue"))
        return parse_jump(p, SV_JN_CONTINUE);
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++)
        if (sv_j_at_name(p, tags[i].name))
            return tags[i].parse(p);
    unknown_tag(p);
}

/* Statements and text up to one of the end tags (which stays) or the end of the template (ends
 * NULL). */
static struct sv_jnode *parse_parts(struct sv_jparse *p, const char *const *ends)
{
    struct sv_jnode *first = NULL, **end = &first;

    for (;;) {
        const struct sv_jtoken *t = sv_j_cur(p);
        struct sv_jnode *n;
        p->x->pos = t->pos;
        sv_j_step(p->x, 1);
        if (t->type == SV_JT_EOF) {
            if (ends)
                sv_j_unexpected(p, ends[0]);
            return first;
        }
        p->at++;
        if (t->type == SV_JT_DATA) {
            n = sv_j_node(p, SV_JN_DATA, t->pos);
            n->value = t->value;
        } else if (t->type == SV_JT_VAR_BEGIN) {
            n = sv_j_node(p, SV_JN_OUTPUT, t->pos);
            n->a = sv_j_parse_tuple(p, false, true, NULL, false);
            sv_j_expect(p, SV_JT_VAR_END);
        } else {
            for (const char *const *e = ends; e && *e; e++)
                if (sv_j_at_name(p, *e))
                    return first;
            n = parse_statement(p);
            sv_j_expect(p, SV_JT_BLOCK_END);
        }
        *end = n;
        while (*end)
            end = &(*end)->next;
    }
}

static struct sv_jnode *parse_body(struct sv_jparse *p, const char *const *ends)
{
    struct sv_jnode *n;

    sv_j_enter(p->x);
    if (sv_j_cur(p)->type == SV_JT_COLON)
        p->at++;
    sv_j_expect(p, SV_JT_BLOCK_END);
    n = parse_parts(p, ends);
    sv_j_leave(p->x);
    return n;
}

void sv_j_parse(struct sv_jparse *p)
{
    p->t->root = parse_parts(p, NULL);
    p->t->n_names = p->n_names;
}
