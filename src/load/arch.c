/*
 * arch.c - the table of architectures: names, defaults and the tensors each is made of.
 *
 * Called by config.c, draft.c and tensors.c. A Llama-like family is one more row here. Must not:
 * read files, or decide by anything but the two name fields of config.json.
 */
#include "load/impl.h"

#include <stdio.h>
#include <string.h>

/* The attention of every layer and its norms, and a dense MLP, in targets and in drafts: the
 * draft's layers are those of Qwen3. d: 0 or SV_ROLE_DRAFT. */
/* clang-format off */
#define ATTN_TENSORS(d) \
    {"layers.{layer}.input_layernorm.weight", SV_ROLE_IN_NORM | (d), SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS, SV_SHARD_NONE}, \
    {"layers.{layer}.post_attention_layernorm.weight", SV_ROLE_POST_NORM | (d), SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS, SV_SHARD_NONE}, \
    {"layers.{layer}.self_attn.q_norm.weight", SV_ROLE_Q_NORM | (d), SV_DIM_HEAD, SV_DIM_NONE, SV_IF_QK_NORM, SV_SHARD_NONE}, \
    {"layers.{layer}.self_attn.k_norm.weight", SV_ROLE_K_NORM | (d), SV_DIM_HEAD, SV_DIM_NONE, SV_IF_QK_NORM, SV_SHARD_NONE}, \
    LINEAR("self_attn.q_proj", SV_ROLE_Q | (d), SV_DIM_Q, SV_DIM_HIDDEN, SV_IF_ATTN_BIAS, SV_SHARD_ROWS, SV_SHARD_ROWS), \
    LINEAR("self_attn.k_proj", SV_ROLE_K | (d), SV_DIM_KV, SV_DIM_HIDDEN, SV_IF_ATTN_BIAS, SV_SHARD_ROWS, SV_SHARD_ROWS), \
    LINEAR("self_attn.v_proj", SV_ROLE_V | (d), SV_DIM_KV, SV_DIM_HIDDEN, SV_IF_ATTN_BIAS, SV_SHARD_ROWS, SV_SHARD_ROWS), \
    LINEAR("self_attn.o_proj", SV_ROLE_O | (d), SV_DIM_HIDDEN, SV_DIM_Q, SV_IF_ATTN_BIAS, SV_SHARD_COLS, SV_SHARD_NONE)
#define MLP_TENSORS(d) \
    LINEAR("mlp.gate_proj", SV_ROLE_GATE | (d), SV_DIM_INTER, SV_DIM_HIDDEN, SV_IF_MLP_BIAS, SV_SHARD_ROWS, SV_SHARD_ROWS), \
    LINEAR("mlp.up_proj", SV_ROLE_UP | (d), SV_DIM_INTER, SV_DIM_HIDDEN, SV_IF_MLP_BIAS, SV_SHARD_ROWS, SV_SHARD_ROWS), \
    LINEAR("mlp.down_proj", SV_ROLE_DOWN | (d), SV_DIM_HIDDEN, SV_DIM_INTER, SV_IF_MLP_BIAS, SV_SHARD_COLS, SV_SHARD_NONE)
/* After the layers of a target. */
#define ENDS \
    {"norm.weight", SV_ROLE_FINAL_NORM, SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS, SV_SHARD_NONE}, \
    {"embed_tokens.weight", SV_ROLE_EMBED, SV_DIM_VOCAB, SV_DIM_HIDDEN, SV_IF_UNTIED, SV_SHARD_ROWS}, \
    {"embed_tokens.weight", SV_ROLE_HEAD, SV_DIM_VOCAB, SV_DIM_HIDDEN, SV_IF_TIED, SV_SHARD_ROWS}, \
    {"lm_head.weight", SV_ROLE_HEAD, SV_DIM_VOCAB, SV_DIM_HIDDEN, SV_IF_UNTIED, SV_SHARD_ROWS}, \
    {0}
/* A projection and its bias, with the shard axis of each. */
#define LINEAR(name, role, rows, cols, if_bias, shard, bias_shard) \
    {"layers.{layer}." name ".weight", role, rows, cols, SV_ALWAYS, shard}, \
    {"layers.{layer}." name ".bias", (role) | SV_ROLE_BIAS, rows, SV_DIM_NONE, if_bias, bias_shard}

