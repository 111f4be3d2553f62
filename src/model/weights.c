/*
 * weights.c - from named host tensors to device weights: shape checks, upload, ownership.
 *
 * Called by target.c and by the drafter at open. On the CPU the mapped file is used in place, so
 * the checkpoint must outlive the weights. Must not run during a step.
 */
#include "model/impl.h"

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

/* ---------------------------------------------------------------- what a rank takes */

static int32_t gcd(int32_t a, int32_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* Weights that share a scale, of all tensors; a scale of a whole row or column binds nothing. */
static int32_t group_of(const struct sv_ckpt *c)
{
    int32_t group = 1;
    for (int32_t i = 0; c && i < c->n_tensors; i++) {
        const struct sv_quant *q = &c->tensors[i].quant;
        if (!q->code)
            continue;
        const int32_t block = sv_quant_block(q->code),
                      side[] = {block                     ? block
                                : q->block_cols < q->cols ? q->block_cols
                                                          : 1,
                                q->block_rows < q->rows ? q->block_rows : 1};
        for (int k = 0; k < 2; k++)
            if (side[k] > 1)
                group = group / gcd(group, side[k]) * side[k];
    }
    return group;
}

int sv_weights_divide(struct sv_weights *w, const struct sv_config *cfg, int32_t n_taps,
                      const char *what, struct sv_err *err)
{
    const struct sv_ranks ranks = sv_dev_ranks(w->dev);
    if (ranks.n == 1)
        return SV_OK;
    w->shape = (struct sv_shard_shape){.n_heads = cfg->n_heads,
                                       .n_kv_heads = cfg->n_kv_heads,
                                       .head_dim = cfg->head_dim,
                                       .intermediate = cfg->intermediate_size,
                                       .vocab = cfg->vocab_size,
                                       .n_taps = n_taps * cfg->hidden_size,
                                       .group = group_of(w->ckpt)};
    if (cfg->n_experts) {
        w->shape.expert_intermediate = cfg->moe_intermediate_size;
        w->shape.shared_intermediate = cfg->shared_intermediate_size;
    }
    for (int32_t i = 0; i < cfg->n_layers; i++)
        if (cfg->layer_kind[i] == SV_LAYER_GDN)
            w->shape.whole = "the gated delta rule";
        else if (cfg->layer_kind[i] == SV_LAYER_MLA)
            w->shape.whole = "latent attention";
    return sv_shard_check(&w->shape, ranks.n, what, err);
}

/* The geometry of this rank's layers. */
static struct sv_config own_part(const struct sv_weights *w, const struct sv_config *cfg)
{
    const struct sv_ranks ranks = sv_dev_ranks(w->dev);
    struct sv_config own = *cfg;
    if (ranks.n == 1)
        return own;
    own.n_heads = sv_shard_heads(&w->shape, ranks).n;
    own.n_kv_heads = sv_shard_kv_heads(&w->shape, ranks).n;
    own.intermediate_size = sv_shard_inner(&w->shape, cfg->intermediate_size, ranks).n;
    own.moe_intermediate_size = sv_shard_inner(&w->shape, cfg->moe_intermediate_size, ranks).n;
    own.shared_intermediate_size =
        sv_shard_inner(&w->shape, cfg->shared_intermediate_size, ranks).n;
    return own;
}

/* The columns of a matrix, in memory that is there, or of their own. */
static int copy_columns(struct sv_weight *host, struct sv_slice cols, const char *name, void **copy,
                        struct sv_err *err)
{
    const size_t elem = sv_dtype_bytes(host->fmt.elem), n = (size_t)cols.n * elem,
                 ld = (size_t)host->cols * elem;
    if (!*copy)
        *copy = sv_alloc((size_t)host->rows * n);
    char *to = *copy;
    const char *from = (const char *)host->data + (size_t)cols.first * elem;
    if (!to)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for columns of %s", name);
    for (int32_t r = 0; r < host->rows; r++)
        memcpy(to + (size_t)r * n, from + (size_t)r * ld, n);
    host->data = to;
    host->cols = cols.n;
    return SV_OK;
}

/* f32, and small: what a model reads in another form than files have it. Decays must be below 0. */
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

/* No checkpoint: numbers as in a fresh model, around one where they scale (norms). */
static int make_random(struct sv_weights *w, struct sv_weight *shape, enum sv_form form,
                       struct sv_weight *out, struct sv_err *err)
{
    bool norm = sv_role_is_norm(shape->role) || shape->role == SV_ROLE_GDN_NORM;
    if (w->n_taken == w->cap)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "random weights: more than %d tensors",
                       MAX_RANDOM_TENSORS);
    if (form == SV_FORM_F32 || form == SV_FORM_DECAY || form == SV_FORM_CONV)
        return make_converted(w, shape, out, err);
    shape->fmt.elem = SV_BF16;
    int rc = sv_dev_random_weight(w->dev, shape, norm ? 0.01f : 0.02f, norm ? 1 : 0,
                                  (uint64_t)w->n_taken + 1, out, err);
    if (!rc)
        sv_weights_note(
            w, &(struct sv_taken){.w = *out, .n_bytes = 2 * (int64_t)shape->rows * shape->cols});
    return rc;
}

