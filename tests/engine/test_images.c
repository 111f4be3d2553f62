/*
 * test_images.c - prompts with images through the engine: text equal to transformers', positions,
 * what is refused, the same bits for every chunk, batch, cache and after preemption, and that
 * prompts share prefixes of the same images alone.
 *
 * timeout: 240
 * release: bits_f32
 * release: bits_bf16
 * release: bits_states
 */
#include "testing.h"

#include "engine/pictures.h"
#include "engine/toy.h"
#include "golden.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 300, CONTEXT = 192, MOST_IMAGES = 8 };

static const char *const names[] = {"qwen3_vl_bf16", "qwen3_vl_moe_bf16", "qwen3_5_vl_bf16",
                                    "qwen3_5_vl_moe_bf16"};
enum { N_NAMES = sizeof names / sizeof names[0] };

static const char *dir_of(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tests/golden/tiny/%s", name);
    return run_dir(path);
}

/* ---------------------------------------------------------------- transformers */

/* The images of a golden prompt, whose pixels are put into memory of the caller. */
static int32_t images_of(struct golden *g, int p, struct sv_image *out, uint8_t *bytes)
{
    size_t n, n_rgb;
    const int32_t *shown = golden_get(g, "I32", &n, "q%d.images", p);
    assert_true(n <= MOST_IMAGES);
    for (size_t k = 0; k < n; k++) {
        const int32_t *grid = golden_get(g, "I32", &n_rgb, "i%d.grid", shown[k]);
        out[k] = (struct sv_image){bytes, grid[1] * 4, grid[0] * 4};
        const int32_t *rgb = golden_get(g, "I32", &n_rgb, "i%d.rgb", shown[k]);
        assert_int_equal(n_rgb, 3 * out[k].width * out[k].height);
        for (size_t i = 0; i < n_rgb; i++)
            *bytes++ = (uint8_t)rgb[i];
    }
    return (int32_t)n;
}

static void same_positions(struct sv_engine *e, const struct sv_request *r, struct golden *g, int p)
{
    struct sv_err err = {0};
    size_t n, n_ids;
    uint64_t id;
    assert_int_equal(sv_engine_submit(e, r, &id, &err), SV_OK);
    const struct sv_seq *q = e->sched.head;
    const int32_t *shown = golden_get(g, "I32", &n, "q%d.images", p);
    for (int32_t k = 0; k < q->images->n; k++) {
        struct sv_patches made;
        assert_int_equal(
            sv_patches_make(&e->images.prep, &q->images->image[k].shown->pixels, &made, &err),
            SV_OK);
        const float *want = golden_get(g, "F32", &n, "i%d.patches", shown[k]);
        assert_int_equal(n, made.grid_h * made.grid_w * 96);
        assert_true(golden_rel_err(made.values, want, n) < 1e-6);
        sv_patches_free(&made);
    }
    const int32_t *want = golden_get(g, "I32", &n, "q%d.positions", p);
    const int32_t *ids = golden_get(g, "I32", &n_ids, "q%d.input_ids", p);
    assert_true(q->n_prompt == (int32_t)n_ids && 3 * n_ids == n);
    assert_memory_equal(q->tokens, ids, n_ids * sizeof *ids);
    int32_t next = 0;
    for (int32_t i = 0; i < q->n_prompt; i++) {
        int32_t shift[3];
        sv_images_shift(q->images, i, shift);
        for (int a = 0; a < 3; a++) {
            const int32_t is = want[a * q->n_prompt + i];
            assert_int_equal(i + shift[a], is);
            next = is >= next ? is + 1 : next;
        }
    }
    int32_t behind[3];
    sv_images_shift(q->images, INT32_MAX, behind);
    for (int a = 0; a < 3; a++)
        assert_int_equal(q->n_prompt + behind[a], next);
    sv_cancel_request(e, id);
    while (sv_step_engine(e, NULL, 0) > 0) {
    }
}

