/*
 * watch_emulated.cpp - the waits of the CUDA backend (watch.cu) against a library of this file's own, whose events are
 * over when the clock says so: what is done is waited for, what does not move is given up with the names of what was
 * launched, and nothing is asked of a stuck device any more.
 *
 * Built and started by watch_emulated.test.sh, without a GPU; tests/cuda/test_watch.cu is the same on one.
 */
#include <cuda_runtime.h>

enum { cudaErrorNotReady = 600, cudaEventDisableTiming = 2, cudaStreamCaptureModeRelaxed = 2 };

struct fake_event {
    int64_t over_us; /* on the clock; 0 = not recorded */
};
static int64_t stream_over_us; /* what is enqueued next is over then */
static int n_events, n_recorded, n_freed, n_captures;
static cudaError_t last_error;

extern "C" int64_t sv_clock_us(void);

static cudaError_t at(int64_t over_us)
{
    if (over_us > sv_clock_us())
        return last_error = cudaErrorNotReady;
    return cudaSuccess;
}
static cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, int)
{
    *e = new fake_event();
    n_events++;
    return cudaSuccess;
}
static cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete (fake_event *)e;
    n_events--;
    return cudaSuccess;
}
static cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t)
{
    ((fake_event *)e)->over_us = stream_over_us;
    n_recorded++;
    return cudaSuccess;
}
static cudaError_t cudaEventQuery(cudaEvent_t e)
{
    return at(((fake_event *)e)->over_us);
}
static cudaError_t cudaStreamQuery(cudaStream_t)
{
    return at(stream_over_us);
}
static cudaError_t cudaGetLastError(void)
{
    const cudaError_t rc = last_error;
    last_error = cudaSuccess;
    return rc;
}
static bool no_room;
static cudaError_t cudaMalloc(void **p, size_t n_bytes)
{
    static char memory[64];
    static int n;
    *p = memory + n++ % 64;
    return no_room || !n_bytes ? (cudaError_t)2 : cudaSuccess;
}
static cudaError_t cudaFree(void *)
{
    n_freed++;
    return cudaSuccess;
}
static cudaError_t cudaFreeHost(void *)
{
    n_freed++;
    return cudaSuccess;
}
static cudaError_t cudaStreamBeginCapture(cudaStream_t, int)
{
    n_captures++;
    return cudaSuccess;
}

#include "backend/cuda/watch.cu"

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t rc, const char *)
{
    return rc == cudaSuccess;
}
int sv_cuda_try(cudaError_t rc, struct sv_err *err, const char *what)
{
    return rc == cudaSuccess ? SV_OK : sv_fail(err, SV_EDEVICE, -1, "CUDA: %s: %d", what, rc);
}

/* peers.cu's: here no kernel waits for another rank. */
void sv_cuda_peers_look(struct sv_cuda *, int64_t)
{
}

