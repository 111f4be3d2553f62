/*
 * weights.c - from named host tensors to device weights: shape checks, upload, ownership.
 *
 * Called by target.c and by the drafter at open. On the CPU the mapped file is used in place, so
 * the checkpoint must outlive the weights. Must not run during a step.
 */
#include "model/impl.h"

#include "backend/ops_vision.h"

#include <math.h>
#include <string.h>

enum { MAX_RANDOM_TENSORS = 8192 };

int sv_weights_open(struct sv_weights *w, struct sv_dev *dev, const struct sv_ckpt *ckpt,
                    struct sv_err *err)
{
    memset(w, 0, sizeof *w);
    w->dev = dev;
    w->ckpt = ckpt;
    sv_arena_init(&w->arena);
    /* every tensor at most once, or as gate and up */
    w->cap = ckpt ? 2 * ckpt->n_tensors : MAX_RANDOM_TENSORS;
    w->taken = sv_arena_alloc(&w->arena, (size_t)w->cap * sizeof *w->taken);
    if (!w->taken) {
        sv_weights_close(w);
        return sv_fail(err, SV_ENOMEM, -1, "weights: table");
    }
    return SV_OK;
}

void sv_weights_close(struct sv_weights *w)
{
    for (int32_t i = 0; i < w->n_taken; i++) {
        sv_dev_free_weight(w->dev, &w->taken[i].w);
        if (w->taken[i].experts)
            sv_dev_free_experts(w->dev, w->taken[i].experts);
        sv_free(w->taken[i].host);
    }
    sv_dev_free_weight(w->dev, &w->rope);
    sv_arena_fini(&w->arena);
    memset(w, 0, sizeof *w);
}

/* Of all experts of a stack. */
static int64_t stack_bytes(const struct sv_weights *w, const struct sv_experts *x, int32_t n_rows)
{
    int64_t sum = 0;
    for (int32_t e = 0; e < x->n; e++)
        sum += sv_dev_weight_bytes(w->dev, &x->w[e], n_rows);
    return sum;
}

static int64_t taken_bytes(const struct sv_weights *w, const struct sv_taken *t, int32_t n_rows)
{
    return t->experts ? stack_bytes(w, t->experts, n_rows)
                      : sv_dev_weight_bytes(w->dev, &t->w, n_rows);
}

void sv_weights_add_reads(const struct sv_weights *w, enum sv_role only, struct sv_reads *sum)
{
    for (int32_t i = 0; i < w->n_taken; i++) {
        const struct sv_taken *t = &w->taken[i];
        if (only ? t->w.role != only : t->w.role == SV_ROLE_EMBED)
            continue;
        if (t->experts && t->n_chosen) {
            sum->experts.bytes += stack_bytes(w, t->experts, 1) / t->experts->n;
            sum->experts.published += t->n_bytes / t->experts->n;
            sum->experts.n_layers += t->w.role == SV_ROLE_EXPERT_DOWN;
            sum->experts.n_chosen += t->w.role == SV_ROLE_EXPERT_DOWN ? t->n_chosen : 0;
            continue;
        }
        sum->published += t->n_bytes;
        for (int32_t n = 1; n <= SV_READ_ROWS; n++)
            sum->bytes[n] += taken_bytes(w, t, n);
        sum->bytes[0] += taken_bytes(w, t, SV_READ_ROWS + 1);
    }
}

int64_t sv_weights_kept_bytes(const struct sv_weights *w)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < w->n_taken; i++)
        sum += taken_bytes(w, &w->taken[i], SV_READ_ROWS + 1);
    return sum;
}

void sv_weights_note(struct sv_weights *w, const struct sv_taken *t)
{
    SV_REQUIRE(w->n_taken < w->cap);
    w->taken[w->n_taken++] = *t;
    w->n_bytes += t->n_bytes;
}

/* ---------------------------------------------------------------- one tensor */

