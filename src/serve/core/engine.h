/*
 * engine.h - the engine as the worker sees it: a table of functions, filled by the real engine or
 * by a fake one.
 *
 * Included by options.h. All functions of the table but `known` are called on the worker's thread.
 * Must not: know requests of HTTP.
 */
#ifndef SV_SERVE_CORE_ENGINE_H
#define SV_SERVE_CORE_ENGINE_H

#include "media/media.h"
#include "salvo.h"

#include <stdatomic.h>

struct sv_serve_engine {
    void *impl;
    bool takes_images;
    const char *no_images;        /* why not; lives as long as impl */
    struct sv_vision_prep vision; /* what it makes of them, if it takes any */
    int (*submit)(void *impl, const struct sv_request *r, uint64_t *id, char *err, size_t n);
    void (*cancel)(void *impl, uint64_t id);
    int (*step)(void *impl, char *err, size_t n); /* unfinished requests, or a negative code */
    void (*flush)(void *impl);
    int (*request_stats)(void *impl, uint64_t id, struct sv_request_stats *out);
    /* Tokens of its prompt that the prefix cache has. Called by the loop while the engine works. */
    int32_t (*known)(const void *impl, const struct sv_request *r);
    void (*engine_stats)(void *impl, struct sv_engine_stats *out);
    /* What *out points to lives as long as impl. */
    void (*info)(void *impl, struct sv_engine_info *out);
    void (*close)(void *impl);
};
typedef int (*sv_serve_open_engine_fn)(struct sv_serve_engine *out,
                                       const struct sv_engine_options *o, const void *arg,
                                       struct sv_err *err);

/* The engine of salvo.h (engine.c). arg is not used. */
int sv_serve_open_real_engine(struct sv_serve_engine *out, const struct sv_engine_options *o,
                              const void *arg, struct sv_err *err);

/* An engine without a model, for tests and for measuring the server alone (fake.c). Its answer
 * repeats the prompt's tokens until max_tokens, `burst` tokens a step, of which all but the last
 * count as accepted drafts. Under a grammar the tokens come once, as far as the grammar allows
 * them, and then what ends the grammar. */
struct sv_serve_fake {
    int32_t burst;        /* 0 = 1 */
    int32_t step_us;      /* least duration of a step */
    atomic_int *loaded;   /* percent of the weights: opening lasts until 100; NULL: no time */
    int32_t fail_at_step; /* the device fails in this step; 0 = never */
    /* Steps that may still bring tokens or fail, counted down; one at 0 ends what was canceled and
     * nothing else, and does not count. NULL: no limit. Engines with one of these share it. */
    atomic_int *steps_left;
    bool once; /* the prompt's tokens once, and then an end-of-sequence token */
    /* It takes images: patches of 8 pixels a side, blocks of 2, 256 to 65,536 pixels. */
    bool images;
    void (*on_submit)(void *user, const struct sv_request *r); /* may be NULL */
    void *user;
};
/* arg is a struct sv_serve_fake, or NULL. The tokenizer is the target directory's. */
int sv_serve_open_fake_engine(struct sv_serve_engine *out, const struct sv_engine_options *o,
                              const void *arg, struct sv_err *err);

#endif
