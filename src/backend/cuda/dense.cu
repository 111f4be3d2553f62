/*
 * dense.cu - makes dense weights (dense.cuh) of packed ones, on the device: counts exponents, chooses the base that
 * leaves out the fewest numbers, encodes. Keeps which weight has a dense copy.
 *
 * upload.cu notes every packed matrix; reserve, which comes when all weights are loaded and what memory is left is
 * known, makes the copies, or none; gemm.cu looks them up. Must not: run in the step, but for the look-up; decide a
 * bit of a result: copies only make products faster.
 */
#include "backend/cuda/dense.cuh"
#include "backend/cuda/gemm.h"

#include <stdlib.h>
#include <string.h>

/* Copies are made unasked when they take no more of the device's memory than this. */
#define AUTO_SHARE 0.15

struct entry {
    const void *data; /* packed */
    int32_t rows, cols;
    uint8_t *dense; /* or NULL: not yet, or it cannot be done */
    bool tried;
};

struct sv_cuda_dense {
    struct entry *entry; /* by data, once copies are made */
    int32_t n, room;
    bool sorted;
};

/* ---------------------------------------------------------------- making them */

/* Numbers by exponent field; each warp counts in memory of its own. */
static __global__ void count_kernel(const uint4 *packed, size_t n, struct sv_dense_head *head)
{
    __shared__ uint32_t count[8][256];
    for (int32_t i = threadIdx.x; i < 8 * 256; i += blockDim.x)
        count[i / 256][i % 256] = 0;
    sv_pdl_wait();
    __syncthreads();
    uint32_t *own = count[threadIdx.x / 32];
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const uint4 v = packed[i];
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const uint32_t number = w[e / 2] >> (16 * (e & 1)) & 0x7fff;
            if (number)
                atomicAdd(&own[number >> 7], 1u);
        }
    }
    __syncthreads();
    uint32_t sum = 0;
    for (int w = 0; w < 8; w++)
        sum += count[w][threadIdx.x];
    if (sum)
        atomicAdd(&head->count[threadIdx.x], sum);
}

static __global__ void choose_kernel(struct sv_dense_head *head)
{
    sv_pdl_wait();
    uint32_t best = 0, best_base = 0;
    for (uint32_t base = 0; base <= SV_DENSE_MAX_BASE; base += 2) {
        uint32_t inside = 0;
        for (uint32_t e = 1; e <= SV_DENSE_SPAN; e++)
            inside += head->count[base + e];
        if (inside >= best) { /* room above rather than below */
            best = inside;
            best_base = base;
        }
    }
    head->base = best_base;
    head->scale = (best_base + 127) * 0x00800080u;
    head->n_patches = head->refused = 0;
}

/* A block a band, a warp a strip. */
static __global__ void encode_kernel(const uint8_t *packed, int32_t n_k, uint8_t *tiles,
                                     uint32_t *counts, struct sv_dense_patch *patches,
                                     struct sv_dense_head *head)
{
    __shared__ uint32_t n_patches;
    const int32_t t = threadIdx.x, lane = t % 32, band = blockIdx.x;
    if (t == 0)
        n_patches = 0;
    sv_pdl_wait();
    const int32_t base = (int32_t)head->base;
    packed += (size_t)band * (size_t)n_k * SV_TILE_BYTES;
    tiles += (size_t)band * (size_t)n_k * SV_DENSE_TILE_BYTES;
    patches += (size_t)band * SV_DENSE_PATCHES;
    for (int32_t kk = 0; kk < n_k; kk++, packed += SV_TILE_BYTES, tiles += SV_DENSE_TILE_BYTES) {
        uint32_t pair[SV_DENSE_PAIRS], word[13];
        __syncthreads(); /* patches stand in the order of tiles */
#pragma unroll
        for (int i = 0; i < SV_DENSE_PAIRS; i++)
            pair[i] = *(const uint32_t *)(packed +
                                          2 * sv_tile_at(t / 32 * 16 + sv_dense_row(lane, i),
                                                         sv_dense_col(lane, i)));
#pragma unroll
        for (int i = 0; i < SV_DENSE_PAIRS; i++) {
            const int32_t lo = sv_dense_shift(pair[i] & 0xffff, base),
                          hi = sv_dense_shift(pair[i] >> 16, base);
            if (lo >= 0 && hi >= 0) {
                pair[i] = (uint32_t)lo | (uint32_t)hi << 16;
                continue;
            }
            const uint32_t at = atomicAdd(&n_patches, 1u);
            if (at < SV_DENSE_PATCHES) {
                const struct sv_dense_patch p = {(uint16_t)kk, (uint16_t)(t * 16 + i), pair[i]};
                patches[at] = p;
            }
            pair[i] = 0;
        }
        sv_dense_encode(pair, word);
        uint4 *strip = (uint4 *)(tiles + t / 32 * SV_DENSE_STRIP_BYTES);
        strip[lane] = make_uint4(word[0], word[1], word[2], word[3]);
        strip[32 + lane] = make_uint4(word[4], word[5], word[6], word[7]);
        strip[64 + lane] = make_uint4(word[8], word[9], word[10], word[11]);
        ((uint32_t *)(strip + 96))[lane] = word[12];
    }
    __syncthreads();
    if (t != 0)
        return;
    counts[band] = min(n_patches, (uint32_t)SV_DENSE_PATCHES);
    if (n_patches)
        atomicAdd(&head->n_patches, n_patches);
    if (n_patches > SV_DENSE_PATCHES)
        atomicAdd(&head->refused, 1u);
}

