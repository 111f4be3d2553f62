/*
 * quantize_gguf.c - a model in fewer bits as a GGUF file: names, order and stacks of llama.cpp's
 * converters, which gguf_ckpt.c and gguf_undo.c read back.
 *
 * Called by quantize.c. Vectors and routers become F32, other matrices keep their type. Must not:
 * leave a file behind that is not whole.
 */
#include "load/quantize.h"

#include "load/gguf.h"

#include "backend/ops_moe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT = 32 };

/* One tensor of the file. */
struct gout {
    char name[96];
    const struct sv_host_tensor *t; /* of a stack the first one; NULL: rope_freqs */
    enum sv_dtype dtype;            /* plain; or */
    bool rounded;
    int32_t n; /* matrices in it */
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

static size_t rounded_bytes(const struct sv_host_tensor *t, enum sv_quant_code code)
{
    return (size_t)(t->n_elements / sv_quant_block(code)) * (size_t)sv_quant_block_bytes(code);
}

static int plan_tensor(struct plan *p, const struct sv_host_tensor *t)
{
    struct gout *o = &p->out[p->n_out];
    int32_t expert;
    int rc = sv_check_source(t, sv_quant_block(p->code), p->err);
    if (rc)
        return rc;
    /* extras: of a tied head, and what nothing reads */
    if (!sv_gguf_file_name(p->f, t->name, o->name, sizeof o->name, &expert) || expert > 0 ||
        (p->m->cfg->tie_embeddings && !strcmp(t->name, "lm_head.weight")))
        return SV_OK;
    const bool router = strstr(o->name, ".ffn_gate_inp.");
    o->t = t;
    o->rounded = sv_is_projection(t->name);
    o->dtype = t->n_dims < 2 || router ? SV_F32 : t->dtype;
    o->n = expert < 0 ? 1 : p->m->cfg->n_experts;
    o->n_bytes = o->rounded ? (size_t)o->n * rounded_bytes(t, p->code)
                            : (size_t)t->n_elements * sv_dtype_bytes(o->dtype);
    p->n_out++;
    return SV_OK;
}

static int make_plan(struct plan *p)
{
    const struct sv_ckpt *c = p->m->ckpt;
    int rc = SV_OK;
    p->out = sv_calloc((size_t)c->n_tensors + 1, sizeof *p->out);
    if (!p->out)
        return sv_fail(p->err, SV_ENOMEM, -1, "out of memory");
    if (p->m->cfg->rope.kind == SV_ROPE_LLAMA3) {
        struct gout *o = &p->out[p->n_out++];
        snprintf(o->name, sizeof o->name, "rope_freqs.weight");
        o->n_bytes = (size_t)(p->m->cfg->head_dim / 2) * sizeof(float);
    }
    for (int32_t i = 0; i < c->n_tensors && !rc; i++)
        rc = plan_tensor(p, &c->tensors[i]);
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
    const int32_t n_dims = o->t ? o->t->n_dims + (o->n > 1) : 1;
    sv_gguf_put_text(b, o->name, strlen(o->name));
    sv_gguf_put(b, (uint64_t)n_dims, 4);
    if (!o->t)
        sv_gguf_put(b, o->n_bytes / sizeof(float), 8);
    for (int32_t i = o->t ? o->t->n_dims : 0; i-- > 0;)
        sv_gguf_put(b, (uint64_t)o->t->dim[i], 8);
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
static void *in_pairs(const struct sv_host_tensor *t, int32_t heads)
{
    const size_t row = t->n_bytes / (size_t)t->dim[0], half = (size_t)(t->dim[0] / heads / 2);
    uint8_t *copy = sv_alloc(t->n_bytes), *to = copy;
    for (int32_t h = 0; copy && h < heads; h++)
        for (size_t i = 0; i < 2 * half; i++, to += row)
            memcpy(to,
                   (const uint8_t *)t->data + ((size_t)h * 2 * half + i % 2 * half + i / 2) * row,
                   row);
    return copy;
}

/* The tensor as it is stored; *copy is to be freed. */
static int arrange(const struct plan *p, const struct gout *o, const struct sv_host_tensor *from,
                   struct sv_host_tensor *t, void **copy)
{
    const struct sv_config *c = p->m->cfg;
    const bool q = strstr(o->name, ".attn_q."), k = strstr(o->name, ".attn_k.");
    *t = *from;
    *copy = NULL;
    if (!p->f->permuted || (!q && !k))
        return SV_OK;
    t->data = *copy = in_pairs(from, q ? c->n_heads : c->n_kv_heads);
    return t->data ? SV_OK : sv_fail(p->err, SV_ENOMEM, -1, "no memory for %s", from->name);
}

static int put_rounded(const struct plan *p, const struct sv_out *f, const struct sv_host_tensor *t,
                       size_t at)
{
    const size_t n = rounded_bytes(t, p->code);
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
    return p->m->told(p->m->user, &report);
}

static int put_f32(const struct plan *p, const struct sv_out *f, const struct sv_host_tensor *t,
                   size_t at)
{
    const size_t n = (size_t)t->n_elements;
    float *x = sv_alloc(n * sizeof *x);
    if (!x)
        return sv_fail(p->err, SV_ENOMEM, -1, "no memory for %s", t->name);
    for (size_t i = 0; i < n; i++)
        x[i] = sv_tensor_number(t, (int64_t)i);
    const int rc = sv_out_put(f, x, n * sizeof *x, p->data_at + at);
    sv_free(x);
    return rc;
}

static int put_one(const struct plan *p, const struct sv_out *f, const struct gout *o,
                   const struct sv_host_tensor *from, size_t at)
{
    struct sv_host_tensor t;
    void *copy;
    int rc = arrange(p, o, from, &t, &copy);
    if (rc)
        return rc;
    rc = o->rounded           ? put_rounded(p, f, &t, at)
         : o->dtype == SV_F32 ? put_f32(p, f, &t, at)
                              : sv_out_put(f, t.data, t.n_bytes, p->data_at + at);
    sv_free(copy);
    return rc;
}

static int put_tensor(const struct plan *p, const struct sv_out *f, const struct gout *o)
{
    static const char mark[] = ".experts.0.";
    const char *name = o->t ? o->t->name : NULL, *at = name ? strstr(name, mark) : NULL;
    char expert[160];
    int rc = SV_OK;
    if (!o->t) {
        float factor[SV_MAX_ROPE_FACTORS];
        sv_rope_factors(&p->m->cfg->rope, p->m->cfg->head_dim, factor);
        return sv_out_put(f, factor, o->n_bytes, p->data_at + o->at);
    }
    if (!at)
        return put_one(p, f, o, o->t, o->at);
    for (int32_t e = 0; e < o->n && !rc; e++) {
        snprintf(expert, sizeof expert, "%.*s.experts.%d.%s", (int)(at - name), name, e,
                 at + sizeof mark - 1);
        const struct sv_host_tensor *t = sv_ckpt_find(p->m->ckpt, expert);
        SV_REQUIRE(t);
        rc = put_one(p, f, o, t, o->at + (size_t)e * (o->n_bytes / (size_t)o->n));
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
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%s: GGUF files of %s are not written", out,
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
