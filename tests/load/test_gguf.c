/*
 * test_gguf.c - GGUF files: what a good one gives, and that every bad one is refused with file, key
 * or tensor, and byte.
 */
#define _GNU_SOURCE /* memmem */

#include "testing.h"

#include "load/fake.h"
#include "jinja/jinja.h"
#include "load/gguf.h"
#include "load/gguf_write.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- a small writer */

static void put(struct sv_buf *b, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        sv_buf_append(b, &(char){(char)(v >> (8 * i))}, 1);
}

static void put_str(struct sv_buf *b, const char *s)
{
    put(b, strlen(s), 8);
    sv_buf_append(b, s, strlen(s));
}

static void put_key(struct sv_buf *b, const char *key, uint32_t type)
{
    put_str(b, key);
    put(b, type, 4);
}

static void put_u32(struct sv_buf *b, const char *key, uint32_t v)
{
    put_key(b, key, SV_GGUF_U32);
    put(b, v, 4);
}

static void put_tensor(struct sv_buf *b, const char *name, int64_t d0, int64_t d1, uint32_t type,
                       uint64_t offset)
{
    put_str(b, name);
    put(b, d1 ? 2 : 1, 4);
    put(b, (uint64_t)d0, 8);
    if (d1)
        put(b, (uint64_t)d1, 8);
    put(b, type, 4);
    put(b, offset, 8);
}

/* What the tests change in the good file. */
struct twist {
    uint32_t version, align, array_type, type;
    uint64_t n_tensors, n_kv, offset;
    int64_t d0;
    const char *name, *key;
    int truth, cut;
};
static const struct twist none = {.version = 3,
                                  .align = 32,
                                  .array_type = SV_GGUF_I16,
                                  .type = 8,
                                  .n_tensors = 2,
                                  .n_kv = 6,
                                  .offset = 96,
                                  .d0 = 64,
                                  .name = "blk.0.attn_v.weight",
                                  .key = "a.string",
                                  .truth = 1};

/* An f32 vector of 20 at 0, a Q8_0 matrix (2, 64) at 96. */
static void build(struct sv_buf *b, const struct twist *t)
{
    sv_buf_init(b);
    sv_buf_lit(b, "GGUF");
    put(b, t->version, 4);
    put(b, t->n_tensors, 8);
    put(b, t->n_kv, 8);
    put_key(b, t->key, SV_GGUF_STRING);
    put_str(b, "text");
    put_u32(b, "general.alignment", t->align);
    put_key(b, "a.list", SV_GGUF_ARRAY);
    put(b, t->array_type, 4);
    put(b, 3, 8);
    for (int i = 0; i < 3; i++)
        put(b, (uint64_t)(i - 1), 2);
    put_key(b, "a.truth", SV_GGUF_BOOL);
    put(b, (uint64_t)t->truth, 1);
    put_key(b, "a.number", SV_GGUF_F32);
    put(b, 0x3fc00000, 4);
    put_key(b, "strings", SV_GGUF_ARRAY);
    put(b, SV_GGUF_STRING, 4);
    put(b, 2, 8);
    put_str(b, "");
    put_str(b, "two");
    put_tensor(b, "output_norm.weight", 20, 0, 0, 0);
    put_tensor(b, t->name, t->d0, 2, t->type, t->offset);
    while (b->len % 32)
        put(b, 0, 1);
    for (int i = 0; i < 96 + 2 * 68; i++)
        put(b, (uint64_t)i * 7, 1);
    b->len -= (size_t)t->cut;
}

/* Parses a copy that ends where the file ends, so that ASan sees any read beyond. */
static int parse(struct sv_gguf *g, const struct sv_buf *b, struct sv_arena *a, struct sv_err *err)
{
    uint8_t *copy = malloc(b->len ? b->len : 1);
    memcpy(copy, b->data, b->len);
    int rc = sv_gguf_parse(g, copy, b->len, "x.gguf", a, err);
    for (int32_t i = 0; !rc && i < g->n_tensors; i++)
        for (size_t k = 0; k < g->tensors[i].n_bytes; k++)
            assert_true(g->tensors[i].data[k] <= 255);
    free(copy);
    return rc;
}

