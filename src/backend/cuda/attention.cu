/*
 * attention.cu - attention of the CUDA backend: the choice of kernel and grid, scratch memory, and
 * the kernel that merges partial results.
 *
 * Called through the table in device.cu. Launches depend on the counts in the params only; lengths
 * are read on the device: a plan of items is made there once a pass, or by every block
 * (attention_core.cuh), which takes its share. Keys of a query tile are divided among blocks when
 * there are few tiles, at multiples fixed by attention.h; then the combine kernel merges their
 * partial results in the order in which one block would. Must not: let a bit of the result depend
 * on the plan.
 */
#include "backend/gpu/attention_parts.cuh"

enum {
    MAX_TILED_HEAD_DIM = 128, /* of partial results; wider heads have several */
    WIDE_HEAD_DIM = 256,
    MAX_PARTS = 128 * 1024, /* partial results: 66 MiB at head size 128 */
    N_PLANS = 2,            /* layers may take turns, with a window and without */
    MAX_ITEMS = 16 * 1024,  /* of one kv head */
    LATENT_PARTS = SV_ATTN_LATENT / SV_ATTN_LATENT_PART,
    COMBINE_PER_SM =
        3 /* blocks at most: the next product fills its ring only when all have started */
};

/* What a plan was made of. */
struct plan_key {
    uint64_t pass;
    struct sv_rows rows;
    int32_t mask, window, n_heads, n_kv_heads, unit, n_blocks, tile_rows;
};
struct plan_slot {
    struct plan_key key;
    struct sv_attn_plan *plan;
};

struct sv_cuda_attn_state {
    void *scratch;
    void *encode; /* the driver's cuTensorMapEncodeTiled */
    struct plan_slot slot[N_PLANS];
    int32_t next_slot;
    int32_t *plan_unit;
    float4 *run;
    float *part_o;
    float2 *part_ml;
    int32_t part_cap, max_segs, max_items;
};

/* ---------------------------------------------------------------- the plan of a pass */

/* One block. Items are the same for all layers of a pass, and to work them out takes longer than a
 * chunk of keys. */
static __global__ void __launch_bounds__(256)
    attn_make_plan(const __grid_constant__ struct sv_attn_args a, struct sv_attn_plan *out)
{
    GPU_SHARED(shared);
    struct attn_items *const plan = (struct attn_items *)shared;
    sv_pdl_launch();
    sv_pdl_wait();
    if (threadIdx.x < 32)
        attn_plan_items(a, a.tile_rows, plan);
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < plan->n_items; i += (int32_t)blockDim.x) {
        const struct attn_item it = attn_item_at(a, plan, a.tile_rows, i * a.p.kv.n_kv_heads);
        out->entry[i] = {it.g.slot, it.g.row0, it.g.n,     it.g.base,
                         it.q0,     it.part,   it.seen_lo, it.seen_hi};
    }
    if (threadIdx.x == 0) {
        out->unit = plan->unit;
        out->n_items = plan->n_items;
        out->long_walk = plan->long_walk;
    }
}

static bool same_plan(const struct plan_key *a, const struct plan_key *b)
{
    return a->pass == b->pass && a->rows.n_rows == b->rows.n_rows &&
           a->rows.n_segs == b->rows.n_segs && a->rows.row_seg == b->rows.row_seg &&
           a->rows.seg_row0 == b->rows.seg_row0 && a->rows.seg_slot == b->rows.seg_slot &&
           a->rows.seg_base == b->rows.seg_base && a->rows.row_pos == b->rows.row_pos &&
           a->mask == b->mask && a->window == b->window && a->n_heads == b->n_heads &&
           a->n_kv_heads == b->n_kv_heads && a->unit == b->unit && a->n_blocks == b->n_blocks &&
           a->tile_rows == b->tile_rows;
}

/* While segments are settled a plan is made at the first layer and read by the others before they
 * wait for the previous launch. A launch whose plan was just made must wait before reading it and
 * before letting the next launch start: then that one may read it early (a.early). needed: the plan
 * is made in any case, as blocks have no memory to compute it. */
