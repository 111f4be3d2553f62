/*
 * sim.c - decoding at fixed numbers of sequences and context: plain, fixed widths, the width
 * policy.
 *
 * Called by main.c. All arms of a level run on the same sequences, which are set back to their
 * context before every sample, so that each arm meets the same lengths and, with a simulated
 * profile, the same draws. Arms take turns, samples are short: a busy moment of the machine meets
 * all of them. Must not: call anything measured that was computed, or leave "simulated" off a row
 * whose accept lengths were drawn.
 */
#define _POSIX_C_SOURCE 200809L

#include "bench/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void ignore(void *user, const struct sv_event *ev)
{
    (void)user;
    (void)ev;
}

static int step(struct sv_engine *e, struct sv_err *err)
{
    char msg[480] = "";
    int left = sv_step_engine(e, msg, sizeof msg);
    return left < 0 ? sv_fail(err, left, -1, "%s", msg) : SV_OK;
}

static int submit(struct sv_sim *s, struct sv_engine *e, int32_t n_prompt, int32_t max_tokens,
                  int32_t first, struct sv_err *err)
{
    struct sv_request r = *s->o->defaults;
    s->prompt[0] = first % s->out->info.vocab_size; /* no two prompts are the same */
    r.prompt_ids = s->prompt;
    r.n_prompt_ids = n_prompt;
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    r.on_event = ignore;
    return sv_engine_submit(e, &r, NULL, err);
}

static int drain(struct sv_engine *e, struct sv_err *err)
{
    int rc = SV_OK;
    for (struct sv_seq *q = e->sched.head; q; q = q->next)
        q->cancel = true;
    while (!rc && e->sched.n_unfinished)
        rc = step(e, err);
    return rc;
}

/* n sequences with their prompts computed. */
static int start_level(struct sv_sim *s, struct sv_engine *e, int32_t n, struct sv_err *err)
{
    int rc = drain(e, err);
    for (int32_t i = 0; i < n && !rc; i++)
        rc = submit(s, e, s->o->context, 0, i, err);
    while (!rc) {
        bool ready = true;
        for (struct sv_seq *q = e->sched.head; q; q = q->next)
            ready &= q->n_tokens > q->n_prompt;
        if (ready)
            return SV_OK;
        if (sv_cli_interrupted())
            return sv_fail(err, SV_ECANCELED, -1, "canceled");
        rc = step(e, err);
    }
    return rc;
}

/* ---------------------------------------------------------------- one sample */

/* Back to the prompt and one token: what was computed beyond is overwritten before it is seen.
 * Where layers slide, pages behind them are gone, and the sequences start anew; so they do where
 * one is about to compute again what was dropped. */
static int rewind_all(struct sv_sim *s, struct sv_engine *e, int32_t n, bool real,
                      struct sv_err *err)
{
    bool anew = s->anew;
    int rc = sv_engine_settle(e, err);
    s->anew = false;
    for (int32_t g = 0; g < e->cache.n_groups; g++)
        anew |= e->cache.group[g].d.window > 0;
    /* Where accept lengths are drawn, what the drafter knows of the prompt does not matter. */
    for (const struct sv_seq *q = e->sched.head; q; q = q->next)
        anew |=
            q->state != SV_SEQ_DECODE || (real && sv_sched_draft_end(&e->cache, q) < q->n_prompt);
    if (!rc && anew) {
        rc = start_level(s, e, n, err);
        rc = rc ? rc : sv_engine_settle(e, err);
    }
    if (rc)
        return rc;
    for (struct sv_seq *q = e->sched.head; q; q = q->next) {
        q->n_tokens = q->n_delivered = q->n_prompt + 1;
        q->n_committed = q->n_prompt;
        for (int32_t g = 0; g < e->cache.n_groups; g++)
            e->cache.group[g].valid_to[q->slot] = INT32_MAX;
        q->n_steps = 0;
        e->sched.new_slot[q->slot] = true;
    }
    return SV_OK;
}