void sv_cuda_dense_make(struct sv_cuda *cu, const void *packed, int32_t rows, int32_t cols,
                        void *dense)
{
    SV_REQUIRE(sv_tiles(cols) <= UINT16_MAX);
    uint8_t *at = (uint8_t *)dense;
    struct sv_dense_head *head = (struct sv_dense_head *)dense;
    sv_cuda_check(cu, cudaMemsetAsync(dense, 0, SV_DENSE_HEAD_BYTES, cu->stream), "dense weights");
    sv_cuda_launch(cu, "dense weights", count_kernel, dim3((unsigned)cu->n_sms * 8), dim3(256), 0,
                   (const uint4 *)packed, sv_packed_bytes(rows, cols) / 16, head);
    sv_cuda_launch(cu, "dense weights", choose_kernel, dim3(1), dim3(1), 0, head);
    sv_cuda_launch(cu, "dense weights", encode_kernel, dim3((unsigned)sv_tiles(rows)), dim3(128), 0,
                   (const uint8_t *)packed, sv_tiles(cols), at + SV_DENSE_HEAD_BYTES,
                   (uint32_t *)(at + sv_dense_counts_at(rows, cols)),
                   (struct sv_dense_patch *)(at + sv_dense_patches_at(rows, cols)), head);
}

/* ---------------------------------------------------------------- which weights have them */

int sv_cuda_dense_note(struct sv_cuda *cu, const struct sv_weight *w, struct sv_err *err)
{
    if (cu->dense_mode == SV_DENSE_OFF || cu->set != SV_CUDA_SM90 || cu->act != SV_BF16 ||
        !sv_gemm_is_packed(w) || w->approximate || w->cols % 8 != 0 || w->table || sv_tiles(w->cols) > UINT16_MAX)
        return SV_OK;
    if (!cu->dense)
        cu->dense = (struct sv_cuda_dense *)sv_calloc(1, sizeof *cu->dense);
    struct sv_cuda_dense *d = cu->dense;
    if (d && d->n == d->room) {
        struct entry *more = (struct entry *)sv_calloc((size_t)d->room * 2 + 64, sizeof *more);
        if (more) {
            if (d->n)
                memcpy(more, d->entry, (size_t)d->n * sizeof *more);
            sv_free(d->entry);
            d->entry = more;
            d->room = d->room * 2 + 64;
        }
    }
    if (!d || d->n == d->room)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for the list of weights");
    struct entry *e = &d->entry[d->n++];
    *e = {};
    e->data = w->data;
    e->rows = w->rows;
    e->cols = w->cols;
    d->sorted = false;
    return SV_OK;
}

void sv_cuda_dense_forget(struct sv_cuda *cu, const void *data)
{
    struct sv_cuda_dense *d = cu->dense;
    for (int32_t i = 0; d && i < d->n; i++)
        if (d->entry[i].data == data) {
            if (d->entry[i].dense)
                sv_cuda_check(cu, cudaFree(d->entry[i].dense), "cudaFree");
            memmove(&d->entry[i], &d->entry[i + 1], (size_t)(d->n - i - 1) * sizeof d->entry[0]);
            d->n--;
            return;
        }
}

void sv_cuda_dense_close(struct sv_cuda *cu)
{
    if (!cu->dense)
        return;
    for (int32_t i = 0; i < cu->dense->n; i++)
        if (cu->dense->entry[i].dense)
            cudaFree(cu->dense->entry[i].dense);
    sv_free(cu->dense->entry);
    sv_free(cu->dense);
    cu->dense = NULL;
}

