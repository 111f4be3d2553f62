/*
 * json.c - the tojson filter: Python's json.dumps with the arguments that transformers passes.
 *
 * Called by filter.c. Must not: sort or escape anything json.dumps would not.
 */
#include "jinja/run.h"

#include <math.h>

struct dump {
    struct sv_jx *x;
    struct sv_jbuild b;
    bool ascii, sort, indent;
    struct sv_jval unit; /* one level of indentation */
    struct sv_jval item_sep, key_sep;
    int level;
};

static void put(struct dump *d, const struct sv_jval *s)
{
    sv_j_put(d->x, &d->b, s->u.s.p, s->u.s.n);
}

static void put_string(struct dump *d, const char *p, size_t n)
{
    static const char named[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
    struct sv_jx *x = d->x;
    int len;

    sv_j_read(x, n);
    sv_j_putc(x, &d->b, '"');
    for (size_t i = 0; i < n; i += (size_t)len) {
        uint32_t cp = sv_utf8_get(p + i, &len);
        const char *name = cp && cp < 0x80 ? strchr(named, (int)cp) : NULL;
        if (name)
            sv_j_putf(x, &d->b, "\\%c", letter[name - named]);
        else if (cp < 0x20 || (d->ascii && cp >= 0x7F && cp < 0x10000))
            sv_j_putf(x, &d->b, "\\u%04x", cp);
        else if (d->ascii && cp >= 0x10000)
            sv_j_putf(x, &d->b, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                      0xDC00 + ((cp - 0x10000) & 0x3FF));
        else
            sv_j_put(x, &d->b, p + i, (size_t)len);
    }
    sv_j_putc(x, &d->b, '"');
}

static void put_float(struct dump *d, double f)
{
    char text[40];

    sv_j_float_repr(d->x, f, text);
    sv_j_puts(d->x, &d->b, isnan(f) ? "NaN" : isinf(f) ? (f < 0 ? "-Infinity" : "Infinity") : text);
}

static void put_key(struct dump *d, const struct sv_jval *k)
{
    switch (k->kind) {
    case SV_J_STR:
        put_string(d, k->u.s.p, k->u.s.n);
        break;
    case SV_J_NONE:
        sv_j_puts(d->x, &d->b, "\"null\"");
        break;
    case SV_J_BOOL:
        sv_j_puts(d->x, &d->b, k->u.b ? "\"true\"" : "\"false\"");
        break;
    case SV_J_INT:
        sv_j_putf(d->x, &d->b, "\"%lld\"", (long long)k->u.i);
        break;
    case SV_J_FLOAT:
        sv_j_putc(d->x, &d->b, '"');
        put_float(d, k->u.f);
        sv_j_putc(d->x, &d->b, '"');
        break;
    default:
        sv_j_throw(d->x, SV_EINVAL, "keys must be str, int, float, bool or None, not %s",
                   sv_j_type_name(k));
    }
}

static void new_line(struct dump *d)
{
    if (!d->indent)
        return;
    sv_j_putc(d->x, &d->b, '\n');
    sv_j_step(d->x, (size_t)d->level / 32);
    for (int i = 0; i < d->level; i++)
        put(d, &d->unit);
}

static void put_value(struct dump *d, const struct sv_jval *v);

static void put_list(struct dump *d, const struct sv_jlist *l)
{
    sv_j_putc(d->x, &d->b, '[');
    d->level++;
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            put(d, &d->item_sep);
        new_line(d);
        put_value(d, &l->item[i]);
    }
    d->level--;
    if (l->n)
        new_line(d);
    sv_j_putc(d->x, &d->b, ']');
}

/* Merge sort of pointers: stable, and an error in a comparison may leave at any point. */
static void sort_pairs(struct sv_jx *x, const struct sv_jpair **p, const struct sv_jpair **scratch,
                       size_t n)
{
    size_t half = n / 2, i = 0, k = half, at = 0;

    if (n < 2)
        return;
    sort_pairs(x, p, scratch, half);
    sort_pairs(x, p + half, scratch, n - half);
    while (i < half && k < n)
        scratch[at++] = sv_j_order(x, SV_JO_LT, &p[k]->key, &p[i]->key) ? p[k++] : p[i++];
    while (i < half)
        scratch[at++] = p[i++];
    while (k < n)
        scratch[at++] = p[k++];
    memcpy(p, scratch, n * sizeof *p);
}

