/*
 * worker.h - the thread of an engine: it loads the model, takes commands, steps and reports.
 *
 * Called by replicas.c for the loop; the worker itself runs on a thread of its own. Must not: block
 * the loop.
 */
#ifndef SV_SERVE_CORE_WORKER_H
#define SV_SERVE_CORE_WORKER_H

#include "load/load.h"
#include "salvo.h"
#include "serve/core/options.h"
#include "serve/core/out.h"

struct sv_chat_template;
struct sv_tokenizer;
struct sv_worker;

/* What the loop may read once the model is loaded. Owned by the worker, constant until it is
 * stopped. */
struct sv_serve_model {
    struct sv_tokenizer *tok;
    struct sv_chat_template *chat; /* NULL: there is none, for the reason in chat_why */
    char chat_why[256];
    json_t *tokenizer_config; /* for /tokenizer_info; an object */
    size_t max_token_bytes;
    struct sv_serve_defaults defaults;
    struct sv_engine_info info;
    bool drafts, takes_images;
    char no_images[256];          /* why it takes none */
    struct sv_vision_prep vision; /* if it takes images */
};

enum sv_load_stage {
    SV_LOAD_START,
    SV_LOAD_TOKENIZER,
    SV_LOAD_WEIGHTS, /* this and the next two are the engine's sv_open_stage */
    SV_LOAD_GRAPHS,
    SV_LOAD_COSTS,
    SV_LOAD_DONE
};

/* Updated by the worker regularly, read for /metrics, /health and log lines. */
struct sv_snapshot {
    struct sv_engine_stats stats;
    enum sv_load_stage stage;
    double stage_share; /* how much of the stage is done, 0 to 1 */
    int64_t busy_us;    /* time in steps */
};

/* Reports go to mail, which outlives the worker. */
int sv_worker_start(struct sv_worker **w, const struct sv_serve_options *o, int32_t replica,
                    int32_t max_live, struct sv_mail *mail, struct sv_err *err);
/* Stop ends the thread and closes the engine, join waits for that. Each submitted sequence gets its
 * last report. */
void sv_worker_stop(struct sv_worker *w);
void sv_worker_join(struct sv_worker *w);
void sv_worker_free(struct sv_worker *w); /* after join */
/* The choice belongs to the worker until its last event or rejection has been read. */
void sv_worker_submit(struct sv_worker *w, struct sv_choice *ch);
void sv_worker_cancel(struct sv_worker *w, uint64_t serial);
void sv_worker_flush(struct sv_worker *w);
/* Ends all sequences with this error and rejects later ones; reports SV_OUT_FAILED once. */
void sv_worker_fail(struct sv_worker *w, const char *why);
/* Tokens of the request's prompt that the engine's prefix cache has. Called once it is loaded. */
int32_t sv_worker_known(const struct sv_worker *w, const struct sv_request *r);
void sv_worker_snapshot(struct sv_worker *w, struct sv_snapshot *out);
const struct sv_serve_model *sv_worker_model(const struct sv_worker *w); /* the first replica's */

#endif
