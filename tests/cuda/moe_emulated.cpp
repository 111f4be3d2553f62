/*
 * moe_emulated.cpp - the GPU kernels of a mixture of experts run on a CPU by tests/cuda/emulated: products within rounding
 * of sums in double precision, choices and lists against their definition, and a row's bits the same alone and among others
 * that share all or some of its experts, in every width of the kernels. Experts in codes give the bits of the bf16 experts
 * of their values, and a shared expert that lies by itself those of a routed one that all rows choose.
 *
 * Built and started by moe_emulated.test.sh. tests/backend/test_cross_moe.c holds the same ops against the CPU's on a GPU.
 */
#include "backend/cuda/gemm.h"
#include "backend/cuda/moe.h"
#include "backend/gpu/mxfp4.cuh"
#include "drawn_codes.h"
extern "C" {
#include "backend/quant.h"
}

#include <algorithm>
#include <cmath>
#include <vector>

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}
int sv_cuda_try(cudaError_t, struct sv_err *, const char *)
{
    return SV_OK;
}

/* watch.cu's: the test sets cu->arrived itself. */
int sv_cuda_alloc(struct sv_dev *, void **, size_t, struct sv_err *)
{
    abort();
}
void sv_cuda_drop(struct sv_cuda *, void *)
{
}
/* rows.cu's: no router here makes its norm. */
void sv_cuda_add_rms_norm(struct sv_dev *, const struct sv_p_add_rms_norm *)
{
    abort();
}
/* For devices of sm_90a. */
const struct sv_moe_width *sv_moe_sm90(enum sv_moe_form)
{
    abort();
}
bool sv_moe_sm90_joined(struct sv_cuda *, const struct sv_moe *, const struct sv_moe_width *, size_t)
{
    abort();
}
int sv_moe_sm90_joined_open(size_t, struct sv_err *)
{
    abort();
}
/* join.cu's: a device that is alone. */
struct sv_join_site sv_cuda_join_rows(const struct sv_cuda *, enum sv_join, const struct sv_slice *, int32_t, int32_t)
{
    abort();
}
bool sv_cuda_join_push(struct sv_cuda *, enum sv_join, int32_t, int32_t, struct sv_join_site *)
{
    return false;
}
#ifdef SV_EMULATED_WAVE64
bool sv_cuda_norm_route_sm90(struct sv_cuda *, const struct sv_p_router_topk *, const struct route *)
{
    abort();
}
bool sv_moe_few(struct sv_cuda *, const struct sv_moe *, bool)
{
    abort();
}
int sv_moe_few_open(struct sv_err *)
{
    return SV_OK;
}
#endif

namespace
{
struct shape {
    int32_t n_experts, k, hidden, inter;
    bool bf16, bias;
    sv_expert_act act;
    int32_t top = 0;   /* values are MXFP4's, with scales up to it; 0: any */
    int32_t code = -1; /* values are those of an enum sv_codes_code; -1: any */
};

/* As upload.cu says what it keeps. */
sv_format format_of(int32_t code)
{
    switch (code) {
    case SV_CODES_F8:
        return {SV_F8, 1, SV_TILE, SV_BF16};
    case SV_CODES_F8_WIDE:
        return {SV_F8, 1, SV_TILE, SV_F32};
    case SV_CODES_I8:
        return {SV_I8, 1, SV_TILE, SV_F32};
    case SV_CODES_I4:
        return {SV_U8, 1, SV_TILE, SV_BF16};
    case SV_CODES_I4_HALF:
        return {SV_U8, 1, SV_TILE, SV_F16};
    case SV_CODES_I4_TWO:
        return {SV_U8, 1, SV_TILE / 2, SV_BF16};
    default:
        return {SV_U8, 1, SV_TILE, SV_F8};
    }
}

struct projection {
    std::vector<float> value; /* (n_experts, rows, cols) */
    std::vector<uint16_t> packed;
    std::vector<float> bias;
    std::vector<sv_weight> w;
    sv_experts x;

    std::vector<uint8_t> codes, scales, tiles; /* (n_experts, rows, cols / 2), (n_experts, rows, cols / 32) */
    std::vector<sv_weight> coded;

    /* Every code, and scales in all of their range: (n_experts * rows, cols / 32) of them. */
    void draw_codes(sv_rng &rng, int32_t top)
    {
        codes.resize(value.size() / 2);
        scales.resize(value.size() / SV_MXFP4_BLOCK);
        for (uint8_t &c : codes)
            c = (uint8_t)sv_rng_below(&rng, 256);
        for (uint8_t &s : scales)
            s = (uint8_t)(top - (int32_t)sv_rng_below(&rng, top > 128 ? (uint32_t)top : 4));
        for (size_t i = 0; i < value.size(); i++)
            value[i] = sv_e2m1[codes[i / 2] >> 4 * (i & 1) & 15] * sv_e8m0_to_f32(scales[i / SV_MXFP4_BLOCK]);
    }
    drawn_codes drawn;
    size_t code_bytes() const
    {
        return drawn.code < 0 ? sv_mxfp4_bytes(x.rows, x.cols) : drawn.bytes(x.rows, x.cols);
    }
    /* As upload.cu does. */
    sv_experts in_codes(sv_cuda *cu)
    {
        if (drawn.code >= 0)
            return in_tiles(cu);
        const size_t each = sv_mxfp4_bytes(x.rows, x.cols), n = (size_t)x.rows * x.cols;
        tiles.assign(each * x.n, 0xff);
        coded = w;
        for (int32_t e = 0; e < x.n; e++) {
            sv_cuda_mxfp4_tiles(cu, &codes[e * n / 2], &scales[e * n / SV_MXFP4_BLOCK], 0, 0, x.rows, x.cols, &tiles[e * each]);
            coded[e].fmt = {SV_U8, 1, 32, SV_U8};
            coded[e].data = &tiles[e * each];
        }
        sv_experts all = x;
        all.w = coded.data();
        return all;
    }
    sv_experts in_tiles(sv_cuda *cu)
    {
        const size_t each = code_bytes();
        tiles.assign(each * x.n, 0xff);
        coded = w;
        for (int32_t e = 0; e < x.n; e++) {
            drawn.tiles(cu, e, x.rows, x.cols, &tiles[e * each]);
            coded[e].fmt = format_of(drawn.code);
            coded[e].data = &tiles[e * each];
        }
        sv_experts all = x;
        all.w = coded.data();
        return all;
    }
    /* The last expert becomes a shared one: its weights are moved away from the others'. */
    std::vector<uint8_t> apart;
    sv_weight moved;
    void split(sv_experts &all, size_t each)
    {
        moved = all.w[--all.n];
        uint8_t *from = (uint8_t *)(uintptr_t)moved.data;
        apart.assign(from, from + each);
        memset(from, 0x7f, each);
        moved.data = apart.data();
        all.shared = &moved;
    }

