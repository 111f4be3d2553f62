/*
 * test_tokenizer_hostile.c - malformed and hostile tokenizer files get an error that names field
 * and position; running out of memory anywhere ends without a leak.
 *
 * Run by the test runner under ASan; each file lies in a block of exactly its size.
 */
#include "tests/token/tok_golden.h"
#include "testing.h"

#define PIPE                                                                                       \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":" \
    "\"ByteLevel\"}"
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3}"
#define MODEL "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"
#define WITH_MODEL(fields) "{" PIPE ",\"model\":{" fields "}}"
#define WITH(fields) "{" PIPE "," MODEL "," fields "}"
#define WITH_PRE(pre) "{\"decoder\":{\"type\":\"ByteLevel\"}," MODEL ",\"pre_tokenizer\":" pre "}"
#define SPLIT(pattern)                                                                             \
    WITH_PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"         \
             "\"Regex\":\"" pattern                                                                \
             "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\"}]}")

static int parse(struct sv_tokenizer **tok, const char *text, size_t n, struct sv_err *err)
{
    char *copy = malloc(n ? n : 1); /* not sv_alloc: ASan must see the exact size */
    int rc;
    assert_non_null(copy);
    memcpy(copy, text, n);
    rc = sv_tokenizer_parse(tok, copy, n, err);
    free(copy);
    return rc;
}

