/*
 * test_schema.c - JSON schemas as grammars: for each schema texts that must be taken and texts that
 * must not, and schemas that must be refused with the place named.
 */
#include "testing.h"
#include "grammar/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Texts are separated by newlines; bad ones must not be taken as a whole (a part of them may). */
struct row {
    const char *schema, *good, *bad;
};

static struct sv_grammar *make(const char *schema)
{
    const struct sv_schema_style compact = {.compact = true};
    struct sv_grammar *g = NULL;
    struct sv_err err;

    if (sv_grammar_schema(&g, schema, strlen(schema), &compact, &err) != SV_OK)
        fail_msg("%s: %s", schema, err.msg);
    return g;
}

static void check_texts(struct words *w, struct sv_grammar *g, const char *schema,
                        const char *texts, bool good)
{
    while (texts && *texts) {
        size_t n = strcspn(texts, "\n");
        if (words_matches(w, g, texts, n) != good)
            fail_msg("%s: %.*s is %s (%d bytes of it are taken)", schema, (int)n, texts,
                     good ? "refused" : "taken", (int)words_takes(w, g, texts, n));
        texts += n + (texts[n] == '\n');
    }
}

static void check_rows(const struct row *rows, size_t n)
{
    struct words w;

    words_open(&w, words_common, words_n_common);
    for (size_t i = 0; i < n; i++) {
        struct sv_grammar *g = make(rows[i].schema);
        check_texts(&w, g, rows[i].schema, rows[i].good, true);
        check_texts(&w, g, rows[i].schema, rows[i].bad, false);
        sv_grammar_unref(g);
    }
    words_close(&w);
}

#define ROWS(rows) check_rows(rows, sizeof(rows) / sizeof(rows)[0])

static void types(void **state)
{
    static const struct row rows[] = {
        {"{}", "null\ntrue\n1\n-1.5e3\n\"a\"\n[]\n{}\n[1,[],{\"a\":{}}]\n{\"a\":1,\"b\":[null]}",
         "nul\n01\n[1,]\n{,}\n{\"a\"}\n\"\t\"\n'a'"},
        {"true", "1\n{}", "-\n"},
        {" true\n", "1\n{}", "-\n"},
        {"{\"type\":\"null\"}", "null", "nul\n0\n\"null\""},
        {"{\"type\":\"boolean\"}", "true\nfalse", "True\n1\nnull"},
        {"{\"type\":\"integer\"}", "0\n-1\n10\n12345678901234567890", "01\n-0\n1.0\n1e2\n+1\n-"},
        {"{\"type\":\"number\"}", "0\n-0.5\n1.25\n1e5\n-1.5E-07\n0.10",
         "01\n.5\n1.\n1e\n--1\n1e999"},
        {"{\"type\":\"string\"}", "\"\"\n\"a b\"\n\"\\n\\u00e4\"\n\"\\ud83d\\ude00\"\n\"ä€😀\"",
         "\"\n\"\\x\"\n\"\\ud83d\"\n\"\\ud83d\\u0041\"\n\"\\ude00\"\n\"\\u0000\"\n\"\x80\"\n\"\xed\xa0\x80\""},
        {"{\"type\":[\"string\",\"null\"]}", "null\n\"a\"", "1\ntrue"},
        {"{\"type\":\"integer\",\"nullable\":true}", "null\n5", "\"\""},
        {"{\"type\":\"array\"}", "[]\n[1,\"a\",[]]", "[1 2]\n[,]\n{}"},
        {"{\"type\":\"object\"}", "{}\n{\"a\":1,\"b\":{}}", "{\"a\":}\n{1:2}\n[]"},
        {"{\"title\":\"x\",\"description\":\"y\",\"default\":1,\"type\":\"null\"}", "null", "1"},
        {"{\"minLength\":2}", "\"ab\"", "\"a\"\n1"},
    };
    (void)state;
    ROWS(rows);
}

static void values(void **state)
{
    static const struct row rows[] = {
        {"{\"enum\":[\"a\",\"b\\n\",1,null,[1,{\"k\":true}],1.5]}",
         "\"a\"\n\"b\\n\"\n1\nnull\n[1,{\"k\":true}]\n1.5", "\"c\"\n2\n[1]\n\"\"\ntrue"},
        {"{\"const\":{\"a\":[]}}", "{\"a\":[]}", "{}\n{\"a\":[1]}"},
        {"{\"const\":0.1}", "0.1", "0\n0.10\n0.2"},
        {"{\"type\":\"string\",\"enum\":[1,\"x\"]}", "\"x\"", "1"},
        {"{\"enum\":[1,2,3,10],\"minimum\":2,\"maximum\":9}", "2\n3", "1\n10"},
        {"{\"enum\":[\"ab\",\"abc\",\"b\"],\"pattern\":\"^a\",\"maxLength\":2}", "\"ab\"",
         "\"abc\"\n\"b\""},
        {"{\"enum\":[1,2],\"const\":2}", "2", "1"},
        {"{\"enum\":[1.0,2.5],\"type\":\"integer\"}", "1", "2.5\n2"},
        {"{\"enum\":[{\"a\":1},{\"a\":\"x\"}],\"properties\":{\"a\":{\"type\":\"string\"}}}",
         "{\"a\":\"x\"}", "{\"a\":1}"},
    };
    (void)state;
    ROWS(rows);
}

