/*
 * lex.c - template text to tokens, with jinja2's whitespace control (trim_blocks and
 * lstrip_blocks on).
 *
 * Called by template.c before parsing. The rules follow jinja2/lexer.py: which of them matches
 * first, and what a "-" or "+" beside a delimiter strips. Must not: know statements or expressions.
 */
#include "jinja/run.h"
#include "jinja/text.h"
#include "jinja/parse.h"

#include <errno.h>
#include <stdlib.h>

struct lexer {
    struct sv_jx *x;
    const char *s;
    size_t n, at;
    bool line_starting; /* the last match ended with a line break */
    struct sv_jtoken *tok;
    size_t n_tok, cap_tok;
    char *open; /* expected closing brackets */
    size_t n_open, cap_open;
};

static void add(struct lexer *l, enum sv_jtok type, size_t pos, struct sv_jval value)
{
    if (l->n_tok == l->cap_tok) {
        size_t cap = l->cap_tok ? 2 * l->cap_tok : 64;
        struct sv_jtoken *tok = sv_j_alloc(l->x, cap * sizeof *tok);
        if (l->n_tok)
            memcpy(tok, l->tok, l->n_tok * sizeof *tok);
        l->tok = tok;
        l->cap_tok = cap;
    }
    l->tok[l->n_tok++] =
        (struct sv_jtoken){.type = (uint8_t)type, .pos = (uint32_t)pos, .value = value};
}

_Noreturn static void fail(struct lexer *l, size_t pos, const char *text)
{
    l->x->pos = (uint32_t)pos;
    sv_j_throw(l->x, SV_EINVAL, "%s", text);
}

static bool looking_at(const struct lexer *l, size_t at, const char *text)
{
    size_t n = strlen(text);
    return l->n - at >= n && memcmp(l->s + at, text, n) == 0;
}

/* The byte after the whitespace at `at`. */
static size_t skip_space(const struct lexer *l, size_t at)
{
    while (at < l->n) {
        int len;
        if (!sv_j_space(sv_utf8_get(l->s + at, &len)))
            break;
        at += (size_t)len;
    }
    return at;
}

/* Start of the trailing whitespace of [from, to). */
static size_t rstrip(const struct lexer *l, size_t from, size_t to)
{
    struct sv_jval s = sv_j_strip(l->x, sv_j_str(l->s + from, to - from), NULL, SV_J_RIGHT);
    return from + s.u.s.n;
}

/* Emits the text before a tag. sign is the tag's "-", "+" or 0. */
static void add_data(struct lexer *l, size_t from, size_t to, char sign, bool is_variable)
{
    if (sign == '-') {
        to = rstrip(l, from, to);
    } else if (sign != '+' && !is_variable) {
        size_t line = to;
        while (line > from && l->s[line - 1] != '\n')
            line--;
        if ((line > from || l->line_starting) && skip_space(l, line) >= to)
            to = line;
    }
    if (to > from)
        add(l, SV_JT_DATA, from, sv_j_str(l->s + from, to - from));
}

static void moved(struct lexer *l, size_t to)
{
    if (to > l->at)
        l->line_starting = l->s[to - 1] == '\n';
    l->at = to;
}

/* The end of a "{% raw %}" whose "{%" is at `at`, else 0. */
static size_t raw_begin(const struct lexer *l, size_t at)
{
    at += 2;
    if (at < l->n && (l->s[at] == '-' || l->s[at] == '+'))
        at++;
    at = skip_space(l, at);
    if (!looking_at(l, at, "raw"))
        return 0;
    at = skip_space(l, at + 3);
    if (looking_at(l, at, "-%}"))
        return skip_space(l, at + 3);
    return looking_at(l, at, "%}") ? at + 2 : 0;
}

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

static void lex_raw(struct lexer *l, size_t begin)
{
    for (size_t at = l->at; at < l->n; at++) {
        size_t end;
        char sign;
        if (!looking_at(l, at, "{%"))
            continue;
        sign = sign_at(l, at + 2);
        end = skip_space(l, at + 2 + (sign != 0));
        if (!looking_at(l, end, "endraw"))
            continue;
        end = skip_space(l, end + 6);
        if (looking_at(l, end, "+%}"))
            end += 3;
        else if (looking_at(l, end, "-%}"))
            end = skip_space(l, end + 3);
        else if (looking_at(l, end, "%}"))
            end += looking_at(l, end + 2, "\n") ? 3 : 2;
        else
            continue;
        add_data(l, l->at, at, sign, false);
        moved(l, end);
        return;
    }
    fail(l, begin, "missing end of raw directive");
}

