/*
 * test_http_parse.c - the HTTP parser on streams of bytes: what it makes of them, however they are
 * cut; what two readers could understand differently is refused; limits; how much work it does.
 */
#include "serve/http/http_parse.h"
#include "serve/requests.h"

#include "testing.h"

#include <string.h>

#define LIMIT 1000 /* of a body */
#define GET "GET /a HTTP/1.1\r\nHost: x\r\n"
#define POST "POST /a HTTP/1.1\r\nHost: x\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define AT "GET x /a ? 1.1 Host=x [" /* what GET makes */
#define OF "POST x /a ? 1.1 chunked Host=x Transfer-Encoding=chunked ["

struct
try {
    const char *text;
    size_t n;
    const char *want; /* the log; or only the beginning of its last line */
};
#define TEXT(s, want)                                                                              \
    {                                                                                              \
        s, sizeof s - 1, want                                                                      \
    }

static void read_one(const struct try *t, uint64_t cuts)
{
    struct sv_buf log;

    sv_buf_init(&log);
    requests_read(&log, t->text, t->n, LIMIT, cuts);
    if (strcmp(log.data, t->want) != 0)
        fail_msg("%.*s\n(cuts: %d) gave:\n%s\nand not:\n%s", (int)t->n, t->text, (int)cuts,
                 log.data, t->want);
    sv_buf_fini(&log);
}

/* Whole, byte by byte, and in random pieces. */
static void read_all(const struct try *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (uint64_t cuts = 0; cuts < 40; cuts++)
            read_one(&t[i], cuts);
}

