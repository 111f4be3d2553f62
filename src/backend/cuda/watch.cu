/*
 * watch.cu - bounded waits for the device: a kernel that never ends becomes an error that lists the
 * last launches, not a hanging process.
 *
 * All waits of this folder are here, and sv_cuda_check reports launches. The host polls, as the
 * library's own waits do, and reads the clock once in a thousand polls. The limit applies to time
 * without progress: a long queue may take any time while events in it, marks or a beat after every
 * 64 launches, complete; a graph shows no progress inside. After the limit the device is stuck for
 * good: all calls return the same error, nothing is enqueued any more, and nothing is freed,
 * destroyed or reset, because those calls wait for the kernel without a limit. So may the library's
 * exit handlers: cli/main.c exits without them. Beats also bound the queue to 512 launches, because
 * with a full queue (1,020 on an H200) the launch itself waits without a limit; and launches on a
 * stuck device go into a capture that is never run. Not covered: a call that waits inside the
 * driver for other reasons. Loading a kernel's code, at its first launch, is one: after a stuck
 * kernel it never returns. Must not: wait in the step other than for a mark or for room in the
 * queue.
 */
#include "backend/cuda/peers.h"
#include "backend/cuda/vendor.h"
#include "backend/cuda/watch.h"

#include <string.h>

#define POLLS 1024 /* between reads of the clock; a poll takes a few hundred ns */
/* The most time that one interval counts: a process that was stopped meanwhile has not waited. */
#define LOOK_US 1000000
#define DEFAULT_S 60
#define LISTED 10 /* names in the message */

/* GPUs with a kernel that does not end, a bit each. Shared by the process, like the library's
 * context: freeing memory waits for all queues of the GPU, those of other engines as well. */
static uint64_t stuck_gpus;

static uint64_t gpu_bit(const struct sv_cuda *cu)
{
    return (uint64_t)1 << (cu->ordinal & 63);
}

struct patience {
    bool begun;
    int64_t last_us, waited_us;
};

int sv_cuda_watch_open(struct sv_cuda *cu, int32_t timeout_s, struct sv_err *err)
{
    struct sv_cuda_watch *w = (struct sv_cuda_watch *)sv_calloc(1, sizeof *w);
    int rc = SV_OK;
    cu->watch = w;
    if (!w)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for the %s device", SV_GPU_LIBRARY);
    w->limit_us = timeout_s < 0 ? 0 : (int64_t)(timeout_s ? timeout_s : DEFAULT_S) * 1000000;
    for (int i = 0; i < SV_CUDA_BEATS && !rc; i++)
        rc = sv_cuda_try(cudaEventCreateWithFlags(&w->beat[i], cudaEventDisableTiming), err,
                         "cudaEventCreate");
    return rc;
}

void sv_cuda_watch_close(struct sv_cuda *cu)
{
    for (int i = 0; i < SV_CUDA_BEATS && cu->watch && sv_cuda_frees(cu); i++)
        if (cu->watch->beat[i])
            cudaEventDestroy(cu->watch->beat[i]);
    sv_free(cu->watch);
    cu->watch = NULL;
}

/* ---------------------------------------------------------------- giving up */

int sv_cuda_stuck(const struct sv_cuda *cu, struct sv_err *err)
{
    return sv_cuda_is_stuck(cu)
               ? sv_fail(err, cu->watch->stuck.code, -1, "%s", cu->watch->stuck.msg)
               : SV_OK;
}

int sv_cuda_enter(struct sv_cuda *cu, struct sv_err *err)
{
    const int rc = sv_cuda_stuck(cu, err);
    return rc ? rc : sv_cuda_try(cudaSetDevice(cu->ordinal), err, "cudaSetDevice");
}

static void append(char *text, size_t size, const char *name, uint64_t graph)
{
    const size_t n = strlen(text);
    if (graph)
        snprintf(text + n, size - n, "%s%s %#llx", n ? ", " : "", name, (unsigned long long)graph);
    else
        snprintf(text + n, size - n, "%s%s", n ? ", " : "", name);
}

/* Lists the launches that may be stuck, beginning with the first that may not be done. */
static void list(const struct sv_cuda_watch *w, char *text, size_t size)
{
    uint64_t at = w->n_done + 1;
    text[0] = '\0';
    if (w->n >= SV_CUDA_NAMES && at <= w->n - SV_CUDA_NAMES)
        at = w->n - SV_CUDA_NAMES + 1;
    for (int i = 0; i < LISTED && at <= w->n; i++, at++)
        append(text, size, w->name[at % SV_CUDA_NAMES], w->graph[at % SV_CUDA_NAMES]);
    if (at < w->n)
        append(text, size, "...", 0);
    if (at <= w->n)
        append(text, size, w->name[w->n % SV_CUDA_NAMES], w->graph[w->n % SV_CUDA_NAMES]);
    if (!text[0])
        append(text, size, "none", 0);
}

static int give_up(struct sv_cuda *cu, const char *what, struct sv_err *err)
{
    struct sv_cuda_watch *w = cu->watch;
    char names[300];
    list(w, names, sizeof names);
    sv_fail(&w->stuck, SV_EDEVICE, -1,
            SV_GPU_LIBRARY
            ": no answer from the device for %lld s, waiting for %s; %llu launches of %llu are "
            "done, the others: %s",
            (long long)(w->limit_us / 1000000), what, (unsigned long long)w->n_done,
            (unsigned long long)w->n, names);
    __atomic_fetch_or(&stuck_gpus, gpu_bit(cu), __ATOMIC_RELAXED);
    cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeRelaxed);
    return sv_cuda_stuck(cu, err);
}

