/*
 * test_tokenizer_variants.c - unusual pipelines against the reference: split behaviours, prefix
 * spaces, digits, odd expressions, added tokens with every flag, special tokens read as text.
 *
 * Run by the test runner over tests/token/variants.json (tools/token/make_variants.py).
 * SV_VARIANTS=FILE takes a larger file of the same form instead.
 */
#include "tests/token/tok_golden.h"
#include "testing.h"

static bool same_ids(const json_t *want, const struct sv_ids *got)
{
    bool same = json_array_size(want) == got->n;
    for (size_t k = 0; same && k < got->n; k++)
        same = json_integer_value(json_array_get(want, k)) == got->id[k];
    return same;
}

static void show(const char *name, size_t i, const char *what, const json_t *c,
                 const struct sv_ids *got)
{
    char *text = json_dumps(c, JSON_ENSURE_ASCII | JSON_COMPACT);
    print_error("%s, case %zu, %s: %s\n   got", name, i, what, text);
    for (size_t k = 0; k < got->n; k++)
        print_error(" %d", got->id[k]);
    print_error("\n");
    sv_free(text);
}

static int check(const struct sv_tokenizer *tok, const char *name, const json_t *cases)
{
    struct sv_enc_scratch *s = sv_enc_scratch_new();
    struct sv_ids ids = {0};
    struct sv_buf text;
    int n_bad = 0;
    size_t i;
    json_t *c;

    sv_buf_init(&text);
    json_array_foreach(cases, i, c) {
        const json_t *in = json_object_get(c, "text"), *plain = json_object_get(c, "plain");
        const json_t *decoded = json_object_get(c, "decoded");
        struct sv_err err;
        ids.n = 0;
        sv_buf_clear(&text);
        if (sv_tokenizer_encode(tok, s, json_string_value(in), json_string_length(in),
                                SV_ENC_SPECIAL, &ids, &err))
            fail_msg("%s: %s", name, err.msg);
        if (!same_ids(json_object_get(c, "ids"), &ids)) {
            show(name, i, "ids", c, &ids);
            n_bad++;
            continue;
        }
        assert_int_equal(sv_tokenizer_decode(tok, ids.id, ids.n, false, &text), SV_OK);
        if (text.len != json_string_length(decoded) ||
            memcmp(text.data ? text.data : "", json_string_value(decoded), text.len) != 0) {
            show(name, i, "decoded", c, &ids);
            n_bad++;
        }
        ids.n = 0;
        if (sv_tokenizer_encode(tok, s, json_string_value(in), json_string_length(in), 0, &ids,
                                &err))
            fail_msg("%s: %s", name, err.msg);
        if (!same_ids(plain ? plain : json_object_get(c, "ids"), &ids)) {
            show(name, i, "plain", c, &ids);
            n_bad++;
        }
    }
    sv_buf_fini(&text);
    sv_ids_fini(&ids);
    sv_enc_scratch_free(s);
    return n_bad;
}

static void variants(void **state)
{
    const char *path = sv_env("SV_VARIANTS");
    struct sv_err err;
    json_t *root = sv_json_load(path ? path : sv_test_path("tests/token/variants.json"), 1u << 30,
                                &err),
           *v;
    size_t i, n_cases = 0;
    int n_bad = 0, n_refused = 0;

    (void)state;
    if (!root)
        fail_msg("%s", err.msg);
    json_array_foreach(json_object_get(root, "variants"), i, v) {
        const char *name = json_string_value(json_object_get(v, "name"));
        struct sv_tokenizer *tok;
        char base[128];
        snprintf(base, sizeof base, "tests/golden/tok/%s.json",
                 json_string_value(json_object_get(v, "base")));
        json_t *d = sv_json_load(sv_test_path(base), 1 << 26, &err);
        assert_non_null(d);
        assert_int_equal(json_object_update(d, json_object_get(v, "patch")), 0);
        char *text = json_dumps(d, JSON_COMPACT);
        if (sv_tokenizer_parse(&tok, text, strlen(text), &err) == SV_OK) {
            n_bad += check(tok, name, json_object_get(v, "cases"));
            n_cases += json_array_size(json_object_get(v, "cases"));
        } else {
            if (err.code != SV_EUNSUPPORTED) /* never a wrong answer instead */
                fail_msg("%s: %s", name, err.msg);
            print_message("refused: %s: %s\n", name, err.msg);
            n_refused++;
        }
        sv_tokenizer_close(tok);
        sv_free(text);
        json_decref(d);
    }
    json_decref(root);
    print_message("%zu cases, %d wrong, %d variants refused\n", n_cases, n_bad, n_refused);
    assert_int_equal(n_bad, 0);
    assert_true(n_refused <= 4);
}

SV_TEST_MAIN(cmocka_unit_test(variants))
