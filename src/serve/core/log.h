/*
 * log.h - the server's log lines on stderr: an event, then name=value pairs or JSON.
 *
 * Called on the loop's thread. Must not: be given prompts, answers or keys.
 */
#ifndef SV_SERVE_CORE_LOG_H
#define SV_SERVE_CORE_LOG_H

#include "base/base.h"

struct sv_serve;

struct sv_log_field {
    const char *name;
    char kind; /* 's', 'i' or 'f': which member of v is set */
    union {
        const char *s;
        int64_t i;
        double f;
    } v;
};
/* clang-format off */
#define SV_LOG_S(n, x) {.name = (n), .kind = 's', .v.s = (x)}
#define SV_LOG_I(n, x) {.name = (n), .kind = 'i', .v.i = (x)}
#define SV_LOG_F(n, x) {.name = (n), .kind = 'f', .v.f = (x)}
/* clang-format on */
void sv_serve_log(const struct sv_serve *s, const char *event, const struct sv_log_field *f, int n);

/* Logs the unknown fields of a request (sv_unknown_field), a line each, and empties names. A field
 * is logged once in the server's life, at most SV_UNKNOWN_NAMED fields in all. id: the request's.
 */
#define SV_UNKNOWN_NAMED 256
void sv_log_unknown(struct sv_serve *s, const char *id, struct sv_buf *names);
/* Whether lines, each with a line break, hold this one. */
bool sv_has_line(const struct sv_buf *lines, const char *line);
/* A client's text for a log line: its beginning, without control characters. */
const char *sv_log_plain(char to[128], const char *text);

#endif
