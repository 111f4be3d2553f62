/*
 * test_fetch.c - images by URL: from allowed hosts only, by HTTP and by verified TLS; a failed
 * fetch is an error with field and reason; no other request waits. timeout: 120
 */
#define _XOPEN_SOURCE 700 /* setenv, strdup */

#include "testing.h"

#include "serve/hub.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the host that is asked */

#define MAX_HELD 64

/* Answers one request a connection, by its path. /hold is never answered. */
static struct {
    int fd, port;
    SSL_CTX *tls; /* NULL: plain HTTP */
    struct sv_thread *thread;
    struct sv_buf image;
    int held[MAX_HELD];
    atomic_int n_held, n_asked, stop;
    char head[4096]; /* of the last request */
} site;

struct peer {
    int fd;
    SSL *ssl;
};

static void put(struct peer *p, const char *data, size_t n)
{
    while (n) {
        const int part = n < 65536 ? (int)n : 65536;
        const ssize_t k =
            p->ssl ? SSL_write(p->ssl, data, part) : send(p->fd, data, (size_t)part, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* the server has hung up */
        data += k;
        n -= (size_t)k;
    }
}

static void put_text(struct peer *p, const char *text)
{
    put(p, text, strlen(text));
}

static void put_chunked(struct peer *p)
{
    char line[32];

    put_text(p, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t at = 0; at < site.image.len; at += 100) {
        const size_t n = site.image.len - at < 100 ? site.image.len - at : 100;
        snprintf(line, sizeof line, "%zx\r\n", n);
        put_text(p, line);
        put(p, site.image.data + at, n);
        put_text(p, "\r\n");
    }
    put_text(p, "0\r\n\r\n");
}

/* One byte more than an image may have, without saying so. */
static void put_endless(struct peer *p)
{
    static char zeros[65536];

    put_text(p, "HTTP/1.1 200 OK\r\n\r\n");
    for (int64_t left = SV_IMAGE_MAX_BYTES + 1; left > 0; left -= (int64_t)sizeof zeros)
        put(p, zeros, left < (int64_t)sizeof zeros ? (size_t)left : sizeof zeros);
}

static void put_length(struct peer *p, int64_t n)
{
    char head[128];

    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %lld\r\n\r\n", (long long)n);
    put_text(p, head);
}

/* Whether the connection is to be closed. */
static bool answer(struct peer *p, const char *path)
{
    if (strcmp(path, "/image") == 0 || strcmp(path, "/a/image?x=1&y") == 0) {
        put_length(p, (int64_t)site.image.len);
        put(p, site.image.data, site.image.len);
    } else if (strcmp(path, "/chunked") == 0) {
        put_chunked(p);
    } else if (strcmp(path, "/ends") == 0) {
        put_text(p, "HTTP/1.0 200 OK\r\n\r\n");
        put(p, site.image.data, site.image.len);
    } else if (strcmp(path, "/cut") == 0) {
        put_length(p, (int64_t)site.image.len);
        put(p, site.image.data, site.image.len / 2);
    } else if (strcmp(path, "/text") == 0) {
        put_length(p, 5);
        put_text(p, "hello");
    } else if (strcmp(path, "/empty") == 0) {
        put_length(p, 0);
    } else if (strcmp(path, "/huge") == 0) {
        put_length(p, SV_IMAGE_MAX_BYTES + 1);
    } else if (strcmp(path, "/endless") == 0) {
        put_endless(p);
    } else if (strcmp(path, "/moved") == 0) {
        put_text(p, "HTTP/1.1 302 Found\r\nLocation: /image\r\nContent-Length: 0\r\n\r\n");
    } else if (strcmp(path, "/garbage") == 0) {
        put_text(p, "this is not HTTP\r\n\r\n");
    } else if (strncmp(path, "/hold", 5) == 0) {
        return false;
    } else if (strcmp(path, "/closed") != 0) {
        put_text(p, "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone");
    }
    return true;
}

static bool read_head(struct peer *p)
{
    size_t n = 0;

    site.head[0] = 0;
    while (!strstr(site.head, "\r\n\r\n") && n < sizeof site.head - 1) {
        const int most = (int)(sizeof site.head - 1 - n);
        const ssize_t k = p->ssl ? SSL_read(p->ssl, site.head + n, most)
                                 : recv(p->fd, site.head + n, (size_t)most, 0);
        if (k <= 0)
            return false;
        n += (size_t)k;
        site.head[n] = 0;
        if (site.head[0] == 0x16) { /* a TLS handshake where there is none */
            put_text(p, "HTTP/1.1 400 Bad Request\r\n\r\n");
            return false;
        }
    }
    return true;
}

static void serve_one(int fd)
{
    struct peer p = {fd, NULL};
    char path[256] = "";
    bool over = true;

    if (site.tls) {
        p.ssl = SSL_new(site.tls);
        SSL_set_fd(p.ssl, fd);
    }
    if ((!p.ssl || SSL_accept(p.ssl) == 1) && read_head(&p)) {
        atomic_fetch_add(&site.n_asked, 1);
        assert_int_equal(sscanf(site.head, "GET %255s HTTP/1.1", path), 1);
        over = answer(&p, path);
    }
    if (p.ssl) {
        SSL_shutdown(p.ssl);
        SSL_free(p.ssl);
    }
    if (over) {
        close(fd);
    } else {
        assert_true(site.n_held < MAX_HELD);
        site.held[site.n_held] = fd;
        atomic_fetch_add(&site.n_held, 1);
    }
}

static void *serve_all(void *arg)
{
    (void)arg;
    while (!atomic_load(&site.stop)) {
        struct pollfd p = {.fd = site.fd, .events = POLLIN};
        if (poll(&p, 1, 20) == 1)
            serve_one(accept(site.fd, NULL, NULL));
    }
    return NULL;
}

static void open_site(SSL_CTX *tls)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    struct sv_err err;

    memset(&site, 0, sizeof site);
    site.tls = tls;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    site.fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(site.fd >= 0);
    assert_int_equal(bind(site.fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(site.fd, 64), 0);
    assert_int_equal(getsockname(site.fd, (struct sockaddr *)&a, &n), 0);
    site.port = ntohs(a.sin_port);
    sv_buf_init(&site.image);
    assert_int_equal(
        sv_file_read(&site.image, sv_test_path("tests/golden/images/baseline.jpg"), 1 << 20, &err),
        SV_OK);
    assert_int_equal(sv_thread_start(&site.thread, serve_all, NULL, &err), SV_OK);
}

static void close_site(void)
{
    atomic_store(&site.stop, 1);
    sv_thread_join(site.thread);
    for (int i = 0; i < site.n_held; i++)
        close(site.held[i]);
    close(site.fd);
    sv_buf_fini(&site.image);
    SSL_CTX_free(site.tls);
}

/* ---------------------------------------------------------------- the server that asks */

static struct {
    atomic_int n_requests, n_images;
    int32_t width, height; /* of the last request's last image */
} seen;

static void look(void *user, const struct sv_request *r)
{
    (void)user;
    atomic_fetch_add(&seen.n_requests, 1);
    atomic_store(&seen.n_images, r->n_images);
    seen.width = r->n_images ? r->images[r->n_images - 1].width : 0;
    seen.height = r->n_images ? r->images[r->n_images - 1].height : 0;
}

static const char template[] =
    "{% for m in messages %}{% if m.content is string %}({{ m.content }})"
    "{% else %}{% for p in m.content %}{% if p.type == 'image' %}<img>{% else %}[{{ p.text }}]"
    "{% endif %}{% endfor %}{% endif %};{% endfor %}";

/* hosts: %d is the site's port. */
static void begin(struct hub *r, const char *hosts)
{
    static char allowed[128];
    const char *path = sv_test_tmp("shown.jinja");
    struct sv_err err;

    assert_int_equal(sv_file_write(path, template, sizeof template - 1, &err), SV_OK);
    snprintf(allowed, sizeof allowed, hosts, site.port);
    memset(&seen, 0, sizeof seen);
    r->o.media_hosts = allowed;
    if (!r->o.media_seconds)
        r->o.media_seconds = 100; /* generous: a busy machine may stop us for long */
    r->o.chat_template = path;
    r->fake.once = true;
    r->fake.burst = 8;
    r->fake.images = true;
    r->fake.on_submit = look;
    hub_open(r, false);
}

#define CHAT "/v1/chat/completions"
#define MESSAGES "/v1/messages"
#define RESPONSES "/v1/responses"
#define CHAT_OF(parts) "{\"messages\":[{\"role\":\"user\",\"content\":[" parts "]}]}"
#define CHAT_URL "{\"type\":\"image_url\",\"image_url\":{\"url\":\"%s\"}}"
#define MESSAGES_OF(parts)                                                                         \
    "{\"max_tokens\":200,\"messages\":[{\"role\":\"user\",\"content\":[" parts "]}]}"
#define SOURCE_URL "{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"%s\"}}"
#define RESPONSES_OF(parts) "{\"input\":[{\"role\":\"user\",\"content\":[" parts "]}]}"
#define INPUT_URL "{\"type\":\"input_image\",\"image_url\":\"%s\"}"

/* form has one %s, for the address: "%d" in it is the site's port. */
static const char *body_of(const char *form, const char *address)
{
    static char body[16384];
    char url[1024];

    snprintf(url, sizeof url, address, site.port);
    snprintf(body, sizeof body, form, url);
    return body;
}

static void expect_refused(json_t *v, const char *param, const char *message, const char *address)
{
    const char *said = hub_text(v, "error.message");

    if (!strstr(said, message) || strcmp(hub_text(v, "error.param"), param) != 0)
        fail_msg("%s: %s (%s)", address, said, hub_text(v, "error.param"));
}

static void three_dialects(void **state)
{
    (void)state;
    static const char *const addresses[] = {
        "http://127.0.0.1:%d/image",         "HTTP://127.0.0.1:%d/chunked",
        "http://127.0.0.1:%d/ends#fragment", "http://127.0.0.1:%d/a/image?x=1&y",
        "http://localhost:%d/image",
    };
    struct hub r = {0};
    int64_t n;
    json_t *v;

    open_site(NULL);
    begin(&r, "other.example, 127.0.0.1:%1$d,LocalHost:%1$d");
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        seen.width = 0;
        v = hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL), addresses[i]), 200);
        assert_string_equal(hub_text(v, "choices.0.message.content"), "<img>;");
        assert_true(seen.n_images == 1 && seen.width == 64 && seen.height == 48);
    }
    assert_non_null(strstr(site.head, "Host: localhost:"));
    n = hub_number(v, "usage.prompt_tokens");
    v = hub_json(&r, MESSAGES, body_of(MESSAGES_OF(SOURCE_URL), addresses[0]), 200);
    assert_string_equal(hub_text(v, "content.0.text"), "<img>;");
    assert_int_equal(hub_number(v, "usage.input_tokens"), n);
    v = hub_json(&r, MESSAGES "/count_tokens", body_of(MESSAGES_OF(SOURCE_URL), addresses[0]), 200);
    assert_int_equal(hub_number(v, "input_tokens"), n);
    v = hub_json(&r, RESPONSES, body_of(RESPONSES_OF(INPUT_URL), addresses[0]), 200);
    assert_string_equal(hub_text(v, "output.0.content.0.text"), "<img>;");
    assert_int_equal(hub_number(v, "usage.input_tokens"), n);

    /* the next turn asks again, and one address twice in a request is fetched once */
    const int before = site.n_asked;
    char turn[256];
    snprintf(
        turn, sizeof turn,
        "{\"previous_response_id\":\"%s\",\"input\":[{\"role\":\"user\",\"content\":[" INPUT_URL
        "]}]}",
        hub_text(v, "id"), "%s");
    v = hub_json(&r, RESPONSES, body_of(turn, addresses[0]), 200);
    assert_int_equal(seen.n_images, 2);
    assert_int_equal(site.n_asked, before + 1);
    hub_close(&r);
    close_site();
}

