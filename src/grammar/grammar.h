/*
 * grammar.h - front header of src/grammar: constraints on the text of an answer. Rules over bytes,
 * the vocabulary as a trie, and a matcher that yields the tokens allowed next.
 *
 * Called by engine (one matcher a sequence), serve and cli (they make grammars). Knows no model, no
 * device and no tokenizer: a callback gives tokens' bytes. Must not: allocate after
 * sv_matcher_open, or take unbounded time or memory for any grammar, however hostile.
 *
 * Threads: a grammar may be made, referenced and released on any thread. Matchers of one grammar
 * share its caches, so all matchers of a grammar are opened, used and closed by one thread (the
 * engine's). A vocabulary does not change once it is open.
 */
#ifndef SV_GRAMMAR_H
#define SV_GRAMMAR_H

#include "base/base.h"

struct sv_grammar;
struct sv_vocab;
struct sv_matcher;

/* ---------------------------------------------------------------- grammars */

/* On failure these leave *g unchanged; otherwise the caller owns one reference. Texts are borrowed
 * for the call. Errors: SV_EINVAL (malformed), SV_EUNSUPPORTED (not expressible here), SV_EFULL
 * (beyond a limit), SV_ENOMEM; err->pos is the byte offset in the text, which the message names. A
 * grammar that matches no text at all is SV_EINVAL. */

/* GBNF as llama-server reads it, and the EBNF that SGLang and xgrammar read. The start is the rule
 * named "root". */
int sv_grammar_gbnf(struct sv_grammar **g, const char *text, size_t n, struct sv_err *err);
/* The whole answer matches the expression (docs/structured-output.md lists the syntax). */
int sv_grammar_regex(struct sv_grammar **g, const char *text, size_t n, struct sv_err *err);
/* The answer is one of n > 0 texts, NUL-terminated. */
int sv_grammar_choice(struct sv_grammar **g, const char *const *texts, size_t n,
                      struct sv_err *err);
/* JSON values that satisfy a JSON schema, and any JSON object. style NULL: the usual space between
 * tokens. Errors name the path in the schema: "schema/properties/a: ...". Which keywords are
 * supported and which refused: docs/structured-output.md. */
struct sv_schema_style {
    bool compact; /* no space at all; else none, one, or a line break with indentation */
};
int sv_grammar_schema(struct sv_grammar **g, const char *schema, size_t n,
                      const struct sv_schema_style *style, struct sv_err *err);
int sv_grammar_json(struct sv_grammar **g, struct sv_err *err);

struct sv_grammar *sv_grammar_ref(struct sv_grammar *g);
void sv_grammar_unref(struct sv_grammar *g); /* NULL is fine */
/* Memory of the rules, without the caches that matchers fill. */
size_t sv_grammar_bytes(const struct sv_grammar *g);
/* As bytes, and back in another process of this build. */
void sv_grammar_pack(const struct sv_grammar *g, struct sv_buf *b);
int sv_grammar_unpack(struct sv_grammar **g, const char *data, size_t n, struct sv_err *err);

/* Grammars composed of grammars. Parts are copied: the caller keeps its references. */

/* Exactly these n bytes; n may be 0. */
int sv_grammar_literal(struct sv_grammar **g, const char *text, size_t n, struct sv_err *err);
/* One part after the other; one of the parts; min to max times the part (max -1: no bound). */
int sv_grammar_join(struct sv_grammar **g, struct sv_grammar *const *parts, size_t n,
                    struct sv_err *err);
int sv_grammar_either(struct sv_grammar **g, struct sv_grammar *const *parts, size_t n,
                      struct sv_err *err);
int sv_grammar_repeat(struct sv_grammar **g, struct sv_grammar *part, int32_t min, int32_t max,
                      struct sv_err *err);
/* Any bytes up to and including the first occurrence of the marker (not empty). */
int sv_grammar_until(struct sv_grammar **g, const char *marker, size_t n, struct sv_err *err);
/* Any bytes, of any number, in which the marker does not occur; n = 0: any bytes at all. */
int sv_grammar_without(struct sv_grammar **g, const char *marker, size_t n, struct sv_err *err);
/* sv_grammar_until the marker, then g. */
int sv_grammar_after(struct sv_grammar **out, const char *marker, size_t n, struct sv_grammar *g,
                     struct sv_err *err);

/* ---------------------------------------------------------------- search */

