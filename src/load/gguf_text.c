/*
 * gguf_text.c - the text side of a model: tokenizer and chat template of a directory, or of a GGUF
 * file, whose metadata becomes the text of a tokenizer.json and a tokenizer_config.json, so that
 * there is one parser and one set of checks.
 *
 * Called by engine, serve and cli through load.h. GGUF gives the expression that splits text by
 * name; the expressions are here, and an unknown name is refused. Must not: guess one.
 */
#include "load/gguf.h"

#include "jinja/jinja.h"
#include "token/token.h"

#include <string.h>

enum token_type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

/* llama.cpp's names of pre-tokenizers, and the expressions of these models' tokenizer.json. */
static const struct pre {
    const char *name, *others; /* the latter with spaces around each */
    bool nfc, ignore_merges, add_bos;
    const char *regex[3]; /* applied one after the other; none: ByteLevel's own */
} pres[] = {
    {.name = "gpt-2", .others = " default gpt2 "},
    {.name = "llama-bpe",
     .others = " llama3 llama-v3 ",
     .ignore_merges = true,
     .add_bos = true,
     .regex = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
               "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {.name = "qwen2",
     .nfc = true,
     .regex = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
               "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {.name = "qwen35",
     .nfc = true,
     .regex = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
               "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {.name = "gpt-4o",
     .regex =
         {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
          "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
          "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| "
          "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {.name = "deepseek-v3",
     .regex = {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
               "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
               "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
               "\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},
    /* gpt-4o's without Han letters and the slash. From the original tokenizer, without
     * tokenizer.json, which looks up whole words first; there (?!\p{Han})[...] is
     * [...&&[^\p{Han}]]. */
    {.name = "kimi-k2",
     .ignore_merges = true,
     .regex = {"[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?"
               "(?:(?!\\p{Han})[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])*"
               "(?:(?!\\p{Han})[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
               "[^\\r\\n\\p{L}\\p{N}]?"
               "(?:(?!\\p{Han})[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])+"
               "(?:(?!\\p{Han})[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
               "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
};

struct maker {
    const struct sv_gguf *g;
    const struct sv_gguf_kv *tokens, *types, *merges;
    const struct pre *pre;
    struct sv_buf *out;
    struct sv_err *err;
};

static int find_pre(struct maker *m)
{
    const char *name = "default";
    size_t n = 7;
    char word[64];
    int rc = sv_gguf_str_opt(m->g, "tokenizer.ggml.pre", &name, &n, m->err);
    if (rc)
        return rc;
    snprintf(word, sizeof word, " %.*s ", n > 60 ? 60 : (int)n, name);
    for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++)
        if ((pres[i].others && strstr(pres[i].others, word)) ||
            (strlen(pres[i].name) == n && !memcmp(pres[i].name, name, n)))
            m->pre = &pres[i];
    return m->pre ? SV_OK
                  : sv_fail(m->err, SV_EUNSUPPORTED, -1,
                            "%s: 'tokenizer.ggml.pre' '%.*s' is not supported", m->g->file,
                            n > 60 ? 60 : (int)n, name);
}

/* Whether tokenizer.json's pre_tokenizer is that of p: its expressions, then ByteLevel. */
static bool splits_as(const struct pre *p, const json_t *split)
{
    const json_t *list = json_object_get(split, "pretokenizers"), *one = list ? NULL : split;
    const size_t n = list ? json_array_size(list) : 1;
    size_t i = 0;
    for (; i < 3 && p->regex[i]; i++) {
        const json_t *v = json_array_get(list, i);
        const char *regex =
            json_string_value(json_object_get(json_object_get(v, "pattern"), "Regex"));
        const char *behavior = json_string_value(json_object_get(v, "behavior"));
        if (!regex || strcmp(regex, p->regex[i]) || !behavior || strcmp(behavior, "Isolated") ||
            json_is_true(json_object_get(v, "invert")))
            return false;
    }
    one = one ? one : json_array_get(list, i);
    const char *type = json_string_value(json_object_get(one, "type"));
    return i + 1 == n && type && !strcmp(type, "ByteLevel") &&
           json_is_false(json_object_get(one, "add_prefix_space")) &&
           json_is_false(json_object_get(one, "use_regex")) == (i > 0);
}

const char *sv_gguf_pre_of(const json_t *tokenizer)
{
    const json_t *normalizer = json_object_get(tokenizer, "normalizer"),
                 *model = json_object_get(tokenizer, "model");
    const char *type = json_string_value(json_object_get(normalizer, "type"));
    const bool nfc = type && !strcmp(type, "NFC"),
               ignore = json_is_true(json_object_get(model, "ignore_merges"));
    if (type && !nfc && json_array_size(json_object_get(normalizer, "normalizers")))
        return NULL;
    for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++)
        if (pres[i].nfc == nfc && pres[i].ignore_merges == ignore &&
            splits_as(&pres[i], json_object_get(tokenizer, "pre_tokenizer")))
            return pres[i].name;
    return NULL;
}

/* The lists; sizes agree. */
static int find_lists(struct maker *m)
{
    const char *model = "";
    size_t n = 0;
    int rc = sv_gguf_str_opt(m->g, "tokenizer.ggml.model", &model, &n, m->err);
    if (!rc && (n != 4 || memcmp(model, "gpt2", 4) != 0))
        rc =
            sv_fail(m->err, SV_EUNSUPPORTED, -1,
                    "%s: 'tokenizer.ggml.model' '%.*s' is not supported (gpt2, byte-level BPE, is)",
                    m->g->file, n > 60 ? 60 : (int)n, model);
    if (!rc)
        rc = sv_gguf_strings(m->g, "tokenizer.ggml.tokens", &m->tokens, m->err);
    if (!rc)
        rc = sv_gguf_strings(m->g, "tokenizer.ggml.merges", &m->merges, m->err);
    m->types = sv_gguf_find(m->g, "tokenizer.ggml.token_type");
    if (!rc && (!m->merges || !m->types || !m->types->is_array || m->types->n != m->tokens->n))
        rc = sv_fail(m->err, SV_EFORMAT, -1,
                     "%s: 'tokenizer.ggml.merges' and a 'token_type' for each token are needed",
                     m->g->file);
    return rc;
}

static enum token_type type_of(const struct maker *m, uint64_t i)
{
    int64_t t;
    return sv_gguf_int_at(m->types, i, &t) && t >= NORMAL && t <= BYTE ? (enum token_type)t : BYTE;
}

/* Tokens that are matched in the text before it is split. */
static bool is_added(enum token_type t)
{
    return t == CONTROL || t == USER_DEFINED || t == UNKNOWN;
}

static void put_added(const struct maker *m)
{
    const uint8_t *at = m->tokens->at;
    const char *comma = "";
    for (uint64_t i = 0; i < m->tokens->n; i++) {
        size_t n;
        const char *s = sv_gguf_next(&at, &n);
        const enum token_type t = type_of(m, i);
        if (!is_added(t))
            continue;
        sv_buf_printf(m->out,
                      "%s{\"id\":%llu,\"special\":%s,\"normalized\":false,\"content\":", comma,
                      (unsigned long long)i, t == USER_DEFINED ? "false" : "true");
        sv_json_quote(m->out, s, n);
        sv_buf_lit(m->out, "}");
        comma = ",";
    }
}

static int put_vocab(const struct maker *m)
{
    const uint8_t *at = m->tokens->at;
    const char *comma = "";
    for (uint64_t i = 0; i < m->tokens->n; i++) {
        size_t n;
        const char *s = sv_gguf_next(&at, &n);
        const enum token_type t = type_of(m, i);
        if (t == BYTE)
            return sv_fail(m->err, SV_EUNSUPPORTED, -1,
                           "%s: 'tokenizer.ggml.token_type'[%llu] is no type of a byte-level model",
                           m->g->file, (unsigned long long)i);
        if (t != NORMAL)
            continue;
        sv_buf_printf(m->out, "%s", comma);
        sv_json_quote(m->out, s, n);
        sv_buf_printf(m->out, ":%llu", (unsigned long long)i);
        comma = ",";
    }
    return SV_OK;
}

/* "a b": split at the first space after the first byte. */
static int put_merges(const struct maker *m)
{
    const uint8_t *at = m->merges->at;
    for (uint64_t i = 0; i < m->merges->n; i++) {
        size_t n;
        const char *s = sv_gguf_next(&at, &n);
        const char *space = n > 2 ? memchr(s + 1, ' ', n - 1) : NULL;
        if (!space || space + 1 == s + n)
            return sv_fail(m->err, SV_EFORMAT, -1,
                           "%s: 'tokenizer.ggml.merges'[%llu] has not two parts", m->g->file,
                           (unsigned long long)i);
        sv_buf_printf(m->out, "%s[", i ? "," : "");
        sv_json_quote(m->out, s, (size_t)(space - s));
        sv_buf_lit(m->out, ",");
        sv_json_quote(m->out, space + 1, (size_t)(s + n - space - 1));
        sv_buf_lit(m->out, "]");
    }
    return SV_OK;
}

static void put_split(const struct maker *m)
{
    sv_buf_printf(m->out, "],\"normalizer\":%s,\"pre_tokenizer\":",
                  m->pre->nfc ? "{\"type\":\"NFC\"}" : "null");
    const bool own = !m->pre->regex[0];
    sv_buf_lit(m->out, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 3 && m->pre->regex[i]; i++) {
        sv_buf_lit(m->out, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,"
                           "\"pattern\":{\"Regex\":");
        sv_json_quote(m->out, m->pre->regex[i], strlen(m->pre->regex[i]));
        sv_buf_lit(m->out, "}},");
    }
    sv_buf_printf(m->out, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":%s}]}",
                  own ? "true" : "false");
    sv_buf_lit(m->out, ",\"decoder\":{\"type\":\"ByteLevel\"},\"post_processor\":");
}

/* The id under `key`, or -1: not wanted. */
static int asked_token(const struct maker *m, const char *flag, bool usual, const char *key,
                       int64_t *id)
{
    bool add = usual;
    *id = -1;
    int rc = sv_gguf_bool_opt(m->g, flag, &add, m->err);
    if (rc || !add)
        return rc;
    return sv_gguf_int_opt(m->g, key, 0, (int64_t)m->tokens->n - 1, id, m->err);
}

/* One part of a TemplateProcessing, or of its special tokens. */
static void put_special(const struct maker *m, int64_t id, bool as_template)
{
    if (as_template)
        sv_buf_printf(m->out, "{\"SpecialToken\":{\"id\":\"%lld\"}}", (long long)id);
    else
        sv_buf_printf(m->out, "\"%lld\":{\"ids\":[%lld]}", (long long)id, (long long)id);
}

static int put_post(const struct maker *m)
{
    int64_t bos, eos;
    int rc = asked_token(m, "tokenizer.ggml.add_bos_token", m->pre->add_bos,
                         "tokenizer.ggml.bos_token_id", &bos);
    if (!rc)
        rc = asked_token(m, "tokenizer.ggml.add_eos_token", false, "tokenizer.ggml.eos_token_id",
                         &eos);
    if (rc)
        return rc;
    if (bos < 0 && eos < 0) {
        sv_buf_lit(m->out, "null");
        return SV_OK;
    }
    sv_buf_lit(m->out, "{\"type\":\"TemplateProcessing\",\"single\":[");
    if (bos >= 0) {
        put_special(m, bos, true);
        sv_buf_lit(m->out, ",");
    }
    sv_buf_lit(m->out, "{\"Sequence\":{\"id\":\"A\"}}");
    if (eos >= 0) {
        sv_buf_lit(m->out, ",");
        put_special(m, eos, true);
    }
    sv_buf_lit(m->out, "],\"special_tokens\":{");
    if (bos >= 0)
        put_special(m, bos, false);
    if (eos >= 0 && eos != bos) {
        if (bos >= 0)
            sv_buf_lit(m->out, ",");
        put_special(m, eos, false);
    }
    sv_buf_lit(m->out, "}}");
    return SV_OK;
}

int sv_gguf_tokenizer_json(const struct sv_gguf *g, struct sv_buf *out, struct sv_err *err)
{
    struct maker m = {.g = g, .out = out, .err = err};
    if (!sv_gguf_find(g, "tokenizer.ggml.tokens"))
        return SV_OK;
    int rc = find_lists(&m);
    if (!rc)
        rc = find_pre(&m);
    if (rc)
        return rc;
    sv_buf_lit(out, "{\"added_tokens\":[");
    put_added(&m);
    put_split(&m);
    rc = put_post(&m);
    sv_buf_printf(out, ",\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,\"vocab\":{",
                  m.pre->ignore_merges ? "true" : "false");
    if (!rc)
        rc = put_vocab(&m);
    sv_buf_lit(out, "},\"merges\":[");
    if (!rc)
        rc = put_merges(&m);
    sv_buf_lit(out, "]}}");
    if (!rc && out->failed)
        rc = sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", g->file);
    return rc;
}

/* ---------------------------------------------------------------- chat template */

static int no_memory(const struct sv_gguf *g, struct sv_err *err)
{
    return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", g->file);
}

/* The text of the token whose id is under key, as field. */
static int set_token(const struct sv_gguf *g, json_t *root, const char *field, const char *key,
                     struct sv_err *err)
{
    const struct sv_gguf_kv *tokens;
    int64_t id = -1;
    int rc = sv_gguf_strings(g, "tokenizer.ggml.tokens", &tokens, err);
    if (!rc)
        rc = sv_gguf_int_opt(g, key, 0, UINT32_MAX, &id, err);
    if (rc || id < 0 || !tokens || (uint64_t)id >= tokens->n)
        return rc;
    const uint8_t *at = tokens->at;
    const char *s = NULL;
    size_t n = 0;
    for (int64_t i = 0; i <= id; i++)
        s = sv_gguf_next(&at, &n);
    json_t *text = json_stringn(s, n);
    if (!text)
        return sv_fail(err, SV_EFORMAT, -1, "%s: token %lld ('%s') is not UTF-8", g->file,
                       (long long)id, key);
    return json_object_set_new(root, field, text) ? no_memory(g, err) : SV_OK;
}

/* Key "tokenizer.chat_template" or "tokenizer.chat_template.tool_use" as a named one. */
static int add_template(const struct sv_gguf *g, json_t *list, const char *key, const char *name,
                        struct sv_err *err)
{
    const char *s = NULL;
    size_t n = 0;
    int rc = sv_gguf_str_opt(g, key, &s, &n, err);
    if (rc || !s)
        return rc;
    json_t *text = json_stringn(s, n), *item = json_object();
    if (!text || !item) {
        json_decref(text);
        json_decref(item);
        return sv_fail(err, SV_EFORMAT, -1, "%s: key '%s' is not UTF-8", g->file, key);
    }
    rc = json_object_set_new(item, "template", text) ||
         json_object_set_new(item, "name", json_string(name)) || json_array_append(list, item);
    json_decref(item);
    return rc ? no_memory(g, err) : SV_OK;
}

json_t *sv_gguf_tokenizer_config(const struct sv_gguf *g, struct sv_err *err)
{
    static const char *const tokens[][2] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                            {"eos_token", "tokenizer.ggml.eos_token_id"},
                                            {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                            {"pad_token", "tokenizer.ggml.padding_token_id"}};
    json_t *root = json_object(), *list = json_array();
    int rc = root && list ? SV_OK : no_memory(g, err);
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0] && !rc; i++)
        rc = set_token(g, root, tokens[i][0], tokens[i][1], err);
    if (!rc)
        rc = add_template(g, list, "tokenizer.chat_template", "default", err);
    if (!rc)
        rc = add_template(g, list, "tokenizer.chat_template.tool_use", "tool_use", err);
    if (!rc && json_array_size(list) && json_object_set(root, "chat_template", list))
        rc = no_memory(g, err);
    json_decref(list);
    if (rc) {
        json_decref(root);
        return NULL;
    }
    return root;
}

/* ---------------------------------------------------------------- opening either kind */

bool sv_model_has_tokenizer(const char *dir)
{
    struct sv_gguf_file f;
    struct sv_err err;
    if (sv_is_gguf(dir)) {
        if (sv_gguf_open(&f, dir, &err))
            return true; /* opening will say why */
        const bool has = sv_gguf_find(&f.g, "tokenizer.ggml.tokens");
        sv_gguf_close(&f);
        return has;
    }
    char *path = sv_path_join(dir, "tokenizer.json");
    const bool there = !path || sv_file_exists(path); /* no memory: opening reports it */
    sv_free(path);
    return there;
}

int sv_model_tokenizer_config(json_t **config, const char *dir, struct sv_err *err)
{
    struct sv_gguf_file f;
    struct sv_err local;
    char *path;
    err = err ? err : &local; /* codes travel in it */
    *config = NULL;
    if (sv_is_gguf(dir)) {
        int rc = sv_gguf_open(&f, dir, err);
        if (rc)
            return rc;
        *config = sv_gguf_tokenizer_config(&f.g, err);
        sv_gguf_close(&f);
        return *config ? SV_OK : err->code;
    }
    int rc = sv_dir_json(dir, "tokenizer_config.json", false, &path, config, err);
    sv_free(path);
    if (!rc && !*config)
        *config = json_object();
    return rc || *config ? rc : sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", dir);
}

static int open_tokenizer(struct sv_tokenizer **tok, const struct sv_gguf *g, struct sv_err *err)
{
    struct sv_buf text;
    sv_buf_init(&text);
    int rc = sv_gguf_tokenizer_json(g, &text, err);
    if (!rc && !text.len)
        rc = sv_fail(err, SV_EFORMAT, -1, "%s: key 'tokenizer.ggml.tokens' is missing", g->file);
    if (!rc) {
        rc = sv_tokenizer_parse(tok, text.data, text.len, err);
        if (rc)
            sv_err_prefix(err, "%s: as tokenizer.json", g->file);
    }
    sv_buf_fini(&text);
    return rc;
}

int sv_model_tokenizer(struct sv_tokenizer **tok, const char *dir, struct sv_err *err)
{
    struct sv_gguf_file f;
    *tok = NULL;
    if (!sv_is_gguf(dir))
        return sv_tokenizer_open(tok, dir, err);
    int rc = sv_gguf_open(&f, dir, err);
    if (rc)
        return rc;
    rc = open_tokenizer(tok, &f.g, err);
    sv_gguf_close(&f);
    return rc;
}

int sv_model_chat_template(struct sv_chat_template **t, const char *dir, const char *text, size_t n,
                           struct sv_err *err)
{
    json_t *config;
    *t = NULL;
    if (!sv_is_gguf(dir))
        return text ? sv_chat_template_parse(t, dir, text, n, err)
                    : sv_chat_template_open(t, dir, err);
    int rc = sv_model_tokenizer_config(&config, dir, err);
    if (!rc)
        rc = sv_chat_template_of(t, config, dir, text, n, err);
    json_decref(config);
    return rc;
}
