/*
 * attention_check.h - the CUDA attention against a double-precision loop, and the promise that a
 * row's bits depend on its own sequence only.
 *
 * Used by bench/attention_cuda.cu on a GPU and by tests/cuda/attention_emulated.cpp on a CPU.
 * Brings a struct sv_cuda of its own, so that it needs no device.cu. Keys, values and queries are
 * functions of (slot, position, head) alone: any batching and any paging of the same sequences can
 * be compared. What no row may read is NaN.
 */
#ifndef TESTS_CUDA_ATTENTION_CHECK_H
#define TESTS_CUDA_ATTENTION_CHECK_H

#include "backend/cuda/attention.h"
#include "backend/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#ifdef SV_CUDA_EMULATED
static inline void *dev_alloc(size_t n)
{
    void *p = aligned_alloc(256, (n + 255) / 256 * 256);
    memset(p, 0, n);
    return p;
}
static inline void dev_free(void *p)
{
    free(p);
}
static inline void dev_put(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
}
static inline void dev_get(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
}
#else
#define CHECKED(call)                                                                              \
    do {                                                                                           \
        const cudaError_t rc_ = (call);                                                            \
        if (rc_ != cudaSuccess) {                                                                  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(rc_));                                                      \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)
static inline void *dev_alloc(size_t n)
{
    void *p;
    CHECKED(cudaMalloc(&p, n));
    CHECKED(cudaMemset(p, 0, n));
    return p;
}
static inline void dev_free(void *p)
{
    CHECKED(cudaFree(p));
}
static inline void dev_put(void *to, const void *from, size_t n)
{
    CHECKED(cudaMemcpy(to, from, n, cudaMemcpyHostToDevice));
}
static inline void dev_get(void *to, const void *from, size_t n)
{
    CHECKED(cudaMemcpy(to, from, n, cudaMemcpyDeviceToHost));
}
#endif

/* ---------------------------------------------------------------- what device.cu would bring */

bool sv_cuda_check(struct sv_cuda *, cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return true;
    fprintf(stderr, "%s: CUDA error %d\n", what, (int)rc);
    exit(2);
}
int sv_cuda_try(cudaError_t rc, struct sv_err *, const char *what)
{
    return sv_cuda_check(NULL, rc, what) ? 0 : -1;
}
int sv_cuda_alloc(struct sv_dev *, void **out, size_t n_bytes, struct sv_err *)
{
    *out = dev_alloc(n_bytes);
    return 0;
}
void sv_cuda_free(struct sv_dev *, void *p)
{
    if (p)
        dev_free(p);
}

/* ---------------------------------------------------------------- a world */

struct setup {
    int32_t n_heads, n_kv, hd;
    enum sv_dtype dtype;
    enum sv_mask mask;
    int32_t window;
    float softcap;
    bool sinks;
    int32_t v_dim = 0; /* of latents: a value is the first part of its key; 0: keys and values */
    bool f8 = false;   /* a cache of e4m3 */
    float fixed = 0;   /* scale of all its rows; 0: each row's own */
};
static inline int32_t out_dim(const setup &s)
{
    return s.v_dim ? s.v_dim : s.hd;
}
struct seg {
    int32_t slot, base, n, step; /* row j stands at base + step * j */
};
static inline int32_t end_of(const seg &g)
{
    return g.base + g.step * (g.n - 1) + 1;
}
struct batch {
    std::vector<seg> segs;
    int32_t pad_rows, pad_segs;
};

static inline uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
static inline uint64_t hash_of(int what, int32_t slot, int32_t pos, int32_t head)
{
    return mix64(mix64(mix64((uint64_t)what * 64 + (uint64_t)slot) * 1000003u + (uint64_t)pos) *
                     131u +
                 (uint64_t)head);
}
static inline float number_at(uint64_t row, int what, int32_t d)
{
    const uint64_t h = row + (uint64_t)d * 0x9e3779b97f4a7c15ull;
    const float u = (float)(mix64(h) >> 40) * (1.0f / (1 << 24)) - 0.5f;
    /* queries long enough that some keys stand out */
    return u * (what == 0 ? 6.0f : 3.0f);
}
/* A row of an e4m3 cache: its own scale, and codes of like size. Of some rows all codes are
 * subnormal and the scale is large. */
