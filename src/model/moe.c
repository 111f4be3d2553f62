/*
 * moe.c - the mixture-of-experts ffn: a router chooses k experts for each row, each is a small
 * gated MLP, and their results are summed with the router's weights.
 *
 * Called by stack.c. What differs between architectures (biases, activation, the router's softmax)
 * is data in struct sv_moe, never a branch on a name. Must not allocate, synchronise or read a
 * choice.
 */
#include "model/impl.h"

struct buffers {
    struct sv_routes routes;
    void *act;                         /* (n_rows * k, intermediate) */
    float *out;                        /* (n_rows * k, hidden) */
    void *shared_gate_up, *shared_act; /* (n_rows, 2 intermediate), (n_rows, intermediate) */
    void *shared, *share;              /* (n_rows, hidden), (n_rows) */
};

/* fused: the shared expert is one more choice of every row. */
static struct buffers take(const struct sv_moe *m, bool fused, int32_t hidden, struct sv_scratch *s,
                           int32_t n_rows)
{
    const int32_t k = m->k + fused;
    const int64_t n = (int64_t)n_rows * k;
    struct buffers b = {.routes = {.n_rows = n_rows,
                                   .n_experts = m->n_experts + fused,
                                   .k = k,
                                   .shared = fused,
                                   .own = m->own}};
    sv_routes_lay_out(&b.routes, sv_scratch_bytes(s, sv_routes_lay_out(&b.routes, NULL)));
    b.act = sv_scratch_take(s, n_rows, (int64_t)k * m->gate.rows);
    b.out = sv_scratch_bytes(s, (size_t)n * (size_t)hidden * sizeof *b.out);
    if (m->shared.intermediate) {
        b.shared_gate_up = sv_scratch_take(s, n_rows, 2 * (int64_t)m->shared.intermediate);
        b.shared_act = sv_scratch_take(s, n_rows, m->shared.intermediate);
        b.shared = sv_scratch_take(s, n_rows, hidden);
        b.share = sv_scratch_take(s, n_rows, 1);
    }
    return b;
}

struct sv_place sv_moe_place(struct sv_moe *m, int role)
{
    struct sv_experts *x = NULL;
    switch (role & ~SV_ROLE_BIAS) {
    case SV_ROLE_ROUTER:
        return (struct sv_place){.w = role & SV_ROLE_BIAS ? &m->router_bias : &m->router};
    case SV_ROLE_CHOICE_BIAS:
        return (struct sv_place){.w = &m->sigmoid.bias};
    case SV_ROLE_SHARED_GATE:
        return (struct sv_place){.w = &m->shared.gate_up[0].w};
    case SV_ROLE_SHARED_UP:
        return (struct sv_place){.w = &m->shared.gate_up[1].w};
    case SV_ROLE_SHARED_DOWN:
        return (struct sv_place){.w = &m->shared.down.w};
    case SV_ROLE_SHARED_ROUTER:
        return (struct sv_place){.w = &m->shared_router.w};
    case SV_ROLE_EXPERT_GATE:
        x = &m->gate;
        break;
    case SV_ROLE_EXPERT_UP:
        x = &m->up;
        break;
    case SV_ROLE_EXPERT_DOWN:
        x = &m->down;
        break;
    default:
        return (struct sv_place){0};
    }
    return role & SV_ROLE_BIAS ? (struct sv_place){.w = &x->bias} : (struct sv_place){.experts = x};
}

void sv_moe_needs(const struct sv_moe *m, int32_t hidden, struct sv_needs *n)
{
    struct sv_scratch s = {.elem_bytes = n->elem_bytes};
    struct sv_dev_limits *lim = &n->lim;
    const bool shared = m->shared.intermediate > 0; /* fused, or by itself */
    const int32_t most = m->n_experts + shared, chosen = m->k + shared;
    take(m, shared, hidden, &s, lim->max_rows);
    n->moe_bytes = s.n_bytes > n->moe_bytes ? s.n_bytes : n->moe_bytes;
    lim->max_experts = most > lim->max_experts ? most : lim->max_experts;
    lim->max_chosen = chosen > lim->max_chosen ? chosen : lim->max_chosen;
    sv_needs_gemm(n, hidden, m->n_experts);
    sv_needs_gemm(n, hidden, 2 * m->gate.rows);
    sv_needs_gemm(n, m->down.cols, hidden);
    sv_needs_gemm(n, hidden, 2 * m->shared.intermediate);
    sv_needs_gemm(n, m->shared.intermediate, hidden);
}

