/*
 * compose.c - grammars of texts and of other grammars: literal, choice, join, either, repeat, and
 * texts around a marker.
 *
 * Called by serve for tools and reasoning, and for choices between texts. Must not: keep the parts;
 * their rules are copied.
 */
#include "grammar/core/build.h"

#include <string.h>

typedef sv_expr (*combine_fn)(struct sv_build *b, const sv_expr *parts, size_t n);

/* Runs one builder to its end. */
static int finish(struct sv_build *b, sv_expr x, struct sv_grammar **g, struct sv_err *err)
{
    int code = sv_build_finish(b, x, g, err);

    sv_build_close(b);
    return code;
}

typedef sv_expr (*part_fn)(struct sv_build *b, const void *parts, size_t i);

static sv_expr grammar_part(struct sv_build *b, const void *parts, size_t i)
{
    return sv_build_grammar(b, ((struct sv_grammar *const *)parts)[i]);
}

static sv_expr text_part(struct sv_build *b, const void *parts, size_t i)
{
    const char *text = ((const char *const *)parts)[i];

    return sv_build_bytes(b, text, strlen(text));
}

/* fn of n expressions, of which part() makes the i-th from what `parts` are. */
static int combine(struct sv_grammar **g, const void *parts, size_t n, part_fn part, combine_fn fn,
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
        x[i] = part(b, parts, i);
    code = finish(b, x ? fn(b, x, n) : 0, g, err);
    sv_free(x);
    return code;
}

int sv_grammar_join(struct sv_grammar **g, struct sv_grammar *const *parts, size_t n,
                    struct sv_err *err)
{
    return combine(g, parts, n, grammar_part, sv_build_seq, err);
}

int sv_grammar_either(struct sv_grammar **g, struct sv_grammar *const *parts, size_t n,
                      struct sv_err *err)
{
    return combine(g, parts, n, grammar_part, sv_build_alt, err);
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
    if (n == 0)
        return sv_fail(err, SV_EINVAL, -1, "there is nothing to choose from");
    return combine(g, texts, n, text_part, sv_build_alt, err);
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
