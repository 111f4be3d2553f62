/*
 * models.c - /v1/models in Anthropic's shape.
 *
 * Called by route.c. Must not: need the model; it is listed while it is loaded.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/anthropic/anthropic.h"
#include "serve/core/write.h"

#include <string.h>
#include <time.h>

static void write_model(const struct sv_serve *s, struct sv_buf *b)
{
    time_t created = (time_t)s->created;
    struct tm utc;
    char date[32];

    gmtime_r(&created, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    sv_buf_lit(b, "{\"type\":\"model\",");
    sv_json_string(b, "id", s->model_name);
    sv_buf_lit(b, ",");
    sv_json_string(b, "display_name", s->model_name);
    sv_buf_printf(b, ",\"created_at\":\"%s\"}", date);
}

/* A page with the only model; the pages before and after it are empty. */
static void write_models(const struct sv_serve *s, struct sv_buf *b, const char *query)
{
    bool beside = strstr(query, "after_id=") || strstr(query, "before_id=");

    sv_buf_lit(b, "{\"data\":[");
    if (!beside)
        write_model(s, b);
    sv_buf_lit(b, "],\"has_more\":false,\"first_id\":");
    for (int i = 0; i < 2; i++) {
        if (i)
            sv_buf_lit(b, ",\"last_id\":");
        if (beside)
            sv_buf_lit(b, "null");
        else
            sv_json_quote(b, s->model_name, strlen(s->model_name));
    }
    sv_buf_lit(b, "}");
}

void sv_anthropic_get_models(struct sv_serve *s, struct sv_http_req *q)
{
    const char *id = sv_model_of_path(s, q);
    struct sv_buf b;

    if (!id)
        return;
    sv_buf_init(&b);
    if (*id)
        write_model(s, &b);
    else
        write_models(s, &b, sv_http_query(q));
    sv_buf_lit(&b, "\n");
    sv_api_answer(q, 200, "application/json", &b);
}
