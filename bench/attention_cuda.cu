/*
 * attention_cuda.cu - checks and times the CUDA attention on a GPU, without the rest of the
 * backend.
 *
 * attention_cuda check [small | quick | f8] [NAME] |
 * time [variants | brief | wide | latent | f8] [CSV]:
 * `check` compares with a double-precision loop and holds bits of many arrangements against one
 * another (tests/cuda/attention_check.h), NAME: of cases with this in their name; `time` gives
 * decode, verify, draft and prefill shapes of Qwen3-8B (wide: of Qwen3.5's heads of 256, all
 * variants) as shares of the read bandwidth measured in
 * the same run, or TFLOP/s. Every launch of a timed graph reads other keys than the one before, all
 * of them together more than the L2 cache holds.
 */
#include "tests/cuda/attention_check.h"

#include <algorithm>

static const int N_ROUNDS = 7;

static void device_init(struct sv_cuda *cu)
{
    cudaDeviceProp prop;
    CHECKED(cudaGetDeviceProperties(&prop, 0));
    *cu = {};
    cu->n_sms = prop.multiProcessorCount;
    cu->smem_block = prop.sharedMemPerBlockOptin;
    cu->l2_bytes = (size_t)prop.l2CacheSize;
    cu->cc = prop.major * 10 + prop.minor;
    cu->act = SV_BF16;
    cu->set = cu->cc == 90 ? SV_CUDA_SM90 : SV_CUDA_PORTABLE;
    cu->pdl = cu->cc >= 90;
    CHECKED(cudaStreamCreateWithFlags(&cu->stream, cudaStreamDefault));
    printf("%s, %d SMs, L2 %d MB, shared %zu\n", prop.name, cu->n_sms, prop.l2CacheSize >> 20,
           cu->smem_block);
}

/* ---------------------------------------------------------------- checks */

struct entry {
    const char *name;
    setup s;
    std::vector<int32_t> lens;
    int32_t ref_every;
    bool quick; /* these show every kernel */
};

