/*
 * peers.cu - the GPUs of other ranks: the window of this one, the way to theirs, the end of waits.
 *
 * Called through the table in device.cu and by watch.cu, which waits. Ranks are threads of this
 * process, whose devices reach each other's memory directly, or processes that open each other's
 * windows by a handle; parts of those on other hosts are exchanged (nccl.h). Kernels wait for parts
 * by themselves (join.cuh); the host looks whether these can come at all, and ends the waits where
 * not. Must not: free a window that another rank may still write to, which the caller sees to
 * (sv_world_leave).
 */
#include "backend/cuda/nccl.h"
#include "backend/cuda/vendor.h"
#include "backend/cuda/watch.h"

#include <string.h>

/* Smaller ones share their memory with others, and a handle names all of it. */
#define LEAST_BYTES ((size_t)2 << 20)

struct key {
    uint8_t *window; /* in the process that made it */
    int32_t ordinal;
    bool processes;
    char pci[16]; /* the GPU's address: other processes may count them otherwise */
    cudaIpcMemHandle_t handle;
};

static size_t align_up(size_t n)
{
    return (n + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
}

/* A row's best token travels in 16 bytes, and what was made of rows behind 16 that tell a fault. */
static size_t part_bytes(const struct sv_window_need *need, int kind)
{
    const size_t n = need->n_bytes[kind] * (kind == SV_JOIN_BEST ? 2 : 1) +
                     (kind == SV_JOIN_ROWS ? sizeof(uint4) : 0);
    return align_up(n > sizeof(uint4) ? n : sizeof(uint4));
}

static int take(struct sv_cuda *cu, void **out, size_t n_bytes, int value, struct sv_err *err)
{
    char what[64];
    snprintf(what, sizeof what, "no memory for %zu bytes of a window", n_bytes);
    if (sv_fault_hit())
        return sv_fail(err, SV_ENOMEM, -1, SV_GPU_LIBRARY ": %s", what);
    int rc = sv_cuda_take(cu, SV_MEM_ASKED, out, n_bytes, err, what);
    return rc ? rc
              : sv_cuda_try(cudaMemsetAsync(*out, value, n_bytes, cu->stream), err,
                            "clearing memory");
}

int sv_cuda_window_open(struct sv_dev *dev, const struct sv_window_need *need,
                        struct sv_window_key *key, struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct sv_cuda_peers *p = (struct sv_cuda_peers *)sv_calloc(1, sizeof *p);
    SV_REQUIRE(!cu->peers);
    cu->peers = p;
    if (!p)
        return sv_fail(err, SV_ENOMEM, -1, "table of ranks");
    for (int k = 0; k < SV_JOINS; k++)
        p->at[k + 1] = p->at[k] + (size_t)cu->ranks.n * part_bytes(need, k);
    p->at[SV_JOINS] = p->at[SV_JOINS] > LEAST_BYTES ? p->at[SV_JOINS] : LEAST_BYTES;
    p->processes = need->processes;
    const size_t mixer = need->n_bytes[SV_JOIN_MIXER], ffn = need->n_bytes[SV_JOIN_FFN];
    uint8_t *window = NULL;
    int rc = sv_cuda_enter(cu, err);
    if (!rc)
        rc = take(cu, (void **)&window, p->at[SV_JOINS], 0xff, err);
    p->window[cu->ranks.rank] = window;
    if (!rc)
        rc = take(cu, &p->sums, mixer > ffn ? mixer : ffn, 0, err);
    if (!rc)
        rc = take(cu, (void **)&p->best, need->n_bytes[SV_JOIN_BEST], 0, err);
    if (!rc)
        rc = take(cu, (void **)&p->dead, sizeof *p->dead, 0, err);
    if (!rc)
        rc = sv_cuda_try(cudaHostAlloc((void **)&p->stop, sizeof *p->stop, cudaHostAllocDefault),
                         err, "pinned memory");
    if (rc)
        return rc;
    memset(p->stop, 0, sizeof *p->stop);
    struct key made = {};
    made.window = window;
    made.ordinal = cu->ordinal;
    made.processes = need->processes;
    rc = sv_cuda_try(cudaDeviceGetPCIBusId(made.pci, (int)sizeof made.pci, cu->ordinal), err,
                     "cudaDeviceGetPCIBusId");
    if (need->processes && !rc)
        rc = sv_cuda_try(cudaIpcGetMemHandle(&made.handle, window), err, "cudaIpcGetMemHandle");
    static_assert(sizeof made <= sizeof key->bytes, "a key holds it");
    memset(key, 0, sizeof *key);
    memcpy(key->bytes, &made, sizeof made);
    /* All ones are there before another rank can write. */
    return rc ? rc : sv_cuda_wait(cu, NULL, "the clearing of a window", err);
}

/* Way to the memory of another GPU of this process. */
static int reach(struct sv_cuda *cu, int32_t rank, int32_t ordinal, struct sv_err *err)
{
    int can = 0;
    if (ordinal == cu->ordinal)
        return SV_OK;
    int rc = sv_cuda_try(cudaDeviceCanAccessPeer(&can, cu->ordinal, ordinal), err,
                         "cudaDeviceCanAccessPeer");
    if (!rc && !can)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "tensor parallel: GPU %d (rank %d) cannot reach the memory of GPU %d (rank "
                       "%d)",
                       cu->ordinal, cu->ranks.rank, ordinal, rank);
    if (rc)
        return rc;
    const cudaError_t got = cudaDeviceEnablePeerAccess(ordinal, 0);
    if (got == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
        return SV_OK;
    }
    return sv_cuda_try(got, err, "cudaDeviceEnablePeerAccess");
}

