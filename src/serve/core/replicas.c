/*
 * replicas.c - the engines behind the server: routes each sequence to the replica that is expected
 * to finish it first.
 *
 * Called by the loop (serve.c, call.c, endpoints). Every replica gives the same text, so only time
 * matters: the wait there, the rows of the prompt that the replica's prefix cache lacks, and the
 * answer's steps beside other sequences. Must not: wait for an engine, or exclude a replica because
 * it is slow.
 */
#include "engine/engine.h"
#include "serve/core/call.h"
#include "serve/core/error.h"
#include "serve/core/log.h"

#include <stddef.h>
#include <string.h>

#define DEFAULT_QUEUE 4096
#define USUAL_ANSWER 128 /* tokens, where a request may have more */

/* ---------------------------------------------------------------- life */

struct sv_engine_options sv_replica_part(const struct sv_serve_options *all, int32_t r)
{
    const struct sv_placement *p = all->processes ? &all->processes->place : NULL;
    const int32_t n = all->replicas;
    struct sv_engine_options o = all->engine;

    if (n < 2)
        return o;
    /* Detected resources are divided among the replicas on this machine, given ones among all. */
    o.replica = p ? p->here : r;
    o.replicas = p ? p->n_here : n;
    const bool given = all->engine.n_threads > 0;
    const int32_t at = given ? r : o.replica, of = given ? n : o.replicas,
                  threads = given ? all->engine.n_threads : sv_cpu_count(),
                  own = threads * (at + 1) / of - threads * at / of;
    /* 0: what its ranks find, each on its own host */
    o.n_threads = !given && (sv_ranks_bound() || o.replicas == 1) ? 0 : own > 1 ? own : 1;
    o.max_sequences = (all->engine.max_sequences + n - 1) / n;
    o.cache_mib = (all->engine.cache_mib + n - 1) / n;
    return o;
}

int32_t sv_serve_max_live(const struct sv_serve_options *o)
{
    return (o->engine.max_sequences > 1 ? o->engine.max_sequences : 1) +
           (o->max_queue ? o->max_queue : DEFAULT_QUEUE);
}

int sv_replicas_start(struct sv_serve *s, struct sv_err *err)
{
    const int32_t n = s->o.replicas;
    int rc = sv_mail_open(&s->mail, err);

    s->replicas = rc ? NULL : sv_calloc((size_t)n, sizeof *s->replicas);
    if (!rc && !s->replicas)
        rc = sv_fail(err, SV_ENOMEM, -1, "replicas");
    while (!rc && s->n_replicas < n) {
        struct sv_serve_options o = s->o;
        o.engine = sv_replica_part(&s->o, s->n_replicas);
        rc = sv_worker_start(&s->replicas[s->n_replicas].worker, &o, s->n_replicas, s->max_live,
                             s->mail, err);
        s->n_replicas += !rc;
    }
    return rc;
}

void sv_replicas_finish(struct sv_serve *s)
{
    for (int32_t r = 0; r < s->n_replicas; r++)
        sv_worker_stop(s->replicas[r].worker);
    for (int32_t r = 0; r < s->n_replicas; r++)
        sv_worker_join(s->replicas[r].worker);
}

void sv_replicas_free(struct sv_serve *s)
{
    for (int32_t r = 0; r < s->n_replicas; r++)
        sv_worker_free(s->replicas[r].worker);
    sv_free(s->replicas);
    sv_mail_close(s->mail);
    sv_inbox_fini(&s->inbox);
}

int32_t sv_replicas_live(const struct sv_serve *s)
{
    int32_t n = 0;

    for (int32_t r = 0; r < s->n_replicas; r++)
        n += !s->replicas[r].failed;
    return n;
}

static bool takes(const struct sv_replica *x)
{
    return !x->failed && !x->drained;
}

int32_t sv_replicas_taking(const struct sv_serve *s)
{
    int32_t n = 0;

    for (int32_t r = 0; r < s->n_replicas; r++)
        n += takes(&s->replicas[r]);
    return n;
}

bool sv_replicas_are_loading(const struct sv_serve *s)
{
    bool loading = false;

    for (int32_t r = 0; r < s->n_replicas; r++)
        loading |= !s->replicas[r].loaded && !s->replicas[r].failed;
    return loading;
}

