/*
 * fuzz_schema.c - any bytes as a JSON schema: refused with the place, or a grammar in which every
 * walk can go on, and whose texts are JSON.
 *
 * The walk is drawn from the bytes. Called by driver.c and libFuzzer.
 */
#include "grammar/valid.h"
#include "grammar/words.h"

#include <string.h>

#define LONGEST 200 /* tokens of the walk */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int32_t pick(struct sv_rng *r, struct sv_matcher *m, const struct words *w)
{
    uint32_t mask[16], from = sv_rng_below(r, (uint32_t)w->n);

    SV_REQUIRE(w->n <= 512);
    sv_matcher_mask(m, mask);
    for (uint32_t i = 0; i < (uint32_t)w->n; i++) {
        uint32_t id = (from + i) % (uint32_t)w->n;
        if (mask[id / 32] >> id % 32 & 1)
            return (int32_t)id;
    }
    return -1;
}

static void walk(struct sv_grammar *g, struct words *w, uint64_t seed)
{
    struct sv_rng r = {.state = seed};
    struct sv_matcher *m;
    struct sv_buf text;
    struct sv_err err;

    sv_buf_init(&text);
    SV_REQUIRE(sv_matcher_open(&m, g, w->vocab, &err) == SV_OK);
    for (int i = 0; i < LONGEST && !sv_matcher_ended(m); i++) {
        int32_t id = pick(&r, m, w);
        size_t n;
        const char *bytes;
        if (id < 0 && sv_matcher_failure(m))
            break;
        SV_REQUIRE(id >= 0);
        bytes = words_bytes(w, id, &n);
        SV_REQUIRE(sv_matcher_advance(m, id));
        if (n)
            sv_buf_append(&text, bytes, n);
    }
    if (sv_matcher_ended(m)) {
        json_t *v = schema_value(text.data, text.len);
        SV_REQUIRE(v);
        json_decref(v);
    }
    sv_matcher_close(m);
    sv_buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct words w;
    static bool open;
    struct sv_grammar *g = NULL;
    struct sv_err err = {0};
    uint64_t seed = n;
    int status;

    if (!open)
        words_open(&w, words_common, words_n_common);
    open = true;
    for (size_t i = 0; i < n; i++)
        seed = seed * 31 + data[i];
    status = sv_grammar_schema(&g, (const char *)data, n, NULL, &err);
    SV_REQUIRE((status == SV_OK) == (g != NULL));
    SV_REQUIRE(status == SV_OK || (err.code == status && !strncmp(err.msg, "schema", 6)));
    if (g)
        walk(g, &w, seed);
    sv_grammar_unref(g);
    return 0;
}
