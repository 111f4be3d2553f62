/*
 * options.h - the server's options, as the command line and tests give them.
 *
 * Included by serve.h and server.h. Zeros mean defaults. Must not: hold what changes while the
 * server runs.
 */
#ifndef SV_SERVE_CORE_OPTIONS_H
#define SV_SERVE_CORE_OPTIONS_H

#include "dist/dist.h"
#include "serve/core/engine.h"

enum sv_spec_metrics { SV_SPEC_NONE, SV_SPEC_SUMMARY, SV_SPEC_DETAILED };

struct sv_serve_options {
    struct sv_engine_options engine;      /* numbers are those of all replicas together */
    int32_t replicas;                     /* engines behind the server; 0 = 1 */
    const struct sv_processes *processes; /* each replica is one or several; NULL: threads here */
    sv_serve_open_engine_fn open_engine;  /* NULL = the real one */
    const void *open_arg;
    const char *host;                           /* NULL = 127.0.0.1 */
    int32_t port;                               /* 0 = any free one */
    const char *unix_path;                      /* listen on this socket instead */
    const char *model_name;                     /* NULL = by the target's path (sv_model_name) */
    const char *chat_template;                  /* a file to use instead of the model's own */
    const char *tool_parser, *reasoning_parser; /* NULL = by the chat template */
    const char *reasoning_field;                /* reasoning_content (NULL), reasoning, both */
    const char *api_key, *api_key_file;
    const char *tls_cert, *tls_key;
    const char *cors_origin; /* "*" or one origin */
    const char *media_dir;   /* file: URLs of images may name what lies below it; NULL = none */
    const char *media_hosts; /* HOST or HOST:PORT, with commas: images are fetched there alone */
    int32_t media_seconds;   /* for all that one request has fetched; 0 = 10 */
    /* Names in Host besides IP addresses and localhost, with commas; NULL = none, and Host is
     * checked only on loopback addresses without keys. */
    const char *allowed_hosts;
    int32_t max_queue;       /* requests that may wait besides those that run; 0 = 4096 */
    int64_t max_body_bytes;  /* 0 = 16 MiB */
    int64_t max_kept_bytes;  /* of all bodies that are read; 0 = 4 bodies, at least 256 MiB */
    int32_t max_connections; /* 0 = by the number of descriptors */
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
    bool share_prefixes;       /* of several API keys' requests */
    bool strict_model;         /* 404 for other names of models, which else stand for this one */
    bool refuse_unknown;       /* 400 for unknown fields, which else are ignored and logged */
    bool no_vllm_metrics;      /* nor SGLang's and llama-server's */
    bool no_generation_config; /* temperature 1 and nothing else where a request is silent */
    enum sv_spec_metrics spec_metrics;
};

/* What a request is sampled with that does not say. */
struct sv_serve_defaults {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
};
/* Of the target's generation_config.json, in the ranges of a request; an error names file and
 * field. With no_generation_config temperature 1 and no filters, and the file is not read. */
int sv_serve_defaults(struct sv_serve_defaults *d, const struct sv_serve_options *o,
                      struct sv_err *err);

#endif
