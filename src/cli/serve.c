/*
 * serve.c - `salvo serve`: options to a running server.
 *
 * Called by main.c. Must not: know HTTP or endpoints; src/serve does the work.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"
#include "dist/dist.h"
#include "load/load.h"
#include "serve/serve.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char usage[] =
    "Usage: salvo serve -m TARGET_DIR [-d DRAFT_DIR] [OPTION]...\n\n"
    "Serves a model over HTTP in the APIs of OpenAI (chat, responses, completions),\n"
    "Anthropic (messages), SGLang (generate) and llama-server (completion, infill), with a page\n"
    "to try it at /. See docs/serving.md.";

/* Options that are read as 64-bit numbers first. */
struct numbers {
    int64_t port, queue, body_mib, connections, max_tokens, max_choices, idle, ping, gap, drain,
        log_every, cache_mib, stored, stored_mib;
};

static void rows(struct sv_cli_opts *o, struct sv_serve_options *s, struct numbers *n,
                 const char **spec, const char **unknown)
{
    sv_cli_opt(o, "host", 0, SV_OPT_STRING, &s->host, "ADDR", "listen there (default 127.0.0.1)");
    sv_cli_opt(o, "port", 'p', SV_OPT_INT, &n->port, "N", "port, 0 = any free one (default 8000)");
    sv_cli_opt(o, "unix", 0, SV_OPT_STRING, &s->unix_path, "PATH",
               "listen on a Unix socket instead");
    sv_cli_opt(o, "name", 0, SV_OPT_STRING, &s->model_name, "NAME",
               "the model's name in the API (default: the directory's; ORG/NAME in the hub cache)");
    sv_cli_opt(o, "chat-template", 0, SV_OPT_STRING, &s->chat_template, "FILE",
               "a Jinja template instead of the model's own");
    sv_cli_opt(o, "tool-parser", 0, SV_OPT_STRING, &s->tool_parser, "NAME",
               "how the model calls tools: hermes, qwen3_coder, llama3_json, mistral, deepseek_v3, "
               "harmony, none (default: by the chat template)");
    sv_cli_opt(o, "reasoning-parser", 0, SV_OPT_STRING, &s->reasoning_parser, "NAME",
               "how it marks what it thinks: think, mistral, seed_oss, harmony, none (default: by "
               "the chat template)");
    sv_cli_opt(o, "reasoning-field", 0, SV_OPT_STRING, &s->reasoning_field, "NAME",
               "what answers call that: reasoning_content (default), reasoning or both");
    sv_cli_opt(o, "media-dir", 0, SV_OPT_STRING, &s->media_dir, "DIR",
               "images in requests may be file: URLs of files below DIR");
    sv_cli_opt(o, "media-url", 0, SV_OPT_STRING, &s->media_hosts, "HOSTS",
               "images in requests may be http: and https: addresses of these hosts, HOST or "
               "HOST:PORT with commas (default: nothing is fetched)");
    sv_cli_opt(o, "api-key", 0, SV_OPT_STRING, &s->api_key, "KEY",
               "require this key (others can see it in the process list: prefer a file)");
    sv_cli_opt(o, "api-key-file", 0, SV_OPT_STRING, &s->api_key_file, "FILE",
               "require one of these keys, one a line");
    sv_cli_opt(o, "share-prefixes", 0, SV_OPT_FLAG, &s->share_prefixes, NULL,
               "with several keys: one pool of kept prefixes for all, not one for each key");
    sv_cli_opt(o, "tls-cert", 0, SV_OPT_STRING, &s->tls_cert, "FILE", "PEM certificate chain");
    sv_cli_opt(o, "tls-key", 0, SV_OPT_STRING, &s->tls_key, "FILE", "its private key");
    sv_cli_opt(o, "cors", 0, SV_OPT_STRING, &s->cors_origin, "ORIGIN",
               "let pages of this origin call the API, * = all");
    sv_cli_opt(o, "allowed-host", 0, SV_OPT_STRING, &s->allowed_hosts, "NAMES",
               "names of this server in Host, with commas, besides IP addresses and localhost; "
               "others get 403 (default: only these, on loopback without keys)");
    sv_cli_opt(o, "queue", 0, SV_OPT_INT, &n->queue, "N",
               "sequences that may wait, then 429 (default 4096)");
    sv_cli_opt(o, "max-body", 0, SV_OPT_INT, &n->body_mib, "MIB", "largest request (default 16)");
    sv_cli_opt(o, "max-connections", 0, SV_OPT_INT, &n->connections, "N",
               "open at once, then 503 (default: 7/8 of the file descriptors, at most 16384)");
    sv_cli_opt(o, "max-tokens", 0, SV_OPT_INT, &n->max_tokens, "N",
               "longest answer a request may ask for (default: the context)");
    sv_cli_opt(o, "max-choices", 0, SV_OPT_INT, &n->max_choices, "N",
               "prompts times n of one request (default 128)");
    sv_cli_opt(o, "idle-timeout", 0, SV_OPT_INT, &n->idle, "S",
               "close connections silent for so long (default 75)");
    sv_cli_opt(o, "ping", 0, SV_OPT_INT, &n->ping, "S",
               "comment frames in streams silent for so long; default: none, as load generators "
               "take them for data");
    sv_cli_opt(
        o, "stream-gap", 0, SV_OPT_INT, &n->gap, "MS",
        "time between writes to one stream, to the nearest step; 0 = each step, -1 = by load, at "
        "most 60 (default)");
    sv_cli_opt(o, "stored-responses", 0, SV_OPT_INT, &n->stored, "N",
               "answers of /v1/responses kept for later turns, 0 = none (default 1000)");
    sv_cli_opt(o, "stored-mib", 0, SV_OPT_INT, &n->stored_mib, "MIB",
               "all of them together (default 128)");
    sv_cli_opt(o, "drain", 0, SV_OPT_INT, &n->drain, "S",
               "time for running requests after SIGTERM (default 60)");
    sv_cli_opt(o, "log-every", 0, SV_OPT_INT, &n->log_every, "S",
               "a line with figures, -1 = none (default 10)");
    sv_cli_opt(o, "log-json", 0, SV_OPT_FLAG, &s->log_json, NULL, "log lines as JSON");
    sv_cli_opt(o, "quiet", 'q', SV_OPT_FLAG, &s->quiet, NULL, "no line for each request");
    sv_cli_opt(o, "force-usage", 0, SV_OPT_FLAG, &s->force_usage, NULL,
               "a usage chunk in every stream");
    sv_cli_opt(o, "strict-model", 0, SV_OPT_FLAG, &s->strict_model, NULL,
               "404 for requests that name another model; default: this model answers them");
    sv_cli_opt(o, "unknown-fields", 0, SV_OPT_STRING, unknown, "WHAT",
               "fields of requests that are unknown: ignore (default; the log names each once) or "
               "error (400)");
    sv_cli_opt(o, "no-vllm-metrics", 0, SV_OPT_FLAG, &s->no_vllm_metrics, NULL,
               "leave the names of vLLM, SGLang and llama-server out of /metrics");
    sv_cli_opt(o, "no-generation-config", 0, SV_OPT_FLAG, &s->no_generation_config, NULL,
               "temperature 1 by default, not the model's own default");
    sv_cli_opt(o, "spec-metrics", 0, SV_OPT_STRING, spec, "LEVEL",
               "none, summary (default) or detailed: speculation figures in answers");
}

