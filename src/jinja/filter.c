/*
 * filter.c - binding of call arguments, the table of filters, and the filters on single
 * values.
 *
 * Called by the tree walker, and by map, which calls filters by name. Filters over sequences are in
 * seq.c. Must not: catch an error that jinja2 would raise.
 */
#include "jinja/run.h"
#include "jinja/text.h"

#include <math.h>
#include <stdlib.h>

/* ---------------------------------------------------------------- arguments */

bool sv_j_has_kw(struct sv_jx *x, const struct sv_jcall *c, const char *name, size_t n,
                 struct sv_jval *out)
{
    sv_j_step(x, c->n_kw / 32);
    for (size_t i = 0; i < c->n_kw; i++) {
        if (n != c->kw[i].n_name)
            continue;
        sv_j_copied(x, n);
        if (memcmp(name, c->kw[i].name, n) == 0) {
            *out = c->kw[i].value;
            return true;
        }
    }
    return false;
}

void sv_j_bind(struct sv_jx *x, const char *what, const char *spec, const struct sv_jcall *c,
               struct sv_jval *out)
{
    size_t n = 0, n_used = 0, n_by_pos = SIZE_MAX;
    bool pos_only = strchr(spec, '/') != NULL;

    for (const char *p = spec; *p;) {
        size_t len = strcspn(p, " ");
        if (*p == '*') {
            n_by_pos = n;
        } else if (*p != '/') {
            bool by_pos = n < n_by_pos && n < c->n_pos;
            out[n] = by_pos ? c->pos[n] : sv_j_missing();
            sv_j_step(x, c->n_kw / 32);
            for (size_t k = 0; !pos_only && k < c->n_kw; k++) {
                if (c->kw[k].n_name != len || memcmp(c->kw[k].name, p, len) != 0)
                    continue;
                if (by_pos)
                    sv_j_throw(x, SV_EINVAL, "%s got multiple values for argument '%.*s'", what,
                               (int)len, p);
                out[n] = c->kw[k].value;
                n_used++;
            }
            n++;
        }
        p += len;
        p += strspn(p, " ");
    }
    if (c->n_pos > (n < n_by_pos ? n : n_by_pos))
        sv_j_throw(x, SV_EINVAL, "%s got %zu arguments, at most %zu", what, c->n_pos, n);
    if (n_used < c->n_kw)
        sv_j_throw(x, SV_EINVAL, "%s got an unexpected keyword argument", what);
}

static bool absent(const struct sv_jval *v)
{
    return sv_j_is(v, SV_J_MISSING) || sv_j_is(v, SV_J_NONE);
}

/* The value as text, Markup kept. */
static struct sv_jval soft(struct sv_jx *x, struct sv_jval v)
{
    return sv_j_to_str(x, &v);
}

static struct sv_jval plain(struct sv_jx *x, struct sv_jval v) /* str(v) */
{
    v = sv_j_to_str(x, &v);
    v.sub = 0;
    return v;
}

/* ---------------------------------------------------------------- text */

static struct sv_jval f_case(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c,
                             struct sv_jval (*fn)(struct sv_jx *x, struct sv_jval s))
{
    sv_j_bind(x, "filter", "", c, NULL);
    return fn(x, soft(x, v));
}

static struct sv_jval f_upper(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return f_case(x, v, c, sv_j_upper);
}

static struct sv_jval f_lower(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return f_case(x, v, c, sv_j_lower);
}

static struct sv_jval f_title(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return f_case(x, v, c, sv_j_title_words);
}

static struct sv_jval f_capitalize(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return f_case(x, v, c, sv_j_capitalize);
}

static struct sv_jval f_string(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    sv_j_bind(x, "string", "", c, NULL);
    return soft(x, v);
}

static struct sv_jval f_safe(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    sv_j_bind(x, "safe", "", c, NULL);
    v = soft(x, v);
    v.sub = 1;
    return v;
}

