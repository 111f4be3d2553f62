/*
 * test_gguf_text.c - tokenizers and chat templates of GGUF metadata: ids equal those of the
 * tokenizer.json that the file was written from, for every seventh document of the golden corpus.
 */
#include "testing.h"

#include "jinja/jinja.h"
#include "load/fake.h"
#include "load/gguf.h"
#include "load/gguf_write.h"
#include "token/tok.h"
#include "token/tok_golden.h"

#include <string.h>

/* DeepSeek-V3's: three expressions, one after the other. */
static const char deepseek[] =
    "{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"},\"behavior\":\"Isolated\","
    "\"invert\":false},"
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+\"},"
    "\"behavior\":\"Isolated\",\"invert\":false},"
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~]"
    "[A-Za-z]+|[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|"
    "\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}";

/* The file without what GGUF does not keep: some properties of added tokens, and that a token is
 * both an added one and one of the vocabulary. pre: what splits the text, in place of the file's.
 */
static const char *kept_by_gguf(const char *json, const char *pre)
{
    static const char *const lost[] = {"lstrip", "rstrip", "single_word", "normalized"};
    const char *path = sv_test_tmp("kept.json");
    json_t *root = json_load_file(json, 0, NULL), *added = json_object_get(root, "added_tokens");
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    assert_non_null(root);
    for (size_t i = json_array_size(added); i-- > 0;) {
        json_t *token = json_array_get(added, i);
        for (int k = 0; k < 4; k++)
            json_object_set_new(token, lost[k], json_false());
        if (json_object_get(vocab, json_string_value(json_object_get(token, "content"))))
            json_array_remove(added, i);
    }
    if (pre) {
        json_t *split = json_loads(pre, 0, NULL);
        assert_non_null(split);
        json_object_set_new(root, "pre_tokenizer", split);
    }
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return path;
}

static struct sv_tokenizer *of_json(const char *path)
{
    struct sv_map m;
    struct sv_tokenizer *tok;
    struct sv_err err;
    assert_int_equal(sv_map_open(&m, path, &err), SV_OK);
    fake_expect(sv_tokenizer_parse(&tok, (const char *)m.data, m.n_bytes, &err), SV_OK, &err, "",
                path);
    sv_map_close(&m);
    return tok;
}

static struct sv_tokenizer *of_gguf(const char *path)
{
    struct sv_tokenizer *tok;
    struct sv_err err;
    fake_expect(sv_model_tokenizer(&tok, path, &err), SV_OK, &err, "", path);
    return tok;
}

static void compare(const char *json, const char *gguf)
{
    struct sv_tokenizer *tok[2] = {of_json(json), of_gguf(gguf)};
    struct golden_corpus corpus;
    struct sv_err err;
    golden_corpus_open(&corpus, sv_test_path("tests/golden/tok/corpus.bin"));
    assert_int_equal(sv_tokenizer_n_tokens(tok[0]), sv_tokenizer_n_tokens(tok[1]));
    for (int32_t id = 0; id < sv_tokenizer_n_tokens(tok[0]); id++) {
        size_t n[2];
        const char *a = sv_tokenizer_bytes(tok[0], id, &n[0]);
        const char *b = sv_tokenizer_bytes(tok[1], id, &n[1]);
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(a, b, n[0]);
        assert_int_equal(sv_tokenizer_is_special(tok[0], id), sv_tokenizer_is_special(tok[1], id));
    }
    for (uint32_t i = 0; i < corpus.n_docs; i += 7) {
        const struct golden_doc d = golden_doc(&corpus, i);
        struct sv_ids ids[2] = {{0}};
        const unsigned flags = SV_ENC_SPECIAL | (i % 2 ? SV_ENC_ADD_SPECIAL : 0);
        for (int k = 0; k < 2; k++)
            assert_int_equal(sv_tokenizer_encode(tok[k], NULL, d.text, d.n, flags, &ids[k], &err),
                             SV_OK);
        assert_int_equal(ids[0].n, ids[1].n);
        if (ids[0].n)
            assert_memory_equal(ids[0].id, ids[1].id, ids[0].n * sizeof *ids[0].id);
        sv_ids_fini(&ids[0]);
        sv_ids_fini(&ids[1]);
    }
    sv_map_close(&corpus.map);
    sv_tokenizer_close(tok[0]);
    sv_tokenizer_close(tok[1]);
}

