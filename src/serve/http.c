/*
 * http.c - HTTP on libevent's evhttp: listening, requests, answers, clients that leave.
 *
 * Called through http.h on the loop's thread. What evhttp does not do by itself: it stops reading
 * while an answer is being made, so that a client leaving then goes unnoticed (reading is switched
 * on again, without evhttp's read callback, which would end the process on pipelined bytes); its
 * read time-out would cut long answers; small writes wait for Nagle; its request objects change
 * owner when a connection dies; its own error pages are HTML; it sends a body to HEAD; it believes
 * the first of two lengths, and names with a space behind them; it takes a body of HEAD for
 * a request, and anything for a target; it asks for bodies that are too large (expect.c); and it
 * refuses extensions of chunks (chunks.c). Must not: know what is served.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/http.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_HEADER_BYTES 65536
/* Of a pipelined request, while the answer before it is being made. */
#define MAX_AHEAD_BYTES 65536
#define MAX_FRAME_BYTES 16384 /* of a chunk that is written without evhttp ... */
#define FRAME_HEAD 8          /* ... and of its length before it */
#define MIN_LENT_BYTES 65536  /* pieces of this size are not copied on their way out */
/* Between the limit and this, a body is read and refused in the API's own error shape. */
#define REFUSED_BODY_SLACK ((int64_t)1 << 20)

struct sv_http {
    struct event_base *base;
    struct evhttp *ev;
    struct evhttp_bound_socket *bound;
    struct sv_http_options o;
    struct evbuffer *piece; /* empty between calls */
    char frame[FRAME_HEAD + MAX_FRAME_BYTES + 2];
    char *unix_path; /* to be removed, if it is still this one */
    dev_t unix_dev;
    ino_t unix_inode;
    int port;
    int32_t n_open;
    int64_t full_us; /* when it was last said that no descriptor is free */
};

struct sv_http_req {
    struct sv_http *http;
    struct evhttp_request *ev;
    struct evhttp_connection *con; /* NULL once it is gone; these three are its own */
    struct bufferevent *bev;
    struct evbuffer *out;
    int fd;
    char *path;
    bool ended, chunked, head_only;
    /* something may still be in out, which is a look into memory that nobody has in a cache */
    bool waits;
    int64_t refused_bytes;
    void (*on_gone)(void *user);
    void *user;
};

/* ---------------------------------------------------------------- life of a request */

static void req_free(struct sv_http_req *q)
{
    q->http->n_open--;
    sv_free(q->path);
    sv_free(q);
}

static void set_timeouts(struct bufferevent *bev, int32_t read_s, int32_t write_s)
{
    struct timeval r = {read_s, 0}, w = {write_s, 0};
    bufferevent_set_timeouts(bev, read_s ? &r : NULL, &w);
}

/* The answer is out and the connection goes on to its next request. */
static void on_complete(struct evhttp_request *ev, void *arg)
{
    struct sv_http_req *q = arg;
    struct bufferevent *bev = q->bev;

    (void)ev;
    bufferevent_setwatermark(bev, EV_READ, 0, 0);
    set_timeouts(bev, q->http->o.idle_seconds, q->http->o.idle_seconds);
    sv_expect_watch(bufferevent_get_input(bev), &q->http->o.max_body_bytes);
    evhttp_connection_set_closecb(q->con, NULL, NULL);
    req_free(q);
}

static void on_close(struct evhttp_connection *con, void *arg)
{
    struct sv_http_req *q = arg;

    (void)con;
    if (!q->ended) {
        /* Detached from its connection, the evhttp request is ours to free; at shut-down it is
         * not. */
        bool ours = evhttp_request_get_connection(q->ev) == NULL;
        if (q->on_gone)
            q->on_gone(q->user);
        if (ours)
            evhttp_send_reply_end(q->ev);
    }
    req_free(q);
}

