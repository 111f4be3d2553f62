/*
 * scan.h - the scanner shared by GBNF and regular expressions: a cursor over UTF-8, escapes,
 * classes of characters, numbers of repetitions.
 *
 * Private to src/grammar. Errors are recorded in the builder with the current offset; afterwards
 * the cursor is at the end, so loops end. Must not: read past n.
 */
#ifndef SV_GRAMMAR_SCAN_H
#define SV_GRAMMAR_SCAN_H

#include "grammar/core/rules.h"

#define SV_SCAN_END UINT32_MAX
/* More repetitions than this are refused before they are counted. */
#define SV_MAX_REPEAT 1000000
#define SV_MAX_GROUPS 200 /* nested */

struct sv_scan {
    struct sv_build *b;
    const char *text;
    size_t n, at;
    int64_t pos;           /* of the text in the source */
    struct sv_list ranges; /* of the current class */
    struct sv_list parts;  /* sv_expr: sequences and alternatives being read, a stack */
    int depth;             /* of groups */
};

void sv_scan_init(struct sv_scan *s, struct sv_build *b, const char *text, size_t n, int64_t pos);
void sv_scan_fini(struct sv_scan *s);
/* Fails at offset `at`. */
void sv_scan_fail(struct sv_scan *s, int code, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The byte at the cursor, the one k bytes on; 0 at the end (and for a NUL). */
static inline char sv_scan_peek(const struct sv_scan *s, size_t k)
{
    return s->n - s->at > k ? s->text[s->at + k] : 0;
}
/* Skips the byte if it is this one. */
bool sv_scan_skip(struct sv_scan *s, char c);
/* Reads the next character; SV_SCAN_END when there is none, or it is not UTF-8 (an error). */
uint32_t sv_scan_char(struct sv_scan *s);
/* Reads an escape after its backslash and adds its meaning to the ranges: one character, or a class
 * such as \d. Returns the character, SV_SCAN_END for a class. */
uint32_t sv_scan_escape(struct sv_scan *s);
/* Reads a class after its [ into the ranges, tidy. first_bracket: a ] that comes first is a
 * character. */
void sv_scan_class(struct sv_scan *s, bool first_bracket);
void sv_scan_add(struct sv_scan *s, uint32_t lo, uint32_t hi);
/* Pushes a part of the current sequence or alternatives; pops those from `base` (parts.n when it
 * began) on, as one expression. */
void sv_scan_push(struct sv_scan *s, sv_expr x);
sv_expr sv_scan_seq(struct sv_scan *s, uint32_t base);
sv_expr sv_scan_alt(struct sv_scan *s, uint32_t base);
/* Around the body of a group, whose ( is at `start`. */
void sv_scan_enter(struct sv_scan *s, size_t start);
void sv_scan_leave(struct sv_scan *s, size_t start);
/* Reads *, +, ? or {m}, {m,}, {m,n}, {,n}. false: there is none at the cursor. */
bool sv_scan_repeat(struct sv_scan *s, int32_t *min, int32_t *max);

#endif
