/*
 * upload.cu - memory the bus can reach, copies, and how weights come onto the device: from a mapped
 * file through pinned buffers, or made there from a seed.
 *
 * Called through the table in device.cu. Copies from and to host_alloc memory are asynchronous; a
 * small upload from anywhere else goes through a pinned ring, so the caller may reuse its memory at
 * once, a large one waits. Weights: threads of the pool fill one pinned buffer from the page cache
 * while the other is on the bus; matrices land in a staging buffer and are packed on the device.
 * Must not: load weights or wait in the step.
 */
#include "backend/cuda/codes_host.h"
#include "backend/cuda/cuda.h"
#include "backend/gpu/fp8.cuh"
#include "backend/gpu/mxfp4.cuh"
#include "backend/cuda/gemm.h"
#include "backend/cuda/moe.h"
#include "backend/cuda/vendor.h"
#include "backend/cuda/watch.h"

extern "C" {
#include "backend/quant.h"
}

#include <string.h>

#define RING_BYTES ((size_t)1 << 20)
#define RING_MAX ((size_t)64 << 10) /* longest copy through the ring */
#define CHUNK_BYTES ((size_t)32 << 20)
#define MAX_RANGES 64

struct sv_cuda_staging {
    /* What host_alloc handed out: copies from there need no detour. */
    struct {
        const uint8_t *begin, *end;
    } range[MAX_RANGES];
    int32_t n_ranges;
    uint8_t *ring; /* pinned */
    size_t ring_at;

    /* Made by the first weight that comes, gone when the weights are in. */
    uint8_t *pinned[2];
    uint8_t *landing[2]; /* device: rows as published, until they are packed */
    cudaEvent_t done[2]; /* the buffers of this index are free again */
    int32_t next;        /* their index */
};

/* ---------------------------------------------------------------- pinned memory */

static int pinned_alloc(void **out, size_t n_bytes, struct sv_err *err)
{
    char what[64];
    *out = NULL;
    snprintf(what, sizeof what, "no pinned memory for %zu bytes", n_bytes);
    if (sv_fault_hit())
        return sv_fail(err, SV_ENOMEM, -1, SV_GPU_LIBRARY ": %s", what);
    int rc =
        sv_cuda_try(cudaHostAlloc(out, n_bytes ? n_bytes : 1, cudaHostAllocDefault), err, what);
    if (!rc)
        memset(*out, 0, n_bytes);
    return rc;
}

int sv_cuda_host_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct sv_cuda_staging *st = cu->staging;
    int rc = sv_cuda_enter(cu, err);
    if (!rc)
        rc = pinned_alloc(out, n_bytes, err);
    if (!rc && st->n_ranges < MAX_RANGES) { /* one too many is copied like any other memory */
        st->range[st->n_ranges].begin = (const uint8_t *)*out;
        st->range[st->n_ranges++].end = (const uint8_t *)*out + n_bytes;
    }
    return rc;
}

void sv_cuda_host_free(struct sv_dev *dev, void *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct sv_cuda_staging *st = cu->staging;
    for (int32_t i = 0; i < st->n_ranges; i++)
        if (st->range[i].begin == p) {
            st->range[i] = st->range[--st->n_ranges];
            break;
        }
    sv_cuda_drop_host(cu, p);
}

static bool is_pinned(const struct sv_cuda_staging *st, const void *p, size_t n_bytes)
{
    const uint8_t *at = (const uint8_t *)p;
    for (int32_t i = 0; i < st->n_ranges; i++)
        if (at >= st->range[i].begin && at + n_bytes <= st->range[i].end)
            return true;
    return false;
}

/* ---------------------------------------------------------------- copies */

