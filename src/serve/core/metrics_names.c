/*
 * metrics_names.c - the counters of /metrics under the names of vLLM, SGLang and llama-server,
 * which dashboards and load generators read.
 *
 * Called by metrics.c. Names for which this server has no counter are left out. Must not: count
 * anything.
 */
#include "serve/core/server.h"

#include <string.h>

struct value {
    const char *name, *type;
    double v;
};

#define N(list) (sizeof(list) / sizeof *(list))

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

double sv_mean_accept(const struct sv_engine_stats *st)
{
    int64_t n = 0;

    for (size_t i = 0; i < N(st->width_chosen); i++)
        n += st->width_chosen[i];
    return 1 + ratio((double)st->n_accepted, (double)n);
}

static void write_values(struct sv_buf *b, const char *labels, const struct value *list, size_t n)
{
    const char *open = *labels ? "{" : "", *close = *labels ? "}" : "";

    for (size_t i = 0; i < n; i++) {
        sv_metric_head(b, list[i].name, list[i].type, "As other servers name it.");
        sv_buf_printf(b, "%s%s%s%s %.15g\n", list[i].name, open, labels, close, list[i].v);
    }
}

/* Accepted drafts by position, from 0. */
static void by_position(struct sv_buf *b, const char *name, const char *labels,
                        const struct sv_engine_stats *st, int block)
{
    if (block < 2)
        return;
    sv_metric_head(b, name, "counter", "As other servers name it.");
    for (int i = 1; i < block; i++)
        sv_buf_printf(b, "%s{%s%sposition=\"%d\"} %lld\n", name, labels, *labels ? "," : "", i - 1,
                      (long long)st->accepted_at[i]);
}

static void vllm(struct sv_buf *b, const struct sv_metrics *m, const struct sv_engine_stats *st,
                 int block, const char *labels)
{
    const struct value list[] = {
        {"vllm:num_requests_running", "gauge", st->n_running},
        {"vllm:num_requests_waiting", "gauge", st->n_waiting},
        {"vllm:kv_cache_usage_perc", "gauge", ratio(st->n_pages_used, st->n_pages)},
        {"vllm:prompt_tokens_total", "counter", (double)m->n_prompt_tokens},
        {"vllm:generation_tokens_total", "counter", (double)m->n_tokens},
        {"vllm:num_preemptions_total", "counter", (double)st->n_preemptions},
        {"vllm:prefix_cache_queries_total", "counter", (double)st->n_cache_queries},
        {"vllm:prefix_cache_hits_total", "counter", (double)st->n_cache_hits},
        {"vllm:spec_decode_num_drafts_total", "counter", (double)st->n_verify_steps},
        {"vllm:spec_decode_num_draft_tokens_total", "counter", (double)st->n_drafted},
        {"vllm:spec_decode_num_accepted_tokens_total", "counter", (double)st->n_accepted},
    };
    static const struct {
        const char *name;
        enum sv_finish_reason finish;
    } ends[] = {{"stop", SV_FINISH_STOP},
                {"length", SV_FINISH_LENGTH},
                {"abort", SV_FINISH_CANCELED},
                {"error", SV_FINISH_ERROR}};

    write_values(b, labels, list, N(list));
    by_position(b, "vllm:spec_decode_num_accepted_tokens_per_pos_total", labels, st, block);
    sv_metric_head(b, "vllm:request_success_total", "counter", "As other servers name it.");
    for (size_t i = 0; i < N(ends); i++)
        sv_buf_printf(b, "vllm:request_success_total{%s,finished_reason=\"%s\"} %lld\n", labels,
                      ends[i].name, (long long)m->n_requests[ends[i].finish]);
    const struct {
        const char *name;
        const struct sv_histogram *h;
    } times[] = {{"vllm:time_to_first_token_seconds", &m->ttft},
                 {"vllm:inter_token_latency_seconds", &m->itl},
                 {"vllm:request_time_per_output_token_seconds", &m->per_token},
                 {"vllm:e2e_request_latency_seconds", &m->e2e},
                 {"vllm:request_queue_time_seconds", &m->queue},
                 {"vllm:request_prefill_time_seconds", &m->prefill},
                 {"vllm:request_decode_time_seconds", &m->decode},
                 {"vllm:request_inference_time_seconds", &m->inference}},
      lengths[] = {{"vllm:request_prompt_tokens", &m->prompt_tokens},
                   {"vllm:request_generation_tokens", &m->answer_tokens}};
    for (size_t i = 0; i < N(times); i++)
        sv_metric_histogram(b, times[i].name, "As other servers name it.", labels, times[i].h);
    for (size_t i = 0; i < N(lengths); i++)
        sv_metric_counts(b, lengths[i].name, "As other servers name it.", labels, lengths[i].h);
}

