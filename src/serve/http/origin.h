/*
 * origin.h - which web pages may use the server, by the headers of browsers: Host, Origin.
 *
 * Called by route.c for every request. Must not: know endpoints or keys.
 */
#ifndef SV_SERVE_ORIGIN_H
#define SV_SERVE_ORIGIN_H

#include <stdbool.h>

/* Whether Host (with or without a port) is an IP address, localhost, or one of these names
 * (separated by commas; NULL = none). This stops DNS rebinding: such a page sends its own name. */
bool sv_host_is_allowed(const char *host, const char *names);
/* Whether pages of this origin may change state: it is the server's own, by Host (NULL = unknown),
 * or the one that --cors allows ("*" = all, NULL = none). */
bool sv_origin_is_allowed(const char *origin, const char *host, const char *cors);

#endif
