/*
 * test_schema_random.c - grammars of random schemas against a validator: whatever walk through the
 * grammar ends is a value that satisfies the schema, no walk comes to where nothing is allowed, and
 * values that satisfy the schema (in the order that the grammar writes) are taken.
 *
 * timeout: 120
 */
#include "testing.h"
#include "grammar/schemas.h"
#include "grammar/valid.h"
#include "grammar/words.h"

#include <string.h>

#define N_SCHEMAS 600

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

static void check_walks(struct schemas *r, struct sv_grammar *g, struct words *w,
                        const json_t *root, const char *text, struct counts *n)
{
    struct sv_buf out;

    sv_buf_init(&out);
    for (int k = 0; k < 8; k++) {
        json_t *v;
        if (!schemas_walk(r, g, w, &out, text))
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

static void check_values(struct schemas *r, struct sv_grammar *g, struct words *w,
                         const json_t *root, const char *text, struct counts *n)
{
    for (int k = 0; k < 8 && in_order(root); k++) {
        json_t *v = schemas_guess(r, root), *reread;
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
    struct schemas rng = {.rng.state = 20251122};
    struct counts n = {0};
    struct words w;

    (void)state;
    words_open(&w, words_common, words_n_common);
    for (int i = 0; i < N_SCHEMAS; i++) {
        json_t *root = schemas_draw(&rng);
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
