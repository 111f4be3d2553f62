/*
 * vision.c - the vision tower of Qwen3-VL and Qwen3.5: patches of an image to rows of the language
 * model.
 *
 * Called by target.c (open, close) and, between steps, by the engine. Patches and rows are ordered
 * by block: a block's rows are adjacent and are merged by reading them as one. Attention is the
 * language model's, over a cache of the pass; it and the rotation take all rows at once, other ops
 * a tile of rows. Every op computes a row from its own numbers, so an image's rows do not depend on
 * the tile. Must not: run within a step, because it allocates.
 */
#include "model/vision.h"

#include "backend/ops_vision.h"
#include "backend/quant.h"
#include "model/impl.h"

#include <math.h>
#include <string.h>

#define NORM_EPS 1e-6f
#define ROPE_THETA 10000.0

enum { MAX_SIDE = 4096, CORNERS = 4, AXES = 3, PAGE = 128 };

/* ---------------------------------------------------------------- open */

static struct sv_weight *of_pair(struct sv_weight pair[2], bool bias)
{
    return &pair[bias];
}

static struct sv_weight *of_part(struct sv_gemm_part *part, bool bias)
{
    return bias ? &part->bias : &part->w;
}

static struct sv_weight *place(struct sv_tower *t, const struct sv_tensor_spec *s,
                               enum sv_vision_part part)
{
    const bool bias = s->role & SV_ROLE_BIAS;
    struct sv_vision_block *b = s->layer < 0 ? NULL : &t->block[s->layer];
    struct sv_vision_merger *m = s->layer < 0 ? &t->merger : &t->deep[s->layer % SV_MAX_DEEP];
    switch (part) {
    case SV_VISION_PATCH:
        return of_part(&t->patch, bias);
    case SV_VISION_POSITIONS:
        return &t->positions;
    case SV_VISION_NORM_1:
        return of_pair(b->norm_1, bias);
    case SV_VISION_NORM_2:
        return of_pair(b->norm_2, bias);
    case SV_VISION_QKV:
        return of_part(&b->qkv, bias);
    case SV_VISION_PROJ:
        return of_part(&b->proj, bias);
    case SV_VISION_FC_1:
    case SV_VISION_FC_2:
        return of_part(&b->fc[part == SV_VISION_FC_2], bias);
    case SV_VISION_MERGE_NORM:
        return of_pair(m->norm, bias);
    case SV_VISION_MERGE_FC_1:
    case SV_VISION_MERGE_FC_2:
        return of_part(&m->fc[part == SV_VISION_MERGE_FC_2], bias);
    }
    return NULL;
}

static int32_t head_dim(const struct sv_tower *t)
{
    return t->cfg.hidden_size / t->cfg.n_heads;
}

struct opening {
    struct sv_tower *t;
    struct sv_err *err;
};

/* The weight's numbers, or NULL: used as they are, or out of memory. */
static void *expand(const struct sv_weight *w, enum sv_dtype elem)
{
    const size_t n = (size_t)w->rows * (size_t)w->cols * sv_dtype_bytes(elem);
    float *row = w->quant ? sv_alloc((size_t)w->cols * sizeof *row) : NULL;
    void *values = row ? sv_alloc(n) : NULL;
    if (values)
        sv_quant_expand(w->quant, 0, w->rows, elem, values, row);
    sv_free(row);
    return values;
}

/* Rows of qkv, or columns of proj: each head is padded with zeros to the device's size. They change
 * no product. */
static int take_heads(const struct opening *o, const struct sv_tensor_spec *s, bool rows,
                      struct sv_weight *out)
{
    struct sv_tower *t = o->t;
    struct sv_weight host;
    int64_t n_bytes = 0;
    if (!t->weights.ckpt) { /* all of them random */
        struct sv_tensor_spec wide = *s;
        int64_t *n = s->cols && !rows ? &wide.cols : &wide.rows;
        *n = *n / head_dim(t) * t->head;
        return sv_weights_take(&t->weights, &wide, out, o->err);
    }
    int rc = sv_part_find(&t->weights, s, &host, NULL, &n_bytes, o->err);
    if (rc)
        return rc;
    const enum sv_dtype elem = host.quant ? sv_dev_compute_dtype(t->dev) : host.fmt.elem;
    void *values = expand(&host, elem);
    const char *from = host.quant ? values : host.data;
    const size_t each = (rows ? (size_t)host.cols : 1) * sv_dtype_bytes(elem),
                 run = (size_t)head_dim(t) * each, wide = (size_t)t->head * each,
                 n = (size_t)host.rows * (size_t)host.cols * sv_dtype_bytes(elem) / run;
    char *copy = from ? sv_calloc(n, wide) : NULL;
    for (size_t i = 0; i < n && copy; i++)
        memcpy(copy + i * wide, from + i * run, run);
    sv_free(values);
    if (!copy)
        return sv_fail(o->err, SV_ENOMEM, -1, "no memory for the heads of %s", s->name);
    int32_t *side = rows ? &host.rows : &host.cols;
    *side = *side / head_dim(t) * t->head;
    host.fmt.elem = elem;
    host.quant = NULL;
    host.data = copy;
    return sv_weights_keep(&t->weights, &host, copy, n_bytes, out, o->err);
}

