/*
 * test_tokenizer_limits.c - pathological texts and expressions cost work in proportion to their
 * length, and streaming gives out whole code points for any bytes.
 *
 * Run by the test runner. Work is counted (merge look-ups, regex budget), not timed; the runner's
 * time limit catches what would be quadratic.
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

static void repeat(struct sv_buf *b, const char *bit, size_t n_bytes)
{
    sv_buf_clear(b);
    while (b->len < n_bytes)
        sv_buf_append(b, bit, strlen(bit));
}

/* Encodes and decodes b; returns merge look-ups per byte. */
static double round_trip(const struct sv_tokenizer *tok, struct sv_enc_scratch *s,
                         const struct sv_buf *b)
{
    struct sv_ids ids = {0};
    struct sv_buf out;
    struct sv_err err;
    uint64_t before = s->n_steps;

    sv_buf_init(&out);
    if (sv_tokenizer_encode(tok, s, b->data, b->len, SV_ENC_SPECIAL, &ids, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sv_tokenizer_decode(tok, ids.id, ids.n, false, &out), SV_OK);
    assert_int_equal(out.len, b->len);
    assert_memory_equal(out.data, b->data, b->len);
    sv_buf_fini(&out);
    sv_ids_fini(&ids);
    return (double)(s->n_steps - before) / (double)b->len;
}

static void long_words(void **state)
{
    static const char *const bits[] = {"a", "ab", " ",   "\n",         "\r\n ",        "!",
                                       "'", "0",  "漢",  "the",        "\xCC\x81",     "e\xCC\x81",
                                       "A", "ʰA", "/\n", "\t\xC2\xA0", "<|im_start|>", "<|im_star",
                                       "Éa"};
    struct sv_buf b;

    (void)state;
    sv_buf_init(&b);
    for (int t = 0; t < N_GOLDEN; t++) {
        struct sv_tokenizer *tok = golden_tokenizer(path_of(golden_names[t], ".json"));
        struct sv_enc_scratch *s = sv_enc_scratch_new();
        tok->nfc = false; /* round trips must be exact; NFC has its own test */
        for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
            double steps;
            repeat(&b, bits[i], 60000);
            steps = round_trip(tok, s, &b);
            if (steps > 6)
                fail_msg("%s, '%s': %.1f look-ups a byte", golden_names[t], bits[i], steps);
        }
        sv_enc_scratch_free(s);
        sv_tokenizer_close(tok);
    }
    sv_buf_fini(&b);
}

static void a_megabyte_of_a(void **state)
{
    struct sv_tokenizer *tok = golden_tokenizer(path_of("qwen", ".json"));
    struct sv_enc_scratch *s = sv_enc_scratch_new();
    struct sv_buf b;

    (void)state;
    sv_buf_init(&b);
    repeat(&b, "a", 1 << 20);
    assert_true(round_trip(tok, s, &b) < 6);
    sv_buf_fini(&b);
    sv_enc_scratch_free(s);
    sv_tokenizer_close(tok);
}

/* The general path must also see long words whole. */
static void long_matches(void **state)
{
    static const char *const patterns[] = {"(?:\\p{L}+|\\s+(?!\\S)|.)", "a+(?=b)|a+", "(?:a|b)+",
                                           "[^x]+", "\\s*[\\r\\n]+|\\s+|\\S+"};
    struct sv_buf b;

    (void)state;
    sv_buf_init(&b);
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        static const size_t lengths[] = {1, 1000, 1023, 1024, 1025, 2048, 5000, 300000};
        struct sv_regex re;
        struct sv_regex_work w = {0};
        struct sv_err err;
        assert_int_equal(sv_regex_work_init(&w), SV_OK);
        if (sv_regex_open(&re, patterns[i], strlen(patterns[i]), false, &err) < 0)
            fail_msg("%s: %s", patterns[i], err.msg);
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            size_t at, end;
            if (patterns[i][0] == '(' && patterns[i][3] == 'a' && lengths[k] > 5000)
                continue; /* PCRE2 keeps a frame for each turn of a group: limited by memory */
            repeat(&b, "a", lengths[k]);
            w.budget = 1 << 24;
            int rc = sv_regex_next(&re, &w, b.data, b.len, 0, &at, &end, &err);
            if (rc != 1)
                fail_msg("%s, %zu: %d %s", patterns[i], lengths[k], rc,
                         rc < 0 ? err.msg : "no match");
            assert_int_equal(at, 0);
            assert_int_equal(end, lengths[k]);
        }
        sv_regex_work_fini(&w);
        sv_regex_close(&re);
    }
    sv_buf_fini(&b);
}

