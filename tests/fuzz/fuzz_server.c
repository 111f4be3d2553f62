/*
 * fuzz_server.c - whole requests through the server, on the instant engine: what clients send, cut
 * anywhere, chunked, pipelined, dropped. Each answer must be HTTP without a server's fault, and the
 * server must answer the next client.
 *
 * Called by driver.c and libFuzzer. The server runs in this process on a Unix socket of a private
 * folder and lives from the first input to the end, so what it keeps of one request meets the
 * next. An input is requests, each behind a line of letters that says how it is sent (the letters
 * of `enum way`; none: one POST to the chat), with a line of "---" between two. Pieces are cut by
 * a generator that is seeded with the input's bytes. Must not: touch a network, need a draft.
 */
#define _GNU_SOURCE

#include "serve/serve.h"
#include "testing.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_REQUESTS 6
#define MAX_ROUNDS 200 /* of waiting for answers, each until the server has answered a /ping */
#define QUIET_ROUNDS 4 /* without a byte of an answer: nothing more comes */
#define HANGS_MS 15000 /* a server that is silent for so long hangs */
#define MAX_STEPS 30   /* pieces of one input, about */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
extern const bool fuzz_keeps_blocks;
const bool fuzz_keeps_blocks = true; /* driver.c: from one input to the next */

/* Capital letters name paths, small ones say how. */
static const char *const paths[26] = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/generate",
    "/completion",
    "/infill",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/abort_request",
    "/v1/messages/count_tokens",
    "/completions",
    "/v1/tokenize",
    "/flush_cache",
    "/chat/completions",
    "/v1/responses/x",
    "/metrics",
    "/health",
    "/v1/models",
    "/props",
    "/slots",
    "/tokenizer_info",
    "/server_info",
    "/v1/responses/resp_0/input_items",
    "/",
};
enum way {
    RAW = 'r',      /* the text is sent as it is, header and all */
    CHUNKED = 'c',  /* the body in chunks */
    EXTENDED = 'e', /* ... with chunk extensions and a trailer */
    GET = 'g',
    DROP = 'd',  /* the client leaves when all is sent */
    BYTES = 'b', /* sent in many small pieces */
    SHORT = 's', /* Content-Length says more than there is */
    LAST = 'l',  /* Connection: close */
    OLD = 'o'    /* HTTP/1.0 */
};

static struct {
    struct sv_serve *serve;
    struct sv_serve_fake fake;
    struct sv_thread *thread;
    char path[108];
    int side;          /* a connection that stays */
    struct sv_rng rng; /* of one input */
    struct sv_buf in, sent, reply;
} F = {.side = -1};

/* ---------------------------------------------------------------- the server */

static void *serve(void *arg)
{
    struct sv_err err = {0};
    (void)arg;
    const int rc = sv_serve_run(F.serve, &err);
    if (rc)
        sv_panic("the server ended: %s", err.msg);
    return NULL;
}

static int connect_to(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);

    snprintf(a.sun_path, sizeof a.sun_path, "%s", F.path);
    SV_REQUIRE(fd >= 0);
    while (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        SV_REQUIRE(errno == EAGAIN); /* many wait to be accepted */
        poll(NULL, 0, 1);
    }
    return fd;
}

/* One exchange on the connection that stays: the server's loop has looked at all that came before.
 * Its status; the body is in F.reply. */
static int ask(const char *path)
{
    char request[128];
    const int n =
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);

    if (F.side < 0)
        F.side = connect_to();
    sv_buf_clear(&F.reply);
    SV_REQUIRE(write(F.side, request, (size_t)n) == n);
    for (;;) {
        struct pollfd p = {.fd = F.side, .events = POLLIN};
        char piece[16384];
        int n_ready;
        do /* libFuzzer's clock is a signal */
            n_ready = poll(&p, 1, HANGS_MS);
        while (n_ready < 0 && errno == EINTR);
        if (n_ready != 1)
            sv_panic("%s gets no answer", path);
        const ssize_t got = read(F.side, piece, sizeof piece);
        SV_REQUIRE(got > 0);
        sv_buf_append(&F.reply, piece, (size_t)got);
        SV_REQUIRE(!F.reply.failed);
        const char *body = strstr(F.reply.data, "\r\n\r\n");
        const char *length = strcasestr(F.reply.data, "content-length:");
        if (body && length && strlen(body + 4) >= strtoul(length + 15, NULL, 10))
            return atoi(F.reply.data + 9);
    }
}

