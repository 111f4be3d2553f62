/*
 * legal.c - see legal.h.
 */
#include "engine/legal.h"

#include "testing.h"

#include <string.h>

static const char *const choices[] = {"yes", "no", "not yet", "nothing at all: \xc3\xa9t\xc3\xa9"};
enum { CHOICES = sizeof choices / sizeof choices[0] };

/* Fails the test on an error. */
static void made(int rc, const struct sv_err *err)
{
    if (rc)
        fail_msg("grammar: %s", err->msg);
}

static struct sv_grammar *literal(const char *text)
{
    struct sv_grammar *g = NULL;
    struct sv_err err = {0};
    made(sv_grammar_literal(&g, text, strlen(text), &err), &err);
    return g;
}

/* Takes over the parts. */
static struct sv_grammar *either(struct sv_grammar **part, size_t n)
{
    struct sv_grammar *g = NULL;
    struct sv_err err = {0};
    made(sv_grammar_either(&g, part, n, &err), &err);
    for (size_t i = 0; i < n; i++)
        sv_grammar_unref(part[i]);
    return g;
}

static struct sv_grammar *join(struct sv_grammar **part, size_t n)
{
    struct sv_grammar *g = NULL;
    struct sv_err err = {0};
    made(sv_grammar_join(&g, part, n, &err), &err);
    for (size_t i = 0; i < n; i++)
        sv_grammar_unref(part[i]);
    return g;
}

static struct sv_grammar *repeat(struct sv_grammar *part, int32_t min, int32_t max)
{
    struct sv_grammar *g = NULL;
    struct sv_err err = {0};
    made(sv_grammar_repeat(&g, part, min, max, &err), &err);
    sv_grammar_unref(part);
    return g;
}

static struct sv_grammar *digit(int from)
{
    struct sv_grammar *d[10];
    size_t n = 0;
    for (int i = from; i < 10; i++)
        d[n++] = literal((const char[]){(char)('0' + i), 0});
    return either(d, n);
}

/* Zero, or up to three digits without a leading zero. */
static struct sv_grammar *number(void)
{
    struct sv_grammar *big[] = {digit(1), repeat(digit(0), 0, 2)};
    struct sv_grammar *any[] = {literal("0"), join(big, 2)};
    return either(any, 2);
}

static struct sv_grammar *numbers(void)
{
    struct sv_grammar *more[] = {literal(","), number()};
    struct sv_grammar *list[] = {literal("["), number(), repeat(join(more, 2), 0, -1),
                                 literal("]")};
    return join(list, 4);
}

struct sv_grammar *legal_grammar(enum legal what)
{
    static const char nested[] = "root ::= \"(\" ([a-z] | root)* \")\"";
    struct sv_grammar *g = NULL, *part;
    struct sv_err err = {0};
    switch (what) {
    case LEGAL_CHOICE:
        made(sv_grammar_choice(&g, choices, CHOICES, &err), &err);
        return g;
    case LEGAL_NUMBERS:
        return numbers();
    case LEGAL_AFTER:
        part = numbers();
        made(sv_grammar_after(&g, "e", 1, part, &err), &err);
        sv_grammar_unref(part);
        return g;
    case LEGAL_NESTED:
        made(sv_grammar_gbnf(&g, nested, strlen(nested), &err), &err);
        return g;
    default:
        return NULL;
    }
}

/* ---------------------------------------------------------------- answers */

static enum legal_part check_choice(const char *text, size_t n)
{
    enum legal_part best = LEGAL_NOT;
    for (int i = 0; i < CHOICES; i++) {
        const size_t len = strlen(choices[i]);
        if (n > len || memcmp(text, choices[i], n))
            continue;
        if (n == len)
            return LEGAL_WHOLE;
        best = LEGAL_BEGIN;
    }
    return best;
}

static enum legal_part check_numbers(const char *s, size_t n)
{
    size_t digits = 0;
    if (!n)
        return LEGAL_BEGIN;
    if (s[0] != '[')
        return LEGAL_NOT;
    for (size_t i = 1; i < n; i++) {
        const bool zero = digits == 1 && s[i - 1] == '0';
        if (s[i] >= '0' && s[i] <= '9' && digits < 3 && !zero)
            digits++;
        else if (s[i] == ',' && digits)
            digits = 0;
        else
            return s[i] == ']' && digits && i + 1 == n ? LEGAL_WHOLE : LEGAL_NOT;
    }
    return LEGAL_BEGIN;
}

static enum legal_part check_nested(const char *s, size_t n)
{
    int depth = 0;
    for (size_t i = 0; i < n; i++) {
        depth += (s[i] == '(') - (s[i] == ')');
        if (s[i] != '(' && s[i] != ')' && (s[i] < 'a' || s[i] > 'z'))
            return LEGAL_NOT;
        if (depth == 0)
            return s[i] == ')' && i + 1 == n ? LEGAL_WHOLE : LEGAL_NOT;
    }
    return LEGAL_BEGIN;
}

enum legal_part legal_check(enum legal what, const char *text, size_t n)
{
    const char *e = n ? memchr(text, 'e', n) : NULL;
    switch (what) {
    case LEGAL_CHOICE:
        return check_choice(text, n);
    case LEGAL_NUMBERS:
        return check_numbers(text, n);
    case LEGAL_AFTER:
        return e ? check_numbers(e + 1, n - (size_t)(e + 1 - text)) : LEGAL_BEGIN;
    case LEGAL_NESTED:
        return check_nested(text, n);
    default:
        return LEGAL_WHOLE;
    }
}
