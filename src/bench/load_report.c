/*
 * load_report.c - the figures of `salvo-bench serve`, in the block that vLLM's tool prints or as
 * JSON.
 *
 * Called by serve.c. Must not: measure.
 */
#include "bench/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct list {
    double *v; /* milliseconds */
    size_t n;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double mean(const struct list *l)
{
    double sum = 0;
    for (size_t i = 0; i < l->n; i++)
        sum += l->v[i];
    return l->n ? sum / (double)l->n : 0;
}

/* As numpy interpolates; the list is sorted. */
static double percentile(const struct list *l, double p)
{
    if (!l->n)
        return 0;
    double at = p / 100 * (double)(l->n - 1);
    size_t i = (size_t)at;
    double next = i + 1 < l->n ? l->v[i + 1] : l->v[i];
    return l->v[i] + (next - l->v[i]) * (at - (double)i);
}

enum { TTFT, TPOT, ITL, E2EL, N_LISTS };

static bool collect(const struct sv_bench_load_result *res, struct list lists[N_LISTS])
{
    size_t cap[N_LISTS] = {(size_t)res->n, (size_t)res->n, 1, (size_t)res->n};

    for (int32_t i = 0; i < res->n; i++)
        cap[ITL] += res->r[i].gaps.len / sizeof(int64_t);
    for (int k = 0; k < N_LISTS; k++) {
        lists[k] = (struct list){sv_alloc(cap[k] * sizeof(double)), 0};
        if (!lists[k].v)
            return false;
    }
    for (int32_t i = 0; i < res->n; i++) {
        const struct sv_bench_load_request *r = &res->r[i];
        const int64_t *gap = (const int64_t *)(const void *)r->gaps.data;
        if (!r->ok || !r->first_us)
            continue;
        double ttft = (double)(r->first_us - r->start_us) / 1e3;
        double e2el = (double)(r->last_us - r->start_us) / 1e3;
        lists[TTFT].v[lists[TTFT].n++] = ttft;
        lists[E2EL].v[lists[E2EL].n++] = e2el;
        if (r->n_out > 1)
            lists[TPOT].v[lists[TPOT].n++] = (e2el - ttft) / (double)(r->n_out - 1);
        for (size_t g = 0; g < r->gaps.len / sizeof *gap; g++)
            lists[ITL].v[lists[ITL].n++] = (double)gap[g] / 1e3;
    }
    for (int k = 0; k < N_LISTS; k++)
        qsort(lists[k].v, lists[k].n, sizeof(double), by_value);
    return true;
}

struct totals {
    int32_t ok, failed;
    int64_t in, out;
    double seconds; /* never 0: rates are by it */
    double accept_rate, accept_length;
    struct sv_bench_load_spec d;
};

static struct totals sum(const struct sv_bench_load_result *res)
{
    struct totals t = {.d = res->after, .seconds = fmax(res->seconds, 1e-6)};

    for (int32_t i = 0; i < res->n; i++) {
        t.ok += res->r[i].ok;
        t.failed += !res->r[i].ok;
        t.in += res->r[i].ok ? res->r[i].n_prompt : 0;
        t.out += res->r[i].ok ? res->r[i].n_out : 0;
    }
    t.d.drafts -= res->before.drafts;
    t.d.drafted -= res->before.drafted;
    t.d.accepted -= res->before.accepted;
    for (int i = 0; i < t.d.n_at; i++)
        t.d.at[i] -= res->before.at[i];
    t.accept_rate = t.d.drafted > 0 ? t.d.accepted / t.d.drafted : 0;
    t.accept_length = t.d.drafts > 0 ? 1 + t.d.accepted / t.d.drafts : 0;
    return t;
}

/* ---------------------------------------------------------------- the block: 50 columns */

static void title(struct sv_buf *b, const char *text, char fill)
{
    int n = (int)strlen(text) + (*text ? 2 : 0), left = (50 - n) / 2;

    for (int i = 0; i < left; i++)
        sv_buf_append(b, &fill, 1);
    sv_buf_printf(b, *text ? " %s " : "%s", text);
    for (int i = left + n; i < 50; i++)
        sv_buf_append(b, &fill, 1);
    sv_buf_append(b, "\n", 1);
}

/* Section lines of vLLM's block have no blanks around their names. */
static void section(struct sv_buf *b, const char *text)
{
    int n = (int)strlen(text), left = (50 - n) / 2;

    for (int i = 0; i < left; i++)
        sv_buf_append(b, "-", 1);
    sv_buf_append(b, text, (size_t)n);
    for (int i = left + n; i < 50; i++)
        sv_buf_append(b, "-", 1);
    sv_buf_append(b, "\n", 1);
}

static void number(struct sv_buf *b, const char *name, double v)
{
    sv_buf_printf(b, "%-40s %-10.2f\n", name, v);
}

static void whole(struct sv_buf *b, const char *name, double v)
{
    sv_buf_printf(b, "%-40s %-10.0f\n", name, v);
}