static int take_numbers(struct sv_serve_options *s, const struct numbers *n)
{
    const struct {
        const char *name;
        int64_t v, lo, hi;
        int32_t *to;
    } list[] = {
        {"port", n->port, 0, 65535, &s->port},
        {"queue", n->queue, 1, 100000, &s->max_queue},
        {"max-connections", n->connections, 0, 1000000, &s->max_connections},
        {"max-tokens", n->max_tokens, 0, INT32_MAX, &s->max_tokens},
        {"max-choices", n->max_choices, 1, 100000, &s->max_choices},
        {"idle-timeout", n->idle, 1, 86400, &s->idle_seconds},
        {"ping", n->ping, -1, 86400, &s->ping_seconds},
        {"stream-gap", n->gap, -1, 10000, &s->stream_gap_us},
        {"stored-responses", n->stored, 0, 1000000, &s->stored_responses},
        {"drain", n->drain, 1, 86400, &s->drain_seconds},
        {"log-every", n->log_every, -1, 86400, &s->log_seconds},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        int code = sv_cli_in_range("serve", list[i].name, list[i].v, list[i].lo, list[i].hi);
        if (code >= 0)
            return code;
        *list[i].to = (int32_t)list[i].v;
    }
    s->stream_gap_us = n->gap > 0 ? (int32_t)n->gap * 1000
                       : n->gap   ? 0
                                  : -1; /* 0 is by load there */
    s->log_seconds = n->log_every ? s->log_seconds : -1;
    s->stored_responses = n->stored ? s->stored_responses : -1;
    int code = sv_cli_in_range("serve", "max-body", n->body_mib, 1, 1024);
    if (code < 0)
        code = sv_cli_in_range("serve", "cache", n->cache_mib, 0, INT64_C(1) << 40);
    if (code < 0)
        code = sv_cli_in_range("serve", "stored-mib", n->stored_mib, 1, 1 << 20);
    s->max_body_bytes = n->body_mib << 20;
    s->stored_bytes = n->stored_mib << 20;
    s->engine.cache_mib = n->cache_mib;
    return code;
}