static inline uint8_t own_at(const setup &s, uint64_t row)
{
    return s.fixed > 0 ? 127 : row % 16 == 0 ? 136 : (uint8_t)(119 + row % 3);
}
static inline uint8_t code_at(const setup &s, uint64_t row, int32_t d)
{
    const uint8_t code = (uint8_t)(mix64(row + (uint64_t)d * 0x9e3779b97f4a7c15ull) >> 56);
    return s.fixed == 0 && row % 16 == 0 ? code & 0x87 : (code & 0x7f) == 0x7f ? code ^ 1 : code;
}
/* What names the scale of its number d: each tile of a latent has one. */
static inline uint64_t row_of_scale(const setup &s, uint64_t row, int32_t d)
{
    return s.v_dim ? row + (uint64_t)(d / SV_LATENT_TILE) : row;
}
static inline size_t row_bytes(const setup &s)
{
    return sv_kv_row_bytes(s.f8 ? SV_F8 : s.dtype, s.hd, s.v_dim);
}
/* A latent of e4m3 as it is stored. */
static inline void put_latent(const setup &s, uint8_t *to, uint64_t row)
{
    uint8_t *scales = to + s.v_dim;
    for (int32_t d = 0; d < s.v_dim; d++) {
        const uint64_t scaled = row_of_scale(s, row, d);
        const float scale = sv_e8m0_to_f32(own_at(s, scaled));
        to[d] = code_at(s, scaled, d);
        memcpy(scales + d / SV_LATENT_TILE * 4, &scale, 4);
    }
    uint8_t *key = scales + (s.v_dim + SV_LATENT_TILE - 1) / SV_LATENT_TILE * 4;
    for (int32_t d = s.v_dim; d < s.hd; d++) {
        const uint16_t x = sv_f32_to_bf16(number_at(row, 1, d));
        memcpy(key + 2 * (d - s.v_dim), &x, 2);
    }
}
/* Number d of a row, which hash_of() names; as bf16 holds it when that is the type. */
static inline float row_value(const setup &s, int what, uint64_t row, int32_t d)
{
    const bool key = s.f8 && s.v_dim && what == 1 && d >= s.v_dim; /* of a latent: in bf16 */
    if (s.f8 && (what == 1 || what == 2) && !key) {
        const uint64_t scaled = row_of_scale(s, row, d);
        const float scale = s.fixed > 0 ? s.fixed : sv_e8m0_to_f32(own_at(s, scaled)),
                    y = sv_f8_to_f32(code_at(s, scaled, d)) * scale;
        return s.dtype == SV_BF16 ? sv_bf16_to_f32(sv_f32_to_bf16(y)) : y;
    }
    const float x = number_at(row, what, d);
    return s.dtype == SV_BF16 || key ? sv_bf16_to_f32(sv_f32_to_bf16(x)) : x;
}
static inline float value_at(const setup &s, int what, int32_t slot, int32_t pos, int32_t head,
                             int32_t d)
{
    return row_value(s, what, hash_of(what, slot, pos, head), d);
}

static inline size_t esize(const setup &s)
{
    return s.dtype == SV_BF16 ? 2 : 4;
}
static inline void put_value(const setup &s, void *to, size_t at, float x)
{
    if (s.dtype == SV_BF16)
        ((uint16_t *)to)[at] = sv_f32_to_bf16(x);
    else
        ((float *)to)[at] = x;
}
static inline float get_value(const setup &s, const void *from, size_t at)
{
    return s.dtype == SV_BF16 ? sv_bf16_to_f32(((const uint16_t *)from)[at])
                              : ((const float *)from)[at];
}

/* One row of a batch's output, with what it must equal. */
struct row_out {
    int32_t slot, pos, seg_end;
    std::vector<uint8_t> bits;
};

