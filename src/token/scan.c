/*
 * scan.c - hand-written scanners for the split expressions that published byte-level models use.
 *
 * Called by split.c when a pattern's text is exactly one of the table below; any other pattern uses
 * PCRE2. The tests hold each scanner against PCRE2 on the same expression. Must not: read a code
 * point more than a few times (runs of white space at most twice), or accept similar patterns.
 */
#include "token/tok.h"

#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PUNCT "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define PUNCT_SLASH "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
#define WORDS CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(suffix)                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER  \
    "*" suffix

static const struct {
    const char *pattern;
    struct sv_scanner scan; /* kind, max_digits, marks, suffix, slash */
} known[] = {
    /* GPT-2, and ByteLevel's use_regex */
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     {SV_SCAN_GPT2, 0, false, false, false}},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     {SV_SCAN_GPT2, 0, false, false, false}},
    /* Qwen2, Qwen3 */
    {WORDS "|\\p{N}" PUNCT TAIL, {SV_SCAN_WORDS, 1, false, false, false}},
    /* GPT-4, Llama-3 */
    {WORDS "|\\p{N}{1,3}" PUNCT TAIL, {SV_SCAN_WORDS, 3, false, false, false}},
    /* Qwen3.5 */
    {CONTRACTIONS
     "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL,
     {SV_SCAN_WORDS, 1, true, false, false}},
    /* GPT-4o, gpt-oss, Llama-4 */
    {CASED(CONTRACTIONS "?") "|\\p{N}{1,3}" PUNCT_SLASH TAIL,
     {SV_SCAN_CASED, 3, false, true, true}},
    {CASED(CONTRACTIONS "?") "|\\p{N}" PUNCT_SLASH TAIL, {SV_SCAN_CASED, 1, false, true, true}},
    /* Mistral's tekken */
    {CASED("") "|\\p{N}" PUNCT_SLASH TAIL, {SV_SCAN_CASED, 1, false, false, true}},
    /* digits alone: first step of DeepSeek's sequence, and the Digits pre-tokenizer */
    {"\\p{N}{1,3}", {SV_SCAN_DIGITS, 3, false, false, false}},
    {"\\p{N}", {SV_SCAN_DIGITS, 1, false, false, false}},
    {"\\p{N}+", {SV_SCAN_DIGITS, 0, false, false, false}},
};

const char *sv_scan_pattern(int index)
{
    return index >= 0 && index < (int)(sizeof known / sizeof known[0]) ? known[index].pattern
                                                                       : NULL;
}

