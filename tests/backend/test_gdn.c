/*
 * test_gdn.c - the gated delta rule: against the plain recurrence in double precision, and the bits
 * of outputs, states and kept rows for every way of cutting a text into prompt chunks, verify
 * blocks with rejected rows, and single rows.
 */
#include "rig.h"

#include "backend/ops_gdn.h"

#include <math.h>
#include <string.h>

enum { TEXTS = 3, LENGTH = 96, SLOTS = 5, PROBE = 4 /* a slot for copies */ };

struct lab {
    struct sv_dev *dev;
    struct sv_rng rng;
    struct sv_gdn_shape shape;
    struct sv_gdn_block layout;
    int32_t channels, width, ld; /* ld: q|k|v|z|b|a */
    struct sv_weight conv, decay, dt_bias, norm;
    float *text[TEXTS]; /* (LENGTH, ld) */
    float *want[TEXTS]; /* (LENGTH, width) outputs; from the first pass over them */
    bool known[TEXTS][LENGTH];
    char *slots;
    struct rig_batch b;
    int32_t n_in;                   /* rows of b that have their input */
    float *x;                       /* (RIG_MAX_ROWS, ld) */
    int32_t row_text[RIG_MAX_ROWS]; /* < 0: garbage, its output counts for nothing */
};

static const struct sv_gdn_shape SMALL = {
    .n_k_heads = 2, .n_v_heads = 4, .k_dim = 16, .v_dim = 32, .max_block = 16};
static const struct sv_gdn_shape ODD = {
    .n_k_heads = 1, .n_v_heads = 3, .k_dim = 48, .v_dim = 80, .max_block = 16};
static const struct sv_gdn_shape LARGE = {
    .n_k_heads = 1, .n_v_heads = 2, .k_dim = 128, .v_dim = 128, .max_block = 16};

static char *slot_at(const struct lab *l, int32_t slot)
{
    return l->slots + (size_t)slot * (size_t)l->layout.n_bytes;
}

/* Memory of the slots only: the next passes must give what is known. */
static void lab_clear(struct lab *l)
{
    memset(l->slots, 0, SLOTS * (size_t)l->layout.n_bytes);
}

static void lab_open(struct lab *l, struct sv_dev *dev, struct sv_gdn_shape shape)
{
    memset(l, 0, sizeof *l);
    l->dev = dev;
    l->rng = (struct sv_rng){7};
    l->shape = shape;
    l->layout = sv_gdn_block_of(&shape);
    l->channels = sv_gdn_channels(&shape);
    l->width = shape.n_v_heads * shape.v_dim;
    l->ld = l->channels + l->width + 2 * shape.n_v_heads;
    l->conv = rig_weight(&l->rng, SV_F32, SV_GDN_TAPS, l->channels, 0.6f, 0);
    l->decay = rig_weight(&l->rng, SV_F32, 1, shape.n_v_heads, 0, 0);
    for (int32_t h = 0; h < shape.n_v_heads; h++)
        ((float *)(uintptr_t)l->decay.data)[h] = -expf(1.5f - 3.0f * (float)h);
    l->dt_bias = rig_weight(&l->rng, SV_F32, 1, shape.n_v_heads, 1, 0);
    l->norm = rig_weight(&l->rng, SV_BF16, 1, shape.v_dim, 0.25f, 1);
    for (int t = 0; t < TEXTS; t++) {
        l->text[t] = rig_floats(&l->rng, (size_t)LENGTH * (size_t)l->ld, 1);
        l->want[t] = rig_new((size_t)LENGTH * (size_t)l->width * sizeof(float));
    }
    l->slots = rig_new(SLOTS * (size_t)l->layout.n_bytes);
    l->x = rig_new((size_t)RIG_MAX_ROWS * (size_t)l->ld * sizeof(float));
    lab_clear(l);
    rig_batch_init(&l->b);
}

static void lab_close(struct lab *l)
{
    rig_free((void *)(uintptr_t)l->conv.data);
    rig_free((void *)(uintptr_t)l->decay.data);
    rig_free((void *)(uintptr_t)l->dt_bias.data);
    rig_free((void *)(uintptr_t)l->norm.data);
    for (int t = 0; t < TEXTS; t++) {
        rig_free(l->text[t]);
        rig_free(l->want[t]);
    }
    rig_free(l->slots);
    rig_free(l->x);
}

