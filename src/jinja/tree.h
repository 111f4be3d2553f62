/*
 * tree.h - the syntax tree of a parsed template.
 *
 * Included by run.h. Written by parse.c and expr.c, read by exec.c and eval.c; does not change
 * after parsing, so several threads may render one template.
 */
#ifndef SV_JINJA_TREE_H
#define SV_JINJA_TREE_H

#include "jinja/value.h"

/* ---------------------------------------------------------------- syntax tree */

enum sv_jtype {
    /* expressions */
    SV_JN_CONST,
    SV_JN_NAME,
    SV_JN_LIST,   /* kids */
    SV_JN_TUPLE,  /* kids */
    SV_JN_DICT,   /* kids: key, value, key, ... */
    SV_JN_ATTR,   /* a . value */
    SV_JN_ITEM,   /* a [ b ] */
    SV_JN_SLICE,  /* a : b : c; each may be NULL; only as b of ITEM */
    SV_JN_CALL,   /* a (args) */
    SV_JN_FILTER, /* a | id(args); a is NULL: innermost filter of a block */
    SV_JN_TEST,   /* a is id(args) */
    SV_JN_NOT,
    SV_JN_NEG,
    SV_JN_POS,
    SV_JN_BIN, /* a op b */
    SV_JN_AND,
    SV_JN_OR,
    SV_JN_COMPARE, /* a, then kids, each with its op */
    SV_JN_CONCAT,  /* kids */
    SV_JN_COND,    /* b if a else c */
    /* statements */
    SV_JN_DATA,
    SV_JN_OUTPUT,
    SV_JN_FOR,         /* target a, in b, if c, body, other */
    SV_JN_IF,          /* a, body, other: the next elif when flag, else the else part */
    SV_JN_SET,         /* target a = b */
    SV_JN_SETBLOCK,    /* target a, filters b, body */
    SV_JN_MACRO,       /* name, params, body */
    SV_JN_CALLBLOCK,   /* call a, params, body */
    SV_JN_FILTERBLOCK, /* filters a, body */
    SV_JN_WITH,        /* kids: target, value, ...; body */
    SV_JN_SCOPE,       /* body: the generation tag */
    SV_JN_BREAK,
    SV_JN_CONTINUE,
    SV_JN_NSREF, /* target: name . value */
};

enum sv_jop {
    SV_JO_ADD,
    SV_JO_SUB,
    SV_JO_MUL,
    SV_JO_DIV,
    SV_JO_FLOORDIV,
    SV_JO_MOD,
    SV_JO_POW,
    SV_JO_EQ,
    SV_JO_NE,
    SV_JO_LT,
    SV_JO_LE,
    SV_JO_GT,
    SV_JO_GE,
    SV_JO_IN,
    SV_JO_NOTIN,
};

struct sv_jarg { /* call arguments and macro parameters, in order */
    struct sv_jarg *next;
    struct sv_jnode *value; /* parameter: its default or NULL */
    const char *name;       /* NULL: by position */
    size_t n_name;
    int name_id;    /* of a parameter */
    uint8_t spread; /* 1: *value, 2: **value */
};

struct sv_jnode {
    uint8_t type, op;
    bool flag;    /* for: recursive; macro: uses varargs */
    bool kwargs;  /* macro: uses kwargs */
    bool caller;  /* macro: uses caller */
    uint32_t pos; /* byte of the source */
    int id;       /* name, filter or test */
    struct sv_jval value;
    struct sv_jnode *a, *b, *c;
    struct sv_jnode *kids, *body, *other, *next;
    struct sv_jarg *args;
};

#endif