static void lex_comment(struct lexer *l, size_t begin)
{
    for (size_t at = l->at; at < l->n; at++) {
        if (looking_at(l, at, "+#}"))
            moved(l, at + 3);
        else if (looking_at(l, at, "-#}"))
            moved(l, skip_space(l, at + 3));
        else if (looking_at(l, at, "#}"))
            moved(l, at + (looking_at(l, at + 2, "\n") ? 3 : 2));
        else
            continue;
        return;
    }
    fail(l, begin, "missing end of comment tag");
}

/* ---------------------------------------------------------------- inside a tag */

static size_t digits(const struct lexer *l, size_t at)
{
    size_t from = at;
    while (at < l->n && ((l->s[at] >= '0' && l->s[at] <= '9') ||
                         (l->s[at] == '_' && at > from && l->s[at - 1] != '_' && at + 1 < l->n &&
                          l->s[at + 1] >= '0' && l->s[at + 1] <= '9')))
        at++;
    return at;
}

/* The end of a float at `at`, or `at` when there is none. */
static size_t float_end(const struct lexer *l, size_t at)
{
    size_t end = digits(l, at), exponent;
    bool fraction = false;

    if (at && l->s[at - 1] == '.')
        return at;
    if (end < l->n && l->s[end] == '.' && digits(l, end + 1) > end + 1) {
        end = digits(l, end + 1);
        fraction = true;
    }
    exponent = end;
    if (exponent < l->n && (l->s[exponent] == 'e' || l->s[exponent] == 'E')) {
        exponent++;
        if (exponent < l->n && (l->s[exponent] == '+' || l->s[exponent] == '-'))
            exponent++;
        if (digits(l, exponent) > exponent)
            return digits(l, exponent);
    }
    return fraction ? end : at;
}

static bool digit_of(char c, int base)
{
    int v = c >= '0' && c <= '9'   ? c - '0'
            : c >= 'a' && c <= 'f' ? c - 'a' + 10
            : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                   : 99;
    return v < base;
}

static size_t int_end(const struct lexer *l, size_t at, int *base)
{
    char mark = at + 1 < l->n ? (char)(l->s[at + 1] | 32) : 0;
    size_t end = at;

    *base = l->s[at] != '0' ? 10 : mark == 'b' ? 2 : mark == 'o' ? 8 : mark == 'x' ? 16 : 10;
    if (*base != 10) {
        end = at + 2;
        for (;;) {
            size_t one = end + (end < l->n && l->s[end] == '_');
            if (one >= l->n || !digit_of(l->s[one], *base))
                break;
            end = one + 1;
        }
        if (end > at + 2)
            return end;
        *base = 10;
    }
    if (l->s[at] != '0')
        return digits(l, at);
    for (end = at + 1; end < l->n; end++) { /* only zeros may follow a zero */
        if (l->s[end] == '_' && end + 1 < l->n && l->s[end + 1] == '0')
            end++;
        else if (l->s[end] != '0')
            break;
    }
    return end;
}

static void lex_number(struct lexer *l)
{
    size_t end = float_end(l, l->at), at = l->at;
    bool is_float = end > at;
    struct sv_jval v;
    char *text;
    size_t n = 0;
    int base = 10;

    if (!is_float)
        end = int_end(l, at, &base);
    text = sv_j_alloc(l->x, end - at + 1);
    for (size_t i = at; i < end; i++)
        if (l->s[i] != '_')
            text[n++] = l->s[i];
    text[n] = 0;
    if (is_float) {
        v = sv_j_float(strtod(text, NULL));
    } else {
        errno = 0;
        v = sv_j_int(strtoll(base == 10 ? text : text + 2, NULL, base));
        if (errno == ERANGE)
            fail(l, at, "integer beyond 64 bits");
    }
    add(l, is_float ? SV_JT_FLOAT : SV_JT_INT, at, v);
    moved(l, end);
}

