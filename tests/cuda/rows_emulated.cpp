/*
 * rows_emulated.cpp - the CUDA kernels of rows.cu, gates.cu and vision.cu run on a CPU by tests/cuda/emulated: norms,
 * rotation by one position or three, cache writes, gates and a vision tower's ops within rounding of the CPU backend's, and
 * a row's bits the same alone and in batches that take other launches; a norm's rows in 8 bits as fp8.cuh defines them.
 *
 * Built and started by rows_emulated.test.sh. tests/backend/test_rows.c holds the CPU's against the definition.
 */
#include "backend/gpu/fp8.cuh"
#include "backend/gpu/gdn.h"
#include "backend/gpu/vision.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/nccl.h"
#include "backend/quant.h"

#include <vector>

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}

/* gemm.cu's. */
bool sv_gemm_bytes_room(const struct sv_cuda *cu, int32_t, int32_t)
{
    return cu->gemm;
}

/* nccl.cu's: there are no ranks. */
void sv_cuda_hosts_exchange(struct sv_cuda *, const struct sv_join_site *, const size_t *, const size_t *)
{
}

namespace
{
struct numbers { /* the same for both: f32 for the CPU, T for the kernels */
    std::vector<float> ref;
    std::vector<uint8_t> dut;
    bool bf16;

