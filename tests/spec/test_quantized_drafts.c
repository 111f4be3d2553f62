/*
 * test_quantized_drafts.c - the demo draft in every format beside targets in several: the text is
 * the target's own, and the accept length at least 0.9 of the bf16 draft's. The two formats have
 * nothing to do with each other.
 *
 * timeout: 240
 * release: all
 *
 * `salvo convert` writes most of these; FP8 in blocks and NVFP4 are made here. Keys and values of
 * the context come of the codes of k_proj and v_proj alone.
 */
#include "testing.h"

#include "engine/run.h"
#include "load/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CASES = 8, TOKENS = 96, FEW_TOKENS = 24 };

/* ---------------------------------------------------------------- formats made here */

struct made {
    struct sv_buf head, data;
};

static void add(struct made *m, const char *name, const char *suffix, const char *dtype,
                const int64_t *dim, int32_t n_dims, const void *bytes, size_t n)
{
    const size_t from = m->data.len;
    sv_buf_printf(&m->head, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", from ? "," : "{", name,
                  suffix, dtype);
    for (int32_t i = 0; i < n_dims; i++)
        sv_buf_printf(&m->head, "%s%lld", i ? "," : "", (long long)dim[i]);
    sv_buf_append(&m->data, bytes, n);
    sv_buf_printf(&m->head, "],\"data_offsets\":[%zu,%zu]}", from, m->data.len);
}

static float at(const struct sv_host_tensor *t, int64_t row, int64_t col)
{
    return sv_bf16_to_f32(((const uint16_t *)t->data)[row * t->dim[1] + col]);
}

/* The largest number of a block that begins at (row, col). */
static float largest(const struct sv_host_tensor *t, int64_t row, int64_t col, int64_t rows,
                     int64_t cols)
{
    float top = 0;
    for (int64_t r = row; r < row + rows && r < t->dim[0]; r++)
        for (int64_t c = col; c < col + cols && c < t->dim[1]; c++)
            top = fmaxf(top, fabsf(at(t, r, c)));
    return top;
}

static void add_fp8_blocks(struct made *m, const struct sv_host_tensor *t, const char *layer)
{
    const int64_t rows = t->dim[0], cols = t->dim[1],
                  n[] = {(rows + 127) / 128, (cols + 127) / 128};
    uint8_t *codes = malloc((size_t)(rows * cols));
    float *scale = malloc((size_t)(n[0] * n[1]) * sizeof *scale);
    for (int64_t b = 0; b < n[0] * n[1]; b++)
        scale[b] = largest(t, b / n[1] * 128, b % n[1] * 128, 128, 128) / 448;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            codes[r * cols + c] = sv_f32_to_f8(at(t, r, c) / scale[r / 128 * n[1] + c / 128]);
    add(m, layer, ".weight", "F8_E4M3", t->dim, 2, codes, (size_t)(rows * cols));
    add(m, layer, ".weight_scale_inv", "F32", n, 2, scale, (size_t)(n[0] * n[1]) * sizeof *scale);
    free(codes);
    free(scale);
}

static uint8_t nearest(float x)
{
    uint8_t best = 0;
    for (uint8_t c = 1; c < 16; c++)
        best = fabsf(x - sv_e2m1[c]) < fabsf(x - sv_e2m1[best]) ? c : best;
    return best;
}

static void add_nvfp4(struct made *m, const struct sv_host_tensor *t, const char *layer)
{
    const int64_t rows = t->dim[0], cols = t->dim[1], n[] = {rows, cols / 16},
                  half[] = {rows, cols / 2}, one = 1;
    const float factor = largest(t, 0, 0, rows, cols) / (6 * 448);
    uint8_t *codes = calloc((size_t)(rows * cols / 2), 1), *scale = malloc((size_t)(rows * n[1]));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            uint8_t *s = &scale[r * n[1] + c / 16];
            if (c % 16 == 0)
                *s = sv_f32_to_f8(largest(t, r, c, 1, 16) / (6 * factor));
            const float v = sv_f8_to_f32(*s) * factor;
            codes[(r * cols + c) / 2] |=
                (uint8_t)(nearest(v > 0 ? at(t, r, c) / v : 0) << c % 2 * 4);
        }
    add(m, layer, ".weight", "U8", half, 2, codes, (size_t)(rows * cols / 2));
    add(m, layer, ".weight_scale", "F8_E4M3", n, 2, scale, (size_t)(rows * n[1]));
    add(m, layer, ".weight_scale_2", "F32", &one, 1, &factor, sizeof factor);
    free(codes);
    free(scale);
}

