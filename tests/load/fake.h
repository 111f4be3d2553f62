/*
 * fake.h - made-up checkpoints for the tests of src/load: directories, configurations, tensors.
 *
 * Called by tests/load/test_*.c. Everything lands in the test's own temporary directory.
 */
#ifndef SV_TESTS_LOAD_FAKE_H
#define SV_TESTS_LOAD_FAKE_H

#include "load/load.h"

/* A fresh directory below the test's temporary directory. */
const char *fake_dir(const char *name);
void fake_put(const char *dir, const char *name, const void *data, size_t n);
void fake_puts(const char *dir, const char *name, const char *text);

/* One safetensors image: header as given, then n_data bytes of a pattern. Free with sv_buf_fini. */
void fake_image(struct sv_buf *out, const char *header, size_t n_data);

/* A list of tensors that can be edited before it is written. */
#define FAKE_MAX 256
struct fake_tensor {
    char name[96];
    const char *dtype; /* "F32", "BF16", "F16", "I32" or "U8" */
    int32_t n_dims;
    int64_t dim[4];
};
struct fake_list {
    int32_t n;
    struct fake_tensor t[FAKE_MAX];
};
/* What a configuration asks for, in bf16, with this in front of every name but lm_head's. */
void fake_target(struct fake_list *l, const struct sv_config *c, const char *prefix);
void fake_draft(struct fake_list *l, const struct sv_draft_config *d, const char *prefix);
/* The same by the table of architectures, for families whose rows are known to be right. */
void fake_expected(struct fake_list *l, const struct sv_config *c, const char *prefix);
/* Writes the list, opens it, and fails the test unless the check gives code and says part. */
void fake_check(const struct fake_list *l, struct sv_config *c, int code, const char *part);
struct fake_tensor *fake_find(struct fake_list *l, const char *name);
struct fake_tensor *fake_add(struct fake_list *l, const char *name, int64_t rows, int64_t cols);
void fake_remove(struct fake_list *l, const char *name);
/* Tensors [first, first + n) of the list as dir/file. */
void fake_write(const struct fake_list *l, int32_t first, int32_t n, const char *dir,
                const char *file);

/* base with the fields of patch merged in, recursively; the value "<del>" removes a field. The text
 * is sv_alloc'ed. Both are JSON objects. */
char *fake_json(const char *base, const char *patch);

extern const char fake_qwen3[];  /* config.json of Qwen3-8B as published */
extern const char fake_llama[];  /* a small Llama 3.1, llama3 scaling, later layout */
extern const char fake_dflash[]; /* config.json of Qwen3-8B-DFlash-b16 */
extern const char fake_small[];  /* patch that makes any of them small: 2 layers, hidden 16 */

/* Parse base + patch; the results are the test's to judge. */
int fake_parse_target(struct sv_config *c, const char *base, const char *patch, struct sv_err *err);
int fake_parse_draft(struct sv_draft_config *d, const char *base, const char *patch,
                     struct sv_err *err);

/* Fails the test unless rc is code and the message contains part. */
void fake_expect(int rc, int code, const struct sv_err *err, const char *part, const char *what);

#endif