static long gauge(const char *name)
{
    const char *at = strstr(F.reply.data, name);

    SV_REQUIRE(at);
    return strtol(at + strlen(name), NULL, 10);
}

/* What one input began ends before the next begins, so that a fault is that input's. */
static void wait_until_idle(void)
{
    for (int i = 0;; i++) {
        SV_REQUIRE(ask("/metrics") == 200);
        if (!gauge("\nsalvo_long_bodies ") && !gauge("\nsalvo_running_sequences ") &&
            !gauge("\nsalvo_waiting_sequences "))
            return;
        if (i > HANGS_MS)
            sv_panic("what a client asked for does not end");
        poll(NULL, 0, 1);
    }
}

static void stop(void)
{
    close(F.side);
    sv_serve_stop(F.serve);
    sv_serve_stop(F.serve);
    sv_thread_join(F.thread);
    sv_serve_close(F.serve);
    sv_buf_fini(&F.in);
    sv_buf_fini(&F.sent);
    sv_buf_fini(&F.reply);
}

static void start(void)
{
    struct sv_serve_options o = {.open_engine = sv_serve_open_fake_engine,
                                 .open_arg = &F.fake,
                                 .model_name = "fake",
                                 .unix_path = F.path,
                                 .quiet = true,
                                 .max_body_bytes = 1 << 18,
                                 .max_tokens = 48,
                                 .max_choices = 4,
                                 .max_queue = 64,
                                 .stored_responses = 8,
                                 .stream_gap_us = -1,
                                 .log_seconds = -1};
    struct sv_err err = {0};

    F.fake.burst = 3;
    o.engine.target_dir = sv_test_path("models/demo/target");
    o.engine.context = 512;
    o.engine.max_sequences = 8;
    snprintf(F.path, sizeof F.path, "%s", sv_test_tmp("fuzz_server"));
    if (sv_serve_open(&F.serve, &o, &err) || sv_thread_start(&F.thread, serve, NULL, &err))
        sv_panic("%s", err.msg);
    while (ask("/health") != 200)
        poll(NULL, 0, 5);
    atexit(stop);
}

/* ---------------------------------------------------------------- what is sent */

static void add_header(struct sv_buf *b, const char *how, size_t n_body)
{
    const char *path = paths[0], *at;
    const bool get = memchr(how, GET, strlen(how)) != NULL;

    for (at = how; *at; at++)
        if (*at >= 'A' && *at <= 'Z')
            path = paths[*at - 'A'];
    sv_buf_printf(b, "%s %s HTTP/1.%d\r\nHost: localhost:8000\r\n", get ? "GET" : "POST", path,
                  !strchr(how, OLD));
    if (strchr(how, LAST))
        sv_buf_printf(b, "Connection: close\r\n");
    if (!get)
        sv_buf_printf(b, "Content-Type: application/json\r\n");
    if (strchr(how, CHUNKED) || strchr(how, EXTENDED))
        sv_buf_printf(b, "Transfer-Encoding: chunked\r\n\r\n");
    else if (!get)
        sv_buf_printf(b, "Content-Length: %zu\r\n\r\n", n_body + (strchr(how, SHORT) ? 7 : 0));
    else
        sv_buf_printf(b, "\r\n");
}

static void add_chunks(struct sv_buf *b, const char *body, size_t n, bool extended)
{
    for (size_t at = 0, size; at < n; at += size) {
        size = 1 + sv_rng_below(&F.rng, (uint32_t)(n - at));
        sv_buf_printf(b, "%zx%s\r\n", size, extended ? ";a=\"b;c\";d" : "");
        sv_buf_append(b, body + at, size);
        sv_buf_printf(b, "\r\n");
    }
    sv_buf_printf(b, "0\r\n%s\r\n", extended ? "X-Trailer: y\r\n" : "");
}

