/*
 * parse_model.c - reads "model" (vocabulary, merges) and added tokens of a tokenizer.json.
 *
 * Called by tokenizer.c. Both are long lists, so they are pulled from the text entry by entry and
 * errors name the entry and the byte. Must not: trust an id, a merge or a string of the file.
 */
#include "token/tok.h"

#include <string.h>

#define MAX_ID ((int64_t)1 << 24)
#define MAX_ADDED_BYTES 1024 /* added.c's longest look-ahead at each position */
#define MAX_ADDED 65536

static int no_memory(struct sv_jpull *j)
{
    return sv_fail(j->err, SV_ENOMEM, -1, "out of memory");
}

/* ---------------------------------------------------------------- ids */

static int reserve_names(struct sv_tokenizer *tok, size_t n)
{
    size_t cap = tok->names_cap ? tok->names_cap : 1024;
    uint32_t *at, *len;

    if (n <= tok->names_cap)
        return SV_OK;
    while (cap < n)
        cap *= 2;
    at = sv_realloc(tok->name_at, tok->names_cap * sizeof *at, cap * sizeof *at);
    if (!at)
        return SV_ENOMEM;
    tok->name_at = at;
    len = sv_realloc(tok->name_len, tok->names_cap * sizeof *len, cap * sizeof *len);
    if (!len)
        return SV_ENOMEM;
    tok->name_len = len;
    for (size_t i = tok->names_cap; i < cap; i++)
        at[i] = UINT32_MAX;
    tok->names_cap = cap;
    return SV_OK;
}

/* A new token: text and id are both unused so far. */
static int add_name(struct sv_tokenizer *tok, struct sv_jpull *j, const struct sv_buf *text,
                    int64_t id, size_t pos, const char *where)
{
    if (reserve_names(tok, (size_t)id + 1) < 0)
        return no_memory(j);
    if (tok->name_at[id] != UINT32_MAX)
        return sv_jpull_fail(j, pos, "%s: id %lld belongs to both '%.40s' and '%.40s'", where,
                             (long long)id, tok->vocab.text.data + tok->name_at[id], text->data);
    if (text->len > UINT32_MAX - tok->vocab.text.len)
        return sv_jpull_fail(j, pos, "%s: more than 4 GiB of text", where);
    tok->name_at[id] = (uint32_t)tok->vocab.text.len;
    tok->name_len[id] = (uint32_t)text->len;
    if (sv_strmap_add(&tok->vocab, text->data, text->len, (int32_t)id) < 0)
        return no_memory(j);
    sv_buf_append(&tok->vocab.text, "", 1); /* names can be printed */
    if (id >= tok->n_tokens)
        tok->n_tokens = (int32_t)id + 1;
    return SV_OK;
}

/* ---------------------------------------------------------------- vocabulary and merges */

static int read_vocab(struct sv_tokenizer *tok, struct sv_jpull *j)
{
    bool first = true;
    struct sv_buf key;
    int rc;

    sv_buf_init(&key);
    rc = sv_jpull_enter(j, '{');
    while (rc == SV_OK && (rc = sv_jpull_more(j, '}', &first, &key)) == 1) {
        size_t pos = j->pos;
        int64_t id;
        rc = sv_jpull_int(j, 0, MAX_ID, &id);
        if (rc < 0)
            sv_err_prefix(j->err, "model.vocab['%.40s']", key.data);
        else if (sv_strmap_find(&tok->vocab, key.data, key.len) >= 0)
            rc = sv_jpull_fail(j, pos, "model.vocab: '%.40s' is there twice", key.data);
        else
            rc = add_name(tok, j, &key, id, pos, "model.vocab");
        tok->n_vocab++;
    }
    sv_buf_fini(&key);
    if (rc == SV_OK && tok->n_tokens / 4 > tok->n_vocab + 65536)
        rc = sv_jpull_fail(j, j->pos, "model.vocab: %d tokens, but ids up to %d", tok->n_vocab,
                           tok->n_tokens - 1);
    return rc;
}

static int find_part(const struct sv_tokenizer *tok, struct sv_jpull *j, size_t pos, long rank,
                     const char *s, size_t n, int32_t *id)
{
    *id = sv_strmap_find(&tok->vocab, s, n);
    if (*id < 0)
        return sv_jpull_fail(j, pos, "model.merges[%ld]: '%.*s' is not in the vocabulary", rank,
                             n > 80 ? 80 : (int)n, s);
    return SV_OK;
}