static const struct sv_tensor_row target_tensors[] = {
    ATTN_TENSORS(0),
    MLP_TENSORS(0),
    ENDS,
};

/* Experts with separate tensors. */
#define EXPERTS_APART \
    {"layers.{layer}.mlp.experts.{expert}.gate_proj.weight", SV_ROLE_EXPERT_GATE, SV_DIM_EXPERT_INTER, SV_DIM_HIDDEN, SV_IF_APART, SV_SHARD_ROWS}, \
    {"layers.{layer}.mlp.experts.{expert}.up_proj.weight", SV_ROLE_EXPERT_UP, SV_DIM_EXPERT_INTER, SV_DIM_HIDDEN, SV_IF_APART, SV_SHARD_ROWS}, \
    {"layers.{layer}.mlp.experts.{expert}.down_proj.weight", SV_ROLE_EXPERT_DOWN, SV_DIM_HIDDEN, SV_DIM_EXPERT_INTER, SV_IF_APART, SV_SHARD_COLS}

/* A layer has the router and its experts, or a dense MLP. */
static const struct sv_tensor_row qwen3_moe_tensors[] = {
    ATTN_TENSORS(0),
    {"layers.{layer}.mlp.gate_proj.weight", SV_ROLE_GATE, SV_DIM_INTER, SV_DIM_HIDDEN, SV_IF_DENSE, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.up_proj.weight", SV_ROLE_UP, SV_DIM_INTER, SV_DIM_HIDDEN, SV_IF_DENSE, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.down_proj.weight", SV_ROLE_DOWN, SV_DIM_HIDDEN, SV_DIM_INTER, SV_IF_DENSE, SV_SHARD_COLS},
    {"layers.{layer}.mlp.gate.weight", SV_ROLE_ROUTER, SV_DIM_EXPERTS, SV_DIM_HIDDEN, SV_IF_MOE, SV_SHARD_NONE},
    EXPERTS_APART,
    ENDS,
};

/* The experts of a layer are in one tensor per projection, gate and up interleaved; or in separate
 * tensors, except biases. */
#define PACKED(dim, pack) (dim) | (pack) * SV_DIM_PACK
static const struct sv_tensor_row gpt_oss_tensors[] = {
    ATTN_TENSORS(0),
    {"layers.{layer}.self_attn.sinks", SV_ROLE_SINKS, SV_DIM_HEADS, SV_DIM_NONE, SV_ALWAYS, SV_SHARD_ROWS},
    LINEAR("mlp.router", SV_ROLE_ROUTER, SV_DIM_EXPERTS, SV_DIM_HIDDEN, SV_ALWAYS, SV_SHARD_NONE, SV_SHARD_NONE),
    {"layers.{layer}.mlp.experts.gate_up_proj", SV_ROLE_EXPERT_GATE_UP, SV_DIM_GATE_UP, PACKED(SV_DIM_HIDDEN, SV_PACK_INPUTS_FIRST), SV_UNLESS_MXFP4, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.experts.gate_up_proj_blocks", SV_ROLE_EXPERT_GATE_UP, SV_DIM_GATE_UP, PACKED(SV_DIM_HIDDEN, SV_PACK_MXFP4), SV_IF_MXFP4, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.experts.gate_up_proj_scales", SV_ROLE_EXPERT_GATE_UP, SV_DIM_GATE_UP, PACKED(SV_DIM_HIDDEN, SV_PACK_MXFP4_SCALES), SV_IF_MXFP4, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.experts.gate_up_proj_bias", SV_ROLE_EXPERT_GATE_UP | SV_ROLE_BIAS, SV_DIM_GATE_UP, SV_DIM_NONE, SV_IF_PACKED, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.experts.down_proj", SV_ROLE_EXPERT_DOWN, SV_DIM_HIDDEN, PACKED(SV_DIM_EXPERT_INTER, SV_PACK_INPUTS_FIRST), SV_UNLESS_MXFP4, SV_SHARD_COLS},
    {"layers.{layer}.mlp.experts.down_proj_blocks", SV_ROLE_EXPERT_DOWN, SV_DIM_HIDDEN, PACKED(SV_DIM_EXPERT_INTER, SV_PACK_MXFP4), SV_IF_MXFP4, SV_SHARD_COLS},
    {"layers.{layer}.mlp.experts.down_proj_scales", SV_ROLE_EXPERT_DOWN, SV_DIM_HIDDEN, PACKED(SV_DIM_EXPERT_INTER, SV_PACK_MXFP4_SCALES), SV_IF_MXFP4, SV_SHARD_COLS},
    {"layers.{layer}.mlp.experts.down_proj_bias", SV_ROLE_EXPERT_DOWN | SV_ROLE_BIAS, SV_DIM_HIDDEN, SV_DIM_NONE, SV_IF_PACKED, SV_SHARD_NONE},
    EXPERTS_APART,
    {"layers.{layer}.mlp.experts.gate_proj.bias", SV_ROLE_EXPERT_GATE | SV_ROLE_BIAS, SV_DIM_EXPERT_INTER, SV_DIM_NONE, SV_IF_APART, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.experts.up_proj.bias", SV_ROLE_EXPERT_UP | SV_ROLE_BIAS, SV_DIM_EXPERT_INTER, SV_DIM_NONE, SV_IF_APART, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.experts.down_proj.bias", SV_ROLE_EXPERT_DOWN | SV_ROLE_BIAS, SV_DIM_HIDDEN, SV_DIM_NONE, SV_IF_APART, SV_SHARD_NONE},
    ENDS,
};

