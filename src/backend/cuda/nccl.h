/*
 * nccl.h - ranks on other hosts: NCCL (on AMD's GPUs RCCL) moves the parts of joins between their
 * devices.
 *
 * Included by peers.cu (life), gpu/join.cu (exchanges), graph.cu and nccl.cu. The library is opened
 * at run time: declared here is what is called of it. Must not: be used where all ranks are on one
 * host, or add numbers.
 */
#ifndef SV_CUDA_NCCL_H
#define SV_CUDA_NCCL_H

#include "backend/cuda/peers.h"

/* Of its nccl.h. Results: 0 is success. */
struct sv_nccl_id {
    char bytes[128];
};
enum { SV_NCCL_IN_PROGRESS = 7, SV_NCCL_UINT8 = 1 };

struct sv_nccl {
    int (*unique_id)(struct sv_nccl_id *id);
    int (*init_rank)(void **comm, int n_ranks, struct sv_nccl_id id, int rank);
    int (*abort)(void *comm);
    int (*async_error)(void *comm, int *result);
    const char *(*error_string)(int result);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *from, size_t n, int type, int rank, void *comm, cudaStream_t stream);
    int (*recv)(void *to, size_t n, int type, int rank, void *comm, cudaStream_t stream);
};

struct sv_cuda_hosts {
    struct sv_nccl call;
    struct sv_nccl_id id;   /* rank 0's */
    bool far[SV_MAX_RANKS]; /* the rank is on another host */
    uint8_t *outgoing;      /* device: a window, where far rank r's place has what goes to it */
    void *comm;             /* of all ranks; NULL: not yet */
    int ordinal;            /* the device, */
    struct sv_ranks ranks;  /* its rank */
    cudaStream_t stream;    /* and its queue */
    int rc;                 /* the first call that failed */
    int64_t broken_us;      /* since then, or since a connection broke; 0: all is well */
    struct sv_thread *thread;
    struct sv_count done; /* what the thread has done; then it waits for stop */
    struct sv_count stop; /* 1: it aborts the communicator and ends */
    bool ends;            /* nothing is enqueued with the library any more */
};

/* Connects all ranks, of which each calls it. Ends when one fails. */
int sv_cuda_hosts_open(struct sv_cuda *cu, const struct sv_peers *peers, struct sv_err *err);
/* Enqueues an exchange with all far ranks: to[r] bytes at s->to[r] go to rank r, of which from[r]
 * come into its place in the window. */
void sv_cuda_hosts_exchange(struct sv_cuda *cu, const struct sv_join_site *s, const size_t *to,
                            const size_t *from);
/* Why exchanges do not end, or NULL. */
const char *sv_cuda_hosts_broken(struct sv_cuda *cu);
/* Exchanges that are enqueued end now, and later ones are left out. */
void sv_cuda_hosts_end(struct sv_cuda *cu);
void sv_cuda_hosts_close(struct sv_cuda *cu); /* once graphs are closed */

#endif
