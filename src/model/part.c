/*
 * part.c - this rank's part of a model: the sizes of its layers, and its part of each tensor of a
 * checkpoint, as a host weight.
 *
 * Called by weights.c and packed.c when a model opens. Without ranks it is all of each tensor.
 * dist/shard.c decides the part; here it is found in files, in their form and codes. Must not:
 * depend on another rank, or copy what can be used in place.
 */
#include "model/impl.h"

#include <string.h>

/* ---------------------------------------------------------------- numbers */

/* Divided by heads. */
static bool is_mixer(int role)
{
    return (role >= SV_ROLE_Q && role <= SV_ROLE_O) ||
           (role >= SV_ROLE_GDN_QKV && role <= SV_ROLE_GDN_NORM);
}

/* The multiples that parts of quantized weights need. */
static int bind_groups(void *user, const struct sv_tensor_spec *s)
{
    struct sv_weights *w = user;
    const struct sv_host_tensor *t = sv_ckpt_find(w->ckpt, s->name);
    int32_t rows = 1, cols = s->pack == SV_PACK_MXFP4 ? 32 : 1;
    /* Rows of kv_b are expanded one by one. */
    if (!t || s->shard == SV_SHARD_NONE || s->role == SV_ROLE_EMBED || s->role == SV_ROLE_KV_B)
        return SV_OK;
    if (w->shape.by_expert && (s->n_experts || s->expert >= 0))
        return SV_OK;
    if (t->quant.code)
        sv_quant_units(&t->quant, &rows, &cols);
    const bool by_rows = s->shard == SV_SHARD_ROWS;
    if (s->role == SV_ROLE_HEAD)
        sv_shard_bind(&w->shape.group.vocab, rows);
    else if (is_mixer(s->role & ~SV_ROLE_DRAFT))
        sv_shard_bind(by_rows ? &w->shape.group.head_rows : &w->shape.group.head_cols,
                      by_rows ? rows : cols);
    else
        sv_shard_bind(&w->shape.group.inner, by_rows ? rows : cols);
    return SV_OK;
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
                                       .v_dim = cfg->v_dim,
                                       .gdn_k_heads = cfg->gdn_k_heads,
                                       .gdn_v_heads = cfg->gdn_v_heads,
                                       .gdn_k_dim = cfg->gdn_k_dim,
                                       .gdn_v_dim = cfg->gdn_v_dim,
                                       .whole_mixers = w->whole_mixers,
                                       .vocab = cfg->vocab_size,
                                       .n_taps = n_taps * cfg->hidden_size};
    for (int32_t i = 0; i < cfg->n_layers; i++)
        if (!cfg->layer_moe[i])
            w->shape.intermediate = cfg->intermediate_size;
    if (cfg->n_experts) {
        w->shape.n_experts = cfg->n_experts;
        w->shape.by_expert = ranks.by_expert;
        w->shape.expert_intermediate = cfg->moe_intermediate_size;
        w->shape.shared_intermediate = cfg->shared_intermediate_size;
    }
    if (w->ckpt)
        sv_config_each_tensor(cfg, n_taps, bind_groups, w);
    return sv_shard_check(&w->shape, ranks.n, what, err);
}

struct sv_config sv_part_config(const struct sv_weights *w, const struct sv_config *cfg)
{
    const struct sv_ranks ranks = sv_dev_ranks(w->dev);
    struct sv_config own = *cfg;
    if (ranks.n == 1)
        return own;
    own.n_heads = sv_shard_heads(&w->shape, ranks).n;
    own.n_kv_heads = sv_shard_kv_heads(&w->shape, ranks).n;
    own.gdn_k_heads = sv_shard_key_heads(&w->shape, ranks).n;
    own.gdn_v_heads = cfg->gdn_v_heads / ranks.n;
    own.intermediate_size = sv_shard_inner(&w->shape, cfg->intermediate_size, ranks).n;
    if (!ranks.by_expert)
        own.moe_intermediate_size = sv_shard_inner(&w->shape, cfg->moe_intermediate_size, ranks).n;
    own.shared_intermediate_size =
        sv_shard_inner(&w->shape, cfg->shared_intermediate_size, ranks).n;
    return own;
}

