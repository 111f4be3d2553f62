/*
 * wcomp.cu - makes compressed weights (wcomp.cuh) of packed ones, on the device: counts a band's
 * exponents, chooses the base that leaves out the fewest numbers, encodes. Keeps the list of
 * weights that may have a compressed copy.
 *
 * upload.cu notes every packed matrix; reserve, which comes when all weights are loaded and what
 * memory is left is known, makes the copies, or none; gemm.cu takes them from a weight's priv. Must
 * not: run in the step; decide a bit of a result: copies only make products faster.
 */
#include "backend/gpu/wcomp.cuh"
#include "backend/cuda/gemm.h"
#include "backend/cuda/watch.h"

#include <string.h>

/* Copies are made unasked when they leave this share of the device's memory free, for caches. */
#define AUTO_LEAVES 0.25

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
    if (t <= SV_WCOMP_MAX_BASE) {
        unsigned long long inside = 0;
        for (uint32_t e = t + 1; e <= t + SV_WCOMP_SPAN; e++)
            inside += count[0][e] + count[1][e] + count[2][e] + count[3][e];
        atomicMax(&best, inside << 7 | t);
    }
    __syncthreads();
    return (int32_t)(best & 127);
}

/* A block a band, a warp a strip. */
static __global__ void encode_kernel(const uint8_t *packed, int32_t n_k, uint8_t *tiles,
                                     struct sv_wcomp_band *bands, struct sv_wcomp_more *more,
                                     struct sv_wcomp_head *head)
{
    __shared__ uint32_t count[4][EXPONENTS], slot[4][SV_WCOMP_SLOTS], n_slots[4], n_more;
    const int32_t t = threadIdx.x, lane = t % 32, strip = t / 32, band = blockIdx.x;
    if (t == 0)
        n_more = 0;
    sv_pdl_wait();
    packed += (size_t)band * (size_t)n_k * SV_TILE_BYTES;
    tiles += (size_t)band * (size_t)n_k * SV_WCOMP_TILE_BYTES;
    more += (size_t)band * SV_WCOMP_MORE;
    const int32_t base = base_of((const uint4 *)packed, (size_t)n_k * (SV_TILE_BYTES / 16), count);
    for (int32_t kk = 0; kk < n_k; kk++, packed += SV_TILE_BYTES, tiles += SV_WCOMP_TILE_BYTES) {
        uint32_t pair[SV_WCOMP_PAIRS], word[SV_WCOMP_WORDS];
        if (lane < SV_WCOMP_SLOTS)
            slot[strip][lane] = SV_WCOMP_NO_PATCH;
        if (lane == 0)
            n_slots[strip] = 0;
        __syncthreads(); /* further patches stand in the order of tiles */
#pragma unroll
        for (int i = 0; i < SV_WCOMP_PAIRS; i++)
            pair[i] =
                *(const uint32_t *)(packed + 2 * sv_tile_at(strip * 16 + sv_wcomp_row(lane, i),
                                                            sv_wcomp_col(lane, i)));
#pragma unroll
        for (int i = 0; i < 2 * SV_WCOMP_PAIRS; i++) {
            const uint32_t number = pair[i / 2] >> 16 * (i & 1) & 0xffff,
                           others = pair[i / 2] & (i & 1 ? 0xffffu : 0xffff0000u);
            const int32_t kept = sv_wcomp_shift(number, base);
            pair[i / 2] = others | (kept < 0 ? 0 : (uint32_t)kept << 16 * (i & 1));
            if (kept >= 0)
                continue;
            const uint32_t patch = sv_wcomp_patch(strip, lane, i / 2, i & 1, number);
            const uint32_t at = atomicAdd(&n_slots[strip], 1u);
            if (at < SV_WCOMP_SLOTS) {
                slot[strip][at] = patch;
                continue;
            }
            const uint32_t to = atomicAdd(&n_more, 1u);
            if (to < SV_WCOMP_MORE) {
                const struct sv_wcomp_more m = {(uint32_t)kk, patch};
                more[to] = m;
            }
        }
        sv_wcomp_encode(pair, word);
        __syncwarp();
        uint4 *to = (uint4 *)(tiles + strip * SV_WCOMP_STRIP_BYTES);
        for (int q = 0; q < SV_WCOMP_WORDS / 4; q++)
            to[32 * q + lane] =
                make_uint4(word[4 * q], word[4 * q + 1], word[4 * q + 2], word[4 * q + 3]);
        if (lane < SV_WCOMP_SLOTS)
            ((uint32_t *)(to + 8 * SV_WCOMP_WORDS))[lane] = slot[strip][lane];
    }
    __syncthreads();
    if (t != 0)
        return;
    bands[band].scale = (uint32_t)(base + 127) * 0x00800080u;
    bands[band].n_more = min(n_more, (uint32_t)SV_WCOMP_MORE);
    if (n_more > SV_WCOMP_MORE)
        atomicAdd(&head->refused, 1u);
}

