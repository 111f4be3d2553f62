/*
 * seq.c - one request: its tokens, stop conditions, text and events.
 *
 * Called by engine.c (new, deliver, free) and step.c (append, finish). All memory of a sequence is
 * taken in sv_seq_new; append runs inside the step and must not allocate. Must not know slots,
 * pages or batches.
 */
#include "engine/seq.h"

#include "engine/images.h"

#include <string.h>

static int take_prompt(struct sv_seq *q, const struct sv_request *r,
                       const struct sv_seq_limits *lim, struct sv_ids *ids, struct sv_err *err)
{
    if (r->prompt_ids) {
        q->n_prompt = r->n_prompt_ids;
    } else {
        if (!r->prompt)
            return sv_fail(err, SV_EINVAL, -1, "a prompt or prompt token ids are needed");
        if (!lim->tok)
            return sv_fail(err, SV_EINVAL, -1,
                           "the model directory has no tokenizer.json: give token ids");
        size_t n = r->prompt_bytes ? r->prompt_bytes : strlen(r->prompt);
        int rc = sv_tokenizer_encode(lim->tok, lim->scratch, r->prompt, n,
                                     (r->no_special ? 0 : SV_ENC_SPECIAL) |
                                         (r->no_add_special ? 0 : SV_ENC_ADD_SPECIAL),
                                     ids, err);
        if (rc)
            return rc;
        if (ids->n > INT32_MAX / 2)
            return sv_fail(err, SV_EINVAL, -1, "the prompt has %zu tokens", ids->n);
        q->n_prompt = (int32_t)ids->n;
    }
    if (q->n_prompt < 1)
        return sv_fail(err, SV_EINVAL, -1, "the prompt is empty");
    /* Also its text: a tokenizer may have added tokens that the model has no embedding for. */
    const int32_t *id = r->prompt_ids ? r->prompt_ids : ids->id;
    for (int32_t i = 0; i < q->n_prompt; i++) {
        if (id[i] < 0 || id[i] >= lim->cfg->vocab_size)
            return sv_fail(err, SV_EINVAL, i, "prompt token %d at index %d is outside [0, %d)",
                           id[i], i, lim->cfg->vocab_size);
        if (lim->cfg->media_token && id[i] == lim->cfg->media_token)
            return sv_fail(
                err, SV_EUNSUPPORTED, i,
                "prompt token %d at index %d is 'media_placeholder_token_id', which stands "
                "for an image: images are not supported for %s",
                id[i], i, sv_arch_name(lim->cfg->arch));
    }
    int rc = q->images ? sv_images_place(q->images, id, &q->n_prompt, err) : SV_OK;
    if (rc)
        return rc;
    if (q->n_prompt >= lim->context)
        return sv_fail(err, SV_EINVAL, -1,
                       "the prompt has %d tokens; the context of %d leaves no room for an answer",
                       q->n_prompt, lim->context);
    return SV_OK;
}

static int take_tokens(struct sv_seq *q, const struct sv_request *r,
                       const struct sv_seq_limits *lim, struct sv_err *err)
{
    struct sv_ids ids = {0};
    int rc = take_prompt(q, r, lim, &ids, err);
    if (!rc && r->max_tokens < 0)
        rc = sv_fail(err, SV_EINVAL, -1, "max_tokens must not be negative");
    if (!rc) {
        int32_t room = lim->context - q->n_prompt;
        int32_t max_new = r->max_tokens && r->max_tokens < room ? r->max_tokens : room;
        q->cap_tokens = q->n_prompt + max_new;
        q->tokens = sv_arena_alloc(&q->arena, (size_t)q->cap_tokens * sizeof *q->tokens);
        q->accept_lengths = sv_arena_alloc(&q->arena, (size_t)max_new * sizeof *q->accept_lengths);
        q->widths = sv_arena_alloc(&q->arena, (size_t)max_new * sizeof *q->widths);
        if (q->images)
            q->keys = sv_arena_alloc(&q->arena, (size_t)q->cap_tokens * sizeof *q->keys);
        if (!q->tokens || !q->accept_lengths || !q->widths || (q->images && !q->keys))
            rc = sv_fail(err, SV_ENOMEM, -1, "request of %d tokens", q->cap_tokens);
    }
    if (!rc) {
        const int32_t *id = r->prompt_ids ? r->prompt_ids : ids.id;
        if (q->images)
            sv_images_expand(q->images, id, q->n_prompt, q->tokens, q->keys);
        else
            memcpy(q->tokens, id, (size_t)q->n_prompt * sizeof *q->tokens);
        q->n_tokens = q->n_prompt;
        q->n_delivered = q->n_prompt;
    }
    sv_ids_fini(&ids);
    return rc;
}

