/*
 * stack.c - the transformer stack that targets and drafts share: a loop over layers, each a mixer
 * and an ffn between norms, and its activations.
 *
 * Called by target.c and by the drafter. Must not allocate or synchronise in a pass.
 */
#include "model/impl.h"

#include <string.h>

/* ---------------------------------------------------------------- activations */

enum { ALIGN = 256 }; /* as allocations of a device */

void *sv_scratch_bytes(struct sv_scratch *s, size_t n_bytes)
{
    const size_t at = s->n_bytes;
    s->n_bytes += (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    return s->base ? s->base + at : NULL;
}

void *sv_scratch_take(struct sv_scratch *s, int32_t n_rows, int64_t width)
{
    return sv_scratch_bytes(s, (size_t)n_rows * (size_t)width * s->elem_bytes);
}

void sv_needs_init(struct sv_needs *n, const struct sv_dev *dev, int32_t max_rows)
{
    *n = (struct sv_needs){.lim.max_rows = max_rows,
                           .elem_bytes = sv_dtype_bytes(sv_dev_act_dtype(dev))};
}

void sv_needs_gemm(struct sv_needs *n, int32_t k, int32_t n_out)
{
    n->lim.max_k = k > n->lim.max_k ? k : n->lim.max_k;
    n->lim.max_n = n_out > n->lim.max_n ? n_out : n->lim.max_n;
}

void sv_stack_needs(const struct sv_stack *st, struct sv_needs *n)
{
    n->hidden = st->hidden > n->hidden ? st->hidden : n->hidden;
    for (int32_t i = 0; i < st->n_layers; i++) {
        const struct sv_layer *l = &st->layers[i];
        switch (l->mixer) {
        case SV_MIXER_ATTN:
            sv_attn_needs(&l->attn, st->hidden, n);
            break;
        case SV_MIXER_GDN:
            sv_gdn_needs(&l->gdn, st->hidden, n);
            break;
        case SV_MIXER_MLA:
            sv_mla_needs(&l->mla, st->hidden, n);
        }
        switch (l->ffn) {
        case SV_FFN_DENSE:
            sv_mlp_needs(&l->mlp, st->hidden, n);
            break;
        case SV_FFN_MOE:
            sv_moe_needs(&l->moe, st->hidden, n);
        }
    }
}

static void lay_out(struct sv_acts *a, struct sv_scratch *s, const struct sv_needs *n)
{
    a->x = sv_scratch_take(s, n->lim.max_rows, n->hidden);
    a->h = sv_scratch_take(s, n->lim.max_rows, n->hidden);
    a->delta = sv_scratch_take(s, n->lim.max_rows, n->hidden);
}

int sv_acts_open(struct sv_acts *a, struct sv_dev *dev, const struct sv_needs *n,
                 struct sv_err *err)
{
    struct sv_scratch s = {.elem_bytes = n->elem_bytes};
    memset(a, 0, sizeof *a);
    lay_out(a, &s, n);
    int rc = sv_dev_alloc(dev, (void **)&s.base, s.n_bytes + n->scratch_bytes + n->moe_bytes, err);
    if (rc)
        return rc;
    s.n_bytes = 0;
    lay_out(a, &s, n);
    a->scratch = (struct sv_scratch){.base = s.base + s.n_bytes, .elem_bytes = n->elem_bytes};
    a->moe = a->scratch;
    a->moe.base += n->scratch_bytes;
    return SV_OK;
}

void sv_acts_close(struct sv_acts *a, struct sv_dev *dev)
{
    sv_dev_free(dev, a->x); /* the first of all */
    memset(a, 0, sizeof *a);
}

/* ---------------------------------------------------------------- a pass */

void sv_model_gemm(struct sv_dev *dev, int32_t n_rows, int32_t k, const void *x,
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

void sv_model_gemm_last(struct sv_dev *dev, int32_t n_rows, int32_t k, const void *x,
                        const struct sv_gemm_part *part, enum sv_join push,
                        const struct sv_acts *acts)
{
    sv_op_gemm(dev, &(struct sv_p_gemm){
                        .n_rows = n_rows,
                        .k = k,
                        .n_parts = 1,
                        .x = x,
                        .ldx = k,
                        .parts = part,
                        .y = acts->delta,
                        .ldy = part->w.rows,
                        .push = push,
                    });
}

enum sv_join sv_model_mixer_push(const struct sv_stack *st, const struct sv_pass *p)
{
    return st->joins && !p->own ? SV_JOIN_MIXER : SV_JOIN_NONE;
}

/* The join of a layer's ffn, where it is of the rows of the pass as the ffn leaves them. */
static enum sv_join ffn_push(const struct sv_stack *st, const struct sv_pass *p, int32_t layer)
{
    return st->joins && layer + 1 < st->n_layers && !p->n_images ? SV_JOIN_FFN : SV_JOIN_NONE;
}

/* The tap of the stream after layer `done`, or NULL. */
static void *tap_after(const struct sv_taps *t, int32_t done, int32_t hidden, enum sv_dtype act)
{
    for (int32_t k = 0; k < t->n; k++)
        if (t->id[k] == done)
            return (char *)t->out + (size_t)k * (size_t)hidden * sv_dtype_bytes(act);
    return NULL;
}

/* The first reader of the stream in a layer, if its mixer has one. */
static const struct sv_weight *reader_of(const struct sv_layer *l)
{
    return l->mixer == SV_MIXER_ATTN  ? &l->attn.qkv[0].w
           : l->mixer == SV_MIXER_GDN ? &l->gdn.in[0].w
                                      : NULL;
}

static void mixer_forward(const struct sv_layer *l, const struct sv_stack *st, struct sv_dev *dev,
                          const struct sv_acts *a, const struct sv_pass *p)
{
    switch (l->mixer) {
    case SV_MIXER_ATTN:
        sv_attn_forward(&l->attn, st, dev, a, p);
        break;
    case SV_MIXER_GDN:
        sv_gdn_forward(&l->gdn, st, dev, a, p);
        break;
    case SV_MIXER_MLA:
        sv_mla_forward(&l->mla, st, dev, a, p);
    }
}

void sv_stack_forward(const struct sv_stack *st, struct sv_dev *dev, const struct sv_acts *a,
                      const struct sv_pass *p)
{
    enum sv_dtype act = sv_dev_act_dtype(dev);
    const struct sv_slice *own = p->own ? p->own->at : NULL;
    struct sv_pass mixers = *p;
    struct sv_p_add_rms_norm norm = {
        .n_rows = p->rows.n_rows,
        .d = st->hidden,
        .x = a->x,
        .eps = st->eps,
        .out = a->h,
        .tap_stride = (int64_t)p->taps.n * st->hidden,
    };
    if (own)
        mixers.rows = p->own->rows;
    for (int32_t i = 0; i < st->n_layers; i++) {
        const struct sv_layer *l = &st->layers[i];
        norm.delta = i ? a->delta : NULL;
        norm.join = i && st->joins ? SV_JOIN_FFN : SV_JOIN_NONE;
        norm.weight = l->in_norm;
        norm.reader = reader_of(l);
        norm.tap = tap_after(&p->taps, i - 1, st->hidden, act);
        norm.tap_row = norm.tap ? p->taps.row : NULL;
        norm.own_rows = own;
        sv_op_add_rms_norm(dev, &norm);
        mixer_forward(l, st, dev, a, &mixers);
        norm.delta = a->delta;
        norm.join = st->joins ? SV_JOIN_MIXER : SV_JOIN_NONE;
        norm.weight = l->post_norm;
        norm.reader = l->ffn == SV_FFN_DENSE ? &l->mlp.gate_up[0].w : NULL;
        norm.tap = NULL;
        norm.tap_row = NULL;
        switch (l->ffn) {
        case SV_FFN_DENSE:
            sv_op_add_rms_norm(dev, &norm);
            sv_mlp_forward(&l->mlp, st, dev, a, p->rows.n_rows, ffn_push(st, p, i));
            break;
        case SV_FFN_MOE:
            sv_moe_forward(&l->moe, st, dev, a, &norm, p, ffn_push(st, p, i));
        }
        sv_model_add_deep(dev, p, i, st->hidden, a->delta);
    }
    norm.own_rows = NULL;
    norm.delta = a->delta;
    norm.join = st->joins ? SV_JOIN_FFN : SV_JOIN_NONE;
    norm.weight = st->final_norm;
    const struct sv_weight *first = st->n_layers ? reader_of(&st->layers[0]) : NULL;
    norm.reader = first && first->role & SV_ROLE_DRAFT ? first : NULL; /* as its head is */
    norm.tap = tap_after(&p->taps, st->n_layers - 1, st->hidden, act);
    norm.tap_row = norm.tap ? p->taps.row : NULL;
    norm.out = p->out;
    norm.n_rows = p->n_out;
    norm.row_index = p->out_row;
    sv_op_add_rms_norm(dev, &norm);
}

/* ---------------------------------------------------------------- weights and cache groups */

static struct sv_place layer_place(struct sv_layer *l, int role)
{
    struct sv_place to = {0};
    if (role == SV_ROLE_IN_NORM || role == SV_ROLE_POST_NORM)
        return (struct sv_place){.w = role == SV_ROLE_IN_NORM ? &l->in_norm : &l->post_norm};
    switch (l->mixer) {
    case SV_MIXER_ATTN:
        to.w = sv_attn_place(&l->attn, role);
        break;
    case SV_MIXER_GDN:
        to.w = sv_gdn_place(&l->gdn, role);
        break;
    case SV_MIXER_MLA:
        to = sv_mla_place(&l->mla, role);
    }
    if (to.w || to.experts)
        return to;
    switch (l->ffn) {
    case SV_FFN_DENSE:
        return (struct sv_place){.w = sv_mlp_place(&l->mlp, role)};
    case SV_FFN_MOE:
        return sv_moe_place(&l->moe, role);
    }
    return (struct sv_place){0};
}

struct sv_place sv_stack_place(struct sv_stack *st, const struct sv_tensor_spec *spec)
{
    const int role = spec->role & ~SV_ROLE_DRAFT;
    if (spec->layer >= 0)
        return layer_place(&st->layers[spec->layer], role);
    return (struct sv_place){.w = role == SV_ROLE_FINAL_NORM ? &st->final_norm : NULL};
}

/* A layer's cache geometry, and its fields for the group and the index in it. */
static struct sv_cache_group_desc remembers(struct sv_layer *l, int32_t max_block, int32_t **group,
                                            int32_t **place)
{
    struct sv_cache_group_desc d = {0};
    switch (l->mixer) {
    case SV_MIXER_ATTN:
        d = (struct sv_cache_group_desc){.kind = SV_CACHE_KV,
                                         .n_kv_heads = l->attn.n_kv_heads,
                                         .head_dim = l->attn.head_dim,
                                         .window = l->attn.window};
        *group = &l->attn.cache_group;
        *place = &l->attn.cache_layer;
        break;
    case SV_MIXER_GDN:
        l->gdn.shape.max_block = max_block;
        d = (struct sv_cache_group_desc){.kind = SV_CACHE_STATE,
                                         .state_bytes = sv_gdn_block_of(&l->gdn.shape).n_bytes};
        *group = &l->gdn.cache_group;
        *place = &l->gdn.cache_layer;
        break;
    case SV_MIXER_MLA:
        d = (struct sv_cache_group_desc){.kind = SV_CACHE_LATENT,
                                         .n_kv_heads = 1,
                                         .head_dim = l->mla.latent + l->mla.rope.rot_dim,
                                         .latent = l->mla.latent};
        *group = &l->mla.cache_group;
        *place = &l->mla.cache_layer;
    }
    return d;
}

int32_t sv_stack_cache_groups(struct sv_stack *st, enum sv_cache_owner owner, int32_t max_block,
                              int32_t first_group, struct sv_cache_group_desc *desc)
{
    int32_t n = 0;
    for (int32_t i = 0; i < st->n_layers; i++) {
        int32_t g = 0, *group = NULL, *place = NULL;
        struct sv_cache_group_desc own = remembers(&st->layers[i], max_block, &group, &place);
        own.owner = owner;
        while (g < n && !sv_cache_same_geometry(&own, &desc[g]))
            g++;
        if (g == n) {
            SV_REQUIRE(first_group + n < SV_MAX_GROUPS);
            desc[n++] = own;
        }
        *group = first_group + g;
        *place = desc[g].n_layers++;
    }
    return n;
}
