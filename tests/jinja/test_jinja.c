/*
 * test_jinja.c - chat templates: renders equal Python's jinja2, errors, limits, memory faults,
 * chat_template files.
 *
 * Run by the test runner; reads tests/jinja (written by tools/golden/make_jinja.py) and
 * models/demo only.
 */
#include "jinja/jinja.h"
#include "testing.h"

#include <string.h>
#include <sys/stat.h>

static json_t *load(const char *name)
{
    char relative[128];
    struct sv_err err;
    json_t *j;

    snprintf(relative, sizeof relative, "tests/jinja/%s", name);
    j = sv_json_load(sv_test_path(relative), 64 << 20, &err);
    if (!j)
        fail_msg("%s", err.msg);
    return j;
}

static int render(const char *text, size_t n, const json_t *context,
                  const struct sv_template_opts *o, struct sv_buf *out, struct sv_err *err)
{
    struct sv_template *t;
    int rc = sv_template_parse(&t, text, n, err);

    if (rc == SV_OK)
        rc = sv_template_render(t, context, o, out, err);
    sv_template_free(t);
    return rc;
}

/* Whether a render is what the oracle gave: text, null (an error) or {"raise": message}. */
static bool as_wanted(const char *what, const char *text, size_t n, const json_t *context,
                      int64_t now, const json_t *want)
{
    struct sv_template_opts o = {.now = now};
    const char *raise = json_string_value(json_object_get(want, "raise"));
    struct sv_buf out;
    struct sv_err err = {0};
    bool same;
    int rc;

    sv_buf_init(&out);
    rc = render(text, n, context, &o, &out, &err);
    if (json_is_string(want))
        same = rc == SV_OK && out.len == json_string_length(want) &&
               memcmp(out.data ? out.data : "", json_string_value(want), out.len) == 0;
    else
        same = rc < 0 && (!raise || (rc == SV_EINVAL && strcmp(raise, err.msg) == 0));
    if (!same)
        print_error("%s: differs: wanted %s\n  got %s\n", what,
                    json_is_string(want) ? json_string_value(want)
                    : raise              ? raise
                                         : "an error",
                    rc < 0     ? err.msg
                    : out.data ? out.data
                               : "");
    sv_buf_fini(&out);
    return same;
}

static void templates_equal(void **state)
{
    json_t *golden = load("golden.json"), *contexts = load("contexts.json"), *row, *want;
    int64_t now = json_integer_value(json_object_get(golden, "now"));
    const char *file, *name;
    int n = 0, n_bad = 0;

    (void)state;
    json_object_foreach(json_object_get(golden, "results"), file, row) {
        char relative[160], what[256];
        struct sv_buf text;
        struct sv_err err;
        snprintf(relative, sizeof relative, "tests/jinja/%s", file);
        sv_buf_init(&text);
        assert_int_equal(sv_file_read(&text, sv_test_path(relative), 1 << 20, &err), SV_OK);
        json_object_foreach(row, name, want) {
            snprintf(what, sizeof what, "%s with %s", file, name);
            n_bad +=
                !as_wanted(what, text.data, text.len, json_object_get(contexts, name), now, want);
            n++;
        }
        sv_buf_fini(&text);
    }
    print_message("%d of %d renders equal\n", n - n_bad, n);
    assert_int_equal(n_bad, 0);
    json_decref(golden);
    json_decref(contexts);
}

/* SALVO_JINJA_CASES: a file of more cases, made by make_jinja.py --fuzz or --dir, to compare
 * instead. */
static void random_templates_equal(void **state)
{
    const char *more = sv_env("SALVO_JINJA_CASES");
    struct sv_err err;
    json_t *all = more ? sv_json_load(more, (size_t)1 << 30, &err) : load("random.json");
    json_t *cases = json_object_get(all, "cases"), *c;
    int64_t now = json_integer_value(json_object_get(all, "now"));
    size_t i, n_bad = 0;

    if (!all)
        fail_msg("%s", err.msg);
    (void)state;
    json_array_foreach(cases, i, c) {
        const json_t *t = json_object_get(c, "t");
        n_bad += !as_wanted(json_string_value(t), json_string_value(t), json_string_length(t),
                            json_object_get(c, "c"), now, json_object_get(c, "want"));
    }
    print_message("%zu of %zu renders equal\n", json_array_size(cases) - n_bad,
                  json_array_size(cases));
    assert_int_equal(n_bad, 0);
    json_decref(all);
}

