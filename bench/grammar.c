/*
 * grammar.c - the cost of grammars: compiling, new masks, cached masks, advancing by tokens.
 *
 * build/bench/grammar [rounds]. The vocabulary is made here: 151,936 tokens with the shares of
 * words, code, punctuation, spaces and scripts that published ones have, so that nothing has to be
 * downloaded. Prints CSV: what, median, 99th percentile and longest, in microseconds. Must not: be
 * read as the speed of an engine, which overlaps this with the model.
 */
#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#define N_TOKENS 151936
#define MAX_SAMPLES 20000

/* ---------------------------------------------------------------- a vocabulary */

struct pieces {
    struct sv_buf text;
    uint32_t at[N_TOKENS + 1];
    int32_t n;
};

static void end_piece(struct pieces *p)
{
    if (p->n < N_TOKENS)
        p->at[++p->n] = (uint32_t)p->text.len;
    p->text.len = p->at[p->n];
}

static void syllables(struct pieces *p, struct sv_rng *r, int n)
{
    static const char onset[] = "bcdfghjklmnprstvwz", vowel[] = "aeiouaeiy", coda[] = "nrstlmd";

    for (int i = 0; i < n; i++) {
        sv_buf_append(&p->text, &onset[sv_rng_below(r, sizeof onset - 1)], 1);
        sv_buf_append(&p->text, &vowel[sv_rng_below(r, sizeof vowel - 1)], 1);
        if (sv_rng_below(r, 2))
            sv_buf_append(&p->text, &coda[sv_rng_below(r, sizeof coda - 1)], 1);
    }
}

/* A word: mostly with a space before it, some capitalised, some as in code. */
static void word(struct pieces *p, struct sv_rng *r)
{
    uint32_t kind = sv_rng_below(r, 20);
    size_t at;

    if (kind < 10)
        sv_buf_lit(&p->text, " ");
    else if (kind == 10)
        sv_buf_append(&p->text, &"_.\"/($-'<["[sv_rng_below(r, 10)], 1);
    at = p->text.len;
    syllables(p, r, 1 + (int)sv_rng_below(r, 4));
    if (kind % 4 == 0)
        p->text.data[at] -= 32;
    if (kind == 11) {
        sv_buf_lit(&p->text, "_");
        syllables(p, r, 1);
    }
}

static void punctuation(struct pieces *p, struct sv_rng *r)
{
    static const char marks[] = "\"\"\"'':,;.(){}[]<>=+-*/\\|&!?#@$%^~`_ \n\t";
    uint32_t n = 2 + sv_rng_below(r, 3);

    for (uint32_t i = 0; i < n; i++)
        sv_buf_append(&p->text, &marks[sv_rng_below(r, sizeof marks - 1)], 1);
}

static void put_char(struct pieces *p, uint32_t c)
{
    if (c < 0x800)
        sv_buf_printf(&p->text, "%c%c", 0xC0 | (int)(c >> 6), 0x80 | (int)(c & 0x3F));
    else
        sv_buf_printf(&p->text, "%c%c%c", 0xE0 | (int)(c >> 12), 0x80 | (int)(c >> 6 & 0x3F),
                      0x80 | (int)(c & 0x3F));
}

/* A word of another script: Chinese, Korean, Cyrillic, Arabic, Latin with accents. */
static void foreign(struct pieces *p, struct sv_rng *r)
{
    static const struct {
        uint32_t first, n;
    } scripts[] = {{0x4E00, 3000}, {0x4E00, 3000}, {0xAC00, 2000},
                   {0x410, 64},    {0x627, 36},    {0xC0, 64}};
    uint32_t script = sv_rng_below(r, 6), n = 1 + sv_rng_below(r, script < 3 ? 3 : 6);

    if (script > 2 && sv_rng_below(r, 2))
        sv_buf_lit(&p->text, " ");
    for (uint32_t i = 0; i < n; i++)
        put_char(p, scripts[script].first + sv_rng_below(r, scripts[script].n));
}

static void make_pieces(struct pieces *p)
{
    struct sv_rng r = {7};

    sv_buf_init(&p->text);
    for (int c = 0; c < 256; c++) {
        sv_buf_printf(&p->text, "%c", c);
        end_piece(p);
    }
    for (int n = 2; n <= 80; n++) {
        for (int i = 0; i < n; i++)
            sv_buf_lit(&p->text, " ");
        end_piece(p);
    }
    while (p->n < N_TOKENS - 1) {
        uint32_t kind = sv_rng_below(&r, 100);
        if (kind < 62)
            word(p, &r);
        else if (kind < 66)
            punctuation(p, &r);
        else
            foreign(p, &r);
        end_piece(p);
    }
    end_piece(p); /* the one that ends */
}