/* ---------------------------------------------------------------- tests */

static void a_good_file_gives_its_values(void **state)
{
    (void)state;
    struct sv_buf b;
    struct sv_arena arena;
    struct sv_gguf g;
    struct sv_err err = {0};
    build(&b, &none);
    sv_arena_init(&arena);
    assert_int_equal(sv_gguf_parse(&g, (const uint8_t *)b.data, b.len, "x.gguf", &arena, &err),
                     SV_OK);
    assert_int_equal(g.n_kv, 6);
    assert_int_equal(g.n_tensors, 2);
    const char *s = NULL;
    size_t n = 0;
    int64_t i = 0;
    double d = 0;
    bool truth = false;
    assert_int_equal(sv_gguf_str_opt(&g, "a.string", &s, &n, &err), SV_OK);
    assert_true(n == 4 && !memcmp(s, "text", 4));
    assert_int_equal(sv_gguf_num_opt(&g, "a.number", &d, &err), SV_OK);
    assert_true(d == 1.5);
    assert_int_equal(sv_gguf_bool_opt(&g, "a.truth", &truth, &err), SV_OK);
    assert_true(truth);
    const struct sv_gguf_kv *list = sv_gguf_find(&g, "a.list"), *strings;
    for (int k = 0; k < 3; k++) {
        assert_true(sv_gguf_int_at(list, (uint64_t)k, &i));
        assert_int_equal(i, k - 1);
    }
    assert_int_equal(sv_gguf_strings(&g, "strings", &strings, &err), SV_OK);
    const uint8_t *at = strings->at;
    sv_gguf_next(&at, &n);
    assert_int_equal(n, 0);
    s = sv_gguf_next(&at, &n);
    assert_true(n == 3 && !memcmp(s, "two", 3));
    i = 7; /* absent keys leave what was there */
    assert_int_equal(sv_gguf_int_opt(&g, "nothing", 0, 9, &i, &err), SV_OK);
    assert_int_equal(i, 7);
    fake_expect(sv_gguf_int_opt(&g, "general.alignment", 0, 9, &i, &err), SV_EFORMAT, &err,
                "key 'general.alignment' must be an integer in [0, 9]", "range");
    fake_expect(sv_gguf_int_opt(&g, "a.string", 0, 9, &i, &err), SV_EFORMAT, &err, "'a.string'",
                "kind");
    fake_expect(sv_gguf_str_opt(&g, "a.list", &s, &n, &err), SV_EFORMAT, &err, "a string", "kind");
    const struct sv_gguf_tensor *t = &g.tensors[1];
    assert_string_equal(t->name, "blk.0.attn_v.weight");
    assert_int_equal(t->n_bytes, 2 * 68);
    assert_int_equal(t->data - (const uint8_t *)b.data, b.len - 2 * 68);
    sv_arena_fini(&arena);
    sv_buf_fini(&b);
}

#define WITH(...)                                                                                  \
    {                                                                                              \
        .version = 3, .align = 32, .array_type = SV_GGUF_I16, .type = 8, .n_tensors = 2,           \
        .n_kv = 6, .offset = 96, .d0 = 64, .name = "blk.0.attn_v.weight", .key = "a.string",       \
        .truth = 1, __VA_ARGS__                                                                    \
    }
