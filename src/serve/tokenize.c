/*
 * tokenize.c - /tokenize, /detokenize and /tokenizer_info in vLLM's shape; how a body becomes an object.
 *
 * Called by route.c, and call.c for sv_body_object. Must not: run the engine.
 */
#include "serve/impl.h"

#include <string.h>
#include <strings.h>

json_t *sv_body_object(struct sv_http_req *q, struct sv_api_err *e)
{
    struct sv_err err = {0};
    size_t n;
    const char *text = sv_http_body(q, &n), *coding = sv_http_header(q, "Content-Encoding");
    bool coded = coding && strcasecmp(coding, "identity") != 0;

    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* what some editors begin UTF-8 with */
        text += 3;
        n -= 3;
    }
    json_t *root = n && !coded ? sv_json_parse(text, n, &err) : NULL;

    if (coded)
        sv_api_fail(e, 415, NULL, "a body with Content-Encoding '%.40s' is not read; send it as it is", coding);
    else if (!n)
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

static void reply(struct sv_http_req *q, struct sv_buf *b, int rc, const struct sv_api_err *e)
{
    if (rc)
        sv_api_reply(q, e);
    else
        sv_http_reply(q, b->failed ? 500 : 200, "application/json", b->data ? b->data : "", b->len);
    sv_buf_fini(b);
}

static int unknown(const json_t *body, const char *const *names, struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    json_object_foreach ((json_t *)body, key, value) {
        int i = 0;
        while (names[i] && strcmp(names[i], key) != 0)
            i++;
        if (!names[i])
            return sv_api_unknown(e, "", key);
    }
    return 0;
}

/* What the chat endpoint would make of a body. */
static int chat_text(struct sv_serve *s, json_t *body, bool *add_special, struct sv_buf *text, struct sv_api_err *e)
{
    struct sv_params *p = sv_alloc(sizeof *p);

    if (!p)
        return sv_api_fail(e, 500, NULL, "out of memory");
    int rc = sv_params_read(p, SV_CHAT, body, e);
    if (!rc)
        rc = sv_render_chat(s, p, text, e);
    *add_special = p->add_special > 0;
    sv_free(p);
    return rc;
}

static int chat_ids(struct sv_serve *s, json_t *body, struct sv_ids *ids, struct sv_api_err *e)
{
    struct sv_buf text;
    bool add_special = false;

    if (json_object_get(body, "prompt"))
        return sv_api_bad(e, "prompt", "'prompt' and 'messages' exclude each other");
    json_object_del(body, "return_token_strs");
    sv_buf_init(&text);
    int rc = chat_text(s, body, &add_special, &text, e);
    if (!rc)
        rc = sv_encode(s, text.data ? text.data : "", text.len, add_special, ids, e);
    sv_buf_fini(&text);
    return rc;
}

static int text_ids(struct sv_serve *s, const json_t *body, struct sv_ids *ids, struct sv_api_err *e)
{
    static const char *const names[] = {"model", "prompt", "add_special_tokens", "return_token_strs",
                                        "content", "add_special", "with_pieces", NULL};
    const json_t *pieces = json_object_get(body, "with_pieces");
    const json_t *prompt = json_object_get(body, "prompt");
    const json_t *add = json_object_get(body, "add_special_tokens");

    if (unknown(body, names, e))
        return -1;
    prompt = prompt ? prompt : json_object_get(body, "content"); /* llama-server's names */
    add = add ? add : json_object_get(body, "add_special");
    if (!json_is_string(prompt))
        return sv_api_bad(e, "prompt", "'prompt' must be a string (or 'messages' an array)");
    if (pieces && !json_is_boolean(pieces) && !json_is_null(pieces))
        return sv_api_bad(e, "with_pieces", "'with_pieces' must be a boolean");
    if (add && !json_is_boolean(add) && !json_is_null(add))
        return sv_api_bad(e, "add_special_tokens", "'add_special_tokens' must be a boolean");
    return sv_encode(s, json_string_value(prompt), json_string_length(prompt), !json_is_false(add),
                     ids, e);
}

/* As llama-server has them: the id and what it stands for. */
static void write_pieces(struct sv_buf *b, const struct sv_tokenizer *tok, const struct sv_ids *ids)
{
    sv_buf_lit(b, "[");
    for (size_t i = 0; i < ids->n; i++) {
        sv_buf_printf(b, "%s{\"id\":%d,\"piece\":", i ? "," : "", ids->id[i]);
        sv_json_token(b, tok, ids->id[i]);
        sv_buf_lit(b, "}");
    }
    sv_buf_lit(b, "]");
}