/* n_bytes of the ring that no copy under way reads. */
static uint8_t *ring_take(struct sv_cuda *cu, size_t n_bytes)
{
    struct sv_cuda_staging *st = cu->staging;
    if (st->ring_at + n_bytes > RING_BYTES) {
        sv_cuda_wait_latched(cu, NULL, "room for an upload");
        st->ring_at = 0;
    }
    uint8_t *at = st->ring + st->ring_at;
    st->ring_at += (n_bytes + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
    return at;
}

static __global__ void copy_kernel(uint4 *dst, const uint4 *src, int32_t n)
{
    sv_pdl_wait();
    const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        dst[i] = src[i];
}

/* A few KB between pinned memory and the device. A kernel reaches over the bus itself: half the
 * time of a copy engine, which the queue has to be handed to and back. */
static bool copy_small(struct sv_cuda *cu, void *dst, const void *src, size_t n_bytes)
{
    enum { THREADS = 128 };
    if (n_bytes > RING_MAX || ((uintptr_t)dst | (uintptr_t)src | n_bytes) % sizeof(uint4))
        return false;
    const int32_t n = (int32_t)(n_bytes / sizeof(uint4));
    sv_cuda_launch(cu, "copy", copy_kernel, dim3((unsigned)((n + THREADS - 1) / THREADS)),
                   dim3(THREADS), 0, (uint4 *)dst, (const uint4 *)src, n);
    return true;
}

/* From or to ordinary memory. The library would wait for the queue without a limit, so a bounded
 * wait comes first. */
static void copy_waiting(struct sv_cuda *cu, void *dst, const void *src, size_t n_bytes,
                         cudaMemcpyKind kind, const char *what)
{
    if (sv_cuda_wait_latched(cu, NULL, what) &&
        sv_cuda_check(cu, cudaMemcpyAsync(dst, src, n_bytes, kind, cu->stream), what))
        sv_cuda_wait_latched(cu, NULL, what);
}

void sv_cuda_upload(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (sv_cuda_is_stuck(cu))
        return;
    sv_cuda_check(cu, cudaSetDevice(cu->ordinal), "cudaSetDevice");
    cu->bytes_of = NULL;
    if (!is_pinned(cu->staging, src, n_bytes)) {
        SV_REQUIRE(!cu->capturing); /* a replay would read memory that is in other use by then */
        if (n_bytes > RING_MAX) {
            copy_waiting(cu, dst, src, n_bytes, cudaMemcpyHostToDevice, "a copy to the device");
            return;
        }
        src = memcpy(ring_take(cu, n_bytes), src, n_bytes);
    }
    if (!copy_small(cu, dst, src, n_bytes))
        sv_cuda_check(cu, cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyHostToDevice, cu->stream),
                      "copy to the device");
}

void sv_cuda_download(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (sv_cuda_is_stuck(cu))
        return;
    sv_cuda_check(cu, cudaSetDevice(cu->ordinal), "cudaSetDevice");
    const bool wait = !is_pinned(cu->staging, dst, n_bytes);
    SV_REQUIRE(!(wait && cu->capturing));
    if (wait)
        copy_waiting(cu, dst, src, n_bytes, cudaMemcpyDeviceToHost, "a copy from the device");
    else if (!copy_small(cu, dst, src, n_bytes))
        sv_cuda_check(cu, cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDeviceToHost, cu->stream),
                      "copy from the device");
}

void sv_cuda_copy(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (sv_cuda_is_stuck(cu))
        return;
    SV_REQUIRE(!cu->capturing);
    sv_cuda_check(cu, cudaSetDevice(cu->ordinal), "cudaSetDevice");
    cu->bytes_of = NULL;
    sv_cuda_check(cu,
                  src ? cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDeviceToDevice, cu->stream)
                      : cudaMemsetAsync(dst, 0, n_bytes, cu->stream),
                  "copy on the device");
}

int sv_cuda_staging_open(struct sv_cuda *cu, struct sv_err *err)
{
    cu->staging = (struct sv_cuda_staging *)sv_calloc(1, sizeof *cu->staging);
    if (!cu->staging)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for the %s device", SV_GPU_LIBRARY);
    /* Loads the code, which would block after a kernel that does not end. */
    cudaFuncAttributes attr;
    int rc = sv_cuda_try(cudaFuncGetAttributes(&attr, copy_kernel), err, "this build's kernels");
    return rc ? rc : pinned_alloc((void **)&cu->staging->ring, RING_BYTES, err);
}

void sv_cuda_staging_drop(struct sv_cuda *cu)
{
    struct sv_cuda_staging *st = cu->staging;
    for (int i = 0; i < 2; i++) {
        sv_cuda_drop_host(cu, st->pinned[i]);
        sv_cuda_drop(cu, st->landing[i]);
        if (st->done[i] && sv_cuda_frees(cu))
            cudaEventDestroy(st->done[i]);
        st->pinned[i] = st->landing[i] = NULL;
        st->done[i] = NULL;
    }
}

void sv_cuda_staging_close(struct sv_cuda *cu)
{
    struct sv_cuda_staging *st = cu->staging;
    if (!st)
        return;
    sv_cuda_staging_drop(cu);
    sv_cuda_drop_host(cu, st->ring);
    sv_free(st);
    cu->staging = NULL;
}

