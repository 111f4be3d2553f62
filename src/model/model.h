/*
 * model.h - transformer forward passes over a device: one stack of blocks that targets and drafts
 * share, and the target model around it (embedding, head, table of architectures).
 *
 * Called by spec (a draft is a stack too) and engine. A forward pass is a straight list of op calls
 * that only enqueue. Must not: synchronise, allocate after open, or know about sequences, pages or
 * speculation beyond the row and segment arrays it is handed.
 */
#ifndef SV_MODEL_H
#define SV_MODEL_H

#include "backend/backend.h"
#include "base/base.h"
#include "cache/cache.h"
#include "load/load.h"

/* ---------------------------------------------------------------- the shared stack */

struct sv_layer {
    struct sv_weight in_norm, post_norm; /* (1, hidden) */
    struct sv_gemm_part qkv[3];          /* q, k, v */
    struct sv_gemm_part o;
    struct sv_weight q_norm, k_norm; /* (1, head_dim) or data NULL */
    struct sv_gemm_part gate_up[2];
    struct sv_gemm_part down;
    enum sv_mask mask;
    int32_t window;                   /* 0 = none */
    int32_t cache_group, cache_layer; /* where its K/V live */
};

struct sv_stack {
    int32_t n_layers, hidden, intermediate, n_heads, n_kv_heads, head_dim;
    float eps;
    struct sv_layer *layers;
    struct sv_weight final_norm; /* (1, hidden) */
    struct sv_rope_table rope;   /* device */
};

/* Activation buffers of a stack, all (max_rows, ...) act. Target and draft passes never overlap, so
 * they may share one set sized for the larger. */
struct sv_acts {
    void *x;       /* (rows, hidden) residual stream */
    void *h;       /* (rows, hidden) normalised */
    void *qkv;     /* (rows, (n_heads + 2 n_kv) head_dim) */
    void *attn;    /* (rows, n_heads head_dim) */
    void *delta;   /* (rows, hidden) what a block adds */
    void *gate_up; /* (rows, 2 intermediate) */
    void *act;     /* (rows, intermediate) */
};
struct sv_act_sizes {
    int32_t max_rows, hidden, qkv, attn, intermediate;
};
void sv_act_sizes_add(struct sv_act_sizes *s, const struct sv_stack *st); /* widens s to fit st */
int sv_acts_open(struct sv_acts *a, struct sv_dev *dev, const struct sv_act_sizes *s,
                 struct sv_err *err);
void sv_acts_close(struct sv_acts *a, struct sv_dev *dev);

/* Residual streams to copy out: tap k is the stream after layer id[k], written to
 * out + row * n * hidden + k * hidden. Ids ascend. */
struct sv_taps {
    int32_t n;
    const int32_t *id;
    void *out; /* (rows, n * hidden) act, NULL when n is 0 */
    /* (rows) where each row's go instead, < 0: nowhere; NULL. See sv_p_add_rms_norm */
    const int32_t *row;
};

struct sv_pass {
    struct sv_rows rows;
    const struct sv_cache *cache;
    struct sv_taps taps;
    int32_t n_out;          /* rows wanted at the end */
    const int32_t *out_row; /* (n_out) device row numbers, or NULL: all rows */
    void *out;              /* (n_out, hidden) act: final-norm output of those rows */
};
/* Runs all layers on a->x (filled by the caller: embeddings); a->x is spent afterwards. */
void sv_stack_forward(const struct sv_stack *st, struct sv_dev *dev, const struct sv_acts *a,
                      const struct sv_pass *p);

/* ---------------------------------------------------------------- weights by name */

/* Owns what a checkpoint becomes on a device. On the CPU the mapped file itself is used. */
struct sv_weights {
    struct sv_dev *dev;
    const struct sv_ckpt *ckpt;          /* NULL: random weights of whatever shape is asked for */
    const char *prefix;                  /* "model." or "" */
    const void **owned;                  /* device buffers to free */
    struct sv_weight *taken;             /* in the order of taking */
    int32_t n_owned, n_taken, cap_owned; /* cap: of both */
    struct sv_arena arena;
    int64_t n_bytes;    /* of everything taken, once each, as published */
    int64_t read_bytes; /* the same as the device keeps it */
    bool table;         /* what is taken from now on is only looked up (struct sv_weight) */
    bool head;          /* what is taken from now on is a head (struct sv_weight) */
    bool approximate;   /* what is taken from now on may be rounded further (struct sv_weight) */
};
int sv_weights_open(struct sv_weights *w, struct sv_dev *dev, const struct sv_ckpt *ckpt,
                    struct sv_err *err);
void sv_weights_close(struct sv_weights *w);
/* Adds what a pass reads of the first n taken (sv_dev_add_read). */
void sv_weights_add_read(const struct sv_weights *w, int32_t n, struct sv_read_bytes *sum);
/* Takes the tensor named by prefix + printf(fmt...), which must be (rows, cols) or, with rows 1,
 * (cols). */
int sv_weights_take(struct sv_weights *w, struct sv_weight *out, int32_t rows, int32_t cols,
                    struct sv_err *err, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Fills the layers of a stack by the names Llama, Qwen3 and DFlash share. */
int sv_weights_take_stack(struct sv_weights *w, struct sv_stack *st, const struct sv_config *cfg,
                          int32_t n_positions, struct sv_err *err);

/* ---------------------------------------------------------------- the target */

struct sv_model {
    struct sv_config cfg;
    struct sv_dev *dev;
    struct sv_ckpt ckpt;
    struct sv_weights weights;
    struct sv_stack stack;
    struct sv_weight embed; /* (vocab, hidden) */
    struct sv_weight head;  /* (vocab, hidden), the same as embed when tied */
    int32_t n_step_weights; /* of weights.taken, the layers and norms, which every pass reads */
};
/* Loads DIR onto dev, with rotary tables for n_positions (0 = all of max_position). */
int sv_model_open(struct sv_model *m, struct sv_dev *dev, const char *dir, int32_t n_positions,
                  struct sv_err *err);
/* DIR/config.json alone: weights of its shapes, bf16, made on the device (benchmarks). */
int sv_model_open_random(struct sv_model *m, struct sv_dev *dev, const char *dir,
                         int32_t n_positions, struct sv_err *err);
void sv_model_close(struct sv_model *m);
/* Weight bytes of a pass: layers, norms, head. */
void sv_model_reads(const struct sv_model *m, struct sv_read_bytes *sum);
/* Cache groups the model's layers need: fills desc (geometry only) and sets cache_group/cache_layer
 * of the layers, numbering groups from first_group. Returns how many. */
int32_t sv_stack_cache_groups(struct sv_stack *st, const char *name, int32_t first_group,
                              struct sv_cache_group_desc *desc);

/* embed + stack: ids (n_rows) device -> p->out. */
void sv_model_forward(const struct sv_model *m, const struct sv_acts *a, const int32_t *row_ids,
                      const struct sv_pass *p);
/* The most probable token of n rows of final-norm output x (n, hidden) act, without logits: out[i],
 * or out[out_index[i]] when out_index (n) is given (< 0: nowhere). */
void sv_model_argmax(const struct sv_model *m, int32_t n, const void *x, const int32_t *out_index,
                     int32_t *out);
/* logits (n, vocab) of n rows of final-norm output x (n, hidden) act. */
void sv_model_logits(const struct sv_model *m, int32_t n, const void *x, float *logits);

#endif
