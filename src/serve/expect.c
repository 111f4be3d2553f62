/*
 * expect.c - a body that is too large is refused before it is sent, where the client asks first
 * (Expect: 100-continue).
 *
 * Called by http.c. evhttp decides about such a body before it tells anybody of the request: it
 * asks for one that is a little too large, and says nothing at all to a far larger one until that
 * has been sent. So the header is looked at in the connection's input before evhttp is; where it
 * announces too much, two of its names are overwritten, and evhttp hands on a request without a
 * body. Must not: change the length of anything, or touch a body.
 */
#include "serve/http.h"

#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char length_name[] = "Content-Length", expect_name[] = "Expect",
                  no_expect[] = "Xxpect";
const char sv_expect_header[] = "X-Too-Large-Is"; /* as long as Content-Length */
_Static_assert(sizeof sv_expect_header == sizeof length_name, "overwrites it");

/* Bytes up to the end of the empty line; 0 while that is not there. */
static size_t header_bytes(struct evbuffer *in)
{
    struct evbuffer_ptr crlf = evbuffer_search(in, "\r\n\r\n", 4, NULL);
    struct evbuffer_ptr lf = evbuffer_search(in, "\n\n", 2, NULL);
    char first = 0;

    if (crlf.pos >= 0 && (lf.pos < 0 || crlf.pos < lf.pos))
        return (size_t)crlf.pos + 4;
    if (lf.pos >= 0)
        return (size_t)lf.pos + 2;
    /* evhttp has taken the lines before. */
    return evbuffer_copyout(in, &first, 1) == 1 && (first == '\r' || first == '\n');
}

static bool named(const char *line, size_t n, const char *name)
{
    size_t k = strlen(name);
    return n > k && line[k] == ':' && strncasecmp(line, name, k) == 0;
}

static void refuse_in(char *head, size_t n, int64_t max)
{
    char *length = NULL, *expect = NULL, *end = head + n;

    for (char *line = head, *next; line < end; line = next) {
        next = memchr(line, '\n', (size_t)(end - line));
        next = next ? next + 1 : end;
        if (named(line, (size_t)(next - line), length_name))
            length = line;
        if (named(line, (size_t)(next - line), expect_name))
            expect = line;
    }
    /* The header ends with a line break, so that strtoll does too. */
    if (!length || !expect || strtoll(length + sizeof length_name, NULL, 10) <= max)
        return;
    memcpy(length, sv_expect_header, sizeof length_name - 1);
    memcpy(expect, no_expect, sizeof no_expect - 1);
}

static void look(struct evbuffer *in, const struct evbuffer_cb_info *info, void *arg)
{
    const int64_t *max = arg;
    char method[6] = "";
    size_t n = info->n_added ? header_bytes(in) : 0;

    if (!n)
        return;
    evbuffer_remove_cb(in, look, arg); /* what follows is a body */
    /* Only a header in one piece from a client that waits. */
    if (n != evbuffer_get_length(in) || evbuffer_copyout(in, method, 5) != 5 ||
        (strcmp(method, "POST ") != 0 && memcmp(method, "PUT ", 4) != 0))
        return;
    char *head = (char *)evbuffer_pullup(in, (ev_ssize_t)n);
    if (head)
        refuse_in(head, n, *max);
}

void sv_expect_watch(struct evbuffer *in, int64_t *max_body_bytes)
{
    if (evbuffer_get_length(in) == 0) /* else the next request is here already */
        evbuffer_add_cb(in, look, max_body_bytes);
}
