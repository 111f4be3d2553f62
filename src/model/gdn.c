/*
 * gdn.c - the gated delta rule mixer: projections, convolution and gates, the scan over a slot's
 * state, gated norm, output projection.
 *
 * Called by stack.c. Files have separate input projections (q|k|v, z, b, a) or fused ones (q|k|v|z,
 * b|a); the product's row is the same. The op handles rows that may be rejected (ops_gdn.h). Must
 * not allocate, synchronise or read a state.
 */
#include "model/impl.h"

struct buffers {
    void *in; /* (n_rows, in_width): q|k|v, z, b, a */
    struct sv_gdn_rows rows;
    float *scanned; /* (n_rows, out_width) */
    void *out;      /* (n_rows, out_width) */
};

static int32_t out_width(const struct sv_gdn *g)
{
    return g->shape.n_v_heads * g->shape.v_dim;
}

static int32_t in_width(const struct sv_gdn *g)
{
    return sv_gdn_channels(&g->shape) + out_width(g) + 2 * g->shape.n_v_heads;
}

static struct buffers take(const struct sv_gdn *g, struct sv_scratch *s, int32_t n_rows)
{
    struct buffers b = {.in = sv_scratch_take(s, n_rows, in_width(g))};
    const size_t scanned = (size_t)n_rows * (size_t)out_width(g) * sizeof *b.scanned;
    void *rows = sv_scratch_bytes(s, sv_gdn_rows_lay_out(&b.rows, &g->shape, n_rows, NULL));
    sv_gdn_rows_lay_out(&b.rows, &g->shape, n_rows, rows);
    b.scanned = sv_scratch_bytes(s, scanned);
    b.out = sv_scratch_take(s, n_rows, out_width(g));
    return b;
}

struct sv_weight *sv_gdn_place(struct sv_gdn *g, int role)
{
    switch (role) {
    case SV_ROLE_GDN_QKV:
        return &g->in[0].w;
    case SV_ROLE_GDN_Z:
        return &g->in[1].w;
    case SV_ROLE_GDN_B:
        return &g->in[g->n_in / 2].w;
    case SV_ROLE_GDN_A:
        return &g->in[3].w;
    case SV_ROLE_GDN_CONV:
        return &g->conv;
    case SV_ROLE_GDN_DECAY:
        return &g->decay;
    case SV_ROLE_GDN_DT_BIAS:
        return &g->dt_bias;
    case SV_ROLE_GDN_NORM:
        return &g->norm;
    case SV_ROLE_O:
        return &g->o.w;
    default:
        return NULL;
    }
}

void sv_gdn_needs(const struct sv_gdn *g, int32_t hidden, struct sv_needs *n)
{
    struct sv_scratch s = {.elem_bytes = n->elem_bytes};
    take(g, &s, n->lim.max_rows);
    n->scratch_bytes = s.n_bytes > n->scratch_bytes ? s.n_bytes : n->scratch_bytes;
    sv_needs_gemm(n, hidden, in_width(g));
    sv_needs_gemm(n, out_width(g), hidden);
}

void sv_gdn_forward(const struct sv_gdn *g, const struct sv_stack *st, struct sv_dev *dev,
                    const struct sv_acts *acts, const struct sv_pass *p)
{
    const int32_t n = p->rows.n_rows, nv = g->shape.n_v_heads;
    const size_t elem = acts->scratch.elem_bytes;
    const struct sv_state kept = sv_cache_state(p->cache, g->cache_group, g->cache_layer);
    const struct sv_gdn_slots slots = {kept.data, kept.slot_stride};
    struct sv_scratch s = acts->scratch;
    const struct buffers b = take(g, &s, n);
    const char *z = (const char *)b.in + (size_t)sv_gdn_channels(&g->shape) * elem;
    const char *beta = z + (size_t)out_width(g) * elem;

    sv_model_gemm(dev, n, st->hidden, acts->h, g->in, g->n_in, b.in);
    sv_op_gdn(dev, &(struct sv_p_gdn){.conv = {.rows = p->rows,
                                               .shape = g->shape,
                                               .slots = slots,
                                               .x = b.in,
                                               .b = beta,
                                               .a = beta + (size_t)nv * elem,
                                               .ldx = in_width(g),
                                               .conv = g->conv,
                                               .decay = g->decay,
                                               .dt_bias = g->dt_bias,
                                               .out = b.rows},
                                      .scan = {.rows = p->rows,
                                               .shape = g->shape,
                                               .slots = slots,
                                               .x = b.rows,
                                               .out = b.scanned},
                                      .norm = {.rows = p->rows,
                                               .shape = g->shape,
                                               .slots = slots,
                                               .mid = b.rows,
                                               .x = b.scanned,
                                               .z = z,
                                               .ldz = in_width(g),
                                               .weight = g->norm,
                                               .eps = st->eps,
                                               .out = b.out},
                                      .most = p->most});
    sv_model_gemm_last(dev, n, out_width(g), b.out, &g->o, sv_model_mixer_push(st, p), acts);
}
