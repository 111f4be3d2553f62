/*
 * jsonl.c - one line of JSON to one request; files of prompts.
 *
 * Called by generate, bench, check and demo. Every error names the field, or the byte when the line
 * is not JSON. Must not: accept unknown fields, since a misspelt `temperatur` would silently change
 * the answer.
 */
#include "cli/cli.h"
#include "cli/lines.h"
#include "sample/sample.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const known[] = {
    "id",
    "prompt",
    "prompt_token_ids",
    "messages",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "presence_penalty",
    "stop",
    "stop_token_ids",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "include_stop",
    "ignore_eos",
    "logprobs",
    "kind",
    "top_logprobs",
    "prompt_logprobs",
    "json",
    "json_schema",
    "regex",
    "grammar",
    "choice",
};

static int check_fields(json_t *root, struct sv_err *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(root))
        return sv_fail(err, SV_EFORMAT, 0, "not a JSON object");
    json_object_foreach(root, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0] && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (!found)
            return sv_fail(err, SV_EINVAL, -1,
                           "field '%.64s' is not known (`salvo generate --help` lists the fields)",
                           key);
    }
    return SV_OK;
}

static int take_id(struct sv_cli_request *q, struct sv_err *err)
{
    const json_t *id = json_object_get(q->root, "id");

    if (!id)
        return sv_fail(err, SV_EINVAL, -1, "field 'id' is missing");
    if (!json_is_string(id) && !json_is_integer(id))
        return sv_fail(err, SV_EINVAL, -1, "field 'id' must be a string or an integer");
    q->id = id;
    return SV_OK;
}

static int take_ids(const json_t *list, const char *name, int32_t vocab_size, int32_t **ids,
                    int32_t *n_ids, struct sv_err *err)
{
    size_t n = json_array_size(list);

    if (!json_is_array(list))
        return sv_fail(err, SV_EINVAL, -1, "field '%s' must be a list of integers in [0, %d)", name,
                       vocab_size);
    if (!n)
        return sv_fail(err, SV_EINVAL, -1, "field '%s' is empty", name);
    *ids = sv_alloc(n * sizeof **ids);
    if (!*ids)
        return sv_fail(err, SV_ENOMEM, -1, "field '%s': out of memory", name);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab_size)
            return sv_fail(err, SV_EINVAL, (int64_t)i,
                           "field '%s[%zu]' must be an integer in [0, %d)", name, i, vocab_size);
        (*ids)[i] = (int32_t)json_integer_value(v);
    }
    *n_ids = (int32_t)n; /* a line has at most 16 MiB */
    return SV_OK;
}

/* A message's text, or a list of texts: an image would be left out of the prompt, or be a token
 * without pixels. */
static int check_parts(const json_t *content, size_t message, struct sv_err *err)
{
    size_t i;
    const json_t *part;

    json_array_foreach(content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (json_is_object(part) && type && strcmp(type, "text") != 0)
            return sv_fail(err, SV_EUNSUPPORTED, (int64_t)i,
                           "field 'messages[%zu].content[%zu]': type '%.40s' is not supported in "
                           "a line, 'text' is",
                           message, i, type);
    }
    return SV_OK;
}

static int take_messages(struct sv_cli_request *q, json_t *list,
                         const struct sv_chat_template *chat, struct sv_err *err)
{
    size_t i;
    json_t *m;

    if (!json_is_array(list) || !json_array_size(list))
        return sv_fail(err, SV_EINVAL, -1, "field 'messages' must be a list of messages");
    json_array_foreach(list, i, m) {
        if (!json_is_object(m) || !json_is_string(json_object_get(m, "role")))
            return sv_fail(err, SV_EINVAL, (int64_t)i,
                           "field 'messages[%zu]' must be an object with a role", i);
        if (check_parts(json_object_get(m, "content"), i, err))
            return err->code;
    }
    if (!chat)
        return sv_fail(err, SV_EINVAL, -1,
                       "field 'messages': there is no chat template to render them with");
    if (sv_cli_chat_render(chat, NULL, list, &q->text, err))
        return sv_err_prefix(err, "field 'messages'");
    q->r.prompt = q->text.len ? q->text.data : "";
    q->r.prompt_bytes = q->text.len;
    q->r.no_add_special = true; /* the template has written it */
    return SV_OK;
}