/* Gated DeltaNet hybrids: norms are 1 + w, q_proj has a gate after each head's query. */
#define AS(shard, form) (shard) + SV_FORMS * (form)
#define NORM_1(name, role, dim, when) \
    {name, role, dim, SV_DIM_NONE, when, AS(SV_SHARD_NONE, SV_FORM_ONE_PLUS)}
#define MIXER(name, role, rows, cols, when, shard, form) \
    {"layers.{layer}." name, role, rows, cols, when, AS(shard, form)}
#define HYBRID_MIXERS \
    NORM_1("layers.{layer}.input_layernorm.weight", SV_ROLE_IN_NORM, SV_DIM_HIDDEN, SV_ALWAYS), \
    NORM_1("layers.{layer}.post_attention_layernorm.weight", SV_ROLE_POST_NORM, SV_DIM_HIDDEN, SV_ALWAYS), \
    NORM_1("layers.{layer}.self_attn.q_norm.weight", SV_ROLE_Q_NORM, SV_DIM_HEAD, SV_IF_ATTN), \
    NORM_1("layers.{layer}.self_attn.k_norm.weight", SV_ROLE_K_NORM, SV_DIM_HEAD, SV_IF_ATTN), \
    MIXER("self_attn.q_proj.weight", SV_ROLE_Q, SV_DIM_Q_GATED, SV_DIM_HIDDEN, SV_IF_ATTN, SV_SHARD_ROWS, SV_FORM_PLAIN), \
    MIXER("self_attn.k_proj.weight", SV_ROLE_K, SV_DIM_KV, SV_DIM_HIDDEN, SV_IF_ATTN, SV_SHARD_ROWS, SV_FORM_PLAIN), \
    MIXER("self_attn.v_proj.weight", SV_ROLE_V, SV_DIM_KV, SV_DIM_HIDDEN, SV_IF_ATTN, SV_SHARD_ROWS, SV_FORM_PLAIN), \
    MIXER("self_attn.o_proj.weight", SV_ROLE_O, SV_DIM_HIDDEN, SV_DIM_Q, SV_IF_ATTN, SV_SHARD_COLS, SV_FORM_PLAIN), \
    MIXER("linear_attn.conv1d.weight", SV_ROLE_GDN_CONV, SV_DIM_GDN_QKV, SV_DIM_GDN_TAPS, SV_IF_GDN, SV_SHARD_ROWS, SV_FORM_CONV), \
    MIXER("linear_attn.A_log", SV_ROLE_GDN_DECAY, SV_DIM_GDN_HEADS, SV_DIM_NONE, SV_IF_GDN, SV_SHARD_ROWS, SV_FORM_DECAY), \
    MIXER("linear_attn.dt_bias", SV_ROLE_GDN_DT_BIAS, SV_DIM_GDN_HEADS, SV_DIM_NONE, SV_IF_GDN, SV_SHARD_ROWS, SV_FORM_F32), \
    MIXER("linear_attn.norm.weight", SV_ROLE_GDN_NORM, SV_DIM_GDN_HEAD, SV_DIM_NONE, SV_IF_GDN, SV_SHARD_NONE, SV_FORM_PLAIN), \
    MIXER("linear_attn.out_proj.weight", SV_ROLE_O, SV_DIM_HIDDEN, SV_DIM_GDN_OUT, SV_IF_GDN, SV_SHARD_COLS, SV_FORM_PLAIN)
