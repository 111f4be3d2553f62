/* test_json.c - JSON in (limits, positions, typed fields) and out (quoting). */
#include "testing.h"
#include "base/base.h"

#include <string.h>

static json_t *parse(const char *text, struct sv_err *err)
{
    return sv_json_parse(text, strlen(text), err);
}

static void broken_text_is_refused_with_its_byte(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t lo, hi; /* where the complaint may point */
    } cases[] = {
        {"", 0, 0},
        {"{", 1, 1},
        {"{\"a\": 1,}", 8, 8},
        {"[1 2]", 3, 3},
        {"[1]]", 3, 3},
        {"\"x\"", 0, 0},
        {"{\"a\":1,\"a\":2}", 7, 7},
        {"[\"\xff\"]", 2, 2},
        {"[1e999]", 1, 7},
        {"[nan]", 1, 1},
        {"[01]", 1, 3},
        {"[\"\\ud800\"]", 1, 9},
        {"{1:2}", 1, 1},
        {"[\"a\" \"a word of more than twenty bytes\"]", 38, 38},
        {"[\"a\n\"]", 3, 3},
        {"\xef\xbb\xbf[]", 0, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_err err = {0};
        assert_null(parse(cases[i].text, &err));
        if (err.code != SV_EFORMAT || err.pos < cases[i].lo || err.pos > cases[i].hi)
            fail_msg("%s: code %d, byte %lld: %s", cases[i].text, err.code, (long long)err.pos,
                     err.msg);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    struct sv_buf b;
    struct sv_err err;

    sv_buf_init(&b);
    for (int i = 0; i < 1000000; i++)
        sv_buf_append(&b, "[", 1);
    assert_null(sv_json_parse(b.data, b.len, &err));
    assert_int_equal(err.code, SV_EFORMAT);
    sv_buf_fini(&b);
}

static void integers_too_big_become_reals(void **state)
{
    (void)state;
    struct sv_err err;
    json_t *root = parse("{\"s\": \"9999999999999999999999\\\"1\", "
                         "\"m\": 1000000000000000019884624838656, \"n\": -9223372036854775809, "
                         "\"k\": 9223372036854775807, \"r\": 0.12345678901234567890123, "
                         "\"e\": 1e0000000000000000000003, \"u\": 18446744073709551615}",
                         &err);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "s")), "9999999999999999999999\"1");
    assert_true(json_real_value(json_object_get(root, "m")) > 0.999e30);
    assert_true(json_real_value(json_object_get(root, "m")) < 1.001e30);
    assert_true(json_real_value(json_object_get(root, "n")) < -9.2e18);
    assert_true(json_integer_value(json_object_get(root, "k")) == INT64_MAX);
    assert_true(json_real_value(json_object_get(root, "r")) == 0.12345678901234567890123);
    assert_true(json_real_value(json_object_get(root, "e")) == 1000);
    assert_true(json_real_value(json_object_get(root, "u")) > 1.8e19);
    json_decref(root);
    /* Positions stay those of the original text. */
    assert_null(parse("[1000000000000000019884624838656, x]", &err));
    assert_int_equal(err.pos, 34);
    assert_int_equal(sv_alloc_live(), 0);
}