/* ---------------------------------------------------------------- tensors */

struct sv_slice sv_part_experts(const struct sv_weights *w, int32_t n)
{
    const struct sv_ranks ranks = sv_dev_ranks(w->dev);
    return ranks.n == 1 ? (struct sv_slice){0, n} : sv_shard_experts(&w->shape, ranks);
}

struct sv_slice sv_part_heads(const struct sv_weights *w, int32_t n)
{
    const struct sv_ranks ranks = sv_dev_ranks(w->dev);
    return ranks.n == 1 ? (struct sv_slice){0, n} : sv_shard_heads(&w->shape, ranks);
}

struct sv_cut sv_part_cut(const struct sv_weights *w, enum sv_role role, int64_t rows, int64_t cols)
{
    return sv_shard_cut(&w->shape, role, (int32_t)rows, (int32_t)cols, sv_dev_ranks(w->dev));
}

/* In the order of the file's rows, which is that of key heads in two forms. */
static struct sv_cut cut_of(const struct sv_weights *w, const struct sv_tensor_spec *s)
{
    const struct sv_ranks ranks = sv_dev_ranks(w->dev);
    if (ranks.n == 1 || (s->form != SV_FORM_QKVZ && s->form != SV_FORM_BA))
        return sv_part_cut(w, s->role, s->rows, s->cols);
    const struct sv_slice heads = sv_shard_key_heads(&w->shape, ranks);
    const int32_t each = (int32_t)s->rows / w->shape.gdn_k_heads;
    return (struct sv_cut){SV_CUT_ROWS, 1, {{heads.first * each, heads.n * each}}};
}

/* A single matrix: of one expert, where the tensor holds all of them. */
static struct sv_host_tensor matrix_of(const struct sv_tensor_spec *s,
                                       const struct sv_host_tensor *t)
{
    struct sv_host_tensor m = *t;
    if (s->form < SV_FORM_EXPERT)
        return m;
    const int64_t n = s->form == SV_FORM_EXPERT ? 1 : 2,
                  at = n * s->expert + (s->form == SV_FORM_UP);
    m.n_dims = 2;
    m.dim[0] = s->rows;
    m.dim[1] = s->cols;
    m.n_elements = s->rows * s->cols;
    m.n_bytes = (size_t)m.n_elements * sv_dtype_bytes(t->dtype);
    m.data = (const char *)t->data + (size_t)at * m.n_bytes;
    return m;
}

static size_t row_bytes(const struct sv_host_tensor *t)
{
    return t->n_bytes / (size_t)t->dim[0];
}

/* The rows and columns of a part. Returns the number of ranges of rows. */
static int32_t area_of(const struct sv_cut *c, const struct sv_host_tensor *t,
                       struct sv_slice rows[SV_CUT_RANGES], struct sv_slice *cols)
{
    const bool by_rows = c->axis == SV_CUT_ROWS;
    rows[0] = (struct sv_slice){0, (int32_t)t->dim[0]};
    *cols = c->axis == SV_CUT_COLS ? c->range[0] : (struct sv_slice){0, (int32_t)t->dim[1]};
    if (by_rows)
        memcpy(rows, c->range, sizeof c->range);
    return by_rows ? c->n_ranges : 1;
}

/* Rows, or elements of a vector: in place, or concatenated in `copy`. */
static void take_rows(struct sv_host_tensor *t, const struct sv_cut *c, char *copy)
{
    const size_t row = row_bytes(t), n = (size_t)sv_cut_size(c);
    const char *from = t->data;
    t->data = c->n_ranges == 1 ? from + (size_t)c->range[0].first * row : copy;
    for (int32_t i = 0; c->n_ranges > 1 && i < c->n_ranges; i++) {
        const size_t n_bytes = (size_t)c->range[i].n * row;
        memcpy(copy, from + (size_t)c->range[i].first * row, n_bytes);
        copy += n_bytes;
    }
    t->n_elements = t->n_elements / t->dim[0] * (int64_t)n;
    t->n_bytes = n * row;
    t->dim[0] = (int64_t)n;
}