/* ---------------------------------------------------------------- weights from the host */

static int open_buffers(struct sv_cuda *cu, struct sv_err *err)
{
    struct sv_cuda_staging *st = cu->staging;
    int rc = SV_OK;
    for (int i = 0; i < 2 && !rc; i++) {
        if (!st->pinned[i])
            rc = pinned_alloc((void **)&st->pinned[i], CHUNK_BYTES, err);
        if (!rc && !st->landing[i])
            rc = sv_cuda_alloc((struct sv_dev *)(void *)cu, (void **)&st->landing[i], CHUNK_BYTES,
                               err);
        if (!rc && !st->done[i])
            rc = sv_cuda_try(cudaEventCreateWithFlags(&st->done[i], cudaEventDisableTiming), err,
                             "cudaEventCreate");
    }
    return rc;
}

/* The buffers that were used longer ago, once they are free: of the weight before, too. */
static int take_buffers(struct sv_cuda *cu, int32_t *i, struct sv_err *err)
{
    struct sv_cuda_staging *st = cu->staging;
    *i = st->next;
    st->next ^= 1;
    return sv_cuda_wait(cu, st->done[*i], "weights on their way", err);
}

struct copy_job {
    uint8_t *dst;
    const uint8_t *src;
    size_t n_bytes;
    size_t row_bytes, stride; /* of rows with gaps between them in src; equal: there are none */
};

static void copy_share(void *arg, int thread, int n)
{
    const struct copy_job *job = (const struct copy_job *)arg;
    const bool rows = job->stride != job->row_bytes;
    const size_t piece = rows ? job->row_bytes : 4096,
                 n_pieces = (job->n_bytes + piece - 1) / piece;
    size_t begin = n_pieces * (size_t)thread / (size_t)n * piece;
    size_t end = n_pieces * ((size_t)thread + 1) / (size_t)n * piece;
    end = end < job->n_bytes ? end : job->n_bytes;
    for (size_t at = begin; rows && at < end; at += piece)
        memcpy(job->dst + at, job->src + at / piece * job->stride, piece);
    if (!rows && begin < end)
        memcpy(job->dst + begin, job->src + begin, end - begin);
}

/* Brings the rows over in chunks of whole bands; packed ones pass through the landing buffers. */
static int send(struct sv_cuda *cu, const struct sv_weight *host, const struct sv_format *to,
                void *data, struct sv_err *err)
{
    struct sv_cuda_staging *st = cu->staging;
    const bool packed = sv_cuda_is_packed(host);
    const size_t row_bytes = (size_t)host->cols * sv_dtype_bytes(host->fmt.elem);
    const size_t stride = host->row_stride ? host->row_stride : row_bytes;
    const size_t all = (size_t)host->rows * row_bytes, band_bytes = SV_TILE * row_bytes;
    if ((packed && band_bytes > CHUNK_BYTES) || (stride != row_bytes && row_bytes > CHUNK_BYTES))
        return sv_fail(err, SV_EUNSUPPORTED, -1, "a weight with rows of %d numbers",
                       (int)host->cols);
    const size_t step = packed                ? CHUNK_BYTES / band_bytes * band_bytes
                        : stride != row_bytes ? CHUNK_BYTES / row_bytes * row_bytes
                                              : CHUNK_BYTES;
    int32_t i;
    int rc = SV_OK;
    for (size_t at = 0; at < all && !rc; at += step) {
        const size_t n = all - at < step ? all - at : step;
        rc = take_buffers(cu, &i, err);
        if (rc)
            break;
        const size_t from = stride == row_bytes ? at : at / row_bytes * stride;
        struct copy_job job = {st->pinned[i], (const uint8_t *)host->data + from, n, row_bytes,
                               stride};
        if (n < ((size_t)1 << 20))
            copy_share(&job, 0, 1);
        else
            sv_pool_run(cu->pool, copy_share, &job);
        uint8_t *dst = packed ? st->landing[i] : (uint8_t *)data + at;
        rc = sv_cuda_try(cudaMemcpyAsync(dst, st->pinned[i], n, cudaMemcpyHostToDevice, cu->stream),
                         err, "loading weights");
        if (!rc && to->elem == SV_F8)
            sv_cuda_fp8_pack(cu, dst, (int32_t)(at / row_bytes), (int32_t)(n / row_bytes),
                             host->rows, host->cols, data);
        else if (!rc && packed)
            sv_cuda_pack(cu, dst, (int32_t)(at / row_bytes), (int32_t)(n / row_bytes), host->cols,
                         data);
        if (!rc)
            rc = sv_cuda_try(cudaEventRecord(st->done[i], cu->stream), err, "loading weights");
    }
    return rc;
}

