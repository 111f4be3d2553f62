/*
 * ops_ranks.h - what ranks do with rows of logits, of which each has some columns: all rows for
 * all, or rows dealt out and what became of them.
 *
 * Part of ops.h, which includes it. Joins that are part of another op are there. Must not: be
 * called by a rank that is alone, but for dealt rows.
 */
#ifndef SV_OPS_RANKS_H
#define SV_OPS_RANKS_H

#include "backend/device.h"

/* Each rank has columns [first[rank], first[rank + 1]) of the logits; all get the whole rows, or,
 * with deal, those that are theirs (sv_dealt_rows). */
struct sv_p_gather_logits {
    int32_t n_rows;
    float *logits; /* (n_rows, ld) */
    int64_t ld;
    int32_t first[SV_MAX_RANKS + 1];
    enum sv_join join; /* the wrapper's: SV_JOIN_LOGITS_A or _B */
    bool deal;
};
/* Rows of n that this rank gets where they are dealt: all, if it is alone or its device cannot
 * share what is made of them. */
struct sv_slice sv_dealt_rows(const struct sv_dev *dev, int32_t n_rows);
/* Rank `rank`'s of n that are shared out among so many. */
static inline struct sv_slice sv_rank_rows(int32_t n_rows, int32_t rank, int32_t n_ranks)
{
    struct sv_slice s;
    s.first = (int32_t)((int64_t)n_rows * rank / n_ranks);
    s.n = (int32_t)((int64_t)n_rows * (rank + 1) / n_ranks) - s.first;
    return s;
}

/* Each rank has its dealt rows of some arrays; all get the whole arrays. */
enum { SV_SHARED_ARRAYS = 3 };
struct sv_p_share_rows {
    int32_t n_rows, n_arrays;
    struct sv_shared_array {
        void *rows; /* (n_rows) of row_bytes each, without gaps; n of these, stride bytes apart */
        size_t row_bytes, stride;
        int32_t n;
    } array[SV_SHARED_ARRAYS];
};

void sv_op_gather_logits(struct sv_dev *dev, const struct sv_p_gather_logits *p);
/* A rank that is alone, or has all rows: nothing. */
void sv_op_share_rows(struct sv_dev *dev, const struct sv_p_share_rows *p);

#endif
