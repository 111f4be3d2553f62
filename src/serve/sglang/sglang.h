/*
 * sglang.h - front header of SGLang's dialect: /generate, and endpoints about the server.
 *
 * Included by route.c, serve.c and check.c.
 */
#ifndef SV_SERVE_SGLANG_H
#define SV_SERVE_SGLANG_H

#include "serve/core/call.h"

extern const struct sv_dialect sv_dialect_generate;

void sv_get_server_info(struct sv_serve *s, struct sv_http_req *q);
void sv_get_model_info(struct sv_serve *s, struct sv_http_req *q);
void sv_post_abort(struct sv_serve *s, struct sv_http_req *q);
/* Asks the worker to flush; the answer is sent by sv_flushed, once for each flush. */
void sv_flush_prefixes(struct sv_serve *s, struct sv_http_req *q);
void sv_flushed(struct sv_serve *s);

#endif