static int check_stop_ids(const struct sv_request *r, const struct sv_seq_limits *lim,
                          struct sv_err *err)
{
    if (r->n_stop_ids < 0 || (r->n_stop_ids && !r->stop_ids))
        return sv_fail(err, SV_EINVAL, -1, "stop_ids are needed for n_stop_ids %d", r->n_stop_ids);
    if (r->n_stop < 0 || (r->n_stop && !r->stop))
        return sv_fail(err, SV_EINVAL, -1, "stop is needed for n_stop %d", r->n_stop);
    for (int32_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] < 0 || r->stop_ids[i] >= lim->cfg->vocab_size)
            return sv_fail(err, SV_EINVAL, i, "stop_ids[%d]: token %d is outside [0, %d)", i,
                           r->stop_ids[i], lim->cfg->vocab_size);
    return SV_OK;
}

static int take_stops(struct sv_seq *q, const struct sv_request *r, const struct sv_seq_limits *lim,
                      struct sv_err *err)
{
    int rc = check_stop_ids(r, lim, err);
    if (rc)
        return rc;
    q->n_stop_ids = r->n_stop_ids;
    q->include_stop = r->include_stop;
    q->stop_ids = sv_arena_alloc(&q->arena, (size_t)r->n_stop_ids * sizeof *q->stop_ids);
    q->n_stop = r->n_stop;
    q->stop = sv_arena_alloc(&q->arena, (size_t)r->n_stop * sizeof *q->stop);
    q->stop_len = sv_arena_alloc(&q->arena, (size_t)r->n_stop * sizeof *q->stop_len);
    if (!q->stop_ids || !q->stop || !q->stop_len)
        return sv_fail(err, SV_ENOMEM, -1, "stop conditions");
    if (r->n_stop_ids)
        memcpy(q->stop_ids, r->stop_ids, (size_t)r->n_stop_ids * sizeof *q->stop_ids);
    if (r->n_stop && !lim->tok)
        return sv_fail(err, SV_EINVAL, -1, "stop strings need a tokenizer");
    for (int32_t i = 0; i < r->n_stop; i++) {
        if (!r->stop[i] || !r->stop[i][0])
            return sv_fail(err, SV_EINVAL, i, "stop string %d is empty", i);
        q->stop[i] = sv_arena_strdup(&q->arena, r->stop[i]);
        if (!q->stop[i])
            return sv_fail(err, SV_ENOMEM, -1, "stop strings");
        q->stop_len[i] = strlen(q->stop[i]);
        if (q->stop_len[i] > q->max_stop)
            q->max_stop = q->stop_len[i];
    }
    if (r->stop_search && !lim->tok)
        return sv_fail(err, SV_EINVAL, -1, "stop_search needs a tokenizer");
    if (r->stop_search) {
        q->search = sv_search_ref(r->stop_search);
        q->search_at =
            sv_arena_alloc(&q->arena, (size_t)sv_search_count(q->search) * sizeof *q->search_at);
        if (!q->search_at)
            return sv_fail(err, SV_ENOMEM, -1, "stop conditions");
    }
    if (!lim->tok)
        return SV_OK;
    /* Room for the tokens of two steps, which a call may read, bytes held before them, each of
     * which becomes three where they are no UTF-8, and what a stop string may hold back. */
    sv_detok_init(&q->detok, lim->tok, true);
    const size_t n_tokens = 2 * (size_t)q->width + 1;
    return sv_buf_reserve(&q->text, 3 * n_tokens * lim->max_token_bytes + q->max_stop + 16)
               ? sv_fail(err, SV_ENOMEM, -1, "text buffer")
               : SV_OK;
}

