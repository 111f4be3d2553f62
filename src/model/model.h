/*
 * model.h - transformer forward passes over a device: one stack of layers that targets and drafts
 * share, and the target model around it (embedding, head, table of architectures).
 *
 * Called by spec (a draft is a stack too) and engine. A forward pass is a straight list of op calls
 * that only enqueue. Must not: synchronise, allocate after open, or know about sequences, pages or
 * speculation beyond the row and segment arrays it gets.
 */
#ifndef SV_MODEL_H
#define SV_MODEL_H

#include "backend/ops_gdn.h"
#include "backend/ops_mla.h"
#include "backend/ops_moe.h"
#include "base/base.h"
#include "cache/cache.h"
#include "dist/dist.h"
#include "load/load.h"

/* ---------------------------------------------------------------- the shared stack */

/* Attention over a paged K/V cache, with grouped queries. */
struct sv_attn {
    int32_t n_heads, n_kv_heads, head_dim;
    struct sv_rope_table rope; /* device; layers with the same rotation share it */
    enum sv_mask mask;
    int32_t window;                  /* 0 = none */
    float scale, softcap;            /* softcap 0 = off */
    bool gated;                      /* q_proj gives (query, gate) of each head */
    struct sv_gemm_part qkv[3];      /* q, k, v */
    struct sv_gemm_part o;           /* (hidden, n_heads * head_dim) */
    struct sv_weight q_norm, k_norm; /* (1, head_dim) or data NULL */
    struct sv_weight sinks;          /* (1, n_heads) or data NULL */
    int32_t cache_group, cache_layer;
    float k_scale, v_scale; /* as in struct sv_kv */
};

/* Latent attention: one vector per position, `latent` normalised numbers and a rotated key. */
struct sv_mla {
    int32_t n_heads, head_dim, latent, v_dim; /* head_dim: of queries, rotated at the end */
    int32_t q_lora;                           /* of the queries' latent; 0: none */
    struct sv_rope_table rope;
    bool interleaved; /* as in struct sv_p_mla_write */
    float scale, eps; /* eps: of the latents' norms */
    struct sv_gemm_part q_a, q, kv_a, o;
    struct sv_weight q_a_norm, kv_a_norm; /* (1, q_lora), (1, latent) */
    struct sv_experts k_up, v_up; /* of heads: (latent, head_dim - rot_dim), (v_dim, latent) */
    int32_t cache_group, cache_layer;
};

/* A gated delta rule over a state of fixed size. */
struct sv_gdn {
    struct sv_gdn_shape shape;
    struct sv_gemm_part in[4]; /* q|k|v, z, b, a; or q|k|v|z, b|a */
    int32_t n_in;
    struct sv_gemm_part o;                 /* (hidden, n_v_heads * v_dim) */
    struct sv_weight conv, decay, dt_bias; /* as in struct sv_p_gdn_conv */
    struct sv_weight norm;                 /* (1, v_dim) */
    int32_t cache_group, cache_layer;
};

/* down(silu(gate(x)) * up(x)) */
struct sv_mlp {
    int32_t intermediate;
    struct sv_gemm_part gate_up[2];
    struct sv_gemm_part down;
};

/* Each row passes k of many small MLPs, chosen by a router. */
struct sv_moe {
    int32_t n_experts, k;
    struct sv_slice own; /* of this device's experts; n 0: all */
    enum sv_router_norm norm;
    enum sv_expert_act act;
    float limit, alpha;                   /* of SV_EXPERT_CLAMPED */
    struct sv_router_sigmoid sigmoid;     /* of SV_ROUTER_SIGMOID */
    struct sv_weight router, router_bias; /* (n_experts, hidden), (1, n_experts) or data NULL */
    struct sv_experts gate, up, down;     /* (intermediate, hidden) twice, (hidden, intermediate) */
    struct sv_mlp shared;                 /* the shared expert; intermediate 0: none */
    struct sv_gemm_part shared_router;    /* (1, hidden): sigmoid gives its weight; data NULL: 1 */
};

enum sv_mixer { SV_MIXER_ATTN, SV_MIXER_GDN, SV_MIXER_MLA };
enum sv_ffn { SV_FFN_DENSE, SV_FFN_MOE };

/* A mixer moves information between rows, an ffn works on each row alone. Both read the normalised
 * stream and add to it. Each has its own geometry; only the width of the stream is the stack's. */
struct sv_layer {
    struct sv_weight in_norm, post_norm; /* (1, hidden) */
    enum sv_mixer mixer;
    union {
        struct sv_attn attn;
        struct sv_gdn gdn;
        struct sv_mla mla;
    };
    enum sv_ffn ffn;
    union {
        struct sv_mlp mlp;
        struct sv_moe moe;
    };
};

struct sv_stack {
    int32_t n_layers, hidden;
    float eps;
    struct sv_layer *layers;
    struct sv_weight final_norm; /* (1, hidden) */
    bool joins; /* ranks share the layers: each has its heads and its part of every ffn */
};

