/*
 * act.c - act_mul, the gated activation of the MLP, alone and after its product; sigmoid_mul, that
 * of gated attention.
 *
 * Entered through the backend table. Must not: use another e^x than the row kernels' own.
 */
#include "backend/cpu/vec.h"

struct act_job {
    const struct sv_cpu_vec *vec;
    const struct sv_p_act_mul *p;
};

static void act_rows(void *arg, int thread, int n)
{
    const struct act_job *job = arg;
    const struct sv_p_act_mul *p = job->p;
    int32_t begin, end;
    sv_cpu_share(p->n_rows, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++) {
        const float *gate = (const float *)p->gate_up + (int64_t)i * 2 * p->d;
        job->vec->act_mul((float *)p->out + (int64_t)i * p->d, gate, gate + p->d, p->d);
    }
}

void sv_cpu_act_mul(struct sv_dev *dev, const struct sv_p_act_mul *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct act_job job = {cpu->vec, p};
    sv_cpu_run(cpu, act_rows, &job, (int64_t)p->n_rows * (p->d / 3));
}

/* Two ops: the activation reads the product's rows from the cache. */
void sv_cpu_gemm_act_mul(struct sv_dev *dev, const struct sv_p_gemm_act_mul *p)
{
    const int32_t d = p->parts[0].w.rows;
    sv_cpu_gemm(dev, &(struct sv_p_gemm){
                         .n_rows = p->n_rows,
                         .k = p->k,
                         .n_parts = 2,
                         .x = p->x,
                         .ldx = p->ldx,
                         .parts = p->parts,
                         .y = p->gate_up,
                         .ldy = 2 * (int64_t)d,
                     });
    sv_cpu_act_mul(dev, &(struct sv_p_act_mul){p->n_rows, d, p->gate_up, p->out});
}

struct gate_job {
    const struct sv_cpu_vec *vec;
    const struct sv_p_sigmoid_mul *p;
};

static void gate_rows(void *arg, int thread, int n)
{
    const struct gate_job *job = arg;
    const struct sv_p_sigmoid_mul *p = job->p;
    int32_t begin, end;
    sv_cpu_share(p->n_rows, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++)
        for (int32_t h = 0; h < p->n_heads; h++) {
            float *x = (float *)p->x + ((int64_t)i * p->n_heads + h) * p->head_dim;
            job->vec->sigmoid_mul(x, x,
                                  (const float *)p->gate + i * p->ldg + (int64_t)h * p->gate_stride,
                                  p->head_dim);
        }
}

void sv_cpu_sigmoid_mul(struct sv_dev *dev, const struct sv_p_sigmoid_mul *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct gate_job job = {cpu->vec, p};
    sv_cpu_run(cpu, gate_rows, &job, (int64_t)p->n_rows * p->n_heads * (p->head_dim / 3));
}

struct add_job {
    const struct sv_cpu_vec *vec;
    const struct sv_p_add_gated *p;
};

static void add_rows(void *arg, int thread, int n)
{
    const struct add_job *job = arg;
    const struct sv_p_add_gated *p = job->p;
    const float one = 1.0f;
    int32_t begin, end;
    sv_cpu_share(p->n_rows, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++) {
        float *x = (float *)p->x + (int64_t)i * p->d, share = one;
        const float *y = (const float *)p->y + (int64_t)i * p->d;
        if (p->gate)
            job->vec->sigmoid_mul(&share, &one, (const float *)p->gate + i, 1);
        for (int32_t k = 0; k < p->d; k++)
            x[k] += share * y[k];
    }
}

void sv_cpu_add_gated(struct sv_dev *dev, const struct sv_p_add_gated *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct add_job job = {cpu->vec, p};
    sv_cpu_run(cpu, add_rows, &job, (int64_t)p->n_rows * (20 + p->d / 4));
}
