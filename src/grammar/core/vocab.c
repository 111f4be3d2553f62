/*
 * vocab.c - the vocabulary's bytes, by id and as a trie.
 *
 * Called once when an engine opens its model. Masks walk the trie's nodes in order: a subtree is a
 * range of nodes, and its tokens are a range of `order`. Must not: change once it is open.
 */
#include "grammar/core/automaton.h"

#include <stdlib.h>
#include <string.h>

/* The sort keys. */
struct word {
    const uint8_t *bytes;
    uint32_t n;
    uint32_t id;
};

static int compare(const void *x, const void *y)
{
    const struct word *a = x, *b = y;
    int c = memcmp(a->bytes, b->bytes, a->n < b->n ? a->n : b->n);

    if (c)
        return c;
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static int read_ends(struct sv_vocab *v, const int32_t *ids, size_t n, struct sv_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= v->n_tokens)
            return sv_fail(err, SV_EINVAL, -1, "end token %d is not in the vocabulary of %d",
                           ids[i], v->n_tokens);
        v->end_mask[ids[i] / 32] |= 1u << (ids[i] % 32);
    }
    return SV_OK;
}

/* Copies all bytes; ids that end a text have none. */
static int read_text(struct sv_vocab *v, sv_vocab_bytes_fn bytes, void *arg, struct sv_err *err)
{
    struct sv_buf text;
    int code = SV_OK;

    sv_buf_init(&text);
    for (int32_t id = 0; id < v->n_tokens && code == SV_OK; id++) {
        size_t n = 0;
        const char *p = bytes(arg, id, &n);
        v->text_at[id] = (uint32_t)text.len;
        if (!p || n == 0 || (v->end_mask[id / 32] >> (id % 32) & 1))
            continue;
        if (n > UINT16_MAX || text.len + n > INT32_MAX)
            code = sv_fail(err, SV_EFULL, -1, "token %d has %zu bytes", id, n);
        else
            sv_buf_append(&text, p, n);
        v->n_order++;
        v->longest = n > v->longest ? (uint32_t)n : v->longest;
    }
    v->text_at[v->n_tokens] = (uint32_t)text.len;
    v->text = (uint8_t *)text.data;
    if (code == SV_OK && text.failed)
        code = sv_fail(err, SV_ENOMEM, -1, "vocabulary: out of memory");
    return code;
}

static struct word *sorted_words(struct sv_vocab *v)
{
    struct word *words = sv_alloc(v->n_order * sizeof *words);
    uint32_t n = 0;

    for (int32_t id = 0; id < v->n_tokens && words; id++) {
        uint32_t at = v->text_at[id], len = v->text_at[id + 1] - at;
        if (len)
            words[n++] = (struct word){v->text + at, len, (uint32_t)id};
    }
    if (words)
        qsort(words, n, sizeof *words, compare);
    return words;
}

/* The length of the prefix that a word shares with the word before it. */
static uint32_t shared(const struct word *words, uint32_t i)
{
    uint32_t n = 0;

    if (i == 0)
        return 0;
    while (n < words[i].n && n < words[i - 1].n && words[i].bytes[n] == words[i - 1].bytes[n])
        n++;
    return n;
}

uint8_t sv_utf8_next(uint8_t state, uint8_t c)
{
    /* What may follow a lead byte: for the first byte a range, then states 2 and 1 count down. */
    static const struct {
        uint8_t lo, hi, next;
    } rest[] = {{0, 0, 0},       {0x80, 0xBF, 0}, {0x80, 0xBF, 1}, {0x80, 0xBF, 2},
                {0xA0, 0xBF, 1}, {0x80, 0x9F, 1}, {0x90, 0xBF, 2}, {0x80, 0x8F, 2}};

    if (state == SV_UTF8_BROKEN)
        return SV_UTF8_BROKEN;
    if (state != 0)
        return c >= rest[state].lo && c <= rest[state].hi ? rest[state].next : SV_UTF8_BROKEN;
    if (c < 0x80)
        return 0;
    if (c < 0xC2 || c > 0xF4)
        return SV_UTF8_BROKEN;
    if (c < 0xE0)
        return 1;
    if (c < 0xF0)
        return c == 0xE0 ? 4 : c == 0xED ? 5 : 2;
    return c == 0xF0 ? 6 : c == 0xF4 ? 7 : 3;
}

/* An open node on the way to the current word. */
struct open_node {
    uint32_t node;
    uint8_t utf8; /* after its byte */
};

