/*
 * llama.c - answers of /completion and /infill in llama-server's own shape, whole and streamed.
 *
 * Called by call.c through sv_dialect_llama and sv_dialect_infill. A stream is an event for each
 * piece of text and a last one with the whole result; there is no [DONE]. Must not: change text.
 */
#include "serve/compat/compat.h"
#include "serve/core/write.h"

#include <string.h>

static void keep(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o)
{
    if (c->p.logprobs && !c->p.discard)
        sv_logprobs_chat(&ch->lp[0], c->s->model->tok, o, c->p.n_top, SV_TOKEN_TEXT_AND_ID);
}

/* ,"completion_probabilities":[...] of the tokens since the last event. */
static void write_probabilities(struct sv_buf *b, struct sv_choice *ch)
{
    if (!ch->lp[0].len)
        return;
    sv_buf_lit(b, ",\"completion_probabilities\":[");
    sv_buf_append(b, ch->lp[0].data, ch->lp[0].len);
    sv_buf_lit(b, "]");
    sv_buf_clear(&ch->lp[0]);
}

/* ---------------------------------------------------------------- what is known at the end */

static const char *stop_type(const struct sv_call *c, const struct sv_choice *ch)
{
    if (ch->finish == SV_FINISH_LENGTH || c->p.discard)
        return "limit";
    if (ch->finish == SV_FINISH_CANCELED)
        return "none";
    return ch->stop_index >= 0 ? "word" : "eos";
}

static void write_number(struct sv_buf *b, const char *name, double v)
{
    sv_buf_printf(b, ",\"%s\":", name);
    sv_json_float(b, v);
}

/* The parameters of a sequence; samplers that only llama-server has are shown as switched off. */
void sv_write_llama_params(struct sv_buf *b, const struct sv_params *p, uint64_t seed)
{
    const struct sv_request *r = &p->r;
    const char *grammar =
        p->constraint.kind == SV_CONSTRAINT_GBNF ? json_string_value(p->constraint.value) : NULL;
    int32_t most = p->discard ? 0 : r->max_tokens && r->max_tokens < INT32_MAX ? r->max_tokens : -1;

    sv_buf_printf(b, "\"n_predict\":%d,\"max_tokens\":%d,\"seed\":%llu", most, most,
                  (unsigned long long)seed);
    write_number(b, "temperature", r->temperature);
    sv_buf_printf(b, ",\"top_k\":%lld", (long long)r->top_k);
    write_number(b, "top_p", r->top_p);
    write_number(b, "min_p", r->min_p);
    write_number(b, "presence_penalty", r->presence_penalty);
    write_number(b, "frequency_penalty", r->frequency_penalty);
    write_number(b, "repetition_penalty", r->repetition_penalty > 0 ? r->repetition_penalty : 1);
    write_number(b, "repeat_penalty", r->repetition_penalty > 0 ? r->repetition_penalty : 1);
    sv_buf_printf(b, ",\"repeat_last_n\":%d", r->repetition_last_n ? r->repetition_last_n : -1);
    sv_buf_lit(b, ",\"grammar\":");
    sv_json_quote(b, grammar ? grammar : "", grammar ? strlen(grammar) : 0);
    sv_buf_lit(
        b, ",\"typical_p\":1,\"top_n_sigma\":-1,\"dynatemp_range\":0,"
           "\"xtc_probability\":0,"
           "\"dry_multiplier\":0,\"mirostat\":0,\"n_keep\":0,\"n_discard\":0,\"min_keep\":0,"
           "\"lora\":[],"
           "\"samplers\":[\"penalties\",\"temperature\",\"top_k\",\"top_p\",\"min_p\"],\"stop\":[");
    for (int32_t i = 0; i < r->n_stop; i++) {
        if (i)
            sv_buf_lit(b, ",");
        sv_json_quote(b, p->stop[i], strlen(p->stop[i]));
    }
    sv_buf_printf(b,
                  "],\"ignore_eos\":%s,\"stream\":%s,\"n_probs\":%d,\"post_sampling_probs\":false,"
                  "\"timings_per_token\":false",
                  r->ignore_eos ? "true" : "false", p->stream ? "true" : "false", p->n_top);
}

static void write_settings(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch)
{
    sv_buf_printf(b, ",\"generation_settings\":{\"n_ctx\":%d,\"speculative\":%s,",
                  c->s->model->info.context, c->s->model->drafts ? "true" : "false");
    sv_write_llama_params(b, &c->p, ch->r.seed);
    sv_buf_lit(b, "}");
}

static void write_prompt(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch)
{
    const struct sv_prompt *p = &c->prompts[ch->prompt];
    struct sv_buf text;

    sv_buf_init(&text);
    sv_tokenizer_decode(c->s->model->tok, p->ids, (size_t)p->n_ids, false, &text);
    b->failed |= text.failed;
    sv_buf_lit(b, ",\"prompt\":");
    sv_json_quote(b, text.data ? text.data : "", text.len);
    sv_buf_fini(&text);
}