struct checker {
    struct sv_cuda *cu;
    int64_t n_rows, n_failed;
    double worst;
};

static inline void fill_cache(const setup &s, const batch &b, int32_t page, int32_t n_slots,
                              int32_t stride, std::vector<int32_t> &table, int32_t n_pages,
                              std::vector<uint8_t> &k, std::vector<uint8_t> &v,
                              std::vector<uint8_t> &k_own, std::vector<uint8_t> &v_own)
{
    const size_t n = (size_t)n_pages * s.n_kv * page * s.hd;
    k.assign(n / s.hd * row_bytes(s), 0xff); /* NaN */
    v.assign(n / s.hd * row_bytes(s), 0xff);
    k_own.assign(n / s.hd, 0xff);
    v_own.assign(n / s.hd, 0xff);
    /* Pages in a shuffled order; entries past a sequence's end name no page. */
    std::vector<int32_t> order((size_t)n_pages);
    for (int32_t i = 0; i < n_pages; i++)
        order[(size_t)i] = i;
    for (int32_t i = n_pages - 1; i > 0; i--)
        std::swap(order[(size_t)i],
                  order[mix64((uint64_t)i * 77u + (uint64_t)page) % (uint64_t)(i + 1)]);
    table.assign((size_t)n_slots * stride, -1);
    size_t next = 0;
    for (const seg &g : b.segs) {
        const int32_t end = end_of(g);
        /* Pages wholly before the window of the segment's first row have been given back. */
        const int32_t begin = s.window > 0 && g.base - s.window + 1 > 0 ? g.base - s.window + 1 : 0;
        for (int32_t pos = 0; pos < end; pos++) {
            int32_t *entry = &table[(size_t)g.slot * stride + pos / page];
            if (pos / page < begin / page)
                continue;
            if (*entry < 0)
                *entry = order[next++];
            for (int32_t h = 0; h < s.n_kv; h++) {
                const size_t at = (((size_t)*entry * s.n_kv + h) * page + pos % page) * s.hd;
                if (s.f8 && s.v_dim && pos >= begin)
                    put_latent(s, k.data() + at / s.hd * row_bytes(s), hash_of(1, g.slot, pos, h));
                else if (s.f8 && pos >= begin)
                    for (int what = 1; what < 3; what++) {
                        const uint64_t row = hash_of(what, g.slot, pos, h);
                        (what == 1 ? k_own : v_own)[at / s.hd] = own_at(s, row);
                        for (int32_t d = 0; d < s.hd; d++)
                            (what == 1 ? k : v)[at + d] = code_at(s, row, d);
                    }
                else
                    for (int what = 1; what < 3 && pos >= begin; what++) {
                        const uint64_t row = hash_of(what, g.slot, pos, h);
                        for (int32_t d = 0; d < s.hd; d++)
                            put_value(s, (what == 1 ? k : v).data(), at + d,
                                      row_value(s, what, row, d));
                    }
            }
        }
    }
}

