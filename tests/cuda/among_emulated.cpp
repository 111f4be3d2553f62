/*
 * among_emulated.cpp - the CUDA kernels of among.cu run on a CPU by tests/cuda/emulated, against sums in double:
 * packed and row-major heads, activations of both types, lists of one token and of many, NaN.
 *
 * Built and started by among_emulated.test.sh.
 */
#include "backend/cuda/cuda.h"
#include "backend/gpu/pack.cuh"

#include <vector>

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}

namespace
{
struct world {
    int32_t n, k, vocab;
    bool packed;
    std::vector<float> w, x; /* as the device has them, row-major */
    std::vector<int32_t> row, first, ids;
};

float rounded(float v)
{
    return sv_bf16_to_f32(sv_f32_to_bf16(v));
}

world make(sv_rng &rng, int32_t n, int32_t k, int32_t vocab, bool packed, bool bf16)
{
    world a = {n, k, vocab, packed, {}, {}, {}, {}, {}};
    for (int64_t i = 0; i < (int64_t)vocab * k; i++)
        a.w.push_back(packed ? rounded(sv_rng_normal(&rng) / 8) : sv_rng_normal(&rng) / 8);
    for (int64_t i = 0; i < (int64_t)n * k; i++)
        a.x.push_back(bf16 ? rounded(sv_rng_normal(&rng)) : sv_rng_normal(&rng));
    for (int32_t r = 0; r < n; r++) {
        a.row.push_back((r * 2 + 1) % n);
        a.first.push_back((int32_t)a.ids.size());
        const int32_t len = r == 0 ? 1 : r == 1 ? 200 : 1 + (int32_t)sv_rng_below(&rng, 70);
        for (int32_t i = 0; i < len; i++)
            a.ids.push_back((int32_t)(((int64_t)i * vocab + r) / len));
    }
    a.first.push_back((int32_t)a.ids.size());
    return a;
}

int check(sv_cuda &cu, const world &a, bool bf16)
{
    std::vector<uint16_t> packed((size_t)sv_packed_at(a.vocab + SV_TILE, 0, a.k) + SV_TILE_ELEMS);
    std::vector<uint16_t> x16;
    std::vector<float> logits(a.ids.size()), confidence((size_t)a.n);
    std::vector<int32_t> out((size_t)a.n);
    int bad = 0;
    for (int32_t r = 0; r < a.vocab && a.packed; r++)
        for (int32_t c = 0; c < a.k; c++)
            packed[sv_packed_at(r, c, a.k)] = sv_f32_to_bf16(a.w[(size_t)r * (size_t)a.k + (size_t)c]);
    for (float v : a.x)
        x16.push_back(sv_f32_to_bf16(v));
    sv_p_head_among p = {};
    p.n_rows = a.n;
    p.k = a.k;
    p.x = bf16 ? (const void *)x16.data() : (const void *)a.x.data();
    p.row = a.row.data();
    p.w.data = a.packed ? (const void *)packed.data() : (const void *)a.w.data();
    p.w.fmt.elem = a.packed ? SV_BF16 : SV_F32;
    p.w.rows = a.vocab;
    p.w.cols = a.k;
    p.n_ids = (int32_t)a.ids.size();
    p.first = a.first.data();
    p.ids = a.ids.data();
    p.logits = logits.data();
    p.out = out.data();
    p.confidence = confidence.data();
    cu.act = bf16 ? SV_BF16 : SV_F32;
    sv_cuda_head_among((sv_dev *)&cu, &p);
    for (int32_t r = 0; r < a.n; r++) {
        int32_t best = -1;
        double sum = 0;
        for (int32_t i = a.first[(size_t)r]; i < a.first[(size_t)r + 1]; i++) {
            double want = 0;
            for (int32_t c = 0; c < a.k; c++)
                want += (double)a.w[(size_t)a.ids[(size_t)i] * (size_t)a.k + (size_t)c] *
                        (double)a.x[(size_t)a.row[(size_t)r] * (size_t)a.k + (size_t)c];
            const float got = logits[(size_t)i];
            bad |= !(fabs(want - (double)got) < 1e-4) && !(isnan(want) && isnan(got));
            if (!isnan(got) && (best < 0 || got > logits[(size_t)best]))
                best = i;
        }
        if (best < 0)
            continue;
        for (int32_t i = a.first[(size_t)r]; i < a.first[(size_t)r + 1]; i++)
            if (!isnan(logits[(size_t)i]))
                sum += exp((double)logits[(size_t)i] - (double)logits[(size_t)best]);
        bad |= out[(size_t)r] != a.ids[(size_t)best] || !(fabs(1 / sum - (double)confidence[(size_t)r]) < 1e-4);
    }
    if (bad)
        printf("%d rows of %d, vocabulary %d, packed %d, bf16 %d: wrong\n", a.n, a.k, a.vocab, a.packed, bf16);
    return bad;
}
} // namespace

int main()
{
    sv_cuda_fault fault = {};
    sv_cuda cu = {};
    sv_rng rng = {5};
    int bad = 0;
    cu.fault = &fault;
    for (int how = 0; how < 4; how++) {
        const bool packed = how % 2, bf16 = how / 2;
        bad |= check(cu, make(rng, 1, 64, 40, packed, bf16), bf16);
        bad |= check(cu, make(rng, 5, 72, 300, packed, bf16), bf16);
        world nan = make(rng, 6, 128, 999, packed, bf16);
        for (int32_t c = 0; c < nan.k; c++)
            nan.w[(size_t)nan.ids[4] * (size_t)nan.k + (size_t)c] = NAN;
        bad |= check(cu, nan, bf16);
    }
    printf("%s\n", bad ? "FAILED" : "ok");
    return bad;
}
