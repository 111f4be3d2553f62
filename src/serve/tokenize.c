/*
 * tokenize.c - /tokenize, /detokenize and /tokenizer_info in vLLM's shape; how a body becomes an
 * object.
 *
 * Called by route.c, messages_read.c for sv_ask, and call.c for sv_body_object and sv_check_coding.
 * Long bodies are read on prep.c's thread. Must not: run the engine.
 */
#include "serve/impl.h"

#include <string.h>
#include <strings.h>

int sv_check_coding(const struct sv_http_req *q, struct sv_api_err *e)
{
    const char *coding = sv_http_header(q, "Content-Encoding");

    if (!coding || strcasecmp(coding, "identity") == 0)
        return 0;
    return sv_api_fail(
        e, 415, NULL, "a body with Content-Encoding '%.40s' is not read; send it as it is", coding);
}

int sv_body_later(struct sv_serve *s, struct sv_http_req *q, struct sv_job *job,
                  struct evbuffer **raw, struct sv_api_err *e)
{
    *raw = sv_http_take_body(q);
    if (!*raw)
        return sv_api_no_memory(e);
    if (sv_prep_submit(s->prep, job))
        return 0;
    return sv_api_fail(e, 429, "queue_full", "too many long bodies wait to be read");
}

json_t *sv_body_object(const char *text, size_t n, struct sv_api_err *e)
{
    struct sv_err err = {0};

    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* what some editors begin UTF-8 with */
        text += 3;
        n -= 3;
    }
    json_t *root = n ? sv_json_parse(text, n, &err) : NULL;

    if (!n)
        sv_api_bad(e, NULL, "the body is empty; a JSON object is needed");
    else if (!root)
        sv_api_bad(e, NULL, "the body is not valid JSON: %s", err.msg);
    else if (json_is_object(root))
        return root;
    else
        sv_api_bad(e, NULL, "the body must be a JSON object");
    json_decref(root);
    return NULL;
}

/* ---------------------------------------------------------------- questions that need no engine */

/* A body that is read, and answered, here or on the other thread. */
struct question {
    struct sv_job job;
    struct sv_serve *s;
    struct sv_http_req *q; /* NULL once the client has left */
    struct evbuffer *raw;
    sv_answer_fn *answer;
    struct sv_buf b;
    struct sv_api_err e;
    int rc;
};

static void read_question(struct question *a, struct sv_enc_scratch *scratch, const char *text,
                          size_t n)
{
    json_t *body = sv_body_object(text, n, &a->e);

    sv_buf_init(&a->b);
    a->rc = body ? a->answer(a->s, scratch, body, &a->b, &a->e) : -1;
    json_decref(body);
}

static void question_gone(void *user)
{
    struct question *a = user;
    a->q = NULL;
}

static void run_question(void *user, struct sv_enc_scratch *scratch)
{
    struct question *a = user;
    size_t n;
    const char *text = sv_http_taken_text(a->raw, &n);

    read_question(a, scratch, text, n);
    sv_http_free_taken(a->raw);
    a->raw = NULL;
}

static void answer_question(void *user)
{
    struct question *a = user;

    if (a->q)
        sv_http_on_gone(a->q, NULL, NULL);
    if (a->q && a->rc)
        sv_api_refuse(a->q, &a->e);
    else if (a->q)
        sv_api_answer(a->q, 200, "application/json", &a->b);
    sv_buf_fini(&a->b);
    sv_http_free_taken(a->raw);
    sv_free(a);
}

void sv_ask(struct sv_serve *s, struct sv_http_req *q, sv_answer_fn *answer)
{
    struct question *a = sv_calloc(1, sizeof *a);
    struct sv_api_err e;
    size_t n;

    if (!a) {
        sv_api_no_memory(&e);
        sv_api_refuse(q, &e);
        return;
    }
    *a = (struct question){.job = {.run = run_question, .done = answer_question, .user = a},
                           .s = s,
                           .q = q,
                           .answer = answer};
    a->rc = sv_check_coding(q, &a->e);
    if (!a->rc && sv_http_body_bytes(q) <= SV_INLINE_BYTES) {
        const char *text = sv_http_body(q, &n);
        read_question(a, s->scratch, text, n);
    } else if (!a->rc) {
        sv_http_on_gone(q, question_gone, a);
        if (!sv_body_later(s, q, &a->job, &a->raw, &a->e))
            return; /* from here on it is the other thread's */
        a->rc = -1;
    }
    answer_question(a);
}

