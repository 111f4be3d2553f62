/*
 * images.c - the images of requests: whether they can be taken.
 *
 * Called by engine.c (submit). Must not: look at pixels.
 */
#include "engine/images.h"

#include "engine/engine.h"

bool sv_engine_takes_images(const struct sv_engine *engine)
{
    (void)engine;
    return false;
}

int sv_images_check(const struct sv_engine *e, const struct sv_request *r, struct sv_err *err)
{
    if (r->n_images < 0 || (r->n_images && !r->images))
        return sv_fail(err, SV_EINVAL, -1, "images are needed for n_images %d", r->n_images);
    if (!r->n_images || sv_engine_takes_images(e))
        return SV_OK;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "images are not supported for %s",
                   sv_arch_name(e->model.cfg.arch));
}
