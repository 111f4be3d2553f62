/*
 * gguf_undo.c - reverts the changes of converters to GGUF, so that a file's numbers are those of
 * the original directory: the order of rows and heads, merged projections, norms and decays that
 * are stored as a model uses them.
 *
 * Called by gguf_ckpt.c. Whole rows, or runs of whole blocks of a row, move into the arena; where a
 * head's columns are not whole blocks of codes, the matrix is expanded to f32, which holds every
 * value. Tensors of a wrong shape stay as they are: the check of the checkpoint refuses them. Must
 * not: round anything.
 */
#include "load/gguf.h"

#include <string.h>

enum { MAX_SIZE = 1 << 20 };

struct undo {
    struct sv_ckpt *c;
    const struct sv_gguf_family *f;
    int64_t heads, kv_heads;                /* of attention */
    int64_t k_heads, v_heads, k_dim, inner; /* of the delta rule; inner: all value heads */
    struct sv_err *err;
};

static bool ends(const char *s, const char *suffix)
{
    const size_t n = strlen(s), k = strlen(suffix);
    return n >= k && !strcmp(s + n - k, suffix);
}

static size_t row_bytes(const struct sv_host_tensor *t)
{
    return t->n_bytes / (size_t)t->dim[0];
}

/* Moves unit j of group g from j * n_groups + g to g * per + j. */
static void move_units(uint8_t *out, const uint8_t *in, size_t unit, int64_t n_groups, int64_t per)
{
    for (int64_t g = 0; g < n_groups; g++)
        for (int64_t j = 0; j < per; j++)
            memcpy(out + (size_t)(g * per + j) * unit, in + (size_t)(j * n_groups + g) * unit,
                   unit);
}

static uint8_t *room(const struct undo *u, const struct sv_host_tensor *t, size_t n_bytes)
{
    uint8_t *copy = sv_arena_alloc(&u->c->arena, n_bytes);
    if (!copy)
        sv_fail(u->err, SV_ENOMEM, -1, "%s: no memory for the rows of '%.120s'", t->file, t->name);
    return copy;
}

static int set_data(struct sv_host_tensor *t, const uint8_t *data)
{
    t->data = data;
    if (t->quant.code)
        t->quant.data = data;
    return SV_OK;
}

/* In each of n_lines lines: the units after its first `first` bytes, up to its end. */
static int move_in_lines(const struct undo *u, struct sv_host_tensor *t, int64_t n_lines,
                         size_t first, int64_t n_groups, int64_t per)
{
    const size_t line = t->n_bytes / (size_t)n_lines;
    const size_t unit = (line - first) / (size_t)(n_groups * per);
    uint8_t *copy = room(u, t, t->n_bytes);
    if (!copy)
        return u->err->code;
    for (int64_t i = 0; i < n_lines; i++) {
        const uint8_t *in = (const uint8_t *)t->data + (size_t)i * line;
        memcpy(copy + (size_t)i * line, in, first);
        move_units(copy + (size_t)i * line + first, in + first, unit, n_groups, per);
    }
    return set_data(t, copy);
}

/* ---------------------------------------------------------------- attention */

/* For neighbouring-pair rotary, row h * hd + 2 i + t holds row h * hd + t * hd / 2 + i. */
static int undo_pairs(const struct undo *u, struct sv_host_tensor *t)
{
    const bool q = strstr(t->name, ".self_attn.q_proj."), k = strstr(t->name, ".self_attn.k_proj.");
    const int64_t heads = q ? u->heads : u->kv_heads, rows = t->dim[0];
    if (!q && !k)
        return SV_OK;
    if (rows % heads || rows / heads % 2)
        return sv_fail(u->err, SV_EFORMAT, -1,
                       "%s: tensor '%.120s': %lld rows are not %lld heads of an even size", t->file,
                       t->name, (long long)rows, (long long)heads);
    return move_in_lines(u, t, heads, 0, 2, rows / heads / 2);
}

