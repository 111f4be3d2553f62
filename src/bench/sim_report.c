/*
 * sim_report.c - the reports of `salvo-bench` on modes, widths and profiles: option lists, tables,
 * the policy's reasons.
 *
 * Called by main.c (lists) and sim.c (results). Must not: measure, or print a share of a
 * limit that was not measured in the same run.
 */
#include "bench/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Accept lengths 1..16 of Qwen3-8B with its published draft, in percent. */
static const double qwen3_8b[16] = {11.2, 16.4, 12.0, 8.7, 6.9, 6.2, 5.5, 4.3,
                                    4.8,  2.5,  3.7,  2.3, 2.5, 2.5, 2.0, 8.4};

/* ---------------------------------------------------------------- lists */

static struct sv_sim_arm *add_arm(struct sv_sim_opts *o, int32_t width, bool drafts)
{
    if (o->n_arms == SV_SIM_MAX_ARMS)
        return NULL;
    struct sv_sim_arm *a = &o->arm[o->n_arms++];
    a->width = width;
    a->drafts = drafts;
    if (width > 1)
        snprintf(a->name, sizeof a->name, drafts ? "width %d" : "verify %d", width);
    else
        snprintf(a->name, sizeof a->name, "%s", width ? "plain" : "auto");
    return a;
}

int sv_sim_parse_modes(struct sv_sim_opts *o, const char *modes, const char *widths)
{
    char item[64];
    o->n_arms = 0;
    while (sv_cli_next_item(&modes, item, sizeof item)) {
        const char *w = widths;
        char width[64];
        bool ok = true, drafts = strcmp(item, "dflash") == 0;
        if (strcmp(item, "plain") == 0)
            ok = add_arm(o, 1, false) != NULL;
        else if (strcmp(item, "auto") == 0)
            ok = add_arm(o, 0, true) != NULL;
        else if (strcmp(item, "unpruned") == 0) {
            struct sv_sim_arm *a = add_arm(o, 0, true);
            ok = a != NULL;
            if (ok)
                snprintf(a->name, sizeof a->name, "unpruned"), a->unpruned = true;
        } else if (!drafts && strcmp(item, "verify") != 0)
            return sv_cli_usage(
                "salvo-bench",
                "option --mode: '%s' is not one of plain, verify, dflash, auto, unpruned", item);
        else
            while (ok && sv_cli_next_item(&w, width, sizeof width)) {
                char *end;
                long v = strtol(width, &end, 10);
                if (*end || end == width || v < 2 || v > SV_MAX_BLOCK)
                    return sv_cli_usage("salvo-bench",
                                        "option --widths: '%s' is not a number in [2, %d]", width,
                                        SV_MAX_BLOCK);
                ok = add_arm(o, (int32_t)v, drafts) != NULL;
            }
        if (!ok)
            return sv_cli_usage("salvo-bench", "option --mode: more than %d modes and widths",
                                SV_SIM_MAX_ARMS);
    }
    return -1;
}

/* Lengths 1..16 whose share falls by one factor, with this mean. */
static void geometric(double mean, double share[16])
{
    double lo = 0, hi = 1, alive = 1;
    for (int i = 0; i < 60; i++) {
        double p = (lo + hi) / 2, sum = 1, a = 1;
        for (int j = 1; j < 16; j++)
            sum += a *= p;
        *(sum < mean ? &lo : &hi) = p;
    }
    for (int j = 0; j < 16; j++) {
        share[j] = j == 15 ? alive : alive * (1 - lo);
        alive *= lo;
    }
}