/* Sees the client leave while the answer is being made. */
static void watch_connection(struct sv_http_req *q)
{
    struct bufferevent *bev = q->bev;
    bufferevent_data_cb on_read, on_write;
    bufferevent_event_cb on_event;
    void *arg;
    int one = 1;

    setsockopt(q->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    bufferevent_getcb(bev, &on_read, &on_write, &on_event, &arg);
    bufferevent_setcb(bev, NULL, on_write, on_event, arg);
    bufferevent_setwatermark(bev, EV_READ, 0, MAX_AHEAD_BYTES);
    set_timeouts(bev, 0, q->http->o.idle_seconds);
    bufferevent_enable(bev, EV_READ);
    evhttp_connection_set_closecb(q->con, on_close, q);
    evhttp_request_set_on_complete_cb(q->ev, on_complete, q);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* Slashes in front count as one and one at the end as none: a base URL that ends with a slash makes
 * "//v1/models" of a path, and a URL's grammar takes that for a host. %XX becomes its byte; an
 * encoded NUL stays as it is written, so that nothing is cut. */
static char *take_path(struct evhttp_request *ev)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(ev);
    const char *raw = evhttp_request_get_uri(ev), *path = uri ? evhttp_uri_get_path(uri) : NULL;

    if (raw && strncmp(raw, "//", 2) == 0)
        path = raw;
    if (!path || *path != '/')
        path = "/";
    path += strspn(path, "/") - 1;
    size_t n = strcspn(path, "?#");
    n -= n > 1 && path[n - 1] == '/';
    char *out = sv_alloc(n + 1), *to = out;
    if (out) {
        memcpy(out, path, n);
        out[n] = 0;
    }
    for (const char *at = out; out && *at; at++) {
        int hi = *at == '%' ? hex_digit(at[1]) : -1, lo = hi < 0 ? -1 : hex_digit(at[2]);
        bool escaped = lo >= 0 && (hi || lo);
        *to++ = escaped ? (char)(hi * 16 + lo) : *at;
        at += escaped ? 2 : 0;
    }
    if (out)
        *to = 0;
    return out;
}

static bool is_name(const char *key)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    size_t n = 0;

    while ((key[n] >= '0' && key[n] <= '9') || ((key[n] | 32) >= 'a' && (key[n] | 32) <= 'z') ||
           (key[n] && strchr(others, key[n])))
        n++;
    return n && !key[n];
}

static bool is_plain(const char *value)
{
    const unsigned char *p = (const unsigned char *)value;

    while ((*p >= ' ' && *p != 0x7f) || *p == '\t')
        p++;
    return !*p;
}

/* A path, a whole address, or "*" of the server itself. evhttp takes what stands between the first
 * blank of the line and the last. */
static bool is_target(const struct evhttp_request *ev)
{
    const char *text = evhttp_request_get_uri(ev);
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(ev);

    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p <= ' ' || *p == 0x7f)
            return false;
    return *text == '/' || (uri && evhttp_uri_get_scheme(uri)) ||
           (strcmp(text, "*") == 0 && evhttp_request_get_command(ev) == EVHTTP_REQ_OPTIONS);
}

/* Whatever the body is, somebody on the way may see another one: two lengths that differ, or one
 * that is no number; a name with a space behind it (which evhttp takes for another name), or a line
 * break of somebody's in a value; a coding that nobody here undoes, or beside a length. */
static bool is_ambiguous(const struct evhttp_request *ev, const struct evkeyvalq *headers)
{
    const char *first = evhttp_find_header(headers, "Content-Length");
    const struct evkeyval *h;
    int n_codings = 0;

    if (first && (!*first || first[strspn(first, "0123456789")]))
        return true;
    for (h = headers->tqh_first; h; h = h->next.tqe_next) {
        if (!is_name(h->key) || !is_plain(h->value))
            return true;
        if (first && evutil_ascii_strcasecmp(h->key, "Content-Length") == 0 &&
            strcmp(h->value, first) != 0)
            return true;
        if (evutil_ascii_strcasecmp(h->key, "Transfer-Encoding") != 0)
            continue;
        if (n_codings++ || first || (ev->major == 1 && ev->minor == 0) ||
            evutil_ascii_strncasecmp(h->value, "chunked", 7) != 0 ||
            h->value[7 + strspn(h->value + 7, " \t")])
            return true;
    }
    return false;
}

/* evhttp takes a body of HEAD for the next request. What is not here yet ends with the connection.
 */
static void drop_body(struct evhttp_request *ev, const struct evkeyvalq *headers)
{
    const char *length = evhttp_find_header(headers, "Content-Length");
    struct evhttp_connection *con = evhttp_request_get_connection(ev);
    struct evbuffer *in = bufferevent_get_input(evhttp_connection_get_bufferevent(con));
    unsigned long long n = length ? strtoull(length, NULL, 10) : 0;

    if (evhttp_request_get_command(ev) != EVHTTP_REQ_HEAD)
        return;
    if (n <= evbuffer_get_length(in) && !evhttp_find_header(headers, "Transfer-Encoding"))
        evbuffer_drain(in, n);
    else
        evhttp_add_header(evhttp_request_get_output_headers(ev), "Connection", "close");
}

