/*
 * token_lists.c - lists of tokens in a request: bad_words and allowed_token_ids, ids whose log
 * probabilities are reported, expressions that end the answer.
 *
 * Called by call.c when a body is read, on any thread. A bad word is excluded as it is written and,
 * within a text, after a space, as in vLLM. Must not: know what a token means.
 */
#include "serve/core/token_lists.h"

#include "grammar/grammar.h"

#include <string.h>

struct taker {
    const struct sv_serve *s;
    struct sv_enc_scratch *scratch;
    struct sv_ids ids; /* the words, each ended by -1; then the allowed ids */
};

static int push(struct sv_ids *ids, int32_t id, struct sv_api_err *e)
{
    return sv_ids_append(ids, &id, 1) ? sv_api_no_memory(e) : 0;
}

/* Adds the word with or without a space before it. */
static int add_run(struct taker *t, const char *word, size_t n, bool space, struct sv_api_err *e)
{
    struct sv_buf text;

    sv_buf_init(&text);
    if (space)
        sv_buf_lit(&text, " ");
    sv_buf_append(&text, word, n);
    int rc = text.failed ? sv_api_no_memory(e)
                         : sv_encode(t->s, t->scratch, text.data, text.len, 0, &t->ids, e);
    sv_buf_fini(&text);
    return rc ? rc : push(&t->ids, -1, e);
}

/* After a space a word often has other tokens. If these end in the tokens of the plain word, they
 * are excluded already. */
static int add_word(struct taker *t, const char *word, size_t n, struct sv_api_err *e)
{
    size_t plain = t->ids.n, spaced;

    while (n && *word == ' ')
        word++, n--;
    if (add_run(t, word, n, false, e))
        return -1;
    spaced = t->ids.n;
    if (add_run(t, word, n, true, e))
        return -1;
    size_t n_plain = spaced - plain;
    if (t->ids.n - spaced >= n_plain &&
        memcmp(t->ids.id + plain, t->ids.id + t->ids.n - n_plain, n_plain * sizeof(int32_t)) == 0)
        t->ids.n = spaced;
    return 0;
}

static int take_words(struct taker *t, const json_t *words, struct sv_api_err *e)
{
    for (size_t i = 0; i < json_array_size(words); i++) {
        const json_t *v = json_array_get(words, i);
        const char *word = json_string_value(v);
        if (!word || strspn(word, " ") == json_string_length(v) ||
            strlen(word) != json_string_length(v))
            return sv_api_bad(e, "bad_words", "'bad_words[%zu]' must be a text that is not empty",
                              i);
        if (add_word(t, word, json_string_length(v), e))
            return -1;
        if (t->ids.n > SV_MAX_LISTED)
            return sv_api_bad(e, "bad_words",
                              "'bad_words[%zu]': the words come to more than %d tokens", i,
                              SV_MAX_LISTED);
    }
    return 0;
}

static int take_allowed(struct taker *t, const json_t *list, struct sv_api_err *e)
{
    const int32_t vocab = t->s->model->info.vocab_size;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            return sv_api_bad(e, "allowed_token_ids",
                              "'allowed_token_ids[%zu]' is no token id in [0, %d)", i, vocab);
        if (t->ids.n == SV_MAX_LISTED)
            return sv_api_bad(e, "allowed_token_ids",
                              "'allowed_token_ids' and 'bad_words' have more than %d tokens",
                              SV_MAX_LISTED);
        if (push(&t->ids, (int32_t)json_integer_value(v), e))
            return -1;
    }
    return 0;
}

int sv_token_lists_read(const struct sv_serve *s, struct sv_enc_scratch *scratch,
                        struct sv_params *p, int32_t **token_lists, struct sv_api_err *e)
{
    struct taker t = {.s = s, .scratch = scratch};

    if (p->allowed_ids && !json_array_size(p->allowed_ids))
        return sv_api_bad(e, "allowed_token_ids",
                          "'allowed_token_ids' is empty: nothing could come");
    if (!json_array_size(p->bad_words) && !p->allowed_ids)
        return 0;
    int rc = take_words(&t, p->bad_words, e);
    size_t n_bad = t.ids.n;
    if (!rc)
        rc = take_allowed(&t, p->allowed_ids, e);
    *token_lists = t.ids.id; /* freed with the call, also after an error */
    if (rc)
        return rc;
    p->r.bad_ids = t.ids.id;
    p->r.n_bad_ids = (int32_t)n_bad;
    p->r.allowed_ids = t.ids.id + n_bad;
    p->r.n_allowed_ids = (int32_t)(t.ids.n - n_bad);
    return 0;
}

/* ---------------------------------------------------------------- what is to be reported */

/* prefix: the list's name in errors. */
static int take_logprob_ids(const struct sv_serve *s, const json_t *list, const char *name,
                            const char *prefix, struct sv_ids *ids, struct sv_api_err *e)
{
    const int32_t vocab = s->model->info.vocab_size;

    if (json_array_size(list) > SV_MAX_REQUESTED_IDS)
        return sv_api_bad(e, name, "'%s' has more than %d ids", prefix, SV_MAX_REQUESTED_IDS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            return sv_api_bad(e, name, "'%s[%zu]' is no token id in [0, %d)", prefix, i, vocab);
        if (push(ids, (int32_t)json_integer_value(v), e))
            return -1;
    }
    return 0;
}