static int take(void *user, const struct sv_tensor_spec *s, enum sv_vision_part part)
{
    const struct opening *o = user;
    const bool bias = s->role & SV_ROLE_BIAS;
    struct sv_weight *to = place(o->t, s, part);
    if (o->t->head != head_dim(o->t) &&
        (part == SV_VISION_QKV || (part == SV_VISION_PROJ && !bias)))
        return take_heads(o, s, part == SV_VISION_QKV && !bias, to);
    return sv_weights_take(&o->t->weights, s, to, o->err);
}

/* The first half of the pairs is rotated by the patch's row, the second, with the same frequencies,
 * by its column. */
static int make_rope(struct sv_tower *t, struct sv_err *err)
{
    const struct sv_rope rope = {.kind = SV_ROPE_DEFAULT, .theta = ROPE_THETA};
    const int32_t pairs = head_dim(t) / 2, half = pairs / 2;
    const size_t n = (size_t)t->max_side * (size_t)pairs;
    float *once = sv_arena_alloc(&t->weights.arena, n * sizeof *once);
    float *twice = sv_arena_alloc(&t->weights.arena, 2 * n * sizeof *twice);
    uint8_t *axis = sv_arena_alloc(&t->weights.arena, (size_t)pairs);
    if (!once || !twice || !axis)
        return sv_fail(err, SV_ENOMEM, -1, "rotary table of the vision tower");
    sv_rope_fill(&rope, pairs, t->max_side, once); /* cos, sin of half a head */
    for (size_t i = 0; i < 4 * (size_t)t->max_side; i++)
        memcpy(twice + i * (size_t)half, once + i / 2 * (size_t)half, (size_t)half * sizeof *once);
    for (int32_t j = 0; j < pairs; j++)
        axis[j] = j >= half;
    const struct sv_weight table = {
        .fmt.elem = SV_F32, .rows = 1, .cols = (int32_t)(2 * n), .data = twice};
    int rc = sv_dev_upload_weight(t->dev, &table, &t->weights.rope, err);
    if (!rc)
        t->rope = (struct sv_rope_table){.cos = t->weights.rope.data,
                                         .sin = (const float *)t->weights.rope.data + n,
                                         .max_pos = t->max_side,
                                         .rot_dim = 2 * pairs,
                                         .axis = axis};
    return rc;
}

int sv_tower_open(struct sv_tower **tower, struct sv_dev *dev, const struct sv_ckpt *ckpt,
                  const struct sv_config *cfg, struct sv_err *err)
{
    struct sv_tower *t = *tower = sv_calloc(1, sizeof *t);
    if (!t)
        return sv_fail(err, SV_ENOMEM, -1, "vision tower");
    *t = (struct sv_tower){
        .cfg = cfg->vision, .hidden = cfg->hidden_size, .dev = dev, .max_side = MAX_SIDE};
    t->head = sv_dev_vision_head(dev, head_dim(t));
    int rc = sv_weights_open(&t->weights, dev, ckpt, err);
    if (!rc) {
        const size_t n_bytes = (size_t)t->cfg.depth * sizeof *t->block;
        t->weights.cfg = cfg;
        t->block = sv_arena_alloc(&t->weights.arena, n_bytes);
        if (t->block)
            memset(t->block, 0, n_bytes);
        else
            rc = sv_fail(err, SV_ENOMEM, -1, "table of the vision tower");
    }
    struct opening o = {t, err};
    if (!rc)
        rc = sv_vision_each_tensor(cfg, take, &o);
    if (!rc)
        rc = make_rope(t, err);
    if (rc) {
        sv_tower_close(t);
        *tower = NULL;
    }
    return rc;
}

