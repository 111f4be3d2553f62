/*
 * test_context_kv.c - draft_context_kv against its definition in double: committed rows of all
 * layers are written, nothing else is, and a row's bits do not depend on its company.
 */
#include "rig.h"

#include <math.h>
#include <string.h>

#define LAYERS 3
#define N_KV 2
#define HD 32
#define WIDTH (N_KV * HD)
#define TAPS 48
#define HIDDEN 40
#define MAX_POS 64

struct model {
    struct sv_weight fc, fc_bias, hidden_norm, k_norm[LAYERS];
    struct sv_gemm_part parts[2 * LAYERS];
    float cos[MAX_POS * HD / 2], sin[MAX_POS * HD / 2];
};

static void model_init(struct model *m, enum sv_dtype dtype, bool extras)
{
    struct sv_rng rng = {17};
    const struct sv_weight none = {0};
    m->fc = rig_weight(&rng, dtype, HIDDEN, TAPS, 0.2f, 0);
    m->fc_bias = extras ? rig_weight(&rng, dtype, 1, HIDDEN, 0.2f, 0) : none;
    m->hidden_norm = rig_weight(&rng, dtype, 1, HIDDEN, 0.2f, 1);
    for (int l = 0; l < LAYERS; l++)
        m->k_norm[l] = l == 1 && extras ? none : rig_weight(&rng, dtype, 1, HD, 0.2f, 1);
    for (int i = 0; i < 2 * LAYERS; i++) {
        m->parts[i].w = rig_weight(&rng, dtype, WIDTH, HIDDEN, 0.2f, 0);
        m->parts[i].bias = extras ? rig_weight(&rng, dtype, 1, WIDTH, 0.2f, 0) : none;
    }
    for (int i = 0; i < MAX_POS * HD / 2; i++) {
        double angle = i / (HD / 2) * pow(1e4, -2.0 * (i % (HD / 2)) / HD);
        m->cos[i] = (float)cos(angle);
        m->sin[i] = (float)sin(angle);
    }
}

static void drop(struct sv_weight w)
{
    rig_free((void *)(uintptr_t)w.data);
}

static void model_fini(struct model *m)
{
    drop(m->fc), drop(m->fc_bias), drop(m->hidden_norm);
    for (int l = 0; l < LAYERS; l++)
        drop(m->k_norm[l]);
    for (int i = 0; i < 2 * LAYERS; i++)
        drop(m->parts[i].w), drop(m->parts[i].bias);
}

/* Taps as a function of slot and position. */
static void fill_taps(float *x, int32_t slot, int32_t pos)
{
    struct sv_rng rng = {(uint64_t)(slot * 1000 + pos)};
    for (int i = 0; i < TAPS; i++)
        x[i] = sv_rng_normal(&rng);
}

static void run(struct sv_dev *dev, struct model *m, const struct rig_batch *b,
                const int32_t *n_commit, struct rig_kv *kv)
{
    const int32_t n = b->rows.n_rows;
    float *taps = rig_new((size_t)(n * TAPS) * 4), *z = rig_new((size_t)(n * HIDDEN) * 4);
    float *y = rig_new((size_t)(n * LAYERS * 2 * WIDTH) * 4);
    struct sv_kv views[LAYERS];
    for (int32_t r = 0; r < n; r++)
        fill_taps(taps + r * TAPS, b->seg_slot[b->row_seg[r]], rig_pos(b, r));
    for (int l = 0; l < LAYERS; l++)
        views[l] = kv[l].kv;
    struct sv_p_draft_context_kv p = {.rows = b->rows,
                                      .n_commit = n_commit,
                                      .taps = taps,
                                      .fc = m->fc,
                                      .fc_bias = m->fc_bias,
                                      .hidden_norm = m->hidden_norm,
                                      .eps = 1e-6f,
                                      .n_layers = LAYERS,
                                      .kv_parts = m->parts,
                                      .k_norm = m->k_norm,
                                      .rope = {m->cos, m->sin, MAX_POS, HD},
                                      .kv = views,
                                      .z = z,
                                      .y = y};
    sv_op_draft_context_kv(dev, &p);
    rig_sync(dev, SV_OK);
    rig_free(taps), rig_free(z), rig_free(y);
}

static void rms(double *x, int32_t n, const struct sv_weight *w)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int32_t i = 0; i < n && w->data; i++)
        x[i] = x[i] / sqrt(sum / n + 1e-6) * rig_weight_at(w, i);
}

static void check_row(struct model *m, int32_t slot, int32_t pos, struct rig_kv *kv, double tol)
{
    float taps[TAPS];
    double z[HIDDEN];
    fill_taps(taps, slot, pos);
    for (int i = 0; i < HIDDEN; i++) {
        z[i] = m->fc_bias.data ? rig_weight_at(&m->fc_bias, i) : 0;
        for (int k = 0; k < TAPS; k++)
            z[i] += (double)taps[k] * rig_weight_at(&m->fc, i * TAPS + k);
    }
    rms(z, HIDDEN, &m->hidden_norm);
    for (int l = 0; l < LAYERS; l++)
        for (int which = 0; which < 2; which++) {
            const struct sv_gemm_part *part = &m->parts[2 * l + which];
            double y[WIDTH];
            for (int i = 0; i < WIDTH; i++) {
                y[i] = part->bias.data ? rig_weight_at(&part->bias, i) : 0;
                for (int k = 0; k < HIDDEN; k++)
                    y[i] += z[k] * rig_weight_at(&part->w, i * HIDDEN + k);
            }
            for (int h = 0; h < N_KV; h++) {
                double *head = y + h * HD, rotated[HD];
                if (!which)
                    rms(head, HD, &m->k_norm[l]);
                for (int i = 0; i < HD / 2; i++) {
                    double c = which ? 1 : (double)m->cos[pos * HD / 2 + i];
                    double s = which ? 0 : (double)m->sin[pos * HD / 2 + i];
                    rotated[i] = head[i] * c - head[HD / 2 + i] * s;
                    rotated[HD / 2 + i] = head[HD / 2 + i] * c + head[i] * s;
                }
                int64_t at = rig_kv_at(&kv[l], slot, pos, h);
                for (int i = 0; i < HD; i++)
                    rig_near(rig_kv_get(&kv[l], which ? kv[l].kv.v : kv[l].kv.k, at + i),
                             rotated[i], tol, which ? "context v" : "context k", i);
            }
        }
}

