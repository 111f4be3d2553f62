/*
 * no_tuned.cu - what stands for NVIDIA's tuned kernels in a build for AMD: there are none. Never
 * run on a card.
 *
 * Called by the host code of backend/cuda, which asks for a tuned kernel only when cu->set says
 * that the device has them; opening a device here never does. Questions are answered with no, the
 * rest aborts. Must not: compute anything.
 */
#include "backend/cuda/attention.h"
#include "backend/cuda/gemm_one.h"
#include "backend/cuda/moe.h"

static void never(void)
{
    SV_REQUIRE(!"a kernel of another vendor");
}

/* ---------------------------------------------------------------- attention */

void sv_cuda_attn_latent_sm90(bool, struct sv_attn_launch *)
{
    never();
}

bool sv_cuda_attn_sm90(int32_t, int32_t, bool, struct sv_attn_launch *)
{
    return false;
}
bool sv_cuda_attn_few(int32_t, int32_t, bool, struct sv_attn_args *, struct sv_attn_launch *)
{
    return false;
}
int sv_cuda_attn_maps_open(void **encode, struct sv_err *)
{
    *encode = NULL;
    return SV_OK;
}
bool sv_cuda_attn_maps(struct sv_cuda *, void *, struct sv_attn_args *)
{
    never();
    return false;
}

/* ---------------------------------------------------------------- products */

int sv_gemm_sm90_open(struct sv_cuda *, struct sv_err *)
{
    never();
    return SV_EDEVICE;
}
void sv_gemm_sm90(struct sv_cuda *, const void *, int64_t, int32_t, struct sv_gemm_args *)
{
    never();
}
bool sv_gemm_sm90_halves(struct sv_cuda *, const void *, int64_t, int32_t, struct sv_gemm_args *)
{
    return false;
}
bool sv_gemm_sm90_whole(struct sv_cuda *, const void *, int64_t, int32_t, struct sv_gemm_args *)
{
    return false;
}
int sv_gemm_fp8_open(struct sv_cuda *, struct sv_err *err)
{
    return sv_fail(err, SV_EDEVICE, -1, "quantized draft weights: not on AMD");
}
void sv_gemm_fp8(struct sv_cuda *, const void *, int64_t, int32_t, struct sv_gemm_args *)
{
    never();
}
bool sv_gemm_fp8_halves(struct sv_cuda *, const void *, int64_t, int32_t, struct sv_gemm_args *)
{
    return false;
}
bool sv_gemm_fp8_whole(struct sv_cuda *, const void *, int64_t, int32_t, struct sv_gemm_args *)
{
    return false;
}
int sv_gemm_w8a8_open(struct sv_cuda *, struct sv_err *)
{
    never();
    return SV_EDEVICE;
}
void sv_gemm_w8a8(struct sv_cuda *, const void *, int64_t, int32_t, struct sv_gemm_args *)
{
    never();
}
bool sv_gemm_w8a8_whole(struct sv_cuda *, const void *, int64_t, int32_t, struct sv_gemm_args *)
{
    return false;
}
int sv_gemm_beside_open(struct sv_err *)
{
    never();
    return SV_EDEVICE;
}
bool sv_gemm_beside(struct sv_cuda *, const void *, int64_t, int32_t, const struct sv_gemm_args *)
{
    return false;
}
int sv_gemm_wcomp_open(struct sv_cuda *, struct sv_err *)
{
    never();
    return SV_EDEVICE;
}
int32_t sv_gemm_wcomp_rows(const struct sv_cuda *)
{
    return 0;
}
bool sv_gemm_wcomp(struct sv_cuda *, const void *, int64_t, int32_t, struct sv_gemm_args *)
{
    return false;
}

#define NEVER(run)                                                                                 \
    int run##_open(struct sv_cuda *, struct sv_err *)                                              \
    {                                                                                              \
        never();                                                                                   \
        return SV_EDEVICE;                                                                         \
    }                                                                                              \
    void run(struct sv_cuda *, const void *, int64_t, int32_t, struct sv_gemm_args *)              \
    {                                                                                              \
        never();                                                                                   \
    }
NEVER(sv_gemm_codes)
NEVER(sv_gemm_codes4)
NEVER(sv_gemm_codes5)
NEVER(sv_gemm_codes6)
NEVER(sv_gemm_codes7)

#define NEVER_ONE(run)                                                                             \
    int run##_open(struct sv_err *)                                                                \
    {                                                                                              \
        never();                                                                                   \
        return SV_EDEVICE;                                                                         \
    }                                                                                              \
    bool run(struct sv_cuda *, const void *, int32_t, const struct sv_gemm_args *,                 \
             const struct sv_gemm_args *)                                                          \
    {                                                                                              \
        return false;                                                                              \
    }
NEVER_ONE(sv_gemm_one)
NEVER_ONE(sv_gemm_one4)
NEVER_ONE(sv_gemm_one12)
#define WITHOUT_ONE(run)                                                                           \
    int run##_open(struct sv_cuda *, struct sv_err *)                                              \
    {                                                                                              \
        return SV_OK;                                                                              \
    }                                                                                              \
    bool run(struct sv_cuda *, const void *, int32_t, const struct sv_gemm_args *)                 \
    {                                                                                              \
        return false;                                                                              \
    }
WITHOUT_ONE(sv_gemm_one_portable)
WITHOUT_ONE(sv_gemm_one4_portable)

bool sv_cuda_norm_route_sm90(struct sv_cuda *, const struct sv_p_router_topk *,
                             const struct route *)
{
    return false;
}
bool sv_moe_sm90_joined(struct sv_cuda *, const struct sv_moe *, const struct sv_moe_width *,
                        size_t)
{
    return false;
}
bool sv_moe_few(struct sv_cuda *, const struct sv_moe *, bool)
{
    return false;
}
int sv_moe_few_open(struct sv_err *)
{
    never();
    return SV_EDEVICE;
}
int sv_moe_sm90_joined_open(size_t, struct sv_err *)
{
    never();
    return SV_EDEVICE;
}
const struct sv_moe_width *sv_moe_sm90(enum sv_moe_form)
{
    never();
    return NULL;
}

/* ---------------------------------------------------------------- numbers of 8 bits */

void sv_cuda_fp8_pack(struct sv_cuda *, const void *, int32_t, int32_t, int32_t, int32_t, void *)
{
    never();
}
void sv_cuda_fp8_rows(struct sv_cuda *, const void *, int64_t, int32_t, int32_t, void *, float *)
{
    never();
}
void sv_cuda_fp8_group_rows(struct sv_cuda *, const void *, int64_t, int32_t, int32_t, void *,
                            float *, int32_t)
{
    never();
}
void sv_cuda_fp8_group_pack(struct sv_cuda *, const void *, const void *, int32_t, int32_t, int32_t,
                            int32_t, void *)
{
    never();
}
