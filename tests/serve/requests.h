/*
 * requests.h - the HTTP parser's events for a stream, as text, however the stream is cut.
 *
 * Included by tests/serve/test_http_parse.c and tests/fuzz/fuzz_http.c.
 */
#ifndef SV_TEST_SERVE_REQUESTS_H
#define SV_TEST_SERVE_REQUESTS_H

#include "base/base.h"

enum { REQUESTS_WHOLE, REQUESTS_BYTES }; /* in one piece, byte by byte; else pieces by this seed */

/* Appends a line for each request: method, host, path, query, flags, fields, body; and for the end
 * of the stream: the error's status and reason, "idle" between two requests, or "more". Aborts
 * where the parser breaks what http_parse.h promises. Returns the number of calls of the parser. */
size_t requests_read(struct sv_buf *log, const char *data, size_t n, int64_t max_body,
                     uint64_t cuts);

#endif
