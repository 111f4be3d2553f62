/*
 * tls.h - the TLS context: certificate, key, versions.
 *
 * Called by serve.c. Must not: accept anything older than TLS 1.2.
 */
#ifndef SV_SERVE_HTTP_TLS_H
#define SV_SERVE_HTTP_TLS_H

#include "base/base.h"

struct ssl_ctx_st;

/* A file's state when it was last read; zeros: never. */
struct sv_tls_stamp {
    int64_t mtime_ns, inode, n_bytes;
};
int sv_tls_open(struct ssl_ctx_st **ctx, const char *cert, const char *key, struct sv_err *err);
void sv_tls_close(struct ssl_ctx_st *ctx);
/* Reads both files again if they have changed. 1: *ctx was replaced; 0: they have not changed, or
 * this is the first call; an error leaves *ctx as it is until they change again. */
int sv_tls_refresh(struct ssl_ctx_st **ctx, struct sv_tls_stamp seen[2], const char *cert,
                   const char *key, struct sv_err *err);

#endif