/* quick: a few short ones, for compute-sanitizer. f8: caches of e4m3 alone. */
static int check(struct sv_cuda *cu, bool small, bool quick, bool f8, const char *named)
{
    const entry all[] = {
        {"d256 group 8",
         {16, 2, 256, SV_BF16, SV_MASK_CAUSAL, 0, 0, false},
         {1500, 2300, 40, 130},
         199},
        {"d256 block", {8, 2, 256, SV_BF16, SV_MASK_BLOCK, 0, 0, false}, {1700, 300, 16}, 97},
        {"d128 group 4",
         {8, 2, 128, SV_BF16, SV_MASK_CAUSAL, 0, 0, false},
         {1500, 2300, 40, 130},
         199,
         true},
        {"d128 group 4 long",
         {4, 1, 128, SV_BF16, SV_MASK_CAUSAL, 0, 0, false},
         {9000, 5000},
         1999},
        {"d128 group 1 sinks", {2, 2, 128, SV_BF16, SV_MASK_CAUSAL, 0, 0, true}, {700, 90}, 97},
        {"d128 group 8 block",
         {8, 1, 128, SV_BF16, SV_MASK_BLOCK, 0, 0, false},
         {1700, 40, 900},
         97},
        {"d128 window 4096",
         {4, 1, 128, SV_BF16, SV_MASK_CAUSAL, 4096, 0, false},
         {6000, 300},
         997},
        {"d128 window 100 softcap",
         {4, 1, 128, SV_BF16, SV_MASK_CAUSAL, 100, 30, true},
         {1200, 300},
         97},
        {"d128 window 100 block",
         {4, 1, 128, SV_BF16, SV_MASK_BLOCK, 100, 0, false},
         {1200, 300},
         97},
        {"d128 window 1", {4, 1, 128, SV_BF16, SV_MASK_CAUSAL, 1, 0, false}, {600, 300}, 97},
        {"d64 group 5",
         {5, 1, 64, SV_BF16, SV_MASK_CAUSAL, 0, 0, false},
         {1500, 2300, 40},
         199,
         true},
        {"d64 window 5 sinks", {6, 2, 64, SV_BF16, SV_MASK_CAUSAL, 5, 0, true}, {600, 300}, 97},
        {"d64 block softcap", {4, 2, 64, SV_BF16, SV_MASK_BLOCK, 0, 20, true}, {900, 300}, 97},
        {"d256 group 2", {2, 1, 256, SV_BF16, SV_MASK_CAUSAL, 0, 0, false}, {300, 90}, 97},
        {"d256 window 100 softcap",
         {6, 2, 256, SV_BF16, SV_MASK_CAUSAL, 100, 30, false},
         {1200, 300},
         97},
        {"d256 window 700", {8, 1, 256, SV_BF16, SV_MASK_CAUSAL, 700, 0, false}, {2500}, 397},
        {"d72 plain window",
         {4, 2, 72, SV_BF16, SV_MASK_BLOCK, 100, 20, true},
         {300, 90},
         97,
         true},
        {"latents",
         {16, 1, 576, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 512},
         {1500, 700, 40},
         197,
         true},
        {"latents 128 heads", {128, 1, 576, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 512}, {300}, 97},
        {"latents 8 heads",
         {8, 1, 576, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 512},
         {2300, 900, 130},
         397},
        {"latents 64 heads", {64, 1, 576, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 512}, {600}, 197},
        {"latents window 100",
         {3, 1, 576, SV_BF16, SV_MASK_CAUSAL, 100, 0, false, 512},
         {1200, 300},
         197},
        {"latents block", {16, 1, 576, SV_BF16, SV_MASK_BLOCK, 0, 0, false, 512}, {700, 40}, 97},
        {"latents plain", {4, 1, 576, SV_F32, SV_MASK_CAUSAL, 0, 0, false, 512}, {300, 90}, 97},
        {"latents f8",
         {16, 1, 576, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 512, true},
         {1500, 700, 40},
         197,
         true},
        {"latents f8 128 heads",
         {128, 1, 576, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 512, true},
         {300},
         97},
        {"latents f8 window 100",
         {5, 1, 576, SV_BF16, SV_MASK_CAUSAL, 100, 0, false, 512, true},
         {1200, 300},
         197},
        {"latents f8 plain",
         {4, 1, 576, SV_F32, SV_MASK_CAUSAL, 0, 0, false, 512, true},
         {300, 90},
         97},
        {"d128 f8",
         {8, 2, 128, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 0, true},
         {1500, 2300, 40, 130},
         199,
         true},
        {"d128 f8 block fixed",
         {8, 1, 128, SV_BF16, SV_MASK_BLOCK, 0, 0, true, 0, true, 0.0123f},
         {1700, 40, 900},
         97},
        {"d64 f8 window 100 softcap",
         {5, 1, 64, SV_BF16, SV_MASK_CAUSAL, 100, 30, true, 0, true},
         {1500, 600, 40},
         97,
         true},
        {"d256 f8", {8, 2, 256, SV_BF16, SV_MASK_CAUSAL, 0, 0, false, 0, true}, {1700, 300}, 97},
        {"d72 f8 plain", {4, 2, 72, SV_BF16, SV_MASK_BLOCK, 0, 0, true, 0, true}, {300, 90}, 97},
        {"d64 f8 f32",
         {2, 2, 64, SV_F32, SV_MASK_CAUSAL, 0, 0, false, 0, true, 0.0371f},
         {300},
         97},
        {"d128 f32", {4, 1, 128, SV_F32, SV_MASK_CAUSAL, 0, 0, false}, {600, 90}, 97},
        {"d64 f32 block window", {5, 1, 64, SV_F32, SV_MASK_BLOCK, 50, 0, true}, {600, 90}, 97},
    };
    checker c;
    check_init(c, cu, 16384, 128, 10000, true);
    for (const entry &base : all) {
        if ((quick && !base.quick) || (f8 && !base.s.f8) || !strstr(base.name, named))
            continue;
        const bool tiled = base.s.dtype == SV_BF16 && base.s.hd % 64 == 0;
        entry e = base;
        for (int32_t &len : e.lens)
            len = std::min(len, quick ? 150 : small ? 333 : len);
        if (quick) /* over two chunks and two spans */
            e.lens = {e.lens[0], 530};
        for (int set = 0; set < (tiled && cu->cc == 90 ? 2 : 1); set++) {
            const int64_t failed = c.n_failed;
            const double worst = c.worst;
            c.worst = 0;
            cu->set = set ? SV_CUDA_SM90 : SV_CUDA_PORTABLE;
            check_setup(c, e.s, e.lens, e.name, small || quick ? 1 << 20 : e.ref_every, tiled,
                        quick);
            CHECKED(cudaDeviceSynchronize());
            printf("%-28s %-8s %s, relative error %.2g\n", e.name,
                   !tiled ? "plain"
                   : set  ? "sm90"
                          : "portable",
                   failed == c.n_failed ? "ok" : "FAILED", c.worst);
            fflush(stdout);
            c.worst = std::max(c.worst, worst);
        }
    }
    printf("%lld rows checked, %lld failed\n", (long long)c.n_rows, (long long)c.n_failed);
    return c.n_failed ? 1 : 0;
}

