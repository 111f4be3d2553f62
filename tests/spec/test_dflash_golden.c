/*
 * test_dflash_golden.c - the drafter against the published reference code, in f32.
 *
 * timeout: 120
 *
 * First block after a prompt: taps, context K and V of every layer, draft rows and ids. Whole
 * greedy decodes of 40+ prompts: token ids and the accept length of every step must be equal.
 * Prompts go through in chunks, pages are small, so that the paths a server takes are the ones
 * checked. The published drafts have an epsilon too small to be seen: that the context's norm uses
 * it is checked with a larger one.
 */
#define _POSIX_C_SOURCE 200809L /* symlink */

#include "testing.h"

#include "engine/run.h"
#include "golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct subject {
    const char *draft, *golden; /* below tests/golden/tiny */
};

/* A draft directory whose config.json is the variant the golden file names. */
static const char *draft_dir(const char *name, const char *config)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/tiny/%s", name);
    const char *dir = run_dir(path);
    if (!strcmp(config, "config.json"))
        return dir;
    const char *tmp = run_keep(sv_test_tmp(config));
    char from[600], to[600];
    if (mkdir(tmp, 0700))
        return tmp; /* made by an earlier prompt */
    snprintf(from, sizeof from, "%s/model.safetensors", dir);
    snprintf(to, sizeof to, "%s/model.safetensors", tmp);
    assert_int_equal(symlink(from, to), 0);
    snprintf(from, sizeof from, "%s/%s", dir, config);
    snprintf(to, sizeof to, "%s/config.json", tmp);
    assert_int_equal(symlink(from, to), 0);
    return tmp;
}

static struct sv_engine *open_pair(const struct golden *g, const struct subject *s, int32_t batch,
                                   int32_t page, int32_t chunk)
{
    char target[256];
    snprintf(target, sizeof target, "tests/golden/tiny/%s", golden_meta(g, "target"));
    struct sv_engine_options o = {.target_dir = run_dir(target),
                                  .draft_dir = draft_dir(s->draft, golden_meta(g, "draft_config")),
                                  .dtype = SV_TYPE_F32,
                                  .n_threads = 2,
                                  .max_sequences = batch,
                                  .page_size = page,
                                  .prefill_chunk = chunk};
    return run_open(&o, NULL);
}

static void same(const char *what, int i, int32_t at, const float *a, const float *b, size_t n)
{
    double e = golden_rel_err(a, b, n);
    if (!(e < 1e-4))
        fail_msg("prompt %d: %s %d differs, relative error %.3g", i, what, at, e);
}

/* What the device holds, in f32 and integers as computed; free() it. */
static void *fetch(struct sv_engine *e, const void *dev, size_t n_bytes)
{
    void *host = malloc(n_bytes);
    struct sv_err err = {0};
    sv_dev_download(e->dev, host, dev, n_bytes);
    if (sv_dev_sync(e->dev, &err))
        fail_msg("%s", err.msg);
    return host;
}

/* K or V of one position of one layer: (n_kv, head_dim) gathered from its page. */
static void gather(const struct sv_kv *kv, const void *half, int32_t pos, float *out)
{
    int32_t page = kv->table[pos / kv->page_size], ps = kv->page_size, hd = kv->head_dim;
    for (int32_t h = 0; h < kv->n_kv_heads; h++) {
        size_t at = (((size_t)page * (size_t)kv->n_kv_heads + (size_t)h) * (size_t)ps +
                     (size_t)(pos % ps)) *
                    (size_t)hd;
        memcpy(out + h * hd, (const float *)half + at, (size_t)hd * sizeof *out);
    }
}

static struct sv_draft_config config_of(const struct sv_engine *e, const char *dir)
{
    struct sv_draft_config c;
    struct sv_err err;
    assert_int_equal(sv_draft_config_load(&c, dir, e->model.cfg.n_layers, &err), 0);
    return c;
}

/* Which layers lie where: the target's groups come first, then the draft's in layer order. */
static void draft_layer(const struct sv_engine *e, const struct sv_draft_config *c, int32_t layer,
                        int32_t *group, int32_t *index)
{
    int32_t kinds[2] = {-1, -1}, n = 0, count[2] = {0, 0}, first = 0;
    while (e->cache.group[first].d.owner == SV_CACHE_TARGET)
        first++;
    for (int32_t i = 0; i <= layer; i++) {
        int k = c->base.layer_kind[i] == SV_LAYER_SLIDING;
        if (kinds[k] < 0)
            kinds[k] = n++;
        *index = count[k]++;
        *group = first + kinds[k];
    }
}

