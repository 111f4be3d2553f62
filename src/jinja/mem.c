/*
 * mem.c - the memory, limits and errors of one template parse or render.
 *
 * Called by all jinja*.c. Small pieces are cut from chunks of the run's arena. Steps, bytes and
 * depth are counted so that no template can hang or exhaust the process: a loop whose length a
 * template can choose must either count steps or allocate memory in proportion. A step is worth
 * about 100 ns at most, so bytes read one by one count a sixteenth of a step each, bytes read by
 * memcmp or memmove a 256th. Must not: return after an error.
 */
#include "jinja/run.h"

#define CHUNK_BYTES (16u << 10)

/* Line and column, counted from 1; columns in bytes. */
static void place(const struct sv_jx *x, int *line, int *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < x->pos && i < x->n_source; i++) {
        ++*column;
        if (x->source[i] == '\n') {
            ++*line;
            *column = 1;
        }
    }
}

_Noreturn void sv_j_throw(struct sv_jx *x, int code, const char *fmt, ...)
{
    char text[400];
    int line, column;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    place(x, &line, &column);
    sv_fail(x->err, code, line, "template, line %d, column %d: %s", line, column, text);
    longjmp(x->fail, 1);
}

_Noreturn void sv_j_throw_text(struct sv_jx *x, const char *p, size_t n)
{
    int line, column;

    place(x, &line, &column);
    if (n >= sizeof x->err->msg) /* cut between code points */
        for (n = sizeof x->err->msg - 1; n && ((uint8_t)p[n] & 0xC0) == 0x80;)
            n--;
    sv_fail(x->err, SV_EINVAL, line, "%.*s", (int)n, p);
    longjmp(x->fail, 1);
}

void *sv_j_alloc(struct sv_jx *x, size_t n_bytes)
{
    void *p;

    if (n_bytes > x->max_bytes)
        n_bytes = x->max_bytes + 1; /* no overflow when it is rounded up */
    n_bytes = (n_bytes + 15) / 16 * 16;
    sv_j_reserve(x, n_bytes);
    if (n_bytes > CHUNK_BYTES / 8) {
        p = sv_arena_alloc(x->arena, n_bytes);
        if (!p)
            sv_j_throw(x, SV_ENOMEM, "out of memory");
        return p;
    }
    if (!x->at || (size_t)(x->end - x->at) < n_bytes) {
        x->at = sv_arena_alloc(x->arena, CHUNK_BYTES);
        if (!x->at) {
            x->end = NULL;
            sv_j_throw(x, SV_ENOMEM, "out of memory");
        }
        x->end = x->at + CHUNK_BYTES;
    }
    p = x->at;
    x->at += n_bytes;
    return p;
}

void sv_j_step(struct sv_jx *x, size_t n)
{
    if (n > (size_t)(x->max_steps - x->steps))
        sv_j_throw(x, SV_EFULL, "the template takes more than %lld steps", (long long)x->max_steps);
    x->steps += (int64_t)n;
}

void sv_j_read(struct sv_jx *x, size_t n)
{
    sv_j_step(x, n / 16);
}

void sv_j_copied(struct sv_jx *x, size_t n)
{
    sv_j_step(x, n / 256);
}

void sv_j_walked(struct sv_jx *x, size_t n)
{
    sv_j_step(x, n > 64 ? n / 4 : n / 16); /* a long list is not in the processor's caches */
}

void sv_j_reserve(struct sv_jx *x, size_t n_bytes)
{
    if (n_bytes > x->max_bytes || x->n_bytes > x->max_bytes - n_bytes)
        sv_j_throw(x, SV_EFULL, "the template needs more than %zu bytes of memory", x->max_bytes);
    x->n_bytes += n_bytes;
}

void sv_j_enter(struct sv_jx *x)
{
    if (++x->depth > x->max_depth)
        sv_j_throw(x, SV_EFULL, "nested more than %d levels deep", x->max_depth);
}

void sv_j_leave(struct sv_jx *x)
{
    x->depth--;
}

/* ---------------------------------------------------------------- growing text */

static void grow(struct sv_jx *x, struct sv_jbuild *b, size_t n)
{
    size_t cap = b->cap ? 2 * b->cap : 64;
    char *p;

    if (n > x->max_output || b->n + n > x->max_output)
        sv_j_throw(x, SV_EFULL, "the template writes more than %zu bytes", x->max_output);
    /* Not above the limit: output that fits is not checked again. */
    if (cap > x->max_output)
        cap = x->max_output;
    if (cap < b->n + n)
        cap = b->n + n;
    p = sv_j_alloc(x, cap);
    if (b->n)
        memcpy(p, b->p, b->n);
    b->p = p;
    b->cap = cap;
}

void sv_j_put(struct sv_jx *x, struct sv_jbuild *b, const char *p, size_t n)
{
    if (!n)
        return;
    if (b->cap - b->n < n)
        grow(x, b, n);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void sv_j_putc(struct sv_jx *x, struct sv_jbuild *b, char c)
{
    sv_j_put(x, b, &c, 1);
}

void sv_j_puts(struct sv_jx *x, struct sv_jbuild *b, const char *s)
{
    sv_j_put(x, b, s, strlen(s));
}

void sv_j_putf(struct sv_jx *x, struct sv_jbuild *b, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    SV_REQUIRE(n >= 0 && (size_t)n < sizeof text);
    sv_j_put(x, b, text, (size_t)n);
}

void sv_j_put_cp(struct sv_jx *x, struct sv_jbuild *b, uint32_t cp)
{
    char text[4];
    sv_j_put(x, b, text, (size_t)sv_utf8_put(cp, text));
}

struct sv_jval sv_j_built(const struct sv_jbuild *b)
{
    return sv_j_str(b->n ? b->p : "", b->n);
}