#pragma GCC diagnostic ignored "-Woverride-init"
static const struct {
    struct twist t;
    int code;
    const char *part;
} bad[] = {
    {WITH(.version = 1), SV_EUNSUPPORTED, "version 1 of GGUF is not supported (2 and 3 are)"},
    {WITH(.version = 0x03000000), SV_EUNSUPPORTED, "big-endian"},
    {WITH(.n_tensors = 1ull << 60), SV_EFORMAT, "byte 8: more tensors than the file can hold"},
    {WITH(.n_kv = 1ull << 60), SV_EFORMAT, "byte 16: more keys than the file can hold"},
    {WITH(.n_kv = 7), SV_EFORMAT, "x.gguf"},
    {WITH(.align = 0), SV_EFORMAT, "'general.alignment'"},
    {WITH(.align = 24), SV_EFORMAT, "no power of two"},
    {WITH(.array_type = SV_GGUF_ARRAY), SV_EFORMAT, "key 'a.list'"},
    {WITH(.array_type = 13), SV_EFORMAT, "an unknown type"},
    {WITH(.array_type = SV_GGUF_STRING), SV_EFORMAT, "goes beyond the end of the file"},
    {WITH(.truth = 2), SV_EFORMAT, "key 'a.truth'"},
    {WITH(.key = ""), SV_EFORMAT, "a key of 0 bytes"},
    {WITH(.key = "a\n"), SV_EFORMAT, "not printable"},
    {WITH(.key = "a.truth"), SV_EFORMAT, "key 'a.truth' is there twice"},
    {WITH(.name = "output_norm.weight"), SV_EFORMAT, "'output_norm.weight' is there twice"},
    {WITH(.type = 10), SV_EUNSUPPORTED, "type Q2_K is not supported"},
    {WITH(.type = 99), SV_EFORMAT, "an unknown type of tensor"},
    {WITH(.type = 12), SV_EFORMAT, "rows of 64 are not whole blocks of 256"},
    {WITH(.d0 = 0), SV_EFORMAT, "a dimension is 0"},
    {WITH(.d0 = 1ll << 40), SV_EFORMAT, "too large"},
    {WITH(.offset = 100), SV_EFORMAT, "no multiple of the alignment"},
    {WITH(.offset = 64), SV_EFORMAT, "'blk.0.attn_v.weight' overlaps 'output_norm.weight'"},
    {WITH(.offset = 128), SV_EFORMAT, "truncated?"},
    {WITH(.offset = 128, .d0 = 32), SV_EFORMAT,
     "byte 432: a gap between 'output_norm.weight' and the data of tensor 'blk.0.attn_v.weight'"},
    {WITH(.offset = 1ull << 63), SV_EFORMAT, "truncated?"},
    {WITH(.cut = 1), SV_EFORMAT, "'blk.0.attn_v.weight' goes beyond the end"},
};

static void bad_files_are_refused_with_the_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sv_buf b;
        struct sv_arena arena;
        struct sv_gguf g;
        struct sv_err err = {0};
        build(&b, &bad[i].t);
        sv_arena_init(&arena);
        const int rc = parse(&g, &b, &arena, &err);
        fake_expect(rc, bad[i].code, &err, bad[i].part, bad[i].part);
        fake_expect(rc, bad[i].code, &err, "x.gguf", bad[i].part);
        sv_arena_fini(&arena);
        sv_buf_fini(&b);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    struct sv_buf b;
    build(&b, &none);
    for (size_t whole = b.len; b.len-- > 0;) {
        struct sv_arena arena;
        struct sv_gguf g;
        struct sv_err err = {0};
        sv_arena_init(&arena);
        assert_int_equal(parse(&g, &b, &arena, &err), SV_EFORMAT);
        assert_true(err.pos < (int64_t)whole);
        sv_arena_fini(&arena);
        if (b.len == 0)
            break;
    }
    sv_buf_fini(&b);
}

static void random_damage_never_reads_outside(void **state)
{
    (void)state;
    struct sv_rng rng = {41};
    int n_good = 0;
    for (int round = 0; round < 20000; round++) {
        struct sv_buf b;
        struct sv_arena arena;
        struct sv_gguf g;
        struct sv_err err = {0};
        build(&b, &none);
        for (int k = 0; k <= round % 3; k++)
            b.data[sv_rng_below(&rng, (uint32_t)b.len)] = (char)sv_rng_next(&rng);
        sv_arena_init(&arena);
        n_good += parse(&g, &b, &arena, &err) == SV_OK;
        sv_arena_fini(&arena);
        sv_buf_fini(&b);
    }
    assert_true(n_good > 100); /* damage to tensor data cannot be seen */
}