static void numbers(void **state)
{
    static const struct row rows[] = {
        {"{\"type\":\"integer\",\"minimum\":0}", "0\n7\n123456789012345678901", "-1\n-0"},
        {"{\"type\":\"integer\",\"minimum\":-5,\"maximum\":15}", "-5\n-1\n0\n9\n15",
         "-6\n16\n100\n-10"},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":101}", "10\n55\n100",
         "9\n101\n1000\n0"},
        {"{\"type\":\"integer\",\"minimum\":5,\"exclusiveMinimum\":true}", "6", "5"},
        {"{\"type\":\"integer\",\"minimum\":-2.5,\"maximum\":2.5}", "-2\n0\n2", "-3\n3"},
        {"{\"type\":\"integer\",\"maximum\":-10}", "-10\n-11\n-100", "-9\n0\n10"},
        {"{\"type\":\"integer\",\"exclusiveMaximum\":-5,\"minimum\":-12}", "-6\n-12",
         "-5\n-13\n0\n5"},
        {"{\"type\":\"number\",\"exclusiveMinimum\":-5,\"maximum\":-1}", "-4.9\n-1\n-1.0",
         "-5\n-5.0\n-0.9"},
        {"{\"type\":\"integer\",\"minimum\":5,\"allOf\":[{\"exclusiveMinimum\":5},{\"maximum\":9},"
         "{\"exclusiveMaximum\":9}]}",
         "6\n8", "5\n9"},
        {"{\"type\":\"integer\",\"multipleOf\":5}", "0\n5\n-10\n100", "1\n12\n-4"},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":10,\"maximum\":30}", "14\n21\n28",
         "7\n15\n35"},
        {"{\"type\":\"integer\",\"multipleOf\":2.5}", "0\n5\n10\n-5", "1\n2\n3"},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "0\n1\n0.5\n1.0\n0.000\n0.25",
         "1.1\n-0.1\n2\n1.01\n10"},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0}", "0.1\n1\n100.5\n0.001",
         "0\n0.0\n-1\n0.000"},
        {"{\"type\":\"number\",\"exclusiveMaximum\":0.25}", "0.2\n0.249\n-5\n-0.1\n0",
         "0.25\n0.250\n0.3\n1"},
        {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":-0.5}", "-1.5\n-1\n-0.5\n-0.75\n-1.500",
         "-1.51\n-0.4\n0\n-2\n1"},
        {"{\"type\":\"number\",\"minimum\":0.75,\"exclusiveMaximum\":1}", "0.75\n0.8\n0.999",
         "0.7\n1\n0\n1.0"},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":0.75,\"multipleOf\":0.25}",
         "0.25\n0.5\n0.75", "0\n1\n0.1"},
        {"{\"type\":\"number\",\"multipleOf\":0.01}", "0\n1.25\n-3.1\n10", "0.001\n1.255"},
        {"{\"type\":\"number\",\"multipleOf\":0.5}", "0.5\n1.0\n2\n-1.5", "0.25\n0.3"},
        {"{\"type\":\"number\",\"minimum\":1e-3,\"maximum\":1e3}", "0.001\n1000\n5",
         "0.0009\n1000.1"},
        {"{\"type\":\"integer\",\"format\":\"int8\"}", "-128\n127\n0", "-129\n128"},
        {"{\"allOf\":[{\"minimum\":3},{\"maximum\":5}],\"type\":\"integer\",\"minimum\":2}", "3\n5",
         "2\n6"},
        {"{\"type\":\"integer\",\"minimum\":9223372036854775806,\"maximum\":9223372036854775807}",
         "9223372036854775806\n9223372036854775807",
         "9223372036854775805\n0\n9223372036854775808\n99999999999999999999"},
    };
    (void)state;
    ROWS(rows);
}