static void requests(void **state)
{
    static const struct try tries[] = {
        TEXT("", "idle\n"),
        TEXT(GET "\r\n", AT "]\nidle\n"),
        TEXT(GET "\r\n" GET "\r\n", AT "]\n" AT "]\nidle\n"),
        TEXT("\r\n\r\n" GET "\r\n\r\n" GET "\r\n\r\n", AT "]\n" AT "]\nmore\n"),
        TEXT(GET, "more\n"),
        /* targets */
        TEXT("GET //v1//models/?a=b?c#d HTTP/1.1\r\nHost: x\r\n\r\n",
             "GET x /v1//models ?a=b?c 1.1 Host=x []\nidle\n"),
        TEXT("GET /%41%2f%00%zz%4 HTTP/1.1\r\nHost: x\r\n\r\n",
             "GET x /A/%00%zz%4 ? 1.1 Host=x []\nidle\n"),
        TEXT("GET http://h:80/a/b?c HTTP/1.1\r\nHost: x\r\n\r\n",
             "GET h:80 /a/b ?c 1.1 Host=x []\nidle\n"),
        TEXT("GET HTTPS://h?c HTTP/1.1\r\nHost: x\r\n\r\n", "GET h / ?c 1.1 Host=x []\nidle\n"),
        TEXT("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "OPTIONS x / ? 1.1 Host=x []\nidle\n"),
        TEXT("GET / HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n",
             "GET [::1]:8000 / ? 1.1 Host=[::1]:8000 []\nidle\n"),
        /* versions and connections */
        TEXT("GET / HTTP/1.0\r\n\r\n", "GET - / ? 1.0 close []\nidle\n"),
        TEXT("GET / HTTP/1.0\r\nConnection: a, Keep-Alive\r\n\r\n",
             "GET - / ? 1.0 Connection=a, Keep-Alive []\nidle\n"),
        TEXT("GET / HTTP/1.2\r\nHost: x\r\nConnection:close ,a\r\n\r\n",
             "GET x / ? 1.1 close Host=x Connection=close ,a []\nidle\n"),
        TEXT("GET / HTTP/1.1\r\nHost: x\r\nConnection: closed\r\n\r\n",
             "GET x / ? 1.1 Host=x Connection=closed []\nidle\n"),
        /* fields */
        TEXT(GET "A:\r\nb: \t c \t\r\nD:\xff\r\n\r\n",
             "GET x /a ? 1.1 Host=x A= b=c D=\xff []\nidle\n"),
        TEXT(GET "Expect: 100-Continue\r\n\r\n",
             "GET x /a ? 1.1 expects Host=x Expect=100-Continue []\nidle\n"),
        TEXT("GET / HTTP/1.0\r\nExpect: a miracle\r\n\r\n",
             "GET - / ? 1.0 close Expect=a miracle []\nidle\n"),
        /* bodies */
        TEXT(POST "content-length: 3\r\nContent-Length: 3\r\n\r\nabc" GET "\r\n",
             "POST x /a ? 1.1 Host=x content-length=3 Content-Length=3 [abc]\n" AT "]\nidle\n"),
        TEXT(GET "Content-Length: 4\r\n\r\nGET ",
             "GET x /a ? 1.1 Host=x Content-Length=4 [GET ]\nidle\n"),
        TEXT(POST "Content-Length: 4\r\n\r\nabc",
             "POST x /a ? 1.1 Host=x Content-Length=4 [abcmore\n"),
        TEXT(POST "Content-Length: 000\r\n\r\n",
             "POST x /a ? 1.1 Host=x Content-Length=000 []\nidle\n"),
        TEXT(CHUNKED "0\r\n\r\n" GET "\r\n", OF "]\n" AT "]\nidle\n"),
        TEXT(CHUNKED "3\r\nabc\r\n000A;x\r\n0123456789\r\n0\r\nTrailer: 3;g\r\nX:\r\n\r\n",
             OF "abc0123456789]\nidle\n"),
        TEXT(CHUNKED "2;a=b; c=\"d\"\r\n\r\n\r\n1 ;e\r\n;\r\n1\t; f\r\n0\r\n0 \r\n\r\n",
             OF "\r\n;0]\nidle\n"),
        TEXT(CHUNKED "3\r\nab", OF "abmore\n"),
    };
    (void)state;
    read_all(tries, sizeof tries / sizeof *tries);
}

/* One error and nothing behind it, though a whole request follows each of these. */
static void one_reading_only(void **state)
{
    static const struct try tries[] = {
        /* the request line */
        TEXT("GET\r\n\r\n", "400 the request line does not begin"),
        TEXT(" GET / HTTP/1.1\r\n", "400 the request line does not begin"),
        TEXT("\x16\x03\x01", "400 the request line does not begin"),
        TEXT("\r\rGET / HTTP/1.1\r\n", "400 the request line does not begin"),
        TEXT("G{T / HTTP/1.1\r\n", "400 the request line does not begin"),
        TEXT("GET /\r\n", "400 the request line does not end"),
        TEXT("GET  / HTTP/1.1\r\n", "400 the request line does not end"),
        TEXT("GET / HTTP/1.1 HTTP/1.1\r\n", "400 the request line does not end"),
        TEXT("GET / HTTP/1.1 \r\n", "400 the request line does not end"),
        TEXT("GET /\tHTTP/1.1\r\n", "400 the request line does not end"),
        TEXT("GET / http/1.1\r\n", "400 the request line does not end"),
        TEXT("GET / HTCPCP/1.0\r\n", "400 the request line does not end"),
        TEXT("GET / HTTP/1.-1\r\n", "400 the request line does not end"),
        TEXT("GET / HTTP/1.10\r\n", "400 the request line does not end"),
        TEXT("GET / HTTP/11\r\n", "400 the request line does not end"),
        TEXT("GET / HTTP/2.0\r\n", "505 "),
        TEXT("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 "),
        TEXT("GET / HTTP/0.9\r\n", "505 "),
        TEXT("BREW / HTTP/1.1\r\n", "501 "),
        TEXT("get / HTTP/1.1\r\n", "501 "),
        TEXT("GETT / HTTP/1.1\r\n", "501 "),
        TEXT("GET / HTTP/1.1\n", "400 a line does not end with CR and LF"),
        TEXT("\n", "400 the request line does not begin"),
        TEXT("\r\n\n", "400 the request line does not begin"),
        /* the target */
        TEXT("GET a HTTP/1.1\r\n", "400 the request target is neither"),
        TEXT("GET * HTTP/1.1\r\n", "400 the request target is neither"),
        TEXT("GET ?a HTTP/1.1\r\n", "400 the request target is neither"),
        TEXT("GET http:/// HTTP/1.1\r\n", "400 the request target is neither"),
        TEXT("GET ftp://h/ HTTP/1.1\r\n", "400 the request target is neither"),
        TEXT("GET http://u@h/ HTTP/1.1\r\n", "400 the request target is neither"),
        TEXT("GET /\x7f HTTP/1.1\r\n", "400 the request target has a control character"),
        TEXT("GET /\0 HTTP/1.1\r\n", "400 the request target has a control character"),
        TEXT("GET /\r/ HTTP/1.1\r\n", "400 the request target has a control character"),
        /* Host */
        TEXT("GET / HTTP/1.1\r\n\r\n", "400 the header has no Host"),
        TEXT("GET http://h/ HTTP/1.2\r\n\r\n", "400 the header has no Host"),
        TEXT(GET "Host: y\r\n", "400 Host is there twice"),
        TEXT(GET "Host: x\r\n", "400 Host is there twice"),
        TEXT("GET / HTTP/1.1\r\nHost: a b\r\n", "400 Host is there twice, or is not"),
        TEXT("GET / HTTP/1.1\r\nHost: a/b\r\n", "400 Host is there twice, or is not"),
        TEXT("GET / HTTP/1.1\r\nHost: u@b\r\n", "400 Host is there twice, or is not"),
        TEXT("GET / HTTP/1.1\r\nHost: a,b\r\n", "400 Host is there twice, or is not"),
        TEXT("GET / HTTP/1.1\r\nHost: \xc3\xa4\r\n", "400 Host is there twice, or is not"),
        /* names and values */
        TEXT(GET "X: a\r\n b\r\n", "400 a header line is folded"),
        TEXT("GET / HTTP/1.1\r\n Host: x\r\n", "400 a header line is folded"),
        TEXT(POST "Transfer-Encoding:\r\n chunked\r\n\r\n", "400 "),
        TEXT(GET "X-A\r\n", "400 a header line is not"),
        TEXT(GET ": 1\r\n", "400 a header line is not"),
        TEXT(GET "X : 1\r\n", "400 a header line is not"),
        TEXT(GET "X\x0b: 1\r\n", "400 a header line is not"),
        TEXT(GET "X(A): 1\r\n", "400 a header line is not"),
        TEXT(GET "\0X: y\r\n", "400 a header line is not"),
        TEXT(GET "X: a\0b\r\n", "400 a header field has a control character"),
        TEXT(GET "X: a\rContent-Length: 3\r\n", "400 a header field has a control character"),
        TEXT(GET "X: a\r\r\n", "400 a header field has a control character"),
        TEXT(GET "X: a\x0b\r\n", "400 a header field has a control character"),
        TEXT(GET "X: a\n", "400 a line does not end with CR and LF"),
        TEXT(GET "\n", "400 a line does not end with CR and LF"),
        TEXT(GET "Expect: a miracle\r\n", "417 "),
        /* lengths and codings */
        TEXT(POST "Content-Length: +3\r\n", "400 Content-Length is not a number"),
        TEXT(POST "Content-Length: -3\r\n", "400 Content-Length is not a number"),
        TEXT(POST "Content-Length: 0x3\r\n", "400 Content-Length is not a number"),
        TEXT(POST "Content-Length: 3, 3\r\n", "400 Content-Length is not a number"),
        TEXT(POST "Content-Length: 3 3\r\n", "400 Content-Length is not a number"),
        TEXT(POST "Content-Length:\r\n", "400 Content-Length is not a number"),
        TEXT(POST "Content-Length: 3\r\nContent-Length: 4\r\n", "400 there are two values"),
        TEXT(POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
             "400 the header has b"),
        TEXT(POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
             "400 the header has b"),
        TEXT(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
             "400 of Transfer"),
        TEXT(POST "Transfer-Encoding: gzip, chunked\r\n", "400 of Transfer-Encoding"),
        TEXT(POST "Transfer-Encoding: chunked, identity\r\n", "400 of Transfer-Encoding"),
        TEXT(POST "Transfer-Encoding: xchunked\r\n", "400 of Transfer-Encoding"),
        TEXT(POST "Transfer-Encoding:\r\n", "400 of Transfer-Encoding"),
        TEXT("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", "400 of Transfer-Encoding"),
        /* chunks */
        TEXT(CHUNKED "\r\n", "400 a chunk has no size"),
        TEXT(CHUNKED ";a\r\n", "400 a chunk has no size"),
        TEXT(CHUNKED "+3\r\nabc\r\n", "400 a chunk has no size"),
        TEXT(CHUNKED " 3\r\nabc\r\n", "400 a chunk has no size"),
        TEXT(CHUNKED "\n", "400 a chunk has no size"),
        TEXT(CHUNKED "0x3\r\nabc\r\n", "400 a chunk's size is not followed"),
        TEXT(CHUNKED "3 x\r\nabc\r\n", "400 a chunk's size is not followed"),
        TEXT(CHUNKED "3\nabc\r\n", "400 a chunk's size is not followed"),
        TEXT(CHUNKED "3\rabc\r\n", "400 a chunk's size is not followed"),
        TEXT(CHUNKED "3\0\r\nabc\r\n", "400 a chunk's size is not followed"),
        TEXT(CHUNKED "3;a\rb\r\nabc\r\n", "400 a chunk's size is not followed"),
        TEXT(CHUNKED "3;a\nabc\r\n", "400 a chunk's extension"),
        TEXT(CHUNKED "3;\0\r\nabc\r\n", "400 a chunk's extension"),
        TEXT(CHUNKED "ffffffffffffffff3\r\nabc\r\n", "400 a chunk's size is out of range"),
        TEXT(CHUNKED "3\r\nabc0\r\n", "400 a chunk does not end"),
        TEXT(CHUNKED "3\r\nabc\n0\r\n", "400 a chunk does not end"),
        TEXT(CHUNKED "3\r\nabc\r0\r\n", "400 a chunk does not end"),
        TEXT(CHUNKED "3\r\nabcd\r\n0\r\n", "400 a chunk does not end"),
        TEXT(CHUNKED "0\r\nX: a\0b\r\n\r\n", "400 a header field has a control character"),
        TEXT(CHUNKED "0\r\nX\r\n\r\n", "400 a header line is not"),
        TEXT(CHUNKED "0\r\n X: a\r\n\r\n", "400 a header line is folded"),
        TEXT(CHUNKED "0\r\n\n", "400 a line does not end with CR and LF"),
        /* limits */
        TEXT(POST "Content-Length: 1001\r\n\r\na", "413 "),
        TEXT(POST "Content-Length: 9223372036854775808\r\n\r\na", "413 "),
        TEXT(POST "Content-Length: 99999999999999999999999\r\n\r\na", "413 "),
        TEXT(CHUNKED "3e9\r\na", "413 "),
        TEXT(CHUNKED "fffffffffffffff\r\na", "413 "),
    };
    struct sv_buf log, text;
    (void)state;

    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
        for (uint64_t cuts = 0; cuts < 20; cuts++) {
            sv_buf_init(&log);
            sv_buf_init(&text);
            sv_buf_append(&text, tries[i].text, tries[i].n);
            sv_buf_lit(&text, "\r\n\r\n" GET "\r\n");
            requests_read(&log, text.data, text.len, LIMIT, cuts);
            const char *last = strrchr(log.data, '[') ? strrchr(log.data, '[') + 1 : log.data;
            /* of a body only what came before the error */
            last += strspn(last, "abcd");
            if (strncmp(last, tries[i].want, strlen(tries[i].want)) != 0 || !strchr(last, '\n') ||
                strchr(last, '\n')[1])
                fail_msg("%.*s\n(cuts: %d) gave:\n%s", (int)tries[i].n, tries[i].text, (int)cuts,
                         log.data);
            sv_buf_fini(&text);
            sv_buf_fini(&log);
        }
}

/* A body of just the limit, in one piece and in chunks; headers, trailers and lines of chunks up to
 * theirs. */
static void limits(void **state)
{
    static const struct {
        const char *before, *after;
        char fill;
        size_t most;
        const char *want, *beyond;
    } tries[] = {
        {POST "Content-Length: 1000\r\n\r\n", "", 'a', 1000, "]\nidle\n", NULL},
        {CHUNKED "3e8\r\n", "\r\n0\r\n\r\n", 'a', 1000, "]\nidle\n", NULL},
        {GET "X: ", "\r\n\r\n", 'a', SV_HTTP_MAX_HEAD - sizeof GET "X: \r\n\r\n" + 1, "]\nidle\n",
         "431 "},
        {GET "", ": \r\n\r\n", 'a', SV_HTTP_MAX_HEAD - sizeof GET ": \r\n\r\n" + 1, "]\nidle\n",
         "431 "},
        {"GET /", " HTTP/1.1\r\nHost: x\r\n\r\n", 'a',
         SV_HTTP_MAX_HEAD - sizeof "GET / HTTP/1.1\r\nHost: x\r\n\r\n" + 1, "]\nidle\n", "431 "},
        {CHUNKED "0\r\nX:", "\r\n\r\n", ' ', SV_HTTP_MAX_HEAD - sizeof CHUNKED "X:\r\n\r\n" + 1,
         "]\nidle\n", "431 "},
        {CHUNKED "0;", "\r\n\r\n", 'a', SV_HTTP_MAX_CHUNK_LINE - 3, "]\nidle\n", "400 "},
        {CHUNKED, "\r\n\r\n", '0', SV_HTTP_MAX_CHUNK_LINE - 1, "]\nidle\n", "400 "},
        {CHUNKED "0", ";\r\n\r\n", ' ', SV_HTTP_MAX_CHUNK_LINE - 3, "]\nidle\n", "400 "},
    };
    struct sv_buf text, log;
    (void)state;

    for (size_t i = 0; i < 2 * sizeof tries / sizeof *tries; i++) {
        size_t k = i / 2, n = tries[k].most + i % 2;
        const char *want = i % 2 ? tries[k].beyond : tries[k].want;
        sv_buf_init(&text);
        sv_buf_printf(&text, "%s", tries[k].before);
        for (size_t j = 0; j < n; j++)
            sv_buf_append(&text, &tries[k].fill, 1);
        sv_buf_printf(&text, "%s", tries[k].after);
        for (uint64_t cuts = 0; want && cuts < 4; cuts++) {
            sv_buf_init(&log);
            requests_read(&log, text.data, text.len, LIMIT, cuts);
            if (!strstr(log.data, want))
                fail_msg("%s (%zu, cuts: %d) gave: %.60s ... %s", tries[k].before, n, (int)cuts,
                         log.data, log.data + (log.len > 60 ? log.len - 60 : 0));
            sv_buf_fini(&log);
        }
        sv_buf_fini(&text);
    }
}

/* However long a body is, each piece of it takes one call, which looks at none of its bytes: the
 * work is counted in calls and in bytes that are used a second time (none are). */
static void body_takes_one_call_a_piece(void **state)
{
    enum { PIECE = 16384, N = 1024 };
    static const char head[] = POST "Content-Length: 16777216\r\n\r\n";
    static char piece[PIECE];
    struct sv_http_parser p;
    size_t used;
    (void)state;

    sv_http_parser_init(&p, INT64_C(1) << 30);
    assert_int_equal(sv_http_parse(&p, head, sizeof head - 1, &used), SV_HTTP_HEAD);
    size_t before = p.head.len;
    for (int i = 0; i < N; i++) {
        assert_int_equal(sv_http_parse(&p, piece, PIECE, &used), SV_HTTP_DATA);
        assert_int_equal(used, PIECE);
        assert_int_equal(p.n_data, PIECE);
    }
    assert_int_equal(sv_http_parse(&p, "", 0, &used), SV_HTTP_END);
    assert_int_equal(p.head.len, before); /* nothing of the body is kept here */
    sv_http_parser_fini(&p);
}

/* Without memory for the header: 503, and nothing leaks. */
static void without_memory(void **state)
{
    struct sv_buf log;
    int n_failed = 0;
    (void)state;

    for (int64_t nth = 1; nth < 4; nth++) {
        struct sv_http_parser p;
        size_t used;
        int64_t live = sv_alloc_live();
        sv_http_parser_init(&p, LIMIT);
        sv_fault_arm(nth);
        enum sv_http_event e = sv_http_parse(&p, GET "\r\n", sizeof GET + 1, &used);
        sv_fault_arm(0);
        n_failed += e == SV_HTTP_BAD && p.status == 503;
        sv_http_parser_fini(&p);
        assert_int_equal(sv_alloc_live(), live);
    }
    assert_true(n_failed > 0);
    sv_buf_init(&log);
    requests_read(&log, GET "\r\n", sizeof GET + 1, LIMIT, 0);
    assert_string_equal(log.data, AT "]\nidle\n");
    sv_buf_fini(&log);
}

SV_TEST_MAIN(cmocka_unit_test(requests), cmocka_unit_test(one_reading_only),
             cmocka_unit_test(limits), cmocka_unit_test(body_takes_one_call_a_piece),
             cmocka_unit_test(without_memory))
