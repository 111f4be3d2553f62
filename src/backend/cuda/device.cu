/*
 * device.cu - the CUDA device's life: open, limits and scratch, memory, marks, faults latched by
 * kernels and by failed calls, bandwidth, and the backend's table. How it waits is in watch.cu.
 *
 * Entered through sv_cuda_open (from ops.c) and the table it hands out. Every call of the CUDA
 * library is checked: at set-up the caller gets the error, in the step it is latched until sync or
 * wait. Must not: synchronise or allocate in anything an op calls.
 */
#include "backend/cuda/attention.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/moe.h"
#include "backend/cuda/peers.h"
#include "backend/cuda/vendor.h"
#include "backend/cuda/watch.h"
#include "backend/gpu/gdn.h"
#include "backend/gpu/mla.h"
#include "backend/gpu/vision.h"

#include <string.h>

/* They fill pinned memory at load. */
#define COPY_THREADS 16

/* ---------------------------------------------------------------- errors */

/* The library's functions go by CUDA's names in this folder. */
static int fail_call(struct sv_err *err, int code, const char *what, cudaError_t rc)
{
    const bool is_call = strncmp(what, "cuda", 4) == 0;
    return sv_fail(err, code, -1, SV_GPU_LIBRARY ": %s%s: %s", is_call ? SV_GPU_CALL : "",
                   is_call ? what + 4 : what, cudaGetErrorString(rc));
}

bool sv_cuda_check(struct sv_cuda *cu, cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess) {
        if (strncmp(what, "cuda", 4) != 0)
            sv_cuda_launched(cu, what, 0);
        return true;
    }
    if (cu->latched.code == SV_OK)
        fail_call(&cu->latched, SV_EDEVICE, what, rc);
    return false;
}

int sv_cuda_try(cudaError_t rc, struct sv_err *err, const char *what)
{
    if (rc == cudaSuccess)
        return SV_OK;
    cudaGetLastError(); /* an error that is not sticky must not turn up in a later call */
    return fail_call(err, rc == cudaErrorMemoryAllocation ? SV_ENOMEM : SV_EDEVICE, what, rc);
}

/* Moves the fault, if there is one, to where the host looks, unless an older one is still there. */
static __global__ void take_fault(struct sv_cuda_fault *fault, struct sv_cuda_fault *host)
{
    sv_pdl_wait();
    if (fault->code && !host->code) {
        host->a = fault->a;
        host->b = fault->b;
        host->c = fault->c;
        host->code = fault->code;
        fault->code = 0;
    }
}

static int fail_fault(struct sv_err *err, const struct sv_cuda_fault *f)
{
    switch (f->code) {
    case SV_CUDA_FAULT_ROPE:
        return sv_fail(err, SV_EDEVICE, -1, "position %d is outside the rotary table of %d",
                       (int)f->a, (int)f->b);
    case SV_CUDA_FAULT_WRITE_PAGE:
        return sv_fail(err, SV_EDEVICE, -1, "write: slot %d has no page for position %d", (int)f->a,
                       (int)f->b);
    case SV_CUDA_FAULT_READ_PAGE:
        return sv_fail(err, SV_EDEVICE, -1, "attention: slot %d has no page for position %d",
                       (int)f->a, (int)f->b);
    case SV_CUDA_FAULT_DRAFT_PAGE:
        return sv_fail(err, SV_EDEVICE, -1, "draft context: slot %d has no page for position %d",
                       (int)f->a, (int)f->b);
    case SV_CUDA_FAULT_HEAD_NAN:
        return sv_fail(err, SV_EDEVICE, -1, "logits of row %d are all NaN", (int)f->a);
    case SV_CUDA_FAULT_SAMPLE_NAN:
        return sv_fail(err, SV_EDEVICE, -1, "sample: %d of %d logits of slot %d are NaN", (int)f->a,
                       (int)f->b, (int)f->c);
    case SV_CUDA_FAULT_SAMPLE_INF:
        return sv_fail(err, SV_EDEVICE, -1, "sample: the largest logit of slot %d is %s", (int)f->a,
                       f->b ? "+inf" : "-inf");
    case SV_CUDA_FAULT_VERIFY_WIDTH:
        return sv_fail(err, SV_EDEVICE, -1, "verify: a segment of %d rows, room for %d", (int)f->a,
                       (int)f->b);
    case SV_CUDA_FAULT_LOGPROB:
        return sv_fail(
            err, SV_EDEVICE, -1,
            "log probabilities of slot %d, token %d: %d logits are NaN, or the largest is "
            "infinite",
            (int)f->a, (int)f->b, (int)f->c);
    case SV_CUDA_FAULT_HISTORY:
        return sv_fail(err, SV_EDEVICE, -1, "history: slot %d would reach %d, its room ends at %d",
                       (int)f->a, (int)f->b, (int)f->c);
    default:
        return sv_fail(err, SV_EDEVICE, -1, SV_GPU_LIBRARY ": fault %d (%d, %d, %d)", (int)f->code,
                       (int)f->a, (int)f->b, (int)f->c);
    }
}

