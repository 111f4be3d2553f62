/*
 * load.h - from files to named host tensors and checked configurations.
 *
 * Called by model (weights), engine (opening a pair), cli (info, check). Knows Hugging Face
 * directories: config.json (transformers 4 and 5 layouts), generation_config.json, safetensors
 * single or sharded, and states once which tensors a model is made of. Must not: run anything, or
 * trust a byte it has not checked.
 */
#ifndef SV_LOAD_H
#define SV_LOAD_H

#include "backend/ops.h"
#include "backend/quant.h"
#include "base/base.h"

/* ---------------------------------------------------------------- checkpoints */

#define SV_MAX_DIMS 8

/* One tensor of a checkpoint, in place in a mapped file. data is aligned to its element size
 * (copied when the file did not align it) and holds exactly prod(dim) elements. */
struct sv_host_tensor {
    const char *name;    /* owned by the checkpoint */
    enum sv_dtype dtype; /* integers and codes too: the checks refuse them for plain weights */
    int32_t n_dims;
    int64_t dim[SV_MAX_DIMS];
    int64_t n_elements;
    size_t n_bytes;
    const void *data;
    const char *file; /* file it lies in, for messages */
    bool as_read;     /* f32 numbers as a model reads them, whatever its row's form is */
    /* Of a matrix in fewer bits, code NONE: elements of dtype. dim and n_elements are those of the
     * matrix, n_bytes counts codes and scales. */
    struct sv_quant quant;
};

/* All tensors of a directory, sorted by name. Names are canonical: a leading "model.",
 * "model.language_model." or "language_model.model." is taken off and the aliases that drafts use
 * (midlayer., encoder.fc, ...) are replaced. */
struct sv_ckpt {
    struct sv_host_tensor *tensors;
    int32_t n_tensors;
    int64_t n_params, n_bytes;
    struct sv_map *maps; /* one per shard */
    int32_t n_maps;
    struct sv_arena arena;
};
/* dir: a directory, or a GGUF file (of shards the first), here and below where a model is opened.
 * Opens DIR/model.safetensors, else DIR/model.safetensors.index.json and its shards, else the only
 * *.safetensors file there. Errors: missing file, truncated or overlapping data, bad header,
 * duplicate name, unsupported dtype, name in index but not in its shard or the other way round. */
int sv_ckpt_open(struct sv_ckpt *c, const char *dir, struct sv_err *err);
void sv_ckpt_close(struct sv_ckpt *c);
/* The files may change from now on: copied to memory at the same addresses, or not read any more
 * (sv_map_detach). */
int sv_ckpt_detach(struct sv_ckpt *c, bool copy, struct sv_err *err);
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
    double partial; /* share of a head that is rotated; 0 = not stated */
};

#define SV_MAX_LAYERS 256
#define SV_MAX_STOP_IDS 16

enum sv_layer_kind { SV_LAYER_FULL, SV_LAYER_SLIDING, SV_LAYER_GDN, SV_LAYER_MLA };

