/*
 * gemm_groups.cuh - sums of tiles with a scale for each group of 128 columns, of weights and of x.
 *
 * Included by gemm_units.cuh where gemm_sm90.cu is built for activations in fp8. The tensor cores
 * keep some 14 bits of a sum of 8-bit products, so no sum in them is longer than a tile. The two or
 * three warpgroups of a thread block add up by turns: one does while the tensor cores work for
 * another. Must not: add tiles in any but ascending order.
 */
#ifndef SV_CUDA_GEMM_GROUPS_CUH
#define SV_CUDA_GEMM_GROUPS_CUH

static __device__ __forceinline__ float2 near_load2(uint32_t at)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

/* sum += scales times acc, of one tile: this lane's two weight rows, and two rows of x in eight. */
template <int N>
static __device__ __forceinline__ void add_group(float (&sum)[N / 2], const float (&acc)[N / 2],
                                                 uint32_t scales, uint32_t x_scales)
{
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t own = scales + (threadIdx.x / 32 * 16 + lane / 4) * 4;
    const float w0 = __uint_as_float(gpu_load4(own)), w1 = __uint_as_float(gpu_load4(own + 32));
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float2 x = near_load2(x_scales + (j * 8 + lane % 4 * 2) * 4);
        sum[4 * j] = __fmaf_rn(acc[4 * j], __fmul_rn(w0, x.x), sum[4 * j]);
        sum[4 * j + 1] = __fmaf_rn(acc[4 * j + 1], __fmul_rn(w0, x.y), sum[4 * j + 1]);
        sum[4 * j + 2] = __fmaf_rn(acc[4 * j + 2], __fmul_rn(w1, x.x), sum[4 * j + 2]);
        sum[4 * j + 3] = __fmaf_rn(acc[4 * j + 3], __fmul_rn(w1, x.y), sum[4 * j + 3]);
    }
}

/* Whole products: two warpgroups multiply by turns, where both would wait for the same stage, share
 * the tensor cores, and then add up both at once. Warpgroup 1 gives the first turn to 0. */
static __device__ __forceinline__ void turn_wait(int wg)
{
    sv_jitter();
    if (wg == 0)
        asm volatile("bar.sync 11, 256;" ::: "memory");
    else
        asm volatile("bar.sync 12, 256;" ::: "memory");
}

static __device__ __forceinline__ void turn_pass(int wg)
{
    sv_jitter();
    if (wg == 0)
        asm volatile("bar.arrive 12, 256;" ::: "memory");
    else
        asm volatile("bar.arrive 11, 256;" ::: "memory");
}

/* As sum_tiles. */
template <int N, enum way WAY>
static __device__ __forceinline__ void
sum_groups(float (&sum)[N / 2], struct place &at, int32_t n, bool present, bool last,
           const struct sv_gemm_args &a, uint32_t smem, struct tail *tail, int wg, int mate)
{
    typedef ring<N, WAY> R;
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = 0.0f;
#pragma unroll 1
    for (int32_t i = 0; i < n; i++) {
        bar_wait(smem_u32(&tail->full[at.s]), at.parity);
        if (at.s == 0 && at.parity == 0)
            SV_MARK(a, 1);
        if (WAY == WHOLE)
            turn_wait(wg);
        if (present) {
            const uint32_t stage = smem + at.s * R::STAGE;
            const uint64_t w = sv_wgmma_desc(stage + wg * SV_TILE_BYTES);
            const uint64_t x = sv_wgmma_desc(stage + R::W);
            settle<N>(acc);
            sv_wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; step++)
                multiply<N, WAY>(acc, w + 2 * step, x + 2 * step, step > 0);
            sv_wgmma_commit();
            if (WAY == WHOLE && N > 128)
                turn_pass(wg);
            sv_wgmma_wait<0>();
            settle<N>(acc);
            if (WAY == WHOLE && N <= 128) /* this late is faster there, and slower with wide ones */
                turn_pass(wg);
            add_group<N>(sum, acc, stage + R::SCALES_AT, stage + R::X_SCALES_AT);
        } else if (WAY == WHOLE) {
            turn_pass(wg);
        }
        __syncwarp(); /* lane 0 tells the producer that all lanes have done with the stage */
        if (exchanges(WAY) && last && i == n - 1 && (threadIdx.x & 31) < 2)
            bar_arrive_at(smem_u32(&tail->ready), threadIdx.x & 31);
        release(&tail->empty[at.s], mate);
        if (++at.s == a.n_stages) {
            at.s = 0;
            at.parity ^= 1;
        }
    }
}

#endif