/* Expressions that would need quadratic or exponential time are stopped with an error. */
static void hostile_patterns(void **state)
{
    static const char *const patterns[] = {"a+[bc]",      "(a+)+[bc]",         "(a|a)*[bc]",
                                           "(?:a*)*[bc]", "(?=a*c)x|(?=a*d)y", "(a?){200}a{200}b"};
    struct sv_buf b;

    (void)state;
    sv_buf_init(&b);
    repeat(&b, "a", 1 << 20);
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        struct sv_regex re;
        struct sv_regex_work w = {0};
        struct sv_err err;
        size_t at, end;
        assert_int_equal(sv_regex_work_init(&w), SV_OK);
        if (sv_regex_open(&re, patterns[i], strlen(patterns[i]), false, &err) < 0)
            fail_msg("%s: %s", patterns[i], err.msg);
        w.budget = (uint64_t)b.len * 64;
        int rc = sv_regex_next(&re, &w, b.data, b.len, 0, &at, &end, &err);
        if (rc != SV_EUNSUPPORTED)
            fail_msg("%s: %d", patterns[i], rc);
        print_message("%s: %s\n", patterns[i], err.msg);
        sv_regex_work_fini(&w);
        sv_regex_close(&re);
    }
    sv_buf_fini(&b);
}

/* An added token that takes the white space around it, in a text of nothing else: each run is
 * walked once. */
static void runs_of_white_space(void **state)
{
    static const char format[] =
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"decoder\":{\"type\":"
        "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
        "\"added_tokens\":[{"
        "\"id\":1,\"content\":\" \",\"single_word\":false,\"lstrip\":%s,\"rstrip\":%s,"
        "\"normalized\":false,"
        "\"special\":false}]}";
    struct sv_buf text;

    (void)state;
    sv_buf_init(&text);
    repeat(&text, " ", 1 << 20);
    for (int right = 0; right < 2; right++) {
        struct sv_tokenizer *tok;
        struct sv_ids ids = {0};
        struct sv_err err;
        char file[512];
        snprintf(file, sizeof file, format, right ? "false" : "true", right ? "true" : "false");
        if (sv_tokenizer_parse(&tok, file, strlen(file), &err) < 0)
            fail_msg("%s", err.msg);
        assert_int_equal(sv_tokenizer_encode(tok, NULL, text.data, text.len, 0, &ids, &err), SV_OK);
        assert_true(ids.n > 0 && ids.id[0] == 1);
        sv_ids_fini(&ids);
        sv_tokenizer_close(tok);
    }
    sv_buf_fini(&text);
}

/* ---------------------------------------------------------------- NFC */

/* Long runs of marks in the worst order: sorting must not be quadratic, and the result must be
 * ordered. */
static void many_marks(void **state)
{
    struct sv_enc_scratch *s = sv_enc_scratch_new();
    struct sv_buf in, out;
    bool changed = false;

    (void)state;
    sv_buf_init(&in);
    sv_buf_init(&out);
    sv_buf_append(&in, "x", 1);
    for (int i = 0; i < 300000; i++)
        sv_buf_append(&in, i % 2 ? "\xCC\xA3" : "\xCC\x81",
                      2); /* U+0301 (230), U+0323 (220) in turn */
    assert_int_equal(sv_nfc(s, in.data, in.len, &out, &changed), SV_OK);
    assert_true(changed);
    assert_int_equal(out.len, in.len);
    assert_memory_equal(out.data + 1, "\xCC\xA3\xCC\xA3", 4);
    assert_memory_equal(out.data + out.len - 4, "\xCC\x81\xCC\x81", 4);
    /* Four classes, 240, 233, 232 and 230, the last one in front afterwards. */
    sv_buf_clear(&in);
    sv_buf_clear(&out);
    sv_buf_append(&in, "x", 1);
    for (int i = 0; i < 10; i++)
        sv_buf_append(&in, "\xCD\x85\xCD\x9C\xCC\x95\xCC\x81", 8);
    assert_int_equal(sv_nfc(s, in.data, in.len, &out, &changed), SV_OK);
    assert_int_equal(out.len, in.len);
    for (int i = 0; i < 40; i++)
        assert_memory_equal(out.data + 1 + 2 * i, &"\xCC\x81\xCC\x95\xCD\x9C\xCD\x85"[i / 10 * 2],
                            2);
    sv_buf_clear(&in);
    sv_buf_clear(&out);
    repeat(&in, "e\xCC\x81", 300000);
    assert_int_equal(sv_nfc(s, in.data, in.len, &out, &changed), SV_OK);
    assert_int_equal(out.len, in.len / 3 * 2);
    sv_buf_clear(&out);
    assert_int_equal(sv_nfc(s, "caf\xC3\xA9 abc", 9, &out, &changed), SV_OK);
    assert_false(changed);
    assert_int_equal(out.len, 0);
    sv_buf_fini(&in);
    sv_buf_fini(&out);
    sv_enc_scratch_free(s);
}