/* Pure numbers: comparable, copyable, sendable to other ranks. Used for targets and drafts. */
struct sv_config {
    int32_t arch;               /* see sv_arch_name */
    enum sv_dtype stored_dtype; /* "torch_dtype"/"dtype", SV_BF16 when absent; informative */
    int32_t hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim;
    int32_t vocab_size, max_position;
    int32_t n_experts; /* of each layer in layer_moe; 0: none */
    int32_t n_chosen;  /* of them, by each row */
    int32_t moe_intermediate_size;
    bool norm_topk;                   /* a row's weights add up to 1 */
    int32_t shared_intermediate_size; /* of the expert that all rows go through; 0: none */
    float expert_limit;               /* "swiglu_limit", of the clamped activation; 0: plain silu */
    bool router_sigmoid;              /* scores are sigmoids, with a bias for the choice alone */
    int32_t n_group, topk_group;      /* of experts, of which some are chosen first; 0: none */
    float routed_scale;               /* times the weights of chosen experts */
    int32_t rot_dim;                  /* of a head: its first numbers are rotated */
    bool attn_gate;                   /* sigmoid gates on attention's output, from q_proj */
    int32_t gdn_k_heads, gdn_v_heads, gdn_k_dim, gdn_v_dim; /* of layers SV_LAYER_GDN; 0: none */
    bool gdn_fused;                                         /* input projections q|k|v|z and b|a */
    /* Latent attention, layers SV_LAYER_MLA; kv_lora_rank 0: none. head_dim is that of queries:
     * nope_dim, then rot_dim numbers that are rotated. */
    int32_t q_lora_rank; /* 0: queries come of one product */
    int32_t kv_lora_rank, nope_dim, v_dim;
    bool rope_interleaved; /* pairs that are rotated are neighbours */
    float latent_eps;      /* of the norms of both latents */
    int32_t n_mtp_layers;  /* behind the last layer: not read */
    float rms_eps;
    bool tie_embeddings, attention_bias, mlp_bias, qk_norm;
    bool packed_experts; /* stored in one tensor for each projection, or for two */
    bool mxfp4_experts;  /* of these: stored in blocks and scales */
    float embed_scale;   /* 1 unless the architecture multiplies embeddings */
    struct sv_rope rope;
    uint8_t layer_kind[SV_MAX_LAYERS]; /* enum sv_layer_kind */
    bool layer_moe[SV_MAX_LAYERS];     /* the layer's ffn is a mixture of experts */
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

/* hub.c: the directory that has a model's files. Of models--ORG--NAME in the Hugging Face hub cache
 * that is the snapshot which refs/main names, of all others the given one. */
int sv_model_dir(const char *given, char *dir, size_t size, struct sv_err *err);
/* What a model is called: ORG/NAME in the hub cache, else the last part of the path. */
void sv_model_name(const char *dir, char *name, size_t size);

/* Read DIR/config.json (and generation_config.json for eos ids), or a GGUF file's metadata. Errors
 * name file and field. */
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

/* gguf_text.c: tokenizer and chat template of a directory or a GGUF file. text: a template to use
 * instead of the model's own, or NULL. */
struct sv_tokenizer;
struct sv_chat_template;
bool sv_model_has_tokenizer(const char *dir); /* else it runs on token ids alone */
/* tokenizer_config.json; an empty object without the file. The caller frees it. */
int sv_model_tokenizer_config(json_t **config, const char *dir, struct sv_err *err);
int sv_model_tokenizer(struct sv_tokenizer **tok, const char *dir, struct sv_err *err);
int sv_model_chat_template(struct sv_chat_template **t, const char *dir, const char *text, size_t n,
                           struct sv_err *err);

/* How a tensor is divided among ranks. */
enum sv_shard {
    SV_SHARD_NONE, /* every rank has all of it */
    SV_SHARD_ROWS, /* by outputs; of a vector, its elements */
    SV_SHARD_COLS  /* by inputs: the ranks' products are added up */
};

/* How a file stores a matrix. */
enum sv_pack {
    SV_PACK_NONE,         /* (rows, cols) */
    SV_PACK_INPUTS_FIRST, /* (cols, rows): transposed */
    SV_PACK_MXFP4,        /* u8 (rows, cols / 32, 16): two E2M1 codes a byte, low nibble first */
    SV_PACK_MXFP4_SCALES  /* u8 (rows, cols / 32): E8M0 scales of such a matrix */
};

/* In which form a file has a tensor. */
enum sv_form {
    SV_FORM_PLAIN,
    SV_FORM_ONE_PLUS, /* w, for 1 + w */
    SV_FORM_F32,      /* any type, read as f32 */
    SV_FORM_DECAY,    /* A_log, for -exp(A_log) */
    SV_FORM_CONV,     /* (channels, 1, taps), read as (taps, channels) f32 */
    SV_FORM_QKVZ,   /* for each key head its rows of q, k, v, z; read as q, k, v, z of all heads */
    SV_FORM_BA,     /* likewise of b, a */
    SV_FORM_EXPERT, /* all experts in one tensor: (experts, rows, cols) */
    SV_FORM_GATE,   /* (experts, 2 rows, cols): an expert's first half */
    SV_FORM_UP      /* the second */
};

/* A tensor that a configuration implies. */
struct sv_tensor_spec {
    const char *name; /* as sv_ckpt_find takes it; valid during the call */
    enum sv_role role;
    int32_t layer, expert; /* -1: none */
    int32_t n_experts;     /* so many matrices, or vectors, in one tensor; 0: one. With an expert,
                            * that is the one that is meant */
    enum sv_pack pack;
    int64_t rows, cols; /* cols 0: a vector of rows elements */
    enum sv_shard shard;
    enum sv_form form; /* rows, cols: as it is read, of SV_FORM_CONV as the file has them */
};
/* Its shape in the file; returns the number of dimensions. */
int32_t sv_tensor_shape(const struct sv_tensor_spec *s, int64_t dim[4]);
/* convert.c: rows, cols, type and data of w as a model reads the tensor, in memory of the arena
 * where that is not what the file has. */
int sv_tensor_convert(const struct sv_tensor_spec *spec, const struct sv_config *cfg,
                      const struct sv_host_tensor *t, struct sv_arena *arena, struct sv_weight *w,
                      struct sv_err *err);
typedef int sv_tensor_fn(void *user, const struct sv_tensor_spec *spec);
/* Calls take for every tensor in the order of loading, which goes through the layers one by one.
 * Stops at the first result other than 0 and returns it. n_taps: a draft's, else 0. */
int sv_config_each_tensor(const struct sv_config *cfg, int32_t n_taps, sv_tensor_fn *take,
                          void *user);
/* Number of parameters of these tensors. */
int64_t sv_config_n_params(const struct sv_config *cfg);
int64_t sv_draft_config_n_params(const struct sv_draft_config *cfg);
/* Every expected tensor is there with its shape, and no other tensor is. Allowed extras: what the
 * architecture skips by name (mtp., visual.); rotary_emb.inv_freq anywhere; for tied targets
 * lm_head.weight of the right shape. A draft with its own embedding and head is told apart from one
 * with unknown tensors, and refused too. */
int sv_ckpt_check_target(const struct sv_ckpt *c, const struct sv_config *cfg, struct sv_err *err);
int sv_ckpt_check_draft(const struct sv_ckpt *c, const struct sv_draft_config *cfg,
                        struct sv_err *err);
/* Does this draft fit this target (docs/checkpoints.md)? The reason for a refusal is in err. */
int sv_pair_check(const struct sv_config *target, const struct sv_draft_config *draft,
                  struct sv_err *err);

/* One projection of all experts of a layer in one tensor. */
struct sv_packed {
    const struct sv_host_tensor *t, *scales; /* scales: of SV_PACK_MXFP4 */
    enum sv_pack pack;
    int32_t n, rows, cols; /* of an expert's matrix, outputs first */
};
/* Finds tensor and scales of a checkpoint that was checked. Errors: a scale that is no number, or
 * whose products bf16 cannot hold. */
int sv_packed_find(struct sv_packed *p, const struct sv_ckpt *c, const struct sv_tensor_spec *s,
                   struct sv_err *err);
/* What it expands to: MXFP4 to bf16, which holds every value exactly. */
enum sv_dtype sv_packed_dtype(const struct sv_packed *p);
/* Rows first, first + step, ... of an expert's matrix, (rows / step, cols): MXFP4 as it is, */
struct sv_quant sv_packed_codes(const struct sv_packed *p, int32_t expert, int32_t first,
                                int32_t step);
/* or their elements. */
void sv_packed_expand(const struct sv_packed *p, int32_t expert, int32_t first, int32_t step,
                      void *out);

/* quantize.c: what became of one tensor. */
struct sv_quantized {
    const char *name;
    int64_t rows, cols, n_bytes, n_bytes_before;
    double relative, largest; /* error: RMS over RMS of the numbers, largest difference */
};
/* Told of each tensor in fewer bits; another result than 0 ends the whole with it. */
typedef int sv_quantized_fn(void *user, const struct sv_quantized *t);
/* Writes dir's model once more as directory out, which must not exist: projections rounded to code
 * (F8, MXFP4, INT8, INT4), all else as it is. On error nothing is left. */
int sv_quantize_dir(const char *dir, enum sv_quant_code code, const char *out,
                    sv_quantized_fn *told, void *user, struct sv_err *err);

/* Rotary table of a configuration: cos then sin, (n_pos, rot_dim/2) each, f32 computed in double.
 * out has room for 2 * n_pos * rot_dim/2 floats. */
void sv_rope_fill(const struct sv_rope *rope, int32_t rot_dim, int32_t n_pos, float *out);
/* What latent attention multiplies its scores by, beside 1 / sqrt(head_dim): of yarn the square of
 * the factor that mscale_all_dim makes, else 1. */
float sv_rope_score_factor(const struct sv_rope *rope);

#endif
