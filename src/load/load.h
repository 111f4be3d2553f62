/*
 * load.h - from files to named host tensors and checked configurations.
 *
 * Called by model (weights), engine (opening a pair), cli (info, check). Knows Hugging Face
 * directories: config.json (transformers 4 and 5 layouts), generation_config.json, safetensors
 * single or sharded, and has the only list of a model's tensors. Must not: run anything, or trust
 * unchecked bytes.
 */
#ifndef SV_LOAD_H
#define SV_LOAD_H

#include "backend/ops.h"
#include "backend/quant.h"
#include "base/base.h"
#include "load/config.h"

/* ---------------------------------------------------------------- checkpoints */

#define SV_MAX_DIMS 8

/* One tensor of a checkpoint, in place in a mapped file. data is aligned to its element size
 * (copied when the file did not align it) and holds exactly prod(dim) elements. */
struct sv_host_tensor {
    const char *name;    /* owned by the checkpoint */
    enum sv_dtype dtype; /* integers and codes too: refused for plain weights */
    int32_t n_dims;
    int64_t dim[SV_MAX_DIMS];
    int64_t n_elements;
    size_t n_bytes;
    const void *data;
    const char *file; /* its file, for messages */
    bool as_read;     /* f32 numbers as a model reads them; its row's form does not apply */
    /* Of a quantized matrix; code NONE: elements of dtype. dim and n_elements are the matrix's,
     * n_bytes counts codes and scales. */
    struct sv_quant quant;
};

/* All tensors of a directory, sorted by name. Names are canonical: a leading "model.",
 * "model.language_model." or "language_model.model." is removed and aliases of drafts (midlayer.,
 * encoder.fc, ...) are replaced. */
struct sv_ckpt {
    struct sv_host_tensor *tensors;
    int32_t n_tensors;
    int64_t n_params, n_bytes;
    struct sv_map *maps; /* one per shard */
    int32_t n_maps;
    struct sv_arena arena;
};
/* dir: a directory, or a GGUF file (or its first shard), also below. Opens DIR/model.safetensors,
 * else DIR/model.safetensors.index.json and its shards, else the only *.safetensors file there.
 * Errors: missing file, truncated or overlapping data, bad header, duplicate name, unsupported
 * dtype, name in index but not in its shard or the other way round. */
int sv_ckpt_open(struct sv_ckpt *c, const char *dir, struct sv_err *err);
void sv_ckpt_close(struct sv_ckpt *c);
/* Afterwards the files may change: copied to memory at the same addresses, or not read any more
 * (sv_map_detach). */
int sv_ckpt_detach(struct sv_ckpt *c, bool copy, struct sv_err *err);
/* Bytes of the *.safetensors files there; 0 when unknown. */
int64_t sv_ckpt_dir_bytes(const char *dir);
/* NULL when there is none. A leading "model." of name is ignored. */
const struct sv_host_tensor *sv_ckpt_find(const struct sv_ckpt *c, const char *name);
/* Parses one safetensors image into arena-owned tensors; also the fuzz entry. Appends nothing on
 * error. */
int sv_safetensors_parse(const uint8_t *data, size_t n_bytes, const char *file,
                         struct sv_arena *arena, struct sv_host_tensor **tensors,
                         int32_t *n_tensors, struct sv_err *err);

/* model.safetensors.index.json: which shard holds which tensor. All memory is the arena's. */
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

/* ---------------------------------------------------------------- tokenizers and tensors */

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

/* Division of a tensor among ranks. */
enum sv_shard {
    SV_SHARD_NONE, /* every rank has all of it */
    SV_SHARD_ROWS, /* by outputs; of a vector, its elements */
    SV_SHARD_COLS  /* by inputs: the ranks' products are summed */
};

/* Layout of a matrix in a file. */
enum sv_pack {
    SV_PACK_NONE,         /* (rows, cols) */
    SV_PACK_INPUTS_FIRST, /* (cols, rows): transposed */
    SV_PACK_MXFP4,        /* u8 (rows, cols / 32, 16): two E2M1 codes a byte, low nibble first */
    SV_PACK_MXFP4_SCALES, /* u8 (rows, cols / 32): E8M0 scales of such a matrix */
    SV_PACK_HALVES /* transposed; all outputs of gate before those of up, which alternate in the
                      others */
};

/* Form of a tensor in a file. */
enum sv_form {
    SV_FORM_PLAIN,
    SV_FORM_ONE_PLUS, /* w, for 1 + w */
    SV_FORM_F32,      /* any type, read as f32 */
    SV_FORM_DECAY,    /* A_log, for -exp(A_log) */
    SV_FORM_CONV,     /* (channels, 1, taps), read as (taps, channels) f32 */
    SV_FORM_QKVZ,   /* for each key head its rows of q, k, v, z; read as q, k, v, z of all heads */
    SV_FORM_BA,     /* likewise of b, a */
    SV_FORM_PATCH,  /* (rows, 3, frames, side, side), read as a matrix */
    SV_FORM_EXPERT, /* all experts in one tensor: (experts, rows, cols) */
    SV_FORM_GATE,   /* (experts, 2 rows, cols): an expert's first half */
    SV_FORM_UP      /* the second */
};

