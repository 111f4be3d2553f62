/*
 * mla_emulated.cpp - the GPU kernels of latent attention beside attention itself run on a CPU by tests/cuda/emulated: what
 * is kept of a position and each head's products against the CPU backend's, and a row's bits for every number of rows.
 *
 * Built and started by mla_emulated.test.sh. Attention over latents: attention_emulated.cpp; the router: moe_emulated.cpp;
 * tests/backend/test_cross_mla.c holds the same ops against the CPU's on a GPU.
 */
#include "backend/gpu/kv_f8.cuh"
#include "backend/gpu/mla.h"
#include "backend/gpu/pack.cuh"
#include "backend/quant.h"

#include <cmath>
#include <vector>

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}

namespace
{
/* Act values of one side: bf16 or f32. */
struct acts {
    std::vector<uint8_t> data;
    bool bf16;
    acts(size_t n, bool half) : data(n * (half ? 2 : 4) + 16, 0xff), bf16(half) {}
    float at(size_t i) const
    {
        return bf16 ? sv_bf16_to_f32(((const uint16_t *)at16())[i]) : ((const float *)at16())[i];
    }
    void set(size_t i, float v)
    {
        if (bf16)
            ((uint16_t *)at16())[i] = sv_f32_to_bf16(v);
        else
            ((float *)at16())[i] = v;
    }
    void *at16() const { return (void *)(((uintptr_t)data.data() + 15) / 16 * 16); }
    void *from(size_t i) const { return (uint8_t *)at16() + i * (bf16 ? 2 : 4); }
};

bool far(double a, double b, double tol)
{
    return !(std::fabs(a - b) <= tol * std::max(1.0, std::fabs(b)));
}

int check_products(sv_cuda *cu, sv_rng &rng, int32_t n, int32_t rows, int32_t cols, int32_t gap, bool packed)
{
    enum { ROWS = 70 };
    const bool half = cu->act == SV_BF16;
    const int32_t xs = cols + gap, ys = rows + gap;
    const size_t each = sv_packed_bytes(rows, cols) / 2;
    std::vector<float> value((size_t)n * rows * cols);
    std::vector<uint16_t> tiles(each * n);
    std::vector<sv_weight> w(n);
    acts x((size_t)ROWS * n * xs, half), all((size_t)ROWS * n * ys, half);
    for (size_t i = 0; i < value.size(); i++)
        value[i] = sv_bf16_to_f32(sv_f32_to_bf16(sv_rng_normal(&rng) / std::sqrt((float)cols)));
    for (size_t i = 0; i < (size_t)ROWS * n * xs; i++)
        x.set(i, sv_rng_normal(&rng));
    for (int32_t h = 0; h < n; h++) {
        for (int32_t r = 0; r < rows; r++)
            for (int32_t c = 0; c < cols; c++)
                tiles[h * each + sv_packed_at(r, c, cols)] = sv_f32_to_bf16(value[((size_t)h * rows + r) * cols + c]);
        w[h] = {};
        w[h].fmt.elem = packed ? SV_BF16 : SV_F32;
        w[h].rows = rows;
        w[h].cols = cols;
        w[h].data = packed ? (const void *)&tiles[h * each] : &value[(size_t)h * rows * cols];
    }
    const auto multiply = [&](int32_t first, int32_t count, acts &y) {
        sv_p_head_products p = {};
        p.n_rows = count;
        p.x = x.from((size_t)first * n * xs);
        p.ldx = (int64_t)n * xs;
        p.x_stride = xs;
        p.w.n = n;
        p.w.rows = rows;
        p.w.cols = cols;
        p.w.w = w.data();
        p.y = y.at16();
        p.ldy = (int64_t)n * ys;
        p.y_stride = ys;
        sv_cuda_head_products((sv_dev *)(void *)cu, &p);
    };
    multiply(0, ROWS, all);
    for (int32_t r = 0; r < ROWS; r += 23)
        for (int32_t h = 0; h < n; h++)
            for (int32_t o = 0; o < ys; o++) {
                const float got = all.at(((size_t)r * n + h) * ys + o);
                double want = 0;
                for (int32_t c = 0; c < cols && o < rows; c++)
                    want += (double)value[((size_t)h * rows + o) * cols + c] * x.at(((size_t)r * n + h) * xs + c);
                if (o < rows ? far(got, want, half ? 5e-3 : 1e-5) : !std::isnan(got)) {
                    printf("products (%d, %d): row %d, head %d, %d: %g, not %g\n", rows, cols, r, h, o, got, want);
                    return 1;
                }
            }
    for (int32_t count : {1, 16, 17}) {
        const int32_t first = ROWS - count - 3 > 0 && count < 17 ? 31 : 5;
        acts some((size_t)count * n * ys, half);
        multiply(first, count, some);
        if (memcmp(some.at16(), all.from((size_t)first * n * ys), (size_t)count * n * ys * (half ? 2 : 4))) {
            printf("products (%d, %d): other bits among %d rows\n", rows, cols, count);
            return 1;
        }
    }
    return 0;
}

/* Number d of what is kept in e4m3 (sv_kv_row_bytes). */
float latent_value(const uint8_t *row, int32_t latent, int32_t d)
{
    if (d < latent)
        return sv_f8_to_f32(row[d]) * sv_latent_scale(row, latent, d);
    return sv_bf16_to_f32(((const uint16_t *)(row + sv_latent_key_at(latent)))[d - latent]);
}

int check_write(sv_cuda *cu, sv_dev *ref, sv_rng &rng, int32_t nh, int32_t latent, int32_t rot, bool interleaved, sv_dtype kept)
{
    enum { PAGE = 4, PAGES = 12, STRIDE = 6, MAX_POS = 24, ROWS = 9, NOPE = 24 };
    const bool half = cu->act == SV_BF16;
    const int32_t width = latent + rot, hd = NOPE + rot;
    std::vector<int32_t> table = {3, 0, 7, 5, -1, -1, 1, 9, 2, 11, 4, 8}, seg = {0, 0, 0, 0, 0, 1, 1, 1, -1}, slot = {1, 0},
                         row0 = {0, 5, 8}, base = {6, 2}, pos = {6, 7, 8, 9, 10, 2, 3, 4, -1};
    acts kv((size_t)ROWS * width, half), q((size_t)ROWS * nh * hd, half), out((size_t)ROWS * nh * width, half);
    std::vector<float> kv_f((size_t)ROWS * width), q_f((size_t)ROWS * nh * hd), out_f((size_t)ROWS * nh * width, NAN), norm(latent),
        cos((size_t)MAX_POS * rot / 2), sin(cos.size());
    for (size_t i = 0; i < kv_f.size(); i++)
        kv.set(i, sv_rng_normal(&rng)), kv_f[i] = kv.at(i);
    for (size_t i = 0; i < q_f.size(); i++)
        q.set(i, sv_rng_normal(&rng)), q_f[i] = q.at(i);
    for (float &x : norm)
        x = 1 + 0.2f * sv_rng_normal(&rng);
    for (size_t i = 0; i < cos.size(); i++)
        cos[i] = sv_rng_normal(&rng), sin[i] = sv_rng_normal(&rng);
    const size_t elem = kept == SV_BF16 ? 2 : 4, row_bytes = sv_kv_row_bytes(kept, width, latent);
    std::vector<uint8_t> pages[2];
    for (int side = 0; side < 2; side++) {
        pages[side].assign((size_t)PAGES * PAGE * row_bytes, 0xff);
        sv_p_mla_write p = {};
        p.rows = {ROWS, 2, seg.data(), row0.data(), slot.data(), base.data(), pos.data()};
        p.kv = side ? kv.at16() : (void *)kv_f.data();
        p.norm.data = norm.data();
        p.norm.fmt.elem = SV_F32;
        p.norm.rows = 1;
        p.norm.cols = latent;
        p.eps = 1e-6f;
        p.rope.cos = cos.data();
        p.rope.sin = sin.data();
        p.rope.max_pos = MAX_POS;
        p.rope.rot_dim = rot;
        p.interleaved = interleaved;
        p.n_heads = nh;
        p.head_dim = hd;
        p.q = side ? q.at16() : (void *)q_f.data();
        p.absorbed = side ? out.at16() : (void *)out_f.data();
        p.cache.k = pages[side].data();
        p.cache.dtype = kept;
        p.cache.n_pages = PAGES;
        p.cache.page_size = PAGE;
        p.cache.n_kv_heads = 1;
        p.cache.head_dim = width;
        p.cache.latent = latent;
        p.cache.table = table.data();
        p.cache.table_stride = STRIDE;
        if (side)
            sv_cuda_mla_write((sv_dev *)(void *)cu, &p);
        else
            sv_op_mla_write(ref, &p);
    }
    for (size_t i = 0; i < out_f.size(); i++) /* the products' numbers and padding are left alone */
        if (std::isnan(out_f[i]) ? !std::isnan(out.at(i)) : far(out.at(i), out_f[i], half ? 5e-3 : 1e-5)) {
            printf("queries: %zu: %g, not %g\n", i, out.at(i), out_f[i]);
            return 1;
        }
    for (size_t i = 0; i < (size_t)PAGES * PAGE * width; i++) {
        float v[2];
        const int32_t d = (int32_t)(i % width);
        for (int side = 0; side < 2; side++)
            v[side] = kept == SV_F8 ? latent_value(&pages[side][i / width * row_bytes], latent, d) : elem == 2 ? sv_bf16_to_f32(((const uint16_t *)pages[side].data())[i]) : ((const float *)pages[side].data())[i];
        if (std::isnan(v[0]) ? !std::isnan(v[1]) : far(v[1], v[0], kept == SV_F8 && d < latent ? 0.13 : kept == SV_F32 ? 1e-5 : 1e-2)) { /* codes: the next one */
            printf("kept: %zu: %g, not %g\n", i, v[1], v[0]);
            return 1;
        }
    }
    return 0;
}
} // namespace

