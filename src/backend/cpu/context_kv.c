/*
 * context_kv.c - draft_context_kv: the drafter's keys and values for committed rows, all layers at
 * once.
 *
 * Entered through the backend table. The committed rows are listed first; both products and the
 * norm run on that compact list, then one pass writes all layers. A row's result is a function of
 * its taps and position only. Must not: touch a row that was not committed, in cost or in effect.
 */
#include "backend/cpu/vec.h"

struct context_job {
    struct sv_cpu *cpu;
    const struct sv_p_draft_context_kv *p;
    const int32_t *rows; /* batch row of each compact row */
    int32_t n;
};

static int32_t list_rows(const struct sv_p_draft_context_kv *p, int32_t *rows)
{
    int32_t n = 0;
    for (int32_t s = 0; s < p->rows.n_segs && p->rows.seg_slot[s] >= 0; s++) {
        int32_t row0 = p->rows.seg_row0[s], len = p->rows.seg_row0[s + 1] - row0;
        int32_t keep = p->n_commit[s] < len ? p->n_commit[s] : len;
        for (int32_t j = 0; j < keep; j++)
            rows[n++] = row0 + j;
    }
    return n;
}

/* Every layer's K (normalised, rotated) and V of compact rows. */
static void write_rows(void *arg, int thread, int n)
{
    const struct context_job *job = arg;
    const struct sv_p_draft_context_kv *p = job->p;
    const struct sv_cpu_vec *vec = job->cpu->vec;
    const int32_t hd = p->kv[0].head_dim, n_kv = p->kv[0].n_kv_heads, half = p->rope.rot_dim / 2;
    const size_t row_bytes = sv_kv_row_bytes(p->kv[0].dtype, hd, 0);
    const int64_t width = (int64_t)n_kv * hd;
    int32_t begin, end;
    sv_cpu_share(job->n, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++) {
        int32_t r = job->rows[i], slot = p->rows.seg_slot[p->rows.row_seg[r]];
        int32_t pos = p->rows.row_pos[r];
        int64_t angle = (int64_t)sv_cpu_rope_row(job->cpu, &p->rope, pos) * half;
        const float *y = (const float *)p->y + (int64_t)i * p->n_layers * 2 * width;
        for (int32_t l = 0; l < p->n_layers; l++, y += 2 * width) {
            const struct sv_kv *kv = &p->kv[l];
            int64_t at = sv_cpu_kv_offset(kv, slot, pos);
            if (at < 0) {
                sv_cpu_latch(job->cpu, "draft context: slot %d has no page for position %d",
                             (int)slot, (int)pos);
                break;
            }
            for (int32_t h = 0; h < n_kv; h++) {
                float key[256];
                vec->norm_rope(key, y + (int64_t)h * hd, &p->k_norm[l], p->eps, p->rope.cos + angle,
                               p->rope.sin + angle, hd, p->rope.rot_dim);
                sv_cpu_kv_put(job->cpu, kv, at + (int64_t)h * kv->page_size * (int64_t)row_bytes,
                              key, y + width + (int64_t)h * hd);
            }
        }
    }
}

/* z of the compact rows, of all ranks. */
static void sum_parts(const struct context_job *job)
{
    const struct sv_p_draft_context_kv *p = job->p;
    const int32_t d = p->fc.rows;
    sv_cpu_join_rows(job->cpu, p->join, p->z, NULL, NULL, job->n, d);
    for (int32_t i = 0; i < job->n; i++)
        sv_cpu_join_sum(job->cpu, p->join, i, d, (float *)p->z + (int64_t)i * d);
}

void sv_cpu_draft_context_kv(struct sv_dev *dev, const struct sv_p_draft_context_kv *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    SV_REQUIRE(cpu->scratch && p->rows.n_rows <= cpu->lim.max_rows);
    int32_t *rows = sv_cpu_row_list(cpu);
    struct context_job job = {cpu, p, rows, list_rows(p, rows)};
    if (job.n == 0 && !p->join)
        return;
    const struct sv_gemm_part fc = {.w = p->fc, .bias = p->fc_bias};
    const struct sv_p_gemm in = {
        .n_rows = job.n,
        .k = p->fc.cols,
        .n_parts = 1,
        .x = (const float *)p->taps + p->first_tap,
        .ldx = p->n_taps ? p->n_taps : p->fc.cols,
        .parts = &fc,
        .y = p->z,
        .ldy = p->fc.rows,
    };
    sv_cpu_gemm_gather(cpu, &in, rows);
    if (p->join)
        sum_parts(&job);
    const struct sv_p_add_rms_norm norm = {
        .n_rows = job.n,
        .d = p->fc.rows,
        .x = p->z,
        .weight = p->hidden_norm,
        .eps = p->eps,
        .out = p->z,
    };
    sv_cpu_add_rms_norm(dev, &norm);
    const int32_t width = p->n_layers * 2 * p->kv[0].n_kv_heads * p->kv[0].head_dim;
    const struct sv_p_gemm out = {
        .n_rows = job.n,
        .k = p->fc.rows,
        .n_parts = 2 * p->n_layers,
        .x = p->z,
        .ldx = p->fc.rows,
        .parts = p->kv_parts,
        .y = p->y,
        .ldy = width,
    };
    sv_cpu_gemm(dev, &out);
    sv_cpu_run(cpu, write_rows, &job, (int64_t)job.n * (30 + width / 4));
}