static void check_context(struct sv_engine *e, const struct sv_draft_config *c, struct golden *g,
                          int i, int32_t n)
{
    size_t k, width = (size_t)(c->base.n_kv_heads * c->base.head_dim);
    float row[1024];
    for (int32_t l = 0; l < c->base.n_layers; l++) {
        if (!golden_has(g, "d%d.l%d.k", i, l))
            continue;
        int32_t group, index;
        draft_layer(e, c, l, &group, &index);
        struct sv_kv kv = sv_cache_kv(&e->cache, group, index);
        const size_t half = (size_t)kv.n_pages * (size_t)kv.page_size * width * sizeof(float);
        kv.k = fetch(e, kv.k, half);
        kv.v = fetch(e, kv.v, half);
        int32_t *table = fetch(e, kv.table, (size_t)kv.table_stride * sizeof *table);
        kv.table = table;
        const float *want_k = golden_get(g, "F32", &k, "d%d.l%d.k", i, l);
        const float *want_v = golden_get(g, "F32", &k, "d%d.l%d.v", i, l);
        for (int32_t p = 0; p < n; p++) {
            if (kv.table[p / kv.page_size] < 0)
                continue; /* slid out of the window: no row can see it any more */
            gather(&kv, kv.k, p, row);
            same("context K at", i, p, row, want_k + (size_t)p * width, width);
            gather(&kv, kv.v, p, row);
            same("context V at", i, p, row, want_v + (size_t)p * width, width);
        }
        free(kv.k), free(kv.v), free(table);
    }
}

/* Prompt, then one block: what the drafter computed is still in the engine's buffers after the
 * step. */
static void first_block(struct golden *g, const struct subject *s, int i)
{
    struct sv_engine *e = open_pair(g, s, 1, 4, 512);
    const struct sv_config *c = &e->model.cfg;
    const struct sv_draft_config own = config_of(
                                     e, draft_dir(s->draft, golden_meta(g, "draft_config"))),
                                 *dc = &own;
    size_t n, k, hidden = (size_t)c->hidden_size;
    const int32_t *ids = golden_get(g, "I32", &n, "d%d.input_ids", i);
    struct sv_request r = {.top_p = 1,
                           .ignore_eos = true,
                           .prompt_ids = ids,
                           .n_prompt_ids = (int32_t)n,
                           .max_tokens = 64};
    struct sv_err err = {0};
    assert_int_equal(sv_engine_submit(e, &r, NULL, &err), 0);
    assert_int_equal(sv_engine_step(e, &err), 0);
    assert_int_equal(sv_engine_settle(e, &err), 0); /* a GPU's step may still be under way */
    if (golden_has(g, "d%d.taps", i)) {
        size_t width = (size_t)dc->n_taps * hidden;
        const float *taps = golden_get(g, "F32", &k, "d%d.taps", i);
        float *got = fetch(e, e->taps, n * width * sizeof *got);
        for (size_t p = 0; p < n; p++)
            same("taps at", i, (int32_t)p, got + p * width, taps + p * width, width);
        free(got);
    }
    check_context(e, dc, g, i, (int32_t)n);
    const int32_t *anchor = golden_get(g, "I32", &k, "d%d.anchor", i);
    assert_int_equal(e->sched.head->tokens[n], *anchor);
    assert_int_equal(sv_engine_step(e, &err), 0);
    assert_int_equal(sv_engine_settle(e, &err), 0);
    const float *u = golden_get(g, "F32", &k, "d%d.u", i);
    const int32_t *want = golden_get(g, "I32", &k, "d%d.draft_ids", i);
    assert_int_equal(k, dc->block_size - 1);
    const size_t n_drafts = (size_t)dc->block_size - 1;
    float *rows = fetch(e, e->draft_out, n_drafts * hidden * sizeof *rows);
    int32_t *row_ids = fetch(e, e->batch.row_ids.dev, (n_drafts + 1) * sizeof *row_ids);
    for (int32_t j = 1; j < dc->block_size; j++) {
        same("draft row", i, j, rows + (size_t)(j - 1) * hidden, u + (size_t)j * hidden, hidden);
        assert_int_equal(row_ids[j], want[j - 1]);
    }
    free(rows), free(row_ids);
    sv_engine_close(e);
}

