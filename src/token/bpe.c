/*
 * bpe.c - byte pair encoding of one word: merge table, word cache, merging of short and long words.
 *
 * Called by split.c for each word and by the parser to build the table. The order of merges is the
 * reference's: lowest rank first, leftmost among equals. Short words scan for the lowest rank, long
 * ones keep a heap, so that a word of a million bytes costs n log n. Must not: change the
 * tokenizer.
 */
#include "token/tok.h"

#include <string.h>

#define NO_PAIR UINT64_MAX
#define NO_KEY UINT64_MAX
#define NONE UINT32_MAX
#define SHORT_WORD 24 /* bytes: where scanning for the lowest rank and a heap cost the same */

/* ---------------------------------------------------------------- merge table */

static size_t pair_slot(const struct sv_merges *m, uint64_t pair)
{
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    return (size_t)((h ^ h >> 32) & (m->cap - 1));
}

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static const struct sv_merge *find_merge(const struct sv_merges *m, int32_t left, int32_t right)
{
    uint64_t pair = pair_of(left, right);

    for (size_t i = pair_slot(m, pair); m->slot[i].pair != NO_PAIR; i = (i + 1) & (m->cap - 1))
        if (m->slot[i].pair == pair)
            return &m->slot[i];
    return NULL;
}

static inline uint64_t merge_key(const struct sv_merge *f)
{
    return f ? (uint64_t)f->rank << 32 | (uint32_t)f->id : NO_KEY;
}

int sv_merges_init(struct sv_merges *m, size_t n_expected)
{
    memset(m, 0, sizeof *m);
    m->cap = 64;
    while (m->cap < n_expected + n_expected / 2)
        m->cap *= 2;
    m->slot = sv_alloc(m->cap * sizeof *m->slot);
    if (!m->slot)
        return SV_ENOMEM;
    for (size_t i = 0; i < m->cap; i++)
        m->slot[i].pair = NO_PAIR;
    return SV_OK;
}

void sv_merges_fini(struct sv_merges *m)
{
    sv_free(m->slot);
    sv_free(m->byte_key);
    memset(m, 0, sizeof *m);
}

static int grow_merges(struct sv_merges *m)
{
    struct sv_merges wider = *m;

    wider.cap = m->cap * 2;
    wider.slot = sv_alloc(wider.cap * sizeof *wider.slot);
    if (!wider.slot)
        return SV_ENOMEM;
    for (size_t i = 0; i < wider.cap; i++)
        wider.slot[i].pair = NO_PAIR;
    for (size_t i = 0; i < m->cap; i++) {
        size_t k = pair_slot(&wider, m->slot[i].pair);
        if (m->slot[i].pair == NO_PAIR)
            continue;
        while (wider.slot[k].pair != NO_PAIR)
            k = (k + 1) & (wider.cap - 1);
        wider.slot[k] = m->slot[i];
    }
    sv_free(m->slot);
    *m = wider;
    return SV_OK;
}

int sv_merges_add(struct sv_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t pair = pair_of(left, right);
    size_t i;

    if (m->n * 3 >= m->cap * 2 && grow_merges(m) < 0)
        return SV_ENOMEM;
    for (i = pair_slot(m, pair); m->slot[i].pair != NO_PAIR; i = (i + 1) & (m->cap - 1))
        if (m->slot[i].pair == pair)
            break;
    m->n += m->slot[i].pair == NO_PAIR;
    m->slot[i] = (struct sv_merge){pair, rank, id};
    return SV_OK;
}

