/*
 * fetch.c - fetches http: and https: URLs of a request body from allowed hosts, with libevent's
 * HTTP client and resolver and OpenSSL.
 *
 * Called by images.c (want, get, on any thread) and by body.c and call.c (the rest, on the loop's
 * thread). Any status other than 200 is a failure, redirects included. Libevent's callbacks only
 * record the result; connections are freed by the list's own event. Must not: block, or contact a
 * host that the option does not name.
 */
#include "serve/http/fetch.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/http.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <strings.h>

#define MAX_ADDRESSES 64
#define MAX_URL 8192
#define MAX_OPEN 16      /* connections at once, */
#define MAX_OPEN_EACH 4  /* and of one list */
#define MAX_HEADER 65536 /* bytes */

/* The server that a URL names. */
struct target {
    char host[256]; /* without brackets */
    bool is_v6, tls;
    int port;
    const char *path, *query; /* the URI's */
};

struct item {
    struct sv_fetch *list;
    char *url;
    struct sv_buf bytes;
    struct evhttp_connection *con;
    SSL *ssl; /* the connection's */
    bool done, full;
    char why[256]; /* why it failed; "": it was fetched */
};

struct sv_fetch {
    struct sv_fetcher *fetcher;
    struct item items[MAX_ADDRESSES];
    int32_t n_items, n_open;
    struct event *wake; /* when an item is done, and at the end of the time */
    int64_t end_us;
    void (*done)(void *user);
    void *user;
    struct sv_fetch *next; /* in the server's list of lists being fetched, oldest first */
    int64_t n_bytes;
};

struct sv_fetcher {
    struct sv_fetch_options o;
    struct event_base *base;
    struct evdns_base *dns;
    SSL_CTX *tls;
    struct sv_fetch *first;
    int32_t n_open;
    int64_t n_bytes;
};

/* ---------------------------------------------------------------- addresses */

static int take_host(struct target *t, const struct evhttp_uri *u)
{
    const char *host = evhttp_uri_get_host(u);
    size_t n = host ? strlen(host) : 0;

    t->is_v6 = n > 2 && host[0] == '[';
    if (t->is_v6) {
        host++;
        n -= 2;
    }
    if (!n || n >= sizeof t->host)
        return -1;
    memcpy(t->host, host, n);
    t->host[n] = 0;
    return 0;
}

/* Parses a URL; the caller frees the result. NULL: malformed. */
static struct evhttp_uri *read_url(const char *url, struct target *t)
{
    struct evhttp_uri *u = evhttp_uri_parse(url);
    const char *scheme = u ? evhttp_uri_get_scheme(u) : NULL;

    *t = (struct target){.tls = scheme && strcasecmp(scheme, "https") == 0};
    if (!scheme || (!t->tls && strcasecmp(scheme, "http") != 0) || take_host(t, u)) {
        if (u)
            evhttp_uri_free(u);
        return NULL;
    }
    t->port = evhttp_uri_get_port(u);
    t->port = t->port > 0 ? t->port : t->tls ? 443 : 80;
    t->path = evhttp_uri_get_path(u);
    t->query = evhttp_uri_get_query(u);
    return u;
}

/* Writes the next of the option's hosts as a URL; NULL: no more. */
static const char *next_host(const char **hosts, char url[300], bool tls)
{
    *hosts += strspn(*hosts, ", ");
    const size_t n = strcspn(*hosts, ", ");

    if (!n)
        return NULL;
    snprintf(url, 300, "http%s://%.*s", tls ? "s" : "", n < 280 ? (int)n : 280, *hosts);
    *hosts += n;
    return url;
}

/* A host without a port allows the default port of both schemes. */
static bool is_allowed(const char *hosts, const struct target *t)
{
    char url[300];

    while (next_host(&hosts, url, t->tls)) {
        struct target known;
        struct evhttp_uri *u = read_url(url, &known);
        if (u)
            evhttp_uri_free(u);
        if (u && known.port == t->port && strcasecmp(known.host, t->host) == 0)
            return true;
    }
    return false;
}

