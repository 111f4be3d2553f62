/*
 * config.h - checked configurations of models and drafts: config.json in the layouts of
 * transformers 4 and 5, or a GGUF file's metadata, and generation_config.json.
 *
 * Part of load.h, which other folders include. Must not: read a tensor.
 */
#ifndef SV_LOAD_CONFIG_H
#define SV_LOAD_CONFIG_H

#include "backend/ops.h"
#include "base/base.h"

/* Architectures are rows of a table (arch.c), known by their index. */
const char *sv_arch_name(int32_t arch); /* as in "architectures": "Qwen3ForCausalLM" */
bool sv_arch_is_draft(int32_t arch);

enum sv_rope_kind {
    SV_ROPE_DEFAULT,
    SV_ROPE_LINEAR,
    SV_ROPE_LLAMA3,
    SV_ROPE_YARN,
    SV_ROPE_FACTORS /* a divisor for each frequency (GGUF's form of llama3) */
};
#define SV_MAX_ROPE_FACTORS 128
struct sv_rope {
    enum sv_rope_kind kind;
    double theta;
    double factor;                            /* linear, llama3, yarn */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn; 32 and 1 when absent */
    double mscale, mscale_all_dim;            /* yarn; 0 when absent */
    double attention_factor; /* yarn; 0 = computed: 0.1 ln(factor) + 1, or the mscale quotient */
    int32_t original_max_position; /* llama3, yarn */
    /* yarn "truncate": false (gpt-oss): the ramp's ends are not rounded to integers */
    bool no_truncate;
    float factors[SV_MAX_ROPE_FACTORS];
    double partial; /* rotated share of a head; 0 = not stated */
};

#define SV_MAX_LAYERS 256
#define SV_MAX_STOP_IDS 16

enum sv_layer_kind { SV_LAYER_FULL, SV_LAYER_SLIDING, SV_LAYER_GDN, SV_LAYER_MLA };

#define SV_MAX_DEEP 8

/* A vision tower; depth 0: the configuration describes none. */
struct sv_vision_config {
    int32_t depth, hidden_size, intermediate_size, n_heads;
    int32_t patch, temporal;   /* pixels a side; frames of a patch, all the same */
    int32_t merge;             /* patches a side of a block, which becomes one row */
    int32_t n_positions, side; /* of the table of positions, side * side */
    int32_t n_deep,
        deep[SV_MAX_DEEP]; /* blocks whose rows are added after decoder layers 0, 1, .. */
    int32_t image_token;   /* -1: outside the vocabulary */
};
static inline int32_t sv_vision_patch_len(const struct sv_vision_config *v)
{
    return 3 * v->temporal * v->patch * v->patch;
}

/* Pure numbers: comparable, copyable, sendable to other ranks. Used for targets and drafts. */
struct sv_config {
    int32_t arch;               /* see sv_arch_name */
    enum sv_dtype stored_dtype; /* "torch_dtype"/"dtype", SV_BF16 when absent; informative */
    int32_t hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim;
    int32_t vocab_size, max_position;
    int32_t n_experts; /* of each layer in layer_moe; 0: none */
    int32_t n_chosen;  /* of them, by each row */
    int32_t moe_intermediate_size;
    bool norm_topk;                   /* a row's weights sum to 1 */
    int32_t shared_intermediate_size; /* of the shared expert; 0: none */
    float expert_limit;               /* "swiglu_limit", of the clamped activation; 0: plain silu */
    bool router_sigmoid;              /* scores are sigmoids, with a bias for selection only */
    int32_t n_group, topk_group;      /* groups of experts, selected first; 0: none */
    float routed_scale;               /* factor of the weights of chosen experts */
    int32_t rot_dim;                  /* of a head: its first numbers are rotated */
    int32_t mrope_section[3];         /* frequencies of each of three positions; 0: one */
    bool attn_gate;                   /* sigmoid gates on attention's output, from q_proj */
    int32_t gdn_k_heads, gdn_v_heads, gdn_k_dim, gdn_v_dim; /* of layers SV_LAYER_GDN; 0: none */
    bool gdn_fused;                                         /* input projections q|k|v|z and b|a */
    /* Latent attention, layers SV_LAYER_MLA; kv_lora_rank 0: none. head_dim is that of queries:
     * nope_dim, then rot_dim rotated numbers. */
    int32_t q_lora_rank; /* 0: queries come from one product */
    int32_t kv_lora_rank, nope_dim, v_dim;
    bool rope_interleaved; /* rotated pairs are neighbours */
    float latent_eps;      /* of the norms of both latents */
    bool kv_by_head;       /* K_UP and V_UP are stored per head, else together */
    int32_t n_mtp_layers;  /* after the last layer: not read */
    float rms_eps;
    bool tie_embeddings, attention_bias, mlp_bias, qk_norm;
    /* One tensor per projection, or for two; for directories an assumption until
     * sv_ckpt_check_target has checked the tensors. */
    bool packed_experts;
    bool transposed_experts; /* packed ones have inputs first */
    bool mxfp4_experts;      /* packed ones: stored in blocks and scales */
    float embed_scale;       /* 1 unless the architecture multiplies embeddings */
    struct sv_rope rope;
    uint8_t layer_kind[SV_MAX_LAYERS]; /* enum sv_layer_kind */
    bool layer_moe[SV_MAX_LAYERS];     /* the layer's ffn is a mixture of experts */
    int32_t sliding_window;            /* Hugging Face's W, counts the current token; 0 = none */
    int32_t bos_id;                    /* -1 = none */
    int32_t eos_ids[SV_MAX_STOP_IDS];  /* config.json, replaced by generation_config.json */
    int32_t n_eos;
    int32_t media_token; /* of unsupported images: refused in prompts; 0: none */
    struct sv_vision_config vision;
};

