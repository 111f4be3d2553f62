/*
 * spec.c - speculation in answers: vLLM's metrics object, llama-server's timings, flags for drafted
 * text.
 *
 * Called by the dialects. Accept length counts the bonus token; accepted drafts do not. Must not:
 * guess.
 */
#include "serve/core/write.h"

#include <string.h>

void sv_accept_of(const struct sv_choice *ch, struct sv_accept *a)
{
    const uint16_t *length = (const uint16_t *)(const void *)ch->accept.data;
    const uint16_t *width = (const uint16_t *)(const void *)ch->widths.data;
    size_t n = ch->accept.len / sizeof *length;

    memset(a, 0, sizeof *a);
    for (size_t i = 0; i < n; i++) {
        int32_t accepted = length[i] ? length[i] - 1 : 0;
        a->n_steps++;
        a->n_tokens += length[i];
        a->n_accepted += accepted;
        a->n_drafted += width[i] - 1;
        a->n_plain += width[i] < 2;
        a->length[accepted < 65 ? accepted : 65]++;
        if (accepted > a->max)
            a->max = accepted;
    }
}

/* ,"name":[...]: for each step with drafts its number, without the target's own token. */
static void write_steps(struct sv_buf *b, const char *name, const struct sv_buf *steps,
                        const struct sv_choice *ch)
{
    const uint16_t *v = (const uint16_t *)(const void *)steps->data,
                   *width = (const uint16_t *)(const void *)ch->widths.data;
    size_t n = steps->len / sizeof *v;
    const char *comma = "";

    sv_buf_printf(b, ",\"%s\":[", name);
    for (size_t i = 0; i < n; i++)
        if (width[i] > 1) {
            sv_buf_printf(b, "%s%d", comma, v[i] ? v[i] - 1 : 0);
            comma = ",";
        }
    sv_buf_append(b, "]", 1);
}

/* Counts only steps with drafts, as the counters in /metrics do; the histogram has an entry for
 * every possible length. */
static void write_speculative(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch)
{
    int32_t most = c->s->model->info.block_size - 1;
    struct sv_accept a;

    sv_accept_of(ch, &a);
    int64_t n = a.n_steps - a.n_plain;
    a.length[0] -= a.n_plain;
    sv_buf_printf(b, "\"speculative_decoding\":{\"mean_acceptance_length\":");
    sv_json_float(b, n ? 1 + (double)a.n_accepted / (double)n : 0);
    sv_buf_printf(b, ",\"draft_acceptance_rate\":");
    sv_json_float(b, a.n_drafted ? (double)a.n_accepted / (double)a.n_drafted : 0);
    sv_buf_printf(b, ",\"num_draft_tokens\":%lld", (long long)a.n_drafted);
    sv_buf_printf(b,
                  ",\"num_spec_steps\":%lld,\"num_accepted_draft_tokens\":%lld,"
                  "\"num_spec_tokens\":%d,\"acceptance_histogram\":[",
                  (long long)n, (long long)a.n_accepted, most);
    for (int32_t i = 0; i <= (most > a.max ? most : a.max); i++)
        sv_buf_printf(b, i ? ",%lld" : "%lld", (long long)a.length[i]);
    sv_buf_append(b, "]", 1);
    if (c->p.spec == SV_SPEC_DETAILED) {
        write_steps(b, "per_step_accepted", &ch->accept, ch);
        write_steps(b, "per_step_drafted", &ch->widths, ch);
    }
    sv_buf_append(b, "}", 1);
}

/* ,"metrics":{...} of a sequence that has ended. */
void sv_write_spec_metrics(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch)
{
    int64_t n = sv_n_shown_tokens(ch);

    if (c->p.spec == SV_SPEC_NONE)
        return;
    sv_buf_printf(b, ",\"metrics\":{\"time_to_first_token_ms\":");
    sv_json_float(b, (double)(ch->queue_us + ch->prefill_us) / 1e3);
    sv_buf_printf(b, ",\"queue_time_ms\":");
    sv_json_float(b, (double)ch->queue_us / 1e3);
    sv_buf_printf(b, ",\"mean_itl_ms\":");
    sv_json_float(b, n > 1 ? (double)ch->decode_us / 1e3 / (double)(n - 1) : 0);
    if (c->s->model->drafts) {
        sv_buf_append(b, ",", 1);
        write_speculative(b, c, ch);
    }
    sv_buf_append(b, "}", 1);
}