/* The directory once more with its projections in one of these. */
static const char *make(const char *dir, const char *out, bool nvfp4)
{
    struct made m;
    struct sv_ckpt c;
    struct sv_err err = {0};
    struct sv_buf all;
    char path[600], layer[128];
    sv_buf_init(&m.head);
    sv_buf_init(&m.data);
    sv_buf_init(&all);
    assert_int_equal(sv_ckpt_open(&c, dir, &err), SV_OK);
    for (int32_t i = 0; i < c.n_tensors; i++) {
        const struct sv_host_tensor *t = &c.tensors[i];
        const bool fc = !nvfp4 && !strcmp(t->name, "fc.weight"); /* as GGUF quantizers do */
        snprintf(layer, sizeof layer, "%.*s", (int)(strlen(t->name) - strlen(".weight")), t->name);
        if (!fc && !strstr(t->name, "_proj.weight"))
            add(&m, t->name, "", "BF16", t->dim, t->n_dims, t->data, t->n_bytes);
        else if (nvfp4)
            add_nvfp4(&m, t, layer);
        else
            add_fp8_blocks(&m, t, layer);
    }
    sv_ckpt_close(&c);
    sv_buf_lit(&m.head, "}");
    while (m.head.len % 8)
        sv_buf_lit(&m.head, " ");
    const uint64_t n = m.head.len;
    sv_buf_append(&all, &n, 8);
    sv_buf_append(&all, m.head.data, m.head.len);
    sv_buf_append(&all, m.data.data, m.data.len);
    assert_int_equal(mkdir(out, 0700), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    assert_int_equal(sv_file_write(path, all.data, all.len, &err), SV_OK);
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *root = json_load_file(path, 0, NULL);
    json_object_set_new(
        root, "quantization_config",
        json_loads(
            nvfp4 ? "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"ignore\":[\"fc\"]}"
                  : "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}",
            0, NULL));
    snprintf(path, sizeof path, "%s/config.json", out);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    sv_buf_fini(&m.head);
    sv_buf_fini(&m.data);
    sv_buf_fini(&all);
    return out;
}

/* ---------------------------------------------------------------- */

static int told(void *user, const struct sv_quantized *t)
{
    (void)user;
    (void)t;
    return SV_OK;
}

static const char *convert(const char *dir, enum sv_quant_code code, const char *name)
{
    struct sv_err err = {0};
    const char *out = run_keep(sv_test_tmp(name));
    if (sv_quantize_model(dir, code, out, told, NULL, &err))
        fail_msg("%s", err.msg);
    return out;
}

static int read_cases(struct run_case *c)
{
    FILE *f = fopen(sv_test_path("tests/golden/demo.jsonl"), "r");
    static char text[1 << 16];
    int n = 0;
    assert_non_null(f);
    while (n < (sv_test_brief() ? 2 : MAX_CASES) && fgets(text, sizeof text, f)) {
        json_t *line = json_loads(text, 0, NULL), *ids = json_object_get(line, "prompt_token_ids");
        struct run_case *one = &c[n++];
        memset(one, 0, sizeof *one);
        one->n_prompt = (int32_t)json_array_size(ids);
        one->max_tokens = sv_test_brief() ? FEW_TOKENS : TOKENS;
        one->prompt = malloc((size_t)one->n_prompt * sizeof *one->prompt);
        for (int32_t i = 0; i < one->n_prompt; i++)
            one->prompt[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
        one->req = sv_default_request(NULL);
        json_decref(line);
    }
    fclose(f);
    return n;
}

/* The mean accept length; text: the target's, which is set where there is none yet. */
static double answer(const char *target, const char *draft, struct run_out **text,
                     const struct run_case *c, int n, const char *what)
{
    const struct sv_engine_options o = {.target_dir = target,
                                        .draft_dir = draft,
                                        .dtype = SV_TYPE_BF16,
                                        .n_threads = 2,
                                        .max_sequences = 4,
                                        .width = draft ? 16 : 0};
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *out = run_all(e, c, n);
    const double accept = draft ? sv_accept_mean(&e->accept) : 1;
    sv_engine_close(e);
    if (!*text) {
        *text = out;
        return accept;
    }
    run_same(*text, out, n, what);
    run_out_free(out, n);
    return accept;
}

static void every_format_beside_every_target(void **state)
{
    (void)state;
    const char *bf16 = run_dir("models/demo/draft"), *demo = run_dir("models/demo/target");
    const struct {
        const char *name, *dir;
    } drafts[] = {{"FP8 blocks", make(bf16, run_keep(sv_test_tmp("d-blocks")), false)},
                  {"NVFP4", make(bf16, run_keep(sv_test_tmp("d-nvfp4")), true)},
                  {"FP8 rows", convert(bf16, SV_CODE_F8, "d-fp8")},
                  {"MXFP4", convert(bf16, SV_CODE_MXFP4, "d-mxfp4")},
                  {"int8", convert(bf16, SV_CODE_INT8, "d-q8")},
                  {"int4", convert(bf16, SV_CODE_INT4, "d-q4")},
                  {"GGUF Q8_0", convert(bf16, SV_CODE_INT8, "d-q8.gguf")},
                  {"GGUF Q4_0", convert(bf16, SV_CODE_INT4, "d-q4.gguf")},
                  {"GGUF MXFP4", convert(bf16, SV_CODE_MXFP4, "d-mxfp4.gguf")}},
      targets[] = {{"bf16", demo},
                   {"int4", convert(demo, SV_CODE_INT4, "t-q4")},
                   {"GGUF Q8_0", convert(demo, SV_CODE_INT8, "t-q8.gguf")}};
    enum {
        N_DRAFTS = sizeof drafts / sizeof drafts[0],
        N_TARGETS = sizeof targets / sizeof targets[0]
    };
    struct run_case c[MAX_CASES];
    const int n = read_cases(c);
    for (int t = 0; t < N_TARGETS; t++) {
        struct run_out *text = NULL;
        answer(targets[t].dir, NULL, &text, c, n, "no draft");
        const double whole = answer(targets[t].dir, bf16, &text, c, n, "bf16");
        assert_true(whole > 2);
        for (int d = 0; d < N_DRAFTS; d++) {
            char what[64];
            if ((sv_test_brief() || t > 0) && d % N_TARGETS != t)
                continue;
            snprintf(what, sizeof what, "target %s, draft %s", targets[t].name, drafts[d].name);
            const double accept = answer(targets[t].dir, drafts[d].dir, &text, c, n, what);
            print_message("%s: %.3f of %.3f\n", what, accept, whole);
            if (!(accept >= 0.9 * whole) && !sv_test_brief())
                fail_msg("%s: accept length %.3f of %.3f", what, accept, whole);
        }
        run_out_free(text, n);
    }
    for (int i = 0; i < n; i++)
        free(c[i].prompt);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(every_format_beside_every_target))