static int64_t count_set(const struct rig_kv *c)
{
    int64_t n = (int64_t)c->kv.n_pages * c->kv.page_size * c->kv.n_kv_heads * c->kv.head_dim,
            set = 0;
    for (int64_t i = 0; i < n; i++)
        set += !isnan(rig_kv_get(c, c->kv.k, i)) + !isnan(rig_kv_get(c, c->kv.v, i));
    return set;
}

static void caches_init(struct rig_kv *kv, enum sv_dtype dtype, int32_t page)
{
    struct sv_rng rng = {2};
    for (int l = 0; l < LAYERS; l++)
        rig_kv_init(&kv[l], &rng, dtype, 6, MAX_POS, page, N_KV, HD);
}

static void caches_fini(struct rig_kv *kv)
{
    for (int l = 0; l < LAYERS; l++)
        rig_kv_fini(&kv[l]);
}

static void definition(void **state)
{
    (void)state;
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    for (int i = 0; i < n; i++)
        for (int v = 0; v < 4; v++) {
            struct sv_dev *dev = rig_open(isa[i], 1 + v, SV_F32);
            struct model m;
            struct rig_kv kv[LAYERS];
            struct rig_batch b;
            enum sv_dtype kv_dtype = v & 1 ? SV_BF16 : SV_F32;
            model_init(&m, v & 2 ? SV_BF16 : SV_F32, v == 3);
            caches_init(kv, kv_dtype, (int32_t[]){1, 16, 64, 5}[v]);
            rig_batch_init(&b);
            rig_batch_add(&b, 4, 10, 8);  /* 3 kept */
            rig_batch_add(&b, 0, 0, 20);  /* a prompt: all */
            rig_batch_add(&b, 1, 33, 16); /* nothing: its slot has no draft */
            rig_batch_add(&b, 2, 5, 0);
            rig_batch_add(&b, 3, 63, 1);
            rig_batch_add(&b, 5, 7, 4);  /* more than its rows: all */
            rig_batch_spread(&b, v % 2); /* rows need not be next to one another */
            const int32_t commit[] = {3, 20, 0, 0, 1, 9};
            run(dev, &m, &b, commit, kv);
            int64_t rows = 0;
            for (int32_t s = 0; s < 6; s++)
                for (int32_t j = 0; j < commit[s] && j < b.seg_row0[s + 1] - b.seg_row0[s];
                     j++, rows++)
                    check_row(&m, b.seg_slot[s], rig_pos(&b, b.seg_row0[s] + j), kv,
                              kv_dtype == SV_BF16 ? 8e-3 : 1e-5);
            for (int l = 0; l < LAYERS; l++)
                assert_int_equal(count_set(&kv[l]), rows * 2 * WIDTH);
            const int32_t nobody[6] = {0};
            run(dev, &m, &b, nobody, kv);
            for (int l = 0; l < LAYERS; l++)
                assert_int_equal(count_set(&kv[l]), rows * 2 * WIDTH);
            caches_fini(kv);
            model_fini(&m);
            sv_dev_close(dev);
        }
}

/* The cache after one call over many rows and after one call per row. */
static void bits(void **state)
{
    (void)state;
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    for (int i = 0; i < n; i++)
        for (int v = 0; v < 4; v++) {
            struct sv_dev *dev = rig_open(isa[i], 1 + v, v & 1 ? SV_BF16 : SV_F32);
            struct sv_dev *one = rig_open(isa[i], 1, v & 1 ? SV_BF16 : SV_F32);
            struct model m;
            struct rig_kv all[LAYERS], single[LAYERS];
            struct rig_batch b;
            model_init(&m, SV_BF16, false);
            caches_init(all, SV_BF16, 16);
            caches_init(single, SV_BF16, 16);
            rig_batch_init(&b);
            rig_batch_add(&b, 4, 10, 8);
            rig_batch_add(&b, 0, 0, 33);
            rig_batch_add(&b, 1, 30, 16);
            const int32_t commit[] = {8, 33, 5};
            run(dev, &m, &b, commit, all);
            for (int32_t s = 0; s < 3; s++)
                for (int32_t j = 0; j < commit[s]; j++) {
                    struct rig_batch r;
                    const int32_t keep = 1;
                    rig_batch_init(&r);
                    rig_batch_add(&r, b.seg_slot[s], b.seg_base[s] + j, 1);
                    run(one, &m, &r, &keep, single);
                }
            size_t bytes = (size_t)all[0].kv.n_pages * 16 * WIDTH * 2;
            for (int l = 0; l < LAYERS; l++) {
                assert_memory_equal(all[l].kv.k, single[l].kv.k, bytes);
                assert_memory_equal(all[l].kv.v, single[l].kv.v, bytes);
            }
            caches_fini(all);
            caches_fini(single);
            model_fini(&m);
            sv_dev_close(dev);
            sv_dev_close(one);
        }
}

SV_TEST_MAIN(cmocka_unit_test(definition), cmocka_unit_test(bits))