static int read_shares(const char *path, double *share, int32_t *n, struct sv_err *err)
{
    struct sv_buf b;
    sv_buf_init(&b);
    int rc = sv_file_read_stream(&b, path, 1 << 16, err);
    char *at = b.data, *end = at;
    *n = 0;
    while (!rc && at && *at) {
        double v = strtod(at, &end);
        if (end == at && strspn(at, " \t\r\n,") == 0)
            rc = sv_fail(err, SV_EFORMAT, at - b.data, "%s: byte %lld: a number is expected", path,
                         (long long)(at - b.data));
        else if (end != at && *n == SV_MAX_BLOCK)
            rc = sv_fail(err, SV_EFORMAT, at - b.data, "%s: more than %d shares", path,
                         SV_MAX_BLOCK);
        else if (end != at)
            share[(*n)++] = v;
        at = end + strspn(end, " \t\r\n,");
    }
    sv_buf_fini(&b);
    return rc;
}

/* The lines of a file that begins with "steps": a length and the confidence of the drafter of each
 * draft. */
static int take_steps(struct sv_sim_profile *p, const char *path, const char *text,
                      struct sv_err *err)
{
    int32_t cap = 0;
    for (const char *at = text; *at; at++)
        cap += *at == '\n';
    p->step = sv_calloc((size_t)cap + 1, sizeof *p->step);
    if (!p->step)
        return sv_fail(err, SV_ENOMEM, -1, "%s", path);
    for (const char *at = text + strcspn(text, "\n"); *at; at += strcspn(at, "\n")) {
        struct sv_profile_step *s = &p->step[p->p.n_steps];
        int32_t n = 0;
        at++;
        if (!at[strspn(at, " \t\r\n")])
            break;
        for (const char *end = at + strcspn(at, "\n"); at < end; n++) {
            char *after;
            double v = strtod(at, &after);
            bool length = n == 0;
            if (after == at || n == SV_MAX_BLOCK ||
                !(v >= length && v <= (length ? SV_MAX_BLOCK : 1)))
                return sv_fail(err, SV_EFORMAT, at - text,
                               "%s: byte %lld: an accept length and shares are expected", path,
                               (long long)(at - text));
            if (length)
                s->length = (int32_t)v;
            else
                s->confidence[n - 1] = (float)v;
            at = after + strspn(after, " \t\r");
        }
        p->p.n_steps++;
    }
    p->p.step = p->step;
    return p->p.n_steps ? SV_OK : sv_fail(err, SV_EFORMAT, -1, "%s: no steps", path);
}

/* *taken: the file holds steps, and they are the profile. */
static int read_steps(struct sv_sim_profile *p, const char *path, bool *taken, struct sv_err *err)
{
    struct sv_buf b;
    sv_buf_init(&b);
    int rc = sv_file_read_stream(&b, path, 1 << 22, err);
    *taken = !rc && b.data && strncmp(b.data, "steps", 5) == 0;
    if (*taken)
        rc = take_steps(p, path, b.data, err);
    sv_buf_fini(&b);
    return rc;
}

void sv_sim_drop_profiles(struct sv_sim_opts *o)
{
    for (int32_t i = 0; i < o->n_profiles; i++)
        sv_free(o->profile[i].step);
}

static int add_profile(struct sv_sim_opts *o, const char *name)
{
    struct sv_err err = {0};
    double share[SV_MAX_BLOCK] = {0};
    char *end;
    double mean = strtod(name, &end);
    int32_t n = 16;
    int rc = SV_OK;
    bool steps = false;
    if (o->n_profiles == SV_SIM_MAX_PROFILES)
        return sv_cli_usage("salvo-bench", "option --accept-profile: more than %d",
                            SV_SIM_MAX_PROFILES);
    struct sv_sim_profile *p = &o->profile[o->n_profiles++];
    const char *base = strrchr(name, '/');
    snprintf(p->name, sizeof p->name, "%.31s", base ? base + 1 : name);
    p->real = strcmp(name, "real") == 0;
    p->p.seed = 7;
    if (p->real)
        return -1;
    if (end != name && !*end && mean >= 1 && mean <= 16)
        geometric(mean, share);
    else if (strcmp(name, "never") == 0)
        share[0] = n = 1;
    else if (strcmp(name, "always") == 0)
        share[(n = SV_MAX_BLOCK) - 1] = 1; /* cut to the width */
    else if (strcmp(name, "qwen3-8b") == 0)
        memcpy(share, qwen3_8b, sizeof qwen3_8b);
    else if (!(rc = read_steps(p, name, &steps, &err)) && !steps)
        rc = read_shares(name, share, &n, &err);
    if (!rc && !steps)
        rc = sv_profile_set(&p->p, share, n, &err);
    if (rc)
        return sv_cli_usage(
            "salvo-bench",
            "option --accept-profile: '%s' is not never, a mean length in [1, 16], qwen3-8b, "
            "always, real, all, or a file of shares: %s",
            name, err.msg);
    return -1;
}