/* Device needs of passes of at most lim.max_rows rows, the maximum over the stacks added. Set
 * first: lim.max_rows and elem_bytes. */
struct sv_needs {
    struct sv_dev_limits lim;
    size_t elem_bytes;    /* of an act value */
    int32_t hidden;       /* the widest stream */
    size_t scratch_bytes; /* largest need of a mixer or dense ffn */
    size_t moe_bytes;     /* largest need of a mixture of experts */
};
void sv_needs_init(struct sv_needs *n, const struct sv_dev *dev, int32_t max_rows);
/* A product of k inputs and n_out outputs. */
void sv_needs_gemm(struct sv_needs *n, int32_t k, int32_t n_out);
void sv_stack_needs(const struct sv_stack *st, struct sv_needs *n);

/* Memory that is allocated from the front. */
struct sv_scratch {
    char *base; /* NULL: measuring only */
    size_t elem_bytes, n_bytes;
};

/* Activations of a pass, device memory. Passes never overlap: one set serves all stacks. Within a
 * pass the mixers and dense ffns use scratch one after the other. */
struct sv_acts {
    void *x;     /* (rows, hidden) act: residual stream */
    void *h;     /* (rows, hidden) normalised */
    void *delta; /* (rows, hidden) output of a mixer or ffn */
    struct sv_scratch scratch;
    /* Experts have separate memory: it holds other types, and mixers read rows of padding that are
     * never written. */
    struct sv_scratch moe;
};
int sv_acts_open(struct sv_acts *a, struct sv_dev *dev, const struct sv_needs *n,
                 struct sv_err *err);
void sv_acts_close(struct sv_acts *a, struct sv_dev *dev);

/* Residual streams to copy out: tap k is the stream after layer id[k], written to
 * out + row * n * hidden + k * hidden. Ids ascend. */
struct sv_taps {
    int32_t n;
    const int32_t *id;
    void *out;          /* (rows, n * hidden) act, NULL when n is 0 */
    const int32_t *row; /* (rows) where each row's go, < 0: nowhere; NULL. See sv_p_add_rms_norm */
};

/* This rank's rows of a pass, and the same as a separate batch, with padding. */
struct sv_own_rows {
    const struct sv_slice *at; /* device memory */
    struct sv_rows rows;
};

struct sv_pass {
    struct sv_rows rows;
    int32_t most; /* rows of a segment, at most: launches are chosen by it. 0: not known */
    const struct sv_own_rows *own; /* with whole mixers (DP attention), else NULL */
    int32_t n_images;
    const struct sv_image_rows *images; /* (n_images) host, vision.h */
    const struct sv_cache *cache;
    struct sv_taps taps;
    int32_t n_out;          /* rows wanted at the end */
    const int32_t *out_row; /* (n_out) device row numbers, or NULL: all rows */
    void *out;              /* (n_out, hidden) act: final-norm output of those rows */
    uint32_t *n_chosen;     /* (1) device: counts chosen experts, see sv_p_router_topk; NULL */
};
/* A layer's cache of keys and values. */
struct sv_kv sv_attn_kv(const struct sv_attn *a, const struct sv_cache *cache);
/* Runs all layers on a->x (filled by the caller: embeddings); a->x is overwritten. */
void sv_stack_forward(const struct sv_stack *st, struct sv_dev *dev, const struct sv_acts *a,
                      const struct sv_pass *p);

/* ---------------------------------------------------------------- weights by name */

/* Weight bytes that a pass reads: by number of rows, [0]: with more; and as published. Experts are
 * separate: which of them a pass reads is known afterwards. */
struct sv_reads {
    int64_t bytes[SV_READ_ROWS + 1], published;
    struct {
        int64_t bytes, published; /* of an average expert, summed over layers */
        int32_t n_layers;         /* that have experts */
        int32_t n_chosen;         /* by one row, in all layers */
    } experts;
};
static inline int64_t sv_reads_of(const struct sv_reads *r, int32_t n_rows)
{
    return r->bytes[n_rows <= SV_READ_ROWS ? n_rows : 0];
}
/* Bytes of n experts of any layers, to add to `bytes` or `published`. */
static inline int64_t sv_reads_experts(const struct sv_reads *r, int64_t bytes, int64_t n)
{
    return r->experts.n_layers ? n * bytes / r->experts.n_layers : 0;
}

/* The place of a weight: one of both, the other is NULL. */
struct sv_place {
    struct sv_weight *w;
    struct sv_experts *experts; /* one by spec->expert; or the heads' matrices */
};

/* A weight, or a layer's experts or heads, and the size in the checkpoint, or expanded. */
struct sv_taken {
    struct sv_weight w; /* of experts: the role alone */
    int64_t n_bytes;
    struct sv_experts *experts;
    int32_t n_chosen; /* chosen per row; 0: heads, all read */
    void *host;       /* memory that a device uses in place; freed with w */
};

