/*
 * tok.h - inside src/token: the immutable tokenizer, the scratch of one thread, and functions
 * shared by its files. Included by the tokenizer's files only.
 *
 * The tokenizer is written once by open or parse and then only read, so threads share it; mutable
 * state of encoding is in struct sv_enc_scratch. Must not: hold pointers into the JSON text, or be
 * included from outside src/token.
 */
#ifndef SV_TOKEN_TOK_H
#define SV_TOKEN_TOK_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "token/jpull.h"
#include "token/token.h"

/* ---------------------------------------------------------------- nfc.c */

/* Appends the NFC of valid UTF-8 to out. False in *changed and nothing appended when s is NFC
 * already. */
struct sv_enc_scratch;
int sv_nfc(struct sv_enc_scratch *s, const char *text, size_t n, struct sv_buf *out, bool *changed);

/* ---------------------------------------------------------------- hash of strings */

struct sv_strmap_slot {
    uint32_t hash;
    int32_t id;     /* -1 = empty */
    uint32_t at, n; /* bytes in sv_strmap.text */
};
struct sv_strmap {
    struct sv_strmap_slot *slot;
    size_t cap, n; /* cap is a power of two */
    struct sv_buf text;
};
int sv_strmap_init(struct sv_strmap *m, size_t n_expected);
void sv_strmap_fini(struct sv_strmap *m);
int32_t sv_strmap_find(const struct sv_strmap *m, const char *s, size_t n);
/* The caller has checked that s is not there. */
int sv_strmap_add(struct sv_strmap *m, const char *s, size_t n, int32_t id);
uint64_t sv_hash_bytes(const char *s, size_t n);
/* A copy that may hold NUL bytes, NUL-terminated; NULL: out of memory. */
char *sv_bytes_copy(const char *s, size_t n);

/* ---------------------------------------------------------------- added.c: added tokens */

struct sv_added {
    char *content; /* the text to find: in NFC where the token is normalized */
    size_t n;
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
    bool changed; /* content differs from the file */
};
struct sv_trie_node {
    int32_t child, sibling; /* node indices, -1 = none */
    int32_t token;          /* index into added, -1 = no token ends here */
    uint8_t byte;
};
struct sv_trie {
    struct sv_trie_node *node;
    int32_t n_nodes, cap;
    int32_t root[256]; /* node of a first byte, -1 = none */
    int n_tokens;
};
void sv_trie_init(struct sv_trie *t);
void sv_trie_fini(struct sv_trie *t);
int sv_trie_add(struct sv_trie *t, const char *s, size_t n, int32_t token);

/* A cut of a text: token -1 is ordinary text, otherwise an index into tok->added. */
struct sv_cut {
    size_t at, end;
    int32_t token;
};
/* Finds added tokens in text as the reference does and appends the cuts to s->cut[level]. */
int sv_added_cut(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, int level,
                 const struct sv_trie *trie, const char *text, size_t n, bool with_special);

/* --------------------------------------------------- pre-tokenization: scan.c, regex.c, split.c */

enum sv_scan_kind { SV_SCAN_NONE, SV_SCAN_GPT2, SV_SCAN_WORDS, SV_SCAN_CASED, SV_SCAN_DIGITS };
/* A split expression that scan.c knows by its exact text. */
struct sv_scanner {
    enum sv_scan_kind kind;
    int max_digits; /* \p{N}{1,max}; 0 = \p{N}+ */
    bool marks;     /* WORDS: \p{M} counts as a letter */
    bool suffix;    /* CASED: 's 't 're ... after a word */
    bool slash;     /* [\r\n/]* after punctuation instead of [\r\n]* */
};
/* True when pattern is one of the known expressions. */
bool sv_scan_known(const char *pattern, size_t n, struct sv_scanner *out);
/* Known expressions by index, for tests; NULL beyond the last. */
const char *sv_scan_pattern(int index);
/* End of the match that begins at `at` (valid UTF-8, at < n). 0 when nothing matches there. */
size_t sv_scan_next(const struct sv_scanner *sc, const char *text, size_t n, size_t at);

/* A compiled split expression. */
struct sv_regex {
    pcre2_code *code;
};
/* Mutable state of matching; one per scratch. */
struct sv_regex_work {
    pcre2_match_data *data;
    pcre2_match_context *context;
    uint64_t budget; /* bytes left for failing far attempts in this text */
};
/* Rewrites an Oniguruma expression into PCRE2's language, or refuses with the position. */
int sv_regex_translate(const char *pattern, size_t n, struct sv_buf *out, struct sv_err *err);
int sv_regex_open(struct sv_regex *re, const char *pattern, size_t n, bool literal,
                  struct sv_err *err);
void sv_regex_close(struct sv_regex *re);
/* Leftmost match at or after `from`: returns 1 with *at and *end, 0 without a match, or an
 * error. */
int sv_regex_next(const struct sv_regex *re, struct sv_regex_work *w, const char *text, size_t n,
                  size_t from, size_t *at, size_t *end, struct sv_err *err);
int sv_regex_work_init(struct sv_regex_work *w);
void sv_regex_work_fini(struct sv_regex_work *w);

enum sv_split_behavior {
    SV_SPLIT_ISOLATED,
    SV_SPLIT_REMOVED,
    SV_SPLIT_MERGED_PREVIOUS,
    SV_SPLIT_MERGED_NEXT,
    SV_SPLIT_CONTIGUOUS
};
struct sv_split {
    struct sv_scanner scan; /* kind NONE: use re */
    struct sv_regex re;
    enum sv_split_behavior behavior;
    bool invert;
};
enum { SV_MAX_SPLITS = 8 };

