/*
 * attention.cu - attention of the CUDA backend: which kernel, how large a grid, scratch memory, and the kernel
 * that puts partial results together.
 *
 * Entered through the table in device.cu. Launches depend on the counts in the params only; lengths are read on the
 * device, where every block works out the same plan of items (attention_core.cuh) and takes its share. Keys of
 * a query tile are cut among blocks when there are few tiles, at multiples fixed by attention.h; then the
 * combine kernel merges what they left, in the order in which one block alone would have. Must not: let the
 * plan reach into a bit of the result.
 */
#include "backend/cuda/attention_parts.cuh"

struct sv_cuda_attn_state {
    void *scratch;
    void *encode; /* the driver's cuTensorMapEncodeTiled */
    int32_t *plan_unit;
    float4 *run;
    float *part_o;
    float2 *part_ml;
    int32_t part_cap, max_segs;
};

enum {
    MAX_TILED_HEAD_DIM = 128,
    MAX_PARTS = 128 * 1024 /* partial results: 66 MiB at head size 128 */
};

/* ---------------------------------------------------------------- combine */

/* One warp for each (row, head). The main kernel lets this one start only when it has itself waited for all before it: what
 * they wrote (segments) may be read before our wait, what the main kernel writes may not. */
template <int HD> __global__ void __launch_bounds__(128) attn_combine(struct sv_attn_args a)
{
    const int64_t i = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
    const int32_t row = (int32_t)(i / a.p.n_heads), head = (int32_t)(i % a.p.n_heads);

    sv_pdl_launch();
    const int32_t s = row < a.p.rows.n_rows ? a.p.rows.row_seg[row] : -1;
    struct attn_seg g = {};
    if (s >= 0)
        g = attn_seg_at(a.p.rows, s);
    sv_pdl_wait();
    const int32_t unit = __ldcg(a.plan_unit);
    if (unit == SV_ATTN_WHOLE || g.n == 0)
        return;
    attn_fold<HD, 8>(a, unit, g, row - g.row0, head, threadIdx.x % 32);
}

/* ---------------------------------------------------------------- launches */

static bool aligned(const void *p, int64_t ld)
{
    return (uintptr_t)p % 16 == 0 && ld % 8 == 0;
}

/* Whether a kernel with matrix instructions can take it. Nothing here may depend on counts of rows. */
static bool find_tiled(const struct sv_cuda *cu, const struct sv_p_attention *p, int32_t n_warps,
                       struct sv_attn_launch *out)
{
    const struct sv_kv *kv = &p->kv;
    const int64_t units = (int64_t)kv->n_pages * kv->n_kv_heads * kv->page_size * (kv->head_dim / 8);
    if (kv->dtype != SV_BF16 || units >= 0xffffffffll)
        return false;
    if (!aligned(p->q, p->ldq) || !aligned(p->out, p->ldo) || !aligned(kv->k, 0) || !aligned(kv->v, 0))
        return false;
    /* The loads of the tuned set are boxes of a page: its rows must be whole swizzled groups of eight. */
    const bool boxes = kv->page_size >= 8 && (kv->page_size & (kv->page_size - 1)) == 0;
    return cu->set == SV_CUDA_SM90 && boxes ? sv_cuda_attn_sm90(kv->head_dim, n_warps, out)
                                            : sv_cuda_attn_portable(kv->head_dim, n_warps, out);
}

/* As many stages as fit beside one another; false when not even two do. */
static bool fit(const struct sv_cuda *cu, struct sv_attn_launch *k, int32_t n_segs, int32_t *n_stages,
                size_t *smem)
{
    const size_t beside = (size_t)k->fixed_bytes + attn_items_bytes(n_segs);
    for (;; k->blocks_per_sm--) {
        const size_t room = (cu->smem_block + 1024) / (size_t)k->blocks_per_sm - 1024;
        const int64_t n = room > beside ? (int64_t)((room - beside) / (size_t)k->stage_bytes) : 0;
        *n_stages = (int32_t)(n < k->max_stages ? n : k->max_stages);
        *smem = (size_t)*n_stages * (size_t)k->stage_bytes + beside;
        if (*n_stages >= 2 || k->blocks_per_sm == 1)
            return *n_stages >= 2;
    }
}

static struct sv_attn_args args_of(const struct sv_cuda *cu, const struct sv_p_attention *p)
{
    const struct sv_cuda_attn_state *st = cu->attn;
    struct sv_attn_args a = {};
    a.p = *p;
    a.group = p->n_heads / p->kv.n_kv_heads;
    a.scale_log2 = p->softcap > 0 ? 1.0f : p->scale * ATTN_LOG2E;
    a.page_shift = -1;
    for (int32_t i = 0; i < 31; i++)
        if (p->kv.page_size == 1 << i)
            a.page_shift = i;
    a.part_cap = st->part_cap;
    a.box_rows = p->kv.page_size < SV_ATTN_CHUNK ? p->kv.page_size : SV_ATTN_CHUNK;
    a.plan_unit = st->plan_unit;
    a.run = st->run;
    a.part_o = st->part_o;
    a.part_ml = st->part_ml;
    a.fault = cu->fault;
    return a;
}

