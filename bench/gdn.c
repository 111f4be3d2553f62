/*
 * gdn.c - time of a gated delta rule's layer between its projections: a prompt, single rows and
 * verify blocks of one or many sequences, on the heads of Qwen3.5-4B to 35B.
 *
 *     build/bench/gdn [DEVICE [f32|bf16 [K_HEADS V_HEADS]]]      DEVICE: cuda cpu
 *
 * Prints CSV: rows, sequences, op ("all": as the engine calls them, which is one launch for single
 * rows where there is such), us per layer (least and median of many runs), GB/s of states
 * read once and the share of the read-only ceiling measured in the same run. 64 passes over four
 * layers are one graph, as in a step: positions move on, so that every sequence's state is folded
 * once in 16 positions. Must not: time anything that the engine would not call.
 */
#include "backend/ops_gdn.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, PASSES = 64, RUNS = 30, BLOCK = 16, D = 128 };

static const char *const op_name[] = {"all", "conv", "scan", "norm"};

struct bench {
    struct sv_dev *dev;
    struct sv_gdn_shape s;
    struct sv_weight conv, decay, dt_bias, norm;
    void *slots[LAYERS], *x, *out;
    float *scanned;
    struct sv_gdn_rows mid;
    struct sv_rows rows[PASSES];
    int32_t most; /* rows of a sequence */
    int op;       /* 0: all */
    size_t elem;
};

static void die(const char *what, const struct sv_err *err)
{
    fprintf(stderr, "gdn: %s: %s\n", what, err->msg);
    exit(1);
}

static void *take(struct bench *b, size_t n_bytes)
{
    struct sv_err err;
    void *p;
    if (sv_dev_alloc(b->dev, &p, n_bytes, &err))
        die("memory", &err);
    return p;
}

static void sync_device(struct bench *b)
{
    struct sv_err err;
    if (sv_dev_sync(b->dev, &err))
        die("run", &err);
}

static struct sv_weight weight(struct bench *b, int32_t rows, int32_t cols, float scale,
                               float shift)
{
    const struct sv_weight shape = {.fmt.elem = SV_F32, .rows = rows, .cols = cols};
    struct sv_rng rng = {(uint64_t)cols};
    struct sv_weight host = shape, out;
    struct sv_err err;
    float *v = malloc((size_t)rows * (size_t)cols * sizeof *v);
    for (int32_t i = 0; i < rows * cols; i++)
        v[i] = shift + scale * sv_rng_normal(&rng);
    host.data = v;
    if (sv_dev_upload_weight(b->dev, &host, &out, &err))
        die("weight", &err);
    sync_device(b);
    if (out.data != v) /* used in place */
        free(v);
    return out;
}

static int32_t ld(const struct bench *b)
{
    return sv_gdn_channels(&b->s) + b->s.n_v_heads * b->s.v_dim + 2 * b->s.n_v_heads;
}

static int32_t *ints(struct bench *b, const int32_t *v, int32_t n)
{
    int32_t *p = take(b, (size_t)n * sizeof *p);
    sv_dev_upload(b->dev, p, v, (size_t)n * sizeof *p);
    sync_device(b);
    return p;
}

/* n rows of each of so many sequences, whose lengths move on by `step` from visit to visit. */
static void set_rows(struct bench *b, int32_t n, int32_t n_seqs, int32_t step)
{
    const int32_t all = n * n_seqs;
    int32_t *seg = malloc((size_t)all * 4), *pos = malloc((size_t)all * 4),
            *row0 = malloc((size_t)(n_seqs + 1) * 4), *slot = malloc((size_t)n_seqs * 4),
            *base = malloc((size_t)n_seqs * 4);
    for (int32_t i = 0; i < PASSES; i++) {
        for (int32_t s = 0; s <= n_seqs; s++)
            row0[s] = s * n;
        for (int32_t s = 0; s < n_seqs; s++) {
            slot[s] = s;
            base[s] = step ? 1000 + 5 * s + i / LAYERS * step : 0;
            for (int32_t r = 0; r < n; r++) {
                seg[s * n + r] = s;
                pos[s * n + r] = base[s] + r;
            }
        }
        b->rows[i] = (struct sv_rows){.n_rows = all,
                                      .n_segs = n_seqs,
                                      .row_seg = ints(b, seg, all),
                                      .seg_row0 = ints(b, row0, n_seqs + 1),
                                      .seg_slot = ints(b, slot, n_seqs),
                                      .seg_base = ints(b, base, n_seqs),
                                      .row_pos = ints(b, pos, all)};
    }
    free(seg), free(pos), free(row0), free(slot), free(base);
}