/* Copies into the request's arena; n_bytes may be 0. */
static int keep(struct sv_seq *q, void *dst, const void *src, size_t n_bytes, struct sv_err *err)
{
    void *p = sv_arena_alloc(&q->arena, n_bytes);
    if (!p)
        return sv_fail(err, SV_ENOMEM, -1, "logit rules");
    if (n_bytes)
        memcpy(p, src, n_bytes);
    memcpy(dst, &p, sizeof p);
    return SV_OK;
}

/* Room for the log probabilities of a prompt, or of the tokens that wait for delivery. */
static int take_logprob_room(struct sv_seq *q, int32_t n, struct sv_logprob_row **row,
                             struct sv_logprob **lp, float **requested, struct sv_err *err)
{
    *row = sv_arena_alloc(&q->arena, (size_t)n * sizeof **row);
    *lp = sv_arena_alloc(&q->arena, (size_t)n * sizeof **lp);
    *requested = sv_arena_alloc(&q->arena, (size_t)n * (size_t)q->n_requested * sizeof **requested);
    return *row && *lp && *requested
               ? SV_OK
               : sv_fail(err, SV_ENOMEM, -1, "log probabilities of %d tokens", n);
}

/* Special tokens that the text keeps. */
static int take_shown(struct sv_seq *q, const struct sv_request *r, struct sv_err *err)
{
    if (r->n_shown_ids < 0 || r->n_shown_ids > SV_MAX_SHOWN_IDS ||
        (r->n_shown_ids && !r->shown_ids))
        return sv_fail(err, SV_EINVAL, -1, "shown_ids: %d are not 0 to %d", r->n_shown_ids,
                       SV_MAX_SHOWN_IDS);
    q->detok.skip_special = !r->show_special;
    q->detok.n_shown = r->n_shown_ids;
    return keep(q, &q->detok.shown, r->shown_ids, (size_t)r->n_shown_ids * sizeof(int32_t), err);
}

/* Takes the request's grammar, or makes one from kind and text. */
static int take_grammar(struct sv_seq *q, const struct sv_request *r,
                        const struct sv_seq_limits *lim, struct sv_err *err)
{
    struct sv_grammar *g = NULL;
    int rc = SV_OK;
    if (r->grammar)
        g = sv_grammar_ref(r->grammar);
    else if (r->grammar_kind)
        rc = sv_engine_grammar(&g, r->grammar_kind, r->grammar_text, r->grammar_bytes, err)
                 ? sv_err_prefix(err, "grammar_text")
                 : SV_OK;
    if (!rc && g && lim->cfg->n_eos < 1)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "grammar: the model's configuration names no end token");
    if (!rc && g)
        rc = sv_matcher_open(&q->matcher, g, lim->vocab, err);
    sv_grammar_unref(g);
    return rc;
}

/* Called after tokens, stop conditions and grammar are set: min_tokens forbids the tokens that
 * would end the answer. */