/* ---------------------------------------------------------------- streaming */

/* U+FFFD for each maximal invalid sequence, computed the slow way: by trying every length at every
 * place. */
static void slow_replace(struct sv_buf *out, const uint8_t *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t take = 0, k;
        for (k = 1; k <= 4 && i + k <= n && !take; k++) {
            json_t *v = json_stringn((const char *)s + i, k);
            if (v && (s[i] < 0x80 ? k == 1 : true))
                take = k;
            json_decref(v);
        }
        if (take) {
            sv_buf_append(out, s + i, take);
            i += take;
            continue;
        }
        /* The longest beginning that some continuation would make valid. */
        size_t best = 1;
        for (k = 2; k <= 3 && i + k <= n; k++) {
            uint8_t t[4];
            bool could = false;
            memcpy(t, s + i, k);
            for (size_t total = k + 1; total <= 4 && !could; total++) {
                for (size_t f = k; f < total; f++)
                    t[f] = 0x80;
                json_t *v = json_stringn((const char *)t, total);
                could = v != NULL;
                json_decref(v);
            }
            if (could)
                best = k;
        }
        sv_buf_append(out, "\xEF\xBF\xBD", 3);
        i += best;
    }
}

/* All single bytes are tokens of these vocabularies, so random ids make random bytes. */
static void streaming(void **state)
{
    struct sv_tokenizer *tok = golden_tokenizer(path_of("qwen", ".json"));
    static const uint8_t edge[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                   0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED,
                                   0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
    struct sv_rng r = {.state = 5};
    struct sv_buf bytes, stream, want;

    (void)state;
    sv_buf_init(&bytes);
    sv_buf_init(&stream);
    sv_buf_init(&want);
    for (int round = 0; round < 20000; round++) {
        struct sv_detok d;
        uint32_t n = 1 + sv_rng_below(&r, 12);
        sv_buf_clear(&bytes);
        sv_buf_clear(&stream);
        sv_buf_clear(&want);
        sv_detok_init(&d, tok, true);
        while (n--) {
            int32_t id = tok->byte_id[edge[sv_rng_below(&r, sizeof edge)]];
            size_t len, before = stream.len;
            if (sv_rng_below(&r, 8) == 0) /* some longer tokens, specials and unknown ids too */
                id = (int32_t)sv_rng_below(&r, 4200) - 50;
            const char *s = sv_tokenizer_bytes(tok, id, &len);
            if (len && !sv_tokenizer_is_special(tok, id))
                sv_buf_append(&bytes, s, len);
            sv_detok_push(&d, id, &stream);
            assert_true(sv_utf8_valid(stream.data ? stream.data + before : "",
                                      stream.len - before) == stream.len - before);
        }
        sv_detok_end(&d, &stream);
        slow_replace(&want, (const uint8_t *)(bytes.data ? bytes.data : ""), bytes.len);
        assert_int_equal(stream.len, want.len);
        if (want.len)
            assert_memory_equal(stream.data, want.data, want.len);
        sv_buf_clear(&want);
        sv_utf8_repair(&want, bytes.data ? bytes.data : "", bytes.len);
        assert_int_equal(stream.len, want.len);
        if (want.len)
            assert_memory_equal(stream.data, want.data, want.len);
    }
    sv_buf_fini(&bytes);
    sv_buf_fini(&stream);
    sv_buf_fini(&want);
    sv_tokenizer_close(tok);
}

/* Once the buffer has grown, pushing allocates nothing; nor does encoding with a used scratch. */
static void no_allocation(void **state)
{
    struct sv_tokenizer *tok = golden_tokenizer(path_of("o200k", ".json"));
    struct sv_enc_scratch *s = sv_enc_scratch_new();
    const char *text = "Hello w\xC3\xB6rld \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80 \xff don't "
                       "<|im_end|> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct sv_ids ids = {0};
    struct sv_detok d;
    struct sv_buf out;

    (void)state;
    sv_buf_init(&out);
    assert_int_equal(sv_buf_reserve(&out, 1000), SV_OK);
    assert_int_equal(sv_tokenizer_encode(tok, s, text, strlen(text), 1, &ids, NULL), SV_OK);
    ids.n = 0;
    sv_detok_init(&d, tok, false);
    sv_alloc_guard(true);
    assert_int_equal(sv_tokenizer_encode(tok, s, text, strlen(text), 1, &ids, NULL), SV_OK);
    for (size_t i = 0; i < ids.n; i++)
        sv_detok_push(&d, ids.id[i], &out);
    sv_detok_end(&d, &out);
    sv_alloc_guard(false);
    assert_non_null(strstr(out.data, "don't <|im_end|>"));
    sv_buf_fini(&out);
    sv_ids_fini(&ids);
    sv_enc_scratch_free(s);
    sv_tokenizer_close(tok);
}

/* One scratch, two tokenizers: the word cache must not leak from one to the other. */
static void scratch_changes_hands(void **state)
{
    struct sv_tokenizer *a = golden_tokenizer(path_of("qwen", ".json")),
                        *b = golden_tokenizer(path_of("gpt2", ".json"));
    struct sv_enc_scratch *s = sv_enc_scratch_new();
    struct sv_ids one = {0}, two = {0};
    const char *text = "Hello world, 12345 words";

    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct sv_tokenizer *t = i % 2 ? b : a;
        one.n = two.n = 0;
        assert_int_equal(sv_tokenizer_encode(t, s, text, strlen(text), 1, &one, NULL), SV_OK);
        assert_int_equal(sv_tokenizer_encode(t, NULL, text, strlen(text), 1, &two, NULL), SV_OK);
        assert_int_equal(one.n, two.n);
        assert_memory_equal(one.id, two.id, one.n * sizeof one.id[0]);
    }
    sv_ids_fini(&one);
    sv_ids_fini(&two);
    sv_enc_scratch_free(s);
    sv_tokenizer_close(a);
    sv_tokenizer_close(b);
}