/* A segment of n rows of a text from position base on, those from n_true on with other inputs. */
static void add(struct lab *l, int32_t slot, int32_t text, int32_t base, int32_t n, int32_t n_true)
{
    rig_batch_add(&l->b, slot, base, n);
    for (int32_t i = 0; i < n; i++, l->n_in++) {
        float *x = l->x + (size_t)l->n_in * (size_t)l->ld;
        l->row_text[l->n_in] = i < n_true ? text : -1;
        if (i < n_true)
            memcpy(x, l->text[text] + (size_t)(base + i) * (size_t)l->ld,
                   (size_t)l->ld * sizeof *x);
        else
            for (int32_t c = 0; c < l->ld; c++)
                x[c] = 2 * sv_rng_normal(&l->rng);
    }
}

static void ops(struct lab *l, const struct sv_rows *rows, float *out)
{
    const struct sv_gdn_shape *s = &l->shape;
    const struct sv_gdn_slots slots = {l->slots, l->layout.n_bytes};
    struct sv_gdn_rows mid;
    void *room = rig_new(sv_gdn_rows_lay_out(&mid, s, rows->n_rows, NULL));
    float *scanned = rig_new((size_t)rows->n_rows * (size_t)l->width * sizeof *scanned);
    sv_gdn_rows_lay_out(&mid, s, rows->n_rows, room);
    sv_op_gdn_conv(l->dev, &(struct sv_p_gdn_conv){
                               .rows = *rows,
                               .shape = *s,
                               .slots = slots,
                               .x = l->x,
                               .b = l->x + l->channels + l->width,
                               .a = l->x + l->channels + l->width + s->n_v_heads,
                               .ldx = l->ld,
                               .conv = l->conv,
                               .decay = l->decay,
                               .dt_bias = l->dt_bias,
                               .out = mid,
                           });
    sv_op_gdn_scan(l->dev,
                   &(struct sv_p_gdn_scan){
                       .rows = *rows, .shape = *s, .slots = slots, .x = mid, .out = scanned});
    sv_op_gdn_norm(l->dev, &(struct sv_p_gdn_norm){.rows = *rows,
                                                   .shape = *s,
                                                   .slots = slots,
                                                   .mid = mid,
                                                   .x = scanned,
                                                   .z = l->x + l->channels,
                                                   .ldz = l->ld,
                                                   .weight = l->norm,
                                                   .eps = 1e-6f,
                                                   .out = out});
    rig_free(scanned);
    rig_free(room);
}

/* One pass over the batch: rows of a text must have the bits they had before. */
static void run(struct lab *l, int32_t n_padding)
{
    const size_t row_bytes = (size_t)l->width * sizeof(float);
    float *out = rig_new((size_t)(l->n_in + n_padding) * row_bytes);
    struct sv_rows rows = l->b.rows;
    for (int32_t i = 0; i < n_padding; i++) {
        l->b.row_seg[rows.n_rows + i] = l->b.row_pos[rows.n_rows + i] = -1;
        l->b.seg_slot[rows.n_segs + i] = -1;
        l->b.seg_base[rows.n_segs + i] = 0;
        l->b.seg_row0[rows.n_segs + i + 1] = rows.n_rows;
    }
    rows.n_rows += n_padding;
    rows.n_segs += n_padding;
    ops(l, &rows, out);
    for (int32_t r = 0; r < l->n_in; r++) {
        const int32_t t = l->row_text[r], pos = l->b.row_pos[r];
        if (t < 0)
            continue;
        float *want = l->want[t] + (size_t)pos * (size_t)l->width;
        if (!l->known[t][pos])
            memcpy(want, out + (size_t)r * (size_t)l->width, row_bytes);
        else if (memcmp(want, out + (size_t)r * (size_t)l->width, row_bytes))
            fail_msg("text %d position %d: other bits", t, pos);
        l->known[t][pos] = true;
    }
    rig_free(out);
    rig_batch_init(&l->b);
    l->n_in = 0;
}

