/*
 * serve_overhead.c - the overhead of the server: 64 streams from an engine that answers at once,
 * one token an event.
 *
 * Called by hand: build/bench/serve_overhead [REPEATS [MODE [API]]] >>
 * bench/results/serve-overhead*.csv; API: completions, chat or responses. The server runs in this
 * process (its loop on the main thread, so that the loop's processor time is known), the clients in
 * a child. Of the loop's time per token, `user` is the server's own code and `kernel` what sending
 * costs; on the loopback device the kernel also receives in the sender's time. `flood` lets the
 * engine run as fast as it can; `paced` has it make 64 tokens each 3.2 ms (20,000 a second), as a
 * real engine would; `each` too, with every token a write of its own
 * (--stream-gap 0); `step10` to `step60` make 64 tokens each 10, 30 or 60 ms, as larger models do;
 * `requests` are streams of one token on connections of their own, so that its figures per token
 * are those of a whole request.
 */
#define _GNU_SOURCE /* RUSAGE_THREAD */

#include "serve/serve.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CLIENTS 64

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

struct mode {
    const char *name;
    int32_t step_us, gap_us, tokens, rounds;
};

/* What clients ask, up to the number of tokens, and what stands at a stream's end. */
struct api {
    const char *name, *path, *ask, *end;
};
static const struct api apis[] = {
    {"completions", "/v1/completions",
     "\"prompt\":\"one two three four\",\"stream\":true,\"max_tokens\"", "[DONE]"},
    {"chat", "/v1/chat/completions",
     "\"messages\":[{\"role\":\"user\",\"content\":\"one two three four\"}],\"stream\":true,"
     "\"max_tokens\"",
     "[DONE]"},
    {"responses", "/v1/responses",
     "\"input\":\"one two three four\",\"stream\":true,\"max_output_tokens\"", "}}\n\n"},
};

/* ---------------------------------------------------------------- clients, in the child */

static int say(int port, const char *request, size_t n)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a))
        _exit(2);
    if (write(fd, request, n) != (ssize_t)n)
        _exit(2);
    return fd;
}

static int ask(int port, const struct api *a, int32_t tokens)
{
    char body[200], request[400];
    snprintf(body, sizeof body, "{%s:%d}", a->ask, tokens);
    int n = snprintf(request, sizeof request,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n\r\n%s",
                     a->path, strlen(body), body);
    return say(port, request, (size_t)n);
}

static bool ready(int port)
{
    static const char request[] =
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    char answer[16] = "";
    int fd = say(port, request, sizeof request - 1);
    bool yes = read(fd, answer, 12) == 12 && memcmp(answer, "HTTP/1.1 200", 12) == 0;
    close(fd);
    return yes;
}

/* Reads everything until the server closes; checks only that each stream ended as it should. */
static int stream(int port, const struct api *a, int32_t tokens)
{
    static char buf[1 << 16];
    struct pollfd p[CLIENTS];
    char tail[CLIENTS][24];
    int left = CLIENTS;

    memset(tail, 0, sizeof tail);
    for (int i = 0; i < CLIENTS; i++)
        p[i] = (struct pollfd){.fd = ask(port, a, tokens), .events = POLLIN};
    while (left && poll(p, CLIENTS, 60000) > 0)
        for (int i = 0; i < CLIENTS; i++) {
            if (p[i].fd < 0 || !p[i].revents)
                continue;
            ssize_t n = read(p[i].fd, buf, sizeof buf);
            size_t keep = n > 23 ? 23 : n > 0 ? (size_t)n : 0;
            memmove(tail[i], tail[i] + keep, 23 - keep);
            memcpy(tail[i] + 23 - keep, buf + (n > 0 ? (size_t)n : 0) - keep, keep);
            if (n > 0)
                continue;
            if (!strstr(tail[i], a->end))
                return 3;
            close(p[i].fd);
            p[i].fd = -1;
            left--;
        }
    return left ? 4 : 0;
}

/* A process of their own, there before the server is: a fork of that would have it copy its pages
 * while it is measured, and keep its sockets open. They start when the port comes through the pipe.
 */
