/*
 * context_kv.cu - draft_context_kv: the drafter's keys and values of committed rows, all layers at
 * once.
 *
 * Called through the table in device.cu. Both products and the norm run on every row of the batch:
 * only the device knows how many are committed, and a row's bits do not depend on other rows. One
 * kernel then writes all layers, a warp per head, without rows that were not committed. Must not:
 * write for rows from n_commit on.
 */
#include "backend/cuda/peers.h"
#include "backend/gpu/norm_rope.cuh"

enum { WARPS = 8, MAX_LAYERS = SV_GEMM_MAX_PARTS / 2 };

struct write_args {
    struct sv_rows rows;
    const int32_t *n_commit;
    int32_t n_layers;
    float eps;
    struct sv_rope_table rope;
    struct sv_kv kv; /* geometry; the rest by layer */
    struct sv_cuda_fault *fault;
    struct {
        void *k, *v;
        uint8_t *k_own, *v_own;
        float k_scale, v_scale;
        const int32_t *table;
        int32_t n_pages, table_stride;
        const float *norm;
    } layer[MAX_LAYERS];
};

template <typename T, typename K>
static __global__ void write_kernel(const __grid_constant__ struct write_args a, const T *y)
{
    __shared__ float buffer[WARPS][SV_MAX_HEAD_DIM];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t r = blockIdx.y, hd = a.kv.head_dim, n_kv = a.kv.n_kv_heads;
    const int32_t head = blockIdx.x * WARPS + warp; /* of all layers' keys and values, as in y */
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t seg = a.rows.row_seg[r];
    if (seg < 0 || head >= a.n_layers * 2 * n_kv)
        return;
    const int32_t slot = a.rows.seg_slot[seg], pos = a.rows.row_pos[r];
    if (slot < 0 || r - a.rows.seg_row0[seg] >= a.n_commit[seg])
        return;
    const int32_t l = head / (2 * n_kv), h = head % (2 * n_kv);
    const int64_t angle =
        (int64_t)sv_rope_row(&a.rope, pos, head == 0 && lane == 0 ? a.fault : NULL) *
        (a.rope.rot_dim / 2);
    struct sv_kv kv = a.kv;
    kv.k = a.layer[l].k;
    kv.v = a.layer[l].v;
    kv.k_own = a.layer[l].k_own;
    kv.v_own = a.layer[l].v_own;
    kv.k_scale = a.layer[l].k_scale;
    kv.v_scale = a.layer[l].v_scale;
    kv.table = a.layer[l].table;
    kv.n_pages = a.layer[l].n_pages;
    kv.table_stride = a.layer[l].table_stride;
    const int64_t at = sv_kv_at(kv, slot, pos);
    if (at < 0) {
        if (lane == 0)
            sv_fault_set(a.fault, SV_CUDA_FAULT_DRAFT_PAGE, slot, pos, 0);
        return;
    }
    const T *x = y + ((int64_t)r * a.n_layers * 2 * n_kv + head) * hd;
    const int64_t page_stride = (int64_t)kv.page_size * hd;
    if (h < n_kv) {
        const struct sv_head_norm norm = {a.layer[l].norm, a.eps};
        sv_head_norm_rope(sv_kv_row<K>(kv, false, at + h * page_stride), x, buffer[warp], norm,
                          a.rope, angle, hd, lane);
    } else {
        sv_head_copy(sv_kv_row<K>(kv, true, at + (h - n_kv) * page_stride), x, hd, lane);
    }
}

template <typename T>
static void write_launch(struct sv_cuda *cu, const struct sv_p_draft_context_kv *p)
{
    struct write_args a = {};
    a.rows = p->rows;
    a.n_commit = p->n_commit;
    a.n_layers = p->n_layers;
    a.eps = p->eps;
    a.rope = p->rope;
    a.kv = p->kv[0];
    a.fault = cu->fault;
    for (int32_t l = 0; l < p->n_layers; l++) {
        SV_REQUIRE(p->kv[l].page_size == p->kv[0].page_size);
        a.layer[l].k = p->kv[l].k;
        a.layer[l].v = p->kv[l].v;
        a.layer[l].k_own = p->kv[l].k_own;
        a.layer[l].v_own = p->kv[l].v_own;
        a.layer[l].k_scale = p->kv[l].k_scale;
        a.layer[l].v_scale = p->kv[l].v_scale;
        a.layer[l].table = p->kv[l].table;
        a.layer[l].n_pages = p->kv[l].n_pages;
        a.layer[l].table_stride = p->kv[l].table_stride;
        a.layer[l].norm = sv_cuda_norm_of(&p->k_norm[l]);
    }
    const int32_t heads = p->n_layers * 2 * p->kv[0].n_kv_heads;
    dim3 grid((unsigned)((heads + WARPS - 1) / WARPS), (unsigned)p->rows.n_rows);
    sv_cuda_launch(cu, "draft_context_kv",
                   p->kv[0].dtype == SV_F8     ? write_kernel<T, uint8_t>
                   : p->kv[0].dtype == SV_BF16 ? write_kernel<T, __nv_bfloat16>
                                               : write_kernel<T, float>,
                   grid, 32 * WARPS, 0, a, (const T *)p->y);
}

void sv_cuda_draft_context_kv(struct sv_dev *dev, const struct sv_p_draft_context_kv *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    SV_REQUIRE(p->n_layers <= MAX_LAYERS);
    if (p->rows.n_rows == 0) {
        sv_cuda_join_empty(cu, p->join);
        return;
    }
    const size_t first = (size_t)p->first_tap * (cu->act == SV_BF16 ? 2 : 4);
    struct sv_gemm_part fc = {p->fc, p->fc_bias};
    struct sv_p_gemm in = {};
    in.n_rows = p->rows.n_rows;
    in.k = p->fc.cols;
    in.n_parts = 1;
    in.x = (const uint8_t *)p->taps + first;
    in.ldx = p->n_taps ? p->n_taps : p->fc.cols;
    in.parts = &fc;
    in.y = p->z;
    in.ldy = p->fc.rows;
    cu->be->gemm(dev, &in);
    if (p->join)
        sv_cuda_join_sums(cu, p->join, p->z, NULL, NULL, p->rows.n_rows, p->fc.rows, p->z);
    struct sv_p_add_rms_norm norm = {};
    norm.n_rows = p->rows.n_rows;
    norm.d = p->fc.rows;
    norm.x = p->z;
    norm.weight = p->hidden_norm;
    norm.eps = p->eps;
    norm.out = p->z;
    norm.reader = &p->kv_parts[0].w;
    sv_cuda_add_rms_norm(dev, &norm);
    struct sv_p_gemm out = {};
    out.n_rows = p->rows.n_rows;
    out.k = p->fc.rows;
    out.n_parts = 2 * p->n_layers;
    out.x = p->z;
    out.ldx = p->fc.rows;
    out.parts = p->kv_parts;
    out.y = p->y;
    out.ldy = p->n_layers * 2 * p->kv[0].n_kv_heads * p->kv[0].head_dim;
    cu->be->gemm(dev, &out);
    if (cu->act == SV_BF16)
        write_launch<__nv_bfloat16>(cu, p);
    else
        write_launch<float>(cu, p);
}
