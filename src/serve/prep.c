/*
 * prep.c - the thread that reads long bodies and writes long answers: JSON, templates and
 * tokenizing of a megabyte take hundreds of milliseconds, in which the loop's thread would send
 * nothing to anybody.
 *
 * Called by loop.c (life), call.c, tokenize.c and send.c (jobs). Jobs run one after the other in
 * the order they came; what is short never comes here, so it passes what is long. Must not: touch
 * what a job does not point to.
 */
#include "serve/impl.h"

#include <stdatomic.h>
#include <string.h>

#define MAX_JOBS 64 /* bodies that may wait: each may be as long as --max-body; and answers */
#define MAX_DISCARDS 256
#define IDLE_WAIT_US 1000000 /* between looks at an empty queue; a job wakes at once */

/* One of the two, or neither: stop. */
struct task {
    struct sv_job *job;
    json_t *tree;
};

struct sv_prep {
    struct sv_queue *tasks;
    struct sv_mail *mail; /* pointers to jobs that have run */
    struct sv_thread *thread;
    struct sv_enc_scratch *scratch; /* the thread's */
    atomic_int n_discards;          /* trees that wait */
    int32_t n_jobs[2];              /* the loop's: bodies, answers submitted and not collected */
    struct sv_buf ran;              /* the loop's: of the last collect */
};

static void *run(void *arg)
{
    struct sv_prep *p = arg;
    struct sv_buf batch;
    struct task t;

    sv_buf_init(&batch);
    for (;;) {
        if (!sv_queue_pop(p->tasks, &t, IDLE_WAIT_US))
            continue;
        if (t.job) {
            t.job->run(t.job->user, p->scratch);
            sv_buf_append(&batch, &t.job, sizeof t.job);
            if (batch.failed || sv_mail_post(p->mail, &batch, true))
                sv_panic("out of memory for a pointer"); /* its client would wait for ever */
        } else if (t.tree) {
            json_decref(t.tree);
            atomic_fetch_sub(&p->n_discards, 1);
        } else {
            break;
        }
    }
    sv_buf_fini(&batch);
    return NULL;
}

int sv_prep_start(struct sv_prep **out, struct sv_err *err)
{
    struct sv_prep *p = sv_calloc(1, sizeof *p);

    *out = NULL;
    if (!p)
        return sv_fail(err, SV_ENOMEM, -1, "thread for long bodies");
    sv_buf_init(&p->ran);
    p->scratch = sv_enc_scratch_new();
    int rc = p->scratch ? sv_queue_open(&p->tasks, 2 * MAX_JOBS + MAX_DISCARDS + 1,
                                        sizeof(struct task), err)
                        : sv_fail(err, SV_ENOMEM, -1, "thread for long bodies");
    if (!rc)
        rc = sv_mail_open(&p->mail, err);
    if (!rc)
        rc = sv_thread_start(&p->thread, run, p, err);
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

int32_t sv_prep_n_reading(const struct sv_prep *p)
{
    return p->n_jobs[false];
}

int32_t sv_prep_n_writing(const struct sv_prep *p)
{
    return p->n_jobs[true];
}

bool sv_prep_submit(struct sv_prep *p, struct sv_job *job)
{
    struct task t = {.job = job};

    if (p->n_jobs[job->writes] == MAX_JOBS || !sv_queue_push(p->tasks, &t))
        return false;
    p->n_jobs[job->writes]++;
    return true;
}

void sv_prep_discard(struct sv_prep *p, json_t *tree)
{
    struct task t = {.tree = tree};

    if (!tree)
        return;
    /* No more of them than leave the jobs their room. */
    if (p->thread && atomic_fetch_add(&p->n_discards, 1) < MAX_DISCARDS &&
        sv_queue_push(p->tasks, &t))
        return;
    if (p->thread)
        atomic_fetch_sub(&p->n_discards, 1);
    json_decref(tree);
}

void sv_prep_collect(struct sv_prep *p)
{
    struct sv_job *job;

    sv_mail_take(p->mail, &p->ran);
    for (size_t at = 0; at < p->ran.len; at += sizeof job) {
        memcpy(&job, p->ran.data + at, sizeof job);
        p->n_jobs[job->writes]--;
        job->done(job->user);
    }
}

void sv_prep_finish(struct sv_prep *p)
{
    struct task stop = {NULL, NULL};

    while (!sv_queue_push(p->tasks, &stop))
        sv_prep_collect(p); /* the thread makes room meanwhile */
    sv_thread_join(p->thread);
    p->thread = NULL;
    sv_prep_collect(p);
    SV_REQUIRE(!p->n_jobs[false] && !p->n_jobs[true]);
}

void sv_prep_free(struct sv_prep *p)
{
    if (!p)
        return;
    if (p->thread)
        sv_prep_finish(p);
    sv_queue_close(p->tasks);
    sv_mail_close(p->mail);
    sv_enc_scratch_free(p->scratch);
    sv_buf_fini(&p->ran);
    sv_free(p);
}