void sv_tower_close(struct sv_tower *t)
{
    if (t && t->weights.dev)
        sv_weights_close(&t->weights);
    sv_free(t);
}

/* ---------------------------------------------------------------- sizes */

static int32_t merged(const struct sv_tower *t)
{
    return t->cfg.merge * t->cfg.merge;
}

/* Of a merger's rows. */
static int32_t joined(const struct sv_tower *t)
{
    return t->cfg.hidden_size * merged(t);
}

/* Of all heads, on the device. */
static int32_t heads(const struct sv_tower *t)
{
    return t->cfg.n_heads * t->head;
}

void sv_tower_needs(const struct sv_tower *t, struct sv_needs *n)
{
    const struct sv_vision_config *v = &t->cfg;
    const int32_t h = v->hidden_size;
    sv_needs_gemm(n, sv_vision_patch_len(v), h);
    sv_needs_gemm(n, h, 3 * heads(t));
    sv_needs_gemm(n, heads(t), h);
    sv_needs_gemm(n, h, v->intermediate_size);
    sv_needs_gemm(n, v->intermediate_size, h);
    sv_needs_gemm(n, joined(t), joined(t));
    sv_needs_gemm(n, joined(t), t->hidden);
    n->lim.max_heads = v->n_heads > n->lim.max_heads ? v->n_heads : n->lim.max_heads;
    n->lim.max_head_dim = t->head > n->lim.max_head_dim ? t->head : n->lim.max_head_dim;
}

size_t sv_tower_plane_bytes(const struct sv_tower *t, int32_t n_patches)
{
    return (size_t)(n_patches / merged(t)) * (size_t)t->hidden *
           sv_dtype_bytes(sv_dev_act_dtype(t->dev));
}

size_t sv_tower_rows_bytes(const struct sv_tower *t, int32_t n_patches)
{
    return (size_t)(1 + t->cfg.n_deep) * sv_tower_plane_bytes(t, n_patches);
}

/* ---------------------------------------------------------------- a pass */

/* Device memory of a pass over n patches. */
struct work {
    const struct sv_tower *t;
    int32_t n, tile; /* patches; rows of a tile */
    size_t elem;     /* bytes of an act value */
    char *x;         /* (n, h) the stream */
    char *qkv;       /* (n, 3 heads) */
    char *att;       /* (n, heads) */
    char *wide;      /* (tile, intermediate_size or joined rows) */
    char *tmp;       /* (tile, joined or patch_len) */
    struct sv_kv kv;
    struct sv_rows rows;
    const int32_t *corner; /* (n, CORNERS) */
    const float *share;    /* (n, CORNERS) */
    uint16_t *rounded;     /* host: (tile, patch_len), or NULL where act values are f32 */
};

/* Words of the patches' positions; share: floats. */
struct where {
    int32_t *row_seg, *row_pos, *row_rope, *corner, *share, *seg_row0, *seg_slot, *seg_base, *table;
};

static int32_t pages(int32_t n)
{
    return (n + PAGE - 1) / PAGE;
}

static size_t lay_out_where(struct where *w, int32_t *base, int32_t n)
{
    const size_t rows = (size_t)n;
    const struct {
        int32_t **p;
        size_t n;
    } own[] = {{&w->row_seg, rows},
               {&w->row_pos, rows},
               {&w->row_rope, AXES * rows},
               {&w->corner, CORNERS * rows},
               {&w->share, CORNERS * rows},
               {&w->seg_row0, 2},
               {&w->seg_slot, 1},
               {&w->seg_base, 1},
               {&w->table, (size_t)pages(n)}};
    size_t at = 0;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        *own[i].p = base ? base + at : NULL;
        at += own[i].n;
    }
    return at * sizeof(int32_t);
}

/* Position of line i of n in the table's side: the line before it, and the weight of the next. */
static int32_t corner_of(int32_t i, int32_t n, int32_t side, float *share)
{
    const double at = n > 1 ? (double)(side - 1) * i / (n - 1) : 0;
    const int32_t before = (int32_t)at;
    *share = (float)(at - before);
    return before;
}

