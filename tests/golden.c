/*
 * golden.c - see golden.h.
 */
#include "golden.h"

#include "testing.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct golden golden_open(const char *relative)
{
    char path[512];
    snprintf(path, sizeof path, "tests/golden/%s", relative);
    FILE *f = fopen(sv_test_path(path), "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    struct golden g = {0};
    fseek(f, 0, SEEK_END);
    g.n_bytes = (size_t)ftell(f);
    rewind(f);
    g.data = malloc(g.n_bytes + 1);
    assert_int_equal(fread(g.data, 1, g.n_bytes, f), g.n_bytes);
    fclose(f);
    uint64_t n;
    memcpy(&n, g.data, 8);
    assert_true(n < g.n_bytes);
    g.base = 8 + (size_t)n;
    g.header = json_loadb(g.data + 8, (size_t)n, 0, NULL);
    assert_non_null(g.header);
    return g;
}

void golden_close(struct golden *g)
{
    json_decref(g->header);
    for (size_t i = 0; i < g->n_given; i++)
        free(g->given[i]);
    free(g->given);
    free(g->data);
}

static json_t *entry(const struct golden *g, const char *fmt, va_list ap, char *name, size_t size)
{
    vsnprintf(name, size, fmt, ap);
    return json_object_get(g->header, name);
}

bool golden_has(const struct golden *g, const char *fmt, ...)
{
    char name[128];
    va_list ap;
    va_start(ap, fmt);
    bool has = entry(g, fmt, ap, name, sizeof name) != NULL;
    va_end(ap);
    return has;
}

const void *golden_get(struct golden *g, const char *dtype, size_t *n, const char *fmt, ...)
{
    char name[128];
    va_list ap;
    va_start(ap, fmt);
    json_t *e = entry(g, fmt, ap, name, sizeof name);
    va_end(ap);
    if (!e)
        fail_msg("golden tensor %s is missing", name);
    const char *have = json_string_value(json_object_get(e, "dtype"));
    if (!have || strcmp(have, dtype))
        fail_msg("golden tensor %s is %s, not %s", name, have ? have : "?", dtype);
    json_t *off = json_object_get(e, "data_offsets");
    size_t from = (size_t)json_integer_value(json_array_get(off, 0));
    size_t to = (size_t)json_integer_value(json_array_get(off, 1));
    assert_true(from <= to && g->base + to <= g->n_bytes);
    const bool two = !strcmp(dtype + 1, "16") || !strcmp(dtype, "BF16");
    *n = (to - from) / (!strcmp(dtype, "U8") ? 1 : two ? 2 : 4);
    void *copy = malloc(to - from + 1); /* aligned, unlike the file */
    g->given = realloc(g->given, (g->n_given + 1) * sizeof *g->given);
    g->given[g->n_given++] = copy;
    memcpy(copy, g->data + g->base + from, to - from);
    return copy;
}

const char *golden_meta(const struct golden *g, const char *key)
{
    return json_string_value(json_object_get(json_object_get(g->header, "__metadata__"), key));
}

double golden_rel_err(const float *a, const float *b, size_t n)
{
    double worst = 0, scale = 1e-30;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]))
            return INFINITY;
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        scale = fmax(scale, fabs((double)b[i]));
    }
    return worst / scale;
}
