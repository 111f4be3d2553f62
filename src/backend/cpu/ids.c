/*
 * ids.c - the ops that turn the device's slot state into ids and positions of a batch, and
 * embeddings: block_ids, logit_pos, embed; and replace_drafts, for simulated acceptance.
 *
 * Entered through the backend table. Must not: trust an id to be inside the embedding table.
 */
#include "backend/cpu/vec.h"

void sv_cpu_block_ids(struct sv_dev *dev, const struct sv_p_block_ids *p)
{
    (void)dev;
    /* Only this op writes these three params. */
    int32_t *seg_base = (int32_t *)(uintptr_t)p->rows.seg_base;
    int32_t *row_pos = (int32_t *)(uintptr_t)p->rows.row_pos;
    int32_t *row_rope = (int32_t *)(uintptr_t)p->rows.row_rope;
    for (int32_t r = 0; r < p->rows.n_rows; r++) {
        int32_t s = p->rows.row_seg[r];
        row_pos[r] = s < 0 ? -1 : p->slot_len[p->rows.seg_slot[s]] + (r - p->rows.seg_row0[s]);
        for (int k = 0; k < 3 && row_rope && s >= 0; k++)
            row_rope[3 * r + k] = row_pos[r] + p->row_shift[3 * r + k];
    }
    for (int32_t s = 0; s < p->rows.n_segs; s++) {
        int32_t slot = p->rows.seg_slot[s];
        if (slot < 0)
            break; /* padding */
        int32_t row = p->rows.seg_row0[s], end = p->rows.seg_row0[s + 1];
        seg_base[s] = p->slot_len[slot];
        if (!p->row_ids || p->seg_kind[s] == SV_SEG_PREFILL || row == end)
            continue;
        p->row_ids[row] = p->slot_anchor[slot];
        if (p->seg_kind[s] == SV_SEG_DRAFT)
            for (row++; row < end; row++)
                p->row_ids[row] = p->mask_id;
    }
}

void sv_cpu_logit_pos(struct sv_dev *dev, const struct sv_p_logit_pos *p)
{
    (void)dev;
    for (int32_t i = 0; i < p->n_logit_rows; i++) {
        int32_t row = p->logit_row[i];
        if (row < 0) {
            p->row_slot[i] = -1;
            continue;
        }
        p->row_slot[i] = p->rows.seg_slot[p->rows.row_seg[row]];
        p->row_pos[i] = p->rows.row_pos[row] + 1;
    }
}

void sv_cpu_replace_drafts(struct sv_dev *dev, const struct sv_p_replace_drafts *p)
{
    (void)dev;
    for (int32_t s = 0; s < p->rows.n_segs && p->rows.seg_slot[s] >= 0; s++) {
        const int32_t row0 = p->rows.seg_row0[s], n = p->rows.seg_row0[s + 1] - row0;
        const int32_t *chosen = p->chosen + p->seg_logit0[s], len = p->accept_len[s];
        if (p->seg_kind[s] != SV_SEG_VERIFY || len <= 0)
            continue;
        for (int32_t j = 1; j < n; j++)
            p->row_ids[row0 + j] = j < len ? chosen[j - 1] : -1;
    }
}

struct embed_job {
    struct sv_cpu *cpu;
    const struct sv_p_embed *p;
};

static void embed_rows(void *arg, int thread, int n)
{
    const struct embed_job *job = arg;
    const struct sv_p_embed *p = job->p;
    const int32_t d = p->table.cols;
    int32_t begin, end;
    sv_cpu_share(p->n_rows, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++) {
        int32_t id = p->ids[i];
        id = id < 0 ? 0 : id >= p->table.rows ? p->table.rows - 1 : id;
        sv_cpu_weight_row(job->cpu, &p->table, id, (float *)p->out + (int64_t)i * d, p->scale);
    }
}

void sv_cpu_embed(struct sv_dev *dev, const struct sv_p_embed *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct embed_job job = {cpu, p};
    sv_cpu_run(cpu, embed_rows, &job, (int64_t)p->n_rows * (50 + p->table.cols / 8));
}