/* Whether a model reads the tensor in the form that the file has. */
static bool is_as_read(const struct sv_tensor_spec *s, const struct sv_host_tensor *t)
{
    return !s->form || s->form >= SV_FORM_EXPERT || s->form == SV_FORM_PATCH || t->as_read;
}

/* Copied, or, without `copy`, in place, with the others between its rows. */
static void take_columns(struct sv_host_tensor *t, struct sv_slice cols, char *copy)
{
    const size_t elem = sv_dtype_bytes(t->dtype), n = (size_t)cols.n * elem, ld = row_bytes(t);
    const char *from = (const char *)t->data + (size_t)cols.first * elem;
    for (int64_t r = 0; copy && r < t->dim[0]; r++)
        memcpy(copy + (size_t)r * n, from + (size_t)r * ld, n);
    t->data = copy ? copy : from;
    t->dim[1] = cols.n;
    t->n_elements = t->dim[0] * cols.n;
    t->n_bytes = (size_t)t->dim[0] * n;
}

/* Whether a product or lookup gets bf16 at most, so that values may be rounded to it. */
static bool rounds_to_bf16(const struct sv_weights *w, enum sv_role role)
{
    const bool looked_up = role == SV_ROLE_EMBED || role == SV_ROLE_HEAD;
    return sv_dev_compute_dtype(w->dev) == SV_BF16 &&
           (!looked_up || sv_dev_act_dtype(w->dev) == SV_BF16);
}

/* The up of an expert's gate, and vice versa; NULL where not separate. */
static const struct sv_host_tensor *other_of(const struct sv_weights *w,
                                             const struct sv_tensor_spec *s)
{
    static const char *const part[] = {"gate_proj", "up_proj"};
    const int up = s->role == SV_ROLE_EXPERT_UP;
    const char *at = up || s->role == SV_ROLE_EXPERT_GATE ? strstr(s->name, part[up]) : NULL;
    if (!at)
        return NULL;
    char name[256];
    snprintf(name, sizeof name, "%.*s%s%s", (int)(at - s->name), s->name, part[!up],
             at + strlen(part[up]));
    return sv_ckpt_find(w->ckpt, name);
}

/* Values, as bf16 where they and those of `other` fit or are rounded to it, else f32; the memory is
 * the weights'. */
static int take_values(struct sv_weights *w, const struct sv_host_tensor *t,
                       const struct sv_host_tensor *other, const struct sv_cut *cut,
                       struct sv_weight *host, struct sv_err *err)
{
    struct sv_slice rows[SV_CUT_RANGES], cols;
    const int32_t n_ranges = area_of(cut, t, rows, &cols);
    const bool fit = sv_quant_fits_bf16(t->quant.code) &&
                     (!other || !other->quant.code || sv_quant_fits_bf16(other->quant.code)),
               half = fit || rounds_to_bf16(w, host->role);
    const size_t whole = (size_t)t->dim[1], elem = half ? sizeof(uint16_t) : sizeof(float),
                 line = (size_t)cols.n * elem;
    const bool in_place = !half && (size_t)cols.n == whole;
    char *data = sv_arena_alloc(&w->arena, (size_t)host->rows * line);
    float *row = in_place ? NULL : sv_arena_alloc(&w->arena, whole * sizeof *row);
    if (!data || (!in_place && !row))
        return sv_fail(err, SV_ENOMEM, -1, "%s: no memory for %zu values of '%s'", t->file,
                       (size_t)host->rows * (size_t)cols.n, t->name);
    host->fmt.elem = half ? SV_BF16 : SV_F32;
    host->data = data;
    for (int32_t i = 0; i < n_ranges; data += (size_t)rows[i++].n * line) {
        if ((size_t)cols.n == whole) {
            sv_quant_expand(&t->quant, rows[i].first, rows[i].n, host->fmt.elem, data, row);
            continue;
        }
        for (int32_t r = 0; r < rows[i].n; r++) {
            sv_quant_rows(&t->quant, rows[i].first + r, 1, row);
            for (int32_t k = 0; half && k < cols.n; k++)
                ((uint16_t *)(void *)(data + (size_t)r * line))[k] =
                    sv_f32_to_bf16(row[cols.first + k]);
            if (!half)
                memcpy(data + (size_t)r * line, row + cols.first, line);
        }
    }
    return SV_OK;
}