static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *address, *message;
    } list[] = {
        {"http://127.0.0.1:%d/cut", "the connection ended before the answer did"},
        {"http://127.0.0.1:%d/closed", "the connection ended before the answer did"},
        {"http://127.0.0.1:%d/text", "no known image"},
        {"http://127.0.0.1:%d/empty", "empty, where an image"},
        {"http://127.0.0.1:%d/huge", "it has more than 33554432 bytes"},
        {"http://127.0.0.1:%d/endless", "it has more than 33554432 bytes"},
        {"http://127.0.0.1:%d/moved", "the answer is 302, and redirects are not followed"},
        {"http://127.0.0.1:%d/none", "/none': the answer is 404"},
        {"http://127.0.0.1:%d/garbage", "the answer is not valid HTTP"},
        {"http://127.0.0.1:9/image", "the host cannot be connected to"},
        {"http://no-host.invalid/image", "the host is not found"},
        {"https://127.0.0.1:%d/image", "the connection ended before"}, /* it has no TLS */
        /* never asked */
        {"http://127.0.0.1/image", "port 80 of this host is not one of --media-url"},
        {"https://127.0.0.1/image", "port 443 of this host is not one of --media-url"},
        {"http://127.0.0.2:%d/image", "'127.0.0.2': port"},
        {"http://127.1:%d/image", "is not one of --media-url"},
        {"http://x.127.0.0.1:%d/image", "is not one of --media-url"},
        {"http://[::1]:%d/image", "is not one of --media-url"},
        {"http://a@127.0.0.1:%d/image", "with a user name is not fetched"},
        {"http://a:b@127.0.0.1:%d/image", "with a user name is not fetched"},
        {"http://127.0.0.1:%d@elsewhere/image", "with a user name is not fetched"},
        {"http://127.0.0.1:%d\\u0000/image", "it is no valid address"},
        {"http://127.0.0.1:%d/a b", "it is no valid address"},
        {"http://127.0.0.1:%d/a\\r\\nX: y", "it is no valid address"},
        {"http:///image", "it is no valid address"},
        {"http:127.0.0.1", "it is no valid address"},
        {"http://127.0.0.1:99999/", "it is no valid address"},
        {"ftp://127.0.0.1:%d/image", "must be a data: URL"},
    };
    struct hub r = {0};
    int asked = 0;

    open_site(NULL);
    begin(&r, "127.0.0.1:%d,127.0.0.1:9,no-host.invalid");
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        json_t *v = hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL), list[i].address), 400);
        expect_refused(v, "messages", list[i].message, list[i].address);
        assert_non_null(
            strstr(hub_text(v, "error.message"), "'messages[0].content[0].image_url.url'"));
        asked = strstr(list[i].address, "/garbage") ? site.n_asked : asked;
    }
    assert_true(asked == 9 && site.n_asked == asked);
    expect_refused(
        hub_json(&r, RESPONSES, body_of(RESPONSES_OF(INPUT_URL), "http://127.0.0.1:%d/moved"), 400),
        "input[0].content[0].image_url", "the answer is 302", "a response");
    assert_non_null(strstr(
        hub_text(hub_json(&r, MESSAGES "/count_tokens",
                          body_of(MESSAGES_OF(SOURCE_URL), "http://127.0.0.1:%d/moved"), 400),
                 "error.message"),
        "'messages[0].content[0].source.url': 'http://127.0.0.1:"));
    assert_int_equal(seen.n_requests, 0);
    hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL), "http://127.0.0.1:%d/image"), 200);
    hub_close(&r);
    close_site();
}

