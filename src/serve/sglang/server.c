/*
 * server.c - SGLang's endpoints about the server: /server_info, /model_info, /flush_cache and
 * /abort_request.
 *
 * Called by route.c, and by serve.c once all workers have flushed. Must not: wait for the engine.
 */
#include "serve/core/auth.h"
#include "serve/core/body.h"
#include "serve/core/write.h"
#include "serve/sglang/sglang.h"

#include <string.h>

/* SGLang's clients ask for this before they begin. */
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
    sv_api_answer(q, 200, "application/json", &b);
}

/* Body: {"rid": "..."} or {"abort_all": true}. */
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
        sv_call_abort(s, sv_http_key(q), all ? NULL : rid);
    json_decref(body);
    if (e.status)
        sv_api_refuse(q, &e);
    else
        sv_http_reply(q, 200, NULL, NULL, 0);
}

void sv_get_server_info(struct sv_serve *s, struct sv_http_req *q)
{
    const struct sv_engine_info *info = &s->model->info;
    struct sv_snapshot snap;
    struct sv_buf b;

    sv_replicas_snapshot(s, &snap);
    const struct sv_engine_stats *st = &snap.stats;
    double seconds = (double)snap.busy_us / 1e6;
    sv_buf_init(&b);
    sv_buf_printf(&b, "{");
    sv_json_string(&b, "model_path", s->o.engine.target_dir);
    sv_buf_printf(&b, ",");
    sv_json_string(&b, "served_model_name", s->model_name);
    sv_buf_printf(&b, ",\"version\":\"salvo " SALVO_VERSION "\",\"speculative_algorithm\":%s",
                  s->model->drafts ? "\"DFLASH\"" : "null");
    if (s->o.engine.draft_dir) {
        sv_buf_printf(&b, ",");
        sv_json_string(&b, "speculative_draft_model_path", s->o.engine.draft_dir);
    }
    sv_buf_printf(&b, ",");
    sv_json_string(&b, "architecture", info->target_arch);
    sv_buf_printf(&b, ",");
    sv_json_string(&b, "device", info->device);
    sv_buf_printf(&b, ",");
    sv_json_string(&b, "dtype", info->dtype);
    sv_buf_printf(&b,
                  ",\"speculative_num_draft_tokens\":%d,\"verify_width\":%d,\"context_length\":%d,"
                  "\"max_total_num_tokens\":%lld,\"max_running_requests\":%d,"
                  "\"internal_states\":[{\"avg_spec_accept_length\":",
                  info->block_size, info->width, info->context,
                  (long long)st->n_pages * (s->o.engine.page_size ? s->o.engine.page_size : 16),
                  s->o.engine.max_sequences ? s->o.engine.max_sequences : 1);
    sv_json_float(&b, sv_mean_accept(st));
    sv_buf_printf(&b, ",\"last_gen_throughput\":");
    sv_json_float(&b, seconds > 0 ? (double)st->n_tokens / seconds : 0);
    sv_buf_printf(&b, ",\"num_running_reqs\":%d,\"num_waiting_reqs\":%d}]}\n", st->n_running,
                  st->n_waiting);
    sv_api_answer(q, 200, "application/json", &b);
}

#define MAX_FLUSHING 32

static void flush_gone(void *user)
{
    *(struct sv_http_req **)user = NULL;
}

void sv_flush_prefixes(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_api_err e = {0};

    if (sv_keys_count(s->keys) > 1)
        sv_api_fail(&e, 403, "shared_cache",
                    "the cache is not flushed: this server has several API keys, and one client's "
                    "flush would drop the prefixes of all");
    else if (s->n_flushing == MAX_FLUSHING)
        sv_api_fail(&e, 429, NULL, "too many flushes at once");
    if (e.status) {
        sv_api_refuse(q, &e);
        return;
    }
    struct sv_http_req **at = &s->flushing[(s->first_flushing + s->n_flushing++) % MAX_FLUSHING];
    *at = q;
    sv_http_on_gone(q, flush_gone, at);
    sv_replicas_flush(s);
}

/* All workers have flushed for the oldest waiting request. */
void sv_flushed(struct sv_serve *s)
{
    static const char text[] = "Cache flushed.\n";
    SV_REQUIRE(s->n_flushing > 0);
    struct sv_http_req *q = s->flushing[s->first_flushing];
    s->first_flushing = (s->first_flushing + 1) % MAX_FLUSHING;
    s->n_flushing--;
    if (q)
        sv_http_reply(q, 200, "text/plain; charset=utf-8", text, sizeof text - 1);
}
