/*
 * jinja.h - internals shared by jinja*.c: values, syntax tree, the state of one parse or render.
 *
 * Included by jinja*.c only; the public interface is in text.h. All memory of a run lies in one
 * arena and ends with it; an error leaves by longjmp to jinja.c, so nothing between may own
 * anything outside the arena. Must not: be included outside src/text, or grow rules of its own
 * (what Python's jinja2 does is the rule).
 */
#ifndef SV_TEXT_JINJA_H
#define SV_TEXT_JINJA_H

#include "text/text.h"
#include "text/tok.h"

#include <setjmp.h>
#include <string.h>

/* ---------------------------------------------------------------- values */

enum sv_jkind {
    /* no value at all: an argument not given, a name not set; never seen by a template */
    SV_J_MISSING,
    SV_J_UNDEF,
    SV_J_NONE,
    SV_J_BOOL,
    SV_J_INT,
    SV_J_FLOAT,
    SV_J_STR,
    SV_J_LIST,
    SV_J_TUPLE,
    SV_J_DICT,
    SV_J_RANGE,
    SV_J_GEN,  /* a list that is handed out once, as a generator */
    SV_J_VIEW, /* keys, values or items of a dict; sub says which */
    SV_J_NS,
    SV_J_MACRO,
    SV_J_LOOP,
    SV_J_CYCLER,
    SV_J_JOINER,
    SV_J_FUNC,   /* a global function; i is its number */
    SV_J_METHOD, /* a method with its object */
};

enum { SV_J_KEYS, SV_J_VALUES, SV_J_ITEMS };

struct sv_jval {
    uint8_t kind;
    uint8_t sub; /* string: 1 for Markup; view: which part */
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *p; /* valid UTF-8, not NUL-terminated */
            size_t n;
        } s;
        struct sv_jlist *list; /* list, tuple, generator */
        struct sv_jdict *dict; /* dict, view, namespace */
        struct sv_jrange *range;
        struct sv_jundef *undef;
        struct sv_jmacro *macro;
        struct sv_jloop *loop;
        struct sv_jcycler *cycler;
        struct sv_jmethod *method;
    } u;
};

struct sv_jlist {
    struct sv_jval *item;
    size_t n, cap;
    size_t next; /* generator: items handed out */
};

struct sv_jpair {
    struct sv_jval key, value;
    uint32_t hash;
};

struct sv_jdict { /* ordered by insertion */
    struct sv_jpair *pair;
    size_t n, cap;
};

struct sv_jrange {
    int64_t start, stop, step, n;
};

struct sv_jundef { /* the message is put together only when somebody uses the value */
    const char *hint;
    struct sv_jval obj, name;
};

struct sv_jmethod {
    struct sv_jval self;
    int id;
};

struct sv_jcycler { /* cycler and joiner */
    struct sv_jval *item;
    size_t n, at;
};

/* ---------------------------------------------------------------- syntax tree */

enum sv_jtype {
    /* expressions */
    SV_JN_CONST,
    SV_JN_NAME,
    SV_JN_LIST,   /* kids */
    SV_JN_TUPLE,  /* kids */
    SV_JN_DICT,   /* kids: key, value, key, ... */
    SV_JN_ATTR,   /* a . value */
    SV_JN_ITEM,   /* a [ b ] */
    SV_JN_SLICE,  /* a : b : c; each may be NULL; only as b of ITEM */
    SV_JN_CALL,   /* a (args) */
    SV_JN_FILTER, /* a | id(args); a is NULL at the innermost filter of a block */
    SV_JN_TEST,   /* a is id(args) */
    SV_JN_NOT,
    SV_JN_NEG,
    SV_JN_POS,
    SV_JN_BIN, /* a op b */
    SV_JN_AND,
    SV_JN_OR,
    SV_JN_COMPARE, /* a, then kids, each with its op */
    SV_JN_CONCAT,  /* kids */
    SV_JN_COND,    /* b if a else c */
    /* statements */
    SV_JN_DATA,
    SV_JN_OUTPUT,
    SV_JN_FOR,         /* target a, in b, if c, body, other */
    SV_JN_IF,          /* a, body, other: the next elif when flag, else the else part */
    SV_JN_SET,         /* target a = b */
    SV_JN_SETBLOCK,    /* target a, filters b, body */
    SV_JN_MACRO,       /* name, params, body */
    SV_JN_CALLBLOCK,   /* call a, params, body */
    SV_JN_FILTERBLOCK, /* filters a, body */
    SV_JN_WITH,        /* kids: target, value, ...; body */
    SV_JN_SCOPE,       /* body: the generation tag */
    SV_JN_BREAK,
    SV_JN_CONTINUE,
    SV_JN_NSREF, /* target: name . value */
};

