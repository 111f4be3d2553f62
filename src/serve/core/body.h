/*
 * body.h - request bodies, and endpoints that are answered from their body without the engine.
 *
 * Called by call.c and by endpoints, on the loop's thread.
 */
#ifndef SV_SERVE_CORE_BODY_H
#define SV_SERVE_CORE_BODY_H

#include "serve/core/error.h"

struct sv_enc_scratch;
struct sv_http_body;
struct sv_job;
struct sv_serve;

/* Fails for a Content-Encoding that is not supported. */
int sv_check_coding(const struct sv_http_req *q, struct sv_api_err *e);
/* Hands the request's body, which becomes *raw, and a job that reads it to the thread for long
 * bodies. */
int sv_body_later(struct sv_serve *s, struct sv_http_req *q, struct sv_job *job,
                  struct sv_http_body **raw, struct sv_api_err *e);
/* The error where too many jobs wait. */
int sv_body_refused(struct sv_api_err *e);
/* The JSON object in a body; NULL with an error. */
json_t *sv_body_object(const char *text, size_t n, struct sv_api_err *e);

/* Writes the JSON answer to a body, on any thread. ignored: as in sv_params_read. */
typedef int sv_answer_fn(const struct sv_serve *s, struct sv_enc_scratch *scratch, json_t *body,
                         struct sv_buf *ignored, struct sv_buf *b, struct sv_api_err *e);
/* Reads the body and answers with what `answer` writes; a long body on the other thread. */
void sv_ask(struct sv_serve *s, struct sv_http_req *q, sv_answer_fn *answer);

#endif
