/*
 * added.c - finds added tokens in a text: leftmost-longest over a byte trie, with strip and word
 * rules.
 *
 * Called by encode.c, first with the tokens matched on raw text, then with those matched on
 * normalized text. Follows the reference step by step, also in this: a match that a rule discards
 * is skipped as a whole, and the search continues at the end of the match, not of its white space.
 * Must not: look at more than one token length per position.
 */
#include "token/tok.h"

#include <string.h>

void sv_trie_init(struct sv_trie *t)
{
    memset(t, 0, sizeof *t);
    for (int i = 0; i < 256; i++)
        t->root[i] = -1;
}

void sv_trie_fini(struct sv_trie *t)
{
    sv_free(t->node);
    t->node = NULL;
}

static int32_t new_node(struct sv_trie *t, uint8_t byte, int32_t sibling)
{
    if (t->n_nodes == t->cap) {
        int32_t cap = t->cap ? t->cap * 2 : 256;
        void *p =
            sv_realloc(t->node, (size_t)t->cap * sizeof *t->node, (size_t)cap * sizeof *t->node);
        if (!p)
            return -1;
        t->node = p;
        t->cap = cap;
    }
    t->node[t->n_nodes] = (struct sv_trie_node){-1, sibling, -1, byte};
    return t->n_nodes++;
}

static int32_t child_of(const struct sv_trie *t, int32_t node, uint8_t byte)
{
    int32_t c = t->node[node].child;
    while (c >= 0 && t->node[c].byte != byte)
        c = t->node[c].sibling;
    return c;
}

int sv_trie_add(struct sv_trie *t, const char *s, size_t n, int32_t token)
{
    int32_t at = t->root[(uint8_t)s[0]];

    if (at < 0) {
        at = new_node(t, (uint8_t)s[0], -1);
        if (at < 0)
            return SV_ENOMEM;
        t->root[(uint8_t)s[0]] = at;
    }
    for (size_t i = 1; i < n; i++) {
        int32_t c = child_of(t, at, (uint8_t)s[i]);
        if (c < 0) {
            c = new_node(t, (uint8_t)s[i], t->node[at].child);
            if (c < 0)
                return SV_ENOMEM;
            t->node[at].child = c;
        }
        at = c;
    }
    t->node[at].token = token;
    t->n_tokens++;
    return SV_OK;
}

/* Longest token that begins at `at`; *end is set when the result is not -1. */
static int32_t longest(const struct sv_trie *t, const char *text, size_t n, size_t at, size_t *end)
{
    int32_t node = t->root[(uint8_t)text[at]], found = -1;

    for (; node >= 0; node = at < n ? child_of(t, node, (uint8_t)text[at]) : -1) {
        at++;
        if (t->node[node].token >= 0) {
            found = t->node[node].token;
            *end = at;
        }
    }
    return found;
}

static uint8_t flags_before(const char *text, size_t at)
{
    int len;
    do
        at--;
    while (at && ((uint8_t)text[at] & 0xC0) == 0x80);
    return sv_uni_flags(sv_utf8_get(text + at, &len));
}

static bool is_space(uint8_t flags)
{
    return (flags & SV_UC_MASK) == SV_UC_SPACE;
}

static bool stands_alone(const char *text, size_t n, size_t at, size_t end)
{
    int len;
    if (at > 0 && flags_before(text, at) & SV_UF_WORD)
        return false;
    return end == n || !(sv_uni_flags(sv_utf8_get(text + end, &len)) & SV_UF_WORD);
}

static size_t space_before(const char *text, size_t at, size_t limit)
{
    while (at > limit && is_space(flags_before(text, at))) {
        do
            at--;
        while (((uint8_t)text[at] & 0xC0) == 0x80);
    }
    return at;
}

static size_t space_after(const char *text, size_t n, size_t end)
{
    while (end < n) {
        int len;
        if (!is_space(sv_uni_flags(sv_utf8_get(text + end, &len))))
            break;
        end += (size_t)len;
    }
    return end;
}

static int add_cut(struct sv_cut_list *l, size_t at, size_t end, int32_t token)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        void *p = sv_realloc(l->cut, l->cap * sizeof *l->cut, cap * sizeof *l->cut);
        if (!p)
            return SV_ENOMEM;
        l->cut = p;
        l->cap = cap;
    }
    l->cut[l->n++] = (struct sv_cut){at, end, token};
    return SV_OK;
}

int sv_added_cut(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, int level,
                 const struct sv_trie *trie, const char *text, size_t n, bool with_special)
{
    struct sv_cut_list *l = &s->cut[level];
    size_t from = 0, p = 0, run_at = 0, run_end = 0;

    l->n = 0;
    while (trie->n_tokens && p < n) {
        const struct sv_added *a;
        size_t at = p, end = 0, start, stop;
        int32_t k = -1;

        if (trie->root[(uint8_t)text[p]] >= 0)
            k = longest(trie, text, n, p, &end);
        if (k < 0) {
            p++;
            continue;
        }
        a = &tok->added[k];
        p = end;
        if ((a->special && !with_special) || (a->single_word && !stands_alone(text, n, at, end)))
            continue;
        start = at;
        stop = end;
        if (a->lstrip)
            start = from > at ? from : space_before(text, at, from);
        if (a->rstrip) { /* tokens of white space would scan a run repeatedly */
            if (stop < run_at || stop > run_end) {
                run_at = stop;
                run_end = space_after(text, n, stop);
            }
            stop = run_end;
        }
        if (from < start && add_cut(l, from, start, -1) < 0)
            return SV_ENOMEM;
        if (start < stop && add_cut(l, start, stop, k) < 0) /* the reference drops empty cuts */
            return SV_ENOMEM;
        from = stop;
    }
    if (from < n && add_cut(l, from, n, -1) < 0)
        return SV_ENOMEM;
    return SV_OK;
}
