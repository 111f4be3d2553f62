/*
 * page.c - the page at /: the HTML, style and script in this folder, embedded in the program.
 *
 * Called by route.c. The assembler includes the files as they are (the Makefile knows that this
 * object depends on them). Must not: read files at run time.
 */
#include "serve/core/server.h"
#include "serve/page/page.h"

#include <openssl/sha.h>
#include <string.h>

#define EMBED(name, file)                                                                          \
    __asm__(".pushsection .rodata\n"                                                               \
            ".global sv_page_" #name "\nsv_page_" #name ":\n"                                      \
            ".incbin \"src/serve/page/" file "\"\n"                                                \
            ".global sv_page_" #name "_end\nsv_page_" #name "_end:\n.byte 0\n"                     \
            ".popsection\n");                                                                      \
    extern const char sv_page_##name[], sv_page_##name##_end[]

EMBED(html, "index.html");
EMBED(css, "page.css");
EMBED(js, "page.js");

static void etag_of(const char *data, size_t n, char etag[24])
{
    unsigned char digest[SHA256_DIGEST_LENGTH];

    SHA256((const unsigned char *)data, n, digest);
    etag[0] = '"';
    for (int i = 0; i < 10; i++)
        snprintf(etag + 1 + 2 * i, 3, "%02x", digest[i]);
    memcpy(etag + 21, "\"", 2);
}

void sv_get_page(struct sv_serve *s, struct sv_http_req *q)
{
    const char *path = sv_http_path(q), *type = "text/html; charset=utf-8", *data = sv_page_html;
    const char *end = sv_page_html_end, *known = sv_http_header(q, "If-None-Match");
    char etag[24];

    (void)s;
    if (strcmp(path, "/page.css") == 0) {
        type = "text/css; charset=utf-8";
        data = sv_page_css;
        end = sv_page_css_end;
    } else if (strcmp(path, "/page.js") == 0) {
        type = "text/javascript; charset=utf-8";
        data = sv_page_js;
        end = sv_page_js_end;
    }
    etag_of(data, (size_t)(end - data), etag);
    sv_http_add_header(q, "ETag", etag);
    sv_http_add_header(q, "Cache-Control", "no-cache");
    sv_http_add_header(q, "X-Content-Type-Options", "nosniff");
    sv_http_add_header(
        q, "Content-Security-Policy",
        "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
        "frame-ancestors 'none'");
    if (known && strstr(known, etag))
        sv_http_reply(q, 304, NULL, NULL, 0);
    else
        sv_http_reply(q, 200, type, data, (size_t)(end - data));
}