static int take_spec(struct sv_serve_options *s, const char *level)
{
    static const char *const names[] = {"none", "summary", "detailed"};

    for (int i = 0; i < 3; i++)
        if (strcmp(level, names[i]) == 0) {
            s->spec_metrics = (enum sv_spec_metrics)i;
            return -1;
        }
    return sv_cli_usage("serve",
                        "option --spec-metrics: '%s' is not one of none, summary, detailed", level);
}

/* Raises the soft limit of descriptors, which is often 1024: each client needs one. */
static void raise_files(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur == files.rlim_max)
        return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files); /* refused: connections wait, and the log says so */
}

static int check_tensors(const char *dir, struct sv_config *target,
                         const struct sv_draft_config *draft, struct sv_err *err)
{
    struct sv_ckpt c;
    int rc = sv_ckpt_open(&c, dir, err);

    if (rc)
        return rc;
    rc = draft ? sv_ckpt_check_draft(&c, draft, err) : sv_ckpt_check_target(&c, target, err);
    sv_ckpt_close(&c);
    return rc ? sv_err_prefix(err, "%s", dir) : SV_OK;
}

static int check_tokenizer(const char *dir, struct sv_err *err)
{
    if (sv_model_has_tokenizer(dir))
        return SV_OK;
    return sv_fail(err, SV_EIO, -1, "%s: no tokenizer.json, nor tokens in a GGUF file", dir);
}

/* Checks that need no loading, before the server listens: the files exist, both configurations are
 * supported, each tensor has the right shape, and the draft fits the target. */
static int check_files(const struct sv_serve_options *s, struct sv_err *err)
{
    const struct sv_engine_options *o = &s->engine;
    struct sv_draft_config draft;
    struct sv_serve_defaults defaults;
    struct sv_config target;
    int rc = sv_config_load(&target, o->target_dir, err);

    if (!rc)
        rc = sv_serve_defaults(&defaults, s, err);
    if (!rc)
        rc = check_tokenizer(o->target_dir, err);
    if (!rc)
        rc = check_tensors(o->target_dir, &target, NULL, err);
    if (rc || !o->draft_dir)
        return rc;
    rc = sv_draft_config_load(&draft, o->draft_dir, target.n_layers, err);
    if (!rc)
        rc = sv_pair_check(&target, &draft, err);
    if (rc)
        return sv_err_prefix(err, "draft %s", o->draft_dir);
    return check_tensors(o->draft_dir, &target, &draft, err);
}

/* Runs in a process of another replica. Process 0 reports its errors. */
static void serve_replica(const struct sv_serve_options *o)
{
    struct sv_err err = {0};

    if (sv_serve_replica(o, &err))
        sv_cli_say("replica %d: %s", o->processes->place.replica, err.msg);
    sv_mpi_leave(&o->processes->place);
}