/* ---------------------------------------------------------------- gated delta rule */

static int64_t per_key_head(const struct undo *u)
{
    return u->v_heads / u->k_heads;
}

/* Value heads, each of `unit` rows, after the first rows. */
static int untile_rows(const struct undo *u, struct sv_host_tensor *t, int64_t first, int64_t unit)
{
    if (!u->f->tiled || per_key_head(u) == 1 || t->dim[0] != first + u->v_heads * unit)
        return SV_OK;
    return move_in_lines(u, t, 1, (size_t)first * row_bytes(t), u->k_heads, per_key_head(u));
}

/* Value heads that are not whole blocks of a row of codes. */
static int untile_values(const struct undo *u, struct sv_host_tensor *t)
{
    const size_t cols = (size_t)t->dim[1], n_bytes = (size_t)t->n_elements * sizeof(float);
    float *row = sv_alloc(cols * sizeof *row);
    uint8_t *out = row ? room(u, t, n_bytes) : NULL;
    if (!out) {
        sv_free(row);
        return sv_fail(u->err, SV_ENOMEM, -1, "%s: no memory for '%.120s'", t->file, t->name);
    }
    for (int64_t r = 0; r < t->dim[0]; r++) {
        sv_quant_rows(&t->quant, (int32_t)r, 1, row);
        move_units(out + (size_t)r * cols * sizeof *row, (const uint8_t *)row,
                   (size_t)(u->inner / u->v_heads) * sizeof *row, u->k_heads, per_key_head(u));
    }
    sv_free(row);
    t->quant = (struct sv_quant){0};
    t->dtype = SV_F32;
    t->n_bytes = n_bytes;
    t->data = out;
    return SV_OK;
}

static int untile_columns(const struct undo *u, struct sv_host_tensor *t)
{
    const int32_t block = t->quant.code ? sv_quant_block(t->quant.code) : 1;
    if (!u->f->tiled || per_key_head(u) == 1 || t->n_dims != 2 || t->dim[1] != u->inner)
        return SV_OK;
    if (u->inner / u->v_heads % block)
        return untile_values(u, t);
    return move_in_lines(u, t, t->dim[0], 0, u->k_heads, per_key_head(u));
}

/* For each key head the rows of b, then those of a. */
static int split_ba(const struct undo *u, struct sv_host_tensor *t)
{
    const char *both = t->name;
    char name[192];
    if (t->n_dims != 2 || t->dim[0] != 2 * u->v_heads)
        return SV_OK;
    int rc = move_in_lines(u, t, 1, 0, 2, u->k_heads);
    if (rc)
        return rc;
    struct sv_host_tensor *a = &u->c->tensors[u->c->n_tensors++];
    t->dim[0] = u->v_heads;
    t->n_elements /= 2;
    t->n_bytes /= 2;
    t->quant.rows /= 2;
    *a = *t;
    set_data(a, (const uint8_t *)t->data + t->n_bytes);
    for (int i = 0; i < 2; i++) {
        struct sv_host_tensor *half = i ? a : t;
        snprintf(name, sizeof name, "%.*s%c.weight", (int)(strlen(both) - strlen("ba.weight")),
                 both, i ? 'a' : 'b');
        half->name = sv_arena_strdup(&u->c->arena, name);
        if (!half->name)
            return sv_fail(u->err, SV_ENOMEM, -1, "%s: out of memory", t->file);
    }
    return SV_OK;
}

/* Numbers stored as a model uses them: 1 + w of norms, -exp of decays. */
static int mark_as_read(const struct undo *u, struct sv_host_tensor *t)
{
    if (t->dtype != SV_F32 || t->quant.code)
        return sv_fail(u->err, SV_EUNSUPPORTED, -1, "%s: tensor '%.120s' must be F32", t->file,
                       t->name);
    t->as_read = true;
    return SV_OK;
}