/* ---------------------------------------------------------------- timing */

static __global__ void fill(uint16_t *to, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t h = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
        h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
        h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
        const float u = (float)(h >> 40) * (1.0f / (1 << 24)) * 4 - 2;
        to[i] = __bfloat16_as_ushort(__float2bfloat16_rn(u));
    }
}

static __global__ void __launch_bounds__(512) read_all(const uint4 *p, size_t n, uint32_t *sink)
{
    uint32_t x = 0;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step),
                    d = __ldcs(p + i + 3 * step);
        x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^
             d.z ^ d.w;
    }
    if (x == 0x12345678u)
        *sink = x;
}

struct timing {
    double median, lo, hi; /* microseconds a launch */
};

/* Captures n launches, replays the graph; launch(i, user) enqueues one. */
template <typename F> static timing time_launches(struct sv_cuda *cu, int n, F launch)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    std::vector<float> ms;
    CHECKED(cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; i++)
        launch(i);
    CHECKED(cudaStreamEndCapture(cu->stream, &graph));
    CHECKED(cudaGraphInstantiate(&exec, graph, 0));
    CHECKED(cudaEventCreate(&from));
    CHECKED(cudaEventCreate(&to));
    for (int i = 0; i < N_ROUNDS + 1; i++) {
        float t;
        CHECKED(cudaEventRecord(from, cu->stream));
        CHECKED(cudaGraphLaunch(exec, cu->stream));
        CHECKED(cudaEventRecord(to, cu->stream));
        CHECKED(cudaEventSynchronize(to));
        CHECKED(cudaEventElapsedTime(&t, from, to));
        if (i > 0)
            ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    CHECKED(cudaGraphExecDestroy(exec));
    CHECKED(cudaGraphDestroy(graph));
    CHECKED(cudaEventDestroy(from));
    CHECKED(cudaEventDestroy(to));
    return {ms[ms.size() / 2] * 1e3 / n, ms[0] * 1e3 / n, ms.back() * 1e3 / n};
}

struct shape {
    const char *what;
    int32_t n_seqs, context, rows; /* rows stand behind the context */
    enum sv_mask mask;
    int32_t n_heads, n_kv, hd, page;
    int32_t v_dim = 0; /* of latents; 0: keys and values */
    bool f8 = false;   /* a cache of e4m3 */
};

static double seen_keys(const shape &s)
{
    const double each =
        s.mask == SV_MASK_BLOCK ? s.context + s.rows : s.context + (s.rows + 1) / 2.0;
    return each * s.rows * s.n_seqs;
}

/* Everything a shape needs, made once for all variants. */
struct stage {
    std::vector<uint8_t *> layers;
    struct sv_p_attention p;
    std::vector<void *> owned;
    size_t kv_bytes;
};

static void *keep(stage &st, size_t n)
{
    st.owned.push_back(dev_alloc(n));
    return st.owned.back();
}