static void add_node(struct sv_vocab *v, uint32_t n, uint8_t before, uint8_t after)
{
    struct sv_trie_node *node = &v->nodes[n];
    int kind = after == SV_UTF8_BROKEN ? SV_KIND_BROKEN
               : node->byte >= 0x80    ? SV_KIND_WIDE
                                       : sv_ascii_kind(node->byte);

    node->starts = before == 0 && after != SV_UTF8_BROKEN;
    node->tallest = node->depth;
    v->kinds[n] = UINT64_C(1) << kind;
}

/* Lays out the nodes in the order of the sorted words; path[d] is the open node of depth d + 1. */
static void lay_out(struct sv_vocab *v, const struct word *words, struct open_node *path)
{
    uint32_t n = 0, depth = 0;

    for (uint32_t i = 0; i < v->n_order; i++) {
        uint32_t keep = shared(words, i);
        for (; depth > keep; depth--)
            v->nodes[path[depth - 1].node].end = n;
        for (; depth < words[i].n; depth++) {
            uint8_t byte = words[i].bytes[depth], before = depth ? path[depth - 1].utf8 : 0;
            v->nodes[n] =
                (struct sv_trie_node){.token = i, .depth = (uint16_t)(depth + 1), .byte = byte};
            path[depth] = (struct open_node){n, sv_utf8_next(before, byte)};
            add_node(v, n++, before, path[depth].utf8);
        }
        v->order[i] = words[i].id;
    }
    for (; depth > 0; depth--)
        v->nodes[path[depth - 1].node].end = n;
    v->nodes[n] = (struct sv_trie_node){.end = n, .token = v->n_order};
    for (uint32_t i = n; i-- > 0;) { /* subtrees' properties, from the leaves up */
        for (uint32_t k = i + 1; k < v->nodes[i].end; k = v->nodes[k].end) {
            v->kinds[i] |= v->kinds[k];
            if (v->nodes[k].tallest > v->nodes[i].tallest)
                v->nodes[i].tallest = v->nodes[k].tallest;
        }
    }
}

static int build_trie(struct sv_vocab *v, struct sv_err *err)
{
    struct word *words = sorted_words(v);
    struct open_node *path = sv_alloc((v->longest + 1) * sizeof *path);
    uint32_t n = 0;

    for (uint32_t i = 0; i < v->n_order && words; i++)
        n += words[i].n - shared(words, i);
    v->n_nodes = n;
    v->nodes = sv_alloc((n + 1) * sizeof *v->nodes);
    v->kinds = sv_alloc((n + 1) * sizeof *v->kinds);
    v->order = sv_alloc((v->n_order + 1) * sizeof *v->order);
    if (words && path && v->nodes && v->kinds && v->order)
        lay_out(v, words, path);
    else
        n = UINT32_MAX;
    sv_free(words);
    sv_free(path);
    return n == UINT32_MAX ? sv_fail(err, SV_ENOMEM, -1, "vocabulary: out of memory") : SV_OK;
}

int sv_vocab_open(struct sv_vocab **out, int32_t n_tokens, sv_vocab_bytes_fn bytes, void *arg,
                  const int32_t *end_ids, size_t n_end, struct sv_err *err)
{
    struct sv_vocab *v = sv_calloc(1, sizeof *v);
    int code = SV_OK;

    SV_REQUIRE(n_tokens > 0);
    if (!v)
        return sv_fail(err, SV_ENOMEM, -1, "vocabulary: out of memory");
    atomic_init(&v->refs, 1);
    v->n_tokens = n_tokens;
    v->n_words = ((uint32_t)n_tokens + 31) / 32;
    v->text_at = sv_alloc(((size_t)n_tokens + 1) * sizeof *v->text_at);
    v->end_mask = sv_calloc(v->n_words, sizeof *v->end_mask);
    if (!v->text_at || !v->end_mask)
        code = sv_fail(err, SV_ENOMEM, -1, "vocabulary: out of memory");
    if (code == SV_OK)
        code = read_ends(v, end_ids, n_end, err);
    if (code == SV_OK)
        code = read_text(v, bytes, arg, err);
    if (code == SV_OK)
        code = build_trie(v, err);
    if (code == SV_OK)
        *out = v;
    else
        sv_vocab_close(v);
    return code;
}

void sv_vocab_close(struct sv_vocab *v)
{
    if (!v || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) > 1)
        return;
    sv_free(v->text);
    sv_free(v->text_at);
    sv_free(v->end_mask);
    sv_free(v->nodes);
    sv_free(v->kinds);
    sv_free(v->order);
    sv_free(v);
}