static void find_plan(struct sv_cuda *cu, struct sv_attn_args *a, bool needed)
{
    struct sv_cuda_attn_state *st = cu->attn;
    const struct sv_rows *rows = &a->p.rows;
    const struct plan_key key = {cu->pass,    *rows,        (int32_t)a->p.mask,
                                 a->p.window, a->p.n_heads, a->p.kv.n_kv_heads,
                                 a->unit,     a->n_blocks,  a->tile_rows};
    const int64_t tiles = (int64_t)rows->n_rows * a->group / a->tile_rows + rows->n_segs;
    const int64_t parts =
        a->unit == SV_ATTN_WHOLE ? 1 : a->part_cap / ((int64_t)rows->n_rows * a->p.n_heads);
    const size_t smem = attn_items_bytes(rows->n_segs);
    a->early = cu->settled;
    a->plan = NULL;
    const bool fits = tiles * (parts > 1 ? parts : 1) <= st->max_items && smem <= cu->smem_block;
    if (!fits || !(cu->settled || needed))
        return;
    for (int32_t i = 0; i < N_PLANS && cu->settled; i++)
        if (same_plan(&st->slot[i].key, &key)) {
            a->plan = st->slot[i].plan;
            return;
        }
    struct plan_slot *slot = &st->slot[st->next_slot];
    st->next_slot = (st->next_slot + 1) % N_PLANS;
    slot->key = cu->settled ? key : plan_key();
    sv_cuda_launch_in_pass(cu, "attention (plan)", attn_make_plan, dim3(1), dim3(256), smem, *a,
                           slot->plan);
    a->plan = slot->plan;
    a->early = false;
}

/* ---------------------------------------------------------------- combine */

/* One warp for each (row, head). The main kernel lets this one start only when it has itself waited
 * for all before it, or when segments are settled: they may be read before our wait, and so may the
 * plan, what the main kernel writes may not. With nothing to put together all but one leave without
 * a wait. */
template <int HD>
__global__ void __launch_bounds__(256, 2)
    attn_combine(const __grid_constant__ struct sv_attn_args a)
{
    const int32_t n = a.p.rows.n_rows * a.p.n_heads;
    int32_t i = (int32_t)(blockIdx.x * 8 + threadIdx.x / 32), unit = SV_ATTN_AUTO;

    sv_pdl_launch();
    if (a.plan != NULL) {
        unit = __ldcg(&a.plan->unit);
        if (unit == SV_ATTN_WHOLE && blockIdx.x > 0)
            return;
    }
    for (bool waited = false;; waited = true) {
        const int32_t row = attn_div(i, a.by_heads), head = i - row * a.p.n_heads,
                      s = i < n ? a.p.rows.row_seg[row] : -1,
                      pos = i < n ? a.p.rows.row_pos[row] : 0;
        struct attn_seg g = {};
        if (s >= 0)
            g = attn_seg_at(a.p, s);
        if (!waited) {
            sv_pdl_wait();
            if (a.plan == NULL)
                unit = __ldcg(a.plan_unit);
        }
        if (unit == SV_ATTN_WHOLE || i >= n)
            return;
        if (g.n > 0)
            attn_fold<HD, 8>(a, unit, g, row, pos, head, threadIdx.x % 32);
        i += (int32_t)gridDim.x * 8;
    }
}

/* ---------------------------------------------------------------- launches */

static bool aligned(const void *p, int64_t ld)
{
    return (uintptr_t)p % 16 == 0 && ld % 8 == 0;
}

/* Whether a kernel with matrix instructions can take it. Nothing here may depend on counts of
 * rows. */
static bool takes_tiles(const struct sv_cuda *cu, const struct sv_p_attention *p)
{
    const struct sv_kv *kv = &p->kv;
    const int64_t units =
        (int64_t)kv->n_pages * kv->n_kv_heads * kv->page_size * (kv->head_dim / 8);
    if (cu->act != SV_BF16 || kv->dtype == SV_F32 || units >= 0xffffffffll ||
        (kv->head_dim == WIDE_HEAD_DIM ? p->q_stride % 8
                                       : p->q_stride && p->q_stride != kv->head_dim))
        return false;
    return aligned(p->q, p->ldq) && aligned(p->out, p->ldo) && aligned(kv->k, 0) &&
           aligned(kv->v, 0);
}

/* The loads of the tuned set are boxes of a page: its rows must be whole swizzled groups of
 * eight. */
static bool takes_boxes(const struct sv_cuda *cu, const struct sv_p_attention *p)
{
    const int32_t page = p->kv.page_size;
    return takes_tiles(cu, p) && p->kv.dtype == SV_BF16 && page >= 8 && (page & (page - 1)) == 0;
}

