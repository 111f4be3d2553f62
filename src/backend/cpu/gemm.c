/*
 * gemm.c - matrix products and the fused head of the CPU backend: choice of kernel, division of
 * work, order of packing, scratch, and the merge of the running argmax.
 *
 * Called through the backend table and by cpu.c (gather form). The work of a call is its weight
 * rows in units of 16, laid end to end over all parts and cut into one contiguous range per thread,
 * so a thread reads the same weights at every call. Must not: allocate after reserve, or let
 * anything but k determine the order of additions (see gemm.h).
 */
#include "backend/cpu/gemm.h"

#include "backend/cpu/codes.h"
#include "backend/cpu/wcomp.h"
#include "backend/cpu/head_screen.h"
#include "backend/cpu/vec.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* Below this many packed elements every thread packs for itself: cheaper than a barrier. */
#define ALONE_ELEMENTS 65536

/* From so many rows per thread on, and up to so many weights, threads divide rows instead of packed
 * weights: each reads all weights, which its products hide, and a row's data stays in one core's
 * cache from product to product. Between cores without a shared cache a line takes 0.15 us. Many
 * rows are divided with any weights (set_own): no thread waits for another's packed input, nor
 * reads it from another's cache. */
#define OWN_ROWS 4
#define OWN_ELEMENTS (1 << 20)

struct sv_cpu_gemm {
    const struct sv_gemm_kern *kern[SV_F16 + 1]; /* by weight type */
    struct sv_gemm_thread *threads;              /* (n_threads) */
    void *packed;                                /* one pass's input, shared */
    void *scratch;                               /* memory of the pointers above */
    int32_t max_k, max_rows;
    const struct sv_gemm_kern *shared; /* kernel whose many rows are divided, NULL: none */
    int32_t own_from, own_most;       /* from so many per thread on; so many of its own at a time */
    const struct sv_gemm_kern *bytes; /* for quantized weights, NULL: as any other */
    const struct sv_gemm_kern *int8;  /* for codes with input in int8 */
    bool packs;                       /* bf16 weights are packed: at load, or else at every call */
    enum sv_wcomp_order wcomp;        /* order of compressed weights, if supported */
    enum sv_wcomp_order codes;        /* and codes, if they are packed */
    sv_quant_expand_fn *expand;       /* those that are not */
    const struct sv_gemm_kern *screen[2]; /* for heads' bounds, by plane; NULL: none */
    int32_t screen_rows;                  /* largest number of rows for it */
    struct sv_gemm_call call;             /* the one in flight */
};

/* ---------------------------------------------------------------- set-up */

static const struct sv_gemm_kern *choose(const struct sv_cpu *cpu, enum sv_dtype w)
{
    const bool rounded = cpu->compute == SV_BF16 && w == SV_BF16;
    (void)rounded;
#ifndef SV_NO_AMX
    if (rounded && cpu->isa >= SV_ISA_AMX)
        return sv_gemm_kern_amx();
#endif
#ifndef SV_NO_AVX512
    if (rounded && cpu->isa >= SV_ISA_AVX512 && sv_cpu_has_avx512_bf16())
        return sv_gemm_kern_bf16_avx512();
    if (cpu->isa >= SV_ISA_AVX512)
        return sv_gemm_kern_avx512(w, rounded);
#endif
#ifndef SV_NO_AVX2
    if (cpu->isa >= SV_ISA_AVX2)
        return sv_gemm_kern_avx2(w, rounded);
#endif
    return sv_gemm_kern_plain(w, rounded);
}

/* More rows are limited by arithmetic without tiles, to which a screen adds. */
#define SCREEN_ROWS_ALONE 4