static void run_one(struct lab *l, int32_t slot, int32_t text, int32_t base, int32_t n,
                    int32_t n_true)
{
    add(l, slot, text, base, n, n_true);
    run(l, 0);
}

/* All texts row by row: what every other way must give. */
static void learn(struct lab *l)
{
    for (int32_t t = 0; t < TEXTS; t++)
        for (int32_t pos = 0; pos < LENGTH; pos++)
            run_one(l, t, t, pos, 1, 1);
    lab_clear(l);
}

static void same(const void *a, const void *b, size_t n, const char *what, int32_t pos)
{
    if (memcmp(a, b, n))
        fail_msg("%s before position %d: other bits", what, pos);
}

/* Two blocks remember the same c positions: so far as a later row can tell, which one more row, at
 * c, shows: it folds what is full. */
static void same_memory(struct lab *l, const void *one, const void *other, int32_t text, int32_t c)
{
    const struct sv_gdn_block *y = &l->layout;
    const struct sv_gdn_shape *s = &l->shape;
    const size_t n_bytes = (size_t)y->n_bytes,
                 row = (size_t)l->channels * sv_dtype_bytes(s->conv_dtype);
    char *a = rig_new(n_bytes), *b = slot_at(l, PROBE);
    memcpy(b, one, n_bytes);
    run_one(l, PROBE, text, c, 1, 1);
    memcpy(a, b, n_bytes);
    memcpy(b, other, n_bytes);
    run_one(l, PROBE, text, c, 1, 1);
    same(a, b, sizeof(int32_t), "position of the state", c);
    same(a + y->state, b + y->state, (size_t)(y->k - y->state), "state", c);
    for (int32_t pos = c / SV_GDN_CHUNK * SV_GDN_CHUNK; pos <= c; pos++) {
        const size_t at = (size_t)(pos % y->ring) * sizeof(float), kd = (size_t)s->k_dim,
                     vd = (size_t)s->v_dim, ring = (size_t)y->ring * sizeof(float),
                     k_size = s->conv_dtype == SV_F32 ? 4 : 2,
                     k_at = (size_t)(pos % y->k_ring) * k_size, k_ring = (size_t)y->k_ring * k_size;
        for (size_t h = 0; h < (size_t)s->n_k_heads; h++)
            same(a + y->k + (h * k_ring + k_at) * kd, b + y->k + (h * k_ring + k_at) * kd,
                 kd * k_size, "key", pos);
        for (size_t h = 0; h < (size_t)s->n_v_heads; h++) {
            same(a + y->u + (h * ring + at) * vd, b + y->u + (h * ring + at) * vd,
                 vd * sizeof(float), "u", pos);
            same(a + y->g + h * ring + at, b + y->g + h * ring + at, sizeof(float), "G", pos);
        }
    }
    for (int32_t pos = c < 2 ? 0 : c - 2; pos <= c; pos++)
        same(a + y->conv + (size_t)(pos % y->conv_ring) * row,
             b + y->conv + (size_t)(pos % y->conv_ring) * row, row, "convolution row", pos);
    rig_free(a);
}

/* ---------------------------------------------------------------- the plain recurrence */

static double dsilu(double x)
{
    return x / (1 + exp(-x));
}

struct plain {
    double *c;     /* (channels) after the convolution */
    double *state; /* (n_v_heads, k_dim, v_dim) */
};

static double input(const struct lab *l, int32_t text, int32_t pos, int32_t i)
{
    const float x = l->text[text][(size_t)pos * (size_t)l->ld + (size_t)i];
    return i < l->channels && l->shape.conv_dtype == SV_BF16
               ? (double)sv_bf16_to_f32(sv_f32_to_bf16(x))
               : (double)x;
}

