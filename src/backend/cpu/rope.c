/*
 * rope.c - qk_norm_rope_kv_write: head norms, rotation and the write of new keys and values, in one
 * pass.
 *
 * Entered through the backend table. Work is split over rows; every row writes its own position of
 * its own slot, so no two threads write the same bytes. Must not: write outside the pages the table
 * names.
 */
#include "backend/cpu/vec.h"

struct rope_job {
    struct sv_cpu *cpu;
    const struct sv_p_qk_norm_rope_kv_write *p;
};

int32_t sv_cpu_rope_row(struct sv_cpu *cpu, const struct sv_rope_table *t, int32_t pos)
{
    if (pos >= 0 && pos < t->max_pos)
        return pos;
    sv_cpu_latch(cpu, "position %d is outside the rotary table of %d", (int)pos, (int)t->max_pos);
    return pos < 0 ? 0 : t->max_pos - 1;
}

/* The most pairs of a head: keys go through a buffer of 256 numbers below. */
enum { MAX_HALF = 128 };

/* Cosines and sines of a row: of one position, or of three, combined in the caller's memory. */
static void row_angles(struct sv_cpu *cpu, const struct sv_p_qk_norm_rope_kv_write *p, int32_t r,
                       float made[2][MAX_HALF], const float **cos, const float **sin)
{
    const struct sv_rope_table *t = &p->rope;
    const int32_t half = t->rot_dim / 2;
    const int32_t *three = t->axis && p->rows.row_rope ? p->rows.row_rope + 3 * (int64_t)r : NULL;
    const bool alike = !three || (three[0] == three[1] && three[0] == three[2]);
    int64_t at[3];
    for (int k = 0; k < (alike ? 1 : 3); k++)
        at[k] = (int64_t)sv_cpu_rope_row(cpu, t, three ? three[k] : p->rows.row_pos[r]) * half;
    *cos = alike ? t->cos + at[0] : made[0];
    *sin = alike ? t->sin + at[0] : made[1];
    for (int32_t j = 0; j < half && !alike; j++) {
        made[0][j] = t->cos[at[t->axis[j]] + j];
        made[1][j] = t->sin[at[t->axis[j]] + j];
    }
}

static void rope_rows(void *arg, int thread, int n)
{
    const struct rope_job *job = arg;
    const struct sv_p_qk_norm_rope_kv_write *p = job->p;
    const struct sv_cpu_vec *vec = job->cpu->vec;
    const struct sv_kv *kv = &p->kv;
    const int32_t hd = kv->head_dim;
    const int32_t stride = p->q_stride ? p->q_stride : hd;
    const size_t row_bytes = sv_kv_row_bytes(kv->dtype, hd, 0);
    int32_t begin, end;
    sv_cpu_share(p->rows.n_rows, thread, n, &begin, &end);
    for (int32_t r = begin; r < end; r++) {
        int32_t seg = p->rows.row_seg[r];
        if (seg < 0)
            break; /* padding */
        int32_t slot = p->rows.seg_slot[seg], pos = p->rows.row_pos[r];
        float made[2][MAX_HALF];
        const float *cos, *sin;
        row_angles(job->cpu, p, r, made, &cos, &sin);
        float *q = (float *)p->qkv + r * p->ld;
        const float *k = q + (int64_t)p->n_heads * stride, *v = k + (int64_t)kv->n_kv_heads * hd;
        for (int32_t h = 0; h < p->n_heads; h++)
            vec->norm_rope(q + (int64_t)h * stride, q + (int64_t)h * stride, &p->q_norm, p->eps,
                           cos, sin, hd, p->rope.rot_dim);
        int64_t at = sv_cpu_kv_offset(kv, slot, pos);
        if (at < 0) {
            sv_cpu_latch(job->cpu, "write: slot %d has no page for position %d", (int)slot,
                         (int)pos);
            continue;
        }
        for (int32_t h = 0; h < kv->n_kv_heads; h++) {
            float key[256];
            vec->norm_rope(key, k + (int64_t)h * hd, &p->k_norm, p->eps, cos, sin, hd,
                           p->rope.rot_dim);
            sv_cpu_kv_put(job->cpu, kv, at + (int64_t)h * kv->page_size * (int64_t)row_bytes, key,
                          v + (int64_t)h * hd);
        }
    }
}

void sv_cpu_qk_norm_rope_kv_write(struct sv_dev *dev, const struct sv_p_qk_norm_rope_kv_write *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct rope_job job = {cpu, p};
    int64_t elems = (int64_t)(p->n_heads + 2 * p->kv.n_kv_heads) * p->kv.head_dim;
    sv_cpu_run(cpu, rope_rows, &job, p->rows.n_rows * (30 + elems / 4));
}
