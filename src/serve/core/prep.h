/*
 * prep.h - threads beside the loop: one reads long bodies and writes long answers, one compiles
 * grammars.
 *
 * Called on the loop's thread. Must not: touch what a job does not point to.
 */
#ifndef SV_SERVE_CORE_PREP_H
#define SV_SERVE_CORE_PREP_H

#include "base/base.h"

struct sv_enc_scratch;
struct sv_prep;

/* The number of waiting jobs is limited for each kind; grammars have a thread of their own. */
enum sv_job_kind { SV_JOB_BODY, SV_JOB_ANSWER, SV_JOB_GRAMMAR, SV_N_JOB_KINDS };

/* run is called on the other thread, with that thread's scratch (NULL for grammars); then done is
 * called on the loop's thread. */
struct sv_job {
    void (*run)(void *user, struct sv_enc_scratch *scratch);
    void (*done)(void *user);
    void *user;
    enum sv_job_kind kind;
    size_t cost; /* about the bytes to be read or written: small jobs pass large ones */
    /* prep.c's own */
    struct sv_job *next;
    int64_t rank;
};
/* Bodies of more bytes are read on the other thread. Reading so many takes the loop about a
 * millisecond. */
#define SV_INLINE_BYTES 8192

int sv_prep_start(struct sv_prep **p, struct sv_err *err);
int sv_prep_fd(const struct sv_prep *p);                                /* readable: collect */
int32_t sv_prep_n_jobs(const struct sv_prep *p, enum sv_job_kind kind); /* not collected yet */
/* The job stays the caller's and must live until done. False: too many are waiting. */
bool sv_prep_submit(struct sv_prep *p, struct sv_job *job);
/* Frees a JSON tree on the other thread: a long list takes as long as reading it took. */
void sv_prep_discard(struct sv_prep *p, json_t *tree);
void sv_prep_collect(struct sv_prep *p); /* calls done */
/* Ends the threads once all jobs have run, and calls done. */
void sv_prep_finish(struct sv_prep *p);
void sv_prep_free(struct sv_prep *p);

#endif
