/*
 * arch.c - the table of architectures: names, defaults and the tensors each is made of.
 *
 * Called by config.c, draft.c and tensors.c. A new dense architecture is one more row here. Must
 * not: read files or decide anything from anything but the two name fields of config.json.
 */
#include "load/impl.h"

#include <string.h>

/* What every layer has, in targets and in drafts: the draft's layers are those of Qwen3. */
/* clang-format off */
#define LAYER_TENSORS \
    {"layers.*.input_layernorm.weight", SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS}, \
    {"layers.*.post_attention_layernorm.weight", SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS}, \
    {"layers.*.self_attn.q_proj.weight", SV_DIM_Q, SV_DIM_HIDDEN, SV_ALWAYS}, \
    {"layers.*.self_attn.k_proj.weight", SV_DIM_KV, SV_DIM_HIDDEN, SV_ALWAYS}, \
    {"layers.*.self_attn.v_proj.weight", SV_DIM_KV, SV_DIM_HIDDEN, SV_ALWAYS}, \
    {"layers.*.self_attn.o_proj.weight", SV_DIM_HIDDEN, SV_DIM_Q, SV_ALWAYS}, \
    {"layers.*.self_attn.q_proj.bias", SV_DIM_Q, SV_DIM_NONE, SV_IF_ATTN_BIAS}, \
    {"layers.*.self_attn.k_proj.bias", SV_DIM_KV, SV_DIM_NONE, SV_IF_ATTN_BIAS}, \
    {"layers.*.self_attn.v_proj.bias", SV_DIM_KV, SV_DIM_NONE, SV_IF_ATTN_BIAS}, \
    {"layers.*.self_attn.o_proj.bias", SV_DIM_HIDDEN, SV_DIM_NONE, SV_IF_ATTN_BIAS}, \
    {"layers.*.self_attn.q_norm.weight", SV_DIM_HEAD, SV_DIM_NONE, SV_IF_QK_NORM}, \
    {"layers.*.self_attn.k_norm.weight", SV_DIM_HEAD, SV_DIM_NONE, SV_IF_QK_NORM}, \
    {"layers.*.mlp.gate_proj.weight", SV_DIM_INTER, SV_DIM_HIDDEN, SV_ALWAYS}, \
    {"layers.*.mlp.up_proj.weight", SV_DIM_INTER, SV_DIM_HIDDEN, SV_ALWAYS}, \
    {"layers.*.mlp.down_proj.weight", SV_DIM_HIDDEN, SV_DIM_INTER, SV_ALWAYS}, \
    {"layers.*.mlp.gate_proj.bias", SV_DIM_INTER, SV_DIM_NONE, SV_IF_MLP_BIAS}, \
    {"layers.*.mlp.up_proj.bias", SV_DIM_INTER, SV_DIM_NONE, SV_IF_MLP_BIAS}, \
    {"layers.*.mlp.down_proj.bias", SV_DIM_HIDDEN, SV_DIM_NONE, SV_IF_MLP_BIAS}
/* clang-format on */

static const struct sv_tensor_row target_tensors[] = {
    {"embed_tokens.weight", SV_DIM_VOCAB, SV_DIM_HIDDEN, SV_ALWAYS},
    {"norm.weight", SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS},
    {"lm_head.weight", SV_DIM_VOCAB, SV_DIM_HIDDEN, SV_IF_UNTIED},
    LAYER_TENSORS,
    {NULL, 0, 0, 0},
};

/* The published draft has neither embedding nor head. */
static const struct sv_tensor_row draft_tensors[] = {
    {"fc.weight", SV_DIM_HIDDEN, SV_DIM_TAPS, SV_ALWAYS},
    {"hidden_norm.weight", SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS},
    {"norm.weight", SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS},
    LAYER_TENSORS,
    {NULL, 0, 0, 0},
};

/* Indexed by enum sv_arch. */
static const struct sv_arch_row table[] = {
    [SV_ARCH_QWEN3] = {.architecture = "Qwen3ForCausalLM",
                       .model_type = "qwen3",
                       .arch = SV_ARCH_QWEN3,
                       .rope_theta = 10000,
                       .max_position = 32768,
                       .max_window_layers = 28,
                       .rms_eps = 1e-6,
                       .qk_norm = true,
                       .may_slide = true,
                       .tensors = target_tensors},
    [SV_ARCH_LLAMA] = {.architecture = "LlamaForCausalLM",
                       .model_type = "llama",
                       .arch = SV_ARCH_LLAMA,
                       .rope_theta = 10000,
                       .max_position = 2048,
                       .rms_eps = 1e-6,
                       .may_mlp_bias = true,
                       .tensors = target_tensors},
    [SV_ARCH_DFLASH] = {.architecture = "DFlashDraftModel",
                        .arch = SV_ARCH_DFLASH,
                        .rope_theta = 0, /* engines disagree on a default: the file must say it */
                        .max_position = 32768,
                        .rms_eps = 1e-6,
                        .qk_norm = true,
                        .may_slide = true,
                        .tensors = draft_tensors},
};

const struct sv_arch_row *sv_arch_row(enum sv_arch arch)
{
    SV_REQUIRE((size_t)arch < sizeof table / sizeof table[0]);
    return &table[arch];
}

const char *sv_arch_name(enum sv_arch arch)
{
    return (size_t)arch < sizeof table / sizeof table[0] ? table[arch].architecture : "unknown";
}

int sv_arch_string(const json_t *root, const char **out, struct sv_err *err)
{
    *out = NULL;
    const json_t *list = json_object_get(root, "architectures");
    if (!list || json_is_null(list))
        return SV_OK;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return sv_fail(err, SV_EFORMAT, -1, "field 'architectures' must be a list of names");
    *out = json_string_value(json_array_get(list, 0));
    if (!*out)
        return sv_fail(err, SV_EFORMAT, -1, "field 'architectures' must be a list of names");
    return SV_OK;
}

const struct sv_arch_row *sv_arch_of_config(const json_t *root, struct sv_err *err)
{
    const char *name, *type = NULL;
    if (sv_arch_string(root, &name, err) || sv_json_str_opt(root, "model_type", &type, err))
        return NULL;
    if (name && (strstr(name, "DFlash") || strstr(name, "Dflash"))) {
        sv_fail(err, SV_EUNSUPPORTED, -1, "'%.80s' is a draft, not a target model", name);
        return NULL;
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].arch == SV_ARCH_DFLASH)
            continue;
        if (name ? !strcmp(name, table[i].architecture)
                 : type && !strcmp(type, table[i].model_type))
            return &table[i];
    }
    if (!name && !type)
        sv_fail(err, SV_EFORMAT, -1, "field 'architectures' is missing");
    else
        sv_fail(err, SV_EUNSUPPORTED, -1,
                "architecture '%.80s' is not supported (Qwen3ForCausalLM and LlamaForCausalLM are)",
                name ? name : type);
    return NULL;
}
