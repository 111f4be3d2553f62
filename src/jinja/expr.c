/*
 * expr.c - expressions of a template: a Pratt parser over the tokens, building the tree.
 *
 * Called by parse.c. Precedence is jinja2's, which is not Python's: "~" binds tighter than
 * "+", a filter tighter than a unary minus. Must not: evaluate anything.
 */
#include "jinja/run.h"
#include "jinja/parse.h"

/* Binding powers, loosest first. */
enum { P_OR = 1, P_AND, P_NOT, P_COMPARE, P_SUM, P_CONCAT, P_PRODUCT, P_POWER };

static struct sv_jnode *parse_primary(struct sv_jparse *p);
static struct sv_jarg *parse_args(struct sv_jparse *p);

static bool accept(struct sv_jparse *p, enum sv_jtok type)
{
    if (sv_j_cur(p)->type != type)
        return false;
    p->at++;
    return true;
}

static void append(struct sv_jnode ***end, struct sv_jnode *n)
{
    **end = n;
    *end = &n->next;
}

static struct sv_jnode *parse_list(struct sv_jparse *p)
{
    struct sv_jnode *n = sv_j_node(p, SV_JN_LIST, sv_j_expect(p, SV_JT_LBRACKET)->pos);
    struct sv_jnode **end = &n->kids;

    while (sv_j_cur(p)->type != SV_JT_RBRACKET) {
        if (n->kids) {
            sv_j_expect(p, SV_JT_COMMA);
            if (sv_j_cur(p)->type == SV_JT_RBRACKET)
                break;
        }
        append(&end, sv_j_parse_expr(p, true));
    }
    p->at++;
    return n;
}

static struct sv_jnode *parse_dict(struct sv_jparse *p)
{
    struct sv_jnode *n = sv_j_node(p, SV_JN_DICT, sv_j_expect(p, SV_JT_LBRACE)->pos);
    struct sv_jnode **end = &n->kids;

    while (sv_j_cur(p)->type != SV_JT_RBRACE) {
        if (n->kids) {
            sv_j_expect(p, SV_JT_COMMA);
            if (sv_j_cur(p)->type == SV_JT_RBRACE)
                break;
        }
        append(&end, sv_j_parse_expr(p, true));
        sv_j_expect(p, SV_JT_COLON);
        append(&end, sv_j_parse_expr(p, true));
    }
    p->at++;
    return n;
}

static struct sv_jnode *parse_name(struct sv_jparse *p)
{
    const struct sv_jtoken *t = &p->tok[p->at++];
    struct sv_jnode *n = sv_j_node(p, SV_JN_CONST, t->pos);

    if (sv_j_str_eq(&t->value, "true") || sv_j_str_eq(&t->value, "True")) {
        n->value = sv_j_bool(true);
    } else if (sv_j_str_eq(&t->value, "false") || sv_j_str_eq(&t->value, "False")) {
        n->value = sv_j_bool(false);
    } else if (sv_j_str_eq(&t->value, "none") || sv_j_str_eq(&t->value, "None")) {
        n->value = sv_j_none();
    } else {
        n->type = SV_JN_NAME;
        n->value = t->value;
        n->id = sv_j_name_id(p, &t->value);
    }
    return n;
}

static struct sv_jnode *parse_strings(struct sv_jparse *p) /* neighbours are one */
{
    struct sv_jnode *n = sv_j_node(p, SV_JN_CONST, sv_j_cur(p)->pos);
    struct sv_jbuild b = {0};

    n->value = p->tok[p->at++].value;
    if (sv_j_cur(p)->type != SV_JT_STR)
        return n;
    sv_j_put(p->x, &b, n->value.u.s.p, n->value.u.s.n);
    for (; sv_j_cur(p)->type == SV_JT_STR; p->at++)
        sv_j_put(p->x, &b, sv_j_cur(p)->value.u.s.p, sv_j_cur(p)->value.u.s.n);
    n->value = sv_j_built(&b);
    return n;
}

static struct sv_jnode *parse_primary(struct sv_jparse *p)
{
    const struct sv_jtoken *t = sv_j_cur(p);
    struct sv_jnode *n;

