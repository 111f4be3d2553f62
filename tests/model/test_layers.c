/*
 * test_layers.c - a stack whose layers differ in everything that is theirs (heads, head sizes,
 * rotary dimensions and tables, windows, scale, softcap, sinks, biases, intermediate size) against
 * a plain loop in double precision; whole and in pieces it gives the same bits.
 */
#include "testing.h"

#include "engine/run.h"
#include "golden.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 48, ROWS = 45, LAYERS = 4, PAGE = 4, MOST_WIDTH = 512 };
#define EPS 1e-5f

struct geometry {
    int32_t n_heads, n_kv, head_dim, rot_dim, window;
    float scale, softcap;
    double theta;
    bool norms, sinks, biases;
    int32_t intermediate;
};
static const struct geometry mixed[LAYERS] = {
    {4, 2, 16, 16, 0, 0.25f, 0, 10000, true, false, false, 96},
    {6, 1, 32, 16, 7, 0.2f, 0, 500, false, true, true, 40},
    {4, 2, 16, 16, 12, 0.25f, 5, 10000, false, false, false, 160},
    {2, 2, 64, 64, 0, 0.1f, 30, 1e6, true, true, true, 24},
};

struct rig {
    struct sv_dev *dev;
    struct sv_stack stack;
    struct sv_layer layer[LAYERS];
    struct sv_cache cache;
    struct sv_acts acts;
    struct sv_rng rng;
    struct sv_weight made[128]; /* to be freed */
    float *host[128];           /* the same, row-major */
    int32_t n_made;
    float *dev_out, *dev_taps;
    int32_t *row_seg, *seg_row0, *seg_slot, *seg_base, *row_pos;
};

static void *buffer(struct rig *r, size_t n_bytes)
{
    void *p = NULL;
    struct sv_err err = {0};
    if (sv_dev_alloc(r->dev, &p, n_bytes, &err))
        fail_msg("%s", err.msg);
    return p;
}

/* Random numbers around a mean. */
static struct sv_weight weight(struct rig *r, int32_t rows, int32_t cols, float mean, float range)
{
    struct sv_weight out;
    struct sv_err err = {0};
    const size_t n = (size_t)rows * (size_t)cols;
    float *v = malloc(n * sizeof *v);
    for (size_t i = 0; i < n; i++)
        v[i] = mean + range * (sv_rng_float(&r->rng) - 0.5f);
    const struct sv_weight host = {.fmt.elem = SV_F32, .rows = rows, .cols = cols, .data = v};
    if (sv_dev_upload_weight(r->dev, &host, &out, &err))
        fail_msg("%s", err.msg);
    r->host[r->n_made] = v;
    r->made[r->n_made++] = out;
    return out;
}

static struct sv_gemm_part part(struct rig *r, int32_t rows, int32_t cols, bool bias)
{
    struct sv_gemm_part p = {.w = weight(r, rows, cols, 0, 2 / sqrtf((float)cols))};
    if (bias)
        p.bias = weight(r, 1, rows, 0, 0.5f);
    return p;
}

static struct sv_rope_table rope(struct rig *r, const struct geometry *g)
{
    const size_t half = (size_t)ROWS * (size_t)(g->rot_dim / 2);
    struct sv_weight t = weight(r, 1, (int32_t)(2 * half), 0, 0), made;
    float *host = r->host[r->n_made - 1];
    struct sv_err err = {0};
    sv_rope_fill(&(struct sv_rope){.theta = g->theta}, g->rot_dim, ROWS, host);
    sv_dev_free_weight(r->dev, &t);
    const struct sv_weight table = {
        .fmt.elem = SV_F32, .rows = 1, .cols = (int32_t)(2 * half), .data = host};
    if (sv_dev_upload_weight(r->dev, &table, &made, &err))
        fail_msg("%s", err.msg);
    r->made[r->n_made - 1] = made;
    return (struct sv_rope_table){made.data, (const float *)made.data + half, ROWS, g->rot_dim,
                                  NULL};
}