static json_t *present(const json_t *root, const char *name)
{
    json_t *v = json_object_get(root, name);
    return json_is_null(v) ? NULL : v;
}

static int take_prompt(struct sv_cli_request *q, int32_t vocab_size,
                       const struct sv_chat_template *chat, struct sv_err *err)
{
    const json_t *text = present(q->root, "prompt"), *ids = present(q->root, "prompt_token_ids");
    json_t *messages = present(q->root, "messages");

    if ((text != NULL) + (ids != NULL) + (messages != NULL) > 1)
        return sv_fail(err, SV_EINVAL, -1,
                       "fields 'prompt', 'prompt_token_ids' and 'messages' exclude each other");
    if (messages)
        return take_messages(q, messages, chat, err);
    if (ids) {
        int rc = take_ids(ids, "prompt_token_ids", vocab_size, &q->ids, &q->r.n_prompt_ids, err);
        q->r.prompt_ids = q->ids;
        return rc;
    }
    if (!text)
        return sv_fail(err, SV_EINVAL, -1,
                       "field 'prompt', 'prompt_token_ids' or 'messages' is missing");
    if (!json_is_string(text))
        return sv_fail(err, SV_EINVAL, -1, "field 'prompt' must be a string");
    q->r.prompt = json_string_value(text);
    q->r.prompt_bytes = json_string_length(text);
    return SV_OK;
}

static int take_bias(struct sv_cli_request *q, int32_t vocab_size, struct sv_err *err)
{
    json_t *bias = present(q->root, "logit_bias"), *v;
    size_t n = json_object_size(bias);
    const struct sv_range range = {SV_RANGE_BIAS};
    const char *key;
    int32_t i = 0;

    if (!bias)
        return SV_OK;
    if (!json_is_object(bias))
        return sv_fail(err, SV_EINVAL, -1,
                       "field 'logit_bias' must be an object of token ids and numbers");
    if (n > 1024)
        return sv_fail(err, SV_EINVAL, -1,
                       "field 'logit_bias' has %zu tokens, at most 1024 are allowed", n);
    q->bias_ids = sv_alloc((n + 1) * sizeof *q->bias_ids);
    q->bias = sv_alloc((n + 1) * sizeof *q->bias);
    if (!q->bias_ids || !q->bias)
        return sv_fail(err, SV_ENOMEM, -1, "field 'logit_bias': out of memory");
    json_object_foreach(bias, key, v) {
        char *end;
        errno = 0;
        long id = strtol(key, &end, 10);
        if (*key < '0' || *key > '9' || (*key == '0' && key[1]) || *end || errno ||
            id >= vocab_size)
            return sv_fail(err, SV_EINVAL, i,
                           "field 'logit_bias': '%.64s' is no token id in [0, %d)", key,
                           vocab_size);
        if (!json_is_number(v) ||
            !(json_number_value(v) >= range.least && json_number_value(v) <= range.most))
            return sv_fail(err, SV_EINVAL, i, "field 'logit_bias.%ld' must be a number in [%g, %g]",
                           id, range.least, range.most);
        q->bias_ids[i] = (int32_t)id;
        q->bias[i++] = (float)json_number_value(v);
    }
    q->r.bias_ids = q->bias_ids;
    q->r.bias = q->bias;
    q->r.n_bias = i;
    return SV_OK;
}

static int take_stop(struct sv_cli_request *q, struct sv_err *err)
{
    const json_t *stop = json_object_get(q->root, "stop");
    size_t n = 1;

    if (!stop || json_is_null(stop))
        return SV_OK;
    if (!json_is_string(stop) && !json_is_array(stop))
        return sv_fail(err, SV_EINVAL, -1, "field 'stop' must be a string or a list of strings");
    if (json_is_array(stop))
        n = json_array_size(stop);
    if (n > SV_CLI_MAX_STOP)
        return sv_fail(err, SV_EINVAL, -1, "field 'stop' has %zu strings, at most %d are allowed",
                       n, SV_CLI_MAX_STOP);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(stop) ? json_array_get(stop, i) : stop;
        const char *text = json_string_value(v);
        if (!text || !*text || strlen(text) != json_string_length(v))
            return sv_fail(err, SV_EINVAL, (int64_t)i,
                           "field 'stop[%zu]' must be a string that is not empty", i);
        q->stop[i] = text;
    }
    q->r.stop = q->stop;
    q->r.n_stop = (int32_t)n;
    return SV_OK;
}

