/*
 * is.c - the tests of "is", and of select and reject.
 *
 * Called by the tree walker and seq.c. Must not: raise where jinja2's test returns false.
 */
#include "jinja/run.h"
#include "jinja/text.h"

enum test {
    ODD,
    EVEN,
    DIVISIBLEBY,
    DEFINED,
    UNDEFINED,
    FILTER,
    TEST,
    NONE,
    BOOLEAN,
    FALSE_,
    TRUE_,
    INTEGER,
    FLOAT,
    LOWER,
    UPPER,
    STRING,
    MAPPING,
    NUMBER,
    SEQUENCE,
    ITERABLE,
    CALLABLE,
    SAMEAS,
    ESCAPED,
    IN,
    EQ,
    NE,
    GT,
    GE,
    LT,
    LE,
};

static const struct {
    const char *name;
    uint8_t test, n_args;
} tests[] = {
    {"odd", ODD, 0},
    {"even", EVEN, 0},
    {"divisibleby", DIVISIBLEBY, 1},
    {"defined", DEFINED, 0},
    {"undefined", UNDEFINED, 0},
    {"filter", FILTER, 0},
    {"test", TEST, 0},
    {"none", NONE, 0},
    {"boolean", BOOLEAN, 0},
    {"false", FALSE_, 0},
    {"true", TRUE_, 0},
    {"integer", INTEGER, 0},
    {"float", FLOAT, 0},
    {"lower", LOWER, 0},
    {"upper", UPPER, 0},
    {"string", STRING, 0},
    {"mapping", MAPPING, 0},
    {"number", NUMBER, 0},
    {"sequence", SEQUENCE, 0},
    {"iterable", ITERABLE, 0},
    {"callable", CALLABLE, 0},
    {"sameas", SAMEAS, 1},
    {"escaped", ESCAPED, 0},
    {"in", IN, 1},
    {"==", EQ, 1},
    {"eq", EQ, 1},
    {"equalto", EQ, 1},
    {"!=", NE, 1},
    {"ne", NE, 1},
    {">", GT, 1},
    {"gt", GT, 1},
    {"greaterthan", GT, 1},
    {"ge", GE, 1},
    {">=", GE, 1},
    {"<", LT, 1},
    {"lt", LT, 1},
    {"lessthan", LT, 1},
    {"<=", LE, 1},
    {"le", LE, 1},
};

int sv_j_test_find(const char *p, size_t n)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, p, n) == 0)
            return (int)i;
    return -1;
}

static bool parity_is(struct sv_jx *x, const struct sv_jval *v, int64_t want)
{
    struct sv_jval m = sv_j_binary(x, SV_JO_MOD, *v, sv_j_int(2)), w = sv_j_int(want);
    return sv_j_eq(x, &m, &w);
}

static bool is_callable(const struct sv_jval *v)
{
    switch (v->kind) {
    case SV_J_UNDEF:
    case SV_J_MACRO:
    case SV_J_LOOP:
    case SV_J_JOINER:
    case SV_J_FUNC:
    case SV_J_METHOD:
        return true;
    default:
        return false;
    }
}

static bool same(struct sv_jx *x, const struct sv_jval *a, const struct sv_jval *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == SV_J_UNDEF || a->kind == SV_J_LIST || a->kind == SV_J_TUPLE ||
        a->kind == SV_J_DICT)
        return a->u.list == b->u.list; /* compares the union's pointer */
    return sv_j_eq(x, a, b);
}

static bool on_text(struct sv_jx *x, const struct sv_jval *v, const char *what)
{
    struct sv_jval s = sv_j_to_str(x, v);
    return sv_j_str_is(x, &s, what);
}

static bool on_type(struct sv_jx *x, int test, const struct sv_jval *v)
{
    switch (test) {
    case DEFINED:
        return !sv_j_is(v, SV_J_UNDEF);
    case UNDEFINED:
        return sv_j_is(v, SV_J_UNDEF);
    case NONE:
        return sv_j_is(v, SV_J_NONE);
    case BOOLEAN:
        return sv_j_is(v, SV_J_BOOL);
    case FALSE_:
        return sv_j_is(v, SV_J_BOOL) && !v->u.b;
    case TRUE_:
        return sv_j_is(v, SV_J_BOOL) && v->u.b;
    case INTEGER:
        return sv_j_is(v, SV_J_INT);
    case FLOAT:
        return sv_j_is(v, SV_J_FLOAT);
    case STRING:
        return sv_j_is(v, SV_J_STR);
    case MAPPING:
        return sv_j_is(v, SV_J_DICT);
    case NUMBER:
        return sv_j_number(v);
    case SEQUENCE:
        return sv_j_sequence(v);
    case ITERABLE:
        return sv_j_iterable(v);
    case CALLABLE:
        return is_callable(v);
    case ESCAPED:
        return sv_j_is(v, SV_J_STR) && v->sub;
    case FILTER:
    case TEST:
        if (!sv_j_hashable(x, v))
            sv_j_throw(x, SV_EINVAL, "unhashable type: '%s'", sv_j_type_name(v));
        if (test == TEST)
            return sv_j_is(v, SV_J_STR) && sv_j_test_find(v->u.s.p, v->u.s.n) >= 0;
        return sv_j_is(v, SV_J_STR) && sv_j_filter_find(v->u.s.p, v->u.s.n) >= 0;
    case LOWER:
        return on_text(x, v, "islower");
    case UPPER:
        return on_text(x, v, "isupper");
    case ODD:
        return parity_is(x, v, 1);
    default:
        return parity_is(x, v, 0);
    }
}

bool sv_j_test_call(struct sv_jx *x, int id, const struct sv_jval *v, const struct sv_jcall *c)
{
    static const uint8_t op[] = {[EQ] = SV_JO_EQ, [NE] = SV_JO_NE, [GT] = SV_JO_GT,
                                 [GE] = SV_JO_GE, [LT] = SV_JO_LT, [LE] = SV_JO_LE};
    struct sv_jval arg[1], m;
    int test = tests[id].test;

    sv_j_step(x, 1);
    sv_j_bind(x, tests[id].name,
              !tests[id].n_args     ? ""
              : test == DIVISIBLEBY ? "num"
              : test == SAMEAS      ? "other"
              : test == IN          ? "seq"
                                    : "other /",
              c, arg);
    if (!tests[id].n_args)
        return on_type(x, test, v);
    if (sv_j_is(&arg[0], SV_J_MISSING))
        sv_j_throw(x, SV_EINVAL, "the test %s needs an argument", tests[id].name);
    switch (test) {
    case DIVISIBLEBY:
        m = sv_j_binary(x, SV_JO_MOD, *v, arg[0]);
        arg[0] = sv_j_int(0);
        return sv_j_eq(x, &m, &arg[0]);
    case SAMEAS:
        return same(x, v, &arg[0]);
    case IN:
        return sv_j_contains(x, &arg[0], v);
    default:
        return sv_j_compare(x, (enum sv_jop)op[test], v, &arg[0]);
    }
}
