/*
 * schemas.c - random schemas, walks through their grammars, values that may satisfy them
 * (schemas.h).
 *
 * Called by test_schema_random.c and test_validator.c. Must not: ask src/grammar what a schema
 * means.
 */
#include "grammar/schemas.h"
#include "testing.h"

#include <string.h>

#define LONGEST 4000 /* tokens of a walk; a longer one is given up */

static uint32_t below(struct schemas *r, uint32_t n)
{
    return sv_rng_below(&r->rng, n);
}

/* ---------------------------------------------------------------- random schemas */

static const char *const names[] = {"a", "b", "ab", "\xC3\xA4", "x\"y", "long_name"};
static const char *const patterns[] = {"^a",       "b$",        "^[a-c]*$", "[0-9]+",
                                       "^(ab|c)+", "^[^a-z]*$", "a.b",      "^\\w{1,3}$"};
static const double steps[] = {1, 2, 3, 5, 0.5, 0.25, 10};

static json_t *schema(struct schemas *r, int depth);

static json_t *value(struct schemas *r)
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

static void add_numbers(struct schemas *r, json_t *s)
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

static void add_counts(struct schemas *r, json_t *s, const char *min, const char *max)
{
    uint32_t n = below(r, 3);

    if (below(r, 3) == 0)
        json_object_set_new(s, min, json_integer(n));
    if (below(r, 3) == 0)
        json_object_set_new(s, max, json_integer(n + below(r, 3)));
}

static void add_array(struct schemas *r, json_t *s, int depth)
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

static void add_object(struct schemas *r, json_t *s, int depth)
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

static void add_union(struct schemas *r, json_t *s, int depth)
{
    static const char *const keys[] = {"anyOf", "anyOf", "oneOf", "allOf"};
    json_t *list = json_array();

    for (uint32_t i = 0; i <= 1 + below(r, 2); i++)
        json_array_append_new(list, schema(r, depth));
    json_object_set_new(s, keys[below(r, 4)], list);
}

/* Keywords that the validator of valid.h does not know. */
static void add_more(struct schemas *r, json_t *s, const char *type)
{
    static const char *const formats[] = {"date",  "time", "date-time", "uuid",
                                          "email", "ipv4", "ipv6",      "json-pointer"};

    if (!strcmp(type, "string") && !json_object_get(s, "pattern") && below(r, 3) == 0)
        json_object_set_new(s, "format", json_string(formats[below(r, 8)]));
    if (!strcmp(type, "integer") && below(r, 6) == 0)
        json_object_set_new(s, "maximum", json_integer(INT64_MAX - below(r, 3)));
    if (!strcmp(type, "number") && below(r, 6) == 0)
        json_object_set_new(s, "multipleOf", json_real(0.01));
    if (!strcmp(type, "array") && below(r, 6) == 0)
        json_object_set_new(s, "items", json_boolean(below(r, 2)));
    if (!strcmp(type, "object") && below(r, 4) == 0)
        json_object_set_new(s, "additionalProperties", json_boolean(below(r, 2)));
    if (!strcmp(type, "object") && below(r, 8) == 0)
        json_object_set_new(s, "unevaluatedProperties", json_boolean(below(r, 2)));
    if (below(r, 12) == 0)
        json_object_set_new(s, "const", value(r));
    if (below(r, 12) == 0)
        json_object_set_new(s, "title", json_string("any"));
}

static json_t *schema(struct schemas *r, int depth)
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
        static const char *const refs[] = {"#/$defs/one", "#/$defs/two", "#/$defs/tree"};
        json_decref(s);
        return json_pack("{ss}", "$ref", refs[below(r, r->more ? 3 : 2)]);
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
    if (r->more)
        add_more(r, s, type);
    return s;
}

json_t *schemas_draw(struct schemas *r)
{
    json_t *root = schema(r, 3);
    json_t *defs = json_pack("{soso}", "one", schema(r, 1), "two", schema(r, 2));
    json_t *tree = json_pack("{sss{s{ss}s{sss{ss}}}s[s]}", "type", "object", "properties", "v",
                             "$ref", "#/$defs/one", "kids", "type", "array", "items", "$ref",
                             "#/$defs/tree", "required", "v");

    json_object_set_new(defs, "tree", tree);
    json_object_set_new(root, "$defs", defs);
    return root;
}

/* ---------------------------------------------------------------- walks */

/* What brings a text to its end soonest. */
static const char closing[] = "\"}]0:,{[tfnrulaes";

static int32_t pick(struct schemas *r, struct sv_matcher *m, const struct words *w, int step,
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

bool schemas_walk(struct schemas *r, struct sv_grammar *g, struct words *w, struct sv_buf *out,
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

static json_t *guess(struct schemas *r, const json_t *root, const json_t *s, int depth);

static json_t *guess_object(struct schemas *r, const json_t *root, const json_t *s, int depth)
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

static json_t *guess_array(struct schemas *r, const json_t *root, const json_t *s, int depth)
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

static json_t *guess(struct schemas *r, const json_t *root, const json_t *s, int depth)
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

json_t *schemas_guess(struct schemas *r, const json_t *root)
{
    return guess(r, root, root, 8);
}
