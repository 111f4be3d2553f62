/*
 * peers.h - the GPUs of other ranks: windows that all of them write into, and joins as the ops that
 * end in one call them.
 *
 * Included by files of backend/cuda and backend/gpu. peers.cu owns windows, waits that end and what
 * is said when one fails, gpu/join.cu the kernels. Must not: be consulted by a device that is alone
 * beyond one pointer.
 */
#ifndef SV_CUDA_PEERS_H
#define SV_CUDA_PEERS_H

#include "backend/gpu/join.cuh"

struct sv_cuda_hosts; /* nccl.h */
enum sv_cuda_way { SV_CUDA_SAME_GPU, SV_CUDA_NVLINK, SV_CUDA_PCIE, SV_CUDA_UNKNOWN };

/* What a device that is one of several has. */
struct sv_cuda_peers {
    uint8_t *window[SV_MAX_RANKS]; /* own included */
    size_t at[SV_JOINS + 1];       /* in a window: a part of each rank for every kind */
    bool processes;                /* windows of others were opened by their handles */
    enum sv_cuda_way way;          /* to the others, the slowest */
    void *sums;                    /* (rows, hidden) act, where a join is a kernel of its own */
    uint64_t *best;                /* (rows) keys of this rank's part of the vocabulary */
    enum sv_join pushed;           /* the join to come, whose part a product has sent */
    uint4 *dead;                   /* device: sv_join_site's */
    uint4 *stop;                   /* pinned: likewise */
    const struct sv_progress *progress;
    struct sv_failure *failure; /* NULL: not joined yet */
    int64_t timeout_us;
    bool stopped;                /* it has failed: nothing waits */
    struct sv_cuda_hosts *hosts; /* some ranks are on other ones; NULL: none is */
};

/* ---- peers.cu */
int sv_cuda_window_open(struct sv_dev *dev, const struct sv_window_need *need,
                        struct sv_window_key *key, struct sv_err *err);
int sv_cuda_window_join(struct sv_dev *dev, const struct sv_peers *peers, struct sv_err *err);
void sv_cuda_place(const struct sv_dev *dev, struct sv_dev_place *out);
void sv_cuda_window_close(struct sv_cuda *cu);
/* Called now and then while the host waits for the device: when another rank has failed or is not
 * in step, or none on another host answers, kernels stop waiting. waited_us: since the device's
 * last progress. */
void sv_cuda_peers_look(struct sv_cuda *cu, int64_t waited_us);
/* SV_OK, or why this device and all others have failed; f: what a kernel has found, or NULL. */
int sv_cuda_peers_failed(struct sv_cuda *cu, const struct sv_cuda_fault *f, struct sv_err *err);

/* ---- gpu/join.cu */
/* A join of parts of n_bytes each. */
struct sv_join_site sv_cuda_join_site(const struct sv_cuda *cu, enum sv_join kind, size_t n_bytes);
void sv_cuda_join_empty(struct sv_cuda *cu, enum sv_join kind);
/* Of sums of n_rows rows of d numbers; the same form, in one shot or in two, on all ranks. own: the
 * rows that this rank's part has, in device memory, or NULL. */
struct sv_join_site sv_cuda_join_rows(const struct sv_cuda *cu, enum sv_join kind,
                                      const struct sv_slice *own, int32_t n_rows, int32_t d);
/* For a product that sends this rank's part as it ends, which s.ahead then says to the join that
 * follows; false: it does not. */
bool sv_cuda_join_push(struct sv_cuda *cu, enum sv_join kind, int32_t n_rows, int32_t d,
                       struct sv_join_site *s);
/* Above `resident` rows, and to other hosts, they are sent by a kernel of their own, before the one
 * that takes; in two shots it also sums, and s says so. */
void sv_cuda_join_ahead(struct sv_cuda *cu, struct sv_join_site *s, const void *x,
                        const int32_t *row_index, int32_t n_rows, int32_t d, int32_t resident);
/* out[i]: the sum of the ranks' rows x[row_index[i]], or x[i], rounded once; may be x without
 * indices. d is a multiple of 8. */
void sv_cuda_join_sums(struct sv_cuda *cu, enum sv_join kind, const void *x,
                       const int32_t *row_index, const struct sv_slice *own, int32_t n_rows,
                       int32_t d, void *out);
/* From peers->best to ids, as p says. */
void sv_cuda_join_best(struct sv_cuda *cu, const struct sv_p_head_argmax *p);
void sv_cuda_gather_logits(struct sv_dev *dev, const struct sv_p_gather_logits *p);
void sv_cuda_share_rows(struct sv_dev *dev, const struct sv_p_share_rows *p);

#endif
