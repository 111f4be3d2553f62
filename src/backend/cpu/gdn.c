/*
 * gdn.c - the gated delta rule: convolution and gates, the scan, the gated norm.
 *
 * Entered through sv_cpu_gdn. The scan is split over value heads and columns of their states, never
 * over rows, and no sum crosses columns: threads change no bit. Data that other threads read in a
 * phase (rings of keys and of rows before the convolution, the record of a block) is written after
 * it. Must not: change a state by a row that may be rejected.
 */
#include "backend/cpu/vec.h"

#include <math.h>
#include <string.h>

enum {
    CHUNK = SV_GDN_CHUNK,
    COLS = 64,   /* columns of a state scanned together: 32 KiB with 128 rows */
    PIECE = 512, /* channels convolved together */
    OLDER = SV_GDN_TAPS - 1
};

/* Views of one slot's block. */
struct block {
    int32_t *pos; /* position of the state */
    float *state, *u, *g;
    void *k;
    char *conv;
};

static struct block block_of(const struct sv_gdn_slots *slots, const struct sv_gdn_block *l,
                             int32_t slot)
{
    char *at = (char *)slots->data + slot * slots->slot_stride;
    return (struct block){.pos = (int32_t *)(void *)at,
                          .state = (float *)(void *)(at + l->state),
                          .k = at + l->k,
                          .u = (float *)(void *)(at + l->u),
                          .g = (float *)(void *)(at + l->g),
                          .conv = at + l->conv};
}

/* Kept keys: key head h, position pos. room (k_dim). */
static const float *kept_key(const struct sv_gdn_shape *s, const struct sv_gdn_block *l,
                             const struct block *b, int32_t h, int32_t pos, float *room)
{
    const int64_t at = ((int64_t)h * l->k_ring + pos % l->k_ring) * s->k_dim;
    const int16_t *steps = (const int16_t *)b->k + at;
    if (s->conv_dtype == SV_F32)
        return (const float *)b->k + at;
    for (int32_t i = 0; i < s->k_dim; i++)
        room[i] = (float)steps[i] * SV_GDN_KEY_STEP;
    return room;
}

static void keep_key(const struct sv_gdn_shape *s, const struct sv_gdn_block *l,
                     const struct block *b, int32_t h, int32_t pos, const float *k)
{
    const int64_t at = ((int64_t)h * l->k_ring + pos % l->k_ring) * s->k_dim;
    int16_t *steps = (int16_t *)b->k + at;
    if (s->conv_dtype == SV_F32)
        memcpy((float *)b->k + at, k, (size_t)s->k_dim * sizeof *k);
    else
        for (int32_t i = 0; i < s->k_dim; i++)
            steps[i] = (int16_t)(k[i] * (1 / SV_GDN_KEY_STEP));
}

static int32_t chunk_at(int32_t pos)
{
    return pos / CHUNK * CHUNK;
}

/* ---------------------------------------------------------------- convolution and gates */

struct conv_job {
    const struct sv_cpu_vec *vec;
    const struct sv_p_gdn_conv *p;
    struct sv_gdn_block layout;
    int32_t channels;
};

/* Tap t of row r in channels [c, c + n): in x, in the ring, or before the text. room (n). */
static const float *tap_of(const struct conv_job *job, const struct block *b, int32_t seg,
                           int32_t r, int t, int32_t c, int32_t n, float *room)
{
    const struct sv_p_gdn_conv *p = job->p;
    const enum sv_dtype dtype = p->shape.conv_dtype;
    const int32_t back = OLDER - t, pos = p->rows.row_pos[r] - back;
    if (pos < 0) {
        memset(room, 0, (size_t)n * sizeof *room);
        return room;
    }
    if (r - back >= p->rows.seg_row0[seg]) {
        const float *x = (const float *)p->x + (r - back) * p->ldx + c;
        uint16_t half[PIECE];
        if (dtype == SV_F32)
            return x;
        job->vec->narrow(half, dtype, x, n);
        job->vec->widen(room, half, dtype, n, 1.0f);
        return room;
    }
    const int64_t at = (int64_t)(pos % job->layout.conv_ring) * job->channels + c;
    const void *kept = b->conv + at * (int64_t)sv_dtype_bytes(dtype);
    if (dtype == SV_F32)
        return kept;
    job->vec->widen(room, kept, dtype, n, 1.0f);
    return room;
}

