/*
 * test_http.c - connections: clients that close one direction, refusals that come at once and end
 * the connection, keys before bodies, limits of connections, memory and time.
 */
#define _DEFAULT_SOURCE

#include "serve/hub.h"

#include "testing.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define TEXT "/v1/completions"

/* All that comes until the server closes. */
static void read_all(int fd, struct sv_buf *b)
{
    char part[4096];
    ssize_t n;

    sv_buf_clear(b);
    while ((n = recv(fd, part, sizeof part, 0)) > 0)
        sv_buf_append(b, part, (size_t)n);
    sv_buf_append(b, "", 0);
}

static void contains(const struct sv_buf *b, const char *text, const char *what)
{
    if (!strstr(b->data, text))
        fail_msg("%.80s: '%s' is not in: %s", what, text, b->data);
}

/* ---------------------------------------------------------------- one direction closed */

/* A client that will send no more gets its answer, whole or streamed, and those of the requests
 * behind it. */
static void half_closed(void **state)
{
    static const char *const asks[] = {"{\"prompt\":\"ab\",\"max_tokens\":30}",
                                       "{\"prompt\":\"ab\",\"max_tokens\":30,\"stream\":true}"};
    enum { TOKENS = 30 };
    struct hub r = {.held = true};
    struct sv_buf all;
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&all);
    for (int i = 0; i < 4; i++) {
        int fd = hub_connect(&r);
        hub_post(fd, TEXT, "", asks[i % 2]);
        if (i >= 2) {
            hub_metric_becomes(&r, "salvo_running_sequences", 1);
            hub_get(fd, "/version", "");
        }
        shutdown(fd, SHUT_WR);
        hub_await(fd, "HTTP/1.1 100 Continue\r\n"); /* it has seen that */
        hub_let(&r, TOKENS);
        read_all(fd, &all);
        contains(&all, "HTTP/1.1 200 OK\r\n", asks[i % 2]);
        contains(&all, "\"finish_reason\":\"length\"", asks[i % 2]);
        assert_int_equal(hub_count(all.data, "\"version\":"), i >= 2);
        close(fd);
    }
    assert_true(hub_metric(&r, "salvo_sequences_total{result=\"canceled\"}") == 0);
    sv_buf_fini(&all);
    hub_close(&r);
}