/* Small f32 tensors that a model reads in another form than files have. Decays must be below 0. */
static int make_converted(struct sv_weights *w, struct sv_weight *shape, struct sv_weight *out,
                          struct sv_err *err)
{
    struct sv_rng rng = {(uint64_t)w->n_taken + 1};
    const size_t n = (size_t)shape->rows * (size_t)shape->cols;
    float *data = sv_arena_alloc(&w->arena, n * sizeof *data);
    if (!data)
        return sv_fail(err, SV_ENOMEM, -1, "random weights: out of memory");
    for (size_t i = 0; i < n; i++)
        data[i] = 0.2f * sv_rng_normal(&rng) - (shape->role == SV_ROLE_GDN_DECAY ? 1 : 0);
    shape->fmt.elem = SV_F32;
    shape->data = data;
    int rc = sv_dev_upload_weight(w->dev, shape, out, err);
    if (!rc)
        sv_weights_note(w, &(struct sv_taken){.w = *out, .n_bytes = (int64_t)(n * sizeof *data)});
    return rc;
}

/* No checkpoint: numbers as in a fresh model, around 1 for norms. */
static int make_random(struct sv_weights *w, struct sv_weight *shape, enum sv_form form,
                       struct sv_weight *out, struct sv_err *err)
{
    const bool norm = sv_role_is_norm(shape->role);
    if (w->n_taken == w->cap)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "random weights: more than %d tensors",
                       MAX_RANDOM_TENSORS);
    if (form == SV_FORM_F32 || form == SV_FORM_DECAY || form == SV_FORM_CONV)
        return make_converted(w, shape, out, err);
    shape->fmt.elem = form == SV_FORM_ONE_PLUS ? SV_F32 : SV_BF16; /* as read from a file */
    int rc = sv_dev_random_weight(w->dev, shape, norm ? 0.01f : 0.02f, norm ? 1 : 0,
                                  (uint64_t)w->n_taken + 1, out, err);
    if (!rc)
        sv_weights_note(
            w, &(struct sv_taken){.w = *out, .n_bytes = 2 * (int64_t)shape->rows * shape->cols});
    return rc;
}

int sv_weights_keep(struct sv_weights *w, const struct sv_weight *host, void *copy, int64_t n_bytes,
                    struct sv_weight *out, struct sv_err *err)
{
    int rc = sv_dev_upload_weight(w->dev, host, out, err);
    const bool in_place = !rc && copy && out->data == copy;
    if (!rc && copy && !in_place)
        rc = sv_dev_sync(w->dev, err); /* it may still be read */
    if (out->data)
        sv_weights_note(
            w, &(struct sv_taken){.w = *out, .n_bytes = n_bytes, .host = in_place ? copy : NULL});
    if (!in_place)
        sv_free(copy);
    return rc;
}

int sv_weights_take(struct sv_weights *w, const struct sv_tensor_spec *s, struct sv_weight *out,
                    struct sv_err *err)
{
    const size_t n_copy = sv_part_copy_bytes(w, s);
    void *copy = n_copy ? sv_alloc(n_copy) : NULL;
    struct sv_weight host;
    int64_t n_bytes = 0;
    *out = (struct sv_weight){0};
    if (n_copy && !copy)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for a part of %s", s->name);
    int rc = sv_part_find(w, s, &host, copy, &n_bytes, err);
    if (!rc && host.rows && w->ckpt)
        return sv_weights_keep(w, &host, copy, n_bytes, out, err);
    sv_free(copy);
    return rc || !host.rows ? rc : make_random(w, &host, s->form, out, err);
}

/* ---------------------------------------------------------------- a model's weights */

struct load {
    struct sv_weights *w;
    struct sv_place (*place)(void *user, const struct sv_tensor_spec *spec);
    void *user;
    struct sv_slice own, heads; /* of a layer's experts, and heads where a file has them separate */
    struct sv_weight *matrix;   /* of those being collected */
    char *copy;                 /* of this rank's parts, concatenated; or NULL */
    size_t copy_bytes;          /* of each */
    int64_t expert_bytes;
    int32_t n_chosen;
    struct sv_err *err;
};