static int check_hosts(const char *hosts, struct sv_err *err)
{
    char url[300];
    int n = 0;

    for (; next_host(&hosts, url, false); n++) {
        struct target t;
        struct evhttp_uri *u = read_url(url, &t);
        const bool fine =
            u && !*t.path && !t.query && !evhttp_uri_get_userinfo(u) && !evhttp_uri_get_fragment(u);
        if (u)
            evhttp_uri_free(u);
        if (!fine)
            return sv_fail(err, SV_EINVAL, -1, "option --media-url: '%s' is no HOST or HOST:PORT",
                           url + strlen("http://"));
    }
    return n ? SV_OK : sv_fail(err, SV_EINVAL, -1, "option --media-url names no host");
}

static int check_url(const struct sv_fetcher *f, const char *url, size_t n, struct sv_err *err)
{
    struct target t;

    if (n > MAX_URL)
        return sv_fail(err, SV_EINVAL, -1, "the address has %zu bytes, at most %d may be", n,
                       MAX_URL);
    struct evhttp_uri *u = strlen(url) == n ? read_url(url, &t) : NULL;
    int rc = SV_OK;
    if (!u)
        rc = sv_fail(err, SV_EINVAL, -1, "it is no valid address");
    else if (evhttp_uri_get_userinfo(u))
        rc = sv_fail(err, SV_EINVAL, -1, "an address with a user name is not fetched");
    else if (!is_allowed(f->o.hosts, &t))
        rc = sv_fail(err, SV_EINVAL, -1, "'%.200s': port %d of this host is not one of --media-url",
                     t.host, t.port);
    if (u)
        evhttp_uri_free(u);
    return rc;
}

/* ---------------------------------------------------------------- lists */

static const struct item *find(const struct sv_fetch *l, const char *url)
{
    for (int32_t i = 0; l && i < l->n_items; i++)
        if (strcmp(l->items[i].url, url) == 0)
            return &l->items[i];
    return NULL;
}

int sv_fetch_want(struct sv_fetch **list, struct sv_fetcher *f, const char *url, size_t n,
                  struct sv_err *err)
{
    struct sv_fetch *l = *list;

    if (find(l, url))
        return SV_OK;
    int rc = check_url(f, url, n, err);
    if (rc)
        return rc;
    if (!l)
        l = *list = sv_calloc(1, sizeof *l);
    if (!l)
        return sv_fail(err, SV_ENOMEM, -1, "addresses");
    l->fetcher = f;
    if (l->n_items == MAX_ADDRESSES)
        return sv_fail(err, SV_EINVAL, -1, "a request may name %d addresses", MAX_ADDRESSES);
    struct item *i = &l->items[l->n_items];
    i->url = sv_strdup(url);
    if (!i->url)
        return sv_fail(err, SV_ENOMEM, -1, "address");
    i->list = l;
    sv_buf_init(&i->bytes);
    l->n_items++;
    return SV_OK;
}

int sv_fetch_get(const struct sv_fetch *l, const char *url, struct sv_buf *bytes,
                 struct sv_err *err)
{
    const struct item *i = find(l, url);

    SV_REQUIRE(i && i->done);
    if (*i->why)
        return sv_fail(err, i->full ? SV_EFULL : SV_EIO, -1, "'%.160s': %s", url, i->why);
    sv_buf_append(bytes, i->bytes.data, i->bytes.len);
    return bytes->failed ? sv_fail(err, SV_ENOMEM, -1, "image") : SV_OK;
}

bool sv_fetch_waits(const struct sv_fetch *l)
{
    for (int32_t i = 0; l && i < l->n_items; i++)
        if (!l->items[i].done)
            return true;
    return false;
}