int sv_sim_parse_profiles(struct sv_sim_opts *o, const char *text)
{
    char item[512];
    int code = -1;
    o->n_profiles = 0;
    if (strcmp(text, "all") == 0)
        text = "never,1.5,2.5,4,6.4,qwen3-8b,always";
    while (code < 0 && sv_cli_next_item(&text, item, sizeof item))
        code = add_profile(o, item);
    return code;
}

/* ---------------------------------------------------------------- results */

static double share_of(const struct sv_sim_results *r, const struct sv_cli_samples *gbs)
{
    return r->gbs > 0 ? sv_cli_samples_median(gbs) / r->gbs : 0;
}

static double mean_accept(const struct sv_sim_row *r)
{
    return r->n_segs ? (double)r->n_tokens / (double)r->n_segs : 0;
}

/* "1:20 4:80" in percent, at most the five commonest. */
static void width_list(const struct sv_sim_row *r, struct sv_buf *out)
{
    int64_t shown[SV_MAX_BLOCK + 1];
    memcpy(shown, r->width, sizeof shown);
    for (int k = 0, most = 0; k < 5 && r->n_segs; k++, most = 0) {
        for (int w = 1; w <= SV_MAX_BLOCK; w++)
            most = shown[w] > shown[most] ? w : most;
        if (!most || shown[most] * 200 < r->n_segs)
            break;
        sv_buf_printf(out, "%s%d:%.0f", k ? " " : "", most,
                      100.0 * (double)shown[most] / (double)r->n_segs);
        shown[most] = 0;
    }
}

static void people_rows(const struct sv_sim_results *r, const struct sv_sim_opts *o,
                        struct sv_cli_table *t)
{
    static const char *const column[] = {"mode",          "sequences", "context",  "accept profile",
                                         "tok/s",         "ms/step",   "of limit", "accept length",
                                         "rows/sequence", "widths %",  "auto/best"};
    for (size_t i = 0; i < sizeof column / sizeof column[0]; i++)
        sv_cli_table_column(t, column[i], i != 0 && i != 3 && i != 9);
    for (int32_t i = 0; i < r->n; i++) {
        const struct sv_sim_row *row = &r->row[i];
        struct sv_buf widths;
        sv_buf_init(&widths);
        width_list(row, &widths);
        sv_cli_table_add(t, o->rest > 0 ? "%s, from rest" : "%s", row->arm->name);
        sv_cli_table_add(t, "%d", row->sequences);
        sv_cli_table_add(t, "%d", row->context);
        sv_cli_table_add(t, "%s%s", row->profile->name, row->profile->real ? "" : " (simulated)");
        sv_cli_table_add(t, "%.1f ± %.1f", sv_cli_samples_median(&row->rate),
                         (sv_cli_samples_max(&row->rate) - sv_cli_samples_min(&row->rate)) / 2);
        sv_cli_table_add(t, "%.3f", sv_cli_samples_median(&row->ms));
        sv_cli_table_add(t, "%.1f %%", 100 * share_of(r, &row->gbs));
        sv_cli_table_add(t, "%.2f", mean_accept(row));
        sv_cli_table_add(t, "%.2f", row->n_segs ? (double)row->n_rows / (double)row->n_segs : 0);
        sv_cli_table_add(t, "%s", widths.data ? widths.data : "");
        if (row->ratio > 0)
            sv_cli_table_add(t, "%.3f", row->ratio);
        else
            sv_cli_table_add(t, "%s", "");
        sv_buf_fini(&widths);
    }
}

