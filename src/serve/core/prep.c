/*
 * prep.c - two threads beside the loop: one reads long bodies and writes long answers, one compiles
 * grammars. A megabyte of JSON, templates and tokenization, or a large grammar, takes hundreds of
 * milliseconds, during which the loop's thread would send nothing to any client.
 *
 * Called by serve.c (life), call.c, body.c, send.c and grammars.c (jobs). Each thread runs one job
 * at a time. Jobs wait in the order in which they would end if the thread worked on all of them at
 * once with equal shares (fair queueing): a small job passes large ones, and a large job still gets
 * its share. Must not: touch what a job does not point to.
 */
#include "serve/core/prep.h"
#include "token/token.h"

#include <stdatomic.h>
#include <string.h>

#define MAX_JOBS 64 /* waiting jobs of a kind: a body may be as long as --max-body */
#define MAX_DISCARDS 256
#define IDLE_WAIT_US 1000000 /* longest wait on an empty queue; a job ends it */

/* One of the two; neither: stop. */
struct task {
    struct sv_job *job;
    json_t *tree;
};

/* A thread and what waits for it. */
struct lane {
    struct sv_prep *prep;
    struct sv_queue *tasks;
    struct sv_thread *thread;
    struct sv_enc_scratch *scratch; /* the thread's; NULL: grammars need none */
    /* The loop's. */
    struct sv_job *waiting; /* by rank */
    bool busy;              /* a job was handed over and not collected */
    int32_t n_waiting;
    int64_t share; /* virtual time: the cost done so far of a job that is always present */
};

enum { BODIES, GRAMMARS, N_LANES };

struct sv_prep {
    struct lane lanes[N_LANES];
    struct sv_mail *mail;           /* pointers to jobs that have run */
    atomic_int n_discards;          /* trees to be freed on the thread for bodies */
    int32_t n_jobs[SV_N_JOB_KINDS]; /* the loop's: submitted and not collected */
    struct sv_buf ran;              /* the loop's: of the last collect */
};

static void *run(void *arg)
{
    struct lane *l = arg;
    struct sv_buf batch;
    struct task t;

    sv_buf_init(&batch);
    for (;;) {
        if (!sv_queue_pop(l->tasks, &t, IDLE_WAIT_US))
            continue;
        if (t.job) {
            t.job->run(t.job->user, l->scratch);
            sv_buf_append(&batch, &t.job, sizeof t.job);
            if (batch.failed || sv_mail_post(l->prep->mail, &batch, true))
                sv_panic(
                    "out of memory for a pointer"); /* otherwise its client would wait for ever */
        } else if (t.tree) {
            json_decref(t.tree);
            atomic_fetch_sub(&l->prep->n_discards, 1);
        } else {
            break;
        }
    }
    sv_buf_fini(&batch);
    return NULL;
}

static int start_lane(struct sv_prep *p, int which, struct sv_err *err)
{
    struct lane *l = &p->lanes[which];
    int rc = SV_OK;

    l->prep = p;
    if (which == BODIES && !(l->scratch = sv_enc_scratch_new()))
        rc = sv_fail(err, SV_ENOMEM, -1, "thread for long bodies");
    if (!rc)
        rc = sv_queue_open(&l->tasks, SV_N_JOB_KINDS * MAX_JOBS + MAX_DISCARDS + 1,
                           sizeof(struct task), err);
    return rc ? rc : sv_thread_start(&l->thread, run, l, err);
}

int sv_prep_start(struct sv_prep **out, struct sv_err *err)
{
    struct sv_prep *p = sv_calloc(1, sizeof *p);

    *out = NULL;
    if (!p)
        return sv_fail(err, SV_ENOMEM, -1, "threads for long bodies and grammars");
    sv_buf_init(&p->ran);
    int rc = sv_mail_open(&p->mail, err);
    for (int i = 0; i < N_LANES && !rc; i++)
        rc = start_lane(p, i, err);
    if (rc) {
        sv_prep_free(p);
        return rc;
    }
    *out = p;
    return SV_OK;
}

int sv_prep_fd(const struct sv_prep *p)
{
    return sv_mail_fd(p->mail);
}

int32_t sv_prep_n_jobs(const struct sv_prep *p, enum sv_job_kind kind)
{
    return p->n_jobs[kind];
}

static struct lane *lane_of(struct sv_prep *p, const struct sv_job *job)
{
    return &p->lanes[job->kind == SV_JOB_GRAMMAR ? GRAMMARS : BODIES];
}

static void hand_over(struct lane *l)
{
    struct task t = {.job = l->waiting};

    l->waiting = t.job->next;
    l->share += 1 + (int64_t)t.job->cost / l->n_waiting--;
    l->busy = true;
    const bool room = sv_queue_push(l->tasks, &t);
    SV_REQUIRE(room);
}

bool sv_prep_submit(struct sv_prep *p, struct sv_job *job)
{
    struct lane *l = lane_of(p, job);
    struct sv_job **at = &l->waiting;

    if (p->n_jobs[job->kind] == MAX_JOBS)
        return false;
    p->n_jobs[job->kind]++;
    job->rank = l->share + (int64_t)job->cost;
    l->n_waiting++;
    while (*at && (*at)->rank <= job->rank)
        at = &(*at)->next;
    job->next = *at;
    *at = job;
    if (!l->busy)
        hand_over(l);
    return true;
}

void sv_prep_discard(struct sv_prep *p, json_t *tree)
{
    struct lane *l = &p->lanes[BODIES];
    struct task t = {.tree = tree};

    if (!tree)
        return;
    /* Limited in number, so that jobs still fit. */
    if (l->thread && atomic_fetch_add(&p->n_discards, 1) < MAX_DISCARDS &&
        sv_queue_push(l->tasks, &t))
        return;
    if (l->thread)
        atomic_fetch_sub(&p->n_discards, 1);
    json_decref(tree);
}

void sv_prep_collect(struct sv_prep *p)
{
    struct sv_job *job;

    sv_mail_take(p->mail, &p->ran);
    for (size_t at = 0; at < p->ran.len; at += sizeof job) {
        memcpy(&job, p->ran.data + at, sizeof job);
        struct lane *l = lane_of(p, job);
        p->n_jobs[job->kind]--;
        l->busy = false;
        if (l->waiting) /* first, so that the thread does not idle while done runs */
            hand_over(l);
        job->done(job->user);
    }
}

void sv_prep_finish(struct sv_prep *p)
{
    struct task stop = {NULL, NULL};

    for (int i = 0; i < N_LANES; i++) {
        struct lane *l = &p->lanes[i];
        while (l->thread && l->waiting)
            hand_over(l);
        while (l->thread && !sv_queue_push(l->tasks, &stop))
            sv_prep_collect(p); /* the thread makes room meanwhile */
    }
    for (int i = 0; i < N_LANES; i++) {
        if (p->lanes[i].thread)
            sv_thread_join(p->lanes[i].thread);
        p->lanes[i].thread = NULL;
    }
    sv_prep_collect(p);
    for (int i = 0; i < SV_N_JOB_KINDS; i++)
        SV_REQUIRE(!p->n_jobs[i]);
}

void sv_prep_free(struct sv_prep *p)
{
    if (!p)
        return;
    if (p->mail)
        sv_prep_finish(p);
    for (int i = 0; i < N_LANES; i++) {
        sv_queue_close(p->lanes[i].tasks);
        sv_enc_scratch_free(p->lanes[i].scratch);
    }
    sv_mail_close(p->mail);
    sv_buf_fini(&p->ran);
    sv_free(p);
}
