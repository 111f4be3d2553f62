/*
 * test_cross_gdn.c - the gated delta rule on every device of this machine: each op's numbers
 * against the CPU in f32, which follows the same passes with a memory of its own; and on each
 * device the bits of outputs and states for texts cut into single rows, prompt chunks and blocks
 * with rejected rows, with every accept length at every position modulo 16. What gated attention
 * and gated experts need beside it as well.
 *
 * timeout: 240
 *
 * Without a GPU only the CPU's plain kernels are held against its best ones, and the test says so.
 */
#include "backend/cross.h"
#include "backend/ops_gdn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS = 3, LENGTH = 96, SLOTS = 18 };

struct lab {
    struct cross *c;
    struct sv_gdn_shape s;
    struct sv_gdn_block y;
    int32_t channels, width, ld; /* ld: q|k|v|z|b|a */
    struct cross_weight conv, decay, dt_bias, norm;
    float *text[TEXTS]; /* (LENGTH, ld) */
    float *want[TEXTS]; /* (LENGTH, width) what the device's scan gave first; its norm: */
    float *want_out[TEXTS];
    bool known[TEXTS][LENGTH];
    struct cross_buf slots; /* (SLOTS, y.n_bytes) */
    struct rig_batch b;
    int32_t most; /* rows of a segment, as the op is told */
    float *x;     /* (RIG_MAX_ROWS, ld) */
    int32_t row_text[RIG_MAX_ROWS];
    double tol, key_tol;
};

static const struct sv_gdn_shape SMALL = {
    .n_k_heads = 2, .n_v_heads = 4, .k_dim = 16, .v_dim = 32, .max_block = 16};
static const struct sv_gdn_shape ODD = {
    .n_k_heads = 1, .n_v_heads = 3, .k_dim = 48, .v_dim = 80, .max_block = 16};
static const struct sv_gdn_shape LARGE = {
    .n_k_heads = 4, .n_v_heads = 8, .k_dim = 128, .v_dim = 128, .max_block = 16};

static struct cross_weight vector_of(struct cross *c, const float *values, int32_t n)
{
    struct cross_weight w = {.ref = rig_weight(&c->rng, SV_F32, 1, n, 0, 0)};
    struct sv_err err;
    memcpy((void *)(uintptr_t)w.ref.data, values, (size_t)n * sizeof *values);
    if (sv_dev_upload_weight(c->dut, &w.ref, &w.dut, &err))
        fail_msg("%s: %s", c->name, err.msg);
    return w;
}

static void clear(struct lab *l)
{
    memset(l->slots.ref, 0, l->slots.n * 4);
    sv_dev_copy(l->c->dut, l->slots.dut, NULL, l->slots.n * 4);
}

static void lab_open(struct lab *l, struct cross *c, struct sv_gdn_shape shape)
{
    memset(l, 0, sizeof *l);
    l->c = c;
    l->s = shape;
    l->s.conv_dtype = c->bf16 ? SV_BF16 : SV_F32;
    /* Of the scan: numbers in fewer parts, keys that may round the other way. */
    l->tol = c->bf16 ? 3e-4 : 2e-5;
    l->key_tol = c->bf16 ? 1.1 * (double)SV_GDN_KEY_STEP : 2e-5; /* may round the other way */
    l->y = sv_gdn_block_of(&l->s);
    l->channels = sv_gdn_channels(&l->s);
    l->width = shape.n_v_heads * shape.v_dim;
    l->ld = l->channels + l->width + 2 * shape.n_v_heads;
    float decay[64], bias[64];
    for (int32_t h = 0; h < shape.n_v_heads; h++) {
        decay[h] = -expf(1.5f - 3.0f * (float)(h % 5));
        bias[h] = sv_rng_normal(&c->rng);
    }
    l->conv = cross_weight(c, SV_F32, SV_GDN_TAPS, l->channels, 0.6f, 0);
    l->decay = vector_of(c, decay, shape.n_v_heads);
    l->dt_bias = vector_of(c, bias, shape.n_v_heads);
    l->norm = cross_norm(c, SV_BF16, shape.v_dim, 0.25f);
    for (int t = 0; t < TEXTS; t++) {
        l->text[t] = rig_floats(&c->rng, (size_t)LENGTH * (size_t)l->ld, 1);
        l->want[t] = rig_new((size_t)LENGTH * (size_t)l->width * sizeof(float));
        l->want_out[t] = rig_new((size_t)LENGTH * (size_t)l->width * sizeof(float));
    }
    l->x = rig_new((size_t)RIG_MAX_ROWS * (size_t)l->ld * sizeof(float));
    l->slots = cross_new(c, CROSS_F32, SLOTS * (size_t)l->y.n_bytes / 4, NULL, 0);
    clear(l);
    rig_batch_init(&l->b);
}