static void plain_conv(const struct lab *l, struct plain *p, int32_t text, int32_t pos)
{
    const struct sv_gdn_shape *s = &l->shape;
    for (int32_t i = 0; i < l->channels; i++) {
        double sum = 0;
        for (int32_t t = 0; t < SV_GDN_TAPS; t++)
            if (pos - 3 + t >= 0)
                sum += rig_weight_at(&l->conv, (int64_t)t * l->channels + i) *
                       input(l, text, pos - 3 + t, i);
        p->c[i] = dsilu(sum);
    }
    for (int32_t h = 0; h < 2 * s->n_k_heads; h++) {
        double *x = p->c + (size_t)h * (size_t)s->k_dim, sum = 1e-6;
        for (int32_t i = 0; i < s->k_dim; i++)
            sum += x[i] * x[i];
        for (int32_t i = 0; i < s->k_dim; i++)
            x[i] /= sqrt(sum) * (h < s->n_k_heads ? sqrt(s->k_dim) : 1);
        for (int32_t i = 0; i < s->k_dim && h >= s->n_k_heads && s->conv_dtype == SV_BF16; i++)
            x[i] = rint(x[i] / (double)SV_GDN_KEY_STEP) * (double)SV_GDN_KEY_STEP;
    }
}

static void plain_head(const struct lab *l, struct plain *p, int32_t text, int32_t pos, int32_t h,
                       double *out)
{
    const struct sv_gdn_shape *s = &l->shape;
    const int32_t kh = h / (s->n_v_heads / s->n_k_heads), z = l->channels + h * s->v_dim;
    const double *q = p->c + (size_t)kh * (size_t)s->k_dim, *k = q + s->n_k_heads * s->k_dim;
    const double *v = p->c + 2 * s->n_k_heads * s->k_dim + (size_t)h * (size_t)s->v_dim;
    const double b = input(l, text, pos, l->channels + l->width + h);
    const double a = input(l, text, pos, l->channels + l->width + s->n_v_heads + h);
    const double g = rig_weight_at(&l->decay, h) * log1p(exp(a + rig_weight_at(&l->dt_bias, h)));
    double sum = 0;
    for (int32_t c = 0; c < s->v_dim; c++) {
        double *col = p->state + (size_t)h * (size_t)(s->k_dim * s->v_dim) + c, sk = 0;
        for (int32_t d = 0; d < s->k_dim; d++)
            sk += (col[d * s->v_dim] *= exp(g)) * k[d];
        const double u = (v[c] - sk) / (1 + exp(-b));
        out[c] = 0;
        for (int32_t d = 0; d < s->k_dim; d++)
            out[c] += (col[d * s->v_dim] += k[d] * u) * q[d];
        sum += out[c] * out[c];
    }
    for (int32_t c = 0; c < s->v_dim; c++)
        out[c] *= rig_weight_at(&l->norm, c) / sqrt(sum / s->v_dim + 1e-6) *
                  dsilu(input(l, text, pos, z + c));
}

static void against_recurrence(struct sv_dev *dev, struct sv_gdn_shape shape)
{
    /* A key's number may round the other way, by a step of 3e-5. */
    const double tol = shape.conv_dtype == SV_F32 ? 3e-5 : 3e-4;
    struct lab l;
    struct plain p;
    lab_open(&l, dev, shape);
    p.c = rig_new((size_t)l.channels * sizeof *p.c);
    const size_t state = (size_t)l.width * (size_t)shape.k_dim * sizeof *p.state;
    p.state = rig_new(state);
    double *out = rig_new((size_t)shape.v_dim * sizeof *out);
    for (int32_t t = 0; t < 2; t++) {
        run_one(&l, t, t, 0, LENGTH, LENGTH);
        memset(p.state, 0, state);
        for (int32_t pos = 0; pos < LENGTH; pos++) {
            const float *got = l.want[t] + (size_t)pos * (size_t)l.width;
            plain_conv(&l, &p, t, pos);
            for (int32_t h = 0; h < shape.n_v_heads; h++) {
                plain_head(&l, &p, t, pos, h, out);
                for (int32_t c = 0; c < shape.v_dim; c++)
                    rig_near((double)got[h * shape.v_dim + c], out[c], tol, "row", pos);
            }
        }
    }
    rig_free(out), rig_free(p.c), rig_free(p.state);
    lab_close(&l);
}

static void recurrence_on(struct sv_dev *dev)
{
    struct sv_gdn_shape half = SMALL;
    half.conv_dtype = SV_BF16;
    against_recurrence(dev, SMALL);
    against_recurrence(dev, ODD);
    against_recurrence(dev, LARGE);
    against_recurrence(dev, half);
}

static void recurrence(void **state)
{
    (void)state;
    rig_each(recurrence_on);
}