static int take_rules(struct sv_seq *q, const struct sv_request *r, const struct sv_seq_limits *lim,
                      struct sv_err *err)
{
    int32_t ban[SV_MAX_STOP_IDS + SV_MAX_BAN], n_ban = 0;
    for (int32_t i = 0; i < lim->cfg->n_eos && (!q->ignore_eos || q->matcher); i++)
        ban[n_ban++] = lim->cfg->eos_ids[i];
    q->n_ban_ends = n_ban;
    for (int32_t i = 0; i < q->n_stop_ids && i < SV_MAX_BAN; i++)
        ban[n_ban++] = q->stop_ids[i];
    const int32_t max_new = q->cap_tokens - q->n_prompt;
    if (r->max_tokens && r->min_tokens > r->max_tokens)
        return sv_fail(err, SV_EINVAL, -1, "min_tokens %d is above max_tokens %d", r->min_tokens,
                       r->max_tokens);
    const struct sv_end_ban ends = {.ids = ban,
                                    .n = q->n_stop_ids > SV_MAX_BAN ? q->n_stop_ids : n_ban,
                                    .min_tokens =
                                        r->min_tokens < max_new ? r->min_tokens : max_new};
    int rc = sv_rules_check(r, &ends, lim->cfg->vocab_size, err);
    if (rc)
        return rc;
    q->min_tokens = ends.min_tokens;
    q->rules = sv_rules_pack(r, &ends, q->n_prompt, lim->cfg->vocab_size);
    q->n_ban = n_ban;
    q->wants_logprobs = r->logprobs;
    q->wants_prompt_logits = r->prompt_logprobs;
    q->needs_logits = !sv_sample_is_greedy(&q->sampling) || sv_rules_change_logits(&q->rules) ||
                      r->logprobs || q->matcher;
    rc = keep(q, &q->bias_ids, r->bias_ids, (size_t)r->n_bias * sizeof *r->bias_ids, err);
    if (!rc)
        rc = keep(q, &q->bias, r->bias, (size_t)r->n_bias * sizeof *r->bias, err);
    if (!rc)
        rc = keep(q, &q->ban_ids, ban, (size_t)n_ban * sizeof *ban, err);
    q->n_listed = r->n_bad_ids + r->n_allowed_ids;
    q->listed = sv_arena_alloc(&q->arena, (size_t)q->n_listed * sizeof *q->listed);
    if (!rc && !q->listed)
        rc = sv_fail(err, SV_ENOMEM, -1, "logit rules");
    if (!rc)
        sv_rules_pack_lists(r, q->listed);
    q->n_requested = r->n_logprob_token_ids;
    if (!rc)
        rc = keep(q, &q->requested_ids, r->logprob_token_ids,
                  (size_t)r->n_logprob_token_ids * sizeof *r->logprob_token_ids, err);
    if (!rc && r->logprobs)
        rc = take_logprob_room(q, SV_LOGPROBS_HELD, &q->lp_row, &q->lp, &q->requested_lp, err);
    if (!rc && r->prompt_logprobs)
        rc = take_logprob_room(q, q->n_prompt, &q->prompt_lp_row, &q->prompt_lp,
                               &q->prompt_requested_lp, err);
    return rc;
}

int sv_seq_new(struct sv_seq **seq, uint64_t id, const struct sv_request *r,
               const struct sv_seq_limits *lim, struct sv_images *images, struct sv_err *err)
{
    *seq = NULL;
    int rc = sv_sample_check(r, err);
    if (!rc && (r->width < 0 || r->width > lim->width))
        rc = sv_fail(err, SV_EINVAL, -1, "width must be in [0, %d], not %d", lim->width, r->width);
    struct sv_seq *q = rc ? NULL : sv_calloc(1, sizeof *q);
    if (!rc && !q)
        rc = sv_fail(err, SV_ENOMEM, -1, "request");
    if (rc) {
        sv_images_free(images);
        return rc;
    }
    q->images = images;
    sv_arena_init(&q->arena);
    sv_buf_init(&q->text);
    q->id = id;
    q->slot = -1;
    q->stop_id = q->stop_index = -1;
    q->width = r->width ? r->width : lim->width;
    q->fixed_width = r->width > 0;
    q->sampling = sv_sample_pack(r, lim->cfg->vocab_size);
    q->ignore_eos = r->ignore_eos;
    memcpy(q->cache_salt, r->cache_salt, sizeof q->cache_salt);
    q->on_event = r->on_event;
    q->user = r->user;
    q->submit_us = sv_clock_us();
    rc = take_tokens(q, r, lim, err);
    if (!rc)
        rc = take_stops(q, r, lim, err);
    if (!rc)
        rc = take_shown(q, r, err);
    if (!rc)
        rc = take_grammar(q, r, lim, err);
    if (!rc)
        rc = take_rules(q, r, lim, err);
    if (rc) {
        sv_seq_free(q);
        return rc;
    }
    *seq = q;
    return SV_OK;
}

