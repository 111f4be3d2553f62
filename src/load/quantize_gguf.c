/*
 * quantize_gguf.c - a quantized model as a GGUF file: names, order and stacks of llama.cpp's
 * converters, which gguf_ckpt.c and gguf_undo.c read back.
 *
 * Called by quantize.c. Vectors and routers become F32, other matrices keep their type. Must not:
 * leave an incomplete file.
 */
#include "load/quantize.h"

#include "load/gguf.h"

#include "backend/ops_moe.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT = 32 };

/* in_proj_qkvz is two tensors of a file: q, k, v, and z. */
enum half { WHOLE, QKV, Z };

/* One tensor of the file. */
struct gout {
    char name[96];
    const struct sv_source *s; /* the first one of a stack; NULL: rope_freqs */
    enum sv_dtype dtype;       /* plain; or */
    bool rounded;
    int32_t n; /* matrices in it */
    enum half half;
    int32_t n_dims;
    int64_t dim[SV_MAX_DIMS]; /* of one of n */
    size_t n_bytes, at;
};

struct plan {
    const struct sv_model_source *m;
    const struct sv_gguf_family *f;
    enum sv_quant_code code;
    struct gout *out;
    int32_t n_out;
    size_t data_at, n_bytes;
    struct sv_err *err;
};

/* ---------------------------------------------------------------- what is written where */

static bool ends(const char *s, const char *suffix)
{
    const size_t n = strlen(s), k = strlen(suffix);
    return n >= k && !strcmp(s + n - k, suffix);
}

static int64_t n_elements(const struct gout *o)
{
    int64_t n = 1;
    for (int32_t i = 0; i < o->n_dims; i++)
        n *= o->dim[i];
    return n;
}

static size_t rounded_bytes(const struct gout *o, enum sv_quant_code code)
{
    return (size_t)(n_elements(o) / sv_quant_block(code)) * (size_t)sv_quant_block_bytes(code);
}

/* Dimensions that converters drop. */
static void set_shape(struct gout *o, const struct sv_config *c)
{
    const struct sv_host_tensor *t = &o->s->t;
    o->n_dims = t->n_dims;
    memcpy(o->dim, t->dim, sizeof o->dim);
    if (ends(t->name, ".conv1d.weight") && t->n_dims == 3) { /* (channels, 1, taps) */
        o->n_dims = 2;
        o->dim[1] = t->dim[2];
    }
    if (ends(t->name, ".shared_expert_gate.weight")) { /* (1, inputs) */
        o->n_dims = 1;
        o->dim[0] = t->dim[1];
    }
    const int64_t z = (int64_t)c->gdn_v_heads * c->gdn_v_dim;
    if (o->half)
        o->dim[0] = o->half == Z ? z : t->dim[0] - z;
}

static void add_out(struct plan *p, const struct sv_source *s, const char *name, int32_t expert,
                    enum half half)
{
    struct gout *o = &p->out[p->n_out++];
    snprintf(o->name, sizeof o->name, "%s", name);
    o->s = s;
    o->half = half;
    o->rounded = s->rounded;
    set_shape(o, p->m->cfg);
    const bool f32 = o->n_dims < 2 || strstr(name, ".ffn_gate_inp.") ||
                     strstr(name, ".ssm_conv1d.") || ends(name, ".bias");
    o->dtype = f32 ? SV_F32 : s->t.dtype;
    o->n = expert < 0 ? 1 : p->m->cfg->n_experts;
    o->n_bytes = (size_t)o->n * (o->rounded ? rounded_bytes(o, p->code)
                                            : (size_t)n_elements(o) * sv_dtype_bytes(o->dtype));
}

static int plan_tensor(struct plan *p, const struct sv_source *s)
{
    static const char both[] = "linear_attn.in_proj_qkvz.weight";
    const struct sv_config *c = p->m->cfg;
    const char *our = s->t.name, *fused = strstr(our, both);
    char name[96];
    int layer, rc = sv_check_source(s, sv_quant_block(p->code), p->err);
    int32_t expert;
    if (rc)
        return rc;
    if (sscanf(our, "layers.%d.", &layer) == 1 && layer >= c->n_layers)
        return SV_OK; /* after the last one: for further tokens */
    if (fused) {
        snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", layer);
        add_out(p, s, name, -1, QKV);
        snprintf(name, sizeof name, "blk.%d.attn_gate.weight", layer);
        add_out(p, s, name, -1, Z);
        return SV_OK;
    }
    /* extras: a tied head, and unread tensors */
    if (!sv_gguf_file_name(p->f, our, name, sizeof name, &expert) || expert > 0 ||
        (c->tie_embeddings && !strcmp(our, "lm_head.weight")))
        return SV_OK;
    add_out(p, s, name, expert, WHOLE);
    return SV_OK;
}

