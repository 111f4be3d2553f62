/*
 * impl.h - shared by the files of src/load: the table of architectures, the expected tensors and
 * the parsing steps common to targets and drafts.
 *
 * Included by src/load/ *.c only. Must not: be included from outside; load.h is the front header.
 */
#ifndef SV_LOAD_IMPL_H
#define SV_LOAD_IMPL_H

#include "load/load.h"

#define SV_CONFIG_MAX_BYTES (8u << 20)

/* ---------------------------------------------------------------- expected tensors (tensors.c) */

/* A dimension of an expected tensor, in terms of the configuration. */
enum sv_dim {
    SV_DIM_NONE,         /* no second dimension */
    SV_DIM_HIDDEN,       /* hidden_size */
    SV_DIM_INTER,        /* intermediate_size */
    SV_DIM_VOCAB,        /* vocab_size */
    SV_DIM_Q,            /* n_heads * head_dim */
    SV_DIM_KV,           /* n_kv_heads * head_dim */
    SV_DIM_HEAD,         /* head_dim */
    SV_DIM_HEADS,        /* n_heads */
    SV_DIM_EXPERTS,      /* n_experts */
    SV_DIM_EXPERT_INTER, /* moe_intermediate_size */
    SV_DIM_GATE_UP,      /* 2 * moe_intermediate_size: gate and up, interleaved */
    SV_DIM_SHARED_INTER, /* shared_expert_intermediate_size */
    SV_DIM_Q_GATED,      /* 2 * n_heads * head_dim */
    SV_DIM_GDN_QKV,      /* rows before the convolution, see sv_gdn_channels */
    SV_DIM_GDN_QKVZ,     /* these and the gates of the output */
    SV_DIM_GDN_OUT,      /* gdn_v_heads * gdn_v_dim */
    SV_DIM_GDN_HEADS,    /* gdn_v_heads */
    SV_DIM_GDN_2_HEADS,  /* 2 * gdn_v_heads */
    SV_DIM_GDN_HEAD,     /* gdn_v_dim */
    SV_DIM_GDN_TAPS,     /* of the convolution */
    SV_DIM_Q_LORA,       /* q_lora_rank */
    SV_DIM_KV_LORA,      /* kv_lora_rank */
    SV_DIM_LATENT,       /* kv_lora_rank + rot_dim: latent attention's cache of a position */
    SV_DIM_KV_UP,        /* n_heads * (nope_dim + v_dim) */
    SV_DIM_NOPE,         /* nope_dim */
    SV_DIM_V_HEAD,       /* v_dim */
    SV_DIM_V_OUT,        /* n_heads * v_dim */
    SV_DIM_ONE,
    SV_DIM_TAPS,       /* n_taps * hidden_size */
    SV_DIM_PACK = 0x20 /* times an enum sv_pack, with cols: how the file stores the matrix */
};

enum sv_when {
    SV_ALWAYS,
    SV_IF_TIED,
    SV_IF_UNTIED,
    SV_IF_ATTN_BIAS,
    SV_IF_MLP_BIAS,
    SV_IF_QK_NORM,
    SV_IF_DENSE, /* the layer's ffn is dense */
    SV_IF_MOE,
    SV_IF_APART, /* a mixture of experts in separate tensors */
    SV_IF_PACKED,
    SV_IF_OUTPUTS_FIRST, /* of packed experts */
    SV_IF_INPUTS_FIRST,
    SV_IF_MXFP4, /* of packed experts */
    SV_UNLESS_MXFP4,
    SV_IF_SHARED, /* a mixture of experts with a shared one */
    SV_IF_ATTN,   /* the layer's mixer is attention */
    SV_IF_GDN,    /* the mixer is a gated delta rule */
    SV_IF_FUSED,  /* whose input projections are fused */
    SV_IF_SPLIT,
    SV_IF_Q_LORA, /* queries come from a latent */
    SV_IF_Q_LORA_BIAS,
    SV_UNLESS_Q_LORA,
    SV_IF_KV_B, /* one tensor for the keys and values of all heads */
    SV_IF_BY_HEAD
};

/* One expected tensor. {layer} and {expert} in the name stand for their numbers ({expert} also for
 * that of a head); consecutive rows with {layer} are visited layer by layer. An expert's role
 * without {expert} in the name: one tensor for all experts of a layer. Tables end with a NULL name.
 */
struct sv_tensor_row {
    const char *name;
    enum sv_role role;
    uint8_t rows, cols; /* enum sv_dim */
    uint8_t when;       /* enum sv_when */
    uint8_t shard;      /* enum sv_shard + SV_FORMS * enum sv_form */
};
enum { SV_FORMS = 16 };
void sv_tensor_name(char *out, size_t n, const char *pattern, int32_t layer, int32_t expert);

/* ---------------------------------------------------------------- architectures (arch.c) */