static void lab_close(struct lab *l)
{
    struct cross_weight *w[] = {&l->conv, &l->decay, &l->dt_bias, &l->norm};
    for (int i = 0; i < 4; i++)
        cross_weight_free(l->c, w[i]);
    for (int t = 0; t < TEXTS; t++) {
        rig_free(l->text[t]);
        rig_free(l->want[t]);
        rig_free(l->want_out[t]);
    }
    rig_free(l->x);
    cross_free(l->c, &l->slots);
}

static void *slot_at(const struct lab *l, int side, int32_t slot)
{
    return (char *)cross_at(&l->slots, side) + (size_t)slot * (size_t)l->y.n_bytes;
}

static void copy_slot(struct lab *l, int32_t to, int32_t from)
{
    memcpy(slot_at(l, 0, to), slot_at(l, 0, from), (size_t)l->y.n_bytes);
    sv_dev_copy(l->c->dut, slot_at(l, 1, to), slot_at(l, 1, from), (size_t)l->y.n_bytes);
}

static uint8_t *device_slot(struct lab *l, int32_t slot)
{
    uint8_t *p = malloc((size_t)l->y.n_bytes);
    sv_dev_download(l->c->dut, p, slot_at(l, 1, slot), (size_t)l->y.n_bytes);
    cross_sync(l->c);
    return p;
}

/* A segment of n rows of a text from position base on, those from n_true on with other inputs. */
static void add(struct lab *l, int32_t slot, int32_t text, int32_t base, int32_t n, int32_t n_true)
{
    const int32_t first = l->b.rows.n_rows;
    rig_batch_add(&l->b, slot, base, n);
    for (int32_t i = 0; i < n; i++) {
        float *x = l->x + (size_t)(first + i) * (size_t)l->ld;
        l->row_text[first + i] = i < n_true ? text : -1;
        if (i < n_true)
            memcpy(x, l->text[text] + (size_t)(base + i) * (size_t)l->ld,
                   (size_t)l->ld * sizeof *x);
        else
            for (int32_t c = 0; c < l->ld; c++)
                x[c] = 2 * sv_rng_normal(&l->c->rng);
    }
}

struct middle {
    struct cross_buf x, room, scanned, out;
    struct sv_gdn_rows r[2];
};

static void ops(struct lab *l, int side, const struct sv_rows *rows, struct middle *m)
{
    struct cross *c = l->c;
    struct sv_dev *dev = cross_dev(c, side);
    const struct sv_gdn_shape *s = &l->s;
    const struct sv_gdn_slots slots = {cross_at(&l->slots, side), l->y.n_bytes};
    sv_gdn_rows_lay_out(&m->r[side], s, rows->n_rows, cross_at(&m->room, side));
    const struct sv_p_gdn p = {
        .conv = {.rows = *rows,
                 .shape = *s,
                 .slots = slots,
                 .x = cross_at(&m->x, side),
                 .b = cross_act(c, &m->x, side, l->channels + l->width),
                 .a = cross_act(c, &m->x, side, l->channels + l->width + s->n_v_heads),
                 .ldx = l->ld,
                 .conv = side ? l->conv.dut : l->conv.ref,
                 .decay = side ? l->decay.dut : l->decay.ref,
                 .dt_bias = side ? l->dt_bias.dut : l->dt_bias.ref,
                 .out = m->r[side]},
        .scan = {.rows = *rows,
                 .shape = *s,
                 .slots = slots,
                 .x = m->r[side],
                 .out = cross_at(&m->scanned, side)},
        .norm = {.rows = *rows,
                 .shape = *s,
                 .slots = slots,
                 .mid = m->r[side],
                 .x = cross_at(&m->scanned, side),
                 .z = cross_act(c, &m->x, side, l->channels),
                 .ldz = l->ld,
                 .weight = side ? l->norm.dut : l->norm.ref,
                 .eps = 1e-6f,
                 .out = cross_at(&m->out, side)},
        .most = l->most,
    };
    sv_op_gdn(dev, &p);
}