    switch (t->type) {
    case SV_JT_NAME:
        return parse_name(p);
    case SV_JT_STR:
        return parse_strings(p);
    case SV_JT_INT:
    case SV_JT_FLOAT:
        n = sv_j_node(p, SV_JN_CONST, t->pos);
        n->value = t->value;
        p->at++;
        return n;
    case SV_JT_LPAREN:
        p->at++;
        n = sv_j_parse_tuple(p, false, true, NULL, true);
        sv_j_expect(p, SV_JT_RPAREN);
        return n;
    case SV_JT_LBRACKET:
        return parse_list(p);
    case SV_JT_LBRACE:
        return parse_dict(p);
    default:
        sv_j_unexpected(p, "an expression");
    }
}

/* ------------------------------------------------------------ subscripts, calls, filters, tests */

static bool slice_ends(const struct sv_jparse *p)
{
    int type = sv_j_cur(p)->type;
    return type == SV_JT_RBRACKET || type == SV_JT_COMMA || type == SV_JT_COLON;
}

static struct sv_jnode *parse_subscribed(struct sv_jparse *p)
{
    struct sv_jnode *first = NULL, *n;
    uint32_t pos = sv_j_cur(p)->pos;

    if (sv_j_cur(p)->type != SV_JT_COLON) {
        first = sv_j_parse_expr(p, true);
        if (sv_j_cur(p)->type != SV_JT_COLON)
            return first;
    }
    p->at++;
    n = sv_j_node(p, SV_JN_SLICE, pos);
    n->a = first;
    if (!slice_ends(p))
        n->b = sv_j_parse_expr(p, true);
    if (accept(p, SV_JT_COLON) && !slice_ends(p))
        n->c = sv_j_parse_expr(p, true);
    return n;
}

static struct sv_jnode *parse_subscript(struct sv_jparse *p, struct sv_jnode *of)
{
    const struct sv_jtoken *t = &p->tok[p->at++], *name = sv_j_cur(p);
    struct sv_jnode *n = sv_j_node(p, SV_JN_ITEM, t->pos), **end;

    n->a = of;
    if (t->type == SV_JT_DOT) {
        if (name->type != SV_JT_NAME && name->type != SV_JT_INT)
            sv_j_unexpected(p, "a name or number");
        p->at++;
        if (name->type == SV_JT_NAME) {
            n->type = SV_JN_ATTR;
            n->value = name->value;
        } else {
            n->b = sv_j_node(p, SV_JN_CONST, name->pos);
            n->b->value = name->value;
        }
        return n;
    }
    if (sv_j_cur(p)->type == SV_JT_RBRACKET)
        sv_j_unexpected(p, "an index");
    n->b = parse_subscribed(p);
    if (sv_j_cur(p)->type == SV_JT_COMMA) { /* several: a tuple is the key */
        struct sv_jnode *tuple = sv_j_node(p, SV_JN_TUPLE, t->pos);
        end = &tuple->kids;
        append(&end, n->b);
        while (accept(p, SV_JT_COMMA))
            append(&end, parse_subscribed(p));
        for (const struct sv_jnode *k = tuple->kids; k; k = k->next)
            if (k->type == SV_JN_SLICE)
                sv_j_unexpected(p, "one slice alone");
        n->b = tuple;
    }
    sv_j_expect(p, SV_JT_RBRACKET);
    return n;
}

static void parse_arg(struct sv_jparse *p, struct sv_jarg *a, unsigned *seen)
{
    enum { KEYWORD = 1, SPREAD = 2, SPREAD_KEYWORDS = 4 };
    unsigned not_after = SPREAD_KEYWORDS;

    if (accept(p, SV_JT_MUL)) {
        a->spread = 1;
        not_after |= SPREAD;
        *seen |= *seen & not_after ? 8 : SPREAD;
    } else if (accept(p, SV_JT_POW)) {
        a->spread = 2;
        *seen |= *seen & not_after ? 8 : SPREAD_KEYWORDS;
    } else if (sv_j_cur(p)->type == SV_JT_NAME && sv_j_peek(p)->type == SV_JT_ASSIGN) {
        a->name = sv_j_cur(p)->value.u.s.p;
        a->n_name = sv_j_cur(p)->value.u.s.n;
        p->at += 2;
        *seen |= *seen & not_after ? 8 : KEYWORD;
    } else if (*seen) {
        *seen |= 8;
    }
    if (*seen & 8)
        sv_j_unexpected(p, "arguments in order");
    a->value = sv_j_parse_expr(p, true);
}

