/*
 * dense.cu - makes dense weights (dense.cuh) of packed ones, on the device: counts a band's
 * exponents, chooses the base that leaves out the fewest numbers, encodes. Keeps which weight has a
 * dense copy.
 *
 * upload.cu notes every packed matrix; reserve, which comes when all weights are loaded and what
 * memory is left is known, makes the copies, or none; gemm.cu looks them up. Must not: run in the
 * step, but for the look-up; decide a bit of a result: copies only make products faster.
 */
#include "backend/cuda/dense.cuh"
#include "backend/cuda/gemm.h"
#include "backend/cuda/watch.h"

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

enum { EXPONENTS = 256 };

/* The base that leaves out the fewest of the band's numbers; rather room above than below. Threads
 * of a block. */
static __device__ int32_t base_of(const uint4 *packed, size_t n, uint32_t (*count)[EXPONENTS])
{
    __shared__ unsigned long long best;
    const uint32_t t = threadIdx.x;
    uint32_t *own = count[t / 32];
    for (int32_t i = (int32_t)t; i < 4 * EXPONENTS; i += 128)
        count[i / EXPONENTS][i % EXPONENTS] = 0;
    if (t == 0)
        best = 0;
    __syncthreads();
    for (size_t i = t; i < n; i += 128) {
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
    if (t <= SV_DENSE_MAX_BASE) {
        unsigned long long inside = 0;
        for (uint32_t e = t + 1; e <= t + SV_DENSE_SPAN; e++)
            inside += count[0][e] + count[1][e] + count[2][e] + count[3][e];
        atomicMax(&best, inside << 7 | t);
    }
    __syncthreads();
    return (int32_t)(best & 127);
}

/* A block a band, a warp a strip. */
static __global__ void encode_kernel(const uint8_t *packed, int32_t n_k, uint8_t *tiles,
                                     struct sv_dense_band *bands, struct sv_dense_more *more,
                                     struct sv_dense_head *head)
{
    __shared__ uint32_t count[4][EXPONENTS], slot[4][SV_DENSE_SLOTS], n_slots[4], n_more;
    const int32_t t = threadIdx.x, lane = t % 32, strip = t / 32, band = blockIdx.x;
    if (t == 0)
        n_more = 0;
    sv_pdl_wait();
    packed += (size_t)band * (size_t)n_k * SV_TILE_BYTES;
    tiles += (size_t)band * (size_t)n_k * SV_DENSE_TILE_BYTES;
    more += (size_t)band * SV_DENSE_MORE;
    const int32_t base = base_of((const uint4 *)packed, (size_t)n_k * (SV_TILE_BYTES / 16), count);
    for (int32_t kk = 0; kk < n_k; kk++, packed += SV_TILE_BYTES, tiles += SV_DENSE_TILE_BYTES) {
        uint32_t pair[SV_DENSE_PAIRS], word[SV_DENSE_WORDS];
        if (lane < SV_DENSE_SLOTS)
            slot[strip][lane] = SV_DENSE_NO_PATCH;
        if (lane == 0)
            n_slots[strip] = 0;
        __syncthreads(); /* further patches stand in the order of tiles */
#pragma unroll
        for (int i = 0; i < SV_DENSE_PAIRS; i++)
            pair[i] =
                *(const uint32_t *)(packed + 2 * sv_tile_at(strip * 16 + sv_dense_row(lane, i),
                                                            sv_dense_col(lane, i)));
#pragma unroll
        for (int i = 0; i < 2 * SV_DENSE_PAIRS; i++) {
            const uint32_t number = pair[i / 2] >> 16 * (i & 1) & 0xffff,
                           others = pair[i / 2] & (i & 1 ? 0xffffu : 0xffff0000u);
            const int32_t kept = sv_dense_shift(number, base);
            pair[i / 2] = others | (kept < 0 ? 0 : (uint32_t)kept << 16 * (i & 1));
            if (kept >= 0)
                continue;
            const uint32_t patch = sv_dense_patch(strip, lane, i / 2, i & 1, number);
            const uint32_t at = atomicAdd(&n_slots[strip], 1u);
            if (at < SV_DENSE_SLOTS) {
                slot[strip][at] = patch;
                continue;
            }
            const uint32_t to = atomicAdd(&n_more, 1u);
            if (to < SV_DENSE_MORE) {
                const struct sv_dense_more m = {(uint32_t)kk, patch};
                more[to] = m;
            }
        }
        sv_dense_encode(pair, word);
        __syncwarp();
        uint4 *to = (uint4 *)(tiles + strip * SV_DENSE_STRIP_BYTES);
        for (int q = 0; q < SV_DENSE_WORDS / 4; q++)
            to[32 * q + lane] =
                make_uint4(word[4 * q], word[4 * q + 1], word[4 * q + 2], word[4 * q + 3]);
        if (lane < SV_DENSE_SLOTS)
            ((uint32_t *)(to + 8 * SV_DENSE_WORDS))[lane] = slot[strip][lane];
    }
    __syncthreads();
    if (t != 0)
        return;
    bands[band].scale = (uint32_t)(base + 127) * 0x00800080u;
    bands[band].n_more = min(n_more, (uint32_t)SV_DENSE_MORE);
    if (n_more > SV_DENSE_MORE)
        atomicAdd(&head->refused, 1u);
}

void sv_cuda_dense_make(struct sv_cuda *cu, const void *packed, int32_t rows, int32_t cols,
                        void *dense)
{
    uint8_t *at = (uint8_t *)dense;
    sv_cuda_check(cu, cudaMemsetAsync(dense, 0, SV_DENSE_HEAD_BYTES, cu->stream), "dense weights");
    sv_cuda_launch(cu, "dense weights", encode_kernel, dim3((unsigned)sv_tiles(rows)), dim3(128), 0,
                   (const uint8_t *)packed, sv_tiles(cols), at + SV_DENSE_HEAD_BYTES,
                   (struct sv_dense_band *)(at + sv_dense_bands_at(rows, cols)),
                   (struct sv_dense_more *)(at + sv_dense_more_at(rows, cols)),
                   (struct sv_dense_head *)dense);
}

/* ---------------------------------------------------------------- which weights have them */

int sv_cuda_dense_note(struct sv_cuda *cu, const struct sv_weight *w, struct sv_err *err)
{
    if (cu->dense_mode == SV_DENSE_OFF || cu->act != SV_BF16 || !sv_gemm_is_packed(w) ||
        w->approximate || w->cols % 8 != 0 || w->table)
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
            sv_cuda_drop(cu, d->entry[i].dense);
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
        sv_cuda_drop(cu, cu->dense->entry[i].dense);
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
        sv_cuda_drop(cu, e->dense);
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
        snprintf(what, sizeof what, "no memory for a dense weight of %d x %d on the GPU",
                 (int)e->rows, (int)e->cols);
        rc = sv_cuda_take(cu, SV_MEM_DENSE, (void **)&e->dense, sv_dense_bytes(e->rows, e->cols),
                          err, what);
        if (!rc)
            sv_cuda_dense_make(cu, e->data, e->rows, e->cols, e->dense);
        n_new++;
    }
    if (!rc)
        rc = sv_cuda_wait(cu, NULL, "dense weights", err);
    for (int32_t i = 0; i < d->n && n_new; i++) {
        struct entry *e = &d->entry[i];
        if (e->tried)
            continue;
        e->tried = true;
        if (e->dense && rc) {
            sv_cuda_drop(cu, e->dense);
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
