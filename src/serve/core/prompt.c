/*
 * prompt.c - from messages, text or token ids to the ids of prompts.
 *
 * Called by call.c, by tokenize.c and by messages_read.c, on the loop's thread or on the one that
 * reads long bodies, each with a scratch of its own. Must not: add anything to a prompt that
 * neither the client, the template nor the tokenizer's post-processor asked for (but the header of
 * gpt-oss's constrained answers, which are messages like others), or change the server.
 */
#define _DEFAULT_SOURCE /* tm_gmtoff */

#include "serve/core/images.h"
#include "serve/core/prompt.h"
#include "serve/core/server.h"
#include "serve/core/tools.h"
#include "token/token.h"

#include <string.h>
#include <time.h>

#define MAX_PROMPTS 4096
/* Limits of a template on the loop's thread. A short body needs some thousand steps; these are at
 * most 20 ms. */
#define LOOP_STEPS 100000
#define LOOP_BYTES ((size_t)8 << 20)

/* ---------------------------------------------------------------- messages */

/* A string, or a part under one of the names that APIs have for text. */
const json_t *sv_part_text(const json_t *part)
{
    static const char *const types[] = {"text", "input_text", "output_text", "refusal"};
    const char *type = json_string_value(json_object_get(part, "type"));

    if (json_is_string(part))
        return part;
    for (size_t i = 0; type && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(type, types[i]) == 0) {
            const json_t *t = json_object_get(part, i == 3 ? "refusal" : "text");
            return json_is_string(t) ? t : NULL;
        }
    return NULL;
}

/* Clients send a call's arguments as JSON in a string; templates expect an object, as vLLM passes
 * it. */
static int parse_arguments(json_t *calls, struct sv_api_err *e)
{
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        const json_t *text = json_object_get(function, "arguments");
        struct sv_err err = {.code = SV_ENOMEM};
        if (!json_is_string(text))
            continue;
        json_t *v = json_string_length(text)
                        ? sv_json_parse(json_string_value(text), json_string_length(text), &err)
                        : json_object();
        const bool lost = v ? json_is_object(v) && json_object_set(function, "arguments", v)
                            : err.code == SV_ENOMEM;
        json_decref(v);
        if (lost)
            return sv_api_no_memory(e);
    }
    return 0;
}

/* Takes v. */
static int set(json_t *m, const char *name, json_t *v, struct sv_api_err *e)
{
    return json_object_set_new(m, name, v) ? sv_api_no_memory(e) : 0;
}

/* Joins text parts by line breaks, which is what most templates expect. With images the template
 * gets parts. */
static json_t *flatten(struct sv_params *p, const json_t *parts, size_t message,
                       struct sv_api_err *e)
{
    struct sv_content c;
    json_t *content = NULL;
    int rc = 0;

    sv_content_init(&c);
    for (size_t i = 0; i < json_array_size(parts) && !rc; i++) {
        json_t *part = json_array_get(parts, i);
        const json_t *t = sv_part_text(part);
        char place[64];
        snprintf(place, sizeof place, "messages[%zu].content[%zu]", message, i);
        if (t)
            sv_content_text(&c, t);
        else if (sv_part_is_image(part))
            rc = sv_content_image(&c, p, part, place, e);
        else
            rc = sv_api_bad(e, "messages", "'%s': only text and images are supported", place);
    }
    if (!rc) {
        content = sv_content_take(&c);
        if (!content)
            sv_api_no_memory(e);
    }
    sv_content_fini(&c);
    return content;
}

/* made: lists of parts are for the template already. */
static int check_message(const struct sv_chat_template *t, struct sv_params *p, bool made,
                         json_t *m, size_t i, struct sv_api_err *e)
{
    if (!json_is_object(m))
        return sv_api_bad(e, "messages", "'messages[%zu]' must be an object", i);
    const json_t *role = json_object_get(m, "role");
    if (!json_is_string(role) || !json_string_length(role))
        return sv_api_bad(e, "messages", "'messages[%zu].role' must be a string", i);
    json_t *content = json_object_get(m, "content");
    if (json_is_array(content)) {
        json_t *flat = made ? json_incref(content) : flatten(p, content, i, e);
        if (!flat || set(m, "content", flat, e))
            return -1;
    } else if (content && !json_is_string(content) && !json_is_null(content)) {
        return sv_api_bad(e, "messages",
                          "'messages[%zu].content' must be a string or an array of parts", i);
    } else if (!json_is_string(content) && strcmp(json_string_value(role), "assistant") == 0) {
        if (set(m, "content", json_string(""), e)) /* only tool calls, or cut before any content */
            return -1;
    } else if (!json_is_string(content)) {
        return sv_api_bad(e, "messages", "'messages[%zu].content' is missing", i);
    }
    if (parse_arguments(json_object_get(m, "tool_calls"), e))
        return -1;
    if (strcmp(json_string_value(role), "developer") == 0 && !sv_chat_template_knows_developer(t) &&
        set(m, "role", json_string("system"), e)) /* OpenAI's newer name for it */
        return -1;
    /* Both names are in use; templates know the longer one. */
    json_t *reasoning = json_object_get(m, "reasoning");
    if (!reasoning || json_object_get(m, "reasoning_content"))
        return 0;
    return set(m, "reasoning_content", json_incref(reasoning), e);
}