/* Reports what failed on the host, else what the kernels left at place i. */
static int report(struct sv_cuda *cu, int32_t i, struct sv_err *err)
{
    int code = sv_cuda_peers_failed(cu, &cu->fault_host[i], err);
    if (sv_cuda_is_stuck(cu))
        return sv_cuda_stuck(cu, err); /* every time: it never gets well */
    if (code)
        return code; /* likewise */
    code = cu->latched.code;
    if (code) {
        sv_fail(err, code, -1, "%s", cu->latched.msg);
        cu->latched.code = SV_OK;
    } else if (cu->fault_host[i].code) {
        code = fail_fault(err, &cu->fault_host[i]);
    }
    cu->fault_host[i].code = 0;
    return code;
}

/* ---------------------------------------------------------------- waiting */

static void take(struct sv_cuda *cu, int32_t i)
{
    sv_cuda_launch(cu, "take_fault", take_fault, 1, 1, 0, cu->fault, cu->fault_host + i);
}

static int cuda_sync(struct sv_dev *dev, struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    sv_cuda_check(cu, cudaSetDevice(cu->ordinal), "cudaSetDevice");
    take(cu, SV_MARKS);
    sv_cuda_wait_latched(cu, NULL, "the queue's end");
    int code = report(cu, SV_MARKS, err);
    /* Everything before the marks is done as well; an older fault is the better message. */
    for (int32_t i = 0; i < SV_MARKS; i++)
        if (cu->fault_host[i].code)
            code = report(cu, i, err);
    return code;
}

static void cuda_mark(struct sv_dev *dev, int32_t i)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    sv_cuda_check(cu, cudaSetDevice(cu->ordinal), "cudaSetDevice");
    take(cu, i);
    if (sv_cuda_is_stuck(cu))
        return;
    cu->marked[i] = sv_cuda_check(cu, cudaEventRecord(cu->mark[i], cu->stream), "cudaEventRecord");
    sv_cuda_marked(cu, i);
}

static int cuda_wait(struct sv_dev *dev, int32_t i, struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (cu->marked[i])
        sv_cuda_wait_latched(cu, cu->mark[i], "a step's end");
    return report(cu, i, err);
}

static void cuda_stamp(struct sv_dev *dev, int32_t i)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (sv_cuda_is_stuck(cu))
        return;
    if (cu->stamp[i] || sv_cuda_check(cu, cudaEventCreate(&cu->stamp[i]), "cudaEventCreate"))
        sv_cuda_check(cu, cudaEventRecord(cu->stamp[i], cu->stream), "cudaEventRecord");
}

static double cuda_stamp_us(struct sv_dev *dev, int32_t from, int32_t to)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    float ms = 0;
    if (sv_cuda_is_stuck(cu))
        return 0;
    sv_cuda_check(cu, cudaEventElapsedTime(&ms, cu->stamp[from], cu->stamp[to]),
                  "cudaEventElapsedTime");
    return 1e3 * (double)ms;
}

/* ---------------------------------------------------------------- memory */

static int alloc_as(struct sv_dev *dev, enum sv_mem kind, void **out, size_t n_bytes,
                    struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    char what[64];
    *out = NULL;
    snprintf(what, sizeof what, "no memory for %zu bytes on the GPU", n_bytes);
    if (sv_fault_hit())
        return sv_fail(err, SV_ENOMEM, -1, SV_GPU_LIBRARY ": %s", what);
    int rc = sv_cuda_enter(cu, err);
    if (!rc) /* which cudaMalloc might do without a limit */
        rc = sv_cuda_wait(cu, NULL, "the queue's end", err);
    if (!rc)
        rc = sv_cuda_take(cu, kind, out, n_bytes, err, what);
    if (!rc && n_bytes)
        rc = sv_cuda_try(cudaMemsetAsync(*out, 0, n_bytes, cu->stream), err, "clearing memory");
    if (!rc)
        rc = sv_cuda_wait(cu, NULL, "the clearing of memory", err);
    if (rc && *out) {
        sv_cuda_drop(cu, *out);
        *out = NULL;
    }
    return rc;
}

