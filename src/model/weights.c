/*
 * weights.c - from named host tensors to device weights: shape checks, upload, ownership.
 *
 * Called by target.c and by the drafter at open. On the CPU the mapped file is used in place, so
 * the checkpoint must outlive the weights. Must not run during a step.
 */
#include "model/model.h"

#include <string.h>

enum { MAX_RANDOM_TENSORS = 8192 };

int sv_weights_open(struct sv_weights *w, struct sv_dev *dev, const struct sv_ckpt *ckpt,
                    struct sv_err *err)
{
    memset(w, 0, sizeof *w);
    w->dev = dev;
    w->ckpt = ckpt;
    w->prefix = ckpt && sv_ckpt_find(ckpt, "model.norm.weight") ? "model." : "";
    sv_arena_init(&w->arena);
    /* Every tensor at most once, the rotary table and a head's sieve. */
    w->cap_owned = (ckpt ? ckpt->n_tensors : MAX_RANDOM_TENSORS) + 3;
    w->owned = sv_arena_alloc(&w->arena, (size_t)w->cap_owned * sizeof *w->owned);
    w->taken = sv_arena_alloc(&w->arena, (size_t)w->cap_owned * sizeof *w->taken);
    if (!w->owned || !w->taken) {
        sv_weights_close(w);
        return sv_fail(err, SV_ENOMEM, -1, "weights: table");
    }
    return SV_OK;
}

void sv_weights_close(struct sv_weights *w)
{
    for (int32_t i = 0; i < w->n_owned; i++)
        sv_dev_free(w->dev, (void *)(uintptr_t)w->owned[i]);
    sv_arena_fini(&w->arena);
    memset(w, 0, sizeof *w);
}

void sv_weights_add_read(const struct sv_weights *w, int32_t n, struct sv_read_bytes *sum)
{
    for (int32_t i = 0; i < n; i++)
        sv_dev_add_read(w->dev, &w->taken[i], sum);
}

static void note(struct sv_weights *w, const struct sv_weight *made)
{
    SV_REQUIRE(w->n_taken < w->cap_owned);
    w->taken[w->n_taken++] = *made;
    w->read_bytes += sv_weight_read_bytes(made);
}

static void own(struct sv_weights *w, const void *p)
{
    SV_REQUIRE(w->n_owned < w->cap_owned);
    w->owned[w->n_owned++] = p;
}

static int upload(struct sv_weights *w, const struct sv_weight *host, struct sv_weight *out,
                  struct sv_err *err)
{
    bool owned = false;
    int rc = sv_dev_upload_weight(w->dev, host, out, &owned, err);
    if (!rc && owned)
        own(w, out->data);
    if (!rc && out->sieve)
        own(w, out->sieve);
    return rc;
}

/* No checkpoint: numbers as in a fresh model, around one where they scale (norms). */
static int make_random(struct sv_weights *w, struct sv_weight *out, int32_t rows, int32_t cols,
                       const char *name, struct sv_err *err)
{
    const struct sv_weight shape = {
        .dtype = SV_BF16,
        .rows = rows,
        .cols = cols,
        .approximate = w->approximate,
        .table = w->table,
        .head = w->head,
    };
    bool norm = rows == 1 && strstr(name, "norm");
    if (w->n_owned == w->cap_owned)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "random weights: more than %d tensors",
                       MAX_RANDOM_TENSORS);
    int rc = sv_dev_random_weight(w->dev, &shape, norm ? 0.01f : 0.02f, norm ? 1 : 0,
                                  (uint64_t)w->n_owned + 1, out, err);
    if (rc)
        return rc;
    own(w, out->data);
    if (out->sieve)
        own(w, out->sieve);
    w->n_bytes += 2 * (int64_t)rows * cols;
    note(w, out);
    return SV_OK;
}

int sv_weights_take(struct sv_weights *w, struct sv_weight *out, int32_t rows, int32_t cols,
                    struct sv_err *err, const char *fmt, ...)
{
    char name[256];
    size_t n = (size_t)snprintf(name, sizeof name, "%s", w->prefix);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name + n, sizeof name - n, fmt, ap);
    va_end(ap);
    if (!w->ckpt)
        return make_random(w, out, rows, cols, name, err);
    const struct sv_host_tensor *t = sv_ckpt_find(w->ckpt, name);
    if (!t)
        t = sv_ckpt_find(w->ckpt, name + n); /* lm_head stands outside the prefix */
    if (!t)
        return sv_fail(err, SV_EFORMAT, -1, "tensor %s is missing", name);
    bool vector = rows == 1 && t->n_dims == 1 && t->dim[0] == cols;
    bool matrix = t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols;
    if (!vector && !matrix)
        return sv_fail(err, SV_EFORMAT, -1, "tensor %s has not the shape [%d, %d]", name, rows,
                       cols);
    w->n_bytes += (int64_t)t->n_bytes;
    int rc = upload(w,
                    &(struct sv_weight){
                        .data = t->data,
                        .dtype = t->dtype,
                        .rows = rows,
                        .cols = cols,
                        .approximate = w->approximate,
                        .table = w->table,
                        .head = w->head,
                    },
                    out, err);
    if (!rc)
        note(w, out);
    return rc;
}