static int make_plan(struct plan *p)
{
    const struct sv_sources *list = p->m->list;
    int rc = SV_OK;
    p->out = sv_calloc(2 * (size_t)list->n + 1, sizeof *p->out);
    if (!p->out)
        return sv_fail(p->err, SV_ENOMEM, -1, "out of memory");
    if (p->m->cfg->rope.kind == SV_ROPE_LLAMA3) {
        struct gout *o = &p->out[p->n_out++];
        snprintf(o->name, sizeof o->name, "rope_freqs.weight");
        o->n = o->n_dims = 1;
        o->dim[0] = p->m->cfg->head_dim / 2;
        o->n_bytes = (size_t)o->dim[0] * sizeof(float);
    }
    for (int32_t i = 0; i < list->n && !rc; i++)
        rc = plan_tensor(p, &list->s[i]);
    for (int32_t i = 0; i < p->n_out; i++) {
        p->out[i].at = p->n_bytes;
        p->n_bytes += (p->out[i].n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return rc;
}

/* ---------------------------------------------------------------- the head of the file */

/* The file's order of dimensions: a row's length first. */
static void put_info(const struct plan *p, const struct gout *o, struct sv_buf *b)
{
    sv_gguf_put_text(b, o->name, strlen(o->name));
    sv_gguf_put(b, (uint64_t)(o->n_dims + (o->n > 1)), 4);
    for (int32_t i = o->n_dims; i-- > 0;)
        sv_gguf_put(b, (uint64_t)o->dim[i], 8);
    if (o->n > 1)
        sv_gguf_put(b, (uint64_t)o->n, 8);
    sv_gguf_put(b, sv_gguf_type_of(o->dtype, o->rounded ? p->code : SV_CODE_NONE), 4);
    sv_gguf_put(b, o->at, 8);
}

static int make_head(struct plan *p, struct sv_buf *b)
{
    struct sv_gguf_meta meta = {.n = 0};
    char name[256];
    sv_buf_init(&meta.kv);
    sv_model_name(p->m->dir, name, sizeof name);
    int rc = sv_gguf_put_config(&meta, p->f, p->m->cfg, name, p->err);
    if (!rc && p->m->draft)
        rc = sv_gguf_put_draft(&meta, p->m->draft, p->err);
    if (!rc)
        rc = sv_gguf_put_tokenizer(&meta, p->m->dir, p->m->cfg, p->err);
    if (!rc) {
        sv_buf_lit(b, "GGUF");
        sv_gguf_put(b, 3, 4);
        sv_gguf_put(b, (uint64_t)p->n_out, 8);
        sv_gguf_put(b, meta.n, 8);
        sv_buf_append(b, meta.kv.data, meta.kv.len);
        for (int32_t i = 0; i < p->n_out; i++)
            put_info(p, &p->out[i], b);
        while (b->len % ALIGNMENT && !b->failed)
            sv_gguf_put(b, 0, 1);
        p->data_at = b->len;
        rc = b->failed ? sv_fail(p->err, SV_ENOMEM, -1, "out of memory") : SV_OK;
    }
    sv_buf_fini(&meta.kv);
    return rc;
}

/* ---------------------------------------------------------------- tensors */

/* Rows for neighbouring-pair rotary: ours h * hd + t * hd / 2 + i becomes h * hd + 2 i + t. */
static void in_pairs(uint8_t *to, const struct sv_host_tensor *t, int32_t heads)
{
    const size_t row = t->n_bytes / (size_t)t->dim[0], half = (size_t)(t->dim[0] / heads / 2);
    for (int32_t h = 0; h < heads; h++)
        for (size_t i = 0; i < 2 * half; i++, to += row)
            memcpy(to,
                   (const uint8_t *)t->data + ((size_t)h * 2 * half + i % 2 * half + i / 2) * row,
                   row);
}

/* A line: the value heads after its first bytes, ordered with the key head last. */
static void tile(uint8_t *to, const uint8_t *from, size_t line, size_t first,
                 const struct sv_config *c)
{
    const int32_t n = c->gdn_k_heads, per = c->gdn_v_heads / n;
    const size_t unit = (line - first) / (size_t)c->gdn_v_heads;
    memcpy(to, from, first);
    for (int32_t g = 0; g < n; g++)
        for (int32_t j = 0; j < per; j++)
            memcpy(to + first + (size_t)(j * n + g) * unit,
                   from + first + (size_t)(g * per + j) * unit, unit);
}

/* Rows of q, k and v, or of z, stored by key head. */
static void split(uint8_t *to, const struct sv_host_tensor *t, const struct sv_config *c,
                  enum half half)
{
    const size_t row = t->n_bytes / (size_t)t->dim[0];
    const int32_t n = sv_tensor_n_ranges(SV_FORM_QKVZ, c), z = n / 4 * 3;
    for (int32_t i = half == Z ? z : 0; i < (half == Z ? n : z); i++) {
        const struct sv_slice r = sv_tensor_range(SV_FORM_QKVZ, c, i);
        memcpy(to, (const uint8_t *)t->data + (size_t)r.first * row, (size_t)r.n * row);
        to += (size_t)r.n * row;
    }
}

/* Value heads in a tiled tensor: lines, and bytes before the heads. */
static bool is_tiled(const struct plan *p, const struct sv_host_tensor *t, int64_t *lines,
                     size_t *first)
{
    static const char *const by_row[] = {"in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight",
                                         "A_log", "dt_bias"};
    const struct sv_config *c = p->m->cfg;
    const char *part = strstr(t->name, ".linear_attn."), *name = part ? part + 13 : "";
    const size_t keys = 2 * (size_t)c->gdn_k_heads * (size_t)c->gdn_k_dim;
    bool yes = !strcmp(name, "out_proj.weight");
    if (!p->f->tiled || !part)
        return false;
    *lines = yes ? t->dim[0] : 1;
    *first = 0;
    for (size_t i = 0; i < sizeof by_row / sizeof by_row[0]; i++)
        yes = yes || !strcmp(name, by_row[i]);
    if (strcmp(name, "in_proj_qkv.weight") && strcmp(name, "conv1d.weight"))
        return yes;
    *first = keys * (t->n_bytes / (size_t)t->dim[0]);
    return true;
}

/* The tensor as stored, from *copy, which is its data or NULL. */
static int arrange(const struct plan *p, const struct gout *o, struct sv_host_tensor *t,
                   void **copy)
{
    const struct sv_config *c = p->m->cfg;
    const bool q = strstr(o->name, ".attn_q."), k = strstr(o->name, ".attn_k.");
    const bool pairs = p->f->permuted && (q || k);
    int64_t lines = 1;
    size_t first;
    const bool tiled = is_tiled(p, t, &lines, &first);
    if (!pairs && !tiled && !o->half)
        return SV_OK;
    uint8_t *to = sv_alloc(t->n_bytes);
    if (!to)
        return sv_fail(p->err, SV_ENOMEM, -1, "no memory for %s", t->name);
    const size_t line = t->n_bytes / (size_t)lines;
    if (pairs)
        in_pairs(to, t, q ? c->n_heads : c->n_kv_heads);
    for (int64_t i = 0; i < lines && tiled; i++)
        tile(to + (size_t)i * line, (const uint8_t *)t->data + (size_t)i * line, line, first, c);
    if (o->half)
        split(to, t, c, o->half);
    sv_free(*copy);
    t->data = *copy = to;
    return SV_OK;
}

static int put_rounded(const struct plan *p, const struct sv_out *f, const struct gout *o,
                       const struct sv_host_tensor *t, size_t at)
{
    const size_t n = rounded_bytes(o, p->code);
    struct sv_quantized report;
    uint8_t *blocks = sv_alloc(n);
    int rc = blocks ? SV_OK : sv_fail(p->err, SV_ENOMEM, -1, "no memory for %s", t->name);
    if (!rc)
        rc = sv_round_matrix(t, p->code, blocks, NULL, &report, p->err);
    if (!rc)
        rc = sv_out_put(f, blocks, n, p->data_at + at);
    sv_free(blocks);
    if (rc)
        return rc;
    report.n_bytes_before = (int64_t)t->n_bytes;
    return p->m->on_matrix(p->m->user, &report);
}

/* Hybrids' norms and decays are stored as a model uses them. */
static float stored(const struct plan *p, const struct sv_host_tensor *t, int64_t i)
{
    const float x = sv_tensor_number(t, i);
    const bool gdn = strstr(t->name, ".linear_attn.");
    if (!p->f->hybrid)
        return x;
    if (!gdn && ends(t->name, "norm.weight"))
        return 1.0f + x;
    return ends(t->name, ".linear_attn.A_log") ? -expf(x) : x;
}

static int put_f32(const struct plan *p, const struct sv_out *f, const struct sv_host_tensor *t,
                   size_t at)
{
    const size_t n = (size_t)t->n_elements;
    float *x = sv_alloc(n * sizeof *x);
    if (!x)
        return sv_fail(p->err, SV_ENOMEM, -1, "no memory for %s", t->name);
    for (size_t i = 0; i < n; i++)
        x[i] = stored(p, t, (int64_t)i);
    const int rc = sv_out_put(f, x, n * sizeof *x, p->data_at + at);
    sv_free(x);
    return rc;
}

static int put_one(const struct plan *p, const struct sv_out *f, const struct gout *o,
                   const struct sv_source *from, size_t at)
{
    struct sv_host_tensor t;
    void *copy;
    int rc = sv_source_take(from, &t, &copy, p->err);
    if (!rc)
        rc = arrange(p, o, &t, &copy);
    t.n_bytes = t.n_bytes / (size_t)t.n_elements * (size_t)n_elements(o);
    t.n_elements = n_elements(o);
    if (o->half)
        t.dim[0] = o->dim[0];
    if (!rc)
        rc = o->rounded           ? put_rounded(p, f, o, &t, at)
             : o->dtype == SV_F32 ? put_f32(p, f, &t, at)
                                  : sv_out_put(f, t.data, t.n_bytes, p->data_at + at);
    sv_free(copy);
    return rc;
}

static int put_tensor(const struct plan *p, const struct sv_out *f, const struct gout *o)
{
    static const char mark[] = ".experts.0.";
    const char *name = o->s ? o->s->t.name : NULL, *at = name ? strstr(name, mark) : NULL;
    char expert[160];
    int rc = SV_OK;
    if (!o->s) {
        float factor[SV_MAX_ROPE_FACTORS];
        sv_rope_factors(&p->m->cfg->rope, p->m->cfg->head_dim, factor);
        return sv_out_put(f, factor, o->n_bytes, p->data_at + o->at);
    }
    if (!at)
        return put_one(p, f, o, o->s, o->at);
    for (int32_t e = 0; e < o->n && !rc; e++) {
        snprintf(expert, sizeof expert, "%.*s.experts.%d.%s", (int)(at - name), name, e,
                 at + sizeof mark - 1);
        const struct sv_source *s = sv_sources_find(p->m->list, expert);
        SV_REQUIRE(s);
        rc = put_one(p, f, o, s, o->at + (size_t)e * (o->n_bytes / (size_t)o->n));
    }
    return rc;
}

static int write_file(const struct plan *p, const struct sv_buf *head, const char *path)
{
    struct sv_out f;
    int rc = sv_out_open(&f, path, p->data_at + p->n_bytes, p->err);
    if (rc)
        return rc;
    rc = sv_out_put(&f, head->data, head->len, 0);
    for (int32_t i = 0; i < p->n_out && !rc; i++)
        rc = put_tensor(p, &f, &p->out[i]);
    return sv_out_close(&f, rc);
}

static int write_whole(const struct plan *p, const struct sv_buf *head, const char *out)
{
    struct sv_buf tmp;
    int rc = sv_out_partial(&tmp, out, p->err);
    if (!rc)
        rc = write_file(p, head, tmp.data);
    if (!rc && (sv_fault_hit() || rename(tmp.data, out)))
        rc = sv_fail(p->err, SV_EIO, -1, "%s: cannot rename into place: %s", out, strerror(errno));
    if (rc && !tmp.failed)
        unlink(tmp.data);
    sv_buf_fini(&tmp);
    return rc;
}

int sv_quantize_to_gguf(const struct sv_model_source *m, enum sv_quant_code code, const char *out,
                        struct sv_err *err)
{
    struct plan p = {.m = m, .f = sv_gguf_family_of(m->cfg), .err = err};
    struct sv_buf head;
    p.code = code == SV_CODE_INT8    ? SV_CODE_Q8_0
             : code == SV_CODE_INT4  ? SV_CODE_Q4_0
             : code == SV_CODE_MXFP4 ? SV_CODE_GG_MXFP4
                                     : SV_CODE_NONE;
    if (!p.code)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%s: GGUF has no type for %s", out,
                       sv_quant_name(code));
    if (!p.f)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%s: GGUF files of %s are not written, as none of it are read", out,
                       sv_arch_name(m->cfg->arch));
    sv_buf_init(&head);
    int rc = make_plan(&p);
    if (!rc)
        rc = make_head(&p, &head);
    if (!rc)
        rc = write_whole(&p, &head, out);
    sv_buf_fini(&head);
    sv_free(p.out);
    return rc;
}
