/*
 * serve.h - front header of src/serve: an HTTP server in the APIs of OpenAI, SGLang and
 * llama-server.
 *
 * Called by cli and tests. Two threads: the caller's runs the event loop (HTTP, JSON, tokenizing,
 * templates), the worker's opens the engine and steps it. They share nothing but a bounded queue of
 * commands, batches of results and a snapshot of statistics (base/channel.c). Must not: touch the
 * engine outside the worker's thread.
 */
#ifndef SV_SERVE_H
#define SV_SERVE_H

#include "base/base.h"
#include "salvo.h"

struct sv_serve;

/* What the worker drives: the functions of salvo.h, or an instant fake (tests, the overhead
 * benchmark). All are called on the worker's thread. */
struct sv_serve_engine {
    void *impl;
    int (*submit)(void *impl, const struct sv_request *r, uint64_t *id, char *err, size_t n);
    void (*cancel)(void *impl, uint64_t id);
    int (*step)(void *impl, char *err, size_t n); /* unfinished requests, or a negative code */
    void (*flush)(void *impl);
    int (*request_stats)(void *impl, uint64_t id, struct sv_request_stats *out);
    void (*engine_stats)(void *impl, struct sv_engine_stats *out);
    void (*info)(void *impl,
                 struct sv_engine_info *out); /* what it points to lives as long as impl */
    void (*close)(void *impl);
};
typedef int (*sv_serve_open_engine_fn)(struct sv_serve_engine *out,
                                       const struct sv_engine_options *o, const void *arg,
                                       struct sv_err *err);

/* An engine without a model, for tests and for measuring the server alone: the answer repeats the
 * prompt's tokens over and over, `burst` tokens a step (the last of them its own, the others
 * "drafts"), until max_tokens; with a grammar once, as far as it may, and then what ends it. */
struct sv_serve_fake {
    int32_t burst;        /* 0 = 1 */
    int32_t step_us;      /* a step takes at least so long */
    int32_t open_us;      /* and loading */
    int32_t fail_at_step; /* the device fails; 0 = never */
    bool once;            /* the prompt's tokens once, and then the model's own end */
};
/* arg is a struct sv_serve_fake, or NULL. The tokenizer is the target directory's. */
int sv_serve_open_fake_engine(struct sv_serve_engine *out, const struct sv_engine_options *o,
                              const void *arg, struct sv_err *err);

enum sv_spec_metrics { SV_SPEC_NONE, SV_SPEC_SUMMARY, SV_SPEC_DETAILED };

struct sv_serve_options {
    struct sv_engine_options engine;
    sv_serve_open_engine_fn open_engine; /* NULL = the real one */
    const void *open_arg;
    const char *host;                           /* NULL = 127.0.0.1 */
    int32_t port;                               /* 0 = any free one */
    const char *unix_path;                      /* listen on this socket instead */
    const char *model_name;                     /* NULL = the last part of the target's path */
    const char *chat_template;                  /* a file to use instead of the model's own */
    const char *tool_parser, *reasoning_parser; /* NULL = by the chat template */
    const char *reasoning_field;                /* reasoning_content (NULL), reasoning, both */
    const char *api_key, *api_key_file;
    const char *tls_cert, *tls_key;
    const char *cors_origin; /* "*" or one origin */
    int32_t max_queue;       /* requests that may wait besides those that run; 0 = 4096 */
    int64_t max_body_bytes;  /* 0 = 16 MiB */
    int32_t max_tokens;      /* longest answer a request may ask for; 0 = the context */
    int32_t max_choices;     /* sequences of one request; 0 = 128 */
    /* a client that leaves more of its stream unread is dropped; 0 = 64 MiB, where an answer of
     * 8192 tokens has about 3 */
    int64_t max_backlog_bytes;
    int32_t idle_seconds; /* a silent connection is closed; 0 = 75 */
    /* comment frames in silent streams; 0 = none but where the API has pings of its own, then 15;
     * -1 = none */
    int32_t ping_seconds;
    /* how long what goes to all streams gathers, to the nearest step; 0 = 250 to 1000 for each
     * stream, by what writing costs here, at most 60 ms; -1 = none: every step is sent at once */
    int32_t stream_gap_us;
    int32_t stored_responses;  /* of /v1/responses, kept for later turns; 0 = 1000, -1 = none */
    int64_t stored_bytes;      /* all of them together; 0 = 128 MiB */
    int32_t drain_seconds;     /* after SIGTERM; 0 = 60 */
    int32_t log_seconds;       /* a line with figures each; 0 = 10, -1 = none */
    bool log_json, quiet;      /* quiet: no line for each request */
    bool force_usage;          /* a usage chunk in every stream */
    bool any_model;            /* requests may name any */
    bool ignore_unknown;       /* fields nobody knows are left out of account, not refused */
    bool no_vllm_metrics;      /* nor SGLang's and llama-server's */
    bool no_generation_config; /* temperature 1 and nothing else where a request is silent */
    enum sv_spec_metrics spec_metrics;
    bool catch_signals; /* SIGTERM and SIGINT drain, the second one ends */
};

/* Listens; the model is loaded meanwhile. Strings are borrowed until close. */
int sv_serve_open(struct sv_serve **s, const struct sv_serve_options *o, struct sv_err *err);
int sv_serve_port(const struct sv_serve *s);
/* Serves until it is stopped. An error when the model could not be loaded. */
int sv_serve_run(struct sv_serve *s, struct sv_err *err);
/* From any thread or signal handler: the first call drains, the second one ends at once. */
void sv_serve_stop(struct sv_serve *s);
void sv_serve_close(struct sv_serve *s);
/* Whether it was stopped before the model was there. Close would wait for that: sv_serve_leave only
 * lets go of what others see (sockets), and the process must end with _exit. */
bool sv_serve_is_loading(const struct sv_serve *s);
void sv_serve_leave(struct sv_serve *s);

/* What a request body does before a sequence exists, for fuzzing: parse and check, no engine. path
 * is one of the POST endpoints. Returns the HTTP status it would get, 200 when it would run. */
int sv_serve_check_body(const char *path, const char *body, size_t n);
/* A chat's too, up to its prompt as text, through a template as --chat-template takes it. Small
 * limits. */
int sv_serve_check_chat(const char *template, size_t n_template, const char *body, size_t n);

#endif