void sv_fetch_free(struct sv_fetch *l)
{
    if (!l)
        return;
    SV_REQUIRE(!l->n_open);
    l->fetcher->n_bytes -= l->n_bytes;
    for (int32_t i = 0; i < l->n_items; i++) {
        sv_free(l->items[i].url);
        sv_buf_fini(&l->items[i].bytes);
    }
    if (l->wake)
        event_free(l->wake);
    sv_free(l);
}

/* ---------------------------------------------------------------- one address */

/* Ends an item. Its connection is freed by the list's event. */
static void end_item(struct item *i, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void end_item(struct item *i, const char *fmt, ...)
{
    va_list ap;

    if (i->done)
        return;
    i->done = true;
    va_start(ap, fmt);
    vsnprintf(i->why, sizeof i->why, fmt, ap);
    va_end(ap);
    if (*i->why)
        sv_buf_fini(&i->bytes);
    event_active(i->list->wake, EV_TIMEOUT, 0);
}

static void on_piece(struct evhttp_request *q, void *arg)
{
    struct item *i = arg;
    struct sv_fetch *l = i->list;
    struct evbuffer *in = evhttp_request_get_input_buffer(q);
    const size_t n = evbuffer_get_length(in);

    if (i->done || evhttp_request_get_response_code(q) != HTTP_OK || !n)
        return;
    l->n_bytes += (int64_t)n;
    l->fetcher->n_bytes += (int64_t)n;
    if (i->bytes.len + n > l->fetcher->o.max_bytes) {
        end_item(i, "it has more than %zu bytes", l->fetcher->o.max_bytes);
    } else if (l->fetcher->n_bytes > l->fetcher->o.all_bytes) {
        i->full = true;
        end_item(i, "too many fetched images are in memory");
    } else {
        sv_buf_append(&i->bytes, evbuffer_pullup(in, -1), n);
        if (i->bytes.failed)
            end_item(i, "out of memory");
    }
}

/* Ends an item whose connection broke or could not be made. */
static void end_broken(struct item *i, const char *otherwise)
{
    const int dns = bufferevent_socket_get_dns_error(evhttp_connection_get_bufferevent(i->con));
    const long verified = i->ssl ? SSL_get_verify_result(i->ssl) : X509_V_OK;

    if (dns)
        end_item(i, "the host is not found: %s", evutil_gai_strerror(dns));
    else if (verified != X509_V_OK)
        end_item(i, "the certificate is refused: %s", X509_verify_cert_error_string(verified));
    else
        end_item(i, "%s", otherwise);
}

static void on_error(enum evhttp_request_error error, void *arg)
{
    struct item *i = arg;

    if (error == EVREQ_HTTP_DATA_TOO_LONG)
        end_item(i, "it has more than %zu bytes", i->list->fetcher->o.max_bytes);
    else if (error == EVREQ_HTTP_INVALID_HEADER)
        end_item(i, "the answer is not valid HTTP");
    else if (error == EVREQ_HTTP_TIMEOUT)
        end_item(i, "the host does not answer");
    else
        end_broken(i, "the connection ended before the answer did");
}

static void on_answer(struct evhttp_request *q, void *arg)
{
    struct item *i = arg;
    const int status = q ? evhttp_request_get_response_code(q) : 0;

    if (i->done)
        return;
    if (!status)
        end_broken(i, "the host cannot be connected to");
    else if (status / 100 == 3)
        end_item(i, "the answer is %d, and redirects are not followed", status);
    else if (status != HTTP_OK)
        end_item(i, "the answer is %d", status);
    else
        end_item(i, "%s", "");
}

/* A TLS connection that verifies certificate and name. NULL: out of memory. */
static struct bufferevent *new_tls(struct item *i, const struct target *t)
{
    struct sv_fetcher *f = i->list->fetcher;
    SSL *ssl = SSL_new(f->tls);
    const bool is_address = t->is_v6 || t->host[strspn(t->host, "0123456789.")] == 0;

    if (!ssl)
        return NULL;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    const int named = is_address
                          ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), t->host)
                          : SSL_set1_host(ssl, t->host) && SSL_set_tlsext_host_name(ssl, t->host);
    struct bufferevent *bev =
        named ? bufferevent_openssl_socket_new(f->base, -1, ssl, BUFFEREVENT_SSL_CONNECTING,
                                               BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS)
              : NULL;
    if (!bev)
        SSL_free(ssl);
    else
        i->ssl = ssl;
    return bev;
}