static void stage_init(stage &st, const struct sv_cuda *cu, const shape &s)
{
    const int32_t len = s.context + s.rows, stride = (len + s.page - 1) / s.page,
                  n_pages = stride * s.n_seqs, n_rows = s.rows * s.n_seqs,
                  width = (s.n_heads + (s.v_dim ? 0 : 2 * s.n_kv)) * s.hd,
                  vd = s.v_dim ? s.v_dim : s.hd;
    /* Of e4m3 a key's or value's own scale is one more byte. */
    const size_t rows = (size_t)n_pages * s.n_kv * s.page,
                 row_bytes = sv_kv_row_bytes(s.f8 ? SV_F8 : SV_BF16, s.hd, s.v_dim),
                 pool = rows * (row_bytes + (s.f8 && !s.v_dim));
    std::vector<int32_t> table((size_t)n_pages), row_seg, row0, slot, base, row_pos;
    for (int32_t i = 0; i < n_pages; i++)
        table[(size_t)i] = i;
    for (int32_t i = n_pages - 1; i > 0; i--)
        std::swap(table[(size_t)i], table[mix64((uint64_t)i) % (uint64_t)(i + 1)]);
    for (int32_t i = 0; i < s.n_seqs; i++) {
        slot.push_back(i);
        base.push_back(s.context);
        row0.push_back(i * s.rows);
        for (int32_t j = 0; j < s.rows; j++) {
            row_seg.push_back(i);
            row_pos.push_back(s.context + j);
        }
    }
    row0.push_back(n_rows);
    st.kv_bytes = (size_t)len * s.n_seqs * s.n_kv * (s.v_dim ? row_bytes : 2 * (row_bytes + s.f8));
    const size_t want = 5 * cu->l2_bytes;
    const int n_layers = (int)std::min<size_t>(64, std::max<size_t>(2, want / (2 * pool) + 1));
    for (int i = 0; i < n_layers; i++) {
        st.layers.push_back((uint8_t *)keep(st, 2 * pool));
        /* Any bytes are codes; a scale that most numbers of a model have. */
        fill<<<1024, 256, 0, cu->stream>>>((uint16_t *)st.layers.back(), pool, 17u * i);
        for (int half = 0; half < 2 && s.f8 && !s.v_dim; half++)
            CHECKED(cudaMemsetAsync(st.layers.back() + half * pool + rows * s.hd, 120, rows,
                                    cu->stream));
    }
    auto ints = [&](const std::vector<int32_t> &v) {
        void *d = keep(st, v.size() * 4);
        dev_put(d, v.data(), v.size() * 4);
        return (int32_t *)d;
    };
    uint16_t *q = (uint16_t *)keep(st, (size_t)n_rows * width * 2);
    fill<<<1024, 256, 0, cu->stream>>>(q, (size_t)n_rows * width, 5);
    st.p = {};
    st.p.rows = {n_rows,     s.n_seqs,   ints(row_seg), ints(row0),
                 ints(slot), ints(base), ints(row_pos)};
    st.p.q = q;
    st.p.ldq = width;
    st.p.out = keep(st, (size_t)n_rows * s.n_heads * vd * 2);
    st.p.ldo = s.n_heads * vd;
    st.p.v_dim = s.v_dim;
    st.p.n_heads = s.n_heads;
    st.p.kv = {
        NULL,        NULL,  s.f8 ? SV_F8 : SV_BF16, 0, 0, n_pages, s.page, s.n_kv, s.hd, s.v_dim,
        ints(table), stride};
    st.p.mask = s.mask;
    st.p.scale = 1.0f / sqrtf((float)s.hd);
    CHECKED(cudaDeviceSynchronize());
}

static timing time_one(struct sv_cuda *cu, stage &st, const struct sv_attn_force &force, int n)
{
    const size_t rows = (size_t)st.p.kv.n_pages * st.p.kv.n_kv_heads * st.p.kv.page_size,
                 hd = (size_t)st.p.kv.head_dim;
    const bool f8 = st.p.kv.dtype == SV_F8;
    const size_t half = f8 ? rows * (hd + 1) : rows * hd * 2;
    return time_launches(cu, n, [&](int i) {
        struct sv_p_attention p = st.p;
        p.kv.k = st.layers[(size_t)i % st.layers.size()];
        p.kv.v = p.v_dim ? NULL : (uint8_t *)p.kv.k + half;
        p.kv.k_own = f8 ? (uint8_t *)p.kv.k + rows * hd : NULL;
        p.kv.v_own = f8 ? (uint8_t *)p.kv.v + rows * hd : NULL;
        sv_cuda_attention_forced(cu, &p, &force);
    });
}

