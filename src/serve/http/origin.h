/*
 * origin.h - which web pages may use the server, by the fields that browsers send: Host, Origin.
 *
 * Called by route.c for every request. Must not: know endpoints or keys.
 */
#ifndef SV_SERVE_ORIGIN_H
#define SV_SERVE_ORIGIN_H

#include <stdbool.h>

/* Whether Host (with or without a port) is an IP address, localhost, or one of these names (commas
 * between them; NULL = none). A page whose own name leads to this machine sends its own name. */
bool sv_host_is_allowed(const char *host, const char *names);
/* Whether pages of this origin may change something: it is the server's own, as Host says (NULL =
 * unknown), or the one that --cors allows ("*" = all, NULL = none). */
bool sv_origin_is_allowed(const char *origin, const char *host, const char *cors);

#endif