static int serve(const struct sv_serve_options *o)
{
    struct sv_err err = {0};
    struct sv_serve *s;

    int rc = check_files(o, &err);
    if (rc)
        return sv_cli_fail("%s", err.msg);
    rc = sv_serve_open(&s, o, &err);
    if (rc)
        return rc == SV_EINVAL ? sv_cli_usage("serve", "%s", err.msg) : sv_cli_fail("%s", err.msg);
    sv_cli_catch_server(s);
    rc = sv_serve_run(s, &err);
    sv_cli_leave_server();
    if (sv_serve_is_loading(s)) {
        sv_serve_leave(s);
        fflush(NULL);
        sv_cli_end_ranks(SV_CLI_FAIL);       /* other processes that mpirun started load as well */
        _exit(rc ? SV_CLI_FAIL : SV_CLI_OK); /* without waiting for a model that still loads */
    }
    /* A process of a replica that has failed may never end by itself. */
    const bool lost = o->processes && sv_serve_n_live(s) < o->replicas;
    sv_serve_close(s);
    if (o->processes && !rc && !lost)
        sv_mpi_leave(&o->processes->place);
    return rc || lost ? SV_CLI_FAIL : SV_CLI_OK; /* the log has said why */
}

int sv_cli_serve(int argc, char **argv)
{
    struct sv_serve_options s = {.port = 0};
    struct numbers n = {
        .port = 8000,
        .queue = 4096,
        .body_mib = 16,
        .max_choices = 128,
        .idle = 75,
        .gap = -1,
        .stored = 1000,
        .stored_mib = 128,
        .drain = 60,
        .log_every = 10,
    };
    struct sv_processes processes;
    struct sv_cli_model m = sv_cli_model_default();
    struct sv_cli_opts opts = {.n = 0};
    static const char *const fates[] = {"ignore", "error", NULL};
    const char *spec = "summary", *unknown = fates[0];
    bool no_prefix_cache = false;
    int code;

    m.batch = 16;
    m.processes = &processes;
    sv_cli_model_rows(&opts, &m);
    sv_cli_record_row(&opts, &m);
    sv_cli_opt(&opts, "sequences", 'b', SV_OPT_INT, &m.batch, "N",
               "sequences that run at once (default 16)");
    sv_cli_opt(&opts, "dp", 0, SV_OPT_INT, &m.dp, "N",
               "data parallel: N replicas of the model behind this server, which share threads, "
               "memory and sequences evenly, and use GPUs one after the other (default 1)");
    sv_cli_opt(&opts, "cache", 0, SV_OPT_INT, &n.cache_mib, "MIB",
               "memory for K/V pages, 0 = all sequences at full length");
    sv_cli_opt(&opts, "no-prefix-cache", 0, SV_OPT_FLAG, &no_prefix_cache, NULL,
               "keep nothing of finished sequences for prompts that begin alike");
    rows(&opts, &s, &n, &spec, &unknown);
    code = sv_cli_parse(&opts, "serve", usage, argc, argv, 0, NULL);
    if (code < 0)
        code = sv_cli_in_range("serve", "sequences", m.batch, 1, 4096);
    if (code < 0)
        code = sv_cli_in_range("serve", "dp", m.dp, 1, SV_MAX_RANKS);
    if (code < 0 && m.dp > 1 && m.record_plan)
        code = sv_cli_usage("serve", "options --dp and --record-plan exclude each other: there "
                                     "would be a record of each replica");
    if (code < 0)
        code = sv_cli_model_options(&m, "serve", &s.engine);
    if (code < 0)
        code = take_numbers(&s, &n);
    if (code < 0)
        code = take_spec(&s, spec);
    if (code < 0)
        code = sv_cli_one_of("serve", "unknown-fields", unknown, fates);
    if (code < 0 && !!s.tls_cert != !!s.tls_key)
        code = sv_cli_usage("serve", "options --tls-cert and --tls-key belong together");
    if (code < 0 && s.unix_path &&
        !*s.unix_path) /* an unset variable: the socket would not be found */
        code = sv_cli_usage("serve", "option --unix: the path is empty");
    if (code < 0 && s.unix_path && s.host)
        code = sv_cli_usage("serve", "options --unix and --host exclude each other");
    if (code >= 0)
        return code;
    s.replicas = (int32_t)m.dp;
    s.processes = m.dp > 1 && sv_mpi_ranks().n > 1 ? &processes : NULL;
    s.engine.no_prefix_cache = no_prefix_cache;
    s.refuse_unknown = strcmp(unknown, fates[1]) == 0;
    raise_files();
    if (s.processes && processes.place.replica)
        serve_replica(&s);
    return serve(&s);
}
