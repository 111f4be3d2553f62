/*
 * buf.c - the growing byte buffer that writers of text and files use.
 *
 * Called by everything that builds output. A failure is recorded, not returned by each call. Must
 * not: lose the terminating NUL, or grow by less than half (appending a byte at a time stays
 * linear).
 */
#include "base/base.h"

#include <string.h>

void sv_buf_init(struct sv_buf *b)
{
    memset(b, 0, sizeof *b);
}

void sv_buf_fini(struct sv_buf *b)
{
    sv_free(b->data);
    sv_buf_init(b);
}

void sv_buf_clear(struct sv_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

int sv_buf_reserve(struct sv_buf *b, size_t n_more)
{
    size_t need, cap;
    char *data;

    if (b->failed)
        return SV_ENOMEM;
    if (n_more >= PTRDIFF_MAX - b->len) {
        b->failed = true;
        return SV_ENOMEM;
    }
    need = b->len + n_more + 1; /* the NUL */
    if (need <= b->cap)
        return SV_OK;
    cap = b->cap + b->cap / 2 + 64;
    if (cap < need)
        cap = need;
    data = sv_realloc(b->data, b->data ? b->len + 1 : 0, cap);
    if (!data) {
        b->failed = true;
        return SV_ENOMEM;
    }
    b->data = data;
    b->data[b->len] = 0;
    b->cap = cap;
    return SV_OK;
}

void sv_buf_append(struct sv_buf *b, const void *data, size_t n)
{
    if (sv_buf_reserve(b, n) != SV_OK)
        return;
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = 0;
}

void sv_buf_printf(struct sv_buf *b, const char *fmt, ...)
{
    char small[256];
    va_list ap, again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < sizeof small) {
        sv_buf_append(b, small, (size_t)n);
    } else if (sv_buf_reserve(b, (size_t)n) == SV_OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}