static void whole_decodes(struct golden *g, const struct subject *s, int32_t batch, int32_t page,
                          int32_t chunk)
{
    struct sv_engine *e = open_pair(g, s, batch, page, chunk);
    size_t n, m;
    const int32_t *prompts = golden_get(g, "I32", &n, "prompts");
    const int32_t *at = golden_get(g, "I32", &m, "prompts_offsets");
    const int32_t *tokens = golden_get(g, "I32", &n, "tokens");
    const int32_t *tokens_at = golden_get(g, "I32", &n, "tokens_offsets");
    const int32_t *accept = golden_get(g, "I32", &n, "accept");
    const int32_t *accept_at = golden_get(g, "I32", &n, "accept_offsets");
    int32_t n_prompts = (int32_t)m - 1;
    assert_true(n_prompts >= 40);
    struct run_case *c = calloc((size_t)n_prompts, sizeof *c);
    for (int32_t i = 0; i < n_prompts; i++)
        c[i] = (struct run_case){.prompt = (int32_t *)(uintptr_t)(prompts + at[i]),
                                 .n_prompt = at[i + 1] - at[i],
                                 .max_tokens = tokens_at[i + 1] - tokens_at[i],
                                 .req = {.top_p = 1, .ignore_eos = true}};
    struct run_out *out = run_all(e, c, n_prompts);
    for (int32_t i = 0; i < n_prompts; i++) {
        assert_int_equal(out[i].n_tokens, c[i].max_tokens);
        if (memcmp(out[i].tokens, tokens + tokens_at[i], (size_t)out[i].n_tokens * 4))
            fail_msg("%s prompt %d: token ids differ", s->golden, i);
        int32_t n_steps = accept_at[i + 1] - accept_at[i];
        if (out[i].n_steps != n_steps)
            fail_msg("%s prompt %d: %d steps, not %d", s->golden, i, out[i].n_steps, n_steps);
        for (int32_t j = 0; j < n_steps; j++)
            if (out[i].accept[j] != accept[accept_at[i] + j])
                fail_msg("%s prompt %d step %d: accept length %d, not %d", s->golden, i, j,
                         out[i].accept[j], accept[accept_at[i] + j]);
    }
    print_message("%s: %d prompts, mean accept length %.2f\n", s->golden, n_prompts,
                  sv_accept_mean(&e->accept));
    run_out_free(out, n_prompts);
    free(c);
    sv_engine_close(e);
}

static void check(const struct subject *s)
{
    char file[256];
    snprintf(file, sizeof file, "tiny/%s.golden.safetensors", s->golden);
    struct golden g = golden_open(file);
    int n_details = atoi(golden_meta(&g, "n_details"));
    assert_true(n_details >= 5);
    for (int i = 0; i < n_details; i++)
        first_block(&g, s, i);
    whole_decodes(&g, s, 1, 16, 512);
    whole_decodes(&g, s, 7, 4, 5);
    golden_close(&g);
}

/* The context's V of one prompt, (layers, n, width), with the draft's epsilon; the taps it was made
 * of. free() both. */
static float *context_v(const char *dir, int32_t n, size_t *width, float **taps, size_t *n_taps)
{
    struct sv_engine_options o = {.target_dir = run_dir("tests/golden/tiny/pair_target"),
                                  .draft_dir = dir,
                                  .dtype = SV_TYPE_F32,
                                  .n_threads = 1};
    struct sv_engine *e = run_open(&o, NULL);
    const struct sv_draft_config own = config_of(e, dir);
    const struct sv_config *c = &own.base;
    struct sv_err err = {0};
    int32_t ids[64];
    for (int32_t i = 0; i < n; i++)
        ids[i] = 3 + i * 5;
    struct sv_request r = {
        .top_p = 1, .ignore_eos = true, .prompt_ids = ids, .n_prompt_ids = n, .max_tokens = 4};
    assert_int_equal(sv_engine_submit(e, &r, NULL, &err), 0);
    assert_int_equal(sv_engine_step(e, &err), 0);
    assert_int_equal(sv_engine_settle(e, &err), 0);
    *width = (size_t)(c->n_kv_heads * c->head_dim);
    *n_taps = (size_t)e->drafter->n_taps * (size_t)e->drafter->hidden;
    *taps = fetch(e, e->taps, (size_t)n * *n_taps * sizeof **taps);
    float *out = malloc((size_t)c->n_layers * (size_t)n * *width * sizeof *out);
    for (int32_t l = 0; l < c->n_layers; l++) {
        struct sv_kv kv = sv_cache_kv(&e->cache, 1, l);
        float *v = fetch(e, kv.v, (size_t)kv.n_pages * (size_t)kv.page_size * *width * sizeof *v);
        int32_t *table = fetch(e, kv.table, (size_t)kv.table_stride * sizeof *table);
        kv.table = table;
        for (int32_t p = 0; p < n; p++)
            gather(&kv, v, p, out + ((size_t)l * (size_t)n + (size_t)p) * *width);
        free(v), free(table);
    }
    sv_engine_close(e);
    return out;
}