static int unknown(const json_t *body, const char *const *names, struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)body, key, value) {
        int i = 0;
        while (names[i] && strcmp(names[i], key) != 0)
            i++;
        if (!names[i] && !json_is_null(value))
            return sv_api_unknown(e, "", key);
    }
    return 0;
}

/* What the chat endpoint would make of a body. */
static int chat_text(const struct sv_serve *s, json_t *body, bool *add_special, struct sv_buf *text,
                     struct sv_api_err *e)
{
    struct sv_params *p = sv_alloc(sizeof *p);

    if (!p)
        return sv_api_no_memory(e);
    int rc = sv_params_read(p, SV_CHAT, body, e);
    if (!rc)
        rc = sv_render_chat(s, p, text, e);
    *add_special = p->add_special > 0;
    sv_params_fini(p);
    sv_free(p);
    return rc;
}

static int chat_ids(const struct sv_serve *s, struct sv_enc_scratch *scratch, json_t *body,
                    struct sv_ids *ids, struct sv_api_err *e)
{
    struct sv_buf text;
    bool add_special = false;

    if (json_object_get(body, "prompt"))
        return sv_api_bad(e, "prompt", "'prompt' and 'messages' exclude each other");
    json_object_del(body, "return_token_strs");
    sv_buf_init(&text);
    int rc = chat_text(s, body, &add_special, &text, e);
    if (!rc)
        rc = sv_encode(s, scratch, text.data ? text.data : "", text.len,
                       SV_ENC_SPECIAL | (add_special ? SV_ENC_ADD_SPECIAL : 0), ids, e);
    sv_buf_fini(&text);
    return rc;
}

static int read_flag(const json_t *body, const char *name, bool *flag, struct sv_api_err *e)
{
    const json_t *v = json_object_get(body, name);

    if (v && !json_is_boolean(v) && !json_is_null(v))
        return sv_api_bad(e, name, "'%s' must be a boolean", name);
    *flag = json_is_boolean(v) ? json_is_true(v) : *flag;
    return 0;
}

/* How texts become ids. */
struct text_ask {
    const json_t *prompt;
    unsigned flags;
    bool pieces, strings;
};

static int read_ask(const json_t *body, struct text_ask *a, struct sv_api_err *e)
{
    static const char *const names[] = {
        "model",   "prompt",      "add_special_tokens", "return_token_strs",
        "content", "add_special", "parse_special",      "with_pieces",
        NULL};
    const json_t *prompt = json_object_get(body, "prompt"),
                 *content = json_object_get(body, "content");
    bool add = !content, special = true; /* vLLM adds what begins a text, llama-server does not */

    if (unknown(body, names, e) || read_flag(body, "with_pieces", &a->pieces, e) ||
        read_flag(body, "return_token_strs", &a->strings, e) ||
        read_flag(body, "add_special", &add, e) || read_flag(body, "add_special_tokens", &add, e) ||
        read_flag(body, "parse_special", &special, e))
        return -1;
    a->prompt = prompt ? prompt : content; /* llama-server's name */
    a->flags = (special ? SV_ENC_SPECIAL : 0) | (add ? SV_ENC_ADD_SPECIAL : 0);
    return 0;
}

static int text_ids(const struct sv_serve *s, struct sv_enc_scratch *scratch, const json_t *text,
                    unsigned flags, struct sv_ids *ids, struct sv_api_err *e)
{
    return sv_encode(s, scratch, json_string_value(text), json_string_length(text), flags, ids, e);
}

/* As llama-server has them: the id and what it stands for, as text or, where it is none by itself,
 * as bytes. */
static void write_pieces(struct sv_buf *b, const struct sv_tokenizer *tok, const struct sv_ids *ids)
{
    sv_buf_lit(b, "[");
    for (size_t i = 0; i < ids->n; i++) {
        size_t n;
        const char *bytes = sv_tokenizer_bytes(tok, ids->id[i], &n);
        sv_buf_printf(b, "%s{\"id\":%d,\"piece\":", i ? "," : "", ids->id[i]);
        if (sv_utf8_valid(bytes, n) == n) {
            sv_json_token(b, tok, ids->id[i]);
        } else {
            for (size_t k = 0; k < n; k++)
                sv_buf_printf(b, "%s%d", k ? "," : "[", (unsigned char)bytes[k]);
            sv_buf_lit(b, "]");
        }
        sv_buf_lit(b, "}");
    }
    sv_buf_lit(b, "]");
}

static void write_tokens(struct sv_buf *b, const struct sv_serve *s, const struct sv_ids *ids,
                         bool pieces)
{
    if (pieces)
        write_pieces(b, s->model->tok, ids);
    else
        sv_json_ids(b, ids->id, (int32_t)ids->n);
}

