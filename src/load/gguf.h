/*
 * gguf.h - a GGUF file (container version 3): typed metadata and a table of tensors.
 *
 * gguf.c reads one image, gguf_ckpt.c and gguf_undo.c make a checkpoint of the tensors,
 * gguf_config.c and gguf_text.c turn metadata into config.json, tokenizer.json and
 * tokenizer_config.json; gguf_meta.c is the reverse of these two, for writing. Included by these,
 * by quantize_gguf.c, hub.c, tests and the fuzz target. Must not: be included by other folders;
 * sv_config_load, sv_ckpt_open etc. accept files and directories.
 */
#ifndef SV_LOAD_GGUF_H
#define SV_LOAD_GGUF_H

#include "load/impl.h"

enum sv_gguf_type {
    SV_GGUF_U8,
    SV_GGUF_I8,
    SV_GGUF_U16,
    SV_GGUF_I16,
    SV_GGUF_U32,
    SV_GGUF_I32,
    SV_GGUF_F32,
    SV_GGUF_BOOL,
    SV_GGUF_STRING,
    SV_GGUF_ARRAY,
    SV_GGUF_U64,
    SV_GGUF_I64,
    SV_GGUF_F64,
    SV_GGUF_TYPES
};

/* One key. Values stay in the file, unaligned, and are checked. */
struct sv_gguf_kv {
    const char *key;
    enum sv_gguf_type type; /* of the value, or of the elements of an array */
    bool is_array;
    uint64_t n;        /* elements; 1 of a plain value */
    const uint8_t *at; /* the first of them */
};

struct sv_gguf_tensor {
    const char *name;
    uint32_t type; /* as in the file, known to sv_gguf_format */
    int32_t n_dims;
    int64_t dim[4]; /* the file's order: dim[0] is the length of a row */
    int64_t n_elements;
    size_t n_bytes;
    const uint8_t *data;
    const char *file;
};

struct sv_gguf {
    const char *file;      /* for messages */
    struct sv_gguf_kv *kv; /* sorted by key */
    int32_t n_kv;
    struct sv_gguf_tensor *tensors; /* in the file's order */
    int32_t n_tensors;
};

/* Reads an image; all memory is of the arena or the image. Errors name file, key or tensor, and
 * byte. Also the fuzz entry. */
int sv_gguf_parse(struct sv_gguf *g, const uint8_t *data, size_t n_bytes, const char *file,
                  struct sv_arena *arena, struct sv_err *err);
/* How a tensor type is stored: a plain dtype (code NONE) or a code. false: not supported. */
bool sv_gguf_format(uint32_t type, enum sv_dtype *dtype, enum sv_quant_code *code);
/* The reverse. */
uint32_t sv_gguf_type_of(enum sv_dtype dtype, enum sv_quant_code code);

/* NULL: there is none. */
const struct sv_gguf_kv *sv_gguf_find(const struct sv_gguf *g, const char *key);
/* Access with a clear error; *out stays when the key is absent. */
int sv_gguf_int_opt(const struct sv_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out,
                    struct sv_err *err);
int sv_gguf_num_opt(const struct sv_gguf *g, const char *key, double *out, struct sv_err *err);
int sv_gguf_bool_opt(const struct sv_gguf *g, const char *key, bool *out, struct sv_err *err);
/* Borrowed and not NUL-terminated. */
int sv_gguf_str_opt(const struct sv_gguf *g, const char *key, const char **out, size_t *n,
                    struct sv_err *err);
/* An array of strings, NULL when absent; other types are an error. */
int sv_gguf_strings(const struct sv_gguf *g, const char *key, const struct sv_gguf_kv **out,
                    struct sv_err *err);
/* Element i of an array (or the value) as an integer; false: it is none. Not of strings. */
bool sv_gguf_int_at(const struct sv_gguf_kv *v, uint64_t i, int64_t *out);
/* Iterates over the strings of an array, from *at = kv->at. */
const char *sv_gguf_next(const uint8_t **at, size_t *n);