static double from_bf16(uint16_t v)
{
    uint32_t bits = (uint32_t)v << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* Mean square of a row of taps after fc (hidden, n_taps). */
static double mean_square(const uint16_t *fc, size_t hidden, const float *taps, size_t n_taps)
{
    double sum = 0;
    for (size_t i = 0; i < hidden; i++) {
        double z = 0;
        for (size_t k = 0; k < n_taps; k++)
            z += from_bf16(fc[i * n_taps + k]) * (double)taps[k];
        sum += z * z;
    }
    return sum / (double)hidden;
}

static void epsilon_of_the_context_norm(void **state)
{
    (void)state;
    enum { N = 24, HIDDEN = 48, LAYERS = 2 };
    const double eps = 0.5;
    const char *dir = run_dir("tests/golden/tiny/pair_draft_full_b16");
    const char *tmp = run_keep(sv_test_tmp("large_eps"));
    char from[600], to[600];
    struct sv_buf text;
    struct sv_err err = {0};
    assert_int_equal(mkdir(tmp, 0700), 0);
    snprintf(from, sizeof from, "%s/model.safetensors", dir);
    snprintf(to, sizeof to, "%s/model.safetensors", tmp);
    assert_int_equal(symlink(from, to), 0);
    sv_buf_init(&text);
    snprintf(from, sizeof from, "%s/config.json", dir);
    snprintf(to, sizeof to, "%s/config.json", tmp);
    assert_int_equal(sv_file_read(&text, from, 1 << 16, &err), 0);
    char *at = strstr(text.data, "1e-06");
    assert_non_null(at);
    memcpy(at, "0.500", 5);
    assert_int_equal(sv_file_write(to, text.data, text.len, &err), 0);
    sv_buf_fini(&text);

    size_t width, n_taps;
    float *taps, *v0 = context_v(dir, N, &width, &taps, &n_taps);
    free(taps);
    float *v1 = context_v(tmp, N, &width, &taps, &n_taps);
    struct golden g = golden_open("tiny/pair_draft_full_b16/model.safetensors");
    size_t k;
    const uint16_t *fc = golden_get(&g, "BF16", &k, "fc.weight");
    assert_int_equal(k, HIDDEN * n_taps);
    for (int32_t p = 0; p < N; p++) {
        double m = mean_square(fc, HIDDEN, taps + (size_t)p * n_taps, n_taps);
        float shrink = (float)sqrt((m + 1e-6) / (m + eps));
        assert_true(shrink < 0.99f); /* or it could not be seen */
        for (size_t l = 0; l < LAYERS; l++) {
            float *a = v0 + (l * N + (size_t)p) * width, *b = v1 + (l * N + (size_t)p) * width;
            for (size_t i = 0; i < width; i++)
                a[i] *= shrink;
            same("context V at", (int)l, p, b, a, width);
        }
    }
    golden_close(&g);
    free(taps), free(v0), free(v1);
}

#define DRAFT_TEST(test, dir, golden)                                                              \
    static void test(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        check(&(struct subject){dir, golden});                                                     \
    }
DRAFT_TEST(full_layers, "pair_draft_full_b16", "pair_draft_full_b16")
DRAFT_TEST(biases, "pair_draft_bias_b8", "pair_draft_bias_b8")
DRAFT_TEST(sliding, "pair_draft_sliding_b8", "pair_draft_sliding_b8")
DRAFT_TEST(sliding_noncausal, "pair_draft_sliding_b8", "pair_draft_sliding_b8.noncausal")
DRAFT_TEST(sliding_allcausal, "pair_draft_sliding_b8", "pair_draft_sliding_b8.allcausal")
DRAFT_TEST(llama, "llama_draft_random_b4", "llama_draft_random_b4")
DRAFT_TEST(gptoss, "gptoss_draft_random_b10", "gptoss_draft_random_b10")

SV_TEST_MAIN(cmocka_unit_test(full_layers), cmocka_unit_test(biases), cmocka_unit_test(sliding),
             cmocka_unit_test(sliding_noncausal), cmocka_unit_test(sliding_allcausal),
             cmocka_unit_test(llama), cmocka_unit_test(gptoss),
             cmocka_unit_test(epsilon_of_the_context_norm))