#define GDN_SPLIT \
    MIXER("linear_attn.in_proj_qkv.weight", SV_ROLE_GDN_QKV, SV_DIM_GDN_QKV, SV_DIM_HIDDEN, SV_IF_SPLIT, SV_SHARD_ROWS, SV_FORM_PLAIN), \
    MIXER("linear_attn.in_proj_z.weight", SV_ROLE_GDN_Z, SV_DIM_GDN_OUT, SV_DIM_HIDDEN, SV_IF_SPLIT, SV_SHARD_ROWS, SV_FORM_PLAIN), \
    MIXER("linear_attn.in_proj_b.weight", SV_ROLE_GDN_B, SV_DIM_GDN_HEADS, SV_DIM_HIDDEN, SV_IF_SPLIT, SV_SHARD_ROWS, SV_FORM_PLAIN), \
    MIXER("linear_attn.in_proj_a.weight", SV_ROLE_GDN_A, SV_DIM_GDN_HEADS, SV_DIM_HIDDEN, SV_IF_SPLIT, SV_SHARD_ROWS, SV_FORM_PLAIN)
#define HYBRID_ENDS \
    NORM_1("norm.weight", SV_ROLE_FINAL_NORM, SV_DIM_HIDDEN, SV_ALWAYS), \
    {"embed_tokens.weight", SV_ROLE_EMBED, SV_DIM_VOCAB, SV_DIM_HIDDEN, SV_IF_UNTIED, SV_SHARD_ROWS}, \
    {"embed_tokens.weight", SV_ROLE_HEAD, SV_DIM_VOCAB, SV_DIM_HIDDEN, SV_IF_TIED, SV_SHARD_ROWS}, \
    {"lm_head.weight", SV_ROLE_HEAD, SV_DIM_VOCAB, SV_DIM_HIDDEN, SV_IF_UNTIED, SV_SHARD_ROWS}, \
    {0}

#define EXPERTS_PACKED \
    MIXER("mlp.experts.gate_up_proj", SV_ROLE_EXPERT_GATE, SV_DIM_EXPERT_INTER, SV_DIM_HIDDEN, SV_IF_OUTPUTS_FIRST, SV_SHARD_ROWS, SV_FORM_GATE), \
    MIXER("mlp.experts.gate_up_proj", SV_ROLE_EXPERT_UP, SV_DIM_EXPERT_INTER, SV_DIM_HIDDEN, SV_IF_OUTPUTS_FIRST, SV_SHARD_ROWS, SV_FORM_UP), \
    MIXER("mlp.experts.down_proj", SV_ROLE_EXPERT_DOWN, SV_DIM_HIDDEN, SV_DIM_EXPERT_INTER, SV_IF_OUTPUTS_FIRST, SV_SHARD_COLS, SV_FORM_EXPERT)
#define HYBRID_MOE \
    {"layers.{layer}.mlp.gate.weight", SV_ROLE_ROUTER, SV_DIM_EXPERTS, SV_DIM_HIDDEN, SV_IF_MOE, SV_SHARD_NONE}, \
    EXPERTS_APART, \
    MIXER("mlp.shared_expert.gate_proj.weight", SV_ROLE_SHARED_GATE, SV_DIM_SHARED_INTER, SV_DIM_HIDDEN, SV_IF_SHARED, SV_SHARD_ROWS, SV_FORM_PLAIN), \
    MIXER("mlp.shared_expert.up_proj.weight", SV_ROLE_SHARED_UP, SV_DIM_SHARED_INTER, SV_DIM_HIDDEN, SV_IF_SHARED, SV_SHARD_ROWS, SV_FORM_PLAIN), \
    MIXER("mlp.shared_expert.down_proj.weight", SV_ROLE_SHARED_DOWN, SV_DIM_HIDDEN, SV_DIM_SHARED_INTER, SV_IF_SHARED, SV_SHARD_COLS, SV_FORM_PLAIN), \
    MIXER("mlp.shared_expert_gate.weight", SV_ROLE_SHARED_ROUTER, SV_DIM_ONE, SV_DIM_HIDDEN, SV_IF_SHARED, SV_SHARD_NONE, SV_FORM_PLAIN)

