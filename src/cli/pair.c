/*
 * pair.c - plain decoding beside DFlash on the same prompts: speed, acceptance, equality.
 *
 * Called by bench, demo and check. A first, untimed pass of plain decoding gives the reference
 * answers, and shows which of them only loop: those are left out, because loops are the easiest
 * text to draft. The two arms alternate so that a change of the machine's speed affects both. Must
 * not: ignore a difference between the arms.
 */
#include "cli/cli.h"
#include "cli/measure.h"
#include "engine/engine.h"

#include <string.h>

#define MAX_KINDS 16

struct bench {
    struct sv_engine *engine[2]; /* plain, dflash or NULL */
    struct sv_engine_info info[2];
    const struct sv_cli_pair_opts *o;
    struct sv_request *r;      /* (n) those that are measured, grouped by kind */
    const json_t **id;         /* (n) */
    struct sv_cli_answer *ref; /* (n) answers of plain decoding */
    struct sv_cli_answer *now; /* (n) scratch */
    int32_t n;
    struct group {
        const char *kind;
        int32_t first, n;
    } group[MAX_KINDS];
    int32_t n_groups;
    struct sv_cli_pair_results *out;
    struct sv_cli_progress progress;
    struct sv_drafter *drafter; /* the second engine's drafter */
    int32_t width;
};

/* ---------------------------------------------------------------- one timed piece */

/* One engine for both arms: without its drafter it decodes plainly. No step may be in flight. */
static void set_arm(struct bench *b, int arm)
{
    struct sv_engine *e = b->engine[0];
    if (e != b->engine[1])
        return;
    e->sched.policy = arm ? e->policy : NULL;
    sv_engine_set_drafter(e, arm ? b->drafter : NULL);
    e->width = arm ? b->width : 1;
}

static const char *arm_name(int arm)
{
    return arm ? "DFlash" : "plain";
}

static void complain(struct bench *b, int32_t i, int arm, int32_t sequences)
{
    const struct sv_cli_answer *x = &b->ref[i], *y = &b->now[i];
    int32_t at = sv_cli_first_difference(x, y);
    struct sv_buf id;

    b->out->differ = true;
    sv_cli_progress_clear(&b->progress);
    sv_buf_init(&id);
    sv_cli_quote_id(&id, b->id[i]);
    sv_cli_say("NOT EQUAL: prompt %s, %s with %d sequences differs from plain decoding at token %d "
               "(%d instead of %d; %d and %d tokens long)",
               id.data ? id.data : "?", arm_name(arm), sequences, at,
               at < sv_cli_answer_n(y) ? sv_cli_answer_ids(y)[at] : -1,
               at < sv_cli_answer_n(x) ? sv_cli_answer_ids(x)[at] : -1, sv_cli_answer_n(y),
               sv_cli_answer_n(x));
    sv_buf_fini(&id);
}

struct piece {
    double seconds, bytes, whole_bytes; /* of weights read; had each been read in its own type */
    int64_t n_tokens;
};

/* Requests [first, first + n) through one arm, compared with the reference. */
static int run_piece(struct bench *b, int arm, int32_t first, int32_t n, int32_t sequences,
                     struct piece *sum, struct sv_err *err)
{
    struct sv_engine_stats before, after;
    int64_t start;
    int rc;

    set_arm(b, arm);
    sv_get_engine_stats(b->engine[arm], &before);
    start = sv_clock_us();
    for (int32_t i = first; i < first + n; i++)
        b->now[i].engine = b->engine[arm];
    rc = sv_cli_answer_run(b->engine[arm], b->r + first, n, sequences, b->now + first, err);
    sum->seconds += (double)(sv_clock_us() - start) / 1e6;
    if (rc)
        return rc;
    b->progress.n_items += n;
    b->progress.done += n;
    sv_cli_progress_update(&b->progress);
    sv_get_engine_stats(b->engine[arm], &after);
    sum->bytes += (double)(after.weight_bytes - before.weight_bytes);
    sum->whole_bytes += (double)(after.whole_weight_bytes - before.whole_weight_bytes);
    for (int32_t i = first; i < first + n; i++) {
        sum->n_tokens += sv_cli_answer_n(&b->now[i]);
        if (b->now[i].finish == SV_FINISH_ERROR)
            return sv_fail(err, SV_EINVAL, i, "%s: %s", arm_name(arm), b->now[i].message);
        if (sv_cli_first_difference(&b->ref[i], &b->now[i]) >= 0)
            complain(b, i, arm, sequences);
    }
    return SV_OK;
}