enum sv_jop {
    SV_JO_ADD,
    SV_JO_SUB,
    SV_JO_MUL,
    SV_JO_DIV,
    SV_JO_FLOORDIV,
    SV_JO_MOD,
    SV_JO_POW,
    SV_JO_EQ,
    SV_JO_NE,
    SV_JO_LT,
    SV_JO_LE,
    SV_JO_GT,
    SV_JO_GE,
    SV_JO_IN,
    SV_JO_NOTIN,
};

struct sv_jarg { /* call arguments and macro parameters, in order */
    struct sv_jarg *next;
    struct sv_jnode *value; /* parameter: its default or NULL */
    const char *name;       /* NULL: by position */
    size_t n_name;
    int name_id;    /* of a parameter */
    uint8_t spread; /* 1: *value, 2: **value */
};

struct sv_jnode {
    uint8_t type, op;
    bool flag;    /* for: recursive; macro: uses varargs */
    bool kwargs;  /* macro: uses kwargs */
    bool caller;  /* macro: uses caller */
    uint32_t pos; /* byte of the source */
    int id;       /* name, filter or test */
    struct sv_jval value;
    struct sv_jnode *a, *b, *c;
    struct sv_jnode *kids, *body, *other, *next;
    struct sv_jarg *args;
};

/* ---------------------------------------------------------------- one run */

struct sv_jvar {
    struct sv_jvar *next;
    int id;
    struct sv_jval value; /* MISSING: not set in this round of the loop */
};

struct sv_jscope {
    struct sv_jscope *parent;
    struct sv_jvar *vars;
    bool captured; /* a macro may still look at it */
};

struct sv_jmacro {
    const struct sv_jnode *node;
    struct sv_jscope *scope;
};

struct sv_jloop {
    const struct sv_jnode *node;
    struct sv_jscope *scope; /* outside the loop */
    struct sv_jlist *items;
    size_t index0;
    int depth0;
    struct sv_jval last; /* changed(): what it saw */
};

struct sv_jbuild { /* growing text in the arena */
    char *p;
    size_t n, cap;
};

struct sv_jname {
    const char *p;
    size_t n;
};

struct sv_jheld { /* JSON that from_json parsed: freed at the end of the run */
    struct sv_jheld *next;
    json_t *json;
};

struct sv_template {
    struct sv_arena arena;
    char *source; /* line ends are \n */
    size_t n_source;
    struct sv_jnode *root;
    struct sv_jname *name; /* identifiers, by number */
    int n_names;
    int loop_name; /* number of "loop", or -1 */
};

struct sv_jx {
    struct sv_arena *arena;
    char *at, *end; /* of the chunk being cut up */
    size_t n_bytes, max_bytes;
    int64_t steps, max_steps;
    size_t max_output;
    int depth, max_depth;
    uint32_t pos; /* of what is being read or run */
    const char *source;
    size_t n_source;
    struct sv_err *err;
    jmp_buf fail;
    /* a render's own */
    const struct sv_template *t;
    struct sv_jval *context; /* by name number; MISSING where the context has none */
    struct sv_jscope *scope;
    struct sv_jbuild *out;
    struct sv_jheld *held;
    int64_t now;
};