#define SV_MAX_TAPS 32
#define SV_MAX_BLOCK 64 /* widest verify width, anchor included */
struct sv_draft_config {
    struct sv_config base;
    int32_t block_size; /* verify width B, anchor included */
    int32_t mask_id;
    int32_t n_target_layers;   /* as stated by the draft; 0 = not stated */
    int32_t taps[SV_MAX_TAPS]; /* strictly ascending target layer ids */
    int32_t n_taps;
    uint8_t causal[SV_MAX_LAYERS]; /* per layer, the configuration resolved */
};

/* hub.c: the directory of a model's files: for models--ORG--NAME in the Hugging Face hub cache the
 * snapshot in refs/main, else the given one. */
int sv_model_dir(const char *given, char *dir, size_t size, struct sv_err *err);
/* A model's name: ORG/NAME in the hub cache, else the last part of the path. */
void sv_model_name(const char *dir, char *name, size_t size);

/* Read DIR/config.json (and generation_config.json for eos ids), or a GGUF file's metadata. Errors
 * name file and field. */
int sv_config_load(struct sv_config *cfg, const char *dir, struct sv_err *err);
/* Passes the object in DIR/generation_config.json, if there is one, to parse; errors name the file.
 */
typedef int sv_parse_fn(void *user, const json_t *root, struct sv_err *err);
int sv_gen_config_read(const char *dir, sv_parse_fn *parse, void *user, struct sv_err *err);
/* Same for a draft directory; n_target_layers is needed only when target_layer_ids is absent (it
 * then determines the layers), 0 = unknown. Refuses unsupported dialects by name. */
int sv_draft_config_load(struct sv_draft_config *cfg, const char *dir, int32_t n_target_layers,
                         struct sv_err *err);
/* The parsing halves, for fuzzing: text is the bytes of config.json. */
int sv_config_parse(struct sv_config *cfg, const char *text, size_t n, struct sv_err *err);
int sv_draft_config_parse(struct sv_draft_config *cfg, const char *text, size_t n,
                          int32_t n_target_layers, struct sv_err *err);
/* True when DIR/config.json describes a DFlash draft (any variant). */
bool sv_dir_is_draft(const char *dir);

/* Rotary table of a configuration: cos then sin, (n_pos, rot_dim/2) each, f32 computed in double.
 * out has room for 2 * n_pos * rot_dim/2 floats. */
void sv_rope_fill(const struct sv_rope *rope, int32_t rot_dim, int32_t n_pos, float *out);
/* Factor of latent attention's scores beside 1 / sqrt(head_dim): with yarn the square of
 * mscale_all_dim's factor, else 1. */
float sv_rope_score_factor(const struct sv_rope *rope);

#endif
