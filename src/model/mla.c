/*
 * mla.c - the latent attention mixer: queries and the latent of a position, attention over cached
 * latents, values of each head, output projection.
 *
 * Called by stack.c. Always in the absorbed form (ops_mla.h): keys and values of heads are never
 * computed. What differs between architectures (a latent for queries, biases, which numbers rotate
 * together) is data in struct sv_mla. Must not: allocate or synchronise, or choose a form by the
 * number of rows.
 */
#include "model/impl.h"

struct buffers {
    void *q_a;      /* (n_rows, q_lora), where queries come from a latent */
    void *q;        /* (n_rows, n_heads head_dim) */
    void *kv;       /* (n_rows, width) */
    void *absorbed; /* (n_rows, n_heads width): K_h^T q_h and its rotated part */
    void *sums;     /* (n_rows, n_heads latent): attention's output */
    void *out;      /* (n_rows, n_heads v_dim) */
};

/* Kept of a position. */
static int32_t width(const struct sv_mla *a)
{
    return a->latent + a->rope.rot_dim;
}

static int32_t q_width(const struct sv_mla *a)
{
    return a->n_heads * a->head_dim;
}

static struct buffers take(const struct sv_mla *a, struct sv_scratch *s, int32_t n_rows)
{
    struct buffers b = {0};
    if (a->q_lora)
        b.q_a = sv_scratch_take(s, n_rows, a->q_lora);
    b.q = sv_scratch_take(s, n_rows, q_width(a));
    b.kv = sv_scratch_take(s, n_rows, width(a));
    b.absorbed = sv_scratch_take(s, n_rows, (int64_t)a->n_heads * width(a));
    b.sums = sv_scratch_take(s, n_rows, (int64_t)a->n_heads * a->latent);
    b.out = sv_scratch_take(s, n_rows, (int64_t)a->n_heads * a->v_dim);
    return b;
}

struct sv_place sv_mla_place(struct sv_mla *a, int role)
{
    struct sv_gemm_part *part = NULL;
    switch (role & ~SV_ROLE_BIAS) {
    case SV_ROLE_Q_A:
        part = &a->q_a;
        break;
    case SV_ROLE_Q:
        part = &a->q;
        break;
    case SV_ROLE_KV_A:
        part = &a->kv_a;
        break;
    case SV_ROLE_O:
        part = &a->o;
        break;
    case SV_ROLE_Q_A_NORM:
        return (struct sv_place){.w = &a->q_a_norm};
    case SV_ROLE_KV_A_NORM:
        return (struct sv_place){.w = &a->kv_a_norm};
    case SV_ROLE_K_UP:
        return (struct sv_place){.experts = &a->k_up};
    case SV_ROLE_V_UP:
        return (struct sv_place){.experts = &a->v_up};
    default:
        return (struct sv_place){0};
    }
    return (struct sv_place){.w = role & SV_ROLE_BIAS ? &part->bias : &part->w};
}

void sv_mla_needs(const struct sv_mla *a, int32_t hidden, struct sv_needs *n)
{
    struct sv_scratch s = {.elem_bytes = n->elem_bytes};
    take(a, &s, n->lim.max_rows);
    n->scratch_bytes = s.n_bytes > n->scratch_bytes ? s.n_bytes : n->scratch_bytes;
    sv_needs_gemm(n, hidden, a->q_lora ? a->q_lora : q_width(a));
    sv_needs_gemm(n, a->q_lora, a->q_lora ? q_width(a) : 0);
    sv_needs_gemm(n, hidden, width(a));
    sv_needs_gemm(n, a->k_up.cols, a->k_up.rows);
    sv_needs_gemm(n, a->v_up.cols, a->v_up.rows);
    sv_needs_gemm(n, a->n_heads * a->v_dim, hidden);
    n->lim.by_head = true;
    n->lim.max_heads = a->n_heads > n->lim.max_heads ? a->n_heads : n->lim.max_heads;
    n->lim.max_head_dim = width(a) > n->lim.max_head_dim ? width(a) : n->lim.max_head_dim;
}

static void queries(const struct sv_mla *a, const struct sv_stack *st, struct sv_dev *dev,
                    const struct sv_acts *acts, const struct buffers *b, int32_t n)
{
    if (!a->q_lora) {
        sv_model_gemm(dev, n, st->hidden, acts->h, &a->q, 1, b->q);
        return;
    }
    sv_model_gemm(dev, n, st->hidden, acts->h, &a->q_a, 1, b->q_a);
    sv_op_add_rms_norm(dev, &(struct sv_p_add_rms_norm){
                                .n_rows = n,
                                .d = a->q_lora,
                                .x = b->q_a,
                                .weight = a->q_a_norm,
                                .eps = a->eps,
                                .out = b->q_a,
                            });
    sv_model_gemm(dev, n, a->q_lora, b->q_a, &a->q, 1, b->q);
}

void sv_mla_forward(const struct sv_mla *a, const struct sv_stack *st, struct sv_dev *dev,
                    const struct sv_acts *acts, const struct sv_pass *p)
{
    const int32_t n = p->rows.n_rows, nh = a->n_heads;
    const struct sv_kv cache = sv_cache_kv(p->cache, a->cache_group, a->cache_layer);
    struct sv_scratch s = acts->scratch;
    const struct buffers b = take(a, &s, n);

    queries(a, st, dev, acts, &b, n);
    sv_model_gemm(dev, n, st->hidden, acts->h, &a->kv_a, 1, b.kv);
    sv_op_mla_write(dev, &(struct sv_p_mla_write){
                             .rows = p->rows,
                             .kv = b.kv,
                             .norm = a->kv_a_norm,
                             .eps = a->eps,
                             .rope = a->rope,
                             .interleaved = a->interleaved,
                             .n_heads = nh,
                             .head_dim = a->head_dim,
                             .q = b.q,
                             .absorbed = b.absorbed,
                             .cache = cache,
                         });
    sv_op_head_products(dev, &(struct sv_p_head_products){
                                 .n_rows = n,
                                 .x = b.q,
                                 .ldx = q_width(a),
                                 .x_stride = a->head_dim,
                                 .w = a->k_up,
                                 .y = b.absorbed,
                                 .ldy = (int64_t)nh * width(a),
                                 .y_stride = width(a),
                             });
    sv_op_attention(dev, &(struct sv_p_attention){
                             .rows = p->rows,
                             .q = b.absorbed,
                             .ldq = (int64_t)nh * width(a),
                             .out = b.sums,
                             .ldo = (int64_t)nh * a->latent,
                             .n_heads = nh,
                             .kv = cache,
                             .v_dim = a->latent,
                             .mask = SV_MASK_CAUSAL,
                             .scale = a->scale,
                         });
    sv_op_head_products(dev, &(struct sv_p_head_products){
                                 .n_rows = n,
                                 .x = b.sums,
                                 .ldx = (int64_t)nh * a->latent,
                                 .x_stride = a->latent,
                                 .w = a->v_up,
                                 .y = b.out,
                                 .ldy = (int64_t)nh * a->v_dim,
                                 .y_stride = a->v_dim,
                             });
    sv_model_gemm_last(dev, n, nh * a->v_dim, b.out, &a->o, sv_model_mixer_push(st, p), acts);
}