bool sv_scan_known(const char *pattern, size_t n, struct sv_scanner *out)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strlen(known[i].pattern) == n && memcmp(known[i].pattern, pattern, n) == 0) {
            *out = known[i].scan;
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------- pieces of the expressions */

#define BIT(x) SV_UC_BIT(SV_UC_##x)
#define IS_UPPER (BIT(LU) | BIT(LT) | BIT(LM) | BIT(LO) | BIT(M))
#define IS_LOWER (BIT(LL) | BIT(LM) | BIT(LO) | BIT(M))
#define IS_BOTH (BIT(LM) | BIT(LO) | BIT(M))

/* Class of the code point at `at` as a bit; *len gets its length. */
static inline unsigned class_at(const char *text, size_t at, int *len)
{
    uint8_t c = (uint8_t)text[at];
    if (c < 0x80) {
        *len = 1;
        return 1u << (sv_uni_ascii[c] & SV_UC_MASK);
    }
    return 1u << (sv_uni_flags(sv_utf8_get(text + at, len)) & SV_UC_MASK);
}

static inline size_t run(const char *text, size_t n, size_t at, unsigned mask)
{
    int len;
    while (at < n && class_at(text, at, &len) & mask)
        at += (size_t)len;
    return at;
}

/* 's 't 're 've 'm 'll 'd at an apostrophe; any_case also takes capitals and U+017F, which folds to
 * s. */
static size_t contraction(const char *text, size_t n, size_t at, bool any_case)
{
    const char *s = text + at + 1;
    size_t left = n - at - 1;
    char a, b;

    if (!left)
        return 0;
    if (any_case && left >= 2 && (uint8_t)s[0] == 0xC5 && (uint8_t)s[1] == 0xBF)
        return at + 3;
    a = s[0];
    b = left > 1 ? s[1] : 0;
    if (any_case) { /* exact for these letters: 32 below them are the capitals */
        a = a >= 'A' && a <= 'Z' ? (char)(a + 32) : a;
        b = b >= 'A' && b <= 'Z' ? (char)(b + 32) : b;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return at + 3;
    return 0;
}

static size_t digits(const char *text, size_t n, size_t at, int max)
{
    int len;
    for (int i = 0; (max == 0 || i < max) && at < n && class_at(text, at, &len) & BIT(N); i++)
        at += (size_t)len;
    return at;
}

/* \s*[\r\n]+ (where newlines is set), \s+(?!\S), \s+ - in this order, at white space. */
static size_t white(const char *text, size_t n, size_t at, bool newlines)
{
    size_t p = at, last = at, newline_end = 0;

    while (p < n) {
        int len;
        if (!(class_at(text, p, &len) & BIT(SPACE)))
            break;
        last = p;
        p += (size_t)len;
        if (text[last] == '\n' || text[last] == '\r')
            newline_end = p;
    }
    if (newlines && newline_end)
        return newline_end;
    return p == n || last == at ? p : last;
}

/* ` ?[^\s\p{L}\p{N}]+` and what may follow it. 0: no match. */
static size_t punctuation(const char *text, size_t n, size_t at, unsigned mask, bool newlines,
                          bool slash)
{
    size_t p = text[at] == ' ' ? at + 1 : at, end = run(text, n, p, mask);

    if (end == p)
        return 0;
    while (newlines && end < n &&
           (text[end] == '\r' || text[end] == '\n' || (slash && text[end] == '/')))
        end++;
    return end;
}

/* ---------------------------------------------------------------- the families */

static size_t gpt2_next(const char *text, size_t n, size_t at)
{
    const unsigned other = ~(SV_UC_LETTERS | BIT(N) | BIT(SPACE));
    size_t p = at, end;
    unsigned c;
    int len;

    if (text[at] == '\'' && (end = contraction(text, n, at, false)) != 0)
        return end;
    if (text[at] == ' ' && at + 1 < n)
        p = at + 1;
    c = class_at(text, p, &len);
    if (c & BIT(SPACE))
        return white(text, n, at, false);
    return run(text, n, p + (size_t)len,
               c & SV_UC_LETTERS ? SV_UC_LETTERS
               : c & BIT(N)      ? BIT(N)
                                 : other);
}

static size_t words_next(const struct sv_scanner *sc, const char *text, size_t n, size_t at)
{
    const unsigned letters = SV_UC_LETTERS | (sc->marks ? BIT(M) : 0);
    size_t end, next;
    unsigned c;
    int len, len2;

    if (text[at] == '\'' && (end = contraction(text, n, at, true)) != 0)
        return end;
    c = class_at(text, at, &len);
    next = at + (size_t)len;
    if (c & letters)
        return run(text, n, next, letters);
    if (c & BIT(N))
        return digits(text, n, at, sc->max_digits);
    if (text[at] != '\r' && text[at] != '\n' && next < n && class_at(text, next, &len2) & letters)
        return run(text, n, next + (size_t)len2, letters);
    end = punctuation(text, n, at, ~(letters | BIT(N) | BIT(SPACE)), true, sc->slash);
    return end ? end : white(text, n, at, true);
}

/* UPPER*LOWER+ from p; 0 without a match. The last character of the upper run that is also a lower
 * one serves as LOWER+ when no lowercase letter follows. */
static size_t cased_low(const char *text, size_t n, size_t p)
{
    size_t back = 0;
    unsigned c = 0;
    int len;

    while (p < n && (c = class_at(text, p, &len)) & IS_UPPER) {
        p += (size_t)len;
        if (c & IS_BOTH)
            back = p;
    }
    if (p < n && c & BIT(LL))
        return run(text, n, p, IS_LOWER);
    return back;
}

/* UPPER+LOWER* from p. */
static size_t cased_up(const char *text, size_t n, size_t p)
{
    size_t end = run(text, n, p, IS_UPPER);
    return end == p ? 0 : run(text, n, end, IS_LOWER);
}

static size_t cased_word(const char *text, size_t n, size_t at, unsigned c, int len)
{
    bool prefix = !(c & (SV_UC_LETTERS | BIT(N))) && text[at] != '\r' && text[at] != '\n';
    bool letter = (c & (SV_UC_LETTERS | BIT(M))) != 0;
    size_t end = 0;

    if (prefix)
        end = cased_low(text, n, at + (size_t)len);
    if (!end && letter)
        end = cased_low(text, n, at);
    if (!end && prefix)
        end = cased_up(text, n, at + (size_t)len);
    if (!end && letter)
        end = cased_up(text, n, at);
    return end;
}

static size_t cased_next(const struct sv_scanner *sc, const char *text, size_t n, size_t at)
{
    size_t end, more;
    unsigned c;
    int len;

    c = class_at(text, at, &len);
    if (c & BIT(N))
        return digits(text, n, at, sc->max_digits);
    end = cased_word(text, n, at, c, len);
    if (end) {
        if (sc->suffix && end < n && text[end] == '\'' &&
            (more = contraction(text, n, end, true)) != 0)
            end = more;
        return end;
    }
    end = punctuation(text, n, at, ~(SV_UC_LETTERS | BIT(N) | BIT(SPACE)), true, sc->slash);
    return end ? end : white(text, n, at, true);
}

size_t sv_scan_next(const struct sv_scanner *sc, const char *text, size_t n, size_t at)
{
    switch (sc->kind) {
    case SV_SCAN_GPT2:
        return gpt2_next(text, n, at);
    case SV_SCAN_WORDS:
        return words_next(sc, text, n, at);
    case SV_SCAN_CASED:
        return cased_next(sc, text, n, at);
    case SV_SCAN_DIGITS: {
        size_t end = digits(text, n, at, sc->max_digits);
        return end > at ? end : 0;
    }
    case SV_SCAN_NONE:
        break;
    }
    return 0;
}
