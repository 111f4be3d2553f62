/*
 * test_demo_pair.c - the shipped pair against the published reference code, and against itself.
 *
 * timeout: 240
 * release: all
 *
 * In f32: token ids, accept lengths of every step and the text of 40+ prompts equal the golden
 * file's. In bf16: DFlash in batches, widths and threads gives plain decoding's tokens, and its
 * acceptance stays near f32's. In part: the first prompts of each.
 */
#include "testing.h"

#include "engine/run.h"
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line {
    json_t *json;
    int32_t *prompt, n_prompt, max_tokens;
};
enum { MAX_LINES = 64, FEW_LINES = 3 };

static int32_t *ints(const json_t *obj, const char *key, int32_t *n)
{
    const json_t *a = json_object_get(obj, key);
    assert_true(json_is_array(a));
    *n = (int32_t)json_array_size(a);
    int32_t *out = malloc((size_t)(*n + 1) * sizeof *out);
    for (int32_t i = 0; i < *n; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(a, (size_t)i));
    return out;
}

static int read_lines(struct line *lines)
{
    FILE *f = fopen(sv_test_path("tests/golden/demo.jsonl"), "r");
    if (!f)
        fail_msg("tests/golden/demo.jsonl is missing");
    static char text[1 << 16];
    int n = 0;
    while (!(sv_test_brief() && n == FEW_LINES) && fgets(text, sizeof text, f)) {
        assert_true(n < MAX_LINES);
        struct line *l = &lines[n++];
        l->json = json_loads(text, 0, NULL);
        assert_non_null(l->json);
        l->prompt = ints(l->json, "prompt_token_ids", &l->n_prompt);
        l->max_tokens = (int32_t)json_integer_value(json_object_get(l->json, "max_tokens"));
    }
    fclose(f);
    return n;
}

static void free_lines(struct line *lines, int n)
{
    for (int i = 0; i < n; i++) {
        json_decref(lines[i].json);
        free(lines[i].prompt);
    }
}

static struct sv_engine *open_pair(bool draft, enum sv_data_type dtype, int32_t batch,
                                   int32_t width, int32_t threads)
{
    struct sv_engine_options o = {.target_dir = run_dir("models/demo/target"),
                                  .draft_dir = draft ? run_dir("models/demo/draft") : NULL,
                                  .dtype = dtype,
                                  .n_threads = threads,
                                  .max_sequences = batch,
                                  .context = 1024,
                                  .width = width};
    return run_open(&o, NULL);
}

static struct run_case *as_cases(const struct line *lines, int n)
{
    struct run_case *c = calloc((size_t)n, sizeof *c);
    for (int i = 0; i < n; i++)
        c[i] = (struct run_case){.prompt = lines[i].prompt,
                                 .n_prompt = lines[i].n_prompt,
                                 .max_tokens = lines[i].max_tokens,
                                 .req = {.top_p = 1, .ignore_eos = true}};
    return c;
}

/* f32 on one core is slow under a sanitizer: plain loops stay out of this test. */
static void equals_the_reference(void **state)
{
    (void)state;
    struct line lines[MAX_LINES] = {{0}};
    int n = read_lines(lines);
    assert_true(n >= 40 || sv_test_brief());
    struct sv_engine *e = open_pair(true, SV_TYPE_F32, 8, 0, 2);
    struct run_case *c = as_cases(lines, n);
    struct run_out *out = run_all(e, c, n);
    for (int i = 0; i < n; i++) {
        const char *id = json_string_value(json_object_get(lines[i].json, "id"));
        int32_t n_ids, n_accept;
        int32_t *ids = ints(lines[i].json, "token_ids", &n_ids);
        int32_t *accept = ints(lines[i].json, "accept_lengths", &n_accept);
        if (out[i].n_tokens != n_ids || memcmp(out[i].tokens, ids, (size_t)n_ids * 4))
            fail_msg("%s: token ids differ from the reference's", id);
        if (out[i].n_steps != n_accept)
            fail_msg("%s: %d verify steps, the reference took %d", id, out[i].n_steps, n_accept);
        for (int32_t j = 0; j < n_accept; j++)
            if (out[i].accept[j] != accept[j])
                fail_msg("%s step %d: accept length %d, not %d", id, j, out[i].accept[j],
                         accept[j]);
        struct sv_buf text;
        sv_buf_init(&text);
        assert_int_equal(sv_tokenizer_decode(e->tok, ids, (size_t)n_ids, false, &text), 0);
        assert_string_equal(text.data, json_string_value(json_object_get(lines[i].json, "text")));
        sv_buf_fini(&text);
        free(ids);
        free(accept);
    }
    print_message("%d prompts, mean accept length %.2f\n", n, sv_accept_mean(&e->accept));
    run_out_free(out, n);
    free(c);
    sv_engine_close(e);
    free_lines(lines, n);
}

static void bf16_is_lossless(void **state)
{
    (void)state;
    struct line lines[MAX_LINES] = {{0}};
    int n = read_lines(lines);
    struct run_case *c = as_cases(lines, n);
    struct sv_engine *plain = open_pair(false, SV_TYPE_BF16, 3, 0, 2);
    struct run_out *ref = run_all(plain, c, n);
    sv_engine_close(plain);
    static const struct {
        int32_t batch, width, threads;
    } as[] = {{1, 0, 2}, {44, 0, 1}, {8, 7, 2}};
    for (size_t k = 0; k < sizeof as / sizeof as[0]; k++) {
        char what[64];
        if (run_left_out(k))
            continue;
        snprintf(what, sizeof what, "bf16 batch %d width %d threads %d", as[k].batch, as[k].width,
                 as[k].threads);
        struct sv_engine *e =
            open_pair(true, SV_TYPE_BF16, as[k].batch, as[k].width, as[k].threads);
        struct run_out *out = run_all(e, c, n);
        run_same(ref, out, n, what);
        double mean = sv_accept_mean(&e->accept);
        print_message("%s: mean accept length %.2f\n", what, mean);
        if (!as[k].width)
            assert_true(mean > 2); /* a shifted tap or a wrong position would bring it to 1 */
        run_out_free(out, n);
        sv_engine_close(e);
    }
    run_out_free(ref, n);
    free(c);
    free_lines(lines, n);
}

SV_TEST_MAIN(cmocka_unit_test(equals_the_reference), cmocka_unit_test(bf16_is_lossless))