/* Whether a product or lookup gets bf16 at most, so that values may be rounded to it. */
static bool rounds_to_bf16(const struct sv_weights *w, enum sv_role role)
{
    const bool looked_up = role == SV_ROLE_EMBED || role == SV_ROLE_HEAD;
    return sv_dev_compute_dtype(w->dev) == SV_BF16 &&
           (!looked_up || sv_dev_act_dtype(w->dev) == SV_BF16);
}

/* A matrix in fewer bits: its codes where the device takes them. Else its values, or those of this
 * rank's part of it: as bf16 where all of them fit or are rounded to it, else f32; the memory is
 * the weights'. */
static int take_codes(struct sv_weights *w, const struct sv_host_tensor *t,
                      const struct sv_cut *cut, struct sv_weight *host, struct sv_err *err)
{
    if (cut->axis == SV_CUT_NONE && sv_dev_takes_codes(w->dev, &t->quant, host->role)) {
        host->fmt.elem = SV_U8;
        host->quant = &t->quant;
        return SV_OK;
    }
    const bool half = sv_quant_fits_bf16(t->quant.code) || rounds_to_bf16(w, host->role);
    const size_t whole = (size_t)host->cols;
    const int32_t row0 = cut->axis == SV_CUT_ROWS ? cut->range.first : 0,
                  col0 = cut->axis == SV_CUT_COLS ? cut->range.first : 0;
    host->rows = cut->axis == SV_CUT_ROWS ? cut->range.n : host->rows;
    host->cols = cut->axis == SV_CUT_COLS ? cut->range.n : host->cols;
    const size_t cols = (size_t)host->cols, n = (size_t)host->rows * cols;
    const bool in_place = !half && cols == whole;
    void *data = sv_arena_alloc(&w->arena, n * (half ? sizeof(uint16_t) : sizeof(float)));
    float *row = in_place ? NULL : sv_arena_alloc(&w->arena, whole * sizeof *row);
    if (!data || (!in_place && !row))
        return sv_fail(err, SV_ENOMEM, -1, "%s: no memory for %zu values of '%s'", t->file, n,
                       t->name);
    host->fmt.elem = half ? SV_BF16 : SV_F32;
    if (cols == whole)
        sv_quant_expand(&t->quant, row0, host->rows, host->fmt.elem, data, row);
    for (int32_t r = 0; cols != whole && r < host->rows; r++) {
        sv_quant_rows(&t->quant, r, 1, row);
        for (size_t i = 0; half && i < cols; i++)
            ((uint16_t *)data)[(size_t)r * cols + i] = sv_f32_to_bf16(row[col0 + (int32_t)i]);
        if (!half)
            memcpy((float *)data + (size_t)r * cols, row + col0, cols * sizeof *row);
    }
    host->data = data;
    return SV_OK;
}

/* One expert's matrix in a tensor of all. */
static void part_of_experts(struct sv_weight *host, const struct sv_tensor_spec *s,
                            const struct sv_host_tensor *t, int64_t *n_bytes)
{
    const int64_t matrix = s->rows * s->cols * (int64_t)sv_dtype_bytes(t->dtype);
    const int64_t n = s->form == SV_FORM_EXPERT ? 1 : 2,
                  at = n * s->expert + (s->form == SV_FORM_UP);
    host->data = (const char *)t->data + at * matrix;
    *n_bytes += matrix - (int64_t)t->n_bytes;
}

/* The tensor in the checkpoint, as host weight, and this rank's part of it. *copy: memory for
 * columns of it, or NULL; then what was allocated for them, if they are needed. No rows: only
 * another rank has it. */
