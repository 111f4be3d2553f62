/*
 * device.h - a device behind the seam: memory, queue and graphs, and the table of functions that a
 * backend (cpu/, cuda/, hip/) fills; with weight.h, its weights, with ranks.h, other ranks.
 *
 * Called by load (upload), cache, model, spec and engine, through the sv_dev_* wrappers of ops.c.
 * The ops that a device runs are in ops.h, ops_moe.h and ops_tokens.h. Must not: describe the
 * parameters of an op here.
 */
#ifndef SV_DEVICE_H
#define SV_DEVICE_H

#include "backend/ranks.h"
#include "backend/weight.h"
#include "base/base.h"
#include "salvo_tuning.h"

/* ---------------------------------------------------------------- the backend table */

/* Told of what is uploaded, or copied on the device; src NULL: zeros. */
typedef void sv_copy_fn(void *user, const void *dst, const void *src, size_t n_bytes,
                        bool on_device);

struct sv_dev; /* a backend's own struct, which begins with these */
#define SV_DEV_HEAD                                                                                \
    const struct sv_backend *be;                                                                   \
    void (*on_upload)(void *user, size_t n_bytes); /* ops.c's, as the rest */                      \
    void *upload_user;                                                                             \
    sv_copy_fn *on_copy;                                                                           \
    void *copy_user;                                                                               \
    struct sv_ranks ranks;                                                                         \
    enum sv_join last_join;                                                                        \
    uint32_t n_joins

/* What memory of the device is for. */
enum sv_mem {
    SV_MEM_WEIGHTS,
    SV_MEM_WCOMP,   /* their copies in fewer bits */
    SV_MEM_SCREEN,  /* head screens */
    SV_MEM_SCRATCH, /* of kernels, and for what is on its way */
    SV_MEM_ASKED,   /* by alloc: buffers and pools */
    SV_MEM_KINDS
};

struct sv_dev_opts {
    const char *backend; /* "cpu", "cuda", "hip"; NULL = the best this build and machine have */
    /* draft_quant ON where the device cannot: sv_dev_quantizes is false, for the caller to report;
     * AUTO goes by weight_bytes and usual_rows */
    struct sv_tuning tuning;
    int32_t ordinal; /* which GPU: the first one of all replicas, */
    int32_t n_taken; /* behind which so many are those of other replicas; the CPU is shared */
    bool no_graphs;  /* GPUs: graph_run calls enqueue every time; the same bits */
    int n_threads;   /* 0 = all processors */
    /* SV_F32: exact f32 products; SV_BF16: inputs of GEMMs rounded to bf16 */
    enum sv_dtype compute;
    int64_t weight_bytes; /* of the target, as published; 0 = not known */
    int32_t usual_rows;   /* of a step that decodes; 0 = not known */
    /* GPUs: longest wait without progress, then the device has failed; 0 = 60, -1 = none */
    int32_t timeout_s;
    struct sv_ranks ranks; /* zeros: it is alone */
};

/* The largest values any op will be asked for; reserve() sizes all scratch once. */
struct sv_dev_limits {
    int32_t max_rows;       /* rows of a batch */
    int32_t max_segs;       /* sequences of a batch; 0: few, or none of attention */
    int32_t max_logit_rows; /* rows of logits held at once */
    int32_t max_k;          /* widest GEMM input (taps included) */
    int32_t max_n;          /* widest GEMM output, the head excluded */
    int32_t max_heads, max_head_dim, max_vocab;
    int32_t max_positions;           /* longest sequence */
    int32_t max_experts, max_chosen; /* of a layer, of a row; 0: no mixture of experts */
    bool by_head;                    /* heads have matrices of their own, see ops_mla.h */
};

/* Where it computes, for people. */
struct sv_dev_place {
    int32_t gpu;   /* -1: the CPU */
    char pci[16];  /* its address */
    char link[24]; /* the way to the other ranks, of several the slowest; empty: alone */
};

