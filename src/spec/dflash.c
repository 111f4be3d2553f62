/*
 * dflash.c - the DFlash v1 drafter: one non-causal pass over [anchor, mask, mask, ...] whose layers
 * attend to context K/V made from the target's own hidden states.
 *
 * Called by engine through spec.h. Borrows the target's embedding and head. Owns its checkpoint,
 * weights and scratch. Must not: write context K/V of rows that were not committed, or be opened
 * for a target it does not fit.
 */
#include "spec/spec.h"

#include <string.h>

struct dflash {
    struct sv_drafter base; /* first member */
    struct sv_draft_config cfg;
    const struct sv_model *target; /* borrowed, outlives the drafter */
    struct sv_ckpt ckpt;
    struct sv_weights weights;
    /* the target's head once more, where quantized weights are faster */
    struct sv_weights shared;
    struct sv_weight head;
    struct sv_stack stack;
    struct sv_weight fc, hidden_norm;
    int32_t first_tap; /* that fc reads: its columns may be a part of all */
    /* (2 * n_layers) Wk, Wv of every layer, for the fused context pass */
    struct sv_gemm_part *kv_parts;
    struct sv_weight *k_norm; /* (n_layers) */
    struct sv_kv *kv;         /* (n_layers) fixed once the cache is open */
    void *z, *y;              /* context pass scratch, see sv_p_draft_context_kv */
    bool head_confidence;     /* without logits */
};

static struct dflash *dflash_of(struct sv_drafter *d)
{
    return (struct dflash *)(void *)d;
}

static int32_t context_width(const struct dflash *f)
{
    const struct sv_attn *a = &f->stack.layers[0].attn;
    return f->stack.n_layers * 2 * a->n_kv_heads * a->head_dim;
}

static void dflash_close(struct sv_drafter *d)
{
    struct dflash *f = dflash_of(d);
    if (f->weights.dev) {
        sv_dev_free(f->weights.dev, f->z);
        sv_dev_free(f->weights.dev, f->y);
        sv_weights_close(&f->weights);
    }
    if (f->shared.dev)
        sv_weights_close(&f->shared);
    sv_ckpt_close(&f->ckpt);
    sv_free(f);
}

static int32_t dflash_cache_groups(struct sv_drafter *d, int32_t first_group,
                                   struct sv_cache_group_desc *desc)
{
    return sv_stack_cache_groups(&dflash_of(d)->stack, SV_CACHE_DRAFT, 1, first_group, desc);
}

static void dflash_needs(const struct sv_drafter *d, struct sv_needs *n)
{
    const struct dflash *f = (const struct dflash *)(const void *)d;
    sv_stack_needs(&f->stack, n);
    sv_needs_gemm(n, f->fc.cols, f->stack.hidden);
    sv_needs_gemm(n, f->stack.hidden, context_width(f));
}

static int dflash_bind(struct sv_drafter *d, const struct sv_cache *cache, int32_t max_rows,
                       struct sv_err *err)
{
    struct dflash *f = dflash_of(d);
    struct sv_dev *dev = f->weights.dev;
    size_t act = sv_dtype_bytes(sv_dev_act_dtype(dev));
    for (int32_t i = 0; i < f->stack.n_layers; i++)
        f->kv[i] = sv_attn_kv(&f->stack.layers[i].attn, cache);
    int rc = sv_dev_alloc(dev, &f->z, (size_t)max_rows * (size_t)f->stack.hidden * act, err);
    if (!rc)
        rc = sv_dev_alloc(dev, &f->y, (size_t)max_rows * (size_t)context_width(f) * act, err);
    return rc;
}

/* The same ids, and the confidence in each: over logits, some rows at a time. */
static void propose_confidence(const struct dflash *f, const struct sv_draft_pass *p)
{
    struct sv_dev *dev = f->target->dev;
    const int32_t vocab = f->target->cfg.vocab_size;
    const size_t row = (size_t)f->target->cfg.hidden_size * sv_dtype_bytes(sv_dev_act_dtype(dev));
    for (int32_t i = 0; i < p->n_out; i += p->logit_chunk) {
        int32_t n = p->n_out - i < p->logit_chunk ? p->n_out - i : p->logit_chunk;
        sv_model_logits_by(f->target, &f->head, n, (const char *)p->out + (size_t)i * row,
                           p->logits);
        sv_op_argmax_confidence(dev,
                                &(struct sv_p_argmax_confidence){.n_rows = n,
                                                                 .vocab = vocab,
                                                                 .logits = p->logits,
                                                                 .ld = vocab,
                                                                 .out_index = p->out_index + i,
                                                                 .out = p->target_ids,
                                                                 .confidence = p->confidence + i});
    }
}