static void convolve(const struct conv_job *job, const struct block *b, int32_t seg, int32_t r)
{
    float room[SV_GDN_TAPS][PIECE];
    float *out = job->p->out.qkv + (int64_t)r * job->channels;
    for (int32_t c = 0; c < job->channels; c += PIECE) {
        const int32_t n = job->channels - c < PIECE ? job->channels - c : PIECE;
        const float *tap[SV_GDN_TAPS];
        for (int t = 0; t < SV_GDN_TAPS; t++)
            tap[t] = tap_of(job, b, seg, r, t, c, n, room[t]);
        job->vec->conv_silu(out + c, tap, (const float *)job->p->conv.data + c, job->channels, n);
    }
}

static void to_length(const struct sv_cpu_vec *vec, float *x, int32_t n, float length)
{
    const float inv = length / sqrtf(vec->dot(x, x, n) + 1e-6f);
    for (int32_t i = 0; i < n; i++)
        x[i] *= inv;
}

/* To whole steps, of which there are 2^15 - 1 on each side. */
static void to_steps(float *k, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const float x = rintf(k[i] * (1 / SV_GDN_KEY_STEP));
        k[i] = fmaxf(fminf(x, 32767), -32767) * SV_GDN_KEY_STEP;
    }
}

/* beta, and g in place of G */
static void gates(const struct sv_p_gdn_conv *p, int32_t r)
{
    const int32_t nv = p->shape.n_v_heads;
    const float *a = (const float *)p->a + r * p->ldx, *b = (const float *)p->b + r * p->ldx;
    const float *decay = p->decay.data, *bias = p->dt_bias.data;
    float *beta = p->out.gate + (int64_t)r * 2 * nv, *g = beta + nv;
    for (int32_t h = 0; h < nv; h++) {
        const float x = a[h] + bias[h];
        beta[h] = 1.0f / (1.0f + expf(-b[h]));
        g[h] = decay[h] * (x > 20 ? x : log1pf(expf(x)));
    }
}

static void conv_rows(void *arg, int thread, int n)
{
    const struct conv_job *job = arg;
    const struct sv_p_gdn_conv *p = job->p;
    const struct sv_gdn_shape *s = &p->shape;
    int32_t begin, end;
    sv_cpu_share(p->rows.n_rows, thread, n, &begin, &end);
    for (int32_t r = begin; r < end && p->rows.row_seg[r] >= 0; r++) {
        const int32_t seg = p->rows.row_seg[r];
        const struct block b = block_of(&p->slots, &job->layout, p->rows.seg_slot[seg]);
        float *q = p->out.qkv + (int64_t)r * job->channels;
        convolve(job, &b, seg, r);
        for (int32_t h = 0; h < 2 * s->n_k_heads; h++)
            to_length(job->vec, q + (int64_t)h * s->k_dim, s->k_dim,
                      h < s->n_k_heads ? 1.0f / sqrtf((float)s->k_dim) : 1.0f);
        if (s->conv_dtype != SV_F32)
            to_steps(q + (int64_t)s->n_k_heads * s->k_dim, s->n_k_heads * s->k_dim);
        gates(p, r);
    }
}

/* Key of position pos in key head h: of this pass, or committed before it. room (k_dim). */
static const float *key_at(const struct sv_gdn_rows *x, const struct sv_gdn_shape *s,
                           const struct sv_gdn_block *l, const struct sv_rows *rows, int32_t seg,
                           const struct block *b, int32_t h, int32_t pos, float *room)
{
    const int32_t base = rows->seg_base[seg];
    if (pos >= base)
        return x->qkv + (int64_t)(rows->seg_row0[seg] + pos - base) * sv_gdn_channels(s) +
               (int64_t)(s->n_k_heads + h) * s->k_dim;
    return kept_key(s, l, b, h, pos, room);
}