static void integer_fields(void **state)
{
    (void)state;
    struct sv_err err;
    int64_t v = 77;
    json_t *o = parse("{\"i\": 5, \"r\": 1e6, \"h\": 1.5, \"s\": \"5\", \"n\": null, \"b\": true,"
                      " \"x\": 1e300}",
                      &err);

    assert_int_equal(sv_json_int(o, "i", 0, 10, &v, &err), SV_OK);
    assert_int_equal(v, 5);
    assert_int_equal(sv_json_int(o, "r", 0, 2000000, &v, &err), SV_OK);
    assert_int_equal(v, 1000000);
    assert_int_equal(sv_json_int(o, "i", 6, 10, &v, &err), SV_EINVAL);
    assert_string_equal(err.msg, "field 'i' must be an integer in [6, 10]");
    assert_int_equal(sv_json_int(o, "h", 0, 10, &v, &err), SV_EINVAL);
    assert_int_equal(sv_json_int(o, "s", 0, 10, &v, &err), SV_EINVAL);
    assert_int_equal(sv_json_int(o, "b", 0, 10, &v, &err), SV_EINVAL);
    assert_int_equal(sv_json_int(o, "x", INT64_MIN, INT64_MAX, &v, &err), SV_EINVAL);
    assert_int_equal(sv_json_int(o, "none", 0, 10, &v, &err), SV_EINVAL);
    assert_string_equal(err.msg, "field 'none' is missing");
    assert_int_equal(sv_json_int(o, "n", 0, 10, &v, &err), SV_EINVAL);
    assert_string_equal(err.msg, "field 'n' is null");
    assert_int_equal(v, 1000000); /* untouched by failures */
    assert_int_equal(sv_json_int_opt(o, "none", 0, 10, &v, &err), SV_OK);
    assert_int_equal(sv_json_int_opt(o, "n", 0, 10, &v, &err), SV_OK);
    assert_int_equal(v, 1000000);
    assert_int_equal(sv_json_int_opt(o, "h", 0, 10, &v, &err), SV_EINVAL);
    assert_int_equal(sv_json_int(json_object_get(o, "i"), "i", 0, 10, &v, &err), SV_EINVAL);
    assert_int_equal(sv_json_int(NULL, "i", 0, 10, &v, &err), SV_EINVAL);
    json_decref(o);
}

static void other_fields(void **state)
{
    (void)state;
    struct sv_err err;
    double d = -1;
    bool b = false;
    const char *s = "default";
    json_t *o =
        parse("{\"i\": 5, \"r\": 0.5, \"s\": \"text\", \"t\": true, \"z\": \"a\\u0000b\"}", &err);

    assert_int_equal(sv_json_num(o, "i", 0, 10, &d, &err), SV_OK);
    assert_true(d == 5);
    assert_int_equal(sv_json_num(o, "r", 0, 10, &d, &err), SV_OK);
    assert_true(d == 0.5);
    assert_int_equal(sv_json_num(o, "r", 1, 10, &d, &err), SV_EINVAL);
    assert_int_equal(sv_json_num(o, "s", 0, 10, &d, &err), SV_EINVAL);
    assert_int_equal(sv_json_num(o, "none", 0, 10, &d, &err), SV_EINVAL);
    assert_int_equal(sv_json_num_opt(o, "none", 0, 10, &d, &err), SV_OK);
    assert_int_equal(sv_json_bool_opt(o, "t", &b, &err), SV_OK);
    assert_true(b);
    assert_int_equal(sv_json_bool_opt(o, "i", &b, &err), SV_EINVAL);
    assert_int_equal(sv_json_bool_opt(o, "none", &b, &err), SV_OK);
    assert_int_equal(sv_json_str_opt(o, "none", &s, &err), SV_OK);
    assert_string_equal(s, "default");
    assert_int_equal(sv_json_str_opt(o, "s", &s, &err), SV_OK);
    assert_string_equal(s, "text");
    assert_int_equal(sv_json_str_opt(o, "i", &s, &err), SV_EINVAL);
    assert_int_equal(sv_json_str_opt(o, "z", &s, &err), SV_EINVAL); /* would be cut at its NUL */
    json_decref(o);
}

static void files_are_named_in_errors(void **state)
{
    (void)state;
    const char *path = sv_test_tmp("bad.json");
    struct sv_err err;

    assert_int_equal(sv_file_write(path, "{\"a\": }", 7, &err), SV_OK);
    assert_null(sv_json_load(path, 100, &err));
    assert_int_equal(err.code, SV_EFORMAT);
    assert_ptr_equal(strstr(err.msg, path), err.msg);
    assert_int_equal(err.pos, 6);
    assert_null(sv_json_load(path, 3, &err));
    assert_int_equal(err.code, SV_EINVAL);
    assert_null(sv_json_load(sv_test_tmp("missing.json"), 100, &err));
    assert_int_equal(err.code, SV_EIO);
    assert_int_equal(sv_alloc_live(), 0);
}

