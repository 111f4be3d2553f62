/*
 * prompt.h - prompts: from messages, text or token ids to ids (prompt.c), and fill-in-the-middle
 * (fim.c).
 *
 * These change nothing in the server: any thread may call them, with a scratch of its own.
 */
#ifndef SV_SERVE_CORE_PROMPT_H
#define SV_SERVE_CORE_PROMPT_H

#include "serve/core/error.h"
#include "serve/core/params.h"

#include <stdatomic.h>

struct sv_enc_scratch;
struct sv_ids;
struct sv_serve;

struct sv_prompt {
    int32_t *ids; /* one for each image */
    int32_t n_ids;
    struct sv_image *images; /* with their pixels */
    int32_t n_images;
    atomic_llong *image_bytes; /* the server's, among which these pixels count */
    int32_t n_more;            /* tokens that the images take beyond these ids */
};
static inline int32_t sv_prompt_tokens(const struct sv_prompt *p)
{
    return p->n_ids + p->n_more;
}

/* The number of prompts in a list, otherwise 1; sets p->batched. */
int32_t sv_prompts_count(struct sv_params *p, enum sv_dialect_kind kind);
int sv_prompts_make(const struct sv_serve *s, struct sv_enc_scratch *scratch, struct sv_params *p,
                    enum sv_dialect_kind kind, struct sv_prompt **prompts, int32_t *n,
                    struct sv_api_err *e);
void sv_prompts_free(struct sv_prompt *prompts, int32_t n);

/* The messages of p through the chat template; p->images are those that they have. On the loop's
 * thread, which is known by its scratch, the template has limits that end it after some
 * milliseconds with e->too_slow. */
int sv_render_chat(const struct sv_serve *s, const struct sv_enc_scratch *scratch,
                   struct sv_params *p, struct sv_buf *text, struct sv_api_err *e);
/* harmony.c: the messages and tools for a template of gpt-oss; new lists, NULL: memory ran out. */
json_t *sv_harmony_messages(const json_t *messages);
json_t *sv_harmony_tools(const json_t *tools);
/* The text of a message's content part; NULL: it has none. */
const json_t *sv_part_text(const json_t *part);
/* Tokenizes and appends. flags: SV_ENC_... */
int sv_encode(const struct sv_serve *s, struct sv_enc_scratch *scratch, const char *text, size_t n,
              unsigned flags, struct sv_ids *ids, struct sv_api_err *e);
/* Whether a prompt fits the context, and whether a text of n_bytes could. name: the field. */
int sv_check_prompt(const struct sv_serve *s, const struct sv_prompt *pr, const char *name,
                    struct sv_api_err *e);
int sv_check_text(const struct sv_serve *s, size_t n_bytes, const char *name, struct sv_api_err *e);

/* fim.c: /infill, with input_prefix, prompt, input_suffix and input_extra of p; and a completion
 * with a suffix. The model's end-of-file tokens become stop ids. */
int sv_infill_prompt(const struct sv_serve *s, struct sv_enc_scratch *scratch, struct sv_params *p,
                     struct sv_prompt *out, struct sv_api_err *e);
int sv_suffix_prompt(const struct sv_serve *s, struct sv_enc_scratch *scratch, struct sv_params *p,
                     const json_t *prefix, const char *name, struct sv_prompt *out,
                     struct sv_api_err *e);

#endif
