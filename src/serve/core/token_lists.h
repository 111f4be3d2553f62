/*
 * token_lists.h - token ids, words and expressions that a request lists: what may not come, what
 * alone may come, whose log probabilities are reported, what ends the answer.
 *
 * Called by call.c when a body is read, on any thread, and when a call is freed.
 */
#ifndef SV_SERVE_CORE_TOKEN_LISTS_H
#define SV_SERVE_CORE_TOKEN_LISTS_H

#include "serve/core/call.h"

/* bad_words and allowed_token_ids, into p's request. Their ids are in *token_lists, which the
 * caller frees, also after an error. */
int sv_token_lists_read(const struct sv_serve *s, struct sv_enc_scratch *scratch,
                        struct sv_params *p, int32_t **token_lists, struct sv_api_err *e);
/* logprob_token_ids: one list or one for each prompt, in *ids, which the caller frees, also after
 * an error; set puts a prompt's list into its request. */
int sv_logprob_ids_read(const struct sv_serve *s, const struct sv_params *p, int32_t n_prompts,
                        int32_t **ids, struct sv_api_err *e);
void sv_logprob_ids_set(const int32_t *ids, int32_t prompt, struct sv_request *r);
/* stop_regex of all prompts or of each, compiled into their requests, which takes time: on the
 * loop's thread it ends with e->too_slow instead. */
int sv_stop_regex_open(struct sv_call *c, bool on_loop, struct sv_api_err *e);
void sv_stop_regex_close(struct sv_call *c);

#endif
