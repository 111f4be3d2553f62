/*
 * server.h - the server's state, and functions for all files of the server.
 *
 * Everything in struct sv_serve belongs to the loop's thread; other threads read only what does not
 * change while it runs. Must not: name a dialect.
 */
#ifndef SV_SERVE_CORE_SERVER_H
#define SV_SERVE_CORE_SERVER_H

#include "jinja/jinja.h"
#include "serve/core/metrics.h"
#include "serve/core/options.h"
#include "serve/core/replicas.h"
#include "serve/http/http.h"
#include "serve/http/tls.h"

#include <stdatomic.h>

struct event;
struct sv_api_err;
struct sv_call;
struct sv_compiled;
struct sv_fetcher;
struct sv_keys;
struct sv_prep;
struct sv_stored;

enum sv_serve_state { SV_LOADING, SV_READY, SV_DRAINING, SV_BROKEN };

struct sv_serve {
    struct sv_serve_options o;
    /* Writes the body of an error in the shape of the API that was asked; NULL: OpenAI's. */
    void (*write_error)(struct sv_buf *b, const struct sv_http_req *q, const struct sv_api_err *e);
    char model_name[256];
    struct event_base *base;
    struct sv_http *http;
    struct ssl_ctx_st *tls;
    struct sv_tls_stamp tls_seen[2]; /* certificate, key */
    struct sv_keys *keys;            /* NULL: no key is needed */
    bool checks_host;                /* requests must name this server in Host */
    struct sv_replica *replicas;
    int32_t n_replicas;
    struct sv_mail *mail;               /* the workers' reports */
    struct sv_inbox inbox;              /* reports that are being handled */
    const struct sv_serve_model *model; /* NULL until it is loaded */
    struct sv_enc_scratch *scratch;     /* the loop thread's */
    struct sv_prep *prep;
    struct sv_stored *stored;      /* answers of /v1/responses; NULL: none are stored */
    struct sv_chat_template *chat; /* given by option; NULL: the model's */
    char *media_dir;               /* its real path; NULL: no files are read */
    struct sv_fetcher *fetcher;    /* of images; NULL: nothing is fetched */
    atomic_llong *image_bytes;     /* of decoded images that prompts have */
    enum sv_tool_format tool_format;
    enum sv_think_format think_format;
    bool harmony;                            /* the chat template is gpt-oss's */
    bool as_reasoning, as_reasoning_content; /* names of a message's member with the reasoning */
    struct sv_template_opts render;          /* limits of templates; zeros: the usual ones */
    enum sv_serve_state state;
    char broken[480]; /* why the engine failed */
    struct sv_call *calls, *due, *blocked;
    struct sv_compiled *grammars; /* cached or being compiled, the last used first */
    int32_t n_compiling;
    int32_t n_live, max_live; /* sequences that the workers have */
    uint64_t next_serial;
    uint64_t random_key, n_random;
    struct sv_http_req *flushing[32]; /* ring of requests that wait for all caches to be flushed */
    int32_t first_flushing, n_flushing;
    struct sv_metrics metrics;
    struct sv_buf frames;                /* one buffer for all answers, so that it stays in cache */
    int64_t turn_bytes;                  /* bytes of answers written in this turn of the loop */
    int64_t flushed_us;                  /* end of the last step that was sent to all streams */
    int64_t oldest_us, newest_us;        /* delayed events since then; 0 = none */
    int64_t step_us;                     /* average time between two events of a sequence */
    int64_t write_ns;                    /* average cost of a write to a stream */
    int64_t start_us, drain_us, created; /* created: Unix seconds */
    int64_t drain_over_us;               /* when the time of the drain was found to be over; 0 */
    int stop_fd;
    atomic_int n_stops;
    struct event *on_mail, *on_prep, *on_stop, *on_tick;
    struct sv_buf unknown;   /* unknown fields that were logged, a line each */
    int32_t n_unknown;       /* their number */
    int64_t watched_us;      /* when the model's files were checked last */
    struct sv_snapshot last; /* at the last log line with figures */
    int64_t last_us, last_tokens;
    bool idle_said;
};

/* For ids and default seeds, not for secrets. */
uint64_t sv_serve_random(struct sv_serve *s);
/* The names of the loading stages, and the share of all loading that is done: 0 to 1. share: of
 * this stage. */
const char *sv_load_stage_name(enum sv_load_stage stage);
double sv_load_progress(enum sv_load_stage stage, double share);
int sv_check_model(const struct sv_serve *s, const char *model, struct sv_api_err *e);
/* The model's name at the end of a path under /models, "" for the list; NULL: there is no such
 * model, and the request has been answered. */
const char *sv_model_of_path(struct sv_serve *s, struct sv_http_req *q);
void sv_get_health(struct sv_serve *s, struct sv_http_req *q);
void sv_post_replica(struct sv_serve *s, struct sv_http_req *q);

/* watch.c: checks once a second whether the model's mapped files have changed. */
void sv_watch_tick(struct sv_serve *s, int64_t now_us);

#endif