static void the_option(void **state)
{
    (void)state;
    static const char *const ill[] = {"",    ",",         "http://a", "a/b",  "a?b", "a:b",
                                      "a#b", "a:1,u@b:2", "a:99999",  "a,[b", ":80"};
    struct sv_serve *s;
    struct sv_err err;

    for (size_t i = 0; i < sizeof ill / sizeof ill[0]; i++) {
        struct sv_serve_options o = {.media_hosts = ill[i]};
        o.engine.target_dir = sv_test_path("models/demo/target");
        assert_int_equal(sv_serve_open(&s, &o, &err), SV_EINVAL);
        assert_non_null(strstr(err.msg, "option --media-url"));
    }
}

/* A slow host: its request fails after the time for all, which others do not feel; of one request
 * four addresses are asked at a time. */
static void slow(void **state)
{
    (void)state;
    struct hub r = {0};
    struct sv_buf parts;
    struct answer a;

    open_site(NULL);
    r.o.media_seconds = 5;
    begin(&r, "127.0.0.1:%d");
    sv_buf_init(&parts);
    for (int i = 0; i < 12; i++)
        sv_buf_printf(&parts,
                      "%s{\"type\":\"image_url\",\"image_url\":\"http://127.0.0.1:%d/hold%d\"}",
                      i ? "," : "", site.port, i);
    const char *body = strdup(body_of(CHAT_OF("%s"), parts.data));
    const int fd = hub_connect(&r);
    const int64_t start = sv_clock_us();
    hub_post(fd, CHAT, "", body);
    while (site.n_held < 4)
        hub_nap_ms(5);
    for (int tries = 1; r.a.status != 200; tries++) { /* the site may be stopped as long */
        hub_ask(&r, CHAT, body_of(CHAT_OF(CHAT_URL), "http://127.0.0.1:%d/image"), &r.a);
        assert_true(r.a.status == 200 || tries < 10);
    }
    answer_init(&a);
    answer_read(fd, &a);
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.body.data, "/hold0': it has not come within 5 seconds"));
    assert_true(sv_clock_us() - start >= 4900000);
    assert_int_equal(site.n_held, 4);
    answer_fini(&a);
    close(fd);
    free((void *)(uintptr_t)body);
    sv_buf_fini(&parts);
    hub_close(&r);
    close_site();
}