static int find(struct sv_weights *w, const struct sv_tensor_spec *s, struct sv_weight *host,
                void **copy, int64_t *n_bytes, struct sv_err *err)
{
    const bool vector = s->cols == 0;
    const struct sv_cut cut =
        sv_shard_cut(&w->shape, s->role, (int32_t)s->rows, (int32_t)s->cols, sv_dev_ranks(w->dev));
    *host = (struct sv_weight){.role = s->role,
                               .rows = vector ? 1 : (int32_t)s->rows,
                               .cols = (int32_t)(vector ? s->rows : s->cols)};
    if (s->form == SV_FORM_CONV) { /* as a model reads it */
        host->rows = (int32_t)s->cols;
        host->cols = (int32_t)s->rows;
    }
    if (cut.axis == SV_CUT_ABSENT) {
        host->rows = 0;
        return SV_OK;
    }
    if (!w->ckpt) {
        if (cut.axis != SV_CUT_NONE)
            *(cut.axis == SV_CUT_ROWS && !vector ? &host->rows : &host->cols) = cut.range.n;
        return SV_OK;
    }
    const struct sv_host_tensor *t = sv_ckpt_find(w->ckpt, s->name);
    if (!t)
        return sv_fail(err, SV_EFORMAT, -1, "tensor %s is missing", s->name);
    int64_t dim[4];
    const int32_t n_dims = sv_tensor_shape(s, dim);
    if (t->n_dims != n_dims || memcmp(t->dim, dim, (size_t)n_dims * sizeof *dim))
        return sv_fail(err, SV_EFORMAT, -1, "tensor %s has not the shape of [%d, %d]", s->name,
                       host->rows, host->cols);
    host->fmt.elem = t->dtype;
    host->data = t->data;
    SV_REQUIRE(cut.axis == SV_CUT_NONE || !s->form);
    *n_bytes += (int64_t)t->n_bytes;
    if (t->quant.code && s->form)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%s: tensor '%s' is quantized; of this one only "
                       "f32, f16 and bf16 are supported",
                       t->file, t->name);
    if (cut.axis != SV_CUT_NONE) {
        const int32_t whole = cut.axis == SV_CUT_COLS || vector ? host->cols : host->rows;
        *n_bytes += (int64_t)t->n_bytes / whole * cut.range.n - (int64_t)t->n_bytes;
    }
    if (t->quant.code)
        return take_codes(w, t, &cut, host, err);
    if (s->form >= SV_FORM_EXPERT)
        part_of_experts(host, s, t, n_bytes);
    else if (s->form && !t->as_read)
        return sv_tensor_convert(s, w->cfg, t, &w->arena, host, err);
    if (cut.axis == SV_CUT_COLS)
        return copy_columns(host, cut.range, s->name, copy, err);
    if (cut.axis == SV_CUT_ROWS) {
        const size_t row = (vector ? 1 : (size_t)host->cols) * sv_dtype_bytes(t->dtype);
        host->data = (const char *)t->data + (size_t)cut.range.first * row;
        *(vector ? &host->cols : &host->rows) = cut.range.n;
    }
    return SV_OK;
}

int sv_weights_take(struct sv_weights *w, const struct sv_tensor_spec *s, struct sv_weight *out,
                    struct sv_err *err)
{
    struct sv_weight host;
    void *copy = NULL;
    int64_t n_bytes = 0;
    int rc = find(w, s, &host, &copy, &n_bytes, err);
    *out = (struct sv_weight){0};
    if (rc || !host.rows)
        return rc;
    if (!w->ckpt)
        return make_random(w, &host, s->form, out, err);
    rc = sv_dev_upload_weight(w->dev, &host, out, err);
    const bool in_place = !rc && copy && out->data == copy;
    if (!rc && copy && !in_place)
        rc = sv_dev_sync(w->dev, err); /* it may still be read */
    if (!rc || in_place)
        sv_weights_note(
            w, &(struct sv_taken){.w = *out, .n_bytes = n_bytes, .host = in_place ? copy : NULL});
    if (!in_place)
        sv_free(copy);
    return rc;
}

/* ---------------------------------------------------------------- a model's weights */

struct load {
    struct sv_weights *w;
    struct sv_place (*place)(void *user, const struct sv_tensor_spec *spec);
    void *user;
    struct sv_weight *expert; /* (n_experts) of those that are being collected */
    char *columns;            /* of theirs that are this rank's, (n_experts, rows, cols), or NULL */
    int64_t expert_bytes;
    int32_t n_chosen;
    struct sv_err *err;
};

static int upload_experts(struct load *l, struct sv_experts *x, bool *in_place)
{
    struct sv_weights *w = l->w;
    struct sv_weight *host = l->expert;
    if (!w->ckpt) {
        host[0].fmt.elem = SV_BF16;
        l->expert_bytes = 2 * (int64_t)x->n * x->rows * x->cols;
        return sv_dev_random_experts(w->dev, host, x->n, 0.02f, (uint64_t)w->n_taken + 1, x,
                                     l->err);
    }
    int rc = sv_dev_upload_experts(w->dev, host, x->n, x, l->err);
    for (int32_t e = 0; e < x->n && !rc; e++)
        *in_place |= l->columns && x->w[e].data == host[e].data;
    if (rc || !l->columns || *in_place)
        return rc;
    return sv_dev_sync(w->dev, l->err); /* the columns may still be read */
}