static struct sv_jval f_escape(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jbuild b = {0};

    sv_j_bind(x, "escape", "", c, NULL);
    v = soft(x, v);
    if (!v.sub) {
        sv_j_escape(x, &b, v.u.s.p, v.u.s.n);
        v = sv_j_built(&b);
    }
    v.sub = 1;
    return v;
}

static struct sv_jval f_forceescape(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    return f_escape(x, plain(x, v), c);
}

static struct sv_jval f_trim(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[1];

    sv_j_bind(x, "trim", "chars", c, arg);
    if (!absent(&arg[0]) && !sv_j_is(&arg[0], SV_J_STR))
        sv_j_throw(x, SV_EINVAL, "strip arg must be None or str");
    return sv_j_strip(x, soft(x, v), absent(&arg[0]) ? NULL : &arg[0], SV_J_LEFT | SV_J_RIGHT);
}

static struct sv_jval f_replace(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[3];
    int64_t count = -1;

    sv_j_bind(x, "replace", "old new count", c, arg);
    if (sv_j_is(&arg[0], SV_J_MISSING) || sv_j_is(&arg[1], SV_J_MISSING))
        sv_j_throw(x, SV_EINVAL, "replace needs two arguments");
    if (!absent(&arg[2]) && !sv_j_to_int(&arg[2], &count))
        sv_j_throw(x, SV_EINVAL, "replace: count must be an integer");
    return sv_j_replace(x, plain(x, v), plain(x, arg[0]), plain(x, arg[1]), count);
}

static struct sv_jval f_format(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval args = sv_j_list(SV_J_TUPLE, sv_j_list_new(x, c->n_pos));

    if (c->n_pos && c->n_kw)
        sv_j_throw(x, SV_EINVAL, "format takes positional or keyword arguments, not both");
    for (size_t i = 0; i < c->n_pos; i++)
        sv_j_list_push(x, args.u.list, c->pos[i]);
    if (c->n_kw) {
        args.kind = SV_J_DICT;
        args.u.dict = sv_j_dict_new(x, c->n_kw);
        for (size_t i = 0; i < c->n_kw; i++)
            sv_j_dict_add(x, args.u.dict, sv_j_str(c->kw[i].name, c->kw[i].n_name), c->kw[i].value);
    }
    return sv_j_percent(x, plain(x, v), args);
}

static struct sv_jval f_indent(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[3], pad;
    struct sv_jbuild width = {0}, b = {0};
    struct sv_jlist *lines;
    int64_t n = 4;
    bool first, blank;

    sv_j_bind(x, "indent", "width first blank", c, arg);
    first = sv_j_truth(&arg[1]);
    blank = sv_j_truth(&arg[2]);
    if (sv_j_is(&v, SV_J_UNDEF))
        sv_j_throw_undef(x, &v);
    if (!sv_j_is(&v, SV_J_STR))
        sv_j_throw(x, SV_EINVAL, "indent: expected a string, got %s", sv_j_type_name(&v));
    if (!sv_j_is(&arg[0], SV_J_MISSING) && !sv_j_is(&arg[0], SV_J_STR) && !sv_j_to_int(&arg[0], &n))
        sv_j_throw(x, SV_EINVAL, "indent: width must be an integer or a string");
    for (int64_t i = 0; i < n; i++)
        sv_j_putc(x, &width, ' ');
    pad = sv_j_is(&arg[0], SV_J_STR) ? arg[0] : sv_j_built(&width);
    sv_j_put(x, &b, v.u.s.p, v.u.s.n);
    sv_j_putc(x, &b, '\n'); /* as jinja2: a last empty line counts as one */
    lines = sv_j_splitlines(x, sv_j_built(&b), false);
    b = (struct sv_jbuild){0};
    for (size_t i = 0; i < lines->n; i++) {
        if (i)
            sv_j_putc(x, &b, '\n');
        if (i ? blank || lines->item[i].u.s.n : first)
            sv_j_put(x, &b, pad.u.s.p, pad.u.s.n);
        sv_j_put(x, &b, lines->item[i].u.s.p, lines->item[i].u.s.n);
    }
    pad = sv_j_built(&b);
    pad.sub = v.sub;
    return pad;
}

