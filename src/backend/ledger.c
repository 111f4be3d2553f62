/*
 * ledger.c - what this process has taken of a device's memory, piece by piece and summed by kind.
 *
 * Kept by backends whose memory is their own: entered and struck out where they call their
 * library's allocator, in one place each, so that the sums are exact whatever other processes do.
 * Must not: be touched in the step, or by more than one thread.
 */
#include "backend/backends.h"

int sv_ledger_room(struct sv_ledger *l, struct sv_err *err)
{
    if (l->n < l->room)
        return SV_OK;
    const int32_t room = l->room ? 2 * l->room : 64;
    struct sv_ledger_piece *more =
        sv_realloc(l->piece, (size_t)l->room * sizeof *more, (size_t)room * sizeof *more);
    if (!more)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for the list of %d allocations", room);
    l->piece = more;
    l->room = room;
    return SV_OK;
}

void sv_ledger_enter(struct sv_ledger *l, enum sv_mem kind, const void *p, size_t n_bytes)
{
    SV_REQUIRE(l->n < l->room);
    l->piece[l->n++] = (struct sv_ledger_piece){.p = p, .kind = kind, .n_bytes = (int64_t)n_bytes};
    l->bytes[kind] += (int64_t)n_bytes;
}

void sv_ledger_strike(struct sv_ledger *l, const void *p)
{
    int32_t i = l->n - 1;
    while (i >= 0 && l->piece[i].p != p) /* what came last goes first, mostly */
        i--;
    SV_REQUIRE(i >= 0);
    l->bytes[l->piece[i].kind] -= l->piece[i].n_bytes;
    l->piece[i] = l->piece[--l->n];
}

void sv_ledger_fini(struct sv_ledger *l)
{
    sv_free(l->piece);
    *l = (struct sv_ledger){0};
}