static void expect_hung_up(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c;

    assert_int_equal(poll(&p, 1, 30000), 1);
    assert_int_equal(recv(fd, &c, 1, 0), 0);
}

/* A client that leaves ends its fetches, and so does the server's end. */
static void clients_that_leave(void **state)
{
    (void)state;
    static const struct {
        const char *path, *form;
    } list[] = {{CHAT, CHAT_OF(CHAT_URL)}, {MESSAGES "/count_tokens", MESSAGES_OF(SOURCE_URL)}};
    struct hub r = {0};
    int fds[2];

    open_site(NULL);
    r.o.media_seconds = 100;
    r.o.drain_seconds = 1;
    begin(&r, "127.0.0.1:%d");
    for (int k = 0; k < 4; k++) {
        const int fd = hub_connect(&r);
        hub_post(fd, list[k % 2].path, "", body_of(list[k % 2].form, "http://127.0.0.1:%d/hold"));
        while (site.n_held <= k)
            hub_nap_ms(5);
        if (k < 2) {
            close(fd);
            expect_hung_up(site.held[k]);
        } else {
            fds[k - 2] = fd;
        }
    }
    hub_close(&r);
    expect_hung_up(site.held[2]);
    expect_hung_up(site.held[3]);
    assert_int_equal(seen.n_requests, 0);
    close(fds[0]);
    close(fds[1]);
    close_site();
}

