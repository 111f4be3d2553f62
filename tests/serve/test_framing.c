/*
 * test_framing.c - requests that two parsers could cut differently, on a real socket: each gets one
 * refusal and a closed connection, and the following bytes are never read as a request.
 */
#define _DEFAULT_SOURCE

#include "serve/hub.h"

#include "testing.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define POST "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
/* Whole, and short enough for one chunk of 0x1f bytes. */
#define BODY "{\"prompt\":\"ab\",\"max_tokens\":1} "
#define BEHIND "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"

/* All that comes until the connection ends. */
static void read_all(int fd, struct sv_buf *b)
{
    char part[4096];
    ssize_t n;

    while ((n = recv(fd, part, sizeof part, 0)) > 0)
        sv_buf_append(b, part, (size_t)n);
}

/* In one piece, or the part behind `cut` later. */
static void refused(struct hub *r, const char *text, size_t n, size_t cut)
{
    struct sv_buf got;
    int fd = hub_connect(r);

    sv_buf_init(&got);
    hub_send(fd, text, cut);
    if (cut < n) {
        hub_nap_ms(2);
        send(fd, text + cut, n - cut, MSG_NOSIGNAL); /* refused already, perhaps */
    }
    send(fd, BEHIND, sizeof BEHIND - 1, MSG_NOSIGNAL);
    read_all(fd, &got);
    if (!got.len || strncmp(got.data, "HTTP/1.1 4", 10) != 0 ||
        hub_count(got.data, "\nContent-Length: ") != 1 ||
        !strstr(got.data, "Connection: close\r\n"))
        fail_msg("%.*s\n(cut at %zu) gave: %s", (int)n, text, cut, got.data ? got.data : "");
    sv_buf_fini(&got);
    close(fd);
}

#define TEXT(s)                                                                                    \
    {                                                                                              \
        s, sizeof s - 1                                                                            \
    }

static void read_byte(int fd, struct sv_buf *b)
{
    char c;

    assert_int_equal(recv(fd, &c, 1, 0), 1);
    sv_buf_append(b, &c, 1);
}

static void one_reading_only(void **state)
{
    static const struct {
        const char *text;
        size_t n;
    } tries[] = {
        /* a length beside a coding, either way round */
        TEXT(POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n1f\r\n" BODY
                  "\r\n0\r\n\r\n"),
        TEXT(POST "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n1f\r\n" BODY
                  "\r\n0\r\n\r\n"),
        /* codings twice, and in a version that has none */
        TEXT(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n1f\r\n" BODY
                  "\r\n0\r\n\r\n"),
        TEXT("POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n1f\r\n" BODY
             "\r\n0\r\n\r\n"),
        /* lengths that are no digits, or two */
        TEXT(POST "Content-Length: +31\r\n\r\n" BODY),
        TEXT(POST "Content-Length: 31\r\nContent-Length: 5\r\n\r\n" BODY),
        TEXT(POST "Content-Length: 31, 31\r\n\r\n" BODY),
        TEXT(POST "Content-Length: 0x1f\r\n\r\n" BODY),
        TEXT(POST "Content-Length:\r\n\r\n" BODY),
        /* the target */
        TEXT("GET /version HTTP/1.1 HTTP/1.1\r\nHost: x\r\nX-Long: enough to cut\r\n\r\n"),
        TEXT("GET  /version HTTP/1.1\r\nHost: x\r\nX-Long: enough to be cut\r\n\r\n"),
        TEXT("GET version HTTP/1.1\r\nHost: x\r\nX-Long: enough to be cut\r\n\r\n"),
        TEXT("GET * HTTP/1.1\r\nHost: x\r\nX-Long: enough to be cut\r\n\r\n"),
        TEXT("GET /ver\x7fsion HTTP/1.1\r\nHost: x\r\nX-Long: enough to cut\r\n\r\n"),
        /* names and values */
        TEXT(POST "Content-Length : 31\r\n\r\n" BODY),
        TEXT(POST "X-A\x0b: 1\r\nContent-Length: 31\r\n\r\n" BODY),
        TEXT(POST "X(A): 1\r\nContent-Length: 31\r\n\r\n" BODY),
        TEXT(POST ": 1\r\nContent-Length: 31\r\n\r\n" BODY),
        TEXT(POST "X-A: 1\rTransfer-Encoding: chunked\r\nContent-Length: 31\r\n\r\n" BODY),
        TEXT(POST "Content-Length: 31\0\r\n\r\n" BODY),
        TEXT(POST "Content-Length: 31\r\n\0X: y\r\n\r\n" BODY),
        TEXT(POST "X: a\0b\r\nContent-Length: 31\r\n\r\n" BODY),
        TEXT("POST /v1/completions\0 HTTP/1.1\r\nHost: x\r\nContent-Length: 31\r\n\r\n" BODY),
        TEXT(POST "Transfer-Encoding:\r\n chunked\r\n\r\n1f\r\n" BODY "\r\n0\r\n\r\n"),
        TEXT(POST "Transfer-Encoding: chunked\0\r\n\r\n1f\r\n" BODY "\r\n0\r\n\r\n"),
        /* sizes of chunks that are no hexadecimal digits */
        TEXT(CHUNKED "+1f\r\n" BODY "\r\n0\r\n\r\n"),
        TEXT(CHUNKED "0x1f\r\n" BODY "\r\n0\r\n\r\n"),
        TEXT(CHUNKED " 1f\r\n" BODY "\r\n0\r\n\r\n"),
        TEXT(CHUNKED "1f x\r\n" BODY "\r\n0\r\n\r\n"),
        TEXT(CHUNKED "1f\r\n" BODY "\r\n0 1\r\n\r\n"),
        TEXT(CHUNKED "1f\0\r\n" BODY "\r\n0\r\n\r\n"),
        TEXT(CHUNKED "ffffffffffffffff1f\r\n" BODY "\r\n0\r\n\r\n"),
        /* line ends of chunks */
        TEXT(CHUNKED "1f\n" BODY "\r\n0\r\n\r\n"),
        TEXT(CHUNKED "1f;a\n" BODY "\r\n0\r\n\r\n"),
        TEXT(CHUNKED "1f;a\rb\r\n" BODY "\r\n0\r\n\r\n"),
        TEXT(CHUNKED "1f\r" BODY "\r\n0\r\n\r\n"),
        TEXT(CHUNKED "1f\r\n" BODY "0\r\n\r\n"),
        TEXT(CHUNKED "1f\r\n" BODY "\n0\r\n\r\n"),
        TEXT(CHUNKED "1f\r\n" BODY "xx0\r\n\r\n"),
        TEXT(CHUNKED "1f\r\n" BODY "\r\n\r\n0\r\n\r\n"),
        TEXT(CHUNKED "1f\r\n" BODY "\r\n0\r\nX: a\0b\r\n\r\n"),
    };
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        refused(&r, tries[i].text, tries[i].n, tries[i].n);
        for (size_t cut = 50; cut < tries[i].n; cut += 7)
            refused(&r, tries[i].text, tries[i].n, cut);
    }
    hub_close(&r);
}