static struct evhttp_connection *new_connection(struct item *i, const struct target *t)
{
    struct sv_fetcher *f = i->list->fetcher;
    struct bufferevent *bev = t->tls ? new_tls(i, t) : NULL;

    if (t->tls && !bev)
        return NULL;
    struct evhttp_connection *con =
        evhttp_connection_base_bufferevent_new(f->base, f->dns, bev, t->host, (ev_uint16_t)t->port);
    if (!con) {
        if (bev)
            bufferevent_free(bev);
        return NULL;
    }
    evhttp_connection_set_max_headers_size(con, MAX_HEADER);
    evhttp_connection_set_max_body_size(con, (ev_ssize_t)f->o.max_bytes);
    evhttp_connection_set_timeout(con, f->o.time_seconds + 1);
    return con;
}

/* Sends the request. 0, or -1: out of memory. */
static int ask(struct item *i, const struct target *t)
{
    struct evhttp_request *q = evhttp_request_new(on_answer, i);
    struct sv_buf text;

    sv_buf_init(&text);
    i->con = q ? new_connection(i, t) : NULL;
    if (!i->con) {
        if (q)
            evhttp_request_free(q);
        return -1;
    }
    evhttp_request_set_error_cb(q, on_error);
    evhttp_request_set_chunked_cb(q, on_piece);
    struct evkeyvalq *headers = evhttp_request_get_output_headers(q);
    sv_buf_printf(&text, t->is_v6 ? "[%s]" : "%s", t->host);
    if (t->port != (t->tls ? 443 : 80))
        sv_buf_printf(&text, ":%d", t->port);
    int rc = text.failed || evhttp_add_header(headers, "Host", text.data) ||
             evhttp_add_header(headers, "User-Agent", "salvo") ||
             evhttp_add_header(headers, "Accept", "image/png, image/jpeg, image/webp") ||
             evhttp_add_header(headers, "Connection", "close");
    sv_buf_clear(&text);
    sv_buf_printf(&text, "%s%s%s", *t->path ? t->path : "/", t->query ? "?" : "",
                  t->query ? t->query : "");
    if (rc || text.failed) {
        evhttp_request_free(q);
        rc = -1;
    } else {
        rc = evhttp_make_request(i->con, q, EVHTTP_REQ_GET, text.data); /* which frees q */
    }
    sv_buf_fini(&text);
    return rc;
}

static void hang_up(struct item *i)
{
    if (!i->con)
        return;
    evhttp_connection_free(i->con); /* and its request, without a call */
    i->con = NULL;
    i->ssl = NULL;
    i->list->n_open--;
    i->list->fetcher->n_open--;
}

static void begin_item(struct item *i)
{
    struct target t;
    struct evhttp_uri *u = read_url(i->url, &t); /* it was valid */

    const int rc = u ? ask(i, &t) : -1;
    if (i->con) {
        i->list->n_open++;
        i->list->fetcher->n_open++;
    }
    if (rc)
        end_item(i, "out of memory");
    if (u)
        evhttp_uri_free(u);
}

/* ---------------------------------------------------------------- all of them */

/* Starts as many items as the limits allow, the oldest list first. */
static void begin_some(struct sv_fetcher *f)
{
    for (struct sv_fetch *l = f->first; l; l = l->next)
        for (int32_t k = 0; k < l->n_items; k++) {
            struct item *i = &l->items[k];
            if (f->n_open == MAX_OPEN || l->n_open == MAX_OPEN_EACH)
                break;
            if (!i->done && !i->con)
                begin_item(i);
        }
}

