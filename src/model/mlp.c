/*
 * mlp.c - the dense ffn: gate and up, silu(gate) * up, down.
 *
 * Called by stack.c. Must not allocate or synchronise.
 */
#include "model/impl.h"

struct buffers {
    void *gate_up; /* (n_rows, 2 intermediate) */
    void *act;     /* (n_rows, intermediate) */
};

static struct buffers take(const struct sv_mlp *m, struct sv_scratch *s, int32_t n_rows)
{
    void *gate_up = sv_scratch_take(s, n_rows, 2 * (int64_t)m->intermediate);
    return (struct buffers){gate_up, sv_scratch_take(s, n_rows, m->intermediate)};
}

struct sv_weight *sv_mlp_place(struct sv_mlp *m, int role)
{
    struct sv_gemm_part *part = NULL;
    switch (role & ~SV_ROLE_BIAS) {
    case SV_ROLE_GATE:
        part = &m->gate_up[0];
        break;
    case SV_ROLE_UP:
        part = &m->gate_up[1];
        break;
    case SV_ROLE_DOWN:
        part = &m->down;
        break;
    default:
        return NULL;
    }
    return role & SV_ROLE_BIAS ? &part->bias : &part->w;
}

void sv_mlp_needs(const struct sv_mlp *m, int32_t hidden, struct sv_needs *n)
{
    struct sv_scratch s = {.elem_bytes = n->elem_bytes};
    take(m, &s, n->lim.max_rows);
    n->scratch_bytes = s.n_bytes > n->scratch_bytes ? s.n_bytes : n->scratch_bytes;
    sv_needs_gemm(n, hidden, 2 * m->intermediate);
    sv_needs_gemm(n, m->intermediate, hidden);
}

void sv_mlp_forward(const struct sv_mlp *m, const struct sv_stack *st, struct sv_dev *dev,
                    const struct sv_acts *acts, int32_t n_rows, enum sv_join push)
{
    struct sv_scratch s = acts->scratch;
    const struct buffers b = take(m, &s, n_rows);

    sv_op_gemm_act_mul(dev, &(struct sv_p_gemm_act_mul){
                                .n_rows = n_rows,
                                .k = st->hidden,
                                .x = acts->h,
                                .ldx = st->hidden,
                                .parts = m->gate_up,
                                .gate_up = b.gate_up,
                                .out = b.act,
                            });
    sv_model_gemm_last(dev, n_rows, m->intermediate, b.act, &m->down, push, acts);
}
