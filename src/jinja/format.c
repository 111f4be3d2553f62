/*
 * format.c - str.format with replacement fields, as the sandbox's formatter does it.
 *
 * Called by method.c. Fields may be numbered, named or counted, with attributes, items, !s and !r;
 * a format specification after ":" is refused. Must not: read anything that a template cannot read
 * itself.
 */
#include "jinja/run.h"
#include "jinja/text.h"

struct format {
    struct sv_jx *x;
    const struct sv_jcall *c;
    int64_t next; /* automatic number; -1 once a field gave its own */
    struct sv_jbuild out;
};

static bool whole_number(const char *p, size_t n, int64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9' || n > 9)
            return false;
        *out = *out * 10 + (p[i] - '0');
    }
    return n > 0;
}

static struct sv_jval first_value(struct format *f, const char *p, size_t n)
{
    int64_t i;

    if (!n) {
        if (f->next < 0)
            sv_j_throw(f->x, SV_EINVAL, "format: cannot switch from manual to automatic numbering");
        i = f->next++;
    } else if (whole_number(p, n, &i)) {
        if (f->next > 0)
            sv_j_throw(f->x, SV_EINVAL, "format: cannot switch from automatic to manual numbering");
        f->next = -1;
    } else {
        struct sv_jval value;
        if (sv_j_has_kw(f->x, f->c, p, n, &value))
            return value;
        sv_j_throw(f->x, SV_EINVAL, "format: no argument '%.*s'", sv_j_cut(n), p);
    }
    if ((size_t)i >= f->c->n_pos)
        sv_j_throw(f->x, SV_EINVAL, "format: replacement index %lld out of range", (long long)i);
    return f->c->pos[i];
}

/* name.attribute[item]... */
static struct sv_jval field_value(struct format *f, const char *p, const char *end)
{
    size_t n = 0;
    struct sv_jval v;

    while (p + n < end && p[n] != '.' && p[n] != '[')
        n++;
    v = first_value(f, p, n);
    for (p += n; p < end; p += n) {
        char kind = *p++;
        int64_t i;
        sv_j_step(f->x, 1);
        n = 0;
        while (p + n < end && (kind == '[' ? p[n] != ']' : p[n] != '.' && p[n] != '['))
            n++;
        if (!n || (kind != '.' && kind != '[') || (kind == '[' && p + n == end))
            sv_j_throw(f->x, SV_EINVAL, "format: malformed field");
        if (kind == '.')
            v = sv_j_getattr(f->x, v, sv_j_str(p, n));
        else
            v = sv_j_getitem(f->x, v, whole_number(p, n, &i) ? sv_j_int(i) : sv_j_str(p, n));
        n += kind == '[';
    }
    return v;
}

static void put_field(struct format *f, const char *p, const char *end)
{
    const char *mark = p, *close = p; /* close: the next ] behind mark, or end */
    struct sv_jval v;

    sv_j_read(f->x, (size_t)(end - p));
    while (mark < end && *mark != '!' && *mark != ':') {
        while (*mark == '[' && close < end && (close < mark || *close != ']'))
            close++;
        mark = *mark == '[' && close < end ? close : mark + 1;
    }
    v = field_value(f, p, mark);
    if (mark < end && *mark == ':' && mark + 1 < end)
        sv_j_throw(f->x, SV_EUNSUPPORTED, "format: specifications after ':' are not supported");
    if (mark < end && *mark == '!') {
        if (end - mark != 2 || (mark[1] != 's' && mark[1] != 'r'))
            sv_j_throw(f->x, SV_EUNSUPPORTED,
                       "format: only the conversions !s and !r are supported");
        if (mark[1] == 'r') {
            sv_j_put_repr(f->x, &f->out, &v);
            return;
        }
    }
    sv_j_put_str(f->x, &f->out, &v);
}

struct sv_jval sv_j_format(struct sv_jx *x, struct sv_jval fmt, const struct sv_jcall *c)
{
    struct format f = {.x = x, .c = c};
    const char *p = fmt.u.s.p, *end = p + fmt.u.s.n;

    if (fmt.sub)
        sv_j_throw(x, SV_EUNSUPPORTED, "formatting with a safe string is not supported");
    while (p < end) {
        const char *close;
        sv_j_step(x, 1);
        if (*p != '{' && *p != '}') {
            sv_j_putc(x, &f.out, *p++);
            continue;
        }
        if (p + 1 < end && p[1] == *p) {
            sv_j_putc(x, &f.out, *p);
            p += 2;
            continue;
        }
        close = *p == '{' ? memchr(p, '}', (size_t)(end - p)) : NULL;
        if (!close || memchr(p + 1, '{', (size_t)(close - p - 1)))
            sv_j_throw(x, SV_EINVAL, "format: a brace without its partner");
        put_field(&f, p + 1, close);
        p = close + 1;
    }
    return sv_j_built(&f.out);
}
