/*
 * percent.c - numbers from text, and Python's "%" formatting of strings.
 *
 * Called by the operators and the filters int, float and format. Must not: pass a template's format
 * to printf; each conversion is parsed first.
 */
#include "jinja/run.h"
#include "jinja/text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* ---------------------------------------------------------------- int(text), float(text) */

/* text without surrounding whitespace and underscores between digits; NULL when it has others */
static char *plain_digits(struct sv_jx *x, const char *p, size_t n, size_t *n_out)
{
    struct sv_jval s = sv_j_strip(x, sv_j_str(p, n), NULL, SV_J_LEFT | SV_J_RIGHT);
    char *out = sv_j_alloc(x, s.u.s.n + 1);
    size_t m = 0;

    for (size_t i = 0; i < s.u.s.n; i++) {
        char c = s.u.s.p[i], before = i ? s.u.s.p[i - 1] : 0;
        char after = i + 1 < s.u.s.n ? s.u.s.p[i + 1] : 0;
        if (c & 0x80)
            return NULL;
        if (c != '_')
            out[m++] = c;
        else if (before == '_' || !before || strchr("+-.", before) || !after ||
                 strchr("+-._", after))
            return NULL;
    }
    *n_out = m;
    return out;
}

bool sv_j_parse_int(struct sv_jx *x, const char *p, size_t n, int base, int64_t *out)
{
    size_t m;
    char *s = plain_digits(x, p, n, &m), *end, mark;
    bool negative = false;

    if (!s || !m || memchr(s, 0, m))
        return false;
    if (*s == '+' || *s == '-')
        negative = *s++ == '-';
    mark = s[0] == '0' ? (char)(s[1] | 32) : 0;
    if ((base == 16 || base == 0) && mark == 'x')
        s += 2, base = 16;
    else if ((base == 8 || base == 0) && mark == 'o')
        s += 2, base = 8;
    else if ((base == 2 || base == 0) && mark == 'b')
        s += 2, base = 2;
    else if (base == 0)
        base = 10;
    if (base < 2 || base > 36 || *s == '+' || *s == '-' || sv_j_space((uint8_t)*s) || !*s)
        return false;
    if (strncmp(s, "0x", 2) == 0 || strncmp(s, "0X", 2) == 0)
        return false; /* strtoull would accept a second sign */
    errno = 0;
    unsigned long long v = strtoull(s, &end, base);
    if (*end || end == s)
        return false;
    if (errno == ERANGE || v > (unsigned long long)INT64_MAX + negative)
        sv_j_throw(x, SV_EINVAL, "integer beyond 64 bits");
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

bool sv_j_parse_float(struct sv_jx *x, const char *p, size_t n, double *out)
{
    size_t m;
    char *s = plain_digits(x, p, n, &m), *end;
    const char *word;

    if (!s || !m || memchr(s, 0, m))
        return false;
    word = s + (*s == '+' || *s == '-');
    if (!*word || !strchr("0123456789.iInN", *word) || strpbrk(s, "xXpP("))
        return false;
    *out = strtod(s, &end);
    return !*end && end != s;
}

/* ---------------------------------------------------------------- "%" */

struct spec {
    bool left, plus, blank, zero, alternate;
    int64_t width, precision; /* -1: none */
    char conversion;
};

struct percent {
    struct sv_jx *x;
    const char *p, *end;
    struct sv_jval args;
    size_t at;  /* arguments taken */
    size_t n;   /* number of arguments; 1 when args is no tuple */
    bool named; /* %(name)s was used */
    struct sv_jbuild out;
};

static struct sv_jval next_arg(struct percent *f)
{
    if (f->at >= f->n)
        sv_j_throw(f->x, SV_EINVAL, "not enough arguments for format string");
    f->at++;
    return sv_j_is(&f->args, SV_J_TUPLE) ? f->args.u.list->item[f->at - 1] : f->args;
}

static int64_t read_number(struct percent *f)
{
    int64_t v = 0;

    if (f->p < f->end && *f->p == '*') {
        struct sv_jval arg = next_arg(f);
        f->p++;
        if (!sv_j_to_int(&arg, &v))
            sv_j_throw(f->x, SV_EINVAL, "* wants int");
    } else {
        while (f->p < f->end && *f->p >= '0' && *f->p <= '9' && v < 100000000)
            v = v * 10 + (*f->p++ - '0');
    }
    if (v > 1000000 || v < -1000000)
        sv_j_throw(f->x, SV_EFULL, "width or precision of a format is too big");
    return v;
}

static struct sv_jval named_arg(struct percent *f)
{
    const char *name = ++f->p;
    struct sv_jval *v;
    int depth = 1;

    if (!sv_j_is(&f->args, SV_J_DICT))
        sv_j_throw(f->x, SV_EINVAL, "format requires a mapping");
    while (f->p < f->end && (depth += (*f->p == '(') - (*f->p == ')')))
        f->p++;
    if (f->p >= f->end)
        sv_j_throw(f->x, SV_EINVAL, "incomplete format key");
    v = sv_j_dict_get(f->x, f->args.u.dict, sv_j_str(name, (size_t)(f->p - name)));
    if (!v)
        sv_j_throw(f->x, SV_EINVAL, "format: no key '%.*s'", sv_j_cut((f->p - name)), name);
    f->p++;
    f->named = true;
    return *v;
}

/* sign and body (digits or text), padded */
static void put_padded(struct percent *f, const struct spec *s, const char *sign, const char *body,
                       size_t n, bool number)
{
    size_t have = strlen(sign) + sv_j_n_cp(f->x, body, n);
    size_t pad = s->width > 0 && (size_t)s->width > have ? (size_t)s->width - have : 0;
    bool zeros = number && s->zero && !s->left;

    for (size_t i = 0; !s->left && !zeros && i < pad; i++)
        sv_j_putc(f->x, &f->out, ' ');
    sv_j_puts(f->x, &f->out, sign);
    for (size_t i = 0; zeros && i < pad; i++)
        sv_j_putc(f->x, &f->out, '0');
    sv_j_put(f->x, &f->out, body, n);
    for (size_t i = 0; s->left && i < pad; i++)
        sv_j_putc(f->x, &f->out, ' ');
}

static void put_int(struct percent *f, const struct spec *s, int64_t v)
{
    static const char letters[2][17] = {"0123456789abcdef", "0123456789ABCDEF"};
    char digits[32], sign[4] = "";
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    unsigned base = s->conversion == 'o' ? 8 : (s->conversion | 32) == 'x' ? 16 : 10;
    struct sv_jbuild b = {0};
    size_t n = sizeof digits;

    do
        digits[--n] = letters[s->conversion == 'X'][u % base];
    while (u /= base);
    for (int64_t i = (int64_t)(sizeof digits - n); i < s->precision; i++)
        sv_j_putc(f->x, &b, '0');
    sv_j_put(f->x, &b, digits + n, sizeof digits - n);
    if (v < 0 || s->plus || s->blank)
        strcat(sign, v < 0 ? "-" : s->plus ? "+" : " ");
    if (s->alternate && base != 10)
        strcat(sign, base == 8 ? "0o" : s->conversion == 'X' ? "0X" : "0x");
    put_padded(f, s, sign, b.p, b.n, true);
}

static void put_double(struct percent *f, const struct spec *s, double v)
{
    char fmt[8] = "%.*f", text[512], *body = text;
    int precision = s->precision < 0 ? 6 : s->precision > 100 ? 100 : (int)s->precision;
    char sign[2] = "";

    sv_j_step(f->x, 64); /* large and small numbers take some microseconds */
    fmt[3] = s->conversion;
    if (s->alternate)
        strcpy(fmt, (char[]){'%', '#', '.', '*', s->conversion, 0});
    snprintf(text, sizeof text, fmt, precision, fabs(v));
    if (signbit(v) && !isnan(v))
        sign[0] = '-';
    else if (s->plus || s->blank)
        sign[0] = s->plus ? '+' : ' ';
    put_padded(f, s, sign, body, strlen(body), true);
}

static void put_text(struct percent *f, const struct spec *s, struct sv_jval v)
{
    struct sv_jbuild b = {0};

    if (s->conversion == 'r')
        sv_j_put_repr(f->x, &b, &v);
    else
        sv_j_put_str(f->x, &b, &v);
    if (s->precision >= 0)
        b.n = sv_j_cp_to_byte(f->x, b.p, b.n, (size_t)s->precision);
    put_padded(f, s, "", b.p, b.n, false);
}

static void put_char(struct percent *f, const struct spec *s, const struct sv_jval *v)
{
    char text[4];
    int64_t cp;

    if (sv_j_is(v, SV_J_STR) && sv_j_n_cp(f->x, v->u.s.p, v->u.s.n) == 1) {
        put_padded(f, s, "", v->u.s.p, v->u.s.n, false);
        return;
    }
    if (!sv_j_to_int(v, &cp) || cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        sv_j_throw(f->x, SV_EINVAL, "%%c requires int or char");
    put_padded(f, s, "", text, (size_t)sv_utf8_put((uint32_t)cp, text), false);
}

static void convert(struct percent *f, const struct spec *s, struct sv_jval v)
{
    bool whole = strchr("diu", s->conversion) != NULL;
    int64_t i;

    switch (s->conversion) {
    case 's':
    case 'r':
        put_text(f, s, v);
        return;
    case 'c':
        put_char(f, s, &v);
        return;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        if (sv_j_is(&v, SV_J_UNDEF))
            sv_j_throw_undef(f->x, &v);
        if (whole && sv_j_is(&v, SV_J_FLOAT) && fabs(v.u.f) < 9.2e18)
            v = sv_j_int((int64_t)v.u.f);
        if (!sv_j_to_int(&v, &i))
            sv_j_throw(f->x, SV_EINVAL, "%%%c format: a number is required, not %s", s->conversion,
                       sv_j_type_name(&v));
        put_int(f, s, i);
        return;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (sv_j_is(&v, SV_J_UNDEF))
            sv_j_throw_undef(f->x, &v);
        if (!sv_j_number(&v))
            sv_j_throw(f->x, SV_EINVAL, "must be real number, not %s", sv_j_type_name(&v));
        put_double(f, s, sv_j_to_double(&v));
        return;
    default:
        sv_j_throw(f->x, SV_EINVAL, "unsupported format character");
    }
}

static void one_conversion(struct percent *f)
{
    struct spec s = {.width = 0, .precision = -1};
    struct sv_jval v = sv_j_missing();

    if (f->p < f->end && *f->p == '(')
        v = named_arg(f);
    for (; f->p < f->end && memchr("-+ 0#", *f->p, 5); f->p++) {
        s.left |= *f->p == '-';
        s.plus |= *f->p == '+';
        s.blank |= *f->p == ' ';
        s.zero |= *f->p == '0';
        s.alternate |= *f->p == '#';
    }
    s.width = read_number(f);
    if (s.width < 0) {
        s.left = true;
        s.width = -s.width;
    }
    if (f->p < f->end && *f->p == '.') {
        f->p++;
        s.precision = read_number(f);
        s.precision = s.precision < 0 ? 0 : s.precision;
    }
    while (f->p < f->end && (*f->p == 'l' || *f->p == 'h' || *f->p == 'L'))
        f->p++;
    if (f->p >= f->end)
        sv_j_throw(f->x, SV_EINVAL, "incomplete format");
    s.conversion = *f->p++;
    if (s.conversion == '%') {
        sv_j_putc(f->x, &f->out, '%');
        return;
    }
    convert(f, &s, sv_j_is(&v, SV_J_MISSING) ? next_arg(f) : v);
}

struct sv_jval sv_j_percent(struct sv_jx *x, struct sv_jval fmt, struct sv_jval args)
{
    struct percent f = {.x = x, .p = fmt.u.s.p, .end = fmt.u.s.p + fmt.u.s.n, .args = args};
    bool tuple = sv_j_is(&args, SV_J_TUPLE);
    bool mapping = sv_j_is(&args, SV_J_DICT) || sv_j_is(&args, SV_J_LIST) ||
                   sv_j_is(&args, SV_J_RANGE) || sv_j_is(&args, SV_J_UNDEF);

    f.n = tuple ? args.u.list->n : 1;
    while (f.p < f.end) {
        const char *mark = memchr(f.p, '%', (size_t)(f.end - f.p));
        sv_j_step(x, 1);
        sv_j_put(x, &f.out, f.p, (size_t)((mark ? mark : f.end) - f.p));
        f.p = mark ? mark + 1 : f.end;
        if (mark)
            one_conversion(&f);
    }
    if (f.at < f.n && !f.named && !mapping)
        sv_j_throw(x, SV_EINVAL, "not all arguments converted during string formatting");
    return sv_j_built(&f.out);
}
