/*
 * moe.c - mixture of experts: the router's choice and its tables, the experts' products, and the
 * sum over a row's experts.
 *
 * Entered through the backend table. The products are those of gemm_*.c, whose rule (gemm.h) makes
 * a row's bits independent of the rows that share its experts. An op is one parallel region: its
 * work is the units of all active experts, concatenated, weighted by the experts' rows, and cut
 * into one contiguous range per thread; a thread packs the rows of each of its experts for itself.
 * Must not: allocate, wait between experts, or read an expert that no row chose.
 */
#include "backend/cpu/gemm.h"
#include "backend/cpu/vec.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- the router */

/* Whether logit a of expert i precedes b of expert j; NaN is last. */
static bool before(float a, int32_t i, float b, int32_t j)
{
    if (isnan(a) || isnan(b))
        return isnan(a) == isnan(b) ? i < j : isnan(b);
    return a > b || (a == b && i < j);
}

/* The k first of n, in order. */
static void top(int32_t *id, const float *x, int32_t n, int32_t k)
{
    int32_t have = 0;
    for (int32_t i = 0; i < n; i++) {
        if (have == k && !before(x[i], i, x[id[k - 1]], id[k - 1]))
            continue;
        int32_t at = have < k ? have++ : k - 1;
        for (; at > 0 && before(x[i], i, x[id[at - 1]], id[at - 1]); at--)
            id[at] = id[at - 1];
        id[at] = i;
    }
}

struct router_job {
    struct sv_cpu *cpu;
    const struct sv_p_router_topk *p;
};

/* Experts outside of the chosen groups come last. */
static void keep_groups(const struct sv_router_sigmoid *s, float *choice, int32_t n_experts)
{
    const int32_t size = n_experts / s->n_group;
    float sum[SV_MAX_EXPERTS / 2];
    int32_t best[2], kept[SV_MAX_EXPERTS / 2];
    bool stays[SV_MAX_EXPERTS / 2] = {false};
    for (int32_t g = 0; g < s->n_group; g++) {
        top(best, choice + g * size, size, 2);
        sum[g] = choice[g * size + best[0]] + choice[g * size + best[1]];
    }
    top(kept, sum, s->n_group, s->topk_group);
    for (int32_t i = 0; i < s->topk_group; i++)
        stays[kept[i]] = true;
    for (int32_t e = 0; e < n_experts; e++)
        if (!stays[e / size])
            choice[e] = NAN;
}

/* logits become scores. */
static void route_sigmoid(const struct sv_cpu_vec *vec, const struct sv_p_router_topk *p,
                          float *logits, int32_t *id, float *weight)
{
    const struct sv_router_sigmoid *s = &p->sigmoid;
    const int32_t n = p->routes.n_experts, k = p->routes.k;
    const float *bias = s->bias.data;
    float choice[SV_MAX_EXPERTS], sum = 0;
    vec->exp_weights(choice, logits, n, 0, -1);
    for (int32_t e = 0; e < n; e++) {
        logits[e] = isnan(logits[e]) ? logits[e] : 1 / (1 + choice[e]);
        choice[e] = logits[e] + (bias ? bias[e] : 0);
    }
    if (s->topk_group < s->n_group)
        keep_groups(s, choice, n);
    top(id, choice, n, k);
    for (int32_t j = 0; j < k; j++) {
        weight[j] = logits[id[j]];
        sum += weight[j];
    }
    for (int32_t j = 0; j < k; j++)
        weight[j] = (s->renorm ? weight[j] / (sum + 1e-20f) : weight[j]) * s->scale;
}

static void route_row(const struct router_job *job, int32_t row)
{
    const struct sv_routes *r = &job->p->routes;
    const struct sv_cpu_vec *vec = job->cpu->vec;
    float *logits = r->logits + (int64_t)row * r->n_experts;
    float *weight = r->weight + (int64_t)row * r->k;
    int32_t *id = r->expert + (int64_t)row * r->k;
    double sum;
    if (job->p->rows.row_seg[row] < 0) {
        for (int32_t j = 0; j < r->k; j++) {
            id[j] = -1;
            weight[j] = 0;
        }
        return;
    }
    if (job->p->norm == SV_ROUTER_SIGMOID) {
        route_sigmoid(vec, job->p, logits, id, weight);
        return;
    }
    top(id, logits, r->n_experts, r->k);
    const float max = logits[id[0]];
    if (job->p->norm == SV_ROUTER_OVER_CHOSEN) {
        for (int32_t j = 0; j < r->k; j++)
            weight[j] = logits[id[j]];
        vec->exp_weights(weight, weight, r->k, max, 1);
        sum = vec->sum(weight, r->k);
    } else {
        vec->exp_weights(logits, logits, r->n_experts, max, 1);
        sum = vec->sum(logits, r->n_experts);
        for (int32_t j = 0; j < r->k; j++)
            weight[j] = logits[id[j]];
    }
    for (int32_t j = 0; j < r->k; j++)
        weight[j] = (float)(weight[j] / sum);
}

