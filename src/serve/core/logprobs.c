/*
 * logprobs.c - log probabilities in the two shapes of OpenAI's API, and vLLM's prompt_logprobs.
 *
 * Called by the dialects as events arrive. Numbers have enough digits to be read back exactly. Must
 * not: compute; the numbers are the engine's.
 */
#include "serve/core/write.h"

#include <string.h>

/* vLLM's return_tokens_as_token_ids. */
static void id_token(struct sv_buf *b, int32_t id)
{
    sv_buf_lit(b, "\"token_id:");
    sv_json_number(b, id);
    sv_buf_lit(b, "\"");
}

/* ---------------------------------------------------------------- chat */

static void token_bytes(struct sv_buf *b, const struct sv_tokenizer *tok, int32_t id)
{
    size_t n;
    const char *bytes = sv_tokenizer_bytes(tok, id, &n);

    sv_buf_printf(b, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        sv_buf_printf(b, i ? ",%d" : "%d", (unsigned char)bytes[i]);
    sv_buf_append(b, "]", 1);
}

static void one(struct sv_buf *b, const struct sv_tokenizer *tok, int32_t id, float logprob,
                enum sv_token_shape shape)
{
    sv_buf_lit(b, "{");
    if (shape == SV_TOKEN_TEXT_AND_ID)
        sv_buf_printf(b, "\"id\":%d,", id);
    sv_buf_lit(b, "\"token\":");
    if (shape == SV_TOKEN_ID)
        id_token(b, id);
    else
        sv_json_token(b, tok, id);
    sv_buf_printf(b, ",\"logprob\":");
    sv_json_float(b, (double)logprob);
    token_bytes(b, tok, id);
}

/* With requested ids, these are listed in place of the most probable ones: the token itself, then
 * each requested id once. Finds the next one from *k on; false at the end. */
static bool next_requested(const struct sv_logprob *lp, int32_t own, int32_t *k, int32_t *id,
                           float *x)
{
    for (; *k <= lp->n_requested; ++*k) {
        int32_t seen = 0;
        *id = *k ? lp->requested_ids[*k - 1] : own;
        *x = *k ? lp->requested_logprobs[*k - 1] : lp->logprob;
        if (*k && *id == own)
            continue;
        while (seen + 1 < *k && lp->requested_ids[seen] != *id)
            seen++;
        if (seen + 1 >= *k)
            return ++*k;
    }
    return false;
}

static void alternatives(struct sv_buf *b, const struct sv_tokenizer *tok,
                         const struct sv_logprob *lp, int32_t own, int32_t n_top,
                         enum sv_token_shape shape)
{
    bool some = false;
    int32_t id;
    float x;

    for (int32_t k = 0; lp->n_requested && next_requested(lp, own, &k, &id, &x); some = true) {
        if (some)
            sv_buf_append(b, ",", 1);
        one(b, tok, id, x, shape);
        sv_buf_append(b, "}", 1);
    }
    for (int32_t k = 0; !lp->n_requested && k < lp->n_top && k < n_top; k++) {
        if (k) /* prompts may have more alternatives */
            sv_buf_append(b, ",", 1);
        one(b, tok, lp->top_ids[k], lp->top_logprobs[k], shape);
        sv_buf_append(b, "}", 1);
    }
}

void sv_logprobs_chat(struct sv_buf *b, const struct sv_tokenizer *tok, const struct sv_out *o,
                      int32_t n_top, enum sv_token_shape shape)
{
    const char *at = o->logprobs;
    struct sv_logprob lp;

    for (int32_t i = 0; at && i < o->n_tokens; i++) {
        sv_out_logprob(&at, &lp);
        if (b->len)
            sv_buf_append(b, ",", 1);
        one(b, tok, o->tokens[i], lp.logprob, shape);
        sv_buf_printf(b, ",\"top_logprobs\":[");
        alternatives(b, tok, &lp, o->tokens[i], n_top, shape);
        sv_buf_append(b, "]}", 2);
    }
}

/* ---------------------------------------------------------------- legacy */

/* The number of characters (code points) in a token's bytes. */
static size_t characters(const struct sv_tokenizer *tok, int32_t id)
{
    size_t n, count = 0;
    const char *bytes = sv_tokenizer_bytes(tok, id, &n);

    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    return count;
}

/* A token that is no text by itself is written bytes:\\xe2\\x80, as OpenAI does, so that the names
 * of alternatives differ. */
static void legacy_token(struct sv_buf *b, const struct sv_tokenizer *tok, int32_t id, bool as_id)
{
    size_t n, start = b->len;
    const char *bytes = sv_tokenizer_bytes(tok, id, &n);

    if (as_id) {
        id_token(b, id);
        return;
    }
    sv_json_quote(b, bytes ? bytes : "", n);
    if (b->failed || !strstr(b->data + start, "\xef\xbf\xbd") || (n == 3 && bytes[0] == '\xef'))
        return;
    b->len = start;
    sv_buf_printf(b, "\"bytes:");
    for (size_t i = 0; i < n; i++)
        sv_buf_printf(b, "\\\\x%02x", (unsigned char)bytes[i]);
    sv_buf_append(b, "\"", 1);
}

/* Appends "token":number to an object that begins at start. */
static void legacy_pair(struct sv_buf *b, size_t start, const struct sv_tokenizer *tok, int32_t id,
                        float x, bool as_id)
{
    if (b->len > start)
        sv_buf_append(b, ",", 1);
    legacy_token(b, tok, id, as_id);
    sv_buf_append(b, ":", 1);
    sv_json_float(b, (double)x);
}

/* Appends to the lists tokens, token_logprobs, top_logprobs and text_offset. The token itself is
 * always among its alternatives. */
void sv_logprobs_legacy(struct sv_choice *ch, const struct sv_tokenizer *tok, int32_t id,
                        const struct sv_logprob *lp, bool first_of_prompt)
{
    const char *comma = ch->lp[0].len ? "," : "";
    bool own = false, as_id = ch->call->p.ids_as_tokens;
    int32_t requested;
    float x;

    sv_buf_printf(&ch->lp[0], "%s", comma);
    legacy_token(&ch->lp[0], tok, id, as_id);
    sv_buf_printf(&ch->lp[3], "%s%zu", comma, ch->text_offset);
    ch->text_offset += characters(tok, id);
    if (first_of_prompt) {
        sv_buf_printf(&ch->lp[1], "%snull", comma);
        sv_buf_printf(&ch->lp[2], "%snull", comma);
        return;
    }
    sv_buf_printf(&ch->lp[1], "%s", comma);
    sv_json_float(&ch->lp[1], (double)lp->logprob);
    sv_buf_printf(&ch->lp[2], "%s{", comma);
    const size_t start = ch->lp[2].len;
    int32_t n_top = lp->n_top < ch->call->p.n_top ? lp->n_top : ch->call->p.n_top;
    for (int32_t k = 0; lp->n_requested && next_requested(lp, id, &k, &requested, &x);)
        legacy_pair(&ch->lp[2], start, tok, requested, x, as_id);
    for (int32_t k = 0; !lp->n_requested && k < n_top; k++) {
        own = own || lp->top_ids[k] == id;
        legacy_pair(&ch->lp[2], start, tok, lp->top_ids[k], lp->top_logprobs[k], as_id);
    }
    if (!own && !lp->n_requested)
        legacy_pair(&ch->lp[2], start, tok, id, lp->logprob, as_id);
    sv_buf_append(&ch->lp[2], "}", 1);
}

void sv_logprobs_legacy_write(struct sv_buf *b, const struct sv_choice *ch)
{
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};

    sv_buf_append(b, "{", 1);
    for (int i = 0; i < 4; i++) {
        sv_buf_printf(b, "%s\"%s\":[", i ? "," : "", names[i]);
        sv_buf_append(b, ch->lp[i].data, ch->lp[i].len);
        sv_buf_append(b, "]", 1);
    }
    sv_buf_append(b, "}", 1);
}