static struct sv_jarg *parse_args(struct sv_jparse *p)
{
    struct sv_jarg *first = NULL, **end = &first;
    unsigned seen = 0;

    sv_j_expect(p, SV_JT_LPAREN);
    while (sv_j_cur(p)->type != SV_JT_RPAREN) {
        if (first) {
            sv_j_expect(p, SV_JT_COMMA);
            if (sv_j_cur(p)->type == SV_JT_RPAREN)
                break;
        }
        *end = sv_j_alloc(p->x, sizeof **end);
        parse_arg(p, *end, &seen);
        end = &(*end)->next;
    }
    p->at++;
    return first;
}

/* name or name.name: only plain names exist, so a dotted one is unknown. */
static struct sv_jval dotted(struct sv_jparse *p)
{
    struct sv_jval first = sv_j_expect(p, SV_JT_NAME)->value;
    const char *end = first.u.s.p + first.u.s.n;

    while (accept(p, SV_JT_DOT)) {
        struct sv_jval more = sv_j_expect(p, SV_JT_NAME)->value;
        end = more.u.s.p + more.u.s.n;
    }
    return sv_j_str(first.u.s.p, (size_t)(end - first.u.s.p));
}

static void check_known(struct sv_jparse *p, const struct sv_jnode *n, const char *what)
{
    if (n->id >= 0 || p->soft)
        return;
    p->x->pos = n->pos;
    sv_j_throw(p->x, SV_EINVAL, "no %s named '%.*s'", what, sv_j_cut(n->value.u.s.n),
               n->value.u.s.p);
}

struct sv_jnode *sv_j_parse_filters(struct sv_jparse *p, struct sv_jnode *value, bool start_inline)
{
    while (start_inline || accept(p, SV_JT_PIPE)) {
        struct sv_jnode *n = sv_j_node(p, SV_JN_FILTER, sv_j_cur(p)->pos);
        n->a = value;
        n->value = dotted(p);
        n->id = sv_j_filter_find(n->value.u.s.p, n->value.u.s.n);
        check_known(p, n, "filter");
        if (sv_j_cur(p)->type == SV_JT_LPAREN)
            n->args = parse_args(p);
        value = n;
        start_inline = false;
    }
    return value;
}

static struct sv_jnode *parse_postfix(struct sv_jparse *p, struct sv_jnode *n)
{
    for (;;) {
        int type = sv_j_cur(p)->type;
        sv_j_step(p->x, 1);
        if (type == SV_JT_DOT || type == SV_JT_LBRACKET) {
            n = parse_subscript(p, n);
        } else if (type == SV_JT_LPAREN) {
            struct sv_jnode *call = sv_j_node(p, SV_JN_CALL, sv_j_cur(p)->pos);
            call->a = n;
            call->args = parse_args(p);
            n = call;
        } else {
            return n;
        }
    }
}

static bool test_argument_follows(const struct sv_jparse *p)
{
    switch (sv_j_cur(p)->type) {
    case SV_JT_NAME:
        return !sv_j_at_name(p, "else") && !sv_j_at_name(p, "or") && !sv_j_at_name(p, "and");
    case SV_JT_STR:
    case SV_JT_INT:
    case SV_JT_FLOAT:
    case SV_JT_LBRACKET:
    case SV_JT_LBRACE:
        return true;
    default:
        return false;
    }
}

static struct sv_jnode *parse_test(struct sv_jparse *p, struct sv_jnode *value)
{
    uint32_t pos = p->tok[p->at++].pos;
    bool negated = sv_j_skip_name(p, "not");
    struct sv_jnode *n = sv_j_node(p, SV_JN_TEST, pos), *outer;

