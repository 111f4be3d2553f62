/*
 * metrics.h - counters and histograms of the server, and /metrics in Prometheus' text format.
 *
 * Included by server.h and by endpoints that write metrics. Used on the loop's thread. Must not:
 * hold labels that a client chooses.
 */
#ifndef SV_SERVE_CORE_METRICS_H
#define SV_SERVE_CORE_METRICS_H

#include "salvo.h"
#include "serve/core/params.h"

struct sv_serve;
struct sv_snapshot;

#define SV_N_BUCKETS 24

struct sv_histogram {
    int64_t n[SV_N_BUCKETS + 1];
    int64_t count;
    double sum;
};
struct sv_metrics {
    int64_t n_requests[6]; /* sequences by enum sv_finish_reason; [5]: rejected by the engine */
    int64_t n_refused[2];  /* requests that never reached the engine: 4xx, 5xx */
    int64_t n_full;        /* 429 */
    int64_t n_prompt_tokens, n_cached_tokens, n_tokens;
    int64_t prefill_us, decode_us; /* of ended sequences */
    int64_t n_aside;               /* answers and chunks written beside the loop */
    int64_t most_turn_bytes;       /* most bytes of answers written in one turn of the loop */
    int64_t n_constraints[SV_CONSTRAINT_KINDS], n_grammar_hits;
    int64_t n_grammars; /* in the cache of grammars */
    struct sv_histogram ttft, itl, e2e, queue, making;
    /* of ended sequences: seconds, then numbers of tokens */
    struct sv_histogram prefill, decode, inference, per_token, prompt_tokens, answer_tokens;
};
/* A histogram is filled either with seconds or with numbers of tokens; the buckets differ. */
void sv_histogram_add(struct sv_histogram *h, double seconds, int64_t times);
void sv_histogram_count(struct sv_histogram *h, int64_t n);

/* All metrics under Salvo's own names, and under other servers' unless an option turns these off.
 */
void sv_metrics_write(struct sv_serve *s, struct sv_buf *b);
void sv_metric_label(struct sv_buf *b, const char *name, const char *value);
void sv_metric_head(struct sv_buf *b, const char *name, const char *type, const char *help);
void sv_metric_gauge(struct sv_buf *b, const char *name, const char *help, double v);
/* Histograms of seconds and of numbers of tokens. labels: the text between the braces, or "". */
void sv_metric_histogram(struct sv_buf *b, const char *name, const char *help, const char *labels,
                         const struct sv_histogram *h);
void sv_metric_counts(struct sv_buf *b, const char *name, const char *help, const char *labels,
                      const struct sv_histogram *h);

/* metrics_names.c: the names of vLLM, SGLang and llama-server. */
void sv_metrics_other_names(const struct sv_serve *s, const struct sv_snapshot *snap,
                            struct sv_buf *b);
/* Tokens per decode step, plain steps included: the mean of the accept lengths in SGLang's answers.
 */
double sv_mean_accept(const struct sv_engine_stats *st);

#endif
