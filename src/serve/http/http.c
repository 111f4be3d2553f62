/*
 * http.c - HTTP connections: accepting, requests from http_parse.c, answers, disconnects.
 *
 * Called through http.h on the loop's thread. A connection (struct sv_http_req) handles one request
 * at a time: it reads a request, the request is answered, and once the answer is sent the next one
 * is read, which may have arrived already. After an answer with "Connection: close" the sending
 * side is closed, and what the client still sends is read and discarded for some seconds: closing
 * with unread bytes would reset the connection, and the client might lose the answer.
 *
 * A client that disconnects closes both directions; one that has no more to send may close one
 * (shutdown(SHUT_WR), nc -N). The server cannot distinguish them until it sends something. So at
 * the end of the input the request continues, and if its answer has not begun, "100 Continue" is
 * sent: every HTTP/1.1 client must skip it, and a disconnected one resets the connection, which
 * ends the request. HTTP/1.0 has no 100, and TLS closes both directions at once: there the end of
 * the input before the answer begins means that the client has disconnected. Must not: depend on
 * what is served.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/http/http.h"

#include "serve/http/http_parse.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_AHEAD_BYTES 65536 /* bytes of pipelined requests read ahead during an answer */
#define MAX_FRAME_BYTES 16384 /* of a chunk that is sent without a copy in the buffer ... */
#define FRAME_HEAD 8          /* ... and of its size before it */
#define MIN_LENT_BYTES 65536  /* pieces of this size are not copied on their way out */
#define HEADER_BYTES 16384    /* of an answer: more than is ever added */
#define LINGER_SECONDS 5
/* Seconds for a whole header, and for a body before its rate counts; idle_seconds if that is
 * less. */
#define GRACE_SECONDS 30
#define MIN_BODY_RATE 1024 /* bytes a second */
/* Bytes that a connection may keep once all connections together have reached the limit. */
#define SMALL_BYTES 8192
#define MAX_CONNECTIONS 16384 /* by default, if the descriptors suffice */
#define MAX_TURNED_AWAY 64    /* connections beyond the limit that are answered with 503 */
#define TRIM_BYTES ((int64_t)64 << 20)
#define MAX_TURN_US 500000 /* longer turns of the loop do not count against clients' timeouts */

struct sv_http {
    struct event_base *base;
    struct evconnlistener *listener;
    struct sv_http_options o;
    struct sv_http_req *first; /* connections */
    int32_t n_connections;
    struct sv_http_req *spare; /* allocated ahead for the next connection, so that it can be refused
                                  when memory has run out */
    struct sv_buf header;      /* of the answer that begins */
    char frame[FRAME_HEAD + MAX_FRAME_BYTES + 2];
    char date[40];
    time_t date_s;
    char *unix_path; /* removed at the end, unless another server has replaced it */
    dev_t unix_dev;
    ino_t unix_inode;
    int port;
    int32_t n_open;
    int64_t tick_us, clock_us; /* the last tick; a clock that counts at most MAX_TURN_US a turn */
    int64_t full_us;           /* when the last warning was logged */
    /* Bodies are freed on other threads too, and some after the server was closed. */
    atomic_int n_users;      /* the server, and each body */
    atomic_llong n_kept;     /* bytes of bodies and large headers */
    atomic_llong n_released; /* bytes freed since memory was last returned to the system */
};

struct sv_http_body {
    struct sv_http *http;
    struct sv_buf b;
};

enum state {
    READING,
    ANSWERING,
    ANSWERED, /* not all of the answer is sent */
    LINGERING
};

