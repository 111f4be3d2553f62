/*
 * words.c - vocabularies for the tests of grammars (words.h).
 *
 * Called by tests/grammar and tests/fuzz. Must not: need a model.
 */
#include "grammar/words.h"

#include <string.h>

const char *const words_common[] = {"{\"",
                                    "\"}",
                                    "\":",
                                    "\",",
                                    "\", \"",
                                    "\": \"",
                                    "\": ",
                                    "{}",
                                    "[]",
                                    "],",
                                    "}]",
                                    "}}",
                                    "]]",
                                    "null",
                                    "true",
                                    "false",
                                    "nul",
                                    "tr",
                                    "alse",
                                    "12",
                                    "123",
                                    "0.",
                                    ".5",
                                    "e+",
                                    "-1",
                                    "1,",
                                    "2]",
                                    "the",
                                    " the",
                                    "a",
                                    "ab",
                                    "abc",
                                    "abcd",
                                    "b",
                                    "bc",
                                    "cab",
                                    "name",
                                    "age",
                                    "foo",
                                    "bar",
                                    "\\\"",
                                    "\\n",
                                    "\\u",
                                    "00e4",
                                    "  ",
                                    "    ",
                                    "\n",
                                    "\n  ",
                                    "\xC3",
                                    "\xC3\xA4",
                                    "\xA4",
                                    "\xE2\x82",
                                    "\xAC",
                                    "\xE2\x82\xAC",
                                    "\xF0\x9F",
                                    "\x98\x80",
                                    "\x9F\x98",
                                    "x\xC3",
                                    "\xA4\"",
                                    "\xA4x",
                                    "<",
                                    "</",
                                    "</th",
                                    "ink>",
                                    "think>",
                                    "</think>",
                                    ">{",
                                    "</think>{\"",
                                    "a</think>b",
                                    "((",
                                    "()",
                                    "))",
                                    ")(",
                                    "+(",
                                    "1+1",
                                    "a)",
                                    "aa",
                                    "aaa",
                                    "aaaa",
                                    "aaaaaaaa",
                                    "aaaaaaaaaaaaaaaa",
                                    "abcabcabcabc",
                                    "abababababababababab",
                                    "            ",
                                    "\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4\xC3\xA4",
                                    "the name of the",
                                    "123456789012",
                                    "aaaaaaaaaaaa\"",
                                    "a\xC3\xA4"
                                    "a\xC3\xA4"
                                    "a\xC3\xA4"
                                    "a\xC3\xA4"
                                    "a\xC3",
                                    "bb",
                                    "ba",
                                    "abab",
                                    "[[",
                                    "[[[["};
const size_t words_n_common = sizeof words_common / sizeof *words_common;

const char *words_bytes(struct words *w, int32_t id, size_t *n)
{
    if (id < 256) {
        w->byte = (char)id;
        *n = 1;
        return &w->byte;
    }
    *n = id < w->end ? strlen(w->list[id - 256]) : 0;
    return id < w->end ? w->list[id - 256] : NULL;
}

static const char *read_bytes(void *arg, int32_t id, size_t *n)
{
    return words_bytes(arg, id, n);
}

void words_open(struct words *w, const char *const *list, size_t n)
{
    struct sv_err err;

    *w = (struct words){.list = list, .n_list = n, .end = 256 + (int32_t)n, .n = 257 + (int32_t)n};
    SV_REQUIRE(sv_vocab_open(&w->vocab, w->n, read_bytes, w, &w->end, 1, &err) == SV_OK);
}

void words_close(struct words *w)
{
    sv_vocab_close(w->vocab);
}

struct words words;

int words_setup(void **state)
{
    (void)state;
    words_open(&words, words_common, words_n_common);
    return 0;
}

int words_teardown(void **state)
{
    (void)state;
    words_close(&words);
    SV_REQUIRE(sv_alloc_live() == 0);
    return 0;
}

static struct sv_matcher *open_matcher(struct words *w, struct sv_grammar *g)
{
    struct sv_matcher *m;
    struct sv_err err;

    SV_REQUIRE(sv_matcher_open(&m, g, w->vocab, &err) == SV_OK);
    return m;
}

size_t words_takes(struct words *w, struct sv_grammar *g, const char *text, size_t n)
{
    struct sv_matcher *m = open_matcher(w, g);
    size_t i = 0;

    while (i < n && sv_matcher_advance(m, (uint8_t)text[i]))
        i++;
    sv_matcher_close(m);
    return i;
}

bool words_matches(struct words *w, struct sv_grammar *g, const char *text, size_t n)
{
    struct sv_matcher *m = open_matcher(w, g);
    size_t i = 0;
    bool may_end;

    while (i < n && sv_matcher_advance(m, (uint8_t)text[i]))
        i++;
    may_end = i == n && sv_matcher_may_end(m);
    sv_matcher_close(m);
    return may_end;
}

void words_check_texts(struct words *w, struct sv_grammar *g, const char *const *yes,
                       const char *const *no)
{
    for (; *yes; yes++) {
        if (!words_matches(w, g, *yes, strlen(*yes)))
            sv_panic("'%s' should match", *yes);
    }
    for (; *no; no++) {
        if (words_matches(w, g, *no, strlen(*no)))
            sv_panic("'%s' should not match", *no);
    }
    sv_grammar_unref(g);
}

void words_check_refused(int (*read)(struct sv_grammar **, const char *, size_t, struct sv_err *),
                         const struct refusal *r, size_t n)
{
    for (size_t i = 0; i < n; i++, r++) {
        struct sv_grammar *g;
        struct sv_err err;
        int code = read(&g, r->text, strlen(r->text), &err);
        if (code != r->code || !strstr(err.msg, r->part) || (r->pos != -2 && err.pos != r->pos))
            sv_panic("%s: %d at %d: %s", r->text, code, (int)err.pos, code ? err.msg : "read");
    }
}

/* Byte by byte, and back. */
static bool takes_bytes(struct words *w, struct sv_matcher *m, int32_t id)
{
    uint64_t mark = sv_matcher_mark(m);
    size_t n, i = 0;
    const char *bytes = words_bytes(w, id, &n);

    while (i < n && sv_matcher_advance(m, (uint8_t)bytes[i]))
        i++;
    sv_matcher_back(m, mark);
    return n > 0 && i == n;
}

void words_check_mask(struct words *w, struct sv_matcher *m)
{
    uint32_t mask[64];

    SV_REQUIRE(w->n <= 64 * 32);
    memset(mask, 0xFF, sizeof mask);
    sv_matcher_mask(m, mask);
    for (int32_t id = 0; id < w->n; id++) {
        bool bit = mask[id / 32] >> (id % 32) & 1;
        bool expected = id == w->end ? sv_matcher_may_end(m) : takes_bytes(w, m, id);
        SV_REQUIRE(bit == expected);
        SV_REQUIRE(sv_matcher_allows(m, id) == expected);
    }
    for (int32_t id = w->n; id % 32; id++)
        SV_REQUIRE(!(mask[id / 32] >> (id % 32) & 1));
}
