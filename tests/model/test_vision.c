/*
 * test_vision.c - the vision tower and prompts with images against transformers, in f32.
 *
 * The tower's rows and those of deeper blocks must match the golden file to 1e-4 on every
 * instruction set, or on the device of SALVO_TEST_DEVICE, and be the same bits whatever the tile. A
 * prompt's residual streams, final norm and logits match likewise, in one pass and, bit for bit, in
 * pieces that cut images. Larger images and bf16: against the CPU's plain kernels in f32.
 */
#include "testing.h"

#include "engine/run.h"
#include "golden.h"
#include "model/model_rig.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_IMAGES = 8 };

struct case_of {
    struct model_rig r;
    struct golden g;
    int n_images;
    char *rows[MAX_IMAGES]; /* device */
    int32_t n_rows[MAX_IMAGES], n_patches[MAX_IMAGES];
};

static void close_to(const char *what, int a, int b, const float *x, const float *y, size_t n)
{
    const double e = golden_rel_err(x, y, n);
    if (!(e < 1e-4))
        fail_msg("%s %d %d: relative error %.3g", what, a, b, e);
}

static void check_tower(struct case_of *c, int i)
{
    struct sv_tower *t = c->r.m.tower;
    struct sv_err err = {0};
    size_t n;
    const int32_t *grid = golden_get(&c->g, "I32", &n, "i%d.grid", i);
    const float *patches = golden_get(&c->g, "F32", &n, "i%d.patches", i);
    const int32_t n_patches = c->n_patches[i] = grid[0] * grid[1];
    assert_int_equal(n, n_patches * sv_vision_patch_len(&t->cfg));
    const size_t n_bytes = sv_tower_rows_bytes(t, n_patches),
                 plane = sv_tower_plane_bytes(t, n_patches);
    char *first = malloc(n_bytes), *got = malloc(n_bytes);
    void *rows;
    assert_int_equal(sv_dev_alloc(c->r.dev, &rows, n_bytes, &err), SV_OK);
    static const int32_t tiles[] = {RIG_ROWS, 1, 3, 7};
    for (size_t k = 0; k < sizeof tiles / sizeof tiles[0]; k++) {
        memset(got, 0xff, n_bytes);
        sv_dev_upload(c->r.dev, rows, got, n_bytes);
        if (sv_tower_run(t, tiles[k], grid[0], grid[1], patches, rows, &err))
            fail_msg("%s", err.msg);
        sv_dev_download(c->r.dev, k ? got : first, rows, n_bytes);
        if (sv_dev_sync(c->r.dev, &err))
            fail_msg("%s", err.msg);
        if (k)
            assert_memory_equal(got, first, n_bytes);
    }
    const float *want = golden_get(&c->g, "F32", &n, "i%d.rows", i);
    assert_int_equal(n * 4, plane);
    close_to("rows of image", i, 0, (void *)first, want, n);
    for (int32_t d = 0; d < t->cfg.n_deep; d++) {
        want = golden_get(&c->g, "F32", &n, "i%d.deep%d", i, d);
        close_to("deeper rows of image", i, d, (void *)(first + (size_t)(d + 1) * plane), want, n);
    }
    assert_false(golden_has(&c->g, "i%d.deep%d", i, t->cfg.n_deep));
    free(first);
    free(got);
    c->rows[i] = rows;
    c->n_rows[i] = n_patches / (t->cfg.merge * t->cfg.merge);
}

/* Where the prompt's images stand, by its image tokens. */
static int32_t find_images(struct case_of *c, int p, const int32_t *ids, size_t n,
                           struct sv_image_rows *out)
{
    size_t n_shown;
    const int32_t *shown = golden_get(&c->g, "I32", &n_shown, "q%d.images", p);
    int32_t k = 0;
    for (size_t at = 0; at < n; at++) {
        if (ids[at] != c->r.m.cfg.vision.image_token)
            continue;
        const int32_t i = shown[k];
        out[k++] = (struct sv_image_rows){.row0 = (int32_t)at,
                                          .n_rows = c->n_rows[i],
                                          .rows = c->rows[i],
                                          .n_deep = c->r.m.tower->cfg.n_deep,
                                          .deep_stride =
                                              sv_tower_plane_bytes(c->r.m.tower, c->n_patches[i])};
        at += (size_t)c->n_rows[i] - 1;
    }
    assert_int_equal(k, n_shown);
    return k;
}