/* As bf16, or as MXFP4 by the configuration. */
static int make_random_experts(struct load *l, struct sv_experts *x)
{
    struct sv_weights *w = l->w;
    struct sv_weight *shape = l->matrix;
    const struct sv_quant codes = {
        .code = SV_CODE_MXFP4, .rows = x->rows, .cols = x->cols, .block_rows = 1, .block_cols = 32};
    shape->fmt.elem = SV_BF16;
    if (w->cfg->mxfp4_experts && sv_dev_takes_codes(w->dev, &codes, shape->role))
        shape->quant = &codes;
    int rc = sv_dev_random_experts(w->dev, shape, x->n, 0.02f, (uint64_t)w->n_taken + 1, x, l->err);
    shape->quant = NULL;
    l->expert_bytes = !rc && x->w[0].fmt.elem == SV_U8 ? x->n * sv_quant_bytes(&codes)
                                                       : 2 * (int64_t)x->n * x->rows * x->cols;
    return rc;
}

static int upload_experts(struct load *l, struct sv_experts *x, bool *in_place)
{
    struct sv_weights *w = l->w;
    struct sv_weight *host = l->matrix;
    if (!w->ckpt)
        return make_random_experts(l, x);
    int rc = sv_dev_upload_experts(w->dev, host, x->n, x, l->err);
    for (int32_t e = 0; e < x->n && !rc; e++)
        *in_place |= l->copy && x->w[e].data == host[e].data;
    if (rc || !l->copy || *in_place)
        return rc;
    return sv_dev_sync(w->dev, l->err); /* it may still be read */
}

static bool is_expert(enum sv_role role)
{
    return role >= SV_ROLE_EXPERT_GATE && role <= SV_ROLE_EXPERT_DOWN;
}

/* The numbers of this rank's experts, or heads. */
static struct sv_slice own_of(const struct load *l, enum sv_role role)
{
    return is_expert(role) ? l->own : l->heads;
}

