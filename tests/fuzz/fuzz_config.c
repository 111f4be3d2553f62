/*
 * fuzz_config.c - any bytes as config.json, of a target and of a draft.
 *
 * Called by driver.c and libFuzzer. What is accepted must be usable: sizes that divide, ids inside
 * the vocabulary, taps in order, a rotary table of finite numbers, a positive number of parameters.
 */
#include "load/load.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_rope(const struct sv_config *c)
{
    float t[2 * 3 * 1024 / 2];
    sv_rope_fill(&c->rope, c->head_dim, 3, t);
    for (int32_t i = 0; i < 3 * c->head_dim; i++)
        SV_REQUIRE(isfinite(t[i]));
}

static void check_config(const struct sv_config *c)
{
    SV_REQUIRE(c->hidden_size > 0 && c->vocab_size > 0);
    SV_REQUIRE(c->n_layers > 0 && c->n_layers <= SV_MAX_LAYERS && c->max_position > 0);
    SV_REQUIRE(c->n_kv_heads > 0 && c->n_heads % c->n_kv_heads == 0);
    SV_REQUIRE(c->head_dim > 0 && c->head_dim % 8 == 0 && c->head_dim <= 1024);
    SV_REQUIRE(c->rms_eps > 0 && c->embed_scale == 1);
    SV_REQUIRE(c->bos_id >= -1 && c->bos_id < c->vocab_size);
    SV_REQUIRE(c->n_eos >= 0 && c->n_eos <= SV_MAX_STOP_IDS);
    for (int32_t i = 0; i < c->n_eos; i++)
        SV_REQUIRE(c->eos_ids[i] >= 0 && c->eos_ids[i] < c->vocab_size);
    SV_REQUIRE(c->n_chosen >= 0 && c->n_chosen <= c->n_experts && c->n_experts <= 1024);
    SV_REQUIRE(c->expert_limit >= 0 && isfinite(c->expert_limit));
    for (int32_t i = 0; i < c->n_layers; i++) {
        SV_REQUIRE(c->layer_kind[i] != SV_LAYER_SLIDING || c->sliding_window > 0);
        SV_REQUIRE(c->layer_moe[i] ? c->n_chosen > 0 && c->moe_intermediate_size > 0
                                   : c->intermediate_size > 0);
    }
    if (c->kv_lora_rank) {
        SV_REQUIRE(c->kv_lora_rank + c->rot_dim <= 576 && c->kv_lora_rank % 8 == 0);
        SV_REQUIRE(c->nope_dim + c->rot_dim == c->head_dim && c->rot_dim > 0 && c->v_dim > 0);
        SV_REQUIRE(c->q_lora_rank >= 0 && c->n_mtp_layers >= 0 && c->routed_scale > 0);
        SV_REQUIRE(c->topk_group > 0 && c->topk_group <= c->n_group);
        SV_REQUIRE(c->n_experts % c->n_group == 0 && c->n_experts >= 2 * c->n_group);
        SV_REQUIRE(c->n_chosen <= c->n_experts / c->n_group * c->topk_group);
    }
    check_rope(c);
}

static void check_draft(const struct sv_draft_config *d)
{
    check_config(&d->base);
    SV_REQUIRE(d->block_size >= 2 && d->block_size <= 256);
    SV_REQUIRE(d->mask_id >= 0 && d->mask_id < d->base.vocab_size);
    SV_REQUIRE(d->n_taps > 0 && d->n_taps <= SV_MAX_TAPS && d->taps[0] >= 0);
    for (int32_t i = 1; i < d->n_taps; i++)
        SV_REQUIRE(d->taps[i] > d->taps[i - 1]);
    SV_REQUIRE(sv_draft_config_n_params(d) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct sv_config c;
    struct sv_draft_config d;
    struct sv_err err = {0};
    if (sv_config_parse(&c, (const char *)data, n, &err)) {
        SV_REQUIRE(err.code < 0 && err.msg[0]);
    } else {
        check_config(&c);
        SV_REQUIRE(sv_config_n_params(&c) > 0);
    }
    for (int32_t n_target_layers = 0; n_target_layers <= 36; n_target_layers += 36) {
        err = (struct sv_err){0};
        if (sv_draft_config_parse(&d, (const char *)data, n, n_target_layers, &err)) {
            SV_REQUIRE(err.code < 0 && err.msg[0]);
            continue;
        }
        check_draft(&d);
        c = d.base; /* a target it could be meant for, and one it is not */
        c.arch = 0; /* a target's row */
        c.n_layers = d.n_target_layers > 0 ? d.n_target_layers : SV_MAX_LAYERS;
        SV_REQUIRE(d.taps[d.n_taps - 1] > c.n_layers - 2 || sv_pair_check(&c, &d, &err) == SV_OK);
        c.vocab_size++;
        SV_REQUIRE(sv_pair_check(&c, &d, &err) < 0);
    }
    return 0;
}
