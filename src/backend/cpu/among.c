/*
 * among.c - the best of a few tokens by a head's products: only these rows of the head are read.
 *
 * Entered through the backend table (head_among). Must not: be used where a row's bits matter; its
 * sums are not those of the matrix products.
 */
#include "backend/cpu/cpu.h"
#include "backend/cpu/vec.h"

#include <math.h>

struct among_job {
    struct sv_cpu *cpu;
    const struct sv_p_head_among *p;
};

enum { LANES = 16 };

static float dot(const float *a, const float *b, int32_t n)
{
    float part[LANES] = {0}, sum = 0;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int32_t l = 0; l < LANES; l++)
            part[l] += a[i + l] * b[i + l];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (int32_t l = 0; l < LANES; l++)
        sum += part[l];
    return sum;
}

static void dots(void *arg, int thread, int n)
{
    const struct among_job *job = arg;
    const struct sv_p_head_among *p = job->p;
    float *w = sv_cpu_thread_scratch(job->cpu, thread);
    int32_t begin, end, r = 0;
    sv_cpu_share(p->n_ids, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++) {
        while (p->first[r + 1] <= i)
            r++;
        SV_REQUIRE(p->ids[i] >= 0 && p->ids[i] < p->w.rows);
        sv_cpu_weight_row(job->cpu, &p->w, p->ids[i], w, 1);
        p->logits[i] = dot(w, (const float *)p->x + (int64_t)p->row[r] * p->k, p->k);
    }
}

void sv_cpu_head_among(struct sv_dev *dev, const struct sv_p_head_among *p)
{
    struct among_job job = {sv_cpu_of(dev), p};
    SV_REQUIRE(job.cpu->scratch && p->k <= job.cpu->lim.max_k && p->first[p->n_rows] == p->n_ids);
    sv_cpu_run(job.cpu, dots, &job, (int64_t)p->n_ids * p->k);
    for (int32_t r = 0; r < p->n_rows; r++) {
        const float *logits = p->logits;
        int32_t best = p->first[r];
        float sum = 0;
        for (int32_t i = best + 1; i < p->first[r + 1]; i++)
            if (logits[i] > logits[best] || isnan(logits[best]))
                best = i;
        for (int32_t i = p->first[r]; i < p->first[r + 1]; i++)
            sum += isnan(logits[i]) ? 0 : expf(logits[i] - logits[best]);
        p->out[r] = p->ids[best];
        p->confidence[r] = sum > 0 ? 1 / sum : 1;
    }
}
