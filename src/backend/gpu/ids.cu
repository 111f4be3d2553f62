/*
 * ids.cu - the ops on a few integers per segment: block_ids, logit_pos, verify, commit, snapshot,
 * whose copy depends on them, and replace_drafts, for simulated acceptance.
 *
 * Called through the table in device.cu. One thread per segment or row, no sums. Must not: write
 * for padding, or past a segment's room in the table of tokens.
 */
#include "backend/cuda/cuda.h"

enum { THREADS = 128 };

static unsigned blocks(int32_t n)
{
    return (unsigned)((n + THREADS - 1) / THREADS);
}

/* ---------------------------------------------------------------- block_ids */

static __global__ void block_ids_kernel(struct sv_p_block_ids p)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.rows.n_segs && p.rows.seg_slot[i] >= 0)
        ((int32_t *)p.rows.seg_base)[i] = p.slot_len[p.rows.seg_slot[i]];
    if (i >= p.rows.n_rows)
        return;
    const int32_t seg = p.rows.row_seg[i], slot = seg < 0 ? -1 : p.rows.seg_slot[seg],
                  row0 = seg < 0 ? 0 : p.rows.seg_row0[seg];
    const int32_t pos = slot < 0 ? -1 : p.slot_len[slot] + (i - row0);
    ((int32_t *)p.rows.row_pos)[i] = pos;
    for (int k = 0; k < 3 && p.rows.row_rope && slot >= 0; k++)
        ((int32_t *)p.rows.row_rope)[3 * i + k] = pos + p.row_shift[3 * i + k];
    if (slot < 0 || !p.row_ids || p.seg_kind[seg] == SV_SEG_PREFILL)
        return;
    if (i == row0)
        p.row_ids[i] = p.slot_anchor[slot];
    else if (p.seg_kind[seg] == SV_SEG_DRAFT)
        p.row_ids[i] = p.mask_id;
}

void sv_cuda_block_ids(struct sv_dev *dev, const struct sv_p_block_ids *p)
{
    int32_t n = p->rows.n_rows > p->rows.n_segs ? p->rows.n_rows : p->rows.n_segs;
    sv_cuda_launch(sv_cuda_of(dev), "block_ids", block_ids_kernel, blocks(n), THREADS, 0, *p);
}

/* ---------------------------------------------------------------- logit_pos */

static __global__ void logit_pos_kernel(struct sv_p_logit_pos p)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.n_logit_rows)
        return;
    const int32_t row = p.logit_row[i];
    if (row < 0) {
        p.row_slot[i] = -1;
        return;
    }
    p.row_slot[i] = p.rows.seg_slot[p.rows.row_seg[row]];
    p.row_pos[i] = p.rows.row_pos[row] + 1;
}

void sv_cuda_logit_pos(struct sv_dev *dev, const struct sv_p_logit_pos *p)
{
    sv_cuda_launch(sv_cuda_of(dev), "logit_pos", logit_pos_kernel, blocks(p->n_logit_rows), THREADS,
                   0, *p);
}

/* ---------------------------------------------------------------- simulated acceptance */

static __global__ void replace_drafts_kernel(struct sv_p_replace_drafts p)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const int32_t s = i < p.rows.n_rows ? p.rows.row_seg[i] : -1;
    if (s < 0 || p.rows.seg_slot[s] < 0 || p.seg_kind[s] != SV_SEG_VERIFY)
        return;
    const int32_t j = i - p.rows.seg_row0[s], len = p.accept_len[s];
    if (j > 0 && len > 0)
        p.row_ids[i] = j < len ? p.chosen[p.seg_logit0[s] + j - 1] : -1;
}

void sv_cuda_replace_drafts(struct sv_dev *dev, const struct sv_p_replace_drafts *p)
{
    sv_cuda_launch(sv_cuda_of(dev), "replace_drafts", replace_drafts_kernel, blocks(p->rows.n_rows),
                   THREADS, 0, *p);
}

/* ---------------------------------------------------------------- verify and commit */

/* As verify_segment of cpu/verify.c. */
static __global__ void verify_kernel(struct sv_p_verify p, struct sv_cuda_fault *fault)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= p.rows.n_segs || p.rows.seg_slot[s] < 0)
        return;
    const int32_t row0 = p.rows.seg_row0[s], n_rows = p.rows.seg_row0[s + 1] - row0;
    const int32_t l0 = p.seg_logit0[s], n_logits = p.seg_logit0[s + 1] - l0;
    const int32_t kind = p.seg_kind[s];
    int32_t *out = p.out_tokens + (int64_t)s * p.out_stride;
    int32_t n_emit = 0, n_commit = kind == SV_SEG_PREFILL ? n_rows : 0;
    if (kind == SV_SEG_VERIFY && n_rows > p.out_stride) {
        sv_fault_set(fault, SV_CUDA_FAULT_VERIFY_WIDTH, n_rows, p.out_stride, 0);
    } else if (kind == SV_SEG_DRAFT || n_logits == 0 || n_rows == 0) {
    } else if (kind == SV_SEG_PREFILL) {
        out[0] = p.chosen[l0 + n_logits - 1];
        n_emit = 1;
    } else {
        const int32_t most = min(n_logits, n_rows) - 1;
        int32_t a = 0;
        for (;; a++) {
            const int32_t t = p.chosen[l0 + a];
            out[a] = t;
            if (a >= most || p.row_ids[row0 + a + 1] != t)
                break;
        }
        n_commit = n_emit = a + 1;
    }
    p.n_commit[s] = n_commit;
    p.n_emit[s] = n_emit;
}

void sv_cuda_verify(struct sv_dev *dev, const struct sv_p_verify *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    sv_cuda_launch(cu, "verify", verify_kernel, blocks(p->rows.n_segs), THREADS, 0, *p, cu->fault);
}

static __global__ void commit_kernel(struct sv_p_commit p)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= p.n_segs || p.seg_slot[s] < 0)
        return;
    const int32_t slot = p.seg_slot[s];
    p.slot_len[slot] += p.n_commit[s];
    if (p.n_emit[s] > 0)
        p.slot_anchor[slot] = p.out_tokens[(int64_t)s * p.out_stride + p.n_emit[s] - 1];
}

void sv_cuda_commit(struct sv_dev *dev, const struct sv_p_commit *p)
{
    sv_cuda_launch(sv_cuda_of(dev), "commit", commit_kernel, blocks(p->n_segs), THREADS, 0, *p);
}

static __global__ void snapshot_kernel(struct sv_p_snapshot p)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t len = *p.slot_len;
    if (len - *p.n_commit >= p.at || p.at > len)
        return;
    const int64_t step = (int64_t)gridDim.x * blockDim.x, n = (int64_t)(p.n_bytes / sizeof(uint4));
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += step)
        ((uint4 *)p.dst)[i] = ((const uint4 *)p.src)[i];
}

void sv_cuda_snapshot(struct sv_dev *dev, const struct sv_p_snapshot *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    sv_cuda_launch(cu, "snapshot", snapshot_kernel, dim3((unsigned)cu->n_sms * 8), THREADS, 0, *p);
}