/* ---------------------------------------------------------------- bits */

/* Texts are cut at random into single rows, prompt chunks, and blocks of which a part is rejected,
 * several texts in one pass; at the end they are remembered as after single rows. */
static void cut(struct lab *l, const char *whole)
{
    int32_t at[TEXTS] = {0}, n_open = TEXTS;
    lab_clear(l);
    while (n_open) {
        for (int32_t t = n_open = 0; t < TEXTS; t++) {
            const int32_t left = LENGTH - 1 - at[t], kind = (int32_t)sv_rng_below(&l->rng, 4);
            int32_t n = kind == 0   ? 1
                        : kind == 1 ? l->shape.max_block
                                    : 1 + (int32_t)sv_rng_below(&l->rng, 40);
            int32_t n_true = n;
            if (kind == 3 || left == 0)
                continue; /* not in this pass */
            if (kind == 1)
                n_true = 1 + (int32_t)sv_rng_below(&l->rng, (uint32_t)n);
            n_true = n_true < left ? n_true : left;
            n = kind == 1 ? n : n_true;
            add(l, t, t, at[t], n, n_true);
            at[t] += n_true;
        }
        for (int32_t t = 0; t < TEXTS; t++)
            n_open += at[t] < LENGTH - 1;
        if (l->n_in)
            run(l, (int32_t)sv_rng_below(&l->rng, 3));
    }
    for (int32_t t = 0; t < TEXTS; t++)
        same_memory(l, slot_at(l, t), whole + (size_t)t * (size_t)l->layout.n_bytes, t, LENGTH - 1);
}

static void cuts_of(struct sv_dev *dev, struct sv_gdn_shape shape, int n_cuts)
{
    struct lab l;
    lab_open(&l, dev, shape);
    learn(&l);
    const size_t n_bytes = TEXTS * (size_t)l.layout.n_bytes;
    for (int32_t t = 0; t < TEXTS; t++)
        run_one(&l, t, t, 0, LENGTH - 1, LENGTH - 1);
    char *whole = memcpy(rig_new(n_bytes), l.slots, n_bytes);
    for (int i = 0; i < n_cuts; i++)
        cut(&l, whole);
    rig_free(whole);
    lab_close(&l);
}

static void cuts_on(struct sv_dev *dev)
{
    struct sv_gdn_shape s = SMALL;
    cuts_of(dev, s, 40);
    s.max_block = 1; /* without a drafter */
    cuts_of(dev, s, 10);
    s.max_block = 7;
    cuts_of(dev, s, 10);
    s.max_block = 40;
    cuts_of(dev, s, 10);
    s.max_block = 16;
    s.conv_dtype = SV_BF16;
    cuts_of(dev, s, 10);
    cuts_of(dev, ODD, 5);
    cuts_of(dev, LARGE, 3);
}

static void cuts(void **state)
{
    (void)state;
    rig_each(cuts_on);
}

/* Every accept length at every position modulo the chunk, twice in a row: the rows after it and
 * what is remembered are those of single rows. */
static void accepts_on(struct sv_dev *dev)
{
    enum { FIRST = 33 };
    struct lab l;
    lab_open(&l, dev, SMALL);
    const size_t n = (size_t)l.layout.n_bytes;
    char *alone = rig_new(LENGTH * n); /* block before each position, by single rows */
    for (int32_t pos = 0; pos < LENGTH; pos++) {
        memcpy(alone + (size_t)pos * n, slot_at(&l, 0), n);
        run_one(&l, 0, 0, pos, 1, 1);
    }
    for (int32_t c = 0; c <= FIRST; c++)
        for (int32_t a = 1; a <= l.shape.max_block; a++) {
            memcpy(slot_at(&l, 1), alone + (size_t)c * n, n);
            run_one(&l, 1, 0, c, l.shape.max_block, a);
            same_memory(&l, slot_at(&l, 1), alone + (size_t)(c + a) * n, 0, c + a);
            const int32_t b = 1 + (a * 7 + c) % l.shape.max_block;
            run_one(&l, 1, 0, c + a, l.shape.max_block, b);
            same_memory(&l, slot_at(&l, 1), alone + (size_t)(c + a + b) * n, 0, c + a + b);
        }
    rig_free(alone);
    lab_close(&l);
}

