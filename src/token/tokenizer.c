/*
 * tokenizer.c - life of a tokenizer: opening a directory, parsing tokenizer.json, the tables by id,
 * closing.
 *
 * Called through text.h by engine and cli. Parsing scans the file once for the positions of its
 * parts and then reads each; afterwards nothing points into the file. Must not: leave memory
 * allocated on failure.
 */
#include "token/tok.h"

#include <string.h>

#define MAX_FILE_BYTES ((size_t)1 << 29)

/* ---------------------------------------------------------------- the byte-level alphabet */

static bool is_printable(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

/* Printable bytes map to themselves; the 68 others to U+0100 and up, in order. */
uint32_t sv_char_of_byte(uint8_t b)
{
    if (is_printable(b))
        return b;
    if (b <= 0x20)
        return 0x100u + b;
    return b <= 0xA0 ? 0x121u + (b - 0x7Fu) : 0x143u;
}

/* Byte that a character of the byte-level alphabet stands for, or -1. */
static int byte_of_char(uint32_t cp)
{
    if (cp < 0x100)
        return is_printable(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

/* ---------------------------------------------------------------- parts of the file */

enum { PART_ADDED, PART_NORMALIZER, PART_PRE, PART_POST, PART_DECODER, PART_MODEL, N_PARTS };
static const char *const part_names[N_PARTS] = {"added_tokens",   "normalizer", "pre_tokenizer",
                                                "post_processor", "decoder",    "model"};
struct span {
    size_t at, end; /* end 0 = absent */
};

static int find_parts(struct sv_tokenizer *tok, struct sv_jpull *j, struct span parts[N_PARTS],
                      struct sv_model_at *model)
{
    struct sv_buf key;
    bool first = true;
    int rc;

    sv_buf_init(&key);
    rc = sv_jpull_enter(j, '{');
    while (rc == SV_OK && (rc = sv_jpull_more(j, '}', &first, &key)) == 1) {
        size_t at;
        (void)sv_jpull_peek(j);
        at = j->pos;
        rc = strcmp(key.data, "model") == 0 ? sv_tok_find_model(tok, j, model) : sv_jpull_skip(j);
        for (int i = 0; rc == SV_OK && i < N_PARTS; i++) {
            if (strcmp(key.data, part_names[i]) != 0)
                continue;
            if (parts[i].end)
                rc = sv_jpull_fail(j, at, "'%s' is there twice", part_names[i]);
            parts[i] = (struct span){at, j->pos};
        }
    }
    if (rc == SV_OK && sv_jpull_peek(j) >= 0)
        rc = sv_jpull_fail(j, j->pos, "something follows the end");
    sv_buf_fini(&key);
    return rc;
}

/* One small part; an absent one reads like null. */
static int read_pipe(struct sv_tokenizer *tok, struct sv_jpull *j, struct span part, int which)
{
    const struct sv_tree *v = NULL;
    struct sv_arena nodes;
    int rc = SV_OK;

    sv_arena_init(&nodes);
    j->pos = part.at;
    if (part.end)
        rc = sv_tree_read(j, &nodes, &v);
    if (rc == SV_OK && v && v->kind != SV_TREE_OBJECT)
        rc = sv_jpull_fail(j, v->pos, "expected an object");
    if (rc == SV_OK && which == PART_NORMALIZER)
        rc = sv_tok_parse_normalizer(tok, v, j->err);
    else if (rc == SV_OK && which == PART_PRE)
        rc = sv_tok_parse_pre(tok, v, j->err);
    else if (rc == SV_OK && which == PART_POST)
        rc = sv_tok_parse_post(tok, v, j->err);
    else if (rc == SV_OK)
        rc = sv_tok_parse_decoder(v, j->err);
    sv_arena_fini(&nodes);
    if (rc < 0)
        sv_err_prefix(j->err, "%s", part_names[which]);
    return rc;
}

/* ---------------------------------------------------------------- tables */

static int normalize_added(struct sv_tokenizer *tok, struct sv_err *err)
{
    struct sv_enc_scratch *s = NULL;
    struct sv_buf text;
    int rc = SV_OK;

    sv_buf_init(&text);
    for (int32_t i = 0; rc == SV_OK && tok->nfc && i < tok->n_added; i++) {
        struct sv_added *a = &tok->added[i];
        bool changed = false;
        char *copy;
        if (!a->normalized)
            continue;
        if (!s && !(s = sv_enc_scratch_new()))
            rc = SV_ENOMEM;
        sv_buf_clear(&text);
        if (rc == SV_OK)
            rc = sv_nfc(s, a->content, a->n, &text, &changed);
        if (rc < 0 || !changed)
            continue;
        copy = sv_bytes_copy(text.data, text.len);
        if (!copy) {
            rc = SV_ENOMEM;
            continue;
        }
        sv_free(a->content);
        a->content = copy;
        a->n = text.len;
        a->changed = true;
    }
    for (int32_t i = 0; rc == SV_OK && i < tok->n_added; i++) {
        const struct sv_added *a = &tok->added[i];
        rc = sv_trie_add(a->normalized ? &tok->normalized : &tok->raw, a->content, a->n, i);
    }
    sv_enc_scratch_free(s);
    sv_buf_fini(&text);
    return rc < 0 ? sv_fail(err, rc, -1, "out of memory") : SV_OK;
}

/* Appends a published token's decoded text: bytes when all of it is in the alphabet, else itself.
 */
static void append_decoded(struct sv_buf *out, const char *s, size_t n)
{
    size_t start = out->len;

    for (size_t i = 0; i < n;) {
        int len, b = byte_of_char(sv_utf8_get(s + i, &len));
        char c = (char)b;
        if (b < 0) {
            out->len = start;
            sv_buf_append(out, s, n);
            return;
        }
        sv_buf_append(out, &c, 1);
        i += (size_t)len;
    }
}

/* The bytes of every id, then the ids of single bytes. */
static int build_tables(struct sv_tokenizer *tok, struct sv_err *err)
{
    size_t n = (size_t)tok->n_tokens;
    struct sv_buf bytes;

    sv_buf_init(&bytes);
    tok->at = sv_calloc(n, sizeof *tok->at);
    tok->len = sv_calloc(n, sizeof *tok->len);
    tok->flags = sv_calloc(n, 1);
    sv_buf_reserve(&bytes, tok->vocab.text.len);
    if (!tok->at || !tok->len || !tok->flags || bytes.failed) {
        sv_buf_fini(&bytes);
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    for (size_t id = 0; id < n; id++) {
        if (tok->name_at[id] == UINT32_MAX)
            continue;
        tok->at[id] = (uint32_t)bytes.len;
        append_decoded(&bytes, tok->vocab.text.data + tok->name_at[id], tok->name_len[id]);
        tok->len[id] = (uint32_t)(bytes.len - tok->at[id]);
        tok->flags[id] = SV_TOK_KNOWN;
        if (tok->name_at[id] < tok->model_text) {
            tok->flags[id] |= SV_TOK_MODEL;
            if (tok->len[id] > tok->max_token_bytes)
                tok->max_token_bytes = tok->len[id];
        }
    }
    for (int32_t i = 0; i < tok->n_added; i++) {
        const struct sv_added *a = &tok->added[i];
        if (a->special)
            tok->flags[a->id] |= SV_TOK_SPECIAL;
        if (!a->changed)
            continue;
        tok->at[a->id] = (uint32_t)bytes.len; /* the reference decodes the normalized form */
        append_decoded(&bytes, a->content, a->n);
        tok->len[a->id] = (uint32_t)(bytes.len - tok->at[a->id]);
    }
    tok->bytes = bytes.data;
    for (int b = 0; b < 256; b++) {
        char utf8[4];
        int len = sv_utf8_put(sv_char_of_byte((uint8_t)b), utf8);
        int32_t id = sv_strmap_find(&tok->vocab, utf8, (size_t)len);
        tok->byte_id[b] = id >= 0 && tok->flags[id] & SV_TOK_MODEL ? id : -1;
        tok->lacks_bytes |= tok->byte_id[b] < 0;
    }
    if (bytes.failed || sv_merges_finish(&tok->merges, tok->byte_id) < 0)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    return SV_OK;
}

/* ---------------------------------------------------------------- open and close */

static struct sv_tokenizer *new_tokenizer(void)
{
    struct sv_tokenizer *tok = sv_calloc(1, sizeof *tok);

    if (!tok)
        return NULL;
    sv_trie_init(&tok->raw);
    sv_trie_init(&tok->normalized);
    tok->prefix_level = -1;
    tok->stamp = sv_hash_bytes((const char *)&tok, sizeof tok) ^ (uint64_t)sv_clock_ns();
    tok->stamp += !tok->stamp; /* 0 is a fresh scratch */
    return tok;
}

void sv_tokenizer_close(struct sv_tokenizer *tok)
{
    if (!tok)
        return;
    for (int32_t i = 0; i < tok->n_added; i++)
        sv_free(tok->added[i].content);
    for (int i = 0; i < SV_MAX_SPLITS; i++)
        sv_regex_close(&tok->split[i].re);
    sv_trie_fini(&tok->raw);
    sv_trie_fini(&tok->normalized);
    sv_strmap_fini(&tok->vocab);
    sv_merges_fini(&tok->merges);
    sv_free(tok->added);
    sv_free(tok->name_at);
    sv_free(tok->name_len);
    sv_free(tok->bytes);
    sv_free(tok->at);
    sv_free(tok->len);
    sv_free(tok->flags);
    sv_free(tok->before);
    sv_free(tok->after);
    sv_free(tok);
}

/* tokenizer.json's lists; the pipeline's parts come later, when all ids are known. */
static int read_lists(struct sv_tokenizer *tok, struct sv_jpull *j, const struct span *parts,
                      const struct sv_model_at *model)
{
    int rc;

    if (!parts[PART_MODEL].end)
        return sv_jpull_fail(j, 0, "'model' is missing");
    rc = sv_tok_parse_model(tok, j, model);
    if (rc < 0)
        return rc;
    if (!tok->n_tokens)
        return sv_jpull_fail(j, parts[PART_MODEL].at, "model.vocab is empty");
    tok->model_text = (uint32_t)tok->vocab.text.len;
    if (!parts[PART_ADDED].end || j->text[parts[PART_ADDED].at] == 'n')
        return SV_OK;
    j->pos = parts[PART_ADDED].at;
    return sv_tok_parse_added(tok, j);
}

/* added_tokens_decoder of tokenizer_config.json: tokens the other file lacks, and newer flags. */
static int read_config(struct sv_tokenizer *tok, const char *text, size_t n, struct sv_err *err)
{
    struct sv_jpull j = {.text = text, .n = n, .err = err};
    struct sv_buf key;
    bool first = true, inner = true;
    int rc;

    sv_buf_init(&key);
    rc = sv_jpull_enter(&j, '{');
    while (rc == SV_OK && (rc = sv_jpull_more(&j, '}', &first, &key)) == 1) {
        if (strcmp(key.data, "added_tokens_decoder") != 0 || sv_jpull_peek(&j) != '{') {
            rc = sv_jpull_skip(&j);
            continue;
        }
        rc = sv_jpull_enter(&j, '{');
        while (rc == SV_OK && (rc = sv_jpull_more(&j, '}', &inner, &key)) == 1) {
            struct sv_jpull number = {.text = key.data, .n = key.len, .err = err};
            int64_t id = -1;
            rc = sv_jpull_int(&number, 0, INT32_MAX, &id);
            if (rc == SV_OK)
                rc = sv_tok_read_added(tok, &j, (int32_t)id);
            if (rc < 0)
                sv_err_prefix(err, "added_tokens_decoder['%.20s']", key.data);
        }
    }
    sv_buf_fini(&key);
    return rc;
}

/* A file's text, and its name in errors; NULL: none. */
struct file {
    const char *text;
    size_t n;
    const char *name;
};

static int build(struct sv_tokenizer *tok, const struct file *json, const struct file *config,
                 const char **at_fault, struct sv_err *err)
{
    struct sv_jpull j = {.text = json->text, .n = json->n, .err = err};
    struct span parts[N_PARTS] = {{0, 0}};
    struct sv_model_at model = {0};
    int rc = find_parts(tok, &j, parts, &model);

    if (rc == SV_OK)
        rc = read_lists(tok, &j, parts, &model);
    if (rc == SV_OK && config->text) {
        rc = read_config(tok, config->text, config->n, err);
        if (rc < 0)
            *at_fault = config->name;
    }
    for (int i = PART_NORMALIZER; rc == SV_OK && i <= PART_DECODER; i++)
        rc = read_pipe(tok, &j, parts[i], i);
    if (rc == SV_OK)
        rc = normalize_added(tok, err);
    if (rc == SV_OK)
        rc = build_tables(tok, err);
    return rc;
}

static int parse(struct sv_tokenizer **out, const struct file *json, const struct file *config,
                 struct sv_err *err)
{
    struct sv_tokenizer *tok = new_tokenizer();
    const char *at_fault = json->name;
    int rc;

    *out = NULL;
    if (!tok)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (json->n > MAX_FILE_BYTES || config->n > MAX_FILE_BYTES)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "a file of %zu bytes",
                     json->n > config->n ? json->n : config->n);
    else
        rc = build(tok, json, config, &at_fault, err);
    if (rc < 0) {
        sv_tokenizer_close(tok);
        return at_fault ? sv_err_prefix(err, "%s", at_fault) : rc;
    }
    *out = tok;
    return SV_OK;
}

int sv_tokenizer_parse(struct sv_tokenizer **tok, const char *json, size_t n, struct sv_err *err)
{
    return parse(tok, &(struct file){json, n, NULL}, &(struct file){NULL, 0, NULL}, err);
}

int sv_tokenizer_open(struct sv_tokenizer **tok, const char *dir, struct sv_err *err)
{
    struct sv_map json = {0}, config = {0};
    char *path = sv_path_join(dir, "tokenizer.json"),
         *config_path = sv_path_join(dir, "tokenizer_config.json");
    int rc;

    *tok = NULL;
    if (!path || !config_path)
        rc = sv_fail(err, SV_ENOMEM, -1, "out of memory");
    else
        rc = sv_map_open(&json, path, err);
    if (rc == SV_OK && sv_file_exists(config_path))
        rc = sv_map_open(&config, config_path, err);
    if (rc == SV_OK)
        rc = parse(tok, &(struct file){(const char *)json.data, json.n_bytes, path},
                   &(struct file){(const char *)config.data, config.n_bytes, config_path}, err);
    sv_map_close(&config);
    sv_map_close(&json);
    sv_free(config_path);
    sv_free(path);
    return rc;
}

/* ---------------------------------------------------------------- look-ups */

int32_t sv_tokenizer_n_tokens(const struct sv_tokenizer *tok)
{
    return tok->n_tokens;
}

int32_t sv_tokenizer_find(const struct sv_tokenizer *tok, const char *token)
{
    return sv_strmap_find(&tok->vocab, token, strlen(token));
}
