/*
 * route.c - which endpoint a request goes to: request id, CORS, keys, method, path.
 *
 * Called by http.c for every request, at its header and at its end. The table below is the list of
 * endpoints. Must not: parse bodies.
 */
#include "serve/anthropic/anthropic.h"
#include "serve/compat/compat.h"
#include "serve/core/auth.h"
#include "serve/http/origin.h"
#include "serve/openai/openai.h"
#include "serve/page/page.h"
#include "serve/route.h"
#include "serve/sglang/sglang.h"

#include <string.h>

static void get_models(struct sv_serve *s, struct sv_http_req *q)
{
    if (sv_anthropic_is_client(q))
        sv_anthropic_get_models(s, q);
    else
        sv_openai_get_models(s, q);
}

static void get_metrics(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_buf b;

    sv_buf_init(&b);
    sv_metrics_write(s, &b);
    sv_stored_write_metrics(&b, s->stored);
    sv_api_answer(q, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}

/* ---------------------------------------------------------------- the table */

enum {
    OPEN = 1,   /* needs no key */
    LOADED = 2, /* needs the model */
    PREFIX = 4, /* the path is a prefix */
    EFFECT = 8, /* has an effect, though it is a GET */
};

struct route {
    const char *method, *path;
    unsigned flags;
    void (*run)(struct sv_serve *s, struct sv_http_req *q);
    const struct sv_dialect *dialect;
};

static const struct route routes[] = {
    {"POST", "/v1/chat/completions", LOADED, NULL, &sv_dialect_chat},
    {"POST", "/v1/messages", LOADED, NULL, &sv_dialect_messages},
    {"POST", "/v1/messages/count_tokens", LOADED, sv_post_count_tokens, NULL},
    {"POST", "/v1/responses", LOADED, NULL, &sv_dialect_responses},
    {"GET", "/v1/responses/", PREFIX, sv_get_response, NULL},
    {"POST", "/v1/responses/", PREFIX, sv_post_response, NULL},
    {"DELETE", "/v1/responses/", PREFIX, sv_delete_response, NULL},
    {"POST", "/v1/completions", LOADED, NULL, &sv_dialect_completions},
    {"POST", "/generate", LOADED, NULL, &sv_dialect_generate},
    {"POST", "/completion", LOADED, NULL, &sv_dialect_llama},
    {"POST", "/completions", LOADED, NULL,
     &sv_dialect_llama}, /* llama-server's older name for the same */
    {"POST", "/infill", LOADED, NULL, &sv_dialect_infill},
    {"GET", "/v1/models", 0, get_models, NULL},
    {"GET", "/v1/models/", PREFIX, get_models, NULL},
    {"POST", "/tokenize", LOADED, sv_post_tokenize, NULL},
    {"POST", "/detokenize", LOADED, sv_post_detokenize, NULL},
    {"POST", "/v1/tokenize", LOADED, sv_post_tokenize, NULL}, /* SGLang's names */
    {"POST", "/v1/detokenize", LOADED, sv_post_detokenize, NULL},
    {"GET", "/tokenizer_info", LOADED, sv_get_tokenizer_info, NULL},
    {"GET", "/health", OPEN, sv_get_health, NULL},
    {"GET", "/version", OPEN, sv_get_version, NULL},
    {"GET", "/metrics", 0, get_metrics, NULL},
    {"GET", "/server_info", LOADED, sv_get_server_info, NULL},
    {"GET", "/get_server_info", LOADED, sv_get_server_info, NULL},
    {"GET", "/model_info", 0, sv_get_model_info, NULL},
    {"GET", "/get_model_info", 0, sv_get_model_info, NULL},
    {"GET", "/flush_cache", LOADED | EFFECT, sv_flush_prefixes, NULL},
    {"POST", "/flush_cache", LOADED, sv_flush_prefixes, NULL},
    {"POST", "/chat/completions", LOADED, NULL,
     &sv_dialect_chat}, /* llama-server's clients leave /v1 out, ... */
    {"GET", "/models", 0, get_models, NULL},
    {"GET", "/v1/health", OPEN, sv_get_health, NULL},
    {"GET", "/ping", OPEN, sv_get_health, NULL}, /* ... vLLM's and SGLang's probes ask here */
    {"GET", "/health_generate", OPEN, sv_get_health, NULL},
    {"POST", "/reset_prefix_cache", LOADED, sv_flush_prefixes, NULL},
    {"POST", "/replicas/", LOADED | PREFIX, sv_post_replica, NULL},
    {"POST", "/abort_request", 0, sv_post_abort, NULL},
    {"GET", "/load", 0, sv_get_load, NULL},
    {"GET", "/props", LOADED, sv_get_props, NULL},
    {"GET", "/slots", LOADED, sv_get_slots, NULL},
    {"POST", "/apply-template", LOADED, sv_post_apply_template, NULL},
    {"GET", "/", OPEN, sv_get_page, NULL},
    {"GET", "/page.css", OPEN, sv_get_page, NULL},
    {"GET", "/page.js", OPEN, sv_get_page, NULL},
};

/* Endpoints of other servers that this one lacks: 404 with a message, since clients retry on
 * 5xx. */
static const struct {
    const char *path, *what; /* a path that ends with a slash is a prefix */
} elsewhere[] = {
    {"/v1/embeddings", "embeddings are not supported"},
    {"/embeddings", "embeddings are not supported"},
    {"/embedding", "embeddings are not supported"},
    {"/pooling", "embeddings are not supported"},
    {"/encode", "embeddings are not supported"},
    {"/classify", "classification is not supported"},
    {"/score", "scores of pairs are not supported"},
    {"/v1/score", "scores of pairs are not supported"},
    {"/rerank", "reranking is not supported"},
    {"/reranking", "reranking is not supported"},
    {"/v1/rerank", "reranking is not supported"},
    {"/v1/reranking", "reranking is not supported"},
    {"/v2/rerank", "reranking is not supported"},
    {"/v1/messages/batches", "batches are not supported"},
    {"/v1/messages/batches/", "batches are not supported"},
    {"/v1/conversations",
     "conversations are not kept; 'previous_response_id' goes on from an answer"},
    {"/v1/conversations/",
     "conversations are not kept; 'previous_response_id' goes on from an answer"},
    {"/v1/audio/", "audio is not supported"},
    {"/v1/images/", "images are not supported"},
    {"/v1/moderations", "moderation is not supported"},
    {"/v1/files", "files are not supported"},
    {"/v1/batches", "batches are not supported; a request may have a list of prompts"},
    {"/slots/", "slots cannot be saved, restored or erased; /flush_cache forgets prefixes"},
    {"/lora-adapters", "LoRA is not supported"},
    {"/v1/load_lora_adapter", "LoRA is not supported"},
    {"/v1/unload_lora_adapter", "LoRA is not supported"},
    {"/load_lora_adapter", "LoRA is not supported"},
    {"/unload_lora_adapter", "LoRA is not supported"},
    {"/api/", "Ollama's API is not supported; /v1/chat/completions is"},
};

/* The client's own id if it is printable and short, else a random one. */
static void request_id(struct sv_serve *s, const struct sv_http_req *q, char id[72])
{
    const char *given = sv_http_header(q, "X-Request-Id");
    size_t n = given ? strlen(given) : 0;
    bool fine = n > 0 && n < 65;

    for (size_t i = 0; i < n && fine; i++)
        fine = given[i] > ' ' && given[i] < 0x7f;
    if (fine) {
        snprintf(id, 72, "%s", given);
        return;
    }
    unsigned long long high = sv_serve_random(s), low = sv_serve_random(s);
    snprintf(id, 72, "%016llx%016llx", high, low);
}

static void add_cors(const struct sv_serve *s, struct sv_http_req *q)
{
    const char *allowed = s->o.cors_origin;

    if (!allowed)
        return;
    sv_http_add_header(q, "Access-Control-Allow-Origin", allowed);
    if (strcmp(allowed, "*") != 0)
        sv_http_add_header(q, "Vary", "Origin");
    sv_http_add_header(q, "Access-Control-Expose-Headers", "x-request-id, retry-after");
}

static void preflight(struct sv_serve *s, struct sv_http_req *q)
{
    if (s->o.cors_origin) {
        sv_http_add_header(q, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
        const char *wanted = sv_http_header(q, "Access-Control-Request-Headers");
        sv_http_add_header(q, "Access-Control-Allow-Headers",
                           wanted ? wanted : "authorization, content-type, x-request-id");
        sv_http_add_header(q, "Access-Control-Max-Age", "86400");
    }
    sv_http_add_header(q, "Allow", "GET, POST, DELETE, OPTIONS");
    sv_http_reply(q, 204, NULL, NULL, 0);
}

static bool path_fits(const struct route *r, const char *path)
{
    return (r->flags & PREFIX) ? strncmp(path, r->path, strlen(r->path)) == 0
                               : strcmp(path, r->path) == 0;
}

static int check_state(const struct sv_serve *s, const struct route *r, struct sv_api_err *e)
{
    if (s->state == SV_DRAINING && (r->flags & LOADED))
        return sv_api_fail(e, 503, NULL, "the server is shutting down");
    if (s->state == SV_BROKEN)
        return sv_api_fail(e, 503, NULL, "the engine has failed: %s", s->broken);
    if ((r->flags & LOADED) && !s->model)
        return sv_api_fail(e, 503, "loading", "the model is still being loaded");
    if (r->dialect && !sv_replicas_taking(s))
        return sv_api_fail(e, 503, NULL, "the replicas that have not failed are drained");
    return 0;
}

static void no_such_path(const char *path, struct sv_api_err *e)
{
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++) {
        const char *known = elsewhere[i].path;
        size_t n = strlen(known);
        if (strncmp(path, known, n) == 0 && (!path[n] || known[n - 1] == '/')) {
            sv_api_fail(e, 404, "unsupported_endpoint", "%.200s: %s", path, elsewhere[i].what);
            return;
        }
    }
    sv_api_fail(e, 404, "not_found", "there is no %.200s", path);
}

static bool method_fits(const struct route *r, const char *method)
{
    return strcmp(r->method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0);
}

/* NULL: there is none. */
static const struct route *find(const struct sv_http_req *q)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
        if (path_fits(&routes[i], sv_http_path(q)) && method_fits(&routes[i], sv_http_method(q)))
            return &routes[i];
    return NULL;
}