static const struct sv_tensor_row qwen3_next_tensors[] = {
    HYBRID_MIXERS,
    GDN_SPLIT,
    MIXER("linear_attn.in_proj_qkvz.weight", SV_ROLE_GDN_QKV, SV_DIM_GDN_QKVZ, SV_DIM_HIDDEN, SV_IF_FUSED, SV_SHARD_ROWS, SV_FORM_QKVZ),
    MIXER("linear_attn.in_proj_ba.weight", SV_ROLE_GDN_B, SV_DIM_GDN_2_HEADS, SV_DIM_HIDDEN, SV_IF_FUSED, SV_SHARD_ROWS, SV_FORM_BA),
    {"layers.{layer}.mlp.gate_proj.weight", SV_ROLE_GATE, SV_DIM_INTER, SV_DIM_HIDDEN, SV_IF_DENSE, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.up_proj.weight", SV_ROLE_UP, SV_DIM_INTER, SV_DIM_HIDDEN, SV_IF_DENSE, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.down_proj.weight", SV_ROLE_DOWN, SV_DIM_HIDDEN, SV_DIM_INTER, SV_IF_DENSE, SV_SHARD_COLS},
    HYBRID_MOE,
    HYBRID_ENDS,
};

/* Published Qwen3-VL experts are (inputs, outputs); derived files have either order, or separate
 * tensors. */
