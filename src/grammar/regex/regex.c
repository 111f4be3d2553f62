/*
 * regex.c - regular expressions: their syntax to expressions over characters.
 *
 * Called for requests (the whole answer matches) and for schemas' patterns (found anywhere).
 * Syntax that is not regular, or depends on more than the text, is refused with its position. Must
 * not: recurse deeper than SV_MAX_GROUPS.
 */
#include "grammar/regex/regex.h"
#include "grammar/regex/scan.h"

struct regex {
    struct sv_scan s;
    struct sv_build *b;
    const struct sv_regex_style *style;
    bool anchor; /* the group read last has an anchor in it */
    bool ended;  /* ... a $ */
};

static sv_expr chars(struct regex *r, const struct sv_range *ranges, size_t n)
{
    return sv_build_chars(r->b, ranges, n, false);
}

static sv_expr any_text(struct regex *r)
{
    const struct sv_range all[] = {{0, 0xD7FF}, {0xE000, SV_MAX_CODE_POINT}};
    return sv_build_repeat(r->b, chars(r, all, 2), 0, -1);
}

static sv_expr read_alternatives(struct regex *r, bool leading);

/* After "(?": groups without further meaning; all other kinds are refused. */
static void read_group_kind(struct regex *r, size_t start)
{
    struct sv_scan *s = &r->s;
    char first = sv_scan_peek(s, 0), second = sv_scan_peek(s, 1);

    if (sv_scan_skip(s, ':'))
        return;
    if ((first == '<' && second != '=' && second != '!') || (first == 'P' && second == '<')) {
        while (s->at < s->n && s->text[s->at] != '>')
            s->at++;
        if (!sv_scan_skip(s, '>'))
            sv_scan_fail(s, SV_EINVAL, start, "the group's name does not end");
        return;
    }
    if (first == '=' || first == '!' || first == '<')
        sv_scan_fail(s, SV_EUNSUPPORTED, start, "look-around is not supported");
    else
        sv_scan_fail(s, SV_EUNSUPPORTED, start, "this kind of group (?%c is not supported", first);
}

static sv_expr read_group(struct regex *r, bool leading)
{
    struct sv_scan *s = &r->s;
    const size_t start = s->at - 1;
    sv_expr x;

    sv_scan_enter(s, start);
    if (sv_scan_skip(s, '?'))
        read_group_kind(r, start);
    x = read_alternatives(r, leading);
    sv_scan_leave(s, start);
    return x;
}

static sv_expr read_escape(struct regex *r)
{
    struct sv_scan *s = &r->s;
    const size_t start = s->at - 1;
    const char c = sv_scan_peek(s, 0);

    if ((c >= '1' && c <= '9') || c == 'k')
        sv_scan_fail(s, SV_EUNSUPPORTED, start, "references to groups are not regular");
    else if (c == 'b' || c == 'B')
        sv_scan_fail(s, SV_EUNSUPPORTED, start, "word boundaries are not supported");
    else if (c == 'p' || c == 'P')
        sv_scan_fail(s, SV_EUNSUPPORTED, start, "Unicode properties are not supported");
    s->ranges.n = 0;
    sv_scan_escape(s);
    return chars(r, s->ranges.data, s->ranges.n);
}

/* One character, class or group. */
static sv_expr read_atom(struct regex *r, bool leading)
{
    static const struct sv_range no_newline[] = {
        {0, '\n' - 1}, {'\n' + 1, 0xD7FF}, {0xE000, SV_MAX_CODE_POINT}};
    struct sv_scan *s = &r->s;
    struct sv_range one;

    r->anchor = r->ended = false;
    if (sv_scan_skip(s, '('))
        return read_group(r, leading);
    if (sv_scan_skip(s, '[')) {
        sv_scan_class(s, true);
        return chars(r, s->ranges.data, s->ranges.n);
    }
    if (sv_scan_skip(s, '.'))
        return chars(r, no_newline, 3);
    if (sv_scan_skip(s, '\\'))
        return read_escape(r);
    if (sv_scan_peek(s, 0) == '*' || sv_scan_peek(s, 0) == '+' || sv_scan_peek(s, 0) == '?')
        sv_scan_fail(s, SV_EINVAL, s->at, "there is nothing to repeat");
    one.lo = one.hi = sv_scan_char(s);
    return one.lo == SV_SCAN_END ? 0 : chars(r, &one, 1);
}