/* NULL: memory ran out. */
static json_t *template_context(const struct sv_serve *s, const struct sv_params *p)
{
    const char *effort = p->reasoning_effort;
    json_t *ctx = json_object();
    int rc = json_object_set_new(
        ctx, "messages", s->harmony ? sv_harmony_messages(p->messages) : json_incref(p->messages));

    rc |= json_object_set_new(ctx, "add_generation_prompt",
                              json_boolean(p->add_generation_prompt && !p->continue_final));
    if (json_array_size(p->tools))
        rc |= json_object_set_new(ctx, "tools",
                                  s->harmony ? sv_harmony_tools(p->tools) : json_incref(p->tools));
    if (p->documents)
        rc |= json_object_set(ctx, "documents", p->documents);
    if (effort) {
        /* templates know one of these three names */
        bool thinks = strcmp(effort, "none") != 0;
        rc |= json_object_set_new(ctx, "reasoning_effort", json_string(effort)) |
              json_object_set_new(ctx, "enable_thinking", json_boolean(thinks)) |
              json_object_set_new(ctx, "thinking", json_boolean(thinks));
    }
    if (p->template_args)
        rc |= json_object_update(ctx, p->template_args);
    if (rc) {
        json_decref(ctx);
        return NULL;
    }
    return ctx;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static size_t last_of(const struct sv_buf *text, const char *what, size_t n)
{
    for (size_t at = text->len + 1 - n; n <= text->len && at-- > 0;)
        if (memcmp(text->data + at, what, n) == 0)
            return at;
    return SIZE_MAX;
}

/* continue_final_message: removes what the template wrote after the last message's text. Templates
 * trim texts, so the spaces around it are kept only where the template left them. */
static int cut_after_last(const struct sv_params *p, struct sv_buf *text, struct sv_api_err *e)
{
    const json_t *v =
        json_object_get(json_array_get(p->messages, json_array_size(p->messages) - 1), "content");
    const char *s = json_string_value(v), *end = s ? s + json_string_length(v) : NULL, *tail = end;

    while (s < end && is_space(*s))
        s++;
    while (s < tail && is_space(tail[-1]))
        tail--;
    if (s == tail)
        return sv_api_bad(e, "continue_final_message",
                          "'continue_final_message': the last message has no text to go on with");
    size_t at = last_of(text, s, (size_t)(tail - s)), n = (size_t)(end - s);
    if (at == SIZE_MAX)
        return sv_api_bad(
            e, "continue_final_message",
            "'continue_final_message': the chat template does not show the last message's text");
    if (n > text->len - at || memcmp(text->data + at, s, n) != 0)
        n = (size_t)(tail - s);
    text->len = at + n;
    text->data[text->len] = 0;
    return 0;
}

int sv_render_chat(const struct sv_serve *s, const struct sv_enc_scratch *scratch,
                   struct sv_params *p, struct sv_buf *text, struct sv_api_err *e)
{
    const struct sv_chat_template *t = s->chat ? s->chat : s->model->chat;
    const bool on_loop = scratch && scratch == s->scratch;
    const bool made = p->images; /* by a dialect that had them to turn into a chat's */
    struct sv_err err = {0};
    time_t now = time(NULL);
    struct tm local;

    if (!t)
        return sv_api_bad(e, "messages", "this model has no chat template: %s", s->model->chat_why);
    for (size_t i = 0; i < json_array_size(p->messages); i++)
        if (check_message(t, p, made, json_array_get(p->messages, i), i, e))
            return -1;
    if (sv_serve_images_check(s, p, e))
        return -1;
    struct sv_template_opts opts = s->render;
    if (on_loop) {
        opts.max_steps = LOOP_STEPS;
        opts.max_memory_bytes = LOOP_BYTES;
    }
    opts.now = localtime_r(&now, &local) ? now + local.tm_gmtoff : now;
    json_t *ctx = template_context(s, p);
    int rc = ctx ? sv_chat_template_render(t, ctx, &opts, text, &err)
                 : sv_fail(&err, SV_ENOMEM, -1, "out of memory");
    json_decref(ctx);
    if (rc == SV_ENOMEM)
        return sv_api_no_memory(e);
    e->too_slow = on_loop && rc == SV_EFULL;
    if (rc)
        return sv_api_bad(e, "messages", "chat template: %s", err.msg);
    return p->continue_final && !text->failed ? cut_after_last(p, text, e) : 0;
}

/* ---------------------------------------------------------------- text and ids */

int sv_encode(const struct sv_serve *s, struct sv_enc_scratch *scratch, const char *text, size_t n,
              unsigned flags, struct sv_ids *ids, struct sv_api_err *e)
{
    struct sv_err err = {0};
    int rc = sv_tokenizer_encode(s->model->tok, scratch, text, n, flags, ids, &err);
    if (rc == SV_ENOMEM)
        return sv_api_no_memory(e);
    return rc ? sv_api_bad(e, "prompt", "%s", err.msg) : 0;
}

static int take_id(const struct sv_serve *s, const json_t *list, size_t i, const char *name,
                   int32_t *id, struct sv_api_err *e)
{
    const json_t *v = json_array_get(list, i);
    json_int_t x = json_integer_value(v);

    if (!json_is_integer(v))
        return sv_api_bad(e, name, "'%s[%zu]' must be an integer", name, i);
    if (x < 0 || x >= s->model->info.vocab_size)
        return sv_api_bad(e, name, "'%s[%zu]': token %lld is outside [0, %d)", name, i,
                          (long long)x, s->model->info.vocab_size);
    *id = (int32_t)x;
    return 0;
}

static int take_ids(const struct sv_serve *s, const json_t *list, struct sv_prompt *out,
                    const char *name, struct sv_api_err *e)
{
    size_t n = json_array_size(list);

    if (n > INT32_MAX / 4)
        return sv_api_bad(e, name, "'%s' is too long", name);
    out->ids = sv_alloc((n ? n : 1) * sizeof *out->ids);
    if (!out->ids)
        return sv_api_no_memory(e);
    for (size_t i = 0; i < n; i++)
        if (take_id(s, list, i, name, &out->ids[i], e))
            return -1;
    out->n_ids = (int32_t)n;
    return 0;
}

/* Refuses a text that no context can hold before it is tokenized. The factor leaves room for what a
 * normalizer removes. */
int sv_check_text(const struct sv_serve *s, size_t n, const char *name, struct sv_api_err *e)
{
    if (n / 4 / s->model->max_token_bytes <= (size_t)s->model->info.context)
        return 0;
    sv_api_bad(e, name, "'%s' has %zu bytes, far more than a context of %d tokens can hold", name,
               n, s->model->info.context);
    e->code = "context_length_exceeded";
    return -1;
}

/* How prompts are tokenized. */
struct taker {
    const struct sv_serve *s;
    struct sv_enc_scratch *scratch;
    bool add_special, mixed; /* mixed: a list may hold ids and texts */
};

static int add_text(const struct taker *t, const char *text, size_t n, bool add_special,
                    struct sv_ids *ids, const char *name, struct sv_api_err *e)
{
    if (sv_check_text(t->s, n, name, e))
        return -1;
    return sv_encode(t->s, t->scratch, text, n,
                     SV_ENC_SPECIAL | (add_special ? SV_ENC_ADD_SPECIAL : 0), ids, e);
}

/* The list was allocated by sv_alloc: it is handed over. */
static int take_list(struct sv_ids *ids, int rc, struct sv_prompt *out)
{
    if (rc) {
        sv_ids_fini(ids);
        return -1;
    }
    out->ids = ids->id;
    out->n_ids = (int32_t)ids->n;
    return 0;
}

static int take_text(const struct taker *t, const char *text, size_t n, struct sv_prompt *out,
                     const char *name, struct sv_api_err *e)
{
    struct sv_ids ids = {0};

    return take_list(&ids, add_text(t, text, n, t->add_special, &ids, name, e), out);
}

/* llama-server's: ids and texts in one prompt. Tokens that begin a text are added to a text that
 * comes first. */
static int take_mixed(const struct taker *t, const json_t *list, struct sv_prompt *out,
                      const char *name, struct sv_api_err *e)
{
    struct sv_ids ids = {0};
    int rc = 0;

    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        const json_t *v = json_array_get(list, i);
        int32_t id;
        if (json_is_string(v)) {
            rc = add_text(t, json_string_value(v), json_string_length(v), t->add_special && !i,
                          &ids, name, e);
            continue;
        }
        rc = take_id(t->s, list, i, name, &id, e);
        if (!rc && sv_ids_append(&ids, &id, 1))
            rc = sv_api_no_memory(e);
    }
    return take_list(&ids, rc, out);
}