static void strings(void **state)
{
    static const struct row rows[] = {
        {"{\"type\":\"string\",\"minLength\":1,\"maxLength\":3}",
         "\"a\"\n\"äöü\"\n\"\\n\\u0041b\"\n\"\\ud83d\\ude00\"", "\"\"\n\"abcd\""},
        {"{\"type\":\"string\",\"maxLength\":0}", "\"\"", "\"a\""},
        {"{\"type\":\"string\",\"minLength\":2}", "\"ab\"\n\"abcdefgh\"", "\"\"\n\"a\""},
        {"{\"type\":\"string\",\"pattern\":\"^[a-c]+$\"}", "\"abc\"\n\"a\"",
         "\"\"\n\"abd\"\n\"\\u0061\""},
        {"{\"type\":\"string\",\"pattern\":\"b\"}", "\"b\"\n\"abc\"\n\"\\nb\\\"\"", "\"\"\n\"a\""},
        {"{\"type\":\"string\",\"pattern\":\"^x|y$\"}", "\"xa\"\n\"ay\"\n\"x\"", "\"ax\"\n\"ya\""},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\d{3}-\\\\d{4}$\"}", "\"123-4567\"",
         "\"12-4567\"\n\"123-45678\""},
        {"{\"type\":\"string\",\"pattern\":\"^[^\\\"]*$\"}", "\"a\\\\b\"\n\"\\n\\t\"\n\"ä\"",
         "\"\\\"\""},
        {"{\"type\":\"string\",\"pattern\":\"^\\\"\\\\\\\\/$\"}", "\"\\\"\\\\/\"\n\"\\\"\\\\\\/\"",
         "\"\\\"\\\\\""},
        {"{\"type\":\"string\",\"pattern\":\"^a*$\",\"minLength\":2,\"maxLength\":4}",
         "\"aa\"\n\"aaaa\"", "\"a\"\n\"aaaaa\"\n\"ab\""},
        {"{\"type\":\"string\",\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}",
         "\"ab\"\n\"xbya\"", "\"a\"\n\"b\"\n\"\""},
        {"{\"type\":\"string\",\"pattern\":\"^(?:ab|c)*?d?$\"}", "\"\"\n\"abcd\"\n\"cab\"",
         "\"a\"\n\"dd\""},
        {"{\"type\":\"string\",\"pattern\":\"^.$\"}", "\"a\"\n\"€\"\n\"\\\\\"",
         "\"\\n\"\n\"ab\"\n\"\""},
        {"{\"type\":\"string\",\"pattern\":\"^[ä-ü]$\"}", "\"ö\"", "\"a\"\n\"ÿ\""},
        /* zod's email, pydantic's Decimal */
        {"{\"type\":\"string\",\"format\":\"email\",\"pattern\":\"^(?!\\\\.)(?!.*\\\\.\\\\.)([A-Za-z0-9_'+\\\\-"
         "\\\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\\\-]*\\\\.)+[A-Za-z]{2,}$\"}",
         "\"a.b@c.de\"\n\"x+y@a-b.c.org\"", "\".a@c.de\"\n\"a..b@c.de\"\n\"a@c\"\n\"a@c.d\""},
        {"{\"type\":\"string\",\"pattern\":\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}",
         "\"1\"\n\"-0.5\"\n\".5\"\n\"1.\"", "\"\"\n\"-\"\n\".\"\n\"+.\"\n\"1.2.3\""},
        {"{\"type\":\"string\",\"pattern\":\"^(?=.*[0-9])(?=.*[a-z])(?!b|c)[a-z0-9]{3}$\"}",
         "\"a1b\"\n\"1ab\"", "\"abc\"\n\"123\"\n\"b1a\"\n\"a1\""},
        {"{\"type\":\"string\",\"format\":\"date\"}",
         "\"2024-02-29\"\n\"1999-12-31\"\n\"2000-02-29\"",
         "\"2023-02-29\"\n\"1900-02-29\"\n\"2024-13-01\"\n\"2024-04-31\"\n\"0000-01-01\"\n\"24-01-01\""},
        {"{\"type\":\"string\",\"format\":\"time\"}", "\"23:59:59Z\"\n\"00:00:00.5+01:30\"",
         "\"24:00:00Z\"\n\"12:60:00Z\"\n\"12:00:00\""},
        {"{\"type\":\"string\",\"format\":\"date-time\"}", "\"2024-05-06T07:08:09Z\"",
         "\"2024-05-06\"\n\"2024-05-06 07:08:09Z\""},
        {"{\"type\":\"string\",\"format\":\"duration\"}",
         "\"P1D\"\n\"PT5M\"\n\"P1Y2M3DT4H5M6S\"\n\"P2W\"", "\"P\"\n\"PT\"\n\"1D\"\n\"P1S\""},
        {"{\"type\":\"string\",\"format\":\"uuid\"}", "\"123e4567-e89b-12d3-a456-426614174000\"",
         "\"123e4567e89b12d3a456426614174000\""},
        {"{\"type\":\"string\",\"format\":\"email\"}", "\"a.b+c@example.org\"",
         "\"a@b\"\n\"@x.y\"\n\"a..b@c.de\""},
        {"{\"type\":\"string\",\"format\":\"hostname\"}", "\"example.org\"\n\"a-b.c\"",
         "\"-a\"\n\"a-\"\n\"a..b\""},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}", "\"0.0.0.0\"\n\"255.249.1.10\"",
         "\"256.1.1.1\"\n\"1.1.1\"\n\"01.1.1.1\""},
        {"{\"type\":\"string\",\"format\":\"ipv6\"}",
         "\"::\"\n\"::1\"\n\"1:2:3:4:5:6:7:8\"\n\"fe80::1:2\"\n\"1::\"",
         "\":::\"\n\"1:2:3:4:5:6:7\"\n\"1::2::3\"\n\"1:2:3:4:5:6:7:8:9\"\n\":1\""},
        {"{\"type\":\"string\",\"format\":\"uri\"}",
         "\"https://example.org/a?b=c#d\"\n\"urn:isbn:12\"",
         "\"example\"\n\"http:\"\n\"http://a b\""},
        {"{\"type\":\"string\",\"format\":\"password\"}", "\"x\"", "1"},
        {"{\"type\":\"string\",\"format\":\"ipv4\",\"maxLength\":7}", "\"1.2.3.4\"",
         "\"10.2.3.4\""},
    };
    (void)state;
    ROWS(rows);
}

static void arrays(void **state)
{
    static const struct row rows[] = {
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", "[]\n[1]\n[1,2,3]",
         "[\"a\"]\n[1,]"},
        {"{\"items\":{\"type\":\"null\"},\"minItems\":2}", "[null,null]\n[null,null,null]",
         "[]\n[null]"},
        {"{\"items\":{\"type\":\"null\"},\"minItems\":1,\"maxItems\":2}", "[null]\n[null,null]",
         "[]\n[null,null,null]"},
        {"{\"type\":\"array\",\"maxItems\":0}", "[]", "[1]"},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}",
         "[]\n[1]\n[1,\"a\"]", "[\"a\"]\n[1,2]\n[1,\"a\",1]"},
        {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":{\"type\":\"null\"},"
         "\"minItems\":2,\"maxItems\":4}",
         "[1,\"a\"]\n[1,\"a\",null]\n[1,\"a\",null,null]",
         "[1]\n[1,\"a\",1]\n[1,\"a\",null,null,null]"},
        {"{\"items\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"additionalItems\":false}",
         "[1,null]\n[]", "[1,null,1]\n[null]"},
        {"{\"prefixItems\":[{\"type\":\"integer\"},false,{\"type\":\"null\"}]}", "[]\n[1]",
         "[1,2]\n[1,null,null]"},
        {"{\"prefixItems\":[{\"type\":\"integer\"},false],\"minItems\":1}", "[1]", "[]\n[1,2]"},
        {"{\"items\":false}", "[]", "[1]"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"uniqueItems\":true,\"maxItems\":1}",
         "[]\n[null]", "[null,null]"},
        {"{\"prefixItems\":[{\"type\":\"null\"}],\"minItems\":2}", "[null,1]\n[null,\"a\",2]",
         "[null]\n[1,1]"},
    };
    (void)state;
    ROWS(rows);
}