    projection(sv_rng &rng, const shape &s, int32_t rows, int32_t cols)
        : value((size_t)s.n_experts * rows * cols), bias((size_t)s.n_experts * rows), w(s.n_experts)
    {
        const float scale = 1 / std::sqrt((float)cols);
        const size_t each = sv_packed_bytes(rows, cols) / 2;
        for (float &v : value)
            v = sv_bf16_to_f32(sv_f32_to_bf16(scale * sv_rng_normal(&rng)));
        if (s.top)
            draw_codes(rng, s.top);
        if (s.code >= 0)
            drawn.draw(rng, s.code, cols, value);
        for (float &b : bias)
            b = s.bias ? 0.3f * sv_rng_normal(&rng) : 0;
        packed.resize(each * s.n_experts);
        for (int32_t e = 0; e < s.n_experts; e++) {
            for (int32_t r = 0; r < rows; r++)
                for (int32_t c = 0; c < cols; c++)
                    packed[e * each + sv_packed_at(r, c, cols)] = sv_f32_to_bf16(at(e, r, c, rows, cols));
            w[e] = {};
            w[e].fmt.elem = s.bf16 ? SV_BF16 : SV_F32;
            w[e].rows = rows;
            w[e].cols = cols;
            w[e].data = s.bf16 ? (const void *)&packed[e * each] : &value[(size_t)e * rows * cols];
        }
        x = {};
        x.n = s.n_experts;
        x.rows = rows;
        x.cols = cols;
        x.w = w.data();
        if (s.bias) {
            x.bias.fmt.elem = SV_F32;
            x.bias.rows = 1;
            x.bias.cols = s.n_experts * rows;
            x.bias.data = bias.data();
        }
    }
    float at(int32_t e, int32_t r, int32_t c, int32_t rows, int32_t cols) const
    {
        return value[((size_t)e * rows + r) * cols + c];
    }
};

struct layer {
    shape s;
    projection gate, up, down;
    /* up: another code of the same family */
    layer(sv_rng &rng, const shape &of, int32_t code_of_up = -1)
        : s(of), gate(rng, of, of.inter, of.hidden), up(rng, with(of, code_of_up), of.inter, of.hidden),
          down(rng, of, of.hidden, of.inter)
    {
    }
    static shape with(shape s, int32_t code)
    {
        s.code = code < 0 ? s.code : code;
        return s;
    }
};

struct routing {
    sv_routes r;
    std::vector<uint8_t> memory;
    routing(int32_t n, const shape &s, sv_slice own = {})
    {
        r = {};
        r.own = own;
        r.n_rows = n;
        r.n_experts = s.n_experts;
        r.k = s.k;
        memory.resize(sv_routes_lay_out(&r, nullptr) + 256);
        sv_routes_lay_out(&r, (void *)(((uintptr_t)memory.data() + 255) / 256 * 256));
    }
    void lists()
    {
        int32_t n = 0, active = 0;
        for (int32_t i = 0; i < r.n_rows * r.k; i++)
            r.place[i] = -1;
        for (int32_t e = 0; e < sv_routes_n_own(&r); e++) {
            r.first[e] = n;
            for (int32_t i = 0; i < r.n_rows * r.k; i++)
                if (r.expert[i] == r.own.first + e) {
                    r.list[n] = i;
                    r.place[i] = n++;
                }
            if (n > r.first[e])
                r.active[active++] = e;
        }
        r.first[sv_routes_n_own(&r)] = n;
        *r.n_active = active;
    }
};

/* Act values: bf16 or f32. */
struct acts {
    std::vector<uint8_t> data;
    bool bf16;
    acts(size_t n, bool half) : data(n * (half ? 2 : 4), 0xff), bf16(half) {}
    float at(size_t i) const
    {
        return bf16 ? sv_bf16_to_f32(((const uint16_t *)data.data())[i]) : ((const float *)data.data())[i];
    }
    void set(size_t i, float v)
    {
        if (bf16)
            ((uint16_t *)data.data())[i] = sv_f32_to_bf16(v);
        else
            ((float *)data.data())[i] = v;
    }
};

double activated(const shape &s, double g, double u)
{
    if (s.act == SV_EXPERT_SILU)
        return g / (1 + std::exp(-g)) * u;
    g = std::min(g, 1.5);
    u = std::max(std::min(u, 1.5), -1.5);
    return (u + 1) * g / (1 + std::exp(-1.702 * g));
}

void run(sv_cuda *cu, const layer &l, const sv_routes &r, const void *x, acts &act, std::vector<float> &down, acts &out)
{
    sv_p_moe_gate_up g = {};
    g.x = x;
    g.gate = l.gate.x;
    g.up = l.up.x;
    g.act = l.s.act;
    g.limit = 1.5f;
    g.alpha = 1.702f;
    g.routes = r;
    g.out = act.data.data();
    sv_cuda_moe_gate_up((sv_dev *)(void *)cu, &g);
    sv_p_moe_down d = {};
    d.x = g.out;
    d.down = l.down.x;
    d.routes = r;
    d.out = down.data();
    sv_p_moe_combine c = {};
    c.hidden = l.s.hidden;
    c.x = down.data();
    c.routes = r;
    c.out = out.data.data();
    d.then = &c;
    sv_cuda_moe_down((sv_dev *)(void *)cu, &d);
}

/* Rows 0 .. n - 2 draw from the first `among` experts; the last has those in own. */
void draw(sv_rng &rng, routing &t, const shape &s, int32_t among, const std::vector<int32_t> &own)
{
    for (int32_t row = 0; row < t.r.n_rows; row++)
        for (int32_t j = 0; j < s.k; j++) {
            int32_t *e = t.r.expert + row * s.k;
            do
                e[j] = (int32_t)sv_rng_below(&rng, (uint32_t)among);
            while (std::find(e, e + j, e[j]) != e + j);
            if (row == t.r.n_rows - 1)
                e[j] = own[j];
            t.r.weight[row * s.k + j] = row == t.r.n_rows - 1 ? 0.1f * (float)(j + 1) : 0.3f;
        }
    t.lists();
}

int check_values(const layer &l, const routing &t, const acts &x, const acts &act, const std::vector<float> &down,
                 const acts &out)
{
    const shape &s = l.s;
    const double tol = x.bf16 ? 1.2e-2 : 3e-5;
    for (int32_t i = 0; i < t.r.n_rows * s.k; i++) {
        const int32_t e = t.r.expert[i], p = t.r.place[i], row = i / s.k;
        for (int32_t f = 0; f < s.inter; f++) {
            double g = l.gate.bias[e * s.inter + f], u = l.up.bias[e * s.inter + f];
            for (int32_t c = 0; c < s.hidden; c++) {
                g += (double)x.at((size_t)row * s.hidden + c) * l.gate.at(e, f, c, s.inter, s.hidden);
                u += (double)x.at((size_t)row * s.hidden + c) * l.up.at(e, f, c, s.inter, s.hidden);
            }
            const double want = activated(s, g, u), got = act.at((size_t)p * s.inter + f);
            if (!(std::fabs(got - want) <= tol * std::max(1.0, std::fabs(want)))) {
                printf("gate and up: entry %d, %d: %g, not %g\n", i, f, got, want);
                return 1;
            }
        }
        for (int32_t f = 0; f < s.hidden; f++) {
            double want = l.down.bias[e * s.hidden + f];
            for (int32_t c = 0; c < s.inter; c++)
                want += (double)act.at((size_t)p * s.inter + c) * l.down.at(e, f, c, s.hidden, s.inter);
            if (!(std::fabs(down[(size_t)p * s.hidden + f] - want) <= 3e-5 * std::max(1.0, std::fabs(want)))) {
                printf("down: entry %d, %d: %g, not %g\n", i, f, down[(size_t)p * s.hidden + f], want);
                return 1;
            }
        }
    }
    for (int32_t row = 0; row < t.r.n_rows; row++)
        for (int32_t f = 0; f < s.hidden; f++) {
            double want = 0;
            for (int32_t j = 0; j < s.k; j++)
                want += (double)t.r.weight[row * s.k + j] * down[(size_t)t.r.place[row * s.k + j] * s.hidden + f];
            if (!(std::fabs(out.at((size_t)row * s.hidden + f) - want) <= tol * std::max(1.0, std::fabs(want)))) {
                printf("combine: row %d, %d: %g, not %g\n", row, f, out.at((size_t)row * s.hidden + f), want);
                return 1;
            }
        }
    return 0;
}

int check_layer(sv_cuda *cu, sv_rng &rng, const shape &s)
{
    const layer l(rng, s);
    std::vector<int32_t> own(s.k);
    for (int32_t j = 0; j < s.k; j++)
        own[j] = (s.k - 1 - j) % s.n_experts;
    const int32_t most = 160;
    acts x((size_t)most * s.hidden, cu->act == SV_BF16);
    for (size_t i = 0; i < (size_t)most * s.hidden; i++)
        x.set(i, sv_rng_normal(&rng));
    std::vector<uint8_t> alone;
    const size_t row_bytes = (size_t)s.hidden * (x.bf16 ? 2 : 4);
    for (int32_t n : {1, 2, 9, 40, 160})
        for (int32_t among : {s.k, s.n_experts}) {
            routing t(n, s);
            draw(rng, t, s, among, own);
            acts act((size_t)n * s.k * s.inter, x.bf16), out((size_t)n * s.hidden, x.bf16);
            std::vector<float> down((size_t)n * s.k * s.hidden);
            acts rows((size_t)n * s.hidden, x.bf16); /* the last n: row most - 1 is always the last */
            rows.data.assign(x.data.end() - (ptrdiff_t)(n * row_bytes), x.data.end());
            run(cu, l, t.r, rows.data.data(), act, down, out);
            if (n <= 9 && check_values(l, t, rows, act, down, out))
                return 1;
            const std::vector<uint8_t> bits(out.data.end() - (ptrdiff_t)row_bytes, out.data.end());
            if (alone.empty())
                alone = bits;
            if (bits != alone) {
                printf("a row has other bits among %d that draw from %d experts\n", n, among);
                return 1;
            }
        }
    return 0;
}

/* Experts shared out among three: every entry has on its own device the bits that it has with all of them, and what each
 * device adds up is its own entries, in the order of choice. */
int check_parts(sv_cuda *cu, sv_rng &rng, const shape &s)
{
    const layer whole(rng, s);
    std::vector<int32_t> own(s.k);
    for (int32_t j = 0; j < s.k; j++)
        own[j] = j * (s.n_experts - 1) / s.k;
    for (int32_t n : {1, 2, 9, 40, 160}) {
        routing all(n, s);
        draw(rng, all, s, s.n_experts, own);
        acts x((size_t)n * s.hidden, cu->act == SV_BF16), out((size_t)n * s.hidden, x.bf16);
        for (size_t i = 0; i < (size_t)n * s.hidden; i++)
            x.set(i, sv_rng_normal(&rng));
        acts act((size_t)n * s.k * s.inter, x.bf16);
        std::vector<float> down((size_t)n * s.k * s.hidden);
        run(cu, whole, all.r, x.data.data(), act, down, out);
        int32_t n_entries = 0;
        for (int32_t rank = 0; rank < 3; rank++) {
            const int32_t first = s.n_experts * rank / 3;
            routing t(n, s, {first, s.n_experts * (rank + 1) / 3 - first});
            std::copy(all.r.expert, all.r.expert + n * s.k, t.r.expert);
            std::copy(all.r.weight, all.r.weight + n * s.k, t.r.weight);
            t.lists();
            layer part = whole;
            for (projection *p : {&part.gate, &part.up, &part.down}) {
                p->x.n = t.r.own.n;
                p->x.w += first;
                if (s.bias)
                    p->x.bias.data = (const float *)p->x.bias.data + (size_t)first * p->x.rows;
            }
            acts some((size_t)n * s.k * s.inter, x.bf16), sum((size_t)n * s.hidden, x.bf16);
            std::vector<float> d((size_t)n * s.k * s.hidden, NAN);
            run(cu, part, t.r, x.data.data(), some, d, sum);
            for (int32_t row = 0; row < n; row++)
                for (int32_t c = 0; c < s.hidden; c++) {
                    float want = 0;
                    for (int32_t j = 0; j < s.k; j++) {
                        const int32_t i = row * s.k + j;
                        const size_t at = (size_t)all.r.place[i] * s.hidden + c;
                        if (t.r.place[i] < 0)
                            continue;
                        n_entries += c == 0;
                        want = fmaf(t.r.weight[i], down[at], want);
                        if (d[(size_t)t.r.place[i] * s.hidden + c] != down[at]) {
                            printf("part %d: entry %d has other bits\n", rank, i);
                            return 1;
                        }
                    }
                    if (sum.at((size_t)row * s.hidden + c) != (x.bf16 ? sv_bf16_to_f32(sv_f32_to_bf16(want)) : want)) {
                        printf("part %d: row %d of %d, %d: another sum\n", rank, row, n, c);
                        return 1;
                    }
                }
        }
        if (n_entries != n * s.k) {
            printf("%d of %d entries are on a device\n", n_entries, n * s.k);
            return 1;
        }
    }
    return 0;
}

/* Both ways in which experts with the values of codes may lie. Scales of MXFP4 beyond 128 give infinities, too. */
int check_codes(sv_cuda *cu, sv_rng &rng, const shape &s, int32_t code_of_up = -1)
{
    layer l(rng, s, code_of_up);
    layer c = l;
    c.gate.x = c.gate.in_codes(cu);
    c.up.x = c.up.in_codes(cu);
    c.down.x = c.down.in_codes(cu);
    std::vector<int32_t> own(s.k);
    for (int32_t j = 0; j < s.k; j++)
        own[j] = s.k - 1 - j;
    for (int32_t n : {1, 3, 12, 20, 60, 160}) {
        routing t(n, s);
        draw(rng, t, s, s.n_experts, own);
        acts x((size_t)n * s.hidden, true);
        for (size_t i = 0; i < (size_t)n * s.hidden; i++)
            x.set(i, sv_rng_normal(&rng));
        acts act[2] = {{(size_t)n * s.k * s.inter, true}, {(size_t)n * s.k * s.inter, true}};
        acts out[2] = {{(size_t)n * s.hidden, true}, {(size_t)n * s.hidden, true}};
        std::vector<float> down[2] = {std::vector<float>((size_t)n * s.k * s.hidden),
                                      std::vector<float>((size_t)n * s.k * s.hidden)};
        run(cu, l, t.r, x.data.data(), act[0], down[0], out[0]);
        run(cu, c, t.r, x.data.data(), act[1], down[1], out[1]);
        if (n < 12 && s.top <= 128 && check_values(c, t, x, act[1], down[1], out[1]))
            return 1;
        if (act[0].data != act[1].data || memcmp(down[0].data(), down[1].data(), down[0].size() * 4) ||
            out[0].data != out[1].data) {
            printf("codes %d: %d rows of %d experts, %d to %d, scales up to %d: other bits\n", s.code, n, s.n_experts, s.hidden,
                   s.inter, s.top);
            return 1;
        }
    }
    return 0;
}

/* The last expert, which is every row's last choice, as one more routed expert and as a shared one: the same bits. */
int check_shared(sv_cuda *cu, sv_rng &rng, const shape &s)
{
    layer l(rng, s);
    std::vector<std::vector<uint8_t>> want;
    const std::vector<int32_t> own = {0, 1, 2};
    for (projection *p : {&l.gate, &l.up, &l.down})
        if (s.top || s.code >= 0)
            p->x = p->in_codes(cu);
    for (bool fused : {false, true}) {
        for (projection *p : {&l.gate, &l.up, &l.down})
            if (fused)
                p->split(p->x, s.top || s.code >= 0 ? p->code_bytes()
                               : s.bf16 ? sv_packed_bytes(p->x.rows, p->x.cols)
                                        : (size_t)p->x.rows * p->x.cols * 4);
        for (int32_t n : {1, 9, 40, 160}) {
            sv_rng same = {(uint64_t)n};
            routing t(n, s);
            draw(same, t, s, s.n_experts - 1, own);
            for (int32_t row = 0; row < n; row++)
                t.r.expert[row * s.k + s.k - 1] = s.n_experts - 1;
            t.r.shared = fused;
            t.lists();
            acts x((size_t)n * s.hidden, cu->act == SV_BF16);
            for (size_t i = 0; i < (size_t)n * s.hidden; i++)
                x.set(i, sv_rng_normal(&same));
            acts act((size_t)n * s.k * s.inter, x.bf16), out((size_t)n * s.hidden, x.bf16);
            std::vector<float> down((size_t)n * s.k * s.hidden);
            run(cu, l, t.r, x.data.data(), act, down, out);
            std::vector<uint8_t> &bits = act.data;
            bits.insert(bits.end(), (const uint8_t *)down.data(), (const uint8_t *)(down.data() + down.size()));
            bits.insert(bits.end(), out.data.begin(), out.data.end());
            if (!fused) {
                want.push_back(bits);
            } else if (want.front() != bits) {
                printf("%d rows with a shared expert have other bits than with one more routed expert\n", n);
                return 1;
            } else {
                want.erase(want.begin());
            }
        }
    }
    return 0;
}

/* Few rows by Hopper's kernels for them, which add up by themselves: the same bits. shared: the last expert lies by itself,
 * and is every row's last choice. */
int check_few(sv_cuda *cu, sv_rng &rng, const shape &s, bool shared)
{
#ifdef SV_EMULATED_WAVE64
    return 0;
#endif
    layer l(rng, s);
    for (projection *p : {&l.gate, &l.up, &l.down})
        if (shared)
            p->split(p->x, sv_packed_bytes(p->x.rows, p->x.cols));
    std::vector<int32_t> own(s.k);
    for (int32_t j = 0; j < s.k; j++)
        own[j] = shared && j == s.k - 1 ? s.n_experts - 1 : s.n_experts - 2 - j;
    for (int32_t n : {2, 3, 8, 9, 16}) {
        routing t(n, s);
        draw(rng, t, s, s.n_experts - 1, own);
        for (int32_t row = 0; row < n && shared; row++)
            t.r.expert[row * s.k + s.k - 1] = s.n_experts - 1;
        if (n == 3)
            for (int32_t j = 0; j < s.k; j++)
                t.r.expert[j] = -1; /* padding */
        t.r.shared = shared;
        t.lists();
        acts x((size_t)n * s.hidden, true);
        for (size_t i = 0; i < (size_t)n * s.hidden; i++)
            x.set(i, sv_rng_normal(&rng));
        std::vector<uint8_t> bits[2];
        for (int few = 0; few < 2; few++) {
            acts act((size_t)n * s.k * s.inter, true), out((size_t)n * s.hidden, true);
            std::vector<float> down((size_t)n * s.k * s.hidden);
            cu->set = few ? SV_CUDA_SM90 : SV_CUDA_PORTABLE;
            run(cu, l, t.r, x.data.data(), act, down, out);
            bits[few] = act.data;
            bits[few].insert(bits[few].end(), out.data.begin(), out.data.end());
        }
        cu->set = SV_CUDA_PORTABLE;
        if (bits[0] != bits[1]) {
            printf("%d rows of %d experts, %d to %d, by the kernels of few rows: other bits\n", n, s.n_experts, s.hidden, s.inter);
            return 1;
        }
    }
    return 0;
}

bool beats(float a, int32_t i, float b, int32_t j)
{
    if (std::isnan(a) || std::isnan(b))
        return std::isnan(a) && std::isnan(b) ? i < j : std::isnan(b);
    return a > b || (a == b && i < j);
}

/* A shared expert's weight: there is none, it is 1, or a sigmoid. */
enum shared { NONE, ONE, GATED };

/* Small integers: logits tie often; some rows are padding, one has a NaN. s.bf16: packed weights. */
int check_router(sv_cuda *cu, sv_rng &rng, const shape &s, int32_t n, sv_router_norm norm, sv_slice own = {}, shared one = NONE)
{
    cu->act = s.bf16 ? SV_BF16 : SV_F32;
    shape all = s;
    all.n_experts += one != NONE;
    all.k += one != NONE;
    std::vector<float> x((size_t)n * s.hidden), w((size_t)s.n_experts * s.hidden), gate(s.hidden);
    std::vector<int32_t> seg(n);
    for (float &v : x)
        v = (float)sv_rng_below(&rng, 3) - 1;
    for (float &v : w)
        v = (float)sv_rng_below(&rng, 3) - 1;
    for (float &v : gate)
        v = (float)sv_rng_below(&rng, 3) - 1;
    for (int32_t r = 0; r < n; r++)
        seg[r] = r >= n - n / 4 ? -1 : 0;
    if (n > 4)
        x[(size_t)s.hidden] = NAN;
    routing got(n, all, own), want(n, all, own);
    got.r.shared = one != NONE;
    acts rows(x.size(), s.bf16), gates(gate.size(), s.bf16);
    for (size_t i = 0; i < gate.size(); i++)
        gates.set(i, gate[i]);
    for (size_t i = 0; i < x.size(); i++)
        rows.set(i, x[i]);
    std::vector<uint16_t> packed(sv_packed_bytes(s.n_experts, s.hidden) / 2);
    for (int32_t e = 0; e < s.n_experts; e++)
        for (int32_t c = 0; c < s.hidden; c++)
            packed[sv_packed_at(e, c, s.hidden)] = sv_f32_to_bf16(w[(size_t)e * s.hidden + c]);
    uint32_t chosen = 3;
    sv_p_router_topk p = {};
    p.rows.n_rows = n;
    p.rows.row_seg = seg.data();
    p.x = rows.data.data();
    p.w.fmt.elem = s.bf16 ? SV_BF16 : SV_F32;
    p.w.rows = s.n_experts;
    p.w.cols = s.hidden;
    p.w.data = s.bf16 ? (const void *)packed.data() : w.data();
    if (one == GATED) {
        p.shared.fmt.elem = p.w.fmt.elem;
        p.shared.rows = 1;
        p.shared.cols = s.hidden;
        p.shared.data = gates.data.data();
    }
    p.norm = norm;
    p.routes = got.r;
    p.n_chosen = &chosen;
    for (int32_t r = 0; r < n; r++) {
        std::vector<float> l(s.n_experts);
        std::vector<int32_t> id(s.n_experts);
        for (int32_t e = 0; e < s.n_experts; e++) {
            id[e] = e;
            for (int32_t i = 0; i < s.hidden; i++)
                l[e] += x[(size_t)r * s.hidden + i] * w[(size_t)e * s.hidden + i];
        }
        std::sort(id.begin(), id.end(), [&](int32_t a, int32_t b) { return beats(l[a], a, l[b], b); });
        double sum = 0;
        for (int32_t j = 0; j < (norm == SV_ROUTER_OVER_ALL ? s.n_experts : s.k); j++)
            sum += std::exp((double)l[id[j]] - l[id[0]]);
        for (int32_t j = 0; j < s.k; j++) {
            want.r.expert[r * all.k + j] = seg[r] < 0 ? -1 : id[j];
            want.r.weight[r * all.k + j] = (float)(std::exp((double)l[id[j]] - l[id[0]]) / sum);
        }
        if (one != NONE) {
            double v = 0;
            for (int32_t i = 0; i < s.hidden; i++)
                v += x[(size_t)r * s.hidden + i] * gate[i];
            want.r.expert[r * all.k + s.k] = seg[r] < 0 ? -1 : s.n_experts;
            want.r.weight[r * all.k + s.k] = one == GATED ? (float)(1 / (1 + std::exp(-v))) : 1.0f;
        }
    }
    want.lists();
    sv_cuda_router_topk((sv_dev *)(void *)cu, &p);
    const int32_t n_own = sv_routes_n_own(&want.r), entries = want.r.first[n_own];
    const uint32_t routed = (uint32_t)*want.r.n_active - (one != NONE);
    if (memcmp(got.r.expert, want.r.expert, sizeof(int32_t) * n * all.k) ||
        memcmp(got.r.place, want.r.place, sizeof(int32_t) * n * all.k) ||
        memcmp(got.r.list, want.r.list, sizeof(int32_t) * entries) ||
        memcmp(got.r.first, want.r.first, sizeof(int32_t) * (n_own + 1)) ||
        *got.r.n_active != *want.r.n_active ||
        memcmp(got.r.active, want.r.active, sizeof(int32_t) * *want.r.n_active) || chosen != 3u + routed) {
        printf("router: %d rows, %d experts, %d from %d on here, shared %d: other choices or lists\n", n, s.n_experts, n_own,
               own.first, one);
        return 1;
    }
    for (int32_t i = 0; i < entries; i++) {
        const float a = got.r.weight[got.r.list[i]], b = want.r.weight[got.r.list[i]];
        if (!(std::fabs(a - b) <= 2e-6f) && !std::isnan(b)) {
            printf("router: weight %g, not %g\n", a, b);
            return 1;
        }
    }
    return 0;
}

/* Any numbers: each row of n by itself, by the kernels of few rows, and behind its norm in one launch where there is such a
 * kernel. Where rows repeat one another experts tie. All have the same bits. */
int check_router_bits(sv_cuda *cu, sv_rng &rng, const shape &s, int32_t n, bool shared)
{
    cu->act = SV_BF16;
    const int32_t h = s.hidden, n_all = s.n_experts + shared, k = s.k + shared;
    std::vector<uint16_t> packed(sv_packed_bytes(s.n_experts, h) / 2), gate(h + 8), x((size_t)n * h + 8), delta(x.size());
    std::vector<float> weight(h); /* of the norm */
    uint16_t *const x0 = (uint16_t *)(((uintptr_t)x.data() + 15) / 16 * 16), *const plus = (uint16_t *)(((uintptr_t)delta.data() + 15) / 16 * 16),
                    *const gates = (uint16_t *)(((uintptr_t)gate.data() + 15) / 16 * 16);
    const auto draw = [&](uint16_t *to, size_t m) {
        for (size_t i = 0; i < m; i++)
            to[i] = sv_f32_to_bf16(0.3f * sv_rng_normal(&rng));
    };
    draw(x0, (size_t)n * h);
    draw(plus, (size_t)n * h);
    for (float &w : weight)
        w = 0.3f * sv_rng_normal(&rng);
    draw(gates, h);
    for (int32_t e = 0; e < s.n_experts; e++)
        for (int32_t c = 0; c < h; c++)
            packed[sv_packed_at(e, c, h)] = e % 5 == 4 ? packed[sv_packed_at(e - 3, c, h)] : sv_f32_to_bf16(0.3f * sv_rng_normal(&rng));
    std::vector<float> bias(s.n_experts);
    for (int32_t e = 0; e < s.n_experts; e++)
        bias[e] = e % 5 == 4 ? bias[e - 3] : sv_rng_normal(&rng);
    std::vector<int32_t> seg(n, 0);
    std::vector<uint16_t> normed((size_t)n * h + 8);
    uint16_t *const x1 = (uint16_t *)(((uintptr_t)normed.data() + 15) / 16 * 16);
    const auto route = [&](routing &t, int32_t from, int32_t n_rows, const void *rows, const sv_p_add_rms_norm *before) {
        sv_p_router_topk p = {};
        uint32_t chosen = 0;
        t.r.shared = shared;
        p.rows.n_rows = n_rows;
        p.rows.row_seg = seg.data() + from;
        p.x = rows;
        p.w.fmt.elem = SV_BF16;
        p.w.rows = s.n_experts;
        p.w.cols = h;
        p.w.data = packed.data();
        p.bias.fmt.elem = SV_F32;
        p.bias.rows = 1;
        p.bias.cols = s.n_experts;
        p.bias.data = bias.data();
        if (shared) {
            p.shared.fmt.elem = SV_BF16;
            p.shared.rows = 1;
            p.shared.cols = h;
            p.shared.data = gates;
        }
        p.norm = SV_ROUTER_OVER_CHOSEN;
        p.routes = t.r;
        p.n_chosen = &chosen;
        p.before = before;
        sv_cuda_router_topk((sv_dev *)(void *)cu, &p);
        return chosen;
    };
    const shape all = {n_all, k, h, 8, true, false, SV_EXPERT_SILU};
    if (n > 1)
        seg[n / 2] = -1;
    const void *rows = x0;
    routing behind(n, all);
    uint32_t n_behind = 0;
#ifndef SV_EMULATED_WAVE64
    sv_p_add_rms_norm b = {};
    b.n_rows = n;
    b.d = h;
    b.x = x0;
    b.delta = plus;
    b.weight.fmt.elem = SV_F32;
    b.weight.data = weight.data();
    b.eps = 1e-6f;
    b.out = x1;
    const bool few = n * k <= 512;
    if (few) {
        cu->set = SV_CUDA_SM90;
        n_behind = route(behind, 0, n, x1, &b);
        cu->set = SV_CUDA_PORTABLE;
        rows = x1;
    }
#else
    const bool few = false;
#endif
    routing got(n, all);
    const uint32_t n_got = route(got, 0, n, rows, NULL);
    const size_t entries = sizeof(int32_t) * n * k;
    if (few && (memcmp(behind.r.expert, got.r.expert, entries) || memcmp(behind.r.place, got.r.place, entries) || n_got != n_behind ||
                memcmp(behind.r.weight, got.r.weight, n > 1 ? sizeof(float) * (n / 2) * k : entries) || *behind.r.n_active != *got.r.n_active ||
                memcmp(behind.r.first, got.r.first, sizeof(int32_t) * (n_all + 1)) ||
                memcmp(behind.r.list, got.r.list, sizeof(int32_t) * got.r.first[n_all]) ||
                memcmp(behind.r.active, got.r.active, sizeof(int32_t) * *got.r.n_active))) {
        printf("router: %d rows, %d experts: other routes behind its norm\n", n, n_all);
        return 1;
    }
    for (int32_t r = 0; r < n; r += n > 30 ? 23 : 1) {
        routing one(1, all);
        route(one, r, 1, (const uint16_t *)rows + (size_t)r * h, NULL);
        if (memcmp(one.r.expert, got.r.expert + r * k, sizeof(int32_t) * k) ||
            (seg[r] >= 0 && memcmp(one.r.weight, got.r.weight + r * k, sizeof(float) * k))) {
            printf("router: row %d of %d, %d experts: other bits by itself\n", r, n, n_all);
            return 1;
        }
    }
    return 0;
}

/* Small integers again, and biases that tie often. */
int check_groups(sv_cuda *cu, sv_rng &rng, int32_t n_experts, int32_t k, int32_t n_group, int32_t topk_group, int32_t n)
{
    cu->act = SV_F32;
    const int32_t hidden = 24, size = n_experts / n_group;
    std::vector<float> x((size_t)n * hidden), w((size_t)n_experts * hidden), bias(n_experts);
    std::vector<int32_t> seg(n, 0);
    for (float &v : x)
        v = (float)sv_rng_below(&rng, 3) - 1;
    for (float &v : w)
        v = (float)sv_rng_below(&rng, 3) - 1;
    for (float &v : bias)
        v = (float)sv_rng_below(&rng, 7) / 4 - 1;
    routing got(n, {n_experts, k, hidden, 8, false, false, SV_EXPERT_SILU});
    sv_p_router_topk p = {};
    p.rows.n_rows = n;
    p.rows.row_seg = seg.data();
    p.x = x.data();
    p.w.fmt.elem = SV_F32;
    p.w.rows = n_experts;
    p.w.cols = hidden;
    p.w.data = w.data();
    p.norm = SV_ROUTER_SIGMOID;
    p.sigmoid.bias.fmt.elem = SV_F32;
    p.sigmoid.bias.rows = 1;
    p.sigmoid.bias.cols = n_experts;
    p.sigmoid.bias.data = bias.data();
    p.sigmoid.n_group = n_group;
    p.sigmoid.topk_group = topk_group;
    p.sigmoid.renorm = true;
    p.sigmoid.scale = 2.5f;
    p.routes = got.r;
    sv_cuda_router_topk((sv_dev *)(void *)cu, &p);
    for (int32_t r = 0; r < n; r++) {
        std::vector<float> score(n_experts), choice(n_experts), sum(n_group);
        std::vector<int32_t> id(n_experts), group(n_group);
        double all = 0;
        for (int32_t e = 0; e < n_experts; e++) {
            float l = 0;
            for (int32_t i = 0; i < hidden; i++)
                l += x[(size_t)r * hidden + i] * w[(size_t)e * hidden + i];
            score[e] = 1.0f / (1.0f + expf(-l));
            choice[e] = score[e] + bias[e];
            id[e] = e;
        }
        for (int32_t g = 0; g < n_group; g++) {
            std::vector<float> of(choice.begin() + g * size, choice.begin() + (g + 1) * size);
            std::sort(of.begin(), of.end(), [](float a, float b) { return a > b; });
            sum[g] = of[0] + (size > 1 ? of[1] : 0);
            group[g] = g;
        }
        std::sort(group.begin(), group.end(), [&](int32_t a, int32_t b) { return beats(sum[a], a, sum[b], b); });
        std::vector<bool> kept(n_group, false);
        for (int32_t i = 0; i < topk_group; i++)
            kept[group[i]] = true;
        std::sort(id.begin(), id.end(), [&](int32_t a, int32_t b) {
            return kept[a / size] != kept[b / size] ? kept[a / size] : beats(choice[a], a, choice[b], b);
        });
        for (int32_t j = 0; j < k; j++)
            all += score[id[j]];
        for (int32_t j = 0; j < k; j++)
            if (got.r.expert[r * k + j] != id[j] || std::fabs(got.r.weight[r * k + j] - 2.5 * score[id[j]] / all) > 2e-6) {
                printf("router of %d groups: row %d, choice %d: %d (%g), not %d (%g)\n", n_group, r, j, got.r.expert[r * k + j],
                       got.r.weight[r * k + j], id[j], 2.5 * score[id[j]] / all);
                return 1;
            }
    }
    return 0;
}
} // namespace