/* ---------------------------------------------------------------- numbers */

/* n floats at p on both sides; their place in `all`, the device's copy of the buffer. */
static void near_floats(struct cross *c, const struct cross_buf *b, const float *all, const void *p,
                        size_t n, double tol, const char *what)
{
    const size_t at = (size_t)((const float *)p - (const float *)b->ref);
    for (size_t i = 0; i < n; i++) {
        const double want = (double)((const float *)b->ref)[at + i], got = (double)all[at + i];
        if (!(fabs(got - want) <= tol * (fabs(want) > 1 ? fabs(want) : 1)))
            fail_msg("%s: %s [%zu]: %.9g, expected %.9g", c->name, what, i, got, want);
    }
}

/* Heads of d queries or keys, of a device in bf16: parts become the numbers that they are of. */
static void whole_numbers(float *v, size_t n, size_t d, bool parts)
{
    uint16_t head[2 * SV_GDN_MAX_DIM];
    for (size_t i = 0; parts && i < n; i++) {
        if (i % d == 0)
            memcpy(head, v + i, d * sizeof *v);
        v[i] = sv_bf16_to_f32(head[i % d]) + sv_bf16_to_f32(head[d + i % d]);
    }
}

static void compare(struct lab *l, struct middle *m)
{
    struct cross *c = l->c;
    const struct sv_gdn_shape *s = &l->s;
    const struct sv_gdn_rows *r = &m->r[0];
    const size_t nv = (size_t)s->n_v_heads, nk = (size_t)s->n_k_heads;
    float *room = cross_floats(c, &m->room), *slots = cross_floats(c, &l->slots);
    /* Few rows may leave nothing in between. */
    const bool few = l->most && l->most <= s->max_block && l->most <= SV_GDN_CHUNK;
    for (int32_t i = 0; i < l->b.rows.n_rows && !few; i++) {
        const size_t row = (size_t)i, line = (size_t)l->b.row_pos[i] % SV_GDN_CHUNK;
        const float *const qkv = r->qkv + row * (size_t)l->channels;
        const size_t n_qk = 2 * nk * (size_t)s->k_dim;
        whole_numbers(room + (qkv - (const float *)m->room.ref), n_qk, (size_t)s->k_dim, c->bf16);
        near_floats(c, &m->room, room, qkv, (size_t)l->channels, l->key_tol, "gdn: convolution");
        near_floats(c, &m->room, room, r->gate + row * 2 * nv, 2 * nv, 2e-5, "gdn: gates");
        for (size_t h = 0; h < 2 * nk; h++)
            near_floats(c, &m->room, room, r->dots + (row * 2 * nk + h) * SV_GDN_CHUNK, line + 1,
                        2 * l->key_tol, "gdn: products of keys");
    }
    const size_t live = (size_t)l->b.rows.n_rows * (size_t)l->width;
    cross_same(c, &m->scanned, 0, live, l->tol, "gdn: scan");
    cross_same(c, &m->out, 0, live, c->bf16 ? c->tol : 1e-4, "gdn: norm");
    for (int32_t g = 0; g < l->b.rows.n_segs; g++) {
        const char *at = slot_at(l, 0, l->b.seg_slot[g]);
        const size_t w = (size_t)l->width, first = (size_t)(at - (char *)l->slots.ref) / 4;
        assert_memory_equal(at, slots + first, sizeof(int32_t));
        near_floats(c, &l->slots, slots, at + l->y.state, w * (size_t)s->k_dim, l->tol,
                    "gdn: state");
        near_floats(c, &l->slots, slots, at + l->y.u, w * (size_t)l->y.ring, l->tol, "gdn: u");
    }
    free(room), free(slots);
}