/* Runs one batch and returns its rows. Slots may not repeat within a batch. */
static inline std::vector<row_out> run_batch(checker &c, const setup &s, const batch &b,
                                             int32_t page, const struct sv_attn_force &force,
                                             bool settled = false)
{
    /* Query heads of 256 have a gate behind each. */
    const int32_t n_segs = (int32_t)b.segs.size(), apart = s.hd == 256 ? 2 * s.hd : s.hd,
                  q_width = s.n_heads * s.hd, ldq = s.n_heads * apart + 8,
                  width = s.n_heads * out_dim(s), ld = width + 8;
    int32_t n_rows = 0, n_slots = 0, longest = 0, n_pages = 3;
    for (const seg &g : b.segs) {
        n_rows += g.n;
        n_slots = g.slot + 1 > n_slots ? g.slot + 1 : n_slots;
        longest = end_of(g) > longest ? end_of(g) : longest;
        n_pages += (end_of(g) + page - 1) / page;
    }
    const int32_t stride = (longest + page - 1) / page + 2, all_rows = n_rows + b.pad_rows,
                  all_segs = n_segs + b.pad_segs;
    std::vector<int32_t> table, row_seg((size_t)all_rows, -1), row0((size_t)all_segs + 1, n_rows),
        slot((size_t)all_segs, -1), base((size_t)all_segs, 12345), row_pos((size_t)all_rows, -1);
    std::vector<uint8_t> k, v, k_own, v_own, q((size_t)all_rows * ldq * esize(s), 0xff);
    fill_cache(s, b, page, n_slots, stride, table, n_pages, k, v, k_own, v_own);
    std::vector<row_out> rows;
    for (int32_t i = 0, r = 0; i < n_segs; i++) {
        const seg &g = b.segs[(size_t)i];
        row0[(size_t)i] = r;
        slot[(size_t)i] = g.slot;
        /* Rows that are apart may also stand apart from what is committed. */
        base[(size_t)i] = g.step > 1 && g.base > 5 ? g.base - 5 : g.base;
        for (int32_t j = 0; j < g.n; j++, r++) {
            row_seg[(size_t)r] = i;
            const int32_t pos = row_pos[(size_t)r] = g.base + g.step * j;
            rows.push_back({g.slot, pos, end_of(g), {}});
            for (int32_t x = 0; x < q_width; x++)
                put_value(s, q.data(), (size_t)r * ldq + x / s.hd * apart + x % s.hd,
                          value_at(s, 0, g.slot, pos, x / s.hd, x % s.hd));
        }
    }
    std::vector<uint16_t> sinks((size_t)s.n_heads);
    for (int32_t h = 0; h < s.n_heads; h++)
        sinks[(size_t)h] = sv_f32_to_bf16(value_at(s, 3, 0, 0, h, 0));

    /* One allocation, everything 256-aligned; the output between guards. */
    const size_t guard = 4096, out_bytes = (size_t)all_rows * ld * esize(s);
    struct piece {
        const void *from;
        size_t n, at;
    } pieces[] = {{k.data(), k.size(), 0},
                  {v.data(), v.size(), 0},
                  {q.data(), q.size(), 0},
                  {table.data(), table.size() * 4, 0},
                  {row_seg.data(), row_seg.size() * 4, 0},
                  {row0.data(), row0.size() * 4, 0},
                  {slot.data(), slot.size() * 4, 0},
                  {base.data(), base.size() * 4, 0},
                  {row_pos.data(), row_pos.size() * 4, 0},
                  {sinks.data(), sinks.size() * 2, 0},
                  {NULL, out_bytes + 2 * guard, 0},
                  {k_own.data(), k_own.size(), 0},
                  {v_own.data(), v_own.size(), 0}};
    size_t total = 0;
    for (auto &p : pieces) {
        p.at = total;
        total += (p.n + 255) / 256 * 256;
    }
    uint8_t *mem = (uint8_t *)dev_alloc(total);
    std::vector<uint8_t> out(out_bytes + 2 * guard, 0xa5);
    for (auto &p : pieces)
        dev_put(mem + p.at, p.from ? p.from : out.data(), p.n);

    struct sv_p_attention p = {};
    p.rows = {all_rows,
              all_segs,
              (int32_t *)(mem + pieces[4].at),
              (int32_t *)(mem + pieces[5].at),
              (int32_t *)(mem + pieces[6].at),
              (int32_t *)(mem + pieces[7].at),
              (int32_t *)(mem + pieces[8].at)};
    p.q = mem + pieces[2].at;
    p.ldq = ldq;
    p.q_stride = apart == s.hd ? 0 : apart;
    p.ldo = ld;
    p.v_dim = s.v_dim;
    p.out = mem + pieces[10].at + guard;
    p.n_heads = s.n_heads;
    p.kv = {mem + pieces[0].at,
            s.v_dim ? NULL : mem + pieces[1].at,
            s.f8 ? SV_F8 : s.dtype,
            s.fixed,
            s.fixed,
            n_pages,
            page,
            s.n_kv,
            s.hd,
            s.v_dim,
            (int32_t *)(mem + pieces[3].at),
            stride,
            mem + pieces[11].at,
            mem + pieces[12].at};
    c.cu->act = s.dtype;
    p.mask = s.mask;
    p.window = s.window;
    p.scale = 1.0f / sqrtf((float)s.hd);
    p.softcap = s.softcap;
    if (s.sinks)
        p.sinks = {SV_ROLE_NONE, {SV_BF16}, 1, s.n_heads, mem + pieces[9].at};
    /* As in a pass: the first call makes the plan, the second finds it and reads what is settled
     * early. */
    if (settled) {
        c.cu->settled = true;
        c.cu->pass++;
        sv_cuda_attention_forced(c.cu, &p, &force);
        dev_put(mem + pieces[10].at, out.data(), out.size());
    }
    sv_cuda_attention_forced(c.cu, &p, &force);
    c.cu->settled = false;
    dev_get(out.data(), mem + pieces[10].at, out.size());
    struct sv_cuda_fault fault;
    dev_get(&fault, c.cu->fault, sizeof fault);
    dev_free(mem);

    bool clean = fault.code == 0;
    for (size_t i = 0; i < guard; i++)
        clean = clean && out[i] == 0xa5 && out[out.size() - 1 - i] == 0xa5;
    for (int32_t r = 0; r < n_rows; r++) {
        const uint8_t *at = out.data() + guard + (size_t)r * ld * esize(s);
        rows[(size_t)r].bits.assign(at, at + (size_t)width * esize(s));
        for (size_t i = (size_t)width * esize(s); i < (size_t)ld * esize(s); i++)
            clean = clean && at[i] == 0xa5;
    }
    if (!clean) {
        printf("FAILED: fault %d (%d %d), or written outside the output\n", fault.code, fault.a,
               fault.b);
        c.n_failed++;
        fault.code = 0;
        dev_put(c.cu->fault, &fault, sizeof fault);
    }
    return rows;
}