/* delta += sigmoid(router) * expert, or the expert as it is */
static void add_shared(const struct sv_moe *m, const struct sv_stack *st, struct sv_dev *dev,
                       const struct sv_acts *acts, const struct buffers *b, int32_t n_rows)
{
    const bool gated = m->shared_router.w.data != NULL;
    if (gated)
        sv_model_gemm(dev, n_rows, st->hidden, acts->h, &m->shared_router, 1, b->share);
    sv_op_gemm_act_mul(dev, &(struct sv_p_gemm_act_mul){
                                .n_rows = n_rows,
                                .k = st->hidden,
                                .x = acts->h,
                                .ldx = st->hidden,
                                .parts = m->shared.gate_up,
                                .gate_up = b->shared_gate_up,
                                .out = b->shared_act,
                            });
    sv_model_gemm(dev, n_rows, m->shared.intermediate, b->shared_act, &m->shared.down, 1,
                  b->shared);
    sv_op_add_gated(dev, &(struct sv_p_add_gated){
                             .n_rows = n_rows,
                             .d = st->hidden,
                             .x = acts->delta,
                             .y = b->shared,
                             .gate = gated ? b->share : NULL,
                         });
}

/* Whether the shared expert runs in the launches of the routed ones, as one more choice of every
 * row. */
static bool fuses_shared(const struct sv_moe *m, const struct sv_dev *dev)
{
    const struct sv_weight *gate = &m->shared.gate_up[0].w, *up = &m->shared.gate_up[1].w;
    return m->shared.intermediate && !m->own.n && m->act == SV_EXPERT_SILU &&
           m->k < SV_MAX_CHOSEN && m->n_experts < SV_MAX_EXPERTS &&
           (!m->shared_router.w.data || m->shared_router.w.fmt.elem == m->router.fmt.elem) &&
           sv_dev_takes_shared(dev, &m->gate, gate) && sv_dev_takes_shared(dev, &m->up, up) &&
           sv_dev_takes_shared(dev, &m->down, &m->shared.down.w);
}

static struct sv_experts with_shared(struct sv_experts x, const struct sv_weight *shared)
{
    x.shared = shared;
    return x;
}

void sv_moe_forward(const struct sv_moe *m, const struct sv_stack *st, struct sv_dev *dev,
                    const struct sv_acts *acts, const struct sv_p_add_rms_norm *before,
                    const struct sv_pass *p, enum sv_join push)
{
    struct sv_scratch s = acts->moe;
    const bool fused = fuses_shared(m, dev);
    const struct buffers b = take(m, fused, st->hidden, &s, p->rows.n_rows);
    const struct sv_mlp *mlp = &m->shared;

    sv_op_router_topk(dev, &(struct sv_p_router_topk){
                               .rows = p->rows,
                               .x = acts->h,
                               .before = before,
                               .w = m->router,
                               .bias = m->router_bias,
                               .shared = fused ? m->shared_router.w : (struct sv_weight){0},
                               .norm = m->norm,
                               .sigmoid = m->sigmoid,
                               .routes = b.routes,
                               .n_chosen = p->n_chosen,
                           });
    sv_op_moe_gate_up(dev, &(struct sv_p_moe_gate_up){
                               .x = acts->h,
                               .gate = with_shared(m->gate, fused ? &mlp->gate_up[0].w : NULL),
                               .up = with_shared(m->up, fused ? &mlp->gate_up[1].w : NULL),
                               .act = m->act,
                               .limit = m->limit,
                               .alpha = m->alpha,
                               .routes = b.routes,
                               .out = b.act,
                           });
    sv_op_moe_down(dev, &(struct sv_p_moe_down){
                            .x = b.act,
                            .down = with_shared(m->down, fused ? &mlp->down.w : NULL),
                            .routes = b.routes,
                            .out = b.out,
                            .then =
                                &(struct sv_p_moe_combine){
                                    .push = !mlp->intermediate || fused ? push : SV_JOIN_NONE,
                                    .hidden = st->hidden,
                                    .x = b.out,
                                    .routes = b.routes,
                                    .out = acts->delta,
                                },
                        });
    if (mlp->intermediate && !fused)
        add_shared(m, st, dev, acts, &b, p->rows.n_rows);
}
