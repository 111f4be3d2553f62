/*
 * http.h - HTTP/1.1 as the rest of src/serve sees it: requests come in whole, answers go out whole
 * or piece by piece, and that a client has left is reported at once.
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
    /* Of bodies and large headers of all requests, from their first byte until they are freed. A
     * request of some KB is read even when that much is kept; others are refused: 503. */
    int64_t max_kept_bytes;
    int32_t max_connections; /* more are refused: 503; 0 = by the number of descriptors */
    int32_t idle_seconds;
    /* The header is complete. A request that is answered here has its body left unread, and the
     * connection ends with the answer. */
    void (*on_head)(void *user, struct sv_http_req *q);
    /* The body is complete, too. */
    void (*on_request)(void *user, struct sv_http_req *q);
    /* To be answered with this status at once: not HTTP, or beyond a limit. reason says which. May
     * come without on_head, and method and path may be "" then. */
    void (*on_refused)(void *user, struct sv_http_req *q, int status, const char *reason);
    void *user;
};
int sv_http_open(struct sv_http **h, struct event_base *base, const struct sv_http_options *o,
                 struct sv_err *err);
int sv_http_port(const struct sv_http *h);
bool sv_http_is_loopback(
    const struct sv_http *h); /* it is reached from this machine alone, by TCP */
void sv_http_set_tls(struct sv_http *h, struct ssl_ctx_st *tls); /* for connections from now on */
/* A few times a second: ends connections whose time is over, takes new ones again after there was
 * no descriptor for one, gives back memory of large bodies. */
void sv_http_tick(struct sv_http *h, int64_t now_us);
void sv_http_stop_listening(struct sv_http *h);
int32_t sv_http_n_open(const struct sv_http *h); /* requests whose answer is not out yet */
void sv_http_close(struct sv_http *h);

void *sv_http_user(const struct sv_http_req *q); /* as in the options */
const char *sv_http_method(const struct sv_http_req *q);
const char *sv_http_path(const struct sv_http_req *q);  /* decoded, without the query */
const char *sv_http_query(const struct sv_http_req *q); /* as it was sent, "" without one */
const char *sv_http_header(const struct sv_http_req *q, const char *name); /* NULL when absent */
/* The server that the client means, with a port if it names one; NULL when it names none. */
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
const char *sv_http_added_header(const struct sv_http_req *q, const char *name); /* NULL: was not */
/* The whole answer; q is gone afterwards. type may be NULL with n = 0. */
void sv_http_reply(struct sv_http_req *q, int status, const char *type, const void *data, size_t n);
/* The same, of a buffer, which loses its memory if that is large. */
void sv_http_reply_buf(struct sv_http_req *q, int status, const char *type, struct sv_buf *b);
/* An answer in pieces, each flushed at once; write returns how many bytes the client has not taken
 * yet. End takes the last piece (which may be empty), and q is gone afterwards. Buffers lose their
 * memory if it is large. */
void sv_http_begin(struct sv_http_req *q, int status, const char *type);
size_t sv_http_write(struct sv_http_req *q, const void *data, size_t n);
size_t sv_http_write_buf(struct sv_http_req *q, struct sv_buf *b);
void sv_http_end(struct sv_http_req *q, struct sv_buf *b);
size_t sv_http_unread(
    const struct sv_http_req *q); /* bytes of an answer in pieces that the client has not taken */
void sv_http_abort(struct sv_http_req *q); /* drops the connection; q's on_gone is called */
/* Index of the API key that the request came with; -1 until it is set, and without keys. */
void sv_http_set_key(struct sv_http_req *q, int key);
int sv_http_key(const struct sv_http_req *q);
/* Called once if the client leaves before the answer has ended; q is gone afterwards. */
void sv_http_on_gone(struct sv_http_req *q, void (*fn)(void *user), void *user);

/* Below, http.c's own. listen.c: sockets that listen, not blocking. */
int sv_listen_unix(const char *path, int *fd, struct sv_err *err);
int sv_listen_tcp(const char *host, int32_t port, int *fd, int *bound_port, struct sv_err *err);
bool sv_listen_is_loopback(int fd);

#endif