/* ---------------------------------------------------------------- passes */

/* One pass over the batch on the device, and on the reference if `both`: rows of a text must have
 * the bits they had before. */
static void run(struct lab *l, int32_t n_padding, bool both)
{
    struct cross *c = l->c;
    /* Some passes of few rows are taken as any others. */
    const bool in_one = sv_rng_below(&c->rng, 3);
    l->most = 0;
    for (int32_t g = 0; g < l->b.rows.n_segs && in_one; g++) {
        const int32_t len = l->b.seg_row0[g + 1] - l->b.seg_row0[g];
        l->most = len > l->most ? len : l->most;
    }
    struct cross_rows rows = cross_rows(c, &l->b, n_padding, n_padding);
    const size_t n = (size_t)rows.rows[0].n_rows;
    float *x = calloc(n * (size_t)l->ld, sizeof *x);
    memcpy(x, l->x, (size_t)l->b.rows.n_rows * (size_t)l->ld * sizeof *x);
    struct sv_gdn_rows none;
    struct middle m = {.x = cross_new(c, CROSS_ACT, n * (size_t)l->ld, x, 0),
                       .room = cross_new(c, CROSS_F32,
                                         sv_gdn_rows_lay_out(&none, &l->s, (int32_t)n, NULL) / 4,
                                         NULL, 0),
                       .scanned = cross_new(c, CROSS_F32, n * (size_t)l->width, NULL, 0),
                       .out = cross_new(c, CROSS_ACT, n * (size_t)l->width, NULL, 0)};
    free(x);
    for (int side = !both; side < 2; side++)
        ops(l, side, &rows.rows[side], &m);
    cross_sync(c);
    if (both)
        compare(l, &m);
    float *got = cross_floats(c, &m.scanned), *normed = cross_floats(c, &m.out);
    for (int32_t r = 0; r < l->b.rows.n_rows; r++) {
        const int32_t t = l->row_text[r], pos = l->b.row_pos[r];
        if (t < 0)
            continue;
        float *want = l->want[t] + (size_t)pos * (size_t)l->width;
        float *want_out = l->want_out[t] + (size_t)pos * (size_t)l->width;
        const float *row = got + (size_t)r * (size_t)l->width,
                    *out = normed + (size_t)r * (size_t)l->width;
        if (l->known[t][pos] && (memcmp(want, row, (size_t)l->width * sizeof *row) ||
                                 memcmp(want_out, out, (size_t)l->width * sizeof *out)))
            fail_msg("%s: gdn: text %d position %d: other bits", c->name, t, pos);
        memcpy(want, row, (size_t)l->width * sizeof *row);
        memcpy(want_out, out, (size_t)l->width * sizeof *out);
        l->known[t][pos] = true;
    }
    free(got), free(normed);
    struct cross_buf *all[] = {&m.x, &m.room, &m.scanned, &m.out};
    for (int i = 0; i < 4; i++)
        cross_free(c, all[i]);
    cross_rows_free(c, &rows);
    rig_batch_init(&l->b);
}

static void run_one(struct lab *l, int32_t slot, int32_t text, int32_t base, int32_t n,
                    int32_t n_true)
{
    add(l, slot, text, base, n, n_true);
    run(l, 0, false);
}

/* ---------------------------------------------------------------- bits */

static void same(struct lab *l, const uint8_t *a, const uint8_t *b, int64_t at, size_t n,
                 const char *what, int32_t pos)
{
    if (memcmp(a + at, b + at, n))
        fail_msg("%s: gdn: %s at position %d: other bits", l->c->name, what, pos);
}