static void check_prompt(struct case_of *c, int p)
{
    struct model_rig *r = &c->r;
    const size_t h = (size_t)r->m.cfg.hidden_size, v = (size_t)r->m.cfg.vocab_size,
                 layers = (size_t)r->m.cfg.n_layers;
    struct sv_image_rows images[MAX_IMAGES];
    size_t n, n_rows, k;
    const int32_t *ids = golden_get(&c->g, "I32", &n, "q%d.input_ids", p);
    const int32_t *rows = golden_get(&c->g, "I32", &n_rows, "q%d.rows", p);
    const int32_t *positions = golden_get(&c->g, "I32", &k, "q%d.positions", p);
    int32_t *shift = malloc(n * 12);
    assert_int_equal(k, 3 * n);
    for (size_t i = 0; i < n; i++)
        for (size_t a = 0; a < 3; a++)
            shift[3 * i + a] = positions[a * n + i] - (int32_t)i;
    r->shift = shift;
    r->image = images;
    r->n_images = find_images(c, p, ids, n, images);
    sv_cache_release(&r->cache, 0);
    model_rig_run(r, ids, 0, (int32_t)n);
    for (size_t i = 0; i < n_rows; i++) {
        const size_t at = (size_t)rows[i];
        for (size_t l = 1; l <= layers; l++)
            close_to("layer, row", (int)l, (int)at, r->taps + (at * layers + l - 1) * h,
                     (const float *)golden_get(&c->g, "F32", &k, "q%d.r%d", p, (int)l) + i * h, h);
        close_to("final norm, row", 0, (int)at, r->out + at * h,
                 (const float *)golden_get(&c->g, "F32", &k, "q%d.final_norm", p) + i * h, h);
        close_to("logits, row", 0, (int)at, r->logits + at * v,
                 (const float *)golden_get(&c->g, "F32", &k, "q%d.logits", p) + i * v, v);
    }
    float *once = malloc(n * v * 4);
    memcpy(once, r->logits, n * v * 4);
    for (int32_t step = 1; step <= 9; step += 4) {
        sv_cache_release(&r->cache, 0);
        for (int32_t at = 0; at < (int32_t)n; at += step)
            model_rig_run(r, ids + at, at, step < (int32_t)n - at ? step : (int32_t)n - at);
        assert_memory_equal(once, r->logits, n * v * 4);
    }
    free(once);
    free(shift);
}

static void check(const char *name, enum sv_isa isa)
{
    struct case_of c;
    char path[128];
    snprintf(path, sizeof path, "tiny/%s.images.golden.safetensors", name);
    c.g = golden_open(path);
    snprintf(path, sizeof path, "tests/golden/tiny/%s", name);
    model_rig_open(&c.r, run_dir(path), isa, 16);
    assert_null(c.r.m.no_tower);
    c.n_images = atoi(golden_meta(&c.g, "n_images"));
    assert_true(c.n_images > 0 && c.n_images <= MAX_IMAGES);
    for (int i = 0; i < c.n_images; i++)
        check_tower(&c, i);
    const int n_prompts = atoi(golden_meta(&c.g, "n_prompts"));
    for (int p = 0; p < n_prompts; p++)
        check_prompt(&c, p);
    for (int i = 0; i < c.n_images; i++)
        sv_dev_free(c.r.dev, c.rows[i]);
    model_rig_close(&c.r);
    golden_close(&c.g);
    assert_int_equal(sv_alloc_live(), 0);
}

static void on_all(const char *name)
{
    if (sv_env("SALVO_TEST_DEVICE")) {
        check(name, SV_ISA_AUTO);
        return;
    }
    for (int isa = SV_ISA_AUTO; isa <= SV_ISA_AMX; isa++) {
        struct sv_dev *dev = NULL;
        const struct sv_dev_opts o = {
            .backend = "cpu", .n_threads = 1, .tuning.isa = (enum sv_isa)isa};
        if (sv_dev_open(&dev, &o, NULL))
            continue;
        sv_dev_close(dev);
        check(name, (enum sv_isa)isa);
    }
}

static void qwen3_vl(void **state)
{
    (void)state;
    on_all("qwen3_vl_bf16");
}

static void qwen3_vl_moe(void **state)
{
    (void)state;
    on_all("qwen3_vl_moe_bf16");
}

static void qwen3_5(void **state)
{
    (void)state;
    on_all("qwen3_5_vl_bf16");
}

static void qwen3_5_moe(void **state)
{
    (void)state;
    on_all("qwen3_5_vl_moe_bf16");
}

/* ---------------------------------------------------------------- more rows, and bf16 */

enum { LARGE_H = 26, LARGE_W = 34, LARGE_ROWS = 512 };

