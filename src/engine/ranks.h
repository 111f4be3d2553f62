/*
 * ranks.h - an engine whose model is divided among ranks: what rank 0 tells the others, and what
 * these do with it. An engine that is recorded (plan_record.h) tells the same, to a file.
 *
 * Included by engine.h. Rank 0 has the engine that is driven: sequences, plans, results. Every
 * other rank is a follower: an engine of its own with its part of the weights and caches, which
 * runs the same passes on what it is told and decides nothing. Must not: be consulted in a step of
 * an engine that is alone, beyond one pointer.
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

/* What of a device's memory is uploaded, or copied on the device, in steps: the same list on every
 * rank, in memory of its own. */
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
    struct sv_plan_record *record; /* rank 0: what is told is written there too; NULL */
    bool stuck;                    /* a rank did not end */
    bool compares;                 /* tests: that all ranks have the same bits */
    void *rows;                    /* then: host, (max_rows, hidden) act */
    struct sv_window_key key;      /* of the own window */
    int64_t window_bytes;          /* that it takes, where the device counts */
    uint64_t bits;                 /* of what the passes so far gave */
    int32_t n_bits;                /* passes that were compared */
};

/* What a test does to a rank: at the target's pass of this number it stops answering, says that it
 * fails, or goes on without the pass. */
enum sv_rank_fault { SV_RANK_WELL, SV_RANK_SILENT, SV_RANK_FAILS, SV_RANK_SKIPS };
struct sv_rank_fault_at {
    enum sv_rank_fault kind;
    int32_t rank, pass;
};

/* mpirun gave this process processors of its own. */
bool sv_ranks_bound(void);
/* Threads of a rank: all that are asked for are shared out. */
int32_t sv_ranks_threads(const struct sv_engine_options *opts, struct sv_ranks r);
/* Processes: the same program and the same files everywhere, or an error that names what differs.
 */
int sv_ranks_compare(struct sv_world *world, const struct sv_engine_options *opts,
                     struct sv_err *err);
struct sv_world_opts sv_ranks_world(const struct sv_engine_options *opts, int32_t rank);
/* ranks.c. Rank 0, before anything else is opened: starts the others, and the record. */
int sv_ranks_open(struct sv_engine *e, const struct sv_engine_options *opts,
                  const struct sv_engine_tuning *tuning, struct sv_err *err);
/* All ranks, once buffers are there: the own window. */
int sv_ranks_window(struct sv_engine *e, struct sv_err *err);
/* All ranks, once caches are there too: the others' windows, and the list of places. From now on
 * rank 0 tells every upload. */
int sv_ranks_join(struct sv_engine *e, struct sv_err *err);
/* places.c. All ranks, after that: rank 0 logs where each of them computes. Alone, and without
 * replicas: nothing. Followers' options are not read. */
int sv_places_log(struct sv_engine *e, const struct sv_engine_options *opts, struct sv_err *err);
/* Of parts for or of the others; 0: alone. */
int64_t sv_ranks_window_bytes(const struct sv_engine *e);
/* Every rank's value becomes that of rank 0, or the least of all; alone: nothing. */
int sv_ranks_broadcast(struct sv_engine *e, void *value, size_t n_bytes, struct sv_err *err);
int sv_ranks_least(struct sv_engine *e, int32_t *value, int32_t n, struct sv_err *err);
/* Rank 0: a pass is about to be enqueued by the plan at work; it is enqueued. */
void sv_ranks_pass(struct sv_engine *e, enum sv_pass_kind kind);
void sv_ranks_passed(struct sv_engine *e, enum sv_pass_kind kind);
/* Snapshots of a slot's states are about to be taken behind a pass. */
void sv_ranks_snapshot(struct sv_engine *e, int32_t seg, int32_t slot);
/* A step was read, by the plan at work. */
void sv_ranks_read(struct sv_engine *e);
void sv_ranks_fail(struct sv_engine *e, const char *text);
/* Rank 0 closes: the others end; then, once nothing is left that they look at, their threads. */
void sv_ranks_leave(struct sv_engine *e);
void sv_ranks_close(struct sv_engine *e);

/* follow.c: the life of a follower; one upload, copy or pass. */
void sv_ranks_follow(struct sv_world *world, void *group);
int sv_ranks_apply(struct sv_engine *e, uint32_t kind, const void *data, uint32_t n,
                   struct sv_err *err);

/* What messages say. */
enum { SV_MSG_UPLOAD = 1, SV_MSG_COPY, SV_MSG_PASS, SV_MSG_END, SV_MSG_RESULTS, SV_MSG_SNAPSHOT };
struct sv_msg_upload {
    uint32_t place, n_bytes;
    uint64_t at; /* bytes from the place's begin */
};
struct sv_msg_copy {
    uint32_t to, from; /* places; from SV_NO_PLACE: zeros */
    uint64_t to_at, from_at, n_bytes;
};
/* See sv_cache_snapshot_passed; of a segment of the pass before. */
struct sv_msg_snapshot {
    int32_t seg, slot, at, pending[SV_MAX_GROUPS];
};
struct sv_msg_pass {
    uint32_t kind, n_joins; /* joins before it */
    uint32_t plan_bytes;
    int32_t set;         /* of host arrays */
    uint64_t bits;       /* of what the passes before it gave, where that is compared */
    struct sv_plan plan; /* seg means nothing */
};

#endif
