/*
 * error.h - errors of the API, and answers that are ready to be sent.
 *
 * Called by everything that refuses a request. Must not: show what a client did not send or may not
 * know.
 */
#ifndef SV_SERVE_CORE_ERROR_H
#define SV_SERVE_CORE_ERROR_H

#include "base/base.h"

struct sv_fetch;
struct sv_http_req;

struct sv_api_err {
    int status;       /* HTTP */
    const char *type; /* "invalid_request_error", ... */
    const char *code; /* NULL = null */
    char param[96];   /* the field, "" = null */
    char msg[480];
    bool too_slow; /* not an error: the body takes too long for the loop's thread */
    /* Addresses that the body names. While they wait: not an error, they are to be fetched, and
     * then the body is to be read once more. */
    struct sv_fetch *fetch;
};
/* These return -1. bad: 400 for a field (NULL = the request as a whole). */
int sv_api_bad(struct sv_api_err *e, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* 400 for a field or value that is recognised but not implemented. */
int sv_api_unsupported(struct sv_api_err *e, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int sv_api_fail(struct sv_api_err *e, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int sv_api_no_memory(struct sv_api_err *e);
/* 400 for an unknown field. prefix: the name of its object and a dot, or "". */
int sv_api_unknown(struct sv_api_err *e, const char *prefix, const char *name);

/* {"error": {...}} in OpenAI's shape, without a line break. */
void sv_api_err_json(struct sv_buf *b, const struct sv_api_err *e);
/* Answers with an error, in the shape of the API that the request's path belongs to. */
void sv_api_reply(struct sv_http_req *q, const struct sv_api_err *e);
/* sv_api_reply for a request that never reached the engine: it is counted and logged. */
void sv_api_refuse(struct sv_http_req *q, const struct sv_api_err *e);
/* Answers with b, which it frees; with an error of status 500 if b ran out of memory. */
void sv_api_answer(struct sv_http_req *q, int status, const char *type, struct sv_buf *b);

#endif