static bool is_expert(enum sv_role role)
{
    return role >= SV_ROLE_EXPERT_GATE && role <= SV_ROLE_EXPERT_DOWN;
}

/* Experts come one by one, or heads, and become weights of the device together with the last one.
 */
static int take_expert(struct load *l, const struct sv_tensor_spec *s, struct sv_experts *x)
{
    struct sv_weights *w = l->w;
    bool in_place = false;
    SV_REQUIRE(s->expert < x->n);
    if (s->expert == 0)
        l->expert_bytes = 0;
    /* One piece of memory for all, by what the first one takes. */
    const struct sv_host_tensor *t = w->ckpt ? sv_ckpt_find(w->ckpt, s->name) : NULL;
    const size_t stride = t ? (size_t)x->rows * (size_t)x->cols * sv_dtype_bytes(t->dtype) : 0;
    const bool cut = t && !t->quant.code && x->cols < s->cols;
    if (cut && s->expert == 0 && !(l->columns = sv_alloc((size_t)x->n * stride)))
        return sv_fail(l->err, SV_ENOMEM, -1, "no memory for columns of %s", s->name);
    void *copy = cut ? l->columns + (size_t)s->expert * stride : NULL;
    int rc = find(w, s, &l->expert[s->expert], &copy, &l->expert_bytes, l->err);
    if (!rc && s->expert + 1 < x->n)
        return rc;
    if (!rc)
        rc = upload_experts(l, x, &in_place);
    if (!rc)
        sv_weights_note(w, &(struct sv_taken){.w.role = s->role,
                                              .n_bytes = l->expert_bytes,
                                              .experts = x,
                                              .n_chosen = is_expert(s->role) ? l->n_chosen : 0,
                                              .host = in_place ? l->columns : NULL});
    if (!in_place)
        sv_free(l->columns);
    l->columns = NULL;
    return rc;
}

/* No checkpoint: every step-th output of each expert. */
static int make_random_packed(struct load *l, struct sv_tensor_spec s, int step, struct sv_place to)
{
    int rc = SV_OK;
    s.rows /= step;
    if (to.w) {
        s.rows *= s.n_experts;
        return sv_weights_take(l->w, &s, to.w, l->err);
    }
    for (s.expert = 0; s.expert < s.n_experts && !rc; s.expert++)
        rc = take_expert(l, &s, to.experts);
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
    if (spec->n_experts && spec->expert < 0 && sv_dev_ranks(l->w->dev).n > 1)
        return sv_fail(l->err, SV_EUNSUPPORTED, -1,
                       "tensor parallel does not divide experts that one tensor holds (%s) yet; it "
                       "runs on 1 rank",
                       spec->name);
    if (spec->n_experts && spec->expert < 0)
        return take_packed(l, spec);
    const struct sv_place to = l->place(l->user, spec);
    SV_REQUIRE(to.w || to.experts); /* a row of the table that no model code reads */
    return to.w ? sv_weights_take(l->w, spec, to.w, l->err) : take_expert(l, spec, to.experts);
}

int sv_weights_load(struct sv_weights *w, const struct sv_config *cfg, int32_t n_taps,
                    struct sv_place (*place)(void *user, const struct sv_tensor_spec *spec),
                    void *user, struct sv_err *err)
{
    struct load l = {.w = w, .place = place, .user = user, .n_chosen = cfg->n_chosen, .err = err};
    const int32_t n =
        cfg->kv_by_head && cfg->n_heads > cfg->n_experts ? cfg->n_heads : cfg->n_experts;
    w->cfg = cfg;
    if (n)
        l.expert = sv_arena_alloc(&w->arena, (size_t)n * sizeof *l.expert);
    if (n && !l.expert)
        return sv_fail(err, SV_ENOMEM, -1, "table of %d matrices", n);
    return sv_config_each_tensor(cfg, n_taps, load_one, &l);
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
    return SV_OK;
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
    const int32_t n = c->n_experts, inter = c->moe_intermediate_size, hidden = c->hidden_size;
    *m = (struct sv_moe){.n_experts = n,
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

/* A scale that a checkpoint states for a layer's cached keys or values: one number, positive. */
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
    const struct sv_config own = own_part(w, cfg);
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
