/*
 * ranks.h - ranks that divide one model among their devices (tensor parallel): the kinds of places
 * where they meet, and the windows through which their devices exchange parts.
 *
 * Part of device.h, which includes it. Every exchange is a *join*: each rank leaves its part in its
 * window and takes the parts of all, its own included, in ascending rank order, so that the result
 * has the same bits on every rank and depends on nothing but the parts. Joins are enqueued like any
 * op; the ranks' queues must have the same joins in the same order. A join is never left out for
 * having no rows, and no kind comes twice running: a rank may then write to its window again as
 * soon as it has completed any later join, because every other rank has taken its part by then.
 */
#ifndef SV_RANKS_H
#define SV_RANKS_H

#include "base/base.h"

#define SV_MAX_RANKS 16

struct sv_ranks {
    int32_t rank, n; /* n 1: nothing is divided */
    bool by_expert;  /* experts are shared out whole, else each of them is divided */
    /* Mixers of a target are whole on every rank, which computes them for sequences of its own */
    bool dp_attention;
};

/* What a rank has of rows, columns, heads, ... that are divided. */
struct sv_slice {
    int32_t first, n;
};

enum sv_join {
    SV_JOIN_NONE,
    SV_JOIN_MIXER,    /* what a layer's mixer adds to the stream */
    SV_JOIN_FFN,      /* what its ffn adds */
    SV_JOIN_TAPS,     /* a drafter's projection of taps */
    SV_JOIN_BEST,     /* each row's best token */
    SV_JOIN_LOGITS_A, /* whole rows of logits; two, as some rows follow others at once */
    SV_JOIN_LOGITS_B,
    SV_JOIN_ROWS, /* what ranks made of rows of logits that were dealt to them */
    SV_JOINS
};
const char *sv_join_name(enum sv_join kind);

/* The most that one rank leaves at a join of each kind; the same on all ranks. */
struct sv_window_need {
    size_t n_bytes[SV_JOINS];
    bool processes; /* ranks are processes, else threads */
};

/* How other ranks find a window: bytes of the backend, which may travel to other processes. */
struct sv_window_key {
    unsigned char bytes[128];
};

/* The first rank that fails says so, and all waiting ends. In memory that all ranks see. */
struct sv_failure {
    uint32_t stop; /* 0, or all waiting ends; set once rank and text are there */
    uint32_t claimed;
    int32_t rank;
    char text[448];
};
/* Later failures are dropped. */
void sv_failure_set(struct sv_failure *f, int32_t rank, const char *text);

/* How far a rank's queue is filled, told after each pass: passes in the upper half, all joins of
 * them in the lower. A rank that waits at a join which another rank's passes do not have finds out
 * here. In memory that all ranks see. */
struct sv_progress {
    uint64_t passes_joins;
} __attribute__((aligned(64)));

/* What connects a device with those of the other ranks. */
struct sv_peers {
    const struct sv_window_key *key;    /* (n) one of each rank */
    const struct sv_progress *progress; /* (n) */
    struct sv_failure *failure;
    const int *far;     /* (n) a connection to each rank on another host, or -1; NULL: all here */
    int64_t spin_us;    /* to watch for a part before sleeping, where a processor waits */
    int64_t timeout_us; /* longest wait for a part, then the device has failed; < 0: none */
};

#endif