static void good_file(void **state)
{
    struct sv_tokenizer *tok;
    struct sv_ids ids = {0};
    struct sv_err err;
    const char *text = "{" PIPE "," MODEL "}";

    (void)state;
    if (parse(&tok, text, strlen(text), &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(sv_tokenizer_n_tokens(tok), 4);
    assert_int_equal(sv_tokenizer_find(tok, "ab"), 2);
    assert_int_equal(sv_tokenizer_find(tok, "zz"), -1);
    assert_int_equal(sv_tokenizer_encode(tok, NULL, "ab ba", 5, 0, &ids, &err), SV_OK);
    assert_int_equal(ids.n, 4);
    size_t n;
    assert_null(sv_tokenizer_bytes(tok, 4, &n));
    assert_null(sv_tokenizer_bytes(tok, -1, &n));
    assert_null(sv_tokenizer_bytes(tok, INT32_MIN, &n));
    assert_memory_equal(sv_tokenizer_bytes(tok, 3, &n), " ", 1);
    assert_int_equal(n, 1);
    assert_false(sv_tokenizer_is_special(tok, INT32_MAX));
    ids.n = 0;
    assert_int_equal(sv_tokenizer_encode(tok, NULL, NULL, 0, SV_ENC_ADD_SPECIAL, &ids, &err),
                     SV_OK);
    assert_int_equal(ids.n, 0);
    sv_ids_fini(&ids);
    sv_tokenizer_close(tok);
    sv_tokenizer_close(NULL);
}

/* ignore_merges takes whole words from the model's vocabulary, not from special tokens that look
 * like words. */
static void whole_words(void **state)
{
    static const char text[] =
        "{" PIPE
        ",\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"ba\":2},"
        "\"merges\":[]},\"added_tokens\":[{\"id\":3,\"content\":\"ab\",\"single_word\":false,"
        "\"lstrip\":false,"
        "\"rstrip\":false,\"normalized\":false,\"special\":true}]}";
    static const struct {
        const char *word;
        unsigned flags;
        size_t n;
        int32_t first;
    } want[] = {{"ba", 0, 1, 2}, {"ab", SV_ENC_SPECIAL, 1, 3}, {"ab", 0, 2, 0}};
    struct sv_tokenizer *tok;
    struct sv_ids ids = {0};
    struct sv_err err;

    (void)state;
    if (parse(&tok, text, strlen(text), &err) < 0)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        ids.n = 0;
        assert_int_equal(sv_tokenizer_encode(tok, NULL, want[i].word, 2, want[i].flags, &ids, &err),
                         SV_OK);
        assert_int_equal(ids.n, want[i].n);
        assert_int_equal(ids.id[0], want[i].first);
    }
    sv_ids_fini(&ids);
    sv_tokenizer_close(tok);
}

static void bad_files(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"", SV_EFORMAT, "expected an object"},
        {"[]", SV_EFORMAT, "expected an object"},
        {"{}", SV_EFORMAT, "'model' is missing"},
        {"{\"model\":null}", SV_EFORMAT, "expected an object"},
        {"{\"model\":{}}", SV_EFORMAT, "model.vocab is missing"},
        {WITH_MODEL(VOCAB), SV_EFORMAT, "model.merges is missing"},
        {"{" PIPE "," MODEL "} x", SV_EFORMAT, "follows the end"},
        {"{" PIPE "," MODEL "," MODEL "}", SV_EFORMAT, "'model' is there twice"},
        {WITH_MODEL("\"vocab\":[],\"merges\":[]"), SV_EFORMAT, "expected an object"},
        {WITH_MODEL("\"vocab\":{},\"merges\":[]"), SV_EFORMAT, "model.vocab is empty"},
        {WITH_MODEL("\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]"), SV_EFORMAT, "'a' is there twice"},
        {WITH_MODEL("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]"), SV_EFORMAT,
         "id 0 belongs to both 'a' and 'b'"},
        {WITH_MODEL("\"vocab\":{\"a\":-1},\"merges\":[]"), SV_EFORMAT, "out of range"},
        {WITH_MODEL("\"vocab\":{\"a\":2147483648},\"merges\":[]"), SV_EFORMAT, "out of range"},
        {WITH_MODEL("\"vocab\":{\"a\":99999999999999999999999999},\"merges\":[]"), SV_EFORMAT,
         "out of range"},
        {WITH_MODEL("\"vocab\":{\"a\":1e3},\"merges\":[]"), SV_EFORMAT, "not a fraction"},
        {WITH_MODEL("\"vocab\":{\"a\":\"0\"},\"merges\":[]"), SV_EFORMAT, "model.vocab['a']"},
        {WITH_MODEL("\"vocab\":{\"a\":16000000},\"merges\":[]"), SV_EFORMAT,
         "1 tokens, but ids up to 16000000"},
        {WITH_MODEL(VOCAB ",\"merges\":[\"a b\",\"a c\"]"), SV_EFORMAT,
         "model.merges[1]: 'c' is not in the vocabulary"},
        {WITH_MODEL(VOCAB ",\"merges\":[\"b a\"]"), SV_EFORMAT, "model.merges[0]: 'ba' is not"},
        {WITH_MODEL(VOCAB ",\"merges\":[\"ab\"]"), SV_EFORMAT, "model.merges[0]"},
        {WITH_MODEL(VOCAB ",\"merges\":[\"a b c\"]"), SV_EFORMAT, "model.merges[0]"},
        {WITH_MODEL(VOCAB ",\"merges\":[[\"a\",\"b\"],[\"a\"]]"), SV_EFORMAT,
         "model.merges[1]: byte"},
        {WITH_MODEL(VOCAB ",\"merges\":[[]]"), SV_EFORMAT, "model.merges[0]"},
        {WITH_MODEL(VOCAB ",\"merges\":[[\"a\",\"b\",\"a\"]]"), SV_EFORMAT, "expected two parts"},
        {WITH_MODEL(VOCAB ",\"merges\":[7]"), SV_EFORMAT, "model.merges[0]"},
        {WITH_MODEL(VOCAB ",\"merges\":{}"), SV_EFORMAT, "expected an array"},
        {WITH_MODEL(VOCAB ",\"merges\":[],\"type\":\"WordPiece\""), SV_EUNSUPPORTED,
         "model.type 'WordPiece'"},
        {WITH_MODEL(VOCAB ",\"merges\":[],\"type\":3"), SV_EFORMAT, "expected a string"},
        {WITH_MODEL(VOCAB ",\"merges\":[],\"dropout\":0.1"), SV_EUNSUPPORTED,
         "model.dropout = 0.1"},
        {WITH_MODEL(VOCAB ",\"merges\":[],\"unk_token\":\"<unk>\""), SV_EUNSUPPORTED,
         "model.unk_token"},
        {WITH_MODEL(VOCAB ",\"merges\":[],\"byte_fallback\":true"), SV_EUNSUPPORTED,
         "model.byte_fallback"},
        {WITH_MODEL(VOCAB ",\"merges\":[],\"continuing_subword_prefix\":\"##\""), SV_EUNSUPPORTED,
         "continuing_subword"},
        {WITH_MODEL(VOCAB ",\"merges\":[],\"end_of_word_suffix\":\"</w>\""), SV_EUNSUPPORTED,
         "end_of_word_suffix"},
        {WITH_MODEL(VOCAB ",\"merges\":[],\"ignore_merges\":7"), SV_EFORMAT, "model.ignore_merges"},
        {WITH_MODEL("\"vocab\":{\"\\ud800\":0},\"merges\":[]"), SV_EFORMAT, "surrogate"},
        {WITH_MODEL("\"vocab\":{\"\\ud800\\u0041\":0},\"merges\":[]"), SV_EFORMAT, "surrogate"},
        {WITH_MODEL("\"vocab\":{\"\\udc00\":0},\"merges\":[]"), SV_EFORMAT, "surrogate"},
        {WITH_MODEL("\"vocab\":{\"\\u00g0\":0},\"merges\":[]"), SV_EFORMAT, "hexadecimal"},
        {WITH_MODEL("\"vocab\":{\"\\q\":0},\"merges\":[]"), SV_EFORMAT, "unknown escape"},
        {WITH_MODEL("\"vocab\":{\"\xff\":0},\"merges\":[]"), SV_EFORMAT, "not UTF-8"},
        {WITH_MODEL("\"vocab\":{\"a\n\":0},\"merges\":[]"), SV_EFORMAT, "control character"},
        {WITH("\"added_tokens\":{}"), SV_EFORMAT, "expected an array"},
        {WITH("\"added_tokens\":[{\"content\":\"x\"}]"), SV_EFORMAT, "added_tokens[0]: byte"},
        {WITH("\"added_tokens\":[{\"id\":9}]"), SV_EFORMAT, "content is missing"},
        {WITH("\"added_tokens\":[{\"id\":9,\"content\":3}]"), SV_EFORMAT,
         "added_tokens[0]: content"},
        {WITH("\"added_tokens\":[{\"id\":9,\"content\":\"x\",\"special\":1}]"), SV_EFORMAT,
         "special"},
        {WITH("\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]"), SV_EFORMAT,
         "id 0 belongs to both 'a' and 'x'"},
        {WITH("\"added_tokens\":[{\"id\":7,\"content\":\"ab\"}]"), SV_EFORMAT,
         "'ab' has id 7 here and 2 elsewhere"},
        {WITH("\"added_tokens\":[{\"id\":16000000,\"content\":\"x\"}]"), SV_EFORMAT,
         "out of range"},
        {WITH("\"added_tokens\":[{\"id\":4294967297,\"content\":\"x\"}]"), SV_EFORMAT,
         "out of range"},
        {WITH("\"normalizer\":{\"type\":\"NFKC\"}"), SV_EUNSUPPORTED, "normalizer of type 'NFKC'"},
        {WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
              "\"Lowercase\"}]}"),
         SV_EUNSUPPORTED, "'Lowercase'"},
        {WITH("\"normalizer\":7"), SV_EFORMAT, "normalizer"},
        {WITH("\"normalizer\":{\"type\":\"NFC\",}"), SV_EFORMAT, "normalizer"},
        {WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), SV_EUNSUPPORTED,
         "'BertProcessing'"},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\"}"), SV_EFORMAT,
         "single must be an array"},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}"),
         SV_EUNSUPPORTED, "0 times"},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
              "\"id\":\"x\"}}]}"),
         SV_EFORMAT, "no ids for 'x'"},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
              "\"id\":\"x\"}}],"
              "\"special_tokens\":{\"x\":{\"ids\":[77]}}}"),
         SV_EFORMAT, "has an id that no token has"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}", SV_EUNSUPPORTED, "decoder"},
        {"{" MODEL ",\"decoder\":{\"type\":\"ByteLevel\"}}", SV_EUNSUPPORTED, "no ByteLevel step"},
        {"{" MODEL
         ",\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"WordPiece\"}}",
         SV_EUNSUPPORTED, "decoder of type 'WordPiece'"},
        {WITH_PRE("{\"type\":\"Metaspace\"}"), SV_EUNSUPPORTED, "'Metaspace'"},
        {WITH_PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":"
                  "\"Digits\"}]}"),
         SV_EUNSUPPORTED, "a step after ByteLevel"},
        {WITH_PRE("{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\"}"), SV_EFORMAT,
         "pattern"},
        {WITH_PRE("{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"}}"), SV_EFORMAT, "behavior"},
        {WITH_PRE("{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},\"behavior\":\"Shuffled\"}"),
         SV_EUNSUPPORTED, "'Shuffled'"},
        {SPLIT("a("), SV_EUNSUPPORTED, "a group has no end"},
        {SPLIT("a)"), SV_EUNSUPPORTED, "character 1: unmatched"},
        {SPLIT("[a"), SV_EUNSUPPORTED, "character 0: this class has no end"},
        {SPLIT("[a&&b]"), SV_EUNSUPPORTED, "character 2: class intersection"},
        {SPLIT("[[a]b]"), SV_EUNSUPPORTED, "a class inside a class"},
        {SPLIT("\\\\1"), SV_EUNSUPPORTED, "character 0: this escape"},
        {SPLIT("(?<n>a)\\\\k<n>"), SV_EUNSUPPORTED, "this kind of group"},
        {SPLIT("(*ACCEPT)"), SV_EUNSUPPORTED, "verb"},
        {SPLIT("a{3}+"), SV_EUNSUPPORTED, "second quantifier"},
        {SPLIT("*a"), SV_EUNSUPPORTED, "nothing to repeat"},
        {SPLIT("\\\\p{Klingon}"), SV_EFORMAT, "near character"},
        {SPLIT("\\\\p{Alpha}"), SV_EUNSUPPORTED, "POSIX property"},
        {SPLIT("\\\\x{110000}"), SV_EUNSUPPORTED, "not a code point"},
        {SPLIT("(?<=a+)b"), SV_EFORMAT, "near character"},
        {SPLIT("a{2,1}"), SV_EFORMAT, "near character"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_tokenizer *tok = NULL;
        struct sv_err err = {0};
        int rc = parse(&tok, cases[i].text, strlen(cases[i].text), &err);
        if (rc != cases[i].code || err.code != rc || !strstr(err.msg, cases[i].says) || tok)
            fail_msg("case %zu: got %d '%s', expected %d '%s' for %s", i, rc, err.msg,
                     cases[i].code, cases[i].says, cases[i].text);
        assert_int_equal(parse(&tok, cases[i].text, strlen(cases[i].text), NULL), cases[i].code);
    }
}