/* A norm in f32, whatever its file has: exact, and kernels have one type to read. */
static int send_norm(struct sv_cuda *cu, const struct sv_weight *host, void *data,
                     struct sv_err *err)
{
    struct sv_cuda_staging *st = cu->staging;
    const uint16_t *from = (const uint16_t *)host->data;
    const size_t n_bytes = (size_t)host->cols * sizeof(float);
    int32_t i;
    SV_REQUIRE(host->rows == 1 && n_bytes <= CHUNK_BYTES);
    int rc = take_buffers(cu, &i, err);
    if (rc)
        return rc;
    float *to = (float *)(void *)st->pinned[i];
    for (int32_t c = 0; c < host->cols; c++)
        to[c] = host->fmt.elem == SV_BF16 ? sv_bf16_to_f32(from[c]) : sv_f16_to_f32(from[c]);
    rc = sv_cuda_try(cudaMemcpyAsync(data, to, n_bytes, cudaMemcpyHostToDevice, cu->stream), err,
                     "loading weights");
    return rc ? rc : sv_cuda_try(cudaEventRecord(st->done[i], cu->stream), err, "loading weights");
}

/* ---------------------------------------------------------------- codes from the host */

/* Whole bands, codes and behind them words, or super-blocks, through the landing buffers; the
 * factor last. */
static int send_codes(struct sv_cuda *cu, const struct sv_weight *w, const struct sv_quant *q,
                      void *data, struct sv_err *err)
{
    struct sv_cuda_staging *st = cu->staging;
    const bool w8a8 = sv_cuda_is_w8a8(w);
    const enum sv_codes_code code = w8a8 ? SV_CODES_F8_WIDE : sv_cuda_code_of(w);
    const int32_t bits = sv_codes_bits(code);
    const bool k = sv_codes_are_k(q);
    const size_t code_bytes = k ? (size_t)(q->cols / SV_K_COLS) * (size_t)sv_codes_k_bytes(code)
                                : (size_t)q->cols * (size_t)bits / 8,
                 row_bytes = code_bytes + (size_t)sv_tiles(q->cols) * sizeof(uint32_t) * !k;
    const int32_t step = (int32_t)(CHUNK_BYTES / row_bytes / SV_TILE * SV_TILE);
    if (step == 0)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "a weight with rows of %d numbers", (int)q->cols);
    int32_t i;
    int rc = SV_OK;
    for (int32_t row = 0; row < q->rows && !rc; row += step) {
        const int32_t n = q->rows - row < step ? q->rows - row : step;
        const size_t at = (size_t)n * code_bytes; /* a multiple of 4 */
        rc = take_buffers(cu, &i, err);
        if (rc)
            break;
        struct sv_code_job job = {q, code,          row,
                                  n, st->pinned[i], (uint32_t *)(void *)(st->pinned[i] + at)};
        struct copy_job copy = {st->pinned[i], (const uint8_t *)q->data + (size_t)row * code_bytes,
                                at, 0, 0};
        sv_pool_run(cu->pool, k ? copy_share : sv_codes_share, k ? (void *)&copy : &job);
        rc = sv_cuda_try(cudaMemcpyAsync(st->landing[i], st->pinned[i], (size_t)n * row_bytes,
                                         cudaMemcpyHostToDevice, cu->stream),
                         err, "loading weights");
        if (!rc && w8a8)
            sv_cuda_fp8_group_pack(cu, st->landing[i], st->landing[i] + at, row, n, q->rows,
                                   q->cols, data);
        else if (!rc && k)
            sv_cuda_codes_pack_k(cu, st->landing[i], row, n, q->cols, code, data);
        else if (!rc)
            sv_cuda_codes_pack(cu, st->landing[i], st->landing[i] + at, row, n, q->cols, code,
                               data);
        if (!rc)
            rc = sv_cuda_try(cudaEventRecord(st->done[i], cu->stream), err, "loading weights");
    }
    if (rc || code != SV_CODES_NV4)
        return rc;
    rc = take_buffers(cu, &i, err);
    if (rc)
        return rc;
    *(float *)(void *)st->pinned[i] = q->global * 256;
    rc = sv_cuda_try(cudaMemcpyAsync((uint8_t *)data + sv_codes_factor_at(q->rows, q->cols, bits),
                                     st->pinned[i], sizeof(float), cudaMemcpyHostToDevice,
                                     cu->stream),
                     err, "loading weights");
    return rc ? rc : sv_cuda_try(cudaEventRecord(st->done[i], cu->stream), err, "loading weights");
}