/* Called when all items are done. */
static void end_list(struct sv_fetch *l)
{
    struct sv_fetch **at = &l->fetcher->first;

    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    event_del(l->wake);
    l->done(l->user); /* which may free it */
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct sv_fetch *l = arg;
    struct sv_fetcher *f = l->fetcher;
    const int64_t left = l->end_us - sv_clock_us();

    (void)fd, (void)what;
    for (int32_t k = 0; k < l->n_items; k++) {
        struct item *i = &l->items[k];
        if (left <= 0)
            end_item(i, "it has not come within %d seconds", f->o.time_seconds);
        if (i->done)
            hang_up(i);
    }
    if (sv_fetch_waits(l)) {
        struct timeval tv = {(time_t)(left / 1000000), (suseconds_t)(left % 1000000)};
        event_add(l->wake, &tv);
    } else {
        end_list(l);
    }
    begin_some(f);
}

void sv_fetch_start(struct sv_fetch *l, void (*done)(void *user), void *user)
{
    struct sv_fetcher *f = l->fetcher;
    struct sv_fetch **at = &f->first;
    const struct timeval tv = {f->o.time_seconds, 0};

    if (!l->wake)
        l->wake = event_new(f->base, -1, 0, on_wake, l);
    if (!l->wake || event_add(l->wake, &tv)) {
        for (int32_t k = 0; k < l->n_items; k++) {
            l->items[k].done = true;
            snprintf(l->items[k].why, sizeof l->items[k].why, "out of memory");
        }
        done(user);
        return;
    }
    l->done = done;
    l->user = user;
    l->end_us = sv_clock_us() + (int64_t)f->o.time_seconds * 1000000;
    l->next = NULL;
    while (*at)
        at = &(*at)->next;
    *at = l;
    begin_some(f);
}

void sv_fetch_cancel(struct sv_fetch *l)
{
    for (int32_t k = 0; k < l->n_items; k++) {
        end_item(&l->items[k], "the client has left");
        hang_up(&l->items[k]);
    }
    struct sv_fetcher *f = l->fetcher;
    end_list(l);
    begin_some(f);
}

/* ---------------------------------------------------------------- the server's */

static SSL_CTX *new_tls_context(void)
{
    SSL_CTX *tls = SSL_CTX_new(TLS_client_method());

    if (!tls)
        return NULL;
    SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_default_verify_paths(tls); /* without a store all certificates are refused */
    return tls;
}

int sv_fetcher_open(struct sv_fetcher **out, struct event_base *base,
                    const struct sv_fetch_options *o, struct sv_err *err)
{
    int rc = check_hosts(o->hosts, err);

    *out = NULL;
    if (rc)
        return rc;
    struct sv_fetcher *f = sv_calloc(1, sizeof *f);
    if (!f)
        return sv_fail(err, SV_ENOMEM, -1, "images by address");
    f->o = *o;
    f->base = base;
    f->tls = new_tls_context();
    if (!f->tls)
        rc = sv_fail(err, SV_ENOMEM, -1, "TLS");
    else if (!(f->dns = evdns_base_new(base, EVDNS_BASE_INITIALIZE_NAMESERVERS |
                                                 EVDNS_BASE_DISABLE_WHEN_INACTIVE)))
        rc = sv_fail(err, SV_EIO, -1, "option --media-url: the resolver does not open");
    if (rc)
        sv_fetcher_close(f);
    else
        *out = f;
    return rc;
}

void sv_fetcher_close(struct sv_fetcher *f)
{
    if (!f)
        return;
    SV_REQUIRE(!f->first);
    if (f->dns)
        evdns_base_free(f->dns, 1);
    SSL_CTX_free(f->tls);
    sv_free(f);
}