static struct sv_jval f_truncate(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[4], end, head[3];
    int64_t length = 255, leeway = 5, n, have;

    sv_j_bind(x, "truncate", "length killwords end leeway", c, arg);
    end = sv_j_is(&arg[2], SV_J_MISSING) ? sv_j_cstr("...") : soft(x, arg[2]);
    if ((!sv_j_is(&arg[0], SV_J_MISSING) && !sv_j_to_int(&arg[0], &length)) ||
        (!absent(&arg[3]) && !sv_j_to_int(&arg[3], &leeway)))
        sv_j_throw(x, SV_EINVAL, "truncate needs whole numbers");
    n = sv_j_len(x, &end);
    if (length < n || leeway < 0)
        sv_j_throw(x, SV_EINVAL, "truncate: expected length >= %lld and leeway >= 0", (long long)n);
    have = sv_j_len(x, &v);
    if (have >= 0 && have <= length + leeway)
        return v; /* whatever it is */
    if (!sv_j_is(&v, SV_J_STR))
        sv_j_throw(x, SV_EINVAL, "truncate: expected a string, got %s", sv_j_type_name(&v));
    head[0] = head[2] = sv_j_missing();
    head[1] = sv_j_int(length - n);
    v = sv_j_slice(x, v, head);
    if (!sv_j_truth(&arg[1])) {
        struct sv_jval space = sv_j_cstr(" ");
        v = sv_j_split(x, v, &space, 1, true)->item[0];
    }
    return sv_j_binary(x, SV_JO_ADD, v, end);
}

static struct sv_jval f_center(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[1];
    int64_t width = 80, n, left;
    struct sv_jbuild b = {0};

    sv_j_bind(x, "center", "width", c, arg);
    v = soft(x, v);
    n = sv_j_len(x, &v);
    if (!sv_j_is(&arg[0], SV_J_MISSING) && !sv_j_to_int(&arg[0], &width))
        sv_j_throw(x, SV_EINVAL, "center: width must be an integer");
    left = width > n ? (width - n) / 2 + ((width - n) & width & 1) : 0;
    for (int64_t i = 0; i < left; i++)
        sv_j_putc(x, &b, ' ');
    sv_j_put(x, &b, v.u.s.p, v.u.s.n);
    for (int64_t i = left + n; i < width; i++)
        sv_j_putc(x, &b, ' ');
    return sv_j_built(&b);
}

static struct sv_jval f_wordcount(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    int64_t n = 0;
    bool in_word = false;
    int len;

    sv_j_bind(x, "wordcount", "", c, NULL);
    v = soft(x, v);
    sv_j_read(x, v.u.s.n);
    for (size_t i = 0; i < v.u.s.n; i += (size_t)len) {
        bool word = sv_uni_flags(sv_utf8_get(v.u.s.p + i, &len)) & SV_UF_WORD;
        n += word && !in_word;
        in_word = word;
    }
    return sv_j_int(n);
}

/* ---------------------------------------------------------------- numbers and others */

static struct sv_jval int_of_double(struct sv_jx *x, double f, struct sv_jval otherwise)
{
    if (isnan(f))
        return otherwise;
    if (!(f > -9223372036854775808.0 && f < 9223372036854775808.0))
        sv_j_throw(x, SV_EINVAL,
                   isinf(f) ? "cannot convert float infinity to integer"
                            : "integer beyond 64 bits");
    return sv_j_int((int64_t)f);
}

