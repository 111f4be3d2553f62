/*
 * http.h - HTTP/1.1 as the rest of src/serve sees it: requests come in whole, answers go out whole or piece by
 * piece, and a client that leaves is told at once. The only file that knows libevent's HTTP is http.c.
 *
 * Called by route.c, call.c and the endpoints, on the loop's thread. Must not: know JSON or engines.
 */
#ifndef SV_SERVE_HTTP_H
#define SV_SERVE_HTTP_H

#include "base/base.h"

struct event_base;
struct ssl_ctx_st;
struct sv_http;
struct sv_http_req;

struct sv_http_options {
    const char *host, *unix_path; /* host as an address or a name */
    int32_t port;
    struct ssl_ctx_st *tls;       /* NULL = plain */
    int64_t max_body_bytes;       /* larger ones never reach on_request */
    int32_t idle_seconds;
    void (*on_request)(void *user, struct sv_http_req *q);
    /* JSON to answer what is no HTTP or far too large; such requests never reach on_request. */
    void (*on_refused)(void *user, int status, struct sv_buf *body);
    void *user;
};
int sv_http_open(struct sv_http **h, struct event_base *base, const struct sv_http_options *o,
                 struct sv_err *err);
int sv_http_port(const struct sv_http *h);
void sv_http_stop_listening(struct sv_http *h);
int32_t sv_http_n_open(const struct sv_http *h); /* requests whose answer is not out yet */
void sv_http_close(struct sv_http *h);

const char *sv_http_method(const struct sv_http_req *q);
const char *sv_http_path(const struct sv_http_req *q); /* decoded, without the query */
const char *sv_http_peer(const struct sv_http_req *q);
const char *sv_http_header(const struct sv_http_req *q, const char *name); /* NULL when absent */
/* The body in one piece, not NUL-terminated; borrowed until the answer ends. */
const char *sv_http_body(struct sv_http_req *q, size_t *n);

/* Before reply or begin. Line breaks in value are replaced. */
void sv_http_add_header(struct sv_http_req *q, const char *name, const char *value);
/* The whole answer; q is gone afterwards. type may be NULL with n = 0. */
void sv_http_reply(struct sv_http_req *q, int status, const char *type, const void *data, size_t n);
/* An answer in pieces, each flushed at once. After end q is gone. */
void sv_http_begin(struct sv_http_req *q, int status, const char *type);
void sv_http_write(struct sv_http_req *q, const void *data, size_t n);
void sv_http_end(struct sv_http_req *q);
size_t sv_http_backlog(const struct sv_http_req *q); /* bytes the client has not taken yet */
void sv_http_abort(struct sv_http_req *q); /* drops the connection; q's on_gone is called */
/* Called once if the client leaves before the answer has ended; q is gone afterwards. */
void sv_http_on_gone(struct sv_http_req *q, void (*fn)(void *user), void *user);

#endif