/* Layout: the number of lists, the end of each list's ids, then the ids. */
int sv_logprob_ids_read(const struct sv_serve *s, const struct sv_params *p, int32_t n_prompts,
                        int32_t **requested, struct sv_api_err *e)
{
    const json_t *first = json_array_get(p->logprob_ids, 0);
    const bool each = json_is_array(first) || json_is_null(first);
    const size_t n = each ? json_array_size(p->logprob_ids) : 1;
    const char *name = p->logprob_ids_name;
    struct sv_ids ids = {0};
    int rc = 0;

    if (!json_array_size(p->logprob_ids) || !p->logprobs)
        return 0;
    if (each && n != (size_t)n_prompts)
        return sv_api_bad(e, name, "'%s' has %zu lists for %d prompts", name, n, n_prompts);
    for (size_t i = 0; i < n + 1 && !rc; i++)
        rc = push(&ids, (int32_t)n, e);
    for (size_t i = 0; i < n && !rc; i++) {
        const json_t *list = each ? json_array_get(p->logprob_ids, i) : p->logprob_ids;
        char prefix[64];
        snprintf(prefix, sizeof prefix, each ? "%s[%zu]" : "%s", name, i);
        if (!json_is_array(list) && !json_is_null(list))
            rc = sv_api_bad(e, name, "'%s' must be a list of token ids", prefix);
        else
            rc = take_logprob_ids(s, list, name, prefix, &ids, e);
        if (!rc)
            ids.id[1 + i] = (int32_t)ids.n;
    }
    *requested = ids.id; /* freed with the call, also after an error */
    return rc;
}

void sv_logprob_ids_set(const int32_t *requested, int32_t prompt, struct sv_request *r)
{
    if (!requested || !r->logprobs)
        return;
    const int32_t i = requested[0] > 1 ? prompt : 0;
    const int32_t from = i ? requested[i] : requested[0] + 1;
    r->logprob_token_ids = requested + from;
    r->n_logprob_token_ids = requested[1 + i] - from;
}

/* ---------------------------------------------------------------- what ends an answer */

static int take_search(struct sv_params *p, struct sv_api_err *e)
{
    struct sv_err err = {0};

    _Static_assert(SV_API_REGEXES == SV_SEARCH_MAX, "as many as can be looked for");
    if (!p->n_stop_regex)
        return 0;
    int rc = sv_search_open(&p->r.stop_search, p->stop_regex, (size_t)p->n_stop_regex, &err);
    if (!rc)
        return 0;
    if (rc == SV_ENOMEM)
        return sv_api_no_memory(e);
    const int n_index =
        *err.msg == '[' ? (int)strcspn(err.msg, ":") : 0; /* the index, if there are several */
    return sv_api_bad(e, "stop_regex", "'stop_regex%.*s': %s", n_index, err.msg,
                      err.msg + n_index + (n_index ? 2 : 0));
}

static bool same_expressions(const struct sv_params *a, const struct sv_params *b)
{
    int32_t i = 0;

    while (i < a->n_stop_regex && i < b->n_stop_regex &&
           strcmp(a->stop_regex[i], b->stop_regex[i]) == 0)
        i++;
    return a->n_stop_regex == b->n_stop_regex && i == a->n_stop_regex;
}

/* Consecutive prompts with the same expressions share a search. The number of different ones is
 * limited, since each takes time. */
int sv_stop_regex_open(struct sv_call *c, bool on_loop, struct sv_api_err *e)
{
    const size_t n_each = c->each ? json_array_size(c->p.sampling_list) : 0;
    int32_t n_made = 0;
    bool any = c->p.n_stop_regex > 0;

    for (size_t i = 0; i < n_each; i++)
        any |= c->each[i].n_stop_regex > 0;
    if (any && on_loop) {
        e->too_slow = true;
        return -1;
    }
    int rc = take_search(&c->p, e);
    for (size_t i = 0; i < n_each && !rc; i++) {
        struct sv_params *p = &c->each[i], *before = i ? p - 1 : NULL;
        if (before && before->r.stop_search && same_expressions(before, p))
            p->r.stop_search = sv_search_ref(before->r.stop_search);
        else if (p->n_stop_regex && ++n_made > SV_API_REGEXES)
            rc = sv_api_bad(e, "stop_regex", "'stop_regex' has more than %d different lists",
                            SV_API_REGEXES);
        else
            rc = take_search(p, e);
    }
    return rc;
}

void sv_stop_regex_close(struct sv_call *c)
{
    sv_search_unref(c->p.r.stop_search);
    for (size_t i = 0; c->each && i < json_array_size(c->p.sampling_list); i++)
        sv_search_unref(c->each[i].r.stop_search);
}