/* A connection and its request. */
struct sv_http_req {
    struct sv_http *http;
    struct sv_http_req *next, *prev;
    struct bufferevent *bev;
    struct evbuffer *out; /* its own */
    int fd;
    enum state state;
    struct sv_http_parser parser;
    struct sv_http_body *body; /* NULL without one */
    struct sv_buf headers;     /* of the answer: names and values, with a NUL each */
    int key;                   /* index of its API key, or -1 */
    bool has_head, begun, chunked, head_only;
    bool close;    /* after this answer */
    bool tls, eof; /* eof: the client sends no more */
    bool waits;    /* the output may not be empty; reading its length would cost a cache miss */
    bool inside, dropped; /* read_requests is running; free the connection after it */
    size_t n_head;        /* bytes of a large header that are counted */
    int64_t began_us;     /* clock_us at the start of the header or body that is read */
    int64_t moved_us;     /* clock_us when bytes came or the state changed */
    void (*on_gone)(void *user);
    void *user;
};

/* ---------------------------------------------------------------- memory of all requests */

/* False: the limit is exceeded. */
static bool count(struct sv_http *h, size_t n)
{
    return atomic_fetch_add(&h->n_kept, (long long)n) + (long long)n <= h->o.max_kept_bytes;
}

static void count_off(struct sv_http *h, size_t n)
{
    atomic_fetch_sub(&h->n_kept, (long long)n);
    atomic_fetch_add(&h->n_released, (long long)n);
}

static bool count_head(struct sv_http_req *q)
{
    size_t before = q->n_head, now = q->parser.head.cap > SMALL_BYTES ? q->parser.head.cap : 0;

    q->n_head = now;
    if (now > before)
        return count(q->http, now - before);
    if (now < before)
        count_off(q->http, before - now);
    return true;
}

static void leave_server(struct sv_http *h)
{
    if (atomic_fetch_sub(&h->n_users, 1) == 1)
        sv_free(h);
}

static struct sv_http_body *new_body(struct sv_http *h)
{
    struct sv_http_body *body = sv_calloc(1, sizeof *body);

    if (!body)
        return NULL;
    body->http = h;
    atomic_fetch_add(&h->n_users, 1);
    return body;
}

void sv_http_free_taken(struct sv_http_body *body)
{
    if (!body)
        return;
    count_off(body->http, body->b.len);
    sv_buf_fini(&body->b);
    leave_server(body->http);
    sv_free(body);
}

/* ---------------------------------------------------------------- the end of requests */

static void free_body(struct sv_http_req *q)
{
    sv_http_free_taken(q->body);
    q->body = NULL;
}

static void free_connection(struct sv_http_req *q)
{
    free_body(q);
    sv_buf_fini(&q->headers);
    sv_http_parser_fini(&q->parser);
    count_head(q);
    bufferevent_free(q->bev);
    sv_free(q);
}

static void leave_request(struct sv_http_req *q, enum state next)
{
    if (q->state == ANSWERING || q->state == ANSWERED)
        q->http->n_open--;
    q->state = next;
    q->moved_us = q->http->clock_us;
}

/* Closes the connection, and calls on_gone of a request that is being answered. */
static void drop(struct sv_http_req *q)
{
    struct sv_http *h = q->http;
    bool gone = q->state == ANSWERING && q->on_gone;

    if (q->dropped)
        return;
    q->dropped = true;
    if (q->prev)
        q->prev->next = q->next;
    else
        h->first = q->next;
    if (q->next)
        q->next->prev = q->prev;
    h->n_connections--;
    leave_request(q, LINGERING);
    if (gone)
        q->on_gone(q->user);
    if (!q->inside)
        free_connection(q);
}

/* Closes the sending side. Further input is read and discarded. */
static void linger(struct sv_http_req *q)
{
    struct evbuffer *in = bufferevent_get_input(q->bev);
    SSL *ssl = bufferevent_openssl_get_ssl(q->bev);

    if (ssl && SSL_shutdown(ssl) < 0)
        ERR_clear_error();
    shutdown(q->fd, SHUT_WR);
    evbuffer_drain(in, evbuffer_get_length(in));
}

static void begin_answering(struct sv_http_req *q)
{
    q->state = ANSWERING;
    q->http->n_open++;
}

/* Refuses a request without reading the rest. */
static void fail(struct sv_http_req *q, int status, const char *reason)
{
    q->close = true;
    free_body(q);
    begin_answering(q);
    q->http->o.on_refused(q->http->o.user, q, status, reason);
}

