/*
 * blocks.c - the transformer stack that targets and drafts share, as a straight list of op calls.
 *
 * Called by target.c and by the drafter. Pre-norm blocks in the Llama/Qwen3 form; what differs
 * between architectures (biases, head norms, masks, windows) is data in struct sv_layer, never a
 * branch on a name. Must not allocate or synchronise.
 */
#include "model/model.h"

#include <math.h>

#include <string.h>

static int32_t qkv_width(const struct sv_stack *st)
{
    return (st->n_heads + 2 * st->n_kv_heads) * st->head_dim;
}

void sv_act_sizes_add(struct sv_act_sizes *s, const struct sv_stack *st)
{
    int32_t qkv = qkv_width(st), attn = st->n_heads * st->head_dim;
    s->hidden = st->hidden > s->hidden ? st->hidden : s->hidden;
    s->qkv = qkv > s->qkv ? qkv : s->qkv;
    s->attn = attn > s->attn ? attn : s->attn;
    s->intermediate = st->intermediate > s->intermediate ? st->intermediate : s->intermediate;
}

int sv_acts_open(struct sv_acts *a, struct sv_dev *dev, const struct sv_act_sizes *s,
                 struct sv_err *err)
{
    memset(a, 0, sizeof *a);
    size_t row = (size_t)s->max_rows * sv_dtype_bytes(sv_dev_act_dtype(dev));
    const struct {
        void **p;
        int32_t width;
    } want[] = {
        {&a->x, s->hidden},         {&a->h, s->hidden},     {&a->qkv, s->qkv},
        {&a->attn, s->attn},        {&a->delta, s->hidden}, {&a->gate_up, 2 * s->intermediate},
        {&a->act, s->intermediate},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        int rc = sv_dev_alloc(dev, want[i].p, row * (size_t)want[i].width, err);
        if (rc) {
            sv_acts_close(a, dev);
            return rc;
        }
    }
    return SV_OK;
}

void sv_acts_close(struct sv_acts *a, struct sv_dev *dev)
{
    void *all[] = {a->x, a->h, a->qkv, a->attn, a->delta, a->gate_up, a->act};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        sv_dev_free(dev, all[i]);
    memset(a, 0, sizeof *a);
}

static void gemm(struct sv_dev *dev, int32_t n_rows, int32_t k, const void *x,
                 const struct sv_gemm_part *parts, int32_t n_parts, void *y)
{
    int64_t width = 0;
    for (int32_t i = 0; i < n_parts; i++)
        width += parts[i].w.rows;
    sv_op_gemm(dev, &(struct sv_p_gemm){
                        .n_rows = n_rows,
                        .k = k,
                        .n_parts = n_parts,
                        .x = x,
                        .ldx = k,
                        .parts = parts,
                        .y = y,
                        .ldy = width,
                    });
}

/* The tap that wants the stream as it stands after layer `done`, or NULL. */
static void *tap_after(const struct sv_taps *t, int32_t done, int32_t hidden, enum sv_dtype act)
{
    for (int32_t k = 0; k < t->n; k++)
        if (t->id[k] == done)
            return (char *)t->out + (size_t)k * (size_t)hidden * sv_dtype_bytes(act);
    return NULL;
}

static void attention_block(const struct sv_stack *st, const struct sv_layer *l, struct sv_dev *dev,
                            const struct sv_acts *a, const struct sv_pass *p)
{
    int32_t n = p->rows.n_rows;
    struct sv_kv kv = sv_cache_kv(p->cache, l->cache_group, l->cache_layer);

    gemm(dev, n, st->hidden, a->h, l->qkv, 3, a->qkv);
    sv_op_qk_norm_rope_kv_write(dev, &(struct sv_p_qk_norm_rope_kv_write){
                                         .rows = p->rows,
                                         .qkv = a->qkv,
                                         .ld = qkv_width(st),
                                         .n_heads = st->n_heads,
                                         .q_norm = l->q_norm,
                                         .k_norm = l->k_norm,
                                         .eps = st->eps,
                                         .rope = st->rope,
                                         .kv = kv,
                                     });
    sv_op_attention(dev, &(struct sv_p_attention){
                             .rows = p->rows,
                             .q = a->qkv,
                             .ldq = qkv_width(st),
                             .out = a->attn,
                             .ldo = st->n_heads * st->head_dim,
                             .n_heads = st->n_heads,
                             .kv = kv,
                             .mask = l->mask,
                             .window = l->window,
                             .scale = 1.0f / sqrtf((float)st->head_dim),
                         });
    gemm(dev, n, st->n_heads * st->head_dim, a->attn, &l->o, 1, a->delta);
}

static void mlp_block(const struct sv_stack *st, const struct sv_layer *l, struct sv_dev *dev,
                      const struct sv_acts *a, int32_t n)
{
    sv_op_gemm_act_mul(dev, &(struct sv_p_gemm_act_mul){
                                .n_rows = n,
                                .k = st->hidden,
                                .x = a->h,
                                .ldx = st->hidden,
                                .parts = l->gate_up,
                                .gate_up = a->gate_up,
                                .out = a->act,
                            });
    gemm(dev, n, st->intermediate, a->act, &l->down, 1, a->delta);
}

void sv_stack_forward(const struct sv_stack *st, struct sv_dev *dev, const struct sv_acts *a,
                      const struct sv_pass *p)
{
    enum sv_dtype act = sv_dev_act_dtype(dev);
    struct sv_p_add_rms_norm norm = {
        .n_rows = p->rows.n_rows,
        .d = st->hidden,
        .x = a->x,
        .eps = st->eps,
        .out = a->h,
        .tap_stride = (int64_t)p->taps.n * st->hidden,
        .approximate = st->n_layers && st->layers[0].qkv[0].w.approximate,
    };
    for (int32_t i = 0; i < st->n_layers; i++) {
        const struct sv_layer *l = &st->layers[i];
        norm.delta = i ? a->delta : NULL;
        norm.weight = l->in_norm;
        norm.tap = tap_after(&p->taps, i - 1, st->hidden, act);
        norm.tap_row = norm.tap ? p->taps.row : NULL;
        sv_op_add_rms_norm(dev, &norm);
        attention_block(st, l, dev, a, p);
        norm.delta = a->delta;
        norm.weight = l->post_norm;
        norm.tap = NULL;
        norm.tap_row = NULL;
        sv_op_add_rms_norm(dev, &norm);
        mlp_block(st, l, dev, a, p->rows.n_rows);
    }
    norm.delta = a->delta;
    norm.weight = st->final_norm;
    norm.tap = tap_after(&p->taps, st->n_layers - 1, st->hidden, act);
    norm.tap_row = norm.tap ? p->taps.row : NULL;
    norm.out = p->out;
    norm.n_rows = p->n_out;
    norm.row_index = p->out_row;
    sv_op_add_rms_norm(dev, &norm);
}

int32_t sv_stack_cache_groups(struct sv_stack *st, const char *name, int32_t first_group,
                              struct sv_cache_group_desc *desc)
{
    int32_t n = 0;
    for (int32_t i = 0; i < st->n_layers; i++) {
        struct sv_layer *l = &st->layers[i];
        int32_t g = 0;
        while (g < n && desc[g].window != l->window)
            g++;
        if (g == n) {
            SV_REQUIRE(first_group + n < SV_MAX_GROUPS);
            desc[n++] = (struct sv_cache_group_desc){
                .name = name,
                .n_kv_heads = st->n_kv_heads,
                .head_dim = st->head_dim,
                .window = l->window,
            };
        }
        l->cache_group = first_group + g;
        l->cache_layer = desc[g].n_layers++;
    }
    return n;
}