static double read_bandwidth(struct sv_cuda *cu)
{
    const size_t n = (size_t)4 << 30;
    uint8_t *p = (uint8_t *)dev_alloc(n);
    fill<<<1024, 256, 0, cu->stream>>>((uint16_t *)p, n / 2, 3);
    double best = 0;
    for (int blocks = 1; blocks <= 4; blocks *= 2) {
        const timing t = time_launches(cu, 2, [&](int) {
            read_all<<<cu->n_sms * blocks, 512, 0, cu->stream>>>((const uint4 *)p, n / 16,
                                                                 (uint32_t *)p);
        });
        best = std::max(best, (double)n / t.median * 1e-3);
    }
    dev_free(p);
    return best;
}

/* What is forced: the unit (enum sv_attn_unit), the kernel for few rows (-1: not), whether segments
 * and earlier keys are read before the launch before is over, as in a pass. */
struct variant {
    int set, unit, few, early, pdl;
};
static const variant choices[] = {{1, 0, 0, 1, 1},  {1, 0, -1, 1, 1}, {1, 0, 0, 0, 1},
                                  {1, 0, 0, 0, 0},  {1, 1, -1, 1, 1}, {1, 2, -1, 1, 1},
                                  {1, 3, -1, 1, 1}, {0, 0, 0, 1, 1}};

static __global__ void __launch_bounds__(256) nothing(void)
{
    sv_pdl_wait();
    sv_pdl_launch();
}

/* What a kernel costs that does nothing, as one launch and as a pair: the floor of any latency
 * below. */
static void time_nothing(struct sv_cuda *cu)
{
    CHECKED(cudaFuncSetAttribute((const void *)nothing, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 100 << 10));
    for (int pdl = 0; pdl < 2; pdl++) {
        cu->pdl = pdl && cu->cc >= 90;
        const timing one = time_launches(cu, 128, [&](int) {
            sv_cuda_launch(cu, "nothing", nothing, dim3((unsigned)cu->n_sms * 2), dim3(256),
                           100 << 10);
        });
        const timing two = time_launches(cu, 128, [&](int) {
            sv_cuda_launch(cu, "nothing", nothing, dim3((unsigned)cu->n_sms * 2), dim3(256),
                           100 << 10);
            sv_cuda_launch(cu, "nothing", nothing, dim3(128), dim3(128), 0);
        });
        printf("nothing: pdl %d, one launch %.2f us, a large and a small one %.2f us\n", pdl,
               one.median, two.median);
    }
}

/* DeepSeek-V3 and Kimi K2: 128 and 64 heads on one latent. */
static std::vector<shape> latent_shapes(void)
{
    std::vector<shape> shapes;
    for (int32_t heads : {128, 64})
        for (int32_t ctx : {1024, 8192})
            for (int32_t n : {1, 32})
                for (int32_t rows : {1, 16})
                    for (int f8 = 0; f8 < 2; f8++)
                        if (heads == 128 || n == 32)
                            shapes.push_back({f8          ? rows == 1 ? "decode f8" : "verify f8"
                                              : rows == 1 ? "decode"
                                                          : "verify",
                                              n, ctx, rows, SV_MASK_CAUSAL, heads, 1,
                                              SV_ATTN_LATENT_WIDTH, 64, SV_ATTN_LATENT, f8 != 0});
    shapes.push_back(
        {"prefill", 1, 0, 4096, SV_MASK_CAUSAL, 128, 1, SV_ATTN_LATENT_WIDTH, 64, SV_ATTN_LATENT});
    return shapes;
}