static void add_arm(struct sv_cli_arm *a, const struct piece *p)
{
    if (p->seconds <= 0)
        return;
    sv_cli_samples_add(&a->rate, (double)p->n_tokens / p->seconds);
    sv_cli_samples_add(&a->gbs, p->bytes / p->seconds / 1e9);
    sv_cli_samples_add(&a->whole_gbs, p->whole_bytes / p->seconds / 1e9);
}

static void add_ratio(struct sv_cli_pair_row *row, const struct piece sum[2])
{
    if (sum[0].seconds > 0 && sum[1].seconds > 0)
        sv_cli_samples_add(&row->to_plain, sum[0].seconds / sum[1].seconds);
}

/* One repeat of one kind in both arms; the sums also go to the row "all". */
static int run_group(struct bench *b, const struct group *g, struct sv_cli_pair_row *row,
                     int32_t repeat, struct piece all[2], struct sv_cli_pair_row *all_row,
                     struct sv_err *err)
{
    struct piece sum[2] = {{0}};
    int32_t stride = row->concurrency == 1 ? 1 : g->n; /* one sequence: take turns at each prompt */

    for (int32_t i = 0; i < g->n; i += stride) {
        for (int turn = 0; turn < 2; turn++) {
            int arm = (turn + repeat + i) % 2, rc;
            if (!b->engine[arm])
                continue;
            rc = run_piece(b, arm, g->first + i, stride, row->concurrency, &sum[arm], err);
            if (rc)
                return rc;
            for (int32_t k = 0; k < stride; k++) {
                const struct sv_cli_answer *a = &b->now[g->first + i + k];
                if (repeat > 0)
                    continue;
                row->arm[arm].hash = sv_cli_answer_hash(row->arm[arm].hash, a);
                all_row->arm[arm].hash = sv_cli_answer_hash(all_row->arm[arm].hash, a);
                if (arm) {
                    sv_cli_accept_add(&row->accept, a);
                    sv_cli_accept_add(&all_row->accept, a);
                }
            }
        }
    }
    for (int arm = 0; arm < 2; arm++) {
        add_arm(&row->arm[arm], &sum[arm]);
        all[arm].seconds += sum[arm].seconds;
        all[arm].bytes += sum[arm].bytes;
        all[arm].whole_bytes += sum[arm].whole_bytes;
        all[arm].n_tokens += sum[arm].n_tokens;
    }
    row->n_tokens = sum[0].n_tokens;
    add_ratio(row, sum);
    return SV_OK;
}

/* The best bandwidth over the whole run, so that a busy moment does not lower the limit. */
static void measure_limit(struct bench *b)
{
    double gbs =
        sv_cli_bandwidth(b->engine[0], b->info[0].target_step_bytes + b->info[1].draft_step_bytes);
    b->out->gbs = gbs > b->out->gbs ? gbs : b->out->gbs;
}

/* All repeats at one number of sequences: a row for each kind, then "all". */
static int run_level(struct bench *b, int32_t sequences, struct sv_cli_pair_row *rows,
                     struct sv_err *err)
{
    struct sv_cli_pair_row *all_row = &rows[b->n_groups];
    int64_t start = sv_clock_us();