/* Nothing may be in flight: the drafter comes and goes. */
static void set_arm(struct sv_sim *s, const struct sv_sim_arm *a, const struct sv_sim_profile *p,
                    uint64_t draw)
{
    struct sv_engine *e = s->e;
    sv_sim_accept_set(&s->accept, p->real ? NULL : &p->p, draw);
    e->sched.policy = a->width ? NULL : e->policy;
    if (e->policy)
        e->policy->prunes = e->prune.confidence && !a->unpruned;
    sv_engine_set_drafter(e, a->drafts ? s->drafter : NULL);
    for (struct sv_seq *q = e->sched.head; q; q = q->next)
        q->width = a->width && a->width < e->width ? a->width : e->width;
}

/* K/V bytes that the step just planned has to read. */
static double cache_bytes_of(const struct sv_engine *e)
{
    const struct sv_plan *p = &e->plan;
    double bytes = 0, positions = 0, drafting = 0;
    for (int32_t i = 0; i < p->n_segs; i++) {
        positions += p->seg[i].first + p->seg[i].n_rows;
        drafting += p->seg[i].n_draft_rows ? p->seg[i].first + p->seg[i].n_draft_rows : 0;
    }
    for (int32_t g = 0; g < e->cache.n_groups; g++) {
        const struct sv_cache_group_desc *d = &e->cache.group[g].d;
        bytes += (double)sv_cache_position_bytes(d) *
                 (d->owner == SV_CACHE_TARGET ? positions : drafting);
    }
    return bytes;
}

static void count_plan(const struct sv_engine *e, struct sv_sim_row *row)
{
    const struct sv_plan *p = &e->plan;
    for (int32_t i = 0; i < p->n_segs; i++) {
        row->n_segs++;
        row->n_rows += p->seg[i].n_rows;
        row->width[p->seg[i].n_rows]++;
    }
}

/* A device that kept to its power limit runs faster for a while after a pause. */
static void rest(double seconds)
{
    const double whole = floor(seconds);
    struct timespec t = {(time_t)whole, (long)((seconds - whole) * 1e9)};
    nanosleep(&t, NULL); /* Ctrl-C ends it early */
}

int sv_sim_sample(struct sv_sim *s, int32_t n, const struct sv_sim_arm *a,
                  const struct sv_sim_profile *p, uint64_t draw, struct sv_sim_row *row,
                  double *rate, struct sv_err *err)
{
    struct sv_engine *e = s->e;
    /* Then the steps that count begin and end with nothing in flight. */
    const bool rests = row && s->o->rest > 0;
    double bytes = 0;
    int rc = rewind_all(s, e, n, p->real, err);
    if (rc)
        return rc;
    set_arm(s, a, p, draw);
    rc = step(e,
              err); /* uploads what was set back, and is read by the next, where steps run ahead */
    if (!rc && e->n_flight)
        rc = step(e, err);
    if (s->skips) /* from here on: a missing op leaves the results of the step before */
        sv_trace_skip(s->skips, s->skip);
    if (s->trace && !rc) {
        rc = sv_engine_settle(e, err);
        sv_trace_start(s->trace, s->trace_mode);
    }
    if (rests && !rc) {
        rc = sv_engine_settle(e, err);
        rest(s->o->rest);
    }
    const struct sv_engine_stats before = e->stats;
    const int64_t busy_ns = sv_ranks_busy_ns(e);
    if (s->o->step_log)
        sv_sim_steps_begin(&s->steps, e);
    int64_t start = sv_clock_ns();
    for (int32_t i = 0; i < s->o->steps && !rc; i++) {
        rc = step(e, err);
        if (s->o->step_log)
            sv_sim_steps_add(&s->steps, e, a->name, p->name, row ? row->rate.n : -1);
        if (row)
            count_plan(e, row);
        bytes += cache_bytes_of(e);
    }
    if (rests && !rc)
        rc = sv_engine_settle(e, err);
    double seconds = (double)(sv_clock_ns() - start) / 1e9;
    int64_t tokens = e->stats.n_tokens - before.n_tokens;
    int64_t weights = e->stats.weight_bytes - before.weight_bytes;
    int64_t whole = e->stats.whole_weight_bytes - before.whole_weight_bytes;
    rc = rc ? rc : sv_engine_settle(e, err);
    if (s->skips && s->skip) {
        sv_trace_skip(s->skips, 0);
        s->anew = true;
    }
    if (!rc)
        sv_sim_accept_set(&s->accept, NULL, 0);
    sv_engine_set_drafter(e, s->drafter);
    *rate = (double)tokens / seconds;
    if (!row || rc)
        return rc;
    row->n_tokens += tokens;
    sv_cli_samples_add(&row->rate, *rate);
    sv_cli_samples_add(&row->ms, seconds * 1e3 / s->o->steps);
    sv_cli_samples_add(&row->follower_us,
                       (double)(sv_ranks_busy_ns(e) - busy_ns) / 1e3 / s->o->steps);
    sv_cli_samples_add(&row->gbs, (bytes + (double)weights) / seconds / 1e9);
    sv_cli_samples_add(&row->whole_gbs, (bytes + (double)whole) / seconds / 1e9);
    return SV_OK;
}