int sv_cuda_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err)
{
    return alloc_as(dev, SV_MEM_SCRATCH, out, n_bytes, err);
}

static int cuda_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err)
{
    return alloc_as(dev, SV_MEM_ASKED, out, n_bytes, err);
}

static int64_t cuda_held(const struct sv_dev *dev, enum sv_mem kind)
{
    return ((const struct sv_cuda *)(const void *)dev)->held.bytes[kind];
}

void sv_cuda_free(struct sv_dev *dev, void *p)
{
    if (p)
        sv_cuda_drop(sv_cuda_of(dev), p);
}

static void cuda_memory(struct sv_dev *dev, int64_t *n_free, int64_t *n_total)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    size_t bytes_free = 0, bytes_total = 0;
    if (sv_cuda_enter(cu, NULL) == SV_OK)
        sv_cuda_check(cu, cudaMemGetInfo(&bytes_free, &bytes_total), "cudaMemGetInfo");
    *n_free = (int64_t)bytes_free;
    *n_total = (int64_t)bytes_total;
}

static int cuda_reserve(struct sv_dev *dev, const struct sv_dev_limits *lim, struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (lim->max_vocab > SV_CUDA_MAX_VOCAB)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "a vocabulary of %d; the GPU kernels sample up to %d", (int)lim->max_vocab,
                       (int)SV_CUDA_MAX_VOCAB);
    if (lim->max_rows > 65535)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%d rows in a batch; the GPU kernels take up to 65535", (int)lim->max_rows);
    /* Nothing may be running that uses the old scratch, and no graph may remember it. */
    int rc = sv_cuda_wait(cu, NULL, "the queue's end", err);
    sv_cuda_graphs_clear(cu);
    sv_cuda_staging_drop(cu); /* weights come first: what follows may have their buffers */
    cu->lim = *lim;
    if (!rc)
        rc = sv_cuda_wcomp_reserve(cu, err);
    if (!rc)
        rc = sv_cuda_gemm_reserve(cu, err);
    if (!rc)
        rc = sv_cuda_attn_reserve(cu, lim, err);
    if (!rc)
        rc = sv_cuda_sample_reserve(cu, err);
    if (!rc && lim->max_experts)
        rc = sv_cuda_route_open(cu, err);
    if (!rc && lim->max_experts)
        rc = sv_cuda_moe_open(cu, err);
    return rc;
}

/* ---------------------------------------------------------------- bandwidth */

/* Each thread has eight 16-byte loads in flight; what it read decides whether it writes, so no load
 * is dropped. */
static __global__ void read_all(const uint4 *data, size_t n, uint32_t *sink)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t seen = 0;
    for (; i + 7 * stride < n; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            v[k] = __ldcs(data + i + (size_t)k * stride);
#pragma unroll
        for (int k = 0; k < 8; k++)
            seen ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < n; i += stride)
        seen ^= data[i].x ^ data[i].y ^ data[i].z ^ data[i].w;
    if (seen == 0x12345678u)
        *sink = seen;
}

static double cuda_measure_read(struct sv_dev *dev, size_t n_bytes)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const size_t n = n_bytes / sizeof(uint4);
    void *data = NULL, *sink = NULL;
    cudaEvent_t t[2] = {NULL, NULL};
    double best = 0;
    bool ok = n > 0 && sv_cuda_alloc(dev, &data, n * sizeof(uint4), NULL) == SV_OK &&
              sv_cuda_alloc(dev, &sink, sizeof(uint32_t), NULL) == SV_OK &&
              cudaEventCreate(&t[0]) == cudaSuccess && cudaEventCreate(&t[1]) == cudaSuccess &&
              cudaMemsetAsync(data, 0x5b, n * sizeof(uint4), cu->stream) == cudaSuccess;
    for (int round = 0; ok && round < 8; round++) {
        float ms = 0;
        ok = cudaEventRecord(t[0], cu->stream) == cudaSuccess;
        read_all<<<(unsigned)cu->n_sms * 8, 256, 0, cu->stream>>>((const uint4 *)data, n,
                                                                  (uint32_t *)sink);
        ok = ok && cudaGetLastError() == cudaSuccess &&
             cudaEventRecord(t[1], cu->stream) == cudaSuccess &&
             sv_cuda_wait(cu, t[1], "a read of memory", NULL) == SV_OK &&
             cudaEventElapsedTime(&ms, t[0], t[1]) == cudaSuccess;
        if (ok && ms > 0 && (double)(n * sizeof(uint4)) / ((double)ms * 1e6) > best)
            best = (double)(n * sizeof(uint4)) / ((double)ms * 1e6);
    }
    for (int i = 0; i < 2; i++)
        if (t[i] && sv_cuda_frees(cu))
            cudaEventDestroy(t[i]);
    sv_cuda_free(dev, data);
    sv_cuda_free(dev, sink);
    return ok ? best : 0;
}