/* Two blocks of the device that end with a prompt chunk, by which all is folded that can be,
 * remember the same c positions. */
static void same_memory(struct lab *l, const uint8_t *a, const uint8_t *b, int32_t c)
{
    const struct sv_gdn_block *y = &l->y;
    const size_t row = (size_t)l->channels * sv_dtype_bytes(l->s.conv_dtype),
                 kd = (size_t)l->s.k_dim * (l->s.conv_dtype == SV_F32 ? 4 : 2),
                 vd = (size_t)l->s.v_dim * 4;
    same(l, a, b, 0, 4 * (size_t)l->s.n_v_heads, "position", c);
    same(l, a, b, y->state, (size_t)(y->k - y->state), "state", c);
    for (int32_t pos = c / SV_GDN_CHUNK * SV_GDN_CHUNK; pos < c; pos++) {
        const int64_t at = pos % y->ring, k_at = pos % y->k_ring;
        for (int32_t h = 0; h < l->s.n_k_heads; h++)
            same(l, a, b, y->k + (h * y->k_ring + k_at) * (int64_t)kd, kd, "key", pos);
        for (int32_t h = 0; h < l->s.n_v_heads; h++) {
            same(l, a, b, y->u + (h * y->ring + at) * (int64_t)vd, vd, "u", pos);
            same(l, a, b, y->g + (h * y->ring + at) * 4, 4, "G", pos);
        }
    }
    for (int32_t pos = c < 3 ? 0 : c - 3; pos < c; pos++)
        same(l, a, b, y->conv + pos % y->conv_ring * (int64_t)row, row, "convolution row", pos);
}

/* Texts as single rows; then cut at random into single rows, prompt chunks, and blocks of which a
 * part is rejected, several texts in one pass. A prompt chunk ends each. */
static void cuts_of(struct cross *c, struct sv_gdn_shape shape, int n_cuts)
{
    struct lab l;
    lab_open(&l, c, shape);
    const int32_t tail = shape.max_block + 1, end = LENGTH - tail;
    uint8_t *whole[TEXTS];
    for (int32_t t = 0; t < TEXTS; t++)
        add(&l, t, t, 0, LENGTH, LENGTH); /* so long that a GPU fetches chunks ahead */
    run(&l, 0, true);
    for (int32_t t = 0; t < TEXTS; t++)
        whole[t] = device_slot(&l, t);
    clear(&l);
    for (int32_t pos = 0; pos < LENGTH; pos++) {
        for (int32_t t = 0; t < TEXTS; t++)
            add(&l, t, t, pos, 1, 1);
        run(&l, 0, true);
    }
    for (int i = 0; i < n_cuts; i++) {
        int32_t at[TEXTS] = {0}, n_open = TEXTS;
        clear(&l);
        while (n_open) {
            const bool alone = sv_rng_below(&c->rng, 2); /* single rows, all of them */
            for (int32_t t = n_open = 0; t < TEXTS; t++) {
                const int32_t left = end - at[t],
                              kind = alone ? 0 : (int32_t)sv_rng_below(&c->rng, 4);
                int32_t n = kind == 0   ? 1
                            : kind == 1 ? shape.max_block
                                        : 1 + (int32_t)sv_rng_below(&c->rng, 40);
                int32_t n_true = kind == 1 ? 1 + (int32_t)sv_rng_below(&c->rng, (uint32_t)n) : n;
                if (kind == 3 || left == 0)
                    continue;
                n_true = n_true < left ? n_true : left;
                add(&l, t, t, at[t], kind == 1 ? n : n_true, n_true);
                at[t] += n_true;
            }
            for (int32_t t = 0; t < TEXTS; t++)
                n_open += at[t] < end;
            if (l.b.rows.n_rows)
                run(&l, (int32_t)sv_rng_below(&c->rng, 3), true);
        }
        for (int32_t t = 0; t < TEXTS; t++) {
            run_one(&l, t, t, end, tail, tail);
            uint8_t *now = device_slot(&l, t);
            same_memory(&l, now, whole[t], LENGTH);
            free(now);
        }
    }
    for (int32_t t = 0; t < TEXTS; t++)
        free(whole[t]);
    lab_close(&l);
}