static struct sv_jval f_int(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[2], otherwise;
    int64_t i, base = 10;
    double f;

    sv_j_bind(x, "int", "default base", c, arg);
    otherwise = sv_j_is(&arg[0], SV_J_MISSING) ? sv_j_int(0) : arg[0];
    if (!sv_j_is(&arg[1], SV_J_MISSING) && !sv_j_to_int(&arg[1], &base))
        sv_j_throw(x, SV_EINVAL, "int: base must be an integer");
    if (sv_j_is(&v, SV_J_UNDEF))
        sv_j_throw_undef(x, &v);
    if (sv_j_to_int(&v, &i))
        return sv_j_int(i);
    if (sv_j_is(&v, SV_J_FLOAT))
        return int_of_double(x, v.u.f, otherwise);
    if (!sv_j_is(&v, SV_J_STR))
        return otherwise;
    if (base >= 0 && base <= 36 && sv_j_parse_int(x, v.u.s.p, v.u.s.n, (int)base, &i))
        return sv_j_int(i);
    return sv_j_parse_float(x, v.u.s.p, v.u.s.n, &f) ? int_of_double(x, f, otherwise) : otherwise;
}

static struct sv_jval f_float(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[1];
    double f;

    sv_j_bind(x, "float", "default", c, arg);
    if (sv_j_is(&v, SV_J_UNDEF))
        sv_j_throw_undef(x, &v);
    if (sv_j_number(&v))
        return sv_j_float(sv_j_to_double(&v));
    if (sv_j_is(&v, SV_J_STR) && sv_j_parse_float(x, v.u.s.p, v.u.s.n, &f))
        return sv_j_float(f);
    return sv_j_is(&arg[0], SV_J_MISSING) ? sv_j_float(0) : arg[0];
}

static struct sv_jval f_abs(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    int64_t i;

    sv_j_bind(x, "abs", "", c, NULL);
    if (sv_j_is(&v, SV_J_FLOAT))
        return sv_j_float(fabs(v.u.f));
    if (!sv_j_to_int(&v, &i))
        sv_j_throw(x, SV_EINVAL, "bad operand type for abs(): '%s'", sv_j_type_name(&v));
    return i < 0 ? sv_j_negate(x, sv_j_int(i), true) : sv_j_int(i);
}

/* round(v, digits) for a float: correctly rounded decimal, half to even only where v is exactly
 * half */
static double round_digits(double v, int64_t digits)
{
    char text[400];
    double p;

    if (!isfinite(v) || digits > 300)
        return v;
    if (digits < -308)
        return copysign(0, v);
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, v);
        return strtod(text, NULL);
    }
    p = pow(10, (double)-digits);
    return rint(v / p) * p;
}

static struct sv_jval f_round(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[2];
    int64_t digits = 0, i;
    bool common, up;
    double f;

    sv_j_bind(x, "round", "precision method", c, arg);
    common = sv_j_is(&arg[1], SV_J_MISSING) || sv_j_str_eq(&arg[1], "common");
    up = sv_j_str_eq(&arg[1], "ceil");
    if (!common && !up && !sv_j_str_eq(&arg[1], "floor"))
        sv_j_throw(x, SV_EINVAL, "method must be common, ceil or floor");
    if (!sv_j_is(&arg[0], SV_J_MISSING) && !sv_j_to_int(&arg[0], &digits))
        sv_j_throw(x, SV_EINVAL, "round: precision must be an integer");
    if (!sv_j_number(&v))
        sv_j_throw(x, SV_EINVAL, "type %s doesn't define __round__ method", sv_j_type_name(&v));
    if (common && sv_j_to_int(&v, &i)) {
        int64_t unit = 1, low;
        for (int64_t k = digits; k < 0; k++)
            if (__builtin_mul_overflow(unit, (int64_t)10, &unit))
                return sv_j_int(0);
        if (unit == 1)
            return sv_j_int(i);
        bool over = __builtin_sub_overflow(i / unit * unit, i % unit < 0 ? unit : 0, &low);
        int64_t rest = i % unit < 0 ? i % unit + unit : i % unit;
        if (rest > unit / 2 || (rest == unit / 2 && (i / unit - (i % unit < 0)) % 2 != 0))
            over = __builtin_add_overflow(i / unit * unit, i % unit < 0 ? 0 : unit, &low);
        if (over)
            sv_j_throw(x, SV_EINVAL, "integer beyond 64 bits");
        return sv_j_int(low);
    }
    f = sv_j_to_double(&v);
    if (common)
        return sv_j_float(round_digits(f, digits));
    f *= pow(10, (double)digits);
    f = up ? ceil(f) : floor(f);
    if (!isfinite(f))
        sv_j_throw(x, SV_EINVAL, "cannot round an infinite or undefined number");
    return sv_j_float(f / pow(10, (double)digits));
}

