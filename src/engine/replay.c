/*
 * replay.c - replays a recorded plan stream (plan_record.c) on an engine of the same models: the
 * same uploads and passes in the same order, without requests.
 *
 * Called by salvo-bench and tests. Followers receive the same messages as from a live engine. The
 * resulting tokens are compared with the recorded ones. Must not: run a message whose checksum is
 * wrong, or one that does not fit the engine.
 */
#include "engine/engine.h"

#include <string.h>

static int bad(const struct sv_replay *r, size_t at, struct sv_err *err, const char *what)
{
    return sv_fail(err, SV_EFORMAT, (int64_t)at, "%s: byte %zu: %s", r->map.path, at, what);
}

/* A name of n bytes behind `at`. */
static int take_name(const struct sv_replay *r, size_t *at, uint32_t n, char *name, size_t size,
                     struct sv_err *err)
{
    if (n >= size || n > r->map.n_bytes - *at)
        return bad(r, *at, err, "the record ends within a directory's name");
    memcpy(name, r->map.data + *at, n);
    name[n] = 0;
    *at += n;
    return SV_OK;
}

int sv_replay_open(struct sv_replay *r, const char *path, struct sv_err *err)
{
    struct sv_plan_record_head *h = &r->head;
    memset(r, 0, sizeof *r);
    int rc = sv_map_open(&r->map, path, err);
    if (rc)
        return rc;
    const size_t n = r->map.n_bytes < sizeof *h ? r->map.n_bytes : sizeof *h;
    memcpy(h, r->map.data, n);
    if (n < sizeof h->magic || memcmp(h->magic, SV_PLAN_RECORD_MAGIC, sizeof h->magic))
        rc = bad(r, 0, err, "this is no record of plans");
    else if (n < offsetof(struct sv_plan_record_head, options) ||
             strncmp(h->version, SALVO_VERSION, sizeof h->version) || h->head_bytes != sizeof *h ||
             h->pass_bytes != sizeof(struct sv_msg_pass))
        rc = bad(r, sizeof h->magic, err, "another version of Salvo wrote this record");
    else if (n < sizeof *h)
        rc = bad(r, n, err, "the record ends within its head");
    size_t at = sizeof *h;
    if (!rc)
        rc = take_name(r, &at, h->n_target, r->target, sizeof r->target, err);
    if (!rc)
        rc = take_name(r, &at, h->n_draft, r->draft, sizeof r->draft, err);
    if (!rc) {
        uint64_t sum =
            sv_plan_record_sum(sv_plan_record_sum(0, r->target, h->n_target), r->draft, h->n_draft);
        sum = sv_plan_record_sum(sum, h, offsetof(struct sv_plan_record_head, sum));
        if (sum != h->sum)
            rc = bad(r, 0, err, "the record's head is damaged");
    }
    r->first = at;
    if (rc)
        sv_replay_close(r);
    return rc;
}

void sv_replay_close(struct sv_replay *r)
{
    sv_map_close(&r->map);
    memset(r, 0, sizeof *r);
}

int sv_replay_engine(const struct sv_replay *r, const char *target, const char *draft,
                     int32_t n_threads, struct sv_engine **e, struct sv_err *err)
{
    struct sv_engine_options o = r->head.options;
    o.target_dir = target;
    o.draft_dir = draft;
    o.device = r->head.device;
    o.n_threads = n_threads ? n_threads : o.n_threads;
    o.auto_width = false; /* widths are in the plans */
    return sv_engine_open_tuned(e, &o, &(struct sv_engine_tuning){.replay = r}, NULL, err);
}

/* ---------------------------------------------------------------- messages */

struct run {
    const struct sv_replay *r;
    struct sv_engine *e;
    struct sv_replay_sums *sums;
    size_t at; /* of the message at work */
};

static bool counts_fit(const struct sv_batch *b, const struct sv_counts *n)
{
    return n->n_segs >= 0 && n->n_segs <= b->max_segs && n->n_rows >= 0 &&
           n->n_rows <= b->max_rows && n->n_logits >= 0 && n->n_logits <= b->max_rows &&
           n->n_draft_segs >= 0 && n->n_draft_segs <= b->max_segs && n->n_draft_rows >= 0 &&
           n->n_draft_rows <= b->max_draft_rows && n->n_draft_out >= 0 &&
           n->n_draft_out <= b->max_draft_rows;
}

