/*
 * value.c - values of a template: construction, dicts, truth, equality, order, membership,
 * iteration.
 *
 * Called by all jinja*.c. The rules are Python's for the types of JSON and templates. Must not:
 * change a value that a template may share, except namespaces and what the sandbox allows to
 * change.
 */
#include "jinja/run.h"
#include "jinja/text.h"

bool sv_j_str_eq(const struct sv_jval *v, const char *text)
{
    size_t n = strlen(text);
    return v->kind == SV_J_STR && v->u.s.n == n && memcmp(v->u.s.p, text, n) == 0;
}

/* ---------------------------------------------------------------- undefined */

static struct sv_jval undef(struct sv_jx *x, struct sv_jundef what)
{
    struct sv_jval v = {.kind = SV_J_UNDEF};
    v.u.undef = sv_j_alloc(x, sizeof what);
    *v.u.undef = what;
    return v;
}

struct sv_jval sv_j_undef(struct sv_jx *x, const char *hint)
{
    return undef(x, (struct sv_jundef){.hint = hint});
}

struct sv_jval sv_j_undef_name(struct sv_jx *x, struct sv_jval name)
{
    return undef(x, (struct sv_jundef){.name = name});
}

struct sv_jval sv_j_undef_attr(struct sv_jx *x, struct sv_jval obj, struct sv_jval name)
{
    return undef(x, (struct sv_jundef){.obj = obj, .name = name});
}

_Noreturn void sv_j_throw_undef(struct sv_jx *x, const struct sv_jval *v)
{
    const struct sv_jundef *u = v->u.undef;
    struct sv_jbuild b = {0};
    const char *type = sv_j_type_name(&u->obj);

    if (u->hint)
        sv_j_throw(x, SV_EINVAL, "%s", u->hint);
    sv_j_put_repr(x, &b, &u->name);
    sv_j_putc(x, &b, 0);
    if (sv_j_is(&u->obj, SV_J_MISSING))
        sv_j_throw(x, SV_EINVAL, "%s is undefined", b.p);
    if (sv_j_is(&u->obj, SV_J_NONE))
        sv_j_throw(x, SV_EINVAL, "'None' has no attribute %s", b.p);
    if (!sv_j_is(&u->name, SV_J_STR))
        sv_j_throw(x, SV_EINVAL, "%s object has no element %s", type, b.p);
    sv_j_throw(x, SV_EINVAL, "'%s object' has no attribute %s", type, b.p);
}

const char *sv_j_type_name(const struct sv_jval *v)
{
    static const char *const name[] = {
        "missing",     "Undefined", "NoneType",  "bool",      "int",
        "float",       "str",       "list",      "tuple",     "dict",
        "range",       "generator", "dict_view", "Namespace", "Macro",
        "LoopContext", "Cycler",    "Joiner",    "function",  "builtin_function_or_method",
    };
    return name[v->kind];
}

/* ---------------------------------------------------------------- lists and dicts */

struct sv_jlist *sv_j_list_new(struct sv_jx *x, size_t cap)
{
    struct sv_jlist *l = sv_j_alloc(x, sizeof *l);
    if (cap > x->max_bytes / sizeof *l->item)
        sv_j_throw(x, SV_EFULL, "the template needs more than %zu bytes of memory", x->max_bytes);
    l->item = sv_j_alloc(x, cap * sizeof *l->item);
    l->cap = cap;
    return l;
}

void sv_j_list_push(struct sv_jx *x, struct sv_jlist *l, struct sv_jval v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        struct sv_jval *item = sv_j_alloc(x, cap * sizeof *item);
        if (l->n)
            memcpy(item, l->item, l->n * sizeof *item);
        l->item = item;
        l->cap = cap;
    }
    l->item[l->n++] = v;
}

struct sv_jval sv_j_list(enum sv_jkind kind, struct sv_jlist *l)
{
    return (struct sv_jval){.kind = (uint8_t)kind, .u.list = l};
}

struct sv_jval sv_j_pair(struct sv_jx *x, struct sv_jval a, struct sv_jval b)
{
    struct sv_jlist *l = sv_j_list_new(x, 2);
    sv_j_list_push(x, l, a);
    sv_j_list_push(x, l, b);
    return sv_j_list(SV_J_TUPLE, l);
}

struct sv_jdict *sv_j_dict_new(struct sv_jx *x, size_t cap)
{
    struct sv_jdict *d = sv_j_alloc(x, sizeof *d);
    d->pair = sv_j_alloc(x, cap * sizeof *d->pair);
    d->cap = cap;
    return d;
}