/* ---------------------------------------------------------------- vLLM's prompt_logprobs */

static void prompt_entry(struct sv_buf *b, const struct sv_tokenizer *tok, int32_t id,
                         float logprob, int32_t rank)
{
    sv_buf_printf(b, "\"%d\":{\"logprob\":", id);
    sv_json_float(b, (double)logprob);
    sv_buf_printf(b, ",\"rank\":%d,\"decoded_token\":", rank);
    sv_json_token(b, tok, id);
    sv_buf_append(b, "}", 1);
}

/* A list: null for the first token, then {"id": {logprob, rank, decoded_token}} with the prompt's
 * token first. */
void sv_logprobs_prompt(struct sv_choice *ch, const struct sv_tokenizer *tok,
                        const struct sv_out *o)
{
    const struct sv_prompt *p = &ch->call->prompts[ch->prompt];
    const char *at = o->prompt_logprobs;
    struct sv_buf *b = &ch->prompt_lp;
    struct sv_logprob lp;

    for (int32_t i = 0; i < o->n_prompt_logprobs; i++) {
        sv_out_logprob(&at, &lp);
        if (!i) {
            sv_buf_printf(b, "null");
            continue;
        }
        sv_buf_printf(b, ",{");
        prompt_entry(b, tok, p->ids[i], lp.logprob, lp.rank);
        for (int32_t k = 0; k < lp.n_top && k < ch->call->p.n_prompt_top; k++)
            if (lp.top_ids[k] != p->ids[i]) {
                sv_buf_append(b, ",", 1);
                prompt_entry(b, tok, lp.top_ids[k], lp.top_logprobs[k], k + 1);
            }
        sv_buf_append(b, "}", 1);
    }
}