/* Whole bands, codes and behind them scales. */
static int send_mxfp4(struct sv_cuda *cu, const struct sv_quant *q, void *data, struct sv_err *err)
{
    struct sv_cuda_staging *st = cu->staging;
    const size_t row_bytes = (size_t)q->cols / SV_MXFP4_BLOCK * 17;
    const int32_t step = (int32_t)(CHUNK_BYTES / row_bytes / SV_TILE * SV_TILE);
    if (step == 0)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "a weight with rows of %d numbers", (int)q->cols);
    int32_t i;
    int rc = SV_OK;
    for (int32_t row = 0; row < q->rows && !rc; row += step) {
        const int32_t n = q->rows - row < step ? q->rows - row : step;
        rc = take_buffers(cu, &i, err);
        if (rc)
            break;
        struct sv_code_job job = {};
        job.q = q;
        job.row0 = row;
        job.n_rows = n;
        job.codes = st->pinned[i];
        sv_pool_run(cu->pool, sv_mxfp4_share, &job);
        rc = sv_cuda_try(cudaMemcpyAsync(st->landing[i], st->pinned[i], (size_t)n * row_bytes,
                                         cudaMemcpyHostToDevice, cu->stream),
                         err, "loading weights");
        if (!rc)
            sv_cuda_mxfp4_tiles(cu, st->landing[i],
                                st->landing[i] + (size_t)n * (size_t)q->cols / 2, 0, row, n,
                                q->cols, data);
        if (!rc)
            rc = sv_cuda_try(cudaEventRecord(st->done[i], cu->stream), err, "loading weights");
    }
    return rc;
}

static size_t device_bytes(const struct sv_weight *w)
{
    if (sv_cuda_is_mxfp4(w))
        return sv_mxfp4_bytes(w->rows, w->cols);
    if (sv_cuda_is_codes(w))
        return sv_codes_bytes(w->rows, w->cols, sv_cuda_code_bits(w));
    if (sv_cuda_is_w8a8(w))
        return sv_fp8_group_bytes(w->rows, w->cols);
    if (w->fmt.elem == SV_F8)
        return sv_fp8_bytes(w->rows, w->cols);
    if (sv_cuda_is_packed(w))
        return sv_packed_bytes(w->rows, w->cols);
    return (size_t)w->rows * (size_t)w->cols * sv_dtype_bytes(w->fmt.elem);
}