struct sv_jcall { /* evaluated arguments */
    struct sv_jval *pos;
    size_t n_pos;
    struct sv_jkw {
        const char *name;
        size_t n_name;
        struct sv_jval value;
    } * kw;
    size_t n_kw;
};

/* ---------------------------------------------------------------- jinja_mem.c */

/* How many of n bytes a message shows. */
static inline int sv_j_cut(size_t n)
{
    return n < 100 ? (int)n : 100;
}
_Noreturn void sv_j_throw(struct sv_jx *x, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* As raise_exception: the message is all there is. */
_Noreturn void sv_j_throw_text(struct sv_jx *x, const char *p, size_t n);
void *sv_j_alloc(struct sv_jx *x, size_t n_bytes); /* cleared, aligned to 16 */
void sv_j_step(struct sv_jx *x, size_t n);         /* counts n steps */
void sv_j_enter(struct sv_jx *x);                  /* one level deeper */
void sv_j_leave(struct sv_jx *x);
void sv_j_put(struct sv_jx *x, struct sv_jbuild *b, const char *p, size_t n);
void sv_j_putc(struct sv_jx *x, struct sv_jbuild *b, char c);
void sv_j_puts(struct sv_jx *x, struct sv_jbuild *b, const char *s);
void sv_j_putf(struct sv_jx *x, struct sv_jbuild *b, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void sv_j_put_cp(struct sv_jx *x, struct sv_jbuild *b, uint32_t cp);
struct sv_jval sv_j_built(const struct sv_jbuild *b);

/* ---------------------------------------------------------------- jinja_value.c */

static inline struct sv_jval sv_j_none(void)
{
    return (struct sv_jval){.kind = SV_J_NONE};
}
static inline struct sv_jval sv_j_missing(void)
{
    return (struct sv_jval){.kind = SV_J_MISSING};
}
static inline struct sv_jval sv_j_bool(bool b)
{
    return (struct sv_jval){.kind = SV_J_BOOL, .u.b = b};
}
static inline struct sv_jval sv_j_int(int64_t i)
{
    return (struct sv_jval){.kind = SV_J_INT, .u.i = i};
}
static inline struct sv_jval sv_j_float(double f)
{
    return (struct sv_jval){.kind = SV_J_FLOAT, .u.f = f};
}
static inline struct sv_jval sv_j_str(const char *p, size_t n)
{
    return (struct sv_jval){.kind = SV_J_STR, .u.s = {p, n}};
}
static inline struct sv_jval sv_j_cstr(const char *p)
{
    return sv_j_str(p, strlen(p));
}
static inline bool sv_j_is(const struct sv_jval *v, enum sv_jkind kind)
{
    return v->kind == kind;
}
bool sv_j_str_eq(const struct sv_jval *v, const char *text);

struct sv_jval sv_j_undef(struct sv_jx *x, const char *hint);
struct sv_jval sv_j_undef_name(struct sv_jx *x, struct sv_jval name);
struct sv_jval sv_j_undef_attr(struct sv_jx *x, struct sv_jval obj, struct sv_jval name);
_Noreturn void sv_j_throw_undef(struct sv_jx *x, const struct sv_jval *v);
const char *sv_j_type_name(const struct sv_jval *v); /* Python's name of the type */

struct sv_jlist *sv_j_list_new(struct sv_jx *x, size_t cap);
void sv_j_list_push(struct sv_jx *x, struct sv_jlist *l, struct sv_jval v);
struct sv_jval sv_j_list(enum sv_jkind kind, struct sv_jlist *l);
struct sv_jval sv_j_pair(struct sv_jx *x, struct sv_jval a, struct sv_jval b); /* a tuple */
struct sv_jdict *sv_j_dict_new(struct sv_jx *x, size_t cap);
void sv_j_dict_add(struct sv_jx *x, struct sv_jdict *d, struct sv_jval key, struct sv_jval value);
void sv_j_dict_set(struct sv_jx *x, struct sv_jdict *d, struct sv_jval key, struct sv_jval value);
/* NULL when there is none; throws when the key cannot be hashed. */
struct sv_jval *sv_j_dict_get(struct sv_jx *x, const struct sv_jdict *d, struct sv_jval key);
bool sv_j_hashable(const struct sv_jval *v);
struct sv_jval sv_j_from_json(struct sv_jx *x, const json_t *j);
/* A value from JSON text, copied into the arena; throws when it is malformed. */
struct sv_jval sv_j_json_text(struct sv_jx *x, const char *p, size_t n);

bool sv_j_truth(struct sv_jx *x, const struct sv_jval *v);
bool sv_j_eq(struct sv_jx *x, const struct sv_jval *a, const struct sv_jval *b);
/* a < b, a <= b, ... as Python orders them; throws for what has no order. */
bool sv_j_order(struct sv_jx *x, enum sv_jop op, const struct sv_jval *a, const struct sv_jval *b);
bool sv_j_contains(struct sv_jx *x, const struct sv_jval *in, const struct sv_jval *v);
bool sv_j_iterable(const struct sv_jval *v);
bool sv_j_sequence(
    const struct sv_jval *v); /* has a length and items by index, as jinja2 sees it */
/* Items of anything that can be looped over; throws otherwise. A generator is used up. */
struct sv_jlist *sv_j_iter(struct sv_jx *x, const struct sv_jval *v);
int64_t sv_j_len(struct sv_jx *x, const struct sv_jval *v); /* -1: has no length */
bool sv_j_number(const struct sv_jval *v);                  /* int, float or bool */
/* start + i * step; between two far ends i * step alone may not fit, the sum does */
static inline int64_t sv_j_range_at(const struct sv_jrange *r, int64_t i)
{
    return (int64_t)((uint64_t)r->start + (uint64_t)i * (uint64_t)r->step);
}
double sv_j_to_double(const struct sv_jval *v);
bool sv_j_to_int(const struct sv_jval *v, int64_t *out); /* int or bool */

/* ---------------------------------------------------------------- jinja_repr.c */

void sv_j_put_str(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jval *v);  /* str(v) */
void sv_j_put_repr(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jval *v); /* repr(v) */
struct sv_jval sv_j_to_str(struct sv_jx *x, const struct sv_jval *v); /* strings as they are */
void sv_j_float_repr(double f, char out[40]);
void sv_j_escape(struct sv_jx *x, struct sv_jbuild *b, const char *p, size_t n); /* HTML */

/* jinja_json.c */
struct sv_jval sv_j_tojson(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c);

/* --------------------------------------------------------- jinja_text.c: strings as code points */

bool sv_j_space(uint32_t cp);
size_t sv_j_n_cp(const char *p, size_t n);
size_t sv_j_cp_to_byte(const char *p, size_t n, size_t cp);              /* n when past the end */
const char *sv_j_find(const char *p, size_t n, const char *q, size_t m); /* first, or NULL */
const char *sv_j_rfind(struct sv_jx *x, const char *p, size_t n, const char *q,
                       size_t m); /* last */
enum { SV_J_LEFT = 1, SV_J_RIGHT = 2 };
struct sv_jval sv_j_strip(struct sv_jx *x, struct sv_jval s, const struct sv_jval *chars,
                          int sides);
struct sv_jval sv_j_upper(struct sv_jx *x, struct sv_jval s);
struct sv_jval sv_j_lower(struct sv_jx *x, struct sv_jval s);
struct sv_jval sv_j_capitalize(struct sv_jx *x, struct sv_jval s);
struct sv_jval sv_j_title(struct sv_jx *x, struct sv_jval s);       /* str.title */
struct sv_jval sv_j_title_words(struct sv_jx *x, struct sv_jval s); /* the filter */
struct sv_jval sv_j_swapcase(struct sv_jx *x, struct sv_jval s);
struct sv_jval sv_j_replace(struct sv_jx *x, struct sv_jval s, struct sv_jval old,
                            struct sv_jval new, int64_t count);
struct sv_jlist *sv_j_splitlines(struct sv_jx *x, struct sv_jval s, bool keep);
struct sv_jlist *sv_j_split(struct sv_jx *x, struct sv_jval s, const struct sv_jval *sep,
                            int64_t max, bool right);
/* isalpha and its kin; what is the method's name */
bool sv_j_str_is(const struct sv_jval *s, const char *what);
bool sv_j_printable(uint32_t cp);
/* str % args */
struct sv_jval sv_j_percent(struct sv_jx *x, struct sv_jval fmt, struct sv_jval args);
/* str.format(...); jinja_format.c */
struct sv_jval sv_j_format(struct sv_jx *x, struct sv_jval fmt, const struct sv_jcall *c);
/* int(text), float(text); false when Python would raise ValueError */
bool sv_j_parse_int(struct sv_jx *x, const char *p, size_t n, int base, int64_t *out);
bool sv_j_parse_float(struct sv_jx *x, const char *p, size_t n, double *out);

/* ---------------------------------------------------------------- jinja_ops.c */

struct sv_jval sv_j_binary(struct sv_jx *x, enum sv_jop op, struct sv_jval a, struct sv_jval b);
bool sv_j_compare(struct sv_jx *x, enum sv_jop op, const struct sv_jval *a,
                  const struct sv_jval *b);
struct sv_jval sv_j_negate(struct sv_jx *x, struct sv_jval v, bool minus);
struct sv_jval sv_j_getattr(struct sv_jx *x, struct sv_jval obj, struct sv_jval name);
struct sv_jval sv_j_getitem(struct sv_jx *x, struct sv_jval obj, struct sv_jval key);
struct sv_jval sv_j_slice(struct sv_jx *x, struct sv_jval obj, const struct sv_jval bound[3]);

/* ---------------------------------------------------------------- calls */

/* Fills out[] from positions and keywords. spec names the parameters: "width first blank"; those
 * before a
 * "/" are by position only, those after "*" by keyword only. Absent ones are MISSING. */
void sv_j_bind(struct sv_jx *x, const char *what, const char *spec, const struct sv_jcall *c,
               struct sv_jval *out);
bool sv_j_has_kw(const struct sv_jcall *c, const char *name, struct sv_jval *out);
struct sv_jval sv_j_call(struct sv_jx *x, struct sv_jval fn, const struct sv_jcall *c);

/* jinja_method.c: the number of a method of v's type, or -1; *unsafe: it exists but would change
 * v */
int sv_j_method_find(const struct sv_jval *v, const struct sv_jval *name, bool *unsafe);
struct sv_jval sv_j_method_call(struct sv_jx *x, const struct sv_jmethod *m,
                                const struct sv_jcall *c);

/* jinja_filter.c, jinja_seq.c (those over sequences), jinja_is.c: number by name, -1 when
 * unknown */
int sv_j_filter_find(const char *p, size_t n);
struct sv_jval sv_j_filter_call(struct sv_jx *x, int id, struct sv_jval v,
                                const struct sv_jcall *c);
int sv_j_test_find(const char *p, size_t n);
bool sv_j_test_call(struct sv_jx *x, int id, const struct sv_jval *v, const struct sv_jcall *c);
struct sv_jfilter {
    const char *name;
    struct sv_jval (*fn)(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c);
};
extern const struct sv_jfilter sv_j_seq_filters[]; /* ends with a NULL name */

/* jinja_func.c: globals; -1 when unknown */
int sv_j_func_find(const char *p, size_t n);
struct sv_jval sv_j_func_call(struct sv_jx *x, int id, const struct sv_jcall *c);
struct sv_jval sv_j_cycler_attr(struct sv_jx *x, struct sv_jval v, const struct sv_jval *name);

/* jinja_eval.c */
struct sv_jval sv_j_eval(struct sv_jx *x, const struct sv_jnode *n);
/* jinja_exec.c */
void sv_j_run(struct sv_jx *x, const struct sv_jnode *body);
struct sv_jval sv_j_macro_call(struct sv_jx *x, struct sv_jmacro *m, const struct sv_jcall *c);
struct sv_jval sv_j_loop_call(struct sv_jx *x, struct sv_jloop *l, const struct sv_jcall *c);
struct sv_jval sv_j_loop_attr(struct sv_jx *x, struct sv_jval v, const struct sv_jval *name);

void sv_j_assign(struct sv_jx *x, struct sv_jscope *scope, int name, struct sv_jval v);
/* jinja_eval.c: filters of a block; the innermost gets input */
struct sv_jval sv_j_eval_filters(struct sv_jx *x, const struct sv_jnode *n,
                                 const struct sv_jval *input);
struct sv_jval sv_j_eval_call(struct sv_jx *x, const struct sv_jnode *n,
                              const struct sv_jval *caller);

/* ----------------------------------------------------- jinja_lex.c, jinja_parse.c, jinja_expr.c */

enum sv_jtok {
    SV_JT_EOF,
    SV_JT_DATA,
    SV_JT_VAR_BEGIN,
    SV_JT_VAR_END,
    SV_JT_BLOCK_BEGIN,
    SV_JT_BLOCK_END,
    SV_JT_NAME,
    SV_JT_STR,
    SV_JT_INT,
    SV_JT_FLOAT,
    SV_JT_ADD,
    SV_JT_SUB,
    SV_JT_MUL,
    SV_JT_DIV,
    SV_JT_FLOORDIV,
    SV_JT_MOD,
    SV_JT_POW,
    SV_JT_TILDE,
    SV_JT_LBRACKET,
    SV_JT_RBRACKET,
    SV_JT_LPAREN,
    SV_JT_RPAREN,
    SV_JT_LBRACE,
    SV_JT_RBRACE,
    SV_JT_EQ,
    SV_JT_NE,
    SV_JT_GT,
    SV_JT_GE,
    SV_JT_LT,
    SV_JT_LE,
    SV_JT_ASSIGN,
    SV_JT_DOT,
    SV_JT_COLON,
    SV_JT_PIPE,
    SV_JT_COMMA,
    SV_JT_SEMICOLON,
};

struct sv_jtoken {
    uint8_t type;
    uint32_t pos;
    struct sv_jval value; /* text of data, names and strings; numbers */
};

struct sv_jparse {
    struct sv_jx *x;
    struct sv_template *t;
    const struct sv_jtoken *tok;
    size_t n_tok, at;
    int n_names, cap_names;
    int soft;  /* inside something conditional: unknown filters fail only when they are reached */
    int loops; /* for loops around, inside this macro */
};

const struct sv_jtoken *sv_j_lex(struct sv_jx *x, size_t *n);
void sv_j_parse(struct sv_jparse *p);
struct sv_jnode *sv_j_node(struct sv_jparse *p, enum sv_jtype type, uint32_t pos);
int sv_j_name_id(struct sv_jparse *p, const struct sv_jval *name);
const struct sv_jtoken *sv_j_cur(const struct sv_jparse *p);
const struct sv_jtoken *sv_j_peek(const struct sv_jparse *p);
bool sv_j_at_name(const struct sv_jparse *p, const char *name);
bool sv_j_skip_name(struct sv_jparse *p, const char *name);
const struct sv_jtoken *sv_j_expect(struct sv_jparse *p, enum sv_jtok type);
_Noreturn void sv_j_unexpected(struct sv_jparse *p, const char *wanted);
struct sv_jnode *sv_j_parse_expr(struct sv_jparse *p, bool with_cond);
/* end: a name that ends the tuple, or NULL */
struct sv_jnode *sv_j_parse_tuple(struct sv_jparse *p, bool simple, bool with_cond, const char *end,
                                  bool in_parens);
struct sv_jnode *sv_j_parse_filters(struct sv_jparse *p, struct sv_jnode *value, bool start_inline);

#endif