static int take_numbers(struct sv_cli_request *q, struct sv_err *err)
{
    struct sv_request *r = &q->r;
    int64_t max_tokens = r->max_tokens, min_tokens = r->min_tokens, top_k = r->top_k,
            seed = (int64_t)r->seed;
    int64_t n_top = r->n_top_logprobs;
    const struct {
        const char *name;
        int64_t lo, hi, *out;
    } ints[] = {{"max_tokens", 1, INT32_MAX, &max_tokens},
                {"min_tokens", 0, INT32_MAX, &min_tokens},
                {"top_logprobs", 0, SV_MAX_TOP, &n_top},
                {"top_k", SV_RANGE_TOP_K, &top_k},
                {"seed", 0, INT64_MAX, &seed}};
    const struct {
        const char *name;
        double lo, hi, *out;
    } nums[] = {{"presence_penalty", SV_RANGE_PENALTY, &r->presence_penalty},
                {"frequency_penalty", SV_RANGE_PENALTY, &r->frequency_penalty},
                {"repetition_penalty", SV_RANGE_REPETITION, &r->repetition_penalty},
                {"temperature", SV_RANGE_TEMPERATURE, &r->temperature},
                {"top_p", SV_RANGE_TOP_P, &r->top_p},
                {"min_p", SV_RANGE_MIN_P, &r->min_p}};
    const struct {
        const char *name;
        bool *out;
    } flags[] = {{"logprobs", &r->logprobs},
                 {"prompt_logprobs", &r->prompt_logprobs},
                 {"include_stop", &r->include_stop},
                 {"ignore_eos", &r->ignore_eos}};
    int rc = sv_json_str_opt(q->root, "kind", &q->kind, err);

    for (size_t i = 0; i < sizeof ints / sizeof ints[0] && !rc; i++)
        rc = sv_json_int_opt(q->root, ints[i].name, ints[i].lo, ints[i].hi, ints[i].out, err);
    for (size_t i = 0; i < sizeof nums / sizeof nums[0] && !rc; i++)
        rc = sv_json_num_opt(q->root, nums[i].name, nums[i].lo, nums[i].hi, nums[i].out, err);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0] && !rc; i++)
        rc = sv_json_bool_opt(q->root, flags[i].name, flags[i].out, err);
    if (!rc && r->top_p == 0)
        rc = sv_fail(err, SV_EINVAL, -1, "field 'top_p': 0 would leave no token; 1 is off");
    if (!rc && n_top && !r->logprobs && !r->prompt_logprobs)
        rc = sv_fail(err, SV_EINVAL, -1,
                     "field 'top_logprobs' needs 'logprobs' or 'prompt_logprobs'");
    r->max_tokens = (int32_t)max_tokens;
    r->min_tokens = (int32_t)min_tokens;
    r->n_top_logprobs = (int32_t)n_top;
    r->top_k = top_k < 0 ? 0 : top_k;
    r->seed = (uint64_t)seed;
    return rc;
}

/* Removes "line 1" from the parser's message: only the position within the line is useful. */
static void drop_line_one(struct sv_err *err)
{
    static const char words[] = " (line 1)";
    char *at = err ? strstr(err->msg, words) : NULL;

    if (at)
        memmove(at, at + sizeof words - 1, strlen(at + sizeof words - 1) + 1);
}

int sv_cli_request_parse(struct sv_cli_request *q, const char *line, size_t n,
                         const struct sv_request *defaults, int32_t vocab_size,
                         const struct sv_chat_template *chat, struct sv_err *err)
{
    int rc;

    memset(q, 0, sizeof *q);
    sv_buf_init(&q->text);
    q->r = *defaults;
    q->root = sv_json_parse(line, n, err);
    if (!q->root) {
        drop_line_one(err);
        if (err && strstr(err->msg, "unable to decode byte"))
            sv_err_prefix(err, "not valid UTF-8");
        return err ? err->code : SV_EFORMAT;
    }
    rc = json_is_object(q->root) ? take_id(q, err) : SV_OK;
    if (!rc)
        rc = check_fields(q->root, err);
    if (!rc)
        rc = take_prompt(q, vocab_size, chat, err);
    if (!rc)
        rc = take_stop(q, err);
    if (!rc && present(q->root, "stop_token_ids")) {
        rc = take_ids(present(q->root, "stop_token_ids"), "stop_token_ids", vocab_size,
                      &q->stop_ids, &q->r.n_stop_ids, err);
        q->r.stop_ids = q->stop_ids;
    }
    if (!rc)
        rc = take_bias(q, vocab_size, err);
    if (!rc)
        rc = take_numbers(q, err);
    if (!rc)
        rc = sv_cli_grammar_field(q->root, &q->grammar, err);
    if (q->grammar)
        q->r.grammar = q->grammar;
    if (!rc && q->r.grammar && present(q->root, "messages")) {
        sv_cli_chat_constrain(chat, &q->text);
        q->r.prompt = q->text.len ? q->text.data : "";
        q->r.prompt_bytes = q->text.len;
        rc = q->text.failed ? sv_fail(err, SV_ENOMEM, -1, "field 'messages': out of memory") : rc;
    }
    return rc;
}

