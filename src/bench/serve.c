/*
 * serve.c - `salvo-bench serve`: load on a running server, of ours or any with OpenAI's API,
 * and what its clients saw.
 *
 * Called by main.c. Requests go out as slots get free, or at random times of a given rate. Must
 * not: count a request that failed.
 */
#include "bench/load.h"
#include "sample/sample.h"

#include <event2/event.h>
#include <math.h>
#include <string.h>

static const char usage[] =
    "Usage: salvo-bench serve --url URL [OPTION]...\n\n"
    "Sends prompts to a running server, streamed, and prints what `vllm bench serve` prints: "
    "throughput, time to\n"
    "the first token (TTFT), per token (TPOT), between chunks (ITL), whole (E2EL), and "
    "speculation from /metrics.";

struct args {
    const char *url, *prompts, *model, *api_key;
    int64_t n, concurrency, max_tokens, input_len, seed;
    double temperature, rate;
    bool ignore_eos, json;
};

struct load {
    struct args a;
    struct sv_bench_load_server server;
    struct sv_bench_load_result res;
    struct event_base *base;
    struct event *timer, *watch;
    struct sv_rng rng;
    int32_t cap; /* requests that res.r has room for */
    int32_t next, running, done;
    struct evhttp_connection *
        *idle; /* (concurrency), kept open between requests as vLLM's client does */
    int32_t n_idle;
};

/* ---------------------------------------------------------------- bodies */

static void put_common(json_t *body, const struct args *a)
{
    json_object_set_new(body, "model", json_string(a->model));
    json_object_set_new(body, "max_tokens", json_integer(a->max_tokens));
    json_object_set_new(body, "temperature", json_real(a->temperature));
    json_object_set_new(body, "stream", json_true());
    json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
    if (a->ignore_eos)
        json_object_set_new(body, "ignore_eos", json_true());
}

/* Takes text over; NULL: memory was out. */
static int put_text(struct sv_bench_load_request *r, char *text, struct sv_err *err)
{
    r->body = text;
    r->n_body = text ? strlen(text) : 0;
    sv_buf_init(&r->gaps);
    sv_buf_init(&r->line);
    return text ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "out of memory");
}

static int put_body(struct sv_bench_load_request *r, json_t *body, const struct args *a,
                    struct sv_err *err)
{
    put_common(body, a);
    int rc = put_text(r, json_dumps(body, JSON_COMPACT), err);
    json_decref(body);
    return rc;
}

/* A line of a prompts file: prompt, prompt_token_ids or messages; everything else is left out. */
static int body_of_line(struct sv_bench_load_request *r, const char *line, size_t n,
                        const struct args *a, struct sv_err *err)
{
    json_t *in = sv_json_parse(line, n, err), *body = json_object(), *v;

    if (!in) {
        json_decref(body);
        return err->code;
    }
    if ((v = json_object_get(in, "messages"))) {
        r->chat = true;
        json_object_set(body, "messages", v);
    } else if ((v = json_object_get(in, "prompt")) ||
               (v = json_object_get(in, "prompt_token_ids"))) {
        json_object_set(body, "prompt", v);
    }
    json_decref(in);
    if (!v) {
        json_decref(body);
        return sv_fail(err, SV_EFORMAT, -1, "has no prompt, prompt_token_ids or messages");
    }
    return put_body(r, body, a, err);
}

/* Room for one request more; NULL when memory is out. */
static struct sv_bench_load_request *next_request(struct load *l, struct sv_err *err)
{
    if (l->res.n == l->cap) {
        int32_t more = l->cap ? 2 * l->cap : 64;
        void *r = sv_realloc(l->res.r, (size_t)l->cap * sizeof *l->res.r,
                             (size_t)more * sizeof *l->res.r);
        if (!r) {
            sv_fail(err, SV_ENOMEM, -1, "out of memory");
            return NULL;
        }
        l->res.r = r;
        l->cap = more;
    }
    struct sv_bench_load_request *r = &l->res.r[l->res.n];
    memset(r, 0, sizeof *r);
    return r;
}