/* ---------------------------------------------------------------- open and close */

static const char *cuda_describe(struct sv_dev *dev)
{
    return sv_cuda_of(dev)->text;
}

static enum sv_dtype cuda_act_dtype(const struct sv_dev *dev)
{
    return ((const struct sv_cuda *)(const void *)dev)->act;
}

static enum sv_dtype cuda_compute_dtype(const struct sv_dev *dev)
{
    return ((const struct sv_cuda *)(const void *)dev)->compute;
}

static void close_queue(struct sv_cuda *cu)
{
    for (int i = 0; i < SV_MARKS; i++)
        if (cu->mark[i])
            cudaEventDestroy(cu->mark[i]);
    for (int i = 0; i < SV_STAMPS; i++)
        if (cu->stamp[i])
            cudaEventDestroy(cu->stamp[i]);
    if (cu->stream)
        cudaStreamDestroy(cu->stream);
}

static void cuda_close(struct sv_dev *dev)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    cudaSetDevice(cu->ordinal);
    if (cu->stream)
        sv_cuda_wait_latched(cu, NULL, "the queue's end");
    /* These free the host's memory in any case; the device's not where that would never end
     * (watch.cu). */
    sv_cuda_graphs_close(cu);
    sv_cuda_wcomp_close(cu);
    sv_cuda_gemm_close(cu);
    sv_cuda_attn_close(cu);
    sv_cuda_sample_close(cu);
    sv_cuda_route_close(cu);
    sv_cuda_window_close(cu);
    sv_cuda_staging_close(cu);
    sv_cuda_drop(cu, cu->fault);
    sv_cuda_drop_host(cu, cu->fault_host);
    if (sv_cuda_frees(cu))
        close_queue(cu);
    sv_cuda_watch_close(cu);
    sv_ledger_fini(&cu->held);
    if (cu->pool)
        sv_pool_close(cu->pool);
    sv_free(cu);
}

static bool cuda_rounds(const struct sv_dev *dev)
{
    return ((const struct sv_cuda *)(const void *)dev)->n_fp8 > 0;
}

static bool cuda_quantizes(const struct sv_dev *dev)
{
    return ((const struct sv_cuda *)(const void *)dev)->bytes;
}

static const struct sv_moe_ops cuda_moe = {true,
                                           sv_cuda_upload_experts,
                                           sv_cuda_random_experts,
                                           sv_cuda_free_experts,
                                           sv_cuda_router_topk,
                                           sv_cuda_moe_gate_up,
                                           sv_cuda_moe_down};
static const struct sv_gdn_ops cuda_gdn = {SV_CUDA_MAX_KEY, sv_cuda_gdn_conv, sv_cuda_gdn_scan,
                                           sv_cuda_gdn_norm, sv_cuda_gdn_few};
static const struct sv_mla_ops cuda_mla = {sv_cuda_mla_write, sv_cuda_head_products};

static const struct sv_vision_ops cuda_vision = {SV_CUDA_HEAD_STEP, sv_cuda_layer_norm,
                                                 sv_cuda_gelu, sv_cuda_add_corners};