static int undo_hybrid(const struct undo *u, struct sv_host_tensor *t)
{
    const int64_t head = u->inner / u->v_heads, keys = 2 * u->k_heads * u->k_dim;
    const char *part = strstr(t->name, ".linear_attn."), *name = part ? part + 13 : t->name;
    if (!part && ends(name, "norm.weight"))
        return mark_as_read(u, t);
    if (ends(name, "shared_expert_gate.weight") && t->n_dims == 1) {
        t->dim[1] = t->dim[0];
        t->dim[0] = 1;
        t->n_dims = 2;
    }
    if (!part || t->n_dims < 1)
        return SV_OK;
    if (!strcmp(name, "A_log"))
        return mark_as_read(u, t) ? u->err->code : untile_rows(u, t, 0, 1);
    if (!strcmp(name, "dt_bias") || !strcmp(name, "in_proj_a.weight") ||
        !strcmp(name, "in_proj_b.weight"))
        return untile_rows(u, t, 0, 1);
    if (!strcmp(name, "in_proj_qkv.weight"))
        return untile_rows(u, t, keys, head);
    if (!strcmp(name, "in_proj_z.weight"))
        return untile_rows(u, t, 0, head);
    if (!strcmp(name, "out_proj.weight"))
        return untile_columns(u, t);
    if (!strcmp(name, "in_proj_ba.weight"))
        return split_ba(u, t);
    if (strcmp(name, "conv1d.weight") || t->n_dims != 2)
        return SV_OK;
    int rc = untile_rows(u, t, keys, head);
    t->dim[2] = t->dim[1]; /* (channels, 1, taps) */
    t->dim[1] = 1;
    t->n_dims = 3;
    return rc;
}

/* ---------------------------------------------------------------- all of a checkpoint */

static int read_sizes(struct undo *u, const struct sv_gguf *g)
{
    const struct {
        const char *name;
        int64_t *out;
        bool hybrid;
    } keys[] = {{"attention.head_count", &u->heads, false},
                {"attention.head_count_kv", &u->kv_heads, false},
                {"ssm.group_count", &u->k_heads, true},
                {"ssm.time_step_rank", &u->v_heads, true},
                {"ssm.state_size", &u->k_dim, true},
                {"ssm.inner_size", &u->inner, true}};
    int rc = SV_OK;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && !rc; i++) {
        if (keys[i].out == &u->kv_heads)
            u->kv_heads = u->heads;
        if (keys[i].hybrid && !u->f->hybrid)
            continue;
        rc = sv_gguf_arch_int(g, u->f->arch, keys[i].name, keys[i].out, u->err);
        if (!rc && (*keys[i].out < 1 || *keys[i].out > MAX_SIZE)) /* products fit 64 bits */
            rc = sv_fail(u->err, SV_EFORMAT, -1, "%s: key '%s.%s' must be in [1, %d]", g->file,
                         u->f->arch, keys[i].name, MAX_SIZE);
    }
    if (!rc && u->f->hybrid && (u->v_heads % u->k_heads || u->inner % u->v_heads))
        rc = sv_fail(u->err, SV_EFORMAT, -1,
                     "%s: %lld value heads of %lld numbers together do not go with %lld key heads",
                     g->file, (long long)u->v_heads, (long long)u->inner, (long long)u->k_heads);
    return rc;
}

int sv_gguf_undo(struct sv_ckpt *c, const struct sv_gguf *g, const struct sv_gguf_family *f,
                 struct sv_err *err)
{
    struct undo u = {.c = c, .f = f, .err = err};
    if (!f->permuted && !f->hybrid)
        return SV_OK;
    int rc = read_sizes(&u, g);
    for (int32_t i = 0, n = c->n_tensors; !rc && i < n; i++)
        rc = f->permuted ? undo_pairs(&u, &c->tensors[i]) : undo_hybrid(&u, &c->tensors[i]);
    return rc;
}