int sv_merges_finish(struct sv_merges *m, const int32_t byte_id[256])
{
    m->byte_key = sv_alloc(65536 * sizeof *m->byte_key);
    if (!m->byte_key)
        return SV_ENOMEM;
    for (int i = 0; i < 65536; i++) {
        const struct sv_merge *f = NULL;
        if (byte_id[i >> 8] >= 0 && byte_id[i & 255] >= 0)
            f = find_merge(m, byte_id[i >> 8], byte_id[i & 255]);
        m->byte_key[i] = merge_key(f);
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- short words */

/* Merges n <= SHORT_WORD bytes into id[]; returns the number of ids. key[i] is the merge of symbol
 * i with the next one, rank above id, so that the smallest key is the merge to do. */
static size_t merge_short(const struct sv_tokenizer *tok, struct sv_enc_scratch *s,
                          const uint8_t *word, size_t n, int32_t *id)
{
    const struct sv_merges *m = &tok->merges;
    uint64_t key[SHORT_WORD];
    size_t last = n - 1; /* the last symbol, which has no key */

    for (size_t i = 0; i < last; i++) {
        id[i] = tok->byte_id[word[i]];
        key[i] = m->byte_key[word[i] << 8 | word[i + 1]];
    }
    id[last] = tok->byte_id[word[last]];
    for (;;) {
        uint64_t best = NO_KEY;
        size_t at = 0;
        for (size_t i = 0; i < last; i++) {
            at = key[i] < best ? i : at;
            best = key[i] < best ? key[i] : best;
        }
        if (best == NO_KEY)
            return last + 1;
        id[at] = (int32_t)(uint32_t)best;
        last--;
        for (size_t i = at + 1; i <= last; i++)
            id[i] = id[i + 1];
        for (size_t i = at + 1; i < last; i++)
            key[i] = key[i + 1];
        if (at < last)
            key[at] = merge_key(find_merge(m, id[at], id[at + 1]));
        if (at > 0)
            key[at - 1] = merge_key(find_merge(m, id[at - 1], id[at]));
        s->n_steps += 2;
    }
}

/* ---------------------------------------------------------------- long words */

static void heap_push(struct sv_enc_scratch *s, uint64_t v)
{
    size_t i = s->heap_n++;
    while (i && s->heap[(i - 1) / 4] > v) {
        s->heap[i] = s->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    s->heap[i] = v;
}

static uint64_t heap_pop(struct sv_enc_scratch *s)
{
    uint64_t top = s->heap[0], v = s->heap[--s->heap_n];
    size_t i = 0, n = s->heap_n;

    for (;;) {
        size_t child = i * 4 + 1, end = child + 4 < n ? child + 4 : n, best = child;
        if (child >= n)
            break;
        for (size_t k = child + 1; k < end; k++)
            if (s->heap[k] < s->heap[best])
                best = k;
        if (s->heap[best] >= v)
            break;
        s->heap[i] = s->heap[best];
        i = best;
    }
    if (n)
        s->heap[i] = v;
    return top;
}

static int reserve_long(struct sv_enc_scratch *s, size_t n)
{
    if (s->symbol_cap < n) {
        void *p = sv_realloc(s->symbol, s->symbol_cap * sizeof *s->symbol, n * sizeof *s->symbol);
        if (!p)
            return SV_ENOMEM;
        s->symbol = p;
        s->symbol_cap = n;
    }
    if (s->heap_cap < 2 * n) { /* n pairs at first; each merge removes one and adds two */
        void *p = sv_realloc(s->heap, s->heap_cap * sizeof *s->heap, 2 * n * sizeof *s->heap);
        if (!p)
            return SV_ENOMEM;
        s->heap = p;
        s->heap_cap = 2 * n;
    }
    return SV_OK;
}

/* Looks up the merge of symbol i with its successor and queues it. */
static void queue_pair(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, uint32_t i)
{
    struct sv_symbol *a = &s->symbol[i];
    const struct sv_merge *f =
        a->next != NONE ? find_merge(&tok->merges, a->id, s->symbol[a->next].id) : NULL;

    s->n_steps++;
    a->key = merge_key(f);
    if (f)
        heap_push(s, (uint64_t)f->rank << 32 | i);
}

static int merge_long(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, const uint8_t *word,
                      size_t n, struct sv_ids *out)
{
    if (reserve_long(s, n) < 0 || sv_ids_reserve(out, n) < 0)
        return SV_ENOMEM;
    s->heap_n = 0;
    for (size_t i = 0; i < n; i++) {
        struct sv_symbol *a = &s->symbol[i];
        a->id = tok->byte_id[word[i]];
        a->prev = i ? (uint32_t)i - 1 : NONE;
        a->next = i + 1 < n ? (uint32_t)i + 1 : NONE;
        a->key = i + 1 < n ? tok->merges.byte_key[word[i] << 8 | word[i + 1]] : NO_KEY;
        if (a->key != NO_KEY)
            heap_push(s, (a->key >> 32) << 32 | i);
    }
    s->n_steps += n;
    while (s->heap_n) {
        uint64_t top = heap_pop(s);
        struct sv_symbol *a = &s->symbol[(uint32_t)top], *b;
        s->n_steps++;
        /* A stale entry: the symbol is gone or its pair has changed. Ranks are unique to a pair. */
        if (a->id < 0 || a->key >> 32 != top >> 32)
            continue;
        b = &s->symbol[a->next];
        a->id = (int32_t)(uint32_t)a->key;
        a->next = b->next;
        b->id = -1;
        if (a->next != NONE)
            s->symbol[a->next].prev = (uint32_t)top;
        if (a->prev != NONE)
            queue_pair(tok, s, a->prev);
        queue_pair(tok, s, (uint32_t)top);
    }
    for (uint32_t i = 0; i != NONE; i = s->symbol[i].next)
        out->id[out->n++] = s->symbol[i].id;
    return SV_OK;
}

/* ---------------------------------------------------------------- words */

int sv_ids_reserve(struct sv_ids *ids, size_t n)
{
    size_t cap = ids->cap ? ids->cap : 256;
    void *p;

    if (ids->cap - ids->n >= n)
        return SV_OK;
    while (cap - ids->n < n)
        cap *= 2;
    p = sv_realloc(ids->id, ids->cap * sizeof *ids->id, cap * sizeof *ids->id);
    if (!p)
        return SV_ENOMEM;
    ids->id = p;
    ids->cap = cap;
    return SV_OK;
}

/* ignore_merges: the id of a whole word in the vocabulary, without merges. -1: none; -2: out of
 * memory. */
static int32_t whole_word(const struct sv_tokenizer *tok, struct sv_enc_scratch *s,
                          const char *word, size_t n)
{
    int32_t id;

    if (n > tok->max_token_bytes)
        return -1;
    sv_buf_clear(&s->name);
    for (size_t i = 0; i < n; i++) {
        char utf8[4];
        int len = sv_utf8_put(sv_char_of_byte((uint8_t)word[i]), utf8);
        sv_buf_append(&s->name, utf8, (size_t)len);
    }
    if (s->name.failed)
        return -2;
    id = sv_strmap_find(&tok->vocab, s->name.data, s->name.len);
    return id >= 0 && tok->flags[id] & SV_TOK_MODEL ? id : -1;
}

/* The word without bytes missing from the vocabulary, as in the reference. */
static const char *known_bytes(const struct sv_tokenizer *tok, struct sv_enc_scratch *s,
                               const char *word, size_t *n)
{
    if (!tok->lacks_bytes)
        return word;
    sv_buf_clear(&s->name);
    sv_buf_append(&s->name, "", 0);
    for (size_t i = 0; i < *n; i++)
        if (tok->byte_id[(uint8_t)word[i]] >= 0)
            sv_buf_append(&s->name, &word[i], 1);
    *n = s->name.len;
    return s->name.failed ? NULL : s->name.data;
}

static int encode_word(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, const char *word,
                       size_t n, struct sv_ids *out)
{
    if (tok->ignore_merges) {
        int32_t id = whole_word(tok, s, word, n);
        if (id == -2)
            return SV_ENOMEM;
        if (id >= 0) {
            if (sv_ids_reserve(out, 1) < 0)
                return SV_ENOMEM;
            out->id[out->n++] = id;
            return SV_OK;
        }
    }
    word = known_bytes(tok, s, word, &n);
    if (!word)
        return SV_ENOMEM;
    if (!n)
        return SV_OK;
    if (n > SHORT_WORD)
        return merge_long(tok, s, (const uint8_t *)word, n, out);
    if (sv_ids_reserve(out, n) < 0)
        return SV_ENOMEM;
    out->n += merge_short(tok, s, (const uint8_t *)word, n, out->id + out->n);
    return SV_OK;
}

int sv_bpe_word(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, const char *word,
                size_t n, struct sv_ids *out)
{
    uint64_t hash = n <= SV_WORD_BYTES ? sv_hash_bytes(word, n) : 0;
    struct sv_word_slot *w = &s->words[hash >> 32 & (SV_WORD_SLOTS - 1)];
    size_t before = out->n;
    int rc;

    if (n > SV_WORD_BYTES)
        return encode_word(tok, s, word, n, out);
    if (w->hash == (uint32_t)hash && w->n_bytes == n && memcmp(w->bytes, word, n) == 0) {
        if (out->cap - out->n < SV_WORD_IDS && sv_ids_reserve(out, SV_WORD_IDS) < 0)
            return SV_ENOMEM;
        memcpy(out->id + out->n, w->id, sizeof w->id);
        out->n += w->n_ids;
        return SV_OK;
    }
    rc = encode_word(tok, s, word, n, out);
    if (rc == SV_OK && out->n - before <= SV_WORD_IDS && out->n > before) {
        w->hash = (uint32_t)hash;
        w->n_bytes = (uint8_t)n;
        w->n_ids = (uint8_t)(out->n - before);
        memcpy(w->bytes, word, n);
        memcpy(w->id, out->id + before, w->n_ids * sizeof w->id[0]);
    }
    return rc;
}