/* Owns a checkpoint's weights on a device. On the CPU the mapped file itself is used. */
struct sv_weights {
    struct sv_dev *dev;
    const struct sv_ckpt *ckpt;  /* NULL: random weights of any shape */
    const struct sv_config *cfg; /* set by sv_weights_load */
    bool whole_mixers;           /* DP attention: set before sv_weights_divide */
    struct sv_shard_shape shape; /* for this rank's part; zeros: all */
    struct sv_taken *taken;      /* in the order of taking */
    int32_t n_taken, cap;
    struct sv_weight rope; /* the rotary table, uploaded as a vector */
    struct sv_arena arena;
    int64_t n_bytes; /* of all weights, once each, as published */
};
int sv_weights_open(struct sv_weights *w, struct sv_dev *dev, const struct sv_ckpt *ckpt,
                    struct sv_err *err);
void sv_weights_close(struct sv_weights *w);
/* From now on only this rank's part is loaded. Refuses what cannot be divided. */
int sv_weights_divide(struct sv_weights *w, const struct sv_config *cfg, int32_t n_taps,
                      const char *what, struct sv_err *err);
/* Adds the bytes that a pass reads of one role, or of all but the embedding, of which it reads a
 * few rows at most. After reserve, which makes copies. */
void sv_weights_add_reads(const struct sv_weights *w, enum sv_role only, struct sv_reads *sum);
/* Bytes of all weights on the device, without its copies. */
int64_t sv_weights_kept_bytes(const struct sv_weights *w);
int sv_weights_take(struct sv_weights *w, const struct sv_tensor_spec *spec, struct sv_weight *out,
                    struct sv_err *err);
/* Loads every tensor of a configuration to its place. */
int sv_weights_load(struct sv_weights *w, const struct sv_config *cfg, int32_t n_taps,
                    struct sv_place (*place)(void *user, const struct sv_tensor_spec *spec),
                    void *user, struct sv_err *err);
/* The geometry of a stack's layers, with their rotary table; for weights: sv_weights_load. */
int sv_stack_open(struct sv_stack *st, struct sv_weights *w, const struct sv_config *cfg,
                  int32_t n_positions, struct sv_err *err);
/* A weight's place in a stack; empty: no weight of this role. */
struct sv_place sv_stack_place(struct sv_stack *st, const struct sv_tensor_spec *spec);

/* ---------------------------------------------------------------- the target */

struct sv_model {
    struct sv_config cfg;
    struct sv_dev *dev;
    struct sv_ckpt ckpt;
    struct sv_weights weights;
    struct sv_stack stack;
    struct sv_weight embed; /* (vocab, hidden) */
    /* (vocab, hidden), the same as embed when tied; among ranks rows [vocab0[rank], vocab0[rank +
     * 1]) */
    struct sv_weight head;
    int32_t vocab0[SV_MAX_RANKS + 1];
    struct sv_tower *tower; /* vision.h */
    const char *no_tower;   /* why there is none */
};
/* Loads DIR onto dev, with rotary tables for n_positions (0 = all of max_position). */
int sv_model_open(struct sv_model *m, struct sv_dev *dev, const char *dir, int32_t n_positions,
                  struct sv_err *err);
/* DIR/config.json alone: random weights of its shapes (benchmarks). */
int sv_model_open_random(struct sv_model *m, struct sv_dev *dev, const char *dir,
                         int32_t n_positions, struct sv_err *err);
void sv_model_close(struct sv_model *m);
/* Needs, and weight bytes of a pass, of stack and head. */
void sv_model_needs(const struct sv_model *m, struct sv_needs *n);
void sv_model_reads(const struct sv_model *m, struct sv_reads *sum);
/* Cache groups the model's layers need, and how many: fills desc (geometry only) and sets
 * cache_group/cache_layer of the layers, numbering groups from first_group. Layers of one geometry
 * share a group. max_block: rows of the widest verify block, for recurrent layers. */
int32_t sv_stack_cache_groups(struct sv_stack *st, enum sv_cache_owner owner, int32_t max_block,
                              int32_t first_group, struct sv_cache_group_desc *desc);

/* embed, or images, + stack: ids (n_rows) device -> p->out. */
void sv_model_forward(const struct sv_model *m, const struct sv_acts *a, const int32_t *row_ids,
                      const struct sv_pass *p);
/* The most probable token of n rows of final-norm output x (n, hidden) act, without logits: out[i],
 * or out[out_index[i]] when out_index (n) is given (< 0: nowhere). */
void sv_model_argmax(const struct sv_model *m, int32_t n, const void *x, const int32_t *out_index,
                     int32_t *out);
/* logits (n, vocab) of rows of final-norm output x (n, hidden) act; of a rank, of dealt rows. */
void sv_model_logits(const struct sv_model *m, int32_t n, const void *x, float *logits);
/* The same by a copy of the head, with confidence or NULL (sv_p_head_argmax), all rows whole. */
void sv_model_argmax_by(const struct sv_model *m, const struct sv_weight *head, int32_t n,
                        const void *x, const int32_t *out_index, int32_t *out, float *confidence);
void sv_model_logits_by(const struct sv_model *m, const struct sv_weight *head, int32_t n,
                        const void *x, float *logits);

#endif
