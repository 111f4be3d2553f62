/*
 * jpull.h - JSON with positions: a pull reader (jpull.c), and small parts of a text as a tree
 * (jtree.c).
 *
 * Included by the files that read tokenizer.json. Must not: know what the fields mean.
 */
#ifndef SV_TOKEN_JPULL_H
#define SV_TOKEN_JPULL_H

#include "base/base.h"

/* ---------------------------------------------------------------- jpull.c */

/* A pull reader over one JSON text. Every error carries the byte position. */
struct sv_jpull {
    const char *text;
    size_t n, pos;
    struct sv_err *err;
};
enum { SV_JPULL_DEPTH = 64 };
/* The next byte that is not white space, or -1 at the end. */
int sv_jpull_peek(struct sv_jpull *j);
int sv_jpull_fail(struct sv_jpull *j, size_t pos, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Replaces out's contents by the string's text (escapes resolved, valid UTF-8). */
int sv_jpull_string(struct sv_jpull *j, struct sv_buf *out);
int sv_jpull_int(struct sv_jpull *j, int64_t lo, int64_t hi, int64_t *out);
int sv_jpull_bool(struct sv_jpull *j, bool *out);
/* Skips one value of any kind. */
int sv_jpull_skip(struct sv_jpull *j);
/* Walks a container: call enter once, then more before each element until it gives 0. For objects
 * more also reads the key and the colon. Returns 1 when an element follows, 0 at the end, or an
 * error. */
int sv_jpull_enter(struct sv_jpull *j, char open);
int sv_jpull_more(struct sv_jpull *j, char close, bool *first, struct sv_buf *key);

/* ---------------------------------------------------------------- jtree.c */

enum sv_tree_kind {
    SV_TREE_NULL,
    SV_TREE_BOOL,
    SV_TREE_INT,
    SV_TREE_REAL,
    SV_TREE_STRING,
    SV_TREE_ARRAY,
    SV_TREE_OBJECT
};
struct sv_tree {
    enum sv_tree_kind kind;
    size_t pos;       /* byte in the file */
    int64_t number;   /* INT, BOOL */
    const char *text; /* STRING, NUL-terminated */
    size_t n;         /* bytes of text, or children */
    const char *key;  /* inside an object */
    const struct sv_tree *child, *next;
};
/* Reads one value into nodes that live in a; *out stays NULL for null. */
int sv_tree_read(struct sv_jpull *j, struct sv_arena *a, const struct sv_tree **out);
/* The field of an object; NULL when v is no object, or the field is absent or null. */
const struct sv_tree *sv_tree_get(const struct sv_tree *v, const char *key);
/* Text of a string field, or NULL. */
const char *sv_tree_text(const struct sv_tree *v, const char *key);

#endif
