/*
 * test_quantize.c - quantized models, as directories and as GGUF files: each code is the nearest of
 * its scale, tensors that are not projections are unchanged, the reported errors are those of the
 * values read, and a failed conversion leaves no files.
 *
 * timeout: 180
 */
#define _POSIX_C_SOURCE 200809L

#include "load/fake.h"
#include "testing.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char source[] = "tests/golden/tiny/qwen3_odd_bf16";
static const enum sv_quant_code all[] = {SV_CODE_F8, SV_CODE_MXFP4, SV_CODE_INT8, SV_CODE_INT4};

struct told {
    int n;
    double relative[128];
    char name[128][96];
};

static int take(void *user, const struct sv_quantized *t)
{
    struct told *told = user;
    assert_true(told->n < 128 && t->n_bytes > 0 && t->n_bytes < t->n_bytes_before);
    told->relative[told->n] = sqrt(t->error / t->size);
    snprintf(told->name[told->n++], 96, "%s", t->name);
    return SV_OK;
}

static float number(const struct sv_host_tensor *t, int64_t i)
{
    const uint16_t h = ((const uint16_t *)t->data)[i];
    return t->dtype == SV_F32    ? ((const float *)t->data)[i]
           : t->dtype == SV_BF16 ? sv_bf16_to_f32(h)
                                 : sv_f16_to_f32(h);
}

/* All positive values of a code with scale 1, ascending; returns how many. */
static int grid(enum sv_quant_code code, double *out)
{
    int n = 0;
    for (int i = 0; code == SV_CODE_F8 && i < 0x7f; i++)
        out[n++] = (double)sv_f8_to_f32((uint8_t)i);
    for (int i = 0; (code == SV_CODE_MXFP4 || code == SV_CODE_GG_MXFP4) && i < 8; i++)
        out[n++] = (double)sv_e2m1[i];
    const int most = code == SV_CODE_INT8 || code == SV_CODE_Q8_0   ? 127
                     : code == SV_CODE_INT4 || code == SV_CODE_Q4_0 ? 7
                                                                    : -1;
    for (int i = 0; i <= most; i++)
        out[n++] = i;
    return n;
}

static double scale_of(const struct sv_quant *q, int64_t i)
{
    const uint8_t *block = (const uint8_t *)q->data + i * sv_quant_block_bytes(q->code);
    if (q->code == SV_CODE_GG_MXFP4)
        return (double)sv_e8m0_to_f32(*block);
    if (sv_quant_block(q->code))
        return fabs((double)sv_f16_to_f32((uint16_t)(block[0] | block[1] << 8)));
    return q->code == SV_CODE_MXFP4 ? (double)sv_e8m0_to_f32(((const uint8_t *)q->scales)[i])
                                    : (double)sv_bf16_to_f32(((const uint16_t *)q->scales)[i]);
}

/* No other value of the same scale is nearer than the one that was written. */
static double check_matrix(const struct sv_host_tensor *was, const struct sv_host_tensor *now)
{
    double values[256], error = 0, size = 0;
    const struct sv_quant *q = &now->quant;
    const int n = grid(q->code, values);
    const int64_t rows = was->dim[0], cols = was->dim[1],
                  group = sv_quant_block(q->code) ? sv_quant_block(q->code) : q->block_cols,
                  groups = cols / group;
    float *row = malloc((size_t)cols * sizeof *row);
    assert_true(now->dim[0] == rows && now->dim[1] == cols);
    for (int64_t r = 0; r < rows; r++) {
        sv_quant_rows(q, (int32_t)r, 1, row);
        for (int64_t k = 0; k < cols; k++) {
            const double x = (double)number(was, r * cols + k), e = fabs(x - (double)row[k]);
            const double scale = scale_of(q, r * groups + k / group);
            error += e * e;
            size += x * x;
            for (int i = 0; i < n; i++)
                assert_true(e <= fabs(fabs(x) - scale * values[i]) * (1 + 1e-6) + 1e-12);
        }
    }
    free(row);
    return sqrt(error / size);
}