/* The rows of an image of LARGE_H x LARGE_W patches, as f32; the same bits in two tiles. */
static float *large_rows(const char *dir, const struct sv_dev_opts *o, size_t *n_values)
{
    struct sv_dev *dev;
    struct sv_model m;
    struct sv_needs needs;
    struct sv_err err = {0};
    void *rows;
    if (sv_dev_open(&dev, o, &err) || sv_model_open(&m, dev, dir, 0, &err))
        fail_msg("%s: %s", dir, err.msg);
    sv_needs_init(&needs, dev, LARGE_ROWS);
    needs.lim.max_logit_rows = needs.lim.max_positions = LARGE_ROWS;
    sv_model_needs(&m, &needs);
    const size_t len = (size_t)(LARGE_H * LARGE_W * sv_vision_patch_len(&m.tower->cfg)),
                 n_bytes = sv_tower_rows_bytes(m.tower, LARGE_H * LARGE_W),
                 elem = sv_dtype_bytes(sv_dev_act_dtype(dev));
    float *patches = malloc(len * sizeof *patches);
    struct sv_rng rng = {77};
    for (size_t i = 0; i < len; i++)
        patches[i] = sv_rng_normal(&rng);
    char *got[2] = {malloc(n_bytes), malloc(n_bytes)};
    if (sv_dev_reserve(dev, &needs.lim, &err) || sv_dev_alloc(dev, &rows, n_bytes, &err))
        fail_msg("%s", err.msg);
    for (int k = 0; k < 2; k++) {
        if (sv_tower_run(m.tower, k ? 96 : LARGE_ROWS, LARGE_H, LARGE_W, patches, rows, &err))
            fail_msg("%s", err.msg);
        sv_dev_download(dev, got[k], rows, n_bytes);
        if (sv_dev_sync(dev, &err))
            fail_msg("%s", err.msg);
    }
    assert_memory_equal(got[0], got[1], n_bytes);
    *n_values = n_bytes / elem;
    float *out = malloc(*n_values * sizeof *out);
    for (size_t i = 0; i < *n_values; i++)
        out[i] = elem == 2 ? sv_bf16_to_f32(((uint16_t *)(void *)got[0])[i])
                           : ((float *)(void *)got[0])[i];
    free(got[0]), free(got[1]), free(patches);
    sv_dev_free(dev, rows);
    sv_model_close(&m);
    sv_dev_close(dev);
    return out;
}

static void large(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3_vl_bf16", "qwen3_5_vl_bf16"};
    struct sv_engine_options where = {0};
    run_device(&where);
    for (int i = 0; i < 2; i++) {
        char path[128];
        size_t n, n_want;
        snprintf(path, sizeof path, "tests/golden/tiny/%s", names[i]);
        const char *dir = run_dir(path);
        const struct sv_dev_opts plain = {
            .backend = "cpu", .n_threads = 2, .tuning.isa = SV_ISA_PLAIN, .compute = SV_F32};
        float *want = large_rows(dir, &plain, &n_want);
        for (int half = 0; half < 2; half++) {
            const struct sv_dev_opts o = {.backend = where.device,
                                          .tuning.kernels = where.tuning.kernels,
                                          .n_threads = 2,
                                          .compute = half ? SV_BF16 : SV_F32};
            float *got = large_rows(dir, &o, &n);
            assert_int_equal(n, n_want);
            const double e = golden_rel_err(got, want, n);
            print_message("%s, %s, %s: relative error %.2g\n", names[i], where.device,
                          half ? "bf16" : "f32", e);
            if (!(e < (half ? 5e-2 : 1e-4)))
                fail_msg("%s: %s: relative error %.3g", names[i], half ? "bf16" : "f32", e);
            free(got);
        }
        free(want);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

/* Every allocation of opening a tower and of a pass fails once. */
static void faults(void **state)
{
    (void)state;
    run_needs_cpu();
    static const float values[4 * 96];
    const struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1};
    const char *dir = run_dir("tests/golden/tiny/qwen3_vl_bf16");
    struct sv_config cfg;
    struct sv_ckpt ckpt;
    struct sv_dev *dev = NULL;
    float rows[3 * 48];
    assert_int_equal(sv_dev_open(&dev, &o, NULL), SV_OK);
    assert_int_equal(
        sv_dev_reserve(
            dev,
            &(struct sv_dev_limits){
                .max_rows = 8, .max_k = 128, .max_n = 128, .max_heads = 4, .max_head_dim = 32},
            NULL),
        SV_OK);
    assert_int_equal(sv_config_load(&cfg, dir, NULL), SV_OK);
    assert_int_equal(sv_ckpt_open(&ckpt, dir, NULL), SV_OK);
    const int64_t live = sv_alloc_live();
    int rc = SV_ENOMEM;
    for (int64_t n = 1; rc; n++) {
        struct sv_tower *t;
        struct sv_err err = {0};
        sv_fault_arm(n);
        rc = sv_tower_open(&t, dev, &ckpt, &cfg, &err);
        if (!rc) {
            rc = sv_tower_run(t, 8, 2, 2, values, rows, &err);
            sv_fault_arm(0);
            sv_tower_close(t);
        }
        sv_fault_arm(0);
        assert_true(!rc || (rc == SV_ENOMEM && err.msg[0]));
        assert_int_equal(sv_alloc_live(), live);
        assert_true(n > 4 || rc);
    }
    sv_ckpt_close(&ckpt);
    sv_dev_close(dev);
}

SV_TEST_MAIN(cmocka_unit_test(qwen3_vl), cmocka_unit_test(qwen3_vl_moe), cmocka_unit_test(qwen3_5),
             cmocka_unit_test(qwen3_5_moe), cmocka_unit_test(large), cmocka_unit_test(faults))