static struct sv_backend cuda_table(void)
{
    struct sv_backend be = {};
    be.name = SV_GPU_BACKEND;
    be.has_graphs = true;
    be.takes_columns = true;
    be.joins_hosts = true;
    be.head_confidence = true;
    be.close = cuda_close;
    be.reserve = cuda_reserve;
    be.alloc = cuda_alloc;
    be.free = sv_cuda_free;
    be.host_alloc = sv_cuda_host_alloc;
    be.host_free = sv_cuda_host_free;
    be.memory = cuda_memory;
    be.held = cuda_held;
    be.takes_codes = sv_cuda_takes_codes;
    be.upload_weight = sv_cuda_upload_weight;
    be.random_weight = sv_cuda_random_weight;
    be.free_weight = sv_cuda_free_weight;
    be.weight_bytes = sv_cuda_weight_bytes;
    be.rounds = cuda_rounds;
    be.quantizes = cuda_quantizes;
    be.upload = sv_cuda_upload;
    be.download = sv_cuda_download;
    be.copy = sv_cuda_copy;
    be.sync = cuda_sync;
    be.mark = cuda_mark;
    be.wait = cuda_wait;
    be.graph_run = sv_cuda_graph_run;
    be.stamp = cuda_stamp;
    be.stamp_us = cuda_stamp_us;
    be.window_open = sv_cuda_window_open;
    be.window_join = sv_cuda_window_join;
    be.place = sv_cuda_place;
    be.block_ids = sv_cuda_block_ids;
    be.embed = sv_cuda_embed;
    be.add_rms_norm = sv_cuda_add_rms_norm;
    be.gemm = sv_cuda_gemm;
    be.gemm_act_mul = sv_cuda_gemm_act_mul;
    be.qk_norm_rope_kv_write = sv_cuda_qk_norm_rope_kv_write;
    be.attention = sv_cuda_attention;
    be.sigmoid_mul = sv_cuda_sigmoid_mul;
    be.add_gated = sv_cuda_add_gated;
    be.gdn = &cuda_gdn;
    be.mla = &cuda_mla;
    be.vision = &cuda_vision;
    be.act_mul = sv_cuda_act_mul;
    be.head_argmax = sv_cuda_head_argmax;
    be.gather_logits = sv_cuda_gather_logits;
    be.share_rows = sv_cuda_share_rows;
    be.logit_pos = sv_cuda_logit_pos;
    be.sample = sv_cuda_sample;
    be.head_among = sv_cuda_head_among;
    be.logit_mask = sv_cuda_logit_mask;
    be.logit_rules = sv_cuda_logit_rules;
    be.logprobs = sv_cuda_logprobs;
    be.history = sv_cuda_history;
    be.replace_drafts = sv_cuda_replace_drafts;
    be.verify = sv_cuda_verify;
    be.commit = sv_cuda_commit;
    be.snapshot = sv_cuda_snapshot;
    be.draft_context_kv = sv_cuda_draft_context_kv;
    be.moe = &cuda_moe;
    be.measure_read = cuda_measure_read;
    be.describe = cuda_describe;
    be.act_dtype = cuda_act_dtype;
    be.compute_dtype = cuda_compute_dtype;
    return be;
}

static const struct sv_backend cuda_backend = cuda_table();

/* Number of devices; 0 and the reason when there is no driver or no device. */
static int count_devices(const char **why)
{
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    *why = rc ? cudaGetErrorString(rc) : "no device";
    cudaGetLastError();
    return rc == cudaSuccess ? n : 0;
}

bool sv_cuda_present(void)
{
    const char *why;
    return count_devices(&why) > 0;
}

static int check_options(const struct sv_dev_opts *opts, struct sv_err *err)
{
    const char *why;
    if (opts->compute != SV_F32 && opts->compute != SV_BF16)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%s computes in f32 or bf16, not in %s",
                       SV_GPU_BACKEND, sv_dtype_name(opts->compute));
    if (opts->tuning.activations == SV_ACTIVATIONS_INT8)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "activations: those of %s are exact or in fp8; int8 is for the CPU",
                       SV_GPU_BACKEND);
    if (opts->tuning.isa != SV_ISA_AUTO)
        return sv_fail(err, SV_EINVAL, -1, "an instruction set is for the CPU, not for %s",
                       SV_GPU_BACKEND);
    if (opts->n_threads < 0 || opts->n_threads > 4096)
        return sv_fail(err, SV_EINVAL, -1, "%d threads", opts->n_threads);
    int rc = sv_cuda_chip_options(opts, err);
    if (rc)
        return rc;
    int n = count_devices(&why);
    if (n == 0)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%s: no %s GPU can be used (%s)", SV_GPU_BACKEND,
                       SV_GPU_MAKER, why);
    const int32_t ordinal = opts->ordinal + opts->ranks.rank;
    if (ordinal < 0 || (ordinal >= n && opts->ranks.n > 1))
        return sv_fail(err, SV_EINVAL, -1,
                       "%d ranks: rank %d needs GPU %d, and this machine has %d, counted from 0",
                       (int)opts->ranks.n, (int)opts->ranks.rank, (int)ordinal, n);
    if (ordinal >= n)
        return sv_fail(err, SV_EINVAL, -1, "GPU %d; this machine has %d, counted from 0",
                       (int)opts->ordinal, n);
    return SV_OK;
}