/* Whether a matrix stays in its codes. An expert's gate and up are one product of the device: both
 * or none. */
static bool codes_taken(const struct sv_weights *w, const struct sv_tensor_spec *s,
                        const struct sv_quant *q)
{
    const struct sv_host_tensor *other = other_of(w, s);
    return sv_dev_takes_codes(w->dev, q, s->role) &&
           (!other || (other->quant.code && sv_dev_takes_codes(w->dev, &other->quant, s->role)));
}

/* A quantized matrix: its codes where the device takes them and the part is whole groups, else its
 * values. */
static int take_quantized(struct sv_weights *w, const struct sv_tensor_spec *s,
                          const struct sv_host_tensor *t, const struct sv_cut *cut,
                          struct sv_weight *host, void *copy, struct sv_err *err)
{
    struct sv_slice rows[SV_CUT_RANGES], cols;
    const struct sv_quant *q = &t->quant;
    if (!codes_taken(w, s, q))
        return take_values(w, t, other_of(w, s), cut, host, err);
    if (cut->axis != SV_CUT_NONE) {
        const int32_t n = area_of(cut, t, rows, &cols);
        struct sv_quant *part = sv_arena_alloc(&w->arena, sizeof *part);
        if (!part)
            return sv_fail(err, SV_ENOMEM, -1, "%s: no memory for a part of '%s'", t->file,
                           t->name);
        if (sv_quant_part(part, q, rows, n, cols, copy) < 0)
            return take_values(w, t, other_of(w, s), cut, host, err);
        q = part;
    }
    host->fmt.elem = SV_U8;
    host->data = q->data;
    host->quant = q;
    return SV_OK;
}

/* A quantized matrix with rows by key head: in a model's order, its codes where these can be cut
 * so, else its values. */
static int take_by_head(struct sv_weights *w, const struct sv_tensor_spec *s,
                        const struct sv_host_tensor *t, const struct sv_cut *cut,
                        struct sv_weight *host, struct sv_err *err)
{
    const struct sv_config own = sv_part_config(w, w->cfg);
    const struct sv_slice cols = {0, (int32_t)s->cols};
    const int32_t n = sv_tensor_n_ranges(s->form, &own),
                  row0 = cut->axis == SV_CUT_ROWS ? cut->range[0].first : 0;
    struct sv_slice *rows = sv_arena_alloc(&w->arena, (size_t)n * sizeof *rows);
    struct sv_quant *part = sv_arena_alloc(&w->arena, sizeof *part);
    const bool half = rounds_to_bf16(w, host->role) || sv_quant_fits_bf16(t->quant.code);
    int64_t n_bytes = -1;
    for (int32_t i = 0; rows && i < n; i++) {
        rows[i] = sv_tensor_range(s->form, &own, i);
        rows[i].first += row0;
    }
    if (rows && part && codes_taken(w, s, &t->quant))
        n_bytes = sv_quant_part(part, &t->quant, rows, n, cols, NULL);
    const bool kept = n_bytes >= 0;
    const size_t line = (size_t)cols.n * (half ? sizeof(uint16_t) : sizeof(float));
    char *data = sv_arena_alloc(&w->arena, kept ? (size_t)n_bytes + 1 : (size_t)host->rows * line);
    float *row = sv_arena_alloc(&w->arena, (size_t)cols.n * sizeof *row);
    if (!rows || !part || !data || !row)
        return sv_fail(err, SV_ENOMEM, -1, "%s: no memory for '%s'", t->file, t->name);
    host->fmt.elem = kept ? SV_U8 : half ? SV_BF16 : SV_F32;
    host->data = data;
    if (kept) {
        sv_quant_part(part, &t->quant, rows, n, cols, data);
        host->data = part->data;
        host->quant = part;
    }
    for (int32_t i = 0; !kept && i < n; data += (size_t)rows[i++].n * line)
        sv_quant_expand(&t->quant, rows[i].first, rows[i].n, host->fmt.elem, data, row);
    return SV_OK;
}

