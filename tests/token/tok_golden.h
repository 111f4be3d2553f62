/*
 * tok_golden.h - reads tests/golden/tok: the corpus, and per tokenizer what the reference library
 * made of it.
 *
 * Used by the tokenizer's tests and its benchmark. Formats: tests/golden/README.md. Aborts on a
 * broken file; must not be used for anything else.
 */
#ifndef SV_TESTS_TOK_GOLDEN_H
#define SV_TESTS_TOK_GOLDEN_H

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "token/token.h"

static const char *const golden_names[] = {"qwen", "llama3", "o200k", "gpt2", "qwen35"};
enum { N_GOLDEN = 5 };

struct golden_corpus {
    struct sv_map map;
    uint32_t n_docs;
    const char *text;
    const uint8_t *offsets;
};
struct golden_doc {
    const char *text;
    size_t n;
};
struct golden_row { /* 24 bytes in the file */
    uint32_t n_ids, n_text_bytes;
    uint64_t ids_hash, text_hash;
};
struct golden_ids {
    struct sv_map map;
    uint32_t n_docs, n_full;
    const uint8_t *rows, *full;
};

static inline uint32_t golden_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline void golden_require(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "golden files: %s\n", what);
        abort();
    }
}

static inline void golden_corpus_open(struct golden_corpus *c, const char *path)
{
    struct sv_err err;
    golden_require(sv_map_open(&c->map, path, &err) == SV_OK, err.msg);
    golden_require(c->map.n_bytes > 16 && memcmp(c->map.data, "SVTC", 4) == 0, "corpus.bin");
    c->n_docs = golden_u32(c->map.data + 8);
    c->offsets = c->map.data + 12;
    c->text = (const char *)c->map.data + 12 + 4 * ((size_t)c->n_docs + 1);
}

static inline struct golden_doc golden_doc(const struct golden_corpus *c, uint32_t i)
{
    uint32_t at = golden_u32(c->offsets + 4 * i), end = golden_u32(c->offsets + 4 * i + 4);
    return (struct golden_doc){c->text + at, end - at};
}

static inline void golden_ids_open(struct golden_ids *g, const char *path)
{
    struct sv_err err;
    golden_require(sv_map_open(&g->map, path, &err) == SV_OK, err.msg);
    golden_require(g->map.n_bytes > 16 && memcmp(g->map.data, "SVTG", 4) == 0, "ids.bin");
    g->n_docs = golden_u32(g->map.data + 8);
    g->n_full = golden_u32(g->map.data + 12);
    g->rows = g->map.data + 16;
    g->full = g->rows + 24 * (size_t)g->n_docs;
}

static inline struct golden_row golden_row(const struct golden_ids *g, uint32_t i)
{
    struct golden_row r;
    memcpy(&r, g->rows + 24 * (size_t)i, 24);
    return r;
}

static inline uint64_t golden_fnv(const void *data, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return h;
}

/* FNV-1a of the ids as 16-bit numbers. */
static inline uint64_t golden_ids_hash(const int32_t *id, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (uint8_t)id[i]) * 0x100000001b3u;
        h = (h ^ (uint8_t)(id[i] >> 8)) * 0x100000001b3u;
    }
    return h;
}

static inline struct sv_tokenizer *golden_tokenizer(const char *path)
{
    struct sv_tokenizer *tok = NULL;
    struct sv_map m;
    struct sv_err err;
    golden_require(sv_map_open(&m, path, &err) == SV_OK, err.msg);
    golden_require(sv_tokenizer_parse(&tok, (const char *)m.data, m.n_bytes, &err) == SV_OK,
                   err.msg);
    sv_map_close(&m);
    return tok;
}

#endif
