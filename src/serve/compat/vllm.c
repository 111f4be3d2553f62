/*
 * vllm.c - /version and /load, which vLLM's clients ask for.
 *
 * Called by route.c. Must not: need the engine.
 */
#include "serve/compat/compat.h"

void sv_get_version(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_buf b;

    (void)s;
    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"version\":\"" SALVO_VERSION "\",\"engine\":\"salvo\"}\n");
    sv_api_answer(q, 200, "application/json", &b);
}

/* vLLM's: the number of requests that run or wait. */
void sv_get_load(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_buf b;

    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"server_load\":%d}\n", s->n_live);
    sv_api_answer(q, 200, "application/json", &b);
}
