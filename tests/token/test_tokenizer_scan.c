/*
 * test_tokenizer_scan.c - the hand-written scanners cut exactly where PCRE2 cuts with the same
 * expression, and the whole tokenizer gives the same ids on the general path.
 *
 * Run by the test runner. Code points that PCRE2's tables do not know yet (or know and ours do not)
 * are left out of the comparison; the test checks that nothing else differs.
 */
#include "tests/token/tok_golden.h"
#include "testing.h"
#include "token/tok.h"

static const char *path_of(const char *name, const char *suffix)
{
    char relative[128];
    snprintf(relative, sizeof relative, "tests/golden/tok/%s%s", name, suffix);
    return sv_test_path(relative);
}

static struct sv_regex compile(const char *pattern)
{
    struct sv_regex re;
    struct sv_err err;
    if (sv_regex_open(&re, pattern, strlen(pattern), false, &err) < 0)
        fail_msg("%s: %s", pattern, err.msg);
    return re;
}

static struct sv_regex_work work(void)
{
    struct sv_regex_work w = {0};
    assert_int_equal(sv_regex_work_init(&w), SV_OK);
    w.budget = UINT64_MAX / 2;
    return w;
}

/* ---------------------------------------------------------------- classes */

enum { N_POINTS = 0x110000 };
static bool differs[N_POINTS]; /* PCRE2 and our table class it differently */

static void compare_class(const char *pattern, unsigned mask, const char *all, size_t n)
{
    struct sv_regex re = compile(pattern);
    struct sv_regex_work w = work();
    uint8_t *in = sv_calloc(N_POINTS, 1);
    size_t at, end, from = 0;
    int n_differ = 0, len;

    assert_non_null(in);
    while (sv_regex_next(&re, &w, all, n, from, &at, &end, NULL) == 1) {
        for (; at < end; at += (size_t)len)
            in[sv_utf8_get(all + at, &len)] = 1;
        from = end;
    }
    for (uint32_t c = 0; c < N_POINTS; c++) {
        bool ours = (mask >> (sv_uni_flags(c) & SV_UC_MASK) & 1) != 0;
        if ((c >= 0xD800 && c < 0xE000) || ours == (in[c] != 0))
            continue;
        differs[c] = true;
        n_differ++;
    }
    print_message("%s: %d code points differ\n", pattern, n_differ);
    sv_free(in);
    sv_regex_work_fini(&w);
    sv_regex_close(&re);
}

/* Fills differs[]; whatever differs must be unassigned for one of the two. */
static void compare_classes(void)
{
    static const struct {
        const char *pattern;
        unsigned mask;
    } classes[] = {{"\\s", SV_UC_BIT(SV_UC_SPACE)},  {"\\p{Lu}", SV_UC_BIT(SV_UC_LU)},
                   {"\\p{Ll}", SV_UC_BIT(SV_UC_LL)}, {"\\p{Lt}", SV_UC_BIT(SV_UC_LT)},
                   {"\\p{Lm}", SV_UC_BIT(SV_UC_LM)}, {"\\p{Lo}", SV_UC_BIT(SV_UC_LO)},
                   {"\\p{M}", SV_UC_BIT(SV_UC_M)},   {"\\p{N}", SV_UC_BIT(SV_UC_N)},
                   {"\\p{P}", SV_UC_BIT(SV_UC_P)},   {"\\p{S}", SV_UC_BIT(SV_UC_S)}};
    struct sv_buf all;
    struct sv_regex cn;
    struct sv_regex_work w = work();

    sv_buf_init(&all);
    for (uint32_t c = 0; c < N_POINTS; c++) {
        char utf8[4];
        if (c < 0xD800 || c >= 0xE000)
            sv_buf_append(&all, utf8, (size_t)sv_utf8_put(c, utf8));
    }
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        compare_class(classes[i].pattern, classes[i].mask, all.data, all.len);
    cn = compile("\\p{Cn}");
    for (uint32_t c = 0; c < N_POINTS; c++) {
        char utf8[4];
        size_t at, end;
        if (!differs[c] || (sv_uni_flags(c) & SV_UC_MASK) == SV_UC_OTHER)
            continue;
        int len = sv_utf8_put(c, utf8);
        if (sv_regex_next(&cn, &w, utf8, (size_t)len, 0, &at, &end, NULL) != 1)
            fail_msg("U+%04X is assigned on both sides and classed differently", c);
    }
    sv_regex_close(&cn);
    sv_regex_work_fini(&w);
    sv_buf_fini(&all);
}