struct sv_gdn_ops;
struct sv_mla_ops;
struct sv_moe_ops;
struct sv_vision_ops;
struct sv_p_act_mul;
struct sv_p_add_gated;
struct sv_p_add_rms_norm;
struct sv_p_argmax_confidence;
struct sv_p_attention;
struct sv_p_block_ids;
struct sv_p_commit;
struct sv_p_snapshot;
struct sv_p_draft_context_kv;
struct sv_p_embed;
struct sv_p_gather_logits;
struct sv_p_share_rows;
struct sv_p_gemm;
struct sv_p_gemm_act_mul;
struct sv_p_head_among;
struct sv_p_head_argmax;
struct sv_p_history;
struct sv_p_logit_mask;
struct sv_p_logit_pos;
struct sv_p_logit_rules;
struct sv_p_logprobs;
struct sv_p_qk_norm_rope_kv_write;
struct sv_p_replace_drafts;
struct sv_p_sample;
struct sv_p_sigmoid_mul;
struct sv_p_verify;

struct sv_backend {
    const char *name;
    /* Ops queue up and graph_run replays: the engine pads counts to buckets and runs a step
     * ahead. */
    bool has_graphs;
    bool takes_columns;   /* upload_weight: host->row_stride */
    bool joins_hosts;     /* ranks may be on several hosts (sv_peers.far) */
    bool head_confidence; /* head_argmax fills `confidence` with any head, */
    bool (*head_confidence_of)(const struct sv_dev *,
                               const struct sv_weight *w); /* or with such a head; may be NULL */
    void (*close)(struct sv_dev *);
    int (*reserve)(struct sv_dev *, const struct sv_dev_limits *, struct sv_err *);
    int (*alloc)(struct sv_dev *, void **out, size_t n_bytes, struct sv_err *); /* cleared */
    void (*free)(struct sv_dev *, void *p);
    /* Host memory that copies to and from the device without a detour; cleared. */
    int (*host_alloc)(struct sv_dev *, void **out, size_t n_bytes, struct sv_err *);
    void (*host_free)(struct sv_dev *, void *p);
    /* Bytes free and in all on the device; 0 and 0 when it shares the host's memory. */
    void (*memory)(struct sv_dev *, int64_t *n_free, int64_t *n_total);
    /* Bytes allocated on the device and not freed, an exact sum. NULL, or 0: not counted, as
     * memory is the host's. */
    int64_t (*held)(const struct sv_dev *, enum sv_mem kind);
    /* host->data is row-major host memory, which must outlive the weight: it may be used in place,
     * and so may codes. Else it is repacked, quantized or copied by its role. Not in the step. */
    bool (*takes_codes)(const struct sv_dev *, const struct sv_quant *,
                        enum sv_role); /* may be NULL: none */
    int (*upload_weight)(struct sv_dev *, const struct sv_weight *host, struct sv_weight *dev,
                         struct sv_err *);
    void (*free_weight)(struct sv_dev *, struct sv_weight *w);
    /* Bytes that a product of n_rows rows with w reads. Copies are made by reserve; above
     * SV_READ_ROWS rows the answer is the same for all. */
    int64_t (*weight_bytes)(const struct sv_dev *, const struct sv_weight *w, int32_t n_rows);
    /* Whether some product rounds activations (tuning.activations); NULL: none does. */
    bool (*rounds)(const struct sv_dev *);
    /* Whether drafters' matrices are quantized; NULL: no. */
    bool (*quantizes)(const struct sv_dev *);
    /* A weight of normal numbers times scale plus shift, made on the device from the seed:
     * benchmarks. */
    int (*random_weight)(struct sv_dev *, const struct sv_weight *shape, float scale, float shift,
                         uint64_t seed, struct sv_weight *dev, struct sv_err *);
    void (*upload)(struct sv_dev *, void *dst, const void *src, size_t n_bytes);   /* enqueue */
    void (*download)(struct sv_dev *, void *dst, const void *src, size_t n_bytes); /* enqueue */
    /* Enqueues a copy inside the device's memory; src NULL: zeros. Not inside graph_run. */
    void (*copy)(struct sv_dev *, void *dst, const void *src, size_t n_bytes);
    int (*sync)(struct sv_dev *, struct sv_err *); /* waits; returns and clears the latched error */
    /* mark(i) marks this point of the queue; wait(i) waits until everything before it is done,
     * and returns and clears the latched error. i < SV_MARKS; a mark never set counts as done. */
    void (*mark)(struct sv_dev *, int32_t i);
    int (*wait)(struct sv_dev *, int32_t i, struct sv_err *);
    /* Enqueues what enqueue(user) enqueues. A device with graphs captures it the first time a key
     * is seen and replays it afterwards without the call, so all that launches bake in (counts,
     * pointers, flags) must be a function of the key. No upload from memory that changes place, no
     * allocation inside. */
    void (*graph_run)(struct sv_dev *, uint64_t key, void (*enqueue)(void *user), void *user);
    /* For traces: stamp(i) notes when the queue gets here, stamp_us is the time between two of
     * them, both of which must be done. i < SV_STAMPS. Not inside graph_run. NULL where an op is
     * over when it returns. */
    void (*stamp)(struct sv_dev *, int32_t i);
    double (*stamp_us)(struct sv_dev *, int32_t from, int32_t to);
    /* Ranks; NULL: this device cannot be one of several. Makes the window that other ranks find by
     * the key, then, with the keys of all, finds theirs. Both windows end with the device. */
    int (*window_open)(struct sv_dev *, const struct sv_window_need *, struct sv_window_key *key,
                       struct sv_err *);
    int (*window_join)(struct sv_dev *, const struct sv_peers *, struct sv_err *);
    void (*place)(const struct sv_dev *, struct sv_dev_place *out); /* NULL: the CPU */