/* ---------------------------------------------------------------- reading */

static void keep_body(struct sv_http_req *q, const char *data, size_t n)
{
    struct sv_http_body *body = q->body ? q->body : new_body(q->http);

    if (body && !q->body) /* what is not touched costs nothing */
        sv_buf_reserve(&body->b, (size_t)q->parser.length);
    q->body = body;
    if (body)
        sv_buf_append(&body->b, data, n);
    if (!body || body->b.failed)
        fail(q, 503, "there is no memory for the body");
    else if (!count(q->http, n) && body->b.len > SMALL_BYTES)
        fail(q, 503, "the bodies that are being read are too many");
}

bool sv_http_has_body(const struct sv_http_req *q)
{
    return q->parser.chunked || q->parser.length > 0;
}

static void take_head(struct sv_http_req *q)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const struct sv_http_parser *p = &q->parser;

    q->has_head = true;
    q->began_us = q->http->clock_us;
    q->head_only = strcmp(sv_http_method(q), "HEAD") == 0;
    q->close = !p->keep_alive;
    q->http->o.on_head(q->http->o.user, q);
    if (q->state == READING && p->expects_continue && sv_http_has_body(q) &&
        p->length <= p->max_body && !evbuffer_get_length(bufferevent_get_input(q->bev)))
        bufferevent_write(q->bev, go_on, sizeof go_on - 1);
}

static void read_requests(struct sv_http_req *q)
{
    struct evbuffer *in = bufferevent_get_input(q->bev);
    enum sv_http_event e = SV_HTTP_END;
    size_t used;

    q->inside = true;
    if (sv_http_parser_is_idle(&q->parser))
        q->began_us = q->http->clock_us;
    while (q->state == READING && (e != SV_HTTP_MORE || evbuffer_get_length(in))) {
        struct evbuffer_iovec piece = {NULL, 0};
        evbuffer_peek(in, 1, NULL, &piece, 1);
        e = sv_http_parse(&q->parser, piece.iov_base, piece.iov_len, &used);
        if (e == SV_HTTP_DATA)
            keep_body(q, (char *)piece.iov_base + used - q->parser.n_data, q->parser.n_data);
        evbuffer_drain(in, used);
        if (e == SV_HTTP_HEAD) {
            take_head(q);
        } else if (e == SV_HTTP_END) {
            begin_answering(q);
            q->http->o.on_request(q->http->o.user, q);
        } else if (e == SV_HTTP_BAD) {
            fail(q, q->parser.status, q->parser.reason);
        } else if (q->state == READING && !count_head(q)) {
            fail(q, 503, "the headers that are being read are too large");
        }
    }
    q->inside = false;
    if (q->dropped)
        free_connection(q);
    else if (q->eof && q->state == READING)
        drop(q);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct sv_http_req *q = arg;
    struct evbuffer *in = bufferevent_get_input(bev);

    if (q->state == READING) {
        q->moved_us = q->http->clock_us;
        read_requests(q);
    } else if (q->state == LINGERING) {
        evbuffer_drain(in, evbuffer_get_length(in));
    }
}

/* The buffer has been sent. */
static void on_write(struct bufferevent *bev, void *arg)
{
    struct sv_http_req *q = arg;

    (void)bev;
    if (q->state != ANSWERED)
        return;
    leave_request(q, q->close ? LINGERING : READING);
    free_body(q);
    if (q->close && q->eof) {
        drop(q);
    } else if (q->close) {
        linger(q);
    } else {
        sv_http_parser_next(&q->parser);
        sv_buf_clear(&q->headers);
        q->has_head = q->head_only = q->begun = q->chunked = q->waits = false;
        q->key = -1;
        read_requests(q);
    }
}