static void free_rows(struct bench *b)
{
    for (int32_t i = 0; i < PASSES; i++) {
        const int32_t *const all[] = {b->rows[i].row_seg, b->rows[i].seg_row0, b->rows[i].seg_slot,
                                      b->rows[i].seg_base, b->rows[i].row_pos};
        for (int k = 0; k < 5; k++)
            sv_dev_free(b->dev, (void *)(uintptr_t)all[k]);
    }
}

static void passes(void *user)
{
    struct bench *b = user;
    const struct sv_gdn_block block = sv_gdn_block_of(&b->s);
    const char *x = b->x;
    const int64_t z = sv_gdn_channels(&b->s), beta = z + b->s.n_v_heads * b->s.v_dim;
    for (int32_t i = 0; i < PASSES; i++) {
        const struct sv_gdn_slots slots = {b->slots[i % LAYERS], block.n_bytes};
        const struct sv_p_gdn p = {
            .conv = {.rows = b->rows[i],
                     .shape = b->s,
                     .slots = slots,
                     .x = x,
                     .b = x + (size_t)beta * b->elem,
                     .a = x + (size_t)(beta + b->s.n_v_heads) * b->elem,
                     .ldx = ld(b),
                     .conv = b->conv,
                     .decay = b->decay,
                     .dt_bias = b->dt_bias,
                     .out = b->mid},
            .scan =
                {.rows = b->rows[i], .shape = b->s, .slots = slots, .x = b->mid, .out = b->scanned},
            .norm = {.rows = b->rows[i],
                     .shape = b->s,
                     .slots = slots,
                     .mid = b->mid,
                     .x = b->scanned,
                     .z = x + (size_t)z * b->elem,
                     .ldz = ld(b),
                     .weight = b->norm,
                     .eps = 1e-6f,
                     .out = b->out},
            .most = b->most,
        };
        if (b->op == 0)
            sv_op_gdn(b->dev, &p);
        if (b->op == 1)
            sv_op_gdn_conv(b->dev, &p.conv);
        if (b->op == 2)
            sv_op_gdn_scan(b->dev, &p.scan);
        if (b->op == 3)
            sv_op_gdn_norm(b->dev, &p.norm);
    }
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(struct bench *b, int32_t n, int32_t n_seqs, int32_t step, double ceiling)
{
    static uint64_t key;
    const double gb = 4e-9 * n_seqs * b->s.n_v_heads * b->s.k_dim * b->s.v_dim;
    set_rows(b, n, n_seqs, step);
    b->most = n;
    for (b->op = 0; b->op < 4; b->op++) {
        double us[RUNS];
        int n_runs = 0;
        const int64_t begun = sv_clock_ns();
        key++;
        for (int i = -2; i < RUNS && (i < 3 || sv_clock_ns() - begun < 1000000000); i++) {
            const int64_t t = sv_clock_ns();
            sv_dev_graph_run(b->dev, key, passes, b);
            sync_device(b);
            if (i >= 0)
                us[n_runs++] = (double)(sv_clock_ns() - t) / 1e3 / PASSES;
        }
        qsort(us, (size_t)n_runs, sizeof *us, by_value);
        const double median = us[n_runs / 2];
        const double rate = b->op == 1 || b->op == 3 ? 0 : gb / median * 1e6;
        printf("%d,%d,%s,%.2f,%.2f,%.0f,%.3f\n", n, n_seqs, op_name[b->op], us[0], median, rate,
               rate / ceiling);
        fflush(stdout);
    }
    free_rows(b);
}

int main(int argc, char **argv)
{
    enum { ROWS = 4096, SEQS = 64 };
    const char *device = argc > 1 ? argv[1] : "cuda";
    struct sv_dev_opts o = {.backend = device,
                            .compute = argc > 2 && !strcmp(argv[2], "f32") ? SV_F32 : SV_BF16};
    struct bench b = {.s = {.n_k_heads = argc > 4 ? atoi(argv[3]) : 16,
                            .n_v_heads = argc > 4 ? atoi(argv[4]) : 32,
                            .k_dim = D,
                            .v_dim = D,
                            .max_block = BLOCK,
                            .conv_dtype = o.compute}};
    struct sv_err err;
    if (b.s.n_k_heads < 1 || b.s.n_v_heads < 1 || b.s.n_v_heads % b.s.n_k_heads) {
        fprintf(stderr, "gdn: V_HEADS must be a multiple of K_HEADS\n");
        return 2;
    }
    if (sv_dev_open(&b.dev, &o, &err))
        die(device, &err);
    const struct sv_dev_limits lim = {.max_rows = ROWS,
                                      .max_logit_rows = 1,
                                      .max_k = ld(&b),
                                      .max_n = ld(&b),
                                      .max_heads = 16,
                                      .max_head_dim = D,
                                      .max_vocab = 64,
                                      .max_positions = ROWS};
    if (sv_dev_reserve(b.dev, &lim, &err) || sv_dev_check_gdn(b.dev, D, &err))
        die(device, &err);
    const size_t block = (size_t)sv_gdn_block_of(&b.s).n_bytes,
                 width = (size_t)(b.s.n_v_heads * b.s.v_dim);
    b.elem = sv_dtype_bytes(sv_dev_act_dtype(b.dev));
    b.conv = weight(&b, SV_GDN_TAPS, sv_gdn_channels(&b.s), 0.5f, 0);
    b.decay = weight(&b, 1, b.s.n_v_heads, 0, -0.1f);
    b.dt_bias = weight(&b, 1, b.s.n_v_heads, 0, 0.5f);
    b.norm = weight(&b, 1, b.s.v_dim, 0.1f, 1);
    for (int i = 0; i < LAYERS; i++)
        b.slots[i] = take(&b, SEQS * block);
    b.x = take(&b, ROWS * (size_t)ld(&b) * b.elem);
    b.out = take(&b, ROWS * width * b.elem);
    b.scanned = take(&b, ROWS * width * sizeof *b.scanned);
    sv_gdn_rows_lay_out(&b.mid, &b.s, ROWS,
                        take(&b, sv_gdn_rows_lay_out(&b.mid, &b.s, ROWS, NULL)));
    const size_t n = (size_t)ld(&b);
    uint16_t *noise = malloc(n * 4);
    struct sv_rng rng = {3};
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i < n; i++) {
            const float v = sv_rng_normal(&rng);
            if (b.elem == 2)
                noise[i] = sv_f32_to_bf16(v);
            else
                memcpy(noise + 2 * i, &v, 4);
        }
        sv_dev_upload(b.dev, (char *)b.x + r * n * b.elem, noise, n * b.elem);
        sync_device(&b);
    }
    free(noise);
    const double ceiling = sv_dev_measure_read(b.dev, (size_t)1 << 30);
    printf("# %s; %d and %d heads of %d; %.0f GB/s\n", sv_dev_describe(b.dev), (int)b.s.n_k_heads,
           (int)b.s.n_v_heads, D, ceiling);
    printf("rows,sequences,op,us least,us median,GB/s of states,share\n");
    measure(&b, 2048, 1, 0, ceiling);
    measure(&b, 512, 8, 0, ceiling);
    measure(&b, 1, 1, 1, ceiling);
    measure(&b, 16, 1, 7, ceiling);
    measure(&b, 1, 32, 1, ceiling);
    measure(&b, 8, 32, 4, ceiling);
    measure(&b, 16, 32, 7, ceiling);
    sv_dev_close(b.dev);
    return 0;
}
