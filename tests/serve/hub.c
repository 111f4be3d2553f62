/*
 * hub.c - see hub.h.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/hub.h"

#include "testing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
/* libevent takes a descriptor out of its set after it was closed; its number may be a client's by
 * then (serve.c). */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race_top:epoll_ctl\n";
}
#endif

static void *serve(void *arg)
{
    struct hub *r = arg;
    struct sv_err err = {0};
    r->rc = sv_serve_run(r->s, &err);
    return NULL;
}

struct hub_host {
    struct sv_serve_options o;
    struct sv_processes p;
    struct sv_thread *thread;
    bool cut;
    int rc;
};

static void *host(void *arg)
{
    struct hub_host *h = arg;
    struct sv_err err = {0};
    h->rc = sv_serve_replica(&h->o, &err);
    return NULL;
}

static void open_hosts(struct hub *r)
{
    const int32_t n = r->o.replicas;
    struct sv_err err = {0};

    r->host = sv_calloc((size_t)n, sizeof *r->host);
    r->processes.place = (struct sv_placement){.tp = 1, .dp = n, .n_here = n};
    for (int32_t i = 1; i < n; i++) {
        struct hub_host *h = &r->host[i];
        struct sv_link *here = &r->processes.link[i], *there = &h->p.link[i];
        *here = (struct sv_link){.process = i, .host = "here"};
        h->p.place = r->processes.place;
        h->p.place.replica = h->p.place.here = i;
        for (int k = 0; k < SV_LINK_FDS; k++) {
            int fd[2];
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
            here->fd[k] = fd[0];
            there->fd[k] = fd[1];
        }
        h->o = r->o;
        h->o.processes = &h->p;
        assert_int_equal(sv_thread_start(&h->thread, host, h, &err), SV_OK);
    }
    r->o.processes = &r->processes;
}

static void close_hosts(struct hub *r)
{
    for (int32_t i = 1; r->host && i < r->o.replicas; i++) {
        sv_thread_join(r->host[i].thread);
        assert_int_equal(r->host[i].rc, r->host[i].cut ? SV_EIO : SV_OK);
    }
    sv_free(r->host);
}

void hub_cut(struct hub *r, int replica)
{
    r->host[replica].cut = true;
    shutdown(r->host[replica].p.link[replica].fd[SV_LINK_WORK], SHUT_RDWR);
}

void hub_open(struct hub *r, bool no_wait)
{
    struct sv_err err = {0};

    answer_init(&r->a);
    if (!r->o.engine.target_dir)
        r->o.engine.target_dir = sv_test_path("models/demo/target");
    if (r->held)
        r->fake.steps_left = &r->steps_left;
    if (r->loads)
        r->fake.loaded = &r->loaded;
    if (!r->o.engine.max_sequences)
        r->o.engine.max_sequences = r->real ? 4 : 4096;
    if (r->real) {
        r->o.engine.draft_dir = sv_test_path("models/demo/draft");
        r->o.engine.width = 8;
    } else {
        r->o.open_engine = r->o.open_engine ? r->o.open_engine : sv_serve_open_fake_engine;
        r->o.open_arg = &r->fake;
    }
    r->o.model_name = "fake";
    if (!r->o.allowed_hosts)
        r->o.allowed_hosts = "x,host,elsewhere"; /* in the tests' requests */
    r->o.quiet = true;
    if (!r->o.stream_gap_us)
        r->o.stream_gap_us = -1; /* a chunk for each step, whatever the time */
    if (!r->o.log_seconds)
        r->o.log_seconds = -1;
    if (r->far && r->o.replicas > 1)
        open_hosts(r);
    if (sv_serve_open(&r->s, &r->o, &err))
        fail_msg("%s", err.msg);
    r->port = sv_serve_port(r->s);
    assert_int_equal(sv_thread_start(&r->thread, serve, r, &err), SV_OK);
    for (int i = 0; !no_wait && !r->loads; i++) {
        struct answer a;
        struct timespec t = {0, 10000000};
        answer_init(&a);
        int fd = hub_connect(r);
        hub_get(fd, "/health", "");
        answer_read(fd, &a);
        close(fd);
        bool ready = a.status == 200;
        answer_fini(&a);
        if (ready)
            return;
        assert_true(i < 6000); /* replicas that calibrate under TSan, on a busy machine */
        nanosleep(&t, NULL);
    }
}