static const char *piece_bytes(void *arg, int32_t id, size_t *n)
{
    const struct pieces *p = arg;

    *n = p->at[id + 1] - p->at[id];
    return p->text.data + p->at[id];
}

/* ---------------------------------------------------------------- samples */

struct samples {
    double us[MAX_SAMPLES];
    int n;
};

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void report(const char *what, struct samples *s)
{
    qsort(s->us, (size_t)s->n, sizeof *s->us, compare);
    printf("%s,%d,%.3f,%.3f,%.3f\n", what, s->n, s->us[s->n / 2], s->us[s->n * 99 / 100],
           s->us[s->n - 1]);
    s->n = 0;
}

static void add(struct samples *s, int64_t ns)
{
    if (s->n < MAX_SAMPLES)
        s->us[s->n++] = (double)ns / 1000;
}

static void must(int code, const struct sv_err *err)
{
    if (code == SV_OK)
        return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

/* ---------------------------------------------------------------- what is measured */

static const char json[] =
    "root   ::= value\n"
    "value  ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" ws (member (\",\" ws member)*)? \"}\" ws\n"
    "member ::= string \":\" ws value ws\n"
    "array  ::= \"[\" ws (value ws (\",\" ws value ws)*)? \"]\" ws\n"
    "string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}))* \"\\\"\"\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)?\n"
    "ws     ::= [ \\n\\t]*\n";

static struct sv_vocab *vocab;
static uint32_t mask[(N_TOKENS + 31) / 32];

static int64_t timed_mask(struct sv_matcher *m)
{
    int64_t start = sv_clock_ns();

    sv_matcher_mask(m, mask);
    return sv_clock_ns() - start;
}

static struct sv_matcher *matcher(struct sv_grammar *g)
{
    struct sv_matcher *m;
    struct sv_err err;

    must(sv_matcher_open(&m, g, vocab, &err), &err);
    return m;
}

static void take(struct sv_matcher *m, const char *text)
{
    for (; *text; text++) {
        if (!sv_matcher_advance(m, (uint8_t)*text)) {
            fprintf(stderr, "not taken: %s\n", text);
            exit(1);
        }
    }
}

/* Fresh grammars: the first mask of a kind of place, then the same kind of place ever deeper. */
static void bench_json(int rounds)
{
    static struct samples compile, open, first_string, first_number, string, number, after, seen;
    static const char *const opens[] = {"{\"k\":", "[", "[1,", "{\"a\":[],\"b\":", "[[],"};
    struct sv_rng r = {3};
    struct sv_err err;

    for (int k = 0; k < rounds; k++) {
        struct sv_grammar *g;
        struct sv_matcher *m;
        int64_t start = sv_clock_ns();
        must(sv_grammar_gbnf(&g, json, sizeof json - 1, &err), &err);
        add(&compile, sv_clock_ns() - start);
        start = sv_clock_ns();
        m = matcher(g);
        add(&open, sv_clock_ns() - start);
        take(m, "[\"a");
        add(&first_string, timed_mask(m));
        take(m, "\",12");
        add(&first_number, timed_mask(m));
        take(m, ",");
        for (int depth = 0; depth < 60; depth++) {
            uint64_t mark;
            take(m, opens[sv_rng_below(&r, 5)]);
            mark = sv_matcher_mark(m);
            take(m, "\"x");
            add(&string, timed_mask(m));
            add(&seen, timed_mask(m));
            take(m, "\"");
            add(&after, timed_mask(m));
            sv_matcher_back(m, mark);
            take(m, "3");
            add(&number, timed_mask(m));
            sv_matcher_back(m, mark);
        }
        sv_matcher_close(m);
        sv_grammar_unref(g);
    }
    report("json compile", &compile);
    report("json first matcher", &open);
    report("json first mask in a string", &first_string);
    report("json first mask in a number", &first_number);
    report("json mask in a string at a new place", &string);
    report("json mask in a number at a new place", &number);
    report("json mask after a value at a new place", &after);
    report("mask seen before", &seen);
}

/* Every mask along a text, byte by byte: new, and seen again in another answer. The grammar is read
 * afresh each round. */
static void bench_text(const char *what, bool schema, const char *source, const char *text,
                       int rounds)
{
    static struct samples compile, fresh, again;
    struct sv_err err;
    char name[100];

    for (int k = 0; k < rounds; k++) {
        struct sv_grammar *g;
        int64_t start = sv_clock_ns();
        if (schema)
            must(sv_grammar_schema(&g, source, strlen(source), NULL, &err), &err);
        else
            must(sv_grammar_regex(&g, source, strlen(source), &err), &err);
        add(&compile, sv_clock_ns() - start);
        for (int pass = 0; pass < 2; pass++) {
            struct sv_matcher *m = matcher(g);
            for (const char *p = text; *p; p++) {
                char one[2] = {*p};
                add(pass ? &again : &fresh, timed_mask(m));
                take(m, one);
            }
            sv_matcher_close(m);
        }
        sv_grammar_unref(g);
    }
    snprintf(name, sizeof name, "%s compile", what);
    report(name, &compile);
    snprintf(name, sizeof name, "%s new masks", what);
    report(name, &fresh);
    snprintf(name, sizeof name, "%s masks in a second answer", what);
    report(name, &again);
}

static const char person[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":"
    "\"integer\"},\"mail\":{\"type\":\"string\",\"maxLength\":60},\"tags\":{\"type\":\"array\","
    "\"items\":{\"type\":\"string\"}},\"kind\":{\"enum\":[\"friend\",\"family\",\"other\"]},"
    "\"spouse\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},\"required\":[\"name\",\"age\","
    "\"mail\",\"tags\",\"kind\",\"spouse\"],\"additionalProperties\":false}";
static const char person_text[] =
    "{\"name\": \"Ada Lovelace\", \"age\": 36, \"mail\": \"ada.of.lovelace@example.org\", \"tags\": "
    "[\"x\", \"calculus\"], \"kind\": \"family\", \"spouse\": {\"name\": \"William\", \"age\": 41, "
    "\"mail\": \"w.king@example.org\", \"tags\": [], \"kind\": \"other\", \"spouse\": null}}";

/* Tokens taken at random from the masks, as a text of JSON grows; per token, in runs of 64. */
static void bench_advance(int rounds)
{
    static struct samples advance, masks;
    struct sv_grammar *g;
    struct sv_rng r = {5};
    struct sv_err err;

    must(sv_grammar_gbnf(&g, json, sizeof json - 1, &err), &err);
    for (int k = 0; k < rounds * 4; k++) {
        struct sv_matcher *m = matcher(g);
        int32_t ids[64], n = 0;
        int64_t start;
        take(m, "{\"text\":\"");
        while (n < 64) {
            int32_t id = (int32_t)sv_rng_below(&r, N_TOKENS - 1);
            add(&masks, timed_mask(m));
            while (!(mask[id / 32] >> (id % 32) & 1))
                id = (id + 1) % N_TOKENS;
            if (!sv_matcher_advance(m, id) || sv_matcher_ended(m))
                break;
            ids[n++] = id;
        }
        sv_matcher_back(m, sv_matcher_mark(m) - (uint64_t)n);
        start = sv_clock_ns();
        for (int32_t i = 0; i < n; i++)
            sv_matcher_advance(m, ids[i]);
        if (n)
            add(&advance, (sv_clock_ns() - start) / n);
        sv_matcher_close(m);
    }
    report("json mask along random tokens", &masks);
    report("advance by a token", &advance);
    sv_grammar_unref(g);
}

int main(int argc, char **argv)
{
    static struct pieces pieces;
    static struct samples open;
    const int32_t end = N_TOKENS - 1;
    int rounds = argc > 1 ? atoi(argv[1]) : 20;
    struct sv_err err;
    int64_t start;

    make_pieces(&pieces);
    start = sv_clock_ns();
    must(sv_vocab_open(&vocab, N_TOKENS, piece_bytes, &pieces, &end, 1, &err), &err);
    add(&open, sv_clock_ns() - start);
    printf("what,samples,median_us,p99_us,longest_us\n");
    report("vocabulary of 151936 tokens", &open);
    bench_json(rounds);
    bench_advance(rounds);
    bench_text("date", false, "\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}Z", "2024-02-29T23:59Z", rounds);
    bench_text("counted regex", false, "\"[^\"\\\\]{0,400}\"", "\"The quick brown fox jumps over",
               rounds);
    bench_text("counted schema", true, "{\"type\":\"string\",\"maxLength\":400}",
               "\"The quick brown fox jumps over", rounds);
    bench_text("schema", true, person, person_text, rounds);
    sv_vocab_close(vocab);
    sv_buf_fini(&pieces.text);
    return 0;
}
