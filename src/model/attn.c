/*
 * attn.c - the attention mixer: projections, head norms and rotary positions, attention over the
 * paged cache, gates, output projection.
 *
 * Called by stack.c. What differs between architectures and between layers (biases, head norms,
 * masks, windows, sinks) is data in struct sv_attn, never a branch on a name. Must not allocate or
 * synchronise.
 */
#include "model/impl.h"

struct buffers {
    void *qkv; /* (n_rows, (n_heads + 2 n_kv_heads) head_dim), and gates after the queries */
    void *out; /* (n_rows, n_heads head_dim) */
};

static int32_t out_width(const struct sv_attn *a)
{
    return a->n_heads * a->head_dim;
}

/* Stride of the queries of heads. */
static int32_t q_stride(const struct sv_attn *a)
{
    return a->gated ? 2 * a->head_dim : a->head_dim;
}

static int32_t qkv_width(const struct sv_attn *a)
{
    return a->n_heads * q_stride(a) + 2 * a->n_kv_heads * a->head_dim;
}

static struct buffers take(const struct sv_attn *a, struct sv_scratch *s, int32_t n_rows)
{
    void *qkv = sv_scratch_take(s, n_rows, qkv_width(a));
    return (struct buffers){qkv, sv_scratch_take(s, n_rows, out_width(a))};
}

struct sv_weight *sv_attn_place(struct sv_attn *a, int role)
{
    struct sv_gemm_part *part = NULL;
    switch (role & ~SV_ROLE_BIAS) {
    case SV_ROLE_Q:
        part = &a->qkv[0];
        break;
    case SV_ROLE_K:
        part = &a->qkv[1];
        break;
    case SV_ROLE_V:
        part = &a->qkv[2];
        break;
    case SV_ROLE_O:
        part = &a->o;
        break;
    case SV_ROLE_Q_NORM:
        return &a->q_norm;
    case SV_ROLE_K_NORM:
        return &a->k_norm;
    case SV_ROLE_SINKS:
        return &a->sinks;
    default:
        return NULL;
    }
    return role & SV_ROLE_BIAS ? &part->bias : &part->w;
}

void sv_attn_needs(const struct sv_attn *a, int32_t hidden, struct sv_needs *n)
{
    struct sv_scratch s = {.elem_bytes = n->elem_bytes};
    take(a, &s, n->lim.max_rows);
    n->scratch_bytes = s.n_bytes > n->scratch_bytes ? s.n_bytes : n->scratch_bytes;
    sv_needs_gemm(n, hidden, qkv_width(a));
    sv_needs_gemm(n, out_width(a), hidden);
    n->lim.max_heads = a->n_heads > n->lim.max_heads ? a->n_heads : n->lim.max_heads;
    n->lim.max_head_dim = a->head_dim > n->lim.max_head_dim ? a->head_dim : n->lim.max_head_dim;
}

struct sv_kv sv_attn_kv(const struct sv_attn *a, const struct sv_cache *cache)
{
    struct sv_kv kv = sv_cache_kv(cache, a->cache_group, a->cache_layer);
    kv.k_scale = a->k_scale;
    kv.v_scale = a->v_scale;
    return kv;
}

void sv_attn_forward(const struct sv_attn *a, const struct sv_stack *st, struct sv_dev *dev,
                     const struct sv_acts *acts, const struct sv_pass *p)
{
    const int32_t n = p->rows.n_rows;
    const struct sv_kv kv = sv_attn_kv(a, p->cache);
    struct sv_scratch s = acts->scratch;
    const struct buffers b = take(a, &s, n);

    sv_model_gemm(dev, n, st->hidden, acts->h, a->qkv, 3, b.qkv);
    sv_op_qk_norm_rope_kv_write(dev, &(struct sv_p_qk_norm_rope_kv_write){
                                         .rows = p->rows,
                                         .qkv = b.qkv,
                                         .ld = qkv_width(a),
                                         .n_heads = a->n_heads,
                                         .q_stride = q_stride(a),
                                         .q_norm = a->q_norm,
                                         .k_norm = a->k_norm,
                                         .eps = st->eps,
                                         .rope = a->rope,
                                         .kv = kv,
                                     });
    sv_op_attention(dev, &(struct sv_p_attention){
                             .rows = p->rows,
                             .q = b.qkv,
                             .ldq = qkv_width(a),
                             .q_stride = q_stride(a),
                             .out = b.out,
                             .ldo = out_width(a),
                             .n_heads = a->n_heads,
                             .kv = kv,
                             .mask = a->mask,
                             .window = a->window,
                             .scale = a->scale,
                             .softcap = a->softcap,
                             .sinks = a->sinks,
                         });
    if (a->gated)
        sv_op_sigmoid_mul(dev, &(struct sv_p_sigmoid_mul){
                                   .n_rows = n,
                                   .n_heads = a->n_heads,
                                   .head_dim = a->head_dim,
                                   .x = b.out,
                                   .gate = (const char *)b.qkv + (size_t)a->head_dim * s.elem_bytes,
                                   .ldg = qkv_width(a),
                                   .gate_stride = q_stride(a),
                               });
    sv_model_gemm_last(dev, n, out_width(a), b.out, &a->o, sv_model_mixer_push(st, p), acts);
}
