/*
 * target.c - the target model: a checkpoint directory opened on a device, its forward pass and its
 * head.
 *
 * Called by engine; the drafter borrows embed and head. Must not know about drafting beyond taps.
 */
#include "model/model.h"

#include <string.h>

static struct sv_place place(void *user, const struct sv_tensor_spec *spec)
{
    struct sv_model *m = user;
    if (spec->role == SV_ROLE_EMBED)
        return (struct sv_place){.w = &m->embed};
    return spec->role == SV_ROLE_HEAD ? (struct sv_place){.w = &m->head}
                                      : sv_stack_place(&m->stack, spec);
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
    if (!rc)
        rc = sv_stack_open(&m->stack, &m->weights, &m->cfg, n_positions, err);
    if (!rc)
        rc = sv_weights_load(&m->weights, &m->cfg, 0, place, m, err);
    if (!rc && m->cfg.tie_embeddings)
        m->embed = m->head;
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
    sv_stack_forward(&m->stack, m->dev, a, p);
}

void sv_model_argmax(const struct sv_model *m, int32_t n, const void *x, const int32_t *out_index,
                     int32_t *out)
{
    sv_op_head_argmax(m->dev, &(struct sv_p_head_argmax){
                                  .n_rows = n,
                                  .k = m->cfg.hidden_size,
                                  .x = x,
                                  .w = m->head,
                                  .out_index = out_index,
                                  .out = out,
                              });
}

void sv_model_logits(const struct sv_model *m, int32_t n, const void *x, float *logits)
{
    const struct sv_gemm_part head = {.w = m->head};
    sv_op_gemm(m->dev, &(struct sv_p_gemm){
                           .n_rows = n,
                           .k = m->cfg.hidden_size,
                           .n_parts = 1,
                           .x = x,
                           .ldx = m->cfg.hidden_size,
                           .parts = &head,
                           .y = logits,
                           .y_f32 = true,
                           .ldy = m->cfg.vocab_size,
                       });
}
