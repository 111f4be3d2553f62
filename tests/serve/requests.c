/*
 * requests.c - see requests.h.
 */
#include "serve/requests.h"

#include "serve/http/http_parse.h"

#include <string.h>

static void log_head(struct sv_buf *log, const struct sv_http_parser *p)
{
    const char *host = sv_http_parser_host(p);

    sv_buf_printf(log, "%s %s %s ?%s 1.%d%s%s%s", sv_http_parser_text(p, 0), host ? host : "-",
                  sv_http_parser_text(p, p->path), sv_http_parser_text(p, p->query), p->minor,
                  p->keep_alive ? "" : " close", p->expects_continue ? " expects" : "",
                  p->chunked ? " chunked" : "");
    for (size_t at = p->fields; at < p->kept;) {
        const char *name = p->head.data + at, *value = name + strlen(name) + 1;
        SV_REQUIRE(sv_http_parser_field(p, name));
        sv_buf_printf(log, " %s=%s", name, value);
        at += strlen(name) + strlen(value) + 2;
    }
    sv_buf_lit(log, " [");
}

/* What is promised of each call. */
static void check_step(const struct sv_http_parser *p, enum sv_http_event e, size_t n, size_t used)
{
    size_t again = 1;

    SV_REQUIRE(used <= n && p->head.len <= SV_HTTP_MAX_HEAD + 16);
    SV_REQUIRE(e != SV_HTTP_DATA || (p->n_data && p->n_data <= used));
    SV_REQUIRE(e != SV_HTTP_MORE || used == n);
    if (e != SV_HTTP_BAD && e != SV_HTTP_END)
        return;
    SV_REQUIRE(e != SV_HTTP_BAD || (p->status >= 400 && p->status < 600 && *p->reason));
    SV_REQUIRE(sv_http_parse((struct sv_http_parser *)(uintptr_t)p, "GET", 3, &again) == e &&
               !again);
}

size_t requests_read(struct sv_buf *log, const char *data, size_t n, int64_t max_body,
                     uint64_t cuts)
{
    struct sv_http_parser p;
    struct sv_rng rng = {cuts};
    size_t at = 0, n_calls = 0, piece, used;
    int64_t n_body = 0;
    enum sv_http_event e = SV_HTTP_MORE;

    sv_http_parser_init(&p, max_body);
    while (e != SV_HTTP_BAD && (at < n || e != SV_HTTP_MORE)) {
        piece = cuts == REQUESTS_WHOLE ? n : cuts == REQUESTS_BYTES ? 1 : sv_rng_below(&rng, 40);
        piece = piece < n - at ? piece : n - at;
        e = sv_http_parse(&p, data + at, piece, &used);
        n_calls++;
        check_step(&p, e, piece, used);
        at += used;
        if (e == SV_HTTP_HEAD) {
            log_head(log, &p);
            n_body = 0;
        } else if (e == SV_HTTP_DATA) {
            sv_buf_append(log, data + at - p.n_data, p.n_data);
            n_body += (int64_t)p.n_data;
            SV_REQUIRE(n_body <= max_body);
        } else if (e == SV_HTTP_END) {
            SV_REQUIRE(p.chunked || n_body == p.length);
            sv_buf_lit(log, "]\n");
            sv_http_parser_next(&p);
        }
    }
    if (e == SV_HTTP_BAD)
        sv_buf_printf(log, "%d %s\n", p.status, p.reason);
    else
        sv_buf_printf(log, "%s\n", sv_http_parser_is_idle(&p) ? "idle" : "more");
    sv_http_parser_fini(&p);
    return n_calls;
}