/* With any argument: experts alone, without routers. */
int main(int argc, char **)
{
    sv_rng rng = {11};
    sv_cuda_fault fault = {};
    sv_cuda cu = {};
    cu.n_sms = 8;
    cu.fault = &fault;
    cu.smem_block = 200 * 1024;
    uint32_t arrived[1 + 512] = {};
    cu.arrived = arrived;
    sv_cuda_moe_open(&cu, NULL);
    sv_moe_few_open(NULL);
    int bad = 0, n_checks = 0;
    for (bool bf16 : {true, false}) {
        cu.act = bf16 ? SV_BF16 : SV_F32;
        /* The last one has more tiles of k than a ring has stages, in both products. In f32, where no kernel has a ring, it
         * has more columns than a thread block adds up. */
        for (const shape &s : {shape{4, 2, 64, 32, true, false, SV_EXPERT_SILU}, shape{8, 3, 136, 72, true, true, SV_EXPERT_CLAMPED},
                               shape{6, 2, 52, 20, false, true, SV_EXPERT_SILU},
                               shape{3, 2, bf16 ? 456 : 264, bf16 ? 424 : 40, true, false, SV_EXPERT_SILU}}) {
            bad |= check_layer(&cu, rng, s);
            n_checks++;
        }
        bad |= check_parts(&cu, rng, {40, 3, 136, 72, true, true, SV_EXPERT_CLAMPED}) |
               check_parts(&cu, rng, {7, 3, 52, 20, false, false, SV_EXPERT_SILU});
        bad |= check_shared(&cu, rng, {5, 3, bf16 ? 64 : 52, bf16 ? 32 : 20, bf16, false, SV_EXPERT_SILU});
        n_checks += 3;
    }
    cu.act = SV_BF16;
    bad |= check_few(&cu, rng, {8, 3, 136, 72, true, true, SV_EXPERT_CLAMPED}, false);
    bad |= check_few(&cu, rng, {40, 9, 1032, 200, true, false, SV_EXPERT_SILU}, true);
    bad |= check_few(&cu, rng, {4, 2, 64, 520, true, false, SV_EXPERT_SILU}, false);
    n_checks += 3;
    for (const shape &s : {shape{4, 2, 64, 32, true, false, SV_EXPERT_SILU, 122}, shape{9, 3, 160, 96, true, true, SV_EXPERT_CLAMPED, 121},
                           shape{5, 2, 96, 64, true, false, SV_EXPERT_SILU, 252},
                           shape{3, 2, 736, 480, true, false, SV_EXPERT_CLAMPED, 120}}) {
        bad |= check_codes(&cu, rng, s);
        n_checks++;
    }
    bad |= check_shared(&cu, rng, {5, 3, 64, 32, true, false, SV_EXPERT_SILU, 122});
    bad |= check_shared(&cu, rng, {5, 3, 136, 72, true, false, SV_EXPERT_SILU, 0, SV_CODES_F8});
    n_checks += 2;
    for (int32_t code : {SV_CODES_F8, SV_CODES_F8_WIDE, SV_CODES_I8, SV_CODES_I4, SV_CODES_I4_HALF, SV_CODES_I4_TWO, SV_CODES_NV4}) {
        const bool few = code == SV_CODES_I8 || code == SV_CODES_I4_HALF;
        bad |= check_codes(&cu, rng, {4, 2, few ? 96 : 320, few ? 40 : 144, true, false, SV_EXPERT_SILU, 0, code});
        n_checks++;
    }
    bad |= check_codes(&cu, rng, {5, 2, 136, 72, true, true, SV_EXPERT_CLAMPED, 0, SV_CODES_F8}, SV_CODES_F8_WIDE);
    n_checks++;
    if (argc > 1) {
        printf("%d cases: %s\n", n_checks, bad ? "FAILED" : "all as they should be");
        return bad;
    }
    for (int32_t n : {1, 8, 70, 200})
        for (int32_t e : {4, 40, 600})
            for (bool bf16 : {true, false}) {
                bad |= check_router(&cu, rng, {e, 4, bf16 ? 24 : 19, 8, bf16, false, SV_EXPERT_SILU}, n,
                                    n % 3 ? SV_ROUTER_OVER_CHOSEN : SV_ROUTER_OVER_ALL);
                bad |= check_router(&cu, rng, {e, 4, 24, 8, bf16, false, SV_EXPERT_SILU}, n, SV_ROUTER_OVER_CHOSEN,
                                    {e / 3, e - e / 3 - e / 2});
                n_checks += 2;
            }
    for (int32_t n : {1, 9, 200})
        for (bool bf16 : {true, false}) {
            bad |= check_router(&cu, rng, {32, 4, bf16 ? 24 : 19, 8, bf16, false, SV_EXPERT_SILU}, n,
                                n % 3 ? SV_ROUTER_OVER_CHOSEN : SV_ROUTER_OVER_ALL, {},
                                bf16 || n > 9 ? GATED : ONE);
            n_checks++;
        }
    /* More columns than a lane reads early. */
    bad |= check_router(&cu, rng, {20, 4, 3096, 8, true, false, SV_EXPERT_SILU}, 9, SV_ROUTER_OVER_CHOSEN);
    n_checks++;
    for (int32_t n : {1, 3, 19, 70, 600}) {
        const bool many = n > 16;
        bad |= check_router_bits(&cu, rng, {128, 8, many ? 72 : 2120, 8, true, false, SV_EXPERT_SILU}, n, false) |
               check_router_bits(&cu, rng, {256, 8, many ? 72 : 2048, 8, true, false, SV_EXPERT_SILU}, n, true) |
               check_router_bits(&cu, rng, {n > 3 ? 130 : 400, 5, many ? 264 : 600, 8, true, false, SV_EXPERT_SILU}, n, n % 2);
        n_checks += 3;
    }
    for (int32_t n : {3, 150}) {
        bad |= check_groups(&cu, rng, 256, 8, 8, 4, n) | check_groups(&cu, rng, 12, 3, 4, 2, n) |
               check_groups(&cu, rng, 160, 5, 40, 9, n) | check_groups(&cu, rng, 10, 4, 1, 1, n);
        n_checks += 4;
    }
    printf("%d cases: %s\n", n_checks, bad ? "FAILED" : "all as they should be");
    return bad;
}