void hub_let(struct hub *r, int n_steps)
{
    atomic_fetch_add(&r->steps_left, n_steps);
}

void hub_drain(struct hub *r, int idle)
{
    struct answer a;

    answer_init(&a);
    sv_serve_stop(r->s);
    do {
        hub_get(idle, "/health", "");
        answer_read(idle, &a);
    } while (a.status == 200);
    assert_int_equal(a.status, 503);
    answer_fini(&a);
}

void hub_wait(struct hub *r)
{
    sv_thread_join(r->thread);
    r->thread = NULL;
}

void hub_close(struct hub *r)
{
    atomic_store(&r->loaded, 100);
    sv_serve_stop(r->s);
    if (r->thread)
        hub_wait(r);
    sv_serve_close(r->s);
    close_hosts(r);
    answer_fini(&r->a);
    json_decref(r->answers);
}

int hub_connect(const struct hub *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)r->port)};
    struct timeval limit = {120, 0}; /* generous: a busy machine may stop us for long */
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

void hub_send(int fd, const char *data, size_t n)
{
    while (n) {
        ssize_t k = send(fd, data, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR)
            continue;
        assert_true(k > 0);
        data += k;
        n -= (size_t)k;
    }
}

void hub_send_text(int fd, const char *text)
{
    hub_send(fd, text, strlen(text));
}

void hub_post(int fd, const char *path, const char *headers, const char *body)
{
    struct sv_buf b;
    sv_buf_init(&b);
    sv_buf_printf(&b, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n%s\r\n", path,
                  strlen(body), headers);
    sv_buf_append(&b, body, strlen(body));
    hub_send(fd, b.data, b.len);
    sv_buf_fini(&b);
}