/* Qwen3-8B over caches of e4m3. */
static std::vector<shape> f8_shapes(void)
{
    std::vector<shape> shapes;
    for (int page = 16; page <= 64; page += 48)
        for (int32_t ctx : {2048, 8192})
            for (int32_t n : {1, 32})
                for (int32_t rows : {1, 16})
                    if (page == 16 || (n == 32 && ctx == 8192))
                        shapes.push_back({rows == 1 ? "decode" : "verify", n, ctx, rows,
                                          SV_MASK_CAUSAL, 32, 8, 128, page, 0, true});
    shapes.push_back({"prefill", 1, 0, 8192, SV_MASK_CAUSAL, 32, 8, 128, 16, 0, true});
    return shapes;
}

/* Qwen3.5-35B-A3B and 27B. */
static std::vector<shape> wide_shapes(void)
{
    std::vector<shape> shapes;
    for (int32_t n_kv : {2, 4})
        for (int32_t ctx : {512, 4096})
            for (int32_t n : {1, 32})
                for (int32_t rows : {1, 16})
                    shapes.push_back({rows > 1 ? "verify" : "decode", n, ctx, rows, SV_MASK_CAUSAL,
                                      n_kv == 2 ? 16 : 24, n_kv, 256, 16});
    shapes.push_back({"prefill", 1, 0, 2048, SV_MASK_CAUSAL, 16, 2, 256, 16});
    shapes.push_back({"prefill", 1, 0, 8192, SV_MASK_CAUSAL, 24, 4, 256, 16});
    return shapes;
}

static std::vector<shape> key_value_shapes(void)
{
    const enum sv_mask causal = SV_MASK_CAUSAL, block = SV_MASK_BLOCK;
    std::vector<shape> shapes;
    for (int page = 16; page <= 64; page += 48)
        for (int32_t ctx : {512, 2048, 8192})
            for (int32_t n : {1, 8, 32})
                for (int32_t rows : {1, 16})
                    if (page == 16 || (n == 32 && ctx == 8192))
                        shapes.push_back({rows == 1 ? "decode" : "verify", n, ctx, rows, causal, 32,
                                          8, 128, page});
    shapes.push_back({"draft", 1, 512, 16, block, 32, 8, 128, 16});
    shapes.push_back({"draft", 32, 512, 16, block, 32, 8, 128, 16});
    shapes.push_back({"prefill", 1, 0, 512, causal, 32, 8, 128, 16});
    shapes.push_back({"prefill", 1, 0, 2048, causal, 32, 8, 128, 16});
    shapes.push_back({"prefill", 1, 0, 8192, causal, 32, 8, 128, 16});
    shapes.push_back({"prefill", 1, 0, 8192, causal, 32, 8, 128, 64});
    shapes.push_back({"demo decode", 1, 512, 1, causal, 5, 1, 64, 16});
    shapes.push_back({"demo verify", 1, 512, 16, causal, 5, 1, 64, 16});
    return shapes;
}