static void route_rows(void *arg, int thread, int n)
{
    const struct router_job *job = arg;
    int32_t begin, end;
    sv_cpu_share(job->p->rows.n_rows, thread, n, &begin, &end);
    for (int32_t row = begin; row < end; row++)
        route_row(job, row);
}

/* Which of this device's experts an entry has chosen, or -1. */
static int32_t own_expert(const struct sv_routes *r, int32_t entry)
{
    const int32_t e = r->expert[entry] - r->own.first;
    return e >= 0 && e < sv_routes_n_own(r) ? e : -1;
}

/* The tables by expert: a counting sort of the entries. */
static void list_entries(const struct sv_routes *r)
{
    const int32_t n = r->n_rows * r->k, n_own = sv_routes_n_own(r);
    int32_t at = 0;
    memset(r->first, 0, (size_t)(n_own + 1) * sizeof *r->first);
    for (int32_t i = 0; i < n; i++)
        if (own_expert(r, i) >= 0)
            r->first[own_expert(r, i)]++;
    *r->n_active = 0;
    for (int32_t e = 0; e < n_own; e++) {
        const int32_t count = r->first[e];
        if (count)
            r->active[(*r->n_active)++] = e;
        r->first[e] = at;
        at += count;
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t e = own_expert(r, i);
        r->place[i] = e < 0 ? -1 : r->first[e]++;
        if (e >= 0)
            r->list[r->place[i]] = i;
    }
    for (int32_t e = n_own; e > 0; e--) /* each is now the start of the next */
        r->first[e] = r->first[e - 1];
    r->first[0] = 0;
}

static void router_topk(struct sv_dev *dev, const struct sv_p_router_topk *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    const struct sv_routes *r = &p->routes;
    const struct sv_gemm_part part = {.w = p->w, .bias = p->bias};
    struct router_job job = {cpu, p};
    if (p->before)
        sv_cpu_add_rms_norm(dev, p->before);
    sv_cpu_gemm(dev, &(struct sv_p_gemm){.n_rows = r->n_rows,
                                         .k = p->w.cols,
                                         .n_parts = 1,
                                         .x = p->x,
                                         .ldx = p->w.cols,
                                         .parts = &part,
                                         .y = r->logits,
                                         .ldy = r->n_experts,
                                         .y_f32 = true});
    sv_cpu_run(cpu, route_rows, &job, (int64_t)r->n_rows * r->n_experts * 3);
    list_entries(r);
    if (p->n_chosen)
        *p->n_chosen += (uint32_t)*r->n_active;
}

/* ---------------------------------------------------------------- the experts' products */

/* Differences between gate_up and down. */
struct expert_job {
    struct sv_cpu *cpu;
    const struct sv_routes *routes;
    const struct sv_experts *experts[2]; /* gate and up, or down alone */
    int32_t n_parts;
    const struct sv_p_moe_gate_up *gate_up; /* or */
    const struct sv_p_moe_down *down;
};

/* A unit's cost: reading it once, and its rows. */
#define UNIT_COST(n_rows) ((int64_t)(n_rows) + 8)