/* For people: atomics of a peer are native through NVLink alone. */
static enum sv_cuda_way way_to(const struct sv_cuda *cu, const char *pci)
{
    int other = 0, atomics = 0;
    cudaError_t got = cudaDeviceGetByPCIBusId(&other, pci);
    if (got == cudaSuccess && other == cu->ordinal)
        return SV_CUDA_SAME_GPU;
    if (got == cudaSuccess)
        got = cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, cu->ordinal,
                                        other);
    if (got == cudaSuccess)
        return atomics ? SV_CUDA_NVLINK : SV_CUDA_PCIE;
    cudaGetLastError(); /* it is no fault of the device */
    return SV_CUDA_UNKNOWN;
}

void sv_cuda_place(const struct sv_dev *dev, struct sv_dev_place *out)
{
    static const char *const way[] = {"the same GPU", "NVLink", "PCIe", "unknown link"};
    const struct sv_cuda *cu = (const struct sv_cuda *)(const void *)dev;
    out->gpu = cu->ordinal;
    if (cudaDeviceGetPCIBusId(out->pci, (int)sizeof out->pci, cu->ordinal) != cudaSuccess)
        cudaGetLastError();
    if (cu->peers)
        snprintf(out->link, sizeof out->link, "%s",
                 cu->peers->hosts ? "other hosts" : way[cu->peers->way]);
}

int sv_cuda_window_join(struct sv_dev *dev, const struct sv_peers *peers, struct sv_err *err)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct sv_cuda_peers *p = cu->peers;
    int rc = sv_cuda_enter(cu, err);
    for (int32_t r = 0; r < cu->ranks.n && !rc; r++) {
        struct key key;
        memcpy(&key, peers->key[r].bytes, sizeof key);
        if (r == cu->ranks.rank || (peers->far && peers->far[r] >= 0))
            continue;
        /* On one GPU a kernel that starts early holds room that the other rank needs to come to
         * the join. */
        if (!key.processes && key.ordinal == cu->ordinal)
            cu->pdl = false;
        const enum sv_cuda_way way = way_to(cu, key.pci);
        p->way = way > p->way ? way : p->way;
        rc = sv_fault_hit() ? sv_fail(err, SV_EDEVICE, -1, "a way to another GPU") : SV_OK;
        if (!rc && key.processes)
            rc = sv_cuda_try(cudaIpcOpenMemHandle((void **)&p->window[r], key.handle,
                                                  cudaIpcMemLazyEnablePeerAccess),
                             err, "cudaIpcOpenMemHandle");
        else if (!rc && !(rc = reach(cu, r, key.ordinal, err)))
            p->window[r] = key.window;
    }
    if (rc)
        return rc;
    p->progress = peers->progress;
    p->failure = peers->failure;
    p->timeout_us = peers->timeout_us;
    /* A join's timeout ends first, and names the rank; only then the device counts as stuck. */
    if (cu->watch && cu->watch->limit_us && peers->timeout_us > 0)
        cu->watch->limit_us += peers->timeout_us;
    rc = peers->far ? sv_cuda_hosts_open(cu, peers, err) : SV_OK;
    const int failed = peers->far ? sv_cuda_peers_failed(cu, NULL, err) : SV_OK;
    return failed ? failed : rc;
}