/* "a b" into both = ab; *split is the length of a. 1: a comment of the old layout. */
static int merge_string(struct sv_jpull *j, struct sv_buf *both, size_t *split)
{
    size_t pos = j->pos;
    int rc = sv_jpull_string(j, both);
    char *space;

    if (rc < 0)
        return rc;
    if (both->len >= 8 && memcmp(both->data, "#version", 8) == 0)
        return 1;
    space = both->len ? memchr(both->data, ' ', both->len) : NULL;
    if (!space || memchr(space + 1, ' ', both->len - (size_t)(space + 1 - both->data)))
        return sv_jpull_fail(j, pos, "expected two parts with one space between");
    *split = (size_t)(space - both->data);
    memmove(space, space + 1, both->len - *split - 1);
    both->len--;
    return SV_OK;
}

/* ["a", "b"] into both = ab. */
static int merge_pair(struct sv_jpull *j, struct sv_buf *both, struct sv_buf *part, size_t *split)
{
    size_t pos = j->pos;
    bool first = true;
    int n_parts = 0, rc = sv_jpull_enter(j, '[');

    sv_buf_clear(both);
    while (rc == SV_OK && (rc = sv_jpull_more(j, ']', &first, NULL)) == 1) {
        rc = sv_jpull_string(j, part);
        if (rc < 0)
            return rc;
        *split = both->len;
        sv_buf_append(both, part->data, part->len);
        if (++n_parts > 2)
            break;
    }
    if (rc == SV_OK && n_parts != 2)
        return sv_jpull_fail(j, pos, "expected two parts");
    return rc == SV_OK && both->failed ? no_memory(j) : rc;
}

static bool is_name(const struct sv_tokenizer *tok, int32_t id, const struct sv_buf *text)
{
    return id > 0 && id < tok->n_tokens && tok->name_at[id] != UINT32_MAX &&
           tok->name_len[id] == text->len &&
           memcmp(tok->vocab.text.data + tok->name_at[id], text->data, text->len) == 0;
}

static int read_merges(struct sv_tokenizer *tok, struct sv_jpull *j)
{
    struct sv_buf both, part;
    int32_t last = -1; /* most files give the results of successive merges successive ids */
    bool first = true;
    long rank = 0;
    int rc;

    sv_buf_init(&both);
    sv_buf_init(&part);
    rc = sv_jpull_enter(j, '[');
    while (rc == SV_OK && (rc = sv_jpull_more(j, ']', &first, NULL)) == 1) {
        int32_t left = -1, right = -1, id = -1;
        size_t pos = j->pos, split = 0;
        rc = sv_jpull_peek(j) == '"' ? merge_string(j, &both, &split)
                                     : merge_pair(j, &both, &part, &split);
        if (rc == 1) {
            rc = SV_OK;
            continue;
        }
        if (rc < 0)
            sv_err_prefix(j->err, "model.merges[%ld]", rank);
        if (rc == SV_OK)
            rc = find_part(tok, j, pos, rank, both.data, split, &left);
        if (rc == SV_OK)
            rc = find_part(tok, j, pos, rank, both.data + split, both.len - split, &right);
        if (rc == SV_OK && is_name(tok, last + 1, &both))
            id = last + 1;
        else if (rc == SV_OK)
            rc = find_part(tok, j, pos, rank, both.data, both.len, &id);
        last = id;
        if (rc == SV_OK && sv_merges_add(&tok->merges, left, right, (uint32_t)rank, id) < 0)
            rc = no_memory(j);
        rank++;
    }
    sv_buf_fini(&both);
    sv_buf_fini(&part);
    return rc;
}

/* ---------------------------------------------------------------- the model object */

/* Fields that change BPE and that byte-level models leave at null, false, 0 or "". */
static int expect_unset(struct sv_jpull *j, const char *name)
{
    static const char *const unset[] = {"null", "false", "\"\"", "0.0", "0"};
    size_t pos, n;
    int rc;

    (void)sv_jpull_peek(j);
    pos = j->pos;
    rc = sv_jpull_skip(j);
    n = j->pos - pos;
    for (size_t i = 0; rc == SV_OK && i < sizeof unset / sizeof unset[0]; i++)
        if (strlen(unset[i]) == n && memcmp(j->text + pos, unset[i], n) == 0)
            return SV_OK;
    if (rc < 0)
        return rc;
    return sv_fail(j->err, SV_EUNSUPPORTED, (int64_t)pos,
                   "byte %zu: model.%s = %.*s is not supported", pos, name, n > 60 ? 60 : (int)n,
                   j->text + pos);
}