static pid_t start_clients(const struct mode *m, const struct api *a, int *to)
{
    int ends[2], port, rc = 0;

    if (pipe(ends))
        return -1;
    pid_t child = fork();
    *to = ends[1];
    if (child) {
        close(ends[0]);
        return child;
    }
    close(ends[1]);
    if (read(ends[0], &port, sizeof port) != sizeof port)
        _exit(5);
    for (int32_t i = 0; i < m->rounds && !rc; i++)
        rc = stream(port, a, m->tokens);
    _exit(rc);
}

/* ---------------------------------------------------------------- one measurement */

struct run {
    struct sv_serve *s;
    pid_t clients;
    int port, status, to_clients;
    double wall;
    struct rusage before;
};

static void *drive(void *arg)
{
    struct run *r = arg;
    struct timespec t = {0, 10000000};

    while (!ready(r->port))
        nanosleep(&t, NULL);
    getrusage(RUSAGE_SELF, &r->before);
    int64_t start = sv_clock_us();
    if (write(r->to_clients, &r->port, sizeof r->port) != sizeof r->port)
        perror("clients");
    close(r->to_clients);
    waitpid(r->clients, &r->status, 0);
    r->wall = (double)(sv_clock_us() - start) / 1e6;
    sv_serve_stop(r->s);
    return NULL;
}

static int measure(const struct mode *m, const struct api *a, int repeat)
{
    struct sv_serve_fake fake = {.step_us = m->step_us};
    struct sv_serve_options o = {.open_engine = sv_serve_open_fake_engine,
                                 .open_arg = &fake,
                                 .log_seconds = -1,
                                 .quiet = true,
                                 .stream_gap_us = m->gap_us,
                                 .spec_metrics = SV_SPEC_SUMMARY};
    struct rusage before, after, all_after;
    struct run r = {0};
    struct sv_thread *t;
    struct sv_err err = {0};

    r.clients = start_clients(m, a, &r.to_clients);
    o.engine.target_dir = "models/demo/target";
    o.engine.max_sequences = CLIENTS;
    int rc = sv_serve_open(&r.s, &o, &err);
    r.port = rc ? 0 : sv_serve_port(r.s);
    getrusage(RUSAGE_THREAD, &before);
    if (rc || sv_thread_start(&t, drive, &r, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    sv_serve_run(r.s, &err);
    getrusage(RUSAGE_THREAD, &after);
    getrusage(RUSAGE_SELF, &all_after);
    sv_thread_join(t);
    sv_serve_close(r.s);
    double user = seconds_of(after.ru_utime) - seconds_of(before.ru_utime);
    double kernel = seconds_of(after.ru_stime) - seconds_of(before.ru_stime), loop = user + kernel;
    double all = seconds_of(all_after.ru_utime) + seconds_of(all_after.ru_stime) -
                 seconds_of(r.before.ru_utime) - seconds_of(r.before.ru_stime);
    double n = (double)CLIENTS * m->tokens * m->rounds;
    printf("%s,%d,%d,%d,%.3f,%.0f,%.3f,%.2f,%.2f,%.2f,%.0f,%.4f\n", m->name, repeat, CLIENTS,
           m->tokens, r.wall, n / r.wall, all, loop / n * 1e6, user / n * 1e6, kernel / n * 1e6,
           n / loop, loop / r.wall);
    fflush(stdout);
    return r.status != 0;
}

int main(int argc, char **argv)
{
    static const struct mode modes[] = {{"flood", 0, 0, 1000, 1},     {"paced", 3200, 0, 1000, 1},
                                        {"each", 3200, -1, 1000, 1},  {"step10", 10000, 0, 300, 1},
                                        {"step30", 30000, 0, 100, 1}, {"step60", 60000, 0, 100, 1},
                                        {"requests", 5000, 0, 1, 50}};
    int n = argc > 1 ? atoi(argv[1]) : 5, bad = 0;
    const char *only = argc > 2 ? argv[2] : "";
    size_t a = 0;

    while (argc > 3 && a < 2 && strcmp(apis[a].name, argv[3]) != 0)
        a++;

    printf("mode,repeat,clients,tokens_each,wall_s,tokens_per_s,process_cpu_s,loop_us_per_token,"
           "user_us_per_token,kernel_us_per_token,tokens_per_s_per_core,loop_of_wall\n");
    for (int i = 1; i <= n; i++)
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++)
            if (!*only || strcmp(only, modes[m].name) == 0)
                bad |= measure(&modes[m], &apis[a], i);
    return bad;
}