/* A family, by general.architecture (gguf_config.c). */
struct sv_gguf_family {
    const char *arch, *architecture; /* the second as in config.json */
    const char *router;              /* a layer's router in the table of arch.c */
    bool experts, hybrid, latent, draft;
    bool wrapped;    /* config.json has a text_config */
    bool slides;     /* a sliding window is possible */
    bool permuted;   /* rows of q and k are in the order of neighbouring-pair rotary */
    bool tiled;      /* value heads are ordered with the key head last */
    bool whole_ramp; /* gpt-oss: YaRN is not truncated, experts are as wide as the ffn */
};
/* NULL and err: unknown name. */
const struct sv_gguf_family *sv_gguf_family(const struct sv_gguf *g, struct sv_err *err);
/* The family of a configuration; NULL: none. */
const struct sv_gguf_family *sv_gguf_family_of(const struct sv_config *c);
/* Key ARCH.NAME; an array has one for each layer, all equal. *out stays when it is absent. */
int sv_gguf_arch_int(const struct sv_gguf *g, const char *arch, const char *name, int64_t *out,
                     struct sv_err *err);

/* ---------------------------------------------------------------- files (gguf_ckpt.c) */

bool sv_is_gguf(const char *path); /* by its name */
/* A file, or all shards when path names the first one: its metadata and the tensors of all. */
struct sv_gguf_file {
    struct sv_map *maps;
    int32_t n_maps;
    struct sv_arena arena;
    struct sv_gguf g;
};
int sv_gguf_open(struct sv_gguf_file *f, const char *path, struct sv_err *err);
void sv_gguf_close(struct sv_gguf_file *f);
int sv_gguf_ckpt_open(struct sv_ckpt *c, const char *path, struct sv_err *err);
/* Names and order of arch.c's table, in an empty checkpoint; also the fuzz entry. */
int sv_gguf_ckpt_fill(struct sv_ckpt *c, const struct sv_gguf *g, struct sv_err *err);
/* Bytes of all shards; 0 when unknown. */
int64_t sv_gguf_ckpt_bytes(const char *path);
/* arch.c's name of "blk.3.attn_q.weight", in buf, with {expert} for stacked experts; false: none.
 */
bool sv_gguf_tensor_name(const struct sv_gguf_family *f, const char *name, char *buf, size_t size);
/* The reverse: a file's name of "layers.3.mlp.experts.7.up_proj.weight", and the expert, -1: none.
 */
bool sv_gguf_file_name(const struct sv_gguf_family *f, const char *name, char *buf, size_t size,
                       int32_t *expert);
/* gguf_undo.c: reverts the converter's changes. There is room for twice the file's tensors. */
int sv_gguf_undo(struct sv_ckpt *c, const struct sv_gguf *g, const struct sv_gguf_family *f,
                 struct sv_err *err);

/* ---------------------------------------------------------------- metadata */

/* gguf_config.c: the equivalent config.json. NULL and err on failure. */
json_t *sv_gguf_config(const struct sv_gguf *g, struct sv_err *err);
/* Storage that differs from directories, and the factors of "rope_freqs.weight" into c->rope. */
int sv_gguf_config_finish(const struct sv_gguf *g, struct sv_config *c, struct sv_err *err);
/* gguf_text.c: tokenizer.json as text; nothing appended when the file has no tokenizer. */
int sv_gguf_tokenizer_json(const struct sv_gguf *g, struct sv_buf *out, struct sv_err *err);
/* tokenizer_config.json: the chat templates and special tokens. */
json_t *sv_gguf_tokenizer_config(const struct sv_gguf *g, struct sv_err *err);
/* tokenizer.ggml.pre's name of a tokenizer.json's pre-tokenizer; NULL: none. */
const char *sv_gguf_pre_of(const json_t *tokenizer);

/* gguf_meta.c: keys of a file that is written. */
struct sv_gguf_meta {
    struct sv_buf kv;
    uint64_t n;
};
void sv_gguf_put(struct sv_buf *b, uint64_t v, int n_bytes);      /* little-endian */
void sv_gguf_put_text(struct sv_buf *b, const char *s, size_t n); /* its length first */
int sv_gguf_put_config(struct sv_gguf_meta *m, const struct sv_gguf_family *f,
                       const struct sv_config *c, const char *name, struct sv_err *err);
/* Further keys of a draft. */
int sv_gguf_put_draft(struct sv_gguf_meta *m, const struct sv_draft_config *d, struct sv_err *err);
/* Tokenizer and chat template of a directory; without a tokenizer, only special ids. */
int sv_gguf_put_tokenizer(struct sv_gguf_meta *m, const char *dir, const struct sv_config *c,
                          struct sv_err *err);

#endif
