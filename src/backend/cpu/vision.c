/*
 * vision.c - the ops of a vision tower: layer_norm, gelu, add_corners.
 *
 * Entered through the backend table. Work is split over rows. Must not: let the number of rows or
 * threads affect a sum.
 */
#include "backend/cpu/vec.h"

#include "backend/ops_vision.h"

#include <math.h>

/* ---------------------------------------------------------------- layer_norm */

struct norm_job {
    struct sv_cpu *cpu;
    const struct sv_p_layer_norm *p;
};

static void norm_rows(void *arg, int thread, int n)
{
    const struct norm_job *job = arg;
    const struct sv_p_layer_norm *p = job->p;
    const struct sv_cpu_vec *vec = job->cpu->vec;
    float *bias = sv_cpu_thread_scratch(job->cpu, thread);
    int32_t begin, end;
    vec->widen(bias, p->bias.data, p->bias.fmt.elem, p->d, 1.0f);
    sv_cpu_share(p->n_rows, thread, n, &begin, &end);
    for (int32_t r = begin; r < end; r++) {
        const float *x = (const float *)p->x + (int64_t)r * p->d;
        float *out = (float *)p->out + (int64_t)r * p->d;
        const float mean = (float)(vec->sum(x, p->d) / p->d);
        for (int32_t i = 0; i < p->d; i++)
            out[i] = x[i] - mean;
        vec->add_rms_norm(&(struct sv_cpu_norm_row){
            .x = out, .w = &p->weight, .d = p->d, .eps = p->eps, .out = out});
        for (int32_t i = 0; i < p->d; i++)
            out[i] += bias[i];
    }
}

static void layer_norm(struct sv_dev *dev, const struct sv_p_layer_norm *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct norm_job job = {cpu, p};
    SV_REQUIRE(cpu->scratch && p->d <= cpu->lim.max_k);
    sv_cpu_run(cpu, norm_rows, &job, (int64_t)p->n_rows * (20 + p->d / 3));
}

/* ---------------------------------------------------------------- gelu */

struct gelu_job {
    const struct sv_cpu_vec *vec;
    const struct sv_p_gelu *p;
};

/* 0.5 (1 + tanh(u)) is sigmoid(2 u). */
static void gelu_row(const struct sv_cpu_vec *vec, float *x, int32_t d)
{
    enum { PIECE = 256 };
    float gate[PIECE];
    for (int32_t at = 0; at < d; at += PIECE) {
        const int32_t n = d - at < PIECE ? d - at : PIECE;
        for (int32_t i = 0; i < n; i++) {
            const float v = x[at + i];
            gate[i] = 2 * 0.7978845608028654f * (v + 0.044715f * v * v * v);
        }
        vec->sigmoid_mul(x + at, x + at, gate, n);
    }
}

static void gelu_rows(void *arg, int thread, int n)
{
    const struct gelu_job *job = arg;
    const struct sv_p_gelu *p = job->p;
    int32_t begin, end;
    sv_cpu_share(p->n_rows, thread, n, &begin, &end);
    for (int32_t r = begin; r < end; r++) {
        float *x = (float *)p->x + (int64_t)r * p->d;
        if (p->by_tanh)
            gelu_row(job->vec, x, p->d);
        for (int32_t i = 0; i < p->d && !p->by_tanh; i++)
            x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.7071067811865476f));
    }
}

static void gelu(struct sv_dev *dev, const struct sv_p_gelu *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct gelu_job job = {cpu->vec, p};
    sv_cpu_run(cpu, gelu_rows, &job, (int64_t)p->n_rows * p->d);
}

/* ---------------------------------------------------------------- add_corners */

struct corners_job {
    struct sv_cpu *cpu;
    const struct sv_p_add_corners *p;
};

static void corner_rows(void *arg, int thread, int n)
{
    const struct corners_job *job = arg;
    const struct sv_p_add_corners *p = job->p;
    float *row = sv_cpu_thread_scratch(job->cpu, thread);
    int32_t begin, end;
    sv_cpu_share(p->n_rows, thread, n, &begin, &end);
    for (int32_t r = begin; r < end; r++) {
        float *x = (float *)p->x + (int64_t)r * p->d;
        for (int k = 0; k < 4; k++) {
            sv_cpu_weight_row(job->cpu, &p->table, p->index[4 * r + k], row, p->share[4 * r + k]);
            for (int32_t i = 0; i < p->d; i++)
                x[i] += row[i];
        }
    }
}

static void add_corners(struct sv_dev *dev, const struct sv_p_add_corners *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct corners_job job = {cpu, p};
    SV_REQUIRE(cpu->scratch && p->d <= cpu->lim.max_k);
    sv_cpu_run(cpu, corner_rows, &job, (int64_t)p->n_rows * p->d);
}

const struct sv_vision_ops sv_cpu_vision = {1, layer_norm, gelu, add_corners};