/* Experts or heads come one by one; with the last all become weights of the device. */
static int take_expert(struct load *l, const struct sv_tensor_spec *s, struct sv_experts *x)
{
    struct sv_weights *w = l->w;
    bool in_place = false;
    const int32_t first = own_of(l, s->role).first, e = s->expert - first;
    SV_REQUIRE(e >= 0 && e < x->n);
    const size_t n_copy = (sv_part_copy_bytes(w, s) + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
    if (e == 0) { /* one allocation for all, by the first one's size */
        l->expert_bytes = 0;
        l->copy_bytes = n_copy;
        if (n_copy && !(l->copy = sv_alloc((size_t)x->n * n_copy)))
            return sv_fail(l->err, SV_ENOMEM, -1, "no memory for parts of %s", s->name);
    }
    void *copy = l->copy ? l->copy + (size_t)e * n_copy : NULL;
    const bool alike = n_copy == l->copy_bytes;
    int rc = alike ? sv_part_find(w, s, &l->matrix[e], copy, &l->expert_bytes, l->err) : SV_OK;
    if (!rc && (!alike || l->matrix[e].fmt.elem != l->matrix[0].fmt.elem))
        rc = sv_fail(l->err, SV_EUNSUPPORTED, -1, "%s is quantized in another way than expert %d",
                     s->name, first);
    if (!rc && e + 1 < x->n)
        return rc;
    if (!rc)
        rc = upload_experts(l, x, &in_place);
    if (!rc)
        sv_weights_note(w, &(struct sv_taken){.w.role = s->role,
                                              .n_bytes = l->expert_bytes,
                                              .experts = x,
                                              .n_chosen = is_expert(s->role) ? l->n_chosen : 0,
                                              .host = in_place ? l->copy : NULL});
    if (!in_place)
        sv_free(l->copy);
    l->copy = NULL;
    return rc;
}

/* No checkpoint: every step-th output of each expert. */
static int make_random_packed(struct load *l, struct sv_tensor_spec s, int step, struct sv_place to)
{
    int rc = SV_OK;
    s.rows /= step;
    if (to.w) {
        struct sv_weight bias;
        int64_t n_bytes = 0;
        rc = sv_part_find(l->w, &s, &bias, NULL, &n_bytes, l->err);
        bias.cols *= l->own.n;
        return rc || !bias.rows ? rc : make_random(l->w, &bias, s.form, to.w, l->err);
    }
    for (int32_t e = 0; e < l->own.n && !rc; e++) {
        s.expert = l->own.first + e;
        rc = take_expert(l, &s, to.experts);
    }
    return rc;
}

/* All experts of a layer at once; one tensor may hold gate and up. */
static int take_packed(struct load *l, const struct sv_tensor_spec *s)
{
    const int bias = s->role & SV_ROLE_BIAS;
    const bool both = s->role - bias == SV_ROLE_EXPERT_GATE_UP;
    int rc = SV_OK;
    if (s->pack == SV_PACK_MXFP4_SCALES)
        return SV_OK; /* taken with the blocks */
    for (int k = 0; k < 1 + both && !rc; k++) {
        struct sv_tensor_spec one = *s;
        if (both)
            one.role = (k ? SV_ROLE_EXPERT_UP : SV_ROLE_EXPERT_GATE) | bias;
        const struct sv_place to = l->place(l->user, &one);
        SV_REQUIRE(to.w || to.experts);
        rc = l->w->ckpt ? sv_weights_take_packed(l->w, &one, k, 1 + both, to, l->n_chosen, l->err)
                        : make_random_packed(l, one, 1 + both, to);
    }
    return rc;
}

/* One tensor of a layer becomes two matrices of each head. */
static int take_heads(struct load *l, const struct sv_tensor_spec *s)
{
    int rc = SV_OK;
    for (int k = 0; k < 2 && !rc; k++) {
        struct sv_tensor_spec one = *s;
        one.role = k ? SV_ROLE_V_UP : SV_ROLE_K_UP;
        const struct sv_place to = l->place(l->user, &one);
        SV_REQUIRE(to.experts);
        rc = sv_weights_take_heads(l->w, &one, k, to.experts, l->err);
    }
    return rc;
}

static int load_one(void *user, const struct sv_tensor_spec *spec)
{
    struct load *l = user;
    if (spec->role == SV_ROLE_KV_B)
        return take_heads(l, spec);
    if (spec->n_experts && spec->expert < 0)
        return take_packed(l, spec);
    const struct sv_slice own = own_of(l, spec->role);
    if (spec->expert >= 0 && (spec->expert < own.first || spec->expert >= own.first + own.n))
        return SV_OK; /* another rank's */
    const struct sv_place to = l->place(l->user, spec);
    SV_REQUIRE(to.w || to.experts); /* a row of the table without a reader in the model */
    return to.w ? sv_weights_take(l->w, spec, to.w, l->err) : take_expert(l, spec, to.experts);
}

int sv_weights_load(struct sv_weights *w, const struct sv_config *cfg, int32_t n_taps,
                    struct sv_place (*place)(void *user, const struct sv_tensor_spec *spec),
                    void *user, struct sv_err *err)
{
    struct load l = {.w = w, .place = place, .user = user, .n_chosen = cfg->n_chosen, .err = err};
    w->cfg = cfg;
    l.own = sv_part_experts(w, cfg->n_experts);
    l.heads = sv_part_heads(w, cfg->n_heads);
    if (l.own.n < cfg->n_experts) /* on average */
        l.n_chosen = (cfg->n_chosen * l.own.n + cfg->n_experts - 1) / cfg->n_experts;
    const int32_t n = cfg->kv_by_head && l.heads.n > l.own.n ? l.heads.n : l.own.n;
    if (n)
        l.matrix = sv_arena_alloc(&w->arena, (size_t)n * sizeof *l.matrix);
    if (n && !l.matrix)
        return sv_fail(err, SV_ENOMEM, -1, "table of %d matrices", n);
    return sv_config_each_tensor(cfg, n_taps, load_one, &l);
}

/* Which of a row's three positions rotates a pair: height and width have every third of the first
 * ones. Text has one position, enough for a device without images. */
static int take_axes(struct sv_weights *w, struct sv_rope_table *t, const struct sv_config *cfg,
                     struct sv_err *err)
{
    const int32_t half = cfg->rot_dim / 2, *section = cfg->mrope_section;
    if (!section[0] || !sv_dev_has_vision(w->dev))
        return SV_OK;
    uint8_t *axis = sv_arena_alloc(&w->arena, (size_t)half);
    if (!axis)
        return sv_fail(err, SV_ENOMEM, -1, "rotary table");
    for (int32_t j = 0; j < half; j++) {
        const int k = j % 3;
        axis[j] = k && j < 3 * section[k] ? (uint8_t)k : 0;
    }
    t->axis = axis;
    return SV_OK;
}

static int take_rope(struct sv_weights *w, struct sv_rope_table *t, const struct sv_config *cfg,
                     int32_t n_positions, struct sv_err *err)
{
    size_t half = (size_t)n_positions * (size_t)(cfg->rot_dim / 2);
    if (2 * half > INT32_MAX)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "rotary table for %d positions of %d: more than 2^31 numbers", n_positions,
                       cfg->rot_dim);
    float *host = sv_arena_alloc(&w->arena, 2 * half * sizeof *host);
    if (!host)
        return sv_fail(err, SV_ENOMEM, -1, "rotary table for %d positions", n_positions);
    sv_rope_fill(&cfg->rope, cfg->rot_dim, n_positions, host);
    const struct sv_weight table = {
        .fmt.elem = SV_F32, .rows = 1, .cols = (int32_t)(2 * half), .data = host};
    int rc = sv_dev_upload_weight(w->dev, &table, &w->rope, err);
    if (rc)
        return rc;
    *t = (struct sv_rope_table){
        .cos = w->rope.data,
        .sin = (const float *)w->rope.data + half,
        .max_pos = n_positions,
        .rot_dim = cfg->rot_dim,
    };
    return take_axes(w, t, cfg, err);
}