void sv_cuda_attention_forced(struct sv_cuda *cu, const struct sv_p_attention *p,
                              const struct sv_attn_force *force)
{
    struct sv_attn_args a = args_of(cu, p);
    struct sv_attn_launch k = {};
    size_t smem;
    SV_REQUIRE(p->rows.n_segs > 0 && p->rows.n_segs <= cu->attn->max_segs);
    const int64_t queries = (int64_t)p->rows.n_rows * a.group;
    int32_t n_warps = force->n_warps;
    if (n_warps == 0)
        n_warps = queries > (int64_t)64 * p->rows.n_segs ? 8 : 4;
    if (force->plain || !find_tiled(cu, p, n_warps, &k)) {
        sv_cuda_attn_plain(cu, &a);
        return;
    }
    SV_REQUIRE(fit(cu, &k, p->rows.n_segs, &a.n_stages, &smem));
    int64_t n_blocks = (int64_t)cu->n_sms * k.blocks_per_sm;
    const int64_t tiles = (queries + k.tile_rows - 1) / k.tile_rows * p->kv.n_kv_heads;
    a.unit = tiles >= 2 * n_blocks ? SV_ATTN_WHOLE : SV_ATTN_AUTO;
    if (force->unit != SV_ATTN_AUTO)
        a.unit = force->unit;
    if (force->n_blocks > 0)
        n_blocks = force->n_blocks;
    if (k.maps && !sv_cuda_attn_maps(cu, cu->attn->encode, &a))
        return;
    sv_cuda_launch(cu, "attention", k.kernel, dim3((unsigned)n_blocks), dim3((unsigned)k.n_threads), smem, a);
    if (a.unit == SV_ATTN_WHOLE)
        return;
    const int64_t outputs = (int64_t)p->rows.n_rows * p->n_heads;
    sv_cuda_launch(cu, "attention (combine)", p->kv.head_dim == 128 ? attn_combine<128> : attn_combine<64>,
                   dim3((unsigned)((outputs + 3) / 4)), dim3(128), 0, a);
}

void sv_cuda_attention(struct sv_dev *dev, const struct sv_p_attention *p)
{
    const struct sv_attn_force force = {};
    sv_cuda_attention_forced(sv_cuda_of(dev), p, &force);
}

/* ---------------------------------------------------------------- scratch */

static size_t take(size_t *at, size_t n_bytes)
{
    const size_t here = *at;
    *at += (n_bytes + 255) / 256 * 256;
    return here;
}

int sv_cuda_attn_reserve(struct sv_cuda *cu, const struct sv_dev_limits *lim, struct sv_err *err)
{
    const int32_t hd = lim->max_head_dim < MAX_TILED_HEAD_DIM ? lim->max_head_dim : MAX_TILED_HEAD_DIM;
    const int64_t most = (int64_t)lim->max_rows * lim->max_heads * (lim->max_positions / SV_ATTN_CHUNK + 2);
    int rc;
    sv_cuda_attn_close(cu);
    struct sv_cuda_attn_state *st = (struct sv_cuda_attn_state *)sv_calloc(1, sizeof *st);
    if (!st)
        return sv_fail(err, SV_ENOMEM, -1, "attention: no memory for its state");
    cu->attn = st;
    st->part_cap = (int32_t)(most < (int64_t)MAX_PARTS ? most : (int64_t)MAX_PARTS);
    st->max_segs = lim->max_rows;
    size_t n = 0;
    const size_t plan_unit = take(&n, sizeof(int32_t));
    const size_t run = take(&n, (size_t)cu->n_sms * 256 * (size_t)(hd / 8 + 1) * sizeof(float4));
    const size_t part_ml = take(&n, (size_t)st->part_cap * sizeof(float2));
    const size_t part_o = take(&n, (size_t)st->part_cap * (size_t)hd * sizeof(float));
    if ((rc = sv_cuda_alloc((struct sv_dev *)(void *)cu, &st->scratch, n, err)) != SV_OK)
        return sv_err_prefix(err, "attention scratch");
    if (cu->cc == 90 && (rc = sv_cuda_attn_maps_open(&st->encode, err)) != SV_OK)
        return rc;
    uint8_t *base = (uint8_t *)st->scratch;
    st->plan_unit = (int32_t *)(void *)(base + plan_unit);
    st->run = (float4 *)(void *)(base + run);
    st->part_ml = (float2 *)(void *)(base + part_ml);
    st->part_o = (float *)(void *)(base + part_o);
    for (int32_t i = 0; i < (cu->cc == 90 ? 8 : 4); i++) {
        const int32_t hd_i = i % 2 ? 128 : 64, n_warps = i / 2 % 2 ? 8 : 4;
        struct sv_attn_launch k;
        if ((i < 4 ? sv_cuda_attn_portable(hd_i, n_warps, &k) : sv_cuda_attn_sm90(hd_i, n_warps, &k)) &&
            (rc = sv_cuda_try(cudaFuncSetAttribute((const void *)k.kernel,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   (int)cu->smem_block),
                              err, "attention: shared memory")) != SV_OK)
            return rc;
    }
    return SV_OK;
}

void sv_cuda_attn_close(struct sv_cuda *cu)
{
    if (!cu->attn)
        return;
    sv_cuda_free((struct sv_dev *)(void *)cu, cu->attn->scratch);
    sv_free(cu->attn);
    cu->attn = NULL;
}
