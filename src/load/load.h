/*
 * load.h - from files to named host tensors and checked configurations.
 *
 * Called by model (weights), engine (opening a pair), cli (info, check). Knows Hugging Face
 * directories: config.json (transformers 4 and 5 layouts), generation_config.json, safetensors
 * single or sharded. Must not: interpret a tensor's role (model does), run anything, or trust a
 * byte it has not checked.
 */
#ifndef SV_LOAD_H
#define SV_LOAD_H

#include "backend/backend.h"
#include "base/base.h"

/* ---------------------------------------------------------------- checkpoints */

#define SV_MAX_DIMS 8

/* One tensor of a checkpoint, in place in a mapped file. data is aligned to its element size
 * (copied when the file did not align it) and holds exactly prod(dim) elements. */
struct sv_host_tensor {
    const char *name;    /* owned by the checkpoint */
    enum sv_dtype dtype; /* SV_I32 too (tables, golden files); the checks refuse it for weights */
    int32_t n_dims;
    int64_t dim[SV_MAX_DIMS];
    int64_t n_elements;
    size_t n_bytes;
    const void *data;
    const char *file; /* file it lies in, for messages */
};

/* All tensors of a directory, sorted by name. Names are canonical: a leading "model." is taken off
 * and the aliases that drafts use (midlayer., encoder.fc, ...) are replaced. */
struct sv_ckpt {
    struct sv_host_tensor *tensors;
    int32_t n_tensors;
    int64_t n_params, n_bytes;
    struct sv_map *maps; /* one per shard */
    int32_t n_maps;
    struct sv_arena arena;
};
/* Opens DIR/model.safetensors, else DIR/model.safetensors.index.json and its shards, else the only
 * *.safetensors file there. Errors: missing file, truncated or overlapping data, bad header,
 * duplicate name, unsupported dtype, name in index but not in its shard or the other way round. */
int sv_ckpt_open(struct sv_ckpt *c, const char *dir, struct sv_err *err);
void sv_ckpt_close(struct sv_ckpt *c);
/* Bytes of the *.safetensors files there; 0 when it cannot be told. */
int64_t sv_ckpt_dir_bytes(const char *dir);
/* NULL when there is none. A leading "model." of the question is ignored as well. */
const struct sv_host_tensor *sv_ckpt_find(const struct sv_ckpt *c, const char *name);
/* Parses one safetensors image into arena-owned tensors; also the fuzz entry. Appends nothing on
 * error. */
int sv_safetensors_parse(const uint8_t *data, size_t n_bytes, const char *file,
                         struct sv_arena *arena, struct sv_host_tensor **tensors,
                         int32_t *n_tensors, struct sv_err *err);

/* model.safetensors.index.json: which shard holds which tensor. Everything lies in the arena. */
struct sv_ckpt_index {
    struct sv_index_entry {
        const char *name;
        int32_t shard; /* index into files */
    } * entries;       /* sorted by name */
    int32_t n_entries;
    const char **files; /* plain file names, sorted: never a path */
    int32_t n_files;
};
/* text is the bytes of the index; separate from opening for fuzzing. */
int sv_index_parse(struct sv_ckpt_index *index, const char *text, size_t n, struct sv_arena *arena,
                   struct sv_err *err);

/* ---------------------------------------------------------------- configurations */

enum sv_arch { SV_ARCH_QWEN3, SV_ARCH_LLAMA, SV_ARCH_DFLASH };
const char *sv_arch_name(enum sv_arch arch); /* as in "architectures": "Qwen3ForCausalLM" */

enum sv_rope_kind { SV_ROPE_DEFAULT, SV_ROPE_LINEAR, SV_ROPE_LLAMA3, SV_ROPE_YARN };
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
};

#define SV_MAX_LAYERS 256
#define SV_MAX_STOP_IDS 16

enum sv_layer_kind { SV_LAYER_FULL, SV_LAYER_SLIDING };

