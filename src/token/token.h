/*
 * token.h - front header of src/token: text to token ids and back, by byte-level BPE from
 * tokenizer.json, and streaming detokenization.
 *
 * Called by engine (stop strings, output text) and cli. Knows no device and no model. Must not:
 * allocate per token on the streaming path once its buffers have grown, or emit a partial code
 * point.
 */
#ifndef SV_TOKEN_H
#define SV_TOKEN_H

#include "base/base.h"

struct sv_tokenizer;

/* Reads DIR/tokenizer.json (and tokenizer_config.json when there). Errors name file, field,
 * position. */
int sv_tokenizer_open(struct sv_tokenizer **tok, const char *dir, struct sv_err *err);
/* The parsing half, for tests and fuzzing. */
int sv_tokenizer_parse(struct sv_tokenizer **tok, const char *json, size_t n, struct sv_err *err);
void sv_tokenizer_close(struct sv_tokenizer *tok);

int32_t sv_tokenizer_n_tokens(const struct sv_tokenizer *tok); /* highest id + 1 */
/* Id of an exact token (added or base vocabulary, given as published), or -1. */
int32_t sv_tokenizer_find(const struct sv_tokenizer *tok, const char *token);
/* Raw bytes of a token (byte-level decoded); *n = 0 and NULL for an unknown id. */
const char *sv_tokenizer_bytes(const struct sv_tokenizer *tok, int32_t id, size_t *n);
bool sv_tokenizer_is_special(const struct sv_tokenizer *tok, int32_t id);

struct sv_ids {
    int32_t *id;
    size_t n, cap;
};
void sv_ids_fini(struct sv_ids *ids);
int sv_ids_append(struct sv_ids *ids, const int32_t *id, size_t n);

enum {
    SV_ENC_SPECIAL = 1,    /* special tokens written in the text become their ids */
    SV_ENC_ADD_SPECIAL = 2 /* apply the post-processor (e.g. Llama's leading <|begin_of_text|>) */
};
/* Appends the ids of n bytes. Bytes that are not UTF-8 are read as U+FFFD, one per maximal invalid
 * sequence, as Python's errors="replace" does. A tokenizer may be used by several threads at once;
 * each needs its own scratch (NULL = a temporary one). */
struct sv_enc_scratch;
struct sv_enc_scratch *sv_enc_scratch_new(void);
void sv_enc_scratch_free(struct sv_enc_scratch *s);
int sv_tokenizer_encode(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, const char *text,
                        size_t n, unsigned flags, struct sv_ids *out, struct sv_err *err);
/* Appends the text of n ids. skip_special drops special tokens. */
int sv_tokenizer_decode(const struct sv_tokenizer *tok, const int32_t *ids, size_t n,
                        bool skip_special, struct sv_buf *out);

/* Streaming: feed tokens one by one; out receives only whole code points, so that concatenated
 * output is always valid UTF-8. Bytes that can never become valid turn into U+FFFD. */
struct sv_detok {
    const struct sv_tokenizer *tok;
    bool skip_special;
    const int32_t *shown; /* special tokens that are not skipped; borrowed */
    int32_t n_shown;
    uint8_t held[4]; /* an incomplete sequence */
    int32_t n_held;
};
void sv_detok_init(struct sv_detok *d, const struct sv_tokenizer *tok, bool skip_special);
bool sv_detok_skips(const struct sv_detok *d, int32_t id);              /* left out of the text */
void sv_detok_push(struct sv_detok *d, int32_t id, struct sv_buf *out); /* appends to out */
void sv_detok_end(struct sv_detok *d, struct sv_buf *out); /* flushes what is held as U+FFFD */

#endif
