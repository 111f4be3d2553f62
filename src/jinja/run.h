/*
 * run.h - the state of one parse or render, and the functions shared by the files of this folder.
 *
 * Included by the files of src/jinja; the public interface is jinja.h. All memory of a run is in
 * one arena; errors longjmp to template.c, so functions in between may own nothing outside the
 * arena. Must not: be included outside src/jinja, or deviate from Python's jinja2.
 */
#ifndef SV_JINJA_RUN_H
#define SV_JINJA_RUN_H

#include "jinja/tree.h"

#include <setjmp.h>
#include <string.h>

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
    int loop_name, caller_name, kwargs_name, varargs_name; /* numbers of these, or -1 */
};

struct sv_jx {
    struct sv_arena *arena;
    char *at, *end; /* of the chunk being cut up */
    size_t n_bytes, max_bytes;
    int64_t steps, max_steps;
    size_t max_output;
    int depth, max_depth;
    uint32_t pos; /* of the current token or node */
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

/* ---------------------------------------------------------------- mem.c */

/* How many of n bytes are shown in a message. */
static inline int sv_j_cut(size_t n)
{
    return n < 100 ? (int)n : 100;
}
_Noreturn void sv_j_throw(struct sv_jx *x, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* As raise_exception: the message alone. */
_Noreturn void sv_j_throw_text(struct sv_jx *x, const char *p, size_t n);
void *sv_j_alloc(struct sv_jx *x, size_t n_bytes); /* cleared, aligned to 16 */
void sv_j_step(struct sv_jx *x, size_t n);         /* counts n steps */
/* Count the steps of n bytes read one by one, or by memcmp and similar. */
void sv_j_read(struct sv_jx *x, size_t n);
void sv_j_copied(struct sv_jx *x, size_t n);
void sv_j_walked(struct sv_jx *x, size_t n); /* counts the steps along a list of n variables */
void sv_j_reserve(struct sv_jx *x, size_t n_bytes); /* counts memory that is not the arena's */
void sv_j_enter(struct sv_jx *x);                   /* one level deeper */
void sv_j_leave(struct sv_jx *x);
void sv_j_put(struct sv_jx *x, struct sv_jbuild *b, const char *p, size_t n);
void sv_j_putc(struct sv_jx *x, struct sv_jbuild *b, char c);
void sv_j_puts(struct sv_jx *x, struct sv_jbuild *b, const char *s);
void sv_j_putf(struct sv_jx *x, struct sv_jbuild *b, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void sv_j_put_cp(struct sv_jx *x, struct sv_jbuild *b, uint32_t cp);
struct sv_jval sv_j_built(const struct sv_jbuild *b);

/* ---------------------------------------------------------------- value.c */

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
bool sv_j_hashable(struct sv_jx *x, const struct sv_jval *v);
struct sv_jval sv_j_from_json(struct sv_jx *x, const json_t *j);
/* A value from JSON text, copied into the arena; throws when it is malformed. */
struct sv_jval sv_j_json_text(struct sv_jx *x, const char *p, size_t n);

bool sv_j_truth(const struct sv_jval *v);
bool sv_j_eq(struct sv_jx *x, const struct sv_jval *a, const struct sv_jval *b);
/* a < b, a <= b, ... as Python orders them; throws for what has no order. */
bool sv_j_order(struct sv_jx *x, enum sv_jop op, const struct sv_jval *a, const struct sv_jval *b);
bool sv_j_contains(struct sv_jx *x, const struct sv_jval *in, const struct sv_jval *v);
bool sv_j_iterable(const struct sv_jval *v);
bool sv_j_sequence(const struct sv_jval *v); /* has a length and items by index, as in jinja2 */
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

/* ---------------------------------------------------------------- repr.c */

void sv_j_put_str(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jval *v);  /* str(v) */
void sv_j_put_repr(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jval *v); /* repr(v) */
struct sv_jval sv_j_to_str(struct sv_jx *x, const struct sv_jval *v); /* strings as they are */
void sv_j_float_repr(struct sv_jx *x, double f, char out[40]);
void sv_j_escape(struct sv_jx *x, struct sv_jbuild *b, const char *p, size_t n); /* HTML */

/* json.c */
struct sv_jval sv_j_tojson(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c);

/* ---------------------------------------------------------------- ops.c */

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
bool sv_j_has_kw(struct sv_jx *x, const struct sv_jcall *c, const char *name, size_t n,
                 struct sv_jval *out);
struct sv_jval sv_j_call(struct sv_jx *x, struct sv_jval fn, const struct sv_jcall *c);

/* method.c: the number of a method of v's type, or -1; *unsafe: it exists but would change
 * v */
int sv_j_method_find(const struct sv_jval *v, const struct sv_jval *name, bool *unsafe);
struct sv_jval sv_j_method_call(struct sv_jx *x, const struct sv_jmethod *m,
                                const struct sv_jcall *c);

/* filter.c, seq.c (those over sequences), is.c: number by name, -1 when
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

/* func.c: globals; -1 when unknown */
int sv_j_func_find(const char *p, size_t n);
struct sv_jval sv_j_cycler_attr(struct sv_jx *x, struct sv_jval v, const struct sv_jval *name);

/* eval.c */
struct sv_jval sv_j_eval(struct sv_jx *x, const struct sv_jnode *n);
/* exec.c */
void sv_j_run(struct sv_jx *x, const struct sv_jnode *body);
struct sv_jval sv_j_macro_call(struct sv_jx *x, struct sv_jmacro *m, const struct sv_jcall *c);
struct sv_jval sv_j_loop_call(struct sv_jx *x, struct sv_jloop *l, const struct sv_jcall *c);
struct sv_jval sv_j_loop_attr(struct sv_jx *x, struct sv_jval v, const struct sv_jval *name);
/* eval.c: filters of a block; input goes to the innermost */
struct sv_jval sv_j_eval_filters(struct sv_jx *x, const struct sv_jnode *n,
                                 const struct sv_jval *input);
struct sv_jval sv_j_eval_call(struct sv_jx *x, const struct sv_jnode *n,
                              const struct sv_jval *caller);

#endif