static void make_layer(struct rig *r, struct sv_layer *l, const struct geometry *g)
{
    const int32_t out = g->n_heads * g->head_dim, kv = g->n_kv * g->head_dim;
    *l = (struct sv_layer){
        .in_norm = weight(r, 1, HIDDEN, 1, 0.5f),
        .post_norm = weight(r, 1, HIDDEN, 1, 0.5f),
        .mixer = SV_MIXER_ATTN,
        .attn = {.n_heads = g->n_heads,
                 .n_kv_heads = g->n_kv,
                 .head_dim = g->head_dim,
                 .rope = rope(r, g),
                 .mask = SV_MASK_CAUSAL,
                 .window = g->window,
                 .scale = g->scale,
                 .softcap = g->softcap,
                 .qkv = {part(r, out, HIDDEN, g->biases), part(r, kv, HIDDEN, g->biases),
                         part(r, kv, HIDDEN, g->biases)},
                 .o = part(r, HIDDEN, out, g->biases)},
        .ffn = SV_FFN_DENSE,
        .mlp = {.intermediate = g->intermediate,
                .gate_up = {part(r, g->intermediate, HIDDEN, g->biases),
                            part(r, g->intermediate, HIDDEN, g->biases)},
                .down = part(r, HIDDEN, g->intermediate, g->biases)}};
    if (g->norms) {
        l->attn.q_norm = weight(r, 1, g->head_dim, 1, 0.5f);
        l->attn.k_norm = weight(r, 1, g->head_dim, 1, 0.5f);
    }
    if (g->sinks)
        l->attn.sinks = weight(r, 1, g->n_heads, 0, 4);
}

static void rig_open(struct rig *r)
{
    struct sv_err err = {0};
    struct sv_engine_options where = {0};
    struct sv_cache_group_desc desc[SV_MAX_GROUPS] = {{0}};
    struct sv_needs needs;
    memset(r, 0, sizeof *r);
    r->rng.state = 11;
    run_device(&where);
    const struct sv_dev_opts o = {.backend = where.device,
                                  .tuning = where.tuning,
                                  .no_graphs = where.no_graphs,
                                  .n_threads = 2,
                                  .compute = SV_F32};
    if (sv_dev_open(&r->dev, &o, &err))
        fail_msg("%s", err.msg);
    r->stack =
        (struct sv_stack){.n_layers = LAYERS, .hidden = HIDDEN, .eps = EPS, .layers = r->layer};
    for (int32_t i = 0; i < LAYERS; i++)
        make_layer(r, &r->layer[i], &mixed[i]);
    r->stack.final_norm = weight(r, 1, HIDDEN, 1, 0.5f);
    const int32_t n = sv_stack_cache_groups(&r->stack, SV_CACHE_TARGET, 1, 0, desc);
    assert_int_equal(n, LAYERS); /* no two have the same heads and window */
    for (int32_t i = 0; i < n; i++) {
        desc[i].dtype = SV_F32;
        desc[i].page_size = PAGE;
        desc[i].n_pages = (ROWS + PAGE - 1) / PAGE;
    }
    sv_needs_init(&needs, r->dev, ROWS);
    needs.lim.max_logit_rows = needs.lim.max_positions = ROWS;
    sv_stack_needs(&r->stack, &needs);
    assert_true(needs.lim.max_k == 192 && needs.lim.max_n == 384);
    assert_true(needs.lim.max_heads == 6 && needs.lim.max_head_dim == 64);
    if (sv_cache_open(&r->cache, r->dev, desc, n, 1, ROWS, &err) ||
        sv_dev_reserve(r->dev, &needs.lim, &err) || sv_acts_open(&r->acts, r->dev, &needs, &err))
        fail_msg("%s", err.msg);
    r->dev_out = buffer(r, ROWS * HIDDEN * sizeof(float));
    r->dev_taps = buffer(r, ROWS * HIDDEN * LAYERS * sizeof(float));
    int32_t **ints[] = {&r->row_seg, &r->seg_row0, &r->seg_slot, &r->seg_base, &r->row_pos};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        *ints[i] = buffer(r, (ROWS + 1) * sizeof(int32_t));
}

static void rig_close(struct rig *r)
{
    void *own[] = {r->dev_out,  r->dev_taps, r->row_seg, r->seg_row0,
                   r->seg_slot, r->seg_base, r->row_pos};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        sv_dev_free(r->dev, own[i]);
    for (int32_t i = 0; i < r->n_made; i++) {
        sv_dev_free_weight(r->dev, &r->made[i]);
        free(r->host[i]);
    }
    sv_acts_close(&r->acts, r->dev);
    sv_cache_close(&r->cache);
    sv_dev_close(r->dev);
}