/* Products of a row's key and query with the keys of its chunk up to its own. */
static void dots(const struct conv_job *job, const struct block *b, int32_t seg, int32_t r)
{
    const struct sv_p_gdn_conv *p = job->p;
    const struct sv_gdn_shape *s = &p->shape;
    const int32_t pos = p->rows.row_pos[r], first = chunk_at(pos);
    for (int32_t h = 0; h < s->n_k_heads; h++) {
        const float *q = p->out.qkv + (int64_t)r * job->channels + (int64_t)h * s->k_dim;
        const float *k = q + (int64_t)s->n_k_heads * s->k_dim;
        float *out = p->out.dots + ((int64_t)r * s->n_k_heads + h) * 2 * CHUNK;
        for (int32_t j = first; j <= pos; j++) {
            float room[SV_GDN_MAX_DIM];
            const float *kj = key_at(&p->out, s, &job->layout, &p->rows, seg, b, h, j, room);
            out[j - first] = job->vec->dot(k, kj, s->k_dim);
            out[CHUNK + j - first] = job->vec->dot(q, kj, s->k_dim);
        }
    }
}

/* Rows that a later convolution may read: the last three of a prompt chunk; all of a verify block,
 * of which any number may be kept. */
static void keep_row(const struct conv_job *job, const struct block *b, int32_t seg, int32_t r)
{
    const struct sv_p_gdn_conv *p = job->p;
    const int32_t end = p->rows.seg_row0[seg + 1], n = end - p->rows.seg_row0[seg];
    if (n > p->shape.max_block && r < end - OLDER)
        return;
    const int64_t at = (int64_t)(p->rows.row_pos[r] % job->layout.conv_ring) * job->channels;
    job->vec->narrow(b->conv + at * (int64_t)sv_dtype_bytes(p->shape.conv_dtype),
                     p->shape.conv_dtype, (const float *)p->x + r * p->ldx, job->channels);
}

static void chunk_rows(void *arg, int thread, int n)
{
    const struct conv_job *job = arg;
    const struct sv_p_gdn_conv *p = job->p;
    int32_t begin, end;
    sv_cpu_share(p->rows.n_rows, thread, n, &begin, &end);
    for (int32_t r = begin; r < end && p->rows.row_seg[r] >= 0; r++) {
        const int32_t seg = p->rows.row_seg[r];
        const struct block b = block_of(&p->slots, &job->layout, p->rows.seg_slot[seg]);
        dots(job, &b, seg, r);
        keep_row(job, &b, seg, r);
    }
}

/* g to G: sums from the first row of a chunk on, over this pass's rows of each segment. */
static void sum_gates(const struct conv_job *job)
{
    const struct sv_p_gdn_conv *p = job->p;
    const int32_t nv = p->shape.n_v_heads, ring = job->layout.ring;
    for (int32_t r = 0; r < p->rows.n_rows && p->rows.row_seg[r] >= 0; r++) {
        const int32_t seg = p->rows.row_seg[r], pos = p->rows.row_pos[r];
        const struct block b = block_of(&p->slots, &job->layout, p->rows.seg_slot[seg]);
        float *g = p->out.gate + ((int64_t)r * 2 + 1) * nv;
        if (pos % CHUNK == 0)
            continue;
        for (int32_t h = 0; h < nv; h++)
            g[h] = (r > p->rows.seg_row0[seg] ? g[h - 2 * nv]
                                              : b.g[(int64_t)h * ring + (pos - 1) % ring]) +
                   g[h];
    }
}

static void gdn_conv(struct sv_dev *dev, const struct sv_p_gdn_conv *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct conv_job job = {.vec = cpu->vec,
                           .p = p,
                           .layout = sv_gdn_block_of(&p->shape),
                           .channels = sv_gdn_channels(&p->shape)};
    sv_cpu_run(cpu, conv_rows, &job, (int64_t)p->rows.n_rows * job.channels);
    sum_gates(&job);
    sv_cpu_run(cpu, chunk_rows, &job, (int64_t)p->rows.n_rows * job.channels);
}

/* ---------------------------------------------------------------- scan */

struct scan_job {
    const struct sv_cpu_vec *vec;
    const struct sv_p_gdn_scan *p;
    struct sv_gdn_block layout;
};

