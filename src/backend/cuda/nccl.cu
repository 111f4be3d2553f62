/*
 * nccl.cu - parts of joins between ranks on different hosts: bytes through NCCL (RCCL), nothing
 * else.
 *
 * Called by peers.cu and gpu/join.cu, whose kernels add. A part for a far rank lies where a kernel
 * has left it in this device's memory; an exchange on the stream, which graphs hold as well, brings
 * the far ranks' parts into the own window, where the next kernel takes them as if they had been
 * written by a near rank. The library's kernels wait without a limit, which the host sees to
 * (peers.cu); its calls that may wait for other ranks are made by a thread, which is left behind
 * where it takes too long. Must not: be relied on for an order of sums, or, in a step, call what
 * waits or start a thread.
 */
#include "backend/cuda/nccl.h"
#include "backend/cuda/vendor.h"
#include "backend/cuda/watch.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#ifndef SV_NCCL_FILE
#define SV_NCCL "NCCL"
#define SV_NCCL_FILE "libnccl.so.2"
#define SV_NCCL_PACKAGE                                                                            \
    "Debian's or NVIDIA's package libnccl2, or nvidia-nccl-cu13 by pip with its folder lib in "    \
    "LD_LIBRARY_PATH"
#endif

enum { CONNECT_S = 120, ABORT_S = 10, LOOK_MS = 20, FIRST_BYTES = 16 };
/* A lost process breaks connections: the hosts' own news of it, which names it, come first. */
enum { BROKEN_US = 1000000 };

/* ---------------------------------------------------------------- the library */

static const struct {
    const char *name;
    size_t at;
} functions[] = {
    {"ncclGetUniqueId", offsetof(struct sv_nccl, unique_id)},
    {"ncclCommInitRank", offsetof(struct sv_nccl, init_rank)},
    {"ncclCommAbort", offsetof(struct sv_nccl, abort)},
    {"ncclCommGetAsyncError", offsetof(struct sv_nccl, async_error)},
    {"ncclGetErrorString", offsetof(struct sv_nccl, error_string)},
    {"ncclGroupStart", offsetof(struct sv_nccl, group_start)},
    {"ncclGroupEnd", offsetof(struct sv_nccl, group_end)},
    {"ncclSend", offsetof(struct sv_nccl, send)},
    {"ncclRecv", offsetof(struct sv_nccl, recv)},
};

/* It stays open: it has threads. */
static int load(struct sv_nccl *to, struct sv_err *err)
{
    void *library = dlopen(SV_NCCL_FILE, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "ranks on several hosts exchange through " SV_NCCL ", which is not there "
                       "(%s): install " SV_NCCL_PACKAGE,
                       dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *const at = dlsym(library, functions[i].name);
        if (!at)
            return sv_fail(err, SV_EUNSUPPORTED, -1,
                           SV_NCCL_FILE " has no %s: install a newer " SV_NCCL, functions[i].name);
        memcpy((char *)to + functions[i].at, &at, sizeof at);
    }
    return SV_OK;
}

static int fail_call(const struct sv_cuda_hosts *h, int rc, const char *what, struct sv_err *err)
{
    return sv_fail(err, SV_EDEVICE, -1, SV_NCCL ": %s: %s", what, h->call.error_string(rc));
}

/* ---------------------------------------------------------------- exchanges */

static int first_of(int a, int b)
{
    return a ? a : b;
}

void sv_cuda_hosts_exchange(struct sv_cuda *cu, const struct sv_join_site *s, const size_t *to,
                            const size_t *from)
{
    struct sv_cuda_hosts *h = cu->peers->hosts;
    if (h->ends || h->rc || sv_cuda_is_stuck(cu))
        return;
    int rc = h->call.group_start();
    for (int32_t r = 0; r < h->ranks.n && !rc; r++) {
        if (!h->far[r])
            continue;
        rc = h->call.send(s->to[r], to[r], SV_NCCL_UINT8, r, h->comm, h->stream);
        rc = first_of(rc, h->call.recv(s->from + (int64_t)r * s->apart, from[r], SV_NCCL_UINT8, r,
                                       h->comm, h->stream));
    }
    h->rc = first_of(rc, h->call.group_end());
    sv_cuda_launched(cu, "parts of other hosts", 0);
}

/* ---------------------------------------------------------------- what may wait */

enum { CONNECTED = 1, ABORTED };

/* The first exchange is enqueued here as well, since that makes connections. To abort ends all
 * exchanges at once, but returns when no graph has any. */
static void *library_main(void *arg)
{
    struct sv_cuda_hosts *h = (struct sv_cuda_hosts *)arg;
    cudaSetDevice(h->ordinal);
    int rc = h->call.init_rank(&h->comm, h->ranks.n, h->id, h->ranks.rank);
    if (!rc && !sv_count_read(&h->stop)) {
        uint8_t *const at = h->outgoing;
        rc = h->call.group_start();
        for (int32_t r = 0; r < h->ranks.n && !rc; r++)
            if (h->far[r]) {
                rc = h->call.send(at, FIRST_BYTES, SV_NCCL_UINT8, r, h->comm, h->stream);
                rc = first_of(rc, h->call.recv(at + (1 + r) * FIRST_BYTES, FIRST_BYTES,
                                               SV_NCCL_UINT8, r, h->comm, h->stream));
            }
        rc = first_of(rc, h->call.group_end());
    }
    h->rc = rc;
    sv_count_set(&h->done, CONNECTED);
    sv_count_wait(&h->stop, 1, NULL, 0, -1);
    if (h->comm)
        h->call.abort(h->comm);
    sv_count_set(&h->done, ABORTED);
    return NULL;
}

