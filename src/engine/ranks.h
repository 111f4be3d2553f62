/*
 * ranks.h - an engine whose model is divided among ranks: the messages that rank 0 broadcasts, and
 * what followers do with them. A recorded engine (plan_record.h) writes the same messages to a
 * file.
 *
 * Included by engine.h. Rank 0 has the sequences, plans and results. Every other rank is a
 * follower: an engine with its part of the weights and caches, which runs the same passes from rank
 * 0's messages and decides nothing. Must not: cost a step of an engine without ranks more than one
 * pointer test.
 */
#ifndef SV_ENGINE_RANKS_H
#define SV_ENGINE_RANKS_H

#include "cache/cache.h"
#include "dist/dist.h"
#include "engine/plan.h"

struct sv_engine;
struct sv_engine_options;
struct sv_engine_tuning;

enum sv_pass_kind { SV_PASS_DRAFT, SV_PASS_TARGET };

/* The device buffers that steps upload to or copy on the device: the same list on every rank, each
 * with the rank's own addresses. */
enum { SV_MOST_PLACES = 40 };
#define SV_NO_PLACE UINT32_MAX
struct sv_rank_place {
    char *dev;
    size_t n_bytes;
};
struct sv_rank_group {
    struct sv_world world;
    struct sv_rank_place place[SV_MOST_PLACES];
    int32_t n_places;
    const struct sv_engine_options *opts; /* rank 0's, while all open */
    const struct sv_engine_tuning *tuning;
    struct sv_plan_record *record; /* rank 0: messages are written there too; NULL: no record */
    /* A follower's uploads, of each step that may be in flight: host memory that copies read as
     * rank 0's, without a wait for room. */
    char *sent[2];
    size_t sent_bytes, sent_at; /* of each, and used of the set for the next step */
    int32_t sent_set;
    struct sv_drafter *drafter; /* a follower's own, also while it is taken away */
    bool stuck;                 /* a rank did not end */
    bool compares;              /* tests: compare the bits of all ranks */
    void *rows;                 /* with compares: host, (max_rows, hidden) act */
    struct sv_window_key key;   /* of this rank's window */
    int64_t window_bytes;       /* bytes of the window, where the device counts them */
    uint64_t bits;              /* hash of the passes' results so far */
    int32_t n_bits;             /* number of passes in it */
};

/* A fault that a test injects into a rank: at the target's pass of this number the rank stops
 * answering, reports a failure, skips the pass, or runs one with another graph's key: with logits
 * where only the best tokens are wanted, or the other way round. */
enum sv_rank_fault { SV_RANK_WELL, SV_RANK_SILENT, SV_RANK_FAILS, SV_RANK_SKIPS, SV_RANK_STRAYS };
struct sv_rank_fault_at {
    enum sv_rank_fault kind;
    int32_t rank, pass;
};

/* Whether mpirun or srun bound this process to some of the processors. */
bool sv_ranks_bound(void);
/* Threads of a rank: the requested ones are divided among the ranks, else the processors of this
 * host among those here. */
int32_t sv_ranks_threads(const struct sv_engine_options *opts, struct sv_ranks ranks,
                         struct sv_ranks here);
/* Processes: checks that all have the same program and files; the error names what differs. */
int sv_ranks_compare(struct sv_world *world, const struct sv_engine_options *opts,
                     struct sv_err *err);
struct sv_world_opts sv_ranks_world(const struct sv_engine_options *opts, int32_t rank);
/* ranks.c. Rank 0, before anything else is opened: starts the other ranks and the record. */
int sv_ranks_open(struct sv_engine *e, const struct sv_engine_options *opts,
                  const struct sv_engine_tuning *tuning, struct sv_err *err);
/* All ranks, once buffers are allocated: opens the rank's own window. */
int sv_ranks_window(struct sv_engine *e, struct sv_err *err);
/* All ranks, once caches are allocated too: maps the other ranks' windows and lists the buffers.
 * From then on rank 0 broadcasts every upload. */
int sv_ranks_join(struct sv_engine *e, struct sv_err *err);
/* places.c. All ranks, after joining: rank 0 logs the device of each rank. Without ranks and
 * replicas nothing is logged. Followers' options are not read. */
int sv_places_log(struct sv_engine *e, const struct sv_engine_options *opts, struct sv_err *err);
/* Bytes of the windows for parts to and from other ranks; 0 without ranks. */
int64_t sv_ranks_window_bytes(const struct sv_engine *e);
/* Replaces the value on every rank by that of rank 0, or by the least of all ranks. Without ranks:
 * no effect. */
int sv_ranks_broadcast(struct sv_engine *e, void *value, size_t n_bytes, struct sv_err *err);
int sv_ranks_least(struct sv_engine *e, int32_t *value, int32_t n, struct sv_err *err);
/* Rank 0: before and after a pass of the current plan is enqueued. */
void sv_ranks_pass(struct sv_engine *e, enum sv_pass_kind kind);
void sv_ranks_passed(struct sv_engine *e, enum sv_pass_kind kind);
/* Time that the busiest follower of this host has spent on messages so far, without its waits. */
int64_t sv_ranks_busy_ns(const struct sv_engine *e);
/* Rank 0: before snapshots of a slot's states are enqueued after a pass. */
void sv_ranks_snapshot(struct sv_engine *e, int32_t seg, int32_t slot);
/* Rank 0: the results of the current plan's step were read. */
void sv_ranks_read(struct sv_engine *e);
void sv_ranks_fail(struct sv_engine *e, const char *text);
/* Rank 0 closes: leave ends the followers; close joins their threads, once they no longer read this
 * rank's memory. */
void sv_ranks_leave(struct sv_engine *e);
void sv_ranks_close(struct sv_engine *e);

/* follow.c: a follower's main function; apply runs one upload, copy or pass. */
void sv_ranks_follow(struct sv_world *world, void *group);
int sv_ranks_apply(struct sv_engine *e, uint32_t kind, const void *data, uint32_t n,
                   struct sv_err *err);

/* Kinds of messages, and their payloads. */
enum { SV_MSG_UPLOAD = 1, SV_MSG_COPY, SV_MSG_PASS, SV_MSG_END, SV_MSG_RESULTS, SV_MSG_SNAPSHOT };
struct sv_msg_upload {
    uint32_t place, n_bytes;
    uint64_t at; /* offset in the buffer, bytes */
};
struct sv_msg_copy {
    uint32_t to, from; /* indices of buffers; from SV_NO_PLACE: fill with zeros */
    uint64_t to_at, from_at, n_bytes;
};
/* See sv_cache_snapshot_passed; the segment is one of the previous pass. */
struct sv_msg_snapshot {
    int32_t seg, slot, at, pending[SV_MAX_GROUPS];
};
struct sv_msg_pass {
    uint32_t kind, n_joins; /* number of joins before the pass */
    uint32_t plan_bytes;
    int32_t set;         /* which set of host arrays */
    uint64_t bits;       /* sv_rank_group.bits before the pass */
    struct sv_plan plan; /* its pointer seg is not valid */
};

#endif