static void no_such_route(struct sv_http_req *q, struct sv_api_err *e)
{
    const char *path = sv_http_path(q);
    char allowed[32] = "";

    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
        if (path_fits(&routes[i], path))
            snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed),
                     *allowed ? ", %s" : "%s", routes[i].method);
    if (!*allowed) {
        no_such_path(path, e);
        return;
    }
    sv_http_add_header(q, "Allow", allowed);
    sv_api_fail(e, 405, "method_not_allowed", "%s takes %s, not %s", path, allowed,
                sv_http_method(q));
}

void sv_route_write_error(struct sv_buf *b, const struct sv_http_req *q, const struct sv_api_err *e)
{
    if (sv_anthropic_is_client(q))
        sv_messages_err_json(b, e, sv_http_added_header(q, "x-request-id"));
    else
        sv_api_err_json(b, e);
}

void sv_route_refused(void *server, struct sv_http_req *q, int status, const char *reason)
{
    struct sv_serve *s = server;
    struct sv_api_err e;

    if (status == 413)
        sv_api_fail(&e, status, "body_too_large",
                    "the body is larger than the %lld bytes that are read (--max-body)",
                    (long long)s->o.max_body_bytes);
    else if (status == 400 || status == 431 || status == 505)
        sv_api_fail(&e, status, "bad_http", "this is not an HTTP/1.1 request: %s", reason);
    else
        sv_api_fail(&e, status, status == 501 ? "method_not_allowed" : NULL, "%s", reason);
    if (sv_http_added_header(q, "x-request-id")) {
        sv_api_refuse(q, &e);
    } else { /* there is no request to log */
        s->metrics.n_refused[status >= 500]++;
        sv_api_reply(q, &e);
    }
}