static void objects(void **state)
{
    static const struct row rows[] = {
        {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"}},\"required\":[\"a\",\"b\"]}",
         "{\"a\":1,\"b\":null}",
         "{}\n{\"a\":1}\n{\"b\":null,\"a\":1}\n{\"a\":1,\"b\":null,\"c\":1}"},
        {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"null\"}}}",
         "{}\n{\"a\":1}\n{\"b\":null}\n{\"c\":null}\n{\"a\":1,\"c\":null}\n{\"a\":1,\"b\":null,\"c\":null}",
         "{\"c\":null,\"a\":1}\n{\"a\":1,}\n{,\"b\":null}\n{\"a\":1,\"a\":1}"},
        {"{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"null\"}},\"required\":[\"b\"]}",
         "{\"b\":null}\n{\"a\":null,\"b\":null}\n{\"b\":null,\"c\":null}",
         "{}\n{\"a\":null}\n{\"a\":null,\"c\":null}"},
        {"{\"type\":\"object\",\"properties\":{}}", "{}", "{\"a\":1}"},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
         "{}\n{\"x\":1,\"\":2}", "{\"x\":\"a\"}"},
        {"{\"properties\":{\"ab\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"integer\"}}",
         "{}\n{\"ab\":null}\n{\"ab\":null,\"a\":1,\"abc\":2}\n{\"b\":1}\n{\"\":1}",
         "{\"ab\":1}\n{\"\\u0061b\":1}\n{\"a\":1,\"ab\":null}\n{\"a\":1,\"ab\":1}"},
        {"{\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":true}",
         "{\"a\":null,\"b\":[1]}", "{\"a\":1}"},
        {"{\"type\":\"object\",\"required\":[\"a\"]}", "{\"a\":1}\n{\"a\":{},\"b\":2}",
         "{}\n{\"b\":1}"},
        {"{\"properties\":{\"a\\\"\\n\":{\"type\":\"null\"}},\"required\":[\"a\\\"\\n\"]}",
         "{\"a\\\"\\n\":null}", "{}"},
        {"{\"patternProperties\":{\"^s_\":{\"type\":\"string\"},\"^i_\":{\"type\":\"integer\"}}}",
         "{}\n{\"s_\":\"x\",\"i_a\":1}\n{\"i_\":1}", "{\"s_\":1}\n{\"x\":1}\n{\"i_\":\"a\"}"},
        {"{\"patternProperties\":{\"a\":{\"minimum\":3},\"b\":{\"maximum\":5}},\"additionalProperties\":{\"type\":\"null\"}}",
         "{\"a\":9,\"b\":1,\"ab\":4,\"c\":null}", "{\"ab\":9}\n{\"ba\":1}\n{\"c\":1}\n{\"a\":1}"},
        {"{\"properties\":{\"ax\":{\"type\":\"integer\"}},\"patternProperties\":{\"^a\":{\"minimum\":3}}}",
         "{\"ax\":3}\n{\"ay\":3.5}", "{\"ax\":2}\n{\"ax\":3.5}\n{\"ay\":1}"},
        {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"x\",\"y\"]},\"additionalProperties\":{\"type\":\"integer\"}}",
         "{}\n{\"x\":1,\"y\":2}", "{\"z\":1}"},
        {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]+$\",\"maxLength\":2}}",
         "{\"ab\":1}", "{\"abc\":1}\n{\"A\":1}\n{\"\":1}"},
        {"{\"properties\":{\"a\":{},\"bb\":{}},\"propertyNames\":{\"maxLength\":1}}",
         "{}\n{\"a\":1}", "{\"bb\":1}"},
        {"{\"type\":\"object\",\"minProperties\":1}", "{\"a\":1}\n{\"a\":1,\"b\":1}", "{}"},
        {"{\"type\":\"object\",\"maxProperties\":2}", "{}\n{\"a\":1}\n{\"a\":1,\"b\":2}",
         "{\"a\":1,\"b\":2,\"c\":3}"},
        {"{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"null\"}},\"minProperties\":2}",
         "{\"a\":null,\"c\":null}\n{\"a\":null,\"b\":null,\"c\":null}", "{}\n{\"a\":null}"},
        {"{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"null\"}},\"maxProperties\":1}",
         "{}\n{\"a\":null}\n{\"c\":null}", "{\"a\":null,\"b\":null}"},
        {"{\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":true,\"minProperties\":2,\"maxProperties\":3}",
         "{\"a\":null,\"b\":1}\n{\"a\":null,\"b\":1,\"c\":1}",
         "{}\n{\"a\":null}\n{\"a\":null,\"b\":1,\"c\":1,\"d\":1}\n{\"x\":1,\"x\":1}"},
        {"{\"properties\":{\"a\":{\"type\":\"null\"}},\"minProperties\":2}", "{\"a\":null,\"b\":1}",
         "{}\n{\"a\":null}\n{\"b\":1,\"a\":null}"},
        {"{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":false}}", "{}\n{\"a\":null}",
         "{\"b\":1}"},
        {"{\"type\":\"object\",\"unevaluatedProperties\":false,\"allOf\":[{\"properties\":{\"a\":{\"type\":\"null\"}}}]}",
         "{}\n{\"a\":null}", "{\"b\":1}"},
        {"{\"unevaluatedProperties\":false,\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"anyOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},"
         "{\"additionalProperties\":{\"type\":\"null\"},\"required\":[\"n\"]}]}}}",
         "{\"a\":1}\n{\"n\":null,\"z\":null}", "{\"b\":1}\n{}\n{\"a\":1,\"z\":1}"},
        /* What a subschema does not see beneath itself, it does not allow. */
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"unevaluatedProperties\":false},{\"properties\":{\"b\":{}}}]}",
         "{}\n{\"a\":1}", "{\"b\":1}\n{\"a\":1,\"b\":1}"},
        {"{\"unevaluatedProperties\":false,\"allOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
         "{\"b\":1}\n{\"a\":1,\"b\":1}", "{}\n{\"a\":1}\n{\"b\":1,\"c\":1}"},
    };
    (void)state;
    ROWS(rows);
}