/* ---------------------------------------------------------------- which one */

/* Microseconds: of a prompt row, of a step of one sequence, and of a step of as many as can run at
 * once. Without measured costs every row counts the same. */
struct costs {
    double row, one, all;
    int32_t most; /* sequences that run at once in a replica */
};

/* One cost table for all replicas, which are alike: with separate ones, noise would break ties. */
static struct costs costs_of(const struct sv_serve *s)
{
    struct sv_snapshot snap;
    int32_t r = 0, n = (s->o.engine.max_sequences + s->n_replicas - 1) / s->n_replicas;
    struct costs c = {.row = 1, .one = 1, .all = n > 1 ? n : 1, .most = n > 1 ? n : 1};

    while (s->replicas[r].failed)
        r++;
    sv_worker_snapshot(s->replicas[r].worker, &snap);
    const float *us = snap.stats.step_cost_us;
    if (us[4] > 0) {
        c.one = us[0];
        c.all = us[1] > us[0] ? us[1] : us[0];
        c.row = us[4];
    }
    return c;
}

/* The time until a sequence would end: the prompts before its own, the rows that its own needs, and
 * steps beside other sequences, in turns if not all of them run at once. */
static double time_at(const struct sv_replica *x, const struct costs *c, int64_t n_rows,
                      int32_t n_answer)
{
    const int32_t n = x->n_live + 1, running = n < c->most ? n : c->most;
    const double step =
        c->one + (c->most > 1 ? (c->all - c->one) * (running - 1) / (c->most - 1) : 0);

    return (double)(x->n_rows + n_rows) * c->row + n_answer * step * n / running;
}

/* Ties go to the replica with the fewest sequences, then to the lowest number. */
static int32_t choose(const struct sv_serve *s, const struct sv_request *q, const struct costs *c)
{
    const int32_t n_answer =
        q->max_tokens > 0 && q->max_tokens < USUAL_ANSWER ? q->max_tokens : USUAL_ANSWER;
    int32_t best = -1;
    double best_us = 0;

    for (int32_t r = 0; r < s->n_replicas; r++) {
        const struct sv_replica *x = &s->replicas[r];
        if (!takes(x))
            continue;
        const double us = time_at(x, c, q->n_prompt_ids - x->n_known, n_answer);
        if (best >= 0 && (us > best_us || (us == best_us && x->n_live >= s->replicas[best].n_live)))
            continue;
        best = r;
        best_us = us;
    }
    return best;
}

/* A failed replica, which rejects requests: if none takes sequences, the last one has failed. */
static int32_t a_failed_one(const struct sv_serve *s)
{
    int32_t r = 0;

    while (r + 1 < s->n_replicas && !s->replicas[r].failed)
        r++;
    return r;
}

/* Queries the prefix caches, once for consecutive choices of one prompt. */
static void ask_caches(struct sv_serve *s, const struct sv_request *q)
{
    for (int32_t r = 0; r < s->n_replicas; r++)
        if (takes(&s->replicas[r]))
            s->replicas[r].n_known = sv_worker_known(s->replicas[r].worker, q);
}

void sv_replicas_submit(struct sv_serve *s, struct sv_choice *ch, int32_t n)
{
    const bool several = s->n_replicas > 1 && sv_replicas_taking(s);
    const struct costs costs = several ? costs_of(s) : (struct costs){0};

    for (int32_t i = 0; i < n; i++) {
        if (several && (i == 0 || ch[i].prompt != ch[i - 1].prompt))
            ask_caches(s, &ch[i].r);
        ch[i].replica = several ? choose(s, &ch[i].r, &costs) : a_failed_one(s);
        struct sv_replica *x = &s->replicas[ch[i].replica];
        ch[i].n_rows = ch[i].r.n_prompt_ids - x->n_known;
        x->n_live++;
        x->n_rows += ch[i].n_rows;
        sv_worker_submit(x->worker, &ch[i]);
    }
}

void sv_replicas_cancel(struct sv_serve *s, struct sv_choice *ch)
{
    sv_worker_cancel(s->replicas[ch->replica].worker, ch->serial);
}

void sv_replicas_begun(struct sv_serve *s, struct sv_choice *ch)
{
    s->replicas[ch->replica].n_rows -= ch->n_rows;
    ch->n_rows = 0;
}