bool sv_j_hashable(struct sv_jx *x, const struct sv_jval *v)
{
    bool yes = true;

    switch (v->kind) {
    case SV_J_LIST:
    case SV_J_DICT:
    case SV_J_VIEW:
        return false;
    case SV_J_TUPLE:
        sv_j_enter(x);
        sv_j_step(x, v->u.list->n);
        for (size_t i = 0; yes && i < v->u.list->n; i++)
            yes = sv_j_hashable(x, &v->u.list->item[i]);
        sv_j_leave(x);
        return yes;
    default:
        return true;
    }
}

/* Equal values have equal hashes, 1 and 1.0 and True among them. */
static uint32_t hash_of(struct sv_jx *x, const struct sv_jval *v)
{
    uint64_t h = 14695981039346656037u;
    double f;

    switch (v->kind) {
    case SV_J_STR:
        sv_j_read(x, v->u.s.n);
        for (size_t i = 0; i < v->u.s.n; i++)
            h = (h ^ (uint8_t)v->u.s.p[i]) * 1099511628211u;
        break;
    case SV_J_BOOL:
    case SV_J_INT:
    case SV_J_FLOAT:
        f = sv_j_to_double(v);
        if (f != 0)
            memcpy(&h, &f, sizeof h);
        h *= 0x9E3779B97F4A7C15u;
        break;
    case SV_J_TUPLE:
        sv_j_enter(x);
        sv_j_step(x, v->u.list->n);
        for (size_t i = 0; i < v->u.list->n; i++)
            h = (h ^ hash_of(x, &v->u.list->item[i])) * 1099511628211u;
        sv_j_leave(x);
        break;
    default:
        h = v->kind;
        break;
    }
    return (uint32_t)(h ^ h >> 32);
}

struct sv_jval *sv_j_dict_get(struct sv_jx *x, const struct sv_jdict *d, struct sv_jval key)
{
    uint32_t hash;

    if (!sv_j_hashable(x, &key))
        sv_j_throw(x, SV_EINVAL, "unhashable type: '%s'", sv_j_type_name(&key));
    hash = hash_of(x, &key);
    sv_j_step(x, d->n / 32);
    for (size_t i = 0; i < d->n; i++)
        if (d->pair[i].hash == hash && sv_j_eq(x, &d->pair[i].key, &key))
            return &d->pair[i].value;
    return NULL;
}

void sv_j_dict_add(struct sv_jx *x, struct sv_jdict *d, struct sv_jval key, struct sv_jval value)
{
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 8;
        struct sv_jpair *pair = sv_j_alloc(x, cap * sizeof *pair);
        if (d->n)
            memcpy(pair, d->pair, d->n * sizeof *pair);
        d->pair = pair;
        d->cap = cap;
    }
    d->pair[d->n++] = (struct sv_jpair){key, value, hash_of(x, &key)};
}

void sv_j_dict_set(struct sv_jx *x, struct sv_jdict *d, struct sv_jval key, struct sv_jval value)
{
    struct sv_jval *old = sv_j_dict_get(x, d, key);
    if (old)
        *old = value;
    else
        sv_j_dict_add(x, d, key, value);
}

struct sv_jval sv_j_from_json(struct sv_jx *x, const json_t *j)
{
    struct sv_jval v;
    const char *key;
    json_t *value;

    sv_j_step(x, 1);
    switch (json_typeof(j)) {
    case JSON_NULL:
        return sv_j_none();
    case JSON_TRUE:
    case JSON_FALSE:
        return sv_j_bool(json_is_true(j));
    case JSON_INTEGER:
        return sv_j_int(json_integer_value(j));
    case JSON_REAL:
        return sv_j_float(json_real_value(j));
    case JSON_STRING:
        return sv_j_str(json_string_value(j), json_string_length(j));
    case JSON_ARRAY:
        sv_j_enter(x);
        v = sv_j_list(SV_J_LIST, sv_j_list_new(x, json_array_size(j)));
        for (size_t i = 0; i < json_array_size(j); i++)
            sv_j_list_push(x, v.u.list, sv_j_from_json(x, json_array_get(j, i)));
        sv_j_leave(x);
        return v;
    default:
        sv_j_enter(x);
        v.kind = SV_J_DICT;
        v.sub = 0;
        v.u.dict = sv_j_dict_new(x, json_object_size(j));
        json_object_foreach((json_t *)(uintptr_t)j, key, value)
            sv_j_dict_add(x, v.u.dict, sv_j_cstr(key), sv_j_from_json(x, value));
        sv_j_leave(x);
        return v;
    }
}

