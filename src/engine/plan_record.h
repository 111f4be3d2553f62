/*
 * plan_record.h - records of an engine's uploads, copies and plans: the file's layout, writing
 * (plan_record.c) and replaying (replay.c).
 *
 * Included by engine.h; used by ranks.c, replay.c and salvo-bench. A file is read by the version
 * that wrote it, on a machine of the same byte order. Must not: be needed by an engine that records
 * nothing.
 */
#ifndef SV_ENGINE_PLAN_RECORD_H
#define SV_ENGINE_PLAN_RECORD_H

#include "cache/cache.h"
#include "engine/batch.h"
#include "salvo.h"

struct sv_engine;

#define SV_PLAN_RECORD_MAGIC "salvoPLN"

/* The file's header; the directories of target and draft and the messages follow it. */
struct sv_plan_record_head {
    char magic[8], version[24], device[16];
    uint32_t head_bytes, pass_bytes;  /* sizes of this struct and of struct sv_msg_pass */
    struct sv_engine_options options; /* pointers are not valid */
    int32_t n_pages[SV_MAX_GROUPS];
    uint32_t n_target, n_draft; /* bytes of the directories' names */
    uint64_t sum;               /* checksum of the names and of the fields above */
};
struct sv_plan_record_message {
    uint32_t kind, n_bytes; /* SV_MSG_..., bytes of the payload that follows */
    uint32_t n_first, zero; /* bytes of the payload's first piece, which is summed first */
    uint64_t sum;
};
/* Payload of SV_MSG_RESULTS, written when a step's results were read. */
struct sv_msg_results {
    int32_t set, n_segs;
    uint64_t sum; /* sv_plan_record_results */
};

uint64_t sv_plan_record_sum(uint64_t sum, const void *data, size_t n_bytes);
/* Checksum of a step's results, committed rows and tokens, in the current set of host arrays. */
uint64_t sv_plan_record_results(const struct sv_batch *b, int32_t n_segs);

struct sv_plan_record;
/* The caller closes the record, also after an error. */
int sv_plan_record_open(struct sv_plan_record **r, const char *path, struct sv_err *err);
void sv_plan_record_begin(struct sv_plan_record *r, const struct sv_engine *e,
                          const struct sv_engine_options *opts);
void sv_plan_record_write(struct sv_plan_record *r, uint32_t kind, const void *first,
                          size_t n_first, const void *rest, size_t n_rest);
void sv_plan_record_step(struct sv_plan_record *r, const struct sv_batch *b, int32_t n_segs);
void sv_plan_record_close(struct sv_plan_record *r);

/* replay.c: an open record. */
struct sv_replay {
    struct sv_map map;
    struct sv_plan_record_head head;
    char target[4096], draft[4096]; /* as recorded; draft "": none */
    size_t first;                   /* where messages begin */
};
int sv_replay_open(struct sv_replay *r, const char *path, struct sv_err *err);
void sv_replay_close(struct sv_replay *r);
/* Opens an engine with the recorded options on these directories. n_threads 0: as recorded. */
int sv_replay_engine(const struct sv_replay *r, const char *target, const char *draft,
                     int32_t n_threads, struct sv_engine **e, struct sv_err *err);

struct sv_replay_sums {
    int64_t n_passes[2], n_rows[2], ns[2]; /* by enum sv_pass_kind */
    int64_t n_uploads, n_upload_bytes, n_copies;
    int64_t n_steps,
        n_other;         /* steps whose results were read; those with other tokens than recorded */
    int64_t first_other; /* number of the first such step, from 1; 0: none */
    bool ends;           /* the record has an end: the engine was closed */
};
/* Runs all messages, once. */
int sv_replay_run(const struct sv_replay *r, struct sv_engine *e, struct sv_replay_sums *sums,
                  struct sv_err *err);

#endif