    numbers(sv_rng &rng, bool half, size_t n, float scale, float shift = 0) : ref(n), bf16(half)
    {
        dut.resize(n * size());
        for (size_t i = 0; i < n; i++) {
            const float x = shift + scale * sv_rng_normal(&rng);
            const __nv_bfloat16 h = __float2bfloat16_rn(x);
            ref[i] = bf16 ? __bfloat162float(h) : x;
            memcpy(&dut[i * size()], bf16 ? (void *)&h : (void *)&ref[i], size());
        }
    }
    size_t size() const { return bf16 ? 2 : 4; }
    float at(size_t i) const
    {
        float f;
        uint16_t h;
        memcpy(&f, &dut[i * size()], bf16 ? 2 : 4);
        memcpy(&h, &dut[i * size()], 2);
        return bf16 ? __bfloat162float(__nv_bfloat16{h}) : f;
    }
};

int differs(const char *what, const numbers &x, int32_t width)
{
    for (size_t i = 0; i < x.ref.size(); i++)
        if (!(fabs(x.at(i) - x.ref[i]) <= (x.bf16 ? 1.6e-2 : 2e-5) * fmax(1, fabs(x.ref[i])))) {
            printf("%s: row %d, %d: %.9g, not %.9g\n", what, (int)i / width, (int)i % width, x.at(i), x.ref[i]);
            return 1;
        }
    return 0;
}

/* Row r of `all` is row 0 of `one`. */
int other_bits(const char *what, const numbers &all, int32_t r, const numbers &one, int32_t width)
{
    const size_t n = (size_t)width * all.size();
    if (!memcmp(&all.dut[(size_t)r * n], one.dut.data(), n))
        return 0;
    printf("%s: row %d has other bits alone\n", what, r);
    return 1;
}

numbers row_of(const numbers &x, int32_t r, int32_t width)
{
    numbers y = x;
    y.ref.assign(x.ref.begin() + (ptrdiff_t)r * width, x.ref.begin() + (ptrdiff_t)(r + 1) * width);
    const ptrdiff_t n = (ptrdiff_t)(width * (int)x.size());
    y.dut.assign(x.dut.begin() + r * n, x.dut.begin() + (r + 1) * n);
    return y;
}

sv_weight weight_of(const numbers &w, bool ref)
{
    sv_weight v = {};
    v.data = ref ? (const void *)w.ref.data() : (const void *)w.dut.data();
    v.fmt.elem = !ref && w.bf16 ? SV_BF16 : SV_F32;
    v.rows = 1;
    v.cols = (int32_t)w.ref.size();
    return v;
}

/* Rows of `out` in 8 bits, where a norm has left them; width: columns that share a scale. */
int bytes_differ(const sv_cuda *cu, const numbers &out, int32_t n, int32_t d, int32_t width)
{
    for (int32_t at = 0; at < n * ((d + width - 1) / width); at++) {
        const int32_t r = at % n, c0 = at / n * width, c1 = c0 + width < d ? c0 + width : d;
        uint32_t most = 0;
        for (int32_t c = c0; c < c1; c++) {
            const uint32_t u = __float_as_uint(fabsf(out.at((size_t)(r * d + c)))) >> 16;
            most = u > most ? u : most;
        }
        const float scale = sv_fp8_scale(most);
        bool same = cu->gemm->bytes_scale[at / n * cu->gemm->bytes_ld + r] == scale;
        for (int32_t c = c0; c < c1 && same; c++)
            same = cu->gemm->bytes_x[r * sv_fp8_row_bytes(d) + c] ==
                   sv_fp8_of(out.at((size_t)(r * d + c)) * sv_fp8_inverse(scale));
        if (!same) {
            printf("norm: row %d in 8 bits\n", r);
            return 1;
        }
    }
    return 0;
}

/* in: 8 bits that come as well, for a product with a draft's weights, or with a file's in FP8. */
int check_norm(sv_dev *ref, sv_cuda *cu, sv_rng &rng, int32_t n, int32_t d, int in)
{
    const bool half = cu->act == SV_BF16;
    numbers x(rng, half, (size_t)(n * d), 2), delta(rng, half, (size_t)(n * d), 1), out(rng, half, (size_t)(n * d), 0);
    numbers tap = out, w(rng, false, (size_t)d, 0.3f, 1);
    const numbers x0 = x;
    sv_p_add_rms_norm p = {};
    p.n_rows = n;
    p.d = d;
    p.eps = 1e-6f;
    p.tap_stride = d;
    std::vector<uint8_t> bytes((size_t)(n * sv_fp8_row_bytes(d)), 0xee);
    std::vector<float> scales((size_t)(n * ((d + 127) / 128)), -1);
    sv_cuda_gemm_state state = {};
    state.bytes_x = bytes.data();
    state.bytes_scale = scales.data();
    cu->gemm = &state;
    state.bytes_ld = n;
    sv_weight reader = {};
    reader.role = in == 1 ? SV_ROLE_DRAFT : SV_ROLE_NONE;
    reader.fmt = {SV_F8, 1, in == 1 ? d : 128, SV_F32};
    p.reader = in ? &reader : NULL;
    for (int side = 0; side < 2; side++) {
        auto data = [side](numbers &v) { return side ? (void *)v.dut.data() : (void *)v.ref.data(); };
        p.x = data(x), p.delta = data(delta), p.out = data(out), p.tap = data(tap);
        p.weight = weight_of(w, !side);
        if (side)
            sv_cuda_add_rms_norm((sv_dev *)(void *)cu, &p);
        else
            sv_op_add_rms_norm(ref, &p);
    }
    const bool in_bytes = in && half && d <= 8192;
    int bad = cu->bytes_of != (in_bytes ? (void *)out.dut.data() : NULL) || (in_bytes && bytes_differ(cu, out, n, d, in == 1 ? d : 128));
    cu->gemm = NULL;
    bad |= differs("norm: x", x, d) | differs("norm: out", out, d) | differs("norm: tap", tap, d);
    for (int32_t r = 0; r < n && !bad; r += n / 7 + 1) {
        numbers x1 = row_of(x0, r, d), delta1 = row_of(delta, r, d), out1 = x1;
        p.n_rows = 1;
        p.x = x1.dut.data(), p.delta = delta1.dut.data(), p.out = out1.dut.data(), p.tap = NULL;
        sv_cuda_add_rms_norm((sv_dev *)(void *)cu, &p);
        bad = other_bits("norm: x", x, r, x1, d) | other_bits("norm: out", out, r, out1, d);
    }
    return bad;
}

struct shape {
    int32_t n_heads, n_kv, hd, rot;
    bool norm;
    bool gated = false; /* a gate behind each query head */
    bool three = false; /* rows have three positions */
};

enum { PAGE = 4, MAX_POS = 700, SLOTS = 3 };

/* A row of an e4m3 cache against the definition (docs/formats.md): x are its numbers, NaN if none was written. */
bool f8_row(const float *x, int32_t hd, const uint8_t *codes, uint8_t own, float fixed)
{
    float top = 0;
    for (int32_t i = 0; i < hd; i++)
        top = fmaxf(top, fabsf(x[i]));
    int e = 0;
    while (fixed == 0 && top > 0 && top <= ldexpf(224, e))
        e--;
    while (fixed == 0 && top > ldexpf(448, e))
        e++;
    bool same = own == (isnan(x[0]) ? 255 : 127 + e);
    for (int32_t i = 0; i < hd; i++)
        same = same && codes[i] == (isnan(x[0]) ? 255 : sv_f32_to_f8(fixed > 0 ? x[i] / fixed : ldexpf(x[i], -e)));
    return same;
}

/* The numbers that p writes to a cache of f32, in a cache of e4m3. */
int check_f8(sv_cuda *cu, sv_p_qk_norm_rope_kv_write p, const numbers &qkv, size_t cache, float fixed)
{
    const float none = NAN;
    const int32_t hd = p.kv.head_dim;
    std::vector<float> x[2] = {std::vector<float>(cache, none), std::vector<float>(cache, none)};
    std::vector<uint8_t> codes[2], own[2];
    for (int i = 0; i < 2; i++)
        codes[i].assign(cache, 255), own[i].assign(cache / (size_t)hd, 255);
    for (int f8 = 0; f8 < 2; f8++) {
        numbers q = qkv;
        p.qkv = q.dut.data();
        p.kv.dtype = f8 ? SV_F8 : SV_F32;
        p.kv.k = f8 ? (void *)codes[0].data() : x[0].data(), p.kv.v = f8 ? (void *)codes[1].data() : x[1].data();
        p.kv.k_own = own[0].data(), p.kv.v_own = own[1].data();
        p.kv.k_scale = p.kv.v_scale = fixed;
        sv_cuda_qk_norm_rope_kv_write((sv_dev *)(void *)cu, &p);
    }
    for (int i = 0; i < 2; i++)
        for (size_t at = 0; at < cache; at += (size_t)hd)
            if (!f8_row(&x[i][at], hd, &codes[i][at], own[i][at / (size_t)hd], fixed)) {
                printf("rope: %s of e4m3, scale %g, heads of %d\n", i ? "a value" : "a key", fixed, hd);
                return 1;
            }
    return 0;
}

int check_rope(sv_dev *ref, sv_cuda *cu, sv_rng &rng, int32_t n, shape s)
{
    const bool half = cu->act == SV_BF16;
    const int32_t q_width = s.n_heads * s.hd * (s.gated ? 2 : 1);
    const int32_t width = q_width + 2 * s.n_kv * s.hd, stride = (MAX_POS + PAGE - 1) / PAGE, n_pages = SLOTS * stride;
    const size_t cache = (size_t)n_pages * PAGE * (size_t)(s.n_kv * s.hd);
    numbers qkv(rng, half, (size_t)(n * width), 2), k(rng, half, cache, 1), v(rng, half, cache, 1);
    const numbers qkv0 = qkv, k0 = k, v0 = v;
    numbers qn(rng, false, (size_t)s.hd, 0.3f, 1), kn(rng, false, (size_t)s.hd, 0.3f, 1);
    std::vector<int32_t> table((size_t)n_pages), row_seg, row0 = {0}, slot, base, row_pos;
    std::vector<float> cs((size_t)(MAX_POS * s.rot + 8));
    for (int32_t i = 0; i < n_pages; i++)
        table[(size_t)i] = (i * 11) % n_pages; /* every page once: 525 of them */
    for (int32_t i = 0; i < MAX_POS * (s.rot / 2); i++) {
        cs[(size_t)i] = (float)cos(0.37 * i);
        cs[(size_t)(MAX_POS * (s.rot / 2) + i)] = (float)sin(0.37 * i);
    }
    for (int32_t r = 0, left = 0, at = 0; r < n; r++) {
        if (left-- == 0) {
            slot.push_back(r >= n - n / 8 ? -1 : (int32_t)(slot.size() % SLOTS)); /* padding is last */
            base.push_back(at); /* no two rows of a slot write the same place */
            left = slot.back() < 0 || slot.size() % 3 ? 0 : 15;
            if (r)
                row0.push_back(r);
        }
        row_pos.push_back(at);
        at += 1 + r % 3; /* positions need not be consecutive */
        row_seg.push_back(slot.back() < 0 ? -1 : (int32_t)slot.size() - 1);
    }
    row0.push_back(n);
    std::vector<int32_t> three((size_t)(3 * n));
    std::vector<uint8_t> axis((size_t)(s.rot / 2));
    for (int32_t i = 0; i < 3 * n; i++)
        three[(size_t)i] = i / 3 % 4 ? (37 * i + i / 3) % MAX_POS : i / 3; /* some are equal */
    for (size_t i = 0; i < axis.size(); i++)
        axis[i] = (uint8_t)(i % 5 % 3);
    sv_p_qk_norm_rope_kv_write p = {};
    p.rows = {n, (int32_t)slot.size(), row_seg.data(), row0.data(), slot.data(), base.data(), row_pos.data()};
    p.rows.row_rope = s.three ? three.data() : nullptr;
    p.rope.axis = axis.data();
    p.ld = width;
    p.n_heads = s.n_heads;
    p.q_stride = s.gated ? 2 * s.hd : 0;
    p.eps = 1e-6f;
    p.rope.max_pos = MAX_POS;
    p.rope.rot_dim = s.rot;
    p.rope.cos = cs.data();
    p.rope.sin = cs.data() + MAX_POS * (s.rot / 2);
    p.kv.n_pages = n_pages, p.kv.n_kv_heads = s.n_kv, p.kv.page_size = PAGE, p.kv.head_dim = s.hd;
    p.kv.table = table.data(), p.kv.table_stride = stride;
    auto run = [&](bool dut, numbers &q, numbers &key, numbers &value) {
        p.qkv = dut ? (void *)q.dut.data() : (void *)q.ref.data();
        p.kv.k = dut ? (void *)key.dut.data() : (void *)key.ref.data();
        p.kv.v = dut ? (void *)value.dut.data() : (void *)value.ref.data();
        p.kv.dtype = dut && half ? SV_BF16 : SV_F32;
        if (s.norm)
            p.q_norm = weight_of(qn, !dut), p.k_norm = weight_of(kn, !dut);
        if (dut)
            sv_cuda_qk_norm_rope_kv_write((sv_dev *)(void *)cu, &p);
        else
            sv_op_qk_norm_rope_kv_write(ref, &p);
    };
    run(false, qkv, k, v);
    run(true, qkv, k, v);
    /* What either leaves in rows of padding and in keys behind the queries is its own affair. */
    for (int32_t r = 0; r < n; r++)
        for (int32_t i = 0; i < width; i++)
            if (row_seg[(size_t)r] < 0 || i >= q_width)
                qkv.ref[(size_t)(r * width + i)] = qkv.at((size_t)(r * width + i));
    int bad = differs("rope: q", qkv, width) | differs("rope: k", k, s.hd) | differs("rope: v", v, s.hd);
    if (cu->fault->code)
        bad = 1, printf("rope: fault %d\n", (int)cu->fault->code);
    if (bad)
        printf("rope: %d rows, %d and %d heads of %d\n", n, s.n_heads, s.n_kv, s.hd);
    if (s.norm)
        p.q_norm = weight_of(qn, false), p.k_norm = weight_of(kn, false);
    bad |= check_f8(cu, p, qkv0, cache, n % 2 ? 0 : 0.0371f) | check_f8(cu, p, qkv0, cache, 0);
    numbers k1 = k0, v1 = v0;
    for (int32_t r = 0; r < n && !bad; r++) { /* the cache once more, row by row */
        const int32_t seg = row_seg[(size_t)r];
        if (seg < 0)
            continue;
        int32_t zero[2] = {0, 1}, none = 0;
        numbers q1 = row_of(qkv0, r, width);
        p.rows = {1, 1, &none, zero, &slot[(size_t)seg], &base[(size_t)seg], &row_pos[(size_t)r]};
        p.rows.row_rope = s.three ? &three[(size_t)(3 * r)] : nullptr;
        run(true, q1, k1, v1);
        bad = memcmp(&qkv.dut[(size_t)(r * width) * qkv.size()], q1.dut.data(), (size_t)q_width * qkv.size());
        if (bad)
            printf("rope: row %d of %d has other bits alone\n", r, n);
    }
    if (!bad && (k1.dut != k.dut || v1.dut != v.dut))
        bad = 1, printf("rope: %d rows: the cache has other bits\n", n);
    return bad;
}

int check_gates(sv_dev *ref, sv_cuda *cu, sv_rng &rng, int32_t n, int32_t heads, int32_t hd)
{
    const bool half = cu->act == SV_BF16;
    const int32_t d = heads * hd, ld = 2 * d + 8;
    numbers x(rng, half, (size_t)(n * d), 2), gate(rng, half, (size_t)(n * ld), 3), y(rng, half, (size_t)(n * d), 1), z = y;
    for (int side = 0; side < 2; side++) {
        auto data = [side](numbers &v, size_t i) {
            return side ? (void *)&v.dut[i * v.size()] : (void *)&v.ref[i];
        };
        sv_p_sigmoid_mul p = {n, heads, hd, data(x, 0), data(gate, (size_t)hd), ld, 2 * hd};
        sv_p_add_gated q = {n, d, data(y, 0), data(x, 0), data(gate, 0)}, plain = {n, d, data(z, 0), data(x, 0), nullptr};
        if (side)
            sv_cuda_sigmoid_mul((sv_dev *)(void *)cu, &p), sv_cuda_add_gated((sv_dev *)(void *)cu, &q),
                sv_cuda_add_gated((sv_dev *)(void *)cu, &plain);
        else
            sv_op_sigmoid_mul(ref, &p), sv_op_add_gated(ref, &q), sv_op_add_gated(ref, &plain);
    }
    return differs("gated heads", x, d) | differs("gated sum", y, d) | differs("sum", z, d);
}

int check_vision(sv_dev *ref, sv_cuda *cu, sv_rng &rng, int32_t n, int32_t d, bool packed)
{
    enum { TABLE = 70 };
    const bool half = cu->act == SV_BF16;
    numbers x(rng, half, (size_t)(n * d), 2, 1), norm = x, corners = x, tanh = x, erf = x;
    numbers w(rng, packed, (size_t)d, 0.3f, 1), bias(rng, packed, (size_t)d, 1), table(rng, packed, (size_t)(TABLE * d), 1);
    std::vector<int32_t> index((size_t)(4 * n));
    std::vector<float> share((size_t)(4 * n));
    for (size_t i = 0; i < index.size(); i++) {
        index[i] = (int32_t)sv_rng_below(&rng, TABLE);
        share[i] = sv_rng_normal(&rng);
    }
    std::vector<uint16_t> tiles(sv_packed_bytes(TABLE, d) / 2);
    for (int32_t i = 0; i < TABLE * d && packed; i++)
        memcpy(&tiles[sv_packed_at(i / d, i % d, d)], &table.dut[(size_t)(2 * i)], 2);
    const auto run = [&](bool dut, int32_t first, int32_t count, numbers &in, numbers *out) {
        auto at = [&](numbers &v, int32_t row) {
            const size_t i = (size_t)(row * d);
            return dut ? (void *)&v.dut[i * v.size()] : (void *)&v.ref[i];
        };
        sv_p_layer_norm p = {count, d, at(in, first), weight_of(w, !dut), weight_of(bias, !dut), 1e-6f, at(out[0], 0)};
        sv_p_add_corners q = {count, d, at(out[1], 0), &index[(size_t)(4 * first)], &share[(size_t)(4 * first)], {}};
        q.table = weight_of(table, !dut);
        q.table.rows = TABLE;
        q.table.cols = d;
        if (dut && packed)
            q.table.data = tiles.data();
        sv_p_gelu g = {count, d, true, at(out[2], 0)}, h = {count, d, false, at(out[3], 0)};
        sv_dev *dev = (sv_dev *)(void *)cu;
        if (dut)
            sv_cuda_layer_norm(dev, &p), sv_cuda_add_corners(dev, &q), sv_cuda_gelu(dev, &g), sv_cuda_gelu(dev, &h);
        else
            sv_op_layer_norm(ref, &p), sv_op_add_corners(ref, &q), sv_op_gelu(ref, &g), sv_op_gelu(ref, &h);
    };
    const numbers x0 = x;
    numbers all[4] = {norm, corners, tanh, erf};
    run(false, 0, n, x, all);
    run(true, 0, n, x, all);
    static const char *const name[4] = {"layer norm", "corners", "gelu by tanh", "gelu"};
    int bad = 0;
    for (int k = 0; k < 4; k++)
        bad |= differs(name[k], all[k], d);
    for (int32_t r = 0; r < n && !bad; r += n / 5 + 1) {
        const numbers one = row_of(x0, r, d);
        numbers alone[4] = {one, one, one, one};
        run(true, r, 1, x, alone);
        for (int k = 0; k < 4; k++)
            bad |= other_bits(name[k], all[k], r, alone[k], d);
    }
    return bad;
}
} // namespace

