/*
 * metrics.c - /metrics in Prometheus' text format under Salvo's own names; other servers' names are
 * in metrics_names.c.
 *
 * Called by route.c; call.c and send.c fill the histograms. Must not: use labels that a client
 * chooses.
 */
#include "serve/core/prep.h"
#include "serve/core/server.h"

#include <stddef.h>
#include <string.h>

/* Seconds: the buckets of vLLM's histograms, for its dashboards. */
static const double bounds[SV_N_BUCKETS] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.025, 0.04,
                                            0.05,   0.06,  0.075,  0.08,  0.1,  0.15, 0.25,  0.5,
                                            0.75,   1.0,   2.5,    5.0,   7.5,  10.0, 30.0,  60.0};

/* Tokens: the buckets of vLLM's histograms. */
static const double counts[SV_N_BUCKETS] = {1,   2,   5,   10,  20,  50,  100, 200,
                                            500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5,
                                            2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7};

static void add(struct sv_histogram *h, const double *limits, double v, int64_t times)
{
    int i = 0;
    while (i < SV_N_BUCKETS && v > limits[i])
        i++;
    h->n[i] += times;
    h->count += times;
    h->sum += v * (double)times;
}

void sv_histogram_add(struct sv_histogram *h, double seconds, int64_t times)
{
    add(h, bounds, seconds, times);
}

void sv_histogram_count(struct sv_histogram *h, int64_t n)
{
    add(h, counts, (double)n, 1);
}

