/*
 * head_screen.c - a head's screen (head_screen.h): making it, and picking the units that can hold
 * an argmax.
 *
 * Making is called at load by weights.c, the rest in a step by gemm.c. Must not: allocate in a
 * step, or drop a unit that some row's bounds do not exclude.
 */
#include "backend/cpu/head_screen.h"
#include "backend/cpu/vec.h"

#include <stdatomic.h>
#include <string.h>

/* If more than one unit in so many remains, most of the head is read anyway. */
#define IN_VAIN 4
#define MOST_REST 63

struct job {
    uint8_t *to[2];
    const struct sv_weight *host;
    int32_t n_units;
    atomic_bool failed;
};

static void pack_share(void *arg, int thread, int n)
{
    struct job *job = arg;
    int32_t begin, end;
    sv_cpu_share(job->n_units, thread, n, &begin, &end);
#ifndef SV_NO_AVX512
    const struct sv_weight *w = job->host;
    const size_t coarse = sv_screen_unit_bytes(SV_SCREEN_COARSE, w->cols),
                 fine = sv_screen_unit_bytes(SV_SCREEN_FINE, w->cols);
    for (int32_t u = begin; u < end; u++) {
        uint8_t *const to[2] = {job->to[0] + (size_t)u * coarse, job->to[1] + (size_t)u * fine};
        if (!sv_screen_pack_unit(to, w->data, w->rows, w->cols, u)) {
            atomic_store_explicit(&job->failed, true, memory_order_relaxed);
            return;
        }
    }
#endif
}

static size_t take(size_t *at, size_t n_bytes)
{
    const size_t here = *at;
    *at = here + (n_bytes + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
    return here;
}

int sv_screen_make(struct sv_cpu *cpu, const struct sv_weight *host, struct sv_screen **out,
                   struct sv_err *err)
{
    *out = NULL;
    if (host->fmt.elem != SV_BF16 || host->cols < SV_SCREEN_LEAST_K ||
        host->cols > SV_SCREEN_MOST_K)
        return SV_OK;
    const size_t units = ((size_t)host->rows + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT,
                 bounds = units * (size_t)sv_cpu_gemm_screen_rows(cpu) * sizeof(float);
    size_t n_bytes = 0, plane[2];
    take(&n_bytes, sizeof(struct sv_screen));
    for (int i = 0; i < 2; i++)
        plane[i] =
            take(&n_bytes, units * sv_screen_unit_bytes((enum sv_screen_plane)i, host->cols));
    const size_t v = take(&n_bytes, bounds * SV_GEMM_UNIT), top = take(&n_bytes, bounds),
                 left = take(&n_bytes, (units + SV_SCREEN_ROWS) * sizeof(int32_t));
    uint8_t *at = sv_cpu_weight_take(cpu, n_bytes, err);
    if (!at)
        return SV_ENOMEM;
    struct job job = {
        .to = {at + plane[0], at + plane[1]}, .host = host, .n_units = (int32_t)units};
    sv_pool_run(cpu->pool, pack_share, &job);
    if (job.failed) {
        sv_log(SV_LOG_INFO, "no head screen: weights that are not finite or too large");
        sv_cpu_weight_free(cpu, at);
        return SV_OK;
    }
    *out = (struct sv_screen *)(void *)at;
    **out = (struct sv_screen){.plane = {at + plane[0], at + plane[1]},
                               .read_bytes = (int64_t)(plane[1] - plane[0]),
                               .n_bytes = (int64_t)n_bytes,
                               .n_units = (int32_t)units,
                               .v = (float *)(void *)(at + v),
                               .top = (float *)(void *)(at + top),
                               .left = (int32_t *)(void *)(at + left)};
    return SV_OK;
}

bool sv_screen_asked(struct sv_screen *v)
{
    v->n_left = v->n_units;
    if (v->rest == 0)
        return true;
    v->rest--;
    return false;
}

int32_t sv_screen_pick(struct sv_screen *v, const float *low, int32_t n_rows)
{
    int32_t n = 0, *left = v->left;
    const int32_t n_units = v->n_units;
    memset(left, 0, (size_t)n_units * sizeof *left); /* first a mark for each */
    for (int32_t r = 0; r < n_rows; r++) {
        const float *top = v->top + (size_t)r * (size_t)n_units, least = low[r];
        for (int32_t u = 0; u < n_units; u++)
            left[u] |= top[u] >= least;
    }
    for (int32_t u = 0; u < n_units; u++) {
        const int32_t marked = left[u];
        left[n] = u;
        n += marked;
    }
    return n;
}

int32_t sv_screen_pick_again(struct sv_screen *v, int32_t n_left, const float *low, int32_t n_rows)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_left; i++) {
        const int32_t u = v->left[i];
        bool any = false;
        for (int32_t r = 0; r < n_rows && !any; r++)
            any = v->top[(size_t)r * (size_t)v->n_units + (size_t)u] >= low[r];
        v->left[n] = u;
        n += any;
    }
    return n;
}

void sv_screen_note(struct sv_screen *v, int32_t n_left)
{
    v->n_left = n_left;
    v->pause = n_left <= v->n_units / IN_VAIN ? 0
               : v->pause < MOST_REST         ? 2 * v->pause + 1
                                              : MOST_REST;
    v->rest = v->pause;
}
