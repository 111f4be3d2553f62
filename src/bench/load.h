/*
 * load.h - what the files of `salvo-bench serve` share: one streamed request, and the figures of
 * all.
 *
 * Included by serve.c, load_client.c and load_report.c only. Must not: be needed by another
 * command.
 */
#ifndef SV_BENCH_LOAD_H
#define SV_BENCH_LOAD_H

#include "bench/bench.h"

/* Where the server is. */
struct sv_bench_load_server {
    char host[256], prefix[256]; /* prefix: the path before /v1, "" mostly */
    int port;
    const char *api_key;
};
int sv_bench_load_parse_url(struct sv_bench_load_server *s, const char *url, struct sv_err *err);

/* One request and what came of it. Times in microseconds of sv_clock_us. */
struct sv_bench_load_request {
    char *body;
    size_t n_body;
    bool chat, ok;
    char error[200];
    int64_t start_us, first_us, last_us;
    int64_t n_prompt, n_out; /* of the server's usage */
    struct sv_buf gaps;      /* int64_t: between chunks with text */
    /* the connection's */
    struct sv_buf line;
    int status;
    void (*on_done)(void *user, struct sv_bench_load_request *r);
    void *user;
    struct evhttp_connection *con; /* in on_done: one that can take another request, or NULL */
};
struct event_base;
/* Sends, on the connection in r->con or a new one; on_done comes from the loop. */
int sv_bench_load_send(struct event_base *base, const struct sv_bench_load_server *s,
                       struct sv_bench_load_request *r);
void sv_bench_load_hang_up(struct evhttp_connection *con);
/* A whole GET, in a loop of its own. */
int sv_bench_load_get(const struct sv_bench_load_server *s, const char *path, struct sv_buf *out,
                      struct sv_err *err);

/* Counters of speculation, of ours or of a vLLM server. */
struct sv_bench_load_spec {
    double drafts, drafted, accepted, at[64];
    int n_at;
    bool found;
};
void sv_bench_load_read_spec(const char *metrics, struct sv_bench_load_spec *out);

struct sv_bench_load_result {
    struct sv_bench_load_request *r;
    int32_t n, concurrency;
    double seconds, rate; /* rate: 0 = as fast as it goes */
    int32_t peak;         /* most requests at once */
    struct sv_bench_load_spec before, after;
};
/* The block that `vllm bench serve` prints, or JSON. */
void sv_bench_load_report(const struct sv_bench_load_result *res, bool json, struct sv_buf *out);

#endif