static void combinations(void **state)
{
    static const struct row rows[] = {
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}", "1\n\"a\"",
         "\"ab\"\nnull"},
        {"{\"anyOf\":[{\"minimum\":5},{\"maximum\":3}],\"type\":\"integer\"}", "5\n3\n-1",
         "4\n3.5"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", "1\nnull", "\"a\""},
        {"{\"oneOf\":[{\"properties\":{\"t\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},\"required\":[\"t\",\"x\"]},"
         "{\"properties\":{\"t\":{\"const\":\"b\"},\"y\":{\"type\":\"null\"}},\"required\":[\"t\",\"y\"]}]}",
         "{\"t\":\"a\",\"x\":1}\n{\"t\":\"b\",\"y\":null}",
         "{\"t\":\"a\",\"y\":null}\n{\"t\":\"b\",\"x\":1}\n{\"t\":\"c\"}"},
        {"{\"oneOf\":[{\"type\":\"integer\",\"maximum\":3},{\"type\":\"integer\",\"minimum\":4}]}",
         "3\n4", "3.5"},
        {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
         "{\"properties\":{\"b\":{\"type\":\"null\"}}}]}",
         "{\"a\":1}\n{\"a\":1,\"b\":null}", "{}\n{\"b\":null}\n{\"a\":1,\"c\":1}"},
        {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"number\"}}},{\"properties\":{\"a\":{\"minimum\":3}}}]}",
         "{\"a\":3.5}", "{\"a\":2}\n{\"a\":\"x\"}"},
        {"{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
         "{\"a\":null}\n{\"b\":null}\n{\"a\":null,\"b\":null}", "{}"},
        {"{\"$defs\":{\"p\":{\"type\":\"integer\"}},\"properties\":{\"a\":{\"$ref\":\"#/$defs/p\"}}}",
         "{\"a\":1}", "{\"a\":null}"},
        {"{\"$defs\":{\"a/b~c d\":{\"type\":\"null\"}},\"$ref\":\"#/$defs/a~1b~0c%20d\"}", "null",
         "1"},
        {"{\"definitions\":{\"x\":{\"type\":\"integer\",\"minimum\":2}},\"$ref\":\"#/definitions/x\",\"maximum\":4}",
         "2\n4", "1\n5"},
        {"{\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}",
         "{\"v\":1,\"next\":null}\n{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}",
         "{\"v\":1}\n{\"v\":1,\"next\":{}}"},
        {"{\"$id\":\"http://x/y\",\"$defs\":{\"n\":{\"type\":\"null\"}},\"items\":{\"$ref\":\"http://x/y#/$defs/n\"}}",
         "[null]", "[1]"},
        {"{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}}}}",
         "[]\n[[],[[]]]", "[1]"},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"properties\":{\"x\":{\"$ref\":\"#\"}},\"required\":[\"x\"]}]}",
         "null\n{\"x\":{\"x\":null}}", "{}\n{\"x\":{}}"},
        {"{\"anyOf\":[{\"const\":1},false]}", "1", "2"},
        {"{\"anyOf\":[{\"minimum\":3},{\"maximum\":-3}],\"oneOf\":[{\"type\":\"integer\",\"maximum\":4},"
         "{\"type\":\"integer\",\"minimum\":7}]}",
         "3\n4\n7\n-3\n-9", "2\n5\n0\n-2"},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"allOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}]}",
         "null", "1\n\"a\""},
        {"{\"if\":{\"type\":\"null\"},\"type\":\"null\"}", "null", "1"},
    };
    (void)state;
    ROWS(rows);
}

/* As pydantic, zod and OpenAI's documentation write them. */
static void clients(void **state)
{
    static const struct row rows[] = {
        {"{\"$defs\":{\"Step\":{\"properties\":{\"explanation\":{\"title\":\"Explanation\",\"type\":\"string\"},"
         "\"output\":{\"title\":\"Output\",\"type\":\"string\"}},\"required\":[\"explanation\",\"output\"],"
         "\"title\":\"Step\",\"type\":\"object\",\"additionalProperties\":false}},\"properties\":{\"steps\":{"
         "\"items\":{\"$ref\":\"#/$defs/Step\"},\"title\":\"Steps\",\"type\":\"array\"},\"final_answer\":{"
         "\"title\":\"Final Answer\",\"type\":\"string\"}},\"required\":[\"steps\",\"final_answer\"],"
         "\"title\":\"MathReasoning\",\"type\":\"object\",\"additionalProperties\":false}",
         "{\"steps\":[],\"final_answer\":\"\"}\n{\"steps\":[{\"explanation\":\"a\",\"output\":\"b\"}],"
         "\"final_answer\":\"c\"}",
         "{\"steps\":[]}\n{\"steps\":[{\"output\":\"b\"}],\"final_answer\":\"c\"}"},
        {"{\"type\":\"object\",\"properties\":{\"item\":{\"anyOf\":[{\"type\":\"object\",\"description\":\"The user\","
         "\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"number\"}},"
         "\"additionalProperties\":false,\"required\":[\"name\",\"age\"]},{\"type\":\"object\",\"properties\":{"
         "\"number\":{\"type\":\"string\"}},\"additionalProperties\":false,\"required\":[\"number\"]}]}},"
         "\"additionalProperties\":false,\"required\":[\"item\"]}",
         "{\"item\":{\"name\":\"a\",\"age\":1.5}}\n{\"item\":{\"number\":\"1\"}}",
         "{\"item\":{\"name\":\"a\"}}\n{\"item\":{\"number\":\"1\",\"age\":1}}\n{}"},
        {"{\"$schema\":\"http://json-schema.org/draft-07/schema#\",\"type\":\"object\",\"properties\":{\"unit\":{"
         "\"type\":[\"string\",\"null\"],\"enum\":[\"C\",\"F\",null],\"default\":null},\"kind\":{"
         "\"discriminator\":{\"propertyName\":\"t\"},\"oneOf\":[{\"$ref\":\"#/definitions/A\"},"
         "{\"$ref\":\"#/definitions/B\"}]}},\"required\":[\"unit\",\"kind\"],\"definitions\":{\"A\":{"
         "\"type\":\"object\",\"properties\":{\"t\":{\"type\":\"string\",\"const\":\"a\"}},\"required\":[\"t\"]},"
         "\"B\":{\"type\":\"object\",\"properties\":{\"t\":{\"enum\":[\"b\"]},\"n\":{\"type\":\"integer\"}},"
         "\"required\":[\"t\"]}}}",
         "{\"unit\":null,\"kind\":{\"t\":\"a\"}}\n{\"unit\":\"C\",\"kind\":{\"t\":\"b\",\"n\":1}}",
         "{\"unit\":\"K\",\"kind\":{\"t\":\"a\"}}\n{\"unit\":\"C\",\"kind\":{\"t\":\"a\",\"n\":1}}"},
    };
    (void)state;
    ROWS(rows);
}