static void take_request(struct evhttp_request *ev, void *arg)
{
    struct sv_http *h = arg;
    struct evkeyvalq *headers = evhttp_request_get_input_headers(ev);
    const char *refused = evhttp_find_header(headers, sv_expect_header);
    bool ambiguous = !is_target(ev) || is_ambiguous(ev, headers);
    struct sv_http_req *q = ambiguous ? NULL : sv_calloc(1, sizeof *q);

    if (q)
        q->path = take_path(ev);
    if (!q || !q->path) {
        evhttp_add_header(evhttp_request_get_output_headers(ev), "Connection", "close");
        evhttp_send_error(ev, ambiguous ? HTTP_BADREQUEST : HTTP_SERVUNAVAIL, NULL);
        sv_free(q);
        return;
    }
    drop_body(ev, headers);
    q->http = h;
    q->ev = ev;
    q->con = evhttp_request_get_connection(ev);
    q->bev = evhttp_connection_get_bufferevent(q->con);
    q->out = bufferevent_get_output(q->bev);
    q->fd = bufferevent_getfd(q->bev);
    q->head_only = evhttp_request_get_command(ev) == EVHTTP_REQ_HEAD;
    q->refused_bytes = refused ? atoll(refused) : 0;
    h->n_open++;
    watch_connection(q);
    h->o.on_request(h->o.user, q);
}

/* ---------------------------------------------------------------- reading */

void *sv_http_user(const struct sv_http_req *q)
{
    return q->http->o.user;
}

const char *sv_http_method(const struct sv_http_req *q)
{
    switch (evhttp_request_get_command(q->ev)) {
    case EVHTTP_REQ_GET:
        return "GET";
    case EVHTTP_REQ_HEAD:
        return "HEAD";
    case EVHTTP_REQ_POST:
        return "POST";
    case EVHTTP_REQ_PUT:
        return "PUT";
    case EVHTTP_REQ_DELETE:
        return "DELETE";
    case EVHTTP_REQ_OPTIONS:
        return "OPTIONS";
    case EVHTTP_REQ_PATCH:
        return "PATCH";
    default:
        return "other";
    }
}

const char *sv_http_path(const struct sv_http_req *q)
{
    return q->path;
}

const char *sv_http_query(const struct sv_http_req *q)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(q->ev);
    const char *query = uri ? evhttp_uri_get_query(uri) : NULL;
    return query ? query : "";
}

const char *sv_http_header(const struct sv_http_req *q, const char *name)
{
    return evhttp_find_header(evhttp_request_get_input_headers(q->ev), name);
}

const char *sv_http_taken_text(struct evbuffer *body, size_t *n)
{
    *n = evbuffer_get_length(body);
    const char *data = *n ? (const char *)evbuffer_pullup(body, -1) : "";
    if (!data)
        *n = 0;
    return data ? data : "";
}

const char *sv_http_body(struct sv_http_req *q, size_t *n)
{
    return sv_http_taken_text(evhttp_request_get_input_buffer(q->ev), n);
}

size_t sv_http_body_bytes(const struct sv_http_req *q)
{
    return evbuffer_get_length(evhttp_request_get_input_buffer(q->ev));
}

/* Pieces move over as they are. */
struct evbuffer *sv_http_take_body(struct sv_http_req *q)
{
    struct evbuffer *body = evbuffer_new();

    if (body && evbuffer_add_buffer(body, evhttp_request_get_input_buffer(q->ev)) == 0)
        return body;
    sv_http_free_taken(body);
    return NULL;
}

void sv_http_free_taken(struct evbuffer *body)
{
    if (body)
        evbuffer_free(body);
}

int64_t sv_http_refused_bytes(const struct sv_http_req *q)
{
    return q->refused_bytes;
}

/* ---------------------------------------------------------------- answering */

void sv_http_add_header(struct sv_http_req *q, const char *name, const char *value)
{
    char line[512];
    size_t n = 0;

    for (; value[n] && n < sizeof line - 1; n++)
        line[n] = (unsigned char)value[n] < 0x20 || value[n] == 0x7f ? ' ' : value[n];
    line[n] = 0;
    evhttp_add_header(evhttp_request_get_output_headers(q->ev), name, line);
}