static int take_line(void *user, const char *line, size_t n, struct sv_err *err)
{
    struct load *l = user;
    if (l->a.n && l->res.n == l->a.n)
        return SV_OK;
    struct sv_bench_load_request *r = next_request(l, err);
    int rc = r ? body_of_line(r, line, n, &l->a, err) : err->code;
    l->res.n += !rc;
    return rc;
}

/* Each line once, or the first n; a file of fewer is gone through again until there are n. */
static int read_prompts(struct load *l, struct sv_err *err)
{
    int rc = sv_cli_reader_each(l->a.prompts, take_line, l, err);
    if (!rc && !l->res.n)
        rc = sv_fail(err, SV_EFORMAT, -1, "%s: holds no prompts", l->a.prompts);
    for (int32_t i = 0; !rc && l->res.n < l->a.n; i++) {
        struct sv_bench_load_request *r = next_request(l, err);
        if (!r)
            return err->code;
        r->chat = l->res.r[i].chat;
        rc = put_text(r, sv_strdup(l->res.r[i].body), err);
        l->res.n += !rc;
    }
    return rc;
}

/* Without a file: random token ids, as vLLM's "random" data set. */
static int random_prompts(struct load *l, struct sv_err *err)
{
    struct sv_buf text;
    int64_t vocab = 0;

    sv_buf_init(&text);
    int rc = sv_bench_load_get(&l->server, "/v1/models", &text, err);
    json_t *models = rc ? NULL : sv_json_parse(text.data, text.len, err);
    json_t *model = json_array_get(json_object_get(models, "data"), 0);
    if (!rc) /* llama-server has it too */
        rc = models ? sv_json_int(json_object_get(model, "meta"), "n_vocab", 300, INT32_MAX, &vocab,
                                  err)
                    : err->code;
    json_decref(models);
    sv_buf_fini(&text);
    if (rc)
        return sv_err_prefix(err,
                             "random prompts need the size of the vocabulary (or give --prompts)");
    l->res.n = (int32_t)(l->a.n ? l->a.n : 100);
    l->res.r = sv_calloc((size_t)l->res.n, sizeof *l->res.r);
    if (!l->res.r)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    for (int32_t i = 0; !rc && i < l->res.n; i++) {
        json_t *body = json_object(), *ids = json_array();
        for (int64_t k = 0; k < l->a.input_len; k++)
            json_array_append_new(ids,
                                  json_integer(sv_rng_below(&l->rng, (uint32_t)(vocab - 256))));
        json_object_set_new(body, "prompt", ids);
        rc = put_body(&l->res.r[i], body, &l->a, err);
    }
    return rc;
}

/* ---------------------------------------------------------------- sending */

static void fill_slots(struct load *l);

static void on_done(void *user, struct sv_bench_load_request *r)
{
    struct load *l = user;

    if (r->con)
        l->idle[l->n_idle++] = r->con;
    l->running--;
    l->done++;
    if (sv_cli_interrupted() || l->done == l->res.n)
        event_base_loopexit(l->base, NULL);
    else if (l->a.rate <= 0)
        fill_slots(l);
}

static void send_next(struct load *l)
{
    struct sv_bench_load_request *r = &l->res.r[l->next++];

    r->on_done = on_done;
    r->user = l;
    r->con = l->n_idle ? l->idle[--l->n_idle] : NULL;
    l->running++;
    if (l->running > l->res.peak)
        l->res.peak = l->running;
    if (sv_bench_load_send(l->base, &l->server, r)) {
        snprintf(r->error, sizeof r->error, "cannot be sent");
        on_done(l, r);
    }
}

static void fill_slots(struct load *l)
{
    while (l->next < l->res.n && l->running < l->res.concurrency)
        send_next(l);
}

/* Poisson arrivals. */
static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct load *l = arg;
    double wait = -log(1 - (double)sv_rng_float(&l->rng)) / l->a.rate;
    struct timeval t = {(time_t)wait, (suseconds_t)(fmod(wait, 1) * 1e6)};

    (void)fd, (void)what;
    if (l->next < l->res.n && l->running < l->res.concurrency)
        send_next(l);
    if (l->next < l->res.n)
        event_add(l->timer, &t);
}

