/*
 * unicode.h - code points: classes, and UTF-8 read, written, checked and repaired.
 *
 * Part of base.h. Called by token, jinja, reply, grammar and serve. Must not: know a locale.
 */
#ifndef SV_BASE_UNICODE_H
#define SV_BASE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sv_buf;

/* ---------------------------------------------------------------- unicode.c: code point classes */

enum sv_uclass {
    SV_UC_OTHER, /* controls, format, private, unassigned */
    SV_UC_LU,
    SV_UC_LL,
    SV_UC_LT,
    SV_UC_LM,
    SV_UC_LO,
    SV_UC_M,
    SV_UC_N,
    SV_UC_SPACE, /* White_Space, controls such as \n included */
    SV_UC_P,
    SV_UC_S,
    SV_UC_MASK = 15,
    SV_UF_WORD = 16, /* \w of the reference, for single_word tokens */
    SV_UF_NFC = 32,  /* may change under NFC, or combine with the preceding character */
    SV_UF_CCC = 64   /* has a combining class */
};
#define SV_UC_BIT(c) (1u << (c))
#define SV_UC_LETTERS                                                                              \
    (SV_UC_BIT(SV_UC_LU) | SV_UC_BIT(SV_UC_LL) | SV_UC_BIT(SV_UC_LT) | SV_UC_BIT(SV_UC_LM) |       \
     SV_UC_BIT(SV_UC_LO))

uint8_t sv_uni_flags(uint32_t cp);      /* class and flags of any value below 0x110000 */
extern const uint8_t sv_uni_ascii[128]; /* the same for ASCII */

/* Reads the code point at s, which must be valid UTF-8; *len gets its bytes. */
static inline uint32_t sv_utf8_get(const char *text, int *len)
{
    const uint8_t *s = (const uint8_t *)text;
    if (s[0] < 0x80) {
        *len = 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *len = 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *len = 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *len = 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 |
           (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

/* ---------------------------------------------------------------- utf8.c: broken UTF-8 */

/* One step over arbitrary bytes: the bytes of a valid sequence (*ok) or of a maximal invalid one.
 * Returns 0 when s[0..n) is a proper beginning that more bytes could complete. n > 0. */
int sv_utf8_step(const uint8_t *s, size_t n, bool *ok);
/* Appends s with U+FFFD for every maximal invalid sequence. */
void sv_utf8_repair(struct sv_buf *out, const char *s, size_t n);
int sv_utf8_put(uint32_t cp, char out[4]);
/* Length of the longest prefix that is valid UTF-8. */
size_t sv_utf8_valid(const char *s, size_t n);

#endif