static int connect_unix(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* Waits until /metrics of a unix socket has this line, half a minute at most. */
static void metrics_get(const char *path, const char *line, struct sv_buf *all)
{
    const int64_t end = sv_clock_us() + 30000000;

    do {
        assert_true(sv_clock_us() < end);
        int fd = connect_unix(path);
        hub_get(fd, "/metrics", "Connection: close\r\n");
        read_all(fd, all);
        close(fd);
    } while (!strstr(all->data, line));
}

/* On a unix socket too; and there a client that closes both directions is noticed as well. */
static void half_closed_unix(void **state)
{
    struct hub r = {.fake.step_us = 20000};
    struct sv_buf all;
    char path[100];
    int fd;
    (void)state;

    snprintf(path, sizeof path, "/tmp/salvo-http-%d", (int)getpid());
    r.o.unix_path = path;
    hub_open(&r, true);
    sv_buf_init(&all);
    do { /* until it is loaded */
        fd = connect_unix(path);
        hub_post(fd, TEXT, "Connection: close\r\n", "{\"prompt\":\"ab\",\"max_tokens\":30}");
        shutdown(fd, SHUT_WR);
        read_all(fd, &all);
        close(fd);
    } while (strstr(all.data, "HTTP/1.1 503 "));
    contains(&all, "\"finish_reason\":\"length\"", "a half-closed unix socket");
    fd = connect_unix(path);
    hub_post(fd, TEXT, "", "{\"prompt\":\"ab\",\"max_tokens\":3000}"); /* a minute */
    metrics_get(path, "\nsalvo_running_sequences 1\n", &all);
    close(fd);
    metrics_get(path, "\nsalvo_running_sequences 0\n", &all);
    metrics_get(path, "\nsalvo_sequences_total{result=\"canceled\"} 1\n", &all);
    sv_buf_fini(&all);
    hub_close(&r);
}

/* ---------------------------------------------------------------- refused at once */

/* Each of these is answered while the client could still send, and then the connection ends. */
static void refused_at_once(void **state)
{
    static const struct {
        const char *text, *says;
    } tries[] = {
        {"GET /version HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "},
        {"GET /version HTTP/1.1\r\nHost: x\r\nHost: y\r\n", "HTTP/1.1 400 "},
        {"GET /version HTTP/1.-1\r\n", "HTTP/1.1 400 "},
        {"GET /version HTTP/2.0\r\n", "HTTP/1.1 505 HTTP Version Not Supported\r\n"},
        {"GET /version HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n", "folded"},
        {"\x16\x03\x01", "HTTP/1.1 400 "},
        {"BREW /pot HTTP/1.1\r\n", "\"code\":\"method_not_allowed\""},
        {"POST " TEXT " HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
         "HTTP/1.1 413 Payload Too Large\r\n"},
        {"POST " TEXT " HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", "body_too_large"},
        {"POST " TEXT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
         "body_too_large"},
    };
    struct hub r = {0};
    struct sv_buf all;
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&all);
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        int fd = hub_connect(&r);
        hub_send_text(fd, tries[i].text);
        read_all(fd, &all); /* the time-out of hub_connect is two minutes */
        contains(&all, tries[i].says, tries[i].text);
        contains(&all, "Connection: close\r\n", tries[i].text);
        contains(&all, "{\"error\":{\"message\":", tries[i].text);
        close(fd);
    }
    /* These are fine: a later version is answered as 1.1, empty lines are skipped. */
    int fd = hub_connect(&r);
    hub_send_text(fd, "\r\n\r\nGET /version HTTP/1.2\r\nHost: x\r\n\r\n\r\n"
                      "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    read_all(fd, &all);
    assert_int_equal(hub_count(all.data, "HTTP/1.1 200 OK\r\n"), 2);
    close(fd);
    sv_buf_fini(&all);
    hub_close(&r);
}

/* ---------------------------------------------------------------- limits */

/* Without a valid key the header is answered, and nothing of the body is waited for. */
static void keys_come_first(void **state)
{
    static const char *const bodies[] = {"Content-Length: 4000000", "Transfer-Encoding: chunked",
                                         "Content-Length: 4000000\r\nAuthorization: Bearer l",
                                         "Content-Length: 4000000\r\nExpect: 100-continue",
                                         "Content-Length: 99999999999"};
    struct hub r = {.o.api_key = "k"};
    struct sv_buf all;
    char text[300];
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&all);
    for (size_t i = 0; i < 2 * sizeof bodies / sizeof *bodies; i++) {
        int fd = hub_connect(&r);
        int n = snprintf(text, sizeof text, "POST " TEXT " HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n",
                         bodies[i / 2]);
        size_t cut = i % 2 ? (size_t)n - 3 : 0; /* the header in two pieces */
        hub_send(fd, text, cut);
        hub_nap_ms(i % 2 ? 50 : 0);
        hub_send(fd, text + cut, (size_t)n - cut);
        read_all(fd, &all);
        contains(&all, "HTTP/1.1 401 Unauthorized\r\n", bodies[i / 2]);
        contains(&all, "Connection: close\r\n", bodies[i / 2]);
        contains(&all, "invalid_api_key", bodies[i / 2]);
        close(fd);
    }
    static const char *const open[] = {"GET /health", "HEAD /version", "OPTIONS " TEXT};
    for (size_t i = 0; i < sizeof open / sizeof *open;
         i++) { /* what needs no key has no body read */
        int fd = hub_connect(&r);
        snprintf(text, sizeof text, "%s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", open[i], bodies[i % 2]);
        hub_send_text(fd, text);
        read_all(fd, &all);
        contains(&all, "HTTP/1.1 20", open[i]);
        contains(&all, "Connection: close\r\n", open[i]);
        close(fd);
    }
    int fd = hub_connect(&r); /* with a key it is read, in the same order */
    hub_post(fd, TEXT, "X-Api-Key: k\r\n", "{\"prompt\":\"ab\",\"max_tokens\":2}");
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 200);
    close(fd);
    sv_buf_fini(&all);
    hub_close(&r);
}