static void time_shapes(struct sv_cuda *cu, bool variants, bool brief, bool wide, bool latent,
                        bool f8, const char *csv_path)
{
    const std::vector<shape> shapes = latent ? latent_shapes()
                                      : wide ? wide_shapes()
                                      : f8   ? f8_shapes()
                                             : key_value_shapes();
    struct sv_dev_limits lim = {};
    lim.max_rows = 8192;
    lim.max_heads = latent ? 128 : 32;
    lim.max_head_dim = 128;
    lim.max_positions = 16384;
    lim.by_head = latent;
    cu->fault = (struct sv_cuda_fault *)dev_alloc(sizeof *cu->fault);
    SV_REQUIRE(sv_cuda_attn_reserve(cu, &lim, NULL) == SV_OK);
    FILE *csv = csv_path ? fopen(csv_path, "w") : NULL;
    const double peak = read_bandwidth(cu);
    printf("read bandwidth %.0f GB/s\n", peak);
    time_nothing(cu);
    if (csv)
        fprintf(
            csv,
            "kernels,what,sequences,context,rows,page_size,head_dim,forced_unit,forced_few,early,"
            "pdl,us_median,"
            "us_min,us_max,kv_gb_s,share_of_read,tflop_s,read_gb_s\n");
    printf("%-8s %-11s %3s %5s %5s %4s u few e p %9s %9s %9s %7s %6s %7s\n", "set", "what", "seq",
           "ctx", "rows", "page", "us", "min", "max", "GB/s", "share", "TFLOP/s");
    for (const shape &s : shapes) {
        stage st = {};
        stage_init(st, cu, s);
        const double bytes = (double)st.kv_bytes,
                     flops = 2.0 * (s.hd + (s.v_dim ? s.v_dim : s.hd)) * s.n_heads * seen_keys(s);
        const double guess_us = std::max(bytes / peak * 1e-3, flops / 3e8) + 3;
        const int n = (int)std::max(4.0, std::min(128.0, 4000 / guess_us));
        for (const variant &v : choices) {
            const bool few = (int64_t)s.n_seqs * s.rows * (s.n_heads / s.n_kv) <= 64;
            if (s.v_dim && (v.unit || !v.early || v.few))
                continue;
            if (v.set > (cu->cc == 90) || (!variants && (v.unit || !v.early || !v.pdl)) ||
                (v.early == 0 && s.n_seqs > 1) || (brief && !v.set) || (v.few && !v.unit && !few))
                continue;
            const int32_t keys = v.unit == 1 ? SV_ATTN_CHUNK : SV_ATTN_SPAN;
            if ((v.unit == 1 || v.unit == 2) &&
                (double)s.n_seqs * s.rows * s.n_heads * ((s.context + s.rows) / keys + 1) >
                    128 * 1024)
                continue;
            cu->set = v.set ? SV_CUDA_SM90 : SV_CUDA_PORTABLE;
            cu->pdl = v.pdl && cu->cc >= 90;
            cu->settled = v.early != 0; /* as in a pass: a plan is made, then read early */
            cu->pass++;
            const timing t = time_one(cu, st, {(enum sv_attn_unit)v.unit, 0, 0, false, v.few}, n);
            const double rate = bytes / t.median * 1e-3, tf = flops / t.median * 1e-6;
            printf(
                "%-8s %-11s %3d %5d %5d %4d %d %3d %d %d %9.2f %9.2f %9.2f %7.0f %5.1f%% %7.1f\n",
                v.set ? "sm90" : "portable", s.what, s.n_seqs, s.context, s.rows, s.page, v.unit,
                v.few, v.early, v.pdl, t.median, t.lo, t.hi, rate, 100 * rate / peak, tf);
            if (csv)
                fprintf(csv,
                        "%s,%s,%d,%d,%d,%d,%d,%d,%d,%d,%d,%.3f,%.3f,%.3f,%.1f,%.4f,%.2f,%.0f\n",
                        v.set ? "sm90" : "portable", s.what, s.n_seqs, s.context, s.rows, s.page,
                        s.hd, v.unit, v.few, v.early, v.pdl, t.median, t.lo, t.hi, rate,
                        rate / peak, tf, peak);
        }
        fflush(stdout);
        for (void *p : st.owned)
            dev_free(p);
    }
    if (csv)
        fclose(csv);
}

int main(int argc, char **argv)
{
    struct sv_cuda cu;
    const char *what = argc > 1 ? argv[1] : "";
    const bool wide = argc > 2 && !strcmp(argv[2], "wide"),
               more = wide ||
                      (argc > 2 && (!strcmp(argv[2], "small") || !strcmp(argv[2], "variants")));
    const bool brief = argc > 2 && !strcmp(argv[2], "brief"),
               latent = argc > 2 && !strcmp(argv[2], "latent"),
               f8 = argc > 2 && !strcmp(argv[2], "f8"),
               quick = argc > 2 && !strcmp(argv[2], "quick");
    const int mode = more || f8 || quick;
    const char *const name = argc > 2 + mode ? argv[2 + mode] : "";
    if (strcmp(what, "check") && strcmp(what, "time")) {
        fprintf(
            stderr,
            "usage: attention_cuda check [small | quick | f8] [NAME] | time [variants | brief | "
            "wide | latent | f8] [CSV]\n");
        return 2;
    }
    device_init(&cu);
    if (!strcmp(what, "check"))
        return check(&cu, more, quick, f8, name);
    const int named = more + brief + latent + f8;
    time_shapes(&cu, more, brief, wide, latent, f8, argc > 2 + named ? argv[2 + named] : NULL);
    return 0;
}