static void names_are_ours(void **state)
{
    static const char *const pairs[][2] = {
        {"token_embd.weight", "embed_tokens.weight"},
        {"output.weight", "lm_head.weight"},
        {"blk.17.attn_k.bias", "layers.17.self_attn.k_proj.bias"},
        {"blk.0.ffn_norm.weight", "layers.0.post_attention_layernorm.weight"},
        {"blk.3.ffn_gate_inp.weight", "layers.3.mlp.gate.weight"},
        {"blk.3.ffn_up_exps.weight", "layers.3.mlp.experts.{expert}.up_proj.weight"},
        {"blk.3.ffn_up_exps.bias", "layers.3.mlp.experts.up_proj.bias"},
        {"blk.0.ssm_a", "layers.0.linear_attn.A_log"},
        {"blk.0.ssm_dt.bias", "layers.0.linear_attn.dt_bias"},
        {"blk.9.attn_sinks.weight", "layers.9.self_attn.sinks"},
        {"blk.9.post_attention_norm.weight", "layers.9.post_attention_layernorm.weight"},
        {"enc.output_norm.weight", "hidden_norm.weight"},
        {"blk.0.ssm_a.weight", NULL},
        {"blk.0.ssm_dt.weight", NULL},
        {"blk..attn_k.weight", NULL},
        {"blk.0.attn_kv.weight", NULL},
        {"blk.0.attn_k", NULL},
        {"blk.12345.attn_k.weight", NULL}};
    const struct sv_gguf_family f = {.router = "mlp.gate"}, oss = {.router = "mlp.router"},
                                latent = {.router = "mlp.gate", .latent = true};
    char name[160];
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_int_equal(sv_gguf_tensor_name(&f, pairs[i][0], name, sizeof name),
                         pairs[i][1] != NULL);
        if (pairs[i][1])
            assert_string_equal(name, pairs[i][1]);
    }
    assert_true(sv_gguf_tensor_name(&oss, "blk.3.ffn_gate_inp.bias", name, sizeof name));
    assert_string_equal(name, "layers.3.mlp.router.bias");
    assert_true(sv_gguf_tensor_name(&latent, "blk.3.attn_k_b.weight", name, sizeof name));
    assert_string_equal(name, "layers.3.self_attn.k_b_proj.{expert}.weight");
    assert_true(sv_gguf_tensor_name(&latent, "blk.3.exp_probs_b.bias", name, sizeof name));
    assert_string_equal(name, "layers.3.mlp.gate.e_score_correction_bias");
    assert_true(sv_gguf_tensor_name(&latent, "blk.3.ffn_gate_inp.weight", name, sizeof name));
    assert_string_equal(name, "layers.3.mlp.gate.weight");
    assert_false(sv_gguf_tensor_name(&f, "blk.3.attn_k_b.weight", name, sizeof name));
}

/* A golden file as the test's own, so that it can be changed. */
static void copy_file(const char *from, const char *dir, const char *name)
{
    struct sv_buf b;
    struct sv_err err;
    char path[256];
    snprintf(path, sizeof path, "tests/golden/gguf/%s", from);
    sv_buf_init(&b);
    assert_int_equal(sv_file_read(&b, sv_test_path(path), 1 << 20, &err), SV_OK);
    fake_put(dir, name, b.data, b.len);
    sv_buf_fini(&b);
}

static void shards_must_belong_together(void **state)
{
    static const char one[] = "llama_f32-00001-of-00002.gguf",
                      two[] = "llama_f32-00002-of-00002.gguf";
    struct sv_ckpt c;
    struct sv_err err;
    char path[600];
    (void)state;
    const char *dir = fake_dir("lonely");
    copy_file(one, dir, "m-00001-of-00002.gguf");
    snprintf(path, sizeof path, "%s/m-00001-of-00002.gguf", dir);
    fake_expect(sv_ckpt_open(&c, path, &err), SV_EIO, &err, "m-00002-of-00002.gguf", "missing");
    copy_file(one, dir, "m-00002-of-00002.gguf");
    fake_expect(sv_ckpt_open(&c, path, &err), SV_EMISMATCH, &err, "'split.no' is 0, 1 was expected",
                "the first twice");
    copy_file("qwen3_q8.gguf", dir, "m-00002-of-00002.gguf");
    fake_expect(sv_ckpt_open(&c, path, &err), SV_EMISMATCH, &err, "'split.no'", "another model");
    copy_file(two, dir, "m-00002-of-00002.gguf");
    fake_expect(sv_ckpt_open(&c, path, &err), SV_OK, &err, "", "both");
    assert_int_equal(c.n_maps, 2);
    assert_int_equal(c.n_tensors, 30);
    sv_ckpt_close(&c);
    copy_file(one, dir, "renamed.gguf");
    snprintf(path, sizeof path, "%s/renamed.gguf", dir);
    fake_expect(sv_ckpt_open(&c, path, &err), SV_EFORMAT, &err, "-00001-of-00002.gguf", "renamed");
    copy_file(two, dir, "second.gguf");
    snprintf(path, sizeof path, "%s/second.gguf", dir);
    fake_expect(sv_ckpt_open(&c, path, &err), SV_EMISMATCH, &err, "'split.no' is 1", "the second");
    assert_int_equal(sv_alloc_live(), 0);
}

