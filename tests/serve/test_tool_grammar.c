/*
 * test_tool_grammar.c - the grammars of answers that must call tools: what they take and what not,
 * and that the parser of answers reads every text of theirs as calls that fit.
 */
#include "grammar/grammar.h"
#include "serve/core/tools.h"
#include "testing.h"

#include <string.h>

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}},"
    "\"required\":[\"a\",\"b\"],\"additionalProperties\":false},\"strict\":true}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"no\\\"w\"}}]";
static const char one[] = "{\"function\":{\"name\":\"now\",\"parameters\":null}}";

/* A token for each byte, and 256 for the end. */
static const char *bytes(void *arg, int32_t id, size_t *n)
{
    char *all = arg;

    all[id] = (char)id;
    *n = id < 256;
    return all + id;
}

static struct sv_vocab *open_vocab(void)
{
    static char all[257];
    static const int32_t end[] = {256};
    struct sv_vocab *v;
    struct sv_err err;

    assert_int_equal(sv_vocab_open(&v, 257, bytes, all, end, 1, &err), SV_OK);
    return v;
}

static bool takes(struct sv_grammar *g, struct sv_vocab *v, const char *text)
{
    struct sv_matcher *m;
    struct sv_err err;
    bool ok = true;

    assert_int_equal(sv_matcher_open(&m, g, v, &err), SV_OK);
    for (const char *s = text; *s && ok; s++)
        ok = sv_matcher_advance(m, (unsigned char)*s);
    ok = ok && sv_matcher_may_end(m);
    sv_matcher_close(m);
    return ok;
}

static struct sv_grammar *make(const struct sv_tool_constraint *f, const char *text)
{
    struct sv_grammar *g;
    struct sv_err err = {0};

    if (sv_tool_grammar(&g, f, text, strlen(text), &err))
        fail_msg("%s", err.msg);
    return g;
}

#define ADD "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": -2}}"
#define NOW "{\"name\": \"no\\\"w\", \"arguments\": {}}"
#define TAGS(x) "<tool_call>\n" x "\n</tool_call>"

static void texts_that_fit(void **state)
{
    static const struct {
        struct sv_tool_constraint f;
        const char *text;
        bool ok;
    } list[] = {
        {{.tags = true, .many = true}, TAGS(ADD), true},
        {{.tags = true, .many = true}, TAGS(ADD) "\n" TAGS(NOW) "\n" TAGS(ADD), true},
        {{.tags = true, .many = true}, "", false},
        {{.tags = true, .many = true}, "I add. " TAGS(ADD), false},
        {{.tags = true, .many = true}, TAGS("{\"name\": \"x\", \"arguments\": {}}"), false},
        {{.tags = true, .many = true}, TAGS("{\"name\": \"add\", \"arguments\": {}}"), false},
        {{.tags = true, .many = true},
         TAGS("{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"2\"}}"),
         false},
        {{.tags = true, .many = true},
         TAGS("{\"name\": \"no\\\"w\", \"arguments\": {\"a\": 1}}"),
         false},
        {{.tags = true}, TAGS(ADD), true},
        {{.tags = true}, TAGS(ADD) "\n" TAGS(NOW), false},
        {{.many = true}, "{\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": 2}}", true},
        {{.many = true},
         "{\"name\": \"no\\\"w\", \"parameters\": {}}; "
         "{\"name\": \"no\\\"w\", \"parameters\": {}}",
         true},
        {{.many = true}, TAGS(ADD), false},
        {{.tags = true, .free = true, .many = true}, "No <tool> needed.", true},
        {{.tags = true, .free = true, .many = true}, "", true},
        {{.tags = true, .free = true, .many = true},
         "I add.\n" TAGS(ADD) "\n" TAGS(NOW) " ok",
         true},
        {{.tags = true, .free = true, .many = true},
         TAGS("{\"name\": \"no\\\"w\", \"arguments\": {\"any\": [1]}}"),
         true},
        {{.tags = true, .free = true, .many = true},
         "x" TAGS("{\"name\": \"add\", \"arguments\": {\"c\": 1}}"),
         false},
        {{.tags = true, .free = true, .many = true}, "x<tool_call>", false},
        {{.arguments = true}, "{\"a\": 1, \"b\": -2}", true},
        {{.arguments = true}, "{\"a\": 1}", false},
        {{.arguments = true}, ADD, false},
    };
    struct sv_vocab *v = open_vocab();
    (void)state;

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        struct sv_grammar *g = make(&list[i].f, tools);
        if (takes(g, v, list[i].text) != list[i].ok)
            fail_msg("case %zu: %s", i, list[i].text);
        sv_grammar_unref(g);
    }
    struct sv_grammar *g = make(&(struct sv_tool_constraint){.many = false}, one);
    assert_true(takes(g, v, "{\"name\": \"now\", \"parameters\": {}}"));
    sv_grammar_unref(g);
    g = make(&(struct sv_tool_constraint){.arguments = true}, one);
    assert_true(takes(g, v, "{}") && !takes(g, v, "{\"a\": 1}"));
    sv_grammar_unref(g);
    sv_vocab_close(v);
}

