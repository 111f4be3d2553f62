/*
 * wire.c - a request as bytes, and back.
 *
 * Called by remote.c (pack) and hosted.c (unpack). The structure is followed by its arrays, each
 * with its number of bytes in front and padded to 8. Must not: depend on what the fields mean,
 * except which of them are pointers.
 */
#include "serve/core/wire.h"

#include "grammar/grammar.h"

#include <stddef.h>
#include <string.h>

#define NONE UINT64_MAX

/* ---------------------------------------------------------------- arrays of numbers */

#define ARRAY(member, count)                                                                       \
    {                                                                                              \
        offsetof(struct sv_request, member), offsetof(struct sv_request, count),                   \
            sizeof *((struct sv_request *)0)->member                                               \
    }
static const struct {
    size_t at, n_at, size;
} arrays[] = {
    ARRAY(prompt_ids, n_prompt_ids),
    ARRAY(stop_ids, n_stop_ids),
    ARRAY(shown_ids, n_shown_ids),
    ARRAY(bias_ids, n_bias),
    ARRAY(bias, n_bias),
    ARRAY(bad_ids, n_bad_ids),
    ARRAY(allowed_ids, n_allowed_ids),
    ARRAY(logprob_token_ids, n_logprob_token_ids),
};
enum { N_ARRAYS = sizeof arrays / sizeof arrays[0] };

/* ---------------------------------------------------------------- pack */

static void add(struct sv_buf *b, const void *data, size_t n)
{
    static const char zeros[8];
    const uint64_t size = data ? n : NONE;
    sv_buf_append(b, &size, sizeof size);
    if (data) {
        sv_buf_append(b, data, n);
        sv_buf_append(b, zeros, (8 - n % 8) % 8);
    }
}

/* The output of `pack`, as one array. */
#define ADD_PACKED(b, thing, pack)                                                                 \
    do {                                                                                           \
        struct sv_buf own = {0};                                                                   \
        if (thing)                                                                                 \
            pack(thing, &own);                                                                     \
        (b)->failed |= own.failed;                                                                 \
        add((b), own.data, own.len);                                                               \
        sv_buf_fini(&own);                                                                         \
    } while (0)

void sv_wire_pack(struct sv_buf *b, const struct sv_request *q)
{
    add(b, q, sizeof *q);
    for (size_t i = 0; i < N_ARRAYS; i++) {
        const void *p;
        int32_t n;
        memcpy(&p, (const char *)q + arrays[i].at, sizeof p);
        memcpy(&n, (const char *)q + arrays[i].n_at, sizeof n);
        add(b, p, (size_t)n * arrays[i].size);
    }
    for (int32_t i = 0; i < q->n_stop; i++)
        add(b, q->stop[i], strlen(q->stop[i]) + 1);
    for (int32_t i = 0; i < q->n_images; i++) {
        const struct sv_image *im = &q->images[i];
        add(b, im, sizeof *im);
        add(b, im->rgb, (size_t)im->width * (size_t)im->height * 3);
    }
    ADD_PACKED(b, q->grammar, sv_grammar_pack);
    ADD_PACKED(b, q->stop_search, sv_search_pack);
}

/* ---------------------------------------------------------------- unpack */

struct cursor {
    const char *p;
    size_t left;
    bool failed;
};

/* The next array; NULL: there is none, or the bytes end before its end. */
static const void *take(struct cursor *c, size_t *n_bytes)
{
    uint64_t n = NONE;
    *n_bytes = 0;
    if (c->failed || c->left < sizeof n) {
        c->failed = true;
        return NULL;
    }
    memcpy(&n, c->p, sizeof n);
    c->p += sizeof n;
    c->left -= sizeof n;
    if (n == NONE)
        return NULL;
    if (n > c->left || n + (8 - n % 8) % 8 > c->left) {
        c->failed = true;
        return NULL;
    }
    const void *data = c->p;
    *n_bytes = n;
    n += (8 - n % 8) % 8;
    c->p += n;
    c->left -= n;
    return data;
}