/* Scan of some columns of a value head of one segment through its chunks. */
struct scan {
    const struct scan_job *job;
    struct block b;
    int32_t seg, h, kh, col, n_cols;
    int32_t base, end;  /* positions of this pass */
    const float *state; /* (k_dim, ld) columns from col on, before the current chunk */
    int64_t ld;
    const float *k[CHUNK]; /* keys of the chunk */
    float g[CHUNK];
    float u[CHUNK * COLS];
    float products[2 * CHUNK * COLS]; /* S^T k, S^T q of the pass's rows in the chunk */
    float kw[SV_GDN_MAX_DIM * CHUNK];
    float kept_k[SV_GDN_MAX_DIM * CHUNK];
    float own[SV_GDN_MAX_DIM * COLS]; /* a state with rows that may be rejected */
};

/* Rows [from, to) of the chunk at `first` that were committed before this pass. */
static void take_kept(struct scan *x, int32_t first, int32_t to)
{
    const struct sv_gdn_shape *s = &x->job->p->shape;
    const int32_t ring = x->job->layout.ring;
    for (int32_t pos = first, i = 0; pos < to; pos++, i++) {
        const int64_t at = pos % ring;
        x->k[i] = kept_key(s, &x->job->layout, &x->b, x->kh, pos, x->kept_k + i * s->k_dim);
        x->g[i] = x->b.g[(int64_t)x->h * ring + at];
        memcpy(x->u + i * COLS, x->b.u + ((int64_t)x->h * ring + at) * s->v_dim + x->col,
               (size_t)x->n_cols * sizeof(float));
    }
}

/* The state after the chunk, by its 16 rows. */
static void fold(struct scan *x, float *to, int64_t ld)
{
    const struct sv_cpu_vec *vec = x->job->vec;
    const int32_t k_dim = x->job->p->shape.k_dim;
    float weight[CHUNK], last = x->g[CHUNK - 1], decay;
    vec->exp_weights(weight, x->g, CHUNK, last, -1.0f);
    vec->exp_weights(&decay, &last, 1, 0.0f, 1.0f);
    for (int j = 0; j < CHUNK; j++)
        for (int32_t d = 0; d < k_dim; d++)
            x->kw[d * CHUNK + j] = weight[j] * x->k[j][d];
    vec->gdn_fold(to, ld, x->state, x->ld, x->kw, x->u, COLS, decay, k_dim, x->n_cols);
    x->state = to;
    x->ld = ld;
}

/* Row i of the chunk, number r of the pass, n of it in this chunk and segment. */
static void scan_row(struct scan *x, int32_t r, int32_t i, int32_t n)
{
    const struct sv_p_gdn_scan *p = x->job->p;
    const struct sv_gdn_shape *s = &p->shape;
    const struct sv_cpu_vec *vec = x->job->vec;
    const float *dot = p->x.dots + ((int64_t)r * s->n_k_heads + x->kh) * 2 * CHUNK;
    const float *sk = x->products + (int64_t)n * 2 * COLS;
    float weight[CHUNK], kk[CHUNK], qk[CHUNK], decay;
    vec->exp_weights(weight, x->g, i + 1, x->g[i], -1.0f);
    vec->exp_weights(&decay, &x->g[i], 1, 0.0f, 1.0f);
    for (int32_t j = 0; j <= i; j++) {
        kk[j] = weight[j] * dot[j];
        qk[j] = weight[j] * dot[CHUNK + j];
    }
    vec->gdn_row(&(struct sv_cpu_gdn_row){
        .n_before = i,
        .n_cols = x->n_cols,
        .sk = sk,
        .sq = sk + COLS,
        .v = p->x.qkv + (int64_t)r * sv_gdn_channels(s) + 2 * (int64_t)s->n_k_heads * s->k_dim +
             (int64_t)x->h * s->v_dim + x->col,
        .kk = kk,
        .qk = qk,
        .beta = p->x.gate[(int64_t)r * 2 * s->n_v_heads + x->h],
        .decay = decay,
        .u = x->u,
        .ldu = COLS,
        .out = p->out + ((int64_t)r * s->n_v_heads + x->h) * s->v_dim + x->col,
    });
}