static bool has_text(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i)))
            return true;
    return false;
}

static int take_one(const struct taker *t, const json_t *v, struct sv_prompt *out, const char *name,
                    struct sv_api_err *e)
{
    if (json_is_string(v))
        return take_text(t, json_string_value(v), json_string_length(v), out, name, e);
    if (t->mixed && has_text(v))
        return take_mixed(t, v, out, name, e);
    if (json_is_array(v))
        return take_ids(t->s, v, out, name, e);
    return sv_api_bad(e, name, "'%s' must be text, token ids, or a list of either", name);
}

int sv_check_prompt(const struct sv_serve *s, const struct sv_prompt *pr, const char *name,
                    struct sv_api_err *e)
{
    int32_t context = s->model->info.context;

    if (!pr->n_ids)
        return sv_api_bad(e, name, "'%s' has no tokens", name);
    if (sv_prompt_tokens(pr) < context)
        return 0;
    sv_api_bad(e, name, "'%s' has %d tokens; the context of %d leaves no room for an answer", name,
               sv_prompt_tokens(pr), context);
    e->code = "context_length_exceeded";
    return -1;
}

static bool is_list(const json_t *prompt, bool mixed)
{
    const json_t *first = json_array_get(prompt, 0);

    for (size_t i = 0; mixed && i < json_array_size(prompt); i++)
        if (json_is_integer(json_array_get(prompt, i)))
            return false;
    return json_is_string(first) || json_is_array(first);
}

