/*
 * target.c - the target model: a checkpoint directory opened on a device, its forward pass and its
 * head.
 *
 * Called by engine; the drafter borrows embed and head. Must not know about drafting beyond taps.
 */
#include "model/vision.h"

#include "backend/ops_vision.h"

#include <string.h>

static struct sv_place place(void *user, const struct sv_tensor_spec *spec)
{
    struct sv_model *m = user;
    if (spec->role == SV_ROLE_EMBED)
        return (struct sv_place){.w = &m->embed};
    return spec->role == SV_ROLE_HEAD ? (struct sv_place){.w = &m->head}
                                      : sv_stack_place(&m->stack, spec);
}

/* Start of each rank's part of the head. A rank looks up any token, so that it has the whole table
 * beside its part of a tied head. */
static int open_vocab(struct sv_model *m, struct sv_err *err)
{
    const struct sv_ranks ranks = sv_dev_ranks(m->dev);
    for (int32_t r = 0; r < ranks.n && ranks.n > 1; r++) {
        const struct sv_slice part =
            sv_shard_vocab(&m->weights.shape, (struct sv_ranks){.rank = r, .n = ranks.n});
        m->vocab0[r + 1] = part.first + part.n;
    }
    if (!m->cfg.tie_embeddings)
        return SV_OK;
    m->embed = m->head;
    const struct sv_tensor_spec table = {.name = "embed_tokens.weight",
                                         .role = SV_ROLE_EMBED,
                                         .layer = -1,
                                         .expert = -1,
                                         .rows = m->cfg.vocab_size,
                                         .cols = m->cfg.hidden_size};
    return ranks.n > 1 ? sv_weights_take(&m->weights, &table, &m->embed, err) : SV_OK;
}

/* Without a tower in target, files or device images are refused; text still runs. */
static int open_tower(struct sv_model *m, bool random, struct sv_err *err)
{
    const struct sv_config *c = &m->cfg;
    m->no_tower = !c->vision.depth             ? "the model has no vision tower"
                  : random                     ? "random weights have no vision tower"
                  : !sv_vision_is_in(&m->ckpt) ? "the files have no tensors of the vision tower"
                  : !sv_dev_has_vision(m->dev) ? "the device has no ops of a vision tower"
                  : sv_dev_ranks(m->dev).n > 1 ? "images are not supported among ranks"
                  : c->vision.image_token < 0  ? "'image_token_id' is outside the vocabulary"
                  : !c->mrope_section[0]       ? "the configuration has no 'mrope_section'"
                                               : NULL;
    return m->no_tower ? SV_OK : sv_tower_open(&m->tower, m->dev, &m->ckpt, c, err);
}

/* They are one product, in one format on the device, except the type of e4m3's scales. */
static int check_gate_up(const struct sv_stack *st, struct sv_err *err)
{
    for (int32_t i = 0; i < st->n_layers; i++) {
        const struct sv_moe *moe = &st->layers[i].moe;
        if (st->layers[i].ffn != SV_FFN_MOE)
            continue;
        const struct sv_format *g = &moe->gate.w[0].fmt, *u = &moe->up.w[0].fmt;
        if (g->elem != u->elem || g->block_cols != u->block_cols ||
            (g->scale != u->scale && g->elem != SV_F8))
            return sv_fail(err, SV_EUNSUPPORTED, -1,
                           "layer %d: gate and up of its experts are in different formats", i);
    }
    return SV_OK;
}

static int open_model(struct sv_model *m, struct sv_dev *dev, const char *dir, int32_t n_positions,
                      bool random, struct sv_err *err)
{
    memset(m, 0, sizeof *m);
    m->dev = dev;
    int rc = sv_config_load(&m->cfg, dir, err);
    if (!rc && !random)
        rc = sv_ckpt_open(&m->ckpt, dir, err);
    if (rc)
        return rc;
    if (n_positions <= 0)
        n_positions = m->cfg.max_position;
    if (!random)
        rc = sv_ckpt_check_target(&m->ckpt, &m->cfg, err);
    if (!rc)
        rc = sv_weights_open(&m->weights, dev, random ? NULL : &m->ckpt, err);
    m->weights.whole_mixers = sv_dev_ranks(dev).dp_attention;
    if (!rc)
        rc = sv_weights_divide(&m->weights, &m->cfg, 0, "target", err);
    if (!rc)
        rc = sv_stack_open(&m->stack, &m->weights, &m->cfg, n_positions, err);
    if (!rc)
        rc = sv_weights_load(&m->weights, &m->cfg, 0, place, m, err);
    if (!rc)
        rc = check_gate_up(&m->stack, err);
    if (!rc)
        rc = open_vocab(m, err);
    if (!rc)
        rc = open_tower(m, random, err);
    if (rc) {
        sv_model_close(m);
        sv_err_prefix(err, "%s", dir);
    }
    return rc;
}