static int open_experts(struct sv_experts *x, struct sv_weights *w, int32_t n, int32_t rows,
                        int32_t cols, struct sv_err *err)
{
    *x = (struct sv_experts){.n = n, .rows = rows, .cols = cols};
    x->w = sv_arena_alloc(&w->arena, (size_t)n * sizeof *x->w);
    if (!x->w)
        return sv_fail(err, SV_ENOMEM, -1, "table of %d matrices", n);
    memset(x->w, 0, (size_t)n * sizeof *x->w);
    return SV_OK;
}

static int open_moe(struct sv_moe *m, struct sv_weights *w, const struct sv_config *c,
                    struct sv_err *err)
{
    const struct sv_slice own = sv_part_experts(w, c->n_experts);
    const int32_t n = own.n, inter = c->moe_intermediate_size, hidden = c->hidden_size;
    *m = (struct sv_moe){.n_experts = c->n_experts,
                         .own = n < c->n_experts ? own : (struct sv_slice){0},
                         .k = c->n_chosen,
                         .norm = c->router_sigmoid ? SV_ROUTER_SIGMOID
                                 : c->norm_topk    ? SV_ROUTER_OVER_CHOSEN
                                                   : SV_ROUTER_OVER_ALL,
                         .sigmoid = {.n_group = c->n_group,
                                     .topk_group = c->topk_group,
                                     .renorm = c->norm_topk,
                                     .scale = c->routed_scale},
                         .act = c->expert_limit > 0 ? SV_EXPERT_CLAMPED : SV_EXPERT_SILU,
                         .limit = c->expert_limit,
                         .alpha = 1.702f,
                         .shared.intermediate = c->shared_intermediate_size};
    int rc = sv_dev_check_moe(w->dev, err);
    if (!rc)
        rc = open_experts(&m->gate, w, n, inter, hidden, err);
    if (!rc)
        rc = open_experts(&m->up, w, n, inter, hidden, err);
    return rc ? rc : open_experts(&m->down, w, n, hidden, inter, err);
}

static void open_attn(struct sv_layer *l, const struct sv_config *cfg, int32_t i,
                      const struct sv_rope_table *rope)
{
    l->mixer = SV_MIXER_ATTN;
    l->attn = (struct sv_attn){
        .n_heads = cfg->n_heads,
        .n_kv_heads = cfg->n_kv_heads,
        .head_dim = cfg->head_dim,
        .gated = cfg->attn_gate,
        .rope = *rope,
        .mask = SV_MASK_CAUSAL,
        .window = cfg->layer_kind[i] == SV_LAYER_SLIDING ? cfg->sliding_window : 0,
        .scale = 1.0f / sqrtf((float)cfg->head_dim),
    };
}