/* Upper bound of the parser's allocation for each mark: {"a":{}} takes about 550 bytes and has
 * three, plus one after it. */
#define MOST_JSON_BYTES 160

struct sv_jval sv_j_json_text(struct sv_jx *x, const char *p, size_t n)
{
    struct sv_jheld *held = sv_j_alloc(x, sizeof *held);
    struct sv_jbuild b = {0};
    struct sv_err err;
    size_t marks = 1;

    sv_j_step(x, n / 4);
    for (size_t i = 0; i < n; i++)
        marks += p[i] == '[' || p[i] == '{' || p[i] == ',' || p[i] == ':';
    sv_j_reserve(x, n + marks * MOST_JSON_BYTES); /* the parser's memory, freed with the run */
    sv_j_putc(x, &b, '[');                        /* the parser needs a list or an object on top */
    sv_j_put(x, &b, p, n);
    sv_j_putc(x, &b, ']');
    held->json = sv_json_parse(b.p, b.n, &err);
    held->next = x->held;
    x->held = held;
    if (!held->json)
        sv_j_throw(x, err.code == SV_ENOMEM ? SV_ENOMEM : SV_EINVAL, "%.300s", err.msg);
    if (json_array_size(held->json) != 1)
        sv_j_throw(x, SV_EINVAL, "from_json: not one JSON value");
    return sv_j_from_json(x, json_array_get(held->json, 0));
}

/* ---------------------------------------------------------------- numbers */

bool sv_j_number(const struct sv_jval *v)
{
    return v->kind == SV_J_INT || v->kind == SV_J_FLOAT || v->kind == SV_J_BOOL;
}

double sv_j_to_double(const struct sv_jval *v)
{
    return v->kind == SV_J_FLOAT ? v->u.f : v->kind == SV_J_BOOL ? v->u.b : (double)v->u.i;
}

bool sv_j_to_int(const struct sv_jval *v, int64_t *out)
{
    if (v->kind != SV_J_INT && v->kind != SV_J_BOOL)
        return false;
    *out = v->kind == SV_J_BOOL ? v->u.b : v->u.i;
    return true;
}

/* -1, 0, 1, or 2 when a NaN is among them. An integer and a float compare exactly. */
static int compare_numbers(const struct sv_jval *a, const struct sv_jval *b)
{
    int64_t i, k;

    if (sv_j_to_int(a, &i) && sv_j_to_int(b, &k))
        return i < k ? -1 : i > k;
    long double f = a->kind == SV_J_FLOAT ? a->u.f : a->kind == SV_J_BOOL ? a->u.b : a->u.i;
    long double g = b->kind == SV_J_FLOAT ? b->u.f : b->kind == SV_J_BOOL ? b->u.b : b->u.i;
    return f < g ? -1 : f > g ? 1 : f == g ? 0 : 2;
}

/* ---------------------------------------------------------------- truth, equality, order */

bool sv_j_truth(const struct sv_jval *v)
{
    switch (v->kind) {
    case SV_J_MISSING:
    case SV_J_UNDEF:
    case SV_J_NONE:
        return false;
    case SV_J_BOOL:
        return v->u.b;
    case SV_J_INT:
        return v->u.i != 0;
    case SV_J_FLOAT:
        return v->u.f != 0;
    case SV_J_STR:
        return v->u.s.n > 0;
    case SV_J_LIST:
    case SV_J_TUPLE:
        return v->u.list->n > 0;
    case SV_J_DICT:
    case SV_J_VIEW:
        return v->u.dict->n > 0;
    case SV_J_RANGE:
        return v->u.range->n > 0;
    case SV_J_LOOP:
        return v->u.loop->items->n > 0;
    default:
        return true;
    }
}

static bool eq_lists(struct sv_jx *x, const struct sv_jlist *a, const struct sv_jlist *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!sv_j_eq(x, &a->item[i], &b->item[i]))
            return false;
    return true;
}

static bool eq_dicts(struct sv_jx *x, const struct sv_jdict *a, const struct sv_jdict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct sv_jval *other = sv_j_dict_get(x, b, a->pair[i].key);
        if (!other || !sv_j_eq(x, &a->pair[i].value, other))
            return false;
    }
    return true;
}