/* The pass's rows in the chunk at `first`. */
static void scan_chunk(struct scan *x, int32_t first)
{
    const struct sv_p_gdn_scan *p = x->job->p;
    const struct sv_gdn_shape *s = &p->shape;
    const int32_t lo = first > x->base ? first : x->base;
    const int32_t hi = first + CHUNK < x->end ? first + CHUNK : x->end;
    const int32_t row0 = p->rows.seg_row0[x->seg] - x->base;
    const int64_t channels = sv_gdn_channels(s);
    const float *keys[2 * CHUNK];
    take_kept(x, first, lo);
    for (int32_t pos = lo, n = 0; pos < hi; pos++, n++) {
        const float *q = p->x.qkv + (row0 + pos) * channels + (int64_t)x->kh * s->k_dim;
        keys[2 * n] = x->k[pos - first] = q + (int64_t)s->n_k_heads * s->k_dim;
        keys[2 * n + 1] = q;
        x->g[pos - first] = p->x.gate[((int64_t)(row0 + pos) * 2 + 1) * s->n_v_heads + x->h];
    }
    x->job->vec->gdn_product(x->products, COLS, keys, 2 * (hi - lo), x->state, x->ld, s->k_dim,
                             x->n_cols);
    for (int32_t pos = lo; pos < hi; pos++)
        scan_row(x, row0 + pos, pos - first, pos - lo);
}

/* Whether all rows of the segment are committed; else only those before it are. */
static bool is_prompt(const struct scan *x)
{
    return x->end - x->base > x->job->p->shape.max_block;
}

/* Position of the state when the pass begins. A block that was cleared and then used from the
 * middle of a text also has zeros. */
static int32_t state_pos(const struct block *b, const struct sv_gdn_block *l, int32_t base)
{
    return *b->pos <= base && base - *b->pos <= l->ring ? *b->pos : chunk_at(base);
}

/* Position of the state after the pass, and the first row that the rings must hold. */
static int32_t kept_from(const struct scan *x)
{
    return chunk_at(is_prompt(x) ? x->end : x->base);
}

static void scan_segment(struct scan *x)
{
    const struct sv_p_gdn_scan *p = x->job->p;
    const struct sv_gdn_shape *s = &p->shape;
    const struct sv_gdn_block *l = &x->job->layout;
    float *state = x->b.state + (int64_t)x->h * s->k_dim * s->v_dim + x->col;
    x->state = state;
    x->ld = s->v_dim;
    for (int32_t at = state_pos(&x->b, l, x->base); at + CHUNK <= x->base; at += CHUNK) {
        take_kept(x, at, at + CHUNK);
        fold(x, state, s->v_dim);
    }
    for (int32_t first = chunk_at(x->base); first < x->end; first += CHUNK) {
        scan_chunk(x, first);
        for (int32_t pos = first > x->base ? first : x->base; pos < first + CHUNK && pos < x->end;
             pos++)
            if (pos >= kept_from(x))
                memcpy(x->b.u + ((int64_t)x->h * l->ring + pos % l->ring) * s->v_dim + x->col,
                       x->u + (pos - first) * COLS, (size_t)x->n_cols * sizeof(float));
        if (first + CHUNK > x->end)
            break;
        if (is_prompt(x))
            fold(x, state, s->v_dim);
        else if (first + CHUNK < x->end)
            fold(x, x->own, COLS);
    }
}

static bool begin(struct scan *x, const struct scan_job *job, int32_t seg)
{
    const struct sv_rows *rows = &job->p->rows;
    x->job = job;
    x->seg = seg;
    x->base = rows->seg_base[seg];
    x->end = x->base + rows->seg_row0[seg + 1] - rows->seg_row0[seg];
    if (rows->seg_slot[seg] < 0 || x->end == x->base)
        return false;
    x->b = block_of(&job->p->slots, &job->layout, rows->seg_slot[seg]);
    return true;
}