/* A tokenizer of tests/golden/tok, written as metadata with this name of its expression. */
static void compare_written(const char *name, const char *pre, const char *split, int32_t bos_id)
{
    char path[64];
    struct gguf_out g;
    const char *file = sv_test_tmp("tokenizer.gguf");
    snprintf(path, sizeof path, "tests/golden/tok/%s.json", name);
    const char *json = kept_by_gguf(sv_test_path(path), split);
    gguf_init(&g, "llama");
    gguf_tokenizer(&g, json, pre, bos_id);
    gguf_save(&g, file);
    compare(json, file);
}

static void llama3(void **state)
{
    (void)state;
    compare_written("llama3", "llama-bpe", NULL, 4000);
}

static void qwen2(void **state)
{
    (void)state;
    compare_written("qwen", "qwen2", NULL, -1);
}

static void qwen35(void **state)
{
    (void)state;
    compare_written("qwen35", "qwen35", NULL, -1);
}

static void gpt_4o(void **state)
{
    (void)state;
    compare_written("o200k", "gpt-4o", NULL, -1);
}

static void deepseek_v3(void **state)
{
    (void)state;
    compare_written("o200k", "deepseek-v3", deepseek, -1);
}

/* The words of a text between bars. */
static void words_of(const struct sv_regex *re, const char *text, struct sv_buf *out)
{
    struct sv_regex_work w = {0};
    struct sv_err err;
    size_t at = 0, from, to;
    const size_t n = strlen(text);
    assert_int_equal(sv_regex_work_init(&w), SV_OK);
    for (; at < n; at = to) {
        assert_int_equal(sv_regex_next(re, &w, text, n, at, &from, &to, &err), 1);
        assert_int_equal(from, at);
        sv_buf_printf(out, "%s%.*s", at ? "|" : "", (int)(to - at), text + at);
    }
    sv_regex_work_fini(&w);
}

/* Kimi's expression has intersections of classes, which the one here spells in another way. Perl,
 * whose classes can be subtracted, cuts these texts so; 265,449 words of random ones were equal. */
static void kimi_k2(void **state)
{
    static const char *const cases[][2] = {
        {"Hello world's end, I'LL go", "Hello| world's| end|,| I'LL| go"},
        {"中文abc漢字Def", "中文|abc|漢字|Def"},
        {"abc中文's", "abc|中文|'s"},
        {"x  中", "x| | |中"},
        {"  中文 12345〇一", " | |中文| |123|45〇|一"},
        {"カタカナと漢字", "カタカナと|漢字"},
        {"〇12々々〻", "〇|12|々々〻"},
        {"⺀ ⺀!", "⺀| ⺀!"},
        {"it'S Ångström e\u0301中\u0301b", "it'S| Ångström| e\u0301|中|\u0301b"},
        {"a\n\n b  \n", "a|\n\n| b|  \n"},
        {"!?/\r\n/x", "!?/\r\n|/x"},
        {"HTTPServer2000", "HTTPServer|200|0"}};
    struct gguf_out g;
    struct sv_gguf_file f;
    struct sv_buf text;
    struct sv_regex re;
    struct sv_err err;
    const char *file = sv_test_tmp("kimi.gguf");
    (void)state;
    gguf_init(&g, "deepseek2");
    gguf_tokenizer(&g, kept_by_gguf(sv_test_path("tests/golden/tok/o200k.json"), NULL), "kimi-k2",
                   -1);
    gguf_save(&g, file);
    sv_tokenizer_close(of_gguf(file));
    sv_buf_init(&text);
    fake_expect(sv_gguf_open(&f, file, &err), SV_OK, &err, "", file);
    assert_int_equal(sv_gguf_tokenizer_json(&f.g, &text, &err), SV_OK);
    json_t *root = json_loadb(text.data, text.len, 0, NULL);
    const char *split = json_string_value(json_object_get(
        json_object_get(
            json_array_get(json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers"),
                           0),
            "pattern"),
        "Regex"));
    assert_non_null(split);
    assert_int_equal(sv_regex_open(&re, split, strlen(split), false, &err), SV_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sv_buf_clear(&text);
        words_of(&re, cases[i][0], &text);
        assert_string_equal(text.data, cases[i][1]);
    }
    sv_regex_close(&re);
    json_decref(root);
    sv_buf_fini(&text);
    sv_gguf_close(&f);
    assert_int_equal(sv_alloc_live(), 0);
}

static void gpt2(void **state)
{
    (void)state;
    compare(sv_test_path("tests/golden/tiny/qwen3_tied_bf16/tokenizer.json"),
            sv_test_path("tests/golden/gguf/qwen3_q8.gguf"));
}

