/*
 * sample_emulated.cpp - the CUDA kernels of sample.cu run on a CPU by tests/cuda/emulated, against the CPU backend's
 * draws: the same token for every row, whatever the number of slices, and once more on what the first call left.
 *
 * Built and started by sample_emulated.test.sh. tests/backend/test_sample.c holds the CPU's against the definition.
 */
#include "backend/cuda/cuda.h"

#include <vector>

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}
int sv_cuda_alloc(struct sv_dev *, void **out, size_t n_bytes, struct sv_err *)
{
    *out = calloc(1, n_bytes);
    return SV_OK;
}
void sv_cuda_free(struct sv_dev *, void *p)
{
    free(p);
}

namespace
{
enum { N = 12 };

/* 0: as a model's; 1: nearly flat, more candidates than a list holds; 2: many ties; 3: half masked; 4: far apart;
 * 5: one number everywhere. */
enum { KINDS = 6 };

float logit(sv_rng &rng, int kind)
{
    const float v = sv_rng_normal(&rng);
    switch (kind) {
    case 1:
        return 0.01f * v;
    case 2:
        return rintf(3 * v);
    case 3:
        return sv_rng_below(&rng, 2) ? -INFINITY : 3 * v;
    case 4:
        return 1e30f * v;
    case 5:
        return -2;
    default:
        return 3 * v;
    }
}

int check(sv_dev *ref, sv_cuda *cu, sv_rng &rng, int32_t vocab, int kind, int32_t shift)
{
    static const float t[] = {1, 0.7f, 1.5f, 0, 0.01f, 100}, top_p[] = {1, 0.9f, 0.5f, 0.999f, 0, 1};
    static const int32_t top_k[] = {0, 20, 1, 0, 190, 50, 400};
    static const float min_p[] = {0, 0, 0.05f, 0, 0.5f};
    static const int32_t sms[] = {1, 40, 1000};
    const int64_t ld = vocab + 1; /* rows of every alignment */
    std::vector<float> x((size_t)(N * ld));
    std::vector<sv_sampling> sp(N);
    std::vector<int32_t> slot(N), pos(N), want(N, -7), got(N, -7);
    for (int32_t i = 0; i < N; i++) {
        const int32_t j = i + shift;
        sp[(size_t)i] = {t[j % 6], top_p[(j / 2) % 6], min_p[j % 5], top_k[(j / 3) % 7],
                         sv_rng_next(&rng)};
        slot[(size_t)i] = i % 7 == 6 ? -1 : N - 1 - i;
        pos[(size_t)i] = (int32_t)sv_rng_below(&rng, 1 << 20);
    }
    for (float &v : x)
        v = logit(rng, kind);
    for (int32_t i = 0; i < N && kind == 3; i++)
        x[(size_t)(i * ld)] = 1; /* not all of a short row */
    sv_p_sample p = {N, vocab, x.data(), ld, slot.data(), pos.data(), sp.data(), want.data()};
    sv_op_sample(ref, &p);
    p.out = got.data();
    for (int32_t n : sms)
        for (int again = 0; again < (n == 40 ? 2 : 1); again++) {
            cu->n_sms = n;
            std::fill(got.begin(), got.end(), -7);
            sv_cuda_sample((sv_dev *)cu, &p);
            for (int32_t i = 0; i < N; i++)
                if (got[(size_t)i] != want[(size_t)i]) {
                    const sv_sampling &s = sp[(size_t)slot[(size_t)i]];
                    printf("vocabulary %d, kind %d, %d multiprocessors, row %d (T %g, top_k %d, top_p %g, "
                           "min_p %g): token %d, not %d\n",
                           vocab, kind, n, i, s.temperature, s.top_k, s.top_p, s.min_p, got[(size_t)i],
                           want[(size_t)i]);
                    return 1;
                }
        }
    return 0;
}
} // namespace

int main()
{
    static const int32_t vocab[] = {1, 7, 150, 601, 2200};
    sv_dev_opts opts = {};
    opts.backend = "cpu";
    opts.n_threads = 1;
    opts.compute = SV_F32;
    sv_dev_limits lim = {};
    sv_cuda cu = {};
    sv_cuda_fault fault = {};
    sv_dev *ref;
    sv_err err;
    sv_rng rng = {11};
    int n = 0;
    lim.max_rows = lim.max_logit_rows = N;
    lim.max_k = lim.max_n = lim.max_head_dim = lim.max_positions = 64;
    lim.max_heads = 1;
    lim.max_vocab = 20000;
    if (sv_dev_open(&ref, &opts, &err) || sv_dev_reserve(ref, &lim, &err))
        return printf("%s\n", err.msg), 1;
    cu.lim = lim;
    cu.fault = &fault;
    sv_cuda_sample_reserve(&cu, &err);
    for (int32_t v : vocab)
        for (int kind = 0; kind < KINDS; kind++)
            for (int32_t shift = 0; shift < (v > 1000 ? 24 : 48); shift += N, n += N)
                if (check(ref, &cu, rng, v, kind, shift))
                    return 1;
    if (fault.code)
        return printf("fault %d\n", fault.code), 1;
    sv_cuda_sample_close(&cu);
    sv_dev_close(ref);
    printf("%d rows under 3 numbers of slices: the tokens are the CPU's\n", n);
    return 0;
}