/* Every beginning of a file, and every file with one byte damaged, ends in an error or a
 * tokenizer. */
static void cut_and_damaged(void **state)
{
    const char *text = WITH(
        "\"normalizer\":{\"type\":\"NFC\"},\"added_tokens\":[{\"id\":5,\"content\":\"<\\u00e9>\","
        "\"special\":true,\"normalized\":true}],\"post_processor\":{\"type\":"
        "\"TemplateProcessing\","
        "\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],"
        "\"special_tokens\":{\"x\":{\"ids\":[5]}}}");
    static const char damage[] = "\"\\}]:9\xff";
    size_t n = strlen(text);
    struct sv_enc_scratch *s = sv_enc_scratch_new();
    struct sv_tokenizer *tok;
    char *copy = malloc(n);

    (void)state;
    assert_non_null(copy);
    assert_int_equal(parse(&tok, text, n, NULL), SV_OK);
    sv_tokenizer_close(tok);
    for (size_t i = 0; i < n; i++) {
        assert_true(parse(&tok, text, i, NULL) < 0);
        for (size_t k = 0; k < sizeof damage; k++) { /* its NUL too */
            memcpy(copy, text, n);
            copy[i] = damage[k];
            if (parse(&tok, copy, n, NULL) == SV_OK) {
                struct sv_ids ids = {0};
                assert_int_equal(sv_tokenizer_encode(tok, s, text, n, 3, &ids, NULL), SV_OK);
                sv_ids_fini(&ids);
                sv_tokenizer_close(tok);
            }
        }
    }
    free(copy);
    sv_enc_scratch_free(s);
}

