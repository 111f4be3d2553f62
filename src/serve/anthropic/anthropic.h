/*
 * anthropic.h - front header of Anthropic's dialect: /v1/messages, its errors and its models.
 *
 * Included by route.c, check.c and the files of this folder.
 */
#ifndef SV_SERVE_ANTHROPIC_H
#define SV_SERVE_ANTHROPIC_H

#include "serve/core/call.h"

extern const struct sv_dialect sv_dialect_messages;

/* Whether the client speaks this API: by the path, or by its header where APIs share a path. */
bool sv_anthropic_is_client(const struct sv_http_req *q);
void sv_messages_err_json(struct sv_buf *b, const struct sv_api_err *e, const char *request_id);
/* Reads the fields that have another shape than a chat's, after all others. */
int sv_messages_read(struct sv_params *p, json_t *body, struct sv_api_err *e);
void sv_post_count_tokens(struct sv_serve *s, struct sv_http_req *q);
void sv_anthropic_get_models(struct sv_serve *s, struct sv_http_req *q);

#endif