static void accepts(void **state)
{
    (void)state;
    rig_each(accepts_on);
}

/* Threads, and the width of a block that a slot has room for, change no bit. */
static void threads(void **state)
{
    (void)state;
    static const int32_t widths[] = {16, 1, 5, 33};
    for (int kind = 0; kind < 2; kind++) {
        struct lab first = {0};
        for (int n = 1; n <= 4; n++) {
            struct sv_dev *dev = rig_open(SV_ISA_AUTO, n, SV_F32);
            struct sv_gdn_shape s = kind ? LARGE : SMALL;
            struct lab l;
            s.max_block = widths[n - 1];
            lab_open(&l, dev, s);
            for (int32_t t = 0; t < TEXTS; t++)
                add(&l, t, t, 0, 40 + t, 40 + t);
            run(&l, 1);
            if (n == 1)
                first = l;
            for (int32_t t = 0; t < TEXTS && n > 1; t++)
                same(l.want[t], first.want[t], (size_t)(40 + t) * (size_t)l.width * sizeof(float),
                     "output", 40 + t);
            if (n > 1)
                lab_close(&l);
            sv_dev_close(dev);
        }
        lab_close(&first);
    }
}

/* A cleared block stands before any position: engines measure passes that begin anywhere. */
static void cleared(void **state)
{
    (void)state;
    struct sv_dev *dev = rig_open(SV_ISA_AUTO, 2, SV_F32);
    struct lab l;
    lab_open(&l, dev, SMALL);
    add(&l, 0, 0, 70, 20, 20);
    run(&l, 0);
    lab_clear(&l);
    for (int32_t pos = 70; pos < 90; pos++)
        run_one(&l, 0, 0, pos, 1, 1);
    lab_close(&l);
    sv_dev_close(dev);
}

/* Bytes of a layer beside what is the least: a state, three rows before the convolution and 16 rows
 * of k, u, G, all in f32. */
static double beside_least(const struct sv_gdn_shape *s)
{
    const double key = (double)s->n_k_heads * s->k_dim, value = (double)s->n_v_heads * s->v_dim;
    return (double)sv_gdn_block_of(s).n_bytes /
           (4 * (value * s->k_dim + 3.0 * sv_gdn_channels(s) + 16 * (key + value + s->n_v_heads)));
}

/* Per sequence and layer, of the published shapes; in f32 more than 1.2 of the least. */
static void memory(void **state)
{
    (void)state;
    static const struct {
        int32_t v_heads;
        double bf16, f32;
    } cases[] = {{16, 1.197, 1.451}, {32, 1.173, 1.337}, {48, 1.164, 1.295}, {64, 1.159, 1.274}};
    for (int i = 0; i < 4; i++) {
        for (int full = 0; full < 2; full++) {
            const struct sv_gdn_shape wide = {.n_k_heads = 16,
                                              .n_v_heads = cases[i].v_heads,
                                              .k_dim = 128,
                                              .v_dim = 128,
                                              .max_block = 16,
                                              .conv_dtype = full ? SV_F32 : SV_BF16};
            struct sv_gdn_shape s = wide;
            s.max_block = 1;
            print_message("%d value heads, %s, MiB for each layer: %.2f, %.3f of the least; with "
                          "blocks of 16 %.2f, %.3f\n",
                          (int)cases[i].v_heads, full ? "f32" : "bf16",
                          (double)sv_gdn_block_of(&s).n_bytes / (1 << 20), beside_least(&s),
                          (double)sv_gdn_block_of(&wide).n_bytes / (1 << 20), beside_least(&wide));
            assert_true(beside_least(&wide) <= (full ? cases[i].f32 : cases[i].bf16));
            assert_true(beside_least(&s) <= (full ? 1.03 : 1));
            assert_int_equal(sv_gdn_block_of(&s).ring, 16);
            assert_int_equal(sv_gdn_block_of(&wide).ring, 31);
        }
    }
}

SV_TEST_MAIN(cmocka_unit_test(recurrence), cmocka_unit_test(cuts), cmocka_unit_test(accepts),
             cmocka_unit_test(threads), cmocka_unit_test(cleared), cmocka_unit_test(memory))