/* ---------------------------------------------------------------- cuts */

/* Drops code points that the two sides class differently. Valid UTF-8 only. */
static void comparable(struct sv_buf *out, const char *text, size_t n)
{
    sv_buf_clear(out);
    for (size_t i = 0; i < n;) {
        int len;
        uint32_t c = sv_utf8_get(text + i, &len);
        if (!differs[c])
            sv_buf_append(out, text + i, (size_t)len);
        i += (size_t)len;
    }
}

static void same_cuts(const char *pattern, const struct sv_scanner *sc, const struct sv_regex *re,
                      struct sv_regex_work *w, const char *text, size_t n)
{
    size_t from = 0;

    while (from < n) {
        size_t at = n, end = n, mine = 0, start = from;
        struct sv_err err;
        int rc = sv_regex_next(re, w, text, n, from, &at, &end, &err);
        if (rc < 0)
            fail_msg("%s: %s", pattern, err.msg);
        while (start < n && !(mine = sv_scan_next(sc, text, n, start)))
            do
                start++;
            while (start < n && ((uint8_t)text[start] & 0xC0) == 0x80);
        if (!rc && start >= n)
            return;
        if (!rc || start != at || mine != end) {
            struct sv_buf shown;
            sv_buf_init(&shown);
            sv_json_quote(&shown, text, n);
            fail_msg("%s, from %zu: scanner [%zu, %zu), PCRE2 [%zu, %zu) of %s", pattern, from,
                     start, mine, at, end, shown.data);
        }
        from = end;
    }
}

/* Short texts from code points that the expressions tell apart. */
static void random_text(struct sv_rng *r, struct sv_buf *out)
{
    static const char *const bits[] = {
        " ",      " ",      "  ",       "\n",     "\r\n",   "\r",         "\t",         "\u00a0",
        "\u3000", "\u2028", "\xC2\x85", "a",      "b",      "S",          "T",          "'",
        "'s",     "'S",     "'ſ",       "'re",    "'V",     "'l",         "'ll",        "'d",
        "'M",     "1",      "23",       "\u0663", "\u00bd", "Ⅷ",          "é",          "É",
        "ǅ",      "ʰ",      "ª",        "あ",     "漢",     "ท",          "\u0301",     "\u0e31",
        "\u20e3", "!",      "/",        "//",     "_",      "€",          "—",          "😀",
        "\u200b", "\u200d", "\ufffd",   "\u180e", "\x01",   "\U000e0101", "\U0001d7d8", "ſ",
        "K",      "ß"};
    uint32_t n = 1 + sv_rng_below(r, 14);

    sv_buf_clear(out);
    while (n--) {
        char utf8[4];
        uint32_t c = sv_rng_below(r, N_POINTS);
        const char *bit = bits[sv_rng_below(r, sizeof bits / sizeof bits[0])];
        if (sv_rng_below(r, 12) || (c >= 0xD800 && c < 0xE000) || differs[c])
            sv_buf_append(out, bit, strlen(bit));
        else
            sv_buf_append(out, utf8, (size_t)sv_utf8_put(c, utf8));
    }
}