/* Wakes the loop on Ctrl-C, which would otherwise wait for a silent server. */
static void on_watch(evutil_socket_t fd, short what, void *arg)
{
    struct load *l = arg;

    (void)fd, (void)what;
    if (sv_cli_interrupted())
        event_base_loopexit(l->base, NULL);
}

static void read_spec(const struct load *l, struct sv_bench_load_spec *out)
{
    struct sv_buf text;

    sv_buf_init(&text);
    memset(out, 0, sizeof *out);
    if (!sv_bench_load_get(&l->server, "/metrics", &text, NULL)) /* a server may have none */
        sv_bench_load_read_spec(text.data, out);
    sv_buf_fini(&text);
}

static int name_model(struct load *l, char name[256], struct sv_err *err)
{
    struct sv_buf text;

    if (l->a.model)
        return SV_OK;
    sv_buf_init(&text);
    int rc = sv_bench_load_get(&l->server, "/v1/models", &text, err);
    json_t *root = rc ? NULL : sv_json_parse(text.data, text.len, err);
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
    if (!rc && !id)
        rc = sv_fail(err, SV_EFORMAT, -1, "/v1/models names no model");
    snprintf(name, 256, "%s", id ? id : "");
    l->a.model = name;
    json_decref(root);
    sv_buf_fini(&text);
    return rc;
}

static int run(struct load *l, struct sv_err *err)
{
    char name[256];
    int rc = sv_bench_load_parse_url(&l->server, l->a.url, err);

    l->server.api_key = l->a.api_key;
    l->rng.state = (uint64_t)l->a.seed;
    l->res.concurrency = (int32_t)l->a.concurrency;
    l->res.rate = l->a.rate;
    if (!rc)
        rc = name_model(l, name, err);
    if (!rc)
        rc = l->a.prompts ? read_prompts(l, err) : random_prompts(l, err);
    if (rc)
        return rc;
    read_spec(l, &l->res.before);
    l->base = event_base_new();
    l->timer = event_new(l->base, -1, 0, on_timer, l);
    l->watch = event_new(l->base, -1, EV_PERSIST, on_watch, l);
    l->idle = sv_calloc((size_t)l->res.concurrency, sizeof(struct evhttp_connection *));
    if (!l->base || !l->timer || !l->watch || !l->idle)
        return sv_fail(err, SV_ENOMEM, -1, "event loop");
    sv_cli_catch_interrupt();
    event_add(l->watch, &(struct timeval){.tv_usec = 100000});
    int64_t start = sv_clock_us();
    if (l->a.rate > 0)
        on_timer(-1, 0, l);
    else
        fill_slots(l);
    event_base_dispatch(l->base);
    l->res.seconds = (double)(sv_clock_us() - start) / 1e6;
    while (l->n_idle)
        sv_bench_load_hang_up(l->idle[--l->n_idle]);
    read_spec(l, &l->res.after);
    return SV_OK;
}

static int conclude(struct load *l)
{
    const char *why = NULL;
    struct sv_buf b;
    int32_t failed = 0;

    for (int32_t i = 0; i < l->res.n; i++)
        if (!l->res.r[i].ok) {
            why = l->res.r[i].error;
            failed++;
        }
    sv_buf_init(&b);
    sv_bench_load_report(&l->res, l->a.json, &b);
    const int code = sv_cli_deliver(&b, NULL);
    sv_buf_fini(&b);
    return failed ? sv_cli_fail("%d of %d requests failed; the last one: %s", failed, l->res.n,
                                why && *why            ? why
                                : sv_cli_interrupted() ? "canceled"
                                                       : "was not sent")
                  : code;
}

