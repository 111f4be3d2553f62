/*
 * write.h - pieces of answers in JSON: values, server-sent events, usage (write.c), log
 * probabilities (logprobs.c), speculation (spec.c).
 *
 * Called by the dialects, on the loop's thread or on the one that writes long answers. Must not:
 * allocate but in the buffer that is written to.
 */
#ifndef SV_SERVE_CORE_WRITE_H
#define SV_SERVE_CORE_WRITE_H

#include "serve/core/call.h"

void sv_json_number(struct sv_buf *b, int64_t v);
void sv_json_float(struct sv_buf *b, double v); /* never inf or nan */
void sv_json_ids(struct sv_buf *b, const int32_t *ids, int32_t n);
void sv_json_tree(struct sv_buf *b, const json_t *v);                      /* without spaces */
void sv_json_string(struct sv_buf *b, const char *key, const char *value); /* "key":"value" */
/* A token's bytes as text; invalid UTF-8 becomes U+FFFD. */
void sv_json_token(struct sv_buf *b, const struct sv_tokenizer *tok, int32_t id);
const char *sv_finish_json(enum sv_finish_reason f); /* with quotes */

/* A server-sent event around JSON: begin, append, end. */
void sv_sse_begin(struct sv_buf *b);
void sv_sse_begin_named(struct sv_buf *b, const char *event);
void sv_sse_end(struct sv_buf *b);
void sv_sse_done(struct sv_buf *b);
#define SV_SSE_PING ": ping\n\n"

int64_t sv_n_shown_tokens(const struct sv_choice *ch); /* of the answer; none with max_tokens 0 */
/* "usage":{...} of the whole call, or of one choice. */
void sv_write_usage(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *one);
/* Usage in a chunk, after its choices: the usage so far, null if it comes at the end, or nothing,
 * as the request asks. */
void sv_write_chunk_usage(struct sv_buf *b, const struct sv_call *c);
/* vLLM's stop_reason: a stop string, one of the request's stop ids, or null; SGLang's matched_stop,
 * which names any id that ends an answer. */
void sv_write_stop_reason(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch);
/* The stop string or expression of this index, as the engine reports it; NULL: there is none. */
const char *sv_stop_by_index(const struct sv_params *p, int32_t index);
/* The stop string or expression that ended a choice; NULL: neither did. */
const char *sv_stop_text(const struct sv_call *c, const struct sv_choice *ch);

/* A token in log probabilities: its text, with its id (llama-server), or vLLM's "token_id:17". */
enum sv_token_shape { SV_TOKEN_TEXT, SV_TOKEN_TEXT_AND_ID, SV_TOKEN_ID };
/* At most n_top alternatives each. */
void sv_logprobs_chat(struct sv_buf *b, const struct sv_tokenizer *tok, const struct sv_out *o,
                      int32_t n_top, enum sv_token_shape shape);
void sv_logprobs_legacy(struct sv_choice *ch, const struct sv_tokenizer *tok, int32_t id,
                        const struct sv_logprob *lp, bool first_of_prompt);
void sv_logprobs_legacy_write(struct sv_buf *b, const struct sv_choice *ch);
void sv_logprobs_prompt(struct sv_choice *ch, const struct sv_tokenizer *tok,
                        const struct sv_out *o);

/* Acceptance of one choice. */
struct sv_accept {
    int64_t n_steps, n_plain, n_tokens, n_accepted, n_drafted; /* n_plain: steps without drafts */
    int64_t length[66];                                        /* steps by accepted drafts */
    int32_t max;
};
void sv_accept_of(const struct sv_choice *ch, struct sv_accept *a);
void sv_write_spec_metrics(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch);
void sv_write_timings(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch);
/* Which bytes of the text came from accepted drafts: taken from a report, written with a chunk. */
void sv_take_draft_flags(struct sv_choice *ch, const struct sv_out *o);
void sv_write_draft_flags(struct sv_buf *b, struct sv_choice *ch, size_t n_text);

#endif