/* A checkpoint's scale of a layer's cached keys or values: one positive number. */
static float cache_scale(const struct sv_weights *w, int32_t layer, char kind)
{
    static const char *const pattern[] = {"layers.%d.self_attn.%c_proj.%c_scale",
                                          "layers.%d.self_attn.%c_scale"};
    for (int i = 0; i < 2 && w->ckpt; i++) {
        char name[64];
        snprintf(name, sizeof name, pattern[i], layer, kind, kind);
        const struct sv_host_tensor *t = sv_ckpt_find(w->ckpt, name);
        if (t)
            return sv_cache_scale_of(t);
    }
    return 0;
}

static int open_gdn(struct sv_layer *l, struct sv_weights *w, const struct sv_config *cfg,
                    struct sv_err *err)
{
    l->mixer = SV_MIXER_GDN;
    l->gdn = (struct sv_gdn){
        .shape = {.n_k_heads = cfg->gdn_k_heads,
                  .n_v_heads = cfg->gdn_v_heads,
                  .k_dim = cfg->gdn_k_dim,
                  .v_dim = cfg->gdn_v_dim,
                  .max_block = 1,
                  .conv_dtype = sv_dev_compute_dtype(w->dev)},
        .n_in = cfg->gdn_fused ? 2 : 4,
    };
    return sv_dev_check_gdn(w->dev, cfg->gdn_k_dim, err);
}

static int open_mla(struct sv_layer *l, struct sv_weights *w, const struct sv_config *c,
                    const struct sv_rope_table *rope, struct sv_err *err)
{
    l->mixer = SV_MIXER_MLA;
    l->mla = (struct sv_mla){
        .n_heads = c->n_heads,
        .head_dim = c->head_dim,
        .latent = c->kv_lora_rank,
        .v_dim = c->v_dim,
        .q_lora = c->q_lora_rank,
        .rope = *rope,
        .interleaved = c->rope_interleaved,
        .scale = sv_rope_score_factor(&c->rope) / sqrtf((float)c->head_dim),
        .eps = c->latent_eps,
    };
    int rc = sv_dev_check_mla(w->dev, err);
    if (!rc)
        rc = open_experts(&l->mla.k_up, w, c->n_heads, c->kv_lora_rank, c->nope_dim, err);
    return rc ? rc : open_experts(&l->mla.v_up, w, c->n_heads, c->v_dim, c->kv_lora_rank, err);
}

/* All but the weights. */
static int open_layer(struct sv_layer *l, struct sv_weights *w, const struct sv_config *cfg,
                      int32_t i, const struct sv_rope_table *rope, struct sv_err *err)
{
    *l = (struct sv_layer){.ffn = cfg->layer_moe[i] ? SV_FFN_MOE : SV_FFN_DENSE};
    int rc = SV_OK;
    if (cfg->layer_kind[i] == SV_LAYER_GDN)
        rc = open_gdn(l, w, cfg, err);
    else if (cfg->layer_kind[i] == SV_LAYER_MLA)
        rc = open_mla(l, w, cfg, rope, err);
    else
        open_attn(l, cfg, i, rope);
    if (l->mixer == SV_MIXER_ATTN) {
        l->attn.k_scale = cache_scale(w, i, 'k');
        l->attn.v_scale = cache_scale(w, i, 'v');
    }
    if (rc)
        return rc;
    if (l->ffn == SV_FFN_MOE)
        return open_moe(&l->moe, w, cfg, err);
    l->mlp = (struct sv_mlp){.intermediate = cfg->intermediate_size};
    return SV_OK;
}

int sv_stack_open(struct sv_stack *st, struct sv_weights *w, const struct sv_config *cfg,
                  int32_t n_positions, struct sv_err *err)
{
    const struct sv_config own = sv_part_config(w, cfg);
    struct sv_rope_table rope = {0};
    *st = (struct sv_stack){
        .n_layers = cfg->n_layers,
        .hidden = cfg->hidden_size,
        .eps = cfg->rms_eps,
        .joins = sv_dev_ranks(w->dev).n > 1,
    };
    st->layers = sv_arena_alloc(&w->arena, (size_t)cfg->n_layers * sizeof *st->layers);
    if (!st->layers)
        return sv_fail(err, SV_ENOMEM, -1, "layer table");
    int rc = take_rope(w, &rope, cfg, n_positions, err);
    for (int32_t i = 0; i < cfg->n_layers && !rc; i++)
        rc = open_layer(&st->layers[i], w, &own, i, &rope, err);
    return rc;
}