static void scan_columns(void *arg, int thread, int n)
{
    const struct scan_job *job = arg;
    const struct sv_gdn_shape *s = &job->p->shape;
    const int32_t per_head = (s->v_dim + COLS - 1) / COLS;
    struct scan x;
    int32_t from, to;
    sv_cpu_share(s->n_v_heads * per_head, thread, n, &from, &to);
    for (int32_t i = from; i < to; i++) {
        x.h = i / per_head;
        x.kh = x.h / (s->n_v_heads / s->n_k_heads);
        x.col = i % per_head * COLS;
        x.n_cols = s->v_dim - x.col < COLS ? s->v_dim - x.col : COLS;
        for (int32_t seg = 0; seg < job->p->rows.n_segs; seg++)
            if (begin(&x, job, seg))
                scan_segment(&x);
    }
}

/* Keys and G of rows that a later pass reads, and the state's position. */
static void keep_rows(const struct scan_job *job, const struct scan *x)
{
    const struct sv_gdn_shape *s = &job->p->shape;
    const struct sv_gdn_rows *r = &job->p->x;
    const int32_t ring = job->layout.ring, first = job->p->rows.seg_row0[x->seg] - x->base;
    for (int32_t pos = kept_from(x) > x->base ? kept_from(x) : x->base; pos < x->end; pos++) {
        const float *k =
            r->qkv + (int64_t)(first + pos) * sv_gdn_channels(s) + (int64_t)s->n_k_heads * s->k_dim;
        const float *g = r->gate + ((int64_t)(first + pos) * 2 + 1) * s->n_v_heads;
        for (int32_t h = 0; h < s->n_k_heads; h++)
            keep_key(s, &job->layout, &x->b, h, pos, k + (int64_t)h * s->k_dim);
        for (int32_t h = 0; h < s->n_v_heads; h++)
            x->b.g[(int64_t)h * ring + pos % ring] = g[h];
    }
    *x->b.pos = kept_from(x);
}

static void gdn_scan(struct sv_dev *dev, const struct sv_p_gdn_scan *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    const struct sv_gdn_shape *s = &p->shape;
    struct scan_job job = {.vec = cpu->vec, .p = p, .layout = sv_gdn_block_of(s)};
    struct scan x;
    sv_cpu_run(cpu, scan_columns, &job,
               ((int64_t)p->rows.n_rows + 1) * s->n_v_heads * s->k_dim * s->v_dim / 16);
    for (int32_t seg = 0; seg < p->rows.n_segs; seg++)
        if (begin(&x, &job, seg))
            keep_rows(&job, &x);
}

/* ---------------------------------------------------------------- gated norm */

struct norm_job {
    const struct sv_cpu_vec *vec;
    const struct sv_p_gdn_norm *p;
};

static void norm_rows(void *arg, int thread, int n)
{
    const struct norm_job *job = arg;
    const struct sv_p_gdn_norm *p = job->p;
    int32_t begin, end;
    const int32_t n_heads = p->shape.n_v_heads, d = p->shape.v_dim;
    sv_cpu_share(p->rows.n_rows, thread, n, &begin, &end);
    for (int32_t r = begin; r < end; r++)
        for (int32_t h = 0; h < n_heads; h++) {
            const int64_t at = ((int64_t)r * n_heads + h) * d;
            float *out = (float *)p->out + at;
            job->vec->add_rms_norm(&(struct sv_cpu_norm_row){.x = (float *)(uintptr_t)(p->x + at),
                                                             .w = &p->weight,
                                                             .d = d,
                                                             .eps = p->eps,
                                                             .out = out});
            job->vec->act_mul(out, (const float *)p->z + r * p->ldz + (int64_t)h * d, out, d);
        }
}

static void gdn_norm(struct sv_dev *dev, const struct sv_p_gdn_norm *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct norm_job job = {cpu->vec, p};
    sv_cpu_run(cpu, norm_rows, &job,
               (int64_t)p->rows.n_rows * p->shape.n_v_heads * (20 + p->shape.v_dim / 2));
}

static void gdn_few(struct sv_dev *dev, const struct sv_p_gdn *p)
{
    gdn_conv(dev, &p->conv);
    gdn_scan(dev, &p->scan);
    gdn_norm(dev, &p->norm);
}

const struct sv_gdn_ops sv_cpu_gdn = {.max_k_dim = SV_GDN_MAX_DIM,
                                      .conv = gdn_conv,
                                      .scan = gdn_scan,
                                      .norm = gdn_norm,
                                      .few = gdn_few};
