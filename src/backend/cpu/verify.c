/*
 * verify.c - verify, commit and snapshot: which drafted tokens the target accepts, and the slots'
 * state.
 *
 * Entered through the backend table; a few integers per segment, on the calling thread, except the
 * bytes of a snapshot. Must not: read logits or any sample other than `chosen`.
 */
#include "backend/cpu/vec.h"

#include <string.h>

/* Rows kept and tokens emitted by segment s; tokens go to out. */
static void verify_segment(const struct sv_p_verify *p, int32_t s, int32_t *n_commit,
                           int32_t *n_emit, int32_t *out)
{
    const int32_t row0 = p->rows.seg_row0[s], n_rows = p->rows.seg_row0[s + 1] - row0;
    const int32_t l0 = p->seg_logit0[s], n_logits = p->seg_logit0[s + 1] - l0;
    *n_emit = 0;
    *n_commit = p->seg_kind[s] == SV_SEG_PREFILL ? n_rows : 0;
    if (p->seg_kind[s] == SV_SEG_DRAFT || n_logits == 0 || n_rows == 0)
        return;
    if (p->seg_kind[s] == SV_SEG_PREFILL) {
        out[0] = p->chosen[l0 + n_logits - 1];
        *n_emit = 1;
        return;
    }
    const int32_t most = (n_logits < n_rows ? n_logits : n_rows) - 1;
    int32_t a = 0;
    while (a < most && p->row_ids[row0 + a + 1] == p->chosen[l0 + a])
        a++;
    for (int32_t i = 0; i <= a; i++)
        out[i] = p->chosen[l0 + i];
    *n_commit = *n_emit = a + 1;
}

void sv_cpu_verify(struct sv_dev *dev, const struct sv_p_verify *p)
{
    (void)dev;
    for (int32_t s = 0; s < p->rows.n_segs && p->rows.seg_slot[s] >= 0; s++) {
        if (p->seg_kind[s] == SV_SEG_VERIFY)
            SV_REQUIRE(p->out_stride >= p->rows.seg_row0[s + 1] - p->rows.seg_row0[s]);
        verify_segment(p, s, &p->n_commit[s], &p->n_emit[s],
                       p->out_tokens + (int64_t)s * p->out_stride);
    }
}

void sv_cpu_commit(struct sv_dev *dev, const struct sv_p_commit *p)
{
    (void)dev;
    for (int32_t s = 0; s < p->n_segs; s++) {
        int32_t slot = p->seg_slot[s];
        if (slot < 0)
            break; /* padding */
        p->slot_len[slot] += p->n_commit[s];
        if (p->n_emit[s] > 0)
            p->slot_anchor[slot] = p->out_tokens[(int64_t)s * p->out_stride + p->n_emit[s] - 1];
    }
}

enum { PIECE = 65536 };

static void copy_pieces(void *arg, int thread, int n)
{
    const struct sv_p_snapshot *p = arg;
    int32_t begin, end;
    sv_cpu_share((int32_t)((p->n_bytes + PIECE - 1) / PIECE), thread, n, &begin, &end);
    const size_t from = (size_t)begin * PIECE, to = (size_t)end * PIECE;
    if (begin < end)
        memcpy((char *)p->dst + from, (const char *)p->src + from,
               (to < p->n_bytes ? to : p->n_bytes) - from);
}

void sv_cpu_snapshot(struct sv_dev *dev, const struct sv_p_snapshot *p)
{
    struct sv_p_snapshot copy = *p;
    if (*p->slot_len - *p->n_commit < p->at && p->at <= *p->slot_len)
        sv_cpu_run(sv_cpu_of(dev), copy_pieces, &copy, (int64_t)(p->n_bytes / 8));
}
