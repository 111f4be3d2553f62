/*
 * mla.c - latent attention beside attention.c: the latent of a position, and the products of each
 * head with its own matrix.
 *
 * Entered through the backend table. The write is split over rows. The products are those of
 * gemm_*.c, whose rule (gemm.h) makes a row's bits independent of the others; an op is one parallel
 * region, the units of all heads end to end and cut into one contiguous range per thread, each of
 * which packs the rows of a head for itself. Must not: allocate, or write outside the pages the
 * table names.
 */
#include "backend/cpu/gemm.h"
#include "backend/cpu/vec.h"

#include "backend/ops_mla.h"

#include <string.h>

/* ---------------------------------------------------------------- what is kept */

struct write_job {
    struct sv_cpu *cpu;
    const struct sv_p_mla_write *p;
};

/* Neighbours are first moved half a vector apart, in queries and keys alike, which does not change
 * their products. */
static void rotate(const struct write_job *job, float *out, const float *x, int64_t angle)
{
    static const struct sv_weight none = {0};
    const struct sv_rope_table *t = &job->p->rope;
    const int32_t n = t->rot_dim, half = n / 2;
    for (int32_t i = 0; i < half && job->p->interleaved; i++) {
        out[i] = x[2 * i];
        out[half + i] = x[2 * i + 1];
    }
    job->cpu->vec->norm_rope(out, job->p->interleaved ? out : x, &none, 0, t->cos + angle,
                             t->sin + angle, n, n);
}

static void write_rows(void *arg, int thread, int n)
{
    const struct write_job *job = arg;
    const struct sv_p_mla_write *p = job->p;
    const struct sv_cpu_vec *vec = job->cpu->vec;
    const int32_t width = p->cache.head_dim, rot = p->rope.rot_dim, latent = width - rot;
    int32_t begin, end;
    sv_cpu_share(p->rows.n_rows, thread, n, &begin, &end);
    for (int32_t r = begin; r < end; r++) {
        const int32_t seg = p->rows.row_seg[r];
        if (seg < 0)
            break; /* padding */
        const int32_t slot = p->rows.seg_slot[seg], pos = p->rows.row_pos[r];
        const int64_t angle = (int64_t)sv_cpu_rope_row(job->cpu, &p->rope, pos) * (rot / 2);
        const float *q = (const float *)p->q + (int64_t)r * p->n_heads * p->head_dim;
        float *absorbed = (float *)p->absorbed + (int64_t)r * p->n_heads * width;
        for (int32_t h = 0; h < p->n_heads; h++)
            rotate(job, absorbed + (int64_t)h * width + latent,
                   q + (int64_t)(h + 1) * p->head_dim - rot, angle);
        const float *kv = (const float *)p->kv + (int64_t)r * width;
        const int64_t at = sv_cpu_kv_offset(&p->cache, slot, pos);
        float kept[SV_MAX_LATENT];
        if (at < 0) {
            sv_cpu_latch(job->cpu, "write: slot %d has no page for position %d", (int)slot,
                         (int)pos);
            continue;
        }
        vec->add_rms_norm(&(struct sv_cpu_norm_row){
            .x = (float *)(uintptr_t)kv, .w = &p->norm, .d = latent, .eps = p->eps, .out = kept});
        rotate(job, kept + latent, kv + latent, angle);
        sv_cpu_latent_put(job->cpu, &p->cache, at, kept);
    }
}

static void mla_write(struct sv_dev *dev, const struct sv_p_mla_write *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct write_job job = {cpu, p};
    const int64_t numbers = (int64_t)p->n_heads * p->rope.rot_dim + p->cache.head_dim;
    sv_cpu_run(cpu, write_rows, &job, p->rows.n_rows * (30 + numbers / 2));
}

/* ---------------------------------------------------------------- products by head */

struct product_job {
    struct sv_cpu *cpu;
    const struct sv_p_head_products *p;
};

/* Units [u0, u1) of one head, for all rows. */
static void run_head(const struct product_job *job, struct sv_gemm_call *c,
                     struct sv_gemm_thread *t, int32_t h, int32_t u0, int32_t u1)
{
    const struct sv_p_head_products *p = job->p;
    c->packer = NULL;
    sv_gemm_set_item(c, 0, &(struct sv_gemm_part){.w = p->w.w[h]}, 0, 0);
    for (int32_t m = 0; m < p->n_rows; m += c->m1) {
        c->m1 = p->n_rows - m < SV_MOE_ROWS ? p->n_rows - m : SV_MOE_ROWS;
        c->x = (const float *)p->x + m * p->ldx + (int64_t)h * p->x_stride;
        c->y = (float *)p->y + m * p->ldy + (int64_t)h * p->y_stride;
        if (c->packer)
            c->packer->pack(c, t->expert_x, 0, 1);
        sv_gemm_run_units(c, t, t->expert_x, u0, u1);
    }
}

static void head_units(void *arg, int thread, int n_threads)
{
    const struct product_job *job = arg;
    const struct sv_p_head_products *p = job->p;
    const int32_t units = (p->w.rows + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT;
    const int64_t all = (int64_t)p->w.n * units;
    const int64_t begin = all * thread / n_threads, end = all * (thread + 1) / n_threads;
    struct sv_gemm_thread *t = sv_gemm_thread(job->cpu, thread);
    struct sv_gemm_call *c = t->call;
    *c = (struct sv_gemm_call){.cpu = job->cpu,
                               .ldx = p->ldx,
                               .ldy = p->ldy,
                               .k = p->w.cols,
                               .n_parts = 1,
                               .n_units = units};
    for (int32_t h = (int32_t)(begin / units); (int64_t)h * units < end; h++) {
        const int64_t first = (int64_t)h * units;
        run_head(job, c, t, h, (int32_t)(begin > first ? begin - first : 0),
                 (int32_t)(end - first < units ? end - first : units));
    }
}

static void head_products(struct sv_dev *dev, const struct sv_p_head_products *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct product_job job = {cpu, p};
    sv_cpu_run(cpu, head_units, &job,
               (int64_t)p->n_rows * p->w.n * (30 + (int64_t)p->w.rows * p->w.cols / 32));
}

const struct sv_mla_ops sv_cpu_mla = {.write = mla_write, .head_products = head_products};
