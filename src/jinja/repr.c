/*
 * repr.c - Python's str() and repr() of template values, byte for byte.
 *
 * Called wherever a value becomes text. Must not: depend on the locale, or print an address.
 */
#include "jinja/run.h"
#include "jinja/text.h"

#include <math.h>
#include <stdlib.h>

void sv_j_float_repr(struct sv_jx *x, double f, char out[40])
{
    char digits[40], *e;
    int exponent, n, precision = 0;

    if (isnan(f) || isinf(f)) {
        strcpy(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    sv_j_step(x, 64); /* it takes some microseconds */
    do                /* the fewest digits that read back as the same number */
        snprintf(digits, sizeof digits, "%.*e", precision, f);
    while (precision++ < 17 && strtod(digits, NULL) != f);
    e = strchr(digits, 'e');
    exponent = atoi(e + 1);
    *e = 0;
    n = 0;
    if (digits[0] == '-')
        out[n++] = '-';
    const char *d = digits + (digits[0] == '-');
    char all[40];
    int n_all = 0;
    for (; *d; d++)
        if (*d != '.')
            all[n_all++] = *d;
    while (n_all > 1 && all[n_all - 1] == '0')
        n_all--;
    if (exponent < -4 || exponent >= 16) {
        out[n++] = all[0];
        if (n_all > 1)
            out[n++] = '.';
        for (int i = 1; i < n_all; i++)
            out[n++] = all[i];
        snprintf(out + n, 16, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        out[n++] = '0';
        out[n++] = '.';
        for (int i = -1; i > exponent; i--)
            out[n++] = '0';
    }
    for (int i = 0; i < n_all || i <= exponent; i++) {
        out[n++] = i < n_all ? all[i] : '0';
        if (i == exponent) {
            out[n++] = '.';
            if (i + 1 >= n_all)
                out[n++] = '0';
        }
    }
    out[n] = 0;
}

static void put_str_repr(struct sv_jx *x, struct sv_jbuild *b, const char *p, size_t n)
{
    bool one = n && memchr(p, '\'', n), two = n && memchr(p, '"', n);
    char quote = one && !two ? '"' : '\'';
    int len;

    sv_j_read(x, n);
    sv_j_putc(x, b, quote);
    for (size_t i = 0; i < n; i += (size_t)len) {
        uint32_t cp = sv_utf8_get(p + i, &len);
        if (cp == (uint32_t)quote || cp == '\\') {
            sv_j_putc(x, b, '\\');
            sv_j_putc(x, b, (char)cp);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            sv_j_puts(x, b, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
        } else if (cp >= 0x20 && cp < 0x7F) {
            sv_j_putc(x, b, (char)cp);
        } else if (sv_j_printable(cp)) {
            sv_j_put(x, b, p + i, (size_t)len);
        } else {
            sv_j_putf(x, b, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        }
    }
    sv_j_putc(x, b, quote);
}

static void put_items(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jlist *l)
{
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            sv_j_puts(x, b, ", ");
        sv_j_put_repr(x, b, &l->item[i]);
    }
}

static void put_dict(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jdict *d)
{
    sv_j_putc(x, b, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            sv_j_puts(x, b, ", ");
        sv_j_put_repr(x, b, &d->pair[i].key);
        sv_j_puts(x, b, ": ");
        sv_j_put_repr(x, b, &d->pair[i].value);
    }
    sv_j_putc(x, b, '}');
}

static void put_range(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jrange *r)
{
    sv_j_putf(x, b, "range(%lld, %lld", (long long)r->start, (long long)r->stop);
    if (r->step != 1)
        sv_j_putf(x, b, ", %lld", (long long)r->step);
    sv_j_putc(x, b, ')');
}

/* Containers: lists, dicts and others. */
static void put_compound(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jval *v)
{
    static const char *const view[] = {"dict_keys([", "dict_values([", "dict_items(["};

    sv_j_enter(x);
    switch (v->kind) {
    case SV_J_LIST:
        sv_j_putc(x, b, '[');
        put_items(x, b, v->u.list);
        sv_j_putc(x, b, ']');
        break;
    case SV_J_TUPLE:
        sv_j_putc(x, b, '(');
        put_items(x, b, v->u.list);
        sv_j_puts(x, b, v->u.list->n == 1 ? ",)" : ")");
        break;
    case SV_J_NS:
        sv_j_puts(x, b, "<Namespace ");
        put_dict(x, b, v->u.dict);
        sv_j_putc(x, b, '>');
        break;
    case SV_J_VIEW:
        sv_j_puts(x, b, view[v->sub]);
        put_items(x, b, sv_j_iter(x, v));
        sv_j_puts(x, b, "])");
        break;
    default:
        put_dict(x, b, v->u.dict);
        break;
    }
    sv_j_leave(x);
}

void sv_j_put_repr(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jval *v)
{
    char text[40];

    sv_j_step(x, 1);
    switch (v->kind) {
    case SV_J_UNDEF:
        sv_j_puts(x, b, "Undefined");
        break;
    case SV_J_NONE:
        sv_j_puts(x, b, "None");
        break;
    case SV_J_BOOL:
        sv_j_puts(x, b, v->u.b ? "True" : "False");
        break;
    case SV_J_INT:
        sv_j_putf(x, b, "%lld", (long long)v->u.i);
        break;
    case SV_J_FLOAT:
        sv_j_float_repr(x, v->u.f, text);
        sv_j_puts(x, b, text);
        break;
    case SV_J_STR:
        sv_j_puts(x, b, v->sub ? "Markup(" : "");
        put_str_repr(x, b, v->u.s.p, v->u.s.n);
        sv_j_puts(x, b, v->sub ? ")" : "");
        break;
    case SV_J_LIST:
    case SV_J_TUPLE:
    case SV_J_DICT:
    case SV_J_VIEW:
    case SV_J_NS:
        put_compound(x, b, v);
        break;
    case SV_J_RANGE:
        put_range(x, b, v->u.range);
        break;
    case SV_J_MACRO:
        sv_j_puts(x, b, "<Macro ");
        if (v->u.macro->node->type == SV_JN_MACRO)
            sv_j_put_repr(x, b, &v->u.macro->node->value);
        else
            sv_j_puts(x, b, "anonymous");
        sv_j_putc(x, b, '>');
        break;
    case SV_J_LOOP:
        sv_j_putf(x, b, "<LoopContext %zu/%zu>", v->u.loop->index0 + 1, v->u.loop->items->n);
        break;
    default: /* Python would print an address */
        sv_j_putf(x, b, "<%s object>", sv_j_type_name(v));
        break;
    }
}

void sv_j_put_str(struct sv_jx *x, struct sv_jbuild *b, const struct sv_jval *v)
{
    if (sv_j_is(v, SV_J_STR))
        sv_j_put(x, b, v->u.s.p, v->u.s.n);
    else if (!sv_j_is(v, SV_J_UNDEF))
        sv_j_put_repr(x, b, v);
}

struct sv_jval sv_j_to_str(struct sv_jx *x, const struct sv_jval *v)
{
    struct sv_jbuild b = {0};

    if (sv_j_is(v, SV_J_STR))
        return *v;
    sv_j_put_str(x, &b, v);
    return sv_j_built(&b);
}

void sv_j_escape(struct sv_jx *x, struct sv_jbuild *b, const char *p, size_t n)
{
    sv_j_read(x, n);
    for (size_t i = 0; i < n; i++) {
        const char *to = p[i] == '&'    ? "&amp;"
                         : p[i] == '<'  ? "&lt;"
                         : p[i] == '>'  ? "&gt;"
                         : p[i] == '"'  ? "&#34;"
                         : p[i] == '\'' ? "&#39;"
                                        : NULL;
        if (to)
            sv_j_puts(x, b, to);
        else
            sv_j_putc(x, b, p[i]);
    }
}