static int check_logprob_start(const struct sv_params *p, const struct sv_prompt *pr,
                               struct sv_api_err *e)
{
    if (!p->logprobs || p->logprob_start < pr->n_ids)
        return 0;
    return sv_api_bad(e, "logprob_start_len",
                      "'logprob_start_len' is %d, and the prompt has %d tokens", p->logprob_start,
                      pr->n_ids);
}

/* vLLM's truncate_prompt_tokens: keeps the last tokens, or the first ones. */
static void truncate(const struct sv_serve *s, const struct sv_params *p, struct sv_prompt *pr)
{
    const int32_t context = s->model->info.context, answer = p->r.max_tokens;
    int32_t most = p->truncate;

    if (!p->truncates)
        return;
    if (most < 0)
        most = answer > 0 && answer < context ? context - answer : context - 1;
    if (pr->n_ids <= most)
        return;
    if (!p->truncate_right)
        memmove(pr->ids, pr->ids + (pr->n_ids - most), (size_t)most * sizeof *pr->ids);
    pr->n_ids = most;
}

/* One prompt: of a list, or the only one. */
static int take_prompt(const struct taker *t, struct sv_params *p, const json_t *v,
                       struct sv_prompt *out, const char *name, struct sv_api_err *e)
{
    int rc = p->suffix && json_string_length(p->suffix)
                 ? sv_suffix_prompt(t->s, t->scratch, p, v, name, out, e)
                 : take_one(t, v, out, name, e);
    if (rc)
        return rc;
    truncate(t->s, p, out);
    return sv_check_prompt(t->s, out, name, e);
}

static int take_all(const struct taker *t, struct sv_params *p, const char *name,
                    struct sv_prompt *prompts, int32_t n, struct sv_api_err *e)
{
    for (int32_t i = 0; i < n; i++) {
        const json_t *v = p->batched ? json_array_get(p->prompt, (size_t)i) : p->prompt;
        char one[32];
        snprintf(one, sizeof one, p->batched ? "%s[%d]" : "%s", name, i);
        if (take_prompt(t, p, v, &prompts[i], one, e)) {
            if (*e->param && strcmp(e->param, "suffix") != 0)
                snprintf(e->param, sizeof e->param, "%s",
                         name); /* the message names the prompt within it */
            return -1;
        }
        if (check_logprob_start(p, &prompts[i], e))
            return -1;
    }
    return 0;
}