void sv_metric_head(struct sv_buf *b, const char *name, const char *type, const char *help)
{
    sv_buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Prometheus has three escapes only; other characters that JSON would escape are written as they
 * are. */
void sv_metric_label(struct sv_buf *b, const char *name, const char *value)
{
    size_t n = strlen(value);

    sv_buf_printf(b, "%s=\"", name);
    for (size_t i = 0; i < n;) {
        size_t fine = sv_utf8_valid(value + i, n - i), run = strcspn(value + i, "\\\"\n");
        run = run < fine ? run : fine;
        sv_buf_append(b, value + i, run);
        i += run;
        if (!fine) {
            sv_buf_lit(b, "\xEF\xBF\xBD");
            i++;
        } else if (run < fine) {
            char escaped[2] = {'\\', value[i] == '\n' ? 'n' : value[i]};
            sv_buf_append(b, escaped, 2);
            i++;
        }
    }
    sv_buf_lit(b, "\"");
}

static void counter(struct sv_buf *b, const char *name, const char *help, int64_t v)
{
    sv_metric_head(b, name, "counter", help);
    sv_buf_printf(b, "%s %lld\n", name, (long long)v);
}

void sv_metric_gauge(struct sv_buf *b, const char *name, const char *help, double v)
{
    sv_metric_head(b, name, "gauge", help);
    sv_buf_printf(b, "%s %.9g\n", name, v);
}

static void histogram(struct sv_buf *b, const char *name, const char *help, const char *labels,
                      const double *limits, const struct sv_histogram *h)
{
    const char *comma = *labels ? "," : "", *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    int64_t sum = 0;

    sv_metric_head(b, name, "histogram", help);
    for (int i = 0; i < SV_N_BUCKETS; i++) {
        sum += h->n[i];
        sv_buf_printf(b, "%s_bucket{%s%sle=\"%g\"} %lld\n", name, labels, comma, limits[i],
                      (long long)sum);
    }
    sv_buf_printf(b, "%s_bucket{%s%sle=\"+Inf\"} %lld\n", name, labels, comma, (long long)h->count);
    sv_buf_printf(b, "%s_sum%s%s%s %.6f\n%s_count%s%s%s %lld\n", name, open, labels, close, h->sum,
                  name, open, labels, close, (long long)h->count);
}

void sv_metric_histogram(struct sv_buf *b, const char *name, const char *help, const char *labels,
                         const struct sv_histogram *h)
{
    histogram(b, name, help, labels, bounds, h);
}

void sv_metric_counts(struct sv_buf *b, const char *name, const char *help, const char *labels,
                      const struct sv_histogram *h)
{
    histogram(b, name, help, labels, counts, h);
}

/* ---------------------------------------------------------------- our own */

static void requests(struct sv_buf *b, const struct sv_metrics *m)
{
    static const char *const results[] = {"", "stop", "length", "canceled", "error", "rejected"};

    sv_metric_head(b, "salvo_sequences_total", "counter", "Sequences ended, by how.");
    for (int i = 1; i < 6; i++)
        sv_buf_printf(b, "salvo_sequences_total{result=\"%s\"} %lld\n", results[i],
                      (long long)m->n_requests[i]);
    sv_metric_head(b, "salvo_refused_requests_total", "counter",
                   "Requests that never got to the engine, by status.");
    for (int i = 0; i < 2; i++)
        sv_buf_printf(b, "salvo_refused_requests_total{status=\"%dxx\"} %lld\n", 4 + i,
                      (long long)m->n_refused[i]);
    counter(b, "salvo_queue_full_total", "Requests answered with 429.", m->n_full);
    counter(b, "salvo_prompt_tokens_total", "Prompt tokens of ended sequences.",
            m->n_prompt_tokens);
    counter(b, "salvo_cached_tokens_total", "Prompt tokens found in the prefix cache.",
            m->n_cached_tokens);
    counter(b, "salvo_generated_tokens_total", "Tokens of answers.", m->n_tokens);
    sv_metric_histogram(b, "salvo_time_to_first_token_seconds",
                        "From the request to its first token.", "", &m->ttft);
    sv_metric_histogram(b, "salvo_inter_token_seconds",
                        "Between tokens; those of one step share the gap before it.", "", &m->itl);
    sv_metric_histogram(b, "salvo_request_seconds", "From the request to its last byte.", "",
                        &m->e2e);
    sv_metric_histogram(b, "salvo_queue_seconds", "Waiting for a slot in the engine.", "",
                        &m->queue);
    sv_metric_histogram(b, "salvo_prompt_seconds", "From a sequence's slot to its first token.", "",
                        &m->prefill);
    sv_metric_histogram(b, "salvo_decode_seconds", "From its first token to its last.", "",
                        &m->decode);
    sv_metric_counts(b, "salvo_prompt_length_tokens", "Tokens of a sequence's prompt.", "",
                     &m->prompt_tokens);
    sv_metric_counts(b, "salvo_answer_length_tokens", "Tokens of its answer.", "",
                     &m->answer_tokens);
}

static void forms(struct sv_buf *b, const struct sv_metrics *m)
{
    sv_metric_head(b, "salvo_structured_requests_total", "counter",
                   "Requests whose answer must have a form, by its kind.");
    for (int k = SV_CONSTRAINT_NONE + 1; k < SV_CONSTRAINT_KINDS; k++)
        sv_buf_printf(b, "salvo_structured_requests_total{kind=\"%s\"} %lld\n",
                      sv_constraint_name((enum sv_constraint_kind)k),
                      (long long)m->n_constraints[k]);
    counter(b, "salvo_grammar_cache_hits_total", "Of these, with a grammar that was there.",
            m->n_grammar_hits);
    sv_metric_gauge(b, "salvo_grammars_kept", "Grammars kept for the next request.",
                    (double)m->n_grammars);
    sv_metric_histogram(b, "salvo_grammar_seconds", "Making a grammar, beside the event loop.", "",
                        &m->making);
}

/* An engine's figures: of several replicas, each line has a label with its number. */
struct engines {
    const struct sv_snapshot *of;
    int32_t n, block;
};

/* name{replica="r",labels}, and a blank. labels: "" or the text between the braces. */
static void begin_line(struct sv_buf *b, const struct engines *e, int32_t r, const char *name,
                       const char *labels)
{
    if (e->n > 1)
        sv_buf_printf(b, "%s{replica=\"%d\"%s%s} ", name, r, *labels ? "," : "", labels);
    else if (*labels)
        sv_buf_printf(b, "%s{%s} ", name, labels);
    else
        sv_buf_printf(b, "%s ", name);
}

/* How a member of struct sv_snapshot is written. */
enum form { COUNT, SECONDS, US, GAUGE };
struct figure {
    const char *name, *help;
    size_t at;
    enum form form;
};
#define STAT(member) offsetof(struct sv_snapshot, stats.member)

static void write_figure(struct sv_buf *b, const void *at, enum form form)
{
    if (form == COUNT)
        sv_buf_printf(b, "%lld\n", (long long)*(const int64_t *)at);
    else if (form == GAUGE)
        sv_buf_printf(b, "%d\n", *(const int32_t *)at);
    else if (form == US)
        sv_buf_printf(b, "%.6f\n", *(const double *)at / 1e6);
    else
        sv_buf_printf(b, "%.6f\n", (double)*(const int64_t *)at / 1e6);
}

static void figures(struct sv_buf *b, const struct engines *e, const struct figure *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sv_metric_head(b, list[i].name, list[i].form == GAUGE ? "gauge" : "counter", list[i].help);
        for (int32_t r = 0; r < e->n; r++) {
            begin_line(b, e, r, list[i].name, "");
            write_figure(b, (const char *)&e->of[r] + list[i].at, list[i].form);
        }
    }
}

