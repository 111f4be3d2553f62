/*
 * http.h - HTTP/1.1 for the rest of src/serve: requests are delivered whole, answers are sent whole
 * or in pieces, and a client that disconnects is reported at once.
 *
 * Called by route.c, call.c and the endpoints, on the loop's thread. Must not: know JSON or
 * engines.
 */
#ifndef SV_SERVE_HTTP_H
#define SV_SERVE_HTTP_H

#include "base/base.h"

struct event_base;
struct ssl_ctx_st;
struct sv_http;
struct sv_http_body;
struct sv_http_req;

struct sv_http_options {
    const char *host, *unix_path; /* host as an address or a name */
    int32_t port;
    struct ssl_ctx_st *tls; /* NULL = plain */
    int64_t max_body_bytes; /* larger ones are refused: 413 */
    /* Bytes of bodies and large headers of all requests, from their first byte until they are
     * freed. At the limit requests of some KB are still read; larger ones are refused: 503. */
    int64_t max_kept_bytes;
    int32_t max_connections; /* more are refused: 503; 0 = by the number of descriptors */
    int32_t idle_seconds;
    /* The header is complete. If the request is answered here, its body is not read, and the
     * connection is closed after the answer. */
    void (*on_head)(void *user, struct sv_http_req *q);
    /* The body is complete, too. */
    void (*on_request)(void *user, struct sv_http_req *q);
    /* The request must be answered with this status: it is malformed or exceeds a limit, see
     * reason. on_head may not have been called; method and path may be "" then. */
    void (*on_refused)(void *user, struct sv_http_req *q, int status, const char *reason);
    void *user;
};
int sv_http_open(struct sv_http **h, struct event_base *base, const struct sv_http_options *o,
                 struct sv_err *err);
int sv_http_port(const struct sv_http *h);
bool sv_http_is_loopback(const struct sv_http *h); /* it listens on a loopback address */
void sv_http_set_tls(struct sv_http *h, struct ssl_ctx_st *tls); /* for connections from now on */
/* Called a few times a second: closes connections that timed out, accepts new ones again after a
 * lack of descriptors, and returns the memory of large bodies. */
void sv_http_tick(struct sv_http *h, int64_t now_us);
void sv_http_stop_listening(struct sv_http *h);
int32_t sv_http_n_open(const struct sv_http *h); /* requests whose answer is not sent yet */
void sv_http_close(struct sv_http *h);

void *sv_http_user(const struct sv_http_req *q); /* as in the options */
const char *sv_http_method(const struct sv_http_req *q);
const char *sv_http_path(const struct sv_http_req *q);  /* decoded, without the query */
const char *sv_http_query(const struct sv_http_req *q); /* as it was sent, "" without one */
const char *sv_http_header(const struct sv_http_req *q, const char *name); /* NULL when absent */
/* The host that the client addressed, with a port if given; NULL: none. */
const char *sv_http_host(const struct sv_http_req *q);
bool sv_http_has_body(const struct sv_http_req *q); /* from on_head on */
/* The body in one piece, not NUL-terminated; borrowed until the answer ends. */
const char *sv_http_body(const struct sv_http_req *q, size_t *n);
size_t sv_http_body_bytes(const struct sv_http_req *q);
/* The body, which may then be read and freed on any thread, also when q is gone. NULL without
 * memory. */
struct sv_http_body *sv_http_take_body(struct sv_http_req *q);
const char *sv_http_taken_text(const struct sv_http_body *body, size_t *n);
void sv_http_free_taken(struct sv_http_body *body); /* NULL is fine */

/* Before reply or begin. Line breaks in value are replaced. */
void sv_http_add_header(struct sv_http_req *q, const char *name, const char *value);
const char *sv_http_added_header(const struct sv_http_req *q, const char *name); /* NULL: none */
/* Sends the whole answer; q is invalid afterwards. type may be NULL with n = 0. */
void sv_http_reply(struct sv_http_req *q, int status, const char *type, const void *data, size_t n);
/* The same with a buffer, whose memory is taken if it is large. */
void sv_http_reply_buf(struct sv_http_req *q, int status, const char *type, struct sv_buf *b);
/* An answer in pieces, each flushed at once; write returns the number of bytes that are not sent
 * yet. End sends the last piece (which may be empty), and q is invalid afterwards. The memory of
 * large buffers is taken. */
void sv_http_begin(struct sv_http_req *q, int status, const char *type);
size_t sv_http_write(struct sv_http_req *q, const void *data, size_t n);
size_t sv_http_write_buf(struct sv_http_req *q, struct sv_buf *b);
void sv_http_end(struct sv_http_req *q, struct sv_buf *b);
size_t sv_http_unread(
    const struct sv_http_req *q);          /* bytes of an answer in pieces that are not sent yet */
void sv_http_abort(struct sv_http_req *q); /* drops the connection; q's on_gone is called */
/* Index of the API key that the request came with; -1 until it is set, and without keys. */
void sv_http_set_key(struct sv_http_req *q, int key);
int sv_http_key(const struct sv_http_req *q);
/* fn is called once if the client disconnects before the answer is complete; q is invalid
 * afterwards. */
void sv_http_on_gone(struct sv_http_req *q, void (*fn)(void *user), void *user);

/* Used by http.c alone. listen.c: non-blocking listening sockets. */
int sv_listen_unix(const char *path, int *fd, struct sv_err *err);
int sv_listen_tcp(const char *host, int32_t port, int *fd, int *bound_port, struct sv_err *err);
bool sv_listen_is_loopback(int fd);

#endif
