/*
 * moe.cu - the matrix products of a mixture of experts: which kernel a launch takes, the portable
 * ones of moe.cuh, and a plain one for f32 and for weights that are no packed bf16.
 *
 * Called through the table of ops; open: by device.cu. Must not: look at routes on the host.
 */
#include "backend/gpu/moe_sums.cuh"

#include "backend/gpu/moe_codes.cuh"

enum { PLAIN_WARPS = 8 };

/* ---------------------------------------------------------------- any weights */

/* A row of an expert's matrix times a row of x, over the warp: lane l adds columns l, l + 32, ...
 */
template <typename T>
static __device__ float dot(const struct sv_moe &a, const struct sv_moe_matrices &m, int32_t expert,
                            int32_t row, const T *x)
{
    const uint8_t *w = sv_moe_matrix(m, expert);
    float sum = 0.0f;
    for (int32_t c = threadIdx.x & 31; c < a.k; c += 32) {
        const int64_t at = a.packed ? (int64_t)sv_packed_at(row, c, a.k) : (int64_t)row * a.k + c;
        sum = fmaf(sv_weight_at(w, a.w_dtype, at), sv_load(x + c), sum);
    }
    return sv_warp_sum(sum) + bias_of(m, (int64_t)expert * a.rows + row);
}

template <typename T, bool GATED> static __global__ void plain_kernel(const struct sv_moe a)
{
    sv_pdl_wait();
    sv_pdl_launch(); /* routes are complete */
    const int32_t row = (int32_t)blockIdx.x * PLAIN_WARPS + threadIdx.x / 32;
    if ((int32_t)blockIdx.y >= *a.r.n_active || row >= a.rows)
        return;
    const int32_t expert = a.r.active[blockIdx.y], end = a.r.first[expert + 1];
    for (int32_t place = a.r.first[expert]; place < end; place++) {
        const T *x = (const T *)a.x + (int64_t)source_row(a, place) * a.k;
        const int64_t at = (int64_t)place * a.rows + row;
        const float v = dot(a, a.gate, expert, row, x);
        const float u = GATED ? dot(a, a.up, expert, row, x) : 0.0f;
        if ((threadIdx.x & 31) != 0)
            continue;
        if (GATED)
            sv_store((T *)a.out + at, activated(a, v, u));
        else
            ((float *)a.out)[at] = v;
    }
}

/* ---------------------------------------------------------------- host */

#define CODED_WIDTHS(FORM)                                                                         \
    {                                                                                              \
        coded_width_of<FORM, 8, 1>(), coded_width_of<FORM, 16, 1>(),                               \
            coded_width_of<FORM, 32, 1>(), coded_width_of<FORM, 64, 1>(),                          \
            coded_width_of<FORM, 128, 1>()                                                         \
    }

static const struct sv_moe_width portable[SV_MOE_FORMS][SV_MOE_WIDTHS] = {
    {width_of<8, 1>(), width_of<16, 1>(), width_of<32, 1>(), width_of<64, 1>(), width_of<128, 1>()},
    CODED_WIDTHS(SV_MOE_MXFP4),
    CODED_WIDTHS(SV_MOE_CODES8),
    CODED_WIDTHS(SV_MOE_CODES4)};

static const struct sv_moe_width *widths_of(const struct sv_cuda *cu, enum sv_moe_form form)
{
    return cu->set == SV_CUDA_SM90 ? sv_moe_sm90(form) : portable[form];
}

/* Dynamic shared memory of a thread block, at most: kernels have a little of their own. */
static size_t shared_most(const struct sv_cuda *cu)
{
    return cu->smem_block - 2048;
}

static size_t shared_bytes(const struct sv_moe_width *w, int32_t k)
{
    return (size_t)w->bytes + (size_t)w->tile_bytes * (size_t)sv_tiles(k);
}

int sv_cuda_moe_open(struct sv_cuda *cu, struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < 2 * SV_MOE_WIDTHS * SV_MOE_FORMS && !rc; i++) {
        const enum sv_moe_form form = (enum sv_moe_form)(i / (2 * SV_MOE_WIDTHS));
        const struct sv_moe_width *w = widths_of(cu, form) + i / 2 % SV_MOE_WIDTHS;
        if (shared_bytes(w, 1) <= shared_most(cu))
            rc = sv_cuda_try(cudaFuncSetAttribute((const void *)w->fn[i % 2],
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  w->tile_bytes ? (int)shared_most(cu) : w->bytes),
                             err, "shared memory of an expert's product");
    }
    if (!rc && cu->set == SV_CUDA_SM90)
        rc = sv_moe_sm90_joined_open(shared_most(cu), err);
    if (!rc && cu->set == SV_CUDA_SM90)
        rc = sv_moe_few_open(err);
    return rc;
}

/* Entries at a time: twice what an expert usually has, and at least 32 where there are more rows,
 * since weights are read once more for what does not fit; at least 16 of codes of 8 bits. */