/* ---------------------------------------------------------------- the reference */

static inline void reference_row(const setup &s, const row_out &r, std::vector<double> &out)
{
    const int32_t group = s.n_heads / s.n_kv, hi = s.mask == SV_MASK_BLOCK ? r.seg_end : r.pos + 1,
                  lo = s.window > 0 && r.pos - s.window + 1 > 0 ? r.pos - s.window + 1 : 0;
    std::vector<double> w((size_t)hi);
    std::vector<float> q((size_t)s.hd);
    const int32_t vd = out_dim(s), values = s.v_dim ? 1 : 2;
    out.assign((size_t)s.n_heads * vd, 0);
    for (int32_t h = 0; h < s.n_heads; h++) {
        double most = s.sinks ? sv_bf16_to_f32(sv_f32_to_bf16(value_at(s, 3, 0, 0, h, 0))) : -1e300,
               sum = 0;
        const double sink = most;
        for (int32_t d = 0; d < s.hd; d++)
            q[(size_t)d] = value_at(s, 0, r.slot, r.pos, h, d);
        for (int32_t p = lo; p < hi; p++) {
            const uint64_t row = hash_of(1, r.slot, p, h / group);
            double dot = 0;
            for (int32_t d = 0; d < s.hd; d++)
                dot += (double)q[(size_t)d] * row_value(s, 1, row, d);
            dot *= (double)(1.0f / sqrtf((float)s.hd));
            if (s.softcap > 0)
                dot = s.softcap * tanh(dot / s.softcap);
            w[(size_t)p] = dot;
            most = dot > most ? dot : most;
        }
        if (s.sinks)
            sum = exp(sink - most);
        for (int32_t p = lo; p < hi; p++) {
            const uint64_t row = hash_of(values, r.slot, p, h / group);
            const double e = exp(w[(size_t)p] - most);
            sum += e;
            for (int32_t d = 0; d < vd; d++)
                out[(size_t)(h * vd + d)] += e * row_value(s, values, row, d);
        }
        for (int32_t d = 0; d < vd; d++)
            out[(size_t)(h * vd + d)] /= sum;
    }
}