/* A tensor that a configuration implies. */
struct sv_tensor_spec {
    const char *name; /* as for sv_ckpt_find; valid during the call */
    enum sv_role role;
    int32_t layer, expert; /* -1: none; of SV_ROLE_K_UP and V_UP the head */
    int32_t n_experts; /* number of matrices or vectors in one tensor; 0: one. With an expert, only
                          that one */
    enum sv_pack pack;
    int64_t rows, cols; /* cols 0: a vector of rows elements */
    enum sv_shard shard;
    enum sv_form form; /* rows, cols: as read; of SV_FORM_CONV as in the file */
    int32_t side;      /* of SV_FORM_PATCH: pixels */
};
/* The shape in the file; returns the number of dimensions. */
enum { SV_SPEC_DIMS = 5 };
int32_t sv_tensor_shape(const struct sv_tensor_spec *s, int64_t dim[SV_SPEC_DIMS]);
/* convert.c: rows of a tensor with form QKVZ or BA in a model's order: n ranges, and the i-th of
 * them. */
int32_t sv_tensor_n_ranges(enum sv_form form, const struct sv_config *cfg);
struct sv_slice sv_tensor_range(enum sv_form form, const struct sv_config *cfg, int32_t i);
/* convert.c: rows, cols, type and data of w as a model reads the tensor, in the arena where the
 * file differs. */
int sv_tensor_convert(const struct sv_tensor_spec *spec, const struct sv_config *cfg,
                      const struct sv_host_tensor *t, struct sv_arena *arena, struct sv_weight *w,
                      struct sv_err *err);
typedef int sv_tensor_fn(void *user, const struct sv_tensor_spec *spec);
/* Calls take for every tensor in the order of loading, layer by layer. Stops at the first result
 * other than 0 and returns it. n_taps: a draft's, else 0. */
int sv_config_each_tensor(const struct sv_config *cfg, int32_t n_taps, sv_tensor_fn *take,
                          void *user);

/* vision.c: tensors of the vision tower. */
enum sv_vision_part {
    SV_VISION_PATCH,
    SV_VISION_POSITIONS,
    SV_VISION_NORM_1,
    SV_VISION_NORM_2,
    SV_VISION_QKV,
    SV_VISION_PROJ,
    SV_VISION_FC_1,
    SV_VISION_FC_2,
    SV_VISION_MERGE_NORM, /* layer -1: of the tower's rows, else of those of a deeper block */
    SV_VISION_MERGE_FC_1,
    SV_VISION_MERGE_FC_2
};
typedef int sv_vision_fn(void *user, const struct sv_tensor_spec *spec, enum sv_vision_part part);
/* As sv_config_each_tensor, for the tower's: layer is a block, or a merger of deeper rows. */
int sv_vision_each_tensor(const struct sv_config *cfg, sv_vision_fn *take, void *user);
/* The checkpoint has tensors of a tower: all of them, if the configuration describes one. */
bool sv_vision_is_in(const struct sv_ckpt *ckpt);

/* The value of a tensor X.k_scale or X.v_scale; 0: not usable as the scale of a cache. */
float sv_cache_scale_of(const struct sv_host_tensor *t);
/* Number of parameters of these tensors. */
int64_t sv_config_n_params(const struct sv_config *cfg);
int64_t sv_draft_config_n_params(const struct sv_draft_config *cfg);
/* A target's bytes in its stored type, experts in MXFP4 as such. */
int64_t sv_config_n_bytes(const struct sv_config *cfg);
/* Sets in cfg the layout of experts, separate, packed or transposed, where the family has several.
 * Checks that every expected tensor is there with its shape, and no other; of a described tower all
 * or none. Allowed extras: what the architecture skips by name (mtp., and visual. where no tower is
 * described); rotary_emb.inv_freq anywhere; for tied targets lm_head.weight of the right shape. A
 * draft with its own embedding and head is refused with its own message. */
int sv_ckpt_check_target(const struct sv_ckpt *c, struct sv_config *cfg, struct sv_err *err);
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
/* Finds tensor and scales of a checkpoint that was checked. Errors: a scale that is NaN, or whose
 * products bf16 cannot hold. */
int sv_packed_find(struct sv_packed *p, const struct sv_ckpt *c, const struct sv_tensor_spec *s,
                   struct sv_err *err);
/* Type after expansion: MXFP4 to bf16, which holds every value exactly. */
enum sv_dtype sv_packed_dtype(const struct sv_packed *p);
/* A part of an expert's matrix: these rows of outputs first, first + step, ..., or of
 * SV_PACK_HALVES of part number `first` of `step`, and these columns of inputs. */
struct sv_packed_part {
    int32_t first, step;
    struct sv_slice rows, cols;
};
/* That part of an expert: the MXFP4 codes of its outputs, with all inputs, as they are, */
struct sv_quant sv_packed_codes(const struct sv_packed *p, int32_t expert,
                                const struct sv_packed_part *part);
/* or its elements, (rows.n, cols.n). Columns of MXFP4 begin and end where blocks do. */
void sv_packed_expand(const struct sv_packed *p, int32_t expert, const struct sv_packed_part *part,
                      void *out);

/* quantize.c: the report of one matrix. */
struct sv_quantized {
    const char *name;
    int64_t rows, cols, n_bytes, n_bytes_before;
    double error, size; /* sums of squares: of differences, of the numbers */
    double largest;     /* difference */
};
/* Called for each quantized tensor; a result other than 0 aborts and is returned. */
typedef int sv_quantized_fn(void *user, const struct sv_quantized *t);
/* Writes dir's model, quantized, to out, which must not exist: a directory in layouts of
 * compressed-tensors, or NAME.gguf. Projections are rounded to code (F8, MXFP4, INT8, INT4; in GGUF
 * MXFP4, Q8_0, Q4_0), all else is unchanged. On error nothing is left. */
int sv_quantize_model(const char *dir, enum sv_quant_code code, const char *out,
                      sv_quantized_fn *on_matrix, void *user, struct sv_err *err);

#endif