static void configuration_and_tensors_fit(void **state)
{
    static const char *const files[] = {"llama_f32-00001-of-00002.gguf",
                                        "qwen3_q8.gguf",
                                        "llama_mix.gguf",
                                        "qwen3_moe.gguf",
                                        "qwen35_mix.gguf",
                                        "qwen3_moe_mix.gguf",
                                        "deepseek2.gguf"};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[128];
        struct sv_config cfg;
        struct sv_ckpt c;
        struct sv_err err;
        snprintf(path, sizeof path, "tests/golden/gguf/%s", files[i]);
        const char *file = sv_test_path(path);
        fake_expect(sv_config_load(&cfg, file, &err), SV_OK, &err, "", file);
        fake_expect(sv_ckpt_open(&c, file, &err), SV_OK, &err, "", file);
        fake_expect(sv_ckpt_check_target(&c, &cfg, &err), SV_OK, &err, "", file);
        assert_int_equal(c.n_params, sv_config_n_params(&cfg));
        cfg.n_layers++;
        fake_expect(sv_ckpt_check_target(&c, &cfg, &err), SV_EMISMATCH, &err, "is missing", file);
        sv_ckpt_close(&c);
        assert_true(sv_ckpt_dir_bytes(file) > c.n_bytes);
    }
}

static void a_gguf_reads_like_its_directory(void **state)
{
    struct sv_config a, b;
    struct sv_err err;
    (void)state;
    assert_int_equal(sv_config_load(&a, sv_test_path("tests/golden/tiny/qwen3_tied_bf16"), &err),
                     SV_OK);
    assert_int_equal(sv_config_load(&b, sv_test_path("tests/golden/gguf/qwen3_q8.gguf"), &err),
                     SV_OK);
    assert_int_equal(b.n_eos, 2); /* <|im_end|> ends answers by its name */
    assert_int_equal(b.eos_ids[1], 3);
    b.n_eos = 1;
    b.eos_ids[1] = 0;
    assert_memory_equal(&a, &b, sizeof a);
}

/* Keys of deepseek2, one other than in a good file. */
static const struct deepseek_twist {
    const char *key;
    int64_t v; /* -1: it is absent */
    int code;
    const char *part;
} twists[] = {
    {"", 0, SV_OK, ""},
    {"expert_gating_func", 1, SV_EUNSUPPORTED,
     "router scores other than sigmoid (key 'deepseek2.expert_gating_func' is 1"},
    {"expert_gating_func", -1, SV_EUNSUPPORTED, "1 when absent"},
    {"attention.kv_lora_rank", -1, SV_EFORMAT, "key 'deepseek2.attention.kv_lora_rank' is missing"},
    {"attention.key_length_mla", 16, SV_EFORMAT, "'deepseek2.attention.key_length_mla'"},
    {"rope.dimension_count", -1, SV_EFORMAT, "'deepseek2.rope.dimension_count'"},
    {"attention.value_length_mla", 20, SV_EUNSUPPORTED, "v_head_dim 20 is not a multiple of 8"},
    {"expert_group_count", 3, SV_EINVAL, "n_routed_experts 8 are not n_group 3"},
    {"expert_group_used_count", 0, SV_EINVAL, "topk_group"},
    {"expert_count", -1, SV_EFORMAT, "key 'deepseek2.expert_count' is missing"},
    {"attention.sliding_window", 8, SV_EUNSUPPORTED, "'deepseek2.attention.sliding_window' = 8"},
};