static inline void check_row(checker &c, const setup &s, const row_out &r, const char *name)
{
    std::vector<double> ref;
    reference_row(s, r, ref);
    double err = 0, norm = 0;
    for (size_t i = 0; i < ref.size(); i++) {
        const double d = get_value(s, r.bits.data(), i) - ref[i];
        err += d * d;
        norm += ref[i] * ref[i];
    }
    const double rel = sqrt(err / norm), most = s.dtype == SV_BF16 ? 6e-3 : 4e-6;
    c.n_rows++;
    if (!(rel <= most)) {
        if (c.n_failed++ < 20)
            printf("FAILED: %s: slot %d position %d: relative error %.3g\n", name, r.slot, r.pos,
                   rel);
    }
    if (s.dtype == SV_BF16 && !(rel <= c.worst))
        c.worst = rel;
}

static inline void check_same(checker &c, const std::vector<row_out> &want,
                              const std::vector<row_out> &got, const char *name)
{
    for (const row_out &g : got) {
        const row_out *w = NULL;
        for (const row_out &x : want)
            if (x.slot == g.slot && x.pos == g.pos)
                w = &x;
        c.n_rows++;
        if (!w || w->bits != g.bits) {
            size_t i = 0;
            while (w && i < g.bits.size() && w->bits[i] == g.bits[i])
                i++;
            if (c.n_failed++ < 20)
                printf("FAILED: %s: slot %d position %d: other bits from byte %zu\n", name, g.slot,
                       g.pos, i);
        }
    }
}

/* ---------------------------------------------------------------- arrangements */

/* All rows of the sequences in `lens` as prompts, against which every other arrangement is held.
 * quick: each kernel and each unit once or twice, for tools that slow a kernel down a thousandfold.
 */