static void dflash_propose(struct sv_drafter *d, const struct sv_draft_pass *p)
{
    struct dflash *f = dflash_of(d);
    const struct sv_model *t = f->target;
    sv_op_block_ids(t->dev, &(struct sv_p_block_ids){.rows = p->rows,
                                                     .seg_kind = p->seg_kind,
                                                     .slot_len = p->slot_len,
                                                     .slot_anchor = p->slot_anchor,
                                                     .mask_id = f->cfg.mask_id,
                                                     .row_ids = p->row_ids});
    sv_op_embed(t->dev, &(struct sv_p_embed){.n_rows = p->rows.n_rows,
                                             .ids = p->row_ids,
                                             .table = t->embed,
                                             .scale = t->cfg.embed_scale,
                                             .out = p->acts->x});
    sv_stack_forward(&f->stack, t->dev, p->acts,
                     &(struct sv_pass){.rows = p->rows,
                                       .cache = p->cache,
                                       .n_out = p->n_out,
                                       .out_row = p->out_row,
                                       .out = p->out});
    if (p->confidence && !f->head_confidence) {
        propose_confidence(f, p);
        return;
    }
    sv_model_argmax_by(t, &f->head, p->n_out, p->out, p->out_index, p->target_ids, p->confidence);
}

static void dflash_update_context(struct sv_drafter *d, const struct sv_context_pass *p)
{
    struct dflash *f = dflash_of(d);
    const int32_t n_taps = f->weights.shape.n_taps; /* among ranks */
    sv_op_draft_context_kv(f->target->dev, &(struct sv_p_draft_context_kv){
                                               .rows = p->rows,
                                               .n_commit = p->n_commit,
                                               .taps = p->taps,
                                               .n_taps = n_taps,
                                               .first_tap = f->first_tap,
                                               .join = n_taps ? SV_JOIN_TAPS : SV_JOIN_NONE,
                                               .fc = f->fc,
                                               .hidden_norm = f->hidden_norm,
                                               .eps = f->stack.eps,
                                               .n_layers = f->stack.n_layers,
                                               .kv_parts = f->kv_parts,
                                               .k_norm = f->k_norm,
                                               .rope = f->stack.layers[0].attn.rope,
                                               .kv = f->kv,
                                               .z = f->z,
                                               .y = f->y});
}

static void dflash_reads(const struct sv_drafter *d, struct sv_reads *sum)
{
    const struct dflash *f = (const struct dflash *)(const void *)d;
    sv_weights_add_reads(&f->weights, SV_ROLE_NONE, sum);
    if (f->shared.n_taken)
        sv_weights_add_reads(&f->shared, SV_ROLE_NONE, sum);
    else
        sv_weights_add_reads(&f->target->weights, SV_ROLE_HEAD, sum);
}

static int dflash_detach(struct sv_drafter *d, bool copy, struct sv_err *err)
{
    return sv_ckpt_detach(&dflash_of(d)->ckpt, copy, err);
}

static const struct sv_drafter_ops dflash_ops = {
    .close = dflash_close,
    .detach = dflash_detach,
    .cache_groups = dflash_cache_groups,
    .needs = dflash_needs,
    .bind = dflash_bind,
    .reads = dflash_reads,
    .propose = dflash_propose,
    .update_context = dflash_update_context,
};

/* Everything after the files are open: weights, masks, and the part list of the context pass. */
static struct sv_place place(void *user, const struct sv_tensor_spec *spec)
{
    struct dflash *f = user;
    if (spec->role == SV_ROLE_TAP_PROJ)
        return (struct sv_place){.w = &f->fc};
    return spec->role == SV_ROLE_TAP_NORM ? (struct sv_place){.w = &f->hidden_norm}
                                          : sv_stack_place(&f->stack, spec);
}

