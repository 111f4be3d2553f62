/*
 * latent.c - further configuration of DeepSeek-V3 and its successors: latent attention, a router of
 * sigmoid scores in groups, leading dense layers.
 *
 * Called by config.c for rows of the table with a `latent`. Must not: accept a setting that changes
 * the arithmetic and is not implemented.
 */
#include "load/impl.h"

#include "backend/ops_mla.h"
#include "backend/ops_moe.h"

#include <string.h>

#define MAX_LORA (1 << 16)
#define MAX_INTER (1 << 20)
#define MAX_HEAD 512
#define MAX_MTP_LAYERS 64

/* ---------------------------------------------------------------- heads */

int sv_latent_heads(struct sv_config *c, const json_t *root, struct sv_err *err)
{
    struct {
        const char *key;
        int32_t max, v; /* v: the class's */
    } part[] = {{"kv_lora_rank", SV_MAX_LATENT, 512},
                {"qk_rope_head_dim", 256, 64},
                {"qk_nope_head_dim", MAX_HEAD, 128},
                {"v_head_dim", MAX_HEAD, 128}};
    int rc = SV_OK;
    for (int i = 0; i < 4 && !rc; i++) {
        rc = sv_json_i32_opt(root, part[i].key, 1, part[i].max, &part[i].v, err);
        if (!rc && part[i].v % 8)
            rc = sv_fail(err, SV_EUNSUPPORTED, -1, "%s %d is not a multiple of 8", part[i].key,
                         part[i].v);
    }
    const json_t *lora = json_object_get(root, "q_lora_rank");
    c->q_lora_rank = lora && json_is_null(lora) ? 0 : 1536;
    if (!rc)
        rc = sv_json_i32_opt(root, "q_lora_rank", 1, MAX_LORA, &c->q_lora_rank, err);
    c->rope_interleaved = true;
    if (!rc)
        rc = sv_json_bool_opt(root, "rope_interleave", &c->rope_interleaved, err);
    c->kv_lora_rank = part[0].v;
    c->rot_dim = part[1].v;
    c->nope_dim = part[2].v;
    c->v_dim = part[3].v;
    if (!rc && c->kv_lora_rank + c->rot_dim > SV_MAX_LATENT)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "kv_lora_rank %d and qk_rope_head_dim %d are more than %d together",
                     c->kv_lora_rank, c->rot_dim, SV_MAX_LATENT);
    c->head_dim = c->nope_dim + c->rot_dim;
    c->n_kv_heads = c->n_heads; /* num_key_value_heads is ignored */
    c->latent_eps = 1e-6f;      /* as in transformers; rms_norm_eps is ignored */
    return rc;
}

/* ---------------------------------------------------------------- experts */

static int check_groups(const struct sv_config *c, struct sv_err *err)
{
    const int32_t size = c->n_experts / c->n_group;
    if (c->n_experts % c->n_group || size < 2)
        return sv_fail(err, SV_EINVAL, -1,
                       "n_routed_experts %d are not n_group %d groups of two or more", c->n_experts,
                       c->n_group);
    if (c->topk_group > c->n_group)
        return sv_fail(err, SV_EINVAL, -1, "topk_group %d is more than n_group %d", c->topk_group,
                       c->n_group);
    if (c->n_chosen > c->topk_group * size)
        return sv_fail(err, SV_EINVAL, -1,
                       "num_experts_per_tok %d is more than the %d experts of topk_group %d",
                       c->n_chosen, c->topk_group * size, c->topk_group);
    return SV_OK;
}

int sv_latent_moe(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                  struct sv_err *err)
{
    int32_t n_shared = 1, n_dense = 3;
    double scale = 2.5;
    c->n_experts = row->n_experts;
    c->n_chosen = row->n_chosen;
    c->moe_intermediate_size = row->moe_intermediate_size;
    c->norm_topk = row->norm_topk;
    c->router_sigmoid = true;
    c->n_group = 8;
    c->topk_group = 4;
    int rc = sv_json_i32_opt(root, "n_routed_experts", 1, SV_MAX_EXPERTS, &c->n_experts, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "num_experts_per_tok", 1, SV_MAX_CHOSEN, &c->n_chosen, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "moe_intermediate_size", 1, MAX_INTER, &c->moe_intermediate_size,
                             err);
    if (!rc)
        rc = sv_json_bool_opt(root, "norm_topk_prob", &c->norm_topk, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "n_group", 1, SV_MAX_EXPERTS, &c->n_group, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "topk_group", 1, SV_MAX_EXPERTS, &c->topk_group, err);
    if (!rc)
        rc = sv_json_num_opt(root, "routed_scaling_factor", 1e-6, 1e6, &scale, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "n_shared_experts", 0, MAX_INTER / c->moe_intermediate_size,
                             &n_shared, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "first_k_dense_replace", 0, INT32_MAX, &n_dense, err);
    c->routed_scale = (float)scale;
    c->shared_intermediate_size = n_shared * c->moe_intermediate_size;
    for (int32_t i = 0; i < c->n_layers; i++)
        c->layer_moe[i] = i >= n_dense;
    if (!rc && n_dense && !c->intermediate_size)
        rc = sv_fail(err, SV_EFORMAT, -1, "field 'intermediate_size' is missing");
    return rc ? rc : check_groups(c, err);
}

/* ---------------------------------------------------------------- what is not implemented */

static int must_be(const json_t *root, const char *key, const char *one, struct sv_err *err)
{
    const char *v = one;
    int rc = sv_json_str_opt(root, key, &v, err);
    return rc || !strcmp(v, one) ? rc
                                 : sv_fail(err, SV_EUNSUPPORTED, -1,
                                           "'%s' '%.40s' is not supported (%s is)", key, v, one);
}

int sv_latent_layers(struct sv_config *c, const json_t *root, struct sv_err *err)
{
    int32_t freq = 1;
    int rc = must_be(root, "scoring_func", "sigmoid", err);
    if (!rc)
        rc = must_be(root, "topk_method", "noaux_tc", err);
    if (!rc)
        rc = sv_json_i32_opt(root, "moe_layer_freq", 1, INT32_MAX, &freq, err);
    if (!rc && freq != 1)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "'moe_layer_freq' %d is not supported (1 is)", freq);
    if (!rc && sv_json_has(root, "index_topk"))
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "'index_topk': sparse attention is not supported for %s",
                     sv_arch_name(c->arch));
    if (!rc && c->rope.kind != SV_ROPE_DEFAULT && c->rope.kind != SV_ROPE_YARN)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "RoPE other than default and yarn is not supported for %s",
                     sv_arch_name(c->arch));
    if (!rc)
        rc = sv_json_i32_opt(root, "num_nextn_predict_layers", 0, MAX_MTP_LAYERS, &c->n_mtp_layers,
                             err);
    for (int32_t i = 0; i < c->n_layers && !rc; i++) {
        if (c->layer_kind[i] == SV_LAYER_SLIDING)
            rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                         "'layer_types'[%d]: 'sliding_attention' is not supported for %s", i,
                         sv_arch_name(c->arch));
        c->layer_kind[i] = SV_LAYER_MLA;
    }
    return rc;
}
