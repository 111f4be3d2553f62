/*
 * method.c - methods of strings, dicts, lists and tuples, as far as the immutable sandbox allows
 * them.
 *
 * Called when a template reads an attribute or calls one. A name in the table hides a dict's key of
 * that name when it is read as an attribute, as in Python, even where the call is refused. Must
 * not: change a dict.
 */
#include "jinja/run.h"
#include "jinja/text.h"

enum { STR = 1, LIST = 2, TUPLE = 4, DICT = 8, RANGE = 16 };
enum { UNSAFE = 1, REFUSED = 2 }; /* forbidden by the sandbox; or not implemented */

static const struct method {
    const char *name;
    uint8_t of, how;
} methods[] = {
    {"append", LIST, UNSAFE},
    {"capitalize", STR, 0},
    {"casefold", STR, REFUSED},
    {"center", STR, 0},
    {"clear", DICT, UNSAFE},
    {"clear", LIST, 0},
    {"copy", DICT | LIST, 0},
    {"count", STR | LIST | TUPLE | RANGE, 0},
    {"encode", STR, REFUSED},
    {"endswith", STR, 0},
    {"expandtabs", STR, REFUSED},
    {"extend", LIST, UNSAFE},
    {"find", STR, 0},
    {"format", STR, 0},
    {"format_map", STR, REFUSED},
    {"fromkeys", DICT, REFUSED},
    {"get", DICT, 0},
    {"index", STR | LIST | TUPLE | RANGE, 0},
    {"insert", LIST, UNSAFE},
    {"isalnum", STR, 0},
    {"isalpha", STR, 0},
    {"isascii", STR, 0},
    {"isdecimal", STR, 0},
    {"isdigit", STR, 0},
    {"isidentifier", STR, REFUSED},
    {"islower", STR, 0},
    {"isnumeric", STR, 0},
    {"isprintable", STR, 0},
    {"isspace", STR, 0},
    {"istitle", STR, REFUSED},
    {"isupper", STR, 0},
    {"items", DICT, 0},
    {"join", STR, 0},
    {"keys", DICT, 0},
    {"ljust", STR, 0},
    {"lower", STR, 0},
    {"lstrip", STR, 0},
    {"maketrans", STR, REFUSED},
    {"partition", STR, 0},
    {"pop", DICT, UNSAFE},
    {"pop", LIST, 0},
    {"popitem", DICT, UNSAFE},
    {"remove", LIST, UNSAFE},
    {"removeprefix", STR, 0},
    {"removesuffix", STR, 0},
    {"replace", STR, 0},
    {"reverse", LIST, UNSAFE},
    {"rfind", STR, 0},
    {"rindex", STR, 0},
    {"rjust", STR, 0},
    {"rpartition", STR, 0},
    {"rsplit", STR, 0},
    {"rstrip", STR, 0},
    {"setdefault", DICT, UNSAFE},
    {"sort", LIST, UNSAFE},
    {"split", STR, 0},
    {"splitlines", STR, 0},
    {"startswith", STR, 0},
    {"strip", STR, 0},
    {"swapcase", STR, 0},
    {"title", STR, 0},
    {"translate", STR, REFUSED},
    {"update", DICT, UNSAFE},
    {"upper", STR, 0},
    {"values", DICT, 0},
    {"zfill", STR, 0},
};

int sv_j_method_find(const struct sv_jval *v, const struct sv_jval *name, bool *unsafe)
{
    int of = v->kind == SV_J_STR     ? STR
             : v->kind == SV_J_LIST  ? LIST
             : v->kind == SV_J_TUPLE ? TUPLE
             : v->kind == SV_J_DICT  ? DICT
             : v->kind == SV_J_RANGE ? RANGE
                                     : 0;
    for (size_t i = 0; of && i < sizeof methods / sizeof methods[0]; i++) {
        if ((methods[i].of & of) && sv_j_str_eq(name, methods[i].name)) {
            *unsafe = methods[i].how == UNSAFE;
            return (int)i;
        }
    }
    return -1;
}

/* ---------------------------------------------------------------- arguments */

static const struct sv_jval *opt(const struct sv_jval *v) /* NULL for absent and None */
{
    return sv_j_is(v, SV_J_MISSING) || sv_j_is(v, SV_J_NONE) ? NULL : v;
}

static void need_str(struct sv_jx *x, const struct sv_jval *v, const char *what)
{
    if (!sv_j_is(v, SV_J_STR))
        sv_j_throw(x, SV_EINVAL, "%s: expected a string, got %s", what, sv_j_type_name(v));
}