/* The results stay in the host arrays of the pass's set until the step is read. */
static int run_pass(const struct run *run, const void *data, uint32_t n, struct sv_err *err)
{
    struct sv_engine *e = run->e;
    struct sv_batch *b = &e->batch;
    struct sv_msg_pass pass;
    if (n != sizeof pass)
        return bad(run->r, run->at, err, "a pass of another size");
    memcpy(&pass, data, sizeof pass);
    if (pass.kind > SV_PASS_TARGET || pass.set < 0 || pass.set > 1 ||
        pass.plan.n_prompt_logits < 0 ||
        pass.plan.n_prompt_logits > b->max_rows - pass.plan.launch.n_logits ||
        !counts_fit(b, &pass.plan.launch))
        return bad(run->r, run->at, err, "a pass that does not fit the engine");
    const bool target = pass.kind == SV_PASS_TARGET;
    const int64_t begin = sv_clock_ns();
    int rc = sv_ranks_apply(e, SV_MSG_PASS, data, n, err);
    if (!rc && target)
        sv_dev_download(e->dev, b->host_result + (size_t)b->use * b->result_words, b->dev_result,
                        b->result_words * sizeof(int32_t));
    if (!rc)
        rc = sv_dev_sync(e->dev, err);
    run->sums->ns[pass.kind] += sv_clock_ns() - begin;
    run->sums->n_passes[pass.kind]++;
    run->sums->n_rows[pass.kind] +=
        target ? pass.plan.launch.n_rows : pass.plan.launch.n_draft_rows;
    return rc;
}

static int take_results(const struct run *run, const void *data, uint32_t n, struct sv_err *err)
{
    struct sv_batch *b = &run->e->batch;
    struct sv_replay_sums *sums = run->sums;
    struct sv_msg_results t;
    if (n != sizeof t)
        return bad(run->r, run->at, err, "results of another size");
    memcpy(&t, data, sizeof t);
    if (t.set < 0 || t.set > 1 || t.n_segs < 0 || t.n_segs > b->max_segs)
        return bad(run->r, run->at, err, "results that do not fit the engine");
    sv_batch_use(b, t.set);
    sums->n_steps++;
    if (sv_plan_record_results(b, t.n_segs) == t.sum)
        return SV_OK;
    sums->n_other++;
    if (!sums->first_other)
        sums->first_other = sums->n_steps;
    return SV_OK;
}

static int run_message(const struct run *run, const struct sv_plan_record_message *m,
                       const void *data, struct sv_err *err)
{
    switch (m->kind) {
    case SV_MSG_PASS:
        return run_pass(run, data, m->n_bytes, err);
    case SV_MSG_RESULTS:
        return take_results(run, data, m->n_bytes, err);
    case SV_MSG_UPLOAD:
        run->sums->n_uploads++;
        run->sums->n_upload_bytes += m->n_bytes;
        break;
    case SV_MSG_COPY:
    case SV_MSG_SNAPSHOT:
        run->sums->n_copies++;
        break;
    default:
        return bad(run->r, run->at, err, "a message of no known kind");
    }
    int rc = sv_ranks_apply(run->e, m->kind, data, m->n_bytes, err);
    if (rc)
        sv_err_prefix(err, "%s: byte %zu", run->r->map.path, run->at);
    return rc;
}

int sv_replay_run(const struct sv_replay *r, struct sv_engine *e, struct sv_replay_sums *sums,
                  struct sv_err *err)
{
    struct run run = {.r = r, .e = e, .sums = sums, .at = r->first};
    int rc = SV_OK;
    *sums = (struct sv_replay_sums){0};
    while (!rc && !sums->ends && run.at < r->map.n_bytes) {
        struct sv_plan_record_message m;
        const size_t left = r->map.n_bytes - run.at;
        if (left >= sizeof m)
            memcpy(&m, r->map.data + run.at, sizeof m);
        if (left < sizeof m || m.n_bytes > left - sizeof m)
            return bad(r, run.at, err, "the record ends within a message");
        const uint8_t *data = r->map.data + run.at + sizeof m;
        if (m.n_first > m.n_bytes ||
            sv_plan_record_sum(sv_plan_record_sum(m.kind, data, m.n_first), data + m.n_first,
                               m.n_bytes - m.n_first) != m.sum)
            return bad(r, run.at, err, "the record is damaged");
        sums->ends = m.kind == SV_MSG_END;
        if (!sums->ends)
            rc = run_message(&run, &m, data, err);
        run.at += sizeof m + m.n_bytes;
    }
    return rc;
}
