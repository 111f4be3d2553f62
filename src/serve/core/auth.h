/*
 * auth.h - API keys.
 *
 * Called by serve.c, route.c and call.c. Must not: keep a key in clear text.
 */
#ifndef SV_SERVE_CORE_AUTH_H
#define SV_SERVE_CORE_AUTH_H

#include "base/base.h"

struct sv_keys;

/* *k is NULL when there are no keys. */
int sv_keys_open(struct sv_keys **k, const char *key, const char *file, struct sv_err *err);
/* The index of the key in these headers, -1 when it is not a known one. */
int sv_keys_find(const struct sv_keys *k, const char *authorization, const char *x_api_key);
int sv_keys_count(const struct sv_keys *k); /* NULL: 0 */
/* Mixes a key's digest into a request's salt, so that it shares prefixes only with requests of the
 * same key. */
void sv_keys_salt(const struct sv_keys *k, int key, uint64_t salt[2]);
void sv_keys_close(struct sv_keys *k);

#endif