static int take_weights(struct dflash *f, int32_t n_positions, struct sv_err *err)
{
    const struct sv_config *c = &f->cfg.base;
    struct sv_weights *w = &f->weights;
    int rc = sv_weights_divide(w, c, f->cfg.n_taps, "draft", err);
    if (!rc)
        rc = sv_stack_open(&f->stack, w, c, n_positions, err);
    if (!rc)
        rc = sv_weights_load(w, c, f->cfg.n_taps, place, f, err);
    if (rc)
        return rc;
    if (w->shape.n_taps)
        f->first_tap = sv_shard_inner(&w->shape, w->shape.n_taps, sv_dev_ranks(w->dev)).first;
    size_t n = (size_t)c->n_layers;
    f->kv_parts = sv_arena_alloc(&w->arena, 2 * n * sizeof *f->kv_parts);
    f->k_norm = sv_arena_alloc(&w->arena, n * sizeof *f->k_norm);
    f->kv = sv_arena_alloc(&w->arena, n * sizeof *f->kv);
    if (!f->kv_parts || !f->k_norm || !f->kv)
        return sv_fail(err, SV_ENOMEM, -1, "draft tables");
    for (size_t i = 0; i < n; i++) {
        struct sv_attn *a = &f->stack.layers[i].attn;
        a->mask = f->cfg.causal[i] ? SV_MASK_CAUSAL : SV_MASK_BLOCK;
        f->kv_parts[2 * i] = a->qkv[1];
        f->kv_parts[2 * i + 1] = a->qkv[2];
        f->k_norm[i] = a->k_norm;
    }
    return SV_OK;
}

/* The target's head: its own, or a rounder copy where the device is faster with one. */
static int take_head(struct dflash *f, struct sv_err *err)
{
    const struct sv_model *t = f->target;
    f->head = t->head;
    if (!sv_dev_quantizes(t->dev) || t->head.fmt.elem != SV_BF16)
        return SV_OK;
    const struct sv_tensor_spec head = {.name = t->cfg.tie_embeddings ? "embed_tokens.weight"
                                                                      : "lm_head.weight",
                                        .role = SV_ROLE_HEAD | SV_ROLE_DRAFT,
                                        .layer = -1,
                                        .expert = -1,
                                        .rows = t->cfg.vocab_size,
                                        .cols = t->cfg.hidden_size};
    int rc = sv_weights_open(&f->shared, t->dev, t->weights.ckpt, err);
    f->shared.whole_mixers = t->weights.whole_mixers;
    if (!rc)
        rc = sv_weights_divide(&f->shared, &t->cfg, 0, "target", err);
    return rc ? rc : sv_weights_take(&f->shared, &head, &f->head, err);
}

static int open_draft(struct sv_drafter **d, const struct sv_model *target, const char *dir,
                      int32_t n_positions, bool random, struct sv_err *err)
{
    *d = NULL;
    struct dflash *f = sv_calloc(1, sizeof *f);
    if (!f)
        return sv_fail(err, SV_ENOMEM, -1, "drafter");
    f->base.ops = &dflash_ops;
    f->base.name = "dflash";
    f->target = target;
    int rc = sv_draft_config_load(&f->cfg, dir, target->cfg.n_layers, err);
    if (!rc)
        rc = sv_pair_check(&target->cfg, &f->cfg, err);
    if (!rc && !random)
        rc = sv_ckpt_open(&f->ckpt, dir, err);
    if (!rc && !random)
        rc = sv_ckpt_check_draft(&f->ckpt, &f->cfg, err);
    if (!rc)
        rc = sv_weights_open(&f->weights, target->dev, random ? NULL : &f->ckpt, err);
    if (!rc)
        rc = take_weights(f, n_positions, err);
    if (!rc)
        rc = take_head(f, err);
    if (rc) {
        dflash_close(&f->base);
        sv_err_prefix(err, "draft %s", dir);
        return rc;
    }
    f->base.block_size = f->cfg.block_size;
    f->base.n_taps = f->cfg.n_taps;
    f->base.tap_ids = f->cfg.taps;
    f->base.hidden = target->cfg.hidden_size;
    f->base.weight_bytes = sv_weights_kept_bytes(&f->weights) + sv_weights_kept_bytes(&f->shared);
    f->base.n_params = sv_draft_config_n_params(&f->cfg);
    f->base.keeps_rows = true;
    f->head_confidence =
        sv_dev_ranks(target->dev).n == 1 && sv_dev_head_confidence(target->dev, &f->head);
    f->base.confidence = f->head_confidence                               ? SV_CONFIDENCE_FREE
                         : sv_dev_backend(target->dev)->argmax_confidence ? SV_CONFIDENCE_LOGITS
                                                                          : SV_CONFIDENCE_NONE;
    f->base.row_bytes = (int64_t)(f->stack.hidden + context_width(f)) *
                        (int64_t)sv_dtype_bytes(sv_dev_act_dtype(target->dev));
    *d = &f->base;
    return SV_OK;
}

int sv_dflash_open(struct sv_drafter **d, const struct sv_model *target, const char *dir,
                   int32_t n_positions, struct sv_err *err)
{
    return open_draft(d, target, dir, n_positions, false, err);
}

int sv_dflash_open_random(struct sv_drafter **d, const struct sv_model *target, const char *dir,
                          int32_t n_positions, struct sv_err *err)
{
    return open_draft(d, target, dir, n_positions, true, err);
}