static int check_args(struct args *a)
{
    const struct {
        const char *name;
        int64_t v, least, most;
    } numbers[] = {{"num-prompts", a->n, 0, 10000000},
                   {"max-concurrency", a->concurrency, 1, 10000},
                   {"max-tokens", a->max_tokens, 1, INT32_MAX},
                   {"input-len", a->input_len, 1, 1 << 24},
                   {"seed", a->seed, 0, INT64_MAX}};
    int code = sv_cli_num_in_range("salvo-bench serve", "temperature", a->temperature,
                                   SV_RANGE_TEMPERATURE);

    if (isinf(a->rate) && a->rate > 0) /* as vLLM's tool has it: all at once */
        a->rate = 0;
    if (code < 0 && a->rate != 0)
        code = sv_cli_num_in_range("salvo-bench serve", "request-rate", a->rate, 1e-4, 1e6);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && code < 0; i++)
        code = sv_cli_in_range("salvo-bench serve", numbers[i].name, numbers[i].v, numbers[i].least,
                               numbers[i].most);
    return code;
}

int sv_bench_serve(int argc, char **argv)
{
    struct load l = {.a = {.concurrency = 16, .max_tokens = 128, .input_len = 128}};
    struct sv_cli_opts o = {.n = 0};
    struct sv_err err = {0};
    int code;

    sv_cli_opt(&o, "url", 0, SV_OPT_STRING, &l.a.url, "URL",
               "the server, like http://127.0.0.1:8000");
    sv_cli_opt(&o, "prompts", 0, SV_OPT_STRING, &l.a.prompts, "FILE",
               "JSON lines with prompt, prompt_token_ids or messages; else random tokens");
    sv_cli_opt(&o, "input-len", 0, SV_OPT_INT, &l.a.input_len, "N",
               "tokens of a random prompt (default 128)");
    sv_cli_opt(&o, "num-prompts", 'n', SV_OPT_INT, &l.a.n, "N",
               "requests (default: the file's, or 100); a file of fewer is repeated");
    sv_cli_opt(&o, "max-concurrency", 'c', SV_OPT_INT, &l.a.concurrency, "N",
               "requests at once (default 16)");
    sv_cli_opt(&o, "request-rate", 0, SV_OPT_FLOAT, &l.a.rate, "X",
               "requests a second at random times, 0 = as slots get free");
    sv_cli_opt(&o, "max-tokens", 0, SV_OPT_INT, &l.a.max_tokens, "N",
               "longest answer (default 128)");
    sv_cli_opt(&o, "temperature", 'T', SV_OPT_FLOAT, &l.a.temperature, "X", "default 0");
    sv_cli_opt(&o, "ignore-eos", 0, SV_OPT_FLAG, &l.a.ignore_eos, NULL,
               "go on to the longest answer");
    sv_cli_opt(&o, "model", 'm', SV_OPT_STRING, &l.a.model, "NAME", "default: the server's first");
    sv_cli_opt(&o, "api-key", 0, SV_OPT_STRING, &l.a.api_key, "KEY", "sent as a bearer token");
    sv_cli_opt(&o, "seed", 0, SV_OPT_INT, &l.a.seed, "N",
               "of random prompts and arrivals (default 0)");
    sv_cli_opt(&o, "json", 0, SV_OPT_FLAG, &l.a.json, NULL, "one JSON object instead of the block");
    code = sv_cli_parse(&o, "salvo-bench serve", usage, argc, argv, 0, NULL);
    if (code >= 0)
        return code;
    if (!l.a.url)
        return sv_cli_usage("salvo-bench serve", "option --url is missing: which server?");
    code = check_args(&l.a);
    if (code >= 0)
        return code;
    int rc = run(&l, &err);
    code = rc ? sv_cli_fail("%s", err.msg) : conclude(&l);
    for (int32_t i = 0; i < l.res.n; i++) {
        sv_free(l.res.r[i].body);
        sv_buf_fini(&l.res.r[i].gaps);
        sv_buf_fini(&l.res.r[i].line);
    }
    sv_free(l.res.r);
    sv_free(l.idle);
    if (l.timer)
        event_free(l.timer);
    if (l.watch)
        event_free(l.watch);
    if (l.base)
        event_base_free(l.base);
    return code;
}