static int hex_value(const char *p, size_t n)
{
    int v = 0;
    for (size_t i = 0; i < n; i++) {
        if (!digit_of(p[i], 16))
            return -1;
        v = v * 16 + (p[i] <= '9' ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    }
    return v;
}

/* One escape at p (after the backslash); returns its length in bytes. As Python's unicode-escape.
 */
static size_t unescape(struct lexer *l, struct sv_jbuild *b, const char *p, size_t n, size_t pos)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = memchr(from, p[0], sizeof from - 1);
    size_t want = p[0] == 'x' ? 2 : p[0] == 'u' ? 4 : p[0] == 'U' ? 8 : 0;

    if (simple) {
        sv_j_putc(l->x, b, to[simple - from]);
        return 1;
    }
    if (p[0] == '\n')
        return 1;
    if (want) {
        int cp = n > want ? hex_value(p + 1, want) : -1;
        if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
            fail(l, pos, "bad escape in a string");
        sv_j_put_cp(l->x, b, (uint32_t)cp);
        return want + 1;
    }
    if (p[0] >= '0' && p[0] <= '7') {
        uint32_t cp = 0;
        size_t i = 0;
        while (i < 3 && i < n && p[i] >= '0' && p[i] <= '7')
            cp = cp * 8 + (uint32_t)(p[i++] - '0');
        sv_j_put_cp(l->x, b, cp);
        return i;
    }
    if (p[0] == 'N')
        fail(l, pos, "\\N{...} in strings is not supported");
    sv_j_putc(l->x, b, '\\'); /* an unknown escape stays as it is */
    return 0;
}

static void lex_string(struct lexer *l)
{
    size_t begin = l->at, at = begin + 1;
    char quote = l->s[begin];
    struct sv_jbuild b = {0};
    bool plain = true;

    while (at < l->n && l->s[at] != quote) {
        plain = plain && l->s[at] != '\\';
        at += l->s[at] == '\\' ? 2 : 1;
    }
    if (at >= l->n)
        fail(l, begin, "a string without end");
    if (plain) {
        add(l, SV_JT_STR, begin, sv_j_str(l->s + begin + 1, at - begin - 1));
    } else {
        for (size_t i = begin + 1; i < at;) {
            if (l->s[i] == '\\')
                i += 1 + unescape(l, &b, l->s + i + 1, at - i - 1, i);
            else
                sv_j_putc(l->x, &b, l->s[i++]);
        }
        add(l, SV_JT_STR, begin, sv_j_built(&b));
    }
    moved(l, at + 1);
}

static bool name_char(const struct lexer *l, size_t at, int *len)
{
    return sv_uni_flags(sv_utf8_get(l->s + at, len)) & SV_UF_WORD;
}

static void lex_name(struct lexer *l)
{
    size_t at = l->at;
    int len;

    while (at < l->n && name_char(l, at, &len))
        at += (size_t)len;
    add(l, SV_JT_NAME, l->at, sv_j_str(l->s + l->at, at - l->at));
    moved(l, at);
}

static const struct {
    char text[3];
    uint8_t type;
} operators[] = {
    {"//", SV_JT_FLOORDIV}, {"**", SV_JT_POW},      {"==", SV_JT_EQ},    {"!=", SV_JT_NE},
    {">=", SV_JT_GE},       {"<=", SV_JT_LE},       {"+", SV_JT_ADD},    {"-", SV_JT_SUB},
    {"/", SV_JT_DIV},       {"*", SV_JT_MUL},       {"%", SV_JT_MOD},    {"~", SV_JT_TILDE},
    {"[", SV_JT_LBRACKET},  {"]", SV_JT_RBRACKET},  {"(", SV_JT_LPAREN}, {")", SV_JT_RPAREN},
    {"{", SV_JT_LBRACE},    {"}", SV_JT_RBRACE},    {">", SV_JT_GT},     {"<", SV_JT_LT},
    {"=", SV_JT_ASSIGN},    {".", SV_JT_DOT},       {":", SV_JT_COLON},  {"|", SV_JT_PIPE},
    {",", SV_JT_COMMA},     {";", SV_JT_SEMICOLON},
};