/* Whether the connection was reset, or both its directions are closed. */
static bool is_gone(const struct sv_http_req *q)
{
    struct pollfd p = {.fd = q->fd};
    return poll(&p, 1, 0) > 0;
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    static const char probe[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct sv_http_req *q = arg;
    bool answers = q->state == ANSWERING || q->state == ANSWERED;

    if (what & BEV_EVENT_CONNECTED)
        return; /* TLS */
    q->eof = true;
    if (!(what & BEV_EVENT_EOF) || !answers || q->tls || is_gone(q)) {
        drop(q);
    } else if (!q->begun && q->parser.minor == 0) {
        drop(q);
    } else if (!q->begun) {
        bufferevent_write(bev, probe, sizeof probe - 1);
    }
}

/* ---------------------------------------------------------------- the request */

void *sv_http_user(const struct sv_http_req *q)
{
    return q->http->o.user;
}

const char *sv_http_method(const struct sv_http_req *q)
{
    return sv_http_parser_text(&q->parser, 0);
}

const char *sv_http_path(const struct sv_http_req *q)
{
    return sv_http_parser_text(&q->parser, q->parser.path);
}

const char *sv_http_query(const struct sv_http_req *q)
{
    return sv_http_parser_text(&q->parser, q->parser.query);
}

const char *sv_http_header(const struct sv_http_req *q, const char *name)
{
    return sv_http_parser_field(&q->parser, name);
}

const char *sv_http_host(const struct sv_http_req *q)
{
    return sv_http_parser_host(&q->parser);
}

void sv_http_set_key(struct sv_http_req *q, int key)
{
    q->key = key;
}

int sv_http_key(const struct sv_http_req *q)
{
    return q->key;
}

const char *sv_http_taken_text(const struct sv_http_body *body, size_t *n)
{
    *n = body ? body->b.len : 0;
    return *n ? body->b.data : "";
}

const char *sv_http_body(const struct sv_http_req *q, size_t *n)
{
    return sv_http_taken_text(q->body, n);
}

size_t sv_http_body_bytes(const struct sv_http_req *q)
{
    return q->body ? q->body->b.len : 0;
}

struct sv_http_body *sv_http_take_body(struct sv_http_req *q)
{
    struct sv_http_body *body = q->body ? q->body : new_body(q->http);

    q->body = NULL;
    return body;
}

/* ---------------------------------------------------------------- answering */

void sv_http_add_header(struct sv_http_req *q, const char *name, const char *value)
{
    char line[512];
    size_t n = 0;

    for (; value[n] && n < sizeof line - 1; n++)
        line[n] = (unsigned char)value[n] < 0x20 || value[n] == 0x7f ? ' ' : value[n];
    line[n] = 0;
    sv_buf_printf(&q->headers, "%s%c%s%c", name, 0, line, 0);
}

const char *sv_http_added_header(const struct sv_http_req *q, const char *name)
{
    return sv_http_find_pair(q->headers.data, q->headers.len, name);
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
                {403, "Forbidden"},
                {404, "Not Found"},
                {405, "Method Not Allowed"},
                {408, "Request Timeout"},
                {413, "Payload Too Large"},
                {415, "Unsupported Media Type"},
                {417, "Expectation Failed"},
                {422, "Unprocessable Entity"},
                {429, "Too Many Requests"},
                {431, "Request Header Fields Too Large"},
                {500, "Internal Server Error"},
                {501, "Not Implemented"},
                {503, "Service Unavailable"},
                {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].status == status)
            return list[i].text;
    return "Status";
}

static const char *date(struct sv_http *h)
{
    time_t now = time(NULL);
    struct tm utc;

    if (now != h->date_s && gmtime_r(&now, &utc)) {
        strftime(h->date, sizeof h->date, "%a, %d %b %Y %H:%M:%S GMT", &utc);
        h->date_s = now;
    }
    return h->date;
}

