/*
 * route.h - which endpoint a request goes to.
 *
 * Called by http.c through the options that serve.c gives it; `s` is the struct sv_serve.
 */
#ifndef SV_SERVE_ROUTE_H
#define SV_SERVE_ROUTE_H

#include "base/base.h"

struct sv_api_err;
struct sv_http_req;

void sv_route_head(void *s, struct sv_http_req *q);
void sv_route(void *s, struct sv_http_req *q);
void sv_route_refused(void *s, struct sv_http_req *q, int status, const char *reason);
/* Writes an error in the shape of the API that has the request's path. */
void sv_route_write_error(struct sv_buf *b, const struct sv_http_req *q,
                          const struct sv_api_err *e);

#endif