static void write_curve(const char *name, const struct sv_curve *c, struct sv_buf *out)
{
    sv_buf_printf(out, "%s:", name);
    for (int32_t i = 0; i < c->n; i++)
        sv_buf_printf(out, " %d:%.0f", c->x[i], (double)c->us[i]);
    sv_buf_printf(out, "\n");
}

void sv_sim_policy_reasons(const struct sv_policy *p, struct sv_buf *out)
{
    const struct sv_cost *c = &p->cost;
    sv_buf_printf(out, "\nWidth policy: cost of steps in us, measured in %.2f s at start\n",
                  (double)p->measured_us / 1e6);
    write_curve("  plain step, by sequences", &c->plain, out);
    write_curve("  verify rows, in whole blocks", &c->wide, out);
    write_curve("  drafting pass, by rows", &c->draft_rows, out);
    if (c->thin.n)
        write_curve("  the same in twos, by sequences", &c->thin, out);
    write_curve("  drafting pass, by further tokens wanted", &c->draft_out, out);
    write_curve("  to cut in between, by tokens wanted", &c->trip, out);
    for (int32_t i = 1; i < c->n_ctx; i++)
        sv_buf_printf(
            out,
            "  context %d over %d: a sequence %.1f, each row %.2f; drafting %.1f, each row %.2f\n",
            c->ctx[i], c->ctx[0], (double)c->seg_us[i], (double)c->row_us[i],
            (double)c->draft_us[i], (double)c->draft_row_us[i]);
    sv_buf_printf(out, "  factors learnt since: all steps %.3f; drafting ones over that, by rows",
                  (double)c->speed[0]);
    for (int k = 0; k < SV_LEVELS; k++)
        sv_buf_printf(out, " %d:%.3f±%.3f", sv_cost_level_rows(k), (double)c->level[0][k],
                      sqrt((double)c->pace[0].cov[1 + k][1 + k]));
    sv_buf_printf(out, "; full blocks kept %.3f, short ones %.3f\n",
                  (double)p->mode_factor[SV_DRAFT_FULL], (double)p->mode_factor[SV_DRAFT_SHORT]);
    sv_buf_printf(out, "  chance that draft j is kept once j - 1 was, %%:");
    for (int32_t j = 1; j < p->block; j++)
        sv_buf_printf(out, " %.0f", 100 * (double)p->hazard[j]);
    sv_buf_printf(out,
                  "\n  %lld choices: %lld plain, %lld probes of one sequence, %lld trials\n  "
                  "widths:",
                  (long long)p->n_steps, (long long)p->n_plain, (long long)p->n_probes,
                  (long long)p->n_other);
    for (int i = 0; i < SV_REASONS; i++)
        sv_buf_printf(out, " %s %lld%s", sv_reason_name((enum sv_reason)i),
                      (long long)p->n_reason[i], i < SV_REASONS - 1 ? "," : "\n");
    sv_buf_printf(
        out,
        "  requests: %lld stopped drafting, %lld lost their draft's context under load, %lld "
        "recomputed it\n",
        (long long)p->n_disabled, (long long)p->n_dropped, (long long)p->n_restored);
    if (p->prunes)
        sv_buf_printf(out, "  rows pruned by draft confidence: %lld, in %lld steps\n",
                      (long long)p->n_pruned, (long long)p->n_pruned_steps);
    if (p->prunes)
        sv_buf_printf(out, "  tokens of pruned steps over their prediction: %.2f\n",
                      p->confidence.promised > 0
                          ? (double)(p->confidence.brought / p->confidence.promised)
                          : 1.0);
    if (p->expected_us > 0)
        sv_buf_printf(out, "  expected: %.3f of plain decoding's speed\n",
                      p->expected_plain_us / p->expected_us);
}