const char *sv_http_added_header(const struct sv_http_req *q, const char *name)
{
    return evhttp_find_header(evhttp_request_get_output_headers(q->ev), name);
}

static const char *phrase(int status)
{
    static const struct {
        int status;
        const char *text;
    } list[] = {{200, "OK"},
                {204, "No Content"},
                {304, "Not Modified"},
                {400, "Bad Request"},
                {401, "Unauthorized"},
                {404, "Not Found"},
                {405, "Method Not Allowed"},
                {417, "Expectation Failed"},
                {413, "Payload Too Large"},
                {415, "Unsupported Media Type"},
                {422, "Unprocessable Entity"},
                {429, "Too Many Requests"},
                {500, "Internal Server Error"},
                {501, "Not Implemented"},
                {503, "Service Unavailable"}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].status == status)
            return list[i].text;
    return "Status";
}

static void free_lent(const void *data, size_t n, void *arg)
{
    (void)n, (void)arg;
    sv_free((void *)(uintptr_t)data);
}

/* A large piece goes out from where it is, and b loses it. */
static int add_piece(struct evbuffer *to, struct sv_buf *b)
{
    if (b->len < MIN_LENT_BYTES)
        return evbuffer_add(to, b->data, b->len);
    int rc = evbuffer_add_reference(to, b->data, b->len, free_lent, NULL);
    if (!rc)
        sv_buf_init(b);
    return rc;
}

/* body loses what it holds. */
static void reply(struct sv_http_req *q, int status, const char *type, struct evbuffer *body)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(q->ev);
    char length[24];

    q->ended = true;
    if (type)
        evhttp_add_header(headers, "Content-Type", type);
    if (q->refused_bytes)
        evhttp_add_header(headers, "Connection", "close"); /* the client may send it all the same */
    if (q->head_only && type) {
        snprintf(length, sizeof length, "%zu", evbuffer_get_length(body));
        evhttp_add_header(headers, "Content-Length", length);
        evbuffer_drain(body, evbuffer_get_length(body));
    }
    evhttp_send_reply(q->ev, status, phrase(status), body);
    evbuffer_drain(body, evbuffer_get_length(body));
}

void sv_http_reply(struct sv_http_req *q, int status, const char *type, const void *data, size_t n)
{
    struct evbuffer *body = q->http->piece;

    evbuffer_add(body, data, n);
    reply(q, status, type, body);
}

void sv_http_reply_buf(struct sv_http_req *q, int status, const char *type, struct sv_buf *b)
{
    struct evbuffer *body = q->http->piece;

    add_piece(body, b);
    reply(q, status, type, body);
}

void sv_http_begin(struct sv_http_req *q, int status, const char *type)
{
    /* Without chunks a body ends with the connection; evhttp would keep that and promise a body of
     * no length. */
    if (q->ev->minor == 0)
        evhttp_remove_header(evhttp_request_get_input_headers(q->ev), "Connection");
    evhttp_add_header(evhttp_request_get_output_headers(q->ev), "Content-Type", type);
    evhttp_send_reply_start(q->ev, status, phrase(status));
    q->waits = true;
    q->chunked = evhttp_find_header(evhttp_request_get_output_headers(q->ev), "Transfer-Encoding");
}

/* With nothing waiting to go out, a chunk goes to the socket at once, which saves arming and
 * disarming its write event; what does not fit waits in the buffer as always. Put together in one
 * place, which is in the cache, it costs the kernel less than in three. False: nothing was done. */
static bool write_through(struct sv_http_req *q, const void *data, size_t n, size_t *backlog)
{
    char *frame = q->http->frame, *text = frame + FRAME_HEAD, *at = text - 2;

    if (q->http->o.tls || !q->chunked || !n || n > MAX_FRAME_BYTES ||
        (q->waits && evbuffer_get_length(q->out)))
        return false;
    memcpy(at, "\r\n", 2);
    for (size_t rest = n; rest; rest >>= 4)
        *--at = "0123456789abcdef"[rest & 15];
    memcpy(text, data, n);
    memcpy(text + n, "\r\n", 2);
    size_t all = (size_t)(text + n + 2 - at);
    ssize_t sent = send(q->fd, at, all, MSG_DONTWAIT | MSG_NOSIGNAL);
    size_t done = sent > 0 ? (size_t)sent : 0; /* an error shows again when the loop writes */
    *backlog = all - done;
    q->waits = done < all;
    if (q->waits)
        bufferevent_write(q->bev, at + done, all - done);
    return true;
}