static void golden_text(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 16];
    for (int m = 0; m < N_NAMES; m++) {
        char path[128];
        snprintf(path, sizeof path, "tiny/%s.images.golden.safetensors", names[m]);
        struct golden g = golden_open(path);
        const struct sv_engine_options o = {
            .target_dir = dir_of(names[m]), .dtype = SV_TYPE_F32, .prefill_chunk = 7};
        struct sv_engine *e = run_open(&o, NULL);
        assert_true(sv_engine_takes_images(e, NULL));
        for (int p = 0; p < atoi(golden_meta(&g, "n_prompts")); p++) {
            struct sv_image images[MOST_IMAGES];
            size_t n, n_short;
            struct run_case c = {.req = {.top_p = 1, .ignore_eos = true}};
            const int32_t *want = golden_get(&g, "I32", &n, "q%d.greedy_ids", p);
            c.req.n_images = images_of(&g, p, images, bytes);
            c.req.images = images;
            c.prompt = (int32_t *)(uintptr_t)golden_get(&g, "I32", &n_short, "q%d.short_ids", p);
            c.n_prompt = (int32_t)n_short;
            c.max_tokens = (int32_t)n;
            struct sv_request r = c.req;
            r.prompt_ids = c.prompt;
            r.n_prompt_ids = c.n_prompt;
            same_positions(e, &r, &g, p);
            struct run_out *out = run_all(e, &c, 1);
            assert_int_equal(out->n_tokens, n);
            for (size_t k = 0; k < n; k++)
                if (out->tokens[k] != want[k])
                    fail_msg("%s, prompt %d: token %zu is %d, not %d", names[m], p, k,
                             out->tokens[k], want[k]);
            run_out_free(out, 1);
        }
        sv_engine_close(e);
        golden_close(&g);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

/* ---------------------------------------------------------------- what is refused */

static void refused(struct sv_engine *e, const struct sv_request *r, int code, const char *says)
{
    struct sv_err err = {0};
    uint64_t id;
    assert_int_equal(sv_engine_submit(e, r, &id, &err), code);
    if (!strstr(err.msg, says))
        fail_msg("'%s' does not say '%s'", err.msg, says);
}

static void text_models(void **state)
{
    (void)state;
    static const int32_t ids[] = {5, 6, 7};
    static const struct {
        const char *dir, *says;
    } cases[] = {{"qwen3_f32", "the model has no vision tower"},
                 {"qwen3_5_bf16", "the files have no tensors of the vision tower"}};
    const struct sv_image image = picture(0);
    for (int k = 0; k < 2; k++) {
        const struct sv_engine_options o = {.target_dir = dir_of(cases[k].dir)};
        struct sv_engine *e = run_open(&o, NULL);
        struct sv_request r = sv_default_request(e);
        r.prompt_ids = ids;
        r.n_prompt_ids = 3;
        r.n_images = 1;
        const char *why = NULL;
        assert_false(sv_engine_takes_images(e, &why));
        assert_string_equal(why, cases[k].says);
        refused(e, &r, SV_EINVAL, "n_images 1");
        r.images = &image;
        refused(e, &r, SV_EUNSUPPORTED, cases[k].says);
        sv_engine_close(e);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

static void what_does_not_fit(void **state)
{
    (void)state;
    static const int32_t none[] = {5, 6}, one[] = {5, PICTURE_TOKEN, 6}, two[] = {295, 295};
    const struct sv_engine_options o = {.target_dir = dir_of(names[0]), .context = 12};
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_image images[2] = {picture(0), picture(11)}; /* of 1 and 6 rows */
    struct sv_request r = sv_default_request(e);
    assert_int_equal(picture_rows(&images[1]), 6);
    r.images = images;
    r.n_images = 1;
    r.prompt_ids = none;
    r.n_prompt_ids = 2;
    refused(e, &r, SV_EINVAL, "0 image tokens (295), the request 1 images");
    r.prompt_ids = two;
    refused(e, &r, SV_EINVAL, "2 image tokens (295), the request 1 images");
    r.n_images = 13;
    refused(e, &r, SV_EINVAL, "13 images do not fit");
    r.n_images = 1;
    r.prompt_ids = one;
    r.n_prompt_ids = 3;
    images[0].width = 0;
    refused(e, &r, SV_EINVAL, "image 0: 0 x 8 pixels");
    images[0] = picture(0);
    images[0].rgb = NULL;
    refused(e, &r, SV_EINVAL, "image 0");
    images[0] = images[1];
    r.n_images = 2;
    r.prompt_ids = two;
    r.n_prompt_ids = 2;
    refused(e, &r, SV_EINVAL, "the prompt has 12 tokens");
    static uint8_t large[3 * 520 * 520];
    images[0] = (struct sv_image){large, 520, 520};
    e->images.prep.max_pixels = 1 << 20;
    refused(e, &r, SV_EINVAL, "image 0: 130 x 130 patches; at most 16384");
    sv_engine_close(e);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Kimi's tower is not read: its placeholder is no text. */
static void a_placeholder(void **state)
{
    (void)state;
    static const int32_t ids[] = {5, 298, 6};
    const struct run_pair pair = toy_pair_like(
        "kimi_int4", "{\"media_placeholder_token_id\": 298, \"quantization_config\": null}");
    const struct sv_engine_options o = {.target_dir = pair.target};
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_request r = sv_default_request(e);
    r.prompt_ids = ids;
    r.n_prompt_ids = 3;
    refused(
        e, &r, SV_EUNSUPPORTED,
        "prompt token 298 at index 1 is 'media_placeholder_token_id', which stands for an image: "
        "images are not supported for KimiK25ForConditionalGeneration");
    r.n_prompt_ids = 1;
    assert_int_equal(sv_engine_submit(e, &r, NULL, NULL), SV_OK);
    sv_engine_close(e);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Every allocation of submitting, and those between steps, fails once: a request without its rows
 * ends with an error, and others go on. */
static void faults(void **state)
{
    (void)state;
    run_needs_cpu();
    static const int32_t ids[] = {5, PICTURE_TOKEN, 6, PICTURE_TOKEN, 9};
    const struct sv_engine_options o = {
        .target_dir = dir_of(names[0]), .n_threads = 1, .max_sequences = 2};
    struct sv_engine *e = run_open(&o, NULL);
    const struct sv_image images[2] = {picture(6), picture(11)};
    int n_refused = 0, n_failed = 0;
    for (int64_t n = 1;; n++) {
        struct run_events events = {0}, other = {0};
        struct sv_request r = sv_default_request(e), text = r;
        struct sv_err err = {0};
        sv_flush_cache(e);
        text.prompt_ids = r.prompt_ids = ids;
        r.n_prompt_ids = 5;
        text.n_prompt_ids = 1;
        text.max_tokens = r.max_tokens = 3;
        text.ignore_eos = r.ignore_eos = true;
        r.images = images;
        r.n_images = 2;
        text.on_event = r.on_event = run_on_event;
        r.user = &events;
        text.user = &other;
        assert_int_equal(sv_engine_submit(e, &text, NULL, &err), SV_OK);
        sv_fault_arm(n);
        const int rc = sv_engine_submit(e, &r, NULL, &err);
        while (sv_step_engine(e, NULL, 0) > 0) {
        }
        const bool hit = sv_fault_calls() >= n;
        sv_fault_arm(0);
        assert_true(other.finish == SV_FINISH_LENGTH && other.n_tokens == 3);
        assert_true(!rc || (rc == SV_ENOMEM && err.msg[0]));
        n_refused += rc != 0;
        n_failed += !rc && events.finish == SV_FINISH_ERROR;
        if (!rc && events.finish == SV_FINISH_ERROR)
            assert_non_null(strstr(events.message, "no memory for the rows of an image"));
        else if (!rc)
            assert_int_equal(events.n_tokens, 3);
        if (!hit)
            break;
    }
    assert_true(n_refused > 5 && n_failed >= 6); /* three for each image's rows */
    sv_engine_close(e);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Without memory for its rows a request waits for one that has rows and runs: tried once, and again
 * when that one has ended. */
static void memory_of_another(void **state)
{
    (void)state;
    run_needs_cpu();
    static const int32_t ids[] = {5, PICTURE_TOKEN, 9};
    const struct sv_engine_options o = {
        .target_dir = dir_of(names[0]), .n_threads = 1, .max_sequences = 2};
    struct sv_engine *e = run_open(&o, NULL);
    const struct sv_image images[2] = {picture(6), picture(11)};
    struct run_events events[2] = {{0}};
    struct sv_err err = {0};
    for (int i = 0; i < 2; i++) {
        struct sv_request r = sv_default_request(e);
        r.prompt_ids = ids;
        r.n_prompt_ids = 3;
        r.images = &images[i];
        r.n_images = 1;
        r.max_tokens = i ? 3 : 12;
        r.ignore_eos = true;
        r.on_event = run_on_event;
        r.user = &events[i];
        assert_int_equal(sv_engine_submit(e, &r, NULL, &err), SV_OK);
        while (!events[0].n_tokens)
            assert_true(sv_step_engine(e, NULL, 0) > 0);
    }
    while (e->sched.tail->slot < 0)
        assert_true(sv_step_engine(e, NULL, 0) > 0);
    for (int n = 0; events[0].finish == SV_FINISH_NONE; n++) {
        sv_fault_arm(n ? INT64_MAX : 1);
        assert_true(sv_step_engine(e, NULL, 0) > 0);
        assert_int_equal(sv_fault_calls(), !n);
        sv_fault_arm(0);
        assert_int_equal(events[1].finish, SV_FINISH_NONE);
    }
    while (sv_step_engine(e, NULL, 0) > 0) {
    }
    assert_true(events[1].finish == SV_FINISH_LENGTH && events[1].n_tokens == 3);
    assert_true(!e->images.n_held && !e->images.n_full);
    sv_engine_close(e);
    assert_int_equal(sv_alloc_live(), 0);
}

/* ---------------------------------------------------------------- the same bits */

struct setting {
    int32_t batch, page, chunk, positions; /* positions: of the pools; 0: plenty */
    bool keep, ahead;
};
static const struct setting settings[] = {
    {1, 16, 1, 0, false, false}, {8, 1, 3, 0, false, true},     {5, 64, 7, 0, true, false},
    {24, 16, 33, 0, true, true}, {24, 16, 512, 0, true, false}, {8, 16, 9, 224, false, false},
    {8, 4, 40, 224, true, true}, {2, 1, 512, 224, true, false},
};

/* Each prompt alone, in one chunk and without kept prefixes, is what all others must give, also the
 * second time, when prefixes are known. */
static void bits(const char *name, enum sv_data_type dtype, bool drafts)
{
    enum { N = 24 };
    const struct run_pair pair = toy_pair_of(name);
    struct run_case *c = run_cases(N, VOCAB, 60, 40, 5);
    pictures_add(c, N, 6);
    for (int32_t i = 0; i < N; i++) {
        c[i].req.temperature = i % 4 == 3 ? 0.8 : 0;
        c[i].req.logprobs = c[i].req.prompt_logprobs = i % 5 == 0;
    }
    struct sv_engine_options o = {.target_dir = pair.target,
                                  .draft_dir = drafts ? pair.draft : NULL,
                                  .dtype = dtype,
                                  .context = CONTEXT,
                                  .n_threads = 1,
                                  .no_prefix_cache = true};
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *ref = run_all(e, c, N);
    sv_engine_close(e);
    o.n_threads = 2;
    for (size_t k = 0; k < sizeof settings / sizeof settings[0]; k++) {
        const struct setting *s = &settings[k];
        if (run_left_out(k))
            continue;
        const struct sv_engine_tuning t = {
            .cache_pages = s->positions / s->page, .run_ahead = s->ahead, .pad = s->ahead};
        char what[96];
        snprintf(what, sizeof what, "%s: batch %d page %d chunk %d positions %d", name, s->batch,
                 s->page, s->chunk, s->positions);
        o.max_sequences = s->batch;
        o.page_size = s->page;
        o.prefill_chunk = s->chunk;
        o.no_prefix_cache = !s->keep;
        e = run_open_tuned(&o, &t, NULL);
        int64_t n_cached = 0, n_lost = 0;
        for (int turn = 0; turn < 2; turn++) {
            struct run_out *out = run_all(e, c, N);
            run_same_steps(ref, out, N, what);
            for (int32_t i = 0; i < N; i++) {
                n_cached += out[i].n_cached;
                n_lost += out[i].n_preemptions;
            }
            run_out_free(out, N);
        }
        print_message("%s: %lld found, %lld preemptions\n", what, (long long)n_cached,
                      (long long)n_lost);
        assert_true(n_cached > 0 || !s->keep || s->positions || s->page > 16);
        assert_true(n_lost > 0 || !s->positions || s->batch < 8);
        sv_engine_close(e);
    }
    run_out_free(ref, N);
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

static void bits_f32(void **state)
{
    (void)state;
    bits("qwen3_vl_bf16", SV_TYPE_F32, true);
}
static void bits_bf16(void **state)
{
    (void)state;
    bits("qwen3_vl_bf16", SV_TYPE_BF16, false);
    bits("qwen3_vl_moe_bf16", SV_TYPE_BF16, true);
}
static void bits_states(void **state)
{
    (void)state;
    bits("qwen3_5_vl_bf16", SV_TYPE_BF16, true);
    bits("qwen3_5_vl_moe_bf16", SV_TYPE_BF16, false);
}

/* ---------------------------------------------------------------- prefixes */

static int32_t found(struct sv_engine *e, struct sv_image *image, struct run_out **out)
{
    enum { BEFORE = 21, AFTER = 12 };
    int32_t ids[BEFORE + 1 + AFTER];
    for (int32_t i = 0; i < BEFORE + 1 + AFTER; i++)
        ids[i] = i == BEFORE ? PICTURE_TOKEN : 3 + i * 7 % 200;
    const struct run_case c = {
        .prompt = ids,
        .n_prompt = BEFORE + 1 + AFTER,
        .max_tokens = 8,
        .req = {.top_p = 1, .ignore_eos = true, .images = image, .n_images = 1}};
    *out = run_all(e, &c, 1);
    return (*out)->n_cached;
}

/* Prompts with the same ids and other pixels share what stands before the image. What is found of
 * an image is not made again. */
static void prefixes(void **state)
{
    (void)state;
    const struct sv_engine_options o = {
        .target_dir = dir_of(names[0]), .dtype = SV_TYPE_F32, .page_size = 1};
    static uint8_t other[3 * 40 * 40];
    struct sv_image a = picture(11), b = a;
    const size_t n_bytes = 3 * (size_t)a.width * (size_t)a.height;
    memcpy(other, a.rgb, n_bytes);
    other[n_bytes - 1] ^= 0x80; /* one sample of the last pixel */
    b.rgb = other;
    struct run_out *first[2], *again[2];
    struct sv_engine *e = run_open(&o, NULL);
    const int32_t all = 21 + picture_rows(&a) + 12;
    assert_int_equal(found(e, &a, &first[0]), 0);
    assert_int_equal(found(e, &b, &first[1]), 21);
    assert_int_equal(found(e, &a, &again[0]), all - 1);
    assert_int_equal(found(e, &b, &again[1]), all - 1);
    run_same(first[0], again[0], 1, "found again");
    run_same(first[1], again[1], 1, "found again, the other");
    /* Another shape of as many pixels is another image, too. */
    struct sv_image turned = {a.rgb, a.height, a.width};
    struct run_out *third;
    assert_int_equal(found(e, &turned, &third), 21);
    sv_engine_close(e);
    run_out_free(third, 1);
    for (int i = 0; i < 2; i++)
        run_out_free(first[i], 1), run_out_free(again[i], 1);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Requests that show the same image have one copy of it, of its pixels or of its rows, and the
 * tower runs once; it lives as long as one of them. */
static void shared(void **state)
{
    (void)state;
    static const int32_t ids[] = {5, PICTURE_TOKEN, 6, PICTURE_TOKEN, 9};
    const struct sv_engine_options o = {
        .target_dir = dir_of(names[0]), .max_sequences = 2, .no_prefix_cache = true};
    struct sv_engine *e = run_open(&o, NULL);
    const struct sv_image images[2] = {picture(11), picture(11)};
    struct run_events events[4] = {{0}};
    int64_t n_allocated[4];
    struct sv_request r = sv_default_request(e);
    struct sv_err err;
    r.prompt_ids = ids;
    r.n_prompt_ids = 5;
    r.images = images;
    r.n_images = 2;
    r.ignore_eos = true;
    r.on_event = run_on_event;
    for (int i = 0; i < 4; i++) {
        r.user = &events[i];
        r.max_tokens = i ? 3 : 1;
        r.cache_salt[1] = i == 3; /* of another client */
        sv_fault_arm(INT64_MAX);
        assert_int_equal(sv_engine_submit(e, &r, NULL, &err), SV_OK);
        n_allocated[i] = sv_fault_calls();
        sv_fault_arm(0);
    }
    /* A choice of the same prompt: no image of it is copied or hashed. */
    assert_true(n_allocated[1] == n_allocated[2] && n_allocated[1] == n_allocated[0] - 3);
    const struct sv_picture *only = e->sched.head->images->image[0].shown;
    for (const struct sv_seq *q = e->sched.head; q; q = q->next)
        for (int i = 0; i < 2; i++)
            assert_true((q->images->image[i].shown == only) == (q != e->sched.tail));
    assert_true(only->n_users == 6 && only->pixels.rgb && !only->rows);
    while (!only->rows)
        assert_true(sv_step_engine(e, NULL, 0) > 0);
    assert_null(only->pixels.rgb);
    assert_null(e->sched.tail->images->image[0].shown->rows);
    while (sv_step_engine(e, NULL, 0) > 1)
        assert_int_equal(only->n_users, 2 * (e->sched.n_unfinished - 1));
    while (sv_step_engine(e, NULL, 0) > 0) {
    }
    for (int i = 1; i < 4; i++)
        assert_true(events[i].finish == SV_FINISH_LENGTH && events[i].n_tokens == 3);
    for (int32_t i = 0; i < SV_KNOWN_IMAGES; i++)
        assert_null(e->images.known[i].shown);
    sv_engine_close(e);
    assert_int_equal(sv_alloc_live(), 0);
}

/* An image token that the model itself writes, or that a prompt without images has, is a token. */
static void tokens_without_images(void **state)
{
    (void)state;
    static const int32_t ids[] = {5, PICTURE_TOKEN, PICTURE_TOKEN, 7};
    const struct sv_engine_options o = {.target_dir = dir_of(names[0]), .dtype = SV_TYPE_F32};
    struct sv_engine *e = run_open(&o, NULL);
    const struct run_case c = {.prompt = (int32_t *)(uintptr_t)ids,
                               .n_prompt = 4,
                               .max_tokens = 8,
                               .req = {.top_p = 1, .ignore_eos = true}};
    struct run_out *out = run_all(e, &c, 1);
    assert_int_equal(out->n_tokens, 8);
    run_out_free(out, 1);
    sv_engine_close(e);
    assert_int_equal(sv_alloc_live(), 0);
}

/* ---------------------------------------------------------------- what a draft knows of images */

/* The context keys of all layers of a draft with full attention; free() them. */
static float *draft_keys(struct sv_engine *e, bool clear, size_t *n)
{
    int32_t group = 0;
    struct sv_err err = {0};
    while (e->cache.group[group].d.owner != SV_CACHE_DRAFT)
        group++;
    float *out = NULL;
    for (int32_t l = 0; l < 2; l++) {
        const struct sv_kv kv = sv_cache_kv(&e->cache, group, l);
        const size_t one = (size_t)(kv.n_pages * kv.page_size * kv.n_kv_heads * kv.head_dim);
        out = l ? out : calloc(2 * one, sizeof *out);
        if (clear)
            sv_dev_upload(e->dev, kv.k, out + (size_t)l * one, one * sizeof *out);
        else
            sv_dev_download(e->dev, out + (size_t)l * one, kv.k, one * sizeof *out);
        *n = 2 * one;
    }
    assert_int_equal(sv_dev_sync(e->dev, &err), SV_OK);
    return out;
}

/* DFlash is trained with indices of tokens as positions, images or not (docs/images.md): the
 * context keys behind an image are those that rows of text with the same taps have, and a block
 * goes on at the index. */
static void draft_positions(const char *target, const char *draft)
{
    enum { N_ROWS = 16 };
    static const int32_t ids[] = {PICTURE_TOKEN, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    const struct sv_image image = picture(11);
    const struct sv_engine_options o = {
        .target_dir = target, .draft_dir = draft, .dtype = SV_TYPE_F32, .width = 16};
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_request r = {.top_p = 1,
                           .ignore_eos = true,
                           .prompt_ids = ids,
                           .n_prompt_ids = sizeof ids / sizeof *ids,
                           .images = &image,
                           .n_images = 1,
                           .max_tokens = 30};
    struct sv_err err = {0};
    uint64_t id;
    size_t n;
    assert_int_equal(sv_engine_submit(e, &r, &id, &err), SV_OK);
    do /* a step may do no more than to make the image */
        assert_int_equal(sv_engine_step(e, &err) | sv_engine_settle(e, &err), SV_OK);
    while (!e->plan.launch.n_rows);
    int32_t behind[3], at[16];
    sv_images_shift(e->sched.head->images, INT32_MAX, behind);
    assert_int_equal(behind[0], 3 - 6); /* six rows, in three lines */
    struct sv_rows rows = sv_engine_rows(e);
    assert_true(rows.n_rows >= N_ROWS && rows.row_rope);

    float *own = draft_keys(e, false, &n);
    free(draft_keys(e, true, &n));
    rows.row_rope = NULL;
    sv_drafter_update_context(
        e->drafter, &(struct sv_context_pass){
                        .rows = rows, .n_commit = e->batch.n_commit.dev, .taps = e->taps});
    float *text = draft_keys(e, false, &n);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)(text[i] * text[i]);
    assert_true(sum > 1);
    assert_memory_equal(own, text, n * sizeof *own);
    free(own), free(text);

    assert_int_equal(sv_engine_step(e, &err) | sv_engine_settle(e, &err), SV_OK);
    sv_dev_download(e->dev, at, e->batch.d_row_pos, sizeof at);
    assert_int_equal(sv_dev_sync(e->dev, &err), SV_OK);
    for (int32_t i = 0; i < 16; i++)
        assert_int_equal(at[i], N_ROWS + i);
    sv_engine_close(e);
}

static void drafts_go_by_index(void **state)
{
    (void)state;
    for (int m = 0; m < N_NAMES; m += 2) {
        const struct run_pair pair = toy_pair_of(names[m]);
        draft_positions(pair.target, pair.draft);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(golden_text), cmocka_unit_test(text_models),
             cmocka_unit_test(what_does_not_fit), cmocka_unit_test(a_placeholder),
             cmocka_unit_test(faults), cmocka_unit_test(memory_of_another),
             cmocka_unit_test(bits_f32), cmocka_unit_test(bits_bf16), cmocka_unit_test(bits_states),
             cmocka_unit_test(prefixes), cmocka_unit_test(shared),
             cmocka_unit_test(tokens_without_images), cmocka_unit_test(drafts_go_by_index))