/* An array of int64_t, an entry for each position from `from` to `to`. */
static void by_position(struct sv_buf *b, const struct engines *e, const char *name,
                        const char *help, const char *label, size_t at, int from, int to)
{
    char labels[32];

    sv_metric_head(b, name, "counter", help);
    for (int32_t r = 0; r < e->n; r++)
        for (int i = from; i <= to; i++) {
            snprintf(labels, sizeof labels, "%s=\"%d\"", label, i);
            begin_line(b, e, r, name, labels);
            write_figure(b, (const char *)&e->of[r] + at + (size_t)i * sizeof(int64_t), COUNT);
        }
}

/* The width policy's choices and their reasons. */
static void widths(struct sv_buf *b, const struct engines *e)
{
    static const struct figure list[] = {
        {"salvo_width_choices_beside_prompts_total", "Of these, beside rows of prompts.",
         STAT(n_chosen_beside_prompts), COUNT},
        {"salvo_pruned_steps_total", "Steps whose drafts were pruned once they were drafted.",
         STAT(n_pruned_steps), COUNT},
        {"salvo_rows_pruned_total", "Drafts of too low confidence to be verified.",
         STAT(n_rows_pruned), COUNT},
        {"salvo_drafting_disabled_total", "Sequences that no longer draft: unprofitable for long.",
         STAT(n_drafting_disabled), COUNT},
        {"salvo_width_expected_seconds_total", "Expected time of the steps chosen.",
         STAT(chosen_us), US},
        {"salvo_width_expected_plain_seconds_total",
         "Expected time of the same tokens decoded plainly.", STAT(plain_us), US},
    };
    char labels[48];

    sv_metric_head(b, "salvo_width_choices_total", "counter",
                   "Widths the policy chose, by reason.");
    for (int32_t r = 0; r < e->n; r++)
        for (int i = 0; i < SV_WIDTH_REASONS; i++) {
            snprintf(labels, sizeof labels, "reason=\"%s\"", sv_width_reason_name(i));
            begin_line(b, e, r, "salvo_width_choices_total", labels);
            sv_buf_printf(b, "%lld\n", (long long)e->of[r].stats.width_reason[i]);
        }
    figures(b, e, list, sizeof list / sizeof list[0]);
    sv_metric_head(b, "salvo_draft_chance", "gauge",
                   "That a draft is kept once the one before it was.");
    for (int32_t r = 0; r < e->n; r++)
        for (int j = 1; j < e->block; j++) {
            snprintf(labels, sizeof labels, "position=\"%d\"", j);
            begin_line(b, e, r, "salvo_draft_chance", labels);
            sv_buf_printf(b, "%.4f\n", (double)e->of[r].stats.draft_chance[j]);
        }
    sv_metric_head(b, "salvo_step_cost_seconds", "gauge",
                   "What a step is thought to cost just now.");
    for (int32_t r = 0; r < e->n; r++)
        for (int i = 0; i < SV_STEP_COSTS; i++) {
            snprintf(labels, sizeof labels, "step=\"%s\"", sv_step_cost_name(i));
            begin_line(b, e, r, "salvo_step_cost_seconds", labels);
            sv_buf_printf(b, "%.9f\n", (double)e->of[r].stats.step_cost_us[i] / 1e6);
        }
}

static void speculation(struct sv_buf *b, const struct engines *e)
{
    static const struct figure list[] = {
        {"salvo_verify_steps_total", "Verified blocks that held drafts.", STAT(n_verify_steps),
         COUNT},
        {"salvo_draft_tokens_total", "Tokens drafted.", STAT(n_drafted), COUNT},
        {"salvo_accepted_tokens_total", "Drafted tokens the target confirmed.", STAT(n_accepted),
         COUNT},
    };

    figures(b, e, list, sizeof list / sizeof list[0]);
    if (e->block < 2)
        return;
    by_position(b, e, "salvo_accept_length_total",
                "Verified blocks by accept length, the target's own token included.", "length",
                STAT(accept_length), 1, e->block);
    by_position(b, e, "salvo_accepted_at_position_total",
                "Accepted drafts by position in the block.", "position", STAT(accepted_at), 1,
                e->block - 1);
    by_position(b, e, "salvo_drafted_at_position_total", "Drafts by position in the block.",
                "position", STAT(drafted_at), 1, e->block - 1);
    by_position(b, e, "salvo_verify_width_total", "Decode segments by the width that was chosen.",
                "width", STAT(width_chosen), 1, e->block);
    widths(b, e);
}