static bool eq_ranges(const struct sv_jrange *a, const struct sv_jrange *b)
{
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

/* As memcmp, over the shorter length. */
static int compare_bytes(struct sv_jx *x, const struct sv_jval *a, const struct sv_jval *b)
{
    size_t n = a->u.s.n < b->u.s.n ? a->u.s.n : b->u.s.n;

    if (!n || a->u.s.p == b->u.s.p)
        return 0;
    sv_j_copied(x, n);
    return memcmp(a->u.s.p, b->u.s.p, n);
}

bool sv_j_eq(struct sv_jx *x, const struct sv_jval *a, const struct sv_jval *b)
{
    bool same;

    sv_j_step(x, 1);
    if (sv_j_number(a) && sv_j_number(b))
        return compare_numbers(a, b) == 0;
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case SV_J_UNDEF:
    case SV_J_NONE:
    case SV_J_MISSING:
        return true;
    case SV_J_STR:
        return a->u.s.n == b->u.s.n && compare_bytes(x, a, b) == 0;
    case SV_J_LIST:
    case SV_J_TUPLE:
        sv_j_enter(x);
        same = a->u.list == b->u.list || eq_lists(x, a->u.list, b->u.list);
        sv_j_leave(x);
        return same;
    case SV_J_DICT:
        sv_j_enter(x);
        same = a->u.dict == b->u.dict || eq_dicts(x, a->u.dict, b->u.dict);
        sv_j_leave(x);
        return same;
    case SV_J_RANGE:
        return eq_ranges(a->u.range, b->u.range);
    case SV_J_VIEW:
        return a->u.dict == b->u.dict && a->sub == b->sub && a->sub != SV_J_VALUES;
    case SV_J_FUNC:
        return a->u.i == b->u.i;
    default:
        return a->u.list == b->u.list; /* identity: any pointer of the union */
    }
}

static bool by_sign(enum sv_jop op, int sign)
{
    return op == SV_JO_LT   ? sign < 0
           : op == SV_JO_LE ? sign <= 0
           : op == SV_JO_GT ? sign > 0
                            : sign >= 0;
}

bool sv_j_order(struct sv_jx *x, enum sv_jop op, const struct sv_jval *a, const struct sv_jval *b)
{
    static const char *const sign_text[] = {
        [SV_JO_LT] = "<", [SV_JO_LE] = "<=", [SV_JO_GT] = ">", [SV_JO_GE] = ">="};
    sv_j_step(x, 1);
    if (sv_j_number(a) && sv_j_number(b)) {
        int sign = compare_numbers(a, b);
        return sign != 2 && by_sign(op, sign);
    }
    if (sv_j_is(a, SV_J_STR) && sv_j_is(b, SV_J_STR)) { /* UTF-8 orders as its code points do */
        int sign = compare_bytes(x, a, b);
        if (!sign)
            sign = a->u.s.n < b->u.s.n ? -1 : a->u.s.n > b->u.s.n;
        return by_sign(op, sign);
    }
    if (a->kind == b->kind && (sv_j_is(a, SV_J_LIST) || sv_j_is(a, SV_J_TUPLE))) {
        const struct sv_jlist *l = a->u.list, *m = b->u.list;
        bool result;
        size_t i = 0;
        while (i < l->n && i < m->n && sv_j_eq(x, &l->item[i], &m->item[i]))
            i++;
        if (i >= l->n || i >= m->n)
            return by_sign(op, l->n < m->n ? -1 : l->n > m->n);
        sv_j_enter(x);
        result = sv_j_order(x, op, &l->item[i], &m->item[i]);
        sv_j_leave(x);
        return result;
    }
    if (sv_j_is(a, SV_J_UNDEF))
        sv_j_throw_undef(x, a);
    if (sv_j_is(b, SV_J_UNDEF))
        sv_j_throw_undef(x, b);
    sv_j_throw(x, SV_EINVAL, "'%s' not supported between instances of '%s' and '%s'", sign_text[op],
               sv_j_type_name(a), sv_j_type_name(b));
}