static void too_many_connections(void **state)
{
    enum { N = 4 };
    struct hub r = {.o.max_connections = N};
    struct sv_buf all;
    int fd[N];
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&all);
    for (int i = 0; i < N; i++) {
        do { /* the last one of hub_open may not have been seen to close */
            fd[i] = hub_connect(&r);
            hub_get(fd[i], "/version", "");
            answer_read(fd[i], &r.a);
            if (r.a.status != 200)
                close(fd[i]);
        } while (i == N - 1 && r.a.status == 503);
        assert_int_equal(r.a.status, 200);
    }
    for (int i = 0; i < 3; i++) {
        int more = hub_connect(&r);
        hub_get(more, "/version", "");
        read_all(more, &all);
        contains(&all, "HTTP/1.1 503 Service Unavailable\r\n", "one more");
        contains(&all, "Connection: close\r\n", "one more");
        contains(&all, "too many connections", "one more");
        close(more);
    }
    hub_get(fd[0], "/version", ""); /* those that are open go on */
    answer_read(fd[0], &r.a);
    assert_int_equal(r.a.status, 200);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    do
        hub_ask(&r, "/version", NULL, &r.a);
    while (r.a.status == 503);
    assert_int_equal(r.a.status, 200);
    sv_buf_fini(&all);
    hub_close(&r);
}

/* Begins a body of n bytes of which `part` are sent. */
static int begin_body(const struct hub *r, size_t n, size_t part)
{
    struct sv_buf b;
    int fd = hub_connect(r);

    sv_buf_init(&b);
    sv_buf_printf(&b, "POST " TEXT " HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%*s", n,
                  (int)part, "");
    hub_send(fd, b.data, b.len);
    sv_buf_fini(&b);
    return fd;
}

enum { BODY = 1 << 20, PART = 100000 };

/* Waits until a body of that length has room. */
static void has_room(struct hub *r)
{
    for (int tries = 0; tries < 6000; tries++) {
        int fd = begin_body(r, PART, PART);
        answer_read(fd, &r->a);
        close(fd);
        if (r->a.status != 503)
            break;
        hub_nap_ms(10);
    }
    assert_int_equal(r->a.status, 400); /* blanks are no JSON */
}

/* All bodies together: beyond the limit 503, but short requests go on, and when a body is gone
 * there is room again. */
static void too_many_bodies(void **state)
{
    struct hub r = {.o.max_body_bytes = BODY, .o.max_kept_bytes = 2 * BODY};
    struct sv_buf all;
    struct pollfd p[3] = {{0}};
    int refused = 0;
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&all);
    for (int i = 0; i < 3; i++)
        p[i] = (struct pollfd){begin_body(&r, BODY, i < 2 ? BODY - 1 : PART), POLLIN, 0};
    assert_int_equal(poll(p, 3, 60000), 1); /* usually the last one, by the order of reading */
    while (!p[refused].revents)
        refused++;
    read_all(p[refused].fd, &all);
    contains(&all, "HTTP/1.1 503 ", "one body more");
    contains(&all, "Retry-After: ", "one body more");
    contains(&all, "Connection: close\r\n", "one body more");
    close(p[refused].fd);
    hub_ask(&r, TEXT, "{\"prompt\":\"ab\",\"max_tokens\":2}", &r.a);
    assert_int_equal(r.a.status, 200);
    close(p[!refused].fd);
    has_room(&r);
    close(p[refused == 2 ? 1 : 2].fd);
    sv_buf_fini(&all);
    hub_close(&r);
}