void sv_seq_free(struct sv_seq *q)
{
    if (!q)
        return;
    sv_images_free(q->images);
    sv_matcher_close(q->matcher);
    sv_search_unref(q->search);
    sv_buf_fini(&q->text);
    sv_arena_fini(&q->arena);
    sv_free(q);
}

/* The offset of the first stop string that ends in the new bytes, or -1; *which: its index, the
 * lowest of those that begin there. old_len: bytes searched before. */
static int64_t find_stop(const struct sv_seq *q, size_t old_len, int32_t *which)
{
    int64_t best = -1;
    for (int32_t i = 0; i < q->n_stop; i++) {
        size_t n = q->stop_len[i];
        size_t from = old_len >= n ? old_len - n + 1 : 0;
        for (size_t at = from; at + n <= q->text.len; at++) {
            if (memcmp(q->text.data + at, q->stop[i], n))
                continue;
            if (best < 0 || (int64_t)at < best) {
                best = (int64_t)at;
                *which = i;
            }
            break;
        }
    }
    return best;
}

/* Bytes at the end of the text that may be the start of a stop string. */
static size_t held_back(const struct sv_seq *q)
{
    size_t k = q->max_stop ? q->max_stop - 1 : 0;
    if (k > q->text.len)
        k = q->text.len;
    for (; k > 0; k--)
        for (int32_t i = 0; i < q->n_stop; i++)
            if (q->stop_len[i] > k && !memcmp(q->text.data + q->text.len - k, q->stop[i], k))
                return k;
    return 0;
}

static bool is_stop_id(const struct sv_seq *q, int32_t token, const struct sv_config *cfg)
{
    for (int32_t i = 0; i < cfg->n_eos && !q->ignore_eos; i++)
        if (cfg->eos_ids[i] == token)
            return true;
    for (int32_t i = 0; i < q->n_stop_ids; i++)
        if (q->stop_ids[i] == token)
            return true;
    return false;
}

/* Advances the matcher by the token. True: the token ends the sequence. */
static bool follow_grammar(struct sv_seq *q, int32_t token)
{
    if (sv_matcher_advance(q->matcher, token)) {
        sv_matcher_settle(q->matcher);
        q->stop_id = sv_matcher_ended(q->matcher) ? token : -1;
        if (q->stop_id >= 0)
            sv_seq_finish(q, SV_FINISH_STOP, NULL);
        return q->stop_id >= 0;
    }
    const char *why = sv_matcher_failure(q->matcher);
    sv_seq_finish(q, SV_FINISH_ERROR,
                  why ? why : "the model allows no token that the grammar does");
    return true;
}

/* Appends the token's text. True: it ends the sequence, if may_end. stop_regex is searched after
 * each token in the whole text so far; the match stays in the text. */
static bool append_text(struct sv_seq *q, int32_t token, bool may_end)
{
    const size_t old_len = q->text.len;
    int32_t which = -1, found = -1;
    sv_detok_push(&q->detok, token, &q->text);
    const int64_t at = may_end ? find_stop(q, old_len, &which) : -1;
    if (q->search)
        found =
            sv_search_next(q->search, q->search_at, q->text.data + old_len, q->text.len - old_len);
    q->n_text_ready = q->text.len - held_back(q);
    if (at < 0 && (found < 0 || !may_end))
        return false;
    if (at >= 0)
        q->text.len = (size_t)at + (q->include_stop ? q->stop_len[which] : 0);
    q->detok.n_held = 0; /* nothing follows it */
    q->stop_index = at >= 0 ? which : q->n_stop + found;
    sv_seq_finish(q, SV_FINISH_STOP, NULL);
    return true;
}