/* One projection "layers.I.NAME.weight" with its bias when the configuration has one. */
static int take_linear(struct sv_weights *w, struct sv_gemm_part *part, int32_t rows, int32_t cols,
                       bool bias, int32_t layer, const char *name, struct sv_err *err)
{
    int rc = sv_weights_take(w, &part->w, rows, cols, err, "layers.%d.%s.weight", layer, name);
    if (!rc && bias)
        rc = sv_weights_take(w, &part->bias, 1, rows, err, "layers.%d.%s.bias", layer, name);
    return rc;
}

static int take_layer(struct sv_weights *w, struct sv_layer *l, const struct sv_config *cfg,
                      int32_t i, struct sv_err *err)
{
    int32_t h = cfg->hidden_size, q = cfg->n_heads * cfg->head_dim, mlp = cfg->intermediate_size;
    int32_t kv = cfg->n_kv_heads * cfg->head_dim;
    bool ab = cfg->attention_bias, mb = cfg->mlp_bias;
    int rc = sv_weights_take(w, &l->in_norm, 1, h, err, "layers.%d.input_layernorm.weight", i);
    if (!rc)
        rc = sv_weights_take(w, &l->post_norm, 1, h, err,
                             "layers.%d.post_attention_layernorm.weight", i);
    if (!rc && cfg->qk_norm)
        rc = sv_weights_take(w, &l->q_norm, 1, cfg->head_dim, err,
                             "layers.%d.self_attn.q_norm.weight", i);
    if (!rc && cfg->qk_norm)
        rc = sv_weights_take(w, &l->k_norm, 1, cfg->head_dim, err,
                             "layers.%d.self_attn.k_norm.weight", i);
    const struct {
        struct sv_gemm_part *part;
        int32_t rows, cols;
        bool bias;
        const char *name;
    } linear[] = {
        {&l->qkv[0], q, h, ab, "self_attn.q_proj"},    {&l->qkv[1], kv, h, ab, "self_attn.k_proj"},
        {&l->qkv[2], kv, h, ab, "self_attn.v_proj"},   {&l->o, h, q, ab, "self_attn.o_proj"},
        {&l->gate_up[0], mlp, h, mb, "mlp.gate_proj"}, {&l->gate_up[1], mlp, h, mb, "mlp.up_proj"},
        {&l->down, h, mlp, mb, "mlp.down_proj"},
    };
    for (size_t p = 0; p < sizeof linear / sizeof linear[0] && !rc; p++)
        rc = take_linear(w, linear[p].part, linear[p].rows, linear[p].cols, linear[p].bias, i,
                         linear[p].name, err);
    l->mask = SV_MASK_CAUSAL;
    l->window = cfg->layer_kind[i] == SV_LAYER_SLIDING ? cfg->sliding_window : 0;
    return rc;
}

static int take_rope(struct sv_weights *w, struct sv_rope_table *t, const struct sv_config *cfg,
                     int32_t n_positions, struct sv_err *err)
{
    size_t half = (size_t)n_positions * (size_t)(cfg->head_dim / 2);
    if (2 * half > INT32_MAX)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "rotary table for %d positions of %d: more than 2^31 numbers", n_positions,
                       cfg->head_dim);
    float *host = sv_arena_alloc(&w->arena, 2 * half * sizeof *host);
    if (!host)
        return sv_fail(err, SV_ENOMEM, -1, "rotary table for %d positions", n_positions);
    sv_rope_fill(&cfg->rope, cfg->head_dim, n_positions, host);
    struct sv_weight dev = {0};
    const struct sv_weight table = {
        .data = host, .dtype = SV_F32, .rows = 1, .cols = (int32_t)(2 * half)};
    int rc = upload(w, &table, &dev, err);
    if (rc)
        return rc;
    *t = (struct sv_rope_table){
        .cos = dev.data,
        .sin = (const float *)dev.data + half,
        .max_pos = n_positions,
        .rot_dim = cfg->head_dim,
    };
    return SV_OK;
}

int sv_weights_take_stack(struct sv_weights *w, struct sv_stack *st, const struct sv_config *cfg,
                          int32_t n_positions, struct sv_err *err)
{
    *st = (struct sv_stack){
        .n_layers = cfg->n_layers,
        .hidden = cfg->hidden_size,
        .intermediate = cfg->intermediate_size,
        .n_heads = cfg->n_heads,
        .n_kv_heads = cfg->n_kv_heads,
        .head_dim = cfg->head_dim,
        .eps = cfg->rms_eps,
    };
    st->layers = sv_arena_alloc(&w->arena, (size_t)cfg->n_layers * sizeof *st->layers);
    if (!st->layers)
        return sv_fail(err, SV_ENOMEM, -1, "layer table");
    int rc = SV_OK;
    for (int32_t i = 0; i < cfg->n_layers && !rc; i++)
        rc = take_layer(w, &st->layers[i], cfg, i, err);
    if (!rc)
        rc = sv_weights_take(w, &st->final_norm, 1, cfg->hidden_size, err, "norm.weight");
    if (!rc)
        rc = take_rope(w, &st->rope, cfg, n_positions, err);
    return rc;
}