static void put_dict(struct dump *d, const struct sv_jdict *dict)
{
    const struct sv_jpair **order = sv_j_alloc(d->x, 2 * dict->n * sizeof *order);

    for (size_t i = 0; i < dict->n; i++)
        order[i] = &dict->pair[i];
    if (d->sort)
        sort_pairs(d->x, order, order + dict->n, dict->n);
    sv_j_putc(d->x, &d->b, '{');
    d->level++;
    for (size_t i = 0; i < dict->n; i++) {
        if (i)
            put(d, &d->item_sep);
        new_line(d);
        put_key(d, &order[i]->key);
        put(d, &d->key_sep);
        put_value(d, &order[i]->value);
    }
    d->level--;
    if (dict->n)
        new_line(d);
    sv_j_putc(d->x, &d->b, '}');
}

static void put_value(struct dump *d, const struct sv_jval *v)
{
    sv_j_enter(d->x);
    sv_j_step(d->x, 1);
    switch (v->kind) {
    case SV_J_NONE:
        sv_j_puts(d->x, &d->b, "null");
        break;
    case SV_J_BOOL:
        sv_j_puts(d->x, &d->b, v->u.b ? "true" : "false");
        break;
    case SV_J_INT:
        sv_j_putf(d->x, &d->b, "%lld", (long long)v->u.i);
        break;
    case SV_J_FLOAT:
        put_float(d, v->u.f);
        break;
    case SV_J_STR:
        put_string(d, v->u.s.p, v->u.s.n);
        break;
    case SV_J_LIST:
    case SV_J_TUPLE:
        put_list(d, v->u.list);
        break;
    case SV_J_DICT:
        put_dict(d, v->u.dict);
        break;
    default:
        sv_j_throw(d->x, SV_EINVAL, "Object of type %s is not JSON serializable",
                   sv_j_type_name(v));
    }
    sv_j_leave(d->x);
}

static void set_separators(struct dump *d, const struct sv_jval *v)
{
    struct sv_jlist *l;

    d->item_sep = sv_j_cstr(d->indent ? "," : ", ");
    d->key_sep = sv_j_cstr(": ");
    if (sv_j_is(v, SV_J_MISSING) || sv_j_is(v, SV_J_NONE))
        return;
    l = sv_j_iter(d->x, v);
    if (l->n != 2 || !sv_j_is(&l->item[0], SV_J_STR) || !sv_j_is(&l->item[1], SV_J_STR))
        sv_j_throw(d->x, SV_EINVAL, "separators must be two strings");
    d->item_sep = l->item[0];
    d->key_sep = l->item[1];
}

struct sv_jval sv_j_tojson(struct sv_jx *x, struct sv_jval v, const struct sv_jcall *c)
{
    struct dump d = {.x = x};
    struct sv_jval arg[4];
    struct sv_jbuild unit = {0};
    int64_t width;

    sv_j_bind(x, "tojson", "ensure_ascii indent separators sort_keys", c, arg);
    d.ascii = sv_j_truth(&arg[0]);
    d.sort = sv_j_truth(&arg[3]);
    d.indent = !sv_j_is(&arg[1], SV_J_MISSING) && !sv_j_is(&arg[1], SV_J_NONE);
    if (sv_j_is(&arg[1], SV_J_STR)) {
        d.unit = arg[1];
    } else if (d.indent) {
        if (!sv_j_to_int(&arg[1], &width))
            sv_j_throw(x, SV_EINVAL, "tojson: indent must be an integer or a string");
        for (int64_t i = 0; i < width; i++)
            sv_j_putc(x, &unit, ' ');
        d.unit = sv_j_built(&unit);
    }
    set_separators(&d, &arg[2]);
    put_value(&d, &v);
    return sv_j_built(&d.b);
}
