/*
 * attention.c - paged grouped-query attention: items of work, their threads, visible positions.
 *
 * Entered through the backend table. The queries of one (segment, kv head) are its rows times the
 * heads of the group, row-major; an item of work is a tile of them, so that keys and values are
 * read once for all of its heads and rows. A query's result is a fixed function of its own
 * sequence: - positions are taken in chunks of SV_ATTN_CHUNK at absolute multiples (the kernel's
 * fixed steps); - chunks are summed from zero within parts of SV_ATTN_PART positions, again at
 * absolute multiples, and parts are merged in ascending order; a part or chunk without visible
 * positions is skipped. Hence tiles may be cut anywhere, and parts may go to different threads when
 * there are few items; both are decided by sizes here and change no bits. Must not: let the split
 * affect the arithmetic.
 */
#include "backend/cpu/vec.h"

#include <string.h>

struct attn_plan {
    struct sv_cpu *cpu;
    const struct sv_p_attention *p;
    int32_t group;        /* q heads per kv head */
    int32_t v_dim;        /* of latents less than head_dim */
    int32_t k_ld, acc_ld; /* head_dim, v_dim rounded up to 16 */
    int32_t tile;         /* queries of an item */
    int32_t n_parts;      /* > 0: parts are separate items, merged from partial[] */
    /* bf16 products, or NULL: decided by device, cache and shape, never by rows */
    const struct sv_cpu_attn_lanes *lanes;
    int64_t cost;   /* of all items together */
    float *partial; /* (n_rows * n_heads, n_parts, acc_ld + 16): acc, m, l */
};

/* A tile: queries [q0, q0 + n_q) of one segment and kv head. */
struct attn_item {
    int32_t seg, kv_head, q0, n_q;
    int32_t pos_lo, pos_hi; /* positions that any of its queries sees */
};

/* One thread's scratch. */
struct attn_scratch {
    float *q, *acc, *acc2, *kt, *vv;
    float *k8, *v8; /* keys and values of an e4m3 chunk, in the type of the products */
    void *work;
    float m[SV_ATTN_TILE], l[SV_ATTN_TILE], m2[SV_ATTN_TILE], l2[SV_ATTN_TILE];
    bool seen[SV_ATTN_TILE];                    /* the query has a part already */
    int32_t lo[SV_ATTN_TILE], hi[SV_ATTN_TILE]; /* visible positions, absolute */
    int32_t lo_last, hi_first;                  /* all queries see [lo_last, hi_first) */
    int32_t c_lo[SV_ATTN_TILE], c_hi[SV_ATTN_TILE];
    const void *k_rows[SV_ATTN_CHUNK], *v_rows[SV_ATTN_CHUNK];
};

static int32_t round_up(int32_t n, int32_t to)
{
    return (n + to - 1) / to * to;
}