/* Expressions (docs/structured-output.md lists the syntax) that are searched in a text as it grows.
 * ^ is its beginning, $ its end so far. An expression that matches the empty text is refused.
 * Errors begin with the index in brackets, if there are several. Immutable: any thread may use it.
 */
#define SV_SEARCH_MAX 16
struct sv_search;
int sv_search_open(struct sv_search **s, const char *const *texts, size_t n, struct sv_err *err);
struct sv_search *sv_search_ref(struct sv_search *s);
void sv_search_unref(struct sv_search *s); /* NULL is fine */
int32_t sv_search_count(const struct sv_search *s);
/* As bytes, and back in another process of this build. */
void sv_search_pack(const struct sv_search *s, struct sv_buf *b);
int sv_search_unpack(struct sv_search **s, const char *data, size_t n, struct sv_err *err);
/* at: (sv_search_count) the states of a text, zeros before it begins. Advances by n bytes, complete
 * characters of UTF-8; returns the first expression that has matched, or -1. */
int32_t sv_search_next(const struct sv_search *s, int32_t *at, const char *text, size_t n);

/* ---------------------------------------------------------------- the vocabulary */

/* The bytes that token id adds to the text; NULL or *n = 0 for a token that no grammar allows
 * (special, unknown, without bytes). Borrowed until the next call. */
typedef const char *(*sv_vocab_bytes_fn)(void *arg, int32_t id, size_t *n);

/* Copies the bytes of n_tokens tokens, some 50 ms for 150,000. end_ids end an answer: they are
 * allowed only where the grammar may end, whatever their bytes. */
int sv_vocab_open(struct sv_vocab **v, int32_t n_tokens, sv_vocab_bytes_fn bytes, void *arg,
                  const int32_t *end_ids, size_t n_end, struct sv_err *err);
/* Releases the caller's reference; grammars that were matched with it hold theirs. NULL is fine. */
void sv_vocab_close(struct sv_vocab *v);

/* ---------------------------------------------------------------- matchers */

/* One sequence's position in a grammar, at first its start. Takes a reference to the grammar. The
 * first matcher of a grammar and vocabulary sets up what all of them share: up to 24 MiB of address
 * space, of which only used pages become memory. */
int sv_matcher_open(struct sv_matcher **m, struct sv_grammar *g, struct sv_vocab *v,
                    struct sv_err *err);
void sv_matcher_close(struct sv_matcher *m); /* NULL is fine */

/* Whether token id may come next. Ids outside the vocabulary may not. */
bool sv_matcher_allows(struct sv_matcher *m, int32_t id);
/* Advances by token id. false: it may not come next, and nothing changed. Nothing may come after an
 * end id. */
bool sv_matcher_advance(struct sv_matcher *m, int32_t id);
/* Writes (n_tokens + 31) / 32 words; bit id % 32 of word id / 32 equals sv_matcher_allows. Bits
 * beyond n_tokens are 0. */
void sv_matcher_mask(struct sv_matcher *m, uint32_t *words);
/* Whether the text so far is a complete answer, and whether only the end can follow. Both are false
 * once an end id was taken. */
bool sv_matcher_may_end(const struct sv_matcher *m);
bool sv_matcher_must_end(const struct sv_matcher *m);
/* Whether an end id was taken. */
bool sv_matcher_ended(const struct sv_matcher *m);

/* A mark is the number of tokens taken; back rolls back to it. Rolling back by more than
 * SV_MATCHER_BACK tokens, counted from the most that were ever taken, is a broken invariant. */
#define SV_MATCHER_BACK 512
uint64_t sv_matcher_mark(const struct sv_matcher *m);
void sv_matcher_back(struct sv_matcher *m, uint64_t mark);

/* A mark too; the tokens after it are only tried and sv_matcher_back will undo them. They have a
 * smaller budget, and a failure is undone as well, so trying tokens does not affect later results.
 * Until then no other matcher of the grammar may be used. */
uint64_t sv_matcher_try(struct sv_matcher *m);
/* Marks before the current position are not needed any more. */
void sv_matcher_settle(struct sv_matcher *m);

/* NULL, or why this matcher failed: the grammar is so ambiguous that it exceeded the bounds on
 * memory or time. From then on it allows nothing. Which texts lead there depends on the texts
 * alone, not on earlier calls of this matcher or others (automaton.h). */
const char *sv_matcher_failure(const struct sv_matcher *m);

#endif