/* ---------------------------------------------------------------- levels */

/* The policy relative to the best other arm, for each repeat: both were measured within
 * moments. */
static double policy_ratio(const struct sv_sim_row *rows, int32_t n_arms)
{
    const struct sv_sim_row *policy = NULL, *best = NULL;
    for (int32_t a = 0; a < n_arms; a++) {
        const struct sv_sim_row *r = &rows[a];
        if (!r->arm->width)
            policy = r->arm->unpruned ? policy : r;
        else if ((r->arm->drafts || r->arm->width == 1) &&
                 (!best || sv_cli_samples_median(&r->rate) > sv_cli_samples_median(&best->rate)))
            best = r;
    }
    if (!policy || !best)
        return 0;
    struct sv_cli_samples ratio = {.n = 0};
    for (int i = 0; i < policy->rate.n && i < best->rate.n; i++)
        sv_cli_samples_add(&ratio, policy->rate.v[i] / best->rate.v[i]);
    return sv_cli_samples_median(&ratio);
}

/* Another profile: other requests, as far as the policy is concerned. */
static void forget(struct sv_engine *e)
{
    if (e->policy)
        sv_policy_forget(e->policy);
    for (struct sv_seq *q = e->sched.head; q; q = q->next)
        q->record = (struct sv_record){.n_verified = 0};
}

/* After a round or two, arms that are much slower are dropped, to spend the time on the others. */
static bool far_behind(const struct sv_sim_opts *o, const struct sv_sim_row *rows, int32_t arm)
{
    double best = 0;
    if (!rows[arm].rate.n || o->arm[arm].width < 2)
        return false; /* plain decoding and the policy go on */
    for (int32_t a = 0; a < o->n_arms; a++)
        best = fmax(best, sv_cli_samples_median(&rows[a].rate));
    double keep = rows[arm].rate.n > 1 ? o->keep : o->keep * o->keep;
    return sv_cli_samples_median(&rows[arm].rate) < keep * best;
}