bool sv_j_contains(struct sv_jx *x, const struct sv_jval *in, const struct sv_jval *v)
{
    if (sv_j_is(in, SV_J_STR)) {
        if (!sv_j_is(v, SV_J_STR))
            sv_j_throw(x, SV_EINVAL, "'in <string>' requires string as left operand, not %s",
                       sv_j_type_name(v));
        return sv_j_find(x, in->u.s.p, in->u.s.n, v->u.s.p, v->u.s.n) != NULL;
    }
    if (sv_j_is(in, SV_J_DICT) || (sv_j_is(in, SV_J_VIEW) && in->sub == SV_J_KEYS))
        return sv_j_dict_get(x, in->u.dict, *v) != NULL;
    if (!sv_j_iterable(in))
        sv_j_throw(x, SV_EINVAL, "argument of type '%s' is not iterable", sv_j_type_name(in));
    struct sv_jlist *l = sv_j_iter(x, in);
    for (size_t i = 0; i < l->n; i++)
        if (sv_j_eq(x, &l->item[i], v))
            return true;
    return false;
}

/* ---------------------------------------------------------------- iteration */

bool sv_j_sequence(const struct sv_jval *v)
{
    switch (v->kind) {
    case SV_J_UNDEF:
    case SV_J_STR:
    case SV_J_LIST:
    case SV_J_TUPLE:
    case SV_J_DICT:
    case SV_J_RANGE:
        return true;
    default:
        return false;
    }
}

bool sv_j_iterable(const struct sv_jval *v)
{
    return sv_j_sequence(v) || v->kind == SV_J_GEN || v->kind == SV_J_VIEW || v->kind == SV_J_LOOP;
}

static struct sv_jlist *iter_str(struct sv_jx *x, const struct sv_jval *v)
{
    struct sv_jlist *l = sv_j_list_new(x, 0);
    int len;

    for (size_t i = 0; i < v->u.s.n; i += (size_t)len) {
        struct sv_jval c = sv_j_str(v->u.s.p + i, 0);
        (void)sv_utf8_get(c.u.s.p, &len);
        c.u.s.n = (size_t)len;
        c.sub = v->sub;
        sv_j_list_push(x, l, c);
        sv_j_step(x, 1);
    }
    return l;
}

static struct sv_jlist *iter_dict(struct sv_jx *x, const struct sv_jdict *d, int which)
{
    struct sv_jlist *l = sv_j_list_new(x, d->n);

    sv_j_step(x, d->n);
    for (size_t i = 0; i < d->n; i++)
        sv_j_list_push(x, l,
                       which == SV_J_KEYS     ? d->pair[i].key
                       : which == SV_J_VALUES ? d->pair[i].value
                                              : sv_j_pair(x, d->pair[i].key, d->pair[i].value));
    return l;
}

struct sv_jlist *sv_j_iter(struct sv_jx *x, const struct sv_jval *v)
{
    struct sv_jlist *l;

    switch (v->kind) {
    case SV_J_UNDEF:
        return sv_j_list_new(x, 0);
    case SV_J_STR:
        return iter_str(x, v);
    case SV_J_LIST:
    case SV_J_TUPLE:
        sv_j_step(x, v->u.list->n / 8);
        return v->u.list;
    case SV_J_GEN: /* the items not yet iterated */
        l = sv_j_list_new(x, 0);
        l->item = v->u.list->item + v->u.list->next;
        l->n = l->cap = v->u.list->n - v->u.list->next;
        v->u.list->next = v->u.list->n;
        return l;
    case SV_J_DICT:
        return iter_dict(x, v->u.dict, SV_J_KEYS);
    case SV_J_VIEW:
        return iter_dict(x, v->u.dict, v->sub);
    case SV_J_RANGE:
        l = sv_j_list_new(x, (size_t)v->u.range->n);
        sv_j_step(x, (size_t)v->u.range->n);
        for (int64_t i = 0; i < v->u.range->n; i++)
            sv_j_list_push(x, l, sv_j_int(sv_j_range_at(v->u.range, i)));
        return l;
    case SV_J_LOOP:
        sv_j_throw(x, SV_EUNSUPPORTED, "iterating over the loop variable is not supported");
    default:
        sv_j_throw(x, SV_EINVAL, "'%s' object is not iterable", sv_j_type_name(v));
    }
}

int64_t sv_j_len(struct sv_jx *x, const struct sv_jval *v)
{
    switch (v->kind) {
    case SV_J_UNDEF:
        return 0;
    case SV_J_STR:
        return (int64_t)sv_j_n_cp(x, v->u.s.p, v->u.s.n);
    case SV_J_LIST:
    case SV_J_TUPLE:
        return (int64_t)v->u.list->n;
    case SV_J_DICT:
    case SV_J_VIEW:
        return (int64_t)v->u.dict->n;
    case SV_J_RANGE:
        return v->u.range->n;
    case SV_J_LOOP:
        return (int64_t)v->u.loop->items->n;
    default:
        return -1;
    }
}