int main()
{
    sv_rng rng = {5};
    sv_cuda_fault fault = {};
    sv_cuda cu = {};
    sv_dev *ref = nullptr;
    sv_dev_opts o = {};
    sv_dev_limits lim = {};
    cu.n_sms = 4;
    cu.fault = &fault;
    cu.smem_block = 64 * 1024;
    o.backend = "cpu";
    o.n_threads = 1;
    lim.max_rows = 64;
    lim.max_k = lim.max_n = 1024;
    lim.max_heads = 8;
    lim.max_head_dim = 576;
    lim.max_vocab = 64;
    lim.max_logit_rows = 1;
    lim.max_positions = 64;
    lim.by_head = true;
    if (sv_dev_open(&ref, &o, nullptr) || sv_dev_reserve(ref, &lim, nullptr))
        return 1;
    int bad = 0;
    for (sv_dtype act : {SV_BF16, SV_F32}) {
        cu.act = act;
        bad |= check_products(&cu, rng, 2, 128, 64, 64, true) | check_products(&cu, rng, 3, 64, 320, 0, true) |
               check_products(&cu, rng, 2, 40, 24, 8, true) | check_products(&cu, rng, 2, 33, 7, 3, true) |
               check_products(&cu, rng, 2, 16, 72, 8, false);
        for (sv_dtype kept : {SV_BF16, SV_F32, SV_F8})
            bad |= check_write(&cu, ref, rng, 3, 40, 16, true, kept) | check_write(&cu, ref, rng, 8, 512, 64, false, kept);
    }
    bad |= fault.code != 0;
    sv_dev_close(ref);
    printf("products and latents: %s\n", bad ? "FAILED" : "as they should be");
    return bad;
}