/* ---------------------------------------------------------------- waiting */

static cudaError_t query(struct sv_cuda *cu, cudaEvent_t event)
{
    return event ? cudaEventQuery(event) : cudaStreamQuery(cu->stream);
}

static bool is_over(struct sv_cuda_watch *w, cudaEvent_t event, uint64_t n)
{
    if (n <= w->n_done || cudaEventQuery(event) != cudaSuccess)
        return false;
    w->n_done = n;
    return true;
}

/* Whether more is done than at the last check. */
static bool moves(struct sv_cuda *cu)
{
    struct sv_cuda_watch *w = cu->watch;
    bool any = false;
    for (int i = 0; i < SV_CUDA_BEATS; i++)
        any |= is_over(w, w->beat[i], w->n_beat[i]);
    for (int i = 0; i < SV_MARKS; i++)
        any |= is_over(w, cu->mark[i], w->n_mark[i]);
    return any;
}

static bool ran_out(struct sv_cuda *cu, struct patience *p)
{
    if (!cu->watch || !cu->watch->limit_us)
        return false;
    const int64_t now = sv_clock_us(), since = p->begun ? now - p->last_us : 0;
    p->begun = true;
    p->last_us = now;
    p->waited_us = moves(cu) ? 0 : p->waited_us + (since < LOOK_US ? since : LOOK_US);
    return p->waited_us >= cu->watch->limit_us;
}

int sv_cuda_wait(struct sv_cuda *cu, cudaEvent_t event, const char *what, struct sv_err *err)
{
    struct patience p = {};
    cudaError_t rc;
    if (sv_cuda_is_stuck(cu))
        return sv_cuda_stuck(cu, err);
    for (uint32_t i = 1; (rc = query(cu, event)) == cudaErrorNotReady; i++) {
        if (i % POLLS)
            continue;
        const bool late = ran_out(cu, &p);
        sv_cuda_peers_look(cu, p.waited_us);
        if (late && query(cu, event) == cudaErrorNotReady)
            return give_up(cu, what, err);
    }
    cudaGetLastError(); /* "not ready" must not turn up in a later call */
    if (rc == cudaSuccess && cu->watch && !event)
        cu->watch->n_done = cu->watch->n;
    if (rc == cudaSuccess)
        return SV_OK;
    char waiting[80];
    snprintf(waiting, sizeof waiting, "waiting for %s", what);
    return sv_cuda_try(rc, err, waiting);
}

bool sv_cuda_wait_latched(struct sv_cuda *cu, cudaEvent_t event, const char *what)
{
    struct sv_err err;
    const int rc = sv_cuda_wait(cu, event, what, &err);
    if (rc && cu->latched.code == SV_OK)
        cu->latched = err;
    return rc == SV_OK;
}

/* ---------------------------------------------------------------- launches */

/* Waits for the event of 512 launches ago, which is normally long done. */
static void beat(struct sv_cuda *cu)
{
    struct sv_cuda_watch *w = cu->watch;
    const uint64_t i = w->n / SV_CUDA_BEAT_EVERY % SV_CUDA_BEATS;
    if (w->n_beat[i] > w->n_done && sv_cuda_wait_latched(cu, w->beat[i], "room in the queue"))
        w->n_done = w->n_beat[i];
    if (!sv_cuda_is_stuck(cu))
        w->n_beat[i] = sv_cuda_check(cu, cudaEventRecord(w->beat[i], cu->stream), "cudaEventRecord")
                           ? w->n
                           : 0;
}

void sv_cuda_launched(struct sv_cuda *cu, const char *what, uint64_t graph)
{
    struct sv_cuda_watch *w = cu->watch;
    if (!w || cu->capturing || w->stuck.code)
        return;
    const uint64_t n = ++w->n;
    w->name[n % SV_CUDA_NAMES] = what;
    w->graph[n % SV_CUDA_NAMES] = graph;
    if (n % SV_CUDA_BEAT_EVERY == 0)
        beat(cu);
}

void sv_cuda_marked(struct sv_cuda *cu, int32_t i)
{
    if (cu->watch)
        cu->watch->n_mark[i] = cu->marked[i] ? cu->watch->n : 0;
}

/* ---------------------------------------------------------------- taking and freeing */

int sv_cuda_take(struct sv_cuda *cu, enum sv_mem kind, void **p, size_t n_bytes, struct sv_err *err,
                 const char *what)
{
    *p = NULL;
    int rc = sv_ledger_room(&cu->held, err);
    if (!rc)
        rc = sv_cuda_try(cudaMalloc(p, n_bytes ? n_bytes : 1), err, what);
    if (!rc)
        sv_ledger_enter(&cu->held, kind, *p, n_bytes);
    else
        *p = NULL;
    return rc;
}

bool sv_cuda_frees(const struct sv_cuda *cu)
{
    return !sv_cuda_is_stuck(cu) && !(__atomic_load_n(&stuck_gpus, __ATOMIC_RELAXED) & gpu_bit(cu));
}

/* Whether nothing is running that a freeing call would wait for. */
static bool settles(struct sv_cuda *cu)
{
    if (cu->watch)
        sv_cuda_wait_latched(cu, NULL, "the queue's end");
    return sv_cuda_frees(cu);
}

void sv_cuda_drop(struct sv_cuda *cu, void *p)
{
    if (p && settles(cu) && sv_cuda_check(cu, cudaFree(p), "cudaFree"))
        sv_ledger_strike(&cu->held, p);
}

void sv_cuda_drop_host(struct sv_cuda *cu, void *p)
{
    if (p && settles(cu))
        sv_cuda_check(cu, cudaFreeHost(p), "cudaFreeHost");
}