/* Ends the prompt with the header of a constrained answer, which may replace the template's own. */
static void add_header(const char *header, struct sv_buf *text)
{
    static const char start[] = "<|start|>assistant";
    static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>"};
    size_t at = last_of(text, start, sizeof start - 1);

    for (int i = 0; i < 3 && at != SIZE_MAX; i++) {
        size_t end = last_of(text, ends[i], strlen(ends[i]));
        at = end != SIZE_MAX && end > at ? SIZE_MAX : at;
    }
    if (at == SIZE_MAX)
        sv_buf_append(text, start, sizeof start - 1);
    else
        text->len = at + sizeof start - 1;
    sv_buf_append(text, header, strlen(header));
}

/* What counts or names the ids of a prompt one by one: an image is one id and many tokens. */
static int check_beside_images(const struct sv_params *p, struct sv_api_err *e)
{
    if (p->images && p->truncates)
        return sv_api_unsupported(e, "truncate_prompt_tokens",
                                  "'truncate_prompt_tokens': a prompt with images is not "
                                  "truncated");
    if (p->images && p->r.prompt_logprobs)
        return sv_api_unsupported(e, "prompt_logprobs",
                                  "'prompt_logprobs': there are none of a prompt with images");
    return 0;
}

/* name: the API's field for the conversation. */
static int take_chat(const struct taker *t, struct sv_params *p, const char *name,
                     struct sv_prompt *prompt, struct sv_api_err *e)
{
    struct sv_buf text;

    sv_buf_init(&text);
    int rc = sv_render_chat(t->s, t->scratch, p, &text, e);
    if (rc && strcmp(e->param, "messages") == 0)
        snprintf(e->param, sizeof e->param, "%s", name);
    if (!rc && p->header)
        add_header(p->header, &text);
    p->in_reasoning = !rc && sv_think_is_open(p->think_format, text.data, text.len);
    p->constraint.think = sv_reasoning_before_grammar(t->s);
    p->constraint.think_open = !rc && sv_think_is_open(p->constraint.think, text.data, text.len);
    if (!rc)
        rc = take_text(t, text.data ? text.data : "", text.len, prompt, name, e);
    if (!rc)
        rc = check_beside_images(p, e);
    if (!rc)
        rc = sv_serve_images_load(t->s, t->scratch, p, prompt, e);
    if (!rc) {
        truncate(t->s, p, prompt);
        rc = sv_check_prompt(t->s, prompt, name, e);
    }
    sv_buf_fini(&text);
    return rc;
}

int32_t sv_prompts_count(struct sv_params *p, enum sv_dialect_kind kind)
{
    p->batched = !sv_is_chat(kind) && kind != SV_INFILL && is_list(p->prompt, kind == SV_LLAMA);
    return p->batched ? (int32_t)json_array_size(p->prompt) : 1;
}

int sv_prompts_make(const struct sv_serve *s, struct sv_enc_scratch *scratch, struct sv_params *p,
                    enum sv_dialect_kind kind, struct sv_prompt **prompts, int32_t *n,
                    struct sv_api_err *e)
{
    struct taker t = {s, scratch, sv_is_chat(kind) ? p->add_special > 0 : p->add_special != 0,
                      kind == SV_LLAMA};

    int32_t count = sv_prompts_count(p, kind);
    if (count > MAX_PROMPTS)
        return sv_api_bad(e, p->prompt_name, "'%s' has more than %d prompts", p->prompt_name,
                          MAX_PROMPTS);
    *prompts = sv_calloc((size_t)count, sizeof **prompts);
    if (!*prompts)
        return sv_api_no_memory(e);
    *n = count;
    if (sv_is_chat(kind))
        return take_chat(&t, p, kind == SV_RESPONSES ? "input" : "messages", *prompts, e);
    if (kind == SV_INFILL)
        return sv_infill_prompt(s, scratch, p, *prompts, e);
    return take_all(&t, p, p->prompt_name, *prompts, *n, e);
}

void sv_prompts_free(struct sv_prompt *prompts, int32_t n)
{
    for (int32_t i = 0; prompts && i < n; i++) {
        sv_serve_images_free(&prompts[i]);
        sv_free(prompts[i].ids);
    }
    sv_free(prompts);
}