static bool lacks_rule(const struct cross *c)
{
    struct sv_err err;
    if (!sv_dev_check_gdn(c->dut, 128, &err))
        return false;
    print_message("%s: NOT checked: %s\n", c->name, err.msg);
    return true;
}

static void cuts_on(struct cross *c)
{
    static const int32_t blocks[] = {16, 1, 7, 40};
    if (lacks_rule(c))
        return;
    for (int i = 0; i < 4; i++) {
        struct sv_gdn_shape s = SMALL;
        s.max_block = blocks[i];
        cuts_of(c, s, c->quick ? 1 : 8);
    }
    cuts_of(c, ODD, c->quick ? 0 : 4);
    cuts_of(c, LARGE, c->quick ? 0 : 4);
    struct sv_gdn_shape alone = LARGE; /* the shortest rings */
    alone.max_block = 1;
    cuts_of(c, alone, c->quick ? 0 : 2);
}

/* Every accept length at every position modulo 16, two blocks in a row, all lengths in one pass. */
static void accepts_of(struct cross *c, struct sv_gdn_shape shape)
{
    enum { TAIL = SV_GDN_CHUNK + 1, FIRST = 16 };
    struct lab l;
    lab_open(&l, c, shape);
    const int32_t most = shape.max_block, last = FIRST + SV_GDN_CHUNK;
    uint8_t *end[LENGTH] = {NULL}; /* after a chunk from there on */
    for (int32_t pos = 0; pos + TAIL <= LENGTH; pos++) {
        copy_slot(&l, 1, 0);
        run_one(&l, 1, 0, pos, TAIL, TAIL);
        end[pos] = device_slot(&l, 1);
        run_one(&l, 0, 0, pos, 1, 1);
    }
    clear(&l);
    for (int32_t pos = 0; pos < last; pos++) {
        const bool blocks = pos >= FIRST && (!c->quick || pos % 5 == 0);
        for (int step = 0; step < 3 && blocks; step++) {
            for (int32_t a = 1; a <= most; a++) {
                const int32_t b = 1 + (a * 7 + pos) % most;
                if (step == 0)
                    copy_slot(&l, a, 0);
                if (step < 2)
                    add(&l, a, 0, step ? pos + a : pos, most, step ? b : a);
                else
                    add(&l, a, 0, pos + a + b, TAIL, TAIL);
            }
            run(&l, step, false);
        }
        for (int32_t a = 1; a <= most && blocks; a++) {
            const int32_t at = pos + a + 1 + (a * 7 + pos) % most;
            uint8_t *now = device_slot(&l, a);
            same_memory(&l, now, end[at], at + TAIL);
            free(now);
        }
        run_one(&l, 0, 0, pos, 1, 1);
    }
    for (int32_t pos = 0; pos < LENGTH; pos++)
        free(end[pos]);
    lab_close(&l);
}

static void accepts_on(struct cross *c)
{
    if (lacks_rule(c))
        return;
    accepts_of(c, SMALL);
    if (!c->quick)
        accepts_of(c, LARGE);
}

/* ---------------------------------------------------------------- gates beside it */