    n->a = value;
    n->value = dotted(p);
    n->id = sv_j_test_find(n->value.u.s.p, n->value.u.s.n);
    check_known(p, n, "test");
    if (sv_j_cur(p)->type == SV_JT_LPAREN) {
        n->args = parse_args(p);
    } else if (test_argument_follows(p)) {
        if (sv_j_at_name(p, "is"))
            sv_j_unexpected(p, "one test (they cannot be chained)");
        n->args = sv_j_alloc(p->x, sizeof *n->args);
        n->args->value = parse_postfix(p, parse_primary(p));
    }
    if (!negated)
        return n;
    outer = sv_j_node(p, SV_JN_NOT, pos);
    outer->a = n;
    return outer;
}

static struct sv_jnode *parse_unary(struct sv_jparse *p, bool with_filter)
{
    int type = sv_j_cur(p)->type;
    struct sv_jnode *n;

    sv_j_enter(p->x);
    if (type == SV_JT_SUB || type == SV_JT_ADD) {
        n = sv_j_node(p, type == SV_JT_SUB ? SV_JN_NEG : SV_JN_POS, p->tok[p->at++].pos);
        n->a = parse_unary(p, false);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        if (sv_j_cur(p)->type == SV_JT_PIPE) {
            n = sv_j_parse_filters(p, n, false);
        } else if (sv_j_at_name(p, "is")) {
            n = parse_test(p, n);
        } else if (sv_j_cur(p)->type == SV_JT_LPAREN) {
            /* after filters: calls, no subscripts */
            struct sv_jnode *call = sv_j_node(p, SV_JN_CALL, sv_j_cur(p)->pos);
            call->a = n;
            call->args = parse_args(p);
            n = call;
        } else {
            break;
        }
    }
    sv_j_leave(p->x);
    return n;
}

/* ---------------------------------------------------------------- binary operators */

static const struct {
    uint8_t token, power, op;
} binary[] = {
    {SV_JT_ADD, P_SUM, SV_JO_ADD},
    {SV_JT_SUB, P_SUM, SV_JO_SUB},
    {SV_JT_MUL, P_PRODUCT, SV_JO_MUL},
    {SV_JT_DIV, P_PRODUCT, SV_JO_DIV},
    {SV_JT_FLOORDIV, P_PRODUCT, SV_JO_FLOORDIV},
    {SV_JT_MOD, P_PRODUCT, SV_JO_MOD},
    {SV_JT_POW, P_POWER, SV_JO_POW},
    {SV_JT_TILDE, P_CONCAT, 0},
    {SV_JT_EQ, P_COMPARE, SV_JO_EQ},
    {SV_JT_NE, P_COMPARE, SV_JO_NE},
    {SV_JT_LT, P_COMPARE, SV_JO_LT},
    {SV_JT_LE, P_COMPARE, SV_JO_LE},
    {SV_JT_GT, P_COMPARE, SV_JO_GT},
    {SV_JT_GE, P_COMPARE, SV_JO_GE},
};

/* The power of the current operator, 0 = none. */
static int operator_at(const struct sv_jparse *p, int *op)
{
    const struct sv_jtoken *t = sv_j_cur(p);

    if (t->type == SV_JT_NAME) {
        *op = SV_JO_IN;
        if (sv_j_str_eq(&t->value, "or"))
            return P_OR;
        if (sv_j_str_eq(&t->value, "and"))
            return P_AND;
        if (sv_j_str_eq(&t->value, "in"))
            return P_COMPARE;
        *op = SV_JO_NOTIN;
        if (sv_j_str_eq(&t->value, "not") && sv_j_peek(p)->type == SV_JT_NAME &&
            sv_j_str_eq(&sv_j_peek(p)->value, "in"))
            return P_COMPARE;
        return 0;
    }
    for (size_t i = 0; i < sizeof binary / sizeof binary[0]; i++) {
        if (binary[i].token == t->type) {
            *op = binary[i].op;
            return binary[i].power;
        }
    }
    return 0;
}