static void set_screen(struct sv_cpu_gemm *g, const struct sv_cpu *cpu)
{
    (void)g;
    if (cpu->isa < SV_ISA_AVX512 || cpu->compute != SV_BF16 || !sv_cpu_has_avx512_vnni())
        return;
#ifndef SV_NO_AVX512
    for (int i = 0; i < 2; i++)
        g->screen[i] = sv_gemm_kern_screen_avx512((enum sv_screen_plane)i);
    g->screen_rows = SCREEN_ROWS_ALONE;
#endif
#ifndef SV_NO_AMX
    if (cpu->isa >= SV_ISA_AMX && sv_cpu_has_amx_int8()) {
        for (int i = 0; i < 2; i++)
            g->screen[i] = sv_gemm_kern_screen_amx((enum sv_screen_plane)i);
        g->screen_rows = SV_SCREEN_ROWS;
    }
#endif
}

/* Each thread reads, and copies or expands, all weights for its rows: cheaper with more rows.
 * Packed weights cost little, and there the input should stay in level 2. */
static void set_own(struct sv_cpu_gemm *g)
{
    (void)g;
#ifndef SV_NO_AVX512
    if (g->packs) {
        g->shared = g->kern[SV_BF16];
        g->own_from = 64;
        g->own_most = 256;
    }
#endif
#ifndef SV_NO_AMX
    if (g->kern[SV_BF16] == sv_gemm_kern_amx()) {
        g->shared = g->kern[SV_BF16];
        g->own_from = 192;
        g->own_most = SV_GEMM_ROWS;
    }
#endif
}

static void set_codes(struct sv_cpu_gemm *g, const struct sv_cpu *cpu)
{
    g->expand = sv_quant_expand;
#ifndef SV_NO_AVX2
    if (cpu->isa >= SV_ISA_AVX2)
        g->expand = sv_quant_expand_avx2;
#endif
#ifndef SV_NO_AVX512
    if (g->packs)
        g->codes = SV_WCOMP_PAIRS;
#endif
#ifndef SV_NO_AMX
    if (g->kern[SV_BF16] == sv_gemm_kern_amx() && sv_cpu_has_avx512_bf16())
        g->codes = SV_WCOMP_ROWS;
#endif
}

bool sv_cpu_takes_int8(const struct sv_weight *w)
{
    const struct sv_codes *c = sv_cpu_codes_of(w);
    return c && c->kind != SV_CODES_IN_PLACE && c->order == SV_WCOMP_QUADS;
}

static const struct sv_gemm_kern *choose_int8(const struct sv_cpu *cpu)
{
    (void)cpu;
#if !defined(SV_NO_AMX) && !defined(SV_NO_AVX512)
    if (cpu->isa >= SV_ISA_AMX && sv_cpu_has_amx_int8() && sv_cpu_has_avx512_vnni())
        return sv_gemm_kern_int8_amx();
#endif
#ifndef SV_NO_AVX512
    if (cpu->isa >= SV_ISA_AVX512 && sv_cpu_has_avx512_vnni())
        return sv_gemm_kern_int8_avx512();
#endif
#ifndef SV_NO_AVX2
    if (cpu->isa >= SV_ISA_AVX2)
        return sv_gemm_kern_int8_avx2();
#endif
    return sv_gemm_kern_int8_plain();
}

int sv_cpu_gemm_open(struct sv_cpu *cpu, struct sv_err *err)
{
    if (cpu->isa == SV_ISA_AUTO || !sv_cpu_has_isa(cpu->isa))
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "this machine lacks the instruction set asked for");
    struct sv_cpu_gemm *g = sv_calloc(1, sizeof *g);
    if (!g)
        return sv_fail(err, SV_ENOMEM, -1, "matrix products: out of memory");
    for (enum sv_dtype t = SV_F32; t <= SV_F16; t++)
        g->kern[t] = choose(cpu, t);
#ifndef SV_NO_AVX512
    g->packs = g->kern[SV_BF16] == sv_gemm_kern_bf16_avx512();
    if (g->packs && sv_cpu_has_avx512_vnni())
        g->bytes = sv_gemm_kern_i8_avx512();
    if (sv_cpu_has_avx512_vbmi2()) {
        if (g->packs)
            g->wcomp = SV_WCOMP_PAIRS;
#ifndef SV_NO_AMX
        if (g->kern[SV_BF16] == sv_gemm_kern_amx())
            g->wcomp = SV_WCOMP_ROWS;
#endif
    }
