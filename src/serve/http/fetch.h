/*
 * fetch.h - what a body names by http: and https: addresses of allowed hosts.
 *
 * A list belongs to one body. The thread that reads the body asks for addresses (want); if the list
 * waits then, the loop fetches (start), and the body is read once more, which finds what came
 * (get). Must not: ask a host that the option does not name.
 */
#ifndef SV_SERVE_HTTP_FETCH_H
#define SV_SERVE_HTTP_FETCH_H

#include "base/base.h"

struct event_base;
struct sv_fetcher; /* the server's */
struct sv_fetch;   /* a list of addresses; NULL: empty */

struct sv_fetch_options {
    const char *hosts;    /* HOST or HOST:PORT, with commas */
    size_t max_bytes;     /* of one address */
    int64_t all_bytes;    /* of all that is kept for bodies */
    int32_t time_seconds; /* for all addresses of a body */
};
int sv_fetcher_open(struct sv_fetcher **f, struct event_base *base,
                    const struct sv_fetch_options *o, struct sv_err *err);
void sv_fetcher_close(struct sv_fetcher *f); /* once all lists are freed */

/* Any thread, while the list is not being fetched. want: puts an address on the list, unless it is
 * refused. get: appends what came, or says why nothing did; SV_EFULL: too much was kept. */
int sv_fetch_want(struct sv_fetch **l, struct sv_fetcher *f, const char *url, size_t n,
                  struct sv_err *err);
int sv_fetch_get(const struct sv_fetch *l, const char *url, struct sv_buf *bytes,
                 struct sv_err *err);
bool sv_fetch_waits(const struct sv_fetch *l); /* there are addresses that were not fetched */

/* The loop's thread. done is called once all have come or failed, perhaps at once; after cancel,
 * from there, if they have not. */
void sv_fetch_start(struct sv_fetch *l, void (*done)(void *user), void *user);
void sv_fetch_cancel(struct sv_fetch *l);
void sv_fetch_free(struct sv_fetch *l);

#endif