static bool find_tiled(const struct sv_cuda *cu, const struct sv_p_attention *p, int32_t n_warps,
                       struct sv_attn_launch *out)
{
    const int32_t hd = p->kv.head_dim;
    const bool f8 = p->kv.dtype == SV_F8;
    if (!takes_tiles(cu, p))
        return false;
    const bool wide = hd == WIDE_HEAD_DIM,
               tuned = cu->set == SV_CUDA_SM90 && (f8 ? !wide : takes_boxes(cu, p));
    if (wide && p->sinks.data) /* a sink belongs to a whole head */
        return false;
    return (tuned ? sv_cuda_attn_sm90 : sv_cuda_attn_portable)(hd, n_warps, f8, out) &&
           (!wide || (size_t)(out->fixed_bytes + 2 * out->stage_bytes) + attn_items_bytes(0) <=
                         cu->smem_block); /* two stages must fit */
}

/* As many stages as fit beside one another; false when not even two do. */
static bool fit(const struct sv_cuda *cu, struct sv_attn_launch *k, int32_t n_segs,
                struct sv_attn_args *a, size_t *smem)
{
    const size_t beside = (size_t)k->fixed_bytes + attn_items_bytes(n_segs);
    for (;; k->blocks_per_sm--) {
        const size_t room = (cu->smem_block + 1024) / (size_t)k->blocks_per_sm - 1024;
        const int32_t ring = room > beside ? (int32_t)(room - beside) : 0, stage = k->stage_bytes;
        const int32_t n = ring / stage, left = (ring - k->run_bytes) / stage;
        a->n_stages = n < k->max_stages ? n : k->max_stages;
        a->n_stages_run = left < k->max_stages ? left : k->max_stages;
        const int32_t with_run = a->n_stages_run * stage + k->run_bytes;
        a->ring_bytes = a->n_stages * stage > with_run ? a->n_stages * stage : with_run;
        *smem = (size_t)a->ring_bytes + beside;
        if (a->n_stages_run >= 2 || k->blocks_per_sm == 1)
            return a->n_stages_run >= 2;
    }
}

static struct sv_attn_args args_of(const struct sv_cuda *cu, const struct sv_p_attention *p)
{
    const struct sv_cuda_attn_state *st = cu->attn;
    struct sv_attn_args a = {};
    a.p = *p;
    a.group = p->n_heads / p->kv.n_kv_heads;
    a.by_group = attn_magic(a.group);
    a.by_kv = attn_magic(p->kv.n_kv_heads);
    a.by_heads = attn_magic(p->n_heads);
    a.scale_log2 = p->softcap > 0 ? 1.0f : p->scale * ATTN_LOG2E;
    a.page_shift = -1;
    for (int32_t i = 0; i < 31; i++)
        if (p->kv.page_size == 1 << i)
            a.page_shift = i;
    a.part_cap = st->part_cap;
    a.box_rows = p->kv.page_size < SV_ATTN_TILE ? p->kv.page_size : SV_ATTN_TILE;
    a.plan_unit = st->plan_unit;
    a.run = st->run;
    a.part_o = st->part_o;
    a.part_ml = st->part_ml;
    a.fault = cu->fault;
    return a;
}

/* Few sequences with few rows: one launch of clusters; false: other kernels take it. A segment's
 * rows are not known here, and are at most the pass's. Before experts, and with one row, whose
 * output product has few registers (gemm_one_sm90.cu), shared memory is left for thread blocks of
 * the next launch, which fetch weights meanwhile. */
