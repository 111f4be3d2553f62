/*
 * http_parse.h - reads HTTP/1.0 and HTTP/1.1 requests from a stream of bytes: request line, header
 * fields, bodies of known length and in chunks.
 *
 * Called by http.c, one parser for each connection, and by tests and the fuzz target. A parser does
 * no input or output: it takes bytes and returns events. Each byte is read once, and the result
 * does not depend on how the stream is cut into pieces. The parser is strict: whatever two parsers
 * could read differently is an error. Must not: keep bytes of a body, or more than SV_HTTP_MAX_HEAD
 * bytes of a header.
 */
#ifndef SV_SERVE_HTTP_PARSE_H
#define SV_SERVE_HTTP_PARSE_H

#include "base/base.h"

#define SV_HTTP_MAX_HEAD 65536      /* bytes of request line, header fields and trailer fields */
#define SV_HTTP_MAX_CHUNK_LINE 1024 /* bytes of a chunk's size and extensions */

enum sv_http_event {
    SV_HTTP_MORE, /* nothing to report; bytes that were not used go into the next call */
    SV_HTTP_HEAD, /* the header is complete; comes before any error of the body */
    SV_HTTP_DATA, /* bytes of the body */
    SV_HTTP_END,  /* the request is complete; again with each call, until sv_http_parser_next */
    SV_HTTP_BAD   /* not HTTP, or beyond a limit: status and reason; again with each call */
};

struct sv_http_parser {
    int64_t max_body; /* the caller's limit */
    /* Method, path, ... as texts with a NUL each, then name and value of each field. The offsets
     * are valid from HEAD until sv_http_parser_next. */
    struct sv_buf head;
    size_t authority; /* of a target in absolute form, "http://authority/path"; else "" */
    size_t path;      /* decoded, with one slash in front and none at its end */
    size_t query;     /* as it was sent, "" without one */
    size_t fields;
    int minor; /* 0: HTTP/1.0; 1: HTTP/1.1 and later, and malformed requests */
    bool keep_alive, chunked, expects_continue;
    int64_t length;     /* Content-Length, 0 without one; INT64_MAX: as much or more */
    size_t n_data;      /* of DATA: the body's bytes are the last ones of those used */
    int status;         /* of BAD: the HTTP status ... */
    const char *reason; /* ... and a description of the error */
    /* http_parse.c's own */
    int state;
    bool has_length, has_host, any_digit;
    size_t kept;    /* bytes of head with complete texts; the line being read follows */
    size_t n_head;  /* bytes of the header and trailer so far */
    size_t n_line;  /* bytes of the chunk's line so far */
    int64_t left;   /* remaining bytes of the body or chunk */
    int64_t n_body; /* bytes of the previous chunks */
};

void sv_http_parser_init(struct sv_http_parser *p, int64_t max_body);
void sv_http_parser_fini(struct sv_http_parser *p);
/* Starts the next request. The header's memory is freed if it is large. */
void sv_http_parser_next(struct sv_http_parser *p);
/* Parses up to the first event; *used: how many of the n bytes were consumed. */
enum sv_http_event sv_http_parse(struct sv_http_parser *p, const char *in, size_t n, size_t *used);
/* Whether no byte of a request has been read yet. */
bool sv_http_parser_is_idle(const struct sv_http_parser *p);
/* The text at one of the offsets, method at 0; "" before HEAD. */
const char *sv_http_parser_text(const struct sv_http_parser *p, size_t at);
/* The first field of this name in any case, NULL without one. */
const char *sv_http_parser_field(const struct sv_http_parser *p, const char *name);
/* The host that the client addressed: the target's authority, else Host; NULL without either. */
const char *sv_http_parser_host(const struct sv_http_parser *p);
/* The same in any n bytes of names and values with a NUL each. */
const char *sv_http_find_pair(const char *pairs, size_t n, const char *name);

#endif