/* Bytes from one of several weights to the next. */
static size_t stride_bytes(const struct sv_weight *w)
{
    return (device_bytes(w) + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
}

/* n weights, one behind the other. Uncleared: packing and copying write every byte, padding
 * included. */
static int weights_alloc(struct sv_cuda *cu, const struct sv_weight *w, int32_t n, void **data,
                         struct sv_err *err)
{
    char what[80];
    snprintf(what, sizeof what, "no memory for %d weights of %d x %d on the GPU", (int)n,
             (int)w->rows, (int)w->cols);
    *data = NULL;
    if (sv_fault_hit())
        return sv_fail(err, SV_ENOMEM, -1, SV_GPU_LIBRARY ": %s", what);
    int rc = sv_cuda_enter(cu, err);
    const size_t n_bytes = (size_t)(n - 1) * stride_bytes(w) + device_bytes(w);
    return rc ? rc : sv_cuda_take(cu, SV_MEM_WEIGHTS, data, n_bytes, err, what);
}

/* Whether a weight that is taken as codes is multiplied with activations in fp8. */
static bool is_for_fp8(const struct sv_cuda *cu, const struct sv_quant *q)
{
    return cu->fp8 && q->code == SV_CODE_F8 &&
           (q->block_cols % SV_FP8_TILE_COLS == 0 || q->block_cols >= q->cols);
}

/* In codes, in 8 bits with a scale for each row, a norm in f32, or as it comes. */
static struct sv_weight kept(struct sv_cuda *cu, const struct sv_weight *w)
{
    struct sv_weight k = *w;
    k.quant = NULL;
    k.row_stride = 0;
    const bool w8a8 = w->quant && is_for_fp8(cu, w->quant);
    if (!(w->role & SV_ROLE_DRAFT) && w->role != SV_ROLE_EMBED && w->rows > 1)
        cu->n_fp8 += w8a8, cu->n_exact += !w8a8;
    if (w8a8) {
        k.fmt = {SV_F8, 1, SV_FP8_TILE_COLS, SV_F32};
        cu->bytes_k = k.cols > cu->bytes_k ? k.cols : cu->bytes_k;
        return k;
    }
    if (w->quant) {
        k.fmt = sv_codes_format(w->quant,
                                w->quant->code == SV_CODE_F8 && sv_codes_scales_fit(w->quant));
        if (sv_packed_bytes(w->rows, w->cols) > cu->codes_packed)
            cu->codes_packed = sv_packed_bytes(w->rows, w->cols);
        return k;
    }
    if (sv_role_is_norm(w->role))
        k.fmt.elem = SV_F32;
    if (!(w->role & SV_ROLE_DRAFT) || !cu->bytes || !sv_cuda_is_packed(w) || w->cols % 8 != 0)
        return k;
    k.fmt.elem = SV_F8;
    k.fmt.block_rows = 1;
    k.fmt.block_cols = w->cols;
    k.fmt.scale = SV_F32;
    if (k.cols > cu->bytes_k)
        cu->bytes_k = k.cols;
    return k;
}

int sv_cuda_upload_weight(struct sv_dev *dev, const struct sv_weight *host, struct sv_weight *out,
                          struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const struct sv_weight w = kept(cu, host);
    void *data;
    int rc = weights_alloc(cu, &w, 1, &data, err);
    if (!rc)
        rc = open_buffers(cu, err);
    if (!rc)
        rc = host->quant ? send_codes(cu, &w, host->quant, data, err)
             : w.fmt.elem == SV_F32 && host->fmt.elem != SV_F32 ? send_norm(cu, host, data, err)
                                                                : send(cu, host, &w.fmt, data, err);
    *out = w;
    out->data = data;
    if (!rc)
        rc = sv_cuda_wcomp_note(cu, out, err);
    if (rc)
        sv_cuda_free(dev, data);
    return rc;
}

void sv_cuda_free_weight(struct sv_dev *dev, struct sv_weight *w)
{
    sv_cuda_wcomp_forget(sv_cuda_of(dev), w);
    sv_cuda_free(dev, (void *)(uintptr_t)w->data);
}

int64_t sv_cuda_weight_bytes(const struct sv_dev *dev, const struct sv_weight *w, int32_t n_rows)
{
    const struct sv_cuda *cu = (const struct sv_cuda *)(const void *)dev;
    if (sv_cuda_wcomp_of(w) && !sv_gemm_is_co_resident(cu, w, n_rows) &&
        n_rows <=
            (cu->set == SV_CUDA_SM90 ? sv_gemm_wcomp_rows(cu) : sv_gemm_portable_wcomp_rows(cu)))
        return (int64_t)sv_wcomp_bytes(w->rows, w->cols);
    if (sv_cuda_is_mxfp4(w))
        return (int64_t)sv_mxfp4_bytes(w->rows, w->cols);
    if (sv_cuda_is_codes(w))
        return (int64_t)sv_codes_bytes(w->rows, w->cols, sv_cuda_code_bits(w));
    if (sv_cuda_is_w8a8(w))
        return (int64_t)sv_fp8_group_bytes(w->rows, w->cols);
    return (int64_t)w->rows * w->cols * (int64_t)sv_dtype_bytes(w->fmt.elem);
}

/* ---------------------------------------------------------------- weights from a seed */

/* Four standard normal numbers of (seed, counter): Philox4x32-10 and two Box-Muller pairs. Fast
 * functions: these are weights for timing, not draws. */
static __device__ __forceinline__ void normal4(uint64_t seed, uint64_t counter, float out[4])
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        const uint32_t h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const uint32_t r[4] = {c0, c1, c2, c3};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float u = ((float)(r[2 * i] >> 8) + 1.0f) * 0x1p-24f, s, c; /* (0, 1] */
        float radius = sqrtf(-2.0f * __logf(u));
        __sincosf((float)(r[2 * i + 1] >> 8) * (6.2831853f * 0x1p-24f), &s, &c);
        out[2 * i] = radius * c;
        out[2 * i + 1] = radius * s;
    }
}