static void write_strings(struct sv_buf *b, const struct sv_serve *s, const struct sv_ids *ids)
{
    sv_buf_lit(b, "[");
    for (size_t i = 0; i < ids->n; i++) {
        if (i)
            sv_buf_lit(b, ",");
        sv_json_token(b, s->model->tok, ids->id[i]);
    }
    sv_buf_lit(b, "]");
}

/* SGLang's: of a list every answer is a list. Tokens and names are put together beside counts. */
static int tokenize_list(const struct sv_serve *s, struct sv_enc_scratch *scratch,
                         const struct text_ask *a, struct sv_buf *b, struct sv_api_err *e)
{
    struct sv_buf tokens, names;
    struct sv_ids ids = {0};
    int rc = 0;

    sv_buf_init(&tokens);
    sv_buf_init(&names);
    sv_buf_lit(b, "{\"count\":[");
    for (size_t i = 0; i < json_array_size(a->prompt) && !rc; i++) {
        const json_t *text = json_array_get(a->prompt, i);
        const char *comma = i ? "," : "";
        ids.n = 0;
        if (!json_is_string(text))
            rc = sv_api_bad(e, "prompt", "'prompt[%zu]' must be a string", i);
        else
            rc = text_ids(s, scratch, text, a->flags, &ids, e);
        if (rc)
            break;
        sv_buf_printf(b, "%s%zu", comma, ids.n);
        sv_buf_printf(&tokens, "%s", comma);
        write_tokens(&tokens, s, &ids, a->pieces);
        sv_buf_printf(&names, "%s", comma);
        if (a->strings)
            write_strings(&names, s, &ids);
    }
    sv_buf_printf(b, "],\"max_model_len\":%d,\"tokens\":[", s->model->info.context);
    sv_buf_append(b, tokens.data, tokens.len);
    sv_buf_printf(b, "],\"token_strs\":%s", a->strings ? "[" : "null");
    if (a->strings)
        sv_buf_append(b, names.data, names.len);
    sv_buf_printf(b, a->strings ? "]}\n" : "}\n");
    b->failed |= tokens.failed || names.failed;
    sv_buf_fini(&tokens);
    sv_buf_fini(&names);
    sv_ids_fini(&ids);
    return rc;
}

static int tokenize(const struct sv_serve *s, struct sv_enc_scratch *scratch, json_t *body,
                    struct sv_buf *b, struct sv_api_err *e)
{
    const bool chat = json_object_get(body, "messages");
    struct text_ask a = {.strings = json_is_true(json_object_get(body, "return_token_strs"))};
    struct sv_ids ids = {0};
    int rc = chat ? chat_ids(s, scratch, body, &ids, e) : read_ask(body, &a, e);

    if (!rc && json_is_array(a.prompt))
        return tokenize_list(s, scratch, &a, b, e);
    if (!rc && !chat && !json_is_string(a.prompt))
        rc = sv_api_bad(e, "prompt",
                        "'prompt' must be a string or a list of strings (or 'messages' an array)");
    else if (!rc && !chat)
        rc = text_ids(s, scratch, a.prompt, a.flags, &ids, e);
    if (!rc) {
        sv_buf_printf(b, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":", ids.n,
                      s->model->info.context);
        write_tokens(b, s, &ids, a.pieces);
        sv_buf_lit(b, ",\"token_strs\":");
        if (a.strings)
            write_strings(b, s, &ids);
        else
            sv_buf_lit(b, "null");
        sv_buf_lit(b, "}\n");
    }
    sv_ids_fini(&ids);
    return rc;
}

void sv_post_tokenize(struct sv_serve *s, struct sv_http_req *q)
{
    sv_ask(s, q, tokenize);
}

static int apply_template(const struct sv_serve *s, struct sv_enc_scratch *scratch, json_t *body,
                          struct sv_buf *b, struct sv_api_err *e)
{
    bool add_special = false;
    struct sv_buf text;

    (void)scratch;
    sv_buf_init(&text);
    int rc = chat_text(s, body, &add_special, &text, e);
    if (!rc) {
        sv_buf_lit(b, "{\"prompt\":");
        sv_json_quote(b, text.data ? text.data : "", text.len);
        sv_buf_lit(b, "}\n");
    }
    sv_buf_fini(&text);
    return rc;
}

void sv_post_apply_template(struct sv_serve *s, struct sv_http_req *q)
{
    sv_ask(s, q, apply_template);
}