/* Letters up to the end of the line; *text moves behind it. */
static void read_how(const char **text, size_t *n, char how[16])
{
    const char *end = *n ? memchr(*text, '\n', *n < 16 ? *n : 16) : NULL;
    size_t len = end ? (size_t)(end - *text) : 0;

    for (size_t i = 0; i < len; i++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZrcegdbslo", (*text)[i]) || !(*text)[i])
            len = 0;
    memcpy(how, *text, len);
    how[len] = 0;
    if (len) {
        *text += len + 1;
        *n -= len + 1;
    }
}

/* The bytes of all requests; whether the connection is to be dropped, or cut into bytes. */
static void put_together(const char *text, size_t n, bool *drop, bool *bytes)
{
    sv_buf_clear(&F.sent);
    for (int i = 0; i < MAX_REQUESTS && (n || !i); i++) {
        const char *next = n ? memmem(text, n, "\n---\n", 5) : NULL;
        size_t len = next ? (size_t)(next - text) : n;
        char how[16];
        n -= next ? len + 5 : len;
        read_how(&text, &len, how);
        if (strchr(how, RAW)) {
            sv_buf_append(&F.sent, text, len);
        } else {
            add_header(&F.sent, how, len);
            if (strchr(how, CHUNKED) || strchr(how, EXTENDED))
                add_chunks(&F.sent, text, len, strchr(how, EXTENDED) != NULL);
            else if (!strchr(how, GET))
                sv_buf_append(&F.sent, text, len);
        }
        *drop |= strchr(how, DROP) != NULL;
        *bytes |= strchr(how, BYTES) != NULL;
        text += len + (next ? 5 : 0);
    }
    SV_REQUIRE(!F.sent.failed);
}

/* ---------------------------------------------------------------- what comes back */

/* Reads what is there; false: the server has closed. */
static bool drain(int fd, bool *some)
{
    char piece[8192];

    for (;;) {
        const ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n <= 0)
            return false;
        *some = true;
        if (F.in.len < 1 << 20)
            sv_buf_append(&F.in, piece, (size_t)n);
    }
}

/* The first answer is a status line; no answer says that the server is at fault. What is not
 * implemented is 501; 503 and 505 speak of load and of the version. */
static void check_answers(void)
{
    const char *at = F.in.data;

    if (!F.in.len)
        return;
    SV_REQUIRE(!F.in.failed && F.in.len >= 12 && !memcmp(at, "HTTP/1.", 7));
    for (; (at = memmem(at, F.in.len - (size_t)(at - F.in.data), "HTTP/1.1 5", 10)); at += 10)
        if (F.in.len - (size_t)(at - F.in.data) >= 13 && memcmp(at + 9, "501", 3) &&
            memcmp(at + 9, "503", 3) && memcmp(at + 9, "505", 3) &&
            (at == F.in.data || at[-1] == '\n' || at[-1] == '}'))
            sv_panic("a server's fault: %.400s", at);
}

static bool send_all(int fd, bool bytes)
{
    size_t at = 0;
    bool some;

    while (at < F.sent.len) {
        size_t n = F.sent.len - at;
        if (bytes || sv_rng_below(&F.rng, 2))
            n = 1 + sv_rng_below(&F.rng, (uint32_t)(n / (bytes ? MAX_STEPS : 4) + 1));
        const ssize_t put = send(fd, F.sent.data + at, n < F.sent.len - at ? n : F.sent.len - at,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0 && errno != EAGAIN)
            return false; /* it closed on what it had */
        at += put > 0 ? (size_t)put : 0;
        if (put <= 0 || sv_rng_below(&F.rng, 2))
            ask("/ping");
        if (!drain(fd, &some))
            return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint64_t seed = n;
    bool drop = false, bytes = false;
    int fd, quiet = 0;

    if (!F.serve)
        start();
    for (size_t i = 0; i < n; i++)
        seed = seed * 31 + data[i];
    F.rng = (struct sv_rng){.state = seed};
    sv_buf_clear(&F.in);
    put_together((const char *)data, n, &drop, &bytes);
    fd = connect_to();
    bool open = send_all(fd, bytes);
    for (int i = 0; open && !drop && i < MAX_ROUNDS && quiet < QUIET_ROUNDS; i++) {
        bool some = false;
        ask("/ping");
        open = drain(fd, &some);
        quiet = some ? 0 : quiet + 1;
    }
    close(fd);
    wait_until_idle();
    if (ask("/health") != 200)
        sv_panic("the server is not well");
    check_answers();
    return 0;
}
