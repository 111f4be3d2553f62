/*
 * watch.c - model files that change under a running server.
 *
 * Called by serve.c at each tick. Weights are used where the file is mapped, so a file that is
 * overwritten in place would silently change the answers: the server fails instead. A file that was
 * replaced by rename does no harm. Must not: read a file.
 */
#include "serve/core/log.h"
#include "serve/core/server.h"

#define LOOK_EVERY_US 1000000

static void on_changed(void *user, const char *path, bool changed)
{
    struct sv_serve *s = user;
    char why[400];

    if (changed) {
        snprintf(why, sizeof why, "the model file %.300s was changed while it was in use", path);
        sv_replicas_fail(s, why); /* comes back as SV_OUT_FAILED, which is logged */
        return;
    }
    struct sv_log_field f[] = {SV_LOG_S("file", path)};
    sv_serve_log(s, "model file replaced; the old one stays in use", f, 1);
}

void sv_watch_tick(struct sv_serve *s, int64_t now_us)
{
    if (now_us - s->watched_us < LOOK_EVERY_US)
        return;
    s->watched_us = now_us;
    sv_map_compare(on_changed, s);
}