/* Differences between architectures before weights are read. A Llama-like family is one row. */
struct sv_arch_row {
    const char *architecture, *model_type; /* model_type NULL: a draft */
    /* Defaults of transformers' configuration class. */
    double rope_theta;
    const struct sv_rope *rope; /* its scaling; NULL: none */
    int32_t max_position, sliding_window, max_window_layers;
    double rms_eps;
    bool tie_embeddings, attention_bias;
    /* The model's tensors. */
    bool qk_norm, may_slide, may_mlp_bias, may_mxfp4;
    bool packed_experts; /* see struct sv_config */
    bool slides_in_turn; /* every second layer, from the first; the window always applies */
    bool all_slide; /* use_sliding_window applies to every layer; max_window_layers is ignored */
    /* The class's sizes of a mixture of experts; n_experts 0: none. */
    int32_t n_experts, n_chosen, moe_intermediate_size; /* the last 0: intermediate_size */
    float expert_limit;                                 /* as in sv_config */
    bool norm_topk, always_norm_topk;                   /* the class's; norm_topk_prob is ignored */
    int32_t shared_intermediate_size;                   /* the class's; 0: no shared expert */
    bool hybrid;                                        /* hybrid.c */
    bool latent;                                        /* latent.c */
    bool gdn_fused;                                     /* see struct sv_config */
    bool wrapped;                                       /* the configuration is in text_config */
    int32_t image_token;     /* the class's; 0: there is no vision tower */
    int32_t media_token;     /* the class's, of unsupported images; 0: none */
    bool deepstack;          /* whose deeper rows are read too */
    bool transposed_experts; /* packed ones have inputs first, as published */
    const char *skipped[2];  /* prefixes of unread tensors: other heads, images */
    const struct sv_tensor_row *tensors;
};
const struct sv_arch_row *sv_arch_row(int32_t arch);
int32_t sv_arch_index(const struct sv_arch_row *row);
const struct sv_arch_row *sv_arch_dflash(void);
/* By the first of "architectures", by "model_type" when that is absent. NULL and err when
 * unknown. */
const struct sv_arch_row *sv_arch_of_config(const json_t *root, struct sv_err *err);
/* architectures[0], or NULL when the list is absent; err is set when it is malformed. */
int sv_arch_string(const json_t *root, const char **out, struct sv_err *err);

/* ------------------------------------------------------------- parsing steps (config.c, rope.c) */

/* DIR/name parsed. *root is NULL without an error when it is optional and absent. The caller frees
 * both, always. */
int sv_dir_json(const char *dir, const char *name, bool needed, char **path, json_t **root,
                struct sv_err *err);
/* parse makes cfg of config.json, or of its equivalent from GGUF metadata. */
int sv_config_read(const char *dir, sv_parse_fn *parse, void *user, struct sv_config *cfg,
                   struct sv_err *err);
/* True when obj has the key with a value other than null. */
bool sv_json_has(const json_t *obj, const char *key);
int sv_json_i32_opt(const json_t *obj, const char *key, int64_t lo, int64_t hi, int32_t *out,
                    struct sv_err *err);
int sv_json_i32(const json_t *obj, const char *key, int64_t lo, int64_t hi, int32_t *out,
                struct sv_err *err);
/* Sizes, biases, norms, dtype, special ids: the common fields of targets and drafts. row gives the
 * defaults. RoPE and layer kinds are separate because they differ. */
int sv_config_common(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                     struct sv_err *err);
/* "layer_types" into layer_kind; *given: the list was there (else all full). */
int sv_config_layer_types(struct sv_config *c, const json_t *root, bool *given, struct sv_err *err);
/* Both layouts. row gives the defaults; its rope_theta 0 = the key is required. */
int sv_rope_parse(struct sv_rope *r, const json_t *root, const struct sv_arch_row *row,
                  int32_t max_position, struct sv_err *err);

/* GGUF's form of llama3: the divisors of head_dim / 2 frequencies. */
void sv_rope_factors(const struct sv_rope *r, int32_t head_dim, float *out);

/* convert.c: number i of a plain tensor of F32, F16 or BF16. */
float sv_tensor_number(const struct sv_host_tensor *t, int64_t i);

/* ---------------------------------------------------------------- hybrids (hybrid.c) */

/* text_config with the wrapper's fields for it, a new reference. */
int sv_hybrid_text(const json_t *root, json_t **text, struct sv_err *err);
/* Three-dimensional positions: the one of each frequency. */
int sv_config_sections(struct sv_config *c, const json_t *root, struct sv_err *err);
/* Sizes of recurrent layers; refuses what is not implemented. After sv_config_common. */
int sv_hybrid_parse(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                    struct sv_err *err);
/* Kinds of layers, where layer_types did not give them. */
int sv_hybrid_layers(struct sv_config *c, const json_t *root, bool given, struct sv_err *err);

/* ---------------------------------------------------------------- images (vision.c) */

/* vision_config, of the whole file; after the text model's. */
int sv_vision_parse(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                    struct sv_err *err);

/* ---------------------------------------------------------------- latent attention (latent.c) */

/* Sizes of heads, in place of head_dim and num_key_value_heads. */
int sv_latent_heads(struct sv_config *c, const json_t *root, struct sv_err *err);
/* Experts and their router. */
int sv_latent_moe(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                  struct sv_err *err);
/* Kinds of layers; refuses what is not implemented. After sv_config_common. */
int sv_latent_layers(struct sv_config *c, const json_t *root, struct sv_err *err);

#endif
