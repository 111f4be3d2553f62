/*
 * tls.c - the TLS context: certificate, key, versions. Both files are read again when they have
 * changed.
 *
 * Called by serve.c. Must not: accept anything older than TLS 1.2.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>
#include <sys/stat.h>

static int fail(struct sv_err *err, const char *file)
{
    char why[160];
    ERR_error_string_n(ERR_get_error(), why, sizeof why);
    ERR_clear_error();
    return sv_fail(err, SV_EFORMAT, -1, "%s: %s", file, why);
}

/* OpenSSL would ask for a passphrase at the terminal and block the loop. */
static int no_passphrase(char *to, int n, int writing, void *user)
{
    (void)to, (void)n, (void)writing;
    *(bool *)user = true;
    return -1;
}

int sv_tls_open(struct ssl_ctx_st **out, const char *cert, const char *key, struct sv_err *err)
{
    int rc = SV_OK;
    bool locked = false;

    *out = NULL;
    if (!cert || !key)
        return sv_fail(err, SV_EINVAL, -1, "TLS needs both a certificate and a key");
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return sv_fail(err, SV_ENOMEM, -1, "TLS");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    /* A client that closes the socket without a TLS alert has disconnected; that is no error. */
    SSL_CTX_set_options(ctx, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    SSL_CTX_set_default_passwd_cb_userdata(ctx, &locked);
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        rc = fail(err, cert);
    else if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        rc = fail(err, key);
    else if (SSL_CTX_check_private_key(ctx) != 1)
        rc = fail(err, key);
    SSL_CTX_set_default_passwd_cb_userdata(ctx, NULL);
    if (locked)
        rc = sv_fail(err, SV_EFORMAT, -1, "%s: has a passphrase, which is not supported", key);
    if (rc) {
        SSL_CTX_free(ctx);
        return rc;
    }
    *out = ctx;
    return SV_OK;
}

static void look(struct sv_tls_stamp *s, const char *file)
{
    struct stat st;

    *s = (struct sv_tls_stamp){0};
    if (stat(file, &st) == 0)
        *s = (struct sv_tls_stamp){(int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
                                   (int64_t)st.st_ino, (int64_t)st.st_size};
}

int sv_tls_refresh(struct ssl_ctx_st **ctx, struct sv_tls_stamp seen[2], const char *cert,
                   const char *key, struct sv_err *err)
{
    struct sv_tls_stamp now[2];
    struct ssl_ctx_st *fresh;
    bool first = !seen[0].inode && !seen[1].inode;

    look(&now[0], cert);
    look(&now[1], key);
    if (memcmp(now, seen, sizeof now) == 0)
        return 0;
    memcpy(seen, now, sizeof now);
    if (first)
        return 0;
    int rc = sv_tls_open(&fresh, cert, key, err);
    if (rc)
        return rc;      /* the other file may not be replaced yet */
    sv_tls_close(*ctx); /* open connections keep a reference */
    *ctx = fresh;
    return 1;
}

void sv_tls_close(struct ssl_ctx_st *ctx)
{
    SSL_CTX_free(ctx);
}