    void (*block_ids)(struct sv_dev *, const struct sv_p_block_ids *);
    void (*embed)(struct sv_dev *, const struct sv_p_embed *);
    void (*add_rms_norm)(struct sv_dev *, const struct sv_p_add_rms_norm *);
    void (*gemm)(struct sv_dev *, const struct sv_p_gemm *);
    void (*gemm_act_mul)(struct sv_dev *, const struct sv_p_gemm_act_mul *);
    void (*qk_norm_rope_kv_write)(struct sv_dev *, const struct sv_p_qk_norm_rope_kv_write *);
    void (*attention)(struct sv_dev *, const struct sv_p_attention *);
    void (*sigmoid_mul)(struct sv_dev *, const struct sv_p_sigmoid_mul *);
    void (*add_gated)(struct sv_dev *, const struct sv_p_add_gated *);
    void (*act_mul)(struct sv_dev *, const struct sv_p_act_mul *);
    void (*head_argmax)(struct sv_dev *, const struct sv_p_head_argmax *);
    void (*gather_logits)(struct sv_dev *, const struct sv_p_gather_logits *);
    void (*share_rows)(struct sv_dev *, const struct sv_p_share_rows *); /* NULL: none are dealt */
    void (*logit_pos)(struct sv_dev *, const struct sv_p_logit_pos *);
    void (*sample)(struct sv_dev *, const struct sv_p_sample *);
    void (*argmax_confidence)(struct sv_dev *,
                              const struct sv_p_argmax_confidence *); /* may be NULL */
    void (*head_among)(struct sv_dev *, const struct sv_p_head_among *);
    void (*logit_mask)(struct sv_dev *, const struct sv_p_logit_mask *);
    void (*logit_rules)(struct sv_dev *, const struct sv_p_logit_rules *);
    void (*logprobs)(struct sv_dev *, const struct sv_p_logprobs *);
    void (*history)(struct sv_dev *, const struct sv_p_history *);
    void (*replace_drafts)(struct sv_dev *, const struct sv_p_replace_drafts *);
    void (*verify)(struct sv_dev *, const struct sv_p_verify *);
    void (*commit)(struct sv_dev *, const struct sv_p_commit *);
    void (*snapshot)(struct sv_dev *, const struct sv_p_snapshot *);
    void (*draft_context_kv)(struct sv_dev *, const struct sv_p_draft_context_kv *);
    const struct sv_moe_ops *moe; /* ops_moe.h; NULL: no mixture of experts */
    const struct sv_gdn_ops *gdn; /* ops_gdn.h; NULL: no gated delta rule */
    const struct sv_mla_ops *mla; /* ops_mla.h; NULL: no latent attention */
    const struct sv_vision_ops
        *vision; /* ops_vision.h; NULL: no images, nor rows with a row_rope */
    /* Read-only sweep over n_bytes of fresh memory with all threads; GB/s, best of a few rounds. */
    double (*measure_read)(struct sv_dev *, size_t n_bytes);
    const char *(*describe)(struct sv_dev *); /* "cpu amx-bf16, 2 threads" */
    enum sv_dtype (*act_dtype)(const struct sv_dev *);
    enum sv_dtype (*compute_dtype)(const struct sv_dev *);
};

