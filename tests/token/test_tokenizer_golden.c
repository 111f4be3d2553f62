/*
 * test_tokenizer_golden.c - ids and decoded text equal the reference library's, over the stored
 * corpus and cases.
 *
 * Run by the test runner; reads tests/golden/tok only.
 */
#include "tests/token/tok_golden.h"
#include "testing.h"

static const char *path_of(const char *name, const char *suffix)
{
    char relative[128];
    snprintf(relative, sizeof relative, "tests/golden/tok/%s%s", name, suffix);
    return sv_test_path(relative);
}

static void check_corpus(const char *name)
{
    struct golden_corpus c;
    struct golden_ids g;
    struct sv_tokenizer *tok = golden_tokenizer(path_of(name, ".json"));
    struct sv_enc_scratch *s = sv_enc_scratch_new();
    struct sv_ids ids = {0};
    struct sv_buf text;
    uint32_t n_bad = 0;

    golden_corpus_open(&c, path_of("corpus", ".bin"));
    golden_ids_open(&g, path_of(name, ".ids.bin"));
    assert_int_equal(c.n_docs, g.n_docs);
    sv_buf_init(&text);
    for (uint32_t i = 0; i < c.n_docs; i++) {
        struct golden_doc d = golden_doc(&c, i);
        struct golden_row want = golden_row(&g, i);
        struct sv_err err;
        ids.n = 0;
        sv_buf_clear(&text);
        if (sv_tokenizer_encode(tok, s, d.text, d.n, SV_ENC_SPECIAL, &ids, &err) < 0)
            fail_msg("%s, document %u: %s", name, i, err.msg);
        assert_int_equal(sv_tokenizer_decode(tok, ids.id, ids.n, false, &text), SV_OK);
        bool same = ids.n == want.n_ids && golden_ids_hash(ids.id, ids.n) == want.ids_hash;
        if (!same || text.len != want.n_text_bytes ||
            golden_fnv(text.data ? text.data : "", text.len) != want.text_hash) {
            print_error("%s, document %u: %s differ\n", name, i, same ? "texts" : "ids");
            n_bad++;
        }
    }
    print_message("%s: %u of %u documents equal\n", name, c.n_docs - n_bad, c.n_docs);
    assert_int_equal(n_bad, 0);
    sv_buf_fini(&text);
    sv_ids_fini(&ids);
    sv_enc_scratch_free(s);
    sv_tokenizer_close(tok);
    sv_map_close(&c.map);
    sv_map_close(&g.map);
}

static void corpus_qwen(void **state)
{
    (void)state;
    check_corpus("qwen");
}

static void corpus_llama3(void **state)
{
    (void)state;
    check_corpus("llama3");
}

static void corpus_o200k(void **state)
{
    (void)state;
    check_corpus("o200k");
}

static void corpus_gpt2(void **state)
{
    (void)state;
    check_corpus("gpt2");
}

static void corpus_qwen35(void **state)
{
    (void)state;
    check_corpus("qwen35");
}

static int compare_ids(const char *what, const char *name, size_t i, const json_t *want,
                       const struct sv_ids *got)
{
    bool same = json_array_size(want) == got->n;
    for (size_t k = 0; same && k < got->n; k++)
        same = json_integer_value(json_array_get(want, k)) == got->id[k];
    if (same)
        return 0;
    print_error("%s, %s %zu: got", name, what, i);
    for (size_t k = 0; k < got->n; k++)
        print_error(" %d", got->id[k]);
    print_error("\n");
    return 1;
}