void sv_cli_request_fini(struct sv_cli_request *q)
{
    json_decref(q->root);
    sv_free_grammar(q->grammar);
    sv_free(q->ids);
    sv_free(q->stop_ids);
    sv_free(q->bias_ids);
    sv_free(q->bias);
    sv_buf_fini(&q->text);
    memset(q, 0, sizeof *q);
}

void sv_cli_quote_id(struct sv_buf *b, const json_t *id)
{
    if (json_is_integer(id))
        sv_buf_printf(b, "%lld", (long long)json_integer_value(id));
    else
        sv_json_quote(b, json_string_value(id), json_string_length(id));
}

/* ---------------------------------------------------------------- files of prompts */

int sv_cli_prompts_add(struct sv_cli_prompts *p, const char *line, size_t n,
                       const struct sv_request *defaults, int32_t vocab_size,
                       const struct sv_chat_template *chat, struct sv_err *err)
{
    struct sv_cli_request q;
    int rc;

    if (p->n == p->cap) {
        int32_t cap = p->cap ? 2 * p->cap : 16;
        struct sv_cli_request *grown =
            sv_realloc(p->q, (size_t)p->cap * sizeof *grown, (size_t)cap * sizeof *grown);
        if (!grown)
            return sv_fail(err, SV_ENOMEM, -1, "prompts: out of memory");
        p->q = grown;
        p->cap = cap;
        /* r.stop points into the entry itself, which has just moved. */
        for (int32_t i = 0; i < p->n; i++)
            if (p->q[i].r.n_stop && p->q[i].stop[0])
                p->q[i].r.stop = p->q[i].stop;
    }
    rc = sv_cli_request_parse(&q, line, n, defaults, vocab_size, chat, err);
    if (rc) {
        sv_cli_request_fini(&q);
        return rc;
    }
    p->q[p->n] = q;
    if (q.stop[0])
        p->q[p->n].r.stop = p->q[p->n].stop;
    p->n++;
    return SV_OK;
}

/* The context for reading the lines of a file. */
struct loading {
    struct sv_cli_prompts *into;
    const struct sv_request *defaults;
    int32_t vocab_size;
    struct sv_chat_template *chat;
};

static int take_line(void *user, const char *line, size_t n, struct sv_err *err)
{
    const struct loading *l = user;
    return sv_cli_prompts_add(l->into, line, n, l->defaults, l->vocab_size, l->chat, err);
}

int sv_cli_prompts_load(struct sv_cli_prompts *p, const char *path, const char *target_dir,
                        const struct sv_request *defaults, int32_t vocab_size, struct sv_err *err)
{
    struct loading l = {.into = p, .defaults = defaults, .vocab_size = vocab_size};

    memset(p, 0, sizeof *p);
    int rc = sv_cli_chat_open(&l.chat, target_dir, err);
    if (!rc)
        rc = sv_cli_reader_each(path, take_line, &l, err);
    sv_chat_template_close(l.chat);
    if (!rc && !p->n)
        rc = sv_fail(err, SV_EFORMAT, 0, "%s: holds no prompts", path);
    if (rc)
        sv_cli_prompts_fini(p);
    return rc;
}

void sv_cli_prompts_fini(struct sv_cli_prompts *p)
{
    for (int32_t i = 0; i < p->n; i++)
        sv_cli_request_fini(&p->q[i]);
    sv_free(p->q);
    memset(p, 0, sizeof *p);
}
