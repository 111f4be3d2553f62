/*
 * engine.c - the real engine behind the worker's table of functions.
 *
 * Called by worker.c. Must not: do more than forward calls.
 */
#include "serve/core/engine.h"

#include "engine/engine.h"

static int submit(void *e, const struct sv_request *r, uint64_t *id, char *err, size_t n)
{
    return sv_submit_request(e, r, id, err, n);
}

static void cancel(void *e, uint64_t id)
{
    sv_cancel_request(e, id);
}

static int step(void *e, char *err, size_t n)
{
    return sv_step_engine(e, err, n);
}

static void flush(void *e)
{
    sv_flush_cache(e);
}

static int request_stats(void *e, uint64_t id, struct sv_request_stats *out)
{
    return sv_get_request_stats(e, id, out);
}

static int32_t known(const void *e, const struct sv_request *r)
{
    return sv_engine_known(e, r);
}

static void engine_stats(void *e, struct sv_engine_stats *out)
{
    sv_get_engine_stats(e, out);
}

static void info(void *e, struct sv_engine_info *out)
{
    sv_get_engine_info(e, out);
}

static void close_engine(void *e)
{
    sv_close_engine(e);
}

int sv_serve_open_real_engine(struct sv_serve_engine *out, const struct sv_engine_options *o,
                              const void *arg, struct sv_err *err)
{
    (void)arg;
    struct sv_vision_prep vision = {.patch = 0};
    char msg[400] = "";
    struct sv_engine *e;
    int rc = sv_open_engine(&e, o, msg, sizeof msg);

    if (rc)
        return sv_fail(err, rc, -1, "%s", msg[0] ? msg : sv_code_name(rc));
    const char *no_images = NULL;
    const bool takes_images = sv_engine_takes_images(e, &no_images);
    rc = takes_images ? sv_vision_prep_load(o->target_dir, &vision, err) : SV_OK;
    if (rc) {
        sv_close_engine(e);
        return rc;
    }
    *out = (struct sv_serve_engine){.impl = e,
                                    .takes_images = takes_images,
                                    .no_images = no_images,
                                    .vision = vision,
                                    .submit = submit,
                                    .cancel = cancel,
                                    .step = step,
                                    .flush = flush,
                                    .request_stats = request_stats,
                                    .known = known,
                                    .engine_stats = engine_stats,
                                    .info = info,
                                    .close = close_engine};
    return SV_OK;
}