/* ---------------------------------------------------------------- space */

static void space(void **state)
{
    static const char schema[] =
        "{\"properties\":{\"a\":{\"type\":\"array\"},\"b\":{}},\"required\":[\"a\"]}";
    static const char *const good[] = {"{\"a\": [1, 2], \"b\": {}}", "{\n  \"a\": [\n    1\n  ]\n}",
                                       "{\n\t\"a\":[],\n\t\"b\":1\n}", "{ \"a\":[ ], \"b\":{ } }",
                                       "{\"a\":[]}"};
    static const char *const bad[] = {" {\"a\":[]}",         "{\"a\" :[]}",    "{\"a\":  []}",
                                      "{\"a\":[] ,\"b\":1}", "{\n\n\"a\":[]}", "{\"a\":[]} ",
                                      "{\"a\":[]}\n"};
    struct sv_grammar *g = NULL;
    struct sv_err err;
    struct words w;
    char text[300];

    (void)state;
    words_open(&w, words_common, words_n_common);
    assert_int_equal(sv_grammar_schema(&g, schema, strlen(schema), NULL, &err), SV_OK);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (!words_matches(&w, g, good[i], strlen(good[i])))
            fail_msg("refused: %s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (words_matches(&w, g, bad[i], strlen(bad[i])))
            fail_msg("taken: %s", bad[i]);
    /* Space ends. */
    snprintf(text, sizeof text, "{\n%200s", "");
    assert_int_equal(words_takes(&w, g, text, strlen(text)), 2 + 20);
    sv_grammar_unref(g);
    words_close(&w);
}

static void any_object(void **state)
{
    struct sv_grammar *g = NULL;
    struct sv_err err;
    struct words w;

    (void)state;
    words_open(&w, words_common, words_n_common);
    assert_int_equal(sv_grammar_json(&g, &err), SV_OK);
    assert_true(words_matches(&w, g, "{\"a\": [1, {\"b\": null}]}", 23));
    assert_true(words_matches(&w, g, "{}", 2));
    assert_false(words_matches(&w, g, "[]", 2));
    assert_false(words_matches(&w, g, "{}}", 3));
    sv_grammar_unref(g);
    words_close(&w);
}

/* ---------------------------------------------------------------- refusals */

static void refused(void **state)
{
    static const struct {
        const char *schema, *says;
    } rows[] = {
        {"", "JSON, byte"},
        {"tru", "JSON, byte"},
        {"{", "JSON, byte"},
        {"[]", "schema: a schema must be an object"},
        {"1", "JSON, byte"},
        {"{},{}", "JSON, byte 2"},
        {"false", "no value satisfies"},
        {"{\"properties\":{\"a\":{\"not\":{}}}}", "schema/properties/a: 'not'"},
        {"{\"properties\":{\"a\":7}}", "schema/properties/a: a schema must be"},
        {"{\"if\":{},\"then\":{}}", "schema: 'if'"},
        {"{\"items\":{\"contains\":{}}}", "schema/items: 'contains'"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "'uniqueItems'"},
        {"{\"type\":\"strin\"}", "'type' must be"},
        {"{\"type\":[]}", "'type' must be"},
        {"{\"enum\":[]}", "'enum' must be"},
        {"{\"enum\":1}", "'enum' must be"},
        {"{\"anyOf\":[]}", "schema/anyOf: must be a list"},
        {"{\"allOf\":{}}", "schema/allOf: must be"},
        {"{\"$defs\":{\"a\":{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/a\"}]}},"
         "\"items\":{\"$ref\":\"#/$defs/a\"}}",
         "schema/$defs/a: refers to itself"},
        {"{\"required\":\"a\"}", "'required' must be"},
        {"{\"required\":[1]}", "'required' must be"},
        {"{\"properties\":[]}", "'properties' must be"},
        {"{\"minLength\":-1}", "schema: field 'minLength'"},
        {"{\"minLength\":\"1\"}", "field 'minLength'"},
        {"{\"maxLength\":1000000}", "'maxLength' is 1000000, at most"},
        {"{\"minItems\":1e9}", "'minItems' is 1000000000"},
        {"{\"minimum\":\"1\"}", "'minimum' must be a number"},
        {"{\"multipleOf\":0}", "'multipleOf' must be above 0"},
        {"{\"multipleOf\":0.0000001234}", "schema: needs an automaton of more than"},
        {"{\"multipleOf\":1000000}", "multipleOf is too"},
        {"{\"minimum\":18446744073709551616}", "'minimum' is beyond 64 bits"},
        {"{\"enum\":[1,[18446744073709551616]]}", "enum or const is beyond 64 bits"},
        {"{\"maximum\":1e300}", "'maximum' is beyond"},
        {"{\"maximum\":1e-200}", "'maximum' has more than"},
        {"{\"pattern\":\"(\"}", "schema/pattern: "},
        {"{\"pattern\":\"(?=a)\"}", "schema/pattern: "},
        {"{\"pattern\":\"(a)\\\\1\"}", "schema/pattern: "},
        {"{\"format\":\"iri\",\"type\":\"string\"}", "'format' iri"},
        {"{\"$ref\":\"other.json\"}", "$ref 'other.json'"},
        {"{\"$ref\":\"#/$defs/x\"}", "leads nowhere"},
        {"{\"$ref\":1}", "'$ref' must be"},
        {"{\"$ref\":\"#\"}", "refers to itself"},
        {"{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}},\"$ref\":\"#/$defs/a\"}",
         "refers to itself"},
        {"{\"$dynamicRef\":\"#x\"}", "'$dynamicRef'"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
         "schema/oneOf: one value can satisfy"},
        {"{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}", "alternatives 0 and 1"},
        {"{\"oneOf\":[{\"type\":[\"object\",\"null\"],\"properties\":{\"t\":{\"const\":1}},\"required\":[\"t\"]},"
         "{\"type\":[\"object\",\"null\"],\"properties\":{\"t\":{\"const\":2}},\"required\":[\"t\"]}]}",
         "alternatives 0 and 1"},
        {"{\"pattern\":\"^(?!a)b|c\"}", "schema/pattern: "},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no value satisfies"},
        {"{\"type\":\"integer\",\"minimum\":1.2,\"maximum\":1.8}", "no value satisfies"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "no value satisfies"},
        {"{\"type\":\"string\",\"pattern\":\"^a$\",\"minLength\":2}", "no value satisfies"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "no value satisfies"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no value satisfies"},
        {"{\"properties\":{\"a\":false},\"required\":[\"a\"]}", "no value satisfies"},
        {"{\"type\":\"array\",\"items\":false,\"minItems\":1}", "no value satisfies"},
        {"{\"type\":\"object\",\"minProperties\":5}", "'minProperties' of 5"},
        {"{\"properties\":{\"a\":{}},\"minProperties\":2,\"additionalProperties\":false}",
         "no value satisfies"},
        {"{\"properties\":{\"a\":false},\"minProperties\":2,\"additionalProperties\":true}",
         "'minProperties' of 2"},
        {"{\"type\":\"object\",\"oneOf\":[{\"properties\":{\"a\":{}}},{\"minProperties\":1}]}",
         "alternatives 0 and 1"},
        {"{\"const\":1,\"type\":\"string\"}", "no value satisfies"},
        {"{\"const\":\"a\\u0000\"}", "no value satisfies"},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\u0000$\"}", "no value satisfies"},
        {"{\"unevaluatedProperties\":{}}", "'unevaluatedProperties' must be"},
        {"{\"type\":\"object\",\"required\":[\"a\"],\"unevaluatedProperties\":false}",
         "no value satisfies"},
        {"{\"properties\":{\"a\":{}},\"minProperties\":2,\"unevaluatedProperties\":false}",
         "no value satisfies"},
        {"{\"allOf\":[{\"unevaluatedProperties\":false},{\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
         "no value satisfies"},
        {"{\"items\":{\"$id\":\"x\"}}", "schema/items: '$id'"},
        {"{\"allOf\":[{\"multipleOf\":2},{\"multipleOf\":3}]}", "two different 'multipleOf'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sv_grammar *g = NULL;
        struct sv_err err = {0};
        int status = sv_grammar_schema(&g, rows[i].schema, strlen(rows[i].schema), NULL, &err);
        if (status == SV_OK || g)
            fail_msg("taken: %s", rows[i].schema);
        if (!strstr(err.msg, rows[i].says) || strncmp(err.msg, "schema", 6))
            fail_msg("%s: says '%s', not '%s'", rows[i].schema, err.msg, rows[i].says);
    }
}

/* ---------------------------------------------------------------- hostile schemas */

/* begin, then n times `each` (which may have one %d, the number), then end. */
static char *repeated(const char *begin, const char *each, int n, const char *end)
{
    struct sv_buf b;

    sv_buf_init(&b);
    sv_buf_append(&b, begin, strlen(begin));
    for (int i = 0; i < n; i++) {
        const char *at = strstr(each, "%d"), *last = at ? strstr(at + 2, "%d") : NULL;
        sv_buf_append(&b, each, at ? (size_t)(at - each) : strlen(each));
        if (at)
            sv_buf_printf(&b, "%d%.*s", i, last ? (int)(last - at - 2) : (int)strlen(at + 2),
                          at + 2);
        if (last)
            sv_buf_printf(&b, "%d%s", i + 1, last + 2);
    }
    sv_buf_append(&b, end, strlen(end));
    assert_false(b.failed);
    return b.data;
}

/* Neither takes long nor much memory; says: what the error must say, NULL when it may be made. */
static void soon(char *schema, const char *says)
{
    const int64_t begin = sv_clock_thread_ns();
    struct sv_grammar *g = NULL;
    struct sv_err err = {0};
    int status = sv_grammar_schema(&g, schema, strlen(schema), NULL, &err);
    int64_t ms = (sv_clock_thread_ns() - begin) / 1000000;

    if (ms > 10000) /* some hundred at most without sanitizers */
        fail_msg("%.60s... takes %d ms", schema, (int)ms);
    if ((status == SV_OK) != !says || (says && !strstr(err.msg, says)))
        fail_msg("%.60s...: '%s', not '%s'", schema, err.msg, says ? says : "");
    sv_grammar_unref(g);
    sv_free(schema);
}

static void hostile(void **state)
{
    (void)state;
    soon(repeated("", "{\"items\":", 2000, "{}"), "JSON, byte");
    {
        char *open = repeated("", "{\"items\":", 1500, "{}"), *all = repeated(open, "}", 1500, "");
        sv_free(open);
        soon(all, NULL);
    }
    soon(repeated("{\"properties\":{", "\"p%d\":{\"type\":\"string\"},", 5000, "\"z\":{}}}"), NULL);
    soon(repeated("{\"enum\":[", "\"value %d\",", 5000, "0]}"), NULL);
    soon(repeated("{\"enum\":[", "%d,", 200000, "0]}"), "too large");
    soon(repeated("{\"allOf\":[", "{\"properties\":{\"p%d\":{\"type\":\"string\"}}},", 300, "{}]}"),
         NULL);
    soon(repeated("{\"allOf\":[", "{\"anyOf\":[{\"minLength\":%d},{\"maxLength\":9%d}]},", 30,
                  "{}]}"),
         "combinations of subschemas");
    soon(repeated("{\"$ref\":\"#/$defs/d0\",\"$defs\":{", "\"d%d\":{\"$ref\":\"#/$defs/d%d\"},",
                  1000, "\"z\":{}}}"),
         "references within one another");
    soon(repeated("{\"$ref\":\"#/$defs/d0\",\"$defs\":{",
                  "\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"},{}]},", 50,
                  "\"d50\":{\"type\":\"null\"}}}"),
         NULL);
    soon(repeated(
             "{\"oneOf\":[",
             "{\"type\":\"object\",\"properties\":{\"t\":{\"const\":%d}},\"required\":[\"t\"]},",
             200, "{\"type\":\"null\"}]}"),
         NULL);
    soon(repeated("{\"oneOf\":[", "{\"const\":%d},", 300, "true]}"), "more than 256 alternatives");
    soon(repeated("{\"patternProperties\":{", "\"x%d\":{},", 16, "\"y\":{}}}"),
         "patternProperties");
    soon(repeated("{\"patternProperties\":{", "\"x%d\":{},", 12, "\"y\":{}}}"), "schema: ");
    soon(repeated("{\"pattern\":\"(a|b)*a(a|b){20}", "", 1, "\"}"), "schema/pattern: ");
    soon(repeated("{\"pattern\":\"", "(", 300, "a\"}"), "schema/pattern: ");
    soon(repeated("{\"pattern\":\"(((a{100}){100}){100}){100}", "", 1, "\"}"), "schema/pattern: ");
    soon(repeated("{\"pattern\":\"^.{4000}$", "", 1, "\"}"), NULL);
    soon(repeated("{\"maxLength\":32768", "", 1, "}"), NULL);
    soon(repeated(
             "{\"minItems\":32768,\"items\":{\"minItems\":32768,\"items\":{\"minItems\":32768}}",
             "", 1, "}"),
         NULL);
    soon(repeated(
             "{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":32768,\"properties\":{",
             "\"p%d\":{},", 50, "\"z\":{}},\"additionalProperties\":true}"),
         "too many");
    soon(repeated("{\"multipleOf\":9999,\"minimum\":1,\"maximum\":9999999999999", "", 1, "}"),
         "automaton");
}