void sv_post_tokenize(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_api_err e = {0};
    struct sv_ids ids = {0};
    struct sv_buf b;
    json_t *body = sv_body_object(q, &e);
    bool strings = json_is_true(json_object_get(body, "return_token_strs"));

    sv_buf_init(&b);
    int rc = !body ? -1
             : json_object_get(body, "messages") ? chat_ids(s, body, &ids, &e)
                                                 : text_ids(s, body, &ids, &e);
    if (!rc) {
        sv_buf_printf(&b, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":", ids.n,
                      s->model->info.context);
        if (json_is_true(json_object_get(body, "with_pieces")))
            write_pieces(&b, s->model->tok, &ids);
        else
            sv_json_ids(&b, ids.id, (int32_t)ids.n);
        sv_buf_printf(&b, ",\"token_strs\":");
        if (!strings)
            sv_buf_printf(&b, "null");
        for (size_t i = 0; strings && i < ids.n; i++) {
            sv_buf_printf(&b, i ? "," : "[");
            sv_json_token(&b, s->model->tok, ids.id[i]);
        }
        sv_buf_printf(&b, strings ? (ids.n ? "]}\n" : "[]}\n") : "}\n");
    }
    reply(q, &b, rc, &e);
    sv_ids_fini(&ids);
    json_decref(body);
}

void sv_post_apply_template(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_api_err e = {0};
    struct sv_buf b, text;
    json_t *body = sv_body_object(q, &e);
    bool add_special = false;

    sv_buf_init(&b);
    sv_buf_init(&text);
    int rc = body ? chat_text(s, body, &add_special, &text, &e) : -1;
    if (!rc) {
        sv_buf_lit(&b, "{\"prompt\":");
        sv_json_quote(&b, text.data ? text.data : "", text.len);
        sv_buf_lit(&b, "}\n");
    }
    reply(q, &b, rc, &e);
    sv_buf_fini(&text);
    json_decref(body);
}

static int decode(struct sv_serve *s, const json_t *body, struct sv_buf *text, struct sv_api_err *e)
{
    static const char *const names[] = {"model", "tokens", NULL};
    const json_t *tokens = json_object_get(body, "tokens");

    if (unknown(body, names, e))
        return -1;
    if (!json_is_array(tokens))
        return sv_api_bad(e, "tokens", "'tokens' must be an array of integers");
    size_t n = json_array_size(tokens);
    int32_t *ids = sv_alloc((n ? n : 1) * sizeof *ids);
    if (!ids)
        return sv_api_fail(e, 500, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(tokens, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= s->model->info.vocab_size) {
            sv_free(ids);
            return sv_api_bad(e, "tokens", "'tokens[%zu]' must be an integer in [0, %d)", i,
                              s->model->info.vocab_size);
        }
        ids[i] = (int32_t)id;
    }
    sv_tokenizer_decode(s->model->tok, ids, n, false, text);
    sv_free(ids);
    return 0;
}

void sv_post_detokenize(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_api_err e = {0};
    struct sv_buf b, text;
    json_t *body = sv_body_object(q, &e);

    sv_buf_init(&b);
    sv_buf_init(&text);
    int rc = body ? decode(s, body, &text, &e) : -1;
    if (!rc) {
        sv_buf_lit(&b, "{\"prompt\":");
        sv_json_quote(&b, text.data ? text.data : "", text.len);
        sv_buf_lit(&b, ",\"content\":"); /* llama-server's name */
        sv_json_quote(&b, text.data ? text.data : "", text.len);
        sv_buf_lit(&b, "}\n");
    }
    reply(q, &b, rc, &e);
    sv_buf_fini(&text);
    json_decref(body);
}

void sv_get_tokenizer_info(struct sv_serve *s, struct sv_http_req *q)
{
    const struct sv_engine_info *info = &s->model->info;
    struct sv_buf b;

    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"tokenizer_class\":\"byte_level_bpe\",\"vocab_size\":%d,\"model_max_length\":%d,",
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
    sv_buf_printf(&b, ",\"chat_template\":%s}\n", s->model->chat || s->chat ? "true" : "false");
    reply(q, &b, 0, NULL);
}