static void write_people(const struct sv_sim_results *r, const struct sv_sim_opts *o,
                         const char *model, int threads, struct sv_buf *out)
{
    struct sv_cli_machine m;
    struct sv_cli_table t;
    char n1[24], n2[24];
    sv_cli_machine_read(&m);
    sv_buf_printf(out, "%s: %s, %s, %s, %d threads; target %s parameters", model, m.cpu,
                  r->info.device, r->info.dtype, threads, sv_cli_count(r->info.target_params, n1));
    if (r->info.block_size > 1)
        sv_buf_printf(out, ", draft %s", sv_cli_count(r->info.draft_params, n2));
    sv_buf_printf(out, "; read bandwidth %.1f GB/s; commit %s\n\n", r->gbs, m.commit);
    sv_cli_table_init(&t);
    people_rows(r, o, &t);
    sv_cli_table_write(&t, "md", out);
    sv_cli_table_fini(&t);
    if (r->prefill.ms.n)
        sv_buf_printf(
            out,
            "\nPrompt of %d: first token after %.2f ms (%.2f to %.2f), %.0f tok/s, %.2f TFLOP/s\n",
            r->prefill.n, sv_cli_samples_median(&r->prefill.ms), sv_cli_samples_min(&r->prefill.ms),
            sv_cli_samples_max(&r->prefill.ms),
            r->prefill.n * 1e3 / sv_cli_samples_median(&r->prefill.ms),
            r->prefill.flops / sv_cli_samples_median(&r->prefill.ms) / 1e9);
    sv_buf_printf(
        out,
        "\n\"Of limit\" is the bytes of weights and K/V that the steps had to read, over the time "
        "they took, as a share of the read bandwidth. Weights count as they lie in memory, in "
        "fewer bits where they do.\n");
    for (int32_t i = 0; i < r->n && r->n_ranks > 1; i++)
        sv_buf_printf(
            out, "%s%s, %d sequences: %.1f us",
            i ? "; " : "\nHost time of the busiest follower, per step: ", r->row[i].arm->name,
            r->row[i].sequences, sv_cli_samples_median(&r->row[i].follower_us));
    if (o->rest > 0)
        sv_buf_printf(
            out,
            "\nFrom rest: nothing ran for %g s before every sample of %d steps. Not what a busy "
            "machine keeps up.\n",
            o->rest, o->steps);
    if (r->policy)
        sv_sim_policy_reasons(r->policy, out);
}

static void record_of_steps(const struct sv_sim_results *r, const struct sv_sim_opts *o,
                            const struct sv_sim_row *row, struct sv_cli_table *t)
{
    struct sv_buf widths;
    sv_buf_init(&widths);
    width_list(row, &widths);
    sv_cli_table_add(t, "%s", row->arm->name);
    sv_cli_table_add(t, "%d", row->sequences);
    sv_cli_table_add(t, "%d", row->context);
    sv_cli_table_add(t, "%s", row->profile->name);
    sv_cli_table_add(t, "%s", row->profile->real ? "no" : "yes");
    sv_cli_table_add(t, "%d", row->rate.n);
    sv_cli_table_add(t, "%.2f", sv_cli_samples_median(&row->rate));
    sv_cli_table_add(t, "%.2f", sv_cli_samples_min(&row->rate));
    sv_cli_table_add(t, "%.2f", sv_cli_samples_max(&row->rate));
    sv_cli_table_add(t, "%.4f", sv_cli_samples_median(&row->ms));
    sv_cli_table_add(t, "%.2f", r->gbs);
    sv_cli_table_add(t, "%.4f", share_of(r, &row->gbs));
    sv_cli_table_add(t, "%.4f", share_of(r, &row->whole_gbs));
    sv_cli_table_add(t, "%.3f", mean_accept(row));
    sv_cli_table_add(t, "%.3f", row->n_segs ? (double)row->n_rows / (double)row->n_segs : 0);
    sv_cli_table_add(t, "%s", widths.data ? widths.data : "");
    sv_cli_table_add(t, row->ratio > 0 ? "%.4f" : "", row->ratio);
    sv_cli_table_add(t, "%s", "");
    sv_cli_table_add(t, "%g", o->rest);
    sv_cli_table_add(t, "%d", r->n_ranks);
    sv_cli_table_add(t, r->n_ranks > 1 ? "%.1f" : "", sv_cli_samples_median(&row->follower_us));
    sv_buf_fini(&widths);
}