static struct sv_jval f_default(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[2];

    sv_j_bind(x, "default", "default_value boolean", c, arg);
    if (!sv_j_is(&v, SV_J_UNDEF) && !(sv_j_truth(&arg[1]) && !sv_j_truth(&v)))
        return v;
    return sv_j_is(&arg[0], SV_J_MISSING) ? sv_j_cstr("") : arg[0];
}

static struct sv_jval f_attr(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct sv_jval arg[1];
    bool unsafe;

    sv_j_bind(x, "attr", "name", c, arg);
    if (!sv_j_is(&arg[0], SV_J_STR))
        sv_j_throw(x, SV_EINVAL, "attribute name must be string");
    if (sv_j_is(&v, SV_J_UNDEF))
        sv_j_throw_undef(x, &v);
    if (!sv_j_is(&v, SV_J_NS) && !sv_j_is(&v, SV_J_LOOP) &&
        sv_j_method_find(&v, &arg[0], &unsafe) < 0)
        return sv_j_undef_attr(x, v, arg[0]); /* never falls back to items */
    return sv_j_getattr(x, v, arg[0]);
}

static struct sv_jval f_length(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    int64_t n = sv_j_len(x, &v);

    sv_j_bind(x, "length", "", c, NULL);
    if (n < 0)
        sv_j_throw(x, SV_EINVAL, "object of type '%s' has no len()", sv_j_type_name(&v));
    return sv_j_int(n);
}

/* Not in jinja2 itself; behaves as Python's json.loads. */
static struct sv_jval f_from_json(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    sv_j_bind(x, "from_json", "", c, NULL);
    if (!sv_j_is(&v, SV_J_STR))
        sv_j_throw(x, SV_EINVAL, "from_json: expected a string, got %s", sv_j_type_name(&v));
    return sv_j_json_text(x, v.u.s.p, v.u.s.n);
}

static const struct sv_jfilter filters[] = {
    {"abs", f_abs},
    {"attr", f_attr},
    {"capitalize", f_capitalize},
    {"center", f_center},
    {"count", f_length},
    {"d", f_default},
    {"default", f_default},
    {"e", f_escape},
    {"escape", f_escape},
    {"float", f_float},
    {"forceescape", f_forceescape},
    {"format", f_format},
    {"from_json", f_from_json},
    {"indent", f_indent},
    {"int", f_int},
    {"length", f_length},
    {"lower", f_lower},
    {"replace", f_replace},
    {"round", f_round},
    {"safe", f_safe},
    {"string", f_string},
    {"title", f_title},
    {"tojson", sv_j_tojson},
    {"trim", f_trim},
    {"truncate", f_truncate},
    {"upper", f_upper},
    {"wordcount", f_wordcount},
};

#define N_FILTERS ((int)(sizeof filters / sizeof filters[0]))

int sv_j_filter_find(const char *p, size_t n)
{
    for (int i = 0; i < N_FILTERS; i++)
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, p, n) == 0)
            return i;
    for (int i = 0; sv_j_seq_filters[i].name; i++)
        if (strlen(sv_j_seq_filters[i].name) == n && memcmp(sv_j_seq_filters[i].name, p, n) == 0)
            return N_FILTERS + i;
    return -1;
}

struct sv_jval sv_j_filter_call(struct sv_jx *x, int id, struct sv_jval v, const struct sv_jcall *c)
{
    sv_j_step(x, 1);
    return id < N_FILTERS ? filters[id].fn(x, v, c) : sv_j_seq_filters[id - N_FILTERS].fn(x, v, c);
}
