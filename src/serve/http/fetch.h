/*
 * fetch.h - fetches http: and https: URLs of a request body from allowed hosts.
 *
 * A list belongs to one body. The thread that reads the body adds URLs (want); if some are not
 * fetched yet (waits), the loop fetches them (start), and the body is read again, which then gets
 * the data (get). Must not: contact a host that the option does not name.
 */
#ifndef SV_SERVE_HTTP_FETCH_H
#define SV_SERVE_HTTP_FETCH_H

#include "base/base.h"

struct event_base;
struct sv_fetcher; /* the server's */
struct sv_fetch;   /* a list of addresses; NULL: empty */

struct sv_fetch_options {
    const char *hosts;    /* HOST or HOST:PORT, separated by commas */
    size_t max_bytes;     /* of one URL */
    int64_t all_bytes;    /* of all URLs that are kept for bodies */
    int32_t time_seconds; /* for all URLs of a body */
};
int sv_fetcher_open(struct sv_fetcher **f, struct event_base *base,
                    const struct sv_fetch_options *o, struct sv_err *err);
void sv_fetcher_close(struct sv_fetcher *f); /* once all lists are freed */

/* On any thread, while the list is not being fetched. want: adds a URL, unless it is refused. get:
 * appends the data, or the error says why there is none; SV_EFULL: too much is kept. */
int sv_fetch_want(struct sv_fetch **l, struct sv_fetcher *f, const char *url, size_t n,
                  struct sv_err *err);
int sv_fetch_get(const struct sv_fetch *l, const char *url, struct sv_buf *bytes,
                 struct sv_err *err);
bool sv_fetch_waits(const struct sv_fetch *l); /* some URLs have not been fetched */

/* On the loop's thread. done is called once all URLs have been fetched or have failed, possibly
 * within start; cancel calls it if that has not happened yet. */
void sv_fetch_start(struct sv_fetch *l, void (*done)(void *user), void *user);
void sv_fetch_cancel(struct sv_fetch *l);
void sv_fetch_free(struct sv_fetch *l);

#endif