/* What the device is; refuses one that has no kernels here. */
static int read_properties(struct sv_cuda *cu, enum sv_kernels kernels, struct sv_err *err)
{
    cudaDeviceProp prop;
    cudaFuncAttributes attr;
    int rc = sv_cuda_try(cudaSetDevice(cu->ordinal), err, "cudaSetDevice");
    if (!rc)
        rc = sv_cuda_try(cudaGetDeviceProperties(&prop, cu->ordinal), err,
                         "cudaGetDeviceProperties");
    if (rc)
        return rc;
    cu->cc = 10 * prop.major + prop.minor;
    cu->n_sms = prop.multiProcessorCount;
    cu->l2_bytes = (size_t)prop.l2CacheSize;
    rc = sv_cuda_chip(cu, &prop, kernels, err);
    if (!rc)
        rc = sv_cuda_try(cudaFuncGetAttributes(&attr, take_fault), err, "this build's kernels");
    /* Kernels compiled for less than 9.0 do not wait for their predecessors themselves. */
    cu->pdl = !rc && cu->pdl && attr.ptxVersion >= 90;
    return rc;
}

static int open_parts(struct sv_cuda *cu, const struct sv_dev_opts *opts, struct sv_err *err)
{
    struct sv_dev *dev = (struct sv_dev *)(void *)cu;
    int n_threads = opts->n_threads ? opts->n_threads : sv_cpu_count();
    int rc = sv_pool_open(&cu->pool, n_threads < COPY_THREADS ? n_threads : COPY_THREADS, err);
    if (!rc)
        rc = sv_cuda_try(cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking), err,
                         "cudaStreamCreate");
    if (!rc)
        rc = sv_cuda_watch_open(cu, opts->timeout_s, err);
    for (int i = 0; i < SV_MARKS && !rc; i++)
        rc = sv_cuda_try(cudaEventCreateWithFlags(&cu->mark[i], cudaEventDisableTiming), err,
                         "cudaEventCreate");
    if (!rc)
        rc = sv_cuda_try(cudaHostAlloc((void **)&cu->fault_host,
                                       (SV_MARKS + 1) * sizeof *cu->fault_host,
                                       cudaHostAllocDefault),
                         err, "pinned memory");
    if (!rc) {
        memset(cu->fault_host, 0, (SV_MARKS + 1) * sizeof *cu->fault_host);
        rc = sv_cuda_alloc(dev, (void **)&cu->fault, sizeof *cu->fault, err);
    }
    if (!rc)
        rc = sv_cuda_staging_open(cu, err);
    if (!rc && !opts->no_graphs)
        rc = sv_cuda_graphs_open(cu, err);
    return rc;
}

int sv_cuda_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err)
{
    int rc = check_options(opts, err);
    if (rc)
        return rc;
    struct sv_cuda *cu = (struct sv_cuda *)sv_calloc(1, sizeof *cu);
    if (!cu)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for the %s device", SV_GPU_LIBRARY);
    cu->be = &cuda_backend;
    cu->ordinal = opts->ordinal + opts->ranks.rank;
    cu->ranks = opts->ranks;
    cu->compute = opts->compute;
    cu->act = opts->compute;
    cu->wcomp_mode = opts->tuning.compress_weights;
    cu->two_shots = opts->tuning.two_shots;
    rc = read_properties(cu, opts->tuning.kernels, err);
    cu->bytes =
        opts->tuning.draft_quant != SV_TOGGLE_OFF && cu->set == SV_CUDA_SM90 && cu->act == SV_BF16;
    cu->fp8 = opts->tuning.activations == SV_ACTIVATIONS_FP8;
    if (!rc && cu->fp8 && (cu->set != SV_CUDA_SM90 || cu->act != SV_BF16))
        rc = sv_fail(
            err, SV_EUNSUPPORTED, -1,
            "activations: fp8 needs --dtype bf16 and the kernels of sm_90a (Hopper); this is "
            "%s in %s",
            cu->text, sv_dtype_name(cu->act));
    if (!rc && cu->fp8)
        snprintf(cu->text + strlen(cu->text), sizeof cu->text - strlen(cu->text),
                 ", fp8 activations");
    if (!rc)
        rc = open_parts(cu, opts, err);
    if (rc) {
        cuda_close((struct sv_dev *)(void *)cu);
        return rc;
    }
    *dev = (struct sv_dev *)(void *)cu;
    return SV_OK;
}