static int read_field(struct sv_tokenizer *tok, struct sv_jpull *j, const char *key,
                      struct sv_model_at *at)
{
    static const char *const refused[] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix", NULL};
    struct sv_buf text;
    int rc;

    for (int i = 0; refused[i]; i++)
        if (strcmp(key, refused[i]) == 0)
            return expect_unset(j, key);
    if (strcmp(key, "unk_token") == 0 || strcmp(key, "byte_fallback") == 0) {
        size_t pos = j->pos;
        rc = expect_unset(j, key);
        if (rc != SV_EUNSUPPORTED)
            return rc;
        at->unknown = at->unknown ? at->unknown : pos; /* decided when byte ids are known */
        return SV_OK;
    }
    if (strcmp(key, "vocab") == 0 || strcmp(key, "merges") == 0) {
        size_t *place = key[0] == 'v' ? &at->vocab : &at->merges;
        (void)sv_jpull_peek(j);
        if (*place)
            return sv_jpull_fail(j, j->pos, "model.%s is there twice", key);
        *place = j->pos;
        return sv_jpull_skip(j);
    }
    if (strcmp(key, "ignore_merges") == 0) {
        if (sv_jpull_peek(j) == 'n')
            return expect_unset(j, key);
        rc = sv_jpull_bool(j, &tok->ignore_merges);
        if (rc < 0)
            sv_err_prefix(j->err, "model.ignore_merges");
        return rc;
    }
    if (strcmp(key, "type") != 0)
        return sv_jpull_skip(j);
    sv_buf_init(&text);
    rc = sv_jpull_string(j, &text);
    if (rc == SV_OK && strcmp(text.data, "BPE") != 0)
        rc = sv_fail(j->err, SV_EUNSUPPORTED, (int64_t)j->pos,
                     "model.type '%.40s' is not supported, only BPE", text.data);
    sv_buf_fini(&text);
    return rc;
}

/* Entries of an array or object, counted by its commas: an upper bound that sizes the tables. */
static size_t count_entries(const char *text, size_t n)
{
    size_t count = 1;
    for (size_t i = 0; i < n; i++)
        count += text[i] == ',';
    return count;
}

int sv_tok_find_model(struct sv_tokenizer *tok, struct sv_jpull *j, struct sv_model_at *at)
{
    bool first = true;
    struct sv_buf key;
    int rc;

    memset(at, 0, sizeof *at);
    sv_buf_init(&key);
    rc = sv_jpull_enter(j, '{');
    while (rc == SV_OK && (rc = sv_jpull_more(j, '}', &first, &key)) == 1)
        rc = read_field(tok, j, key.data, at);
    sv_buf_fini(&key);
    at->end = j->pos;
    return rc;
}

/* Such a vocabulary has no unknown text. */
static bool has_all_bytes(const struct sv_tokenizer *tok)
{
    for (int b = 0; b < 256; b++) {
        char utf8[4];
        int len = sv_utf8_put(sv_char_of_byte((uint8_t)b), utf8);
        if (sv_strmap_find(&tok->vocab, utf8, (size_t)len) < 0)
            return false;
    }
    return true;
}

int sv_tok_parse_model(struct sv_tokenizer *tok, struct sv_jpull *j, const struct sv_model_at *at)
{
    size_t n_entries;
    int rc;

    if (!at->vocab || !at->merges)
        return sv_jpull_fail(j, at->end, "model.%s is missing", at->vocab ? "merges" : "vocab");
    n_entries = count_entries(j->text + at->vocab,
                              (at->merges > at->vocab ? at->merges : at->end) - at->vocab);
    if (sv_strmap_init(&tok->vocab, n_entries) < 0 || sv_merges_init(&tok->merges, n_entries) < 0)
        return no_memory(j);
    j->pos = at->vocab;
    rc = read_vocab(tok, j);
    if (rc < 0)
        return rc;
    j->pos = at->merges;
    rc = read_merges(tok, j);
    if (rc == SV_OK && at->unknown && !has_all_bytes(tok))
        return sv_fail(
            j->err, SV_EUNSUPPORTED, (int64_t)at->unknown,
            "byte %zu: model.unk_token and model.byte_fallback are only supported where the "
            "vocabulary has all 256 bytes",
            at->unknown);
    return rc;
}

/* ---------------------------------------------------------------- added tokens */