static const struct sv_moe_width *width_for(const struct sv_cuda *cu, const struct sv_moe *a)
{
    const struct sv_routes *r = &a->r;
    const int64_t most = (int64_t)r->n_rows, usual = 2 * most * r->k / r->n_experts;
    const int64_t least = a->form == SV_MOE_CODES8 && most <= 32 ? 16 : 32;
    const struct sv_moe_width *widths = widths_of(cu, a->form), *w = widths;
    for (const struct sv_moe_width *next = w + 1; next < widths + SV_MOE_WIDTHS; next++) {
        const bool enough = w->n >= most || w->n >= (usual > least ? usual : least);
        if (shared_bytes(next, a->k) <= shared_most(cu) &&
            (!enough || shared_bytes(w, a->k) > shared_most(cu)))
            w = next;
    }
    return w;
}

static enum sv_moe_form form_of(const struct sv_weight *w)
{
    if (w->fmt.elem <= SV_F16)
        return SV_MOE_BF16;
    return sv_cuda_is_mxfp4(w)         ? SV_MOE_MXFP4
           : sv_cuda_code_bits(w) == 8 ? SV_MOE_CODES8
                                       : SV_MOE_CODES4;
}

static struct sv_moe_matrices matrices_of(const struct sv_experts *x)
{
    struct sv_moe_matrices m = {};
    m.w = (const uint8_t *)x->w[0].data;
    m.n = x->n;
    m.shared = x->shared ? (const uint8_t *)x->shared->data : NULL;
    m.bias = x->bias.data;
    m.stride = x->n > 1 ? (const uint8_t *)x->w[1].data - m.w : 0;
    m.bias_dtype = x->bias.fmt.elem;
    m.code = sv_cuda_code_of(&x->w[0]);
    m.shared_code = x->shared ? sv_cuda_code_of(x->shared) : m.code;
    return m;
}

/* Whether it has added up as well. */
static bool run(struct sv_cuda *cu, const char *what, struct sv_moe *a, const struct sv_experts *x,
                bool gated)
{
    const int64_t entries = (int64_t)a->r.n_rows * a->r.k;
    const int64_t most = x->n + a->r.shared;
    const unsigned experts = (unsigned)(entries < most ? entries : most);
    a->r.own.n = (int32_t)most;
    a->rows = x->rows;
    a->k = x->cols;
    a->w_dtype = x->w[0].fmt.elem;
    a->packed = sv_cuda_is_packed(&x->w[0]);
    a->form = form_of(&x->w[0]);
    SV_REQUIRE(a->form == SV_MOE_BF16 || cu->act == SV_BF16);
    if (a->form != SV_MOE_BF16 || (cu->act == SV_BF16 && a->packed && a->k % 8 == 0)) {
        if (cu->set == SV_CUDA_SM90 && a->form == SV_MOE_BF16 && sv_moe_few(cu, a, gated))
            return !gated;
        const struct sv_moe_width *w = width_for(cu, a);
        if (a->joined && cu->set == SV_CUDA_SM90 &&
            sv_moe_sm90_joined(cu, a, w, shared_bytes(w, a->k)))
            return true;
        const int32_t each = w->groups * (gated ? SV_TILE / 2 : SV_TILE);
        /* An expert's last unit may be half empty. */
        const unsigned units = experts + (a->r.n_rows > w->n ? (unsigned)(entries / w->n) : 0);
        sv_cuda_launch_in_pass(cu, what, w->fn[gated],
                               dim3((unsigned)((a->rows + each - 1) / each), units),
                               dim3((unsigned)w->threads), shared_bytes(w, a->k), *a);
        return false;
    }
    void (*const fn)(const struct sv_moe) =
        cu->act == SV_F32
            ? (gated ? plain_kernel<float, true> : plain_kernel<float, false>)
            : (gated ? plain_kernel<__nv_bfloat16, true> : plain_kernel<__nv_bfloat16, false>);
    sv_cuda_launch_in_pass(cu, what, fn,
                           dim3((unsigned)((a->rows + PLAIN_WARPS - 1) / PLAIN_WARPS), experts),
                           dim3(PLAIN_WARPS * 32), 0, *a);
    return false;
}

void sv_cuda_moe_gate_up(struct sv_dev *dev, const struct sv_p_moe_gate_up *p)
{
    struct sv_moe a = {};
    a.x = p->x;
    a.gate = matrices_of(&p->gate);
    a.up = matrices_of(&p->up);
    a.act = p->act;
    a.limit = p->limit;
    a.alpha = p->alpha;
    a.r = p->routes;
    a.out = p->out;
    run(sv_cuda_of(dev), "gate and up of experts", &a, &p->gate, true);
}

void sv_cuda_moe_down(struct sv_dev *dev, const struct sv_p_moe_down *p)
{
    struct sv_moe a = {};
    a.x = p->x;
    a.gate = a.up = matrices_of(&p->down);
    a.by_place = true;
    a.r = p->routes;
    a.out = p->out;
    if (p->then && sv_cuda_of(dev)->act == SV_BF16) {
        a.joined = p->then->out;
        a.next = p->then->push;
    }
    if (!run(sv_cuda_of(dev), "down of experts", &a, &p->down, false) && p->then)
        sv_cuda_moe_combine(dev, p->then);
}