static void fill_where(struct where *w, const struct sv_vision_config *v, int32_t grid_h,
                       int32_t grid_w)
{
    const int32_t m = v->merge, n = grid_h * grid_w, per_line = grid_w / m;
    float *share = (float *)(void *)w->share;
    for (int32_t r = 0; r < n; r++) {
        const int32_t block = r / (m * m), in = r % (m * m);
        const int32_t row = block / per_line * m + in / m, col = block % per_line * m + in % m;
        float down, right;
        const int32_t top = corner_of(row, grid_h, v->side, &down),
                      left = corner_of(col, grid_w, v->side, &right);
        w->row_seg[r] = 0;
        w->row_pos[r] = r;
        w->row_rope[AXES * r] = row;
        w->row_rope[AXES * r + 1] = col;
        w->row_rope[AXES * r + 2] = 0;
        for (int k = 0; k < CORNERS; k++) {
            const int32_t y = top + k / 2 < v->side ? top + k / 2 : v->side - 1,
                          x = left + k % 2 < v->side ? left + k % 2 : v->side - 1;
            w->corner[CORNERS * r + k] = y * v->side + x;
            share[CORNERS * r + k] = (k / 2 ? down : 1 - down) * (k % 2 ? right : 1 - right);
        }
    }
    w->seg_row0[0] = w->seg_slot[0] = w->seg_base[0] = 0;
    w->seg_row0[1] = n;
    for (int32_t i = 0; i < pages(n); i++)
        w->table[i] = i;
}

static size_t lay_out(struct work *k, char *base, struct where *where)
{
    const struct sv_tower *t = k->t;
    const int32_t h = t->cfg.hidden_size, inter = t->cfg.intermediate_size, join = joined(t),
                  patch = sv_vision_patch_len(&t->cfg);
    const size_t kv_bytes = (size_t)k->kv.n_pages * PAGE * (size_t)t->cfg.n_heads *
                            sv_kv_row_bytes(k->kv.dtype, t->head, 0);
    struct sv_scratch s = {.base = base, .elem_bytes = k->elem};
    k->x = sv_scratch_take(&s, k->n, h);
    k->qkv = sv_scratch_take(&s, k->n, 3 * (int64_t)heads(t));
    k->att = sv_scratch_take(&s, k->n, heads(t));
    k->wide = sv_scratch_take(&s, k->tile, inter > join ? inter : join);
    k->tmp = sv_scratch_take(&s, k->tile, patch > join ? patch : join);
    k->kv.k = sv_scratch_bytes(&s, kv_bytes);
    k->kv.v = sv_scratch_bytes(&s, kv_bytes);
    int32_t *words = sv_scratch_bytes(&s, lay_out_where(where, NULL, k->n));
    lay_out_where(where, words, k->n);
    return s.n_bytes;
}

static char *row_of(const struct work *k, char *p, int32_t row, int32_t width)
{
    return p + (size_t)row * (size_t)width * k->elem;
}

static void norm(const struct work *k, int32_t n, int32_t d, const char *x,
                 const struct sv_weight w[2], char *out)
{
    sv_op_layer_norm(k->t->dev, &(struct sv_p_layer_norm){.n_rows = n,
                                                          .d = d,
                                                          .x = x,
                                                          .weight = w[0],
                                                          .bias = w[1],
                                                          .eps = NORM_EPS,
                                                          .out = out});
}

static void gelu(const struct work *k, int32_t n, int32_t d, bool by_tanh, char *x)
{
    sv_op_gelu(k->t->dev, &(struct sv_p_gelu){.n_rows = n, .d = d, .by_tanh = by_tanh, .x = x});
}

static void add(const struct work *k, int32_t n, int32_t d, char *x, const char *y)
{
    sv_op_add_gated(k->t->dev, &(struct sv_p_add_gated){.n_rows = n, .d = d, .x = x, .y = y});
}

/* n values as the device's act values. */
static const void *act_values(const struct work *k, const float *values, size_t n)
{
    for (size_t i = 0; i < n && k->rounded; i++)
        k->rounded[i] = sv_f32_to_bf16(values[i]);
    return k->rounded ? (const void *)k->rounded : values;
}

