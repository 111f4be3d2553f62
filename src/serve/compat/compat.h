/*
 * compat.h - front header of what few clients use: llama-server's /completion, /infill, /props and
 * /slots, the tokenizer endpoints, and probes of vLLM.
 *
 * Included by route.c, check.c and the files of this folder.
 */
#ifndef SV_SERVE_COMPAT_H
#define SV_SERVE_COMPAT_H

#include "serve/core/call.h"

extern const struct sv_dialect sv_dialect_llama, sv_dialect_infill;

void sv_post_tokenize(struct sv_serve *s, struct sv_http_req *q);
void sv_post_detokenize(struct sv_serve *s, struct sv_http_req *q);
void sv_post_apply_template(struct sv_serve *s, struct sv_http_req *q);
void sv_get_tokenizer_info(struct sv_serve *s, struct sv_http_req *q);
void sv_get_props(struct sv_serve *s, struct sv_http_req *q);
void sv_get_slots(struct sv_serve *s, struct sv_http_req *q);
void sv_get_version(struct sv_serve *s, struct sv_http_req *q);
void sv_get_load(struct sv_serve *s, struct sv_http_req *q);

/* indent.c: llama-server's limits of time and indentation, as a dialect's is_over. */
bool sv_llama_is_over(struct sv_call *c, struct sv_choice *ch, struct sv_out *o);
/* llama.c: the members of llama-server's object of settings. */
void sv_write_llama_params(struct sv_buf *b, const struct sv_params *p, uint64_t seed);

#endif