#endif
    set_codes(g, cpu);
    g->int8 = choose_int8(cpu);
    set_screen(g, cpu);
    set_own(g);
    cpu->gemm = g;
    return SV_OK;
}

bool sv_cpu_gemm_bytes(const struct sv_cpu *cpu)
{
    return cpu->gemm->bytes && !cpu->whole;
}

bool sv_cpu_gemm_packs(const struct sv_cpu *cpu)
{
    return cpu->gemm->packs;
}

enum sv_wcomp_order sv_cpu_gemm_wcomp(const struct sv_cpu *cpu)
{
    return cpu->gemm->wcomp;
}

enum sv_wcomp_order sv_cpu_gemm_codes(const struct sv_cpu *cpu)
{
    return cpu->gemm->codes;
}

sv_quant_expand_fn *sv_cpu_gemm_expand(const struct sv_cpu *cpu)
{
    return cpu->gemm->expand;
}

int32_t sv_cpu_gemm_screen_rows(const struct sv_cpu *cpu)
{
    return cpu->gemm->screen_rows;
}

void sv_cpu_gemm_close(struct sv_cpu *cpu)
{
    if (!cpu->gemm)
        return;
    sv_free(cpu->gemm->scratch);
    sv_free(cpu->gemm);
    cpu->gemm = NULL;
}

size_t sv_gemm_packed_bytes(int32_t n_rows, int32_t k)
{
    return (size_t)((n_rows + 15) & ~15) * (size_t)sv_gemm_kpad(k) * sizeof(float);
}

static size_t take(size_t *at, size_t n_bytes)
{
    size_t here = *at;
    *at = here + ((n_bytes + SV_ALIGN - 1) & ~(size_t)(SV_ALIGN - 1));
    return here;
}

/* Own rows that a thread packs at a time; 0: never enough rows. */
static int32_t panel_rows(const struct sv_cpu *cpu, const struct sv_cpu_gemm *g)
{
    const int32_t most = (g->max_rows + cpu->n_threads - 1) / cpu->n_threads;
    if (!g->shared || most < g->own_from)
        return 0;
    return most < g->own_most ? sv_gemm_pairs_of_blocks(most) : g->own_most;
}

static size_t pack_w_bytes(const struct sv_cpu_gemm *g)
{
    const size_t tiles = 2 * SV_GEMM_KBLOCK * SV_GEMM_UNIT * 2;
    const size_t raw = g->packs ? SV_GEMM_RAW_UNITS * sv_gemm_unit_elements(g->max_k) * 2 : 0;
    const size_t unit =
        g->wcomp ? (size_t)sv_gemm_kpad(g->max_k) * SV_GEMM_UNIT * sizeof(uint16_t) : 0;
    const size_t most = raw > tiles ? raw : tiles;
    return unit > most ? unit : most;
}

