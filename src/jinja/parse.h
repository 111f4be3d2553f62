/*
 * parse.h - tokens and the parser: template text to a tree.
 *
 * Included by lex.c, parse.c, expr.c and template.c. Must not: evaluate anything.
 */
#ifndef SV_JINJA_PARSE_H
#define SV_JINJA_PARSE_H

#include "jinja/run.h"

enum sv_jtok {
    SV_JT_EOF,
    SV_JT_DATA,
    SV_JT_VAR_BEGIN,
    SV_JT_VAR_END,
    SV_JT_BLOCK_BEGIN,
    SV_JT_BLOCK_END,
    SV_JT_NAME,
    SV_JT_STR,
    SV_JT_INT,
    SV_JT_FLOAT,
    SV_JT_ADD,
    SV_JT_SUB,
    SV_JT_MUL,
    SV_JT_DIV,
    SV_JT_FLOORDIV,
    SV_JT_MOD,
    SV_JT_POW,
    SV_JT_TILDE,
    SV_JT_LBRACKET,
    SV_JT_RBRACKET,
    SV_JT_LPAREN,
    SV_JT_RPAREN,
    SV_JT_LBRACE,
    SV_JT_RBRACE,
    SV_JT_EQ,
    SV_JT_NE,
    SV_JT_GT,
    SV_JT_GE,
    SV_JT_LT,
    SV_JT_LE,
    SV_JT_ASSIGN,
    SV_JT_DOT,
    SV_JT_COLON,
    SV_JT_PIPE,
    SV_JT_COMMA,
    SV_JT_SEMICOLON,
};

struct sv_jtoken {
    uint8_t type;
    uint32_t pos;
    struct sv_jval value; /* text of data, names and strings; numbers */
};

struct sv_jparse {
    struct sv_jx *x;
    struct sv_template *t;
    const struct sv_jtoken *tok;
    size_t n_tok, at;
    int n_names, cap_names;
    int soft;  /* inside something conditional: unknown filters fail only when they are reached */
    int loops; /* for loops around, inside this macro */
};

const struct sv_jtoken *sv_j_lex(struct sv_jx *x, size_t *n);
void sv_j_parse(struct sv_jparse *p);
struct sv_jnode *sv_j_node(struct sv_jparse *p, enum sv_jtype type, uint32_t pos);
int sv_j_name_id(struct sv_jparse *p, const struct sv_jval *name);
const struct sv_jtoken *sv_j_cur(const struct sv_jparse *p);
const struct sv_jtoken *sv_j_peek(const struct sv_jparse *p);
bool sv_j_at_name(const struct sv_jparse *p, const char *name);
bool sv_j_skip_name(struct sv_jparse *p, const char *name);
const struct sv_jtoken *sv_j_expect(struct sv_jparse *p, enum sv_jtok type);
_Noreturn void sv_j_unexpected(struct sv_jparse *p, const char *wanted);
struct sv_jnode *sv_j_parse_expr(struct sv_jparse *p, bool with_cond);
/* end: a name that ends the tuple, or NULL */
struct sv_jnode *sv_j_parse_tuple(struct sv_jparse *p, bool simple, bool with_cond, const char *end,
                                  bool in_parens);
struct sv_jnode *sv_j_parse_filters(struct sv_jparse *p, struct sv_jnode *value, bool start_inline);

#endif