/* Rows [at, at + n) of x; out and the streams after each layer, of these rows. */
static void run(struct rig *r, const float *x, int32_t at, int32_t n, float *out, float *taps)
{
    static const int32_t tap_id[LAYERS] = {0, 1, 2, 3};
    const int32_t bounds[] = {0, n}, zero = 0;
    int32_t pos[ROWS];
    const size_t row = HIDDEN * sizeof(float);
    struct sv_err err = {0};
    assert_true(sv_cache_reserve(&r->cache, 0, at + n));
    sv_cache_upload(&r->cache);
    sv_dev_upload(r->dev, r->seg_row0, bounds, sizeof bounds);
    sv_dev_upload(r->dev, r->seg_slot, &zero, sizeof zero);
    sv_dev_upload(r->dev, r->seg_base, &at, sizeof at);
    for (int32_t i = 0; i < n; i++)
        pos[i] = at + i;
    sv_dev_upload(r->dev, r->row_pos, pos, (size_t)n * sizeof *pos);
    sv_dev_upload(r->dev, r->acts.x, x + (size_t)at * HIDDEN, (size_t)n * row);
    sv_stack_forward(&r->stack, r->dev, &r->acts,
                     &(struct sv_pass){.rows = {n, 1, r->row_seg, r->seg_row0, r->seg_slot,
                                                r->seg_base, r->row_pos, NULL},
                                       .cache = &r->cache,
                                       .taps = {.n = LAYERS, .id = tap_id, .out = r->dev_taps},
                                       .n_out = n,
                                       .out = r->dev_out});
    sv_dev_download(r->dev, out + (size_t)at * HIDDEN, r->dev_out, (size_t)n * row);
    sv_dev_download(r->dev, taps + (size_t)at * HIDDEN * LAYERS, r->dev_taps,
                    (size_t)n * row * LAYERS);
    if (sv_dev_sync(r->dev, &err))
        fail_msg("%s", err.msg);
    sv_cache_slide(&r->cache, 0, at + n);
}

/* ---------------------------------------------------------------- the plain loop */

static const float *host_of(const struct rig *r, const struct sv_weight *w)
{
    for (int32_t i = 0; i < r->n_made; i++)
        if (w->data && r->made[i].data == w->data)
            return r->host[i];
    return NULL;
}

static void norm(const struct rig *r, const struct sv_weight *w, const double *x, int32_t d,
                 double *y)
{
    const float *by = host_of(r, w);
    double sum = 0;
    for (int32_t i = 0; i < d; i++)
        sum += x[i] * x[i];
    for (int32_t i = 0; i < d; i++)
        y[i] = x[i] / sqrt(sum / d + (double)EPS) * (double)by[i];
}

static void multiply(const struct rig *r, const struct sv_gemm_part *p, const double *x, double *y)
{
    const float *w = host_of(r, &p->w), *bias = host_of(r, &p->bias);
    for (int32_t i = 0; i < p->w.rows; i++) {
        y[i] = bias ? (double)bias[i] : 0;
        for (int32_t j = 0; j < p->w.cols; j++)
            y[i] += x[j] * (double)w[(size_t)i * (size_t)p->w.cols + (size_t)j];
    }
}

/* Heads of a row: norm, then rotation of the first rot_dim numbers in halves. */
static void heads(const struct rig *r, const struct geometry *g, const struct sv_weight *w,
                  double *x, int32_t n, int32_t pos)
{
    for (double *head = x; head < x + (ptrdiff_t)n * g->head_dim; head += g->head_dim) {
        if (w->data)
            norm(r, w, head, g->head_dim, head);
        for (int32_t i = 0; i < g->rot_dim / 2; i++) {
            const double angle = pos / pow(g->theta, 2.0 * i / g->rot_dim), a = head[i],
                         b = head[i + g->rot_dim / 2];
            head[i] = a * cos(angle) - b * sin(angle);
            head[i + g->rot_dim / 2] = b * cos(angle) + a * sin(angle);
        }
    }
}

/* One head of row pos over keys and values (ROWS, MOST_WIDTH). */
static void attend(const struct geometry *g, const float *sink, const double *q,
                   double (*k)[MOST_WIDTH], double (*v)[MOST_WIDTH], int32_t at, int32_t pos,
                   double *out)
{
    const int32_t from = g->window && pos >= g->window ? pos - g->window + 1 : 0;
    double sum = sink ? exp((double)*sink) : 0;
    memset(out, 0, (size_t)g->head_dim * sizeof *out);
    for (int32_t j = from; j <= pos; j++) {
        double s = 0;
        for (int32_t i = 0; i < g->head_dim; i++)
            s += q[i] * k[j][at + i];
        s *= (double)g->scale;
        s = exp(g->softcap > 0 ? (double)g->softcap * tanh(s / (double)g->softcap) : s);
        sum += s;
        for (int32_t i = 0; i < g->head_dim; i++)
            out[i] += s * v[j][at + i];
    }
    for (int32_t i = 0; i < g->head_dim; i++)
        out[i] /= sum;
}