static void deep_and_large(void **state)
{
    struct sv_buf b;
    struct sv_tokenizer *tok;
    struct sv_err err;

    (void)state;
    sv_buf_init(&b);
    sv_buf_printf(&b, "{%s,%s,\"extra\":", PIPE, MODEL);
    for (int i = 0; i < 100000; i++)
        sv_buf_append(&b, "[", 1);
    assert_int_equal(parse(&tok, b.data, b.len, &err), SV_EFORMAT);
    assert_non_null(strstr(err.msg, "nested deeper"));
    sv_buf_clear(&b);
    sv_buf_printf(&b, "{%s,%s,\"added_tokens\":[{\"id\":9,\"content\":\"", PIPE, MODEL);
    for (int i = 0; i < 2000; i++)
        sv_buf_append(&b, "x", 1);
    sv_buf_printf(&b, "\"}]}");
    assert_int_equal(parse(&tok, b.data, b.len, &err), SV_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "longer than"));
    sv_buf_fini(&b);
}

/* Names with NUL bytes are names like others. */
static void nul_bytes(void **state)
{
    const char *text =
        WITH("\"added_tokens\":[{\"id\":5,\"content\":\"<\\u0000>\",\"special\":true}]");
    struct sv_tokenizer *tok;
    struct sv_ids ids = {0};
    struct sv_buf out;

    (void)state;
    sv_buf_init(&out);
    assert_int_equal(parse(&tok, text, strlen(text), NULL), SV_OK);
    assert_int_equal(sv_tokenizer_encode(tok, NULL, "a<\0>b", 5, SV_ENC_SPECIAL, &ids, NULL),
                     SV_OK);
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.id[1], 5);
    assert_int_equal(sv_tokenizer_decode(tok, ids.id, ids.n, false, &out), SV_OK);
    assert_int_equal(out.len, 5);
    assert_memory_equal(out.data, "a<\0>b", 5);
    sv_buf_fini(&out);
    sv_ids_fini(&ids);
    sv_tokenizer_close(tok);
}