/* Lays the scratch out; with base NULL only measures it. */
static size_t lay_out(const struct sv_cpu *cpu, struct sv_cpu_gemm *g, uint8_t *base)
{
    const int32_t rows = g->max_rows < SV_GEMM_ROWS ? g->max_rows : SV_GEMM_ROWS;
    const int32_t own = panel_rows(cpu, g);
    size_t at = 0;
    size_t threads = take(&at, (size_t)cpu->n_threads * sizeof *g->threads);
    size_t packed = take(&at, sv_gemm_packed_bytes(rows, g->max_k));
    if (base) {
        g->threads = (struct sv_gemm_thread *)(void *)(base + threads);
        g->packed = base + packed;
    }
    for (int i = 0; i < cpu->n_threads; i++) {
        size_t pack_w = take(&at, pack_w_bytes(g));
        size_t unit_w =
            take(&at, (size_t)SV_GEMM_UNIT * (size_t)sv_gemm_kpad(g->max_k) * sizeof(float));
        size_t unit_row = take(&at, (size_t)g->max_k * sizeof(float));
        size_t sums =
            take(&at, (size_t)SV_GEMM_GROUP * SV_GEMM_ROWS * SV_GEMM_UNIT * sizeof(float));
        size_t own_x = take(&at, ALONE_ELEMENTS * sizeof(float));
        size_t panel = take(&at, (size_t)own * (size_t)sv_gemm_kpad(g->max_k) * sizeof(uint16_t));
        size_t val = take(&at, SV_GEMM_ROWS * sizeof(float));
        size_t id = take(&at, SV_GEMM_ROWS * sizeof(int32_t));
        size_t call = take(&at, sizeof(struct sv_gemm_call));
        const int32_t chosen = !cpu->lim.max_experts && !cpu->lim.by_head ? 0
                               : rows < SV_MOE_ROWS                       ? rows
                                                                          : SV_MOE_ROWS;
        size_t expert_x = take(&at, chosen ? sv_gemm_packed_bytes(chosen, g->max_k) : 0);
        size_t expert_y = take(&at, chosen ? SV_MOE_SUMS * sizeof(float) : 0);
        size_t lanes = take(&at, g->bytes ? (size_t)rows * sizeof(struct sv_gemm_lanes) : 0);
        if (base)
            g->threads[i] = (struct sv_gemm_thread){
                .pack_w = base + pack_w,
                .unit_w = base + unit_w,
                .unit_row = (float *)(void *)(base + unit_row),
                .sums = (float *)(void *)(base + sums),
                .own_x = base + own_x,
                .panel = own ? base + panel : NULL,
                .best_val = (float *)(void *)(base + val),
                .best_id = (int32_t *)(void *)(base + id),
                .call = (struct sv_gemm_call *)(void *)(base + call),
                .expert_x = base + expert_x,
                .expert_y = (float *)(void *)(base + expert_y),
                .lanes = (struct sv_gemm_lanes *)(void *)(base + lanes),
            };
        at += SV_ALIGN; /* threads never share a cache line, nor the same sets of the caches */
    }
    return at;
}

int sv_cpu_gemm_reserve(struct sv_cpu *cpu, struct sv_err *err)
{
    struct sv_cpu_gemm *g = cpu->gemm;
    sv_free(g->scratch);
    g->scratch = NULL;
    g->max_k = cpu->lim.max_k;
    g->max_rows =
        cpu->lim.max_rows > cpu->lim.max_logit_rows ? cpu->lim.max_rows : cpu->lim.max_logit_rows;
    size_t n_bytes = lay_out(cpu, g, NULL);
    g->scratch = sv_alloc(n_bytes);
    if (!g->scratch)
        return sv_fail(err, SV_ENOMEM, -1, "matrix products: no memory for %zu bytes of scratch",
                       n_bytes);
    lay_out(cpu, g, g->scratch);
    return SV_OK;
}

/* ---------------------------------------------------------------- one pass over the weights */

void sv_gemm_bias(const struct sv_gemm_item *p, int32_t n0, int32_t nn, float out[SV_GEMM_UNIT])
{
    memset(out, 0, SV_GEMM_UNIT * sizeof *out);
    for (int32_t i = 0; p->bias && i < nn; i++) {
        uint16_t h;
        if (p->bias_dtype == SV_F32) {
            memcpy(&out[i], (const uint8_t *)p->bias + (size_t)(n0 + i) * 4, 4);
            continue;
        }
        memcpy(&h, (const uint8_t *)p->bias + (size_t)(n0 + i) * 2, 2);
        out[i] = p->bias_dtype == SV_BF16 ? sv_bf16_to_f32(h) : sv_f16_to_f32(h);
    }
}