/* ---------------------------------------------------------------- memory that runs out */

/* What merging subschemas takes is counted: these are refused long before all of it is done, and
 * named. */
static void merged(void **state)
{
    static const struct {
        const char *part;
        int n, most;
    } rows[] = {{"{\"properties\":{\"p%d\":{\"type\":\"string\"}}},", 8000, 400},
                {"{\"required\":[\"p%d\"]},", 8000, 400}};
    struct sv_err err;
    struct sv_grammar *g = NULL;
    (void)state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *schema = repeated("{\"allOf\":[", rows[i].part, rows[i].n, "{}]}");
        err = (struct sv_err){0};
        assert_int_equal(sv_grammar_schema(&g, schema, strlen(schema), NULL, &err), SV_EFULL);
        if (strncmp(err.msg, "schema/allOf/", 13) || atoi(err.msg + 13) > rows[i].most)
            fail_msg("%s: %s", rows[i].part, err.msg);
        sv_free(schema);
    }
    /* Values are held against one another: two lists of a thousand objects. */
    char *one = repeated("{\"allOf\":[{\"enum\":[", "{\"a\":%d},", 1000, "0]},{\"enum\":[");
    char *both = repeated(one, "{\"a\":-%d},", 1000, "1]}]}");
    err = (struct sv_err){0};
    assert_int_equal(sv_grammar_schema(&g, both, strlen(both), NULL, &err), SV_EFULL);
    assert_memory_equal(err.msg, "schema/allOf/1: too large", 25);
    sv_free(one);
    sv_free(both);
    assert_int_equal(sv_alloc_live(), 0);
}

