/*
 * arena.c - bump allocation for everything that is freed together (a model, an engine, a step).
 *
 * Called by the owners of those lifetimes. Blocks are cleared when allocated and never reused, so
 * arena memory starts as zeros. Must not: free single objects, or be shared by threads.
 */
#include "base/base.h"

#include <string.h>

#define FIRST_BLOCK_BYTES (16u << 10)
#define LARGEST_STEP_BYTES (1u << 20) /* growth doubles up to here */

struct sv_arena_block {
    struct sv_arena_block *next;
    size_t used, cap; /* of data */
    _Alignas(SV_ALIGN) uint8_t data[];
};

void sv_arena_init(struct sv_arena *a)
{
    a->blocks = NULL;
    a->n_bytes = 0;
}

void sv_arena_fini(struct sv_arena *a)
{
    while (a->blocks) {
        struct sv_arena_block *b = a->blocks;
        a->blocks = b->next;
        sv_free(b);
    }
    a->n_bytes = 0;
}

/* Adds a block with room for n_bytes in front; free space of older blocks is not used any more. */
static struct sv_arena_block *add_block(struct sv_arena *a, size_t n_bytes)
{
    size_t cap = FIRST_BLOCK_BYTES;
    struct sv_arena_block *b;

    if (a->blocks && a->blocks->cap >= FIRST_BLOCK_BYTES)
        cap = a->blocks->cap < LARGEST_STEP_BYTES ? 2 * a->blocks->cap : LARGEST_STEP_BYTES;
    if (cap < n_bytes)
        cap = n_bytes;
    if (cap > SIZE_MAX - sizeof *b)
        return NULL;
    b = sv_calloc(1, sizeof *b + cap);
    if (!b)
        return NULL;
    b->next = a->blocks;
    b->cap = cap;
    a->blocks = b;
    return b;
}

void *sv_arena_alloc(struct sv_arena *a, size_t n_bytes)
{
    struct sv_arena_block *b = a->blocks;
    size_t step;
    void *p;

    if (n_bytes > PTRDIFF_MAX - SV_ALIGN)
        return NULL;
    step = n_bytes ? (n_bytes + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN : SV_ALIGN;
    if (!b || b->cap - b->used < step) {
        b = add_block(a, step);
        if (!b)
            return NULL;
    }
    p = b->data + b->used;
    b->used += step;
    a->n_bytes += step;
    return p;
}

char *sv_arena_strdup(struct sv_arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = sv_arena_alloc(a, n);
    if (copy)
        memcpy(copy, s, n);
    return copy;
}