/* What is kept of all images is limited; it is given back. */
static void memory_of_all(void **state)
{
    (void)state;
    struct hub r = {0};

    open_site(NULL);
    r.o.max_kept_bytes = (int64_t)site.image.len + 10;
    begin(&r, "127.0.0.1:%d");
    for (int i = 0; i < 2; i++) {
        json_t *v =
            hub_json(&r, CHAT,
                     body_of(CHAT_OF(CHAT_URL ",{\"type\":\"image_url\",\"image_url\":\"http://"
                                              "127.0.0.1:1/\"}"),
                             "http://127.0.0.1:%d/image"),
                     400);
        expect_refused(v, "messages", "port 1 of this host", "port 1");
        v = hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL), "http://127.0.0.1:%d/endless"), 503);
        assert_non_null(strstr(hub_text(v, "error.message"), "too many fetched images"));
        hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL), "http://127.0.0.1:%d/image"), 200);
    }
    hub_close(&r);
    close_site();
}

/* ---------------------------------------------------------------- TLS */

/* A self-signed certificate for 127.0.0.1, and the file that makes it a trusted one. */
static SSL_CTX *new_certificate(const char *file)
{
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    X509_EXTENSION *names = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "IP:127.0.0.1");
    FILE *to = fopen(file, "w");

    assert_true(tls && key && cert && names && to);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -86400);
    X509_gmtime_adj(X509_getm_notAfter(cert), 86400);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    X509_set_pubkey(cert, key);
    X509_add_ext(cert, names, -1);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_CTX_use_certificate(tls, cert), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(tls, key), 1);
    assert_int_equal(PEM_write_X509(to, cert), 1);
    fclose(to);
    X509_EXTENSION_free(names);
    X509_free(cert);
    EVP_PKEY_free(key);
    return tls;
}

/* A certificate counts if it is trusted and for this host; the request comes after that. */
static void certificates(void **state)
{
    (void)state;
    const char *file = strdup(sv_test_tmp("cert.pem"));

    for (int trusted = 0; trusted < 2; trusted++) {
        struct hub r = {0};
        open_site(new_certificate(file));
        unsetenv("SSL_CERT_FILE");
        if (trusted)
            setenv("SSL_CERT_FILE", file, 1);
        begin(&r, "127.0.0.1:%1$d,localhost:%1$d");
        json_t *v = hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL), "https://127.0.0.1:%d/image"),
                             trusted ? 200 : 400);
        if (!trusted)
            expect_refused(v, "messages", "the certificate is refused: self-signed certificate",
                           "self-signed");
        assert_int_equal(seen.n_images, trusted);
        v = hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL), "https://localhost:%d/image"), 400);
        expect_refused(v, "messages",
                       trusted ? "the certificate is refused: hostname mismatch"
                               : "the certificate is refused",
                       "localhost");
        assert_int_equal(site.n_asked, trusted);
        if (trusted) {
            v = hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL), "https://127.0.0.1:%d/cut"), 400);
            expect_refused(v, "messages", "the connection ended before the answer did", "cut");
        }
        hub_close(&r);
        close_site();
    }
    unsetenv("SSL_CERT_FILE");
    free((void *)(uintptr_t)file);
}

SV_TEST_MAIN(cmocka_unit_test(three_dialects), cmocka_unit_test(what_is_refused),
             cmocka_unit_test(the_option), cmocka_unit_test(slow),
             cmocka_unit_test(clients_that_leave), cmocka_unit_test(memory_of_all),
             cmocka_unit_test(certificates))