static void faults(void **state)
{
    static const char schema[] =
        "{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"multipleOf\":5,\"maximum\":30},\"k\":{\"items\":{\"$ref\":"
        "\"#/$defs/t\"}}},\"required\":[\"v\"]}},\"oneOf\":[{\"$ref\":\"#/$defs/t\"},{\"type\":\"string\","
        "\"pattern\":\"^(?!ab)[a-c]*$\",\"maxLength\":5},{\"enum\":[1,[2,{\"a\":null}]]}]}";
    const int64_t live = sv_alloc_live();
    struct sv_err err = {0};
    int status = SV_ENOMEM;
    int64_t n;

    (void)state;
    /* Behind the parser, which is tests/base's. */
    sv_fault_arm(0);
    json_decref(sv_json_parse(schema, sizeof schema - 1, &err));
    for (n = sv_fault_calls() + 1; status != SV_OK; n++) {
        struct sv_grammar *g = NULL;
        sv_fault_arm(n);
        status = sv_grammar_schema(&g, schema, sizeof schema - 1, NULL, &err);
        sv_fault_arm(0);
        if (status != SV_OK && (status != SV_ENOMEM || g))
            fail_msg("allocation %lld: %s", (long long)n, err.msg);
        sv_grammar_unref(g);
        assert_int_equal(sv_alloc_live(), live);
        assert_true(n < 100000);
    }
}

SV_TEST_MAIN(cmocka_unit_test(types), cmocka_unit_test(values), cmocka_unit_test(numbers),
             cmocka_unit_test(strings), cmocka_unit_test(arrays), cmocka_unit_test(objects),
             cmocka_unit_test(combinations), cmocka_unit_test(space), cmocka_unit_test(any_object),
             cmocka_unit_test(refused), cmocka_unit_test(hostile), cmocka_unit_test(merged),
             cmocka_unit_test(clients), cmocka_unit_test(faults))