/* name: what the list is called. */
static int decode(const struct sv_serve *s, const json_t *tokens, const char *name, bool skip,
                  struct sv_buf *text, struct sv_api_err *e)
{
    size_t n = json_array_size(tokens);
    int32_t *ids = sv_alloc((n ? n : 1) * sizeof *ids);

    if (!ids)
        return sv_api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(tokens, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= s->model->info.vocab_size) {
            sv_free(ids);
            return sv_api_bad(e, "tokens", "'%s[%zu]' must be an integer in [0, %d)", name, i,
                              s->model->info.vocab_size);
        }
        ids[i] = (int32_t)id;
    }
    sv_tokenizer_decode(s->model->tok, ids, n, skip, text);
    sv_free(ids);
    return 0;
}

/* A text, or SGLang's list of them, in JSON. */
static int decode_all(const struct sv_serve *s, const json_t *tokens, bool skip, struct sv_buf *b,
                      struct sv_api_err *e)
{
    const bool list = json_is_array(json_array_get(tokens, 0));
    const size_t n = list ? json_array_size(tokens) : 1;
    struct sv_buf text;
    int rc = 0;

    sv_buf_init(&text);
    for (size_t i = 0; i < n && !rc; i++) {
        const json_t *one = list ? json_array_get(tokens, i) : tokens;
        char name[32];
        snprintf(name, sizeof name, list ? "tokens[%zu]" : "tokens", i);
        sv_buf_clear(&text);
        if (!json_is_array(one))
            rc = sv_api_bad(e, "tokens", "'%s' must be an array of integers", name);
        else
            rc = decode(s, one, name, skip, &text, e);
        sv_buf_printf(b, list && !i ? "[" : i ? "," : "");
        sv_json_quote(b, text.data ? text.data : "", text.len);
    }
    if (list)
        sv_buf_lit(b, "]");
    b->failed |= text.failed;
    sv_buf_fini(&text);
    return rc;
}

static int detokenize(const struct sv_serve *s, struct sv_enc_scratch *scratch, json_t *body,
                      struct sv_buf *b, struct sv_api_err *e)
{
    static const char *const names[] = {"model", "tokens", "skip_special_tokens", NULL};
    static const char *const called[] = {"prompt", "content", "text"}; /* vLLM's, llama-server's */
    const json_t *tokens = json_object_get(body, "tokens");
    bool skip = false;
    struct sv_buf text;

    (void)scratch;
    if (unknown(body, names, e) || read_flag(body, "skip_special_tokens", &skip, e))
        return -1;
    if (!json_is_array(tokens))
        return sv_api_bad(e, "tokens", "'tokens' must be an array of integers, or of such arrays");
    sv_buf_init(&text);
    int rc = decode_all(s, tokens, skip, &text, e);
    for (int i = 0; i < 3 && !rc; i++) {
        sv_buf_printf(b, "%s\"%s\":", i ? "," : "{", called[i]);
        sv_buf_append(b, text.data, text.len);
    }
    sv_buf_lit(b, "}\n");
    b->failed |= text.failed;
    sv_buf_fini(&text);
    return rc;
}

void sv_post_detokenize(struct sv_serve *s, struct sv_http_req *q)
{
    sv_ask(s, q, detokenize);
}

void sv_get_tokenizer_info(struct sv_serve *s, struct sv_http_req *q)
{
    const struct sv_engine_info *info = &s->model->info;
    struct sv_buf b;

    sv_buf_init(&b);
    sv_buf_printf(
        &b, "{\"tokenizer_class\":\"byte_level_bpe\",\"vocab_size\":%d,\"model_max_length\":%d,",
        info->vocab_size, info->context);
    sv_buf_printf(&b, "\"bos_token\":");
    if (info->bos_id >= 0)
        sv_json_token(&b, s->model->tok, info->bos_id);
    else
        sv_buf_printf(&b, "null");
    sv_buf_printf(&b, ",\"eos_token\":");
    if (info->n_eos)
        sv_json_token(&b, s->model->tok, info->eos_ids[0]);
    else
        sv_buf_printf(&b, "null");
    sv_buf_printf(&b, ",\"eos_token_ids\":");
    sv_json_ids(&b, info->eos_ids, info->n_eos);
    const struct sv_chat_template *t = s->chat ? s->chat : s->model->chat;
    if (t) { /* its text: clients render it themselves */
        sv_buf_lit(&b, ",");
        sv_json_string(&b, "chat_template", sv_chat_template_source(t));
    } else {
        sv_buf_lit(&b, ",\"chat_template\":null");
    }
    sv_buf_lit(&b, "}\n");
    sv_api_answer(q, 200, "application/json", &b);
}
