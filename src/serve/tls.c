/*
 * tls.c - the TLS context: certificate, key, versions.
 *
 * Called by loop.c. Must not: accept anything older than TLS 1.2.
 */
#include "serve/impl.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

static int fail(struct sv_err *err, const char *file)
{
    char why[160];
    ERR_error_string_n(ERR_get_error(), why, sizeof why);
    ERR_clear_error();
    return sv_fail(err, SV_EINVAL, -1, "%s: %s", file, why);
}

int sv_tls_open(struct ssl_ctx_st **out, const char *cert, const char *key, struct sv_err *err)
{
    int rc = SV_OK;

    *out = NULL;
    if (!cert || !key)
        return sv_fail(err, SV_EINVAL, -1, "TLS needs both a certificate and a key");
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return sv_fail(err, SV_ENOMEM, -1, "TLS");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    /* A client that just closes the socket is a client that left, not an error to report. */
    SSL_CTX_set_options(ctx, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_RENEGOTIATION);
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        rc = fail(err, cert);
    else if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        rc = fail(err, key);
    else if (SSL_CTX_check_private_key(ctx) != 1)
        rc = fail(err, key);
    if (rc) {
        SSL_CTX_free(ctx);
        return rc;
    }
    *out = ctx;
    return SV_OK;
}

void sv_tls_close(struct ssl_ctx_st *ctx)
{
    SSL_CTX_free(ctx);
}