static int by_data(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const struct entry *)a)->data,
                    y = (uintptr_t)((const struct entry *)b)->data;
    return x < y ? -1 : x > y;
}

/* Whether copies of all that have none yet may be made. */
static bool wanted(const struct sv_cuda *cu)
{
    const struct sv_cuda_dense *d = cu->dense;
    size_t all = 0, n_free = 0, n_total = 0;
    for (int32_t i = 0; i < d->n; i++)
        all += sv_dense_bytes(d->entry[i].rows, d->entry[i].cols);
    if (cu->dense_mode == SV_DENSE_ON)
        return true;
    return cudaMemGetInfo(&n_free, &n_total) == cudaSuccess &&
           (double)all <= AUTO_SHARE * (double)n_total && all < n_free / 2;
}

/* Reads back whether the copy holds the matrix; frees it otherwise. */
static int settle_entry(struct sv_cuda *cu, struct entry *e, struct sv_err *err)
{
    struct sv_dense_head head;
    int rc = sv_cuda_try(cudaMemcpy(&head, e->dense, sizeof head, cudaMemcpyDeviceToHost), err,
                         "dense weights");
    if (rc || head.refused) {
        cudaFree(e->dense);
        e->dense = NULL;
    }
    return rc;
}

int sv_cuda_dense_reserve(struct sv_cuda *cu, struct sv_err *err)
{
    struct sv_cuda_dense *d = cu->dense;
    if (!d || !d->n || !wanted(cu))
        return SV_OK;
    int32_t n_new = 0;
    int rc = SV_OK;
    for (int32_t i = 0; i < d->n && !rc; i++) {
        struct entry *e = &d->entry[i];
        if (e->tried)
            continue;
        char what[80];
        snprintf(what, sizeof what, "no memory for a dense weight of %d x %d on the GPU", (int)e->rows,
                 (int)e->cols);
        rc = sv_cuda_try(cudaMalloc((void **)&e->dense, sv_dense_bytes(e->rows, e->cols)), err, what);
        if (!rc)
            sv_cuda_dense_make(cu, e->data, e->rows, e->cols, e->dense);
        n_new++;
    }
    if (!rc)
        rc = sv_cuda_try(cudaStreamSynchronize(cu->stream), err, "dense weights");
    for (int32_t i = 0; i < d->n && n_new; i++) {
        struct entry *e = &d->entry[i];
        if (e->tried)
            continue;
        e->tried = true;
        if (e->dense && rc) {
            cudaFree(e->dense);
            e->dense = NULL;
        } else if (e->dense) {
            rc = settle_entry(cu, e, err);
        }
    }
    qsort(d->entry, (size_t)d->n, sizeof d->entry[0], by_data);
    d->sorted = true;
    const size_t n_text = strlen(cu->text);
    if (!rc && n_new && !strstr(cu->text, "dense"))
        snprintf(cu->text + n_text, sizeof cu->text - n_text, ", dense weights");
    return rc;
}

const void *sv_cuda_dense_of(const struct sv_cuda *cu, const void *data)
{
    const struct sv_cuda_dense *d = cu->dense;
    if (!d || !d->sorted)
        return NULL;
    struct entry key = {};
    key.data = data;
    const struct entry *e =
        (const struct entry *)bsearch(&key, d->entry, (size_t)d->n, sizeof key, by_data);
    return e ? e->dense : NULL;
}

int64_t sv_cuda_dense_bytes(struct sv_dev *dev, int32_t *n_dense, int32_t *n_plain)
{
    const struct sv_cuda_dense *d = sv_cuda_of(dev)->dense;
    int64_t total = 0;
    *n_dense = *n_plain = 0;
    for (int32_t i = 0; d && i < d->n; i++) {
        *n_dense += d->entry[i].dense != NULL;
        *n_plain += d->entry[i].tried && !d->entry[i].dense;
        if (d->entry[i].dense)
            total += (int64_t)sv_dense_bytes(d->entry[i].rows, d->entry[i].cols);
    }
    return total;
}

int64_t sv_cuda_few_bytes(const struct sv_dev *dev, const struct sv_weight *w)
{
    const struct sv_cuda *cu = (const struct sv_cuda *)(const void *)dev;
    return sv_cuda_dense_of(cu, w->data) ? (int64_t)sv_dense_bytes(w->rows, w->cols) : 0;
}
