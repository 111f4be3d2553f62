/*
 * page.c - the page at /.
 *
 * Called by route.c. Must not: read files at run time; the page is part of the program.
 */
#include "serve/impl.h"

#include <string.h>

void sv_get_page(struct sv_serve *s, struct sv_http_req *q)
{
    static const char text[] = "Salvo " SALVO_VERSION "\n";
    (void)s;
    sv_http_reply(q, 200, "text/plain; charset=utf-8", text, sizeof text - 1);
}