/* Enqueues; whether it could be done stands in the head. */
static void wcomp_make(struct sv_cuda *cu, const void *packed, int32_t rows, int32_t cols,
                       void *wcomp)
{
    uint8_t *at = (uint8_t *)wcomp;
    sv_cuda_check(cu, cudaMemsetAsync(wcomp, 0, SV_WCOMP_HEAD_BYTES, cu->stream),
                  "compressed weights");
    sv_cuda_launch(cu, "compressed weights", encode_kernel, dim3((unsigned)sv_tiles(rows)),
                   dim3(128), 0, (const uint8_t *)packed, sv_tiles(cols), at + SV_WCOMP_HEAD_BYTES,
                   (struct sv_wcomp_band *)(at + sv_wcomp_bands_at(rows, cols)),
                   (struct sv_wcomp_more *)(at + sv_wcomp_more_at(rows, cols)),
                   (struct sv_wcomp_head *)wcomp);
}

/* ---------------------------------------------------------------- which weights have them */

int sv_cuda_wcomp_note(struct sv_cuda *cu, struct sv_weight *w, struct sv_err *err)
{
    w->priv = NULL;
    if (cu->wcomp_mode == SV_TOGGLE_OFF || cu->act != SV_BF16 || w->fmt.elem != SV_BF16 ||
        w->rows == 1 || w->cols % 8 != 0 || w->role == SV_ROLE_EMBED || w->role == SV_ROLE_VISION)
        return SV_OK;
    struct sv_cuda_weight *v = (struct sv_cuda_weight *)sv_calloc(1, sizeof *v);
    if (!v)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for the list of weights");
    v->data = w->data;
    v->rows = w->rows;
    v->cols = w->cols;
    v->next = cu->weights;
    v->link = &cu->weights;
    if (v->next)
        v->next->link = &v->next;
    cu->weights = v;
    w->priv = v;
    return SV_OK;
}

static void drop_weight(struct sv_cuda *cu, struct sv_cuda_weight *v)
{
    *v->link = v->next;
    if (v->next)
        v->next->link = v->link;
    sv_cuda_drop(cu, v->wcomp);
    sv_free(v);
}

void sv_cuda_wcomp_forget(struct sv_cuda *cu, struct sv_weight *w)
{
    if (w->priv)
        drop_weight(cu, (struct sv_cuda_weight *)w->priv);
    w->priv = NULL;
}

void sv_cuda_wcomp_close(struct sv_cuda *cu)
{
    while (cu->weights)
        drop_weight(cu, cu->weights);
}

/* Whether copies of all that have none yet may be made. */
static bool wanted(const struct sv_cuda *cu)
{
    size_t all = 0, n_free = 0, n_total = 0;
    for (const struct sv_cuda_weight *v = cu->weights; v; v = v->next)
        all += sv_wcomp_bytes(v->rows, v->cols);
    if (cu->wcomp_mode == SV_TOGGLE_ON)
        return true;
    return cudaMemGetInfo(&n_free, &n_total) == cudaSuccess && all < n_free &&
           (double)(n_free - all) >= AUTO_LEAVES * (double)n_total;
}

/* Reads back whether the copy holds the matrix; frees it otherwise. */
static int settle(struct sv_cuda *cu, struct sv_cuda_weight *v, struct sv_err *err)
{
    struct sv_wcomp_head head;
    int rc = sv_cuda_try(cudaMemcpy(&head, v->wcomp, sizeof head, cudaMemcpyDeviceToHost), err,
                         "compressed weights");
    if (rc || head.refused) {
        sv_cuda_drop(cu, v->wcomp);
        v->wcomp = NULL;
    }
    return rc;
}

/* All that have none yet, enqueued. */
static int make_copies(struct sv_cuda *cu, int32_t *n_new, struct sv_err *err)
{
    int rc = SV_OK;
    for (struct sv_cuda_weight *v = cu->weights; v && !rc; v = v->next) {
        if (v->tried)
            continue;
        char what[80];
        snprintf(what, sizeof what, "no memory for a compressed weight of %d x %d on the GPU",
                 (int)v->rows, (int)v->cols);
        rc = sv_cuda_take(cu, SV_MEM_WCOMP, (void **)&v->wcomp, sv_wcomp_bytes(v->rows, v->cols),
                          err, what);
        if (!rc)
            wcomp_make(cu, v->data, v->rows, v->cols, v->wcomp);
        ++*n_new;
    }
    return rc ? rc : sv_cuda_wait(cu, NULL, "compressed weights", err);
}

int sv_cuda_wcomp_reserve(struct sv_cuda *cu, struct sv_err *err)
{
    if (!cu->weights || !wanted(cu))
        return SV_OK;
    int32_t n_new = 0, n_copies = 0, n_plain = 0;
    int rc = make_copies(cu, &n_new, err);
    for (struct sv_cuda_weight *v = cu->weights; v && n_new; v = v->next) {
        if (!v->tried && v->wcomp && rc) {
            sv_cuda_drop(cu, v->wcomp);
            v->wcomp = NULL;
        } else if (!v->tried && v->wcomp) {
            rc = settle(cu, v, err);
        }
        v->tried = true;
        n_copies += v->wcomp != NULL;
        n_plain += v->wcomp == NULL;
    }
    const size_t n_text = strlen(cu->text);
    if (rc || !n_new)
        return rc;
    if (!strstr(cu->text, "compressed"))
        snprintf(cu->text + n_text, sizeof cu->text - n_text, ", compressed weights");
    sv_log(SV_LOG_INFO, "compressed weights: copies of %d matrices; %d cannot be compressed",
           (int)n_copies, (int)n_plain);
    return SV_OK;
}