/* Number i of the row-major matrix, whatever the layout; out begins with number 4 * group0. */
template <typename T>
static __global__ void random_plain(T *out, size_t n, size_t group0, float scale, float shift,
                                    uint64_t seed)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; 4 * g < n; g += stride) {
        float x[4];
        normal4(seed, group0 + g, x);
        for (int j = 0; j < 4 && 4 * g + j < n; j++)
            sv_store(out + 4 * g + j, scale * x[j] + shift);
    }
}

/* A thread fills 16 bytes: eight columns of a row of a tile. */
static __global__ void random_packed(__nv_bfloat16 *out, int32_t rows, int32_t cols, float scale,
                                     float shift, uint64_t seed)
{
    const size_t n = (size_t)sv_tiles(rows) * sv_tiles(cols) * (SV_TILE_ELEMS / 8);
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < n; g += stride) {
        const size_t tile = g / (SV_TILE_ELEMS / 8);
        const int32_t in_tile = (int32_t)(g % (SV_TILE_ELEMS / 8));
        const int32_t r = in_tile / 8, chunk = in_tile % 8 ^ (r & 7);
        const int64_t row = (int64_t)(tile / sv_tiles(cols)) * SV_TILE + r;
        const int32_t col = (int32_t)(tile % sv_tiles(cols)) * SV_TILE + 8 * chunk;
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (row < rows && col < cols) {
            /* Groups of four may begin inside a row when cols is odd: look each number up. */
            const uint64_t at = (uint64_t)row * cols + col;
            if (at % 4 == 0) {
                normal4(seed, at / 4, x);
                normal4(seed, at / 4 + 1, x + 4);
            } else {
                for (int j = 0; j < 8; j++) {
                    float four[4];
                    normal4(seed, (at + j) / 4, four);
                    const int k = (int)((at + j) % 4);
                    x[j] = k == 0 ? four[0] : k == 1 ? four[1] : k == 2 ? four[2] : four[3];
                }
            }
            for (int j = 0; j < 8; j++)
                x[j] = col + j < cols ? scale * x[j] + shift : 0.0f;
        }
        sv_store8(out + 8 * g, x);
    }
}

/* By way of bf16, as many rows at a time as a landing buffer holds. */
static int random_bytes(struct sv_cuda *cu, const struct sv_weight *w, float scale, float shift,
                        uint64_t seed, void *data, struct sv_err *err)
{
    const size_t row_bytes = (size_t)w->cols * 2;
    const int32_t step = (int32_t)(CHUNK_BYTES / row_bytes / SV_TILE * SV_TILE);
    if (step == 0)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "a weight with rows of %d numbers", (int)w->cols);
    int rc = open_buffers(cu, err);
    for (int32_t row = 0; row < w->rows && !rc; row += step) {
        const int32_t n = w->rows - row < step ? w->rows - row : step;
        void *at = cu->staging->landing[0];
        random_plain<<<(unsigned)cu->n_sms * 8, 256, 0, cu->stream>>>(
            (__nv_bfloat16 *)at, (size_t)n * (size_t)w->cols, (size_t)row * (size_t)w->cols / 4,
            scale, shift, seed);
        rc = sv_cuda_try(cudaGetLastError(), err, "random weights");
        if (!rc)
            sv_cuda_fp8_pack(cu, at, row, n, w->rows, w->cols, data);
    }
    return rc;
}

static int random_fill(struct sv_cuda *cu, const struct sv_weight *w, float scale, float shift,
                       uint64_t seed, void *data, struct sv_err *err)
{
    const size_t n = (size_t)w->rows * (size_t)w->cols;
    const unsigned grid = (unsigned)cu->n_sms * 8;
    if (w->fmt.elem == SV_F16)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "random f16 weights");
    if (w->fmt.elem == SV_F8)
        return random_bytes(cu, w, scale, shift, seed, data, err);
    if (sv_cuda_is_packed(w))
        random_packed<<<grid, 256, 0, cu->stream>>>((__nv_bfloat16 *)data, w->rows, w->cols, scale,
                                                    shift, seed);
    else if (w->fmt.elem == SV_BF16)
        random_plain<<<grid, 256, 0, cu->stream>>>((__nv_bfloat16 *)data, n, 0, scale, shift, seed);
    else
        random_plain<<<grid, 256, 0, cu->stream>>>((float *)data, n, 0, scale, shift, seed);
    return sv_cuda_try(cudaGetLastError(), err, "random weights");
}

