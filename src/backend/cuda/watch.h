/*
 * watch.h - the bounded waits of the CUDA backend (watch.cu), for the files that wait, free or
 * enqueue copies.
 *
 * A device is watched from sv_cuda_watch_open on; before that, and where a benchmark makes a struct
 * sv_cuda of its own, waits have no limit.
 */
#ifndef SV_CUDA_WATCH_H
#define SV_CUDA_WATCH_H

#include "backend/cuda/cuda.h"

enum { SV_CUDA_NAMES = 1024, SV_CUDA_BEATS = 8, SV_CUDA_BEAT_EVERY = 64 };

/* The last launches and those known to be done. Launches count from 1. */
struct sv_cuda_watch {
    int64_t limit_us; /* longest wait without any progress; 0 = for ever */
    uint64_t n, n_done;
    const char *name[SV_CUDA_NAMES]; /* of the last launches, by number */
    uint64_t graph[SV_CUDA_NAMES];   /* and of graphs the key */
    /* recorded regularly between launches, to show progress in a long queue */
    cudaEvent_t beat[SV_CUDA_BEATS];
    uint64_t n_beat[SV_CUDA_BEATS],
        n_mark[SV_MARKS]; /* launches before an event; 0 = not recorded */
    /* the device did not answer: from then on nothing is launched, waited for or freed */
    struct sv_err stuck;
};

int sv_cuda_watch_open(struct sv_cuda *cu, int32_t timeout_s,
                       struct sv_err *err);   /* as in struct sv_dev_opts */
void sv_cuda_watch_close(struct sv_cuda *cu); /* of a device that is stuck, only the host's part */
/* After every launch: records its name (a constant) and a graph's key, else 0. */
void sv_cuda_launched(struct sv_cuda *cu, const char *what, uint64_t graph);
void sv_cuda_marked(struct sv_cuda *cu, int32_t i);

/* The only waits of the folder: until the event (NULL: everything enqueued so far) is done. On a
 * stuck device all of them fail at once. */
int sv_cuda_wait(struct sv_cuda *cu, cudaEvent_t event, const char *what, struct sv_err *err);
/* The same for callers that cannot return an error: it is latched. Returns whether it is done. */
bool sv_cuda_wait_latched(struct sv_cuda *cu, cudaEvent_t event, const char *what);
static inline bool sv_cuda_is_stuck(const struct sv_cuda *cu)
{
    return cu->watch && cu->watch->stuck.code;
}
/* Returns the code of a stuck device, with the message; SV_OK otherwise. */
int sv_cuda_stuck(const struct sv_cuda *cu, struct sv_err *err);
/* The beginning of set-up: sv_cuda_stuck, then cudaSetDevice. */
int sv_cuda_enter(struct sv_cuda *cu, struct sv_err *err);

/* Whether calls that free, destroy or reset are allowed. */
bool sv_cuda_frees(const struct sv_cuda *cu);
/* The folder's only cudaMalloc, uncleared, and its cudaFree, which count what this process has. */
int sv_cuda_take(struct sv_cuda *cu, enum sv_mem kind, void **p, size_t n_bytes, struct sv_err *err,
                 const char *what);
/* Free memory of sv_cuda_take or cudaHostAlloc, which waits for the device: no effect if that would
 * never end. NULL is fine. */
void sv_cuda_drop(struct sv_cuda *cu, void *p);
void sv_cuda_drop_host(struct sv_cuda *cu, void *p);

#endif