bool sv_seq_append(struct sv_seq *q, int32_t token, const struct sv_config *cfg)
{
    SV_REQUIRE(q->n_tokens < q->cap_tokens && q->state != SV_SEQ_FINISHED);
    const int32_t n_before = q->n_tokens - q->n_prompt;
    if (q->keys)
        q->keys[q->n_tokens] = token;
    q->tokens[q->n_tokens++] = token;
    q->wants_prompt_logits = false;
    if (q->matcher && follow_grammar(q, token))
        return true;
    if (n_before >= q->min_tokens && is_stop_id(q, token, cfg)) {
        q->stop_id = token;
        sv_seq_finish(q, SV_FINISH_STOP, NULL);
        return true;
    }
    if (q->detok.tok && append_text(q, token, n_before + 1 >= q->min_tokens))
        return true;
    if (q->n_tokens == q->cap_tokens) {
        sv_seq_finish(q, SV_FINISH_LENGTH, NULL);
        return true;
    }
    return false;
}

static void fill_logprob(const struct sv_seq *q, struct sv_logprob *lp, struct sv_logprob_row *kept,
                         float *requested_lp, const struct sv_logprob_row *row,
                         const struct sv_logprob_row *requested, int32_t ld)
{
    *kept = *row;
    for (int32_t k = 0; k < q->n_requested; k++)
        requested_lp[k] = requested[(size_t)k * (size_t)ld].logprob;
    *lp = (struct sv_logprob){.logprob = kept->logprob,
                              .rank = kept->rank,
                              .n_top = kept->n_top,
                              .top_ids = kept->top_id,
                              .top_logprobs = kept->top_logprob,
                              .n_requested = q->n_requested,
                              .requested_ids = q->requested_ids,
                              .requested_logprobs = requested_lp};
}

void sv_seq_take_logprob(struct sv_seq *q, const struct sv_logprob_row *row,
                         const struct sv_logprob_row *requested, int32_t ld)
{
    const int32_t n = q->n_lp++;
    SV_REQUIRE(n < SV_LOGPROBS_HELD);
    fill_logprob(q, &q->lp[n], &q->lp_row[n], q->requested_lp + (size_t)n * (size_t)q->n_requested,
                 row, requested, ld);
}

void sv_seq_take_prompt_logprob(struct sv_seq *q, int32_t index, const struct sv_logprob_row *row,
                                const struct sv_logprob_row *requested, int32_t ld)
{
    SV_REQUIRE(index > 0 && index < q->n_prompt);
    fill_logprob(q, &q->prompt_lp[index], &q->prompt_lp_row[index],
                 q->prompt_requested_lp + (size_t)index * (size_t)q->n_requested, row, requested,
                 ld);
}

void sv_seq_finish(struct sv_seq *q, enum sv_finish_reason reason, const char *message)
{
    q->state = SV_SEQ_FINISHED;
    q->finish = reason;
    q->message = message;
    q->end_us = sv_clock_us();
    if (q->detok.tok)
        sv_detok_end(&q->detok, &q->text);
    q->n_text_ready = q->text.len;
}

void sv_seq_deliver(struct sv_seq *q)
{
    int32_t n = q->n_tokens - q->n_delivered;
    if (!n && q->state != SV_SEQ_FINISHED)
        return;
    SV_REQUIRE(!q->wants_logprobs || q->n_lp == n);
    bool first = n > 0 && q->n_delivered == q->n_prompt;
    const struct sv_event ev = {.request = q->id,
                                .tokens = q->tokens + q->n_delivered,
                                .n_tokens = n,
                                .n_drafted = q->n_drafted_new,
                                .logprobs = n ? q->lp : NULL,
                                .prompt_logprobs = first ? q->prompt_lp : NULL,
                                .text = q->text.data ? q->text.data : "",
                                .n_bytes = q->n_text_ready,
                                .finish = q->finish,
                                .message = q->message,
                                .stop_id = q->stop_id,
                                .stop_index = q->stop_index};
    if (q->on_event)
        q->on_event(q->user, &ev);
    if (q->n_text_ready) {
        q->text.len -= q->n_text_ready;
        memmove(q->text.data, q->text.data + q->n_text_ready, q->text.len);
        q->n_text_ready = 0;
    }
    q->n_delivered = q->n_tokens;
    q->n_drafted_new = 0;
    q->n_lp = 0;
}
