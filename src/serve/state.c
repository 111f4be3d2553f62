/*
 * state.c - small answers about the server: health, version, models, metrics.
 *
 * Called by route.c. Must not: need the engine; all comes from the snapshot and the loop's own
 * counters.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/impl.h"

#include <string.h>
#include <time.h>

static void reply(struct sv_http_req *q, int status, struct sv_buf *b)
{
    sv_api_answer(q, status, "application/json", b);
}

const char *sv_load_stage_name(enum sv_load_stage stage)
{
    static const char *const names[] = {"starting", "tokenizer", "weights",
                                        "graphs",   "costs",     "done"};
    return names[stage];
}

/* Weights take nearly all of the time where they have to be moved. */
double sv_load_progress(enum sv_load_stage stage, double share)
{
    static const double start[] = {0, 0, 0.02, 0.8, 0.9, 1, 1};
    return start[stage] + share * (start[stage + 1] - start[stage]);
}

/* 200 when requests are taken; 503 with what is going on while loading, draining or broken. */
void sv_get_health(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_snapshot snap;
    struct sv_buf b;

    sv_buf_init(&b);
    if (s->state == SV_READY) {
        sv_buf_printf(&b, "{\"status\":\"ok\"}\n");
        reply(q, 200, &b);
        return;
    }
    sv_worker_snapshot(s->worker, &snap);
    sv_http_add_header(q, "Retry-After", "1");
    if (s->state == SV_LOADING) {
        sv_buf_printf(&b,
                      "{\"status\":\"loading\",\"stage\":\"%s\",\"stage_progress\":%.3f,"
                      "\"progress\":%.3f,\"seconds\":%.1f,"
                      "\"error\":{\"message\":\"the model is still being loaded\","
                      "\"type\":\"server_error\",\"param\":null,\"code\":\"loading\"}}\n",
                      sv_load_stage_name(snap.stage), snap.stage_share,
                      sv_load_progress(snap.stage, snap.stage_share),
                      (double)(sv_clock_us() - s->start_us) / 1e6);
    } else if (s->state == SV_DRAINING) {
        sv_buf_printf(&b, "{\"status\":\"draining\",\"unfinished\":%d}\n", s->n_live);
    } else {
        sv_buf_printf(&b, "{\"status\":\"failed\",\"message\":");
        sv_json_quote(&b, s->broken, strlen(s->broken));
        sv_buf_printf(&b, "}\n");
    }
    reply(q, 503, &b);
}

void sv_get_version(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_buf b;

    (void)s;
    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"version\":\"" SALVO_VERSION "\",\"engine\":\"salvo\"}\n");
    reply(q, 200, &b);
}

/* vLLM's: requests that run or wait. */
void sv_get_load(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_buf b;

    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"server_load\":%d}\n", s->n_live);
    reply(q, 200, &b);
}

/* SGLang's: {"rid": "..."} or {"abort_all": true}. */
void sv_post_abort(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_api_err e = {0};
    size_t n;
    const char *text = sv_http_body(q, &n);
    json_t *body = n <= SV_INLINE_BYTES ? sv_body_object(text, n, &e) : NULL;
    const char *rid = json_string_value(json_object_get(body, "rid"));
    bool all = json_is_true(json_object_get(body, "abort_all"));

    if (body && !all && (!rid || !*rid))
        sv_api_bad(&e, "rid", "'rid' must be a request's name, unless 'abort_all' is true");
    else if (!body && !e.status)
        sv_api_bad(&e, NULL, "the body is too long");
    if (!e.status)
        sv_call_abort(s, all ? NULL : rid);
    json_decref(body);
    if (e.status)
        sv_api_refuse(q, &e);
    else
        sv_http_reply(q, 200, NULL, NULL, 0);
}

static void write_model(const struct sv_serve *s, struct sv_buf *b)
{
    sv_buf_printf(b, "{\"id\":");
    sv_json_quote(b, s->model_name, strlen(s->model_name));
    sv_buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"salvo\",\"root\":",
                  (long long)s->created);
    sv_json_quote(b, s->o.engine.target_dir, strlen(s->o.engine.target_dir));
    sv_buf_lit(b, ",\"parent\":null");
    if (s->model) /* the first is vLLM's, the second llama-server's */
        sv_buf_printf(b, ",\"max_model_len\":%d,\"meta\":{\"n_vocab\":%d,\"n_ctx\":%d}",
                      s->model->info.context, s->model->info.vocab_size, s->model->info.context);
    sv_buf_printf(b, "}");
}

/* The same in Anthropic's shape. */
static void write_anthropic_model(const struct sv_serve *s, struct sv_buf *b)
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

/* A page of all there are: one, and none before it or after it. */
static void write_anthropic_models(const struct sv_serve *s, struct sv_buf *b, const char *query)
{
    bool beside = strstr(query, "after_id=") || strstr(query, "before_id=");

    sv_buf_lit(b, "{\"data\":[");
    if (!beside)
        write_anthropic_model(s, b);
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

void sv_get_models(struct sv_serve *s, struct sv_http_req *q)
{
    bool anthropic = sv_api_is_anthropic(q);
    const char *id = strstr(sv_http_path(q), "/models") + strlen("/models");
    struct sv_buf b;

    id += *id == '/';
    if (*id && !sv_call_knows_model(s, id)) {
        struct sv_api_err e;
        sv_api_fail(&e, 404, "model_not_found", "the model '%.200s' does not exist", id);
        snprintf(e.param, sizeof e.param, "model");
        sv_api_refuse(q, &e);
        return;
    }
    sv_buf_init(&b);
    if (anthropic && *id)
        write_anthropic_model(s, &b);
    else if (anthropic)
        write_anthropic_models(s, &b, sv_http_query(q));
    else if (!*id)
        sv_buf_lit(&b, "{\"object\":\"list\",\"data\":[");
    if (!anthropic)
        write_model(s, &b);
    sv_buf_printf(&b, *id || anthropic ? "\n" : "]}\n");
    reply(q, 200, &b);
}

/* SGLang's clients ask for it before they begin. */
void sv_get_model_info(struct sv_serve *s, struct sv_http_req *q)
{
    const char *dir = s->o.engine.target_dir;
    struct sv_buf b;

    sv_buf_init(&b);
    sv_buf_lit(&b, "{");
    sv_json_string(&b, "model_path", dir);
    sv_buf_lit(&b, ",");
    sv_json_string(&b, "tokenizer_path", dir);
    sv_buf_lit(&b, ",\"is_generation\":true,\"preferred_sampling_params\":null}\n");
    reply(q, 200, &b);
}

void sv_get_metrics(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_buf b;

    sv_buf_init(&b);
    sv_metrics_write(s, &b);
    sv_api_answer(q, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}