static void engine(struct sv_buf *b, const struct engines *e)
{
    static const struct figure list[] = {
        {"salvo_steps_total", "Steps of the engine.", STAT(n_steps), COUNT},
        {"salvo_step_seconds_total", "Time in steps.", offsetof(struct sv_snapshot, busy_us),
         SECONDS},
        {"salvo_draft_seconds_total", "Time in drafting passes.", STAT(draft_us), SECONDS},
        {"salvo_forward_seconds_total", "Time in target passes.", STAT(forward_us), SECONDS},
        {"salvo_context_seconds_total", "Time in the draft's context updates.", STAT(context_us),
         SECONDS},
        {"salvo_host_seconds_total", "Step time on the host.", STAT(host_us), SECONDS},
        {"salvo_prefix_queries_total", "Prompt tokens looked up in the prefix cache.",
         STAT(n_cache_queries), COUNT},
        {"salvo_prefix_hits_total", "Prompt tokens found in the prefix cache.", STAT(n_cache_hits),
         COUNT},
        {"salvo_preemptions_total", "Sequences put back to make room.", STAT(n_preemptions), COUNT},
        {"salvo_running_sequences", "Sequences in a slot.", STAT(n_running), GAUGE},
        {"salvo_waiting_sequences", "Sequences without one.", STAT(n_waiting), GAUGE},
        {"salvo_cache_pages", "Cache pages there are.", STAT(n_pages), GAUGE},
        {"salvo_cache_pages_used", "Cache pages that sequences hold.", STAT(n_pages_used), GAUGE},
        {"salvo_cache_pages_reusable", "Cache pages kept for prefixes only.", STAT(n_pages_cached),
         GAUGE},
    };

    figures(b, e, list, sizeof list / sizeof list[0]);
}

static void replicas(struct sv_buf *b, const struct sv_serve *s)
{
    if (s->n_replicas < 2)
        return;
    sv_metric_head(b, "salvo_replica_up", "gauge", "1 unless it has failed.");
    for (int32_t r = 0; r < s->n_replicas; r++)
        sv_buf_printf(b, "salvo_replica_up{replica=\"%d\"} %d\n", r, !s->replicas[r].failed);
    sv_metric_head(b, "salvo_replica_drained", "gauge", "1 while it takes no requests.");
    for (int32_t r = 0; r < s->n_replicas; r++)
        sv_buf_printf(b, "salvo_replica_drained{replica=\"%d\"} %d\n", r, s->replicas[r].drained);
}

/* ---------------------------------------------------------------- all of it */

static int64_t resident_bytes(void)
{
    struct sv_buf text;
    long long pages = 0, resident = 0;

    sv_buf_init(&text);
    if (!sv_file_read(&text, "/proc/self/statm", 256, NULL))
        sscanf(text.data, "%lld %lld", &pages, &resident);
    sv_buf_fini(&text);
    return resident * 4096;
}

void sv_metrics_write(struct sv_serve *s, struct sv_buf *b)
{
    struct sv_snapshot snap;

    sv_metric_head(b, "salvo_build_info", "gauge", "Always 1; what is running.");
    sv_buf_printf(b, "salvo_build_info{version=\"" SALVO_VERSION "\",");
    sv_metric_label(b, "model", s->model_name);
    sv_buf_printf(b, "} 1\n");
    sv_metric_gauge(b, "salvo_ready", "1 when requests are taken.",
                    s->state == SV_READY && sv_replicas_taking(s));
    sv_metric_gauge(b, "process_resident_memory_bytes", "Resident memory.",
                    (double)resident_bytes());
    sv_metric_gauge(
        b, "salvo_long_bodies",
        "Bodies being read and grammars being made beside the event loop, or waiting for it.",
        sv_prep_n_jobs(s->prep, SV_JOB_BODY) + sv_prep_n_jobs(s->prep, SV_JOB_GRAMMAR));
    sv_metric_gauge(b, "salvo_loop_turn_bytes_max",
                    "Most bytes of answers put together in one turn of the event loop.",
                    (double)(s->turn_bytes > s->metrics.most_turn_bytes
                                 ? s->turn_bytes
                                 : s->metrics.most_turn_bytes));
    counter(b, "salvo_written_beside_loop_total",
            "Long answers and chunks put together beside the event loop.", s->metrics.n_aside);
    requests(b, &s->metrics);
    forms(b, &s->metrics);
    if (!s->model)
        return;
    struct sv_snapshot *each = sv_calloc((size_t)s->n_replicas, sizeof *each);
    if (!each) {
        b->failed = true;
        return;
    }
    for (int32_t r = 0; r < s->n_replicas; r++)
        sv_worker_snapshot(s->replicas[r].worker, &each[r]);
    const struct engines e = {each, s->n_replicas, s->model->info.block_size};
    replicas(b, s);
    engine(b, &e);
    speculation(b, &e);
    sv_free(each);
    if (s->o.no_vllm_metrics)
        return;
    sv_replicas_snapshot(s, &snap);
    sv_metrics_other_names(s, &snap, b);
}