static void keys_of_latents(void **state)
{
    static const struct {
        const char *key;
        uint32_t v;
    } good[] = {{"block_count", 2},
                {"context_length", 512},
                {"embedding_length", 64},
                {"feed_forward_length", 64},
                {"vocab_size", 96},
                {"attention.head_count", 2},
                {"attention.head_count_kv", 1},
                {"attention.key_length", 48},
                {"attention.value_length", 32},
                {"attention.key_length_mla", 40},
                {"attention.value_length_mla", 24},
                {"attention.kv_lora_rank", 32},
                {"rope.dimension_count", 16},
                {"expert_count", 8},
                {"expert_used_count", 2},
                {"expert_feed_forward_length", 32},
                {"expert_gating_func", 2},
                {"expert_group_count", 4},
                {"expert_group_used_count", 2},
                {"leading_dense_block_count", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof twists / sizeof twists[0]; i++) {
        const struct deepseek_twist *t = &twists[i];
        const char *path = sv_test_tmp("latent.gguf");
        struct gguf_out g;
        struct sv_config c;
        struct sv_err err;
        char key[96];
        bool put = !*t->key || t->v < 0;
        gguf_init(&g, "deepseek2");
        for (size_t k = 0; k < sizeof good / sizeof good[0]; k++) {
            const bool this = !strcmp(good[k].key, t->key);
            put |= this;
            snprintf(key, sizeof key, "deepseek2.%s", good[k].key);
            if (!this || t->v >= 0)
                gguf_u32(&g, key, this ? (uint32_t)t->v : good[k].v);
        }
        snprintf(key, sizeof key, "deepseek2.%s", t->key);
        if (!put)
            gguf_u32(&g, key, (uint32_t)t->v);
        gguf_save(&g, path);
        fake_expect(sv_config_load(&c, path, &err), t->code, &err, t->part, t->key);
        if (t->code)
            continue;
        assert_true(c.kv_lora_rank == 32 && c.nope_dim == 24 && c.rot_dim == 16 && c.v_dim == 24);
        assert_true(c.n_group == 4 && c.topk_group == 2 && !c.layer_moe[0] && c.layer_moe[1]);
        assert_true(c.routed_scale == 1 && !c.norm_topk && c.shared_intermediate_size == 0);
        assert_true(c.q_lora_rank == 0 && c.rope_interleaved && c.latent_eps == 1e-6f);
    }
}

static uint64_t fnv(const void *data, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return h & INT64_MAX;
}

/* Stacked experts too: keys hold the hashes of what gguf-py makes of each tensor in fewer bits. */
static void values_are_those_of_gguf_py(void **state)
{
    struct sv_gguf_file f;
    struct sv_err err;
    int n = 0, n_stacks = 0;
    (void)state;
    const char *file = sv_test_path("tests/golden/gguf/qwen3_moe_mix.gguf");
    fake_expect(sv_gguf_open(&f, file, &err), SV_OK, &err, "", file);
    for (int32_t i = 0; i < f.g.n_tensors; i++) {
        const struct sv_gguf_tensor *t = &f.g.tensors[i];
        enum sv_dtype dtype;
        enum sv_quant_code code;
        int64_t want = 0;
        char key[160];
        assert_true(sv_gguf_format(t->type, &dtype, &code));
        snprintf(key, sizeof key, "test.values.%s", t->name);
        const struct sv_gguf_kv *v = sv_gguf_find(&f.g, key);
        assert_int_equal(v != NULL, code != SV_CODE_NONE);
        if (!v)
            continue;
        const struct sv_quant q = {.code = code,
                                   .rows = (int32_t)(t->n_elements / t->dim[0]),
                                   .cols = (int32_t)t->dim[0],
                                   .data = t->data};
        float *x = malloc((size_t)t->n_elements * sizeof *x);
        sv_quant_rows(&q, 0, q.rows, x);
        assert_true(sv_gguf_int_at(v, 0, &want));
        if (fnv(x, (size_t)t->n_elements * sizeof *x) != (uint64_t)want)
            fail_msg("%s: not the values of gguf-py", t->name);
        free(x);
        n++;
        n_stacks += t->n_dims == 3;
    }
    assert_int_equal(n_stacks, 6);
    assert_true(n > n_stacks);
    sv_gguf_close(&f);
}

static void every_fault_is_survived(void **state)
{
    (void)state;
    const char *file = sv_test_path("tests/golden/gguf/qwen3_q8.gguf");
    for (int64_t nth = 1;; nth++) {
        struct sv_config cfg;
        struct sv_ckpt c;
        struct sv_chat_template *chat = NULL;
        struct sv_err err = {0};
        sv_fault_arm(nth);
        int rc = sv_config_load(&cfg, file, &err);
        if (!rc && !(rc = sv_ckpt_open(&c, file, &err)))
            sv_ckpt_close(&c);
        if (!rc)
            rc = sv_model_chat_template(&chat, file, NULL, 0, &err);
        const int64_t calls = sv_fault_calls();
        sv_fault_arm(0);
        assert_true(rc == SV_OK || (err.code == rc && err.msg[0]));
        if (chat)
            sv_chat_template_close(chat);
        assert_int_equal(sv_alloc_live(), 0);
        if (rc == SV_OK && calls < nth)
            break;
    }
}

/* A golden file with the value of a key, four bytes, replaced. */
static int patched(const char *after, const void *bytes, struct sv_err *err)
{
    struct sv_buf b;
    struct sv_config cfg;
    struct sv_ckpt c;
    const char *path = sv_test_path("tests/golden/gguf/qwen3_q8.gguf"),
               *out = sv_test_tmp("p.gguf");
    sv_buf_init(&b);
    assert_int_equal(sv_file_read(&b, path, 1 << 20, err), SV_OK);
    char *at = memmem(b.data, b.len, after, strlen(after));
    assert_non_null(at);
    memcpy(at + strlen(after) + 4, bytes, 4); /* behind the type */
    assert_int_equal(sv_file_write(out, b.data, b.len, err), SV_OK);
    sv_buf_fini(&b);
    int rc = sv_config_load(&cfg, out, err);
    if (rc)
        return rc;
    rc = sv_ckpt_open(&c, out, err);
    if (!rc)
        rc = sv_ckpt_check_target(&c, &cfg, err);
    sv_ckpt_close(&c);
    return rc;
}

static void values_that_are_none(void **state)
{
    static const uint8_t nan[] = {0, 0, 0xc0, 0x7f}, inf[] = {0, 0, 0x80, 0x7f}, zero[4] = {0},
                         minus[] = {0, 0, 0x80, 0xbf}, two[] = {2, 0, 0, 0};
    static const struct {
        const char *after;
        const uint8_t *bytes;
        int code;
        const char *part;
    } cases[] = {
        {"qwen3.attention.layer_norm_rms_epsilon", nan, SV_EFORMAT, "must be a finite number"},
        {"qwen3.attention.layer_norm_rms_epsilon", zero, SV_EINVAL, "rms_norm_eps"},
        {"qwen3.attention.layer_norm_rms_epsilon", minus, SV_EINVAL, "rms_norm_eps"},
        {"qwen3.rope.freq_base", inf, SV_EFORMAT, "'qwen3.rope.freq_base' must be a finite"},
        {"qwen3.block_count", two, SV_EMISMATCH, "'layers.2."},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_err err = {0};
        const int rc = patched(cases[i].after, cases[i].bytes, &err);
        fake_expect(rc, cases[i].code, &err, cases[i].part, cases[i].after);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(a_good_file_gives_its_values),
             cmocka_unit_test(bad_files_are_refused_with_the_place),
             cmocka_unit_test(values_that_are_none), cmocka_unit_test(every_truncation_is_refused),
             cmocka_unit_test(random_damage_never_reads_outside), cmocka_unit_test(names_are_ours),
             cmocka_unit_test(shards_must_belong_together),
             cmocka_unit_test(configuration_and_tensors_fit),
             cmocka_unit_test(a_gguf_reads_like_its_directory), cmocka_unit_test(keys_of_latents),
             cmocka_unit_test(values_are_those_of_gguf_py),
             cmocka_unit_test(every_fault_is_survived))