static void balance(struct lexer *l, uint8_t type)
{
    char close = type == SV_JT_LBRACE ? '}' : type == SV_JT_LPAREN ? ')' : ']';

    if (type == SV_JT_LBRACE || type == SV_JT_LPAREN || type == SV_JT_LBRACKET) {
        if (l->n_open == l->cap_open) {
            size_t cap = l->cap_open ? 2 * l->cap_open : 32;
            char *open = sv_j_alloc(l->x, cap);
            if (l->n_open)
                memcpy(open, l->open, l->n_open);
            l->open = open;
            l->cap_open = cap;
        }
        l->open[l->n_open++] = close;
    } else if (type == SV_JT_RBRACE || type == SV_JT_RPAREN || type == SV_JT_RBRACKET) {
        if (!l->n_open || l->open[l->n_open - 1] != l->s[l->at])
            fail(l, l->at, "a closing bracket that nothing opened");
        l->n_open--;
    }
}

static void lex_operator(struct lexer *l)
{
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (!looking_at(l, l->at, operators[i].text))
            continue;
        balance(l, operators[i].type);
        add(l, (enum sv_jtok)operators[i].type, l->at, sv_j_none());
        moved(l, l->at + strlen(operators[i].text));
        return;
    }
    fail(l, l->at, "unexpected character");
}

/* The end of the tag if `at` is its closing delimiter, else 0. */
static size_t tag_end(const struct lexer *l, bool is_variable)
{
    const char *end = is_variable ? "}}" : "%}";

    if (l->n_open)
        return 0;
    if (!is_variable && looking_at(l, l->at, "+%}"))
        return l->at + 3;
    if (l->s[l->at] == '-' && looking_at(l, l->at + 1, end))
        return skip_space(l, l->at + 3);
    if (!looking_at(l, l->at, end))
        return 0;
    return l->at + (!is_variable && looking_at(l, l->at + 2, "\n") ? 3 : 2);
}

static void lex_tag(struct lexer *l, bool is_variable)
{
    while (l->at < l->n) {
        size_t end = tag_end(l, is_variable);
        char c = l->s[l->at];
        int len;
        sv_j_step(l->x, 1);
        if (end) {
            add(l, is_variable ? SV_JT_VAR_END : SV_JT_BLOCK_END, l->at, sv_j_none());
            moved(l, end);
            return;
        }
        if (skip_space(l, l->at) > l->at)
            moved(l, skip_space(l, l->at));
        else if (c >= '0' && c <= '9')
            lex_number(l);
        else if (name_char(l, l->at, &len))
            lex_name(l);
        else if (c == '\'' || c == '"')
            lex_string(l);
        else
            lex_operator(l);
    }
}

const struct sv_jtoken *sv_j_lex(struct sv_jx *x, size_t *n)
{
    struct lexer l = {.x = x, .s = x->source, .n = x->n_source, .line_starting = true};

    while (l.at < l.n) {
        const char *brace = l.s + l.at;
        size_t tag, raw;
        char kind = 0, sign;
        while ((brace = memchr(brace, '{', (size_t)(l.s + l.n - brace)))) {
            kind = brace + 1 < l.s + l.n ? brace[1] : 0;
            if (kind == '%' || kind == '{' || kind == '#')
                break;
            brace++;
        }
        if (!brace) {
            add(&l, SV_JT_DATA, l.at, sv_j_str(l.s + l.at, l.n - l.at));
            break;
        }
        tag = (size_t)(brace - l.s);
        sign = sign_at(&l, tag + 2);
        raw = kind == '%' ? raw_begin(&l, tag) : 0;
        add_data(&l, l.at, tag, sign, kind == '{');
        moved(&l, raw ? raw : tag + 2 + (sign != 0));
        if (raw) {
            lex_raw(&l, tag);
        } else if (kind == '#') {
            lex_comment(&l, tag);
        } else {
            add(&l, kind == '{' ? SV_JT_VAR_BEGIN : SV_JT_BLOCK_BEGIN, tag, sv_j_none());
            lex_tag(&l, kind == '{');
        }
    }
    add(&l, SV_JT_EOF, l.n, sv_j_none());
    *n = l.n_tok;
    return l.tok;
}
