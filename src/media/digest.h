/*
 * digest.h - SHA-256 (FIPS 180-4), so that libsalvo needs no other library for it.
 *
 * Called by patches.c and tests. Must not: serve for secrets.
 */
#ifndef SV_MEDIA_DIGEST_H
#define SV_MEDIA_DIGEST_H

#include <stddef.h>
#include <stdint.h>

struct sv_digest {
    uint32_t h[8];
    uint64_t n_bytes;
    uint8_t block[64]; /* the incomplete block */
};
void sv_digest_begin(struct sv_digest *d);
void sv_digest_add(struct sv_digest *d, const void *data, size_t n);
void sv_digest_end(struct sv_digest *d, uint8_t out[32]);

#endif