static void take_arrays(struct cursor *c, struct sv_request *q)
{
    size_t n_bytes;
    for (size_t i = 0; i < N_ARRAYS; i++) {
        int32_t n;
        const void *p = take(c, &n_bytes);
        memcpy(&n, (const char *)q + arrays[i].n_at, sizeof n);
        memcpy((char *)q + arrays[i].at, &p, sizeof p);
        c->failed |= n < 0 || (p && n_bytes != (size_t)n * arrays[i].size);
    }
}

static void take_lists(struct cursor *c, struct sv_request *q, struct sv_arena *arena)
{
    const char **stop = sv_arena_alloc(arena, (size_t)q->n_stop * sizeof *stop + 1);
    struct sv_image *image = sv_arena_alloc(arena, (size_t)q->n_images * sizeof *image + 1);
    size_t n;
    c->failed |= !stop || !image;
    for (int32_t i = 0; i < q->n_stop && !c->failed; i++)
        stop[i] = take(c, &n);
    for (int32_t i = 0; i < q->n_images && !c->failed; i++) {
        const void *head = take(c, &n);
        if (!head || n != sizeof *image) {
            c->failed = true;
            return;
        }
        memcpy(&image[i], head, sizeof *image);
        image[i].rgb = take(c, &n);
    }
    q->stop = stop;
    q->images = image;
}

/* Finds a grammar or builds it, replacing the oldest. */
static int find_grammar(struct sv_grammar **out, struct sv_wire_grammars *g, const char *data,
                        size_t n, struct sv_err *err)
{
    struct sv_wire_grammar *x = &g->list[0];
    for (int i = 0; i < SV_WIRE_GRAMMARS; i++) {
        struct sv_wire_grammar *y = &g->list[i];
        if (y->grammar && y->bytes.len == n && memcmp(y->bytes.data, data, n) == 0) {
            y->used = ++g->clock;
            *out = sv_grammar_ref(y->grammar);
            return SV_OK;
        }
        if (y->used < x->used)
            x = y;
    }
    sv_grammar_unref(x->grammar);
    x->grammar = NULL;
    sv_buf_clear(&x->bytes);
    int rc = sv_grammar_unpack(&x->grammar, data, n, err);
    if (rc)
        return rc;
    sv_buf_append(&x->bytes, data, n);
    if (x->bytes.failed)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    x->used = ++g->clock;
    *out = sv_grammar_ref(x->grammar);
    return SV_OK;
}

int sv_wire_unpack(struct sv_request *q, struct sv_arena *arena, struct sv_wire_grammars *g,
                   const char *data, size_t n, struct sv_err *err)
{
    struct cursor c = {data, n, false};
    int rc = SV_OK;
    size_t size;
    const void *head = take(&c, &size);
    *q = (struct sv_request){0};
    if (!head || size != sizeof *q)
        return sv_fail(err, SV_EMISMATCH, -1, "a request of %zu bytes, not %zu: another build?",
                       size, sizeof *q);
    memcpy(q, head, sizeof *q);
    q->prompt = q->grammar_text = NULL; /* a server has ids and grammars that are made */
    q->grammar = NULL;
    q->stop_search = NULL;
    take_arrays(&c, q);
    if (!c.failed)
        take_lists(&c, q, arena);
    const char *grammar = take(&c, &size);
    if (grammar && !c.failed)
        rc = find_grammar(&q->grammar, g, grammar, size, err);
    const char *search = take(&c, &size);
    if (search && !c.failed && !rc)
        rc = sv_search_unpack(&q->stop_search, search, size, err);
    if (!rc && c.failed)
        rc = sv_fail(err, SV_EMISMATCH, -1, "a request in %zu bytes", n);
    if (rc)
        sv_wire_done(q);
    return rc;
}

void sv_wire_done(struct sv_request *q)
{
    sv_grammar_unref(q->grammar);
    sv_search_unref(q->stop_search);
}

void sv_wire_forget(struct sv_wire_grammars *g)
{
    for (int i = 0; i < SV_WIRE_GRAMMARS; i++) {
        sv_grammar_unref(g->list[i].grammar);
        sv_buf_fini(&g->list[i].bytes);
    }
}