/* A browser sends requests of any web page to this server. A request to another name for this
 * machine (DNS rebinding) has that name in Host; one from another site has it in Origin, or says so
 * in Sec-Fetch-Site. Other clients send neither Origin nor Sec-Fetch-Site. */
static int check_page(const struct sv_serve *s, const struct sv_http_req *q, const struct route *r,
                      struct sv_api_err *e)
{
    const char *method = sv_http_method(q), *host = sv_http_host(q);
    const char *origin = sv_http_header(q, "Origin"), *site = sv_http_header(q, "Sec-Fetch-Site");
    const char *cors = s->o.cors_origin;
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;

    if (s->checks_host && host && !sv_host_is_allowed(host, s->o.allowed_hosts))
        return sv_api_fail(e, 403, "host_not_allowed",
                           "'%.100s' is not a known name of this server: --allowed-host adds names",
                           host);
    if (strcmp(method, "OPTIONS") == 0 || (get && !(r && (r->flags & EFFECT))))
        return 0;
    if (origin ? !sv_origin_is_allowed(origin, host, cors)
               : site && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0 &&
                     !(cors && strcmp(cors, "*") == 0))
        return sv_api_fail(e, 403, "origin_not_allowed",
                           "a page of '%.100s' may not ask for this: --cors allows an origin",
                           origin ? origin : "another site");
    return 0;
}

