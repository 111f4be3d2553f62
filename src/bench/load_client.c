/*
 * load_client.c - HTTP for `salvo-bench serve`: streamed requests on libevent, counters from
 * /metrics.
 *
 * Called by serve.c. Times are taken when bytes arrive, before anything is parsed. Must not:
 * decide when to send.
 */
#include "bench/load.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_S 3600

int sv_bench_load_parse_url(struct sv_bench_load_server *s, const char *url, struct sv_err *err)
{
    struct evhttp_uri *u = evhttp_uri_parse(url);
    const char *host = u ? evhttp_uri_get_host(u) : NULL, *path = u ? evhttp_uri_get_path(u) : "";
    const char *scheme = u ? evhttp_uri_get_scheme(u) : NULL;
    int rc = SV_OK;

    if (!host || !scheme || strcmp(scheme, "http") != 0) {
        rc = sv_fail(err, SV_EINVAL, -1, "'%s' is no URL of the form http://host:port", url);
    } else {
        int n = (int)strlen(path);
        while (n && path[n - 1] == '/')
            n--;
        if (n >= 3 && strncmp(path + n - 3, "/v1", 3) == 0)
            n -= 3;
        snprintf(s->host, sizeof s->host, "%s", host);
        snprintf(s->prefix, sizeof s->prefix, "%.*s", n, path);
        s->port = evhttp_uri_get_port(u) > 0 ? evhttp_uri_get_port(u) : 80;
    }
    if (u)
        evhttp_uri_free(u);
    return rc;
}

/* An IPv6 address has brackets in a URL alone. */
static struct evhttp_connection *dial(struct event_base *base, const struct sv_bench_load_server *s)
{
    int bracket = *s->host == '[', n = (int)strlen(s->host) - 2 * bracket;
    char address[sizeof s->host];

    snprintf(address, sizeof address, "%.*s", n, s->host + bracket);
    return evhttp_connection_base_new(base, NULL, address, (ev_uint16_t)s->port);
}

static void add_headers(struct evhttp_request *q, const struct sv_bench_load_server *s)
{
    struct evkeyvalq *h = evhttp_request_get_output_headers(q);
    char host[sizeof s->host + 16];

    snprintf(host, sizeof host, "%s:%d", s->host, s->port);
    evhttp_add_header(h, "Host", host);
    evhttp_add_header(h, "Content-Type", "application/json");
    if (s->api_key) { /* of any length: signed ones have thousands of bytes */
        struct sv_buf key;
        sv_buf_init(&key);
        sv_buf_printf(&key, "Bearer %s", s->api_key);
        if (!key.failed)
            evhttp_add_header(h, "Authorization", key.data);
        sv_buf_fini(&key);
    }
}

/* ---------------------------------------------------------------- a stream */

static bool has_text(const json_t *event)
{
    const json_t *c = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *text = json_object_get(c, "text");

    if (!text)
        text = json_object_get(json_object_get(c, "delta"), "content");
    return json_string_length(text) > 0;
}

static void take_event(struct sv_bench_load_request *r, const char *data, size_t n, int64_t now)
{
    struct sv_err err = {0};
    json_t *event = sv_json_parse(data, n, &err);
    const json_t *usage = json_object_get(event, "usage"), *error = json_object_get(event, "error");

    if (!event || error) {
        const char *why = json_string_value(json_object_get(error, "message"));
        snprintf(r->error, sizeof r->error, "%.180s", why ? why : err.msg);
    }
    if (json_is_object(usage)) {
        r->n_prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
        r->n_out = json_integer_value(json_object_get(usage, "completion_tokens"));
    }
    if (has_text(event)) {
        int64_t gap = now - r->last_us;
        if (r->first_us)
            sv_buf_append(&r->gaps, &gap, sizeof gap);
        else
            r->first_us = now;
        r->last_us = now;
    }
    json_decref(event);
}

static void on_chunk(struct evhttp_request *q, void *arg)
{
    struct sv_bench_load_request *r = arg;
    struct evbuffer *in = evhttp_request_get_input_buffer(q);
    int64_t now = sv_clock_us();
    size_t n = evbuffer_get_length(in);

    r->status = evhttp_request_get_response_code(q);
    sv_buf_append(&r->line, evbuffer_pullup(in, -1), n);
    evbuffer_drain(in, n);
    for (;;) {
        char *end = r->line.data ? strstr(r->line.data, "\n\n") : NULL;
        if (!end)
            return;
        size_t used = (size_t)(end - r->line.data);
        if (strncmp(r->line.data, "data: {", 7) == 0)
            take_event(r, r->line.data + 6, used - 6, now);
        else if (strncmp(r->line.data, "data: [DONE]", 12) == 0)
            r->ok = !r->error[0];
        memmove(r->line.data, end + 2, r->line.len - used - 1); /* the NUL too */
        r->line.len -= used + 2;
    }
}