static void write_all(struct sv_buf *b, struct sv_call *c, struct sv_choice *ch)
{
    int32_t n_prompt = c->prompts[ch->prompt].n_ids, n = (int32_t)sv_n_shown_tokens(ch);
    bool whole = !c->p.stream && !c->p.discard;
    const char *word =
        ch->finish == SV_FINISH_STOP && ch->stop_index >= 0 ? c->p.stop[ch->stop_index] : "";

    sv_buf_printf(b, "{\"index\":%d,\"content\":", ch->index);
    sv_json_quote(b, ch->text.data ? ch->text.data : "", whole ? ch->text.len : 0);
    sv_buf_lit(b, ",\"tokens\":");
    sv_json_ids(b, (const int32_t *)(const void *)ch->ids.data, whole && c->p.return_ids ? n : 0);
    sv_buf_lit(b, ",\"id_slot\":-1,\"stop\":true,");
    sv_json_string(b, "model", sv_call_model(c));
    sv_buf_printf(b, ",\"tokens_predicted\":%d,\"tokens_evaluated\":%d", n, n_prompt);
    write_settings(b, c, ch);
    write_prompt(b, c, ch);
    sv_buf_printf(b, ",\"has_new_line\":%s,\"truncated\":%s,\"stop_type\":\"%s\",",
                  ch->newline && !c->p.discard ? "true" : "false",
                  ch->finish == SV_FINISH_LENGTH && n_prompt + n >= c->s->model->info.context
                      ? "true"
                      : "false",
                  stop_type(c, ch));
    sv_json_string(b, "stopping_word", word);
    sv_buf_printf(b, ",\"tokens_cached\":%d",
                  n_prompt + n - (n > 0)); /* the last token is in no cache */
    sv_write_timings(b, c, ch);
    if (!c->p.stream)
        write_probabilities(b, ch);
    sv_buf_lit(b, "}");
}

/* ---------------------------------------------------------------- response_fields */

static int add_text(const char *text, size_t n, void *b)
{
    sv_buf_append(b, text, n);
    return 0;
}

/* The members of an object that response_fields names; "a/b" is member b of a, shown under that
 * whole name. */
static void write_chosen(struct sv_buf *b, const struct sv_buf *all, const json_t *names)
{
    struct sv_err err;
    json_t *root = sv_json_parse(all->data, all->len, &err), *out = json_object();

    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i)), *at = name;
        json_t *v = root;
        while (v && at) {
            size_t n = strcspn(at, "/");
            v = json_object_getn(v, at, n);
            at = at[n] ? at + n + 1 : NULL;
        }
        if (v && name)
            json_object_set(out, name, v);
    }
    b->failed |=
        !root || json_dump_callback(out, add_text, b, JSON_COMPACT | JSON_REAL_PRECISION(9)) < 0;
    json_decref(out);
    json_decref(root);
}

static void write_final(struct sv_buf *b, struct sv_call *c, struct sv_choice *ch)
{
    struct sv_buf all;

    if (!json_array_size(c->p.response_fields)) {
        write_all(b, c, ch);
        return;
    }
    sv_buf_init(&all);
    write_all(&all, c, ch);
    b->failed |= all.failed;
    if (!all.failed)
        write_chosen(b, &all, c->p.response_fields);
    sv_buf_fini(&all);
}

/* ---------------------------------------------------------------- streamed and whole */

static void chunk(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o, struct sv_buf *b)
{
    if (!c->p.discard && (o->n_text || o->n_tokens)) {
        sv_sse_begin(b);
        sv_buf_printf(b, "{\"index\":%d,\"content\":", ch->index);
        sv_json_quote(b, o->n_text ? o->text : "", o->n_text);
        sv_buf_lit(b, ",\"tokens\":");
        sv_json_ids(b, o->tokens, o->n_tokens);
        sv_buf_printf(
            b, ",\"stop\":false,\"id_slot\":-1,\"tokens_predicted\":%lld,\"tokens_evaluated\":%d",
            (long long)sv_n_shown_tokens(ch), c->prompts[ch->prompt].n_ids);
        write_probabilities(b, ch);
        sv_buf_lit(b, "}");
        sv_sse_end(b);
    }
    if (o->finish == SV_FINISH_NONE)
        return;
    sv_sse_begin(b);
    write_final(b, c, ch);
    sv_sse_end(b);
}

static void tail(struct sv_call *c, struct sv_buf *b)
{
    (void)c, (void)b;
}

static void body(struct sv_call *c, struct sv_buf *b)
{
    bool list = c->p.batched || c->n_choices > 1;

    if (list)
        sv_buf_lit(b, "[");
    for (int32_t i = 0; i < c->n_choices; i++) {
        if (i)
            sv_buf_lit(b, ",");
        write_final(b, c, &c->choices[i]);
    }
    sv_buf_append(b, list ? "]\n" : "\n", list ? 2 : 1);
}

const struct sv_dialect sv_dialect_llama = {.name = "completion",
                                            .kind = SV_LLAMA,
                                            .is_over = sv_llama_is_over,
                                            .chunk = chunk,
                                            .tail = tail,
                                            .body = body,
                                            .keep = keep};
const struct sv_dialect sv_dialect_infill = {.name = "infill",
                                             .kind = SV_INFILL,
                                             .is_over = sv_llama_is_over,
                                             .chunk = chunk,
                                             .tail = tail,
                                             .body = body,
                                             .keep = keep};
