/*
 * utf8.c - valid and broken UTF-8: length of the valid prefix, repair as Python's errors="replace".
 *
 * Called by encode.c and decode.c. A maximal invalid sequence is the longest beginning of a
 * sequence that could still have become valid, or one byte (Unicode 3.9, table 3-7). Must not: read
 * past n.
 */
#include "base/base.h"

#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

int sv_utf8_step(const uint8_t *s, size_t n, bool *ok)
{
    uint8_t lo = 0x80, hi = 0xBF; /* bounds of the second byte */
    int len;

    *ok = false;
    if (s[0] < 0x80) {
        *ok = true;
        return 1;
    }
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return 1;
    len = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (s[0] == 0xE0)
        lo = 0xA0;
    else if (s[0] == 0xED)
        hi = 0x9F;
    else if (s[0] == 0xF0)
        lo = 0x90;
    else if (s[0] == 0xF4)
        hi = 0x8F;
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return 0;
        if (s[i] < lo || s[i] > hi)
            return i;
        lo = 0x80;
        hi = 0xBF;
    }
    *ok = true;
    return len;
}

size_t sv_utf8_valid(const char *text, size_t n)
{
    const uint8_t *s = (const uint8_t *)text;
    size_t i = 0;

    while (i < n) {
        uint64_t word;
        bool ok;
        int step;
        if (n - i >= 8) {
            memcpy(&word, s + i, 8);
            if (!(word & 0x8080808080808080u)) {
                i += 8;
                continue;
            }
        }
        step = sv_utf8_step(s + i, n - i, &ok);
        if (!ok)
            return i;
        i += (size_t)step;
    }
    return n;
}

void sv_utf8_repair(struct sv_buf *out, const char *text, size_t n)
{
    size_t i = 0;

    while (i < n) {
        size_t good = sv_utf8_valid(text + i, n - i);
        bool ok;
        int step;
        sv_buf_append(out, text + i, good);
        i += good;
        if (i == n)
            break;
        step = sv_utf8_step((const uint8_t *)text + i, n - i, &ok);
        sv_buf_append(out, REPLACEMENT, 3);
        i = step ? i + (size_t)step : n; /* 0: the text ends inside a sequence */
    }
}

int sv_utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}