static void sglang(struct sv_buf *b, const struct sv_metrics *m, const struct sv_engine_stats *st,
                   int64_t busy_us, const char *labels)
{
    const struct value list[] = {
        {"sglang:num_running_reqs", "gauge", st->n_running},
        {"sglang:num_queue_reqs", "gauge", st->n_waiting},
        {"sglang:token_usage", "gauge", ratio(st->n_pages_used, st->n_pages)},
        {"sglang:cache_hit_rate", "gauge",
         ratio((double)st->n_cache_hits, (double)st->n_cache_queries)},
        {"sglang:gen_throughput", "gauge", ratio((double)st->n_tokens * 1e6, (double)busy_us)},
        {"sglang:spec_accept_length", "gauge", sv_mean_accept(st)},
        {"sglang:spec_accept_rate", "gauge", ratio((double)st->n_accepted, (double)st->n_drafted)},
        {"sglang:prompt_tokens_total", "counter", (double)m->n_prompt_tokens},
        {"sglang:generation_tokens_total", "counter", (double)m->n_tokens},
        {"sglang:cached_tokens_total", "counter", (double)m->n_cached_tokens},
        {"sglang:num_requests_total", "counter", (double)m->e2e.count},
    };

    write_values(b, labels, list, N(list));
    sv_metric_histogram(b, "sglang:time_to_first_token_seconds", "As other servers name it.",
                        labels, &m->ttft);
    sv_metric_histogram(b, "sglang:inter_token_latency_seconds", "As other servers name it.",
                        labels, &m->itl);
    sv_metric_histogram(b, "sglang:e2e_request_latency_seconds", "As other servers name it.",
                        labels, &m->e2e);
}

static void llama(struct sv_buf *b, const struct sv_metrics *m, const struct sv_engine_stats *st,
                  int block)
{
    double prompt_s = (double)m->prefill_us / 1e6, made_s = (double)m->decode_us / 1e6;
    const struct value list[] = {
        {"llamacpp:prompt_tokens_total", "counter",
         (double)(m->n_prompt_tokens - m->n_cached_tokens)},
        {"llamacpp:prompt_seconds_total", "counter", prompt_s},
        {"llamacpp:prompt_tokens_seconds", "gauge",
         ratio((double)(m->n_prompt_tokens - m->n_cached_tokens), prompt_s)},
        {"llamacpp:tokens_predicted_total", "counter", (double)m->n_tokens},
        {"llamacpp:tokens_predicted_seconds_total", "counter", made_s},
        {"llamacpp:predicted_tokens_seconds", "gauge", ratio((double)m->n_tokens, made_s)},
        {"llamacpp:requests_processing", "gauge", st->n_running},
        {"llamacpp:requests_deferred", "gauge", st->n_waiting},
        {"llamacpp:n_decode_total", "counter", (double)st->n_steps},
        {"llamacpp:spec_decode_num_drafts_total", "counter", (double)st->n_verify_steps},
        {"llamacpp:spec_decode_num_draft_tokens_total", "counter", (double)st->n_drafted},
        {"llamacpp:spec_decode_num_accepted_tokens_total", "counter", (double)st->n_accepted},
    };

    write_values(b, "", list, N(list));
    by_position(b, "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", "", st, block);
}

void sv_metrics_other_names(const struct sv_serve *s, const struct sv_snapshot *snap,
                            struct sv_buf *b)
{
    int block = s->model->info.block_size;
    struct sv_buf labels;

    sv_buf_init(&labels);
    sv_metric_label(&labels, "model_name", s->model_name);
    b->failed |= labels.failed;
    if (!labels.failed) {
        vllm(b, &s->metrics, &snap->stats, block, labels.data);
        sglang(b, &s->metrics, &snap->stats, snap->busy_us, labels.data);
        llama(b, &s->metrics, &snap->stats, block);
    }
    sv_buf_fini(&labels);
}