static void quoting(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        const char *quoted;
    } cases[] = {
        {"", 0, "\"\""},
        {"a\"b\\c/", 6, "\"a\\\"b\\\\c/\""},
        {"\n\r\t\b\f\x01\x1f\x7f", 8, "\"\\n\\r\\t\\b\\f\\u0001\\u001f\x7f\""},
        {"a\0b", 3, "\"a\\u0000b\""},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\xff"
         "a",
         2,
         "\"\xef\xbf\xbd"
         "a\""},
        {"\xc0\x80", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xf0\x9f\x98", 3, "\"\xef\xbf\xbd\""},
        {"\xe2\x82"
         "x",
         3,
         "\"\xef\xbf\xbd"
         "x\""},
        {"\xf4\x90\x80\x80", 4, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
    };
    struct sv_buf b;

    sv_buf_init(&b);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sv_buf_clear(&b);
        sv_json_quote(&b, cases[i].text, cases[i].n);
        assert_string_equal(b.data, cases[i].quoted);
    }
    sv_buf_fini(&b);
}

/* Every byte at every place of what is looked at eight at a time. */
static void quoting_every_byte_anywhere(void **state)
{
    (void)state;
    char text[24], want[48];
    struct sv_buf b;

    sv_buf_init(&b);
    for (int c = 0; c < 0x80; c++)
        for (size_t at = 0; at < 20; at++) {
            static const char *const escaped[0x80] = {
                ['"'] = "\\\"", ['\\'] = "\\\\", ['\n'] = "\\n", ['\r'] = "\\r",
                ['\t'] = "\\t", ['\b'] = "\\b",  ['\f'] = "\\f"};
            char one[8];
            memset(text, '~', 20);
            text[at] = (char)c;
            snprintf(one, sizeof one, c < 0x20 ? "\\u%04x" : "%c", c);
            snprintf(want, sizeof want, "\"%.*s%s%.*s\"", (int)at, "~~~~~~~~~~~~~~~~~~~~",
                     escaped[c] ? escaped[c] : one, (int)(19 - at), "~~~~~~~~~~~~~~~~~~~~");
            sv_buf_clear(&b);
            sv_json_quote(&b, text, 20);
            assert_string_equal(b.data, want);
        }
    sv_buf_fini(&b);
}

/* Whatever the bytes, the quoted form is JSON; well-formed text comes back as it was. */
static void quoting_any_bytes_gives_json(void **state)
{
    (void)state;
    struct sv_rng rng = {11};
    struct sv_buf b;

    sv_buf_init(&b);
    for (int round = 0; round < 3000; round++) {
        char bytes[40];
        size_t n = sv_rng_below(&rng, sizeof bytes);
        struct sv_err err;
        json_t *root;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (char)(round % 2 ? sv_rng_below(&rng, 128)
                                        : 0xC0 >> sv_rng_below(&rng, 2) | sv_rng_below(&rng, 64));
        sv_buf_clear(&b);
        sv_buf_append(&b, "[", 1);
        sv_json_quote(&b, bytes, n);
        sv_buf_append(&b, "]", 1);
        root = sv_json_parse(b.data, b.len, &err);
        assert_non_null(root);
        if (round % 2) {
            assert_int_equal(json_string_length(json_array_get(root, 0)), n);
            assert_memory_equal(json_string_value(json_array_get(root, 0)), bytes, n);
        }
        json_decref(root);
    }
    sv_buf_fini(&b);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(broken_text_is_refused_with_its_byte),
             cmocka_unit_test(deep_nesting_is_refused),
             cmocka_unit_test(integers_too_big_become_reals), cmocka_unit_test(integer_fields),
             cmocka_unit_test(other_fields), cmocka_unit_test(files_are_named_in_errors),
             cmocka_unit_test(quoting), cmocka_unit_test(quoting_every_byte_anywhere),
             cmocka_unit_test(quoting_any_bytes_gives_json))