static json_t *context_of(const char *json)
{
    struct sv_err err;
    json_t *j = sv_json_parse(json, strlen(json), &err);
    assert_non_null(j);
    return j;
}

/* ---------------------------------------------------------------- errors */

static void check_error(const char *text, int code, int64_t line, const char *part)
{
    json_t *c = context_of("{\"l\": [1, 2], \"d\": {\"k\": \"v\"}, \"s\": \"text\"}");
    struct sv_err err = {0};
    struct sv_buf out;

    sv_buf_init(&out);
    sv_buf_append(&out, "kept", 4);
    assert_int_equal(render(text, strlen(text), c, NULL, &out, &err), code);
    if (!strstr(err.msg, part))
        fail_msg("'%s' is not in '%s'", part, err.msg);
    assert_int_equal(err.pos, line);
    assert_int_equal(out.len, 4);
    sv_buf_fini(&out);
    json_decref(c);
}

static void errors_name_the_place(void **state)
{
    (void)state;
    check_error("a\n{{ x.y }}", SV_EINVAL, 2, "line 2, column 5: 'x' is undefined");
    check_error("{{ d.a.b }}", SV_EINVAL, 1, "'dict object' has no attribute 'a'");
    check_error("{% if %}", SV_EINVAL, 1, "expected an expression, got %}");
    check_error("{% for x in l %}", SV_EINVAL, 1, "expected endfor, got the end of the template");
    check_error("\n\n{{ 'abc }}", SV_EINVAL, 3, "string without end");
    check_error("{{ s | nosuch }}", SV_EINVAL, 1, "no filter named 'nosuch'");
    check_error("{{ s is nosuch }}", SV_EINVAL, 1, "no test named 'nosuch'");
    check_error("{{ l.append(3) }}", SV_EINVAL, 1,
                "access to attribute 'append' of 'list' object is unsafe");
    check_error("{{ d.update({}) }}", SV_EINVAL, 1, "unsafe");
    check_error("{{ 9223372036854775807 + 1 }}", SV_EINVAL, 1, "64 bits");
    check_error("{{ 1 // 0 }}", SV_EINVAL, 1, "division by zero");
    check_error("{{ s + 1 }}", SV_EINVAL, 1, "unsupported operand type(s) for +: 'str' and 'int'");
    check_error("{% break %}", SV_EINVAL, 1, "need a loop");
    check_error("{% include 'x' %}", SV_EUNSUPPORTED, 1, "'include' is not supported");
    check_error("{% extends 'x' %}", SV_EUNSUPPORTED, 1, "'extends' is not supported");
    check_error("{% block x %}{% endblock %}", SV_EUNSUPPORTED, 1, "'block' is not supported");
    check_error("{{ ( }}", SV_EINVAL, 1, "opened");
    check_error("\n{{ raise_exception('no ' ~ s) }}", SV_EINVAL, 2, "no text");
    check_error("\xff", SV_EINVAL, 0, "not UTF-8");
}

static void raise_is_the_message_alone(void **state)
{
    json_t *c = context_of("{}");
    struct sv_buf out;
    struct sv_err err;
    static const char text[] = "{{ raise_exception('Roles must alternate!') }}";

    (void)state;
    sv_buf_init(&out);
    assert_int_equal(render(text, sizeof text - 1, c, NULL, &out, &err), SV_EINVAL);
    assert_string_equal(err.msg, "Roles must alternate!");
    sv_buf_fini(&out);
    json_decref(c);
}

/* ---------------------------------------------------------------- limits */

static void check_limit(const char *text)
{
    json_t *c = context_of("{}");
    struct sv_template_opts o = {.max_output_bytes = 1 << 20,
                                 .max_memory_bytes = 8 << 20,
                                 .max_steps = 1000000,
                                 .max_depth = 200};
    struct sv_buf out;
    struct sv_err err;

    sv_buf_init(&out);
    if (render(text, strlen(text), c, &o, &out, &err) != SV_EFULL)
        fail_msg("no limit stopped %s", text);
    sv_buf_fini(&out);
    json_decref(c);
}

/* The limit holds to the byte, however the text's room has grown: by pieces of 100 it passes 1000
 * between two doublings. */