/* Uploads from memory that is not the device's are complete on return. */
static void embed(const struct work *k, const float *values)
{
    const struct sv_tower *t = k->t;
    const int32_t len = sv_vision_patch_len(&t->cfg), h = t->cfg.hidden_size;
    for (int32_t at = 0; at < k->n; at += k->tile) {
        const int32_t n = k->n - at < k->tile ? k->n - at : k->tile;
        const size_t n_values = (size_t)n * (size_t)len;
        sv_dev_upload(t->dev, k->tmp, act_values(k, values + (size_t)at * (size_t)len, n_values),
                      n_values * k->elem);
        sv_model_gemm(t->dev, n, len, k->tmp, &t->patch, 1, row_of(k, k->x, at, h));
    }
    sv_op_add_corners(t->dev, &(struct sv_p_add_corners){.n_rows = k->n,
                                                         .d = h,
                                                         .x = k->x,
                                                         .index = k->corner,
                                                         .share = k->share,
                                                         .table = t->positions});
}

static void attend(const struct work *k, const struct sv_vision_block *b)
{
    const struct sv_tower *t = k->t;
    const int32_t h = t->cfg.hidden_size, all = heads(t);
    for (int32_t at = 0; at < k->n; at += k->tile) {
        const int32_t n = k->n - at < k->tile ? k->n - at : k->tile;
        norm(k, n, h, row_of(k, k->x, at, h), b->norm_1, k->tmp);
        sv_model_gemm(t->dev, n, h, k->tmp, &b->qkv, 1, row_of(k, k->qkv, at, 3 * all));
    }
    sv_op_qk_norm_rope_kv_write(t->dev,
                                &(struct sv_p_qk_norm_rope_kv_write){.rows = k->rows,
                                                                     .qkv = k->qkv,
                                                                     .ld = 3 * (int64_t)all,
                                                                     .n_heads = t->cfg.n_heads,
                                                                     .rope = t->rope,
                                                                     .kv = k->kv});
    sv_op_attention(t->dev, &(struct sv_p_attention){.rows = k->rows,
                                                     .q = k->qkv,
                                                     .ldq = 3 * (int64_t)all,
                                                     .out = k->att,
                                                     .ldo = all,
                                                     .n_heads = t->cfg.n_heads,
                                                     .kv = k->kv,
                                                     .mask = SV_MASK_BLOCK,
                                                     .scale = 1.0f / sqrtf((float)head_dim(t))});
    for (int32_t at = 0; at < k->n; at += k->tile) {
        const int32_t n = k->n - at < k->tile ? k->n - at : k->tile;
        sv_model_gemm(t->dev, n, all, row_of(k, k->att, at, all), &b->proj, 1, k->tmp);
        add(k, n, h, row_of(k, k->x, at, h), k->tmp);
    }
}

static void mlp(const struct work *k, const struct sv_vision_block *b)
{
    const struct sv_tower *t = k->t;
    const int32_t h = t->cfg.hidden_size, inter = t->cfg.intermediate_size;
    for (int32_t at = 0; at < k->n; at += k->tile) {
        const int32_t n = k->n - at < k->tile ? k->n - at : k->tile;
        norm(k, n, h, row_of(k, k->x, at, h), b->norm_2, k->tmp);
        sv_model_gemm(t->dev, n, h, k->tmp, &b->fc[0], 1, k->wide);
        gelu(k, n, inter, true, k->wide);
        sv_model_gemm(t->dev, n, inter, k->wide, &b->fc[1], 1, k->tmp);
        add(k, n, h, row_of(k, k->x, at, h), k->tmp);
    }
}

/* deep: the rows are joined before they are normalised, else after. */
static void merge(const struct work *k, const struct sv_vision_merger *m, bool deep, char *out)
{
    const struct sv_tower *t = k->t;
    const int32_t h = t->cfg.hidden_size, join = joined(t), each = merged(t);
    for (int32_t at = 0; at < k->n / each; at += k->tile) {
        const int32_t left = k->n / each - at, n = left < k->tile ? left : k->tile;
        norm(k, deep ? n : n * each, deep ? join : h, row_of(k, k->x, at, join), m->norm, k->tmp);
        sv_model_gemm(t->dev, n, join, k->tmp, &m->fc[0], 1, k->wide);
        gelu(k, n, join, false, k->wide);
        sv_model_gemm(t->dev, n, join, k->wide, &m->fc[1], 1, row_of(k, out, at, t->hidden));
    }
}

