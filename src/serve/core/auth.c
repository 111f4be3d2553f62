/*
 * auth.c - API keys: read at start, compared by digest in constant time; the salt of a key's
 * prefixes.
 *
 * Called by serve.c (open), route.c (find) and call.c (salt). Keeps no key in clear text. Must not:
 * log a key, or take longer for a key whose beginning is right.
 */
#include "serve/core/auth.h"

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
    SHA256((const unsigned char *)key, n, k->digest[k->n]);
    for (int i = 0; i < k->n; i++)
        if (CRYPTO_memcmp(k->digest[i], k->digest[k->n], SHA256_DIGEST_LENGTH) == 0)
            return SV_OK; /* the same key given twice has one index */
    k->n++;
    return SV_OK;
}

/* One key a line. Space around a key is dropped, as no header would contain it; empty lines and
 * lines that begin with # are skipped. */
static int add_file(struct sv_keys *k, const char *file, struct sv_err *err)
{
    struct sv_buf text;
    int before = k->n;

    sv_buf_init(&text);
    int rc = sv_file_read_stream(&text, file, (size_t)1 << 20, err);
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

int sv_keys_find(const struct sv_keys *k, const char *authorization, const char *x_api_key)
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    const char *given = x_api_key;
    int found = 0; /* 1 + the key's index; keys differ, so at most one matches */

    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        given = authorization + 7 + strspn(authorization + 7, " ");
    if (!given)
        return -1;
    SHA256((const unsigned char *)given, strlen(given), digest);
    for (int i = 0; i < k->n; i++) /* always all of them, for constant time */
        found |= -(CRYPTO_memcmp(digest, k->digest[i], sizeof digest) == 0) & (i + 1);
    return found - 1;
}

int sv_keys_count(const struct sv_keys *k)
{
    return k ? k->n : 0;
}

void sv_keys_salt(const struct sv_keys *k, int key, uint64_t salt[2])
{
    const size_t n = 2 * sizeof *salt;
    unsigned char both[SHA256_DIGEST_LENGTH + 2 * sizeof *salt], digest[SHA256_DIGEST_LENGTH];

    memcpy(both, k->digest[key], SHA256_DIGEST_LENGTH);
    memcpy(both + SHA256_DIGEST_LENGTH, salt, n);
    SHA256(both, sizeof both, digest);
    memcpy(salt, digest, n);
}

void sv_keys_close(struct sv_keys *k)
{
    if (!k)
        return;
    sv_free(k->digest);
    sv_free(k);
}