    for (int32_t g = 0; g < b->n_groups; g++) {
        rows[g].kind = b->group[g].kind;
        rows[g].n_prompts = b->group[g].n;
        rows[g].concurrency = sequences;
    }
    all_row->kind = "all";
    all_row->n_prompts = b->n;
    all_row->concurrency = sequences;
    for (int32_t repeat = 0; repeat < b->o->repeat; repeat++) {
        struct piece all[2] = {{0}};
        for (int32_t g = 0; g < b->n_groups; g++) {
            int rc = run_group(b, &b->group[g], &rows[g], repeat, all, all_row, err);
            if (rc)
                return rc;
        }
        for (int arm = 0; arm < 2; arm++)
            add_arm(&all_row->arm[arm], &all[arm]);
        all_row->n_tokens = all[0].n_tokens;
        add_ratio(all_row, all);
        measure_limit(b);
        if (b->o->max_seconds > 0 && (double)(sv_clock_us() - start) / 1e6 > b->o->max_seconds)
            break;
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- reference and groups */

static const char *kind_of(const struct sv_cli_request *q)
{
    return q->kind ? q->kind : "prompts";
}

static int find_kinds(const struct sv_cli_prompts *p, const char *kind[MAX_KINDS],
                      struct sv_err *err)
{
    int n = 0;

    for (int32_t i = 0; i < p->n; i++) {
        int k = 0;
        while (k < n && strcmp(kind[k], kind_of(&p->q[i])) != 0)
            k++;
        if (k < n)
            continue;
        if (n == MAX_KINDS)
            return sv_fail(err, SV_EINVAL, -1, "the prompts have more than %d kinds", MAX_KINDS);
        kind[n++] = kind_of(&p->q[i]);
    }
    return n;
}

/* The untimed pass: the reference answers of plain decoding, without loops. */
static int take_reference(struct bench *b, const struct sv_cli_request *q, struct sv_err *err)
{
    struct sv_cli_answer *a = &b->ref[b->n];
    int rc = sv_cli_answer_run(b->engine[0], &q->r, 1, 1, a, err);

    b->progress.n_items++;
    b->progress.done++;
    sv_cli_progress_update(&b->progress);
    if (!rc && a->finish == SV_FINISH_ERROR)
        rc = sv_fail(err, SV_EINVAL, -1, "%s", a->message);
    if (rc) {
        struct sv_buf id;
        sv_buf_init(&id);
        sv_cli_quote_id(&id, q->id);
        sv_err_prefix(err, "prompt %.64s", id.data ? id.data : "?");
        sv_buf_fini(&id);
        return rc;
    }
    if (!b->o->keep_loops && sv_cli_answer_loops(a)) {
        b->out->n_loops++;
        return SV_OK;
    }
    b->r[b->n] = q->r;
    b->id[b->n] = q->id;
    b->n++;
    return SV_OK;
}

static int take_references(struct bench *b, const struct sv_cli_prompts *p, struct sv_err *err)
{
    const char *kind[MAX_KINDS];
    int n_kinds = find_kinds(p, kind, err);

    if (n_kinds < 0)
        return n_kinds;
    for (int k = 0; k < n_kinds; k++) {
        struct group *g = &b->group[b->n_groups];
        *g = (struct group){.kind = kind[k], .first = b->n};
        for (int32_t i = 0; i < p->n; i++) {
            int rc = SV_OK;
            if (strcmp(kind_of(&p->q[i]), kind[k]) == 0)
                rc = take_reference(b, &p->q[i], err);
            if (rc)
                return rc;
        }
        g->n = b->n - g->first;
        b->n_groups += g->n > 0;
    }
    if (!b->n)
        return sv_fail(err, SV_EINVAL, -1, "all %d texts loop: nothing is left to measure", p->n);
    return SV_OK;
}

/* One untimed answer of the second arm, so that both have touched their weights. */
static int warm_up(struct bench *b, struct sv_err *err)
{
    struct piece none = {0};
    return b->engine[1] ? run_piece(b, 1, 0, 1, 1, &none, err) : SV_OK;
}

static int reserve(struct bench *b, int32_t n, struct sv_err *err)
{
    size_t count = (size_t)n;

    b->r = sv_calloc(count, sizeof *b->r);
    b->id = sv_calloc(count, sizeof *b->id);
    b->ref = sv_calloc(count, sizeof *b->ref);
    b->now = sv_calloc(count, sizeof *b->now);
    if (!b->r || !b->id || !b->ref || !b->now)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    for (int32_t i = 0; i < n; i++) {
        sv_cli_answer_init(&b->ref[i], b->engine[0]);
        sv_cli_answer_init(&b->now[i], b->engine[0]);
    }
    return SV_OK;
}

static void release(struct bench *b, int32_t n)
{
    for (int32_t i = 0; i < n && b->ref && b->now; i++) {
        sv_cli_answer_fini(&b->ref[i]);
        sv_cli_answer_fini(&b->now[i]);
    }
    sv_free(b->r);
    sv_free(b->id);
    sv_free(b->ref);
    sv_free(b->now);
}

int sv_cli_pair_measure(struct sv_engine *plain, struct sv_engine *dflash,
                        const struct sv_cli_prompts *prompts, const struct sv_cli_pair_opts *o,
                        struct sv_cli_pair_results *out, struct sv_err *err)
{
    struct bench b = {.engine = {plain, dflash}, .o = o, .out = out};
    int rc;

    memset(out, 0, sizeof *out);
    /* With a time limit the number of answers is not known in advance. */
    sv_cli_progress_begin(&b.progress, stderr, "measure", "answers",
                          o->max_seconds > 0
                              ? 0
                              : (double)prompts->n *
                                    (1 + (dflash ? 2 : 1) * o->repeat * o->n_concurrency));
    b.progress.off = o->quiet;
    for (int arm = 0; arm < 2; arm++)
        if (b.engine[arm])
            sv_get_engine_info(b.engine[arm], &b.info[arm]);
    if (b.engine[1]) {
        b.drafter = b.engine[1]->drafter;
        b.width = b.engine[1]->width;
    }
    set_arm(&b, 0);
    rc = reserve(&b, prompts->n, err);
    if (!rc)
        rc = take_references(&b, prompts, err);
    if (!rc)
        rc = warm_up(&b, err);
    if (!rc) {
        out->n = o->n_concurrency * (b.n_groups + 1);
        out->row = sv_calloc((size_t)out->n, sizeof *out->row);
        if (!out->row)
            rc = sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    for (int32_t c = 0; c < o->n_concurrency && !rc; c++)
        rc = run_level(&b, o->concurrency[c], out->row + c * (b.n_groups + 1), err);
    sv_cli_progress_clear(&b.progress);
    set_arm(&b, 1);
    release(&b, prompts->n);
    return rc;
}

int sv_cli_pair_open(struct sv_engine *e[2], const struct sv_engine_options *o)
{
    struct sv_engine_options plain = *o;

    plain.draft_dir = NULL;
    plain.width = 0; /* was the draft's */
    int code = sv_cli_engine_open(&e[0], &plain);
    return code == SV_CLI_OK && o->draft_dir ? sv_cli_engine_open(&e[1], o) : code;
}

void sv_cli_pair_results_fini(struct sv_cli_pair_results *r)
{
    sv_free(r->row);
    memset(r, 0, sizeof *r);
}

/* ---------------------------------------------------------------- table for people */

double sv_cli_pair_share(const struct sv_cli_pair_results *r, const struct sv_cli_samples *gbs)
{
    return r->gbs > 0 ? sv_cli_samples_median(gbs) / r->gbs : 0;
}

static void add_rate(struct sv_cli_table *t, const struct sv_cli_samples *s)
{
    sv_cli_table_add(t, "%.1f ± %.1f", sv_cli_samples_median(s),
                     (sv_cli_samples_max(s) - sv_cli_samples_min(s)) / 2);
}

void sv_cli_pair_table(struct sv_cli_table *t, const struct sv_cli_pair_results *r, bool drafted)
{
    sv_cli_table_column(t, "prompts", false);
    sv_cli_table_column(t, "n", true);
    sv_cli_table_column(t, "sequences", true);
    sv_cli_table_column(t, "plain tok/s", true);
    sv_cli_table_column(t, "of bandwidth", true);
    if (drafted) {
        sv_cli_table_column(t, "DFlash tok/s", true);
        sv_cli_table_column(t, "of bandwidth", true);
        sv_cli_table_column(t, "speedup", true);
        sv_cli_table_column(t, "accept length", true);
    }
    for (int32_t i = 0; i < r->n; i++) {
        const struct sv_cli_pair_row *row = &r->row[i];
        const struct sv_cli_arm *a = row->arm;
        double base = sv_cli_samples_median(&a[0].rate);
        sv_cli_table_add(t, "%s", row->kind);
        sv_cli_table_add(t, "%d", row->n_prompts);
        sv_cli_table_add(t, "%d", row->concurrency);
        add_rate(t, &a[0].rate);
        sv_cli_table_add(t, "%.0f %%", 100 * sv_cli_pair_share(r, &a[0].gbs));
        if (!drafted)
            continue;
        add_rate(t, &a[1].rate);
        sv_cli_table_add(t, "%.0f %%", 100 * sv_cli_pair_share(r, &a[1].gbs));
        sv_cli_table_add(t, "%.2fx", base > 0 ? sv_cli_samples_median(&a[1].rate) / base : 0);
        sv_cli_table_add(t, "%.2f", sv_cli_accept_mean(&row->accept));
    }
}