static size_t align_up(size_t n)
{
    return (n + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
}

size_t sv_cpu_attn_thread_bytes(const struct sv_dev_limits *lim)
{
    size_t hd = (size_t)round_up(lim->max_head_dim, 16);
    size_t floats = hd * (3 * SV_ATTN_TILE + 4 * SV_ATTN_CHUNK);
    return align_up(sizeof(struct attn_scratch)) + floats * sizeof(float) + SV_ATTN_WORK_BYTES;
}

/* Limit of partial results: a decode batch over long contexts; larger batches have enough items. */
size_t sv_cpu_attn_parts_floats(const struct sv_dev_limits *lim)
{
    size_t parts = (size_t)lim->max_positions / SV_ATTN_PART + 1;
    size_t per_query = parts * (size_t)(round_up(lim->max_head_dim, 16) + 16);
    size_t queries = 2 * 16 * (size_t)lim->max_heads, most = (size_t)4 << 20;
    return per_query * queries < most ? per_query * queries : most;
}

static struct attn_scratch *scratch_of(const struct attn_plan *a, int thread)
{
    uint8_t *base = sv_cpu_thread_scratch(a->cpu, thread);
    struct attn_scratch *s = (struct attn_scratch *)(void *)base;
    float *f = (float *)(void *)(base + align_up(sizeof *s));
    const size_t k_ld = (size_t)a->k_ld, v_ld = (size_t)a->acc_ld;
    s->q = f;
    s->acc = s->q + SV_ATTN_TILE * k_ld;
    s->acc2 = s->acc + SV_ATTN_TILE * v_ld;
    s->kt = s->acc2 + SV_ATTN_TILE * v_ld;
    s->vv = s->kt + SV_ATTN_CHUNK * k_ld;
    s->k8 = s->vv + SV_ATTN_CHUNK * v_ld;
    s->v8 = s->k8 + SV_ATTN_CHUNK * k_ld;
    s->work = s->v8 + SV_ATTN_CHUNK * v_ld;
    return s;
}

/* ---------------------------------------------------------------- what a row sees */

static void visible(const struct sv_p_attention *p, int32_t seg, int32_t row, int32_t *lo,
                    int32_t *hi)
{
    int32_t pos = p->rows.row_pos[row], last = p->rows.seg_row0[seg + 1] - 1;
    *hi = 1 + (p->mask == SV_MASK_BLOCK ? p->rows.row_pos[last] : pos);
    *lo = p->window > 0 && pos - p->window + 1 > 0 ? pos - p->window + 1 : 0;
}

/* The type of keys and values in products. */
static enum sv_dtype taken_as(const struct attn_plan *a)
{
    return a->p->kv.dtype != SV_F8 ? a->p->kv.dtype : a->lanes ? SV_BF16 : SV_F32;
}

/* Expands e4m3 rows [lo, hi) of the chunk, contiguously. */
static void widen_rows(const struct attn_plan *a, struct attn_scratch *s, int32_t lo, int32_t hi)
{
    const struct sv_kv *kv = &a->p->kv;
    const enum sv_dtype dtype = taken_as(a);
    const size_t row = (size_t)kv->head_dim * sv_dtype_bytes(dtype);
    for (int32_t i = lo; i < hi; i++) {
        uint8_t *k = (uint8_t *)s->k8 + (size_t)i * row, *v = (uint8_t *)s->v8 + (size_t)i * row;
        if (!kv->v) {
            sv_cpu_latent_widen(a->cpu, k, dtype, kv, s->k_rows[i]);
            s->k_rows[i] = s->v_rows[i] = k;
            continue;
        }
        const int64_t at = ((const uint8_t *)s->k_rows[i] - (const uint8_t *)kv->k) / kv->head_dim;
        sv_cpu_kv_widen(a->cpu, k, dtype, s->k_rows[i], kv->k_own[at], kv->head_dim, kv->k_scale);
        sv_cpu_kv_widen(a->cpu, v, dtype, s->v_rows[i], kv->v_own[at], kv->head_dim, kv->v_scale);
        s->k_rows[i] = k;
        s->v_rows[i] = v;
    }
}

/* Addresses of the positions [lo, hi) of the chunk at `base`, for one kv head. */
static void chunk_rows(const struct attn_plan *a, const struct attn_item *it,
                       struct attn_scratch *s, int32_t base, int32_t lo, int32_t hi)
{
    const struct sv_kv *kv = &a->p->kv;
    const int64_t row = (int64_t)sv_kv_row_bytes(kv->dtype, kv->head_dim, kv->latent);
    const int32_t slot = a->p->rows.seg_slot[it->seg];
    const int64_t head = (int64_t)it->kv_head * kv->page_size * row;
    for (int32_t i = lo; i < hi;) {
        int64_t at = sv_cpu_kv_offset(kv, slot, base + i);
        int32_t left = kv->page_size - (base + i) % kv->page_size;
        if (at < 0) { /* any valid memory: the result is an error */
            sv_cpu_latch(a->cpu, "attention: slot %d has no page for position %d", (int)slot,
                         (int)(base + i));
            at = (int64_t)((base + i) % kv->page_size) * row;
        }
        for (int32_t k = 0; k < left && i < hi; k++, i++) {
            const int64_t off = at + head + k * row;
            s->k_rows[i] = (const uint8_t *)kv->k + off;
            s->v_rows[i] = (const uint8_t *)(kv->v ? kv->v : kv->k) + off;
        }
    }
    if (kv->dtype == SV_F8)
        widen_rows(a, s, lo, hi);
}

/* ---------------------------------------------------------------- one item */

static void load_queries(const struct attn_plan *a, const struct attn_item *it,
                         struct attn_scratch *s)
{
    const struct sv_p_attention *p = a->p;
    const int32_t hd = p->kv.head_dim;
    const float *q[SV_ATTN_TILE];
    s->lo_last = 0;
    s->hi_first = INT32_MAX;
    for (int32_t j = 0; j < it->n_q; j++) {
        int32_t v = it->q0 + j, row = p->rows.seg_row0[it->seg] + v / a->group;
        int32_t head = it->kv_head * a->group + v % a->group;
        q[j] =
            (const float *)p->q + row * p->ldq + (int64_t)head * (p->q_stride ? p->q_stride : hd);
        if (!a->lanes)
            a->cpu->vec->widen(s->q + (int64_t)j * hd, q[j], SV_F32, hd, p->scale);
        visible(p, it->seg, row, &s->lo[j], &s->hi[j]);
        s->seen[j] = false;
        s->lo_last = s->lo[j] > s->lo_last ? s->lo[j] : s->lo_last;
        s->hi_first = s->hi[j] < s->hi_first ? s->hi[j] : s->hi_first;
    }
    for (int32_t j = 0; a->lanes && j < it->n_q; j += 16)
        a->lanes->pack((uint16_t *)(void *)s->q + (int64_t)j * hd, q + j,
                       it->n_q - j < 16 ? it->n_q - j : 16, hd);
}

/* Visible range of each query in [from, to) of the chunk at `base`, relative to it; empty is [0,
 * 0). */
static void chunk_ranges(const struct attn_item *it, struct attn_scratch *s, int32_t base,
                         int32_t from, int32_t to, struct sv_cpu_attn_chunk *c)
{
    int32_t stop = to - base < SV_ATTN_CHUNK ? to - base : SV_ATTN_CHUNK;
    int32_t start = from > base ? from - base : 0;
    c->lo = SV_ATTN_CHUNK;
    c->hi = 0;
    for (int32_t j = 0; j < it->n_q; j++) {
        int32_t lo = s->lo[j] - base, hi = s->hi[j] - base;
        lo = lo < start ? start : lo;
        hi = hi > stop ? stop : hi;
        s->c_lo[j] = lo < hi ? lo : 0;
        s->c_hi[j] = lo < hi ? hi : 0;
        if (lo < hi) {
            c->lo = lo < c->lo ? lo : c->lo;
            c->hi = hi > c->hi ? hi : c->hi;
        }
    }
}

/* Sums the positions [from, to) of one part into m, l, acc, starting from nothing. */
static void run_part(const struct attn_plan *a, const struct attn_item *it, struct attn_scratch *s,
                     int32_t from, int32_t to, float *m, float *l, float *acc)
{
    const struct sv_p_attention *p = a->p;
    struct sv_cpu_attn_chunk c = {
        .k_rows = s->k_rows,
        .v_rows = s->v_rows,
        .dtype = taken_as(a),
        .head_dim = p->kv.head_dim,
        .v_dim = a->v_dim,
        .n_q = it->n_q,
        .q = s->q,
        .q_lo = s->c_lo,
        .q_hi = s->c_hi,
        .softcap = p->softcap,
        .m = m,
        .l = l,
        .acc = acc,
        .acc_ld = a->acc_ld,
        .kt = s->kt,
        .vv = s->vv,
        .q_tiles = (const uint16_t *)(const void *)s->q,
        .scale = p->scale,
        .k_blocks16 = p->kv.dtype == SV_F8 || p->kv.page_size % 16 == 0,
        .work = s->work,
    };
    const int32_t n_lanes = round_up(it->n_q, 16);
    for (int32_t j = 0; j < n_lanes; j++) {
        m[j] = -__builtin_inff();
        l[j] = 0;
        s->c_lo[j] = s->c_hi[j] = 0;
    }
    memset(acc, 0, (size_t)n_lanes * (size_t)a->acc_ld * sizeof *acc);
    for (int32_t base = from / SV_ATTN_CHUNK * SV_ATTN_CHUNK; base < to; base += SV_ATTN_CHUNK) {
        bool whole = base >= from && base + SV_ATTN_CHUNK <= to && base >= s->lo_last &&
                     base + SV_ATTN_CHUNK <= s->hi_first;
        if (!whole || !c.whole)
            chunk_ranges(it, s, base, from, to, &c);
        c.whole = whole;
        if (c.lo >= c.hi)
            continue;
        chunk_rows(a, it, s, base, c.lo, c.hi);
        (a->lanes ? a->lanes->chunk : a->cpu->vec->attn_chunk)(&c);
    }
}

static void finish_query(const struct attn_plan *a, int32_t row, int32_t head, const float *acc,
                         float m, float l)
{
    const struct sv_p_attention *p = a->p;
    float sink;
    bool has_sink = p->sinks.data != NULL;
    if (has_sink)
        a->cpu->vec->widen(&sink,
                           (const uint8_t *)p->sinks.data +
                               (size_t)head * sv_dtype_bytes(p->sinks.fmt.elem),
                           p->sinks.fmt.elem, 1, 1.0f);
    float *out = (float *)p->out + row * p->ldo + (int64_t)head * a->v_dim;
    a->cpu->vec->attn_finish(out, acc, m, l, has_sink ? &sink : NULL, a->v_dim);
}

/* All parts of a tile by one thread, merged in order. */
static void run_item(const struct attn_plan *a, const struct attn_item *it, struct attn_scratch *s)
{
    load_queries(a, it, s);
    for (int32_t part = it->pos_lo / SV_ATTN_PART; part * SV_ATTN_PART < it->pos_hi; part++) {
        int32_t from = part * SV_ATTN_PART, to = from + SV_ATTN_PART;
        bool first = from <= it->pos_lo;
        run_part(a, it, s, from > it->pos_lo ? from : it->pos_lo, to < it->pos_hi ? to : it->pos_hi,
                 first ? s->m : s->m2, first ? s->l : s->l2, first ? s->acc : s->acc2);
        for (int32_t j = 0; j < it->n_q; j++) {
            size_t at = (size_t)j * (size_t)a->acc_ld;
            if (s->lo[j] >= to || s->hi[j] <= from)
                continue;
            if (s->seen[j]) {
                a->cpu->vec->attn_merge(&s->m[j], &s->l[j], s->acc + at, s->m2[j], s->l2[j],
                                        s->acc2 + at, a->acc_ld);
            } else if (!first) {
                s->m[j] = s->m2[j];
                s->l[j] = s->l2[j];
                memcpy(s->acc + at, s->acc2 + at, (size_t)a->acc_ld * sizeof *s->acc);
            }
            s->seen[j] = true;
        }
    }
    for (int32_t j = 0; j < it->n_q; j++) {
        int32_t v = it->q0 + j;
        finish_query(a, a->p->rows.seg_row0[it->seg] + v / a->group,
                     it->kv_head * a->group + v % a->group, s->acc + (size_t)j * (size_t)a->acc_ld,
                     s->m[j], s->l[j]);
    }
}

/* ---------------------------------------------------------------- parts as items */

static float *partial_at(const struct attn_plan *a, int32_t row, int32_t head, int32_t part)
{
    int64_t query = (int64_t)row * a->p->n_heads + head;
    return a->partial + (query * a->n_parts + part) * (a->acc_ld + 16);
}

static void run_item_part(const struct attn_plan *a, const struct attn_item *it, int32_t part,
                          struct attn_scratch *s)
{
    int32_t from = part * SV_ATTN_PART, to = from + SV_ATTN_PART;
    load_queries(a, it, s);
    run_part(a, it, s, from > it->pos_lo ? from : it->pos_lo, to < it->pos_hi ? to : it->pos_hi,
             s->m, s->l, s->acc);
    for (int32_t j = 0; j < it->n_q; j++) {
        int32_t v = it->q0 + j;
        float *out = partial_at(a, a->p->rows.seg_row0[it->seg] + v / a->group,
                                it->kv_head * a->group + v % a->group, part);
        memcpy(out, s->acc + (size_t)j * (size_t)a->acc_ld, (size_t)a->acc_ld * sizeof *out);
        out[a->acc_ld] = s->m[j];
        out[a->acc_ld + 1] = s->l[j];
    }
}

static void merge_parts(const struct attn_plan *a, int32_t row, int32_t head)
{
    int32_t lo, hi, seg = a->p->rows.row_seg[row];
    if (seg < 0)
        return; /* padding */
    visible(a->p, seg, row, &lo, &hi);
    int32_t part = lo / SV_ATTN_PART;
    float *acc = partial_at(a, row, head, part), *m = acc + a->acc_ld, *l = m + 1;
    for (part++; part * SV_ATTN_PART < hi; part++) {
        const float *next = partial_at(a, row, head, part);
        a->cpu->vec->attn_merge(m, l, acc, next[a->acc_ld], next[a->acc_ld + 1], next, a->acc_ld);
    }
    finish_query(a, row, head, acc, *m, *l);
}

/* ---------------------------------------------------------------- all items, in a fixed order */

static void make_item(const struct attn_plan *a, struct attn_item *it, int32_t seg, int32_t kv_head,
                      int32_t q0, int32_t n_all)
{
    int32_t row0 = a->p->rows.seg_row0[seg], lo, hi;
    it->seg = seg;
    it->kv_head = kv_head;
    it->q0 = q0;
    it->n_q = n_all - q0 < a->tile ? n_all - q0 : a->tile;
    visible(a->p, seg, row0 + q0 / a->group, &it->pos_lo, &hi);
    visible(a->p, seg, row0 + (q0 + it->n_q - 1) / a->group, &lo, &it->pos_hi);
}

/* Queries (or whole groups of lanes) times positions; the constant stands for loading keys and
 * values once per tile. */
static int64_t item_cost(const struct attn_plan *a, const struct attn_item *it, int32_t from,
                         int32_t to)
{
    int32_t queries = a->lanes ? round_up(it->n_q, 16) : it->n_q;
    from = from > it->pos_lo ? from : it->pos_lo;
    to = to < it->pos_hi ? to : it->pos_hi;
    return from < to ? (int64_t)(to - from) * (queries + 4) : 0;
}

/* Time of one query and position in units of 1/256 ns, measured at head_dim 64 and 128. */
static int64_t unit_ns256(const struct attn_plan *a)
{
    static const int32_t per_dim[] = {0, 80, 15, 9, 9};
    const int32_t lanes = a->cpu->isa == SV_ISA_AMX ? 3 : 5;
    return (int64_t)a->p->kv.head_dim * (a->lanes ? lanes : per_dim[a->cpu->isa]);
}

/* Whether the middle of an item is in this share of the cost: by the start, of two items of which
 * the second is longer the first thread would get both. */
static bool mine(int64_t at, int64_t cost, int64_t begin, int64_t end)
{
    return at + cost / 2 >= begin && at + cost / 2 < end;
}

/* Walks all items; runs those in share `thread` of the cost. With s == NULL only sums the cost. */
static int64_t walk(const struct attn_plan *a, struct attn_scratch *s, int thread, int n)
{
    const struct sv_rows *r = &a->p->rows;
    int64_t at = 0, begin = a->cost * thread / n, end = a->cost * (thread + 1) / n;
    for (int32_t seg = 0; seg < r->n_segs; seg++) {
        int32_t n_all = (r->seg_row0[seg + 1] - r->seg_row0[seg]) * a->group;
        for (int32_t h = 0; h < a->p->kv.n_kv_heads; h++)
            for (int32_t q0 = 0; q0 < n_all; q0 += a->tile) {
                struct attn_item it;
                make_item(a, &it, seg, h, q0, n_all);
                if (!a->n_parts) {
                    const int64_t cost = item_cost(a, &it, 0, it.pos_hi);
                    if (s && mine(at, cost, begin, end))
                        run_item(a, &it, s);
                    at += cost;
                    continue;
                }
                for (int32_t k = it.pos_lo / SV_ATTN_PART; k * SV_ATTN_PART < it.pos_hi; k++) {
                    const int64_t cost =
                        item_cost(a, &it, k * SV_ATTN_PART, (k + 1) * SV_ATTN_PART);
                    if (s && mine(at, cost, begin, end))
                        run_item_part(a, &it, k, s);
                    at += cost;
                }
            }
    }
    return at;
}

static void attention_run(void *arg, int thread, int n)
{
    const struct attn_plan *a = arg;
    if (a->lanes)
        a->lanes->begin();
    walk(a, scratch_of(a, thread), thread, n);
    if (a->lanes)
        a->lanes->end();
    if (!a->n_parts)
        return;
    if (n > 1)
        sv_pool_barrier(a->cpu->pool, thread);
    int32_t begin, end;
    sv_cpu_share(a->p->rows.n_rows * a->p->n_heads, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++)
        merge_parts(a, i / a->p->n_heads, i % a->p->n_heads);
}

/* Tile size and whether parts are spread, so that every thread gets a similar share of few items.
 */
static void choose_split(struct attn_plan *a)
{
    const struct sv_rows *r = &a->p->rows;
    const int32_t n = a->cpu->n_threads;
    int32_t most = 0, longest = 0, items = 0;
    for (int32_t seg = 0; seg < r->n_segs; seg++) {
        int32_t end = r->seg_row0[seg + 1], rows = end - r->seg_row0[seg];
        int32_t queries = rows * a->group, len = rows ? r->row_pos[end - 1] + 1 : 0;
        most = queries > most ? queries : most;
        longest = len > longest ? len : longest;
        items += (queries + SV_ATTN_TILE - 1) / SV_ATTN_TILE * a->p->kv.n_kv_heads;
    }
    a->tile = most < SV_ATTN_TILE ? (most ? most : 1) : SV_ATTN_TILE;
    if (n == 1 || items >= 4 * n || (items % n == 0 && r->n_segs == 1 && most <= SV_ATTN_TILE))
        return;
    int32_t parts = (longest + SV_ATTN_PART - 1) / SV_ATTN_PART;
    size_t floats,
        need = (size_t)r->n_rows * (size_t)a->p->n_heads * (size_t)parts * (size_t)(a->acc_ld + 16);
    float *partial = sv_cpu_attn_parts(a->cpu, &floats);
    if (parts >= n && need <= floats) {
        a->n_parts = parts;
        a->partial = partial;
        return;
    }
    int32_t units = r->n_segs * a->p->kv.n_kv_heads, tiles = 1;
    while (units * tiles < 4 * n && (units * tiles) % n != 0)
        tiles++;
    int32_t tile = round_up((most + tiles - 1) / tiles, a->lanes ? 16 : 1);
    if (tile < a->tile)
        a->tile = tile > 0 ? tile : 1;
}

void sv_cpu_attention(struct sv_dev *dev, const struct sv_p_attention *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    SV_REQUIRE(cpu->scratch && p->kv.head_dim <= cpu->lim.max_head_dim);
    const int32_t v_dim = p->v_dim ? p->v_dim : p->kv.head_dim;
    struct attn_plan a = {
        .cpu = cpu,
        .p = p,
        .group = p->n_heads / p->kv.n_kv_heads,
        .v_dim = v_dim,
        .k_ld = round_up(p->kv.head_dim, 16),
        .acc_ld = round_up(v_dim, 16),
    };
    if (cpu->compute == SV_BF16 && p->kv.dtype != SV_F32 && p->kv.head_dim % 32 == 0 &&
        p->kv.head_dim <= SV_ATTN_LANES_DIM && v_dim % 32 == 0 && v_dim <= SV_ATTN_LANES_V_DIM)
        a.lanes = cpu->attn_lanes;
    choose_split(&a);
    a.cost = walk(&a, NULL, 0, 1);
    sv_cpu_run(cpu, attention_run, &a, a.cost * unit_ns256(&a) / 256);
}