/* ---------------------------------------------------------------- threads */

struct job {
    const struct sv_tokenizer *tok;
    const struct golden_corpus *corpus;
    uint64_t hash[2][64];
};

static void encode_docs(void *arg, int thread, int n_threads)
{
    struct job *j = arg;
    struct sv_enc_scratch *s = sv_enc_scratch_new();
    struct sv_ids ids = {0};
    (void)n_threads;
    for (uint32_t i = 0; i < 64; i++) {
        struct golden_doc d = golden_doc(j->corpus, i);
        ids.n = 0;
        golden_require(sv_tokenizer_encode(j->tok, s, d.text, d.n, 1, &ids, NULL) == SV_OK,
                       "encode");
        j->hash[thread][i] = golden_ids_hash(ids.id, ids.n);
    }
    sv_ids_fini(&ids);
    sv_enc_scratch_free(s);
}

static void threads(void **state)
{
    struct golden_corpus corpus;
    struct sv_tokenizer *tok = golden_tokenizer(path_of("llama3", ".json"));
    struct job j = {.tok = tok, .corpus = &corpus};
    struct sv_pool *pool;

    (void)state;
    golden_corpus_open(&corpus, path_of("corpus", ".bin"));
    assert_int_equal(sv_pool_open(&pool, 2, NULL), SV_OK);
    sv_pool_run(pool, encode_docs, &j);
    assert_memory_equal(j.hash[0], j.hash[1], sizeof j.hash[0]);
    sv_pool_close(pool);
    sv_map_close(&corpus.map);
    sv_tokenizer_close(tok);
}

SV_TEST_MAIN(cmocka_unit_test(long_words), cmocka_unit_test(a_megabyte_of_a),
             cmocka_unit_test(long_matches), cmocka_unit_test(hostile_patterns),
             cmocka_unit_test(runs_of_white_space), cmocka_unit_test(many_marks),
             cmocka_unit_test(streaming), cmocka_unit_test(no_allocation),
             cmocka_unit_test(scratch_changes_hands), cmocka_unit_test(threads))