/* Adds one layer to the stream x (ROWS, HIDDEN). */
static void plain_layer(const struct rig *r, const struct geometry *g, const struct sv_layer *l,
                        double (*x)[HIDDEN])
{
    static double k[ROWS][MOST_WIDTH], v[ROWS][MOST_WIDTH];
    const struct sv_attn *a = &l->attn;
    const float *sinks = host_of(r, &a->sinks);
    for (int32_t p = 0; p < ROWS; p++) {
        double h[HIDDEN], q[MOST_WIDTH], out[MOST_WIDTH], gate[MOST_WIDTH], up[MOST_WIDTH],
            delta[HIDDEN];
        norm(r, &l->in_norm, x[p], HIDDEN, h);
        multiply(r, &a->qkv[0], h, q);
        multiply(r, &a->qkv[1], h, k[p]);
        multiply(r, &a->qkv[2], h, v[p]);
        heads(r, g, &a->q_norm, q, g->n_heads, p);
        heads(r, g, &a->k_norm, k[p], g->n_kv, p);
        for (int32_t i = 0; i < g->n_heads; i++)
            attend(g, sinks ? &sinks[i] : NULL, q + (ptrdiff_t)i * g->head_dim, k, v,
                   i / (g->n_heads / g->n_kv) * g->head_dim, p, out + (ptrdiff_t)i * g->head_dim);
        multiply(r, &a->o, out, delta);
        for (int32_t i = 0; i < HIDDEN; i++)
            x[p][i] += delta[i];
        norm(r, &l->post_norm, x[p], HIDDEN, h);
        multiply(r, &l->mlp.gate_up[0], h, gate);
        multiply(r, &l->mlp.gate_up[1], h, up);
        for (int32_t i = 0; i < g->intermediate; i++)
            gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        multiply(r, &l->mlp.down, gate, delta);
        for (int32_t i = 0; i < HIDDEN; i++)
            x[p][i] += delta[i];
    }
}

static void close_to(const char *what, int32_t layer, int32_t row, const float *a, const double *b)
{
    float want[HIDDEN];
    for (int32_t i = 0; i < HIDDEN; i++)
        want[i] = (float)b[i];
    const double e = golden_rel_err(a, want, HIDDEN);
    if (!(e < 1e-4))
        fail_msg("%s %d, row %d: relative error %.3g", what, layer, row, e);
}

static void layers_differ(void **state)
{
    (void)state;
    static struct rig r;
    static float x[ROWS * HIDDEN], out[ROWS * HIDDEN], taps[ROWS * LAYERS * HIDDEN];
    static float out2[ROWS * HIDDEN], taps2[ROWS * LAYERS * HIDDEN];
    static double want[ROWS][HIDDEN];
    rig_open(&r);
    for (int32_t i = 0; i < ROWS * HIDDEN; i++) {
        x[i] = 2 * (sv_rng_float(&r.rng) - 0.5f);
        want[i / HIDDEN][i % HIDDEN] = (double)x[i];
    }
    run(&r, x, 0, ROWS, out, taps);
    for (int32_t l = 0; l < LAYERS; l++) {
        plain_layer(&r, &mixed[l], &r.layer[l], want);
        for (int32_t p = 0; p < ROWS; p++)
            close_to("layer", l, p, taps + (size_t)(p * LAYERS + l) * HIDDEN, want[p]);
    }
    for (int32_t p = 0; p < ROWS; p++) {
        double h[HIDDEN];
        norm(&r, &r.stack.final_norm, want[p], HIDDEN, h);
        close_to("final norm", 0, p, out + (size_t)p * HIDDEN, h);
    }
    sv_cache_release(&r.cache, 0);
    for (int32_t at = 0, n = 1; at < ROWS; at += n++)
        run(&r, x, at, n < ROWS - at ? n : ROWS - at, out2, taps2);
    assert_memory_equal(out, out2, sizeof out);
    assert_memory_equal(taps, taps2, sizeof taps);
    rig_close(&r);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(layers_differ))