#define SV_READ_ROWS 256 /* copies of weights are for fewer rows than this */
#define SV_MARKS 4
#define SV_STAMPS 2048

const char *sv_dev_name(const struct sv_dev_opts *opts); /* "cpu": what would be opened */
int sv_dev_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err);
const struct sv_backend *sv_dev_backend(const struct sv_dev *dev);
enum sv_dtype sv_dev_act_dtype(const struct sv_dev *dev);
enum sv_dtype sv_dev_compute_dtype(const struct sv_dev *dev);

/* Checked wrappers around the table (ops.c). Zero rows are a no-op everywhere. */
void sv_dev_close(struct sv_dev *dev);
int sv_dev_reserve(struct sv_dev *dev, const struct sv_dev_limits *lim, struct sv_err *err);
int sv_dev_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err);
void sv_dev_free(struct sv_dev *dev, void *p);
int sv_dev_host_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err);
void sv_dev_host_free(struct sv_dev *dev, void *p);
void sv_dev_memory(struct sv_dev *dev, int64_t *n_free, int64_t *n_total);
int64_t sv_dev_held(const struct sv_dev *dev, enum sv_mem kind); /* 0 where nothing is counted */
bool sv_dev_rounds(const struct sv_dev *dev);
bool sv_dev_quantizes(const struct sv_dev *dev);
/* Whether upload_weight takes this matrix as it is (host->quant), for this role. */
bool sv_dev_takes_codes(const struct sv_dev *dev, const struct sv_quant *q, enum sv_role role);
/* Whether head_argmax fills `confidence` with this head. */
bool sv_dev_head_confidence(const struct sv_dev *dev, const struct sv_weight *w);
int64_t sv_dev_weight_bytes(const struct sv_dev *dev, const struct sv_weight *w, int32_t n_rows);
int sv_dev_upload_weight(struct sv_dev *dev, const struct sv_weight *host, struct sv_weight *out,
                         struct sv_err *err);
void sv_dev_free_weight(struct sv_dev *dev, struct sv_weight *w); /* w becomes no weight */
/* fn is called for every loaded weight, to report progress. */
void sv_dev_on_upload(struct sv_dev *dev, void (*fn)(void *user, size_t n_bytes), void *user);
int sv_dev_random_weight(struct sv_dev *dev, const struct sv_weight *shape, float scale,
                         float shift, uint64_t seed, struct sv_weight *out, struct sv_err *err);
void sv_dev_upload(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes);
void sv_dev_download(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes);
void sv_dev_copy(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes);
int sv_dev_sync(struct sv_dev *dev, struct sv_err *err);
void sv_dev_mark(struct sv_dev *dev, int32_t i);
int sv_dev_wait(struct sv_dev *dev, int32_t i, struct sv_err *err);
void sv_dev_graph_run(struct sv_dev *dev, uint64_t key, void (*enqueue)(void *user), void *user);
/* Ranks: a device that was opened as one of several can have windows; which one it is; joins
 * enqueued so far. */
struct sv_ranks sv_dev_ranks(const struct sv_dev *dev);
uint32_t sv_dev_n_joins(const struct sv_dev *dev);
int sv_dev_window_open(struct sv_dev *dev, const struct sv_window_need *need,
                       struct sv_window_key *key, struct sv_err *err);
int sv_dev_window_join(struct sv_dev *dev, const struct sv_peers *peers, struct sv_err *err);
/* Once windows are joined, if it is one of several ranks. */
void sv_dev_place(const struct sv_dev *dev, struct sv_dev_place *out);
/* fn is called for every sv_dev_upload and sv_dev_copy, to broadcast it to other ranks. */
void sv_dev_on_copy(struct sv_dev *dev, sv_copy_fn *fn, void *user);
double sv_dev_measure_read(struct sv_dev *dev, size_t n_bytes);
const char *sv_dev_describe(struct sv_dev *dev);

#endif
