/*
 * test_schema_random.c - grammars of random schemas against a validator: whatever walk through the
 * grammar ends is a value that satisfies the schema, no walk comes to where nothing is allowed, and
 * values that satisfy the schema (in the order that the grammar writes) are taken.
 *
 * timeout: 120
 */
#include "testing.h"
#include "grammar/valid.h"
#include "grammar/words.h"

#include <stdio.h>
#include <string.h>

#define N_SCHEMAS 600
#define LONGEST 4000 /* tokens of a walk; a longer one is given up */

static uint32_t below(struct sv_rng *r, uint32_t n)
{
    return sv_rng_below(r, n);
}

/* ---------------------------------------------------------------- random schemas */

static const char *const names[] = {"a", "b", "ab", "\xC3\xA4", "x\"y", "long_name"};
static const char *const patterns[] = {"^a",       "b$",        "^[a-c]*$", "[0-9]+",
                                       "^(ab|c)+", "^[^a-z]*$", "a.b",      "^\\w{1,3}$"};
static const double steps[] = {1, 2, 3, 5, 0.5, 0.25, 10};

static json_t *schema(struct sv_rng *r, int depth);

static json_t *value(struct sv_rng *r)
{
    switch (below(r, 6)) {
    case 0:
        return json_null();
    case 1:
        return json_boolean(below(r, 2));
    case 2:
        return json_integer((int)below(r, 7) - 3);
    case 3:
        return json_real(((int)below(r, 9) - 4) + 0.25); /* whole ones are written as integers */
    case 4:
        return json_string(names[below(r, 6)]);
    default:
        return json_pack("[s{si}]", "a", "b", 1);
    }
}

static void add_numbers(struct sv_rng *r, json_t *s)
{
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum",
                                       "exclusiveMaximum"};

    for (int i = 0; i < 4; i++) {
        int x = (int)below(r, 60) - (i < 2 ? 50 : 10);
        if (below(r, 3) == 0)
            json_object_set_new(s, keys[i], below(r, 2) ? json_integer(x) : json_real(x * 0.125));
    }
    if (below(r, 4) == 0)
        json_object_set_new(s, "multipleOf", json_real(steps[below(r, 7)]));
}

static void add_counts(struct sv_rng *r, json_t *s, const char *min, const char *max)
{
    uint32_t n = below(r, 3);

    if (below(r, 3) == 0)
        json_object_set_new(s, min, json_integer(n));
    if (below(r, 3) == 0)
        json_object_set_new(s, max, json_integer(n + below(r, 3)));
}

static void add_array(struct sv_rng *r, json_t *s, int depth)
{
    if (below(r, 3) == 0) {
        json_t *prefix = json_array();
        for (uint32_t i = 0; i <= below(r, 3); i++)
            json_array_append_new(prefix, schema(r, depth));
        json_object_set_new(s, "prefixItems", prefix);
    }
    if (below(r, 4))
        json_object_set_new(s, "items", schema(r, depth));
    add_counts(r, s, "minItems", "maxItems");
}

static void add_object(struct sv_rng *r, json_t *s, int depth)
{
    json_t *properties = json_object(), *required = json_array(), *other = json_object();

    for (uint32_t i = below(r, 5); i > 0; i--) {
        const char *name = names[below(r, 6)];
        json_object_set_new(properties, name, schema(r, depth));
        if (below(r, 2))
            json_array_append_new(required, json_string(below(r, 8) ? name : names[below(r, 6)]));
    }
    if (below(r, 4))
        json_object_set(s, "properties", properties);
    if (below(r, 4) && json_array_size(required))
        json_object_set(s, "required", required);
    if (below(r, 3) == 0)
        json_object_set_new(s, "additionalProperties", schema(r, depth));
    if (below(r, 5) == 0) {
        for (uint32_t i = 0; i <= below(r, 2); i++)
            json_object_set_new(other, patterns[below(r, 8)], schema(r, depth));
        json_object_set(s, "patternProperties", other);
    }
    if (below(r, 8) == 0)
        json_object_set_new(s, "propertyNames",
                            json_pack("{ss}", "pattern", patterns[below(r, 8)]));
    add_counts(r, s, "minProperties", "maxProperties");
    json_decref(properties);
    json_decref(required);
    json_decref(other);
}

static void add_union(struct sv_rng *r, json_t *s, int depth)
{
    static const char *const keys[] = {"anyOf", "anyOf", "oneOf", "allOf"};
    json_t *list = json_array();

    for (uint32_t i = 0; i <= 1 + below(r, 2); i++)
        json_array_append_new(list, schema(r, depth));
    json_object_set_new(s, keys[below(r, 4)], list);
}