size_t sv_part_copy_bytes(const struct sv_weights *w, const struct sv_tensor_spec *s)
{
    const struct sv_cut c = cut_of(w, s);
    const struct sv_host_tensor *t = w->ckpt ? sv_ckpt_find(w->ckpt, s->name) : NULL;
    struct sv_slice rows[SV_CUT_RANGES], cols;
    struct sv_quant part;
    if (!t || (c.axis != SV_CUT_ROWS && c.axis != SV_CUT_COLS))
        return 0;
    if (t->quant.code) {
        const int32_t n = area_of(&c, t, rows, &cols);
        const int64_t n_bytes = sv_quant_part(&part, &t->quant, rows, n, cols, NULL);
        return n_bytes > 0 && codes_taken(w, s, &t->quant) ? (size_t)n_bytes : 0;
    }
    if (c.axis == SV_CUT_COLS && sv_dev_backend(w->dev)->takes_columns && is_as_read(s, t))
        return 0;
    if (c.axis == SV_CUT_COLS)
        return (size_t)s->rows * (size_t)c.range[0].n * sv_dtype_bytes(t->dtype);
    return c.n_ranges > 1 ? (size_t)sv_cut_size(&c) * row_bytes(t) : 0;
}

/* Sizes as a model reads the tensor. */
static void set_size(struct sv_weight *host, const struct sv_tensor_spec *s, const struct sv_cut *c)
{
    const int32_t n = c->n_ranges ? sv_cut_size(c) : 0;
    const int32_t rows = c->axis == SV_CUT_ROWS ? n : (int32_t)s->rows,
                  cols = c->axis == SV_CUT_COLS ? n : (int32_t)s->cols;
    const bool turned = s->form == SV_FORM_CONV || !cols; /* a vector is one row */
    host->rows = turned ? (cols ? cols : 1) : rows;
    host->cols = turned ? rows : cols;
}

int sv_part_find(struct sv_weights *w, const struct sv_tensor_spec *s, struct sv_weight *host,
                 void *copy, int64_t *n_bytes, struct sv_err *err)
{
    const struct sv_cut cut = cut_of(w, s);
    *host = (struct sv_weight){.role = s->role};
    if (cut.axis == SV_CUT_ABSENT)
        return SV_OK;
    set_size(host, s, &cut);
    if (!w->ckpt)
        return SV_OK;
    const struct sv_host_tensor *t = sv_ckpt_find(w->ckpt, s->name);
    if (!t)
        return sv_fail(err, SV_EFORMAT, -1, "tensor %s is missing", s->name);
    int64_t dim[SV_SPEC_DIMS];
    const int32_t n_dims = sv_tensor_shape(s, dim);
    if (t->n_dims != n_dims || memcmp(t->dim, dim, (size_t)n_dims * sizeof *dim))
        return sv_fail(err, SV_EFORMAT, -1, "tensor %s has not the shape of [%lld, %lld]", s->name,
                       (long long)s->rows, (long long)s->cols);
    if (t->quant.code && s->form && s->form != SV_FORM_QKVZ)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%s: tensor '%s' is quantized; of this one only "
                       "f32, f16 and bf16 are supported",
                       t->file, t->name);
    if (t->quant.code) {
        *n_bytes +=
            cut.axis == SV_CUT_NONE
                ? (int64_t)t->n_bytes
                : (int64_t)((double)t->n_bytes * host->rows * host->cols / (double)t->n_elements);
        return s->form ? take_by_head(w, s, t, &cut, host, err)
                       : take_quantized(w, s, t, &cut, host, copy, err);
    }
    struct sv_host_tensor part = matrix_of(s, t);
    if (cut.axis == SV_CUT_COLS && !copy)
        host->row_stride = row_bytes(&part);
    if (cut.axis == SV_CUT_ROWS)
        take_rows(&part, &cut, copy);
    else if (cut.axis == SV_CUT_COLS)
        take_columns(&part, cut.range[0], copy);
    *n_bytes += (int64_t)part.n_bytes;
    host->fmt.elem = part.dtype;
    host->data = part.data;
    if (is_as_read(s, t))
        return SV_OK;
    const struct sv_config own = sv_part_config(w, w->cfg);
    struct sv_tensor_spec read = *s;
    read.rows = part.dim[0];
    return sv_tensor_convert(&read, &own, &part, &w->arena, host, err);
}