static const struct sv_tensor_row qwen3_vl_moe_tensors[] = {
    ATTN_TENSORS(0),
    {"layers.{layer}.mlp.gate_proj.weight", SV_ROLE_GATE, SV_DIM_INTER, SV_DIM_HIDDEN, SV_IF_DENSE, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.up_proj.weight", SV_ROLE_UP, SV_DIM_INTER, SV_DIM_HIDDEN, SV_IF_DENSE, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.down_proj.weight", SV_ROLE_DOWN, SV_DIM_HIDDEN, SV_DIM_INTER, SV_IF_DENSE, SV_SHARD_COLS},
    {"layers.{layer}.mlp.gate.weight", SV_ROLE_ROUTER, SV_DIM_EXPERTS, SV_DIM_HIDDEN, SV_IF_MOE, SV_SHARD_NONE},
    {"layers.{layer}.mlp.experts.gate_up_proj", SV_ROLE_EXPERT_GATE_UP, SV_DIM_GATE_UP, PACKED(SV_DIM_HIDDEN, SV_PACK_HALVES), SV_IF_INPUTS_FIRST, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.experts.down_proj", SV_ROLE_EXPERT_DOWN, SV_DIM_HIDDEN, PACKED(SV_DIM_EXPERT_INTER, SV_PACK_INPUTS_FIRST), SV_IF_INPUTS_FIRST, SV_SHARD_COLS},
    EXPERTS_PACKED,
    EXPERTS_APART,
    ENDS,
};

static const struct sv_tensor_row qwen3_5_moe_tensors[] = {
    HYBRID_MIXERS,
    GDN_SPLIT,
    EXPERTS_PACKED,
    HYBRID_MOE,
    HYBRID_ENDS,
};

static const struct sv_tensor_row qwen3_5_tensors[] = {
    HYBRID_MIXERS,
    GDN_SPLIT,
    MLP_TENSORS(0),
    HYBRID_ENDS,
};

/* DeepSeek-V3 and Kimi K2: latent attention, leading dense layers, then experts and shared ones. */
static const struct sv_tensor_row deepseek_v3_tensors[] = {
    {"layers.{layer}.input_layernorm.weight", SV_ROLE_IN_NORM, SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS, SV_SHARD_NONE},
    {"layers.{layer}.post_attention_layernorm.weight", SV_ROLE_POST_NORM, SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS, SV_SHARD_NONE},
    MIXER("self_attn.q_a_proj.weight", SV_ROLE_Q_A, SV_DIM_Q_LORA, SV_DIM_HIDDEN, SV_IF_Q_LORA, SV_SHARD_NONE, SV_FORM_PLAIN),
    MIXER("self_attn.q_a_proj.bias", SV_ROLE_Q_A | SV_ROLE_BIAS, SV_DIM_Q_LORA, SV_DIM_NONE, SV_IF_Q_LORA_BIAS, SV_SHARD_NONE, SV_FORM_PLAIN),
    MIXER("self_attn.q_a_layernorm.weight", SV_ROLE_Q_A_NORM, SV_DIM_Q_LORA, SV_DIM_NONE, SV_IF_Q_LORA, SV_SHARD_NONE, SV_FORM_PLAIN),
    MIXER("self_attn.q_b_proj.weight", SV_ROLE_Q, SV_DIM_Q, SV_DIM_Q_LORA, SV_IF_Q_LORA, SV_SHARD_ROWS, SV_FORM_PLAIN),
    MIXER("self_attn.q_proj.weight", SV_ROLE_Q, SV_DIM_Q, SV_DIM_HIDDEN, SV_UNLESS_Q_LORA, SV_SHARD_ROWS, SV_FORM_PLAIN),
    LINEAR("self_attn.kv_a_proj_with_mqa", SV_ROLE_KV_A, SV_DIM_LATENT, SV_DIM_HIDDEN, SV_IF_ATTN_BIAS, SV_SHARD_NONE, SV_SHARD_NONE),
    MIXER("self_attn.kv_a_layernorm.weight", SV_ROLE_KV_A_NORM, SV_DIM_KV_LORA, SV_DIM_NONE, SV_ALWAYS, SV_SHARD_NONE, SV_FORM_PLAIN),
    MIXER("self_attn.kv_b_proj.weight", SV_ROLE_KV_B, SV_DIM_KV_UP, SV_DIM_KV_LORA, SV_IF_KV_B, SV_SHARD_ROWS, SV_FORM_PLAIN),
    MIXER("self_attn.k_b_proj.{expert}.weight", SV_ROLE_K_UP, SV_DIM_KV_LORA, SV_DIM_NOPE, SV_IF_BY_HEAD, SV_SHARD_NONE, SV_FORM_PLAIN),
    MIXER("self_attn.v_b_proj.{expert}.weight", SV_ROLE_V_UP, SV_DIM_V_HEAD, SV_DIM_KV_LORA, SV_IF_BY_HEAD, SV_SHARD_NONE, SV_FORM_PLAIN),
    LINEAR("self_attn.o_proj", SV_ROLE_O, SV_DIM_HIDDEN, SV_DIM_V_OUT, SV_IF_ATTN_BIAS, SV_SHARD_COLS, SV_SHARD_NONE),
    MIXER("mlp.gate_proj.weight", SV_ROLE_GATE, SV_DIM_INTER, SV_DIM_HIDDEN, SV_IF_DENSE, SV_SHARD_ROWS, SV_FORM_PLAIN),
    MIXER("mlp.up_proj.weight", SV_ROLE_UP, SV_DIM_INTER, SV_DIM_HIDDEN, SV_IF_DENSE, SV_SHARD_ROWS, SV_FORM_PLAIN),
    MIXER("mlp.down_proj.weight", SV_ROLE_DOWN, SV_DIM_HIDDEN, SV_DIM_INTER, SV_IF_DENSE, SV_SHARD_COLS, SV_FORM_PLAIN),
    MIXER("mlp.gate.weight", SV_ROLE_ROUTER, SV_DIM_EXPERTS, SV_DIM_HIDDEN, SV_IF_MOE, SV_SHARD_NONE, SV_FORM_PLAIN),
    MIXER("mlp.gate.e_score_correction_bias", SV_ROLE_CHOICE_BIAS, SV_DIM_EXPERTS, SV_DIM_NONE, SV_IF_MOE, SV_SHARD_NONE, SV_FORM_F32),
    MIXER("mlp.experts.{expert}.gate_proj.weight", SV_ROLE_EXPERT_GATE, SV_DIM_EXPERT_INTER, SV_DIM_HIDDEN, SV_IF_MOE, SV_SHARD_ROWS, SV_FORM_PLAIN),
    MIXER("mlp.experts.{expert}.up_proj.weight", SV_ROLE_EXPERT_UP, SV_DIM_EXPERT_INTER, SV_DIM_HIDDEN, SV_IF_MOE, SV_SHARD_ROWS, SV_FORM_PLAIN),
    MIXER("mlp.experts.{expert}.down_proj.weight", SV_ROLE_EXPERT_DOWN, SV_DIM_HIDDEN, SV_DIM_EXPERT_INTER, SV_IF_MOE, SV_SHARD_COLS, SV_FORM_PLAIN),
    MIXER("mlp.shared_experts.gate_proj.weight", SV_ROLE_SHARED_GATE, SV_DIM_SHARED_INTER, SV_DIM_HIDDEN, SV_IF_SHARED, SV_SHARD_ROWS, SV_FORM_PLAIN),
    MIXER("mlp.shared_experts.up_proj.weight", SV_ROLE_SHARED_UP, SV_DIM_SHARED_INTER, SV_DIM_HIDDEN, SV_IF_SHARED, SV_SHARD_ROWS, SV_FORM_PLAIN),
    MIXER("mlp.shared_experts.down_proj.weight", SV_ROLE_SHARED_DOWN, SV_DIM_HIDDEN, SV_DIM_SHARED_INTER, SV_IF_SHARED, SV_SHARD_COLS, SV_FORM_PLAIN),
    ENDS,
};

/* The published draft has neither embedding nor head. fc is small and carries all of the target's
 * hidden states to the draft: it is not quantized. */
static const struct sv_tensor_row draft_tensors[] = {
    {"fc.weight", SV_ROLE_TAP_PROJ, SV_DIM_HIDDEN, SV_DIM_TAPS, SV_ALWAYS, SV_SHARD_NONE},
    {"hidden_norm.weight", SV_ROLE_TAP_NORM, SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS, SV_SHARD_NONE},
    ATTN_TENSORS(SV_ROLE_DRAFT),
    MLP_TENSORS(SV_ROLE_DRAFT),
    {"norm.weight", SV_ROLE_FINAL_NORM, SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS, SV_SHARD_NONE},
    {0},
};
/* clang-format on */

static const struct sv_rope gpt_oss_rope = {.kind = SV_ROPE_YARN,
                                            .factor = 32,
                                            .beta_fast = 32,
                                            .beta_slow = 1,
                                            .original_max_position = 4096,
                                            .no_truncate = true};

static const struct sv_arch_row table[] = {
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .rope_theta = 10000,
     .max_position = 32768,
     .sliding_window = 4096,
     .max_window_layers = 28,
     .rms_eps = 1e-6,
     .qk_norm = true,
     .may_slide = true,
     .tensors = target_tensors},
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .rope_theta = 10000,
     .max_position = 2048,
     .rms_eps = 1e-6,
     .may_mlp_bias = true,
     .tensors = target_tensors},
    {.architecture = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .rope_theta = 10000,
     .max_position = 32768,
     .sliding_window = 4096,
     .rms_eps = 1e-6,
     .qk_norm = true,
     .may_slide = true,
     .all_slide = true,
     .n_experts = 128,
     .n_chosen = 8,
     .moe_intermediate_size = 768,
     .tensors = qwen3_moe_tensors},
    {.architecture = "GptOssForCausalLM",
     .model_type = "gpt_oss",
     .rope_theta = 150000,
     .rope = &gpt_oss_rope,
     .max_position = 131072,
     .sliding_window = 128,
     .rms_eps = 1e-5,
     .attention_bias = true,
     .slides_in_turn = true,
     .n_experts = 128,
     .n_chosen = 4,
     .expert_limit = 7,
     .may_mxfp4 = true,
     .packed_experts = true,
     .tensors = gpt_oss_tensors},
    {.architecture = "Qwen3NextForCausalLM",
     .model_type = "qwen3_next",
     .rope_theta = 10000,
     .max_position = 32768,
     .rms_eps = 1e-6,
     .n_experts = 512,
     .n_chosen = 10,
     .moe_intermediate_size = 512,
     .norm_topk = true,
     .shared_intermediate_size = 512,
     .hybrid = true,
     .gdn_fused = true,
     .skipped = {"mtp."},
     .tensors = qwen3_next_tensors},
    {.architecture = "Qwen3_5MoeForConditionalGeneration",
     .model_type = "qwen3_5_moe",
     .rope_theta = 10000,
     .max_position = 32768,
     .rms_eps = 1e-6,
     .n_experts = 256,
     .n_chosen = 8,
     .moe_intermediate_size = 512,
     .norm_topk = true,
     .always_norm_topk = true,
     .packed_experts = true,
     .shared_intermediate_size = 512,
     .hybrid = true,
     .wrapped = true,
     .image_token = 248056,
     .skipped = {"mtp.", "visual."},
     .tensors = qwen3_5_moe_tensors},
    {.architecture = "Qwen3_5ForConditionalGeneration",
     .model_type = "qwen3_5",
     .rope_theta = 10000,
     .max_position = 32768,
     .rms_eps = 1e-6,
     .hybrid = true,
     .wrapped = true,
     .image_token = 248056,
     .skipped = {"mtp.", "visual."},
     .tensors = qwen3_5_tensors},
    {.architecture = "Qwen3_5ForCausalLM",
     .model_type = "qwen3_5_text",
     .rope_theta = 10000,
     .max_position = 32768,
     .rms_eps = 1e-6,
     .hybrid = true,
     .skipped = {"mtp.", "visual."},
     .tensors = qwen3_5_tensors},
    {.architecture = "Qwen3VLForConditionalGeneration",
     .model_type = "qwen3_vl",
     .rope_theta = 500000,
     .max_position = 128000,
     .rms_eps = 1e-6,
     .qk_norm = true,
     .wrapped = true,
     .image_token = 151655,
     .deepstack = true,
     .skipped = {"visual."},
     .tensors = target_tensors},
    {.architecture = "Qwen3VLMoeForConditionalGeneration",
     .model_type = "qwen3_vl_moe",
     .rope_theta = 500000,
     .max_position = 128000,
     .rms_eps = 1e-6,
     .qk_norm = true,
     .n_experts = 60,
     .n_chosen = 4,
     .moe_intermediate_size = 1408,
     .norm_topk = true,
     .always_norm_topk = true,
     .packed_experts = true,
     .transposed_experts = true,
     .wrapped = true,
     .image_token = 151655,
     .deepstack = true,
     .skipped = {"visual."},
     .tensors = qwen3_vl_moe_tensors},
    {.architecture = "DeepseekV3ForCausalLM",
     .model_type = "deepseek_v3",
     .rope_theta = 10000,
     .max_position = 4096,
     .rms_eps = 1e-6,
     .n_experts = 256,
     .n_chosen = 8,
     .moe_intermediate_size = 2048,
     .norm_topk = true,
     .latent = true,
     .tensors = deepseek_v3_tensors},
    {.architecture = "KimiK25ForConditionalGeneration",
     .model_type = "kimi_k25",
     .rope_theta = 10000,
     .max_position = 4096,
     .rms_eps = 1e-6,
     .n_experts = 256,
     .n_chosen = 8,
     .moe_intermediate_size = 2048,
     .norm_topk = true,
     .latent = true,
     .wrapped = true,
     .media_token = 163605,
     .skipped = {"vision_tower.", "mm_projector."},
     .tensors = deepseek_v3_tensors},
    {.architecture = "DFlashDraftModel",
     .rope_theta = 0, /* engines disagree on a default: required */
     .max_position = 32768,
     .rms_eps = 1e-6,
     .qk_norm = true,
     .tensors = draft_tensors},