/* ---------------------------------------------------------------- what comes of them */

struct got {
    struct sv_buf args;
    int n_calls, n_other;
};

static void on_part(void *user, const struct sv_part *p)
{
    struct got *g = user;

    g->n_calls += p->kind == SV_PART_CALL_END;
    g->n_other += p->kind == SV_PART_CONTENT || p->kind == SV_PART_REASONING;
    if (p->kind == SV_PART_ARGUMENTS)
        sv_buf_append(&g->args, p->text, p->n);
}

/* A walk by chance through what may come; then the answer is calls and nothing else. */
static void walk(struct sv_grammar *g, struct sv_vocab *v, const struct sv_tool_constraint *f,
                 struct sv_rng *rng)
{
    struct got got = {.n_calls = 0};
    struct sv_answer *a = sv_answer_new(&(struct sv_answer_opts){
        .tools = f->tags ? SV_TOOL_HERMES : SV_TOOL_LLAMA, .part = on_part, .user = &got});
    struct sv_matcher *m;
    struct sv_err err;
    bool over = false;

    assert_int_equal(sv_matcher_open(&m, g, v, &err), SV_OK);
    while (!over) {
        uint32_t words[9];
        int32_t id = (int32_t)sv_rng_below(rng, 257);
        sv_matcher_mask(m, words);
        for (int32_t i = 0; !(words[id / 32] >> (id % 32) & 1); i++) {
            assert_true(i < 257);
            id = (id + 1) % 257;
        }
        if (sv_matcher_may_end(m) && sv_rng_below(rng, 2))
            id = 256;
        over = id == 256;
        char c = (char)id;
        assert_true(sv_matcher_advance(m, id));
        assert_true(over || sv_answer_push(a, &c, 1));
    }
    assert_true(sv_answer_end(a, false));
    assert_true(got.n_calls >= 1 && (f->many || got.n_calls == 1));
    assert_int_equal(got.n_other, 0);
    assert_non_null(got.args.data);
    assert_true(got.args.data[0] == '{');
    sv_buf_fini(&got.args);
    sv_answer_free(a);
    sv_matcher_close(m);
}

static void every_text_is_read_as_calls(void **state)
{
    struct sv_vocab *v = open_vocab();
    struct sv_rng rng = {3};
    (void)state;

    for (int k = 0; k < 4; k++) {
        const struct sv_tool_constraint f = {.tags = k & 1, .many = k & 2};
        struct sv_grammar *g = make(&f, tools);
        for (int i = 0; i < 50; i++)
            walk(g, v, &f, &rng);
        sv_grammar_unref(g);
    }
    sv_vocab_close(v);
}

static void schemas_that_are_wrong(void **state)
{
    static const char bad[] = "[{\"function\":{\"name\":\"a\"}},{\"function\":{\"name\":\"b\","
                              "\"parameters\":{\"type\":\"thing\"}}}]";
    struct sv_grammar *g;
    struct sv_err err = {0};
    (void)state;

    assert_true(sv_tool_grammar(&g, &(struct sv_tool_constraint){.many = true}, bad, sizeof bad - 1,
                                &err) < 0);
    assert_non_null(strstr(err.msg, "tools[1].function.parameters"));
}

static void no_memory(void **state)
{
    struct sv_vocab *v = open_vocab();
    (void)state;

    for (int k = 0; k < 3; k++) {
        const struct sv_tool_constraint f = {.tags = k != 1, .many = true, .free = k == 2};
        int rc = SV_ENOMEM;
        for (int64_t nth = 1; rc; nth++) {
            struct sv_grammar *g = NULL;
            struct sv_err err = {0};
            sv_fault_arm(nth);
            rc = sv_tool_grammar(&g, &f, tools, sizeof tools - 1, &err);
            sv_fault_arm(0);
            assert_true(!rc || !g);
            sv_grammar_unref(g);
            nth += nth / 8;
        }
    }
    sv_vocab_close(v);
}

SV_TEST_MAIN(cmocka_unit_test(texts_that_fit), cmocka_unit_test(every_text_is_read_as_calls),
             cmocka_unit_test(schemas_that_are_wrong), cmocka_unit_test(no_memory))
