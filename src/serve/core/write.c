/*
 * write.c - small pieces of answers: numbers, tokens, events of a stream, usage, stop reasons.
 *
 * Called by the dialects. Must not: allocate but in the buffer that is written to.
 */
#include "serve/core/deltas.h"
#include "serve/core/write.h"

#include <string.h>

/* Like printf("%lld"), which would take most of the time of a token's chunk. */
void sv_json_number(struct sv_buf *b, int64_t v)
{
    char digits[24], *at = digits + sizeof digits;
    uint64_t n = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;

    do
        *--at = (char)('0' + n % 10);
    while (n /= 10);
    if (v < 0)
        *--at = '-';
    sv_buf_append(b, at, (size_t)(digits + sizeof digits - at));
}

void sv_json_float(struct sv_buf *b, double v)
{
    if (!(v > -1e300 && v < 1e300))
        v = v > 0 ? 9999 : -9999; /* OpenAI's value for a probability of 0 */
    sv_buf_printf(b, "%.9g", v);
}

void sv_json_ids(struct sv_buf *b, const int32_t *ids, int32_t n)
{
    sv_buf_lit(b, "[");
    for (int32_t i = 0; i < n; i++) {
        if (i)
            sv_buf_lit(b, ",");
        sv_json_number(b, ids[i]);
    }
    sv_buf_lit(b, "]");
}

void sv_json_tree(struct sv_buf *b, const json_t *v)
{
    size_t n = json_dumpb(v, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);

    if (!n || sv_buf_reserve(b, n)) {
        b->failed = true;
        return;
    }
    b->failed = json_dumpb(v, b->data + b->len, n, JSON_COMPACT | JSON_ENCODE_ANY) != n;
    b->len += b->failed ? 0 : n;
    b->data[b->len] = 0;
}

void sv_json_string(struct sv_buf *b, const char *key, const char *value)
{
    sv_buf_printf(b, "\"%s\":", key);
    sv_json_quote(b, value, strlen(value));
}

void sv_json_token(struct sv_buf *b, const struct sv_tokenizer *tok, int32_t id)
{
    size_t n;
    const char *bytes = sv_tokenizer_bytes(tok, id, &n);
    sv_json_quote(b, bytes ? bytes : "", n);
}

const char *sv_finish_json(enum sv_finish_reason f)
{
    switch (f) {
    case SV_FINISH_STOP:
        return "\"stop\"";
    case SV_FINISH_LENGTH:
        return "\"length\"";
    case SV_FINISH_NONE:
        return "null";
    default:
        return "\"abort\"";
    }
}

void sv_sse_begin(struct sv_buf *b)
{
    sv_buf_append(b, "data: ", 6);
}

void sv_sse_begin_named(struct sv_buf *b, const char *event)
{
    sv_buf_lit(b, "event: ");
    sv_buf_append(b, event, strlen(event));
    sv_buf_lit(b, "\n");
    sv_sse_begin(b);
}

void sv_sse_end(struct sv_buf *b)
{
    sv_buf_append(b, "\n\n", 2);
}

void sv_sse_done(struct sv_buf *b)
{
    static const char done[] = "data: [DONE]\n\n";
    sv_buf_append(b, done, sizeof done - 1);
}

int64_t sv_n_shown_tokens(const struct sv_choice *ch)
{
    return sv_call_params(ch->call, ch)->discard ? 0 : (int64_t)(ch->ids.len / sizeof(int32_t));
}

/* A prompt counts once, however many choices it has. */
void sv_write_usage(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *one)
{
    int64_t n_prompt = 0, n_cached = 0, n_out = 0, n_accepted = 0, n_drafted = 0;
    int64_t n_reasoning = 0;
    bool thinks = c->p.think_format != SV_THINK_NONE;

    for (int32_t i = 0; i < c->n_choices; i++) {
        struct sv_choice *ch = &c->choices[i];
        struct sv_accept a;
        if (one && ch != one)
            continue;
        if (one || ch->index % c->p.n == 0) {
            n_prompt += sv_prompt_tokens(&c->prompts[ch->prompt]);
            n_cached += ch->n_cached;
        }
        n_out += sv_n_shown_tokens(ch);
        sv_accept_of(ch, &a);
        n_accepted += a.n_accepted;
        n_drafted += a.n_drafted;
        n_reasoning += thinks ? sv_deltas_n_reasoning_tokens(ch) : 0;
    }
    sv_buf_printf(
        b,
        "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
        "\"prompt_tokens_details\":{\"cached_tokens\":%lld}",
        (long long)n_prompt, (long long)n_out, (long long)(n_prompt + n_out), (long long)n_cached);
    if (n_drafted > 0 || thinks)
        sv_buf_lit(b, ",\"completion_tokens_details\":{");
    if (thinks)
        sv_buf_printf(b, "\"reasoning_tokens\":%lld%s", (long long)n_reasoning,
                      n_drafted > 0 ? "," : "}");
    if (n_drafted > 0)
        sv_buf_printf(b,
                      "\"accepted_prediction_tokens\":%lld,"
                      "\"rejected_prediction_tokens\":%lld}",
                      (long long)n_accepted, (long long)(n_drafted - n_accepted));
    sv_buf_append(b, "}", 1);
}

void sv_write_chunk_usage(struct sv_buf *b, const struct sv_call *c)
{
    if (!c->p.include_usage)
        return;
    if (c->p.continuous_usage) {
        sv_buf_lit(b, ",");
        sv_write_usage(b, c, NULL);
    } else {
        sv_buf_lit(b, ",\"usage\":null");
    }
}

const char *sv_stop_by_index(const struct sv_params *p, int32_t index)
{
    if (index < 0 || index >= p->r.n_stop + p->n_stop_regex)
        return NULL;
    return index < p->r.n_stop ? p->stop[index] : p->stop_regex[index - p->r.n_stop];
}

const char *sv_stop_text(const struct sv_call *c, const struct sv_choice *ch)
{
    return ch->finish == SV_FINISH_STOP ? sv_stop_by_index(&c->p, ch->stop_index) : NULL;
}

static bool is_own_stop(const struct sv_call *c, int32_t id)
{
    for (int32_t i = 0; i < c->p.r.n_stop_ids; i++)
        if (c->p.stop_ids[i] == id)
            return true;
    return false;
}

static void write_stop(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch,
                       bool any_id)
{
    const char *s = sv_stop_text(c, ch);

    if (s)
        sv_json_quote(b, s, strlen(s));
    else if (ch->finish == SV_FINISH_STOP && ch->stop_id >= 0 &&
             (any_id || is_own_stop(c, ch->stop_id)))
        sv_json_number(b, ch->stop_id);
    else
        sv_buf_lit(b, "null");
}

void sv_write_stop_reason(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch)
{
    sv_buf_lit(b, ",\"stop_reason\":");
    write_stop(b, c, ch, false);
    sv_buf_lit(b, ",\"matched_stop\":");
    write_stop(b, c, ch, true);
}