static int32_t units_of(int32_t n)
{
    return (n + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT;
}

static int32_t rows_of(const struct sv_routes *r, int32_t e)
{
    return r->first[e + 1] - r->first[e];
}

static void set_parts(const struct expert_job *job, struct sv_gemm_call *c, int32_t e)
{
    int32_t unit = 0;
    for (int32_t i = 0; i < job->n_parts; i++) {
        const struct sv_experts *x = job->experts[i];
        c->packer = NULL; /* each part's own kernel packs, see pack_for */
        struct sv_weight bias = x->bias;
        if (bias.data) {
            bias.data = (const uint8_t *)bias.data +
                        (size_t)e * (size_t)x->rows * sv_dtype_bytes(bias.fmt.elem);
            bias.cols = x->rows;
        }
        sv_gemm_set_item(c, i, &(struct sv_gemm_part){.w = x->w[e], .bias = bias}, unit, 0);
        unit += units_of(x->rows);
    }
    c->n_units = unit;
}

/* The activation of a row's gate and up, in place of gate. */
static void activate(const struct expert_job *job, const struct sv_gemm_call *c, int32_t width,
                     int32_t n0, int32_t place)
{
    const struct sv_p_moe_gate_up *p = job->gate_up;
    const int32_t inter = p->gate.rows, left = inter - n0, n = width < left ? width : left;
    for (int32_t m = 0; m < c->m1; m++) {
        float *gate = c->y + (int64_t)m * c->ldy, *up = gate + width;
        /* (u + 1) g sigmoid(alpha g) is silu(alpha g) (u + 1) / alpha */
        for (int32_t i = 0; i < n && p->act == SV_EXPERT_CLAMPED; i++) {
            const float u = up[i] > p->limit ? p->limit : up[i] < -p->limit ? -p->limit : up[i];
            gate[i] = p->alpha * (gate[i] > p->limit ? p->limit : gate[i]);
            up[i] = (u + 1) / p->alpha;
        }
        job->cpu->vec->act_mul((float *)p->out + (int64_t)(place + m) * inter + n0, gate, up, n);
    }
}

/* The expert's rows as part i takes them. */
static void pack_for(const struct sv_gemm_call *c, struct sv_gemm_thread *t, int32_t i)
{
    const struct sv_gemm_kern *kern = c->item[i].kern;
    if (kern->form != SV_GEMM_X_RAW)
        kern->pack(c, t->expert_x, 0, 1);
}

/* Units [u0, u1) of gate and up times the packed rows, a few at a time: their sums stay in the
 * cache until activation. */
static void run_gate_up(const struct expert_job *job, struct sv_gemm_call *c,
                        struct sv_gemm_thread *t, int32_t place, int32_t u0, int32_t u1)
{
    const int32_t all = units_of(job->gate_up->gate.rows);
    const int32_t most = SV_MOE_SUMS / (2 * SV_GEMM_UNIT * c->m1);
    const bool alike = c->item[0].kern->form == c->item[1].kern->form;
    c->y = t->expert_y;
    for (int32_t u = u0, n; u < u1; u += n) {
        n = u1 - u < most ? u1 - u : most;
        const int32_t width = n * SV_GEMM_UNIT;
        c->ldy = 2 * (int64_t)width;
        c->item[0].col0 = -u * SV_GEMM_UNIT;
        c->item[1].col0 = width - u * SV_GEMM_UNIT;
        if (!alike && u > u0)
            pack_for(c, t, 0);
        sv_gemm_run_units(c, t, t->expert_x, u, u + n);
        if (!alike) /* in formats of which one is multiplied with int8 */
            pack_for(c, t, 1);
        sv_gemm_run_units(c, t, t->expert_x, all + u, all + u + n);
        activate(job, c, width, u * SV_GEMM_UNIT, place);
    }
}

/* This thread's units of one expert, for all of its rows. */
static void run_expert(const struct expert_job *job, struct sv_gemm_call *c,
                       struct sv_gemm_thread *t, int32_t e, int32_t u0, int32_t u1)
{
    const struct sv_routes *r = job->routes;
    int32_t row[SV_MOE_ROWS];
    set_parts(job, c, e);
    for (int32_t at = r->first[e], end = r->first[e + 1]; at < end; at += c->m1) {
        c->m1 = end - at < SV_MOE_ROWS ? end - at : SV_MOE_ROWS;
        if (job->gate_up) {
            for (int32_t m = 0; m < c->m1; m++)
                row[m] = r->list[at + m] / r->k;
            c->x = job->gate_up->x;
            c->rows = row;
        } else {
            c->x = (const float *)job->down->x + (int64_t)at * c->ldx;
            c->y = job->down->out + (int64_t)at * c->ldy;
        }
        pack_for(c, t, 0);
        if (job->gate_up)
            run_gate_up(job, c, t, at, u0, u1);
        else
            sv_gemm_run_units(c, t, t->expert_x, u0, u1);
    }
}

/* First unit that begins at cost `at` or later, of units that cost so much each. */
static int32_t unit_at(int64_t at, int64_t each, int32_t units)
{
    const int64_t u = at <= 0 ? 0 : (at + each - 1) / each;
    return (int32_t)(u < units ? u : units);
}

static void expert_units(void *arg, int thread, int n_threads)
{
    const struct expert_job *job = arg;
    const struct sv_routes *r = job->routes;
    const struct sv_experts *x = job->experts[0];
    const int32_t units = units_of(x->rows), n_active = *r->n_active;
    struct sv_gemm_thread *t = sv_gemm_thread(job->cpu, thread);
    struct sv_gemm_call *c = t->call;
    int64_t total = 0, at = 0;
    for (int32_t i = 0; i < n_active; i++)
        total += units * UNIT_COST(rows_of(r, r->active[i]));
    const int64_t begin = total * thread / n_threads, end = total * (thread + 1) / n_threads;
    *c = (struct sv_gemm_call){
        .cpu = job->cpu, .ldx = x->cols, .ldy = x->rows, .k = x->cols, .n_parts = job->n_parts};
    for (int32_t i = 0; i < n_active && at < end; i++) {
        const int32_t e = r->active[i];
        const int64_t each = UNIT_COST(rows_of(r, e));
        const int32_t u0 = unit_at(begin - at, each, units), u1 = unit_at(end - at, each, units);
        if (u0 < u1)
            run_expert(job, c, t, e, u0, u1);
        at += units * each;
    }
}

static void moe_gate_up(struct sv_dev *dev, const struct sv_p_moe_gate_up *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct expert_job job = {.cpu = cpu,
                             .routes = &p->routes,
                             .experts = {&p->gate, &p->up},
                             .n_parts = 2,
                             .gate_up = p};
    sv_pool_run(cpu->pool, expert_units, &job);
}

/* ---------------------------------------------------------------- the sum over experts */

struct combine_job {
    const struct sv_cpu_vec *vec;
    const struct sv_p_moe_combine *p;
};

static void combine_rows(void *arg, int thread, int n)
{
    const struct combine_job *job = arg;
    const struct sv_p_moe_combine *p = job->p;
    const struct sv_routes *r = &p->routes;
    const float *x[SV_MAX_CHOSEN];
    float weight[SV_MAX_CHOSEN];
    int32_t begin, end;
    sv_cpu_share(r->n_rows, thread, n, &begin, &end);
    for (int32_t row = begin; row < end; row++) {
        const int64_t first = (int64_t)row * r->k;
        float *out = (float *)p->out + (int64_t)row * p->hidden;
        int32_t m = 0;
        for (int64_t i = first; i < first + r->k; i++)
            if (r->place[i] >= 0) {
                x[m] = p->x + (int64_t)r->place[i] * p->hidden;
                weight[m++] = r->weight[i];
            }
        if (m)
            job->vec->weighted_sum(out, x, weight, m, p->hidden);
        else
            memset(out, 0, (size_t)p->hidden * sizeof *out);
    }
}

static void moe_combine(struct sv_dev *dev, const struct sv_p_moe_combine *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct combine_job job = {cpu->vec, p};
    sv_cpu_run(cpu, combine_rows, &job, (int64_t)p->routes.n_rows * p->routes.k * (p->hidden / 8));
}

static void moe_down(struct sv_dev *dev, const struct sv_p_moe_down *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct expert_job job = {
        .cpu = cpu, .routes = &p->routes, .experts = {&p->down}, .n_parts = 1, .down = p};
    sv_pool_run(cpu->pool, expert_units, &job);
    if (p->then)
        moe_combine(dev, p->then);
}

/* ---------------------------------------------------------------- weights */

static void free_experts(struct sv_dev *dev, struct sv_weight *w, int32_t n)
{
    for (int32_t e = 0; e < n; e++)
        sv_cpu_free_weight(dev, &w[e]);
}

static int upload_experts(struct sv_dev *dev, const struct sv_weight *host, int32_t n,
                          struct sv_weight *w, struct sv_err *err)
{
    for (int32_t e = 0; e < n; e++) {
        const int rc = sv_cpu_upload_weight(dev, &host[e], &w[e], err);
        if (rc) {
            free_experts(dev, w, e);
            return rc;
        }
    }
    return SV_OK;
}

static int random_experts(struct sv_dev *dev, const struct sv_weight *shape, int32_t n, float scale,
                          uint64_t seed, struct sv_weight *w, struct sv_err *err)
{
    for (int32_t e = 0; e < n; e++) {
        const uint64_t own = seed + ((uint64_t)e + 1) * 0x9E3779B97F4A7C15u;
        const int rc = sv_cpu_random_weight(dev, shape, scale, 0, own, &w[e], err);
        if (rc) {
            free_experts(dev, w, e);
            return rc;
        }
    }
    return SV_OK;
}

const struct sv_moe_ops sv_cpu_moe = {
    .upload_experts = upload_experts,
    .random_experts = random_experts,
    .free_experts = free_experts,
    .router_topk = router_topk,
    .gate_up = moe_gate_up,
    .down = moe_down,
};
