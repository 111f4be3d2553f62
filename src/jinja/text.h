/*
 * text.h - strings as code points (text.c), and the text forms of numbers and of str.format and %.
 *
 * Included by the files of src/jinja that work on strings. Must not: be included outside of it.
 */
#ifndef SV_JINJA_TEXT_H
#define SV_JINJA_TEXT_H

#include "jinja/run.h"

bool sv_j_space(uint32_t cp);
size_t sv_j_n_cp(struct sv_jx *x, const char *p, size_t n);
size_t sv_j_cp_to_byte(struct sv_jx *x, const char *p, size_t n, size_t cp); /* n: past the end */
/* The first and the last occurrence of q, or NULL. */
const char *sv_j_find(struct sv_jx *x, const char *p, size_t n, const char *q, size_t m);
const char *sv_j_rfind(struct sv_jx *x, const char *p, size_t n, const char *q, size_t m);
enum { SV_J_LEFT = 1, SV_J_RIGHT = 2 };
struct sv_jval sv_j_strip(struct sv_jx *x, struct sv_jval s, const struct sv_jval *chars,
                          int sides);
struct sv_jval sv_j_upper(struct sv_jx *x, struct sv_jval s);
struct sv_jval sv_j_lower(struct sv_jx *x, struct sv_jval s);
struct sv_jval sv_j_capitalize(struct sv_jx *x, struct sv_jval s);
struct sv_jval sv_j_title(struct sv_jx *x, struct sv_jval s);       /* str.title */
struct sv_jval sv_j_title_words(struct sv_jx *x, struct sv_jval s); /* the filter */
struct sv_jval sv_j_swapcase(struct sv_jx *x, struct sv_jval s);
struct sv_jval sv_j_replace(struct sv_jx *x, struct sv_jval s, struct sv_jval old,
                            struct sv_jval new, int64_t count);
struct sv_jlist *sv_j_splitlines(struct sv_jx *x, struct sv_jval s, bool keep);
struct sv_jlist *sv_j_split(struct sv_jx *x, struct sv_jval s, const struct sv_jval *sep,
                            int64_t max, bool right);
/* isalpha and similar; what: the method's name */
bool sv_j_str_is(struct sv_jx *x, const struct sv_jval *s, const char *what);
bool sv_j_printable(uint32_t cp);
/* str % args */
struct sv_jval sv_j_percent(struct sv_jx *x, struct sv_jval fmt, struct sv_jval args);
/* str.format(...); format.c */
struct sv_jval sv_j_format(struct sv_jx *x, struct sv_jval fmt, const struct sv_jcall *c);
/* int(text), float(text); false when Python would raise ValueError */
bool sv_j_parse_int(struct sv_jx *x, const char *p, size_t n, int base, int64_t *out);
bool sv_j_parse_float(struct sv_jx *x, const char *p, size_t n, double *out);

#endif
