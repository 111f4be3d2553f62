/*
 * error.c - errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}. Other shapes
 * are written by the server's write_error.
 *
 * Called by everything that refuses a request. Must not: show what a client did not send or may not
 * know.
 */
#include "serve/core/error.h"
#include "serve/core/log.h"
#include "serve/core/server.h"

#include <string.h>

static void fill_bad(struct sv_api_err *e, const char *param, const char *code, const char *fmt,
                     va_list ap)
{
    e->status = 400;
    e->type = "invalid_request_error";
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
}

int sv_api_bad(struct sv_api_err *e, const char *param, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fill_bad(e, param, NULL, fmt, ap);
    va_end(ap);
    return -1;
}

int sv_api_unsupported(struct sv_api_err *e, const char *param, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fill_bad(e, param, "unsupported_parameter", fmt, ap);
    va_end(ap);
    return -1;
}

int sv_api_fail(struct sv_api_err *e, int status, const char *code, const char *fmt, ...)
{
    va_list ap;

    e->status = status;
    e->type = status == 401   ? "authentication_error"
              : status == 429 ? "rate_limit_error"
              : status >= 500 ? "server_error"
                              : "invalid_request_error";
    e->code = code;
    e->param[0] = 0;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return -1;
}

int sv_api_no_memory(struct sv_api_err *e)
{
    return sv_api_fail(e, 500, NULL, "out of memory");
}

int sv_api_unknown(struct sv_api_err *e, const char *prefix, const char *name)
{
    char full[96];

    snprintf(full, sizeof full, "%s%.64s", prefix, name);
    sv_api_bad(e, full, "Unknown parameter: '%s'", full);
    e->code = "unknown_parameter";
    return -1;
}

void sv_api_err_json(struct sv_buf *b, const struct sv_api_err *e)
{
    sv_buf_printf(b, "{\"error\":{\"message\":");
    sv_json_quote(b, e->msg, strlen(e->msg));
    sv_buf_printf(b, ",\"type\":\"%s\",\"param\":", e->type);
    if (e->param[0])
        sv_json_quote(b, e->param, strlen(e->param));
    else
        sv_buf_printf(b, "null");
    if (e->code)
        sv_buf_printf(b, ",\"code\":\"%s\"}}", e->code);
    else
        sv_buf_printf(b, ",\"code\":null}}");
}

void sv_api_refuse(struct sv_http_req *q, const struct sv_api_err *e)
{
    struct sv_serve *s = sv_http_user(q);
    const char *id = sv_http_added_header(q, "x-request-id");
    char path[128], param[128];

    s->metrics.n_refused[e->status >= 500]++;
    struct sv_log_field f[] = {
        SV_LOG_S("id", id ? id : ""),
        SV_LOG_S("method", sv_http_method(q)),
        SV_LOG_S("path", sv_log_plain(path, sv_http_path(q))),
        SV_LOG_I("status", e->status),
        SV_LOG_S("code", e->code ? e->code : e->type),
        SV_LOG_S("param", sv_log_plain(param, e->param)),
    };
    if (!s->o.quiet)
        sv_serve_log(s, "refused", f, (int)(sizeof f / sizeof f[0]));
    sv_api_reply(q, e);
}

void sv_api_reply(struct sv_http_req *q, const struct sv_api_err *e)
{
    static const char none[] = "{\"error\":{\"message\":\"out of memory\",\"type\":"
                               "\"server_error\",\"param\":null,\"code\":null},"
                               "\"type\":\"error\"}";
    const struct sv_serve *s = sv_http_user(q);
    struct sv_buf b;

    sv_buf_init(&b);
    if (s->write_error)
        s->write_error(&b, q, e);
    else
        sv_api_err_json(&b, e);
    if (e->status == 429 || e->status == 503)
        sv_http_add_header(q, "Retry-After", "1");
    if (b.failed)
        sv_http_reply(q, 500, "application/json", none, sizeof none - 1);
    else
        sv_http_reply(q, e->status, "application/json", b.data, b.len);
    sv_buf_fini(&b);
}

void sv_api_answer(struct sv_http_req *q, int status, const char *type, struct sv_buf *b)
{
    struct sv_api_err e;

    if (b->failed) {
        sv_api_no_memory(&e);
        sv_api_refuse(q, &e);
    } else {
        sv_http_reply_buf(q, status, type, b);
    }
    sv_buf_fini(b);
}