void sv_model_needs(const struct sv_model *m, struct sv_needs *n)
{
    const int32_t vocab = m->cfg.vocab_size;
    sv_stack_needs(&m->stack, n);
    if (m->tower)
        sv_tower_needs(m->tower, n);
    n->lim.max_vocab = vocab > n->lim.max_vocab ? vocab : n->lim.max_vocab;
}

void sv_model_reads(const struct sv_model *m, struct sv_reads *sum)
{
    sv_weights_add_reads(&m->weights, SV_ROLE_NONE, sum);
}

int sv_model_open(struct sv_model *m, struct sv_dev *dev, const char *dir, int32_t n_positions,
                  struct sv_err *err)
{
    return open_model(m, dev, dir, n_positions, false, err);
}

int sv_model_open_random(struct sv_model *m, struct sv_dev *dev, const char *dir,
                         int32_t n_positions, struct sv_err *err)
{
    return open_model(m, dev, dir, n_positions, true, err);
}

void sv_model_close(struct sv_model *m)
{
    sv_tower_close(m->tower);
    if (m->weights.dev)
        sv_weights_close(&m->weights);
    sv_ckpt_close(&m->ckpt);
    memset(m, 0, sizeof *m);
}

void sv_model_forward(const struct sv_model *m, const struct sv_acts *a, const int32_t *row_ids,
                      const struct sv_pass *p)
{
    sv_op_embed(m->dev, &(struct sv_p_embed){
                            .n_rows = p->rows.n_rows,
                            .ids = row_ids,
                            .table = m->embed,
                            .scale = m->cfg.embed_scale,
                            .out = a->x,
                        });
    for (int32_t i = 0; i < p->n_images; i++) {
        const size_t row = (size_t)m->cfg.hidden_size * sv_dtype_bytes(sv_dev_act_dtype(m->dev));
        sv_dev_copy(m->dev, (char *)a->x + (size_t)p->images[i].row0 * row, p->images[i].rows,
                    (size_t)p->images[i].n_rows * row);
    }
    sv_stack_forward(&m->stack, m->dev, a, p);
}

void sv_model_argmax_by(const struct sv_model *m, const struct sv_weight *head, int32_t n,
                        const void *x, const int32_t *out_index, int32_t *out, float *confidence)
{
    const struct sv_ranks ranks = sv_dev_ranks(m->dev);
    sv_op_head_argmax(m->dev, &(struct sv_p_head_argmax){
                                  .n_rows = n,
                                  .k = m->cfg.hidden_size,
                                  .x = x,
                                  .w = *head,
                                  .out_index = out_index,
                                  .out = out,
                                  .confidence = confidence,
                                  .join = ranks.n > 1 ? SV_JOIN_BEST : SV_JOIN_NONE,
                                  .first_id = m->vocab0[ranks.rank],
                              });
}

void sv_model_argmax(const struct sv_model *m, int32_t n, const void *x, const int32_t *out_index,
                     int32_t *out)
{
    sv_model_argmax_by(m, &m->head, n, x, out_index, out, NULL);
}

static void logits_by(const struct sv_model *m, const struct sv_weight *head, int32_t n,
                      const void *x, float *logits, bool deal)
{
    const struct sv_gemm_part part = {.w = *head};
    const struct sv_ranks ranks = sv_dev_ranks(m->dev);
    sv_op_gemm(m->dev, &(struct sv_p_gemm){
                           .n_rows = n,
                           .k = m->cfg.hidden_size,
                           .n_parts = 1,
                           .x = x,
                           .ldx = m->cfg.hidden_size,
                           .parts = &part,
                           .y = logits + m->vocab0[ranks.rank],
                           .y_f32 = true,
                           .ldy = m->cfg.vocab_size,
                       });
    if (ranks.n == 1)
        return;
    struct sv_p_gather_logits gather = {
        .n_rows = n, .logits = logits, .ld = m->cfg.vocab_size, .deal = deal};
    memcpy(gather.first, m->vocab0, sizeof gather.first);
    sv_op_gather_logits(m->dev, &gather);
}

void sv_model_logits_by(const struct sv_model *m, const struct sv_weight *head, int32_t n,
                        const void *x, float *logits)
{
    logits_by(m, head, n, x, logits, false);
}

void sv_model_logits(const struct sv_model *m, int32_t n, const void *x, float *logits)
{
    logits_by(m, &m->head, n, x, logits, true);
}