static json_t *schema(struct sv_rng *r, int depth)
{
    static const char *const types[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    uint32_t kind = below(r, depth > 0 ? 12 : 8);
    const char *type = types[kind < 7 ? kind : below(r, depth > 0 ? 7 : 5)];
    json_t *s = json_object();

    if (kind == 7) {
        json_t *list = json_pack("[o,o,o]", value(r), value(r), value(r));
        json_object_set_new(s, "enum", list);
        return s;
    }
    if (kind == 8) {
        json_decref(s);
        return json_pack("{ss}", "$ref", below(r, 2) ? "#/$defs/one" : "#/$defs/two");
    }
    if (kind >= 10)
        add_union(r, s, depth - 1);
    if (kind == 11)
        return s;
    if (below(r, 20) == 0)
        return json_object_clear(s), s; /* anything */
    if (below(r, 8) == 0)
        json_object_set_new(s, "type", json_pack("[s,s]", type, types[below(r, 5)]));
    else
        json_object_set_new(s, "type", json_string(type));
    if (!strcmp(type, "integer") || !strcmp(type, "number"))
        add_numbers(r, s);
    if (!strcmp(type, "string")) {
        add_counts(r, s, "minLength", "maxLength");
        if (below(r, 3) == 0)
            json_object_set_new(s, "pattern", json_string(patterns[below(r, 8)]));
    }
    if (!strcmp(type, "array"))
        add_array(r, s, depth - 1);
    if (!strcmp(type, "object"))
        add_object(r, s, depth - 1);
    return s;
}

static json_t *root_schema(struct sv_rng *r)
{
    json_t *root = schema(r, 3);
    json_t *defs = json_pack("{soso}", "one", schema(r, 1), "two", schema(r, 2));

    json_object_set_new(root, "$defs", defs);
    return root;
}

/* ---------------------------------------------------------------- walks */

/* What brings a text to its end soonest. */
static const char closing[] = "\"}]0:,{[tfnrulaes";

static int32_t pick(struct sv_rng *r, struct sv_matcher *m, const struct words *w, int step,
                    bool *stuck)
{
    uint32_t mask[16];
    int32_t allowed[512], n = 0;

    SV_REQUIRE(w->n <= 512);
    sv_matcher_mask(m, mask);
    for (int32_t id = 0; id < w->n; id++)
        if (mask[id / 32] >> id % 32 & 1)
            allowed[n++] = id;
    *stuck = n == 0;
    if (*stuck)
        return -1;
    if (mask[w->end / 32] >> w->end % 32 & 1 && (step > 60 || below(r, 3) == 0))
        return w->end;
    if (step > 60)
        for (const char *c = closing; *c; c++)
            if (mask[*c / 32] >> *c % 32 & 1)
                return *c;
    return allowed[below(r, (uint32_t)n)];
}

/* One random text of the grammar; false: it did not end. */
static bool walk(struct sv_rng *r, struct sv_grammar *g, struct words *w, struct sv_buf *out,
                 const char *schema_text)
{
    struct sv_matcher *m;
    struct sv_err err;
    int step = 0;

    sv_buf_clear(out);
    assert_int_equal(sv_matcher_open(&m, g, w->vocab, &err), SV_OK);
    while (!sv_matcher_ended(m) && step < LONGEST) {
        bool stuck;
        size_t n;
        int32_t id = pick(r, m, w, step++, &stuck);
        const char *bytes;
        if (stuck)
            fail_msg("%s: nothing may follow '%s' (%s)", schema_text, out->data,
                     sv_matcher_failure(m) ? sv_matcher_failure(m) : "no failure");
        bytes = words_bytes(w, id, &n);
        assert_true(sv_matcher_advance(m, id));
        if (n)
            sv_buf_append(out, bytes, n);
    }
    sv_matcher_close(m);
    return step < LONGEST;
}

/* ---------------------------------------------------------------- values of a schema */

/* A value that may satisfy the schema, its members in the schema's order; whether it does, the
 * validator says. NULL: no attempt is made. */
static json_t *guess(struct sv_rng *r, const json_t *root, const json_t *s, int depth);

static json_t *guess_object(struct sv_rng *r, const json_t *root, const json_t *s, int depth)
{
    json_t *v = json_object(), *sub;
    const json_t *rest = json_object_get(s, "additionalProperties");
    const char *key;

    json_object_foreach(json_object_get(s, "properties"), key, sub) {
        json_t *x = below(r, 3) ? guess(r, root, sub, depth) : NULL;
        if (x)
            json_object_set_new(v, key, x);
    }
    if (rest && below(r, 2)) {
        json_t *x = guess(r, root, rest, depth);
        if (x)
            json_object_set_new(v, "other", x);
    }
    return v;
}

static json_t *guess_array(struct sv_rng *r, const json_t *root, const json_t *s, int depth)
{
    const json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
    size_t n = below(r, 4);
    json_t *v = json_array();

    for (size_t i = 0; i < n; i++) {
        const json_t *sub = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        json_t *x = sub ? guess(r, root, sub, depth) : NULL;
        if (!x)
            break;
        json_array_append_new(v, x);
    }
    return v;
}

static json_t *guess(struct sv_rng *r, const json_t *root, const json_t *s, int depth)
{
    const json_t *any = json_object_get(s, "anyOf"), *type = json_object_get(s, "type");
    const char *t = json_string_value(json_is_array(type) ? json_array_get(type, 0) : type);
    static const char *const texts[] = {"", "a", "ab", "abc", "c", "b", "12", "axb", "\xC3\xA4\n"};

    if (depth == 0)
        return NULL;
    if (any)
        return guess(r, root, json_array_get(any, below(r, (uint32_t)json_array_size(any))),
                     depth - 1);
    if (json_object_get(s, "enum"))
        return json_incref(json_array_get(json_object_get(s, "enum"), below(r, 3)));
    if (json_object_get(s, "$ref"))
        return guess(
            r, root,
            json_object_get(json_object_get(root, "$defs"),
                            strrchr(json_string_value(json_object_get(s, "$ref")), '/') + 1),
            depth - 1);
    if (!t)
        return NULL;
    if (!strcmp(t, "null"))
        return json_null();
    if (!strcmp(t, "boolean"))
        return json_boolean(below(r, 2));
    if (!strcmp(t, "integer"))
        return json_integer((int)below(r, 60) - 30);
    if (!strcmp(t, "number"))
        return below(r, 2) ? json_integer((int)below(r, 30) - 15)
                           : json_real(((int)below(r, 30) - 15) + 0.125 * (1 + below(r, 7)));
    if (!strcmp(t, "string"))
        return json_string(texts[below(r, 9)]);
    return !strcmp(t, "array") ? guess_array(r, root, s, depth - 1)
                               : guess_object(r, root, s, depth - 1);
}

/* allOf and properties beside a union put members into another order, or close the object to names
 * that one of them declares. */
static bool in_order(const json_t *s)
{
    bool combined = json_object_get(s, "allOf") || json_object_get(s, "oneOf") ||
                    (json_object_get(s, "anyOf") && json_object_get(s, "type"));
    const char *key;
    json_t *sub;
    size_t i;

    if (json_is_array(s)) {
        json_array_foreach((json_t *)s, i, sub) {
            combined |= !in_order(sub);
        }
    }
    json_object_foreach((json_t *)s, key, sub) {
        combined |= !in_order(sub);
    }
    return !combined;
}

/* ---------------------------------------------------------------- tests */

struct counts {
    int made, walked, guessed;
};

static void check_walks(struct sv_rng *r, struct sv_grammar *g, struct words *w, const json_t *root,
                        const char *text, struct counts *n)
{
    struct sv_buf out;

    sv_buf_init(&out);
    for (int k = 0; k < 8; k++) {
        json_t *v;
        if (!walk(r, g, w, &out, text))
            continue;
        v = schema_value(out.data, out.len);
        if (!v)
            fail_msg("%s: '%s' is no JSON", text, out.data);
        if (!schema_valid(root, root, v))
            fail_msg("%s: '%s' does not satisfy it", text, out.data);
        json_decref(v);
        n->walked++;
    }
    sv_buf_fini(&out);
}

static void check_values(struct sv_rng *r, struct sv_grammar *g, struct words *w,
                         const json_t *root, const char *text, struct counts *n)
{
    for (int k = 0; k < 8 && in_order(root); k++) {
        json_t *v = guess(r, root, root, 8), *reread;
        char *dump =
            v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
        reread = dump ? schema_value(dump, strlen(dump)) : NULL;
        if (reread && schema_valid(root, root, reread)) {
            if (!words_matches(w, g, dump, strlen(dump)))
                fail_msg("%s: %s satisfies it, but only %zu bytes of it are taken", text, dump,
                         words_takes(w, g, dump, strlen(dump)));
            n->guessed++;
        }
        json_decref(reread);
        json_decref(v);
        sv_free(dump);
    }
}

static void random_schemas(void **state)
{
    struct sv_rng rng = {.state = 20251122};
    struct counts n = {0};
    struct words w;

    (void)state;
    words_open(&w, words_common, words_n_common);
    for (int i = 0; i < N_SCHEMAS; i++) {
        json_t *root = root_schema(&rng);
        char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(15));
        struct sv_grammar *g = NULL;
        struct sv_err err = {0};
        int status = sv_grammar_schema(&g, text, strlen(text), NULL, &err);
        if (status == SV_OK) {
            n.made++;
            check_walks(&rng, g, &w, root, text, &n);
            check_values(&rng, g, &w, root, text, &n);
        } else if (status != SV_EUNSUPPORTED && !strstr(err.msg, "no value") &&
                   !strstr(err.msg, "refers to itself")) {
            fail_msg("%s: %s", text, err.msg);
        }
        sv_grammar_unref(g);
        sv_free(text);
        json_decref(root);
    }
    words_close(&w);
    assert_int_equal(sv_alloc_live(), 0);
    print_message("%d of %d schemas, %d walks, %d values\n", n.made, N_SCHEMAS, n.walked,
                  n.guessed);
    assert_true(n.made > N_SCHEMAS / 2 && n.walked > 6 * n.made && n.guessed > N_SCHEMAS / 2);
}

SV_TEST_MAIN(cmocka_unit_test(random_schemas))