static void scanners(void **state)
{
    struct golden_corpus corpus;
    struct sv_regex_work w = work();
    struct sv_buf text, repaired;

    (void)state;
    compare_classes();
    sv_buf_init(&text);
    sv_buf_init(&repaired);
    golden_corpus_open(&corpus, path_of("corpus", ".bin"));
    for (int p = 0; sv_scan_pattern(p); p++) {
        const char *pattern = sv_scan_pattern(p);
        struct sv_regex re = compile(pattern);
        struct sv_scanner sc;
        struct sv_rng r = {.state = 77 + (uint64_t)p};
        assert_true(sv_scan_known(pattern, strlen(pattern), &sc));
        for (uint32_t i = 0; i < corpus.n_docs; i++) {
            struct golden_doc d = golden_doc(&corpus, i);
            sv_buf_clear(&repaired);
            sv_utf8_repair(&repaired, d.text, d.n);
            comparable(&text, repaired.data ? repaired.data : "", repaired.len);
            same_cuts(pattern, &sc, &re, &w, text.data ? text.data : "", text.len);
        }
        for (int i = 0; i < 30000; i++) {
            random_text(&r, &text);
            same_cuts(pattern, &sc, &re, &w, text.data, text.len);
        }
        sv_regex_close(&re);
    }
    sv_map_close(&corpus.map);
    sv_buf_fini(&text);
    sv_buf_fini(&repaired);
    sv_regex_work_fini(&w);
}

/* ---------------------------------------------------------------- the general path, end to end */

/* The same expression inside (?:...) is not a known one. */
static struct sv_tokenizer *general_tokenizer(const char *name)
{
    struct sv_err err;
    struct sv_tokenizer *tok;
    json_t *d = sv_json_load(path_of(name, ".json"), 1 << 26, &err), *pattern;
    char *text;

    assert_non_null(d);
    pattern = json_object_get(
        json_array_get(json_object_get(json_object_get(d, "pre_tokenizer"), "pretokenizers"), 0),
        "pattern");
    json_t *wrapped = json_sprintf("(?:%s)", json_string_value(json_object_get(pattern, "Regex")));
    assert_int_equal(json_object_set_new(pattern, "Regex", wrapped), 0);
    text = json_dumps(d, JSON_COMPACT);
    if (sv_tokenizer_parse(&tok, text, strlen(text), &err) < 0)
        fail_msg("%s: %s", name, err.msg);
    assert_int_equal(tok->split[0].scan.kind, SV_SCAN_NONE);
    sv_free(text);
    json_decref(d);
    return tok;
}

static void general_path(void **state)
{
    static const char *const names[] = {"qwen", "llama3", "o200k", "qwen35"};
    struct golden_corpus corpus;

    (void)state;
    golden_corpus_open(&corpus, path_of("corpus", ".bin"));
    for (int t = 0; t < 4; t++) {
        struct sv_tokenizer *tok = general_tokenizer(names[t]);
        struct sv_enc_scratch *s = sv_enc_scratch_new();
        struct sv_ids ids = {0};
        struct golden_ids g;
        golden_ids_open(&g, path_of(names[t], ".ids.bin"));
        for (uint32_t i = 0; i < corpus.n_docs; i++) {
            struct golden_doc d = golden_doc(&corpus, i);
            struct golden_row want = golden_row(&g, i);
            ids.n = 0;
            assert_int_equal(sv_tokenizer_encode(tok, s, d.text, d.n, SV_ENC_SPECIAL, &ids, NULL),
                             SV_OK);
            if (ids.n != want.n_ids || golden_ids_hash(ids.id, ids.n) != want.ids_hash)
                fail_msg("%s, document %u: ids differ", names[t], i);
        }
        sv_map_close(&g.map);
        sv_ids_fini(&ids);
        sv_enc_scratch_free(s);
        sv_tokenizer_close(tok);
    }
    sv_map_close(&corpus.map);
}

SV_TEST_MAIN(cmocka_unit_test(scanners), cmocka_unit_test(general_path))