int sv_cuda_random_weight(struct sv_dev *dev, const struct sv_weight *shape, float scale,
                          float shift, uint64_t seed, struct sv_weight *out, struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const struct sv_weight w = kept(cu, shape);
    void *data;
    int rc = weights_alloc(cu, &w, 1, &data, err);
    if (rc)
        return rc;
    rc = random_fill(cu, &w, scale, shift, seed, data, err);
    *out = w;
    out->data = data;
    if (!rc)
        rc = sv_cuda_wcomp_note(cu, out, err);
    if (rc)
        sv_cuda_free(dev, data);
    return rc;
}

/* ---------------------------------------------------------------- experts */

static const struct sv_format mxfp4_format = {SV_U8, 1, SV_MXFP4_BLOCK, SV_U8};

static bool is_mxfp4(const struct sv_quant *q)
{
    return q->code == SV_CODE_MXFP4 || q->code == SV_CODE_GG_MXFP4;
}

static struct sv_format expert_format(const struct sv_quant *q, bool fit)
{
    return is_mxfp4(q) ? mxfp4_format : sv_codes_format(q, fit);
}

/* n experts in codes, all in one way, or as they come. */
static int kept_experts(const struct sv_weight *w, int32_t n, struct sv_weight *k,
                        struct sv_err *err)
{
    bool fit = true;
    *k = *w;
    k->quant = NULL;
    k->row_stride = 0;
    for (int32_t e = 0; e < n && w->quant && fit; e++)
        fit = w[e].quant->code == SV_CODE_F8 && sv_codes_scales_fit(w[e].quant);
    for (int32_t e = 0; e < n && w->quant; e++) {
        const struct sv_format f = expert_format(w[e].quant, fit);
        if (e == 0)
            k->fmt = f;
        if (w[e].quant->code != w->quant->code || memcmp(&f, &k->fmt, sizeof f))
            return sv_fail(err, SV_EUNSUPPORTED, -1, "expert %d is quantized in another way",
                           (int)e);
    }
    return SV_OK;
}

static void place_expert(struct sv_weight *out, const struct sv_weight *w, void *data, int32_t e)
{
    *out = *w;
    out->data = (uint8_t *)data + (size_t)e * stride_bytes(w);
    out->priv = NULL;
}

int sv_cuda_upload_experts(struct sv_dev *dev, const struct sv_weight *host, int32_t n,
                           struct sv_weight *w, struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    void *data = NULL;
    struct sv_weight one;
    int rc = kept_experts(host, n, &one, err);
    cu->n_exact += n;
    if (!rc)
        rc = weights_alloc(cu, &one, n, &data, err);
    if (!rc)
        rc = open_buffers(cu, err);
    for (int32_t e = 0; e < n && !rc; e++) {
        place_expert(&w[e], &one, data, e);
        void *to = (void *)(uintptr_t)w[e].data;
        rc = !host[e].quant           ? send(cu, &host[e], &one.fmt, to, err)
             : sv_cuda_is_mxfp4(&one) ? send_mxfp4(cu, host[e].quant, to, err)
                                      : send_codes(cu, &one, host[e].quant, to, err);
    }
    if (rc) {
        sv_cuda_free(dev, data);
        w[0].data = NULL;
    }
    return rc;
}

int sv_cuda_random_experts(struct sv_dev *dev, const struct sv_weight *shape, int32_t n,
                           float scale, uint64_t seed, struct sv_weight *w, struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    void *data = NULL;
    struct sv_weight one = *shape;
    one.quant = NULL;
    if (shape->quant)
        one.fmt = mxfp4_format;
    int rc = weights_alloc(cu, &one, n, &data, err);
    for (int32_t e = 0; e < n && !rc; e++) {
        const uint64_t own = seed + (uint64_t)e * 0x9e3779b97f4a7c15u;
        place_expert(&w[e], &one, data, e);
        if (shape->quant)
            sv_cuda_mxfp4_tiles(cu, NULL, NULL, own, 0, one.rows, one.cols,
                                (void *)(uintptr_t)w[e].data);
        else
            rc = random_fill(cu, &one, scale, 0.0f, own, (void *)(uintptr_t)w[e].data, err);
    }
    if (rc) {
        sv_cuda_free(dev, data);
        w[0].data = NULL;
    }
    return rc;
}

void sv_cuda_free_experts(struct sv_dev *dev, struct sv_weight *w, int32_t n)
{
    (void)n;
    sv_cuda_free(dev, (void *)(uintptr_t)w[0].data);
}