void hub_get(int fd, const char *path, const char *headers)
{
    struct sv_buf b;
    sv_buf_init(&b);
    sv_buf_printf(&b, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", path, headers);
    hub_send(fd, b.data, b.len);
    sv_buf_fini(&b);
}

/* ---------------------------------------------------------------- answers */

void answer_init(struct answer *a)
{
    memset(a, 0, sizeof *a);
    sv_buf_init(&a->head);
    sv_buf_init(&a->body);
}

void answer_fini(struct answer *a)
{
    sv_buf_fini(&a->head);
    sv_buf_fini(&a->body);
}

/* A process that is stopped and goes on finds its calls interrupted. */
static ssize_t receive(int fd, void *to, size_t n)
{
    ssize_t k;
    do
        k = recv(fd, to, n, 0);
    while (k < 0 && errno == EINTR);
    return k;
}

/* One byte; false when the connection is closed. */
static bool take(int fd, char *c)
{
    return receive(fd, c, 1) == 1;
}

static bool take_n(int fd, struct sv_buf *to, size_t n)
{
    char part[4096];
    while (n) {
        ssize_t k = receive(fd, part, n < sizeof part ? n : sizeof part);
        if (k <= 0)
            return false;
        sv_buf_append(to, part, (size_t)k);
        n -= (size_t)k;
    }
    return true;
}

static bool take_line(int fd, struct sv_buf *to)
{
    char c;
    do {
        if (!take(fd, &c))
            return false;
        sv_buf_append(to, &c, 1);
    } while (c != '\n');
    return true;
}

static bool take_head(int fd, struct answer *a)
{
    size_t start;
    do {
        start = a->head.len;
        if (!take_line(fd, &a->head))
            return false;
    } while (a->head.len - start > 2);
    return true;
}

static const char *header(const struct answer *a, const char *name)
{
    for (const char *line = a->head.data; line && *line; line = strchr(line, '\n') + 1)
        if (strncasecmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':')
            return line + strlen(name) + 1;
    return NULL;
}

static bool take_chunks(int fd, struct answer *a)
{
    for (;;) {
        struct sv_buf line;
        sv_buf_init(&line);
        bool fine = take_line(fd, &line);
        size_t n = fine ? strtoul(line.data, NULL, 16) : 0;
        sv_buf_fini(&line);
        if (!fine || !take_n(fd, &a->body, n))
            return false;
        sv_buf_init(&line);
        fine = take_n(fd, &line, 2);
        sv_buf_fini(&line);
        if (!fine || !n)
            return fine;
    }
}

void answer_read(int fd, struct answer *a)
{
    sv_buf_clear(&a->head);
    sv_buf_clear(&a->body);
    a->status = 0;
    a->closed = !take_head(fd, a);
    if (a->closed)
        return;
    a->status = atoi(a->head.data + strlen("HTTP/1.1 "));
    const char *length = header(a, "Content-Length");
    a->chunked = header(a, "Transfer-Encoding") != NULL;
    if (a->chunked)
        a->closed = !take_chunks(fd, a);
    else if (length)
        a->closed = !take_n(fd, &a->body, strtoul(length, NULL, 10));
    else if (a->status != 204)
        a->closed = !take_n(fd, &a->body, SIZE_MAX); /* up to the end */
    sv_buf_append(&a->body, "", 0);
}

void hub_ask(const struct hub *r, const char *path, const char *body, struct answer *a)
{
    int fd = hub_connect(r);
    if (body)
        hub_post(fd, path, "", body);
    else
        hub_get(fd, path, "");
    answer_read(fd, a);
    close(fd);
}

/* From sending a body to its answer on one connection, the longest time in which a stream on
 * another brought nothing. */
int64_t hub_silence(int stream, int asking, const struct sv_buf *body, const char *path,
                    struct answer *a, int64_t *took)
{
    char part[65536];
    struct pollfd fds[2] = {{.fd = stream, .events = POLLIN}, {.fd = asking, .events = POLLIN}};
    int64_t start, last, most = 0;

    hub_post(asking, path, "", body->data);
    start = last = sv_clock_us();
    for (bool done = false; !done;) {
        assert_true(poll(fds, 2, 60000) > 0);
        int64_t now = sv_clock_us();
        if (fds[0].revents) {
            assert_true(recv(stream, part, sizeof part, 0) > 0);
            most = now - last > most ? now - last : most;
            last = now;
        }
        done = fds[1].revents != 0;
        if (done) {
            most = now - last > most ? now - last : most;
            *took = now - start;
        }
    }
    answer_read(asking, a);
    return most;
}

void hub_await(int fd, const char *text)
{
    static char got[1 << 16];
    const int64_t end = sv_clock_us() + 60000000;

    for (;; hub_nap_ms(2)) {
        ssize_t n = recv(fd, got, sizeof got - 1, MSG_PEEK | MSG_DONTWAIT);
        got[n > 0 ? n : 0] = 0;
        if (strstr(got, text))
            return;
        if (n == 0 || sv_clock_us() > end)
            fail_msg("'%s' has not come: %s", text, got);
    }
}

double hub_metric(const struct hub *r, const char *name)
{
    struct answer a;
    double v = -1;

    answer_init(&a);
    hub_ask(r, "/metrics", NULL, &a);
    for (const char *line = a.body.data; line && *line;) {
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ' ')
            v = atof(line + strlen(name));
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    answer_fini(&a);
    return v;
}

void hub_metric_becomes(const struct hub *r, const char *name, double want)
{
    int64_t end = sv_clock_us() + 60000000;

    for (double v = hub_metric(r, name); v != want; v = hub_metric(r, name)) {
        if (sv_clock_us() > end)
            fail_msg("%s is %g, not %g", name, v, want);
        hub_nap_ms(10);
    }
}

static json_t *parse(const char *text, size_t n)
{
    struct sv_err err = {0};
    json_t *v = sv_json_parse(text, n, &err);

    if (!v)
        fail_msg("%s: %.300s", err.msg, text);
    return v;
}

static json_t *keep(struct hub *r, json_t *v)
{
    r->answers = r->answers ? r->answers : json_array();
    json_array_append_new(r->answers, v);
    return v;
}

json_t *hub_json(struct hub *r, const char *path, const char *body, int status)
{
    struct answer a;

    answer_init(&a);
    hub_ask(r, path, body, &a);
    if (a.status != status)
        fail_msg("%s %.200s gave %d: %.300s", path, body ? body : "", a.status, a.body.data);
    json_t *v = parse(a.body.data, a.body.len);
    answer_fini(&a);
    return keep(r, v);
}

json_t *hub_events_of(const char *frames)
{
    json_t *list = json_array();

    for (const char *at = frames; (at = strstr(at, "data: {")); at++)
        json_array_append_new(list, parse(at + 6, strcspn(at + 6, "\n")));
    return list;
}

json_t *hub_events(struct hub *r, const char *path, const char *body)
{
    struct answer a;

    answer_init(&a);
    hub_ask(r, path, body, &a);
    if (a.status != 200 || !a.chunked || a.closed)
        fail_msg("%s %.200s gave %d: %.300s", path, body, a.status, a.body.data);
    json_t *list = hub_events_of(a.body.data);
    answer_fini(&a);
    return keep(r, list);
}

json_t *hub_at(json_t *v, const char *where)
{
    while (v && *where) {
        size_t n = strcspn(where, ".");
        v = json_is_array(v) ? json_array_get(v, strtoul(where, NULL, 10))
                             : json_object_getn(v, where, n);
        where += n + (where[n] == '.');
    }
    return v;
}

const char *hub_text(json_t *v, const char *where)
{
    v = hub_at(v, where);
    if (!json_is_string(v))
        fail_msg("no text at %s", where);
    return json_string_value(v);
}

int64_t hub_number(json_t *v, const char *where)
{
    v = hub_at(v, where);
    if (!json_is_integer(v))
        fail_msg("no integer at %s", where);
    return json_integer_value(v);
}

void hub_each_answer(void (*open)(struct hub *r, const char *signs, int32_t burst),
                     void (*check)(struct hub *r, const char *text))
{
    static const char *const formats[] = {"hermes",  "qwen3_coder", "llama3_json",
                                          "mistral", "deepseek_v3", "harmony"};
    struct sv_err err;
    json_t *all = sv_json_load(sv_test_path("tests/reply/answers.json"), 1 << 20, &err), *c;
    size_t i, n = 0;

    assert_non_null(all);
    for (int f = 0; f < 6; f++) {
        struct hub r = {.o.tool_parser = formats[f],
                        .o.reasoning_parser = f == 5 ? "harmony" : "think"};
        open(&r, "", f + 1);
        json_array_foreach(json_object_get(all, "cases"), i, c) {
            if (strcmp(hub_text(c, "tools"), formats[f]) != 0 || json_object_get(c, "streamed") ||
                json_object_get(c, "cut") || !*hub_text(c, "text"))
                continue;
            check(&r, json_string_value(json_object_get(c, "text")));
            n++;
        }
        hub_close(&r);
    }
    assert_true(n > 90);
    json_decref(all);
}

void hub_same(json_t *a, json_t *b, const char *what)
{
    if (a && json_equal(a, b))
        return;
    char *x = json_dumps(a, JSON_ENCODE_ANY), *y = json_dumps(b, JSON_ENCODE_ANY);
    fail_msg("%s: %.700s is not %.700s", what, x ? x : "nothing", y ? y : "nothing");
}

void hub_nap_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

size_t hub_count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

void hub_close_amid(struct hub *r, const char *one, const char *other, const char *body)
{
    enum { N = 8 };
    int fd[N];
    for (int i = 0; i < N; i++) {
        fd[i] = hub_connect(r);
        hub_post(fd[i], i & 1 ? other : one, "", body);
    }
    sv_serve_stop(r->s); /* and once more in hub_close: it ends at once */
    hub_close(r);
    for (int i = 0; i < N; i++)
        close(fd[i]);
}