/* Pure numbers: comparable, copyable, sendable to other ranks. Used for targets and drafts. */
struct sv_config {
    enum sv_arch arch;
    enum sv_dtype stored_dtype; /* "torch_dtype"/"dtype", SV_BF16 when absent; informative */
    int32_t hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim;
    int32_t vocab_size, max_position;
    float rms_eps;
    bool tie_embeddings, attention_bias, mlp_bias, qk_norm;
    float embed_scale; /* 1 unless the architecture multiplies embeddings */
    struct sv_rope rope;
    uint8_t layer_kind[SV_MAX_LAYERS]; /* enum sv_layer_kind */
    int32_t sliding_window;            /* Hugging Face's W, counts the current token; 0 = none */
    int32_t bos_id;                    /* -1 = none */
    int32_t eos_ids[SV_MAX_STOP_IDS];  /* config.json, replaced by generation_config.json */
    int32_t n_eos;
};

#define SV_MAX_TAPS 32
struct sv_draft_config {
    struct sv_config base;
    int32_t block_size; /* verify width B, anchor included */
    int32_t mask_id;
    int32_t n_target_layers;   /* as stated by the draft; 0 = not stated */
    int32_t taps[SV_MAX_TAPS]; /* strictly ascending target layer ids */
    int32_t n_taps;
    uint8_t causal[SV_MAX_LAYERS]; /* per layer, the configuration resolved */
};

/* What a generation_config.json may hold for us; absent values are the "off" ones. */
struct sv_gen_config {
    float temperature, top_p, min_p; /* 1, 1, 0 */
    int32_t top_k;                   /* 0 = all */
    bool do_sample;
};

/* Read DIR/config.json (and generation_config.json for eos ids). Errors name file and field. */
int sv_config_load(struct sv_config *cfg, const char *dir, struct sv_err *err);
int sv_gen_config_load(struct sv_gen_config *g, const char *dir, struct sv_err *err);
/* Same for a draft directory; n_target_layers is needed only when target_layer_ids is absent
 * (it then says which layers are meant), 0 = unknown. Refuses dialects that are not implemented, by
 * name. */
int sv_draft_config_load(struct sv_draft_config *cfg, const char *dir, int32_t n_target_layers,
                         struct sv_err *err);
/* The parsing halves, for fuzzing: text is the bytes of config.json. */
int sv_config_parse(struct sv_config *cfg, const char *text, size_t n, struct sv_err *err);
int sv_draft_config_parse(struct sv_draft_config *cfg, const char *text, size_t n,
                          int32_t n_target_layers, struct sv_err *err);
/* True when DIR/config.json describes a DFlash draft (any variant). */
bool sv_dir_is_draft(const char *dir);

/* Number of parameters the configuration implies (docs/checkpoints.md); heads and ties
 * considered. */
int64_t sv_config_n_params(const struct sv_config *cfg);
int64_t sv_draft_config_n_params(const struct sv_draft_config *cfg);
/* Tells every tensor that a target's configuration implies; cols 0: a vector. Names as sv_ckpt_find
 * takes them. */
void sv_config_each_tensor(const struct sv_config *cfg,
                           void (*take)(void *user, const char *name, int64_t rows, int64_t cols),
                           void *user);
/* Every expected tensor is there with its shape, no other tensor is, and the parameter count
 * agrees. Allowed extras: rotary_emb.inv_freq anywhere; for tied targets lm_head.weight of the
 * right shape. A draft with its own embedding and head is told apart from one with unknown tensors,
 * and refused too. */
int sv_ckpt_check_target(const struct sv_ckpt *c, const struct sv_config *cfg, struct sv_err *err);
int sv_ckpt_check_draft(const struct sv_ckpt *c, const struct sv_draft_config *cfg,
                        struct sv_err *err);
/* Does this draft fit this target (docs/checkpoints.md)? The reason for a refusal is in err. */
int sv_pair_check(const struct sv_config *target, const struct sv_draft_config *draft,
                  struct sv_err *err);

/* Rotary table of a configuration: cos then sin, (n_pos, head_dim/2) each, f32 computed in double.
 * out has room for 2 * n_pos * head_dim/2 floats. */
void sv_rope_fill(const struct sv_rope *rope, int32_t head_dim, int32_t n_pos, float *out);

#endif