static void run(const struct work *k, const float *values, char *rows)
{
    const struct sv_tower *t = k->t;
    const size_t plane = sv_tower_plane_bytes(t, k->n);
    int32_t n_deep = 0;
    embed(k, values);
    for (int32_t i = 0; i < t->cfg.depth; i++) {
        attend(k, &t->block[i]);
        mlp(k, &t->block[i]);
        if (n_deep < t->cfg.n_deep && t->cfg.deep[n_deep] == i) {
            merge(k, &t->deep[n_deep], true, rows + (size_t)(n_deep + 1) * plane);
            n_deep++;
        }
    }
    merge(k, &t->merger, false, rows);
}

static struct work work_of(const struct sv_tower *t, int32_t max_rows, int32_t n)
{
    /* Rows that fit a processor's caches, or that fill a device with a queue. */
    const int32_t most = sv_dev_backend(t->dev)->has_graphs ? 4096 : 512;
    return (struct work){.t = t,
                         .n = n,
                         .tile = max_rows < most ? max_rows : most,
                         .elem = sv_dtype_bytes(sv_dev_act_dtype(t->dev)),
                         .kv = {.dtype = sv_dev_compute_dtype(t->dev),
                                .n_pages = pages(n),
                                .page_size = PAGE,
                                .n_kv_heads = t->cfg.n_heads,
                                .head_dim = t->head,
                                .table_stride = pages(n)}};
}

size_t sv_tower_pass_bytes(const struct sv_tower *t, int32_t max_rows, int32_t n_patches)
{
    struct work k = work_of(t, max_rows, n_patches);
    struct where w;
    return lay_out(&k, NULL, &w);
}

int sv_tower_run(const struct sv_tower *t, int32_t max_rows, int32_t grid_h, int32_t grid_w,
                 const float *values, void *rows, struct sv_err *err)
{
    const int32_t m = t->cfg.merge;
    SV_REQUIRE(grid_h > 0 && grid_w > 0 && grid_h % m == 0 && grid_w % m == 0);
    SV_REQUIRE(grid_h <= t->max_side && grid_w <= t->max_side);
    struct work k = work_of(t, max_rows, grid_h * grid_w);
    struct where host, dev;
    const size_t n_words = lay_out_where(&host, NULL, k.n), n_bytes = lay_out(&k, NULL, &dev),
                 n_rounded = sv_dev_act_dtype(t->dev) == SV_BF16
                                 ? (size_t)k.tile * (size_t)sv_vision_patch_len(&t->cfg) * 2
                                 : 0;
    int32_t *words = sv_alloc(n_words + n_rounded);
    void *base = NULL;
    int rc = words ? sv_dev_alloc(t->dev, &base, n_bytes, err)
                   : sv_fail(err, SV_ENOMEM, -1, "an image of %d patches", k.n);
    if (!rc) {
        k.rounded = n_rounded ? (uint16_t *)(void *)((char *)words + n_words) : NULL;
        lay_out_where(&host, words, k.n);
        fill_where(&host, &t->cfg, grid_h, grid_w);
        lay_out(&k, base, &dev);
        sv_dev_upload(t->dev, dev.row_seg, words, n_words);
        k.kv.table = dev.table;
        k.corner = dev.corner;
        k.share = (const float *)(const void *)dev.share;
        k.rows = (struct sv_rows){.n_rows = k.n,
                                  .n_segs = 1,
                                  .row_seg = dev.row_seg,
                                  .seg_row0 = dev.seg_row0,
                                  .seg_slot = dev.seg_slot,
                                  .seg_base = dev.seg_base,
                                  .row_pos = dev.row_pos,
                                  .row_rope = dev.row_rope};
        run(&k, values, rows);
    }
    sv_dev_free(t->dev, base);
    sv_free(words);
    return rc;
}

/* ---------------------------------------------------------------- in the language model */

void sv_model_add_deep(struct sv_dev *dev, const struct sv_pass *p, int32_t layer, int32_t hidden,
                       void *delta)
{
    const size_t row = (size_t)hidden * sv_dtype_bytes(sv_dev_act_dtype(dev));
    for (int32_t i = 0; i < p->n_images; i++) {
        const struct sv_image_rows *m = &p->images[i];
        if (layer < m->n_deep)
            sv_op_add_gated(dev,
                            &(struct sv_p_add_gated){
                                .n_rows = m->n_rows,
                                .d = hidden,
                                .x = (char *)delta + (size_t)m->row0 * row,
                                .y = (const char *)m->rows + (size_t)(layer + 1) * m->deep_stride,
                            });
    }
}