static bool few_launch(struct sv_cuda *cu, const struct sv_p_attention *p, struct sv_attn_args a,
                       const struct sv_attn_force *force)
{
    struct sv_attn_launch k = {};
    size_t smem;
    const int32_t n_clusters = p->rows.n_segs * p->kv.n_kv_heads,
                  n_queries = p->rows.n_rows * a.group;
    if (cu->set != SV_CUDA_SM90 || p->softcap > 0 || (n_clusters > 16 && force->few == 0) ||
        !takes_boxes(cu, p) ||
        !sv_cuda_attn_few(p->kv.head_dim, n_queries, cu->lim.max_experts > 0 || p->rows.n_rows == 1,
                          &a, &k) ||
        !fit(cu, &k, 0, &a, &smem))
        return false;
    a.unit = force->unit;
    a.early = cu->settled;
    if (!sv_cuda_attn_maps(cu, cu->attn->encode, &a))
        return true; /* the error is latched */
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[2] = {};
    config.gridDim = dim3((unsigned)n_clusters * SV_ATTN_CLUSTER);
    config.blockDim = dim3((unsigned)k.n_threads);
    config.dynamicSmemBytes = smem;
    config.stream = cu->stream;
    config.attrs = attr;
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim.x = SV_ATTN_CLUSTER;
    attr[0].val.clusterDim.y = attr[0].val.clusterDim.z = 1;
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = cu->pdl ? 2 : 1;
    cu->bytes_of = NULL;
    sv_cuda_check(cu, cudaLaunchKernelEx(&config, k.kernel, a), "attention of few rows");
    return true;
}

static void combine(struct sv_cuda *cu, const struct sv_attn_args &a, int32_t head_dim)
{
    const int64_t n = ((int64_t)a.p.rows.n_rows * a.p.n_heads + 7) / 8,
                  most = COMBINE_PER_SM * (int64_t)cu->n_sms;
    sv_cuda_launch_in_pass(cu, "attention (combine)",
                           head_dim == 128 ? attn_combine<128> : attn_combine<64>,
                           dim3((unsigned)(n < most ? n : most)), dim3(256), 0, a);
}

/* Latents, where a kernel with matrix instructions takes them: a matter of the model and the
 * device. False where none does. */
