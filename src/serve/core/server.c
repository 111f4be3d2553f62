/*
 * server.c - functions for all dialects: random numbers, the model's names, health, drains of
 * replicas.
 *
 * Called by call.c, by endpoints and by serve.c. Must not: need the engine; all comes from the
 * snapshot and the loop's own counters.
 */
#include "serve/core/auth.h"
#include "serve/core/error.h"
#include "serve/core/server.h"

#include <string.h>

/* The key is random; the numbers are for ids and default seeds. */
uint64_t sv_serve_random(struct sv_serve *s)
{
    uint32_t r[4];
    sv_philox(s->random_key, ++s->n_random, 0, r);
    return (uint64_t)r[0] << 32 | r[1];
}

/* ---------------------------------------------------------------- the model's names */

static bool knows_model(const struct sv_serve *s, const char *name)
{
    return strcmp(name, s->model_name) == 0 || strcmp(name, s->o.engine.target_dir) == 0 ||
           strcmp(name, "default") == 0; /* SGLang's clients use that name */
}

int sv_check_model(const struct sv_serve *s, const char *model, struct sv_api_err *e)
{
    if (!s->o.strict_model || !model || !*model || knows_model(s, model))
        return 0;
    sv_api_fail(e, 404, "model_not_found",
                "the model '%.200s' does not exist; this server has '%.200s'", model,
                s->model_name);
    snprintf(e->param, sizeof e->param, "model");
    return -1;
}

const char *sv_model_of_path(struct sv_serve *s, struct sv_http_req *q)
{
    const char *id = strstr(sv_http_path(q), "/models") + strlen("/models");
    struct sv_api_err e;

    id += *id == '/';
    if (!*id || knows_model(s, id))
        return id;
    sv_api_fail(&e, 404, "model_not_found", "the model '%.200s' does not exist", id);
    snprintf(e.param, sizeof e.param, "model");
    sv_api_refuse(q, &e);
    return NULL;
}

/* ---------------------------------------------------------------- health */

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

/* Weights take nearly all of the time where they have to be copied. */
double sv_load_progress(enum sv_load_stage stage, double share)
{
    static const double start[] = {0, 0, 0.02, 0.8, 0.9, 1, 1};
    return start[stage] + share * (start[stage + 1] - start[stage]);
}

static void write_replica(struct sv_buf *b, const struct sv_serve *s, int32_t r)
{
    const struct sv_replica *x = &s->replicas[r];
    const char *status = x->failed     ? "failed"
                         : !x->drained ? "ok"
                         : x->n_live   ? "draining"
                                       : "drained";

    sv_buf_printf(b, "{\"replica\":%d,\"status\":\"%s\",\"unfinished\":%d", r, status, x->n_live);
    if (x->failed) {
        sv_buf_lit(b, ",\"message\":");
        sv_json_quote(b, x->why, strlen(x->why));
    }
    sv_buf_lit(b, "}");
}

/* Ends the object, with the state of each replica if there are several. */
static void end_health(struct sv_buf *b, const struct sv_serve *s)
{
    for (int32_t r = 0; r < s->n_replicas && s->n_replicas > 1; r++) {
        sv_buf_printf(b, r ? "," : ",\"replicas\":[");
        write_replica(b, s, r);
    }
    sv_buf_printf(b, s->n_replicas > 1 ? "]}\n" : "}\n");
}

/* 200 when requests are accepted; 503 with the state while loading, draining or broken. */
void sv_get_health(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_snapshot snap;
    struct sv_buf b;

    sv_buf_init(&b);
    if (s->state == SV_READY && sv_replicas_taking(s)) {
        sv_buf_printf(&b, "{\"status\":\"%s\"",
                      sv_replicas_live(s) == s->n_replicas ? "ok" : "degraded");
        end_health(&b, s);
        reply(q, 200, &b);
        return;
    }
    sv_http_add_header(q, "Retry-After", "1");
    if (s->state == SV_LOADING) {
        sv_replicas_snapshot(s, &snap);
        sv_buf_printf(&b,
                      "{\"status\":\"loading\",\"stage\":\"%s\",\"stage_progress\":%.3f,"
                      "\"progress\":%.3f,\"seconds\":%.1f,"
                      "\"error\":{\"message\":\"the model is still being loaded\","
                      "\"type\":\"server_error\",\"param\":null,\"code\":\"loading\"}}\n",
                      sv_load_stage_name(snap.stage), snap.stage_share,
                      sv_load_progress(snap.stage, snap.stage_share),
                      (double)(sv_clock_us() - s->start_us) / 1e6);
    } else if (s->state != SV_BROKEN) { /* or the replicas that have not failed are drained */
        sv_buf_printf(&b, "{\"status\":\"draining\",\"unfinished\":%d", s->n_live);
        end_health(&b, s);
    } else {
        sv_buf_printf(&b, "{\"status\":\"failed\",\"message\":");
        sv_json_quote(&b, s->broken, strlen(s->broken));
        end_health(&b, s);
    }
    reply(q, 503, &b);
}

/* ---------------------------------------------------------------- /replicas */

/* POST /replicas/R/drain, /replicas/R/resume. */
void sv_post_replica(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_api_err e = {0};
    struct sv_buf b;
    char what[8];
    int r = -1, end = 0;
    const char *path = sv_http_path(q);
    const int n = sscanf(path, "/replicas/%9d/%7[a-z]%n", &r, what, &end);
    const bool drain = n == 2 && strcmp(what, "drain") == 0;

    if (n != 2 || path[end] || (!drain && strcmp(what, "resume") != 0))
        sv_api_fail(&e, 404, "not_found", "there is no %.200s", path);
    else if (r < 0 || r >= s->n_replicas)
        sv_api_fail(&e, 404, "not_found", "there is no replica %d: there are %d", r, s->n_replicas);
    else if (sv_keys_count(s->keys) > 1)
        sv_api_fail(&e, 403, "shared_server",
                    "this server has several API keys, and one client's drain would hold for all");
    else
        sv_replicas_drain(s, r, drain, &e);
    if (e.status) {
        sv_api_refuse(q, &e);
        return;
    }
    sv_buf_init(&b);
    write_replica(&b, s, r);
    sv_buf_lit(&b, "\n");
    reply(q, 200, &b);
}
