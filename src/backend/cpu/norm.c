/*
 * norm.c - add_rms_norm over the rows of a batch, after a join where ranks share the model.
 *
 * Entered through the backend table. Must not: let the number of rows or threads affect the sums,
 * which are the row kernel's.
 */
#include "backend/cpu/vec.h"

struct norm_job {
    struct sv_cpu *cpu;
    const struct sv_p_add_rms_norm *p;
};

/* Index of a batch's row i in out, which begins with the rank's own rows. */
static int32_t place_of(const struct sv_slice *own, int32_t i)
{
    const int32_t at = i - own->first;
    return at < 0 ? i + own->n : at < own->n ? at : i;
}

static void norm_rows(void *arg, int thread, int n)
{
    const struct norm_job *job = arg;
    const struct sv_p_add_rms_norm *p = job->p;
    const struct sv_cpu_vec *vec = job->cpu->vec;
    const struct sv_slice *own = p->join == SV_JOIN_MIXER ? NULL : p->own_rows;
    float *sum = p->join ? sv_cpu_thread_scratch(job->cpu, thread) : NULL;
    int32_t begin, end;
    sv_cpu_share(p->n_rows, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++) {
        int64_t row = !p->row_index ? i : p->row_index[i] < 0 ? 0 : p->row_index[i];
        const float *delta = p->delta ? (const float *)p->delta + row * p->d : NULL;
        if (sum)
            sv_cpu_join_sum(job->cpu, p->join, i, p->d, sum);
        struct sv_cpu_norm_row r = {
            .x = (float *)p->x + row * p->d,
            .delta = sum ? sum : delta,
            .w = &p->weight,
            .d = p->d,
            .eps = p->eps,
            .write_x = p->delta && !p->row_index,
            .out = (float *)p->out + (int64_t)(own ? place_of(own, i) : i) * p->d,
            .tap = p->tap && !p->tap_row ? (float *)p->tap + row * p->tap_stride : NULL};
        vec->add_rms_norm(&r);
        if (p->tap_row && p->tap_row[row] >= 0)
            vec->stream((float *)p->tap + p->tap_row[row] * p->tap_stride, r.x, p->d);
    }
    if (p->tap_row)
        vec->fence();
}

void sv_cpu_add_rms_norm(struct sv_dev *dev, const struct sv_p_add_rms_norm *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct norm_job job = {cpu, p};
    if (p->join)
        sv_cpu_join_rows(cpu, p->join, p->delta, p->row_index,
                         p->join == SV_JOIN_MIXER ? p->own_rows : NULL, p->n_rows, p->d);
    sv_cpu_run(cpu, norm_rows, &job, (int64_t)p->n_rows * (20 + p->d / 6));
}