static inline void check_setup(checker &c, const setup &s, const std::vector<int32_t> &lens,
                               const char *name, int32_t ref_every, bool tiled, bool quick = false)
{
    batch prompt = {{}, 0, 0};
    char what[200];
    for (size_t i = 0; i < lens.size(); i++)
        prompt.segs.push_back({(int32_t)i, 0, lens[i], 1});
    const std::vector<row_out> want = run_batch(c, s, prompt, 16, {SV_ATTN_WHOLE, 8, 5, false, -1});
    for (size_t i = 0; i < want.size(); i += (size_t)ref_every)
        check_row(c, s, want[i], name);
    check_row(c, s, want.back(), name);
    /* The tuned set takes pages of bf16 that are powers of two from 8 on; others go to the portable
     * kernels, whose bits differ. */
    const int32_t any[] = {1, 16, 64, 24, 7, 256}, powers[] = {8, 16, 64, 32, 128, 256};
    const int32_t *const pages = tiled && !s.f8 && c.cu->set == SV_CUDA_SM90 ? powers : any;
    for (int i = 0; i < (quick ? 8 : 18); i++) {
        /* Each sequence contributes one run of rows: its end, a middle, or all from some place. */
        batch b = {{}, i % 3, i % 2};
        for (size_t j = 0; j < lens.size(); j++) {
            const uint64_t h = mix64((uint64_t)i * 91u + j);
            int32_t n = i % 6 == 0   ? 1
                        : i % 6 == 1 ? 16
                        : i % 6 == 2 ? (j % 2 ? 1 : 200)
                        : i % 6 == 3 ? 64
                        : i % 6 == 4 ? 33
                                     : (int32_t)(1 + h % 300);
            n = n < lens[j] ? n : lens[j];
            const int32_t base =
                i < 6 ? lens[j] - n : (int32_t)(h / 512 % (uint64_t)(lens[j] - n + 1));
            b.segs.push_back({(int32_t)j, base, n, 1});
            if (i % 4 == 3) /* rows apart, as far as there is room */
                b.segs[j].step =
                    std::max(1, std::min(7, (lens[j] - base - 1) / std::max(1, n - 1)));
        }
        if (s.mask ==
            SV_MASK_BLOCK) /* a row sees to the end of its segment: only the same end compares */
            for (size_t j = 0; j < lens.size(); j++)
                b.segs[j].base = lens[j] - 1 - b.segs[j].step * (b.segs[j].n - 1);
        const struct sv_attn_force force = {(enum sv_attn_unit)(i % 4),
                                            i % 3 == 0   ? 0
                                            : i % 3 == 1 ? 4
                                                         : 8,
                                            i % 4 == 1   ? 3
                                            : i % 4 == 2 ? 40
                                                         : 0,
                                            !tiled, i % 5 == 0 ? 1 : 0};
        const int32_t page = pages[i % 6];
        snprintf(what, sizeof what, "%s: arrangement %d (page %d, unit %d, warps %d, blocks %d)",
                 name, i, page, (int)force.unit, (int)force.n_warps, (int)force.n_blocks);
        const std::vector<row_out> got =
            run_batch(c, s, b, page, force, tiled && (i + i / 4) % 2 == 1);
        check_same(c, want, got, what);
        for (size_t k = (size_t)i % 7; k < got.size(); k += (size_t)ref_every * 4)
            check_row(c, s, got[k], what);
        /* The same batch without one of its members. */
        if (b.segs.size() > 1 && i % 3 == 0) {
            b.segs.erase(b.segs.begin());
            check_same(c, want, run_batch(c, s, b, page, {}), what);
        }
    }
    /* One sequence with few rows, which has a kernel of its own. */
    for (int i = 0; tiled && !s.v_dim && i < (quick ? 3 : 12); i++) {
        const size_t j = (size_t)i % lens.size();
        const int32_t most = 64 / (s.n_heads / s.n_kv), want_n = i % 4 == 0   ? 1
                                                                 : i % 4 == 1 ? 16
                                                                 : i % 4 == 2 ? most
                                                                              : 3;
        const int32_t n = std::min(std::min(want_n, most), lens[j]);
        const int32_t base = i < 6 || s.mask == SV_MASK_BLOCK
                                 ? lens[j] - n
                                 : (int32_t)(mix64((uint64_t)i) % (uint64_t)(lens[j] - n + 1));
        const int32_t room = s.mask == SV_MASK_BLOCK ? lens[j] - 1 : lens[j] - 1 - base,
                      step = i % 3 == 2 ? std::max(1, std::min(5, room / std::max(1, n - 1))) : 1,
                      first = s.mask == SV_MASK_BLOCK ? lens[j] - 1 - step * (n - 1) : base;
        const batch b = {{{(int32_t)j, first, n, step}}, i % 2, i / 2 % 2};
        const struct sv_attn_force force = {(enum sv_attn_unit)(i % 3), 0, 0, false,
                                            i % 5 == 4 ? -1 : 1};
        snprintf(what, sizeof what, "%s: alone %d (rows %d, unit %d)", name, i, n, (int)force.unit);
        c.cu->lim.max_experts = i == 2 || i >= 6; /* with room for other launches' thread blocks */
        check_same(c, want, run_batch(c, s, b, pages[i % 6], force, i % 2 == 0), what);
        c.cu->lim.max_experts = 0;
    }
}

static inline void check_init(checker &c, struct sv_cuda *cu, int32_t max_rows, int32_t max_heads,
                              int32_t max_positions, bool latents = false)
{
    struct sv_dev_limits lim = {};
    lim.by_head = latents;
    lim.max_rows = max_rows;
    lim.max_heads = max_heads;
    lim.max_head_dim = 256;
    lim.max_positions = max_positions;
    cu->fault = (struct sv_cuda_fault *)dev_alloc(sizeof *cu->fault);
    SV_REQUIRE(sv_cuda_attn_reserve(cu, &lim, NULL) == SV_OK);
    c = {cu, 0, 0, 0};
}

#endif
