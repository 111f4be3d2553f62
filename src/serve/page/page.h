/*
 * page.h - the page at /: its HTML, style and script, which are part of the program.
 *
 * Included by route.c.
 */
#ifndef SV_SERVE_PAGE_H
#define SV_SERVE_PAGE_H

struct sv_http_req;
struct sv_serve;

void sv_get_page(struct sv_serve *s, struct sv_http_req *q);

#endif