static size_t send_piece(struct sv_http_req *q)
{
    struct evbuffer *piece = q->http->piece;

    q->waits = true;
    if (evbuffer_get_length(piece))
        evhttp_send_reply_chunk(q->ev, piece);
    evbuffer_drain(piece, evbuffer_get_length(piece));
    return evbuffer_get_length(q->out);
}

size_t sv_http_write(struct sv_http_req *q, const void *data, size_t n)
{
    size_t backlog = 0;

    if (write_through(q, data, n, &backlog))
        return backlog;
    evbuffer_add(q->http->piece, data, n);
    return send_piece(q);
}

size_t sv_http_write_buf(struct sv_http_req *q, struct sv_buf *b)
{
    if (b->len < MIN_LENT_BYTES)
        return sv_http_write(q, b->data, b->len);
    add_piece(q->http->piece, b);
    return send_piece(q);
}

size_t sv_http_unread(const struct sv_http_req *q)
{
    return q->waits ? evbuffer_get_length(q->out) : 0;
}

void sv_http_end(struct sv_http_req *q, struct sv_buf *b)
{
    q->ended = true;
    add_piece(q->http->piece, b);
    send_piece(q); /* together with the mark of the end, in one write */
    evhttp_send_reply_end(q->ev);
}

void sv_http_abort(struct sv_http_req *q)
{
    evhttp_connection_free(q->con);
}

void sv_http_on_gone(struct sv_http_req *q, void (*fn)(void *user), void *user)
{
    q->on_gone = fn;
    q->user = user;
}

/* ---------------------------------------------------------------- what evhttp answers by itself */

static int take_all(struct evbuffer *out)
{
    size_t n = evbuffer_get_length(out);

    if (evbuffer_drain(out, n) == 0)
        return 0;
    evbuffer_unfreeze(out, 1); /* only its bufferevent may take from it otherwise */
    int rc = evbuffer_drain(out, n);
    evbuffer_freeze(out, 1);
    return rc;
}

/* Sees what is about to be sent. A body that begins as no answer of ours does is evhttp's page
 * about a request that it refused; it was added last, and the whole answer is still here. */
static void replace_page(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg)
{
    static const char begin[] = "<HTML><HEAD>\n<TITLE>", http[] = "HTTP/1.1 ";
    const struct sv_http *h = arg;
    struct evbuffer_ptr at;
    char start[sizeof begin - 1], line[16] = "";
    struct sv_buf body;

    if (info->n_added < sizeof start || !info->orig_size ||
        evbuffer_ptr_set(out, &at, info->orig_size, EVBUFFER_PTR_SET) ||
        evbuffer_copyout_from(out, &at, start, sizeof start) != (ev_ssize_t)sizeof start ||
        memcmp(start, begin, sizeof start) != 0)
        return;
    if (evbuffer_copyout(out, line, sizeof http + 2) < 0 || memcmp(line, http, 5) != 0)
        return;
    int status = atoi(line + sizeof http - 1);
    sv_buf_init(&body);
    h->o.on_refused(h->o.user, status, &body);
    if (!body.failed && take_all(out) == 0) {
        evbuffer_add_printf(
            out,
            "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
            "Connection: close\r\n\r\n",
            status, phrase(status), body.len);
        evbuffer_add(out, body.data, body.len);
    }
    sv_buf_fini(&body);
}

/* ---------------------------------------------------------------- listening */

static struct bufferevent *new_buffer(struct event_base *base, void *arg)
{
    struct sv_http *h = arg;
    SSL *ssl = h->o.tls ? SSL_new(h->o.tls) : NULL;
    struct bufferevent *bev = NULL;

    if (ssl)
        bev = bufferevent_openssl_socket_new(base, -1, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                             BEV_OPT_CLOSE_ON_FREE);
    else if (!h->o.tls)
        bev = bufferevent_socket_new(base, -1, 0);
    if (bev) {
        sv_chunks_watch(bev);
        sv_expect_watch(bufferevent_get_input(bev), &h->o.max_body_bytes);
    }
    if (bev && h->o.on_refused)
        evbuffer_add_cb(bufferevent_get_output(bev), replace_page, h);
    return bev;
}