/* Writes status line and header; length -1: an answer in pieces. */
static void send_header(struct sv_http_req *q, int status, const char *type, int64_t length)
{
    struct sv_buf *b = &q->http->header;
    int minor = q->parser.minor;

    if (q->state == READING) { /* answered by its header alone: no body is read */
        q->close = true;
        begin_answering(q);
    }
    q->begun = true;
    q->chunked = length < 0 && minor > 0;
    q->close |= length < 0 &&
                minor == 0; /* without chunked encoding, closing the connection ends the answer */
    sv_buf_clear(b);
    sv_buf_printf(b, "HTTP/1.%d %d %s\r\n", minor, status, phrase(status));
    for (size_t at = 0; at < q->headers.len;) {
        const char *name = q->headers.data + at, *value = name + strlen(name) + 1;
        sv_buf_printf(b, "%s: %s\r\n", name, value);
        at += strlen(name) + strlen(value) + 2;
    }
    sv_buf_printf(b, "Date: %s\r\n", date(q->http));
    if (type)
        sv_buf_printf(b, "Content-Type: %s\r\n", type);
    if (q->chunked)
        sv_buf_lit(b, "Transfer-Encoding: chunked\r\n");
    else if (length >= 0 && status != 204 && status != 304)
        sv_buf_printf(b, "Content-Length: %lld\r\n", (long long)length);
    if (q->close)
        sv_buf_lit(b, "Connection: close\r\n");
    else if (minor == 0)
        sv_buf_lit(b, "Connection: keep-alive\r\n");
    sv_buf_lit(b, "\r\n");
    evbuffer_add(q->out, b->data, b->len);
}

static void free_lent(const void *data, size_t n, void *arg)
{
    (void)n, (void)arg;
    sv_free((void *)(uintptr_t)data);
}

/* A large buffer is sent without a copy, and handed over. */
static void add_piece(struct sv_http_req *q, const void *data, size_t n, struct sv_buf *lent)
{
    if (!lent || n < MIN_LENT_BYTES)
        evbuffer_add(q->out, data, n);
    else if (evbuffer_add_reference(q->out, data, n, free_lent, NULL) == 0)
        sv_buf_init(lent);
}