/* ---------------------------------------------------------------- running out of memory */

static void fault_file(struct sv_buf *b)
{
    static const char *const text = WITH("\"normalizer\":{\"type\":\"NFC\"},\"added_tokens\":[{"
                                         "\"id\":5,\"content\":\"<e\\u0301>\",\"special\":true,"
                                         "\"normalized\":true},{\"id\":6,\"content\":\"<b>\","
                                         "\"normalized\":false}],\"post_processor\":{\"type\":"
                                         "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
                                         "\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                                         "\"special_tokens\":{\"x\":{\"ids\":[5]}}}");
    const char *end = strstr(text, "\"pre_tokenizer\"");
    assert_non_null(end);
    sv_buf_append(b, "{", 1);
    sv_buf_append(b, end, strlen(end));
    char *kind = strstr(b->data, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}");
    assert_non_null(kind);
    struct sv_buf out;
    sv_buf_init(&out);
    sv_buf_append(&out, b->data, (size_t)(kind - b->data));
    sv_buf_printf(&out, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
                        "{\"Regex\":\"[a-c]+|x\"},"
                        "\"behavior\":\"MergedWithNext\",\"invert\":false},{\"type\":\"ByteLevel\","
                        "\"add_prefix_space\":true}]}");
    kind = strchr(kind, '}') + 1;
    sv_buf_append(&out, kind, strlen(kind));
    sv_buf_fini(b);
    *b = out;
}

static void faults(void **state)
{
    struct sv_buf file, text;
    int64_t live = sv_alloc_live(), used;
    bool done = false;

    (void)state;
    sv_buf_init(&file);
    sv_buf_init(&text);
    fault_file(&file);
    for (int i = 0; i < 3000; i++)
        sv_buf_append(&text, "abab", 4);
    sv_buf_printf(&text, " <e\xCC\x81> e\xCC\x81\xCC\xA3 <b> \xff x1x22 ");
    used = sv_alloc_live();
    for (int64_t nth = 1; !done; nth++) {
        struct sv_tokenizer *tok = NULL;
        struct sv_ids ids = {0};
        struct sv_err err;
        struct sv_buf out;
        int rc;
        sv_buf_init(&out);
        sv_fault_arm(nth);
        rc = sv_tokenizer_parse(&tok, file.data, file.len, &err);
        if (rc == SV_OK)
            rc = sv_tokenizer_encode(tok, NULL, text.data, text.len, 3, &ids, &err);
        if (rc == SV_OK)
            rc = sv_tokenizer_decode(tok, ids.id, ids.n, false, &out);
        done = sv_fault_calls() < nth;
        sv_fault_arm(0);
        if (done ? rc != SV_OK : rc != SV_ENOMEM)
            fail_msg("call %lld: %d %s", (long long)nth, rc, rc < 0 ? err.msg : "");
        sv_buf_fini(&out);
        sv_ids_fini(&ids);
        sv_tokenizer_close(tok);
        if (sv_alloc_live() != used)
            fail_msg("call %lld: %lld blocks leaked", (long long)nth,
                     (long long)(sv_alloc_live() - used));
        assert_true(nth < 100000);
    }
    sv_buf_fini(&file);
    sv_buf_fini(&text);
    assert_int_equal(sv_alloc_live(), live);
}

/* A scratch that has seen an error works for the next text, and an error leaves the output as it
 * was. */