#ifdef SV_TEST_ARCH_ROWS
    SV_TEST_ARCH_ROWS /* a test that includes this file adds a family */
#endif
};
enum { N_ROWS = sizeof table / sizeof table[0] };

const struct sv_arch_row *sv_arch_row(int32_t arch)
{
    SV_REQUIRE(arch >= 0 && arch < N_ROWS);
    return &table[arch];
}

int32_t sv_arch_index(const struct sv_arch_row *row)
{
    return (int32_t)(row - table);
}

const char *sv_arch_name(int32_t arch)
{
    return arch >= 0 && arch < N_ROWS ? table[arch].architecture : "unknown";
}

bool sv_arch_is_draft(int32_t arch)
{
    return !sv_arch_row(arch)->model_type;
}

const struct sv_arch_row *sv_arch_dflash(void)
{
    int32_t i = 0;
    while (!sv_arch_is_draft(i))
        i++;
    return &table[i];
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
    char known[512] = "";
    for (int32_t i = 0; i < N_ROWS; i++) {
        const struct sv_arch_row *r = &table[i];
        if (sv_arch_is_draft(i))
            continue;
        if (name ? !strcmp(name, r->architecture) : type && !strcmp(type, r->model_type))
            return r;
        const size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", r->architecture);
    }
    if (!name && !type)
        sv_fail(err, SV_EFORMAT, -1, "field 'architectures' is missing");
    else
        sv_fail(err, SV_EUNSUPPORTED, -1, "architecture '%.80s' is not supported (%s are)",
                name ? name : type, known);
    return NULL;
}