/* The answer is complete. on_write continues when all of it has been sent. */
static void finish(struct sv_http_req *q)
{
    q->state = ANSWERED;
    q->on_gone = NULL;
    if (!evbuffer_get_length(q->out))
        bufferevent_trigger(q->bev, EV_WRITE,
                            BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

static void reply(struct sv_http_req *q, int status, const char *type, const void *data, size_t n,
                  struct sv_buf *lent)
{
    send_header(q, status, type, (int64_t)n);
    if (!q->head_only)
        add_piece(q, data, n, lent);
    finish(q);
}

void sv_http_reply(struct sv_http_req *q, int status, const char *type, const void *data, size_t n)
{
    reply(q, status, type, data, n, NULL);
}

void sv_http_reply_buf(struct sv_http_req *q, int status, const char *type, struct sv_buf *b)
{
    reply(q, status, type, b->data, b->len, b);
}

void sv_http_begin(struct sv_http_req *q, int status, const char *type)
{
    send_header(q, status, type, -1);
    q->waits = true;
}

/* If no output is waiting, writes a chunk to the socket at once, which avoids arming and disarming
 * the write event; what does not fit goes to the buffer. The three pieces are copied into one,
 * which is cheaper for the kernel. False: nothing was done. */
static bool write_through(struct sv_http_req *q, const void *data, size_t n, size_t *backlog)
{
    char *frame = q->http->frame, *text = frame + FRAME_HEAD, *at = text - 2;

    if (q->tls || !q->chunked || !n || n > MAX_FRAME_BYTES ||
        (q->waits && evbuffer_get_length(q->out)))
        return false;
    memcpy(at, "\r\n", 2);
    for (size_t rest = n; rest; rest >>= 4)
        *--at = "0123456789abcdef"[rest & 15];
    memcpy(text, data, n);
    memcpy(text + n, "\r\n", 2);
    size_t all = (size_t)(text + n + 2 - at);
    ssize_t sent = send(q->fd, at, all, MSG_DONTWAIT | MSG_NOSIGNAL);
    size_t done = sent > 0 ? (size_t)sent : 0; /* the loop sees the same error when it writes */
    *backlog = all - done;
    q->waits = done < all;
    if (q->waits)
        bufferevent_write(q->bev, at + done, all - done);
    return true;
}

/* Appends to the output, as a chunk if the answer is chunked. */
static size_t send_piece(struct sv_http_req *q, const void *data, size_t n, struct sv_buf *lent)
{
    char size[24];
    bool framed = n && q->chunked;

    q->waits = true;
    if (framed)
        evbuffer_add(q->out, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
    add_piece(q, data, n, lent);
    if (framed)
        evbuffer_add(q->out, "\r\n", 2);
    return evbuffer_get_length(q->out);
}

size_t sv_http_write(struct sv_http_req *q, const void *data, size_t n)
{
    size_t backlog = 0;

    return write_through(q, data, n, &backlog) ? backlog : send_piece(q, data, n, NULL);
}

size_t sv_http_write_buf(struct sv_http_req *q, struct sv_buf *b)
{
    if (b->len < MIN_LENT_BYTES)
        return sv_http_write(q, b->data, b->len);
    return send_piece(q, b->data, b->len, b);
}

size_t sv_http_unread(const struct sv_http_req *q)
{
    return q->waits ? evbuffer_get_length(q->out) : 0;
}

void sv_http_end(struct sv_http_req *q, struct sv_buf *b)
{
    send_piece(q, b->data, b->len, b); /* in one write with the last chunk */
    if (q->chunked)
        evbuffer_add(q->out, "0\r\n\r\n", 5);
    finish(q);
}

void sv_http_abort(struct sv_http_req *q)
{
    drop(q);
}

void sv_http_on_gone(struct sv_http_req *q, void (*fn)(void *user), void *user)
{
    q->on_gone = fn;
    q->user = user;
}

/* ---------------------------------------------------------------- listening */

static void warn(struct sv_http *h, const char *text)
{
    if (h->full_us && h->tick_us - h->full_us < 10000000)
        return;
    h->full_us = h->tick_us;
    sv_log(SV_LOG_WARN, "%s", text);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *from,
                      int n_from, void *arg)
{
    struct sv_http *h = arg;
    struct timeval write_limit = {h->o.idle_seconds, 0};
    bool beyond = h->n_connections >= h->o.max_connections;
    bool refused = h->n_connections >= h->o.max_connections + MAX_TURNED_AWAY;
    struct sv_http_req *q = refused ? NULL : h->spare ? h->spare : sv_calloc(1, sizeof *q);
    SSL *ssl = q && h->o.tls ? SSL_new(h->o.tls) : NULL;
    int one = 1;

    (void)listener, (void)from, (void)n_from;
    if (beyond)
        warn(h, "connections are refused: as many as --max-connections are open");
    h->spare = refused ? h->spare : sv_calloc(1, sizeof *q);
    if (ssl)
        q->bev = bufferevent_openssl_socket_new(h->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                                BEV_OPT_CLOSE_ON_FREE);
    else if (q && !h->o.tls)
        q->bev = bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!q || !q->bev) {
        close(fd);
        sv_free(q);
        return;
    }
    q->http = h;
    q->tls = ssl != NULL;
    q->out = bufferevent_get_output(q->bev);
    q->fd = fd;
    q->key = -1;
    q->moved_us = h->clock_us;
    q->next = h->first;
    if (q->next)
        q->next->prev = q;
    h->first = q;
    h->n_connections++;
    sv_buf_init(&q->headers);
    sv_http_parser_init(&q->parser, h->o.max_body_bytes);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    bufferevent_setcb(q->bev, on_read, on_write, on_event, q);
    bufferevent_setwatermark(q->bev, EV_READ, 0, MAX_AHEAD_BYTES);
    bufferevent_set_timeouts(q->bev, NULL, &write_limit);
    bufferevent_enable(q->bev, EV_READ | EV_WRITE);
    if (beyond)
        fail(q, 503, "too many connections are open");
}

/* Usually no descriptor is left. The listener would report the same connection again and again, so
 * it pauses until the next tick. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    (void)arg;
    evconnlistener_disable(listener);
}

/* Slow clients: a header has a total time and a body a minimal rate, whatever arrives meanwhile. */
static bool is_slow(const struct sv_http_req *q, int64_t idle_us)
{
    int64_t grace_us = GRACE_SECONDS * INT64_C(1000000);
    int64_t over_us = q->http->clock_us - q->began_us - (idle_us < grace_us ? idle_us : grace_us);
    int64_t n_body = q->body ? (int64_t)q->body->b.len : 0;

    return over_us > 0 && (!q->has_head || n_body < over_us / 1000000 * MIN_BODY_RATE);
}

static void check_time(struct sv_http_req *q)
{
    int64_t silent_us = q->http->clock_us - q->moved_us;
    int64_t idle_us = q->http->o.idle_seconds * INT64_C(1000000);
    bool reads = q->state == READING, idle = reads && sv_http_parser_is_idle(&q->parser);

    /* A refusal without a header takes no time: a TLS client may not even have shaken hands. */
    bool ends = q->state == LINGERING || (q->state == ANSWERED && !q->has_head);

    if ((idle && silent_us > idle_us) || (q->eof && is_gone(q)) ||
        (ends && silent_us > LINGER_SECONDS * INT64_C(1000000)))
        drop(q);
    else if (reads && !idle && (silent_us > idle_us || is_slow(q, idle_us)))
        fail(q, 408, "the request did not come in time");
}

void sv_http_tick(struct sv_http *h, int64_t now_us)
{
    int64_t since_us = now_us - h->tick_us;
    int spare = h->listener ? fcntl(evconnlistener_get_fd(h->listener), F_DUPFD_CLOEXEC, 0) : -1;

    h->tick_us = now_us;
    h->clock_us += since_us < MAX_TURN_US ? since_us : MAX_TURN_US;
    for (struct sv_http_req *q = h->first, *next; q; q = next) {
        next = q->next;
        check_time(q);
    }
    if (atomic_load(&h->n_released) > TRIM_BYTES) {
        atomic_store(&h->n_released, 0);
        sv_alloc_trim();
    }
    if (spare >= 0) {
        close(spare);
        evconnlistener_enable(h->listener);
    } else if (h->listener) {
        warn(h, "connections wait: no file descriptor is free (ulimit -n)");
    }
}

/* Most of the descriptors; the rest is for files and for connections to be refused. */
static int32_t default_connections(void)
{
    struct rlimit files;
    rlim_t n = getrlimit(RLIMIT_NOFILE, &files) ? 1024 : files.rlim_cur;

    n -= n / 8;
    return n < MAX_CONNECTIONS ? (int32_t)n : MAX_CONNECTIONS;
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
    h->listener = evconnlistener_new(h->base, on_accept, h,
                                     LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (h->listener)
        evconnlistener_set_error_cb(h->listener, on_accept_error);
    else
        close(fd);
    return h->listener ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "%s: cannot listen", where);
}

int sv_http_open(struct sv_http **out, struct event_base *base, const struct sv_http_options *o,
                 struct sv_err *err)
{
    struct sv_http *h = sv_calloc(1, sizeof *h);
    int rc;

    *out = NULL;
    if (!h)
        return sv_fail(err, SV_ENOMEM, -1, "HTTP server");
    h->o = *o;
    h->o.max_connections = o->max_connections ? o->max_connections : default_connections();
    h->base = base;
    h->tick_us = sv_clock_us();
    atomic_init(&h->n_users, 1);
    sv_buf_init(&h->header);
    rc = sv_buf_reserve(&h->header, HEADER_BYTES) ? sv_fail(err, SV_ENOMEM, -1, "HTTP server")
                                                  : listen_at(h, err);
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

bool sv_http_is_loopback(const struct sv_http *h)
{
    return h->listener && sv_listen_is_loopback(evconnlistener_get_fd(h->listener));
}

/* Removes the socket once, and not if another server has replaced it. */
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
    if (h->listener)
        evconnlistener_free(h->listener);
    h->listener = NULL;
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
    sv_http_stop_listening(h);
    while (h->first)
        drop(h->first);
    sv_buf_fini(&h->header);
    sv_free(h->spare);
    leave_server(h);
}