static double rate(int64_t n, int64_t us)
{
    return us > 0 ? (double)n * 1e6 / (double)us : 0;
}

/* ,"timings":{...} with llama-server's names. */
void sv_write_timings(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch)
{
    int64_t n = sv_n_shown_tokens(ch), n_prompt = ch->n_prompt - ch->n_cached;
    struct sv_accept a;

    sv_accept_of(ch, &a);
    sv_buf_printf(b, ",\"timings\":{\"cache_n\":%d,\"prompt_n\":%lld,\"prompt_ms\":", ch->n_cached,
                  (long long)n_prompt);
    sv_json_float(b, (double)ch->prefill_us / 1e3);
    sv_buf_printf(b, ",\"prompt_per_token_ms\":");
    sv_json_float(b, n_prompt > 0 ? (double)ch->prefill_us / 1e3 / (double)n_prompt : 0);
    sv_buf_printf(b, ",\"prompt_per_second\":");
    sv_json_float(b, rate(n_prompt, ch->prefill_us));
    sv_buf_printf(b, ",\"predicted_n\":%lld,\"predicted_ms\":", (long long)n);
    sv_json_float(b, (double)ch->decode_us / 1e3);
    sv_buf_printf(b, ",\"predicted_per_token_ms\":");
    sv_json_float(b, n > 1 ? (double)ch->decode_us / 1e3 / (double)(n - 1) : 0);
    sv_buf_printf(b, ",\"predicted_per_second\":");
    sv_json_float(b, rate(n > 1 ? n - 1 : 0, ch->decode_us));
    if (c->s->model->drafts)
        sv_buf_printf(b, ",\"draft_n\":%lld,\"draft_n_accepted\":%lld", (long long)a.n_drafted,
                      (long long)a.n_accepted);
    sv_buf_append(b, "}", 1);
}

/* Text may come later than its tokens (stop strings, incomplete code points), so the flags of its
 * bytes wait in ch->due until then. */
void sv_take_draft_flags(struct sv_choice *ch, const struct sv_out *o)
{
    for (int32_t i = 0; i < o->n_tokens; i++) {
        size_t before = ch->due.len;
        char flag = i < o->n_drafted;
        sv_detok_push(&ch->detok, o->tokens[i], &ch->due);
        for (size_t k = before; k < ch->due.len; k++)
            sv_buf_append(&ch->due_drafted, &flag, 1);
    }
}

/* ,"draft_flags":[[n_bytes,drafted],...] over the text of a chunk; neighbours with the same flag
 * are joined. */
void sv_write_draft_flags(struct sv_buf *b, struct sv_choice *ch, size_t n_text)
{
    size_t from = 0, n = n_text;

    if (n > ch->due_drafted.len)
        n = ch->due_drafted.len; /* an incomplete code point at the end */
    if (!n)
        return;
    sv_buf_lit(b, ",\"draft_flags\":[");
    while (from < n) {
        size_t to = from;
        while (to < n && ch->due_drafted.data[to] == ch->due_drafted.data[from])
            to++;
        sv_buf_printf(b, "%s[%zu,%s]", from ? "," : "", to - from,
                      ch->due_drafted.data[from] ? "true" : "false");
        from = to;
    }
    sv_buf_append(b, "]", 1);
    ch->due.len -= n;
    memmove(ch->due.data, ch->due.data + n, ch->due.len);
    ch->due_drafted.len -= n;
    memmove(ch->due_drafted.data, ch->due_drafted.data + n, ch->due_drafted.len);
}
