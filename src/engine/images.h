/*
 * images.h - what engine.c asks of images.c.
 *
 * Included by engine.h. Must not: be included from outside.
 */
#ifndef SV_ENGINE_IMAGES_H
#define SV_ENGINE_IMAGES_H

#include "base/base.h"
#include "salvo.h"

struct sv_engine;

/* Whether a request's images can be taken; none always can. */
int sv_images_check(const struct sv_engine *e, const struct sv_request *r, struct sv_err *err);

#endif