static int32_t units_of(int32_t n)
{
    return (n + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT;
}

void sv_gemm_run_units(const struct sv_gemm_call *c, struct sv_gemm_thread *t, const void *packed,
                       int32_t u0, int32_t u1)
{
    const struct sv_gemm_kern *inside = NULL;
    for (int32_t p = 0; p < c->n_parts && c->item[p].unit0 < u1; p++) {
        const struct sv_gemm_item *it = &c->item[p];
        const int32_t end = it->unit0 + units_of(it->n);
        const int32_t a = u0 > it->unit0 ? u0 : it->unit0, b = u1 < end ? u1 : end;
        if (a >= b)
            continue;
        struct sv_gemm_span s = {
            .call = c,
            .thread = t,
            .item = it,
            .xp = it->kern->form == SV_GEMM_X_RAW ? NULL : packed,
            .n0 = (a - it->unit0) * SV_GEMM_UNIT,
            .n1 = b == end ? it->n : (b - it->unit0) * SV_GEMM_UNIT,
        };
        if (it->kern != inside) {
            if (inside && inside->leave)
                inside->leave();
            if (it->kern->enter)
                it->kern->enter(c);
            inside = it->kern;
        }
        if (it->codes && !it->packed)
            sv_gemm_codes(&s);
        else
            it->kern->run(&s);
    }
    if (inside && inside->leave)
        inside->leave();
}

/* Own rows that a thread multiplies at a time: pieces of one size. */
static int32_t own_at_once(const struct sv_gemm_call *c, int32_t rows)
{
    const int32_t most = c->cpu->gemm->own_most, pieces = (rows + most - 1) / most;
    return sv_gemm_pairs_of_blocks((rows + pieces - 1) / pieces);
}

/* All weights times this thread's share of the rows, some of them at a time. */
static void work_rows(const struct sv_gemm_call *c, struct sv_gemm_thread *t, int thread,
                      int n_threads)
{
    struct sv_gemm_call *own = t->call;
    uint8_t *packed = c->pack_alone ? t->own_x : t->panel;
    const int32_t rows = c->m1 - c->m0;
    int32_t begin, end, some;
    if (c->pack_alone) {
        sv_cpu_share(rows, thread, n_threads, &begin, &end);
    } else { /* whole pairs of blocks, except the last */
        sv_cpu_share(sv_gemm_pairs_of_blocks(rows) / 32, thread, n_threads, &begin, &end);
        begin *= 32;
        end = end * 32 < rows ? end * 32 : rows;
    }
    if (begin >= end)
        return;
    memcpy(own, c, offsetof(struct sv_gemm_call, item) + (size_t)c->n_parts * sizeof c->item[0]);
    for (const int32_t most = own_at_once(c, end - begin); begin < end; begin += some) {
        some = end - begin < most ? end - begin : most;
        own->m0 = c->m0 + begin;
        own->m1 = own->m0 + some;
        own->packer->pack(own, packed, 0, 1);
        sv_gemm_run_units(own, t, packed, 0, c->n_units);
    }
}

static void work(void *arg, int thread, int n_threads)
{
    struct sv_cpu_gemm *g = arg;
    const struct sv_gemm_call *c = &g->call;
    struct sv_gemm_thread *t = &g->threads[thread];
    if (c->by_rows) {
        work_rows(c, t, thread, n_threads);
        return;
    }
    const int64_t units = c->n_units;
    void *packed = g->packed;
    if (c->screen)
        for (int32_t i = 0; i < SV_SCREEN_TOPS + SV_SCREEN_ROWS; i++)
            t->best_val[i] = -INFINITY;
    else if (!c->y && c->item[0].kern == g->bytes)
        memset(t->lanes, 0xff, (size_t)(c->m1 - c->m0) * sizeof *t->lanes);
    else if (!c->y)
        for (int32_t r = 0; r < c->m1 - c->m0; r++) {
            t->best_val[r] = NAN;
            t->best_id[r] = 0;
        }
    if (c->packer && c->pack_alone) {
        packed = t->own_x;
        c->packer->pack(c, packed, 0, 1);
    } else if (c->packer) {
        c->packer->pack(c, packed, thread, n_threads);
        sv_pool_barrier(c->cpu->pool, thread);
    }
    if (c->units) {
        for (int64_t i = units * thread / n_threads; i < units * (thread + 1) / n_threads; i++)
            sv_gemm_run_units(c, t, packed, c->units[i], c->units[i] + 1);
        return;
    }
    sv_gemm_run_units(c, t, packed, (int32_t)(units * thread / n_threads),
                      (int32_t)(units * (thread + 1) / n_threads));
}

void sv_gemm_set_item(struct sv_gemm_call *c, int32_t i, const struct sv_gemm_part *part,
                      int32_t unit0, int32_t col0)
{
    const struct sv_cpu_gemm *g = c->cpu->gemm;
    const struct sv_weight *w = &part->w, *bias = &part->bias;
    const bool packed = sv_cpu_is_packed(w), wcomp = sv_cpu_is_wcomp(w);
    const struct sv_codes *codes = sv_cpu_codes_of(w);
    const enum sv_dtype elem = codes ? c->cpu->compute : w->fmt.elem;
    SV_REQUIRE(w->cols == c->k && (elem <= SV_F16 || (elem == SV_I8 && packed)));
    const bool int8 = sv_cpu_takes_int8(w);
    SV_REQUIRE((!packed || g->packs || wcomp || int8) && (!wcomp || g->wcomp));
    const struct sv_gemm_kern *kern = int8 ? g->int8 : elem == SV_I8 ? g->bytes : g->kern[elem];
    SV_REQUIRE(kern);
    c->item[i] = (struct sv_gemm_item){
        .kern = kern,
        .w = w->data,
        .bias = bias->data,
        .w_dtype = elem,
        .bias_dtype = bias->fmt.elem,
        .packed = packed,
        .wcomp = wcomp,
        .codes = codes,
        .n = w->rows,
        .unit0 = unit0,
        .col0 = col0,
    };
    if (kern->form != SV_GEMM_X_RAW) {
        /* one level has one packed form, and a call's weights are all quantized, or all multiplied
         * with int8, or none is */
        SV_REQUIRE(!c->packer || c->packer->form == kern->form);
        c->packer = kern;
    }
}

struct sv_gemm_thread *sv_gemm_thread(struct sv_cpu *cpu, int thread)
{
    return &cpu->gemm->threads[thread];
}

/* Fills the call's tables; false when there is nothing to do. */
static bool begin(struct sv_cpu *cpu, const struct sv_p_gemm *p, const int32_t *rows)
{
    struct sv_cpu_gemm *g = cpu->gemm;
    struct sv_gemm_call *c = &g->call;
    if (p->n_rows <= 0 || p->n_parts <= 0)
        return false;
    SV_REQUIRE(p->n_parts <= SV_GEMM_MAX_PARTS && g->scratch);
    SV_REQUIRE(p->k > 0 && p->k <= g->max_k && p->n_rows <= g->max_rows);
    c->cpu = cpu;
    c->k = p->k;
    c->n_parts = p->n_parts;
    c->x = p->x;
    c->ldx = p->ldx;
    c->rows = rows;
    c->y = p->y;
    c->ldy = p->ldy;
    c->packer = NULL;
    c->screen = NULL;
    c->units = NULL;
    int32_t unit = 0, col = 0;
    for (int32_t i = 0; i < p->n_parts; i++) {
        sv_gemm_set_item(c, i, &p->parts[i], unit, col);
        unit += units_of(p->parts[i].w.rows);
        col += p->parts[i].w.rows;
    }
    c->n_units = unit;
    return true;
}

/* Whether so many rows of a call are divided rather than its weights. */
static bool shares_rows(const struct sv_cpu *cpu, const struct sv_gemm_call *c, int32_t n_rows)
{
    const struct sv_cpu_gemm *g = cpu->gemm;
    return c->y && c->packer && c->packer == g->shared && n_rows >= g->own_from * cpu->n_threads;
}

static void pass(struct sv_cpu *cpu, int32_t m0, int32_t m1)
{
    struct sv_gemm_call *c = &cpu->gemm->call;
    c->m0 = m0;
    c->m1 = m1;
    c->pack_alone = (int64_t)((m1 - m0 + 15) & ~15) * sv_gemm_kpad(c->k) <= ALONE_ELEMENTS;
    c->by_rows = shares_rows(cpu, c, m1 - m0) ||
                 (c->y && c->packer && c->pack_alone && cpu->gemm->packs && cpu->n_threads > 1 &&
                  !c->item[0].codes && m1 - m0 >= OWN_ROWS * cpu->n_threads &&
                  (int64_t)c->n_units * SV_GEMM_UNIT * c->k <= OWN_ELEMENTS);
    sv_pool_run(cpu->pool, work, cpu->gemm);
}

void sv_cpu_gemm_gather(struct sv_cpu *cpu, const struct sv_p_gemm *p, const int32_t *rows)
{
    struct sv_p_gemm some = *p;
    /* parts whose input has one form at a time */
    for (int32_t left = p->n_parts; left > 0; left -= some.n_parts) {
        some.parts += left == p->n_parts ? 0 : some.n_parts;
        some.n_parts = 1;
        while (some.n_parts < left && sv_cpu_takes_int8(&some.parts[some.n_parts].w) ==
                                          sv_cpu_takes_int8(&some.parts[0].w))
            some.n_parts++;
        if (!begin(cpu, &some, rows))
            return;
        const int32_t most =
            shares_rows(cpu, &cpu->gemm->call, p->n_rows) ? p->n_rows : SV_GEMM_ROWS;
        for (int32_t m = 0; m < p->n_rows; m += most)
            pass(cpu, m, p->n_rows - m < most ? p->n_rows : m + most);
        for (int32_t i = 0; i < some.n_parts; i++)
            some.y = (float *)some.y + some.parts[i].w.rows;
    }
}

void sv_cpu_gemm(struct sv_dev *dev, const struct sv_p_gemm *p)
{
    sv_cpu_gemm_gather(sv_cpu_of(dev), p, NULL);
}

/* ---------------------------------------------------------------- the fused head */

/* Threads have ascending ranges of ids, so "greater" alone gives ties to the lowest id. */
static int32_t merge(const struct sv_cpu *cpu, int32_t r, float *best, float *confidence)
{
#ifndef SV_NO_AVX512
    const struct sv_gemm_call *c = &cpu->gemm->call;
    if (c->item[0].kern == cpu->gemm->bytes)
        return sv_gemm_winner_i8_avx512(c, cpu->gemm->threads, r, best, confidence);
#endif
    (void)confidence;
    const struct sv_gemm_thread *t = cpu->gemm->threads;
    int32_t id = -1;
    *best = NAN;
    for (int i = 0; i < cpu->n_threads; i++)
        if (!isnan(t[i].best_val[r]) && (id < 0 || t[i].best_val[r] > *best)) {
            *best = t[i].best_val[r];
            id = t[i].best_id[r];
        }
    return id;
}

/* Bounds, by one plane, of the call's remaining units. */
static void bound(struct sv_cpu *cpu, const struct sv_screen *v, enum sv_screen_plane plane,
                  int32_t n_rows)
{
    struct sv_gemm_call *c = &cpu->gemm->call;
    const struct sv_gemm_kern *packer = c->packer;
    const struct sv_gemm_item item = c->item[0];
    c->screen = v;
    c->item[0].kern = c->packer = cpu->gemm->screen[plane];
    c->item[0].w = v->plane[plane];
    pass(cpu, 0, n_rows);
    c->screen = NULL;
    c->packer = packer;
    c->item[0] = item;
}

/* After coarse bounds: a lower bound of each row's largest logit, and, as the call's units,
 * ascending, those with the largest upper bounds. false: some row has no bounds. */
static bool reached(struct sv_cpu *cpu, struct sv_screen *v, int32_t n_rows, float *low)
{
    const struct sv_gemm_thread *t = cpu->gemm->threads;
    struct sv_gemm_call *c = &cpu->gemm->call;
    c->n_units = 0;
    for (int32_t r = 0; r < n_rows; r++) {
        int best = 0;
        low[r] = -INFINITY;
        for (int i = 0; i < cpu->n_threads; i++) {
            for (int lane = 0; lane < SV_GEMM_UNIT; lane++)
                low[r] = fmaxf(low[r], t[i].best_val[r * SV_GEMM_UNIT + lane]);
            best =
                t[i].best_val[SV_SCREEN_TOPS + r] > t[best].best_val[SV_SCREEN_TOPS + r] ? i : best;
        }
        if (low[r] == -INFINITY)
            return false;
        int32_t unit = t[best].best_id[r], at = c->n_units++;
        for (; at > 0 && v->left[at - 1] > unit; at--)
            v->left[at] = v->left[at - 1];
        v->left[at] = unit;
    }
    c->units = v->left;
    return true;
}

/* Leaves in the call the units that can hold the argmax of some row. */
static void sift(struct sv_cpu *cpu, struct sv_screen *v, int32_t n_rows)
{
    struct sv_gemm_call *c = &cpu->gemm->call;
    float low[SV_SCREEN_ROWS];
    bound(cpu, v, SV_SCREEN_COARSE, n_rows);
    if (!reached(cpu, v, n_rows, low)) {
        c->n_units = v->n_units;
        sv_screen_note(v, v->n_units);
        return;
    }
    pass(cpu, 0, n_rows);
    for (int32_t r = 0; r < n_rows; r++)
        for (int i = 0; i < cpu->n_threads; i++)
            low[r] = fmaxf(low[r], cpu->gemm->threads[i].best_val[r]); /* not NaN, if that is */
    c->n_units = sv_screen_pick(v, low, n_rows);
    bound(cpu, v, SV_SCREEN_FINE, n_rows);
    c->n_units = sv_screen_pick_again(v, c->n_units, low, n_rows);
    sv_screen_note(v, c->n_units);
}

static void put_winner(struct sv_cpu *cpu, const struct sv_p_head_argmax *p, int32_t r, int32_t id)
{
    const int32_t at = p->out_index ? p->out_index[r] : r;
    if (id < 0)
        sv_cpu_latch(cpu, "logits of row %d are all NaN", r);
    if (at >= 0)
        p->out[at] = id < 0 ? 0 : id;
}

/* The best of w's rows; with a join they are published for it. */
static void find_winners(struct sv_cpu *cpu, const struct sv_p_head_argmax *p)
{
    const struct sv_gemm_part part = {.w = p->w};
    const struct sv_p_gemm q = {
        .n_rows = p->n_rows,
        .k = p->k,
        .n_parts = 1,
        .x = p->x,
        .ldx = p->k,
        .parts = &part,
        .y = NULL,
    };
    if (!begin(cpu, &q, NULL))
        return;
    struct sv_screen *v = sv_cpu_screen_of(&p->w);
    if (v && !p->confidence && p->n_rows <= cpu->gemm->screen_rows && sv_screen_asked(v))
        sift(cpu, v, p->n_rows);
    for (int32_t m = 0; m < p->n_rows; m += SV_GEMM_ROWS) {
        const int32_t me = p->n_rows - m < SV_GEMM_ROWS ? p->n_rows : m + SV_GEMM_ROWS;
        pass(cpu, m, me);
        for (int32_t r = m; r < me; r++) {
            float best;
            int32_t id = merge(cpu, r - m, &best, p->confidence ? p->confidence + r : NULL);
            if (p->join)
                sv_cpu_join_leave_best(cpu, p->join, r, best, id < 0 ? id : id + p->first_id);
            else
                put_winner(cpu, p, r, id);
        }
    }
}

void sv_cpu_head_argmax(struct sv_dev *dev, const struct sv_p_head_argmax *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    find_winners(cpu, p);
    if (!p->join)
        return;
    const bool met = sv_cpu_join_best(cpu, p->join, p->n_rows);
    for (int32_t r = 0; r < p->n_rows; r++)
        put_winner(cpu, p, r, met ? sv_cpu_join_best_of(cpu, p->join, r) : 0);
}