static int64_t need_int(struct sv_jx *x, const struct sv_jval *v, const char *what, int64_t absent)
{
    int64_t i;

    if (sv_j_is(v, SV_J_MISSING))
        return absent;
    if (!sv_j_to_int(v, &i))
        sv_j_throw(x, SV_EINVAL, "%s: expected an integer, got %s", what, sv_j_type_name(v));
    return i;
}

static bool is_name(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* Cuts s to [from:to] in code points, as Python does for find, count, startswith. False: past the
 * end. */
static bool cut(struct sv_jx *x, struct sv_jval *s, const struct sv_jval *from,
                const struct sv_jval *to, int64_t *offset)
{
    int64_t n, a, b;

    *offset = 0;
    if (!opt(from) && !opt(to))
        return true;
    n = sv_j_len(x, s);
    a = opt(from) ? need_int(x, from, "start", 0) : 0;
    b = opt(to) ? need_int(x, to, "end", 0) : n;
    a = a < 0 ? (a + n < 0 ? 0 : a + n) : a;
    b = b < 0 ? (b + n < 0 ? 0 : b + n) : b > n ? n : b;
    if (a > b)
        return false;
    *offset = a;
    size_t first = sv_j_cp_to_byte(x, s->u.s.p, s->u.s.n, (size_t)a);
    s->u.s.n = sv_j_cp_to_byte(x, s->u.s.p + first, s->u.s.n - first, (size_t)(b - a));
    s->u.s.p += first;
    return true;
}

/* ---------------------------------------------------------------- strings */

static bool has_affix(struct sv_jx *x, const struct sv_jval *s, const struct sv_jval *affix,
                      bool end)
{
    size_t n = affix->u.s.n;

    sv_j_step(x, 1);
    if (s->u.s.n < n)
        return false;
    sv_j_copied(x, n);
    return memcmp(s->u.s.p + (end ? s->u.s.n - n : 0), affix->u.s.p, n) == 0;
}

static struct sv_jval str_affix(struct sv_jx *x, const char *name, struct sv_jval s,
                                const struct sv_jcall *c)
{
    struct sv_jval arg[3];
    bool end = name[0] == 'e';
    int64_t offset;

    sv_j_bind(x, name, "affix start end /", c, arg);
    if (!cut(x, &s, &arg[1], &arg[2], &offset))
        return sv_j_bool(false);
    if (sv_j_is(&arg[0], SV_J_TUPLE)) {
        for (size_t i = 0; i < arg[0].u.list->n; i++) {
            need_str(x, &arg[0].u.list->item[i], name);
            if (has_affix(x, &s, &arg[0].u.list->item[i], end))
                return sv_j_bool(true);
        }
        return sv_j_bool(false);
    }
    need_str(x, &arg[0], name);
    return sv_j_bool(has_affix(x, &s, &arg[0], end));
}

static struct sv_jval str_find(struct sv_jx *x, const char *name, struct sv_jval s,
                               const struct sv_jcall *c)
{
    struct sv_jval arg[3];
    const char *hit = NULL;
    int64_t offset;
    bool right = name[0] == 'r', must = strstr(name, "index") != NULL;

    sv_j_bind(x, name, "sub start end /", c, arg);
    need_str(x, &arg[0], name);
    if (cut(x, &s, &arg[1], &arg[2], &offset))
        hit = right ? sv_j_rfind(x, s.u.s.p, s.u.s.n, arg[0].u.s.p, arg[0].u.s.n)
                    : sv_j_find(x, s.u.s.p, s.u.s.n, arg[0].u.s.p, arg[0].u.s.n);
    if (!hit && must)
        sv_j_throw(x, SV_EINVAL, "substring not found");
    return sv_j_int(hit ? offset + (int64_t)sv_j_n_cp(x, s.u.s.p, (size_t)(hit - s.u.s.p)) : -1);
}

static struct sv_jval str_count(struct sv_jx *x, struct sv_jval s, const struct sv_jcall *c)
{
    struct sv_jval arg[3];
    int64_t n = 0, offset;
    const char *p, *end, *hit;

    sv_j_bind(x, "count", "sub start end /", c, arg);
    need_str(x, &arg[0], "count");
    if (!cut(x, &s, &arg[1], &arg[2], &offset))
        return sv_j_int(0);
    if (!arg[0].u.s.n)
        return sv_j_int(sv_j_len(x, &s) + 1);
    for (p = s.u.s.p, end = p + s.u.s.n;
         (hit = sv_j_find(x, p, (size_t)(end - p), arg[0].u.s.p, arg[0].u.s.n));
         p = hit + arg[0].u.s.n) {
        sv_j_step(x, 1);
        n++;
    }
    return sv_j_int(n);
}

static struct sv_jval str_split(struct sv_jx *x, const char *name, struct sv_jval s,
                                const struct sv_jcall *c)
{
    struct sv_jval arg[2];

    sv_j_bind(x, name, "sep maxsplit", c, arg);
    if (opt(&arg[0]))
        need_str(x, &arg[0], name);
    return sv_j_list(
        SV_J_LIST, sv_j_split(x, s, opt(&arg[0]), need_int(x, &arg[1], name, -1), name[0] == 'r'));
}

static struct sv_jval str_strip(struct sv_jx *x, const char *name, struct sv_jval s,
                                const struct sv_jcall *c)
{
    struct sv_jval arg[1];
    int sides = name[0] == 'l' ? SV_J_LEFT : name[0] == 'r' ? SV_J_RIGHT : SV_J_LEFT | SV_J_RIGHT;

    sv_j_bind(x, name, "chars /", c, arg);
    if (opt(&arg[0]))
        need_str(x, &arg[0], name);
    return sv_j_strip(x, s, opt(&arg[0]), sides);
}

static struct sv_jval str_replace(struct sv_jx *x, struct sv_jval s, const struct sv_jcall *c)
{
    struct sv_jval arg[3];

    sv_j_bind(x, "replace", "old new count /", c, arg);
    need_str(x, &arg[0], "replace");
    need_str(x, &arg[1], "replace");
    return sv_j_replace(x, s, arg[0], arg[1], need_int(x, &arg[2], "replace", -1));
}

static struct sv_jval str_join(struct sv_jx *x, struct sv_jval s, const struct sv_jcall *c)
{
    struct sv_jval arg[1];
    struct sv_jbuild b = {0};
    struct sv_jlist *l;

    sv_j_bind(x, "join", "iterable /", c, arg);
    l = sv_j_iter(x, &arg[0]);
    for (size_t i = 0; i < l->n; i++) {
        need_str(x, &l->item[i], "join");
        sv_j_put(x, &b, s.u.s.p, i ? s.u.s.n : 0);
        sv_j_put(x, &b, l->item[i].u.s.p, l->item[i].u.s.n);
    }
    return sv_j_built(&b);
}

static struct sv_jval str_pad(struct sv_jx *x, const char *name, struct sv_jval s,
                              const struct sv_jcall *c)
{
    struct sv_jval arg[2];
    struct sv_jbuild b = {0};
    int64_t width, n = sv_j_len(x, &s), left, pad;

    sv_j_bind(x, name, "width fillchar /", c, arg);
    width = need_int(x, &arg[0], name, 0);
    if (sv_j_is(&arg[1], SV_J_MISSING))
        arg[1] = sv_j_cstr(" ");
    if (!sv_j_is(&arg[1], SV_J_STR) || sv_j_len(x, &arg[1]) != 1)
        sv_j_throw(x, SV_EINVAL, "%s: the fill character must be one character", name);
    pad = width > n ? width - n : 0;
    left = name[0] == 'l' ? 0 : name[0] == 'r' ? pad : pad / 2 + (pad & width & 1);
    for (int64_t i = 0; i < left; i++)
        sv_j_put(x, &b, arg[1].u.s.p, arg[1].u.s.n);
    sv_j_put(x, &b, s.u.s.p, s.u.s.n);
    for (int64_t i = left; i < pad; i++)
        sv_j_put(x, &b, arg[1].u.s.p, arg[1].u.s.n);
    return sv_j_built(&b);
}

static struct sv_jval str_zfill(struct sv_jx *x, struct sv_jval s, const struct sv_jcall *c)
{
    struct sv_jval arg[1];
    struct sv_jbuild b = {0};
    int64_t width, n = sv_j_len(x, &s);
    size_t sign = s.u.s.n && (*s.u.s.p == '-' || *s.u.s.p == '+');

    sv_j_bind(x, "zfill", "width /", c, arg);
    width = need_int(x, &arg[0], "zfill", 0);
    sv_j_put(x, &b, s.u.s.p, sign);
    for (; n < width; n++)
        sv_j_putc(x, &b, '0');
    sv_j_put(x, &b, s.u.s.p + sign, s.u.s.n - sign);
    return sv_j_built(&b);
}

static struct sv_jval str_partition(struct sv_jx *x, const char *name, struct sv_jval s,
                                    const struct sv_jcall *c)
{
    struct sv_jval arg[1], part[3];
    struct sv_jlist *l = sv_j_list_new(x, 3);
    bool right = name[0] == 'r';
    const char *hit;

    sv_j_bind(x, name, "sep /", c, arg);
    need_str(x, &arg[0], name);
    if (!arg[0].u.s.n)
        sv_j_throw(x, SV_EINVAL, "empty separator");
    hit = right ? sv_j_rfind(x, s.u.s.p, s.u.s.n, arg[0].u.s.p, arg[0].u.s.n)
                : sv_j_find(x, s.u.s.p, s.u.s.n, arg[0].u.s.p, arg[0].u.s.n);
    part[0] = part[1] = part[2] = sv_j_cstr("");
    if (hit) {
        part[0] = sv_j_str(s.u.s.p, (size_t)(hit - s.u.s.p));
        part[1] = arg[0];
        part[2] = sv_j_str(hit + arg[0].u.s.n, s.u.s.n - part[0].u.s.n - arg[0].u.s.n);
    } else {
        part[right ? 2 : 0] = s;
    }
    for (int i = 0; i < 3; i++)
        sv_j_list_push(x, l, part[i]);
    return sv_j_list(SV_J_TUPLE, l);
}

static struct sv_jval str_remove(struct sv_jx *x, const char *name, struct sv_jval s,
                                 const struct sv_jcall *c)
{
    struct sv_jval arg[1];
    bool end = is_name(name, "removesuffix");

    sv_j_bind(x, name, "affix /", c, arg);
    need_str(x, &arg[0], name);
    if (arg[0].u.s.n && has_affix(x, &s, &arg[0], end)) {
        s.u.s.n -= arg[0].u.s.n;
        s.u.s.p += end ? 0 : arg[0].u.s.n;
    }
    return s;
}

static struct sv_jval str_splitlines(struct sv_jx *x, struct sv_jval s, const struct sv_jcall *c)
{
    struct sv_jval arg[1];

    sv_j_bind(x, "splitlines", "keepends", c, arg);
    return sv_j_list(SV_J_LIST, sv_j_splitlines(x, s, sv_j_truth(&arg[0])));
}

/* Methods without arguments. */
static struct sv_jval str_plain(struct sv_jx *x, const char *name, struct sv_jval s,
                                const struct sv_jcall *c)
{
    sv_j_bind(x, name, "", c, NULL);
    if (is_name(name, "upper"))
        return sv_j_upper(x, s);
    if (is_name(name, "lower"))
        return sv_j_lower(x, s);
    if (is_name(name, "title"))
        return sv_j_title(x, s);
    if (is_name(name, "capitalize"))
        return sv_j_capitalize(x, s);
    if (is_name(name, "swapcase"))
        return sv_j_swapcase(x, s);
    return sv_j_bool(sv_j_str_is(x, &s, name));
}

static struct sv_jval str_call(struct sv_jx *x, const char *name, struct sv_jval s,
                               const struct sv_jcall *c)
{
    if (is_name(name, "startswith") || is_name(name, "endswith"))
        return str_affix(x, name, s, c);
    if (is_name(name, "find") || is_name(name, "rfind") || is_name(name, "index") ||
        is_name(name, "rindex"))
        return str_find(x, name, s, c);
    if (is_name(name, "count"))
        return str_count(x, s, c);
    if (is_name(name, "split") || is_name(name, "rsplit"))
        return str_split(x, name, s, c);
    if (is_name(name, "strip") || is_name(name, "lstrip") || is_name(name, "rstrip"))
        return str_strip(x, name, s, c);
    if (is_name(name, "replace"))
        return str_replace(x, s, c);
    if (is_name(name, "join"))
        return str_join(x, s, c);
    if (is_name(name, "ljust") || is_name(name, "rjust") || is_name(name, "center"))
        return str_pad(x, name, s, c);
    if (is_name(name, "zfill"))
        return str_zfill(x, s, c);
    if (is_name(name, "partition") || is_name(name, "rpartition"))
        return str_partition(x, name, s, c);
    if (is_name(name, "removeprefix") || is_name(name, "removesuffix"))
        return str_remove(x, name, s, c);
    if (is_name(name, "format"))
        return sv_j_format(x, s, c);
    if (is_name(name, "splitlines"))
        return str_splitlines(x, s, c);
    return str_plain(x, name, s, c);
}

/* ---------------------------------------------------------------- dicts, lists, tuples, ranges */

static struct sv_jval dict_call(struct sv_jx *x, const char *name, struct sv_jval v,
                                const struct sv_jcall *c)
{
    struct sv_jval arg[2], *found;

    if (is_name(name, "get")) {
        sv_j_bind(x, name, "key default /", c, arg);
        if (sv_j_is(&arg[0], SV_J_MISSING))
            sv_j_throw(x, SV_EINVAL, "get expected at least 1 argument, got 0");
        found = sv_j_dict_get(x, v.u.dict, arg[0]);
        return found ? *found : sv_j_is(&arg[1], SV_J_MISSING) ? sv_j_none() : arg[1];
    }
    sv_j_bind(x, name, "", c, NULL);
    if (is_name(name, "copy")) {
        struct sv_jval copy = {.kind = SV_J_DICT};
        copy.u.dict = sv_j_dict_new(x, v.u.dict->n);
        for (size_t i = 0; i < v.u.dict->n; i++)
            sv_j_dict_add(x, copy.u.dict, v.u.dict->pair[i].key, v.u.dict->pair[i].value);
        return copy;
    }
    v.sub = name[0] == 'k' ? SV_J_KEYS : name[0] == 'v' ? SV_J_VALUES : SV_J_ITEMS;
    v.kind = SV_J_VIEW;
    return v;
}

static struct sv_jval list_pop(struct sv_jx *x, struct sv_jlist *l, const struct sv_jcall *c)
{
    struct sv_jval arg[1], v;
    int64_t i;

    sv_j_bind(x, "pop", "index /", c, arg);
    i = need_int(x, &arg[0], "pop", -1);
    i = i < 0 ? i + (int64_t)l->n : i;
    if (i < 0 || i >= (int64_t)l->n)
        sv_j_throw(x, SV_EINVAL, l->n ? "pop index out of range" : "pop from empty list");
    v = l->item[i];
    memmove(&l->item[i], &l->item[i + 1], (l->n - (size_t)i - 1) * sizeof v);
    l->n--;
    return v;
}

static struct sv_jval list_call(struct sv_jx *x, const char *name, struct sv_jval v,
                                const struct sv_jcall *c)
{
    struct sv_jval arg[3];
    struct sv_jlist *l = sv_j_iter(x, &v);
    int64_t count = 0, from, to, n = (int64_t)l->n;

    if (is_name(name, "pop"))
        return list_pop(x, v.u.list, c);
    if (is_name(name, "clear") || is_name(name, "copy")) {
        sv_j_bind(x, name, "", c, NULL);
        if (is_name(name, "copy")) {
            struct sv_jval empty = sv_j_list(SV_J_LIST, sv_j_list_new(x, 0));
            return sv_j_binary(x, SV_JO_ADD, v, empty);
        }
        v.u.list->n = 0;
        return sv_j_none();
    }
    sv_j_bind(x, name, is_name(name, "index") ? "value start stop /" : "value /", c, arg);
    if (sv_j_is(&arg[0], SV_J_MISSING))
        sv_j_throw(x, SV_EINVAL, "%s expected at least 1 argument, got 0", name);
    from = is_name(name, "index") ? need_int(x, &arg[1], name, 0) : 0;
    to = is_name(name, "index") ? need_int(x, &arg[2], name, n) : n;
    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? to + n : to > n ? n : to;
    for (int64_t i = from; i < to; i++) {
        if (!sv_j_eq(x, &l->item[i], &arg[0]))
            continue;
        if (is_name(name, "index"))
            return sv_j_int(i);
        count++;
    }
    if (is_name(name, "index"))
        sv_j_throw(x, SV_EINVAL, "value is not in the list");
    return sv_j_int(count);
}

struct sv_jval sv_j_method_call(struct sv_jx *x, const struct sv_jmethod *m,
                                const struct sv_jcall *c)
{
    const char *name = methods[m->id].name;

    if (methods[m->id].how == REFUSED)
        sv_j_throw(x, SV_EUNSUPPORTED, "the method %s of %s is not supported", name,
                   sv_j_type_name(&m->self));
    if (sv_j_is(&m->self, SV_J_STR))
        return str_call(x, name, m->self, c);
    if (sv_j_is(&m->self, SV_J_DICT))
        return dict_call(x, name, m->self, c);
    return list_call(x, name, m->self, c);
}