static int ignore(void *user, const struct sv_quantized *t)
{
    (void)user, (void)t;
    return SV_OK;
}

/* A file that salvo writes has the tokenizer and the template of its directory. */
static void converted(void **state)
{
    struct sv_chat_template *t[2];
    struct sv_err err;
    (void)state;
    const char *dir = sv_test_path("tests/golden/tiny/qwen3_tied_bf16");
    const char *file = sv_test_tmp("converted.gguf");
    fake_expect(sv_quantize_model(dir, SV_CODE_INT8, file, ignore, NULL, &err), SV_OK, &err, "",
                file);
    compare(sv_test_path("tests/golden/tiny/qwen3_tied_bf16/tokenizer.json"), file);
    for (int k = 0; k < 2; k++)
        fake_expect(sv_model_chat_template(&t[k], k ? file : dir, NULL, 0, &err), SV_OK, &err, "",
                    "template");
    assert_string_equal(sv_chat_template_source(t[0]), sv_chat_template_source(t[1]));
    sv_chat_template_close(t[0]);
    sv_chat_template_close(t[1]);
}

/* Names of expressions, both ways. */
static void expressions_have_names(void **state)
{
    static const char *const pairs[][2] = {
        {"llama3", "llama-bpe"}, {"qwen", "qwen2"}, {"qwen35", "qwen35"}, {"o200k", "gpt-4o"}};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/golden/tok/%s.json", pairs[i][0]);
        json_t *root = json_load_file(sv_test_path(path), 0, NULL);
        const char *name = sv_gguf_pre_of(root);
        assert_non_null(name);
        assert_string_equal(name, pairs[i][1]);
        json_object_set_new(json_object_get(root, "model"), "ignore_merges",
                            json_boolean(i > 0)); /* not as in the table */
        assert_null(sv_gguf_pre_of(root));
        json_decref(root);
    }
    json_t *root = json_load_file(sv_test_path("tests/golden/tok/llama3.json"), 0, NULL);
    json_t *split = json_loads(deepseek, 0, NULL);
    json_object_set_new(root, "pre_tokenizer", split);
    json_object_set_new(json_object_get(root, "model"), "ignore_merges", json_false());
    assert_string_equal(sv_gguf_pre_of(root), "deepseek-v3");
    json_array_remove(json_object_get(split, "pretokenizers"), 1);
    assert_null(sv_gguf_pre_of(root));
    json_decref(root);
}

static void templates_render_with_the_files_tokens(void **state)
{
    (void)state;
    struct sv_chat_template *t;
    struct sv_buf out;
    struct sv_err err;
    const char *file = sv_test_path("tests/golden/gguf/qwen3_q8.gguf");
    json_t *context = json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", "Hi");
    sv_buf_init(&out);
    fake_expect(sv_model_chat_template(&t, file, NULL, 0, &err), SV_OK, &err, "", "template");
    assert_int_equal(sv_chat_template_render(t, context, NULL, &out, &err), SV_OK);
    assert_string_equal(out.data, "<|bos|>user: Hi<|im_end|>");
    sv_chat_template_close(t);
    sv_buf_clear(&out);
    fake_expect(sv_model_chat_template(&t, file, "{{ eos_token }}", 15, &err), SV_OK, &err, "",
                "given");
    assert_int_equal(sv_chat_template_render(t, context, NULL, &out, &err), SV_OK);
    assert_string_equal(out.data, "<|endoftext|>");
    sv_chat_template_close(t);
    sv_buf_fini(&out);
    json_decref(context);
    fake_expect(
        sv_model_chat_template(&t, sv_test_path("tests/golden/gguf/llama_mix.gguf"), NULL, 0, &err),
        SV_EUNSUPPORTED, &err, "has no chat template", "none");
    assert_false(sv_model_has_tokenizer(sv_test_path("tests/golden/gguf/llama_mix.gguf")));
    assert_true(sv_model_has_tokenizer(file));
}

SV_TEST_MAIN(cmocka_unit_test(llama3), cmocka_unit_test(qwen2), cmocka_unit_test(qwen35),
             cmocka_unit_test(gpt_4o), cmocka_unit_test(deepseek_v3), cmocka_unit_test(kimi_k2),
             cmocka_unit_test(gpt2), cmocka_unit_test(converted),
             cmocka_unit_test(expressions_have_names),
             cmocka_unit_test(templates_render_with_the_files_tokens))
