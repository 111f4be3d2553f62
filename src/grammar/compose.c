/*
 * compose.c - grammars of texts and of other grammars: literal, choice, join, either, repeat, and
 * what stands around a marker.
 *
 * Called by serve for tools and reasoning, and by whoever has texts to choose from. Must not: keep
 * the parts; their rules are copied.
 */
#include "grammar/build.h"

#include <string.h>

typedef sv_expr (*combine_fn)(struct sv_build *b, const sv_expr *parts, size_t n);

/* Runs one builder to its end. */
static int finish(struct sv_build *b, sv_expr x, struct sv_grammar **g, struct sv_err *err)
{
    int code = sv_build_finish(b, x, g, err);

    sv_build_close(b);
    return code;
}

static int combine(struct sv_grammar **g, struct sv_grammar *const *parts, size_t n, combine_fn fn,
                   struct sv_err *err)
{
    struct sv_build *b;
    sv_expr *x;
    int code = sv_build_open(&b, err);

    if (code != SV_OK)
        return code;
    x = sv_alloc(n * sizeof *x);
    if (!x)
        sv_build_fail(b, SV_ENOMEM, -1, "grammar: out of memory");
    for (size_t i = 0; i < n && x; i++)
        x[i] = sv_build_grammar(b, parts[i]);
    code = finish(b, x ? fn(b, x, n) : 0, g, err);
    sv_free(x);
    return code;
}

int sv_grammar_join(struct sv_grammar **g, struct sv_grammar *const *parts, size_t n,
                    struct sv_err *err)
{
    return combine(g, parts, n, sv_build_seq, err);
}

int sv_grammar_either(struct sv_grammar **g, struct sv_grammar *const *parts, size_t n,
                      struct sv_err *err)
{
    return combine(g, parts, n, sv_build_alt, err);
}

int sv_grammar_repeat(struct sv_grammar **g, struct sv_grammar *part, int32_t min, int32_t max,
                      struct sv_err *err)
{
    struct sv_build *b;
    int code = sv_build_open(&b, err);

    if (code != SV_OK)
        return code;
    return finish(b, sv_build_repeat(b, sv_build_grammar(b, part), min, max), g, err);
}

int sv_grammar_choice(struct sv_grammar **g, const char *const *texts, size_t n, struct sv_err *err)
{
    struct sv_build *b;
    sv_expr *x;
    int code = sv_build_open(&b, err);

    if (code != SV_OK)
        return code;
    x = sv_alloc(n * sizeof *x);
    if (!x)
        sv_build_fail(b, SV_ENOMEM, -1, "grammar: out of memory");
    if (n == 0)
        sv_build_fail(b, SV_EINVAL, -1, "there is nothing to choose from");
    for (size_t i = 0; i < n && x; i++)
        x[i] = sv_build_bytes(b, texts[i], strlen(texts[i]));
    code = finish(b, x ? sv_build_alt(b, x, n) : 0, g, err);
    sv_free(x);
    return code;
}

/* ---------------------------------------------------------------- texts and markers */

typedef sv_expr (*text_fn)(struct sv_build *b, const void *text, size_t n);

static int from_text(struct sv_grammar **g, text_fn fn, const char *text, size_t n,
                     struct sv_err *err)
{
    struct sv_build *b;
    int code = sv_build_open(&b, err);

    if (code != SV_OK)
        return code;
    return finish(b, fn(b, text, n), g, err);
}

int sv_grammar_literal(struct sv_grammar **g, const char *text, size_t n, struct sv_err *err)
{
    return from_text(g, sv_build_bytes, text, n, err);
}

int sv_grammar_until(struct sv_grammar **g, const char *marker, size_t n, struct sv_err *err)
{
    return from_text(g, sv_build_until, marker, n, err);
}

int sv_grammar_without(struct sv_grammar **g, const char *marker, size_t n, struct sv_err *err)
{
    return from_text(g, sv_build_without, marker, n, err);
}

int sv_grammar_after(struct sv_grammar **out, const char *marker, size_t n, struct sv_grammar *g,
                     struct sv_err *err)
{
    struct sv_build *b;
    int code = sv_build_open(&b, err);

    if (code != SV_OK)
        return code;
    return finish(b, sv_build_then(b, sv_build_until(b, marker, n), sv_build_grammar(b, g)), out,
                  err);
}