/* Other ways to ask for what is there. */
static void targets(void **state)
{
    static const char *const asks[] = {"GET http://elsewhere/version", "GET /version?a=b c",
                                       "GET //version/", "GET /%76ersion#x", "OPTIONS *"};
    struct hub r = {0};
    char text[100];
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        int fd = hub_connect(&r);
        snprintf(text, sizeof text, "%s HTTP/1.1\r\nHost: x\r\n\r\n", asks[i]);
        hub_send_text(fd, text);
        answer_read(fd, &r.a);
        if (r.a.status != (i == 1 ? 400 : *asks[i] == 'O' ? 204 : 200))
            fail_msg("%s gave %d", asks[i], r.a.status);
        close(fd);
    }
    hub_close(&r);
}

/* What HTTP lets every method have, though none of these needs it, is no request of its own. */
static void bodies_of_other_methods(void **state)
{
    static const char *const methods[] = {"GET", "HEAD", "DELETE", "OPTIONS"};
    char text[400];
    struct sv_buf got;
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&got);
    for (int i = 0; i < 16; i++) {
        bool split = i & 4, chunked = i & 8;
        int fd = hub_connect(&r);
        int n =
            snprintf(text, sizeof text, "%s /version HTTP/1.1\r\nHost: x\r\n%s: ", methods[i % 4],
                     chunked ? "Transfer-Encoding" : "Content-Length");
        if (chunked)
            snprintf(text + n, sizeof text - (size_t)n, "chunked\r\n\r\n%zx\r\n",
                     sizeof BEHIND - 1);
        else
            snprintf(text + n, sizeof text - (size_t)n, "%zu\r\n\r\n", sizeof BEHIND - 1);
        hub_send_text(fd, text);
        if (split)
            hub_nap_ms(20);
        snprintf(text, sizeof text, "%s%s", BEHIND, chunked ? "\r\n0\r\n\r\n" : "");
        send(fd, text, strlen(text), MSG_NOSIGNAL);
        hub_nap_ms(20);
        shutdown(fd, SHUT_WR);
        sv_buf_clear(&got);
        read_all(fd, &got);
        if (hub_count(got.data ? got.data : "", "x-request-id: ") != 1)
            fail_msg("%s, try %d, gave: %s", methods[i % 4], i, got.data ? got.data : "");
        close(fd);
    }
    /* A connection whose body was there goes on. */
    int fd = hub_connect(&r);
    for (int i = 0; i < 3; i++) {
        hub_send_text(fd,
                      "HEAD /v1/responses/a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
        sv_buf_clear(&got);
        do
            read_byte(fd, &got);
        while (!strstr(got.data, "\r\n\r\n"));
        assert_non_null(strstr(got.data, "HTTP/1.1 404 "));
    }
    close(fd);
    sv_buf_fini(&got);
    hub_close(&r);
}

/* Neither in memory nor in time: what has no end is cut off. */
static void endless_lines_of_chunks(void **state)
{
    static const char *const begin[] = {CHUNKED "5;", CHUNKED "0", CHUNKED "5 ",
                                        CHUNKED "5\r\nhello", CHUNKED "5\r\nhello\r\n0;"};
    static char more[65536];
    struct hub r = {0};
    struct sv_buf got;
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&got);
    for (size_t i = 0; i < 2 * sizeof begin / sizeof *begin; i++) {
        int fd = hub_connect(&r);
        memset(more, i == 1 ? '0' : i == 2 ? ' ' : 'a', sizeof more);
        hub_send_text(fd, begin[i % (sizeof begin / sizeof *begin)]);
        if (i >= sizeof begin / sizeof *begin)
            for (int k = 0; k < 2000; k++)
                send(fd, more, 1, MSG_NOSIGNAL);
        else
            send(fd, more, sizeof more, MSG_NOSIGNAL);
        sv_buf_clear(&got);
        read_all(fd, &got);
        if (!got.len || strncmp(got.data, "HTTP/1.1 4", 10) != 0)
            fail_msg("%s gave: %s", begin[i % (sizeof begin / sizeof *begin)],
                     got.data ? got.data : "");
        close(fd);
    }
    sv_buf_fini(&got);
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(one_reading_only), cmocka_unit_test(targets),
             cmocka_unit_test(bodies_of_other_methods), cmocka_unit_test(endless_lines_of_chunks))