/* Splits text by tok->split[level...] and gives every word to the BPE. */
int sv_split_run(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, int level,
                 const char *text, size_t n, struct sv_ids *out, struct sv_err *err);

/* ---------------------------------------------------------------- bpe.c */

struct sv_merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX = empty slot */
    uint32_t rank;
    int32_t id;
};
struct sv_merges {
    struct sv_merge *slot;
    size_t cap, n;
    uint64_t *byte_key; /* [256 * 256] merges of two bytes: rank << 32 | id; UINT64_MAX = none */
};
int sv_merges_init(struct sv_merges *m, size_t n_expected);
void sv_merges_fini(struct sv_merges *m);
/* Later merges of the same pair replace earlier ones, as in the reference. */
int sv_merges_add(struct sv_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* Fills byte_key once byte ids are known. */
int sv_merges_finish(struct sv_merges *m, const int32_t byte_id[256]);

/* Appends the ids of one word (raw bytes). */
int sv_bpe_word(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, const char *word,
                size_t n, struct sv_ids *out);

/* ---------------------------------------------------------------- the tokenizer */

struct sv_tokenizer {
    uint64_t stamp; /* identifies the tokenizer of a scratch's cache */
    int32_t n_tokens;

    /* By id: the published text, in vocab.text; name_at UINT32_MAX = no such id. */
    uint32_t *name_at, *name_len;
    size_t names_cap;
    uint32_t model_text; /* names before this are of model.vocab */
    /* By id: bytes of the decoded token in `bytes`, [at[id], at[id] + len[id]). */
    char *bytes;
    uint32_t *at, *len;
    uint8_t *flags; /* SV_TOK_* */

    struct sv_strmap vocab; /* published text -> id, added tokens included */
    int32_t n_vocab;        /* strings of model.vocab */
    int32_t byte_id[256];   /* -1: the vocabulary lacks this byte */
    struct sv_merges merges;
    bool ignore_merges;
    bool lacks_bytes;       /* some byte_id is -1 */
    size_t max_token_bytes; /* longest entry of model.vocab, decoded */

    struct sv_added *added;
    int32_t n_added, added_cap;
    struct sv_trie raw, normalized;

    bool nfc;
    struct sv_split split[SV_MAX_SPLITS];
    int n_splits;
    int prefix_level; /* a space is prepended before this split; -1 = never */

    int32_t *before, *after; /* ids that the post-processor adds around the text */
    int32_t n_before, n_after;
};
enum { SV_TOK_KNOWN = 1, SV_TOK_SPECIAL = 2, SV_TOK_MODEL = 4 };

/* parse_model.c and parse_pipe.c */
struct sv_model_at { /* positions in the text, 0 = absent */
    size_t vocab, merges, end;
    size_t unknown; /* unk_token or byte_fallback is set */
};
/* Reads the small fields of "model" and finds the large ones, which parse_model then reads. */
int sv_tok_find_model(struct sv_tokenizer *tok, struct sv_jpull *j, struct sv_model_at *at);
int sv_tok_parse_model(struct sv_tokenizer *tok, struct sv_jpull *j, const struct sv_model_at *at);
int sv_tok_parse_added(struct sv_tokenizer *tok, struct sv_jpull *j);
/* One object of added_tokens (id -1: it has its own) or of added_tokens_decoder. */
int sv_tok_read_added(struct sv_tokenizer *tok, struct sv_jpull *j, int32_t id);
int sv_tok_parse_normalizer(struct sv_tokenizer *tok, const struct sv_tree *v, struct sv_err *err);
int sv_tok_parse_pre(struct sv_tokenizer *tok, const struct sv_tree *v, struct sv_err *err);
int sv_tok_parse_post(struct sv_tokenizer *tok, const struct sv_tree *v, struct sv_err *err);
int sv_tok_parse_decoder(const struct sv_tree *v, struct sv_err *err);
uint32_t sv_char_of_byte(uint8_t b);

/* ---------------------------------------------------------------- scratch */

enum { SV_WORD_BYTES = 34, SV_WORD_IDS = 6, SV_WORD_SLOTS = 1 << 14 };
struct sv_word_slot { /* one cache line */
    uint32_t hash;
    uint8_t n_bytes, n_ids; /* n_bytes 0 = empty */
    char bytes[SV_WORD_BYTES];
    int32_t id[SV_WORD_IDS];
};

struct sv_cut_list {
    struct sv_cut *cut;
    size_t n, cap;
};
struct sv_symbol {       /* of a long word, a linked list inside an array */
    int32_t id;          /* -1: merged away */
    uint32_t prev, next; /* UINT32_MAX: none */
    uint64_t key;        /* the merge with the next symbol, as in sv_merges.byte_key */
};
struct sv_enc_scratch {
    uint64_t stamp;
    struct sv_word_slot *words; /* [SV_WORD_SLOTS] */
    struct sv_cut_list cut[2];
    struct sv_buf repaired, nfc, prefixed, name;
    int32_t *cps; /* NFC work */
    size_t cps_cap;
    struct sv_symbol *symbol; /* long words */
    uint64_t *heap;           /* rank << 32 | position */
    size_t symbol_cap, heap_cap, heap_n;
    struct sv_regex_work regex;
    uint64_t n_steps; /* merge look-ups since the scratch was made: tests bound it */
};

/* Makes room for n more ids. */
int sv_ids_reserve(struct sv_ids *ids, size_t n);

#endif