static int check_encode(const struct sv_tokenizer *tok, const char *name, const json_t *cases)
{
    struct sv_enc_scratch *scratch = sv_enc_scratch_new();
    struct sv_ids ids = {0};
    size_t i;
    json_t *c;
    int n_bad = 0;

    json_array_foreach(cases, i, c) {
        const json_t *text = json_object_get(c, "text");
        const char *s = json_string_value(text);
        size_t n = json_string_length(text);
        ids.n = 0;
        assert_int_equal(sv_tokenizer_encode(tok, scratch, s, n, SV_ENC_SPECIAL, &ids, NULL),
                         SV_OK);
        n_bad += compare_ids("encode", name, i, json_object_get(c, "ids"), &ids);
        ids.n = 0;
        assert_int_equal(sv_tokenizer_encode(tok, scratch, s, n,
                                             SV_ENC_SPECIAL | SV_ENC_ADD_SPECIAL, &ids, NULL),
                         SV_OK);
        n_bad +=
            compare_ids("encode with specials", name, i, json_object_get(c, "ids_special"), &ids);
    }
    sv_ids_fini(&ids);
    sv_enc_scratch_free(scratch);
    return n_bad;
}

/* Text of ids, whole and pushed one by one; every push must leave valid UTF-8. */
static int check_text(const struct sv_tokenizer *tok, const char *name, size_t i, const json_t *ids,
                      bool skip, const json_t *want)
{
    struct sv_buf whole, stream;
    struct sv_detok d;
    size_t k;
    json_t *v;
    int bad;

    sv_buf_init(&whole);
    sv_buf_init(&stream);
    sv_detok_init(&d, tok, skip);
    sv_buf_append(&stream, "", 0);
    sv_buf_append(&whole, "", 0);
    json_array_foreach(ids, k, v) {
        json_t *piece;
        size_t before = stream.len;
        sv_detok_push(&d, (int32_t)json_integer_value(v), &stream);
        /* NULL unless valid UTF-8 */
        piece = json_stringn(stream.data + before, stream.len - before);
        assert_non_null(piece);
        json_decref(piece);
    }
    sv_detok_end(&d, &stream);
    int32_t flat[64];
    size_t n = json_array_size(ids);
    assert_true(n <= 64);
    for (k = 0; k < n; k++)
        flat[k] = (int32_t)json_integer_value(json_array_get(ids, k));
    assert_int_equal(sv_tokenizer_decode(tok, flat, n, skip, &whole), SV_OK);
    bad = whole.len != stream.len || memcmp(whole.data, stream.data, whole.len) != 0 ||
          whole.len != json_string_length(want) ||
          memcmp(whole.data, json_string_value(want), whole.len) != 0;
    if (bad)
        print_error("%s, decode %zu (skip %d): got '%s', want '%s'\n", name, i, skip, whole.data,
                    json_string_value(want));
    sv_buf_fini(&whole);
    sv_buf_fini(&stream);
    return bad;
}

static void cases(void **state)
{
    int n_bad = 0;

    (void)state;
    for (int t = 0; t < N_GOLDEN; t++) {
        struct sv_tokenizer *tok = golden_tokenizer(path_of(golden_names[t], ".json"));
        struct sv_err err;
        json_t *root = sv_json_load(path_of(golden_names[t], ".cases.json"), 1 << 24, &err), *c;
        size_t i;
        assert_non_null(root);
        n_bad += check_encode(tok, golden_names[t], json_object_get(root, "encode"));
        json_array_foreach(json_object_get(root, "decode"), i, c) {
            const json_t *ids = json_object_get(c, "ids");
            n_bad += check_text(tok, golden_names[t], i, ids, false, json_object_get(c, "text"));
            n_bad += check_text(tok, golden_names[t], i, ids, true,
                                json_object_get(c, "text_skip_special"));
        }
        json_decref(root);
        sv_tokenizer_close(tok);
    }
    assert_int_equal(n_bad, 0);
}

SV_TEST_MAIN(cmocka_unit_test(cases), cmocka_unit_test(corpus_qwen),
             cmocka_unit_test(corpus_llama3), cmocka_unit_test(corpus_o200k),
             cmocka_unit_test(corpus_gpt2), cmocka_unit_test(corpus_qwen35))