/* All arms of one level and profile, in turns. */
static int run_profile(struct sv_sim *s, int32_t n, const struct sv_sim_profile *p,
                       struct sv_sim_row *rows, struct sv_err *err)
{
    const struct sv_sim_opts *o = s->o;
    int64_t start = sv_clock_us();
    double rate;
    int rc = SV_OK;
    for (int32_t a = 0; a < o->n_arms; a++) {
        rows[a] = (struct sv_sim_row){
            .arm = &o->arm[a], .profile = p, .sequences = n, .context = o->context};
        /* The policy learns once in a process's life, and graphs are captured once; here for every
         * profile. */
        if (!o->arm[a].width)
            forget(s->e);
        int warm = o->arm[a].width ? 1 : 2 + (n < 3 ? 256 / n : 96) / o->steps;
        for (int i = 0; i < warm && !rc; i++)
            rc = sv_sim_sample(s, n, &o->arm[a], p, 1000000 + (uint64_t)(i * o->steps), NULL, &rate,
                               err);
    }
    for (int32_t k = 0; k < o->repeat && !rc; k++) {
        /* In any order: what ran before leaves caches and clocks as it likes. */
        int32_t order[SV_SIM_MAX_ARMS];
        for (int32_t i = 0; i < o->n_arms; i++) {
            int32_t j = (int32_t)sv_rng_below(&s->rng, (uint32_t)i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (int32_t i = 0; i < o->n_arms && !rc; i++) {
            int32_t a = order[i];
            if (far_behind(o, rows, a))
                continue;
            rc = sv_sim_sample(s, n, &o->arm[a], p, (uint64_t)k * (uint64_t)(o->steps + 1),
                               &rows[a], &rate, err);
            s->progress.done++;
            s->progress.n_items++;
            sv_cli_progress_update(&s->progress);
            if (!rc && sv_cli_interrupted())
                rc = sv_fail(err, SV_ECANCELED, -1, "canceled");
        }
        if (o->seconds > 0 && k >= 2 &&
            (double)(sv_clock_us() - start) / 1e6 > (o->seconds + (k + 1) * o->rest) * o->n_arms)
            break;
    }
    for (int32_t a = 0; a < o->n_arms; a++)
        if (!o->arm[a].width && !o->arm[a].unpruned)
            rows[a].ratio = policy_ratio(rows, o->n_arms);
    return rc;
}

static void measure_limit(struct sv_sim *s)
{
    double gbs = sv_cli_bandwidth(s->e, s->out->info.target_step_bytes);
    s->out->gbs = gbs > s->out->gbs ? gbs : s->out->gbs;
}

static int run_levels(struct sv_sim *s, struct sv_err *err)
{
    const struct sv_sim_opts *o = s->o;
    struct sv_sim_row *row = s->out->row;
    for (int32_t c = 0; c < o->n_concurrency; c++) {
        int rc = start_level(s, s->e, o->concurrency[c], err);
        for (int32_t p = 0; p < o->n_profiles && !rc; p++, row += o->n_arms) {
            rc = run_profile(s, o->concurrency[c], &o->profile[p], row, err);
            s->out->n += rc ? 0 : o->n_arms;
            for (int32_t a = 0; a < o->n_arms && !rc && o->ops; a++)
                rc = sv_sim_ops(s, o->concurrency[c], &o->arm[a], &o->profile[p], err);
        }
        if (rc)
            return rc;
        measure_limit(s);
    }
    return SV_OK;
}

/* Time to the first token of one prompt, nothing else running. */
static int run_prefill(struct sv_sim *s, struct sv_err *err)
{
    struct sv_engine *e = s->e;
    struct sv_sim_prefill *f = &s->out->prefill;
    const struct sv_config *c = &e->model.cfg;
    f->n = s->o->prefill;
    double per_layer =
        2.0 * c->hidden_size * c->head_dim * (2.0 * c->n_heads + 2.0 * c->n_kv_heads) +
        6.0 * c->hidden_size * c->intermediate_size;
    /* Products of all layers, and attention over the half of all pairs that the mask leaves. */
    f->flops =
        (double)f->n * c->n_layers * (per_layer + 2.0 * (double)f->n * c->n_heads * c->head_dim);
    int rc = drain(e, err);
    sv_engine_set_drafter(e, NULL); /* the target's speed: with a draft its context comes on top */
    for (int32_t k = 0; k <= s->o->repeat && !rc; k++) {
        int64_t start = sv_clock_ns();
        rc = submit(s, e, f->n, 1, k, err);
        while (!rc && e->sched.n_unfinished)
            rc = step(e, err);
        if (k) /* the first one touches memory for the first time */
            sv_cli_samples_add(&f->ms, (double)(sv_clock_ns() - start) / 1e6);
    }
    sv_engine_set_drafter(e, s->drafter);
    return rc;
}

/* ---------------------------------------------------------------- opening */

/* Confidences are read on the first rank alone: no place of the others takes them. */
static int check_ranks(const struct sv_sim_opts *o, struct sv_err *err)
{
    for (int32_t i = 0; i < o->n_profiles; i++)
        if (o->profile[i].p.n_steps)
            return sv_fail(err, SV_EUNSUPPORTED, -1, "tp: no recorded steps, only accept lengths");
    return o->ops ? sv_fail(err, SV_EUNSUPPORTED, -1, "tp: no --profile-ops, which leaves out ops")
                  : SV_OK;
}

static int open_engine(struct sv_sim *s, const struct sv_engine_options *eo, struct sv_err *err)
{
    const struct sv_sim_opts *o = s->o;
    struct sv_engine_options opts = *eo;
    const struct sv_engine_tuning tuning = {.random_weights = o->random_weights, .simulates = true};
    bool drafting = false;
    opts.max_sequences = 1;
    for (int32_t i = 0; i < o->n_concurrency; i++)
        if (o->concurrency[i] > opts.max_sequences)
            opts.max_sequences = o->concurrency[i];
    for (int32_t i = 0; i < o->n_arms; i++) {
        drafting |= o->arm[i].width != 1;
        opts.auto_width |= !o->arm[i].width;
    }
    if (!opts.context) {
        opts.context = o->context + (o->steps + 2) * SV_MAX_BLOCK / 4 + SV_MAX_BLOCK;
        opts.context = opts.context > o->prefill + 1 ? opts.context : o->prefill + 1;
    }
    opts.width = 0;
    opts.no_prefix_cache = true;
    int rc = SV_OK;
    if (!drafting)
        opts.draft_dir = NULL;
    else if (!opts.draft_dir)
        return sv_fail(err, SV_EINVAL, -1,
                       "modes other than plain need a draft (-d or --draft-config)");
    if (opts.tp > 1)
        rc = check_ranks(o, err);
    if (!rc)
        rc = sv_engine_open_tuned(&s->e, &opts, &tuning, NULL, err);
    if (!rc) {
        s->drafter = s->e->drafter;
        s->out->n_ranks = sv_dev_ranks(s->e->dev).n;
        sv_get_engine_info(s->e, &s->out->info);
        rc = sv_sim_accept_open(&s->accept, s->e, err);
    }
    for (int32_t i = 0; i < o->n_arms && !rc; i++)
        if (o->arm[i].width > s->out->info.block_size)
            rc = sv_fail(err, SV_EINVAL, -1, "width %d is above the draft's block of %d",
                         o->arm[i].width, s->out->info.block_size);
    if (!rc && o->context + (o->steps + 1) * s->out->info.block_size >= opts.context)
        rc = sv_fail(err, SV_EINVAL, -1,
                     "%d steps after a context of %d do not fit into %d tokens (--ctx)", o->steps,
                     o->context, opts.context);
    return rc;
}

int sv_sim_measure(const struct sv_sim_opts *o, const struct sv_engine_options *eo,
                   const char *format, struct sv_buf *out)
{
    struct sv_sim_results res = {.n = 0};
    struct sv_sim s = {.o = o, .out = &res};
    struct sv_err err = {0};
    struct sv_rng rng = {.state = 2};
    int32_t longest = o->context > o->prefill ? o->context : o->prefill;
    int rc = SV_OK;

    sv_buf_init(&res.ops);
    sv_buf_init(&s.steps.text);
    res.row = sv_calloc((size_t)o->n_concurrency * (size_t)o->n_profiles * (size_t)o->n_arms,
                        sizeof *res.row);
    s.prompt = sv_calloc((size_t)longest, sizeof *s.prompt);
    if (!res.row || !s.prompt)
        rc = sv_fail(&err, SV_ENOMEM, -1, "out of memory");
    if (!rc)
        rc = open_engine(&s, eo, &err);
    sv_cli_catch_interrupt(); /* until here Ctrl-C ends the program: loading looks at no flag */
    for (int32_t i = 0; i < longest && !rc; i++)
        s.prompt[i] = (int32_t)sv_rng_below(&rng, (uint32_t)res.info.vocab_size);
    sv_cli_progress_begin(&s.progress, stderr, "measure", "samples",
                          (double)o->n_concurrency * o->n_profiles * o->n_arms * o->repeat);
    s.progress.off = o->quiet;
    if (!rc)
        measure_limit(&s);
    if (!rc && o->prefill)
        rc = run_prefill(&s, &err);
    if (!rc)
        rc = run_levels(&s, &err);
    sv_cli_progress_clear(&s.progress);
    res.policy = s.e ? s.e->policy : NULL;
    int code = res.ops.len || res.ops.failed ? sv_cli_deliver(&res.ops, o->ops) : SV_CLI_OK;
    if (o->step_log && sv_cli_deliver(&s.steps.text, o->step_log) != SV_CLI_OK)
        code = SV_CLI_FAIL;
    if (!rc || res.n)
        sv_sim_write(&res, o, eo->target_dir, eo->n_threads ? eo->n_threads : sv_cpu_count(),
                     format, out);
    if (s.e) {
        sv_engine_set_drafter(s.e, s.drafter);
        s.e->sched.policy = s.e->policy;
        sv_sim_accept_close(&s.accept);
        sv_close_engine(s.e);
    }
    sv_buf_fini(&res.ops);
    sv_buf_fini(&s.steps.text);
    sv_free(res.row);
    sv_free(s.prompt);
    return rc ? sv_cli_fail("%s", err.msg) : code;
}