static struct sv_jnode *parse_binary(struct sv_jparse *p, int least);

/* Operands of a chain: a < b in c, or a ~ b ~ c. */
static struct sv_jnode *parse_chain(struct sv_jparse *p, struct sv_jnode *left, int power)
{
    struct sv_jnode *n = sv_j_node(p, power == P_CONCAT ? SV_JN_CONCAT : SV_JN_COMPARE, left->pos);
    struct sv_jnode **end = &n->kids;
    int op = 0;

    if (power == P_CONCAT)
        append(&end, left);
    else
        n->a = left;
    while (operator_at(p, &op) == power) {
        struct sv_jnode *wrap = sv_j_node(p, SV_JN_POS, sv_j_cur(p)->pos);
        p->at += op == SV_JO_NOTIN && power == P_COMPARE ? 2 : 1;
        if (power == P_CONCAT) {
            append(&end, parse_binary(p, power + 1));
        } else { /* a node of its own carries the operator */
            wrap->op = (uint8_t)op;
            wrap->a = parse_binary(p, power + 1);
            append(&end, wrap);
        }
    }
    return n;
}

static struct sv_jnode *parse_binary(struct sv_jparse *p, int least)
{
    struct sv_jnode *left, *n;
    int op, power;

    sv_j_enter(p->x);
    if (least <= P_NOT && sv_j_at_name(p, "not")) {
        left = sv_j_node(p, SV_JN_NOT, p->tok[p->at++].pos);
        left->a = parse_binary(p, P_NOT);
    } else {
        left = parse_unary(p, true);
    }
    while ((power = operator_at(p, &op)) >= least && power) {
        sv_j_step(p->x, 1);
        if (power == P_COMPARE || power == P_CONCAT) {
            left = parse_chain(p, left, power);
            continue;
        }
        n = sv_j_node(p,
                      power == P_OR    ? SV_JN_OR
                      : power == P_AND ? SV_JN_AND
                                       : SV_JN_BIN,
                      sv_j_cur(p)->pos);
        p->at++;
        n->op = (uint8_t)op;
        n->a = left;
        n->b = parse_binary(p, power + 1);
        left = n;
    }
    sv_j_leave(p->x);
    return left;
}

struct sv_jnode *sv_j_parse_expr(struct sv_jparse *p, bool with_cond)
{
    struct sv_jnode *n, *cond;
    size_t begin = p->at;

    sv_j_enter(p->x);
    n = parse_binary(p, P_OR);
    while (with_cond && sv_j_at_name(p, "if")) {
        /* The operand is conditional too: unknown filters in it do not fail the parse. */
        if (!p->soft) {
            p->at = begin;
            p->soft++;
            n = sv_j_parse_expr(p, true);
            p->soft--;
            break;
        }
        p->at++;
        cond = sv_j_node(p, SV_JN_COND, n->pos);
        cond->b = n;
        cond->a = parse_binary(p, P_OR);
        if (sv_j_skip_name(p, "else"))
            cond->c = sv_j_parse_expr(p, true);
        n = cond;
    }
    sv_j_leave(p->x);
    return n;
}

struct sv_jnode *sv_j_parse_tuple(struct sv_jparse *p, bool simple, bool with_cond, const char *end,
                                  bool in_parens)
{
    struct sv_jnode *first = NULL, **last = &first, *n;
    uint32_t pos = sv_j_cur(p)->pos;
    bool is_tuple = false;

    for (;;) {
        int type = sv_j_cur(p)->type;
        if (type == SV_JT_VAR_END || type == SV_JT_BLOCK_END || type == SV_JT_RPAREN ||
            (end && sv_j_at_name(p, end)))
            break;
        append(&last, simple ? parse_primary(p) : sv_j_parse_expr(p, with_cond));
        if (!accept(p, SV_JT_COMMA))
            break;
        is_tuple = true;
    }
    if (!is_tuple && first)
        return first;
    if (!is_tuple && !in_parens)
        sv_j_unexpected(p, "an expression");
    n = sv_j_node(p, SV_JN_TUPLE, pos);
    n->kids = first;
    return n;
}
