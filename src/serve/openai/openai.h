/*
 * openai.h - front header of OpenAI's dialects: chats, completions, the Responses API.
 *
 * Included by route.c, serve.c and check.c.
 */
#ifndef SV_SERVE_OPENAI_H
#define SV_SERVE_OPENAI_H

#include "serve/core/call.h"

struct sv_kept;

extern const struct sv_dialect sv_dialect_chat, sv_dialect_completions, sv_dialect_responses;

void sv_openai_get_models(struct sv_serve *s, struct sv_http_req *q);
/* /v1/responses/{id} (responses_stored.c) */
void sv_get_response(struct sv_serve *s, struct sv_http_req *q);
void sv_post_response(struct sv_serve *s, struct sv_http_req *q);
void sv_delete_response(struct sv_serve *s, struct sv_http_req *q);

/* The store of answers (stored.c): at most max answers and max_bytes. The oldest are dropped first;
 * a conversation of more bytes is not stored. A store that is NULL stores nothing. */
int sv_stored_open(struct sv_stored **st, int32_t max, int64_t max_bytes, struct sv_err *err);
void sv_stored_close(struct sv_stored *st);
void sv_stored_write_metrics(struct sv_buf *b, struct sv_stored *st);

/* Turns p->input, and the conversation that it continues, into the messages of a chat
 * (responses_items.c). items: collects the input's items as lines with ids of this name; NULL: they
 * are not stored. */
int sv_responses_messages(const struct sv_serve *s, int key, struct sv_params *p,
                          const struct sv_kept *previous, const char *name, struct sv_buf *items,
                          struct sv_api_err *e);

#endif