/* Adds one token; a later one with the same text replaces the flags of an earlier one. */
static int add_token(struct sv_tokenizer *tok, const struct sv_added *a, struct sv_err *err)
{
    struct sv_jpull j = {.err = err};
    struct sv_buf text = {.data = a->content, .len = a->n};
    int32_t id = sv_strmap_find(&tok->vocab, a->content, a->n), k;
    char *copy;
    int rc;

    if (!a->n)
        return SV_OK;
    if (a->n > MAX_ADDED_BYTES)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "'%.40s...' is longer than %d bytes", a->content,
                       MAX_ADDED_BYTES);
    if (a->id < 0 || a->id > MAX_ID || a->id / 4 > tok->n_tokens + 65536)
        return sv_fail(err, SV_EFORMAT, -1, "id %d of '%.40s' is out of range", a->id, a->content);
    if (id >= 0 && id != a->id)
        return sv_fail(err, SV_EFORMAT, -1, "'%.40s' has id %d here and %d elsewhere", a->content,
                       a->id, id);
    if (id < 0) {
        rc = add_name(tok, &j, &text, a->id, 0, "added token");
        if (rc < 0)
            return rc;
    }
    for (k = 0; k < tok->n_added && tok->added[k].id != a->id; k++)
        ;
    if (k == MAX_ADDED)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "more than %d added tokens", MAX_ADDED);
    if (k == tok->n_added) {
        if (tok->n_added == tok->added_cap) {
            int32_t cap = tok->added_cap ? tok->added_cap * 2 : 64;
            void *p = sv_realloc(tok->added, (size_t)tok->added_cap * sizeof *tok->added,
                                 (size_t)cap * sizeof *tok->added);
            if (!p)
                return sv_fail(err, SV_ENOMEM, -1, "out of memory");
            tok->added = p;
            tok->added_cap = cap;
        }
        copy = sv_bytes_copy(a->content, a->n);
        if (!copy)
            return sv_fail(err, SV_ENOMEM, -1, "out of memory");
        tok->added[tok->n_added++] = *a;
        tok->added[k].content = copy;
        return SV_OK;
    }
    copy = tok->added[k].content;
    tok->added[k] = *a;
    tok->added[k].content = copy;
    return SV_OK;
}

static int read_added_field(struct sv_jpull *j, const char *key, struct sv_added *a,
                            struct sv_buf *content, bool *has_id)
{
    struct {
        const char *name;
        bool *flag;
    } flags[] = {{"special", &a->special},
                 {"lstrip", &a->lstrip},
                 {"rstrip", &a->rstrip},
                 {"single_word", &a->single_word},
                 {"normalized", &a->normalized}};
    int64_t id;
    int rc;

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (strcmp(key, flags[i].name) == 0)
            return sv_jpull_bool(j, flags[i].flag);
    if (strcmp(key, "content") == 0)
        return sv_jpull_string(j, content);
    if (strcmp(key, "id") != 0)
        return sv_jpull_skip(j);
    rc = sv_jpull_int(j, 0, MAX_ID, &id);
    if (rc == SV_OK) {
        a->id = (int32_t)id;
        *has_id = true;
    }
    return rc;
}

/* One object of added_tokens, or of added_tokens_decoder where id is the key's. */
int sv_tok_read_added(struct sv_tokenizer *tok, struct sv_jpull *j, int32_t id)
{
    struct sv_added a = {.id = id, .normalized = true};
    struct sv_buf key, content;
    bool first = true, has_id = id >= 0;
    size_t pos = j->pos;
    int rc;

    sv_buf_init(&key);
    sv_buf_init(&content);
    rc = sv_jpull_enter(j, '{');
    while (rc == SV_OK && (rc = sv_jpull_more(j, '}', &first, &key)) == 1) {
        rc = read_added_field(j, key.data, &a, &content, &has_id);
        if (rc < 0)
            sv_err_prefix(j->err, "%.40s", key.data);
    }
    if (rc == SV_OK && (!has_id || !content.data))
        rc = sv_jpull_fail(j, pos, "%s is missing", has_id ? "content" : "id");
    if (rc == SV_OK) {
        a.content = content.data;
        a.n = content.len;
        rc = add_token(tok, &a, j->err);
        if (rc < 0 && j->err && j->err->pos < 0)
            j->err->pos = (int64_t)pos;
    }
    sv_buf_fini(&key);
    sv_buf_fini(&content);
    return rc;
}

int sv_tok_parse_added(struct sv_tokenizer *tok, struct sv_jpull *j)
{
    bool first = true;
    int rc = sv_jpull_enter(j, '[');

    for (int i = 0; rc == SV_OK && (rc = sv_jpull_more(j, ']', &first, NULL)) == 1; i++) {
        rc = sv_tok_read_added(tok, j, -1);
        if (rc < 0)
            sv_err_prefix(j->err, "added_tokens[%d]", i);
    }
    return rc;
}
