/*
 * gguf_write.h - GGUF files for tests: a small writer, and model directories in the form that
 * llama.cpp's converters give them (names, order of heads, norms, stacked experts).
 *
 * Called by tests/load, tests/model and tests/spec. Written against the description of the format,
 * not against src/load.
 */
#ifndef SV_TESTS_GGUF_WRITE_H
#define SV_TESTS_GGUF_WRITE_H

#include "load/load.h"

struct gguf_out {
    struct sv_buf kv, info, data;
    uint64_t n_kv, n_tensors;
};
enum { GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q8_0 = 8, GGUF_BF16 = 30, GGUF_MXFP4 = 39 };

void gguf_init(struct gguf_out *g, const char *arch);
void gguf_u32(struct gguf_out *g, const char *key, uint32_t v);
/* Writes the file and frees everything. */
void gguf_save(struct gguf_out *g, const char *path);

/* The tokenizer of a tokenizer.json, with this name of its pre-tokenizer; bos_id < 0: none. */
void gguf_tokenizer(struct gguf_out *g, const char *json_path, const char *pre, int32_t bos_id);

/* A target's or a draft's directory as one file in the test's temporary directory: matrices as they
 * are, the rest in F32. The path is kept for the process's life. */
const char *gguf_of_dir(const char *dir);
/* As older converters wrote it: latent attention with kv_b in one tensor. */
const char *gguf_of_dir_old(const char *dir);
/* A random model of a config.json: matrices in these types in turn, in Q8_0 where their rows are no
 * whole blocks. values: the same numbers in F32. */
const char *gguf_random(const char *config, const int *types, int n_types, bool values);

#endif