/* Out of descriptors, as a rule: whoever waits would be reported again at once, for ever, so nobody
 * looks until the next tick. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    (void)arg; /* evhttp's own */
    evconnlistener_disable(listener);
}

void sv_http_tick(struct sv_http *h, int64_t now_us)
{
    struct evconnlistener *listener = h->bound ? evhttp_bound_socket_get_listener(h->bound) : NULL;
    int spare = listener ? fcntl(evconnlistener_get_fd(listener), F_DUPFD_CLOEXEC, 0) : -1;

    if (spare >= 0) {
        close(spare);
        evconnlistener_enable(listener);
    } else if (listener && (!h->full_us || now_us - h->full_us > 10000000)) {
        h->full_us = now_us;
        sv_log(SV_LOG_WARN, "connections wait: no file descriptor is free (ulimit -n)");
    }
}

static int listen_at(struct sv_http *h, struct sv_err *err)
{
    const char *path = h->o.unix_path, *where = path ? path : h->o.host;
    struct stat st;
    int fd = -1;
    int rc = path ? sv_listen_unix(path, &fd, err)
                  : sv_listen_tcp(h->o.host, h->o.port, &fd, &h->port, err);

    if (rc)
        return rc;
    h->unix_path = path ? sv_strdup(path) : NULL;
    if (path && lstat(path, &st) == 0) {
        h->unix_dev = st.st_dev;
        h->unix_inode = st.st_ino;
    }
    h->bound = evhttp_accept_socket_with_handle(h->ev, fd);
    if (h->bound)
        evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(h->bound), on_accept_error);
    else
        close(fd);
    return h->bound ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "%s: cannot listen", where);
}

int sv_http_open(struct sv_http **out, struct event_base *base, const struct sv_http_options *o,
                 struct sv_err *err)
{
    struct sv_http *h = sv_calloc(1, sizeof *h);

    *out = NULL;
    if (!h)
        return sv_fail(err, SV_ENOMEM, -1, "HTTP server");
    h->o = *o;
    h->base = base;
    h->ev = evhttp_new(base);
    h->piece = evbuffer_new();
    if (!h->ev || !h->piece) {
        sv_http_close(h);
        return sv_fail(err, SV_ENOMEM, -1, "HTTP server");
    }
    evhttp_set_gencb(h->ev, take_request, h);
    evhttp_set_allowed_methods(h->ev, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD | EVHTTP_REQ_POST |
                                          EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS |
                                          EVHTTP_REQ_PATCH);
    evhttp_set_max_headers_size(h->ev, MAX_HEADER_BYTES);
    evhttp_set_max_body_size(h->ev, o->max_body_bytes + REFUSED_BODY_SLACK);
    evhttp_set_timeout(h->ev, o->idle_seconds);
    evhttp_set_flags(h->ev, EVHTTP_SERVER_LINGERING_CLOSE);
    evhttp_set_default_content_type(h->ev, NULL);
    evhttp_set_bevcb(h->ev, new_buffer, h);
    int rc = listen_at(h, err);
    if (rc) {
        sv_http_close(h);
        return rc;
    }
    *out = h;
    return SV_OK;
}

void sv_http_set_tls(struct sv_http *h, struct ssl_ctx_st *tls)
{
    h->o.tls = tls;
}

int sv_http_port(const struct sv_http *h)
{
    return h->port;
}

/* Once, and not the socket of a server that has been started since. */
static void remove_socket(struct sv_http *h)
{
    struct stat st;

    if (h->unix_path && lstat(h->unix_path, &st) == 0 && st.st_dev == h->unix_dev &&
        st.st_ino == h->unix_inode)
        unlink(h->unix_path);
    sv_free(h->unix_path);
    h->unix_path = NULL;
}

void sv_http_stop_listening(struct sv_http *h)
{
    if (h->bound)
        evhttp_del_accept_socket(h->ev, h->bound);
    h->bound = NULL;
    remove_socket(h);
}

int32_t sv_http_n_open(const struct sv_http *h)
{
    return h->n_open;
}

void sv_http_close(struct sv_http *h)
{
    if (!h)
        return;
    if (h->ev) {
        sv_http_stop_listening(h);
        evhttp_free(h->ev);
    }
    if (h->piece)
        evbuffer_free(h->piece);
    sv_free(h->unix_path);
    sv_free(h);
}