int main()
{
    sv_rng rng = {7};
    sv_err err = {};
    sv_dev_opts opts = {};
    sv_cuda_fault fault = {};
    sv_dev *ref;
    opts.backend = "cpu";
    opts.n_threads = 1;
    opts.tuning.isa = SV_ISA_PLAIN;
    sv_dev_limits lim = {};
    lim.max_rows = 128;
    lim.max_logit_rows = 1;
    lim.max_k = lim.max_n = 8200;
    lim.max_heads = 32;
    lim.max_head_dim = 256;
    lim.max_vocab = 1024;
    lim.max_positions = MAX_POS;
    if (sv_dev_open(&ref, &opts, &err) || sv_dev_reserve(ref, &lim, &err)) {
        printf("%s\n", err.msg);
        return 1;
    }
    sv_cuda cu = {};
    cu.n_sms = 8; /* up to that many rows rehearse */
    cu.fault = &fault;
    const int32_t counts[] = {1, 5, 40, 70};
    int bad = 0, n_checks = 0;
    for (int act = 0; act < 2; act++)
        for (int32_t n : counts) {
            cu.act = act ? SV_BF16 : SV_F32;
            cu.settled = n != 5;
            for (int32_t d : {8, 40, 264, 1032, 4096, 8192, 8200})
                if (d < 4096 || n < 40)
                    bad |= check_norm(ref, &cu, rng, n, d, (n + d / 8) % 3), n_checks++;
            bad |= check_gates(ref, &cu, rng, n, 3, 40) | check_gates(ref, &cu, rng, n, 4, 256);
            n_checks += 2;
            for (int32_t d : {33, 72, 1152})
                for (int packed = 0; packed < 2; packed++, n_checks++)
                    bad |= check_vision(ref, &cu, rng, n, d, packed);
            for (bool norm : {false, true}) {
                for (shape s : {shape{32, 8, 128, 128, norm}, shape{5, 1, 128, 128, norm}, shape{5, 1, 64, 64, norm},
                                shape{3, 2, 96, 32, norm}, shape{3, 1, 128, 128, norm, true}, shape{2, 1, 256, 64, norm, true},
                                shape{5, 1, 128, 128, norm, false, true}, shape{3, 2, 96, 72, norm, false, true}}) {
                    if (s.n_heads == 32 && n > 40)
                        continue;
                    bad |= check_rope(ref, &cu, rng, n, s);
                    n_checks++;
                }
            }
        }
    sv_dev_close(ref);
    printf("%d checks: %s\n", n_checks, bad ? "FAILED" : "ok");
    return bad;
}