/* Before any of the body is read, so that a client without a key cannot fill memory. */
static int check_key(const struct sv_serve *s, struct sv_http_req *q, const struct route *r,
                     struct sv_api_err *e)
{
    int key = s->keys ? sv_keys_find(s->keys, sv_http_header(q, "Authorization"),
                                     sv_http_header(q, "X-Api-Key"))
                      : -1;

    sv_http_set_key(q, key);
    if (!s->keys || key >= 0 || (r && (r->flags & OPEN)) ||
        strcmp(sv_http_method(q), "OPTIONS") == 0)
        return 0;
    sv_http_add_header(q, "WWW-Authenticate", "Bearer");
    return sv_api_fail(e, 401, "invalid_api_key", "a valid API key is needed");
}

void sv_route(void *server, struct sv_http_req *q)
{
    struct sv_serve *s = server;
    const struct route *r = find(q);
    const char *id = sv_http_added_header(q, "x-request-id");
    struct sv_api_err e = {0};

    if (strcmp(sv_http_method(q), "OPTIONS") == 0) {
        preflight(s, q);
        return;
    }
    if (!r)
        no_such_route(q, &e);
    else if (check_state(s, r, &e))
        /* these report the state themselves */
        r = r->run == sv_get_health || r->run == get_metrics ? r : NULL;
    if (!r)
        sv_api_refuse(q, &e);
    else if (r->dialect)
        sv_call_begin(s, r->dialect, q, id ? id : "");
    else
        r->run(s, q);
}

void sv_route_head(void *server, struct sv_http_req *q)
{
    struct sv_serve *s = server;
    const struct route *r = find(q);
    struct sv_api_err e;
    char id[72];

    request_id(s, q, id);
    sv_http_add_header(q, "x-request-id", id);
    if (sv_anthropic_is_client(q))
        sv_http_add_header(q, "request-id", id); /* Anthropic's name for it */
    add_cors(s, q);
    if (check_page(s, q, r, &e) || check_key(s, q, r, &e))
        sv_api_refuse(q, &e);
    else if (s->keys && sv_http_key(q) < 0 && sv_http_has_body(q))
        sv_route(s, q); /* endpoints without a key need no body */
}
