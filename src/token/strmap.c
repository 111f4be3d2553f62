/*
 * strmap.c - the vocabulary's hash table from published text to id, and the hash of byte strings.
 *
 * Called by the parser (merges name their parts), by ignore_merges look-ups and sv_tokenizer_find.
 * Must not: be changed once the tokenizer is open.
 */
#include "token/tok.h"

#include <string.h>

#define K0 0x9E3779B97F4A7C15u
#define K1 0xD6E8FEB86659FD93u

static uint64_t load8(const char *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static uint64_t load4(const char *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 r = (unsigned __int128)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

uint64_t sv_hash_bytes(const char *s, size_t n)
{
    uint64_t h = (uint64_t)n * K0, a = 0, b = 0;

    for (; n > 16; s += 16, n -= 16)
        h = mix(load8(s) ^ K1, load8(s + 8) ^ h);
    if (n >= 8) {
        a = load8(s);
        b = load8(s + n - 8);
    } else if (n >= 4) {
        a = load4(s);
        b = load4(s + n - 4);
    } else if (n) {
        a = (uint64_t)(uint8_t)s[0] << 16 | (uint64_t)(uint8_t)s[n / 2] << 8 | (uint8_t)s[n - 1];
    }
    return mix(mix(a ^ K1, b ^ h ^ K0), K0);
}

int sv_strmap_init(struct sv_strmap *m, size_t n_expected)
{
    memset(m, 0, sizeof *m);
    sv_buf_init(&m->text);
    m->cap = 64;
    while (m->cap < n_expected * 2)
        m->cap *= 2;
    m->slot = sv_alloc(m->cap * sizeof *m->slot);
    if (!m->slot)
        return SV_ENOMEM;
    for (size_t i = 0; i < m->cap; i++)
        m->slot[i].id = -1;
    return SV_OK;
}

void sv_strmap_fini(struct sv_strmap *m)
{
    sv_free(m->slot);
    sv_buf_fini(&m->text);
    memset(m, 0, sizeof *m);
}

int32_t sv_strmap_find(const struct sv_strmap *m, const char *s, size_t n)
{
    uint32_t hash = (uint32_t)sv_hash_bytes(s, n);

    for (size_t i = hash & (m->cap - 1); m->slot[i].id >= 0; i = (i + 1) & (m->cap - 1)) {
        const struct sv_strmap_slot *at = &m->slot[i];
        if (at->hash == hash && at->n == n && memcmp(m->text.data + at->at, s, n) == 0)
            return at->id;
    }
    return -1;
}

static void put(struct sv_strmap *m, struct sv_strmap_slot one)
{
    size_t i = one.hash & (m->cap - 1);
    while (m->slot[i].id >= 0)
        i = (i + 1) & (m->cap - 1);
    m->slot[i] = one;
}

static int grow(struct sv_strmap *m)
{
    struct sv_strmap wider = *m;

    wider.cap = m->cap * 2;
    wider.slot = sv_alloc(wider.cap * sizeof *wider.slot);
    if (!wider.slot)
        return SV_ENOMEM;
    for (size_t i = 0; i < wider.cap; i++)
        wider.slot[i].id = -1;
    for (size_t i = 0; i < m->cap; i++)
        if (m->slot[i].id >= 0)
            put(&wider, m->slot[i]);
    sv_free(m->slot);
    *m = wider;
    return SV_OK;
}

int sv_strmap_add(struct sv_strmap *m, const char *s, size_t n, int32_t id)
{
    struct sv_strmap_slot one = {(uint32_t)sv_hash_bytes(s, n), id, (uint32_t)m->text.len,
                                 (uint32_t)n};

    if (m->n * 2 >= m->cap && grow(m) < 0)
        return SV_ENOMEM;
    sv_buf_append(&m->text, s, n);
    if (m->text.failed || m->text.len > UINT32_MAX)
        return SV_ENOMEM;
    put(m, one);
    m->n++;
    return SV_OK;
}

char *sv_bytes_copy(const char *s, size_t n)
{
    char *copy = sv_alloc(n + 1);

    if (!copy)
        return NULL;
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}