static void record_of_the_prompt(const struct sv_sim_results *r, struct sv_cli_table *t)
{
    double ms = sv_cli_samples_median(&r->prefill.ms), n = r->prefill.n;
    sv_cli_table_add(t, "prompt");
    sv_cli_table_add(t, "1");
    sv_cli_table_add(t, "%d", r->prefill.n);
    sv_cli_table_add(t, "%s", "");
    sv_cli_table_add(t, "no");
    sv_cli_table_add(t, "%d", r->prefill.ms.n);
    sv_cli_table_add(t, "%.2f", n * 1e3 / ms);
    sv_cli_table_add(t, "%.2f", n * 1e3 / sv_cli_samples_max(&r->prefill.ms));
    sv_cli_table_add(t, "%.2f", n * 1e3 / sv_cli_samples_min(&r->prefill.ms));
    sv_cli_table_add(t, "%.4f", ms);
    sv_cli_table_add(t, "%.2f", r->gbs);
    for (int k = 0; k < 6; k++)
        sv_cli_table_add(t, "%s", "");
    sv_cli_table_add(t, "%.3f", r->prefill.flops / ms / 1e9);
    sv_cli_table_add(t, "0"); /* prompts are measured one after the other */
    sv_cli_table_add(t, "%d", r->n_ranks);
    sv_cli_table_add(t, "%s", "");
}

static void write_records(const struct sv_sim_results *r, const struct sv_sim_opts *o,
                          const char *model, int threads, const char *format, struct sv_buf *out)
{
    static const struct sv_cli_column column[] = {
        {"mode", false},           {"sequences", true},     {"context", true},
        {"profile", false},        {"simulated", false},    {"repeats", true},
        {"tok_s_median", true},    {"tok_s_min", true},     {"tok_s_max", true},
        {"ms_step", true},         {"limit_gb_s", true},    {"share_of_limit", true},
        {"share_if_whole", true},  {"accept_length", true}, {"rows_per_sequence", true},
        {"widths_percent", false}, {"auto_to_best", true},  {"tflops", true},
        {"rest_s", true},          {"ranks", true},         {"follower_us", true}};
    struct sv_cli_machine m;
    struct sv_cli_table t;
    sv_cli_machine_read(&m);
    sv_cli_table_init(&t);
    sv_cli_columns_add(&t, column, sizeof column / sizeof column[0]);
    for (int32_t i = 0; i < r->n; i++) {
        sv_cli_machine_add(&t, &m, model, &r->info, threads);
        record_of_steps(r, o, &r->row[i], &t);
    }
    if (r->prefill.ms.n) {
        sv_cli_machine_add(&t, &m, model, &r->info, threads);
        record_of_the_prompt(r, &t);
    }
    sv_cli_table_write(&t, format, out);
    sv_cli_table_fini(&t);
}

void sv_sim_write(const struct sv_sim_results *r, const struct sv_sim_opts *o, const char *model,
                  int threads, const char *format, struct sv_buf *out)
{
    if (strcmp(format, "md") == 0)
        write_people(r, o, model, threads, out);
    else
        write_records(r, o, model, threads, format, out);
}