void sv_cuda_window_close(struct sv_cuda *cu)
{
    struct sv_cuda_peers *p = cu->peers;
    if (!p)
        return;
    sv_cuda_hosts_close(cu);
    for (int32_t r = 0; p->processes && r < cu->ranks.n; r++)
        if (r != cu->ranks.rank && p->window[r] && sv_cuda_frees(cu))
            sv_cuda_check(cu, cudaIpcCloseMemHandle(p->window[r]), "cudaIpcCloseMemHandle");
    sv_cuda_drop(cu, p->window[cu->ranks.rank]);
    sv_cuda_drop(cu, p->sums);
    sv_cuda_drop(cu, p->best);
    sv_cuda_drop(cu, p->dead);
    sv_cuda_drop_host(cu, p->stop);
    sv_free(p);
    cu->peers = NULL;
}

/* ---------------------------------------------------------------- failures */

static void fail(struct sv_cuda *cu, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct sv_cuda *cu, const char *fmt, ...)
{
    char text[sizeof((struct sv_failure *)NULL)->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sv_failure_set(cu->peers->failure, cu->ranks.rank, text);
}

static uint64_t progress_of(const struct sv_cuda_peers *p, int32_t r)
{
    return __atomic_load_n(&p->progress[r].passes_joins, __ATOMIC_ACQUIRE);
}

/* Ranks that have enqueued the same number of passes have had the same number of joins. */
static void compare(struct sv_cuda *cu, int32_t r)
{
    const uint64_t own = progress_of(cu->peers, cu->ranks.rank), theirs = progress_of(cu->peers, r);
    if (own >> 32 != theirs >> 32 || own == theirs)
        return;
    fail(cu,
         "ranks %d and %d are not in step: pass %u has ended after join %u on rank %d, and rank %d "
         "is at join %u",
         cu->ranks.rank, r, (uint32_t)(theirs >> 32), (uint32_t)theirs, r, cu->ranks.rank,
         (uint32_t)own);
}

static bool has_failed(const struct sv_cuda_peers *p)
{
    return __atomic_load_n(&p->failure->stop, __ATOMIC_ACQUIRE) != 0;
}

/* Exchanges with other hosts have no limit of their own. Of the ranks there the one that has
 * enqueued least is named. */
static void look_far(struct sv_cuda *cu, int64_t waited_us)
{
    const struct sv_cuda_peers *p = cu->peers;
    const char *why = sv_cuda_hosts_broken(cu);
    int32_t least = -1;
    if (why)
        fail(cu, "rank %d exchanges with other hosts no more: %s", cu->ranks.rank, why);
    if (why || p->timeout_us < 0 || waited_us < p->timeout_us)
        return;
    for (int32_t r = 0; r < cu->ranks.n; r++)
        if (p->hosts->far[r] &&
            (least < 0 || progress_of(p, r) >> 32 < progress_of(p, least) >> 32))
            least = r;
    fail(cu, "no answer from rank %d for %lld ms: rank %d waits for parts of other hosts", least,
         (long long)(p->timeout_us / 1000), cu->ranks.rank);
}

void sv_cuda_peers_look(struct sv_cuda *cu, int64_t waited_us)
{
    struct sv_cuda_peers *p = cu->peers;
    if (!p || !p->failure || p->stopped)
        return;
    for (int32_t r = 0; r < cu->ranks.n && !has_failed(p); r++)
        compare(cu, r);
    if (p->hosts && !has_failed(p))
        look_far(cu, waited_us);
    p->stopped = has_failed(p);
    if (p->stopped)
        __atomic_store_n(&p->stop->x, 1u, __ATOMIC_RELEASE);
    if (p->stopped && p->hosts)
        sv_cuda_hosts_end(cu);
}

int sv_cuda_peers_failed(struct sv_cuda *cu, const struct sv_cuda_fault *f, struct sv_err *err)
{
    const struct sv_cuda_peers *p = cu->peers;
    if (!p || !p->failure)
        return SV_OK;
    if (f && f->code == SV_CUDA_FAULT_PEER)
        fail(cu, "no answer from rank %d for %lld ms: rank %d waits at a join of %s, row %d", f->a,
             (long long)(p->timeout_us / 1000), cu->ranks.rank, sv_join_name((enum sv_join)f->b),
             f->c);
    while (f && f->code == SV_CUDA_FAULT_PEER && !has_failed(p))
        ; /* the rank that claimed the failure is writing it */
    if (!has_failed(p))
        return SV_OK;
    sv_cuda_peers_look(cu, 0);
    return p->failure->rank == cu->ranks.rank ? sv_fail(err, SV_EDEVICE, -1, "%s", p->failure->text)
                                              : sv_fail(err, SV_EDEVICE, -1, "rank %d failed: %s",
                                                        p->failure->rank, p->failure->text);
}