static void written_values_are_the_nearest(void **state)
{
    (void)state;
    const double most[] = {0.03, 0.13, 0.007, 0.1};
    double mean[4] = {0};
    for (int i = 0; i < 4; i++) {
        struct told told = {0};
        struct sv_ckpt was, now;
        struct sv_config cfg;
        struct sv_err err;
        char name[32];
        snprintf(name, sizeof name, "made%d", i);
        const char *dir = sv_test_path(source), *out = sv_test_tmp(name);
        fake_expect(sv_quantize_model(dir, all[i], out, take, &told, &err), SV_OK, &err, "", name);
        fake_expect(sv_config_load(&cfg, out, &err), SV_OK, &err, "", name);
        assert_int_equal(sv_ckpt_open(&was, dir, &err), SV_OK);
        fake_expect(sv_ckpt_open(&now, out, &err), SV_OK, &err, "", name);
        fake_expect(sv_ckpt_check_target(&now, &cfg, &err), SV_OK, &err, "", name);
        assert_int_equal(now.n_tensors, was.n_tensors);
        int k = 0;
        for (int32_t j = 0; j < was.n_tensors; j++) {
            const struct sv_host_tensor *a = &was.tensors[j], *b = &now.tensors[j];
            assert_string_equal(a->name, b->name);
            if (!b->quant.code) {
                assert_null(strstr(a->name, "_proj.weight"));
                assert_int_equal(a->n_bytes, b->n_bytes);
                assert_memory_equal(a->data, b->data, a->n_bytes);
                continue;
            }
            const double e = check_matrix(a, b);
            assert_string_equal(told.name[k], a->name);
            if (!(fabs(e - told.relative[k]) < 1e-9 && e < most[i]))
                fail_msg("%s: error %g, told %g", a->name, e, told.relative[k]);
            mean[i] += e;
            k++;
        }
        assert_int_equal(k, told.n);
        assert_int_equal(k, 7 * cfg.n_layers);
        sv_ckpt_close(&was);
        sv_ckpt_close(&now);
    }
    assert_true(mean[2] < mean[0] && mean[0] < mean[3] && mean[3] < mean[1]);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Random models, all columns whole groups. */
#define SIZES                                                                                      \
    "\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":2,\"vocab_size\":96,"       \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":32,\"eos_token_id\":2,"      \
    "\"bos_token_id\":1,\"max_position_embeddings\":512,\"rope_theta\":10000,"
static const char moe_config[] =
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"]," SIZES
    "\"moe_intermediate_size\":32,\"num_experts\":12,\"num_experts_per_tok\":2,"
    "\"norm_topk_prob\":true}";
static const char llama_config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"]," SIZES
    "\"attention_bias\":true,\"tie_word_embeddings\":false,\"rope_scaling\":{\"rope_type\":\"llama3\","
    "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
    "\"original_max_position_embeddings\":64}}";

/* The name is the caller's to free. */
static char *random_dir(const char *name, const char *config)
{
    struct fake_list *l = calloc(1, sizeof *l);
    struct sv_rng rng = {3};
    struct sv_config c;
    struct sv_err err;
    struct sv_buf b;
    uint64_t head = 0;
    char *dir = strdup(fake_dir(name));
    fake_puts(dir, "config.json", config);
    fake_expect(sv_config_load(&c, dir, &err), SV_OK, &err, "", name);
    fake_target(l, &c, "model.");
    fake_write(l, 0, l->n, dir, "model.safetensors");
    free(l);
    char *path = sv_path_join(dir, "model.safetensors");
    sv_buf_init(&b);
    assert_int_equal(sv_file_read(&b, path, 1 << 22, &err), SV_OK);
    memcpy(&head, b.data, 8);
    for (size_t i = 8 + head; i < b.len; i += 2) {
        const uint16_t h = sv_f32_to_bf16(0.1f * sv_rng_normal(&rng));
        memcpy(b.data + i, &h, 2);
    }
    fake_put(dir, "model.safetensors", b.data, b.len);
    sv_buf_fini(&b);
    sv_free(path);
    return dir;
}

/* The numbers of a tensor that was not rounded. */
static void same_numbers(const struct sv_host_tensor *a, const struct sv_host_tensor *b)
{
    assert_int_equal(a->n_elements, b->n_elements);
    for (int64_t i = 0; i < a->n_elements; i++)
        assert_true(number(a, i) == number(b, i));
}

static void check_gguf(const char *dir, enum sv_quant_code code, double most)
{
    static int n_files;
    struct told *told = calloc(1, sizeof *told);
    struct sv_ckpt was, now;
    struct sv_config a, b;
    struct sv_err err;
    char name[32];
    int n_rounded = 0;
    snprintf(name, sizeof name, "made%d.gguf", n_files++);
    const char *out = sv_test_tmp(name);
    fake_expect(sv_quantize_model(dir, code, out, take, told, &err), SV_OK, &err, "", name);
    assert_int_equal(sv_config_load(&a, dir, &err), SV_OK);
    fake_expect(sv_config_load(&b, out, &err), SV_OK, &err, "", name);
    assert_int_equal(sv_ckpt_open(&was, dir, &err), SV_OK);
    fake_expect(sv_ckpt_open(&now, out, &err), SV_OK, &err, "", name);
    fake_expect(sv_ckpt_check_target(&now, &b, &err), SV_OK, &err, "", name);
    assert_int_equal(now.n_tensors, was.n_tensors);
    for (int32_t j = 0; j < was.n_tensors; j++) {
        const struct sv_host_tensor *x = &was.tensors[j], *y = &now.tensors[j];
        assert_string_equal(x->name, y->name);
        if (!y->quant.code) {
            assert_null(strstr(x->name, "_proj.weight"));
            same_numbers(x, y);
            continue;
        }
        int k = 0;
        while (k < told->n && strcmp(told->name[k], x->name))
            k++;
        const double e = check_matrix(x, y);
        if (!(k < told->n && fabs(e - told->relative[k]) < 1e-9 && e < most))
            fail_msg("%s: error %g, told %g", x->name, e, told->relative[k]);
        n_rounded++;
    }
    assert_int_equal(n_rounded, told->n);
    b.stored_dtype = a.stored_dtype;
    if (a.rope.kind == SV_ROPE_LLAMA3) { /* as a divisor for each frequency */
        enum { POSITIONS = 64 };
        float x[POSITIONS * 32], y[POSITIONS * 32];
        sv_rope_fill(&a.rope, a.head_dim, POSITIONS, x);
        sv_rope_fill(&b.rope, b.head_dim, POSITIONS, y);
        for (int i = 0; i < POSITIONS * a.head_dim; i++)
            assert_true(fabsf(x[i] - y[i]) < 1e-5f);
        b.rope = a.rope;
    }
    for (int32_t i = a.n_eos; i < b.n_eos; i++) /* ends answers by its name */
        b.eos_ids[i] = 0;
    b.n_eos = a.n_eos;
    assert_memory_equal(&a, &b, sizeof a);
    sv_ckpt_close(&was);
    sv_ckpt_close(&now);
    free(told);
}

static void gguf_files_have_the_nearest_values(void **state)
{
    static const enum sv_quant_code codes[] = {SV_CODE_INT8, SV_CODE_INT4, SV_CODE_MXFP4};
    static const double most[] = {0.007, 0.1, 0.13};
    (void)state;
    char *moe = random_dir("moe", moe_config), *llama = random_dir("llama", llama_config);
    for (int i = 0; i < 3; i++) {
        check_gguf(moe, codes[i], most[i]);
        check_gguf(llama, codes[i], most[i]);
        check_gguf(sv_test_path(source), codes[i], most[i]);
    }
    check_gguf(sv_test_path("tests/golden/tiny/qwen3_tied_bf16"), SV_CODE_INT8, 0.007);
    free(moe);
    free(llama);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Experts in tensors of their own. */
static void directories_with_experts(void **state)
{
    (void)state;
    char *moe = random_dir("experts", moe_config);
    for (int i = 0; i < 4; i++) {
        struct told told = {0};
        struct sv_config cfg;
        struct sv_ckpt c;
        struct sv_err err;
        char name[32];
        snprintf(name, sizeof name, "of_experts%d", i);
        const char *out = sv_test_tmp(name);
        fake_expect(sv_quantize_model(moe, all[i], out, take, &told, &err), SV_OK, &err, "", name);
        fake_expect(sv_config_load(&cfg, out, &err), SV_OK, &err, "", name);
        fake_expect(sv_ckpt_open(&c, out, &err), SV_OK, &err, "", name);
        fake_expect(sv_ckpt_check_target(&c, &cfg, &err), SV_OK, &err, "", name);
        assert_int_equal(sv_ckpt_find(&c, "layers.1.mlp.experts.11.down_proj.weight")->quant.code,
                         all[i]);
        assert_int_equal(sv_ckpt_find(&c, "layers.1.mlp.gate.weight")->quant.code, SV_CODE_NONE);
        assert_int_equal(told.n, 2 * (4 + 3 * 12));
        sv_ckpt_close(&c);
    }
    free(moe);
}

static void e4m3_rounds_to_the_nearest(void **state)
{
    (void)state;
    for (int c = 0; c < 0x7e; c++) {
        const float low = sv_f8_to_f32((uint8_t)c), high = sv_f8_to_f32((uint8_t)(c + 1));
        const float middle = low + (high - low) / 2;
        assert_int_equal(sv_f32_to_f8(low), c);
        assert_int_equal(sv_f32_to_f8(-low), c | 0x80);
        assert_int_equal(sv_f32_to_f8(middle), c + c % 2); /* the even one */
        assert_int_equal(sv_f32_to_f8(nextafterf(middle, 0)), c);
        assert_int_equal(sv_f32_to_f8(nextafterf(middle, INFINITY)), c + 1);
    }
    assert_int_equal(sv_f32_to_f8(448), 0x7e);
    assert_int_equal(sv_f32_to_f8(1e30f), 0x7e);
    assert_int_equal(sv_f32_to_f8(-INFINITY), 0xfe);
    assert_int_equal(sv_f32_to_f8(NAN) & 0x7f, 0x7f);
    assert_int_equal(sv_f32_to_f8(1e-30f), 0);
}

static int files_in(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void same_file(const char *a, const char *b)
{
    struct sv_buf x[2];
    struct sv_err err;
    for (int k = 0; k < 2; k++) {
        sv_buf_init(&x[k]);
        assert_int_equal(sv_file_read(&x[k], k ? b : a, 1 << 24, &err), SV_OK);
    }
    assert_int_equal(x[0].len, x[1].len);
    assert_memory_equal(x[0].data, x[1].data, x[0].len);
    sv_buf_fini(&x[0]);
    sv_buf_fini(&x[1]);
}

/* A directory or a GGUF file. */
static void same_output(const char *a, const char *b)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    if (!sv_dir_exists(a)) {
        same_file(a, b);
        return;
    }
    for (int i = 0; i < 2; i++) {
        char *x = sv_path_join(a, names[i]), *y = sv_path_join(b, names[i]);
        same_file(x, y);
        sv_free(x);
        sv_free(y);
    }
}

static void remove_output(const char *out)
{
    static const char *const names[] = {"config.json", "model.safetensors",
                                        "generation_config.json"};
    if (!sv_dir_exists(out)) {
        assert_int_equal(unlink(out), 0);
        return;
    }
    for (int i = 0; i < 3; i++) {
        char *path = sv_path_join(out, names[i]);
        unlink(path);
        sv_free(path);
    }
    assert_int_equal(rmdir(out), 0);
}

static int stop(void *user, const struct sv_quantized *t)
{
    (void)t;
    return ++*(int *)user == 3 ? SV_ECANCELED : SV_OK;
}

static void nothing_is_left_of(enum sv_quant_code code, const char *name)
{
    struct sv_err err;
    char out[600], folder[64];
    snprintf(folder, sizeof folder, "outs-%s", name);
    const char *dir = sv_test_path(source), *in = fake_dir(folder);
    int n = 0;
    snprintf(out, sizeof out, "%s/%s", in, name);
    assert_int_equal(sv_quantize_model(dir, code, out, stop, &n, &err), SV_ECANCELED);
    assert_int_equal(files_in(in), 0);
    /* jansson loses memory when it is short of it: what parses the files comes first */
    struct sv_config cfg;
    struct sv_ckpt c;
    sv_fault_arm(INT64_MAX);
    sv_dir_is_draft(dir);
    assert_int_equal(sv_config_load(&cfg, dir, &err), SV_OK);
    assert_int_equal(sv_ckpt_open(&c, dir, &err), SV_OK);
    const int64_t n_parsed = sv_fault_calls();
    sv_fault_arm(0);
    sv_ckpt_close(&c);
    char whole[608];
    struct told once = {0};
    snprintf(folder, sizeof folder, "once-%s", name);
    snprintf(whole, sizeof whole, "%s/%s", fake_dir(folder), name);
    sv_fault_arm(INT64_MAX);
    assert_int_equal(sv_quantize_model(dir, code, whole, take, &once, &err), SV_OK);
    const int64_t n_calls = sv_fault_calls();
    sv_fault_arm(0);
    print_message("%lld calls, %lld before the writing\n", (long long)n_calls, (long long)n_parsed);
    for (int64_t nth = n_parsed + 2;; nth++) {
        struct told told = {0};
        sv_fault_arm(nth);
        const int rc = sv_quantize_model(dir, code, out, take, &told, &err);
        const int64_t calls = sv_fault_calls();
        sv_fault_arm(0);
        if (sv_alloc_live())
            fail_msg("call %lld: %s, %lld left", (long long)nth, err.msg,
                     (long long)sv_alloc_live());
        if (rc == SV_OK && calls < nth)
            break;
        if (rc == SV_OK) { /* jansson did without what it asked for */
            same_output(out, whole);
            remove_output(out);
        } else {
            assert_true(err.msg[0]);
        }
        assert_int_equal(files_in(in), 0);
    }
    assert_int_equal(files_in(in), 1);
}

static void nothing_is_left_of_a_failure(void **state)
{
    (void)state;
    nothing_is_left_of(SV_CODE_F8, "made");
    nothing_is_left_of(SV_CODE_INT8, "made.gguf");
}

static void what_cannot_be_converted(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        enum sv_quant_code code;
        const char *message;
    } bad[] = {
        {"tests/golden/tiny/qwen3_moe_f32", SV_CODE_INT8, "which are not groups of 32"},
        {"tests/golden/tiny/qwen3_next_bf16", SV_CODE_MXFP4, "which are not groups of 32"},
        {"tests/golden/tiny/gptoss_mxfp4", SV_CODE_F8, "are in fewer bits already (mxfp4)"},
        {"tests/golden/tiny/pair_draft_full_b16", SV_CODE_INT8, "which are not groups of 32"},
        {"tests/golden/gguf/qwen3_q8.gguf", SV_CODE_F8, "not GGUF files"},
        {"tests/golden/quant/fp8_block", SV_CODE_F8, "is in fewer bits already (fp8)"},
        {"tests/golden/tiny/pair_target", SV_CODE_INT4, "which are not groups of 32"},
        {"tests/golden/tiny", SV_CODE_F8, "config.json"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct told told = {0};
        struct sv_err err;
        const char *out = sv_test_tmp("refused");
        const int rc =
            sv_quantize_model(sv_test_path(bad[i].dir), bad[i].code, out, take, &told, &err);
        assert_true(rc != SV_OK);
        fake_expect(rc, rc, &err, bad[i].message, bad[i].dir);
        assert_int_equal(access(out, F_OK), -1);
    }
    static const struct {
        const char *dir;
        enum sv_quant_code code;
        const char *message;
    } bad_gguf[] = {
        {"tests/golden/tiny/qwen3_odd_bf16", SV_CODE_F8, "GGUF has no type for fp8"},
        {"tests/golden/tiny/qwen3_vl_bf16", SV_CODE_INT8,
         "GGUF files of Qwen3VLForConditionalGeneration are not written"},
        {"tests/golden/tiny/deepseek_bf16", SV_CODE_INT8, "which are not groups of 32"},
        {"tests/golden/tiny/pair_target", SV_CODE_INT8, "which are not groups of 32"},
    };
    for (size_t i = 0; i < sizeof bad_gguf / sizeof bad_gguf[0]; i++) {
        struct told told = {0};
        struct sv_err err;
        const char *out = sv_test_tmp("refused.gguf");
        const int rc = sv_quantize_model(sv_test_path(bad_gguf[i].dir), bad_gguf[i].code, out, take,
                                         &told, &err);
        assert_true(rc != SV_OK);
        fake_expect(rc, rc, &err, bad_gguf[i].message, bad_gguf[i].dir);
        assert_int_equal(access(out, F_OK), -1);
    }
    struct told told = {0};
    struct sv_err err;
    const char *there = fake_dir("there");
    fake_expect(sv_quantize_model(sv_test_path(source), SV_CODE_F8, there, take, &told, &err),
                SV_EINVAL, &err, "is there already", "there");
    assert_int_equal(files_in(there), 0);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(written_values_are_the_nearest),
             cmocka_unit_test(gguf_files_have_the_nearest_values),
             cmocka_unit_test(directories_with_experts),
             cmocka_unit_test(e4m3_rounds_to_the_nearest),
             cmocka_unit_test(nothing_is_left_of_a_failure),
             cmocka_unit_test(what_cannot_be_converted))