static void times(struct sv_buf *b, const char *heading, const char *name, const struct list *l)
{
    char label[48];

    section(b, heading);
    snprintf(label, sizeof label, "Mean %s (ms):", name);
    number(b, label, mean(l));
    snprintf(label, sizeof label, "Median %s (ms):", name);
    number(b, label, percentile(l, 50));
    snprintf(label, sizeof label, "P99 %s (ms):", name);
    number(b, label, percentile(l, 99));
}

static void block(const struct sv_bench_load_result *res, const struct totals *t,
                  const struct list *l, struct sv_buf *b)
{
    title(b, "Serving Benchmark Result", '=');
    whole(b, "Successful requests:", t->ok);
    whole(b, "Failed requests:", t->failed);
    whole(b, "Maximum request concurrency:", res->concurrency);
    if (res->rate > 0)
        number(b, "Request rate configured (RPS):", res->rate);
    number(b, "Benchmark duration (s):", res->seconds);
    whole(b, "Total input tokens:", (double)t->in);
    whole(b, "Total generated tokens:", (double)t->out);
    number(b, "Request throughput (req/s):", t->ok / t->seconds);
    number(b, "Output token throughput (tok/s):", (double)t->out / t->seconds);
    number(b, "Peak concurrent requests:", res->peak);
    number(b, "Total Token throughput (tok/s):", (double)(t->in + t->out) / t->seconds);
    times(b, "Time to First Token", "TTFT", &l[TTFT]);
    times(b, "Time per Output Token (excl. 1st token)", "TPOT", &l[TPOT]);
    times(b, "Inter-token Latency", "ITL", &l[ITL]);
    times(b, "End-to-end Latency", "E2EL", &l[E2EL]);
    if (t->d.found && t->d.drafts > 0) {
        section(b, "Speculative Decoding");
        number(b, "Acceptance rate (%):", 100 * t->accept_rate);
        number(b, "Acceptance length:", t->accept_length);
        whole(b, "Drafts:", t->d.drafts);
        whole(b, "Draft tokens:", t->d.drafted);
        whole(b, "Accepted tokens:", t->d.accepted);
        sv_buf_printf(b, "Per-position acceptance (%%):\n");
        for (int i = 0; i < t->d.n_at; i++) {
            char label[32];
            snprintf(label, sizeof label, "  Position %d:", i);
            number(b, label, 100 * t->d.at[i] / t->d.drafts);
        }
    }
    title(b, "", '=');
}

/* ---------------------------------------------------------------- JSON, with vLLM's names */

static void json_times(struct sv_buf *b, const char *name, const struct list *l)
{
    sv_buf_printf(b, ",\"mean_%s_ms\":%.3f,\"median_%s_ms\":%.3f,\"p99_%s_ms\":%.3f", name, mean(l),
                  name, percentile(l, 50), name, percentile(l, 99));
}

static void as_json(const struct sv_bench_load_result *res, const struct totals *t,
                    const struct list *l, struct sv_buf *b)
{
    sv_buf_printf(b,
                  "{\"completed\":%d,\"failed\":%d,\"max_concurrency\":%d,\"duration\":%.3f,"
                  "\"total_input_tokens\":%lld,\"total_output_tokens\":%lld,"
                  "\"request_throughput\":%.3f,\"output_throughput\":%.2f,"
                  "\"total_token_throughput\":%.2f",
                  t->ok, t->failed, res->concurrency, res->seconds, (long long)t->in,
                  (long long)t->out, t->ok / t->seconds, (double)t->out / t->seconds,
                  (double)(t->in + t->out) / t->seconds);
    json_times(b, "ttft", &l[TTFT]);
    json_times(b, "tpot", &l[TPOT]);
    json_times(b, "itl", &l[ITL]);
    json_times(b, "e2el", &l[E2EL]);
    if (t->d.found && t->d.drafts > 0) {
        sv_buf_printf(
            b,
            ",\"spec_decode_acceptance_rate\":%.3f,\"spec_decode_acceptance_length\":%.4f,"
            "\"spec_decode_num_drafts\":%.0f,\"spec_decode_draft_tokens\":%.0f,"
            "\"spec_decode_accepted_tokens\":%.0f,"
            "\"spec_decode_per_position_acceptance_rates\":[",
            100 * t->accept_rate, t->accept_length, t->d.drafts, t->d.drafted, t->d.accepted);
        for (int i = 0; i < t->d.n_at; i++)
            sv_buf_printf(b, i ? ",%.4f" : "%.4f", t->d.at[i] / t->d.drafts);
        sv_buf_append(b, "]", 1);
    }
    sv_buf_printf(b, "}\n");
}

void sv_bench_load_report(const struct sv_bench_load_result *res, bool json, struct sv_buf *out)
{
    struct list lists[N_LISTS] = {{NULL, 0}};
    struct totals t = sum(res);

    if (!collect(res, lists))
        out->failed = true;
    else if (json)
        as_json(res, &t, lists, out);
    else
        block(res, &t, lists, out);
    for (int k = 0; k < N_LISTS; k++)
        sv_free(lists[k].v);
}