static void output_limit_is_exact(void **state)
{
    char text[160];
    json_t *c = context_of("{}");
    struct sv_template_opts o = {.max_output_bytes = 1000};
    (void)state;
    for (int n = 9; n <= 12; n++) {
        struct sv_buf out;
        struct sv_err err;
        sv_buf_init(&out);
        snprintf(text, sizeof text, "{%% for i in range(%d) %%}%0100d{%% endfor %%}", n, 0);
        assert_int_equal(render(text, strlen(text), c, &o, &out, &err), n <= 10 ? SV_OK : SV_EFULL);
        assert_int_equal(out.len, n <= 10 ? 100 * n : 0);
        sv_buf_fini(&out);
    }
    json_decref(c);
}

static void hostile_templates_end(void **state)
{
    struct sv_buf deep;

    (void)state;
    check_limit("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
    check_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
    check_limit("{{ 'x' * 9999999999 }}");
    check_limit("{{ [1] * 9999999999 }}");
    check_limit("{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s "
                "+ ns.s %}{% endfor %}");
    check_limit("{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l "
                "%}{% endfor %}");
    check_limit("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}");
    check_limit("{{ '%999999999d' % 1 }}");
    check_limit("{{ 'a' | center(99999999) }}");
    check_limit("{{ 'a\nb' | indent(99999999) }}");
    check_limit("{{ 'a'.ljust(99999999) }}");
    check_limit("{{ {'a': 1} | tojson(indent=99999999) }}");
    check_limit("{% for i in range(99999) %}{{ range(99999) | join }}{% endfor %}");
    check_limit("{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] "
                "%}{% endfor %}{{ ns.l }}");
    sv_buf_init(&deep);
    sv_buf_append(&deep, "{{ ", 3);
    for (int i = 0; i < 100000; i++)
        sv_buf_append(&deep, "(", 1);
    check_limit(deep.data);
    sv_buf_clear(&deep);
    for (int i = 0; i < 100000; i++)
        sv_buf_append(&deep, "{% if x %}", 10);
    check_limit(deep.data);
    sv_buf_clear(&deep);
    sv_buf_append(&deep, "{{ ", 3);
    for (int i = 0; i < 100000; i++)
        sv_buf_append(&deep, "not ", 4);
    check_limit(deep.data);
    sv_buf_fini(&deep);
}

static void memory_may_run_out_anywhere(void **state)
{
    static const char text[] =
        "{% macro f(a, b=2) %}{{ a ~ b }}{% endmacro %}{% for m in l %}{{ f(m) }}{{ loop.index }}"
        "{{ '{\"a\": [1]}' | from_json | tojson(indent=2) }}{% endfor %}{{ 'x' * 9000 }}{{ l | "
        "sort | list }}";
    json_t *c = context_of("{\"l\": [3, 1, 2]}");
    int64_t live = sv_alloc_live();
    int64_t n = 0;

    (void)state;
    for (;;) {
        struct sv_buf out;
        struct sv_err err;
        int rc;
        sv_buf_init(&out);
        sv_fault_arm(++n);
        rc = render(text, sizeof text - 1, c, NULL, &out, &err);
        sv_fault_arm(0);
        sv_buf_fini(&out);
        assert_int_equal(sv_alloc_live(), live);
        if (rc == SV_OK)
            break;
        assert_int_equal(rc, SV_ENOMEM);
    }
    assert_true(n > 5);
    json_decref(c);
}

/* ---------------------------------------------------------------- chat templates of directories */

static void demo_model(void **state)
{
    json_t *c = context_of("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], "
                           "\"add_generation_prompt\": true}");
    struct sv_chat_template *t;
    struct sv_buf out;
    struct sv_err err;

    (void)state;
    if (sv_chat_template_open(&t, sv_test_path("models/demo/target"), &err) < 0)
        fail_msg("%s", err.msg);
    sv_buf_init(&out);
    assert_int_equal(sv_chat_template_render(t, c, NULL, &out, &err), SV_OK);
    assert_string_equal(out.data, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    sv_buf_fini(&out);
    sv_chat_template_close(t);
    json_decref(c);
}

static const char *write_dir(const char *dir, const char *file, const char *text)
{
    char path[512];
    struct sv_err err;
    const char *at = sv_test_tmp(dir);

    mkdir(at, 0777);
    snprintf(path, sizeof path, "%s/%s", at, file);
    assert_int_equal(sv_file_write(path, text, strlen(text), &err), SV_OK);
    return at;
}

static void check_dir(const char *dir, const char *context, const char *want)
{
    json_t *c = context_of(context);
    struct sv_chat_template *t;
    struct sv_buf out;
    struct sv_err err;

    if (sv_chat_template_open(&t, dir, &err) < 0)
        fail_msg("%s", err.msg);
    sv_buf_init(&out);
    assert_int_equal(sv_chat_template_render(t, c, NULL, &out, &err), SV_OK);
    assert_string_equal(out.data, want);
    sv_buf_fini(&out);
    sv_chat_template_close(t);
    json_decref(c);
}

static void template_files(void **state)
{
    static const char named[] =
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"unk_token\": null, "
        "\"chat_template\": ["
        "{\"name\": \"default\", \"template\": \"{{ bos_token }}plain{{ eos_token }}{{ unk_token "
        "is defined }}\"},"
        "{\"name\": \"rag\", \"template\": \"{{\"},"
        "{\"name\": \"tool_use\", \"template\": \"tools {{ tools | length }}\"}]}";
    struct sv_chat_template *t;
    struct sv_err err;
    const char *dir = write_dir("named", "tokenizer_config.json", named);

    (void)state;
    check_dir(dir, "{}", "<s>plain</s>False");
    check_dir(dir, "{\"bos_token\": \"mine \"}", "mine plain</s>False");
    check_dir(dir, "{\"tools\": [1]}", "tools 1");
    check_dir(dir, "{\"tools\": null}", "<s>plain</s>False");
    write_dir("file", "tokenizer_config.json",
              "{\"eos_token\": \"E\", \"chat_template\": \"from config\"}");
    check_dir(write_dir("file", "chat_template.jinja", "from file {{ eos_token }}\n"), "{}",
              "from file E");
    check_dir(write_dir("json", "chat_template.json", "{\"chat_template\": \"from json\"}"), "{}",
              "from json");
    dir = write_dir("none", "tokenizer_config.json", "{}");
    assert_int_equal(sv_chat_template_open(&t, dir, &err), SV_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "no chat template"));
    dir = write_dir("bad", "tokenizer_config.json", "{\"chat_template\": \"{% if %}\"}");
    assert_int_equal(sv_chat_template_open(&t, dir, &err), SV_EINVAL);
    assert_non_null(strstr(err.msg, "tokenizer_config.json"));
    dir = write_dir("number", "tokenizer_config.json", "{\"chat_template\": 5}");
    assert_int_equal(sv_chat_template_open(&t, dir, &err), SV_EFORMAT);
}

/* A prompt has all of the model's tokens, or there is none. */
static void tokens_without_memory(void **state)
{
    const char *dir = write_dir("tokens", "tokenizer_config.json",
                                "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", "
                                "\"chat_template\": \"{{ bos_token }}{{ eos_token }}\"}");
    json_t *c = context_of("{\"messages\": []}");
    struct sv_chat_template *t;
    struct sv_err err;
    int rc = SV_ENOMEM;
    (void)state;

    assert_int_equal(sv_chat_template_open(&t, dir, &err), SV_OK);
    for (int64_t nth = 1; rc; nth++) {
        struct sv_buf out;
        sv_buf_init(&out);
        sv_fault_arm(nth);
        rc = sv_chat_template_render(t, c, NULL, &out, &err);
        sv_fault_arm(0);
        if (rc)
            assert_int_equal(rc, SV_ENOMEM);
        else
            assert_string_equal(out.data, "<s></s>");
        sv_buf_fini(&out);
    }
    sv_chat_template_close(t);
    json_decref(c);
}

SV_TEST_MAIN(cmocka_unit_test(templates_equal), cmocka_unit_test(random_templates_equal),
             cmocka_unit_test(errors_name_the_place), cmocka_unit_test(raise_is_the_message_alone),
             cmocka_unit_test(output_limit_is_exact), cmocka_unit_test(hostile_templates_end),
             cmocka_unit_test(memory_may_run_out_anywhere), cmocka_unit_test(demo_model),
             cmocka_unit_test(template_files), cmocka_unit_test(tokens_without_memory))
