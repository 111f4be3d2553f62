/*
 * tokenize.c - /tokenize, /detokenize, /apply-template and /tokenizer_info in the shapes of vLLM,
 * SGLang and llama-server.
 *
 * Called by route.c. Must not: run the engine.
 */
#include "serve/compat/compat.h"
#include "serve/core/body.h"
#include "serve/core/write.h"

#include <string.h>

static int check_names(const json_t *body, const char *const *names, struct sv_buf *ignored,
                       struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)body, key, value) {
        int i = 0;
        while (names[i] && strcmp(names[i], key) != 0)
            i++;
        if (!names[i] && !json_is_null(value) && sv_unknown_field(ignored, "", key, e))
            return -1;
    }
    return 0;
}

/* The text that the chat endpoint would make of a body. */
static int chat_text(const struct sv_serve *s, const struct sv_enc_scratch *scratch, json_t *body,
                     struct sv_buf *ignored, bool *add_special, struct sv_buf *text,
                     struct sv_api_err *e)
{
    struct sv_params *p = sv_alloc(sizeof *p);

    if (!p)
        return sv_api_no_memory(e);
    static const struct sv_dialect chat = {.kind = SV_CHAT};
    int rc = sv_params_read(p, &chat, body, ignored, e);
    if (!rc)
        rc = sv_render_chat(s, scratch, p, text, e);
    *add_special = p->add_special > 0;
    sv_params_fini(p);
    sv_free(p);
    return rc;
}

static int chat_ids(const struct sv_serve *s, struct sv_enc_scratch *scratch, json_t *body,
                    struct sv_buf *ignored, struct sv_ids *ids, struct sv_api_err *e)
{
    struct sv_buf text;
    bool add_special = false;

    if (json_object_get(body, "prompt"))
        return sv_api_bad(e, "prompt", "'prompt' and 'messages' exclude each other");
    json_object_del(body, "return_token_strs");
    sv_buf_init(&text);
    int rc = chat_text(s, scratch, body, ignored, &add_special, &text, e);
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

/* A request to tokenize. */
struct text_ask {
    const json_t *prompt;
    unsigned flags;
    bool pieces, strings;
};

static int read_ask(const json_t *body, struct sv_buf *ignored, struct text_ask *a,
                    struct sv_api_err *e)
{
    static const char *const names[] = {
        "model",   "prompt",      "add_special_tokens", "return_token_strs",
        "content", "add_special", "parse_special",      "with_pieces",
        NULL};
    const json_t *prompt = json_object_get(body, "prompt"),
                 *content = json_object_get(body, "content");
    bool add = !content,
         special = true; /* vLLM adds the tokens that begin a text, llama-server does not */

    if (check_names(body, names, ignored, e) || read_flag(body, "with_pieces", &a->pieces, e) ||
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

/* llama-server's shape: the id and the token's text, or its bytes where they are no text. */
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

/* SGLang's shape: for a list of texts, each member of the answer is a list. */
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
                    struct sv_buf *ignored, struct sv_buf *b, struct sv_api_err *e)
{
    const bool chat = json_object_get(body, "messages");
    struct text_ask a = {.strings = json_is_true(json_object_get(body, "return_token_strs"))};
    struct sv_ids ids = {0};
    int rc = chat ? chat_ids(s, scratch, body, ignored, &ids, e) : read_ask(body, ignored, &a, e);

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
                          struct sv_buf *ignored, struct sv_buf *b, struct sv_api_err *e)
{
    bool add_special = false;
    struct sv_buf text;

    (void)scratch;
    sv_buf_init(&text);
    int rc = chat_text(s, scratch, body, ignored, &add_special, &text, e);
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

/* name: the list's, for errors. */
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

/* The text, or SGLang's list of texts, as JSON. */
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
                      struct sv_buf *ignored, struct sv_buf *b, struct sv_api_err *e)
{
    static const char *const names[] = {"model", "tokens", "skip_special_tokens", NULL};
    static const char *const called[] = {"prompt", "content", "text"}; /* vLLM's, llama-server's */
    const json_t *tokens = json_object_get(body, "tokens");
    bool skip = false;
    struct sv_buf text;

    (void)scratch;
    if (check_names(body, names, ignored, e) || read_flag(body, "skip_special_tokens", &skip, e))
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

/* ---------------------------------------------------------------- /tokenizer_info */

/* vLLM's: the members of tokenizer_config.json, and the chat template in use. */
void sv_get_tokenizer_info(struct sv_serve *s, struct sv_http_req *q)
{
    const struct sv_chat_template *t = s->chat ? s->chat : s->model->chat;
    const char *key, *between = "{";
    struct sv_buf b;
    json_t *value;

    sv_buf_init(&b);
    json_object_foreach(s->model->tokenizer_config, key, value) {
        if (strcmp(key, "chat_template") == 0)
            continue;
        sv_buf_append(&b, between, 1);
        sv_json_quote(&b, key, strlen(key));
        sv_buf_lit(&b, ":");
        sv_json_tree(&b, value);
        between = ",";
    }
    sv_buf_append(&b, between, 1);
    if (t)
        sv_json_string(&b, "chat_template", sv_chat_template_source(t));
    else
        sv_buf_lit(&b, "\"chat_template\":null");
    sv_buf_lit(&b, "}\n");
    sv_api_answer(q, 200, "application/json", &b);
}
