/*
 * nfc.c - canonical composition of a text, only of the stretches that need it.
 *
 * Called by encode.c on each piece between raw added tokens. ASCII and everything below U+0300 is
 * skipped over; a code point that may change gives a stretch from the last stable code point to the
 * next one, and only stretches are decomposed and composed (utf8proc). Must not: allocate outside
 * the scratch.
 */
#include "token/tok.h"

#include <string.h>
#include <utf8proc.h>

#define UNSTABLE (SV_UF_NFC | SV_UF_CCC)

/* 0 for marks that the reference does not know yet, although utf8proc may. */
static int combining_class(int32_t cp)
{
    return sv_uni_flags((uint32_t)cp) & SV_UF_CCC ? utf8proc_get_property(cp)->combining_class : 0;
}

/* First byte at or after `at` of a code point that breaks the order or may change; n when there is
 * none. *stable gets the start of the last stable code point at or before it. */
static size_t find_trouble(const char *text, size_t n, size_t at, size_t *stable)
{
    int last = 0;

    *stable = at;
    while (at < n) {
        uint64_t word;
        uint32_t cp;
        uint8_t flags;
        int len;
        if (n - at >= 8) {
            memcpy(&word, text + at, 8);
            if (!(word & 0x8080808080808080u)) {
                *stable = at + 7;
                at += 8;
                last = 0;
                continue;
            }
        }
        cp = sv_utf8_get(text + at, &len);
        flags = cp < 0x300 ? 0 : sv_uni_flags(cp);
        if (flags & SV_UF_NFC)
            return at;
        if (flags & SV_UF_CCC) {
            int cc = combining_class((int32_t)cp);
            if (last > cc)
                return at;
            last = cc;
        } else {
            *stable = at;
            last = 0;
        }
        at += (size_t)len;
    }
    return n;
}

static int reserve_cps(struct sv_enc_scratch *s, size_t n)
{
    size_t cap = s->cps_cap ? s->cps_cap : 256;
    void *p;

    if (n <= s->cps_cap)
        return SV_OK;
    while (cap < n)
        cap *= 2;
    p = sv_realloc(s->cps, s->cps_cap * sizeof *s->cps, cap * sizeof *s->cps);
    if (!p)
        return SV_ENOMEM;
    s->cps = p;
    s->cps_cap = cap;
    return SV_OK;
}

/* Stable sort of n code points by class: by insertion when few, else by counting into spare. */
static void sort_marks(int32_t *cp, size_t n, int32_t *spare)
{
    size_t start[257] = {0};

    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            int32_t v = cp[i];
            int cc = combining_class(v);
            size_t k = i;
            for (; k && combining_class(cp[k - 1]) > cc; k--)
                cp[k] = cp[k - 1];
            cp[k] = v;
        }
        return;
    }
    for (size_t i = 0; i < n; i++)
        start[combining_class(cp[i]) + 1]++;
    for (int i = 0; i < 256; i++)
        start[i + 1] += start[i];
    for (size_t i = 0; i < n; i++)
        spare[start[combining_class(cp[i])]++] = cp[i];
    memcpy(cp, spare, n * sizeof *cp);
}

/* Appends the composed form of one stretch. */
static int compose(struct sv_enc_scratch *s, const char *text, size_t n, struct sv_buf *out)
{
    size_t n_cps = 0, i = 0;
    utf8proc_ssize_t left;

    while (i < n) {
        int len, boundary = 0;
        uint32_t cp = sv_utf8_get(text + i, &len);
        utf8proc_ssize_t got;
        if (reserve_cps(s, 2 * (n_cps + 8)) <
            0) /* a code point gives at most four; the rest is spare */
            return SV_ENOMEM;
        got = utf8proc_decompose_char((int32_t)cp, s->cps + n_cps, 8,
                                      UTF8PROC_COMPOSE | UTF8PROC_STABLE, &boundary);
        if (got < 0 || got > 8) { /* unknown: keep as it is */
            s->cps[n_cps] = (int32_t)cp;
            got = 1;
        }
        n_cps += (size_t)got;
        i += (size_t)len;
    }
    for (size_t a = 0, b; a < n_cps; a = b + 1) {
        for (b = a; b < n_cps && combining_class(s->cps[b]) != 0;)
            b++;
        if (b - a > 1)
            sort_marks(s->cps + a, b - a, s->cps + n_cps);
    }
    left = utf8proc_normalize_utf32(s->cps, (utf8proc_ssize_t)n_cps,
                                    UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    SV_REQUIRE(left >= 0);
    for (utf8proc_ssize_t k = 0; k < left; k++) {
        char utf8[4];
        sv_buf_append(out, utf8, (size_t)sv_utf8_put((uint32_t)s->cps[k], utf8));
    }
    return SV_OK;
}

int sv_nfc(struct sv_enc_scratch *s, const char *text, size_t n, struct sv_buf *out, bool *changed)
{
    size_t copied = 0, stable, at = find_trouble(text, n, 0, &stable);

    *changed = at < n;
    while (at < n) {
        size_t end = at;
        sv_buf_append(out, text + copied, stable - copied);
        while (end < n) { /* to the next stable code point */
            int len;
            if (!(sv_uni_flags(sv_utf8_get(text + end, &len)) & UNSTABLE))
                break;
            end += (size_t)len;
        }
        if (compose(s, text + stable, end - stable, out) < 0)
            return SV_ENOMEM;
        copied = end;
        at = find_trouble(text, n, end, &stable);
    }
    if (*changed)
        sv_buf_append(out, text + copied, n - copied);
    return out->failed ? SV_ENOMEM : SV_OK;
}
