/*
 * act.c - act_mul: the gated activation of the MLP.
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
