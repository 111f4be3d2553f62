/*
 * responses.h - servers, requests and streams of the Responses API.
 *
 * Called by tests/serve/test_responses.c and test_kept.c. Must not: retry.
 */
#ifndef SV_TEST_SERVE_RESPONSES_H
#define SV_TEST_SERVE_RESPONSES_H

#include "serve/hub.h"

#define AT "/v1/responses"

/* A server whose answer is what its template makes; signs: what its model's own has of marks. On
 * and on where a step takes time. echo: the last message. */
void rsp_open(struct hub *r, const char *signs, const char *template, int32_t burst);
void rsp_echo(struct hub *r, const char *signs, int32_t burst);
/* A body whose input is this text, or these items; until the next one is made. */
const char *rsp_ask(const char *input, const char *more);
const char *rsp_items(const char *list, const char *more);
/* The answer to a text. Of a server that shows the messages, what the template was given. */
json_t *rsp_answer(struct hub *r, const char *text, const char *more);
json_t *rsp_shown(struct hub *r, json_t *response);
/* The path of an answer, until the next one is made. A request without a body. */
const char *rsp_path(const char *id, const char *rest);
json_t *rsp_send_empty(struct hub *r, const char *method, const char *path, int status);
bool rsp_is(json_t *event, const char *type);
/* What a stream comes to: its last response, once its events are found to be in order and to say
 * the same as that. */
json_t *rsp_follow(json_t *events);
/* Of a socket: the id of a stream that has begun, and all that is still to come. */
void rsp_id(int fd, char id[64]);
void rsp_rest(int fd, struct sv_buf *b);

#endif