void sv_replicas_left(struct sv_serve *s, struct sv_choice *ch)
{
    sv_replicas_begun(s, ch);
    s->replicas[ch->replica].n_live--;
}

/* ---------------------------------------------------------------- drains, failures, flushes */

int sv_replicas_drain(struct sv_serve *s, int32_t replica, bool on, struct sv_api_err *e)
{
    struct sv_replica *x = &s->replicas[replica];

    if (x->failed)
        return sv_api_fail(e, 409, "replica_failed", "replica %d has failed: %s", replica, x->why);
    if (on && !x->drained && sv_replicas_taking(s) == 1)
        return sv_api_fail(e, 409, "last_replica",
                           "replica %d is the last that takes requests: SIGTERM ends the server",
                           replica);
    if (x->drained != on) {
        struct sv_log_field f[] = {SV_LOG_I("replica", replica), SV_LOG_I("unfinished", x->n_live)};
        sv_serve_log(s, on ? "replica drained" : "replica resumed", f, 2);
    }
    x->drained = on;
    return 0;
}

void sv_replicas_lose(struct sv_serve *s, int32_t replica, const char *why, size_t n)
{
    struct sv_replica *x = &s->replicas[replica];

    x->failed = true;
    snprintf(x->why, sizeof x->why, "%.*s", (int)n, why);
}

void sv_replicas_fail(struct sv_serve *s, const char *why)
{
    for (int32_t r = 0; r < s->n_replicas; r++) {
        sv_worker_fail(s->replicas[r].worker, why);
        sv_replicas_lose(s, r, why, strlen(why)); /* nothing is run again on the others */
    }
}

void sv_replicas_flush(struct sv_serve *s)
{
    for (int32_t r = 0; r < s->n_replicas; r++)
        sv_worker_flush(s->replicas[r].worker);
}

bool sv_replicas_flushed(struct sv_serve *s, int32_t replica)
{
    s->replicas[replica].n_flushed++;
    for (int32_t r = 0; r < s->n_replicas; r++)
        if (!s->replicas[r].n_flushed)
            return false;
    for (int32_t r = 0; r < s->n_replicas; r++)
        s->replicas[r].n_flushed--;
    return true;
}

/* ---------------------------------------------------------------- figures */

#define LIST(member)                                                                               \
    {                                                                                              \
        offsetof(struct sv_engine_stats, member),                                                  \
            sizeof((struct sv_engine_stats *)0)->member / sizeof(int64_t)                          \
    }

/* Numbers that are summed, all of them int64_t. */
static const struct {
    size_t at, n;
} sums[] = {
    LIST(n_steps),       LIST(n_prompt_tokens), LIST(n_tokens),        LIST(n_verify_steps),
    LIST(n_drafted),     LIST(n_accepted),      LIST(accept_length),   LIST(accepted_at),
    LIST(drafted_at),    LIST(width_chosen),    LIST(n_cache_queries), LIST(n_cache_hits),
    LIST(n_preemptions),
};

static void add(struct sv_engine_stats *to, const struct sv_engine_stats *from)
{
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        int64_t *a = (int64_t *)(void *)((char *)to + sums[i].at);
        const int64_t *b = (const int64_t *)(const void *)((const char *)from + sums[i].at);
        for (size_t k = 0; k < sums[i].n; k++)
            a[k] += b[k];
    }
    to->n_running += from->n_running;
    to->n_waiting += from->n_waiting;
    to->n_pages += from->n_pages;
    to->n_pages_used += from->n_pages_used;
    to->n_pages_cached += from->n_pages_cached;
}

void sv_replicas_snapshot(const struct sv_serve *s, struct sv_snapshot *out)
{
    sv_worker_snapshot(s->replicas[0].worker, out);
    for (int32_t r = 1; r < s->n_replicas; r++) {
        struct sv_snapshot one;
        sv_worker_snapshot(s->replicas[r].worker, &one);
        add(&out->stats, &one.stats);
        out->busy_us += one.busy_us;
        if (sv_load_progress(one.stage, one.stage_share) <
            sv_load_progress(out->stage, out->stage_share)) {
            out->stage = one.stage;
            out->stage_share = one.stage_share;
        }
    }
}