/* Query heads with their gates between them, as gated attention's projection gives them. */
static void gated_heads(struct cross *c, int32_t hd, int32_t rot, int32_t len)
{
    enum { HEADS = 4, KV = 2 };
    const int32_t ld = (2 * HEADS + 2 * KV) * hd, width = HEADS * hd;
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 0, len);
    rig_batch_add(&b, 1, 0, 3);
    const size_t n = (size_t)b.rows.n_rows + 2, half = (size_t)(rot / 2);
    struct cross_rows rows = cross_rows(c, &b, 2, 1);
    struct cross_buf qkv = cross_new(c, CROSS_ACT, n * (size_t)ld, NULL, 1),
                     out = cross_new(c, CROSS_ACT, n * (size_t)width, NULL, 0),
                     table = cross_new(c, CROSS_F32, 2 * (size_t)len * half, NULL, 0.7f);
    struct cross_weight norm = cross_norm(c, SV_F32, hd, 0.3f);
    struct cross_kv kv = cross_kv(c, 2, len, 16, KV, hd, 0);
    for (int side = 0; side < 2; side++) {
        struct sv_dev *dev = cross_dev(c, side);
        const float *cos = cross_at(&table, side);
        const struct sv_weight w = side ? norm.dut : norm.ref;
        sv_op_qk_norm_rope_kv_write(dev, &(struct sv_p_qk_norm_rope_kv_write){
                                             .rows = rows.rows[side],
                                             .qkv = cross_at(&qkv, side),
                                             .ld = ld,
                                             .n_heads = HEADS,
                                             .q_stride = 2 * hd,
                                             .q_norm = w,
                                             .k_norm = w,
                                             .eps = 1e-6f,
                                             .rope = {cos, cos + (size_t)len * half, len, rot},
                                             .kv = kv.kv[side]});
        sv_op_attention(dev, &(struct sv_p_attention){.rows = rows.rows[side],
                                                      .q = cross_at(&qkv, side),
                                                      .ldq = ld,
                                                      .q_stride = 2 * hd,
                                                      .out = cross_at(&out, side),
                                                      .ldo = width,
                                                      .n_heads = HEADS,
                                                      .kv = kv.kv[side],
                                                      .scale = 1 / sqrtf((float)hd)});
    }
    const size_t live = (size_t)b.rows.n_rows * (size_t)width;
    cross_same(c, &out, 0, live, 2 * c->tol, "gated heads: attention");
    for (int side = 0; side < 2; side++)
        sv_op_sigmoid_mul(cross_dev(c, side),
                          &(struct sv_p_sigmoid_mul){.n_rows = b.rows.n_rows,
                                                     .n_heads = HEADS,
                                                     .head_dim = hd,
                                                     .x = cross_at(&out, side),
                                                     .gate = cross_act(c, &qkv, side, hd),
                                                     .ldg = ld,
                                                     .gate_stride = 2 * hd});
    cross_same(c, &out, 0, live, 2 * c->tol, "gated heads: gate");
    cross_free(c, &qkv), cross_free(c, &out), cross_free(c, &table);
    cross_weight_free(c, &norm), cross_kv_free(c, &kv), cross_rows_free(c, &rows);
}

static void add_gated(struct cross *c)
{
    enum { N = 5, D = 300 };
    struct cross_buf x = cross_new(c, CROSS_ACT, N * D, NULL, 1),
                     y = cross_new(c, CROSS_ACT, N * D, NULL, 1),
                     gate = cross_new(c, CROSS_ACT, N, NULL, 3);
    for (int gated = 1; gated >= 0; gated--) {
        for (int side = 0; side < 2; side++)
            sv_op_add_gated(cross_dev(c, side),
                            &(struct sv_p_add_gated){.n_rows = N,
                                                     .d = D,
                                                     .x = cross_at(&x, side),
                                                     .y = cross_at(&y, side),
                                                     .gate = gated ? cross_at(&gate, side) : NULL});
        cross_same(c, &x, 0, N * D, 2 * c->tol, gated ? "gated sum" : "sum");
    }
    cross_free(c, &x), cross_free(c, &y), cross_free(c, &gate);
}

static void gates_on(struct cross *c)
{
    gated_heads(c, 40, 16, 70);
    gated_heads(c, 128, 32, 70);
    gated_heads(c, 256, 64, c->quick ? 200 : 1200);
    add_gated(c);
}

static void cuts(void **state)
{
    (void)state;
    cross_all(cuts_on);
}

static void accepts(void **state)
{
    (void)state;
    cross_all(accepts_on);
}

static void gates(void **state)
{
    (void)state;
    cross_all(gates_on);
}

SV_TEST_MAIN(cmocka_unit_test(cuts), cmocka_unit_test(accepts), cmocka_unit_test(gates))