static bool latent_launch(struct sv_cuda *cu, const struct sv_p_attention *p, struct sv_attn_args a,
                          const struct sv_attn_force *force)
{
    struct sv_attn_launch k = {};
    const bool f8 = p->kv.dtype == SV_F8;
    if (!takes_tiles(cu, p) || p->kv.head_dim != SV_ATTN_LATENT_WIDTH ||
        p->v_dim != SV_ATTN_LATENT || p->softcap > 0 || p->sinks.data)
        return false;
    if (cu->set == SV_CUDA_SM90 && (f8 || takes_boxes(cu, p)))
        sv_cuda_attn_latent_sm90(f8, &k);
    else
        sv_cuda_attn_latent(f8, &k);
    if ((size_t)(k.fixed_bytes + k.stage_bytes) > cu->smem_block)
        return false;
    const int32_t most = ((int32_t)cu->smem_block - k.fixed_bytes) / k.stage_bytes;
    const int64_t queries = (int64_t)p->rows.n_rows * a.group,
                  even_tiles = (queries + k.tile_rows - 1) / k.tile_rows,
                  tiles = even_tiles > p->rows.n_segs ? even_tiles : p->rows.n_segs;
    a.n_stages = most < k.max_stages ? most : k.max_stages;
    a.tile_rows = k.tile_rows;
    a.n_blocks = force->n_blocks > 0 ? force->n_blocks : cu->n_sms;
    a.part_cap /= LATENT_PARTS;
    a.unit = tiles >= 2 * (int64_t)a.n_blocks ? SV_ATTN_WHOLE : SV_ATTN_BY_SPAN;
    if (force->unit == SV_ATTN_BY_SPAN || force->unit == SV_ATTN_WHOLE)
        a.unit = force->unit;
    const int64_t parts = a.part_cap / ((int64_t)p->rows.n_rows * p->n_heads);
    if ((even_tiles + p->rows.n_segs) * parts > cu->attn->max_items)
        a.unit = SV_ATTN_WHOLE;
    find_plan(cu, &a, true);
    SV_REQUIRE(a.plan);
    if (k.maps && !sv_cuda_attn_maps(cu, cu->attn->encode, &a))
        return true; /* the error is latched */
    sv_cuda_launch_in_pass(cu, "attention (latents)", k.kernel, dim3((unsigned)a.n_blocks),
                           dim3((unsigned)k.n_threads),
                           (size_t)(k.fixed_bytes + a.n_stages * k.stage_bytes), a);
    if (a.unit == SV_ATTN_WHOLE)
        return true;
    a.p.n_heads *= LATENT_PARTS; /* of SV_ATTN_LATENT_PART columns each */
    a.by_heads = attn_magic(a.p.n_heads);
    combine(cu, a, SV_ATTN_LATENT_PART);
    return true;
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
    if (p->v_dim) {
        if (force->plain || !latent_launch(cu, p, a, force))
            sv_cuda_attn_plain(cu, &a);
        return;
    }
    if (force->few >= 0 && !force->plain && few_launch(cu, p, a, force))
        return;
    if (n_warps == 0)
        n_warps = queries > (int64_t)64 * p->rows.n_segs ? 8 : 4;
    if (force->plain || !find_tiled(cu, p, n_warps, &k)) {
        sv_cuda_attn_plain(cu, &a);
        return;
    }
    /* At least so many tiles, whatever the sequences' numbers of rows. */
    const int64_t even_tiles = (queries + k.tile_rows - 1) / k.tile_rows;
    const int64_t tiles =
        (even_tiles > p->rows.n_segs ? even_tiles : p->rows.n_segs) * p->kv.n_kv_heads;
    const int64_t places = (int64_t)cu->n_sms * k.blocks_per_sm;
    a.unit = tiles >= 2 * places ? SV_ATTN_WHOLE : SV_ATTN_AUTO;
    if (force->unit != SV_ATTN_AUTO)
        a.unit = force->unit;
    a.tile_rows = k.tile_rows;
    const bool wide = k.parts > 1; /* its blocks have no room for a plan of their own */
    if (wide) {
        a.part_cap /= k.parts;
        const int64_t parts = a.part_cap / ((int64_t)p->rows.n_rows * p->n_heads);
        if ((even_tiles + p->rows.n_segs) * parts > cu->attn->max_items)
            a.unit = SV_ATTN_WHOLE;
    }
    SV_REQUIRE(fit(cu, &k, wide ? 0 : p->rows.n_segs, &a, &smem));
    a.n_blocks = force->n_blocks > 0 ? force->n_blocks : cu->n_sms * k.blocks_per_sm;
    find_plan(cu, &a, wide);
    SV_REQUIRE(a.plan || !wide);
    SV_REQUIRE(a.plan == NULL ||
               fit(cu, &k, 0, &a, &smem)); /* each block's own plan needs no room */
    if (k.maps && !sv_cuda_attn_maps(cu, cu->attn->encode, &a))
        return;
    sv_cuda_launch_in_pass(cu, "attention", k.kernel, dim3((unsigned)a.n_blocks),
                           dim3((unsigned)k.n_threads), smem, a);
    if (a.unit == SV_ATTN_WHOLE)
        return;
    if (wide) {
        a.p.n_heads *= k.parts;
        a.by_heads = attn_magic(a.p.n_heads);
    }
    combine(cu, a, wide ? p->kv.head_dim / k.parts : p->kv.head_dim);
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

/* How many of n_segs sequences fit: into a plan made beforehand, where a kernel's waves divide the
 * columns, or else into shared memory beside two stages. */
static int32_t segs_that_fit(const struct sv_cuda *cu, const struct sv_attn_launch *k,
                             int32_t n_segs)
{
    const int32_t others = k->parts > 1 ? 0 : k->fixed_bytes + 2 * k->stage_bytes + k->run_bytes;
    while (n_segs > 0 && (size_t)others + attn_items_bytes(n_segs) > cu->smem_block)
        n_segs--;
    return n_segs;
}

int sv_cuda_attn_reserve(struct sv_cuda *cu, const struct sv_dev_limits *lim, struct sv_err *err)
{
    const int32_t hd =
        lim->max_head_dim < MAX_TILED_HEAD_DIM ? lim->max_head_dim : MAX_TILED_HEAD_DIM;
    const int64_t most =
        (int64_t)lim->max_rows * lim->max_heads * (lim->max_positions / SV_ATTN_CHUNK + 2);
    int rc;
    sv_cuda_attn_close(cu);
    struct sv_cuda_attn_state *st = (struct sv_cuda_attn_state *)sv_calloc(1, sizeof *st);
    if (!st)
        return sv_fail(err, SV_ENOMEM, -1, "attention: no memory for its state");
    cu->attn = st;
    /* A latent's value comes in several parts, and many heads share a tile. */
    const int32_t by = lim->by_head ? (int32_t)LATENT_PARTS : 1;
    const int64_t items = ((int64_t)lim->max_rows * lim->max_heads / 64 + lim->max_rows) * (by > 1);
    st->part_cap = (int32_t)(most < (int64_t)MAX_PARTS * by ? most : (int64_t)MAX_PARTS * by);
    st->max_segs = lim->max_rows;
    st->max_items = (int32_t)(items > (int64_t)MAX_ITEMS ? items : (int64_t)MAX_ITEMS);
    size_t n = 0;
    const size_t plan_unit = take(&n, sizeof(int32_t));
    const size_t plan_bytes =
        sizeof(struct sv_attn_plan) + (size_t)st->max_items * sizeof(struct sv_attn_entry);
    size_t plan[N_PLANS];
    for (int32_t i = 0; i < N_PLANS; i++)
        plan[i] = take(&n, plan_bytes);
    const size_t run = take(&n, (size_t)cu->n_sms * 8 * GPU_WAVE * (size_t)(hd / GPU_COLS + 1) *
                                    sizeof(float4) * (by > 1 ? 2 : 1));
    const size_t part_ml = take(&n, (size_t)st->part_cap * sizeof(float2));
    const size_t part_o = take(&n, (size_t)st->part_cap * (size_t)hd * sizeof(float));
    if ((rc = sv_cuda_alloc((struct sv_dev *)(void *)cu, &st->scratch, n, err)) != SV_OK)
        return sv_err_prefix(err, "attention scratch");
    if (cu->cc == 90 && (rc = sv_cuda_attn_maps_open(&st->encode, err)) != SV_OK)
        return rc;
    uint8_t *base = (uint8_t *)st->scratch;
    st->plan_unit = (int32_t *)(void *)(base + plan_unit);
    for (int32_t i = 0; i < N_PLANS; i++)
        st->slot[i].plan = (struct sv_attn_plan *)(void *)(base + plan[i]);
    st->run = (float4 *)(void *)(base + run);
    st->part_ml = (float2 *)(void *)(base + part_ml);
    st->part_o = (float *)(void *)(base + part_o);
    for (int32_t i = 0; i < (by == 1 ? 0 : cu->cc == 90 ? 4 : 2); i++) {
        struct sv_attn_launch k;
        (i / 2 ? sv_cuda_attn_latent_sm90 : sv_cuda_attn_latent)(i % 2, &k);
        if ((rc = sv_cuda_try(cudaFuncSetAttribute((const void *)k.kernel,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   (int)cu->smem_block),
                              err, "attention: shared memory")) != SV_OK)
            return rc;
    }
    /* Of each size the kernels of both sets, of codes and of bf16. */
    int32_t n_segs = lim->max_segs;
    for (int32_t i = 0; i < (cu->cc == 90 ? 34 : 16); i++) {
        const int32_t hd_i = i % 4 == 0   ? WIDE_HEAD_DIM
                             : i % 4 == 1 ? 128
                                          : 64,
                      n_warps = i / 4 % 2 ? 8 : 4;
        const bool f8 = i / 8 % 2;
        struct sv_attn_launch k;
        struct sv_attn_args few;
        if (!(i < 16   ? sv_cuda_attn_portable(hd_i, n_warps, f8, &k)
              : i < 32 ? sv_cuda_attn_sm90(hd_i, n_warps, f8, &k)
                       : sv_cuda_attn_few(i % 2 ? 128 : 64, 1, false, &few, &k)))
            continue;
        if ((rc = sv_cuda_try(cudaFuncSetAttribute((const void *)k.kernel,
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   (int)cu->smem_block),
                              err, "attention: shared memory")) != SV_OK)
            return rc;
        if (cu->act == SV_BF16 && i < 32 && hd_i <= lim->max_head_dim)
            n_segs = segs_that_fit(cu, &k, n_segs);
    }
    if (n_segs < lim->max_segs)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%d sequences at a time: attention takes at most %d in the %d KiB of shared "
                       "memory of %s",
                       lim->max_segs, n_segs, (int)(cu->smem_block / 1024), cu->text);
    return sv_cuda_try(cudaFuncSetAttribute((const void *)attn_make_plan,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)cu->smem_block),
                       err, "attention: shared memory");
}

void sv_cuda_attn_close(struct sv_cuda *cu)
{
    if (!cu->attn)
        return;
    sv_cuda_free((struct sv_dev *)(void *)cu, cu->attn->scratch);
    sv_free(cu->attn);
    cu->attn = NULL;
}