static void scratch_survives(void **state)
{
    struct sv_tokenizer *tok;
    struct sv_ids ids = {0};
    struct sv_err err;
    struct sv_buf file, text;

    (void)state;
    sv_buf_init(&file);
    sv_buf_init(&text);
    fault_file(&file);
    for (int i = 0; i < 3000; i++)
        sv_buf_append(&text, "\xff e\xCC\x81 abab<b>", 13);
    assert_int_equal(sv_tokenizer_parse(&tok, file.data, file.len, &err), SV_OK);
    for (int64_t nth = 1;; nth++) {
        struct sv_enc_scratch *s = sv_enc_scratch_new();
        int rc;
        bool done;
        assert_int_equal(sv_tokenizer_encode(tok, s, "ab", 2, 3, &ids, &err), SV_OK);
        size_t before = ids.n;
        sv_fault_arm(nth);
        rc = sv_tokenizer_encode(tok, s, text.data, text.len, 3, &ids, &err);
        done = sv_fault_calls() < nth;
        sv_fault_arm(0);
        assert_int_equal(rc, done ? SV_OK : SV_ENOMEM);
        if (!done)
            assert_int_equal(ids.n, before);
        ids.n = 0;
        assert_int_equal(sv_tokenizer_encode(tok, s, text.data, text.len, 3, &ids, &err), SV_OK);
        sv_ids_fini(&ids);
        sv_enc_scratch_free(s);
        if (done)
            break;
    }
    sv_tokenizer_close(tok);
    sv_buf_fini(&file);
    sv_buf_fini(&text);
}

static void write_file(const char *name, const char *text)
{
    assert_int_equal(sv_file_write(sv_test_tmp(name), text, strlen(text), NULL), SV_OK);
}

/* A directory as published: tokenizer_config.json adds tokens and changes flags. */
static void open_dir(void **state)
{
    struct sv_tokenizer *tok;
    struct sv_err err;
    const char *dir = sv_test_tmp(".");

    (void)state;
    assert_int_equal(sv_tokenizer_open(&tok, sv_test_path("tests/token/nowhere"), &err), SV_EIO);
    assert_non_null(strstr(err.msg, "tokenizer.json"));
    write_file("tokenizer.json",
               WITH("\"added_tokens\":[{\"id\":4,\"content\":\"<x>\",\"special\":false,"
                    "\"normalized\":false}]"));
    if (sv_tokenizer_open(&tok, dir, &err) < 0)
        fail_msg("%s", err.msg);
    assert_false(sv_tokenizer_is_special(tok, 4));
    sv_tokenizer_close(tok);
    write_file("tokenizer_config.json", "{\"model_max_length\":1000000000000000019884624838656,"
                                        "\"added_tokens_decoder\":{\"4\":{\"content\":\"<x>\","
                                        "\"special\":true},\"5\":{\"content\":\"<y>\",\"special\":"
                                        "true,\"normalized\":false}},\"x\":[null]}");
    if (sv_tokenizer_open(&tok, dir, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(sv_tokenizer_is_special(tok, 4));
    assert_int_equal(sv_tokenizer_find(tok, "<y>"), 5);
    assert_int_equal(sv_tokenizer_n_tokens(tok), 6);
    sv_tokenizer_close(tok);
    write_file("tokenizer_config.json", "{\"added_tokens_decoder\":{\"7\":{\"content\":\"ab\"}}}");
    assert_int_equal(sv_tokenizer_open(&tok, dir, &err), SV_EFORMAT);
    assert_non_null(strstr(err.msg, "tokenizer_config.json"));
    assert_non_null(strstr(err.msg, "added_tokens_decoder['7']"));
}

/* The fuzz target's seeds are whole files, or its mutations would never get past the first
 * field. */
static void fuzz_seeds(void **state)
{
    static const char *const names[] = {"qwen", "gpt2", "plain", "prefix", "general", "template"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char relative[128];
        snprintf(relative, sizeof relative, "tests/fuzz/corpus/tokenizer/%s.json", names[i]);
        sv_tokenizer_close(golden_tokenizer(sv_test_path(relative)));
    }
}

SV_TEST_MAIN(cmocka_unit_test(open_dir), cmocka_unit_test(fuzz_seeds), cmocka_unit_test(good_file),
             cmocka_unit_test(whole_words), cmocka_unit_test(bad_files),
             cmocka_unit_test(cut_and_damaged), cmocka_unit_test(deep_and_large),
             cmocka_unit_test(nul_bytes), cmocka_unit_test(faults),
             cmocka_unit_test(scratch_survives))