/* Sends a piece again and again until the server has answered, or `n` times. */
static void drip(int fd, const char *piece, int n, int every_ms)
{
    char c;

    for (int i = 0; i < n && recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) < 0; i++) {
        send(fd, piece, strlen(piece), MSG_NOSIGNAL);
        hub_nap_ms(every_ms);
    }
}

/* A header has a time as a whole and a body a rate: bytes that keep coming restart neither. A body
 * that is slow but comes is read. */
static void slow_requests(void **state)
{
    static const char *const begin[] = {
        "GET /version HTTP/1.1\r\nHost: x\r\nX: ",
        "POST " TEXT " HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
        "POST " TEXT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"};
    struct hub r = {.o.idle_seconds = 2};
    struct sv_buf all, body;
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&all);
    for (int i = 0; i < 3; i++) {
        int fd = hub_connect(&r);
        hub_send_text(fd, begin[i]);
        drip(fd, i == 2 ? "1\r\na\r\n" : "a", 300, 100);
        read_all(fd, &all);
        contains(&all, "HTTP/1.1 408 Request Timeout\r\n", begin[i]);
        contains(&all, "Connection: close\r\n", begin[i]);
        close(fd);
    }
    sv_buf_init(&body);
    sv_buf_printf(&body, "%1024s", "");
    for (int tries = 1; r.a.status != 400; tries++) { /* a client that is stopped is late */
        int fd = begin_body(&r, 50 * 1024, 0);
        drip(fd, body.data, 50, 100); /* 5 seconds */
        answer_read(fd, &r.a);
        assert_true(r.a.status == 400 || tries < 10);
        close(fd);
    }
    contains(&r.a.body, "JSON", "a slow body");
    sv_buf_fini(&body);
    sv_buf_fini(&all);
    hub_close(&r);
}

static int64_t cpu_ns(clockid_t clock)
{
    struct timespec t;

    assert_int_equal(clock_gettime(clock, &t), 0);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Processor time of all other threads while a body is read that nothing is done with. */
static int64_t reading_ns(const struct hub *r, size_t n, struct answer *a)
{
    struct sv_buf body;
    int64_t best = INT64_MAX;

    sv_buf_init(&body);
    sv_buf_printf(&body, "%*s", (int)n, "");
    for (int i = 0; i < 3; i++) {
        int64_t before = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns(CLOCK_THREAD_CPUTIME_ID);
        int fd = hub_connect(r);
        hub_post(fd, TEXT, "Content-Encoding: none\r\n", body.data);
        answer_read(fd, a);
        assert_int_equal(a->status, 415);
        close(fd);
        int64_t took = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns(CLOCK_THREAD_CPUTIME_ID) - before;
        best = took < best ? took : best;
    }
    sv_buf_fini(&body);
    return best;
}

/* A body of 32 times the length takes 32 times the time, and up to thrice that where the machine is
 * busy and no cache holds it; 1,024 times if the time grew with the square. */
static void long_bodies_take_linear_time(void **state)
{
    struct hub r = {.o.max_body_bytes = 64 << 20};
    (void)state;

    hub_open(&r, false);
    int64_t one = reading_ns(&r, 2 << 20, &r.a), all = reading_ns(&r, 64 << 20, &r.a);
    print_message("2 MiB in %.1f ms, 64 MiB in %.1f ms\n", (double)one / 1e6, (double)all / 1e6);
    assert_true(all < 320 * one);
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(half_closed), cmocka_unit_test(half_closed_unix),
             cmocka_unit_test(refused_at_once), cmocka_unit_test(keys_come_first),
             cmocka_unit_test(too_many_connections), cmocka_unit_test(too_many_bodies),
             cmocka_unit_test(slow_requests), cmocka_unit_test(long_bodies_take_linear_time))
