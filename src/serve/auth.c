/*
 * auth.c - API keys: read at start, compared by digest in constant time.
 *
 * Called by loop.c (open) and route.c (allow). Keeps no key in clear text. Must not: log a key, or
 * take longer for a key that begins right.
 */
#include "serve/impl.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>
#include <strings.h>

#define MAX_KEYS 1024

struct sv_keys {
    int n, cap;
    unsigned char (*digest)[SHA256_DIGEST_LENGTH];
};

static int add(struct sv_keys *k, const char *key, size_t n, struct sv_err *err)
{
    if (k->n == k->cap)
        return sv_fail(err, SV_EFULL, -1, "more than %d API keys", k->cap);
    SHA256((const unsigned char *)key, n, k->digest[k->n++]);
    return SV_OK;
}

/* One key a line, without the space around it, which no header would bring along; empty lines and
 * those that begin with # do not count. */
static int add_file(struct sv_keys *k, const char *file, struct sv_err *err)
{
    struct sv_buf text;
    int before = k->n;

    sv_buf_init(&text);
    int rc = sv_file_read(&text, file, (size_t)1 << 20, err);
    for (size_t at = 0; !rc && at < text.len;) {
        const char *line = text.data + at;
        size_t n = strcspn(line, "\n");
        at += n + 1;
        size_t blank = strspn(line, " \t");
        line += blank;
        n -= blank;
        while (n && strchr(" \t\r", line[n - 1]))
            n--;
        if (n && line[0] != '#')
            rc = add(k, line, n, err);
    }
    if (text.data)
        OPENSSL_cleanse(text.data, text.cap);
    sv_buf_fini(&text);
    if (!rc && k->n == before)
        rc = sv_fail(err, SV_EFORMAT, -1, "%s: holds no API key", file);
    return rc;
}

int sv_keys_open(struct sv_keys **out, const char *key, const char *file, struct sv_err *err)
{
    *out = NULL;
    if (!key && !file)
        return SV_OK;
    if (key && !*key)
        return sv_fail(err, SV_EINVAL, -1, "the API key is empty");
    struct sv_keys *k = sv_calloc(1, sizeof *k);
    if (k) {
        k->cap = MAX_KEYS;
        k->digest = sv_calloc(MAX_KEYS, sizeof *k->digest);
    }
    if (!k || !k->digest) {
        sv_keys_close(k);
        return sv_fail(err, SV_ENOMEM, -1, "API keys");
    }
    int rc = key ? add(k, key, strlen(key), err) : SV_OK;
    if (!rc && file)
        rc = add_file(k, file, err);
    if (rc) {
        sv_keys_close(k);
        return rc;
    }
    *out = k;
    return SV_OK;
}

bool sv_keys_allow(const struct sv_keys *k, const char *authorization, const char *x_api_key)
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    const char *given = x_api_key;
    int hits = 0;

    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        given = authorization + 7 + strspn(authorization + 7, " ");
    if (!given)
        return false;
    SHA256((const unsigned char *)given, strlen(given), digest);
    for (int i = 0; i < k->n; i++) /* all of them, whichever fits */
        hits |= CRYPTO_memcmp(digest, k->digest[i], sizeof digest) == 0;
    return hits != 0;
}

void sv_keys_close(struct sv_keys *k)
{
    if (!k)
        return;
    sv_free(k->digest);
    sv_free(k);
}