/* ---------------------------------------------------------------- open */

static int read_id(struct sv_cuda_hosts *h, const struct sv_peers *p, int32_t from,
                   struct sv_err *err)
{
    const int64_t begin = sv_clock_us();
    for (size_t n = 0; n < sizeof h->id;) {
        struct pollfd ready = {p->far[from], POLLIN, 0};
        const bool late =
            poll(&ready, 1, LOOK_MS) == 0 && sv_clock_us() - begin > (int64_t)CONNECT_S * 1000000;
        const ssize_t got = recv(ready.fd, h->id.bytes + n, sizeof h->id - n, MSG_DONTWAIT);
        const bool none = got < 0 && (errno == EAGAIN || errno == EINTR);
        n += got > 0 ? (size_t)got : 0;
        if (late || (got <= 0 && !none) || __atomic_load_n(&p->failure->stop, __ATOMIC_ACQUIRE))
            return sv_fail(err, SV_EDEVICE, -1, "no id of a communicator from rank %d", from);
    }
    return SV_OK;
}

/* From rank 0 to all on other hosts; these pass it on to those beside rank 0. Each rank reads it
 * from the first one it has a connection to. */
static int share_id(struct sv_cuda_hosts *h, const struct sv_peers *p, struct sv_err *err)
{
    int32_t first = 0;
    while (p->far[first] < 0)
        first++;
    int rc = SV_OK, called = 0;
    if (h->ranks.rank == 0)
        called = h->call.unique_id(&h->id);
    else
        rc = read_id(h, p, first, err);
    for (int32_t r = 1; r < h->ranks.n && !rc && (h->ranks.rank == 0 || first == 0); r++)
        if (p->far[r] >= 0)
            send(p->far[r], &h->id, sizeof h->id, MSG_NOSIGNAL);
    return called ? fail_call(h, called, "ncclGetUniqueId", err) : rc;
}

static int connect_ranks(struct sv_cuda_hosts *h, const struct sv_peers *p, struct sv_err *err)
{
    if (sv_thread_start(&h->thread, library_main, h, err))
        return SV_EFULL;
    if (sv_count_wait(&h->done, CONNECTED, &p->failure->stop, 0, CONNECT_S * 1000000LL))
        return sv_fail(err, SV_EDEVICE, -1,
                       SV_NCCL " has not connected rank %d with other hosts within %d s: "
                               "NCCL_SOCKET_IFNAME names the network to use, NCCL_DEBUG=INFO says "
                               "where it waits",
                       h->ranks.rank, (int)CONNECT_S);
    return h->rc ? fail_call(h, h->rc, "connecting ranks on several hosts", err) : SV_OK;
}

int sv_cuda_hosts_open(struct sv_cuda *cu, const struct sv_peers *peers, struct sv_err *err)
{
    struct sv_cuda_hosts *h = (struct sv_cuda_hosts *)sv_calloc(1, sizeof *h);
    cu->peers->hosts = h;
    if (!h)
        return sv_fail(err, SV_ENOMEM, -1, "table of hosts");
    h->ordinal = cu->ordinal;
    h->ranks = cu->ranks;
    h->stream = cu->stream;
    for (int32_t r = 0; r < h->ranks.n; r++)
        h->far[r] = peers->far[r] >= 0;
    int rc = load(&h->call, err);
    if (!rc)
        rc = sv_cuda_take(cu, SV_MEM_ASKED, (void **)&h->outgoing, cu->peers->at[SV_JOINS], err,
                          "no memory for parts that go to other hosts");
    if (!rc)
        rc = share_id(h, peers, err);
    return rc ? rc : connect_ranks(h, peers, err);
}

/* ---------------------------------------------------------------- ends */

const char *sv_cuda_hosts_broken(struct sv_cuda *cu)
{
    struct sv_cuda_hosts *h = cu->peers->hosts;
    int found = h->rc;
    if (!h->comm || h->ends)
        return NULL;
    if (!found) {
        const int rc = h->call.async_error(h->comm, &found);
        found = first_of(rc, found);
    }
    if (!found || found == SV_NCCL_IN_PROGRESS)
        return NULL;
    const int64_t now = sv_clock_us();
    h->broken_us = h->broken_us ? h->broken_us : now;
    return now - h->broken_us >= BROKEN_US ? h->call.error_string(found) : NULL;
}

void sv_cuda_hosts_end(struct sv_cuda *cu)
{
    cu->peers->hosts->ends = true;
    sv_count_set(&cu->peers->hosts->stop, 1);
}

void sv_cuda_hosts_close(struct sv_cuda *cu)
{
    struct sv_cuda_hosts *h = cu->peers->hosts;
    if (!h)
        return;
    const bool waits = sv_cuda_frees(cu) && sv_count_read(&h->done);
    sv_cuda_hosts_end(cu);
    /* A thread that does not end has the table. */
    const bool over = !h->thread || sv_count_wait(&h->done, ABORTED, NULL, 0,
                                                  waits ? ABORT_S * 1000000LL : 0) == SV_WAIT_OK;
    if (h->thread && over)
        sv_thread_join(h->thread);
    sv_cuda_drop(cu, h->outgoing);
    if (over)
        sv_free(h);
    cu->peers->hosts = NULL;
}
