/*
 * table.c - whether a backend's table of functions has all that callers count on.
 *
 * Called by ops.c when a device opens, so that a missing op is an error at start that names it and
 * not a fault or a silent fallback in the step. Must not: call anything of a table.
 */
#include "backend/backends.h"

#include "backend/ops_gdn.h"
#include "backend/ops_mla.h"
#include "backend/ops_moe.h"
#include "backend/ops_vision.h"

#include <string.h>

struct entry {
    const char *name;
    size_t at;
};
#define IN(table, name)                                                                            \
    {                                                                                              \
#name, offsetof(struct table, name)                                                        \
    }
#define OP(name) IN(sv_backend, name)

static const struct entry always[] = {
    OP(close),          OP(reserve),
    OP(alloc),          OP(free),
    OP(host_alloc),     OP(host_free),
    OP(memory),         OP(upload_weight),
    OP(free_weight),    OP(weight_bytes),
    OP(random_weight),  OP(upload),
    OP(download),       OP(copy),
    OP(sync),           OP(mark),
    OP(wait),           OP(graph_run),
    OP(block_ids),      OP(embed),
    OP(add_rms_norm),   OP(gemm),
    OP(gemm_act_mul),   OP(qk_norm_rope_kv_write),
    OP(attention),      OP(act_mul),
    OP(head_argmax),    OP(logit_pos),
    OP(sample),         OP(head_among),
    OP(logit_mask),     OP(logit_rules),
    OP(logprobs),       OP(history),
    OP(replace_drafts), OP(verify),
    OP(commit),         OP(draft_context_kv),
    OP(measure_read),   OP(describe),
    OP(act_dtype),      OP(compute_dtype),
};

/* Whole or not at all. */
static const struct entry moe[] = {IN(sv_moe_ops, upload_experts), IN(sv_moe_ops, random_experts),
                                   IN(sv_moe_ops, free_experts),   IN(sv_moe_ops, router_topk),
                                   IN(sv_moe_ops, gate_up),        IN(sv_moe_ops, down)};
static const struct entry gdn[] = {IN(sv_gdn_ops, conv), IN(sv_gdn_ops, scan), IN(sv_gdn_ops, norm),
                                   IN(sv_gdn_ops, few)};
static const struct entry vision[] = {IN(sv_vision_ops, layer_norm), IN(sv_vision_ops, gelu),
                                      IN(sv_vision_ops, add_corners)};
static const struct entry mla[] = {IN(sv_mla_ops, write), IN(sv_mla_ops, head_products)};
/* Of ranks. */
static const struct entry with_window[] = {OP(window_join), OP(gather_logits)};
/* Of models with these. */
static const struct entry with_moe[] = {OP(add_gated)},
                          with_gdn[] = {OP(sigmoid_mul), OP(snapshot)},
                          with_vision[] = {OP(add_gated)};

static int find(const struct sv_backend *be, const char *group, const void *table,
                const struct entry *e, size_t n, struct sv_err *err)
{
    static const char none[sizeof be->close];
    for (size_t i = 0; i < n; i++)
        if (memcmp((const char *)table + e[i].at, none, sizeof none) == 0)
            return sv_fail(err, SV_EUNSUPPORTED, -1, "the %s backend has no %s%s", be->name, group,
                           e[i].name);
    return SV_OK;
}
#define FIND(group, table, list) find(be, group, table, list, sizeof list / sizeof *list, err)

int sv_table_check(const struct sv_backend *be, struct sv_err *err)
{
    int rc = FIND("", be, always);
    if (!rc && be->moe)
        rc = FIND("moe.", be->moe, moe);
    if (!rc && be->moe)
        rc = FIND("", be, with_moe);
    if (!rc && be->mla)
        rc = FIND("mla.", be->mla, mla);
    if (!rc && be->window_open)
        rc = FIND("", be, with_window);
    if (!rc && be->gdn)
        rc = FIND("gdn.", be->gdn, gdn);
    if (!rc && be->gdn)
        rc = FIND("", be, with_gdn);
    if (!rc && be->vision)
        rc = FIND("vision.", be->vision, vision);
    if (!rc && be->vision)
        rc = FIND("", be, with_vision);
    return rc;
}