namespace
{
int n_wrong;

void expect_at(int line, bool ok, const char *what, const char *seen)
{
    if (!ok)
        printf("watch_emulated.cpp:%d: %s (%s)\n", line, what, seen), n_wrong++;
}
#define EXPECT(ok) expect_at(__LINE__, ok, #ok, "")
#define EXPECT_IN(text, part) expect_at(__LINE__, strstr(text, part) != NULL, "'" part "' is missing", text)

const int64_t LIMIT = 30000; /* us, where a limit is to be met */

struct device {
    sv_cuda cu;
    device(int64_t limit_us, int gpu = 0)
    {
        sv_err err;
        memset(&cu, 0, sizeof cu);
        cu.stream = &cu;
        cu.ordinal = gpu;
        stream_over_us = 0;
        n_recorded = n_freed = n_captures = 0;
        EXPECT(sv_cuda_watch_open(&cu, 5, &err) == SV_OK);
        EXPECT(cu.watch->limit_us == 5000000);
        cu.watch->limit_us = limit_us;
        for (auto &m : cu.mark)
            cudaEventCreateWithFlags(&m, 0);
    }
    ~device()
    {
        const bool frees = sv_cuda_frees(&cu);
        const int before = n_events;
        sv_cuda_watch_close(&cu);
        EXPECT(before - n_events == (frees ? SV_CUDA_BEATS : 0));
        EXPECT(!cu.watch);
        sv_ledger_fini(&cu.held);
    }
    void *take(size_t n_bytes)
    {
        void *p;
        sv_err err;
        EXPECT(sv_cuda_take(&cu, SV_MEM_ASKED, &p, n_bytes, &err, "x") == SV_OK);
        return p;
    }
    void mark(int i)
    {
        cu.marked[i] = cudaEventRecord(cu.mark[i], cu.stream) == cudaSuccess;
        sv_cuda_marked(&cu, i);
    }
};

void what_is_over_is_waited_for()
{
    device d(LIMIT);
    sv_err err = {};
    EXPECT(sv_cuda_wait(&d.cu, NULL, "x", &err) == SV_OK);
    stream_over_us = sv_clock_us() + LIMIT / 3;
    d.mark(0);
    EXPECT(sv_cuda_wait(&d.cu, d.cu.mark[0], "x", &err) == SV_OK);
    EXPECT(sv_clock_us() >= stream_over_us);
    EXPECT(last_error == cudaSuccess); /* "not ready" is not left for somebody else */
    void *x = d.take(100);
    stream_over_us = sv_clock_us() + LIMIT / 3;
    sv_cuda_drop(&d.cu, x);
    sv_cuda_drop_host(&d.cu, NULL);
    EXPECT(sv_clock_us() >= stream_over_us);
    EXPECT(n_freed == 1);
}

void what_stands_still_is_given_up()
{
    device d(LIMIT, 1);
    sv_err err = {}, again = {};
    void *x = d.take(100);
    sv_cuda_launched(&d.cu, "early", 0);
    d.mark(1); /* over at once */
    stream_over_us = INT64_MAX;
    sv_cuda_launched(&d.cu, "copy", 0);
    sv_cuda_launched(&d.cu, "graph", 0x2000000041);
    d.mark(0);
    const int64_t begin = sv_clock_us();
    EXPECT(sv_cuda_wait(&d.cu, d.cu.mark[0], "a step's end", &err) == SV_EDEVICE);
    EXPECT(sv_clock_us() - begin >= LIMIT);
    EXPECT(err.code == SV_EDEVICE);
    EXPECT_IN(err.msg, "no answer from the device for 0 s, waiting for a step's end; 1 launches of 3 are done, the others: "
                       "copy, graph 0x2000000041");
    /* From here on everybody is told so, at once. */
    const int64_t after = sv_clock_us();
    d.cu.watch->limit_us = 60000000; /* which nothing below may wait for */
    EXPECT(sv_cuda_wait(&d.cu, NULL, "y", &again) == SV_EDEVICE);
    EXPECT(!strcmp(err.msg, again.msg));
    EXPECT(sv_cuda_enter(&d.cu, &again) == SV_EDEVICE);
    EXPECT(!sv_cuda_wait_latched(&d.cu, NULL, "y"));
    EXPECT(!strcmp(err.msg, d.cu.latched.msg));
    int n = n_recorded;
    sv_cuda_drop(&d.cu, x);
    sv_cuda_drop_host(&d.cu, x);
    EXPECT(d.cu.held.bytes[SV_MEM_ASKED] == 100); /* what cannot be freed is still held */
    for (int i = 0; i < 1000; i++)
        sv_cuda_launched(&d.cu, "late", 0);
    EXPECT(n_freed == 0 && n_recorded == n && n_captures == 1);
    EXPECT(sv_clock_us() - after < 30000000);
}

/* What is freed waits for every queue of the GPU, and for none of another. */
void neighbours_of_a_stuck_device()
{
    sv_err err;
    device same(LIMIT, 1), other(LIMIT, 2);
    EXPECT(sv_cuda_wait(&same.cu, NULL, "x", &err) == SV_OK);
    EXPECT(sv_cuda_enter(&same.cu, &err) == SV_OK);
    sv_cuda_drop(&same.cu, same.take(1));
    EXPECT(n_freed == 0);
    sv_cuda_drop(&other.cu, other.take(1));
    EXPECT(n_freed == 1);
}

/* Marks and beats that are over in time, all of them together later than the limit. */
void what_moves_is_waited_for()
{
    device d(LIMIT);
    sv_err err = {};
    const int64_t begin = sv_clock_us();
    for (int i = 0; i < 4; i++) {
        stream_over_us = begin + (i + 1) * LIMIT / 2;
        sv_cuda_launched(&d.cu, "step", 0);
        d.mark(i);
    }
    EXPECT(sv_cuda_wait(&d.cu, NULL, "x", &err) == SV_OK);
    EXPECT(sv_clock_us() - begin >= 2 * LIMIT);
    const int64_t again = sv_clock_us();
    for (int i = 0; i < 4 * SV_CUDA_BEAT_EVERY; i++) {
        stream_over_us = again + (i / SV_CUDA_BEAT_EVERY + 1) * LIMIT / 2;
        sv_cuda_launched(&d.cu, "op", 0);
    }
    stream_over_us += LIMIT / 2;
    EXPECT(sv_cuda_wait(&d.cu, NULL, "x", &err) == SV_OK);
    EXPECT(sv_clock_us() - again >= 2 * LIMIT);
}

void a_queue_has_an_end()
{
    device d(LIMIT, 3);
    stream_over_us = INT64_MAX;
    const int64_t begin = sv_clock_us();
    int n = 0;
    while (!sv_cuda_is_stuck(&d.cu) && n++ < 2000)
        sv_cuda_launched(&d.cu, n == 1 ? "first" : n % 100 ? "op" : "other", 0);
    EXPECT(n == SV_CUDA_BEAT_EVERY * (SV_CUDA_BEATS + 1));
    EXPECT(sv_clock_us() - begin >= LIMIT);
    EXPECT_IN(d.cu.watch->stuck.msg, "waiting for room in the queue; 0 launches of 576 are done, the others: first, op, op, ");
    EXPECT_IN(d.cu.watch->stuck.msg, ", op, ..., op");
    EXPECT(d.cu.latched.code == SV_EDEVICE);
}

/* What is held is what was taken and not freed, kind by kind. */
void memory_is_counted()
{
    device d(LIMIT, 4);
    const int64_t *bytes = d.cu.held.bytes;
    const enum sv_mem kind[] = {SV_MEM_WCOMP, SV_MEM_WEIGHTS, SV_MEM_SCRATCH};
    sv_err err = {};
    void *p[3], *none;
    for (int i = 0; i < 3; i++)
        EXPECT(sv_cuda_take(&d.cu, kind[i], &p[i], 1000u << i, &err, "x") == SV_OK);
    EXPECT(sv_cuda_take(&d.cu, SV_MEM_SCRATCH, &none, 0, &err, "x") == SV_OK); /* what the library is asked for is a byte */
    EXPECT(bytes[SV_MEM_WCOMP] == 1000 && bytes[SV_MEM_WEIGHTS] == 2000 && bytes[SV_MEM_SCRATCH] == 4000);
    no_room = true;
    EXPECT(sv_cuda_take(&d.cu, SV_MEM_WCOMP, &none, 5, &err, "no room for x") == SV_EDEVICE && !none);
    no_room = false;
    EXPECT_IN(err.msg, "no room for x");
    EXPECT(bytes[SV_MEM_WCOMP] == 1000);
    sv_cuda_drop(&d.cu, p[1]);
    sv_cuda_drop(&d.cu, NULL);
    EXPECT(bytes[SV_MEM_WCOMP] == 1000 && bytes[SV_MEM_WEIGHTS] == 0 && bytes[SV_MEM_SCRATCH] == 4000);
}

/* Without a limit: as long as it takes. */
void no_limit()
{
    device d(0);
    sv_err err = {};
    stream_over_us = sv_clock_us() + 3 * LIMIT;
    EXPECT(sv_cuda_wait(&d.cu, NULL, "x", &err) == SV_OK);
    EXPECT(sv_clock_us() >= stream_over_us);
    sv_cuda_watch_close(&d.cu);
    stream_over_us = sv_clock_us() + LIMIT; /* a benchmark's own device */
    sv_cuda_launched(&d.cu, "x", 0);
    d.mark(0);
    EXPECT(sv_cuda_wait(&d.cu, d.cu.mark[0], "x", &err) == SV_OK);
    EXPECT(sv_cuda_watch_open(&d.cu, -1, &err) == SV_OK && d.cu.watch->limit_us == 0);
    sv_cuda_watch_close(&d.cu);
    EXPECT(sv_cuda_watch_open(&d.cu, 0, &err) == SV_OK && d.cu.watch->limit_us == 60000000);
}
} // namespace

int main()
{
    what_is_over_is_waited_for();
    what_stands_still_is_given_up();
    neighbours_of_a_stuck_device();
    what_moves_is_waited_for();
    a_queue_has_an_end();
    memory_is_counted();
    no_limit();
    printf(n_wrong ? "watch: %d wrong\n" : "watch: all as it should be\n", n_wrong);
    return n_wrong != 0;
}