/* An atom and how often. */
static sv_expr read_repeated(struct regex *r, bool leading)
{
    struct sv_scan *s = &r->s;
    sv_expr x = read_atom(r, leading);
    const size_t at = s->at;
    int32_t min, max;

    if (!sv_scan_repeat(s, &min, &max))
        return x;
    if (r->anchor)
        sv_scan_fail(s, SV_EUNSUPPORTED, at, "a group with an anchor cannot be repeated");
    if (sv_scan_peek(s, 0) == '+')
        sv_scan_fail(s, SV_EUNSUPPORTED, s->at, "possessive repetition is not supported");
    sv_scan_skip(s, '?'); /* lazy: the same texts */
    if (sv_scan_peek(s, 0) == '*' || sv_scan_peek(s, 0) == '+' || sv_scan_peek(s, 0) == '?')
        sv_scan_fail(s, SV_EINVAL, s->at, "there is nothing to repeat");
    sv_build_at(r->b, s->pos + (int64_t)at);
    return sv_build_repeat(r->b, x, min, max);
}

/* Skips ^ or \A, $ or \Z or \z. */
static bool skip_anchor(struct sv_scan *s, const char *letters, char sign)
{
    const char c = sv_scan_peek(s, 1);

    if (sv_scan_skip(s, sign))
        return true;
    if (sv_scan_peek(s, 0) != '\\' || !c || (c != letters[0] && c != letters[1]))
        return false;
    s->at += 2;
    return true;
}

/* A sequence, up to | or ) or the end. leading: nothing comes before it. Anchors are allowed only
 * at the beginning and the end, where they matter only in a search. */
static sv_expr read_sequence(struct regex *r, bool leading, bool *anchor, bool *ended)
{
    struct sv_scan *s = &r->s;
    const uint32_t base = r->s.parts.n;
    const bool search = r->style->search && s->depth == 0;
    bool begins = false, ends = false, first = leading;
    sv_expr x;

    while (s->at < s->n && s->text[s->at] != '|' && s->text[s->at] != ')') {
        const size_t at = s->at;
        if (skip_anchor(s, "AA", '^')) {
            if (!first || (r->style->search && s->depth > 0))
                sv_scan_fail(s, SV_EUNSUPPORTED, at, "^ is only supported at the beginning");
            begins = true;
            continue;
        }
        if (skip_anchor(s, "Zz", '$')) {
            if (r->style->search && s->depth > 0)
                sv_scan_fail(s, SV_EUNSUPPORTED, at, "$ is only supported at the end");
            ends = true;
            continue;
        }
        if (ends)
            sv_scan_fail(s, SV_EUNSUPPORTED, at, "$ is only supported at the end");
        sv_scan_push(s, read_repeated(r, first));
        ends |= r->ended;
        *anchor |= r->anchor;
        first = false;
    }
    *anchor |= begins || ends;
    *ended |= ends;
    x = sv_scan_seq(s, base);
    if (search && !begins)
        x = sv_build_then(r->b, any_text(r), x);
    if (search && !ends)
        x = sv_build_then(r->b, x, any_text(r));
    return x;
}

static sv_expr read_alternatives(struct regex *r, bool leading)
{
    const uint32_t base = r->s.parts.n;
    bool anchor = false, ended = false;

    do {
        sv_scan_push(&r->s, read_sequence(r, leading, &anchor, &ended));
    } while (sv_scan_skip(&r->s, '|'));
    r->anchor = anchor;
    r->ended = ended;
    return sv_scan_alt(&r->s, base);
}

sv_expr sv_regex_expr(struct sv_build *b, const char *text, size_t n,
                      const struct sv_regex_style *style)
{
    static const struct sv_regex_style plain;
    struct regex r = {.b = b, .style = style ? style : &plain};
    sv_expr x;

    sv_scan_init(&r.s, b, text, n, r.style->pos);
    x = read_alternatives(&r, true);
    if (r.s.at < n && !b->err.code)
        sv_scan_fail(&r.s, SV_EINVAL, r.s.at, ") without (");
    sv_scan_fini(&r.s);
    return x;
}

int sv_grammar_regex(struct sv_grammar **g, const char *text, size_t n, struct sv_err *err)
{
    struct sv_build *b;
    int code = sv_build_open(&b, err);

    if (code != SV_OK)
        return code;
    code = sv_build_finish(b, sv_regex_expr(b, text, n, NULL), g, err);
    sv_build_close(b);
    return code;
}