static void on_end(struct evhttp_request *q, void *arg)
{
    struct sv_bench_load_request *r = arg;

    if (q)
        r->status = evhttp_request_get_response_code(q);
    if (r->status != 200)
        r->ok = false;
    if (!r->ok && !r->error[0])
        snprintf(r->error, sizeof r->error, "status %d: %.150s", r->status,
                 r->line.data ? r->line.data : "the connection ended");
    sv_buf_fini(&r->line);
    if (!r->ok) {
        evhttp_connection_free_on_completion(r->con);
        r->con = NULL;
    }
    r->on_done(r->user, r);
}

int sv_bench_load_send(struct event_base *base, const struct sv_bench_load_server *s,
                       struct sv_bench_load_request *r)
{
    struct evhttp_request *q = evhttp_request_new(on_end, r);
    char path[320];

    if (!r->con) {
        r->con = dial(base, s);
        if (r->con)
            evhttp_connection_set_timeout(r->con, TIMEOUT_S);
    }
    if (!q || !r->con)
        return SV_ENOMEM;
    evhttp_request_set_chunked_cb(q, on_chunk);
    add_headers(q, s);
    evbuffer_add(evhttp_request_get_output_buffer(q), r->body, r->n_body);
    snprintf(path, sizeof path, "%s%s", s->prefix,
             r->chat ? "/v1/chat/completions" : "/v1/completions");
    r->start_us = sv_clock_us();
    if (evhttp_make_request(r->con, q, EVHTTP_REQ_POST, path) == 0)
        return SV_OK;
    evhttp_connection_free(r->con);
    r->con = NULL;
    return SV_EIO;
}

void sv_bench_load_hang_up(struct evhttp_connection *con)
{
    evhttp_connection_free(con);
}

/* ---------------------------------------------------------------- GET */

struct get {
    struct event_base *base;
    struct sv_buf *out;
    int status;
};

static void on_got(struct evhttp_request *q, void *arg)
{
    struct get *g = arg;

    if (q) {
        struct evbuffer *in = evhttp_request_get_input_buffer(q);
        size_t n = evbuffer_get_length(in);
        g->status = evhttp_request_get_response_code(q);
        sv_buf_append(g->out, n ? (const void *)evbuffer_pullup(in, -1) : "", n);
    }
    event_base_loopbreak(g->base);
}

int sv_bench_load_get(const struct sv_bench_load_server *s, const char *path, struct sv_buf *out,
                      struct sv_err *err)
{
    struct get g = {.base = event_base_new(), .out = out};
    struct evhttp_connection *con = dial(g.base, s);
    struct evhttp_request *q = evhttp_request_new(on_got, &g);
    char full[320];

    snprintf(full, sizeof full, "%s%s", s->prefix, path);
    evhttp_connection_set_timeout(con, 20);
    add_headers(q, s);
    evhttp_add_header(evhttp_request_get_output_headers(q), "Connection", "close");
    if (evhttp_make_request(con, q, EVHTTP_REQ_GET, full) == 0)
        event_base_dispatch(g.base);
    evhttp_connection_free(con);
    event_base_free(g.base);
    if (g.status == 200)
        return SV_OK;
    if (!g.status)
        return sv_fail(err, SV_EIO, -1, "http://%s:%d%s: no answer", s->host, s->port, full);
    return sv_fail(err, SV_EIO, -1, "http://%s:%d%s: status %d%s", s->host, s->port, full, g.status,
                   g.status == 401 ? " (--api-key)" : "");
}

/* ---------------------------------------------------------------- counters */

/* The value of a line `name{...} v`, labels whatever they are; position out of position="N". */
static void take_counter(const char *line, struct sv_bench_load_spec *s)
{
    static const char prefix[] = "vllm:spec_decode_num_";
    const char *name = line + sizeof prefix - 1, *value = strrchr(line, ' ');
    const char *position = strstr(line, "position=\"");
    double v = value ? atof(value) : 0;

    if (strncmp(line, prefix, sizeof prefix - 1) != 0)
        return;
    s->found = true;
    if (strncmp(name, "drafts", 6) == 0)
        s->drafts += v;
    else if (strncmp(name, "draft_tokens", 12) == 0)
        s->drafted += v;
    else if (strncmp(name, "accepted_tokens_per_pos", 23) == 0 && position) {
        int at = atoi(position + strlen("position=\""));
        if (at >= 0 && at < 64) {
            s->at[at] += v;
            s->n_at = at + 1 > s->n_at ? at + 1 : s->n_at;
        }
    } else if (strncmp(name, "accepted_tokens", 15) == 0)
        s->accepted += v;
}

void sv_bench_load_read_spec(const char *metrics, struct sv_bench_load_spec *out)
{
    char line[512];

    memset(out, 0, sizeof *out);
    while (metrics && *metrics) {
        size_t n = strcspn(metrics, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, metrics);
        take_counter(line, out);
        metrics += n + (metrics[n] == '\n');
    }
}
